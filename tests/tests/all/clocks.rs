//! The clock of one machine jumps (F24): by hours and by months, ahead and back, while a program runs and before it starts. While it is
//! wrong, the host keeps what it has and says that the clocks differ; when it is right again, all goes on without a hand.
//!
//! Nearly all of the time is waiting: an agent's for its next try, a controller's for its next look at its certificates. So each jump has a
//! fleet of its own, and the jumps of a test are tried at the same time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::program::{eventually, eventually_within, succeed};
use stemma_tests::site::{converged, edit_tier, tier_arrives};
use stemma_tests::tool;

/// So long an agent waits at most between two tries, and a controller until it looks at its certificates.
const AFTER: Duration = Duration::from_mins(3);

/// A clock that can be set while programs run by it.
pub(crate) struct Dial {
    file: PathBuf,
    /// What a program is started under that goes by it.
    pub(crate) words: Vec<OsString>,
}

impl Dial {
    /// With its file in this directory, and right at first; without `faketime`, none.
    pub(crate) fn new(dir: &Path) -> Result<Option<Self>> {
        let file = dir.join("clock");
        let words = tool::clocked(&file);
        let dial = words.map(|words| Self { file, words });
        dial.map(|dial| dial.set("+0").map(|()| dial)).transpose()
    }

    /// In one step, so that nobody reads half of it.
    pub(crate) fn set(&self, by: &str) -> Result<()> {
        let next = self.file.with_extension("next");
        std::fs::write(&next, format!("{by}\n"))?;
        Ok(std::fs::rename(next, &self.file)?)
    }
}

/// Tries jumps, each on a fleet of its own that has converged, and with its clock; without `faketime`, none.
fn at_each_jump(jumps: &[&str], try_one: impl Fn(&str, Fleet, Agent, Dial) -> Result<()> + Sync) -> Result<()> {
    let tried = &|jump: &str| -> Result<()> {
        let (fleet, web) = converged()?;
        let Some(dial) = Dial::new(fleet.dir())? else { return Ok(()) };
        try_one(jump, fleet, web, dial).with_context(|| format!("a clock that is wrong by {jump}"))
    };
    std::thread::scope(|scope| {
        let tries: Vec<_> = jumps.iter().map(|jump| scope.spawn(move || tried(jump))).collect();
        tries.into_iter().try_for_each(|one| one.join().expect("the thread does not panic"))
    })
}

fn arrives(web: &Agent, tier: &str) -> Result<()> {
    tier_arrives(AFTER, web, tier)
}

/// The host still mends what drifts, by what it holds.
fn mends(web: &Agent) -> Result<()> {
    let motd = web.path("etc/motd");
    let held = std::fs::read_to_string(&motd)?;
    std::fs::write(&motd, "drifted\n")?;
    eventually("what drifted is mended", || {
        let now = std::fs::read_to_string(&motd)?;
        ensure!(now == held, "{now}\n{}", web.log());
        Ok(())
    })
}

/// A program says which of the two clocks is before or behind a certificate.
fn tells(log: impl Fn() -> String, said: &str) -> Result<()> {
    eventually_within(AFTER, "what is wrong is said", || {
        let log = log();
        ensure!(log.contains(said), "not {said:?} in:\n{log}");
        Ok(())
    })
}

#[test]
fn f24_an_agents_clock_that_jumps_while_it_runs_costs_nothing_when_it_is_right_again() -> Result<()> {
    at_each_jump(&["+3h", "-3h", "+100d", "-100d"], |jump, fleet, mut web, dial| {
        web.kill()?;
        web.start_under(&dial.words)?;
        dial.set(jump)?;
        mends(&web)?;
        dial.set("+0")?;
        edit_tier(&fleet, "ran")?;
        arrives(&web, "ran")
    })
}

#[test]
fn f24_an_agent_that_starts_with_a_wrong_clock_says_so_and_keeps_its_host() -> Result<()> {
    at_each_jump(&["+3h", "-3h", "+100d", "-100d"], |jump, fleet, mut web, dial| {
        let said = match jump {
            "+3h" => None,
            "+100d" => Some("the certificate expired on"),
            _ => Some("is not valid before"),
        };
        web.kill()?;
        dial.set(jump)?;
        web.start_under(&dial.words)?;
        edit_tier(&fleet, "started")?;
        match said {
            Some(said) => tells(|| web.log(), said)?,
            None => arrives(&web, "started")?,
        }
        mends(&web)?;
        dial.set("+0")?;
        arrives(&web, "started")
    })
}

#[test]
fn f24_a_controllers_clock_that_jumps_while_it_runs_locks_nobody_out() -> Result<()> {
    at_each_jump(&["+3h", "+3d", "-3h"], |jump, mut fleet, web, dial| {
        fleet.kill_controller()?;
        fleet.start_controller_under(&dial.words)?;
        edit_tier(&fleet, "before")?;
        arrives(&web, "before")?;
        dial.set(jump)?;
        mends(&web)?;
        dial.set("+0")?;
        edit_tier(&fleet, "jumped")?;
        arrives(&web, "jumped")?;
        fleet.join("web-2", "prod/frontends").map(drop)
    })
}

/// The ids of the join tokens that the controller lists.
fn tokens(fleet: &Fleet) -> Result<Vec<String>> {
    let listed: Value = serde_json::from_str(&fleet.stemma(&["token", "list", "-o", "json"])?)?;
    let ids = listed.as_array().into_iter().flatten().filter_map(|token| token["id"].as_str());
    Ok(ids.map(ToOwned::to_owned).collect())
}

#[test]
fn x04_f12_a_controller_whose_clock_is_400_days_ahead_drops_and_replaces_nothing() -> Result<()> {
    at_each_jump(&["+400d"], |jump, mut fleet, web, dial| {
        fleet.stemma(&["token", "create", "--nodegroup", "prod/frontends", "--ttl", "1h"])?;
        let before = tokens(&fleet)?;
        ensure!(!before.is_empty(), "there is a token");
        fleet.kill_controller()?;
        dial.set(jump)?;
        fleet.start_controller_under(&dial.words)?;
        tells(|| fleet.log(), "the clock jumped")?;
        let server = format!("unix:{}", fleet.data().join("admin.sock").display());
        let by_root = |arguments: &[&str]| succeed("stemma", [&["--server", &*server][..], arguments].concat());
        by_root(&["cert", "create", "admin", "--to", &fleet.dir().join("again").to_string_lossy()])?;
        let state = by_root(&["get", "--raw", "/v1/fleet"])?;
        ensure!(state.contains("clock.jumped"), "{state}");
        let metrics = by_root(&["get", "--raw", "/metrics"])?;
        ensure!(metrics.contains("\nstemma_clock_suspect 1\n"), "{metrics}");
        mends(&web)?;

        dial.set("+0")?;
        eventually_within(AFTER, "the certificate of before is good", || edit_tier(&fleet, "again"))?;
        arrives(&web, "again")?;
        ensure!(tokens(&fleet)? == before, "the join tokens are there");
        let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
        ensure!(metrics.contains("\nstemma_clock_suspect 0\n"), "{metrics}");
        fleet.join("web-2", "prod/frontends").map(drop)
    })
}

#[test]
fn f24_a_controller_that_starts_with_a_wrong_clock_is_believed_again_when_it_is_right() -> Result<()> {
    at_each_jump(&["+3h", "+3d", "-3h"], |jump, mut fleet, web, dial| {
        fleet.kill_controller()?;
        dial.set(jump)?;
        fleet.start_controller_under(&dial.words)?;
        mends(&web)?;
        dial.set("+0")?;
        eventually_within(AFTER, "an operator is served again", || edit_tier(&fleet, "began"))?;
        arrives(&web, "began")?;
        fleet.join("web-2", "prod/frontends").map(drop)
    })
}
