//! Fuel's real library on real clusters: placed and ordered as in Fuel, except for edges that depend on YAQL.

use std::collections::BTreeSet;

use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};
use stemma_core::manifest::read_tasks;
use stemma_core::release::fuel;

use crate::support::FuelScenario;
use crate::vectors::read_json as shared;

type Edge = [[String; 2]; 2];

fn load_library() -> Option<fuel::FuelImport> {
    let file = shared("data/fuel/fuel_library_tasks.json")?;
    Some(fuel::import_file(&file, "default").expect("the library is read"))
}

fn expected_edges(value: &Value) -> BTreeSet<Edge> {
    let instances: Vec<[String; 2]> = serde_json::from_value(value["instances"].clone()).expect("instances");
    let edges: Vec<[usize; 2]> = serde_json::from_value(value["edges"].clone()).expect("edges by number");
    let edges = edges.into_iter().map(|[before, after]| [instances[before].clone(), instances[after].clone()]);
    edges.filter(|[before, after]| before != after).collect()
}

/// Returns whether an edge depends on a YAQL expression. These are edges of tasks whose dependencies the import could
/// not translate.
fn depends_on_yaql(edge: &Edge, import: &fuel::FuelImport) -> bool {
    let untranslated = |id: &str| {
        let task = import.spec.tasks.iter().find(|task| task.id == id).expect("a task of the library");
        let fields = task.foreign.get("untranslated").and_then(Value::as_array);
        fields.into_iter().flatten().filter_map(Value::as_str).any(|field| field.starts_with("cross"))
    };
    untranslated(&edge[0][1]) || untranslated(&edge[1][1])
}

#[test]
fn fuel_import_counts_runnable_tasks() {
    let Some(import) = load_library() else { return };
    assert_eq!(import.spec.tasks.len(), 204);
    assert_eq!((import.spec.roles.len(), import.spec.tags.len()), (9, 13));
    // 204 tasks without 11 groups, 6 stages and 4 of type `skipped`.
    assert_eq!(import.total, 183);
    let untranslated = import.spec.tasks.iter().filter(|task| task.foreign.contains_key("untranslated")).count();
    assert_eq!(import.findings.len(), untranslated);
    assert!(import.runnable > 0 && import.runnable < import.total);
}

#[test]
fn fuel_clusters_are_placed_and_ordered_as_in_fuel() {
    let Some(import) = load_library() else { return };
    for (file, instances, pairs) in [("expected_ha_ceph.json", 631, 2_189), ("expected_all_in_one.json", 177, 510)] {
        let Some(expected) = shared::<Value>(&format!("data/fuel/{file}")) else { return };
        let found = FuelScenario::with_release(&import.spec, &expected).expect("the library compiles");
        let placed: BTreeSet<[String; 2]> = found
            .placement()
            .into_iter()
            .flat_map(|(node, tasks)| tasks.into_iter().map(move |task| [node.clone(), task]))
            .collect();
        let wanted: BTreeSet<[String; 2]> = serde_json::from_value(expected["instances"].clone()).expect("instances");
        assert_eq!(placed, wanted, "{file}");
        assert_eq!(placed.len(), instances, "{file}");

        let (edges, wanted) = (found.edges(), expected_edges(&expected));
        assert!(wanted.len() <= pairs, "{file}: self edges are left out");
        let missing: Vec<&Edge> = wanted.difference(&edges).collect();
        assert!(missing.iter().all(|edge| depends_on_yaql(edge, &import)), "{file}: missing {missing:?}");
        println!("{file}: {} of {} edges rest on YAQL and are not made", missing.len(), wanted.len());
        let more: Vec<&Edge> = edges.difference(&wanted).collect();
        let any = expected["policy_any"]["task"].as_str().expect("the task of policy any");
        assert!(more.iter().all(|[_, after]| after[1] == any), "{file}: too many {more:?}");
        assert_eq!(found.build_graph().check(), Ok(()), "{file}");
    }
}

#[test]
fn hundred_nodes_have_instance_count_of_fuel() {
    let (Some(import), Some(expected)) = (load_library(), shared::<Value>("data/fuel/scale_100.json")) else { return };
    let found = FuelScenario::with_release(&import.spec, &expected).expect("the library compiles");
    assert_eq!(found.placement().values().map(BTreeSet::len).sum::<usize>(), 5_432);
    assert_eq!(found.build_graph().check(), Ok(()));
    let placed = found.placement();
    for (node, count) in expected["counts"]["per_node"].as_object().expect("counts") {
        assert_eq!(placed.get(node).map_or(0, BTreeSet::len) as u64, count.as_u64().expect("a number"), "{node}");
    }
}

/// Fuel writes the pattern for all names so that it also matches the empty text, which a request body must not contain.
#[test]
fn x06_fuel_import_can_be_sent_as_release() {
    let entry = json!([{"name": "/.*/", "role": "/.*/"}, {"name": "b", "role": ["master", "//"]}, {"name": "b", "tags": "*"}]);
    let tasks = [
        json!({"id": "a", "type": "shell", "tags": ["/"], "requires": ["/.*/"], "cross-depends": entry}),
        json!({"id": "b", "type": "shell", "role": "/.*/"}),
        json!({"id": "c", "type": "shell", "tags": "*"}),
    ];
    let made = fuel::import(&tasks, &Map::new(), &Map::new()).expect("Fuel's tasks are read");
    for import in [Some(made), load_library()].into_iter().flatten() {
        let sent = to_raw_value(&import.spec.tasks).expect("tasks are JSON");
        assert_eq!(read_tasks(&sent).expect("a body may have them"), import.spec.tasks);
    }
}

/// Regression: values that were compared and printed had floats where a release has integers.
#[test]
fn y04_fuel_whole_numbers_are_normalized() {
    let imported = |six: &str| {
        let tasks = format!(
            r#"[{{"id": "c", "type": "upload_file", "groups": ["web"], "version": {six}, "parameters":
            {{"path": "/x", "data": "a", "timeout": {six}, "strategy": {{"type": "parallel", "amount": {six}}}}}}}]"#
        );
        let tasks: Vec<Value> = serde_json::from_str(&tasks).expect("it is JSON");
        let roles = format!(r#"{{"web": {{"limits": {{"min": {six}}}}}}}"#);
        let roles: Map<String, Value> = serde_json::from_str(&roles).expect("it is JSON");
        fuel::import(&tasks, &roles, &Map::new()).expect("Fuel's tasks are read")
    };
    for six in ["6", "6.0", "6e0", "0.6e1"] {
        let import = imported(six);
        let task = &import.spec.tasks[0];
        assert_eq!(task.parameters.get("timeout").map(Value::to_string).as_deref(), Some("6"), "{six}");
        assert_eq!(task.foreign.get("version").map(Value::to_string).as_deref(), Some("6"), "{six}");
        assert_eq!((task.max_nodes, task.is_untranslated()), (Some(6), false), "{six}");
        let kept = json!({"web": {"limits": {"min": 6}}});
        assert_eq!(import.spec.foreign.get("roles_metadata"), Some(&kept), "{six}");
    }
    let half = imported("6.5");
    assert_eq!((half.spec.tasks[0].max_nodes, half.spec.tasks[0].is_untranslated()), (None, true));
}
