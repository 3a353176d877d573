//! Resolves a whole cluster or a whole fleet, as `stemma resolve` prints it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use super::NodeOutput;
use super::node::{ResolveCache, pseudo_task_set, resolve_node};
use super::resolved_node::{Resolution, ResolvedNode};
use super::{
    FailingTasks, UnsetReferences, all_catalog_findings, catalog_findings, cluster_findings, is_aggregated, level_findings,
    unset_in_empty_groups,
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
    /// The nodes by name. Tasks that are placed on `master` without such a node are listed under that name.
    pub nodes: BTreeMap<String, NodeOutput>,
    /// The stages, each id once, in order.
    pub stages: Vec<String>,
    /// Pairs of a task that runs first and a task that runs after it, each pair once. A `null` node stands for a stage.
    pub order: BTreeSet<[(Option<String>, String); 2]>,
    /// The findings, each once, the most severe first, then by the object that they are about.
    pub findings: Vec<Finding>,
    /// The nodes that are listed in `nodes`, with the origin of each value, by uuid.
    #[serde(skip)]
    pub resolved_nodes: Vec<Arc<ResolvedNode>>,
}

/// One cluster, resolved.
#[derive(Clone, Debug)]
pub struct ClusterOutput {
    /// The nodes, by name (digits compared as numbers).
    pub nodes: Vec<Arc<ResolvedNode>>,
    /// The findings.
    pub findings: Vec<Finding>,
    /// The nodes that cannot be resolved, each with what is missing.
    pub incomplete: Vec<(NodeId, Vec<MissingParent>)>,
}

/// The reason why a fleet cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// An object above a node is missing.
    #[error("node {node}: {}", missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Incomplete {
        /// The node.
        node: String,
        /// What is missing.
        missing: Vec<MissingParent>,
    },
    /// The placement of tasks makes them wait for each other.
    #[error("cluster {cluster}: {cycle}")]
    Cycle {
        /// The cluster.
        cluster: String,
        /// The cycle.
        cycle: PlacementCycle,
    },
}

/// Resolves all nodes of a cluster.
pub fn resolve_cluster(fleet: &Fleet, cache: &ResolveCache, id: ClusterId) -> ClusterOutput {
    let mut output = resolve_nodes(fleet, cache, id);
    output.findings.extend(aggregated_findings(output.nodes.iter()));
    output.findings.extend(unset_in_empty_groups(fleet, fleet.groups_in_cluster(id)));
    output.findings.extend(catalog_findings(fleet, id));
    output
}

/// Returns the findings that are made once for all of these nodes, such as a label that many hosts lack.
fn aggregated_findings<'a>(nodes: impl Iterator<Item = &'a Arc<ResolvedNode>>) -> Vec<Finding> {
    let (mut unset, mut failed) = (UnsetReferences::default(), FailingTasks::default());
    for node in nodes {
        unset.add(node);
        failed.add(node);
    }
    unset.findings().into_iter().chain(failed.into_findings().map(|(finding, _)| finding)).collect()
}

/// Resolves the nodes of a cluster. Omits the findings that are made once for several nodes ([`aggregated_findings`])
/// and those about the catalogue.
fn resolve_nodes(fleet: &Fleet, cache: &ResolveCache, id: ClusterId) -> ClusterOutput {
    let (mut nodes, mut incomplete) = (Vec::new(), Vec::new());
    for node in fleet.nodes_in_cluster(id) {
        match resolve_node(fleet, cache, node) {
            Resolution::Complete(resolved) => nodes.push(resolved),
            Resolution::Incomplete(missing) => incomplete.push((node, missing)),
        }
    }
    nodes.sort_by(|a, b| natural_cmp(&a.node().display_name(), &b.node().display_name()));
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
/// One error for each node for which something is missing, and for each cycle in the placement.
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

/// Returns whether the node is in an existing cluster, so that it is resolved with that cluster.
fn is_in_cluster(fleet: &Fleet, node: &Node) -> bool {
    fleet.cluster_of_node(node.id()).is_some_and(|cluster| fleet.cluster(cluster).is_some())
}

impl FleetOutput {
    /// Adds the nodes that are in no cluster. Returns an error for each node for which something is missing.
    fn add_unclustered(&mut self, fleet: &Fleet, cache: &ResolveCache) -> Vec<ResolveError> {
        let mut errors = Vec::new();
        for node in fleet.nodes().filter(|node| !is_in_cluster(fleet, node)) {
            match resolve_node(fleet, cache, node.id()) {
                Resolution::Complete(resolved) => {
                    self.findings.extend(resolved.findings());
                    self.add_node(resolved);
                }
                Resolution::Incomplete(missing) => {
                    errors.push(ResolveError::Incomplete { node: node.display_name(), missing });
                }
            }
        }
        errors
    }

    /// Adds the findings that are not made per cluster: those about templates, releases and the catalogue, and those
    /// that are made once for several nodes. Then sorts all findings.
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

    /// Adds a resolved cluster: its nodes, the tasks of a missing `master`, the order of its tasks, its stages and its
    /// findings.
    fn add_cluster(&mut self, fleet: &Fleet, id: ClusterId, (cluster, graph): (&ClusterOutput, &ClusterGraph)) {
        for node in &cluster.nodes {
            self.add_node(Arc::clone(node));
        }
        if graph.has_pseudo_master {
            let pseudo = graph.classes.iter().filter(|class| class.profile.key.is_master);
            for class in pseudo {
                let set = pseudo_task_set(fleet, id, &class.profile);
                let master = self.nodes.entry(MASTER.to_owned()).or_default();
                let known: BTreeSet<String> = master.tasks.iter().cloned().collect();
                master.tasks.extend(set.task_ids().map(str::to_owned).filter(|id| !known.contains(id)));
                master.skipped.extend(set.skipped_ids().map(|(id, why)| (id.to_owned(), why.to_string())));
            }
        }
        let end = |(node, task): (Option<Arc<str>>, Arc<str>)| (node.map(|node| node.to_string()), task.to_string());
        let pairs = graph.order_pairs().into_iter();
        self.order.extend(pairs.map(|(before, after)| [end(before), end(after)]));
        for stage in graph.stages_in_order() {
            if !self.stages.iter().any(|known| **known == *stage) {
                self.stages.push(stage.to_string());
            }
        }
        self.findings.extend(cluster.findings.iter().cloned());
    }
}
