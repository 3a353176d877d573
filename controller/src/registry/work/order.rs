//! Prevents two writes from closing a cycle that neither of them sees.
//!
//! If placing a node closes a cycle of tasks, the write that places it is refused. But a write is decided on a
//! snapshot, and writes of two different nodes have no object in common: each may be valid alone, and both together
//! close a cycle. So a cluster has two marks in the store:
//!
//! - `placed` is written by every commit that gives a node of the cluster a profile.
//! - `order` is written by every commit that *extends* the cluster.
//!
//! A commit extends a cluster in these cases:
//!
//! - A node gets a profile that no node of the cluster had.
//! - A profile whose task waits for itself on other nodes gets its second node.
//! - A group gets a release with stages that no group of the cluster had.
//! - Another node holds a tag as primary, or `primaries` of the cluster names another node, which may not exist yet.
//! - An extension decided tags in the cluster. Its answer depends on the nodes that the controller sent to it.
//! - A caller that is not an admin changes how a group places nodes, or what nodes inherit if a privileged task there
//!   has a condition (`privileged`).
//!
//! A commit that extends requires both marks unchanged, so it has seen every node that was placed before it. A commit
//! that only places a node, with a profile that the cluster already has, requires only `order` unchanged: the profiles
//! it relies on were checked together with every later one. Hosts that join a group at the same time therefore write
//! `placed` concurrently and never wait for each other. A commit that only removes a profile writes no mark, because it
//! cannot close a cycle.

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

/// What a write places in one cluster.
#[derive(Default)]
struct PlacedByWrite {
    /// The profiles that nodes of the cluster get.
    profiles: BTreeSet<ProfileHash>,
    /// True if the cluster gets a release with stages. Stages belong to no node, so they are part of the order at once.
    has_staged_release: bool,
    /// What must stay unchanged so that two writes together cannot place or start a privileged task.
    guard: ClusterGuard,
}

impl PendingWrite<'_> {
    /// Refuses a placement that closes a cycle, and makes the commit depend on the state that was checked.
    ///
    /// # Errors
    /// Fails with the tasks of the cycle.
    pub(super) fn check_order(&mut self) -> Result<(), ApiError> {
        for (cluster, placement) in self.placements() {
            let before = &self.context.full_model.fleet;
            let elects = self.changed_elections.contains(&cluster) || !has_same_holders(before, &self.model.fleet, cluster);
            let can_cycle = placement.has_staged_release || self.can_close_cycle(cluster, &placement.profiles);
            let is_asked = self.extension_clusters.contains(&cluster);
            let is_empty = placement.profiles.is_empty() && !self.has_extension(cluster);
            let is_idle = is_empty && !elects && !can_cycle && !is_asked && placement.guard == ClusterGuard::Nothing;
            if is_idle || self.model.clusters.get(cluster.0).is_none() {
                continue;
            }
            self.write_marks(cluster, can_cycle || elects || is_asked || placement.guard == ClusterGuard::All);
            if can_cycle {
                let name = self.model.clusters.get(cluster.0).map(|cluster| format!("cluster/{}", cluster.meta.name));
                let written = self.cause_for_cluster(cluster);
                ClusterGraph::from_fleet(&self.model.fleet, cluster).check().map_err(|cycle| {
                    let refusal = ApiError::new(ErrorType::ObjectInvalid, format!("{cycle}; nothing was changed"));
                    let refusal = refusal.extra("object", json!(name));
                    written.map_or(refusal.clone(), |written| refusal.extra("written", written.into()))
                })?;
            }
        }
        Ok(())
    }

    /// Returns whether extensions decide tags in a cluster. A node that only leaves such a cluster also changes
    /// the question to the extensions.
    fn has_extension(&self, cluster: ClusterId) -> bool {
        self.model
            .fleet
            .resolved_groups(cluster)
            .any(|group| group.role_table.as_ref().is_some_and(|table| table.deciders().next().is_some()))
    }

    /// Returns whether nodes that get these profiles can close a cycle. All nodes of a profile are one class in the
    /// order. So only two kinds of profile can: one that is new to its cluster, and one that gets its second node and
    /// has a task that waits for itself on other nodes.
    fn can_close_cycle(&self, cluster: ClusterId, profiles: &BTreeSet<ProfileHash>) -> bool {
        let mut known: BTreeMap<ProfileHash, usize> = BTreeMap::new();
        for (profile, nodes) in self.context.full_model.fleet.profile_nodes_in_cluster(cluster) {
            *known.entry(profile.hash).or_default() += nodes.len();
        }
        let waits_for_itself = |hash: &ProfileHash| {
            self.model.fleet.profiles_in_cluster(cluster).any(|profile| profile.hash == *hash && profile.has_self_wait())
        };
        profiles.iter().any(|hash| match known.get(hash) {
            None => true,
            Some(1) => waits_for_itself(hash),
            Some(_) => false,
        })
    }

    /// Returns the clusters whose placement the write changes, each with what the write places in it.
    fn placements(&self) -> BTreeMap<ClusterId, PlacedByWrite> {
        let mut clusters: BTreeMap<ClusterId, PlacedByWrite> =
            self.changed_elections.union(&self.extension_clusters).map(|cluster| (*cluster, PlacedByWrite::default())).collect();
        for cluster in self.clusters_with_changed_groups() {
            let before = staged_releases(&self.context.full_model.fleet, cluster);
            if !staged_releases(&self.model.fleet, cluster).is_subset(&before) {
                clusters.entry(cluster).or_default().has_staged_release = true;
            }
        }
        for (cluster, guard) in self.guarded_clusters() {
            clusters.entry(cluster).or_default().guard = guard;
        }
        let hash = |fleet: &Fleet, node: NodeId| fleet.profile(node).map(|profile| profile.hash);
        for node in self.affected.dirty.nodes(&self.model.fleet) {
            let before = (self.context.full_model.fleet.cluster_of_node(node), hash(&self.context.full_model.fleet, node));
            let after = (self.model.fleet.cluster_of_node(node), hash(&self.model.fleet, node));
            if before == after {
                continue;
            }
            if let Some(cluster) = before.0 {
                clusters.entry(cluster).or_default();
            }
            if let (Some(cluster), profile) = after {
                clusters.entry(cluster).or_default().profiles.extend(profile);
            }
        }
        clusters
    }

    /// Returns the clusters whose groups may have another release after the write.
    fn clusters_with_changed_groups(&self) -> BTreeSet<ClusterId> {
        self.affected_groups().into_iter().filter_map(|group| self.model.fleet.cluster_of_group(group)).collect()
    }

    /// Writes the marks of a cluster, and requires those unchanged that the commit depends on (see the module).
    fn write_marks(&mut self, cluster: ClusterId, is_extension: bool) {
        let (order, placed) = (key::order_mark(cluster.0), key::placement_mark(cluster.0));
        self.require_mark(&order);
        if is_extension {
            self.require_mark(&placed);
            self.draft.add_op(Op::Put { key: order.into(), value: bytes::Bytes::new() });
        }
        self.draft.add_op(Op::Put { key: placed.into(), value: bytes::Bytes::new() });
    }

    /// Deletes the marks of a deleted cluster.
    pub(super) fn delete_marks(&mut self, cluster: ClusterId) {
        for mark in [key::order_mark(cluster.0), key::placement_mark(cluster.0)] {
            self.draft.add_op(Op::Delete { key: mark.into() });
        }
    }

    /// Records that a stored choice of a primary changed in a cluster.
    pub(super) fn note_changed_elections(&mut self, kind: Kind, cluster: Option<ClusterId>) {
        if kind == Kind::Primary {
            self.changed_elections.extend(cluster);
        }
    }
}

/// Returns the releases with stages that groups of a cluster have.
fn staged_releases(fleet: &Fleet, cluster: ClusterId) -> BTreeSet<ReleaseHash> {
    let releases = fleet.resolved_groups(cluster).filter_map(|group| group.release.as_ref()).map(|release| &release.value);
    releases.filter(|release| !release.stages.is_empty()).map(|release| release.hash).collect()
}

fn has_same_holders(before: &Fleet, after: &Fleet, cluster: ClusterId) -> bool {
    let holders = |fleet: &Fleet| fleet.holders(cluster).map(|(tag, node)| (tag.clone(), node)).collect();
    let (before, after): (Vec<(TagName, NodeId)>, Vec<_>) = (holders(before), holders(after));
    before == after
}
