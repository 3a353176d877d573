//! A new controller with an admin listener for plain HTTP on loopback, for clients that have no certificate.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use anyhow::Result;
use tempfile::TempDir;

use crate::fleet::ListenerAddresses;
use crate::program::{RunningProgram, memory_bytes, succeed};

/// A controller without hosts. Its listener for operators uses HTTP without TLS.
pub struct PlainController {
    controller: RunningProgram,
    /// The addresses on which the controller listens.
    pub addresses: ListenerAddresses,
    dir: TempDir,
}

impl PlainController {
    /// Starts a controller with a new, empty store.
    ///
    /// # Errors
    /// When the controller does not start.
    pub fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let data = data_path(&dir);
        succeed("stemma-controller", ["init".as_ref(), "--data-dir".as_ref(), data.as_os_str()])?;
        Self::start_in(dir, &[])
    }

    /// Starts a controller with the store in a directory. If `words` is not empty, it is the command line of a program
    /// that executes the controller.
    fn start_in(dir: TempDir, words: &[OsString]) -> Result<Self> {
        let data = data_path(&dir);
        let listeners = ["--admin-listen", "http://127.0.0.1:0", "--agent-listen", "127.0.0.1:0"];
        let run = ["run".as_ref(), "--data-dir".as_ref(), data.as_os_str()];
        let controller =
            RunningProgram::start_under(words, "stemma-controller", run.into_iter().chain(listeners.map(OsStr::new)))?;
        let listener_addresses = serde_json::from_str(&controller.next_line()?)?;
        Ok(Self { controller, addresses: listener_addresses, dir })
    }

    /// Stops the controller and starts it again with the same store, at another address.
    ///
    /// # Errors
    /// When the controller does not end cleanly, or does not start.
    pub fn restart(self) -> Result<Self> {
        self.restart_under(&[])
    }

    /// Same as [`PlainController::restart`], through another program, as [`RunningProgram::start_under`] does.
    ///
    /// # Errors
    /// As [`PlainController::restart`].
    pub fn restart_under(self, words: &[OsString]) -> Result<Self> {
        let Self { controller, dir, .. } = self;
        controller.stop()?;
        Self::start_in(dir, words)
    }

    /// Returns the controller's data directory.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        data_path(&self.dir)
    }

    /// Returns the peak memory of the controller in bytes, as the kernel counts it (`VmHWM`).
    ///
    /// # Errors
    /// When the controller is not running.
    pub fn peak_memory_bytes(&self) -> Result<u64> {
        memory_bytes(self.controller.id(), "VmHWM:")
    }

    /// Stops the controller.
    ///
    /// # Errors
    /// When the controller does not end cleanly.
    pub fn stop(self) -> Result<()> {
        self.controller.stop()
    }
}

fn data_path(dir: &TempDir) -> PathBuf {
    dir.path().join("data")
}
