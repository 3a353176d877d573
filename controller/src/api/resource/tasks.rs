//! Tasks over the nodes that have them: the progress of each task, where it failed and why, and what it would change on
//! which hosts.
//!
//! This is computed from the released task sets and the reported results for each request, and not stored. A host sends
//! no difference of a sensitive task, so none is shown. Incomplete differences are not compared between hosts.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use stemma_core::fleet::NodeSet;
use stemma_core::name::{closest_match, did_you_mean};
use stemma_core::object::{Node, NodeSpec};
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::message::hash_content;
use stemma_wire::message::observed::{Outcome, TaskResult};

use super::filter::{FilterContext, RequestFilters};
use super::lists::list_rows;
use super::objects::ApiResource;
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::cache::Model;
use crate::cache::model::ListOrder;
use crate::cache::released::{task_ids, task_set_digests};
use crate::reconcile::state_inputs;

/// Maximum number of nodes in a row of the list.
const MAX_ROW_NODES: usize = 5;
/// Maximum number of nodes in each group of one task.
const MAX_GROUP_NODES: usize = 100;
/// Maximum number of groups of one task, those with the most nodes first.
const MAX_GROUPS: usize = 20;
/// Number of digits of the digest that identifies a difference.
const DIGEST_DIGITS: usize = 12;

/// A released task: its id and its release.
type TaskKey<'m> = (&'m str, &'m str);

/// The results of one task over the nodes that have it.
#[derive(Default)]
struct TaskTally<'m> {
    converged: usize,
    changed: usize,
    waiting: usize,
    blocked: usize,
    would_change: usize,
    /// Nodes whose hosts neither run nor check the task, because of its own mode.
    observed: usize,
    drifted: usize,
    failures: OutcomeGroups<'m>,
    /// Nodes on which the task did not run, because one that it depends on failed there.
    not_run: OutcomeGroups<'m>,
    differences: OutcomeGroups<'m>,
    /// Nodes that have not reported a result.
    pending: NodeSubset<'m>,
}

/// The number of nodes with one result of a task, and the first of these nodes.
#[derive(Default)]
struct NodeSubset<'m> {
    count: usize,
    /// The first of these nodes, by name.
    nodes: Vec<&'m Node>,
}

/// Nodes by what their hosts reported: the outcome, and the difference or, without one, the message.
#[derive(Default)]
struct OutcomeGroups<'m>(BTreeMap<(Outcome, &'m str, &'m str), NodeSubset<'m>>);

/// `GET /v1/tasks`: a page of tasks, each with the number of nodes for each outcome.
pub(super) fn list(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let tallies = tally_tasks(api, &model, request, None)?;
    list_rows(request, "id", tallies.iter().map(|(key, tally)| tally.row_json(key)).collect())
}

/// `GET /v1/tasks/{task}`: one task, in each release, with the nodes on which it failed and what it would change.
///
/// # Errors
/// [`ErrorType::ObjectNotFound`] if none of the selected nodes has the task.
pub(super) fn show(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let task = request.param("task");
    let tallies = tally_tasks(api, &model, request, Some(task))?;
    if tallies.is_empty() {
        return Err(task_not_found(&model, task));
    }
    let releases: Vec<Value> = tallies.iter().map(|(key, tally)| tally.detail_json(key)).collect();
    Ok(HttpResponse::ok(json!({"task": task, "releases": releases})))
}

/// Returns the error for a task that none of the selected nodes has. It tells whether any other node has the task. A
/// caller that is bound to a cluster learns only of the nodes of that cluster.
fn task_not_found(model: &Model, task: &str) -> ApiError {
    let nodes = NodeSpec::walk(model, NodeSet::All, ListOrder::Name, None, false);
    let released = nodes.filter_map(|node| model.released.get(&node.meta.uuid));
    let known: BTreeSet<&str> = released.flat_map(|released| task_ids(model, released)).collect();
    let message = if known.contains(task) {
        format!("Task {} runs on none of the selected nodes.", quote(task))
    } else {
        format!("Task {} runs on no node{}.", quote(task), did_you_mean(closest_match(task, known)))
    };
    ApiError::new(ErrorType::ObjectNotFound, message)
}

/// Counts the results of each task over the nodes that a request selects. `only` limits this to one task.
fn tally_tasks<'m>(
    api: &Api,
    model: &'m Model,
    request: &HttpRequest,
    only: Option<&str>,
) -> Result<BTreeMap<TaskKey<'m>, TaskTally<'m>>, ApiError> {
    let filters = RequestFilters::read(NodeSpec::FILTERS, &FilterContext { api, model, request })?;
    let nodes = NodeSpec::walk(model, filters.candidates(), ListOrder::Name, None, false);
    let max = if only.is_some() { MAX_GROUP_NODES } else { MAX_ROW_NODES };
    let mut tallies: BTreeMap<TaskKey<'m>, TaskTally<'m>> = BTreeMap::new();
    for node in nodes.filter(|node| filters.is_match(api, model, node)) {
        let uuid = node.meta.uuid;
        let Some(released) = model.released.get(&uuid) else { continue };
        let (set, results) = (task_set_digests(model, released), model.results.get(&uuid));
        let is_blocked = api.desired.as_ref().is_some_and(|desired| desired.status().is_blocked(uuid));
        for task in task_ids(model, released).filter(|task| only.is_none_or(|only| only == *task)) {
            let result = results.and_then(|results| results.result_for(&set, task)).map(|stored| &stored.result);
            let tally = tallies.entry((task, released.release.as_deref().unwrap_or_default())).or_default();
            match result {
                Some(result) if state_inputs::is_observed(model, uuid, result) => tally.observed += 1,
                _ => tally.add(node, result, is_blocked, max),
            }
        }
    }
    Ok(tallies)
}

impl<'m> TaskTally<'m> {
    /// Adds a node to the counts of its task. `result` is what the node's host reported of the task.
    fn add(&mut self, node: &'m Node, result: Option<&'m TaskResult>, is_blocked: bool, max: usize) {
        let Some(result) = result else {
            *(if is_blocked { &mut self.blocked } else { &mut self.waiting }) += 1;
            self.pending.add(node, max);
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
                self.differences.add(result, node, max);
            }
            Outcome::Drifted => {
                self.drifted += 1;
                self.differences.add(result, node, max);
            }
            Outcome::DependencyFailed => self.not_run.add(result, node, max),
            Outcome::Failed | Outcome::Unsupported | Outcome::Unknown => self.failures.add(result, node, max),
        }
    }

    /// Returns the number of nodes for each outcome, and the first nodes that failed.
    fn row_json(&self, (task, release): &TaskKey<'_>) -> Value {
        let (failed, not_run) = (self.failures.count(), self.not_run.count());
        let pending = self.blocked + self.waiting;
        json!({
            "id": format!("{release}/{task}"), "task": task, "release": release,
            "nodes": self.converged + self.would_change + self.observed + self.drifted + failed + not_run + pending,
            "converged": self.converged, "changed": self.changed, "waiting": self.waiting, "blocked": self.blocked,
            "failed": failed, "not_run": not_run, "would_change": self.would_change, "observed": self.observed,
            "drifted": self.drifted, "failed_on": self.failures.first_names(), "different_changes": self.differences.distinct_diffs(),
        })
    }

    /// Returns the row of the task, and in addition the nodes that failed or did not run the task and why, what the
    /// task would change, and the nodes without a result.
    fn detail_json(&self, key: &TaskKey<'_>) -> Value {
        let mut row = self.row_json(key);
        row["failures"] = self.failures.groups_json().into();
        row["not_run_because"] = self.not_run.groups_json().into();
        row["differences"] = self.differences.diffs_json().into();
        row["unended_on"] = json!(self.pending.names());
        row
    }
}

impl<'m> NodeSubset<'m> {
    fn add(&mut self, node: &'m Node, max: usize) {
        self.count += 1;
        if self.nodes.len() < max {
            self.nodes.push(node);
        }
    }

    fn names(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.display_name()).collect()
    }
}

impl<'m> OutcomeGroups<'m> {
    fn add(&mut self, result: &'m TaskResult, node: &'m Node, max: usize) {
        // Results with the same difference belong together, whatever their messages say.
        let message = if result.diff.is_empty() { result.message.as_str() } else { "" };
        self.0.entry((result.outcome, result.diff.as_str(), message)).or_default().add(node, max);
    }

    fn count(&self) -> usize {
        self.0.values().map(|group| group.count).sum()
    }

    /// Returns the first nodes of all groups, by name.
    fn first_names(&self) -> Vec<String> {
        let mut nodes: Vec<String> = self.0.values().flat_map(NodeSubset::names).collect();
        nodes.sort_unstable();
        nodes.truncate(MAX_ROW_NODES);
        nodes
    }

    /// Returns the number of distinct differences, without incomplete ones, which cannot be compared.
    fn distinct_diffs(&self) -> usize {
        self.0.keys().filter(|(_, diff, _)| is_complete_diff(diff)).count()
    }

    /// Returns the groups as differences. An incomplete difference cannot be compared, so it has no digest.
    fn diffs_json(&self) -> Vec<Value> {
        let mut groups = self.groups_json();
        for group in &mut groups {
            let is_whole = group["diff"].as_str().is_some_and(is_complete_diff);
            group["comparable"] = is_whole.into();
            if !is_whole {
                group["digest"] = Value::Null;
            }
        }
        groups
    }

    /// Returns the groups of nodes with the same result, those with the most nodes first.
    fn groups_json(&self) -> Vec<Value> {
        let mut groups: Vec<_> = self.0.iter().collect();
        groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.count));
        let shown = groups.into_iter().take(MAX_GROUPS).map(|((outcome, diff, message), group)| {
            let content = if diff.is_empty() { message } else { diff };
            let digest = hash_content(content.as_bytes()).to_string();
            json!({
                "digest": &digest[..DIGEST_DIGITS], "outcome": outcome, "count": group.count, "nodes": group.names(),
                "message": message, "diff": diff,
            })
        });
        shown.collect()
    }
}

/// Returns whether a difference contains all that a task would change, so that equal differences of two hosts mean the
/// same change. If the host cut or withheld the difference, or if the bytes are not text, its last line is one that no
/// unified diff has. The difference of a sensitive task is empty, and thus not complete.
fn is_complete_diff(diff: &str) -> bool {
    diff.lines().last().is_some_and(|line| line.starts_with(['+', '-', ' ', '@', '\\']))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last lines are as agents write them.
    #[test]
    fn y09_is_complete_diff_is_false_when_cut_or_withheld() {
        for (diff, whole) in [
            ("--- /f (mode 0644)\n+++ /f (mode 0600)\n", true),
            ("--- /dev/null\n+++ /f (mode 0644)\n@@ -0,0 +1 @@\n+… 3 more lines\n", true),
            ("--- /f\n+++ /f\n@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file\n", true),
            ("--- /f\n+++ /f\n@@ -1,2 +1,2 @@\n-a\n+b\n \n", true),
            ("--- /f\n+++ /f\n@@ -1 +1 @@\n-a\n… 3 more lines\n", false),
            ("--- /f\n+++ /f\nlines are withheld: a sensitive task has managed this file\n", false),
            ("--- /f\n+++ /f\n700000 bytes become 700001\n", false),
            ("", false),
        ] {
            assert_eq!(is_complete_diff(diff), whole, "{diff}");
        }
    }
}
