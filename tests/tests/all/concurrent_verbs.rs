//! Commands of `stemma-agent` that people, programs and timers start on one host at the same instant, with the real
//! programs. No command makes another command fail, whether or not an agent runs on the host.

use std::process::Output;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{eventually, run, run_concurrently};

const SITE: &str = "kind: Release\nname: r\nversion: '1'\nroles: {all: {tags: [x]}}\ntags: {x: {}}\ntasks:\n\
  - {id: a, type: file, tags: [x], parameters: {path: /etc/a, content: a}}\n\
  - {id: b, type: file, tags: [x], requires: [a], parameters: {path: /etc/b, content: b}}\n---\n\
kind: Cluster\nname: c\nrelease: r@1\n---\nkind: NodeGroup\ncluster: c\nname: g\nroles: [all]\n";

/// The subcommands of `stemma-agent` that a round starts at the same time.
const VERBS: [&[&str]; 8] =
    [&["once"], &["pause"], &["once"], &["check"], &["once"], &["resume"], &["once"], &["status", "-o", "json"]];

/// Number of rounds of the test while an agent runs on the host.
const ROUNDS_WITH_AGENT: usize = 8;
/// Number of rounds without an agent. In these rounds, each `stemma-agent once` runs the tasks by itself.
const ROUNDS_WITHOUT_AGENT: usize = 16;

/// Start and end of the line that `once` prints on a paused host, where it ends with 1. The progress is in the middle.
const PAUSED_MESSAGES: [&str; 2] = ["this host is paused: ", "; run `stemma-agent resume`, then `stemma-agent once`\n"];

/// Starts these subcommands of `stemma-agent` at the same time, and returns their outputs. Fails unless each ends with
/// 0 and prints nothing to standard error. If `once` reports that the host is paused, `once` must end with 1 instead.
fn run_verbs(host: &TestAgent, verbs: &[&[&str]]) -> Result<Vec<Output>> {
    let root = host.path("").to_string_lossy().into_owned();
    let calls = verbs.iter().map(|verb| [&["--root", root.as_str()][..], *verb].concat());
    let outputs = run_concurrently("stemma-agent", calls)?;
    for (verb, output) in verbs.iter().zip(&outputs) {
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let is_paused =
            stdout.starts_with(PAUSED_MESSAGES[0]) && stdout.ends_with(PAUSED_MESSAGES[1]) && stdout.lines().count() == 1;
        let expected_code = i32::from(verb[0] == "once" && is_paused);
        ensure!(
            output.status.code() == Some(expected_code) && stderr.is_empty(),
            "{verb:?}: {}: {stdout}{stderr}",
            output.status
        );
    }
    Ok(outputs)
}

/// Returns the host's status as JSON.
fn read_status(host: &TestAgent) -> Result<Value> {
    let outputs = run_verbs(host, &[&["status", "-o", "json"]])?;
    Ok(serde_json::from_slice(&outputs[0].stdout)?)
}

/// Runs rounds of all subcommands. Then runs `pause`, `resume` and `once` alone, and checks the effect of each.
/// `agent_runs` is true if an agent runs on the host.
fn run_rounds(host: &TestAgent, agent_runs: bool) -> Result<()> {
    for round in 0..if agent_runs { ROUNDS_WITH_AGENT } else { ROUNDS_WITHOUT_AGENT } {
        run_verbs(host, &VERBS).with_context(|| format!("round {round}"))?;
    }
    for (verb, is_paused) in [("pause", true), ("resume", false)] {
        run_verbs(host, &[&[verb]])?;
        let host_status = read_status(host)?;
        ensure!(host_status["paused"] == is_paused && host_status["agent_runs"] == agent_runs, "{verb}: {host_status}");
    }
    let output = run("stemma-agent", ["--root", &host.path("").to_string_lossy(), "once"])?;
    ensure!(output.status.success(), "{output:?}");
    eventually("converged", || {
        let text = host.status()?;
        ensure!(text.contains("state     converged\n"), "{text}");
        Ok(())
    })
}

/// Regression: a command removed a temporary file of another command when it started. The other command failed with
/// `cannot replace …: No such file or directory` and status 1.
#[test]
fn y02_concurrent_verbs_succeed_with_and_without_agent() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, SITE)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let mut host = fleet.join("n1", "c/g")?;
    fleet.stemma(&["wait", "node/n1", "--for", "state=converged"])?;
    run_rounds(&host, true).with_context(|| format!("with an agent: {}", host.log()))?;
    ensure!(!host.log().contains("cannot replace") && !host.log().contains(" ERROR] "), "{}", host.log());
    host.kill()?;
    run_rounds(&host, false).context("without an agent")
}
