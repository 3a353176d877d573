//! `run`, `once`, `check`, `refill`: the verbs that make or look.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use log::{error, info, warn};
use sd_notify::NotifyState;
use serde_json::json;
use stemma_wire::clock::SystemClock;
use stemma_wire::message::observed::{Outcome, TaskResult};

use super::access::check_access;
use super::membership::{Membership, membership};
use super::status::{printable, words};
use super::waits::waiting;
use super::{Exit, Local, print, print_json, service, status};
use crate::apply::executor::{Course, Purpose, Run, is_observed};
use crate::apply::ledger::{LOCAL, LOOK_ASKED, LOOK_DONE, Ledger, PROGRESS, Performed, REASONS};
use crate::apply::outputs;
use crate::apply::wake::{WakeListener, Woken, wake};
use crate::apply::worker::{ApplyWorker, Until};
use crate::args::Output;
use crate::channel::{ApplyEnd, SyncEnd, pair};
use crate::config::Config;
use crate::host::real::surroundings;
use crate::host::{Command, or_never};
use crate::identity::{Identity, IdentityError};
use crate::sync;

/// An agent that was killed just now is gone by then.
const GOING: Duration = Duration::from_secs(3);

/// A running agent has taken up by then what it was asked for; one of an older version never does.
const TAKES_UP: Duration = Duration::from_secs(30);

/// How much longer a service manager is to wait each time for an agent that waits itself, in microseconds: longer than [`TAKES_UP`].
const STARTS_LATER: u32 = 60_000_000;

/// How often the running agent is asked whether it is done.
const BETWEEN: Duration = Duration::from_millis(100);

/// What became of the tasks of a host that was paused or parked before any of them began.
const NONE_APPLIED: &str = "no task was applied, labels were";

/// The same where that came while its agent applied them: it is not waited for.
const STOPPED_AGENT: &str =
    "a task that runs ends, and no other begins; labels were applied, and `stemma-agent status` says how tasks ended";

/// Runs both halves until a signal says stop. A host whose identity or key is damaged goes on with what it holds.
///
/// # Errors
/// When this host has not joined, or its state or configuration cannot be used.
pub fn run(root: &Path) -> Result<Exit> {
    let (local, config, membership) = open_joined(root)?;
    let _lock = lock_for_good(&local)?;
    runtime()?.block_on(async {
        let (sync_end, apply_end) = pair();
        let wakes = WakeListener::listen(&local.host).unwrap_or_else(|failed| {
            warn!(error = failed.sentence().as_str(); "no command on this host can wake the agent before it is started again");
            WakeListener::never()
        });
        let (worker, identity) = worker(&local, config, membership, apply_end, wakes, Until::Stopped)?;
        let mut worker = worker.watching();
        if service::is_booted(root) {
            let words = ["systemctl", "start", "--no-block", "stemma-applied.target"].map(str::to_owned);
            worker = worker.when_applied(Command::new(words.to_vec(), Duration::from_secs(10)));
        }
        info!(path = root.display().to_string().as_str(); "agent started");
        notify(&[NotifyState::Ready]);
        tokio::select! {
            ended = worker.run(async { stopped().await; }) => {
                ended.context("the root half")?;
            }
            error = talk(&local, identity, sync_end) => return Err(error).context("the network half"),
        }
        notify(&[NotifyState::Stopping]);
        info!("agent stopped");
        Ok(Exit::Done)
    })
}

/// The state, configuration and membership of a host that has joined.
fn open_joined(root: &Path) -> Result<(Local, Config, Membership)> {
    let (local, config) = open(root)?;
    let membership = membership(&local)?;
    if matches!(membership, Membership::NotJoined) {
        return Err(IdentityError::NotJoined.into());
    }
    Ok((local, config, membership))
}

/// The state and configuration of a host, where nobody else could have written them (S71).
fn open(root: &Path) -> Result<(Local, Config)> {
    let local = Local::open(root)?;
    check_access(&*local.host)?;
    let config = Config::load(&*local.host)?;
    Ok((local, config))
}

/// The root half of a host that has joined, and who it is where it can still say so.
fn worker(
    local: &Local,
    config: Config,
    membership: Membership,
    end: ApplyEnd,
    wakes: WakeListener,
    mode: Until,
) -> Result<(ApplyWorker, Option<Identity>)> {
    let new = |trust| ApplyWorker::new(local.site.clone(), config, trust, end, wakes, mode);
    Ok(match membership {
        Membership::Member(member) => {
            let (identity, trust) = *member;
            (new(Some(trust))?, Some(identity))
        }
        Membership::Damaged(_, why) => {
            error!(error = why.as_str(); "this host cannot speak with its fleet");
            (new(None)?.apart(why), None)
        }
        Membership::NotJoined => (new(None)?, None),
    })
}

/// The network half, where there is one.
async fn talk(local: &Local, identity: Option<Identity>, end: SyncEnd) -> sync::SyncError {
    match identity {
        Some(identity) => {
            let Err(error) = sync::run(local.host.clone(), identity, end, Arc::new(SystemClock)).await;
            error
        }
        None => {
            listen(end).await;
            std::future::pending().await
        }
    }
}

/// The lock of this host's state; `None` while another agent holds it for that long.
fn lock(local: &Local, patience: Duration) -> Result<Option<OwnedFd>> {
    let until = Instant::now() + patience;
    loop {
        match local.lock()? {
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            held => return Ok(held),
        }
    }
}

/// The lock of this host's state, for an agent that stays. One that a `once` holds is waited for, however long its tasks take: it ends.
fn lock_for_good(local: &Local) -> Result<OwnedFd> {
    if let Some(held) = lock(local, GOING)? {
        return Ok(held);
    }
    // Who waits for verbs on this host is an agent. It looks at everything once more for being woken.
    if wake(&local.host)? == Woken::Running {
        bail!("an agent runs on this state already; `stemma-agent status` says how it stands");
    }
    warn!("waiting for the end of a `stemma-agent once` that applies what this host holds");
    loop {
        notify(&[NotifyState::ExtendTimeoutUsec(STARTS_LATER)]);
        if let Some(held) = lock(local, TAKES_UP)? {
            return Ok(held);
        }
    }
}

/// Tells the service manager, where there is one.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!(error:% = error; "the service manager cannot be told");
    }
}

/// Takes what the root half says where no network half runs.
async fn listen(mut end: SyncEnd) {
    while end.receive().await.is_ok() {}
}

/// Applies what is held once. If an agent is running, it is asked to do this, and the command waits for that run.
///
/// # Errors
/// As [`run`], when the agent that runs does not answer, and when its state cannot be kept.
pub fn once(root: &Path) -> Result<Exit> {
    let (local, config, membership) = open_joined(root)?;
    let apart = match &membership {
        Membership::Damaged(_, why) => Some(format!("{why}\n")),
        Membership::Member(_) | Membership::NotJoined => None,
    };
    let (before, was_stopped) = (Before::of(&local)?, stopped_by(&local)?.is_some());
    let signal = Cell::new(None);
    let held = lock(&local, Duration::ZERO)?.map_or_else(|| looked_or_gone(&local), |held| Ok(Some(held)))?;
    let course = match held {
        Some(_held) => runtime()?.block_on(async {
            let (sync_end, apply_end) = pair();
            let (worker, _) = worker(&local, config, membership, apply_end, WakeListener::never(), Until::Quiet)?;
            let stop = async { signal.set(Some(stopped().await)) };
            let (ended, ()) = tokio::join!(worker.run(stop), listen(sync_end));
            ended.context("the root half").map(Some)
        })?,
        None => None,
    };
    let (stop, stuck) = (stopped_by(&local)?, status::stuck(&local)?);
    if let Some(why) = &stuck {
        say_stuck(why);
    }
    let why = match (signal.get(), &course, stop) {
        (Some(signal), Some(course), _) if course.ended.len() < course.tasks => Some(cut_short(signal, course)),
        (_, _, Some(stop)) if was_stopped => Some(stop.sentence(NONE_APPLIED)),
        (_, Some(course), Some(stop)) => Some(stop.sentence(&stopped_after(course))),
        (_, None, Some(stop)) => Some(stop.sentence(STOPPED_AGENT)),
        (_, _, None) => apart,
    };
    if let Some(why) = why {
        // Of a host that is stuck it is not so that its labels were applied.
        if stuck.is_none() || signal.get().is_some() {
            print(&why)?;
        }
        return Ok(Exit::Failed);
    }
    outcome_of_once(&local, &before).map(|outcome| if stuck.is_some() { Exit::Failed } else { outcome })
}

/// Says on which ground this host neither keeps nor applies what it is told.
fn say_stuck(why: &str) {
    let _ = writeln!(std::io::stderr().lock(), "this host is stuck: {}", printable(why));
}

/// What is said where a signal ended a run before all its tasks had run.
fn cut_short(signal: &str, course: &Course) -> String {
    let left = match course.tasks - course.ended.len() {
        1 => "1 has not run".to_owned(),
        left => format!("{left} have not run"),
    };
    format!("stopped by {signal} after {}: {left}; run `stemma-agent once` again\n", far(course))
}

/// What is said where the host was paused or parked while this process applied its tasks.
fn stopped_after(course: &Course) -> String {
    if course.ended.is_empty() {
        return NONE_APPLIED.to_owned();
    }
    format!("it was after {}, and no other was begun; labels were applied", far(course))
}

/// How far a run came: `2 of 5 tasks (2 changed)`.
fn far(course: &Course) -> String {
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    for outcome in &course.ended {
        *outcomes.entry(words(outcome)).or_default() += 1;
    }
    let how = if outcomes.is_empty() { String::new() } else { format!(" ({})", each(&outcomes)) };
    let tasks = if course.tasks == 1 { "task" } else { "tasks" };
    format!("{} of {} {tasks}{how}", course.ended.len(), course.tasks)
}

/// How many ended how, by their words: `2 changed, 3 unchanged`.
fn each(outcomes: &BTreeMap<String, usize>) -> String {
    let each: Vec<String> = outcomes.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
    each.join(", ")
}

/// How tasks had ended before a run, by which it is seen what the run changed.
struct Before {
    tasks: BTreeMap<String, Performed>,
    /// The number of the last result that was kept.
    last: u64,
}

impl Before {
    fn of(local: &Local) -> Result<Self> {
        let ledger = &local.site.ledger;
        let tasks = ledger.get(&PROGRESS)?.unwrap_or_default().tasks;
        Ok(Self { tasks, last: ledger.results()?.last().map_or(0, |result| result.sequence) })
    }

    /// How many of these tasks ended how in the run. One that changed something in an earlier run, and was found as it should be in this one,
    /// has neither a new record nor a result: it counts as unchanged.
    fn outcomes(&self, ledger: &Ledger, tasks: &BTreeMap<String, Performed>) -> Result<BTreeMap<String, usize>> {
        let results = ledger.results()?;
        let is_told = |id: &String| results.iter().any(|result| result.sequence > self.last && result.task == *id);
        let mut outcomes = BTreeMap::new();
        for (id, performed) in tasks {
            let is_same = performed.outcome == Outcome::Changed && self.tasks.get(id) == Some(performed);
            let outcome = if is_same && !is_told(id) { Outcome::Unchanged } else { performed.outcome };
            *outcomes.entry(words(outcome)).or_default() += 1;
        }
        Ok(outcomes)
    }
}

/// What became of the tasks in one line.
fn summary(outcomes: &BTreeMap<String, usize>) -> String {
    match outcomes.values().sum::<usize>() {
        0 => "no task has run\n".to_owned(),
        1 => format!("1 task: {}\n", each(outcomes)),
        all => format!("{all} tasks: {}\n", each(outcomes)),
    }
}

/// The running agent has looked at everything (`None`), or was on its way out and has left the lock.
fn looked_or_gone(local: &Local) -> Result<Option<OwnedFd>> {
    let ledger = &local.site.ledger;
    let (_, done) = ledger.get(&LOOK_DONE)?.unwrap_or_default();
    let number = ledger.get(&LOOK_ASKED)?.unwrap_or_default().max(done) + 1;
    if let Err(failed) = ledger.put(&LOOK_ASKED, &number) {
        // It cannot be asked, and looks all the same: so its controller hears of it too.
        let _ = wake(&local.host);
        return Err(failed.into());
    }
    let mut patience = Instant::now() + TAKES_UP;
    let mut woken = wake(&local.host)?;
    loop {
        if let Some(held) = lock(local, BETWEEN)? {
            return Ok(Some(held));
        }
        let (taken_up, done) = ledger.get(&LOOK_DONE)?.unwrap_or_default();
        // What still runs on a host that is paused or parked is not waited for: it ends, and nothing more begins.
        if done >= number || (taken_up >= number && stopped_by(local)?.is_some()) {
            return Ok(None);
        }
        if let Err(failed) = ledger.check_room() {
            bail!("the agent's own state cannot be kept: {}", failed.sentence());
        }
        if taken_up >= number {
            // However long its tasks take.
            patience = Instant::now() + TAKES_UP;
        } else if ledger.get(&LOOK_ASKED)?.unwrap_or_default() < number {
            // Another `once` read the number before this one wrote it, and wrote its own after.
            ledger.put(&LOOK_ASKED, &number)?;
            woken = wake(&local.host)?;
        } else if woken == Woken::Running && Instant::now() > patience {
            // Whoever cannot be woken is another `once`: it ends, however long its tasks take, and an agent that starts then takes the look up.
            bail!("another agent holds the state of this host and does not answer; restart it");
        }
    }
}

/// Why no task is applied on a host now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Paused,
    Parked,
}

impl Stop {
    /// Which it is, what became of the tasks, and what to do about it.
    fn sentence(self, tasks: &str) -> String {
        let (state, way_out) = match self {
            Self::Paused => ("paused", "run `stemma-agent resume`, then `stemma-agent once`"),
            Self::Parked => ("parked", "on a controller, set parked to false"),
        };
        format!("this host is {state}: {tasks}; {way_out}\n")
    }
}

/// Why no task is applied on this host now.
fn stopped_by(local: &Local) -> Result<Option<Stop>> {
    let said = local.site.ledger.get(&LOCAL)?.unwrap_or_default();
    let parked = local.site.ledger.accepted()?.is_some_and(|accepted| accepted.desired().known.parked);
    Ok(if said.paused {
        Some(Stop::Paused)
    } else if parked || said.parked.is_some() {
        Some(Stop::Parked)
    } else {
        None
    })
}

fn outcome_of_once(local: &Local, before: &Before) -> Result<Exit> {
    let ledger = &local.site.ledger;
    let Some(desired) = ledger.accepted()?.map(|accepted| accepted.desired()) else {
        print("this host holds no desired state yet\n")?;
        return Ok(Exit::Done);
    };
    if desired.is_unreleased() {
        print("no task set has come to this host yet: only labels were applied\n")?;
        return Ok(Exit::Done);
    }
    if let Some(hash) = desired.task_set.profile
        && !ledger.has_body(hash)?
    {
        print("the task profile is not on this host yet: only labels were applied; `stemma-agent run` fetches it\n")?;
        return Ok(Exit::Failed);
    }
    let profile = ledger.profile(&desired)?.unwrap_or_default();
    let reasons = ledger.get(&REASONS)?.unwrap_or_default();
    let mut tasks = ledger.get(&PROGRESS)?.unwrap_or_default().tasks;
    tasks.retain(|_, performed| performed.task_set == desired.digest);
    let waiting = waiting(local, &desired, &profile, &tasks)?.len();
    for task in profile.tasks.iter().filter(|task| is_observed(task)) {
        tasks.remove(&task.id);
    }
    let outcomes = before.outcomes(ledger, &tasks)?;
    tasks.retain(|_, performed| performed.outcome.is_failure());
    let line = |(id, performed): (&String, &Performed)| {
        let why = reasons.get(id).map_or("", |reason| reason.message.as_str());
        format!("{id:<24} {:<18} {}\n", words(performed.outcome), printable(why))
    };
    print(&tasks.iter().map(line).collect::<String>())?;
    print(&summary(&outcomes))?;
    match waiting {
        0 => {}
        1 => print("1 task waits at a barrier; `stemma-agent explain task` says at which\n")?,
        more => print(&format!("{more} tasks wait at a barrier; `stemma-agent explain task` says at which\n"))?,
    }
    Ok(match (tasks.is_empty(), waiting) {
        (false, _) => Exit::Failed,
        (true, 0) => Exit::Done,
        (true, _) => Exit::Waits,
    })
}

/// Checks every task of what is held: what would change?
///
/// # Errors
/// When the state or configuration cannot be used.
pub fn check(root: &Path, output: Output) -> Result<Exit> {
    let (local, config) = open(root)?;
    let Some(accepted) = local.site.ledger.accepted()? else {
        print("this host holds no desired state yet\n")?;
        return Ok(Exit::NotFound);
    };
    let desired = accepted.desired();
    if desired.is_unreleased() {
        print("no task set has come to this host yet: there is nothing to check\n")?;
        return Ok(Exit::NotFound);
    }
    let profile = local.site.ledger.profile(&desired)?.unwrap_or_default();
    let site = local.site.clone().with_label_map(&config.host_label_map);
    let mut run = Run::plan(site, &config.ceiling, &desired, &profile, Purpose::Check)?;
    let open = BTreeSet::new();
    runtime()?.block_on(async {
        while run.work(&open).await? {}
        anyhow::Ok(())
    })?;
    let results = run.into_results();
    let differs = results.iter().any(|result| result.outcome == Outcome::WouldChange);
    let failed = results.iter().any(|result| !matches!(result.outcome, Outcome::WouldChange | Outcome::Unchanged));
    print_results(&results, output)?;
    let stuck = status::stuck(&local)?;
    if let Some(why) = &stuck {
        // An agent that runs has its controller hear of it too.
        let _ = wake(&local.host);
        say_stuck(why);
    }
    Ok(if failed || stuck.is_some() {
        Exit::Failed
    } else if differs {
        Exit::WouldChange
    } else {
        Exit::Done
    })
}

fn print_results(results: &[TaskResult], output: Output) -> Result<()> {
    let json = |TaskResult { task, outcome, message, diff, .. }: &TaskResult| json!({"task": task, "outcome": words(outcome), "message": message, "diff": diff});
    let human = |TaskResult { task, outcome, message, diff, .. }: &TaskResult| {
        format!("{task:<24} {:<18} {message}\n{diff}", words(outcome))
    };
    match output {
        Output::Json => print_json(&results.iter().map(json).collect::<Vec<_>>()),
        Output::Human => print(&results.iter().map(human).collect::<String>()),
    }
}

/// Writes `/run/stemma` from the ledger, as `stemma-labels.service` does at boot.
///
/// # Errors
/// When the state cannot be read or `/run/stemma` cannot be written.
pub fn refill(root: &Path) -> Result<Exit> {
    let (local, _) = open(root)?;
    if let Some(accepted) = local.site.ledger.accepted()? {
        let desired = accepted.desired();
        outputs::write_run(&*local.host, &desired.known, &desired.task_set)?;
    }
    Ok(Exit::Done)
}

pub(super) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")
}

/// The signal by which this process is told to end. That its terminal or its connection has gone is one, unless it was started to outlive that
/// (`nohup`): who dies of it leaves a command that runs unknown.
async fn stopped() -> &'static str {
    use tokio::signal::unix::{Signal, SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    let mut hangup = if surroundings::outlives_terminal() { None } else { signal(SignalKind::hangup()).ok() };
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        _ = or_never(hangup.as_mut().map(Signal::recv)) => "SIGHUP",
    }
}

#[cfg(test)]
mod tests;
