//! The life of a controller: the order in which it opens its parts, the threads on which they run, and the order in
//! which they stop.
//!
//! ```text
//!   main thread                       thread `agents`                 thread `reconcile`
//!   ───────────                       ───────────────                 ──────────────────
//!   admin listener, registry, cache,  agents' listener,               resolving, releasing,
//!   renewals, housekeeping            waiting check-ins, silences     signing
//! ```
//!
//! Agents are served by a separate thread and runtime. So operators get responses even if ten thousand agents reconnect
//! at the same time, and a request of an operator never delays the check-in of an agent.

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
use stemma_wire::serve::RejectionCounter;
use stemma_wire::tls::FleetName;
use tokio::sync::watch;

use crate::api::EventStreams;
use crate::blobs::BlobStore;
use crate::ca::files::FileError;
use crate::ca::{Authority, CaError};
use crate::config::{Config, Url};
use crate::desired::DesiredTable;
use crate::enrol::Enrolment;
use crate::identity::Identities;
use crate::init::Layout;
use crate::metrics::Metrics;
use crate::reconcile::Reconciler;
use crate::registry::Registry;
use crate::registry::intake::HostIntake;
use crate::socket_activation::ActivatedSockets;
use crate::store::{OpenError, StoreError};

pub use start::{Options, PublishMode, start, start_on_sockets};

/// The reason why a controller does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The authority (the keys of the fleet's issuers) exists, but the store does not.
    #[error(
        "the store {} is missing, although the fleet's authority exists: restore a backup (docs/backup.md), or put back a copy of {} that was made \
         while the controller was stopped",
        path.display(), directory.display()
    )]
    StoreMissing {
        /// The path of the missing store.
        path: PathBuf,
        /// The data directory.
        directory: PathBuf,
    },
    /// The content of the store cannot be read.
    #[error("the store cannot be read")]
    Store(#[from] StoreError),
    /// The store contains no valid record of the fleet. `stemma-controller init` writes this record.
    #[error("{}: it contains no record of a fleet: it was not created by `stemma-controller init`", path.display())]
    NoFleet {
        /// The path of the store.
        path: PathBuf,
    },
    /// The keys or certificates of the fleet cannot be used.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// A file in the data directory cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A server name in the record of the fleet is invalid.
    #[error("the names that were given to `init` are invalid")]
    Names(#[from] crate::ca::BadServerName),
    /// An entry of `extra_standard_traits` in the configuration is not a valid trait name.
    #[error(
        "extra_standard_traits[{index}]: {name:?} is not a valid trait name: write a capital letter, then capitals, digits and '_', at \
         most 255 characters in all"
    )]
    ExtraTrait {
        /// The index of the entry, from 0.
        index: usize,
        /// The invalid name, cut to 64 characters.
        name: String,
    },
    /// The address of a listener cannot be bound.
    #[error("{field} {address}: {}; {advice}", os_error_text(source))]
    Bind {
        /// The configuration field of the listener.
        field: &'static str,
        /// The address.
        address: SocketAddr,
        /// The advice to the user.
        advice: &'static str,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// TLS rejected the controller's own certificates.
    #[error("the certificates of the data directory cannot be used")]
    Tls(#[from] rustls::Error),
    /// A thread or its runtime cannot be started: that of the agents' listener, or that of the reconciler.
    #[error("the thread for agents cannot be started")]
    Thread(#[source] std::io::Error),
}

/// Describes an error of the operating system without the address, because the message already contains the address.
fn os_error_text(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "the port is in use by another program".to_owned(),
        std::io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
        std::io::ErrorKind::PermissionDenied => "binding it is not permitted (ports below 1024 are root's)".to_owned(),
        _ => error.to_string(),
    }
}

/// The components of a controller. Its listeners and background tasks share them.
pub struct Components {
    /// The paths in the data directory.
    pub layout: Layout,
    /// The fleet's name.
    pub fleet: FleetName,
    /// The registry, which reads and writes objects.
    pub registry: Arc<Registry>,
    /// The reconciler, which computes and releases the desired states of nodes.
    pub reconciler: Arc<Reconciler>,
    /// The table of the desired state of each node.
    pub desired: Arc<DesiredTable>,
    /// The certificates of agents: which were issued, and which of these are revoked.
    pub identities: Arc<Identities>,
    /// The intake, which stores the reports of hosts.
    pub intake: Arc<HostIntake>,
    /// The store of blobs: the files and scripts of releases.
    pub blobs: Arc<BlobStore>,
    /// The enrolment, which enrols agents and renews their certificates.
    pub enrolment: Arc<Enrolment>,
    /// The fleet's authority, which issues certificates.
    pub authority: Arc<Authority>,
    /// The metrics of the controller.
    pub metrics: Arc<Metrics>,
    /// The counts of refused requests and connections, by reason.
    pub rejected: Arc<RejectionCounter>,
    /// The clock that all components use.
    pub clock: Arc<dyn Clock>,
}

/// A running controller.
pub struct Controller {
    components: Arc<Components>,
    config: Config,
    admin: SocketAddr,
    agents: SocketAddr,
    stop: watch::Sender<bool>,
    streams: EventStreams,
    threads: Vec<thread::Worker>,
    admin_task: tokio::task::JoinHandle<()>,
    tasks: tasks::BackgroundTasks,
}

/// The content of the JSON line that is printed when the controller is ready. It contains the URLs at which clients
/// reach the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Announcement {
    /// The URL of the admin listener.
    pub admin: String,
    /// The URL of the agents' listener.
    pub agents: String,
    /// The path of the file with the fleet's root certificate.
    pub ca: PathBuf,
}

impl Controller {
    /// Returns the components that the listeners and background tasks share.
    pub fn components(&self) -> &Arc<Components> {
        &self.components
    }

    /// Returns the address of the admin listener.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// Returns the address of the agents' listener.
    pub fn agents_address(&self) -> SocketAddr {
        self.agents
    }

    /// Returns the content of the line that `run` prints when the controller is ready.
    pub fn announcement(&self) -> Announcement {
        let layout = &self.components.layout;
        let directory = std::path::absolute(layout.directory()).unwrap_or_else(|_| layout.directory().to_owned());
        Announcement {
            admin: self.config.admin.url(self.admin).to_string(),
            agents: Url::for_agents(self.agents).to_string(),
            ca: Layout::new(&directory).root(),
        }
    }

    /// Waits until a necessary background task fails, for example the task that follows the store. Returns the reason.
    /// The controller must not continue after that.
    pub async fn wait_for_failure(&mut self) -> String {
        self.tasks.wait_for_failure().await
    }

    /// Stops the controller in this order: answers waiting check-ins, closes event streams, refuses new connections,
    /// finishes running requests, and ends the threads and background tasks.
    pub async fn stop(self) {
        self.components.desired.stop();
        self.streams.close();
        let _ignored = self.stop.send(true);
        if self.admin_task.await.is_err() {
            log::error!("the admin listener did not end by itself");
        }
        for thread in self.threads {
            thread.join().await;
        }
        self.tasks.abort_all().await;
    }
}

/// Runs `stemma-controller run`: starts the controller, announces the listeners, and serves until a signal arrives or a
/// necessary background task fails.
///
/// # Errors
/// Fails with the reason why the controller did not start or could not continue.
pub async fn run(config: Config, sockets: ActivatedSockets) -> anyhow::Result<()> {
    // The signal handlers are installed first, so that a signal during the start also stops the controller in the right
    // order.
    let signal = wait_for_signal()?;
    let mut controller = start_on_sockets(config, Options::default(), sockets).await?;
    announce(&controller.announcement())?;
    let failure = tokio::select! {
        name = signal => {
            log::info!(cause = name; "stopping");
            None
        }
        failure = controller.wait_for_failure() => Some(failure),
    };
    // systemd is notified at once that the controller stops. Otherwise systemd would still expect watchdog
    // notifications. An error is ignored, because the controller stops in any case.
    let _not_under_systemd = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    controller.stop().await;
    match failure {
        None => Ok(()),
        Some(failure) => anyhow::bail!("{failure}"),
    }
}

/// Prints the announcement as one JSON line on standard output, for programs. Notifies systemd that the controller is
/// ready, with the same line as the status.
fn announce(announcement: &Announcement) -> anyhow::Result<()> {
    let line = serde_json::to_string(announcement)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush())?;
    log::info!(address:% = announcement.admin; "serving operators");
    log::info!(address:% = announcement.agents; "serving agents");
    sd_notify::notify(&[sd_notify::NotifyState::Ready, sd_notify::NotifyState::Status(&line)])?;
    Ok(())
}

/// Installs the signal handlers. Returns a future that waits for SIGTERM or SIGINT, and returns the name of the signal.
fn wait_for_signal() -> anyhow::Result<impl Future<Output = &'static str>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}
