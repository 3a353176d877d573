//! Findings about paths of tasks: two tasks of a node write one path, or a rendered path is invalid.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use serde_json::{Value, json};
use stemma_core::finding::{Finding, Severity, rule};
use stemma_core::fleet::Fleet;
use stemma_core::object::NodeId;
use stemma_core::resolve::{ResolveCache, newly_obstructed, resolve_fleet, resolve_node};

use crate::fleet_fixture::FleetFixture;

/// Returns the documents of a release with these tasks and of the nodes n1 and n2. Both nodes have role `all`. Only n1
/// has role `one`, and only n1 provides label `at`, with the value `z`. No node has role `no`.
fn site_manifests(tasks: &[Value]) -> Vec<Value> {
    vec![
        json!({"kind": "Release", "name": "r", "version": "1", "roles": {"all": {"tags": ["x"]}, "one": {"tags": ["y"]}, "no": {"tags": ["z"]}},
            "tags": {"x": {}, "y": {}, "z": {}}, "tasks": tasks}),
        json!({"kind": "Cluster", "name": "c", "release": "r@1", "parameters": {"dir": "/etc"}, "labels": {"at": "std"}}),
        json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"]}),
        json!({"kind": "Node", "name": "n1", "nodegroup": "c/g", "roles": ["one"], "labels": {"at": "z"}}),
        json!({"kind": "Node", "name": "n2", "nodegroup": "c/g"}),
    ]
}

/// Returns a task of type `file` for both nodes, with these fields added or replaced.
fn file_task(id: &str, path: &str, fields: Value) -> Value {
    let Value::Object(fields) = fields else { unreachable!("fields are an object") };
    let mut task = json!({"id": id, "type": "file", "tags": ["x"], "parameters": {"path": path, "content": id}});
    task.as_object_mut().unwrap().extend(fields);
    task
}

/// Returns a task that removes a file from both nodes.
fn absent_file_task(id: &str, path: &str) -> Value {
    file_task(id, path, json!({"parameters": {"path": path, "absent": true}}))
}

/// Returns a path of 5,001 bytes without its first slash. Each name in it is short.
fn long_path() -> String {
    format!("{}a", "a/".repeat(2500))
}

/// Returns those findings that concern paths of tasks.
fn path_findings(findings: Vec<Finding>) -> Vec<Finding> {
    findings.into_iter().filter(|finding| finding.code == rule::TASK_PATH.code).collect()
}

/// Resolves a fleet with these tasks. Returns the findings about paths of tasks.
fn findings_of_tasks(tasks: &[Value]) -> Vec<Finding> {
    path_findings(
        resolve_fleet(&FleetFixture::from_manifests(&site_manifests(tasks)).fleet, &ResolveCache::new()).unwrap().findings,
    )
}

#[test]
fn y01_two_tasks_writing_one_path_are_one_error() {
    let task_a = || file_task("a", "/etc/z", json!({}));
    for (tasks, hosts) in [
        ([task_a(), file_task("b", "/etc/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([task_a(), absent_file_task("b", "/etc/z")], Some("2 hosts (n1, n2)")),
        ([absent_file_task("a", "/etc/z"), file_task("b", "/etc/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([absent_file_task("a", "/etc/z"), absent_file_task("b", "/etc/z")], None),
        ([task_a(), file_task("b", "/etc/z/y", json!({}))], Some("2 hosts (n1, n2)")),
        ([task_a(), file_task("b", "/etc", json!({}))], Some("2 hosts (n1, n2)")),
        ([task_a(), file_task("b", "/etc/y", json!({}))], None),
        ([task_a(), file_task("b", "{{ params.dir }}/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([task_a(), file_task("b", "{{ params.dir|default('/x') }}/{{ 'z' }}", json!({}))], Some("2 hosts (n1, n2)")),
        ([task_a(), file_task("b", "/etc/{{ labels.at }}", json!({}))], Some("1 host (n1)")),
        ([task_a(), file_task("b", "/etc/{{ node.name }}", json!({}))], None),
        ([file_task("a", "/run/z", json!({})), file_task("b", "/var/run/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([file_task("a", "/var", json!({})), file_task("b", "/var/run/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([file_task("a", "/var/run/z", json!({})), file_task("b", "/var", json!({}))], Some("2 hosts (n1, n2)")),
        ([absent_file_task("a", "/var"), file_task("b", "/var/run/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([file_task("a", "/var/run/z", json!({})), absent_file_task("b", "/var")], Some("2 hosts (n1, n2)")),
        ([absent_file_task("a", "/var"), absent_file_task("b", "/var/run/z")], None),
        ([file_task("a", "/var", json!({})), file_task("b", "/run/z", json!({}))], None),
        (
            [file_task("a", "/var", json!({})), file_task("b", "/var/{{ 'run' }}/{{ labels.at }}", json!({}))],
            Some("2 hosts (n1, n2)"),
        ),
        ([file_task("a", "/var", json!({})), file_task("b", "/var/run/{{ labels.at }}", json!({}))], Some("2 hosts (n1, n2)")),
        ([file_task("a", "/run/z", json!({})), absent_file_task("b", "/var/run")], Some("2 hosts (n1, n2)")),
        ([file_task("a", "/var/run", json!({})), file_task("b", "/run/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([file_task("a", "/bin", json!({})), file_task("b", "/usr/bin/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([file_task("a", "/usr/bin/z", json!({})), absent_file_task("b", "/bin")], Some("2 hosts (n1, n2)")),
        ([file_task("a", "/var/spool", json!({})), file_task("b", "/var/mail/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([file_task("a", "/var/spool/z", json!({})), file_task("b", "/var/mail/z", json!({}))], None),
        (
            [file_task("a", "/run/{{ labels.at }}", json!({})), file_task("b", "/var/{{ 'run' }}/{{ labels.at }}", json!({}))],
            Some("2 hosts (n1, n2)"),
        ),
        ([task_a(), file_task("b", "/etc/z", json!({"tags": ["y"]}))], Some("1 host (n1)")),
        ([task_a(), file_task("b", "/etc/z", json!({"tags": ["z"]}))], None),
        ([task_a(), file_task("b", "/etc/z", json!({"condition": "labels.at == 'z'"}))], Some("1 host (n1)")),
        ([task_a(), file_task("b", "/etc/z", json!({"condition": "labels.at == 'no'"}))], None),
        (
            [
                file_task("a", "/etc/z", json!({"condition": "labels.at == 'z'"})),
                file_task("b", "/etc/z", json!({"condition": "labels.at != 'z'"})),
            ],
            None,
        ),
        ([task_a(), file_task("b", "/etc/z", json!({"phase": "cleanup"}))], None),
        (
            [task_a(), json!({"id": "b", "type": "shell", "tags": ["x"], "parameters": {"command": ["b"], "creates": "/etc/z"}})],
            None,
        ),
    ] {
        let findings = findings_of_tasks(&tasks);
        assert_eq!(findings.len(), usize::from(hosts.is_some()), "{tasks:?} {findings:?}");
        for (finding, hosts) in findings.iter().zip(hosts) {
            assert_eq!((finding.severity, finding.object.as_str()), (Severity::Error, "release/r@1 task b"), "{tasks:?}");
            let is_expected =
                finding.message.starts_with(&format!("on {hosts}: ")) && finding.message.contains("the path of task a");
            assert!(is_expected, "{tasks:?} {}", finding.message);
        }
    }
}

/// A host neither runs nor checks a task of mode `observe`, so another task may have the same path. A host checks a
/// task of mode `noop`, and would always report a difference if another task wrote its path.
#[test]
fn y01_observed_task_claims_no_path() {
    let (fact_path, rendered_path) = ("/etc/{{ facts.architecture }}", "/srv/{{ params.dir }}/z");
    // The path and mode of the tasks `a`, `b` and `c`; then the task with a finding, and the task that it names.
    for (paths_and_modes, conflict) in [
        ([("/etc/z", "observe"), ("/etc/z", "apply"), ("/etc/c", "apply")], None),
        ([("/etc/z", "apply"), ("/etc/z", "observe"), ("/etc/c", "apply")], None),
        ([("/etc/z", "observe"), ("/etc/z", "observe"), ("/etc/c", "apply")], None),
        ([("/etc/z", "observe"), ("/etc/z/y", "apply"), ("/etc/c", "apply")], None),
        ([("{{ params.dir }}/z", "observe"), ("/etc/z", "apply"), ("/etc/c", "apply")], None),
        ([(fact_path, "apply"), (fact_path, "observe"), ("/srv/c", "apply")], None),
        ([(rendered_path, "observe"), ("/srv/b", "apply"), ("/srv/c", "apply")], None),
        ([("/etc/z", "observe"), ("/etc/z", "apply"), ("/etc/z", "apply")], Some(("c", "task b"))),
        ([("/etc/z", "apply"), ("/etc/z", "observe"), ("/etc/z", "apply")], Some(("c", "task a"))),
        ([("/etc/z", "apply"), ("/etc/z", "noop"), ("/etc/c", "apply")], Some(("b", "task a"))),
    ] {
        let rows = ["a", "b", "c"].into_iter().zip(paths_and_modes);
        let tasks: Vec<Value> = rows.map(|(id, (path, mode))| file_task(id, path, json!({"mode": mode}))).collect();
        let findings = findings_of_tasks(&tasks);
        assert_eq!(findings.len(), usize::from(conflict.is_some()), "{tasks:?} {findings:?}");
        for (finding, (task, first_task)) in findings.iter().zip(conflict) {
            assert_eq!(finding.object, format!("release/r@1 task {task}"), "{tasks:?}");
            assert!(finding.message.contains(&format!("the path of {first_task}")), "{tasks:?} {}", finding.message);
        }
    }
}

/// Two equal templates give the same path, whatever the value of the fact is. So the conflict is certain before a host
/// reports the fact.
#[test]
fn y01_equal_templates_conflict_when_value_is_unknown() {
    let (fact_path, path_below) = ("/etc/{{ facts.architecture }}", "/etc/{{ facts.architecture }}/x");
    for (first, second, relation) in [
        (fact_path, fact_path, Some("is the path of task a too")),
        (fact_path, "/etc/{{facts['architecture']}}", Some("is the path of task a too")),
        ("/etc/{{ facts [\"architecture\"] }}", path_below, Some("lies below")),
        (fact_path, path_below, Some("lies below")),
        (path_below, fact_path, Some("is a directory above")),
        ("/etc/z", "/etc/z/{{ facts.architecture }}", Some("lies below")),
        ("/etc/z/{{ facts.architecture }}", "/etc/z", Some("is a directory above")),
        ("/run/{{ facts.architecture }}", "/var/run/{{ facts.architecture }}", Some("by a link")),
        (fact_path, "/etc/{{ facts.hostname }}", None),
        (fact_path, "/etc/{{ facts.architecture }}-x", None),
        (path_below, "/etc/{{ facts.architecture }}/y", None),
        (fact_path, "/etc/x86_64", None),
    ] {
        let findings = findings_of_tasks(&[file_task("a", first, json!({})), file_task("b", second, json!({}))]);
        let has_relation: Vec<bool> =
            findings.iter().map(|finding| finding.message.contains(relation.unwrap_or_default())).collect();
        assert_eq!(has_relation, vec![true; usize::from(relation.is_some())], "{first} {second}: {findings:?}");
    }
}

/// Document 1 is the cluster, which provides the parameters.
#[test]
fn y01_invalid_rendered_path_is_error_finding() {
    for (path, expected_part) in [
        ("/etc/{{ params.up }}/z", Some("path \"/etc/../z\" has \"..\" in it; write the plain path")),
        ("/etc/{{ params.none }}/z", Some("path \"/etc//z\" has \"\" in it; write the plain path")),
        ("/etc/z{{ params.none }}/{{ params.none }}", Some("names no file: it ends with a slash")),
        ("{{ params.name }}/z", Some("path \"etc/z\" is relative")),
        ("/{{ params.kernel }}/z", Some("lies in a tree of the kernel")),
        ("/run/{{ params.own }}/z", Some("belongs to the agent")),
        ("/{{ params.long }}", Some("path of 5002 bytes: at most 4095 in all and 255 a name are allowed")),
        ("{{ params.dir }}/z", None),
    ] {
        let mut documents = site_manifests(&[file_task("a", path, json!({}))]);
        documents[1]["parameters"] =
            json!({"up": "..", "none": "", "name": "etc", "kernel": "proc", "own": "stemma", "dir": "/etc", "long": long_path()});
        let fixture = FleetFixture::from_manifests(&documents);
        let findings = path_findings(resolve_fleet(&fixture.fleet, &ResolveCache::new()).unwrap().findings);
        assert_eq!(findings.len(), usize::from(expected_part.is_some()), "{path}: {findings:?}");
        for (finding, expected_part) in findings.iter().zip(expected_part) {
            assert_eq!((finding.severity, finding.object.as_str()), (Severity::Error, "release/r@1 task a"), "{path}");
            let is_expected = finding.message.starts_with("on 2 hosts (n1, n2): ") && finding.message.contains(expected_part);
            assert!(is_expected, "{path}: {}", finding.message);
        }
    }
}

/// A host checks rendered directories and programs by the same rules, and runs no task with an invalid value.
#[test]
fn y09_invalid_rendered_directory_or_program_is_error_finding() {
    let shell_task = |parameters_of_case: Value| {
        let mut parameters = json!({"command": ["/bin/true"]});
        parameters.as_object_mut().unwrap().extend(parameters_of_case.as_object().unwrap().clone());
        json!({"id": "a", "type": "shell", "tags": ["x"], "parameters": parameters})
    };
    let task_with_validate = |program: &str| {
        let parameters = json!({"path": "/etc/z", "content": "a", "validate": [program, "%s"]});
        file_task("a", "/etc/z", json!({"parameters": parameters}))
    };
    let no_program = |field: &str| format!("parameters.{field} gives: the first item must be the program, but it is missing");
    let too_long = |field: &str| format!("parameters.{field} gives: path of 5002 bytes: at most 4095 in all");
    let relative = |field: &str| format!("parameters.{field} gives: path \"etc\" is relative; write it from `/` on");
    for (task, expected_part) in [
        (shell_task(json!({"cwd": "{{ params.name }}"})), Some(relative("cwd"))),
        (shell_task(json!({"creates": "{{ params.name }}"})), Some(relative("creates"))),
        (shell_task(json!({"cwd": "/tmp/{{ params.up }}"})), Some("path \"/tmp/..\" has \"..\" in it".to_owned())),
        (shell_task(json!({"creates": "/{{ params.none }}"})), Some("names no file: it ends with a slash".to_owned())),
        (shell_task(json!({"cwd": "/{{ params.long }}"})), Some(too_long("cwd"))),
        (shell_task(json!({"creates": "/{{ params.long }}"})), Some(too_long("creates"))),
        (shell_task(json!({"command": ["{{ params.none }}", "x"]})), Some(no_program("command[0]"))),
        (shell_task(json!({"unless": ["{{ params.none }}"]})), Some(no_program("unless[0]"))),
        (shell_task(json!({"only_if": ["{{ params.none }}"]})), Some(no_program("only_if[0]"))),
        (task_with_validate("{{ params.none }}"), Some(no_program("validate[0]"))),
        (shell_task(json!({"cwd": "{{ params.dir }}", "creates": "/dev/{{ params.name }}"})), None),
        (shell_task(json!({"command": ["{{ params.name }}", "{{ params.none }}"], "unless": "{{ params.none }}x"})), None),
        (shell_task(json!({"cwd": "{{ facts.architecture }}"})), None),
        (shell_task(json!({"cwd": "/{{ params.none }}"})), None),
        (task_with_validate("{{ params.name }}"), None),
    ] {
        let mut documents = site_manifests(std::slice::from_ref(&task));
        documents[1]["parameters"] = json!({"up": "..", "none": "", "name": "etc", "dir": "/etc", "long": long_path()});
        let fixture = FleetFixture::from_manifests(&documents);
        let findings = path_findings(resolve_fleet(&fixture.fleet, &ResolveCache::new()).unwrap().findings);
        assert_eq!(findings.len(), usize::from(expected_part.is_some()), "{task}: {findings:?}");
        for (finding, expected_part) in findings.iter().zip(expected_part) {
            assert_eq!((finding.severity, finding.object.as_str()), (Severity::Error, "release/r@1 task a"), "{task}");
            let is_expected = finding.message.starts_with("on 2 hosts (n1, n2): ") && finding.message.contains(&expected_part);
            assert!(is_expected, "{task}: {}", finding.message);
        }
    }
    let literal_fixture =
        FleetFixture::from_manifests(&site_manifests(&[shell_task(json!({"cwd": "/etc", "creates": "/etc/z"}))]));
    let node = literal_fixture.node("n1").id();
    assert!(!literal_fixture.fleet.profile(node).unwrap().should_check_paths(), "literal paths need no check for each node");
}

/// A write of a release or of a level above nodes checks the paths of a node only if a task with a literal path may
/// share its path with another task. This includes a path below the other path. Each row has a task, whether nodes with
/// the task need a check of their paths, and whether the path of the task may be `/etc/z`, the path of the other task.
#[test]
fn y01_write_checks_only_possibly_conflicting_literal_paths() {
    let task_with_validate = |path: &str| {
        let parameters = json!({"path": path, "content": "a", "validate": ["{{ params.dir }}/check", "%s"]});
        file_task("a", path, json!({"parameters": parameters}))
    };
    for (task, should_check, may_share_path) in [
        (file_task("a", "/etc/y", json!({})), false, false),
        (task_with_validate("/etc/y"), true, false),
        (task_with_validate("/etc/z"), true, true),
        (file_task("a", "/srv/{{ node.name }}", json!({})), true, false),
        (file_task("a", "/etc/{{ node.name }}", json!({})), true, true),
    ] {
        let fixture = FleetFixture::from_manifests(&site_manifests(&[task.clone(), file_task("b", "/etc/z", json!({}))]));
        let profile = fixture.fleet.profile(fixture.node("n1").id()).unwrap();
        assert_eq!((profile.should_check_paths(), profile.may_share_plain_paths), (should_check, may_share_path), "{task}");
    }
}

/// Task `b` runs first, because it is required for `a`. All three tasks have the same path.
#[test]
fn y01_path_belongs_to_first_task_in_order() {
    let first_task = file_task("b", "/etc/z", json!({"required_for": ["a"]}));
    let findings = findings_of_tasks(&[file_task("a", "/etc/z", json!({})), first_task, file_task("c", "/etc/z", json!({}))]);
    let objects: Vec<(&str, bool)> =
        findings.iter().map(|finding| (finding.object.as_str(), finding.message.contains("task b too"))).collect();
    assert_eq!(objects, [("release/r@1 task a", true), ("release/r@1 task c", true)]);
}

/// In this test, only n1 has tag `y`. So n1 has both tasks, which have the same path, and n2 has only task `a`.
#[test]
fn y01_path_error_does_not_change_tasks_of_node() {
    let tasks = [file_task("a", "/etc/z", json!({})), file_task("b", "/etc/z", json!({"tags": ["y"]}))];
    let fixture = FleetFixture::from_manifests(&site_manifests(&tasks));
    let resolution = |name: &str| resolve_node(&fixture.fleet, &fixture.cache, fixture.node(name).id());
    assert_eq!((resolution("n1").has_error(), resolution("n2").has_error()), (true, false));
    let node_findings = path_findings(resolution("n1").findings(fixture.node("n1")));
    assert_eq!(node_findings.iter().map(|finding| finding.object.as_str()).collect::<Vec<_>>(), ["node/n1 task/b"]);
    assert_eq!(fixture.node_output("n1").tasks, ["a", "b"], "the error removes no task from the node");
}

/// Document 4 is node n2. With role `one`, n2 also has task b, whose path is that of task a.
#[test]
fn y05_path_conflict_is_finding_of_causing_edit() {
    let mut documents = site_manifests(&[file_task("a", "/etc/z", json!({})), file_task("b", "/etc/z", json!({"tags": ["y"]}))]);
    let mut fixture = FleetFixture::from_manifests(&documents);
    let old_fleet = fixture.fleet.clone();
    documents[4]["roles"] = json!(["one"]);
    let _dirty = fixture.apply(&documents);
    let nodes: Vec<NodeId> = fixture.fleet.nodes().map(|node| node.id()).collect();
    let new_path_findings =
        |old_fleet: &Fleet| newly_obstructed(old_fleet, &fixture.fleet, &ResolveCache::new(), nodes.iter().copied());
    // The same conflict existed on n1 before the edit, so only n2 is reported.
    let new_findings = new_path_findings(&old_fleet);
    assert_eq!(new_findings.iter().map(|finding| finding.object.as_str()).collect::<Vec<_>>(), ["release/r@1 task b"]);
    assert!(
        new_findings[0].code == rule::TASK_PATH.code && new_findings[0].message.starts_with("on 1 host (n2): "),
        "{new_findings:?}"
    );
    assert!(new_path_findings(&fixture.fleet).is_empty());
}
