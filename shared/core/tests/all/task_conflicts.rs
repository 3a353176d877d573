//! Findings about two tasks of a node that want one package, unit, user or group in different ways.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use serde_json::{Value, json};
use stemma_core::finding::{Finding, Severity, rule};
use stemma_core::resolve::{ResolveCache, newly_obstructed, resolve_fleet, resolve_node};

use crate::fleet_fixture::FleetFixture;

/// Returns the documents of a release with these tasks and of the nodes n1 and n2. Both nodes have tag `x`. Only n1 has
/// tag `y`, and the label `at` with the value `z`.
fn site_manifests(tasks: &[Value]) -> Vec<Value> {
    vec![
        json!({"kind": "Release", "name": "r", "version": "1", "roles": {"all": {"tags": ["x"]}, "one": {"tags": ["y"]}},
            "tags": {"x": {}, "y": {}}, "tasks": tasks}),
        json!({"kind": "Cluster", "name": "c", "release": "r@1", "labels": {"at": "std"}}),
        json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"]}),
        json!({"kind": "Node", "name": "n1", "nodegroup": "c/g", "roles": ["one"], "labels": {"at": "z"}}),
        json!({"kind": "Node", "name": "n2", "nodegroup": "c/g"}),
    ]
}

/// Returns a `package` task for the package nginx, with these fields added or replaced.
fn package_task(id: &str, absent: bool, fields: Value) -> Value {
    let Value::Object(fields) = fields else { unreachable!("fields are an object") };
    let mut task = json!({"id": id, "type": "package", "tags": ["x"], "parameters": {"name": "nginx", "absent": absent}});
    task.as_object_mut().unwrap().extend(fields);
    task
}

/// Returns those findings that concern conflicts of tasks.
fn conflicts(findings: impl IntoIterator<Item = Finding>) -> Vec<Finding> {
    findings.into_iter().filter(|finding| finding.code == rule::TASK_CONFLICT.code).collect()
}

#[test]
fn two_tasks_wanting_package_differently_are_one_warning() {
    let task_a = || package_task("a", false, json!({}));
    for (tasks, hosts) in [
        ([task_a(), package_task("b", true, json!({}))], Some("2 hosts (n1, n2)")),
        ([task_a(), package_task("b", true, json!({"tags": ["y"]}))], Some("1 host (n1)")),
        ([task_a(), package_task("b", true, json!({"condition": "labels.at == 'z'"}))], Some("1 host (n1)")),
        ([task_a(), package_task("b", true, json!({"condition": "labels.at == 'no'"}))], None),
        ([task_a(), package_task("b", true, json!({"mode": "observe"}))], None),
        ([task_a(), package_task("b", true, json!({"phase": "cleanup"}))], None),
        ([task_a(), package_task("b", false, json!({}))], None),
    ] {
        let fixture = FleetFixture::from_manifests(&site_manifests(&tasks));
        let findings = conflicts(resolve_fleet(&fixture.fleet, &ResolveCache::new()).unwrap().findings);
        assert_eq!(findings.len(), usize::from(hosts.is_some()), "{tasks:?} {findings:?}");
        for (finding, hosts) in findings.iter().zip(hosts) {
            assert_eq!((finding.severity, finding.object.as_str()), (Severity::Warning, "release/r@1 task b"), "{tasks:?}");
            let expected = format!("on {hosts}: package nginx: this task wants `absent: true`, and task a wants `absent: false`");
            assert!(finding.message.starts_with(&expected), "{tasks:?} {}", finding.message);
        }
    }
}

/// Document 4 is node n2. With role `one`, n2 also has task b.
#[test]
fn task_conflict_is_finding_of_causing_edit() {
    let tasks = [package_task("a", false, json!({})), package_task("b", true, json!({"tags": ["y"]}))];
    let mut documents = site_manifests(&tasks);
    let mut fixture = FleetFixture::from_manifests(&documents);
    let old_fleet = fixture.fleet.clone();
    documents[4]["roles"] = json!(["one"]);
    let _dirty = fixture.apply(&documents);
    let nodes = || fixture.fleet.nodes().map(|node| node.id());
    // The same conflict existed on n1 before the edit, so only n2 is reported.
    let new_findings = newly_obstructed(&old_fleet, &fixture.fleet, &ResolveCache::new(), nodes());
    assert_eq!(new_findings.len(), 1, "{new_findings:?}");
    assert!(new_findings[0].message.starts_with("on 1 host (n2): package nginx"), "{new_findings:?}");
    // Each of the two nodes has the finding.
    for node in nodes() {
        let resolution = resolve_node(&fixture.fleet, &ResolveCache::new(), node);
        let set = resolution.resolved_node().unwrap().task_set().unwrap();
        assert_eq!(conflicts(set.findings()).len(), 1, "{node:?}");
    }
}
