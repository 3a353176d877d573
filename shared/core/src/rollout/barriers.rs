//! Which barriers of a node are open, from what became of other nodes' tasks.
//!
//! All nodes of a cluster are one wave until there are rollouts. A barrier opens when each node that it means has succeeded in its
//! task, in the task set that it is to have now. Nodes that are parked (by their spec or on their hosts), or do not apply, stand
//! outside. A stage opens with all that it waits for.
//!
//! The groups of a cluster may run different releases. A selector means a node by its names and a task of that id, whichever
//! release it is of; a stage of one name is one stage. So a barrier waits for what the order waits for that is checked when nodes
//! are placed, and that `resolve` prints.
//!
//! A wave is kept from change to change: it is built again only where the profiles or releases of its cluster are others
//! ([`Wave::is_current`]). A node that comes, goes or gets another task set, and a result, cost the barriers concerned.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::digest::ReleaseHash;
use crate::fleet::Fleet;
use crate::object::{ClusterId, NodeId};
use crate::release::{Barrier, CompiledRelease, Profile, ProfileHash, Source, TaskIx};
use crate::task::Policy;

/// What became of tasks.
pub trait TaskResults {
    /// The identity of the task set that a node is to have now.
    fn task_set(&self, node: NodeId) -> Option<[u8; 32]>;
    /// What became of a task of that task set on a node.
    fn done(&self, node: NodeId, task: &str) -> Done;
}

/// What became of a task on a node, as far as others wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It is left out there.
    LeftOut,
    /// It has not succeeded, or nothing was heard of it yet.
    NotYet,
    /// It has succeeded.
    Succeeded,
}

impl Done {
    /// Whether nobody waits for it any more: nor for a task that is left out, which never runs.
    const fn is_over(self) -> bool {
        match self {
            Self::LeftOut | Self::Succeeded => true,
            Self::NotYet => false,
        }
    }
}

/// The barriers of one cluster.
#[derive(Debug)]
pub struct Wave {
    cluster: ClusterId,
    shape: Shape,
    points: Vec<Point>,
    /// The points of each task, by its id.
    of_task: BTreeMap<String, Vec<usize>>,
    /// Per profile, and per barrier of it: the points that the barrier waits for.
    waits: BTreeMap<ProfileHash, (Arc<Profile>, Vec<Vec<usize>>)>,
    /// Per profile, the points that mean its nodes.
    meant_by: BTreeMap<ProfileHash, Vec<usize>>,
    members: BTreeMap<NodeId, Member>,
}

/// The nodes whose open barriers may be others after a change.
#[derive(Debug, Default)]
pub struct Affected {
    profiles: BTreeSet<ProfileHash>,
    nodes: BTreeSet<NodeId>,
}

/// What decides which points there are, and whom they mean.
#[derive(Debug, PartialEq, Eq)]
struct Shape {
    profiles: BTreeSet<ProfileHash>,
    releases: BTreeSet<ReleaseHash>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    profile: ProfileHash,
    takes_part: bool,
    task_set: Option<[u8; 32]>,
}

/// Which point it is: a task's index means something in its own release alone.
type Key = (ReleaseHash, TaskIx, String, Policy);

/// A task on some nodes that barriers wait for.
#[derive(Debug)]
struct Point {
    barrier: Barrier,
    release: Arc<CompiledRelease>,
    /// How many nodes it means.
    meant: usize,
    /// Those of them that have not succeeded.
    waits_for: BTreeSet<NodeId>,
    /// The profiles with a barrier that waits for it.
    waiting: BTreeSet<ProfileHash>,
}

/// The nodes that a barrier still waits for: none, one (which does not hold itself back), or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Nobody,
    For(NodeId),
    ForMore,
}

impl Affected {
    fn add(&mut self, point: &Point, before: Waiting, after: Waiting) {
        if before == after {
            return;
        }
        // Between one and more that are waited for nothing changes but for that one.
        if [before, after].contains(&Waiting::Nobody) {
            self.profiles.extend(&point.waiting);
        }
        self.nodes.extend([before, after].into_iter().filter_map(Waiting::only));
    }

    /// Adds a node whose open barriers changed by something that its wave does not know.
    pub fn add_node(&mut self, node: NodeId) {
        self.nodes.insert(node);
    }

    /// Whether nobody is affected.
    pub fn is_empty(&self) -> bool {
        self.profiles.is_empty() && self.nodes.is_empty()
    }
}

impl Shape {
    fn of(fleet: &Fleet, cluster: ClusterId) -> Self {
        let profiles = fleet.profiles_of(cluster).map(|profile| profile.hash).collect();
        Self { profiles, releases: releases(fleet, cluster).into_keys().collect() }
    }
}

impl Wave {
    /// The wave of a cluster.
    pub fn new(fleet: &Fleet, cluster: ClusterId, results: &dyn TaskResults) -> Self {
        Self::of_profiles(fleet, cluster, results, fleet.profiles_of(cluster))
    }

    /// The wave of a cluster with the barriers of these profiles alone.
    pub fn of_profiles<'a>(
        fleet: &Fleet,
        cluster: ClusterId,
        results: &dyn TaskResults,
        profiles: impl IntoIterator<Item = &'a Arc<Profile>>,
    ) -> Self {
        let mut wave = Self {
            cluster,
            shape: Shape::of(fleet, cluster),
            points: Vec::new(),
            of_task: BTreeMap::new(),
            waits: BTreeMap::new(),
            meant_by: BTreeMap::new(),
            members: BTreeMap::new(),
        };
        wave.add_points(fleet, profiles);
        for profile in fleet.profiles_of(cluster) {
            let points = &wave.points;
            let meant = || (0..points.len()).filter(|at| points[*at].means(profile)).collect();
            wave.meant_by.entry(profile.hash).or_insert_with(meant);
        }
        for node in fleet.placed_in(cluster).flat_map(|(_, nodes)| nodes) {
            wave.enter(fleet, results, *node);
        }
        wave
    }

    /// Whether the wave was built for the profiles and releases that the cluster has now.
    pub fn is_current(&self, fleet: &Fleet) -> bool {
        self.shape == Shape::of(fleet, self.cluster)
    }

    /// Every node.
    pub fn everyone(&self) -> Affected {
        Affected { profiles: self.waits.keys().copied().collect(), nodes: BTreeSet::new() }
    }

    /// Takes in that a node came, is gone, takes part or no longer, or is to have another task set.
    pub fn put_node(&mut self, fleet: &Fleet, results: &dyn TaskResults, node: NodeId, affected: &mut Affected) {
        let (old, new) = (self.members.get(&node).copied(), self.member(fleet, results, node));
        if old == new {
            return;
        }
        let of = |member: Option<Member>| member.and_then(|member| self.meant_by.get(&member.profile));
        let touched: BTreeSet<usize> = of(old).into_iter().chain(of(new)).flatten().copied().collect();
        let before: Vec<_> = touched.iter().map(|at| (*at, self.points[*at].waiting())).collect();
        self.leave(node);
        self.enter(fleet, results, node);
        for (at, before) in before {
            affected.add(&self.points[at], before, self.points[at].waiting());
        }
        affected.nodes.insert(node);
    }

    /// Takes in what became of tasks on a node.
    pub fn put_results(
        &mut self,
        results: &dyn TaskResults,
        node: NodeId,
        tasks: &BTreeSet<String>,
        affected: &mut Affected,
    ) {
        let Some(member) = self.members.get(&node).filter(|member| member.takes_part) else { return };
        let Some(meant) = self.meant_by.get(&member.profile) else { return };
        let touched = tasks.iter().filter_map(|task| self.of_task.get(task)).flatten();
        for at in touched.filter(|at| meant.contains(at)) {
            let point = &mut self.points[*at];
            let before = point.waiting();
            point.set_done(node, results.done(node, point.task()).is_over());
            affected.add(point, before, point.waiting());
        }
    }

    /// The barriers that are open for each node that is affected.
    pub fn open(&self, affected: &Affected) -> Vec<(NodeId, &Profile, Vec<&Barrier>)> {
        let by_profile = self.members.iter().filter(|(_, member)| affected.profiles.contains(&member.profile));
        let all: Box<dyn Iterator<Item = NodeId>> = if affected.profiles.is_empty() {
            Box::new(affected.nodes.iter().copied())
        } else {
            let nodes: BTreeSet<NodeId> =
                by_profile.map(|(node, _)| *node).chain(affected.nodes.iter().copied()).collect();
            Box::new(nodes.into_iter())
        };
        let mut states: BTreeMap<ProfileHash, Vec<Waiting>> = BTreeMap::new();
        let mut opened = Vec::new();
        for node in all {
            let Some(member) = self.members.get(&node) else { continue };
            let Some((profile, barriers)) = self.waits.get(&member.profile) else { continue };
            let states = states
                .entry(member.profile)
                .or_insert_with(|| barriers.iter().map(|points| self.waiting(points)).collect());
            let is_open = |(_, waiting): &(&Barrier, &Waiting)| waiting.is_over_for(node);
            let open = profile.barriers.iter().zip(&*states).filter(is_open).map(|(barrier, _)| barrier).collect();
            opened.push((node, &**profile, open));
        }
        opened
    }

    /// The barriers that are shut for a node, each with the nodes that it waits for.
    pub fn shut(&self, node: NodeId) -> Vec<(&Barrier, Cow<'_, BTreeSet<NodeId>>)> {
        let Some(member) = self.members.get(&node) else { return Vec::new() };
        let Some((profile, barriers)) = self.waits.get(&member.profile) else { return Vec::new() };
        let shut = profile.barriers.iter().zip(barriers).filter(|(_, points)| !self.waiting(points).is_over_for(node));
        let nodes = |points: &[usize]| {
            let unmet = points.iter().map(|at| &self.points[*at]).filter(|point| point.waiting() != Waiting::Nobody);
            match unmet.map(|point| &point.waits_for).collect::<Vec<_>>().as_slice() {
                [only] => Cow::Borrowed(*only),
                many => Cow::Owned(many.iter().copied().flatten().copied().collect()),
            }
        };
        shut.map(|(barrier, points)| (barrier, nodes(points))).collect()
    }

    fn waiting(&self, points: &[usize]) -> Waiting {
        points.iter().fold(Waiting::Nobody, |waiting, at| waiting.and(self.points[*at].waiting()))
    }

    fn member(&self, fleet: &Fleet, results: &dyn TaskResults, node: NodeId) -> Option<Member> {
        let profile = fleet.profile(node).filter(|_| fleet.cluster_of_node(node) == Some(self.cluster))?;
        Some(Member { profile: profile.hash, takes_part: fleet.takes_part(node), task_set: results.task_set(node) })
    }

    fn enter(&mut self, fleet: &Fleet, results: &dyn TaskResults, node: NodeId) {
        let Some(member) = self.member(fleet, results, node) else { return };
        self.members.insert(node, member);
        if !member.takes_part {
            return;
        }
        for at in self.meant_by.get(&member.profile).into_iter().flatten() {
            let point = &mut self.points[*at];
            point.meant += 1;
            point.set_done(node, results.done(node, point.task()).is_over());
        }
    }

    fn leave(&mut self, node: NodeId) {
        let Some(member) = self.members.remove(&node).filter(|member| member.takes_part) else { return };
        for at in self.meant_by.get(&member.profile).into_iter().flatten() {
            self.points[*at].meant -= 1;
            self.points[*at].waits_for.remove(&node);
        }
    }

    fn add_points<'a>(&mut self, fleet: &Fleet, profiles: impl IntoIterator<Item = &'a Arc<Profile>>) {
        let releases = releases(fleet, self.cluster);
        let mut known: BTreeMap<Key, usize> = BTreeMap::new();
        for profile in profiles {
            if self.waits.contains_key(&profile.hash) {
                continue;
            }
            let mut waits = Vec::new();
            for barrier in &profile.barriers {
                let mut targets = Vec::new();
                flatten(&releases, &profile.release, barrier, &mut BTreeSet::new(), &mut targets);
                let points: BTreeSet<usize> =
                    targets.into_iter().map(|(release, target)| self.point(&mut known, release, target)).collect();
                for at in &points {
                    self.points[*at].waiting.insert(profile.hash);
                }
                waits.push(points.into_iter().collect());
            }
            self.waits.insert(profile.hash, (Arc::clone(profile), waits));
        }
    }

    fn point(&mut self, known: &mut BTreeMap<Key, usize>, release: Arc<CompiledRelease>, barrier: Barrier) -> usize {
        let key = (release.hash, barrier.task, barrier.source.to_string(), barrier.policy);
        *known.entry(key).or_insert_with(|| {
            let point = Point::new(release, barrier);
            self.of_task.entry(point.task().to_owned()).or_default().push(self.points.len());
            self.points.push(point);
            self.points.len() - 1
        })
    }
}

/// The releases that the groups of a cluster run.
fn releases(fleet: &Fleet, cluster: ClusterId) -> BTreeMap<ReleaseHash, Arc<CompiledRelease>> {
    let releases = fleet.folds_of(cluster).filter_map(|fold| fold.release.as_ref());
    releases.map(|one| (one.value.hash, Arc::clone(&one.value))).collect()
}

/// What a barrier waits for: itself, or all that its stage waits for by any release that has it, each stage once.
fn flatten(
    releases: &BTreeMap<ReleaseHash, Arc<CompiledRelease>>,
    release: &Arc<CompiledRelease>,
    barrier: &Barrier,
    stages: &mut BTreeSet<String>,
    targets: &mut Vec<(Arc<CompiledRelease>, Barrier)>,
) {
    if !matches!(barrier.source, Source::Stage) {
        targets.push((Arc::clone(release), barrier.clone()));
        return;
    }
    let stage = release.id(barrier.task);
    if !stages.insert(stage.to_owned()) {
        return;
    }
    for other in releases.values() {
        for ix in other.stages.iter().filter(|ix| other.id(**ix) == stage) {
            for wait in other.stage_waits(*ix) {
                flatten(releases, other, &wait, stages, targets);
            }
        }
    }
}

impl Point {
    fn new(release: Arc<CompiledRelease>, barrier: Barrier) -> Self {
        let (waits_for, waiting) = (BTreeSet::new(), BTreeSet::new());
        Self { barrier, release, meant: 0, waits_for, waiting }
    }

    fn task(&self) -> &str {
        self.release.id(self.barrier.task)
    }

    fn means(&self, profile: &Profile) -> bool {
        let is_own = profile.release.hash == self.release.hash;
        let ix = match (is_own, &self.barrier.source) {
            (true, _) => Some(self.barrier.task),
            (false, Source::Stage | Source::Anywhere) => None,
            (false, _) => profile.release.find(self.task()),
        };
        ix.is_some_and(|ix| profile.has(ix))
            && profile.place.is_source(self.release.matching.roles, &self.barrier.source)
    }

    fn set_done(&mut self, node: NodeId, is_done: bool) {
        if is_done {
            self.waits_for.remove(&node);
        } else {
            self.waits_for.insert(node);
        }
    }

    fn waiting(&self) -> Waiting {
        let any_is_done = self.meant == 0 || self.waits_for.len() < self.meant;
        if self.barrier.policy == Policy::Any && any_is_done {
            return Waiting::Nobody;
        }
        let mut nodes = self.waits_for.iter();
        match (nodes.next(), nodes.next()) {
            (None, _) => Waiting::Nobody,
            (Some(one), None) => Waiting::For(*one),
            (Some(_), Some(_)) => Waiting::ForMore,
        }
    }
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

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn who_alone_is_waited_for_does_not_wait_for_itself() {
        let (a, b) = (NodeId(Uuid::from_u128(1)), NodeId(Uuid::from_u128(2)));
        for (one, other, both) in [
            (Waiting::Nobody, Waiting::Nobody, Waiting::Nobody),
            (Waiting::Nobody, Waiting::For(a), Waiting::For(a)),
            (Waiting::For(a), Waiting::For(a), Waiting::For(a)),
            (Waiting::For(a), Waiting::For(b), Waiting::ForMore),
            (Waiting::ForMore, Waiting::Nobody, Waiting::ForMore),
        ] {
            assert_eq!(one.and(other), both);
            assert_eq!(other.and(one), both);
        }
        assert!(Waiting::For(a).is_over_for(a) && !Waiting::For(a).is_over_for(b));
    }
}
