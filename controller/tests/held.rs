//! What is held stays held: a label that a template reads reaches the host's labels at once, and its task set only when the
//! policy releases it, also after the controller was started again in between.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod fleet;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fleet::{Fleet, Host, config};
use hyper::Method;
use serde_json::{Value, json};
use stemma_controller::reconcile::{Candidate, ReleasePolicy, Verdict};
use stemma_controller::run::{Options, Publishing, start};
use stemma_wire::message::desired::{InputValue, Known, TaskSet};

/// Releases the first task set of a node, and others when it is told to.
#[derive(Debug, Default)]
struct WhenTold(AtomicBool);

impl ReleasePolicy for WhenTold {
    fn judge(&self, candidate: &Candidate<'_>) -> Verdict {
        let is_told =
            candidate.present.is_none_or(|present| present.profile.is_none()) || self.0.load(Ordering::Relaxed);
        if is_told { Verdict::Release } else { Verdict::Hold }
    }
}

fn options(policy: &Arc<WhenTold>) -> Options {
    Options { publishing: Publishing::Reconciled, policy: Arc::clone(policy) as _, ..Options::default() }
}

/// What the host is told by now: the parts that are new to it.
async fn told(host: &mut Host) -> (Option<Known>, Option<TaskSet>) {
    for _ in 0..100 {
        let news = host.news(100).await;
        if let Some(desired) = news.desired {
            let known = desired.known.map(|bytes| postcard::from_bytes(&bytes).unwrap());
            return (known, desired.task_set.map(|bytes| postcard::from_bytes(&bytes).unwrap()));
        }
    }
    (None, None)
}

fn site(ntp: &str) -> Value {
    let task = json!({"id": "ntp", "type": "file", "tags": ["common"],
        "parameters": {"path": "/etc/ntp", "template": "server {{ labels.ntp }}\n"}});
    json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"all": {"tags": ["common"]}}, "tags": {"common": {}}, "tasks": [task]},
        {"kind": "Cluster", "name": "c", "release": "site@1", "labels": {"ntp": ntp}},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"]},
    ])
}

fn ntp(task_set: &TaskSet) -> &InputValue {
    &task_set.inputs["labels.ntp"]
}

#[tokio::test]
async fn a_label_arrives_at_once_and_its_task_set_when_it_is_released_also_after_a_restart() {
    let policy = Arc::new(WhenTold::default());
    let mut fleet = Fleet::start_with(|own| *own = options(&policy)).await;
    fleet.apply(site("one")).await;
    let mut host = fleet.join_group("c/g", "n").await;
    let (known, task_set) = told(&mut host).await;
    assert_eq!(known.unwrap().labels["ntp"].value, "one");
    assert_eq!(*ntp(&task_set.unwrap()), InputValue::Json("\"one\"".to_owned()));

    fleet.apply(site("two")).await;
    let (known, task_set) = told(&mut host).await;
    assert_eq!(known.unwrap().labels["ntp"].value, "two", "what is known flows at once");
    assert_eq!(task_set, None, "the task set is the one that was released");

    fleet.controller.stop().await;
    fleet.controller = start(config(fleet.directory.path().join("data")), options(&policy)).await.unwrap();
    let (chain, key) = (host.chain.clone(), host.key.clone_key());
    host.client = fleet.client(chain, key);
    fleet.apply(site("three")).await;
    let (known, task_set) = told(&mut host).await;
    assert_eq!(known.unwrap().labels["ntp"].value, "three");
    assert_eq!(task_set, None, "held over the restart too");
    // A host that lost what it held is given the task set that was released, not the one that waits.
    host.held = None;
    let (known, task_set) = told(&mut host).await;
    assert_eq!(known.unwrap().labels["ntp"].value, "three");
    assert_eq!(*ntp(&task_set.unwrap()), InputValue::Json("\"one\"".to_owned()));

    policy.0.store(true, Ordering::Relaxed);
    fleet.apply(site("four")).await;
    let (known, task_set) = told(&mut host).await;
    assert_eq!(known.unwrap().labels["ntp"].value, "four");
    assert_eq!(*ntp(&task_set.unwrap()), InputValue::Json("\"four\"".to_owned()));
    fleet.controller.stop().await;
}

/// Two releases of the same content share what they make of a node, and neither answers for the other.
#[tokio::test]
async fn what_is_released_is_recorded_and_fixed_under_the_name_that_the_group_refers_to() {
    let options = Options { publishing: Publishing::Reconciled, ..Options::default() };
    let fleet = Fleet::start_with(|own| *own = options).await;
    let mut objects = site("one");
    let mut twin = objects[0].clone();
    twin["name"] = "twin".into();
    objects.as_array_mut().unwrap().extend([
        twin.clone(),
        json!({"kind": "NodeGroup", "cluster": "c", "name": "twins", "roles": ["all"], "release": "twin@1"}),
    ]);
    fleet.apply(objects).await;
    for (group, name, release) in [("c/g", "n", "site@1"), ("c/twins", "m", "twin@1")] {
        let mut host = fleet.join_group(group, name).await;
        assert!(told(&mut host).await.1.is_some(), "{name} has a task set");
        let body = fleet.read(&format!("/v1/nodes/{name}/resolved")).await;
        assert_eq!(body["released"]["release"], release, "{name}");
    }
    twin["tasks"][0]["parameters"]["path"] = "/etc/other".into();
    let (status, body) = fleet.ask(Method::POST, "/v1/apply?force=true", &json!({"objects": [twin]})).await;
    assert_eq!(status, 409, "{body}");
    fleet.controller.stop().await;
}
