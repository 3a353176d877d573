//! Properties of every merge of random levels. The result follows the rules of docs/concepts.md and does not depend on
//! the order of writes. The nearest level wins and is the origin, and the values at the origins reproduce the result.

#![allow(clippy::unwrap_used, reason = "outside of its tests, too, a test program may fail")]

use std::collections::BTreeMap;

use proptest::collection::btree_map;
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use stemma_core::key::{LabelKey, LabelValue};
use stemma_core::labels::{FillSource, LabelLayer, Labels, Level, LevelEffect, map_diff};
use stemma_core::origin::Origin;
use stemma_core::ownership::{Intent, Manager, OwnedMap, ProvidedValue};

/// The labels of one apply. A value may be a tombstone.
type WrittenLabels = Intent<LabelKey, LabelValue>;
type LabelValues = BTreeMap<LabelKey, LabelValue>;

/// The input of one level: nothing, or the labels that an author writes and the value of `merge_labels`.
type LevelInput = Option<(WrittenLabels, bool)>;

fn key() -> impl Strategy<Value = LabelKey> {
    prop::sample::select(vec!["a", "b", "c", "example.com/d", "node.stemma.io/e", "kubernetes.io/f"])
        .prop_map(|text| LabelKey::new(text).unwrap())
}

fn value() -> impl Strategy<Value = LabelValue> {
    prop::sample::select(vec!["", "1", "2", "gold"]).prop_map(|text| LabelValue::new(text).unwrap())
}

/// Generates the input of one level. Some levels provide nothing, and some values are tombstones.
fn level_input() -> impl Strategy<Value = LevelInput> {
    let map = btree_map(key(), option::weighted(0.8, value()).prop_map(ProvidedValue::from), 0..5);
    option::weighted(0.8, (map, prop::bool::weighted(0.8)))
}

/// Generates the input of each level, from the cluster template to the node.
fn levels() -> impl Strategy<Value = Vec<(Level, LevelInput)>> {
    let levels = [Level::ClusterTemplate, Level::Cluster, Level::NodeGroup, Level::Node];
    prop::array::uniform4(level_input()).prop_map(move |inputs| levels.into_iter().zip(inputs).collect())
}

fn manager(text: &str) -> Manager {
    Manager::new(text).unwrap()
}

/// Returns the labels of one level as the store would have them, after an apply of the input.
fn build_layer(input: &LevelInput) -> LabelLayer {
    let Some((written, merges)) = input else { return LabelLayer::default() };
    let provided = OwnedMap::default().apply(&manager("site"), written, false).unwrap();
    LabelLayer { provided: Some(provided), merge: Some(*merges) }
}

/// Returns the effective labels that result from the inputs of all levels.
fn merge_levels(levels: &[(Level, LevelInput)]) -> Labels {
    let layers: Vec<_> = levels.iter().map(|(level, input)| (*level, build_layer(input))).collect();
    Labels::from_levels(layers.iter().map(|(level, layer)| (*level, layer)))
}

/// Computes the expected effective labels from the inputs of all levels, by the rules of docs/concepts.md, section
/// Labels.
fn expected_values(levels: &[(Level, LevelInput)]) -> LabelValues {
    let mut effective = LabelValues::new();
    for (written, merges) in levels.iter().filter_map(|(_, input)| input.as_ref()) {
        if !merges {
            effective.clear();
        }
        for (key, provided) in written {
            match provided {
                ProvidedValue::Value(value) => drop(effective.insert(key.clone(), value.clone())),
                ProvidedValue::Tombstone => drop(effective.remove(key)),
            }
        }
    }
    effective
}

/// Returns the value that the origin's level provides for the key. Returns `None` for an origin that is not a level,
/// and for a level that has a tombstone or no entry for the key.
fn value_at_origin(levels: &[(Level, LevelInput)], key: &LabelKey, origin: &Origin) -> Option<LabelValue> {
    let Origin::Level(level) = origin else { return None };
    let (written, _) = levels.iter().find(|entry| entry.0 == *level)?.1.as_ref()?;
    written.get(key)?.value().cloned()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn merge_matches_documented_rules(levels in levels()) {
        prop_assert_eq!(merge_levels(&levels).values(), expected_values(&levels));
    }

    /// The level in the origin of an effective label provides the value of the label.
    #[test]
    fn merge_origins_reproduce_values(levels in levels()) {
        for (key, label) in merge_levels(&levels).iter() {
            prop_assert_eq!(value_at_origin(&levels, key, &label.origin), Some(label.value.clone()), "{}", key);
            prop_assert!(!label.owners.is_empty());
        }
    }

    /// `level_effects` lists the levels that provide a key, the nearest one last. If a level wins, it is the origin of
    /// the effective value. If no level wins, the key has no effective value.
    #[test]
    fn merge_origin_is_nearest_level_with_key(levels in levels()) {
        let labels = merge_levels(&levels);
        for (key, provenance) in labels.provenances() {
            let nearest = levels.iter().filter(|(_, input)| input.as_ref().is_some_and(|(written, _)| written.contains_key(key)));
            let nearest = nearest.map(|(level, _)| *level).max();
            prop_assert_eq!(provenance.level_effects().last().map(|(entry, _)| entry.level), nearest);
            let winners: Vec<_> =
                provenance.level_effects().filter(|(_, effect)| *effect == LevelEffect::Wins).map(|(entry, _)| entry.level).collect();
            let origin_levels: Vec<_> = provenance
                .effective()
                .into_iter()
                .filter_map(|entry| if let Origin::Level(level) = entry.origin { Some(level) } else { None })
                .collect();
            prop_assert_eq!(winners, origin_levels);
        }
    }

    /// The labels of each level are written in one apply, or key by key in reverse order. Both ways give the same
    /// result.
    #[test]
    fn merge_ignores_order_of_keys(levels in levels()) {
        let layer_by_single_writes = |input: &LevelInput| {
            let mut layer = build_layer(input);
            let Some((written, _)) = input else { return layer };
            let mut map = OwnedMap::default();
            for (key, provided_value) in written.iter().rev() {
                map = map.patch(&manager("site"), &BTreeMap::from([(key.clone(), Some(provided_value.clone()))]));
            }
            layer.provided = Some(map);
            layer
        };
        let layers: Vec<_> = levels.iter().map(|(level, input)| (*level, layer_by_single_writes(input))).collect();
        let merged = Labels::from_levels(layers.iter().map(|(level, layer)| (*level, layer)));
        prop_assert_eq!(merged.values(), merge_levels(&levels).values());
    }

    /// A node that provides exactly its inherited labels changes no label, whether it merges or not.
    #[test]
    fn merge_of_effective_map_is_unchanged(levels in levels()) {
        let values = merge_levels(&levels).values();
        let written = values.iter().map(|(key, value)| (key.clone(), ProvidedValue::Value(value.clone()))).collect();
        for merges in [true, false] {
            let layer = build_layer(&Some((WrittenLabels::clone(&written), merges)));
            prop_assert_eq!(merge_levels(&levels).with_level(Level::Node, &layer).values(), values.clone());
        }
    }

    #[test]
    fn level_without_labels_shares_parent_map(levels in levels()) {
        let labels = merge_levels(&levels);
        prop_assert!(labels.with_level(Level::Node, &LabelLayer::default()).shares_data_with(&labels));
    }

    /// A rule, and then a host, fill keys that no level decides. A level decides a key by a value or a tombstone. A
    /// tombstone of a level that does not merge decides nothing. Only a rule that grants this may set restricted keys.
    #[test]
    fn fill_sets_no_key_decided_by_level(
        levels in levels(),
        rule_labels in btree_map(key(), value(), 0..4),
        host_labels in btree_map(key(), value(), 0..4),
        can_set_restricted_keys in any::<bool>(),
    ) {
        let inherited = merge_levels(&levels);
        let filled_by_rule = inherited.fill(&FillSource { origin: Origin::Rule("r".into()), can_set_restricted: can_set_restricted_keys, labels: &rule_labels });
        let filled = filled_by_rule.fill(&FillSource { origin: Origin::Host, can_set_restricted: false, labels: &host_labels });
        for (key, value) in inherited.values() {
            prop_assert_eq!(filled.get(&key), Some(&value));
        }
        for (key, label) in filled.iter() {
            let is_restricted = key.contains("stemma.io") || key.contains("kubernetes.io");
            let is_decided = levels.iter().filter_map(|(_, input)| input.as_ref()).any(|(written, merges)| {
                written.get(key).is_some_and(|provided| *merges || !provided.is_tombstone())
            });
            match label.origin {
                Origin::Rule(_) => {
                    prop_assert!(!is_decided && (can_set_restricted_keys || !is_restricted));
                    prop_assert_eq!(rule_labels.get(key), Some(label.value));
                }
                Origin::Host => {
                    prop_assert!(!is_decided && !is_restricted);
                    prop_assert!(!rule_labels.contains_key(key));
                    prop_assert_eq!(host_labels.get(key), Some(label.value));
                }
                Origin::Level(_) | Origin::Default => prop_assert!(is_decided),
            }
        }
    }

    /// The difference has the keys that the node adds, overrides (with the value of the parent) and lacks. So the map
    /// of the parent can be computed from the map of the node.
    #[test]
    fn differences_restore_parent(levels in levels(), own_labels in level_input()) {
        let parent = merge_levels(&levels).values();
        let own_labels = merge_levels(&levels).with_level(Level::Node, &build_layer(&own_labels)).values();
        let diff = map_diff(&parent, &own_labels);
        let mut restored = own_labels.clone();
        restored.retain(|key, _| !diff.added.contains_key(key));
        restored.extend(diff.overridden.clone());
        restored.extend(diff.skipped.clone());
        prop_assert_eq!(restored, parent);
        prop_assert!(diff.overridden.iter().all(|(key, value)| own_labels.get(key).is_some_and(|own_value| own_value != value)));
    }
}
