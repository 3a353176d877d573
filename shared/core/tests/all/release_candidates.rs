//! What in a resolved node decides whether its next task set is released, and that the explanation of its tasks says
//! so. Expected values are handwritten.

use serde_json::{Value, json};
use stemma_core::digest::{DigestVersion, TaskDigest};
use stemma_core::explain::{self, TaskRunState};
use stemma_core::object::Timestamp;
use stemma_core::rollout::{ReleaseCandidate, ReleaseKey, ReleaseState};

use crate::fleet_fixture::{FleetFixture, site_manifests};

const NOW: Timestamp = Timestamp(1_000);

/// Returns a cluster with more values than a condition may compare in pairs.
fn cluster_manifests(more: &Value) -> Vec<Value> {
    let loops = "params.many.exists(a, params.many.exists(b, a == b))";
    let mut documents = site_manifests(
        &json!({}),
        &json!([
            {"id": "conf", "type": "puppet", "tags": ["nginx"]},
            {"id": "costly", "type": "puppet", "tags": ["nginx"], "condition": loops},
        ]),
    );
    documents[2]["parameters"] = json!({"many": (0..2_500).collect::<Vec<_>>()});
    documents[7].as_object_mut().expect("a node").extend(more.as_object().expect("fields").clone());
    documents
}

/// Returns the release state of a node with this current task set, and what the explanation of its task `conf` gives as
/// the reason for a delay.
fn release_state(documents: &[Value], given: CurrentTaskSet, runs: &[&str]) -> (ReleaseState, Value) {
    let made = FleetFixture::from_manifests(documents);
    let answer = made.resolved_node("web-1");
    let content = |tasks| ReleaseKey { tasks, ..ReleaseKey::from_resolved(&answer, DigestVersion::LATEST) };
    let present = match given {
        CurrentTaskSet::Absent => None,
        CurrentTaskSet::Empty => Some(content(None)),
        CurrentTaskSet::Different => Some(content(Some(TaskDigest([7; 32])))),
    };
    let has = |id: &str| runs.contains(&id);
    let runs = (!runs.is_empty()).then_some(&has as &dyn Fn(&str) -> bool);
    let candidate = ReleaseCandidate::from_resolved(&answer, present, DigestVersion::LATEST, runs);
    let ran = TaskRunState {
        should_run: runs,
        has_task_set: given != CurrentTaskSet::Absent,
        too_large: None,
        kept_release: None,
        is_confirmed: false,
        outcome: None,
        closed_barriers: &Vec::new,
    };
    let mut account = explain::explain_task(&answer, "conf", NOW, &ran).expect("a task");
    (candidate.state(NOW), account["set_aside"].take())
}

/// The current task set of a node.
#[derive(Clone, Copy, PartialEq)]
enum CurrentTaskSet {
    Absent,
    Empty,
    Different,
}

#[test]
fn release_is_withheld_when_requirement_or_instance_traits_are_unmet() {
    let due = (ReleaseState::Due, json!([]));
    let lacks = cluster_manifests(&json!({"instance_info": {"traits": ["CUSTOM_GPU"]}}));
    assert_eq!(release_state(&cluster_manifests(&json!({})), CurrentTaskSet::Absent, &[]), due);
    assert_eq!(release_state(&lacks, CurrentTaskSet::Different, &["conf"]), due, "it has had one");
    // A node whose task set has no running task has not been used either.
    for given in [CurrentTaskSet::Absent, CurrentTaskSet::Empty, CurrentTaskSet::Different] {
        let (kept, why) = release_state(&lacks, given, &[]);
        assert_eq!(kept, ReleaseState::Withheld(None));
        assert!(why[0].as_str().expect("a sentence").ends_with("is missing traits CUSTOM_GPU: no new task set is released"));
    }
    let spare = cluster_manifests(&json!({"nodegroup": null, "instance_info": {"traits": ["CUSTOM_GPU"]}}));
    assert_eq!(release_state(&spare, CurrentTaskSet::Absent, &[]).0, ReleaseState::Due, "it is not used, and is told so");
    let mut asks = cluster_manifests(&json!({}));
    asks[4]["requirements"] = json!({"property:memory_mb": ">= 1024"});
    for given in [CurrentTaskSet::Absent, CurrentTaskSet::Different] {
        let why = json!(["requirement property:memory_mb >= 1024 is not met: no new task set is released"]);
        assert_eq!(release_state(&asks, given, &["conf"]), (ReleaseState::Withheld(None), why));
    }
}

#[test]
fn release_is_due_when_node_is_parked_or_noop() {
    for more in [json!({"parked": true}), json!({"mode": "noop"})] {
        let (standing, why) = release_state(&cluster_manifests(&more), CurrentTaskSet::Absent, &[]);
        assert_eq!(standing, ReleaseState::Due, "{more}");
        assert_eq!(why.as_array().map(Vec::len), Some(1), "{more}: an account says it: {why}");
    }
}

#[test]
fn release_is_withheld_when_condition_of_running_task_is_undecided() {
    let why = "the condition of task costly, which it runs, is undecided: it keeps the task set that it has";
    let documents = cluster_manifests(&json!({}));
    assert_eq!(
        release_state(&documents, CurrentTaskSet::Different, &["conf", "costly"]),
        (ReleaseState::Withheld(None), json!([why]))
    );
    for runs in [&["conf"][..], &[]] {
        assert_eq!(release_state(&documents, CurrentTaskSet::Different, runs), (ReleaseState::Due, json!([])));
    }
}

#[test]
fn explain_task_covers_removed_task_while_running_on_host() {
    let held = json!({"hold": {"reason": "a disk is changed"}});
    let unplaced = json!({"hold": {"reason": "a disk is changed"}, "nodegroup": null});
    for (more, why) in
        [(held, "the node's release has no such task"), (unplaced, "the node is unplaced, or no level names a release")]
    {
        let made = FleetFixture::from_manifests(&cluster_manifests(&more));
        let answer = made.resolved_node("web-1");
        let account = |runs| {
            let ran = TaskRunState {
                should_run: runs,
                has_task_set: true,
                too_large: None,
                kept_release: None,
                is_confirmed: true,
                outcome: None,
                closed_barriers: &Vec::new,
            };
            explain::explain_task(&answer, "gone", NOW, &ran)
        };
        let told = account(Some(&|id| id == "gone")).expect("its host runs it");
        assert_eq!((&told["why"], &told["runs"], &told["released"]), (&json!(why), &json!(false), &json!(true)));
        assert!(told["set_aside"][0].as_str().expect("a sentence").contains("a disk is changed"), "{told}");
        let other = account(Some(&|id| id == "conf")).map(|told| told["released"].clone());
        assert_eq!(other, answer.task_set().is_none().then_some(json!(false)));
    }
}
