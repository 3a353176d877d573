//! Resolves a whole cluster or a whole fleet, as `stemma resolve` prints it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use super::NodeOutput;
use super::node::{ResolveCache, pseudo_task_set, resolve_node};
use super::resolved_node::{Resolution, ResolvedNode};
use super::{
    FailingTasks, OutdatedAgents, UnsetReferences, all_catalog_findings, catalog_findings, cluster_findings, is_aggregated,
    level_findings, unset_in_empty_groups,
};
use crate::catalog::SuggestionCache;
use crate::finding::{Finding, sort_findings};
use crate::fleet::{Fleet, MissingParent};
use crate::graph::{ClusterGraph, PlacementCycle};
use crate::object::{ClusterId, ClusterTemplate, GroupId, LevelId, Node, NodeId, TemplateId};
use crate::release::name_selector::MASTER;
use crate::role::natural_cmp;
use crate::unimplemented;

/// A resolved fleet: the output of `stemma resolve -o json`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FleetOutput {
    /// The nodes by name. If a cluster has no node `master`, its tasks for `master` are listed under this name.
    pub nodes: BTreeMap<String, NodeOutput>,
    /// The ids of the stages, each once: those of the first cluster in the order in which they run, and then those that
    /// only later clusters have.
    pub stages: Vec<String>,
    /// The order of tasks: pairs of a task and a task that waits for it, each pair once. A task has the name of its
    /// node and its id. A stage has `null` instead of a node.
    pub order: BTreeSet<[(Option<String>, String); 2]>,
    /// The findings, each once, the most severe first. Findings of one severity are sorted by code and then by object.
    pub findings: Vec<Finding>,
    /// The resolved nodes with the origin of each value, sorted by uuid.
    #[serde(skip)]
    pub resolved_nodes: Vec<Arc<ResolvedNode>>,
}

/// The result of resolving one cluster.
#[derive(Clone, Debug)]
pub struct ClusterOutput {
    /// The nodes, sorted by name, with digits compared as numbers.
    pub nodes: Vec<Arc<ResolvedNode>>,
    /// The findings about the cluster, its nodes and their releases.
    pub findings: Vec<Finding>,
    /// The nodes that cannot be resolved, each with the objects that are missing.
    pub incomplete: Vec<(NodeId, Vec<MissingParent>)>,
}

/// The reason why a fleet cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// An object that is needed to resolve a node is missing: its group, cluster, cluster template or release.
    #[error("node {node}: {}", missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Incomplete {
        /// The name of the node.
        node: String,
        /// The objects that are missing.
        missing: Vec<MissingParent>,
    },
    /// Tasks wait for each other on the nodes on which they are placed.
    #[error("cluster {cluster}: {cycle}")]
    Cycle {
        /// The name of the cluster.
        cluster: String,
        /// The tasks that wait for each other.
        cycle: PlacementCycle,
    },
}

/// Resolves all nodes of a cluster, and collects all findings about it.
pub fn resolve_cluster(fleet: &Fleet, cache: &ResolveCache, id: ClusterId) -> ClusterOutput {
    let mut output = resolve_nodes(fleet, cache, id);
    output.findings.extend(aggregated_findings(output.nodes.iter()));
    output.findings.extend(unset_in_empty_groups(fleet, fleet.groups_in_cluster(id)));
    output.findings.extend(catalog_findings(fleet, id));
    output
}

/// Returns the findings that several nodes may share, each once, such as that many hosts lack a label.
fn aggregated_findings<'a>(nodes: impl Iterator<Item = &'a Arc<ResolvedNode>>) -> Vec<Finding> {
    let (mut unset, mut failing) = (UnsetReferences::default(), FailingTasks::default());
    let mut outdated = OutdatedAgents::default();
    for node in nodes {
        unset.add(node);
        failing.add(node);
        outdated.add(node);
    }
    let with_hosts = failing.into_findings().chain(outdated.into_findings());
    unset.findings().into_iter().chain(with_hosts.map(|(finding, _)| finding)).collect()
}

/// Resolves the nodes of a cluster. Omits the findings that several nodes may share ([`aggregated_findings`]) and those
/// about the catalogue of declared keys, because the callers add them.
fn resolve_nodes(fleet: &Fleet, cache: &ResolveCache, id: ClusterId) -> ClusterOutput {
    let (mut nodes, mut incomplete) = (Vec::new(), Vec::new());
    for node in fleet.nodes_in_cluster(id) {
        match resolve_node(fleet, cache, node) {
            Resolution::Complete(resolved_node) => nodes.push(resolved_node),
            Resolution::Incomplete(missing) => incomplete.push((node, missing)),
        }
    }
    nodes.sort_by(|first, second| natural_cmp(&first.node().display_name(), &second.node().display_name()));
    let mut findings = cluster_findings(fleet, id);
    let node_findings = nodes.iter().flat_map(|node| node.findings());
    findings.extend(node_findings.filter(|finding| !is_aggregated(finding)));
    let releases: BTreeMap<_, _> =
        nodes.iter().filter_map(|node| node.release()).map(|release| (&release.name, release)).collect();
    findings.extend(releases.into_values().flat_map(|release| release.findings.iter().cloned()));
    ClusterOutput { nodes, findings, incomplete }
}

/// Resolves a whole fleet.
///
/// # Errors
/// One [`ResolveError`] for each node that cannot be resolved, and for each cluster in which tasks wait for each other.
pub fn resolve_fleet(fleet: &Fleet, cache: &ResolveCache) -> Result<FleetOutput, Vec<ResolveError>> {
    let mut fleet_output = FleetOutput::default();
    let mut errors = Vec::new();
    for cluster in fleet.clusters() {
        let id = ClusterId(cluster.meta.uuid);
        let (output, graph) = (resolve_nodes(fleet, cache, id), ClusterGraph::from_fleet(fleet, id));
        errors.extend(output.incomplete.iter().map(|(node, missing)| {
            let node = fleet.node(*node).map_or_else(|| node.to_string(), |node| node.display_name());
            ResolveError::Incomplete { node, missing: missing.clone() }
        }));
        if let Err(cycle) = graph.check() {
            errors.push(ResolveError::Cycle { cluster: cluster.meta.name.to_string(), cycle });
        }
        if errors.is_empty() {
            fleet_output.add_cluster(fleet, id, (&output, &graph));
        }
    }
    errors.extend(fleet_output.add_unclustered(fleet, cache));
    if !errors.is_empty() {
        return Err(errors);
    }
    fleet_output.add_findings(fleet);
    fleet_output.resolved_nodes.sort_by_key(|node| node.id());
    Ok(fleet_output)
}

/// Returns whether a node is in an existing cluster. Such a node is resolved with its cluster.
fn is_in_cluster(fleet: &Fleet, node: &Node) -> bool {
    fleet.cluster_of_node(node.id()).is_some_and(|cluster| fleet.cluster(cluster).is_some())
}

impl FleetOutput {
    /// Resolves and adds the nodes that are in no cluster. Returns an error for each node that cannot be resolved.
    fn add_unclustered(&mut self, fleet: &Fleet, cache: &ResolveCache) -> Vec<ResolveError> {
        let mut errors = Vec::new();
        for node in fleet.nodes().filter(|node| !is_in_cluster(fleet, node)) {
            match resolve_node(fleet, cache, node.id()) {
                Resolution::Complete(resolved_node) => {
                    self.findings.extend(resolved_node.findings());
                    self.add_node(resolved_node);
                }
                Resolution::Incomplete(missing) => {
                    errors.push(ResolveError::Incomplete { node: node.display_name(), missing });
                }
            }
        }
        errors
    }

    /// Adds the findings that no single cluster has: those about templates, releases and the catalogue, and those that
    /// several nodes may share. Then sorts all findings and removes duplicates.
    fn add_findings(&mut self, fleet: &Fleet) {
        let templates = fleet.templates();
        let template_findings = |template: &Arc<ClusterTemplate>| {
            unimplemented::findings(&format!("clustertemplate/{}", template.meta.name), &template.spec)
        };
        self.findings.extend(templates.flat_map(template_findings));
        let levels = fleet.templates().map(|template| LevelId::Template(TemplateId(template.meta.uuid)));
        self.findings.extend(levels.flat_map(|level| level_findings(fleet, level)));
        self.findings.extend(fleet.releases().flat_map(|release| release.findings.iter().cloned()));
        self.findings.extend(aggregated_findings(self.resolved_nodes.iter()));
        self.findings.extend(unset_in_empty_groups(fleet, fleet.groups().map(|group| GroupId(group.meta.uuid))));
        self.findings.extend(all_catalog_findings(fleet, &SuggestionCache::default()).flatten());
        sort_findings(&mut self.findings);
    }

    fn add_node(&mut self, node: Arc<ResolvedNode>) {
        self.nodes.insert(node.node().display_name(), NodeOutput::from_node(&node));
        self.resolved_nodes.push(node);
    }

    /// Adds a resolved cluster: its nodes, the order of its tasks, its stages and its findings. If the cluster has
    /// tasks for `master` and no such node, a pseudo node of that name is added with these tasks.
    fn add_cluster(&mut self, fleet: &Fleet, id: ClusterId, (cluster, graph): (&ClusterOutput, &ClusterGraph)) {
        for node in &cluster.nodes {
            self.add_node(Arc::clone(node));
        }
        if graph.has_pseudo_master {
            let master_classes = graph.classes.iter().filter(|class| class.profile.key.is_master);
            for class in master_classes {
                let set = pseudo_task_set(fleet, id, &class.profile);
                let master = self.nodes.entry(MASTER.to_owned()).or_default();
                let known_ids: BTreeSet<String> = master.tasks.iter().cloned().collect();
                master.tasks.extend(set.task_ids().map(str::to_owned).filter(|id| !known_ids.contains(id)));
                master.skipped.extend(set.skipped_ids().map(|(id, reason)| (id.to_owned(), reason.to_string())));
            }
        }
        let task_output = |(node, task): (Option<Arc<str>>, Arc<str>)| (node.map(|node| node.to_string()), task.to_string());
        let pairs = graph.order_pairs().into_iter();
        self.order.extend(pairs.map(|(first, second)| [task_output(first), task_output(second)]));
        for stage in graph.stages_in_order() {
            if !self.stages.iter().any(|known_stage| **known_stage == *stage) {
                self.stages.push(stage.to_string());
            }
        }
        self.findings.extend(cluster.findings.iter().cloned());
    }
}
