//! What can be given where something stands: the roles and tags of the release that runs there, with the changes of the levels above.

use std::collections::BTreeMap;
use std::sync::Arc;

use stemma_core::name::{ReleaseRef, TagName};
use stemma_core::object::{Cluster, Node, TagSpec};
use stemma_core::role::RoleTable;

use crate::cache::Model;

/// What roles produce, and which tags can be seen, where a node stands; none for one without a release.
pub(super) fn table_of(model: &Model, node: &Node) -> Option<Arc<RoleTable>> {
    model.fleet.fold_above(&node.spec)?.table.clone()
}

/// The release that a node runs: of the nearest level that names one.
pub(crate) fn release_of(model: &Model, node: &Node) -> Option<ReleaseRef> {
    model.fleet.fold_above(&node.spec)?.release.as_ref().map(|release| release.value.name.clone())
}

/// The tags that a table shows: those that are declared, and those that roles produce undeclared.
pub(super) fn visible(table: &RoleTable) -> BTreeMap<TagName, TagSpec> {
    let produced = table.roles().flat_map(|(_, tags)| tags).map(|tag| (tag.clone(), TagSpec::default()));
    let mut tags: BTreeMap<TagName, TagSpec> = produced.collect();
    tags.extend(table.tags().map(|(name, tag)| (name.clone(), tag.clone())));
    tags
}

/// Where a tag that can be seen in a cluster is declared.
pub(super) fn declared(model: &Model, cluster: &Cluster, tag: &TagName) -> &'static str {
    if cluster.spec.tags.contains_key(tag) {
        return "cluster";
    }
    let release = model.fleet.cluster_release(cluster);
    let beside = release.and_then(|release| model.release_tags.named(None, &release.name));
    if beside.is_some_and(|beside| beside.spec.tags.contains_key(tag)) { "beside" } else { "release" }
}
