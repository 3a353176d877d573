//! Ownership against the real field manager of Kubernetes: 85 scenarios by hand and 400 random ones.

#![allow(clippy::unwrap_used, reason = "outside of its tests, too, a test program may fail")]

use std::collections::BTreeMap;

use serde::Deserialize;
use stemma_core::ownership::{Intent, Manager, OwnedMap, Said};

use crate::given;

#[derive(Deserialize)]
struct File {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    ops: Vec<Step>,
    expect: Vec<Expect>,
}

#[derive(Deserialize)]
struct Step {
    op: String,
    manager: String,
    force: bool,
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Expect {
    labels: BTreeMap<String, String>,
    owners: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    conflict: Vec<Clash>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Clash {
    key: String,
    manager: String,
}

type Map = OwnedMap<String, String>;

fn step(map: &mut Map, op: &Step) -> Expect {
    let manager = Manager::new(&op.manager).unwrap();
    let intent: Intent<_, _> = op.labels.iter().map(|(key, value)| (key.clone(), Said::Value(value.clone()))).collect();
    let mut conflict = Vec::new();
    match op.op.as_str() {
        "apply" => match map.apply(&manager, &intent, op.force) {
            Ok(next) => *map = next,
            Err(conflicts) => {
                for one in conflicts.0 {
                    assert_eq!(map.get(&one.key).map(|entry| &entry.said), Some(&one.said));
                    conflict.push(Clash { key: one.key, manager: one.owner.to_string() });
                }
            }
        },
        "update" => *map = map.update(&manager, &intent),
        other => panic!("operation {other}"),
    }
    let labels = map.iter().map(|(key, entry)| (key.clone(), entry.said.value().cloned().unwrap())).collect();
    let names = |owners: &[_]| owners.iter().map(ToString::to_string).collect();
    let owners = map.iter().map(|(key, entry)| (key.clone(), names(&entry.owners))).collect();
    Expect { labels, owners, conflict }
}

fn run(path: &str) {
    let Some(File { cases }) = given::read(path) else { return };
    for case in cases {
        let mut map = Map::default();
        for (index, (op, expect)) in case.ops.iter().zip(&case.expect).enumerate() {
            assert_eq!(&step(&mut map, op), expect, "{} after operation {index}", case.name);
            let stored = serde_json::to_string(&map).unwrap();
            assert_eq!(serde_json::from_str::<Map>(&stored).unwrap(), map, "{}", case.name);
        }
    }
}

#[test]
fn the_scenarios_written_by_hand() {
    run("vectors/propagation/ssa_map.json");
}

#[test]
fn the_random_scenarios() {
    run("vectors/propagation/ssa_map_fuzz.json");
}
