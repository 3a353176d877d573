//! The kind of nodes: references, limits and permitted changes.

use std::sync::Arc;

use stemma_core::fleet::{FleetChange, ended_unassignments};
use stemma_core::name::NodeName;
use stemma_core::object::{ClusterId, GroupId, Kind, NodeId, NodeSpec, Object};
use stemma_core::traits::MAX_TRAITS;
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::{MAX_LEVEL_BYTES, ObjectReference, Resource, bad_name_error};
use crate::cache::model::Model;

impl Resource for NodeSpec {
    size_limited!(MAX_LEVEL_BYTES);

    fn name_text(name: &Option<NodeName>) -> Option<String> {
        name.as_ref().map(ToString::to_string)
    }

    fn parse_name(text: &str) -> Result<Option<NodeName>, ApiError> {
        NodeName::new(text).map(Some).map_err(|error| bad_name_error(&error))
    }

    /// Returns the reference to the node's group, if it has one.
    fn references(&self) -> Vec<ObjectReference> {
        self.nodegroup.map(|id| ObjectReference::for_uuid(Kind::NodeGroup, id.0)).into_iter().collect()
    }

    /// Returns the nodes of the group `target`. The fleet has an index for them, so no scan of all nodes is needed.
    /// Nodes refer only to groups, so the result is empty for a target of another kind.
    fn referrers<'m>(model: &'m Model, target: &ObjectReference) -> Box<dyn Iterator<Item = &'m Arc<Object<Self>>> + 'm> {
        let group = (target.kind == Kind::NodeGroup).then(|| target.id.parse().ok()).flatten();
        let nodes = group.into_iter().flat_map(|id| model.fleet.nodes_in_group(GroupId(id)));
        Box::new(nodes.filter_map(|node| model.nodes.get(node.0)))
    }

    indexed_in!(nodes, Node);

    fn remove_change(object: &Object<Self>) -> Option<FleetChange> {
        Some(FleetChange::RemoveNode(NodeId(object.meta.uuid)))
    }

    /// Returns the cluster of the node's group, or `None` if the node is in no group.
    fn cluster(model: &Model, object: &Object<Self>) -> Option<ClusterId> {
        model.fleet.cluster_of_group(object.spec.nodegroup?)
    }

    /// Returns the nodes in a cluster from the fleet's index, or `None` if there are more than `limit`.
    fn objects_in_cluster(model: &Model, cluster: ClusterId, limit: usize) -> Option<Vec<Uuid>> {
        let nodes: Vec<Uuid> = model.fleet.nodes_in_cluster(cluster).take(limit.saturating_add(1)).map(|node| node.0).collect();
        (nodes.len() <= limit).then_some(nodes)
    }

    /// Fails if operators have set too many traits on the node, or if a tag is assigned and unassigned at the same
    /// time.
    fn check(&self, _model: &Model) -> Result<(), ApiError> {
        if self.traits.len() > MAX_TRAITS {
            let message = format!(
                "these would be {} traits from its operators; the maximum number of traits per node is {MAX_TRAITS}",
                self.traits.len()
            );
            return Err(ApiError::new(ErrorType::TraitInvalid, message).field("traits"));
        }
        let conflict = self.tags.assigned.members().find(|tag| self.tags.unassigned.get(*tag).is_some());
        conflict.map_or(Ok(()), |tag| {
            let message = format!("the tag {} can't be assigned and unassigned at once", quote(tag));
            Err(ApiError::new(ErrorType::FieldInvalid, message).field("tags"))
        })
    }

    /// Fails if the change removes the allocation that has chosen this node from the node's spec (`instance_uuid`),
    /// while that allocation exists.
    fn check_change(old: &Object<Self>, new: &Object<Self>, model: &Model) -> Result<(), ApiError> {
        let lost_allocation = model.node_allocation(old).filter(|allocation| new.spec.instance() != Some(allocation.meta.uuid));
        match lost_allocation {
            None => Ok(()),
            Some(allocation) => {
                let message = format!(
                    "the node is used by allocation {}, so its instance_uuid cannot be changed; nothing was changed",
                    allocation.display_name()
                );
                let advice = format!("stemma delete allocation {}", allocation.display_name());
                Err(ApiError::new(ErrorType::ObjectInUse, message).field("instance_uuid").detail(advice))
            }
        }
    }

    /// Returns the spec without the unassigned tags that no role of the node gives any longer after this write. Tags
    /// that no role gave before the write either remain unassigned.
    fn normalized(self, uuid: Uuid, old_model: &Model, new_model: &Model) -> Self {
        match ended_unassignments(&old_model.fleet, &new_model.fleet, NodeId(uuid), &self) {
            Some(tags) => Self { tags, ..self },
            None => self,
        }
    }
}
