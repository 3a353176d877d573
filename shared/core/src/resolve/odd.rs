//! Findings about a cluster as a whole: tags that nobody holds, tasks without a node, roles that conflict.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::finding::Finding;
use crate::fleet::Fleet;
use crate::graph::{ClusterGraph, releases};
use crate::name::Name;
use crate::object::{ClusterId, RoleSpec};
use crate::release::CompiledRelease;
use crate::task::Phase;

/// The releases that some group names, each once.
pub(super) fn releases_in_use(fleet: &Fleet) -> Vec<Arc<CompiledRelease>> {
    let mut found = BTreeMap::new();
    for cluster in fleet.clusters() {
        for release in releases(fleet, ClusterId(cluster.meta.uuid)) {
            found.insert(release.name.clone(), release);
        }
    }
    found.into_values().collect()
}

/// What is odd about a cluster's tags, tasks and roles.
pub(super) fn of_cluster(fleet: &Fleet, id: ClusterId, name: &str, graph: &ClusterGraph) -> Vec<Finding> {
    let object = format!("cluster/{name}");
    let mut findings = Vec::new();
    let of_class =
        graph.classes.iter().flat_map(|class| class.profile.tasks.iter().map(|ix| class.profile.release.id(*ix)));
    let placed: BTreeSet<&str> = of_class.chain(graph.stages.iter().map(AsRef::as_ref)).collect();
    let held: BTreeSet<&str> = graph
        .classes
        .iter()
        .filter(|class| !class.nodes.is_empty())
        .flat_map(|class| class.profile.place.tags.iter().map(AsRef::as_ref))
        .collect();
    for release in releases(fleet, id) {
        for tag in release.tags.keys().filter(|tag| !held.contains(tag.as_str())) {
            let message = format!("no node holds tag {tag} of release {}", release.name);
            findings.push(Finding::info("tag.unheld", object.as_str(), message));
        }
        let unplaced = release.tasks.iter().filter(|task| task.phase() == Phase::Apply && !task.task.is_group());
        for task in unplaced.filter(|task| !placed.contains(task.task.id.as_str())) {
            let message = format!("task {} of release {} has no node", task.task.id, release.name);
            findings.push(Finding::info("task.unplaced", object.as_str(), message));
        }
        findings.extend(of_roles(fleet, id, &object, &release));
    }
    findings
}

fn of_roles(fleet: &Fleet, id: ClusterId, object: &str, release: &CompiledRelease) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut counts: BTreeMap<Name, u64> = BTreeMap::new();
    for entry in fleet.nodes_of_cluster(id).filter_map(|id| fleet.entry(id)) {
        let node = &entry.node;
        let fold = node.spec.nodegroup.and_then(|group| fleet.fold(group).ok());
        let own = entry.roles(fold.map(|fold| &**fold));
        for role in &own {
            *counts.entry(role.clone()).or_default() += 1;
            let known = release.roles.get(role);
            let table = fold.and_then(|fold| fold.table.as_ref());
            if known.is_none() && !table.is_some_and(|table| table.has_role(role.as_str())) {
                let message = format!("role {role} is declared neither by release {} nor by the cluster", release.name);
                findings.push(Finding::warning("role.unknown", format!("node/{}", node.display_name()), message));
            }
            for other in known.iter().flat_map(|spec| &spec.conflicts).filter(|other| own.contains(*other)) {
                let message = format!("roles {role} and {other} conflict");
                findings.push(Finding::warning("role.conflict", format!("node/{}", node.display_name()), message));
            }
        }
    }
    for (role, spec) in &release.roles {
        findings.extend(limit(object, role, spec, counts.get(role).copied().unwrap_or(0)));
    }
    findings
}

/// Fuel's `limits`, where they are plain numbers: `min` counts only once some node has the role.
fn limit(object: &str, role: &Name, spec: &RoleSpec, count: u64) -> Option<Finding> {
    let number = |field: &str| spec.limits.get(field).and_then(serde_json::Value::as_u64);
    let message = match (number("min"), number("max")) {
        (Some(min), _) if count > 0 && count < min => format!("role {role} wants at least {min} nodes and has {count}"),
        (_, Some(max)) if count > max => format!("role {role} takes at most {max} nodes and has {count}"),
        _ => return None,
    };
    Some(Finding::warning("role.limits", object, message))
}
