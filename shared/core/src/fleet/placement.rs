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
    /// Places nodes again after a change that may change their tags. Updates their candidacies, elects the primaries
    /// concerned, and updates the profiles of these nodes and of the previous and new primaries.
    pub(super) fn recompute_placement(&mut self, ids: &[NodeId], dirty: &mut DirtyNodes) {
        let mut changed: BTreeSet<(ClusterId, TagName)> = BTreeSet::new();
        for id in ids {
            changed.extend(self.put_candidate(*id));
        }
        let mut moved: BTreeSet<NodeId> = ids.iter().copied().collect();
        for (cluster, tag) in changed {
            moved.extend(self.elect(cluster, &tag));
        }
        for id in moved {
            self.update_profile(id, dirty);
        }
    }

    /// Removes a node from its profile and from the candidates for primaries. Tags that it held elect another primary.
    pub(super) fn unplace(&mut self, id: NodeId, group: GroupId, dirty: &mut DirtyNodes) {
        let Some(entry) = self.nodes.get(&id).cloned() else { return };
        let Some(cluster) = self.cluster_of_group(group) else { return };
        let tags: Vec<TagName> = entry.profile.iter().flat_map(|profile| profile.key.tags.iter().cloned()).collect();
        let ranked = RankedNode::new(&entry.node);
        let mut moved = BTreeSet::new();
        for tag in tags {
            if self.remove_candidate(cluster, &tag, &ranked) {
                moved.extend(self.elect(cluster, &tag));
            }
        }
        self.assign_profile(id, Some(group), None);
        for id in moved.into_iter().filter(|node| *node != id) {
            self.update_profile(id, dirty);
        }
    }

    /// Updates for which tags a node is a candidate as primary. Returns the tags whose candidates have changed,
    /// including those for which the node was parked or unparked.
    fn put_candidate(&mut self, id: NodeId) -> Vec<(ClusterId, TagName)> {
        let Some((entry, resolved)) = self.placed_node(id) else { return Vec::new() };
        let cluster = resolved.cluster_id();
        let ranked = RankedNode::new(&entry.node);
        let before: BTreeSet<TagName> = entry.profile.iter().flat_map(|profile| profile.key.tags.iter().cloned()).collect();
        let after = possible_primaries(&entry, &resolved);
        let is_ready = !self.is_excluded(&entry);
        let mut changed = Vec::new();
        for tag in before.difference(&after) {
            if self.remove_candidate(cluster, tag, &ranked) {
                changed.push((cluster, tag.clone()));
            }
        }
        for tag in after {
            let Some(entry) = self.clusters.get_mut(&cluster) else { continue };
            let mut candidates = entry.candidates.get(&tag).cloned().unwrap_or_default();
            if candidates.put(&ranked, is_ready) {
                entry.candidates.insert(tag.clone(), candidates);
                changed.push((cluster, tag));
            }
        }
        changed
    }

    /// Removes a node from the candidates for a tag. Returns whether it was one of them.
    fn remove_candidate(&mut self, cluster: ClusterId, tag: &TagName, ranked: &RankedNode) -> bool {
        let Some(entry) = self.clusters.get_mut(&cluster) else { return false };
        let Some(mut candidates) = entry.candidates.get(tag).cloned() else { return false };
        if !candidates.remove(ranked) {
            return false;
        }
        if candidates.all.is_empty() {
            entry.candidates.remove(tag);
        } else {
            entry.candidates.insert(tag.clone(), candidates);
        }
        true
    }

    /// Updates the profile of a node from its tags and primaries.
    pub(super) fn update_profile(&mut self, id: NodeId, dirty: &mut DirtyNodes) {
        let Some(entry) = self.nodes.get(&id) else { return };
        let group = entry.node.spec.nodegroup;
        let before = entry.profile.as_ref().map(|profile| profile.hash);
        let profile = self.placed_node(id).and_then(|(entry, resolved)| self.profile_for(&entry, &resolved));
        if profile.as_ref().map(|profile| profile.hash) != before {
            dirty.add(id);
            self.assign_profile(id, group, profile);
        }
    }

    /// Computes the profile of a node from its roles, tags and primaries. Reuses the stored profile if a node has it
    /// already. `None` if the group has no release.
    fn profile_for(&self, entry: &NodeEntry, resolved: &ResolvedGroup) -> Option<Arc<Profile>> {
        let release = &resolved.release.as_ref()?.value;
        let table = resolved.role_table.as_ref()?;
        let roles = entry.roles(Some(resolved));
        let tags = table.effective_tags(&roles, &entry.node.spec.tags);
        let id = entry.node.id();
        let cluster = resolved.cluster_id();
        let held: Box<[TagName]> = tags.keys().filter(|tag| self.holder(cluster, tag.as_str()) == Some(id)).cloned().collect();
        let key = ProfileKey {
            names: MatchNames::new(release.matching, table, &roles, tags.keys(), &held),
            asserted: asserted_names(release, table, &roles, &tags, &held),
            roles: roles.into_iter().collect(),
            tags: tags.into_keys().collect(),
            primaries: held,
            is_master: entry.node.meta.name.as_ref().is_some_and(|name| name.as_str() == MASTER),
        };
        let hash = key.profile_hash(release);
        let existing = self.profiles.get(&hash).map(|(profile, _)| Arc::clone(profile));
        Some(existing.unwrap_or_else(|| Arc::new(Profile::new(release, key))))
    }

    /// Returns the profile of a host that joins a group as a new node, with no settings of its own and primary of no
    /// tag.
    pub fn profile_for_new_node(&self, group: GroupId) -> Option<Arc<Profile>> {
        let spec = NodeSpec { nodegroup: Some(group), ..NodeSpec::default() };
        let node = Object { meta: Meta::new(Uuid::nil(), None, Timestamp(0)), spec };
        self.profile_for(&NodeEntry::new(Arc::new(node)), self.resolved_group(group).ok()?)
    }

    /// Stores the profile of a node, and updates the number of nodes that have each profile.
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
            let existing = entry.profiles.get(&new.hash).cloned();
            let is_new = existing.is_none();
            let mut used = existing.unwrap_or_else(|| ProfileNodes { profile: Arc::clone(new), nodes: OrdSet::new() });
            used.nodes.insert(id);
            entry.profiles.insert(new.hash, used);
            let cluster = self.cluster_of_group(group);
            if let Some(cluster) = cluster.filter(|_| is_new) {
                self.watch(cluster, group, new);
            }
        }
        self.replace_entry(entry.with_profile(profile));
    }

    /// Removes a node from the nodes of a profile in a group. With the last node, the profile's look-ups are
    /// unregistered.
    fn remove_from_profile(&mut self, group: GroupId, hash: ProfileHash, id: NodeId) {
        let Some(entry) = self.groups.get_mut(&group) else { return };
        let Some(mut used) = entry.profiles.get(&hash).cloned() else { return };
        used.nodes.remove(&id);
        if used.nodes.is_empty() {
            entry.profiles.remove(&hash);
            if let Some(cluster) = self.cluster_of_group(group) {
                self.unwatch(cluster, group, &used.profile);
            }
        } else {
            entry.profiles.insert(hash, used);
        }
    }

    /// Adds `delta` to the number of nodes that have a profile. A profile without nodes is removed.
    fn update_profile_count(&mut self, profile: &Arc<Profile>, delta: i32) {
        let old_count = self.profiles.get(&profile.hash).map_or(0, |(_, count)| *count);
        match old_count.saturating_add_signed(delta) {
            0 => drop(self.profiles.remove(&profile.hash)),
            count => drop(self.profiles.insert(profile.hash, (Arc::clone(profile), count))),
        }
    }

    /// Returns a node with its resolved group. `None` if it has no group, or a parent or release is missing.
    fn placed_node(&self, id: NodeId) -> Option<(Arc<NodeEntry>, Arc<ResolvedGroup>)> {
        let entry = self.nodes.get(&id)?;
        Some((Arc::clone(entry), Arc::clone(self.resolved_parent(&entry.node.spec)?)))
    }
}

impl PrimaryCandidates {
    /// Adds a node, or records whether it is parked now. Returns whether anything changed.
    fn put(&mut self, node: &RankedNode, is_ready: bool) -> bool {
        let is_new = self.all.insert(node.id).is_none();
        let has_changed = if is_ready { self.ready.insert(node.clone()).is_none() } else { self.ready.remove(node).is_some() };
        is_new || has_changed
    }

    /// Removes a node. Returns whether it was a candidate.
    fn remove(&mut self, node: &RankedNode) -> bool {
        self.ready.remove(node);
        self.all.remove(&node.id).is_some()
    }
}

/// Returns the names of a node that selectors of privileged tasks match. These are only the tags that an operator
/// asserted, because an extension must not place a privileged task. `None` if all tags are asserted, or if no task is
/// privileged.
fn asserted_names(
    release: &CompiledRelease,
    table: &RoleTable,
    roles: &BTreeSet<Name>,
    tags: &BTreeMap<TagName, TagOrigin>,
    held: &[TagName],
) -> Option<Box<MatchNames>> {
    let is_asserted = |tag: &TagName| tags.get(tag).is_some_and(|origin| table.is_asserted(tag, origin));
    if release.privileged.is_empty() || tags.keys().all(is_asserted) {
        return None;
    }
    let held: Vec<TagName> = held.iter().filter(|tag| is_asserted(tag)).cloned().collect();
    let asserted = tags.keys().filter(|tag| is_asserted(tag));
    Some(Box::new(MatchNames::new(release.matching, table, roles, asserted, &held)))
}

/// Returns the tags that a node can hold as primary: its effective tags that have a primary.
fn possible_primaries(entry: &NodeEntry, resolved: &ResolvedGroup) -> BTreeSet<TagName> {
    let Some(table) = &resolved.role_table else { return BTreeSet::new() };
    let tags = table.effective_tags(&entry.roles(Some(resolved)), &entry.node.spec.tags);
    tags.into_keys().filter(|tag| table.has_primary(tag)).collect()
}
