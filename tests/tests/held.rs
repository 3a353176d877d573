//! What is held stays held, from the operator's command to the file on the host: a label that a template reads is on the
//! host's label files at once, and in the file only when its task set is released; also after the agent was started
//! again, and after a look for drift mended the file.
//!
//! The controller runs in this process, since its policy is the test's; agent and command are the real programs.

mod served;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use stemma_controller::init::init;
use stemma_controller::reconcile::{Candidate, ReleasePolicy, Verdict};
use stemma_controller::run::Options;
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::program::{eventually, file_contains};
use stemma_wire::clock::{Clock as _, SystemClock};

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

/// Releases a node's first tasks, and others when it is told to.
#[derive(Debug, Default)]
struct WhenTold(AtomicBool);

impl ReleasePolicy for WhenTold {
    fn judge(&self, candidate: &Candidate<'_>) -> Verdict {
        let is_first = candidate.present.is_none_or(|present| present.profile.is_none());
        if is_first || self.0.load(Ordering::Relaxed) { Verdict::Release } else { Verdict::Hold }
    }
}

/// An agent that looks for drift each second.
fn join(fleet: &Fleet) -> Result<Agent> {
    let etc = fleet.dir().join("n1/etc/stemma");
    std::fs::create_dir_all(&etc)?;
    std::fs::write(etc.join("agent.toml"), "[schedule]\ndrift_seconds = 1\n")?;
    fleet.join("n1", "c/g")
}

#[test]
fn a_label_is_on_the_host_at_once_and_in_a_file_when_it_is_released() -> Result<()> {
    let policy = Arc::new(WhenTold::default());
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    init(&data, &[], SystemClock.unix_seconds())?;
    let served = served::serve(&data, Options { policy: Arc::clone(&policy) as _, ..Options::default() })?;
    let fleet = &Fleet::around(dir, served.bound.clone());
    let manifest = fleet.dir().join("site.yaml");
    std::fs::write(&manifest, MANIFEST)?;
    fleet.stemma(&["apply", "-f", &manifest.to_string_lossy()])?;
    let mut agent = join(fleet)?;
    let (labels, rendered) = (agent.path("run/stemma/labels.json"), agent.path("etc/ntp.conf"));
    eventually("the first release", || file_contains(&rendered, "server one\n"))?;

    fleet.stemma(&["label", "clustertemplate", "base", "ntp=two"])?;
    eventually("the label in place", || file_contains(&labels, "\"ntp\":\"two\""))?;
    still_one(&rendered)?;

    agent.kill()?;
    std::fs::write(&rendered, "server of somebody else\n")?;
    agent.start()?;
    eventually("the file mended after a restart", || file_contains(&rendered, "server one\n"))?;
    file_contains(&labels, "\"ntp\":\"two\"")?;

    std::fs::remove_file(&rendered)?;
    eventually("the file mended by a look for drift", || file_contains(&rendered, "server one\n"))?;
    still_one(&rendered)?;

    policy.0.store(true, Ordering::Relaxed);
    fleet.stemma(&["label", "clustertemplate", "base", "other=said"])?;
    eventually("the release", || file_contains(&rendered, "server two\n"))?;
    Ok(())
}

/// That the file keeps the released value over two looks for drift.
fn still_one(rendered: &Path) -> Result<()> {
    let until = std::time::Instant::now() + std::time::Duration::from_millis(2_500);
    while std::time::Instant::now() < until {
        let text = std::fs::read_to_string(rendered)?;
        ensure!(text == "server one\n", "{text:?} is in the file before its release");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    Ok(())
}
