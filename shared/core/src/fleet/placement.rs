//! The placement of a node: its effective tags, the tags that it can hold as primary, and its profile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdSet;
use uuid::Uuid;

use super::{DirtyNodes, Fleet, NodeEntry, PrimaryCandidates, ProfileNodes, RankedNode, ResolvedGroup};
use crate::name::{Name, TagName};
use crate::object::{ClusterId, GroupId, Meta, NodeId, NodeSpec, Object, Timestamp};
use crate::release::name_selector::MASTER;
use crate::release::{CompiledRelease, Profile, ProfileHash, ProfileKey};
use crate::role::{MatchNames, RoleTable, TagOrigin};

impl Fleet {
    /// Places nodes again after a change that may change their tags: updates for which tags they are candidates as
    /// primary, elects the primaries of the tags whose candidates have changed, and updates the profiles of these nodes
    /// and of the previous and new primaries. Marks the nodes whose profiles have changed.
    pub(super) fn recompute_placement(&mut self, ids: &[NodeId], dirty: &mut DirtyNodes) {
        let mut changed_tags: BTreeSet<(ClusterId, TagName)> = BTreeSet::new();
        for id in ids {
            changed_tags.extend(self.update_candidacies(*id));
        }
        let mut affected_nodes: BTreeSet<NodeId> = ids.iter().copied().collect();
        for (cluster, tag) in changed_tags {
            affected_nodes.extend(self.elect(cluster, &tag));
        }
        for id in affected_nodes {
            self.update_profile(id, dirty);
        }
    }

    /// Removes a node of `group` from its profile and from the candidates for primaries. Elects the primaries of these
    /// tags again, and updates the profiles of the other nodes that this affects.
    pub(super) fn unplace(&mut self, id: NodeId, group: GroupId, dirty: &mut DirtyNodes) {
        let Some(entry) = self.nodes.get(&id).cloned() else { return };
        let Some(cluster) = self.cluster_of_group(group) else { return };
        let tags: Vec<TagName> = entry.profile.iter().flat_map(|profile| profile.key.tags.iter().cloned()).collect();
        let ranked = RankedNode::new(&entry.node);
        let mut affected_nodes = BTreeSet::new();
        for tag in tags {
            if self.remove_candidate(cluster, &tag, &ranked) {
                affected_nodes.extend(self.elect(cluster, &tag));
            }
        }
        self.assign_profile(id, Some(group), None);
        for id in affected_nodes.into_iter().filter(|node| *node != id) {
            self.update_profile(id, dirty);
        }
    }

    /// Updates for which tags a node is a candidate as primary. Returns the tags whose candidates have changed, each
    /// with the cluster. If the node was parked or unparked, these include all tags for which it is a candidate.
    fn update_candidacies(&mut self, id: NodeId) -> Vec<(ClusterId, TagName)> {
        let Some((entry, resolved)) = self.placed_node(id) else { return Vec::new() };
        let cluster = resolved.cluster_id();
        let ranked = RankedNode::new(&entry.node);
        let old_tags: BTreeSet<TagName> = entry.profile.iter().flat_map(|profile| profile.key.tags.iter().cloned()).collect();
        let new_tags = possible_primaries(&entry, &resolved);
        let is_unparked = !self.is_excluded(&entry);
        let mut changed_tags = Vec::new();
        for tag in old_tags.difference(&new_tags) {
            if self.remove_candidate(cluster, tag, &ranked) {
                changed_tags.push((cluster, tag.clone()));
            }
        }
        for tag in new_tags {
            let Some(entry) = self.clusters.get_mut(&cluster) else { continue };
            let mut candidates = entry.candidates.get(&tag).cloned().unwrap_or_default();
            if candidates.put(&ranked, is_unparked) {
                entry.candidates.insert(tag.clone(), candidates);
                changed_tags.push((cluster, tag));
            }
        }
        changed_tags
    }

    /// Removes a node from the candidates for the primary of a tag. Returns whether the node was a candidate.
    fn remove_candidate(&mut self, cluster: ClusterId, tag: &TagName, ranked: &RankedNode) -> bool {
        let Some(entry) = self.clusters.get_mut(&cluster) else { return false };
        let Some(mut candidates) = entry.candidates.get(tag).cloned() else { return false };
        if !candidates.remove(ranked) {
            return false;
        }
        if candidates.members.is_empty() {
            entry.candidates.remove(tag);
        } else {
            entry.candidates.insert(tag.clone(), candidates);
        }
        true
    }

    /// Computes the profile of a node from its roles, tags and primaries. If the profile has changed, also to none,
    /// stores it and marks the node.
    pub(super) fn update_profile(&mut self, id: NodeId, dirty: &mut DirtyNodes) {
        let Some(entry) = self.nodes.get(&id) else { return };
        let group = entry.node.spec.nodegroup;
        let old_hash = entry.profile.as_ref().map(|profile| profile.hash);
        let profile = self.placed_node(id).and_then(|(entry, resolved)| self.profile_for(&entry, &resolved));
        if profile.as_ref().map(|profile| profile.hash) != old_hash {
            dirty.add(id);
            self.assign_profile(id, group, profile);
        }
    }

    /// Returns the profile of a node: its roles, tags and primaries, with the tasks that follow from them. Reuses the
    /// stored profile if another node has the same one. Returns `None` if the group has no release.
    fn profile_for(&self, entry: &NodeEntry, resolved: &ResolvedGroup) -> Option<Arc<Profile>> {
        let release = &resolved.release.as_ref()?.value;
        let table = resolved.role_table.as_ref()?;
        let roles = entry.roles(Some(resolved));
        let tags = table.effective_tags(&roles, &entry.node.spec.tags);
        let id = entry.node.id();
        let cluster = resolved.cluster_id();
        let primaries: Box<[_]> = tags.keys().filter(|tag| self.holder(cluster, tag.as_str()) == Some(id)).cloned().collect();
        let key = ProfileKey {
            names: MatchNames::new(release.matching, table, &roles, tags.keys(), &primaries),
            asserted: asserted_names(release, table, &roles, &tags, &primaries),
            roles: roles.into_iter().collect(),
            tags: tags.into_keys().collect(),
            primaries,
            is_master: entry.node.meta.name.as_ref().is_some_and(|name| name.as_str() == MASTER),
        };
        let hash = key.profile_hash(release);
        let stored_profile = self.profiles.get(&hash).map(|(profile, _)| Arc::clone(profile));
        Some(stored_profile.unwrap_or_else(|| Arc::new(Profile::new(release, key))))
    }

    /// Returns the profile that a host gets if it joins this group as a new node, which sets nothing itself. The node
    /// is assumed not to be primary of any tag, although the first node with a tag becomes its primary. Returns `None`
    /// if the group has no release, or if the group, an object above it or the release is missing.
    pub fn profile_for_new_node(&self, group: GroupId) -> Option<Arc<Profile>> {
        let spec = NodeSpec { nodegroup: Some(group), ..NodeSpec::default() };
        let node = Object { meta: Meta::new(Uuid::nil(), None, Timestamp(0)), spec };
        self.profile_for(&NodeEntry::new(Arc::new(node)), self.resolved_group(group).ok()?)
    }

    /// Stores the profile of a node, or removes it if `profile` is `None`. Updates the nodes of both profiles in the
    /// group, their number in the fleet, and the look-ups of other nodes that their tasks make.
    fn assign_profile(&mut self, id: NodeId, group: Option<GroupId>, profile: Option<Arc<Profile>>) {
        let Some(entry) = self.nodes.get(&id).cloned() else { return };
        if let Some(old) = &entry.profile {
            self.update_profile_count(old, -1);
            if let Some(group) = group {
                self.remove_from_profile(group, old.hash, id);
            }
        }
        if let (Some(new), Some(group)) = (&profile, group) {
            self.update_profile_count(new, 1);
            let Some(entry) = self.groups.get_mut(&group) else { return };
            let old_nodes = entry.profiles.get(&new.hash).cloned();
            let is_new = old_nodes.is_none();
            let mut profile_nodes = old_nodes.unwrap_or_else(|| ProfileNodes { profile: Arc::clone(new), nodes: OrdSet::new() });
            profile_nodes.nodes.insert(id);
            entry.profiles.insert(new.hash, profile_nodes);
            let cluster = self.cluster_of_group(group);
            if let Some(cluster) = cluster.filter(|_| is_new) {
                self.register_lookups(cluster, group, new);
            }
        }
        self.replace_entry(entry.with_profile(profile));
    }

    /// Removes a node from the nodes of a profile in a group. If it was the last node, the look-ups of the profile are
    /// unregistered.
    fn remove_from_profile(&mut self, group: GroupId, hash: ProfileHash, id: NodeId) {
        let Some(entry) = self.groups.get_mut(&group) else { return };
        let Some(mut profile_nodes) = entry.profiles.get(&hash).cloned() else { return };
        profile_nodes.nodes.remove(&id);
        if profile_nodes.nodes.is_empty() {
            entry.profiles.remove(&hash);
            if let Some(cluster) = self.cluster_of_group(group) {
                self.unregister_lookups(cluster, group, &profile_nodes.profile);
            }
        } else {
            entry.profiles.insert(hash, profile_nodes);
        }
    }

    /// Adds `delta` to the number of nodes that have a profile. A profile that no node has any more is removed.
    fn update_profile_count(&mut self, profile: &Arc<Profile>, delta: i32) {
        let old_count = self.profiles.get(&profile.hash).map_or(0, |(_, count)| *count);
        match old_count.saturating_add_signed(delta) {
            0 => drop(self.profiles.remove(&profile.hash)),
            count => drop(self.profiles.insert(profile.hash, (Arc::clone(profile), count))),
        }
    }

    /// Returns a node with its resolved group. Returns `None` if the node has no group, or if the group, an object
    /// above it or the release is missing.
    fn placed_node(&self, id: NodeId) -> Option<(Arc<NodeEntry>, Arc<ResolvedGroup>)> {
        let entry = self.nodes.get(&id)?;
        Some((Arc::clone(entry), Arc::clone(self.resolved_parent(&entry.node.spec)?)))
    }
}

impl PrimaryCandidates {
    /// Adds a node to the candidates for the primary of a tag, or updates whether it is parked. `is_ready` is false if
    /// the node is parked. Returns whether anything changed.
    fn put(&mut self, node: &RankedNode, is_ready: bool) -> bool {
        let is_new = self.members.insert(node.id).is_none();
        let is_moved = if is_ready { self.unparked.insert(node.clone()).is_none() } else { self.unparked.remove(node).is_some() };
        is_new || is_moved
    }

    /// Removes a node from the candidates. Returns whether it was a candidate.
    fn remove(&mut self, node: &RankedNode) -> bool {
        self.unparked.remove(node);
        self.members.remove(&node.id).is_some()
    }
}

/// Returns the names of a node against which the selectors of privileged tasks are matched: its roles and its asserted
/// tags (assigned by hand, or declared by a role of the node). A tag that only an extension decided is not asserted,
/// because an extension must not place a privileged task. `primaries` contains the tags of which the node is primary.
/// Returns `None` if all tags are asserted or no task is privileged, because the usual names apply then.
fn asserted_names(
    release: &CompiledRelease,
    table: &RoleTable,
    roles: &BTreeSet<Name>,
    tags: &BTreeMap<TagName, TagOrigin>,
    primaries: &[TagName],
) -> Option<Box<MatchNames>> {
    let is_asserted = |tag: &TagName| tags.get(tag).is_some_and(|origin| table.is_asserted(tag, origin));
    if release.privileged.is_empty() || tags.keys().all(is_asserted) {
        return None;
    }
    let primaries: Vec<TagName> = primaries.iter().filter(|tag| is_asserted(tag)).cloned().collect();
    let asserted = tags.keys().filter(|tag| is_asserted(tag));
    Some(Box::new(MatchNames::new(release.matching, table, roles, asserted, &primaries)))
}

/// Returns the tags of which a node can be primary: its effective tags with `has_primary`.
fn possible_primaries(entry: &NodeEntry, resolved: &ResolvedGroup) -> BTreeSet<TagName> {
    let Some(table) = &resolved.role_table else { return BTreeSet::new() };
    let tags = table.effective_tags(&entry.roles(Some(resolved)), &entry.node.spec.tags);
    tags.into_keys().filter(|tag| table.has_primary(tag)).collect()
}
