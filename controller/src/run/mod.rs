//! The life of a controller: what it opens, in which order, on which threads, and how it stops.
//!
//! ```text
//!   main thread                       thread `agents`                 thread `reconcile`
//!   ───────────                       ───────────────                 ──────────────────
//!   admin listener, registry, cache,  agents' listener,               resolving, releasing,
//!   renewals, housekeeping            waiting check-ins, silences     signing
//! ```
//!
//! Agents are served by a thread and runtime of their own. So operators get responses even while ten thousand agents
//! reconnect at once, and a request of an operator never delays the check-in of an agent.

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

pub use start::{Options, Publishing, start, start_on_sockets};

/// The reasons why a controller does not start. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The authority exists, but the store does not.
    #[error(
        "the store {} is missing, although the fleet's authority exists: restore a backup (docs/backup.md), or put back a copy of {} that was made \
         while the controller was stopped",
        path.display(), directory.display()
    )]
    StoreGone {
        /// The path of the missing store.
        path: PathBuf,
        /// The data directory.
        directory: PathBuf,
    },
    /// The content of the store cannot be read.
    #[error("the store cannot be read")]
    Store(#[from] StoreError),
    /// The store does not contain the record of the fleet that `init` writes.
    #[error("{}: it contains no record of a fleet: it was not created by `stemma-controller init`", path.display())]
    NoFleet {
        /// The path of the store.
        path: PathBuf,
    },
    /// The keys or certificates of the fleet cannot be used.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// A file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A name in the record of the fleet is invalid.
    #[error("the names that were given to `init` are invalid")]
    Names(#[from] crate::ca::BadServerName),
    /// A configured name is not a valid name of a standard trait.
    #[error(
        "extra_standard_traits[{index}]: {name:?} is not a valid trait name: write a capital letter, then capitals, digits and '_', at \
         most 255 characters in all"
    )]
    ExtraTrait {
        /// The index of the entry, from 0.
        index: usize,
        /// The name, cut at 64 characters.
        name: String,
    },
    /// A listener's address cannot be bound.
    #[error("{field} {address}: {}; {advice}", os_error_text(source))]
    Bind {
        /// The configuration field of the listener.
        field: &'static str,
        /// The address.
        address: SocketAddr,
        /// What to do.
        advice: &'static str,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// TLS rejected the controller's own certificates.
    #[error("the certificates of the data directory cannot be used")]
    Tls(#[from] rustls::Error),
    /// The thread or runtime for agents cannot be started.
    #[error("the thread for agents cannot be started")]
    Thread(#[source] std::io::Error),
}

/// Describes an error of the operating system without the address, which the message contains already.
fn os_error_text(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "the port is in use by another program".to_owned(),
        std::io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
        std::io::ErrorKind::PermissionDenied => "binding it is not permitted (ports below 1024 are root's)".to_owned(),
        _ => error.to_string(),
    }
}

/// The components of a controller, which its listeners and background tasks share.
pub struct Components {
    /// The paths in the data directory.
    pub layout: Layout,
    /// The fleet's name.
    pub fleet: FleetName,
    /// Reads and writes objects.
    pub registry: Arc<Registry>,
    /// Decides the desired state of the nodes.
    pub reconciler: Arc<Reconciler>,
    /// The desired state of each node.
    pub desired: Arc<DesiredTable>,
    /// The valid certificates of agents.
    pub identities: Arc<Identities>,
    /// Stores what hosts report.
    pub intake: Arc<HostIntake>,
    /// The file bodies.
    pub blobs: Arc<BlobStore>,
    /// Enrols agents and renews their certificates.
    pub enrolment: Arc<Enrolment>,
    /// The fleet's authority.
    pub authority: Arc<Authority>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Counts refused requests.
    pub rejected: Arc<RejectionCounter>,
    /// The clock.
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

/// The content of the line that is printed when the controller is ready: how clients reach it.
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
    /// Returns the components.
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

    /// Returns the bound listeners, as `run` prints them.
    pub fn announcement(&self) -> Announcement {
        let layout = &self.components.layout;
        let directory = std::path::absolute(layout.directory()).unwrap_or_else(|_| layout.directory().to_owned());
        Announcement {
            admin: self.config.admin.url(self.admin).to_string(),
            agents: Url::for_agents(self.agents).to_string(),
            ca: Layout::new(&directory).root(),
        }
    }

    /// Waits until a background task fails without which the controller must not continue, for example the one that
    /// follows the store. Returns the reason.
    pub async fn wait_for_failure(&mut self) -> String {
        self.tasks.wait_for_failure().await
    }

    /// Stops the controller: refuses new connections, answers waiting check-ins, finishes running requests, then ends
    /// everything else.
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
        self.tasks.end().await;
    }
}

/// Runs `stemma-controller run`: starts, announces the listeners, and serves until a signal.
///
/// # Errors
/// The reason why the controller did not start or could not continue.
pub async fn run(config: Config, sockets: ActivatedSockets) -> anyhow::Result<()> {
    // The handlers are installed first, so that a signal during the start also stops the controller in order.
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
    // systemd is told at once that the controller stops. Otherwise it would still expect watchdog pings.
    let _not_under_systemd = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    controller.stop().await;
    match failure {
        None => Ok(()),
        Some(failure) => anyhow::bail!("{failure}"),
    }
}

/// Prints one JSON line on standard output for programs, and sends the same line to systemd as the status.
fn announce(announcement: &Announcement) -> anyhow::Result<()> {
    let line = serde_json::to_string(announcement)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush())?;
    log::info!(address:% = announcement.admin; "serving operators");
    log::info!(address:% = announcement.agents; "serving agents");
    sd_notify::notify(&[sd_notify::NotifyState::Ready, sd_notify::NotifyState::Status(&line)])?;
    Ok(())
}

/// Installs the signal handlers. The future returns the name of the signal that ends the program.
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
