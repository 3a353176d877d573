//! Finds the labels that hosts lose by a change of the fleet.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Fleet, ResolvedGroup};
use crate::key::LabelKey;
use crate::object::NodeId;

/// Returns the labels that some of these nodes had before a write and do not have after it, each with the number of
/// nodes that lose it. Nodes that the write creates or deletes are skipped.
pub fn lost_labels(old: &Fleet, new: &Fleet, nodes: impl Iterator<Item = NodeId>) -> BTreeMap<LabelKey, usize> {
    let mut lost_counts = BTreeMap::new();
    let may_lose_rule_labels = !old.rules().has_same_effects(new.rules()) && old.rules().possible_effects().may_set_labels();
    let mut group_changes = BTreeMap::new();
    for node in nodes {
        let Some((old_entry, new_entry)) = old.entry(node).zip(new.entry(node)) else { continue };
        let (old_spec, new_spec) = (&old_entry.node.spec, &new_entry.node.spec);
        // Reports are the same in both fleets. So an unchanged node can lose only labels that its group no longer
        // provides or accepts, and labels from rules.
        let has_group_change = group_changes
            .entry((old_spec.nodegroup, new_spec.nodegroup))
            .or_insert_with(|| !has_same_label_inputs(old.resolved_parent(old_spec), new.resolved_parent(new_spec)));
        let has_rule_change = || may_lose_rule_labels && old.has_rule_changes(new, node);
        if *has_group_change || !Arc::ptr_eq(&old_entry.node, &new_entry.node) || has_rule_change() {
            let labels = |fleet: &Fleet| fleet.node_view(node).map(|view| view.labels()).unwrap_or_default();
            let (old_labels, new_labels) = (labels(old), labels(new));
            for (key, _) in old_labels.iter().filter(|(key, _)| new_labels.get(key.as_str()).is_none()) {
                *lost_counts.entry(key.clone()).or_default() += 1;
            }
        }
    }
    lost_counts
}

/// Returns whether two groups accept the same label keys from hosts, and provide the same labels and tombstones with
/// the same provenance (levels, owners and times).
fn has_same_label_inputs(old: Option<&Arc<ResolvedGroup>>, new: Option<&Arc<ResolvedGroup>>) -> bool {
    match (old, new) {
        (None, None) => true,
        (Some(old), Some(new)) => {
            old.maps.labels == new.maps.labels && old.host_labels.value.has_same_accepted_keys(&new.host_labels.value)
        }
        (Some(_), None) | (None, Some(_)) => false,
    }
}
