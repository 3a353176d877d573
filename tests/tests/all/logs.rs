//! What the daemons write to standard error: lines that a program can parse, with names next to UUIDs and with the
//! output of what failed.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::TempFleet;
use stemma_tests::program::{RunningProgram, eventually};

const MANIFEST: &str = r#"
kind: Release
name: logs
version: "1"
roles: {all: {tags: [x]}}
tags: {x: {}}
tasks:
  - id: fails
    type: shell
    tags: [x]
    parameters: {script: 'echo no such user; printf "user=\"%s\"\n" a >&2; exit 3'}
---
{kind: Cluster, name: c, release: logs@1}
---
{kind: NodeGroup, cluster: c, name: g, roles: [all]}
"#;

fn apply_text(fleet: &TempFleet, manifest: &str) -> Result<()> {
    let file = fleet.dir().join("logs.yaml");
    std::fs::write(&file, manifest)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    Ok(())
}

#[test]
fn y09_failed_task_is_logged_in_one_line() -> Result<()> {
    let fleet = TempFleet::start()?;
    apply_text(&fleet, MANIFEST)?;
    let agent = fleet.join("n1", "c/g")?;
    let wanted =
        r#"task ended task=fails outcome=Failed error="the command ended with status 3" output="no such user\nuser=\"a\"""#;
    eventually("the task has failed", || {
        ensure!(agent.log().lines().any(|line| line.ends_with(wanted)), "{}", agent.log());
        Ok(())
    })
}

#[test]
fn y09_log_names_node_with_uuid() -> Result<()> {
    let fleet = TempFleet::start()?;
    apply_text(&fleet, MANIFEST)?;
    let _agent = fleet.join("n1", "c/g")?;
    let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", "n1", "-o", "json"])?)?;
    let uuid = node["uuid"].as_str().context("a uuid")?;
    let log = eventually("the host has joined", || {
        let log = fleet.log();
        ensure!(log.contains(uuid), "{log}");
        Ok(log)
    })?;
    for line in log.lines().filter(|line| line.contains(uuid)) {
        ensure!(line.contains(&format!(" node={uuid} name=n1")), "{line}");
    }
    Ok(())
}

#[test]
fn y09_json_log_has_one_object_per_line() -> Result<()> {
    let fleet = TempFleet::start()?;
    apply_text(&fleet, MANIFEST)?;
    let mut agent = fleet.join("n1", "c/g")?;
    // A command that is cut off would have an unknown result, and would not run again.
    eventually("the task has failed", || {
        ensure!(agent.log().contains("task ended task=fails"), "{}", agent.log());
        Ok(())
    })?;
    agent.kill()?;
    let root = agent.path("");
    let arguments = ["--root".as_ref(), root.as_os_str(), "--log-format".as_ref(), "json".as_ref(), "run".as_ref()];
    let running = RunningProgram::start("stemma-agent", arguments)?;
    let second = MANIFEST.replace("version: \"1\"", "version: \"2\"").replace("logs@1", "logs@2").replace("exit 3", "exit 4");
    apply_text(&fleet, &second)?;
    eventually("the task of the second release has failed", || {
        let log = running.log();
        let objects = log.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>().context(log.clone())?;
        ensure!(objects.iter().all(|object| object["time"].is_string() && object["level"].is_string()), "{log}");
        let of_second = |object: &&Value| object["error"] == "the command ended with status 4";
        let ended = objects.iter().find(of_second).context(log.clone())?;
        ensure!(ended["level"] == "warn" && ended["message"] == "task ended" && ended["task"] == "fails", "{ended}");
        ensure!(ended["output"] == "no such user\nuser=\"a\"", "{ended}");
        let accepted = objects.iter().find(|object| object["message"] == "desired state accepted");
        ensure!(accepted.is_some_and(|object| object["revision"].is_u64()), "{log}");
        Ok(())
    })?;
    running.stop()
}
