//! Orders the tasks of a cluster across its nodes. The order is stored as edges between classes of nodes, and not as
//! pairs of nodes.
//!
//! A *profile* is the set of tasks that nodes with the same roles and tags have. Nodes with the same profile wait for
//! the same tasks, so the order is an order of *classes* of nodes. Fuel's library on two hundred nodes has 111,760
//! pairs, but only a few thousand edges between its classes. Pairs are created only where a fleet is resolved from
//! manifests without a controller, as by `stemma resolve`.
//!
//! An edge between two classes orders every node of the first class before every node of the second. An edge within a
//! class may instead order two tasks on each node. So a cycle among classes is also a cycle among nodes, and the check
//! for cycles needs no pairs. A task with `policy: any` waits for one node only, which is in a class of its own.

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

/// A task on one node, called an *instance*: the name of the node and the id of the task. An instance without a node
/// is a stage, which orders tasks of all hosts.
pub type TaskOnNode = (Option<Arc<str>>, Arc<str>);

/// Two instances (tasks on nodes). The second instance waits for the first.
pub type InstancePair = (TaskOnNode, TaskOnNode);

/// Nodes of a cluster, perhaps of several node groups, that have the same profile, and so the same tasks.
#[derive(Clone, Debug)]
pub struct NodeClass {
    /// The profile of these nodes: their tasks, and the barriers that these tasks wait for.
    pub profile: Arc<Profile>,
    /// The names of the nodes, sorted with digits compared as numbers.
    pub nodes: Vec<Arc<str>>,
}

/// The order of the tasks of one cluster, across all of its nodes.
#[derive(Clone, Debug, Default)]
pub struct ClusterGraph {
    /// The classes of nodes. The last classes may contain the pseudo node `master`, which has the tasks that a release
    /// places on `master` if no node has that name.
    pub classes: Vec<NodeClass>,
    /// Ids of the stages of all releases in the cluster, sorted.
    pub stages: Vec<Arc<str>>,
    /// Edges between tasks of classes and stages, sorted, without duplicates.
    pub edges: Vec<ClassEdge>,
    /// Pairs of instances that `policy: any` orders and that no edge covers. With this policy, a task waits for one
    /// node only.
    pub single_pairs: BTreeSet<InstancePair>,
    /// True if a release places tasks on `master` and no node of the cluster has that name.
    pub has_pseudo_master: bool,
}

/// The error for tasks that wait for each other, on the nodes on which they are placed now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tasks wait for each other: {}; remove one of these dependencies, or place a task elsewhere", self.cycle_text())]
pub struct PlacementCycle {
    /// The instances of the cycle. The first one is repeated at the end.
    pub path: Vec<TaskOnNode>,
}

impl PlacementCycle {
    /// Creates the error from a cycle whose last instance repeats its first one. The cycle is rotated to begin with the
    /// instance that sorts first, so that the same cycle always has the same text.
    fn new(mut path: Vec<TaskOnNode>) -> Self {
        path.pop();
        let first_index = (0..path.len()).min_by_key(|index| &path[*index]).unwrap_or(0);
        path.rotate_left(first_index);
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
        match self.0 {
            (Some(node), task) => write!(f, "{node}/{task}"),
            (None, stage) => write!(f, "stage {stage}"),
        }
    }
}

impl ClusterGraph {
    /// Builds the order of a cluster from its nodes as they are now. A node that has no profile (its group has no
    /// release, or an object above the node is missing) has no tasks and is omitted.
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

    /// Builds the order of these classes of nodes. `releases` contains all releases of the cluster, because the stages
    /// of a release without a node are ordered too. If no node has the name `master`, a pseudo node of that name is
    /// added for each release that places tasks on `master`.
    pub fn new(mut classes: Vec<NodeClass>, releases: &[Arc<CompiledRelease>]) -> Self {
        let has_master = classes.iter().any(|class| class.profile.key.is_master);
        let mut graph = Self::default();
        if !has_master {
            let pseudo_masters = releases.iter().filter_map(pseudo_master);
            classes.extend(pseudo_masters);
            graph.has_pseudo_master = classes.iter().any(|class| class.profile.key.is_master);
        }
        for class in &mut classes {
            class.nodes.sort_unstable_by(|a, b| natural_cmp(a, b));
        }
        graph.classes = classes;
        let stages: BTreeSet<Arc<str>> =
            releases.iter().flat_map(|release| release.stages.iter().map(|stage| release.id(*stage).into())).collect();
        graph.stages = stages.into_iter().collect();
        graph.pick_single_pairs();
        graph.build_edges(releases);
        graph
    }

    /// Returns all pairs of instances (tasks on nodes), sorted, without duplicates. In each pair, the second instance
    /// waits for the first. No instance is paired with itself.
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

    /// Returns the ids of the stages, each after those that it waits for, directly or through tasks. Of the stages that
    /// can be next, the first by id is next. Returns an empty list if tasks wait for each other in a cycle.
    pub fn stages_in_order(&self) -> Vec<Arc<str>> {
        let vertices = self.vertices();
        let order = self.topological_order(&vertices).unwrap_or_default().into_iter();
        order.filter_map(|index| vertices.stage(index)).map(|index| Arc::clone(&self.stages[index])).collect()
    }

    /// Sorts the vertices (the tasks of each class, and the stages) so that each is after the vertices that it waits
    /// for. If a stage and a task can both be next, the stage is next. Fails with the vertices of a cycle.
    fn topological_order(&self, vertices: &Vertices) -> Result<Vec<usize>, Vec<usize>> {
        let mut edges: Vec<_> =
            self.edges.iter().map(|edge| (vertices.index_of(edge.before), vertices.index_of(edge.after))).collect();
        if !self.single_pairs.is_empty() {
            let class_by_node = ClassByNode::new(self);
            let vertex = |instance: &TaskOnNode| class_by_node.task_end(self, instance).map(|end| vertices.index_of(end));
            edges.extend(self.single_pairs.iter().filter_map(|(from, to)| Some((vertex(from)?, vertex(to)?))));
        }
        // The key of a stage is `false`, which sorts before `true`.
        topological_order(vertices.len(), &edges, |vertex| vertices.stage(vertex).is_none())
    }
}

/// Returns the profile (the set of tasks) and the name of a node, or `None` if the node has no profile.
fn placed_node(fleet: &Fleet, id: NodeId) -> Option<(&Arc<Profile>, Arc<str>)> {
    let profile = fleet.profile(id)?;
    Some((profile, fleet.node(id)?.display_name().into()))
}

/// Returns the releases that apply to the node groups of a cluster, without duplicates. A group may inherit its
/// release. A group with a missing parent or release is omitted.
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

/// Returns a class with the pseudo node `master` and the tasks that a release places on it. The caller needs the class
/// if no node of the cluster has that name. Returns `None` if the release places no task on `master`.
pub(crate) fn pseudo_master(release: &Arc<CompiledRelease>) -> Option<NodeClass> {
    let profile = Profile::new(release, ProfileKey { is_master: true, ..ProfileKey::default() });
    (!profile.tasks.is_empty()).then(|| NodeClass { profile: Arc::new(profile), nodes: vec![MASTER.into()] })
}
