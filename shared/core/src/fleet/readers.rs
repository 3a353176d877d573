//! Who reads what: from a change of a level or of a node to the nodes whose answer it can change.
//!
//! The index is the profiles: each names everything that its tasks read, and each group keeps which of its nodes have
//! which profile. There are few profiles and many nodes, so that a question goes to the profiles alone.

use std::collections::BTreeSet;

use imbl::OrdSet;

use super::{Dirty, Fleet, GroupFold, lookup};
use crate::input::{Read, Reference};
use crate::key::LabelKey;
use crate::labels::{Folded, Line};
use crate::object::{ClusterId, GroupId, NodeId};
use crate::release::{Profile, TaskIx};

impl Fleet {
    /// The nodes of a cluster whose tasks read something, by uuid.
    pub fn readers(&self, id: ClusterId, wanted: impl Fn(&Read) -> bool) -> Dirty {
        let mut dirty = Dirty::default();
        for group in self.groups_of(id) {
            self.reach_in(group, &wanted, &mut dirty);
        }
        dirty
    }

    /// The nodes of a cluster that wait for a task on other nodes, or for a stage, by the task's id.
    pub fn waiting_for(&self, id: ClusterId, task: &str) -> Dirty {
        let mut dirty = Dirty::default();
        for used in
            self.groups_of(id).filter_map(|group| self.groups.get(&group)).flat_map(|entry| entry.profiles.values())
        {
            let release = &used.profile.release;
            let stages = |ix: TaskIx| release.stage_waits(ix).iter().any(|wait| release.id(wait.task) == task);
            let waits = used.profile.barriers.iter().any(|barrier| {
                release.id(barrier.task) == task || (release.task(barrier.task).task.is_stage() && stages(barrier.task))
            });
            if waits {
                used.nodes.iter().for_each(|node| dirty.add(*node));
            }
        }
        dirty
    }

    /// Every profile of a cluster, group by group, with the nodes that have it.
    pub(crate) fn each_profile(&self, id: ClusterId, give: &mut dyn FnMut(&Profile, &OrdSet<NodeId>)) {
        let entries = self.groups_of(id).filter_map(|group| self.groups.get(&group));
        entries.flat_map(|entry| entry.profiles.values()).for_each(|used| give(&used.profile, &used.nodes));
    }

    /// A group's fold has changed: who of its nodes is told something else.
    pub(super) fn reach_below(&self, id: GroupId, before: &GroupFold, after: &GroupFold, dirty: &mut Dirty) {
        if changes_all(before, after) {
            self.nodes_of(id).for_each(|node| dirty.add(node));
            return;
        }
        let labels = changed(&before.labels, &after.labels);
        if !labels.is_empty() {
            for node in self.nodes_of(id).filter(|node| !self.hides_labels(*node, &labels)) {
                dirty.add(node);
            }
        }
        let parameters = changed(&before.parameters, &after.parameters);
        if !parameters.is_empty() {
            let wanted = |read: &Read| matches!(read, Read::Parameter(path) if parameters.iter().any(|key| key.as_str() == path.first()));
            self.reach_in(id, &wanted, dirty);
        }
        if before.cluster.meta.name != after.cluster.meta.name
            || before.cluster.spec.release != after.cluster.spec.release
        {
            self.reach_in(id, &|read| matches!(read, Read::Cluster(_)), dirty);
        }
    }

    /// Whether a node's own labels stand before all of these.
    fn hides_labels(&self, id: NodeId, keys: &[LabelKey]) -> bool {
        let Some(node) = self.node(id) else { return true };
        let own = &node.spec.inherited.labels;
        let Some(provided) = &own.provided else { return false };
        !own.merges() || keys.iter().all(|key| provided.get(key).is_some())
    }

    /// Look-ups: the nodes that see, of a node that was reached, something else than before.
    pub(super) fn reach_readers(&mut self, before: &Self, seen: Option<NodeId>, dirty: &mut Dirty) {
        let touched: BTreeSet<NodeId> = dirty.nodes().chain(seen).collect();
        let cluster = |fleet: &Self, id: NodeId| {
            let group = fleet.node(id)?.spec.nodegroup?;
            Some(fleet.group(group)?.spec.cluster)
        };
        let mut open: Vec<(ClusterId, Vec<NodeId>)> = Vec::new();
        for id in touched {
            let clusters: BTreeSet<ClusterId> =
                [cluster(before, id), cluster(self, id)].into_iter().flatten().collect();
            for one in clusters {
                match open.iter_mut().find(|(known, _)| *known == one) {
                    Some((_, nodes)) => nodes.push(id),
                    None => open.push((one, vec![id])),
                }
            }
        }
        for (id, nodes) in open {
            for reference in self.lookups(id) {
                if self.sees_change(before, id, &reference, &nodes) {
                    self.stamp_anew(id);
                    let wanted = |read: &Read| read == reference.read();
                    self.groups_of(id).for_each(|group| self.reach_in(group, &wanted, dirty));
                }
            }
        }
    }

    /// Every look-up that some task of the cluster makes.
    fn lookups(&self, id: ClusterId) -> BTreeSet<Reference> {
        let entries = self.groups_of(id).filter_map(|group| self.groups.get(&group));
        let profiles = entries.flat_map(|entry| entry.profiles.values());
        let reads = profiles.flat_map(|used| used.profile.reads.iter());
        let is_lookup = |one: &&Reference| matches!(one.read(), Read::Nodes { .. } | Read::Primary { .. });
        reads.filter(is_lookup).cloned().collect()
    }

    fn sees_change(&self, before: &Self, cluster: ClusterId, reference: &Reference, nodes: &[NodeId]) -> bool {
        match reference.read() {
            Read::Nodes { query, fields } => nodes.iter().any(|id| {
                let view = |fleet: &Self| lookup::view(fleet, cluster, *id, Some(query), fields);
                view(before) != view(self)
            }),
            Read::Primary { tag, fields } => {
                let (old, new) = (before.holder(cluster, tag), self.holder(cluster, tag));
                let view = |fleet: &Self, id: Option<NodeId>| lookup::view(fleet, cluster, id?, None, fields);
                old != new || (nodes.iter().any(|id| Some(*id) == new) && view(before, old) != view(self, new))
            }
            Read::Label(_)
            | Read::LabelsWithPrefix(_)
            | Read::Parameter(_)
            | Read::Trait(_)
            | Read::Tag(_)
            | Read::Fact(_)
            | Read::Node(_)
            | Read::Cluster(_)
            | Read::Secret(_) => false,
        }
    }
}

/// Whether every node of the group is told something else, whatever its own spec says.
fn changes_all(before: &GroupFold, after: &GroupFold) -> bool {
    let (old, new) = (&before.group.spec, &after.group.spec);
    let rule = |fold: &GroupFold| {
        [
            fold.template.as_ref().and_then(|template| template.spec.host_labels.clone()),
            fold.cluster.spec.host_labels.clone(),
            fold.group.spec.host_labels.clone(),
        ]
    };
    before.place() != after.place()
        || before.lifecycle() != after.lifecycle()
        || rule(before) != rule(after)
        || !changed(&before.annotations, &after.annotations).is_empty()
        || before.table != after.table
        || before.cluster.spec.paused != after.cluster.spec.paused
        || (old.mode, old.paused, old.splay_seconds, old.silent_after_seconds, old.mend_offline)
            != (new.mode, new.paused, new.splay_seconds, new.silent_after_seconds, new.mend_offline)
        || old.requirements != new.requirements
}

/// The keys whose effective value or origin is another.
fn changed<K: Ord + Clone, V: Clone + PartialEq>(before: &Folded<K, V>, after: &Folded<K, V>) -> Vec<K> {
    if before.is_same(after) {
        return Vec::new();
    }
    let keys: BTreeSet<&K> = before.lines().chain(after.lines()).map(|(key, _)| key).collect();
    let told = |folded: &Folded<K, V>, key: &K| {
        let said = folded.line(key).and_then(Line::effective);
        said.map(|said| (said.value.clone(), said.origin))
    };
    let differs = |key: &&K| told(before, key) != told(after, key);
    keys.into_iter().filter(differs).cloned().collect()
}
