//! Node groups, each named within its cluster.

use std::sync::Arc;

use stemma_core::fleet::Change;
use stemma_core::name::ObjectName;
use stemma_core::object::{ClusterId, GroupId, Kind, NodeGroupSpec, Object};
use stemma_core::release::ReleaseError;
use stemma_wire::error::ApiError;
use uuid::Uuid;

use super::shelf::Shelf;
use super::{Reference, Resource, bad_name, release_exists};
use crate::cache::model::Model;

impl Resource for NodeGroupSpec {
    fn name_text(name: &ObjectName) -> Option<String> {
        Some(name.to_string())
    }

    fn parse_name(text: &str) -> Result<ObjectName, ApiError> {
        ObjectName::new(text).map_err(|e| bad_name(&e))
    }

    fn scope(&self) -> Option<Uuid> {
        Some(self.cluster.0)
    }

    fn references(&self) -> Vec<Reference> {
        let cluster = Reference::uuid(Kind::Cluster, self.cluster.0);
        std::iter::once(cluster).chain(self.release.as_ref().map(Reference::release)).collect()
    }

    fn shelf(model: &Model) -> &Shelf<Self> {
        &model.groups
    }

    fn shelf_mut(model: &mut Model) -> &mut Shelf<Self> {
        &mut model.groups
    }

    fn put_changes(_model: &Model, object: &Arc<Object<Self>>) -> Result<Vec<Change>, Vec<ReleaseError>> {
        Ok(vec![Change::NodeGroup(Arc::clone(object))])
    }

    fn remove_change(object: &Object<Self>) -> Change {
        Change::RemoveNodeGroup(GroupId(object.meta.uuid))
    }

    fn cluster(_model: &Model, object: &Object<Self>) -> Option<ClusterId> {
        Some(object.spec.cluster)
    }

    fn check(&self, model: &Model) -> Result<(), ApiError> {
        release_exists(model, "release", self.release.as_ref())
    }
}
