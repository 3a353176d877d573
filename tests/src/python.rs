//! Environments with Python's programs: the real clients, and what tries an API by its description.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

/// An environment with these packages below a directory, made once: tests of several processes want it at the same time.
///
/// # Errors
/// When it can't be made: no Python, no registry of packages.
pub fn environment(below: &str, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let venv = Path::new(below).join(name);
    let done = venv.join("installed");
    let turn = File::create(venv.with_extension("lock"))?;
    turn.lock()?;
    if fs::read_to_string(&done).is_ok_and(|installed| installed == packages.join("\n")) {
        return Ok(venv);
    }
    let made = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv).output()?;
    ensure!(made.status.success(), "python3 -m venv: {}", String::from_utf8_lossy(&made.stderr));
    let mut pip = Command::new(venv.join("bin/python"));
    let installed = pip.args(["-m", "pip", "install", "--quiet"]).args(packages).output()?;
    ensure!(installed.status.success(), "pip install: {}", String::from_utf8_lossy(&installed.stderr));
    fs::write(done, packages.join("\n"))?;
    Ok(venv)
}
