//! Findings about labels of a level above the nodes that would be the same variable of `labels.env`, the file of
//! environment variables that an agent writes from the labels. A level has such a finding only if no node is below the
//! level, because otherwise each node has the finding.

use super::node::label_collisions;
use crate::finding::{Finding, rule};
use crate::fleet::{Fleet, InheritedMaps};
use crate::object::{ClusterId, GroupId, LevelId, TemplateId};

/// Returns the findings about labels of a level that would be the same variable of `labels.env`. Omits those that a
/// level above has too. Returns none if a node is below the level, because each node then has the findings.
pub fn level_findings(fleet: &Fleet, id: LevelId) -> Vec<Finding> {
    let mut collisions = collisions_at(fleet, id);
    let Some(object) = (!collisions.is_empty()).then(|| level_name(fleet, id)).flatten() else { return Vec::new() };
    let messages_above: Vec<String> = levels_above(fleet, id).into_iter().flat_map(|level| collisions_at(fleet, level)).collect();
    collisions.retain(|message| !messages_above.contains(message));
    collisions.into_iter().map(|message| Finding::new(rule::LABEL_VARIABLE, object.clone(), message)).collect()
}

/// Returns the findings about labels that would be the same variable of `labels.env`, for a level and the clusters and
/// groups below it. Nodes are not checked. Omits those that existed before a write.
pub fn newly_colliding_below(fleet_before: &Fleet, fleet_after: &Fleet, id: LevelId) -> Vec<Finding> {
    let findings_of = |fleet: &Fleet, levels: &[LevelId]| -> Vec<Finding> {
        levels.iter().flat_map(|level| level_findings(fleet, *level)).collect()
    };
    let levels = levels_at_or_below(fleet_after, id);
    let mut findings = findings_of(fleet_after, &levels);
    if !findings.is_empty() {
        let old_findings = findings_of(fleet_before, &levels);
        findings.retain(|finding| !old_findings.contains(finding));
    }
    findings
}

/// Returns a level and the levels below it, except nodes.
fn levels_at_or_below(fleet: &Fleet, id: LevelId) -> Vec<LevelId> {
    let below: Vec<LevelId> = match id {
        LevelId::Template(template) => clusters_of_template(fleet, template)
            .flat_map(|cluster| levels_at_or_below(fleet, LevelId::Cluster(cluster)))
            .collect(),
        LevelId::Cluster(cluster) => fleet.groups_in_cluster(cluster).map(LevelId::Group).collect(),
        LevelId::Group(_) | LevelId::Node(_) => Vec::new(),
    };
    [id].into_iter().chain(below).collect()
}

fn clusters_of_template(fleet: &Fleet, template: TemplateId) -> impl Iterator<Item = ClusterId> {
    let clusters = fleet.clusters().filter(move |cluster| cluster.spec.cluster_template == Some(template));
    clusters.map(|cluster| ClusterId(cluster.meta.uuid))
}

/// Returns the levels above a cluster or group. Returns none for a template, which is the top level, and for a node,
/// which has no finding here.
fn levels_above(fleet: &Fleet, id: LevelId) -> Vec<LevelId> {
    let template = |id| fleet.cluster(id)?.spec.cluster_template.map(LevelId::Template);
    match id {
        LevelId::Cluster(cluster) => template(cluster).into_iter().collect(),
        LevelId::Group(group) => {
            let cluster = fleet.group(group).map(|group| group.spec.cluster);
            let levels = cluster.into_iter().flat_map(|id| [template(id), Some(LevelId::Cluster(id))]);
            levels.flatten().collect()
        }
        LevelId::Template(_) | LevelId::Node(_) => Vec::new(),
    }
}

/// Returns a message for each variable of `labels.env` that several labels of a level would be. Returns none if a node
/// is below the level.
fn collisions_at(fleet: &Fleet, id: LevelId) -> Vec<String> {
    match id {
        LevelId::Template(template) => template_collisions(fleet, template),
        LevelId::Cluster(cluster) => cluster_collisions(fleet, cluster),
        LevelId::Group(group) => group_collisions(fleet, group),
        LevelId::Node(_) => Vec::new(),
    }
}

/// Returns the messages about colliding labels of a template. Returns none if a cluster of the template has a node.
fn template_collisions(fleet: &Fleet, id: TemplateId) -> Vec<String> {
    let collisions = label_collisions(&InheritedMaps::from_levels(&fleet.template_levels(id)).labels);
    let has_nodes = || clusters_of_template(fleet, id).any(|cluster| fleet.nodes_in_cluster(cluster).next().is_some());
    if collisions.is_empty() || has_nodes() { Vec::new() } else { collisions }
}

/// Returns the messages about colliding labels of a cluster. Returns none if the cluster has a node.
fn cluster_collisions(fleet: &Fleet, id: ClusterId) -> Vec<String> {
    let has_nodes = fleet.nodes_in_cluster(id).next().is_some();
    if has_nodes { Vec::new() } else { label_collisions(&InheritedMaps::from_levels(&fleet.cluster_levels(id)).labels) }
}

/// Returns the messages about colliding labels of a group. Returns none if the group has a node.
fn group_collisions(fleet: &Fleet, id: GroupId) -> Vec<String> {
    let has_nodes = fleet.nodes_in_group(id).next().is_some();
    let resolved_group = fleet.resolved_group(id).ok().filter(|_| !has_nodes);
    resolved_group.map(|resolved_group| label_collisions(&resolved_group.maps.labels)).unwrap_or_default()
}

/// Returns the name of a level in findings, or `None` if the level does not exist or is a node.
fn level_name(fleet: &Fleet, id: LevelId) -> Option<String> {
    match id {
        LevelId::Template(id) => Some(format!("clustertemplate/{}", fleet.template(id)?.meta.name)),
        LevelId::Cluster(id) => Some(format!("cluster/{}", fleet.cluster(id)?.meta.name)),
        LevelId::Group(id) => Some(format!("nodegroup/{}", fleet.resolved_group(id).ok()?.path())),
        LevelId::Node(_) => None,
    }
}
