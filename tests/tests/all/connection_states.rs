//! A host's connection to its controllers, with the real programs: what the host reports, and what a controller reports
//! if the host does not get changes.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::ports::ClosedPort;
use stemma_tests::program::{check_file_contains, eventually, eventually_within, run};
use stemma_tests::proxy::Proxy;
use stemma_tests::seed::SeededRng;

use crate::states::check_node_state;

const SITE: &str = "kind: Release\nname: r\nversion: '1'\nroles: {all: {tags: [x]}}\ntags: {x: {}}\ntasks:\n\
  - {id: motd, type: file, tags: [x], parameters: {path: /etc/motd, content: m}}\n---\n\
kind: Cluster\nname: c\nrelease: r@1\n---\nkind: NodeGroup\ncluster: c\nname: g\nroles: [all]\n";

/// How long a check-in is held if there is no change. The host gets no response in that time, so it cannot see that it
/// is served.
const CHECK_IN_HOLD: Duration = Duration::from_secs(45);

fn apply(fleet: &TempFleet) -> Result<()> {
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, SITE)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()]).map(drop)
}

fn wait_until_converged(fleet: &TempFleet) -> Result<()> {
    fleet.stemma(&["wait", "node/n1", "--for", "state=converged"]).map(drop)
}

/// Returns the host's status as JSON, whatever the exit status is.
fn host_status(host: &TestAgent) -> Result<Value> {
    let root = host.path("");
    let ended = run("stemma-agent", ["--root", &root.to_string_lossy(), "status", "-o", "json"])?;
    Ok(serde_json::from_slice(&ended.stdout)?)
}

/// Returns the host's connection if its `standing` is this word.
fn check_connection(host: &TestAgent, word: &str) -> Result<Value> {
    let connection = host_status(host)?["connection"].clone();
    ensure!(connection["standing"] == word, "{connection}: {}", host.log());
    Ok(connection)
}

/// Checks that the host's text and JSON status show why it does not get changes.
fn check_untold(host: &TestAgent, why: &str) -> Result<()> {
    let (text, told) = (host.status()?, host_status(host)?);
    let line = format!("untold    it gets no updates: {why}\n");
    ensure!(text.contains(&line) && told["untold"] == why, "{text}{told}");
    Ok(())
}

/// Checks that neither the host nor its controller reports that the host does not get changes.
fn check_not_untold(fleet: &TempFleet, host: &TestAgent) -> Result<()> {
    wait_until_converged(fleet)?;
    eventually("its controller says it", || {
        let list = fleet.stemma(&["get", "nodes"])?;
        ensure!(!list.contains("untold"), "{list}");
        Ok(())
    })?;
    eventually("the host says it", || {
        let (text, told) = (host.status()?, host_status(host)?);
        ensure!(text.contains("contact   connected to https://") && !text.contains("untold"), "{text}");
        ensure!(told["untold"].is_null(), "{told}");
        Ok(())
    })
}

/// Previously, the host reported it only after the response to its next check-in, which the controller holds.
#[test]
fn y06_agent_reports_connection_soon_when_controller_returns() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    apply(&fleet)?;
    let host = fleet.join("n1", "c/g")?;
    wait_until_converged(&fleet)?;
    eventually("in contact", || check_connection(&host, "connected"))?;
    let ways: [fn(&mut TempFleet) -> Result<()>; 2] = [TempFleet::stop_controller, TempFleet::kill_controller];
    for end in ways {
        end(&mut fleet)?;
        let away = eventually("the outage", || check_connection(&host, "unserved"))?;
        ensure!(away["cause"].as_str().is_some_and(|cause| !cause.is_empty()), "{away}");
        check_untold(&host, "no controller serves it")?;
        fleet.start_controller()?;
        let back = eventually_within(CHECK_IN_HOLD * 2 / 3, "in contact again", || check_connection(&host, "connected"))?;
        ensure!(back["cause"] == "" && back["since"].as_u64() >= away["since"].as_u64(), "{away} {back}");
        check_not_untold(&fleet, &host)?;
    }
    Ok(())
}

#[test]
fn y06_every_view_shows_untold_when_network_is_cut() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    apply(&fleet)?;
    let agents: SocketAddr = fleet.addresses().agents.trim_start_matches("https://").parse()?;
    let proxy = Proxy::start(agents, SeededRng::new(1))?;
    fleet.set_agent_address(proxy.address());
    let host = fleet.join("n1", "c/g")?;
    wait_until_converged(&fleet)?;
    let closed = ClosedPort::new()?;
    proxy.set_target(closed.address());
    // This ends the open connection.
    fleet.stop_controller()?;
    fleet.start_controller()?;
    fleet.stemma(&["label", "node", "n1", "rack=7"])?;
    eventually("its controller says it", || check_node_state(&fleet, "n1", "changing", Some("untold")))?;
    eventually("the host says it", || check_untold(&host, "no controller serves it"))?;
    let held = std::fs::read_to_string(host.path("run/stemma/labels.json"))?;
    ensure!(!held.contains("rack"), "{held}");
    proxy.set_target(agents);
    check_not_untold(&fleet, &host)?;
    eventually("the label", || check_file_contains(&host.path("run/stemma/labels.json"), "\"rack\":\"7\""))
}

/// Previously, it still reported `connected`, the state from before its agent was started with the damaged key.
#[test]
fn y06_every_view_shows_untold_when_key_is_damaged() -> Result<()> {
    let fleet = TempFleet::start()?;
    apply(&fleet)?;
    let mut host = fleet.join("n1", "c/g")?;
    wait_until_converged(&fleet)?;
    eventually("in contact", || check_connection(&host, "connected"))?;
    host.kill()?;
    let credentials = host.path("var/lib/stemma-agent/sync/credentials.json");
    let whole = std::fs::read(&credentials)?;
    std::fs::write(&credentials, "{}")?;
    host.start()?;
    fleet.stemma(&["label", "node", "n1", "rack=7"])?;
    eventually("its controller says it", || check_node_state(&fleet, "n1", "changing", Some("untold")))?;
    let why = "no agent is connected to its controllers, because its identity or key is damaged";
    eventually("the host says it", || check_untold(&host, why))?;
    let text = host.status()?;
    ensure!(text.contains(&format!("contact   {why}; last known state: connected to https://")), "{text}");
    host.kill()?;
    std::fs::write(&credentials, whole)?;
    host.start()?;
    check_not_untold(&fleet, &host)
}
