//! A host's connection to its controllers, with the real programs: the report of the host, and the report of a
//! controller if the host does not get changes.

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

/// Time for which the controller holds a check-in open if nothing changes. The host gets no response in this time, so
/// the check-in does not show whether the controller runs.
const CHECK_IN_HOLD: Duration = Duration::from_secs(45);

fn apply_site(fleet: &TempFleet) -> Result<()> {
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
    let output = run("stemma-agent", ["--root", &root.to_string_lossy(), "status", "-o", "json"])?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns the object `connection` of the host's JSON status. Fails unless its field `standing` is `word`.
fn check_connection(host: &TestAgent, word: &str) -> Result<Value> {
    let connection = host_status(host)?["connection"].clone();
    ensure!(connection["standing"] == word, "{connection}: {}", host.log());
    Ok(connection)
}

/// Checks that the host's text and JSON status have the note `untold`, with this reason.
fn check_untold(host: &TestAgent, reason: &str) -> Result<()> {
    let (text, status_json) = (host.status()?, host_status(host)?);
    let line = format!("untold    it gets no updates: {reason}\n");
    ensure!(text.contains(&line) && status_json["untold"] == reason, "{text}{status_json}");
    Ok(())
}

/// Waits until the node is converged, and neither the host nor the controller shows the note `untold`.
fn wait_until_confirmed(fleet: &TempFleet, host: &TestAgent) -> Result<()> {
    wait_until_converged(fleet)?;
    eventually("the controller shows no note", || {
        let list = fleet.stemma(&["get", "nodes"])?;
        ensure!(!list.contains("untold"), "{list}");
        Ok(())
    })?;
    eventually("the host shows no note", || {
        let (text, status_json) = (host.status()?, host_status(host)?);
        ensure!(text.contains("contact   connected to https://") && !text.contains("untold"), "{text}");
        ensure!(status_json["untold"].is_null(), "{status_json}");
        Ok(())
    })
}

/// Regression: the host reported that it is connected again only after the response to its next check-in, which the
/// controller holds open.
#[test]
fn y06_agent_reports_connection_soon_when_controller_returns() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    apply_site(&fleet)?;
    let host = fleet.join("n1", "c/g")?;
    wait_until_converged(&fleet)?;
    eventually("in contact", || check_connection(&host, "connected"))?;
    let stops: [fn(&mut TempFleet) -> Result<()>; 2] = [TempFleet::stop_controller, TempFleet::kill_controller];
    for stop in stops {
        stop(&mut fleet)?;
        let lost_connection = eventually("the outage", || check_connection(&host, "unserved"))?;
        ensure!(lost_connection["cause"].as_str().is_some_and(|cause| !cause.is_empty()), "{lost_connection}");
        check_untold(&host, "no controller serves it")?;
        fleet.start_controller()?;
        // This limit is earlier than the response to the check-in that the controller holds open.
        let new_connection =
            eventually_within(CHECK_IN_HOLD * 2 / 3, "in contact again", || check_connection(&host, "connected"))?;
        ensure!(
            new_connection["cause"] == "" && new_connection["since"].as_u64() >= lost_connection["since"].as_u64(),
            "{lost_connection} {new_connection}"
        );
        wait_until_confirmed(&fleet, &host)?;
    }
    Ok(())
}

#[test]
fn y06_every_view_shows_untold_when_network_is_cut() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    apply_site(&fleet)?;
    let agent_listener: SocketAddr = fleet.addresses().agents.trim_start_matches("https://").parse()?;
    let proxy = Proxy::start(agent_listener, SeededRng::new(1))?;
    fleet.set_agent_address(proxy.address());
    let host = fleet.join("n1", "c/g")?;
    wait_until_converged(&fleet)?;
    let closed_port = ClosedPort::new()?;
    proxy.set_target(closed_port.address());
    // The restart ends the connection that the host has through the proxy.
    fleet.stop_controller()?;
    fleet.start_controller()?;
    fleet.stemma(&["label", "node", "n1", "rack=7"])?;
    eventually("the controller shows the note", || check_node_state(&fleet, "n1", "changing", Some("untold")))?;
    eventually("the host shows the note", || check_untold(&host, "no controller serves it"))?;
    let labels = std::fs::read_to_string(host.path("run/stemma/labels.json"))?;
    ensure!(!labels.contains("rack"), "{labels}");
    proxy.set_target(agent_listener);
    wait_until_confirmed(&fleet, &host)?;
    eventually("the label", || check_file_contains(&host.path("run/stemma/labels.json"), "\"rack\":\"7\""))
}

/// Regression: the host still reported `connected`, which was its state before the agent started with the damaged key.
#[test]
fn y06_every_view_shows_untold_when_key_is_damaged() -> Result<()> {
    let fleet = TempFleet::start()?;
    apply_site(&fleet)?;
    let mut host = fleet.join("n1", "c/g")?;
    wait_until_converged(&fleet)?;
    eventually("in contact", || check_connection(&host, "connected"))?;
    host.kill()?;
    let credentials_path = host.path("var/lib/stemma-agent/sync/credentials.json");
    let valid_credentials = std::fs::read(&credentials_path)?;
    std::fs::write(&credentials_path, "{}")?;
    host.start()?;
    fleet.stemma(&["label", "node", "n1", "rack=7"])?;
    eventually("the controller shows the note", || check_node_state(&fleet, "n1", "changing", Some("untold")))?;
    let reason = "no agent is connected to its controllers, because its identity or key is damaged";
    eventually("the host shows the note", || check_untold(&host, reason))?;
    let text = host.status()?;
    ensure!(text.contains(&format!("contact   {reason}; last known state: connected to https://")), "{text}");
    host.kill()?;
    std::fs::write(&credentials_path, valid_credentials)?;
    host.start()?;
    wait_until_confirmed(&fleet, &host)
}
