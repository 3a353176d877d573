//! Both halves of the agent in this process, over a kept host at the time of then.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use stemma_agent::apply::ledger::Ledger;
use stemma_agent::apply::task::Site;
use stemma_agent::apply::verify::Trust;
use stemma_agent::apply::wake::WakeListener;
use stemma_agent::apply::worker::{ApplyWorker, Until};
use stemma_agent::channel::pair_up_to;
use stemma_agent::config::Config;
use stemma_agent::host::real::RealHost;
use stemma_agent::host::{Command, Dir, Finished, Host, HostError, HostPath, Pending};
use stemma_agent::identity::Identity;
use stemma_agent::sync;
use stemma_wire::clock::Clock as _;
use stemma_wire::message::WireVersion;
use tokio::time::{sleep, timeout};

use crate::upgrade::kept::Then;

/// This machine from a root on, at another time.
struct At {
    machine: RealHost,
    time: Then,
}

/// Runs an agent until `done` and so long after it, and stops it then.
///
/// # Errors
/// When it cannot run, or it is not `done` in time.
pub(crate) fn run_until(root: &Path, time: Then, after: Duration, done: impl Fn() -> bool) -> Result<()> {
    run_speaking(WireVersion::CURRENT, root, time, after, done)
}

/// The same of an agent that speaks wire versions up to this one.
///
/// # Errors
/// When it cannot run, or it is not `done` in time.
pub(crate) fn run_speaking(
    newest: WireVersion,
    root: &Path,
    time: Then,
    after: Duration,
    done: impl Fn() -> bool,
) -> Result<()> {
    let host: Rc<dyn Host> = Rc::new(At { machine: RealHost::new(root)?, time });
    let ledger = Rc::new(Ledger::open(host.clone())?);
    let identity = Identity::load(&*host)?;
    let trust = Trust::new(&identity)?;
    let (sync_end, apply_end) = pair_up_to(newest);
    let site = Site::new(host.clone(), ledger);
    let half =
        ApplyWorker::new(site, Config::load(&*host)?, Some(trust), apply_end, WakeListener::never(), Until::Stopped)?
            .watching();
    let is_done = async {
        while !done() {
            sleep(Duration::from_millis(20)).await;
        }
        sleep(after).await;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            ended = half.run(timeout_of(is_done)) => ended.context("the root half"),
            ended = sync::run(host, identity, sync_end, Arc::new(time)) => match ended {
                Err(error) => Err(error).context("the network half"),
            },
        }
    })?;
    if done() { Ok(()) } else { bail!("what was waited for did not come about") }
}

async fn timeout_of(done: impl Future<Output = ()>) {
    let _whether_in_time = timeout(stemma_tests::program::PATIENCE, done).await;
}

impl Host for At {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.time.unix_seconds())
    }

    fn root(&self) -> Result<Box<dyn Dir>, HostError> {
        self.machine.root()
    }

    fn dir(&self, path: &HostPath) -> Result<Option<Box<dyn Dir>>, HostError> {
        self.machine.dir(path)
    }

    fn run<'a>(&'a self, command: &'a Command) -> Pending<'a, Result<Finished, HostError>> {
        self.machine.run(command)
    }

    fn outside(&self, path: &HostPath) -> PathBuf {
        self.machine.outside(path)
    }

    fn outside_root(&self) -> PathBuf {
        self.machine.outside_root()
    }

    fn user(&self, name: &str) -> Result<u32, HostError> {
        self.machine.user(name)
    }

    fn group(&self, name: &str) -> Result<u32, HostError> {
        self.machine.group(name)
    }

    fn identity(&self) -> (u32, u32) {
        self.machine.identity()
    }

    fn session(&self) -> u32 {
        self.machine.session()
    }

    fn random(&self) -> u64 {
        self.machine.random()
    }

    fn uptime(&self) -> Duration {
        self.machine.uptime()
    }
}
