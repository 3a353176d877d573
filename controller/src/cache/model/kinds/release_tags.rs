//! User-defined tags beside a release, for all its versions.

use std::sync::Arc;

use stemma_core::fleet::Change;
use stemma_core::name::Name;
use stemma_core::object::{Object, ReleaseTagsSpec};
use stemma_core::release::ReleaseError;
use stemma_wire::error::ApiError;

use super::shelf::Shelf;
use super::{Resource, bad_name};
use crate::cache::model::Model;

impl Resource for ReleaseTagsSpec {
    fn name_text(name: &Name) -> Option<String> {
        Some(name.to_string())
    }

    fn parse_name(text: &str) -> Result<Name, ApiError> {
        Name::new(text).map_err(|e| bad_name(&e))
    }

    fn shelf(model: &Model) -> &Shelf<Self> {
        &model.release_tags
    }

    fn shelf_mut(model: &mut Model) -> &mut Shelf<Self> {
        &mut model.release_tags
    }

    fn put_changes(_model: &Model, object: &Arc<Object<Self>>) -> Result<Vec<Change>, Vec<ReleaseError>> {
        Ok(vec![Change::ReleaseTags(Arc::clone(object))])
    }

    fn remove_change(object: &Object<Self>) -> Change {
        Change::RemoveReleaseTags(object.meta.name.clone())
    }
}
