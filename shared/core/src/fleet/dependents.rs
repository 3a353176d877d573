//! Marks the nodes whose result a change of a level or of another node can affect.
//!
//! The profiles serve as the index. Each lists everything that its tasks read, and each group records which of its
//! nodes have which profile. There are few profiles and many nodes, so only the profiles are searched.

use std::collections::{BTreeMap, BTreeSet};

use std::sync::Arc;
use uuid::Uuid;

use super::{DirtyNodes, Fleet, NodeEntry, ResolvedGroup};
use crate::change::{FieldChange, HostScope};
use crate::condition::{Condition, condition_step_limit, node_step_limit, round_count};
use crate::input::{Read, Reference};
use crate::key::LabelKey;
use crate::labels::EffectiveMap;
use crate::object::{ClusterId, GroupId, Kind, LevelId, NodeId};

impl Fleet {
    /// Marks the nodes of a group that a change above them can affect. The class of the change decides which nodes
    /// these are.
    pub(super) fn mark_dirty_below(
        &self,
        id: GroupId,
        before: &ResolvedGroup,
        after: &ResolvedGroup,
        changes: &[FieldChange],
        dirty: &mut DirtyNodes,
    ) {
        for reach in changes.iter().map(|change| change.propagation.host_scope()).collect::<BTreeSet<HostScope>>() {
            match reach {
                HostScope::Nobody => {}
                HostScope::Everyone => self.mark_group_dirty(id, dirty),
                HostScope::ByKey => self.mark_changed_keys(id, before, after, dirty),
                HostScope::ByTasks => self.mark_changed_tasks(id, before, after, dirty),
            }
        }
    }

    /// Marks all nodes of a group.
    fn mark_group_dirty(&self, id: GroupId, dirty: &mut DirtyNodes) {
        self.nodes_in_group(id).for_each(|node| dirty.add(node));
    }

    /// Marks the nodes that inherit a changed label or annotation. Hosts and rules fill only labels.
    fn mark_changed_keys(&self, id: GroupId, before: &ResolvedGroup, after: &ResolvedGroup, dirty: &mut DirtyNodes) {
        let labels = changed_keys(&before.maps.labels, &after.maps.labels);
        let annotations = changed_keys(&before.maps.annotations, &after.maps.annotations);
        let inherits = |entry: &Arc<NodeEntry>| {
            let inherited = &entry.node.spec.inherited;
            let fills = |key: &LabelKey| {
                entry.observation.as_ref().is_some_and(|observation| after.can_fill(observation, key))
                    || entry.rule_outcome(&self.rules).has_label(key)
            };
            labels.iter().any(|key| inherited.labels.is_inherited(key, || fills(key)))
                || annotations.iter().any(|key| inherited.annotations.is_inherited(key, || false))
        };
        for node in self.nodes_in_group(id).filter(|node| self.entry(*node).is_some_and(inherits)) {
            dirty.add(node);
        }
    }

    /// Marks the nodes whose tasks may have changed by a change of roles, release, ready probes, parameters or the
    /// cluster. Nodes whose placement changes are marked when they are placed again.
    fn mark_changed_tasks(&self, id: GroupId, before: &ResolvedGroup, after: &ResolvedGroup, dirty: &mut DirtyNodes) {
        // Without a release, a change of roles changes no placement. The roles of the nodes differ nevertheless.
        let has_new_roles = before.roles != after.roles && after.release.is_none();
        // A release with another name and the same content places nodes in the same way. The nodes are marked, because
        // the record of a released task set contains the name of its release.
        let name = |resolved: &ResolvedGroup| resolved.release.as_ref().map(|release| release.value.name.clone());
        if has_new_roles || name(before) != name(after) || !before.has_same_probes(after) {
            self.mark_group_dirty(id, dirty);
            return;
        }
        let parameters = changed_keys(&before.maps.parameters, &after.maps.parameters);
        if !parameters.is_empty() {
            let is_changed =
                |read: &Read| matches!(read, Read::Parameter(path) if parameters.iter().any(|key| key.as_str() == path.first()));
            self.mark_readers_in(id, &is_changed, dirty);
        }
        if before.cluster.spec.release != after.cluster.spec.release {
            self.mark_readers_in(id, &|read| matches!(read, Read::Cluster(_)), dirty);
        }
    }

    /// Marks the nodes whose look-ups may have another result, because a node that they look up was marked or has
    /// reported. Also marks the nodes whose step limits have changed with the number of nodes.
    pub(super) fn mark_readers(&mut self, before: &Self, observed: Option<NodeId>, dirty: &mut DirtyNodes) {
        let mut nodes_by_cluster: BTreeMap<ClusterId, Vec<NodeId>> = BTreeMap::new();
        for id in dirty.nodes(self).chain(observed).collect::<BTreeSet<_>>() {
            let clusters: BTreeSet<_> = before.cluster_of_node(id).into_iter().chain(self.cluster_of_node(id)).collect();
            for cluster in clusters {
                nodes_by_cluster.entry(cluster).or_default().push(id);
            }
        }
        self.mark_changed_limits(before, nodes_by_cluster.keys().copied().collect(), dirty);
        for (cluster, nodes) in nodes_by_cluster {
            if before.condition_step_limit(cluster) != self.condition_step_limit(cluster) {
                let looks_up = |read: &Reference| matches!(read.read(), Read::Nodes { .. });
                let reads = |condition: &dyn Condition| condition.references().iter().any(looks_up);
                self.mark_conditions(self.groups_in_cluster(cluster), &reads, dirty);
            }
            for reference in self.changed_lookups(before, cluster, &nodes) {
                for (group, profile) in self.clear_result(cluster, &reference) {
                    let used = self.groups.get(&group).and_then(|entry| entry.profiles.get(&profile));
                    used.into_iter().flat_map(|used| &used.nodes).for_each(|node| dirty.add(*node));
                }
            }
        }
    }

    /// Marks the nodes whose conditions may use more or fewer steps together now. These are in the clusters whose
    /// number of nodes has changed, or in all clusters if the number of clusters with nodes has changed.
    fn mark_changed_limits(&self, before: &Self, affected: Vec<ClusterId>, dirty: &mut DirtyNodes) {
        let has_total_changed = round_count(before.clusters_with_nodes) != round_count(self.clusters_with_nodes);
        let clusters = if has_total_changed { self.clusters.keys().copied().collect() } else { affected };
        for cluster in clusters {
            if before.node_step_limit(cluster) != self.node_step_limit(cluster) {
                self.mark_conditions(self.groups_in_cluster(cluster), &|_| true, dirty);
            }
        }
    }

    /// Returns the groups whose nodes may inherit from an object. For a release or its user-defined tags, returns all
    /// groups.
    pub fn groups_below(&self, kind: Kind, uuid: Uuid) -> Vec<GroupId> {
        match LevelId::new(kind, uuid) {
            Some(LevelId::Group(id)) => vec![id],
            Some(LevelId::Cluster(id)) => self.groups_in_cluster(id).collect(),
            Some(LevelId::Template(id)) => {
                let clusters = self.templates.get(&id).into_iter().flat_map(|entry| &entry.clusters);
                clusters.flat_map(|id| self.groups_in_cluster(*id)).collect()
            }
            None if matches!(kind, Kind::Release | Kind::ReleaseTags) => self.groups.keys().copied().collect(),
            Some(LevelId::Node(_)) | None => Vec::new(),
        }
    }

    /// Returns the cluster of a level or node, or the cluster itself.
    pub fn cluster_of_object(&self, kind: Kind, uuid: Uuid) -> Option<ClusterId> {
        match LevelId::new(kind, uuid)? {
            LevelId::Template(_) => None,
            LevelId::Cluster(id) => Some(id),
            LevelId::Group(id) => self.cluster_of_group(id),
            LevelId::Node(id) => self.cluster_of_node(id),
        }
    }

    /// Returns the maximum number of steps that a condition with node look-ups may use for each node of a cluster.
    pub(super) fn condition_step_limit(&self, cluster: ClusterId) -> usize {
        condition_step_limit(self.node_count(cluster))
    }

    /// Returns the maximum number of steps that all conditions of a node of a cluster may use together.
    pub(super) fn node_step_limit(&self, cluster: ClusterId) -> usize {
        node_step_limit(self.clusters_with_nodes, self.node_count(cluster))
    }

    /// Returns the number of nodes of a cluster.
    pub fn node_count(&self, cluster: ClusterId) -> usize {
        self.clusters.get(&cluster).map_or(0, |entry| entry.nodes)
    }

    /// Marks the nodes with matching conditions in these groups, because their step limits have changed.
    fn mark_conditions(
        &self,
        groups: impl Iterator<Item = GroupId>,
        is_match: &dyn Fn(&dyn Condition) -> bool,
        dirty: &mut DirtyNodes,
    ) {
        for used in groups.filter_map(|group| self.groups.get(&group)).flat_map(|entry| entry.profiles.values()) {
            let release = &used.profile.release;
            let mut conditions = used.profile.all_tasks().into_iter().filter_map(|ix| release.task(ix).condition.as_deref());
            if conditions.any(is_match) {
                used.nodes.iter().for_each(|node| dirty.add(*node));
            }
        }
    }
}

/// Returns the keys whose effective value or origin has changed, or which a host may fill now and could not before, or
/// the reverse.
fn changed_keys<K: Ord + Clone, V: Clone + PartialEq>(before: &EffectiveMap<K, V>, after: &EffectiveMap<K, V>) -> Vec<K> {
    if before.is_same(after) {
        return Vec::new();
    }
    let keys: BTreeSet<&K> = before.provenances().chain(after.provenances()).map(|(key, _)| key).collect();
    let outcome = |map: &EffectiveMap<K, V>, key: &K| {
        let line = map.provenance(key)?;
        Some((line.effective().map(|entry| (entry.value.clone(), entry.origin)), line.is_decided_by_level()))
    };
    let differs = |key: &&K| outcome(before, key) != outcome(after, key);
    keys.into_iter().filter(differs).cloned().collect()
}
