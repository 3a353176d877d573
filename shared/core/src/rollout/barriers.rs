//! Computes which barriers of a node are open, from the results of tasks on other nodes.
//!
//! All nodes of a cluster are one wave until there are rollouts. A barrier opens when each node that it selects has
//! succeeded in its task, in the task set that the node should have now. Barriers skip nodes that are parked (by their
//! spec or on their hosts) or do not apply. A stage opens with everything that it waits for. A marker (`type: skipped`)
//! runs nowhere and is never reported. A node has passed a marker when it is done with everything that comes before the
//! marker on that node. What the marker waits for on other nodes is waited for as well.
//!
//! The groups of a cluster may run different releases. A selector selects a node by its names and by a task of that id,
//! whatever its release. Stages of one name are one stage. So a barrier waits for the same order that is checked when
//! nodes are placed, and that `resolve` prints.
//!
//! A node at a closed barrier is blocked if the barrier will not open by itself: a node that it waits for failed there,
//! will run nothing, keeps a task set without the task, or is itself blocked before the task. The last case follows
//! chains of any length. The search starts from the nodes that stop others by themselves, so nodes that only wait for
//! each other never count as blocked.
//!
//! A wave is kept across changes. It is built again only if the profiles or releases of its cluster change
//! ([`Wave::is_current`]). When a node is added, removed or gets another task set, and when a result arrives, only the
//! barriers concerned are updated.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::barrier_order::{BarrierOrder, PointKey, barrier_task, point_key, releases};
use crate::digest::ReleaseHash;
use crate::fleet::Fleet;
use crate::object::{ClusterId, NodeId};
use crate::release::{Barrier, BarrierScope, CompiledRelease, Profile, ProfileHash};
use crate::task::Policy;

/// The results of tasks, and the state of the nodes that run them.
pub trait TaskResults {
    /// Returns the identity of the task set that a node should have now.
    fn task_set(&self, node: NodeId) -> Option<[u8; 32]>;
    /// Returns how far a node has completed a task of the task set that it should have now.
    fn completion(&self, node: NodeId, task: &str) -> Completion;
    /// Returns whether a node will run none of its tasks until somebody acts, so that nodes that wait for it are stuck.
    fn is_inactive(&self, node: NodeId) -> bool;
    /// Returns whether a task of the task set that a node should have now failed there, or ended there without success.
    fn has_failed(&self, node: NodeId, task: &str) -> bool;
    /// Returns whether a node keeps its present task set until somebody acts, even if its next task set is another one.
    fn is_withheld(&self, node: NodeId) -> bool;
    /// Returns whether a task is in the task set that was released to a node.
    fn is_released(&self, node: NodeId, task: &str) -> bool;
}

/// The completion of a task on a node, as far as other nodes wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The task is skipped there.
    Skipped,
    /// The task has not succeeded, or no result was reported yet.
    Pending,
    /// The task has succeeded.
    Succeeded,
}

impl Completion {
    /// Returns whether no node waits for the task any more. A skipped task never runs, so no node waits for it either.
    const fn is_over(self) -> bool {
        match self {
            Self::Skipped | Self::Succeeded => true,
            Self::Pending => false,
        }
    }
}

/// The barriers of one cluster, and the points that they wait for. A point is a task on the nodes that a barrier
/// selects. Several barriers may wait for one point.
#[derive(Debug)]
pub struct Wave {
    cluster: ClusterId,
    /// The inputs from which the points were built.
    shape: BarrierShape,
    /// The points, which are referred to by their index here.
    points: Vec<BarrierState>,
    /// The points of each task, by the task's id.
    points_by_task: BTreeMap<String, Vec<usize>>,
    /// Per profile, what each of its barriers waits for.
    targets_by_profile: BTreeMap<ProfileHash, (Arc<Profile>, Vec<WaitTargets>)>,
    /// Per profile, the points that select its nodes, and what these nodes must complete there.
    points_by_profile: BTreeMap<ProfileHash, BTreeMap<usize, ProfileSteps>>,
    /// The nodes of the cluster, each with what decides its part at the points.
    members: BTreeMap<NodeId, BarrierMember>,
}

/// The nodes whose open barriers may differ after a change.
#[derive(Debug, Default)]
pub struct AffectedNodeSet {
    profiles: BTreeSet<ProfileHash>,
    nodes: BTreeSet<NodeId>,
    /// The points that were stalled before the first change. `None` if no point was changed.
    stalled_before: Option<BTreeSet<usize>>,
}

/// The inputs that decide which points exist and which nodes they select.
#[derive(Debug, PartialEq, Eq)]
struct BarrierShape {
    profiles: BTreeSet<ProfileHash>,
    releases: BTreeSet<ReleaseHash>,
}

/// What the wave knows of a node. If it is unchanged, the node's points need no update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BarrierMember {
    profile: ProfileHash,
    counts_for_barriers: bool,
    task_set: Option<[u8; 32]>,
    is_inactive: bool,
    is_withheld: bool,
}

/// A task on some nodes that barriers wait for.
#[derive(Debug)]
struct BarrierState {
    barrier: Barrier,
    release: Arc<CompiledRelease>,
    /// Number of nodes that the point selects.
    node_count: usize,
    /// The selected nodes that have not succeeded.
    pending_nodes: BTreeSet<NodeId>,
    /// Number of pending nodes, per profile.
    pending_by_profile: BTreeMap<ProfileHash, usize>,
    /// The pending nodes that will not succeed by themselves, whatever barriers open.
    stalled_nodes: BTreeSet<NodeId>,
    /// The profiles with a barrier that waits for this point.
    waiting_profiles: BTreeSet<ProfileHash>,
}

/// What a point requires of the nodes of one profile.
#[derive(Debug)]
struct ProfileSteps {
    steps: RequiredSteps,
    /// The positions of the profile's barriers that come before these steps.
    barriers_before: BTreeSet<usize>,
}

/// The tasks that a node of one profile must complete at a point.
#[derive(Debug)]
enum RequiredSteps {
    /// The task of the point.
    Task,
    /// All of these tasks, because the task of the point is a marker on these nodes.
    MarkerTasks(Vec<String>),
}

/// The points that a barrier waits for.
#[derive(Debug, Default)]
struct WaitTargets {
    /// The point of the barrier's own task. `None` for a stage. A node does not wait for itself at this point, because
    /// the order on the node already decides what comes first.
    own_point: Option<usize>,
    /// The points before a stage or a marker. The order on a node does not cover them, so a node waits at these points
    /// for itself too.
    transitive: Vec<usize>,
}

/// What a barrier still waits for.
#[derive(Clone, Copy, Debug)]
struct RemainingWait {
    /// The nodes that the barrier waits for at the point of its own task.
    own_wait: WaitingFor,
    /// True if the barrier still waits for something before a stage or a marker.
    is_transitive: bool,
}

/// The nodes that a point still waits for: none, one or several. One node is named, because it does not wait for
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitingFor {
    Nobody,
    One(NodeId),
    Several,
}

impl AffectedNodeSet {
    /// Adds the nodes whose barriers may open or close by a change of a point, given what the point waited for before.
    fn add(&mut self, point: &BarrierState, before: WaitingFor) {
        let after = point.waiting_for();
        if before == after {
            return;
        }
        // Between one node and several, the barriers change only for that one node.
        if [before, after].contains(&WaitingFor::Nobody) {
            self.profiles.extend(&point.waiting_profiles);
        }
        self.nodes.extend([before, after].into_iter().filter_map(WaitingFor::single_node));
    }

    /// Adds a node whose open barriers changed for a reason that the wave does not know.
    pub fn add_node(&mut self, node: NodeId) {
        self.nodes.insert(node);
    }

    /// Returns whether no node's open barriers are affected.
    pub fn is_empty(&self) -> bool {
        self.profiles.is_empty() && self.nodes.is_empty()
    }
}

impl BarrierShape {
    /// Returns the inputs from which the points of a cluster would be built now.
    fn from_fleet(fleet: &Fleet, cluster: ClusterId) -> Self {
        let profiles = fleet.profiles_in_cluster(cluster).map(|profile| profile.hash).collect();
        Self { profiles, releases: releases(fleet, cluster).into_keys().collect() }
    }
}

impl Wave {
    /// Builds the wave of a cluster.
    pub fn new(fleet: &Fleet, cluster: ClusterId, results: &dyn TaskResults) -> Self {
        Self::for_profiles(fleet, cluster, results, fleet.profiles_in_cluster(cluster))
    }

    /// Builds the wave of a cluster with the barriers of these profiles only.
    pub fn for_profiles<'a>(
        fleet: &Fleet,
        cluster: ClusterId,
        results: &dyn TaskResults,
        profiles: impl IntoIterator<Item = &'a Arc<Profile>>,
    ) -> Self {
        let mut wave = Self {
            cluster,
            shape: BarrierShape::from_fleet(fleet, cluster),
            points: Vec::new(),
            points_by_task: BTreeMap::new(),
            targets_by_profile: BTreeMap::new(),
            points_by_profile: BTreeMap::new(),
            members: BTreeMap::new(),
        };
        wave.add_points(fleet, profiles);
        for profile in fleet.profiles_in_cluster(cluster) {
            wave.add_profile(profile);
        }
        for node in fleet.profile_nodes_in_cluster(cluster).flat_map(|(_, nodes)| nodes) {
            wave.add_member(fleet, results, *node);
        }
        wave
    }

    /// Returns whether the wave was built for the profiles and releases that the cluster has now.
    pub fn is_current(&self, fleet: &Fleet) -> bool {
        self.shape == BarrierShape::from_fleet(fleet, self.cluster)
    }

    /// Returns an [`AffectedNodeSet`] with every node.
    pub fn all_affected(&self) -> AffectedNodeSet {
        AffectedNodeSet { profiles: self.targets_by_profile.keys().copied().collect(), ..AffectedNodeSet::default() }
    }

    /// Updates a node that was added or removed, that barriers begin or cease to wait for, or whose next task set
    /// changed.
    pub fn update_node(&mut self, fleet: &Fleet, results: &dyn TaskResults, node: NodeId, affected: &mut AffectedNodeSet) {
        let (old, new) = (self.members.get(&node).copied(), self.member(fleet, results, node));
        if old == new {
            return;
        }
        let steps = |member: Option<BarrierMember>| member.and_then(|member| self.points_by_profile.get(&member.profile));
        let touched: BTreeSet<usize> = steps(old).into_iter().chain(steps(new)).flat_map(BTreeMap::keys).copied().collect();
        let before: Vec<_> = touched.iter().map(|at| (*at, self.points[*at].waiting_for())).collect();
        self.record_stalled(affected);
        self.remove_member(node);
        self.add_member(fleet, results, node);
        for (at, before) in before {
            affected.add(&self.points[at], before);
        }
        affected.nodes.insert(node);
    }

    /// Updates the points that wait for these tasks of a node, after new results of the tasks.
    pub fn update_results(
        &mut self,
        results: &dyn TaskResults,
        node: NodeId,
        tasks: &BTreeSet<String>,
        affected: &mut AffectedNodeSet,
    ) {
        let Some(member) = self.members.get(&node).filter(|member| member.counts_for_barriers) else { return };
        let Some(points) = self.points_by_profile.get(&member.profile) else { return };
        let task_points: BTreeSet<_> = tasks.iter().filter_map(|task| self.points_by_task.get(task)).flatten().collect();
        let touched: Vec<_> = task_points.into_iter().filter_map(|at| points.get_key_value(at)).collect();
        // Most tasks have no barrier that waits for them.
        if touched.is_empty() {
            return;
        }
        self.record_stalled(affected);
        for (at, required) in touched {
            let point = &mut self.points[*at];
            let before = point.waiting_for();
            point.update(results, node, member, &required.steps);
            affected.add(point, before);
        }
    }

    /// Returns the open barriers of each affected node.
    pub fn open_barriers(&self, affected: &AffectedNodeSet) -> Vec<(NodeId, &Profile, Vec<&Barrier>)> {
        let by_profile = self.members.iter().filter(|(_, member)| affected.profiles.contains(&member.profile));
        let all: Box<dyn Iterator<Item = NodeId>> = if affected.profiles.is_empty() {
            Box::new(affected.nodes.iter().copied())
        } else {
            let nodes: BTreeSet<NodeId> = by_profile.map(|(node, _)| *node).chain(affected.nodes.iter().copied()).collect();
            Box::new(nodes.into_iter())
        };
        let mut states: BTreeMap<ProfileHash, Vec<RemainingWait>> = BTreeMap::new();
        let mut opened = Vec::new();
        for node in all {
            let Some(member) = self.members.get(&node) else { continue };
            let Some((profile, barriers)) = self.targets_by_profile.get(&member.profile) else { continue };
            let states =
                states.entry(member.profile).or_insert_with(|| barriers.iter().map(|targets| self.remaining(targets)).collect());
            let is_open = |(_, wait): &(&Barrier, &RemainingWait)| wait.is_empty_for(node);
            let open = profile.barriers.iter().zip(&*states).filter(is_open).map(|(barrier, _)| barrier).collect();
            opened.push((node, &**profile, open));
        }
        opened
    }

    /// Returns for each affected node whether it is blocked: whether one of its closed barriers will not open by
    /// itself.
    pub fn blocked_nodes(&self, affected: &AffectedNodeSet) -> Vec<(NodeId, bool)> {
        if affected.is_empty() && affected.stalled_before.is_none() {
            return Vec::new();
        }
        let stalled = self.stalled_points();
        let before = affected.stalled_before.as_ref().unwrap_or(&stalled);
        let changed = before.symmetric_difference(&stalled).filter_map(|at| self.points.get(*at));
        let profiles: BTreeSet<ProfileHash> =
            changed.flat_map(|point| &point.waiting_profiles).chain(&affected.profiles).copied().collect();
        let has_profile = |(_, member): &(&NodeId, &BarrierMember)| profiles.contains(&member.profile);
        let members = (!profiles.is_empty()).then(|| self.members.iter().filter(has_profile).map(|(node, _)| *node));
        let nodes: BTreeSet<NodeId> = members.into_iter().flatten().chain(affected.nodes.iter().copied()).collect();
        let mut closed: BTreeMap<ProfileHash, Vec<RemainingWait>> = BTreeMap::new();
        let mut is_blocked = |node: &NodeId| {
            let Some(member) = self.members.get(node).filter(|member| member.counts_for_barriers) else { return false };
            let Some((_, barriers)) = self.targets_by_profile.get(&member.profile) else { return false };
            let waits = || self.stalled_waits(barriers, &stalled).collect();
            closed.entry(member.profile).or_insert_with(waits).iter().any(|wait| !wait.is_empty_for(*node))
        };
        nodes.into_iter().map(|node| (node, is_blocked(&node))).collect()
    }

    /// Records the stalled points, unless they were recorded before an earlier change.
    fn record_stalled(&self, affected: &mut AffectedNodeSet) {
        affected.stalled_before.get_or_insert_with(|| self.stalled_points());
    }

    /// Returns the points that will not be reached until somebody acts. The search starts from points with a node that
    /// stops others by itself. It continues to points whose nodes are stopped at barriers before them, and ends when it
    /// finds no more.
    fn stalled_points(&self) -> BTreeSet<usize> {
        let direct = (0..).zip(&self.points).filter(|(_, point)| point.is_stalled());
        let mut stalled: BTreeSet<usize> = direct.map(|(at, _)| at).collect();
        let mut has_grown = !stalled.is_empty();
        while has_grown {
            has_grown = false;
            // A point that is found counts at once, so even a long chain takes few rounds.
            for at in 0..self.points.len() {
                if !stalled.contains(&at) && self.is_stalled_at(at, &stalled) {
                    has_grown = stalled.insert(at);
                }
            }
        }
        stalled
    }

    /// Returns whether a point is stalled because nodes that it selects are stopped before it by stalled points.
    fn is_stalled_at(&self, at: usize, stalled: &BTreeSet<usize>) -> bool {
        let point = &self.points[at];
        if point.waiting_for() == WaitingFor::Nobody {
            return false;
        }
        let before = point.pending_by_profile.keys().map(|profile| (profile, self.remaining_before(profile, at, stalled)));
        let stopped: BTreeMap<_, _> = before.filter(|(_, wait)| !wait.is_empty()).collect();
        let is_stopped = |node: &NodeId| {
            let waits = self.members.get(node).and_then(|member| stopped.get(&member.profile));
            point.stalled_nodes.contains(node) || waits.into_iter().flatten().any(|wait| !wait.is_empty_for(*node))
        };
        match point.barrier.policy {
            Policy::All => stopped.iter().any(|(profile, wait)| self.has_stalled_node(point, profile, wait)),
            Policy::Any => !stopped.is_empty() && point.pending_nodes.iter().all(is_stopped),
        }
    }

    /// Returns whether one of these waits stops a node of the profile, among the nodes that a point waits for.
    fn has_stalled_node(&self, point: &BarrierState, profile: &ProfileHash, all: &[RemainingWait]) -> bool {
        let is_of = |node: &NodeId| {
            point.pending_nodes.contains(node) && self.members.get(node).is_some_and(|member| member.profile == *profile)
        };
        let count = point.pending_by_profile.get(profile).copied().unwrap_or_default();
        // If the wait is for a single node, and this is one of the counted nodes, that node does not wait for itself.
        all.iter().any(|wait| count > usize::from(!wait.is_transitive && wait.own_wait.single_node().as_ref().is_some_and(is_of)))
    }

    /// Returns the stalled waits at the barriers before a point, for the nodes of a profile.
    fn remaining_before(&self, profile: &ProfileHash, at: usize, stalled: &BTreeSet<usize>) -> Vec<RemainingWait> {
        let steps = self.points_by_profile.get(profile).and_then(|meant| meant.get(&at));
        let Some(((_, barriers), steps)) = self.targets_by_profile.get(profile).zip(steps) else { return Vec::new() };
        self.stalled_waits(steps.barriers_before.iter().filter_map(|at| barriers.get(*at)), stalled).collect()
    }

    /// Returns the waits at these barriers that will not end by themselves.
    fn stalled_waits<'a>(
        &'a self,
        barriers: impl IntoIterator<Item = &'a WaitTargets>,
        stalled: &'a BTreeSet<usize>,
    ) -> impl Iterator<Item = RemainingWait> {
        let waiting = move |at: &usize| if stalled.contains(at) { self.points[*at].waiting_for() } else { WaitingFor::Nobody };
        barriers.into_iter().map(move |targets| RemainingWait::new(targets, waiting)).filter(|wait| !wait.is_empty())
    }

    /// Returns the positions of those barriers in a node's profile that are closed for the node.
    pub fn closed_barriers(&self, node: NodeId) -> Vec<usize> {
        let waits = self.members.get(&node).and_then(|member| self.targets_by_profile.get(&member.profile));
        let places = (0..).zip(waits.into_iter().flat_map(|(_, barriers)| barriers));
        places.filter(|(_, targets)| !self.remaining(targets).is_empty_for(node)).map(|(at, _)| at).collect()
    }

    /// Returns the nodes that the barrier at a position in a profile waits for.
    pub fn awaited_nodes(&self, profile: ProfileHash, at: usize) -> Cow<'_, BTreeSet<NodeId>> {
        match self.unmet_points(profile, at).map(|at| &self.points[at].pending_nodes).collect::<Vec<_>>().as_slice() {
            [only] => Cow::Borrowed(*only),
            many => Cow::Owned(many.iter().copied().flatten().copied().collect()),
        }
    }

    /// Returns the ids of the tasks that the barrier at a position in a profile waits for on a node: the barrier's own
    /// task, and those before a stage or a marker. What comes before a marker on another node need not be a task of
    /// this profile, so only the wave knows it.
    pub fn awaited_tasks(&self, profile: ProfileHash, at: usize, node: NodeId) -> BTreeSet<&str> {
        let points = self.members.get(&node).and_then(|member| self.points_by_profile.get(&member.profile));
        let waiting = self.unmet_points(profile, at).filter(|at| self.points[*at].pending_nodes.contains(&node));
        let tasks = waiting.filter_map(|at| Some(points?.get(&at)?.steps.task_ids(self.points[at].task())));
        tasks.flatten().collect()
    }

    /// Returns the points where a node is still waited for, among those that the barrier at a position in a profile
    /// waits for.
    fn unmet_points(&self, profile: ProfileHash, at: usize) -> impl Iterator<Item = usize> {
        let targets = self.targets_by_profile.get(&profile).and_then(|(_, barriers)| barriers.get(at));
        let points = targets.into_iter().flat_map(|targets| targets.own_point.iter().chain(&targets.transitive));
        points.copied().filter(move |at| self.points[*at].waiting_for() != WaitingFor::Nobody)
    }

    /// Returns what a barrier waits for now.
    fn remaining(&self, targets: &WaitTargets) -> RemainingWait {
        RemainingWait::new(targets, |at| self.points[*at].waiting_for())
    }

    /// Returns what the wave knows of a node, or `None` if the node is not placed in this cluster.
    fn member(&self, fleet: &Fleet, results: &dyn TaskResults, node: NodeId) -> Option<BarrierMember> {
        let profile = fleet.profile(node).filter(|_| fleet.cluster_of_node(node) == Some(self.cluster))?;
        Some(BarrierMember {
            profile: profile.hash,
            counts_for_barriers: fleet.counts_for_barriers(node),
            task_set: results.task_set(node),
            is_inactive: results.is_inactive(node),
            is_withheld: results.is_withheld(node),
        })
    }

    /// Adds a node to the wave, and to the points that select it if barriers wait for it.
    fn add_member(&mut self, fleet: &Fleet, results: &dyn TaskResults, node: NodeId) {
        let Some(member) = self.member(fleet, results, node) else { return };
        self.members.insert(node, member);
        if !member.counts_for_barriers {
            return;
        }
        for (at, required) in self.points_by_profile.get(&member.profile).into_iter().flatten() {
            let point = &mut self.points[*at];
            point.node_count += 1;
            point.update(results, node, &member, &required.steps);
        }
    }

    /// Removes a node from the wave and from its points.
    fn remove_member(&mut self, node: NodeId) {
        let Some(member) = self.members.remove(&node).filter(|member| member.counts_for_barriers) else { return };
        for at in self.points_by_profile.get(&member.profile).into_iter().flat_map(BTreeMap::keys) {
            self.points[*at].node_count -= 1;
            self.points[*at].remove_node(node, member.profile);
        }
    }

    /// Creates the points that the barriers of these profiles wait for. Barriers that wait for the same task on the
    /// same nodes share a point.
    fn add_points<'a>(&mut self, fleet: &Fleet, profiles: impl IntoIterator<Item = &'a Arc<Profile>>) {
        let mut order = BarrierOrder::new(fleet, self.cluster);
        let mut known: BTreeMap<PointKey, usize> = BTreeMap::new();
        for profile in profiles {
            if self.targets_by_profile.contains_key(&profile.hash) {
                continue;
            }
            let waits = profile.barriers.iter().map(|barrier| {
                let predecessors = order.predecessors(&profile.release, barrier);
                let is_task = !matches!(barrier.scope, BarrierScope::Stage);
                let own_point = is_task.then(|| self.point_index(&mut known, Arc::clone(&profile.release), barrier.clone()));
                let transitive: BTreeSet<usize> =
                    predecessors.into_iter().map(|(release, target)| self.point_index(&mut known, release, target)).collect();
                for at in own_point.iter().chain(&transitive) {
                    self.points[*at].waiting_profiles.insert(profile.hash);
                }
                WaitTargets { own_point, transitive: transitive.into_iter().filter(|at| Some(*at) != own_point).collect() }
            });
            let waits = waits.collect();
            self.targets_by_profile.insert(profile.hash, (Arc::clone(profile), waits));
        }
    }

    /// Records which points select the nodes of a profile, and which tasks these nodes must complete there.
    fn add_profile(&mut self, profile: &Profile) {
        if self.points_by_profile.contains_key(&profile.hash) {
            return;
        }
        let mut selected = BTreeMap::new();
        for (at, point) in self.points.iter().enumerate() {
            let Some(ix) = barrier_task(&point.release, &point.barrier, profile) else { continue };
            let steps = if profile.release.task(ix).is_skipped_type() {
                let before = profile.marker_predecessors(ix).tasks.into_iter();
                RequiredSteps::MarkerTasks(before.map(|ix| profile.release.id(ix).to_owned()).collect())
            } else {
                RequiredSteps::Task
            };
            selected.insert(at, ProfileSteps { steps, barriers_before: profile.barrier_indexes_before(ix) });
        }
        for (at, required) in &selected {
            for id in required.steps.marker_tasks() {
                let points = self.points_by_task.entry(id.clone()).or_default();
                if !points.contains(at) {
                    points.push(*at);
                }
            }
        }
        self.points_by_profile.insert(profile.hash, selected);
    }

    /// Returns the index of the point for a barrier. Creates the point if it does not exist.
    fn point_index(&mut self, known: &mut BTreeMap<PointKey, usize>, release: Arc<CompiledRelease>, barrier: Barrier) -> usize {
        *known.entry(point_key(&release, &barrier)).or_insert_with(|| {
            let point = BarrierState::new(release, barrier);
            self.points_by_task.entry(point.task().to_owned()).or_default().push(self.points.len());
            self.points.push(point);
            self.points.len() - 1
        })
    }
}

impl RequiredSteps {
    /// Returns the ids of the tasks. `own` is the task of the point.
    fn task_ids<'a>(&'a self, own: &'a str) -> Vec<&'a str> {
        match self {
            Self::Task => vec![own],
            Self::MarkerTasks(tasks) => tasks.iter().map(String::as_str).collect(),
        }
    }

    /// Returns the tasks that must be completed instead of a marker. Empty if the task of the point is not a marker.
    fn marker_tasks(&self) -> &[String] {
        match self {
            Self::Task => &[],
            Self::MarkerTasks(tasks) => tasks,
        }
    }

    /// Returns whether a node has completed all of the tasks. `task` is the task of the point.
    fn is_over(&self, results: &dyn TaskResults, node: NodeId, task: &str) -> bool {
        match self {
            Self::Task => results.completion(node, task).is_over(),
            Self::MarkerTasks(tasks) => tasks.iter().all(|task| results.completion(node, task).is_over()),
        }
    }

    /// Returns whether one of the tasks will not succeed on a node by itself, whatever barriers open. `task` is the
    /// task of the point.
    fn is_stalled(&self, results: &dyn TaskResults, node: NodeId, member: &BarrierMember, task: &str) -> bool {
        let will_not_succeed = |task: &str| {
            let is_missing = member.is_withheld && !results.is_released(node, task);
            results.has_failed(node, task) || (is_missing && !results.completion(node, task).is_over())
        };
        match self {
            Self::Task => will_not_succeed(task),
            Self::MarkerTasks(tasks) => tasks.iter().any(|task| will_not_succeed(task)),
        }
    }
}

impl RemainingWait {
    /// Computes what a barrier still waits for, from what each of its points waits for.
    fn new(targets: &WaitTargets, waiting: impl Fn(&usize) -> WaitingFor) -> Self {
        Self {
            own_wait: targets.own_point.as_ref().map_or(WaitingFor::Nobody, &waiting),
            is_transitive: targets.transitive.iter().any(|at| waiting(at) != WaitingFor::Nobody),
        }
    }

    /// Returns whether the barrier waits for nothing.
    fn is_empty(self) -> bool {
        !self.is_transitive && self.own_wait == WaitingFor::Nobody
    }

    /// Returns whether the barrier waits for nothing but, at its own task, the node itself.
    fn is_empty_for(self, node: NodeId) -> bool {
        !self.is_transitive && self.own_wait.is_empty_for(node)
    }
}

impl BarrierState {
    fn new(release: Arc<CompiledRelease>, barrier: Barrier) -> Self {
        let (pending_nodes, stalled_nodes, waiting_profiles) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        Self {
            barrier,
            release,
            node_count: 0,
            pending_nodes,
            pending_by_profile: BTreeMap::new(),
            stalled_nodes,
            waiting_profiles,
        }
    }

    fn task(&self) -> &str {
        self.release.id(self.barrier.task)
    }

    /// Updates a selected node with the result of the point's task, or of the tasks that take the place of a marker.
    fn update(&mut self, results: &dyn TaskResults, node: NodeId, member: &BarrierMember, steps: &RequiredSteps) {
        self.remove_node(node, member.profile);
        if steps.is_over(results, node, self.task()) {
            return;
        }
        let is_stalled = member.is_inactive || steps.is_stalled(results, node, member, self.task());
        self.pending_nodes.insert(node);
        *self.pending_by_profile.entry(member.profile).or_default() += 1;
        if is_stalled {
            self.stalled_nodes.insert(node);
        }
    }

    /// Removes a node from those that the point waits for.
    fn remove_node(&mut self, node: NodeId, profile: ProfileHash) {
        if self.pending_nodes.remove(&node) {
            match self.pending_by_profile.get_mut(&profile) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) | None => drop(self.pending_by_profile.remove(&profile)),
            }
        }
        self.stalled_nodes.remove(&node);
    }

    /// Returns whether the point's own nodes stall it: one of them, or all of them under `policy: any`.
    fn is_stalled(&self) -> bool {
        match (self.waiting_for(), self.barrier.policy) {
            (WaitingFor::Nobody, _) => false,
            (WaitingFor::One(_) | WaitingFor::Several, Policy::Any) => self.stalled_nodes.len() == self.pending_nodes.len(),
            (WaitingFor::One(_) | WaitingFor::Several, Policy::All) => !self.stalled_nodes.is_empty(),
        }
    }

    /// Returns the nodes that the point still waits for. Under `policy: any` it waits for nobody once one node is done.
    fn waiting_for(&self) -> WaitingFor {
        let any_is_done = self.node_count == 0 || self.pending_nodes.len() < self.node_count;
        if self.barrier.policy == Policy::Any && any_is_done {
            return WaitingFor::Nobody;
        }
        let mut nodes = self.pending_nodes.iter();
        match (nodes.next(), nodes.next()) {
            (None, _) => WaitingFor::Nobody,
            (Some(node), None) => WaitingFor::One(*node),
            (Some(_), Some(_)) => WaitingFor::Several,
        }
    }
}

impl WaitingFor {
    /// Returns whether node `asking` waits for nobody here. A node does not wait for itself.
    fn is_empty_for(self, asking: NodeId) -> bool {
        match self {
            Self::Nobody => true,
            Self::One(node) => node == asking,
            Self::Several => false,
        }
    }

    /// Returns the node, if it is the only one.
    fn single_node(self) -> Option<NodeId> {
        match self {
            Self::One(node) => Some(node),
            Self::Nobody | Self::Several => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn remaining_wait_is_empty_for_last_missing_node() {
        let (a, b) = (NodeId(Uuid::from_u128(1)), NodeId(Uuid::from_u128(2)));
        for (own, behind, a_waits, b_waits) in [
            (WaitingFor::Nobody, false, false, false),
            (WaitingFor::One(a), false, false, true),
            (WaitingFor::Several, false, true, true),
            (WaitingFor::Nobody, true, true, true),
            (WaitingFor::One(a), true, true, true),
        ] {
            let left = RemainingWait { own_wait: own, is_transitive: behind };
            assert_eq!([a, b].map(|node| !left.is_empty_for(node)), [a_waits, b_waits], "{left:?}");
        }
    }
}
