//! The verbs on the host itself. Each reads the ledger, does one thing, and wakes a running agent where that has
//! to know.

mod access;
mod converge;
mod explain;
mod join;
mod leave;
mod local;
mod membership;
mod service;
mod status;
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

/// The lock that one agent holds while it applies.
const LOCK: &str = "/var/lib/stemma-agent/apply/lock";

/// How a verb ended, as the program's exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: done.
    Done = 0,
    /// 1: it was done, and something failed.
    Failed = 1,
    /// 3: what was named is not there, or there is no desired state yet.
    NotFound = 3,
    /// 6: something would change.
    WouldChange = 6,
    /// 7: nothing failed, and tasks wait at a barrier.
    Waits = 7,
}

impl Exit {
    /// The number.
    #[must_use]
    pub const fn status(self) -> u8 {
        self as u8
    }
}

/// This host, from its root on.
struct Local {
    host: Rc<RealHost>,
    site: Site,
}

impl Local {
    fn open(root: &Path) -> Result<Self> {
        let host = Rc::new(RealHost::new(root).with_context(|| format!("--root {}", root.display()))?);
        let ledger = Ledger::open(host.clone())
            .context("the agent's state cannot be opened; run this as root, or with --root on an agent of your own")?;
        let site = Site::new(host.clone(), Rc::new(ledger));
        Ok(Self { host, site })
    }

    /// The lock of this host's state; `None` while another process holds it.
    fn lock(&self) -> Result<Option<OwnedFd>, HostError> {
        self.host.lock(&HostPath::own(LOCK))
    }

    /// Whether an agent runs on this host's state; `None` where its lock cannot be looked at.
    fn is_running(&self) -> Option<bool> {
        self.host.is_locked(&HostPath::own(LOCK)).ok()
    }
}

/// Writes a value to standard output as JSON for people and programs.
fn print_json(value: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

/// Writes to standard output; a reader that has gone is no error.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("standard output"),
    }
}
