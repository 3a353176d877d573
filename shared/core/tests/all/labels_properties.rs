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

type WrittenLabels = Intent<LabelKey, LabelValue>;
type LabelValues = BTreeMap<LabelKey, LabelValue>;

/// What an author provides at one level: nothing, or a map and whether it merges.
type LevelInput = Option<(WrittenLabels, bool)>;

fn key() -> impl Strategy<Value = LabelKey> {
    prop::sample::select(vec!["a", "b", "c", "example.com/d", "node.stemma.io/e", "kubernetes.io/f"])
        .prop_map(|text| LabelKey::new(text).unwrap())
}

fn value() -> impl Strategy<Value = LabelValue> {
    prop::sample::select(vec!["", "1", "2", "gold"]).prop_map(|text| LabelValue::new(text).unwrap())
}

fn level_input() -> impl Strategy<Value = LevelInput> {
    let map = btree_map(key(), option::weighted(0.8, value()).prop_map(ProvidedValue::from), 0..5);
    option::weighted(0.8, (map, prop::bool::weighted(0.8)))
}

fn levels() -> impl Strategy<Value = Vec<(Level, LevelInput)>> {
    let levels = [Level::ClusterTemplate, Level::Cluster, Level::NodeGroup, Level::Node];
    prop::array::uniform4(level_input()).prop_map(move |inputs| levels.into_iter().zip(inputs).collect())
}

fn manager(text: &str) -> Manager {
    Manager::new(text).unwrap()
}

fn build_layer(input: &LevelInput) -> LabelLayer {
    let Some((written, merges)) = input else { return LabelLayer::default() };
    let provided = OwnedMap::default().apply(&manager("site"), written, false).unwrap();
    LabelLayer { provided: Some(provided), merge: Some(*merges) }
}

fn fold_levels(levels: &[(Level, LevelInput)]) -> Labels {
    let layers: Vec<_> = levels.iter().map(|(level, author)| (*level, build_layer(author))).collect();
    Labels::from_levels(layers.iter().map(|(level, layer)| (*level, layer)))
}

/// Computes the result by the rules of docs/concepts.md, section Labels.
fn expected_values(levels: &[(Level, LevelInput)]) -> LabelValues {
    let mut effective = LabelValues::new();
    for (written, merges) in levels.iter().filter_map(|(_, author)| author.as_ref()) {
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

/// Returns the value that the origin's level provides for the key.
fn value_at_origin(levels: &[(Level, LevelInput)], key: &LabelKey, origin: &Origin) -> Option<LabelValue> {
    let Origin::Level(level) = origin else { return None };
    let (written, _) = levels.iter().find(|one| one.0 == *level)?.1.as_ref()?;
    written.get(key)?.value().cloned()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn merge_matches_documented_rules(levels in levels()) {
        prop_assert_eq!(fold_levels(&levels).values(), expected_values(&levels));
    }

    #[test]
    fn merge_origins_reproduce_values(levels in levels()) {
        for (key, said) in fold_levels(&levels).iter() {
            prop_assert_eq!(value_at_origin(&levels, key, &said.origin), Some(said.value.clone()), "{}", key);
            prop_assert!(!said.owners.is_empty());
        }
    }

    #[test]
    fn merge_origin_is_nearest_level_with_key(levels in levels()) {
        let labels = fold_levels(&levels);
        for (key, line) in labels.provenances() {
            let nearest = levels.iter().filter(|(_, author)| author.as_ref().is_some_and(|one| one.0.contains_key(key)));
            let nearest = nearest.map(|(level, _)| *level).max();
            prop_assert_eq!(line.level_effects().last().map(|(said, _)| said.level), nearest);
            let winners: Vec<_> =
                line.level_effects().filter(|(_, outcome)| *outcome == LevelEffect::Wins).map(|(said, _)| said.level).collect();
            let named: Vec<_> = line
                .effective()
                .into_iter()
                .filter_map(|said| if let Origin::Level(level) = said.origin { Some(level) } else { None })
                .collect();
            prop_assert_eq!(winners, named);
        }
    }

    #[test]
    fn merge_ignores_order_of_keys(levels in levels()) {
        let one_by_one = |author: &LevelInput| {
            let mut layer = build_layer(author);
            let Some((written, _)) = author else { return layer };
            let mut map = OwnedMap::default();
            for (key, said) in written.iter().rev() {
                map = map.patch(&manager("site"), &BTreeMap::from([(key.clone(), Some(said.clone()))]));
            }
            layer.provided = Some(map);
            layer
        };
        let layers: Vec<_> = levels.iter().map(|(level, author)| (*level, one_by_one(author))).collect();
        let other = Labels::from_levels(layers.iter().map(|(level, layer)| (*level, layer)));
        prop_assert_eq!(other.values(), fold_levels(&levels).values());
    }

    #[test]
    fn merge_of_effective_map_is_unchanged(levels in levels()) {
        let values = fold_levels(&levels).values();
        let written = values.iter().map(|(key, value)| (key.clone(), ProvidedValue::Value(value.clone()))).collect();
        for merges in [true, false] {
            let again = build_layer(&Some((WrittenLabels::clone(&written), merges)));
            prop_assert_eq!(fold_levels(&levels).with_level(Level::Node, &again).values(), values.clone());
        }
    }

    #[test]
    fn level_without_labels_shares_parent_map(levels in levels()) {
        let labels = fold_levels(&levels);
        prop_assert!(labels.with_level(Level::Node, &LabelLayer::default()).is_same(&labels));
    }

    #[test]
    fn fill_sets_no_key_decided_by_level(
        levels in levels(),
        rule in btree_map(key(), value(), 0..4),
        host in btree_map(key(), value(), 0..4),
        grants in any::<bool>(),
    ) {
        let before = fold_levels(&levels);
        let ruled = before.fill(&FillSource { origin: Origin::Rule("r".into()), can_set_restricted: grants, labels: &rule });
        let after = ruled.fill(&FillSource { origin: Origin::Host, can_set_restricted: false, labels: &host });
        for (key, value) in before.values() {
            prop_assert_eq!(after.get(&key), Some(&value));
        }
        for (key, said) in after.iter() {
            let restricted = key.contains("stemma.io") || key.contains("kubernetes.io");
            let spoken = levels.iter().filter_map(|(_, author)| author.as_ref()).any(|(written, merges)| {
                written.get(key).is_some_and(|said| *merges || !said.is_tombstone())
            });
            match said.origin {
                Origin::Rule(_) => {
                    prop_assert!(!spoken && (grants || !restricted));
                    prop_assert_eq!(rule.get(key), Some(said.value));
                }
                Origin::Host => {
                    prop_assert!(!spoken && !restricted);
                    prop_assert!(!rule.contains_key(key));
                    prop_assert_eq!(host.get(key), Some(said.value));
                }
                Origin::Level(_) | Origin::Default => prop_assert!(spoken),
            }
        }
    }

    #[test]
    fn differences_restore_parent(levels in levels(), own in level_input()) {
        let parent = fold_levels(&levels).values();
        let own = fold_levels(&levels).with_level(Level::Node, &build_layer(&own)).values();
        let found = map_diff(&parent, &own);
        let mut back = own.clone();
        back.retain(|key, _| !found.added.contains_key(key));
        back.extend(found.overridden.clone());
        back.extend(found.skipped.clone());
        prop_assert_eq!(back, parent);
        prop_assert!(found.overridden.iter().all(|(key, value)| own.get(key).is_some_and(|ours| ours != value)));
    }
}
