//! The state of a host, with real programs: the status on the host, and the report to its controller.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{eventually, run};

use crate::states::check_node_state;

/// Stores a version of a release with these tasks (YAML text), and sets it as the release of cluster `c`. The group
/// `firsts` has the tag `x`, and the group `seconds` has the tag `y`.
fn apply_release(fleet: &TempFleet, version: u32, tasks: &str) -> Result<()> {
    let file = fleet.dir().join("release.yaml");
    let text = format!(
        "kind: Release\nname: r\nversion: \"{version}\"\nroles: {{first: {{tags: [x]}}, second: {{tags: [y]}}}}\ntags: {{x: {{}}, y: {{}}}}\ntasks:\n\
         {tasks}---\n{{kind: Cluster, name: c, release: r@{version}}}\n---\n{{kind: NodeGroup, cluster: c, name: firsts, roles: [first]}}\n\
         ---\n{{kind: NodeGroup, cluster: c, name: seconds, roles: [second]}}\n"
    );
    std::fs::write(&file, text)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()]).map(drop)
}

/// Returns the YAML text of a task with tag `x` that writes the file `/ID`.
fn file_task(id: &str, content: &str) -> String {
    format!("  - {{id: {id}, type: file, tags: [x], parameters: {{path: /{id}, content: \"{content}\"}}}}\n")
}

/// Runs a subcommand of `stemma-agent` on a host. Returns the exit status, and standard output followed by standard
/// error.
fn run_verb(agent: &TestAgent, verb: &str) -> Result<(Option<i32>, String)> {
    let output = run("stemma-agent", ["--root", &agent.path("").to_string_lossy(), verb])?;
    Ok((output.status.code(), String::from_utf8([output.stdout, output.stderr].concat())?))
}

/// Returns a fact of the last report that the controller has stored for a node, or null if the report has no such fact.
fn read_fact(fleet: &TempFleet, node: &str, fact_name: &str) -> Result<Value> {
    let body = fleet.stemma(&["get", "--raw", &format!("/v1/nodes/{node}/report")])?;
    let body: Value = serde_json::from_str(&body)?;
    let text = &body["report"]["report"]["facts"][fact_name];
    text.as_str().map_or(Ok(Value::Null), |text| Ok(serde_json::from_str(text)?))
}

#[test]
fn y06_task_leftover_is_reported_on_host_and_controller() -> Result<()> {
    let fleet = TempFleet::start()?;
    apply_release(&fleet, 1, &(file_task("motd", "m") + &file_task("key", "k")))?;
    let host = fleet.join("n1", "c/firsts")?;
    eventually("the file of task key", || Ok(std::fs::read(host.path("key"))?))?;
    apply_release(&fleet, 2, &file_task("motd", "m"))?;
    let expected = serde_json::json!([{"task": "key", "path": "/key"}]);
    eventually("the fact about the leftover file", || {
        let fact = read_fact(&fleet, "n1", "agent.orphans")?;
        ensure!(fact == expected, "{fact} {}", host.log());
        Ok(())
    })?;
    let text = eventually("converged", || {
        let (status, text) = run_verb(&host, "status")?;
        ensure!(status == Some(0) && text.contains("state     converged\n"), "{text}");
        Ok(text)
    })?;
    assert!(text.contains("orphaned  key                      /key\n"), "{text}");
    eventually("the note in the controller", || check_node_state(&fleet, "n1", "converged", Some("orphaned")))?;
    std::fs::remove_file(host.path("key"))?;
    assert_eq!(run_verb(&host, "once")?.0, Some(0));
    eventually("the end of the fact", || {
        let fact = read_fact(&fleet, "n1", "agent.orphans")?;
        ensure!(fact.is_null(), "{fact}");
        Ok(())
    })?;
    assert!(!run_verb(&host, "status")?.1.contains("orphaned"));
    Ok(())
}

/// The marker `m` runs nothing, but requires the task `a` on the same host. So task `b` on the other host, which
/// depends on `m`, waits until `a` has succeeded.
#[test]
fn y06_task_after_skipped_task_waits_for_other_host() -> Result<()> {
    let fleet = TempFleet::start()?;
    let tasks = |script: &str| {
        format!(
            "  - {{id: a, type: shell, tags: [x], parameters: {{script: '{script}'}}}}\n  \
             - {{id: m, type: skipped, tags: [x], requires: [a]}}\n  \
             - {{id: b, type: shell, tags: [y], cross_depends: [{{name: m, tags: [x]}}], parameters: {{script: 'touch \"$STEMMA_ROOT/b\"'}}}}\n"
        )
    };
    apply_release(&fleet, 1, &tasks("exit 3"))?;
    let (first_host, second_host) = (fleet.join("n1", "c/firsts")?, fleet.join("n2", "c/seconds")?);
    eventually("a has failed", || {
        let text = run_verb(&first_host, "status")?.1;
        ensure!(text.contains("task      a                        failed\n"), "{text}");
        Ok(())
    })?;
    eventually("b waits", || {
        let text = run_verb(&second_host, "status")?.1;
        ensure!(text.contains("state     waiting for other hosts\n"), "{text}");
        ensure!(text.contains("task      b                        waiting for m on tags x\n"), "{text}");
        Ok(())
    })?;
    assert!(!second_host.path("b").exists());
    apply_release(&fleet, 2, &tasks("true"))?;
    eventually("b has run", || Ok(std::fs::read(second_host.path("b"))?))?;
    Ok(())
}

/// A small file system that is mounted over a directory and has a copy of its files. It is unmounted when dropped.
struct SmallFilesystem(PathBuf);

impl SmallFilesystem {
    /// Mounts an empty file system of 1 MiB over `dir`, and copies the files of `dir` into it. `aside` must not exist,
    /// and gets another copy, which remains. Returns `None` if the mount fails, usually for lack of rights.
    fn mount_over(dir: &Path, aside: &Path) -> Result<Option<Self>> {
        let copy = |from: &Path, to: &Path| -> Result<()> {
            let status = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status()?;
            ensure!(status.success(), "cp");
            Ok(())
        };
        std::fs::create_dir(aside)?;
        copy(dir, aside)?;
        let mount_output = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m,mode=0755", "tmpfs"]).arg(dir).output();
        if !mount_output.is_ok_and(|mount_output| mount_output.status.success()) {
            return Ok(None);
        }
        let small = Self(dir.to_owned());
        copy(aside, dir)?;
        Ok(Some(small))
    }

    /// Returns the path of the file that occupies the free space.
    fn filler_path(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Fills the file system until no byte is free.
    fn fill(&self) -> Result<()> {
        let result = std::fs::write(self.filler_path(), vec![0; 2 * 1024 * 1024]);
        ensure!(result.is_err(), "2 MiB fit into a file system of 1 MiB");
        Ok(())
    }

    /// Remounts the file system read-only (`ro`) or writable (`rw`).
    fn remount(&self, mode: &str) -> Result<()> {
        let status = Command::new("mount").arg("-o").arg(format!("remount,{mode}")).arg(&self.0).status()?;
        ensure!(status.success(), "remount,{mode}");
        Ok(())
    }
}

impl Drop for SmallFilesystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
#[allow(clippy::print_stderr, reason = "the output shows that the test was skipped")]
fn y06_agent_reports_full_state_directory_and_recovers() -> Result<()> {
    let fleet = TempFleet::start()?;
    apply_release(&fleet, 1, &file_task("motd", "one"))?;
    let mut host = fleet.join("n1", "c/firsts")?;
    let check_content = |host: &TestAgent, text: &str| -> Result<()> {
        let found = std::fs::read_to_string(host.path("motd"))?;
        ensure!(found == text, "{found}: {}", host.log());
        Ok(())
    };
    eventually("the file", || check_content(&host, "one"))?;
    eventually("converged", || {
        let text = run_verb(&host, "status")?.1;
        ensure!(text.contains("state     converged\n"), "{text}");
        Ok(())
    })?;
    host.kill()?;
    let Some(filesystem) = SmallFilesystem::mount_over(&host.path("var/lib/stemma-agent"), &fleet.dir().join("aside"))? else {
        eprintln!("skipped: who runs the test may not mount");
        return Ok(());
    };
    host.start()?;
    eventually("the connected agent", || {
        ensure!(host.log().contains("connected"), "{}", host.log());
        Ok(())
    })?;
    filesystem.fill()?;
    let reason = "No space left on device";
    // The agent has nothing to write, but it checks the free space each minute, and when a person runs `check`.
    let (status, text) = run_verb(&host, "check")?;
    assert!(status == Some(1) && text.contains(reason), "{text}");
    eventually("the fact before the agent has anything to write", || {
        let fact = read_fact(&fleet, "n1", "agent.stuck")?;
        ensure!(fact.as_str().is_some_and(|fact_text| fact_text.contains(reason)), "{fact} {}", host.log());
        Ok(())
    })?;
    eventually("the state in the controller", || check_node_state(&fleet, "n1", "stuck", None))?;
    apply_release(&fleet, 2, &file_task("motd", "two"))?;
    eventually("the fact after a failed write", || {
        let fact = read_fact(&fleet, "n1", "agent.stuck")?;
        ensure!(fact.as_str().is_some_and(|fact_text| fact_text.contains(reason)), "{fact} {}", host.log());
        Ok(())
    })?;
    let (status, text) = run_verb(&host, "status")?;
    let state = text.lines().find(|line| line.starts_with("state")).context("its state")?;
    assert!(status == Some(1) && state.starts_with("state     stuck: ") && state.contains(reason), "{text}");
    assert!(!text.contains(".stemma-"), "{text}");
    let (status, text) = run_verb(&host, "check")?;
    assert!(status == Some(1) && text.contains(reason), "{text}");
    check_content(&host, "one")?;
    std::fs::remove_file(filesystem.filler_path())?;
    // `once` requests a reconcile. Without a request, the agent tries again within 30 s.
    eventually("the file of the next release", || {
        run_verb(&host, "once")?;
        check_content(&host, "two")
    })?;
    eventually("the end of the fact", || {
        let fact = read_fact(&fleet, "n1", "agent.stuck")?;
        ensure!(fact.is_null(), "{fact}");
        Ok(())
    })?;
    assert_eq!(run_verb(&host, "status")?.0, Some(0));
    host.kill()
}

#[test]
#[allow(clippy::print_stderr, reason = "the output shows that the test was skipped")]
fn y06_agent_starts_and_recovers_when_state_is_read_only() -> Result<()> {
    let fleet = TempFleet::start()?;
    apply_release(&fleet, 1, &file_task("motd", "one"))?;
    let mut host = fleet.join("n1", "c/firsts")?;
    let check_state = |host: &TestAgent, expected: &str| -> Result<String> {
        let text = run_verb(host, "status")?.1;
        ensure!(text.contains(&format!("state     {expected}\n")), "{text} {}", host.log());
        Ok(text)
    };
    eventually("converged", || check_state(&host, "converged"))?;
    host.kill()?;
    let Some(filesystem) = SmallFilesystem::mount_over(&host.path("var/lib/stemma-agent"), &fleet.dir().join("aside"))? else {
        eprintln!("skipped: who runs the test may not mount");
        return Ok(());
    };
    filesystem.remount("ro")?;
    host.start()?;
    let reason = "/var/lib/stemma-agent/apply/accepted cannot be replaced: the file system at /var/lib/stemma-agent is read-only; it is left as it \
               was, until `mount -o remount,rw /var/lib/stemma-agent`";
    eventually("the fact in the controller", || {
        let fact = read_fact(&fleet, "n1", "agent.stuck")?;
        ensure!(fact == reason, "{fact} {}", host.log());
        Ok(())
    })?;
    let text = check_state(&host, &format!("stuck: {reason}"))?;
    assert!(!text.contains("whether an agent runs"), "{text}");
    for verb in ["check", "once"] {
        let (status, text) = run_verb(&host, verb)?;
        assert!(status == Some(1) && text.contains("is read-only"), "{verb}: {text}");
    }
    apply_release(&fleet, 2, &file_task("motd", "two"))?;
    filesystem.remount("rw")?;
    // `once` requests a reconcile. Without a request, the agent tries again within 30 s.
    eventually("the file of the next release", || {
        run_verb(&host, "once")?;
        let found = std::fs::read_to_string(host.path("motd"))?;
        ensure!(found == "two", "{found}: {}", host.log());
        Ok(())
    })?;
    eventually("the end of the fact", || {
        let fact = read_fact(&fleet, "n1", "agent.stuck")?;
        ensure!(fact.is_null(), "{fact}");
        check_state(&host, "converged")
    })?;
    host.kill()
}

/// Checks that the controller and the host report the state `stuck` with this reason, and that `status`, `check` and
/// `once` fail on the host.
fn check_stuck(fleet: &TempFleet, host: &TestAgent, reason: &str) -> Result<()> {
    eventually("the state in the controller", || check_node_state(fleet, "n1", "stuck", None))?;
    let node_json = fleet.stemma(&["get", "node", "n1", "-o", "json"])?;
    ensure!(node_json.contains("host.stuck") && node_json.contains(reason), "{node_json}");
    let (status, text) = run_verb(host, "status")?;
    let state = text.lines().find(|line| line.starts_with("state")).context("its state")?;
    ensure!(status == Some(1) && state.starts_with("state     stuck: ") && state.contains(reason), "{text}");
    for verb in ["check", "once"] {
        let (status, text) = run_verb(host, verb)?;
        ensure!(status == Some(1) && text.contains("this host is stuck: ") && text.contains(reason), "{verb}: {text}");
    }
    Ok(())
}

/// Waits until a label file of the host has the expected content. Checks that neither the controller nor the host
/// reports the state `stuck` any more.
fn check_recovered(fleet: &TempFleet, host: &TestAgent, file: &str, expected_content: &str) -> Result<()> {
    // `once` requests a reconcile. Without a request, the agent tries again within 30 s.
    eventually("the labels are written", || {
        run_verb(host, "once")?;
        let text = std::fs::read_to_string(host.path(file))?;
        ensure!(text == expected_content, "{text}");
        Ok(())
    })?;
    eventually("the state in the controller", || check_node_state(fleet, "n1", "converged", None))?;
    for verb in ["status", "check", "once"] {
        let (status, text) = run_verb(host, verb)?;
        ensure!(status == Some(0) && !text.contains("stuck"), "{verb}: {text}");
    }
    Ok(())
}

/// Joins a host whose label `tier` is written to two files: the agent's label file, and `/etc/stemma/node-labels` for
/// other programs. Waits until both files have the label.
fn join_labelled_host(fleet: &TempFleet) -> Result<TestAgent> {
    apply_release(fleet, 1, &file_task("motd", "one"))?;
    let file = fleet.dir().join("flows.yaml");
    let group = "{kind: NodeGroup, cluster: c, name: firsts, roles: [first], host_labels: {patterns: [tier]}}\n";
    std::fs::write(&file, group)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy(), "--yes"])?;
    let host = fleet.join("n1", "c/firsts")?;
    fleet.stemma(&["label", "node", "n1", "tier=gold"])?;
    check_recovered(fleet, &host, "run/stemma/labels.json", "{\"tier\":\"gold\"}\n")?;
    check_recovered(fleet, &host, "etc/stemma/node-labels", "tier=gold\n")?;
    Ok(host)
}

/// Regression: every view showed `converged`. After the directory was removed, the agent wrote the labels only half an
/// hour later, or with the next change of a label.
#[test]
fn y06_host_is_stuck_when_label_file_is_directory() -> Result<()> {
    let fleet = TempFleet::start()?;
    let mut host = join_labelled_host(&fleet)?;
    for (file, tier, expected_content) in
        [("run/stemma/labels.json", "silver", "{\"tier\":\"silver\"}\n"), ("etc/stemma/node-labels", "lead", "tier=lead\n")]
    {
        std::fs::remove_file(host.path(file))?;
        std::fs::create_dir(host.path(file))?;
        fleet.stemma(&["label", "node", "n1", "--overwrite", &format!("tier={tier}")])?;
        check_stuck(&fleet, &host, file)?;
        std::fs::remove_dir(host.path(file))?;
        check_recovered(&fleet, &host, file, expected_content)?;
    }
    host.kill()
}

#[test]
#[allow(clippy::print_stderr, reason = "the output shows that the test was skipped")]
fn y06_host_is_stuck_when_labels_have_no_space() -> Result<()> {
    let fleet = TempFleet::start()?;
    let mut host = join_labelled_host(&fleet)?;
    for (dir, file, tier, expected_content) in [
        ("run/stemma", "run/stemma/labels.json", "silver", "{\"tier\":\"silver\"}\n"),
        ("etc/stemma", "etc/stemma/node-labels", "lead", "tier=lead\n"),
    ] {
        // The value of the label is also the name of the directory for the copy of the files.
        let Some(filesystem) = SmallFilesystem::mount_over(&host.path(dir), &fleet.dir().join(tier))? else {
            eprintln!("skipped: who runs the test may not mount");
            return host.kill();
        };
        filesystem.fill()?;
        fleet.stemma(&["label", "node", "n1", "--overwrite", &format!("tier={tier}")])?;
        check_stuck(&fleet, &host, "No space left on device")?;
        std::fs::remove_file(filesystem.filler_path())?;
        check_recovered(&fleet, &host, file, expected_content)?;
    }
    host.kill()
}

/// Regression: a host without a task set reported `converged`, and `check` ended with 0.
#[test]
fn y06_status_reports_missing_task_set_when_group_is_paused() -> Result<()> {
    let fleet = TempFleet::start()?;
    apply_release(&fleet, 1, &file_task("motd", "one"))?;
    fleet.stemma(&["pause", "nodegroup", "c/firsts"])?;
    let mut host = fleet.join("n1", "c/firsts")?;
    fleet.stemma(&["label", "node", "n1", "tier=gold"])?;
    eventually("the labels of the host", || Ok(std::fs::read(host.path("run/stemma/labels.json"))?))?;
    eventually("the state in the controller", || check_node_state(&fleet, "n1", "paused", None))?;
    let (status, text) = run_verb(&host, "status")?;
    let state = "state     waiting, paused by an operator (its nodegroup or cluster)\n";
    assert!(status == Some(0) && text.contains(state), "{text}");
    let (status, text) = run_verb(&host, "check")?;
    assert!(status == Some(3) && text.contains("no task set was released"), "{text}");
    let (status, text) = run_verb(&host, "once")?;
    assert!(status == Some(0) && text.contains("no task set was released"), "{text}");
    fleet.stemma(&["resume", "nodegroup", "c/firsts"])?;
    eventually("the file", || Ok(std::fs::read(host.path("motd"))?))?;
    assert_eq!(run_verb(&host, "check")?.0, Some(0));
    host.kill()
}
