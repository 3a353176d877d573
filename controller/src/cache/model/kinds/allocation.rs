//! Allocations. An allocation does not affect the labels or tasks of a node. It only chooses a node, and the chosen
//! node's spec names the allocation.

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
        ObjectName::new(text).map(Some).map_err(|error| bad_name_error(&error))
    }

    fn check_new_name(name: &Option<ObjectName>) -> Result<(), ApiError> {
        name.as_ref().map_or(Ok(()), |name| name.check_new(&[])).map_err(|error| bad_name_error(&error))
    }

    /// Returns the reference to the chosen node, if a node was chosen.
    fn references(&self) -> Vec<ObjectReference> {
        self.chosen_node().map(|id| ObjectReference::for_uuid(Kind::Node, id.0)).into_iter().collect()
    }

    indexed_in!(allocations);

    /// Returns no change, because no node is resolved from allocations.
    fn put_changes(_model: &Model, _object: &Arc<Object<Self>>) -> Result<Vec<FleetChange>, Vec<ReleaseError>> {
        Ok(Vec::new())
    }

    /// Returns no change, because no node is resolved from allocations.
    fn remove_change(_object: &Object<Self>) -> Option<FleetChange> {
        None
    }

    /// Returns the scope of the callers that can see the allocation: the cluster of the chosen node. If no node was
    /// chosen, or the node is in no cluster, it is the cluster to which the requester was bound, if any.
    fn access_scope(model: &Model, object: &Object<Self>) -> AccessScope {
        let cluster = object.spec.chosen_node().and_then(|node| model.fleet.cluster_of_node(node));
        cluster.or(object.spec.within).map_or(AccessScope::Unplaced, AccessScope::Cluster)
    }

    /// Fails if the resource class is missing or too long.
    fn check(&self, _model: &Model) -> Result<(), ApiError> {
        if self.resource_class.is_empty() || self.resource_class.chars().count() > 80 {
            let message = "resource_class is required: 1 to 80 characters, as set on the nodes";
            return Err(ApiError::new(ErrorType::FieldMissing, message).field("resource_class"));
        }
        Ok(())
    }

    /// Fails if anything but the name, the `extra` notes or the owners of fields has changed. As in Ironic, an
    /// allocation is decided only once.
    fn check_change(old_object: &Object<Self>, new_object: &Object<Self>, _model: &Model) -> Result<(), ApiError> {
        let spec = &old_object.spec;
        // The name is not a part of the spec, so it is not compared.
        let expected_spec = Self { extra: spec.extra.clone(), owners: spec.owners.clone(), ..new_object.spec.clone() };
        if expected_spec == *spec {
            return Ok(());
        }
        let message = "an allocation is decided once, and only its name and `extra` can be changed; nothing was changed";
        Err(ApiError::new(ErrorType::FieldInvalid, message).detail("delete it and create another"))
    }

    /// Chooses the node of a new allocation, in the fleet with the changes that the write has made so far, and stores
    /// the decision (or why no node qualifies) in the spec. A decided allocation is returned unchanged. If the caller
    /// is bound to a cluster (`visible_cluster`), only the nodes of that cluster are considered.
    fn normalized(self, _uuid: Uuid, _old_model: &Model, new_model: &Model) -> Self {
        match self.decision {
            Some(_) => self,
            None => {
                let decision = Some(allocate(&new_model.fleet, &self, new_model.visible_cluster));
                Self { decision, within: new_model.visible_cluster, ..self }
            }
        }
    }
}

impl Model {
    /// Returns the visible allocation for which this node was chosen. A node without one need not be free, because
    /// something other than an allocation can set its `instance_uuid`.
    pub fn node_allocation(&self, node: &Node) -> Option<&Arc<Allocation>> {
        self.allocations.get(node.spec.instance()?).filter(|allocation| allocation.spec.chosen_node() == Some(node.id()))
    }
}
