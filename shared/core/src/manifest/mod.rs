//! Reads manifests and the bodies of requests into the specs of objects, and writes them under a manager's name.
//!
//! Each kind has one table ([`SpecFields`]): how each field is read and how it is shown. From this table the module
//! derives the check for unknown fields, server-side apply per field (a field that a manager set last time and now
//! omits returns to its default), updates, and the reference. Bodies refer to other objects by name, stored specs by
//! uuid. [`NameResolver`] translates between names and uuids.

mod body;
mod bound;
mod canary;
mod conflict;
mod declared;
mod document;
mod empty;
mod error;
mod field_defs;
mod fields;
mod maintenance;
mod merge_labels;
mod names;
mod owners;
mod passthrough;
mod reader;
mod reference;
mod set;
mod task;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod validate;
mod write;
mod write_mode;

pub use body::{JsonBody, TEXT_MAPS, is_null, with_label_texts};
pub use bound::{check_bounds, check_release_tags_bounds};
pub use conflict::check_update_conflicts;
pub use document::{Document, ObjectKey, read_document};
pub use error::{BodyError, BodyErrorKind};
pub use fields::{Field, SpecFields};
pub use merge_labels::{MERGE_LABELS, update_merge_labels};
pub use names::NameResolver;
pub use owners::{Owners, owners, retained_by_others};
pub use passthrough::{ALWAYS_NULL, PassthroughField, PassthroughType};
pub use reader::{MAX_DEPTH, read_json, read_value};
pub use reference::{KindFields, api_only_kinds, field_meaning, kinds, markdown, schema, type_schema};
pub use set::{ManifestObjects, assemble};
pub use task::read_tasks;
pub use validate::check_member_name;
pub use write::{MapConflict, WriteError, check_own_annotations, own_new_fields, write_body};
pub use write_mode::{ApplyScope, WriteMode};
