//! `stemma events`, `stemma wait` and `get --watch`, against a real controller and agent.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::TempFleet;
use stemma_tests::program::{RunningProgram, eventually};

fn next_event(events: &RunningProgram) -> Result<Value> {
    Ok(serde_json::from_str(&events.next_line()?)?)
}

fn demo_fleet() -> Result<TempFleet> {
    let fleet = TempFleet::start()?;
    fleet.stemma(&["create", "cluster", "prod"])?;
    fleet.stemma(&["create", "nodegroup", "prod", "web"])?;
    Ok(fleet)
}

#[test]
fn events_reports_change_once_over_controller_restart() -> Result<()> {
    let mut fleet = demo_fleet()?;
    let events = fleet.spawn_cli(&["events", "--kind", "node", "--from", "1", "-o", "json"])?;
    fleet.stemma(&["create", "node", "n1", "--nodegroup", "prod/web"])?;
    let made = next_event(&events)?;
    ensure!(made["action"] == "created" && made["name"] == "n1" && made["cluster"] == "prod", "{made}");
    fleet.stop_controller()?;
    fleet.start_controller()?;
    fleet.stemma(&["label", "cluster", "prod", "tier=gold"])?;
    fleet.stemma(&["label", "node", "n1", "a=b"])?;
    let labelled = next_event(&events)?;
    ensure!(labelled["action"] == "updated" && labelled["object"]["labels"]["a"] == "b", "{labelled}");
    ensure!(labelled["revision"].as_u64() > made["revision"].as_u64());
    fleet.stemma(&["delete", "node", "n1", "--yes"])?;
    let gone = next_event(&events)?;
    ensure!(gone["action"] == "deleted" && gone["name"] == "n1" && gone["object"].is_null(), "{gone}");
    eventually("that it was away is said", || {
        ensure!(events.log().contains("warning: "), "{}", events.log());
        Ok(())
    })?;
    events.kill()
}

#[test]
fn y09_wait_waits_for_selected_objects() -> Result<()> {
    let fleet = demo_fleet()?;
    for (node, labels) in [("a", "tier=gold"), ("b", "tier=gold"), ("c", "tier=iron")] {
        fleet.stemma(&["create", "node", node, "--nodegroup", "prod/web", "--labels", labels])?;
    }
    let waited = fleet.stemma(&["wait", "nodes", "-l", "tier=gold", "--for", "labels.tier=gold", "--timeout", "1m"])?;
    ensure!(waited == "node/a has labels.tier=gold\nnode/b has labels.tier=gold\n", "{waited}");
    for (arguments, status, part) in [
        (&["wait", "nodes", "-l", "tier=none"][..], 3, "no node is selected"),
        (&["wait", "node", "a", "-l", "tier=gold"], 2, "a is named and others are selected"),
        (&["wait", "nodes"], 2, "select them, as with -l KEY=VALUE"),
    ] {
        let refused = fleet.cli(&[arguments, &["--for", "deleted"]].concat())?;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(refused.status.code() == Some(status) && said.contains(part), "{arguments:?}: {said}");
    }
    Ok(())
}

#[test]
fn events_and_wait_follow_node_state() -> Result<()> {
    let fleet = demo_fleet()?;
    let events = fleet.spawn_cli(&["events", "--class", "status", "-o", "json"])?;
    fleet.stemma(&["create", "node", "gone", "--nodegroup", "prod/web"])?;
    // On a busy machine one second may pass before the node was read.
    eventually("what it waited for in vain", || {
        let never = fleet.cli(&["wait", "node", "gone", "--for", "state=converged", "--timeout", "1s"])?;
        let said = String::from_utf8_lossy(&never.stderr).into_owned();
        ensure!(never.status.code() == Some(1) && said.contains("node/gone has state="), "{said}");
        Ok(())
    })?;
    let unknown = fleet.cli(&["wait", "node", "nobody", "--for", "state=converged", "--timeout", "1m"])?;
    ensure!(unknown.status.code() == Some(3), "{}", String::from_utf8_lossy(&unknown.stderr));
    let waiting = fleet.spawn_cli(&["wait", "node", "gone", "--for", "deleted"])?;
    fleet.stemma(&["delete", "node", "gone", "--yes"])?;
    ensure!(waiting.next_line()?.trim_end() == "node/gone deleted");
    ensure!(waiting.wait()?);
    let _agent = fleet.join("n1", "prod/web")?;
    let waited = fleet.stemma(&["wait", "node/n1", "--for", "state=converged", "--timeout", "2m"])?;
    ensure!(waited.trim_end() == "node/n1 has state=converged", "{waited}");
    loop {
        let told = next_event(&events)?;
        ensure!(told["event"] == "status" && told["kind"] == "node", "{told}");
        if told["name"] == "n1" && told["state"] == "converged" {
            ensure!(told["cluster"] == "prod" && told["connection"] == "connected", "{told}");
            break;
        }
    }
    events.kill()
}

#[test]
fn events_show_only_own_cluster_until_token_is_revoked() -> Result<()> {
    let fleet = demo_fleet()?;
    fleet.stemma(&["create", "cluster", "far"])?;
    fleet.stemma(&["principal", "create", "robot", "--role", "viewer", "--cluster", "prod"])?;
    let robot = fleet.dir().join("robot");
    fleet.stemma(&["principal", "token", "create", "robot", "--to", &robot.to_string_lossy()])?;
    let context = robot.join("context.toml").to_string_lossy().into_owned();
    let events =
        RunningProgram::start("stemma", ["--context", &context, "events", "--kind", "cluster", "--from", "1", "-o", "json"])?;
    fleet.stemma(&["label", "cluster", "far", "a=b"])?;
    fleet.stemma(&["label", "cluster", "prod", "a=b"])?;
    for action in ["created", "updated"] {
        let told = next_event(&events)?;
        ensure!(told["name"] == "prod" && told["action"] == action, "{told}");
    }
    let secret = std::fs::read_to_string(robot.join("token"))?;
    let (id, _) = secret.split_once('.').context("ID.SECRET")?;
    fleet.stemma(&["principal", "token", "revoke", "robot", id])?;
    let (is_well, log) = events.wait_with_log()?;
    ensure!(!is_well && log.contains("the token is unknown"), "{log}");
    Ok(())
}
