//! A fresh controller whose admin listener takes plain HTTP on loopback, as clients without certificates need it.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use anyhow::Result;
use tempfile::TempDir;

use crate::fleet::Bound;
use crate::program::{Running, memory, succeed};

/// A controller without hosts.
pub struct Plain {
    controller: Running,
    /// Where it listens.
    pub bound: Bound,
    dir: TempDir,
}

impl Plain {
    /// Starts it on a store of its own.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let data = data(&dir);
        succeed("stemma-controller", ["init".as_ref(), "--data-dir".as_ref(), data.as_os_str()])?;
        Self::run(dir, &[])
    }

    fn run(dir: TempDir, words: &[OsString]) -> Result<Self> {
        let data = data(&dir);
        let listeners = ["--admin-listen", "http://127.0.0.1:0", "--agent-listen", "127.0.0.1:0"];
        let run = ["run".as_ref(), "--data-dir".as_ref(), data.as_os_str()];
        let controller =
            Running::start_under(words, "stemma-controller", run.into_iter().chain(listeners.map(OsStr::new)))?;
        let bound = serde_json::from_str(&controller.line()?)?;
        Ok(Self { controller, bound, dir })
    }

    /// Ends it, and starts it again on the same store. It listens elsewhere then.
    ///
    /// # Errors
    /// When it fails, or does not start.
    pub fn restarted(self) -> Result<Self> {
        self.restarted_under(&[])
    }

    /// The same by another program of the system, as [`Running::start_under`].
    ///
    /// # Errors
    /// As [`Plain::restarted`].
    pub fn restarted_under(self, words: &[OsString]) -> Result<Self> {
        let Self { controller, dir, .. } = self;
        controller.stop()?;
        Self::run(dir, words)
    }

    /// Its data directory.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        data(&self.dir)
    }

    /// How many bytes of memory it came to need at most, as the kernel counts them (`VmHWM`).
    ///
    /// # Errors
    /// When it is gone.
    pub fn most_memory(&self) -> Result<u64> {
        memory(self.controller.id(), "VmHWM:")
    }

    /// Ends it.
    ///
    /// # Errors
    /// When it fails.
    pub fn stop(self) -> Result<()> {
        self.controller.stop()
    }
}

fn data(dir: &TempDir) -> PathBuf {
    dir.path().join("data")
}
