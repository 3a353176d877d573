//! The clock of one machine jumps (F24): by hours and by months, forward and back, while a program runs and before it
//! starts. While the clock is wrong, the host retains its state and reports that the clocks differ. When it is right
//! again, everything continues without manual work.
//!
//! The tests spend nearly all of their time on waiting for the agent's next attempt, or for the controller's next
//! certificate check. So each jump has a fleet of its own, and the jumps of a test run at the same time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{eventually, eventually_within, succeed};
use stemma_tests::site::{converged_fleet, set_tier, wait_for_tier};
use stemma_tests::tool;

/// Maximum pause of an agent between two attempts, and of a controller between two certificate checks.
const MAX_RETRY_INTERVAL: Duration = Duration::from_mins(3);

/// A fake clock that can be set while programs run.
pub(crate) struct FakeClock {
    file: PathBuf,
    /// The command line that starts a program under this clock.
    pub(crate) command: Vec<OsString>,
}

impl FakeClock {
    /// Creates a clock without an offset. Its file is in this directory. Returns `None` if `faketime` is not installed.
    pub(crate) fn new(dir: &Path) -> Result<Option<Self>> {
        let file = dir.join("clock");
        let command = tool::faketime_command(&file);
        let clock = command.map(|words| Self { file, command: words });
        clock.map(|dial| dial.set("+0").map(|()| dial)).transpose()
    }

    /// Sets the offset of the clock. Replaces its file atomically, so that no program reads a part of it.
    pub(crate) fn set(&self, offset: &str) -> Result<()> {
        let next = self.file.with_extension("next");
        std::fs::write(&next, format!("{offset}\n"))?;
        Ok(std::fs::rename(next, &self.file)?)
    }
}

/// Runs the function for each jump, with a converged fleet and a clock of its own. Does nothing if `faketime` is not
/// installed.
fn run_for_jumps(jumps: &[&str], test_jump: impl Fn(&str, TempFleet, TestAgent, FakeClock) -> Result<()> + Sync) -> Result<()> {
    let run_jump = &|jump: &str| -> Result<()> {
        let (fleet, web) = converged_fleet()?;
        let Some(clock) = FakeClock::new(fleet.dir())? else { return Ok(()) };
        test_jump(jump, fleet, web, clock).with_context(|| format!("a clock that is wrong by {jump}"))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = jumps.iter().map(|jump| scope.spawn(move || run_jump(jump))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("the thread does not panic"))
    })
}

fn wait_for_edit(web: &TestAgent, tier: &str) -> Result<()> {
    wait_for_tier(MAX_RETRY_INTERVAL, web, tier)
}

/// Checks that the host still corrects drift with its stored state.
fn wait_for_mend(web: &TestAgent) -> Result<()> {
    let motd = web.path("etc/motd");
    let expected = std::fs::read_to_string(&motd)?;
    std::fs::write(&motd, "drifted\n")?;
    eventually("what drifted is mended", || {
        let now = std::fs::read_to_string(&motd)?;
        ensure!(now == expected, "{now}\n{}", web.log());
        Ok(())
    })
}

/// Waits until a program has logged this text.
fn wait_for_log(log: impl Fn() -> String, text: &str) -> Result<()> {
    eventually_within(MAX_RETRY_INTERVAL, "what is wrong is said", || {
        let log = log();
        ensure!(log.contains(text), "not {text:?} in:\n{log}");
        Ok(())
    })
}

#[test]
fn f24_agent_continues_when_jumped_clock_is_corrected() -> Result<()> {
    run_for_jumps(&["+3h", "-3h", "+100d", "-100d"], |jump, fleet, mut web, clock| {
        web.kill()?;
        web.start_under(&clock.command)?;
        clock.set(jump)?;
        wait_for_mend(&web)?;
        clock.set("+0")?;
        set_tier(&fleet, "ran")?;
        wait_for_edit(&web, "ran")
    })
}

#[test]
fn f24_agent_reports_wrong_clock_and_keeps_state() -> Result<()> {
    run_for_jumps(&["+3h", "-3h", "+100d", "-100d"], |jump, fleet, mut web, clock| {
        let expected = match jump {
            "+3h" => None,
            "+100d" => Some("the certificate expired on"),
            _ => Some("is not valid before"),
        };
        web.kill()?;
        clock.set(jump)?;
        web.start_under(&clock.command)?;
        set_tier(&fleet, "started")?;
        match expected {
            Some(text) => wait_for_log(|| web.log(), text)?,
            None => wait_for_edit(&web, "started")?,
        }
        wait_for_mend(&web)?;
        clock.set("+0")?;
        wait_for_edit(&web, "started")
    })
}

#[test]
fn f24_controller_clock_jump_locks_out_no_client() -> Result<()> {
    run_for_jumps(&["+3h", "+3d", "-3h"], |jump, mut fleet, web, clock| {
        fleet.kill_controller()?;
        fleet.start_controller_under(&clock.command)?;
        set_tier(&fleet, "before")?;
        wait_for_edit(&web, "before")?;
        clock.set(jump)?;
        wait_for_mend(&web)?;
        clock.set("+0")?;
        set_tier(&fleet, "jumped")?;
        wait_for_edit(&web, "jumped")?;
        fleet.join("web-2", "prod/frontends").map(drop)
    })
}

/// Returns the ids of the join tokens that the controller lists.
fn join_token_ids(fleet: &TempFleet) -> Result<Vec<String>> {
    let listed: Value = serde_json::from_str(&fleet.stemma(&["token", "list", "-o", "json"])?)?;
    let ids = listed.as_array().into_iter().flatten().filter_map(|token| token["id"].as_str());
    Ok(ids.map(ToOwned::to_owned).collect())
}

#[test]
fn x04_f12_controller_keeps_records_when_clock_is_400_days_ahead() -> Result<()> {
    run_for_jumps(&["+400d"], |jump, mut fleet, web, clock| {
        fleet.stemma(&["token", "create", "--nodegroup", "prod/frontends", "--ttl", "1h"])?;
        let before = join_token_ids(&fleet)?;
        ensure!(!before.is_empty(), "there is a token");
        fleet.kill_controller()?;
        clock.set(jump)?;
        fleet.start_controller_under(&clock.command)?;
        wait_for_log(|| fleet.log(), "the clock jumped")?;
        let server = format!("unix:{}", fleet.data().join("admin.sock").display());
        let run_as_root = |arguments: &[&str]| succeed("stemma", [&["--server", &*server][..], arguments].concat());
        run_as_root(&["cert", "create", "admin", "--to", &fleet.dir().join("again").to_string_lossy()])?;
        let state = run_as_root(&["get", "--raw", "/v1/fleet"])?;
        ensure!(state.contains("clock.jumped"), "{state}");
        let metrics = run_as_root(&["get", "--raw", "/metrics"])?;
        ensure!(metrics.contains("\nstemma_clock_suspect 1\n"), "{metrics}");
        wait_for_mend(&web)?;

        clock.set("+0")?;
        eventually_within(MAX_RETRY_INTERVAL, "the certificate of before is good", || set_tier(&fleet, "again"))?;
        wait_for_edit(&web, "again")?;
        ensure!(join_token_ids(&fleet)? == before, "the join tokens are there");
        let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
        ensure!(metrics.contains("\nstemma_clock_suspect 0\n"), "{metrics}");
        fleet.join("web-2", "prod/frontends").map(drop)
    })
}

#[test]
fn f24_controller_is_trusted_again_when_clock_is_corrected() -> Result<()> {
    run_for_jumps(&["+3h", "+3d", "-3h"], |jump, mut fleet, web, clock| {
        fleet.kill_controller()?;
        clock.set(jump)?;
        fleet.start_controller_under(&clock.command)?;
        wait_for_mend(&web)?;
        clock.set("+0")?;
        eventually_within(MAX_RETRY_INTERVAL, "an operator is served again", || set_tier(&fleet, "began"))?;
        wait_for_edit(&web, "began")?;
        fleet.join("web-2", "prod/frontends").map(drop)
    })
}
