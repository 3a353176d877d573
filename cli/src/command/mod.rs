//! The commands. They only need manifests, reads from a controller, and writes.

pub(crate) mod access;
pub(crate) mod allocation;
pub(crate) mod apply;
pub(crate) mod audit;
pub(crate) mod batch;
pub(crate) mod catalog;
pub(crate) mod describe;
pub(crate) mod events;
pub(crate) mod import;
pub(crate) mod label;
pub(crate) mod manifest;
pub(crate) mod node;
pub(crate) mod owned;
pub(crate) mod primary;
pub(crate) mod read;
pub(crate) mod report;
pub(crate) mod tasks;
pub(crate) mod token;
pub(crate) mod watch;
pub(crate) mod write;
