//! Runs both halves of the agent in the test process: the network half and the root half (docs/trust.md). The agent
//! uses the files of a stored host, and its clock begins at the time of the recording, or later by an offset.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use stemma_agent::apply::ledger::Ledger;
use stemma_agent::apply::task::Site;
use stemma_agent::apply::verify::NodeVerifier;
use stemma_agent::apply::wake::WakeListener;
use stemma_agent::apply::worker::{ApplyWorker, StopWhen};
use stemma_agent::channel::pair_with_version;
use stemma_agent::config::AgentConfig;
use stemma_agent::host::real::RealHost;
use stemma_agent::host::{CommandResult, Dir, Host, HostCommand, HostError, HostPath, Pending};
use stemma_agent::identity::HostIdentity;
use stemma_agent::sync;
use stemma_wire::clock::Clock as _;
use stemma_wire::message::WireVersion;
use tokio::time::{sleep, timeout};

use crate::upgrade::stored_fleet::RecordedTime;

/// This machine as a host whose root is a directory of the test, and whose clock shows another time.
struct HostAtTime {
    machine: RealHost,
    time: RecordedTime,
}

/// Runs an agent on the files below `root` until `is_done` returns true. Continues for the duration `after`, and then
/// stops the agent. Stops the agent after `MAX_WAIT` in any case.
///
/// # Errors
/// If the agent cannot run, or if `is_done` does not return true in time.
pub(crate) fn run_until(root: &Path, time: RecordedTime, after: Duration, is_done: impl Fn() -> bool) -> Result<()> {
    run_with_version(WireVersion::CURRENT, root, time, after, is_done)
}

/// Like [`run_until`], but with an agent that speaks wire versions up to `newest`. The agent has two halves: the root
/// half applies tasks, and the network half speaks with the controller.
///
/// # Errors
///
/// If the agent cannot run, or if `is_done` does not return true in time.
pub(crate) fn run_with_version(
    newest: WireVersion,
    root: &Path,
    time: RecordedTime,
    after: Duration,
    is_done: impl Fn() -> bool,
) -> Result<()> {
    let host: Rc<dyn Host> = Rc::new(HostAtTime { machine: RealHost::new(root)?, time });
    let ledger = Rc::new(Ledger::open(host.clone())?);
    let identity = HostIdentity::load(&*host)?;
    let trust = NodeVerifier::new(&identity)?;
    let (sync_end, apply_end) = pair_with_version(newest);
    let site = Site::new(host.clone(), ledger);
    let worker =
        ApplyWorker::new(site, AgentConfig::load(&*host)?, Some(trust), apply_end, WakeListener::never(), StopWhen::OnRequest)?
            .with_file_watch();
    // The condition may be false again when the agent has disconnected.
    let is_met = Cell::new(false);
    let stop_signal = async {
        while !is_done() {
            sleep(Duration::from_millis(20)).await;
        }
        is_met.set(true);
        sleep(after).await;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            result = worker.run(with_deadline(stop_signal)) => result.context("the root half"),
            result = sync::run(host, identity, sync_end, Arc::new(time)) => match result {
                Err(error) => Err(error).context("the network half"),
            },
        }
    })?;
    if is_met.get() { Ok(()) } else { bail!("the condition did not become true in time") }
}

/// Waits for the future, for at most [`MAX_WAIT`](stemma_tests::program::MAX_WAIT).
async fn with_deadline(future: impl Future<Output = ()>) {
    let _whether_in_time = timeout(stemma_tests::program::MAX_WAIT, future).await;
}

impl Host for HostAtTime {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.time.unix_seconds())
    }

    fn root(&self) -> Result<Box<dyn Dir>, HostError> {
        self.machine.root()
    }

    fn dir(&self, path: &HostPath) -> Result<Option<Box<dyn Dir>>, HostError> {
        self.machine.dir(path)
    }

    fn run<'a>(&'a self, command: &'a HostCommand) -> Pending<'a, Result<CommandResult, HostError>> {
        self.machine.run(command)
    }

    fn system_path(&self, path: &HostPath) -> PathBuf {
        self.machine.system_path(path)
    }

    fn system_root(&self) -> PathBuf {
        self.machine.system_root()
    }

    fn user_id(&self, name: &str) -> Result<u32, HostError> {
        self.machine.user_id(name)
    }

    fn group_id(&self, name: &str) -> Result<u32, HostError> {
        self.machine.group_id(name)
    }

    fn user_and_group(&self) -> (u32, u32) {
        self.machine.user_and_group()
    }

    fn session_id(&self) -> u32 {
        self.machine.session_id()
    }

    fn random(&self) -> u64 {
        self.machine.random()
    }

    fn uptime(&self) -> Duration {
        self.machine.uptime()
    }
}
