//! What is stored, and what it costs from then on.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::{Map, Value, json};
use stemma_tests::plain::Plain;

use super::{
    JSON, JSON_PATCH, MERGE_PATCH, MIB, PATIENCE, Told, ask, is_served_within, say, token, token_within, until_resolved,
};
use crate::description::post;

/// What the files below a directory take on the disk, in bytes. One that is gone meanwhile takes nothing.
fn on_disk(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let Ok(about) = entry.metadata() else { continue };
        bytes += if about.is_dir() { on_disk(&entry.path())? } else { about.blocks() * 512 };
    }
    Ok(bytes)
}

/// A write as large as a text of a node may be, by a JSON patch.
fn change(site: &str, token: &str, number: usize) -> Result<Told> {
    let patch = json!([{"op": "add", "path": "/extra/text", "value": format!("{number:0>60000}")}]);
    ask(site, token, "PATCH /v1/nodes/n", (JSON_PATCH, &serde_json::to_vec(&patch)?))
}

/// A principal stores 32 MiB at once and 256 KiB a second (docs/store.md), whatever it writes. The store's file doubles where it grows, and
/// each page of it is up to twice what it holds, so the disk may take four times as much. In memory are 64 MiB of the store's pages and
/// 16 MiB of the last changes; the bound is twice that.
#[test]
fn x03_f04_who_writes_as_fast_as_they_can_fills_the_disk_at_a_pace() -> Result<()> {
    const AT_ONCE: u64 = 32 * MIB;
    const A_SECOND: u64 = 256 * 1024;
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let objects = json!([
        {"kind": "Cluster", "name": "own"},
        {"kind": "NodeGroup", "cluster": "own", "name": "web"},
        {"kind": "Node", "name": "n", "nodegroup": "own/web"},
    ]);
    post(&at, "/v1/apply", &json!({"objects": objects}))?;
    let operator = token_within(&at, "otto", "operator", Some("own"))?;
    let boss = token(&at, "boss", "admin")?;
    let (before, stood, began) = (site.most_memory()?, on_disk(&site.data())?, Instant::now());
    let (mut made, mut put_off) = (0, 0);
    while put_off < 100 {
        let told = change(&at, &operator, made)?;
        match told.status {
            200 => made += 1,
            503 => put_off += 1,
            status => bail!("{status} {}", told.body),
        }
        ensure!(told.status == 200 || told.is_busy(), "{} {}", told.head, told.body);
        ensure!(made < 1_000, "{made} writes in {:?}, and it goes on", began.elapsed());
    }
    ensure!(made > 200, "it is the pace that ends it, and not {made} writes");
    let taken = on_disk(&site.data())?.saturating_sub(stood);
    let most = 4 * (AT_ONCE + A_SECOND * (began.elapsed().as_secs() + 1));
    let said = format!("{made} writes of 60 kB came to take {} MiB of the disk", taken / MIB);
    say(&said);
    ensure!(taken < most, "{said}, and may {} MiB", most / MIB);
    let told = change(&at, &boss, 1_000)?;
    ensure!(told.status == 200, "an admin writes: {} {}", told.status, told.body);
    is_served_within(&site, before, 160 * MIB)?;
    site.stop()
}

/// Each of the tags has a title of a kilobyte: a table of them for each group would take half a gigabyte. What the store holds of its pages
/// and last changes is 80 MiB at most; the bound is twice that.
#[test]
fn x03_f07_many_tags_and_groups_of_a_cluster_take_no_more_after_a_restart() -> Result<()> {
    const MOST: u64 = 160 * MIB;
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let author = token(&at, "author", "admin")?;
    let before = site.most_memory()?;
    let title = "t".repeat(1_000);
    let tags: Map<String, Value> = (0..256).map(|n| (format!("t{n}"), json!({"title": title}))).collect();
    let objects = json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["web"]}}, "tags": {"web": {}},
         "tasks": [{"id": "motd", "type": "file", "tags": ["web"], "parameters": {"path": "/etc/motd", "content": "x"}}]},
        {"kind": "Cluster", "name": "c", "release": "site@1", "tags": tags},
    ]);
    let body = serde_json::to_vec(&json!({"objects": objects}))?;
    let told = ask(&at, &author, "POST /v1/apply", (JSON, &body))?;
    ensure!(told.status == 200, "as many tags as a cluster may have: {} {}", told.status, told.body);
    for batch in 0..4 {
        let group = |n: usize| json!({"kind": "NodeGroup", "cluster": "c", "name": format!("g{batch}-{n}")});
        let groups: Vec<Value> = (0..500).map(group).collect();
        post(&at, "/v1/apply", &json!({"objects": groups}))?;
    }
    let tags: Map<String, Value> = (0..50_000).map(|n| (format!("t{n}"), json!({}))).collect();
    let body = serde_json::to_vec(&json!({"tags": tags}))?;
    let told = ask(&at, &author, "PATCH /v1/clusters/c", (MERGE_PATCH, &body))?;
    let is_refused = (400..500).contains(&told.status) && told.body.contains("and the most are 256");
    ensure!(is_refused, "fifty thousand tags: {} {}", told.status, told.body);
    is_served_within(&site, before, MOST)?;

    let site = site.restarted()?;
    let at = site.bound.admin.clone();
    is_served_within(&site, before, MOST)?;
    let body = serde_json::to_vec(&json!({"description": "after the restart"}))?;
    let told = ask(&at, &author, "PATCH /v1/clusters/c", (MERGE_PATCH, &body))?;
    ensure!([200, 202].contains(&told.status), "the next write: {} {}", told.status, told.body);
    is_served_within(&site, before, MOST)?;
    site.stop()
}

/// Applies a release of these tasks and a cluster that has it. Gives the tokens of an operator who is bound to the cluster, and of an admin.
fn cluster_with(site: &str, tasks: &[Value]) -> Result<(String, String)> {
    let objects = json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["web"]}}, "tags": {"web": {}},
         "tasks": tasks},
        {"kind": "Cluster", "name": "c", "release": "site@1"},
    ]);
    post(site, "/v1/apply", &json!({"objects": objects}))?;
    Ok((token_within(site, "otto", "operator", Some("c"))?, token(site, "boss", "admin")?))
}

/// A group of that cluster, which says a little of its own by a label of this key.
fn group(number: usize, key: &str) -> Value {
    let name = format!("g{number}");
    json!({"kind": "NodeGroup", "cluster": "c", "name": name, "roles": ["web"], "labels": {key: name}})
}

/// A task that renders a file from these texts.
fn file_of(id: &str, template: &str) -> Value {
    json!({"id": id, "type": "file", "tags": ["web"], "parameters": {"path": format!("/tmp/{id}"), "template": template}})
}

/// Adds a thousand nodes, half of them with each write.
fn add_thousand(site: &str, token: &str, node: impl Fn(usize) -> Value) -> Result<()> {
    [0..500, 500..1_000].into_iter().try_for_each(|batch| add(site, token, &batch.map(&node).collect::<Vec<_>>()))
}

/// Adds objects with one write.
fn add(site: &str, token: &str, objects: &[Value]) -> Result<()> {
    let told = ask(site, token, "POST /v1/apply", (JSON, &serde_json::to_vec(&json!({"objects": objects}))?))?;
    ensure!(told.status == 200, "{} {}", told.status, told.body);
    Ok(())
}

/// Has an object say so many texts of 4,000 bytes in a map of texts, but for the first one, and waits until all nodes are resolved by that.
fn say_much(
    site: &str,
    (operator, boss): (&str, &str),
    at: &str,
    (map, key, count): (&str, &str, usize),
    first: &str,
) -> Result<()> {
    let text = |n: usize| if n == 0 { first.to_owned() } else { format!("{n:0>4000}") };
    let texts: Map<String, Value> = (0..count).map(|n| (format!("{key}{n}"), text(n).into())).collect();
    let body = serde_json::to_vec(&json!({map: texts}))?;
    let told = ask(site, operator, &format!("PATCH {at}"), (MERGE_PATCH, &body))?;
    ensure!([200, 202].contains(&told.status), "{} {}", told.status, told.body);
    until_resolved(site, boss)
}

/// What a group says reaches each of its nodes; it is held once, and not for each of them.
#[test]
fn x03_f07_annotations_of_a_group_of_many_nodes_are_held_once_also_after_a_change_and_a_restart() -> Result<()> {
    const MOST: u64 = 96 * MIB;
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    post(&at, "/v1/clusters", &json!({"name": "c"}))?;
    post(&at, "/v1/apply", &json!({"objects": [{"kind": "NodeGroup", "cluster": "c", "name": "g"}]}))?;
    let (operator, boss) = (token_within(&at, "otto", "operator", Some("c"))?, token(&at, "boss", "admin")?);
    let before = site.most_memory()?;
    let annotate = |at: &str, first: &str| {
        say_much(at, (&operator, &boss), "/v1/clusters/c/nodegroups/g", ("annotations", "a", 56), first)
    };
    annotate(&at, "x")?;
    add_thousand(&at, &operator, |n| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "c/g"}))?;
    annotate(&at, "y")?;
    is_served_within(&site, before, MOST)?;
    let site = site.restarted()?;
    let at = site.bound.admin.clone();
    until_resolved(&at, &boss)?;
    annotate(&at, "z")?;
    is_served_within(&site, before, MOST)?;
    site.stop()
}

/// Each node has another value of the label that the conditions read, so that no two are alike. A condition is held once for all nodes that it
/// leaves a task out of.
#[test]
fn x03_f07_conditions_that_leave_tasks_out_of_many_nodes_are_held_once() -> Result<()> {
    const MOST: u64 = 128 * MIB;
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let condition = format!("labels.own == 'never' && '{}' == 'x'", "q".repeat(3_000));
    let task = |n: usize| {
        json!({"id": format!("t{n}"), "type": "shell", "tags": ["web"], "condition": condition,
            "parameters": {"script": "true"}})
    };
    let tasks: Vec<Value> = (0..40).map(task).collect();
    let (operator, boss) = cluster_with(&at, &tasks)?;
    add(&at, &boss, &[json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["web"]})])?;
    let before = site.most_memory()?;
    add_thousand(
        &at,
        &operator,
        |n| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "c/g", "labels": {"own": format!("v{n}")}}),
    )?;
    until_resolved(&at, &boss)?;
    is_served_within(&site, before, MOST)?;
    let site = site.restarted()?;
    let at = site.bound.admin.clone();
    until_resolved(&at, &boss)?;
    is_served_within(&site, before, MOST)?;
    site.stop()
}

/// How many bytes of this the store holds, once it has been counted.
fn stored_bytes(site: &str, token: &str, what: &str) -> Result<u64> {
    let name = format!("stemma_store_bytes{{of=\"{what}\"}} ");
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let metrics = ask(site, token, "GET /metrics", (JSON, b""))?.body;
        let of_this = metrics.lines().find_map(|line| line.strip_prefix(name.as_str()));
        if let Some(bytes) = of_this {
            return Ok(bytes.trim().parse()?);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("the store was not counted")
}

/// What the store holds of what is released: the records of nodes, and the values and texts that they name.
fn released_bytes(site: &str, token: &str) -> Result<(u64, u64)> {
    let stored = |what| stored_bytes(site, token, what);
    Ok((stored("released")?, stored("released_values")? + stored("released_texts")?))
}

/// The tasks of each of a thousand nodes read 60 kB that their cluster says, and what the node says itself. The values of the cluster are stored
/// once for all groups: a record of a node is some hundred bytes, and a change stores one more set of values. Each node held all of them, 60 MB
/// with each change.
#[test]
fn x03_f07_values_that_tasks_of_many_nodes_read_are_stored_and_held_once() -> Result<()> {
    const MOST: u64 = 128 * MIB;
    const MOST_STORED: u64 = 3 * MIB;
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let task = |n: usize| {
        let reads = (0..3).map(|m| format!("{{{{ labels.a{} }}}}", 3 * n + m)).collect::<Vec<_>>().join(" ");
        file_of(
            &format!("t{n}"),
            &format!("{{{{ labels.own }}}} {{{{ labels['of-group'] }}}} {{{{ node.name }}}} {reads}"),
        )
    };
    let tasks: Vec<Value> = (0..5).map(task).collect();
    let (operator, boss) = cluster_with(&at, &tasks)?;
    add(&at, &boss, &(0..10).map(|n| group(n, "of-group")).collect::<Vec<_>>())?;
    let before = site.most_memory()?;
    let say_in_cluster =
        |at: &str, first: &str| say_much(at, (&operator, &boss), "/v1/clusters/c", ("labels", "a", 15), first);
    say_in_cluster(&at, "x")?;
    let node = |n: usize| {
        let (name, group, labels) = (format!("n{n}"), format!("c/g{}", n % 10), json!({"own": format!("v{n}")}));
        json!({"kind": "Node", "name": name, "nodegroup": group, "labels": labels})
    };
    add_thousand(&at, &operator, node)?;
    until_resolved(&at, &boss)?;
    let (records, values) = released_bytes(&at, &boss)?;
    say(&format!(
        "what is released to 1,000 nodes takes {} KiB, and the values that they name {values} bytes",
        records / 1024
    ));
    ensure!(records < MOST_STORED, "{records} bytes");
    ensure!((56_000..112_000).contains(&values), "one set of values for all groups: {values} bytes");
    for first in ["y", "z"] {
        say_in_cluster(&at, first)?;
    }
    let stored = released_bytes(&at, &boss)?;
    ensure!(stored.0 < MOST_STORED && stored.1 < 4 * 60_000, "{stored:?} bytes after two changes");
    is_served_within(&site, before, MOST)?;
    let site = site.restarted()?;
    let at = site.bound.admin.clone();
    until_resolved(&at, &boss)?;
    ensure!(released_bytes(&at, &boss)? == stored, "a restart stores nothing");
    say_in_cluster(&at, "w")?;
    is_served_within(&site, before, MOST)?;
    site.stop()
}

/// The tasks of each of three hundred nodes read a map of labels: 60 kB of its cluster, one of its group and one of its own. No two of these maps
/// are alike, and what they have alike is stored and held once. Each node had 60 kB on the disk, and some 250 to 400 KiB in memory.
#[test]
fn x03_f07_maps_that_tasks_of_many_nodes_read_with_entries_of_their_own_are_stored_and_held_once() -> Result<()> {
    const MOST: u64 = 64 * MIB;
    const MOST_STORED: u64 = MIB;
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let template = "{% for key, value in labels_with_prefix('a/') | items %}{{ key }} {{ value }}{% endfor %}";
    let task = file_of("t", template);
    let (operator, boss) = cluster_with(&at, &[task])?;
    let before = site.most_memory()?;
    let say_in_cluster =
        |at: &str, first: &str| say_much(at, (&operator, &boss), "/v1/clusters/c", ("labels", "a/", 15), first);
    say_in_cluster(&at, "x")?;
    let node = |n: usize| {
        let labels = json!({"a/own": format!("v{n}")});
        json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": format!("c/g{}", n % 100), "labels": labels})
    };
    add(&at, &operator, &(0..100).map(|n| group(n, "a/of-group")).chain((0..300).map(node)).collect::<Vec<_>>())?;
    until_resolved(&at, &boss)?;
    let (records, values) = released_bytes(&at, &boss)?;
    say(&format!(
        "what is released to 300 nodes takes {} KiB, and what they have alike {values} bytes",
        records / 1024
    ));
    ensure!(records < MOST_STORED, "{records} bytes");
    ensure!((56_000..MOST_STORED).contains(&values), "one set of values for all nodes: {values} bytes");
    say_in_cluster(&at, "y")?;
    let stored = released_bytes(&at, &boss)?;
    ensure!(stored.0 < MOST_STORED && stored.1 < MOST_STORED, "{stored:?} bytes after a change");
    is_served_within(&site, before, MOST)?;
    let site = site.restarted()?;
    let at = site.bound.admin.clone();
    until_resolved(&at, &boss)?;
    ensure!(released_bytes(&at, &boss)? == stored, "a restart stores nothing");
    say_in_cluster(&at, "w")?;
    is_served_within(&site, before, MOST)?;
    site.stop()
}

/// Each change of what a cluster says makes another list of values for each of its groups. Those that no node names any more were left for ten minutes:
/// they were not counted where it is decided when to sweep.
#[test]
fn x03_f07_lists_of_values_that_no_node_names_any_more_are_swept() -> Result<()> {
    const GROUPS: usize = 100;
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let reads: String = (0..15).map(|n| format!("{{{{ labels.a{n} }}}}")).collect();
    let task = file_of("t", &format!("{{{{ labels['of-group'] }}}}{reads}"));
    let (operator, boss) = cluster_with(&at, &[task])?;
    let say_in_cluster = |first: &str| say_much(&at, (&operator, &boss), "/v1/clusters/c", ("labels", "a", 15), first);
    say_in_cluster("x")?;
    let node = |n: usize| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": format!("c/g{n}")});
    let groups = (0..GROUPS).map(|n| group(n, "of-group"));
    add(&at, &operator, &groups.chain((0..GROUPS).map(node)).collect::<Vec<_>>())?;
    until_resolved(&at, &boss)?;
    let lists = || stored_bytes(&at, &boss, "released_value_lists");
    let first = lists()?;
    ensure!(first > 0, "each group has a list");
    for change in 0..10 {
        say_in_cluster(&change.to_string())?;
    }
    let last = lists()?;
    say(&format!("lists of values of {GROUPS} groups take {first} bytes, and {last} after ten changes"));
    ensure!(last < 5 * first, "{last} bytes of lists after ten changes, and {first} before");
    site.stop()
}

/// The tasks read nine hundred labels that nobody says. Each of the nodes held all of their names, some 180 KiB, and as much again while they were
/// resolved.
#[test]
fn x03_f07_names_that_tasks_of_many_nodes_read_are_held_once() -> Result<()> {
    const MOST: u64 = 32 * MIB;
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let label = |n: usize| format!("{{{{ labels.k{n}{} }}}}", "y".repeat(50));
    let task = |n: usize| file_of(&format!("t{n}"), &(50 * n..50 * n + 50).map(label).collect::<String>());
    let (operator, boss) = cluster_with(&at, &(0..18).map(task).collect::<Vec<_>>())?;
    add(&at, &boss, &[json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["web"]})])?;
    let before = site.most_memory()?;
    let node = |n: usize| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "c/g"});
    add(&at, &operator, &(0..300).map(node).collect::<Vec<_>>())?;
    until_resolved(&at, &boss)?;
    let (records, _) = released_bytes(&at, &boss)?;
    ensure!(records < 300 * 1200, "{records} bytes of records");
    say_much(&at, (&operator, &boss), "/v1/clusters/c", ("labels", &format!("k0{}", "y".repeat(50)), 1), "x")?;
    is_served_within(&site, before, MOST)?;
    let site = site.restarted()?;
    until_resolved(&site.bound.admin, &boss)?;
    is_served_within(&site, before, MOST)?;
    site.stop()
}

/// A cluster says 250 labels, and each of its groups one of its own. Each group held all of them three times: what comes down to it, what its tasks
/// read, and its list of values; and each change left one list more for each group.
#[test]
fn x03_f07_what_comes_down_to_many_groups_of_a_cluster_is_held_once() -> Result<()> {
    const MOST: u64 = 48 * MIB;
    const GROUPS: usize = 150;
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let label = |n: usize| format!("{{{{ labels.k{n}{} }}}}", "y".repeat(50));
    let task = |n: usize| {
        file_of(
            &format!("t{n}"),
            &(50 * n..50 * n + 50).map(label).chain(["{{ labels.own }}".into()]).collect::<String>(),
        )
    };
    let (operator, boss) = cluster_with(&at, &(0..5).map(task).collect::<Vec<_>>())?;
    let before = site.most_memory()?;
    let labels: Map<String, Value> = (0..250).map(|n| (format!("k{n}{}", "y".repeat(50)), "x".into())).collect();
    let say_in_cluster = |labels: Value| {
        let body = serde_json::to_vec(&json!({"labels": labels}))?;
        let told = ask(&at, &operator, "PATCH /v1/clusters/c", (MERGE_PATCH, &body))?;
        ensure!([200, 202].contains(&told.status), "{} {}", told.status, told.body);
        until_resolved(&at, &boss)
    };
    say_in_cluster(labels.into())?;
    let node = |n: usize| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": format!("c/g{n}")});
    let groups = (0..GROUPS).map(|n| group(n, "own"));
    add(&at, &operator, &groups.chain((0..GROUPS).map(node)).collect::<Vec<_>>())?;
    until_resolved(&at, &boss)?;
    for change in 0..6 {
        say_in_cluster(json!({format!("k{}{}", change * 40, "y".repeat(50)): "z"}))?;
    }
    is_served_within(&site, before, MOST)?;
    let site = site.restarted()?;
    until_resolved(&site.bound.admin, &boss)?;
    is_served_within(&site, before, MOST)?;
    site.stop()
}

/// All nodes of a group have its tags. They stood in the record of each node, 17 kB for 250 of them.
#[test]
fn x03_f07_tags_of_a_group_are_stored_once_for_its_nodes() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
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
    let boss = token(&at, "boss", "admin")?;
    let node = |n: usize| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "c/g"});
    add(&at, &boss, &(0..200).map(node).collect::<Vec<_>>())?;
    until_resolved(&at, &boss)?;
    let (records, values) = released_bytes(&at, &boss)?;
    ensure!(records < 200 * 1024, "{records} bytes of 200 records");
    ensure!((250 * 50..64 * 1024).contains(&values), "{values} bytes for all of them");
    site.stop()
}

/// One label of a node stands in 58 maps that its tasks read, each too small to be parted into chunks: 120 kB for each node. Without a bound for all of
/// them together, a few kilobytes sent filled memory and disk. Beyond it nothing is half done, and there is a way back. Nodes of a group that say as
/// much are not alike: what the tasks of one read, those of another may not.
#[test]
fn x03_f07_what_differs_by_node_has_a_bound_for_all_nodes_of_a_cluster_together() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let map = |n: usize| {
        format!("{{% for k, v in labels_with_prefix('{}') | items %}}{{{{ v }}}}{{% endfor %}}", "q".repeat(n))
    };
    let (operator, boss) = cluster_with(&at, &[file_of("t", &(1..59).map(map).collect::<String>())])?;
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
    // In one group the first node has a large record, and in the other all but the first.
    let small = (1..=400).map(|n| node("small", n, &unread));
    let groups = [group("small"), group("large"), node("small", 0, &read), node("large", 0, &unread)];
    add(&at, &boss, &groups.into_iter().chain(small).collect::<Vec<_>>())?;
    until_resolved(&at, &boss)?;
    let patch = |of: &str, value: &Value| {
        let body = json!([{"op": "add", "path": format!("/labels/{of_group}"), "value": value}]);
        let path = format!("PATCH /v1/clusters/c/nodegroups/{of}");
        ask(&at, &operator, &path, (JSON_PATCH, &serde_json::to_vec(&body)?))
    };
    let told = patch("small", &json!("y".repeat(1_851)))?;
    ensure!([200, 202].contains(&told.status), "each node is judged: {} {}", told.status, told.body);
    until_resolved(&at, &boss)?;
    let (records, _) = released_bytes(&at, &boss)?;
    ensure!(records < MIB, "{records} bytes: what a group says stays its group's where it changes");
    let send = |nodes: std::ops::Range<usize>| {
        let objects = json!({"objects": nodes.map(|n| node("large", n, &read)).collect::<Vec<_>>()});
        ask(&at, &operator, "POST /v1/apply", (JSON, &serde_json::to_vec(&objects)?))
    };
    let mut made = 1;
    let refused = loop {
        let told = send(made..made + 75)?;
        if told.status != 200 {
            break told;
        }
        made += 75;
        ensure!(made < 600, "{made} nodes of 120 kB each");
        until_resolved(&at, &boss)?;
    };
    let is_refused = |told: &Told| {
        let says = ["object.too_many", "what is released to the nodes of cluster c would take about"];
        told.status == 409 && says.iter().all(|text| told.body.contains(text))
    };
    ensure!(is_refused(&refused), "{} {}", refused.status, refused.body);
    let (records, _) = released_bytes(&at, &boss)?;
    ensure!((20 * MIB..48 * MIB).contains(&records), "{records} bytes of records");
    let is_there = |n: usize| {
        Ok::<_, anyhow::Error>(ask(&at, &operator, &format!("GET /v1/nodes/large{n}"), (JSON, b""))?.status == 200)
    };
    ensure!(is_there(made - 1)? && !is_there(made)?, "nothing was changed by the write that was refused");
    let body = serde_json::to_vec(&json!({"annotations": {"a": "b"}}))?;
    let told = ask(&at, &operator, "PATCH /v1/nodes/large1", (MERGE_PATCH, &body))?;
    ensure!([200, 202].contains(&told.status), "what makes nothing larger is taken: {} {}", told.status, told.body);
    // What each node has becomes smaller: then there is room.
    let told = patch("large", &json!("y"))?;
    ensure!([200, 202].contains(&told.status), "{} {}", told.status, told.body);
    until_resolved(&at, &boss)?;
    let told = send(made..made + 75)?;
    ensure!(told.status == 200 && is_there(made + 74)?, "{} {}", told.status, told.body);
    until_resolved(&at, &boss)?;
    let told = patch("large", &json!("x".repeat(1_850)))?;
    ensure!(is_refused(&told), "all but the first would become larger: {} {}", told.status, told.body);
    site.stop()
}

/// A body of 3 MB with 200,000 texts takes some 20 MiB once it is read; the bound is three times that. It took 22 s, since each trait was
/// compared with all others.
#[test]
fn x03_f08_an_allocation_of_very_many_traits_is_refused_at_once() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let operator = token(&at, "otto", "operator")?;
    let allocate = |name: &str, count: usize| -> Result<Told> {
        let traits: Vec<String> = (0..count).map(|n| format!("CUSTOM_{n}")).collect();
        let body = serde_json::to_vec(&json!({"name": name, "resource_class": "small", "traits": traits}))?;
        ask(&at, &operator, "POST /v1/allocations", (JSON, &body))
    };
    let before = site.most_memory()?;
    let began = Instant::now();
    let told = allocate("too-many", 200_000)?;
    let took = began.elapsed();
    let says = "traits: it has 200000 entries, and the most are 50";
    ensure!(told.status == 400 && told.body.contains(says), "{} {}", told.status, told.body);
    ensure!(took < Duration::from_secs(10), "it took {took:?}");
    let told = allocate("at-the-bound", 50)?;
    ensure!(told.status == 201, "{} {}", told.status, told.body);
    is_served_within(&site, before, 64 * MIB)?;
    site.stop()
}
