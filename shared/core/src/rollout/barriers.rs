//! Which barriers of a node are open, from what became of other nodes' tasks.
//!
//! All nodes of a cluster are one wave until there are rollouts. A barrier opens when each node that it means has succeeded in its
//! task, in the task set that it is to have now. Nodes that are parked (by their spec or on their hosts), or do not apply, stand
//! outside. A stage opens with all that it waits for. A marker (`type: skipped`) runs nowhere and nobody reports it: a node is done
//! with it when it is done with all that comes before it there, and what it waits for on other nodes is waited for as well.
//!
//! The groups of a cluster may run different releases. A selector means a node by its names and a task of that id, whichever
//! release it is of; a stage of one name is one stage. So a barrier waits for what the order waits for that is checked when nodes
//! are placed, and that `resolve` prints.
//!
//! Who waits at a shut barrier is blocked where it will not open by itself: a node that it waits for failed there, will run nothing, keeps a
//! task set without the task, or is blocked itself before it comes to the task. The last follows chains, each as far as it goes: what is waited
//! for in vain is found from those who hold others up onwards, so that nodes that wait for each other alone are never taken for blocked.
//!
//! A wave is kept from change to change: it is built again only where the profiles or releases of its cluster are others
//! ([`Wave::is_current`]). A node that comes, goes or gets another task set, and a result, cost the barriers concerned.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
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
    /// Whether a node will run none of its tasks by itself, so that who waits for it waits until somebody does something.
    fn is_set_aside(&self, node: NodeId) -> bool;
    /// Whether a task of that task set failed on a node, or ended there otherwise than well.
    fn has_failed(&self, node: NodeId, task: &str) -> bool;
    /// Whether a node keeps the task set that it has, whatever it is to have next, until somebody does something.
    fn keeps_its_set(&self, node: NodeId) -> bool;
    /// Whether a task is in the task set that was released to a node.
    fn was_released(&self, node: NodeId, task: &str) -> bool;
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
    /// Per profile, and per barrier of it: what the barrier waits for.
    waits: BTreeMap<ProfileHash, (Arc<Profile>, Vec<Targets>)>,
    /// Per profile, the points that mean its nodes.
    meant_by: BTreeMap<ProfileHash, BTreeMap<usize, Meant>>,
    members: BTreeMap<NodeId, Member>,
}

/// The nodes whose open barriers may be others after a change.
#[derive(Debug, Default)]
pub struct Affected {
    profiles: BTreeSet<ProfileHash>,
    nodes: BTreeSet<NodeId>,
    /// The points that were waited for in vain before the first change; `None`: nothing changed.
    hindered_before: Option<BTreeSet<usize>>,
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
    is_set_aside: bool,
    keeps_its_set: bool,
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
    /// How many of these there are of each profile.
    of_profile: BTreeMap<ProfileHash, usize>,
    /// Those of these that will not succeed by themselves, whatever barriers open.
    hindered: BTreeSet<NodeId>,
    /// The profiles with a barrier that waits for it.
    waiting: BTreeSet<ProfileHash>,
}

/// What a point means for the nodes of one profile.
#[derive(Debug)]
struct Meant {
    steps: Steps,
    /// The places of the profile's barriers that stand before these steps.
    behind: BTreeSet<usize>,
}

/// What a node of one profile is to be done with at a point.
#[derive(Debug)]
enum Steps {
    /// The task of the point.
    Itself,
    /// These, all of them: the task of the point is a marker there.
    Before(Vec<String>),
}

/// The points that a barrier waits for.
#[derive(Debug, Default)]
struct Targets {
    /// The one of its own task. A node does not wait there for itself: the order on the node says what comes first.
    own: Option<usize>,
    /// Those of what comes before a stage or a marker. The order on a node says nothing of them, so it waits for itself too.
    behind: Vec<usize>,
}

/// What is still waited for at a barrier.
#[derive(Clone, Copy, Debug)]
struct Left {
    own: Waiting,
    /// Whether something is left of what comes before a stage or a marker.
    behind: bool,
}

/// The nodes that a point still waits for: none, one (which does not hold itself back), or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Nobody,
    For(NodeId),
    ForMore,
}

impl Affected {
    fn add(&mut self, point: &Point, before: Waiting) {
        let after = point.waiting();
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

    /// Whether the open barriers of nobody are affected.
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
            wave.add_meaning(profile);
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
        Affected { profiles: self.waits.keys().copied().collect(), ..Affected::default() }
    }

    /// Takes in that a node came, is gone, takes part or no longer, or is to have another task set.
    pub fn put_node(&mut self, fleet: &Fleet, results: &dyn TaskResults, node: NodeId, affected: &mut Affected) {
        let (old, new) = (self.members.get(&node).copied(), self.member(fleet, results, node));
        if old == new {
            return;
        }
        let of = |member: Option<Member>| member.and_then(|member| self.meant_by.get(&member.profile));
        let touched: BTreeSet<usize> = of(old).into_iter().chain(of(new)).flat_map(BTreeMap::keys).copied().collect();
        let before: Vec<_> = touched.iter().map(|at| (*at, self.points[*at].waiting())).collect();
        self.note_hindered(affected);
        self.leave(node);
        self.enter(fleet, results, node);
        for (at, before) in before {
            affected.add(&self.points[at], before);
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
        let of_tasks: BTreeSet<_> = tasks.iter().filter_map(|task| self.of_task.get(task)).flatten().collect();
        let touched: Vec<_> = of_tasks.into_iter().filter_map(|at| meant.get_key_value(at)).collect();
        // Nobody waits for most tasks.
        if touched.is_empty() {
            return;
        }
        self.note_hindered(affected);
        for (at, meant) in touched {
            let point = &mut self.points[*at];
            let before = point.waiting();
            point.take(results, node, member, &meant.steps);
            affected.add(point, before);
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
        let mut states: BTreeMap<ProfileHash, Vec<Left>> = BTreeMap::new();
        let mut opened = Vec::new();
        for node in all {
            let Some(member) = self.members.get(&node) else { continue };
            let Some((profile, barriers)) = self.waits.get(&member.profile) else { continue };
            let states = states
                .entry(member.profile)
                .or_insert_with(|| barriers.iter().map(|targets| self.left(targets)).collect());
            let is_open = |(_, left): &(&Barrier, &Left)| left.is_nothing_for(node);
            let open = profile.barriers.iter().zip(&*states).filter(is_open).map(|(barrier, _)| barrier).collect();
            opened.push((node, &**profile, open));
        }
        opened
    }

    /// Which of the nodes that are affected are blocked: a barrier is shut for them that will not open by itself.
    pub fn blocked(&self, affected: &Affected) -> Vec<(NodeId, bool)> {
        if affected.is_empty() && affected.hindered_before.is_none() {
            return Vec::new();
        }
        let hindered = self.hindered();
        let before = affected.hindered_before.as_ref().unwrap_or(&hindered);
        let turned = before.symmetric_difference(&hindered).filter_map(|at| self.points.get(*at));
        let profiles: BTreeSet<ProfileHash> =
            turned.flat_map(|point| &point.waiting).chain(&affected.profiles).copied().collect();
        let is_of = |(_, member): &(&NodeId, &Member)| profiles.contains(&member.profile);
        let members = (!profiles.is_empty()).then(|| self.members.iter().filter(is_of).map(|(node, _)| *node));
        let nodes: BTreeSet<NodeId> = members.into_iter().flatten().chain(affected.nodes.iter().copied()).collect();
        let mut shut: BTreeMap<ProfileHash, Vec<Left>> = BTreeMap::new();
        let mut is_blocked = |node: &NodeId| {
            let Some(member) = self.members.get(node).filter(|member| member.takes_part) else { return false };
            let Some((_, barriers)) = self.waits.get(&member.profile) else { return false };
            let all = || self.left_in_vain(barriers, &hindered).collect();
            shut.entry(member.profile).or_insert_with(all).iter().any(|left| !left.is_nothing_for(*node))
        };
        nodes.into_iter().map(|node| (node, is_blocked(&node))).collect()
    }

    /// Notes the points that are waited for in vain, before the first change.
    fn note_hindered(&self, affected: &mut Affected) {
        affected.hindered_before.get_or_insert_with(|| self.hindered());
    }

    /// The points that are waited for in vain until somebody does something. From those where a node holds others up by itself it goes on
    /// to those whose nodes are kept at barriers before these, so it ends when no more are found.
    fn hindered(&self) -> BTreeSet<usize> {
        let own = (0..).zip(&self.points).filter(|(_, point)| point.is_hindered());
        let mut hindered: BTreeSet<usize> = own.map(|(at, _)| at).collect();
        let mut found = !hindered.is_empty();
        while found {
            found = false;
            // What is found counts at once, so that a chain takes few rounds however long it is.
            for at in 0..self.points.len() {
                if !hindered.contains(&at) && self.is_kept_at(at, &hindered) {
                    found = hindered.insert(at);
                }
            }
        }
        hindered
    }

    /// Whether a point is waited for in vain since nodes that it means are kept before it by points that are.
    fn is_kept_at(&self, at: usize, hindered: &BTreeSet<usize>) -> bool {
        let point = &self.points[at];
        if point.waiting() == Waiting::Nobody {
            return false;
        }
        let before = point.of_profile.keys().map(|profile| (profile, self.left_before(profile, at, hindered)));
        let kept: BTreeMap<_, _> = before.filter(|(_, left)| !left.is_empty()).collect();
        let is_kept = |node: &NodeId| {
            let left = self.members.get(node).and_then(|member| kept.get(&member.profile));
            point.hindered.contains(node) || left.into_iter().flatten().any(|left| !left.is_nothing_for(*node))
        };
        match point.barrier.policy {
            Policy::All => kept.iter().any(|(profile, left)| self.keeps_one(point, profile, left)),
            Policy::Any => !kept.is_empty() && point.waits_for.iter().all(is_kept),
        }
    }

    /// Whether one of the nodes of a profile that a point waits for waits at one of these.
    fn keeps_one(&self, point: &Point, profile: &ProfileHash, all: &[Left]) -> bool {
        let is_of = |node: &NodeId| {
            point.waits_for.contains(node) && self.members.get(node).is_some_and(|member| member.profile == *profile)
        };
        let count = point.of_profile.get(profile).copied().unwrap_or_default();
        // One that alone is waited for does not wait for itself.
        all.iter().any(|left| count > usize::from(!left.behind && left.own.only().as_ref().is_some_and(is_of)))
    }

    /// What is left at the barriers before a point on the nodes of a profile that are waited for in vain.
    fn left_before(&self, profile: &ProfileHash, at: usize, hindered: &BTreeSet<usize>) -> Vec<Left> {
        let meant = self.meant_by.get(profile).and_then(|meant| meant.get(&at));
        let Some(((_, barriers), meant)) = self.waits.get(profile).zip(meant) else { return Vec::new() };
        self.left_in_vain(meant.behind.iter().filter_map(|at| barriers.get(*at)), hindered).collect()
    }

    /// What is waited for in vain at those of these barriers that will not open by themselves.
    fn left_in_vain<'a>(
        &'a self,
        barriers: impl IntoIterator<Item = &'a Targets>,
        hindered: &'a BTreeSet<usize>,
    ) -> impl Iterator<Item = Left> {
        let waiting =
            move |at: &usize| if hindered.contains(at) { self.points[*at].waiting() } else { Waiting::Nobody };
        barriers.into_iter().map(move |targets| Left::of(targets, waiting)).filter(|left| !left.is_nothing())
    }

    /// The barriers that are shut for a node, by their places among those of its profile.
    pub fn shut_places(&self, node: NodeId) -> Vec<usize> {
        let waits = self.members.get(&node).and_then(|member| self.waits.get(&member.profile));
        let places = (0..).zip(waits.into_iter().flat_map(|(_, barriers)| barriers));
        places.filter(|(_, targets)| !self.left(targets).is_nothing_for(node)).map(|(at, _)| at).collect()
    }

    /// The nodes that the barrier at a place of a profile waits for.
    pub fn awaited(&self, profile: ProfileHash, at: usize) -> Cow<'_, BTreeSet<NodeId>> {
        match self.unmet(profile, at).map(|at| &self.points[at].waits_for).collect::<Vec<_>>().as_slice() {
            [only] => Cow::Borrowed(*only),
            many => Cow::Owned(many.iter().copied().flatten().copied().collect()),
        }
    }

    /// The tasks that the barrier at a place of a profile waits for on a node, by their ids: the barrier's own, and what comes before a stage or a
    /// marker. What comes before a marker on another node is none of that one's tasks: only the wave knows which it is.
    pub fn awaited_tasks(&self, profile: ProfileHash, at: usize, node: NodeId) -> BTreeSet<&str> {
        let meant = self.members.get(&node).and_then(|member| self.meant_by.get(&member.profile));
        let waiting = self.unmet(profile, at).filter(|at| self.points[*at].waits_for.contains(&node));
        let tasks = waiting.filter_map(|at| Some(meant?.get(&at)?.steps.tasks(self.points[at].task())));
        tasks.flatten().collect()
    }

    /// The points at which somebody is still waited for, of those that the barrier at a place of a profile waits for.
    fn unmet(&self, profile: ProfileHash, at: usize) -> impl Iterator<Item = usize> {
        let targets = self.waits.get(&profile).and_then(|(_, barriers)| barriers.get(at));
        let points = targets.into_iter().flat_map(|targets| targets.own.iter().chain(&targets.behind));
        points.copied().filter(move |at| self.points[*at].waiting() != Waiting::Nobody)
    }

    fn left(&self, targets: &Targets) -> Left {
        Left::of(targets, |at| self.points[*at].waiting())
    }

    fn member(&self, fleet: &Fleet, results: &dyn TaskResults, node: NodeId) -> Option<Member> {
        let profile = fleet.profile(node).filter(|_| fleet.cluster_of_node(node) == Some(self.cluster))?;
        Some(Member {
            profile: profile.hash,
            takes_part: fleet.takes_part(node),
            task_set: results.task_set(node),
            is_set_aside: results.is_set_aside(node),
            keeps_its_set: results.keeps_its_set(node),
        })
    }

    fn enter(&mut self, fleet: &Fleet, results: &dyn TaskResults, node: NodeId) {
        let Some(member) = self.member(fleet, results, node) else { return };
        self.members.insert(node, member);
        if !member.takes_part {
            return;
        }
        for (at, meant) in self.meant_by.get(&member.profile).into_iter().flatten() {
            let point = &mut self.points[*at];
            point.meant += 1;
            point.take(results, node, &member, &meant.steps);
        }
    }

    fn leave(&mut self, node: NodeId) {
        let Some(member) = self.members.remove(&node).filter(|member| member.takes_part) else { return };
        for at in self.meant_by.get(&member.profile).into_iter().flat_map(BTreeMap::keys) {
            self.points[*at].meant -= 1;
            self.points[*at].forget(node, member.profile);
        }
    }

    fn add_points<'a>(&mut self, fleet: &Fleet, profiles: impl IntoIterator<Item = &'a Arc<Profile>>) {
        let mut order = Order::of(fleet, self.cluster);
        let mut known: BTreeMap<Key, usize> = BTreeMap::new();
        for profile in profiles {
            if self.waits.contains_key(&profile.hash) {
                continue;
            }
            let waits = profile.barriers.iter().map(|barrier| {
                let behind = order.before(&profile.release, barrier);
                let is_task = !matches!(barrier.source, Source::Stage);
                let own = is_task.then(|| self.point(&mut known, Arc::clone(&profile.release), barrier.clone()));
                let behind: BTreeSet<usize> =
                    behind.into_iter().map(|(release, target)| self.point(&mut known, release, target)).collect();
                for at in own.iter().chain(&behind) {
                    self.points[*at].waiting.insert(profile.hash);
                }
                Targets { own, behind: behind.into_iter().filter(|at| Some(*at) != own).collect() }
            });
            let waits = waits.collect();
            self.waits.insert(profile.hash, (Arc::clone(profile), waits));
        }
    }

    /// Notes which points mean the nodes of a profile, and what these nodes are to be done with there.
    fn add_meaning(&mut self, profile: &Profile) {
        if self.meant_by.contains_key(&profile.hash) {
            return;
        }
        let mut meant = BTreeMap::new();
        for (at, point) in self.points.iter().enumerate() {
            let Some(ix) = meant_task(&point.release, &point.barrier, profile) else { continue };
            let steps = if profile.release.task(ix).is_skipped_type() {
                let before = profile.before_marker(ix).tasks.into_iter();
                Steps::Before(before.map(|ix| profile.release.id(ix).to_owned()).collect())
            } else {
                Steps::Itself
            };
            meant.insert(at, Meant { steps, behind: profile.barrier_places_before(ix) });
        }
        for (at, meant) in &meant {
            for id in meant.steps.of_a_marker() {
                let points = self.of_task.entry(id.clone()).or_default();
                if !points.contains(at) {
                    points.push(*at);
                }
            }
        }
        self.meant_by.insert(profile.hash, meant);
    }

    fn point(&mut self, known: &mut BTreeMap<Key, usize>, release: Arc<CompiledRelease>, barrier: Barrier) -> usize {
        *known.entry(key(&release, &barrier)).or_insert_with(|| {
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

/// The order of a cluster, as far as barriers go through stages and markers.
struct Order<'a> {
    releases: BTreeMap<ReleaseHash, Arc<CompiledRelease>>,
    profiles: Vec<&'a Arc<Profile>>,
    /// What comes directly before barriers that were asked for.
    known: BTreeMap<Key, Rc<[Target]>>,
}

/// A barrier, and the release that its task is of.
type Target = (Arc<CompiledRelease>, Barrier);

impl<'a> Order<'a> {
    fn of(fleet: &'a Fleet, cluster: ClusterId) -> Self {
        let profiles: BTreeMap<_, _> = fleet.profiles_of(cluster).map(|profile| (profile.hash, profile)).collect();
        let profiles = profiles.into_values().collect();
        Self { releases: releases(fleet, cluster), profiles, known: BTreeMap::new() }
    }

    /// What comes before a barrier beyond its own task: all that its stage waits for by any release that has it, and what its marker waits
    /// for on other nodes, where it is one; each once.
    fn before(&mut self, release: &Arc<CompiledRelease>, barrier: &Barrier) -> Vec<Target> {
        let (mut seen, mut targets) = (BTreeSet::new(), Vec::new());
        let mut next = vec![(Arc::clone(release), barrier.clone())];
        while let Some((release, barrier)) = next.pop() {
            for (release, wait) in &*self.directly_before(&release, &barrier) {
                if seen.insert(key(release, wait)) {
                    next.push((Arc::clone(release), wait.clone()));
                    if !matches!(wait.source, Source::Stage) {
                        targets.push((Arc::clone(release), wait.clone()));
                    }
                }
            }
        }
        targets
    }

    fn directly_before(&mut self, release: &Arc<CompiledRelease>, barrier: &Barrier) -> Rc<[Target]> {
        let (releases, profiles) = (&self.releases, &self.profiles);
        let before = self.known.entry(key(release, barrier)).or_insert_with(|| match barrier.source {
            Source::Stage => before_stage(releases, release.id(barrier.task)),
            Source::Anywhere | Source::Everyone | Source::Tags(_) | Source::Roles(_) => {
                before_marker(releases, profiles, release, barrier)
            }
        });
        Rc::clone(before)
    }
}

fn before_stage(releases: &BTreeMap<ReleaseHash, Arc<CompiledRelease>>, stage: &str) -> Rc<[Target]> {
    let named = releases.values().flat_map(|release| release.stages.iter().map(move |ix| (release, *ix)));
    let all = named.filter(|(release, ix)| release.id(*ix) == stage);
    all.flat_map(|(release, ix)| release.stage_waits(ix).into_iter().map(|wait| (Arc::clone(release), wait))).collect()
}

/// What the nodes wait for that have the barrier's task as a marker.
fn before_marker(
    releases: &BTreeMap<ReleaseHash, Arc<CompiledRelease>>,
    profiles: &[&Arc<Profile>],
    release: &CompiledRelease,
    barrier: &Barrier,
) -> Rc<[Target]> {
    let is_marker = |release: &CompiledRelease, ix: TaskIx| release.task(ix).is_skipped_type();
    let id = release.id(barrier.task);
    if !releases.values().any(|release| release.find(id).is_some_and(|ix| is_marker(release, ix))) {
        return Rc::default();
    }
    let mut waits = Vec::new();
    for profile in profiles {
        let ix = meant_task(release, barrier, profile).filter(|ix| is_marker(&profile.release, *ix));
        let barriers = ix.map(|ix| profile.before_marker(ix).barriers).unwrap_or_default();
        waits.extend(barriers.into_iter().map(|barrier| (Arc::clone(&profile.release), barrier.clone())));
    }
    waits.into()
}

fn key(release: &CompiledRelease, barrier: &Barrier) -> Key {
    (release.hash, barrier.task, barrier.source.to_string(), barrier.policy)
}

/// The task of a profile that a barrier of a release means.
fn meant_task(release: &CompiledRelease, barrier: &Barrier, profile: &Profile) -> Option<TaskIx> {
    let is_own = profile.release.hash == release.hash;
    let ix = match (is_own, &barrier.source) {
        (true, _) => Some(barrier.task),
        (false, Source::Stage | Source::Anywhere) => None,
        (false, _) => profile.release.find(release.id(barrier.task)),
    };
    ix.filter(|ix| profile.has(*ix) && profile.place.is_source(release.matching.roles, &barrier.source))
}

impl Steps {
    /// The ids of the tasks, of which this one is the point's own.
    fn tasks<'a>(&'a self, own: &'a str) -> Vec<&'a str> {
        match self {
            Self::Itself => vec![own],
            Self::Before(tasks) => tasks.iter().map(String::as_str).collect(),
        }
    }

    /// The tasks that stand for a marker.
    fn of_a_marker(&self) -> &[String] {
        match self {
            Self::Itself => &[],
            Self::Before(tasks) => tasks,
        }
    }

    fn are_over(&self, results: &dyn TaskResults, node: NodeId, task: &str) -> bool {
        match self {
            Self::Itself => results.done(node, task).is_over(),
            Self::Before(tasks) => tasks.iter().all(|task| results.done(node, task).is_over()),
        }
    }

    /// Whether one of them will not succeed on a node by itself, whatever barriers open.
    fn are_in_vain(&self, results: &dyn TaskResults, node: NodeId, member: &Member, task: &str) -> bool {
        let is_in_vain = |task: &str| {
            let is_lacking = member.keeps_its_set && !results.was_released(node, task);
            results.has_failed(node, task) || (is_lacking && !results.done(node, task).is_over())
        };
        match self {
            Self::Itself => is_in_vain(task),
            Self::Before(tasks) => tasks.iter().any(|task| is_in_vain(task)),
        }
    }
}

impl Left {
    /// What is left at a barrier, by what each point waits for.
    fn of(targets: &Targets, waiting: impl Fn(&usize) -> Waiting) -> Self {
        Self {
            own: targets.own.as_ref().map_or(Waiting::Nobody, &waiting),
            behind: targets.behind.iter().any(|at| waiting(at) != Waiting::Nobody),
        }
    }

    fn is_nothing(self) -> bool {
        !self.behind && self.own == Waiting::Nobody
    }

    fn is_nothing_for(self, asking: NodeId) -> bool {
        !self.behind && self.own.is_over_for(asking)
    }
}

impl Point {
    fn new(release: Arc<CompiledRelease>, barrier: Barrier) -> Self {
        let (waits_for, hindered, waiting) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        Self { barrier, release, meant: 0, waits_for, of_profile: BTreeMap::new(), hindered, waiting }
    }

    fn task(&self) -> &str {
        self.release.id(self.barrier.task)
    }

    /// Takes in what became of its task, or of what stands for that, on a node that it means.
    fn take(&mut self, results: &dyn TaskResults, node: NodeId, member: &Member, steps: &Steps) {
        self.forget(node, member.profile);
        if steps.are_over(results, node, self.task()) {
            return;
        }
        let is_hindered = member.is_set_aside || steps.are_in_vain(results, node, member, self.task());
        self.waits_for.insert(node);
        *self.of_profile.entry(member.profile).or_default() += 1;
        if is_hindered {
            self.hindered.insert(node);
        }
    }

    fn forget(&mut self, node: NodeId, profile: ProfileHash) {
        if self.waits_for.remove(&node) {
            match self.of_profile.get_mut(&profile) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) | None => drop(self.of_profile.remove(&profile)),
            }
        }
        self.hindered.remove(&node);
    }

    /// Whether one of its nodes alone makes it be waited for in vain, or all where any is enough.
    fn is_hindered(&self) -> bool {
        match (self.waiting(), self.barrier.policy) {
            (Waiting::Nobody, _) => false,
            (Waiting::For(_) | Waiting::ForMore, Policy::Any) => self.hindered.len() == self.waits_for.len(),
            (Waiting::For(_) | Waiting::ForMore, Policy::All) => !self.hindered.is_empty(),
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
    fn who_alone_is_waited_for_at_its_own_task_does_not_wait_for_itself() {
        let (a, b) = (NodeId(Uuid::from_u128(1)), NodeId(Uuid::from_u128(2)));
        for (own, behind, a_waits, b_waits) in [
            (Waiting::Nobody, false, false, false),
            (Waiting::For(a), false, false, true),
            (Waiting::ForMore, false, true, true),
            (Waiting::Nobody, true, true, true),
            (Waiting::For(a), true, true, true),
        ] {
            let left = Left { own, behind };
            assert_eq!([a, b].map(|node| !left.is_nothing_for(node)), [a_waits, b_waits], "{left:?}");
        }
    }
}
