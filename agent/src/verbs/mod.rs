//! The commands of `stemma-agent` on the host itself. Each command reads the ledger (the agent's records on disk) and
//! does one thing. If a running agent must notice the change, the command wakes that agent.

mod access;
mod converge;
mod explain;
mod join;
mod leave;
mod local;
mod membership;
mod status;
mod unit;
mod waits;

pub use converge::{check, once, refill, run};
pub use explain::explain;
pub use join::join;
pub use leave::leave;
pub use local::{pause, resolve_unknown, resume};
pub use status::{status, words};

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::apply::ledger::Ledger;
use crate::apply::task::Site;
use crate::host::real::RealHost;
use crate::host::{HostError, HostPath};

/// Path of the lock file. `run`, `once` and `leave` hold its lock while they work, so only one process applies tasks.
const LOCK_PATH: &str = "/var/lib/stemma-agent/apply/lock";

/// The result of a command. The number of a variant is the program's exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentExit {
    /// 0: success.
    Done = 0,
    /// 1: the command ended with an error, found a failure on the host, or (`once`) did not apply all tasks.
    Failed = 1,
    /// 3: this host lacks the object that `explain` names, or `check` has no desired state or released task set.
    NotFound = 3,
    /// 4: a process that the agent's unit did not start uses the state, so `leave` removed nothing.
    InUse = 4,
    /// 6: `check` found a task that would change something, and nothing failed.
    WouldChange = 6,
    /// 7: after `once`, no task has failed, but tasks wait at a barrier.
    Waits = 7,
}

impl AgentExit {
    /// Returns the exit status as a number.
    #[must_use]
    pub const fn status(self) -> u8 {
        self as u8
    }
}

/// This host, with all of its paths below `--root`.
struct LocalHost {
    host: Rc<RealHost>,
    /// The host and its ledger (the agent's stored state), for the functions of the root half.
    site: Site,
}

impl LocalHost {
    /// Opens the host below a root directory, and its ledger (the agent's stored state). The ledger is created if it
    /// does not exist.
    fn open(root: &Path) -> Result<Self> {
        let host = Rc::new(RealHost::new(root).with_context(|| format!("--root {}", root.display()))?);
        let ledger = Ledger::open(host.clone())
            .context("the agent's state cannot be opened; run this as root, or with --root on an agent of your own")?;
        let site = Site::new(host.clone(), Rc::new(ledger));
        Ok(Self { host, site })
    }

    /// Acquires the lock of this host's state. Returns `None` if another process has the lock.
    fn lock(&self) -> Result<Option<OwnedFd>, HostError> {
        self.host.lock(&HostPath::from_static(LOCK_PATH))
    }

    /// Returns the id of the other process that has the lock of this host's state.
    fn lock_holder(&self) -> Result<Option<i32>, HostError> {
        self.host.lock_holder(&HostPath::from_static(LOCK_PATH))
    }

    /// Returns whether another process, such as the agent, has the lock of this host's state. Returns `None` if the
    /// lock cannot be checked.
    fn is_running(&self) -> Option<bool> {
        self.host.is_locked(&HostPath::from_static(LOCK_PATH)).ok()
    }
}

/// Prints a value as indented JSON.
fn print_json(value: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

/// Writes a text to standard output. A closed pipe, as in `stemma-agent status | head`, is not an error.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("standard output"),
    }
}
