//! The main loop of the root half. It accepts offers and applies the desired state that it holds.
//!
//! Every event has the same effect: the loop reads the ledger, writes the files that services read, and runs the tasks
//! that are due. No decision is kept in memory alone, so a restart is no special case.

mod bodies;
mod disk;
mod grants;
mod host_map;
mod offers;
mod plan;
mod report;

use std::collections::BTreeSet;
use std::time::Duration;

use log::warn;
use stemma_core::status::OrphanedPath;
use stemma_wire::message::WireVersion;
use stemma_wire::message::channel::{ApplyMessage, SyncMessage};
use stemma_wire::message::desired::Barrier;
use stemma_wire::message::observed::{self, LocalState, Report};
use tokio::time::{Instant, sleep_until};

use super::executor::{RunSummary, TaskRun};
use super::hooks::HookFailures;
use super::ledger::{Desired, LOCAL_STATE, Ledger, RECONCILE_DONE, REPORT};
use super::outputs::OutputsResult;
use super::seal::seal_key;
use super::task::Site;
use super::verify::NodeVerifier;
use super::wake::WakeListener;
use crate::channel::{ApplyEnd, ChannelError};
use crate::config::AgentConfig;
use crate::host::{HostCommand, HostError, or_pending};
use crate::watch::{FileWatch, WatchedPaths};
use bodies::BodyDownloads;
use disk::StuckReason;
use grants::GrantTable;
use host_map::HostMapWatch;
use report::{HookState, log_result, next_hook_event};

/// Delay before a profile or blob that did not arrive completely is requested again.
const BODY_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Time after a change before a file is read, so that its writer can finish.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// Maximum number of consecutive reconciles that files changed during a run can cause.
const MAX_REPEATED_RECONCILES: u32 = 3;
/// Minimum time between two reconciles that changed files cause.
const MIN_RECONCILE_INTERVAL: Duration = Duration::from_secs(10);

/// Time after which a run is reported as running. Shorter runs, such as most that only check, are not.
const RUNNING_REPORT_DELAY: Duration = Duration::from_millis(500);

/// The root half of the agent.
pub struct ApplyWorker {
    site: Site,
    config: AgentConfig,
    /// Verifies offers. `None` if the agent has no identity.
    verifier: Option<NodeVerifier>,
    end: ApplyEnd,
    wakes: WakeListener,
    desired: Option<Desired>,
    local: LocalState,
    grants: GrantTable,
    bodies: BodyDownloads,
    run: Option<TaskRun>,
    /// True if the run is for a task set that has been replaced.
    is_run_replaced: bool,
    progress: observed::Progress,
    findings: WorkerFindings,
    orphans: Vec<OrphanedPath>,
    last_report: Option<Report>,
    /// True if the last report is on disk, for `status`.
    is_report_stored: bool,
    next_reconcile_at: Instant,
    /// Time at which outputs for services and people are written again, if a write failed.
    retry_outputs_at: Option<Instant>,
    /// Time of the next check that a record could be written.
    check_room_at: Instant,
    /// True if the state could not be written. Nothing is started before the next reconcile then.
    is_blocked: bool,
    /// True if an offer was received and neither accepted nor refused yet.
    is_offer_unanswered: bool,
    /// Time at which the report starts to say that tasks run. A run that only checks mostly ends before.
    report_running_at: Option<Instant>,
    /// Number of consecutive runs that failed. The delay of the next reconcile grows with it.
    failures: u32,
    hooks: HookState,
    map: HostMapWatch,
    /// Watches the managed files. `None` if they are checked on schedule only.
    managed: Option<FileWatch>,
    changed_files: ChangedFiles,
    last_reconcile_at: Instant,
    /// The reconcile that a command on the host requested and waits for.
    requested_reconcile: Option<u64>,
    /// The command to run once, when the tasks are first applied after this process started.
    on_applied: Option<HostCommand>,
    /// The progress of the last run.
    summary: RunSummary,
    stop_when: StopWhen,
}

/// When the main loop of the worker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopWhen {
    /// When the worker is told to stop, as in the service.
    OnRequest,
    /// When there is nothing more to do now, as in a one-time run.
    WhenIdle,
}

/// The findings of the root half, by their source.
#[derive(Default)]
struct WorkerFindings {
    membership: Option<String>,
    disk: Option<StuckReason>,
    outputs: OutputsResult,
    map: Option<String>,
    hooks: HookFailures,
    state: Option<String>,
    set_aside: Vec<String>,
    dropped: Option<String>,
    /// The next free sequence number when `dropped` was reported. `None` if `dropped` is not reported yet.
    dropped_reported_at: Option<u64>,
}

impl WorkerFindings {
    /// Reads from the ledger which records were set aside, and how many results were dropped.
    fn refresh(&mut self, ledger: &Ledger) -> Result<(), HostError> {
        self.set_aside = ledger.set_aside_records()?;
        let dropped = ledger.dropped_results()?;
        if dropped != self.dropped {
            (self.dropped, self.dropped_reported_at) = (dropped, None);
        }
        Ok(())
    }
}

/// Whether managed files changed during a run. A task changed them, or another program did after the task had checked
/// them, so they must be checked again.
#[derive(Default)]
struct ChangedFiles {
    has_changes: bool,
    /// The number of consecutive reconciles that changed files have caused, including the present one.
    repeats: u32,
}

/// The reason why the worker cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A system call on the host failed.
    #[error("the agent's own state cannot be kept")]
    State(#[from] HostError),
    /// The other half cannot be reached.
    #[error("the other half of the agent cannot be reached")]
    Channel(#[from] ChannelError),
}

impl ChangedFiles {
    /// Returns whether another reconcile must follow a finished run. At most [`MAX_REPEATED_RECONCILES`] follow one
    /// another, so two tasks that write the same file do not run each other for ever.
    fn should_reconcile(&mut self) -> bool {
        let is_due = std::mem::take(&mut self.has_changes) && self.repeats < MAX_REPEATED_RECONCILES;
        self.repeats = if is_due { self.repeats + 1 } else { 0 };
        is_due
    }
}

impl ApplyWorker {
    /// Creates the worker from the state on disk.
    ///
    /// # Errors
    /// [`HostError`] if the ledger cannot be read at all.
    pub fn new(
        site: Site,
        config: AgentConfig,
        verifier: Option<NodeVerifier>,
        end: ApplyEnd,
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
        let progress = site.ledger.get(&REPORT)?.map(|last| last.progress).unwrap_or_default();
        let next_reconcile_at = Instant::now() + Duration::from_secs(config.schedule.drift_seconds);
        Ok(Self {
            desired: site.ledger.accepted()?.map(|accepted| accepted.desired()),
            site,
            config,
            verifier,
            end,
            wakes,
            local,
            grants: GrantTable::default(),
            bodies: BodyDownloads::default(),
            run: None,
            is_run_replaced: false,
            progress,
            findings: WorkerFindings::default(),
            orphans: Vec::new(),
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
            managed: None,
            changed_files: ChangedFiles::default(),
            last_reconcile_at: Instant::now(),
            requested_reconcile: None,
            on_applied: None,
            summary: RunSummary::default(),
            stop_when,
        })
    }

    /// Makes the worker watch the managed files for drift and the host label map for changes by other programs, in
    /// addition to its scheduled checks.
    #[must_use]
    pub fn with_file_watch(mut self) -> Self {
        self.managed = Some(FileWatch::new(self.site.host.system_root(), WatchedPaths::new()));
        self.watch_map();
        self
    }

    /// Reports that this host cannot reach its fleet, and why.
    #[must_use]
    pub fn without_network(mut self, why: String) -> Self {
        self.findings.membership = Some(why);
        self
    }

    /// Sets a command to run once, when the tasks have first been applied. The command starts the units on the host
    /// that wait for the tasks.
    #[must_use]
    pub fn with_applied_command(mut self, command: HostCommand) -> Self {
        self.on_applied = Some(command);
        self
    }

    /// Runs until `stop` completes, then waits for running tasks. With [`StopWhen::WhenIdle`], runs until there is
    /// nothing more to do. Returns the progress of the last run.
    ///
    /// # Errors
    /// [`ApplyError`].
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<RunSummary, ApplyError> {
        tokio::pin!(stop);
        self.start().await?;
        let mut connected = true;
        loop {
            if self.is_idle() {
                if self.stop_when == StopWhen::WhenIdle {
                    return Ok(self.summary);
                }
                if let Some(requested) = self.requested_reconcile {
                    let result = self.finish_reconcile(requested);
                    self.survive_state_error(result).await?;
                }
            }
            let done = tokio::select! {
                message = self.end.receive_versioned(), if connected => match message {
                    Err(ChannelError::Closed) if self.stop_when == StopWhen::OnRequest => return self.finish().await,
                    Err(ChannelError::Closed) => {
                        connected = false;
                        Ok(())
                    }
                    message => self.on_message(message).await,
                },
                result = advance_run(self.run.as_mut(), self.is_run_replaced, self.grants.open_barriers()), if !self.is_blocked => {
                    self.on_run_advanced(result).await
                }
                () = sleep_until(self.next_reconcile_at) => self.reconcile().await,
                () = sleep_until(self.check_room_at), if !self.is_blocked => self.check_each_minute().await,
                () = self.wakes.next() => self.on_wake().await,
                () = or_pending(self.managed.as_ref().map(FileWatch::changed)) => {
                    self.changed_files.has_changes = true;
                    self.reconcile_soon();
                    Ok(())
                }
                () = or_pending(self.map.watch.as_ref().map(FileWatch::changed)) => {
                    // A change is read when its writer has had time to finish.
                    self.map.check_at.get_or_insert(Instant::now() + SETTLE_TIME);
                    Ok(())
                }
                () = or_pending(self.map.check_at.map(sleep_until)) => self.check_map().await,
                () = or_pending(self.retry_outputs_at.map(sleep_until)) => self.check_map().await,
                () = or_pending(self.report_running_at.map(sleep_until)) => self.report_running().await,
                failed = next_hook_event(&mut self.hooks) => self.on_hook_event(failed).await,
                () = &mut stop => return self.finish().await,
            };
            self.survive_state_error(done).await?;
        }
    }

    /// Sends the held desired state, the results and the local state to the network half, and resumes the held desired
    /// state.
    async fn start(&mut self) -> Result<(), ApplyError> {
        let held = self.site.ledger.accepted()?.map(|accepted| accepted.held());
        self.end.send(&ApplyMessage::Hello { seal_key: seal_key(&*self.site.host, &self.site.ledger)?, held }).await?;
        self.send_results(&self.site.ledger.results()?).await?;
        self.end.send(&ApplyMessage::Local(self.local.clone())).await?;
        let result = self.take_reconcile_request().map_err(ApplyError::from);
        self.survive_state_error(result).await?;
        let result = self.resume_held().await;
        self.survive_state_error(result).await?;
        self.report_foreign_labels().await?;
        let result = self.check_room();
        self.survive_state_error(result).await?;
        let result = self.report().await;
        self.survive_state_error(result).await
    }

    /// Writes the outputs of the held desired state, requests the bodies that it lacks, and plans its run, as after an
    /// offer.
    async fn resume_held(&mut self) -> Result<(), ApplyError> {
        self.findings.refresh(&self.site.ledger)?;
        if let Some(desired) = self.desired.clone() {
            self.restore_barriers(&desired)?;
            if desired.task_set.profile.is_some() && !self.has_begun(&desired) {
                self.progress = observed::Progress::Idle;
            }
            self.write_outputs(&desired, Some(&desired.known));
            self.request_bodies(&desired).await?;
            self.schedule_hooks(&desired)?;
            self.plan_run(&desired)?;
        }
        Ok(())
    }

    /// Reports that tasks run, because the run takes longer than [`RUNNING_REPORT_DELAY`].
    async fn report_running(&mut self) -> Result<(), ApplyError> {
        (self.report_running_at, self.progress) = (None, observed::Progress::Running);
        self.report().await
    }

    /// Handles a message of the network half. The wire version is that of the desired state in the message.
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
            SyncMessage::BodyUnavailable(hash) => self.body_unavailable(hash),
            SyncMessage::Local(local) => self.set_local_state(local).await?,
            SyncMessage::Observed(_) => {}
        }
        self.report().await
    }

    /// Handles the progress of the run after [`advance_run`] returned: stores and sends results. When no task runs any
    /// more, schedules the next reconcile, or plans the run of the newer task set if this one was replaced.
    async fn on_run_advanced(&mut self, result: Result<(), HostError>) -> Result<(), ApplyError> {
        result?;
        let Some(run) = &mut self.run else { return Ok(()) };
        let results = run.save_results()?;
        self.summary = run.summary();
        let (is_idle, is_over, progress) = (!run.is_running(), run.is_over(), run.progress());
        self.read_local_state().await?;
        if !self.is_run_replaced {
            self.progress = progress;
        }
        if is_idle {
            self.report_running_at = None;
            // The tasks may have created directories.
            self.watch_files();
            self.find_orphans()?;
        }
        if !results.is_empty() {
            self.findings.refresh(&self.site.ledger)?;
            results.iter().for_each(log_result);
            self.send_results(&results).await?;
        }
        if is_idle && self.is_run_replaced {
            if let Some(desired) = self.desired.clone() {
                self.plan_run(&desired)?;
            }
            // If a run was planned, its first step sets the progress.
            if self.run.is_none() {
                self.progress = observed::Progress::Idle;
            }
        } else if is_idle {
            self.failures = if self.progress == observed::Progress::Failed { self.failures + 1 } else { 0 };
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

    /// Records that a requested reconcile is over, for the command that waits for it.
    fn finish_reconcile(&mut self, requested: u64) -> Result<(), ApplyError> {
        self.site.ledger.put(&RECONCILE_DONE, &(requested, requested))?;
        self.requested_reconcile = None;
        Ok(())
    }

    /// Returns whether nothing can continue now. A run that waits for a barrier or a blob counts as idle.
    fn is_idle(&self) -> bool {
        let idle = self.run.as_ref().is_none_or(|run| !run.is_running() && !run.has_unsaved_results());
        idle && matches!(self.hooks, HookState::Idle)
    }

    /// Ends the worker: waits until the running tasks have ended, and stores their results.
    async fn finish(mut self) -> Result<RunSummary, ApplyError> {
        if let Some(run) = &mut self.run {
            for task in run.running() {
                warn!(task; "stopping: waiting for a running task to end");
            }
            while run.finish_running().await {
                run.save_results()?;
            }
            self.summary = run.summary();
        }
        Ok(self.summary)
    }
}

/// Advances the run until a task has ended. Never completes if there is no run, or if no task of it can continue. If
/// the run was `replaced`, no further task starts.
async fn advance_run(run: Option<&mut TaskRun>, replaced: bool, open: &BTreeSet<Barrier>) -> Result<(), HostError> {
    let Some(run) = run else { return std::future::pending().await };
    let advanced = if replaced { run.finish_running().await } else { run.advance(open).await? };
    if advanced || run.has_unsaved_results() { Ok(()) } else { std::future::pending().await }
}

#[cfg(test)]
mod tests;
