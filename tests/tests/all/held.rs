//! What is held stays held, from the operator's command to the file on the host: a label that a template reads is on the
//! host's label files at once, and in the file only when its task set is released; also after the agent was started
//! again, and after a look for drift mended the file.
//!
//! Controller, agent and command are the real programs.

use anyhow::{Result, ensure};
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::program::{eventually, file_contains};

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

/// An agent that looks for drift each second.
fn join(fleet: &Fleet) -> Result<Agent> {
    let etc = fleet.dir().join("n1/etc/stemma");
    std::fs::create_dir_all(&etc)?;
    std::fs::write(etc.join("agent.toml"), "[schedule]\ndrift_seconds = 1\n")?;
    fleet.join("n1", "c/g")
}

fn apply(fleet: &Fleet, name: &str, text: &str) -> Result<()> {
    let manifest = fleet.dir().join(name);
    std::fs::write(&manifest, text)?;
    fleet.stemma(&["apply", "-f", &manifest.to_string_lossy()])?;
    Ok(())
}

#[test]
fn a_label_is_on_the_host_at_once_and_in_a_file_when_it_is_released() -> Result<()> {
    let fleet = Fleet::start()?;
    apply(&fleet, "site.yaml", MANIFEST)?;
    let mut agent = join(&fleet)?;
    let (labels, rendered) = (agent.path("run/stemma/labels.json"), agent.path("etc/ntp.conf"));
    eventually("the first release", || {
        file_contains(&rendered, "server one\n")?;
        ["one", "other"].iter().try_for_each(|mark| file_contains(&agent.path(&format!("etc/{mark}-mark")), "looked"))
    })?;

    apply(&fleet, "held.yaml", "{kind: Node, name: n1, nodegroup: c/g, hold: {reason: a disk is changed}}\n")?;
    fleet.stemma(&["label", "clustertemplate", "base", "ntp=two"])?;
    eventually("the label in place", || file_contains(&labels, "\"ntp\":\"two\""))?;
    still_one(&agent, "one")?;

    agent.kill()?;
    std::fs::write(&rendered, "server of somebody else\n")?;
    agent.start()?;
    eventually("the file mended after a restart", || file_contains(&rendered, "server one\n"))?;
    file_contains(&labels, "\"ntp\":\"two\"")?;

    std::fs::remove_file(&rendered)?;
    eventually("the file mended by a look for drift", || file_contains(&rendered, "server one\n"))?;
    still_one(&agent, "other")?;

    apply(&fleet, "free.yaml", "{kind: Node, name: n1, nodegroup: c/g}\n")?;
    eventually("the release", || file_contains(&rendered, "server two\n"))?;
    Ok(())
}

/// It was said to run there no longer.
#[test]
fn y06_a_task_that_the_next_release_lacks_is_said_to_run_still_on_a_host_that_is_held() -> Result<()> {
    let fleet = Fleet::start()?;
    let explained = || fleet.stemma(&["explain", "node", "n1", "task", "one-mark"]);
    apply(&fleet, "site.yaml", MANIFEST)?;
    fleet.stemma(&["create", "node", "n1", "--nodegroup", "c/g"])?;
    eventually("the first release", || {
        let said = explained()?;
        ensure!(said.starts_with("one-mark runs on n1 (c/g)\n") && said.contains("\n  released  yes"), "{said}");
        Ok(())
    })?;
    fleet.stemma(&["node", "hold", "n1", "--reason", "a disk is changed"])?;
    let next = MANIFEST.replace("version: \"1\"", "version: \"2\"").replace("site@1", "site@2");
    let next: Vec<&str> = next.lines().filter(|line| !line.contains("id: one-mark")).collect();
    apply(&fleet, "next.yaml", &next.join("\n"))?;
    let said = explained()?;
    let heading = "one-mark still runs on n1 (c/g)\n  host      keeps site@1, which has this task";
    let next = "\n  next      site@2: the node's release has no such task\n  but       it is held (a disk is changed)";
    ensure!(said.starts_with(heading) && said.contains(next), "{said}");
    Ok(())
}

/// That the file keeps the released value over two looks for drift. Each of them mends the mark after it has looked at the file; a file is
/// mended three times an hour, so there are two marks.
fn still_one(agent: &Agent, mark: &str) -> Result<()> {
    let (mark, rendered) = (agent.path(&format!("etc/{mark}-mark")), agent.path("etc/ntp.conf"));
    for look in ["first", "second"] {
        std::fs::remove_file(&mark)?;
        eventually("a look for drift", || file_contains(&mark, "looked"))?;
        let text = std::fs::read_to_string(&rendered)?;
        ensure!(text == "server one\n", "the {look} look: {text:?} is in the file before its release");
    }
    Ok(())
}
