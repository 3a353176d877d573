//! Virtual environments for Python programs: the real clients, and the tools that test an API against its description.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use stemma_core::digest::{Hex, sha256};
use tempfile::TempDir;

/// Creates a virtual environment with these packages in the directory `parent`, unless it exists. Several processes may
/// request the same environment, because a file lock serializes them. The directory name contains a hash of the
/// packages. So two checkouts with different package versions can share a target directory.
///
/// # Errors
/// When the environment cannot be created, for example without Python or without access to a package registry.
pub fn environment(parent: &str, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let hash = sha256(packages.join("\n").as_bytes());
    let venv = Path::new(parent).join(format!("{name}-{}", Hex(&hash[..4])));
    let marker = venv.join("installed");
    let lock = File::create(venv.with_extension("lock"))?;
    lock.lock()?;
    if marker.exists() {
        return Ok(venv);
    }
    let venv_output = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv).output()?;
    ensure!(venv_output.status.success(), "python3 -m venv: {}", String::from_utf8_lossy(&venv_output.stderr));
    let mut pip = Command::new(venv.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages);
    let pip_output = pip.output()?;
    ensure!(pip_output.status.success(), "pip install: {}", String::from_utf8_lossy(&pip_output.stderr));
    // The marker is written last, so that an interrupted installation is repeated.
    fs::write(marker, packages.join("\n"))?;
    Ok(venv)
}

/// Path of the script that imports a Python client once, and then runs each command in a forked child process.
const FORK_SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/forked.py");

/// A directory that replaces the virtual environment in which a script finds its programs. The client in this directory
/// runs as a fork of a process that has already imported the client's modules. This saves time, because a short command
/// spends nearly all its time on imports.
pub struct ForkServer {
    dir: TempDir,
    server: Child,
}

impl ForkServer {
    /// Starts the process that imports a client of a virtual environment, and waits until the client is imported.
    /// `program` is the name of the client's command. `main` is the `module:function` that accepts the arguments.
    /// `preload` lists modules that the client would import later.
    ///
    /// # Errors
    /// When the client cannot be imported.
    pub fn start(venv: &Path, program: &str, main: &str, preload: &[&str]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let (bin, socket, python) = (dir.path().join("bin"), dir.path().join("socket"), venv.join("bin/python"));
        fs::create_dir(&bin)?;
        let mut command = Command::new(&python);
        command.arg(FORK_SERVER).args(["serve".as_ref(), socket.as_os_str()]).args([program, main]).args(preload);
        // The import may read personal settings. It must not read those of the user who runs the tests.
        command.env("HOME", dir.path());
        // The server ends when its standard input closes. That also happens when this process ends.
        let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().context("standard output is a pipe")?).read_line(&mut line)?;
        ensure!(line == "ready\n", "{program} can't be imported");
        // Python finds its environment by the path of its program. A symbolic link has another path, so a script starts
        // Python.
        let python = python.display();
        write_script(&bin.join("python"), &format!("exec '{python}' \"$@\""))?;
        let run = format!("exec '{python}' -I -S '{FORK_SERVER}' run '{}' \"$@\"", socket.display());
        write_script(&bin.join(program), &run)?;
        symlink(venv.join("bin/pip"), bin.join("pip"))?;
        Ok(Self { dir, server })
    }

    /// Returns the directory. Its subdirectory `bin` contains the programs.
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

/// Writes an executable shell script of one line.
fn write_script(path: &Path, line: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{line}\n"))?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}
