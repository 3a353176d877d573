//! What a write has to do with the catalogue: values and requirements that it writes are those that the catalogue allows, and resource
//! types that it names are remembered.
//!
//! Only what a write changes is checked, under the catalogue as it is after the write. What stood there before is left alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_core::catalog::{Bound, SaidIn, Sayings, Says};
use stemma_core::object::{GroupId, Kind, LevelId, Namespace};
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::Work;
use crate::cache::Model;
use crate::cache::model::{Resource, Shelf};
use crate::records::{codec, key};
use crate::registry::names::group_path;
use crate::store::Op;

impl Work<'_> {
    /// Checks what the objects of the write say that they did not say before.
    ///
    /// # Errors
    /// The first value or requirement that the catalogue does not allow.
    pub(super) fn check_catalog(&self) -> Result<(), ApiError> {
        for touched in self.draft.touched() {
            let (kind, uuid) = (touched.kind, touched.uuid);
            let (place, wrong) = match self.model.fleet.catalog().check_said(
                sayings(self.context.whole, kind, uuid).unwrap_or_default(),
                sayings(&self.model, kind, uuid).unwrap_or_default(),
            ) {
                Ok(()) => continue,
                Err(wrong) => wrong,
            };
            let in_map = |bound: Bound| format!("{}.{}", bound.field(), wrong.key);
            let (error_type, field) = match place {
                SaidIn::Requirements => (ErrorType::RequirementInvalid, "requirements".to_owned()),
                SaidIn::Map(bound @ Bound::Label) => (ErrorType::LabelInvalid, in_map(bound)),
                SaidIn::Map(bound) => (ErrorType::FieldInvalid, in_map(bound)),
            };
            let advice = format!("stemma explain {} {} shows what may stand there", wrong.bound.word(), wrong.key);
            let path = group_path(&self.model, GroupId(uuid)).unwrap_or_else(|| touched.name.clone());
            let refusal = ApiError::new(error_type, format!("{wrong}; nothing was changed"));
            return Err(refusal.field(field).detail(advice).extra("object", format!("{}/{path}", kind.word()).into()));
        }
        Ok(())
    }

    /// Stores the resource types that are named for the first time.
    pub(super) fn note_resource_types(&mut self) {
        let written = self.written().filter(|(kind, _)| *kind == Kind::Namespace);
        let namespaces = written.filter_map(|(_, uuid)| self.model.namespaces.get(uuid).cloned());
        let named: BTreeSet<String> = namespaces.flat_map(|namespace| associated(&namespace)).collect();
        for name in named {
            if self.model.resource_types.contains_key(&name) {
                continue;
            }
            let value = codec::encode(&self.context.now);
            self.model.resource_types.insert(name.clone(), Arc::new(self.context.now));
            self.draft.entry(Op::Put { key: key::resource_type(&name).into(), value });
        }
    }
}

fn associated(namespace: &Namespace) -> Vec<String> {
    namespace.spec.resource_type_associations.iter().map(|one| one.name.clone()).collect()
}

/// What an object says of keys; nothing where it is not there, or is of a kind that says nothing.
fn sayings(model: &Model, kind: Kind, uuid: Uuid) -> Option<Sayings<'_>> {
    match LevelId::of(kind, uuid) {
        Some(LevelId::Template(_)) => of(&model.templates, uuid),
        Some(LevelId::Cluster(_)) => of(&model.clusters, uuid),
        Some(LevelId::Group(_)) => of(&model.groups, uuid),
        Some(LevelId::Node(_)) => of(&model.nodes, uuid),
        None if kind == Kind::Allocation => of(&model.allocations, uuid),
        None => None,
    }
}

fn of<S: Resource + Says>(shelf: &Shelf<S>, uuid: Uuid) -> Option<Sayings<'_>> {
    shelf.get(uuid).map(|object| object.spec.sayings())
}
