//! A held host keeps its task set. A changed label that a template reads reaches the host's labels at once. It reaches
//! the task set only after the hold, also if the controller is restarted in between.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};
use stemma_controller::records::reported::ReleasedRecord;
use stemma_controller::records::{codec, key};
use stemma_controller::run::Options;
use stemma_controller::store::{ListQuery, Transaction};
use stemma_core::status::State;
use stemma_wire::message::desired::{InputValue, Known, TaskSet};
use stemma_wire::message::signed::Grant;

use crate::fleet::{self, Fleet, Host, TIMEOUT, reconciled_options, wait_until};

/// Holds node n, until the given end if there is one.
async fn hold_node(fleet: &Fleet, until: Option<&str>) {
    let mut hold = json!({"reason": "a disk is changed"});
    if let Some(until) = until {
        hold["until"] = until.into();
    }
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/g", "hold": hold}])).await;
}

/// Removes the hold.
async fn remove_hold(fleet: &Fleet) {
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/g"}])).await;
}

/// Returns the parts of the desired state that are new to the host.
pub(crate) async fn new_parts(host: &mut Host) -> (Option<Known>, Option<TaskSet>) {
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        let news = host.next_update(100).await;
        if let Some(desired) = news.desired {
            let known = desired.known.map(|bytes| postcard::from_bytes(&bytes).unwrap());
            return (known, desired.task_set.map(|bytes| postcard::from_bytes(&bytes).unwrap()));
        }
    }
    panic!("the host is told nothing");
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

fn ntp_input(task_set: &TaskSet) -> &InputValue {
    &task_set.inputs["labels.ntp"]
}

/// Checks that a full resolve finds nothing to do, and that none before it did.
async fn assert_nothing_missed(fleet: &Fleet) {
    let found = fleet.parts().reconciler.resolve_all_now().await;
    assert_eq!((found, fleet.parts().metrics.counters().missed.get()), (Some(0), 0));
}

#[tokio::test]
async fn label_is_sent_at_once_and_task_set_when_released() {
    let mut fleet = Fleet::start_reconciled().await;
    fleet.apply(site("one")).await;
    let mut host = fleet.join_group("c/g", "n").await;
    let (known, task_set) = new_parts(&mut host).await;
    assert_eq!(known.unwrap().labels["ntp"].value, "one");
    assert_eq!(*ntp_input(&task_set.unwrap()), InputValue::Json("\"one\"".into()));

    hold_node(&fleet, None).await;
    new_parts(&mut host).await.0.unwrap().hold.expect("the host is told of the hold");
    fleet.apply(site("two")).await;
    let (known, task_set) = new_parts(&mut host).await;
    assert_eq!(known.unwrap().labels["ntp"].value, "two", "what is known flows at once");
    assert_eq!(task_set, None, "the task set is the one that was released");

    fleet = fleet.restart(reconciled_options()).await;
    let (chain, key) = (host.chain.clone(), host.key.clone_key());
    host.client = fleet.client(chain, key);
    fleet.apply(site("three")).await;
    let (known, task_set) = new_parts(&mut host).await;
    assert_eq!(known.unwrap().labels["ntp"].value, "three");
    assert_eq!(task_set, None, "held over the restart too");
    // A host that lost its state gets the task set that was released, not the one that is withheld.
    host.held_desired = None;
    let (known, task_set) = new_parts(&mut host).await;
    assert_eq!(known.unwrap().labels["ntp"].value, "three");
    assert_eq!(*ntp_input(&task_set.unwrap()), InputValue::Json("\"one\"".into()));

    remove_hold(&fleet).await;
    let (_, task_set) = new_parts(&mut host).await;
    assert_eq!(*ntp_input(&task_set.unwrap()), InputValue::Json("\"three\"".into()));
    fleet.controller.stop().await;
}

#[tokio::test]
async fn task_set_is_released_when_hold_ends() {
    let clock = Arc::new(fleet::TestClock::default());
    let own = Arc::clone(&clock);
    let fleet = Fleet::start_with(|all| *all = Options { clock: own, ..reconciled_options() }).await;
    fleet.apply(site("one")).await;
    let mut host = fleet.join_group("c/g", "n").await;
    assert!(new_parts(&mut host).await.1.is_some());
    let until = stemma_wire::clock::Clock::unix_seconds(&*clock) + 3600;
    let until = jiff::Timestamp::from_second(until.try_into().unwrap()).unwrap().to_string();
    hold_node(&fleet, Some(&until)).await;
    new_parts(&mut host).await.0.unwrap().hold.expect("the host is told of the hold");
    fleet.apply(site("two")).await;
    assert_eq!(new_parts(&mut host).await.1, None);
    clock.advance(3600);
    assert_eq!(*ntp_input(&new_parts(&mut host).await.1.unwrap()), InputValue::Json("\"two\"".into()));
    assert_nothing_missed(&fleet).await;
    fleet.controller.stop().await;
}

/// The wording of an explanation and an edge of the order are not part of what a host runs, so the task digest stays
/// the same.
#[tokio::test]
async fn task_set_is_not_released_when_only_profile_changes() {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(ordered_tasks("a", "false", &["ntp"])).await;
    let mut host = fleet.join_group("c/g", "n").await;
    let first = new_parts(&mut host).await.1.unwrap();
    assert!(first.left_out["never"].contains("false"));
    let released = fleet.read("/v1/nodes/n/resolved").await["released"].clone();
    for (tier, condition, after) in [("b", "1 > 2", &["ntp"][..]), ("c", "1 > 2", &["ntp", "log"]), ("d", "false", &[])] {
        fleet.apply(ordered_tasks(tier, condition, after)).await;
        let (known, task_set) = new_parts(&mut host).await;
        assert_eq!(known.unwrap().labels["tier"].value, tier);
        assert_eq!(task_set, None, "{tier}");
        assert_eq!(fleet.read("/v1/nodes/n/resolved").await["released"], released, "{tier}");
    }
    // The host has the first order, in which ntp waits. The present order no longer requires that, so the barrier is
    // open.
    let open = open_barriers(&fleet, &mut host).await;
    assert!(open.contains(&"first".to_owned()), "{open:?}");
    fleet.controller.stop().await;
}

/// A task that a held host waits for may still be running elsewhere, even if the present order no longer requires it.
#[tokio::test]
async fn held_node_waits_at_old_barrier_when_order_dropped_barrier() {
    let fleet = Fleet::start_reconciled().await;
    let condition = "labels.tier == 'b'";
    fleet.apply(ordered_tasks("a", condition, &["ntp"])).await;
    let dbs = json!({"kind": "NodeGroup", "cluster": "c", "name": "dbs", "roles": ["db"]});
    fleet.apply(json!([dbs, {"kind": "Node", "name": "db", "nodegroup": "c/dbs"}])).await;
    let mut host = fleet.join_group("c/g", "n").await;
    assert!(new_parts(&mut host).await.1.is_some());
    assert_eq!(open_barriers(&fleet, &mut host).await, Vec::<String>::new(), "ntp waits for the database");
    hold_node(&fleet, None).await;
    new_parts(&mut host).await.0.unwrap().hold.expect("the host is told of the hold");
    fleet.apply(ordered_tasks("b", condition, &[])).await;
    let (known, task_set) = new_parts(&mut host).await;
    assert_eq!(known.unwrap().labels["tier"].value, "b");
    assert_eq!(task_set, None, "it keeps the task set in which ntp waits");
    assert_eq!(open_barriers(&fleet, &mut host).await, Vec::<String>::new(), "it waits until the hold ends");
    // The wait also ends when the host's task set is the desired one again. Then barriers that the order no longer has
    // are open. The profile changed with the previous edit already, so a wave learns nothing new about it.
    fleet.apply(ordered_tasks("a", condition, &[])).await;
    let (known, task_set) = new_parts(&mut host).await;
    assert_eq!((known.unwrap().labels["tier"].value.as_str(), task_set), ("a", None));
    assert_eq!(open_barriers(&fleet, &mut host).await, ["first"]);
    fleet.controller.stop().await;
}

#[tokio::test]
async fn result_opens_barrier_of_other_host_in_same_pass() {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(ordered_tasks("a", "false", &["ntp"])).await;
    fleet.apply(json!([{"kind": "NodeGroup", "cluster": "c", "name": "dbs", "roles": ["db"]}])).await;
    let (mut db, mut host) = (fleet.join_group("c/dbs", "db").await, fleet.join_group("c/g", "n").await);
    for host in [&mut db, &mut host] {
        assert!(new_parts(host).await.1.is_some());
    }
    assert_eq!(open_barriers(&fleet, &mut host).await, Vec::<String>::new(), "ntp waits for the database");
    db.report_success("first").await;
    assert_eq!(open_barriers(&fleet, &mut host).await, ["first"]);
    fleet.controller.stop().await;
}

/// Returns the tasks of the barriers that are open for a host that holds nothing. A pass publishes the state of a host
/// before its barriers. So this waits for a full resolve, which runs after that pass and must find nothing that the
/// pass has missed.
async fn open_barriers(fleet: &Fleet, host: &mut Host) -> Vec<String> {
    assert_nothing_missed(fleet).await;
    host.held_desired = None;
    let news = host.next_update(0).await;
    let open = news.grants.iter().find_map(|one| match &one.grant {
        Grant::Barriers { open, .. } => Some(open.iter().map(|one| one.task.clone()).collect()),
        Grant::Lease { .. } => None,
    });
    open.unwrap_or_default()
}

/// Builds a site in which the tasks in `after` wait for `first` on the databases. The task `never` has a condition.
fn ordered_tasks(tier: &str, condition: &str, after: &[&str]) -> Value {
    let task = |id: &str, tag: &str| json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
    let mut never = task("never", "common");
    never["condition"] = condition.into();
    let mut first = task("first", "db");
    first["cross_depended_by"] = after.iter().map(|id| json!({"name": id, "tags": ["common"]})).collect();
    json!([
        {"kind": "Release", "name": "site", "roles": {"all": {"tags": ["common"]}, "db": {"tags": ["db"]}},
            "tags": {"common": {}, "db": {}}, "tasks": [task("ntp", "common"), task("log", "common"), never, first]},
        {"kind": "Cluster", "name": "c", "release": "site", "labels": {"tier": tier}},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"]},
    ])
}

/// Two releases with the same content share the results of resolving, but each is recorded under its own name.
#[tokio::test]
async fn w01_release_is_recorded_and_pinned_under_group_name() {
    let fleet = Fleet::start_reconciled().await;
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
        assert!(new_parts(&mut host).await.1.is_some(), "{name} has a task set");
        let body = fleet.read(&format!("/v1/nodes/{name}/resolved")).await;
        assert_eq!(body["released"]["release"], release, "{name}");
    }
    twin["tasks"][0]["parameters"]["path"] = "/etc/other".into();
    let (status, body) = fleet.request(Method::POST, "/v1/apply?force=true", &json!({"objects": [twin]})).await;
    assert_eq!(status, 409, "{body}");
    fleet.controller.stop().await;
}

/// Waits until the released task set of node n is recorded under this name.
async fn wait_until_recorded(fleet: &Fleet, name: &str) -> Value {
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        let released = fleet.read("/v1/nodes/n/resolved").await["released"].clone();
        if released["release"] == name {
            return released;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it is not recorded under {name}");
}

/// A node that gets another release with the same content runs the same tasks. Nothing is released, and the new name is
/// recorded.
#[tokio::test]
async fn w01_release_with_equal_content_is_pinned_and_not_sent() {
    let mut fleet = Fleet::start_reconciled().await;
    let mut objects = site("one");
    let mut twin = objects[0].clone();
    twin["version"] = "2".into();
    objects.as_array_mut().unwrap().push(twin.clone());
    fleet.apply(objects).await;
    let mut host = fleet.join_group("c/g", "n").await;
    assert!(new_parts(&mut host).await.1.is_some());
    let first = wait_until_recorded(&fleet, "site@1").await;

    fleet.apply(json!([{"kind": "Cluster", "name": "c", "release": "site@2", "labels": {"ntp": "one"}}])).await;
    let second = wait_until_recorded(&fleet, "site@2").await;
    assert_eq!((&second["at"], &second["revision"]), (&first["at"], &first["revision"]), "nothing was released");
    assert_eq!(fleet.read("/v1/nodes/n/explain?task=ntp").await["release"], "site@2");
    assert_edit_refused(&fleet, &twin).await;

    // A store of an older version has the name of the first release, and no pin of the other.
    let store = Arc::clone(fleet.parts().registry.store());
    let released = key::node_entry(key::RELEASED, host.node);
    let entry = store.snapshot().await.unwrap().get(released.as_bytes()).await.unwrap().unwrap();
    let record: ReleasedRecord = codec::decode(&entry.value).unwrap();
    let before = record.with_release(Some("site@1".to_owned()));
    let write = Transaction::new().put(released, codec::encode(&before)).delete(key::pin_mark("site@2"));
    store.commit(write).await.unwrap();
    drop(store);
    fleet = fleet.restart(reconciled_options()).await;
    let mended = wait_until_recorded(&fleet, "site@2").await;
    assert_eq!((&mended["at"], &mended["revision"]), (&first["at"], &first["revision"]), "nothing was released");
    let list = fleet.parts().registry.store().snapshot().await.unwrap().list(&ListQuery::prefix("fixed/")).await.unwrap();
    let fixed: Vec<_> = list.entries.iter().map(|entry| String::from_utf8_lossy(&entry.key)).collect();
    assert_eq!(fixed, ["fixed/site@1", "fixed/site@2"]);
    assert_edit_refused(&fleet, &twin).await;
    let (chain, key) = (host.chain.clone(), host.key.clone_key());
    host.client = fleet.client(chain, key);
    assert!(host.next_update(100).await.desired.is_none_or(|desired| desired.task_set.is_none()), "its host is told of no other");
    fleet.controller.stop().await;
}

async fn assert_edit_refused(fleet: &Fleet, release: &Value) {
    let mut edited = release.clone();
    edited["tasks"][0]["parameters"]["path"] = "/etc/other".into();
    let (status, body) = fleet.request(Method::POST, "/v1/apply?force=true", &json!({"objects": [edited]})).await;
    assert_eq!((status, &body["error"]["type"]), (409, &json!("object.in_use")), "{body}");
}

/// The response to each form of the move says that the next task set is held.
#[tokio::test]
async fn w07_move_reports_finding_when_node_lacks_required_trait() {
    let fleet = Fleet::start_reconciled().await;
    let mut objects = site("one");
    objects.as_array_mut().unwrap().extend([
        json!({"kind": "NodeGroup", "cluster": "c", "name": "fast", "requirements": {"trait:CUSTOM_FAST": "required"}}),
        json!({"kind": "Node", "name": "n", "nodegroup": "c/g"}),
        json!({"kind": "Node", "name": "m", "nodegroup": "c/g"}),
        json!({"kind": "Node", "name": "able", "nodegroup": "c/g", "traits": ["CUSTOM_FAST"]}),
    ]);
    fleet.apply(objects).await;
    let patch = |path: &str| (Method::PATCH, path.to_owned(), json!([{"op": "add", "path": "/nodegroup", "value": "c/fast"}]));
    let apply = json!({"objects": [{"kind": "Node", "name": "m", "nodegroup": "c/fast"}]});
    let create = json!({"name": "late", "nodegroup": "c/fast"});
    for (name, (method, path, body)) in [
        ("n", patch("/v1/nodes/n")),
        ("m", (Method::POST, "/v1/apply?force=true".to_owned(), apply)),
        ("late", (Method::POST, "/v1/nodes".to_owned(), create)),
        ("able", patch("/v1/nodes/able")),
    ] {
        let answer = fleet.request_raw(method, &path, &body).await;
        let warned = answer.headers().get("warning").map(|text| text.to_str().unwrap().to_owned());
        let answer: Value = serde_json::from_slice(answer.body()).unwrap();
        let unmet = json!({"severity": "error", "code": "requirement.unmet", "object": format!("node/{name}"),
            "message": "requirement trait:CUSTOM_FAST required is not met: the node lacks it"});
        let said = answer["findings"].as_array().unwrap();
        assert_eq!(said.contains(&unmet), name != "able", "{name}: {answer}");
        // An apply lists all findings that it causes. A warning contains the same text as the finding (y09).
        let unmet = format!("error: requirement trait:CUSTOM_FAST required is not met by {name} (the node lacks it): ");
        let says = |text: &String| text.contains(&unmet);
        assert_eq!(warned.as_ref().is_some_and(says), ["n", "late"].contains(&name), "{name}: {warned:?}");
    }
    fleet.controller.stop().await;
}

#[tokio::test]
async fn w07_requirement_edit_warns_about_unmet_nodes() {
    let fleet = Fleet::start_reconciled().await;
    let mut objects = site("one");
    let node = |name: &str| json!({"kind": "Node", "name": name, "nodegroup": "c/g"});
    objects.as_array_mut().unwrap().extend(["n1", "n2", "n3", "n4", "n5"].map(node));
    objects.as_array_mut().unwrap().push(json!({"kind": "Node", "name": "able", "nodegroup": "c/g", "traits": ["CUSTOM_FAST"]}));
    fleet.apply(objects).await;
    let edit = json!([{"op": "replace", "path": "/requirements", "value": {"trait:CUSTOM_FAST": "required"}}]);
    for is_told in [true, false] {
        let answer = fleet.request_raw(Method::PATCH, "/v1/clusters/c/nodegroups/g", &edit).await;
        let warned = answer.headers().get("warning").map(|text| text.to_str().unwrap().to_owned());
        let says =
            "trait:CUSTOM_FAST required is not met by n1, n2, n3 and 2 more: the next task set is withheld until it is met";
        assert_eq!(warned.as_ref().is_some_and(|text| text.contains(says)), is_told, "{warned:?}");
    }
    // However many requirements are unmet, the header lists the first ones and the body lists all.
    let groups = (0..9).map(|at| {
        json!({"kind": "NodeGroup", "cluster": "c", "name": format!("g{at}"), "requirements": {"label:os": format!("s!= x{at}")}})
    });
    let nodes = (0..9).map(|at| json!({"kind": "Node", "name": format!("m{at}"), "nodegroup": format!("c/g{at}")}));
    fleet.request_raw(Method::PATCH, "/v1/clusters/c", &json!([{"op": "add", "path": "/labels/os", "value": "x"}])).await;
    fleet.apply(groups.chain(nodes).collect()).await;
    let answer = fleet.request_raw(Method::PATCH, "/v1/clusters/c", &json!([{"op": "remove", "path": "/labels/os"}])).await;
    let warned = answer.headers().get("warning").unwrap().to_str().unwrap().to_owned();
    let told: Value = serde_json::from_slice(answer.body()).unwrap();
    let unmet = told["findings"].as_array().unwrap().iter().filter(|found| found["code"] == "requirement.unmet");
    assert_eq!(unmet.count(), 9, "{told}");
    assert!(warned.matches("is not met").count() < 4 && warned.contains(" more finding"), "{warned}");
    fleet.controller.stop().await;
}

/// A condition that exceeds its step limit is not false. A host that runs the task keeps it until the condition can be
/// evaluated.
#[tokio::test]
async fn w10_05_costly_condition_keeps_task_on_running_host() {
    let fleet = Fleet::start_reconciled().await;
    let site = |ntp: &str, many: u32| {
        let mut objects = site(ntp);
        let mut costly = objects[0]["tasks"][0].clone();
        costly["id"] = "costly".into();
        costly["condition"] = "params.many.exists(a, params.many.exists(b, a < b))".into();
        costly["parameters"]["path"] = "/etc/costly".into();
        objects[0]["tasks"].as_array_mut().unwrap().push(costly);
        objects[1]["parameters"] = json!({"many": (0..many).collect::<Vec<_>>()});
        objects
    };
    fleet.apply(site("one", 500)).await;
    let mut host = fleet.join_group("c/g", "n").await;
    assert!(new_parts(&mut host).await.1.unwrap().left_out.is_empty(), "it is decided, and holds");
    let others: Vec<Value> = (0..16).map(|n| json!({"kind": "Node", "name": format!("m{n}"), "nodegroup": "c/g"})).collect();
    fleet.apply(others.into()).await;
    fleet.apply(site("two", 500)).await;
    let (known, task_set) = new_parts(&mut host).await;
    assert_eq!(known.unwrap().labels["ntp"].value, "two");
    assert_eq!(task_set, None, "nobody knows whether the task is to run");
    let finding = fleet.read("/v1/nodes/n").await["findings"][0].clone();
    assert_eq!((&finding["code"], &finding["object"]), (&json!("condition.failed"), &json!("node/n task/costly")));
    assert!(finding["message"].as_str().unwrap().contains("keeps the task set that it has"), "{finding}");
    fleet.apply(site("two", 50)).await;
    let task_set = new_parts(&mut host).await.1.unwrap();
    assert_eq!((ntp_input(&task_set), task_set.left_out.len()), (&InputValue::Json("\"two\"".into()), 0));
    assert_nothing_missed(&fleet).await;
    fleet.controller.stop().await;
}

/// The known part may become too large together with the task set that a held host keeps, however small the next task
/// set is.
#[tokio::test]
async fn held_task_set_can_make_desired_state_too_large() {
    let fleet = Fleet::start_reconciled().await;
    let site = |bytes: usize, annotation: usize| {
        let mut objects = site("one");
        objects[0]["tasks"][0]["parameters"]["template"] = "{{ params.a }}{{ params.b }}".into();
        objects[1]["parameters"] = json!({"a": "v".repeat(bytes)});
        objects[2]["parameters"] = json!({"b": "v".repeat(bytes)});
        let text = |n: u32| (format!("a{n}"), "v".repeat(annotation).into());
        objects[1]["annotations"] = (0..50).map(text).collect::<serde_json::Map<String, Value>>().into();
        objects
    };
    fleet.apply(site(60_000, 1)).await;
    let mut host = fleet.join_group("c/g", "n").await;
    assert!(new_parts(&mut host).await.1.is_some());
    hold_node(&fleet, None).await;
    new_parts(&mut host).await.0.unwrap().hold.expect("the host is told of the hold");
    let is_failed = || fleet.parts().desired.status().count_states([host.node]).contains_key(&State::Failed);
    for (annotation, is_too_large) in [(1, false), (3_000, true), (1, false)] {
        fleet.apply(site(1, annotation)).await;
        let node = fleet.read("/v1/nodes/n").await;
        assert_eq!(node["findings"].to_string().contains("desired.too_large"), is_too_large, "{}", node["findings"]);
        let explained = fleet.read("/v1/nodes/n/explain?task=ntp").await;
        assert_eq!(explained["set_aside"].to_string().contains("are allowed"), is_too_large, "{explained}");
        assert_eq!(node["state"] == "failed", is_too_large, "{node}");
        // The same state as in the metrics.
        wait_until(|| is_failed() == is_too_large).await;
    }
    fleet.controller.stop().await;
}
