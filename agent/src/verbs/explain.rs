//! `explain` on the host: where something came from, as far as the desired state says.

use std::path::Path;

use anyhow::{Result, bail};
use serde::Serialize;
use stemma_core::status;
use stemma_wire::message::desired::{Barrier, InputValue};

use super::status::{Ended, printable, sentences};
use super::waits::waiting;
use super::{Exit, Local, print, print_json};
use crate::apply::ledger::{Desired, PROGRESS, REASONS};
use crate::args::{Explained, Output};

#[derive(Serialize)]
struct Explanation {
    kind: &'static str,
    name: String,
    value: Option<String>,
    why: Vec<String>,
}

/// Says where a label, trait, tag or task of this host came from.
///
/// # Errors
/// When the host holds nothing yet, or the ledger cannot be read.
pub fn explain(root: &Path, kind: Explained, name: &str, output: Output) -> Result<Exit> {
    let local = Local::open(root)?;
    let Some(accepted) = local.site.ledger.accepted()? else {
        bail!("this host holds no desired state yet; `stemma-agent status` says whether it has joined")
    };
    let desired = accepted.desired();
    let found = match kind {
        Explained::Label => label(&desired, name),
        Explained::Trait => plain("trait", &desired.known.traits, name),
        Explained::Tag => tag(&desired, name),
        Explained::Task => task(&local, &desired, name)?,
    };
    let Some(explanation) = found else {
        print(&format!("{name}: this host has none of that name\n"))?;
        return Ok(Exit::NotFound);
    };
    match output {
        Output::Json => print_json(&explanation)?,
        Output::Human => print(&human(&explanation))?,
    }
    Ok(Exit::Done)
}

/// What is said of a task.
#[cfg(test)]
pub(super) fn why(root: &Path, id: &str) -> Vec<String> {
    let local = Local::open(root).unwrap();
    let desired = local.site.ledger.accepted().unwrap().unwrap().desired();
    task(&local, &desired, id).unwrap().unwrap().why
}

fn human(explanation: &Explanation) -> String {
    let value = explanation.value.as_ref().map(|value| format!(" = {value}")).unwrap_or_default();
    let why = explanation.why.iter().map(|why| format!("  {why}\n"));
    format!("{} {}{value}\n{}", explanation.kind, explanation.name, why.collect::<String>())
}

fn label(desired: &Desired, key: &str) -> Option<Explanation> {
    let label = desired.known.labels.get(key)?;
    let flows = if label.to_host { "flows to the host label map" } else { "does not flow to the host label map" };
    let why = vec![format!("from {}", label.origin), flows.to_owned()];
    Some(Explanation { kind: "label", name: key.into(), value: Some(label.value.clone()), why })
}

fn plain(kind: &'static str, names: &[String], name: &str) -> Option<Explanation> {
    let why = vec![format!("held; `stemma explain node {kind}` on a controller says why")];
    names.iter().any(|held| held == name).then(|| Explanation { kind, name: name.into(), value: None, why })
}

fn tag(desired: &Desired, name: &str) -> Option<Explanation> {
    let set = &desired.task_set;
    let held = set.tags.iter().find(|tag| *tag == name || tag.split(':').next() == Some(name))?;
    let why = if set.primaries.iter().any(|primary| primary == name) { "held as primary" } else { "held" };
    let value = held.split_once(':').map(|(_, value)| value.to_owned());
    Some(Explanation { kind: "tag", name: name.into(), value, why: vec![why.into()] })
}

fn task(local: &Local, desired: &Desired, id: &str) -> Result<Option<Explanation>> {
    let ledger = &local.site.ledger;
    let Some(profile) = ledger.profile(desired)? else { return Ok(None) };
    let Some(task) = profile.tasks.iter().find(|task| task.id == id) else { return Ok(None) };
    let mut why = Vec::new();
    if let Some(reason) = desired.task_set.left_out.get(id) {
        why.push(format!("left out: {reason}"));
    }
    let mut performed = ledger.get(&PROGRESS)?.unwrap_or_default().tasks;
    let last = performed.get(id).cloned();
    performed.retain(|_, ended| ended.task_set == desired.digest);
    let is_open = desired.task_set.runs(id) && !performed.contains_key(id);
    if is_open {
        let waiting = waiting(local, desired, &profile, &performed)?;
        why.push(match waiting.get(id) {
            Some(barrier) => format!("waiting for {}", status::barrier(&barrier.task, &barrier.selector)),
            None => "not yet".to_owned(),
        });
    }
    if let Some(last) = last {
        let reasons = ledger.get(&REASONS)?.unwrap_or_default();
        why.push(match performed.get(id) {
            Some(ended) => format!("last: {}", Ended::of(task, ended)),
            // How it is to be done now says nothing of how it was done then; what was said of it does.
            None => format!("in an earlier task set: {}", Ended::before(last.outcome, reasons.get(id))),
        });
        why.extend(reasons.get(id).into_iter().flat_map(sentences).map(|said| format!("  {}", printable(said))));
    }
    if ledger.is_to_refresh(id)? {
        why.push("runs again: a task that it subscribes to has changed something".to_owned());
    }
    let before: Vec<_> = task.after.iter().filter_map(|&at| profile.tasks.get(usize::from(at))).collect();
    why.extend(before.iter().map(|before| format!("after task {}", before.id)));
    let awaited = |barrier: &Barrier| format!("after {}", status::barrier(&barrier.task, &barrier.selector));
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
    use crate::apply::testing::{Set, accept, joined};

    /// It said `last: changed` of the task set before, as if nothing were to come.
    #[test]
    fn y06_a_task_that_is_still_to_come_says_so_and_what_became_of_it_in_an_earlier_task_set() {
        let barrier = || Barrier { task: "db".to_owned(), selector: "tags x".to_owned() };
        let set = || Set::default().command("app", &[], &["true"]);
        let before = "in an earlier task set: changed";
        for (next, said) in [
            (set().released(2), vec!["not yet", before]),
            (set().released(2).behind(barrier()), vec!["waiting for db on tags x", before, "after db on tags x"]),
        ] {
            let root = tempfile::tempdir().unwrap();
            let host = joined(root.path(), &set());
            let told = || {
                let all = why(root.path(), "app");
                // Beside its reasons.
                all.into_iter().filter(|said| !said.starts_with("  ")).collect::<Vec<_>>()
            };
            assert_eq!(told(), ["not yet"]);
            assert_eq!(once(root.path()).unwrap(), Exit::Done);
            assert_eq!(told(), ["last: changed"]);
            accept(&host, 2, &next);
            assert_eq!(told(), said);
        }
    }

    /// It said `would change`, of a task that nobody checked.
    #[test]
    fn y06_a_task_that_was_observed_in_an_earlier_task_set_is_said_to_have_been_observed() {
        let root = tempfile::tempdir().unwrap();
        let set = |mode: &str| {
            let fields = serde_json::json!({"mode": mode, "parameters": {"script": "exit 3"}});
            Set::default().task("seen", "shell", &[], &fields)
        };
        let host = joined(root.path(), &set("observe"));
        assert_eq!(once(root.path()).unwrap(), Exit::Done);
        for (revision, mode) in [(2, "observe"), (3, "apply")] {
            accept(&host, revision, &set(mode).released(revision));
            let told = why(root.path(), "seen");
            let told: Vec<&str> = told.iter().map(String::as_str).filter(|said| !said.starts_with("  ")).collect();
            assert_eq!(told, ["not yet", "in an earlier task set: observed"], "{mode}");
        }
    }
}
