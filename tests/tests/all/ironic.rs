//! Nodes and allocations as Ironic's clients use them, through the real listener: the given vectors, and many
//! concurrent allocations while the controller is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use stemma_tests::fleet::{ListenerAddresses, TempFleet};
use stemma_tests::operator::{OperatorClient, OperatorWrite};
use stemma_tests::shared;
use uuid::Uuid;

fn read_vectors(name: &str) -> Result<Option<Value>> {
    let Some(path) = shared::path(&format!("vectors/traits/{name}")) else { return Ok(None) };
    Ok(Some(serde_json::from_str(&std::fs::read_to_string(path)?)?))
}

/// Sends a request that must be answered with this status.
fn expect_status(operator: &mut OperatorClient, method: &str, path: &str, body: &Value, status: u16) -> Result<Value> {
    let (found, answer) = operator.send_typed(method, path, "application/json", body)?;
    ensure!(found == status, "{method} {path} {body}: {found} {answer}");
    Ok(answer)
}

#[test]
fn nodes_are_filtered_by_traits_of_vectors() -> Result<()> {
    let Some(vectors) = read_vectors("trait_filter.json")? else { return Ok(()) };
    for (set, nodes) in vectors["node_sets"].as_object().context("sets")? {
        let fleet = TempFleet::start()?;
        let operator = &mut OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
        for node in nodes.as_array().context("nodes")? {
            let name = node["name"].as_str().context("a name")?;
            expect_status(operator, "POST", "/v1/nodes", &json!({"name": name, "driver": "fake"}), 201)?;
            expect_status(operator, "PUT", &format!("/v1/nodes/{name}/traits"), &json!({"traits": node["traits"]}), 200)?;
        }
        for case in vectors["cases"].as_array().context("cases")?.iter().filter(|case| case["nodes"] == *set) {
            let query = case["query_string"].as_str().context("a query")?;
            let list = expect_status(operator, "GET", &format!("/v1/nodes?{query}"), &Value::Null, 200)?;
            let names: Value = list["nodes"].as_array().context("nodes")?.iter().map(|one| one["name"].clone()).collect();
            assert_eq!(names, case["expected"], "{query}");
        }
    }
    Ok(())
}

#[test]
fn traits_are_accepted_or_refused_like_vectors() -> Result<()> {
    let Some(vectors) = read_vectors("traits_validation.json")? else { return Ok(()) };
    let fleet = TempFleet::start()?;
    let operator = &mut OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    expect_status(operator, "POST", "/v1/nodes", &json!({"name": "n"}), 201)?;
    for case in vectors.as_array().context("cases")? {
        let valid = case.get("recommended_valid").unwrap_or(&case["valid"]);
        let (status, answer) =
            operator.send_typed("PUT", "/v1/nodes/n/traits", "application/json", &json!({"traits": [case["trait"]]}))?;
        assert_eq!(status, if *valid == true { 200 } else { 400 }, "{case}: {answer}");
    }
    Ok(())
}

#[test]
fn node_validation_checks_traits_of_instance() -> Result<()> {
    let Some(vectors) = read_vectors("instance_info_traits.json")? else { return Ok(()) };
    let fleet = TempFleet::start()?;
    let operator = &mut OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    let group = json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}]);
    expect_status(operator, "POST", "/v1/apply", &json!({"objects": group}), 200)?;
    for (case, number) in vectors.as_array().context("cases")?.iter().zip(0..) {
        let uuid = Uuid::from_u64_pair(0x1111_1111_1111_4111, 0x8000_0000_0000_0000 | number);
        let body = json!({"uuid": uuid, "name": format!("n{number}"), "instance_info": case["instance_info"]});
        expect_status(operator, "POST", "/v1/nodes", &body, 201)?;
        let at = format!("/v1/nodes/n{number}");
        expect_status(operator, "PUT", &format!("{at}/traits"), &json!({"traits": case["node_traits"]}), 200)?;
        let deploy = expect_status(operator, "GET", &format!("{at}/validate"), &Value::Null, 200)?["deploy"].clone();
        let reason = case["message"].as_str().map(|text| text.replace("11111111-2222-4333-8444-555555555555", &uuid.to_string()));
        let expected = reason.map_or_else(|| json!({"result": true}), |reason| json!({"result": false, "reason": reason}));
        assert_eq!(deploy, expected, "{case}");
        let named = expect_status(operator, "GET", &format!("/v1/nodes/validate?node=n{number}"), &Value::Null, 200)?;
        assert_eq!(named["deploy"], expected, "{case}");
        // Uses the node: sets it active, and moves it into a group.
        let fits = case["ok"] == true;
        let (status, answer) =
            operator.send_typed("PUT", &format!("{at}/states/provision"), "application/json", &json!({"target": "active"}))?;
        assert_eq!(status, if fits { 202 } else { 400 }, "{case}: {answer}");
        let state = expect_status(operator, "GET", &format!("{at}/states"), &Value::Null, 200)?["provision_state"].clone();
        assert_eq!(state, if fits { "active" } else { "enroll" }, "{case}");
        let (status, answer) = operator.send_typed("PATCH", &at, "application/merge-patch+json", &json!({"nodegroup": "c/g"}))?;
        assert_eq!(status, if fits { 200 } else { 400 }, "{case}: {answer}");
    }
    Ok(())
}

#[test]
fn maintenance_parks_node() -> Result<()> {
    let fleet = TempFleet::start()?;
    let operator = &mut OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    expect_status(operator, "POST", "/v1/nodes", &json!({"name": "n"}), 201)?;
    for (method, body, parked, reason) in [
        ("PUT", json!({"reason": "a disk"}), true, json!("a disk")),
        ("PUT", Value::Null, true, Value::Null),
        ("DELETE", Value::Null, false, Value::Null),
    ] {
        expect_status(operator, method, "/v1/nodes/n/maintenance", &body, 202)?;
        let node = expect_status(operator, "GET", "/v1/nodes/n", &Value::Null, 200)?;
        assert_eq!(
            [&node["maintenance"], &node["parked"], &node["maintenance_reason"]],
            [&json!(parked), &json!(parked), &reason]
        );
    }
    expect_status(operator, "PUT", "/v1/nodes/n/maintenance", &json!({"until": "x"}), 400)?;
    for target in ["inspect", "clean"] {
        expect_status(operator, "PUT", "/v1/nodes/n/states/provision", &json!({"target": target}), 400)?;
    }
    Ok(())
}

/// Nodes that Ironic skips because of a state of their machine, which Stemma does not manage.
const UNAVAILABLE_IN_IRONIC: [&str; 3] = ["n08", "n09", "n17"];

#[test]
fn allocation_candidates_match_vectors() -> Result<()> {
    let Some(vectors) = read_vectors("allocations_traits.json")? else { return Ok(()) };
    let fleet = TempFleet::start()?;
    let operator = &mut OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for node in vectors["nodes"].as_array().context("nodes")? {
        let mut body = node.clone();
        let fields = body.as_object_mut().context("a node")?;
        fields.retain(|name, _| !matches!(name.as_str(), "traits" | "provision_state" | "power_state" | "reservation"));
        let made = expect_status(operator, "POST", "/v1/nodes", &body, 201)?;
        let name = node["name"].as_str().context("a name")?;
        expect_status(operator, "PUT", &format!("/v1/nodes/{name}/traits"), &json!({"traits": node["traits"]}), 200)?;
        names.insert(made["uuid"].as_str().context("a uuid")?.to_owned(), name.to_owned());
    }
    let given = |name: &Value| name.as_str().is_some_and(|name| names.values().any(|own| own == name));
    for case in vectors["cases"].as_array().context("cases")? {
        let mut body = case["allocation"].clone();
        body.as_object_mut().context("an allocation")?.remove("name");
        if let Some(candidates) = body["candidate_nodes"].as_array().cloned() {
            let candidates: Vec<Value> = candidates.into_iter().filter(given).collect();
            if candidates.is_empty() {
                continue;
            }
            body["candidate_nodes"] = candidates.into();
        } else {
            body.as_object_mut().context("an allocation")?.remove("candidate_nodes");
        }
        let (taken, error, made) = allocate_all_nodes(operator, &body, &names)?;
        let listed = |name: &&str| !UNAVAILABLE_IN_IRONIC.contains(name);
        let taken: BTreeSet<&str> = taken.iter().map(String::as_str).filter(listed).collect();
        let expected = case["candidates"].as_array().context("candidates")?.iter().filter(|name| given(name));
        let expected: BTreeSet<&str> = expected.filter_map(Value::as_str).collect();
        assert_eq!(taken, expected, "{case}");
        if made == 1
            && let Some(sentence) = case["error"].as_str()
        {
            assert!(error.contains(sentence), "{error}\n{case}");
        }
    }
    Ok(())
}

/// Allocates nodes until none is left, then deletes all allocations. Returns the names of the allocated nodes, the
/// error of the last allocation, and the number of allocations.
fn allocate_all_nodes(
    operator: &mut OperatorClient,
    body: &Value,
    names: &BTreeMap<String, String>,
) -> Result<(BTreeSet<String>, String, usize)> {
    let (mut taken, mut made) = (BTreeSet::new(), Vec::new());
    let error = loop {
        let allocation = expect_status(operator, "POST", "/v1/allocations", body, 201)?;
        made.push(allocation["uuid"].as_str().context("a uuid")?.to_owned());
        match allocation["node_uuid"].as_str() {
            Some(node) => ensure!(taken.insert(names[node].clone()), "{allocation}: taken twice"),
            None => break allocation["last_error"].as_str().context("an error")?.to_owned(),
        }
    };
    for uuid in &made {
        expect_status(operator, "DELETE", &format!("/v1/allocations/{uuid}"), &Value::Null, 204)?;
    }
    Ok((taken, error, made.len()))
}

#[test]
fn allocation_shows_reason_and_binds_node() -> Result<()> {
    let fleet = TempFleet::start()?;
    let operator = &mut OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    for (name, memory, traits) in
        [("n10", 64, json!(["CUSTOM_A"])), ("n9", 64, json!(["CUSTOM_A"])), ("n1", 128, json!(["CUSTOM_A"]))]
    {
        let body = json!({"name": name, "resource_class": "rc", "properties": {"memory_gb": memory}});
        expect_status(operator, "POST", "/v1/nodes", &body, 201)?;
        expect_status(operator, "PUT", &format!("/v1/nodes/{name}/traits"), &json!({"traits": traits}), 200)?;
    }
    let wanted =
        json!({"name": "job", "resource_class": "rc", "traits": ["CUSTOM_A"], "requirements": {"property:memory_gb": ">= 48"}});
    let made = expect_status(operator, "POST", "/v1/allocations", &wanted, 201)?;
    assert_eq!([&made["state"], &made["last_error"]], [&json!("active"), &Value::Null], "{made}");
    let why = json!({"candidates": 3, "surplus_traits": [], "to_spare": {"property:memory_gb": 16.0}});
    assert_eq!(made["explanation"], why);
    let node = expect_status(operator, "GET", "/v1/nodes/n9", &Value::Null, 200)?;
    assert_eq!(
        [&node["uuid"], &node["instance_uuid"], &node["allocation_uuid"]],
        [&made["node_uuid"], &made["uuid"], &made["uuid"]]
    );
    assert_eq!(node["instance_info"], json!({"traits": ["CUSTOM_A"]}));
    assert_eq!(expect_status(operator, "GET", "/v1/nodes/n9/allocation", &Value::Null, 200)?["uuid"], made["uuid"]);
    expect_status(operator, "GET", "/v1/nodes/n10/allocation", &Value::Null, 404)?;
    // Writes that would end the use of a node in use are refused.
    expect_status(operator, "DELETE", "/v1/nodes/n9", &Value::Null, 409)?;
    let other = json!([{"op": "remove", "path": "/instance_uuid"}]);
    expect_status(operator, "PATCH", "/v1/nodes/n9", &other, 409)?;
    let resized = json!([{"op": "replace", "path": "/resource_class", "value": "other"}]);
    expect_status(operator, "PATCH", "/v1/allocations/job", &resized, 400)?;
    let noted =
        json!([{"op": "add", "path": "/extra/ticket", "value": "7"}, {"op": "replace", "path": "/name", "value": "job2"}]);
    assert_eq!(expect_status(operator, "PATCH", "/v1/allocations/job", &noted, 200)?["extra"], json!({"ticket": "7"}));
    for (query, found) in [("state=active", 1), ("state=error", 0), ("node=n9", 1), ("node=n1", 0), ("resource_class=rc", 1)] {
        let list = expect_status(operator, "GET", &format!("/v1/allocations?{query}"), &Value::Null, 200)?;
        assert_eq!(list["allocations"].as_array().map(Vec::len), Some(found), "{query}");
    }
    for (body, status) in [
        (json!({"traits": []}), 400),
        (json!({"resource_class": "rc", "traits": ["nope"]}), 400),
        (json!({"resource_class": "rc", "candidate_nodes": ["nobody"]}), 400),
        (json!({"resource_class": "rc", "name": "job2"}), 409),
        (json!({"resource_class": "rc", "node": "n1"}), 400),
    ] {
        expect_status(operator, "POST", "/v1/allocations", &body, status)?;
    }
    expect_status(operator, "DELETE", "/v1/nodes/n9/allocation", &Value::Null, 204)?;
    let freed = expect_status(operator, "GET", "/v1/nodes/n9", &Value::Null, 200)?;
    assert_eq!([&freed["instance_uuid"], &freed["allocation_uuid"]], [&Value::Null; 2]);
    // The same with the operator's command.
    assert!(
        fleet
            .stemma(&["create", "allocation", "job3", "--resource-class", "rc", "--trait", "CUSTOM_A"])?
            .starts_with("allocation job3 has node ")
    );
    assert!(fleet.stemma(&["get", "allocations"])?.contains("job3"));
    fleet.stemma(&["delete", "allocation", "job3"])?;
    // An allocation that finds no node is stored, so something was changed. The error names the command that deletes it
    // (y09).
    let (out, said, status) = fleet.run_cli(&["create", "allocation", "job4", "--resource-class", "nosuch"])?;
    let stored = expect_status(operator, "GET", "/v1/allocations/job4", &Value::Null, 200)?;
    let reason = stored["last_error"].as_str().context("a reason")?;
    assert_eq!((status, stored["state"].as_str()), (1, Some("error")), "{said}");
    assert!(out.contains("job4 created without a node, in state error"), "{out}");
    assert!(said.contains(&format!("error: allocation job4 exists in state error: {reason}\n")), "{said}");
    assert!(said.contains("stemma delete allocation job4") && !said.contains("nothing was changed"), "{said}");
    fleet.stemma(&["delete", "allocation", "job4"])?;
    Ok(())
}

/// Number of nodes, and of allocations.
const NODE_COUNT: usize = 1_000;
/// Number of connections that write concurrently.
const CONNECTION_COUNT: usize = 200;
/// Number of answers after which the controller is killed.
const ANSWERS_BEFORE_KILL: usize = 400;

fn allocation_write(number: usize) -> OperatorWrite {
    let body = json!({"name": format!("job-{number}"), "resource_class": "rc", "traits": ["CUSTOM_A"]});
    let key = Uuid::from_u64_pair(0x0198_c0de_0000_7000, 0x8000_0000_0000_0000 | number as u64);
    OperatorWrite { method: "POST", path: "/v1/allocations".to_owned(), body, key }
}

/// The data directory of a controller, which has the admin's credentials, and its addresses.
type ControllerAddress = (PathBuf, ListenerAddresses);

/// The answers by number: the UUIDs of the allocation and of its node.
type AnswerMap = BTreeMap<usize, [String; 2]>;

/// Allocates until no number is left or the controller no longer answers. Calls `on_answer` after each answer. Returns
/// all answers.
fn allocate_on_connection(
    operator: &mut OperatorClient,
    numbers: &[usize],
    next: &AtomicUsize,
    on_answer: &(impl Fn() -> Result<()> + Sync),
) -> Result<AnswerMap> {
    let mut done = AnswerMap::new();
    while let Some(number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
        match operator.write(&allocation_write(*number)) {
            // Too many requests wait. The caller sends this one again under the same key.
            Ok((503, _)) => std::thread::sleep(Duration::from_millis(100)),
            Ok((status, body)) => {
                ensure!(status == 201 && body["state"] == "active", "{number}: {status} {body}");
                let given = |field: &str| body[field].as_str().map(str::to_owned).context("an active one has a node");
                done.insert(*number, [given("uuid")?, given("node_uuid")?]);
                on_answer()?;
            }
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Allocates on all connections concurrently.
fn allocate_on_connections(
    (data, bound): &ControllerAddress,
    numbers: &[usize],
    on_answer: impl Fn() -> Result<()> + Sync,
) -> Result<AnswerMap> {
    let operators = (0..CONNECTION_COUNT).map(|_| OperatorClient::from_data(data, bound)).collect::<Result<Vec<_>>>()?;
    let (next, on_answer) = (&AtomicUsize::new(0), &on_answer);
    std::thread::scope(|scope| {
        let start =
            |mut operator: OperatorClient| scope.spawn(move || allocate_on_connection(&mut operator, numbers, next, on_answer));
        let threads: Vec<_> = operators.into_iter().map(start).collect();
        let mut done = AnswerMap::new();
        for thread in threads {
            done.extend(thread.join().expect("no writer panics")?);
        }
        Ok(done)
    })
}

/// Checks that each answered allocation still exists: the same one, not another that was created again under its name.
fn check_answers(allocations: &[Value], answered: &AnswerMap) {
    let of_one = |one: &Value| Some([one["uuid"].as_str()?.to_owned(), one["node_uuid"].as_str()?.to_owned()]);
    let there: BTreeMap<&str, [String; 2]> =
        allocations.iter().filter_map(|one| Some((one["name"].as_str()?, of_one(one)?))).collect();
    for (number, answer) in answered {
        assert_eq!(there.get(format!("job-{number}").as_str()), Some(answer), "job-{number}");
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "how long it took")]
fn allocations_take_distinct_nodes_when_controller_is_killed() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    let node =
        |number: usize| json!({"kind": "Node", "name": format!("n{number}"), "resource_class": "rc", "traits": ["CUSTOM_A"]});
    let objects: Vec<Value> = (0..NODE_COUNT).map(node).collect();
    expect_status(&mut operator, "POST", "/v1/apply", &json!({"objects": objects}), 200)?;
    let (began, answered) = (Instant::now(), AtomicUsize::new(0));
    let reached: ControllerAddress = (fleet.data(), fleet.addresses().clone());
    let mut left: Vec<usize> = (0..NODE_COUNT).collect();
    // The thread that gets this answer kills the controller. A separate waiting thread might be scheduled only after
    // all are answered.
    let controller = i32::try_from(fleet.controller_id().context("the controller runs")?)?;
    let controller = Pid::from_raw(controller).context("a process")?;
    let kept = allocate_on_connections(&reached, &left, || {
        let number = answered.fetch_add(1, Ordering::Relaxed) + 1;
        if number == ANSWERS_BEFORE_KILL {
            kill_process(controller, Signal::KILL)?;
        }
        Ok(())
    })?;
    fleet.kill_controller()?;
    ensure!((ANSWERS_BEFORE_KILL..NODE_COUNT).contains(&kept.len()), "{} were answered before the kill", kept.len());
    fleet.start_controller()?;
    let reached: ControllerAddress = (fleet.data(), fleet.addresses().clone());
    // The answered allocations are requested again too. Each of them was created once.
    left.rotate_left(ANSWERS_BEFORE_KILL);
    let mut done = AnswerMap::new();
    while done.len() < NODE_COUNT {
        let missing: Vec<usize> = left.iter().copied().filter(|number| !done.contains_key(number)).collect();
        done.extend(allocate_on_connections(&reached, &missing, || Ok(()))?);
    }
    println!("{} answered before the kill, all in {:?}", kept.len(), began.elapsed());
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    let list = expect_status(&mut operator, "GET", "/v1/allocations", &Value::Null, 200)?;
    let allocations = list["allocations"].as_array().context("allocations")?;
    let nodes: BTreeSet<&str> = allocations.iter().filter_map(|one| one["node_uuid"].as_str()).collect();
    assert_eq!((allocations.len(), nodes.len()), (NODE_COUNT, NODE_COUNT));
    check_answers(allocations, &kept);
    check_answers(allocations, &done);
    let list = expect_status(&mut operator, "GET", "/v1/nodes?fields=uuid,instance_uuid", &Value::Null, 200)?;
    let held: BTreeMap<&str, &str> = (list["nodes"].as_array().context("nodes")?.iter())
        .filter_map(|node| Some((node["uuid"].as_str()?, node["instance_uuid"].as_str()?)))
        .collect();
    for one in allocations {
        let node = one["node_uuid"].as_str().context("a node")?;
        assert_eq!(held.get(node).copied(), one["uuid"].as_str(), "{one}");
    }
    let surplus = expect_status(&mut operator, "POST", "/v1/allocations", &json!({"resource_class": "rc"}), 201)?;
    let none = format!(
        "Failed to process allocation {}: no available nodes match the resource class rc. Of that class there are 1000 used already.",
        surplus["uuid"].as_str().context("a uuid")?
    );
    assert_eq!([&surplus["state"], &surplus["last_error"]], [&json!("error"), &json!(none)]);
    Ok(())
}
