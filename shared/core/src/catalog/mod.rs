//! The catalogue: its form for Glance's clients, and how a namespace restricts the values of keys.

mod binding;
mod builtin;
mod glance;
mod usage;
mod value;

pub(crate) use binding::resource_type_error;
pub use binding::{Binding, Catalog, KeyKind, NotAllowed};
pub use builtin::builtin_namespaces;
pub use glance::{
    READ_ONLY_FIELDS, merge_namespace, property_prefix, remove_read_only_members, reverse_tags, schema, to_authored,
    with_prefixed_properties,
};
pub use usage::{KeyUsage, SuggestionCache, UsageField, UsesKeys};
