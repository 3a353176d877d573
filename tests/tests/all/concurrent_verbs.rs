//! Commands that people, programs and timers start on one host at the same instant, with the real programs. None makes
//! another one fail, whether or not an agent is running.

use std::process::Output;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{eventually, run, run_concurrently};

const SITE: &str = "kind: Release\nname: r\nversion: '1'\nroles: {all: {tags: [x]}}\ntags: {x: {}}\ntasks:\n\
  - {id: a, type: file, tags: [x], parameters: {path: /etc/a, content: a}}\n\
  - {id: b, type: file, tags: [x], requires: [a], parameters: {path: /etc/b, content: b}}\n---\n\
kind: Cluster\nname: c\nrelease: r@1\n---\nkind: NodeGroup\ncluster: c\nname: g\nroles: [all]\n";

/// The verbs of a round. All are started before the test waits for any.
const VERBS: [&[&str]; 8] =
    [&["once"], &["pause"], &["once"], &["check"], &["once"], &["resume"], &["once"], &["status", "-o", "json"]];

/// Number of rounds while an agent runs.
const ROUNDS_WITH_AGENT: usize = 8;
/// Number of rounds without an agent. Each `once` then runs the tasks itself.
const ROUNDS_WITHOUT_AGENT: usize = 16;

/// Start and end of the message of `once`, with status 1, on a paused host. The progress is in between.
const PAUSED_MESSAGES: [&str; 2] = ["this host is paused: ", "; run `stemma-agent resume`, then `stemma-agent once`\n"];

/// Starts these verbs at the same time. Checks that each ends as `docs/agent.md` describes, without a warning or an
/// error: on this host no task fails and none would change anything. `once` may find the host paused.
fn run_verbs(host: &TestAgent, verbs: &[&[&str]]) -> Result<Vec<Output>> {
    let root = host.path("").to_string_lossy().into_owned();
    let calls = verbs.iter().map(|verb| [&["--root", root.as_str()][..], *verb].concat());
    let ended = run_concurrently("stemma-agent", calls)?;
    for (verb, one) in verbs.iter().zip(&ended) {
        let (out, err) = (String::from_utf8_lossy(&one.stdout), String::from_utf8_lossy(&one.stderr));
        let is_paused = out.starts_with(PAUSED_MESSAGES[0]) && out.ends_with(PAUSED_MESSAGES[1]) && out.lines().count() == 1;
        let expected = i32::from(verb[0] == "once" && is_paused);
        ensure!(one.status.code() == Some(expected) && err.is_empty(), "{verb:?}: {}: {out}{err}", one.status);
    }
    Ok(ended)
}

/// Returns the host's status as JSON.
fn status(host: &TestAgent) -> Result<Value> {
    let ended = run_verbs(host, &[&["status", "-o", "json"]])?;
    Ok(serde_json::from_slice(&ended[0].stdout)?)
}

/// Runs rounds of all verbs, then each verb alone, and checks its effect.
fn run_rounds(host: &TestAgent, agent_runs: bool) -> Result<()> {
    for round in 0..if agent_runs { ROUNDS_WITH_AGENT } else { ROUNDS_WITHOUT_AGENT } {
        run_verbs(host, &VERBS).with_context(|| format!("round {round}"))?;
    }
    for (verb, is_paused) in [("pause", true), ("resume", false)] {
        run_verbs(host, &[&[verb]])?;
        let said = status(host)?;
        ensure!(said["paused"] == is_paused && said["agent_runs"] == agent_runs, "{verb}: {said}");
    }
    let once = run("stemma-agent", ["--root", &host.path("").to_string_lossy(), "once"])?;
    ensure!(once.status.success(), "{once:?}");
    eventually("converged", || {
        let text = host.status()?;
        ensure!(text.contains("state     converged\n"), "{text}");
        Ok(())
    })
}

/// Previously, a starting command removed a temporary file of another one. That one failed with `cannot replace …: No
/// such file or directory` and status 1.
#[test]
fn y02_concurrent_verbs_succeed_with_and_without_agent() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, SITE)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let mut host = fleet.join("n1", "c/g")?;
    fleet.stemma(&["wait", "node/n1", "--for", "state=converged"])?;
    run_rounds(&host, true).with_context(|| format!("beside an agent: {}", host.log()))?;
    ensure!(!host.log().contains("cannot replace") && !host.log().contains(" ERROR] "), "{}", host.log());
    host.kill()?;
    run_rounds(&host, false).context("without an agent")
}
