//! Barriers: which of a node's are open, from what the others' tasks came to.
//!
//! All nodes of a cluster are one wave until there are rollouts. A barrier opens when each node that it means has
//! succeeded in its task, in the task set that it is to have now. Nodes that are parked, or do not apply, stand
//! outside. A stage opens with all that it waits for. What is open is no part of a desired state's digest.

use std::collections::{BTreeMap, BTreeSet};

use stemma_core::digest::ReleaseHash;
use stemma_core::fleet::Fleet;
use stemma_core::object::{ClusterId, NodeId};
use stemma_core::release::{Barrier, Profile, Source, TaskIx};
use stemma_core::resolve::{ResolveCache, resolve_node};
use stemma_core::task::{Mode, Policy};
use stemma_wire::message::Revision;
use uuid::Uuid;

use super::encode;
use crate::agents::desired::DesiredTable;
use crate::cache::Model;
use crate::registry::reported::is_success;

/// Opens what can be opened for the clusters of the nodes that were touched.
pub(super) fn open(table: &DesiredTable, model: &Model, fleet: &Fleet, touched: &BTreeSet<Uuid>, revision: Revision) {
    let clusters: BTreeSet<ClusterId> = touched.iter().filter_map(|node| cluster_of(fleet, NodeId(*node))).collect();
    for cluster in clusters {
        let mut wave = Wave { table, model, fleet, cluster, members: None, known: BTreeMap::new() };
        for node in fleet.nodes_of_cluster(cluster) {
            wave.open_for(node, revision);
        }
    }
}

fn cluster_of(fleet: &Fleet, node: NodeId) -> Option<ClusterId> {
    let group = fleet.node(node)?.spec.nodegroup?;
    Some(fleet.group(group)?.spec.cluster)
}

/// One cluster's nodes, with what was found out about its barriers so far.
struct Wave<'a> {
    table: &'a DesiredTable,
    model: &'a Model,
    fleet: &'a Fleet,
    cluster: ClusterId,
    members: Option<Vec<NodeId>>,
    known: BTreeMap<BarrierKey, Waiting>,
}

/// Which barrier it is: a task's place means something in its own release alone, and groups may run different ones.
type BarrierKey = (ReleaseHash, TaskIx, String, bool);

/// The nodes that a barrier still waits for: none, one (who is not held back by itself), or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Nobody,
    For(NodeId),
    ForMore,
}

impl Wave<'_> {
    fn open_for(&mut self, node: NodeId, revision: Revision) {
        let Some(profile) = self.fleet.profile(node).cloned() else { return };
        if profile.barriers.is_empty() {
            return;
        }
        let Some((_, task_set)) = self.table.digests(node.0) else { return };
        let open = profile.barriers.iter().filter(|barrier| self.is_open(&profile, barrier, node));
        let open = open.map(|barrier| encode::barrier(&profile, barrier)).collect();
        self.table.open_barriers(node.0, revision, task_set, open);
    }

    fn is_open(&mut self, profile: &Profile, barrier: &Barrier, asking: NodeId) -> bool {
        match self.waiting(profile, barrier, &mut Vec::new()) {
            Waiting::Nobody => true,
            Waiting::For(node) => node == asking,
            Waiting::ForMore => false,
        }
    }

    fn waiting(&mut self, profile: &Profile, barrier: &Barrier, stages: &mut Vec<TaskIx>) -> Waiting {
        let key = (profile.release.hash, barrier.task, barrier.source.to_string(), barrier.policy == Policy::Any);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let waiting = match barrier.source {
            Source::Stage => self.stage(profile, barrier.task, stages),
            Source::Anywhere | Source::Everyone | Source::Tags(_) | Source::Roles(_) => self.nodes(profile, barrier),
        };
        self.known.insert(key, waiting);
        waiting
    }

    /// A stage waits for whatever any of its own barriers waits for. A round of stages was refused when the release was stored.
    fn stage(&mut self, profile: &Profile, stage: TaskIx, stages: &mut Vec<TaskIx>) -> Waiting {
        if stages.contains(&stage) {
            return Waiting::Nobody;
        }
        stages.push(stage);
        let mut waiting = Waiting::Nobody;
        for barrier in profile.release.stage_waits(stage) {
            waiting = waiting.and(self.waiting(profile, &barrier, stages));
        }
        stages.pop();
        waiting
    }

    fn nodes(&mut self, profile: &Profile, barrier: &Barrier) -> Waiting {
        let members = self.members();
        let mut waiting = Waiting::Nobody;
        let (mut meant, mut succeeded) = (false, false);
        for node in members {
            let Some(other) = self.fleet.profile(node) else { continue };
            let is_meant = other.release.hash == profile.release.hash
                && other.place.is_source(profile.release.matching.roles, &barrier.source)
                && other.has(barrier.task);
            if !is_meant {
                continue;
            }
            meant = true;
            if self.has_succeeded(node, profile.release.id(barrier.task)) {
                succeeded = true;
            } else {
                waiting = waiting.and(Waiting::For(node));
            }
        }
        match barrier.policy {
            Policy::All => waiting,
            Policy::Any if succeeded || !meant => Waiting::Nobody,
            Policy::Any => Waiting::ForMore,
        }
    }

    /// The nodes that take part: neither parked nor short of applying.
    fn members(&mut self) -> Vec<NodeId> {
        if let Some(members) = &self.members {
            return members.clone();
        }
        let cache = ResolveCache::new();
        let takes_part = |node: &NodeId| {
            let outcome = resolve_node(self.fleet, &cache, *node);
            outcome.answer().is_some_and(|answer| !answer.is_parked() && answer.mode().value == Mode::Apply)
        };
        let members: Vec<NodeId> = self.fleet.nodes_of_cluster(self.cluster).filter(takes_part).collect();
        self.members = Some(members.clone());
        members
    }

    /// Whether a node has succeeded in a task of the task set that it is to have now; a task that is left out there is done.
    fn has_succeeded(&self, node: NodeId, task: &str) -> bool {
        let Some((_, task_set)) = self.table.digests(node.0) else { return false };
        let is_left_out =
            self.model.released.get(&node.0).is_some_and(|record| record.task_set.left_out.contains_key(task));
        let outcome = self.model.results.get(&node.0).and_then(|record| record.tasks.get(task));
        is_left_out || outcome.is_some_and(|one| one.result.task_set == task_set && is_success(one.result.outcome))
    }
}

impl Waiting {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nobody, waiting) | (waiting, Self::Nobody) => waiting,
            (Self::For(one), Self::For(same)) if one == same => self,
            (Self::For(_) | Self::ForMore, Self::For(_) | Self::ForMore) => Self::ForMore,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_alone_is_waited_for_does_not_wait_for_itself() {
        let (a, b) = (Waiting::For(NodeId(Uuid::from_u128(1))), Waiting::For(NodeId(Uuid::from_u128(2))));
        for (one, other, both) in [
            (Waiting::Nobody, Waiting::Nobody, Waiting::Nobody),
            (Waiting::Nobody, a, a),
            (a, a, a),
            (a, b, Waiting::ForMore),
            (Waiting::ForMore, Waiting::Nobody, Waiting::ForMore),
        ] {
            assert_eq!(one.and(other), both);
            assert_eq!(other.and(one), both);
        }
    }
}
