//! Who reads what: from a change of a level or of a node to the nodes whose answer it can change.
//!
//! The index is the profiles: each names everything that its tasks read, and each group keeps which of its nodes have
//! which profile. There are few profiles and many nodes, so that a question goes to the profiles alone.

use std::collections::{BTreeMap, BTreeSet};

use std::sync::Arc;
use uuid::Uuid;

use super::{Dirty, Fleet, GroupFold, NodeEntry};
use crate::change::{FieldChange, Reach};
use crate::condition::{Condition, rounded, steps_for_each, steps_together};
use crate::input::{Read, Reference};
use crate::key::LabelKey;
use crate::labels::Folded;
use crate::object::{ClusterId, GroupId, Kind, LevelId, NodeId};

impl Fleet {
    /// Reaches those nodes of a group for whom changes above them make a difference: whom, the class of each change says.
    pub(super) fn reach_below(
        &self,
        id: GroupId,
        before: &GroupFold,
        after: &GroupFold,
        changes: &[FieldChange],
        dirty: &mut Dirty,
    ) {
        for reach in changes.iter().map(|one| one.class.reach()).collect::<BTreeSet<Reach>>() {
            match reach {
                Reach::Nobody => {}
                Reach::Everyone => self.reach_group(id, dirty),
                Reach::ByKey => self.reach_by_key(id, before, after, dirty),
                Reach::ByTasks => self.reach_by_tasks(id, before, after, dirty),
            }
        }
    }

    fn reach_group(&self, id: GroupId, dirty: &mut Dirty) {
        self.nodes_of(id).for_each(|node| dirty.add(node));
    }

    /// Reaches the nodes whose own label or annotation is another. Hosts and rules fill labels alone.
    fn reach_by_key(&self, id: GroupId, before: &GroupFold, after: &GroupFold, dirty: &mut Dirty) {
        let labels = changed(&before.maps.labels, &after.maps.labels);
        let annotations = changed(&before.maps.annotations, &after.maps.annotations);
        let inherits = |entry: &Arc<NodeEntry>| {
            let own = &entry.node.spec.inherited;
            let fills = |key: &LabelKey| {
                entry.observation.as_ref().is_some_and(|seen| after.fills(seen, key))
                    || entry.ruled(&self.rules).labels_key(key)
            };
            labels.iter().any(|key| own.labels.inherits(key, || fills(key)))
                || annotations.iter().any(|key| own.annotations.inherits(key, || false))
        };
        for node in self.nodes_of(id).filter(|node| self.entry(*node).is_some_and(inherits)) {
            dirty.add(node);
        }
    }

    /// Reaches the nodes whose tasks may be others, but for those that are placed otherwise.
    fn reach_by_tasks(&self, id: GroupId, before: &GroupFold, after: &GroupFold, dirty: &mut Dirty) {
        let is_untasked = before.roles != after.roles && after.release.is_none();
        // Another release of the same content places nodes alike, and what is released to them is recorded under its name.
        let name = |fold: &GroupFold| fold.release.as_ref().map(|release| release.value.name.clone());
        if is_untasked || name(before) != name(after) || !before.probes_like(after) {
            self.reach_group(id, dirty);
            return;
        }
        let parameters = changed(&before.maps.parameters, &after.maps.parameters);
        if !parameters.is_empty() {
            let wanted = |read: &Read| matches!(read, Read::Parameter(path) if parameters.iter().any(|key| key.as_str() == path.first()));
            self.reach_in(id, &wanted, dirty);
        }
        if before.cluster.spec.release != after.cluster.spec.release {
            self.reach_in(id, &|read| matches!(read, Read::Cluster(_)), dirty);
        }
    }

    /// Reaches the nodes whose look-ups see, of a node that was reached or has reported, something else than before.
    pub(super) fn reach_readers(&mut self, before: &Self, seen: Option<NodeId>, dirty: &mut Dirty) {
        let mut touched: BTreeMap<ClusterId, Vec<NodeId>> = BTreeMap::new();
        for id in dirty.nodes(self).chain(seen).collect::<BTreeSet<_>>() {
            let clusters: BTreeSet<_> =
                before.cluster_of_node(id).into_iter().chain(self.cluster_of_node(id)).collect();
            for cluster in clusters {
                touched.entry(cluster).or_default().push(id);
            }
        }
        self.reach_shares(before, touched.keys().copied().collect(), dirty);
        for (cluster, nodes) in touched {
            if before.steps(cluster) != self.steps(cluster) {
                let looks_up = |read: &Reference| matches!(read.read(), Read::Nodes { .. });
                let reads = |condition: &dyn Condition| condition.references().iter().any(looks_up);
                self.reach_conditions(self.groups_of(cluster), &reads, dirty);
            }
            for reference in self.changed_lookups(before, cluster, &nodes) {
                for (group, profile) in self.forget_found(cluster, &reference) {
                    let used = self.groups.get(&group).and_then(|entry| entry.profiles.get(&profile));
                    used.into_iter().flat_map(|used| &used.nodes).for_each(|node| dirty.add(*node));
                }
            }
        }
    }

    /// Reaches the nodes whose conditions may take more together now, or less: where nodes came or went, or in all clusters where the
    /// number of those with nodes has changed.
    fn reach_shares(&self, before: &Self, touched: Vec<ClusterId>, dirty: &mut Dirty) {
        let is_of_all = rounded(before.peopled) != rounded(self.peopled);
        let clusters = if is_of_all { self.clusters.keys().copied().collect() } else { touched };
        for cluster in clusters {
            if before.steps_together(cluster) != self.steps_together(cluster) {
                self.reach_conditions(self.groups_of(cluster), &|_| true, dirty);
            }
        }
    }

    /// The groups to whose nodes what an object says may come down: of a release and the tags beside it, all.
    pub fn groups_below(&self, kind: Kind, uuid: Uuid) -> Vec<GroupId> {
        match LevelId::of(kind, uuid) {
            Some(LevelId::Group(id)) => vec![id],
            Some(LevelId::Cluster(id)) => self.groups_of(id).collect(),
            Some(LevelId::Template(id)) => {
                let clusters = self.templates.get(&id).into_iter().flat_map(|entry| &entry.clusters);
                clusters.flat_map(|id| self.groups_of(*id)).collect()
            }
            None if matches!(kind, Kind::Release | Kind::ReleaseTags) => self.groups.keys().copied().collect(),
            Some(LevelId::Node(_)) | None => Vec::new(),
        }
    }

    /// The cluster that a level or node stands in, or is.
    pub fn cluster_of(&self, kind: Kind, uuid: Uuid) -> Option<ClusterId> {
        match LevelId::of(kind, uuid)? {
            LevelId::Template(_) => None,
            LevelId::Cluster(id) => Some(id),
            LevelId::Group(id) => self.cluster_of_group(id),
            LevelId::Node(id) => self.cluster_of_node(id),
        }
    }

    /// What a condition that looks nodes up may take for each node of a cluster.
    pub(super) fn steps(&self, cluster: ClusterId) -> usize {
        steps_for_each(self.count_of(cluster))
    }

    /// What all conditions of a node of a cluster may take together.
    pub(super) fn steps_together(&self, cluster: ClusterId) -> usize {
        steps_together(self.peopled, self.count_of(cluster))
    }

    /// How many nodes stand in a cluster.
    pub fn count_of(&self, cluster: ClusterId) -> usize {
        self.clusters.get(&cluster).map_or(0, |entry| entry.nodes)
    }

    /// Reaches the nodes of groups whose tasks have conditions of a kind: these may take more steps now, or less.
    fn reach_conditions(
        &self,
        groups: impl Iterator<Item = GroupId>,
        is_meant: &dyn Fn(&dyn Condition) -> bool,
        dirty: &mut Dirty,
    ) {
        for used in groups.filter_map(|group| self.groups.get(&group)).flat_map(|entry| entry.profiles.values()) {
            let release = &used.profile.release;
            let mut conditions = used.profile.all().into_iter().filter_map(|ix| release.task(ix).condition.as_deref());
            if conditions.any(is_meant) {
                used.nodes.iter().for_each(|node| dirty.add(*node));
            }
        }
    }
}

/// The keys whose effective value or origin is another, or that are open for a host to fill and were not, or were.
fn changed<K: Ord + Clone, V: Clone + PartialEq>(before: &Folded<K, V>, after: &Folded<K, V>) -> Vec<K> {
    if before.is_same(after) {
        return Vec::new();
    }
    let keys: BTreeSet<&K> = before.lines().chain(after.lines()).map(|(key, _)| key).collect();
    let told = |folded: &Folded<K, V>, key: &K| {
        let line = folded.line(key)?;
        Some((line.effective().map(|said| (said.value.clone(), said.origin)), line.is_spoken_for()))
    };
    let differs = |key: &&K| told(before, key) != told(after, key);
    keys.into_iter().filter(differs).cloned().collect()
}
