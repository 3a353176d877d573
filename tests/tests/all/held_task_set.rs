//! A held node keeps its task set, from the operator's command to the file on the host. A label that a template reads
//! reaches the host's label files at once. The label reaches the rendered file only when the new task set is released.
//! This is also true after a restart of the agent, and after a drift check has mended the file.
//!
//! Controller, agent and command are the real programs.

use anyhow::{Result, ensure};
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{check_file_contains, eventually};

const MANIFEST: &str = r#"
kind: Release
name: site
version: "1"
roles: {all: {tags: [common]}}
tags: {common: {}}
tasks:
  - {id: ntp, type: file, tags: [common], parameters: {path: /etc/ntp.conf, template: "server {{ labels.ntp }}\n"}}
  - {id: one-mark, type: file, tags: [common], requires: [ntp], parameters: {path: /etc/one-mark, content: looked}}
  - {id: other-mark, type: file, tags: [common], requires: [ntp], parameters: {path: /etc/other-mark, content: looked}}
---
{kind: ClusterTemplate, name: base, release: site@1, labels: {ntp: one}}
---
{kind: Cluster, name: c, cluster_template: base}
---
{kind: NodeGroup, cluster: c, name: g, roles: [all]}
"#;

/// Joins a host whose agent checks for drift every second.
fn join_agent(fleet: &TempFleet) -> Result<TestAgent> {
    let etc = fleet.dir().join("n1/etc/stemma");
    std::fs::create_dir_all(&etc)?;
    std::fs::write(etc.join("agent.toml"), "[schedule]\ndrift_seconds = 1\n")?;
    fleet.join("n1", "c/g")
}

/// Writes a manifest to a file with this name, and applies the file.
fn apply_text(fleet: &TempFleet, name: &str, text: &str) -> Result<()> {
    let manifest = fleet.dir().join(name);
    std::fs::write(&manifest, text)?;
    fleet.stemma(&["apply", "-f", &manifest.to_string_lossy()])?;
    Ok(())
}

/// While the node is held, a new value of the label `ntp` reaches the host at once. The file that is rendered from the
/// label retains its old content until the hold ends, also after a restart and after drift checks.
#[test]
fn label_reaches_held_host_and_file_after_hold() -> Result<()> {
    let fleet = TempFleet::start()?;
    apply_text(&fleet, "site.yaml", MANIFEST)?;
    let mut agent = join_agent(&fleet)?;
    let (labels, rendered) = (agent.path("run/stemma/labels.json"), agent.path("etc/ntp.conf"));
    eventually("the first release", || {
        check_file_contains(&rendered, "server one\n")?;
        ["one", "other"].iter().try_for_each(|mark| check_file_contains(&agent.path(&format!("etc/{mark}-mark")), "looked"))
    })?;

    apply_text(&fleet, "held.yaml", "{kind: Node, name: n1, nodegroup: c/g, hold: {reason: a disk is changed}}\n")?;
    fleet.stemma(&["label", "clustertemplate", "base", "ntp=two"])?;
    eventually("the label on the host", || check_file_contains(&labels, "\"ntp\":\"two\""))?;
    check_unchanged(&agent, "one")?;

    agent.kill()?;
    std::fs::write(&rendered, "server of somebody else\n")?;
    agent.start()?;
    eventually("the file mended after a restart", || check_file_contains(&rendered, "server one\n"))?;
    check_file_contains(&labels, "\"ntp\":\"two\"")?;

    std::fs::remove_file(&rendered)?;
    eventually("the file mended by a drift check", || check_file_contains(&rendered, "server one\n"))?;
    check_unchanged(&agent, "other")?;

    apply_text(&fleet, "free.yaml", "{kind: Node, name: n1, nodegroup: c/g}\n")?;
    eventually("the release", || check_file_contains(&rendered, "server two\n"))?;
    Ok(())
}

/// Regression: `explain` reported that the task no longer runs on the held host.
#[test]
fn y06_explain_shows_running_task_missing_in_next_release() -> Result<()> {
    let fleet = TempFleet::start()?;
    let explain = || fleet.stemma(&["explain", "node", "n1", "task", "one-mark"]);
    apply_text(&fleet, "site.yaml", MANIFEST)?;
    fleet.stemma(&["create", "node", "n1", "--nodegroup", "c/g"])?;
    eventually("the first release", || {
        let stdout = explain()?;
        ensure!(stdout.starts_with("one-mark runs on n1 (c/g)\n") && stdout.contains("\n  released  yes"), "{stdout}");
        Ok(())
    })?;
    fleet.stemma(&["node", "hold", "n1", "--reason", "a disk is changed"])?;
    let next = MANIFEST.replace("version: \"1\"", "version: \"2\"").replace("site@1", "site@2");
    let next: Vec<&str> = next.lines().filter(|line| !line.contains("id: one-mark")).collect();
    apply_text(&fleet, "next.yaml", &next.join("\n"))?;
    let stdout = explain()?;
    let heading = "one-mark still runs on n1 (c/g)\n  host      keeps site@1, which has this task";
    let next = "\n  next      site@2: the node's release has no such task\n  but       it is held (a disk is changed)";
    ensure!(stdout.starts_with(heading) && stdout.contains(next), "{stdout}");
    Ok(())
}

/// Checks that `/etc/ntp.conf` has its old content after each of two drift checks. The test deletes the file
/// `/etc/MARK-mark`. The drift check writes this file again, after it has checked `/etc/ntp.conf`. The agent mends a
/// file at most three times an hour, so there are two mark files.
fn check_unchanged(agent: &TestAgent, mark: &str) -> Result<()> {
    let (mark_path, rendered) = (agent.path(&format!("etc/{mark}-mark")), agent.path("etc/ntp.conf"));
    for ordinal in ["first", "second"] {
        std::fs::remove_file(&mark_path)?;
        eventually("a drift check", || check_file_contains(&mark_path, "looked"))?;
        let text = std::fs::read_to_string(&rendered)?;
        ensure!(text == "server one\n", "after the {ordinal} drift check, the file contains {text:?} before the release");
    }
    Ok(())
}
