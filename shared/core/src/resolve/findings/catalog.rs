//! Findings about objects whose keys do not agree with the catalogue, the definitions of allowed keys and their values.
//! The catalogue may have changed since the objects were written.

use std::sync::Arc;

use crate::catalog::{Catalog, SuggestionCache, UsesKeys};
use crate::finding::Finding;
use crate::fleet::Fleet;
use crate::object::{ClusterId, LevelId, Object, Spec};

/// Returns the findings about the keys that a cluster, its template, its groups and their nodes use and that do not
/// agree with the catalogue.
pub(crate) fn catalog_findings(fleet: &Fleet, id: ClusterId) -> Vec<Finding> {
    let (catalog, suggestions) = (fleet.catalog(), SuggestionCache::default());
    let Some(cluster) = fleet.cluster(id).filter(|_| !catalog.is_empty()) else { return Vec::new() };
    let checker = CatalogChecker { catalog, suggestions: &suggestions };
    let template = cluster.spec.cluster_template.and_then(|id| fleet.template(id));
    let mut findings = checker.check_object(cluster, cluster.meta.name.as_str());
    if let Some(template) = template {
        findings.extend(checker.check_object(template, template.meta.name.as_str()));
    }
    for group in fleet.groups_in_cluster(id).filter_map(|group| fleet.group(group)) {
        findings.extend(checker.check_object(group, &format!("{}/{}", cluster.meta.name, group.meta.name)));
    }
    for node in fleet.nodes_in_cluster(id).filter_map(|node| fleet.node(node)) {
        findings.extend(checker.check_object(node, &node.display_name()));
    }
    findings
}

/// Returns the findings about the keys that do not agree with the catalogue, for all cluster templates, clusters,
/// groups and nodes, as one list for each object.
pub fn all_catalog_findings<'a>(
    fleet: &'a Fleet,
    suggestions: &'a SuggestionCache,
) -> impl Iterator<Item = Vec<Finding>> + use<'a> {
    let check = CatalogChecker { catalog: fleet.catalog(), suggestions };
    let templates = fleet.templates().map(move |item| check.check_object(item, item.meta.name.as_str()));
    let clusters = fleet.clusters().map(move |item| check.check_object(item, item.meta.name.as_str()));
    let groups = fleet.groups().map(move |item| check.check_object(item, &group_path(fleet, item.spec.cluster, &item.meta.name)));
    let nodes = fleet.nodes().map(move |item| check.check_object(item, &item.display_name()));
    templates.chain(clusters).chain(groups).chain(nodes)
}

/// Returns the findings about the keys of one object that do not agree with the catalogue.
pub fn object_catalog_findings(fleet: &Fleet, suggestions: &SuggestionCache, id: LevelId) -> Vec<Finding> {
    let checker = CatalogChecker { catalog: fleet.catalog(), suggestions };
    let findings = match id {
        LevelId::Template(id) => fleet.template(id).map(|object| checker.check_object(object, object.meta.name.as_str())),
        LevelId::Cluster(id) => fleet.cluster(id).map(|object| checker.check_object(object, object.meta.name.as_str())),
        LevelId::Group(id) => {
            fleet.group(id).map(|object| checker.check_object(object, &group_path(fleet, object.spec.cluster, &object.meta.name)))
        }
        LevelId::Node(id) => fleet.node(id).map(|object| checker.check_object(object, &object.display_name())),
    };
    findings.unwrap_or_default()
}

/// Returns the findings about keys that one object uses, without the findings that existed before a write.
pub fn newly_uncatalogued(fleet_before: &Fleet, fleet_after: &Fleet, id: LevelId) -> Vec<Finding> {
    let mut findings = object_catalog_findings(fleet_after, &SuggestionCache::default(), id);
    if !findings.is_empty() {
        let old_findings = object_catalog_findings(fleet_before, &SuggestionCache::default(), id);
        findings.retain(|finding| !old_findings.contains(finding));
    }
    findings
}

/// Returns `CLUSTER/GROUP`, or only the group if the cluster does not exist.
fn group_path(fleet: &Fleet, cluster: ClusterId, group: &str) -> String {
    fleet.cluster(cluster).map_or_else(|| group.to_owned(), |cluster| format!("{}/{group}", cluster.meta.name))
}

/// The catalogue against which objects are checked, and the cache of suggestions for misspelled keys.
#[derive(Clone, Copy)]
struct CatalogChecker<'a> {
    catalog: &'a Catalog,
    suggestions: &'a SuggestionCache,
}

impl CatalogChecker<'_> {
    /// Returns the findings about the keys that an object uses and that do not agree with the catalogue.
    fn check_object<S: Spec + UsesKeys>(self, object: &Arc<Object<S>>, name: &str) -> Vec<Finding> {
        self.catalog.findings(&format!("{}/{name}", S::KIND.word()), object.spec.key_usage(), self.suggestions)
    }
}
