//! Commands that people, programs and timers begin on one host at the same instant, by real programs: none makes another fail, beside a
//! running agent and without one.

use std::process::Output;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::program::{eventually, run, run_at_once};

const SITE: &str = "kind: Release\nname: r\nversion: '1'\nroles: {all: {tags: [x]}}\ntags: {x: {}}\ntasks:\n\
  - {id: a, type: file, tags: [x], parameters: {path: /etc/a, content: a}}\n\
  - {id: b, type: file, tags: [x], requires: [a], parameters: {path: /etc/b, content: b}}\n---\n\
kind: Cluster\nname: c\nrelease: r@1\n---\nkind: NodeGroup\ncluster: c\nname: g\nroles: [all]\n";

/// A round: all of it is begun before any of it is waited for.
const ROUND: [&[&str]; 8] =
    [&["once"], &["pause"], &["once"], &["check"], &["once"], &["resume"], &["once"], &["status", "-o", "json"]];

/// How many rounds follow one another beside a running agent.
const BESIDE: usize = 8;
/// How many do without one: each `once` runs the tasks itself then.
const WITHOUT: usize = 16;

/// What `once` says, with status 1, on a host that is paused: between these, how far it came before.
const PAUSED: [&str; 2] = ["this host is paused: ", "; run `stemma-agent resume`, then `stemma-agent once`\n"];

/// Begins these at once, and sees that each ends as `docs/agent.md` says of it, without a warning or an error: on this host nothing fails and
/// nothing would change. Whoever asks `once` may find the host paused.
fn end_well(host: &Agent, verbs: &[&[&str]]) -> Result<Vec<Output>> {
    let root = host.path("").to_string_lossy().into_owned();
    let calls = verbs.iter().map(|verb| [&["--root", root.as_str()][..], *verb].concat());
    let ended = run_at_once("stemma-agent", calls)?;
    for (verb, one) in verbs.iter().zip(&ended) {
        let (out, err) = (String::from_utf8_lossy(&one.stdout), String::from_utf8_lossy(&one.stderr));
        let is_paused = out.starts_with(PAUSED[0]) && out.ends_with(PAUSED[1]) && out.lines().count() == 1;
        let expected = i32::from(verb[0] == "once" && is_paused);
        ensure!(one.status.code() == Some(expected) && err.is_empty(), "{verb:?}: {}: {out}{err}", one.status);
    }
    Ok(ended)
}

/// What the host says of itself to programs.
fn said(host: &Agent) -> Result<Value> {
    let ended = end_well(host, &[&["status", "-o", "json"]])?;
    Ok(serde_json::from_slice(&ended[0].stdout)?)
}

/// Rounds of all verbs, and then each by itself: what it was to do is done.
fn rounds(host: &Agent, agent_runs: bool) -> Result<()> {
    for round in 0..if agent_runs { BESIDE } else { WITHOUT } {
        end_well(host, &ROUND).with_context(|| format!("round {round}"))?;
    }
    for (verb, is_paused) in [("pause", true), ("resume", false)] {
        end_well(host, &[&[verb]])?;
        let said = said(host)?;
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

/// One that began swept away what another had in the making, which said `cannot replace …: No such file or directory` and ended with 1.
#[test]
fn y02_verbs_at_the_same_instant_fail_none_of_them_beside_an_agent_and_without_one() -> Result<()> {
    let fleet = Fleet::start()?;
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, SITE)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let mut host = fleet.join("n1", "c/g")?;
    fleet.stemma(&["wait", "node/n1", "--for", "state=converged"])?;
    rounds(&host, true).with_context(|| format!("beside an agent: {}", host.log()))?;
    ensure!(!host.log().contains("cannot replace") && !host.log().contains(" ERROR] "), "{}", host.log());
    host.kill()?;
    rounds(&host, false).context("without an agent")
}
