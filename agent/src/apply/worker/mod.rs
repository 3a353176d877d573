//! The main loop of the root half. It accepts offers and applies the desired state that it holds.
//!
//! Most events have the same effect: the loop writes the files that services read, and plans a run of the tasks. An
//! accepted offer and open barriers are also on disk, so after a restart the loop continues from the ledger.

mod bodies;
mod disk;
mod grants;
mod host_map;
mod offers;
mod plan;
mod reboot;
mod report;

use std::collections::BTreeSet;
use std::time::Duration;

use log::warn;
use stemma_core::status::CleanUpReport;
use stemma_wire::message::WireVersion;
use stemma_wire::message::channel::{ApplyMessage, SyncMessage};
use stemma_wire::message::desired::Barrier;
use stemma_wire::message::observed::{self, LocalState, Report};
use stemma_wire::watchdog::Watchdog;
use tokio::time::{Instant, sleep_until};

use super::applier::puppet;
use super::executor::{RunSummary, TaskRun};
use super::hooks::HookFailures;
use super::ledger::{Desired, LOCAL_STATE, Ledger, RECONCILE_DONE, REPORT};
use super::orphans::OrphanList;
use super::orphans::removal::KeptOrphans;
use super::outputs::OutputsResult;
use super::seal::seal_key;
use super::task::Site;
use super::verify::NodeVerifier;
use super::wake::WakeListener;
use crate::channel::{ApplyEnd, ChannelError};
use crate::config::AgentConfig;
use crate::host::{HostCommand, HostError, Pending, or_pending};
use crate::watch::{FileWatch, WatchedPaths};
use bodies::BodyDownloads;
use disk::StuckReason;
use grants::GrantTable;
use host_map::HostMapWatch;
use reboot::GrantedReboot;
use report::{HookState, log_result, next_hook_event};

/// Maximum delay before the agent requests a profile or blob again that did not arrive completely.
const BODY_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Time between a change of a file and the moment when the agent reads it. So the program that writes the file can
/// finish.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// Maximum number of consecutive reconciles that are caused by files that changed during a run.
const MAX_REPEATED_RECONCILES: u32 = 3;
/// Minimum time between a reconcile and the next one that is caused by changed files.
const MIN_RECONCILE_INTERVAL: Duration = Duration::from_secs(10);

/// Time from the plan of a run until the agent reports that tasks run. It reports a shorter run as running only if a
/// task of the run ends while another one still runs. So most runs that only check are not reported as running.
const RUNNING_REPORT_DELAY: Duration = Duration::from_millis(500);

/// The main loop of the agent's root half, with its state.
pub struct ApplyWorker {
    site: Site,
    config: AgentConfig,
    /// The verifier of offers and grants. `None` if the identity or the credentials are damaged: all are then refused.
    verifier: Option<NodeVerifier>,
    channel: ApplyEnd,
    wakes: WakeListener,
    desired: Option<Desired>,
    local: LocalState,
    grants: GrantTable,
    bodies: BodyDownloads,
    run: Option<TaskRun>,
    /// True if `run` must start no further task: another run replaces it, or the host may start no task any more.
    must_run_end: bool,
    progress: observed::Progress,
    findings: WorkerFindings,
    orphans: OrphanList,
    clean_ups: Vec<CleanUpReport>,
    /// The reasons why orphans stay although the nodegroup has `remove_orphans`, as of the last removal.
    kept_orphans: KeptOrphans,
    /// The id of the present boot. It never changes while this process runs.
    boot_id: [u8; 16],
    /// The reboot that a controller has granted. Until the host goes down or the agent gives up, no task starts.
    reboot: Option<GrantedReboot>,
    /// The reason why the last granted reboot has not begun, or has not ended.
    reboot_problem: Option<String>,
    last_report: Option<Report>,
    /// True if the last report is on disk, from which `stemma-agent status` reads it.
    is_report_stored: bool,
    next_reconcile_at: Instant,
    /// Time at which the agent writes the outputs (`/run/stemma` and the host label map) again. `None` if the last
    /// write succeeded.
    retry_outputs_at: Option<Instant>,
    /// Time of the next check of whether the disk has room for a record.
    check_room_at: Instant,
    /// True if the agent could not write its own state. It then starts nothing before the next reconcile.
    is_blocked: bool,
    /// True if the agent has received an offered desired state and has neither accepted nor refused it yet.
    is_offer_unanswered: bool,
    /// Time at which the agent reports that tasks run. `None` if none run, or if this was reported already.
    report_running_at: Option<Instant>,
    /// Number of consecutive runs that failed. The delay before the next reconcile grows with this number.
    failures: u32,
    hooks: HookState,
    map: HostMapWatch,
    /// The watch of the files that tasks manage. `None` if the agent checks them only on schedule.
    managed_watch: Option<FileWatch>,
    changed_files: ChangedFiles,
    last_reconcile_at: Instant,
    /// The number of the reconcile for which a command on the host waits.
    requested_reconcile: Option<u64>,
    /// The command that this process runs once, after it has applied the tasks for the first time.
    on_applied: Option<HostCommand>,
    /// The summary of the last run: the number of its tasks, and the outcomes of the tasks that have ended.
    summary: RunSummary,
    stop_when: StopWhen,
    /// Waits for the ends of the commands that an earlier agent left. `None` if there is none.
    left_ends: Option<Pending<'static, ()>>,
    /// The watchdog of the service manager, which restarts an agent whose main loop hangs.
    watchdog: Watchdog,
}

/// The condition on which the main loop of the worker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopWhen {
    /// The worker ends when its caller requests it, or when the network half of the agent has ended, as in the service.
    OnRequest,
    /// The worker ends when it has nothing more to do now, or when its caller requests it, as in a one-time run.
    WhenIdle,
}

/// The findings of the agent's root half (which applies tasks), by their source.
#[derive(Default)]
struct WorkerFindings {
    /// The reason why this host cannot reach its fleet.
    membership: Option<String>,
    /// The reason why the agent cannot write its own state.
    disk: Option<StuckReason>,
    /// The findings about `/run/stemma` and the host label map.
    outputs: OutputsResult,
    /// The finding about labels of other programs in the host label map that are not reported.
    map: Option<String>,
    /// The failures of the last run of the hooks.
    hooks: HookFailures,
    /// The reason why the agent cannot read the profile of its desired state.
    state: Option<String>,
    /// Sentences about unreadable records that the ledger renamed.
    set_aside: Vec<String>,
    /// A sentence about results that were deleted before a controller stored them.
    dropped: Option<String>,
    /// The next free sequence number of a result when the agent reported `dropped`. `None` if it is not reported yet.
    dropped_reported_at: Option<u64>,
}

impl WorkerFindings {
    /// Updates two findings from the ledger: the unreadable records that the ledger renamed (`set_aside`), and the
    /// number of results that were deleted before a controller stored them (`dropped`).
    fn refresh(&mut self, ledger: &Ledger) -> Result<(), HostError> {
        self.set_aside = ledger.set_aside_records()?;
        let dropped = ledger.dropped_results()?;
        if dropped != self.dropped {
            (self.dropped, self.dropped_reported_at) = (dropped, None);
        }
        Ok(())
    }
}

/// The record of changes of managed files during a run. The changes are from a task, or from another program after a
/// task checked the file. So the files must be checked again after the run.
#[derive(Default)]
struct ChangedFiles {
    has_changes: bool,
    /// The number of consecutive reconciles that changed files have caused, including the current reconcile.
    repeats: u32,
}

/// An error of the worker. It ends the worker, except that a service continues after most errors of the kind `State`.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The agent's own state cannot be read or written.
    #[error("the agent's own state cannot be kept")]
    State(#[from] HostError),
    /// A message to the network half of the agent cannot be sent: that half has ended, or the message is too large.
    #[error("the other half of the agent cannot be reached")]
    Channel(#[from] ChannelError),
}

impl ChangedFiles {
    /// Returns whether another reconcile must follow a finished run, because files changed during the run. Clears the
    /// mark `has_changes`.
    ///
    /// At most [`MAX_REPEATED_RECONCILES`] such reconciles follow each other. So two tasks that write the same file do
    /// not cause reconciles for ever.
    fn should_reconcile(&mut self) -> bool {
        let is_due = std::mem::take(&mut self.has_changes) && self.repeats < MAX_REPEATED_RECONCILES;
        self.repeats = if is_due { self.repeats + 1 } else { 0 };
        is_due
    }
}

impl ApplyWorker {
    /// Removes leftovers of a killed agent from the ledger, and creates the worker from the state in the ledger.
    ///
    /// # Errors
    /// [`HostError`] if the ledger cannot be read at all.
    pub fn new(
        site: Site,
        config: AgentConfig,
        verifier: Option<NodeVerifier>,
        channel: ApplyEnd,
        wakes: WakeListener,
        stop_when: StopWhen,
    ) -> Result<Self, HostError> {
        let site = site.with_label_map(&config.host_label_map);
        if let Err(error) = site.ledger.sweep() {
            // An unfinished file is harmless, so the worker starts nevertheless. If the state directory cannot be
            // written, the first check reports this.
            warn!(error = error.sentence().as_str(); "an unfinished file of a killed agent cannot be removed");
        }
        let local = site.ledger.get(&LOCAL_STATE)?.unwrap_or_default();
        let progress = site.ledger.get(&REPORT)?.map(|report| report.progress).unwrap_or_default();
        let next_reconcile_at = Instant::now() + Duration::from_secs(config.schedule.drift_seconds);
        let boot_id = site.host.boot_id();
        Ok(Self {
            desired: site.ledger.accepted()?.map(|accepted| accepted.desired()),
            site,
            config,
            verifier,
            channel,
            wakes,
            local,
            grants: GrantTable::default(),
            bodies: BodyDownloads::default(),
            run: None,
            must_run_end: false,
            progress,
            findings: WorkerFindings::default(),
            orphans: OrphanList::default(),
            clean_ups: Vec::new(),
            kept_orphans: KeptOrphans::new(),
            boot_id,
            reboot: None,
            reboot_problem: None,
            last_report: None,
            is_report_stored: false,
            next_reconcile_at,
            retry_outputs_at: None,
            check_room_at: Instant::now(),
            is_blocked: false,
            is_offer_unanswered: false,
            report_running_at: None,
            failures: 0,
            hooks: HookState::Idle,
            map: HostMapWatch::default(),
            managed_watch: None,
            changed_files: ChangedFiles::default(),
            last_reconcile_at: Instant::now(),
            requested_reconcile: None,
            on_applied: None,
            summary: RunSummary::default(),
            stop_when,
            left_ends: None,
            watchdog: Watchdog::disabled(),
        })
    }

    /// Lets the main loop ping a watchdog. A turn of the loop pings, and a timer among its events makes it turn. So no
    /// ping is sent while the thread is blocked, or while the handling of an event does not end. The loop turns while
    /// the command of a task runs, however long that takes.
    #[must_use]
    pub fn with_watchdog(mut self, watchdog: Watchdog) -> Self {
        self.watchdog = watchdog;
        self
    }

    /// Lets the worker watch the files that tasks manage, and the host label map. So it notices drift and changes by
    /// other programs before its next scheduled check.
    #[must_use]
    pub fn with_file_watch(mut self) -> Self {
        self.managed_watch = Some(FileWatch::new(self.site.host.system_root(), WatchedPaths::new()));
        self.watch_map();
        self
    }

    /// Adds the finding that this host cannot reach its fleet. `why` is the sentence.
    #[must_use]
    pub fn without_network(mut self, why: String) -> Self {
        self.findings.membership = Some(why);
        self
    }

    /// Sets the command that the worker runs once, after it has applied the tasks for the first time. The command
    /// starts the systemd units that wait for the tasks.
    #[must_use]
    pub fn with_applied_command(mut self, command: HostCommand) -> Self {
        self.on_applied = Some(command);
        self
    }

    /// Runs the main loop until `stop` completes or the condition of [`StopWhen`] is met. Then waits until running
    /// tasks have ended, and returns the summary of the last run.
    ///
    /// # Errors
    /// [`ApplyError`].
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<RunSummary, ApplyError> {
        tokio::pin!(stop);
        self.start().await?;
        let mut is_connected = true;
        loop {
            self.watchdog.ping_if_due();
            if self.is_idle() {
                if self.stop_when == StopWhen::WhenIdle {
                    return Ok(self.summary);
                }
                if let Some(request_number) = self.requested_reconcile {
                    let result = self.finish_reconcile(request_number);
                    self.survive_state_error(result).await?;
                }
            }
            let event_result = tokio::select! {
                message = self.channel.receive_versioned(), if is_connected => match message {
                    Err(ChannelError::Closed) if self.stop_when == StopWhen::OnRequest => return self.finish().await,
                    Err(ChannelError::Closed) => {
                        is_connected = false;
                        Ok(())
                    }
                    message => self.on_message(message).await,
                },
                result = advance_run(self.run.as_mut(), self.must_run_end, self.grants.open_barriers()), if !self.is_blocked => {
                    self.on_run_advanced(result).await
                }
                () = sleep_until(self.next_reconcile_at) => self.reconcile().await,
                () = sleep_until(self.check_room_at), if !self.is_blocked => self.check_each_minute().await,
                () = self.wakes.next() => self.on_wake().await,
                () = or_pending(self.managed_watch.as_ref().map(FileWatch::changed)) => {
                    self.changed_files.has_changes = true;
                    self.reconcile_soon();
                    Ok(())
                }
                () = or_pending(self.map.watch.as_ref().map(FileWatch::changed)) => {
                    // The agent reads the map later, so that the program that changes it can finish.
                    self.map.check_at.get_or_insert(Instant::now() + SETTLE_TIME);
                    Ok(())
                }
                () = or_pending(self.map.check_at.map(sleep_until)) => self.check_map().await,
                () = or_pending(self.retry_outputs_at.map(sleep_until)) => self.check_map().await,
                () = or_pending(self.report_running_at.map(sleep_until)) => self.report_running().await,
                () = or_pending(self.reboot.as_ref().map(|reboot| sleep_until(reboot.check_at))) => self.advance_reboot().await,
                failed = next_hook_event(&mut self.hooks) => self.on_hook_event(failed).await,
                () = or_pending(self.left_ends.as_mut()) => {
                    self.left_ends = None;
                    Ok(())
                }
                () = self.watchdog.wait_until_due() => Ok(()),
                () = &mut stop => return self.finish().await,
            };
            self.survive_state_error(event_result).await?;
        }
    }

    /// Sends the seal key, the identification of the held desired state (which this host accepted last), the stored
    /// results and the local state to the network half of the agent. Then continues with that desired state.
    async fn start(&mut self) -> Result<(), ApplyError> {
        self.site.left.search().await;
        if let Err(error) = self.site.left.find(&*self.site.host, &self.site.ledger).await {
            warn!(error = error.sentence().as_str(); "it is not known whether commands of an earlier agent run; no command begins before that");
        }
        if let Err(error) = puppet::sweep(&self.site).await {
            warn!(error = error.message.as_str(); "files of a run of Puppet remain");
        }
        self.await_left_ends();
        let held = self.site.ledger.accepted()?.map(|accepted| accepted.held_desired());
        // The controller has sent the new node nothing yet. It would take the revision of the old node for that of a host
        // that knows a later store.
        let held = if self.has_state_of_other_node()? { None } else { held };
        self.channel.send(&ApplyMessage::Hello { seal_key: seal_key(&*self.site.host, &self.site.ledger)?, held }).await?;
        self.send_results(&self.site.ledger.results()?).await?;
        self.channel.send(&ApplyMessage::Local(self.local.clone())).await?;
        let result = self.start_requested_reconcile().map_err(ApplyError::from);
        self.survive_state_error(result).await?;
        let result = self.resume_held().await;
        self.survive_state_error(result).await?;
        self.report_foreign_labels().await?;
        let result = self.check_room();
        self.survive_state_error(result).await?;
        let result = self.report().await;
        self.survive_state_error(result).await
    }

    /// Begins to wait for the ends of the commands that an earlier agent left, if there are any. What their runs of Puppet
    /// have read is removed after that, also if the task is no longer placed on this host.
    fn await_left_ends(&mut self) {
        let (site, tasks) = (self.site.clone(), self.site.left.tasks());
        self.left_ends = self.site.left.all_ends().map(|ends| -> Pending<'static, ()> {
            Box::pin(async move {
                ends.await;
                for task in &tasks {
                    puppet::remove_left_files(&site, task).await;
                }
            })
        });
    }

    /// Returns whether this host has joined as a new node, and still has the desired state of the node that it was before.
    /// It continues with that state until it accepts the first state of the new node.
    fn has_state_of_other_node(&self) -> Result<bool, HostError> {
        self.verifier.as_ref().map_or(Ok(false), |trust| self.site.ledger.is_of_other_node(trust.node))
    }

    /// Continues with the desired state that this host accepted last, as after an offer: writes its outputs (files for
    /// services), requests the missing bodies (its profile and blobs), and plans a run.
    async fn resume_held(&mut self) -> Result<(), ApplyError> {
        self.findings.refresh(&self.site.ledger)?;
        if let Some(desired) = self.desired.clone() {
            self.restore_barriers(&desired)?;
            if desired.task_set.profile.is_some() && !self.has_begun(&desired) {
                self.progress = observed::Progress::Idle;
            }
            // The desired state is unchanged, so it is also the previous one.
            self.write_outputs(&desired, Some(&desired.known));
            self.request_bodies(&desired).await?;
            self.schedule_hooks(&desired)?;
            self.plan_run(&desired)?;
        }
        Ok(())
    }

    /// Reports that tasks run. The main loop calls this when a run takes longer than [`RUNNING_REPORT_DELAY`].
    async fn report_running(&mut self) -> Result<(), ApplyError> {
        (self.report_running_at, self.progress) = (None, observed::Progress::Running);
        self.report().await
    }

    /// Handles a message of the network half of the agent. The wire version is that of the desired state in the
    /// message. A message that cannot be decoded is only logged.
    async fn on_message(&mut self, message: Result<(WireVersion, SyncMessage), ChannelError>) -> Result<(), ApplyError> {
        let (version, message) = match message {
            Ok(message) => message,
            Err(error) => {
                warn!(error:% = error; "a message of the network half was refused");
                return Ok(());
            }
        };
        match message {
            SyncMessage::Offer { desired, grants, acknowledged } => {
                self.is_offer_unanswered = desired.is_some();
                self.site.ledger.acknowledge(acknowledged)?;
                self.clear_dropped_finding(acknowledged)?;
                if let Some(offer) = desired {
                    self.on_offer(version, &offer).await?;
                }
                for grant in grants {
                    self.on_grant(&grant).await?;
                }
            }
            SyncMessage::Body { hash, bytes } => self.receive_piece(hash, &bytes).await?,
            SyncMessage::BodyUnavailable(hash) => self.on_body_unavailable(hash),
            SyncMessage::Local(local) => self.set_local_state(local).await?,
            // The root half has no use for the digest of the observation yet.
            SyncMessage::Observed(_) => {}
        }
        self.report().await
    }

    /// Handles the progress of the run after [`advance_run`] returned. Stores the new results and sends them to the
    /// network half of the agent.
    ///
    /// If no task runs any more, schedules the next reconcile, or plans a new run if this run had to end
    /// (`must_run_end`).
    async fn on_run_advanced(&mut self, result: Result<(), HostError>) -> Result<(), ApplyError> {
        result?;
        if self.left_ends.is_none() {
            // A check may have found the commands, if the search at the start failed.
            self.await_left_ends();
        }
        let Some(run) = &mut self.run else { return Ok(()) };
        let mut results = run.save_results()?;
        self.summary = run.summary();
        let (has_no_running_task, is_over, progress) = (!run.is_running(), run.is_over(), run.progress());
        self.read_local_state().await?;
        if !self.must_run_end {
            self.progress = progress;
        }
        if has_no_running_task {
            self.report_running_at = None;
            // The tasks may have created directories in which managed files must be watched now.
            self.watch_files();
            results.extend(self.remove_orphans()?);
            self.find_orphans()?;
        }
        if !results.is_empty() {
            self.findings.refresh(&self.site.ledger)?;
            results.iter().for_each(log_result);
            self.send_results(&results).await?;
        }
        if has_no_running_task && self.must_run_end {
            if let Some(desired) = self.desired.clone() {
                self.plan_run(&desired)?;
            }
            // If a new run was planned, its first step sets the progress.
            if self.run.is_none() {
                self.progress = observed::Progress::Idle;
            }
        } else if has_no_running_task {
            self.failures = failure_count(self.failures, self.progress, self.changed_files.repeats > 0);
            self.next_reconcile_at = Instant::now() + self.reconcile_delay();
            if self.changed_files.should_reconcile() {
                self.reconcile_soon();
            }
            if is_over {
                self.run = None;
            }
        }
        self.report().await?;
        self.run_applied_command().await;
        Ok(())
    }

    /// Records that a requested reconcile has ended. The command that waits for it reads this record.
    fn finish_reconcile(&mut self, requested: u64) -> Result<(), ApplyError> {
        // The first number is that of the last reconcile that began, the second that of the last one that ended.
        self.site.ledger.put(&RECONCILE_DONE, &(requested, requested))?;
        self.requested_reconcile = None;
        Ok(())
    }

    /// Returns whether no task runs, no hook runs or is scheduled, and all results are stored. A run that only waits
    /// for a barrier or a blob is idle.
    fn is_idle(&self) -> bool {
        let is_run_idle = self.run.as_ref().is_none_or(|run| !run.is_running() && !run.has_unsaved_results());
        is_run_idle && matches!(self.hooks, HookState::Idle)
    }

    /// Ends the worker: waits until the running tasks and hooks have ended, and stores their results.
    async fn finish(mut self) -> Result<RunSummary, ApplyError> {
        if let Some(run) = &mut self.run {
            for task in run.running() {
                warn!(task; "stopping: waiting for a running task to end");
            }
            loop {
                tokio::select! {
                    has_ended = run.finish_running() => {
                        if !has_ended {
                            break;
                        }
                        run.save_results()?;
                    }
                    // The service manager expects pings if it was not what stopped the agent.
                    () = self.watchdog.wait_until_due() => {}
                }
                self.watchdog.ping_if_due();
            }
            self.summary = run.summary();
        }
        if matches!(self.hooks, HookState::Running(..)) {
            warn!("stopping: waiting for a running hook to end");
        }
        while matches!(self.hooks, HookState::Running(..)) {
            tokio::select! {
                failures = next_hook_event(&mut self.hooks) => self.on_hook_event(failures).await?,
                () = self.watchdog.wait_until_due() => {}
            }
            self.watchdog.ping_if_due();
        }
        Ok(self.summary)
    }
}

/// Returns the number of consecutive runs that failed, after a run with this progress. A run that only repeats the one
/// before, because files changed during it, does not make the delay before the next one longer.
fn failure_count(failures: u32, progress: observed::Progress, is_repeated: bool) -> u32 {
    match progress {
        observed::Progress::Failed if is_repeated => failures.max(1),
        observed::Progress::Failed => failures.saturating_add(1),
        observed::Progress::Idle | observed::Progress::Running | observed::Progress::Waiting | observed::Progress::Converged => 0,
    }
}

/// Starts the tasks that may run, and waits until a task has ended. Starts no task if `must_end`. `open_barriers`
/// are the barriers behind which tasks may run. Completes at once if no task runs and the run has something to store.
///
/// Never completes if there is no run, or if all results are stored and no task of the run can start or end. The caller
/// uses this in a `select!`, in which the other events continue.
async fn advance_run(run: Option<&mut TaskRun>, must_end: bool, open_barriers: &BTreeSet<Barrier>) -> Result<(), HostError> {
    let Some(run) = run else { return std::future::pending().await };
    let has_advanced = if must_end { run.finish_running().await } else { run.advance(open_barriers).await? };
    if has_advanced || run.has_unsaved_results() { Ok(()) } else { std::future::pending().await }
}

#[cfg(test)]
mod tests;
