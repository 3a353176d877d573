//! Prevents that two concurrent writes together close a cycle of tasks that neither of them closes alone.
//!
//! A write that places a node is refused if the placement closes a cycle of tasks. But a write is decided on a
//! snapshot, and writes of two nodes have no object in common. Each write may be valid alone, and both together close a
//! cycle. So a cluster has two marks in the store:
//!
//! - `placed` is written by every commit that gives a node of the cluster a profile. A profile is the task list of all
//!   nodes with the same release, roles and tags.
//! - `order` is written by every commit that *extends* the cluster.
//!
//! A commit extends a cluster in these cases:
//!
//! - A node gets a profile that no node of the cluster had.
//! - A second node gets a profile that has a task which waits for itself on other nodes.
//! - A group gets a release with stages, and no group of the cluster had this release.
//! - A group of an existing cluster, or the cluster itself, gets another release (`privileged`).
//! - Another node becomes primary of a tag, or `primaries` of the cluster names another node, which may not exist yet.
//! - An extension decided tags in the cluster. Its answer depends on the nodes that the controller sent to it.
//! - A caller that is not an admin changes how a group places nodes, changes inherited values in a cluster with a
//!   privileged task that has a condition, or writes a node in a cluster where such a condition looks up other nodes
//!   (`privileged`).
//!
//! A commit that extends a cluster requires that both marks are unchanged. So its check included every node that was
//! placed before. A commit that only places a node, with a profile that the cluster already has, requires only that
//! `order` is unchanged. This is enough, because every extension was checked together with the existing profiles. Hosts
//! that join a group at the same time therefore write `placed` concurrently and never wait for each other. A commit
//! that only removes a profile cannot close a cycle. It writes marks only if extensions decide tags in the cluster, or
//! if a concurrent write could place a privileged task together with it (`privileged`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use stemma_core::digest::ReleaseHash;
use stemma_core::fleet::Fleet;
use stemma_core::graph::ClusterGraph;
use stemma_core::name::TagName;
use stemma_core::object::{ClusterId, Kind, NodeId};
use stemma_core::release::ProfileHash;
use stemma_wire::error::{ApiError, ErrorType};

use super::PendingWrite;
use super::privileged::ClusterGuard;
use crate::records::key;
use crate::store::Op;

/// The changes in one cluster that can close a cycle or place a privileged task.
#[derive(Default)]
struct PlacedByWrite {
    /// The profiles that nodes of the cluster get by the write.
    profiles: BTreeSet<ProfileHash>,
    /// True if a group of the cluster gets a release with stages that no group of the cluster had. Stages belong to no
    /// node, so they can close a cycle in a cluster without nodes.
    has_staged_release: bool,
    /// The part of the cluster that must be unchanged at the commit. Otherwise two writes together could place or start
    /// a privileged task.
    guard: ClusterGuard,
}

impl PendingWrite<'_> {
    /// Refuses a write that closes a cycle of tasks. Makes the commit depend on the state that was checked, by the
    /// marks of each cluster (empty entries that concurrent writes change). Skips a cluster in which the write places
    /// no node and changes nothing that the order of tasks or the placement of privileged tasks depends on.
    ///
    /// # Errors
    /// Fails with the tasks of the cycle.
    pub(super) fn check_order(&mut self) -> Result<(), ApiError> {
        for (id, placement) in self.placements() {
            let old = &self.context.full_model.fleet;
            let has_moves = self.clusters_with_changed_primaries.contains(&id) || !has_same_holders(old, &self.model.fleet, id);
            let can_cycle = placement.has_staged_release || self.can_close_cycle(id, &placement.profiles);
            let uses_extension = self.extension_clusters.contains(&id);
            let is_empty = placement.profiles.is_empty() && !self.has_extension(id);
            let can_skip = is_empty && !has_moves && !can_cycle && !uses_extension && placement.guard == ClusterGuard::Nothing;
            if can_skip || self.model.clusters.get(id.0).is_none() {
                continue;
            }
            self.write_marks(id, can_cycle || has_moves || uses_extension || placement.guard == ClusterGuard::All);
            if can_cycle {
                let name = self.model.clusters.get(id.0).map(|cluster| format!("cluster/{}", cluster.meta.name));
                let cause = self.cause_for_cluster(id);
                ClusterGraph::from_fleet(&self.model.fleet, id).check().map_err(|cycle| {
                    let refusal = ApiError::new(ErrorType::ObjectInvalid, format!("{cycle}; nothing was changed"));
                    let refusal = refusal.extra("object", json!(name));
                    cause.map_or(refusal.clone(), |cause| refusal.extra("written", cause.into()))
                })?;
            }
        }
        Ok(())
    }

    /// Returns whether extensions decide tags in a cluster. Such a cluster also needs its marks if a node only leaves
    /// it, because this changes the question to the extension.
    fn has_extension(&self, cluster: ClusterId) -> bool {
        self.model
            .fleet
            .resolved_groups(cluster)
            .any(|group| group.role_table.as_ref().is_some_and(|table| table.deciders().next().is_some()))
    }

    /// Returns whether nodes that get these profiles can close a cycle. The order treats all nodes of a profile alike,
    /// so only two kinds of profile can close a cycle. One kind is new to the cluster. The other kind gets its second
    /// node and has a task that waits for itself on other nodes.
    fn can_close_cycle(&self, cluster: ClusterId, profiles: &BTreeSet<ProfileHash>) -> bool {
        let mut old_node_counts: BTreeMap<ProfileHash, usize> = BTreeMap::new();
        for (profile, members) in self.context.full_model.fleet.profile_nodes_in_cluster(cluster) {
            *old_node_counts.entry(profile.hash).or_default() += members.len();
        }
        let waits_for_itself = |hash: &ProfileHash| {
            self.model.fleet.profiles_in_cluster(cluster).any(|profile| profile.hash == *hash && profile.has_self_wait())
        };
        profiles.iter().any(|hash| match old_node_counts.get(hash) {
            None => true,
            Some(1) => waits_for_itself(hash),
            Some(_) => false,
        })
    }

    /// Returns the clusters in which the write can close a cycle of tasks or place a privileged task, each with the
    /// changes that can do this.
    fn placements(&self) -> BTreeMap<ClusterId, PlacedByWrite> {
        let ids = self.clusters_with_changed_primaries.union(&self.extension_clusters);
        let mut clusters: BTreeMap<ClusterId, PlacedByWrite> = ids.map(|id| (*id, PlacedByWrite::default())).collect();
        for cluster in self.clusters_with_changed_groups() {
            let old_releases = staged_releases(&self.context.full_model.fleet, cluster);
            if !staged_releases(&self.model.fleet, cluster).is_subset(&old_releases) {
                clusters.entry(cluster).or_default().has_staged_release = true;
            }
        }
        for (cluster, guard) in self.guarded_clusters() {
            clusters.entry(cluster).or_default().guard = guard;
        }
        let profile_hash = |fleet: &Fleet, node: NodeId| fleet.profile(node).map(|profile| profile.hash);
        for node in self.affected.dirty.nodes(&self.model.fleet) {
            let old = (self.context.full_model.fleet.cluster_of_node(node), profile_hash(&self.context.full_model.fleet, node));
            let new = (self.model.fleet.cluster_of_node(node), profile_hash(&self.model.fleet, node));
            if old == new {
                continue;
            }
            // A cluster that loses a node or a profile is listed without changes (see `has_extension`).
            if let Some(cluster) = old.0 {
                clusters.entry(cluster).or_default();
            }
            if let (Some(cluster), profile) = new {
                clusters.entry(cluster).or_default().profiles.extend(profile);
            }
        }
        clusters
    }

    /// Returns the clusters whose groups may have another release after the write.
    fn clusters_with_changed_groups(&self) -> BTreeSet<ClusterId> {
        self.affected_groups().into_iter().filter_map(|group| self.model.fleet.cluster_of_group(group)).collect()
    }

    /// Writes the marks of a cluster (empty entries that order concurrent writes), and requires at the commit that
    /// marks are unchanged. A write with `is_extension` can close a cycle of tasks, or depends on all nodes of the
    /// cluster. Such a write writes and requires both marks. Any other write writes `placed` and requires `order`.
    fn write_marks(&mut self, cluster: ClusterId, is_extension: bool) {
        let (order_mark, placement_mark) = (key::order_mark(cluster.0), key::placement_mark(cluster.0));
        self.require_mark(&order_mark);
        if is_extension {
            self.require_mark(&placement_mark);
            self.draft.add_op(Op::Put { key: order_mark.into(), value: bytes::Bytes::new() });
        }
        self.draft.add_op(Op::Put { key: placement_mark.into(), value: bytes::Bytes::new() });
    }

    /// Deletes the marks of a deleted cluster. Marks are keys of the store that let one of two conflicting writes fail.
    pub(super) fn delete_marks(&mut self, cluster: ClusterId) {
        for mark in [key::order_mark(cluster.0), key::placement_mark(cluster.0)] {
            self.draft.add_op(Op::Delete { key: mark.into() });
        }
    }

    /// Records the cluster if the written object is a stored choice of a primary.
    pub(super) fn record_changed_primary(&mut self, kind: Kind, cluster: Option<ClusterId>) {
        if kind == Kind::Primary {
            self.clusters_with_changed_primaries.extend(cluster);
        }
    }
}

/// Returns the releases with stages that groups of a cluster use.
fn staged_releases(fleet: &Fleet, cluster: ClusterId) -> BTreeSet<ReleaseHash> {
    let releases = fleet.resolved_groups(cluster).filter_map(|group| group.release.as_ref()).map(|release| &release.value);
    releases.filter(|release| !release.stages.is_empty()).map(|release| release.hash).collect()
}

/// Returns whether each tag of a cluster has the same primary in both fleets.
fn has_same_holders(old_fleet: &Fleet, new_fleet: &Fleet, cluster: ClusterId) -> bool {
    let holders = |fleet: &Fleet| fleet.holders(cluster).map(|(tag, node)| (tag.clone(), node)).collect();
    let (old_holders, new_holders): (Vec<(TagName, NodeId)>, Vec<_>) = (holders(old_fleet), holders(new_fleet));
    old_holders == new_holders
}
