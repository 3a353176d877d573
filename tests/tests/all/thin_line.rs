//! The thin line through everything, as a newcomer walks it: a controller, three agents, manifests, a label edit
//! that arrives, and what survives the loss of either side.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use stemma_tests::chance::is_long;
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::program::{eventually, file_contains};
use stemma_tests::site::SITE;

fn three(fleet: &Fleet) -> Result<[Agent; 3]> {
    fleet.stemma(&["apply", "-f", SITE])?;
    let agents = [
        fleet.join("web-1", "prod/frontends")?,
        fleet.join("web-2", "prod/frontends")?,
        fleet.join("db-1", "prod/databases")?,
    ];
    for agent in &agents {
        label(agent, "ntp", "ntp.example.net")?;
    }
    for web in &agents[..2] {
        eventually("the configuration on a web host", || {
            file_contains(&web.path("etc/nginx/conf.d/site.conf"), "tier gold, ntp ntp.example.net, peers web-1 web-2")
        })?;
    }
    Ok(agents)
}

fn label(agent: &Agent, key: &str, value: &str) -> Result<()> {
    eventually(&format!("{key}={value}"), || {
        let labels = labels(&agent.path("run/stemma/labels.json"))?;
        anyhow::ensure!(labels[key] == value, "{labels}\n{}", agent.log());
        Ok(())
    })
}

fn labels(path: &Path) -> Result<Value> {
    Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
}

#[test]
fn labels_tags_and_tasks_reach_the_hosts_and_an_edit_arrives() -> Result<()> {
    let fleet = Fleet::start()?;
    let [web1, web2, db] = three(&fleet)?;

    let known = labels(&web1.path("run/stemma/labels.json"))?;
    assert_eq!(
        known,
        serde_json::json!({"ntp": "ntp.example.net", "site": "fra1", "tier": "gold"}),
        "four levels, an override, a null"
    );
    assert_eq!(labels(&db.path("run/stemma/labels.json"))?["debug"], "true", "only frontends stop it");
    file_contains(&web1.path("run/stemma/labels.env"), "STEMMA_LABEL_TIER=")?;
    eventually("the tags", || Ok(std::fs::metadata(web1.path("run/stemma/tags/nginx"))?))?;
    assert!(!db.path("etc/mysql/my.cnf").exists(), "databases are in noop: nothing is changed");

    fleet.stemma(&["label", "clustertemplate", "base", "ntp=ntp2.example.net"])?;
    for agent in [&web1, &web2, &db] {
        label(agent, "ntp", "ntp2.example.net")?;
    }
    for web in [&web1, &web2] {
        eventually("the rendered file", || {
            file_contains(&web.path("etc/nginx/conf.d/site.conf"), "ntp ntp2.example.net")
        })?;
    }
    let explained = fleet.stemma(&["explain", "node", "web-1", "label", "tier"])?;
    for expected in ["clustertemplate", "standard", "nodegroup", "gold", "WINS"] {
        assert!(explained.contains(expected), "{explained}");
    }
    Ok(())
}

#[test]
fn an_agent_without_a_controller_converges_from_its_disk() -> Result<()> {
    let mut fleet = Fleet::start()?;
    let [mut web1, _web2, _db] = three(&fleet)?;
    fleet.stop_controller()?;
    let conf = web1.path("etc/nginx/conf.d/site.conf");
    web1.kill()?;
    std::fs::write(&conf, "edited by hand\n")?;
    web1.start()?;
    eventually("the file is mended", || file_contains(&conf, "tier gold"))?;
    fleet.start_controller()?;
    fleet.stemma(&["label", "nodegroup", "prod/frontends", "tier=silver"])?;
    label(&web1, "tier", "silver")
}

#[test]
fn ten_restarts_of_a_quiet_controller_write_nothing() -> Result<()> {
    let mut fleet = Fleet::start()?;
    let agents = three(&fleet)?;
    settled(&fleet, &agents)?;
    // An orderly stop writes what hosts have confirmed in the last seconds.
    fleet.stop_controller()?;
    fleet.start_controller()?;
    let revision = settled(&fleet, &agents)?;
    let written =
        |agent: &Agent| std::fs::metadata(agent.path("run/stemma/labels.json")).and_then(|file| file.modified());
    let before = agents.iter().map(written).collect::<std::io::Result<Vec<_>>>()?;
    for _ in 0..if is_long() { 100 } else { 10 } {
        fleet.stop_controller()?;
        fleet.start_controller()?;
        connected(&fleet)?;
        assert_eq!(metric(&fleet, "stemma_store_commits_total")?, 0, "a quiet restart commits nothing");
        assert_eq!(metric(&fleet, "stemma_desired_sent_total")?, 0, "and sends no desired state");
    }
    assert_eq!(self::revision(&fleet)?, revision);
    assert_eq!(agents.iter().map(written).collect::<std::io::Result<Vec<_>>>()?, before, "no file was written again");
    Ok(())
}

fn connected(fleet: &Fleet) -> Result<()> {
    for agent in ["web-1", "web-2", "db-1"] {
        eventually(agent, || {
            let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", agent, "-o", "json"])?)?;
            anyhow::ensure!(node["connected"] == true, "{node}");
            Ok(())
        })?;
    }
    Ok(())
}

/// The revision at which everything that follows from joining has been said: each host waits for news, has no result that is not
/// stored, and is told to be where it ends; and no commit came while that was looked at.
fn settled(fleet: &Fleet, agents: &[Agent; 3]) -> Result<u64> {
    eventually("a quiet fleet", || {
        let before = revision(fleet)?;
        for (agent, (name, state, progress)) in agents.iter().zip(ENDS) {
            let unsent = agent.path("var/lib/stemma-agent/apply/results");
            anyhow::ensure!(std::fs::read_dir(&unsent)?.next().is_none(), "results of {name} are not sent");
            let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", name, "-o", "json"])?)?;
            anyhow::ensure!(node["connected"] == true && node["state"] == state, "{node}");
            let report = fleet.stemma(&["get", "--raw", &format!("/v1/nodes/{name}/report")])?;
            let report: Value = serde_json::from_str(&report)?;
            anyhow::ensure!(report["report"]["report"]["progress"] == progress, "{report}");
        }
        anyhow::ensure!(metric(fleet, "stemma_checkins_parked")? == 3, "each host waits for news");
        let (now, resolved) = (revision(fleet)?, metric(fleet, "stemma_desired_revision")?);
        anyhow::ensure!((now, resolved) == (before, before), "from {before} to {now}, resolved {resolved}");
        Ok(now)
    })
}

/// Where the hosts of the demo end: name, state, and what its agent reports of its tasks. Databases are in noop.
const ENDS: [(&str, &str, &str); 3] =
    [("web-1", "converged", "Converged"), ("web-2", "converged", "Converged"), ("db-1", "noop", "Idle")];

fn revision(fleet: &Fleet) -> Result<u64> {
    metric(fleet, "stemma_store_revision")
}

/// A counter or gauge without labels from the controller's own `/metrics`.
fn metric(fleet: &Fleet, name: &str) -> Result<u64> {
    let text = fleet.stemma(&["get", "--raw", "/metrics"])?;
    let line = text.lines().find(|line| line.starts_with(name)).with_context(|| format!("{name} in\n{text}"))?;
    Ok(line.split(' ').next_back().context("a value")?.parse()?)
}
