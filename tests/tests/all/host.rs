//! Problems of one host that an on-call operator must solve, such as an agent that was killed during a task, wrong
//! label files, a forgotten pause, or a damaged identity.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{check_file_contains, eventually, run};

/// A file task, and a task with a long command that adds a line to the file `begun` when it starts.
const MANIFEST: &str = r#"
kind: Release
name: host
version: "1"
roles: {all: {tags: [x]}}
tags: {x: {}}
tasks:
  - {id: note, type: file, tags: [x], parameters: {path: /etc/note, template: "{{ labels.tier }}\n"}}
  - id: long
    type: shell
    tags: [x]
    requires: [note]
    on_interrupt: again
    parameters: {script: 'date >> "$STEMMA_ROOT/begun"; exec sleep 60'}
---
{kind: Cluster, name: c, release: host@1, labels: {tier: gold}}
---
{kind: NodeGroup, cluster: c, name: g, roles: [all]}
"#;

/// Starts a fleet with a host. Returns when the host runs the command of task `long`.
fn fleet_with_host() -> Result<(TempFleet, TestAgent)> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("host.yaml");
    std::fs::write(&file, MANIFEST)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let agent = fleet.join("n1", "c/g")?;
    eventually("the long command has begun", || {
        ensure!(agent.path("begun").exists(), "{}", agent.log());
        Ok(())
    })?;
    Ok((fleet, agent))
}

/// Runs `stemma-agent` on the host with these arguments.
fn run_subcommand(agent: &TestAgent, arguments: &[&str]) -> Result<Output> {
    let root = agent.path("");
    run("stemma-agent", [&["--root", &root.to_string_lossy()], arguments].concat())
}

fn host_status(agent: &TestAgent) -> Result<Value> {
    Ok(serde_json::from_slice(&run_subcommand(agent, &["status", "-o", "json"])?.stdout)?)
}

/// Fails unless a text in a JSON list contains `text`.
fn check_contains(list: &Value, text: &str) -> Result<()> {
    let found = list.as_array().into_iter().flatten().any(|finding| finding.as_str().unwrap_or_default().contains(text));
    ensure!(found, "{text:?} is not among {list}");
    Ok(())
}

/// A second agent on the same host is refused. An agent that is killed during a command runs the command again after
/// its next start, in each of ten rounds.
#[test]
fn agent_runs_command_again_when_killed_during_command() -> Result<()> {
    let (_fleet, mut agent) = fleet_with_host()?;
    let second_agent = run_subcommand(&agent, &["run"])?;
    ensure!(!second_agent.status.success());
    let stderr = String::from_utf8(second_agent.stderr)?;
    ensure!(stderr.contains("an agent already runs on this state; see `stemma-agent status`"), "{stderr}");
    for round in 0..10 {
        let begun_count = || std::fs::read_to_string(agent.path("begun")).map(|text| text.lines().count());
        let count_before = begun_count()?;
        agent.kill()?;
        agent.start()?;
        eventually("the command has begun again", || {
            let count = std::fs::read_to_string(agent.path("begun"))?.lines().count();
            ensure!(count > count_before, "round {round}: {}", agent.log());
            Ok(())
        })?;
    }
    Ok(())
}

/// Three label files have an error: an invalid line, unsafe permissions, and a symbolic link. Each error is in the
/// report, in the host's status, and once in the agent's log. The label of a corrected file reaches the controller.
#[test]
fn label_file_errors_reach_log_status_and_controller() -> Result<()> {
    let (fleet, agent) = fleet_with_host()?;
    let dir = agent.path("etc/stemma/labels.d");
    // The directory is replaced by a new one, as when a package is removed and installed again.
    std::fs::remove_dir_all(&dir)?;
    std::fs::create_dir(&dir)?;
    std::fs::write(dir.join("10-good"), "rack=7\nno label\n")?;
    std::fs::write(dir.join("20-open"), "a=1\n")?;
    set_permissions(dir.join("20-open"), Permissions::from_mode(0o666))?;
    std::os::unix::fs::symlink("10-good", dir.join("30-link"))?;
    let expected = ["labels.d/10-good:2: a line is KEY=VALUE", "20-open: can be written by others", "30-link is a symbolic link"];
    eventually("the findings in the controller", || {
        let report: Value = serde_json::from_str(&fleet.stemma(&["get", "--raw", "/v1/nodes/n1/report"])?)?;
        for part in expected {
            check_contains(&report["report"]["report"]["findings"], part).with_context(|| agent.log())?;
        }
        let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", "n1", "-o", "json"])?)?;
        let mut findings = node["findings"].as_array().into_iter().flatten();
        ensure!(findings.any(|finding| finding["code"] == "report.findings"), "{node}");
        Ok(())
    })?;
    for part in expected {
        check_contains(&host_status(&agent)?["findings"], part)?;
        eventually("one line in the log", || {
            ensure!(agent.log().matches(part).count() == 1, "{part}:\n{}", agent.log());
            Ok(())
        })?;
    }
    std::fs::write(dir.join("10-good"), "rack=8\n")?;
    eventually("the next edit", || {
        let report: Value = serde_json::from_str(&fleet.stemma(&["get", "--raw", "/v1/nodes/n1/report"])?)?;
        ensure!(report["observation"]["labels"]["rack"] == "8", "{report}");
        Ok(())
    })
}

#[test]
fn once_reports_pause_and_applies_no_task() -> Result<()> {
    let (_fleet, mut agent) = fleet_with_host()?;
    run_subcommand(&agent, &["pause"])?;
    // A task would write the file `note` again if it were applied.
    std::fs::write(agent.path("etc/note"), "edited\n")?;
    // In the first round an agent runs on the host, in the second none.
    for is_running in [true, false] {
        if !is_running {
            agent.kill()?;
        }
        let output = run_subcommand(&agent, &["once"])?;
        let stdout = String::from_utf8(output.stdout)?;
        let expected =
            "this host is paused: no task was applied, labels were; run `stemma-agent resume`, then `stemma-agent once`\n";
        ensure!((output.status.code(), stdout.as_str()) == (Some(1), expected), "{stdout}");
        check_file_contains(&agent.path("etc/note"), "edited")?;
    }
    Ok(())
}

#[test]
fn f13_agent_reports_damaged_identity_and_keeps_state() -> Result<()> {
    let (fleet, mut agent) = fleet_with_host()?;
    let identity = agent.path("var/lib/stemma-agent/identity.json");
    let valid_identity = std::fs::read(&identity)?;
    // A later state than the first one that the store has sent. The new node below must not be taken for a host that knows
    // a later copy of the store.
    fleet.stemma(&["label", "nodegroup", "c/g", "rack=r1"])?;
    eventually("a later state", || check_file_contains(&agent.path("run/stemma/labels.json"), "r1"))?;
    let credentials = agent.path("var/lib/stemma-agent/sync/credentials.json");
    for (damage, path, bytes) in [
        ("the key", &credentials, b"{}".to_vec()),
        ("empty", &identity, Vec::new()),
        ("gone", &identity, Vec::new()),
        ("torn", &identity, valid_identity[..valid_identity.len() / 2].to_vec()),
        ("from the future", &identity, br#"{"version": 9}"#.to_vec()),
    ] {
        agent.kill()?;
        std::fs::write(path, bytes)?;
        if damage == "gone" {
            std::fs::remove_file(path)?;
        }
        std::fs::remove_file(agent.path("run/stemma/labels.json"))?;
        std::fs::remove_file(agent.path("begun"))?;
        agent.start()?;
        eventually("the labels and a run of the task, in spite of the damage", || {
            check_file_contains(&agent.path("run/stemma/labels.json"), "gold")?;
            ensure!(agent.path("begun").exists(), "the task has not begun again");
            Ok(())
        })
        .with_context(|| format!("{damage}: {}", agent.log()))?;
        let output = run_subcommand(&agent, &["status"])?;
        let stdout = String::from_utf8(output.stdout)?;
        ensure!(output.status.code() == Some(1), "{damage}: {stdout}");
        let file = match (damage, path == &identity) {
            ("gone", _) => "identity.json is gone",
            (_, true) => "identity.json is damaged",
            (_, false) => "credentials.json is damaged",
        };
        for part in [file, "`stemma delete node NAME` and `stemma token create`", "stemma-agent join"] {
            ensure!(stdout.contains(part), "{damage}: {part}: {stdout}");
        }
        ensure!(!stdout.contains("has not joined"), "{damage}: {stdout}");
    }
    // Follows the advice in the status.
    agent.kill()?;
    fleet.stemma(&["delete", "node", "n1"])?;
    let new_agent = fleet.join("n1", "c/g")?;
    fleet.stemma(&["label", "nodegroup", "c/g", "tier=silver"])?;
    eventually("an edit arrives again", || check_file_contains(&new_agent.path("run/stemma/labels.json"), "silver"))
        .with_context(|| format!("{}\n{}", new_agent.log(), fleet.log()))?;
    ensure!(new_agent.path("var/lib/stemma-agent/identity.json.set-aside").exists());
    Ok(())
}

/// The new node gets the same desired state as the old one, so no task has a new result. The controller still learns how
/// the tasks ended.
#[test]
fn f13_new_node_converges_when_state_is_unchanged() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("host.yaml");
    std::fs::write(&file, MANIFEST.replace("exec sleep 60", "true"))?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let mut agent = fleet.join("n1", "c/g")?;
    fleet.stemma(&["wait", "node/n1", "--for", "state=converged"])?;
    agent.kill()?;
    std::fs::write(agent.path("var/lib/stemma-agent/identity.json"), "")?;
    fleet.stemma(&["delete", "node", "n1"])?;
    let new_agent = fleet.join("n1", "c/g")?;
    let waited = fleet.stemma(&["wait", "node/n1", "--for", "state=converged", "--timeout", "60s"]);
    waited.with_context(|| format!("{}\n{}", new_agent.log(), fleet.log())).map(drop)
}

/// A file of 3 MiB arrives completely on the host, and the controller rejects no request.
#[test]
fn large_file_arrives_without_rejected_requests() -> Result<()> {
    let fleet = TempFleet::start()?;
    let content: Vec<u8> = (0..3 << 20).map(|index: u32| index.to_le_bytes()[1] ^ index.to_le_bytes()[0]).collect();
    std::fs::write(fleet.dir().join("big.bin"), &content)?;
    // The task of the large file is inserted before the task `note`.
    let task = "  - {id: big, type: file, tags: [x], parameters: {path: /opt/big.bin, source: big.bin}}\n";
    let manifest = MANIFEST.replacen("  - {id: note", &format!("{task}  - {{id: note"), 1);
    let file = fleet.dir().join("host.yaml");
    std::fs::write(&file, manifest)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let agent = fleet.join("n1", "c/g")?;
    eventually("the file", || {
        let received = std::fs::read(agent.path("opt/big.bin")).with_context(|| agent.log())?;
        ensure!(received == content, "{} bytes of {}", received.len(), content.len());
        Ok(())
    })?;
    let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
    ensure!(metrics.contains("# TYPE stemma_rejected") && !metrics.contains("stemma_rejected_total{"), "{metrics}");
    Ok(())
}

#[test]
fn controller_stops_cleanly_when_signaled_at_ready_line() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    fleet.stop_controller()?;
    // `start_controller` returns when the controller prints its ready line. `stop_controller` then sends the signal.
    for _ in 0..20 {
        fleet.start_controller()?;
        fleet.stop_controller()?;
    }
    Ok(())
}

#[test]
fn concurrent_edit_is_mended_after_run() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("host.yaml");
    // The command ends when the file `go` exists.
    let manifest = MANIFEST.replace("exec sleep 60", "while [ ! -e \"$STEMMA_ROOT/go\" ]; do sleep 0.1; done");
    std::fs::write(&file, manifest)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let agent = fleet.join("n1", "c/g")?;
    eventually("the command has begun", || {
        ensure!(agent.path("begun").exists(), "{}", agent.log());
        Ok(())
    })?;
    // The task of this file has already checked it.
    std::fs::write(agent.path("etc/note"), "drifted\n")?;
    std::fs::write(agent.path("go"), "")?;
    eventually("the command has ended", || {
        ensure!(agent.log().contains("task ended task=long outcome=Changed"), "{}", agent.log());
        Ok(())
    })?;
    eventually("the mended file", || check_file_contains(&agent.path("etc/note"), "gold\n"))
}
