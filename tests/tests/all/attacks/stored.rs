//! Limits of what principals can store, and of the memory and disk space that their data takes afterwards.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::{Map, Value, json};
use stemma_tests::plain_controller::PlainController;

use super::{
    JSON_PATCH_TYPE, JSON_TYPE, MAX_WAIT, MERGE_PATCH_TYPE, MIB, RawResponse, call, check_controller_memory,
    check_memory_and_restart, create_cluster_token, create_token, print_figure, wait_until_resolved,
};
use crate::description::post;

/// Returns the disk usage of all files below a directory, in bytes. A file that another process deletes at the same
/// time counts as 0.
fn disk_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += if metadata.is_dir() { disk_bytes(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}

/// Writes a text of 60,000 bytes into `extra` of the node `n` with a JSON patch. The maximum size of `extra` is 64 KiB.
fn write_large_patch(url: &str, token: &str, number: usize) -> Result<RawResponse> {
    let patch = json!([{"op": "add", "path": "/extra/text", "value": format!("{number:0>60000}")}]);
    call(url, token, "PATCH /v1/nodes/n", (JSON_PATCH_TYPE, &serde_json::to_vec(&patch)?))
}

/// A principal other than a fleet admin may store 32 MiB at once and 256 KiB per second (docs/store.md). The disk usage
/// may be four times as much: the store doubles its file when it grows, and each page takes up to twice its content.
/// The store has at most 64 MiB of pages and 16 MiB of last changes in memory. The memory limit is twice that.
#[test]
fn x03_f04_store_grows_at_limited_rate_when_writes_are_fast() -> Result<()> {
    const MAX_BURST_BYTES: u64 = 32 * MIB;
    const BYTES_PER_SECOND: u64 = 256 * 1024;
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let objects = json!([
        {"kind": "Cluster", "name": "own"},
        {"kind": "NodeGroup", "cluster": "own", "name": "web"},
        {"kind": "Node", "name": "n", "nodegroup": "own/web"},
    ]);
    post(&url, "/v1/apply", &json!({"objects": objects}))?;
    let operator_token = create_cluster_token(&url, "otto", "operator", Some("own"))?;
    let admin_token = create_token(&url, "boss", "admin")?;
    let (memory_before, disk_before, start_time) =
        (controller.peak_memory_bytes()?, disk_bytes(&controller.data_dir())?, Instant::now());
    let (mut accepted_count, mut postponed_count) = (0, 0);
    while postponed_count < 100 {
        let response = write_large_patch(&url, &operator_token, accepted_count)?;
        match response.status {
            200 => accepted_count += 1,
            503 => postponed_count += 1,
            status => bail!("{status} {}", response.body),
        }
        ensure!(response.status == 200 || response.is_busy(), "{} {}", response.head, response.body);
        ensure!(accepted_count < 1_000, "{accepted_count} writes in {:?}, and none is postponed", start_time.elapsed());
    }
    ensure!(accepted_count > 200, "the rate limit comes after the burst, not after {accepted_count} writes");
    let disk_growth = disk_bytes(&controller.data_dir())?.saturating_sub(disk_before);
    let max_growth = 4 * (MAX_BURST_BYTES + BYTES_PER_SECOND * (start_time.elapsed().as_secs() + 1));
    let figure = format!("{accepted_count} writes of 60 kB took {} MiB of disk space", disk_growth / MIB);
    print_figure(&figure);
    ensure!(disk_growth < max_growth, "{figure}, and the limit is {} MiB", max_growth / MIB);
    let response = write_large_patch(&url, &admin_token, 1_000)?;
    ensure!(response.status == 200, "an admin can still write: {} {}", response.status, response.body);
    check_controller_memory(&controller, memory_before, 160 * MIB)?;
    controller.stop()
}

/// Each tag of the cluster has a title of a kilobyte. A copy of all tags for each group would take half a gigabyte. The
/// store has at most 80 MiB of its pages and last changes in memory. The memory limit is twice that.
#[test]
fn x03_f07_cluster_tags_and_groups_take_bounded_memory_after_restart() -> Result<()> {
    const MAX_BYTES: u64 = 160 * MIB;
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let author_token = create_token(&url, "author", "admin")?;
    let memory_before = controller.peak_memory_bytes()?;
    let title = "t".repeat(1_000);
    let tags: Map<String, Value> = (0..256).map(|number| (format!("t{number}"), json!({"title": title}))).collect();
    let objects = json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["web"]}}, "tags": {"web": {}},
         "tasks": [{"id": "motd", "type": "file", "tags": ["web"], "parameters": {"path": "/etc/motd", "content": "x"}}]},
        {"kind": "Cluster", "name": "c", "release": "site@1", "tags": tags},
    ]);
    let body = serde_json::to_vec(&json!({"objects": objects}))?;
    let response = call(&url, &author_token, "POST /v1/apply", (JSON_TYPE, &body))?;
    ensure!(response.status == 200, "a cluster with the maximum number of tags: {} {}", response.status, response.body);
    for batch in 0..4 {
        let group = |number: usize| json!({"kind": "NodeGroup", "cluster": "c", "name": format!("g{batch}-{number}")});
        let groups: Vec<Value> = (0..500).map(group).collect();
        post(&url, "/v1/apply", &json!({"objects": groups}))?;
    }
    let tags: Map<String, Value> = (0..50_000).map(|number| (format!("t{number}"), json!({}))).collect();
    let body = serde_json::to_vec(&json!({"tags": tags}))?;
    let response = call(&url, &author_token, "PATCH /v1/clusters/c", (MERGE_PATCH_TYPE, &body))?;
    let is_refused = (400..500).contains(&response.status) && response.body.contains("and the maximum is 256");
    ensure!(is_refused, "fifty thousand tags: {} {}", response.status, response.body);
    check_controller_memory(&controller, memory_before, MAX_BYTES)?;

    let controller = controller.restart()?;
    let url = controller.addresses.admin.clone();
    check_controller_memory(&controller, memory_before, MAX_BYTES)?;
    let body = serde_json::to_vec(&json!({"description": "after the restart"}))?;
    let response = call(&url, &author_token, "PATCH /v1/clusters/c", (MERGE_PATCH_TYPE, &body))?;
    ensure!([200, 202].contains(&response.status), "the next write: {} {}", response.status, response.body);
    check_controller_memory(&controller, memory_before, MAX_BYTES)?;
    controller.stop()
}

/// Applies a release with these tasks, and the cluster `c` that uses it. Returns the tokens of an operator of the
/// cluster and of a fleet admin.
fn apply_cluster(url: &str, tasks: &[Value]) -> Result<(String, String)> {
    let objects = json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["web"]}}, "tags": {"web": {}},
         "tasks": tasks},
        {"kind": "Cluster", "name": "c", "release": "site@1"},
    ]);
    post(url, "/v1/apply", &json!({"objects": objects}))?;
    Ok((create_cluster_token(url, "otto", "operator", Some("c"))?, create_token(url, "boss", "admin")?))
}

/// Returns a node group of the cluster `c` with a label `key`, whose value differs between the groups.
fn group_body(number: usize, key: &str) -> Value {
    let name = format!("g{number}");
    json!({"kind": "NodeGroup", "cluster": "c", "name": name, "roles": ["web"], "labels": {key: name}})
}

/// Returns a task of type `file` that renders this template.
fn file_task(id: &str, template: &str) -> Value {
    json!({"id": id, "type": "file", "tags": ["web"], "parameters": {"path": format!("/tmp/{id}"), "template": template}})
}

/// Adds a thousand nodes in two writes.
fn add_thousand_nodes(url: &str, token: &str, node: impl Fn(usize) -> Value) -> Result<()> {
    [0..500, 500..1_000].into_iter().try_for_each(|batch| add_objects(url, token, &batch.map(&node).collect::<Vec<_>>()))
}

/// Adds objects in one write.
fn add_objects(url: &str, token: &str, objects: &[Value]) -> Result<()> {
    let response = call(url, token, "POST /v1/apply", (JSON_TYPE, &serde_json::to_vec(&json!({"objects": objects}))?))?;
    ensure!(response.status == 200, "{} {}", response.status, response.body);
    Ok(())
}

/// Sets `count` texts in the map `map` of the object at `path`, under `key` followed by a number. The first text is
/// `first_text`, and the others have 4,000 bytes. Waits until all nodes are resolved.
fn set_large_map(
    url: &str,
    (operator_token, admin_token): (&str, &str),
    path: &str,
    (map, key, count): (&str, &str, usize),
    first_text: &str,
) -> Result<()> {
    let text = |index: usize| if index == 0 { first_text.to_owned() } else { format!("{index:0>4000}") };
    let texts: Map<String, Value> = (0..count).map(|index| (format!("{key}{index}"), text(index).into())).collect();
    let body = serde_json::to_vec(&json!({map: texts}))?;
    let response = call(url, operator_token, &format!("PATCH {path}"), (MERGE_PATCH_TYPE, &body))?;
    ensure!([200, 202].contains(&response.status), "{} {}", response.status, response.body);
    wait_until_resolved(url, admin_token)
}

/// All nodes of a group inherit its annotations, about 220 kB. The controller has them in memory once, not once per
/// node.
#[test]
fn x03_f07_group_annotations_are_in_memory_once_after_restart() -> Result<()> {
    const MAX_BYTES: u64 = 96 * MIB;
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    post(&url, "/v1/clusters", &json!({"name": "c"}))?;
    post(&url, "/v1/apply", &json!({"objects": [{"kind": "NodeGroup", "cluster": "c", "name": "g"}]}))?;
    let (operator_token, admin_token) =
        (create_cluster_token(&url, "otto", "operator", Some("c"))?, create_token(&url, "boss", "admin")?);
    let memory_before = controller.peak_memory_bytes()?;
    let annotate = |url: &str, first_text: &str| {
        set_large_map(url, (&operator_token, &admin_token), "/v1/clusters/c/nodegroups/g", ("annotations", "a", 56), first_text)
    };
    annotate(&url, "x")?;
    add_thousand_nodes(
        &url,
        &operator_token,
        |number| json!({"kind": "Node", "name": format!("n{number}"), "nodegroup": "c/g"}),
    )?;
    annotate(&url, "y")?;
    let controller = check_memory_and_restart(controller, &admin_token, memory_before, MAX_BYTES)?;
    let url = controller.addresses.admin.clone();
    annotate(&url, "z")?;
    check_controller_memory(&controller, memory_before, MAX_BYTES)?;
    controller.stop()
}

/// The conditions read a label that has another value on each node, so the controller evaluates them for each node. A
/// condition that excludes a task from many nodes is in memory once.
#[test]
fn x03_f07_conditions_are_in_memory_once_for_many_nodes() -> Result<()> {
    const MAX_BYTES: u64 = 128 * MIB;
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let condition = format!("labels.own == 'never' && '{}' == 'x'", "q".repeat(3_000));
    let task = |number: usize| {
        json!({"id": format!("t{number}"), "type": "shell", "tags": ["web"], "condition": condition,
            "parameters": {"script": "true"}})
    };
    let tasks: Vec<Value> = (0..40).map(task).collect();
    let (operator_token, admin_token) = apply_cluster(&url, &tasks)?;
    add_objects(&url, &admin_token, &[json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["web"]})])?;
    let memory_before = controller.peak_memory_bytes()?;
    add_thousand_nodes(
        &url,
        &operator_token,
        |number| json!({"kind": "Node", "name": format!("n{number}"), "nodegroup": "c/g", "labels": {"own": format!("v{number}")}}),
    )?;
    wait_until_resolved(&url, &admin_token)?;
    let controller = check_memory_and_restart(controller, &admin_token, memory_before, MAX_BYTES)?;
    check_controller_memory(&controller, memory_before, MAX_BYTES)?;
    controller.stop()
}

/// Waits until the controller has computed the size of this part of the store, and returns the size in bytes.
fn stored_bytes(url: &str, token: &str, part: &str) -> Result<u64> {
    let name = format!("stemma_store_bytes{{of=\"{part}\"}} ");
    let start_time = Instant::now();
    while start_time.elapsed() < MAX_WAIT {
        let metrics = call(url, token, "GET /metrics", (JSON_TYPE, b""))?.body;
        let value = metrics.lines().find_map(|line| line.strip_prefix(name.as_str()));
        if let Some(bytes) = value {
            return Ok(bytes.trim().parse()?);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("the metrics contain no size of {part}")
}

/// Returns the size of the records of the nodes' released task sets, and the size of the values and texts that the
/// records refer to, in bytes.
fn released_bytes(url: &str, token: &str) -> Result<(u64, u64)> {
    let part_bytes = |part| stored_bytes(url, token, part);
    Ok((part_bytes("released")?, part_bytes("released_values")? + part_bytes("released_texts")?))
}

/// The tasks of a thousand nodes read 60 kB of labels of the cluster, one label of the group and one label of the node.
/// The values of the cluster are stored once for all groups. So the record of a node has some hundred bytes, and each
/// change stores one more set of values. Previously, each node stored all values, 60 MB with each change.
#[test]
fn x03_f07_input_values_are_in_store_and_memory_once() -> Result<()> {
    const MAX_BYTES: u64 = 128 * MIB;
    const MAX_STORED_BYTES: u64 = 3 * MIB;
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let task = |number: usize| {
        let references = (0..3).map(|offset| format!("{{{{ labels.a{} }}}}", 3 * number + offset)).collect::<Vec<_>>().join(" ");
        file_task(
            &format!("t{number}"),
            &format!("{{{{ labels.own }}}} {{{{ labels['of-group'] }}}} {{{{ node.name }}}} {references}"),
        )
    };
    let tasks: Vec<Value> = (0..5).map(task).collect();
    let (operator_token, admin_token) = apply_cluster(&url, &tasks)?;
    add_objects(&url, &admin_token, &(0..10).map(|number| group_body(number, "of-group")).collect::<Vec<_>>())?;
    let memory_before = controller.peak_memory_bytes()?;
    let set_cluster_labels = |url: &str, first_text: &str| {
        set_large_map(url, (&operator_token, &admin_token), "/v1/clusters/c", ("labels", "a", 15), first_text)
    };
    set_cluster_labels(&url, "x")?;
    let node = |number: usize| {
        let (name, group, labels) = (format!("n{number}"), format!("c/g{}", number % 10), json!({"own": format!("v{number}")}));
        json!({"kind": "Node", "name": name, "nodegroup": group, "labels": labels})
    };
    add_thousand_nodes(&url, &operator_token, node)?;
    wait_until_resolved(&url, &admin_token)?;
    let (records, values) = released_bytes(&url, &admin_token)?;
    print_figure(&format!("the records of 1,000 nodes take {} KiB, and their values {values} bytes", records / 1024));
    ensure!(records < MAX_STORED_BYTES, "{records} bytes");
    ensure!((56_000..112_000).contains(&values), "one set of values for all groups: {values} bytes");
    for first_text in ["y", "z"] {
        set_cluster_labels(&url, first_text)?;
    }
    // The size of the records, then the size of their values.
    let stored = released_bytes(&url, &admin_token)?;
    ensure!(stored.0 < MAX_STORED_BYTES && stored.1 < 4 * 60_000, "{stored:?} bytes after two changes");
    let controller = check_memory_and_restart(controller, &admin_token, memory_before, MAX_BYTES)?;
    let url = controller.addresses.admin.clone();
    ensure!(released_bytes(&url, &admin_token)? == stored, "a restart stores nothing");
    set_cluster_labels(&url, "w")?;
    check_controller_memory(&controller, memory_before, MAX_BYTES)?;
    controller.stop()
}

/// The tasks of 300 nodes read a map of labels: 60 kB of the cluster, one label of the group and one label of the node.
/// No two maps are equal, but the common part is stored and in memory once. Previously, each node took 60 kB on disk
/// and 250 to 400 KiB in memory.
#[test]
fn x03_f07_read_maps_with_own_entries_are_stored_once() -> Result<()> {
    const MAX_BYTES: u64 = 64 * MIB;
    const MAX_STORED_BYTES: u64 = MIB;
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let template = "{% for key, value in labels_with_prefix('a/') | items %}{{ key }} {{ value }}{% endfor %}";
    let task = file_task("t", template);
    let (operator_token, admin_token) = apply_cluster(&url, &[task])?;
    let memory_before = controller.peak_memory_bytes()?;
    let set_cluster_labels = |url: &str, first_text: &str| {
        set_large_map(url, (&operator_token, &admin_token), "/v1/clusters/c", ("labels", "a/", 15), first_text)
    };
    set_cluster_labels(&url, "x")?;
    let node = |number: usize| {
        let labels = json!({"a/own": format!("v{number}")});
        json!({"kind": "Node", "name": format!("n{number}"), "nodegroup": format!("c/g{}", number % 100), "labels": labels})
    };
    add_objects(
        &url,
        &operator_token,
        &(0..100).map(|number| group_body(number, "a/of-group")).chain((0..300).map(node)).collect::<Vec<_>>(),
    )?;
    wait_until_resolved(&url, &admin_token)?;
    let (records, values) = released_bytes(&url, &admin_token)?;
    print_figure(&format!("the records of 300 nodes take {} KiB, and their common values {values} bytes", records / 1024));
    ensure!(records < MAX_STORED_BYTES, "{records} bytes");
    ensure!((56_000..MAX_STORED_BYTES).contains(&values), "one set of values for all nodes: {values} bytes");
    set_cluster_labels(&url, "y")?;
    // The size of the records, then the size of their values.
    let stored = released_bytes(&url, &admin_token)?;
    ensure!(stored.0 < MAX_STORED_BYTES && stored.1 < MAX_STORED_BYTES, "{stored:?} bytes after a change");
    let controller = check_memory_and_restart(controller, &admin_token, memory_before, MAX_BYTES)?;
    let url = controller.addresses.admin.clone();
    ensure!(released_bytes(&url, &admin_token)? == stored, "a restart stores nothing");
    set_cluster_labels(&url, "w")?;
    check_controller_memory(&controller, memory_before, MAX_BYTES)?;
    controller.stop()
}

/// Each change of the cluster's labels creates another list of values for each group, and the controller soon deletes
/// unused lists. Previously, they remained for ten minutes: they were not counted when the controller decided whether
/// to delete unused data.
#[test]
fn x03_f07_store_deletes_value_lists_when_unreferenced() -> Result<()> {
    const GROUP_COUNT: usize = 100;
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let references: String = (0..15).map(|number| format!("{{{{ labels.a{number} }}}}")).collect();
    let task = file_task("t", &format!("{{{{ labels['of-group'] }}}}{references}"));
    let (operator_token, admin_token) = apply_cluster(&url, &[task])?;
    let set_cluster_labels = |first_text: &str| {
        set_large_map(&url, (&operator_token, &admin_token), "/v1/clusters/c", ("labels", "a", 15), first_text)
    };
    set_cluster_labels("x")?;
    let node = |number: usize| json!({"kind": "Node", "name": format!("n{number}"), "nodegroup": format!("c/g{number}")});
    let groups = (0..GROUP_COUNT).map(|number| group_body(number, "of-group"));
    add_objects(&url, &operator_token, &groups.chain((0..GROUP_COUNT).map(node)).collect::<Vec<_>>())?;
    wait_until_resolved(&url, &admin_token)?;
    let list_bytes = || stored_bytes(&url, &admin_token, "released_value_lists");
    let bytes_before = list_bytes()?;
    ensure!(bytes_before > 0, "each group has a list");
    for change in 0..10 {
        set_cluster_labels(&change.to_string())?;
    }
    let bytes_after = list_bytes()?;
    print_figure(&format!(
        "lists of values of {GROUP_COUNT} groups take {bytes_before} bytes, and {bytes_after} after ten changes"
    ));
    ensure!(bytes_after < 5 * bytes_before, "{bytes_after} bytes of lists after ten changes, and {bytes_before} before");
    controller.stop()
}

/// The tasks read 900 labels that no level provides. Previously, each node had all these names in memory, about 180
/// KiB. While a node was resolved, the names took as much again.
#[test]
fn x03_f07_reference_names_are_in_memory_once() -> Result<()> {
    const MAX_BYTES: u64 = 32 * MIB;
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let label = |number: usize| format!("{{{{ labels.k{number}{} }}}}", "y".repeat(50));
    let task = |number: usize| file_task(&format!("t{number}"), &(50 * number..50 * number + 50).map(label).collect::<String>());
    let (operator_token, admin_token) = apply_cluster(&url, &(0..18).map(task).collect::<Vec<_>>())?;
    add_objects(&url, &admin_token, &[json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["web"]})])?;
    let memory_before = controller.peak_memory_bytes()?;
    let node = |number: usize| json!({"kind": "Node", "name": format!("n{number}"), "nodegroup": "c/g"});
    add_objects(&url, &operator_token, &(0..300).map(node).collect::<Vec<_>>())?;
    wait_until_resolved(&url, &admin_token)?;
    let (records, _) = released_bytes(&url, &admin_token)?;
    ensure!(records < 300 * 1200, "{records} bytes of records");
    set_large_map(&url, (&operator_token, &admin_token), "/v1/clusters/c", ("labels", &format!("k0{}", "y".repeat(50)), 1), "x")?;
    let controller = check_memory_and_restart(controller, &admin_token, memory_before, MAX_BYTES)?;
    check_controller_memory(&controller, memory_before, MAX_BYTES)?;
    controller.stop()
}

/// A cluster provides 250 labels, and each of its groups one label. Previously, each group had all values in memory
/// three times: as inherited labels, as inputs of its tasks, and in its list of values. Each change left one more list
/// for each group.
#[test]
fn x03_f07_inherited_values_are_in_memory_once_for_many_groups() -> Result<()> {
    const MAX_BYTES: u64 = 48 * MIB;
    const GROUP_COUNT: usize = 150;
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let label = |number: usize| format!("{{{{ labels.k{number}{} }}}}", "y".repeat(50));
    let task = |number: usize| {
        file_task(
            &format!("t{number}"),
            &(50 * number..50 * number + 50).map(label).chain(["{{ labels.own }}".into()]).collect::<String>(),
        )
    };
    let (operator_token, admin_token) = apply_cluster(&url, &(0..5).map(task).collect::<Vec<_>>())?;
    let memory_before = controller.peak_memory_bytes()?;
    let labels: Map<String, Value> = (0..250).map(|number| (format!("k{number}{}", "y".repeat(50)), "x".into())).collect();
    let set_cluster_labels = |labels: Value| {
        let body = serde_json::to_vec(&json!({"labels": labels}))?;
        let response = call(&url, &operator_token, "PATCH /v1/clusters/c", (MERGE_PATCH_TYPE, &body))?;
        ensure!([200, 202].contains(&response.status), "{} {}", response.status, response.body);
        wait_until_resolved(&url, &admin_token)
    };
    set_cluster_labels(labels.into())?;
    let node = |number: usize| json!({"kind": "Node", "name": format!("n{number}"), "nodegroup": format!("c/g{number}")});
    let groups = (0..GROUP_COUNT).map(|number| group_body(number, "own"));
    add_objects(&url, &operator_token, &groups.chain((0..GROUP_COUNT).map(node)).collect::<Vec<_>>())?;
    wait_until_resolved(&url, &admin_token)?;
    for change in 0..6 {
        set_cluster_labels(json!({format!("k{}{}", change * 40, "y".repeat(50)): "z"}))?;
    }
    let controller = check_memory_and_restart(controller, &admin_token, memory_before, MAX_BYTES)?;
    check_controller_memory(&controller, memory_before, MAX_BYTES)?;
    controller.stop()
}

/// All nodes of a group have its tags. Previously, the record of each node contained all tags, 17 kB for 250 tags.
#[test]
fn x03_f07_group_tags_are_stored_once_for_many_nodes() -> Result<()> {
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let tags: Vec<String> = (0..250).map(|number| format!("t{number}-{}", "x".repeat(50))).collect();
    let tag_definitions: Map<String, Value> = tags.iter().map(|tag| (tag.clone(), json!({}))).collect();
    let task = |tag: &String| json!({"id": tag, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
    post(
        &url,
        "/v1/apply",
        &json!({"objects": [
            {"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": tags}}, "tags": tag_definitions, "tasks": [task(&tags[0])]},
            {"kind": "Cluster", "name": "c", "release": "site@1"},
            {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["web"]},
        ]}),
    )?;
    let admin_token = create_token(&url, "boss", "admin")?;
    let node = |number: usize| json!({"kind": "Node", "name": format!("n{number}"), "nodegroup": "c/g"});
    add_objects(&url, &admin_token, &(0..200).map(node).collect::<Vec<_>>())?;
    wait_until_resolved(&url, &admin_token)?;
    let (records, values) = released_bytes(&url, &admin_token)?;
    ensure!(records < 200 * 1024, "{records} bytes of 200 records");
    ensure!((250 * 50..64 * 1024).contains(&values), "{values} bytes of shared values");
    controller.stop()
}

/// In this test, the task reads 58 maps of labels, which all contain one label of the node and a label of 1,850 bytes
/// of its group. Each map is too small to be split into chunks, so the stored record of the node's task set takes 120
/// kB. Without a limit for the whole cluster, a few kilobytes of requests would fill memory and disk. A write beyond
/// the limit changes nothing, and smaller values make room again. The record of a node without such a label of its own
/// is small, so the limit counts each node of a group by its own size.
#[test]
fn x03_f07_per_node_values_have_limit_for_cluster() -> Result<()> {
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let template = |number: usize| {
        format!("{{% for k, v in labels_with_prefix('{}') | items %}}{{{{ v }}}}{{% endfor %}}", "q".repeat(number))
    };
    let (operator_token, admin_token) = apply_cluster(&url, &[file_task("t", &(1..59).map(template).collect::<String>())])?;
    let [group_key, read_key, unread_key] = ["q", "q", "u"].map(|letter| letter.repeat(59));
    let (group_key, read_key, unread_key) = (format!("{group_key}0"), format!("{read_key}own"), format!("{unread_key}own"));
    let group = |name: &str| {
        let labels = json!({group_key.clone(): "x".repeat(1_850)});
        json!({"kind": "NodeGroup", "cluster": "c", "name": name, "roles": ["web"], "labels": labels})
    };
    let node = |group: &str, number: usize, label: &str| {
        let labels = json!({label: format!("v{number:04}")});
        json!({"kind": "Node", "name": format!("{group}{number}"), "nodegroup": format!("c/{group}"), "labels": labels})
    };
    // In the group "small" only the first node has a large record. In the group "large" all nodes except the first have
    // a large record.
    let small_nodes = (1..=400).map(|number| node("small", number, &unread_key));
    let groups = [group("small"), group("large"), node("small", 0, &read_key), node("large", 0, &unread_key)];
    add_objects(&url, &admin_token, &groups.into_iter().chain(small_nodes).collect::<Vec<_>>())?;
    wait_until_resolved(&url, &admin_token)?;
    let patch_group = |group_name: &str, value: &Value| {
        let body = json!([{"op": "add", "path": format!("/labels/{group_key}"), "value": value}]);
        let path = format!("PATCH /v1/clusters/c/nodegroups/{group_name}");
        call(&url, &operator_token, &path, (JSON_PATCH_TYPE, &serde_json::to_vec(&body)?))
    };
    let response = patch_group("small", &json!("y".repeat(1_851)))?;
    ensure!(
        [200, 202].contains(&response.status),
        "the limit counts each node by its own size: {} {}",
        response.status,
        response.body
    );
    wait_until_resolved(&url, &admin_token)?;
    let (records, _) = released_bytes(&url, &admin_token)?;
    ensure!(records < MIB, "{records} bytes, because changed values of a group are stored once");
    let apply_nodes = |nodes: std::ops::Range<usize>| {
        let objects = json!({"objects": nodes.map(|number| node("large", number, &read_key)).collect::<Vec<_>>()});
        call(&url, &operator_token, "POST /v1/apply", (JSON_TYPE, &serde_json::to_vec(&objects)?))
    };
    let mut node_count = 1;
    let refused_response = loop {
        let response = apply_nodes(node_count..node_count + 75)?;
        if response.status != 200 {
            break response;
        }
        node_count += 75;
        ensure!(node_count < 600, "{node_count} nodes of 120 kB each");
        wait_until_resolved(&url, &admin_token)?;
    };
    let is_refused = |response: &RawResponse| {
        let expected_texts = ["object.too_many", "what is released to the nodes of cluster c would take about"];
        response.status == 409 && expected_texts.iter().all(|text| response.body.contains(text))
    };
    ensure!(is_refused(&refused_response), "{} {}", refused_response.status, refused_response.body);
    let (records, _) = released_bytes(&url, &admin_token)?;
    ensure!((20 * MIB..48 * MIB).contains(&records), "{records} bytes of records");
    let node_exists = |number: usize| {
        Ok::<_, anyhow::Error>(
            call(&url, &operator_token, &format!("GET /v1/nodes/large{number}"), (JSON_TYPE, b""))?.status == 200,
        )
    };
    ensure!(node_exists(node_count - 1)? && !node_exists(node_count)?, "the refused write changed nothing");
    let body = serde_json::to_vec(&json!({"annotations": {"a": "b"}}))?;
    let response = call(&url, &operator_token, "PATCH /v1/nodes/large1", (MERGE_PATCH_TYPE, &body))?;
    ensure!(
        [200, 202].contains(&response.status),
        "a write that makes no record larger is accepted: {} {}",
        response.status,
        response.body
    );
    // A smaller label makes each record smaller, which makes room.
    let response = patch_group("large", &json!("y"))?;
    ensure!([200, 202].contains(&response.status), "{} {}", response.status, response.body);
    wait_until_resolved(&url, &admin_token)?;
    let response = apply_nodes(node_count..node_count + 75)?;
    ensure!(response.status == 200 && node_exists(node_count + 74)?, "{} {}", response.status, response.body);
    wait_until_resolved(&url, &admin_token)?;
    let response = patch_group("large", &json!("x".repeat(1_850)))?;
    ensure!(is_refused(&response), "all records but the first would become larger: {} {}", response.status, response.body);
    controller.stop()
}

/// A body of 3 MB with 200,000 texts takes about 20 MiB when it is parsed. The memory limit is three times that.
/// Previously, the request took 22 s, because each trait was compared with all other traits.
#[test]
fn x03_f08_allocation_is_refused_quickly_when_traits_are_too_many() -> Result<()> {
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let operator_token = create_token(&url, "otto", "operator")?;
    let allocate = |name: &str, count: usize| -> Result<RawResponse> {
        let traits: Vec<String> = (0..count).map(|n| format!("CUSTOM_{n}")).collect();
        let body = serde_json::to_vec(&json!({"name": name, "resource_class": "small", "traits": traits}))?;
        call(&url, &operator_token, "POST /v1/allocations", (JSON_TYPE, &body))
    };
    let memory_before = controller.peak_memory_bytes()?;
    let start_time = Instant::now();
    let response = allocate("too-many", 200_000)?;
    let duration = start_time.elapsed();
    let expected_text = "traits: it has 200000 entries, and the maximum is 50";
    ensure!(response.status == 400 && response.body.contains(expected_text), "{} {}", response.status, response.body);
    ensure!(duration < Duration::from_secs(10), "it took {duration:?}");
    let response = allocate("at-the-bound", 50)?;
    ensure!(response.status == 201, "{} {}", response.status, response.body);
    check_controller_memory(&controller, memory_before, 64 * MIB)?;
    controller.stop()
}
