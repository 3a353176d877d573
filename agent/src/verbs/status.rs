//! `status`: what this host holds, and where it stands, from the ledger alone.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use stemma_core::digest::TaskDigest;
use stemma_wire::message::observed::Progress;

use super::membership::{Membership, membership};
use super::{Exit, Local, print, print_json};
use crate::apply::ledger::{Accepted, Desired, LOCAL, Ledger, PROGRESS, REPORT};
use crate::args::Output;

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
    paused: bool,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    traits: Vec<String>,
    tags: Vec<String>,
    primary_tags: Vec<String>,
    task_digest: Option<String>,
    tasks: Vec<Task>,
    skipped: BTreeMap<String, String>,
    unacknowledged_results: usize,
    findings: Vec<String>,
    /// Whether identity or credentials are damaged; the first finding says which.
    is_damaged: bool,
}

#[derive(Serialize)]
struct Task {
    id: String,
    /// `null`: it has not ended yet on this host.
    outcome: Option<String>,
}

/// Prints where this host stands.
///
/// # Errors
/// When the ledger cannot be read.
pub fn status(root: &Path, output: Output) -> Result<Exit> {
    let status = collect(&Local::open(root)?)?;
    match output {
        Output::Json => print_json(&status)?,
        Output::Human => print(&human(&status))?,
    }
    let failed = status.progress == words(Progress::Failed);
    Ok(if failed || status.is_damaged { Exit::Failed } else { Exit::Done })
}

fn collect(local: &Local) -> Result<Status> {
    let ledger = &local.site.ledger;
    let (identity, damage) = match membership(&local.host)? {
        Membership::Member(member) => (Some(member.0), None),
        Membership::Damaged(identity, why) => (identity, Some(why)),
        Membership::NotJoined => (None, None),
    };
    let accepted = ledger.accepted()?;
    let report = ledger.get(&REPORT)?.unwrap_or_default();
    let held = accepted.as_ref().map(Accepted::desired);
    let tasks = held.as_ref().map(|held| tasks(ledger, held)).transpose()?.unwrap_or_default();
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
        is_damaged: damage.is_some(),
        findings: findings(local, damage, report.findings),
    })
}

/// What people should know: of the membership, as it was last reported, and of the host's own label files as they are now.
fn findings(local: &Local, damage: Option<String>, reported: Vec<String>) -> Vec<String> {
    let mut findings: Vec<String> = damage.into_iter().collect();
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
    let here = profile.tasks.into_iter().filter(|task| !held.task_set.left_out.contains_key(&task.id));
    let ended = |id: &str| performed.get(id).filter(|ended| ended.task_set == held.digest);
    Ok(here.map(|task| Task { outcome: ended(&task.id).map(|ended| words(ended.outcome)), id: task.id }).collect())
}

fn human(status: &Status) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        // Names of files and of other people's keys stand in it: nothing of them is obeyed by a terminal (S60).
        let value: String = value.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        writeln!(text, "{key:<10}{value}").expect("a String takes all");
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
    line("state", &format!("{}{}", status.progress, if status.paused { ", paused on this host" } else { "" }));
    line("labels", &status.labels.len().to_string());
    line("traits", &status.traits.len().to_string());
    line("tags", &status.tags.join(" "));
    for task in &status.tasks {
        line("task", &format!("{:<24} {}", task.id, task.outcome.as_deref().unwrap_or("not yet")));
    }
    for (id, why) in &status.skipped {
        line("skipped", &format!("{id:<24} {why}"));
    }
    if status.unacknowledged_results > 0 {
        line("results", &format!("{} not yet taken by a controller", status.unacknowledged_results));
    }
    for finding in &status.findings {
        line("finding", finding);
    }
    text
}

/// The name of a variant as people read it: `DependencyFailed` is `dependency failed`.
pub(super) fn words(variant: impl Debug) -> String {
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

    #[test]
    fn a_word_is_the_variants_name_in_lower_case() {
        assert_eq!((words(Outcome::Unchanged), words(Progress::Running)), ("unchanged".into(), "running".into()));
        assert_eq!(words(Outcome::WouldChange), "would change");
    }
}
