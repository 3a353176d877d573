//! Opens everything that a controller needs. Steps that can fail before anything is changed are done first.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use stemma_core::epoch::EpochHistory;
use stemma_core::traits::{Trait, TraitNames};
use stemma_wire::clock::{Clock, SystemClock};
use stemma_wire::message::WireVersion;
use stemma_wire::net::TcpAcceptor;
use stemma_wire::serve::{
    ListenerLimits, ObservedHandler, OpenConnections, Peer, RejectionCounter, RequestBody, Server, TlsSource,
};
use stemma_wire::tls::Identity;
use stemma_wire::watchdog::Watchdog;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::keys::{ControllerKeys, TlsConfigs};
use super::tasks::BackgroundTasks;
use super::thread::{self, ThreadEnd, Worker};
use super::{Components, Controller, StartError, admin, watchdog};
use crate::agents::{AgentsListener, CHECK_IN_PATH, create_slots, store_confirmations, watch_silence};
use crate::api::AgentEndpoint;
use crate::backup::sweep_at_start;
use crate::blobs::BlobStore;
use crate::ca::{Authority, ServerName, files};
use crate::cache::Cache;
use crate::clock::WatchedClock;
use crate::config::{AdminListen, Config};
use crate::desired::DesiredTable;
use crate::enrol::{AttemptLimits, Enrolment, load_identities};
use crate::extension::Extensions;
use crate::identity::Identities;
use crate::init::{Layout, write_context};
use crate::metrics::{Counters, Metrics};
use crate::reconcile::Reconciler;
use crate::records::fleet::FleetRecord;
use crate::registry::intake::HostIntake;
use crate::registry::retention::RetentionLimits;
use crate::registry::{ByteRate, Registry, certificate_holder, refusals};
use crate::socket_activation::ActivatedSockets;
use crate::store::{OpenError, RedbOptions, RedbStore, Snapshot, Store};

/// Maximum time to wait for another process to release the lock of the store.
const STORE_LOCK_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval between two attempts to open a locked store.
const STORE_LOCK_RETRY: Duration = Duration::from_millis(100);

/// The options that only a test or benchmark changes. They cannot be configured.
#[derive(Clone, Debug)]
pub struct Options {
    /// The clock that the controller uses.
    pub clock: Arc<dyn Clock>,
    /// The limits of the agents' listener.
    pub agent_limits: ListenerLimits,
    /// The limits of the admin listener.
    pub admin_limits: ListenerLimits,
    /// The limits on wrong tokens that clients may present: from one network, and from all networks together.
    pub attempt_limits: AttemptLimits,
    /// The source of the desired states of nodes.
    pub publishing: PublishMode,
    /// The newest wire version (version of the encoding) that is used with agents.
    pub newest_wire: WireVersion,
    /// The options of the store.
    pub store: RedbOptions,
    /// Maximum rate at which each principal may write, in stored bytes (see [`Registry::with_byte_rate`]).
    pub write_rate: ByteRate,
}

/// The source of the desired states of nodes: the reconciler, or a test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PublishMode {
    /// The reconciler computes desired states from the stored objects.
    #[default]
    Reconciler,
    /// A test or benchmark publishes desired states itself.
    Manual,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            agent_limits: ListenerLimits::default(),
            // Half of the connections are for the maximum number of event streams, the other half are for requests. One
            // address or IPv6 /64 network gets at most three quarters of all connections. Connections without a
            // certificate from one address get at most a twentieth. One principal gets at most a quarter, which is more
            // than its maximum number of streams. A twentieth is reserved for admins of the fleet.
            admin_limits: ListenerLimits {
                max_connections: 2000,
                max_connections_per_address: 1500,
                max_handshakes_per_address: 100,
                max_unauthenticated_per_address: 100,
                max_connections_per_principal: Some(500),
                reserved_for_admins: 100,
                is_per_network: true,
                ..ListenerLimits::default()
            },
            attempt_limits: AttemptLimits::default(),
            publishing: PublishMode::default(),
            newest_wire: WireVersion::CURRENT,
            store: RedbOptions::default(),
            write_rate: ByteRate::WRITES,
        }
    }
}

/// Opens the data directory of a fleet and starts a controller for it.
///
/// # Errors
/// Fails with a [`StartError`]. Threads and tasks that were already started then end by themselves.
pub async fn start(config: Config, options: Options) -> Result<Controller, StartError> {
    start_on_sockets(config, options, ActivatedSockets::default()).await
}

/// Opens the data directory of a fleet and starts a controller for it. The listeners use the sockets that the service
/// manager passed. A listener without such a socket is bound here.
///
/// # Errors
/// Fails with a [`StartError`]. Threads and tasks that were already started then end by themselves.
pub async fn start_on_sockets(config: Config, options: Options, sockets: ActivatedSockets) -> Result<Controller, StartError> {
    let traits = trait_names(&config)?;
    let layout = Layout::new(&config.data_dir);
    // If the directory does not exist, opening the store below fails with a better error.
    if layout.directory().exists() {
        files::check_directory(layout.directory())?;
    }
    files::check_writable(&layout.store())?;
    layout.check()?;
    if !layout.store().exists() && layout.authority()?.is_some() {
        return Err(StartError::StoreMissing { path: layout.store(), directory: config.data_dir });
    }
    let store = open_store(&layout, &options.store).await?;
    sweep_at_start(layout.directory());
    let record = FleetRecord::decode(&store.identity().fleet);
    let record = record.map_err(|_| StartError::NoFleet { path: layout.store() })?;
    let fleet = record.fleet.parse().map_err(|_| StartError::NoFleet { path: layout.store() })?;
    let authority = Arc::new(Authority::load(&layout.trust(), config.credentials.as_deref(), fleet)?);
    let keys = ControllerKeys {
        authority: Arc::clone(&authority),
        controller: record.controller,
        names: server_names(&config, &record)?,
        own_name: config.names.iter().cloned().chain(init_names(&record)?).next(),
        clock: Arc::clone(&options.clock),
    };
    let tls = Arc::new(keys.tls_configs()?);
    let admin = bind("admin_listen", config.admin.address(), sockets.admin).await?;
    let (components, snapshot) = build(layout, Arc::new(store), authority, &keys, &traits, (&config, &options)).await?;
    let serve_context = ServeContext { config, options, traits, components, tls, keys, snapshot };
    serve_context.begin(admin, sockets.agents, sockets.root).await
}

/// Opens the store. If the store is locked, tries again for up to [`STORE_LOCK_TIMEOUT`], because a controller that is
/// ending or was just killed may still hold the lock.
async fn open_store(layout: &Layout, options: &RedbOptions) -> Result<RedbStore, StartError> {
    let deadline = Instant::now() + STORE_LOCK_TIMEOUT;
    loop {
        match RedbStore::open(&layout.store(), options.clone()) {
            Err(OpenError::Locked { .. }) if Instant::now() < deadline => sleep(STORE_LOCK_RETRY).await,
            result => return Ok(result?),
        }
    }
}

/// Returns the names of standard traits: those of the program, and those in `extra_standard_traits` of the
/// configuration.
fn trait_names(config: &Config) -> Result<TraitNames, StartError> {
    let extra_names = &config.extra_standard_traits;
    TraitNames::with_extra(extra_names).map_err(|error| {
        let index = extra_names.iter().position(|name| Trait::new(name).is_err()).unwrap_or_default();
        StartError::ExtraTrait { index, name: error.name }
    })
}

/// Returns the names for which the server certificate is issued: those given to `init`, those of the configuration,
/// `localhost` with its addresses, and the listen addresses unless they are unspecified (`0.0.0.0`, `::`).
fn server_names(config: &Config, record: &FleetRecord) -> Result<Vec<ServerName>, StartError> {
    let mut names = init_names(record)?;
    names.extend(config.names.iter().cloned());
    names.extend(["localhost", "127.0.0.1", "::1"].map(|name| name.parse().expect("a name of this machine")));
    for address in [config.admin.address(), config.agents] {
        let ip = address.ip().to_canonical();
        if !ip.is_unspecified() {
            // Clients can use an IPv4-mapped address in either form.
            names.extend([ip, address.ip()].map(ServerName::Ip));
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// Returns the server names that were given to `stemma-controller init`. Fails if one of them is invalid.
fn init_names(record: &FleetRecord) -> Result<Vec<ServerName>, StartError> {
    Ok(record.names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?)
}

/// Binds a listener's address, or uses the socket that the service manager passed. Returns the socket and its actual
/// address. `field` is the configuration field that an error names.
async fn bind(
    field: &'static str,
    address: SocketAddr,
    inherited_socket: Option<TcpListener>,
) -> Result<(TcpAcceptor, SocketAddr), StartError> {
    let to_bind_error = |source: std::io::Error| StartError::Bind { field, address, advice: bind_advice(field, &source), source };
    let socket = match inherited_socket {
        Some(socket) => TcpAcceptor::from_socket(socket),
        None => TcpAcceptor::bind(address).await,
    };
    let socket = socket.map_err(to_bind_error)?;
    let bound_address = socket.local_addr().map_err(to_bind_error)?;
    Ok((socket, bound_address))
}

/// Returns the advice for an address that cannot be bound.
fn bind_advice(field: &str, error: &std::io::Error) -> &'static str {
    match field {
        // The controller's unit permits no addresses of networks: systemd passes the sockets.
        _ if error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) => {
            "systemd has not passed a socket for it, for example after an edit of the socket unit, or because another program listens \
             there (ss -ltnp shows it): run `systemctl stop stemma-controller`, then `systemctl start stemma-controller`"
        }
        "admin_listen" => {
            "set another address with --admin-listen HOST:PORT, or stop the program that listens there (ss -ltnp shows it)"
        }
        _ => "set another address with --agent-listen HOST:PORT, or stop the program that listens there (ss -ltnp shows it)",
    }
}

/// Loads the state of the fleet from the store, and creates all components of the controller. Also returns a snapshot
/// of the store from before the first write of this process.
async fn build(
    layout: Layout,
    store: Arc<dyn Store>,
    authority: Arc<Authority>,
    keys: &ControllerKeys,
    traits: &TraitNames,
    (config, options): (&Config, &Options),
) -> Result<(Arc<Components>, Box<dyn Snapshot>), StartError> {
    let clock = Arc::clone(&options.clock);
    // The snapshot must not contain writes of this process. A later task computes from it the sizes of the entries that
    // existed when the store was opened.
    let snapshot = store.snapshot().await?;
    let watched_clock = Arc::new(WatchedClock::from_store(store.as_ref(), Arc::clone(&clock)).await?);
    let identities = Arc::new(Identities::default());
    load_identities(snapshot.as_ref(), &identities).await?;
    let cache = Arc::new(Cache::load(store.as_ref()).await?);
    let registry = Registry::with_clock(Arc::clone(&store), Arc::clone(&cache), Arc::clone(&watched_clock))
        .with_byte_rate(options.write_rate)
        .with_max_nodes(config.max_nodes);
    let registry = Arc::new(registry.with_extensions(Arc::new(Extensions::new(config.extensions.clone()))));
    let initial_history = EpochHistory::new(Uuid::from_bytes(*store.identity().epoch.as_bytes()));
    let epoch_history = cache.model().epoch_history.as_ref().map_or(initial_history, |epoch_line| epoch_line.record.clone());
    let desired = Arc::new(DesiredTable::new(epoch_history, keys.new_signer()?));
    let (rejected, counters) = (Arc::new(RejectionCounter::default()), Arc::new(Counters::default()));
    let blobs =
        BlobStore::new(&layout.blobs()).with_damaged_counter(counters.damaged_blobs.clone()).with_gauges(counters.blobs.clone());
    let blobs = Arc::new(blobs.with_max_unnamed_bytes(config.unnamed_files_mebibytes.saturating_mul(1024 * 1024)));
    let enrolment = new_enrolment(keys, &registry, &identities, (&rejected, &counters), options.attempt_limits);
    let reconciler = Reconciler::new(Arc::clone(&registry), Arc::clone(&desired), Arc::clone(&counters));
    let intake = HostIntake::new(Arc::clone(&registry), Arc::clone(&blobs), traits.clone(), Arc::clone(&desired));
    let (store_and_file, rejections) = ((store, layout.store()), Arc::clone(&rejected));
    let table = Arc::clone(&desired);
    let metrics = Metrics::new(store_and_file, rejections, table, cache, counters, watched_clock, Arc::clone(&identities));
    let components = Components {
        reconciler: Arc::new(reconciler),
        fleet: authority.fleet().clone(),
        intake: Arc::new(intake),
        metrics: Arc::new(metrics),
        enrolment: Arc::new(enrolment),
        layout,
        registry,
        desired,
        identities,
        blobs,
        authority,
        rejected,
        clock,
    };
    Ok((Arc::new(components), snapshot))
}

/// Creates the component that enrols agents and renews their certificates.
fn new_enrolment(
    keys: &ControllerKeys,
    registry: &Arc<Registry>,
    identities: &Arc<Identities>,
    (rejected, counters): (&Arc<RejectionCounter>, &Arc<Counters>),
    limits: AttemptLimits,
) -> Enrolment {
    Enrolment::new(
        Arc::clone(registry),
        Arc::clone(&keys.authority),
        Arc::clone(identities),
        Arc::clone(&keys.clock),
        Arc::clone(rejected),
        Arc::clone(counters),
        limits,
    )
}

/// The data from which the controller begins to serve.
struct ServeContext {
    config: Config,
    options: Options,
    traits: TraitNames,
    components: Arc<Components>,
    tls: Arc<TlsConfigs>,
    keys: ControllerKeys,
    /// The content of the store when it was opened.
    snapshot: Box<dyn Snapshot>,
}

impl ServeContext {
    /// Starts the threads, listeners and background tasks, and returns the running controller. Also writes the file
    /// with which the first admin's `stemma` connects to the admin listener.
    async fn begin(
        self,
        (admin_socket, admin): (TcpAcceptor, SocketAddr),
        agents_socket: Option<TcpListener>,
        root_socket: Option<UnixListener>,
    ) -> Result<Controller, StartError> {
        let Self { config, options, traits, components, tls: tls_configs, keys, snapshot } = self;
        // The table must have a slot for each agent before anyone reads the states of nodes.
        create_slots(&components.desired, &components.identities, components.intake.as_ref());
        let (stop, stop_signal) = watch::channel(false);
        let agents_server = AgentsThread {
            address: config.agents,
            inherited: agents_socket,
            tls: Arc::clone(&tls_configs),
            limits: options.agent_limits.clone(),
            components: Arc::clone(&components),
            stop_signal: stop_signal.clone(),
            wire: options.newest_wire,
        };
        let (agents_thread, agents_end, listener) = agents_server.start().await?;
        let BoundListener { address: agents, connections: agent_connections } = listener;
        write_context(&components.layout, &config.admin.url(admin).to_string())?;
        let tls = admin_tls(config.admin, admin, &tls_configs);
        let (clock, rejected) = (Arc::clone(&components.clock), Arc::clone(&components.rejected));
        let server = Server::new(admin_socket, tls, options.admin_limits.clone(), clock, rejected);
        let server = server.with_holders(admin::holder_source(&components.registry));
        let admin_connections = server.connections();
        components.metrics.watch_connections(agent_connections, admin_connections.clone());
        let endpoint = AgentEndpoint { port: agents.port(), name: keys.own_name.clone() };
        let api = admin::new_api(&components, &config, options.attempt_limits, traits, endpoint);
        let streams = api.streams.clone();
        let root_server =
            admin::serve_root_socket(&components, &api, root_socket, options.admin_limits, wait_for_stop(stop_signal.clone()));
        let admin_task = tokio::spawn(server.run(crate::api::handler(Arc::clone(&api)), wait_for_stop(stop_signal.clone())));
        let limits = RetentionLimits { history: config.history_keep, audit: config.audit_keep };
        let mut tasks = BackgroundTasks::begin(&components, keys, tls_configs, (snapshot, limits));
        audit_refusals(&components, &mut tasks);
        tasks.spawn(agents_end.wait());
        tasks.spawn(admin::close_revoked(api, admin_connections));
        tasks.spawn(root_server);
        let agents_runtime = agents_thread.runtime();
        let mut threads = vec![agents_thread];
        let mut watched_reconciler = None;
        if options.publishing == PublishMode::Reconciler {
            let (thread, reconciler_end) = start_reconciler(&components, stop_signal).map_err(StartError::Thread)?;
            threads.push(thread);
            tasks.spawn(reconciler_end.wait());
            watched_reconciler = Some(Arc::clone(&components.reconciler));
        }
        tasks.spawn(watchdog::feed_watchdog(Watchdog::from_environment(), agents_runtime, watched_reconciler));
        Ok(Controller { components, config, admin, agents, stop, streams, threads, admin_task, tasks })
    }
}

/// Starts the background task that writes refusals into the audit.
fn audit_refusals(components: &Components, tasks: &mut BackgroundTasks) {
    let cache = Arc::clone(components.registry.cache());
    let find_principal = move |identity: &Identity| certificate_holder(&cache.model(), identity);
    let refusal_writer = refusals::channel(&components.rejected, Arc::clone(components.registry.clock()), find_principal);
    let store = Arc::clone(components.registry.store());
    tasks.spawn(async move {
        refusal_writer.run(store).await;
        "the writer of refusals ended".to_owned()
    });
}

/// Returns the source of the admin listener's TLS configuration. For plain HTTP, logs a warning and returns `None`.
fn admin_tls(listen: AdminListen, address: SocketAddr, configs: &Arc<TlsConfigs>) -> Option<TlsSource> {
    match listen {
        AdminListen::Tls(_) => Some(configs.admin_tls_source()),
        AdminListen::Plain(_) => {
            log::warn!(address:% = address; "the admin listener uses plain HTTP without authentication; use it for development and tests only");
            None
        }
    }
}

/// The address and the connections of the agents' listener after it was bound.
struct BoundListener {
    address: SocketAddr,
    connections: OpenConnections,
}

/// The data with which the thread of the agents' listener starts.
struct AgentsThread {
    address: SocketAddr,
    inherited: Option<TcpListener>,
    tls: Arc<TlsConfigs>,
    limits: ListenerLimits,
    components: Arc<Components>,
    stop_signal: watch::Receiver<bool>,
    wire: WireVersion,
}

impl AgentsThread {
    /// Starts the thread, and waits until its listener is bound. Returns the thread, a future for its end, and the
    /// listener.
    async fn start(self) -> Result<(Worker, ThreadEnd, BoundListener), StartError> {
        let (sender, receiver) = oneshot::channel();
        let (thread, thread_end) = thread::start("agents", move || self.serve(sender)).map_err(StartError::Thread)?;
        // If the thread ends before it sends its listener or an error, the sender is dropped.
        let listener = receiver.await.map_err(|_| StartError::Thread(std::io::ErrorKind::BrokenPipe.into()))??;
        Ok((thread, thread_end, listener))
    }

    /// Binds the agents' listener and serves it until the controller stops. The socket is bound on this thread, so that
    /// connections wake this thread and no other. Sends the bound listener or the error to the thread that starts the
    /// controller. Also records which agents are silent, and at the end stores what hosts have confirmed.
    async fn serve(mut self, sender: oneshot::Sender<Result<BoundListener, StartError>>) {
        let (socket, address) = match bind("agent_listen", self.address, self.inherited.take()).await {
            Ok(bound_socket) => bound_socket,
            Err(error) => {
                // The store is released before the error is sent, because the receiver may start a controller again at
                // once.
                drop(self);
                let _result = sender.send(Err(error));
                return;
            }
        };
        let parts = self.components;
        let listener = AgentsListener::new(
            Arc::clone(&parts.desired),
            Arc::clone(&parts.intake) as _,
            Arc::clone(&parts.identities),
            Arc::clone(&parts.enrolment),
            Arc::clone(&parts.clock),
            Arc::clone(&parts.rejected),
            Arc::clone(parts.metrics.counters()),
        );
        let listener = Arc::new(listener.with_newest_version(self.wire));
        let (clock, rejected) = (Arc::clone(&parts.clock), Arc::clone(&parts.rejected));
        let server =
            Server::new(socket, Some(self.tls.agent_tls_source()), self.limits, clock, rejected).for_own_clients(CHECK_IN_PATH);
        let _result = sender.send(Ok(BoundListener { address, connections: server.connections() }));
        let observer = Arc::clone(&listener);
        let handler = ObservedHandler {
            handler: move |peer: &Arc<Peer>, request: hyper::Request<RequestBody>| {
                Arc::clone(&listener).handle(Arc::clone(peer), request)
            },
            observer: move |peer: &Arc<Peer>, path: &str, kind| observer.record_refusal(peer, path, kind),
        };
        let clock = Arc::clone(&parts.clock);
        let silences =
            watch_silence(Arc::clone(&parts.desired), Arc::clone(&parts.identities), Arc::clone(&parts.intake) as _, move || {
                clock.unix_seconds()
            });
        tokio::select! {
            () = server.run(handler, wait_for_stop(self.stop_signal)) => {}
            () = silences => {}
        }
        store_confirmations(&parts.desired, &*parts.intake).await;
    }
}

/// Starts the reconciler on a separate thread. Computing the desired states of a whole fleet takes a second, and
/// operators and agents must be served during this time.
fn start_reconciler(components: &Components, stop_signal: watch::Receiver<bool>) -> std::io::Result<(Worker, ThreadEnd)> {
    let reconciler = Arc::clone(&components.reconciler);
    thread::start("reconcile", move || async move {
        tokio::select! {
            never = reconciler.run() => match never {},
            () = wait_for_stop(stop_signal) => {}
        }
    })
}

/// Waits until the controller is stopped or dropped.
async fn wait_for_stop(mut stop_signal: watch::Receiver<bool>) {
    let _result = stop_signal.wait_for(|stop_signal| *stop_signal).await;
}
