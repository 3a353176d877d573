//! Ownership compared with the field manager of Kubernetes, in 85 handwritten and 400 random scenarios.

#![allow(clippy::unwrap_used, reason = "outside of its tests, too, a test program may fail")]

use std::collections::BTreeMap;

use serde::Deserialize;
use stemma_core::ownership::{Intent, Manager, OwnedMap, ProvidedValue};

use crate::vectors;

#[derive(Deserialize)]
struct OwnershipVectors {
    cases: Vec<OwnershipCase>,
}

/// A sequence of operations, and the expected state after each operation.
#[derive(Deserialize)]
struct OwnershipCase {
    name: String,
    ops: Vec<OwnershipStep>,
    expect: Vec<ExpectedState>,
}

/// An operation of a manager: `apply`, with or without `force`, or `update`, with the labels of the request.
#[derive(Deserialize)]
struct OwnershipStep {
    op: String,
    manager: String,
    force: bool,
    labels: BTreeMap<String, String>,
}

/// The labels, their owners, and the conflicts of an apply that is refused.
#[derive(Debug, Deserialize, PartialEq)]
struct ExpectedState {
    labels: BTreeMap<String, String>,
    owners: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    conflict: Vec<ExpectedConflict>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct ExpectedConflict {
    key: String,
    manager: String,
}

type TextOwnedMap = OwnedMap<String, String>;

/// Applies an operation to the map. Returns the resulting labels and owners, and the conflicts. A conflict leaves the
/// map unchanged.
fn apply_step(map: &mut TextOwnedMap, step: &OwnershipStep) -> ExpectedState {
    let manager = Manager::new(&step.manager).unwrap();
    let intent: Intent<_, _> =
        step.labels.iter().map(|(key, value)| (key.clone(), ProvidedValue::Value(value.clone()))).collect();
    let mut found_conflicts = Vec::new();
    match step.op.as_str() {
        "apply" => match map.apply(&manager, &intent, step.force) {
            Ok(next) => *map = next,
            Err(conflicts) => {
                for key_conflict in conflicts.0 {
                    assert_eq!(map.get(&key_conflict.key).map(|entry| &entry.value), Some(&key_conflict.value));
                    found_conflicts.push(ExpectedConflict { key: key_conflict.key, manager: key_conflict.owner.to_string() });
                }
            }
        },
        "update" => *map = map.update(&manager, &intent),
        unknown => panic!("operation {unknown}"),
    }
    let labels = map.iter().map(|(key, entry)| (key.clone(), entry.value.value().cloned().unwrap())).collect();
    let names = |owners: &[_]| owners.iter().map(ToString::to_string).collect();
    let owners = map.iter().map(|(key, entry)| (key.clone(), names(&entry.owners))).collect();
    ExpectedState { labels, owners, conflict: found_conflicts }
}

/// Runs the scenarios of a file. Also checks that the map is the same after it is stored as JSON and parsed again.
fn run_vectors(path: &str) {
    let Some(OwnershipVectors { cases }) = vectors::read_json(path) else { return };
    for case in cases {
        let mut map = TextOwnedMap::default();
        for (step_index, (step, expect)) in case.ops.iter().zip(&case.expect).enumerate() {
            assert_eq!(&apply_step(&mut map, step), expect, "{} after operation {step_index}", case.name);
            let stored = serde_json::to_string(&map).unwrap();
            assert_eq!(serde_json::from_str::<TextOwnedMap>(&stored).unwrap(), map, "{}", case.name);
        }
    }
}

#[test]
fn handwritten_scenarios_match() {
    run_vectors("vectors/propagation/ssa_map.json");
}

#[test]
fn random_scenarios_match() {
    run_vectors("vectors/propagation/ssa_map_fuzz.json");
}
