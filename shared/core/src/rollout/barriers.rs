//! Computes which barriers of a node are open, from the results of tasks on other nodes.
//!
//! A wave is the set of nodes whose barriers are computed together: all nodes of a cluster. A point is a task on the
//! nodes that a barrier selects. A barrier opens when each node that it selects (or one of them, under `policy: any`)
//! has succeeded in the barrier's task, in the task set that the node should have now. A node that skips the task
//! counts as if it had succeeded. Barriers skip nodes that are parked (by their spec or on their hosts) or whose mode
//! is not `apply`.
//!
//! The barrier of a stage opens when everything that the stage waits for has succeeded. A marker (a task of type
//! `skipped`) runs nothing, so no host reports it. A node has passed a marker when it has completed all tasks before
//! the marker on that node, and when all tasks on other nodes that the marker waits for have succeeded.
//!
//! The groups of a cluster may run different releases. A barrier selects a node by the node's names and by the id of
//! the task, whatever the node's release is. Only a barrier with the scope `Anywhere` selects just the nodes of its own
//! release. Stages with one name are one stage. So barriers follow the same order that is checked when nodes are
//! placed, and that `resolve` prints.
//!
//! A node at a closed barrier is blocked if the barrier will not open by itself. This is so if a node that the barrier
//! waits for failed in the task, runs no tasks, retains a task set without the task, or is itself blocked before the
//! task. The last case may form chains of any length. The search starts from nodes that stop others for one of the
//! first three reasons. So nodes that only wait for each other are never blocked.
//!
//! A wave stays in memory across changes. The caller builds it again if the profiles or releases of its cluster change
//! ([`Wave::is_current`]). When a node is added, is removed or gets another task set, and when a result arrives, only
//! the barriers that depend on this are updated.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::barrier_order::{BarrierOrder, PointKey, barrier_task, point_key, releases};
use crate::digest::ReleaseHash;
use crate::fleet::Fleet;
use crate::object::{ClusterId, NodeId};
use crate::release::{Barrier, BarrierScope, CompiledRelease, Profile, ProfileHash};
use crate::task::Policy;

/// A source of the results of tasks, and of the state of the nodes that run the tasks.
pub trait TaskResults {
    /// Returns the digest of the task set in a node's present desired state. `None` if there is no desired state yet.
    fn task_set(&self, node: NodeId) -> Option<[u8; 32]>;
    /// Returns the completion of a task on a node, in the task set of the node's present desired state.
    fn completion(&self, node: NodeId, task: &str) -> Completion;
    /// Returns whether a node will run none of its tasks until somebody acts. Nodes that wait for such a node are
    /// blocked. `false` for a parked node, because no node waits for a parked node.
    fn is_inactive(&self, node: NodeId) -> bool;
    /// Returns whether a task of a node's present desired state failed there, or ended there without success.
    fn has_failed(&self, node: NodeId, task: &str) -> bool;
    /// Returns whether a node lacks its next task set, because that task set is withheld or was not released yet.
    fn is_withheld(&self, node: NodeId) -> bool;
    /// Returns whether a task is in the task set that was released to a node.
    fn is_released(&self, node: NodeId, task: &str) -> bool;
}

/// The completion of a task on a node, as it matters to the nodes that wait for the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The task set that was released to the node leaves the task out, for example because of the task's condition.
    Skipped,
    /// The task has not succeeded on the node. It may have no result yet, or the released task set may lack it.
    Pending,
    /// The task has succeeded on the node.
    Succeeded,
}

impl Completion {
    /// Returns whether other nodes no longer wait for the task on this node. No node waits for a skipped task, because
    /// this node does not run the task.
    const fn is_no_longer_awaited(self) -> bool {
        match self {
            Self::Skipped | Self::Succeeded => true,
            Self::Pending => false,
        }
    }
}

/// The barriers of one cluster, and the points that the barriers wait for. Several barriers may wait for one point.
#[derive(Debug)]
pub struct Wave {
    cluster: ClusterId,
    /// The profiles and releases that the cluster had when the points were built.
    shape: BarrierShape,
    /// The points. Other fields refer to a point by its index in this list.
    points: Vec<WavePoint>,
    /// The indexes of the points at which a task must be completed, by the task's id.
    points_by_task: BTreeMap<String, Vec<usize>>,
    /// For each profile, the profile and the points that each of its barriers waits for.
    targets_by_profile: BTreeMap<ProfileHash, (Arc<Profile>, Vec<WaitTargets>)>,
    /// For each profile, the points that select its nodes, each with the tasks that these nodes must complete.
    points_by_profile: BTreeMap<ProfileHash, BTreeMap<usize, ProfileSteps>>,
    /// The nodes of the cluster that have a profile, each with the properties on which its points depend.
    members: BTreeMap<NodeId, BarrierMember>,
}

/// The nodes whose open barriers may differ after a change.
#[derive(Debug, Default)]
pub struct AffectedNodeSet {
    profiles: BTreeSet<ProfileHash>,
    nodes: BTreeSet<NodeId>,
    /// The indexes of the points that were stalled before the first of the updates from which this `AffectedNodeSet`
    /// was collected. A stalled point is not completed until somebody acts. `None` if no point was updated.
    stalled_before: Option<BTreeSet<usize>>,
}

/// The hashes of the profiles and releases of a cluster. These decide which points exist and which nodes the points
/// select.
#[derive(Debug, PartialEq, Eq)]
struct BarrierShape {
    profiles: BTreeSet<ProfileHash>,
    releases: BTreeSet<ReleaseHash>,
}

/// The properties of a node on which its points depend, in addition to the results of its tasks. If the properties are
/// unchanged after a change of the node, the points need no update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BarrierMember {
    profile: ProfileHash,
    counts_for_barriers: bool,
    task_set: Option<[u8; 32]>,
    is_inactive: bool,
    is_withheld: bool,
}

/// A point, with its state: a task that barriers wait for, on the nodes that these barriers select.
#[derive(Debug)]
struct WavePoint {
    barrier: Barrier,
    release: Arc<CompiledRelease>,
    /// Number of nodes that the point selects, without those that barriers skip (parked, or mode not `apply`).
    node_count: usize,
    /// The selected nodes that other nodes still wait for: they have neither completed nor skipped the task.
    pending_nodes: BTreeSet<NodeId>,
    /// Number of pending nodes of each profile.
    pending_by_profile: BTreeMap<ProfileHash, usize>,
    /// The pending nodes that will not complete the task by themselves, even if all barriers before it open.
    stalled_nodes: BTreeSet<NodeId>,
    /// The profiles with a barrier that waits for this point.
    waiting_profiles: BTreeSet<ProfileHash>,
}

/// The tasks that the nodes of one profile must complete at a point, and the barriers before these tasks.
#[derive(Debug)]
struct ProfileSteps {
    steps: RequiredSteps,
    /// The barriers that must open before these tasks run, as positions in the profile's list of barriers.
    barriers_before: BTreeSet<usize>,
}

/// The tasks that a node of one profile must complete at a point.
#[derive(Debug)]
enum RequiredSteps {
    /// The task of the point.
    Task,
    /// The ids of the tasks before a marker. The task of the point is this marker, which runs nothing.
    MarkerTasks(Vec<String>),
}

/// The points that a barrier waits for, by their indexes in the wave.
#[derive(Debug, Default)]
struct WaitTargets {
    /// The point of the barrier's own task. `None` for a stage. A node does not wait for itself at this point, because
    /// the order of tasks on the node covers this case.
    own_point: Option<usize>,
    /// The points that come before a stage or a marker. The order of tasks on a node does not cover them, so a node
    /// waits at these points for itself too.
    transitive: Vec<usize>,
}

/// The nodes and points that a barrier still waits for.
#[derive(Clone, Copy, Debug)]
struct RemainingWait {
    /// The nodes that the barrier waits for at the point of its own task.
    own_wait: WaitingFor,
    /// True if the barrier still waits at a point before a stage or a marker.
    is_transitive: bool,
}

/// The nodes that a point still waits for: none, one or several. A single node is named, because the point is closed
/// for all nodes but this one: it does not wait for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitingFor {
    Nobody,
    One(NodeId),
    Several,
}

impl AffectedNodeSet {
    /// Adds the nodes whose barriers may open or close because of a change of a point. `old_wait` are the nodes that
    /// the point waited for before the change.
    fn add(&mut self, point: &WavePoint, old_wait: WaitingFor) {
        let new_wait = point.waiting_for();
        if old_wait == new_wait {
            return;
        }
        // If the point waited for a single node and now waits for several, or the reverse, the barriers change only for
        // that single node, because it did not wait for itself.
        if [old_wait, new_wait].contains(&WaitingFor::Nobody) {
            self.profiles.extend(&point.waiting_profiles);
        }
        self.nodes.extend([old_wait, new_wait].into_iter().filter_map(WaitingFor::single_node));
    }

    /// Adds a node whose open barriers changed for another reason than a change of a point.
    pub fn add_node(&mut self, node: NodeId) {
        self.nodes.insert(node);
    }

    /// Returns whether the set contains no node, so that the changes have opened and closed no barrier.
    pub fn is_empty(&self) -> bool {
        self.profiles.is_empty() && self.nodes.is_empty()
    }
}

impl BarrierShape {
    /// Returns the hashes of the profiles and releases from which the points of a cluster would be built now.
    fn from_fleet(fleet: &Fleet, cluster: ClusterId) -> Self {
        let profiles = fleet.profiles_in_cluster(cluster).map(|profile| profile.hash).collect();
        Self { profiles, releases: releases(fleet, cluster).into_keys().collect() }
    }
}

impl Wave {
    /// Builds the wave of a cluster: its barriers, and the state of the nodes that the barriers wait for.
    pub fn new(fleet: &Fleet, cluster: ClusterId, results: &dyn TaskResults) -> Self {
        Self::for_profiles(fleet, cluster, results, fleet.profiles_in_cluster(cluster))
    }

    /// Builds the wave of a cluster with the barriers of these profiles only. These barriers wait for nodes with any
    /// profile of the cluster.
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

    /// Returns an [`AffectedNodeSet`] with every node of the wave.
    pub fn all_affected(&self) -> AffectedNodeSet {
        AffectedNodeSet { profiles: self.targets_by_profile.keys().copied().collect(), ..AffectedNodeSet::default() }
    }

    /// Updates the points that select a node after a change of the node. Adds the node, and the other nodes whose
    /// barriers may change, to `affected`. Does nothing if no property on which the points depend has changed.
    pub fn update_node(&mut self, fleet: &Fleet, results: &dyn TaskResults, node: NodeId, affected: &mut AffectedNodeSet) {
        let (old, new) = (self.members.get(&node).copied(), self.member(fleet, results, node));
        if old == new {
            return;
        }
        let steps = |member: Option<BarrierMember>| member.and_then(|member| self.points_by_profile.get(&member.profile));
        let indexes: BTreeSet<usize> = steps(old).into_iter().chain(steps(new)).flat_map(BTreeMap::keys).copied().collect();
        let old_waits: Vec<_> = indexes.iter().map(|index| (*index, self.points[*index].waiting_for())).collect();
        self.record_stalled(affected);
        self.remove_member(node);
        self.add_member(fleet, results, node);
        for (index, old_wait) in old_waits {
            affected.add(&self.points[index], old_wait);
        }
        affected.nodes.insert(node);
    }

    /// Updates the points that wait for these tasks of a node, after new results of the tasks. Adds the nodes whose
    /// barriers may change to `affected`.
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
        let changed_points: Vec<_> = task_points.into_iter().filter_map(|index| points.get_key_value(index)).collect();
        // Most tasks have no barrier that waits for them.
        if changed_points.is_empty() {
            return;
        }
        self.record_stalled(affected);
        for (index, profile_steps) in changed_points {
            let point = &mut self.points[*index];
            let old_wait = point.waiting_for();
            point.update(results, node, member, &profile_steps.steps);
            affected.add(point, old_wait);
        }
    }

    /// Returns the affected nodes, each with its profile and its open barriers.
    pub fn open_barriers(&self, affected: &AffectedNodeSet) -> Vec<(NodeId, &Profile, Vec<&Barrier>)> {
        let members = self.members.iter().filter(|(_, member)| affected.profiles.contains(&member.profile));
        // Without an affected profile, only single nodes are affected, so the members need not be searched.
        let affected_nodes: Box<dyn Iterator<Item = NodeId>> = if affected.profiles.is_empty() {
            Box::new(affected.nodes.iter().copied())
        } else {
            let nodes: BTreeSet<NodeId> = members.map(|(node, _)| *node).chain(affected.nodes.iter().copied()).collect();
            Box::new(nodes.into_iter())
        };
        let mut by_hash: BTreeMap<ProfileHash, Vec<RemainingWait>> = BTreeMap::new();
        let mut barriers_by_node = Vec::new();
        for node in affected_nodes {
            let Some(member) = self.members.get(&node) else { continue };
            let Some((profile, barriers)) = self.targets_by_profile.get(&member.profile) else { continue };
            let waits =
                by_hash.entry(member.profile).or_insert_with(|| barriers.iter().map(|targets| self.remaining(targets)).collect());
            let is_open = |(_, wait): &(&Barrier, &RemainingWait)| wait.is_empty_for(node);
            let open = profile.barriers.iter().zip(&*waits).filter(is_open).map(|(barrier, _)| barrier).collect();
            barriers_by_node.push((node, &**profile, open));
        }
        barriers_by_node
    }

    /// Returns for each affected node, and for each node that waits at a point which became or ceased to be stalled,
    /// whether it is blocked. A node that barriers skip (parked, or mode not `apply`) is not blocked.
    pub fn blocked_nodes(&self, affected: &AffectedNodeSet) -> Vec<(NodeId, bool)> {
        if affected.is_empty() && affected.stalled_before.is_none() {
            return Vec::new();
        }
        let stalled = self.stalled_points();
        let stalled_before = affected.stalled_before.as_ref().unwrap_or(&stalled);
        let changed = stalled_before.symmetric_difference(&stalled).filter_map(|index| self.points.get(*index));
        let profiles: BTreeSet<ProfileHash> =
            changed.flat_map(|point| &point.waiting_profiles).chain(&affected.profiles).copied().collect();
        let has_profile = |(_, member): &(&NodeId, &BarrierMember)| profiles.contains(&member.profile);
        let members = (!profiles.is_empty()).then(|| self.members.iter().filter(has_profile).map(|(node, _)| *node));
        let nodes: BTreeSet<NodeId> = members.into_iter().flatten().chain(affected.nodes.iter().copied()).collect();
        let mut waits_by_profile: BTreeMap<ProfileHash, Vec<RemainingWait>> = BTreeMap::new();
        let mut is_blocked = |node: &NodeId| {
            let Some(member) = self.members.get(node).filter(|member| member.counts_for_barriers) else { return false };
            let Some((_, barriers)) = self.targets_by_profile.get(&member.profile) else { return false };
            let waits = || self.stalled_waits(barriers, &stalled).collect();
            waits_by_profile.entry(member.profile).or_insert_with(waits).iter().any(|wait| !wait.is_empty_for(*node))
        };
        nodes.into_iter().map(|node| (node, is_blocked(&node))).collect()
    }

    /// Records the points that are stalled before a change, unless they were recorded before an earlier change.
    fn record_stalled(&self, affected: &mut AffectedNodeSet) {
        affected.stalled_before.get_or_insert_with(|| self.stalled_points());
    }

    /// Returns the stalled points, which will not be completed until somebody acts. The search starts from points whose
    /// own nodes will not complete the task. It continues to points whose nodes are stopped at earlier stalled points,
    /// and ends when it finds no further point.
    fn stalled_points(&self) -> BTreeSet<usize> {
        let stalled_by_nodes = (0..).zip(&self.points).filter(|(_, point)| point.is_stalled());
        let mut stalled: BTreeSet<usize> = stalled_by_nodes.map(|(index, _)| index).collect();
        let mut has_grown = !stalled.is_empty();
        while has_grown {
            has_grown = false;
            // A new stalled point is used in the same round, so a chain in the order of indexes takes few rounds.
            for index in 0..self.points.len() {
                if !stalled.contains(&index) && self.is_stalled_at(index, &stalled) {
                    has_grown = stalled.insert(index);
                }
            }
        }
        stalled
    }

    /// Returns whether the point at an index is stalled because earlier stalled points stop the nodes that the point
    /// waits for. One stopped node is enough. Under `policy: any`, each of them must be stopped or stalled.
    fn is_stalled_at(&self, index: usize, stalled: &BTreeSet<usize>) -> bool {
        let point = &self.points[index];
        if point.waiting_for() == WaitingFor::Nobody {
            return false;
        }
        let remaining =
            point.pending_by_profile.keys().map(|profile| (profile, self.stalled_waits_before(profile, index, stalled)));
        let stopped_profiles: BTreeMap<_, _> = remaining.filter(|(_, wait)| !wait.is_empty()).collect();
        let is_stopped = |node: &NodeId| {
            let waits = self.members.get(node).and_then(|member| stopped_profiles.get(&member.profile));
            point.stalled_nodes.contains(node) || waits.into_iter().flatten().any(|wait| !wait.is_empty_for(*node))
        };
        match point.barrier.policy {
            Policy::All => stopped_profiles.iter().any(|(profile, wait)| self.has_stopped_node(point, profile, wait)),
            Policy::Any => !stopped_profiles.is_empty() && point.pending_nodes.iter().all(is_stopped),
        }
    }

    /// Returns whether one of these waits stops a node of the profile, among the nodes that a point waits for. Each
    /// wait is at a barrier before the point that will not open by itself.
    fn has_stopped_node(&self, point: &WavePoint, profile: &ProfileHash, waits: &[RemainingWait]) -> bool {
        let is_counted = |node: NodeId| {
            point.pending_nodes.contains(&node) && self.members.get(&node).is_some_and(|member| member.profile == *profile)
        };
        let count = point.pending_by_profile.get(profile).copied().unwrap_or_default();
        // If the wait is for a single node, and this node is one of the counted nodes, it does not stop itself.
        waits.iter().any(|wait| count > usize::from(!wait.is_transitive && wait.own_wait.single_node().is_some_and(is_counted)))
    }

    /// Returns the waits that stop the nodes of a profile before they complete the task of the point at an index. Each
    /// is at a barrier that must open before the task runs, and will not end by itself.
    fn stalled_waits_before(&self, profile: &ProfileHash, index: usize, stalled: &BTreeSet<usize>) -> Vec<RemainingWait> {
        let steps = self.points_by_profile.get(profile).and_then(|steps_by_point| steps_by_point.get(&index));
        let Some(((_, barriers), steps)) = self.targets_by_profile.get(profile).zip(steps) else { return Vec::new() };
        self.stalled_waits(steps.barriers_before.iter().filter_map(|index| barriers.get(*index)), stalled).collect()
    }

    /// Returns the waits at these barriers that will not end by themselves: those at stalled points.
    fn stalled_waits<'a>(
        &'a self,
        barriers: impl IntoIterator<Item = &'a WaitTargets>,
        stalled: &'a BTreeSet<usize>,
    ) -> impl Iterator<Item = RemainingWait> {
        let waiting = move |ix: &usize| if stalled.contains(ix) { self.points[*ix].waiting_for() } else { WaitingFor::Nobody };
        barriers.into_iter().map(move |targets| RemainingWait::new(targets, waiting)).filter(|wait| !wait.is_empty())
    }

    /// Returns the positions of those barriers in a node's profile that are closed for the node.
    pub fn closed_barriers(&self, node: NodeId) -> Vec<usize> {
        let waits = self.members.get(&node).and_then(|member| self.targets_by_profile.get(&member.profile));
        let positions = (0..).zip(waits.into_iter().flat_map(|(_, barriers)| barriers));
        positions.filter(|(_, targets)| !self.remaining(targets).is_empty_for(node)).map(|(position, _)| position).collect()
    }

    /// Returns the nodes that a barrier still waits for. If a node waits at the barrier and has not done the barrier's
    /// task itself, the result contains this node too. `position` is that of the barrier in the profile's list.
    pub fn awaited_nodes(&self, profile: ProfileHash, position: usize) -> Cow<'_, BTreeSet<NodeId>> {
        match self.unmet_points(profile, position).map(|index| &self.points[index].pending_nodes).collect::<Vec<_>>().as_slice() {
            [single_set] => Cow::Borrowed(*single_set),
            sets => Cow::Owned(sets.iter().copied().flatten().copied().collect()),
        }
    }

    /// Returns the ids of the tasks that a barrier still waits for on `node`: the barrier's own task, and the tasks
    /// before a stage or a marker. While one of the tasks before a marker is not done, all of them are returned.
    /// `position` is that of the barrier in the profile's list.
    ///
    /// A task before a marker on another node need not be a task of this profile, so the profile alone does not have
    /// it.
    pub fn awaited_tasks(&self, profile: ProfileHash, position: usize, node: NodeId) -> BTreeSet<&str> {
        let points = self.members.get(&node).and_then(|member| self.points_by_profile.get(&member.profile));
        let waiting = self.unmet_points(profile, position).filter(|index| self.points[*index].pending_nodes.contains(&node));
        let tasks = waiting.filter_map(|index| Some(points?.get(&index)?.steps.task_ids(self.points[index].task())));
        tasks.flatten().collect()
    }

    /// Returns the indexes of the points at which a barrier still waits for a node. `position` is that of the barrier
    /// in the profile's list.
    fn unmet_points(&self, profile: ProfileHash, position: usize) -> impl Iterator<Item = usize> {
        let targets = self.targets_by_profile.get(&profile).and_then(|(_, barriers)| barriers.get(position));
        let points = targets.into_iter().flat_map(|targets| targets.own_point.iter().chain(&targets.transitive));
        points.copied().filter(move |index| self.points[*index].waiting_for() != WaitingFor::Nobody)
    }

    /// Returns the nodes and points that a barrier waits for now.
    fn remaining(&self, targets: &WaitTargets) -> RemainingWait {
        RemainingWait::new(targets, |index| self.points[*index].waiting_for())
    }

    /// Returns the properties of a node on which its points depend. `None` if the node is not in this cluster or has no
    /// profile.
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

    /// Adds a node to the wave. If barriers wait for the node, also adds it to the points that select it.
    fn add_member(&mut self, fleet: &Fleet, results: &dyn TaskResults, node: NodeId) {
        let Some(member) = self.member(fleet, results, node) else { return };
        self.members.insert(node, member);
        if !member.counts_for_barriers {
            return;
        }
        for (index, profile_steps) in self.points_by_profile.get(&member.profile).into_iter().flatten() {
            let point = &mut self.points[*index];
            point.node_count += 1;
            point.update(results, node, &member, &profile_steps.steps);
        }
    }

    /// Removes a node from the wave and from its points.
    fn remove_member(&mut self, node: NodeId) {
        let Some(member) = self.members.remove(&node).filter(|member| member.counts_for_barriers) else { return };
        for index in self.points_by_profile.get(&member.profile).into_iter().flat_map(BTreeMap::keys) {
            self.points[*index].node_count -= 1;
            self.points[*index].remove_node(node, member.profile);
        }
    }

    /// Creates the points that the barriers of these profiles wait for, and records for each barrier which points it
    /// waits for. Barriers that wait for the same task on the same nodes under the same policy share a point.
    fn add_points<'a>(&mut self, fleet: &Fleet, profiles: impl IntoIterator<Item = &'a Arc<Profile>>) {
        let mut order = BarrierOrder::new(fleet, self.cluster);
        let mut indexes: BTreeMap<PointKey, usize> = BTreeMap::new();
        for profile in profiles {
            if self.targets_by_profile.contains_key(&profile.hash) {
                continue;
            }
            let waits = profile.barriers.iter().map(|barrier| {
                let predecessors = order.predecessors(&profile.release, barrier);
                let is_task = !matches!(barrier.scope, BarrierScope::Stage);
                let own_point = is_task.then(|| self.point_index(&mut indexes, Arc::clone(&profile.release), barrier.clone()));
                let transitive: BTreeSet<usize> =
                    predecessors.into_iter().map(|(release, target)| self.point_index(&mut indexes, release, target)).collect();
                for index in own_point.iter().chain(&transitive) {
                    self.points[*index].waiting_profiles.insert(profile.hash);
                }
                WaitTargets { own_point, transitive: transitive.into_iter().filter(|index| Some(*index) != own_point).collect() }
            });
            let waits = waits.collect();
            self.targets_by_profile.insert(profile.hash, (Arc::clone(profile), waits));
        }
    }

    /// Records the points that select the nodes of a profile, the tasks that these nodes must complete at each point,
    /// and the barriers before these tasks.
    fn add_profile(&mut self, profile: &Profile) {
        if self.points_by_profile.contains_key(&profile.hash) {
            return;
        }
        let mut selected = BTreeMap::new();
        for (index, point) in self.points.iter().enumerate() {
            let Some(ix) = barrier_task(&point.release, &point.barrier, profile) else { continue };
            let steps = if profile.release.task(ix).is_marker_type() {
                let predecessors = profile.marker_predecessors(ix).tasks.into_iter();
                RequiredSteps::MarkerTasks(predecessors.map(|ix| profile.release.id(ix).to_owned()).collect())
            } else {
                RequiredSteps::Task
            };
            selected.insert(index, ProfileSteps { steps, barriers_before: profile.barrier_indexes_before(ix) });
        }
        for (index, profile_steps) in &selected {
            for id in profile_steps.steps.marker_tasks() {
                let points = self.points_by_task.entry(id.clone()).or_default();
                if !points.contains(index) {
                    points.push(*index);
                }
            }
        }
        self.points_by_profile.insert(profile.hash, selected);
    }

    /// Returns the index of the point for a barrier. Creates the point if it does not exist.
    fn point_index(&mut self, indexes: &mut BTreeMap<PointKey, usize>, release: Arc<CompiledRelease>, barrier: Barrier) -> usize {
        *indexes.entry(point_key(&release, &barrier)).or_insert_with(|| {
            let point = WavePoint::new(release, barrier);
            self.points_by_task.entry(point.task().to_owned()).or_default().push(self.points.len());
            self.points.push(point);
            self.points.len() - 1
        })
    }
}

impl RequiredSteps {
    /// Returns the ids of the tasks that a node must complete at a point. `point_task` is the id of the point's task.
    fn task_ids<'a>(&'a self, point_task: &'a str) -> Vec<&'a str> {
        match self {
            Self::Task => vec![point_task],
            Self::MarkerTasks(tasks) => tasks.iter().map(String::as_str).collect(),
        }
    }

    /// Returns the ids of the tasks that must be completed instead of a marker. Empty if the task of the point is not a
    /// marker.
    fn marker_tasks(&self) -> &[String] {
        match self {
            Self::Task => &[],
            Self::MarkerTasks(tasks) => tasks,
        }
    }

    /// Returns whether other nodes no longer wait for any of the tasks on `node`. `task` is the id of the point's task.
    fn are_no_longer_awaited(&self, results: &dyn TaskResults, node: NodeId, task: &str) -> bool {
        match self {
            Self::Task => results.completion(node, task).is_no_longer_awaited(),
            Self::MarkerTasks(tasks) => tasks.iter().all(|task| results.completion(node, task).is_no_longer_awaited()),
        }
    }

    /// Returns whether one of the tasks will not succeed on a node by itself, even if all barriers open. This is so if
    /// the task failed there. It is also so if the released task set of the node lacks the task, the next task set is
    /// withheld, and other nodes still wait for the task. `task` is the id of the point's task.
    fn is_stalled(&self, results: &dyn TaskResults, node: NodeId, member: &BarrierMember, task: &str) -> bool {
        let will_not_succeed = |task: &str| {
            let is_missing = member.is_withheld && !results.is_released(node, task);
            results.has_failed(node, task) || (is_missing && !results.completion(node, task).is_no_longer_awaited())
        };
        match self {
            Self::Task => will_not_succeed(task),
            Self::MarkerTasks(tasks) => tasks.iter().any(|task| will_not_succeed(task)),
        }
    }
}

impl RemainingWait {
    /// Computes what a barrier still waits for. `waiting` returns the nodes that the point at an index still waits for.
    fn new(targets: &WaitTargets, waiting: impl Fn(&usize) -> WaitingFor) -> Self {
        Self {
            own_wait: targets.own_point.as_ref().map_or(WaitingFor::Nobody, &waiting),
            is_transitive: targets.transitive.iter().any(|index| waiting(index) != WaitingFor::Nobody),
        }
    }

    /// Returns whether the barrier waits for nothing.
    fn is_empty(self) -> bool {
        !self.is_transitive && self.own_wait == WaitingFor::Nobody
    }

    /// Returns whether the barrier is open for a node: it waits for nothing, or only for this node at its own task.
    fn is_empty_for(self, node: NodeId) -> bool {
        !self.is_transitive && self.own_wait.is_empty_for(node)
    }
}

impl WavePoint {
    /// Creates the point of a barrier. The point has no nodes yet.
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

    /// Returns the id of the point's task.
    fn task(&self) -> &str {
        self.release.id(self.barrier.task)
    }

    /// Updates the state of a selected node: whether it is pending and whether it is stalled. `steps` are the tasks
    /// that the node must complete.
    fn update(&mut self, results: &dyn TaskResults, node: NodeId, member: &BarrierMember, steps: &RequiredSteps) {
        self.remove_node(node, member.profile);
        if steps.are_no_longer_awaited(results, node, self.task()) {
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

    /// Returns whether the nodes of the point stall it. One stalled node is enough. Under `policy: any`, all pending
    /// nodes must be stalled.
    fn is_stalled(&self) -> bool {
        match (self.waiting_for(), self.barrier.policy) {
            (WaitingFor::Nobody, _) => false,
            (WaitingFor::One(_) | WaitingFor::Several, Policy::Any) => self.stalled_nodes.len() == self.pending_nodes.len(),
            (WaitingFor::One(_) | WaitingFor::Several, Policy::All) => !self.stalled_nodes.is_empty(),
        }
    }

    /// Returns the nodes that the point still waits for. Under `policy: any`, it waits for nobody if one node has
    /// completed the task, or if the point selects no node.
    fn waiting_for(&self) -> WaitingFor {
        let has_completed_node = self.node_count == 0 || self.pending_nodes.len() < self.node_count;
        if self.barrier.policy == Policy::Any && has_completed_node {
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
    /// Returns whether `waiting_node` waits for no other node here. A node does not wait for itself.
    fn is_empty_for(self, waiting_node: NodeId) -> bool {
        match self {
            Self::Nobody => true,
            Self::One(node) => node == waiting_node,
            Self::Several => false,
        }
    }

    /// Returns the node if it is the only one, and `None` if there are none or several.
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

    /// A node does not wait for itself at the barrier's own point. At a point before a stage or a marker
    /// (`is_transitive`), it does.
    #[test]
    fn remaining_wait_is_empty_for_last_missing_node() {
        let (a, b) = (NodeId(Uuid::from_u128(1)), NodeId(Uuid::from_u128(2)));
        for (own_wait, is_transitive, a_waits, b_waits) in [
            (WaitingFor::Nobody, false, false, false),
            (WaitingFor::One(a), false, false, true),
            (WaitingFor::Several, false, true, true),
            (WaitingFor::Nobody, true, true, true),
            (WaitingFor::One(a), true, true, true),
        ] {
            let remaining = RemainingWait { own_wait, is_transitive };
            assert_eq!([a, b].map(|node| !remaining.is_empty_for(node)), [a_waits, b_waits], "{remaining:?}");
        }
    }
}
