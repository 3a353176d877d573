//! The catalogue over HTTP, in Glance's paths and bodies. One namespace is one object: what is done to something in it is a write of
//! the namespace.

mod body;
mod page;

pub(super) mod keys;
pub(super) mod members;
pub(super) mod namespaces;
pub(super) mod properties;
