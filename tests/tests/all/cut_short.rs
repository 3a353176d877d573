//! `once` that is cut short, by real programs: by a signal or a pause what runs ends and no task begins after it, and `once` says how far it
//! came. An agent that is started beside it waits for its end.

use std::ffi::OsString;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::program::{Running, eventually, run};

/// How a test's own start has it take the end of its terminal.
const TAKES_HANGUP: [&str; 2] = ["env", "--default-signal=HUP"];
const OUTLIVES_HANGUP: [&str; 2] = ["env", "--ignore-signal=HUP"];

/// What each of the tasks does, in order: it says that it has begun, and ends when it may.
const SCRIPT: &str = "echo begun >>\"$STEMMA_ROOT/begun\"; until test -e \"$STEMMA_ROOT/go\"; do sleep 0.02; done";

/// A fleet and a host of five tasks, one after another, that do nothing as long as the host has a file `off`; it has. No agent runs there.
fn host() -> Result<(Fleet, Agent)> {
    let fleet = Fleet::start()?;
    let task = |number: usize| -> Value {
        let requires: Vec<String> = (number > 1).then(|| format!("s{}", number - 1)).into_iter().collect();
        let parameters = json!({"script": SCRIPT, "unless": "test -e \"$STEMMA_ROOT/off\""});
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

/// Has the tasks run again, each until it may end, and begins `once`, until the first one runs.
fn begin_once(host: &Agent, words: &[&str]) -> Result<Running> {
    for name in ["off", "go", "begun"] {
        let _ = std::fs::remove_file(host.path(name));
    }
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    let root = host.path("");
    let once = Running::start_under(&words, "stemma-agent", ["--root".as_ref(), root.as_os_str(), "once".as_ref()])?;
    eventually("the first task runs", || begun(host, 1).with_context(|| once.log()))?;
    Ok(once)
}

/// That so many tasks have begun.
fn begun(host: &Agent, count: usize) -> Result<()> {
    let text = std::fs::read_to_string(host.path("begun"))?;
    ensure!(text.lines().count() == count, "{text}");
    Ok(())
}

/// Waits until a program has logged this of a task.
fn logged(program: &Running, said: &str, task: &str) -> Result<()> {
    eventually(said, || {
        let log = program.log();
        let line = log.lines().find(|line| line.contains(said));
        ensure!(line.is_some_and(|line| line.contains(&format!("task={task}"))), "{log}");
        Ok(())
    })
}

/// Lets the tasks end, and gives what `once` said; it ended by itself, with another status than 0 where that is said.
fn let_end(host: &Agent, once: Running, is_success: bool) -> Result<String> {
    std::fs::write(host.path("go"), "")?;
    let said = once.line()?;
    let (ended_well, log) = once.ended_with()?;
    ensure!(ended_well == is_success, "{said}: {log}");
    Ok(said)
}

fn verb(host: &Agent, verb: &str) -> Result<String> {
    let ended = run("stemma-agent", ["--root", &host.path("").to_string_lossy(), verb])?;
    ensure!(ended.status.success(), "{verb}: {ended:?}");
    Ok(String::from_utf8(ended.stdout)?)
}

/// It ended with 0 and said nothing of what it had left; at the end of its connection it died, and the command was unknown.
#[test]
fn y02_once_that_is_stopped_by_a_signal_lets_what_runs_end_and_says_what_is_left() -> Result<()> {
    let (_fleet, host) = host()?;
    for (words, signals, said) in [
        (TAKES_HANGUP, &[Signal::INT][..], "SIGINT"),
        (TAKES_HANGUP, &[Signal::HUP][..], "SIGHUP"),
        (OUTLIVES_HANGUP, &[Signal::HUP, Signal::TERM][..], "SIGTERM"),
    ] {
        let once = begin_once(&host, &words)?;
        let status = || host.status();
        eventually("it is said to run", || {
            let text = status()?;
            ensure!(text.contains("state     running\n"), "{text}");
            Ok(())
        })?;
        let id = Pid::from_raw(i32::try_from(once.id())?).context("a process")?;
        for signal in signals {
            kill_process(id, *signal)?;
        }
        logged(&once, "waiting for the end of a task that runs", "s1").context(said)?;
        let expected =
            format!("stopped by {said} after 1 of 5 tasks (1 changed): 4 have not run; run `stemma-agent once` again");
        assert_eq!(let_end(&host, once, false)?, expected);
        begun(&host, 1)?;
        let text = status()?;
        ensure!(!text.contains("state     running") && !text.contains("unknown"), "{said}: {text}");
    }
    Ok(())
}

/// The tasks went on, and it was said of those that were applied that none was; an agent that was started beside it ended with 1.
#[test]
fn y02_a_pause_ends_a_once_after_the_task_that_runs_and_an_agent_waits_for_the_end_of_one() -> Result<()> {
    let (_fleet, mut host) = host()?;
    let once = begin_once(&host, &[])?;
    let told = verb(&host, "pause")?;
    ensure!(told.contains("(a `stemma-agent once` applies what this host holds: "), "{told}");
    let way_out = "run `stemma-agent resume`, then `stemma-agent once`";
    let said =
        "this host is paused: it was after 1 of 5 tasks (1 changed), and no other was begun; labels were applied";
    assert_eq!(let_end(&host, once, false)?, format!("{said}; {way_out}"));
    begun(&host, 1)?;
    verb(&host, "resume")?;

    let once = begin_once(&host, &[])?;
    host.start()?;
    eventually("the agent waits", || {
        ensure!(host.log().contains("waiting for the end of a `stemma-agent once`"), "{}", host.log());
        Ok(())
    })?;
    std::fs::write(host.path("off"), "")?;
    assert_eq!(let_end(&host, once, true)?, "5 tasks: 1 changed, 4 unchanged");
    eventually("the agent runs", || {
        ensure!(host.log().contains("agent started"), "{}", host.log());
        Ok(())
    })?;

    // Beside the agent: its task is not waited for.
    let once = begin_once(&host, &[])?;
    verb(&host, "pause")?;
    let said = once.line()?;
    ensure!(said.starts_with("this host is paused: a task that runs ends, and no other begins; "), "{said}");
    ensure!(said.ends_with(way_out) && !once.ended()?, "{said}");
    std::fs::write(host.path("go"), "")?;
    eventually("the task ends", || {
        let text = host.status()?;
        ensure!(!text.contains("state     running"), "{text}");
        Ok(())
    })?;
    begun(&host, 1)
}

/// Has `check` begin beside a task that runs, and gives it when it waits for that. The task is not settled meanwhile.
fn begin_check(host: &Agent, task: &str) -> Result<Running> {
    let root = host.path("");
    let root_text = root.to_string_lossy();
    for answer in ["done", "again"] {
        let refused = run("stemma-agent", ["--root", &root_text, "resolve-unknown", task, answer])?;
        let said = String::from_utf8(refused.stderr)?;
        let runs = format!("task {task:?} runs now");
        ensure!(!refused.status.success() && said.contains(&runs) && said.contains("nothing was changed"), "{said}");
    }
    let check = Running::start("stemma-agent", ["--root".as_ref(), root.as_os_str(), "check".as_ref()])?;
    logged(&check, "it is applied now: waiting for its end", task)?;
    Ok(check)
}

/// `check` said of a task that ran that nobody saw it end, and ended with 1; `resolve-unknown` settled it.
#[test]
fn y02_a_task_that_runs_is_waited_for_by_check_and_not_settled() -> Result<()> {
    // Beside a `once`, with a guard.
    let (fleet, host) = host()?;
    let once = begin_once(&host, &[])?;
    let check = begin_check(&host, "s1")?;
    std::fs::write(host.path("off"), "")?;
    assert_eq!(let_end(&host, once, true)?, "5 tasks: 1 changed, 4 unchanged");
    let (ended_well, log) = check.ended_with()?;
    ensure!(ended_well, "{log}");

    // Beside an agent, without one.
    let first = json!({"id": "t", "type": "shell", "tags": ["x"], "parameters": {"script": SCRIPT}});
    let second = json!({"id": "u", "type": "shell", "tags": ["x"], "requires": ["t"], "parameters": {"command": ["true"], "unless": ["true"]}});
    let objects = json!([
        {"kind": "Release", "name": "r", "version": "2", "roles": {"all": {"tags": ["x"]}}, "tags": {"x": {}}, "tasks": [first, second]},
        {"kind": "Cluster", "name": "d", "release": "r@2"},
        {"kind": "NodeGroup", "cluster": "d", "name": "g", "roles": ["all"]},
    ]);
    let file = fleet.dir().join("other.json");
    std::fs::write(&file, objects.to_string())?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let host = fleet.join("n2", "d/g")?;
    eventually("the task runs", || begun(&host, 1).with_context(|| host.log()))?;
    let check = begin_check(&host, "t")?;
    std::fs::write(host.path("go"), "")?;
    let (ended_well, log) = check.ended_with()?;
    ensure!(ended_well, "{log}");
    begun(&host, 1)
}
