//! `stemma events`, `stemma wait` and `get --watch`, against a real controller and agent.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::TempFleet;
use stemma_tests::program::{RunningProgram, eventually};

fn next_event(events: &RunningProgram) -> Result<Value> {
    Ok(serde_json::from_str(&events.next_line()?)?)
}

/// Starts a fleet with the cluster `prod` and its empty node group `web`.
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
    let creation = next_event(&events)?;
    ensure!(creation["action"] == "created" && creation["name"] == "n1" && creation["cluster"] == "prod", "{creation}");
    fleet.stop_controller()?;
    fleet.start_controller()?;
    fleet.stemma(&["label", "cluster", "prod", "tier=gold"])?;
    fleet.stemma(&["label", "node", "n1", "a=b"])?;
    let update = next_event(&events)?;
    ensure!(update["action"] == "updated" && update["object"]["labels"]["a"] == "b", "{update}");
    ensure!(update["revision"].as_u64() > creation["revision"].as_u64());
    fleet.stemma(&["delete", "node", "n1", "--yes"])?;
    let deletion = next_event(&events)?;
    ensure!(deletion["action"] == "deleted" && deletion["name"] == "n1" && deletion["object"].is_null(), "{deletion}");
    eventually("the warning about the lost connection", || {
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
    let stdout = fleet.stemma(&["wait", "nodes", "-l", "tier=gold", "--for", "labels.tier=gold", "--timeout", "1m"])?;
    ensure!(stdout == "node/a has labels.tier=gold\nnode/b has labels.tier=gold\n", "{stdout}");
    for (arguments, status, part) in [
        (&["wait", "nodes", "-l", "tier=none"][..], 3, "no node is selected"),
        (&["wait", "node", "a", "-l", "tier=gold"], 2, "a is named and others are selected"),
        (&["wait", "nodes"], 2, "select them, as with -l KEY=VALUE"),
    ] {
        let output = fleet.cli(&[arguments, &["--for", "deleted"]].concat())?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(status) && stderr.contains(part), "{arguments:?}: {stderr}");
    }
    Ok(())
}

#[test]
fn events_and_wait_follow_node_state() -> Result<()> {
    let fleet = demo_fleet()?;
    let events = fleet.spawn_cli(&["events", "--class", "status", "-o", "json"])?;
    fleet.stemma(&["create", "node", "gone", "--nodegroup", "prod/web"])?;
    // On a busy machine, the timeout of one second may end before the command has read the node.
    eventually("the error of the timeout with the last state", || {
        let output = fleet.cli(&["wait", "node", "gone", "--for", "state=converged", "--timeout", "1s"])?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(1) && stderr.contains("node/gone has state="), "{stderr}");
        Ok(())
    })?;
    let unknown_node = fleet.cli(&["wait", "node", "nobody", "--for", "state=converged", "--timeout", "1m"])?;
    ensure!(unknown_node.status.code() == Some(3), "{}", String::from_utf8_lossy(&unknown_node.stderr));
    let wait_command = fleet.spawn_cli(&["wait", "node", "gone", "--for", "deleted"])?;
    fleet.stemma(&["delete", "node", "gone", "--yes"])?;
    ensure!(wait_command.next_line()?.trim_end() == "node/gone deleted");
    ensure!(wait_command.wait()?);
    let _agent = fleet.join("n1", "prod/web")?;
    let wait_output = fleet.stemma(&["wait", "node/n1", "--for", "state=converged", "--timeout", "2m"])?;
    ensure!(wait_output.trim_end() == "node/n1 has state=converged", "{wait_output}");
    loop {
        let event = next_event(&events)?;
        ensure!(event["event"] == "status" && event["kind"] == "node", "{event}");
        if event["name"] == "n1" && event["state"] == "converged" {
            ensure!(event["cluster"] == "prod" && event["connection"] == "connected", "{event}");
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
    let robot_dir = fleet.dir().join("robot");
    fleet.stemma(&["principal", "token", "create", "robot", "--to", &robot_dir.to_string_lossy()])?;
    let context = robot_dir.join("context.toml").to_string_lossy().into_owned();
    let events =
        RunningProgram::start("stemma", ["--context", &context, "events", "--kind", "cluster", "--from", "1", "-o", "json"])?;
    fleet.stemma(&["label", "cluster", "far", "a=b"])?;
    fleet.stemma(&["label", "cluster", "prod", "a=b"])?;
    for action in ["created", "updated"] {
        let event = next_event(&events)?;
        ensure!(event["name"] == "prod" && event["action"] == action, "{event}");
    }
    let secret = std::fs::read_to_string(robot_dir.join("token"))?;
    let (id, _) = secret.split_once('.').context("ID.SECRET")?;
    fleet.stemma(&["principal", "token", "revoke", "robot", id])?;
    let (is_success, log) = events.wait_with_log()?;
    ensure!(!is_success && log.contains("the token is unknown"), "{log}");
    Ok(())
}
