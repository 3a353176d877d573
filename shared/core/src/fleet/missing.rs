//! What is missing for an answer.

use std::fmt;

use crate::name::ReleaseRef;
use crate::object::{ClusterId, GroupId, NodeId, TemplateId};

/// What is missing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// The store is still being read.
    Store,
    /// No node of that uuid.
    Node(NodeId),
    /// The node's group.
    NodeGroup(GroupId),
    /// The group's cluster.
    Cluster(ClusterId),
    /// The cluster's template.
    ClusterTemplate(TemplateId),
    /// The release that the nearest level names.
    Release(ReleaseRef),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store => f.write_str("the store is still being read"),
            Self::Node(id) => write!(f, "node {id} is not there"),
            Self::NodeGroup(id) => write!(f, "its node group {id} is not there"),
            Self::Cluster(id) => write!(f, "its cluster {id} is not there"),
            Self::ClusterTemplate(id) => write!(f, "its cluster template {id} is not there"),
            Self::Release(name) => write!(f, "release {name} is not there"),
        }
    }
}
