//! Checks that the catalogue (the definitions of allowed keys and values) permits the values and requirements that a
//! write changes. Stores the resource types that the write names.
//!
//! Only changes are checked, against the catalogue after the write. Values that the write does not change are not
//! checked.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_core::catalog::{KeyKind, KeyUsage, UsageField, UsesKeys};
use stemma_core::object::{GroupId, Kind, LevelId, Namespace};
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::PendingWrite;
use crate::cache::Model;
use crate::cache::model::{ObjectIndex, Resource};
use crate::records::{codec, key};
use crate::registry::names::group_path;
use crate::store::Op;

impl PendingWrite<'_> {
    /// Checks the keys and requirements that the write changes against the catalogue, which defines the allowed keys
    /// and values.
    ///
    /// # Errors
    /// Fails with the first value or requirement that the catalogue does not permit.
    pub(super) fn check_catalog(&self) -> Result<(), ApiError> {
        for object in self.draft.audited() {
            let (kind, uuid) = (object.kind, object.uuid);
            let (usage_field, violation) = match self.model.fleet.catalog().check_changed_keys(
                key_usage(self.context.full_model, kind, uuid).unwrap_or_default(),
                key_usage(&self.model, kind, uuid).unwrap_or_default(),
            ) {
                Ok(()) => continue,
                Err(violation) => violation,
            };
            let map_field = |key_kind: KeyKind| format!("{}.{}", key_kind.body_field(), violation.key);
            let (error_type, field) = match usage_field {
                UsageField::Requirements => (ErrorType::RequirementInvalid, "requirements".to_owned()),
                UsageField::Map(key_kind @ KeyKind::Label) => (ErrorType::LabelInvalid, map_field(key_kind)),
                UsageField::Map(key_kind) => (ErrorType::FieldInvalid, map_field(key_kind)),
            };
            let advice = format!("stemma explain {} {} shows the allowed values", violation.kind.description(), violation.key);
            // A group is shown as `CLUSTER/GROUP`, and any other object by its name.
            let path = group_path(&self.model, GroupId(uuid)).unwrap_or_else(|| object.name.clone());
            let refusal = ApiError::new(error_type, format!("{violation}; nothing was changed"));
            return Err(refusal.field(field).detail(advice).extra("object", format!("{}/{path}", kind.word()).into()));
        }
        Ok(())
    }

    /// Stores the resource types that the written namespaces name and that are not stored yet.
    pub(super) fn store_resource_types(&mut self) {
        let written = self.written_objects().filter(|(kind, _)| *kind == Kind::Namespace);
        let namespaces = written.filter_map(|(_, uuid)| self.model.namespaces.get(uuid).cloned());
        let type_names: BTreeSet<String> = namespaces.flat_map(|namespace| associated_types(&namespace)).collect();
        for name in type_names {
            if self.model.resource_types.contains_key(&name) {
                continue;
            }
            let value = codec::encode(&self.context.now);
            self.model.resource_types.insert(name.clone(), Arc::new(self.context.now));
            self.draft.add_op(Op::Put { key: key::resource_type(&name).into(), value });
        }
    }
}

/// Returns the names of the resource types that a namespace is associated with.
fn associated_types(namespace: &Namespace) -> Vec<String> {
    namespace.spec.resource_type_associations.iter().map(|association| association.name.clone()).collect()
}

/// Returns the keys that an object uses and that the catalogue may restrict, such as its labels and the keys in its
/// requirements. Returns `None` if the object does not exist or its kind has no such keys.
fn key_usage(model: &Model, kind: Kind, uuid: Uuid) -> Option<KeyUsage<'_>> {
    match LevelId::new(kind, uuid) {
        Some(LevelId::Template(_)) => usage_in(&model.templates, uuid),
        Some(LevelId::Cluster(_)) => usage_in(&model.clusters, uuid),
        Some(LevelId::Group(_)) => usage_in(&model.groups, uuid),
        Some(LevelId::Node(_)) => usage_in(&model.nodes, uuid),
        None if kind == Kind::Allocation => usage_in(&model.allocations, uuid),
        None => None,
    }
}

/// Returns the keys that an object of an index uses and that the catalogue may restrict.
fn usage_in<S: Resource + UsesKeys>(index: &ObjectIndex<S>, uuid: Uuid) -> Option<KeyUsage<'_>> {
    index.get(uuid).map(|object| object.spec.key_usage())
}
