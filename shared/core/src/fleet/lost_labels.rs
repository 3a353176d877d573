//! Finds the labels that hosts lose by a change of the fleet.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Fleet, ResolvedGroup};
use crate::key::LabelKey;
use crate::object::NodeId;

/// Returns the labels that some of these hosts had before a change and do not have after it, each with the number of
/// these hosts.
pub fn lost_labels(before: &Fleet, after: &Fleet, nodes: impl Iterator<Item = NodeId>) -> BTreeMap<LabelKey, usize> {
    let mut lost = BTreeMap::new();
    let may_lose_ruled = !before.rules().has_same_effects(after.rules()) && before.rules().possible_effects().may_set_labels();
    let mut group_changes = BTreeMap::new();
    for node in nodes {
        let Some((old, new)) = before.entry(node).zip(after.entry(node)) else { continue };
        let (old_spec, new_spec) = (&old.node.spec, &new.node.spec);
        // Reports are the same in both fleets. So an unchanged node can lose only labels that its group no longer
        // provides or accepts, and labels from rules.
        let has_group_change = group_changes
            .entry((old_spec.nodegroup, new_spec.nodegroup))
            .or_insert_with(|| !has_same_label_rules(before.resolved_parent(old_spec), after.resolved_parent(new_spec)));
        let is_by_rules = || may_lose_ruled && before.has_rule_changes(after, node);
        if *has_group_change || !Arc::ptr_eq(&old.node, &new.node) || is_by_rules() {
            let labels = |fleet: &Fleet| fleet.node_view(node).map(|view| view.labels()).unwrap_or_default();
            let (old_labels, new_labels) = (labels(before), labels(after));
            for (key, _) in old_labels.iter().filter(|(key, _)| new_labels.get(key.as_str()).is_none()) {
                *lost.entry(key.clone()).or_default() += 1;
            }
        }
    }
    lost
}

/// Returns whether two groups provide the same labels and tombstones, and accept the same labels from hosts.
fn has_same_label_rules(old: Option<&Arc<ResolvedGroup>>, new: Option<&Arc<ResolvedGroup>>) -> bool {
    match (old, new) {
        (None, None) => true,
        (Some(old), Some(new)) => {
            old.maps.labels == new.maps.labels && old.host_labels.value.has_same_accepted_keys(&new.host_labels.value)
        }
        (Some(_), None) | (None, Some(_)) => false,
    }
}
