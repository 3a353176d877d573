//! The command `status`: the labels, traits and tags of this host and the state of its tasks, read from the ledger (the
//! agent's records on disk).

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Display, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use serde::{Serialize, Serializer};
use stemma_core::digest::TaskDigest;
use stemma_core::status::{
    self, CleanUpReport, CleanUpState, ORPHANS_FACT, OrphanedObject, Orphans, RebootReport, STUCK_FACT, TaskOutcome, TaskSummary,
};
use stemma_core::task::Mode;
use stemma_wire::error::is_format_character;
use stemma_wire::message::desired::{Known, ProfileTask};
use stemma_wire::message::observed::{LocalState, Outcome, Progress};

use super::membership::{Membership, read_membership};
use super::waits::waiting_tasks;
use super::{AgentExit, LocalHost, print, print_json};
use crate::apply::clean_ups;
use crate::apply::executor::{OBSERVED_MESSAGE, is_observed};
use crate::apply::ledger::{AcceptedState, Desired, LOCAL_STATE, PROGRESS, REASONS, REPORT, Reason, TaskRecord};
use crate::apply::orphans::{self, MAX_LISTED_ORPHANS, OrphanList};
use crate::apply::reboots;
use crate::args::OutputFormat;
use crate::host::Host as _;
use crate::sync::{ConnectionRecord, ConnectionState};

/// Reason why this host gets no updates if no agent runs on it.
const NO_AGENT_MESSAGE: &str = "no agent runs on this host";

/// Reason why this host gets no updates if the running agent cannot connect to its controllers.
const NO_NETWORK_MESSAGE: &str = "no agent is connected to its controllers, because its identity or key is damaged";

/// Reason why this host gets no updates if no controller responds.
const UNSERVED_MESSAGE: &str = "no controller serves it";

/// Finding about a host whose node was deleted or whose certificate was revoked.
const UNKNOWN_NODE_MESSAGE: &str = "its node was deleted, or its certificate was revoked: it no longer gets updates. To bring it back, \
     stop the agent, remove /var/lib/stemma-agent, and run `stemma-agent join` with a new token";

/// Explanation that is added to the state of a host that does not begin its tasks because of its mode.
const OBSERVE_SUFFIX: &str = ": its mode is observe, so no task is run or checked";

/// The JSON output of `status`. The fields `labels`, `annotations`, `traits`, `tags`, `primary_tags`, `task_digest` and
/// `skipped` have the same names as in `stemma resolve -o json`, so that they can be compared.
#[derive(Serialize)]
struct StatusOutput {
    node: Option<String>,
    name: Option<String>,
    group: Option<String>,
    fleet: Option<String>,
    epoch: Option<String>,
    revision: Option<u64>,
    mode: Option<String>,
    /// The progress in the last report of the agent. It is `running` if tasks run that are not in a report yet, and
    /// `idle` if tasks ran in the report and no agent runs now.
    #[serde(serialize_with = "in_words")]
    progress: Progress,
    /// True if this host does not know its tasks yet, because it has no desired state, only labels have arrived, or the
    /// profile (the list of tasks) has not arrived.
    #[serde(skip)]
    has_unknown_tasks: bool,
    /// The state of the connection to the controllers, stored at its last change. `null` if no valid state is stored,
    /// as before a join, or before the first outage of a host that joined with an older agent.
    connection: Option<ConnectionRecord>,
    /// True if another process has the lock of this host's state. This is the agent, or `once` or `leave`. Without an
    /// agent, the state of the connection is unknown. `null` if the lock cannot be checked.
    agent_runs: Option<bool>,
    /// The reason why this host gets no updates. `null` if it gets updates, as far as the host knows.
    untold: Option<&'static str>,
    paused: bool,
    /// True if an operator paused the node group or cluster of this host, so that no new task set is released to it.
    is_paused_by_operator: bool,
    /// The cause of the park of this host, as text ([`parked_text`]). `null` if the host is not parked.
    parked: Option<String>,
    /// The reason, remaining time and effect of a hold, as text ([`hold_text`]). `null` without a hold.
    held: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    traits: Vec<String>,
    tags: Vec<String>,
    primary_tags: Vec<String>,
    task_digest: Option<String>,
    tasks: Vec<TaskOutput>,
    skipped: BTreeMap<String, Arc<str>>,
    unacknowledged_results: usize,
    findings: Vec<String>,
    /// Files and other objects that tasks left, that still exist, and that no task manages now.
    orphans: Vec<OrphanedObject>,
    /// The number of files in orphaned directories of trees that are so large that their files are only counted.
    unlisted_orphans: u64,
    /// The number of objects of tasks for which the record of the host has no room, so that `orphans` may lack them.
    unrecorded_objects: u64,
    /// The tasks that run once because a task that names them in `on_unassign` is no longer placed on this node.
    clean_ups: Vec<CleanUpReport>,
    /// The reboot that tasks of this host ask for. `null` if none does.
    reboot: Option<RebootReport>,
    /// True if identity or credentials of a joined host are missing or damaged. The first finding describes the damage.
    is_damaged: bool,
    /// The reason why the agent cannot store or apply its desired state. `null` if there is no such problem.
    stuck: Option<String>,
}

/// A task in the output of `status`.
#[derive(Serialize)]
struct TaskOutput {
    id: String,
    /// `null` if the task of the current task set has not ended yet on this host.
    outcome: Option<TaskEnd>,
    /// The barrier or the reboot that the task waits for, directly or through an earlier task of this host. `null` if it
    /// does not wait.
    waits_for: Option<String>,
    /// True if the task waits for a reboot of this host.
    #[serde(skip)]
    waits_for_reboot: bool,
    /// The reason for the outcome and the end of the task's output, if they are stored.
    #[serde(flatten)]
    reason: Option<Reason>,
    /// The tasks that did not run because this task failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_run: Vec<String>,
}

/// The outcome of a task on this host, as `status` and `explain` print it.
#[derive(Clone, Copy)]
pub(super) enum TaskEnd {
    /// The task was neither run nor checked, because its own mode is `observe`. The agent reports such a task to
    /// controllers like a task that was only checked.
    Observed,
    /// The task was run or checked with this outcome, or it could not run, for example after a failed requirement.
    Outcome(Outcome),
}

/// Prints the state of this host. The exit status is a failure if tasks have failed, the host is stuck, its identity is
/// damaged, or its controllers no longer know it.
///
/// # Errors
/// Fails if ledger, identity, credentials or connection record cannot be read, or if the key is open to other users.
pub fn status(root: &Path, output: OutputFormat) -> Result<AgentExit> {
    let local = LocalHost::open(root)?;
    let status = collect(&local)?;
    match output {
        OutputFormat::Json => print_json(&status)?,
        OutputFormat::Human => print(&human_text(&status, local.host.unix_seconds()))?,
    }
    let has_failed_task = status.progress_word() == "failed";
    let is_stuck = status.stuck.is_some();
    Ok(if has_failed_task || is_stuck || status.is_damaged || status.is_unknown() { AgentExit::Failed } else { AgentExit::Done })
}

impl StatusOutput {
    /// Returns whether the controllers no longer know this host.
    fn is_unknown(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.state == ConnectionState::Unknown)
    }

    /// Returns the state of this host in a few words, for the line `state` of the output.
    fn state_text(&self) -> String {
        let parts = [
            self.paused.then(|| "paused on this host".to_owned()),
            self.is_paused_by_operator.then(|| "paused by an operator (its nodegroup or cluster)".to_owned()),
            self.parked.as_ref().map(|parker| format!("parked {parker}")),
            self.held.as_ref().map(|reason| format!("held {reason}")),
        ];
        let suffix: String = parts.into_iter().flatten().map(|part| format!(", {part}")).collect();
        if self.is_unknown() {
            return format!("no longer known to its controllers{suffix}; its tasks: {}", self.progress_word());
        }
        if let Some(reason) = &self.stuck {
            return format!("stuck{suffix}: {reason}");
        }
        let reason = if self.is_observed() { OBSERVE_SUFFIX } else { "" };
        format!("{}{suffix}{reason}", self.state_word())
    }

    /// Returns `unplaced` for a host that is in no nodegroup, as controllers do, or else the progress of the tasks.
    fn state_word(&self) -> &str {
        if self.is_unplaced() { "unplaced" } else { self.progress_word() }
    }

    /// Returns whether this host has a desired state without a nodegroup.
    const fn is_unplaced(&self) -> bool {
        self.revision.is_some() && self.group.is_none()
    }

    /// Returns whether the mode of this host is `observe` and some of its tasks therefore have not begun.
    fn is_observed(&self) -> bool {
        let is_observe_mode = self.mode.as_ref().is_some_and(|mode| *mode == words(Mode::Observe));
        let is_idle = !self.is_unplaced() && self.progress == Progress::Idle;
        is_observe_mode && is_idle && self.tasks.iter().any(TaskOutput::is_pending)
    }

    /// Returns the progress of the tasks in words, mostly those of the controllers. The report decides if it is
    /// `running` or `failed`. Otherwise the outcomes of the tasks decide. If the report is `waiting`, the result is
    /// `waiting` in place of `noop` or `converged`.
    fn progress_word(&self) -> &'static str {
        let outcomes = (!self.has_unknown_tasks).then(|| self.tasks.iter().map(TaskOutput::node_outcome));
        // The host itself knows its results, so it never counts as one that has sent none (`true`).
        match (self.progress, TaskSummary::from_outcomes(outcomes, true)) {
            (Progress::Running, _) => "running",
            (Progress::Failed, _) | (_, TaskSummary::Failed) => "failed",
            (_, TaskSummary::Incomplete) if !self.tasks.iter().any(TaskOutput::is_pending_here) => {
                if self.tasks.iter().any(|task| task.waits_for_reboot) {
                    "waiting for a reboot"
                } else {
                    "waiting for other hosts"
                }
            }
            (_, TaskSummary::Drifted) => "drifted",
            (Progress::Waiting, _) | (_, TaskSummary::Incomplete | TaskSummary::NotReleased | TaskSummary::Unreported) => {
                "waiting"
            }
            (_, TaskSummary::WouldChange) => "noop",
            (Progress::Idle | Progress::Converged, TaskSummary::NothingToRun | TaskSummary::Succeeded) => "converged",
        }
    }
}

impl TaskOutput {
    /// Returns whether the task has not ended, and waits for neither another host nor a reboot.
    fn is_pending_here(&self) -> bool {
        self.is_pending() && self.waits_for.is_none()
    }

    /// Returns whether the task has not ended.
    const fn is_pending(&self) -> bool {
        self.outcome.is_none()
    }

    /// Returns the outcome of the task for the computation of the host's state, or `None` if the task has not ended.
    fn node_outcome(&self) -> Option<TaskOutcome> {
        self.outcome.map(|task_end| match task_end {
            // A host converges without its observed tasks, so such a task is like a succeeded one.
            TaskEnd::Observed => TaskOutcome::Succeeded,
            TaskEnd::Outcome(outcome) => outcome.to_task_outcome(),
        })
    }
}

impl TaskEnd {
    /// Returns the outcome of a task in the current task set, from its record.
    pub(super) fn from_record(task: &ProfileTask, record: &TaskRecord) -> Self {
        if is_observed(task) { Self::Observed } else { Self::Outcome(record.outcome) }
    }

    /// Returns the outcome of a task in an earlier task set. The definition of the task there is not known any more. So
    /// the recorded reason determines whether the task was only observed.
    pub(super) fn from_earlier(outcome: Outcome, reason: Option<&Reason>) -> Self {
        let is_observed = outcome == Outcome::WouldChange && reason.is_some_and(|reason| reason.message == OBSERVED_MESSAGE);
        if is_observed { Self::Observed } else { Self::Outcome(outcome) }
    }
}

impl Display for TaskEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Observed => f.write_str("observed"),
            Self::Outcome(outcome) => f.write_str(&words(outcome)),
        }
    }
}

impl Serialize for TaskEnd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads everything that `status` prints: from the ledger (the agent's stored state), the identity, the connection
/// record and the host's files.
fn collect(local: &LocalHost) -> Result<StatusOutput> {
    let ledger = &local.site.ledger;
    let (identity, damage) = match read_membership(local)? {
        Membership::Member(member) => (Some(member.0), None),
        Membership::Damaged(identity, message) => (identity, Some(message)),
        Membership::NotJoined => (None, None),
    };
    let (is_damaged, connection) = (damage.is_some(), ConnectionRecord::load(&*local.host)?);
    let accepted = ledger.accepted()?;
    let report = ledger.get(&REPORT)?.unwrap_or_default();
    let stuck = stuck_reason(local)?;
    let desired = accepted.as_ref().map(AcceptedState::desired);
    let profile = desired.as_ref().map(|desired| ledger.profile(desired)).transpose()?.flatten();
    let has_unknown_tasks = profile.is_none() || desired.as_ref().is_some_and(Desired::is_unreleased);
    let tasks = desired.as_ref().map(|desired| tasks(local, desired)).transpose()?.unwrap_or_default();
    let local_state = ledger.get(&LOCAL_STATE)?.unwrap_or_default();
    let agent_runs = local.is_running();
    // An agent that was started after the damage reports the damage as a finding and is not connected. An agent that
    // was started before the damage does not report it and is still connected.
    let is_disconnected = damage.as_ref().is_some_and(|message| report.findings.contains(message));
    let is_member = identity.is_some() || is_damaged;
    let untold = is_member.then(|| disconnect_reason(agent_runs, is_disconnected, connection.as_ref())).flatten();
    let runs_tasks = agent_runs == Some(true)
        && stuck.is_none()
        && desired.as_ref().is_some_and(|desired| is_starting(report.progress, desired, &local_state, &tasks));
    let hold = desired.as_ref().map(|desired| hold_text(desired, &local_state, &tasks, local.host.unix_seconds()));
    let mut orphans = desired.as_ref().map(|desired| orphans(local, desired)).transpose()?.unwrap_or_default();
    // Only the agent knows why it did not remove an orphan.
    let reported_orphans = report.facts.get(ORPHANS_FACT).map(|fact| Orphans::from_fact(fact)).unwrap_or_default().listed;
    for orphan in &mut orphans.objects {
        let reported = reported_orphans.iter().find(|reported| (&reported.kind, &reported.name) == (&orphan.kind, &orphan.name));
        orphan.kept = reported.and_then(|reported| reported.kept.clone());
    }
    let clean_ups = clean_ups::reports(&local.site)?;
    let skipped = desired.as_ref().map(skipped_tasks).unwrap_or_default();
    let reboot = Some(reboots::report(ledger, local.host.boot_id())?).filter(|report| !report.tasks.is_empty());
    let mode = desired.as_ref().map(|desired| words(desired.mode()));
    let has_desired = desired.is_some();
    let (known, task_set) = desired.map(|desired| (desired.known, desired.task_set)).unwrap_or_default();
    let (is_paused, parked) = (local_state.paused, parked_text(&known, local_state));
    Ok(StatusOutput {
        node: identity.as_ref().map(|identity| identity.node.to_string()),
        name: has_desired.then_some(known.name),
        group: (!known.group.is_empty()).then_some(known.group),
        fleet: identity.map(|identity| identity.fleet),
        epoch: accepted.as_ref().map(|accepted| accepted.epoch.to_string()),
        revision: accepted.as_ref().map(|accepted| accepted.revision.0),
        mode,
        progress: match (agent_runs, report.progress) {
            _ if runs_tasks => Progress::Running,
            // The agent that reported running tasks has exited or was killed. With `Idle`, the state is computed from
            // the outcomes of the tasks.
            (Some(false), Progress::Running) => Progress::Idle,
            (_, reported) => reported,
        },
        has_unknown_tasks,
        findings: findings(local, damage, connection.as_ref(), report.findings),
        connection,
        agent_runs,
        untold,
        paused: is_paused,
        is_paused_by_operator: known.paused,
        parked,
        held: hold.flatten(),
        labels: known.labels.into_iter().map(|(key, label)| (key, label.value)).collect(),
        annotations: known.annotations,
        traits: known.traits,
        tags: task_set.tags,
        primary_tags: task_set.primaries,
        task_digest: has_desired.then(|| TaskDigest(task_set.task_digest).to_string()),
        tasks,
        skipped,
        unacknowledged_results: ledger.results()?.len(),
        orphans: orphans.objects,
        unlisted_orphans: orphans.unlisted_count,
        unrecorded_objects: orphans.omitted_count,
        clean_ups,
        reboot,
        is_damaged,
        stuck,
    })
}

/// Returns the reason why this host gets no updates, or `None` if it gets updates or it is not known whether an agent
/// runs. `is_disconnected` is true if the running agent cannot connect because of damaged files. If an agent runs, the
/// result is also `None` for a host that is unknown to its controllers, whose state already shows this, and for one
/// that shares its identity with another host, because both get updates in turn.
fn disconnect_reason(
    agent_runs: Option<bool>,
    is_disconnected: bool,
    connection: Option<&ConnectionRecord>,
) -> Option<&'static str> {
    match (agent_runs, connection.map(|connection| connection.state)) {
        (Some(false), _) => Some(NO_AGENT_MESSAGE),
        (Some(true), _) if is_disconnected => Some(NO_NETWORK_MESSAGE),
        (Some(true), Some(ConnectionState::Unserved)) => Some(UNSERVED_MESSAGE),
        (Some(true), None | Some(ConnectionState::Connected | ConnectionState::Unknown | ConnectionState::Shared))
        | (None, _) => None,
    }
}

/// Returns the reason why the agent cannot store or apply its desired state, or `None` if there is no problem. This
/// function itself checks whether the agent's state can be written, with a test file. This fails for example on a full
/// disk. The agent notices a full disk only when it stores something or at its check of each minute, and maybe no agent
/// runs. Other reasons, such as labels that cannot be written, are read from the agent's last report.
///
/// # Errors
/// Fails if the ledger (the agent's stored state) cannot be read.
pub(super) fn stuck_reason(local: &LocalHost) -> Result<Option<String>> {
    let ledger = &local.site.ledger;
    if let Err(error) = ledger.check_writable() {
        return Ok(Some(error.sentence()));
    }
    let report = ledger.get(&REPORT)?.unwrap_or_default();
    Ok(report.facts.get(STUCK_FACT).and_then(|fact| status::stuck_reason(fact)))
}

/// Returns the human-readable output of `status`, for tests.
#[cfg(test)]
pub(super) fn human_status(root: &Path) -> String {
    human_text(&collect(&LocalHost::open(root).unwrap()).unwrap(), 0)
}

/// Returns the findings about the membership (`damage`, and whether the controllers know this host), the findings of
/// the agent's last report, and the current findings about label files, hooks, facts and certificate. A finding that
/// occurs several times is returned once.
fn findings(
    local: &LocalHost,
    damage: Option<String>,
    connection: Option<&ConnectionRecord>,
    reported: Vec<String>,
) -> Vec<String> {
    let is_unknown = connection.is_some_and(|connection| connection.state == ConnectionState::Unknown);
    let mut findings: Vec<String> = damage.into_iter().chain(is_unknown.then(|| UNKNOWN_NODE_MESSAGE.to_owned())).collect();
    for finding in reported.into_iter().chain(crate::sync::findings(&*local.host)) {
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    findings
}

/// Returns the tasks that this host runs, in the order of the profile (the list of tasks). Tasks that are left out and
/// markers are omitted. A task has its outcome in the current task set, or the barrier that it waits for, if any.
fn tasks(local: &LocalHost, desired: &Desired) -> Result<Vec<TaskOutput>> {
    let ledger = &local.site.ledger;
    let profile = ledger.profile(desired)?.unwrap_or_default();
    let mut records = ledger.get(&PROGRESS)?.unwrap_or_default().tasks;
    records.retain(|_, record| record.task_set == desired.digest);
    let mut reasons = ledger.get(&REASONS)?.unwrap_or_default();
    let mut stopped_tasks = stopped_tasks(&records, &reasons);
    let barriers = waiting_tasks(local, desired, &profile, &records)?;
    let report = reboots::report(ledger, local.host.boot_id())?;
    let waits_for_boot = reboots::waiting_tasks(&report, desired, &profile, |task| records.contains_key(task));
    let tasks_of_host = profile.tasks.iter().filter(|task| desired.task_set.runs_task(&task.id));
    Ok(tasks_of_host
        .map(|task| {
            let outcome = records.get(&task.id).map(|record| TaskEnd::from_record(task, record));
            let reason = outcome.as_ref().and_then(|_| reasons.remove(&task.id));
            // The text does not contain why the tasks of the barrier have not finished, because only a controller knows
            // it.
            let waits_for = barriers.get(task.id.as_str()).map(|barrier| status::barrier_text(&barrier.task, &barrier.selector));
            let not_run = stopped_tasks.remove(&task.id).unwrap_or_default();
            let waits_for_reboot = waits_for_boot.contains(task.id.as_str());
            let reboot_text = || waits_for_reboot.then(|| format!("a reboot: `stemma node reboot {}`", desired.known.name));
            let waits_for = waits_for.or_else(reboot_text);
            TaskOutput { outcome, reason, waits_for, waits_for_reboot, id: task.id.clone(), not_run }
        })
        .collect())
}

/// Returns the tasks that did not run in the current task set, by the task that failed before them, in the order of ids.
fn stopped_tasks(records: &BTreeMap<String, TaskRecord>, reasons: &BTreeMap<String, Reason>) -> BTreeMap<String, Vec<String>> {
    let mut stopped = BTreeMap::<String, Vec<String>>::new();
    for (id, _) in records.iter().filter(|(_, record)| record.outcome == Outcome::DependencyFailed) {
        let cause = reasons.get(id).and_then(|reason| status::stopping_task(&reason.message));
        if let Some(cause) = cause {
            stopped.entry(cause.to_owned()).or_default().push(id.clone());
        }
    }
    stopped
}

/// Returns by whom or why this host was parked, as text, or `None` if the host is not parked.
fn parked_text(known: &Known, local_state: LocalState) -> Option<String> {
    let on_host = local_state.parked.map(|reason| format!("on this host ({reason})"));
    if known.parked { Some("by an operator".to_owned()) } else { on_host }
}

/// Returns whether tasks probably run although the agent has not reported them yet. An agent reports running tasks only
/// after half a second, so that a shorter run needs neither a record nor a check-in. Until then, its last report is
/// that of an idle host.
fn is_starting(reported: Progress, desired: &Desired, local_state: &LocalState, tasks: &[TaskOutput]) -> bool {
    let has_no_outcomes = tasks.iter().all(TaskOutput::is_pending);
    let runs_in_mode = match desired.mode() {
        Mode::Observe => false,
        // In mode `noop`, the agent checks all tasks at once. After that it is idle, even if a task without an outcome
        // waits for a blob.
        Mode::Noop => has_no_outcomes,
        Mode::Apply => true,
    };
    // A hold that has just ended is still stored here. The agent notices the end of a hold at its next reconcile.
    let is_held_back = has_no_outcomes && local_state.hold.is_some();
    let is_stopped = local_state.paused || local_state.parked.is_some() || desired.known.parked || is_held_back;
    let is_idle = matches!(reported, Progress::Idle | Progress::Converged);
    is_idle && runs_in_mode && !is_stopped && tasks.iter().any(TaskOutput::is_pending_here)
}

/// Returns the reason and the remaining time of a hold as text, or `None` without a hold. `now_s` is in seconds since
/// 1970. The hold is in the local state of the host or in the desired state. A local hold prevents the start of a task
/// set that has not begun. With a hold in the desired state, only a controller knows whether a newer task set waits.
fn hold_text(desired: &Desired, local_state: &LocalState, tasks: &[TaskOutput], now_s: u64) -> Option<String> {
    // A hold consists of its end in seconds since 1970, or the maximum for no end, and its reason.
    let in_force = |hold: &Option<(u64, String)>| hold.clone().filter(|(end_s, _)| *end_s > now_s);
    let has_no_outcomes = tasks.iter().all(TaskOutput::is_pending) && !tasks.is_empty();
    let (end_s, reason, effect) = match (in_force(&local_state.hold), in_force(&desired.known.hold)) {
        (Some((end_s, reason)), _) | (None, Some((end_s, reason))) if desired.is_unreleased() => {
            (end_s, reason, "no task set was released yet")
        }
        (Some((end_s, reason)), _) if has_no_outcomes => (end_s, reason, "a newer task set waits"),
        (Some((end_s, reason)), _) | (None, Some((end_s, reason))) => (end_s, reason, "it keeps its task set"),
        (None, None) => return None,
    };
    let remaining_time =
        if end_s == u64::MAX { "until that is ended".to_owned() } else { format!("for {} more", duration_text(end_s - now_s)) };
    let reason = if reason.is_empty() { reason } else { format!("({reason}) ") };
    Some(format!("{reason}{remaining_time}: {effect}"))
}

/// Returns a duration in words: in minutes, or in hours from two hours on.
fn duration_text(seconds: u64) -> String {
    match seconds / 60 {
        0 => "less than a minute".to_owned(),
        minutes @ 1..120 => format!("{minutes} min"),
        minutes @ 120.. => format!("{} h", minutes / 60),
    }
}

/// Returns the tasks that the task set leaves out, each with the reason, without those that this host got only for
/// `on_unassign`.
fn skipped_tasks(desired: &Desired) -> BTreeMap<String, Arc<str>> {
    let mut skipped = desired.task_set.left_out.clone();
    skipped.retain(|id, _| !clean_ups::is_for_unassign(desired, id));
    skipped
}

/// Returns the objects that tasks left and that no task manages now.
fn orphans(local: &LocalHost, desired: &Desired) -> Result<OrphanList> {
    let Some(profile) = local.site.ledger.profile(desired)? else { return Ok(OrphanList::default()) };
    Ok(orphans::orphans(&local.site, desired, &profile)?)
}

/// Returns the output of `status` for people, one field per line. `now` is in seconds since 1970.
fn human_text(status: &StatusOutput, now: u64) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        writeln!(text, "{key:<10}{}", escape_terminal(value)).expect("writing to a String never fails");
    };
    let dash = || "-".to_owned();
    let no_node = if status.is_damaged { "its identity is damaged" } else { "has not joined a fleet" };
    line("node", status.node.as_deref().unwrap_or(no_node));
    line("name", &status.name.clone().unwrap_or_else(dash));
    line("group", &status.group.clone().unwrap_or_else(dash));
    match (&status.epoch, status.revision) {
        (Some(epoch), Some(revision)) => line("holds", &format!("revision {revision} of epoch {}", &epoch[..8])),
        _ => line("holds", "nothing yet"),
    }
    line("mode", status.mode.as_deref().unwrap_or("-"));
    line("state", &status.state_text());
    if status.node.is_some() || status.is_damaged {
        line("contact", &connection_text(status, now));
    }
    if let Some(reason) = status.untold {
        line("untold", &format!("it gets no updates: {reason}"));
    }
    line("labels", &status.labels.len().to_string());
    line("traits", &status.traits.len().to_string());
    line("tags", &status.tags.join(" "));
    for task in &status.tasks {
        let outcome_text = task.outcome.map(|task_end| task_end.to_string());
        let outcome_text = outcome_text.or_else(|| Some(format!("waiting for {}", task.waits_for.as_ref()?)));
        line("task", &format!("{:<24} {}", task.id, outcome_text.as_deref().unwrap_or("not yet")));
        for reason_line in task.reason.iter().flat_map(reason_lines) {
            line("", &format!("  {reason_line}"));
        }
        if !task.not_run.is_empty() {
            line("", &format!("  not run because of it: {}", task.not_run.join(", ")));
        }
    }
    for (id, reason) in &status.skipped {
        line("skipped", &format!("{id:<24} {reason}"));
    }
    for orphan in status.orphans.iter().take(MAX_LISTED_ORPHANS) {
        let secret = if orphan.is_secret { " (may hold a secret)" } else { "" };
        line("orphaned", &format!("{:<24} {}{secret}", orphan.task, orphan.object_text()));
        if let Some(reason) = &orphan.kept {
            line("", &format!("  not removed: {reason}"));
        }
    }
    let more = status.orphans.len().saturating_sub(MAX_LISTED_ORPHANS) as u64 + status.unlisted_orphans;
    if more > 0 {
        line("orphaned", &format!("and {more} more"));
    }
    if status.unrecorded_objects > 0 {
        let reason = "of tasks had no room in the record of this host, and are not listed when no task manages them";
        line("orphaned", &format!("the list is not complete: {} objects {reason}", status.unrecorded_objects));
    }
    for CleanUpReport { task, on_unassign, state, message } in &status.clean_ups {
        line("orphaned", &format!("{task:<24} on_unassign: {on_unassign} {}", clean_up_text(*state)));
        if !message.is_empty() {
            line("", &format!("  {message}"));
        }
    }
    if let Some(RebootReport { since: Some(since), tasks, .. }) = &status.reboot {
        line("reboot", &format!("wanted for {}", duration_text(now.saturating_sub(*since))));
        for task in tasks {
            line("", &format!("  by task {}: {}", task.task, task.reason));
        }
    }
    if status.unacknowledged_results > 0 {
        line("results", &format!("{} not yet acknowledged by a controller", status.unacknowledged_results));
    }
    for finding in &status.findings {
        line("finding", finding);
    }
    text
}

/// Returns the state of a clean-up as words that follow its name.
const fn clean_up_text(state: CleanUpState) -> &'static str {
    match state {
        CleanUpState::Waiting => "has not run yet",
        CleanUpState::Failed => "failed, and is tried again",
        CleanUpState::Succeeded => "has succeeded",
    }
}

/// Replaces control and formatting characters by U+FFFD. Otherwise a terminal would execute the escape sequences in
/// file names, keys or command output.
pub(super) fn escape_terminal(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() || is_format_character(letter) { '\u{fffd}' } else { letter }).collect()
}

/// Returns the state of the connection to the controllers as text, with its cause and duration. If it is not sure that
/// an agent is connected now, the text begins with the reason and then shows the last known state. `now` is in seconds
/// since 1970.
fn connection_text(status: &StatusOutput, now: u64) -> String {
    let disconnect_reason = match status.agent_runs {
        // An outage of the controllers is not a reason to doubt the record, which contains the outage.
        Some(true) => status.untold.filter(|why| *why == NO_NETWORK_MESSAGE),
        Some(false) => Some(NO_AGENT_MESSAGE),
        None => Some("whether an agent runs on this host is not known"),
    };
    let Some(ConnectionRecord { state: connection_state, url, cause, since }) = &status.connection else {
        return disconnect_reason.unwrap_or("no outage recorded").to_owned();
    };
    let relation = match connection_state {
        ConnectionState::Connected => "connected to",
        ConnectionState::Unserved => "not served by",
        ConnectionState::Unknown => "no longer known to",
        ConnectionState::Shared => "shares its identity with another at",
    };
    let cause = if cause.is_empty() { String::new() } else { format!(": {cause}") };
    if let Some(disconnect_reason) = disconnect_reason {
        return format!("{disconnect_reason}; last known state: {relation} {url}{cause}");
    }
    format!("{relation} {url} for {}{cause}", duration_text(now.saturating_sub(*since)))
}

/// Returns the lines that explain the outcome of a task: the message, then the lines of the task's output without blank
/// lines at its end.
pub(super) fn reason_lines(reason: &Reason) -> impl Iterator<Item = &str> {
    std::iter::once(reason.message.as_str()).chain(reason.output.trim_end().lines())
}

/// Returns the name of an enum variant as words. For example, `DependencyFailed` becomes `dependency failed`.
pub fn words(variant: impl Debug) -> String {
    let mut text = String::new();
    for letter in format!("{variant:?}").chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push(' ');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

/// Serializes an enum variant by its name as words, like [`words`].
fn in_words<S: Serializer>(variant: &impl Debug, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&words(variant))
}

#[cfg(test)]
mod tests;
