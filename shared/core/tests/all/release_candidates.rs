//! Reasons for which the next task set of a node is withheld, and their place in the explanation of a task. Expected
//! values are handwritten.

use serde_json::{Value, json};
use stemma_core::digest::{DigestVersion, TaskDigest};
use stemma_core::explain::{self, TaskRunState};
use stemma_core::object::Timestamp;
use stemma_core::rollout::{ReleaseCandidate, ReleaseKey, ReleaseState};

use crate::fleet_fixture::{FleetFixture, site_manifests};

/// The time of each test, in milliseconds.
const NOW: Timestamp = Timestamp(1_000);

/// Returns the documents of a site in which the condition of task `costly` is undecided, because the condition exceeds
/// its limit of steps. Node web-1 also has the fields `node_fields`. Document 2 is the cluster, 4 the group of web-1,
/// and 7 is web-1 itself.
fn cluster_manifests(node_fields: &Value) -> Vec<Value> {
    let costly_condition = "params.many.exists(a, params.many.exists(b, a == b))";
    let mut documents = site_manifests(
        &json!({}),
        &json!([
            {"id": "conf", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"]},
            {"id": "costly", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"], "condition": costly_condition},
        ]),
    );
    documents[2]["parameters"] = json!({"many": (0..2_500).collect::<Vec<_>>()});
    documents[7].as_object_mut().expect("a node").extend(node_fields.as_object().expect("fields").clone());
    documents
}

/// Returns the state of the next task set of web-1, and the reasons for a delay in the explanation of its task `conf`.
/// `current` is the task set that was released to web-1, and `running` contains the ids of its tasks. The explanation
/// lists the reasons in its field `set_aside`.
fn release_state(documents: &[Value], current: CurrentTaskSet, running: &[&str]) -> (ReleaseState, Value) {
    let fixture = FleetFixture::from_manifests(documents);
    let resolved_node = fixture.resolved_node("web-1");
    let key_with = |tasks| ReleaseKey { tasks, ..ReleaseKey::from_resolved(&resolved_node, DigestVersion::LATEST) };
    let current_key = match current {
        CurrentTaskSet::Absent => None,
        CurrentTaskSet::Empty => Some(key_with(None)),
        // A digest that differs from that of the next task set.
        CurrentTaskSet::Different => Some(key_with(Some(TaskDigest([7; 32])))),
    };
    let is_running = |id: &str| running.contains(&id);
    let running = (!running.is_empty()).then_some(&is_running as &dyn Fn(&str) -> bool);
    let candidate = ReleaseCandidate::from_resolved(&resolved_node, current_key, DigestVersion::LATEST, running);
    let run_state = TaskRunState {
        should_run: running,
        has_task_set: current != CurrentTaskSet::Absent,
        too_large: None,
        kept_release: None,
        is_confirmed: false,
        outcome: None,
        closed_barriers: &Vec::new,
    };
    let mut explanation = explain::explain_task(&resolved_node, "conf", NOW, &run_state).expect("a task");
    (candidate.state(NOW), explanation["set_aside"].take())
}

/// The task set that was released to a node.
#[derive(Clone, Copy, PartialEq)]
enum CurrentTaskSet {
    /// No task set was released.
    Absent,
    /// A task set without tasks.
    Empty,
    /// A task set with other tasks than the next one.
    Different,
}

/// `instance_info.traits` are the traits that web-1 must have before it runs tasks. web-1 lacks `CUSTOM_GPU`.
#[test]
fn release_is_withheld_when_requirement_or_instance_traits_are_unmet() {
    let due = (ReleaseState::Due, json!([]));
    let without_trait = cluster_manifests(&json!({"instance_info": {"traits": ["CUSTOM_GPU"]}}));
    assert_eq!(release_state(&cluster_manifests(&json!({})), CurrentTaskSet::Absent, &[]), due);
    assert_eq!(release_state(&without_trait, CurrentTaskSet::Different, &["conf"]), due, "the node already runs tasks");
    // A node that runs no task of its task set is not in use yet, so its next task set is withheld too.
    for current in [CurrentTaskSet::Absent, CurrentTaskSet::Empty, CurrentTaskSet::Different] {
        let (state, reasons) = release_state(&without_trait, current, &[]);
        assert_eq!(state, ReleaseState::Withheld(None));
        assert!(reasons[0].as_str().expect("a sentence").ends_with("is missing traits CUSTOM_GPU: no new task set is released"));
    }
    let spare = cluster_manifests(&json!({"nodegroup": null, "instance_info": {"traits": ["CUSTOM_GPU"]}}));
    assert_eq!(release_state(&spare, CurrentTaskSet::Absent, &[]).0, ReleaseState::Due, "an unplaced node is not in use");
    let mut with_requirement = cluster_manifests(&json!({}));
    with_requirement[4]["requirements"] = json!({"property:memory_mb": ">= 1024"});
    for current in [CurrentTaskSet::Absent, CurrentTaskSet::Different] {
        let reasons = json!(["requirement property:memory_mb >= 1024 is not met: no new task set is released"]);
        assert_eq!(release_state(&with_requirement, current, &["conf"]), (ReleaseState::Withheld(None), reasons));
    }
}

#[test]
fn release_is_due_when_node_is_parked_or_noop() {
    for node_fields in [json!({"parked": true}), json!({"mode": "noop"})] {
        let (state, reasons) = release_state(&cluster_manifests(&node_fields), CurrentTaskSet::Absent, &[]);
        assert_eq!(state, ReleaseState::Due, "{node_fields}");
        assert_eq!(reasons.as_array().map(Vec::len), Some(1), "{node_fields}: the explanation gives one reason: {reasons}");
    }
}

#[test]
fn release_is_withheld_when_condition_of_running_task_is_undecided() {
    let reason = "the condition of task costly, which it runs, is undecided: it keeps the task set that it has";
    let documents = cluster_manifests(&json!({}));
    assert_eq!(
        release_state(&documents, CurrentTaskSet::Different, &["conf", "costly"]),
        (ReleaseState::Withheld(None), json!([reason]))
    );
    for running in [&["conf"][..], &[]] {
        assert_eq!(release_state(&documents, CurrentTaskSet::Different, running), (ReleaseState::Due, json!([])));
    }
}

/// The host still runs task `gone`, which the release no longer has. A hold withholds the next task set. In the
/// explanation, `runs` is about the next task set, and `released` about the task set that was released to the node. If
/// the host does not run `gone`, only an unplaced node has an explanation of it.
#[test]
fn explain_task_covers_removed_task_while_running_on_host() {
    let held_node = json!({"hold": {"reason": "a disk is changed"}});
    let unplaced_node = json!({"hold": {"reason": "a disk is changed"}, "nodegroup": null});
    for (node_fields, reason) in
        [(held_node, "the node's release has no such task"), (unplaced_node, "the node is unplaced, or no level names a release")]
    {
        let fixture = FleetFixture::from_manifests(&cluster_manifests(&node_fields));
        let resolved_node = fixture.resolved_node("web-1");
        let explain_gone = |is_running| {
            let run_state = TaskRunState {
                should_run: is_running,
                has_task_set: true,
                too_large: None,
                kept_release: None,
                is_confirmed: true,
                outcome: None,
                closed_barriers: &Vec::new,
            };
            explain::explain_task(&resolved_node, "gone", NOW, &run_state)
        };
        let explanation = explain_gone(Some(&|id| id == "gone")).expect("its host runs it");
        assert_eq!(
            (&explanation["why"], &explanation["runs"], &explanation["released"]),
            (&json!(reason), &json!(false), &json!(true))
        );
        assert!(explanation["set_aside"][0].as_str().expect("a sentence").contains("a disk is changed"), "{explanation}");
        let when_not_running = explain_gone(Some(&|id| id == "conf")).map(|explanation| explanation["released"].clone());
        // Only the unplaced node has no next task set.
        assert_eq!(when_not_running, resolved_node.task_set().is_none().then_some(json!(false)));
    }
}
