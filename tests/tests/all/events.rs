//! `stemma events`, `stemma wait` and `get --watch`, against a real controller and agent.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::Fleet;
use stemma_tests::program::{Running, eventually};

fn next(events: &Running) -> Result<Value> {
    Ok(serde_json::from_str(&events.line()?)?)
}

fn site() -> Result<Fleet> {
    let fleet = Fleet::start()?;
    fleet.stemma(&["create", "cluster", "prod"])?;
    fleet.stemma(&["create", "nodegroup", "prod", "web"])?;
    Ok(fleet)
}

#[test]
fn what_changes_is_told_once_over_a_controllers_restart() -> Result<()> {
    let mut fleet = site()?;
    let events = fleet.begin(&["events", "--kind", "node", "--from", "1", "-o", "json"])?;
    fleet.stemma(&["create", "node", "n1", "--nodegroup", "prod/web"])?;
    let made = next(&events)?;
    ensure!(made["action"] == "created" && made["name"] == "n1" && made["cluster"] == "prod", "{made}");
    fleet.stop_controller()?;
    fleet.start_controller()?;
    fleet.stemma(&["label", "cluster", "prod", "tier=gold"])?;
    fleet.stemma(&["label", "node", "n1", "a=b"])?;
    let labelled = next(&events)?;
    ensure!(labelled["action"] == "updated" && labelled["object"]["labels"]["a"] == "b", "{labelled}");
    ensure!(labelled["revision"].as_u64() > made["revision"].as_u64());
    fleet.stemma(&["delete", "node", "n1", "--yes"])?;
    let gone = next(&events)?;
    ensure!(gone["action"] == "deleted" && gone["name"] == "n1" && gone["object"].is_null(), "{gone}");
    eventually("that it was away is said", || {
        ensure!(events.log().contains("warning: "), "{}", events.log());
        Ok(())
    })?;
    events.kill()
}

#[test]
fn y09_what_a_selection_finds_is_waited_for() -> Result<()> {
    let fleet = site()?;
    for (node, labels) in [("a", "tier=gold"), ("b", "tier=gold"), ("c", "tier=iron")] {
        fleet.stemma(&["create", "node", node, "--nodegroup", "prod/web", "--labels", labels])?;
    }
    let waited = fleet.stemma(&["wait", "nodes", "-l", "tier=gold", "--for", "labels.tier=gold", "--timeout", "1m"])?;
    ensure!(waited == "node/a has labels.tier=gold\nnode/b has labels.tier=gold\n", "{waited}");
    for (arguments, status, part) in [
        (&["wait", "nodes", "-l", "tier=none"][..], 3, "no node is selected"),
        (&["wait", "node", "a", "-l", "tier=gold"], 2, "a is named, and others are selected"),
        (&["wait", "nodes"], 2, "select them, as with -l KEY=VALUE"),
    ] {
        let refused = fleet.cli(&[arguments, &["--for", "deleted"]].concat())?;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(refused.status.code() == Some(status) && said.contains(part), "{arguments:?}: {said}");
    }
    Ok(())
}

#[test]
fn where_a_node_stands_is_told_and_waited_for() -> Result<()> {
    let fleet = site()?;
    let events = fleet.begin(&["events", "--class", "status", "-o", "json"])?;
    fleet.stemma(&["create", "node", "gone", "--nodegroup", "prod/web"])?;
    // On a busy machine a second may be over before the node was looked at.
    eventually("what it waited for in vain", || {
        let never = fleet.cli(&["wait", "node", "gone", "--for", "state=converged", "--timeout", "1s"])?;
        let said = String::from_utf8_lossy(&never.stderr).into_owned();
        ensure!(never.status.code() == Some(1) && said.contains("node/gone has state="), "{said}");
        Ok(())
    })?;
    let unknown = fleet.cli(&["wait", "node", "nobody", "--for", "state=converged", "--timeout", "1m"])?;
    ensure!(unknown.status.code() == Some(3), "{}", String::from_utf8_lossy(&unknown.stderr));
    let waiting = fleet.begin(&["wait", "node", "gone", "--for", "deleted"])?;
    fleet.stemma(&["delete", "node", "gone", "--yes"])?;
    ensure!(waiting.line()?.trim_end() == "node/gone deleted");
    ensure!(waiting.ended()?);
    let _agent = fleet.join("n1", "prod/web")?;
    let waited = fleet.stemma(&["wait", "node/n1", "--for", "state=converged", "--timeout", "2m"])?;
    ensure!(waited.trim_end() == "node/n1 has state=converged", "{waited}");
    loop {
        let told = next(&events)?;
        ensure!(told["event"] == "status" && told["kind"] == "node", "{told}");
        if told["name"] == "n1" && told["state"] == "converged" {
            ensure!(told["cluster"] == "prod" && told["connection"] == "connected", "{told}");
            break;
        }
    }
    events.kill()
}

#[test]
fn who_is_bound_to_a_cluster_is_told_of_it_alone_and_nothing_once_revoked() -> Result<()> {
    let fleet = site()?;
    fleet.stemma(&["create", "cluster", "far"])?;
    fleet.stemma(&["principal", "create", "robot", "--role", "viewer", "--cluster", "prod"])?;
    let robot = fleet.dir().join("robot");
    fleet.stemma(&["principal", "token", "create", "robot", "--to", &robot.to_string_lossy()])?;
    let context = robot.join("context.toml").to_string_lossy().into_owned();
    let events =
        Running::start("stemma", ["--context", &context, "events", "--kind", "cluster", "--from", "1", "-o", "json"])?;
    fleet.stemma(&["label", "cluster", "far", "a=b"])?;
    fleet.stemma(&["label", "cluster", "prod", "a=b"])?;
    for action in ["created", "updated"] {
        let told = next(&events)?;
        ensure!(told["name"] == "prod" && told["action"] == action, "{told}");
    }
    let secret = std::fs::read_to_string(robot.join("token"))?;
    let (id, _) = secret.split_once('.').context("ID.SECRET")?;
    fleet.stemma(&["principal", "token", "revoke", "robot", id])?;
    let (is_well, log) = events.ended_with()?;
    ensure!(!is_well && log.contains("the token is unknown"), "{log}");
    Ok(())
}
