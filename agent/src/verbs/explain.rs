//! The command `explain` on the host: the origin of a label, trait, tag or task, as far as the desired state contains
//! it.

use std::path::Path;

use anyhow::{Result, bail};
use serde::Serialize;
use stemma_core::status;
use stemma_wire::message::desired::{Barrier, InputValue};

use super::status::{TaskEnd, escape_terminal, reason_lines};
use super::waits::waiting_tasks;
use super::{AgentExit, LocalHost, print, print_json};
use crate::apply::ledger::{Desired, PROGRESS, REASONS};
use crate::apply::reboots;
use crate::args::{ExplainedObject, OutputFormat};
use crate::host::Host as _;

/// The output of `explain` for one object: its value, and the reasons.
#[derive(Serialize)]
struct Explanation {
    /// `label`, `trait`, `tag` or `task`.
    kind: &'static str,
    name: String,
    value: Option<String>,
    /// Lines about the object, for example the origin of a label, or why a task waits and how it ended.
    why: Vec<String>,
}

/// Prints the value of a label or tag of this host, and lines that explain a label, trait, tag or task.
///
/// # Errors
/// Fails if the host has no desired state yet, or if the ledger (the agent's stored state) cannot be
/// read.
pub fn explain(root: &Path, kind: ExplainedObject, name: &str, output: OutputFormat) -> Result<AgentExit> {
    let local = LocalHost::open(root)?;
    let Some(accepted) = local.site.ledger.accepted()? else {
        bail!("this host has no desired state yet; `stemma-agent status` shows whether it has joined")
    };
    let desired = accepted.desired();
    let explanation = match kind {
        ExplainedObject::Label => explain_label(&desired, name),
        ExplainedObject::Trait => explain_name("trait", &desired.known.traits, name),
        ExplainedObject::Tag => explain_tag(&desired, name),
        ExplainedObject::Task => explain_task(&local, &desired, name)?,
    };
    let Some(explanation) = explanation else {
        print(&format!("{name}: this host has none of that name\n"))?;
        return Ok(AgentExit::NotFound);
    };
    match output {
        OutputFormat::Json => print_json(&explanation)?,
        OutputFormat::Human => print(&human_text(&explanation))?,
    }
    Ok(AgentExit::Done)
}

/// Returns the lines that `explain` prints about a task, below the name of the task.
#[cfg(test)]
pub(super) fn task_reasons(root: &Path, id: &str) -> Vec<String> {
    let local = LocalHost::open(root).unwrap();
    let desired = local.site.ledger.accepted().unwrap().unwrap().desired();
    explain_task(&local, &desired, id).unwrap().unwrap().why
}

/// Returns the output for people, without control characters: a line with the object and its value, then the reasons.
fn human_text(explanation: &Explanation) -> String {
    let value = explanation.value.as_ref().map(|value| format!(" = {value}")).unwrap_or_default();
    let title = format!("{} {}{value}", explanation.kind, explanation.name);
    let reasons = explanation.why.iter().map(|reason| format!("  {reason}"));
    std::iter::once(title).chain(reasons).map(|line| escape_terminal(&line) + "\n").collect()
}

/// Explains a label: its value, its origin, and whether it is written to the host label map (a file of labels on the
/// host). Returns `None` if the host does not have the label.
fn explain_label(desired: &Desired, key: &str) -> Option<Explanation> {
    let label = desired.known.labels.get(key)?;
    let map_text = if label.to_host { "flows to the host label map" } else { "does not flow to the host label map" };
    let reasons = vec![format!("from {}", label.origin), map_text.to_owned()];
    Some(Explanation { kind: "label", name: key.into(), value: Some(label.value.clone()), why: reasons })
}

/// Explains an object that only has a name, such as a trait. Returns `None` if the host does not have the object, which
/// means that `names` does not contain `name`.
fn explain_name(kind: &'static str, names: &[String], name: &str) -> Option<Explanation> {
    let reasons = vec![format!("held; `stemma explain node {kind}` on a controller shows why")];
    names.iter().any(|entry| entry == name).then(|| Explanation { kind, name: name.into(), value: None, why: reasons })
}

/// Explains a tag: its value, and whether this node is its primary. `name` is the name of the tag, or `NAME:VALUE`.
/// Returns `None` if the host does not have the tag.
fn explain_tag(desired: &Desired, name: &str) -> Option<Explanation> {
    let task_set = &desired.task_set;
    let entry = task_set.tags.iter().find(|tag| *tag == name || tag.split(':').next() == Some(name))?;
    let reason = if task_set.primaries.iter().any(|primary| primary == name) { "held as primary" } else { "held" };
    let value = entry.split_once(':').map(|(_, value)| value.to_owned());
    Some(Explanation { kind: "tag", name: name.into(), value, why: vec![reason.into()] })
}

/// Explains a task: why it does not run or waits, how its last run ended, which tasks run before it, and which inputs
/// it reads. Returns `None` if the host does not have the task, or its profile (the list of tasks) has not arrived.
fn explain_task(local: &LocalHost, desired: &Desired, id: &str) -> Result<Option<Explanation>> {
    let ledger = &local.site.ledger;
    let Some(profile) = ledger.profile(desired)? else { return Ok(None) };
    let Some(task) = profile.tasks.iter().find(|task| task.id == id) else { return Ok(None) };
    let mut lines = Vec::new();
    if let Some(reason) = desired.task_set.left_out.get(id) {
        lines.push(format!("left out: {reason}"));
    }
    let mut records = ledger.get(&PROGRESS)?.unwrap_or_default().tasks;
    let last_record = records.get(id).cloned();
    records.retain(|_, record| record.task_set == desired.digest);
    let is_pending = desired.task_set.runs_task(id) && !records.contains_key(id);
    if is_pending {
        let closed_barriers = waiting_tasks(local, desired, &profile, &records)?;
        let report = reboots::report(ledger, local.host.boot_id())?;
        let waits_for_boot = reboots::waiting_tasks(&report, desired, &profile, |task| records.contains_key(task));
        lines.push(match closed_barriers.get(id) {
            Some(barrier) => format!("waiting for {}", status::barrier_text(&barrier.task, &barrier.selector)),
            None if waits_for_boot.contains(id) => format!("waiting for a reboot: `stemma node reboot {}`", desired.known.name),
            None => "not yet".to_owned(),
        });
    }
    if let Some(last_record) = last_record {
        let reasons = ledger.get(&REASONS)?.unwrap_or_default();
        lines.push(match records.get(id) {
            Some(record) => format!("last: {}", TaskEnd::from_record(task, record)),
            // The task may have had another mode in the earlier task set. The stored reason shows whether the task was
            // only observed in that run.
            None => format!("in an earlier task set: {}", TaskEnd::from_earlier(last_record.outcome, reasons.get(id))),
        });
        lines.extend(reasons.get(id).into_iter().flat_map(reason_lines).map(|line| format!("  {}", escape_terminal(line))));
    }
    if ledger.should_refresh(id)? {
        lines.push("runs again: a task that it subscribes to has changed something".to_owned());
    }
    let previous_tasks: Vec<_> = task.after.iter().filter_map(|&index| profile.tasks.get(usize::from(index))).collect();
    lines.extend(previous_tasks.iter().map(|previous| format!("after task {}", previous.id)));
    let barrier_line = |barrier: &Barrier| format!("after {}", status::barrier_text(&barrier.task, &barrier.selector));
    lines.extend(task.barriers.iter().map(barrier_line));
    lines.extend(task.references.iter().map(|reference| {
        let value = match desired.task_set.inputs.get(reference) {
            Some(InputValue::Json(text)) => text.to_string(),
            Some(InputValue::Absent) | None => "absent".into(),
            Some(InputValue::Secret { name, version }) => format!("secret {name} v{version}"),
        };
        format!("reads {reference} = {value}")
    }));
    Ok(Some(Explanation { kind: "task", name: id.into(), value: None, why: lines }))
}

#[cfg(test)]
mod tests {
    use super::super::converge::once;
    use super::*;
    use crate::apply::testing::{TestTaskSet, joined_host, store_accepted};

    #[test]
    fn human_text_replaces_control_and_formatting_characters() {
        let why = vec!["reads labels.a = \"\u{9b}2J\"".to_owned()];
        let explanation = Explanation { kind: "label", name: "a".into(), value: Some("x\u{202e}y".to_owned()), why };
        assert_eq!(human_text(&explanation), "label a = x\u{fffd}y\n  reads labels.a = \"\u{fffd}2J\"\n");
    }

    /// Regression test: `explain` printed `last: changed` from the earlier task set, as if the task had run in the
    /// current one.
    #[test]
    fn y06_explain_shows_earlier_outcome_when_task_is_pending() {
        let barrier = || Barrier { task: "db".to_owned(), selector: "tags x".to_owned() };
        let set = || TestTaskSet::default().command("app", &[], &["true"]);
        let earlier_line = "in an earlier task set: changed";
        for (next, expected) in [
            (set().with_release(2), vec!["not yet", earlier_line]),
            (set().with_release(2).with_barrier(barrier()), vec!["waiting for db on tags x", earlier_line, "after db on tags x"]),
        ] {
            let root = tempfile::tempdir().unwrap();
            let host = joined_host(root.path(), &set());
            let explained_lines = || {
                let all_lines = task_reasons(root.path(), "app");
                // The indented lines with the reason of the outcome are left out.
                all_lines.into_iter().filter(|line| !line.starts_with("  ")).collect::<Vec<_>>()
            };
            assert_eq!(explained_lines(), ["not yet"]);
            assert_eq!(once(root.path()).unwrap(), AgentExit::Done);
            assert_eq!(explained_lines(), ["last: changed"]);
            store_accepted(&host, 2, &next);
            assert_eq!(explained_lines(), expected);
        }
    }

    /// Regression test: `explain` printed `would change` for a task that was never checked, because its mode was
    /// `observe`.
    #[test]
    fn y06_explain_shows_task_as_observed_in_earlier_task_set() {
        let root = tempfile::tempdir().unwrap();
        let set = |mode: &str| {
            let fields = serde_json::json!({"mode": mode, "parameters": {"script": "exit 3"}});
            TestTaskSet::default().task("seen", "shell", &[], &fields)
        };
        let host = joined_host(root.path(), &set("observe"));
        assert_eq!(once(root.path()).unwrap(), AgentExit::Done);
        for (revision, mode) in [(2, "observe"), (3, "apply")] {
            store_accepted(&host, revision, &set(mode).with_release(revision));
            let reasons = task_reasons(root.path(), "seen");
            let reasons: Vec<&str> = reasons.iter().map(String::as_str).filter(|line| !line.starts_with("  ")).collect();
            assert_eq!(reasons, ["not yet", "in an earlier task set: observed"], "{mode}");
        }
    }
}
