//! That no two writes close a cycle which neither of them sees.
//!
//! A cycle that comes about only by placement refuses the write that would place it. But a write is decided on a
//! snapshot, and two writes of different nodes touch no common object: each may be fine alone and both together
//! close a cycle. So a cluster has two marks in the store:
//!
//! - `placed` is written by every commit by which a node of the cluster gets a profile;
//! - `order` is written by every commit that *extends* the cluster: by which it gets a profile that no node of it had, or
//!   another node holds a tag as primary.
//!
//! A commit that extends requires both unchanged, so it has seen whoever was placed before it. One that only places,
//! under a profile that the cluster has, requires `order` unchanged, so the profiles that it counts on were checked
//! together with all that came since. Hosts that join a group at once therefore write `placed` side by side and never
//! wait for each other, and what takes a profile away writes nothing: it can close no cycle.

use std::collections::{BTreeMap, BTreeSet};

use stemma_core::fleet::Fleet;
use stemma_core::graph::ClusterGraph;
use stemma_core::name::TagName;
use stemma_core::object::{ClusterId, Kind, NodeId};
use stemma_core::release::ProfileHash;
use stemma_wire::error::{ApiError, ErrorType};

use super::Work;
use crate::registry::{Undecided, key};
use crate::store::{Op, Precondition};

impl Work<'_> {
    /// Refuses a placement that goes round, and makes the commit depend on what that was found out from.
    ///
    /// # Errors
    /// The cycle, spelled out; [`Undecided::Behind`] when the cluster was extended after the snapshot.
    pub(super) fn check_order(&mut self) -> Result<(), Undecided> {
        for (cluster, gained) in self.gained() {
            let before = &self.sight.model.fleet;
            let elects = self.elected.contains(&cluster) || !have_same_holders(before, &self.model.fleet, cluster);
            if (gained.is_empty() && !elects) || self.model.clusters.get(cluster.0).is_none() {
                continue;
            }
            let known: BTreeSet<ProfileHash> = before.profiles_of(cluster).map(|profile| profile.hash).collect();
            let is_new = !gained.is_subset(&known);
            self.mark(cluster, is_new || elects)?;
            if is_new {
                ClusterGraph::of(&self.model.fleet, cluster).check().map_err(|cycle| {
                    ApiError::new(ErrorType::ObjectInvalid, format!("{cycle}; nothing was changed"))
                })?;
            }
        }
        Ok(())
    }

    /// The clusters whose placement the write touches, each with the profiles that its nodes get. Nodes of one profile are
    /// one class in the order, so only a profile that is new to its cluster can close a cycle.
    fn gained(&self) -> BTreeMap<ClusterId, BTreeSet<ProfileHash>> {
        let mut clusters: BTreeMap<ClusterId, BTreeSet<ProfileHash>> =
            self.elected.iter().map(|cluster| (*cluster, BTreeSet::new())).collect();
        let hash = |fleet: &Fleet, node: NodeId| fleet.profile(node).map(|profile| profile.hash);
        for node in self.reach.dirty.nodes() {
            let before = (self.sight.model.cluster_of(node.0), hash(&self.sight.model.fleet, node));
            let after = (self.model.cluster_of(node.0), hash(&self.model.fleet, node));
            if before == after {
                continue;
            }
            if let Some(cluster) = before.0 {
                clusters.entry(cluster).or_default();
            }
            if let (Some(cluster), profile) = after {
                clusters.entry(cluster).or_default().extend(profile);
            }
        }
        clusters
    }

    fn mark(&mut self, cluster: ClusterId, extends: bool) -> Result<(), Undecided> {
        let (order, placed) = (key::order(cluster.0), key::placed(cluster.0));
        self.require_unmarked(&order)?;
        if extends {
            self.require_unmarked(&placed)?;
            self.draft.entry(Op::Put { key: order.into(), value: bytes::Bytes::new() });
        }
        self.draft.entry(Op::Put { key: placed.into(), value: bytes::Bytes::new() });
        Ok(())
    }

    /// Requires that a mark is as it was when the snapshot was made.
    fn require_unmarked(&mut self, mark: &str) -> Result<(), Undecided> {
        let precondition = match self.sight.marked(mark)? {
            Some(revision) => Precondition::unchanged(mark.to_owned(), revision),
            None => Precondition::absent(mark.to_owned()),
        };
        self.draft.require(precondition);
        Ok(())
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

fn have_same_holders(before: &Fleet, after: &Fleet, cluster: ClusterId) -> bool {
    let holders = |fleet: &Fleet| fleet.holders(cluster).map(|(tag, node)| (tag.clone(), node)).collect();
    let (before, after): (Vec<(TagName, NodeId)>, Vec<_>) = (holders(before), holders(after));
    before == after
}
