//! What is held stays held, from the operator's command to the file on the host: a label that a template reads is on the
//! host's label files at once, and in the file only when its task set is released; also after the agent was started
//! again, and after a look for drift mended the file.
//!
//! Controller, agent and command are the real programs.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::program::{eventually, eventually_within, file_contains};

/// Ten times what is promised for 10,000 hosts.
const AT_ONCE: Duration = Duration::from_secs(10);

const MANIFEST: &str = r#"
kind: Release
name: site
version: "1"
roles: {all: {tags: [common]}}
tags: {common: {}}
tasks:
  - {id: ntp, type: file, tags: [common], parameters: {path: /etc/ntp.conf, template: "server {{ labels.ntp }}\n"}}
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

#[test]
fn a_label_is_on_the_host_at_once_and_in_a_file_when_it_is_released() -> Result<()> {
    let fleet = Fleet::start()?;
    let apply = |name: &str, text: &str| -> Result<()> {
        let manifest = fleet.dir().join(name);
        std::fs::write(&manifest, text)?;
        fleet.stemma(&["apply", "-f", &manifest.to_string_lossy()])?;
        Ok(())
    };
    apply("site.yaml", MANIFEST)?;
    let mut agent = join(&fleet)?;
    let (labels, rendered) = (agent.path("run/stemma/labels.json"), agent.path("etc/ntp.conf"));
    eventually("the first release", || file_contains(&rendered, "server one\n"))?;

    apply("held.yaml", "{kind: Node, name: n1, nodegroup: c/g, hold: {reason: a disk is changed}}\n")?;
    fleet.stemma(&["label", "clustertemplate", "base", "ntp=two"])?;
    eventually_within(AT_ONCE, "the label in place", || file_contains(&labels, "\"ntp\":\"two\""))?;
    still_one(&rendered)?;

    agent.kill()?;
    std::fs::write(&rendered, "server of somebody else\n")?;
    agent.start()?;
    eventually("the file mended after a restart", || file_contains(&rendered, "server one\n"))?;
    file_contains(&labels, "\"ntp\":\"two\"")?;

    std::fs::remove_file(&rendered)?;
    eventually("the file mended by a look for drift", || file_contains(&rendered, "server one\n"))?;
    still_one(&rendered)?;

    apply("free.yaml", "{kind: Node, name: n1, nodegroup: c/g}\n")?;
    eventually("the release", || file_contains(&rendered, "server two\n"))?;
    Ok(())
}

/// That the file keeps the released value over two looks for drift.
fn still_one(rendered: &Path) -> Result<()> {
    let until = std::time::Instant::now() + Duration::from_millis(2_500);
    while std::time::Instant::now() < until {
        let text = std::fs::read_to_string(rendered)?;
        ensure!(text == "server one\n", "{text:?} is in the file before its release");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
