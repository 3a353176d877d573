//! Scenarios that were recorded with Fuel, a deployment tool: roles, tags, tasks, groups, cross dependencies and order.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use stemma_core::object::{Matching, PrimaryMatching, RoleMatching};

use crate::support::FuelScenario;
use crate::vectors::read_json as read_shared;

/// Selectors of roles match the roles of a node, and a primary has only the tag name that begins with `primary-`.
const OWN_MATCHING: Matching = Matching { roles: RoleMatching::Own, primary: PrimaryMatching::Replaces };
/// Selectors of roles match the tags of a node, and a primary has only the tag name that begins with `primary-`.
const TAGS_MATCHING: Matching = Matching { roles: RoleMatching::Tags, primary: PrimaryMatching::Replaces };

/// Scenarios whose result in Stemma differs: the id, the sentence of the design, and a part of the error, if Stemma
/// rejects the scenario.
const RESOLUTION_EXCEPTIONS: &[(&str, &str, Option<&str>)] = &[
    ("group-07-unknown-sub-task-no-nodes", "an unknown task is refused when the release is stored", Some("no task")),
    ("version-02-old-strict", "`version` is a field of Fuel's that the import keeps as `foreign`", None),
];

/// Returns the scenarios of a file, or none if the file is missing.
fn load_scenarios(file: &str) -> Vec<Value> {
    let Some(value) = read_shared::<Value>(&format!("vectors/tasks/{file}")) else { return Vec::new() };
    value["scenarios"].as_array().expect("scenarios").clone()
}

fn scenario_id(scenario: &Value) -> &str {
    scenario["id"].as_str().expect("a scenario has an id")
}

/// Parses the ids of the tasks of each node, or the tags of each node. Skips nodes with an empty list.
fn expected_placement(value: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let tasks = |tasks: &Value| -> BTreeSet<String> {
        tasks.as_array().expect("tasks").iter().map(|task| task.as_str().expect("an id").to_owned()).collect()
    };
    let placement = value.as_object().expect("a placement").iter().map(|(node, ids)| (node.clone(), tasks(ids)));
    placement.filter(|(_, ids): &(_, BTreeSet<String>)| !ids.is_empty()).collect()
}

/// Each scenario has an expected placement for each rule of Fuel by which the roles of a task
/// match a node. The text `same` stands for the value of the field `expected`.
#[test]
fn task_placement_matches_vectors() {
    let mut mismatches = Vec::new();
    for scenario in load_scenarios("task_resolution.json") {
        for (matching, field) in [(OWN_MATCHING, "expected"), (TAGS_MATCHING, "expected_upstream_nodetags")] {
            let expected = if scenario[field] == "same" { &scenario["expected"] } else { &scenario[field] };
            let scenario_result = FuelScenario::parse(&scenario, matching);
            let is_equal = match &scenario_result {
                Ok(fuel_scenario) => {
                    !expected.is_null()
                        && expected.get("error").is_none()
                        && fuel_scenario.placement() == expected_placement(expected)
                }
                // Only one of the recorded errors can occur when a release is compiled: that of an unknown task.
                Err(error) => expected["error"] == "InvalidData" && error.contains("no task"),
            };
            let is_as_listed = match RESOLUTION_EXCEPTIONS.iter().find(|(id, ..)| *id == scenario_id(&scenario)) {
                None => is_equal,
                Some((_, _, None)) => !is_equal && scenario_result.is_ok(),
                Some((_, _, Some(error_part))) => {
                    !is_equal && scenario_result.as_ref().is_err_and(|error| error.contains(error_part))
                }
            };
            if is_as_listed {
                continue;
            }
            mismatches.push(format!(
                "{} {field}: {:?} instead of {expected}",
                scenario_id(&scenario),
                scenario_result.map(|fuel_scenario| fuel_scenario.placement())
            ));
        }
    }
    assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
}

#[test]
fn effective_tags_match_vectors() {
    let mut mismatches = Vec::new();
    for scenario in load_scenarios("task_resolution.json") {
        let Some(expected) = scenario.get("expected_effective_tags") else { continue };
        let Ok(fuel_scenario) = FuelScenario::parse(&scenario, OWN_MATCHING) else { continue };
        let tag_names: BTreeMap<_, _> = fuel_scenario.tag_names().into_iter().filter(|(_, tags)| !tags.is_empty()).collect();
        if tag_names != expected_placement(expected) {
            mismatches.push(format!("{}: {tag_names:?} instead of {expected}", scenario_id(&scenario)));
        }
    }
    assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
}

/// Scenarios of `cross_dependencies` whose edges differ in Stemma: the id, and the sentence of the design.
const EDGE_EXCEPTIONS: &[(&str, &str)] = &[("cross-19-yaql-list", "a YAQL expression is not evaluated")];

/// Parses edges between instances, each a node and a task. Skips an edge from an instance to itself.
fn expected_edges(value: &Value) -> BTreeSet<[[String; 2]; 2]> {
    let edges: Vec<[[String; 2]; 2]> = serde_json::from_value(value.clone()).expect("pairs of pairs");
    edges.into_iter().filter(|[earlier, later]| earlier != later).collect()
}

/// Each scenario has expected edges for each matching of roles. The text `same` refers to the field `expected_edges`.
#[test]
fn edges_match_vectors() {
    let mut mismatches = Vec::new();
    for scenario in load_scenarios("cross_dependencies.json") {
        if EDGE_EXCEPTIONS.iter().any(|(id, _)| *id == scenario_id(&scenario)) {
            continue;
        }
        for (matching, field) in [(OWN_MATCHING, "expected_edges"), (TAGS_MATCHING, "expected_edges_upstream_nodetags")] {
            let expected = if scenario[field] == "same" { &scenario["expected_edges"] } else { &scenario[field] };
            if expected.is_null() {
                continue;
            }
            let edges = FuelScenario::parse(&scenario, matching).map(|fuel_scenario| fuel_scenario.edges());
            if edges.as_ref() != Ok(&expected_edges(expected)) {
                mismatches.push(format!("{} {field}: {edges:?} instead of {expected}", scenario_id(&scenario)));
            }
        }
    }
    assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
}

/// Returns the instances (each a node and a task) of a scenario, and its edges as pairs of indices in that list.
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
    let index_of =
        |searched: &[String; 2]| instances.iter().position(|instance| instance == searched).expect("an instance that is placed");
    let pairs = expected_edges(&scenario["edges"]);
    let numbered = pairs.iter().map(|[earlier, later]| (index_of(earlier), index_of(later))).collect();
    (instances, numbered)
}

#[test]
fn orders_and_cycles_match_vectors() {
    for scenario in load_scenarios("graph_order.json") {
        let (instances, edges) = numbered_graph(&scenario);
        let order_result = stemma_core::release::topological_order(instances.len(), &edges, |index| index);
        let expected = &scenario["expected"];
        match order_result {
            Ok(order) => {
                assert_eq!(expected["valid"], true, "{}", scenario_id(&scenario));
                assert_eq!(order.len(), instances.len(), "{}", scenario_id(&scenario));
                let position_of = |index: usize| order.iter().position(|other_index| *other_index == index);
                assert!(
                    edges.iter().all(|(earlier, later)| position_of(*earlier) < position_of(*later)),
                    "{}",
                    scenario_id(&scenario)
                );
            }
            Err(cycle) => {
                assert_eq!(expected["error"], "cycle", "{}", scenario_id(&scenario));
                let successors = cycle.iter().skip(1).chain(cycle.first());
                assert!(
                    cycle.iter().zip(successors).all(|(a, b)| edges.contains(&(*a, *b))),
                    "{}: {cycle:?}",
                    scenario_id(&scenario)
                );
            }
        }
    }
}

/// Cases of the static checks whose result differs: the id, and the sentence of the design.
const CHECK_EXCEPTIONS: &[(&str, &str)] = &[];

#[test]
fn static_checks_match_vectors() {
    let Some(value) = read_shared::<Value>("vectors/tasks/graph_order.json") else { return };
    for case in value["validation"].as_array().expect("cases") {
        let error = FuelScenario::parse(case, TAGS_MATCHING).err();
        let kind = case["expected"]["kind"].as_str();
        let is_equal = match (kind, &error) {
            (Some("unknown-reference"), Some(message)) => message.contains("no task"),
            (Some("cycle"), Some(message)) => message.contains("wait for each other"),
            (None, None) => true,
            _ => false,
        };
        let is_listed = CHECK_EXCEPTIONS.iter().any(|(id, _)| *id == scenario_id(case));
        assert!(is_equal != is_listed, "{}: {error:?}", scenario_id(case));
    }
}
