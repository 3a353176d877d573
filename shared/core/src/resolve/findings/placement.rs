//! Findings about a change in the placement of tags and tasks: problems of a cluster that a write causes, and tasks
//! that hosts no longer run.

use std::collections::{BTreeMap, BTreeSet};

use super::cluster_findings;
use crate::finding::{Finding, MAX_NAMES, Rule, join_first, rule};
use crate::fleet::Fleet;
use crate::object::{ClusterId, NodeId};
use crate::release::{Profile, ProfileHash};

/// The rules whose findings a change of roles and tags can cause anywhere in a cluster. Rules about a single field are
/// not listed, because their findings are reported when the field is written.
const PLACEMENT_RULES: &[Rule] = &[
    rule::MASTER_ABSENT,
    rule::PRIMARY_PARKED,
    rule::PRIMARY_UNKNOWN,
    rule::ROLE_CONFLICT,
    rule::ROLE_LIMIT,
    rule::ROLE_UNKNOWN,
    rule::TAG_UNHELD,
    rule::TAG_UNKNOWN,
    rule::TASK_UNPLACED,
];

/// The tasks that some nodes lose, because their profile changes in the same way.
struct LostTasks<'a> {
    tasks: Vec<&'a str>,
    /// The tasks that run once on these nodes because of that (`on_unassign`).
    clean_ups: BTreeSet<&'a str>,
    first_node: NodeId,
    node_count: usize,
}

/// Returns the findings about the placement of tags and tasks in a cluster that a write causes.
pub fn new_placement_findings(fleet_before: &Fleet, fleet_after: &Fleet, cluster: ClusterId) -> Vec<Finding> {
    let mut findings = cluster_findings(fleet_after, cluster);
    findings.retain(|finding| PLACEMENT_RULES.iter().any(|rule| finding.code == rule.code));
    retain_new_findings(&mut findings, fleet_before, cluster);
    findings
}

/// Removes the findings about a cluster that existed before a write.
///
/// In a cluster without nodes, tags without a node and tasks without a node are not reported. So these findings are
/// removed too if no node of the cluster had a profile before the write, for example because the write adds the first
/// node. The write did not cause them.
pub fn retain_new_findings(findings: &mut Vec<Finding>, fleet_before: &Fleet, cluster: ClusterId) {
    if fleet_before.profiles_in_cluster(cluster).next().is_none() {
        findings.retain(|finding| ![rule::TAG_UNHELD, rule::TASK_UNPLACED].iter().any(|rule| finding.code == rule.code));
    }
    if !findings.is_empty() {
        let old: BTreeSet<Finding> = cluster_findings(fleet_before, cluster).into_iter().collect();
        // A finding about the same task in another version of the release is not new.
        let is_unplaced = |finding: &Finding| finding.code == rule::TASK_UNPLACED.code;
        let objects: BTreeSet<&str> = old.iter().filter(|finding| is_unplaced(finding)).map(|finding| &*finding.object).collect();
        let is_known_task = |finding: &Finding| is_unplaced(finding) && objects.contains(&*finding.object);
        findings.retain(|finding| !old.contains(finding) && !is_known_task(finding));
    }
}

/// Returns the findings about tasks that a write removes from nodes. The results of these tasks remain on the hosts.
/// Nodes whose profile changes in the same way lose the same tasks, so they share one finding.
pub fn newly_orphaned(fleet_before: &Fleet, fleet_after: &Fleet, nodes: impl Iterator<Item = NodeId>) -> Vec<Finding> {
    let mut lost: BTreeMap<(ProfileHash, Option<ProfileHash>), LostTasks<'_>> = BTreeMap::new();
    for id in nodes.filter(|id| fleet_after.node(*id).is_some()) {
        let Some(previous) = fleet_before.profile(id) else { continue };
        let current = fleet_after.profile(id);
        if current.is_some_and(|profile| profile.hash == previous.hash) {
            continue;
        }
        let entry = lost.entry((previous.hash, current.map(|profile| profile.hash)));
        let new_entry = || {
            let tasks = lost_tasks(previous, current.map(AsRef::as_ref));
            let clean_ups = clean_ups(previous, &tasks);
            LostTasks { tasks, clean_ups, first_node: id, node_count: 0 }
        };
        entry.or_insert_with(new_entry).node_count += 1;
    }
    let lost = lost.into_values().filter(|lost| !lost.tasks.is_empty());
    lost.filter_map(|LostTasks { tasks, clean_ups, first_node: first, node_count: nodes }| {
        let node = fleet_after.node(first)?.display_name();
        let (word, run) = if tasks.len() == 1 { ("task", "runs") } else { ("tasks", "run") };
        let others = match nodes - 1 {
            0 => String::new(),
            1 => " and on 1 other node".to_owned(),
            count => format!(" and on {count} other nodes"),
        };
        let tasks = join_first(tasks.into_iter(), MAX_NAMES);
        let effect = if clean_ups.is_empty() {
            "the changes there remain".to_owned()
        } else {
            let clean_ups = join_first(clean_ups.into_iter(), MAX_NAMES);
            format!("{clean_ups} will run once there (on_unassign), and other changes remain")
        };
        let message = format!("{word} {tasks} no longer {run} on it{others}: {effect}");
        Some(Finding::new(rule::TASK_ORPHANED, format!("node/{node}"), message))
    })
    .collect()
}

/// Returns the ids of the tasks of phase `apply` that the previous profile has and the current profile lacks. Without a
/// current profile, returns all such tasks of the previous profile.
fn lost_tasks<'a>(previous: &'a Profile, current: Option<&Profile>) -> Vec<&'a str> {
    let current_ids: BTreeSet<&str> = current.into_iter().flat_map(task_ids).collect();
    task_ids(previous).filter(|id| !current_ids.contains(id)).collect()
}

/// Returns the ids of the tasks that these tasks of a profile name in `on_unassign` and that hosts can run.
fn clean_ups<'a>(profile: &'a Profile, tasks: &[&str]) -> BTreeSet<&'a str> {
    let release = &profile.release;
    let targets = tasks.iter().filter_map(|id| release.task(release.task_index(id)?).on_unassign);
    targets
        .filter(|target| profile.unassign.contains(target) || profile.has_task(*target))
        .map(|target| release.id(target))
        .collect()
}

/// Returns the ids of the tasks of phase `apply` of a profile.
fn task_ids(profile: &Profile) -> impl Iterator<Item = &str> {
    profile.tasks.iter().map(|ix| &*profile.release.task(*ix).task.id)
}
