//! The vectors of roles, tags, tasks, groups, cross dependencies and order.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use stemma_core::object::{Matching, PrimaryMatching, RoleMatching};

use crate::support::FuelScenario;
use crate::vectors::read_json as shared;

const OWN_MATCHING: Matching = Matching { roles: RoleMatching::Own, primary: PrimaryMatching::Replaces };
const TAGS_MATCHING: Matching = Matching { roles: RoleMatching::Tags, primary: PrimaryMatching::Replaces };

/// Cases of `task_resolution` that differ, each with the design's sentence and a part of the error, if there is one.
const RESOLUTION_EXCEPTIONS: &[(&str, &str, Option<&str>)] = &[
    ("group-07-unknown-sub-task-no-nodes", "an unknown task is refused when the release is stored", Some("no task")),
    ("version-02-old-strict", "`version` is a field of Fuel's that the import keeps as `foreign`", None),
];

fn load_scenarios(file: &str) -> Vec<Value> {
    let Some(value) = shared::<Value>(&format!("vectors/tasks/{file}")) else { return Vec::new() };
    value["scenarios"].as_array().expect("scenarios").clone()
}

fn scenario_id(scenario: &Value) -> &str {
    scenario["id"].as_str().expect("a scenario has an id")
}

fn expected_placement(value: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let tasks = |tasks: &Value| -> BTreeSet<String> {
        tasks.as_array().expect("tasks").iter().map(|task| task.as_str().expect("an id").to_owned()).collect()
    };
    let placed = value.as_object().expect("a placement").iter().map(|(node, ids)| (node.clone(), tasks(ids)));
    placed.filter(|(_, ids): &(_, BTreeSet<String>)| !ids.is_empty()).collect()
}

#[test]
fn task_placement_matches_vectors() {
    let mut wrong = Vec::new();
    for scenario in load_scenarios("task_resolution.json") {
        for (matching, field) in [(OWN_MATCHING, "expected"), (TAGS_MATCHING, "expected_upstream_nodetags")] {
            let expected = if scenario[field] == "same" { &scenario["expected"] } else { &scenario[field] };
            let found = FuelScenario::parse(&scenario, matching);
            let met = match &found {
                Ok(found) => {
                    !expected.is_null() && expected.get("error").is_none() && found.placement() == expected_placement(expected)
                }
                // Of the expected errors, a release can have only that of an unknown task.
                Err(error) => expected["error"] == "InvalidData" && error.contains("no task"),
            };
            let as_listed = match RESOLUTION_EXCEPTIONS.iter().find(|(name, ..)| *name == scenario_id(&scenario)) {
                None => met,
                Some((_, _, None)) => !met && found.is_ok(),
                Some((_, _, Some(said))) => !met && found.as_ref().is_err_and(|error| error.contains(said)),
            };
            if as_listed {
                continue;
            }
            wrong.push(format!(
                "{} {field}: {:?} instead of {expected}",
                scenario_id(&scenario),
                found.map(|found| found.placement())
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn effective_tags_match_vectors() {
    let mut wrong = Vec::new();
    for scenario in load_scenarios("task_resolution.json") {
        let Some(expected) = scenario.get("expected_effective_tags") else { continue };
        let Ok(found) = FuelScenario::parse(&scenario, OWN_MATCHING) else { continue };
        let found: BTreeMap<_, _> = found.tag_names().into_iter().filter(|(_, tags)| !tags.is_empty()).collect();
        if found != expected_placement(expected) {
            wrong.push(format!("{}: {found:?} instead of {expected}", scenario_id(&scenario)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Cases of `cross_dependencies` that differ, each with the design's sentence.
const EDGE_EXCEPTIONS: &[(&str, &str)] = &[("cross-19-yaql-list", "a YAQL expression is not evaluated")];

fn expected_edges(value: &Value) -> BTreeSet<[[String; 2]; 2]> {
    let edges: Vec<[[String; 2]; 2]> = serde_json::from_value(value.clone()).expect("pairs of pairs");
    edges.into_iter().filter(|[before, after]| before != after).collect()
}

#[test]
fn edges_match_vectors() {
    let mut wrong = Vec::new();
    for scenario in load_scenarios("cross_dependencies.json") {
        if EDGE_EXCEPTIONS.iter().any(|(name, _)| *name == scenario_id(&scenario)) {
            continue;
        }
        for (matching, field) in [(OWN_MATCHING, "expected_edges"), (TAGS_MATCHING, "expected_edges_upstream_nodetags")] {
            let expected = if scenario[field] == "same" { &scenario["expected_edges"] } else { &scenario[field] };
            if expected.is_null() {
                continue;
            }
            let found = FuelScenario::parse(&scenario, matching).map(|found| found.edges());
            if found.as_ref() != Ok(&expected_edges(expected)) {
                wrong.push(format!("{} {field}: {found:?} instead of {expected}", scenario_id(&scenario)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the numbered nodes and tasks of an order, and its edges by number.
fn numbered_graph(scenario: &Value) -> (Vec<[String; 2]>, Vec<(usize, usize)>) {
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
    let pairs = expected_edges(&scenario["edges"]);
    let numbered = pairs.iter().map(|[before, after]| (at(before), at(after))).collect();
    (instances, numbered)
}

#[test]
fn orders_and_cycles_match_vectors() {
    for scenario in load_scenarios("graph_order.json") {
        let (instances, edges) = numbered_graph(&scenario);
        let found = stemma_core::release::topological_order(instances.len(), &edges, |at| at);
        let expected = &scenario["expected"];
        match found {
            Ok(order) => {
                assert_eq!(expected["valid"], true, "{}", scenario_id(&scenario));
                assert_eq!(order.len(), instances.len(), "{}", scenario_id(&scenario));
                let place = |at: usize| order.iter().position(|one| *one == at);
                assert!(edges.iter().all(|(before, after)| place(*before) < place(*after)), "{}", scenario_id(&scenario));
            }
            Err(cycle) => {
                assert_eq!(expected["error"], "cycle", "{}", scenario_id(&scenario));
                let next = cycle.iter().skip(1).chain(cycle.first());
                assert!(cycle.iter().zip(next).all(|(a, b)| edges.contains(&(*a, *b))), "{}: {cycle:?}", scenario_id(&scenario));
            }
        }
    }
}

/// Cases of the static checks that differ, each with the design's sentence.
const CHECK_EXCEPTIONS: &[(&str, &str)] = &[];

#[test]
fn static_checks_match_vectors() {
    let Some(value) = shared::<Value>("vectors/tasks/graph_order.json") else { return };
    for case in value["validation"].as_array().expect("cases") {
        let found = FuelScenario::parse(case, TAGS_MATCHING).err();
        let kind = case["expected"]["kind"].as_str();
        let met = match (kind, &found) {
            (Some("unknown-reference"), Some(message)) => message.contains("no task"),
            (Some("cycle"), Some(message)) => message.contains("wait for each other"),
            (None, None) => true,
            _ => false,
        };
        let listed = CHECK_EXCEPTIONS.iter().any(|(name, _)| *name == scenario_id(case));
        assert!(met != listed, "{}: {found:?}", scenario_id(case));
    }
}
