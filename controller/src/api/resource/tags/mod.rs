//! Tags over HTTP: a node's, a cluster's and a release's.

mod declared;

pub(super) mod cluster;
pub(super) mod node;
pub(super) mod release;

pub(super) use declared::TagCall;
