//! Findings about a change in the placement of tags and tasks: problems that a write brings to a cluster, and tasks
//! that hosts no longer run.

use std::collections::{BTreeMap, BTreeSet};

use super::cluster_findings;
use crate::finding::{Finding, MAX_NAMES, Rule, join_first, rule};
use crate::fleet::Fleet;
use crate::object::{ClusterId, NodeId};
use crate::release::{Profile, ProfileHash};

/// The rules whose findings an edit of roles and tags can cause in a cluster. A problem of a single field is reported
/// when the field is written.
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

/// The tasks that nodes lose by the same change of their profile.
struct LostTasks<'a> {
    tasks: Vec<&'a str>,
    first_node: NodeId,
    node_count: usize,
}

/// Returns the findings about the placement of tags and tasks in a cluster that a write brings.
pub fn new_placement_findings(before: &Fleet, after: &Fleet, cluster: ClusterId) -> Vec<Finding> {
    let mut findings = cluster_findings(after, cluster);
    findings.retain(|finding| PLACEMENT_RULES.iter().any(|rule| finding.code == rule.code));
    retain_new(&mut findings, before, cluster);
    findings
}

/// Removes those findings about a cluster that existed before a write. In a cluster without nodes, no finding reports
/// unplaced tags and tasks. So when the cluster gets its first node, the findings about tags and tasks that are still
/// unplaced do not count as new.
pub fn retain_new(found: &mut Vec<Finding>, before: &Fleet, cluster: ClusterId) {
    if before.profiles_in_cluster(cluster).next().is_none() {
        found.retain(|finding| ![rule::TAG_UNHELD, rule::TASK_UNPLACED].iter().any(|rule| finding.code == rule.code));
    }
    if !found.is_empty() {
        let known: BTreeSet<Finding> = cluster_findings(before, cluster).into_iter().collect();
        // A finding about the same task in another version of the release is not new.
        let is_unplaced = |finding: &Finding| finding.code == rule::TASK_UNPLACED.code;
        let unplaced: BTreeSet<&str> = known.iter().filter(|one| is_unplaced(one)).map(|one| &*one.object).collect();
        let is_known = |finding: &Finding| is_unplaced(finding) && unplaced.contains(&*finding.object);
        found.retain(|finding| !known.contains(finding) && !is_known(finding));
    }
}

/// Returns the findings about tasks that no longer run on nodes on which they were placed. What the tasks did there
/// remains. The nodes that lose the same tasks by the same change share a finding.
pub fn newly_orphaned(before: &Fleet, after: &Fleet, nodes: impl Iterator<Item = NodeId>) -> Vec<Finding> {
    let mut lost: BTreeMap<(ProfileHash, Option<ProfileHash>), LostTasks<'_>> = BTreeMap::new();
    for id in nodes.filter(|id| after.node(*id).is_some()) {
        let Some(previous) = before.profile(id) else { continue };
        let current = after.profile(id);
        if current.is_some_and(|is| is.hash == previous.hash) {
            continue;
        }
        let entry = lost.entry((previous.hash, current.map(|is| is.hash)));
        let new = || LostTasks { tasks: lost_tasks(previous, current.map(AsRef::as_ref)), first_node: id, node_count: 0 };
        entry.or_insert_with(new).node_count += 1;
    }
    let lost = lost.into_values().filter(|lost| !lost.tasks.is_empty());
    lost.filter_map(|LostTasks { tasks, first_node: first, node_count: nodes }| {
        let node = after.node(first)?.display_name();
        let (word, run) = if tasks.len() == 1 { ("task", "runs") } else { ("tasks", "run") };
        let others = match nodes - 1 {
            0 => String::new(),
            1 => " and on 1 other node".to_owned(),
            more => format!(" and on {more} other nodes"),
        };
        let tasks = join_first(tasks.into_iter(), MAX_NAMES);
        let message = format!("{word} {tasks} no longer {run} on it{others}: what was done there stays");
        Some(Finding::new(rule::TASK_ORPHANED, format!("node/{node}"), message))
    })
    .collect()
}

/// Returns the tasks of a profile that another profile does not have.
fn lost_tasks<'a>(previous: &'a Profile, current: Option<&Profile>) -> Vec<&'a str> {
    let current_ids: BTreeSet<&str> = current.into_iter().flat_map(task_ids).collect();
    task_ids(previous).filter(|id| !current_ids.contains(id)).collect()
}

/// Returns the ids of the tasks of a profile.
fn task_ids(profile: &Profile) -> impl Iterator<Item = &str> {
    profile.tasks.iter().map(|ix| &*profile.release.task(*ix).task.id)
}
