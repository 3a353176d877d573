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
    /// Marks the nodes of a group that a change of the group or of a level above it can affect. The propagation of each
    /// changed field (the way in which its change reaches hosts) decides which nodes these are.
    pub(super) fn mark_dirty_below(
        &self,
        id: GroupId,
        old_group: &ResolvedGroup,
        new_group: &ResolvedGroup,
        changes: &[FieldChange],
        dirty: &mut DirtyNodes,
    ) {
        for scope in changes.iter().map(|change| change.propagation.host_scope()).collect::<BTreeSet<HostScope>>() {
            match scope {
                HostScope::Nobody => {}
                HostScope::Everyone => self.mark_group_dirty(id, dirty),
                HostScope::ByKey => self.mark_changed_keys(id, old_group, new_group, dirty),
                HostScope::ByTasks => self.mark_changed_tasks(id, old_group, new_group, dirty),
            }
        }
    }

    /// Marks all nodes of a group, so that they are resolved again.
    fn mark_group_dirty(&self, id: GroupId, dirty: &mut DirtyNodes) {
        self.nodes_in_group(id).for_each(|node| dirty.add(node));
    }

    /// Marks the nodes of a group that inherit a label or annotation whose value in the group has changed. A node that
    /// replaces the inherited labels is marked too if its host or an inspection rule has a value for a changed label.
    fn mark_changed_keys(&self, id: GroupId, old_group: &ResolvedGroup, new_group: &ResolvedGroup, dirty: &mut DirtyNodes) {
        let labels = changed_keys(&old_group.maps.labels, &new_group.maps.labels);
        let annotations = changed_keys(&old_group.maps.annotations, &new_group.maps.annotations);
        let inherits = |entry: &Arc<NodeEntry>| {
            let inherited = &entry.node.spec.inherited;
            let may_be_filled = |key: &LabelKey| {
                entry.observation.as_ref().is_some_and(|observation| new_group.can_fill(observation, key))
                    || entry.rule_outcome(&self.rules).has_label(key)
            };
            labels.iter().any(|key| inherited.labels.is_inherited(key, || may_be_filled(key)))
                || annotations.iter().any(|key| inherited.annotations.is_inherited(key, || false))
        };
        for node in self.nodes_in_group(id).filter(|node| self.entry(*node).is_some_and(inherits)) {
            dirty.add(node);
        }
    }

    /// Marks the nodes of a group whose tasks may have changed with its roles, release, ready probes or parameters, or
    /// with the release of its cluster. A node whose placement changes is marked when it is placed again.
    fn mark_changed_tasks(&self, id: GroupId, old_group: &ResolvedGroup, new_group: &ResolvedGroup, dirty: &mut DirtyNodes) {
        // Without a release, a change of roles changes no placement. The roles of the nodes differ nevertheless.
        let has_new_roles = old_group.roles != new_group.roles && new_group.release.is_none();
        // A release with another name and the same content places nodes in the same way. The nodes are marked, because
        // the record of a released task set contains the name of its release.
        let release_name = |resolved: &ResolvedGroup| resolved.release.as_ref().map(|release| release.value.name.clone());
        if has_new_roles || release_name(old_group) != release_name(new_group) || !old_group.has_same_probes(new_group) {
            self.mark_group_dirty(id, dirty);
            return;
        }
        let parameters = changed_keys(&old_group.maps.parameters, &new_group.maps.parameters);
        if !parameters.is_empty() {
            let is_changed =
                |read: &Read| matches!(read, Read::Parameter(path) if parameters.iter().any(|key| key.as_str() == path.first()));
            self.mark_readers_in(id, &is_changed, dirty);
        }
        if old_group.cluster.spec.release != new_group.cluster.spec.release {
            self.mark_readers_in(id, &|read| matches!(read, Read::Cluster(_)), dirty);
        }
    }

    /// Marks the nodes whose look-ups may have another result, because a node that they look up was marked or has
    /// reported (`reporting_node`), and clears the cached results. Also marks the nodes with conditions whose limit of
    /// evaluation steps has changed with the number of nodes.
    pub(super) fn mark_readers(&mut self, old_fleet: &Self, reporting_node: Option<NodeId>, dirty: &mut DirtyNodes) {
        let mut nodes_by_cluster: BTreeMap<ClusterId, Vec<NodeId>> = BTreeMap::new();
        for id in dirty.nodes(self).chain(reporting_node).collect::<BTreeSet<_>>() {
            let clusters: BTreeSet<_> = old_fleet.cluster_of_node(id).into_iter().chain(self.cluster_of_node(id)).collect();
            for cluster in clusters {
                nodes_by_cluster.entry(cluster).or_default().push(id);
            }
        }
        self.mark_changed_limits(old_fleet, nodes_by_cluster.keys().copied().collect(), dirty);
        for (cluster, nodes) in nodes_by_cluster {
            if old_fleet.condition_step_limit(cluster) != self.condition_step_limit(cluster) {
                let looks_up = |read: &Reference| matches!(read.read(), Read::Nodes { .. });
                let reads = |condition: &dyn Condition| condition.references().iter().any(looks_up);
                self.mark_conditions(self.groups_in_cluster(cluster), &reads, dirty);
            }
            for reference in self.changed_lookups(old_fleet, cluster, &nodes) {
                for (group, profile) in self.clear_result(cluster, &reference) {
                    let profile_nodes = self.groups.get(&group).and_then(|entry| entry.profiles.get(&profile));
                    profile_nodes.into_iter().flat_map(|profile_nodes| &profile_nodes.nodes).for_each(|node| dirty.add(*node));
                }
            }
        }
    }

    /// Marks the nodes whose conditions together have another step limit now. The limit depends on the number of nodes
    /// of the cluster (`affected` lists the clusters where this may have changed), and on the number of clusters that
    /// have nodes.
    fn mark_changed_limits(&self, old_fleet: &Self, affected: Vec<ClusterId>, dirty: &mut DirtyNodes) {
        let has_total_changed = round_count(old_fleet.clusters_with_nodes) != round_count(self.clusters_with_nodes);
        let clusters = if has_total_changed { self.clusters.keys().copied().collect() } else { affected };
        for cluster in clusters {
            if old_fleet.node_step_limit(cluster) != self.node_step_limit(cluster) {
                self.mark_conditions(self.groups_in_cluster(cluster), &|_| true, dirty);
            }
        }
    }

    /// Returns the groups that may inherit from an object. For a group, this is the group itself. For a release or its
    /// user-defined tags, these are all groups. For a node or an object of any other kind, there are none.
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

    /// Returns the cluster of a group or node, or the id itself for a cluster. Returns `None` for any other object.
    pub fn cluster_of_object(&self, kind: Kind, uuid: Uuid) -> Option<ClusterId> {
        match LevelId::new(kind, uuid)? {
            LevelId::Template(_) => None,
            LevelId::Cluster(id) => Some(id),
            LevelId::Group(id) => self.cluster_of_group(id),
            LevelId::Node(id) => self.cluster_of_node(id),
        }
    }

    /// Returns the maximum number of steps of one evaluation of a condition for one node of a cluster. It applies to
    /// conditions that look up other nodes.
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

    /// Marks the nodes in these groups that have a task with a condition for which `is_match` is true.
    fn mark_conditions(
        &self,
        groups: impl Iterator<Item = GroupId>,
        is_match: &dyn Fn(&dyn Condition) -> bool,
        dirty: &mut DirtyNodes,
    ) {
        for item in groups.filter_map(|group| self.groups.get(&group)).flat_map(|entry| entry.profiles.values()) {
            let release = &item.profile.release;
            let mut conditions = item.profile.all_tasks().into_iter().filter_map(|task| release.task(task).condition.as_deref());
            if conditions.any(is_match) {
                item.nodes.iter().for_each(|node| dirty.add(*node));
            }
        }
    }
}

/// Returns the keys whose effective value or origin differs between two maps, and the keys that a level decides in only
/// one of them. A host may fill a key that no level decides.
fn changed_keys<K: Ord + Clone, V: Clone + PartialEq>(old_map: &EffectiveMap<K, V>, new_map: &EffectiveMap<K, V>) -> Vec<K> {
    if old_map.shares_data_with(new_map) {
        return Vec::new();
    }
    let keys: BTreeSet<&K> = old_map.provenances().chain(new_map.provenances()).map(|(key, _)| key).collect();
    let outcome = |map: &EffectiveMap<K, V>, key: &K| {
        let provenance = map.provenance(key)?;
        Some((provenance.effective().map(|entry| (entry.value.clone(), entry.origin)), provenance.is_decided_by_level()))
    };
    let differs = |key: &&K| outcome(old_map, key) != outcome(new_map, key);
    keys.into_iter().filter(differs).cloned().collect()
}
