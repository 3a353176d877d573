//! Tests of `once` when it is interrupted, with the real programs. After a signal or a pause, the running task ends, no
//! other task begins, and `once` reports its progress. An agent that is started in the meantime waits until `once` has
//! ended.

use std::ffi::OsString;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{RunningProgram, eventually, run};

/// Command that starts a program with the default handling of SIGHUP, which the test runner may have disabled.
const ACCEPT_HANGUP: [&str; 2] = ["env", "--default-signal=HUP"];
/// Command that starts a program with SIGHUP ignored, as `nohup` does.
const IGNORE_HANGUP: [&str; 2] = ["env", "--ignore-signal=HUP"];

/// The script of each task. It writes that it has begun, and ends when the file `go` exists.
const TASK_SCRIPT: &str = "echo begun >>\"$STEMMA_ROOT/begun\"; until test -e \"$STEMMA_ROOT/go\"; do sleep 0.02; done";

/// Creates a fleet and a host with five tasks in sequence. They do nothing while the host has the file `off`, which
/// exists at first. No agent runs on the host.
fn host_with_five_tasks() -> Result<(TempFleet, TestAgent)> {
    let fleet = TempFleet::start()?;
    let task = |number: usize| -> Value {
        let requires: Vec<String> = (number > 1).then(|| format!("s{}", number - 1)).into_iter().collect();
        let parameters = json!({"script": TASK_SCRIPT, "unless": "test -e \"$STEMMA_ROOT/off\""});
        json!({"id": format!("s{number}"), "type": "shell", "tags": ["x"], "requires": requires, "parameters": parameters})
    };
    let tasks: Vec<Value> = (1..=5).map(task).collect();
    let objects = json!([
        {"kind": "Release", "name": "r", "version": "1", "roles": {"all": {"tags": ["x"]}}, "tags": {"x": {}}, "tasks": tasks},
        {"kind": "Cluster", "name": "c", "release": "r@1"},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"]},
    ]);
    let file = fleet.dir().join("site.json");
    std::fs::write(&file, objects.to_string())?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    std::fs::create_dir(fleet.dir().join("n1"))?;
    std::fs::write(fleet.dir().join("n1/off"), "")?;
    let mut host = fleet.join("n1", "c/g")?;
    fleet.stemma(&["wait", "node/n1", "--for", "state=converged"])?;
    host.kill()?;
    Ok((fleet, host))
}

/// Starts `once` with tasks that wait for the file `go`. Returns when the first task runs. `prefix` is a command that
/// starts `once`, or is empty.
fn begin_once(host: &TestAgent, prefix: &[&str]) -> Result<RunningProgram> {
    for name in ["off", "go", "begun"] {
        let _ = std::fs::remove_file(host.path(name));
    }
    let prefix: Vec<OsString> = prefix.iter().map(OsString::from).collect();
    let root = host.path("");
    let once = RunningProgram::start_under(&prefix, "stemma-agent", ["--root".as_ref(), root.as_os_str(), "once".as_ref()])?;
    eventually("the first task runs", || check_begun_tasks(host, 1).with_context(|| once.log()))?;
    Ok(once)
}

/// Checks that this number of tasks has begun.
fn check_begun_tasks(host: &TestAgent, count: usize) -> Result<()> {
    let text = std::fs::read_to_string(host.path("begun"))?;
    ensure!(text.lines().count() == count, "{text}");
    Ok(())
}

/// Waits until a program has logged this text for a task.
fn wait_for_log(program: &RunningProgram, text: &str, task: &str) -> Result<()> {
    eventually(text, || {
        let log = program.log();
        let line = log.lines().find(|line| line.contains(text));
        ensure!(line.is_some_and(|line| line.contains(&format!("task={task}"))), "{log}");
        Ok(())
    })
}

/// Creates the file `go`, so that the running task ends. Returns the line that `once` prints. Fails if `once` ends with
/// 0 and `is_success` is false, or with another status and `is_success` is true.
fn finish_once(host: &TestAgent, once: RunningProgram, is_success: bool) -> Result<String> {
    std::fs::write(host.path("go"), "")?;
    let output = once.next_line()?;
    let (has_succeeded, log) = once.wait_with_log()?;
    ensure!(has_succeeded == is_success, "{output}: {log}");
    Ok(output)
}

/// Runs a subcommand of `stemma-agent`, which must succeed. Returns its standard output.
fn run_subcommand(host: &TestAgent, subcommand: &str) -> Result<String> {
    let output = run("stemma-agent", ["--root", &host.path("").to_string_lossy(), subcommand])?;
    ensure!(output.status.success(), "{subcommand}: {output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Regression: after a signal, `once` ended with 0 and did not report the remaining tasks. When its terminal closed,
/// `once` ended during a task, and the result of this task was unknown.
#[test]
fn y02_once_finishes_running_task_when_signaled() -> Result<()> {
    let (_fleet, host) = host_with_five_tasks()?;
    for (prefix, signals, signal_name) in [
        (ACCEPT_HANGUP, &[Signal::INT][..], "SIGINT"),
        (ACCEPT_HANGUP, &[Signal::HUP][..], "SIGHUP"),
        // `once` ignores SIGHUP here, as under `nohup`, and stops only at SIGTERM.
        (IGNORE_HANGUP, &[Signal::HUP, Signal::TERM][..], "SIGTERM"),
    ] {
        let once = begin_once(&host, &prefix)?;
        let status = || host.status();
        eventually("the state `running`", || {
            let text = status()?;
            ensure!(text.contains("state     running\n"), "{text}");
            Ok(())
        })?;
        let id = Pid::from_raw(i32::try_from(once.id())?).context("a process")?;
        for signal in signals {
            kill_process(id, *signal)?;
        }
        wait_for_log(&once, "stopping: waiting for a running task to end", "s1").context(signal_name)?;
        let expected =
            format!("stopped by {signal_name} after 1 of 5 tasks (1 changed): 4 have not run; run `stemma-agent once` again");
        assert_eq!(finish_once(&host, once, false)?, expected);
        check_begun_tasks(&host, 1)?;
        let text = status()?;
        ensure!(!text.contains("state     running") && !text.contains("unknown"), "{signal_name}: {text}");
    }
    Ok(())
}

/// Regression: after a pause, `once` continued with the next tasks, and its message stated that no task was applied. An
/// agent that started during `once` ended with 1.
#[test]
fn y02_once_stops_after_running_task_when_paused() -> Result<()> {
    let (_fleet, mut host) = host_with_five_tasks()?;
    // First, the host is paused while `once` runs without an agent.
    let once = begin_once(&host, &[])?;
    let stdout = run_subcommand(&host, "pause")?;
    ensure!(stdout.contains("(a `stemma-agent once` is running: "), "{stdout}");
    let advice = "run `stemma-agent resume`, then `stemma-agent once`";
    let message = "this host is paused: it was after 1 of 5 tasks (1 changed), and no other was begun; labels were applied";
    assert_eq!(finish_once(&host, once, false)?, format!("{message}; {advice}"));
    check_begun_tasks(&host, 1)?;
    run_subcommand(&host, "resume")?;

    // An agent that starts during `once` waits for the end of `once`.
    let once = begin_once(&host, &[])?;
    host.start()?;
    eventually("the agent waits", || {
        ensure!(host.log().contains("waiting until the running `stemma-agent once` ends"), "{}", host.log());
        Ok(())
    })?;
    std::fs::write(host.path("off"), "")?;
    assert_eq!(finish_once(&host, once, true)?, "5 tasks: 1 changed, 4 unchanged");
    eventually("the agent runs", || {
        ensure!(host.log().contains("agent started"), "{}", host.log());
        Ok(())
    })?;

    // If an agent runs the tasks for `once`, a pause ends `once` without waiting for the agent's task.
    let once = begin_once(&host, &[])?;
    run_subcommand(&host, "pause")?;
    let message = once.next_line()?;
    ensure!(message.starts_with("this host is paused: the running task will end, and no other begins; "), "{message}");
    ensure!(message.ends_with(advice) && !once.wait()?, "{message}");
    std::fs::write(host.path("go"), "")?;
    eventually("the task ends", || {
        let text = host.status()?;
        ensure!(!text.contains("state     running"), "{text}");
        Ok(())
    })?;
    check_begun_tasks(&host, 1)
}

/// Checks that `resolve-unknown` refuses a task that runs. Then starts `check`, and returns when `check` waits for the
/// task.
fn begin_check(host: &TestAgent, task: &str) -> Result<RunningProgram> {
    let root = host.path("");
    let root_text = root.to_string_lossy();
    for answer in ["done", "again"] {
        let refused = run("stemma-agent", ["--root", &root_text, "resolve-unknown", task, answer])?;
        let stderr = String::from_utf8(refused.stderr)?;
        let expected = format!("task {task:?} runs now");
        ensure!(!refused.status.success() && stderr.contains(&expected) && stderr.contains("nothing was changed"), "{stderr}");
    }
    let check = RunningProgram::start("stemma-agent", ["--root".as_ref(), root.as_os_str(), "check".as_ref()])?;
    wait_for_log(&check, "another process applies this task: waiting for its end", task)?;
    Ok(check)
}

/// Regression: `check` reported that the result of a running task is unknown, and ended with 1. `resolve-unknown` set a
/// result for the running task.
#[test]
fn y02_check_waits_for_running_task() -> Result<()> {
    // A task of `once`, with a guard.
    let (fleet, host) = host_with_five_tasks()?;
    let once = begin_once(&host, &[])?;
    let check = begin_check(&host, "s1")?;
    std::fs::write(host.path("off"), "")?;
    assert_eq!(finish_once(&host, once, true)?, "5 tasks: 1 changed, 4 unchanged");
    let (has_succeeded, log) = check.wait_with_log()?;
    ensure!(has_succeeded, "{log}");

    // A task of the agent, without a guard.
    let first_task = json!({"id": "t", "type": "shell", "tags": ["x"], "parameters": {"script": TASK_SCRIPT}});
    let second_task = json!({"id": "u", "type": "shell", "tags": ["x"], "requires": ["t"], "parameters": {"command": ["true"], "unless": ["true"]}});
    let objects = json!([
        {"kind": "Release", "name": "r", "version": "2", "roles": {"all": {"tags": ["x"]}}, "tags": {"x": {}}, "tasks": [first_task, second_task]},
        {"kind": "Cluster", "name": "d", "release": "r@2"},
        {"kind": "NodeGroup", "cluster": "d", "name": "g", "roles": ["all"]},
    ]);
    let file = fleet.dir().join("other.json");
    std::fs::write(&file, objects.to_string())?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let host = fleet.join("n2", "d/g")?;
    eventually("the task runs", || check_begun_tasks(&host, 1).with_context(|| host.log()))?;
    let check = begin_check(&host, "t")?;
    std::fs::write(host.path("go"), "")?;
    let (has_succeeded, log) = check.wait_with_log()?;
    ensure!(has_succeeded, "{log}");
    check_begun_tasks(&host, 1)
}
