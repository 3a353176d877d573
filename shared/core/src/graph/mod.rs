//! Order across the nodes of a cluster, kept as barriers and never as pairs.
//!
//! Nodes of one profile have the same tasks and wait for the same things, so the order is one between *classes* of
//! nodes: Fuel's library on two hundred nodes has 111,760 pairs, and a few thousand edges between its classes. Pairs
//! are made only for `resolve -o json`.
//!
//! An edge between two classes means every node of the one before every node of the other. So a cycle among classes
//! is one among nodes too, and the check needs no pairs either; a node that stands out (the one that a `policy: any`
//! picks) is a class of its own.

mod any;
mod build;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::fleet::Fleet;
use crate::object::{ClusterId, NodeId};
use crate::release::select::MASTER;
use crate::release::{CompiledRelease, Place, Profile, topological};
use crate::role::natural_cmp;

pub use build::{ClassEdge, Point, Reach};
use build::{Places, Vertices};

/// A task on a node; `None`: a stage, which stands on no node.
pub type Instance = (Option<Arc<str>>, Arc<str>);

/// A first one and a second one that waits for it.
pub type Pair = (Instance, Instance);

/// The nodes of a cluster that have one profile.
#[derive(Clone, Debug)]
pub struct Class {
    /// What they run.
    pub profile: Arc<Profile>,
    /// Their names, digits compared as numbers.
    pub nodes: Vec<Arc<str>>,
}

/// The order of one cluster.
#[derive(Clone, Debug, Default)]
pub struct ClusterGraph {
    /// The nodes by profile. The last ones may be the pseudo node `master`.
    pub classes: Vec<Class>,
    /// Stages by id, of all releases in the cluster.
    pub stages: Vec<Arc<str>>,
    /// Edges between classes and stages, sorted, each once.
    pub edges: Vec<ClassEdge>,
    /// Single pairs, of `policy: any`, that no edge stands for.
    pub singles: BTreeSet<Pair>,
    /// Whether what falls to `master` has no node.
    pub has_pseudo_master: bool,
}

/// Tasks that wait for each other where they stand now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tasks wait for each other: {}; take one of these dependencies away, or place a task elsewhere", self.spelled())]
pub struct PlacementCycle {
    /// The instances, the first one at the end again.
    pub path: Vec<Instance>,
}

impl PlacementCycle {
    /// Spelled from the first by name on, so that the same cycle is told in the same words.
    fn of(mut path: Vec<Instance>) -> Self {
        path.pop();
        let first = (0..path.len()).min_by_key(|at| &path[*at]).unwrap_or(0);
        path.rotate_left(first);
        path.extend(path.first().cloned());
        Self { path }
    }

    fn spelled(&self) -> String {
        self.path.iter().map(|instance| Shown(instance).to_string()).collect::<Vec<_>>().join(" -> ")
    }
}

struct Shown<'a>(&'a Instance);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.0 {
            Some(node) => write!(f, "{node}/{}", self.0.1),
            None => write!(f, "stage {}", self.0.1),
        }
    }
}

impl ClusterGraph {
    /// The order of a cluster, as its nodes are placed now.
    pub fn of(fleet: &Fleet, cluster: ClusterId) -> Self {
        let mut by_profile: BTreeMap<_, Class> = BTreeMap::new();
        for id in fleet.nodes_of_cluster(cluster) {
            let Some((profile, name)) = placed(fleet, id) else { continue };
            let class = by_profile.entry(profile.hash);
            class.or_insert_with(|| Class { profile: Arc::clone(profile), nodes: Vec::new() }).nodes.push(name);
        }
        let releases = releases(fleet, cluster);
        Self::new(by_profile.into_values().collect(), &releases)
    }

    /// The order of these classes, under these releases (a release may have stages and no node).
    pub fn new(mut classes: Vec<Class>, releases: &[Arc<CompiledRelease>]) -> Self {
        let has_master = classes.iter().any(|class| class.profile.place.is_master);
        let mut graph = Self::default();
        if !has_master {
            let pseudo = releases.iter().filter_map(pseudo_master);
            classes.extend(pseudo);
            graph.has_pseudo_master = classes.iter().any(|class| class.profile.place.is_master);
        }
        for class in &mut classes {
            class.nodes.sort_unstable_by(|a, b| natural_cmp(a, b));
        }
        graph.classes = classes;
        let stages: BTreeSet<Arc<str>> =
            releases.iter().flat_map(|one| one.stages.iter().map(|ix| one.id(*ix).into())).collect();
        graph.stages = stages.into_iter().collect();
        graph.pick_singles();
        graph.build_edges(releases);
        graph
    }

    /// Every pair once, the first before the second, none of an instance with itself; sorted.
    pub fn order_pairs(&self) -> BTreeSet<Pair> {
        let mut pairs = self.singles.clone();
        for edge in &self.edges {
            edge.pairs(self, &mut |pair| {
                pairs.insert(pair);
            });
        }
        pairs
    }

    /// Refuses a placement in which tasks wait for each other.
    ///
    /// # Errors
    /// [`PlacementCycle`], spelled out.
    pub fn check(&self) -> Result<(), PlacementCycle> {
        let vertices = self.vertices();
        match self.sorted(&vertices) {
            Ok(_) => Ok(()),
            Err(cycle) => Err(PlacementCycle::of(vertices.spell(self, &cycle))),
        }
    }

    /// The stages in their order, by id where nothing orders them. None where tasks wait for each other: no order is theirs.
    pub fn stages_in_order(&self) -> Vec<Arc<str>> {
        let vertices = self.vertices();
        let order = self.sorted(&vertices).unwrap_or_default().into_iter();
        order.filter_map(|at| vertices.stage(at)).map(|at| Arc::clone(&self.stages[at])).collect()
    }

    /// Tasks of classes and stages in order, a stage as soon as nothing is before it.
    fn sorted(&self, vertices: &Vertices) -> Result<Vec<usize>, Vec<usize>> {
        let mut edges: Vec<_> =
            self.edges.iter().map(|edge| (vertices.at(edge.before), vertices.at(edge.after))).collect();
        if !self.singles.is_empty() {
            let places = Places::new(self);
            let at = |instance: &Instance| places.find(self, instance).map(|point| vertices.at(point));
            edges.extend(self.singles.iter().filter_map(|(before, after)| Some((at(before)?, at(after)?))));
        }
        topological(vertices.len(), &edges, |at| vertices.stage(at).is_none())
    }
}

fn placed(fleet: &Fleet, id: NodeId) -> Option<(&Arc<Profile>, Arc<str>)> {
    let profile = fleet.profile(id)?;
    Some((profile, fleet.node(id)?.display_name().into()))
}

/// The releases that the groups of a cluster name, each once.
pub(crate) fn releases(fleet: &Fleet, cluster: ClusterId) -> Vec<Arc<CompiledRelease>> {
    let mut releases: BTreeMap<_, Arc<CompiledRelease>> = BTreeMap::new();
    for group in fleet.groups_of(cluster) {
        let Ok(fold) = fleet.fold(group) else { continue };
        if let Some(release) = &fold.release {
            releases.insert(release.value.hash, Arc::clone(&release.value));
        }
    }
    releases.into_values().collect()
}

/// What falls to `master` without a node of that name.
pub(crate) fn pseudo_master(release: &Arc<CompiledRelease>) -> Option<Class> {
    let profile = Profile::new(release, Place { is_master: true, ..Place::default() });
    (!profile.tasks.is_empty()).then(|| Class { profile: Arc::new(profile), nodes: vec![MASTER.into()] })
}
