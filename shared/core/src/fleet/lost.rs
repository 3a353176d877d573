//! The labels that hosts lose by a change of the fleet.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Fleet, GroupFold};
use crate::key::LabelKey;
use crate::object::NodeId;

/// The labels that these hosts had and have no longer, each with how many hosts lose it.
pub fn lost_labels(before: &Fleet, after: &Fleet, nodes: impl Iterator<Item = NodeId>) -> BTreeMap<LabelKey, usize> {
    let mut lost = BTreeMap::new();
    let may_lose_ruled = !before.rules().decides_like(after.rules()) && before.rules().gives().may_give_labels();
    let mut of_groups = BTreeMap::new();
    for node in nodes {
        let Some((old, new)) = before.entry(node).zip(after.entry(node)) else { continue };
        let (was, is) = (&old.node.spec, &new.node.spec);
        // What its host reports is the same: a node that says what it said loses only what its group hands on or takes no longer, and
        // what rules gave it.
        let is_by_group = of_groups
            .entry((was.nodegroup, is.nodegroup))
            .or_insert_with(|| !decide_alike(before.fold_above(was), after.fold_above(is)));
        let is_by_rules = || may_lose_ruled && before.rules_otherwise(after, node);
        if *is_by_group || !Arc::ptr_eq(&old.node, &new.node) || is_by_rules() {
            let labels = |fleet: &Fleet| fleet.node_view(node).map(|view| view.labels()).unwrap_or_default();
            let (had, has) = (labels(before), labels(after));
            for (key, _) in had.iter().filter(|(key, _)| has.get(key.as_str()).is_none()) {
                *lost.entry(key.clone()).or_default() += 1;
            }
        }
    }
    lost
}

/// Whether two groups hand the same labels down, stop the same ones, and take the same ones from hosts.
fn decide_alike(old: Option<&Arc<GroupFold>>, new: Option<&Arc<GroupFold>>) -> bool {
    match (old, new) {
        (None, None) => true,
        (Some(old), Some(new)) => {
            old.maps.labels == new.maps.labels && old.host_labels.value.accepts_as(&new.host_labels.value)
        }
        (Some(_), None) | (None, Some(_)) => false,
    }
}
