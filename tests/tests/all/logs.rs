//! The log lines that the daemons write to standard error. A program can parse each line. A line of the controller with
//! the UUID of a node also has the node's name. The agent's line about a failed task has the output of its command.

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

/// Writes a manifest text to a file, and applies the file.
fn apply_text(fleet: &TempFleet, manifest: &str) -> Result<()> {
    let file = fleet.dir().join("logs.yaml");
    std::fs::write(&file, manifest)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    Ok(())
}

/// The log line of a failed task ends with its error and output. A line break in the output is escaped.
#[test]
fn y09_failed_task_is_logged_in_one_line() -> Result<()> {
    let fleet = TempFleet::start()?;
    apply_text(&fleet, MANIFEST)?;
    let agent = fleet.join("n1", "c/g")?;
    let expected_line_end =
        r#"task ended task=fails outcome=Failed error="the command ended with status 3" output="no such user\nuser=\"a\"""#;
    eventually("the task has failed", || {
        ensure!(agent.log().lines().any(|line| line.ends_with(expected_line_end)), "{}", agent.log());
        Ok(())
    })
}

/// Each line of the controller's log that contains the UUID of a node also contains the node's name.
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
    // The agent is killed only after the task has ended. A command that is interrupted would get the result `unknown`,
    // and would not run again.
    eventually("the task has failed", || {
        ensure!(agent.log().contains("task ended task=fails"), "{}", agent.log());
        Ok(())
    })?;
    agent.kill()?;
    let root = agent.path("");
    let arguments = ["--root".as_ref(), root.as_os_str(), "--log-format".as_ref(), "json".as_ref(), "run".as_ref()];
    let json_agent = RunningProgram::start("stemma-agent", arguments)?;
    let second_manifest =
        MANIFEST.replace("version: \"1\"", "version: \"2\"").replace("logs@1", "logs@2").replace("exit 3", "exit 4");
    apply_text(&fleet, &second_manifest)?;
    eventually("the task of the second release has failed", || {
        let log = json_agent.log();
        let entries = log.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>().context(log.clone())?;
        ensure!(entries.iter().all(|entry| entry["time"].is_string() && entry["level"].is_string()), "{log}");
        let is_second_failure = |entry: &&Value| entry["error"] == "the command ended with status 4";
        let failure_entry = entries.iter().find(is_second_failure).context(log.clone())?;
        ensure!(
            failure_entry["level"] == "warn" && failure_entry["message"] == "task ended" && failure_entry["task"] == "fails",
            "{failure_entry}"
        );
        ensure!(failure_entry["output"] == "no such user\nuser=\"a\"", "{failure_entry}");
        let acceptance_entry = entries.iter().find(|entry| entry["message"] == "desired state accepted");
        ensure!(acceptance_entry.is_some_and(|entry| entry["revision"].is_u64()), "{log}");
        Ok(())
    })?;
    json_agent.stop()
}
