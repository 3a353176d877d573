//! The import of the task library of Fuel, a deployment tool of `OpenStack`. On recorded clusters, the imported tasks
//! run on the same nodes and in the same order as in Fuel, except for dependencies that are YAQL expressions. YAQL is a
//! query language of `OpenStack`, and the import does not evaluate such expressions.

use std::collections::BTreeSet;

use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};
use stemma_core::manifest::read_tasks;
use stemma_core::release::fuel::{self, TypeCount, UntranslatedReason};

use crate::support::{FuelScenario, compile_release};
use crate::vectors::read_json as read_shared;

/// Imports one task of Fuel with this type, these roles and parameters.
fn import_task(kind: &str, roles: &[&str], parameters: &Value) -> fuel::FuelImport {
    let task = json!({"id": "t", "type": kind, "roles": roles, "parameters": parameters});
    fuel::import(&[task], &Map::new(), &Map::new()).expect("Fuel's task is read")
}

/// Fuel runs `rsync --delete` for `sync`, reads the files of `copy_files` on its master, and has a limit of 5400 s for
/// Puppet. Each row has the parameters of a task and those of the translation.
#[test]
fn fuel_parameters_are_translated_by_type() {
    for (kind, roles, parameters, translated) in [
        (
            "sync",
            &["web"][..],
            json!({"src": "/srv/a/", "dst": "/opt/b/"}),
            json!({"src": "/srv/a", "dst": "/opt/b", "delete": true}),
        ),
        // Without a slash at its end, the directory itself is put into the other one.
        ("sync", &["web"], json!({"src": "/srv/a", "dst": "/opt"}), json!({"src": "/srv/a", "dst": "/opt/a", "delete": true})),
        (
            "copy_files",
            &["master"],
            json!({"files": [{"src": "/a", "dst": "/b"}], "permissions": "0600", "dir_permissions": "0700"}),
            json!({"files": [{"src": "/a", "dst": "/b"}], "permissions": "0600", "dir_permissions": "0700"}),
        ),
        (
            "puppet",
            &["web"],
            json!({"puppet_manifest": "/a.pp", "puppet_modules": "/etc/puppet/modules/", "timeout": 60, "cwd": "/"}),
            json!({"puppet_manifest": "/a.pp", "puppet_modules": "/etc/puppet/modules", "timeout": 60, "cwd": "/"}),
        ),
        (
            "puppet",
            &["web"],
            json!({"puppet_manifest": "/a.pp"}),
            json!({"puppet_manifest": "/a.pp", "puppet_modules": "/etc/puppet/modules", "timeout": 5400}),
        ),
        ("reboot", &["web"], json!({"timeout": 900}), json!({})),
        (
            "shell",
            &["web"],
            json!({"cmd": "true", "timeout": 180, "retries": 3, "interval": 20}),
            json!({"cmd": "true", "timeout": 180, "retries": 3, "interval": 20}),
        ),
    ] {
        let import = import_task(kind, roles, &parameters);
        let task = &import.spec.tasks[0];
        assert_eq!((json!(task.parameters), import.runnable()), (translated, 1), "{kind} {parameters}");
        assert_eq!(import.findings, [], "{kind}");
    }
    let import = import_task("sync", &["web"], &json!({"src": "/a/", "dst": "/b", "timeout": 300, "retries": 10}));
    let task = &import.spec.tasks[0];
    assert_eq!((task.timeout_seconds, task.retries), (Some(300), Some(10)), "they are fields of every task");
    assert_eq!(json!(task.parameters), json!({"src": "/a", "dst": "/b", "delete": true}));
}

/// Each row has the parameters of a task, and the field that is not translated with the reason in the finding.
#[test]
fn fuel_import_counts_untranslated_parameters_by_reason() {
    for (kind, parameters, field, reason) in [
        (
            "sync",
            json!({"src": "rsync://{MASTER_IP}:/puppet/modules/", "dst": "/a"}),
            "parameters.src",
            "a file on Fuel's master",
        ),
        ("copy_files", json!({"files": [{"src": "/a", "dst": "/b"}]}), "parameters.files", "a file on Fuel's master"),
        ("upload_file", json!({"path": "/{CLUSTER_ID}", "data": "a"}), "parameters.path", "a placeholder"),
        ("upload_file", json!({"path": "/a", "data": {"yaql_exp": "$"}}), "parameters.data", "an expression"),
        ("upload_files", json!({"nodes": []}), "parameters.nodes", "an unknown parameter"),
        ("sync", json!({"src": "/a/", "dst": "/b", "timeout": 0}), "parameters.timeout", "an unknown parameter"),
        ("erase_node", json!({}), "type", "an unknown type"),
    ] {
        let import = import_task(kind, &["web"], &parameters);
        assert_eq!(import.spec.tasks[0].foreign["untranslated"], json!([field]), "{kind} {parameters}");
        let message = format!("not translated: {field} ({reason}); the task is placed, and never started");
        assert_eq!(import.findings[0].message, message);
        assert_eq!(
            import.reasons.iter().map(|(reason, count)| (reason.to_string(), *count)).collect::<Vec<_>>(),
            [(reason.to_owned(), 1)]
        );
        assert_eq!((import.runnable(), import.total()), (0, 1), "{kind}");
    }
    // A file of `copy_files` with rights of its own.
    let import = import_task("copy_files", &["master"], &json!({"files": [{"src": "/a", "dst": "/b", "permissions": "0600"}]}));
    assert_eq!(import.reasons.keys().collect::<Vec<_>>(), [&UntranslatedReason::Parameter]);
}

/// Two instances, each a node and a task. The first instance runs before the second.
type Edge = [[String; 2]; 2];

/// Imports Fuel's task library as a release. Returns `None` if the file with the library is missing.
fn load_library() -> Option<fuel::FuelImport> {
    let file = read_shared("data/fuel/fuel_library_tasks.json")?;
    Some(fuel::import_file(&file, "default").expect("the library is read"))
}

/// Parses the recorded edges, which refer to instances by index. Skips an edge from an instance to itself.
fn expected_edges(value: &Value) -> BTreeSet<Edge> {
    let instances: Vec<[String; 2]> = serde_json::from_value(value["instances"].clone()).expect("instances");
    let edges: Vec<[usize; 2]> = serde_json::from_value(value["edges"].clone()).expect("edges by number");
    let edges = edges.into_iter().map(|[earlier, later]| [instances[earlier].clone(), instances[later].clone()]);
    edges.filter(|[earlier, later]| earlier != later).collect()
}

/// Returns whether an edge may come from a YAQL expression, which the import does not translate. This is so if a cross
/// dependency of either task was not translated.
fn depends_on_yaql(edge: &Edge, import: &fuel::FuelImport) -> bool {
    let has_untranslated_cross = |id: &str| {
        let task = import.spec.tasks.iter().find(|task| task.id == id).expect("a task of the library");
        let fields = task.foreign.get("untranslated").and_then(Value::as_array);
        fields.into_iter().flatten().filter_map(Value::as_str).any(|field| field.starts_with("cross"))
    };
    has_untranslated_cross(&edge[0][1]) || has_untranslated_cross(&edge[1][1])
}

/// The library has 204 tasks. Each task with an expression that the import cannot translate gives one finding.
#[test]
fn fuel_import_counts_runnable_tasks() {
    let Some(import) = load_library() else { return };
    assert_eq!(import.spec.tasks.len(), 204);
    assert_eq!((import.spec.roles.len(), import.spec.tags.len()), (9, 13));
    // 204 tasks without 11 groups, 6 stages and 4 of type `skipped`. The counts were computed from Fuel's file by another
    // program.
    assert_eq!((import.runnable(), import.total()), (3, 183));
    let types: Vec<(&str, TypeCount)> = import.types.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
    let count = |runnable, total| TypeCount { runnable, total };
    let expected_types = [
        ("copy_files", count(0, 6)),
        ("puppet", count(3, 162)),
        ("shell", count(0, 9)),
        ("sync", count(0, 1)),
        ("upload_file", count(0, 5)),
    ];
    assert_eq!(types, expected_types);
    let reasons: Vec<(UntranslatedReason, usize)> = import.reasons.clone().into_iter().collect();
    let expected_reasons =
        [(UntranslatedReason::Expression, 177), (UntranslatedReason::Placeholder, 9), (UntranslatedReason::MasterFile, 7)];
    assert_eq!(reasons, expected_reasons);
    let untranslated_count = import.spec.tasks.iter().filter(|task| task.foreign.contains_key("untranslated")).count();
    assert_eq!((import.findings.len(), import.total() - import.runnable()), (untranslated_count, untranslated_count));
}

/// Each row has a graph, its number of tasks, and its dependencies on tasks that the graph does not have. Fuel's file lists
/// them as `unknown_references`.
#[test]
fn each_graph_of_fuel_is_compiled_without_dangling_dependencies() {
    let Some(file) = read_shared::<Value>("data/fuel/fuel_library_tasks.json") else { return };
    for (graph, task_count, dropped) in [
        ("default", 204, json!(null)),
        ("provision", 10, json!(["required_for set_status_provisioned"])),
        ("deletion", 5, json!(null)),
        ("net_verification", 14, json!(["required_for copy_cluster_configuration"])),
    ] {
        let mut import = fuel::import_file(&file, graph).expect("the graph is read");
        import.drop_dangling_dependencies();
        assert_eq!(import.spec.tasks.len(), task_count, "{graph}");
        assert!(compile_release(&import.spec).is_ok(), "{graph}: {:?}", compile_release(&import.spec).err());
        let stored = import.spec.tasks.iter().find_map(|task| task.foreign.get("unknown_references").cloned());
        assert_eq!(stored.unwrap_or_default(), dropped, "{graph}");
        let count = dropped.as_array().map_or(0, Vec::len);
        let finding_count = import.findings.iter().filter(|finding| finding.code == "fuel.reference").count();
        assert_eq!((import.dropped_dependencies, finding_count), (count, count), "{graph}");
    }
    let fields: Vec<_> = load_library().expect("the library").fields_without_effect.into_iter().collect();
    assert_eq!(fields, [("reexecute_on", 1), ("test_post", 51), ("test_pre", 38)]);
}

/// Each row has a recorded cluster of Fuel, its number of instances, and its number of edges including those from an
/// instance to itself. Stemma may lack edges that depend on YAQL. It may have more edges only to the one task with
/// policy `any`.
#[test]
fn fuel_clusters_are_placed_and_ordered_as_in_fuel() {
    let Some(import) = load_library() else { return };
    for (file, instance_count, max_edges) in [("expected_ha_ceph.json", 631, 2_189), ("expected_all_in_one.json", 177, 510)] {
        let Some(expected) = read_shared::<Value>(&format!("data/fuel/{file}")) else { return };
        let scenario = FuelScenario::with_release(&import.spec, &expected).expect("the library compiles");
        let placed: BTreeSet<[String; 2]> = scenario
            .placement()
            .into_iter()
            .flat_map(|(node, tasks)| tasks.into_iter().map(move |task| [node.clone(), task]))
            .collect();
        let expected_instances: BTreeSet<[String; 2]> = serde_json::from_value(expected["instances"].clone()).expect("instances");
        assert_eq!(placed, expected_instances, "{file}");
        assert_eq!(placed.len(), instance_count, "{file}");

        let (edges, expected_edge_set) = (scenario.edges(), expected_edges(&expected));
        assert!(expected_edge_set.len() <= max_edges, "{file}: edges from an instance to itself are skipped");
        let missing: Vec<&Edge> = expected_edge_set.difference(&edges).collect();
        assert!(missing.iter().all(|edge| depends_on_yaql(edge, &import)), "{file}: missing {missing:?}");
        println!("{file}: {} of {} edges depend on YAQL and are missing", missing.len(), expected_edge_set.len());
        let additional: Vec<&Edge> = edges.difference(&expected_edge_set).collect();
        let any_task = expected["policy_any"]["task"].as_str().expect("the task of policy any");
        assert!(additional.iter().all(|[_, later]| later[1] == any_task), "{file}: too many {additional:?}");
        assert_eq!(scenario.build_graph().check(), Ok(()), "{file}");
    }
}

/// The number of instances is recorded for the whole cluster and for each node. An instance is a task on a node.
#[test]
fn hundred_nodes_have_instance_count_of_fuel() {
    let (Some(import), Some(expected)) = (load_library(), read_shared::<Value>("data/fuel/scale_100.json")) else { return };
    let scenario = FuelScenario::with_release(&import.spec, &expected).expect("the library compiles");
    assert_eq!(scenario.placement().values().map(BTreeSet::len).sum::<usize>(), 5_432);
    assert_eq!(scenario.build_graph().check(), Ok(()));
    let placed = scenario.placement();
    for (node, count) in expected["counts"]["per_node"].as_object().expect("counts") {
        assert_eq!(placed.get(node).map_or(0, BTreeSet::len) as u64, count.as_u64().expect("a number"), "{node}");
    }
}

/// Fuel writes `/.*/` for all names. That pattern also matches the empty text, and the controller refuses a request
/// with such a pattern. So the import replaces the pattern.
#[test]
fn x06_fuel_import_can_be_sent_as_release() {
    let dependencies =
        json!([{"name": "/.*/", "role": "/.*/"}, {"name": "b", "role": ["master", "//"]}, {"name": "b", "tags": "*"}]);
    let tasks = [
        json!({"id": "a", "type": "shell", "tags": ["/"], "requires": ["/.*/"], "cross-depends": dependencies}),
        json!({"id": "b", "type": "shell", "role": "/.*/"}),
        json!({"id": "c", "type": "shell", "tags": "*"}),
    ];
    let small_import = fuel::import(&tasks, &Map::new(), &Map::new()).expect("Fuel's tasks are read");
    for import in [Some(small_import), load_library()].into_iter().flatten() {
        let body = to_raw_value(&import.spec.tasks).expect("tasks are JSON");
        assert_eq!(read_tasks(&body).expect("a body may have them"), import.spec.tasks);
    }
}

/// Regression: the import stored `6.0` where a stored release has `6`, so equal releases differed.
#[test]
fn y04_fuel_whole_numbers_are_normalized() {
    let import_with = |number_text: &str| {
        let tasks = format!(
            r#"[{{"id": "c", "type": "upload_file", "groups": ["web"], "version": {number_text}, "parameters":
            {{"path": "/x", "data": "a", "timeout": {number_text}, "strategy": {{"type": "parallel", "amount": {number_text}}}}}}}]"#
        );
        let tasks: Vec<Value> = serde_json::from_str(&tasks).expect("it is JSON");
        let roles = format!(r#"{{"web": {{"limits": {{"min": {number_text}}}}}}}"#);
        let roles: Map<String, Value> = serde_json::from_str(&roles).expect("it is JSON");
        fuel::import(&tasks, &roles, &Map::new()).expect("Fuel's tasks are read")
    };
    for number_text in ["6", "6.0", "6e0", "0.6e1"] {
        let import = import_with(number_text);
        let task = &import.spec.tasks[0];
        assert_eq!(task.parameters.get("timeout").map(Value::to_string).as_deref(), Some("6"), "{number_text}");
        assert_eq!(task.foreign.get("version").map(Value::to_string).as_deref(), Some("6"), "{number_text}");
        assert_eq!((task.max_nodes, task.is_untranslated()), (Some(6), false), "{number_text}");
        let expected_roles = json!({"web": {"limits": {"min": 6}}});
        assert_eq!(import.spec.foreign.get("roles_metadata"), Some(&expected_roles), "{number_text}");
    }
    let import_of_half = import_with("6.5");
    assert_eq!((import_of_half.spec.tasks[0].max_nodes, import_of_half.spec.tasks[0].is_untranslated()), (None, true));
}
