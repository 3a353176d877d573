//! Environments with Python's programs: the real clients, and what tries an API by its description.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use stemma_core::digest::{Hex, sha256};
use tempfile::TempDir;

/// An environment with these packages below a directory, made once: tests of several processes want it at the same time. Its name has what
/// is installed in it, so that two checkouts that share a target directory and differ in their versions do not take each other's away.
///
/// # Errors
/// When it can't be made: no Python, no registry of packages.
pub fn environment(below: &str, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let key = sha256(packages.join("\n").as_bytes());
    let venv = Path::new(below).join(format!("{name}-{}", Hex(&key[..4])));
    let done = venv.join("installed");
    let turn = File::create(venv.with_extension("lock"))?;
    turn.lock()?;
    if done.exists() {
        return Ok(venv);
    }
    let made = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv).output()?;
    ensure!(made.status.success(), "python3 -m venv: {}", String::from_utf8_lossy(&made.stderr));
    let mut pip = Command::new(venv.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages);
    let installed = pip.output()?;
    ensure!(installed.status.success(), "pip install: {}", String::from_utf8_lossy(&installed.stderr));
    // Last: one that was cut off before is made again.
    fs::write(done, packages.join("\n"))?;
    Ok(venv)
}

/// What forks the commands: it imports a client once, and each command is a child of it.
const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/forked.py");

/// A directory that stands for an environment where a script looks for its programs. One client in it starts as a fork of a process that
/// has imported it already: nearly all of the time of a short command are the imports.
pub struct Forked {
    dir: TempDir,
    server: Child,
}

impl Forked {
    /// Imports a client of an environment: the name of its command, its `module:function` that takes the arguments, and modules that it imports later.
    ///
    /// # Errors
    /// When it can't be imported.
    pub fn start(venv: &Path, program: &str, main: &str, also: &[&str]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let (bin, socket, python) = (dir.path().join("bin"), dir.path().join("socket"), venv.join("bin/python"));
        fs::create_dir(&bin)?;
        let mut command = Command::new(&python);
        command.arg(SERVER).args(["serve".as_ref(), socket.as_os_str()]).args([program, main]).args(also);
        // What is read of a person's own settings at an import is not the settings of whoever runs the tests.
        command.env("HOME", dir.path());
        // It ends when its standard input does, as that does when this process ends.
        let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().context("standard output is a pipe")?).read_line(&mut line)?;
        ensure!(line == "ready\n", "{program} can't be imported");
        // Python finds its environment beside the name that it is started by, so a link would lose it.
        let python = python.display();
        write_script(&bin.join("python"), &format!("exec '{python}' \"$@\""))?;
        let run = format!("exec '{python}' -I -S '{SERVER}' run '{}' \"$@\"", socket.display());
        write_script(&bin.join(program), &run)?;
        symlink(venv.join("bin/pip"), bin.join("pip"))?;
        Ok(Self { dir, server })
    }

    /// The directory, which has the programs in `bin`.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        drop(self.server.stdin.take());
        let _ended = self.server.wait();
    }
}

fn write_script(path: &Path, line: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{line}\n"))?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}
