//! Stored placement decisions: primaries, and user-defined tags of a release.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ClusterId, NodeId, TagSpec, Timestamp};
use crate::name::TagName;

/// The stored choice of a primary: the node of a cluster that was chosen as the primary of a tag, by the controller or
/// by an operator. The node remains primary while it has the tag, until another node is chosen. If the cluster's
/// `primaries:` names another node with the tag, that node is primary instead.
///
/// The object's name is the tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrimarySpec {
    /// The cluster for which the primary of the tag was chosen.
    pub cluster: ClusterId,
    /// The node that was chosen as the primary of the tag.
    pub node: NodeId,
    /// Time at which the node was chosen.
    pub since: Timestamp,
    /// Counter that is incremented when another node is chosen, so a stale copy of the choice has a smaller value. It
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
    /// The user-defined tags, by name.
    pub tags: BTreeMap<TagName, TagSpec>,
}
