//! Findings about tasks whose condition cannot be evaluated, about tasks whose path another task writes or no host
//! accepts, and about tasks that contradict another one. There is one finding for each task, however many hosts have the
//! problem. In addition, each of these nodes has its own finding.

use std::collections::BTreeMap;

use crate::finding::{Finding, MAX_NAMES, Rule, rule};
use crate::fleet::Fleet;
use crate::name::ReleaseRef;
use crate::object::NodeId;
use crate::resolve::{ResolveCache, ResolvedNode, resolve_node};

/// The rules whose findings about single hosts are combined into one finding for each task of a release. Findings of the
/// rule `task.type` are combined by [`super::OutdatedAgents`].
const SHARED_RULES: [Rule; 4] = [rule::CONDITION_FAILED, rule::TASK_CONFLICT, rule::TASK_PATH, rule::TASK_TYPE];

/// The rules about tasks that obstruct each other on a host, or that have no usable path.
const OBSTRUCTION_RULES: [Rule; 2] = [rule::TASK_CONFLICT, rule::TASK_PATH];

/// The tasks whose condition cannot be evaluated, that contradict another task, or that have no usable path, with their
/// hosts. The hosts are added one by one. The key is the release, the object of the finding and the code of its rule.
#[derive(Default)]
pub struct FailingTasks(BTreeMap<(ReleaseRef, String, String), FailingHosts>);

/// The hosts with the same finding about one task.
struct FailingHosts {
    first_node: NodeId,
    /// The finding about the task on the host that was added first.
    finding: Finding,
    host_count: usize,
    host_names: Vec<String>,
}

/// Returns the findings about tasks that have no usable path on these nodes since a change, or that contradict another
/// task there. Omits findings that existed before the change. There is one finding for each task.
pub fn newly_obstructed(
    fleet_before: &Fleet,
    fleet_after: &Fleet,
    cache: &ResolveCache,
    nodes: impl Iterator<Item = NodeId>,
) -> Vec<Finding> {
    let mut failing = FailingTasks::default();
    let may_be_obstructed = |node: &NodeId| {
        fleet_after.profile(*node).is_some_and(|profile| profile.should_check_paths() || profile.may_have_conflicts())
    };
    // On most nodes every task can run, so only the state after the change is resolved at first. Resolving the state
    // before the change too would evict the cached values of the node's group.
    for node in nodes.filter(may_be_obstructed) {
        let resolution = resolve_node(fleet_after, cache, node);
        let Some(new_node) = resolution.resolved_node() else { continue };
        let mut findings = obstructions(new_node);
        if findings.is_empty() {
            continue;
        }
        let old = resolve_node(fleet_before, cache, node).resolved_node().map(|item| obstructions(item)).unwrap_or_default();
        findings.retain(|finding| !old.contains(finding));
        failing.add_findings(new_node, findings);
    }
    failing.into_findings().map(|(finding, _)| finding).collect()
}

/// Returns the findings about the paths of a host's tasks, and about tasks that contradict each other.
fn obstructions(node: &ResolvedNode) -> Vec<Finding> {
    let findings = node.task_set().into_iter().flat_map(|set| set.findings());
    findings.filter(|finding| OBSTRUCTION_RULES.iter().any(|rule| finding.code == rule.code)).collect()
}

/// Returns whether a finding about one host is combined with those of other hosts into one finding.
pub fn is_aggregated(finding: &Finding) -> bool {
    SHARED_RULES.iter().any(|rule| finding.code == rule.code)
}

impl FailingTasks {
    /// Adds those findings about a host that are combined with the findings of other hosts.
    pub fn add(&mut self, node: &ResolvedNode) {
        let Some(set) = node.task_set() else { return };
        self.add_findings(node, set.findings().filter(is_aggregated));
    }

    /// Adds these findings about tasks of a host. Does nothing if the node has no release.
    fn add_findings(&mut self, node: &ResolvedNode, findings: impl IntoIterator<Item = Finding>) {
        let Some(release) = node.release() else { return };
        for finding in findings {
            let key = (release.name.clone(), finding.object.clone(), finding.code.clone());
            let node_id = node.node().id();
            let new_entry = || FailingHosts { first_node: node_id, finding, host_count: 0, host_names: Vec::new() };
            let failing = self.0.entry(key).or_insert_with(new_entry);
            failing.host_count += 1;
            if failing.host_names.len() < MAX_NAMES {
                failing.host_names.push(node.node().display_name());
            }
        }
    }

    /// Returns one finding for each task and rule, each with the host that was added first.
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
