//! Everything at once: a cluster, or a fleet, as `stemma resolve` prints it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use super::PlainAnswer;
use super::answer::{Answer, Resolution};
use super::node::{ResolveCache, pseudo_task_set, resolve_node};
use super::{
    FailingTasks, Unset, all_catalog_findings, catalog_findings, cluster_findings, is_told_together, level_findings,
    unset_in_empty,
};
use crate::catalog::Meant;
use crate::finding::{Finding, sort_findings};
use crate::fleet::{Fleet, Missing};
use crate::graph::{ClusterGraph, PlacementCycle};
use crate::idle;
use crate::object::{ClusterId, ClusterTemplate, GroupId, LevelId, Node, NodeId, TemplateId};
use crate::release::select::MASTER;
use crate::role::natural_cmp;

/// A fleet, resolved: what `stemma resolve -o json` prints.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FleetAnswer {
    /// The nodes by name; what falls to `master` without such a node stands under that name.
    pub nodes: BTreeMap<String, PlainAnswer>,
    /// The stages, each id once, in order.
    pub stages: Vec<String>,
    /// Every pair once, the first before the second; `null` is the stages' node.
    pub order: BTreeSet<[(Option<String>, String); 2]>,
    /// What a person should know: each thing once, the gravest first, then by what it is about.
    pub findings: Vec<Finding>,
    /// The same nodes with the origin of each value, by uuid.
    #[serde(skip)]
    pub answers: Vec<Arc<Answer>>,
}

/// One cluster, resolved.
#[derive(Clone, Debug)]
pub struct ClusterAnswer {
    /// The nodes, by name (digits compared as numbers).
    pub nodes: Vec<Arc<Answer>>,
    /// What a person should know.
    pub findings: Vec<Finding>,
    /// The nodes of which something is missing, and what.
    pub incomplete: Vec<(NodeId, Vec<Missing>)>,
}

/// Why a fleet can't be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// Something above a node is not there.
    #[error("node {node}: {}", missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Incomplete {
        /// The node.
        node: String,
        /// What is missing.
        missing: Vec<Missing>,
    },
    /// Tasks wait for each other as they are placed.
    #[error("cluster {cluster}: {cycle}")]
    Cycle {
        /// The cluster.
        cluster: String,
        /// The cycle.
        cycle: PlacementCycle,
    },
}

/// Resolves all nodes of a cluster.
pub fn resolve_cluster(fleet: &Fleet, cache: &ResolveCache, id: ClusterId) -> ClusterAnswer {
    let mut answer = resolve_nodes(fleet, cache, id);
    answer.findings.extend(of_hosts(answer.nodes.iter()));
    answer.findings.extend(unset_in_empty(fleet, fleet.groups_of(id)));
    answer.findings.extend(catalog_findings(fleet, id));
    answer
}

/// What is found about hosts and told once for all of them.
fn of_hosts<'a>(answers: impl Iterator<Item = &'a Arc<Answer>>) -> Vec<Finding> {
    let (mut unset, mut failed) = (Unset::default(), FailingTasks::default());
    for answer in answers {
        unset.add(answer);
        failed.add(answer);
    }
    unset.findings().into_iter().chain(failed.found().map(|(finding, _)| finding)).collect()
}

/// A cluster, but for what is found about all clusters together.
fn resolve_nodes(fleet: &Fleet, cache: &ResolveCache, id: ClusterId) -> ClusterAnswer {
    let (mut nodes, mut incomplete) = (Vec::new(), Vec::new());
    for node in fleet.nodes_of_cluster(id) {
        match resolve_node(fleet, cache, node) {
            Resolution::Complete(answer) => nodes.push(answer),
            Resolution::Incomplete(missing) => incomplete.push((node, missing)),
        }
    }
    nodes.sort_by(|a, b| natural_cmp(&a.node().display_name(), &b.node().display_name()));
    let mut findings = cluster_findings(fleet, id);
    let own = nodes.iter().flat_map(|answer| answer.findings());
    findings.extend(own.filter(|finding| !is_told_together(finding)));
    let releases: BTreeMap<_, _> =
        nodes.iter().filter_map(|answer| answer.release()).map(|one| (&one.name, one)).collect();
    findings.extend(releases.into_values().flat_map(|release| release.findings.iter().cloned()));
    ClusterAnswer { nodes, findings, incomplete }
}

/// Resolves a whole fleet.
///
/// # Errors
/// Every node of which something is missing, and every cycle by placement.
pub fn resolve_fleet(fleet: &Fleet, cache: &ResolveCache) -> Result<FleetAnswer, Vec<ResolveError>> {
    let mut whole = FleetAnswer::default();
    let mut errors = Vec::new();
    for cluster in fleet.clusters() {
        let id = ClusterId(cluster.meta.uuid);
        let (answer, graph) = (resolve_nodes(fleet, cache, id), ClusterGraph::of(fleet, id));
        errors.extend(answer.incomplete.iter().map(|(node, missing)| {
            let node = fleet.node(*node).map_or_else(|| node.to_string(), |node| node.display_name());
            ResolveError::Incomplete { node, missing: missing.clone() }
        }));
        if let Err(cycle) = graph.check() {
            errors.push(ResolveError::Cycle { cluster: cluster.meta.name.to_string(), cycle });
        }
        if errors.is_empty() {
            whole.add(fleet, id, (&answer, &graph));
        }
    }
    errors.extend(whole.add_outside(fleet, cache));
    if !errors.is_empty() {
        return Err(errors);
    }
    whole.find(fleet);
    whole.answers.sort_by_key(|answer| answer.id());
    Ok(whole)
}

/// Whether the node was resolved with a cluster.
fn is_in_cluster(fleet: &Fleet, node: &Node) -> bool {
    fleet.cluster_of_node(node.id()).is_some_and(|cluster| fleet.cluster(cluster).is_some())
}

impl FleetAnswer {
    /// Adds the nodes that stand in no cluster; gives those of which something is missing.
    fn add_outside(&mut self, fleet: &Fleet, cache: &ResolveCache) -> Vec<ResolveError> {
        let mut errors = Vec::new();
        for node in fleet.nodes().filter(|node| !is_in_cluster(fleet, node)) {
            match resolve_node(fleet, cache, node.id()) {
                Resolution::Complete(answer) => {
                    self.findings.extend(answer.findings());
                    self.add_node(answer);
                }
                Resolution::Incomplete(missing) => {
                    errors.push(ResolveError::Incomplete { node: node.display_name(), missing });
                }
            }
        }
        errors
    }

    /// Adds what is found of the fleet as a whole.
    fn find(&mut self, fleet: &Fleet) {
        let templates = fleet.templates();
        let of_template =
            |one: &Arc<ClusterTemplate>| idle::findings(&format!("clustertemplate/{}", one.meta.name), &one.spec);
        self.findings.extend(templates.flat_map(of_template));
        let levels = fleet.templates().map(|one| LevelId::Template(TemplateId(one.meta.uuid)));
        self.findings.extend(levels.flat_map(|level| level_findings(fleet, level)));
        self.findings.extend(fleet.releases().flat_map(|release| release.findings.iter().cloned()));
        self.findings.extend(of_hosts(self.answers.iter()));
        self.findings.extend(unset_in_empty(fleet, fleet.groups().map(|group| GroupId(group.meta.uuid))));
        self.findings.extend(all_catalog_findings(fleet, &Meant::default()).flatten());
        sort_findings(&mut self.findings);
    }

    fn add_node(&mut self, answer: Arc<Answer>) {
        self.nodes.insert(answer.node().display_name(), PlainAnswer::of(&answer));
        self.answers.push(answer);
    }

    fn add(&mut self, fleet: &Fleet, id: ClusterId, (cluster, graph): (&ClusterAnswer, &ClusterGraph)) {
        for answer in &cluster.nodes {
            self.add_node(Arc::clone(answer));
        }
        if graph.has_pseudo_master {
            let pseudo = graph.classes.iter().filter(|class| class.profile.place.is_master);
            for class in pseudo {
                let set = pseudo_task_set(fleet, id, &class.profile);
                let master = self.nodes.entry(MASTER.to_owned()).or_default();
                let known: BTreeSet<String> = master.tasks.iter().cloned().collect();
                master.tasks.extend(set.task_ids().map(str::to_owned).filter(|id| !known.contains(id)));
                master.skipped.extend(set.left_out_ids().map(|(id, why)| (id.to_owned(), why.to_string())));
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
