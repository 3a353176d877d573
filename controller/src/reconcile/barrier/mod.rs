//! Barriers: which of a node's are open, from what the others' tasks came to.
//!
//! All nodes of a cluster are one wave until there are rollouts. A barrier opens when each node that it means has
//! succeeded in its task, in the task set that it is to have now. Nodes that are parked (by their spec or on their
//! hosts), or do not apply, stand outside. A stage opens with all that it waits for. What is open is no part of a
//! desired state's digest.
//!
//! The groups of a cluster may run different releases. A selector means a node by its names and a task of that id,
//! whichever release it is of; a stage of one name is one stage. So a barrier waits for what the order waits for that is
//! checked when nodes are placed, and that `resolve` prints.
//!
//! A wave is kept from pass to pass. It is looked at anew when a node of its cluster is resolved anew, and otherwise a
//! result costs what it changes: the barriers of its task, and the nodes for which one of them opens or shuts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use stemma_core::digest::ReleaseHash;
use stemma_core::fleet::Fleet;
use stemma_core::object::{ClusterId, NodeId};
use stemma_core::release::{Barrier, CompiledRelease, Profile, Source, TaskIx};
use stemma_core::task::Policy;
use stemma_wire::message::{Revision, desired};
use uuid::Uuid;

use super::encode;
use crate::cache::Model;
use crate::desired::DesiredTable;
use crate::records::reported::is_success;

/// What is looked at.
#[derive(Clone, Copy)]
pub(crate) struct Sight<'a> {
    /// What nodes are to have.
    pub(crate) table: &'a DesiredTable,
    /// What became of their tasks.
    pub(crate) model: &'a Model,
    /// How they are placed.
    pub(crate) fleet: &'a Fleet,
}

/// The waves of all clusters, as the passes so far left them.
#[derive(Default)]
pub(super) struct Waves {
    of: HashMap<ClusterId, Wave>,
    /// Where each node stood when they last looked at it. Not what the pass before knew of it, which may have ended without a look
    /// at the waves.
    stood: HashMap<Uuid, ClusterId>,
}

/// What a pass touched.
pub(super) struct Touched<'a> {
    /// Nodes that were resolved anew, or are gone.
    pub(super) resolved: &'a BTreeSet<Uuid>,
    /// Nodes whose tasks went on, each with the tasks.
    pub(super) results: &'a BTreeMap<Uuid, BTreeSet<String>>,
}

impl Waves {
    /// Opens what can be opened, by what was touched.
    pub(super) fn open(&mut self, sight: Sight<'_>, touched: &Touched<'_>, revision: Revision) {
        let of = |node: &Uuid| cluster_of(sight.fleet, NodeId(*node));
        let mut anew = BTreeSet::new();
        for node in touched.resolved {
            let stands = of(node);
            let stood = match stands {
                Some(cluster) => self.stood.insert(*node, cluster),
                None => self.stood.remove(node),
            };
            anew.extend(stands.into_iter().chain(stood));
        }
        for cluster in &anew {
            if sight.fleet.cluster(*cluster).is_none() {
                self.of.remove(cluster);
                continue;
            }
            let wave = Wave::of(sight, *cluster);
            wave.tell(sight, *cluster, &Told::All, revision);
            self.of.insert(*cluster, wave);
        }
        let mut told: BTreeMap<ClusterId, Told> = BTreeMap::new();
        for (node, tasks) in touched.results {
            let Some(cluster) = of(node).filter(|cluster| !anew.contains(cluster)) else { continue };
            let news = match self.of.get_mut(&cluster) {
                Some(wave) => wave.take(sight, cluster, NodeId(*node), tasks),
                None => {
                    self.of.insert(cluster, Wave::of(sight, cluster));
                    Told::All
                }
            };
            told.entry(cluster).or_insert_with(|| Told::These(BTreeSet::new())).extend(news);
        }
        for (cluster, told) in told {
            self.of[&cluster].tell(sight, cluster, &told, revision);
        }
    }
}

fn cluster_of(fleet: &Fleet, node: NodeId) -> Option<ClusterId> {
    let group = fleet.node(node)?.spec.nodegroup?;
    Some(fleet.group(group)?.spec.cluster)
}

/// Whose open barriers may be others.
enum Told {
    All,
    These(BTreeSet<NodeId>),
}

impl Told {
    fn extend(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::All, _) => {}
            (_, Self::All) => *self = Self::All,
            (Self::These(nodes), Self::These(more)) => nodes.extend(more),
        }
    }
}

/// Which barrier it is: a task's place means something in its own release alone, and groups may run different ones.
type Key = (ReleaseHash, TaskIx, String, bool);

fn key(release: &CompiledRelease, barrier: &Barrier) -> Key {
    (release.hash, barrier.task, barrier.source.to_string(), barrier.policy == Policy::Any)
}

/// One cluster's barriers.
struct Wave {
    points: HashMap<Key, Point>,
    /// The barriers of each task, by its id.
    of_task: HashMap<String, Vec<Key>>,
    /// What each stage waits for, by its id, each wait with the release that says so.
    stages: HashMap<String, Vec<Wait>>,
    /// Barriers that a stage waits for: with one of them opens more than itself.
    of_stages: BTreeSet<Key>,
}

type Wait = (Arc<CompiledRelease>, Barrier);

/// One barrier that waits for a task on nodes.
struct Point {
    barrier: Barrier,
    release: Arc<CompiledRelease>,
    /// Nodes that it means and that have not succeeded.
    waits_for: BTreeSet<NodeId>,
    /// Whether nodes are meant, of which one has succeeded or there is none: what `policy: any` asks.
    any: bool,
}

/// The nodes that a barrier still waits for: none, one (who is not held back by itself), or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Nobody,
    For(NodeId),
    ForMore,
}

impl Point {
    fn new(release: &Arc<CompiledRelease>, barrier: &Barrier, sight: Sight<'_>, cluster: ClusterId) -> Self {
        let release = Arc::clone(release);
        let mut point = Self { barrier: barrier.clone(), release, waits_for: BTreeSet::new(), any: false };
        point.look(sight, cluster);
        point
    }

    fn look(&mut self, sight: Sight<'_>, cluster: ClusterId) {
        let (mut waits_for, mut meant) = (BTreeSet::new(), 0);
        for (_, nodes) in sight.fleet.placed_in(cluster).filter(|(profile, _)| self.means(profile)) {
            let task = self.release.id(self.barrier.task);
            for node in nodes.iter().filter(|node| sight.fleet.takes_part(**node)) {
                meant += 1;
                if !sight.has_succeeded(*node, task) {
                    waits_for.insert(*node);
                }
            }
        }
        self.any = meant == 0 || waits_for.len() < meant;
        self.waits_for = waits_for;
    }

    fn means(&self, profile: &Profile) -> bool {
        let is_own = profile.release.hash == self.release.hash;
        let ix = match (is_own, &self.barrier.source) {
            (true, _) => Some(self.barrier.task),
            (false, Source::Stage | Source::Anywhere) => None,
            (false, _) => profile.release.find(self.release.id(self.barrier.task)),
        };
        ix.is_some_and(|ix| profile.has(ix))
            && profile.place.is_source(self.release.matching.roles, &self.barrier.source)
    }

    /// Takes in what became of the task on one node.
    fn take(&mut self, sight: Sight<'_>, cluster: ClusterId, node: NodeId) {
        if self.barrier.policy == Policy::Any {
            return self.look(sight, cluster);
        }
        let is_meant = sight.fleet.profile(node).is_some_and(|profile| self.means(profile));
        if is_meant && sight.fleet.takes_part(node) && !sight.has_succeeded(node, self.release.id(self.barrier.task)) {
            self.waits_for.insert(node);
        } else {
            self.waits_for.remove(&node);
        }
    }

    fn waiting(&self) -> Waiting {
        match self.barrier.policy {
            Policy::Any if self.any => Waiting::Nobody,
            // The only one that is meant does not wait for itself.
            Policy::Any | Policy::All => {
                let mut nodes = self.waits_for.iter();
                match (nodes.next(), nodes.next()) {
                    (None, _) => Waiting::Nobody,
                    (Some(one), None) => Waiting::For(*one),
                    (Some(_), Some(_)) => Waiting::ForMore,
                }
            }
        }
    }
}

impl Wave {
    fn of(sight: Sight<'_>, cluster: ClusterId) -> Self {
        let mut wave = Self::empty();
        for (profile, _) in sight.fleet.placed_in(cluster) {
            for barrier in &profile.barriers {
                wave.add(&profile.release, barrier, sight, cluster);
            }
        }
        wave
    }

    fn empty() -> Self {
        let (points, of_task, stages) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { points, of_task, stages, of_stages: BTreeSet::new() }
    }

    fn add(&mut self, release: &Arc<CompiledRelease>, barrier: &Barrier, sight: Sight<'_>, cluster: ClusterId) {
        let task = release.id(barrier.task);
        if matches!(barrier.source, Source::Stage) {
            if self.stages.contains_key(task) {
                return;
            }
            let waits = stage_waits(sight.fleet, cluster, task);
            self.stages.insert(task.to_owned(), waits.clone());
            for (release, wait) in &waits {
                self.add(release, wait, sight, cluster);
                self.of_stages.insert(key(release, wait));
            }
            return;
        }
        let key = key(release, barrier);
        if !self.points.contains_key(&key) {
            self.of_task.entry(task.to_owned()).or_default().push(key.clone());
            self.points.insert(key, Point::new(release, barrier, sight, cluster));
        }
    }

    /// Takes in what became of tasks on one node; gives those for whom something opened or shut by it.
    fn take(&mut self, sight: Sight<'_>, cluster: ClusterId, node: NodeId, tasks: &BTreeSet<String>) -> Told {
        let mut told = Told::These(BTreeSet::new());
        for key in tasks.iter().filter_map(|task| self.of_task.get(task)).flatten() {
            let Some(point) = self.points.get_mut(key) else { continue };
            let before = point.waiting();
            point.take(sight, cluster, node);
            let after = point.waiting();
            if before == after {
                continue;
            }
            told.extend(match (before, after) {
                _ if self.of_stages.contains(key) => Told::All,
                (Waiting::Nobody, _) | (_, Waiting::Nobody) => Told::All,
                (before, after) => Told::These([before, after].into_iter().filter_map(Waiting::only).collect()),
            });
        }
        told
    }

    /// Opens barriers for nodes: those that are open by now, and no others.
    fn tell(&self, sight: Sight<'_>, cluster: ClusterId, told: &Told, revision: Revision) {
        if matches!(told, Told::These(nodes) if nodes.is_empty()) {
            return;
        }
        for (profile, nodes) in sight.fleet.placed_in(cluster).filter(|(profile, _)| !profile.barriers.is_empty()) {
            let states: Vec<(desired::Barrier, Waiting)> = profile
                .barriers
                .iter()
                .map(|barrier| (encode::barrier(profile, barrier), self.waiting(&profile.release, barrier)))
                .collect();
            let tell = |node: &NodeId| {
                let Some((_, task_set)) = sight.table.digests(node.0) else { return };
                let open = states.iter().filter(|(_, waiting)| waiting.is_over_for(*node));
                let open = open.map(|(barrier, _)| barrier.clone()).collect();
                sight.table.open_barriers(node.0, revision, task_set, open);
            };
            match told {
                Told::All => nodes.iter().for_each(tell),
                Told::These(some) => some.iter().filter(|node| nodes.contains(*node)).for_each(tell),
            }
        }
    }

    fn waiting(&self, release: &CompiledRelease, barrier: &Barrier) -> Waiting {
        let mut waiting = Waiting::Nobody;
        self.each(release, barrier, &mut BTreeSet::new(), &mut |point| waiting = waiting.and(point.waiting()));
        waiting
    }

    /// What a barrier waits for: itself, or all that its stage waits for, each stage once.
    fn each<'a>(
        &'a self,
        release: &CompiledRelease,
        barrier: &Barrier,
        stages: &mut BTreeSet<&'a str>,
        give: &mut dyn FnMut(&'a Point),
    ) {
        if !matches!(barrier.source, Source::Stage) {
            self.points.get(&key(release, barrier)).into_iter().for_each(give);
            return;
        }
        let Some((stage, waits)) = self.stages.get_key_value(release.id(barrier.task)) else { return };
        if stages.insert(stage) {
            for (release, wait) in waits {
                self.each(release, wait, stages, give);
            }
        }
    }
}

/// What a stage waits for by every release of a cluster that has it.
fn stage_waits(fleet: &Fleet, cluster: ClusterId, stage: &str) -> Vec<Wait> {
    let folds = fleet.groups_of(cluster).filter_map(|group| fleet.fold(group).ok());
    let releases: BTreeMap<ReleaseHash, &Arc<CompiledRelease>> =
        folds.filter_map(|fold| fold.release.as_ref()).map(|release| (release.value.hash, &release.value)).collect();
    let mut waits = Vec::new();
    for release in releases.into_values() {
        let own = release.stages.iter().filter(|ix| release.id(**ix) == stage);
        waits.extend(own.flat_map(|ix| release.stage_waits(*ix)).map(|wait| (Arc::clone(release), wait)));
    }
    waits
}

impl Waiting {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nobody, waiting) | (waiting, Self::Nobody) => waiting,
            (Self::For(one), Self::For(same)) if one == same => self,
            (Self::For(_) | Self::ForMore, Self::For(_) | Self::ForMore) => Self::ForMore,
        }
    }

    fn is_over_for(self, asking: NodeId) -> bool {
        match self {
            Self::Nobody => true,
            Self::For(node) => node == asking,
            Self::ForMore => false,
        }
    }

    fn only(self) -> Option<NodeId> {
        match self {
            Self::For(node) => Some(node),
            Self::Nobody | Self::ForMore => None,
        }
    }
}

impl Sight<'_> {
    /// Whether a node has succeeded in a task of the task set that it is to have now; a task that is left out there is done.
    fn has_succeeded(&self, node: NodeId, task: &str) -> bool {
        let Some((_, task_set)) = self.table.digests(node.0) else { return false };
        let is_left_out =
            self.model.released.get(&node.0).is_some_and(|record| record.task_set.left_out.contains_key(task));
        let outcome = self.model.results.get(&node.0).and_then(|record| record.tasks.get(task));
        is_left_out || outcome.is_some_and(|one| one.result.task_set == task_set && is_success(one.result.outcome))
    }
}

/// A barrier that a node waits at.
pub(crate) struct Shut {
    /// The barrier, as both ends name it.
    pub(crate) barrier: desired::Barrier,
    /// The nodes that it waits for, the first few by uuid.
    pub(crate) nodes: Vec<NodeId>,
    /// How many there are in all.
    pub(crate) count: usize,
}

/// The most nodes that a barrier names.
const MOST_NAMED: usize = 10;

/// The barriers that are not open for a node, and for whom they wait. Looked at anew, for a person who asks.
pub(crate) fn shut(sight: Sight<'_>, node: NodeId) -> Vec<Shut> {
    let (Some(profile), Some(cluster)) = (sight.fleet.profile(node), cluster_of(sight.fleet, node)) else {
        return Vec::new();
    };
    let mut wave = Wave::empty();
    let mut shut = Vec::new();
    for barrier in &profile.barriers {
        wave.add(&profile.release, barrier, sight, cluster);
        if wave.waiting(&profile.release, barrier).is_over_for(node) {
            continue;
        }
        let mut nodes = BTreeSet::new();
        wave.each(&profile.release, barrier, &mut BTreeSet::new(), &mut |point| {
            if point.waiting() != Waiting::Nobody {
                nodes.extend(&point.waits_for);
            }
        });
        let count = nodes.len();
        let nodes = nodes.into_iter().take(MOST_NAMED).collect();
        shut.push(Shut { barrier: encode::barrier(profile, barrier), nodes, count });
    }
    shut
}

#[cfg(test)]
mod tests;
