//! The vectors of roles, tags, tasks, groups and cross-dependencies, and of order.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use stemma_core::object::{Matching, PrimaryMatching, RoleMatching};

use crate::given::read as shared;
use crate::support::Scenario;

const OWN: Matching = Matching { roles: RoleMatching::Own, primary: PrimaryMatching::Replaces };
const TAGS: Matching = Matching { roles: RoleMatching::Tags, primary: PrimaryMatching::Replaces };

/// Cases of `task_resolution` that are not met, each with the design's sentence, and with what the error says; none is one there.
const NOT_MET: &[(&str, &str, Option<&str>)] = &[
    ("group-07-unknown-sub-task-no-nodes", "an unknown task is refused when the release is stored", Some("no task")),
    ("version-02-old-strict", "`version` is a field of Fuel's that the import keeps as `foreign`", None),
];

fn scenarios(file: &str) -> Vec<Value> {
    let Some(value) = shared::<Value>(&format!("vectors/tasks/{file}")) else { return Vec::new() };
    value["scenarios"].as_array().expect("scenarios").clone()
}

fn id(scenario: &Value) -> &str {
    scenario["id"].as_str().expect("a scenario has an id")
}

fn placement(value: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let tasks = |tasks: &Value| -> BTreeSet<String> {
        tasks.as_array().expect("tasks").iter().map(|task| task.as_str().expect("an id").to_owned()).collect()
    };
    let placed = value.as_object().expect("a placement").iter().map(|(node, ids)| (node.clone(), tasks(ids)));
    placed.filter(|(_, ids): &(_, BTreeSet<String>)| !ids.is_empty()).collect()
}

#[test]
fn tasks_fall_where_the_vectors_say() {
    let mut wrong = Vec::new();
    for scenario in scenarios("task_resolution.json") {
        for (matching, field) in [(OWN, "expected"), (TAGS, "expected_upstream_nodetags")] {
            let expected = if scenario[field] == "same" { &scenario["expected"] } else { &scenario[field] };
            let found = Scenario::read(&scenario, matching);
            let met = match &found {
                Ok(found) => {
                    !expected.is_null() && expected.get("error").is_none() && found.placement() == placement(expected)
                }
                // Of the errors that are expected, the task that is not there is the one that a release can have.
                Err(error) => expected["error"] == "InvalidData" && error.contains("no task"),
            };
            let as_listed = match NOT_MET.iter().find(|(name, ..)| *name == id(&scenario)) {
                None => met,
                Some((_, _, None)) => !met && found.is_ok(),
                Some((_, _, Some(said))) => !met && found.as_ref().is_err_and(|error| error.contains(said)),
            };
            if as_listed {
                continue;
            }
            wrong.push(format!(
                "{} {field}: {:?} instead of {expected}",
                id(&scenario),
                found.map(|found| found.placement())
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn effective_tags_are_those_of_the_vectors() {
    let mut wrong = Vec::new();
    for scenario in scenarios("task_resolution.json") {
        let Some(expected) = scenario.get("expected_effective_tags") else { continue };
        let Ok(found) = Scenario::read(&scenario, OWN) else { continue };
        let found: BTreeMap<_, _> = found.tag_names().into_iter().filter(|(_, tags)| !tags.is_empty()).collect();
        if found != placement(expected) {
            wrong.push(format!("{}: {found:?} instead of {expected}", id(&scenario)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Cases of `cross_dependencies` that are not met, each with the design's sentence.
const EDGES_NOT_MET: &[(&str, &str)] = &[("cross-19-yaql-list", "a YAQL expression is not evaluated")];

fn edges(value: &Value) -> BTreeSet<[[String; 2]; 2]> {
    let edges: Vec<[[String; 2]; 2]> = serde_json::from_value(value.clone()).expect("pairs of pairs");
    edges.into_iter().filter(|[before, after]| before != after).collect()
}

#[test]
fn edges_are_those_of_the_vectors() {
    let mut wrong = Vec::new();
    for scenario in scenarios("cross_dependencies.json") {
        if EDGES_NOT_MET.iter().any(|(name, _)| *name == id(&scenario)) {
            continue;
        }
        for (matching, field) in [(OWN, "expected_edges"), (TAGS, "expected_edges_upstream_nodetags")] {
            let expected = if scenario[field] == "same" { &scenario["expected_edges"] } else { &scenario[field] };
            if expected.is_null() {
                continue;
            }
            let found = Scenario::read(&scenario, matching).map(|found| found.edges());
            if found.as_ref() != Ok(&edges(expected)) {
                wrong.push(format!("{} {field}: {found:?} instead of {expected}", id(&scenario)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The nodes and tasks of an order, numbered, and its edges by number.
fn graph(scenario: &Value) -> (Vec<[String; 2]>, Vec<(usize, usize)>) {
    let instances: Vec<[String; 2]> = scenario["placement"]
        .as_object()
        .expect("a placement")
        .iter()
        .flat_map(|(node, tasks)| {
            let ids = tasks.as_array().expect("tasks").iter().map(|task| task.as_str().expect("an id").to_owned());
            ids.map(|task| [node.clone(), task]).collect::<Vec<_>>()
        })
        .collect();
    let at = |end: &[String; 2]| instances.iter().position(|one| one == end).expect("an instance that is placed");
    let pairs = edges(&scenario["edges"]);
    let numbered = pairs.iter().map(|[before, after]| (at(before), at(after))).collect();
    (instances, numbered)
}

#[test]
fn orders_and_cycles_are_those_of_the_vectors() {
    for scenario in scenarios("graph_order.json") {
        let (instances, edges) = graph(&scenario);
        let found = stemma_core::release::topological(instances.len(), &edges, |at| at);
        let expected = &scenario["expected"];
        match found {
            Ok(order) => {
                assert_eq!(expected["valid"], true, "{}", id(&scenario));
                assert_eq!(order.len(), instances.len(), "{}", id(&scenario));
                let place = |at: usize| order.iter().position(|one| *one == at);
                assert!(edges.iter().all(|(before, after)| place(*before) < place(*after)), "{}", id(&scenario));
            }
            Err(cycle) => {
                assert_eq!(expected["error"], "cycle", "{}", id(&scenario));
                let next = cycle.iter().skip(1).chain(cycle.first());
                assert!(cycle.iter().zip(next).all(|(a, b)| edges.contains(&(*a, *b))), "{}: {cycle:?}", id(&scenario));
            }
        }
    }
}

/// Cases of the static checks that are not met, each with the design's sentence.
const CHECKS_NOT_MET: &[(&str, &str)] = &[];

#[test]
fn what_the_static_checks_refuse_is_refused_when_a_release_is_stored() {
    let Some(value) = shared::<Value>("vectors/tasks/graph_order.json") else { return };
    for case in value["validation"].as_array().expect("cases") {
        let found = Scenario::read(case, TAGS).err();
        let kind = case["expected"]["kind"].as_str();
        let met = match (kind, &found) {
            (Some("unknown-reference"), Some(message)) => message.contains("no task"),
            (Some("cycle"), Some(message)) => message.contains("wait for each other"),
            (None, None) => true,
            _ => false,
        };
        let listed = CHECKS_NOT_MET.iter().any(|(name, _)| *name == id(case));
        assert!(met != listed, "{}: {found:?}", id(case));
    }
}
