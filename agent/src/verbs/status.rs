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
use crate::apply::executor::is_observed;
use crate::apply::ledger::{Accepted, Desired, LOCAL, PROGRESS, Performed, REASONS, REPORT, Reason};
use crate::apply::orphans::{self, MOST_NAMED};
use crate::args::Output;
use crate::host::Host as _;
use crate::sync::{Connection, Standing};

/// What is known of the controllers where nobody asks them.
const NO_AGENT: &str = "no agent runs on this host";

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
    /// Whether nobody knows here which tasks it has: nothing came yet, or they are on their way.
    #[serde(skip)]
    lacks_tasks: bool,
    /// How it stood with its controllers when that last changed; `null`: it was never noted, because no outage was.
    connection: Option<Connection>,
    /// Whether an agent runs on this host now; where none does, nobody knows how the controllers stand to it.
    agent_runs: Option<bool>,
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
    let stuck = stuck(local).or_else(|| report.facts.get(STUCK).and_then(|fact| status::stuck(fact)));
    let held = accepted.as_ref().map(Accepted::desired);
    let lacks_tasks = held.as_ref().map(|held| ledger.profile(held)).transpose()?.flatten().is_none();
    let tasks = held.as_ref().map(|held| tasks(local, held)).transpose()?.unwrap_or_default();
    let said = ledger.get(&LOCAL)?.unwrap_or_default();
    let agent_runs = local.is_running();
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
        progress: if runs_tasks { Progress::Running } else { report.progress },
        lacks_tasks,
        findings: findings(local, damage, connection.as_ref(), report.findings),
        connection,
        agent_runs,
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

/// Why the agent's own state cannot be kept now, as on a full disk: an agent says so when it has something to keep, and none may run.
pub(super) fn stuck(local: &Local) -> Option<String> {
    local.site.ledger.check_writable().err().map(|failed| failed.sentence())
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
    if status.node.is_some() {
        line("contact", &contact(status, now));
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
        Some(true) => None,
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

/// Why a task ended as it did, a line each.
pub(super) fn sentences(reason: &Reason) -> impl Iterator<Item = &str> {
    std::iter::once(reason.message.as_str()).chain(reason.output.lines())
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
mod tests {
    use stemma_wire::message::desired::Barrier;

    use super::*;
    use crate::apply::testing::{Set, joined};
    use crate::host::HostPath;
    use crate::host::atomic::{Attributes, ensure_dir, replace};

    const CHANGED: Option<Ended> = Some(Ended::As(Outcome::Changed));
    const WOULD_CHANGE: Option<Ended> = Some(Ended::As(Outcome::WouldChange));
    const FAILED: Option<Ended> = Some(Ended::As(Outcome::Failed));
    const DRIFTED: Option<Ended> = Some(Ended::As(Outcome::Drifted));

    /// A task that ended so, or waits for this.
    fn task(outcome: Option<Ended>, waits_for: Option<&str>) -> Task {
        Task { id: "t".to_owned(), outcome, waits_for: waits_for.map(str::to_owned), reason: None }
    }

    /// It was shown until a label changed.
    #[test]
    fn y08_a_hook_that_is_not_run_is_shown_while_it_is_there() {
        use std::os::unix::fs::PermissionsExt as _;

        let root = tempfile::tempdir().unwrap();
        let host = joined(root.path(), &Set::default());
        ensure_dir(&*host, &HostPath::own("/etc/stemma/hooks.d"), 0o755).unwrap();
        let is_shown = || shown(root.path()).contains("/etc/stemma/hooks.d: left out by their names: \"10-a.sh\"");
        let hook = root.path().join("etc/stemma/hooks.d/10-a.sh");
        assert!(!is_shown());
        std::fs::write(&hook, "").unwrap();
        assert!(!is_shown(), "it cannot be executed");
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(is_shown());
        std::fs::remove_file(&hook).unwrap();
        assert!(!is_shown());
    }

    #[test]
    fn w08_a_host_that_its_controllers_no_longer_know_says_so_and_is_no_success() {
        let root = tempfile::tempdir().unwrap();
        let host = joined(root.path(), &Set::default());
        assert_eq!(status(root.path(), Output::Human).unwrap(), Exit::Done);
        let dir = ensure_dir(&*host, &HostPath::own("/var/lib/stemma-agent/sync"), 0o700).unwrap();
        for (standing, exit, said, without) in [
            ("connected", Exit::Done, "connected to https://c:1 for 2 min: x", "it was connected to https://c:1: x"),
            ("unserved", Exit::Done, "not served by https://c:1 for 2 min: x", "it was not served by https://c:1: x"),
            (
                "unknown",
                Exit::Failed,
                "state     no longer known to its controllers; its tasks: converged",
                "`stemma-agent join`",
            ),
            (
                "shared",
                Exit::Done,
                "shares its identity with another at https://c:1",
                "no agent runs on this host; when",
            ),
        ] {
            let noted = serde_json::json!({"standing": standing, "url": "https://c:1", "cause": "x", "since": 1000});
            replace(&*host, &*dir, "connection.json", noted.to_string().as_bytes(), &Attributes::mode(0o600)).unwrap();
            assert_eq!(status(root.path(), Output::Human).unwrap(), exit, "{standing}");
            let found = collect(&Local::open(root.path()).unwrap()).unwrap();
            let text = human(&found, 1150);
            assert!(text.contains(without) && !text.contains("for 2 min"), "no agent runs: {text}");
            let text = human(&Status { agent_runs: None, ..found }, 1150);
            assert!(text.contains("whether an agent runs on this host is not known; when"), "{text}");
            let text =
                human(&Status { agent_runs: Some(true), ..collect(&Local::open(root.path()).unwrap()).unwrap() }, 1150);
            assert!(text.contains(said), "{text}");
        }
    }

    /// The host said `converged` or `idle` alone, which is no state, whatever an operator had said of it.
    #[test]
    fn y06_status_says_held_paused_by_an_operator_and_parked() {
        let now = 1_800_000_000;
        let hold = |seconds: u64| Some((now + seconds, "a disk".to_owned()));
        let text = "a disk".to_owned();
        let (done, new) = (vec![task(CHANGED, None)], vec![task(None, None)]);
        let nothing = LocalState::default;
        for (known, said, tasks, expected) in [
            (Known::default(), nothing(), &done, ""),
            (
                Known { hold: hold(7200), ..Known::default() },
                nothing(),
                &new,
                ", held (a disk) for 2 h more: it keeps its task set",
            ),
            (Known { hold: Some((now, text.clone())), ..Known::default() }, nothing(), &done, ""),
            (
                Known { hold: Some((u64::MAX, String::new())), paused: true, ..Known::default() },
                nothing(),
                &done,
                ", paused by an operator (its nodegroup or cluster), held until that is ended: it keeps its task set",
            ),
            (
                Known::default(),
                LocalState { hold: hold(60), ..nothing() },
                &new,
                ", held (a disk) for 1 min more: a newer task set waits",
            ),
            (
                Known::default(),
                LocalState { hold: hold(60), ..nothing() },
                &done,
                ", held (a disk) for 1 min more: it keeps its task set",
            ),
            (Known { parked: true, ..Known::default() }, nothing(), &done, ", parked by an operator"),
            (
                Known::default(),
                LocalState { parked: Some(text), paused: true, ..nothing() },
                &done,
                ", paused on this host, parked on this host (a disk)",
            ),
        ] {
            let root = tempfile::tempdir().unwrap();
            joined(root.path(), &Set::default());
            let status = collect(&Local::open(root.path()).unwrap()).unwrap();
            let held = words_of_hold(&Desired { known: known.clone(), ..Set::default().desired() }, &said, tasks, now);
            let is_paused_by_operator = known.paused;
            let status =
                Status { is_paused_by_operator, paused: said.paused, parked: parked(&known, said), held, ..status };
            assert_eq!(status.state(), format!("converged{expected}"));
        }
    }

    #[test]
    fn y06_a_task_at_a_barrier_says_what_it_waits_for_and_so_does_what_comes_after_it() {
        let root = tempfile::tempdir().unwrap();
        let barrier = Barrier { task: "db-up".into(), selector: "tags db".into() };
        let set = Set::default().command("app", &[], &["true"]).behind(barrier).marker("m", &[0]);
        joined(root.path(), &set.command("conf", &[1], &["true"]).command("free", &[], &["true"]));
        let text = shown(root.path());
        for line in [
            "app                      waiting for db-up on tags db",
            "conf                     waiting for db-up on tags db",
            "free                     not yet",
        ] {
            assert!(text.contains(&format!("task      {line}\n")), "{text}");
        }
        for (selector, said) in [
            ("stage", "stage t"),
            ("anywhere", "t on every node that has it"),
            ("*", "t on every node with a role or a tag"),
            ("any of roles x", "t on any of roles x"),
            ("any of anywhere", "t on any node that has it"),
            ("any of *", "t on any node with a role or a tag"),
        ] {
            let root = tempfile::tempdir().unwrap();
            let barrier = Barrier { task: "t".into(), selector: selector.into() };
            joined(root.path(), &Set::default().command("app", &[], &["true"]).behind(barrier));
            let text = shown(root.path());
            assert!(text.contains(&format!("waiting for {said}\n")), "{text}");
        }
    }

    /// It said `waiting` and `converged`, where its controllers said that it is blocked, drifted or in noop.
    #[test]
    fn y06_the_state_says_whom_all_that_is_open_waits_for_and_that_a_task_would_change_or_drifted() {
        let root = tempfile::tempdir().unwrap();
        joined(root.path(), &Set::default());
        let (done, would, open) = ((CHANGED, None), (WOULD_CHANGE, None), (None, None));
        let (behind, drifted) = ((None, Some("a on tags x")), (DRIFTED, None));
        for (progress, tasks, state) in [
            (Progress::Waiting, vec![done, behind], "waiting for other hosts"),
            (Progress::Waiting, vec![behind, open], "waiting"),
            (Progress::Waiting, vec![done], "waiting"),
            (Progress::Running, vec![behind], "running"),
            (Progress::Failed, vec![(FAILED, None), behind], "failed"),
            (Progress::Converged, vec![done, would], "noop"),
            (Progress::Idle, vec![would], "noop"),
            (Progress::Idle, vec![would, open], "waiting"),
            (Progress::Idle, vec![would, behind], "waiting for other hosts"),
            (Progress::Idle, vec![done, (FAILED, None), open], "failed"),
            (Progress::Failed, vec![(FAILED, None), would], "failed"),
            (Progress::Converged, vec![done, drifted], "drifted"),
            (Progress::Idle, vec![would, drifted], "drifted"),
            // What waits comes before what drifted, as in the controllers' order of states (`blocked`, `changing`, `drifted`).
            (Progress::Waiting, vec![drifted, behind], "waiting for other hosts"),
            (Progress::Waiting, vec![drifted, behind, open], "waiting"),
            (Progress::Idle, vec![drifted, behind], "waiting for other hosts"),
            (Progress::Idle, vec![drifted, open], "waiting"),
            (Progress::Waiting, vec![drifted, done], "drifted"),
            (Progress::Running, vec![drifted, open], "running"),
            (Progress::Failed, vec![(FAILED, None), drifted], "failed"),
            (Progress::Converged, vec![done], "converged"),
            (Progress::Converged, vec![], "converged"),
            // What was reported is of the task set before, as where the agent was killed when it had taken the next one.
            (Progress::Converged, vec![done, open], "waiting"),
            (Progress::Converged, vec![behind], "waiting for other hosts"),
        ] {
            let status = collect(&Local::open(root.path()).unwrap()).unwrap();
            let tasks = tasks.into_iter().map(|(outcome, waits_for)| task(outcome, waits_for)).collect();
            assert_eq!(Status { progress, tasks, ..status }.state(), state);
        }
    }

    /// It said `idle`, which is no state of a node, and `converged` where its node was taken out of its group.
    #[test]
    fn y06_the_state_of_a_host_that_observes_or_is_in_no_nodegroup_is_that_of_its_node() {
        let root = tempfile::tempdir().unwrap();
        joined(root.path(), &Set::default());
        let waits = "waiting, paused on this host: its mode is observe, so no task is run or checked";
        for (mode, group, progress, tasks, state) in [
            ("observe", Some("c/g"), Progress::Idle, vec![None], waits),
            ("observe", Some("c/g"), Progress::Idle, vec![CHANGED, None], waits),
            ("observe", Some("c/g"), Progress::Running, vec![CHANGED, None], "running, paused on this host"),
            ("observe", Some("c/g"), Progress::Idle, vec![], "converged, paused on this host"),
            (
                "observe",
                Some("c/g"),
                Progress::Idle,
                vec![Some(Ended::As(Outcome::Unchanged))],
                "converged, paused on this host",
            ),
            ("observe", Some("c/g"), Progress::Idle, vec![CHANGED, FAILED], "failed, paused on this host"),
            ("observe", Some("c/g"), Progress::Idle, vec![WOULD_CHANGE], "noop, paused on this host"),
            ("observe", Some("c/g"), Progress::Idle, vec![Some(Ended::Observed)], "converged, paused on this host"),
            ("apply", Some("c/g"), Progress::Idle, vec![None], "waiting, paused on this host"),
            ("apply", Some("c/g"), Progress::Idle, vec![CHANGED], "converged, paused on this host"),
            ("apply", Some("c/g"), Progress::Idle, vec![FAILED, None], "failed, paused on this host"),
            ("apply", None, Progress::Converged, vec![], "unplaced, paused on this host"),
            ("observe", None, Progress::Idle, vec![], "unplaced, paused on this host"),
        ] {
            let status = collect(&Local::open(root.path()).unwrap()).unwrap();
            let (mode, group) = (Some(mode.to_owned()), group.map(str::to_owned));
            let tasks = tasks.into_iter().map(|outcome| task(outcome, None)).collect();
            let status = Status { mode, group, progress, tasks, paused: true, ..status };
            assert_eq!(status.state(), state);
        }
    }

    /// It said `idle`, which is no state of a node.
    #[test]
    fn y06_a_host_waits_before_anything_came_and_before_it_knows_its_tasks() {
        let state = |root: &Path| collect(&Local::open(root).unwrap()).unwrap().state();
        let fresh = tempfile::tempdir().unwrap();
        assert_eq!(state(fresh.path()), "waiting", "it has not joined");
        let root = tempfile::tempdir().unwrap();
        let set = Set::default().file("f", &[], "/f", "x");
        joined(root.path(), &set);
        assert_eq!(state(root.path()), "waiting", "no task has begun");
        let profile = root.path().join(format!("var/lib/stemma-agent/apply/bodies/{}", set.profile().0));
        std::fs::remove_file(profile).unwrap();
        assert_eq!(state(root.path()), "waiting", "its tasks are on their way");
    }

    /// It said `idle` for half a second of each new task set, while its commands ran.
    #[test]
    fn y06_a_host_runs_tasks_from_the_moment_at_which_their_set_is_accepted() {
        let nothing = LocalState::default;
        let (done, open, behind) = ((WOULD_CHANGE, None), (None, None), (None, Some("a on tags x")));
        let held = || LocalState { hold: Some((u64::MAX, String::new())), ..nothing() };
        let paused = LocalState { paused: true, ..nothing() };
        let parked = LocalState { parked: Some("a disk".to_owned()), ..nothing() };
        for (reported, mode, said, tasks, runs) in [
            (Progress::Idle, Mode::Apply, nothing(), vec![open, open], true),
            (Progress::Idle, Mode::Apply, nothing(), vec![done, open], true),
            (Progress::Converged, Mode::Apply, nothing(), vec![open], true),
            (Progress::Idle, Mode::Noop, nothing(), vec![open], true),
            (Progress::Idle, Mode::Apply, held(), vec![done, open], true),
            // Nothing is to run.
            (Progress::Idle, Mode::Apply, nothing(), vec![], false),
            (Progress::Idle, Mode::Apply, nothing(), vec![done], false),
            (Progress::Idle, Mode::Apply, nothing(), vec![behind], false),
            (Progress::Idle, Mode::Observe, nothing(), vec![open], false),
            (Progress::Idle, Mode::Noop, nothing(), vec![done, open], false),
            // Something forbids it.
            (Progress::Idle, Mode::Apply, held(), vec![open], false),
            (Progress::Idle, Mode::Apply, paused, vec![open], false),
            (Progress::Idle, Mode::Apply, parked, vec![open], false),
            // The report says more.
            (Progress::Waiting, Mode::Apply, nothing(), vec![open], false),
            (Progress::Failed, Mode::Apply, nothing(), vec![open], false),
        ] {
            let tasks: Vec<_> = tasks.into_iter().map(|(outcome, waits_for)| task(outcome, waits_for)).collect();
            let found = is_beginning(reported, &Set::default().mode(mode).desired(), &said, &tasks);
            assert_eq!(found, runs, "{reported:?} {mode:?} {said:?} {}", tasks.len());
        }
        let mut parked = Set::default().desired();
        parked.known.parked = true;
        assert!(!is_beginning(Progress::Idle, &parked, &nothing(), &[task(None, None)]));
    }

    #[test]
    fn a_word_is_the_variants_name_in_lower_case() {
        assert_eq!((words(Outcome::Unchanged), words(Progress::Running)), ("unchanged".into(), "running".into()));
        assert_eq!(words(Outcome::WouldChange), "would change");
    }
}
