//! Allocations. They are not part of the fleet that is resolved: an allocation only chooses a node, and the chosen node
//! names the allocation.

use std::sync::Arc;

use stemma_core::access::AccessScope;
use stemma_core::allocate::allocate;
use stemma_core::fleet::FleetChange;
use stemma_core::name::ObjectName;
use stemma_core::object::{Allocation, AllocationSpec, Kind, Node, Object};
use stemma_core::release::ReleaseError;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::{KIB, ObjectReference, Resource, bad_name_error};
use crate::cache::model::Model;

impl Resource for AllocationSpec {
    size_limited!(256 * KIB);

    fn name_text(name: &Option<ObjectName>) -> Option<String> {
        name.as_ref().map(ToString::to_string)
    }

    fn parse_name(text: &str) -> Result<Option<ObjectName>, ApiError> {
        ObjectName::new(text).map(Some).map_err(|e| bad_name_error(&e))
    }

    fn check_new_name(name: &Option<ObjectName>) -> Result<(), ApiError> {
        name.as_ref().map_or(Ok(()), |name| name.check_new(&[])).map_err(|e| bad_name_error(&e))
    }

    fn references(&self) -> Vec<ObjectReference> {
        self.chosen_node().map(|id| ObjectReference::for_uuid(Kind::Node, id.0)).into_iter().collect()
    }

    indexed_in!(allocations);

    fn put_changes(_model: &Model, _object: &Arc<Object<Self>>) -> Result<Vec<FleetChange>, Vec<ReleaseError>> {
        Ok(Vec::new())
    }

    fn remove_change(_object: &Object<Self>) -> Option<FleetChange> {
        None
    }

    /// Returns the cluster of the allocated node, or else the cluster of the caller that requested the allocation.
    fn access_scope(model: &Model, object: &Object<Self>) -> AccessScope {
        let cluster = object.spec.chosen_node().and_then(|node| model.fleet.cluster_of_node(node));
        cluster.or(object.spec.within).map_or(AccessScope::Unplaced, AccessScope::Cluster)
    }

    fn check(&self, _model: &Model) -> Result<(), ApiError> {
        if self.resource_class.is_empty() || self.resource_class.chars().count() > 80 {
            let message = "resource_class is required: 1 to 80 characters, as set on the nodes";
            return Err(ApiError::new(ErrorType::FieldMissing, message).field("resource_class"));
        }
        Ok(())
    }

    /// The request and the decision cannot be changed. The name and notes can, as in Ironic.
    fn check_change(before: &Object<Self>, next: &Object<Self>, _model: &Model) -> Result<(), ApiError> {
        let spec = &before.spec;
        let same = Self { extra: spec.extra.clone(), owners: spec.owners.clone(), ..next.spec.clone() };
        if same == *spec {
            return Ok(());
        }
        let message = "an allocation is decided once, and only its name and `extra` can be changed; nothing was changed";
        Err(ApiError::new(ErrorType::FieldInvalid, message).detail("delete it and create another"))
    }

    /// Decides a new allocation on the present fleet.
    fn normalized(self, _uuid: Uuid, _before: &Model, after: &Model) -> Self {
        match self.decision {
            Some(_) => self,
            None => {
                let decision = Some(allocate(&after.fleet, &self, after.visible_cluster));
                Self { decision, within: after.visible_cluster, ..self }
            }
        }
    }
}

impl Model {
    /// Returns the allocation that a node was chosen for, or `None` if the node is free.
    pub fn node_allocation(&self, node: &Node) -> Option<&Arc<Allocation>> {
        self.allocations.get(node.spec.instance()?).filter(|allocation| allocation.spec.chosen_node() == Some(node.id()))
    }
}
