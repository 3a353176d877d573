//! The HTTP handlers of tags: the tags of a node, of a cluster and of a release.

mod declared;

pub(super) mod cluster;
pub(super) mod node;
pub(super) mod release;

pub(super) use declared::TagCall;
