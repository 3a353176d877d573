//! What of a node's answer decides whether its next task set is released, and that an account of its tasks says so. By hand.

use serde_json::{Value, json};
use stemma_core::digest::{DigestVersion, TaskDigest};
use stemma_core::explain::{self, Ran};
use stemma_core::object::Timestamp;
use stemma_core::rollout::{Candidate, Content, Standing};

use crate::made::{Made, site};

const NOW: Timestamp = Timestamp(1_000);

/// A cluster with more values than a condition may compare each with each of.
fn documents(more: &Value) -> Vec<Value> {
    let loops = "params.many.exists(a, params.many.exists(b, a == b))";
    let mut documents = site(
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

/// Whether a node is due that was given nothing yet, a task set without a release or another one, and what an account of its task `conf`
/// says that keeps it.
fn standing(documents: &[Value], given: Given, runs: &[&str]) -> (Standing, Value) {
    let made = Made::of(documents);
    let answer = made.answer("web-1");
    let content = |tasks| Content { tasks, ..Content::of(&answer, DigestVersion::NEWEST) };
    let present = match given {
        Given::Nothing => None,
        Given::NoTasks => Some(content(None)),
        Given::Other => Some(content(Some(TaskDigest([7; 32])))),
    };
    let has = |id: &str| runs.contains(&id);
    let runs = (!runs.is_empty()).then_some(&has as &dyn Fn(&str) -> bool);
    let candidate = Candidate::of(&answer, present, DigestVersion::NEWEST, runs);
    let ran = Ran {
        runs,
        has_set: given != Given::Nothing,
        too_large: None,
        keeps: None,
        told: false,
        outcome: None,
        shut: &Vec::new,
    };
    let mut account = explain::task(&answer, "conf", NOW, &ran).expect("a task");
    (candidate.standing(NOW), account["set_aside"].take())
}

/// What a node was given.
#[derive(Clone, Copy, PartialEq)]
enum Given {
    Nothing,
    NoTasks,
    Other,
}

#[test]
fn requirements_are_asked_always_and_an_instances_traits_before_a_first_task_set() {
    let due = (Standing::Due, json!([]));
    let lacks = documents(&json!({"instance_info": {"traits": ["CUSTOM_GPU"]}}));
    assert_eq!(standing(&documents(&json!({})), Given::Nothing, &[]), due);
    assert_eq!(standing(&lacks, Given::Other, &["conf"]), due, "it has had one");
    // One whose task set has no task that runs was never used either.
    for given in [Given::Nothing, Given::NoTasks, Given::Other] {
        let (kept, why) = standing(&lacks, given, &[]);
        assert_eq!(kept, Standing::Kept(None));
        assert!(
            why[0].as_str().expect("a sentence").ends_with("is missing traits CUSTOM_GPU: no new task set is given")
        );
    }
    let spare = documents(&json!({"nodegroup": null, "instance_info": {"traits": ["CUSTOM_GPU"]}}));
    assert_eq!(standing(&spare, Given::Nothing, &[]).0, Standing::Due, "it is not used, and is told so");
    let mut asks = documents(&json!({}));
    asks[4]["requirements"] = json!({"property:memory_mb": ">= 1024"});
    for given in [Given::Nothing, Given::Other] {
        let why = json!(["requirement property:memory_mb >= 1024 is not met: no new task set is given"]);
        assert_eq!(standing(&asks, given, &["conf"]), (Standing::Kept(None), why));
    }
}

#[test]
fn who_applies_nothing_or_is_not_waited_for_is_given_its_task_set() {
    for more in [json!({"parked": true}), json!({"mode": "noop"})] {
        let (standing, why) = standing(&documents(&more), Given::Nothing, &[]);
        assert_eq!(standing, Standing::Due, "{more}");
        assert_eq!(why.as_array().map(Vec::len), Some(1), "{more}: an account says it: {why}");
    }
}

#[test]
fn a_task_that_nobody_can_decide_keeps_the_task_set_of_a_host_that_runs_it() {
    let why = "the condition of task costly, which it runs, is undecided: it keeps the task set that it has";
    let documents = documents(&json!({}));
    assert_eq!(standing(&documents, Given::Other, &["conf", "costly"]), (Standing::Kept(None), json!([why])));
    for runs in [&["conf"][..], &[]] {
        assert_eq!(standing(&documents, Given::Other, runs), (Standing::Due, json!([])));
    }
}

#[test]
fn a_task_that_a_host_runs_still_is_accounted_for_though_it_is_to_run_no_longer() {
    let held = json!({"hold": {"reason": "a disk is changed"}});
    let unplaced = json!({"hold": {"reason": "a disk is changed"}, "nodegroup": null});
    for (more, why) in
        [(held, "the node's release has no such task"), (unplaced, "the node is unplaced, or no level names a release")]
    {
        let made = Made::of(&documents(&more));
        let answer = made.answer("web-1");
        let account = |runs| {
            let ran =
                Ran { runs, has_set: true, too_large: None, keeps: None, told: true, outcome: None, shut: &Vec::new };
            explain::task(&answer, "gone", NOW, &ran)
        };
        let told = account(Some(&|id| id == "gone")).expect("its host runs it");
        assert_eq!((&told["why"], &told["runs"], &told["released"]), (&json!(why), &json!(false), &json!(true)));
        assert!(told["set_aside"][0].as_str().expect("a sentence").contains("a disk is changed"), "{told}");
        let other = account(Some(&|id| id == "conf")).map(|told| told["released"].clone());
        assert_eq!(other, answer.task_set().is_none().then_some(json!(false)));
    }
}
