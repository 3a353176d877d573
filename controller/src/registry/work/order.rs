//! Keeps two writes from closing a cycle that neither of them sees.
//!
//! A cycle that comes about only by placement refuses the write that would place it. But a write is decided on a
//! snapshot, and two writes of different nodes touch no common object: each may be fine alone and both together
//! close a cycle. So a cluster has two marks in the store:
//!
//! - `placed` is written by every commit by which a node of the cluster gets a profile;
//! - `order` is written by every commit that *extends* the cluster: by which it gets a profile that no node of it had, or the second
//!   node of one whose task waits for itself on other nodes, or a release with stages that none of its groups named, or another node
//!   holds a tag as primary, or its `primaries` name another, who may be still to come, or for which an extension was asked about the
//!   cluster: its answer is of the nodes that it was shown.
//!   And by every commit of who is no admin by which a group of it places nodes otherwise, or hands down something else where a privileged
//!   task has a condition (`privileged`).
//!
//! A commit that extends requires both unchanged, so it has seen whoever was placed before it. One that only places,
//! under a profile that the cluster has, requires `order` unchanged, so the profiles that it counts on were checked
//! together with all that came since. Hosts that join a group at once therefore write `placed` side by side and never
//! wait for each other, and what takes a profile away writes nothing: it can close no cycle.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use stemma_core::digest::ReleaseHash;
use stemma_core::fleet::Fleet;
use stemma_core::graph::ClusterGraph;
use stemma_core::name::TagName;
use stemma_core::object::{ClusterId, Kind, NodeId};
use stemma_core::release::ProfileHash;
use stemma_wire::error::{ApiError, ErrorType};

use super::Work;
use super::privileged::Guard;
use crate::records::key;
use crate::store::Op;

/// What a write places in a cluster.
#[derive(Default)]
struct Placement {
    /// The profiles that its nodes get.
    profiles: BTreeSet<ProfileHash>,
    /// It gets a release with stages: they stand on no node, so they are in the order from then on.
    has_stages: bool,
    /// What keeps privileged tasks from coming by two writes together.
    guard: Guard,
}

impl Work<'_> {
    /// Refuses a placement that closes a cycle, and makes the commit depend on what that was judged by.
    ///
    /// # Errors
    /// The cycle, spelled out.
    pub(super) fn check_order(&mut self) -> Result<(), ApiError> {
        for (cluster, placement) in self.placements() {
            let before = &self.context.whole.fleet;
            let elects = self.elected.contains(&cluster) || !have_same_holders(before, &self.model.fleet, cluster);
            let is_new = placement.has_stages || self.closes(cluster, &placement.profiles);
            let is_asked = self.asked.contains(&cluster);
            let is_empty = placement.profiles.is_empty() && !self.is_asked_about(cluster);
            let is_nothing = is_empty && !elects && !is_new && !is_asked && placement.guard == Guard::Nothing;
            if is_nothing || self.model.clusters.get(cluster.0).is_none() {
                continue;
            }
            self.mark(cluster, is_new || elects || is_asked || placement.guard == Guard::All);
            if is_new {
                let name = self.model.clusters.get(cluster.0).map(|cluster| format!("cluster/{}", cluster.meta.name));
                let written = self.deepest_in(cluster);
                ClusterGraph::of(&self.model.fleet, cluster).check().map_err(|cycle| {
                    let refusal = ApiError::new(ErrorType::ObjectInvalid, format!("{cycle}; nothing was changed"));
                    let refusal = refusal.extra("object", json!(name));
                    written.map_or(refusal.clone(), |written| refusal.extra("written", written.into()))
                })?;
            }
        }
        Ok(())
    }

    /// Whether extensions are asked about a cluster: then who leaves it is news too.
    fn is_asked_about(&self, cluster: ClusterId) -> bool {
        self.model
            .fleet
            .folds_of(cluster)
            .any(|fold| fold.table.as_ref().is_some_and(|table| table.deciders().next().is_some()))
    }

    /// Whether nodes that get these profiles can close a cycle. Nodes of one profile are one class in the order, so only a profile
    /// that is new to its cluster can, and one with a task that waits for itself on other nodes, when there come to be any.
    fn closes(&self, cluster: ClusterId, profiles: &BTreeSet<ProfileHash>) -> bool {
        let mut known: BTreeMap<ProfileHash, usize> = BTreeMap::new();
        for (profile, nodes) in self.context.whole.fleet.placed_in(cluster) {
            *known.entry(profile.hash).or_default() += nodes.len();
        }
        let waits_for_itself = |hash: &ProfileHash| {
            self.model.fleet.profiles_of(cluster).any(|profile| profile.hash == *hash && profile.waits_for_itself())
        };
        profiles.iter().any(|hash| match known.get(hash) {
            None => true,
            Some(1) => waits_for_itself(hash),
            Some(_) => false,
        })
    }

    /// The clusters whose placement the write touches, each with what it gets.
    fn placements(&self) -> BTreeMap<ClusterId, Placement> {
        let mut clusters: BTreeMap<ClusterId, Placement> =
            self.elected.union(&self.asked).map(|cluster| (*cluster, Placement::default())).collect();
        for cluster in self.regrouped() {
            let before = staged(&self.context.whole.fleet, cluster);
            if !staged(&self.model.fleet, cluster).is_subset(&before) {
                clusters.entry(cluster).or_default().has_stages = true;
            }
        }
        for (cluster, guard) in self.guarded() {
            clusters.entry(cluster).or_default().guard = guard;
        }
        let hash = |fleet: &Fleet, node: NodeId| fleet.profile(node).map(|profile| profile.hash);
        for node in self.reach.dirty.nodes(&self.model.fleet) {
            let before = (self.context.whole.fleet.cluster_of_node(node), hash(&self.context.whole.fleet, node));
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

    /// The clusters whose groups may name other releases now.
    fn regrouped(&self) -> BTreeSet<ClusterId> {
        self.groups_below().into_iter().filter_map(|group| self.model.fleet.cluster_of_group(group)).collect()
    }

    fn mark(&mut self, cluster: ClusterId, extends: bool) {
        let (order, placed) = (key::order(cluster.0), key::placed(cluster.0));
        self.require_mark(&order);
        if extends {
            self.require_mark(&placed);
            self.draft.entry(Op::Put { key: order.into(), value: bytes::Bytes::new() });
        }
        self.draft.entry(Op::Put { key: placed.into(), value: bytes::Bytes::new() });
    }

    /// Takes away the marks of a cluster that is deleted.
    pub(super) fn unmark(&mut self, cluster: ClusterId) {
        for mark in [key::order(cluster.0), key::placed(cluster.0)] {
            self.draft.entry(Op::Delete { key: mark.into() });
        }
    }

    /// Notes that the stored choices of primaries in a cluster are others now.
    pub(super) fn note_elected(&mut self, kind: Kind, cluster: Option<ClusterId>) {
        if kind == Kind::Primary {
            self.elected.extend(cluster);
        }
    }
}

/// The releases with stages that a cluster's groups name.
fn staged(fleet: &Fleet, cluster: ClusterId) -> BTreeSet<ReleaseHash> {
    let releases = fleet.folds_of(cluster).filter_map(|fold| fold.release.as_ref()).map(|release| &release.value);
    releases.filter(|release| !release.stages.is_empty()).map(|release| release.hash).collect()
}

fn have_same_holders(before: &Fleet, after: &Fleet, cluster: ClusterId) -> bool {
    let holders = |fleet: &Fleet| fleet.holders(cluster).map(|(tag, node)| (tag.clone(), node)).collect();
    let (before, after): (Vec<(TagName, NodeId)>, Vec<_>) = (holders(before), holders(after));
    before == after
}
