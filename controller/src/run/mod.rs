//! A controller from its start to its end: what is opened, in which order, on which threads, and how it stops.
//!
//! ```text
//!   main thread                       thread `agents`                 thread `reconcile`
//!   ───────────                       ───────────────                 ──────────────────
//!   admin listener, registry, cache,  the agents' listener,           resolving, releasing,
//!   renewals, housekeeping            parked check-ins, silences      signing
//! ```
//!
//! Agents have a thread and a runtime of their own, so that ten thousand of them coming back at once leave operators
//! an answer, and a request of an operator never stands between an agent and its heartbeat.

mod admin;
mod keys;
mod start;
mod tasks;
mod thread;
mod watchdog;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use stemma_wire::clock::Clock;
use stemma_wire::serve::Rejected;
use stemma_wire::tls::Fleet;
use tokio::sync::watch;

use crate::api::Streams;
use crate::blobs::Blobs;
use crate::ca::files::FileError;
use crate::ca::{Authority, CaError};
use crate::config::{Config, Url};
use crate::desired::DesiredTable;
use crate::enrol::Enrolment;
use crate::handed::Handed;
use crate::identity::Identities;
use crate::init::Layout;
use crate::metrics::Metrics;
use crate::reconcile::Reconciler;
use crate::registry::Registry;
use crate::registry::intake::HostIntake;
use crate::store::{OpenError, StoreError};

pub use start::{Options, Publishing, start, start_on};

/// Why a controller does not start. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The authority is there and the store is not.
    #[error(
        "the store {} is gone, and the fleet's authority is there: restore a backup (docs/backup.md) or put back a copy of {} that was made \
         while the controller was stopped",
        path.display(), directory.display()
    )]
    StoreGone {
        /// Where it was looked for.
        path: PathBuf,
        /// The data directory.
        directory: PathBuf,
    },
    /// What the store holds.
    #[error("the store cannot be read")]
    Store(#[from] StoreError),
    /// What `init` wrote about the fleet is not there.
    #[error("{}: it does not say whose fleet it holds: it was not made by `stemma-controller init`", path.display())]
    NoFleet {
        /// The store.
        path: PathBuf,
    },
    /// Keys and certificates.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// A name in the record of the fleet.
    #[error("the names that `init` was given")]
    Names(#[from] crate::ca::BadServerName),
    /// What the configuration adds to the standard traits.
    #[error(
        "extra_standard_traits[{index}]: {name:?} is no name of a trait: write a capital letter and then capitals, digits and '_', at \
         most 255 characters together"
    )]
    ExtraTrait {
        /// Which of its entries, from 0.
        index: usize,
        /// What stands there, cut at 64 characters.
        name: String,
    },
    /// An address is not to be had.
    #[error("{field} {address}: {}; {advice}", what(source))]
    Bind {
        /// Which listener.
        field: &'static str,
        /// What was to be bound.
        address: SocketAddr,
        /// What to do.
        advice: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// TLS refused our own certificates.
    #[error("the certificates of the data directory cannot be used")]
    Tls(#[from] rustls::Error),
    /// The thread or runtime for agents.
    #[error("the thread for agents cannot be started")]
    Thread(#[source] std::io::Error),
}

/// What the system said, without the address that stands before it already.
fn what(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "the port is in use by another program".to_owned(),
        std::io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
        std::io::ErrorKind::PermissionDenied => "binding it is not permitted (ports below 1024 are root's)".to_owned(),
        _ => error.to_string(),
    }
}

/// What a controller is made of, for those who serve and decide.
pub struct Parts {
    /// Where its things stand.
    pub layout: Layout,
    /// The fleet's name.
    pub fleet: Fleet,
    /// Writes and reads.
    pub registry: Arc<Registry>,
    /// What decides it.
    pub reconciler: Arc<Reconciler>,
    /// What nodes are to be told.
    pub desired: Arc<DesiredTable>,
    /// Which certificates are good.
    pub identities: Arc<Identities>,
    /// Keeps what hosts say.
    pub intake: Arc<HostIntake>,
    /// Bodies of files.
    pub blobs: Arc<Blobs>,
    /// Joining and renewing.
    pub enrolment: Arc<Enrolment>,
    /// The fleet's authority.
    pub authority: Arc<Authority>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What is refused.
    pub rejected: Arc<Rejected>,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// A controller that runs.
pub struct Controller {
    parts: Arc<Parts>,
    config: Config,
    admin: SocketAddr,
    agents: SocketAddr,
    stop: watch::Sender<bool>,
    streams: Streams,
    threads: Vec<thread::Worker>,
    admin_task: tokio::task::JoinHandle<()>,
    tasks: tasks::Tasks,
}

/// What is said when a controller is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Announcement {
    /// The admin listener's URL.
    pub admin: String,
    /// The agents' listener's URL.
    pub agents: String,
    /// The file with the fleet root.
    pub ca: PathBuf,
}

impl Controller {
    /// What it is made of.
    pub fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    /// Where operators are served.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// Where agents are served.
    pub fn agents_address(&self) -> SocketAddr {
        self.agents
    }

    /// What was bound, as `run` prints it.
    pub fn announcement(&self) -> Announcement {
        let layout = &self.parts.layout;
        let directory = std::path::absolute(layout.directory()).unwrap_or_else(|_| layout.directory().to_owned());
        Announcement {
            admin: self.config.admin.url(self.admin).to_string(),
            agents: Url::of_agents(self.agents).to_string(),
            ca: Layout::new(&directory).root(),
        }
    }

    /// Ends when something without which it must not go on has failed: the store can no longer be followed.
    pub async fn failed(&mut self) -> String {
        self.tasks.failed().await
    }

    /// Stops: no new connections, parked check-ins answered, requests in hand ended, then everything else.
    pub async fn stop(self) {
        self.parts.desired.stop();
        self.streams.end();
        let _nobody_may_listen = self.stop.send(true);
        if self.admin_task.await.is_err() {
            log::error!("the admin listener did not end by itself");
        }
        for thread in self.threads {
            thread.join().await;
        }
        self.tasks.end().await;
    }
}

/// `stemma-controller run`: starts, says so, and serves until a signal.
///
/// # Errors
/// Why it did not start, or why it could not go on.
pub async fn run(config: Config, handed: Handed) -> anyhow::Result<()> {
    // Before anybody is told that it runs: a signal that comes with the ready line, or earlier, ends it in order.
    let signal = signals()?;
    let mut controller = start_on(config, Options::default(), handed).await?;
    announce(&controller.announcement())?;
    let failure = tokio::select! {
        name = signal => {
            log::info!(cause = name; "stopping");
            None
        }
        failure = controller.failed() => Some(failure),
    };
    // Told at once: systemd then waits for the end and not for the next watchdog.
    let _not_under_systemd = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    controller.stop().await;
    match failure {
        None => Ok(()),
        Some(failure) => anyhow::bail!("{failure}"),
    }
}

/// One JSON line on standard output for programs, and the same to systemd as its status.
fn announce(announcement: &Announcement) -> anyhow::Result<()> {
    let line = serde_json::to_string(announcement)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush())?;
    log::info!(address:% = announcement.admin; "serving operators");
    log::info!(address:% = announcement.agents; "serving agents");
    sd_notify::notify(&[sd_notify::NotifyState::Ready, sd_notify::NotifyState::Status(&line)])?;
    Ok(())
}

/// The name of the signal that ends the program.
fn signals() -> anyhow::Result<impl Future<Output = &'static str>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}
