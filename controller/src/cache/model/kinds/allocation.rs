//! Allocations: no part of the fleet; what they decide stands on their nodes.

use std::sync::Arc;

use stemma_core::access::Place;
use stemma_core::allocate::allocate;
use stemma_core::fleet::Change;
use stemma_core::name::ObjectName;
use stemma_core::object::{Allocation, AllocationSpec, Kind, Node, Object};
use stemma_core::release::ReleaseError;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::{KIB, Reference, Resource, bad_name};
use crate::cache::model::Model;

impl Resource for AllocationSpec {
    bounded!(256 * KIB);

    fn name_text(name: &Option<ObjectName>) -> Option<String> {
        name.as_ref().map(ToString::to_string)
    }

    fn parse_name(text: &str) -> Result<Option<ObjectName>, ApiError> {
        ObjectName::new(text).map(Some).map_err(|e| bad_name(&e))
    }

    fn check_new_name(name: &Option<ObjectName>) -> Result<(), ApiError> {
        name.as_ref().map_or(Ok(()), |name| name.check_new(&[])).map_err(|e| bad_name(&e))
    }

    fn references(&self) -> Vec<Reference> {
        self.node().map(|id| Reference::uuid(Kind::Node, id.0)).into_iter().collect()
    }

    kept_in!(allocations);

    fn put_changes(_model: &Model, _object: &Arc<Object<Self>>) -> Result<Vec<Change>, Vec<ReleaseError>> {
        Ok(Vec::new())
    }

    fn remove_change(_object: &Object<Self>) -> Option<Change> {
        None
    }

    /// The cluster of its node, or that of who asked.
    fn place(model: &Model, object: &Object<Self>) -> Place {
        let cluster = object.spec.node().and_then(|node| model.fleet.cluster_of_node(node));
        cluster.or(object.spec.within).map_or(Place::Nowhere, Place::Cluster)
    }

    fn check(&self, _model: &Model) -> Result<(), ApiError> {
        if self.resource_class.is_empty() || self.resource_class.chars().count() > 80 {
            let message = "resource_class is needed: a text of 1 to 80 characters, as the nodes have it";
            return Err(ApiError::new(ErrorType::FieldMissing, message).field("resource_class"));
        }
        Ok(())
    }

    /// What was asked for and what was decided stay as they were; a name and notes may change (as Ironic).
    fn check_change(before: &Object<Self>, next: &Object<Self>, _model: &Model) -> Result<(), ApiError> {
        let own = &before.spec;
        let same = Self { extra: own.extra.clone(), owners: own.owners.clone(), ..next.spec.clone() };
        if same == *own {
            return Ok(());
        }
        let message = "an allocation is decided once: its name and `extra` alone can be changed; nothing was changed";
        Err(ApiError::new(ErrorType::FieldInvalid, message).detail("delete it, and make another"))
    }

    /// A new allocation is decided on the fleet as it is now.
    fn settled(self, _uuid: Uuid, _before: &Model, after: &Model) -> Self {
        match self.decision {
            Some(_) => self,
            None => {
                let decision = Some(allocate(&after.fleet, &self, after.within));
                Self { decision, within: after.within, ..self }
            }
        }
    }
}

impl Model {
    /// The allocation that has a node.
    pub fn allocation_of(&self, node: &Node) -> Option<&Arc<Allocation>> {
        self.allocations.get(node.spec.instance()?).filter(|one| one.spec.node() == Some(node.id()))
    }
}
