//! The first steps of a new user in the whole system: a controller, three agents, manifests, and a label edit that
//! arrives on the hosts. Then the controller or an agent stops and starts again.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{check_file_contains, eventually};
use stemma_tests::seed::is_long;
use stemma_tests::site::SITE;

/// Applies the demo manifests and joins three hosts. Waits for their labels and for the web hosts' configuration.
fn join_three_hosts(fleet: &TempFleet) -> Result<[TestAgent; 3]> {
    fleet.stemma(&["apply", "-f", SITE])?;
    let agents =
        [fleet.join("web-1", "prod/frontends")?, fleet.join("web-2", "prod/frontends")?, fleet.join("db-1", "prod/databases")?];
    for agent in &agents {
        check_label(agent, "ntp", "ntp.example.net")?;
    }
    for web in &agents[..2] {
        eventually("the configuration on a web host", || {
            check_file_contains(&web.path("etc/nginx/conf.d/site.conf"), "tier gold, ntp ntp.example.net, peers web-1 web-2")
        })?;
    }
    Ok(agents)
}

/// Waits until the label file of the host has this value of a label.
fn check_label(agent: &TestAgent, key: &str, value: &str) -> Result<()> {
    eventually(&format!("{key}={value}"), || {
        let labels = read_labels(&agent.path("run/stemma/labels.json"))?;
        anyhow::ensure!(labels[key] == value, "{labels}\n{}", agent.log());
        Ok(())
    })
}

fn read_labels(path: &Path) -> Result<Value> {
    Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
}

#[test]
fn labels_tags_tasks_and_edit_reach_hosts() -> Result<()> {
    let fleet = TempFleet::start()?;
    let [web1, web2, db] = join_three_hosts(&fleet)?;

    let labels = read_labels(&web1.path("run/stemma/labels.json"))?;
    assert_eq!(
        labels,
        serde_json::json!({"ntp": "ntp.example.net", "site": "fra1", "tier": "gold"}),
        "labels of three levels, with an override and a tombstone"
    );
    assert_eq!(read_labels(&db.path("run/stemma/labels.json"))?["debug"], "true", "only the frontends do not inherit `debug`");
    check_file_contains(&web1.path("run/stemma/labels.env"), "STEMMA_LABEL_TIER=")?;
    eventually("the tags", || Ok(std::fs::metadata(web1.path("run/stemma/tags/nginx"))?))?;
    assert!(!db.path("etc/mysql/my.cnf").exists(), "the databases are in mode `noop`, so no file is written");

    fleet.stemma(&["label", "clustertemplate", "base", "ntp=ntp2.example.net"])?;
    for agent in [&web1, &web2, &db] {
        check_label(agent, "ntp", "ntp2.example.net")?;
    }
    for web in [&web1, &web2] {
        eventually("the rendered file", || check_file_contains(&web.path("etc/nginx/conf.d/site.conf"), "ntp ntp2.example.net"))?;
    }
    let explained = fleet.stemma(&["explain", "node", "web-1", "label", "tier"])?;
    for expected in ["clustertemplate", "standard", "nodegroup", "gold", "WINS"] {
        assert!(explained.contains(expected), "{explained}");
    }
    Ok(())
}

/// The controller is stopped, and a file of the host is changed by hand. The restarted agent mends the file from its
/// stored state.
#[test]
fn agent_converges_from_disk_without_controller() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    let [mut web1, _web2, _db] = join_three_hosts(&fleet)?;
    fleet.stop_controller()?;
    let conf = web1.path("etc/nginx/conf.d/site.conf");
    web1.kill()?;
    std::fs::write(&conf, "edited by hand\n")?;
    web1.start()?;
    eventually("the file is mended", || check_file_contains(&conf, "tier gold"))?;
    fleet.start_controller()?;
    fleet.stemma(&["label", "nodegroup", "prod/frontends", "tier=silver"])?;
    check_label(&web1, "tier", "silver")
}

#[test]
fn ten_restarts_write_nothing_when_fleet_is_quiet() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    let agents = join_three_hosts(&fleet)?;
    settled_revision(&fleet, &agents)?;
    // An orderly stop writes what hosts have confirmed in the last seconds.
    fleet.stop_controller()?;
    fleet.start_controller()?;
    let revision = settled_revision(&fleet, &agents)?;
    let label_file_time =
        |agent: &TestAgent| std::fs::metadata(agent.path("run/stemma/labels.json")).and_then(|file| file.modified());
    let times_before = agents.iter().map(label_file_time).collect::<std::io::Result<Vec<_>>>()?;
    for _ in 0..if is_long() { 100 } else { 10 } {
        fleet.stop_controller()?;
        fleet.start_controller()?;
        wait_until_connected(&fleet)?;
        assert_eq!(metric_value(&fleet, "stemma_store_commits_total")?, 0, "a quiet restart commits nothing");
        assert_eq!(metric_value(&fleet, "stemma_desired_sent_total")?, 0, "a quiet restart sends no desired state");
    }
    assert_eq!(store_revision(&fleet)?, revision);
    assert_eq!(
        agents.iter().map(label_file_time).collect::<std::io::Result<Vec<_>>>()?,
        times_before,
        "no file was written again"
    );
    Ok(())
}

/// Waits until all three hosts are connected.
fn wait_until_connected(fleet: &TempFleet) -> Result<()> {
    for agent in ["web-1", "web-2", "db-1"] {
        eventually(agent, || {
            let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", agent, "-o", "json"])?)?;
            anyhow::ensure!(node["connected"] == true, "{node}");
            Ok(())
        })?;
    }
    Ok(())
}

/// Waits until the fleet is quiet, and returns the revision of the store. In a quiet fleet, each host has an open
/// check-in, no unsent results and its final state, and all nodes are resolved. Nothing was committed during the check.
fn settled_revision(fleet: &TempFleet, agents: &[TestAgent; 3]) -> Result<u64> {
    eventually("a quiet fleet", || {
        let first_revision = store_revision(fleet)?;
        for (agent, (name, state, progress)) in agents.iter().zip(FINAL_STATES) {
            let result_dir = agent.path("var/lib/stemma-agent/apply/results");
            anyhow::ensure!(std::fs::read_dir(&result_dir)?.next().is_none(), "results of {name} are not sent");
            let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", name, "-o", "json"])?)?;
            anyhow::ensure!(node["connected"] == true && node["state"] == state, "{node}");
            let report = fleet.stemma(&["get", "--raw", &format!("/v1/nodes/{name}/report")])?;
            let report: Value = serde_json::from_str(&report)?;
            anyhow::ensure!(report["report"]["report"]["progress"] == progress, "{report}");
        }
        anyhow::ensure!(metric_value(fleet, "stemma_checkins_parked")? == 3, "each host has an open check-in");
        let (last_revision, resolved_revision) = (store_revision(fleet)?, metric_value(fleet, "stemma_desired_revision")?);
        anyhow::ensure!(
            (last_revision, resolved_revision) == (first_revision, first_revision),
            "from {first_revision} to {last_revision}, resolved {resolved_revision}"
        );
        Ok(last_revision)
    })
}

/// The final states of the demo's hosts: name, state, and the progress that the agent reports. The group of `db-1` is
/// in mode `noop`.
const FINAL_STATES: [(&str, &str, &str); 3] =
    [("web-1", "converged", "Converged"), ("web-2", "converged", "Converged"), ("db-1", "noop", "Idle")];

fn store_revision(fleet: &TempFleet) -> Result<u64> {
    metric_value(fleet, "stemma_store_revision")
}

/// Returns the value of a metric without labels, from `/metrics` of the controller.
fn metric_value(fleet: &TempFleet, name: &str) -> Result<u64> {
    let text = fleet.stemma(&["get", "--raw", "/metrics"])?;
    let line = text.lines().find(|line| line.starts_with(name)).with_context(|| format!("{name} in\n{text}"))?;
    Ok(line.split(' ').next_back().context("a value")?.parse()?)
}
