//! What the real agent refuses on its own host: files of its own that others may write (S71), and paths that lead elsewhere (S63).

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::program::{Running, eventually, file_contains};
use stemma_tests::site::{SITE, whole};

/// A release whose one task takes its file's name from a label; the other says that the same run has come by.
const NAMED: &str = r#"
kind: Release
name: named
version: "1"
roles: {all: {tags: [x]}}
tags: {x: {}}
tasks:
  - {id: named, type: file, tags: [x], fail_on_error: false, parameters: {path: "/etc/named/{{ labels.at }}", content: "own\n"}}
  - {id: marker, type: file, tags: [x], parameters: {path: /etc/marker, template: "{{ labels.at }} {{ labels.round }}\n"}}
---
{kind: Cluster, name: c, release: named@1, labels: {at: plain, round: "0"}}
---
{kind: NodeGroup, cluster: c, name: g, roles: [all]}
"#;

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).with_context(|| path.display().to_string())
}

#[test]
fn s71_an_agent_whose_own_files_others_may_write_or_read_does_not_start() -> Result<()> {
    let fleet = Fleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let mut web = fleet.join("web-1", "prod/frontends")?;
    let state = "var/lib/stemma-agent";
    let steps = web.path(&format!("{state}/apply/steps"));
    // A file that a task writes is there before the step that says so.
    eventually("the first convergence", || {
        ensure!(!names(&steps)?.is_empty(), "no step is kept: {}", web.log());
        whole(&web)
    })?;
    web.kill()?;
    std::fs::create_dir_all(web.path("etc/stemma"))?;
    std::fs::write(web.path("etc/stemma/agent.toml"), "")?;
    let step = format!("{state}/apply/steps/{}", names(&steps)?.first().context("a step")?);
    for (path, mode, command) in [
        ("etc/stemma/agent.toml".to_owned(), 0o666, "chmod go-w"),
        ("etc/stemma".to_owned(), 0o777, "chmod go-w"),
        (state.to_owned(), 0o777, "chmod go-w"),
        (format!("{state}/identity.json"), 0o666, "chmod go-w"),
        (format!("{state}/apply/accepted"), 0o666, "chmod go-w"),
        (format!("{state}/sync/credentials.json"), 0o644, "chmod go-rwx"),
        (format!("{state}/apply/seal-key"), 0o640, "chmod go-rwx"),
        (format!("{state}/apply"), 0o755, "chmod go-rwx"),
        (format!("{state}/apply/steps"), 0o755, "chmod go-rwx"),
        (format!("{state}/apply/progress"), 0o666, "chmod go-w"),
        (format!("{state}/apply/host-map"), 0o666, "chmod go-w"),
        (step, 0o666, "chmod go-w"),
    ] {
        let path = web.path(&path);
        // How far an apply is stands there while it goes on.
        let is_made = !path.exists();
        if is_made {
            std::fs::write(&path, "")?;
        }
        let before = std::fs::metadata(&path).with_context(|| path.display().to_string())?.permissions().mode();
        set_mode(&path, mode)?;
        let started = Running::start("stemma-agent", ["--root".as_ref(), web.path("").as_os_str(), "run".as_ref()])?;
        let (is_success, log) = started.ended_with().with_context(|| format!("mode {mode:o} of {}", path.display()))?;
        let advice = format!("{command} {}", path.display());
        ensure!(!is_success && log.contains(&advice) && log.contains(&format!("{mode:04o}")), "{log}");
        set_mode(&path, before)?;
        if is_made {
            std::fs::remove_file(&path)?;
        }
    }
    web.start()?;
    fleet.stemma(&["label", "nodegroup", "prod/frontends", "tier=mended"])?;
    eventually("the edit on the host", || {
        file_contains(&web.path("etc/nginx/conf.d/site.conf"), "tier mended").with_context(|| web.log())
    })
}

/// The names below a directory.
fn names(directory: &Path) -> Result<BTreeSet<String>> {
    let entries = std::fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
    Ok(entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// Has the file named so, and waits until the run that tried it is over.
fn name_it(fleet: &Fleet, agent: &Agent, at: &str, round: usize) -> Result<()> {
    let (at_label, round_label) = (format!("at={at}"), format!("round={round}"));
    fleet.stemma(&["label", "cluster", "c", &at_label, &round_label])?;
    eventually("the run with that name", || {
        file_contains(&agent.path("etc/marker"), &format!("{at} {round}\n")).with_context(|| agent.log())
    })
}

#[test]
fn s63_a_file_whose_name_leads_elsewhere_is_not_written() -> Result<()> {
    let fleet = Fleet::start()?;
    let manifest = fleet.dir().join("named.yaml");
    std::fs::write(&manifest, NAMED)?;
    fleet.stemma(&["apply", "-f", &manifest.to_string_lossy()])?;
    let agent = fleet.join("n1", "c/g")?;
    let named = agent.path("etc/named");
    eventually("the first file", || file_contains(&named.join("plain"), "own"))?;
    let outside = fleet.dir().join("outside");
    std::fs::create_dir(&outside)?;
    std::fs::write(outside.join("theirs"), "theirs\n")?;
    symlink(&outside, named.join("link"))?;
    symlink(outside.join("theirs"), named.join("to-a-file"))?;
    std::fs::hard_link(outside.join("theirs"), named.join("hard"))?;
    std::fs::create_dir(named.join("directory"))?;
    let around = names(&agent.path("etc"))?;
    let tricks = [
        "../../../escaped",
        "../escaped",
        "..",
        ".",
        "a/../../../escaped",
        "link/escaped",
        "link/theirs",
        "to-a-file",
        "hard",
        "directory",
        "a//b",
        "plain/below",
    ];
    for (round, at) in (1..).zip(tricks) {
        name_it(&fleet, &agent, at, round).with_context(|| at.to_owned())?;
        ensure!(names(&outside)? == BTreeSet::from(["theirs".to_owned()]), "{at}: written outside");
        ensure!(std::fs::read_to_string(outside.join("theirs"))? == "theirs\n", "{at}: written through");
        let mut now = names(&agent.path("etc"))?;
        now.insert("marker".to_owned());
        ensure!(now.is_subset(&around.iter().cloned().chain(["marker".to_owned()]).collect()), "{at}: {now:?}");
        ensure!(!fleet.dir().join("escaped").exists() && !agent.path("escaped").exists(), "{at}: escaped");
    }
    name_it(&fleet, &agent, "another", 100)?;
    eventually("the next good name", || file_contains(&named.join("another"), "own").with_context(|| agent.log()))
}
