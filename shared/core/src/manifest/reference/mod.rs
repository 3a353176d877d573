//! The manifest reference, for people and for editors. It is generated from the tables with which manifests are parsed.

mod page;
mod schema;

pub use page::markdown;
pub use schema::{schema, type_schema};

use super::fields::SpecFields;
use crate::field::FieldDef;
use crate::object::{
    AllocationSpec, ClusterSpec, ClusterTemplateSpec, InspectionRuleSpec, NamespaceSpec, NodeGroupSpec, NodeSpec, ReleaseSpec,
    Spec,
};
use crate::unimplemented;

/// A kind of object with the fields of its manifest, or of its body in the API if it has no manifest.
#[derive(Clone, Debug)]
pub struct KindFields {
    /// The name of the kind, such as `NodeGroup`.
    pub kind: &'static str,
    /// The fields that identify an object, then the other fields except the passthrough fields.
    pub fields: Vec<FieldDef>,
    /// The names of the passthrough fields: fields of Ironic or Magnum that are accepted, stored and shown.
    pub passthrough: Vec<&'static str>,
}

/// Returns every kind of object that a manifest can describe, with its fields.
pub fn kinds() -> [KindFields; 7] {
    [
        kind_fields::<ReleaseSpec>(),
        kind_fields::<ClusterTemplateSpec>(),
        kind_fields::<ClusterSpec>(),
        kind_fields::<NodeGroupSpec>(),
        kind_fields::<NodeSpec>(),
        kind_fields::<NamespaceSpec>(),
        kind_fields::<InspectionRuleSpec>(),
    ]
}

/// Returns the kinds of object that have a table of fields and a body in the API, but no manifest: only allocations.
pub fn api_only_kinds() -> [KindFields; 1] {
    [kind_fields::<AllocationSpec>()]
}

/// Returns the help text of a field. `path` is its path within its kind, such as `tasks.on_unassign`. If the field has
/// no effect yet, a sentence about that follows.
pub fn field_meaning(path: &str, field: &FieldDef) -> String {
    let no_effect_note = unimplemented::field_sentence(path).map_or(String::new(), |sentence| format!(" {sentence}"));
    format!("{}{no_effect_note}", field.help.meaning)
}

/// Returns the name of a kind and all of its fields, from the tables with which its manifests are read.
fn kind_fields<S: SpecFields + Spec>() -> KindFields {
    let fields = S::FIELDS.iter().map(|field| FieldDef::new(field.name, field.kind, field.help));
    let keyed = S::KEYED_FIELDS.iter().copied().flatten().copied();
    KindFields {
        kind: S::KIND.name(),
        fields: S::IDENTITY_FIELDS.iter().copied().chain(fields).chain(keyed).collect(),
        passthrough: S::PASSTHROUGH_FIELDS.iter().map(|field| field.name).collect(),
    }
}

/// Returns the path of a field within its kind. `parent_path` is empty for a top-level field.
fn child_path(parent_path: &str, field: &FieldDef) -> String {
    if parent_path.is_empty() { field.name.to_owned() } else { format!("{parent_path}.{}", field.name) }
}
