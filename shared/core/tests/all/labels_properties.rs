//! What holds of every fold, over random levels: it is what the table of the design says, does not depend on the order
//! in which anything was written, the nearest level wins and is named, and replaying the origins yields the values.

#![allow(clippy::unwrap_used, reason = "outside of its tests, too, a test program may fail")]

use std::collections::BTreeMap;

use proptest::collection::btree_map;
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use stemma_core::key::{LabelKey, LabelValue};
use stemma_core::labels::{Effect, Fill, LabelLayer, Labels, Level, differences};
use stemma_core::origin::Origin;
use stemma_core::ownership::{Intent, Manager, OwnedMap, Said};

type Written = Intent<LabelKey, LabelValue>;
type Values = BTreeMap<LabelKey, LabelValue>;

/// What an author writes at one level: nothing, or a map and whether it merges.
type Author = Option<(Written, bool)>;

fn key() -> impl Strategy<Value = LabelKey> {
    prop::sample::select(vec!["a", "b", "c", "example.com/d", "node.stemma.io/e", "kubernetes.io/f"])
        .prop_map(|text| LabelKey::new(text).unwrap())
}

fn value() -> impl Strategy<Value = LabelValue> {
    prop::sample::select(vec!["", "1", "2", "gold"]).prop_map(|text| LabelValue::new(text).unwrap())
}

fn author() -> impl Strategy<Value = Author> {
    let map = btree_map(key(), option::weighted(0.8, value()).prop_map(Said::from), 0..5);
    option::weighted(0.8, (map, prop::bool::weighted(0.8)))
}

fn levels() -> impl Strategy<Value = Vec<(Level, Author)>> {
    let levels = [Level::ClusterTemplate, Level::Cluster, Level::NodeGroup, Level::Node];
    prop::array::uniform4(author()).prop_map(move |authors| levels.into_iter().zip(authors).collect())
}

fn manager(text: &str) -> Manager {
    Manager::new(text).unwrap()
}

fn layer(author: &Author) -> LabelLayer {
    let Some((written, merges)) = author else { return LabelLayer::default() };
    let provided = OwnedMap::default().apply(&manager("site"), written, false).unwrap();
    LabelLayer { provided: Some(provided), merge: Some(*merges) }
}

fn folded(levels: &[(Level, Author)]) -> Labels {
    let layers: Vec<_> = levels.iter().map(|(level, author)| (*level, layer(author))).collect();
    Labels::of(layers.iter().map(|(level, layer)| (*level, layer)))
}

/// The design's table, by hand.
fn model(levels: &[(Level, Author)]) -> Values {
    let mut effective = Values::new();
    for (written, merges) in levels.iter().filter_map(|(_, author)| author.as_ref()) {
        if !merges {
            effective.clear();
        }
        for (key, said) in written {
            match said {
                Said::Value(value) => drop(effective.insert(key.clone(), value.clone())),
                Said::Tombstone => drop(effective.remove(key)),
            }
        }
    }
    effective
}

/// What the level that an origin names says of the key.
fn replay(levels: &[(Level, Author)], key: &LabelKey, origin: &Origin) -> Option<LabelValue> {
    let Origin::Level(level) = origin else { return None };
    let (written, _) = levels.iter().find(|one| one.0 == *level)?.1.as_ref()?;
    written.get(key)?.value().cloned()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn a_fold_is_the_table_of_the_design(levels in levels()) {
        prop_assert_eq!(folded(&levels).values(), model(&levels));
    }

    #[test]
    fn replaying_the_origins_yields_the_values(levels in levels()) {
        for (key, said) in folded(&levels).iter() {
            prop_assert_eq!(replay(&levels, key, &said.origin), Some(said.value.clone()), "{}", key);
            prop_assert!(!said.owners.is_empty());
        }
    }

    #[test]
    fn the_nearest_level_that_speaks_wins_and_is_named(levels in levels()) {
        let labels = folded(&levels);
        for (key, line) in labels.lines() {
            let nearest = levels.iter().filter(|(_, author)| author.as_ref().is_some_and(|one| one.0.contains_key(key)));
            let nearest = nearest.map(|(level, _)| *level).max();
            prop_assert_eq!(line.outcomes().last().map(|(said, _)| said.level), nearest);
            let winners: Vec<_> =
                line.outcomes().filter(|(_, outcome)| *outcome == Effect::Wins).map(|(said, _)| said.level).collect();
            let named: Vec<_> = line
                .effective()
                .into_iter()
                .filter_map(|said| if let Origin::Level(level) = said.origin { Some(level) } else { None })
                .collect();
            prop_assert_eq!(winners, named);
        }
    }

    #[test]
    fn the_order_in_which_keys_were_written_means_nothing(levels in levels()) {
        let one_by_one = |author: &Author| {
            let mut layer = layer(author);
            let Some((written, _)) = author else { return layer };
            let mut map = OwnedMap::default();
            for (key, said) in written.iter().rev() {
                map = map.patch(&manager("site"), &BTreeMap::from([(key.clone(), Some(said.clone()))]));
            }
            layer.provided = Some(map);
            layer
        };
        let layers: Vec<_> = levels.iter().map(|(level, author)| (*level, one_by_one(author))).collect();
        let other = Labels::of(layers.iter().map(|(level, layer)| (*level, layer)));
        prop_assert_eq!(other.values(), folded(&levels).values());
    }

    #[test]
    fn a_fold_of_the_effective_map_is_itself(levels in levels()) {
        let values = folded(&levels).values();
        let written = values.iter().map(|(key, value)| (key.clone(), Said::Value(value.clone()))).collect();
        for merges in [true, false] {
            let again = layer(&Some((Written::clone(&written), merges)));
            prop_assert_eq!(folded(&levels).below(Level::Node, &again).values(), values.clone());
        }
    }

    #[test]
    fn a_level_that_provides_nothing_shares_its_parents_map(levels in levels()) {
        let labels = folded(&levels);
        prop_assert!(labels.below(Level::Node, &LabelLayer::default()).is_same(&labels));
    }

    #[test]
    fn a_fill_touches_no_key_that_a_level_sets_or_stops(
        levels in levels(),
        rule in btree_map(key(), value(), 0..4),
        host in btree_map(key(), value(), 0..4),
        grants in any::<bool>(),
    ) {
        let before = folded(&levels);
        let ruled = before.fill(&Fill { origin: Origin::Rule("r".into()), grants, labels: &rule });
        let after = ruled.fill(&Fill { origin: Origin::Host, grants: false, labels: &host });
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
    fn the_differences_bring_the_parent_back(levels in levels(), own in author()) {
        let parent = folded(&levels).values();
        let own = folded(&levels).below(Level::Node, &layer(&own)).values();
        let found = differences(&parent, &own);
        let mut back = own.clone();
        back.retain(|key, _| !found.added.contains_key(key));
        back.extend(found.overridden.clone());
        back.extend(found.skipped.clone());
        prop_assert_eq!(back, parent);
        prop_assert!(found.overridden.iter().all(|(key, value)| own.get(key).is_some_and(|ours| ours != value)));
    }
}
