//! The clock of one machine jumps (F24): by hours, days or months, forward and back, while a program runs and before it
//! starts. While the clock is wrong, the host retains its state. The agent logs if a certificate is not valid by its
//! clock. When the clock is right again, everything continues without manual work.
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
use stemma_tests::site::{fleet_with_complete_files, set_tier, wait_for_tier};
use stemma_tests::tool;

/// Maximum wait until an agent or a controller notices that its clock changed. An agent pauses for at most a minute
/// between two attempts to connect, a controller for ten seconds between two checks of its certificates.
const MAX_RECOVERY_WAIT: Duration = Duration::from_mins(3);

/// A fake clock that can be set while programs run.
pub(crate) struct FakeClock {
    file: PathBuf,
    /// The command line that starts a program under this clock.
    pub(crate) command: Vec<OsString>,
}

impl FakeClock {
    /// Creates a clock without an offset, with a file in `dir`. Returns `None` if `faketime` is not installed.
    pub(crate) fn new(dir: &Path) -> Result<Option<Self>> {
        let file = dir.join("clock");
        let command = tool::faketime_command(&file);
        let clock = command.map(|words| Self { file, command: words });
        clock.map(|clock| clock.set("+0").map(|()| clock)).transpose()
    }

    /// Sets the offset of the clock, such as `+3h`. Replaces the file atomically, so that no program reads a part.
    pub(crate) fn set(&self, offset: &str) -> Result<()> {
        let next = self.file.with_extension("next");
        std::fs::write(&next, format!("{offset}\n"))?;
        Ok(std::fs::rename(next, &self.file)?)
    }
}

/// Calls `test_jump` for each jump (an offset such as `+3h`), in parallel threads, with a fleet of its own, its agent
/// ([`fleet_with_complete_files`]) and a clock without an offset. Calls nothing if `faketime` is not installed.
fn run_for_jumps(jumps: &[&str], test_jump: impl Fn(&str, TempFleet, TestAgent, FakeClock) -> Result<()> + Sync) -> Result<()> {
    let run_jump = &|jump: &str| -> Result<()> {
        let (fleet, agent) = fleet_with_complete_files()?;
        let Some(clock) = FakeClock::new(fleet.dir())? else { return Ok(()) };
        test_jump(jump, fleet, agent, clock).with_context(|| format!("a clock that is wrong by {jump}"))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = jumps.iter().map(|jump| scope.spawn(move || run_jump(jump))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("the thread does not panic"))
    })
}

/// Waits until this value of the label `tier` is on the host.
fn wait_for_edit(web: &TestAgent, tier: &str) -> Result<()> {
    wait_for_tier(MAX_RECOVERY_WAIT, web, tier)
}

/// Changes a file of a task on the host, and waits until the agent restores the file from its stored state.
fn wait_for_mend(web: &TestAgent) -> Result<()> {
    let motd = web.path("etc/motd");
    let expected = std::fs::read_to_string(&motd)?;
    std::fs::write(&motd, "drifted\n")?;
    eventually("the mended file", || {
        let content = std::fs::read_to_string(&motd)?;
        ensure!(content == expected, "{content}\n{}", web.log());
        Ok(())
    })
}

/// Waits until a program has logged this text. `log` returns the whole log of the program.
fn wait_for_log(log: impl Fn() -> String, text: &str) -> Result<()> {
    eventually_within(MAX_RECOVERY_WAIT, "the log message", || {
        let log = log();
        ensure!(log.contains(text), "not {text:?} in:\n{log}");
        Ok(())
    })
}

/// The clock of a running agent jumps. The agent mends files in spite of that. After the clock is corrected, the agent
/// gets updates.
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

/// The clock is wrong when the agent starts. If its certificate or the controller's is not valid by this clock, the
/// agent logs this, and mends files from its stored state.
#[test]
fn f24_agent_reports_wrong_clock_and_keeps_state() -> Result<()> {
    run_for_jumps(&["+3h", "-3h", "+100d", "-100d"], |jump, fleet, mut web, clock| {
        // Certificates are valid from five minutes before their issue, for more than 3 hours and less than 100 days.
        let expected_error = match jump {
            "+3h" => None,
            "+100d" => Some("the certificate expired on"),
            _ => Some("is not valid before"),
        };
        web.kill()?;
        clock.set(jump)?;
        web.start_under(&clock.command)?;
        set_tier(&fleet, "started")?;
        match expected_error {
            Some(text) => wait_for_log(|| web.log(), text)?,
            None => wait_for_edit(&web, "started")?,
        }
        wait_for_mend(&web)?;
        clock.set("+0")?;
        wait_for_edit(&web, "started")
    })
}

/// The clock of a running controller jumps and is corrected. Then operators, connected hosts and new hosts can use the
/// controller.
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
    let list: Value = serde_json::from_str(&fleet.stemma(&["token", "list", "-o", "json"])?)?;
    let ids = list.as_array().into_iter().flatten().filter_map(|token| token["id"].as_str());
    Ok(ids.map(ToOwned::to_owned).collect())
}

#[test]
fn x04_f12_controller_keeps_records_when_clock_is_400_days_ahead() -> Result<()> {
    run_for_jumps(&["+400d"], |jump, mut fleet, web, clock| {
        fleet.stemma(&["token", "create", "--nodegroup", "prod/frontends", "--ttl", "1h"])?;
        let ids_before = join_token_ids(&fleet)?;
        ensure!(!ids_before.is_empty(), "the list has the created token");
        fleet.kill_controller()?;
        clock.set(jump)?;
        fleet.start_controller_under(&clock.command)?;
        wait_for_log(|| fleet.log(), "the clock jumped")?;
        // The admin's certificate is expired according to this clock, so the test connects to root's socket.
        let server = format!("unix:{}", fleet.data().join("admin.sock").display());
        let run_as_root = |arguments: &[&str]| succeed("stemma", [&["--server", &*server][..], arguments].concat());
        run_as_root(&["cert", "create", "admin", "--to", &fleet.dir().join("again").to_string_lossy()])?;
        let fleet_object = run_as_root(&["get", "--raw", "/v1/fleet"])?;
        ensure!(fleet_object.contains("clock.jumped"), "{fleet_object}");
        let metrics = run_as_root(&["get", "--raw", "/metrics"])?;
        ensure!(metrics.contains("\nstemma_clock_suspect 1\n"), "{metrics}");
        wait_for_mend(&web)?;

        clock.set("+0")?;
        eventually_within(MAX_RECOVERY_WAIT, "the certificate from before the jump is accepted", || set_tier(&fleet, "again"))?;
        wait_for_edit(&web, "again")?;
        ensure!(join_token_ids(&fleet)? == ids_before, "the list has the same join tokens");
        let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
        ensure!(metrics.contains("\nstemma_clock_suspect 0\n"), "{metrics}");
        fleet.join("web-2", "prod/frontends").map(drop)
    })
}

/// The clock is wrong when the controller starts. After the clock is corrected, operators, known hosts and new hosts
/// trust the controller.
#[test]
fn f24_controller_is_trusted_again_when_clock_is_corrected() -> Result<()> {
    run_for_jumps(&["+3h", "+3d", "-3h"], |jump, mut fleet, web, clock| {
        fleet.kill_controller()?;
        clock.set(jump)?;
        fleet.start_controller_under(&clock.command)?;
        wait_for_mend(&web)?;
        clock.set("+0")?;
        eventually_within(MAX_RECOVERY_WAIT, "an operator is served again", || set_tier(&fleet, "began"))?;
        wait_for_edit(&web, "began")?;
        fleet.join("web-2", "prod/frontends").map(drop)
    })
}
