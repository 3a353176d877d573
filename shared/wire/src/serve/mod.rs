//! The accept loop of the controller's listeners: the agents' listener, the admin listener and root's socket.
//!
//! `axum::serve` sets no timer (a client that sent half a header is still connected after 45 s), and the agents'
//! listener uses no router crate. So this module accepts the connections itself. It limits the handshake to 5 s, a
//! header to 5 s, a body to 15 s (longer only above a minimum rate) and idle time to 60 s. A check-in that its handler
//! holds is not idle. The module also limits the number of connections, in total and per address, and does the checks
//! of each head that hyper does not do. A handler gets the caller ([`Peer`]) and the request, and returns the response.
//! The agents' handler matches its few paths itself, and the admin handler passes the request to its router.
//!
//! A handler runs in the task of its connection. When the peer disconnects, the handler's future is dropped at its
//! current await point. So a handler must spawn work that has to be completed, or send it to another task.

mod body;
mod connections;
mod dispatch;
mod guarded_stream;
mod head;
mod peer;
mod rate;
mod rejections;

#[cfg(test)]
mod tests;

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use stemma_core::shares::ShareHolder;
use tokio_rustls::TlsAcceptor;

use self::connections::{AwaitedEvent, ConnectionGuard, ConnectionMonitor};
use self::dispatch::Dispatcher;
use self::guarded_stream::GuardedStream;
use crate::clock::Clock;
use crate::error::ErrorType;
use crate::message::MAX_BLOB_BYTES;
use crate::net::{Accept, ByteStream};
use crate::tls::{Identity, Refusal, peer_identity};

pub use body::{BodyError, RequestBody};
pub use connections::OpenConnections;
pub use head::{HeadError, HeadReader};
pub use peer::{AdmitOutcome, Peer};
pub use rejections::{RefusalObserver, RefusedPeer, RejectionCounter};

/// An error of any type, with which a body or a connection may end.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The reason of a rejection if a principal or its cluster has its maximum of connections, or if the remaining places
/// are reserved for fleet admins. Either the new connection or request was refused, or an older connection was closed.
pub const PRINCIPAL_LIMIT_REASON: &str = "too_many_connections_of_one_principal";

/// The pause of the accept loop after `accept` failed, usually because the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The time that a connection without a request has for its first request after the listener begins to stop. A client has
/// often connected just before, and does not repeat a request on a connection that broke.
const FIRST_REQUEST_GRACE: Duration = Duration::from_secs(1);
/// hyper's buffer for one connection: large enough for the largest head.
const MAX_BUFFER_BYTES: usize = 32 * 1024;

/// The limits of a listener: timeouts, sizes, and numbers of connections.
#[derive(Clone, Debug)]
pub struct ListenerLimits {
    /// Maximum time of the TLS handshake.
    pub handshake_timeout: Duration,
    /// Maximum time of a head, from its first byte.
    pub header_timeout: Duration,
    /// Maximum time that the server waits for the peer to send a body. The time restarts whenever the peer has sent as
    /// many bytes as the minimum rate requires for this time.
    pub body_timeout: Duration,
    /// Minimum rate of a body that takes longer than `body_timeout`, in bytes per second.
    pub min_body_bytes_per_second: u64,
    /// Maximum time that the server waits for the peer to read a response. The time restarts whenever the peer has read
    /// as many bytes as the minimum rate requires for this time.
    pub write_timeout: Duration,
    /// Minimum rate of a response that takes longer than `write_timeout`, in bytes per second.
    pub min_write_bytes_per_second: u64,
    /// Maximum time until the next request, and until the next bytes of a streamed response.
    pub idle_timeout: Duration,
    /// Maximum size of a body, in bytes. A handler may set a lower limit.
    pub max_body_bytes: u64,
    /// Maximum number of connections in total.
    pub max_connections: usize,
    /// Maximum number of connections from one address.
    pub max_connections_per_address: usize,
    /// Maximum number of connections from one address with an unfinished handshake. So a client that connects and sends
    /// nothing cannot occupy all connections.
    pub max_handshakes_per_address: usize,
    /// Maximum number of connections from one address that finished the handshake but presented neither a certificate
    /// nor a valid token. At the maximum, a new connection replaces the oldest of them that waits for its peer and not
    /// for a handler, so that idle clients cannot lock out others. If there is none, the new connection is refused.
    pub max_unauthenticated_per_address: usize,
    /// Maximum number of connections of one principal, known by certificate or token. `None`: no limit. At the maximum,
    /// a new connection replaces the principal's oldest connection that waits for its peer and not for a handler. All
    /// principals that are bound to one cluster together may have twice this number.
    pub max_connections_per_principal: Option<usize>,
    /// The number of `max_connections` that principals other than fleet admins cannot use (clients without credentials
    /// can). Has an effect only with `max_connections_per_principal`.
    pub reserved_for_admins: usize,
    /// True if all addresses of an IPv6 /64 network count as one address, because one client may own the whole network.
    /// It is false by default, because a whole fleet may be in one such network.
    pub is_per_network: bool,
    /// Maximum time for which requests in progress may continue after the listener begins to stop.
    pub shutdown_timeout: Duration,
}

impl Default for ListenerLimits {
    /// Returns the limits of the agents' listener. The maximum body is the largest blob (64 MiB). 18,000 connections
    /// fit in the file descriptors of the controller's unit (65,536). All may come from one address, because a fleet
    /// may be behind one NAT. Only unfinished handshakes and clients without a certificate have lower limits per
    /// address, so that they cannot occupy all places. A fleet that reconnects at once needs a few thousand handshakes.
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(5),
            header_timeout: Duration::from_secs(5),
            body_timeout: Duration::from_secs(15),
            min_body_bytes_per_second: 16 * 1024,
            write_timeout: Duration::from_secs(15),
            min_write_bytes_per_second: 1024,
            idle_timeout: Duration::from_mins(1),
            max_body_bytes: MAX_BLOB_BYTES as u64,
            max_connections: 18_000,
            max_connections_per_address: 18_000,
            max_handshakes_per_address: 4096,
            max_unauthenticated_per_address: 256,
            max_connections_per_principal: None,
            reserved_for_admins: 0,
            is_per_network: false,
            shutdown_timeout: Duration::from_secs(10),
        }
    }
}

/// Handles the requests of a listener. Implemented for closures `Fn(&Arc<Peer>, Request<RequestBody>) -> Future`.
pub trait Handler: Send + Sync + 'static {
    /// The body of the responses.
    type Body: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static;
    /// The future of a response.
    type Future: Future<Output = Response<Self::Body>> + Send + 'static;

    /// Handles one request, and returns the future of its response. Each open connection reserves memory for such a
    /// future, also while it is idle. So a large future should be boxed.
    fn call(&self, peer: &Arc<Peer>, request: Request<RequestBody>) -> Self::Future;

    /// Receives the notice that a request was refused before [`Self::call`], for example because its body is too large.
    /// A request whose head was refused causes no notice. Does nothing by default.
    fn on_refused(&self, _peer: &Arc<Peer>, _path: &str, _kind: ErrorType) {}
}

/// A handler with an observer, which is called for each request that was refused before it reached the handler.
pub struct ObservedHandler<H, N> {
    /// The handler of the requests that are not refused.
    pub handler: H,
    /// The observer, which is called with the peer, the path and the error type of each refused request.
    pub observer: N,
}

impl<H, N> Handler for ObservedHandler<H, N>
where
    H: Handler,
    N: Fn(&Arc<Peer>, &str, ErrorType) + Send + Sync + 'static,
{
    type Body = H::Body;
    type Future = H::Future;

    fn call(&self, peer: &Arc<Peer>, request: Request<RequestBody>) -> H::Future {
        self.handler.call(peer, request)
    }

    fn on_refused(&self, peer: &Arc<Peer>, path: &str, kind: ErrorType) {
        (self.observer)(peer, path, kind);
    }
}

impl<F, Fut, B> Handler for F
where
    F: Fn(&Arc<Peer>, Request<RequestBody>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static,
{
    type Body = B;
    type Future = Fut;

    fn call(&self, peer: &Arc<Peer>, request: Request<RequestBody>) -> Fut {
        self(peer, request)
    }
}

/// A function that returns the TLS config for a new connection. The server calls it for each connection, so that a
/// renewed certificate is used without a restart.
pub type TlsSource = Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>;

/// A function that returns the principal to which a client's certificate belongs, or `None` if the certificate belongs
/// to no principal.
pub type HolderSource = Arc<dyn Fn(&Identity) -> Option<ShareHolder> + Send + Sync>;

/// A listener with its TLS config and limits.
pub struct Server<L> {
    listener: L,
    /// The source of TLS configs. `None` for plain HTTP.
    tls: Option<TlsSource>,
    /// The source of the principals of certificates. `None` if no connection is counted by its certificate.
    holders: Option<HolderSource>,
    http: http1::Builder,
    /// The path of nearly every request ([`Server::for_own_clients`]).
    common_path: Option<Uri>,
    shared: Arc<ServerState>,
}

/// The state of a server that all of its connections share.
struct ServerState {
    limits: ListenerLimits,
    clock: Arc<dyn Clock>,
    rejections: Arc<RejectionCounter>,
    connections: OpenConnections,
}

impl<L: Accept> Server<L> {
    /// Creates a server on a listener. Without `tls` it serves plain HTTP, for example on root's Unix socket.
    pub fn new(
        listener: L,
        tls: Option<TlsSource>,
        limits: ListenerLimits,
        clock: Arc<dyn Clock>,
        rejections: Arc<RejectionCounter>,
    ) -> Self {
        let connections = OpenConnections::new(&limits);
        let mut http = http1::Builder::new();
        // The sweep enforces the deadlines; hyper's own timer would cost an allocation for each request.
        http.header_read_timeout(None).max_buf_size(MAX_BUFFER_BYTES);
        let shared = Arc::new(ServerState { limits, clock, rejections, connections });
        Self { listener, tls, holders: None, http, common_path: None, shared }
    }

    /// Returns the server, changed to count a connection for the principal of its certificate. `holders` finds this
    /// principal after the handshake. Has an effect only with [`ListenerLimits::max_connections_per_principal`].
    #[must_use]
    pub fn with_holders(self, holders: HolderSource) -> Self {
        Self { holders: Some(holders), ..self }
    }

    /// Optimizes the server for a listener that only Stemma's own agents use. Responses have no header `Date`, because
    /// no agent reads it. The handler gets requests without their headers, because headers would occupy the
    /// connection's read buffer while the handler runs. `common_path` is the path of nearly every request.
    #[must_use]
    pub fn for_own_clients(mut self, common_path: &'static str) -> Self {
        self.http.auto_date_header(false);
        self.common_path = Some(Uri::from_static(common_path));
        self
    }

    /// Returns the open connections, to count and to close them.
    pub fn connections(&self) -> OpenConnections {
        self.shared.connections.clone()
    }

    /// Accepts connections until `stop` is ready. Then closes idle connections, and lets requests in progress, and first
    /// requests that arrive within [`FIRST_REQUEST_GRACE`], finish within [`ListenerLimits::shutdown_timeout`]. Closes the
    /// remaining connections. The caller must make handlers that hold check-ins respond, because otherwise the server
    /// waits for them.
    pub async fn run<H: Handler>(mut self, handler: H, stop: impl Future<Output = ()> + Send) {
        let handler = Arc::new(handler);
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            () = self.accept_connections(handler) => {}
            () = shared.connections.run_sweep(&shared.rejections) => {}
            () = stop => {}
        }
        shared.connections.drain_all();
        let all_closed = || async {
            while shared.connections.count() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let cut_off_silent = async {
            if tokio::time::timeout(FIRST_REQUEST_GRACE, all_closed()).await.is_err() {
                shared.connections.abort_silent();
                all_closed().await;
            }
        };
        if tokio::time::timeout(shared.limits.shutdown_timeout, cut_off_silent).await.is_err() {
            log::warn!(connections = shared.connections.count(); "requests still in progress were cut off at the shutdown timeout");
            shared.connections.abort_all();
        }
    }

    /// Accepts connections, and starts a task for each connection. Never returns. Pauses after each error. Of several
    /// consecutive errors, only the first is logged.
    async fn accept_connections<H: Handler>(&mut self, handler: Arc<H>) {
        let mut is_failing = false;
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    is_failing = false;
                    self.spawn_connection(stream, address, &handler);
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        log::error!(error:% = error; "connections cannot be accepted");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Starts the task of a new connection. If a maximum number of connections is reached, closes the connection and
    /// counts the rejection.
    fn spawn_connection<H: Handler>(&self, stream: L::Stream, address: std::net::SocketAddr, handler: &Arc<H>) {
        let shared = &self.shared;
        let guard = match shared.connections.register(address.ip()) {
            Ok(guard) => guard,
            Err(reason) => return shared.rejections.record(reason, Some(address.ip())),
        };
        let id = guard.id();
        let start = match &self.tls {
            Some(source) => ConnectionStart::Handshake(source()),
            // Without TLS there is no handshake. The peer is identified at once, so that the connection does not count
            // as an unfinished handshake.
            None => ConnectionStart::Plain(guard.set_peer(address, None)),
        };
        let task = ConnectionTask {
            guard,
            address,
            shared: Arc::clone(shared),
            http: self.http.clone(),
            common_path: self.common_path.clone(),
            holders: self.holders.clone(),
            handler: Arc::clone(handler),
        };
        let task = tokio::spawn(task.run(stream, start));
        ConnectionGuard::set_task(&shared.connections, id, task.abort_handle());
    }
}

/// The first step of a connection: a TLS handshake, or its first request.
enum ConnectionStart {
    /// A TLS handshake with this config. It identifies the peer.
    Handshake(Arc<ServerConfig>),
    /// The first request, without TLS. The peer has an address but no identity.
    Plain(Arc<Peer>),
}

/// The data of the task that handles one connection from the handshake to the end.
struct ConnectionTask<H> {
    guard: ConnectionGuard,
    address: std::net::SocketAddr,
    shared: Arc<ServerState>,
    http: http1::Builder,
    common_path: Option<Uri>,
    holders: Option<HolderSource>,
    handler: Arc<H>,
}

impl<H: Handler> ConnectionTask<H> {
    /// Handles the connection until it ends: the handshake, then the requests. A refused client gets no response,
    /// because returning drops the stream. Handshake and requests are boxed, so that the memory of the handshake is
    /// freed early.
    async fn run<S: ByteStream>(self, stream: S, start: ConnectionStart) {
        let tls_config = match start {
            ConnectionStart::Handshake(tls_config) => tls_config,
            ConnectionStart::Plain(peer) => return Box::pin(self.serve(stream, peer)).await,
        };
        self.guard.monitor.set_timeout(AwaitedEvent::Handshake, self.shared.limits.handshake_timeout);
        let handshake = Box::pin(TlsAcceptor::from(tls_config).accept(stream)).await;
        let stream = match handshake {
            Ok(stream) => stream,
            Err(error) => return self.refuse(handshake_rejection_reason(&error)),
        };
        match peer_identity(stream.get_ref().1, self.shared.clock.unix_seconds()) {
            // In the first two cases the client is not admitted. The connection is closed when this function returns.
            Ok(None) if !self.admit_unauthenticated() => {}
            Ok(Some(identity)) if !self.admit_holder(&identity) => {}
            Ok(identity) => {
                let peer = self.guard.set_peer(self.address, identity);
                Box::pin(self.serve(stream, peer)).await;
            }
            Err(refusal) => self.refuse(refusal.reason()),
        }
    }

    /// Handles the requests of a connection after its handshake, until the connection ends. If the connection ends
    /// because hyper cannot parse a request, counts a rejection. Dropping the guard then frees the connection's place.
    async fn serve<S: ByteStream>(self, stream: S, peer: Arc<Peer>) {
        let monitor = Arc::clone(&self.guard.monitor);
        monitor.set_timeout(AwaitedEvent::Request, self.shared.limits.idle_timeout);
        let guarded_stream = GuardedStream::new(stream, Arc::clone(&monitor), Arc::clone(&self.shared), Arc::clone(&peer));
        let shared = Arc::clone(&self.shared);
        let (handler, common_path) = (self.handler, self.common_path);
        let dispatcher =
            Arc::new(Dispatcher { handler, peer: Arc::clone(&peer), monitor: Arc::clone(&monitor), common_path, server: shared });
        let service = service_fn(move |request| dispatcher.respond(request));
        let connection = self.http.serve_connection(TokioIo::new(guarded_stream), service);
        let result = DrainingConnection { connection, monitor, is_registered: false, is_shutdown_sent: false }.await;
        if result.is_err_and(|error| error.is_parse()) {
            self.shared.rejections.record_peer("head_malformed", &peer);
        }
        drop(self.guard);
    }

    /// Returns whether a client without a certificate may stay connected, within the maximum of its address. Counts a
    /// rejection if it may not, or if another connection was closed instead.
    fn admit_unauthenticated(&self) -> bool {
        let outcome = self.guard.admit_unauthenticated();
        if outcome != AdmitOutcome::Admitted {
            self.shared.rejections.record("too_many_strangers_of_one_address", Some(self.address.ip()));
        }
        outcome != AdmitOutcome::Full
    }

    /// Returns whether a client with a certificate may stay connected, within the maximum of its principal. Counts a
    /// rejection if it may not, or if another connection was closed instead.
    fn admit_holder(&self, identity: &Identity) -> bool {
        let holder = self.holders.as_ref().and_then(|find_holder| find_holder(identity));
        let outcome = holder.map_or(AdmitOutcome::Admitted, |holder| self.guard.admit_holder(&holder));
        if outcome != AdmitOutcome::Admitted {
            self.shared.rejections.record(PRINCIPAL_LIMIT_REASON, Some(self.address.ip()));
        }
        outcome != AdmitOutcome::Full
    }

    /// Counts the rejection of the connection, and closes the connection by dropping it.
    fn refuse(self, reason: &'static str) {
        self.shared.rejections.record(reason, Some(self.address.ip()));
    }
}

/// Returns the reason under which a failed handshake is counted as a rejection.
fn handshake_rejection_reason(error: &std::io::Error) -> &'static str {
    if let Some(refusal) = Refusal::from_io_error(error) {
        return refusal.reason();
    }
    match error.get_ref().and_then(|source| source.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::PeerIncompatible(_)) => "tls_incompatible",
        Some(rustls::Error::NoApplicationProtocol) => "tls_no_http1",
        Some(_) => "tls_failed",
        None => "handshake_cut",
    }
}

/// The future of a connection. When the listener stops, the connection ends: at once if it is idle, otherwise after the
/// response to its current or first request.
struct DrainingConnection<C> {
    connection: C,
    monitor: Arc<ConnectionMonitor>,
    /// True after the waker of the task was stored in the monitor.
    is_registered: bool,
    /// True after hyper was requested to end the connection.
    is_shutdown_sent: bool,
}

impl<C> DrainingConnection<C> {
    /// Returns whether hyper must still be requested to end the connection. Without a request on it, hyper would end it at
    /// once, and its first request would be lost.
    fn must_shut_down(&self) -> bool {
        self.monitor.is_draining() && self.monitor.has_request.load(Ordering::Relaxed) && !self.is_shutdown_sent
    }
}

impl<S, V, B> Future for DrainingConnection<http1::Connection<TokioIo<GuardedStream<S>>, V>>
where
    S: ByteStream,
    V: hyper::service::HttpService<hyper::body::Incoming, ResBody = B> + Unpin,
    V::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    type Output = hyper::Result<()>;

    /// Polls hyper's connection. If the listener is stopping, makes hyper end the connection after the current request.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.is_registered {
            self.is_registered = true;
            self.monitor.store_waker(cx.waker());
        }
        loop {
            if self.must_shut_down() {
                self.is_shutdown_sent = true;
                Pin::new(&mut self.connection).graceful_shutdown();
            }
            let result = Pin::new(&mut self.connection).poll(cx);
            // The first request may have arrived in this poll.
            if result.is_ready() || !self.must_shut_down() {
                return result;
            }
        }
    }
}
