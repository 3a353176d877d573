//! The reference of manifests, for people and for editors. Nothing is said here: all of it comes from the tables by which
//! manifests are read.

mod page;
mod schema;

pub use page::markdown;
pub use schema::{of_form, schema};

use super::fields::Fields;
use crate::field::Part;
use crate::idle;
use crate::object::{
    AllocationSpec, ClusterSpec, ClusterTemplateSpec, InspectionRuleSpec, NamespaceSpec, NodeGroupSpec, NodeSpec,
    ReleaseSpec, Spec,
};

/// A kind of manifest with its fields.
#[derive(Clone, Debug)]
pub struct KindFields {
    /// Its name, as `NodeGroup`.
    pub kind: &'static str,
    /// What names it first, then its fields.
    pub parts: Vec<Part>,
    /// Fields of other systems that are taken, kept and shown, and mean nothing.
    pub kept: Vec<&'static str>,
}

/// Every kind that a manifest may be.
pub fn kinds() -> [KindFields; 7] {
    [
        kind::<ReleaseSpec>(),
        kind::<ClusterTemplateSpec>(),
        kind::<ClusterSpec>(),
        kind::<NodeGroupSpec>(),
        kind::<NodeSpec>(),
        kind::<NamespaceSpec>(),
        kind::<InspectionRuleSpec>(),
    ]
}

/// Every kind that has a body in the API and no manifest.
pub fn kinds_of_api() -> [KindFields; 1] {
    [kind::<AllocationSpec>()]
}

/// What a field means, by its path within its kind, as `tasks.on_unassign`; also that nothing acts on it yet.
pub fn meaning(path: &str, part: &Part) -> String {
    let idle = idle::of_field(path).map_or(String::new(), |sentence| format!(" {sentence}"));
    format!("{}{idle}", part.help.meaning)
}

fn kind<S: Fields + Spec>() -> KindFields {
    let fields = S::FIELDS.iter().map(|field| Part::new(field.name, field.form, field.help));
    let keyed = S::KEYED.iter().copied().flatten().copied();
    KindFields {
        kind: S::KIND.name(),
        parts: S::NAMED_BY.iter().copied().chain(fields).chain(keyed).collect(),
        kept: S::EXTRA.iter().map(|kept| kept.name).collect(),
    }
}

/// The path of a part within its kind.
fn below(path: &str, part: &Part) -> String {
    if path.is_empty() { part.name.to_owned() } else { format!("{path}.{}", part.name) }
}
