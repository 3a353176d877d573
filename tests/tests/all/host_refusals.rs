//! Tests of what the real agent refuses on its host. The agent does not use its own files if other users can access
//! them (S71). It does not write to a path that leads out of its directory (S63).

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{RunningProgram, check_file_contains, eventually};
use stemma_tests::site::{SITE, check_files};

/// A release with two tasks. A label names the file of the first task. The second task writes a marker, which shows
/// that the run has passed the first task.
const MANIFEST: &str = r#"
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
fn s71_agent_refuses_start_when_others_can_access_files() -> Result<()> {
    let fleet = TempFleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let mut web = fleet.join("web-1", "prod/frontends")?;
    let state = "var/lib/stemma-agent";
    let steps = web.path(&format!("{state}/apply/steps"));
    // A task writes its file before the record of its step exists.
    eventually("the first convergence", || {
        ensure!(!file_names(&steps)?.is_empty(), "no step is stored: {}", web.log());
        check_files(&web)
    })?;
    web.kill()?;
    std::fs::create_dir_all(web.path("etc/stemma"))?;
    std::fs::write(web.path("etc/stemma/agent.toml"), "")?;
    let step = format!("{state}/apply/steps/{}", file_names(&steps)?.first().context("a step")?);
    for (path, mode, advised_command) in [
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
        // The progress of an apply is stored only while the apply runs.
        let is_missing = !path.exists();
        if is_missing {
            std::fs::write(&path, "")?;
        }
        let mode_before = std::fs::metadata(&path).with_context(|| path.display().to_string())?.permissions().mode();
        set_mode(&path, mode)?;
        let program = RunningProgram::start("stemma-agent", ["--root".as_ref(), web.path("").as_os_str(), "run".as_ref()])?;
        let (is_success, log) = program.wait_with_log().with_context(|| format!("mode {mode:o} of {}", path.display()))?;
        let advice = format!("{advised_command} {}", path.display());
        ensure!(!is_success && log.contains(&advice) && log.contains(&format!("{mode:04o}")), "{log}");
        set_mode(&path, mode_before)?;
        if is_missing {
            std::fs::remove_file(&path)?;
        }
    }
    web.start()?;
    fleet.stemma(&["label", "nodegroup", "prod/frontends", "tier=mended"])?;
    eventually("the edit on the host", || {
        check_file_contains(&web.path("etc/nginx/conf.d/site.conf"), "tier mended").with_context(|| web.log())
    })
}

/// Returns the names in a directory.
fn file_names(directory: &Path) -> Result<BTreeSet<String>> {
    let entries = std::fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
    Ok(entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// Sets the label `at`, which is the name of the file of task `named`. Waits until the agent has tried to write the
/// file. The marker contains both labels, and `round` differs in each call.
fn set_file_name(fleet: &TempFleet, agent: &TestAgent, file_name: &str, round: usize) -> Result<()> {
    let (at_label, round_label) = (format!("at={file_name}"), format!("round={round}"));
    fleet.stemma(&["label", "cluster", "c", &at_label, &round_label])?;
    eventually("the run with that name", || {
        check_file_contains(&agent.path("etc/marker"), &format!("{file_name} {round}\n")).with_context(|| agent.log())
    })
}

/// A label gives the name of a file. The agent writes no file if the name leaves the directory of the task, leads
/// through a link, or names something else than a regular file of its own.
#[test]
fn s63_file_is_not_written_when_name_leaves_directory() -> Result<()> {
    let fleet = TempFleet::start()?;
    let manifest = fleet.dir().join("named.yaml");
    std::fs::write(&manifest, MANIFEST)?;
    fleet.stemma(&["apply", "-f", &manifest.to_string_lossy()])?;
    let agent = fleet.join("n1", "c/g")?;
    let named_dir = agent.path("etc/named");
    eventually("the first file", || check_file_contains(&named_dir.join("plain"), "own"))?;
    let outside = fleet.dir().join("outside");
    std::fs::create_dir(&outside)?;
    std::fs::write(outside.join("theirs"), "theirs\n")?;
    symlink(&outside, named_dir.join("link"))?;
    symlink(outside.join("theirs"), named_dir.join("to-a-file"))?;
    std::fs::hard_link(outside.join("theirs"), named_dir.join("hard"))?;
    std::fs::create_dir(named_dir.join("directory"))?;
    let names_before = file_names(&agent.path("etc"))?;
    let file_names_to_refuse = [
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
    for (round, name) in (1..).zip(file_names_to_refuse) {
        set_file_name(&fleet, &agent, name, round).with_context(|| name.to_owned())?;
        ensure!(file_names(&outside)? == BTreeSet::from(["theirs".to_owned()]), "{name}: written outside");
        ensure!(std::fs::read_to_string(outside.join("theirs"))? == "theirs\n", "{name}: written through");
        let mut names_after = file_names(&agent.path("etc"))?;
        // The marker may be new, so both sets get its name.
        names_after.insert("marker".to_owned());
        ensure!(
            names_after.is_subset(&names_before.iter().cloned().chain(["marker".to_owned()]).collect()),
            "{name}: {names_after:?}"
        );
        ensure!(!fleet.dir().join("escaped").exists() && !agent.path("escaped").exists(), "{name}: escaped");
    }
    set_file_name(&fleet, &agent, "another", 100)?;
    eventually("the next good name", || check_file_contains(&named_dir.join("another"), "own").with_context(|| agent.log()))
}
