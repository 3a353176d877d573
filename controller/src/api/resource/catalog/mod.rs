//! The catalogue over HTTP, with Glance's paths and bodies. A namespace is one object, so a change of one of its
//! items is a write of the namespace.

mod body;
mod page;

pub(super) mod keys;
pub(super) mod members;
pub(super) mod namespaces;
pub(super) mod properties;
