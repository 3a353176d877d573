//! `run`, `once`, `check`, `refill`: the commands that apply or check the desired state.

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
use super::membership::{Membership, read_membership};
use super::status::{escape_terminal, words};
use super::waits::waiting_tasks;
use super::{AgentExit, LocalHost, print, print_json, service, status};
use crate::apply::executor::{RunPurpose, RunSummary, TaskRun, is_observed};
use crate::apply::ledger::{LOCAL_STATE, Ledger, PROGRESS, REASONS, RECONCILE_DONE, RECONCILE_REQUESTED, TaskRecord};
use crate::apply::outputs;
use crate::apply::wake::{WakeListener, WakeResult, wake};
use crate::apply::worker::{ApplyWorker, StopWhen};
use crate::args::OutputFormat;
use crate::channel::{ApplyEnd, SyncEnd, pair};
use crate::config::AgentConfig;
use crate::host::real::process_setup;
use crate::host::{HostCommand, or_pending};
use crate::identity::{HostIdentity, IdentityError};
use crate::sync;

/// Time after which an agent that was just killed has exited.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Time in which a running agent starts a requested reconcile. An agent of an older version never does.
const RECONCILE_START_TIMEOUT: Duration = Duration::from_secs(30);

/// Additional start timeout, in microseconds, that is requested from the service manager while the agent waits. Longer
/// than [`RECONCILE_START_TIMEOUT`].
const EXTEND_START_US: u32 = 60_000_000;

/// Interval at which the running agent's progress is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Message for a host that was paused or parked before any task began.
const NONE_APPLIED_MESSAGE: &str = "no task was applied, labels were";

/// Message for a host that was paused or parked while its agent applied tasks. The command does not wait for the agent.
const AGENT_STOPPED_MESSAGE: &str =
    "the running task will end, and no other begins; labels were applied, and `stemma-agent status` shows how tasks ended";

/// Runs both halves of the agent until a signal stops them. If the identity or credentials are damaged, only the root
/// half works: it keeps applying the stored desired state.
///
/// # Errors
/// Fails if this host has not joined, or if its state or configuration cannot be used.
pub fn run(root: &Path) -> Result<AgentExit> {
    let (local, config, membership) = open_joined(root)?;
    let _lock = lock_for_agent(&local)?;
    runtime()?.block_on(async {
        let (sync_end, apply_end) = pair();
        let listener = WakeListener::listen(&local.host).unwrap_or_else(|failed| {
            warn!(error = failed.sentence().as_str(); "no command on this host can wake the agent before it is started again");
            WakeListener::never()
        });
        let (worker, identity) = new_worker(&local, config, membership, apply_end, listener, StopWhen::OnRequest)?;
        let mut worker = worker.with_file_watch();
        if service::is_systemd_booted(root) {
            let argv = ["systemctl", "start", "--no-block", "stemma-applied.target"].map(str::to_owned);
            worker = worker.with_applied_command(HostCommand::new(argv.to_vec(), Duration::from_secs(10)));
        }
        info!(path = root.display().to_string().as_str(); "agent started");
        notify(&[NotifyState::Ready]);
        tokio::select! {
            ended = worker.run(async { wait_for_signal().await; }) => {
                ended.context("the root half")?;
            }
            error = run_sync(&local, identity, sync_end) => return Err(error).context("the network half"),
        }
        notify(&[NotifyState::Stopping]);
        info!("agent stopped");
        Ok(AgentExit::Done)
    })
}

/// Opens the state and configuration of a host, and returns them with its membership. Fails if the host has not joined.
fn open_joined(root: &Path) -> Result<(LocalHost, AgentConfig, Membership)> {
    let (local, config) = open(root)?;
    let membership = read_membership(&local)?;
    if matches!(membership, Membership::NotJoined) {
        return Err(IdentityError::NotJoined.into());
    }
    Ok((local, config, membership))
}

/// Opens the state and configuration of a host. Fails if another user could have written them (S71).
fn open(root: &Path) -> Result<(LocalHost, AgentConfig)> {
    let local = LocalHost::open(root)?;
    check_access(&*local.host)?;
    let config = AgentConfig::load(&*local.host)?;
    Ok((local, config))
}

/// Creates the root half of a host that has joined. Returns it with the identity, if identity and credentials are
/// intact.
fn new_worker(
    local: &LocalHost,
    config: AgentConfig,
    membership: Membership,
    end: ApplyEnd,
    listener: WakeListener,
    stop_when: StopWhen,
) -> Result<(ApplyWorker, Option<HostIdentity>)> {
    let create = |trust| ApplyWorker::new(local.site.clone(), config, trust, end, listener, stop_when);
    Ok(match membership {
        Membership::Member(member) => {
            let (identity, trust) = *member;
            (create(Some(trust))?, Some(identity))
        }
        Membership::Damaged(_, why) => {
            error!(error = why.as_str(); "this host cannot connect to its fleet");
            (create(None)?.without_network(why), None)
        }
        Membership::NotJoined => (create(None)?, None),
    })
}

/// Runs the network half, or only drains the channel if there is no identity.
async fn run_sync(local: &LocalHost, identity: Option<HostIdentity>, end: SyncEnd) -> sync::SyncError {
    match identity {
        Some(identity) => {
            let Err(error) = sync::run(local.host.clone(), identity, end, Arc::new(SystemClock)).await;
            error
        }
        None => {
            drain_messages(end).await;
            std::future::pending().await
        }
    }
}

/// Takes the lock of this host's state. Returns `None` if another process still holds the lock after the timeout.
fn lock(local: &LocalHost, timeout: Duration) -> Result<Option<OwnedFd>> {
    let deadline = Instant::now() + timeout;
    loop {
        match local.lock()? {
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            held => return Ok(held),
        }
    }
}

/// Takes the lock of this host's state for an agent that keeps running. Waits for a `once` that holds it, however long
/// its tasks run.
fn lock_for_agent(local: &LocalHost) -> Result<OwnedFd> {
    if let Some(held) = lock(local, EXIT_TIMEOUT)? {
        return Ok(held);
    }
    // Only an agent listens for wakeups. The wakeup makes it reconcile once more.
    if wake(&local.host)? == WakeResult::Running {
        bail!("an agent already runs on this state; see `stemma-agent status`");
    }
    warn!("waiting until the running `stemma-agent once` ends");
    loop {
        notify(&[NotifyState::ExtendTimeoutUsec(EXTEND_START_US)]);
        if let Some(held) = lock(local, RECONCILE_START_TIMEOUT)? {
            return Ok(held);
        }
    }
}

/// Notifies the service manager, if there is one.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!(error:% = error; "the service manager cannot be notified");
    }
}

/// Discards the messages of the root half when no network half runs.
async fn drain_messages(mut end: SyncEnd) {
    while end.receive().await.is_ok() {}
}

/// Applies the stored desired state once. If an agent is running, the command requests a reconcile from the agent and
/// waits for its end.
///
/// # Errors
/// The same errors as [`run`]. Also fails if the running agent does not respond, or if its state cannot be written.
pub fn once(root: &Path) -> Result<AgentExit> {
    let (local, config, membership) = open_joined(root)?;
    let damage = match &membership {
        Membership::Damaged(_, why) => Some(format!("{why}\n")),
        Membership::Member(_) | Membership::NotJoined => None,
    };
    let (baseline, was_stopped) = (RunBaseline::load(&local)?, stop_reason(&local)?.is_some());
    let signal = Cell::new(None);
    let held = lock(&local, Duration::ZERO)?.map_or_else(|| wait_for_running_agent(&local), |held| Ok(Some(held)))?;
    let summary = match held {
        Some(_held) => runtime()?.block_on(async {
            let (sync_end, apply_end) = pair();
            let (worker, _) = new_worker(&local, config, membership, apply_end, WakeListener::never(), StopWhen::WhenIdle)?;
            let stop = async { signal.set(Some(wait_for_signal().await)) };
            let (ended, ()) = tokio::join!(worker.run(stop), drain_messages(sync_end));
            ended.context("the root half").map(Some)
        })?,
        None => None,
    };
    let (stop, stuck) = (stop_reason(&local)?, status::stuck_reason(&local)?);
    if let Some(why) = &stuck {
        print_stuck(why);
    }
    let why = match (signal.get(), &summary, stop) {
        (Some(signal), Some(summary), _) if summary.outcomes.len() < summary.task_count => {
            Some(interrupted_message(signal, summary))
        }
        (_, _, Some(stop)) if was_stopped => Some(stop.sentence(NONE_APPLIED_MESSAGE)),
        (_, Some(summary), Some(stop)) => Some(stop.sentence(&stopped_message(summary))),
        (_, None, Some(stop)) => Some(stop.sentence(AGENT_STOPPED_MESSAGE)),
        (_, _, None) => damage,
    };
    if let Some(why) = why {
        // Most of these messages state that labels were applied, which may be wrong on a stuck host.
        if stuck.is_none() || signal.get().is_some() {
            print(&why)?;
        }
        return Ok(AgentExit::Failed);
    }
    finish_once(&local, &baseline).map(|outcome| if stuck.is_some() { AgentExit::Failed } else { outcome })
}

/// Prints why this host can neither store nor apply its desired state.
fn print_stuck(why: &str) {
    let _ = writeln!(std::io::stderr().lock(), "this host is stuck: {}", escape_terminal(why));
}

/// Returns the message for a run that a signal stopped before all tasks had run.
fn interrupted_message(signal: &str, summary: &RunSummary) -> String {
    let left = match summary.task_count - summary.outcomes.len() {
        1 => "1 has not run".to_owned(),
        left => format!("{left} have not run"),
    };
    format!("stopped by {signal} after {}: {left}; run `stemma-agent once` again\n", progress_text(summary))
}

/// Returns the message for a host that was paused or parked while this process applied its tasks.
fn stopped_message(summary: &RunSummary) -> String {
    if summary.outcomes.is_empty() {
        return NONE_APPLIED_MESSAGE.to_owned();
    }
    format!("it was after {}, and no other was begun; labels were applied", progress_text(summary))
}

/// Returns the progress of a run: `2 of 5 tasks (2 changed)`.
fn progress_text(summary: &RunSummary) -> String {
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    for outcome in &summary.outcomes {
        *outcomes.entry(words(outcome)).or_default() += 1;
    }
    let counts = if outcomes.is_empty() { String::new() } else { format!(" ({})", outcome_counts(&outcomes)) };
    let tasks = if summary.task_count == 1 { "task" } else { "tasks" };
    format!("{} of {} {tasks}{counts}", summary.outcomes.len(), summary.task_count)
}

/// Returns the number of tasks with each outcome: `2 changed, 3 unchanged`.
fn outcome_counts(outcomes: &BTreeMap<String, usize>) -> String {
    let counts: Vec<String> = outcomes.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
    counts.join(", ")
}

/// The outcomes of tasks before a run, to find out what the run changed.
struct RunBaseline {
    tasks: BTreeMap<String, TaskRecord>,
    /// Sequence number of the last stored result.
    last_sequence: u64,
}

impl RunBaseline {
    fn load(local: &LocalHost) -> Result<Self> {
        let ledger = &local.site.ledger;
        let tasks = ledger.get(&PROGRESS)?.unwrap_or_default().tasks;
        Ok(Self { tasks, last_sequence: ledger.results()?.last().map_or(0, |result| result.sequence) })
    }

    /// Counts the outcomes of these tasks in the run. A task that changed something in an earlier run and had nothing
    /// to do in this one has neither a new record nor a result. It counts as unchanged.
    fn outcomes(&self, ledger: &Ledger, tasks: &BTreeMap<String, TaskRecord>) -> Result<BTreeMap<String, usize>> {
        let results = ledger.results()?;
        let has_result = |id: &String| results.iter().any(|result| result.sequence > self.last_sequence && result.task == *id);
        let mut outcomes = BTreeMap::new();
        for (id, record) in tasks {
            let is_same = record.outcome == Outcome::Changed && self.tasks.get(id) == Some(record);
            let outcome = if is_same && !has_result(id) { Outcome::Unchanged } else { record.outcome };
            *outcomes.entry(words(outcome)).or_default() += 1;
        }
        Ok(outcomes)
    }
}

/// Returns the line that counts the outcomes of the tasks: `5 tasks: 2 changed, 3 unchanged`.
fn summary_text(outcomes: &BTreeMap<String, usize>) -> String {
    match outcomes.values().sum::<usize>() {
        0 => "no task has run\n".to_owned(),
        1 => format!("1 task: {}\n", outcome_counts(outcomes)),
        all => format!("{all} tasks: {}\n", outcome_counts(outcomes)),
    }
}

/// Requests a reconcile from the running agent and waits for its end. Returns `None` when the agent has reconciled, or
/// the lock if the agent exited and released it.
fn wait_for_running_agent(local: &LocalHost) -> Result<Option<OwnedFd>> {
    let ledger = &local.site.ledger;
    let (_, done) = ledger.get(&RECONCILE_DONE)?.unwrap_or_default();
    let number = ledger.get(&RECONCILE_REQUESTED)?.unwrap_or_default().max(done) + 1;
    if let Err(failed) = ledger.put(&RECONCILE_REQUESTED, &number) {
        // The request cannot be stored. The agent is still woken and reconciles, so its controller learns of the
        // failure too.
        let _ = wake(&local.host);
        return Err(failed.into());
    }
    let mut deadline = Instant::now() + RECONCILE_START_TIMEOUT;
    let mut woken = wake(&local.host)?;
    loop {
        if let Some(held) = lock(local, POLL_INTERVAL)? {
            return Ok(Some(held));
        }
        let (started, done) = ledger.get(&RECONCILE_DONE)?.unwrap_or_default();
        // The command does not wait for tasks that still run on a paused or parked host. They end, and no other begins.
        if done >= number || (started >= number && stop_reason(local)?.is_some()) {
            return Ok(None);
        }
        if let Err(failed) = ledger.check_room() {
            bail!("the agent's own state cannot be kept: {}", failed.sentence());
        }
        if started >= number {
            // Tasks may run for any time.
            deadline = Instant::now() + RECONCILE_START_TIMEOUT;
        } else if ledger.get(&RECONCILE_REQUESTED)?.unwrap_or_default() < number {
            // Another `once` read the stored number before this one stored its number, and then stored a lower one.
            ledger.put(&RECONCILE_REQUESTED, &number)?;
            woken = wake(&local.host)?;
        } else if woken == WakeResult::Running && Instant::now() > deadline {
            // A process that cannot be woken is another `once`, which ends after its tasks. If an agent takes the lock
            // after it, that agent handles the request.
            bail!("another agent holds the state of this host and does not answer; restart it");
        }
    }
}

/// Why no task is applied on a host now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopReason {
    Paused,
    Parked,
}

impl StopReason {
    /// Returns a message with the reason, what happened to the tasks, and what to do.
    fn sentence(self, tasks: &str) -> String {
        let (state, advice) = match self {
            Self::Paused => ("paused", "run `stemma-agent resume`, then `stemma-agent once`"),
            Self::Parked => ("parked", "on a controller, set parked to false"),
        };
        format!("this host is {state}: {tasks}; {advice}\n")
    }
}

/// Returns why no task is applied on this host now.
fn stop_reason(local: &LocalHost) -> Result<Option<StopReason>> {
    let local_state = local.site.ledger.get(&LOCAL_STATE)?.unwrap_or_default();
    let parked = local.site.ledger.accepted()?.is_some_and(|accepted| accepted.desired().known.parked);
    Ok(if local_state.paused {
        Some(StopReason::Paused)
    } else if parked || local_state.parked.is_some() {
        Some(StopReason::Parked)
    } else {
        None
    })
}

/// Prints which tasks failed, how many tasks had which outcome, and how many wait at a barrier. Returns the exit status
/// of `once`.
fn finish_once(local: &LocalHost, baseline: &RunBaseline) -> Result<AgentExit> {
    let ledger = &local.site.ledger;
    let Some(desired) = ledger.accepted()?.map(|accepted| accepted.desired()) else {
        print("this host holds no desired state yet\n")?;
        return Ok(AgentExit::Done);
    };
    if desired.is_unreleased() {
        print("no task set was released to this host yet: only labels were applied\n")?;
        return Ok(AgentExit::Done);
    }
    if let Some(hash) = desired.task_set.profile
        && !ledger.has_body(hash)?
    {
        print("the task profile is not on this host yet: only labels were applied; `stemma-agent run` fetches it\n")?;
        return Ok(AgentExit::Failed);
    }
    let profile = ledger.profile(&desired)?.unwrap_or_default();
    let reasons = ledger.get(&REASONS)?.unwrap_or_default();
    let mut tasks = ledger.get(&PROGRESS)?.unwrap_or_default().tasks;
    tasks.retain(|_, record| record.task_set == desired.digest);
    let waiting = waiting_tasks(local, &desired, &profile, &tasks)?.len();
    for task in profile.tasks.iter().filter(|task| is_observed(task)) {
        tasks.remove(&task.id);
    }
    let outcomes = baseline.outcomes(ledger, &tasks)?;
    tasks.retain(|_, record| record.outcome.is_failure());
    let line = |(id, record): (&String, &TaskRecord)| {
        let why = reasons.get(id).map_or("", |reason| reason.message.as_str());
        format!("{id:<24} {:<18} {}\n", words(record.outcome), escape_terminal(why))
    };
    print(&tasks.iter().map(line).collect::<String>())?;
    print(&summary_text(&outcomes))?;
    match waiting {
        0 => {}
        1 => print("1 task waits at a barrier; `stemma-agent explain task` says at which\n")?,
        count => print(&format!("{count} tasks wait at a barrier; `stemma-agent explain task` says at which\n"))?,
    }
    Ok(match (tasks.is_empty(), waiting) {
        (false, _) => AgentExit::Failed,
        (true, 0) => AgentExit::Done,
        (true, _) => AgentExit::Waits,
    })
}

/// Checks every task of the stored desired state, and prints what would change.
///
/// # Errors
/// Fails if the state or configuration cannot be used.
pub fn check(root: &Path, output: OutputFormat) -> Result<AgentExit> {
    let (local, config) = open(root)?;
    let Some(accepted) = local.site.ledger.accepted()? else {
        print("this host holds no desired state yet\n")?;
        return Ok(AgentExit::NotFound);
    };
    let desired = accepted.desired();
    if desired.is_unreleased() {
        print("no task set was released to this host yet: there is nothing to check\n")?;
        return Ok(AgentExit::NotFound);
    }
    let profile = local.site.ledger.profile(&desired)?.unwrap_or_default();
    let site = local.site.clone().with_label_map(&config.host_label_map);
    let mut run = TaskRun::plan(site, &config.ceiling, &desired, &profile, RunPurpose::Check)?;
    let open = BTreeSet::new();
    runtime()?.block_on(async {
        while run.advance(&open).await? {}
        anyhow::Ok(())
    })?;
    let results = run.into_results();
    let differs = results.iter().any(|result| result.outcome == Outcome::WouldChange);
    let failed = results.iter().any(|result| !matches!(result.outcome, Outcome::WouldChange | Outcome::Unchanged));
    print_results(&results, output)?;
    let stuck = status::stuck_reason(&local)?;
    if let Some(why) = &stuck {
        // A running agent reports this to its controller too.
        let _ = wake(&local.host);
        print_stuck(why);
    }
    Ok(if failed || stuck.is_some() {
        AgentExit::Failed
    } else if differs {
        AgentExit::WouldChange
    } else {
        AgentExit::Done
    })
}

/// Prints the results of `check`.
fn print_results(results: &[TaskResult], output: OutputFormat) -> Result<()> {
    let json = |TaskResult { task, outcome, message, diff, .. }: &TaskResult| json!({"task": task, "outcome": words(outcome), "message": message, "diff": diff});
    let human = |TaskResult { task, outcome, message, diff, .. }: &TaskResult| {
        format!("{task:<24} {:<18} {message}\n{diff}", words(outcome))
    };
    match output {
        OutputFormat::Json => print_json(&results.iter().map(json).collect::<Vec<_>>()),
        OutputFormat::Human => print(&results.iter().map(human).collect::<String>()),
    }
}

/// Writes `/run/stemma` from the ledger. `stemma-labels.service` runs this at boot.
///
/// # Errors
/// Fails if the state cannot be read or `/run/stemma` cannot be written.
pub fn refill(root: &Path) -> Result<AgentExit> {
    let (local, _) = open(root)?;
    if let Some(accepted) = local.site.ledger.accepted()? {
        let desired = accepted.desired();
        outputs::write_run_dir(&*local.host, &desired.known, &desired.task_set)?;
    }
    Ok(AgentExit::Done)
}

pub(super) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")
}

/// Waits for a signal that stops this process, and returns its name: SIGTERM, SIGINT, or SIGHUP (the terminal was
/// closed), unless the process was started with `nohup`. The signals are caught, because if one killed the process, the
/// outcome of the command that a task runs would be unknown.
async fn wait_for_signal() -> &'static str {
    use tokio::signal::unix::{Signal, SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return std::future::pending().await;
    };
    let mut hangup = if process_setup::is_hangup_ignored() { None } else { signal(SignalKind::hangup()).ok() };
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        _ = or_pending(hangup.as_mut().map(Signal::recv)) => "SIGHUP",
    }
}

#[cfg(test)]
mod tests;
