//! Paths that two tasks of one node write: which finding reports them, and which cases have none.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use serde_json::{Value, json};
use stemma_core::finding::{Finding, Severity, rule};
use stemma_core::fleet::Fleet;
use stemma_core::object::NodeId;
use stemma_core::resolve::{ResolveCache, newly_without_path, resolve_fleet, resolve_node};

use crate::fleet_fixture::FleetFixture;

/// Returns two nodes with role `all`. Only `n1` has role `one` and a label.
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

fn file_task(id: &str, path: &str, more: Value) -> Value {
    let Value::Object(more) = more else { unreachable!("fields are an object") };
    let mut task = json!({"id": id, "type": "file", "tags": ["x"], "parameters": {"path": path, "content": id}});
    task.as_object_mut().unwrap().extend(more);
    task
}

fn absent_file_task(id: &str, path: &str) -> Value {
    file_task(id, path, json!({"parameters": {"path": path, "absent": true}}))
}

/// Returns a path of 5,001 bytes without its first slash. Each name in it is short.
fn long_path() -> String {
    format!("{}a", "a/".repeat(2500))
}

fn path_findings(findings: Vec<Finding>) -> Vec<Finding> {
    findings.into_iter().filter(|one| one.code == rule::TASK_PATH.code).collect()
}

fn findings_of_tasks(tasks: &[Value]) -> Vec<Finding> {
    path_findings(
        resolve_fleet(&FleetFixture::from_manifests(&site_manifests(tasks)).fleet, &ResolveCache::new()).unwrap().findings,
    )
}

#[test]
fn y01_two_tasks_writing_one_path_are_one_error() {
    let a = || file_task("a", "/etc/z", json!({}));
    for (tasks, hosts) in [
        ([a(), file_task("b", "/etc/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([a(), absent_file_task("b", "/etc/z")], Some("2 hosts (n1, n2)")),
        ([absent_file_task("a", "/etc/z"), file_task("b", "/etc/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([absent_file_task("a", "/etc/z"), absent_file_task("b", "/etc/z")], None),
        ([a(), file_task("b", "/etc/z/y", json!({}))], Some("2 hosts (n1, n2)")),
        ([a(), file_task("b", "/etc", json!({}))], Some("2 hosts (n1, n2)")),
        ([a(), file_task("b", "/etc/y", json!({}))], None),
        ([a(), file_task("b", "{{ params.dir }}/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([a(), file_task("b", "{{ params.dir|default('/x') }}/{{ 'z' }}", json!({}))], Some("2 hosts (n1, n2)")),
        ([a(), file_task("b", "/etc/{{ labels.at }}", json!({}))], Some("1 host (n1)")),
        ([a(), file_task("b", "/etc/{{ node.name }}", json!({}))], None),
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
        ([a(), file_task("b", "/etc/z", json!({"tags": ["y"]}))], Some("1 host (n1)")),
        ([a(), file_task("b", "/etc/z", json!({"tags": ["z"]}))], None),
        ([a(), file_task("b", "/etc/z", json!({"condition": "labels.at == 'z'"}))], Some("1 host (n1)")),
        ([a(), file_task("b", "/etc/z", json!({"condition": "labels.at == 'no'"}))], None),
        (
            [
                file_task("a", "/etc/z", json!({"condition": "labels.at == 'z'"})),
                file_task("b", "/etc/z", json!({"condition": "labels.at != 'z'"})),
            ],
            None,
        ),
        ([a(), file_task("b", "/etc/z", json!({"phase": "cleanup"}))], None),
        ([a(), json!({"id": "b", "type": "shell", "tags": ["x"], "parameters": {"command": ["b"], "creates": "/etc/z"}})], None),
    ] {
        let found = findings_of_tasks(&tasks);
        assert_eq!(found.len(), usize::from(hosts.is_some()), "{tasks:?} {found:?}");
        for (one, hosts) in found.iter().zip(hosts) {
            assert_eq!((one.severity, one.object.as_str()), (Severity::Error, "release/r@1 task b"), "{tasks:?}");
            let says = one.message.starts_with(&format!("on {hosts}: ")) && one.message.contains("the path of task a");
            assert!(says, "{tasks:?} {}", one.message);
        }
    }
}

/// Hosts neither run nor check an observed task, so it writes nothing. A task of mode `noop` is checked, and would
/// always differ.
#[test]
fn y01_observed_task_claims_no_path() {
    let of = |id: &str, path: &str, mode: &str| file_task(id, path, json!({"mode": mode}));
    let (fact, none) = ("/etc/{{ facts.architecture }}", "/srv/{{ params.dir }}/z");
    for (tasks, refused) in [
        ([of("a", "/etc/z", "observe"), of("b", "/etc/z", "apply"), of("c", "/etc/c", "apply")], None),
        ([of("a", "/etc/z", "apply"), of("b", "/etc/z", "observe"), of("c", "/etc/c", "apply")], None),
        ([of("a", "/etc/z", "observe"), of("b", "/etc/z", "observe"), of("c", "/etc/c", "apply")], None),
        ([of("a", "/etc/z", "observe"), of("b", "/etc/z/y", "apply"), of("c", "/etc/c", "apply")], None),
        ([of("a", "{{ params.dir }}/z", "observe"), of("b", "/etc/z", "apply"), of("c", "/etc/c", "apply")], None),
        ([of("a", fact, "apply"), of("b", fact, "observe"), of("c", "/srv/c", "apply")], None),
        ([of("a", none, "observe"), of("b", "/srv/b", "apply"), of("c", "/srv/c", "apply")], None),
        ([of("a", "/etc/z", "observe"), of("b", "/etc/z", "apply"), of("c", "/etc/z", "apply")], Some(("c", "task b"))),
        ([of("a", "/etc/z", "apply"), of("b", "/etc/z", "observe"), of("c", "/etc/z", "apply")], Some(("c", "task a"))),
        ([of("a", "/etc/z", "apply"), of("b", "/etc/z", "noop"), of("c", "/etc/c", "apply")], Some(("b", "task a"))),
    ] {
        let found = findings_of_tasks(&tasks);
        assert_eq!(found.len(), usize::from(refused.is_some()), "{tasks:?} {found:?}");
        for (one, (task, first)) in found.iter().zip(refused) {
            assert_eq!(one.object, format!("release/r@1 task {task}"), "{tasks:?}");
            assert!(one.message.contains(&format!("the path of {first}")), "{tasks:?} {}", one.message);
        }
    }
}

/// Equal templates give equal paths whatever they read, so the conflict is certain without the value.
#[test]
fn y01_equal_templates_conflict_when_value_is_unknown() {
    let (fact, below) = ("/etc/{{ facts.architecture }}", "/etc/{{ facts.architecture }}/x");
    for (first, second, meets) in [
        (fact, fact, Some("is the path of task a too")),
        (fact, "/etc/{{facts['architecture']}}", Some("is the path of task a too")),
        ("/etc/{{ facts [\"architecture\"] }}", below, Some("lies below")),
        (fact, below, Some("lies below")),
        (below, fact, Some("is a directory above")),
        ("/etc/z", "/etc/z/{{ facts.architecture }}", Some("lies below")),
        ("/etc/z/{{ facts.architecture }}", "/etc/z", Some("is a directory above")),
        ("/run/{{ facts.architecture }}", "/var/run/{{ facts.architecture }}", Some("by a link")),
        (fact, "/etc/{{ facts.hostname }}", None),
        (fact, "/etc/{{ facts.architecture }}-x", None),
        (below, "/etc/{{ facts.architecture }}/y", None),
        (fact, "/etc/x86_64", None),
    ] {
        let found = findings_of_tasks(&[file_task("a", first, json!({})), file_task("b", second, json!({}))]);
        let said: Vec<bool> = found.iter().map(|one| one.message.contains(meets.unwrap_or_default())).collect();
        assert_eq!(said, vec![true; usize::from(meets.is_some())], "{first} {second}: {found:?}");
    }
}

#[test]
fn y01_invalid_rendered_path_is_error_of_node() {
    for (path, says) in [
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
        let made = FleetFixture::from_manifests(&documents);
        let found = path_findings(resolve_fleet(&made.fleet, &ResolveCache::new()).unwrap().findings);
        assert_eq!(found.len(), usize::from(says.is_some()), "{path}: {found:?}");
        for (one, says) in found.iter().zip(says) {
            assert_eq!((one.severity, one.object.as_str()), (Severity::Error, "release/r@1 task a"), "{path}");
            let is_said = one.message.starts_with("on 2 hosts (n1, n2): ") && one.message.contains(says);
            assert!(is_said, "{path}: {}", one.message);
        }
    }
}

/// The host checks the rendered values by the same rules, and does not run the task.
#[test]
fn y09_invalid_rendered_directory_or_program_is_error_of_node() {
    let run = |more: Value| {
        let mut parameters = json!({"command": ["/bin/true"]});
        parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"id": "a", "type": "shell", "tags": ["x"], "parameters": parameters})
    };
    let checked = |program: &str| {
        let parameters = json!({"path": "/etc/z", "content": "a", "validate": [program, "%s"]});
        file_task("a", "/etc/z", json!({"parameters": parameters}))
    };
    let no_program = |field: &str| format!("parameters.{field} gives: the first item must be the program, but it is missing");
    let too_long = |field: &str| format!("parameters.{field} gives: path of 5002 bytes: at most 4095 in all");
    let relative = |field: &str| format!("parameters.{field} gives: path \"etc\" is relative; write it from `/` on");
    for (task, says) in [
        (run(json!({"cwd": "{{ params.name }}"})), Some(relative("cwd"))),
        (run(json!({"creates": "{{ params.name }}"})), Some(relative("creates"))),
        (run(json!({"cwd": "/tmp/{{ params.up }}"})), Some("path \"/tmp/..\" has \"..\" in it".to_owned())),
        (run(json!({"creates": "/{{ params.none }}"})), Some("names no file: it ends with a slash".to_owned())),
        (run(json!({"cwd": "/{{ params.long }}"})), Some(too_long("cwd"))),
        (run(json!({"creates": "/{{ params.long }}"})), Some(too_long("creates"))),
        (run(json!({"command": ["{{ params.none }}", "x"]})), Some(no_program("command[0]"))),
        (run(json!({"unless": ["{{ params.none }}"]})), Some(no_program("unless[0]"))),
        (run(json!({"only_if": ["{{ params.none }}"]})), Some(no_program("only_if[0]"))),
        (checked("{{ params.none }}"), Some(no_program("validate[0]"))),
        (run(json!({"cwd": "{{ params.dir }}", "creates": "/dev/{{ params.name }}"})), None),
        (run(json!({"command": ["{{ params.name }}", "{{ params.none }}"], "unless": "{{ params.none }}x"})), None),
        (run(json!({"cwd": "{{ facts.architecture }}"})), None),
        (run(json!({"cwd": "/{{ params.none }}"})), None),
        (checked("{{ params.name }}"), None),
    ] {
        let mut documents = site_manifests(std::slice::from_ref(&task));
        documents[1]["parameters"] = json!({"up": "..", "none": "", "name": "etc", "dir": "/etc", "long": long_path()});
        let made = FleetFixture::from_manifests(&documents);
        let found = path_findings(resolve_fleet(&made.fleet, &ResolveCache::new()).unwrap().findings);
        assert_eq!(found.len(), usize::from(says.is_some()), "{task}: {found:?}");
        for (one, says) in found.iter().zip(says) {
            assert_eq!((one.severity, one.object.as_str()), (Severity::Error, "release/r@1 task a"), "{task}");
            let is_said = one.message.starts_with("on 2 hosts (n1, n2): ") && one.message.contains(&says);
            assert!(is_said, "{task}: {}", one.message);
        }
    }
    let written_out = FleetFixture::from_manifests(&site_manifests(&[run(json!({"cwd": "/etc", "creates": "/etc/z"}))]));
    let node = written_out.node("n1").id();
    assert!(!written_out.fleet.profile(node).unwrap().should_check_paths(), "what is written out costs no node anything");
}

/// A write of a release resolves only nodes with two paths that may conflict, one of them literal. Other templates of a
/// task do not matter.
#[test]
fn y01_write_checks_only_possibly_conflicting_literal_paths() {
    let validated = |path: &str| {
        let parameters = json!({"path": path, "content": "a", "validate": ["{{ params.dir }}/check", "%s"]});
        file_task("a", path, json!({"parameters": parameters}))
    };
    for (task, may_lack, may_share) in [
        (file_task("a", "/etc/y", json!({})), false, false),
        (validated("/etc/y"), true, false),
        (validated("/etc/z"), true, true),
        (file_task("a", "/srv/{{ node.name }}", json!({})), true, false),
        (file_task("a", "/etc/{{ node.name }}", json!({})), true, true),
    ] {
        let made = FleetFixture::from_manifests(&site_manifests(&[task.clone(), file_task("b", "/etc/z", json!({}))]));
        let profile = made.fleet.profile(made.node("n1").id()).unwrap();
        assert_eq!((profile.should_check_paths(), profile.may_share_plain_paths), (may_lack, may_share), "{task}");
    }
}

#[test]
fn y01_path_belongs_to_first_task_in_order() {
    let before = file_task("b", "/etc/z", json!({"required_for": ["a"]}));
    let found = findings_of_tasks(&[file_task("a", "/etc/z", json!({})), before, file_task("c", "/etc/z", json!({}))]);
    let objects: Vec<(&str, bool)> = found.iter().map(|one| (one.object.as_str(), one.message.contains("task b too"))).collect();
    assert_eq!(objects, [("release/r@1 task a", true), ("release/r@1 task c", true)]);
}

#[test]
fn y01_path_error_keeps_tasks_and_digest_of_node() {
    let tasks = [file_task("a", "/etc/z", json!({})), file_task("b", "/etc/z", json!({"tags": ["y"]}))];
    let made = FleetFixture::from_manifests(&site_manifests(&tasks));
    let resolved = |name: &str| resolve_node(&made.fleet, &made.cache, made.node(name).id());
    assert_eq!((resolved("n1").has_error(), resolved("n2").has_error()), (true, false));
    let of_node = path_findings(resolved("n1").findings(made.node("n1")));
    assert_eq!(of_node.iter().map(|one| one.object.as_str()).collect::<Vec<_>>(), ["node/n1 task/b"]);
    assert_eq!(made.node_output("n1").tasks, ["a", "b"], "what a host runs is as its release says");
}

#[test]
fn y05_path_conflict_is_finding_of_causing_edit() {
    let mut documents = site_manifests(&[file_task("a", "/etc/z", json!({})), file_task("b", "/etc/z", json!({"tags": ["y"]}))]);
    let mut made = FleetFixture::from_manifests(&documents);
    let before = made.fleet.clone();
    documents[4]["roles"] = json!(["one"]);
    let _dirty = made.apply(&documents);
    let nodes: Vec<NodeId> = made.fleet.nodes().map(|node| node.id()).collect();
    let found = |before: &Fleet| newly_without_path(before, &made.fleet, &ResolveCache::new(), nodes.iter().copied());
    // The conflict on n1 existed before.
    let new = found(&before);
    assert_eq!(new.iter().map(|one| one.object.as_str()).collect::<Vec<_>>(), ["release/r@1 task b"]);
    assert!(new[0].code == rule::TASK_PATH.code && new[0].message.starts_with("on 1 host (n2): "), "{new:?}");
    assert!(found(&made.fleet).is_empty());
}
