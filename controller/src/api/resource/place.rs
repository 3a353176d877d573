//! What can be given where something stands: the roles and tags of the release that runs there, with the changes of the levels above.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stemma_core::name::{Name, ReleaseRef, TagName};
use stemma_core::object::{Cluster, Node, TagSpec};
use stemma_core::role::RoleTable;

use crate::cache::Model;

/// What roles produce, and which tags can be seen, where a node stands; none for one without a release.
pub(super) fn table_of(model: &Model, node: &Node) -> Option<Arc<RoleTable>> {
    model.fleet.fold(node.spec.nodegroup?).ok()?.table.clone()
}

/// The roles of a node, its group's and its own.
pub(super) fn roles_of(model: &Model, node: &Node) -> BTreeSet<Name> {
    let group = node.spec.nodegroup.and_then(|id| model.groups.get(id.0));
    group.into_iter().flat_map(|group| &group.spec.roles).chain(&node.spec.roles).cloned().collect()
}

/// The release that a node runs: of the nearest level that names one.
pub(crate) fn release_of(model: &Model, node: &Node) -> Option<ReleaseRef> {
    let fold = model.fleet.fold(node.spec.nodegroup?).ok()?;
    fold.release.as_ref().map(|release| release.value.name.clone())
}

/// The release that a cluster's groups run where they say nothing.
pub(super) fn release_of_cluster(model: &Model, cluster: &Cluster) -> Option<ReleaseRef> {
    let template = cluster.spec.cluster_template.and_then(|id| model.templates.get(id.0));
    cluster.spec.release.as_ref().or_else(|| template?.spec.release.as_ref()).cloned()
}

/// What roles produce, and which tags can be seen, in a cluster.
pub(super) fn table_of_cluster(model: &Model, cluster: &Cluster) -> RoleTable {
    let release = release_of_cluster(model, cluster);
    let beside = release.as_ref().and_then(|release| model.release_tags.named(None, &release.name));
    let user_tags = beside.into_iter().flat_map(|beside| &beside.spec.tags).chain(&cluster.spec.tags);
    match release.and_then(|release| model.fleet.release(&release).cloned()) {
        Some(release) => RoleTable::new(&release.roles, &release.tags, user_tags, &cluster.spec.roles),
        None => RoleTable::new(&BTreeMap::new(), &BTreeMap::new(), user_tags, &cluster.spec.roles),
    }
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
    let release = release_of_cluster(model, cluster);
    let beside = release.and_then(|release| model.release_tags.named(None, &release.name));
    if beside.is_some_and(|beside| beside.spec.tags.contains_key(tag)) { "beside" } else { "release" }
}
