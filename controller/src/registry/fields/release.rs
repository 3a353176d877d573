//! The fields of a release.

use serde_json::{Map, Value};
use stemma_core::name::ReleaseRef;
use stemma_core::object::{Extra, FieldOwners, Inherited, ReleaseSpec};
use stemma_wire::error::ApiError;

use super::{Fields, Kept, invalid, put, typed, unknown};
use crate::cache::Model;

impl Fields for ReleaseSpec {
    const NAMES: &'static [&'static str] =
        &["labels", "annotations", "imports", "roles", "tags", "tasks", "matching", "extensions", "foreign"];
    const KEPT: &'static [Kept] = &[];
    const HAS_LEVELS: bool = false;

    fn name(text: &str) -> Result<ReleaseRef, ApiError> {
        ReleaseRef::new(text).map_err(|e| invalid("name", e))
    }

    fn inherited(&self) -> Option<&Inherited> {
        None
    }

    fn inherited_mut(&mut self) -> Option<&mut Inherited> {
        None
    }

    fn description_mut(&mut self) -> &mut String {
        &mut self.description
    }

    fn extra_mut(&mut self) -> &mut Extra {
        &mut self.foreign
    }

    fn owners(&self) -> FieldOwners {
        self.owners.clone()
    }

    fn set_owners(&mut self, owners: FieldOwners) {
        self.owners = owners;
    }

    fn set(&mut self, _model: &Model, name: &str, value: Option<Value>) -> Result<(), ApiError> {
        match name {
            "labels" => self.labels = typed(name, value)?,
            "annotations" => self.annotations = typed(name, value)?,
            "imports" => self.imports = typed(name, value)?,
            "roles" => self.roles = typed(name, value)?,
            "tags" => self.tags = typed(name, value)?,
            "tasks" => self.tasks = typed(name, value)?,
            "matching" => self.matching = typed(name, value)?,
            "extensions" => self.extensions = typed(name, value)?,
            "foreign" => self.foreign = typed(name, value)?,
            other => return Err(unknown::<Self>(other)),
        }
        Ok(())
    }

    fn get(&self, _model: &Model) -> Map<String, Value> {
        let mut fields = Map::new();
        put(&mut fields, "labels", &self.labels);
        put(&mut fields, "annotations", &self.annotations);
        put(&mut fields, "imports", &self.imports);
        put(&mut fields, "roles", &self.roles);
        put(&mut fields, "tags", &self.tags);
        put(&mut fields, "tasks", &self.tasks);
        put(&mut fields, "matching", &self.matching);
        put(&mut fields, "extensions", &self.extensions);
        fields
    }
}
