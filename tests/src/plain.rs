//! A fresh controller whose admin listener takes plain HTTP on loopback, as clients without certificates need it.

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::fleet::Bound;
use crate::program::{Running, memory, succeed};

/// A controller without hosts.
pub struct Plain {
    controller: Running,
    /// Where it listens.
    pub bound: Bound,
    _dir: TempDir,
}

impl Plain {
    /// Starts it on a store of its own.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let data = dir.path().join("data");
        let data = data.to_str().context("a temporary directory's name is text")?;
        succeed("stemma-controller", ["init", "--data-dir", data])?;
        let listeners = ["--admin-listen", "http://127.0.0.1:0", "--agent-listen", "127.0.0.1:0"];
        let controller = Running::start("stemma-controller", ["run", "--data-dir", data].into_iter().chain(listeners))?;
        let bound = serde_json::from_str(&controller.line()?)?;
        Ok(Self { controller, bound, _dir: dir })
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
