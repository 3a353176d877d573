//! Which object of a write is meant where something is said of another that it reaches: whoever wrote it has that one before him.

use std::collections::BTreeSet;

use stemma_core::object::{ClusterId, GroupId, Kind, LevelId, NodeId};
use uuid::Uuid;

use super::Work;
use crate::registry::names::group_path;

impl Work<'_> {
    /// The key of the written object that stands nearest above a node, or is it.
    pub fn nearest_to_node(&self, node: NodeId) -> Option<String> {
        self.nearest(self.model.fleet.cluster_of_node(node), Some(node))
    }

    /// The key of the written object that stands deepest in a cluster, or above it.
    pub fn deepest_in(&self, cluster: ClusterId) -> Option<String> {
        self.nearest(Some(cluster), None)
    }

    fn nearest(&self, cluster: Option<ClusterId>, node: Option<NodeId>) -> Option<String> {
        let reaching = self.written().filter(|(kind, uuid)| self.reaches((*kind, *uuid), cluster, node));
        self.key(reaching.max_by_key(|(kind, _)| *kind)?)
    }

    /// The keys of the written objects.
    pub fn written_keys(&self) -> BTreeSet<String> {
        self.written().filter_map(|object| self.key(object)).collect()
    }

    fn key(&self, (kind, uuid): (Kind, Uuid)) -> Option<String> {
        let name = match kind {
            Kind::NodeGroup => group_path(&self.model, GroupId(uuid)),
            _ => self.draft.touched().iter().find(|one| one.uuid == uuid).map(|one| one.name.clone()),
        };
        Some(format!("{}/{}", kind.word(), name?))
    }

    /// Whether an object is the node or stands above it; without a node, whether it stands in the cluster or above it.
    fn reaches(&self, (kind, uuid): (Kind, Uuid), cluster: Option<ClusterId>, node: Option<NodeId>) -> bool {
        let model = &self.model;
        match (LevelId::of(kind, uuid), node) {
            (Some(LevelId::Node(id)), Some(node)) => id == node,
            (Some(LevelId::Group(id)), Some(node)) => {
                model.fleet.node(node).and_then(|node| node.spec.nodegroup) == Some(id)
            }
            (Some(LevelId::Node(_) | LevelId::Group(_) | LevelId::Cluster(_)), _) => {
                model.fleet.cluster_of(kind, uuid) == cluster
            }
            (Some(LevelId::Template(id)), _) => {
                let cluster = cluster.and_then(|cluster| model.clusters.get(cluster.0));
                cluster.and_then(|cluster| cluster.spec.cluster_template) == Some(id)
            }
            (None, _) => kind == Kind::InspectionRule || kind == Kind::Release && self.runs_in(uuid, cluster),
        }
    }

    /// Whether a release runs in a cluster.
    fn runs_in(&self, release: Uuid, cluster: Option<ClusterId>) -> bool {
        let model = &self.model;
        let Some(release) = model.releases.get(release) else { return false };
        let groups = cluster.into_iter().flat_map(|cluster| model.fleet.groups_of(cluster));
        let mut folds = groups.filter_map(|group| model.fleet.fold(group).ok());
        folds.any(|fold| fold.release.as_ref().is_some_and(|one| one.value.name == release.meta.name))
    }
}
