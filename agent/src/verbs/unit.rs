//! Starts and stops the agent's systemd unit, if systemd runs this host and the package has installed the unit.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::host::real::{AGENT_UNIT, is_systemd_booted};

/// Returns whether systemd runs the host with this root directory and has the agent's unit.
fn is_installed(root: &Path) -> Result<bool> {
    Ok(is_systemd_booted(root) && systemctl(&["cat", AGENT_UNIT])?.is_none())
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

/// Stops the agent's unit and disables it, if the unit is installed.
pub(super) fn stop(root: &Path) -> Result<()> {
    if is_installed(root)? {
        run_systemctl(&["disable", "--now", AGENT_UNIT])?;
    }
    Ok(())
}

/// Runs systemctl with these arguments. If the command does not succeed, fails with its error output.
fn run_systemctl(args: &[&str]) -> Result<()> {
    match systemctl(args)? {
        None => Ok(()),
        Some(text) => bail!("`systemctl {}` failed: {text}; `journalctl -u {AGENT_UNIT}` says more", args.join(" ")),
    }
}

/// Runs systemctl with these arguments. Returns `None` if the command succeeds, or else its error output.
fn systemctl(args: &[&str]) -> Result<Option<String>> {
    let output = Command::new("systemctl").arg("--quiet").args(args).stdin(Stdio::null()).output();
    let output = output.context("systemctl cannot be started")?;
    let error_text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok((!output.status.success()).then_some(error_text))
}
