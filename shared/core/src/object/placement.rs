//! Stored choices about placement: primaries, and user-defined tags beside a release.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ClusterId, NodeId, TagSpec, Timestamp};
use crate::name::TagName;

/// Which node of a cluster holds a tag as primary where the cluster's `primaries:` does not say: chosen once, kept while the node has the tag.
///
/// The object's name is the tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrimarySpec {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node that holds it.
    pub node: NodeId,
    /// Since when.
    pub since: Timestamp,
    /// Grows with every change of the holder, so that a stale one can be told.
    pub epoch: u64,
}

/// User-defined tags beside a release: seen in all its clusters and versions, and no part of its content.
///
/// The object's name is the release's, without a version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReleaseTagsSpec {
    /// The tags.
    pub tags: BTreeMap<TagName, TagSpec>,
}
