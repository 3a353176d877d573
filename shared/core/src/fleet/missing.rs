//! Objects that resolve needs and that are missing.

use crate::name::ReleaseRef;
use crate::object::{ClusterId, GroupId, NodeId, TemplateId};

/// An object without which a node cannot be resolved, and which is missing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
pub enum MissingParent {
    /// The fleet is still being loaded from the store, so any object may be missing.
    #[display("the store is still being read")]
    Store,
    /// No node has this uuid.
    #[display("node {_0} is not there")]
    Node(NodeId),
    /// The group that a node names does not exist.
    #[display("its node group {_0} is not there")]
    NodeGroup(GroupId),
    /// The cluster that a group names does not exist.
    #[display("its cluster {_0} is not there")]
    Cluster(ClusterId),
    /// The template that a cluster names does not exist.
    #[display("its cluster template {_0} is not there")]
    ClusterTemplate(TemplateId),
    /// The release that applies to the group does not exist. The level nearest to the host that names a release decides
    /// which one applies.
    #[display("release {_0} is not there")]
    Release(ReleaseRef),
}
