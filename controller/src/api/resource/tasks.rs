//! The handlers of tasks. They combine the results of all nodes that have a task: its progress, where it failed and
//! why, and the changes that it would make on which hosts.
//!
//! Each request computes this from the released task sets and the reported results; nothing is stored. A host sends no
//! difference of a sensitive task, so none is shown. Incomplete differences are not compared between hosts.

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

/// Maximum number of nodes that `failed_on` names in an entry of the list of tasks: nodes on which the task failed.
const MAX_ROW_NODES: usize = 5;
/// Maximum number of nodes that each group of equal results, and the group without a result, names for one task.
const MAX_GROUP_NODES: usize = 100;
/// Maximum number of groups of equal results in the response for one task. The groups with the most nodes are listed.
const MAX_GROUPS: usize = 20;
/// Number of hexadecimal digits in the digest of the difference (or message) of a group of equal results.
const DIGEST_DIGITS: usize = 12;

/// The key of a released task: its id, and the release of its task set.
type TaskKey<'m> = (&'m str, &'m str);

/// The results of one task of one release: numbers of nodes by outcome, and groups of nodes with equal results.
#[derive(Default)]
struct TaskTally<'m> {
    converged: usize,
    changed: usize,
    waiting: usize,
    blocked: usize,
    would_change: usize,
    /// Number of nodes whose hosts neither run nor check the task, because the task's own mode is `observe`.
    observed: usize,
    drifted: usize,
    failures: OutcomeGroups<'m>,
    /// The nodes on which the task did not run, because a task that it requires failed there.
    not_run: OutcomeGroups<'m>,
    differences: OutcomeGroups<'m>,
    /// The nodes that have not reported a result of the task.
    pending: NodeSubset<'m>,
}

/// The nodes with equal results of a task, or without a result of it: their number, and the first of them.
#[derive(Default)]
struct NodeSubset<'m> {
    count: usize,
    /// The first of these nodes, by name, up to a maximum number.
    nodes: Vec<&'m Node>,
}

/// Nodes in groups of equal results. The key of a group is the outcome, the difference and the message. If there is a
/// difference, the message in the key is empty.
#[derive(Default)]
struct OutcomeGroups<'m>(BTreeMap<(Outcome, &'m str, &'m str), NodeSubset<'m>>);

/// Handles `GET /v1/tasks`: returns one page of tasks, each with the number of nodes for each outcome.
pub(super) fn list(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let tallies = tally_tasks(api, &model, request, None)?;
    list_rows(request, "id", tallies.iter().map(|(key, tally)| tally.summary_json(key)).collect())
}

/// Handles `GET /v1/tasks/{task}`: returns one task, in each release. The response lists the nodes on which the task
/// failed, and the changes that it would make.
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

/// Returns the error for a task that none of the selected nodes has. The message differs if another node has the task.
/// For a caller that is bound to a cluster, only the nodes of this cluster matter.
fn task_not_found(model: &Model, task: &str) -> ApiError {
    let nodes = NodeSpec::walk(model, NodeSet::All, ListOrder::Name, None, false);
    let released = nodes.filter_map(|node| model.released.get(&node.meta.uuid));
    let task_names: BTreeSet<&str> = released.flat_map(|released| task_ids(model, released)).collect();
    let message = if task_names.contains(task) {
        format!("Task {} runs on none of the selected nodes.", quote(task))
    } else {
        format!("Task {} runs on no node{}.", quote(task), did_you_mean(closest_match(task, task_names)))
    };
    ApiError::new(ErrorType::ObjectNotFound, message)
}

/// Counts the results of each task over the nodes that a request selects. If `only_task` has a value, only this task is
/// counted.
fn tally_tasks<'m>(
    api: &Api,
    model: &'m Model,
    request: &HttpRequest,
    only_task: Option<&str>,
) -> Result<BTreeMap<TaskKey<'m>, TaskTally<'m>>, ApiError> {
    let filters = RequestFilters::read(NodeSpec::FILTERS, &FilterContext { api, model, request })?;
    let nodes = NodeSpec::walk(model, filters.candidates(), ListOrder::Name, None, false);
    let max_nodes = if only_task.is_some() { MAX_GROUP_NODES } else { MAX_ROW_NODES };
    let mut tallies: BTreeMap<TaskKey<'m>, TaskTally<'m>> = BTreeMap::new();
    for node in nodes.filter(|node| filters.is_match(api, model, node)) {
        let uuid = node.meta.uuid;
        let Some(released) = model.released.get(&uuid) else { continue };
        let (digests, results) = (task_set_digests(model, released), model.results.get(&uuid));
        let is_blocked = api.desired.as_ref().is_some_and(|desired| desired.status().is_blocked(uuid));
        for task in task_ids(model, released).filter(|task| only_task.is_none_or(|only_task| only_task == *task)) {
            let result = results.and_then(|results| results.result_for(&digests, task)).map(|stored| &stored.result);
            let tally = tallies.entry((task, released.release.as_deref().unwrap_or_default())).or_default();
            match result {
                Some(result) if state_inputs::is_observed(model, uuid, result) => tally.observed += 1,
                _ => tally.add(node, result, is_blocked, max_nodes),
            }
        }
    }
    Ok(tallies)
}

impl<'m> TaskTally<'m> {
    /// Adds a node to the counts of its task. `result` is the result that the node's host reported for the task, if
    /// any. A group of equal results lists at most `max_nodes` nodes.
    fn add(&mut self, node: &'m Node, result: Option<&'m TaskResult>, is_blocked: bool, max_nodes: usize) {
        let Some(result) = result else {
            *(if is_blocked { &mut self.blocked } else { &mut self.waiting }) += 1;
            self.pending.add(node, max_nodes);
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
                self.differences.add(result, node, max_nodes);
            }
            Outcome::Drifted => {
                self.drifted += 1;
                self.differences.add(result, node, max_nodes);
            }
            Outcome::DependencyFailed => self.not_run.add(result, node, max_nodes),
            Outcome::Failed | Outcome::Unsupported | Outcome::Unknown => self.failures.add(result, node, max_nodes),
        }
    }

    /// Returns the task as an entry of the list: the number of nodes for each outcome, the names of the first nodes on
    /// which the task failed, and the number of distinct differences.
    fn summary_json(&self, (task, release): &TaskKey<'_>) -> Value {
        let (failed, not_run) = (self.failures.count(), self.not_run.count());
        let pending = self.blocked + self.waiting;
        json!({
            "id": format!("{release}/{task}"), "task": task, "release": release,
            "nodes": self.converged + self.would_change + self.observed + self.drifted + failed + not_run + pending,
            "converged": self.converged, "changed": self.changed, "waiting": self.waiting, "blocked": self.blocked,
            "failed": failed, "not_run": not_run, "would_change": self.would_change, "observed": self.observed,
            "drifted": self.drifted, "failed_on": self.failures.first_names(), "different_changes": self.differences.distinct_diff_count(),
        })
    }

    /// Returns the entry of the task in the list, with more details: the reasons of failures, the changes that the task
    /// would make, and the nodes without a result.
    fn detail_json(&self, key: &TaskKey<'_>) -> Value {
        let mut body = self.summary_json(key);
        body["failures"] = self.failures.groups_json().into();
        body["not_run_because"] = self.not_run.groups_json().into();
        body["differences"] = self.differences.diffs_json().into();
        body["unended_on"] = json!(self.pending.names());
        body
    }
}

impl<'m> NodeSubset<'m> {
    /// Counts a node, and lists it if fewer than `max_nodes` nodes are listed so far.
    fn add(&mut self, node: &'m Node, max_nodes: usize) {
        self.count += 1;
        if self.nodes.len() < max_nodes {
            self.nodes.push(node);
        }
    }

    /// Returns the display names of the listed nodes.
    fn names(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.display_name()).collect()
    }
}

impl<'m> OutcomeGroups<'m> {
    /// Adds a node to the group of nodes with an equal result. A group lists at most `max_nodes` nodes.
    fn add(&mut self, result: &'m TaskResult, node: &'m Node, max_nodes: usize) {
        // Results with the same difference are equal, even if their messages differ.
        let message = if result.diff.is_empty() { result.message.as_str() } else { "" };
        self.0.entry((result.outcome, result.diff.as_str(), message)).or_default().add(node, max_nodes);
    }

    /// Returns the number of nodes in all groups.
    fn count(&self) -> usize {
        self.0.values().map(|group| group.count).sum()
    }

    /// Returns the sorted names of the first nodes of all groups, at most [`MAX_ROW_NODES`].
    fn first_names(&self) -> Vec<String> {
        let mut nodes: Vec<String> = self.0.values().flat_map(NodeSubset::names).collect();
        nodes.sort_unstable();
        nodes.truncate(MAX_ROW_NODES);
        nodes
    }

    /// Returns the number of distinct differences. Equal differences of two outcomes (would change and drifted) count
    /// twice. Incomplete differences do not count, because they cannot be compared.
    fn distinct_diff_count(&self) -> usize {
        self.0.keys().filter(|(_, diff, _)| is_complete_diff(diff)).count()
    }

    /// Returns the groups as JSON, each with the field `comparable`. An incomplete difference cannot be compared, so
    /// its group has no digest.
    fn diffs_json(&self) -> Vec<Value> {
        let mut groups = self.groups_json();
        for group in &mut groups {
            let is_complete = group["diff"].as_str().is_some_and(is_complete_diff);
            group["comparable"] = is_complete.into();
            if !is_complete {
                group["digest"] = Value::Null;
            }
        }
        groups
    }

    /// Returns the groups of nodes with equal results as JSON, those with the most nodes first, at most [`MAX_GROUPS`].
    fn groups_json(&self) -> Vec<Value> {
        let mut groups: Vec<_> = self.0.iter().collect();
        groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.count));
        let entries = groups.into_iter().take(MAX_GROUPS).map(|((outcome, diff, message), group)| {
            let content = if diff.is_empty() { message } else { diff };
            let digest = hash_content(content.as_bytes()).to_string();
            json!({
                "digest": &digest[..DIGEST_DIGITS], "outcome": outcome, "count": group.count, "nodes": group.names(),
                "message": message, "diff": diff,
            })
        });
        entries.collect()
    }
}

/// Returns whether a difference contains everything that a task would change. Then equal differences of two hosts mean
/// the same change. An incomplete difference ends with a line that a unified diff never has: the host cut or withheld
/// the rest, or the file is not text. The difference of a sensitive task is empty, so it is not complete.
fn is_complete_diff(diff: &str) -> bool {
    diff.lines().last().is_some_and(|line| line.starts_with(['+', '-', ' ', '@', '\\']))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In this test, the last lines of the incomplete differences are those that agents write in place of content.
    #[test]
    fn y09_is_complete_diff_is_false_when_cut_or_withheld() {
        for (diff, is_complete) in [
            ("--- /f (mode 0644)\n+++ /f (mode 0600)\n", true),
            ("--- /dev/null\n+++ /f (mode 0644)\n@@ -0,0 +1 @@\n+… 3 more lines\n", true),
            ("--- /f\n+++ /f\n@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file\n", true),
            ("--- /f\n+++ /f\n@@ -1,2 +1,2 @@\n-a\n+b\n \n", true),
            ("--- /f\n+++ /f\n@@ -1 +1 @@\n-a\n… 3 more lines\n", false),
            ("--- /f\n+++ /f\nlines are withheld: a sensitive task has managed this file\n", false),
            ("--- /f\n+++ /f\n700000 bytes become 700001\n", false),
            ("", false),
        ] {
            assert_eq!(is_complete_diff(diff), is_complete, "{diff}");
        }
    }
}
