//! Which object of a write is meant where something is said of another that it reaches: whoever wrote it has that one before him.

use stemma_core::object::{ClusterId, GroupId, Kind, NodeId, TemplateId};
use uuid::Uuid;

use super::Work;
use crate::registry::names::group_path;

impl Work<'_> {
    /// The key of the written object that stands nearest above a node, or is it.
    pub fn nearest_to_node(&self, node: NodeId) -> Option<String> {
        self.nearest(self.model.cluster_of(node.0), Some(node))
    }

    /// The key of the written object that stands deepest in a cluster, or above it.
    pub fn deepest_in(&self, cluster: ClusterId) -> Option<String> {
        self.nearest(Some(cluster), None)
    }

    fn nearest(&self, cluster: Option<ClusterId>, node: Option<NodeId>) -> Option<String> {
        let reaching = self.written().filter(|(kind, uuid)| self.reaches((*kind, *uuid), cluster, node));
        let (kind, uuid) = reaching.max_by_key(|(kind, _)| *kind)?;
        let name = match kind {
            Kind::NodeGroup => group_path(&self.model, GroupId(uuid)),
            _ => self.draft.touched().iter().find(|one| one.uuid == uuid).map(|one| one.name.clone()),
        };
        Some(format!("{}/{}", kind.word(), name?))
    }

    /// Whether an object is the node or stands above it; without a node, whether it stands in the cluster or above it.
    fn reaches(&self, (kind, uuid): (Kind, Uuid), cluster: Option<ClusterId>, node: Option<NodeId>) -> bool {
        let model = &self.model;
        let group_of = |node: NodeId| model.nodes.get(node.0)?.spec.nodegroup;
        match (kind, node) {
            (Kind::Node, Some(node)) => uuid == node.0,
            (Kind::Node, None) => model.cluster_of(uuid) == cluster,
            (Kind::NodeGroup, Some(node)) => group_of(node) == Some(GroupId(uuid)),
            (Kind::NodeGroup, None) => model.groups.get(uuid).map(|group| group.spec.cluster) == cluster,
            (Kind::Cluster, _) => cluster == Some(ClusterId(uuid)),
            (Kind::ClusterTemplate, _) => {
                let cluster = cluster.and_then(|cluster| model.clusters.get(cluster.0));
                cluster.and_then(|cluster| cluster.spec.cluster_template) == Some(TemplateId(uuid))
            }
            (Kind::Release, _) => {
                let Some(release) = model.releases.get(uuid) else { return false };
                let groups = cluster.into_iter().flat_map(|cluster| model.fleet.groups_of(cluster));
                let mut folds = groups.filter_map(|group| model.fleet.fold(group).ok());
                folds.any(|fold| fold.release.as_ref().is_some_and(|one| one.value.name == release.meta.name))
            }
            _ => false,
        }
    }
}
