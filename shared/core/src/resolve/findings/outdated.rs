//! Findings about agents that do not know a task type or a parameter of the tasks of their hosts. There is one finding for
//! each type or parameter, version of the agent and release, however many hosts have such an agent. In addition, each of
//! these nodes has its own finding.

use std::collections::BTreeMap;

use crate::finding::{Finding, MAX_NAMES, rule};
use crate::fleet::Fleet;
use crate::name::ReleaseRef;
use crate::object::NodeId;
use crate::resolve::{ResolveCache, ResolvedNode, UnknownFeatures, resolve_node};
use crate::task::{TASK_TYPES_FACT, UnknownFeature, declared_task_types};

/// The types and parameters that agents do not know, with their hosts. The hosts are added one by one. The key is the
/// release, the type or parameter, and the agent as texts name it.
#[derive(Default)]
pub struct OutdatedAgents(BTreeMap<(ReleaseRef, UnknownFeature, String), OutdatedHosts>);

/// The hosts whose agents do not know the same type or parameter.
struct OutdatedHosts {
    /// The id of the first task that uses it.
    task: String,
    first_node: NodeId,
    host_count: usize,
    host_names: Vec<String>,
}

/// Returns the findings about types and parameters that the agents of these nodes do not know since a change. Omits what
/// the tasks of a node used before the change.
pub fn newly_outdated(
    fleet_before: &Fleet,
    fleet_after: &Fleet,
    cache: &ResolveCache,
    nodes: impl Iterator<Item = NodeId>,
) -> Vec<Finding> {
    let unknown_in = |fleet: &Fleet, node: NodeId| resolve_node(fleet, cache, node).resolved_node().cloned();
    let mut outdated = OutdatedAgents::default();
    for node in nodes.filter(|node| may_be_outdated(fleet_after, *node)) {
        let Some(resolved) = unknown_in(fleet_after, node) else { continue };
        let Some(mut unknown) = resolved.unknown_features() else { continue };
        let old = unknown_in(fleet_before, node).and_then(|resolved| resolved.unknown_features());
        unknown.features.retain(|feature, _| old.as_ref().is_none_or(|old| !old.features.contains_key(feature)));
        outdated.add_features(&resolved, unknown);
    }
    outdated.into_findings().map(|(finding, _)| finding).collect()
}

/// Returns whether the agent of a node may not know one of its tasks. Decides without the conditions of the tasks.
fn may_be_outdated(fleet: &Fleet, node: NodeId) -> bool {
    let fact = fleet.observation(node).map(|observation| observation.facts.text(TASK_TYPES_FACT));
    match fact {
        None => false,
        Some(None) => fleet.profile(node).is_some_and(|profile| !profile.later_tasks.is_empty()),
        Some(Some(fact)) => fact != declared_task_types(),
    }
}

impl OutdatedAgents {
    /// Adds the types and parameters that the agent of a node does not know.
    pub fn add(&mut self, node: &ResolvedNode) {
        if let Some(unknown) = node.unknown_features() {
            self.add_features(node, unknown);
        }
    }

    /// Adds these types and parameters for a node. Does nothing if the node has no release.
    fn add_features(&mut self, node: &ResolvedNode, unknown: UnknownFeatures) {
        let Some(release) = node.release() else { return };
        for (feature, task) in unknown.features {
            let first_node = node.node().id();
            let new_entry = || OutdatedHosts { task, first_node, host_count: 0, host_names: Vec::new() };
            let key = (release.name.clone(), feature, unknown.agent.clone());
            let hosts = self.0.entry(key).or_insert_with(new_entry);
            hosts.host_count += 1;
            if hosts.host_names.len() < MAX_NAMES {
                hosts.host_names.push(node.node().display_name());
            }
        }
    }

    /// Returns one finding for each type or parameter and version of the agent, each with the host that was added first.
    pub fn into_findings(self) -> impl Iterator<Item = (Finding, NodeId)> {
        self.0.into_iter().map(|((release, feature, agent), hosts)| {
            let field = match &feature {
                UnknownFeature::Type(_) => "type".to_owned(),
                UnknownFeature::Parameter { parameter, .. } => format!("parameters.{parameter}"),
            };
            let object = format!("release/{release} task {} {field}", hosts.task);
            (Finding::new(rule::TASK_TYPE, object, hosts.message(&feature, &agent)), hosts.first_node)
        })
    }
}

impl OutdatedHosts {
    /// Returns the message of the finding, with the number and the first names of its hosts.
    fn message(&self, feature: &UnknownFeature, agent: &str) -> String {
        let more = match self.host_count - self.host_names.len() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        let names = format!("{}{more}", self.host_names.join(", "));
        match self.host_count {
            1 => format!(
                "1 host with {agent} does not know {feature} ({names}): it gets no task set with such a task before its agent is upgraded"
            ),
            count => format!(
                "{count} hosts with {agent} do not know {feature} ({names}): they get no task set with such a task before their agent is \
                 upgraded"
            ),
        }
    }
}
