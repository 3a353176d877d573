//! Ownership in random sequences of writes by several managers, compared with a second implementation of the design's
//! rules: who owns what, what is a conflict, and that a rejected write changes nothing.

#![allow(clippy::unwrap_used, reason = "outside of its tests, too, a test program may fail")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use stemma_core::ownership::{Intent, Manager, Operation, OwnedMap, ProvidedValue};

/// The map under test. Its values are small numbers.
type OwnedBytes = OwnedMap<String, u8>;
/// For each key, its provided value and its owners. An owner is a manager, and `true` if the manager applied the key.
type ExpectedMap = BTreeMap<String, (ProvidedValue<u8>, BTreeSet<(String, bool)>)>;

/// A generated write of a manager: an apply, an update that sends the whole map, or a patch of single keys. A patch
/// removes a key whose change is `None`.
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

/// Generates a write. Applies are three times as frequent as updates, and as patches.
fn generated_write() -> impl Strategy<Value = GeneratedWrite> {
    prop_oneof![
        3 => (manager(), btree_map(key(), provided_value(), 0..4), prop::bool::weighted(0.3))
            .prop_map(|(manager, intent, force)| GeneratedWrite::Apply { manager, intent, force }),
        1 => (manager(), btree_map(key(), provided_value(), 0..4)).prop_map(|(manager, whole)| GeneratedWrite::Update { manager, whole }),
        1 => (manager(), btree_map(key(), option::weighted(0.7, provided_value()), 0..3))
            .prop_map(|(manager, changes)| GeneratedWrite::Patch { manager, changes }),
    ]
}

/// Applies a write to the model by the rules of docs/concepts.md, section Ownership. Returns false and leaves the model
/// unchanged if the write is refused because of a conflict. In an owner, `true` means that the manager applied.
fn apply_to_expected(model: &mut ExpectedMap, write: &GeneratedWrite) -> bool {
    match write {
        GeneratedWrite::Apply { manager, intent, force } => {
            let this_owner = ((*manager).to_owned(), true);
            let is_conflict = |(key, value): (&String, &ProvidedValue<u8>)| {
                model.get(key).is_some_and(|(current_value, owners)| {
                    current_value != value && owners.iter().any(|owner| *owner != this_owner)
                })
            };
            if !force && intent.iter().any(is_conflict) {
                return false;
            }
            // The manager gives up the keys that its intent no longer contains.
            for (key, (_, owners)) in &mut *model {
                if !intent.contains_key(key) {
                    owners.remove(&this_owner);
                }
            }
            model.retain(|_, (_, owners)| !owners.is_empty());
            for (key, value) in intent {
                let entry = model.entry(key.clone()).or_insert((*value, BTreeSet::new()));
                // A forced apply with another value replaces all owners of the key.
                if entry.0 != *value {
                    *entry = (*value, BTreeSet::new());
                }
                entry.1.insert(this_owner.clone());
            }
        }
        GeneratedWrite::Update { manager, whole } => {
            model.retain(|key, _| whole.contains_key(key));
            for (key, value) in whole {
                set_expected(model, manager, key, *value);
            }
        }
        GeneratedWrite::Patch { manager, changes } => {
            for (key, change) in changes {
                match change {
                    Some(value) => set_expected(model, manager, key, *value),
                    None => drop(model.remove(key)),
                }
            }
        }
    }
    true
}

/// Sets a key by a plain write. If the value changes, the manager becomes the only owner. Otherwise the owners remain.
fn set_expected(model: &mut ExpectedMap, manager: &str, key: &str, value: ProvidedValue<u8>) {
    if model.get(key).is_none_or(|(current_value, _)| *current_value != value) {
        model.insert(key.to_owned(), (value, BTreeSet::from([(manager.to_owned(), false)])));
    }
}

/// Returns the map after a write, or `None` if the write was rejected.
fn apply_write(map: &OwnedBytes, write: &GeneratedWrite) -> Option<OwnedBytes> {
    let parse_manager = |text: &str| Manager::new(text).unwrap();
    match write {
        GeneratedWrite::Apply { manager, intent, force } => map.apply(&parse_manager(manager), intent, *force).ok(),
        GeneratedWrite::Update { manager, whole } => Some(map.update(&parse_manager(manager), whole)),
        GeneratedWrite::Patch { manager, changes } => Some(map.patch(&parse_manager(manager), changes)),
    }
}

/// Converts a map to the form of the model, which the test compares.
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
            let is_accepted = apply_to_expected(&mut model, write);
            let next_map = apply_write(&map, write);
            prop_assert_eq!(next_map.is_some(), is_accepted, "{:?} over {:?}", write, map);
            map = next_map.unwrap_or(map);
            prop_assert_eq!(&to_expected(&map), &model, "{:?}", write);
            prop_assert!(map.iter().all(|(_, entry)| !entry.owners.is_empty()), "each key has an owner");
        }
    }

    /// A conflict is expected for each owner of a key that the last write changes or removes, unless the owner is the
    /// manager `writer`.
    #[test]
    fn update_conflicts_are_changed_values_of_other_managers(
        writes in vec(generated_write(), 0..8),
        writer in manager(),
        last_write in generated_write(),
    ) {
        let map = writes.iter().fold(OwnedBytes::default(), |map, write| apply_write(&map, write).unwrap_or(map));
        let next_map = apply_write(&map, &last_write).unwrap_or(map.clone());
        let (old_model, new_model) = (to_expected(&map), to_expected(&next_map));
        let mut expected = BTreeSet::new();
        for (key, (value, owners)) in &old_model {
            let is_unchanged = new_model.get(key).is_some_and(|(new_value, _)| new_value == value);
            expected.extend(owners.iter().filter(|(owner, _)| !is_unchanged && owner != writer).map(|owner| (key.clone(), owner.clone())));
        }
        let conflicts = map.conflicts_with(&Manager::new(writer).unwrap(), &next_map);
        prop_assert_eq!(conflicts.len(), expected.len(), "each conflict is listed once");
        for conflict in conflicts {
            prop_assert_eq!(&conflict.value, &old_model[&conflict.key].0);
            let owner = (conflict.owner.manager.to_string(), conflict.owner.operation == Operation::Apply);
            prop_assert!(expected.contains(&(conflict.key.clone(), owner)), "{:?} {:?}", conflict.key, conflict.owner);
        }
    }

    /// The first apply is forced. The second apply of the same intent needs no force.
    #[test]
    fn repeated_apply_changes_nothing(writes in vec(generated_write(), 0..8), intent in btree_map(key(), provided_value(), 0..4)) {
        let map = writes.iter().fold(OwnedBytes::default(), |map, write| apply_write(&map, write).unwrap_or(map));
        let ann = Manager::new("ann").unwrap();
        let applied = map.apply(&ann, &intent, true).unwrap();
        prop_assert_eq!(applied.apply(&ann, &intent, false), Ok(applied.clone()));
        // A manager that applies an empty intent then owns no key by an apply. Keys with another owner remain.
        let withdrawn = applied.apply(&ann, &Intent::new(), false).unwrap();
        prop_assert!(to_expected(&withdrawn).values().all(|(_, owners)| !owners.contains(&("ann".to_owned(), true))));
        prop_assert!(withdrawn.iter().all(|(key, entry)| applied.get(key).map(|old_entry| &old_entry.value) == Some(&entry.value)));
    }
}
