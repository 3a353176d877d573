//! Cluster templates.

use std::sync::Arc;

use stemma_core::fleet::Change;
use stemma_core::name::ObjectName;
use stemma_core::object::{ClusterTemplateSpec, Object, TemplateId};
use stemma_core::release::ReleaseError;
use stemma_wire::error::ApiError;

use super::shelf::Shelf;
use super::{Reference, Resource, bad_name, release_exists};
use crate::cache::model::Model;

impl Resource for ClusterTemplateSpec {
    fn name_text(name: &ObjectName) -> Option<String> {
        Some(name.to_string())
    }

    fn parse_name(text: &str) -> Result<ObjectName, ApiError> {
        ObjectName::new(text).map_err(|e| bad_name(&e))
    }

    fn references(&self) -> Vec<Reference> {
        self.release.iter().map(Reference::release).collect()
    }

    fn shelf(model: &Model) -> &Shelf<Self> {
        &model.templates
    }

    fn shelf_mut(model: &mut Model) -> &mut Shelf<Self> {
        &mut model.templates
    }

    fn put_changes(_model: &Model, object: &Arc<Object<Self>>) -> Result<Vec<Change>, Vec<ReleaseError>> {
        Ok(vec![Change::Template(Arc::clone(object))])
    }

    fn remove_change(object: &Object<Self>) -> Change {
        Change::RemoveTemplate(TemplateId(object.meta.uuid))
    }

    fn check(&self, model: &Model) -> Result<(), ApiError> {
        release_exists(model, "release", self.release.as_ref())
    }
}
