//! Opening everything, in the order in which it can fail without having changed anything.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use stemma_core::epoch::EpochLine;
use stemma_core::traits::{Trait, TraitNames};
use stemma_wire::clock::{Clock, SystemClock};
use stemma_wire::message::WireVersion;
use stemma_wire::net::TcpListen;
use stemma_wire::serve::{Connections, Hearing, Limits, Peer, Rejected, RequestBody, Server, TlsSource};
use stemma_wire::tls::Identity;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::keys::{Keys, Sides};
use super::tasks::Tasks;
use super::thread::{self, Ended, Worker};
use super::{Controller, Parts, StartError, admin, watchdog};
use crate::agents::{AgentsListener, CHECK_IN, make_places, store_confirmed, watch_silence};
use crate::api::Reached;
use crate::backup::sweep_at_start;
use crate::blobs::Blobs;
use crate::ca::{Authority, ServerName, files};
use crate::cache::Cache;
use crate::clock::WatchedClock;
use crate::config::{AdminListen, Config};
use crate::desired::DesiredTable;
use crate::enrol::{Enrolment, GuessLimits, load_identities};
use crate::extension::Extensions;
use crate::handed::Handed;
use crate::identity::Identities;
use crate::init::{Layout, write_context};
use crate::metrics::{Counters, Metrics};
use crate::reconcile::Reconciler;
use crate::records::fleet::FleetRecord;
use crate::registry::intake::HostIntake;
use crate::registry::retention::Kept;
use crate::registry::{ByteRate, Registry, holder_of, refusals};
use crate::store::{OpenError, RedbOptions, RedbStore, Snapshot, Store};

/// How long it is waited for another controller to let go of the store, as an agent does for its state.
const STORE_HELD: Duration = Duration::from_secs(3);
/// How often it is tried meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What a test or bench may want otherwise.
#[derive(Clone, Debug)]
pub struct Options {
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The measures of the agents' listener.
    pub agent_limits: Limits,
    /// The measures of the admin listener.
    pub admin_limits: Limits,
    /// How often somebody may be wrong about a token.
    pub guesses: GuessLimits,
    /// Who decides what nodes are told.
    pub publishing: Publishing,
    /// The newest wire version that is spoken with agents.
    pub wire: WireVersion,
    /// The bounds of the store.
    pub store: RedbOptions,
    /// How much each principal may write.
    pub writes: ByteRate,
}

/// Who decides what nodes are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Publishing {
    /// The reconciler, from what is stored.
    #[default]
    Reconciled,
    /// Whoever drives a test or bench of the listener alone.
    ByHand,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            agent_limits: Limits::default(),
            // As many as there may be streams of events, and as many again for requests. One address, or IPv6 network of 64 bits, has
            // three quarters of the places at the most, and a twentieth of them before it has shown a certificate. One principal has a quarter,
            // which is more than it may have streams, and a twentieth is kept for admins of the fleet.
            admin_limits: Limits {
                connections: 2000,
                connections_of_one_address: 1500,
                handshakes_of_one_address: 100,
                strangers_of_one_address: 100,
                connections_of_one_principal: Some(500),
                connections_for_admins: 100,
                networks_are_addresses: true,
                ..Limits::default()
            },
            guesses: GuessLimits::default(),
            publishing: Publishing::default(),
            wire: WireVersion::CURRENT,
            store: RedbOptions::default(),
            writes: ByteRate::OF_WRITES,
        }
    }
}

/// Opens a fleet's data directory and serves it.
///
/// # Errors
/// [`StartError`]; nothing is left running.
pub async fn start(config: Config, options: Options) -> Result<Controller, StartError> {
    start_on(config, options, Handed::default()).await
}

/// The same on sockets that were handed over; those that are missing are bound.
///
/// # Errors
/// [`StartError`]; nothing is left running.
pub async fn start_on(config: Config, options: Options, handed: Handed) -> Result<Controller, StartError> {
    let traits = trait_names(&config)?;
    let layout = Layout::new(&config.data_dir);
    // One that is not there is the store's to explain.
    if layout.directory().exists() {
        files::check_directory(layout.directory())?;
    }
    layout.check()?;
    if !layout.store().exists() && layout.authority()?.is_some() {
        return Err(StartError::StoreGone { path: layout.store(), directory: config.data_dir });
    }
    let store = open_store(&layout, &options.store).await?;
    sweep_at_start(layout.directory());
    let record = FleetRecord::decode(&store.identity().fleet);
    let record = record.map_err(|_| StartError::NoFleet { path: layout.store() })?;
    let fleet = record.fleet.parse().map_err(|_| StartError::NoFleet { path: layout.store() })?;
    let authority = Arc::new(Authority::load(&layout.trust(), config.credentials.as_deref(), fleet)?);
    let keys = Keys {
        authority: Arc::clone(&authority),
        controller: record.controller,
        names: server_names(&config, &record)?,
        own_name: config.names.iter().cloned().chain(names_of(&record)?).next(),
        clock: Arc::clone(&options.clock),
    };
    let sides = Arc::new(keys.sides()?);
    let admin = bind("admin_listen", config.admin.address(), handed.admin).await?;
    let (parts, opened) = build(layout, Arc::new(store), authority, &keys, &traits, (&config, &options)).await?;
    let serving = Serving { config, options, traits, parts, sides, keys, opened };
    serving.begin(admin, handed.agents, handed.root).await
}

/// Opens the store. One that was just killed, or is about to end, still holds it for a moment.
async fn open_store(layout: &Layout, options: &RedbOptions) -> Result<RedbStore, StartError> {
    let until = Instant::now() + STORE_HELD;
    loop {
        match RedbStore::open(&layout.store(), options.clone()) {
            Err(OpenError::Locked { .. }) if Instant::now() < until => sleep(LOOK_AGAIN).await,
            opened => return Ok(opened?),
        }
    }
}

/// The traits that are taken for standard ones.
fn trait_names(config: &Config) -> Result<TraitNames, StartError> {
    let extra = &config.extra_standard_traits;
    TraitNames::with(extra).map_err(|refused| {
        let index = extra.iter().position(|name| Trait::new(name).is_err()).unwrap_or_default();
        StartError::ExtraTrait { index, name: refused.name }
    })
}

/// All names that this controller is reached by: those of `init` and of the configuration, this machine's own, and what it binds.
fn server_names(config: &Config, record: &FleetRecord) -> Result<Vec<ServerName>, StartError> {
    let mut names = names_of(record)?;
    names.extend(config.names.iter().cloned());
    names.extend(["localhost", "127.0.0.1", "::1"].map(|name| name.parse().expect("a name of this machine")));
    for address in [config.admin.address(), config.agents] {
        let ip = address.ip().to_canonical();
        if !ip.is_unspecified() {
            // An IPv4 address that is bound in its IPv6 form is dialled in either.
            names.extend([ip, address.ip()].map(ServerName::Ip));
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// The names that `init` was given.
fn names_of(record: &FleetRecord) -> Result<Vec<ServerName>, StartError> {
    Ok(record.names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?)
}

async fn bind(
    field: &'static str,
    address: SocketAddr,
    handed: Option<TcpListener>,
) -> Result<(TcpListen, SocketAddr), StartError> {
    let advice = match field {
        "admin_listen" => "give --admin-listen HOST:PORT another one, or stop what listens there (ss -ltnp shows it)",
        _ => "give --agent-listen HOST:PORT another one, or stop what listens there (ss -ltnp shows it)",
    };
    let failed = |source| StartError::Bind { field, address, advice, source };
    let socket = match handed {
        Some(socket) => TcpListen::bound(socket),
        None => TcpListen::bind(address).await,
    };
    let socket = socket.map_err(failed)?;
    let bound = socket.local_addr().map_err(|source| StartError::Bind { field, address, advice, source })?;
    Ok((socket, bound))
}

async fn build(
    layout: Layout,
    store: Arc<dyn Store>,
    authority: Arc<Authority>,
    keys: &Keys,
    traits: &TraitNames,
    (config, options): (&Config, &Options),
) -> Result<(Arc<Parts>, Box<dyn Snapshot>), StartError> {
    let clock = Arc::clone(&options.clock);
    // Before anything is written: what stands in the store is counted in it later.
    let opened = store.snapshot().await?;
    let watched = Arc::new(WatchedClock::of(store.as_ref(), Arc::clone(&clock)).await?);
    let identities = Arc::new(Identities::default());
    load_identities(opened.as_ref(), &identities).await?;
    let cache = Arc::new(Cache::load(store.as_ref()).await?);
    let registry = Registry::by(Arc::clone(&store), Arc::clone(&cache), Arc::clone(&watched))
        .pacing(options.writes)
        .holding(config.most_nodes);
    let registry = Arc::new(registry.asking(Arc::new(Extensions::new(config.extensions.clone()))));
    let first = EpochLine::first(Uuid::from_bytes(*store.identity().epoch.as_bytes()));
    let line = cache.model().epoch_line.as_ref().map_or(first, |line| line.record.clone());
    let desired = Arc::new(DesiredTable::new(line, keys.signer()?));
    let (rejected, counters) = (Arc::new(Rejected::default()), Arc::new(Counters::default()));
    let blobs = Blobs::new(&layout.blobs()).counted(counters.damaged_blobs.clone()).shown(counters.blobs.clone());
    let blobs = Arc::new(blobs.at_most(config.unnamed_files_mebibytes.saturating_mul(1024 * 1024)));
    let enrolment = enrolment(keys, &registry, &identities, (&rejected, &counters), options.guesses);
    let reconciler = Reconciler::new(Arc::clone(&registry), Arc::clone(&desired), Arc::clone(&counters));
    let intake = HostIntake::new(Arc::clone(&registry), Arc::clone(&blobs), traits.clone(), Arc::clone(&desired));
    let (stored, refused) = ((store, layout.store()), Arc::clone(&rejected));
    let table = Arc::clone(&desired);
    let metrics = Metrics::new(stored, refused, table, cache, counters, watched, Arc::clone(&identities));
    let parts = Parts {
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
    Ok((Arc::new(parts), opened))
}

fn enrolment(
    keys: &Keys,
    registry: &Arc<Registry>,
    identities: &Arc<Identities>,
    (rejected, counters): (&Arc<Rejected>, &Arc<Counters>),
    guesses: GuessLimits,
) -> Enrolment {
    Enrolment::new(
        Arc::clone(registry),
        Arc::clone(&keys.authority),
        Arc::clone(identities),
        Arc::clone(&keys.clock),
        Arc::clone(rejected),
        Arc::clone(counters),
        guesses,
    )
}

/// What is needed to begin serving.
struct Serving {
    config: Config,
    options: Options,
    traits: TraitNames,
    parts: Arc<Parts>,
    sides: Arc<Sides>,
    keys: Keys,
    /// The store as it was opened.
    opened: Box<dyn Snapshot>,
}

impl Serving {
    async fn begin(
        self,
        (admin_socket, admin): (TcpListen, SocketAddr),
        agents_socket: Option<TcpListener>,
        root_socket: Option<UnixListener>,
    ) -> Result<Controller, StartError> {
        let Self { config, options, traits, parts, sides, keys, opened } = self;
        // Before anybody asks where nodes stand.
        make_places(&parts.desired, &parts.identities, parts.intake.as_ref());
        let (stop, stopped) = watch::channel(false);
        let agents_server = AgentsThread {
            address: config.agents,
            handed: agents_socket,
            tls: Arc::clone(&sides),
            limits: options.agent_limits.clone(),
            parts: Arc::clone(&parts),
            stopped: stopped.clone(),
            wire: options.wire,
        };
        let (agents_thread, agents_ended, bound) = agents_server.start().await?;
        let Bound { address: agents, connections: agent_connections } = bound;
        write_context(&parts.layout, &config.admin.url(admin).to_string())?;
        let tls = admin_side(config.admin, admin, &sides);
        let (clock, rejected) = (Arc::clone(&parts.clock), Arc::clone(&parts.rejected));
        let server = Server::new(admin_socket, tls, options.admin_limits.clone(), clock, rejected);
        let server = server.known_by(admin::holders(&parts.registry));
        let admin_connections = server.connections();
        parts.metrics.watch_connections(agent_connections, admin_connections.clone());
        let reached = Reached { port: agents.port(), name: keys.own_name.clone() };
        let api = admin::api(&parts, &config, options.guesses, traits, reached);
        let streams = api.streams.clone();
        let by_root = admin::socket(&parts, &api, root_socket, options.admin_limits, until(stopped.clone()));
        let admin_task = tokio::spawn(server.run(crate::api::handler(Arc::clone(&api)), until(stopped.clone())));
        let kept = Kept { history: config.history_keep, audit: config.audit_keep };
        let mut tasks = Tasks::begin(&parts, keys, sides, (opened, kept));
        tell_of_refusals(&parts, &mut tasks);
        tasks.spawn(agents_ended.wait());
        tasks.spawn(admin::cut_revoked(api, admin_connections));
        tasks.spawn(by_root);
        let mut threads = vec![agents_thread];
        if options.publishing == Publishing::Reconciled {
            let (thread, ended) = start_reconciler(&parts, stopped).map_err(StartError::Thread)?;
            threads.push(thread);
            tasks.spawn(ended.wait());
        }
        tasks.spawn(watchdog::feed(threads.iter().map(Worker::runtime).collect()));
        Ok(Controller { parts, config, admin, agents, stop, streams, threads, admin_task, tasks })
    }
}

/// Begins to write what is refused into the audit.
fn tell_of_refusals(parts: &Parts, tasks: &mut Tasks) {
    let cache = Arc::clone(parts.registry.cache());
    let holder = move |identity: &Identity| holder_of(&cache.model(), identity);
    let refusals = refusals::watch(&parts.rejected, Arc::clone(parts.registry.clock()), holder);
    let store = Arc::clone(parts.registry.store());
    tasks.spawn(async move {
        refusals.write(store).await;
        "nobody tells of refusals any more".to_owned()
    });
}

/// What operators are spoken to with; `None`: plain HTTP.
fn admin_side(listen: AdminListen, bound: SocketAddr, sides: &Arc<Sides>) -> Option<TlsSource> {
    match listen {
        AdminListen::Tls(_) => Some(sides.admin()),
        AdminListen::Plain(_) => {
            log::warn!(address:% = bound; "operators are served without TLS and without a name: for development and tests only");
            None
        }
    }
}

/// What became of the agents' listener.
struct Bound {
    address: SocketAddr,
    connections: Connections,
}

/// The agents' listener with its thread.
struct AgentsThread {
    address: SocketAddr,
    handed: Option<TcpListener>,
    tls: Arc<Sides>,
    limits: Limits,
    parts: Arc<Parts>,
    stopped: watch::Receiver<bool>,
    wire: WireVersion,
}

impl AgentsThread {
    async fn start(self) -> Result<(Worker, Ended, Bound), StartError> {
        let (tell, told) = oneshot::channel();
        let (thread, ended) = thread::start("agents", move || self.serve(tell)).map_err(StartError::Thread)?;
        let bound = told.await.map_err(|_| StartError::Thread(std::io::ErrorKind::BrokenPipe.into()))??;
        Ok((thread, ended, bound))
    }

    /// Binds here, so that the socket wakes this thread and no other.
    async fn serve(mut self, tell: oneshot::Sender<Result<Bound, StartError>>) {
        let (socket, address) = match bind("agent_listen", self.address, self.handed.take()).await {
            Ok(bound) => bound,
            Err(error) => {
                // The store is let go before it is said: who hears it may start again at once.
                drop(self);
                let _asked_for = tell.send(Err(error));
                return;
            }
        };
        let parts = self.parts;
        let listener = AgentsListener::new(
            Arc::clone(&parts.desired),
            Arc::clone(&parts.intake) as _,
            Arc::clone(&parts.identities),
            Arc::clone(&parts.enrolment),
            Arc::clone(&parts.clock),
            Arc::clone(&parts.rejected),
            Arc::clone(parts.metrics.counters()),
        );
        let listener = Arc::new(listener.up_to(self.wire));
        let (clock, rejected) = (Arc::clone(&parts.clock), Arc::clone(&parts.rejected));
        let server = Server::new(socket, Some(self.tls.agents()), self.limits, clock, rejected).lean(CHECK_IN);
        let _asked_for = tell.send(Ok(Bound { address, connections: server.connections() }));
        let hears = Arc::clone(&listener);
        let handler = Hearing {
            handler: move |peer: &Arc<Peer>, request: hyper::Request<RequestBody>| {
                Arc::clone(&listener).answer(Arc::clone(peer), request)
            },
            note: move |peer: &Arc<Peer>, path: &str, kind| hears.note_refused(peer, path, kind),
        };
        let clock = Arc::clone(&parts.clock);
        let silences = watch_silence(
            Arc::clone(&parts.desired),
            Arc::clone(&parts.identities),
            Arc::clone(&parts.intake) as _,
            move || clock.unix_seconds(),
        );
        tokio::select! {
            () = server.run(handler, until(self.stopped)) => {}
            () = silences => {}
        }
        store_confirmed(&parts.desired, &*parts.intake).await;
    }
}

/// Resolving a whole fleet takes a second, in which operators and agents want their answers.
fn start_reconciler(parts: &Parts, stopped: watch::Receiver<bool>) -> std::io::Result<(Worker, Ended)> {
    let reconciler = Arc::clone(&parts.reconciler);
    thread::start("reconcile", move || async move {
        tokio::select! {
            never = reconciler.run() => match never {},
            () = until(stopped) => {}
        }
    })
}

/// Ends when the controller is told to stop, or is dropped.
async fn until(mut stopped: watch::Receiver<bool>) {
    let _told_or_dropped = stopped.wait_for(|stopped| *stopped).await;
}
