//! What is held stays held: a label that a template reads reaches the host's labels at once, and its task set only when the
//! hold is over, also after the controller was started again in between.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};
use stemma_controller::records::reported::ReleasedRecord;
use stemma_controller::records::{codec, key};
use stemma_controller::run::Options;
use stemma_controller::store::{Query, Transaction};
use stemma_core::status::State;
use stemma_wire::message::desired::{InputValue, Known, TaskSet};
use stemma_wire::message::signed::Grant;

use crate::fleet::{self, Fleet, Host, PATIENCE, reconciled, wait_until};

/// Holds node n, until an end if there is one.
async fn hold(fleet: &Fleet, until: Option<&str>) {
    let mut hold = json!({"reason": "a disk is changed"});
    if let Some(until) = until {
        hold["until"] = until.into();
    }
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/g", "hold": hold}])).await;
}

/// Takes the hold back.
async fn take_back(fleet: &Fleet) {
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/g"}])).await;
}

/// What the host is told by now: the parts that are new to it.
pub(crate) async fn told(host: &mut Host) -> (Option<Known>, Option<TaskSet>) {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let news = host.news(100).await;
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

fn ntp(task_set: &TaskSet) -> &InputValue {
    &task_set.inputs["labels.ntp"]
}

/// Sees that a full resolve finds nothing to do, and that none before it did.
async fn nothing_was_missed(fleet: &Fleet) {
    let found = fleet.parts().reconciler.check_now().await;
    assert_eq!((found, fleet.parts().metrics.counters().missed.get()), (Some(0), 0));
}

#[tokio::test]
async fn a_label_arrives_at_once_and_its_task_set_when_it_is_released_also_after_a_restart() {
    let mut fleet = Fleet::start_reconciled().await;
    fleet.apply(site("one")).await;
    let mut host = fleet.join_group("c/g", "n").await;
    let (known, task_set) = told(&mut host).await;
    assert_eq!(known.unwrap().labels["ntp"].value, "one");
    assert_eq!(*ntp(&task_set.unwrap()), InputValue::Json("\"one\"".into()));

    hold(&fleet, None).await;
    told(&mut host).await.0.unwrap().hold.expect("the host is told of the hold");
    fleet.apply(site("two")).await;
    let (known, task_set) = told(&mut host).await;
    assert_eq!(known.unwrap().labels["ntp"].value, "two", "what is known flows at once");
    assert_eq!(task_set, None, "the task set is the one that was released");

    fleet = fleet.restart(reconciled()).await;
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
    assert_eq!(*ntp(&task_set.unwrap()), InputValue::Json("\"one\"".into()));

    take_back(&fleet).await;
    let (_, task_set) = told(&mut host).await;
    assert_eq!(*ntp(&task_set.unwrap()), InputValue::Json("\"three\"".into()));
    fleet.controller.stop().await;
}

#[tokio::test]
async fn a_task_set_is_released_at_the_end_of_a_hold_without_another_change() {
    let clock = Arc::new(fleet::Moving::default());
    let own = Arc::clone(&clock);
    let fleet = Fleet::start_with(|all| *all = Options { clock: own, ..reconciled() }).await;
    fleet.apply(site("one")).await;
    let mut host = fleet.join_group("c/g", "n").await;
    assert!(told(&mut host).await.1.is_some());
    let until = stemma_wire::clock::Clock::unix_seconds(&*clock) + 3600;
    let until = jiff::Timestamp::from_second(until.try_into().unwrap()).unwrap().to_string();
    hold(&fleet, Some(&until)).await;
    told(&mut host).await.0.unwrap().hold.expect("the host is told of the hold");
    fleet.apply(site("two")).await;
    assert_eq!(told(&mut host).await.1, None);
    clock.forward(3600);
    assert_eq!(*ntp(&told(&mut host).await.1.unwrap()), InputValue::Json("\"two\"".into()));
    nothing_was_missed(&fleet).await;
    fleet.controller.stop().await;
}

/// Neither the wording of an explanation nor an edge of the order is what a host runs: its task digest is the same.
#[tokio::test]
async fn a_profile_or_an_explanation_that_alone_is_another_releases_nothing() {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(ordered("a", "false", &["ntp"])).await;
    let mut host = fleet.join_group("c/g", "n").await;
    let first = told(&mut host).await.1.unwrap();
    assert!(first.left_out["never"].contains("false"));
    let released = fleet.read("/v1/nodes/n/resolved").await["released"].clone();
    for (tier, condition, after) in [("b", "1 > 2", &["ntp"][..]), ("c", "1 > 2", &["ntp", "log"]), ("d", "false", &[])]
    {
        fleet.apply(ordered(tier, condition, after)).await;
        let (known, task_set) = told(&mut host).await;
        assert_eq!(known.unwrap().labels["tier"].value, tier);
        assert_eq!(task_set, None, "{tier}");
        assert_eq!(fleet.read("/v1/nodes/n/resolved").await["released"], released, "{tier}");
    }
    // The host has the first order, in which ntp waits; nobody demands that any more, so it waits no longer.
    let open = open(&fleet, &mut host).await;
    assert!(open.contains(&"first".to_owned()), "{open:?}");
    fleet.controller.stop().await;
}

/// What a held host waits for may still be under way elsewhere, also where the present order no longer asks for it.
#[tokio::test]
async fn a_held_host_waits_at_a_barrier_of_what_it_was_given_though_the_order_no_longer_has_it() {
    let fleet = Fleet::start_reconciled().await;
    let condition = "labels.tier == 'b'";
    fleet.apply(ordered("a", condition, &["ntp"])).await;
    let dbs = json!({"kind": "NodeGroup", "cluster": "c", "name": "dbs", "roles": ["db"]});
    fleet.apply(json!([dbs, {"kind": "Node", "name": "db", "nodegroup": "c/dbs"}])).await;
    let mut host = fleet.join_group("c/g", "n").await;
    assert!(told(&mut host).await.1.is_some());
    assert_eq!(open(&fleet, &mut host).await, Vec::<String>::new(), "ntp waits for the database");
    hold(&fleet, None).await;
    told(&mut host).await.0.unwrap().hold.expect("the host is told of the hold");
    fleet.apply(ordered("b", condition, &[])).await;
    let (known, task_set) = told(&mut host).await;
    assert_eq!(known.unwrap().labels["tier"].value, "b");
    assert_eq!(task_set, None, "it keeps the task set in which ntp waits");
    assert_eq!(open(&fleet, &mut host).await, Vec::<String>::new(), "it waits until the hold ends");
    // Or until what it has is what it is to have: then nobody demands of it what the order no longer has. Its profile is another since the
    // edit before, so that a wave knows nothing new of it.
    fleet.apply(ordered("a", condition, &[])).await;
    let (known, task_set) = told(&mut host).await;
    assert_eq!((known.unwrap().labels["tier"].value.as_str(), task_set), ("a", None));
    assert_eq!(open(&fleet, &mut host).await, ["first"]);
    fleet.controller.stop().await;
}

#[tokio::test]
async fn a_result_opens_the_barrier_of_another_host_in_the_pass_that_hears_of_it() {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(ordered("a", "false", &["ntp"])).await;
    fleet.apply(json!([{"kind": "NodeGroup", "cluster": "c", "name": "dbs", "roles": ["db"]}])).await;
    let (mut db, mut host) = (fleet.join_group("c/dbs", "db").await, fleet.join_group("c/g", "n").await);
    for host in [&mut db, &mut host] {
        assert!(told(host).await.1.is_some());
    }
    assert_eq!(open(&fleet, &mut host).await, Vec::<String>::new(), "ntp waits for the database");
    db.has_done("first").await;
    assert_eq!(open(&fleet, &mut host).await, ["first"]);
    fleet.controller.stop().await;
}

/// The tasks of the barriers that are open for a host which holds nothing. A pass publishes the state of a host before its barriers. So
/// this waits for a full resolve, which runs after that pass and must find nothing that the pass has missed.
async fn open(fleet: &Fleet, host: &mut Host) -> Vec<String> {
    nothing_was_missed(fleet).await;
    host.held = None;
    let news = host.news(0).await;
    let open = news.grants.iter().find_map(|one| match &one.grant {
        Grant::Barriers { open, .. } => Some(open.iter().map(|one| one.task.clone()).collect()),
        Grant::Lease { .. } => None,
    });
    open.unwrap_or_default()
}

/// Tasks of which those that `after` names wait for `first` on the databases; `never` has a condition.
fn ordered(tier: &str, condition: &str, after: &[&str]) -> Value {
    let task =
        |id: &str, tag: &str| json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
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

/// Two releases of the same content share what they make of a node, and neither answers for the other.
#[tokio::test]
async fn w01_what_is_released_is_recorded_and_fixed_under_the_name_that_the_group_refers_to() {
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
        assert!(told(&mut host).await.1.is_some(), "{name} has a task set");
        let body = fleet.read(&format!("/v1/nodes/{name}/resolved")).await;
        assert_eq!(body["released"]["release"], release, "{name}");
    }
    twin["tasks"][0]["parameters"]["path"] = "/etc/other".into();
    let (status, body) = fleet.ask(Method::POST, "/v1/apply?force=true", &json!({"objects": [twin]})).await;
    assert_eq!(status, 409, "{body}");
    fleet.controller.stop().await;
}

/// Waits until what was released to node n is recorded under a name.
async fn recorded(fleet: &Fleet, name: &str) -> Value {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let released = fleet.read("/v1/nodes/n/resolved").await["released"].clone();
        if released["release"] == name {
            return released;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it is not recorded under {name}");
}

/// Who is given a release of the same content runs the same: nothing is released, and the name is that of the levels.
#[tokio::test]
async fn w01_another_release_of_the_same_content_is_recorded_and_fixed_and_releases_nothing() {
    let mut fleet = Fleet::start_reconciled().await;
    let mut objects = site("one");
    let mut twin = objects[0].clone();
    twin["version"] = "2".into();
    objects.as_array_mut().unwrap().push(twin.clone());
    fleet.apply(objects).await;
    let mut host = fleet.join_group("c/g", "n").await;
    assert!(told(&mut host).await.1.is_some());
    let first = recorded(&fleet, "site@1").await;

    fleet.apply(json!([{"kind": "Cluster", "name": "c", "release": "site@2", "labels": {"ntp": "one"}}])).await;
    let second = recorded(&fleet, "site@2").await;
    assert_eq!((&second["at"], &second["revision"]), (&first["at"], &first["revision"]), "nothing was released");
    assert_eq!(fleet.read("/v1/nodes/n/explain?task=ntp").await["release"], "site@2");
    refuses_an_edit(&fleet, &twin).await;

    // A store of before names the one that came first, and has no mark of the other.
    let store = Arc::clone(fleet.parts().registry.store());
    let released = key::of_node(key::RELEASED, host.node);
    let entry = store.snapshot().await.unwrap().get(released.as_bytes()).await.unwrap().unwrap();
    let record: ReleasedRecord = codec::decode(&entry.value).unwrap();
    let before = record.of_release(Some("site@1".to_owned()));
    let write = Transaction::new().put(released, codec::encode(&before)).delete(key::fixed("site@2"));
    store.commit(write).await.unwrap();
    drop(store);
    fleet = fleet.restart(reconciled()).await;
    let mended = recorded(&fleet, "site@2").await;
    assert_eq!((&mended["at"], &mended["revision"]), (&first["at"], &first["revision"]), "nothing was released");
    let list = fleet.parts().registry.store().snapshot().await.unwrap().list(&Query::prefix("fixed/")).await.unwrap();
    let fixed: Vec<_> = list.entries.iter().map(|entry| String::from_utf8_lossy(&entry.key)).collect();
    assert_eq!(fixed, ["fixed/site@1", "fixed/site@2"]);
    refuses_an_edit(&fleet, &twin).await;
    let (chain, key) = (host.chain.clone(), host.key.clone_key());
    host.client = fleet.client(chain, key);
    assert!(
        host.news(100).await.desired.is_none_or(|desired| desired.task_set.is_none()),
        "its host is told of no other"
    );
    fleet.controller.stop().await;
}

async fn refuses_an_edit(fleet: &Fleet, release: &Value) {
    let mut edited = release.clone();
    edited["tasks"][0]["parameters"]["path"] = "/etc/other".into();
    let (status, body) = fleet.ask(Method::POST, "/v1/apply?force=true", &json!({"objects": [edited]})).await;
    assert_eq!((status, &body["error"]["type"]), (409, &json!("object.in_use")), "{body}");
}

/// However it is moved, the answer of the write says that its next task set is held.
#[tokio::test]
async fn w07_a_move_into_a_group_whose_required_trait_the_node_lacks_is_a_finding_of_the_write() {
    let fleet = Fleet::start_reconciled().await;
    let mut objects = site("one");
    objects.as_array_mut().unwrap().extend([
        json!({"kind": "NodeGroup", "cluster": "c", "name": "fast", "requirements": {"trait:CUSTOM_FAST": "required"}}),
        json!({"kind": "Node", "name": "n", "nodegroup": "c/g"}),
        json!({"kind": "Node", "name": "m", "nodegroup": "c/g"}),
        json!({"kind": "Node", "name": "able", "nodegroup": "c/g", "traits": ["CUSTOM_FAST"]}),
    ]);
    fleet.apply(objects).await;
    let patch =
        |path: &str| (Method::PATCH, path.to_owned(), json!([{"op": "add", "path": "/nodegroup", "value": "c/fast"}]));
    let apply = json!({"objects": [{"kind": "Node", "name": "m", "nodegroup": "c/fast"}]});
    let create = json!({"name": "late", "nodegroup": "c/fast"});
    for (name, (method, path, body)) in [
        ("n", patch("/v1/nodes/n")),
        ("m", (Method::POST, "/v1/apply?force=true".to_owned(), apply)),
        ("late", (Method::POST, "/v1/nodes".to_owned(), create)),
        ("able", patch("/v1/nodes/able")),
    ] {
        let answer = fleet.answer(method, &path, &body).await;
        let warned = answer.headers().get("warning").map(|text| text.to_str().unwrap().to_owned());
        let answer: Value = serde_json::from_slice(answer.body()).unwrap();
        let unmet = json!({"severity": "error", "code": "requirement.unmet", "object": format!("node/{name}"),
            "message": "requirement trait:CUSTOM_FAST required is not met: the node lacks it"});
        let said = answer["findings"].as_array().unwrap();
        assert_eq!(said.contains(&unmet), name != "able", "{name}: {answer}");
        // An apply lists what it finds, of all that it reaches. A warning says as much as the finding (y09).
        let unmet = format!("error: requirement trait:CUSTOM_FAST required is not met by {name} (the node lacks it): ");
        let says = |text: &String| text.contains(&unmet);
        assert_eq!(warned.as_ref().is_some_and(says), ["n", "late"].contains(&name), "{name}: {warned:?}");
    }
    fleet.controller.stop().await;
}

#[tokio::test]
async fn w07_an_edit_of_a_groups_requirement_warns_of_its_nodes_that_do_not_meet_it() {
    let fleet = Fleet::start_reconciled().await;
    let mut objects = site("one");
    let node = |name: &str| json!({"kind": "Node", "name": name, "nodegroup": "c/g"});
    objects.as_array_mut().unwrap().extend(["n1", "n2", "n3", "n4", "n5"].map(node));
    objects
        .as_array_mut()
        .unwrap()
        .push(json!({"kind": "Node", "name": "able", "nodegroup": "c/g", "traits": ["CUSTOM_FAST"]}));
    fleet.apply(objects).await;
    let edit = json!([{"op": "replace", "path": "/requirements", "value": {"trait:CUSTOM_FAST": "required"}}]);
    for is_told in [true, false] {
        let answer = fleet.answer(Method::PATCH, "/v1/clusters/c/nodegroups/g", &edit).await;
        let warned = answer.headers().get("warning").map(|text| text.to_str().unwrap().to_owned());
        let says =
            "trait:CUSTOM_FAST required is not met by n1, n2, n3 and 2 more: the next task set is held until it is";
        assert_eq!(warned.as_ref().is_some_and(|text| text.contains(says)), is_told, "{warned:?}");
    }
    // However many requirements it is by which they are held, a header tells of the first, and the body of all.
    let groups = (0..9).map(|at| {
        json!({"kind": "NodeGroup", "cluster": "c", "name": format!("g{at}"), "requirements": {"label:os": format!("s!= x{at}")}})
    });
    let nodes = (0..9).map(|at| json!({"kind": "Node", "name": format!("m{at}"), "nodegroup": format!("c/g{at}")}));
    fleet.answer(Method::PATCH, "/v1/clusters/c", &json!([{"op": "add", "path": "/labels/os", "value": "x"}])).await;
    fleet.apply(groups.chain(nodes).collect()).await;
    let answer = fleet.answer(Method::PATCH, "/v1/clusters/c", &json!([{"op": "remove", "path": "/labels/os"}])).await;
    let warned = answer.headers().get("warning").unwrap().to_str().unwrap().to_owned();
    let told: Value = serde_json::from_slice(answer.body()).unwrap();
    let unmet = told["findings"].as_array().unwrap().iter().filter(|found| found["code"] == "requirement.unmet");
    assert_eq!(unmet.count(), 9, "{told}");
    assert!(warned.matches("is not met").count() < 4 && warned.contains(" more finding"), "{warned}");
    fleet.controller.stop().await;
}

/// A condition that takes more steps than it may is not false: who runs its task keeps what it has until it can be decided.
#[tokio::test]
async fn w10_05_a_condition_that_has_become_too_costly_takes_no_task_from_a_host_that_runs_it() {
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
    assert!(told(&mut host).await.1.unwrap().left_out.is_empty(), "it is decided, and holds");
    let others: Vec<Value> =
        (0..16).map(|n| json!({"kind": "Node", "name": format!("m{n}"), "nodegroup": "c/g"})).collect();
    fleet.apply(others.into()).await;
    fleet.apply(site("two", 500)).await;
    let (known, task_set) = told(&mut host).await;
    assert_eq!(known.unwrap().labels["ntp"].value, "two");
    assert_eq!(task_set, None, "nobody knows whether the task is to run");
    let finding = fleet.read("/v1/nodes/n").await["findings"][0].clone();
    assert_eq!((&finding["code"], &finding["object"]), (&json!("condition.failed"), &json!("node/n task/costly")));
    assert!(finding["message"].as_str().unwrap().contains("keeps the task set that it has"), "{finding}");
    fleet.apply(site("two", 50)).await;
    let task_set = told(&mut host).await.1.unwrap();
    assert_eq!((ntp(&task_set), task_set.left_out.len()), (&InputValue::Json("\"two\"".into()), 0));
    nothing_was_missed(&fleet).await;
    fleet.controller.stop().await;
}

/// What is told at once may become too large beside the task set that a held host keeps, however small the next one is.
#[tokio::test]
async fn what_a_held_host_keeps_may_make_its_desired_state_too_large() {
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
    assert!(told(&mut host).await.1.is_some());
    hold(&fleet, None).await;
    told(&mut host).await.0.unwrap().hold.expect("the host is told of the hold");
    let is_failed = || fleet.parts().desired.status().count([host.node]).contains_key(&State::Failed);
    for (annotation, is_too_large) in [(1, false), (3_000, true), (1, false)] {
        fleet.apply(site(1, annotation)).await;
        let node = fleet.read("/v1/nodes/n").await;
        assert_eq!(node["findings"].to_string().contains("desired.too_large"), is_too_large, "{}", node["findings"]);
        let explained = fleet.read("/v1/nodes/n/explain?task=ntp").await;
        assert_eq!(explained["set_aside"].to_string().contains("are allowed"), is_too_large, "{explained}");
        assert_eq!(node["state"] == "failed", is_too_large, "{node}");
        // As metrics count it.
        wait_until(|| is_failed() == is_too_large).await;
    }
    fleet.controller.stop().await;
}
