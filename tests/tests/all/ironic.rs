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

/// Returns the test vectors in a shared file: inputs and the results that Ironic gives for them. Returns `None` if the
/// shared test material is missing.
fn read_vectors(name: &str) -> Result<Option<Value>> {
    let Some(path) = shared::path(&format!("vectors/traits/{name}")) else { return Ok(None) };
    Ok(Some(serde_json::from_str(&std::fs::read_to_string(path)?)?))
}

/// Sends a request that must be answered with this status. Returns the body of the response.
fn expect_status(operator: &mut OperatorClient, method: &str, path: &str, body: &Value, status: u16) -> Result<Value> {
    let (found, answer) = operator.send_typed(method, path, "application/json", body)?;
    ensure!(found == status, "{method} {path} {body}: {found} {answer}");
    Ok(answer)
}

/// Each set of nodes of the vectors is created in a fleet of its own. A list with the query of a case must contain
/// exactly the expected nodes.
#[test]
fn nodes_are_filtered_by_traits_of_vectors() -> Result<()> {
    let Some(vectors) = read_vectors("trait_filter.json")? else { return Ok(()) };
    for (set_name, nodes) in vectors["node_sets"].as_object().context("sets")? {
        let fleet = TempFleet::start()?;
        let operator = &mut OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
        for node in nodes.as_array().context("nodes")? {
            let name = node["name"].as_str().context("a name")?;
            expect_status(operator, "POST", "/v1/nodes", &json!({"name": name, "driver": "fake"}), 201)?;
            expect_status(operator, "PUT", &format!("/v1/nodes/{name}/traits"), &json!({"traits": node["traits"]}), 200)?;
        }
        for case in vectors["cases"].as_array().context("cases")?.iter().filter(|case| case["nodes"] == *set_name) {
            let query = case["query_string"].as_str().context("a query")?;
            let list = expect_status(operator, "GET", &format!("/v1/nodes?{query}"), &Value::Null, 200)?;
            let names: Value = list["nodes"].as_array().context("nodes")?.iter().map(|node| node["name"].clone()).collect();
            assert_eq!(names, case["expected"], "{query}");
        }
    }
    Ok(())
}

/// If a case has `recommended_valid`, Stemma follows it instead of Ironic's own result `valid`.
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

/// A node is valid if it has the traits that its field `instance_info` requires. An invalid node cannot be used: it
/// cannot become active, and cannot be moved into a group.
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
        let path = format!("/v1/nodes/n{number}");
        expect_status(operator, "PUT", &format!("{path}/traits"), &json!({"traits": case["node_traits"]}), 200)?;
        let deploy = expect_status(operator, "GET", &format!("{path}/validate"), &Value::Null, 200)?["deploy"].clone();
        // The message of the vector contains this fixed UUID instead of the UUID of the created node.
        let reason = case["message"].as_str().map(|text| text.replace("11111111-2222-4333-8444-555555555555", &uuid.to_string()));
        let expected = reason.map_or_else(|| json!({"result": true}), |reason| json!({"result": false, "reason": reason}));
        assert_eq!(deploy, expected, "{case}");
        let validation = expect_status(operator, "GET", &format!("/v1/nodes/validate?node=n{number}"), &Value::Null, 200)?;
        assert_eq!(validation["deploy"], expected, "{case}");
        // Uses the node: sets it active, and moves it into a group.
        let is_valid = case["ok"] == true;
        let (status, answer) =
            operator.send_typed("PUT", &format!("{path}/states/provision"), "application/json", &json!({"target": "active"}))?;
        assert_eq!(status, if is_valid { 202 } else { 400 }, "{case}: {answer}");
        let state = expect_status(operator, "GET", &format!("{path}/states"), &Value::Null, 200)?["provision_state"].clone();
        assert_eq!(state, if is_valid { "active" } else { "enroll" }, "{case}");
        let (status, answer) =
            operator.send_typed("PATCH", &path, "application/merge-patch+json", &json!({"nodegroup": "c/g"}))?;
        assert_eq!(status, if is_valid { 200 } else { 400 }, "{case}: {answer}");
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
    // An unknown field and targets that Stemma does not support are refused.
    expect_status(operator, "PUT", "/v1/nodes/n/maintenance", &json!({"until": "x"}), 400)?;
    for target in ["inspect", "clean"] {
        expect_status(operator, "PUT", "/v1/nodes/n/states/provision", &json!({"target": target}), 400)?;
    }
    Ok(())
}

/// Nodes of the vectors that Ironic does not allocate because of their provision or power state. Stemma does not manage
/// these states, so it allocates these nodes.
const UNAVAILABLE_IN_IRONIC: [&str; 3] = ["n08", "n09", "n17"];

/// Allocates all nodes that fit the request of each case. They must be the candidates that the vector expects, except
/// nodes that Ironic alone excludes.
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
        let created = expect_status(operator, "POST", "/v1/nodes", &body, 201)?;
        let name = node["name"].as_str().context("a name")?;
        expect_status(operator, "PUT", &format!("/v1/nodes/{name}/traits"), &json!({"traits": node["traits"]}), 200)?;
        names.insert(created["uuid"].as_str().context("a uuid")?.to_owned(), name.to_owned());
    }
    let is_created = |name: &Value| name.as_str().is_some_and(|name| names.values().any(|created_name| created_name == name));
    for case in vectors["cases"].as_array().context("cases")? {
        let mut body = case["allocation"].clone();
        body.as_object_mut().context("an allocation")?.remove("name");
        if let Some(candidates) = body["candidate_nodes"].as_array().cloned() {
            let candidates: Vec<Value> = candidates.into_iter().filter(is_created).collect();
            // A request without an existing candidate would be refused.
            if candidates.is_empty() {
                continue;
            }
            body["candidate_nodes"] = candidates.into();
        } else {
            body.as_object_mut().context("an allocation")?.remove("candidate_nodes");
        }
        let (allocated, error, allocation_count) = allocate_all_nodes(operator, &body, &names)?;
        let is_available_in_ironic = |name: &&str| !UNAVAILABLE_IN_IRONIC.contains(name);
        let allocated: BTreeSet<&str> = allocated.iter().map(String::as_str).filter(is_available_in_ironic).collect();
        let expected = case["candidates"].as_array().context("candidates")?.iter().filter(|name| is_created(name));
        let expected: BTreeSet<&str> = expected.filter_map(Value::as_str).collect();
        assert_eq!(allocated, expected, "{case}");
        // If the first allocation found no node, its error must be the error of the vector.
        if allocation_count == 1
            && let Some(sentence) = case["error"].as_str()
        {
            assert!(error.contains(sentence), "{error}\n{case}");
        }
    }
    Ok(())
}

/// Allocates nodes until an allocation finds no node, then deletes all allocations. `names` has the name of each node
/// by its UUID. Returns the names of the allocated nodes, the error of the last allocation, and the number of
/// allocations.
fn allocate_all_nodes(
    operator: &mut OperatorClient,
    body: &Value,
    names: &BTreeMap<String, String>,
) -> Result<(BTreeSet<String>, String, usize)> {
    let (mut allocated, mut uuids) = (BTreeSet::new(), Vec::new());
    let error = loop {
        let allocation = expect_status(operator, "POST", "/v1/allocations", body, 201)?;
        uuids.push(allocation["uuid"].as_str().context("a uuid")?.to_owned());
        match allocation["node_uuid"].as_str() {
            Some(node) => ensure!(allocated.insert(names[node].clone()), "{allocation}: the node is allocated already"),
            None => break allocation["last_error"].as_str().context("an error")?.to_owned(),
        }
    };
    for uuid in &uuids {
        expect_status(operator, "DELETE", &format!("/v1/allocations/{uuid}"), &Value::Null, 204)?;
    }
    Ok((allocated, error, uuids.len()))
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
    let request =
        json!({"name": "job", "resource_class": "rc", "traits": ["CUSTOM_A"], "requirements": {"property:memory_gb": ">= 48"}});
    let allocation = expect_status(operator, "POST", "/v1/allocations", &request, 201)?;
    assert_eq!([&allocation["state"], &allocation["last_error"]], [&json!("active"), &Value::Null], "{allocation}");
    let explanation = json!({"candidates": 3, "surplus_traits": [], "to_spare": {"property:memory_gb": 16.0}});
    assert_eq!(allocation["explanation"], explanation);
    let node = expect_status(operator, "GET", "/v1/nodes/n9", &Value::Null, 200)?;
    assert_eq!(
        [&node["uuid"], &node["instance_uuid"], &node["allocation_uuid"]],
        [&allocation["node_uuid"], &allocation["uuid"], &allocation["uuid"]]
    );
    assert_eq!(node["instance_info"], json!({"traits": ["CUSTOM_A"]}));
    assert_eq!(expect_status(operator, "GET", "/v1/nodes/n9/allocation", &Value::Null, 200)?["uuid"], allocation["uuid"]);
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
    let node_after = expect_status(operator, "GET", "/v1/nodes/n9", &Value::Null, 200)?;
    assert_eq!([&node_after["instance_uuid"], &node_after["allocation_uuid"]], [&Value::Null; 2]);
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
    let (stdout, stderr, status) = fleet.run_cli(&["create", "allocation", "job4", "--resource-class", "nosuch"])?;
    let stored = expect_status(operator, "GET", "/v1/allocations/job4", &Value::Null, 200)?;
    let reason = stored["last_error"].as_str().context("a reason")?;
    assert_eq!((status, stored["state"].as_str()), (1, Some("error")), "{stderr}");
    assert!(stdout.contains("job4 created without a node, in state error"), "{stdout}");
    assert!(stderr.contains(&format!("error: allocation job4 exists in state error: {reason}\n")), "{stderr}");
    assert!(stderr.contains("stemma delete allocation job4") && !stderr.contains("nothing was changed"), "{stderr}");
    fleet.stemma(&["delete", "allocation", "job4"])?;
    Ok(())
}

/// Number of nodes in the test that kills the controller during allocations. It is also the number of allocations.
const NODE_COUNT: usize = 1_000;
/// Number of connections that write concurrently.
const CONNECTION_COUNT: usize = 200;
/// Number of answered allocations, of all connections together, after which the controller is killed.
const ANSWERS_BEFORE_KILL: usize = 400;

/// Returns the request that creates the allocation `job-NUMBER`. Its idempotency key depends only on the number, so a
/// repeated request creates no second allocation.
fn allocation_write(number: usize) -> OperatorWrite {
    let body = json!({"name": format!("job-{number}"), "resource_class": "rc", "traits": ["CUSTOM_A"]});
    let key = Uuid::from_u64_pair(0x0198_c0de_0000_7000, 0x8000_0000_0000_0000 | number as u64);
    OperatorWrite { method: "POST", path: "/v1/allocations".to_owned(), body, key }
}

/// The data directory of a controller, and the addresses of the controller. The directory contains the admin's
/// credentials.
type ControllerAddress = (PathBuf, ListenerAddresses);

/// The answered allocations by number: the UUID of the allocation, and the UUID of its node.
type AnswerMap = BTreeMap<usize, [String; 2]>;

/// Creates allocations with these numbers, until none is left or the controller does not answer. `next` is the index of
/// the next number, for all connections. Calls `on_answer` after each creation. Returns the created allocations.
fn allocate_on_connection(
    operator: &mut OperatorClient,
    numbers: &[usize],
    next: &AtomicUsize,
    on_answer: &(impl Fn() -> Result<()> + Sync),
) -> Result<AnswerMap> {
    let mut answers = AnswerMap::new();
    while let Some(number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
        match operator.write(&allocation_write(*number)) {
            // Too many requests wait. The caller sends this one again under the same key.
            Ok((503, _)) => std::thread::sleep(Duration::from_millis(100)),
            Ok((status, body)) => {
                ensure!(status == 201 && body["state"] == "active", "{number}: {status} {body}");
                let text_field = |field: &str| body[field].as_str().map(str::to_owned).context("an active allocation has a node");
                answers.insert(*number, [text_field("uuid")?, text_field("node_uuid")?]);
                on_answer()?;
            }
            Err(_) => break,
        }
    }
    Ok(answers)
}

/// Creates the allocations with these numbers on [`CONNECTION_COUNT`] connections concurrently. Returns the answers.
fn allocate_on_connections(
    (data, addresses): &ControllerAddress,
    numbers: &[usize],
    on_answer: impl Fn() -> Result<()> + Sync,
) -> Result<AnswerMap> {
    let operators = (0..CONNECTION_COUNT).map(|_| OperatorClient::from_data(data, addresses)).collect::<Result<Vec<_>>>()?;
    let (next, on_answer) = (&AtomicUsize::new(0), &on_answer);
    std::thread::scope(|scope| {
        let start =
            |mut operator: OperatorClient| scope.spawn(move || allocate_on_connection(&mut operator, numbers, next, on_answer));
        let threads: Vec<_> = operators.into_iter().map(start).collect();
        let mut answers = AnswerMap::new();
        for thread in threads {
            answers.extend(thread.join().expect("no writer panics")?);
        }
        Ok(answers)
    })
}

/// Checks that each answered allocation exists with the UUIDs of its answer. A second allocation under the same name
/// would have another UUID.
fn check_answers(allocations: &[Value], answers: &AnswerMap) {
    let uuids =
        |allocation: &Value| Some([allocation["uuid"].as_str()?.to_owned(), allocation["node_uuid"].as_str()?.to_owned()]);
    let by_name: BTreeMap<&str, [String; 2]> =
        allocations.iter().filter_map(|allocation| Some((allocation["name"].as_str()?, uuids(allocation)?))).collect();
    for (number, answer) in answers {
        assert_eq!(by_name.get(format!("job-{number}").as_str()), Some(answer), "job-{number}");
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "how long it took")]
fn allocations_get_distinct_nodes_when_controller_is_killed() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    let node =
        |number: usize| json!({"kind": "Node", "name": format!("n{number}"), "resource_class": "rc", "traits": ["CUSTOM_A"]});
    let objects: Vec<Value> = (0..NODE_COUNT).map(node).collect();
    expect_status(&mut operator, "POST", "/v1/apply", &json!({"objects": objects}), 200)?;
    let (start, answer_count) = (Instant::now(), AtomicUsize::new(0));
    let address: ControllerAddress = (fleet.data(), fleet.addresses().clone());
    let mut numbers: Vec<usize> = (0..NODE_COUNT).collect();
    // The thread that gets this answer kills the controller. A separate waiting thread might be scheduled only after
    // all are answered.
    let controller = i32::try_from(fleet.controller_id().context("the controller runs")?)?;
    let controller = Pid::from_raw(controller).context("a process")?;
    let first_answers = allocate_on_connections(&address, &numbers, || {
        let number = answer_count.fetch_add(1, Ordering::Relaxed) + 1;
        if number == ANSWERS_BEFORE_KILL {
            kill_process(controller, Signal::KILL)?;
        }
        Ok(())
    })?;
    fleet.kill_controller()?;
    ensure!(
        (ANSWERS_BEFORE_KILL..NODE_COUNT).contains(&first_answers.len()),
        "{} were answered before the kill",
        first_answers.len()
    );
    fleet.start_controller()?;
    let address: ControllerAddress = (fleet.data(), fleet.addresses().clone());
    // The answered allocations are requested again too. Each of them was created once.
    numbers.rotate_left(ANSWERS_BEFORE_KILL);
    let mut answers = AnswerMap::new();
    while answers.len() < NODE_COUNT {
        let missing: Vec<usize> = numbers.iter().copied().filter(|number| !answers.contains_key(number)).collect();
        answers.extend(allocate_on_connections(&address, &missing, || Ok(()))?);
    }
    println!("{} answered before the kill, all in {:?}", first_answers.len(), start.elapsed());
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    let list = expect_status(&mut operator, "GET", "/v1/allocations", &Value::Null, 200)?;
    let allocations = list["allocations"].as_array().context("allocations")?;
    let nodes: BTreeSet<&str> = allocations.iter().filter_map(|allocation| allocation["node_uuid"].as_str()).collect();
    assert_eq!((allocations.len(), nodes.len()), (NODE_COUNT, NODE_COUNT));
    check_answers(allocations, &first_answers);
    check_answers(allocations, &answers);
    let list = expect_status(&mut operator, "GET", "/v1/nodes?fields=uuid,instance_uuid", &Value::Null, 200)?;
    let instance_uuids: BTreeMap<&str, &str> = (list["nodes"].as_array().context("nodes")?.iter())
        .filter_map(|node| Some((node["uuid"].as_str()?, node["instance_uuid"].as_str()?)))
        .collect();
    for allocation in allocations {
        let node = allocation["node_uuid"].as_str().context("a node")?;
        assert_eq!(instance_uuids.get(node).copied(), allocation["uuid"].as_str(), "{allocation}");
    }
    let surplus = expect_status(&mut operator, "POST", "/v1/allocations", &json!({"resource_class": "rc"}), 201)?;
    let expected_error = format!(
        "Failed to process allocation {}: no available nodes match the resource class rc. Of that class there are 1000 used already.",
        surplus["uuid"].as_str().context("a uuid")?
    );
    assert_eq!([&surplus["state"], &surplus["last_error"]], [&json!("error"), &json!(expected_error)]);
    Ok(())
}
