//! What is found where the catalogue and the objects do not agree: it may have changed since they were written.

use std::sync::Arc;

use crate::catalog::{Catalog, Meant, Says};
use crate::finding::Finding;
use crate::fleet::Fleet;
use crate::object::{ClusterId, LevelId, Object, Spec};

/// What is found of a cluster, its groups and their nodes.
pub(crate) fn catalog_findings(fleet: &Fleet, id: ClusterId) -> Vec<Finding> {
    let (catalog, meant) = (fleet.catalog(), Meant::default());
    let Some(cluster) = fleet.cluster(id).filter(|_| !catalog.is_empty()) else { return Vec::new() };
    let of = Of { catalog, meant: &meant };
    let template = cluster.spec.cluster_template.and_then(|id| fleet.template(id));
    let mut findings = of.object(cluster, cluster.meta.name.as_str());
    if let Some(template) = template {
        findings.extend(of.object(template, template.meta.name.as_str()));
    }
    for group in fleet.groups_of(id).filter_map(|group| fleet.group(group)) {
        findings.extend(of.object(group, &format!("{}/{}", cluster.meta.name, group.meta.name)));
    }
    for node in fleet.nodes_of_cluster(id).filter_map(|node| fleet.node(node)) {
        findings.extend(of.object(node, &node.display_name()));
    }
    findings
}

/// What is found of all objects, one after the other: what a change of the catalogue makes of them.
pub fn all_catalog_findings<'a>(fleet: &'a Fleet, meant: &'a Meant) -> impl Iterator<Item = Vec<Finding>> + use<'a> {
    let of = Of { catalog: fleet.catalog(), meant };
    let templates = fleet.templates().map(move |one| of.object(one, one.meta.name.as_str()));
    let clusters = fleet.clusters().map(move |one| of.object(one, one.meta.name.as_str()));
    let groups = fleet.groups().map(move |one| of.object(one, &group_path(fleet, one.spec.cluster, &one.meta.name)));
    let nodes = fleet.nodes().map(move |one| of.object(one, &one.display_name()));
    templates.chain(clusters).chain(groups).chain(nodes)
}

/// What is found of one object, which is found by its kind and uuid.
pub fn catalog_findings_of(fleet: &Fleet, meant: &Meant, id: LevelId) -> Vec<Finding> {
    let of = Of { catalog: fleet.catalog(), meant };
    let found = match id {
        LevelId::Template(id) => fleet.template(id).map(|one| of.object(one, one.meta.name.as_str())),
        LevelId::Cluster(id) => fleet.cluster(id).map(|one| of.object(one, one.meta.name.as_str())),
        LevelId::Group(id) => {
            fleet.group(id).map(|one| of.object(one, &group_path(fleet, one.spec.cluster, &one.meta.name)))
        }
        LevelId::Node(id) => fleet.node(id).map(|one| of.object(one, &one.display_name())),
    };
    found.unwrap_or_default()
}

/// What is found of one object and was not found before a write of it.
pub fn newly_uncatalogued(before: &Fleet, after: &Fleet, id: LevelId) -> Vec<Finding> {
    let mut found = catalog_findings_of(after, &Meant::default(), id);
    if !found.is_empty() {
        let known = catalog_findings_of(before, &Meant::default(), id);
        found.retain(|finding| !known.contains(finding));
    }
    found
}

fn group_path(fleet: &Fleet, cluster: ClusterId, group: &str) -> String {
    fleet.cluster(cluster).map_or_else(|| group.to_owned(), |cluster| format!("{}/{group}", cluster.meta.name))
}

/// By what is found.
#[derive(Clone, Copy)]
struct Of<'a> {
    catalog: &'a Catalog,
    meant: &'a Meant,
}

impl Of<'_> {
    fn object<S: Spec + Says>(self, object: &Arc<Object<S>>, name: &str) -> Vec<Finding> {
        self.catalog.findings(&format!("{}/{name}", S::KIND.word()), object.spec.sayings(), self.meant)
    }
}
