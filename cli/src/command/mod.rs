//! What each command does, by what it needs: nothing but manifests, questions to a controller, writes.

pub(crate) mod access;
pub(crate) mod allocation;
pub(crate) mod apply;
pub(crate) mod audit;
pub(crate) mod catalog;
pub(crate) mod describe;
pub(crate) mod done;
pub(crate) mod each;
pub(crate) mod events;
pub(crate) mod import;
pub(crate) mod label;
pub(crate) mod node;
pub(crate) mod owned;
pub(crate) mod primary;
pub(crate) mod question;
pub(crate) mod tasks;
pub(crate) mod token;
pub(crate) mod watch;
pub(crate) mod write;
pub(crate) mod written;
