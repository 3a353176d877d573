//! Tasks over the nodes that have them: how far each has come where, who failed and why, and what it would change on which hosts.
//!
//! It is worked out of what was released and reported; nothing is stored for it. A host sends no difference of a sensitive task, so none is
//! shown. Differences that are not whole are not compared.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use stemma_core::fleet::Among;
use stemma_core::name::{near, suggest};
use stemma_core::object::{Node, NodeSpec};
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::message::hash_content;
use stemma_wire::message::observed::{Outcome, TaskResult};

use super::filter::{Asked, Filters};
use super::lists::of_rows;
use super::objects::Shown;
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::cache::Model;
use crate::cache::model::By;
use crate::cache::released::{runs, task_sets};
use crate::reconcile::facts;

/// How many nodes a row of the list names.
const FEW: usize = 5;
/// How many nodes each group of one task names.
const MANY: usize = 100;
/// How many groups of one task are shown, those of the most nodes first.
const MOST_GROUPS: usize = 20;
/// How many digits of a difference's digest tell it from others.
const DIGITS: usize = 12;

/// A task as it was released: its id, and the release.
type Key<'m> = (&'m str, &'m str);

/// What became of one task over the nodes that have it.
#[derive(Default)]
struct Tally<'m> {
    converged: usize,
    changed: usize,
    waiting: usize,
    blocked: usize,
    would_change: usize,
    /// Nodes whose hosts neither run nor check it, by its own mode.
    observed: usize,
    drifted: usize,
    failures: Groups<'m>,
    /// Nodes on which it did not run, since one that it depends on failed there.
    not_run: Groups<'m>,
    differences: Groups<'m>,
    /// Nodes of which no result is there.
    unended: Group<'m>,
}

/// Nodes of which one thing is true.
#[derive(Default)]
struct Group<'m> {
    count: usize,
    /// The first of them, by name.
    nodes: Vec<&'m Node>,
}

/// Nodes by what their hosts said: the outcome, and the difference or else the sentence.
#[derive(Default)]
struct Groups<'m>(BTreeMap<(Outcome, &'m str, &'m str), Group<'m>>);

/// `GET /v1/tasks`.
pub(super) fn list(api: &Api, request: &Request) -> HandlerResult {
    let model = api.model();
    let all = tally(api, &model, request, None)?;
    of_rows(request, "id", all.iter().map(|(key, tally)| tally.row(key)).collect())
}

/// `GET /v1/tasks/{task}`.
///
/// # Errors
/// [`ErrorType::ObjectNotFound`] where no node that is asked for has it.
pub(super) fn show(api: &Api, request: &Request) -> HandlerResult {
    let model = api.model();
    let task = request.part("task");
    let found = tally(api, &model, request, Some(task))?;
    if found.is_empty() {
        return Err(missing(&model, task));
    }
    let releases: Vec<Value> = found.iter().map(|(key, tally)| tally.whole(key)).collect();
    Ok(Reply::ok(json!({"task": task, "releases": releases})))
}

/// The refusal of a task that no node has, or none of those that are asked for. Whoever is bound to a cluster is told of its nodes alone.
fn missing(model: &Model, task: &str) -> ApiError {
    let nodes = NodeSpec::walk(model, Among::All, By::Name, None, false);
    let released = nodes.filter_map(|node| model.released.get(&node.meta.uuid));
    let known: BTreeSet<&str> = released.flat_map(|released| runs(model, released)).collect();
    let message = if known.contains(task) {
        format!("Task {} runs on none of the nodes that are asked for.", quote(task))
    } else {
        format!("Task {} runs on no node{}.", quote(task), suggest(near(task, known)))
    };
    ApiError::new(ErrorType::ObjectNotFound, message)
}

/// What became of each task, or of one, on the nodes that a request asks for.
fn tally<'m>(
    api: &Api,
    model: &'m Model,
    request: &Request,
    only: Option<&str>,
) -> Result<BTreeMap<Key<'m>, Tally<'m>>, ApiError> {
    let filters = Filters::read(NodeSpec::FILTERS, &Asked { api, model, request })?;
    let nodes = NodeSpec::walk(model, filters.among(), By::Name, None, false);
    let most = if only.is_some() { MANY } else { FEW };
    let mut all: BTreeMap<Key<'m>, Tally<'m>> = BTreeMap::new();
    for node in nodes.filter(|node| filters.keep(api, model, node)) {
        let uuid = node.meta.uuid;
        let Some(released) = model.released.get(&uuid) else { continue };
        let (set, results) = (task_sets(model, released), model.results.get(&uuid));
        let is_blocked = api.desired.as_ref().is_some_and(|desired| desired.status().is_blocked(uuid));
        for task in runs(model, released).filter(|task| only.is_none_or(|only| only == *task)) {
            let result = results.and_then(|results| results.of(&set, task)).map(|stored| &stored.result);
            let tally = all.entry((task, released.release.as_deref().unwrap_or_default())).or_default();
            match result {
                Some(result) if facts::is_observed(model, uuid, result) => tally.observed += 1,
                _ => tally.add(node, result, is_blocked, most),
            }
        }
    }
    Ok(all)
}

impl<'m> Tally<'m> {
    /// Takes in a node, with what its host said of the task.
    fn add(&mut self, node: &'m Node, result: Option<&'m TaskResult>, is_blocked: bool, most: usize) {
        let Some(result) = result else {
            *(if is_blocked { &mut self.blocked } else { &mut self.waiting }) += 1;
            self.unended.add(node, most);
            return;
        };
        match result.outcome {
            Outcome::Unchanged => self.converged += 1,
            Outcome::Changed => {
                self.converged += 1;
                self.changed += 1;
            }
            Outcome::WouldChange => {
                self.would_change += 1;
                self.differences.add(result, node, most);
            }
            Outcome::Drifted => {
                self.drifted += 1;
                self.differences.add(result, node, most);
            }
            Outcome::DependencyFailed => self.not_run.add(result, node, most),
            Outcome::Failed | Outcome::Unsupported | Outcome::Unknown => self.failures.add(result, node, most),
        }
    }

    /// How many stand where, and the first that failed.
    fn row(&self, (task, release): &Key<'_>) -> Value {
        let (failed, not_run) = (self.failures.count(), self.not_run.count());
        let unended = self.blocked + self.waiting;
        json!({
            "id": format!("{release}/{task}"), "task": task, "release": release,
            "nodes": self.converged + self.would_change + self.observed + self.drifted + failed + not_run + unended,
            "converged": self.converged, "changed": self.changed, "waiting": self.waiting, "blocked": self.blocked,
            "failed": failed, "not_run": not_run, "would_change": self.would_change, "observed": self.observed,
            "drifted": self.drifted, "failed_on": self.failures.first(), "different_changes": self.differences.different(),
        })
    }

    /// The same, with who failed and why, who did not run it and why, what differs where, and who is waited for.
    fn whole(&self, key: &Key<'_>) -> Value {
        let mut row = self.row(key);
        row["failures"] = self.failures.shown().into();
        row["not_run_because"] = self.not_run.shown().into();
        row["differences"] = self.differences.compared().into();
        row["unended_on"] = json!(self.unended.names());
        row
    }
}

impl<'m> Group<'m> {
    fn add(&mut self, node: &'m Node, most: usize) {
        self.count += 1;
        if self.nodes.len() < most {
            self.nodes.push(node);
        }
    }

    fn names(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.display_name()).collect()
    }
}

impl<'m> Groups<'m> {
    fn add(&mut self, result: &'m TaskResult, node: &'m Node, most: usize) {
        // A sentence beside a difference says nothing that would tell two of them apart.
        let message = if result.diff.is_empty() { result.message.as_str() } else { "" };
        self.0.entry((result.outcome, result.diff.as_str(), message)).or_default().add(node, most);
    }

    fn count(&self) -> usize {
        self.0.values().map(|group| group.count).sum()
    }

    /// The first nodes, by name.
    fn first(&self) -> Vec<String> {
        let mut nodes: Vec<String> = self.0.values().flat_map(Group::names).collect();
        nodes.sort_unstable();
        nodes.truncate(FEW);
        nodes
    }

    /// How many different differences there are among those that are whole.
    fn different(&self) -> usize {
        self.0.keys().filter(|(_, diff, _)| is_whole(diff)).count()
    }

    /// The same groups as differences: those that are not whole are not compared, and have no digest.
    fn compared(&self) -> Vec<Value> {
        let mut groups = self.shown();
        for group in &mut groups {
            let is_whole = group["diff"].as_str().is_some_and(is_whole);
            group["comparable"] = is_whole.into();
            if !is_whole {
                group["digest"] = Value::Null;
            }
        }
        groups
    }

    /// The groups of the most nodes first.
    fn shown(&self) -> Vec<Value> {
        let mut groups: Vec<_> = self.0.iter().collect();
        groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.count));
        let shown = groups.into_iter().take(MOST_GROUPS).map(|((outcome, diff, message), group)| {
            let said = if diff.is_empty() { message } else { diff };
            let digest = hash_content(said.as_bytes()).to_string();
            json!({
                "digest": &digest[..DIGITS], "outcome": outcome, "count": group.count, "nodes": group.names(),
                "message": message, "diff": diff,
            })
        });
        shown.collect()
    }
}

/// Whether a difference says all that a task would change, so that hosts with the same one would change the same. One that its host cut, that
/// it withheld, or that is of bytes which are no text ends with a line that no unified diff has; of a sensitive task there is none.
fn is_whole(diff: &str) -> bool {
    diff.lines().last().is_some_and(|line| line.starts_with(['+', '-', ' ', '@', '\\']))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last lines are those that agents write.
    #[test]
    fn y09_a_difference_that_its_host_cut_or_withheld_is_not_compared() {
        for (diff, whole) in [
            ("--- /f (mode 0644)\n+++ /f (mode 0600)\n", true),
            ("--- /dev/null\n+++ /f (mode 0644)\n@@ -0,0 +1 @@\n+… 3 more lines\n", true),
            ("--- /f\n+++ /f\n@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file\n", true),
            ("--- /f\n+++ /f\n@@ -1,2 +1,2 @@\n-a\n+b\n \n", true),
            ("--- /f\n+++ /f\n@@ -1 +1 @@\n-a\n… 3 more lines\n", false),
            ("--- /f\n+++ /f\nlines are withheld: a sensitive task has kept this file\n", false),
            ("--- /f\n+++ /f\n700000 bytes become 700001\n", false),
            ("", false),
        ] {
            assert_eq!(is_whole(diff), whole, "{diff}");
        }
    }
}
