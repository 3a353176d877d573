//! Nodes and allocations as Ironic's clients use them, through the real listener: the given vectors, and many allocations at once over
//! a controller that is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use stemma_tests::fleet::{Bound, Fleet};
use stemma_tests::operator::{Operator, Write};
use stemma_tests::shared;
use uuid::Uuid;

fn vectors(name: &str) -> Result<Option<Value>> {
    let Some(path) = shared::path(&format!("vectors/traits/{name}")) else { return Ok(None) };
    Ok(Some(serde_json::from_str(&std::fs::read_to_string(path)?)?))
}

/// A request that must be answered with this status.
fn ask(operator: &mut Operator, method: &str, path: &str, body: &Value, status: u16) -> Result<Value> {
    let (found, answer) = operator.call(method, path, "application/json", body)?;
    ensure!(found == status, "{method} {path} {body}: {found} {answer}");
    Ok(answer)
}

#[test]
fn nodes_are_filtered_by_the_traits_of_the_vectors() -> Result<()> {
    let Some(vectors) = vectors("trait_filter.json")? else { return Ok(()) };
    for (set, nodes) in vectors["node_sets"].as_object().context("sets")? {
        let fleet = Fleet::start()?;
        let operator = &mut Operator::of(&fleet.data(), fleet.bound())?;
        for node in nodes.as_array().context("nodes")? {
            let name = node["name"].as_str().context("a name")?;
            ask(operator, "POST", "/v1/nodes", &json!({"name": name, "driver": "fake"}), 201)?;
            ask(operator, "PUT", &format!("/v1/nodes/{name}/traits"), &json!({"traits": node["traits"]}), 200)?;
        }
        for case in vectors["cases"].as_array().context("cases")?.iter().filter(|case| case["nodes"] == *set) {
            let query = case["query_string"].as_str().context("a query")?;
            let list = ask(operator, "GET", &format!("/v1/nodes?{query}"), &Value::Null, 200)?;
            let names: Value =
                list["nodes"].as_array().context("nodes")?.iter().map(|one| one["name"].clone()).collect();
            assert_eq!(names, case["expected"], "{query}");
        }
    }
    Ok(())
}

#[test]
fn traits_are_taken_or_refused_as_the_vectors_say() -> Result<()> {
    let Some(vectors) = vectors("traits_validation.json")? else { return Ok(()) };
    let fleet = Fleet::start()?;
    let operator = &mut Operator::of(&fleet.data(), fleet.bound())?;
    ask(operator, "POST", "/v1/nodes", &json!({"name": "n"}), 201)?;
    for case in vectors.as_array().context("cases")? {
        let valid = case.get("recommended_valid").unwrap_or(&case["valid"]);
        let (status, answer) =
            operator.call("PUT", "/v1/nodes/n/traits", "application/json", &json!({"traits": [case["trait"]]}))?;
        assert_eq!(status, if *valid == true { 200 } else { 400 }, "{case}: {answer}");
    }
    Ok(())
}

#[test]
fn a_node_is_validated_for_what_its_instance_wants() -> Result<()> {
    let Some(vectors) = vectors("instance_info_traits.json")? else { return Ok(()) };
    let fleet = Fleet::start()?;
    let operator = &mut Operator::of(&fleet.data(), fleet.bound())?;
    let group = json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}]);
    ask(operator, "POST", "/v1/apply", &json!({"objects": group}), 200)?;
    for (case, number) in vectors.as_array().context("cases")?.iter().zip(0..) {
        let uuid = Uuid::from_u64_pair(0x1111_1111_1111_4111, 0x8000_0000_0000_0000 | number);
        let body = json!({"uuid": uuid, "name": format!("n{number}"), "instance_info": case["instance_info"]});
        ask(operator, "POST", "/v1/nodes", &body, 201)?;
        let at = format!("/v1/nodes/n{number}");
        ask(operator, "PUT", &format!("{at}/traits"), &json!({"traits": case["node_traits"]}), 200)?;
        let deploy = ask(operator, "GET", &format!("{at}/validate"), &Value::Null, 200)?["deploy"].clone();
        let reason = case["message"]
            .as_str()
            .map(|text| text.replace("11111111-2222-4333-8444-555555555555", &uuid.to_string()));
        let expected =
            reason.map_or_else(|| json!({"result": true}), |reason| json!({"result": false, "reason": reason}));
        assert_eq!(deploy, expected, "{case}");
        let named = ask(operator, "GET", &format!("/v1/nodes/validate?node=n{number}"), &Value::Null, 200)?;
        assert_eq!(named["deploy"], expected, "{case}");
        // Put to use: made active, and moved into a group.
        let fits = case["ok"] == true;
        let (status, answer) = operator.call(
            "PUT",
            &format!("{at}/states/provision"),
            "application/json",
            &json!({"target": "active"}),
        )?;
        assert_eq!(status, if fits { 202 } else { 400 }, "{case}: {answer}");
        let state = ask(operator, "GET", &format!("{at}/states"), &Value::Null, 200)?["provision_state"].clone();
        assert_eq!(state, if fits { "active" } else { "enroll" }, "{case}");
        let (status, answer) =
            operator.call("PATCH", &at, "application/merge-patch+json", &json!({"nodegroup": "c/g"}))?;
        assert_eq!(status, if fits { 200 } else { 400 }, "{case}: {answer}");
    }
    Ok(())
}

#[test]
fn maintenance_is_parking() -> Result<()> {
    let fleet = Fleet::start()?;
    let operator = &mut Operator::of(&fleet.data(), fleet.bound())?;
    ask(operator, "POST", "/v1/nodes", &json!({"name": "n"}), 201)?;
    for (method, body, parked, reason) in [
        ("PUT", json!({"reason": "a disk"}), true, json!("a disk")),
        ("PUT", Value::Null, true, Value::Null),
        ("DELETE", Value::Null, false, Value::Null),
    ] {
        ask(operator, method, "/v1/nodes/n/maintenance", &body, 202)?;
        let node = ask(operator, "GET", "/v1/nodes/n", &Value::Null, 200)?;
        assert_eq!(
            [&node["maintenance"], &node["parked"], &node["maintenance_reason"]],
            [&json!(parked), &json!(parked), &reason]
        );
    }
    ask(operator, "PUT", "/v1/nodes/n/maintenance", &json!({"until": "x"}), 400)?;
    for target in ["inspect", "clean"] {
        ask(operator, "PUT", "/v1/nodes/n/states/provision", &json!({"target": target}), 400)?;
    }
    Ok(())
}

/// Nodes that Ironic passes over for a state of their machine, which nothing here drives.
const NOT_AVAILABLE_IN_IRONIC: [&str; 3] = ["n08", "n09", "n17"];

#[test]
fn who_can_be_allocated_is_as_the_vectors_say() -> Result<()> {
    let Some(vectors) = vectors("allocations_traits.json")? else { return Ok(()) };
    let fleet = Fleet::start()?;
    let operator = &mut Operator::of(&fleet.data(), fleet.bound())?;
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for node in vectors["nodes"].as_array().context("nodes")? {
        let mut body = node.clone();
        let fields = body.as_object_mut().context("a node")?;
        fields.retain(|name, _| !matches!(name.as_str(), "traits" | "provision_state" | "power_state" | "reservation"));
        let made = ask(operator, "POST", "/v1/nodes", &body, 201)?;
        let name = node["name"].as_str().context("a name")?;
        ask(operator, "PUT", &format!("/v1/nodes/{name}/traits"), &json!({"traits": node["traits"]}), 200)?;
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
        let (taken, error, made) = until_none_is_left(operator, &body, &names)?;
        let listed = |name: &&str| !NOT_AVAILABLE_IN_IRONIC.contains(name);
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

/// Allocates until there is no node any more, and gives all of them back: who was taken, the last sentence, how many were made.
fn until_none_is_left(
    operator: &mut Operator,
    body: &Value,
    names: &BTreeMap<String, String>,
) -> Result<(BTreeSet<String>, String, usize)> {
    let (mut taken, mut made) = (BTreeSet::new(), Vec::new());
    let error = loop {
        let allocation = ask(operator, "POST", "/v1/allocations", body, 201)?;
        made.push(allocation["uuid"].as_str().context("a uuid")?.to_owned());
        match allocation["node_uuid"].as_str() {
            Some(node) => ensure!(taken.insert(names[node].clone()), "{allocation}: taken twice"),
            None => break allocation["last_error"].as_str().context("an error")?.to_owned(),
        }
    };
    for uuid in &made {
        ask(operator, "DELETE", &format!("/v1/allocations/{uuid}"), &Value::Null, 204)?;
    }
    Ok((taken, error, made.len()))
}

#[test]
fn an_allocation_is_explained_and_bound_to_its_node() -> Result<()> {
    let fleet = Fleet::start()?;
    let operator = &mut Operator::of(&fleet.data(), fleet.bound())?;
    for (name, memory, traits) in
        [("n10", 64, json!(["CUSTOM_A"])), ("n9", 64, json!(["CUSTOM_A"])), ("n1", 128, json!(["CUSTOM_A"]))]
    {
        let body = json!({"name": name, "resource_class": "rc", "properties": {"memory_gb": memory}});
        ask(operator, "POST", "/v1/nodes", &body, 201)?;
        ask(operator, "PUT", &format!("/v1/nodes/{name}/traits"), &json!({"traits": traits}), 200)?;
    }
    let wanted = json!({"name": "job", "resource_class": "rc", "traits": ["CUSTOM_A"], "requirements": {"property:memory_gb": ">= 48"}});
    let made = ask(operator, "POST", "/v1/allocations", &wanted, 201)?;
    assert_eq!([&made["state"], &made["last_error"]], [&json!("active"), &Value::Null], "{made}");
    let why = json!({"candidates": 3, "surplus_traits": [], "to_spare": {"property:memory_gb": 16.0}});
    assert_eq!(made["explanation"], why);
    let node = ask(operator, "GET", "/v1/nodes/n9", &Value::Null, 200)?;
    assert_eq!(
        [&node["uuid"], &node["instance_uuid"], &node["allocation_uuid"]],
        [&made["node_uuid"], &made["uuid"], &made["uuid"]]
    );
    assert_eq!(node["instance_info"], json!({"traits": ["CUSTOM_A"]}));
    assert_eq!(ask(operator, "GET", "/v1/nodes/n9/allocation", &Value::Null, 200)?["uuid"], made["uuid"]);
    ask(operator, "GET", "/v1/nodes/n10/allocation", &Value::Null, 404)?;
    // What uses a node stands against what would end that.
    ask(operator, "DELETE", "/v1/nodes/n9", &Value::Null, 409)?;
    let other = json!([{"op": "remove", "path": "/instance_uuid"}]);
    ask(operator, "PATCH", "/v1/nodes/n9", &other, 409)?;
    let resized = json!([{"op": "replace", "path": "/resource_class", "value": "other"}]);
    ask(operator, "PATCH", "/v1/allocations/job", &resized, 400)?;
    let noted = json!([{"op": "add", "path": "/extra/ticket", "value": "7"}, {"op": "replace", "path": "/name", "value": "job2"}]);
    assert_eq!(ask(operator, "PATCH", "/v1/allocations/job", &noted, 200)?["extra"], json!({"ticket": "7"}));
    for (query, found) in
        [("state=active", 1), ("state=error", 0), ("node=n9", 1), ("node=n1", 0), ("resource_class=rc", 1)]
    {
        let list = ask(operator, "GET", &format!("/v1/allocations?{query}"), &Value::Null, 200)?;
        assert_eq!(list["allocations"].as_array().map(Vec::len), Some(found), "{query}");
    }
    for (body, status) in [
        (json!({"traits": []}), 400),
        (json!({"resource_class": "rc", "traits": ["nope"]}), 400),
        (json!({"resource_class": "rc", "candidate_nodes": ["nobody"]}), 400),
        (json!({"resource_class": "rc", "name": "job2"}), 409),
        (json!({"resource_class": "rc", "node": "n1"}), 400),
    ] {
        ask(operator, "POST", "/v1/allocations", &body, status)?;
    }
    ask(operator, "DELETE", "/v1/nodes/n9/allocation", &Value::Null, 204)?;
    let freed = ask(operator, "GET", "/v1/nodes/n9", &Value::Null, 200)?;
    assert_eq!([&freed["instance_uuid"], &freed["allocation_uuid"]], [&Value::Null; 2]);
    // The command.
    assert!(
        fleet
            .stemma(&["create", "allocation", "job3", "--resource-class", "rc", "--trait", "CUSTOM_A"])?
            .starts_with("allocation job3 has node ")
    );
    assert!(fleet.stemma(&["get", "allocations"])?.contains("job3"));
    fleet.stemma(&["delete", "allocation", "job3"])?;
    // One that finds no node is there, so something was changed, and what deletes it is said (y09).
    let (out, said, status) = fleet.ran(&["create", "allocation", "job4", "--resource-class", "nosuch"])?;
    let stored = ask(operator, "GET", "/v1/allocations/job4", &Value::Null, 200)?;
    let reason = stored["last_error"].as_str().context("a reason")?;
    assert_eq!((status, stored["state"].as_str()), (1, Some("error")), "{said}");
    assert!(out.contains("job4 created without a node, in state error"), "{out}");
    assert!(said.contains(&format!("error: allocation job4 is there in state error: {reason}\n")), "{said}");
    assert!(said.contains("stemma delete allocation job4") && !said.contains("nothing was changed"), "{said}");
    fleet.stemma(&["delete", "allocation", "job4"])?;
    Ok(())
}

/// As many nodes as allocations.
const NODES: usize = 1_000;
/// So many write at once.
const CONNECTIONS: usize = 200;
/// The controller is killed after so many answers.
const KILLED_AFTER: usize = 400;

fn allocation(number: usize) -> Write {
    let body = json!({"name": format!("job-{number}"), "resource_class": "rc", "traits": ["CUSTOM_A"]});
    let key = Uuid::from_u64_pair(0x0198_c0de_0000_7000, 0x8000_0000_0000_0000 | number as u64);
    Write { method: "POST", path: "/v1/allocations".to_owned(), body, key }
}

/// Where a controller is reached, and by whom.
type Reached = (PathBuf, Bound);

/// What was answered, by number: the allocation and its node.
type Answered = BTreeMap<usize, [String; 2]>;

/// Allocates until nothing is left to ask for, or there is no answer any more; what was answered. `on_answer` is called after each.
fn allocate_on(
    operator: &mut Operator,
    numbers: &[usize],
    next: &AtomicUsize,
    on_answer: &(impl Fn() -> Result<()> + Sync),
) -> Result<Answered> {
    let mut done = Answered::new();
    while let Some(number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
        match operator.write(&allocation(*number)) {
            // Too many wait: it is asked for again under the same key.
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

/// All connections at once.
fn allocate_all(
    (data, bound): &Reached,
    numbers: &[usize],
    on_answer: impl Fn() -> Result<()> + Sync,
) -> Result<Answered> {
    let operators = (0..CONNECTIONS).map(|_| Operator::of(data, bound)).collect::<Result<Vec<_>>>()?;
    let (next, on_answer) = (&AtomicUsize::new(0), &on_answer);
    std::thread::scope(|scope| {
        let start = |mut operator: Operator| scope.spawn(move || allocate_on(&mut operator, numbers, next, on_answer));
        let threads: Vec<_> = operators.into_iter().map(start).collect();
        let mut done = Answered::new();
        for thread in threads {
            done.extend(thread.join().expect("no writer panics")?);
        }
        Ok(done)
    })
}

/// Whether each allocation that was answered is the one that is there: not another, made anew under its name.
fn are_as_answered(allocations: &[Value], answered: &Answered) {
    let of_one = |one: &Value| Some([one["uuid"].as_str()?.to_owned(), one["node_uuid"].as_str()?.to_owned()]);
    let there: BTreeMap<&str, [String; 2]> =
        allocations.iter().filter_map(|one| Some((one["name"].as_str()?, of_one(one)?))).collect();
    for (number, answer) in answered {
        assert_eq!(there.get(format!("job-{number}").as_str()), Some(answer), "job-{number}");
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "how long it took")]
fn a_thousand_allocations_at_once_take_a_thousand_nodes_also_over_a_kill() -> Result<()> {
    let mut fleet = Fleet::start()?;
    let mut operator = Operator::of(&fleet.data(), fleet.bound())?;
    let node = |number: usize| json!({"kind": "Node", "name": format!("n{number}"), "resource_class": "rc", "traits": ["CUSTOM_A"]});
    let objects: Vec<Value> = (0..NODES).map(node).collect();
    ask(&mut operator, "POST", "/v1/apply", &json!({"objects": objects}), 200)?;
    let (began, answered) = (Instant::now(), AtomicUsize::new(0));
    let reached: Reached = (fleet.data(), fleet.bound().clone());
    let mut left: Vec<usize> = (0..NODES).collect();
    // Whoever gets that answer kills it: one who waits for it could come when all are answered.
    let controller = i32::try_from(fleet.controller_id().context("the controller runs")?)?;
    let controller = Pid::from_raw(controller).context("a process")?;
    let kept = allocate_all(&reached, &left, || {
        let number = answered.fetch_add(1, Ordering::Relaxed) + 1;
        if number == KILLED_AFTER {
            kill_process(controller, Signal::KILL)?;
        }
        Ok(())
    })?;
    fleet.kill_controller()?;
    ensure!((KILLED_AFTER..NODES).contains(&kept.len()), "{} were answered before the kill", kept.len());
    fleet.start_controller()?;
    let reached: Reached = (fleet.data(), fleet.bound().clone());
    // What was answered is asked for again too: it was made once.
    left.rotate_left(KILLED_AFTER);
    let mut done = Answered::new();
    while done.len() < NODES {
        let missing: Vec<usize> = left.iter().copied().filter(|number| !done.contains_key(number)).collect();
        done.extend(allocate_all(&reached, &missing, || Ok(()))?);
    }
    println!("{} answered before the kill, all in {:?}", kept.len(), began.elapsed());
    let mut operator = Operator::of(&fleet.data(), fleet.bound())?;
    let list = ask(&mut operator, "GET", "/v1/allocations", &Value::Null, 200)?;
    let allocations = list["allocations"].as_array().context("allocations")?;
    let nodes: BTreeSet<&str> = allocations.iter().filter_map(|one| one["node_uuid"].as_str()).collect();
    assert_eq!((allocations.len(), nodes.len()), (NODES, NODES));
    are_as_answered(allocations, &kept);
    are_as_answered(allocations, &done);
    let list = ask(&mut operator, "GET", "/v1/nodes?fields=uuid,instance_uuid", &Value::Null, 200)?;
    let held: BTreeMap<&str, &str> = (list["nodes"].as_array().context("nodes")?.iter())
        .filter_map(|node| Some((node["uuid"].as_str()?, node["instance_uuid"].as_str()?)))
        .collect();
    for one in allocations {
        let node = one["node_uuid"].as_str().context("a node")?;
        assert_eq!(held.get(node).copied(), one["uuid"].as_str(), "{one}");
    }
    let surplus = ask(&mut operator, "POST", "/v1/allocations", &json!({"resource_class": "rc"}), 201)?;
    let none = format!(
        "Failed to process allocation {}: no available nodes match the resource class rc. Of that class there are 1000 used already.",
        surplus["uuid"].as_str().context("a uuid")?
    );
    assert_eq!([&surplus["state"], &surplus["last_error"]], [&json!("error"), &json!(none)]);
    Ok(())
}
