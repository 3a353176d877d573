//! Tasks that hosts get only because another task names them in `on_unassign`: a host runs such a task once when the task
//! that names it is no longer placed there.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::explain::{TaskRunState, explain_task};
use stemma_core::object::Timestamp;
use stemma_core::resolve::{SkipReason, TaskSet, newly_orphaned, resolve_fleet};

use crate::fleet_fixture::{FleetFixture, site_manifests};

/// The reason that agents compare. A host that has an older agent only shows it.
const REASON: &str = "it runs once when a task that names it in on_unassign is no longer placed here";

/// Returns a task of type `shell` with these further fields.
fn shell(id: &str, fields: &Value) -> Value {
    let mut task = json!({"id": id, "type": "shell", "parameters": {"command": [id]}});
    task.as_object_mut().expect("a task").extend(fields.as_object().expect("fields").clone());
    task
}

/// Returns the task set of web-1, which has tag `nginx`, in a fleet with these tasks and this label of the group.
fn task_set(tasks: &Value, label: &str) -> Arc<TaskSet> {
    let mut documents = site_manifests(&json!({}), tasks);
    // Document 4 is the group of web-1.
    documents[4]["labels"] = json!({"tier": label});
    let fixture = FleetFixture::from_manifests(&documents);
    Arc::clone(fixture.resolved_node("web-1").task_set().expect("tasks"))
}

/// Returns the ids and reasons of the tasks that the host gets only for `on_unassign`.
fn unassign_ids(set: &TaskSet) -> Vec<(String, String)> {
    set.unassign_ids().map(|(id, reason)| (id.to_owned(), reason.to_string())).collect()
}

fn pair(id: &str, reason: &str) -> (String, String) {
    (id.to_owned(), reason.to_owned())
}

#[test]
fn task_set_has_unassign_task_with_inputs() {
    let undo = json!({"parameters": {"command": ["undo", "{{ labels.tier }}"]}});
    let tasks = json!([shell("conf", &json!({"tags": ["nginx"], "on_unassign": "undo"})), shell("undo", &undo)]);
    let set = task_set(&tasks, "gold");
    assert_eq!(set.task_ids().collect::<Vec<_>>(), ["conf"], "the task itself does not run");
    assert_eq!(unassign_ids(&set), [pair("undo", REASON)]);
    assert_eq!(set.skipped_ids().count(), 0);
    let inputs: Vec<_> = set.iter_inputs().map(|(reference, _)| reference.to_string()).collect();
    assert_eq!(inputs, ["labels.tier"]);
    assert_ne!(set.digest, task_set(&tasks, "silver").digest, "the host needs the new value for the clean-up");
    assert_eq!(set.digest, task_set(&tasks, "gold").digest);
}

/// A host must learn whether such a task is placed there too, although its definition is the same.
#[test]
fn task_digest_changes_when_unassign_task_is_placed_too() {
    let tasks = |members: &[&str]| {
        json!([
            shell("conf", &json!({"tags": ["nginx"], "on_unassign": "undo"})),
            shell("undo", &json!({})),
            {"id": "all", "type": "group", "tags": ["nginx"], "tasks": members},
        ])
    };
    let (only_sent, placed) = (task_set(&tasks(&["conf"]), "x"), task_set(&tasks(&["conf", "undo"]), "x"));
    assert_eq!((unassign_ids(&only_sent).len(), unassign_ids(&placed).len()), (1, 0));
    assert_ne!(only_sent.digest, placed.digest);
}

/// The condition of the task decides whether the host may run it at all.
#[test]
fn unassign_task_keeps_reason_when_condition_is_false() {
    let undo = shell("undo", &json!({"condition": "labels.tier == 'lead'"}));
    let tasks = json!([shell("conf", &json!({"tags": ["nginx"], "on_unassign": "undo"})), undo]);
    assert_eq!(unassign_ids(&task_set(&tasks, "gold")), [pair("undo", "condition is false: labels.tier == 'lead'")]);
    assert_eq!(unassign_ids(&task_set(&tasks, "lead")), [pair("undo", REASON)]);
}

/// A privileged task runs only where an operator placed a privileged task. So nobody gets it onto a host by a task that is
/// not privileged.
#[test]
fn x04_unassign_task_is_sent_only_when_privilege_permits() {
    for (conf_is_privileged, undo_is_privileged, is_sent) in
        [(false, false, true), (true, false, true), (true, true, true), (false, true, false)]
    {
        let conf = json!({"tags": ["nginx"], "on_unassign": "undo", "privileged": conf_is_privileged});
        let tasks = json!([shell("conf", &conf), shell("undo", &json!({"privileged": undo_is_privileged}))]);
        let set = task_set(&tasks, "x");
        assert_eq!(unassign_ids(&set).len(), usize::from(is_sent), "{conf_is_privileged} {undo_is_privileged}");
        // The permission to run privileged tasks is checked for the clean-up too.
        let privileged = set.profile.additional_privileged(None);
        let expected: Vec<&str> = [("conf", conf_is_privileged), ("undo", undo_is_privileged && is_sent)]
            .into_iter()
            .filter_map(|(id, is_listed)| is_listed.then_some(id))
            .collect();
        assert_eq!(privileged, expected, "{conf_is_privileged} {undo_is_privileged}");
    }
}

/// A group with `privileged` makes each task that it lists privileged. Regression: only the mark of the task itself
/// counted, so a host got the clean-up by a task that is not privileged.
#[test]
fn x04_unassign_task_is_withheld_when_group_is_privileged() {
    for (members, is_sent, is_idle) in [(&["undo"][..], false, true), (&["conf", "undo"], true, false), (&[], true, false)] {
        let group = json!({"id": "keys", "type": "group", "tags": ["mysql"], "tasks": members, "privileged": true});
        let tasks = json!([shell("conf", &json!({"tags": ["nginx"], "on_unassign": "undo"})), shell("undo", &json!({})), group]);
        let fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &tasks));
        let node = fixture.resolved_node("web-1");
        let set = node.task_set().expect("tasks");
        assert_eq!(unassign_ids(set).len(), usize::from(is_sent), "{members:?}");
        let privileged: &[&str] = if members.len() == 2 { &["conf", "undo"] } else { &[] };
        assert_eq!(set.profile.additional_privileged(None), privileged, "{members:?}");
        let findings = &set.profile.release.findings;
        let idle = findings.iter().any(|finding| finding.object == "release/site@1 task conf on_unassign");
        assert_eq!(idle, is_idle, "{members:?}: {findings:?}");
    }
}

#[test]
fn on_unassign_has_finding_when_no_host_can_run_task() {
    let conf = |target: &str| shell("conf", &json!({"tags": ["nginx"], "on_unassign": target}));
    let object = "release/site@1 task conf on_unassign";
    for (target, other, expected) in [
        ("undo", shell("undo", &json!({})), None),
        ("conf", shell("undo", &json!({})), Some("it names the task itself")),
        (
            "undo",
            json!({"id": "undo", "type": "group", "tags": ["nginx"], "tasks": []}),
            Some("has type group, which runs nothing"),
        ),
        ("undo", json!({"id": "undo", "type": "skipped", "tags": ["nginx"]}), Some("has type skipped, which runs nothing")),
        ("undo", shell("undo", &json!({"privileged": true})), Some("is privileged and this task is not")),
    ] {
        let fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &json!([conf(target), other])));
        let findings = resolve_fleet(&fixture.fleet, &fixture.cache).expect("it resolves").findings;
        let found: Vec<_> = findings.iter().filter(|finding| finding.object == object).collect();
        assert_eq!(found.len(), usize::from(expected.is_some()), "{target} {other}: {findings:?}");
        assert!(found.iter().all(|finding| finding.message.contains(expected.unwrap_or_default())), "{found:?}");
        let is_unplaced = findings.iter().any(|finding| finding.code == "task.unplaced" && finding.object.ends_with("task/undo"));
        assert_eq!(is_unplaced, target == "conf" || expected.is_some_and(|text| text.contains("privileged")), "{findings:?}");
    }
}

/// Regression: while no node had the task that names it, the finding said that the clean-up needs tags or roles. A host
/// that gets them runs the clean-up at once.
#[test]
fn unassign_task_has_no_finding_when_nothing_places_tasks() {
    for (fields, is_expected) in [
        (json!({}), false),
        (json!({"tags": ["nginx"]}), true),
        // No host gets it.
        (json!({"privileged": true}), true),
    ] {
        let tasks = json!([shell("conf", &json!({"tags": ["nginx"], "on_unassign": "undo"})), shell("undo", &fields)]);
        let mut documents = site_manifests(&json!({}), &tasks);
        documents[1]["roles"]["web"] = json!({"tags": []});
        let fixture = FleetFixture::from_manifests(&documents);
        let findings = resolve_fleet(&fixture.fleet, &fixture.cache).expect("it resolves").findings;
        let has_finding =
            |task: &str| findings.iter().any(|finding| finding.code == "task.unplaced" && finding.object.ends_with(task));
        assert_eq!((has_finding("task/conf"), has_finding("task/undo")), (true, is_expected), "{fields}: {findings:?}");
    }
}

#[test]
fn explain_task_names_unassigning_task() {
    let tasks = json!([shell("conf", &json!({"tags": ["nginx"], "on_unassign": "undo"})), shell("undo", &json!({}))]);
    let fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &tasks));
    let run_state = TaskRunState {
        should_run: None,
        has_task_set: false,
        too_large: None,
        kept_release: None,
        is_confirmed: false,
        outcome: None,
        closed_barriers: &Vec::new,
    };
    let explanation = explain_task(&fixture.resolved_node("web-1"), "undo", Timestamp(1), &run_state);
    let explanation = explanation.expect("a task");
    assert_eq!(explanation["why"], "it runs once on this node when conf is no longer placed there (on_unassign)");
    assert_eq!(explanation["runs"], false);
}

/// The text is part of the interface with agents.
#[test]
fn unassign_reason_keeps_text() {
    assert_eq!(SkipReason::OnUnassign.to_string(), REASON);
}

#[test]
fn newly_orphaned_names_due_task() {
    let tasks = json!([shell("conf", &json!({"tags": ["nginx"], "on_unassign": "undo"})), shell("undo", &json!({}))]);
    let mut documents = site_manifests(&json!({}), &tasks);
    let mut fixture = FleetFixture::from_manifests(&documents);
    let (fleet_before, node) = (fixture.fleet.clone(), fixture.node("web-1").id());
    documents[1]["roles"]["web"] = json!({"tags": []});
    fixture.apply(&documents);
    let findings = newly_orphaned(&fleet_before, &fixture.fleet, [node].into_iter());
    let messages: Vec<_> = findings.iter().map(|finding| finding.message.as_str()).collect();
    assert_eq!(messages, ["task conf no longer runs on it: undo will run once there (on_unassign), and other changes remain"]);
}
