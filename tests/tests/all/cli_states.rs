//! Tests of the views of `stemma` on hosts: failed tasks with their output, states, counts, and the time of the last
//! contact with a host.

use anyhow::Result;
use serde_json::{Value, json};
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::eventually;

/// Manifests with two tasks that fail, one that succeeds, the parked node `spare`, and the node `new` without a host.
const SITE: &str = "kind: Release\nname: r\nversion: '1'\nroles: {web: {tags: [a]}, idle: {}}\ntags: {a: {}}\ntasks:\n\
  - {id: boom, type: shell, tags: [a], parameters: {script: \"echo no such user; exit 3\"}}\n\
  - {id: full, type: shell, tags: [a], parameters: {script: \"echo disk full >&2; exit 4\"}}\n\
  - {id: good, type: file, tags: [a], parameters: {path: /etc/good, content: x}}\n---\n\
kind: Cluster\nname: c\nrelease: r@1\n---\nkind: Cluster\nname: empty\n---\n\
kind: NodeGroup\ncluster: c\nname: g\nroles: [web]\n---\nkind: NodeGroup\ncluster: c\nname: aside\nroles: [idle]\n---\n\
kind: Node\nname: spare\nnodegroup: c/aside\nparked: true\n---\nkind: Node\nname: new\nnodegroup: c/aside\n";

/// Applies [`SITE`], and joins the host `web-1`, on which two tasks fail. Returns when the node's description shows the
/// output of both tasks.
fn fleet_with_failed_host() -> Result<(TempFleet, TestAgent)> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, SITE)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let agent = fleet.join("web-1", "c/g")?;
    eventually("the output of both failed tasks", || {
        anyhow::ensure!(fleet.stemma(&["get", "nodes", "--state", "failed", "-o", "name"])? == "node/web-1\n");
        let described = fleet.stemma(&["describe", "node", "web-1"])?;
        anyhow::ensure!(["no such user", "disk full"].iter().all(|printed| described.contains(printed)), "{described}");
        Ok(())
    })?;
    Ok((fleet, agent))
}

/// Returns an object as `stemma get` prints it in JSON.
fn get_object(fleet: &TempFleet, kind: &str, name: &str) -> Result<Value> {
    Ok(serde_json::from_str(&fleet.stemma(&["get", kind, name, "-o", "json"])?)?)
}

/// Replaces each sequence of spaces and line breaks by one space.
fn with_single_spaces(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn w12_failed_tasks_are_shown_with_output() -> Result<()> {
    let (fleet, _agent) = fleet_with_failed_host()?;
    let described = fleet.stemma(&["describe", "node", "web-1"])?;
    for part in [
        "the end of what boom printed: no such user ",
        "the end of what full printed: disk full ",
        "next: stemma explain node web-1 task boom",
        " state failed state_reason task boom failed, and 1 more ",
        " connection connected ",
        " release r@1 ",
        // The time begins with the digit 2 of the year.
        " last_seen 2",
    ] {
        assert!(with_single_spaces(&described).contains(part), "{part:?} in {described}");
    }
    let failed_section = described.split_once("\n\n").map_or("", |(_, rest)| rest.split("next:").next().unwrap_or_default());
    assert!(!failed_section.contains("good"), "a task that succeeded is not listed as failed: {failed_section}");
    let explained = fleet.stemma(&["explain", "node", "web-1", "task", "full"])?;
    assert!(explained.contains("\n  printed   disk full\n"), "{explained}");

    // A failure in an earlier task set is not a failure of the current one.
    let file = fleet.dir().join("mended.yaml");
    let corrected =
        SITE.replace("version: '1'", "version: '2'").replace("r@1", "r@2").replace("; exit 3", "").replace("; exit 4", "");
    std::fs::write(&file, corrected)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy(), "--yes"])?;
    eventually("a converged host", || {
        anyhow::ensure!(get_object(&fleet, "node", "web-1")?["state"] == "converged");
        Ok(())
    })?;
    let described = fleet.stemma(&["describe", "node", "web-1"])?;
    assert!(!described.contains("FAILED") && described.contains("r@2"), "{described}");
    let never_connected = fleet.stemma(&["describe", "node", "new"])?;
    assert!(
        with_single_spaces(&never_connected).contains(" connection absent ") && !never_connected.contains("last_seen"),
        "{never_connected}"
    );
    Ok(())
}

/// Starts a fleet with a host in mode `noop`, whose task would change a file. Returns when this change is shown.
fn fleet_with_noop_host() -> Result<(TempFleet, TestAgent)> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("site.yaml");
    let site = "kind: Release\nname: r\nroles: {web: {tags: [a]}}\ntags: {a: {}}\ntasks:\n\
      - {id: motd, type: file, tags: [a], parameters: {path: /etc/motd, content: \"welcome\\n\"}}\n---\n\
      kind: Cluster\nname: c\nrelease: r\n---\nkind: NodeGroup\ncluster: c\nname: g\nroles: [web]\nmode: noop\n";
    std::fs::write(&file, site)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let agent = fleet.join("web-1", "c/g")?;
    eventually("the pending change", || {
        let described = fleet.stemma(&["describe", "node", "web-1"])?;
        let text = with_single_spaces(&described);
        // The time in the last column begins with the digit 2 of the year.
        anyhow::ensure!(text.contains("DIFFERS TASK OUTCOME SINCE motd would change 2"), "{text}");
        anyhow::ensure!(text.contains("+welcome"), "{text}");
        Ok(())
    })?;
    Ok((fleet, agent))
}

/// `fleet_with_noop_host` checks that the description of the node shows the change and its difference.
#[test]
fn w12_noop_host_shows_pending_change_with_difference() -> Result<()> {
    let (_fleet, agent) = fleet_with_noop_host()?;
    assert!(!agent.path("etc/motd").exists(), "mode `noop` writes no file");
    Ok(())
}

#[test]
fn y09_get_tasks_lists_pending_changes_of_hosts() -> Result<()> {
    let (fleet, _agent) = fleet_with_noop_host()?;
    for arguments in [&["get", "tasks", "-o", "wide"][..], &["describe", "task", "motd"], &["describe", "task/motd"]] {
        let text = with_single_spaces(&fleet.stemma(arguments)?);
        anyhow::ensure!(text.contains("1 host: web-1 (") && text.contains("+welcome"), "{arguments:?}: {text}");
    }
    eventually("the state of the task", || {
        let names = fleet.stemma(&["get", "tasks", "--state", "noop", "-o", "name"])?;
        anyhow::ensure!(names == "task/motd\n", "{names}");
        Ok(())
    })?;
    assert_eq!(fleet.stemma(&["get", "tasks", "--state", "failed", "-o", "name"])?, "");
    for arguments in [&["get", "tasks", "mots"], &["describe", "task", "mots"]] {
        let output = fleet.cli(arguments)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.code() == Some(3) && stderr.contains("(did you mean \"motd\"?)"), "{stderr}");
    }
    Ok(())
}

#[test]
fn w12_nodes_are_counted_and_listed_by_state() -> Result<()> {
    let (fleet, _agent) = fleet_with_failed_host()?;
    let list = |states: &str| fleet.stemma(&["get", "nodes", "--state", states, "-o", "name"]);
    assert_eq!(list("parked")?, "node/spare\n");
    assert_eq!(list("failed,waiting")?, "node/new\nnode/web-1\n");
    assert_eq!(list("converged")?, "");
    let filtered = fleet.stemma(&["get", "nodes", "--state", "waiting,parked", "--nodegroup", "c/g", "-o", "name"])?;
    assert_eq!(filtered, "", "a listed node matches all filters");
    let output = fleet.cli(&["get", "nodes", "--state", "faield"])?;
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    let output = fleet.cli(&["get", "--raw", "/v1/nodes?state=faield"])?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && stderr.contains("converged"), "{stderr}");

    eventually("the counts of states", || {
        let cluster = get_object(&fleet, "cluster", "c")?;
        anyhow::ensure!(cluster["node_states"] == json!({"failed": 1, "parked": 1, "waiting": 1}), "{cluster}");
        Ok(())
    })?;
    assert_eq!(get_object(&fleet, "cluster", "empty")?["node_states"], json!({}));
    let clusters = fleet.stemma(&["get", "clusters"])?;
    assert!(clusters.contains("NODE_STATES") && clusters.contains("failed=1,parked=1,waiting=1"), "{clusters}");
    let groups = fleet.stemma(&["get", "nodegroups"])?;
    let row = |name: &str| groups.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(row("c/g").contains("failed=1") && row("c/aside").contains("parked=1,waiting=1"), "{groups}");

    let wide = fleet.stemma(&["get", "nodes", "-o", "wide", "--state", "failed"])?;
    assert!(wide.contains("RELEASE") && wide.contains("r@1") && wide.contains("LAST_SEEN"), "{wide}");
    let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
    for line in ["stemma_nodes{state=\"failed\"} 1\n", "stemma_nodes{state=\"parked\"} 1\n", "stemma_nodes{state=\"silent\"} 0\n"]
    {
        assert!(metrics.contains(line), "{line:?} in {metrics}");
    }
    Ok(())
}
