//! The waves of all clusters, kept from pass to pass, and the grants that follow from them.
//!
//! What opens a barrier is decided in `stemma_core::rollout`; here it is asked about what a pass touched, and what it says is signed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use stemma_core::fleet::Fleet;
use stemma_core::object::{ClusterId, NodeId};
use stemma_core::release::{Profile, ProfileHash};
use stemma_core::rollout::{Affected, Done, TaskResults, Wave};
use stemma_wire::message::observed::Outcome;
use stemma_wire::message::{Revision, desired};
use uuid::Uuid;

use crate::cache::Model;
use crate::cache::released::was_released;
use crate::desired::{DesiredTable, encode};

/// What nodes are to have, and what became of their tasks.
#[derive(Clone, Copy)]
pub(crate) struct Results<'a> {
    /// What nodes are to have.
    pub(crate) table: &'a DesiredTable,
    /// What was released to them, and what became of it.
    pub(crate) model: &'a Model,
}

impl Results<'_> {
    /// What became of a task of the task set that a node is to have.
    fn outcome(&self, node: NodeId, task: &str) -> Option<Outcome> {
        let last = &self.model.results.get(&node.0)?.tasks.get(task)?.result;
        self.table.is_task_set(node.0, last.task_set).then_some(last.outcome)
    }
}

impl TaskResults for Results<'_> {
    fn task_set(&self, node: NodeId) -> Option<[u8; 32]> {
        self.table.digests(node.0).map(|(_, task_set)| task_set.0)
    }

    fn done(&self, node: NodeId, task: &str) -> Done {
        if self.table.digests(node.0).is_none() {
            return Done::NotYet;
        }
        let released = self.model.released.get(&node.0);
        if released.is_some_and(|record| !record.runs_task(task)) {
            Done::LeftOut
        } else if self.outcome(node, task).is_some_and(Outcome::is_success) {
            Done::Succeeded
        } else {
            Done::NotYet
        }
    }

    fn is_set_aside(&self, node: NodeId) -> bool {
        self.table.status().holds_others_up(node.0)
    }

    fn has_failed(&self, node: NodeId, task: &str) -> bool {
        // One that drifted and is left so, or was only checked, does not succeed by itself either.
        self.outcome(node, task).is_some_and(|outcome| !outcome.is_success())
    }

    fn keeps_its_set(&self, node: NodeId) -> bool {
        self.table.status().keeps_its_set(node.0)
    }

    fn was_released(&self, node: NodeId, task: &str) -> bool {
        was_released(self.model, node.0, task)
    }
}

/// What a pass touched.
pub(super) struct Touched<'a> {
    /// Nodes that were looked at: resolved or not, or gone.
    pub(super) nodes: &'a BTreeSet<Uuid>,
    /// Nodes that hold up those that wait for them and did not before, or the reverse.
    pub(super) turned: &'a BTreeSet<Uuid>,
    /// Nodes with new results, each with the tasks.
    pub(super) results: &'a BTreeMap<Uuid, BTreeSet<String>>,
    /// Nodes that keep a profile of which the present order dropped other barriers than before. Their waves may know nothing new of them.
    pub(super) dropped: &'a BTreeSet<Uuid>,
}

/// The waves of all clusters.
#[derive(Default)]
pub(super) struct Waves {
    of: HashMap<ClusterId, Wave>,
    /// The cluster whose wave has each node. The model of the last pass does not say this: a pass whose commit failed ended before it
    /// updated the waves.
    put_in: HashMap<Uuid, ClusterId>,
    /// Barriers of the profile that a node keeps and the present order no longer has. They are open.
    dropped: HashMap<Uuid, Arc<[desired::Barrier]>>,
    /// The revision that the last pass was for.
    followed: Revision,
    /// What was asked of shut barriers since then, by cluster, profile and place: a list asks the same for each of its nodes.
    named: HashMap<(ClusterId, ProfileHash, usize), Shut>,
}

impl Waves {
    /// Notes the barriers of a node's profile that the present order no longer has. Returns whether they are others than before.
    pub(super) fn set_dropped(&mut self, node: Uuid, barriers: &Arc<[desired::Barrier]>) -> bool {
        let before = if barriers.is_empty() {
            self.dropped.remove(&node)
        } else {
            self.dropped.insert(node, Arc::clone(barriers))
        };
        before.unwrap_or_default() != *barriers
    }

    /// The clusters in which a change of these nodes may open or shut barriers: those that they are in, and those whose waves have them.
    pub(super) fn clusters_of(&self, fleet: &Fleet, nodes: impl IntoIterator<Item = Uuid>) -> BTreeSet<ClusterId> {
        let both = |node| [fleet.cluster_of_node(NodeId(node)), self.put_in.get(&node).copied()];
        nodes.into_iter().flat_map(both).flatten().collect()
    }

    /// The barriers that are shut for a node; `None`: its wave is not that of this model.
    pub(super) fn shut(&mut self, model: &Model, node: NodeId) -> Option<Vec<Shut>> {
        let cluster = model.fleet.cluster_of_node(node)?;
        let wave = self.of.get(&cluster)?;
        let profile = model.fleet.profile(node).filter(|_| self.followed.0 == model.revision.get())?;
        let known = &mut self.named;
        let named = |at| {
            let new = || Shut::new(&model.fleet, wave, profile, at);
            known.entry((cluster, profile.hash, at)).or_insert_with(new).clone()
        };
        Some(wave.shut_places(node).into_iter().map(named).collect())
    }

    /// Forgets all waves: each is built from what is stored when one of its nodes is looked at next.
    pub(super) fn forget(&mut self) {
        self.of.clear();
        self.named.clear();
    }

    /// Takes in what a pass touched, and grants what is open by it. Returns the nodes whose open barriers changed, and which of the nodes that
    /// this concerns are blocked.
    pub(super) fn update(
        &mut self,
        fleet: &Fleet,
        results: Results<'_>,
        touched: &Touched<'_>,
        revision: Revision,
    ) -> (Vec<Uuid>, Vec<(Uuid, bool)>) {
        self.named.clear();
        let mut affected: BTreeMap<ClusterId, Affected> = BTreeMap::new();
        let mut nodes: BTreeMap<ClusterId, Vec<NodeId>> = BTreeMap::new();
        for node in touched.nodes.union(touched.turned) {
            let now = fleet.cluster_of_node(NodeId(*node));
            let before = match now {
                Some(cluster) => self.put_in.insert(*node, cluster),
                None => {
                    self.dropped.remove(node);
                    self.put_in.remove(node)
                }
            };
            for cluster in now.into_iter().chain(before.filter(|before| Some(*before) != now)) {
                nodes.entry(cluster).or_default().push(NodeId(*node));
            }
        }
        for (cluster, nodes) in nodes {
            self.put_nodes(fleet, results, cluster, &nodes, &mut affected);
        }
        for (node, tasks) in touched.results {
            let Some(cluster) = fleet.cluster_of_node(NodeId(*node)) else { continue };
            if let Some(wave) = self.of.get_mut(&cluster) {
                wave.put_results(&results, NodeId(*node), tasks, affected.entry(cluster).or_default());
            }
        }
        for node in touched.dropped.iter().copied().map(NodeId) {
            if let Some(cluster) = fleet.cluster_of_node(node) {
                affected.entry(cluster).or_default().add_node(node);
            }
        }
        self.followed = revision;
        let grant =
            |(cluster, affected): (&ClusterId, &Affected)| self.grant(results.table, *cluster, affected, revision);
        let granted = affected.iter().flat_map(grant).collect();
        let waves = affected.iter().filter_map(|(cluster, affected)| Some((self.of.get(cluster)?, affected)));
        let blocked = waves.flat_map(|(wave, affected)| wave.blocked(affected));
        (granted, blocked.map(|(node, is_blocked)| (node.0, is_blocked)).collect())
    }

    fn put_nodes(
        &mut self,
        fleet: &Fleet,
        results: Results<'_>,
        cluster: ClusterId,
        nodes: &[NodeId],
        affected: &mut BTreeMap<ClusterId, Affected>,
    ) {
        // A cluster goes after the last of its nodes.
        if fleet.nodes_of_cluster(cluster).next().is_none() {
            self.of.remove(&cluster);
            return;
        }
        if let Some(wave) = self.of.get_mut(&cluster).filter(|wave| wave.is_current(fleet)) {
            let affected = affected.entry(cluster).or_default();
            for node in nodes {
                wave.put_node(fleet, &results, *node, affected);
            }
            return;
        }
        let wave = Wave::new(fleet, cluster, &results);
        affected.insert(cluster, wave.everyone());
        self.of.insert(cluster, wave);
    }

    fn grant(&self, table: &DesiredTable, cluster: ClusterId, affected: &Affected, revision: Revision) -> Vec<Uuid> {
        let Some(wave) = self.of.get(&cluster).filter(|_| !affected.is_empty()) else { return Vec::new() };
        let mut opened = Vec::new();
        for (node, profile, open) in wave.open(affected) {
            let Some((_, task_set)) = table.digests(node.0) else { continue };
            let mut open: Vec<_> = open.into_iter().map(|barrier| encode::barrier(profile, barrier)).collect();
            open.extend(self.dropped.get(&node.0).into_iter().flat_map(|barriers| &**barriers).cloned());
            opened.push((node.0, task_set, open));
        }
        table.open_barriers(opened, revision)
    }
}

/// A barrier that a node waits at.
#[derive(Clone)]
pub(crate) struct Shut {
    /// The barrier, as both ends name it.
    pub(crate) barrier: desired::Barrier,
    /// The tasks of the node that wait at it, in the order in which they run.
    pub(crate) here: Vec<String>,
    /// The nodes that it waits for, the first few by uuid.
    pub(crate) nodes: Vec<AwaitedNode>,
    /// How many there are in all.
    pub(crate) count: usize,
}

/// A node that a barrier waits for.
#[derive(Clone)]
pub(crate) struct AwaitedNode {
    /// The node.
    pub(crate) node: NodeId,
    /// The tasks that it is to be done with, in the order in which they run there.
    pub(crate) tasks: Vec<String>,
}

/// The most nodes that a barrier names.
const MOST_NAMED: usize = 10;

/// The barriers that are shut for a node, and for whom they wait, as of this model.
pub(super) fn shut(results: Results<'_>, node: NodeId) -> Vec<Shut> {
    let fleet = &results.model.fleet;
    let (Some(profile), Some(cluster)) = (fleet.profile(node), fleet.cluster_of_node(node)) else { return Vec::new() };
    let wave = Wave::of_profiles(fleet, cluster, &results, [profile]);
    wave.shut_places(node).into_iter().map(|at| Shut::new(fleet, &wave, profile, at)).collect()
}

impl Shut {
    fn new(fleet: &Fleet, wave: &Wave, profile: &Profile, at: usize) -> Self {
        let (barrier, nodes) = (encode::barrier(profile, &profile.barriers[at]), wave.awaited(profile.hash, at));
        let (here, count) = (waiting_at(profile, &barrier), nodes.len());
        let awaited = |node: &NodeId| AwaitedNode {
            node: *node,
            tasks: in_order(fleet, *node, &wave.awaited_tasks(profile.hash, at, *node)),
        };
        Self { barrier, here, nodes: nodes.iter().take(MOST_NAMED).map(awaited).collect(), count }
    }
}

/// Tasks of a node in the order in which they run there.
fn in_order(fleet: &Fleet, node: NodeId, tasks: &BTreeSet<&str>) -> Vec<String> {
    let ids = fleet.profile(node).into_iter().flat_map(|profile| {
        let release = &profile.release;
        profile.tasks.iter().map(move |ix| release.id(*ix))
    });
    ids.filter(|id| tasks.contains(id)).map(str::to_owned).collect()
}

/// The tasks of a profile that wait at a barrier, in order.
fn waiting_at(profile: &Profile, barrier: &desired::Barrier) -> Vec<String> {
    let waiting = profile.waiting_at(|one| encode::barrier(profile, one) == *barrier);
    waiting.into_iter().map(|ix| profile.release.id(ix).to_owned()).collect()
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

    #[test]
    fn nothing_is_kept_of_nodes_and_clusters_that_are_gone() {
        let mut model = Model::default();
        put(&mut model, CLUSTER, name("c"), ClusterSpec::default());
        put(&mut model, GROUP, name("g"), NodeGroupSpec::new(ClusterId(CLUSTER)));
        let spec = NodeSpec { nodegroup: Some(GroupId(GROUP)), ..NodeSpec::default() };
        put(&mut model, NODE, NodeName::new("n").ok(), spec);
        let (table, mut waves) = (table(), Waves::default());
        let (nodes, results) = (BTreeSet::from([NODE]), BTreeMap::new());
        let touched = Touched { nodes: &nodes, turned: &BTreeSet::new(), results: &results, dropped: &nodes };
        let barrier = desired::Barrier { task: "t".to_owned(), selector: "kind=node".to_owned() };
        assert!(waves.set_dropped(NODE, &Arc::from([barrier])));
        waves.update(&model.fleet, Results { table: &table, model: &model }, &touched, Revision(1));
        assert_eq!([waves.of.len(), waves.put_in.len(), waves.dropped.len()], [1; 3]);
        model.remove::<NodeSpec>(NODE).unwrap();
        waves.update(&model.fleet, Results { table: &table, model: &model }, &touched, Revision(2));
        assert_eq!([waves.of.len(), waves.put_in.len(), waves.dropped.len()], [0; 3]);
    }
}
