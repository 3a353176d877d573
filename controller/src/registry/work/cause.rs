//! Finds the object in a write that caused a finding about another object. The author can then see the finding at a
//! line of their own manifest.

use std::collections::BTreeSet;

use stemma_core::object::{ClusterId, GroupId, Kind, LevelId, NodeId};
use uuid::Uuid;

use super::PendingWrite;
use crate::registry::names::group_path;

impl PendingWrite<'_> {
    /// Returns the key (`KIND/NAME`) of the written object that is the node itself or, if the node was not written, the
    /// nearest written level above the node. A written inspection rule precedes all of them. A release that the cluster
    /// uses is the last choice.
    pub fn cause_for_node(&self, node: NodeId) -> Option<String> {
        self.find_cause(self.model.fleet.cluster_of_node(node), Some(node))
    }

    /// Returns the key (`KIND/NAME`) of the written object that is the lowest level within a cluster or, if there is
    /// none, the nearest level above the cluster. Inspection rules and releases count as in [`Self::cause_for_node`].
    pub fn cause_for_cluster(&self, cluster: ClusterId) -> Option<String> {
        self.find_cause(Some(cluster), None)
    }

    /// Returns the key of the possible cause whose kind is last in the order of kinds: from the release over the
    /// template down to the node, and then the inspection rule.
    fn find_cause(&self, cluster: Option<ClusterId>, node: Option<NodeId>) -> Option<String> {
        let candidates = self.written_objects().filter(|(kind, uuid)| self.is_possible_cause((*kind, *uuid), cluster, node));
        self.written_key(candidates.max_by_key(|(kind, _)| *kind)?)
    }

    /// Returns the keys (`KIND/NAME`) of the written objects.
    pub fn written_keys(&self) -> BTreeSet<String> {
        self.written_objects().filter_map(|object| self.written_key(object)).collect()
    }

    /// Returns the key (`KIND/NAME`, or `KIND/UUID` without a name) of a written object, or `None` for a deleted group.
    fn written_key(&self, (kind, uuid): (Kind, Uuid)) -> Option<String> {
        let name = match kind {
            Kind::NodeGroup => group_path(&self.model, GroupId(uuid)),
            _ => self.draft.audited().iter().find(|object| object.uuid == uuid).map(|object| object.name.clone()),
        };
        Some(format!("{}/{}", kind.word(), name?))
    }

    /// Returns whether an object is the node or above the node or, if `node` is `None`, the cluster, its template, or
    /// one of its groups or nodes. Inspection rules and releases of the cluster's groups count too.
    fn is_possible_cause(&self, (kind, uuid): (Kind, Uuid), cluster: Option<ClusterId>, node: Option<NodeId>) -> bool {
        let model = &self.model;
        match (LevelId::new(kind, uuid), node) {
            (Some(LevelId::Node(id)), Some(node)) => id == node,
            (Some(LevelId::Group(id)), Some(node)) => model.fleet.node(node).and_then(|node| node.spec.nodegroup) == Some(id),
            (Some(LevelId::Node(_) | LevelId::Group(_) | LevelId::Cluster(_)), _) => {
                model.fleet.cluster_of_object(kind, uuid) == cluster
            }
            (Some(LevelId::Template(id)), _) => {
                let cluster = cluster.and_then(|cluster| model.clusters.get(cluster.0));
                cluster.and_then(|cluster| cluster.spec.cluster_template) == Some(id)
            }
            (None, _) => kind == Kind::InspectionRule || kind == Kind::Release && self.is_release_used(uuid, cluster),
        }
    }

    /// Returns whether a group of the cluster uses a release.
    fn is_release_used(&self, release: Uuid, cluster: Option<ClusterId>) -> bool {
        let model = &self.model;
        let Some(release) = model.releases.get(release) else { return false };
        let groups = cluster.into_iter().flat_map(|cluster| model.fleet.groups_in_cluster(cluster));
        let mut resolved_groups = groups.filter_map(|group| model.fleet.resolved_group(group).ok());
        resolved_groups.any(|resolved| resolved.release.as_ref().is_some_and(|entry| entry.value.name == release.meta.name))
    }
}
