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

/// Holds node n until this time (RFC 3339), or without an end.
async fn hold_node(fleet: &Fleet, until: Option<&str>) {
    let mut hold = json!({"reason": "a disk is changed"});
    if let Some(until) = until {
        hold["until"] = until.into();
    }
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/g", "hold": hold}])).await;
}

/// Removes the hold of node n, by a manifest that no longer contains it.
async fn remove_hold(fleet: &Fleet) {
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/g"}])).await;
}

/// Checks in until the controller sends a desired state. Returns its known part and its task set, each only if it is
/// new to the host.
pub(crate) async fn new_parts(host: &mut Host) -> (Option<Known>, Option<TaskSet>) {
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        let update = host.next_update(100).await;
        if let Some(desired) = update.desired {
            let known = desired.known.map(|bytes| postcard::from_bytes(&bytes).unwrap());
            return (known, desired.task_set.map(|bytes| postcard::from_bytes(&bytes).unwrap()));
        }
    }
    panic!("no desired state arrives");
}

/// Builds a release whose task reads the label `ntp`, and a cluster with this value of the label.
fn site(ntp: &str) -> Value {
    let task = json!({"id": "ntp", "type": "file", "tags": ["common"],
        "parameters": {"path": "/etc/ntp", "template": "server {{ labels.ntp }}\n"}});
    json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"all": {"tags": ["common"]}}, "tags": {"common": {}}, "tasks": [task]},
        {"kind": "Cluster", "name": "c", "release": "site@1", "labels": {"ntp": ntp}},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"]},
    ])
}

/// Returns the value of the label `ntp` that the host receives as an input.
fn ntp_input(task_set: &TaskSet) -> &InputValue {
    &task_set.inputs["labels.ntp"]
}

/// Checks that the reconciler missed no change: neither a full resolve now nor an earlier one finds a node that is not
/// up to date.
async fn assert_nothing_missed(fleet: &Fleet) {
    let missed_count = fleet.components().reconciler.resolve_all_now().await;
    assert_eq!((missed_count, fleet.components().metrics.counters().missed.get()), (Some(0), 0));
}

/// The task set has the label `ntp` as an input. While the node is held, a new value reaches the known part only.
#[tokio::test]
async fn label_is_sent_at_once_and_task_set_when_released() {
    let mut fleet = Fleet::start_reconciled().await;
    fleet.apply(site("one")).await;
    let mut host = fleet.join_group("c/g", "n").await;
    let (known, task_set) = new_parts(&mut host).await;
    assert_eq!(known.unwrap().labels["ntp"].value, "one");
    assert_eq!(*ntp_input(&task_set.unwrap()), InputValue::Json("\"one\"".into()));

    hold_node(&fleet, None).await;
    new_parts(&mut host).await.0.unwrap().hold.expect("the known part contains the hold");
    fleet.apply(site("two")).await;
    let (known, task_set) = new_parts(&mut host).await;
    assert_eq!(known.unwrap().labels["ntp"].value, "two", "the known part is sent at once");
    assert_eq!(task_set, None, "no other task set is released");

    fleet = fleet.restart(reconciled_options()).await;
    let (chain, key) = (host.chain.clone(), host.key.clone_key());
    host.client = fleet.client(chain, key);
    fleet.apply(site("three")).await;
    let (known, task_set) = new_parts(&mut host).await;
    assert_eq!(known.unwrap().labels["ntp"].value, "three");
    assert_eq!(task_set, None, "the hold outlasts the restart");
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

/// The hold ends at a set time, after an hour.
#[tokio::test]
async fn task_set_is_released_when_hold_ends() {
    let clock = Arc::new(fleet::TestClock::default());
    let test_clock = Arc::clone(&clock);
    let fleet = Fleet::start_with(|options| *options = Options { clock: test_clock, ..reconciled_options() }).await;
    fleet.apply(site("one")).await;
    let mut host = fleet.join_group("c/g", "n").await;
    assert!(new_parts(&mut host).await.1.is_some());
    let until = stemma_wire::clock::Clock::unix_seconds(&*clock) + 3600;
    let until = jiff::Timestamp::from_second(until.try_into().unwrap()).unwrap().to_string();
    hold_node(&fleet, Some(&until)).await;
    new_parts(&mut host).await.0.unwrap().hold.expect("the known part contains the hold");
    fleet.apply(site("two")).await;
    assert_eq!(new_parts(&mut host).await.1, None);
    clock.advance(3600);
    assert_eq!(*ntp_input(&new_parts(&mut host).await.1.unwrap()), InputValue::Json("\"two\"".into()));
    assert_nothing_missed(&fleet).await;
    fleet.controller.stop().await;
}

/// The reason for which a task is left out and the order of tasks are not part of the task digest. A change of them
/// releases no task set. The label `tier` changes with each edit, so that the host gets a new known part.
#[tokio::test]
async fn task_set_is_not_released_when_only_profile_changes() {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(ordered_tasks("a", "false", &["ntp"])).await;
    let mut host = fleet.join_group("c/g", "n").await;
    let first_task_set = new_parts(&mut host).await.1.unwrap();
    assert!(first_task_set.left_out["never"].contains("false"));
    let released_record = fleet.read("/v1/nodes/n/resolved").await["released"].clone();
    for (tier, condition, after) in [("b", "1 > 2", &["ntp"][..]), ("c", "1 > 2", &["ntp", "log"]), ("d", "false", &[])] {
        fleet.apply(ordered_tasks(tier, condition, after)).await;
        let (known, task_set) = new_parts(&mut host).await;
        assert_eq!(known.unwrap().labels["tier"].value, tier);
        assert_eq!(task_set, None, "{tier}");
        assert_eq!(fleet.read("/v1/nodes/n/resolved").await["released"], released_record, "{tier}");
    }
    // The host has the first order, in which ntp waits. The present order no longer requires that, so the barrier is
    // open.
    let open_tasks = open_barriers(&fleet, &mut host).await;
    assert!(open_tasks.contains(&"first".to_owned()), "{open_tasks:?}");
    fleet.controller.stop().await;
}

/// Task ntp of node n waits for task `first` of node db. A held host waits at the barriers of the task set that it has,
/// even if the current order of tasks has dropped them.
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
    new_parts(&mut host).await.0.unwrap().hold.expect("the known part contains the hold");
    fleet.apply(ordered_tasks("b", condition, &[])).await;
    let (known, task_set) = new_parts(&mut host).await;
    assert_eq!(known.unwrap().labels["tier"].value, "b");
    assert_eq!(task_set, None, "the host keeps the task set in which ntp waits");
    assert_eq!(open_barriers(&fleet, &mut host).await, Vec::<String>::new(), "ntp waits until the hold ends");
    // The wait also ends when the host's task set is the desired one again. Then barriers that the order has dropped
    // are open. The previous edit already changed the profile, so this edit must open the barrier without a changed
    // profile.
    fleet.apply(ordered_tasks("a", condition, &[])).await;
    let (known, task_set) = new_parts(&mut host).await;
    assert_eq!((known.unwrap().labels["tier"].value.as_str(), task_set), ("a", None));
    assert_eq!(open_barriers(&fleet, &mut host).await, ["first"]);
    fleet.controller.stop().await;
}

/// Task ntp of node n waits for task `first` of node db, until db reports that `first` succeeded.
#[tokio::test]
async fn result_opens_barrier_of_other_host() {
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

/// Returns, for each open barrier of the host, the task that had to succeed on other hosts. The host forgets its
/// desired state first, so the response contains all open barriers. The reconciler publishes a state before its
/// barriers, so this function waits for a full resolve first.
async fn open_barriers(fleet: &Fleet, host: &mut Host) -> Vec<String> {
    assert_nothing_missed(fleet).await;
    host.held_desired = None;
    let update = host.next_update(0).await;
    let open_tasks = update.grants.iter().find_map(|signed| match &signed.grant {
        Grant::Barriers { open: open_tasks, .. } => Some(open_tasks.iter().map(|barrier| barrier.task.clone()).collect()),
        Grant::Lease { .. } => None,
    });
    open_tasks.unwrap_or_default()
}

/// Builds a site in which the tasks in `after` wait for `first` on nodes with tag `db`. Task `never` has `condition`.
fn ordered_tasks(tier: &str, condition: &str, after: &[&str]) -> Value {
    let task = |id: &str, tag: &str| json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
    let mut never_task = task("never", "common");
    never_task["condition"] = condition.into();
    let mut first_task = task("first", "db");
    first_task["cross_depended_by"] = after.iter().map(|id| json!({"name": id, "tags": ["common"]})).collect();
    json!([
        {"kind": "Release", "name": "site", "roles": {"all": {"tags": ["common"]}, "db": {"tags": ["db"]}},
            "tags": {"common": {}, "db": {}}, "tasks": [task("ntp", "common"), task("log", "common"), never_task, first_task]},
        {"kind": "Cluster", "name": "c", "release": "site", "labels": {"tier": tier}},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"]},
    ])
}

/// Two releases with the same content share the results of resolving. Each node's record still has the release of its
/// group. An edit of a release that a node runs is refused.
#[tokio::test]
async fn w01_release_of_group_is_recorded_and_pinned() {
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

/// Waits until the store records a released task set of this release for node n, and returns its JSON form.
async fn wait_until_recorded(fleet: &Fleet, name: &str) -> Value {
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        let released = fleet.read("/v1/nodes/n/resolved").await["released"].clone();
        if released["release"] == name {
            return released;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the task set is not recorded under {name}");
}

/// A node that gets another release with the same content runs the same tasks. Nothing is released. The new release is
/// recorded and pinned, after a restart also in a store of an older version, which has the old name and no pin.
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
    let first_record = wait_until_recorded(&fleet, "site@1").await;

    fleet.apply(json!([{"kind": "Cluster", "name": "c", "release": "site@2", "labels": {"ntp": "one"}}])).await;
    let second_record = wait_until_recorded(&fleet, "site@2").await;
    assert_eq!(
        (&second_record["at"], &second_record["revision"]),
        (&first_record["at"], &first_record["revision"]),
        "nothing was released"
    );
    assert_eq!(fleet.read("/v1/nodes/n/explain?task=ntp").await["release"], "site@2");
    assert_edit_refused(&fleet, &twin).await;

    // A store of an older version has the name of the first release in the record, and no pin of the second release.
    let store = Arc::clone(fleet.components().registry.store());
    let released_key = key::node_entry(key::RELEASED, host.node);
    let entry = store.snapshot().await.unwrap().get(released_key.as_bytes()).await.unwrap().unwrap();
    let record: ReleasedRecord = codec::decode(&entry.value).unwrap();
    let old_record = record.with_release(Some("site@1".to_owned()));
    let write = Transaction::new().put(released_key, codec::encode(&old_record)).delete(key::pin_mark("site@2"));
    store.commit(write).await.unwrap();
    drop(store);
    fleet = fleet.restart(reconciled_options()).await;
    let corrected_record = wait_until_recorded(&fleet, "site@2").await;
    assert_eq!(
        (&corrected_record["at"], &corrected_record["revision"]),
        (&first_record["at"], &first_record["revision"]),
        "nothing was released"
    );
    let list = fleet.components().registry.store().snapshot().await.unwrap().list(&ListQuery::prefix("fixed/")).await.unwrap();
    let pins: Vec<_> = list.entries.iter().map(|entry| String::from_utf8_lossy(&entry.key)).collect();
    assert_eq!(pins, ["fixed/site@1", "fixed/site@2"]);
    assert_edit_refused(&fleet, &twin).await;
    let (chain, key) = (host.chain.clone(), host.key.clone_key());
    host.client = fleet.client(chain, key);
    assert!(
        host.next_update(100).await.desired.is_none_or(|desired| desired.task_set.is_none()),
        "no task set is sent to the host"
    );
    fleet.controller.stop().await;
}

/// Checks that an edit of a task of this release is refused, because the release is in use.
async fn assert_edit_refused(fleet: &Fleet, release: &Value) {
    let mut edited = release.clone();
    edited["tasks"][0]["parameters"]["path"] = "/etc/other".into();
    let (status, body) = fleet.request(Method::POST, "/v1/apply?force=true", &json!({"objects": [edited]})).await;
    assert_eq!((status, &body["error"]["type"]), (409, &json!("object.in_use")), "{body}");
}

/// Each write that brings a node without the required trait into a group lists `requirement.unmet` in its response.
#[tokio::test]
async fn w07_placement_reports_finding_when_node_lacks_required_trait() {
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
        let warning = answer.headers().get("warning").map(|text| text.to_str().unwrap().to_owned());
        let answer: Value = serde_json::from_slice(answer.body()).unwrap();
        let expected_finding = json!({"severity": "error", "code": "requirement.unmet", "object": format!("node/{name}"),
            "message": "requirement trait:CUSTOM_FAST required is not met: the node lacks it"});
        let findings = answer["findings"].as_array().unwrap();
        assert_eq!(findings.contains(&expected_finding), name != "able", "{name}: {answer}");
        // All responses about a node without the trait except that of the apply also have a warning (y09).
        let expected_warning =
            format!("error: requirement trait:CUSTOM_FAST required is not met by {name} (the node lacks it): ");
        let has_warning = |text: &String| text.contains(&expected_warning);
        assert_eq!(warning.as_ref().is_some_and(has_warning), ["n", "late"].contains(&name), "{name}: {warning:?}");
    }
    fleet.controller.stop().await;
}

/// A repeated edit changes nothing, so it has no warning.
#[tokio::test]
async fn w07_requirement_edit_warns_about_unmet_nodes() {
    let fleet = Fleet::start_reconciled().await;
    let mut objects = site("one");
    let node = |name: &str| json!({"kind": "Node", "name": name, "nodegroup": "c/g"});
    objects.as_array_mut().unwrap().extend(["n1", "n2", "n3", "n4", "n5"].map(node));
    objects.as_array_mut().unwrap().push(json!({"kind": "Node", "name": "able", "nodegroup": "c/g", "traits": ["CUSTOM_FAST"]}));
    fleet.apply(objects).await;
    let edit = json!([{"op": "replace", "path": "/requirements", "value": {"trait:CUSTOM_FAST": "required"}}]);
    for is_first_edit in [true, false] {
        let answer = fleet.request_raw(Method::PATCH, "/v1/clusters/c/nodegroups/g", &edit).await;
        let warning = answer.headers().get("warning").map(|text| text.to_str().unwrap().to_owned());
        let expected_text =
            "trait:CUSTOM_FAST required is not met by n1, n2, n3 and 2 more: the next task set is withheld until it is met";
        assert_eq!(warning.as_ref().is_some_and(|text| text.contains(expected_text)), is_first_edit, "{warning:?}");
    }
    // However many requirements are unmet, the header lists the first ones and the body lists all.
    let groups = (0..9).map(|index| {
        json!({"kind": "NodeGroup", "cluster": "c", "name": format!("g{index}"), "requirements": {"label:os": format!("s!= x{index}")}})
    });
    let nodes = (0..9).map(|index| json!({"kind": "Node", "name": format!("m{index}"), "nodegroup": format!("c/g{index}")}));
    fleet.request_raw(Method::PATCH, "/v1/clusters/c", &json!([{"op": "add", "path": "/labels/os", "value": "x"}])).await;
    fleet.apply(groups.chain(nodes).collect()).await;
    let answer = fleet.request_raw(Method::PATCH, "/v1/clusters/c", &json!([{"op": "remove", "path": "/labels/os"}])).await;
    let warning = answer.headers().get("warning").unwrap().to_str().unwrap().to_owned();
    let body: Value = serde_json::from_slice(answer.body()).unwrap();
    let unmet_findings = body["findings"].as_array().unwrap().iter().filter(|finding| finding["code"] == "requirement.unmet");
    assert_eq!(unmet_findings.count(), 9, "{body}");
    assert!(warning.matches("is not met").count() < 4 && warning.contains(" more finding"), "{warning}");
    fleet.controller.stop().await;
}

/// A condition that would exceed its step limit, which shrinks with the number of nodes, is not evaluated. A host that
/// runs the task of such a condition keeps its task set until the condition can be evaluated.
#[tokio::test]
async fn w10_05_costly_condition_keeps_task_on_running_host() {
    let fleet = Fleet::start_reconciled().await;
    let site = |ntp: &str, element_count: u32| {
        let mut objects = site(ntp);
        let mut costly = objects[0]["tasks"][0].clone();
        costly["id"] = "costly".into();
        costly["condition"] = "params.many.exists(a, params.many.exists(b, a < b))".into();
        costly["parameters"]["path"] = "/etc/costly".into();
        objects[0]["tasks"].as_array_mut().unwrap().push(costly);
        objects[1]["parameters"] = json!({"many": (0..element_count).collect::<Vec<_>>()});
        objects
    };
    fleet.apply(site("one", 500)).await;
    let mut host = fleet.join_group("c/g", "n").await;
    assert!(new_parts(&mut host).await.1.unwrap().left_out.is_empty(), "the condition is evaluated and is true");
    // All nodes of a cluster share one budget of condition steps, which 17 nodes exceed.
    let other_nodes: Vec<Value> = (0..16).map(|n| json!({"kind": "Node", "name": format!("m{n}"), "nodegroup": "c/g"})).collect();
    fleet.apply(other_nodes.into()).await;
    fleet.apply(site("two", 500)).await;
    let (known, task_set) = new_parts(&mut host).await;
    assert_eq!(known.unwrap().labels["ntp"].value, "two");
    assert_eq!(task_set, None, "it is unknown whether the task must run");
    let finding = fleet.read("/v1/nodes/n").await["findings"][0].clone();
    assert_eq!((&finding["code"], &finding["object"]), (&json!("condition.failed"), &json!("node/n task/costly")));
    assert!(finding["message"].as_str().unwrap().contains("keeps the task set that it has"), "{finding}");
    fleet.apply(site("two", 50)).await;
    let task_set = new_parts(&mut host).await.1.unwrap();
    assert_eq!((ntp_input(&task_set), task_set.left_out.len()), (&InputValue::Json("\"two\"".into()), 0));
    assert_nothing_missed(&fleet).await;
    fleet.controller.stop().await;
}

/// A desired state has at most 256 KiB. The held task set has 120,000 bytes of parameters, so annotations of 150,000
/// bytes do not fit. They would fit with the next task set, which is small.
#[tokio::test]
async fn held_task_set_can_make_desired_state_too_large() {
    let fleet = Fleet::start_reconciled().await;
    let site = |parameter_bytes: usize, annotation_bytes: usize| {
        let mut objects = site("one");
        objects[0]["tasks"][0]["parameters"]["template"] = "{{ params.a }}{{ params.b }}".into();
        objects[1]["parameters"] = json!({"a": "v".repeat(parameter_bytes)});
        objects[2]["parameters"] = json!({"b": "v".repeat(parameter_bytes)});
        let text = |n: u32| (format!("a{n}"), "v".repeat(annotation_bytes).into());
        objects[1]["annotations"] = (0..50).map(text).collect::<serde_json::Map<String, Value>>().into();
        objects
    };
    fleet.apply(site(60_000, 1)).await;
    let mut host = fleet.join_group("c/g", "n").await;
    assert!(new_parts(&mut host).await.1.is_some());
    hold_node(&fleet, None).await;
    new_parts(&mut host).await.0.unwrap().hold.expect("the known part contains the hold");
    let is_failed = || fleet.components().desired.status().count_states([host.node]).contains_key(&State::Failed);
    for (annotation_bytes, is_too_large) in [(1, false), (3_000, true), (1, false)] {
        fleet.apply(site(1, annotation_bytes)).await;
        let node = fleet.read("/v1/nodes/n").await;
        assert_eq!(node["findings"].to_string().contains("desired.too_large"), is_too_large, "{}", node["findings"]);
        let explanation = fleet.read("/v1/nodes/n/explain?task=ntp").await;
        assert_eq!(explanation["set_aside"].to_string().contains("are allowed"), is_too_large, "{explanation}");
        assert_eq!(node["state"] == "failed", is_too_large, "{node}");
        // The metrics count the same state.
        wait_until(|| is_failed() == is_too_large).await;
    }
    fleet.controller.stop().await;
}
