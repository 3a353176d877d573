//! Nodes.

use std::sync::Arc;

use stemma_core::fleet::{Change, ended_unassignments};
use stemma_core::name::NodeName;
use stemma_core::object::{ClusterId, GroupId, Kind, NodeId, NodeSpec, Object};
use stemma_core::traits::MAX_TRAITS;
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::{LEVEL, Reference, Resource, bad_name};
use crate::cache::model::Model;

impl Resource for NodeSpec {
    bounded!(LEVEL);

    fn name_text(name: &Option<NodeName>) -> Option<String> {
        name.as_ref().map(ToString::to_string)
    }

    fn parse_name(text: &str) -> Result<Option<NodeName>, ApiError> {
        NodeName::new(text).map(Some).map_err(|e| bad_name(&e))
    }

    fn references(&self) -> Vec<Reference> {
        self.nodegroup.map(|id| Reference::uuid(Kind::NodeGroup, id.0)).into_iter().collect()
    }

    /// Those of a group, which the fleet knows without a look at all nodes.
    fn users<'m>(model: &'m Model, to: &Reference) -> Box<dyn Iterator<Item = &'m Arc<Object<Self>>> + 'm> {
        let group = (to.kind == Kind::NodeGroup).then(|| to.id.parse().ok()).flatten();
        let nodes = group.into_iter().flat_map(|id| model.fleet.nodes_of(GroupId(id)));
        Box::new(nodes.filter_map(|node| model.nodes.get(node.0)))
    }

    kept_in!(nodes, Node);

    fn remove_change(object: &Object<Self>) -> Option<Change> {
        Some(Change::RemoveNode(NodeId(object.meta.uuid)))
    }

    fn cluster(model: &Model, object: &Object<Self>) -> Option<ClusterId> {
        model.fleet.cluster_of_group(object.spec.nodegroup?)
    }

    fn standing_in(model: &Model, cluster: ClusterId, most: usize) -> Option<Vec<Uuid>> {
        let some: Vec<Uuid> =
            model.fleet.nodes_of_cluster(cluster).take(most.saturating_add(1)).map(|node| node.0).collect();
        (some.len() <= most).then_some(some)
    }

    fn check(&self, _model: &Model) -> Result<(), ApiError> {
        if self.traits.len() > MAX_TRAITS {
            let message = format!(
                "these would be {} traits from its operators; the maximum number of traits per node is {MAX_TRAITS}",
                self.traits.len()
            );
            return Err(ApiError::new(ErrorType::TraitInvalid, message).field("traits"));
        }
        let both = self.tags.assigned.members().find(|tag| self.tags.unassigned.get(*tag).is_some());
        both.map_or(Ok(()), |tag| {
            let message = format!("the tag {} can't be assigned and unassigned at once", quote(tag));
            Err(ApiError::new(ErrorType::FieldInvalid, message).field("tags"))
        })
    }

    /// Its instance is an allocation for as long as that is there.
    fn check_change(before: &Object<Self>, next: &Object<Self>, model: &Model) -> Result<(), ApiError> {
        let holder = model.allocation_of(before).filter(|one| next.spec.instance() != Some(one.meta.uuid));
        match holder {
            None => Ok(()),
            Some(allocation) => {
                let message = format!(
                    "the node is used by allocation {}: it keeps its instance_uuid; nothing was changed",
                    allocation.display_name()
                );
                let advice = format!("stemma delete allocation {}", allocation.display_name());
                Err(ApiError::new(ErrorType::ObjectInUse, message).field("instance_uuid").detail(advice))
            }
        }
    }

    fn settled(self, uuid: Uuid, before: &Model, after: &Model) -> Self {
        match ended_unassignments(&before.fleet, &after.fleet, NodeId(uuid), &self) {
            Some(tags) => Self { tags, ..self },
            None => self,
        }
    }
}
