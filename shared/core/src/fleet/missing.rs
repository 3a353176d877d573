//! What is missing for an answer.

use crate::name::ReleaseRef;
use crate::object::{ClusterId, GroupId, NodeId, TemplateId};

/// What is missing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
pub enum Missing {
    /// The store is still being read.
    #[display("the store is still being read")]
    Store,
    /// No node of that uuid.
    #[display("node {_0} is not there")]
    Node(NodeId),
    /// The node's group.
    #[display("its node group {_0} is not there")]
    NodeGroup(GroupId),
    /// The group's cluster.
    #[display("its cluster {_0} is not there")]
    Cluster(ClusterId),
    /// The cluster's template.
    #[display("its cluster template {_0} is not there")]
    ClusterTemplate(TemplateId),
    /// The release that the nearest level names.
    #[display("release {_0} is not there")]
    Release(ReleaseRef),
}
