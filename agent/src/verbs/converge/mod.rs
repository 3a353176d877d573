//! The commands that apply or check the stored desired state: `run`, `once`, `check` and `refill`.

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
use stemma_wire::watchdog::Watchdog;

use super::access::check_access;
use super::membership::{Membership, read_membership};
use super::status::{escape_terminal, words};
use super::waits::waiting_tasks;
use super::{AgentExit, LocalHost, print, print_json, status};
use crate::apply::executor::{RunPurpose, RunSummary, TaskRun, is_observed};
use crate::apply::ledger::{LOCAL_STATE, Ledger, PROGRESS, REASONS, RECONCILE_DONE, RECONCILE_REQUESTED, TaskRecord};
use crate::apply::outputs;
use crate::apply::wake::{WakeListener, WakeResult, wake};
use crate::apply::worker::{ApplyWorker, StopWhen};
use crate::args::OutputFormat;
use crate::channel::{ApplyEnd, SyncEnd, pair};
use crate::config::AgentConfig;
use crate::host::real::{APPLIED_TARGET, RealHost, is_systemd_booted, process_setup};
use crate::host::{HostCommand, or_pending};
use crate::identity::{HostIdentity, IdentityError};
use crate::sync;

/// Time within which an agent that was just killed has exited and released its lock.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Time within which a running agent starts a requested reconcile. An agent of an older version never starts one.
const RECONCILE_START_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for which a stopping agent waits for commands. It is shorter than `TimeoutStopSec=` of the unit, after which systemd
/// would kill the agent, and the unit would be `failed`.
const MAX_STOP_DURATION: Duration = Duration::from_secs(80);

/// Interval at which a stopping agent checks whether it may leave its commands to the next agent.
const LEAVE_INTERVAL: Duration = Duration::from_millis(500);

/// Interval at which `once` polls the progress of the running agent.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Part of the message for a host that was paused or parked before any task began.
const NONE_APPLIED_MESSAGE: &str = "no task was applied, labels were";

/// Part of the message of `once` for a host that was paused or parked while its running agent applied tasks. This
/// command does not wait until those tasks have ended.
const AGENT_STOPPED_MESSAGE: &str =
    "the running task will end, and no other begins; labels were applied, and `stemma-agent status` shows how tasks ended";

/// Runs both halves of the agent until a signal stops them. If the identity or credentials are damaged, only the root
/// half runs, and applies the stored desired state.
///
/// # Errors
/// Fails if this host has not joined, another agent runs, state or configuration cannot be used, or a half fails.
pub fn run(root: &Path) -> Result<AgentExit> {
    let (local, config, membership) = open_joined(root)?;
    let _lock = lock_for_agent(&local)?;
    runtime()?.block_on(async {
        let (sync_end, apply_end) = pair();
        let listener = WakeListener::listen(&local.host).unwrap_or_else(|error| {
            warn!(error = error.sentence().as_str(); "no command on this host can wake the agent before it is started again");
            WakeListener::never()
        });
        let (worker, identity) = new_worker(&local, config, membership, apply_end, listener, StopWhen::OnRequest)?;
        let mut worker = worker.with_file_watch().with_watchdog(Watchdog::from_environment());
        if is_systemd_booted(root) {
            // After the first converged run in mode `apply`, this command starts the units that wait for the tasks.
            let argv = ["systemctl", "start", "--no-block", APPLIED_TARGET].map(str::to_owned);
            worker = worker.with_applied_command(HostCommand::new(argv.to_vec(), Duration::from_secs(10)));
        }
        info!(path = root.display().to_string().as_str(); "agent started");
        notify(&[NotifyState::Ready]);
        tokio::select! {
            result = worker.run(async { wait_for_signal().await; }) => {
                result.context("the root half")?;
            }
            error = run_sync(&local, identity, sync_end) => return Err(error).context("the network half"),
            () = leave_commands(&local.host) => {
                warn!("the agent ends while commands run: the next agent waits for their end");
            }
        }
        notify(&[NotifyState::Stopping]);
        info!("agent stopped");
        Ok(AgentExit::Done)
    })
}

/// Waits for the signal to stop. Then completes when systemd restarts the agent while commands of tasks run in their units.
/// Such a command may itself restart the agent, for example by an upgrade, so the agent must not wait for its end. In a
/// stop without a restart, completes if such commands still run after [`MAX_STOP_DURATION`].
async fn leave_commands(host: &RealHost) {
    wait_for_signal().await;
    let limit = Instant::now() + MAX_STOP_DURATION;
    while !host.may_leave_commands(Instant::now() >= limit).await {
        tokio::time::sleep(LEAVE_INTERVAL).await;
    }
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

/// Opens the state and configuration of a host. Fails if another user could have written them or read the secrets.
fn open(root: &Path) -> Result<(LocalHost, AgentConfig)> {
    let local = LocalHost::open(root)?;
    check_access(&*local.host)?;
    let config = AgentConfig::load(&*local.host)?;
    Ok((local, config))
}

/// Creates the root half of the agent. Returns it, and the identity of the host if identity and credentials are intact.
/// Without these, the root half reports the damage as a finding.
fn new_worker(
    local: &LocalHost,
    config: AgentConfig,
    membership: Membership,
    channel: ApplyEnd,
    listener: WakeListener,
    stop_when: StopWhen,
) -> Result<(ApplyWorker, Option<HostIdentity>)> {
    let create = |verifier| ApplyWorker::new(local.site.clone(), config, verifier, channel, listener, stop_when);
    Ok(match membership {
        Membership::Member(member) => {
            let (identity, verifier) = *member;
            (create(Some(verifier))?, Some(identity))
        }
        Membership::Damaged(_, message) => {
            error!(error = message.as_str(); "this host cannot connect to its fleet");
            (create(None)?.without_network(message), None)
        }
        Membership::NotJoined => (create(None)?, None),
    })
}

/// Runs the network half and returns the error with which it ended. Without an identity, discards the messages of the
/// root half and never returns.
async fn run_sync(local: &LocalHost, identity: Option<HostIdentity>, channel: SyncEnd) -> sync::SyncError {
    match identity {
        Some(identity) => {
            let Err(error) = sync::run(local.host.clone(), identity, channel, Arc::new(SystemClock)).await;
            error
        }
        None => {
            drain_messages(channel).await;
            std::future::pending().await
        }
    }
}

/// Acquires the lock of this host's state. Returns `None` if another process still has the lock after the timeout.
fn lock(local: &LocalHost, timeout: Duration) -> Result<Option<OwnedFd>> {
    let deadline = Instant::now() + timeout;
    loop {
        match local.lock()? {
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            lock_result => return Ok(lock_result),
        }
    }
}

/// Acquires the lock of this host's state for the command `run`. If the command `once` has the lock, waits until its
/// tasks have ended. Fails if another agent has the lock.
fn lock_for_agent(local: &LocalHost) -> Result<OwnedFd> {
    if let Some(lock_handle) = lock(local, EXIT_TIMEOUT)? {
        return Ok(lock_handle);
    }
    // Only a running agent listens for wakeups. So a process that does not listen is the command `once` or `leave`, or
    // an agent that could not open its FIFO. The wakeup has no other effect than one more reconcile of that agent.
    if wake(&local.host)? == WakeResult::Running {
        bail!("an agent already runs on this state; see `stemma-agent status`");
    }
    warn!("waiting until the running `stemma-agent once` ends");
    loop {
        // The start does not wait for `once`, because a task of it may be the upgrade that starts this agent.
        notify(&[NotifyState::Ready, NotifyState::Watchdog, NotifyState::Status("waits for `stemma-agent once`")]);
        if let Some(lock_handle) = lock(local, RECONCILE_START_TIMEOUT)? {
            return Ok(lock_handle);
        }
    }
}

/// Notifies the service manager of the state of this process, if there is a service manager.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!(error:% = error; "the service manager cannot be notified");
    }
}

/// Discards the messages of the root half until it ends. This replaces the network half, so that the channel never
/// fills.
async fn drain_messages(mut channel: SyncEnd) {
    while channel.receive().await.is_ok() {}
}

/// Applies the stored desired state once, and prints the outcomes of the tasks. If an agent is running, the command
/// requests a reconcile from that agent and waits for its end.
///
/// # Errors
/// The same errors as [`run`]. Also fails if the running agent does not respond, or if its state cannot be written.
pub fn once(root: &Path) -> Result<AgentExit> {
    let (local, config, membership) = open_joined(root)?;
    let damage = match &membership {
        Membership::Damaged(_, message) => Some(format!("{message}\n")),
        Membership::Member(_) | Membership::NotJoined => None,
    };
    let (baseline, was_stopped) = (RunBaseline::load(&local)?, stop_reason(&local)?.is_some());
    let signal = Cell::new(None);
    let lock_handle = lock(&local, Duration::ZERO)?.map_or_else(|| wait_for_running_agent(&local), |handle| Ok(Some(handle)))?;
    let summary = match lock_handle {
        Some(_lock_handle) => runtime()?.block_on(async {
            let (sync_end, apply_end) = pair();
            let (worker, _) = new_worker(&local, config, membership, apply_end, WakeListener::never(), StopWhen::WhenIdle)?;
            let signal_received = async { signal.set(Some(wait_for_signal().await)) };
            let (result, ()) = tokio::join!(worker.run(signal_received), drain_messages(sync_end));
            result.context("the root half").map(Some)
        })?,
        None => None,
    };
    let (paused_or_parked, stuck_message) = (stop_reason(&local)?, status::stuck_reason(&local)?);
    if let Some(message) = &stuck_message {
        print_stuck(message);
    }
    // The first case that applies: a signal stopped the run, or the host was paused or parked (before the run, during
    // this run, or while another agent ran), or its identity is damaged.
    let message = match (signal.get(), &summary, paused_or_parked) {
        (Some(signal), Some(summary), _) if summary.outcomes.len() < summary.task_count => {
            Some(interrupted_message(signal, summary))
        }
        (_, _, Some(paused_or_parked)) if was_stopped => Some(paused_or_parked.sentence(NONE_APPLIED_MESSAGE)),
        (_, Some(summary), Some(paused_or_parked)) => Some(paused_or_parked.sentence(&stopped_message(summary))),
        (_, None, Some(paused_or_parked)) => Some(paused_or_parked.sentence(AGENT_STOPPED_MESSAGE)),
        (_, _, None) => damage,
    };
    if let Some(message) = message {
        // Most of these messages state that labels were applied, which may be wrong on a stuck host.
        if stuck_message.is_none() || signal.get().is_some() {
            print(&message)?;
        }
        return Ok(AgentExit::Failed);
    }
    finish_once(&local, &baseline).map(|outcome| if stuck_message.is_some() { AgentExit::Failed } else { outcome })
}

/// Prints on standard error why this host cannot store or apply its desired state.
fn print_stuck(reason: &str) {
    let _ = writeln!(std::io::stderr().lock(), "this host is stuck: {}", escape_terminal(reason));
}

/// Returns the message for a run that a signal stopped before all tasks had run.
fn interrupted_message(signal: &str, summary: &RunSummary) -> String {
    let remaining_text = match summary.task_count - summary.outcomes.len() {
        1 => "1 has not run".to_owned(),
        count => format!("{count} have not run"),
    };
    format!("stopped by {signal} after {}: {remaining_text}; run `stemma-agent once` again\n", progress_text(summary))
}

/// Returns the part of a message that describes the tasks of a host that was paused or parked while this process
/// applied them.
fn stopped_message(summary: &RunSummary) -> String {
    if summary.outcomes.is_empty() {
        return NONE_APPLIED_MESSAGE.to_owned();
    }
    format!("it was after {}, and no other was begun; labels were applied", progress_text(summary))
}

/// Returns the progress of a run: the number of tasks that have ended, of all tasks, and their outcomes, as in
/// `2 of 5 tasks (2 changed)`.
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

/// The stored records of tasks before a run. A comparison with the records after the run shows what the run changed.
struct RunBaseline {
    /// The record of the last run of each task, by task id.
    records: BTreeMap<String, TaskRecord>,
    /// Sequence number of the last task result that was stored before the run, or 0 if none was stored.
    last_sequence: u64,
}

impl RunBaseline {
    /// Reads the records of tasks and the sequence number of the last result, before a run.
    fn load(local: &LocalHost) -> Result<Self> {
        let ledger = &local.site.ledger;
        let tasks = ledger.get(&PROGRESS)?.unwrap_or_default().tasks;
        Ok(Self { records: tasks, last_sequence: ledger.results()?.last().map_or(0, |result| result.sequence) })
    }

    /// Returns the number of tasks with each outcome in the run. `tasks` contains the records after the run. A task
    /// with the same record as before and no new result had nothing to do in this run. If its recorded outcome is
    /// `changed`, that outcome is of an earlier run, so the task is counted as `unchanged`.
    fn outcomes(&self, ledger: &Ledger, tasks: &BTreeMap<String, TaskRecord>) -> Result<BTreeMap<String, usize>> {
        let results = ledger.results()?;
        let has_result = |id: &String| results.iter().any(|result| result.sequence > self.last_sequence && result.task == *id);
        let mut outcomes = BTreeMap::new();
        for (id, record) in tasks {
            let is_same_record = record.outcome == Outcome::Changed && self.records.get(id) == Some(record);
            let outcome = if is_same_record && !has_result(id) { Outcome::Unchanged } else { record.outcome };
            *outcomes.entry(words(outcome)).or_default() += 1;
        }
        Ok(outcomes)
    }
}

/// Returns the line with the number of tasks of each outcome, as in `5 tasks: 2 changed, 3 unchanged`.
fn summary_text(outcomes: &BTreeMap<String, usize>) -> String {
    match outcomes.values().sum::<usize>() {
        0 => "no task has run\n".to_owned(),
        1 => format!("1 task: {}\n", outcome_counts(outcomes)),
        total => format!("{total} tasks: {}\n", outcome_counts(outcomes)),
    }
}

/// Requests a reconcile from the running agent and waits for its end. Returns `None` when the agent has reconciled, or
/// when it has started the reconcile of a paused or parked host. If the agent exits, acquires its lock and returns the
/// lock, so that the caller can apply the tasks itself. Fails if the agent does not start the reconcile in time.
///
/// Each request has a number, which is higher than the number of each earlier request. The agent stores the numbers of
/// the last requests that it started and finished.
fn wait_for_running_agent(local: &LocalHost) -> Result<Option<OwnedFd>> {
    let ledger = &local.site.ledger;
    let (_, finished_number) = ledger.get(&RECONCILE_DONE)?.unwrap_or_default();
    let request_number = ledger.get(&RECONCILE_REQUESTED)?.unwrap_or_default().max(finished_number) + 1;
    if let Err(error) = ledger.put(&RECONCILE_REQUESTED, &request_number) {
        // The request cannot be stored. The agent is woken nevertheless, because it then reports the failure to its
        // controller.
        let _ = wake(&local.host);
        return Err(error.into());
    }
    let mut deadline = Instant::now() + RECONCILE_START_TIMEOUT;
    let mut wake_result = wake(&local.host)?;
    loop {
        if let Some(lock_handle) = lock(local, POLL_INTERVAL)? {
            return Ok(Some(lock_handle));
        }
        let (started_number, finished_number) = ledger.get(&RECONCILE_DONE)?.unwrap_or_default();
        // On a paused or parked host, the command does not wait for the running tasks. These tasks end, and no other
        // task begins.
        if finished_number >= request_number || (started_number >= request_number && stop_reason(local)?.is_some()) {
            return Ok(None);
        }
        if let Err(error) = ledger.check_room() {
            bail!("the agent's own state cannot be stored: {}", error.sentence());
        }
        if started_number >= request_number {
            // The agent has started the reconcile. Its tasks may run for any time, so the deadline is moved.
            deadline = Instant::now() + RECONCILE_START_TIMEOUT;
        } else if ledger.get(&RECONCILE_REQUESTED)?.unwrap_or_default() < request_number {
            // Another `once` read the stored number before this process stored its number, and then stored a lower
            // number.
            ledger.put(&RECONCILE_REQUESTED, &request_number)?;
            wake_result = wake(&local.host)?;
        } else if wake_result == WakeResult::Running && Instant::now() > deadline {
            // This is an error only if the process with the lock is an agent. Otherwise it is another `once`, which
            // ends after its tasks. If an agent then acquires the lock, that agent handles the request.
            bail!("another agent holds the state of this host and does not answer; restart it");
        }
    }
}

/// The reason why no task is applied on a host now, apart from a hold, a pause of its group or cluster, and its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopReason {
    /// The host was paused by `stemma-agent pause`.
    Paused,
    /// The host is parked, by an operator or on the host itself.
    Parked,
}

impl StopReason {
    /// Returns a message with the reason, the given text about the tasks, and advice.
    fn sentence(self, tasks_text: &str) -> String {
        let (state, advice) = match self {
            Self::Paused => ("paused", "run `stemma-agent resume`, then `stemma-agent once`"),
            Self::Parked => ("parked", "on a controller, set parked to false"),
        };
        format!("this host is {state}: {tasks_text}; {advice}\n")
    }
}

/// Returns the reason why no task is applied on this host now, or `None`. `Paused` has precedence over `Parked`.
fn stop_reason(local: &LocalHost) -> Result<Option<StopReason>> {
    let local_state = local.site.ledger.get(&LOCAL_STATE)?.unwrap_or_default();
    let is_parked_by_operator = local.site.ledger.accepted()?.is_some_and(|accepted| accepted.desired().known.parked);
    Ok(if local_state.paused {
        Some(StopReason::Paused)
    } else if is_parked_by_operator || local_state.parked.is_some() {
        Some(StopReason::Parked)
    } else {
        None
    })
}

/// Prints the failed tasks, the number of tasks of each outcome, and the number of tasks that wait at a barrier. If
/// there is no released task set or its profile has not arrived, prints only that. Returns the exit status of `once`.
fn finish_once(local: &LocalHost, baseline: &RunBaseline) -> Result<AgentExit> {
    let ledger = &local.site.ledger;
    let Some(desired) = ledger.accepted()?.map(|accepted| accepted.desired()) else {
        print("this host has no desired state yet\n")?;
        return Ok(AgentExit::Done);
    };
    if desired.is_unreleased() {
        print("no task set was released to this host yet: only labels were applied\n")?;
        return Ok(AgentExit::Done);
    }
    let Some(profile) = ledger.profile(&desired)? else {
        print("the task profile is not on this host yet: only labels were applied; `stemma-agent run` fetches it\n")?;
        return Ok(AgentExit::Failed);
    };
    let reasons = ledger.get(&REASONS)?.unwrap_or_default();
    let mut tasks = ledger.get(&PROGRESS)?.unwrap_or_default().tasks;
    // Records of an earlier task set are ignored.
    tasks.retain(|_, record| record.task_set == desired.digest);
    let waiting_count = waiting_tasks(local, &desired, &profile, &tasks)?.len();
    for task in profile.tasks.iter().filter(|task| is_observed(task)) {
        tasks.remove(&task.id);
    }
    let outcomes = baseline.outcomes(ledger, &tasks)?;
    tasks.retain(|_, record| record.outcome.is_failure());
    let format_line = |(id, record): (&String, &TaskRecord)| {
        let reason = reasons.get(id).map_or("", |reason| reason.message.as_str());
        format!("{id:<24} {:<18} {}\n", words(record.outcome), escape_terminal(reason))
    };
    print(&tasks.iter().map(format_line).collect::<String>())?;
    print(&summary_text(&outcomes))?;
    match waiting_count {
        0 => {}
        1 => print("1 task waits at a barrier; `stemma-agent explain task` shows at which\n")?,
        count => print(&format!("{count} tasks wait at a barrier; `stemma-agent explain task` shows at which\n"))?,
    }
    Ok(match (tasks.is_empty(), waiting_count) {
        (false, _) => AgentExit::Failed,
        (true, 0) => AgentExit::Done,
        (true, _) => AgentExit::Waits,
    })
}

/// Checks the tasks of the stored desired state, and prints what would change. Runs nothing but guards of commands.
///
/// # Errors
/// Fails if the state or configuration cannot be used.
pub fn check(root: &Path, output: OutputFormat) -> Result<AgentExit> {
    let (local, config) = open(root)?;
    let Some(accepted) = local.site.ledger.accepted()? else {
        print("this host has no desired state yet\n")?;
        return Ok(AgentExit::NotFound);
    };
    let desired = accepted.desired();
    if desired.is_unreleased() {
        print("no task set was released to this host yet: there is nothing to check\n")?;
        return Ok(AgentExit::NotFound);
    }
    let Some(profile) = local.site.ledger.profile(&desired)? else {
        print("the task profile is not on this host yet: no task can be checked; `stemma-agent run` fetches it\n")?;
        return Ok(AgentExit::Failed);
    };
    let site = local.site.clone().with_label_map(&config.host_label_map);
    let mut run = TaskRun::plan(site, &config.ceiling, &desired, &profile, RunPurpose::Check)?;
    let no_open_barriers = BTreeSet::new();
    runtime()?.block_on(async {
        while run.advance(&no_open_barriers).await? {}
        anyhow::Ok(())
    })?;
    let results = run.into_results();
    let would_change = results.iter().any(|result| result.outcome == Outcome::WouldChange);
    let has_failed = results.iter().any(|result| !matches!(result.outcome, Outcome::WouldChange | Outcome::Unchanged));
    print_results(&results, output)?;
    let stuck_message = status::stuck_reason(&local)?;
    if let Some(message) = &stuck_message {
        // A running agent reports this to its controller too.
        let _ = wake(&local.host);
        print_stuck(message);
    }
    Ok(if has_failed || stuck_message.is_some() {
        AgentExit::Failed
    } else if would_change {
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

/// Writes the files in `/run/stemma` (labels, tags and the like, for programs on this host) from the stored desired
/// state. `stemma-labels.service` runs this command at boot, because `/run` is empty then.
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

/// Creates the Tokio runtime, with the current thread as its only thread.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")
}

/// Waits for a signal that should stop this process, and returns the name of the signal: SIGTERM, SIGINT or SIGHUP.
/// SIGHUP (the terminal was closed) is ignored if the process was started with `nohup`. The signals are caught, because
/// the outcome of a running command would be unknown if a signal killed this process.
async fn wait_for_signal() -> &'static str {
    use tokio::signal::unix::{Signal, SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        // If a handler cannot be installed, this function never returns.
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
