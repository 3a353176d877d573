//! `status`: what this host holds, and where it stands, from the ledger alone.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use serde::Serialize;
use stemma_core::digest::TaskDigest;
use stemma_wire::error::is_formatting;
use stemma_wire::message::desired::Profile;
use stemma_wire::message::observed::Progress;

use super::membership::{Membership, membership};
use super::{Exit, Local, print, print_json};
use crate::apply::STUCK;
use crate::apply::ledger::{Accepted, Desired, LOCAL, Ledger, PROGRESS, REASONS, REPORT, Reason};
use crate::apply::orphans::{self, MOST_NAMED, Orphan};
use crate::args::Output;
use crate::host::Host as _;
use crate::sync::{Connection, Standing};

/// What is known of the controllers where nobody asks them.
const NO_AGENT: &str = "no agent runs on this host";

/// What to do on a host that its controllers no longer know.
const FORGOTTEN: &str = "its node was deleted, or its certificate was revoked: nothing that it holds changes any more. To bring it back, \
     stop the agent, remove /var/lib/stemma-agent, and run `stemma-agent join` with a new token";

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
    progress: String,
    /// How it stood with its controllers when that last changed; `null`: it was never noted, because no outage was.
    connection: Option<Connection>,
    /// Whether an agent runs on this host now; where none does, nobody knows how the controllers stand to it.
    agent_runs: Option<bool>,
    paused: bool,
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
    outcome: Option<String>,
    /// Why, and the end of its output, where there is something to say.
    #[serde(flatten)]
    reason: Option<Reason>,
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
    let failed = status.progress == words(Progress::Failed);
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
        let paused = if self.paused { ", paused on this host" } else { "" };
        if self.is_unknown() {
            return format!("no longer known to its controllers{paused}; its tasks: {}", self.progress);
        }
        if let Some(why) = &self.stuck {
            return format!("stuck{paused}: {why}");
        }
        format!("{}{paused}", self.progress)
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
    let stuck = stuck(local).or_else(|| report.facts.get(STUCK).and_then(|text| serde_json::from_str(text).ok()));
    let held = accepted.as_ref().map(Accepted::desired);
    let tasks = held.as_ref().map(|held| tasks(ledger, held)).transpose()?.unwrap_or_default();
    let orphans = held.as_ref().map(|held| orphans(local, held)).transpose()?.unwrap_or_default();
    let mode = held.as_ref().map(|held| words(held.mode()));
    let is_held = held.is_some();
    let (known, set) = held.map(|held| (held.known, held.task_set)).unwrap_or_default();
    Ok(Status {
        node: identity.as_ref().map(|identity| identity.node.to_string()),
        name: is_held.then_some(known.name),
        group: (!known.group.is_empty()).then_some(known.group),
        fleet: identity.map(|identity| identity.fleet),
        epoch: accepted.as_ref().map(|accepted| accepted.epoch.to_string()),
        revision: accepted.as_ref().map(|accepted| accepted.revision.0),
        mode,
        progress: words(report.progress),
        findings: findings(local, damage, connection.as_ref(), report.findings),
        connection,
        agent_runs: local.is_running(),
        paused: ledger.get(&LOCAL)?.unwrap_or_default().paused,
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

/// What people should know: of the membership, as it was last reported, and of the host's own label files as they are now.
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

/// The tasks that run here, in order, each with how it last ended in the present task set.
fn tasks(ledger: &Ledger, held: &Desired) -> Result<Vec<Task>> {
    let profile = ledger.profile(held)?.unwrap_or_default();
    let performed = ledger.get(&PROGRESS)?.unwrap_or_default().tasks;
    let here = profile.tasks.into_iter().filter(|task| held.task_set.runs(&task.id));
    let ended = |id: &str| performed.get(id).filter(|ended| ended.task_set == held.digest);
    let mut reasons = ledger.get(&REASONS)?.unwrap_or_default();
    Ok(here
        .map(|task| {
            let outcome = ended(&task.id).map(|ended| words(ended.outcome));
            let reason = outcome.as_ref().and_then(|_| reasons.remove(&task.id));
            Task { outcome, reason, id: task.id }
        })
        .collect())
}

fn orphans(local: &Local, held: &Desired) -> Result<Vec<Orphan>> {
    let profile = match held.task_set.profile {
        Some(_) => local.site.ledger.profile(held)?,
        None => Some(Profile::default()),
    };
    let Some(profile) = profile else { return Ok(Vec::new()) };
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
        line("task", &format!("{:<24} {}", task.id, task.outcome.as_deref().unwrap_or("not yet")));
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
    let minutes = now.saturating_sub(*since) / 60;
    let time = match minutes {
        0 => "less than a minute".to_owned(),
        1..120 => format!("{minutes} min"),
        120.. => format!("{} h", minutes / 60),
    };
    format!("{what} {url} for {time}{cause}")
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

#[cfg(test)]
mod tests {
    use stemma_wire::message::observed::Outcome;

    use super::*;
    use crate::apply::testing::{Set, joined};
    use crate::host::HostPath;
    use crate::host::atomic::{Attributes, ensure_dir, replace};

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
                "state     no longer known to its controllers; its tasks: idle",
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

    #[test]
    fn a_word_is_the_variants_name_in_lower_case() {
        assert_eq!((words(Outcome::Unchanged), words(Progress::Running)), ("unchanged".into(), "running".into()));
        assert_eq!(words(Outcome::WouldChange), "would change");
    }
}
