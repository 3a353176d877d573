//! Functions that find the roles and tags that a node or cluster can have. The release defines them. Users can declare
//! further tags for the release, and the cluster can declare tags and change the tags that roles give.

use std::collections::BTreeMap;
use std::sync::Arc;

use stemma_core::name::{ReleaseRef, TagName};
use stemma_core::object::{Cluster, Node, TagSpec};
use stemma_core::role::RoleTable;

use crate::cache::Model;

/// Returns the role table for a node: the roles of its release, the tags that each role gives, and the declared tags.
/// Returns `None` if the node has no release.
pub(super) fn table_for_node(model: &Model, node: &Node) -> Option<Arc<RoleTable>> {
    model.fleet.resolved_parent(&node.spec)?.role_table.clone()
}

/// Returns the name of the release of a node: that of the nearest level above the node that names one. The task set of
/// the node can still be of another release, for example because of a hold.
pub(crate) fn release_name_of_node(model: &Model, node: &Node) -> Option<ReleaseRef> {
    model.fleet.resolved_parent(&node.spec)?.release.as_ref().map(|release| release.value.name.clone())
}

/// Returns all tags of a role table with their specs: the declared tags, and the undeclared tags that roles give. An
/// undeclared tag has the default spec.
pub(super) fn visible_tags(table: &RoleTable) -> BTreeMap<TagName, TagSpec> {
    let tags_of_roles = table.roles().flat_map(|(_, tags)| tags).map(|tag| (tag.clone(), TagSpec::default()));
    let mut tags: BTreeMap<TagName, TagSpec> = tags_of_roles.collect();
    tags.extend(table.tags().map(|(name, tag)| (name.clone(), tag.clone())));
    tags
}

/// Returns where a tag that the cluster can use is declared, as a word for the API. The word is `cluster` for a tag of
/// the cluster, and `beside` for a tag that users add to a release without an edit of its content. It is `release` for
/// any other tag: a tag of the release's content, and also an undeclared tag that roles give.
pub(super) fn declaration_place(model: &Model, cluster: &Cluster, tag: &TagName) -> &'static str {
    if cluster.spec.tags.contains_key(tag) {
        return "cluster";
    }
    let release = model.fleet.cluster_release(cluster);
    let user_tags = release.and_then(|release| model.release_tags.get_by_name(None, &release.name));
    if user_tags.is_some_and(|object| object.spec.tags.contains_key(tag)) { "beside" } else { "release" }
}
