//! The waves of all clusters, kept from pass to pass, and the grants that follow from them. A wave is the state of all
//! barriers of a cluster: which are open, and which nodes each closed one waits for.
//!
//! `stemma_core::rollout` decides what opens a barrier. This module passes it the changes of a pass, and has the result
//! signed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use stemma_core::fleet::Fleet;
use stemma_core::object::{ClusterId, NodeId};
use stemma_core::release::{Profile, ProfileHash};
use stemma_core::rollout::{AffectedNodeSet, Completion, TaskResults, Wave};
use stemma_wire::message::observed::Outcome;
use stemma_wire::message::{Revision, desired};
use uuid::Uuid;

use crate::cache::Model;
use crate::cache::released::is_released;
use crate::desired::{DesiredTable, encode};

/// The desired states of nodes and the results of their tasks, from which a wave computes which barriers are open.
#[derive(Clone, Copy)]
pub(crate) struct TaskOutcomes<'a> {
    /// The table with the desired states of the nodes.
    pub(crate) table: &'a DesiredTable,
    /// The model with what was released to the nodes, and their task results.
    pub(crate) model: &'a Model,
}

impl TaskOutcomes<'_> {
    /// Returns the outcome of a task, if its last result is for the task set of the node's published desired state.
    fn outcome(&self, node: NodeId, task: &str) -> Option<Outcome> {
        let result = &self.model.results.get(&node.0)?.tasks.get(task)?.result;
        self.table.is_task_set(node.0, result.task_set).then_some(result.outcome)
    }
}

impl TaskResults for TaskOutcomes<'_> {
    fn task_set(&self, node: NodeId) -> Option<[u8; 32]> {
        self.table.digests(node.0).map(|(_, task_set)| task_set.0)
    }

    /// Returns the completion of a task on a node, for the nodes that wait for the task. The task is pending as long as
    /// nothing is published for the node.
    fn completion(&self, node: NodeId, task: &str) -> Completion {
        if self.table.digests(node.0).is_none() {
            return Completion::Pending;
        }
        let released = self.model.released.get(&node.0);
        if released.is_some_and(|record| !record.runs_task(task)) {
            Completion::Skipped
        } else if self.outcome(node, task).is_some_and(Outcome::is_success) {
            Completion::Succeeded
        } else {
            Completion::Pending
        }
    }

    fn is_inactive(&self, node: NodeId) -> bool {
        self.table.status().is_holding_others_up(node.0)
    }

    fn has_failed(&self, node: NodeId, task: &str) -> bool {
        // Without help, a task does not succeed if it has drifted and is left so, or if it was only checked.
        self.outcome(node, task).is_some_and(|outcome| !outcome.is_success())
    }

    fn is_withheld(&self, node: NodeId) -> bool {
        self.table.status().is_withheld(node.0)
    }

    fn is_released(&self, node: NodeId, task: &str) -> bool {
        is_released(self.model, node.0, task)
    }
}

/// The changes of nodes that a pass handles.
pub(super) struct PassChanges<'a> {
    /// Nodes that the pass handled: resolved, not resolvable, or deleted.
    pub(super) nodes: &'a BTreeSet<Uuid>,
    /// Nodes that have begun or ceased to hold up the nodes that wait for them.
    pub(super) with_changed_blocking: &'a BTreeSet<Uuid>,
    /// Nodes with new results, each with the ids of the tasks.
    pub(super) results: &'a BTreeMap<Uuid, BTreeSet<String>>,
    /// Nodes whose obsolete barriers changed. Such a barrier is in the profile that a node continues to run, and the
    /// present order of tasks no longer has it. No other change shows these nodes to the waves.
    pub(super) with_changed_obsolete: &'a BTreeSet<Uuid>,
}

/// The waves of all clusters.
#[derive(Default)]
pub(super) struct Waves {
    by_cluster: HashMap<ClusterId, Wave>,
    /// The cluster whose wave contains each node. The model of the last pass does not show this, because a pass whose
    /// commit failed has not updated the waves.
    cluster_of_node: HashMap<Uuid, ClusterId>,
    /// The barriers of the profile that a node continues to run, which the present order of tasks no longer has. They
    /// are open.
    obsolete_barriers: HashMap<Uuid, Arc<[desired::Barrier]>>,
    /// The revision of the last pass.
    revision: Revision,
    /// The closed barriers that were computed since the last pass, by cluster, profile and index in the profile. Many
    /// nodes of a cluster wait at the same barriers, which are then computed once.
    closed_barrier_cache: HashMap<(ClusterId, ProfileHash, usize), ClosedBarrier>,
}

impl Waves {
    /// Sets the barriers of a node's profile that the present order of tasks no longer has. Returns whether they
    /// changed.
    pub(super) fn set_obsolete_barriers(&mut self, node: Uuid, barriers: &Arc<[desired::Barrier]>) -> bool {
        let previous_barriers = if barriers.is_empty() {
            self.obsolete_barriers.remove(&node)
        } else {
            self.obsolete_barriers.insert(node, Arc::clone(barriers))
        };
        previous_barriers.unwrap_or_default() != *barriers
    }

    /// Returns the clusters in which a change of these nodes may open or close barriers: the clusters of the nodes, and
    /// the clusters whose waves contain them.
    pub(super) fn clusters_of(&self, fleet: &Fleet, nodes: impl IntoIterator<Item = Uuid>) -> BTreeSet<ClusterId> {
        let clusters = |node| [fleet.cluster_of_node(NodeId(node)), self.cluster_of_node.get(&node).copied()];
        nodes.into_iter().flat_map(clusters).flatten().collect()
    }

    /// Returns the closed barriers of a node. Returns `None` if the node has no cluster or profile, if its cluster has
    /// no wave, or if the waves were computed at another store revision than `model`.
    pub(super) fn closed_barriers(&mut self, model: &Model, node: NodeId) -> Option<Vec<ClosedBarrier>> {
        let cluster = model.fleet.cluster_of_node(node)?;
        let wave = self.by_cluster.get(&cluster)?;
        let profile = model.fleet.profile(node).filter(|_| self.revision.0 == model.revision.get())?;
        let cache = &mut self.closed_barrier_cache;
        let closed_barrier_at = |index| {
            let compute = || ClosedBarrier::new(&model.fleet, wave, profile, index);
            cache.entry((cluster, profile.hash, index)).or_insert_with(compute).clone()
        };
        Some(wave.closed_barriers(node).into_iter().map(closed_barrier_at).collect())
    }

    /// Removes all waves. Each is built again from the store when a node of its cluster is handled in a pass.
    pub(super) fn clear(&mut self) {
        self.by_cluster.clear();
        self.closed_barrier_cache.clear();
    }

    /// Applies the changes of a pass to the waves, and grants the barriers that they open. Returns the nodes whose open
    /// barriers changed, and for each affected node whether it is blocked.
    pub(super) fn apply_changes(
        &mut self,
        fleet: &Fleet,
        results: TaskOutcomes<'_>,
        changes: &PassChanges<'_>,
        revision: Revision,
    ) -> (Vec<Uuid>, Vec<(Uuid, bool)>) {
        self.closed_barrier_cache.clear();
        let mut affected: BTreeMap<ClusterId, AffectedNodeSet> = BTreeMap::new();
        let mut nodes: BTreeMap<ClusterId, Vec<NodeId>> = BTreeMap::new();
        for node in changes.nodes.union(changes.with_changed_blocking) {
            let new_cluster = fleet.cluster_of_node(NodeId(*node));
            let old_cluster = match new_cluster {
                Some(cluster) => self.cluster_of_node.insert(*node, cluster),
                None => {
                    self.obsolete_barriers.remove(node);
                    self.cluster_of_node.remove(node)
                }
            };
            // A node that moved changes the waves of both clusters.
            for cluster in new_cluster.into_iter().chain(old_cluster.filter(|old_cluster| Some(*old_cluster) != new_cluster)) {
                nodes.entry(cluster).or_default().push(NodeId(*node));
            }
        }
        for (cluster, nodes) in nodes {
            self.update_members(fleet, results, cluster, &nodes, &mut affected);
        }
        for (node, tasks) in changes.results {
            let Some(cluster) = fleet.cluster_of_node(NodeId(*node)) else { continue };
            if let Some(wave) = self.by_cluster.get_mut(&cluster) {
                wave.update_results(&results, NodeId(*node), tasks, affected.entry(cluster).or_default());
            }
        }
        for node in changes.with_changed_obsolete.iter().copied().map(NodeId) {
            if let Some(cluster) = fleet.cluster_of_node(node) {
                affected.entry(cluster).or_default().add_node(node);
            }
        }
        self.revision = revision;
        let grant = |(id, set): (&ClusterId, &AffectedNodeSet)| self.grant_barriers(results.table, *id, set, revision);
        let changed_nodes = affected.iter().flat_map(grant).collect();
        let waves = affected.iter().filter_map(|(cluster, affected)| Some((self.by_cluster.get(cluster)?, affected)));
        let blocked = waves.flat_map(|(wave, affected)| wave.blocked_nodes(affected));
        (changed_nodes, blocked.map(|(node, is_blocked)| (node.0, is_blocked)).collect())
    }

    /// Updates the wave of a cluster after these nodes changed, joined or left the cluster. Adds the nodes that this
    /// affects to `affected`. Builds the wave again if it is not current, and removes the wave of a cluster without
    /// nodes.
    fn update_members(
        &mut self,
        fleet: &Fleet,
        results: TaskOutcomes<'_>,
        cluster: ClusterId,
        nodes: &[NodeId],
        affected: &mut BTreeMap<ClusterId, AffectedNodeSet>,
    ) {
        // A cluster can be deleted only when it has no nodes. So its wave is removed with its last node.
        if fleet.nodes_in_cluster(cluster).next().is_none() {
            self.by_cluster.remove(&cluster);
            return;
        }
        if let Some(wave) = self.by_cluster.get_mut(&cluster).filter(|wave| wave.is_current(fleet)) {
            let affected = affected.entry(cluster).or_default();
            for node in nodes {
                wave.update_node(fleet, &results, *node, affected);
            }
            return;
        }
        let wave = Wave::new(fleet, cluster, &results);
        affected.insert(cluster, wave.all_affected());
        self.by_cluster.insert(cluster, wave);
    }

    /// Grants each affected node of a cluster the barriers that are open for it. Returns the nodes whose open barriers
    /// changed.
    fn grant_barriers(&self, table: &DesiredTable, cluster: ClusterId, nodes: &AffectedNodeSet, revision: Revision) -> Vec<Uuid> {
        let Some(wave) = self.by_cluster.get(&cluster).filter(|_| !nodes.is_empty()) else { return Vec::new() };
        let mut open_by_node = Vec::new();
        for (node, profile, barriers) in wave.open_barriers(nodes) {
            let Some((_, task_set)) = table.digests(node.0) else { continue };
            let mut barriers: Vec<_> = barriers.into_iter().map(|barrier| encode::wire_barrier(profile, barrier)).collect();
            barriers.extend(self.obsolete_barriers.get(&node.0).into_iter().flat_map(|list| &**list).cloned());
            open_by_node.push((node.0, task_set, barriers));
        }
        table.open_barriers(open_by_node, revision)
    }
}

/// A closed barrier at which a node waits.
#[derive(Clone)]
pub(crate) struct ClosedBarrier {
    /// The barrier, as the messages between controller and agent name it.
    pub(crate) barrier: desired::Barrier,
    /// The ids of the profile's tasks that wait at the barrier, also of left-out ones, in the order in which they run.
    pub(crate) waiting_tasks: Vec<String>,
    /// The nodes that the barrier waits for, ordered by uuid. At most the first ten are listed.
    pub(crate) awaited_nodes: Vec<AwaitedNode>,
    /// The number of all nodes that the barrier waits for, including those that `awaited_nodes` does not list.
    pub(crate) awaited_count: usize,
}

/// A node that a barrier waits for.
#[derive(Clone)]
pub(crate) struct AwaitedNode {
    /// The node that must finish tasks.
    pub(crate) node: NodeId,
    /// The ids of the tasks that the node must finish, in the order in which they run there.
    pub(crate) tasks: Vec<String>,
}

/// Maximum number of nodes that are listed for one barrier.
const MAX_LISTED_NODES: usize = 10;

/// Returns the barriers that are closed for a node according to the model, with the nodes that they wait for.
pub(super) fn closed_barriers(results: TaskOutcomes<'_>, node: NodeId) -> Vec<ClosedBarrier> {
    let fleet = &results.model.fleet;
    let (Some(profile), Some(cluster)) = (fleet.profile(node), fleet.cluster_of_node(node)) else { return Vec::new() };
    let wave = Wave::for_profiles(fleet, cluster, &results, [profile]);
    wave.closed_barriers(node).into_iter().map(|index| ClosedBarrier::new(fleet, &wave, profile, index)).collect()
}

impl ClosedBarrier {
    /// Describes the barrier with this index in a profile: the tasks that wait at it, and the nodes of the wave that it
    /// waits for.
    fn new(fleet: &Fleet, wave: &Wave, profile: &Profile, index: usize) -> Self {
        let (barrier, nodes) = (encode::wire_barrier(profile, &profile.barriers[index]), wave.awaited_nodes(profile.hash, index));
        let (waiting_tasks, awaited_count) = (waiting_tasks(profile, &barrier), nodes.len());
        let awaited = |node: &NodeId| AwaitedNode {
            node: *node,
            tasks: ordered_tasks(fleet, *node, &wave.awaited_tasks(profile.hash, index, *node)),
        };
        Self { barrier, waiting_tasks, awaited_nodes: nodes.iter().take(MAX_LISTED_NODES).map(awaited).collect(), awaited_count }
    }
}

/// Returns those of the given tasks that a node has, in the order in which they run there.
fn ordered_tasks(fleet: &Fleet, node: NodeId, tasks: &BTreeSet<&str>) -> Vec<String> {
    let ids = fleet.profile(node).into_iter().flat_map(|profile| {
        let release = &profile.release;
        profile.tasks.iter().map(move |task_index| release.id(*task_index))
    });
    ids.filter(|id| tasks.contains(id)).map(str::to_owned).collect()
}

/// Returns the ids of a profile's tasks that wait at a barrier, in the order in which they run.
fn waiting_tasks(profile: &Profile, barrier: &desired::Barrier) -> Vec<String> {
    let task_indexes = profile.tasks_waiting_at(|profile_barrier| encode::wire_barrier(profile, profile_barrier) == *barrier);
    task_indexes.into_iter().map(|task_index| profile.release.id(task_index).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use stemma_core::name::{NodeName, ObjectName};
    use stemma_core::object::{ClusterSpec, GroupId, Meta, NodeGroupSpec, NodeSpec, Object, Spec, Timestamp};

    use super::*;
    use crate::cache::model::Resource;
    use crate::desired::tests::table;

    const CLUSTER: Uuid = Uuid::from_u128(1);
    const GROUP: Uuid = Uuid::from_u128(2);
    const NODE: Uuid = Uuid::from_u128(3);

    fn put<S: Resource>(model: &mut Model, uuid: Uuid, name: <S as Spec>::Name, spec: S) {
        model.put(1, &Arc::new(Object { meta: Meta::new(uuid, name, Timestamp(0)), spec })).unwrap();
    }

    fn name(text: &str) -> ObjectName {
        ObjectName::new(text).unwrap()
    }

    /// The only node of a cluster is deleted. Then the waves contain neither the node nor a wave of the cluster.
    #[test]
    fn waves_drop_node_and_wave_when_last_node_is_deleted() {
        let mut model = Model::default();
        put(&mut model, CLUSTER, name("c"), ClusterSpec::default());
        put(&mut model, GROUP, name("g"), NodeGroupSpec::new(ClusterId(CLUSTER)));
        let spec = NodeSpec { nodegroup: Some(GroupId(GROUP)), ..NodeSpec::default() };
        put(&mut model, NODE, NodeName::new("n").ok(), spec);
        let (table, mut waves) = (table(), Waves::default());
        let (nodes, results) = (BTreeSet::from([NODE]), BTreeMap::new());
        let changes = PassChanges {
            nodes: &nodes,
            with_changed_blocking: &BTreeSet::new(),
            results: &results,
            with_changed_obsolete: &nodes,
        };
        let barrier = desired::Barrier { task: "t".to_owned(), selector: "kind=node".to_owned() };
        assert!(waves.set_obsolete_barriers(NODE, &Arc::from([barrier])));
        waves.apply_changes(&model.fleet, TaskOutcomes { table: &table, model: &model }, &changes, Revision(1));
        assert_eq!([waves.by_cluster.len(), waves.cluster_of_node.len(), waves.obsolete_barriers.len()], [1; 3]);
        model.remove::<NodeSpec>(NODE).unwrap();
        waves.apply_changes(&model.fleet, TaskOutcomes { table: &table, model: &model }, &changes, Revision(2));
        assert_eq!([waves.by_cluster.len(), waves.cluster_of_node.len(), waves.obsolete_barriers.len()], [0; 3]);
    }
}
