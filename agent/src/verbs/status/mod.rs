//! `status`: what this host has and the state of its tasks, read from the ledger.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Display, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use serde::{Serialize, Serializer};
use stemma_core::digest::TaskDigest;
use stemma_core::status::{self, OrphanedPath, STUCK_FACT, TaskOutcome, TaskSummary};
use stemma_core::task::Mode;
use stemma_wire::error::is_format_character;
use stemma_wire::message::desired::{Known, ProfileTask};
use stemma_wire::message::observed::{LocalState, Outcome, Progress};

use super::membership::{Membership, read_membership};
use super::waits::waiting_tasks;
use super::{AgentExit, LocalHost, print, print_json};
use crate::apply::executor::{OBSERVED_MESSAGE, is_observed};
use crate::apply::ledger::{Accepted, Desired, LOCAL_STATE, PROGRESS, REASONS, REPORT, Reason, TaskRecord};
use crate::apply::orphans::{self, MAX_NAMED};
use crate::args::OutputFormat;
use crate::host::Host as _;
use crate::sync::{ConnectionRecord, ConnectionState};

/// Reason if no agent runs on this host.
const NO_AGENT_MESSAGE: &str = "no agent runs on this host";

/// Reason if the running agent cannot connect to its controllers.
const NO_NETWORK_MESSAGE: &str = "no agent is connected to its controllers, because its identity or key is damaged";

/// Reason if no controller answers.
const UNSERVED_MESSAGE: &str = "no controller serves it";

/// Finding about a host that its controllers no longer know.
const UNKNOWN_NODE_MESSAGE: &str = "its node was deleted, or its certificate was revoked: it gets no updates any more. To bring it back, \
     stop the agent, remove /var/lib/stemma-agent, and run `stemma-agent join` with a new token";

/// Explanation why a host does not begin its tasks.
const OBSERVE_SUFFIX: &str = ": its mode is observe, so no task is run or checked";

/// The JSON output. Names are those of `stemma resolve -o json`, so that the two can be compared.
#[derive(Serialize)]
struct StatusOutput {
    node: Option<String>,
    name: Option<String>,
    group: Option<String>,
    fleet: Option<String>,
    epoch: Option<String>,
    revision: Option<u64>,
    mode: Option<String>,
    /// The last reported progress, or `running` if tasks run and that was not reported yet.
    #[serde(serialize_with = "in_words")]
    progress: Progress,
    /// True if the tasks of this host are not known here yet: only labels arrived, or the tasks are on their way.
    #[serde(skip)]
    has_unknown_tasks: bool,
    /// The connection to the controllers at its last change. `null` if it was never stored, because there was no
    /// outage.
    connection: Option<ConnectionRecord>,
    /// True if an agent runs on this host. Without an agent, the state of the connection is unknown.
    agent_runs: Option<bool>,
    /// Why this host gets no updates. `null` if it gets updates, as far as is known on the host.
    untold: Option<&'static str>,
    paused: bool,
    /// True if an operator paused the node group or cluster of this host, so that no new task set is released to it.
    is_paused_by_operator: bool,
    /// Who parked this host, and why. `null` if it is not parked.
    parked: Option<String>,
    /// Why and for how long this host keeps its task set. `null` if there is no hold.
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
    /// Files that tasks wrote and that no task manages now.
    orphans: Vec<OrphanedPath>,
    /// True if identity or credentials are damaged. The first finding says which.
    is_damaged: bool,
    /// Why the agent can neither store nor apply its desired state. `null` if it can.
    stuck: Option<String>,
}

#[derive(Serialize)]
struct TaskOutput {
    id: String,
    /// `null` if the task has not ended yet on this host.
    outcome: Option<TaskEnd>,
    /// The barrier that the task, or an earlier task of this host, waits for. `null` if it waits for none.
    waits_for: Option<String>,
    /// The reason and the end of the output, if there is any.
    #[serde(flatten)]
    reason: Option<Reason>,
}

/// The outcome of a task on this host.
#[derive(Clone, Copy)]
pub(super) enum TaskEnd {
    /// Neither run nor checked, because of the task's own mode. Reported to controllers like a task that was only
    /// checked.
    Observed,
    /// The task was run or checked, with this outcome.
    Outcome(Outcome),
}

/// Prints the state of this host.
///
/// # Errors
/// Fails if the ledger cannot be read.
pub fn status(root: &Path, output: OutputFormat) -> Result<AgentExit> {
    let local = LocalHost::open(root)?;
    let status = collect(&local)?;
    match output {
        OutputFormat::Json => print_json(&status)?,
        OutputFormat::Human => print(&human_text(&status, local.host.unix_seconds()))?,
    }
    let failed = status.progress_word() == "failed";
    let is_stuck = status.stuck.is_some();
    Ok(if failed || is_stuck || status.is_damaged || status.is_unknown() { AgentExit::Failed } else { AgentExit::Done })
}

impl StatusOutput {
    /// Returns whether the controllers no longer know this host.
    fn is_unknown(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.state == ConnectionState::Unknown)
    }

    /// Returns the state in a few words: what a person wants to know first.
    fn state_text(&self) -> String {
        let parts = [
            self.paused.then(|| "paused on this host".to_owned()),
            self.is_paused_by_operator.then(|| "paused by an operator (its nodegroup or cluster)".to_owned()),
            self.parked.as_ref().map(|by| format!("parked {by}")),
            self.held.as_ref().map(|why| format!("held {why}")),
        ];
        let said: String = parts.into_iter().flatten().map(|said| format!(", {said}")).collect();
        if self.is_unknown() {
            return format!("no longer known to its controllers{said}; its tasks: {}", self.progress_word());
        }
        if let Some(why) = &self.stuck {
            return format!("stuck{said}: {why}");
        }
        let why = if self.is_observed() { OBSERVE_SUFFIX } else { "" };
        format!("{}{said}{why}", self.state_word())
    }

    /// Returns `unplaced`, as controllers do for a node in no nodegroup, or else the progress of the tasks.
    fn state_word(&self) -> &str {
        if self.is_unplaced() { "unplaced" } else { self.progress_word() }
    }

    /// Returns whether this host has the desired state of a node that is in no nodegroup.
    const fn is_unplaced(&self) -> bool {
        self.revision.is_some() && self.group.is_none()
    }

    /// Returns whether tasks of this host have not begun because its mode is `observe`.
    fn is_observed(&self) -> bool {
        let is_observe_mode = self.mode.as_ref().is_some_and(|mode| *mode == words(Mode::Observe));
        let is_idle = !self.is_unplaced() && self.progress == Progress::Idle;
        is_observe_mode && is_idle && self.tasks.iter().any(TaskOutput::is_pending)
    }

    /// Returns the progress of the tasks in the words that controllers use: the reported progress while tasks run or
    /// have failed, or else the combined outcome of the tasks.
    fn progress_word(&self) -> &'static str {
        let outcomes = (!self.has_unknown_tasks).then(|| self.tasks.iter().map(TaskOutput::node_outcome));
        match (self.progress, TaskSummary::from_outcomes(outcomes, true)) {
            (Progress::Running, _) => "running",
            (Progress::Failed, _) | (_, TaskSummary::Failed) => "failed",
            (_, TaskSummary::Incomplete) if !self.tasks.iter().any(TaskOutput::is_pending_here) => "waiting for other hosts",
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
    /// Returns whether the task has not ended and waits for no other host.
    fn is_pending_here(&self) -> bool {
        self.is_pending() && self.waits_for.is_none()
    }

    /// Returns whether the task has not ended.
    const fn is_pending(&self) -> bool {
        self.outcome.is_none()
    }

    /// Returns the outcome of the task as it counts for the state of the node.
    fn node_outcome(&self) -> Option<TaskOutcome> {
        self.outcome.map(|ended| match ended {
            // Controllers do not count such a task.
            TaskEnd::Observed => TaskOutcome::Succeeded,
            TaskEnd::Outcome(outcome) => outcome.to_task_outcome(),
        })
    }
}

impl TaskEnd {
    /// Returns the outcome of a task from its record.
    pub(super) fn from_record(task: &ProfileTask, record: &TaskRecord) -> Self {
        if is_observed(task) { Self::Observed } else { Self::Outcome(record.outcome) }
    }

    /// Returns the outcome of a task in an earlier task set, from the recorded outcome and reason.
    pub(super) fn from_earlier(outcome: Outcome, reason: Option<&Reason>) -> Self {
        let is_observed = outcome == Outcome::WouldChange && reason.is_some_and(|said| said.message == OBSERVED_MESSAGE);
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

/// Reads everything that `status` prints: from the ledger, the identity, the connection record and the host's files.
fn collect(local: &LocalHost) -> Result<StatusOutput> {
    let ledger = &local.site.ledger;
    let (identity, damage) = match read_membership(local)? {
        Membership::Member(member) => (Some(member.0), None),
        Membership::Damaged(identity, why) => (identity, Some(why)),
        Membership::NotJoined => (None, None),
    };
    let (is_damaged, connection) = (damage.is_some(), ConnectionRecord::load(&*local.host)?);
    let accepted = ledger.accepted()?;
    let report = ledger.get(&REPORT)?.unwrap_or_default();
    let stuck = stuck_reason(local)?;
    let held = accepted.as_ref().map(Accepted::desired);
    let profile = held.as_ref().map(|held| ledger.profile(held)).transpose()?.flatten();
    let has_unknown_tasks = profile.is_none() || held.as_ref().is_some_and(Desired::is_unreleased);
    let tasks = held.as_ref().map(|held| tasks(local, held)).transpose()?.unwrap_or_default();
    let local_state = ledger.get(&LOCAL_STATE)?.unwrap_or_default();
    let agent_runs = local.is_running();
    // Only an agent that started after the damage reports this finding. An agent that started before the damage is
    // still connected.
    let is_disconnected = damage.as_ref().is_some_and(|why| report.findings.contains(why));
    let is_member = identity.is_some() || is_damaged;
    let untold = is_member.then(|| disconnect_reason(agent_runs, is_disconnected, connection.as_ref())).flatten();
    let runs_tasks = agent_runs == Some(true)
        && stuck.is_none()
        && held.as_ref().is_some_and(|held| is_starting(report.progress, held, &local_state, &tasks));
    let hold = held.as_ref().map(|held| hold_text(held, &local_state, &tasks, local.host.unix_seconds()));
    let orphans = held.as_ref().map(|held| orphans(local, held)).transpose()?.unwrap_or_default();
    let mode = held.as_ref().map(|held| words(held.mode()));
    let is_held = held.is_some();
    let (known, set) = held.map(|held| (held.known, held.task_set)).unwrap_or_default();
    let (is_paused, parked) = (local_state.paused, parked_text(&known, local_state));
    Ok(StatusOutput {
        node: identity.as_ref().map(|identity| identity.node.to_string()),
        name: is_held.then_some(known.name),
        group: (!known.group.is_empty()).then_some(known.group),
        fleet: identity.map(|identity| identity.fleet),
        epoch: accepted.as_ref().map(|accepted| accepted.epoch.to_string()),
        revision: accepted.as_ref().map(|accepted| accepted.revision.0),
        mode,
        progress: match (agent_runs, report.progress) {
            _ if runs_tasks => Progress::Running,
            // The agent that reported running tasks has exited or was killed. So the outcomes of the tasks determine
            // the state.
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
        tags: set.tags,
        primary_tags: set.primaries,
        task_digest: is_held.then(|| TaskDigest(set.task_digest).to_string()),
        tasks,
        skipped: set.left_out,
        unacknowledged_results: ledger.results()?.len(),
        orphans,
        is_damaged,
        stuck,
    })
}

/// Returns why this host gets no updates, as far as is known on the host. There is no reason for a host that is unknown
/// to its controllers, because its state shows this already, and none for a host that shares its identity, because both
/// hosts get updates in turn.
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

/// Returns why the agent can neither store nor apply its desired state. Whether its state can be written, for example
/// on a full disk, is checked here: an agent reports this only when it has something to store, and none may run. Other
/// causes, such as labels that cannot be written, are in the last report.
///
/// # Errors
/// Fails if the ledger cannot be read.
pub(super) fn stuck_reason(local: &LocalHost) -> Result<Option<String>> {
    let ledger = &local.site.ledger;
    if let Err(failed) = ledger.check_writable() {
        return Ok(Some(failed.sentence()));
    }
    let report = ledger.get(&REPORT)?.unwrap_or_default();
    Ok(report.facts.get(STUCK_FACT).and_then(|fact| status::stuck_reason(fact)))
}

/// Returns the human-readable output of `status`, for tests.
#[cfg(test)]
pub(super) fn human_status(root: &Path) -> String {
    human_text(&collect(&LocalHost::open(root).unwrap()).unwrap(), 0)
}

/// Returns the findings about the membership, the findings of the last report, and the current findings about label
/// files, hooks, facts and certificate. Each sentence is listed once.
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

/// Returns the tasks of this host, in order, each with its outcome in the current task set, or with what it waits for.
fn tasks(local: &LocalHost, desired: &Desired) -> Result<Vec<TaskOutput>> {
    let ledger = &local.site.ledger;
    let profile = ledger.profile(desired)?.unwrap_or_default();
    let mut records = ledger.get(&PROGRESS)?.unwrap_or_default().tasks;
    records.retain(|_, ended| ended.task_set == desired.digest);
    let mut reasons = ledger.get(&REASONS)?.unwrap_or_default();
    let waiting = waiting_tasks(local, desired, &profile, &records)?;
    let here = profile.tasks.iter().filter(|task| desired.task_set.runs_task(&task.id));
    Ok(here
        .map(|task| {
            let outcome = records.get(&task.id).map(|ended| TaskEnd::from_record(task, ended));
            let reason = outcome.as_ref().and_then(|_| reasons.remove(&task.id));
            // Only a controller knows why the nodes of the barrier have not finished.
            let waits_for = waiting.get(task.id.as_str()).map(|barrier| status::barrier_text(&barrier.task, &barrier.selector));
            TaskOutput { outcome, reason, waits_for, id: task.id.clone() }
        })
        .collect())
}

/// Returns who parked this host, or `None` if it is not parked.
fn parked_text(known: &Known, local_state: LocalState) -> Option<String> {
    let on_host = local_state.parked.map(|why| format!("on this host ({why})"));
    if known.parked { Some("by an operator".to_owned()) } else { on_host }
}

/// Returns whether tasks run that were not reported yet. An agent reports running tasks only after half a second, so
/// that a shorter run needs neither a record nor a check-in. Until then its report is that of an idle host.
fn is_starting(reported: Progress, desired: &Desired, local_state: &LocalState, tasks: &[TaskOutput]) -> bool {
    let is_new = tasks.iter().all(TaskOutput::is_pending);
    let begins = match desired.mode() {
        Mode::Observe => false,
        // A host that found something that would change is idle, even while one of its tasks waits for a blob.
        Mode::Noop => is_new,
        Mode::Apply => true,
    };
    // The agent notices the end of a hold at its next reconcile.
    let is_held_back = is_new && local_state.hold.is_some();
    let is_stopped = local_state.paused || local_state.parked.is_some() || desired.known.parked || is_held_back;
    let is_idle = matches!(reported, Progress::Idle | Progress::Converged);
    is_idle && begins && !is_stopped && tasks.iter().any(TaskOutput::is_pending_here)
}

/// Returns the reason and the remaining time of a hold, or `None` without a hold. A hold on the host keeps back a task
/// set that has arrived and not begun. For an operator's hold, only a controller knows whether a newer task set waits.
fn hold_text(desired: &Desired, local_state: &LocalState, tasks: &[TaskOutput], now: u64) -> Option<String> {
    let in_force = |hold: &Option<(u64, String)>| hold.clone().filter(|(until, _)| *until > now);
    let is_new = tasks.iter().all(TaskOutput::is_pending) && !tasks.is_empty();
    let (until, why, keeps) = match (in_force(&local_state.hold), in_force(&desired.known.hold)) {
        (Some((until, why)), _) | (None, Some((until, why))) if desired.is_unreleased() => {
            (until, why, "no task set was released yet")
        }
        (Some((until, why)), _) if is_new => (until, why, "a newer task set waits"),
        (Some((until, why)), _) | (None, Some((until, why))) => (until, why, "it keeps its task set"),
        (None, None) => return None,
    };
    let time =
        if until == u64::MAX { "until that is ended".to_owned() } else { format!("for {} more", duration_text(until - now)) };
    let why = if why.is_empty() { why } else { format!("({why}) ") };
    Some(format!("{why}{time}: {keeps}"))
}

/// Returns a duration in words.
fn duration_text(seconds: u64) -> String {
    match seconds / 60 {
        0 => "less than a minute".to_owned(),
        minutes @ 1..120 => format!("{minutes} min"),
        minutes @ 120.. => format!("{} h", minutes / 60),
    }
}

/// Returns the files that tasks wrote and that no task manages now.
fn orphans(local: &LocalHost, desired: &Desired) -> Result<Vec<OrphanedPath>> {
    let Some(profile) = local.site.ledger.profile(desired)? else { return Ok(Vec::new()) };
    Ok(orphans::orphans(&local.site, desired, &profile)?)
}

/// Returns the output of `status` for people, one field per line.
fn human_text(status: &StatusOutput, now: u64) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        writeln!(text, "{key:<10}{}", escape_terminal(value)).expect("a String takes all");
    };
    let unknown = || "-".to_owned();
    let no_node = if status.is_damaged { "its identity is damaged" } else { "has not joined a fleet" };
    line("node", status.node.as_deref().unwrap_or(no_node));
    line("name", &status.name.clone().unwrap_or_else(unknown));
    line("group", &status.group.clone().unwrap_or_else(unknown));
    match (&status.epoch, status.revision) {
        (Some(epoch), Some(revision)) => line("holds", &format!("revision {revision} of epoch {}", &epoch[..8])),
        _ => line("holds", "nothing yet"),
    }
    line("mode", status.mode.as_deref().unwrap_or("-"));
    line("state", &status.state_text());
    if status.node.is_some() || status.is_damaged {
        line("contact", &connection_text(status, now));
    }
    if let Some(why) = status.untold {
        line("untold", &format!("it gets no updates: {why}"));
    }
    line("labels", &status.labels.len().to_string());
    line("traits", &status.traits.len().to_string());
    line("tags", &status.tags.join(" "));
    for task in &status.tasks {
        let ended = task.outcome.map(|ended| ended.to_string());
        let ended = ended.or_else(|| Some(format!("waiting for {}", task.waits_for.as_ref()?)));
        line("task", &format!("{:<24} {}", task.id, ended.as_deref().unwrap_or("not yet")));
        for said in task.reason.iter().flat_map(reason_lines) {
            line("", &format!("  {said}"));
        }
    }
    for (id, why) in &status.skipped {
        line("skipped", &format!("{id:<24} {why}"));
    }
    for OrphanedPath { task, path } in status.orphans.iter().take(MAX_NAMED) {
        line("orphaned", &format!("{task:<24} {path}"));
    }
    if status.orphans.len() > MAX_NAMED {
        line("orphaned", &format!("and {} more files", status.orphans.len() - MAX_NAMED));
    }
    if status.unacknowledged_results > 0 {
        line("results", &format!("{} not yet acknowledged by a controller", status.unacknowledged_results));
    }
    for finding in &status.findings {
        line("finding", finding);
    }
    text
}

/// Replaces control and formatting characters, so that a terminal does not obey file names, keys or command output
/// (S60).
pub(super) fn escape_terminal(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_format_character(c) { '\u{fffd}' } else { c }).collect()
}

/// Returns the state of the connection to the controllers.
fn connection_text(status: &StatusOutput, now: u64) -> String {
    let silent = match status.agent_runs {
        Some(true) => status.untold.filter(|why| *why == NO_NETWORK_MESSAGE),
        Some(false) => Some(NO_AGENT_MESSAGE),
        None => Some("whether an agent runs on this host is not known"),
    };
    let Some(ConnectionRecord { state: standing, url, cause, since }) = &status.connection else {
        return silent.unwrap_or("no outage noted").to_owned();
    };
    let what = match standing {
        ConnectionState::Connected => "connected to",
        ConnectionState::Unserved => "not served by",
        ConnectionState::Unknown => "no longer known to",
        ConnectionState::Shared => "shares its identity with another at",
    };
    let cause = if cause.is_empty() { String::new() } else { format!(": {cause}") };
    if let Some(silent) = silent {
        return format!("{silent}; last known state: {what} {url}{cause}");
    }
    format!("{what} {url} for {}{cause}", duration_text(now.saturating_sub(*since)))
}

/// Returns the lines that explain the outcome of a task, without blank lines at the end of its output.
pub(super) fn reason_lines(reason: &Reason) -> impl Iterator<Item = &str> {
    std::iter::once(reason.message.as_str()).chain(reason.output.trim_end().lines())
}

/// Returns the name of a variant as words: `DependencyFailed` is `dependency failed`.
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

/// Serializes a variant by its name as words.
fn in_words<S: Serializer>(variant: &impl Debug, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&words(variant))
}

#[cfg(test)]
mod tests;
