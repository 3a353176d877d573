//! Connections that are cut at any byte, in the handshake or in the middle of a document: no file is torn, no command runs
//! twice for one value, and what was edited meanwhile is on the host when the network is whole again.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use stemma_tests::chance::Chance;
use stemma_tests::fleet::Fleet;
use stemma_tests::program::{eventually, file_contains};
use stemma_tests::proxy::Proxy;
use stemma_tests::site::{SITE, whole};

/// How often something is edited while connections are cut.
const EDITS: usize = 40;
/// So long at most between two edits.
const WITHIN_MS: usize = 200;

#[test]
fn connections_cut_at_any_byte_lose_and_tear_nothing() -> Result<()> {
    let mut chance = Chance::seeded()?;
    let mut fleet = Fleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let controller = fleet.bound().agents.trim_start_matches("https://").parse()?;
    let proxy = Proxy::to(controller, chance.clone())?;
    fleet.reach_agents_by(proxy.address());
    let web = fleet.join("web-1", "prod/frontends")?;
    eventually("the first convergence", || whole(&web))?;

    proxy.cut(true);
    // So that the connection that was open before is a new one.
    fleet.crash_controller()?;
    for number in 1..=EDITS {
        fleet.stemma(&["label", "nodegroup", "prod/frontends", &format!("tier=t{number}")])?;
        std::thread::sleep(Duration::from_millis(chance.below(WITHIN_MS) as u64));
        whole(&web)?;
    }
    proxy.cut(false);
    fleet.stemma(&["label", "nodegroup", "prod/frontends", "tier=last"])?;
    eventually("the last edit on the host", || {
        file_contains(&web.path("run/stemma/labels.json"), "\"tier\":\"last\"").with_context(|| web.log())?;
        file_contains(&web.path("etc/nginx/conf.d/site.conf"), "tier last").with_context(|| web.log())
    })?;
    let notes = eventually("the command that reads the label, run for its last value", || {
        let notes = std::fs::read_to_string(web.path("var/log/site.log"))?;
        ensure!(notes.ends_with("serves last\n"), "{notes}\n{}", web.log());
        Ok(notes)
    })?;
    let mut ran: Vec<&str> = notes.lines().collect();
    let runs = ran.len();
    ran.dedup();
    ensure!(ran.len() == runs, "a command ran twice for one value:\n{notes}");
    ensure!(proxy.cuts() > 3, "only {} connections were cut", proxy.cuts());
    Ok(())
}
