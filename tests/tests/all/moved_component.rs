//! A component that moves to another host by its tag, with real programs: the clean-up of `on_unassign` runs once on the
//! old host, what is left there is shown, and `remove_orphans` removes it.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{eventually, run};

use crate::states::check_node_state;

/// The release with the component `db`. Its configuration has a clean-up, which appends a line to `/gone` and needs the
/// value of a label. A sensitive file has none. A file of every host remains.
const MANIFESTS: &str = r#"kind: Release
name: site
roles: {plain: {tags: [base]}}
tags: {base: {}, db: {}}
tasks:
  - {id: motd, type: file, tags: [base], parameters: {path: /motd, content: "m"}}
  - id: conf
    type: file
    tags: [db]
    on_unassign: conf-gone
    parameters: {path: /app/conf, template: "{{ labels.tier }}"}
  - {id: key, type: file, tags: [db], sensitive: true, parameters: {path: /app/key, content: "k"}}
  - {id: conf-gone, type: shell, parameters: {script: 'echo {{ labels.tier }} >> "$STEMMA_ROOT/gone"'}}
---
{kind: Cluster, name: c, release: site, labels: {tier: gold}}
---
{kind: NodeGroup, cluster: c, name: g, roles: [plain]}
"#;

/// Returns the output of `stemma-agent status` on a host.
fn host_status(agent: &TestAgent) -> Result<String> {
    let output = run("stemma-agent", ["--root", &agent.path("").to_string_lossy(), "status"])?;
    Ok(String::from_utf8([output.stdout, output.stderr].concat())?)
}

/// Returns a field of a node from the API.
fn node_field(fleet: &TempFleet, node: &str, field: &str) -> Result<Value> {
    let body: Value = serde_json::from_str(&fleet.stemma(&["get", "--raw", &format!("/v1/nodes/{node}")])?)?;
    Ok(body[field].clone())
}

/// Waits until the API shows this value of a field of a node.
fn await_field(fleet: &TempFleet, node: &str, field: &str, expected: &Value) -> Result<()> {
    eventually(field, || {
        let found = node_field(fleet, node, field)?;
        ensure!(found == *expected, "{found}");
        Ok(())
    })
}

#[test]
fn component_leaves_nothing_when_moved_to_other_host() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("site.yaml");
    let apply = |text: &str| -> Result<()> {
        std::fs::write(&file, text)?;
        fleet.stemma(&["apply", "-f", &file.to_string_lossy()]).map(drop)
    };
    apply(MANIFESTS)?;
    let (old_host, new_host) = (fleet.join("n1", "c/g")?, fleet.join("n2", "c/g")?);
    fleet.stemma(&["tag", "assign", "n1", "db"])?;
    eventually("the component on n1", || Ok(std::fs::read(old_host.path("app/key"))?))?;
    eventually("n1", || check_node_state(&fleet, "n1", "converged", None))?;
    assert!(!old_host.path("gone").exists(), "nothing is cleaned up while the task is placed");

    // The component moves to n2.
    fleet.stemma(&["tag", "assign", "n2", "db"])?;
    eventually("the component on n2", || Ok(std::fs::read(new_host.path("app/key"))?))?;
    fleet.stemma(&["tag", "unassign", "n1", "db"])?;
    eventually("the clean-up", || Ok(std::fs::read(old_host.path("gone"))?))?;
    let object = |task: &str, path: &str, secret: bool| json!({"task": task, "kind": "file", "name": path, "secret": secret, "kept": null});
    await_field(&fleet, "n1", "unmanaged", &json!([object("conf", "/app/conf", false), object("key", "/app/key", true)]))?;
    await_field(&fleet, "n1", "clean_ups", &json!([{"task": "conf", "on_unassign": "conf-gone", "state": "succeeded"}]))?;
    eventually("the note", || check_node_state(&fleet, "n1", "converged", Some("orphaned")))?;
    let text = fleet.stemma(&["describe", "node", "n1"])?;
    for part in ["ORPHANED", "/app/conf", "may hold a secret", "conf: its on_unassign task conf-gone has succeeded"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let text = host_status(&old_host)?;
    for part in [
        "orphaned  conf                     /app/conf\n",
        "orphaned  key                      /app/key (may hold a secret)\n",
        "orphaned  conf                     on_unassign: conf-gone has succeeded\n",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }

    // The clean-up does not run again, neither at a further change nor after a restart of the agent.
    fleet.stemma(&["label", "node", "n1", "x=1"])?;
    run("stemma-agent", ["--root", &old_host.path("").to_string_lossy(), "once"])?;
    assert_eq!(std::fs::read_to_string(old_host.path("gone"))?, "gold\n");

    // The files are removed when this is asked for, and those of n2 stay.
    apply(&MANIFESTS.replace("name: g, roles: [plain]", "name: g, roles: [plain], remove_orphans: true"))?;
    await_field(&fleet, "n1", "unmanaged", &json!([]))?;
    eventually("the end of the note", || check_node_state(&fleet, "n1", "converged", None))?;
    assert!(!old_host.path("app/conf").exists() && !old_host.path("app/key").exists() && old_host.path("motd").exists());
    assert!(new_host.path("app/conf").exists() && new_host.path("app/key").exists() && !new_host.path("gone").exists());
    assert!(!host_status(&old_host)?.contains("orphaned"));
    Ok(())
}

/// A clean-up that fails makes the node `failed`, with the reason. It is tried again, and the node converges.
#[test]
fn failed_clean_up_is_reported_until_success() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("site.yaml");
    let script = r#"script: 'test -e "$STEMMA_ROOT/may-go"'"#;
    let manifests = MANIFESTS.replace(r#"script: 'echo {{ labels.tier }} >> "$STEMMA_ROOT/gone"'"#, script);
    std::fs::write(&file, manifests)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let host = fleet.join("n1", "c/g")?;
    fleet.stemma(&["tag", "assign", "n1", "db"])?;
    eventually("the component", || Ok(std::fs::read(host.path("app/key"))?))?;
    fleet.stemma(&["tag", "unassign", "n1", "db"])?;
    eventually("the failure", || check_node_state(&fleet, "n1", "failed", Some("orphaned")))?;
    let reason = node_field(&fleet, "n1", "state_reason")?;
    assert_eq!(reason, "task on_unassign/conf-gone failed");
    let text = fleet.stemma(&["describe", "node", "n1"])?;
    for part in ["task.unassign", "on_unassign/conf-gone", "conf-gone failed, and is tried again"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    std::fs::write(host.path("may-go"), "")?;
    run("stemma-agent", ["--root", &host.path("").to_string_lossy(), "once"])?;
    eventually("success", || check_node_state(&fleet, "n1", "converged", Some("orphaned")))
}
