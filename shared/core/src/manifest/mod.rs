//! Manifests and bodies: what comes in, read into the objects' own types.
//!
//! One table a kind ([`Fields`]) says which fields it has, how each is read and how each is shown again. From it come
//! the check for unknown fields, server-side apply per field (a field that a manager named last time and leaves out
//! now returns to its default), plain updates, and the documents. What comes in names other objects by name; stored
//! specs name them by uuid, so [`Names`] stands between.

mod author;
mod body;
mod bound;
mod canary;
mod declared;
mod document;
mod empty;
mod error;
mod extra;
mod fields;
mod maintenance;
mod merge_labels;
mod names;
mod owners;
mod parts;
mod reader;
mod reference;
mod set;
mod sound;
mod taken;
mod task;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod write;

pub use author::{Author, Scope};
pub use body::{Body, TEXT_MAPS, is_null, with_label_texts};
pub use bound::{check_bounds, check_tags_beside};
pub use document::{Document, Key, read_document};
pub use error::{BodyError, BodyErrorKind};
pub use extra::{Kept, KeptForm, UNDRIVEN};
pub use fields::{Field, Fields};
pub use merge_labels::{MERGE_LABELS, settle_merge_labels};
pub use names::Names;
pub use owners::{Owners, kept_by_others, owners};
pub use reader::{MAX_DEPTH, read, read_value};
pub use reference::{KindFields, kinds, kinds_of_api, markdown, meaning, of_form, schema};
pub use set::{Objects, assemble};
pub use sound::check_member_name;
pub use taken::check_taken;
pub use task::read_tasks;
pub use write::{MapConflict, WriteError, check_own_annotations, own_said, write};
