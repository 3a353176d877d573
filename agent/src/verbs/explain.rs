//! `explain` on the host: the origin of a label, trait, tag or task, as far as the desired state contains it.

use std::path::Path;

use anyhow::{Result, bail};
use serde::Serialize;
use stemma_core::status;
use stemma_wire::message::desired::{Barrier, InputValue};

use super::status::{TaskEnd, escape_terminal, reason_lines};
use super::waits::waiting_tasks;
use super::{AgentExit, LocalHost, print, print_json};
use crate::apply::ledger::{Desired, PROGRESS, REASONS};
use crate::args::{ExplainedObject, OutputFormat};

/// The output of `explain` for one object: its value, and the reasons.
#[derive(Serialize)]
struct Explanation {
    kind: &'static str,
    name: String,
    value: Option<String>,
    why: Vec<String>,
}

/// Prints where a label, trait, tag or task of this host came from.
///
/// # Errors
/// Fails if the host has no desired state yet, or if the ledger cannot be read.
pub fn explain(root: &Path, kind: ExplainedObject, name: &str, output: OutputFormat) -> Result<AgentExit> {
    let local = LocalHost::open(root)?;
    let Some(accepted) = local.site.ledger.accepted()? else {
        bail!("this host holds no desired state yet; `stemma-agent status` says whether it has joined")
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

/// Returns the reasons that `explain` prints for a task.
#[cfg(test)]
pub(super) fn task_reasons(root: &Path, id: &str) -> Vec<String> {
    let local = LocalHost::open(root).unwrap();
    let desired = local.site.ledger.accepted().unwrap().unwrap().desired();
    explain_task(&local, &desired, id).unwrap().unwrap().why
}

fn human_text(explanation: &Explanation) -> String {
    let value = explanation.value.as_ref().map(|value| format!(" = {value}")).unwrap_or_default();
    let why = explanation.why.iter().map(|why| format!("  {why}\n"));
    format!("{} {}{value}\n{}", explanation.kind, explanation.name, why.collect::<String>())
}

/// Explains a label: its value, its origin, and whether it is written to the host label map.
fn explain_label(desired: &Desired, key: &str) -> Option<Explanation> {
    let label = desired.known.labels.get(key)?;
    let flows = if label.to_host { "flows to the host label map" } else { "does not flow to the host label map" };
    let why = vec![format!("from {}", label.origin), flows.to_owned()];
    Some(Explanation { kind: "label", name: key.into(), value: Some(label.value.clone()), why })
}

/// Explains an object that only has a name, such as a trait: that the host has it.
fn explain_name(kind: &'static str, names: &[String], name: &str) -> Option<Explanation> {
    let why = vec![format!("held; `stemma explain node {kind}` on a controller says why")];
    names.iter().any(|held| held == name).then(|| Explanation { kind, name: name.into(), value: None, why })
}

/// Explains a tag: its value, and whether this node is its primary.
fn explain_tag(desired: &Desired, name: &str) -> Option<Explanation> {
    let set = &desired.task_set;
    let entry = set.tags.iter().find(|tag| *tag == name || tag.split(':').next() == Some(name))?;
    let why = if set.primaries.iter().any(|primary| primary == name) { "held as primary" } else { "held" };
    let value = entry.split_once(':').map(|(_, value)| value.to_owned());
    Some(Explanation { kind: "tag", name: name.into(), value, why: vec![why.into()] })
}

/// Explains a task: why it does not run or waits, how its last run ended, what it comes after, and which inputs it
/// reads.
fn explain_task(local: &LocalHost, desired: &Desired, id: &str) -> Result<Option<Explanation>> {
    let ledger = &local.site.ledger;
    let Some(profile) = ledger.profile(desired)? else { return Ok(None) };
    let Some(task) = profile.tasks.iter().find(|task| task.id == id) else { return Ok(None) };
    let mut why = Vec::new();
    if let Some(reason) = desired.task_set.left_out.get(id) {
        why.push(format!("left out: {reason}"));
    }
    let mut records = ledger.get(&PROGRESS)?.unwrap_or_default().tasks;
    let last = records.get(id).cloned();
    records.retain(|_, ended| ended.task_set == desired.digest);
    let is_open = desired.task_set.runs_task(id) && !records.contains_key(id);
    if is_open {
        let waiting = waiting_tasks(local, desired, &profile, &records)?;
        why.push(match waiting.get(id) {
            Some(barrier) => format!("waiting for {}", status::barrier_text(&barrier.task, &barrier.selector)),
            None => "not yet".to_owned(),
        });
    }
    if let Some(last) = last {
        let reasons = ledger.get(&REASONS)?.unwrap_or_default();
        why.push(match records.get(id) {
            Some(ended) => format!("last: {}", TaskEnd::from_record(task, ended)),
            // The current mode of the task says nothing about the earlier run. The stored reason does.
            None => format!("in an earlier task set: {}", TaskEnd::from_earlier(last.outcome, reasons.get(id))),
        });
        why.extend(reasons.get(id).into_iter().flat_map(reason_lines).map(|said| format!("  {}", escape_terminal(said))));
    }
    if ledger.should_refresh(id)? {
        why.push("runs again: a task that it subscribes to has changed something".to_owned());
    }
    let before: Vec<_> = task.after.iter().filter_map(|&at| profile.tasks.get(usize::from(at))).collect();
    why.extend(before.iter().map(|before| format!("after task {}", before.id)));
    let awaited = |barrier: &Barrier| format!("after {}", status::barrier_text(&barrier.task, &barrier.selector));
    why.extend(task.barriers.iter().map(awaited));
    why.extend(task.references.iter().map(|reference| {
        let value = match desired.task_set.inputs.get(reference) {
            Some(InputValue::Json(text)) => text.to_string(),
            Some(InputValue::Absent) | None => "absent".into(),
            Some(InputValue::Secret { name, version }) => format!("secret {name} v{version}"),
        };
        format!("reads {reference} = {value}")
    }));
    Ok(Some(Explanation { kind: "task", name: id.into(), value: None, why }))
}

#[cfg(test)]
mod tests {
    use super::super::converge::once;
    use super::*;
    use crate::apply::testing::{TestTaskSet, joined_host, store_accepted};

    /// `explain` printed `last: changed` of the earlier task set, as if the task were done.
    #[test]
    fn y06_explain_shows_earlier_outcome_when_task_is_pending() {
        let barrier = || Barrier { task: "db".to_owned(), selector: "tags x".to_owned() };
        let set = || TestTaskSet::default().command("app", &[], &["true"]);
        let before = "in an earlier task set: changed";
        for (next, said) in [
            (set().with_release(2), vec!["not yet", before]),
            (set().with_release(2).with_barrier(barrier()), vec!["waiting for db on tags x", before, "after db on tags x"]),
        ] {
            let root = tempfile::tempdir().unwrap();
            let host = joined_host(root.path(), &set());
            let told = || {
                let all = task_reasons(root.path(), "app");
                // Without the lines of the reason.
                all.into_iter().filter(|said| !said.starts_with("  ")).collect::<Vec<_>>()
            };
            assert_eq!(told(), ["not yet"]);
            assert_eq!(once(root.path()).unwrap(), AgentExit::Done);
            assert_eq!(told(), ["last: changed"]);
            store_accepted(&host, 2, &next);
            assert_eq!(told(), said);
        }
    }

    /// `explain` printed `would change` for a task that was never checked.
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
            let told = task_reasons(root.path(), "seen");
            let told: Vec<&str> = told.iter().map(String::as_str).filter(|said| !said.starts_with("  ")).collect();
            assert_eq!(told, ["not yet", "in an earlier task set: observed"], "{mode}");
        }
    }
}
