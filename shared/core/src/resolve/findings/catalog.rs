//! What is found where the catalogue and the objects do not agree: it may have changed since they were written.

use std::sync::Arc;

use crate::catalog::{Catalog, Says};
use crate::finding::Finding;
use crate::fleet::Fleet;
use crate::object::{ClusterId, GroupId, NodeId, Object, Spec, TemplateId};

/// What is found of a cluster, its groups and their nodes.
pub fn catalog_findings(fleet: &Fleet, id: ClusterId) -> Vec<Finding> {
    let catalog = fleet.catalog();
    let Some(cluster) = fleet.cluster(id).filter(|_| !catalog.is_empty()) else { return Vec::new() };
    let template = cluster.spec.cluster_template.and_then(|id| fleet.template(id));
    let mut findings = of(&catalog, cluster, cluster.meta.name.as_str());
    if let Some(template) = template {
        findings.extend(of(&catalog, template, template.meta.name.as_str()));
    }
    for group in fleet.groups_of(id).filter_map(|group| fleet.group(group)) {
        findings.extend(of(&catalog, group, &format!("{}/{}", cluster.meta.name, group.meta.name)));
    }
    for node in fleet.nodes_of_cluster(id).filter_map(|node| fleet.node(node)) {
        findings.extend(of(&catalog, node, &node.display_name()));
    }
    findings
}

/// What is found of all objects: what a change of the catalogue makes of them.
pub fn all_catalog_findings(fleet: &Fleet) -> Vec<Finding> {
    let catalog = fleet.catalog();
    if catalog.is_empty() {
        return Vec::new();
    }
    let templates = fleet.templates().flat_map(|one| of(&catalog, one, one.meta.name.as_str()));
    let clusters = fleet.clusters().flat_map(|one| of(&catalog, one, one.meta.name.as_str()));
    let groups = fleet.groups().flat_map(|one| of(&catalog, one, &group_path(fleet, one.spec.cluster, &one.meta.name)));
    let nodes = fleet.nodes().flat_map(|one| of(&catalog, one, &one.display_name()));
    templates.chain(clusters).chain(groups).chain(nodes).collect()
}

/// What is found of one object, which is found by its kind and uuid.
pub fn catalog_findings_of(fleet: &Fleet, id: ObjectId) -> Vec<Finding> {
    let catalog = fleet.catalog();
    let found = match id {
        ObjectId::Template(id) => fleet.template(id).map(|one| of(&catalog, one, one.meta.name.as_str())),
        ObjectId::Cluster(id) => fleet.cluster(id).map(|one| of(&catalog, one, one.meta.name.as_str())),
        ObjectId::Group(id) => {
            fleet.group(id).map(|one| of(&catalog, one, &group_path(fleet, one.spec.cluster, &one.meta.name)))
        }
        ObjectId::Node(id) => fleet.node(id).map(|one| of(&catalog, one, &one.display_name())),
    };
    found.unwrap_or_default()
}

/// An object that says something of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectId {
    /// A template.
    Template(TemplateId),
    /// A cluster.
    Cluster(ClusterId),
    /// A group.
    Group(GroupId),
    /// A node.
    Node(NodeId),
}

fn group_path(fleet: &Fleet, cluster: ClusterId, group: &str) -> String {
    fleet.cluster(cluster).map_or_else(|| group.to_owned(), |cluster| format!("{}/{group}", cluster.meta.name))
}

fn of<S: Spec + Says>(catalog: &Catalog<'_>, object: &Arc<Object<S>>, name: &str) -> Vec<Finding> {
    catalog.findings(&format!("{}/{name}", S::KIND.word()), object.spec.sayings())
}
