//! The order across the nodes of a cluster, stored as barriers and never as pairs.
//!
//! Nodes of one profile have the same tasks and wait for the same things, so the order is one between *classes* of
//! nodes. Fuel's library on two hundred nodes has 111,760 pairs, but only a few thousand edges between its classes.
//! Pairs are created only for `resolve -o json`.
//!
//! An edge between two classes orders every node of the first before every node of the second. So a cycle among classes
//! is also a cycle among nodes, and the check needs no pairs. A node that a `policy: any` picks is a class of its own.

mod build;
mod policy_any;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::fleet::Fleet;
use crate::object::{ClusterId, NodeId};
use crate::release::name_selector::MASTER;
use crate::release::{CompiledRelease, Profile, ProfileKey, topological_order};
use crate::role::natural_cmp;

use build::{ClassByNode, Vertices};
pub use build::{ClassEdge, EdgeEnd, EdgeScope};

/// A task on a node, also called an instance: the name of the node and the id of the task. Without a node it is a
/// stage, which runs on no node.
pub type TaskOnNode = (Option<Arc<str>>, Arc<str>);

/// Two instances, of which the second waits for the first.
pub type InstancePair = (TaskOnNode, TaskOnNode);

/// The nodes of a cluster that have one profile.
#[derive(Clone, Debug)]
pub struct NodeClass {
    /// The profile of these nodes.
    pub profile: Arc<Profile>,
    /// The names of the nodes, sorted with digits compared as numbers.
    pub nodes: Vec<Arc<str>>,
}

/// The order of one cluster.
#[derive(Clone, Debug, Default)]
pub struct ClusterGraph {
    /// The nodes by profile. The last classes may be those of the pseudo node `master`.
    pub classes: Vec<NodeClass>,
    /// Stages by id, of all releases in the cluster.
    pub stages: Vec<Arc<str>>,
    /// Edges between classes and stages, sorted, each once.
    pub edges: Vec<ClassEdge>,
    /// Single pairs of `policy: any` that no edge covers.
    pub single_pairs: BTreeSet<InstancePair>,
    /// True if tasks are placed on `master` and no node has that name.
    pub has_pseudo_master: bool,
}

/// Tasks that wait for each other as they are placed now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tasks wait for each other: {}; remove one of these dependencies, or place a task elsewhere", self.cycle_text())]
pub struct PlacementCycle {
    /// The instances of the cycle. The first one is repeated at the end.
    pub path: Vec<TaskOnNode>,
}

impl PlacementCycle {
    /// Creates a cycle that begins with its first instance by name, so that the same cycle always has the same text.
    fn new(mut path: Vec<TaskOnNode>) -> Self {
        path.pop();
        let first = (0..path.len()).min_by_key(|at| &path[*at]).unwrap_or(0);
        path.rotate_left(first);
        path.extend(path.first().cloned());
        Self { path }
    }

    /// Returns the instances of the cycle, joined by arrows.
    fn cycle_text(&self) -> String {
        self.path.iter().map(|instance| InstanceText(instance).to_string()).collect::<Vec<_>>().join(" -> ")
    }
}

/// Displays an instance as `NODE/TASK` or `stage STAGE`.
struct InstanceText<'a>(&'a TaskOnNode);

impl fmt::Display for InstanceText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.0 {
            Some(node) => write!(f, "{node}/{}", self.0.1),
            None => write!(f, "stage {}", self.0.1),
        }
    }
}

impl ClusterGraph {
    /// Builds the order of a cluster, as its nodes are placed now.
    pub fn from_fleet(fleet: &Fleet, cluster: ClusterId) -> Self {
        let mut by_profile: BTreeMap<_, NodeClass> = BTreeMap::new();
        for id in fleet.nodes_in_cluster(cluster) {
            let Some((profile, name)) = placed_node(fleet, id) else { continue };
            let class = by_profile.entry(profile.hash);
            class.or_insert_with(|| NodeClass { profile: Arc::clone(profile), nodes: Vec::new() }).nodes.push(name);
        }
        let releases = releases(fleet, cluster);
        Self::new(by_profile.into_values().collect(), &releases)
    }

    /// Builds the order of these classes. `releases` are those of the cluster, because a release may have stages
    /// without having a node.
    pub fn new(mut classes: Vec<NodeClass>, releases: &[Arc<CompiledRelease>]) -> Self {
        let has_master = classes.iter().any(|class| class.profile.key.is_master);
        let mut graph = Self::default();
        if !has_master {
            let pseudo = releases.iter().filter_map(pseudo_master);
            classes.extend(pseudo);
            graph.has_pseudo_master = classes.iter().any(|class| class.profile.key.is_master);
        }
        for class in &mut classes {
            class.nodes.sort_unstable_by(|a, b| natural_cmp(a, b));
        }
        graph.classes = classes;
        let stages: BTreeSet<Arc<str>> =
            releases.iter().flat_map(|release| release.stages.iter().map(|ix| release.id(*ix).into())).collect();
        graph.stages = stages.into_iter().collect();
        graph.pick_single_pairs();
        graph.build_edges(releases);
        graph
    }

    /// Returns all pairs, sorted, each once. In each pair, the second instance waits for the first. No instance is
    /// paired with itself.
    pub fn order_pairs(&self) -> BTreeSet<InstancePair> {
        let mut pairs = self.single_pairs.clone();
        for edge in &self.edges {
            edge.for_each_pair(self, &mut |pair| {
                pairs.insert(pair);
            });
        }
        pairs
    }

    /// Checks that no tasks wait for each other.
    ///
    /// # Errors
    /// [`PlacementCycle`] with the tasks of the first cycle.
    pub fn check(&self) -> Result<(), PlacementCycle> {
        let vertices = self.vertices();
        match self.topological_order(&vertices) {
            Ok(_) => Ok(()),
            Err(cycle) => Err(PlacementCycle::new(vertices.cycle_instances(self, &cycle))),
        }
    }

    /// Returns the stages in their order, and by id if the order does not decide. Empty if tasks wait for each other.
    pub fn stages_in_order(&self) -> Vec<Arc<str>> {
        let vertices = self.vertices();
        let order = self.topological_order(&vertices).unwrap_or_default().into_iter();
        order.filter_map(|at| vertices.stage(at)).map(|at| Arc::clone(&self.stages[at])).collect()
    }

    /// Sorts the tasks of classes and the stages by the edges and single pairs. Among the vertices that may come next,
    /// a stage comes first. Fails with the vertices of a cycle.
    fn topological_order(&self, vertices: &Vertices) -> Result<Vec<usize>, Vec<usize>> {
        let mut edges: Vec<_> =
            self.edges.iter().map(|edge| (vertices.index_of(edge.before), vertices.index_of(edge.after))).collect();
        if !self.single_pairs.is_empty() {
            let places = ClassByNode::new(self);
            let at = |instance: &TaskOnNode| places.task_end(self, instance).map(|point| vertices.index_of(point));
            edges.extend(self.single_pairs.iter().filter_map(|(before, after)| Some((at(before)?, at(after)?))));
        }
        topological_order(vertices.len(), &edges, |at| vertices.stage(at).is_none())
    }
}

/// Returns the profile and the name of a node, or `None` if the node has no profile.
fn placed_node(fleet: &Fleet, id: NodeId) -> Option<(&Arc<Profile>, Arc<str>)> {
    let profile = fleet.profile(id)?;
    Some((profile, fleet.node(id)?.display_name().into()))
}

/// Returns the releases that the groups of a cluster name, each once.
pub(crate) fn releases(fleet: &Fleet, cluster: ClusterId) -> Vec<Arc<CompiledRelease>> {
    let mut releases: BTreeMap<_, Arc<CompiledRelease>> = BTreeMap::new();
    for group in fleet.groups_in_cluster(cluster) {
        let Ok(resolved) = fleet.resolved_group(group) else { continue };
        if let Some(release) = &resolved.release {
            releases.insert(release.value.hash, Arc::clone(&release.value));
        }
    }
    releases.into_values().collect()
}

/// Returns the class of the pseudo node `master` under a release, for a cluster without a node of that name. `None` if
/// the release places no task on it.
pub(crate) fn pseudo_master(release: &Arc<CompiledRelease>) -> Option<NodeClass> {
    let profile = Profile::new(release, ProfileKey { is_master: true, ..ProfileKey::default() });
    (!profile.tasks.is_empty()).then(|| NodeClass { profile: Arc::new(profile), nodes: vec![MASTER.into()] })
}
