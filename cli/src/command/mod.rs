//! What each command does, by what it needs: nothing but manifests, questions to a controller, writes.

pub(crate) mod apply;
pub(crate) mod import;
pub(crate) mod label;
pub(crate) mod question;
pub(crate) mod radius;
pub(crate) mod write;
pub(crate) mod written;
