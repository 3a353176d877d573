//! The agent's own unit, where systemd runs this host and the package put one there.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Is there when systemd runs this host (`sd_booted(3)`).
const SYSTEMD: &str = "/run/systemd/system";

/// The unit.
const UNIT: &str = "stemma-agent.service";

/// Whether systemd runs the host that the agent's paths are of.
pub(super) fn is_booted(root: &Path) -> bool {
    root == Path::new("/") && Path::new(SYSTEMD).exists()
}

/// Whether the agent of this host is started by systemd.
fn is_installed(root: &Path) -> Result<bool> {
    Ok(is_booted(root) && systemctl(&["cat", UNIT])?.is_none())
}

/// Starts the agent now and at each boot; whether there is a unit to start.
pub(super) fn start(root: &Path) -> Result<bool> {
    let there = is_installed(root)?;
    if there {
        must(&["enable", UNIT])?;
        // One that runs has another identity in hand.
        must(&["restart", UNIT])?;
    }
    Ok(there)
}

/// Ends the agent, for this boot and all others.
pub(super) fn stop(root: &Path) -> Result<()> {
    if is_installed(root)? {
        must(&["disable", "--now", UNIT])?;
    }
    Ok(())
}

/// Does it, or says what was answered.
fn must(words: &[&str]) -> Result<()> {
    match systemctl(words)? {
        None => Ok(()),
        Some(said) => bail!("`systemctl {}` failed: {said}; `journalctl -u {UNIT}` says more", words.join(" ")),
    }
}

/// What systemctl says when it does not succeed.
fn systemctl(words: &[&str]) -> Result<Option<String>> {
    let output = Command::new("systemctl").arg("--quiet").args(words).stdin(Stdio::null()).output();
    let output = output.context("systemctl cannot be started")?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok((!output.status.success()).then_some(said))
}
