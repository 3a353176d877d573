//! What principals can store, and what it costs afterwards.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::{Map, Value, json};
use stemma_tests::plain_controller::PlainController;

use super::{
    JSON_PATCH_TYPE, JSON_TYPE, MAX_WAIT, MERGE_PATCH_TYPE, MIB, RawResponse, call, check_memory_of_site, create_cluster_token,
    create_token, print_figure, wait_until_resolved,
};
use crate::description::post;

/// Returns the disk usage of the files below a directory, in bytes. A file that disappears in the meantime counts as 0.
fn disk_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let Ok(about) = entry.metadata() else { continue };
        bytes += if about.is_dir() { disk_bytes(&entry.path())? } else { about.blocks() * 512 };
    }
    Ok(bytes)
}

/// Writes the longest text that a node may have, with a JSON patch.
fn write_large_patch(site: &str, token: &str, number: usize) -> Result<RawResponse> {
    let patch = json!([{"op": "add", "path": "/extra/text", "value": format!("{number:0>60000}")}]);
    call(site, token, "PATCH /v1/nodes/n", (JSON_PATCH_TYPE, &serde_json::to_vec(&patch)?))
}

/// A principal may store 32 MiB at once and 256 KiB per second (docs/store.md), whatever it writes. The store's file
/// doubles when it grows, and each page takes up to twice its content, so the disk usage may be four times as much.
/// Memory contains 64 MiB of the store's pages and 16 MiB of the last changes. The limit is twice that.
#[test]
fn x03_f04_store_grows_at_limited_rate_when_writes_are_fast() -> Result<()> {
    const MAX_BURST_BYTES: u64 = 32 * MIB;
    const BYTES_PER_SECOND: u64 = 256 * 1024;
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let objects = json!([
        {"kind": "Cluster", "name": "own"},
        {"kind": "NodeGroup", "cluster": "own", "name": "web"},
        {"kind": "Node", "name": "n", "nodegroup": "own/web"},
    ]);
    post(&at, "/v1/apply", &json!({"objects": objects}))?;
    let operator = create_cluster_token(&at, "otto", "operator", Some("own"))?;
    let boss = create_token(&at, "boss", "admin")?;
    let (before, stood, began) = (site.peak_memory_bytes()?, disk_bytes(&site.data_dir())?, Instant::now());
    let (mut made, mut put_off) = (0, 0);
    while put_off < 100 {
        let told = write_large_patch(&at, &operator, made)?;
        match told.status {
            200 => made += 1,
            503 => put_off += 1,
            status => bail!("{status} {}", told.body),
        }
        ensure!(told.status == 200 || told.is_busy(), "{} {}", told.head, told.body);
        ensure!(made < 1_000, "{made} writes in {:?}, and it goes on", began.elapsed());
    }
    ensure!(made > 200, "it is the pace that ends it, and not {made} writes");
    let taken = disk_bytes(&site.data_dir())?.saturating_sub(stood);
    let most = 4 * (MAX_BURST_BYTES + BYTES_PER_SECOND * (began.elapsed().as_secs() + 1));
    let said = format!("{made} writes of 60 kB came to take {} MiB of the disk", taken / MIB);
    print_figure(&said);
    ensure!(taken < most, "{said}, and may {} MiB", most / MIB);
    let told = write_large_patch(&at, &boss, 1_000)?;
    ensure!(told.status == 200, "an admin writes: {} {}", told.status, told.body);
    check_memory_of_site(&site, before, 160 * MIB)?;
    site.stop()
}

/// Each tag has a title of a kilobyte, so a table of them for each group would take half a gigabyte. The store keeps at
/// most 80 MiB of its pages and last changes in memory. The limit is twice that.
#[test]
fn x03_f07_cluster_tags_and_groups_take_bounded_memory_after_restart() -> Result<()> {
    const MAX_BYTES: u64 = 160 * MIB;
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let author = create_token(&at, "author", "admin")?;
    let before = site.peak_memory_bytes()?;
    let title = "t".repeat(1_000);
    let tags: Map<String, Value> = (0..256).map(|n| (format!("t{n}"), json!({"title": title}))).collect();
    let objects = json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["web"]}}, "tags": {"web": {}},
         "tasks": [{"id": "motd", "type": "file", "tags": ["web"], "parameters": {"path": "/etc/motd", "content": "x"}}]},
        {"kind": "Cluster", "name": "c", "release": "site@1", "tags": tags},
    ]);
    let body = serde_json::to_vec(&json!({"objects": objects}))?;
    let told = call(&at, &author, "POST /v1/apply", (JSON_TYPE, &body))?;
    ensure!(told.status == 200, "as many tags as a cluster may have: {} {}", told.status, told.body);
    for batch in 0..4 {
        let group = |n: usize| json!({"kind": "NodeGroup", "cluster": "c", "name": format!("g{batch}-{n}")});
        let groups: Vec<Value> = (0..500).map(group).collect();
        post(&at, "/v1/apply", &json!({"objects": groups}))?;
    }
    let tags: Map<String, Value> = (0..50_000).map(|n| (format!("t{n}"), json!({}))).collect();
    let body = serde_json::to_vec(&json!({"tags": tags}))?;
    let told = call(&at, &author, "PATCH /v1/clusters/c", (MERGE_PATCH_TYPE, &body))?;
    let is_refused = (400..500).contains(&told.status) && told.body.contains("and the most are 256");
    ensure!(is_refused, "fifty thousand tags: {} {}", told.status, told.body);
    check_memory_of_site(&site, before, MAX_BYTES)?;

    let site = site.restart()?;
    let at = site.addresses.admin.clone();
    check_memory_of_site(&site, before, MAX_BYTES)?;
    let body = serde_json::to_vec(&json!({"description": "after the restart"}))?;
    let told = call(&at, &author, "PATCH /v1/clusters/c", (MERGE_PATCH_TYPE, &body))?;
    ensure!([200, 202].contains(&told.status), "the next write: {} {}", told.status, told.body);
    check_memory_of_site(&site, before, MAX_BYTES)?;
    site.stop()
}

/// Applies a release with these tasks and a cluster that uses it. Returns the tokens of an operator of the cluster and
/// of an admin.
fn apply_cluster(site: &str, tasks: &[Value]) -> Result<(String, String)> {
    let objects = json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["web"]}}, "tags": {"web": {}},
         "tasks": tasks},
        {"kind": "Cluster", "name": "c", "release": "site@1"},
    ]);
    post(site, "/v1/apply", &json!({"objects": objects}))?;
    Ok((create_cluster_token(site, "otto", "operator", Some("c"))?, create_token(site, "boss", "admin")?))
}

/// Returns a group of that cluster with one label of its own.
fn group_body(number: usize, key: &str) -> Value {
    let name = format!("g{number}");
    json!({"kind": "NodeGroup", "cluster": "c", "name": name, "roles": ["web"], "labels": {key: name}})
}

/// Returns a task that renders a file from this template.
fn file_task(id: &str, template: &str) -> Value {
    json!({"id": id, "type": "file", "tags": ["web"], "parameters": {"path": format!("/tmp/{id}"), "template": template}})
}

/// Adds a thousand nodes in two writes.
fn add_thousand_nodes(site: &str, token: &str, node: impl Fn(usize) -> Value) -> Result<()> {
    [0..500, 500..1_000].into_iter().try_for_each(|batch| add_objects(site, token, &batch.map(&node).collect::<Vec<_>>()))
}

/// Adds objects in one write.
fn add_objects(site: &str, token: &str, objects: &[Value]) -> Result<()> {
    let told = call(site, token, "POST /v1/apply", (JSON_TYPE, &serde_json::to_vec(&json!({"objects": objects}))?))?;
    ensure!(told.status == 200, "{} {}", told.status, told.body);
    Ok(())
}

/// Sets this number of texts of 4,000 bytes in a map of an object, except for the first text. Waits until all nodes are
/// resolved.
fn set_large_map(
    site: &str,
    (operator, boss): (&str, &str),
    at: &str,
    (map, key, count): (&str, &str, usize),
    first: &str,
) -> Result<()> {
    let text = |n: usize| if n == 0 { first.to_owned() } else { format!("{n:0>4000}") };
    let texts: Map<String, Value> = (0..count).map(|n| (format!("{key}{n}"), text(n).into())).collect();
    let body = serde_json::to_vec(&json!({map: texts}))?;
    let told = call(site, operator, &format!("PATCH {at}"), (MERGE_PATCH_TYPE, &body))?;
    ensure!([200, 202].contains(&told.status), "{} {}", told.status, told.body);
    wait_until_resolved(site, boss)
}

/// All nodes of a group inherit its annotations. They are in memory once, not once per node.
#[test]
fn x03_f07_group_annotations_are_held_once_after_change_and_restart() -> Result<()> {
    const MAX_BYTES: u64 = 96 * MIB;
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    post(&at, "/v1/clusters", &json!({"name": "c"}))?;
    post(&at, "/v1/apply", &json!({"objects": [{"kind": "NodeGroup", "cluster": "c", "name": "g"}]}))?;
    let (operator, boss) = (create_cluster_token(&at, "otto", "operator", Some("c"))?, create_token(&at, "boss", "admin")?);
    let before = site.peak_memory_bytes()?;
    let annotate = |at: &str, first: &str| {
        set_large_map(at, (&operator, &boss), "/v1/clusters/c/nodegroups/g", ("annotations", "a", 56), first)
    };
    annotate(&at, "x")?;
    add_thousand_nodes(&at, &operator, |n| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "c/g"}))?;
    annotate(&at, "y")?;
    check_memory_of_site(&site, before, MAX_BYTES)?;
    let site = site.restart()?;
    let at = site.addresses.admin.clone();
    wait_until_resolved(&at, &boss)?;
    annotate(&at, "z")?;
    check_memory_of_site(&site, before, MAX_BYTES)?;
    site.stop()
}

/// Each node has another value of the label that the conditions read, so that no two are equal. A condition that
/// excludes a task from many nodes is in memory once.
#[test]
fn x03_f07_conditions_are_held_once_for_many_nodes() -> Result<()> {
    const MAX_BYTES: u64 = 128 * MIB;
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let condition = format!("labels.own == 'never' && '{}' == 'x'", "q".repeat(3_000));
    let task = |n: usize| {
        json!({"id": format!("t{n}"), "type": "shell", "tags": ["web"], "condition": condition,
            "parameters": {"script": "true"}})
    };
    let tasks: Vec<Value> = (0..40).map(task).collect();
    let (operator, boss) = apply_cluster(&at, &tasks)?;
    add_objects(&at, &boss, &[json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["web"]})])?;
    let before = site.peak_memory_bytes()?;
    add_thousand_nodes(
        &at,
        &operator,
        |n| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "c/g", "labels": {"own": format!("v{n}")}}),
    )?;
    wait_until_resolved(&at, &boss)?;
    check_memory_of_site(&site, before, MAX_BYTES)?;
    let site = site.restart()?;
    let at = site.addresses.admin.clone();
    wait_until_resolved(&at, &boss)?;
    check_memory_of_site(&site, before, MAX_BYTES)?;
    site.stop()
}

/// Returns the size of this part of the store in bytes, after it has been counted.
fn stored_bytes(site: &str, token: &str, what: &str) -> Result<u64> {
    let name = format!("stemma_store_bytes{{of=\"{what}\"}} ");
    let began = Instant::now();
    while began.elapsed() < MAX_WAIT {
        let metrics = call(site, token, "GET /metrics", (JSON_TYPE, b""))?.body;
        let of_this = metrics.lines().find_map(|line| line.strip_prefix(name.as_str()));
        if let Some(bytes) = of_this {
            return Ok(bytes.trim().parse()?);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("the store was not counted")
}

/// Returns the sizes of the nodes' release records, and of the values and texts that they refer to.
fn released_bytes(site: &str, token: &str) -> Result<(u64, u64)> {
    let stored = |what| stored_bytes(site, token, what);
    Ok((stored("released")?, stored("released_values")? + stored("released_texts")?))
}

/// The tasks of a thousand nodes read 60 kB of labels of the cluster, and labels of the node. The cluster's values are
/// stored once for all groups: the record of a node has some hundred bytes, and a change stores one more set of values.
/// Previously, each node stored all of them, 60 MB with each change.
#[test]
fn x03_f07_read_values_are_stored_and_held_once() -> Result<()> {
    const MAX_BYTES: u64 = 128 * MIB;
    const MAX_STORED_BYTES: u64 = 3 * MIB;
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let task = |n: usize| {
        let reads = (0..3).map(|m| format!("{{{{ labels.a{} }}}}", 3 * n + m)).collect::<Vec<_>>().join(" ");
        file_task(&format!("t{n}"), &format!("{{{{ labels.own }}}} {{{{ labels['of-group'] }}}} {{{{ node.name }}}} {reads}"))
    };
    let tasks: Vec<Value> = (0..5).map(task).collect();
    let (operator, boss) = apply_cluster(&at, &tasks)?;
    add_objects(&at, &boss, &(0..10).map(|n| group_body(n, "of-group")).collect::<Vec<_>>())?;
    let before = site.peak_memory_bytes()?;
    let say_in_cluster =
        |at: &str, first: &str| set_large_map(at, (&operator, &boss), "/v1/clusters/c", ("labels", "a", 15), first);
    say_in_cluster(&at, "x")?;
    let node = |n: usize| {
        let (name, group, labels) = (format!("n{n}"), format!("c/g{}", n % 10), json!({"own": format!("v{n}")}));
        json!({"kind": "Node", "name": name, "nodegroup": group, "labels": labels})
    };
    add_thousand_nodes(&at, &operator, node)?;
    wait_until_resolved(&at, &boss)?;
    let (records, values) = released_bytes(&at, &boss)?;
    print_figure(&format!(
        "what is released to 1,000 nodes takes {} KiB, and the values that they name {values} bytes",
        records / 1024
    ));
    ensure!(records < MAX_STORED_BYTES, "{records} bytes");
    ensure!((56_000..112_000).contains(&values), "one set of values for all groups: {values} bytes");
    for first in ["y", "z"] {
        say_in_cluster(&at, first)?;
    }
    let stored = released_bytes(&at, &boss)?;
    ensure!(stored.0 < MAX_STORED_BYTES && stored.1 < 4 * 60_000, "{stored:?} bytes after two changes");
    check_memory_of_site(&site, before, MAX_BYTES)?;
    let site = site.restart()?;
    let at = site.addresses.admin.clone();
    wait_until_resolved(&at, &boss)?;
    ensure!(released_bytes(&at, &boss)? == stored, "a restart stores nothing");
    say_in_cluster(&at, "w")?;
    check_memory_of_site(&site, before, MAX_BYTES)?;
    site.stop()
}

/// The tasks of 300 nodes read a map of labels: 60 kB of the cluster, one label of the group and one of the node. No
/// two of these maps are equal, and their common part is stored and in memory once. Previously, each node took 60 kB on
/// disk and 250 to 400 KiB in memory.
#[test]
fn x03_f07_read_maps_with_own_entries_are_stored_once() -> Result<()> {
    const MAX_BYTES: u64 = 64 * MIB;
    const MAX_STORED_BYTES: u64 = MIB;
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let template = "{% for key, value in labels_with_prefix('a/') | items %}{{ key }} {{ value }}{% endfor %}";
    let task = file_task("t", template);
    let (operator, boss) = apply_cluster(&at, &[task])?;
    let before = site.peak_memory_bytes()?;
    let say_in_cluster =
        |at: &str, first: &str| set_large_map(at, (&operator, &boss), "/v1/clusters/c", ("labels", "a/", 15), first);
    say_in_cluster(&at, "x")?;
    let node = |n: usize| {
        let labels = json!({"a/own": format!("v{n}")});
        json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": format!("c/g{}", n % 100), "labels": labels})
    };
    add_objects(&at, &operator, &(0..100).map(|n| group_body(n, "a/of-group")).chain((0..300).map(node)).collect::<Vec<_>>())?;
    wait_until_resolved(&at, &boss)?;
    let (records, values) = released_bytes(&at, &boss)?;
    print_figure(&format!("what is released to 300 nodes takes {} KiB, and what they have alike {values} bytes", records / 1024));
    ensure!(records < MAX_STORED_BYTES, "{records} bytes");
    ensure!((56_000..MAX_STORED_BYTES).contains(&values), "one set of values for all nodes: {values} bytes");
    say_in_cluster(&at, "y")?;
    let stored = released_bytes(&at, &boss)?;
    ensure!(stored.0 < MAX_STORED_BYTES && stored.1 < MAX_STORED_BYTES, "{stored:?} bytes after a change");
    check_memory_of_site(&site, before, MAX_BYTES)?;
    let site = site.restart()?;
    let at = site.addresses.admin.clone();
    wait_until_resolved(&at, &boss)?;
    ensure!(released_bytes(&at, &boss)? == stored, "a restart stores nothing");
    say_in_cluster(&at, "w")?;
    check_memory_of_site(&site, before, MAX_BYTES)?;
    site.stop()
}

/// Each change of the cluster's labels creates another list of values for each group. Previously, unused lists stayed
/// for ten minutes, because the decision when to sweep did not count them.
#[test]
fn x03_f07_store_deletes_value_lists_when_unreferenced() -> Result<()> {
    const GROUP_COUNT: usize = 100;
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let reads: String = (0..15).map(|n| format!("{{{{ labels.a{n} }}}}")).collect();
    let task = file_task("t", &format!("{{{{ labels['of-group'] }}}}{reads}"));
    let (operator, boss) = apply_cluster(&at, &[task])?;
    let say_in_cluster = |first: &str| set_large_map(&at, (&operator, &boss), "/v1/clusters/c", ("labels", "a", 15), first);
    say_in_cluster("x")?;
    let node = |n: usize| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": format!("c/g{n}")});
    let groups = (0..GROUP_COUNT).map(|n| group_body(n, "of-group"));
    add_objects(&at, &operator, &groups.chain((0..GROUP_COUNT).map(node)).collect::<Vec<_>>())?;
    wait_until_resolved(&at, &boss)?;
    let lists = || stored_bytes(&at, &boss, "released_value_lists");
    let first = lists()?;
    ensure!(first > 0, "each group has a list");
    for change in 0..10 {
        say_in_cluster(&change.to_string())?;
    }
    let last = lists()?;
    print_figure(&format!("lists of values of {GROUP_COUNT} groups take {first} bytes, and {last} after ten changes"));
    ensure!(last < 5 * first, "{last} bytes of lists after ten changes, and {first} before");
    site.stop()
}

/// The tasks read 900 labels that nothing provides. Previously, each node held all of their names, about 180 KiB, and
/// as much again while it was resolved.
#[test]
fn x03_f07_read_names_are_held_once() -> Result<()> {
    const MAX_BYTES: u64 = 32 * MIB;
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let label = |n: usize| format!("{{{{ labels.k{n}{} }}}}", "y".repeat(50));
    let task = |n: usize| file_task(&format!("t{n}"), &(50 * n..50 * n + 50).map(label).collect::<String>());
    let (operator, boss) = apply_cluster(&at, &(0..18).map(task).collect::<Vec<_>>())?;
    add_objects(&at, &boss, &[json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["web"]})])?;
    let before = site.peak_memory_bytes()?;
    let node = |n: usize| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "c/g"});
    add_objects(&at, &operator, &(0..300).map(node).collect::<Vec<_>>())?;
    wait_until_resolved(&at, &boss)?;
    let (records, _) = released_bytes(&at, &boss)?;
    ensure!(records < 300 * 1200, "{records} bytes of records");
    set_large_map(&at, (&operator, &boss), "/v1/clusters/c", ("labels", &format!("k0{}", "y".repeat(50)), 1), "x")?;
    check_memory_of_site(&site, before, MAX_BYTES)?;
    let site = site.restart()?;
    wait_until_resolved(&site.addresses.admin, &boss)?;
    check_memory_of_site(&site, before, MAX_BYTES)?;
    site.stop()
}

/// A cluster provides 250 labels, and each of its groups one. Previously, each group held all of them three times: as
/// inherited labels, as inputs of its tasks, and in its list of values. Each change left one more list for each group.
#[test]
fn x03_f07_inherited_values_are_held_once_for_many_groups() -> Result<()> {
    const MAX_BYTES: u64 = 48 * MIB;
    const GROUP_COUNT: usize = 150;
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let label = |n: usize| format!("{{{{ labels.k{n}{} }}}}", "y".repeat(50));
    let task = |n: usize| {
        file_task(&format!("t{n}"), &(50 * n..50 * n + 50).map(label).chain(["{{ labels.own }}".into()]).collect::<String>())
    };
    let (operator, boss) = apply_cluster(&at, &(0..5).map(task).collect::<Vec<_>>())?;
    let before = site.peak_memory_bytes()?;
    let labels: Map<String, Value> = (0..250).map(|n| (format!("k{n}{}", "y".repeat(50)), "x".into())).collect();
    let say_in_cluster = |labels: Value| {
        let body = serde_json::to_vec(&json!({"labels": labels}))?;
        let told = call(&at, &operator, "PATCH /v1/clusters/c", (MERGE_PATCH_TYPE, &body))?;
        ensure!([200, 202].contains(&told.status), "{} {}", told.status, told.body);
        wait_until_resolved(&at, &boss)
    };
    say_in_cluster(labels.into())?;
    let node = |n: usize| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": format!("c/g{n}")});
    let groups = (0..GROUP_COUNT).map(|n| group_body(n, "own"));
    add_objects(&at, &operator, &groups.chain((0..GROUP_COUNT).map(node)).collect::<Vec<_>>())?;
    wait_until_resolved(&at, &boss)?;
    for change in 0..6 {
        say_in_cluster(json!({format!("k{}{}", change * 40, "y".repeat(50)): "z"}))?;
    }
    check_memory_of_site(&site, before, MAX_BYTES)?;
    let site = site.restart()?;
    wait_until_resolved(&site.addresses.admin, &boss)?;
    check_memory_of_site(&site, before, MAX_BYTES)?;
    site.stop()
}

/// All nodes of a group have its tags. Previously, the record of each node contained them, 17 kB for 250 tags.
#[test]
fn x03_f07_group_tags_are_stored_once_for_many_nodes() -> Result<()> {
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let tags: Vec<String> = (0..250).map(|n| format!("t{n}-{}", "x".repeat(50))).collect();
    let known: Map<String, Value> = tags.iter().map(|tag| (tag.clone(), json!({}))).collect();
    let task = |tag: &String| json!({"id": tag, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
    post(
        &at,
        "/v1/apply",
        &json!({"objects": [
            {"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": tags}}, "tags": known, "tasks": [task(&tags[0])]},
            {"kind": "Cluster", "name": "c", "release": "site@1"},
            {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["web"]},
        ]}),
    )?;
    let boss = create_token(&at, "boss", "admin")?;
    let node = |n: usize| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "c/g"});
    add_objects(&at, &boss, &(0..200).map(node).collect::<Vec<_>>())?;
    wait_until_resolved(&at, &boss)?;
    let (records, values) = released_bytes(&at, &boss)?;
    ensure!(records < 200 * 1024, "{records} bytes of 200 records");
    ensure!((250 * 50..64 * 1024).contains(&values), "{values} bytes for all of them");
    site.stop()
}

/// One label of a node is in 58 maps that its tasks read, each too small to be split into chunks: 120 kB per node.
/// Without a limit for all of them together, a few kilobytes of requests filled memory and disk. A write beyond the
/// limit changes nothing, and smaller values make room again. Nodes of one group can differ: the tasks of one may read
/// labels that the tasks of another do not.
#[test]
fn x03_f07_per_node_values_have_limit_for_cluster() -> Result<()> {
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let map = |n: usize| format!("{{% for k, v in labels_with_prefix('{}') | items %}}{{{{ v }}}}{{% endfor %}}", "q".repeat(n));
    let (operator, boss) = apply_cluster(&at, &[file_task("t", &(1..59).map(map).collect::<String>())])?;
    let [of_group, read, unread] = ["q", "q", "u"].map(|letter| letter.repeat(59));
    let (of_group, read, unread) = (format!("{of_group}0"), format!("{read}own"), format!("{unread}own"));
    let group = |name: &str| {
        let labels = json!({of_group.clone(): "x".repeat(1_850)});
        json!({"kind": "NodeGroup", "cluster": "c", "name": name, "roles": ["web"], "labels": labels})
    };
    let node = |group: &str, n: usize, label: &str| {
        let labels = json!({label: format!("v{n:04}")});
        json!({"kind": "Node", "name": format!("{group}{n}"), "nodegroup": format!("c/{group}"), "labels": labels})
    };
    // In one group the first node has a large record, in the other group all nodes except the first.
    let small = (1..=400).map(|n| node("small", n, &unread));
    let groups = [group("small"), group("large"), node("small", 0, &read), node("large", 0, &unread)];
    add_objects(&at, &boss, &groups.into_iter().chain(small).collect::<Vec<_>>())?;
    wait_until_resolved(&at, &boss)?;
    let patch = |of: &str, value: &Value| {
        let body = json!([{"op": "add", "path": format!("/labels/{of_group}"), "value": value}]);
        let path = format!("PATCH /v1/clusters/c/nodegroups/{of}");
        call(&at, &operator, &path, (JSON_PATCH_TYPE, &serde_json::to_vec(&body)?))
    };
    let told = patch("small", &json!("y".repeat(1_851)))?;
    ensure!([200, 202].contains(&told.status), "each node is judged: {} {}", told.status, told.body);
    wait_until_resolved(&at, &boss)?;
    let (records, _) = released_bytes(&at, &boss)?;
    ensure!(records < MIB, "{records} bytes: what a group says stays its group's where it changes");
    let send = |nodes: std::ops::Range<usize>| {
        let objects = json!({"objects": nodes.map(|n| node("large", n, &read)).collect::<Vec<_>>()});
        call(&at, &operator, "POST /v1/apply", (JSON_TYPE, &serde_json::to_vec(&objects)?))
    };
    let mut made = 1;
    let refused = loop {
        let told = send(made..made + 75)?;
        if told.status != 200 {
            break told;
        }
        made += 75;
        ensure!(made < 600, "{made} nodes of 120 kB each");
        wait_until_resolved(&at, &boss)?;
    };
    let is_refused = |told: &RawResponse| {
        let says = ["object.too_many", "what is released to the nodes of cluster c would take about"];
        told.status == 409 && says.iter().all(|text| told.body.contains(text))
    };
    ensure!(is_refused(&refused), "{} {}", refused.status, refused.body);
    let (records, _) = released_bytes(&at, &boss)?;
    ensure!((20 * MIB..48 * MIB).contains(&records), "{records} bytes of records");
    let is_there = |n: usize| {
        Ok::<_, anyhow::Error>(call(&at, &operator, &format!("GET /v1/nodes/large{n}"), (JSON_TYPE, b""))?.status == 200)
    };
    ensure!(is_there(made - 1)? && !is_there(made)?, "nothing was changed by the write that was refused");
    let body = serde_json::to_vec(&json!({"annotations": {"a": "b"}}))?;
    let told = call(&at, &operator, "PATCH /v1/nodes/large1", (MERGE_PATCH_TYPE, &body))?;
    ensure!([200, 202].contains(&told.status), "what makes nothing larger is taken: {} {}", told.status, told.body);
    // A smaller label makes each record smaller, which makes room.
    let told = patch("large", &json!("y"))?;
    ensure!([200, 202].contains(&told.status), "{} {}", told.status, told.body);
    wait_until_resolved(&at, &boss)?;
    let told = send(made..made + 75)?;
    ensure!(told.status == 200 && is_there(made + 74)?, "{} {}", told.status, told.body);
    wait_until_resolved(&at, &boss)?;
    let told = patch("large", &json!("x".repeat(1_850)))?;
    ensure!(is_refused(&told), "all but the first would become larger: {} {}", told.status, told.body);
    site.stop()
}

/// A body of 3 MB with 200,000 texts takes about 20 MiB when it is parsed. The limit is three times that. Previously,
/// the request took 22 s, because each trait was compared with all others.
#[test]
fn x03_f08_allocation_is_refused_quickly_when_traits_are_too_many() -> Result<()> {
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let operator = create_token(&at, "otto", "operator")?;
    let allocate = |name: &str, count: usize| -> Result<RawResponse> {
        let traits: Vec<String> = (0..count).map(|n| format!("CUSTOM_{n}")).collect();
        let body = serde_json::to_vec(&json!({"name": name, "resource_class": "small", "traits": traits}))?;
        call(&at, &operator, "POST /v1/allocations", (JSON_TYPE, &body))
    };
    let before = site.peak_memory_bytes()?;
    let began = Instant::now();
    let told = allocate("too-many", 200_000)?;
    let took = began.elapsed();
    let says = "traits: it has 200000 entries, and the most are 50";
    ensure!(told.status == 400 && told.body.contains(says), "{} {}", told.status, told.body);
    ensure!(took < Duration::from_secs(10), "it took {took:?}");
    let told = allocate("at-the-bound", 50)?;
    ensure!(told.status == 201, "{} {}", told.status, told.body);
    check_memory_of_site(&site, before, 64 * MIB)?;
    site.stop()
}
