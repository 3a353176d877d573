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
        if let Some(held) = lock(local, BETWEEN)? {
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
mod tests {
    use std::process::{Child, Stdio};

    use stemma_core::task::Mode;
    use stemma_wire::message::Revision;
    use stemma_wire::message::desired::Barrier;
    use stemma_wire::message::observed::{LocalState, Progress, Report};

    use super::*;
    use crate::apply::ledger::{OPEN_BARRIERS, OpenBarriers, REPORT, STAGING_DIRS};
    use crate::apply::leftovers::StagingDirs;
    use crate::apply::testing::{Set, joined};

    /// Where the agent of another test's process has its root.
    const ROOT: &str = "STEMMA_TEST_ROOT";

    /// The agent that another test starts: the lock of a host is held by a process. Without that test there is nothing to do.
    #[test]
    fn an_agent_for_another_test() {
        if let Some(path) = std::env::var_os(ROOT) {
            run(Path::new(&path)).unwrap();
        }
    }

    /// Where a process of another test is to hold the lock, as `once` does while its tasks run: nobody can wake it.
    const LOCKED: &str = "STEMMA_TEST_LOCKED";

    #[test]
    fn another_once_for_another_test() {
        if let Some(path) = std::env::var_os(LOCKED) {
            let local = Local::open(Path::new(&path)).unwrap();
            let _lock = lock(&local, Duration::from_mins(1)).unwrap().unwrap();
            std::thread::sleep(Duration::from_mins(10));
        }
    }

    /// Waits until something holds.
    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let limit = Instant::now() + Duration::from_mins(2);
        while !holds() {
            assert!(Instant::now() < limit, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn y02_once_asks_again_where_another_one_wrote_over_its_number() {
        let root = tempfile::tempdir().unwrap();
        joined(root.path(), &Set::default());
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "verbs::converge::tests::another_once_for_another_test"]).env(LOCKED, root.path());
        let other = Agent(command.stdout(Stdio::null()).spawn().unwrap());
        let local = Local::open(root.path()).unwrap();
        until("the other one has the lock", || local.is_running() == Some(true));
        let path = root.path().to_owned();
        let this = std::thread::spawn(move || once(&path).unwrap());
        let asked = || local.site.ledger.get(&LOOK_ASKED).unwrap();
        until("it has asked", || asked() == Some(1));
        // One that read the number before.
        local.site.ledger.put(&LOOK_ASKED, &0).unwrap();
        until("it asks again", || asked() == Some(1));
        drop(other);
        assert_eq!(this.join().unwrap(), Exit::Done);
    }

    /// It ends with the test, also with one that fails.
    struct Agent(Child);

    impl Drop for Agent {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn agent(root: &Path) -> Agent {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "verbs::converge::tests::an_agent_for_another_test"]).env(ROOT, root);
        let agent = Agent(command.stdout(Stdio::null()).spawn().unwrap());
        let local = Local::open(root).unwrap();
        let limit = Instant::now() + Duration::from_mins(2);
        while wake(&local.host).unwrap() == Woken::Nobody {
            assert!(Instant::now() < limit, "the agent does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        agent
    }

    #[test]
    fn w10_11_no_verb_acts_on_a_state_that_others_could_write() {
        use std::os::unix::fs::PermissionsExt as _;

        let root = tempfile::tempdir().unwrap();
        let flag = root.path().join("flag");
        let guards = serde_json::json!({"command": ["true"], "unless": ["touch", flag.display().to_string()]});
        let task = serde_json::json!({"parameters": guards});
        joined(root.path(), &Set::default().task("c", "shell", &[], &task));
        let accepted = root.path().join("var/lib/stemma-agent/apply/accepted");
        std::fs::set_permissions(&accepted, std::fs::Permissions::from_mode(0o666)).unwrap();
        for (verb, ended) in
            [("once", once(root.path())), ("check", check(root.path(), Output::Json)), ("refill", refill(root.path()))]
        {
            let refused = ended.unwrap_err().to_string();
            assert!(refused.contains("/apply/accepted can be written by others (mode 0666)"), "{verb}: {refused}");
        }
        assert!(!flag.exists() && !root.path().join("run/stemma").exists(), "nothing of it was done");
        std::fs::set_permissions(&accepted, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(check(root.path(), Output::Json).unwrap(), Exit::Done);
        assert!(flag.exists(), "the guard was asked");
        assert_eq!(refill(root.path()).unwrap(), Exit::Done);
    }

    #[test]
    fn w08_status_says_whether_an_agent_runs() {
        let root = tempfile::tempdir().unwrap();
        joined(root.path(), &Set::default());
        let runs = || status::shown(root.path()).contains("no agent runs on this host");
        assert!(runs());
        let agent = agent(root.path());
        assert!(!runs());
        drop(agent);
        assert!(runs());
    }

    #[test]
    fn w08_once_beside_a_running_agent_waits_for_its_run_and_ends_as_alone() {
        let root = tempfile::tempdir().unwrap();
        let flag = root.path().join("flag");
        let script = format!("echo it is not there; test -e {}", flag.display());
        let parameters = serde_json::json!({"parameters": {"script": script}});
        joined(root.path(), &Set::default().task("c", "shell", &[], &parameters));
        let mut agent = agent(root.path());
        assert_eq!(once(root.path()).unwrap(), Exit::Failed);
        std::fs::write(&flag, "").unwrap();
        assert_eq!(once(root.path()).unwrap(), Exit::Done, "it looked again");
        assert_eq!(agent.0.try_wait().unwrap(), None, "it was done by the agent");
        drop(agent);
        assert_eq!(once(root.path()).unwrap(), Exit::Done, "alone");
    }

    #[test]
    fn y09_without_a_desired_state_once_and_check_end_as_the_page_says() {
        let page = include_str!("../../../docs/agent.md");
        let ends = |verb: &str| {
            let row = page.lines().find(|line| line.starts_with(&format!("| `{verb}"))).unwrap();
            row.trim_end_matches('|').rsplit('|').next().unwrap().split(',').map(str::trim).collect::<Vec<_>>()
        };
        let root = tempfile::tempdir().unwrap();
        joined(root.path(), &Set::default());
        std::fs::remove_file(root.path().join("var/lib/stemma-agent/apply/accepted")).unwrap();
        let none = "no desired state has come yet";
        let once = format!("{} also where {none}", once(root.path()).unwrap().status());
        let check = format!("{} {none}", check(root.path(), Output::Human).unwrap().status());
        assert!(ends("once").contains(&once.as_str()) && ends("check").contains(&check.as_str()), "{once}, {check}");
    }

    /// It said nothing where all was well.
    #[test]
    fn y09_once_says_what_became_of_the_tasks() {
        for (outcomes, expected) in [
            (vec![("changed", 2), ("unchanged", 3)], "5 tasks: 2 changed, 3 unchanged\n"),
            (vec![("unchanged", 1)], "1 task: 1 unchanged\n"),
            (vec![], "no task has run\n"),
        ] {
            let outcomes = outcomes.into_iter().map(|(outcome, count): (&str, usize)| (outcome.to_owned(), count));
            let outcomes = outcomes.collect();
            assert_eq!(summary(&outcomes), expected);
        }
        let root = tempfile::tempdir().unwrap();
        joined(root.path(), &Set::default().file("a", &[], "/srv/a", "x").file("b", &[], "/srv/b", "y"));
        let run = || {
            let local = Local::open(root.path()).unwrap();
            let before = Before::of(&local).unwrap();
            drop(local);
            assert_eq!(once(root.path()).unwrap(), Exit::Done);
            let local = Local::open(root.path()).unwrap();
            let tasks = local.site.ledger.get(&PROGRESS).unwrap().unwrap().tasks;
            summary(&before.outcomes(&local.site.ledger, &tasks).unwrap())
        };
        assert_eq!(run(), "2 tasks: 2 changed\n");
        assert_eq!(run(), "2 tasks: 2 unchanged\n", "what it changed before is not changed again");
        std::fs::write(root.path().join("srv/a"), "edited").unwrap();
        assert_eq!(run(), "2 tasks: 1 changed, 1 unchanged\n");
    }

    /// `once` ended with 0 where a signal had stopped it, and said of tasks that it had applied that none was.
    #[test]
    fn y02_once_says_how_far_it_came_where_a_signal_or_a_pause_cut_it_short() {
        use Outcome::{Changed, Failed, Unchanged};
        for (tasks, ended, far, left) in [
            (5, vec![Changed, Changed], "2 of 5 tasks (2 changed)", "3 have not run"),
            (4, vec![Failed, Changed, Unchanged], "3 of 4 tasks (1 changed, 1 failed, 1 unchanged)", "1 has not run"),
            (1, vec![], "0 of 1 task", "1 has not run"),
        ] {
            let course = Course { tasks, ended };
            let said = format!("stopped by SIGINT after {far}: {left}; run `stemma-agent once` again\n");
            assert_eq!(cut_short("SIGINT", &course), said);
            let paused = match course.ended.len() {
                0 => "no task was applied, labels were".to_owned(),
                _ => format!("it was after {far}, and no other was begun; labels were applied"),
            };
            let paused =
                format!("this host is paused: {paused}; run `stemma-agent resume`, then `stemma-agent once`\n");
            assert_eq!(Stop::Paused.sentence(&stopped_after(&course)), paused);
        }
    }

    /// Where no agent ran, the host went on saying what the last one had reported while it ran tasks.
    #[test]
    fn y02_no_task_is_said_to_run_where_no_agent_does() {
        let root = tempfile::tempdir().unwrap();
        let host = joined(root.path(), &Set::default().file("f", &[], "/srv/f", "x"));
        let report = Report { progress: Progress::Running, ..Report::default() };
        Ledger::open(host).unwrap().put(&REPORT, &report).unwrap();
        assert!(status::shown(root.path()).contains("state     waiting\n"));
    }

    /// A controller says `failed`, since it has the finding.
    #[test]
    fn y01_a_host_in_mode_observe_says_by_check_that_two_tasks_write_one_path() {
        let root = tempfile::tempdir().unwrap();
        let set = Set::default().file("a", &[], "/srv/z", "a").file("b", &[], "/srv/z", "b");
        joined(root.path(), &set.mode(Mode::Observe));
        assert_eq!(once(root.path()).unwrap(), Exit::Done);
        assert_eq!(status::status(root.path(), Output::Human).unwrap(), Exit::Done);
        assert!(status::shown(root.path()).contains("state     waiting: its mode is observe"));
        assert_eq!(check(root.path(), Output::Human).unwrap(), Exit::Failed);
        let page = include_str!("../../../docs/agent.md");
        assert!(page.contains("mode `observe` where two tasks write one path"), "what each of them says is documented");
    }

    /// `once` ended with 0 and said nothing, as where all was done.
    #[test]
    fn w08_once_says_how_many_tasks_wait_at_a_barrier_and_is_no_success() {
        let root = tempfile::tempdir().unwrap();
        let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
        let path = |name: &str| root.path().join(name).display().to_string();
        let set = Set::default().command("first", &[], &["touch", &path("first")]);
        let set = set.command("app", &[0], &["touch", &path("app")]).behind(barrier.clone());
        let set = set.command("conf", &[1], &["touch", &path("conf")]);
        let host = joined(root.path(), &set);
        assert_eq!(once(root.path()).unwrap(), Exit::Waits);
        let local = Local::open(root.path()).unwrap();
        let performed = local.site.ledger.get(&PROGRESS).unwrap().unwrap().tasks;
        let (profile, desired) = (postcard::from_bytes(&set.profile().1).unwrap(), set.desired());
        let waiting: Vec<_> = waiting(&local, &desired, &profile, &performed).unwrap().into_keys().collect();
        assert_eq!(waiting, ["app", "conf"], "conf is behind it");
        assert!(root.path().join("first").exists() && !root.path().join("app").exists());
        drop(local);

        let open = BTreeSet::from([barrier]);
        let opened = OpenBarriers { task_set: desired.digest, revision: Revision(1), open };
        Ledger::open(host).unwrap().put(&OPEN_BARRIERS, &opened).unwrap();
        assert_eq!(once(root.path()).unwrap(), Exit::Done);
        assert!(root.path().join("conf").exists());
    }

    #[test]
    fn x05_once_on_a_paused_host_takes_away_what_a_killed_agent_left() {
        let root = tempfile::tempdir().unwrap();
        let host = joined(root.path(), &Set::default().file("f", &[], "/srv/f", "x"));
        let left = root.path().join("srv/.stemma-0123456789abcdef");
        std::fs::create_dir_all(left.parent().unwrap()).unwrap();
        std::fs::write(&left, "secret").unwrap();
        let ledger = Ledger::open(host).unwrap();
        ledger.put(&STAGING_DIRS, &StagingDirs::from([("/srv".to_owned(), BTreeSet::new())])).unwrap();
        ledger.put(&LOCAL, &LocalState { paused: true, ..LocalState::default() }).unwrap();
        drop(ledger);
        assert_eq!(once(root.path()).unwrap(), Exit::Failed, "no task was applied");
        assert!(!left.exists() && !root.path().join("srv/f").exists());
    }

    #[test]
    fn y06_a_task_that_is_only_observed_is_no_failure_and_is_said_by_status_and_explain() {
        let root = tempfile::tempdir().unwrap();
        let fields = serde_json::json!({"mode": "observe", "parameters": {"script": "exit 3"}});
        joined(root.path(), &Set::default().task("seen", "shell", &[], &fields).file("f", &[], "/srv/f", "x"));
        assert_eq!(once(root.path()).unwrap(), Exit::Done);
        let text = status::shown(root.path());
        let task = "task      seen                     observed\n            its mode is observe: it is neither run nor checked\n";
        assert!(text.contains(task) && text.contains("state     converged\n"), "{text}");
        let why = super::super::explain::why(root.path(), "seen");
        assert_eq!(why, ["last: observed", "  its mode is observe: it is neither run nor checked"]);
    }

    #[test]
    fn w08_why_a_task_failed_is_said_by_status_and_explain() {
        let root = tempfile::tempdir().unwrap();
        let parameters = serde_json::json!({"parameters": {"script": "echo out of paper; exit 3"}});
        joined(root.path(), &Set::default().task("print", "shell", &[], &parameters));
        assert_eq!(once(root.path()).unwrap(), Exit::Failed);
        let text = status::shown(root.path());
        assert!(
            text.contains("print                    failed\n            the command ended with status 3\n"),
            "{text}"
        );
        assert!(text.contains("            out of paper\n"), "{text}");
        let why = super::super::explain::why(root.path(), "print");
        assert!(why.join("\n").contains("last: failed\n  the command ended with status 3\n  out of paper"), "{why:?}");
    }
}
