//! Ownership in random sequences of writes by several managers, compared with a second implementation of the design's
//! rules: who owns what, what is a conflict, and that a rejected write changes nothing.

#![allow(clippy::unwrap_used, reason = "outside of its tests, too, a test program may fail")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use stemma_core::ownership::{Intent, Manager, Operation, OwnedMap, ProvidedValue};

type OwnedBytes = OwnedMap<String, u8>;
/// For each key, its provided value and its owners: a manager, and whether the operation was an apply.
type ExpectedMap = BTreeMap<String, (ProvidedValue<u8>, BTreeSet<(String, bool)>)>;

#[derive(Clone, Debug)]
enum GeneratedWrite {
    Apply { manager: &'static str, intent: Intent<String, u8>, force: bool },
    Update { manager: &'static str, whole: Intent<String, u8> },
    Patch { manager: &'static str, changes: BTreeMap<String, Option<ProvidedValue<u8>>> },
}

fn manager() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["ann", "bob", "ci"])
}

fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "c", "d"]).prop_map(str::to_owned)
}

fn provided_value() -> impl Strategy<Value = ProvidedValue<u8>> {
    option::weighted(0.8, 0..3_u8).prop_map(ProvidedValue::from)
}

fn generated_write() -> impl Strategy<Value = GeneratedWrite> {
    prop_oneof![
        3 => (manager(), btree_map(key(), provided_value(), 0..4), prop::bool::weighted(0.3))
            .prop_map(|(manager, intent, force)| GeneratedWrite::Apply { manager, intent, force }),
        1 => (manager(), btree_map(key(), provided_value(), 0..4)).prop_map(|(manager, whole)| GeneratedWrite::Update { manager, whole }),
        1 => (manager(), btree_map(key(), option::weighted(0.7, provided_value()), 0..3))
            .prop_map(|(manager, changes)| GeneratedWrite::Patch { manager, changes }),
    ]
}

/// Applies a write by the design's rules. Returns whether it is accepted. If not, the model is unchanged.
fn apply_to_expected(model: &mut ExpectedMap, write: &GeneratedWrite) -> bool {
    match write {
        GeneratedWrite::Apply { manager, intent, force } => {
            let me = ((*manager).to_owned(), true);
            let is_against = |(key, said): (&String, &ProvidedValue<u8>)| {
                model.get(key).is_some_and(|(now, owners)| now != said && owners.iter().any(|owner| *owner != me))
            };
            if !force && intent.iter().any(is_against) {
                return false;
            }
            for (key, (_, owners)) in &mut *model {
                if !intent.contains_key(key) {
                    owners.remove(&me);
                }
            }
            model.retain(|_, (_, owners)| !owners.is_empty());
            for (key, said) in intent {
                let entry = model.entry(key.clone()).or_insert((*said, BTreeSet::new()));
                if entry.0 != *said {
                    *entry = (*said, BTreeSet::new());
                }
                entry.1.insert(me.clone());
            }
        }
        GeneratedWrite::Update { manager, whole } => {
            model.retain(|key, _| whole.contains_key(key));
            for (key, said) in whole {
                set_expected(model, manager, key, *said);
            }
        }
        GeneratedWrite::Patch { manager, changes } => {
            for (key, change) in changes {
                match change {
                    Some(said) => set_expected(model, manager, key, *said),
                    None => drop(model.remove(key)),
                }
            }
        }
    }
    true
}

fn set_expected(model: &mut ExpectedMap, manager: &str, key: &str, said: ProvidedValue<u8>) {
    if model.get(key).is_none_or(|(now, _)| *now != said) {
        model.insert(key.to_owned(), (said, BTreeSet::from([(manager.to_owned(), false)])));
    }
}

/// Returns the map after a write, or `None` if the write was rejected.
fn apply_write(map: &OwnedBytes, write: &GeneratedWrite) -> Option<OwnedBytes> {
    let of = |text: &str| Manager::new(text).unwrap();
    match write {
        GeneratedWrite::Apply { manager, intent, force } => map.apply(&of(manager), intent, *force).ok(),
        GeneratedWrite::Update { manager, whole } => Some(map.update(&of(manager), whole)),
        GeneratedWrite::Patch { manager, changes } => Some(map.patch(&of(manager), changes)),
    }
}

fn to_expected(map: &OwnedBytes) -> ExpectedMap {
    let owner = |owner: &stemma_core::ownership::Owner| (owner.manager.to_string(), owner.operation == Operation::Apply);
    map.iter().map(|(key, entry)| (key.clone(), (entry.value, entry.owners.iter().map(owner).collect()))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn owned_map_matches_rules_after_writes(writes in vec(generated_write(), 0..12)) {
        let (mut map, mut model) = (OwnedBytes::default(), ExpectedMap::new());
        for write in &writes {
            let taken = apply_to_expected(&mut model, write);
            let next = apply_write(&map, write);
            prop_assert_eq!(next.is_some(), taken, "{:?} over {:?}", write, map);
            map = next.unwrap_or(map);
            prop_assert_eq!(&to_expected(&map), &model, "{:?}", write);
            prop_assert!(map.iter().all(|(_, entry)| !entry.owners.is_empty()), "nobody owns it");
        }
    }

    #[test]
    fn update_conflicts_are_changed_values_of_other_managers(
        writes in vec(generated_write(), 0..8),
        by in manager(),
        last in generated_write(),
    ) {
        let map = writes.iter().fold(OwnedBytes::default(), |map, write| apply_write(&map, write).unwrap_or(map));
        let next = apply_write(&map, &last).unwrap_or(map.clone());
        let (before, after) = (to_expected(&map), to_expected(&next));
        let mut expected = BTreeSet::new();
        for (key, (said, owners)) in &before {
            let is_kept = after.get(key).is_some_and(|(now, _)| now == said);
            expected.extend(owners.iter().filter(|(owner, _)| !is_kept && owner != by).map(|owner| (key.clone(), owner.clone())));
        }
        let taken = map.conflicts_with(&Manager::new(by).unwrap(), &next);
        prop_assert_eq!(taken.len(), expected.len(), "each once");
        for one in taken {
            prop_assert_eq!(&one.value, &before[&one.key].0);
            let owner = (one.owner.manager.to_string(), one.owner.operation == Operation::Apply);
            prop_assert!(expected.contains(&(one.key.clone(), owner)), "{:?} {:?}", one.key, one.owner);
        }
    }

    #[test]
    fn repeated_apply_changes_nothing(writes in vec(generated_write(), 0..8), intent in btree_map(key(), provided_value(), 0..4)) {
        let map = writes.iter().fold(OwnedBytes::default(), |map, write| apply_write(&map, write).unwrap_or(map));
        let ann = Manager::new("ann").unwrap();
        let once = map.apply(&ann, &intent, true).unwrap();
        prop_assert_eq!(once.apply(&ann, &intent, false), Ok(once.clone()));
        // A manager that applies an empty intent owns nothing any more, and leaves what others also provide.
        let gone = once.apply(&ann, &Intent::new(), false).unwrap();
        prop_assert!(to_expected(&gone).values().all(|(_, owners)| !owners.contains(&("ann".to_owned(), true))));
        prop_assert!(gone.iter().all(|(key, entry)| once.get(key).map(|before| &before.value) == Some(&entry.value)));
    }
}
