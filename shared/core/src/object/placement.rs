//! Stored placement decisions: primaries, and user-defined tags of a release.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ClusterId, NodeId, TagSpec, Timestamp};
use crate::name::TagName;

/// The node of a cluster that holds a tag as primary, unless the cluster's `primaries:` names another. The node is
/// elected once, and remains primary while it has the tag.
///
/// The object's name is the tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrimarySpec {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node that holds the tag.
    pub node: NodeId,
    /// Time at which the node was elected.
    pub since: Timestamp,
    /// Counter that is incremented when another node is elected, so a stale copy of the choice has a smaller value. It
    /// begins again at 1 if the choice was deleted with its node.
    pub epoch: u64,
}

/// User-defined tags of a release. They apply in all clusters and to all versions of the release, and are not part of
/// its content.
///
/// The object's name is that of the release, without a version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReleaseTagsSpec {
    /// The tags.
    pub tags: BTreeMap<TagName, TagSpec>,
}
