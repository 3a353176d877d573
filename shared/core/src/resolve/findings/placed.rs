//! What a write changes in where tags and tasks fall: what is so of a cluster after it and was not before, and what hosts no longer run.

use std::collections::{BTreeMap, BTreeSet};

use super::cluster_findings;
use crate::finding::{FEW, Finding, Rule, first_few, rule};
use crate::fleet::Fleet;
use crate::object::{ClusterId, NodeId};
use crate::release::{Profile, ProfileHash};

/// What an edit of roles and tags can bring about in a cluster. What is odd about a field by itself is said where the field is written.
const OF_PLACES: &[Rule] = &[
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

/// What nodes lose by one change of their profile.
struct Lost<'a> {
    tasks: Vec<&'a str>,
    first: NodeId,
    nodes: usize,
}

/// What is odd about where tags and tasks fall in a cluster, and was not before.
pub fn newly_odd(before: &Fleet, after: &Fleet, cluster: ClusterId) -> Vec<Finding> {
    let mut found = cluster_findings(after, cluster);
    found.retain(|finding| OF_PLACES.iter().any(|rule| finding.code == rule.code));
    keep_new(&mut found, before, cluster);
    found
}

/// Keeps only those of a cluster's findings that are new. In a cluster without nodes no tag and no task falls anywhere, so its first node
/// makes no finding of what falls nowhere still.
pub fn keep_new(found: &mut Vec<Finding>, before: &Fleet, cluster: ClusterId) {
    if before.profiles_of(cluster).next().is_none() {
        found.retain(|finding| ![rule::TAG_UNHELD, rule::TASK_UNPLACED].iter().any(|rule| finding.code == rule.code));
    }
    if !found.is_empty() {
        let known: BTreeSet<Finding> = cluster_findings(before, cluster).into_iter().collect();
        // The same task of another version of the release is no news.
        let is_unplaced = |finding: &Finding| finding.code == rule::TASK_UNPLACED.code;
        let unplaced: BTreeSet<&str> = known.iter().filter(|one| is_unplaced(one)).map(|one| &*one.object).collect();
        let is_known = |finding: &Finding| is_unplaced(finding) && unplaced.contains(&*finding.object);
        found.retain(|finding| !known.contains(finding) && !is_known(finding));
    }
}

/// The tasks that no longer fall to nodes on which they stood: what they did there stays. Nodes that lose the same by the same change
/// share a finding.
pub fn newly_orphaned(before: &Fleet, after: &Fleet, nodes: impl Iterator<Item = NodeId>) -> Vec<Finding> {
    let mut lost: BTreeMap<(ProfileHash, Option<ProfileHash>), Lost<'_>> = BTreeMap::new();
    for id in nodes.filter(|id| after.node(*id).is_some()) {
        let Some(was) = before.profile(id) else { continue };
        let is = after.profile(id);
        if is.is_some_and(|is| is.hash == was.hash) {
            continue;
        }
        let entry = lost.entry((was.hash, is.map(|is| is.hash)));
        let new = || Lost { tasks: lost_tasks(was, is.map(AsRef::as_ref)), first: id, nodes: 0 };
        entry.or_insert_with(new).nodes += 1;
    }
    let lost = lost.into_values().filter(|lost| !lost.tasks.is_empty());
    lost.filter_map(|Lost { tasks, first, nodes }| {
        let node = after.node(first)?.display_name();
        let (word, run) = if tasks.len() == 1 { ("task", "runs") } else { ("tasks", "run") };
        let others = match nodes - 1 {
            0 => String::new(),
            1 => " and on 1 other node".to_owned(),
            more => format!(" and on {more} other nodes"),
        };
        let tasks = first_few(tasks.into_iter(), FEW);
        let message = format!("{word} {tasks} no longer {run} on it{others}: what was done there stays");
        Some(Finding::of(rule::TASK_ORPHANED, format!("node/{node}"), message))
    })
    .collect()
}

/// The tasks of a profile that another one does not have.
fn lost_tasks<'a>(was: &'a Profile, is: Option<&Profile>) -> Vec<&'a str> {
    let kept: BTreeSet<&str> = is.into_iter().flat_map(ids).collect();
    ids(was).filter(|id| !kept.contains(id)).collect()
}

fn ids(profile: &Profile) -> impl Iterator<Item = &str> {
    profile.tasks.iter().map(|ix| &*profile.release.task(*ix).task.id)
}
