//! The roles and tags that a node or cluster can have: those of its release, with the changes of the levels above.

use std::collections::BTreeMap;
use std::sync::Arc;

use stemma_core::name::{ReleaseRef, TagName};
use stemma_core::object::{Cluster, Node, TagSpec};
use stemma_core::role::RoleTable;

use crate::cache::Model;

/// Returns what roles produce for a node and which tags are visible to it, or `None` if it has no release.
pub(super) fn table_for_node(model: &Model, node: &Node) -> Option<Arc<RoleTable>> {
    model.fleet.resolved_parent(&node.spec)?.role_table.clone()
}

/// Returns the release that a node runs: that of the nearest level that names one.
pub(crate) fn release_for_node(model: &Model, node: &Node) -> Option<ReleaseRef> {
    model.fleet.resolved_parent(&node.spec)?.release.as_ref().map(|release| release.value.name.clone())
}

/// Returns the tags of a table: the declared tags, and the tags that roles produce although nothing declares them.
pub(super) fn visible_tags(table: &RoleTable) -> BTreeMap<TagName, TagSpec> {
    let produced = table.roles().flat_map(|(_, tags)| tags).map(|tag| (tag.clone(), TagSpec::default()));
    let mut tags: BTreeMap<TagName, TagSpec> = produced.collect();
    tags.extend(table.tags().map(|(name, tag)| (name.clone(), tag.clone())));
    tags
}

/// Returns where a visible tag of a cluster is declared: `cluster`, `release` for the content of its release, or
/// `beside` for a tag that users declare next to the release.
pub(super) fn declared_in(model: &Model, cluster: &Cluster, tag: &TagName) -> &'static str {
    if cluster.spec.tags.contains_key(tag) {
        return "cluster";
    }
    let release = model.fleet.cluster_release(cluster);
    let user_tags = release.and_then(|release| model.release_tags.get_by_name(None, &release.name));
    if user_tags.is_some_and(|object| object.spec.tags.contains_key(tag)) { "beside" } else { "release" }
}
