//! Starts and stops the agent's systemd unit, if systemd runs this host and the package has installed the unit.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, Result, bail};

use crate::host::real::{AGENT_UNIT, APPLIED_TARGET, COMMAND_UNIT_PATTERNS, is_systemd_booted, live_owner};

/// Interval at which systemd is asked whether the agent has ended.
const STOP_INTERVAL: Duration = Duration::from_millis(100);

/// Returns whether systemd runs the host with this root directory and has the agent's unit.
fn is_installed(root: &Path) -> Result<bool> {
    Ok(is_systemd_booted(root) && systemctl(&["cat", AGENT_UNIT])?.is_ok())
}

/// Enables the agent's unit and starts it, if the unit is installed. Returns whether it is installed.
pub(super) fn start(root: &Path) -> Result<bool> {
    let has_unit = is_installed(root)?;
    if has_unit {
        run_systemctl(&["enable", AGENT_UNIT])?;
        // The unit is restarted, not started, because an agent that already runs uses the old identity.
        run_systemctl(&["restart", AGENT_UNIT])?;
    }
    Ok(has_unit)
}

/// Returns the id of the agent's process, if the unit is installed and runs.
pub(super) fn main_process(root: &Path) -> Result<Option<i32>> {
    Ok(if is_installed(root)? { show("MainPID")?.parse().ok().filter(|id| *id != 0) } else { None })
}

/// Stops the agent's unit and the commands that an agent of this unit has started, if the unit is installed. `agent` is the
/// id of the agent's process.
///
/// A program that a command has left in its unit continues. So does the command that runs this process, because it may be
/// the one that removes the package. The agent is then killed, because it would wait for this command. A command
/// that ignores SIGTERM is killed too.
pub(super) fn stop(root: &Path, agent: Option<i32>) -> Result<()> {
    if !is_installed(root)? {
        return Ok(());
    }
    let own_cgroup = fs::read_to_string("/proc/self/cgroup").context("/proc/self/cgroup cannot be read")?;
    // The agent waits for the commands that run, and begins no other. So they are stopped after the agent's stop has begun.
    run_systemctl(&["stop", "--no-block", AGENT_UNIT])?;
    // A host without an agent must not seem to be up to date. An error means that the target is not installed.
    systemctl(&["stop", APPLIED_TARGET])?.ok();
    loop {
        // The state is read before the commands are listed, so that none starts after the last list.
        let state = show("ActiveState")?;
        let (own, commands): (Vec<CommandUnit>, Vec<CommandUnit>) =
            command_units(agent)?.into_iter().filter(CommandUnit::is_running).partition(|unit| own_cgroup.contains(&unit.name));
        if !commands.is_empty() {
            let units: Vec<&str> = commands.iter().map(|unit| unit.name.as_str()).collect();
            // The units are ordered before the agent's, so a normal stop of them would wait until the agent has ended.
            run_systemctl(&[&["stop", "--job-mode=ignore-dependencies"], units.as_slice()].concat())?;
        }
        match state.as_str() {
            "inactive" => return reset_failed(agent),
            // The agent was killed, here or at the time limit of its stop.
            "failed" => {
                run_systemctl(&["reset-failed", AGENT_UNIT])?;
                return reset_failed(agent);
            }
            // An error means that the agent has just ended.
            _ if !own.is_empty() => drop(systemctl(&["kill", "--kill-who=main", "--signal=KILL", AGENT_UNIT])?),
            _ => {}
        }
        thread::sleep(STOP_INTERVAL);
    }
}

/// Disables the agent's unit, if it is installed.
pub(super) fn disable(root: &Path) -> Result<()> {
    if is_installed(root)? {
        run_systemctl(&["disable", AGENT_UNIT])?;
    }
    Ok(())
}

/// Returns a property of the agent's unit.
fn show(property: &str) -> Result<String> {
    run_systemctl(&["show", "--value", &format!("--property={property}"), AGENT_UNIT])
}

/// Resets the units of commands that have failed, so that they do not remain. A unit that has ended otherwise remains: the
/// agent of a package that is installed again records its end.
fn reset_failed(agent: Option<i32>) -> Result<()> {
    for unit in command_units(agent)?.iter().filter(|unit| unit.state == "failed") {
        // An error means that the unit does not exist any longer.
        systemctl(&["reset-failed", &unit.name])?.ok();
    }
    Ok(())
}

/// The unit of a command, and its state (`SubState`).
struct CommandUnit {
    name: String,
    state: String,
}

impl CommandUnit {
    /// Returns whether the command has not ended, also if it is being stopped.
    fn is_running(&self) -> bool {
        !matches!(self.state.as_str(), "exited" | "failed" | "dead")
    }
}

/// Returns the units of the commands that the agent with this process id or an agent that has ended started. Omits those
/// of a `once`.
fn command_units(agent: Option<i32>) -> Result<Vec<CommandUnit>> {
    let options = ["list-units", "--all", "--plain", "--full", "--no-legend", "--no-pager"];
    let list = run_systemctl(&[&options, COMMAND_UNIT_PATTERNS.as_slice()].concat())?;
    let is_of_agent = |unit: &CommandUnit| live_owner(&unit.name).is_none_or(|owner| i32::try_from(owner).ok() == agent);
    Ok(list.lines().filter_map(parse_listed).filter(is_of_agent).collect())
}

/// Parses a line of `systemctl list-units`: unit, load state, active state, state, description.
fn parse_listed(line: &str) -> Option<CommandUnit> {
    let mut words = line.split_whitespace();
    Some(CommandUnit { name: words.next()?.to_owned(), state: words.nth(2)?.to_owned() })
}

/// Runs systemctl with these arguments, and returns its output. If the command does not succeed, fails with its error
/// output.
fn run_systemctl(args: &[&str]) -> Result<String> {
    match systemctl(args)? {
        Ok(text) => Ok(text),
        Err(text) => bail!("`systemctl {}` failed: {text}; `journalctl -u {AGENT_UNIT}` says more", args.join(" ")),
    }
}

/// Runs systemctl with these arguments. Returns its output if the command succeeds, or else its error output.
fn systemctl(args: &[&str]) -> Result<Result<String, String>> {
    let output = Command::new("systemctl").args(args).stdin(Stdio::null()).output();
    let output = output.context("systemctl cannot be started")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    Ok(if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) })
}
