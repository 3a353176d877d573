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

#[derive(Deserialize)]
struct OwnershipCase {
    name: String,
    ops: Vec<OwnershipStep>,
    expect: Vec<ExpectedState>,
}

#[derive(Deserialize)]
struct OwnershipStep {
    op: String,
    manager: String,
    force: bool,
    labels: BTreeMap<String, String>,
}

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

fn apply_step(map: &mut TextOwnedMap, op: &OwnershipStep) -> ExpectedState {
    let manager = Manager::new(&op.manager).unwrap();
    let intent: Intent<_, _> = op.labels.iter().map(|(key, value)| (key.clone(), ProvidedValue::Value(value.clone()))).collect();
    let mut conflict = Vec::new();
    match op.op.as_str() {
        "apply" => match map.apply(&manager, &intent, op.force) {
            Ok(next) => *map = next,
            Err(conflicts) => {
                for one in conflicts.0 {
                    assert_eq!(map.get(&one.key).map(|entry| &entry.value), Some(&one.value));
                    conflict.push(ExpectedConflict { key: one.key, manager: one.owner.to_string() });
                }
            }
        },
        "update" => *map = map.update(&manager, &intent),
        other => panic!("operation {other}"),
    }
    let labels = map.iter().map(|(key, entry)| (key.clone(), entry.value.value().cloned().unwrap())).collect();
    let names = |owners: &[_]| owners.iter().map(ToString::to_string).collect();
    let owners = map.iter().map(|(key, entry)| (key.clone(), names(&entry.owners))).collect();
    ExpectedState { labels, owners, conflict }
}

fn run_vectors(path: &str) {
    let Some(OwnershipVectors { cases }) = vectors::read_json(path) else { return };
    for case in cases {
        let mut map = TextOwnedMap::default();
        for (index, (op, expect)) in case.ops.iter().zip(&case.expect).enumerate() {
            assert_eq!(&apply_step(&mut map, op), expect, "{} after operation {index}", case.name);
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
