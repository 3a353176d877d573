//! What a person with a pager meets on one host: an agent killed in the middle, label files that are wrong, a pause that was
//! forgotten, an identity that a disk has eaten.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::program::{eventually, file_contains, run};

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

fn fleet() -> Result<(Fleet, Agent)> {
    let fleet = Fleet::start()?;
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

fn verb(agent: &Agent, words: &[&str]) -> Result<Output> {
    let root = agent.path("");
    run("stemma-agent", [&["--root", &root.to_string_lossy()], words].concat())
}

fn status(agent: &Agent) -> Result<Value> {
    Ok(serde_json::from_slice(&verb(agent, &["status", "-o", "json"])?.stdout)?)
}

fn says(list: &Value, said: &str) -> Result<()> {
    let found =
        list.as_array().into_iter().flatten().any(|finding| finding.as_str().unwrap_or_default().contains(said));
    ensure!(found, "{said:?} is not among {list}");
    Ok(())
}

#[test]
fn an_agent_that_was_killed_while_a_command_runs_starts_again_at_once() -> Result<()> {
    let (_fleet, mut agent) = fleet()?;
    let second = verb(&agent, &["run"])?;
    ensure!(!second.status.success());
    let said = String::from_utf8(second.stderr)?;
    ensure!(said.contains("an agent runs on this state already; `stemma-agent status` says how it stands"), "{said}");
    for round in 0..10 {
        let begun = || std::fs::read_to_string(agent.path("begun")).map(|text| text.lines().count());
        let before = begun()?;
        agent.kill()?;
        agent.start()?;
        eventually("the command has begun again", || {
            let now = std::fs::read_to_string(agent.path("begun"))?.lines().count();
            ensure!(now > before, "round {round}: {}", agent.log());
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn what_is_wrong_with_label_files_is_in_the_log_in_status_and_with_the_controller() -> Result<()> {
    let (fleet, agent) = fleet()?;
    let dir = agent.path("etc/stemma/labels.d");
    // As a package does that is removed and comes back: the directory is another one.
    std::fs::remove_dir_all(&dir)?;
    std::fs::create_dir(&dir)?;
    std::fs::write(dir.join("10-good"), "rack=7\nno label\n")?;
    std::fs::write(dir.join("20-open"), "a=1\n")?;
    set_permissions(dir.join("20-open"), Permissions::from_mode(0o666))?;
    std::os::unix::fs::symlink("10-good", dir.join("30-link"))?;
    let expected =
        ["labels.d/10-good:2: a line is KEY=VALUE", "20-open: can be written by others", "30-link is a symbolic link"];
    eventually("the findings with the controller", || {
        let report: Value = serde_json::from_str(&fleet.stemma(&["get", "--raw", "/v1/nodes/n1/report"])?)?;
        for said in expected {
            says(&report["report"]["report"]["findings"], said).with_context(|| agent.log())?;
        }
        let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", "n1", "-o", "json"])?)?;
        let mut of_node = node["findings"].as_array().into_iter().flatten();
        ensure!(of_node.any(|finding| finding["code"] == "report.findings"), "{node}");
        Ok(())
    })?;
    for said in expected {
        says(&status(&agent)?["findings"], said)?;
        eventually("it is in the log once", || {
            ensure!(agent.log().matches(said).count() == 1, "{said}:\n{}", agent.log());
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
fn once_on_a_paused_host_says_that_nothing_was_applied_and_what_to_do() -> Result<()> {
    let (_fleet, mut agent) = fleet()?;
    verb(&agent, &["pause"])?;
    std::fs::write(agent.path("etc/note"), "edited\n")?;
    for is_running in [true, false] {
        if !is_running {
            agent.kill()?;
        }
        let once = verb(&agent, &["once"])?;
        let said = String::from_utf8(once.stdout)?;
        let expected = "this host is paused: no task was applied, labels were; run `stemma-agent resume`, then `stemma-agent once`\n";
        ensure!((once.status.code(), said.as_str()) == (Some(1), expected), "{said}");
        file_contains(&agent.path("etc/note"), "edited")?;
    }
    Ok(())
}

#[test]
fn f13_a_host_whose_identity_is_damaged_says_so_and_keeps_what_it_holds() -> Result<()> {
    let (fleet, mut agent) = fleet()?;
    let identity = agent.path("var/lib/stemma-agent/identity.json");
    let whole = std::fs::read(&identity)?;
    let credentials = agent.path("var/lib/stemma-agent/sync/credentials.json");
    for (name, path, bytes) in [
        ("the key", &credentials, b"{}".to_vec()),
        ("empty", &identity, Vec::new()),
        ("gone", &identity, Vec::new()),
        ("torn", &identity, whole[..whole.len() / 2].to_vec()),
        ("from the future", &identity, br#"{"version": 9}"#.to_vec()),
    ] {
        agent.kill()?;
        std::fs::write(path, bytes)?;
        if name == "gone" {
            std::fs::remove_file(path)?;
        }
        std::fs::remove_file(agent.path("run/stemma/labels.json"))?;
        std::fs::remove_file(agent.path("begun"))?;
        agent.start()?;
        eventually("labels and tasks are kept all the same", || {
            file_contains(&agent.path("run/stemma/labels.json"), "gold")?;
            ensure!(agent.path("begun").exists(), "the task has not begun again");
            Ok(())
        })
        .with_context(|| format!("{name}: {}", agent.log()))?;
        let status = verb(&agent, &["status"])?;
        let said = String::from_utf8(status.stdout)?;
        ensure!(status.status.code() == Some(1), "{name}: {said}");
        let file = match (name, path == &identity) {
            ("gone", _) => "identity.json is gone",
            (_, true) => "identity.json is damaged",
            (_, false) => "credentials.json is damaged",
        };
        for part in [file, "`stemma delete node NAME` and `stemma token create`", "stemma-agent join"] {
            ensure!(said.contains(part), "{name}: {part}: {said}");
        }
        ensure!(!said.contains("has not joined"), "{name}: {said}");
    }
    // What it says to do.
    agent.kill()?;
    fleet.stemma(&["delete", "node", "n1"])?;
    let again = fleet.join("n1", "c/g")?;
    fleet.stemma(&["label", "nodegroup", "c/g", "tier=silver"])?;
    eventually("an edit arrives again", || file_contains(&again.path("run/stemma/labels.json"), "silver"))
        .with_context(|| again.log())?;
    ensure!(again.path("var/lib/stemma-agent/identity.json.set-aside").exists());
    Ok(())
}

#[test]
fn a_file_of_three_mebibytes_arrives_in_pieces_and_nothing_is_asked_for_in_vain() -> Result<()> {
    let fleet = Fleet::start()?;
    let body: Vec<u8> = (0..3 << 20).map(|at: u32| at.to_le_bytes()[1] ^ at.to_le_bytes()[0]).collect();
    std::fs::write(fleet.dir().join("big.bin"), &body)?;
    let task = "  - {id: big, type: file, tags: [x], parameters: {path: /opt/big.bin, source: big.bin}}\n";
    let manifest = MANIFEST.replacen("  - {id: note", &format!("{task}  - {{id: note"), 1);
    let file = fleet.dir().join("host.yaml");
    std::fs::write(&file, manifest)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let agent = fleet.join("n1", "c/g")?;
    eventually("the file", || {
        let there = std::fs::read(agent.path("opt/big.bin")).with_context(|| agent.log())?;
        ensure!(there == body, "{} bytes of {}", there.len(), body.len());
        Ok(())
    })?;
    let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
    ensure!(metrics.contains("# TYPE stemma_rejected") && !metrics.contains("stemma_rejected_total{"), "{metrics}");
    Ok(())
}

#[test]
fn a_signal_that_comes_with_the_ready_line_ends_the_controller_in_order() -> Result<()> {
    let mut fleet = Fleet::start()?;
    fleet.stop_controller()?;
    for _ in 0..20 {
        fleet.start_controller()?;
        fleet.stop_controller()?;
    }
    Ok(())
}

#[test]
fn what_another_hand_changes_while_tasks_run_is_mended_when_they_have_run() -> Result<()> {
    let fleet = Fleet::start()?;
    let file = fleet.dir().join("host.yaml");
    // It ends when it is let go.
    let long = MANIFEST.replace("exec sleep 60", "while [ ! -e \"$STEMMA_ROOT/go\" ]; do sleep 0.1; done");
    std::fs::write(&file, long)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let agent = fleet.join("n1", "c/g")?;
    eventually("the command has begun", || {
        ensure!(agent.path("begun").exists(), "{}", agent.log());
        Ok(())
    })?;
    // Its task has looked at it already.
    std::fs::write(agent.path("etc/note"), "drifted\n")?;
    std::fs::write(agent.path("go"), "")?;
    eventually("the command has ended", || {
        ensure!(agent.log().contains("task ended task=long outcome=Changed"), "{}", agent.log());
        Ok(())
    })?;
    eventually("it is mended", || file_contains(&agent.path("etc/note"), "gold\n"))
}
