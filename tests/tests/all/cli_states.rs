//! Where hosts stand, as the operator's command tells it: failed tasks with their output, states, counts and when a host was last seen.

use anyhow::Result;
use serde_json::{Value, json};
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::program::eventually;

const SITE: &str = "kind: Release\nname: r\nversion: '1'\nroles: {web: {tags: [a]}, idle: {}}\ntags: {a: {}}\ntasks:\n\
  - {id: boom, type: shell, tags: [a], parameters: {script: \"echo no such user; exit 3\"}}\n\
  - {id: full, type: shell, tags: [a], parameters: {script: \"echo disk full >&2; exit 4\"}}\n\
  - {id: good, type: file, tags: [a], parameters: {path: /etc/good, content: x}}\n---\n\
kind: Cluster\nname: c\nrelease: r@1\n---\nkind: Cluster\nname: empty\n---\n\
kind: NodeGroup\ncluster: c\nname: g\nroles: [web]\n---\nkind: NodeGroup\ncluster: c\nname: aside\nroles: [idle]\n---\n\
kind: Node\nname: spare\nnodegroup: c/aside\nparked: true\n---\nkind: Node\nname: new\nnodegroup: c/aside\n";

/// A host whose tasks fail, one that is parked, and one whose agent never came.
fn failing() -> Result<(Fleet, Agent)> {
    let fleet = Fleet::start()?;
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, SITE)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let agent = fleet.join("web-1", "c/g")?;
    eventually("a failed host, with what became of both tasks", || {
        anyhow::ensure!(fleet.stemma(&["get", "nodes", "--state", "failed", "-o", "name"])? == "node/web-1\n");
        let told = fleet.stemma(&["describe", "node", "web-1"])?;
        anyhow::ensure!(["no such user", "disk full"].iter().all(|printed| told.contains(printed)), "{told}");
        Ok(())
    })?;
    Ok((fleet, agent))
}

fn get(fleet: &Fleet, kind: &str, name: &str) -> Result<Value> {
    Ok(serde_json::from_str(&fleet.stemma(&["get", kind, name, "-o", "json"])?)?)
}

/// Without what only sets columns apart.
fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn w12_every_failed_task_is_shown_with_what_it_printed() -> Result<()> {
    let (fleet, _agent) = failing()?;
    let told = fleet.stemma(&["describe", "node", "web-1"])?;
    for part in [
        "the end of what boom printed: no such user ",
        "the end of what full printed: disk full ",
        "next: stemma explain node web-1 task boom",
        " state failed state_reason task boom failed, and 1 more ",
        " connection connected ",
        " release r@1 ",
        " last_seen 2",
    ] {
        assert!(in_one_line(&told).contains(part), "{part:?} in {told}");
    }
    let failed = told.split_once("\n\n").map_or("", |(_, rest)| rest.split("next:").next().unwrap_or_default());
    assert!(!failed.contains("good"), "what succeeded is not among them: {failed}");
    let why = fleet.stemma(&["explain", "node", "web-1", "task", "full"])?;
    assert!(why.contains("\n  printed   disk full\n"), "{why}");

    // What failed in a task set of before is no failure of this one.
    let file = fleet.dir().join("mended.yaml");
    let mended = SITE
        .replace("version: '1'", "version: '2'")
        .replace("r@1", "r@2")
        .replace("; exit 3", "")
        .replace("; exit 4", "");
    std::fs::write(&file, mended)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy(), "--yes"])?;
    eventually("a mended host", || {
        anyhow::ensure!(get(&fleet, "node", "web-1")?["state"] == "converged");
        Ok(())
    })?;
    let told = fleet.stemma(&["describe", "node", "web-1"])?;
    assert!(!told.contains("FAILED") && told.contains("r@2"), "{told}");
    let absent = fleet.stemma(&["describe", "node", "new"])?;
    assert!(in_one_line(&absent).contains(" connection absent ") && !absent.contains("last_seen"), "{absent}");
    Ok(())
}

/// A fleet with a host that only looks, and would change a file.
fn looking() -> Result<(Fleet, Agent)> {
    let fleet = Fleet::start()?;
    let file = fleet.dir().join("site.yaml");
    let site = "kind: Release\nname: r\nroles: {web: {tags: [a]}}\ntags: {a: {}}\ntasks:\n\
      - {id: motd, type: file, tags: [a], parameters: {path: /etc/motd, content: \"welcome\\n\"}}\n---\n\
      kind: Cluster\nname: c\nrelease: r\n---\nkind: NodeGroup\ncluster: c\nname: g\nroles: [web]\nmode: noop\n";
    std::fs::write(&file, site)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let agent = fleet.join("web-1", "c/g")?;
    eventually("what it would change", || {
        let told = fleet.stemma(&["describe", "node", "web-1"])?;
        let told = in_one_line(&told);
        anyhow::ensure!(told.contains("DIFFERS TASK OUTCOME SINCE motd would change 2"), "{told}");
        anyhow::ensure!(told.contains("+welcome"), "{told}");
        Ok(())
    })?;
    Ok((fleet, agent))
}

#[test]
fn w12_what_a_host_that_only_looks_would_change_is_shown_with_its_difference() -> Result<()> {
    let (_fleet, agent) = looking()?;
    assert!(!agent.path("etc/motd").exists(), "it only looks");
    Ok(())
}

#[test]
fn y09_tasks_are_listed_over_hosts_with_what_they_would_change_there() -> Result<()> {
    let (fleet, _agent) = looking()?;
    for asked in [&["get", "tasks", "-o", "wide"][..], &["describe", "task", "motd"], &["describe", "task/motd"]] {
        let told = in_one_line(&fleet.stemma(asked)?);
        anyhow::ensure!(told.contains("1 host: web-1 (") && told.contains("+welcome"), "{asked:?}: {told}");
    }
    eventually("its state", || {
        let named = fleet.stemma(&["get", "tasks", "--state", "noop", "-o", "name"])?;
        anyhow::ensure!(named == "task/motd\n", "{named}");
        Ok(())
    })?;
    assert_eq!(fleet.stemma(&["get", "tasks", "--state", "failed", "-o", "name"])?, "");
    for asked in [&["get", "tasks", "mots"], &["describe", "task", "mots"]] {
        let told = fleet.cli(asked)?;
        let said = String::from_utf8_lossy(&told.stderr);
        anyhow::ensure!(told.status.code() == Some(3) && said.contains("(did you mean \"motd\"?)"), "{said}");
    }
    Ok(())
}

#[test]
fn w12_nodes_are_counted_and_listed_by_state() -> Result<()> {
    let (fleet, _agent) = failing()?;
    let list = |states: &str| fleet.stemma(&["get", "nodes", "--state", states, "-o", "name"]);
    assert_eq!(list("parked")?, "node/spare\n");
    assert_eq!(list("failed,waiting")?, "node/new\nnode/web-1\n");
    assert_eq!(list("converged")?, "");
    let both = fleet.stemma(&["get", "nodes", "--state", "waiting,parked", "--nodegroup", "c/g", "-o", "name"])?;
    assert_eq!(both, "", "all filters hold");
    let output = fleet.cli(&["get", "nodes", "--state", "faield"])?;
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    let output = fleet.cli(&["get", "--raw", "/v1/nodes?state=faield"])?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && told.contains("converged"), "{told}");

    eventually("the sums", || {
        let cluster = get(&fleet, "cluster", "c")?;
        anyhow::ensure!(cluster["node_states"] == json!({"failed": 1, "parked": 1, "waiting": 1}), "{cluster}");
        Ok(())
    })?;
    assert_eq!(get(&fleet, "cluster", "empty")?["node_states"], json!({}));
    let clusters = fleet.stemma(&["get", "clusters"])?;
    assert!(clusters.contains("NODE_STATES") && clusters.contains("failed=1,parked=1,waiting=1"), "{clusters}");
    let groups = fleet.stemma(&["get", "nodegroups"])?;
    let row = |name: &str| groups.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(row("c/g").contains("failed=1") && row("c/aside").contains("parked=1,waiting=1"), "{groups}");

    let wide = fleet.stemma(&["get", "nodes", "-o", "wide", "--state", "failed"])?;
    assert!(wide.contains("RELEASE") && wide.contains("r@1") && wide.contains("LAST_SEEN"), "{wide}");
    let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
    for line in [
        "stemma_nodes{state=\"failed\"} 1\n",
        "stemma_nodes{state=\"parked\"} 1\n",
        "stemma_nodes{state=\"silent\"} 0\n",
    ] {
        assert!(metrics.contains(line), "{line:?} in {metrics}");
    }
    Ok(())
}
