//! SIGKILL at random points: no acknowledged write is lost, no file is torn, and nobody has to mend anything.
//!
//! A write is under way, controller or agent is killed somewhere in the middle of it, comes back, and then what was
//! acknowledged must be there. The points are random; the seed is printed, and `STEMMA_SEED` repeats it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use stemma_tests::chance::Chance;
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::program::{eventually, file_contains};
use stemma_tests::site::{SITE, whole};

/// How often something is killed.
const KILLS: u64 = 100;
/// Somewhere in this time after a write began.
const WITHIN_MS: usize = 80;

#[test]
fn killing_either_side_a_hundred_times_loses_and_tears_nothing() -> Result<()> {
    let mut chance = Chance::seeded()?;
    let mut fleet = Fleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let mut web = fleet.join("web-1", "prod/frontends")?;
    eventually("the first convergence", || whole(&web))?;
    let mut acknowledged = 0;
    for number in 1..=KILLS {
        // One that only the label files know, and one that the template and the command read.
        let (change, tier) = (format!("number={number}"), format!("tier=t{number}"));
        let write = fleet.begin(&["label", "nodegroup", "prod/frontends", &change, &tier])?;
        std::thread::sleep(Duration::from_millis(chance.below(WITHIN_MS) as u64));
        if chance.percent(50) {
            fleet.crash_controller().with_context(|| format!("kill {number} of the controller"))?;
        } else {
            web.kill()?;
            web.start()?;
        }
        let is_acknowledged = write.ended()?;
        let stored = number_of(&fleet)?;
        ensure!(
            stored == acknowledged || stored == number,
            "kill {number}: {stored} is stored, {acknowledged} was acknowledged"
        );
        ensure!(!is_acknowledged || stored == number, "kill {number}: acknowledged and lost, {stored} is stored");
        acknowledged = stored;
        whole_if_there(&web)?;
    }
    fleet.stemma(&["label", "nodegroup", "prod/frontends", "tier=last"])?;
    eventually("the last edit on the host", || {
        file_contains(&web.path("run/stemma/labels.json"), "\"tier\":\"last\"").with_context(|| web.log())?;
        file_contains(&web.path("etc/nginx/conf.d/site.conf"), "tier last").with_context(|| web.log())
    })?;
    eventually("the command that reads the label, run for its last value", || {
        let notes = std::fs::read_to_string(web.path("var/log/site.log"))?;
        ensure!(notes.ends_with("serves last\n"), "{notes}\n{}", web.log());
        Ok(())
    })?;
    Ok(())
}

fn number_of(fleet: &Fleet) -> Result<u64> {
    let group =
        eventually("the controller answers", || fleet.stemma(&["get", "nodegroup", "prod/frontends", "-o", "json"]))?;
    let group: Value = serde_json::from_str(&group)?;
    Ok(group["labels"]["number"].as_str().map_or(Ok(0), str::parse)?)
}

/// The host's files as a reader finds them: whole, or not there yet.
fn whole_if_there(web: &Agent) -> Result<()> {
    if web.path("run/stemma/labels.json").exists() { whole(web) } else { Ok(()) }
}
