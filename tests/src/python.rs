//! Virtual environments for Python programs: the real clients, and the tools that test an API against its description.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use stemma_core::digest::{Hex, sha256};
use tempfile::TempDir;

/// Creates a virtual environment with these packages below a directory, unless it exists. A lock lets several processes
/// request it at the same time. Its name contains a hash of the packages, so that two checkouts with different versions
/// can share a target directory.
///
/// # Errors
/// When it cannot be created, for example without Python or without access to a package registry.
pub fn environment(below: &str, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let key = sha256(packages.join("\n").as_bytes());
    let venv = Path::new(below).join(format!("{name}-{}", Hex(&key[..4])));
    let marker = venv.join("installed");
    let lock = File::create(venv.with_extension("lock"))?;
    lock.lock()?;
    if marker.exists() {
        return Ok(venv);
    }
    let created = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv).output()?;
    ensure!(created.status.success(), "python3 -m venv: {}", String::from_utf8_lossy(&created.stderr));
    let mut pip = Command::new(venv.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages);
    let installed = pip.output()?;
    ensure!(installed.status.success(), "pip install: {}", String::from_utf8_lossy(&installed.stderr));
    // Written last, so that an interrupted installation is repeated.
    fs::write(marker, packages.join("\n"))?;
    Ok(venv)
}

/// The script that forks the commands. It imports a client once, and each command is a child process of it.
const FORK_SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/forked.py");

/// A directory that replaces the virtual environment in which a script looks for its programs. One client in it starts
/// as a fork of a process that has already imported it, because a short command spends nearly all its time on imports.
pub struct ForkServer {
    dir: TempDir,
    server: Child,
}

impl ForkServer {
    /// Imports a client of a virtual environment. `program` is the name of its command, `main` the `module:function`
    /// that takes the arguments, and `preload` the modules that it imports later.
    ///
    /// # Errors
    /// When it cannot be imported.
    pub fn start(venv: &Path, program: &str, main: &str, preload: &[&str]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let (bin, socket, python) = (dir.path().join("bin"), dir.path().join("socket"), venv.join("bin/python"));
        fs::create_dir(&bin)?;
        let mut command = Command::new(&python);
        command.arg(FORK_SERVER).args(["serve".as_ref(), socket.as_os_str()]).args([program, main]).args(preload);
        // The import may read personal settings. It must not read those of the user who runs the tests.
        command.env("HOME", dir.path());
        // The server ends when its standard input closes, which happens when this process ends.
        let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().context("standard output is a pipe")?).read_line(&mut line)?;
        ensure!(line == "ready\n", "{program} can't be imported");
        // Python finds its environment by the path of the program, so a symbolic link would not find it.
        let python = python.display();
        write_script(&bin.join("python"), &format!("exec '{python}' \"$@\""))?;
        let run = format!("exec '{python}' -I -S '{FORK_SERVER}' run '{}' \"$@\"", socket.display());
        write_script(&bin.join(program), &run)?;
        symlink(venv.join("bin/pip"), bin.join("pip"))?;
        Ok(Self { dir, server })
    }

    /// Returns the directory. Its programs are in `bin`.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for ForkServer {
    fn drop(&mut self) {
        drop(self.server.stdin.take());
        let _ended = self.server.wait();
    }
}

fn write_script(path: &Path, line: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{line}\n"))?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}
