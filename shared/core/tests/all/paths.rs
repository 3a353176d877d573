//! Paths that two tasks of one node write: who is told of it, and of what nobody is.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use serde_json::{Value, json};
use stemma_core::finding::{Finding, Severity, rule};
use stemma_core::fleet::Fleet;
use stemma_core::object::NodeId;
use stemma_core::resolve::{ResolveCache, newly_without_path, resolve_fleet, resolve_node};

use crate::made::Made;

/// Two nodes, of which `n1` alone has role `one` and a label; both have role `all`.
fn site(tasks: &[Value]) -> Vec<Value> {
    vec![
        json!({"kind": "Release", "name": "r", "version": "1", "roles": {"all": {"tags": ["x"]}, "one": {"tags": ["y"]}, "no": {"tags": ["z"]}},
            "tags": {"x": {}, "y": {}, "z": {}}, "tasks": tasks}),
        json!({"kind": "Cluster", "name": "c", "release": "r@1", "parameters": {"dir": "/etc"}, "labels": {"at": "std"}}),
        json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"]}),
        json!({"kind": "Node", "name": "n1", "nodegroup": "c/g", "roles": ["one"], "labels": {"at": "z"}}),
        json!({"kind": "Node", "name": "n2", "nodegroup": "c/g"}),
    ]
}

fn file(id: &str, path: &str, more: Value) -> Value {
    let Value::Object(more) = more else { unreachable!("fields are an object") };
    let mut task = json!({"id": id, "type": "file", "tags": ["x"], "parameters": {"path": path, "content": id}});
    task.as_object_mut().unwrap().extend(more);
    task
}

fn absent(id: &str, path: &str) -> Value {
    file(id, path, json!({"parameters": {"path": path, "absent": true}}))
}

/// A path of 5,001 bytes without its first slash, of which each name is short.
fn long_path() -> String {
    format!("{}a", "a/".repeat(2500))
}

fn of_paths(findings: Vec<Finding>) -> Vec<Finding> {
    findings.into_iter().filter(|one| one.code == rule::TASK_PATH.code).collect()
}

fn found(tasks: &[Value]) -> Vec<Finding> {
    of_paths(resolve_fleet(&Made::of(&site(tasks)).fleet, &ResolveCache::new()).unwrap().findings)
}

#[test]
fn y01_two_tasks_that_write_one_path_on_a_node_are_one_error() {
    let a = || file("a", "/etc/z", json!({}));
    for (tasks, hosts) in [
        ([a(), file("b", "/etc/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([a(), absent("b", "/etc/z")], Some("2 hosts (n1, n2)")),
        ([absent("a", "/etc/z"), file("b", "/etc/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([absent("a", "/etc/z"), absent("b", "/etc/z")], None),
        ([a(), file("b", "/etc/z/y", json!({}))], Some("2 hosts (n1, n2)")),
        ([a(), file("b", "/etc", json!({}))], Some("2 hosts (n1, n2)")),
        ([a(), file("b", "/etc/y", json!({}))], None),
        ([a(), file("b", "{{ params.dir }}/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([a(), file("b", "{{ params.dir|default('/x') }}/{{ 'z' }}", json!({}))], Some("2 hosts (n1, n2)")),
        ([a(), file("b", "/etc/{{ labels.at }}", json!({}))], Some("1 host (n1)")),
        ([a(), file("b", "/etc/{{ node.name }}", json!({}))], None),
        ([file("a", "/run/z", json!({})), file("b", "/var/run/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([file("a", "/var", json!({})), file("b", "/var/run/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([file("a", "/var/run/z", json!({})), file("b", "/var", json!({}))], Some("2 hosts (n1, n2)")),
        ([absent("a", "/var"), file("b", "/var/run/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([file("a", "/var/run/z", json!({})), absent("b", "/var")], Some("2 hosts (n1, n2)")),
        ([absent("a", "/var"), absent("b", "/var/run/z")], None),
        ([file("a", "/var", json!({})), file("b", "/run/z", json!({}))], None),
        (
            [file("a", "/var", json!({})), file("b", "/var/{{ 'run' }}/{{ labels.at }}", json!({}))],
            Some("2 hosts (n1, n2)"),
        ),
        ([file("a", "/var", json!({})), file("b", "/var/run/{{ labels.at }}", json!({}))], Some("2 hosts (n1, n2)")),
        ([file("a", "/run/z", json!({})), absent("b", "/var/run")], Some("2 hosts (n1, n2)")),
        ([file("a", "/var/run", json!({})), file("b", "/run/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([file("a", "/bin", json!({})), file("b", "/usr/bin/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([file("a", "/usr/bin/z", json!({})), absent("b", "/bin")], Some("2 hosts (n1, n2)")),
        ([file("a", "/var/spool", json!({})), file("b", "/var/mail/z", json!({}))], Some("2 hosts (n1, n2)")),
        ([file("a", "/var/spool/z", json!({})), file("b", "/var/mail/z", json!({}))], None),
        (
            [file("a", "/run/{{ labels.at }}", json!({})), file("b", "/var/{{ 'run' }}/{{ labels.at }}", json!({}))],
            Some("2 hosts (n1, n2)"),
        ),
        ([a(), file("b", "/etc/z", json!({"tags": ["y"]}))], Some("1 host (n1)")),
        ([a(), file("b", "/etc/z", json!({"tags": ["z"]}))], None),
        ([a(), file("b", "/etc/z", json!({"condition": "labels.at == 'z'"}))], Some("1 host (n1)")),
        ([a(), file("b", "/etc/z", json!({"condition": "labels.at == 'no'"}))], None),
        (
            [
                file("a", "/etc/z", json!({"condition": "labels.at == 'z'"})),
                file("b", "/etc/z", json!({"condition": "labels.at != 'z'"})),
            ],
            None,
        ),
        ([a(), file("b", "/etc/z", json!({"phase": "cleanup"}))], None),
        (
            [
                a(),
                json!({"id": "b", "type": "shell", "tags": ["x"], "parameters": {"command": ["b"], "creates": "/etc/z"}}),
            ],
            None,
        ),
    ] {
        let found = found(&tasks);
        assert_eq!(found.len(), usize::from(hosts.is_some()), "{tasks:?} {found:?}");
        for (one, hosts) in found.iter().zip(hosts) {
            assert_eq!((one.severity, one.object.as_str()), (Severity::Error, "release/r@1 task b"), "{tasks:?}");
            let says = one.message.starts_with(&format!("on {hosts}: ")) && one.message.contains("the path of task a");
            assert!(says, "{tasks:?} {}", one.message);
        }
    }
}

/// Hosts neither run nor check it, so it writes nothing. One of mode `noop` is checked, and would go on to differ.
#[test]
fn y01_a_task_that_is_only_observed_has_no_path() {
    let of = |id: &str, path: &str, mode: &str| file(id, path, json!({"mode": mode}));
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
        let found = found(&tasks);
        assert_eq!(found.len(), usize::from(refused.is_some()), "{tasks:?} {found:?}");
        for (one, (task, first)) in found.iter().zip(refused) {
            assert_eq!(one.object, format!("release/r@1 task {task}"), "{tasks:?}");
            assert!(one.message.contains(&format!("the path of {first}")), "{tasks:?} {}", one.message);
        }
    }
}

/// Equal templates give equal paths whatever they read, so that nobody has to know the value.
#[test]
fn y01_templates_that_give_one_path_whatever_they_read_meet_where_nobody_knows_what_that_is() {
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
        let found = found(&[file("a", first, json!({})), file("b", second, json!({}))]);
        let said: Vec<bool> = found.iter().map(|one| one.message.contains(meets.unwrap_or_default())).collect();
        assert_eq!(said, vec![true; usize::from(meets.is_some())], "{first} {second}: {found:?}");
    }
}

#[test]
fn y01_what_a_template_gives_that_no_host_takes_is_an_error_of_its_node() {
    for (path, says) in [
        ("/etc/{{ params.up }}/z", Some("path \"/etc/../z\" has \"..\" in it; write the plain path")),
        ("/etc/{{ params.none }}/z", Some("path \"/etc//z\" has \"\" in it; write the plain path")),
        ("/etc/z{{ params.none }}/{{ params.none }}", Some("names no file: it ends with a slash")),
        ("{{ params.name }}/z", Some("path \"etc/z\" is relative")),
        ("/{{ params.kernel }}/z", Some("lies in a tree of the kernel")),
        ("/run/{{ params.own }}/z", Some("is the agent's own")),
        ("/{{ params.long }}", Some("path of 5002 bytes: at most 4095 in all and 255 a name are allowed")),
        ("{{ params.dir }}/z", None),
    ] {
        let mut documents = site(&[file("a", path, json!({}))]);
        documents[1]["parameters"] = json!({"up": "..", "none": "", "name": "etc", "kernel": "proc", "own": "stemma", "dir": "/etc", "long": long_path()});
        let made = Made::of(&documents);
        let found = of_paths(resolve_fleet(&made.fleet, &ResolveCache::new()).unwrap().findings);
        assert_eq!(found.len(), usize::from(says.is_some()), "{path}: {found:?}");
        for (one, says) in found.iter().zip(says) {
            assert_eq!((one.severity, one.object.as_str()), (Severity::Error, "release/r@1 task a"), "{path}");
            let is_said = one.message.starts_with("on 2 hosts (n1, n2): ") && one.message.contains(says);
            assert!(is_said, "{path}: {}", one.message);
        }
    }
}

/// A host judges what it renders of these by the same rules, and does nothing for the task.
#[test]
fn y09_what_a_template_gives_for_another_path_or_a_program_that_no_host_takes_is_an_error_of_its_node() {
    let run = |more: Value| {
        let mut parameters = json!({"command": ["/bin/true"]});
        parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"id": "a", "type": "shell", "tags": ["x"], "parameters": parameters})
    };
    let checked = |program: &str| {
        let parameters = json!({"path": "/etc/z", "content": "a", "validate": [program, "%s"]});
        file("a", "/etc/z", json!({"parameters": parameters}))
    };
    let no_program =
        |field: &str| format!("parameters.{field} gives: the first item is the program, and there is none");
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
        let mut documents = site(std::slice::from_ref(&task));
        documents[1]["parameters"] = json!({"up": "..", "none": "", "name": "etc", "dir": "/etc", "long": long_path()});
        let made = Made::of(&documents);
        let found = of_paths(resolve_fleet(&made.fleet, &ResolveCache::new()).unwrap().findings);
        assert_eq!(found.len(), usize::from(says.is_some()), "{task}: {found:?}");
        for (one, says) in found.iter().zip(says) {
            assert_eq!((one.severity, one.object.as_str()), (Severity::Error, "release/r@1 task a"), "{task}");
            let is_said = one.message.starts_with("on 2 hosts (n1, n2): ") && one.message.contains(&says);
            assert!(is_said, "{task}: {}", one.message);
        }
    }
    let written_out = Made::of(&site(&[run(json!({"cwd": "/etc", "creates": "/etc/z"}))]));
    let node = written_out.node("n1").id();
    assert!(!written_out.fleet.profile(node).unwrap().may_lack_paths(), "what is written out costs no node anything");
}

/// A write of a release resolves the nodes of which two paths may meet and one is written out. Another template of a task is no reason to.
#[test]
fn y01_only_a_path_that_is_written_out_and_may_meet_another_is_judged_with_a_write() {
    let validated = |path: &str| {
        let parameters = json!({"path": path, "content": "a", "validate": ["{{ params.dir }}/check", "%s"]});
        file("a", path, json!({"parameters": parameters}))
    };
    for (task, may_lack, may_share) in [
        (file("a", "/etc/y", json!({})), false, false),
        (validated("/etc/y"), true, false),
        (validated("/etc/z"), true, true),
        (file("a", "/srv/{{ node.name }}", json!({})), true, false),
        (file("a", "/etc/{{ node.name }}", json!({})), true, true),
    ] {
        let made = Made::of(&site(&[task.clone(), file("b", "/etc/z", json!({}))]));
        let profile = made.fleet.profile(made.node("n1").id()).unwrap();
        assert_eq!((profile.may_lack_paths(), profile.may_share_plain_paths), (may_lack, may_share), "{task}");
    }
}

#[test]
fn y01_the_order_of_the_node_says_whose_a_path_is() {
    let before = file("b", "/etc/z", json!({"required_for": ["a"]}));
    let found = found(&[file("a", "/etc/z", json!({})), before, file("c", "/etc/z", json!({}))]);
    let objects: Vec<(&str, bool)> =
        found.iter().map(|one| (one.object.as_str(), one.message.contains("task b too"))).collect();
    assert_eq!(objects, [("release/r@1 task a", true), ("release/r@1 task c", true)]);
}

#[test]
fn y01_a_node_has_the_error_itself_and_its_tasks_and_digest_stay() {
    let tasks = [file("a", "/etc/z", json!({})), file("b", "/etc/z", json!({"tags": ["y"]}))];
    let made = Made::of(&site(&tasks));
    let resolved = |name: &str| resolve_node(&made.fleet, &made.cache, made.node(name).id());
    assert_eq!((resolved("n1").has_error(), resolved("n2").has_error()), (true, false));
    let of_node = of_paths(resolved("n1").findings(made.node("n1")));
    assert_eq!(of_node.iter().map(|one| one.object.as_str()).collect::<Vec<_>>(), ["node/n1 task/b"]);
    assert_eq!(made.plain("n1").tasks, ["a", "b"], "what a host runs is as its release says");
}

#[test]
fn y05_paths_that_meet_by_an_edit_of_a_node_are_found_of_that_edit() {
    let mut documents = site(&[file("a", "/etc/z", json!({})), file("b", "/etc/z", json!({"tags": ["y"]}))]);
    let mut made = Made::of(&documents);
    let before = made.fleet.clone();
    documents[4]["roles"] = json!(["one"]);
    let _dirty = made.edit(&documents);
    let nodes: Vec<NodeId> = made.fleet.nodes().map(|node| node.id()).collect();
    let found = |before: &Fleet| newly_without_path(before, &made.fleet, &ResolveCache::new(), nodes.iter().copied());
    // Of n1 it was known.
    let new = found(&before);
    assert_eq!(new.iter().map(|one| one.object.as_str()).collect::<Vec<_>>(), ["release/r@1 task b"]);
    assert!(new[0].code == rule::TASK_PATH.code && new[0].message.starts_with("on 1 host (n2): "), "{new:?}");
    assert!(found(&made.fleet).is_empty());
}
