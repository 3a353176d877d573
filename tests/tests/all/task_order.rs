//! Task order across hosts, with real programs. A task waits until the task that it depends on has succeeded on another
//! host, however late that host joins.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::eventually;

const MANIFEST: &str = r#"
kind: Release
name: order
version: "1"
roles: {first: {tags: [x]}, second: {tags: [y]}}
tags: {x: {}, y: {}}
tasks:
  - {id: a, type: shell, tags: [x], parameters: {script: 'sleep 0.5; date +%s%N > "$STEMMA_ROOT/a"'}}
  - {id: b, type: shell, tags: [y], cross_depends: [{name: a, tags: [x]}], parameters: {script: 'date +%s%N > "$STEMMA_ROOT/b"'}}
---
{kind: Cluster, name: c, release: order@1}
---
{kind: NodeGroup, cluster: c, name: firsts, roles: [first]}
---
{kind: NodeGroup, cluster: c, name: seconds, roles: [second]}
"#;

/// Task `b` on the second host depends on task `a` on the first host, which joins later. Both tasks write their time to
/// a file.
#[test]
fn task_waits_for_dependency_on_other_host() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("order.yaml");
    std::fs::write(&file, MANIFEST)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    // The node of the first host exists, but the host has not joined yet.
    fleet.stemma(&["create", "node", "n1", "--nodegroup", "c/firsts"])?;
    let second = fleet.join("n2", "c/seconds")?;
    eventually("the second host holds its tasks and waits", || {
        let status =
            stemma_tests::program::run("stemma-agent", ["--root", &second.path("").to_string_lossy(), "status", "-o", "json"])?;
        let status: Value = serde_json::from_slice(&status.stdout)?;
        ensure!(status["progress"] == "waiting", "{status}");
        Ok(())
    })?;
    assert!(!second.path("b").exists(), "task b ran before task a");
    let first = fleet.join("n1", "c/firsts")?;
    let (first_end_ns, second_start_ns) = eventually("both tasks", || Ok((read_time(&first, "a")?, read_time(&second, "b")?)))?;
    assert!(first_end_ns <= second_start_ns, "a ended at {first_end_ns}, b ran at {second_start_ns}");
    Ok(())
}

/// Returns the time that a task wrote to a file on its host, in nanoseconds since 1970.
fn read_time(agent: &TestAgent, file: &str) -> Result<u128> {
    let text = std::fs::read_to_string(agent.path(file)).with_context(|| agent.log())?;
    text.trim().parse().context("the time that the task wrote")
}
