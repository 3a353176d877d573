//! Ownership over random sequences of writes by several managers, beside the rules of the design worked out by hand: who owns what,
//! what a conflict is, and that a refused write changes nothing.

#![allow(clippy::unwrap_used, reason = "outside of its tests, too, a test program may fail")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use stemma_core::ownership::{Intent, Manager, Operation, OwnedMap, Said};

type Map = OwnedMap<String, u8>;
/// What is said, and who owns it: a manager, and whether by applying.
type Model = BTreeMap<String, (Said<u8>, BTreeSet<(String, bool)>)>;

#[derive(Clone, Debug)]
enum Write {
    Apply { manager: &'static str, intent: Intent<String, u8>, force: bool },
    Update { manager: &'static str, whole: Intent<String, u8> },
    Patch { manager: &'static str, changes: BTreeMap<String, Option<Said<u8>>> },
}

fn manager() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["ann", "bob", "ci"])
}

fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "c", "d"]).prop_map(str::to_owned)
}

fn said() -> impl Strategy<Value = Said<u8>> {
    option::weighted(0.8, 0..3_u8).prop_map(Said::from)
}

fn write() -> impl Strategy<Value = Write> {
    prop_oneof![
        3 => (manager(), btree_map(key(), said(), 0..4), prop::bool::weighted(0.3))
            .prop_map(|(manager, intent, force)| Write::Apply { manager, intent, force }),
        1 => (manager(), btree_map(key(), said(), 0..4)).prop_map(|(manager, whole)| Write::Update { manager, whole }),
        1 => (manager(), btree_map(key(), option::weighted(0.7, said()), 0..3))
            .prop_map(|(manager, changes)| Write::Patch { manager, changes }),
    ]
}

/// The rules by hand. Whether the write is taken; the model is as before where it is not.
fn write_by_hand(model: &mut Model, write: &Write) -> bool {
    match write {
        Write::Apply { manager, intent, force } => {
            let me = ((*manager).to_owned(), true);
            let is_against = |(key, said): (&String, &Said<u8>)| {
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
        Write::Update { manager, whole } => {
            model.retain(|key, _| whole.contains_key(key));
            for (key, said) in whole {
                set_by_hand(model, manager, key, *said);
            }
        }
        Write::Patch { manager, changes } => {
            for (key, change) in changes {
                match change {
                    Some(said) => set_by_hand(model, manager, key, *said),
                    None => drop(model.remove(key)),
                }
            }
        }
    }
    true
}

fn set_by_hand(model: &mut Model, manager: &str, key: &str, said: Said<u8>) {
    if model.get(key).is_none_or(|(now, _)| *now != said) {
        model.insert(key.to_owned(), (said, BTreeSet::from([(manager.to_owned(), false)])));
    }
}

/// The map after a write; `None`: it was refused.
fn written(map: &Map, write: &Write) -> Option<Map> {
    let of = |text: &str| Manager::new(text).unwrap();
    match write {
        Write::Apply { manager, intent, force } => map.apply(&of(manager), intent, *force).ok(),
        Write::Update { manager, whole } => Some(map.update(&of(manager), whole)),
        Write::Patch { manager, changes } => Some(map.patch(&of(manager), changes)),
    }
}

fn model_of(map: &Map) -> Model {
    let owner =
        |owner: &stemma_core::ownership::Owner| (owner.manager.to_string(), owner.operation == Operation::Apply);
    map.iter().map(|(key, entry)| (key.clone(), (entry.said, entry.owners.iter().map(owner).collect()))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn a_map_is_what_the_rules_make_of_its_writes(writes in vec(write(), 0..12)) {
        let (mut map, mut model) = (Map::default(), Model::new());
        for write in &writes {
            let taken = write_by_hand(&mut model, write);
            let next = written(&map, write);
            prop_assert_eq!(next.is_some(), taken, "{:?} over {:?}", write, map);
            map = next.unwrap_or(map);
            prop_assert_eq!(&model_of(&map), &model, "{:?}", write);
            prop_assert!(map.iter().all(|(_, entry)| !entry.owners.is_empty()), "nobody owns it");
        }
    }

    #[test]
    fn what_a_write_takes_from_others_is_what_they_own_and_what_is_another_after_it(
        writes in vec(write(), 0..8),
        by in manager(),
        last in write(),
    ) {
        let map = writes.iter().fold(Map::default(), |map, write| written(&map, write).unwrap_or(map));
        let next = written(&map, &last).unwrap_or(map.clone());
        let (before, after) = (model_of(&map), model_of(&next));
        let mut expected = BTreeSet::new();
        for (key, (said, owners)) in &before {
            let is_kept = after.get(key).is_some_and(|(now, _)| now == said);
            expected.extend(owners.iter().filter(|(owner, _)| !is_kept && owner != by).map(|owner| (key.clone(), owner.clone())));
        }
        let taken = map.taken(&Manager::new(by).unwrap(), &next);
        prop_assert_eq!(taken.len(), expected.len(), "each once");
        for one in taken {
            prop_assert_eq!(&one.said, &before[&one.key].0);
            let owner = (one.owner.manager.to_string(), one.owner.operation == Operation::Apply);
            prop_assert!(expected.contains(&(one.key.clone(), owner)), "{:?} {:?}", one.key, one.owner);
        }
    }

    #[test]
    fn an_apply_said_again_changes_nothing(writes in vec(write(), 0..8), intent in btree_map(key(), said(), 0..4)) {
        let map = writes.iter().fold(Map::default(), |map, write| written(&map, write).unwrap_or(map));
        let ann = Manager::new("ann").unwrap();
        let once = map.apply(&ann, &intent, true).unwrap();
        prop_assert_eq!(once.apply(&ann, &intent, false), Ok(once.clone()));
        // Who takes back all that was applied leaves to others what they said too, and nothing of their own.
        let gone = once.apply(&ann, &Intent::new(), false).unwrap();
        prop_assert!(model_of(&gone).values().all(|(_, owners)| !owners.contains(&("ann".to_owned(), true))));
        prop_assert!(gone.iter().all(|(key, entry)| once.get(key).map(|before| &before.said) == Some(&entry.said)));
    }
}
