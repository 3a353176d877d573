//! A node's place: its effective tags, what it could be primary of, and the profile that follows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdSet;
use uuid::Uuid;

use super::{Candidates, Dirty, Fleet, GroupFold, NodeEntry, ProfileUse, Ranked};
use crate::name::{Name, TagName};
use crate::object::{ClusterId, GroupId, Meta, NodeId, NodeSpec, Object, Timestamp};
use crate::release::select::MASTER;
use crate::release::{CompiledRelease, Place, Profile, ProfileHash};
use crate::role::{MatchNames, RoleTable, TagOrigin};

impl Fleet {
    /// Places nodes again after something that decides their tags has changed.
    pub(super) fn replace(&mut self, ids: &[NodeId], dirty: &mut Dirty) {
        let mut open: BTreeSet<(ClusterId, TagName)> = BTreeSet::new();
        for id in ids {
            open.extend(self.put_candidate(*id));
        }
        let mut moved: BTreeSet<NodeId> = ids.iter().copied().collect();
        for (cluster, tag) in open {
            moved.extend(self.elect(cluster, &tag));
        }
        for id in moved {
            self.put_profile(id, dirty);
        }
    }

    /// Takes a node out of what it could be primary of, and out of its profile.
    pub(super) fn unplace(&mut self, id: NodeId, group: GroupId, dirty: &mut Dirty) {
        let Some(entry) = self.nodes.get(&id).cloned() else { return };
        let Some(cluster) = self.cluster_of_group(group) else { return };
        let tags: Vec<TagName> = entry.profile.iter().flat_map(|profile| profile.place.tags.iter().cloned()).collect();
        let ranked = Ranked::of(&entry.node);
        let mut moved = BTreeSet::new();
        for tag in tags {
            if self.drop_candidate(cluster, &tag, &ranked) {
                moved.extend(self.elect(cluster, &tag));
            }
        }
        self.use_profile(id, Some(group), None);
        for id in moved.into_iter().filter(|one| *one != id) {
            self.put_profile(id, dirty);
        }
    }

    /// Names the node for the tags that it could be primary of; gives the tags for which that changed, or for which it is parked now or no
    /// longer.
    fn put_candidate(&mut self, id: NodeId) -> Vec<(ClusterId, TagName)> {
        let Some((entry, fold)) = self.placed(id) else { return Vec::new() };
        let cluster = fold.cluster_id();
        let ranked = Ranked::of(&entry.node);
        let before: BTreeSet<TagName> =
            entry.profile.iter().flat_map(|profile| profile.place.tags.iter().cloned()).collect();
        let after = primaries_possible(&entry, &fold);
        let is_ready = !self.is_set_aside(&entry);
        let mut changed = Vec::new();
        for tag in before.difference(&after) {
            if self.drop_candidate(cluster, tag, &ranked) {
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

    fn drop_candidate(&mut self, cluster: ClusterId, tag: &TagName, ranked: &Ranked) -> bool {
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

    /// Gives the node the profile that follows from its tags and primaries.
    pub(super) fn put_profile(&mut self, id: NodeId, dirty: &mut Dirty) {
        let Some(entry) = self.nodes.get(&id) else { return };
        let group = entry.node.spec.nodegroup;
        let before = entry.profile.as_ref().map(|profile| profile.hash);
        let profile = self.placed(id).and_then(|(entry, fold)| self.profile_for(&entry, &fold));
        if profile.as_ref().map(|profile| profile.hash) != before {
            dirty.add(id);
            self.use_profile(id, group, profile);
        }
    }

    fn profile_for(&self, entry: &NodeEntry, fold: &GroupFold) -> Option<Arc<Profile>> {
        let release = &fold.release.as_ref()?.value;
        let table = fold.table.as_ref()?;
        let roles = entry.roles(Some(fold));
        let tags = table.effective_tags(&roles, &entry.node.spec.tags);
        let id = entry.node.id();
        let cluster = fold.cluster_id();
        let held: Box<[TagName]> =
            tags.keys().filter(|tag| self.holder(cluster, tag.as_str()) == Some(id)).cloned().collect();
        let place = Place {
            names: MatchNames::new(release.matching, table, &roles, tags.keys(), &held),
            asserted: asserted_names(release, table, &roles, &tags, &held),
            roles: roles.into_iter().collect(),
            tags: tags.into_keys().collect(),
            primaries: held,
            is_master: entry.node.meta.name.as_ref().is_some_and(|name| name.as_str() == MASTER),
        };
        let hash = place.hash(release);
        let known = self.profiles.get(&hash).map(|(profile, _)| Arc::clone(profile));
        Some(known.unwrap_or_else(|| Arc::new(Profile::new(release, place))))
    }

    /// What a host would be placed by that joined a group as a new node: by nothing of its own, and primary of nothing.
    pub fn profile_of_joining(&self, group: GroupId) -> Option<Arc<Profile>> {
        let spec = NodeSpec { nodegroup: Some(group), ..NodeSpec::default() };
        let node = Object { meta: Meta::new(Uuid::nil(), None, Timestamp(0)), spec };
        self.profile_for(&NodeEntry::bare(Arc::new(node)), self.fold(group).ok()?)
    }

    /// Writes a node's profile beside it, and keeps count of who has which.
    fn use_profile(&mut self, id: NodeId, group: Option<GroupId>, profile: Option<Arc<Profile>>) {
        let Some(entry) = self.nodes.get(&id).cloned() else { return };
        if let Some(old) = &entry.profile {
            self.count_profile(old, -1);
            if let Some(group) = group {
                self.leave_profile(group, old.hash, id);
            }
        }
        if let (Some(new), Some(group)) = (&profile, group) {
            self.count_profile(new, 1);
            let Some(entry) = self.groups.get_mut(&group) else { return };
            let known = entry.profiles.get(&new.hash).cloned();
            let is_new = known.is_none();
            let mut used = known.unwrap_or_else(|| ProfileUse { profile: Arc::clone(new), nodes: OrdSet::new() });
            used.nodes.insert(id);
            entry.profiles.insert(new.hash, used);
            let cluster = self.cluster_of_group(group);
            if let Some(cluster) = cluster.filter(|_| is_new) {
                self.watch(cluster, group, new);
            }
        }
        self.keep(entry.with_profile(profile));
    }

    fn leave_profile(&mut self, group: GroupId, hash: ProfileHash, id: NodeId) {
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

    fn count_profile(&mut self, profile: &Arc<Profile>, by: i32) {
        let known = self.profiles.get(&profile.hash).map_or(0, |(_, count)| *count);
        match known.saturating_add_signed(by) {
            0 => drop(self.profiles.remove(&profile.hash)),
            count => drop(self.profiles.insert(profile.hash, (Arc::clone(profile), count))),
        }
    }

    /// A node that stands in a group of which nothing is missing.
    fn placed(&self, id: NodeId) -> Option<(Arc<NodeEntry>, Arc<GroupFold>)> {
        let entry = self.nodes.get(&id)?;
        Some((Arc::clone(entry), Arc::clone(self.fold_above(&entry.node.spec)?)))
    }
}

impl Candidates {
    /// Takes a node in, or notes whether it is parked now; gives whether that is news.
    fn put(&mut self, node: &Ranked, is_ready: bool) -> bool {
        let is_new = self.all.insert(node.id).is_none();
        let has_turned =
            if is_ready { self.ready.insert(node.clone()).is_none() } else { self.ready.remove(node).is_some() };
        is_new || has_turned
    }

    /// Takes a node out; gives whether it was there.
    fn remove(&mut self, node: &Ranked) -> bool {
        self.ready.remove(node);
        self.all.remove(&node.id).is_some()
    }
}

/// What selectors of privileged tasks are matched against; `None`: what all selectors are, or no task asks.
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

/// The tags of a node that have a primary.
fn primaries_possible(entry: &NodeEntry, fold: &GroupFold) -> BTreeSet<TagName> {
    let Some(table) = &fold.table else { return BTreeSet::new() };
    let tags = table.effective_tags(&entry.roles(Some(fold)), &entry.node.spec.tags);
    tags.into_keys().filter(|tag| table.has_primary(tag)).collect()
}
