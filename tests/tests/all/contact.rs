//! How a host stands with its controllers, by real programs: what it says of itself, and what a controller says of it where it is not told
//! what changes.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use stemma_tests::chance::Chance;
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::ports::Closed;
use stemma_tests::program::{eventually, eventually_within, file_contains, run};
use stemma_tests::proxy::Proxy;

use crate::states::says;

const SITE: &str = "kind: Release\nname: r\nversion: '1'\nroles: {all: {tags: [x]}}\ntags: {x: {}}\ntasks:\n\
  - {id: motd, type: file, tags: [x], parameters: {path: /etc/motd, content: m}}\n---\n\
kind: Cluster\nname: c\nrelease: r@1\n---\nkind: NodeGroup\ncluster: c\nname: g\nroles: [all]\n";

/// How long a check-in is held where nothing is to be said. Who is held has no answer, and so no sign that it is served.
const HELD: Duration = Duration::from_secs(45);

fn apply(fleet: &Fleet) -> Result<()> {
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, SITE)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()]).map(drop)
}

fn converged(fleet: &Fleet) -> Result<()> {
    fleet.stemma(&["wait", "node/n1", "--for", "state=converged"]).map(drop)
}

/// What a host says of itself to programs, whether that is good or not.
fn told(host: &Agent) -> Result<Value> {
    let root = host.path("");
    let ended = run("stemma-agent", ["--root", &root.to_string_lossy(), "status", "-o", "json"])?;
    Ok(serde_json::from_slice(&ended.stdout)?)
}

/// How it stands with its controllers, where that is in this word.
fn stands(host: &Agent, word: &str) -> Result<Value> {
    let connection = told(host)?["connection"].clone();
    ensure!(connection["standing"] == word, "{connection}: {}", host.log());
    Ok(connection)
}

/// Sees that a host says to people and to programs why it is not told what changes.
fn is_untold(host: &Agent, why: &str) -> Result<()> {
    let (text, told) = (host.status()?, told(host)?);
    let line = format!("untold    it is not told what changes: {why}\n");
    ensure!(text.contains(&line) && told["untold"] == why, "{text}{told}");
    Ok(())
}

/// Sees that a host and its controller say of nothing that it was not told.
fn is_told(fleet: &Fleet, host: &Agent) -> Result<()> {
    converged(fleet)?;
    eventually("its controller says it", || {
        let list = fleet.stemma(&["get", "nodes"])?;
        ensure!(!list.contains("untold"), "{list}");
        Ok(())
    })?;
    eventually("the host says it", || {
        let (text, told) = (host.status()?, told(host)?);
        ensure!(text.contains("contact   connected to https://") && !text.contains("untold"), "{text}");
        ensure!(told["untold"].is_null(), "{told}");
        Ok(())
    })
}

/// It said so only when its next check-in was answered, which was held.
#[test]
fn y06_a_host_says_soon_that_its_controller_is_back() -> Result<()> {
    let mut fleet = Fleet::start()?;
    apply(&fleet)?;
    let host = fleet.join("n1", "c/g")?;
    converged(&fleet)?;
    eventually("in contact", || stands(&host, "connected"))?;
    let ways: [fn(&mut Fleet) -> Result<()>; 2] = [Fleet::stop_controller, Fleet::kill_controller];
    for end in ways {
        end(&mut fleet)?;
        let away = eventually("the outage", || stands(&host, "unserved"))?;
        ensure!(away["cause"].as_str().is_some_and(|cause| !cause.is_empty()), "{away}");
        is_untold(&host, "no controller serves it")?;
        fleet.start_controller()?;
        let back = eventually_within(HELD * 2 / 3, "in contact again", || stands(&host, "connected"))?;
        ensure!(back["cause"] == "" && back["since"].as_u64() >= away["since"].as_u64(), "{away} {back}");
        is_told(&fleet, &host)?;
    }
    Ok(())
}

#[test]
fn y06_a_host_whose_line_is_cut_is_said_to_be_untold_in_every_place() -> Result<()> {
    let mut fleet = Fleet::start()?;
    apply(&fleet)?;
    let agents: SocketAddr = fleet.bound().agents.trim_start_matches("https://").parse()?;
    let proxy = Proxy::to(agents, Chance::new(1))?;
    fleet.reach_agents_by(proxy.address());
    let host = fleet.join("n1", "c/g")?;
    converged(&fleet)?;
    let closed = Closed::new()?;
    proxy.turn_to(closed.address());
    // The connection that is open ends with it.
    fleet.stop_controller()?;
    fleet.start_controller()?;
    fleet.stemma(&["label", "node", "n1", "rack=7"])?;
    eventually("its controller says it", || says(&fleet, "n1", "changing", Some("untold")))?;
    eventually("the host says it", || is_untold(&host, "no controller serves it"))?;
    let held = std::fs::read_to_string(host.path("run/stemma/labels.json"))?;
    ensure!(!held.contains("rack"), "{held}");
    proxy.turn_to(agents);
    is_told(&fleet, &host)?;
    eventually("the label", || file_contains(&host.path("run/stemma/labels.json"), "\"rack\":\"7\""))
}

/// It said that it was connected, as it had been before its agent was started with the damaged key.
#[test]
fn y06_a_host_whose_key_is_damaged_is_said_to_be_untold_in_every_place() -> Result<()> {
    let fleet = Fleet::start()?;
    apply(&fleet)?;
    let mut host = fleet.join("n1", "c/g")?;
    converged(&fleet)?;
    eventually("in contact", || stands(&host, "connected"))?;
    host.kill()?;
    let credentials = host.path("var/lib/stemma-agent/sync/credentials.json");
    let whole = std::fs::read(&credentials)?;
    std::fs::write(&credentials, "{}")?;
    host.start()?;
    fleet.stemma(&["label", "node", "n1", "rack=7"])?;
    eventually("its controller says it", || says(&fleet, "n1", "changing", Some("untold")))?;
    let why = "no agent speaks with its controllers, since its identity or key is damaged";
    eventually("the host says it", || is_untold(&host, why))?;
    let text = host.status()?;
    ensure!(text.contains(&format!("contact   {why}; when one last did, it was connected to https://")), "{text}");
    host.kill()?;
    std::fs::write(&credentials, whole)?;
    host.start()?;
    is_told(&fleet, &host)
}
