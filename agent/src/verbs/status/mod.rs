//! `status`: what this host holds, and where it stands, from the ledger alone.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Display, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use serde::{Serialize, Serializer};
use stemma_core::digest::TaskDigest;
use stemma_core::status::{self, Orphan, STUCK, TaskOutcome, Tasks};
use stemma_core::task::Mode;
use stemma_wire::error::is_formatting;
use stemma_wire::message::desired::{Known, ProfileTask};
use stemma_wire::message::observed::{LocalState, Outcome, Progress};

use super::membership::{Membership, membership};
use super::waits::waiting;
use super::{Exit, Local, print, print_json};
use crate::apply::executor::{OBSERVED, is_observed};
use crate::apply::ledger::{Accepted, Desired, LOCAL, PROGRESS, Performed, REASONS, REPORT, Reason};
use crate::apply::orphans::{self, MOST_NAMED};
use crate::args::Output;
use crate::host::Host as _;
use crate::sync::{Connection, Standing};

/// Why nobody on this host asks its controllers.
const NO_AGENT: &str = "no agent runs on this host";

/// Why the agent that runs asks nobody.
const APART: &str = "no agent speaks with its controllers, since its identity or key is damaged";

/// Why a host hears nothing from those that it asks.
const UNSERVED: &str = "no controller serves it";

/// What to do on a host that its controllers no longer know.
const FORGOTTEN: &str = "its node was deleted, or its certificate was revoked: nothing that it holds changes any more. To bring it back, \
     stop the agent, remove /var/lib/stemma-agent, and run `stemma-agent join` with a new token";

/// Why tasks do not end on a host that does not begin them.
const OBSERVES: &str = ": its mode is observe, so no task is run or checked";

/// What is printed as JSON: the names are those of `stemma resolve -o json`, so that the two can be compared.
#[derive(Serialize)]
struct Status {
    node: Option<String>,
    name: Option<String>,
    group: Option<String>,
    fleet: Option<String>,
    epoch: Option<String>,
    revision: Option<u64>,
    mode: Option<String>,
    /// As it was reported last, or `running` where tasks run and that was not reported yet.
    #[serde(serialize_with = "in_words")]
    progress: Progress,
    /// Whether nobody knows here which tasks it has: nothing came yet but labels, or they are on their way.
    #[serde(skip)]
    lacks_tasks: bool,
    /// How it stood with its controllers when that last changed; `null`: it was never noted, because no outage was.
    connection: Option<Connection>,
    /// Whether an agent runs on this host now; where none does, nobody knows how the controllers stand to it.
    agent_runs: Option<bool>,
    /// Why it is not told what changes; `null`: it is, as far as is known here.
    untold: Option<&'static str>,
    paused: bool,
    /// Whether an operator paused its nodegroup or cluster: no new task set is released to it.
    is_paused_by_operator: bool,
    /// By whom it is parked, and why; `null`: it is not.
    parked: Option<String>,
    /// Why it keeps its task set, and for how long; `null`: nothing holds it.
    held: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    traits: Vec<String>,
    tags: Vec<String>,
    primary_tags: Vec<String>,
    task_digest: Option<String>,
    tasks: Vec<Task>,
    skipped: BTreeMap<String, Arc<str>>,
    unacknowledged_results: usize,
    findings: Vec<String>,
    /// Files that tasks wrote and that no task keeps now.
    orphans: Vec<Orphan>,
    /// Whether identity or credentials are damaged; the first finding says which.
    is_damaged: bool,
    /// Why the agent can neither keep nor apply what it is told; `null`: it can.
    stuck: Option<String>,
}

#[derive(Serialize)]
struct Task {
    id: String,
    /// `null`: it has not ended yet on this host.
    outcome: Option<Ended>,
    /// What it waits for on other nodes, itself or behind another task of this host; `null`: for nothing there.
    waits_for: Option<String>,
    /// Why, and the end of its output, where there is something to say.
    #[serde(flatten)]
    reason: Option<Reason>,
}

/// How a task ended on this host.
#[derive(Clone, Copy)]
pub(super) enum Ended {
    /// It is neither run nor checked, by its own mode. Controllers are told of it as of one that was only checked.
    Observed,
    /// Any other.
    As(Outcome),
}

/// Prints where this host stands.
///
/// # Errors
/// When the ledger cannot be read.
pub fn status(root: &Path, output: Output) -> Result<Exit> {
    let local = Local::open(root)?;
    let status = collect(&local)?;
    match output {
        Output::Json => print_json(&status)?,
        Output::Human => print(&human(&status, local.host.unix_seconds()))?,
    }
    let failed = status.progress() == "failed";
    let is_stuck = status.stuck.is_some();
    Ok(if failed || is_stuck || status.is_damaged || status.is_unknown() { Exit::Failed } else { Exit::Done })
}

impl Status {
    /// Whether the controllers no longer know this host.
    fn is_unknown(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.standing == Standing::Unknown)
    }

    /// In a few words, what a person wants to know first.
    fn state(&self) -> String {
        let said = [
            self.paused.then(|| "paused on this host".to_owned()),
            self.is_paused_by_operator.then(|| "paused by an operator (its nodegroup or cluster)".to_owned()),
            self.parked.as_ref().map(|by| format!("parked {by}")),
            self.held.as_ref().map(|why| format!("held {why}")),
        ];
        let said: String = said.into_iter().flatten().map(|said| format!(", {said}")).collect();
        if self.is_unknown() {
            return format!("no longer known to its controllers{said}; its tasks: {}", self.progress());
        }
        if let Some(why) = &self.stuck {
            return format!("stuck{said}: {why}");
        }
        let why = if self.is_observed() { OBSERVES } else { "" };
        format!("{}{said}{why}", self.word())
    }

    /// As controllers call it where it is in no nodegroup; else where it stands with its tasks.
    fn word(&self) -> &str {
        if self.is_unplaced() { "unplaced" } else { self.progress() }
    }

    /// Whether it holds the desired state of a node that is in no nodegroup.
    const fn is_unplaced(&self) -> bool {
        self.revision.is_some() && self.group.is_none()
    }

    /// Whether there are tasks that it does not begin, by its mode.
    fn is_observed(&self) -> bool {
        let is_of_mode = self.mode.as_ref().is_some_and(|mode| *mode == words(Mode::Observe));
        let is_at_rest = !self.is_unplaced() && self.progress == Progress::Idle;
        is_of_mode && is_at_rest && self.tasks.iter().any(Task::is_open)
    }

    /// Where it stands with its tasks: what it reported of a run, or else what became of them together, as controllers say it.
    fn progress(&self) -> &'static str {
        let outcomes = (!self.lacks_tasks).then(|| self.tasks.iter().map(Task::of_node));
        match (self.progress, Tasks::of(outcomes, true)) {
            (Progress::Running, _) => "running",
            (Progress::Failed, _) | (_, Tasks::Failed) => "failed",
            (_, Tasks::Incomplete) if !self.tasks.iter().any(Task::is_open_here) => "waiting for other hosts",
            (_, Tasks::Drifted) => "drifted",
            (Progress::Waiting, _) | (_, Tasks::Incomplete | Tasks::NotReleased | Tasks::Unreported) => "waiting",
            (_, Tasks::WouldChange) => "noop",
            (Progress::Idle | Progress::Converged, Tasks::NothingToRun | Tasks::Succeeded) => "converged",
        }
    }
}

impl Task {
    /// Whether it has not ended, and waits for no other host.
    fn is_open_here(&self) -> bool {
        self.is_open() && self.waits_for.is_none()
    }

    /// Whether it has not ended.
    const fn is_open(&self) -> bool {
        self.outcome.is_none()
    }

    /// What its end means for the state of its node.
    fn of_node(&self) -> Option<TaskOutcome> {
        self.outcome.map(|ended| match ended {
            // Controllers do not count it.
            Ended::Observed => TaskOutcome::Succeeded,
            Ended::As(outcome) => outcome.of_node(),
        })
    }
}

impl Ended {
    /// How a task ended that was performed so.
    pub(super) fn of(task: &ProfileTask, performed: &Performed) -> Self {
        if is_observed(task) { Self::Observed } else { Self::As(performed.outcome) }
    }

    /// How a task ended that was performed in an earlier task set, by what was said of that.
    pub(super) fn before(outcome: Outcome, said: Option<&Reason>) -> Self {
        let is_observed = outcome == Outcome::WouldChange && said.is_some_and(|said| said.message == OBSERVED);
        if is_observed { Self::Observed } else { Self::As(outcome) }
    }
}

impl Display for Ended {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Observed => to.write_str("observed"),
            Self::As(outcome) => to.write_str(&words(outcome)),
        }
    }
}

impl Serialize for Ended {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn collect(local: &Local) -> Result<Status> {
    let ledger = &local.site.ledger;
    let (identity, damage) = match membership(local)? {
        Membership::Member(member) => (Some(member.0), None),
        Membership::Damaged(identity, why) => (identity, Some(why)),
        Membership::NotJoined => (None, None),
    };
    let (is_damaged, connection) = (damage.is_some(), Connection::load(&*local.host)?);
    let accepted = ledger.accepted()?;
    let report = ledger.get(&REPORT)?.unwrap_or_default();
    let stuck = stuck(local)?;
    let held = accepted.as_ref().map(Accepted::desired);
    let profile = held.as_ref().map(|held| ledger.profile(held)).transpose()?.flatten();
    let lacks_tasks = profile.is_none() || held.as_ref().is_some_and(Desired::is_unreleased);
    let tasks = held.as_ref().map(|held| tasks(local, held)).transpose()?.unwrap_or_default();
    let said = ledger.get(&LOCAL)?.unwrap_or_default();
    let agent_runs = local.is_running();
    // One that started before the damage still speaks with them, and reports nothing of it.
    let is_apart = damage.as_ref().is_some_and(|why| report.findings.contains(why));
    let is_member = identity.is_some() || is_damaged;
    let untold = is_member.then(|| untold(agent_runs, is_apart, connection.as_ref())).flatten();
    let runs_tasks = agent_runs == Some(true)
        && stuck.is_none()
        && held.as_ref().is_some_and(|held| is_beginning(report.progress, held, &said, &tasks));
    let words_of_hold = held.as_ref().map(|held| words_of_hold(held, &said, &tasks, local.host.unix_seconds()));
    let orphans = held.as_ref().map(|held| orphans(local, held)).transpose()?.unwrap_or_default();
    let mode = held.as_ref().map(|held| words(held.mode()));
    let is_held = held.is_some();
    let (known, set) = held.map(|held| (held.known, held.task_set)).unwrap_or_default();
    let (is_paused, parked) = (said.paused, parked(&known, said));
    Ok(Status {
        node: identity.as_ref().map(|identity| identity.node.to_string()),
        name: is_held.then_some(known.name),
        group: (!known.group.is_empty()).then_some(known.group),
        fleet: identity.map(|identity| identity.fleet),
        epoch: accepted.as_ref().map(|accepted| accepted.epoch.to_string()),
        revision: accepted.as_ref().map(|accepted| accepted.revision.0),
        mode,
        progress: match (agent_runs, report.progress) {
            _ if runs_tasks => Progress::Running,
            // Who reported it has stopped or was killed: what became of the tasks says where they stand.
            (Some(false), Progress::Running) => Progress::Idle,
            (_, reported) => reported,
        },
        lacks_tasks,
        findings: findings(local, damage, connection.as_ref(), report.findings),
        connection,
        agent_runs,
        untold,
        paused: is_paused,
        is_paused_by_operator: known.paused,
        parked,
        held: words_of_hold.flatten(),
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

/// Why this host is not told what changes, as far as is known here. Of one that its controllers no longer know its state says so, and one
/// that shares its identity is told in turn with the other.
fn untold(agent_runs: Option<bool>, is_apart: bool, connection: Option<&Connection>) -> Option<&'static str> {
    match (agent_runs, connection.map(|connection| connection.standing)) {
        (Some(false), _) => Some(NO_AGENT),
        (Some(true), _) if is_apart => Some(APART),
        (Some(true), Some(Standing::Unserved)) => Some(UNSERVED),
        (Some(true), None | Some(Standing::Connected | Standing::Unknown | Standing::Shared)) | (None, _) => None,
    }
}

/// Why the agent can neither keep nor apply what it is told. That its own state cannot be kept now, as on a full disk, is found here: an agent
/// says so when it has something to keep, and none may run. Of anything else, as labels that it cannot write, the last report says.
///
/// # Errors
/// When the ledger cannot be read.
pub(super) fn stuck(local: &Local) -> Result<Option<String>> {
    let ledger = &local.site.ledger;
    if let Err(failed) = ledger.check_writable() {
        return Ok(Some(failed.sentence()));
    }
    let report = ledger.get(&REPORT)?.unwrap_or_default();
    Ok(report.facts.get(STUCK).and_then(|fact| status::stuck(fact)))
}

/// What is printed for people.
#[cfg(test)]
pub(super) fn shown(root: &Path) -> String {
    human(&collect(&Local::open(root).unwrap()).unwrap(), 0)
}

/// What people should know: of the membership, as it was last reported, and of the host's own label files and hooks as they are now.
fn findings(
    local: &Local,
    damage: Option<String>,
    connection: Option<&Connection>,
    reported: Vec<String>,
) -> Vec<String> {
    let is_unknown = connection.is_some_and(|connection| connection.standing == Standing::Unknown);
    let mut findings: Vec<String> = damage.into_iter().chain(is_unknown.then(|| FORGOTTEN.to_owned())).collect();
    for finding in reported.into_iter().chain(crate::sync::findings(&*local.host)) {
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    findings
}

/// The tasks that run here, in order, each with how it last ended in the present task set, or what it waits for.
fn tasks(local: &Local, held: &Desired) -> Result<Vec<Task>> {
    let ledger = &local.site.ledger;
    let profile = ledger.profile(held)?.unwrap_or_default();
    let mut performed = ledger.get(&PROGRESS)?.unwrap_or_default().tasks;
    performed.retain(|_, ended| ended.task_set == held.digest);
    let mut reasons = ledger.get(&REASONS)?.unwrap_or_default();
    let waiting = waiting(local, held, &profile, &performed)?;
    let here = profile.tasks.iter().filter(|task| held.task_set.runs(&task.id));
    Ok(here
        .map(|task| {
            let outcome = performed.get(&task.id).map(|ended| Ended::of(task, ended));
            let reason = outcome.as_ref().and_then(|_| reasons.remove(&task.id));
            // Why the nodes there are not done, a controller knows alone.
            let waits_for =
                waiting.get(task.id.as_str()).map(|barrier| status::barrier(&barrier.task, &barrier.selector));
            Task { outcome, reason, waits_for, id: task.id.clone() }
        })
        .collect())
}

/// Who parked this host.
fn parked(known: &Known, said: LocalState) -> Option<String> {
    let on_host = said.parked.map(|why| format!("on this host ({why})"));
    if known.parked { Some("by an operator".to_owned()) } else { on_host }
}

/// Whether tasks run that no report tells of yet. An agent reports that it runs tasks when that takes half a second: a run that ends before that
/// costs neither a record nor a check-in. Until then its report is that of a host at rest.
fn is_beginning(reported: Progress, held: &Desired, said: &LocalState, tasks: &[Task]) -> bool {
    let is_new = tasks.iter().all(Task::is_open);
    let begins = match held.mode() {
        Mode::Observe => false,
        // One that has found something that would change is at rest, also while a task of it waits for a blob.
        Mode::Noop => is_new,
        Mode::Apply => true,
    };
    // That a hold has ended is seen at the next look.
    let is_held_back = is_new && said.hold.is_some();
    let is_stopped = said.paused || said.parked.is_some() || held.known.parked || is_held_back;
    let is_at_rest = matches!(reported, Progress::Idle | Progress::Converged);
    is_at_rest && begins && !is_stopped && tasks.iter().any(Task::is_open_here)
}

/// Why the task set stays as it is, and for how long. One that was said on the host holds back a task set that has come and not begun; of an
/// operator's hold only a controller knows whether a newer one waits.
fn words_of_hold(held: &Desired, said: &LocalState, tasks: &[Task], now: u64) -> Option<String> {
    let in_force = |hold: &Option<(u64, String)>| hold.clone().filter(|(until, _)| *until > now);
    let is_new = tasks.iter().all(Task::is_open) && !tasks.is_empty();
    let (until, why, keeps) = match (in_force(&said.hold), in_force(&held.known.hold)) {
        (Some((until, why)), _) | (None, Some((until, why))) if held.is_unreleased() => {
            (until, why, "no task set has come yet")
        }
        (Some((until, why)), _) if is_new => (until, why, "a newer task set waits"),
        (Some((until, why)), _) | (None, Some((until, why))) => (until, why, "it keeps its task set"),
        (None, None) => return None,
    };
    let time =
        if until == u64::MAX { "until that is ended".to_owned() } else { format!("for {} more", span(until - now)) };
    let why = if why.is_empty() { why } else { format!("({why}) ") };
    Some(format!("{why}{time}: {keeps}"))
}

/// A time of so many seconds, in words.
fn span(seconds: u64) -> String {
    match seconds / 60 {
        0 => "less than a minute".to_owned(),
        minutes @ 1..120 => format!("{minutes} min"),
        minutes @ 120.. => format!("{} h", minutes / 60),
    }
}

fn orphans(local: &Local, held: &Desired) -> Result<Vec<Orphan>> {
    let Some(profile) = local.site.ledger.profile(held)? else { return Ok(Vec::new()) };
    Ok(orphans::orphans(&local.site, held, &profile)?)
}

fn human(status: &Status, now: u64) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        writeln!(text, "{key:<10}{}", printable(value)).expect("a String takes all");
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
    line("state", &status.state());
    if status.node.is_some() || status.is_damaged {
        line("contact", &contact(status, now));
    }
    if let Some(why) = status.untold {
        line("untold", &format!("it is not told what changes: {why}"));
    }
    line("labels", &status.labels.len().to_string());
    line("traits", &status.traits.len().to_string());
    line("tags", &status.tags.join(" "));
    for task in &status.tasks {
        let ended = task.outcome.map(|ended| ended.to_string());
        let ended = ended.or_else(|| Some(format!("waiting for {}", task.waits_for.as_ref()?)));
        line("task", &format!("{:<24} {}", task.id, ended.as_deref().unwrap_or("not yet")));
        for said in task.reason.iter().flat_map(sentences) {
            line("", &format!("  {said}"));
        }
    }
    for (id, why) in &status.skipped {
        line("skipped", &format!("{id:<24} {why}"));
    }
    for Orphan { task, path } in status.orphans.iter().take(MOST_NAMED) {
        line("orphaned", &format!("{task:<24} {path}"));
    }
    if status.orphans.len() > MOST_NAMED {
        line("orphaned", &format!("and {} more files", status.orphans.len() - MOST_NAMED));
    }
    if status.unacknowledged_results > 0 {
        line("results", &format!("{} not yet taken by a controller", status.unacknowledged_results));
    }
    for finding in &status.findings {
        line("finding", finding);
    }
    text
}

/// Names of files, of other people's keys and what commands put out stand in it: a terminal obeys nothing of them (S60).
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_formatting(c) { '\u{fffd}' } else { c }).collect()
}

/// How it stands with its controllers.
fn contact(status: &Status, now: u64) -> String {
    let silent = match status.agent_runs {
        Some(true) => status.untold.filter(|why| *why == APART),
        Some(false) => Some(NO_AGENT),
        None => Some("whether an agent runs on this host is not known"),
    };
    let Some(Connection { standing, url, cause, since }) = &status.connection else {
        return silent.unwrap_or("no outage noted").to_owned();
    };
    let what = match standing {
        Standing::Connected => "connected to",
        Standing::Unserved => "not served by",
        Standing::Unknown => "no longer known to",
        Standing::Shared => "shares its identity with another at",
    };
    let cause = if cause.is_empty() { String::new() } else { format!(": {cause}") };
    if let Some(silent) = silent {
        return format!("{silent}; when one last did, it was {what} {url}{cause}");
    }
    format!("{what} {url} for {}{cause}", span(now.saturating_sub(*since)))
}

/// Why a task ended as it did, a line each; blank lines at the end of its output say nothing.
pub(super) fn sentences(reason: &Reason) -> impl Iterator<Item = &str> {
    std::iter::once(reason.message.as_str()).chain(reason.output.trim_end().lines())
}

/// The name of a variant as people read it: `DependencyFailed` is `dependency failed`.
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

/// Serializes a variant by its name as people read it.
fn in_words<S: Serializer>(variant: &impl Debug, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&words(variant))
}

#[cfg(test)]
mod tests;
