//! Findings about conditions that cannot be evaluated, and about paths that two tasks write or that no host accepts.
//! There is one finding for a task, however many hosts have the problem. Each of these nodes has a finding of its own
//! too.

use std::collections::BTreeMap;

use crate::finding::{Finding, MAX_NAMES, Rule, rule};
use crate::fleet::Fleet;
use crate::name::ReleaseRef;
use crate::object::NodeId;
use crate::resolve::{ResolveCache, ResolvedNode, resolve_node};

/// The rules whose findings are aggregated over all hosts.
const SHARED_RULES: [Rule; 2] = [rule::CONDITION_FAILED, rule::TASK_PATH];

/// The tasks whose conditions cannot be evaluated, or that have no usable path, collected host by host.
#[derive(Default)]
pub struct FailingTasks(BTreeMap<(ReleaseRef, String, String), FailingHosts>);

/// The hosts with the same finding about one task.
struct FailingHosts {
    first_node: NodeId,
    /// The finding about the task on the first host.
    finding: Finding,
    host_count: usize,
    host_names: Vec<String>,
}

/// Returns the findings about tasks that have no usable path on these nodes only since a change. There is one finding
/// for a task.
pub fn newly_without_path(
    before: &Fleet,
    after: &Fleet,
    cache: &ResolveCache,
    nodes: impl Iterator<Item = NodeId>,
) -> Vec<Finding> {
    let mut failing = FailingTasks::default();
    // On most nodes each task has its path, so only the state after the change is resolved at first. To resolve the
    // state before the change would evict the cached base of the node's group.
    for node in nodes.filter(|node| after.profile(*node).is_some_and(|profile| profile.should_check_paths())) {
        let resolution = resolve_node(after, cache, node);
        let Some(resolved) = resolution.resolved_node() else { continue };
        let mut findings = path_findings(resolved);
        if findings.is_empty() {
            continue;
        }
        let known = resolve_node(before, cache, node).resolved_node().map(|answer| path_findings(answer)).unwrap_or_default();
        findings.retain(|finding| !known.contains(finding));
        failing.add_findings(resolved, findings);
    }
    failing.into_findings().map(|(finding, _)| finding).collect()
}

/// Returns the findings about the paths of a host's tasks.
fn path_findings(node: &ResolvedNode) -> Vec<Finding> {
    let findings = node.task_set().into_iter().flat_map(|set| set.findings());
    findings.filter(|finding| finding.code == rule::TASK_PATH.code).collect()
}

/// Returns whether a finding about one host is aggregated over all hosts.
pub fn is_aggregated(finding: &Finding) -> bool {
    SHARED_RULES.iter().any(|rule| finding.code == rule.code)
}

impl FailingTasks {
    /// Adds the findings of a host that are aggregated.
    pub fn add(&mut self, node: &ResolvedNode) {
        let Some(set) = node.task_set() else { return };
        self.add_findings(node, set.findings().filter(is_aggregated));
    }

    /// Adds the findings about a host's tasks.
    fn add_findings(&mut self, node: &ResolvedNode, findings: impl IntoIterator<Item = Finding>) {
        let Some(release) = node.release() else { return };
        for finding in findings {
            let key = (release.name.clone(), finding.object.clone(), finding.code.clone());
            let first = node.node().id();
            let new = || FailingHosts { first_node: first, finding, host_count: 0, host_names: Vec::new() };
            let failing = self.0.entry(key).or_insert_with(new);
            failing.host_count += 1;
            if failing.host_names.len() < MAX_NAMES {
                failing.host_names.push(node.node().display_name());
            }
        }
    }

    /// Returns one finding for each task and rule, with the first host that has the finding.
    pub fn into_findings(self) -> impl Iterator<Item = (Finding, NodeId)> {
        self.0.into_iter().map(|((release, object, _), failing)| {
            let task = object.strip_prefix("task/").unwrap_or(&object);
            let (object, message) = (format!("release/{release} task {task}"), failing.message());
            (Finding { object, message, ..failing.finding }, failing.first_node)
        })
    }
}

impl FailingHosts {
    /// Returns the message of the finding, with the number and the first names of its hosts.
    fn message(&self) -> String {
        let names = self.host_names.join(", ");
        match self.host_count {
            1 => format!("on 1 host ({names}): {}", self.finding.message),
            hosts if hosts > self.host_names.len() => {
                format!("on {hosts} hosts ({names}, …): {}", self.finding.message)
            }
            hosts => format!("on {hosts} hosts ({names}): {}", self.finding.message),
        }
    }
}
