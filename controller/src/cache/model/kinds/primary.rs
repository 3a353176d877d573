//! Stored choices of primaries, each named by its tag within its cluster.

use std::sync::Arc;

use stemma_core::fleet::Change;
use stemma_core::name::TagName;
use stemma_core::object::{ClusterId, Object, PrimarySpec};
use stemma_core::release::ReleaseError;
use stemma_wire::error::ApiError;
use uuid::Uuid;

use super::shelf::Shelf;
use super::{Resource, bad_name};
use crate::cache::model::Model;

/// It refers to nothing: a primary ends with its cluster or its node, and holds neither.
impl Resource for PrimarySpec {
    fn name_text(name: &TagName) -> Option<String> {
        Some(name.to_string())
    }

    fn parse_name(text: &str) -> Result<TagName, ApiError> {
        TagName::new(text).map_err(|e| bad_name(&e))
    }

    fn scope(&self) -> Option<Uuid> {
        Some(self.cluster.0)
    }

    fn shelf(model: &Model) -> &Shelf<Self> {
        &model.primaries
    }

    fn shelf_mut(model: &mut Model) -> &mut Shelf<Self> {
        &mut model.primaries
    }

    fn put_changes(_model: &Model, object: &Arc<Object<Self>>) -> Result<Vec<Change>, Vec<ReleaseError>> {
        Ok(vec![Change::Primary(Arc::clone(object))])
    }

    fn remove_change(object: &Object<Self>) -> Change {
        Change::RemovePrimary(object.spec.cluster, object.meta.name.clone())
    }

    fn cluster(_model: &Model, object: &Object<Self>) -> Option<ClusterId> {
        Some(object.spec.cluster)
    }
}
