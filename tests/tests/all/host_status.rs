//! The state of a host, with real programs: what a person reads on the host, and what is sent to its controller. The
//! cases are a full disk, a file that a task left, and a wait for another host behind a skipped task in the order.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{eventually, run};

use crate::states::check_node_state;

/// Applies a version of a release, and gives it to the cluster.
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

fn file_task(id: &str, content: &str) -> String {
    format!("  - {{id: {id}, type: file, tags: [x], parameters: {{path: /{id}, content: \"{content}\"}}}}\n")
}

/// Runs a verb of the agent on a host. Returns its exit status and its output.
fn run_verb(agent: &TestAgent, verb: &str) -> Result<(Option<i32>, String)> {
    let ended = run("stemma-agent", ["--root", &agent.path("").to_string_lossy(), verb])?;
    Ok((ended.status.code(), String::from_utf8([ended.stdout, ended.stderr].concat())?))
}

/// Returns a fact from the last report of a node that the controller has stored.
fn read_fact(fleet: &TempFleet, node: &str, path: &str) -> Result<Value> {
    let body = fleet.stemma(&["get", "--raw", &format!("/v1/nodes/{node}/report")])?;
    let body: Value = serde_json::from_str(&body)?;
    let text = &body["report"]["report"]["facts"][path];
    text.as_str().map_or(Ok(Value::Null), |text| Ok(serde_json::from_str(text)?))
}

#[test]
fn y06_task_leftover_is_reported_on_host_and_controller() -> Result<()> {
    let fleet = TempFleet::start()?;
    apply_release(&fleet, 1, &(file_task("motd", "m") + &file_task("key", "k")))?;
    let host = fleet.join("n1", "c/firsts")?;
    eventually("the key is there", || Ok(std::fs::read(host.path("key"))?))?;
    apply_release(&fleet, 2, &file_task("motd", "m"))?;
    let told = serde_json::json!([{"task": "key", "path": "/key"}]);
    eventually("the controller is told", || {
        let fact = read_fact(&fleet, "n1", "agent.orphans")?;
        ensure!(fact == told, "{fact} {}", host.log());
        Ok(())
    })?;
    let text = eventually("converged", || {
        let (status, text) = run_verb(&host, "status")?;
        ensure!(status == Some(0) && text.contains("state     converged\n"), "{text}");
        Ok(text)
    })?;
    assert!(text.contains("orphaned  key                      /key\n"), "{text}");
    eventually("the controller says it", || check_node_state(&fleet, "n1", "converged", Some("orphaned")))?;
    std::fs::remove_file(host.path("key"))?;
    assert_eq!(run_verb(&host, "once")?.0, Some(0));
    eventually("nothing is left", || {
        let fact = read_fact(&fleet, "n1", "agent.orphans")?;
        ensure!(fact.is_null(), "{fact}");
        Ok(())
    })?;
    assert!(!run_verb(&host, "status")?.1.contains("orphaned"));
    Ok(())
}

#[test]
fn y06_task_after_skipped_one_waits_for_other_host() -> Result<()> {
    let fleet = TempFleet::start()?;
    let tasks = |script: &str| {
        format!(
            "  - {{id: a, type: shell, tags: [x], parameters: {{script: '{script}'}}}}\n  \
             - {{id: m, type: skipped, tags: [x], requires: [a]}}\n  \
             - {{id: b, type: shell, tags: [y], cross_depends: [{{name: m, tags: [x]}}], parameters: {{script: 'touch \"$STEMMA_ROOT/b\"'}}}}\n"
        )
    };
    apply_release(&fleet, 1, &tasks("exit 3"))?;
    let (first, second) = (fleet.join("n1", "c/firsts")?, fleet.join("n2", "c/seconds")?);
    eventually("a has failed", || {
        let text = run_verb(&first, "status")?.1;
        ensure!(text.contains("task      a                        failed\n"), "{text}");
        Ok(())
    })?;
    eventually("b waits", || {
        let text = run_verb(&second, "status")?.1;
        ensure!(text.contains("state     waiting for other hosts\n"), "{text}");
        ensure!(text.contains("task      b                        waiting for m on tags x\n"), "{text}");
        Ok(())
    })?;
    assert!(!second.path("b").exists());
    apply_release(&fleet, 2, &tasks("true"))?;
    eventually("b has run", || Ok(std::fs::read(second.path("b"))?))?;
    Ok(())
}

/// A small file system that is mounted over a directory and has a copy of its files. It is unmounted when dropped.
struct SmallFilesystem(PathBuf);

impl SmallFilesystem {
    /// Returns `None` if the user that runs the test may not mount.
    fn mount_over(dir: &Path, aside: &Path) -> Result<Option<Self>> {
        let copy = |from: &Path, to: &Path| -> Result<()> {
            let copied = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status()?;
            ensure!(copied.success(), "cp");
            Ok(())
        };
        std::fs::create_dir(aside)?;
        copy(dir, aside)?;
        let tried = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m,mode=0755", "tmpfs"]).arg(dir).output();
        if !tried.is_ok_and(|tried| tried.status.success()) {
            return Ok(None);
        }
        let small = Self(dir.to_owned());
        copy(aside, dir)?;
        Ok(Some(small))
    }

    fn filler_path(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Fills the file system until no byte is free.
    fn fill(&self) -> Result<()> {
        let full = std::fs::write(self.filler_path(), vec![0; 2 * 1024 * 1024]);
        ensure!(full.is_err(), "it takes more than it has room for");
        Ok(())
    }

    /// Remounts the file system read-only (`ro`) or writable (`rw`).
    fn remount(&self, how: &str) -> Result<()> {
        let done = Command::new("mount").arg("-o").arg(format!("remount,{how}")).arg(&self.0).status()?;
        ensure!(done.success(), "remount,{how}");
        Ok(())
    }
}

impl Drop for SmallFilesystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
#[allow(clippy::print_stderr, reason = "who reads a test's output sees that it was skipped")]
fn y06_agent_reports_full_state_directory_and_recovers() -> Result<()> {
    let fleet = TempFleet::start()?;
    apply_release(&fleet, 1, &file_task("motd", "one"))?;
    let mut host = fleet.join("n1", "c/firsts")?;
    let holds = |host: &TestAgent, text: &str| -> Result<()> {
        let found = std::fs::read_to_string(host.path("motd"))?;
        ensure!(found == text, "{found}: {}", host.log());
        Ok(())
    };
    eventually("the file", || holds(&host, "one"))?;
    eventually("converged", || {
        let text = run_verb(&host, "status")?.1;
        ensure!(text.contains("state     converged\n"), "{text}");
        Ok(())
    })?;
    host.kill()?;
    let Some(small) = SmallFilesystem::mount_over(&host.path("var/lib/stemma-agent"), &fleet.dir().join("aside"))? else {
        eprintln!("skipped: who runs the test may not mount");
        return Ok(());
    };
    host.start()?;
    eventually("the agent is back", || {
        ensure!(host.log().contains("connected"), "{}", host.log());
        Ok(())
    })?;
    small.fill()?;
    let why = "No space left on device";
    // There is nothing to write. The agent checks each minute, and when a person requests it.
    let (status, text) = run_verb(&host, "check")?;
    assert!(status == Some(1) && text.contains(why), "{text}");
    eventually("the controller is told while nothing is to be written", || {
        let fact = read_fact(&fleet, "n1", "agent.stuck")?;
        ensure!(fact.as_str().is_some_and(|said| said.contains(why)), "{fact} {}", host.log());
        Ok(())
    })?;
    eventually("the controller says it", || check_node_state(&fleet, "n1", "stuck", None))?;
    apply_release(&fleet, 2, &file_task("motd", "two"))?;
    eventually("the controller is told", || {
        let fact = read_fact(&fleet, "n1", "agent.stuck")?;
        ensure!(fact.as_str().is_some_and(|said| said.contains(why)), "{fact} {}", host.log());
        Ok(())
    })?;
    let (status, text) = run_verb(&host, "status")?;
    let state = text.lines().find(|line| line.starts_with("state")).context("its state")?;
    assert!(status == Some(1) && state.starts_with("state     stuck: ") && state.contains(why), "{text}");
    assert!(!text.contains(".stemma-"), "{text}");
    let (status, text) = run_verb(&host, "check")?;
    assert!(status == Some(1) && text.contains(why), "{text}");
    holds(&host, "one")?;
    std::fs::remove_file(small.filler_path())?;
    // Requests a check. Without a request, the agent tries again within 30 s.
    eventually("it goes on", || {
        run_verb(&host, "once")?;
        holds(&host, "two")
    })?;
    eventually("nothing of it is left", || {
        let fact = read_fact(&fleet, "n1", "agent.stuck")?;
        ensure!(fact.is_null(), "{fact}");
        Ok(())
    })?;
    assert_eq!(run_verb(&host, "status")?.0, Some(0));
    host.kill()
}

#[test]
#[allow(clippy::print_stderr, reason = "who reads a test's output sees that it was skipped")]
fn y06_agent_starts_and_recovers_when_state_is_read_only() -> Result<()> {
    let fleet = TempFleet::start()?;
    apply_release(&fleet, 1, &file_task("motd", "one"))?;
    let mut host = fleet.join("n1", "c/firsts")?;
    let state = |host: &TestAgent, said: &str| -> Result<String> {
        let text = run_verb(host, "status")?.1;
        ensure!(text.contains(&format!("state     {said}\n")), "{text} {}", host.log());
        Ok(text)
    };
    eventually("converged", || state(&host, "converged"))?;
    host.kill()?;
    let Some(small) = SmallFilesystem::mount_over(&host.path("var/lib/stemma-agent"), &fleet.dir().join("aside"))? else {
        eprintln!("skipped: who runs the test may not mount");
        return Ok(());
    };
    small.remount("ro")?;
    host.start()?;
    let why = "/var/lib/stemma-agent/apply/accepted cannot be replaced: the file system at /var/lib/stemma-agent is read-only; it is left as it \
               was, until `mount -o remount,rw /var/lib/stemma-agent`";
    eventually("the controller is told", || {
        let fact = read_fact(&fleet, "n1", "agent.stuck")?;
        ensure!(fact == why, "{fact} {}", host.log());
        Ok(())
    })?;
    let text = state(&host, &format!("stuck: {why}"))?;
    assert!(!text.contains("whether an agent runs"), "{text}");
    for asked in ["check", "once"] {
        let (status, text) = run_verb(&host, asked)?;
        assert!(status == Some(1) && text.contains("is read-only"), "{asked}: {text}");
    }
    apply_release(&fleet, 2, &file_task("motd", "two"))?;
    small.remount("rw")?;
    // Requests a check. Without a request, the agent tries again within 30 s.
    eventually("it goes on", || {
        run_verb(&host, "once")?;
        let found = std::fs::read_to_string(host.path("motd"))?;
        ensure!(found == "two", "{found}: {}", host.log());
        Ok(())
    })?;
    eventually("nothing of it is left", || {
        let fact = read_fact(&fleet, "n1", "agent.stuck")?;
        ensure!(fact.is_null(), "{fact}");
        state(&host, "converged")
    })?;
    host.kill()
}

/// Checks that the controller and the host report `stuck`, and that every verb on the host fails.
fn check_stuck(fleet: &TempFleet, host: &TestAgent, why: &str) -> Result<()> {
    eventually("the controller says it", || check_node_state(fleet, "n1", "stuck", None))?;
    let told = fleet.stemma(&["get", "node", "n1", "-o", "json"])?;
    ensure!(told.contains("host.stuck") && told.contains(why), "{told}");
    let (status, text) = run_verb(host, "status")?;
    let state = text.lines().find(|line| line.starts_with("state")).context("its state")?;
    ensure!(status == Some(1) && state.starts_with("state     stuck: ") && state.contains(why), "{text}");
    for asked in ["check", "once"] {
        let (status, text) = run_verb(host, asked)?;
        ensure!(status == Some(1) && text.contains("this host is stuck: ") && text.contains(why), "{asked}: {text}");
    }
    Ok(())
}

/// Checks that the host writes its labels, and that `stuck` is reported no longer.
fn check_recovered(fleet: &TempFleet, host: &TestAgent, file: &str, holds: &str) -> Result<()> {
    // Requests a check. Without a request, the agent tries again within 30 s.
    eventually("the labels are written", || {
        run_verb(host, "once")?;
        let text = std::fs::read_to_string(host.path(file))?;
        ensure!(text == holds, "{text}");
        Ok(())
    })?;
    eventually("the controller says it", || check_node_state(fleet, "n1", "converged", None))?;
    for asked in ["status", "check", "once"] {
        let (status, text) = run_verb(host, asked)?;
        ensure!(status == Some(0) && !text.contains("stuck"), "{asked}: {text}");
    }
    Ok(())
}

/// Joins a host whose labels flow to the host label map, and waits until a label has arrived there.
fn labelled_host(fleet: &TempFleet) -> Result<TestAgent> {
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

/// Regression: every view showed `converged`, and the labels were written half an hour later, or with the next label.
#[test]
fn y06_host_is_stuck_when_label_file_is_directory() -> Result<()> {
    let fleet = TempFleet::start()?;
    let mut host = labelled_host(&fleet)?;
    for (file, tier, holds) in
        [("run/stemma/labels.json", "silver", "{\"tier\":\"silver\"}\n"), ("etc/stemma/node-labels", "lead", "tier=lead\n")]
    {
        std::fs::remove_file(host.path(file))?;
        std::fs::create_dir(host.path(file))?;
        fleet.stemma(&["label", "node", "n1", "--overwrite", &format!("tier={tier}")])?;
        check_stuck(&fleet, &host, file)?;
        std::fs::remove_dir(host.path(file))?;
        check_recovered(&fleet, &host, file, holds)?;
    }
    host.kill()
}

#[test]
#[allow(clippy::print_stderr, reason = "who reads a test's output sees that it was skipped")]
fn y06_host_is_stuck_when_labels_have_no_space() -> Result<()> {
    let fleet = TempFleet::start()?;
    let mut host = labelled_host(&fleet)?;
    for (dir, file, tier, holds) in [
        ("run/stemma", "run/stemma/labels.json", "silver", "{\"tier\":\"silver\"}\n"),
        ("etc/stemma", "etc/stemma/node-labels", "lead", "tier=lead\n"),
    ] {
        let Some(small) = SmallFilesystem::mount_over(&host.path(dir), &fleet.dir().join(tier))? else {
            eprintln!("skipped: who runs the test may not mount");
            return host.kill();
        };
        small.fill()?;
        fleet.stemma(&["label", "node", "n1", "--overwrite", &format!("tier={tier}")])?;
        check_stuck(&fleet, &host, "No space left on device")?;
        std::fs::remove_file(small.filler_path())?;
        check_recovered(&fleet, &host, file, holds)?;
    }
    host.kill()
}

/// Regression: the host reported `converged`, and `check` ended with status 0.
#[test]
fn y06_status_says_no_task_set_was_released() -> Result<()> {
    let fleet = TempFleet::start()?;
    apply_release(&fleet, 1, &file_task("motd", "one"))?;
    fleet.stemma(&["pause", "nodegroup", "c/firsts"])?;
    let mut host = fleet.join("n1", "c/firsts")?;
    fleet.stemma(&["label", "node", "n1", "tier=gold"])?;
    eventually("its labels have come", || Ok(std::fs::read(host.path("run/stemma/labels.json"))?))?;
    eventually("the controller says it", || check_node_state(&fleet, "n1", "paused", None))?;
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
