//! Labels that have one variable at a level above the nodes: said there where no node is below it that says so itself.

use super::node::meeting;
use crate::finding::{Finding, rule};
use crate::fleet::{Fleet, Maps};
use crate::object::{ClusterId, GroupId, LevelId, TemplateId};

/// What is said of a level where no node is below it, but for what a level above it says already.
pub fn level_findings(fleet: &Fleet, id: LevelId) -> Vec<Finding> {
    let mut met = met_at(fleet, id);
    let Some(object) = (!met.is_empty()).then(|| named(fleet, id)).flatten() else { return Vec::new() };
    let above: Vec<String> = above(fleet, id).into_iter().flat_map(|level| met_at(fleet, level)).collect();
    met.retain(|message| !above.contains(message));
    met.into_iter().map(|message| Finding::of(rule::LABEL_VARIABLE, object.clone(), message)).collect()
}

/// What is said of a level, and of those below it, and was not before a write of it.
pub fn newly_meeting_below(before: &Fleet, after: &Fleet, id: LevelId) -> Vec<Finding> {
    let all = |fleet: &Fleet, levels: &[LevelId]| -> Vec<Finding> {
        levels.iter().flat_map(|level| level_findings(fleet, *level)).collect()
    };
    let levels = at_or_below(after, id);
    let mut found = all(after, &levels);
    if !found.is_empty() {
        let known = all(before, &levels);
        found.retain(|finding| !known.contains(finding));
    }
    found
}

/// A level and those below it, but for nodes.
fn at_or_below(fleet: &Fleet, id: LevelId) -> Vec<LevelId> {
    let below: Vec<LevelId> = match id {
        LevelId::Template(template) => {
            clusters_of(fleet, template).flat_map(|cluster| at_or_below(fleet, LevelId::Cluster(cluster))).collect()
        }
        LevelId::Cluster(cluster) => fleet.groups_of(cluster).map(LevelId::Group).collect(),
        LevelId::Group(_) | LevelId::Node(_) => Vec::new(),
    };
    [id].into_iter().chain(below).collect()
}

fn clusters_of(fleet: &Fleet, template: TemplateId) -> impl Iterator<Item = ClusterId> {
    let those = fleet.clusters().filter(move |cluster| cluster.spec.cluster_template == Some(template));
    those.map(|cluster| ClusterId(cluster.meta.uuid))
}

/// The levels above one, but for those of a node.
fn above(fleet: &Fleet, id: LevelId) -> Vec<LevelId> {
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

/// What is said of the labels that come down to a level where no node is below it.
fn met_at(fleet: &Fleet, id: LevelId) -> Vec<String> {
    match id {
        LevelId::Template(template) => of_template(fleet, template),
        LevelId::Cluster(cluster) => of_cluster(fleet, cluster),
        LevelId::Group(group) => of_group(fleet, group),
        LevelId::Node(_) => Vec::new(),
    }
}

fn of_template(fleet: &Fleet, id: TemplateId) -> Vec<String> {
    let met = meeting(&Maps::of(&fleet.levels_to_template(id)).labels);
    let has_nodes = || clusters_of(fleet, id).any(|cluster| fleet.nodes_of_cluster(cluster).next().is_some());
    if met.is_empty() || has_nodes() { Vec::new() } else { met }
}

fn of_cluster(fleet: &Fleet, id: ClusterId) -> Vec<String> {
    let has_nodes = fleet.nodes_of_cluster(id).next().is_some();
    if has_nodes { Vec::new() } else { meeting(&Maps::of(&fleet.levels_to_cluster(id)).labels) }
}

fn of_group(fleet: &Fleet, id: GroupId) -> Vec<String> {
    let has_nodes = fleet.nodes_of(id).next().is_some();
    let fold = fleet.fold(id).ok().filter(|_| !has_nodes);
    fold.map(|fold| meeting(&fold.maps.labels)).unwrap_or_default()
}

/// A level as findings name it; `None`: it is not there, or is a node.
fn named(fleet: &Fleet, id: LevelId) -> Option<String> {
    match id {
        LevelId::Template(id) => Some(format!("clustertemplate/{}", fleet.template(id)?.meta.name)),
        LevelId::Cluster(id) => Some(format!("cluster/{}", fleet.cluster(id)?.meta.name)),
        LevelId::Group(id) => Some(format!("nodegroup/{}", fleet.fold(id).ok()?.place())),
        LevelId::Node(_) => None,
    }
}
