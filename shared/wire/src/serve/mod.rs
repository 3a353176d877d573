//! The accept loop of both listeners.
//!
//! `axum::serve` sets no timer (half a header is still connected after 45 s), and the agents' listener has no
//! router crate at all, so connections are taken here: handshake 5 s, header 5 s, body 15 s and longer only at a least rate, idle 60 s (a
//! check-in that is held by its handler is not idle), caps in all and for one address, and the checks of each head that hyper
//! does not make. A handler is given who asks ([`Peer`]) and the request, and answers; the agents' side matches its few paths itself, the
//! admin side hands the request to its router.
//!
//! A handler runs in its connection's task: when the peer goes away, the handler's future is dropped where it stands.
//! What must not be left half done is spawned, or sent to who does it.

mod answer;
mod body;
mod connections;
mod guard;
mod head;
mod pace;
mod peer;
mod rejected;

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
use stemma_core::shares::Holder;
use tokio_rustls::TlsAcceptor;

use self::answer::Answerer;
use self::connections::{Awaited, Place, Watch};
use self::guard::Guard;
use crate::clock::Clock;
use crate::error::ErrorType;
use crate::net::{Listen, Stream};
use crate::tls::{Identity, Refusal, peer_identity};

pub use body::{BodyError, RequestBody};
pub use connections::Connections;
pub use head::{Fault, HeadReader};
pub use peer::{Peer, Room};
pub use rejected::{Refused, Rejected, Witness};

/// Any error that a body or a connection may end with.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Why a connection of a principal that has its part of the places is refused, or another one of it was cut.
pub const TOO_MANY_OF_ONE_PRINCIPAL: &str = "too_many_connections_of_one_principal";

/// How long accepting waits after the system refused (out of descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// hyper's buffer for a connection: large enough for the largest head.
const MAX_BUFFER: usize = 32 * 1024;

/// The measures of a listener.
#[derive(Clone, Debug)]
pub struct Limits {
    /// For the TLS handshake.
    pub handshake: Duration,
    /// For a head, from its first byte.
    pub header: Duration,
    /// For how long the peer of a body is waited for. Each time that it sends as much as the least rate asks of this time, the time begins anew.
    pub body: Duration,
    /// The least rate at which a body may take longer than that, in bytes a second.
    pub body_bytes_per_second: u64,
    /// For how long a peer is waited for that takes an answer, likewise.
    pub write: Duration,
    /// The least rate at which an answer may be taken longer than that, in bytes a second.
    pub write_bytes_per_second: u64,
    /// For the next request, and for the next bytes of an answer that is streamed.
    pub idle: Duration,
    /// The largest body that any handler takes, in bytes; a handler may take less.
    pub body_bytes: u64,
    /// Connections in all.
    pub connections: usize,
    /// Connections of one address.
    pub connections_of_one_address: usize,
    /// Connections of one address that have not finished their handshake. What somebody can hold who says nothing at all.
    pub handshakes_of_one_address: usize,
    /// Connections of one address that showed neither a certificate nor a good token, once their handshake is made. What strangers can
    /// hold. One more takes the place of the one that is there for the longest, so that nobody is locked out by those who only sit there.
    pub strangers_of_one_address: usize,
    /// Connections of one principal that has shown who it is, by certificate or token; `None`: they are not counted. One more takes the place of the
    /// one that is there for the longest, where its request is not being answered. All principals that are bound to one cluster have twice as many together.
    pub connections_of_one_principal: Option<usize>,
    /// How many of all connections are kept for admins of the fleet, where those of principals are counted: who shows to be another has none of
    /// the last ones.
    pub connections_for_admins: usize,
    /// Whether an IPv6 network of 64 bits, which one host may have all to itself, counts as one address. A fleet may stand in one.
    pub networks_are_addresses: bool,
    /// How long requests in hand may take after the listener was told to stop.
    pub shutdown: Duration,
}

impl Default for Limits {
    /// docs/trust.md's timers; 64 MiB (the largest blob) a body; 18,000 connections, as a process has 20,000
    /// descriptors, and all of them may come from one address (a fleet behind one translator), but for those who show
    /// no certificate, and for those who have shown nothing yet: of these a fleet that comes back at once has a few
    /// thousand, and one address never all of the places.
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            header: Duration::from_secs(5),
            body: Duration::from_secs(15),
            body_bytes_per_second: 16 * 1024,
            write: Duration::from_secs(15),
            write_bytes_per_second: 1024,
            idle: Duration::from_mins(1),
            body_bytes: 64 * 1024 * 1024,
            connections: 18_000,
            connections_of_one_address: 18_000,
            handshakes_of_one_address: 4096,
            strangers_of_one_address: 256,
            connections_of_one_principal: None,
            connections_for_admins: 0,
            networks_are_addresses: false,
            shutdown: Duration::from_secs(10),
        }
    }
}

/// What answers the requests of a listener. Implemented by closures `Fn(&Arc<Peer>, Request<RequestBody>) -> Future`.
pub trait Handler: Send + Sync + 'static {
    /// The body of its answers.
    type Body: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static;
    /// The answer to come.
    type Future: Future<Output = Response<Self::Body>> + Send + 'static;

    /// Answers one request. The future lies in the connection's memory for as long as that is open, so one that is large is to be boxed.
    fn call(&self, peer: &Arc<Peer>, request: Request<RequestBody>) -> Self::Future;

    /// Hears of a request to this path that was refused before it came here.
    fn note_refused(&self, _peer: &Arc<Peer>, _path: &str, _kind: ErrorType) {}
}

/// A handler, beside one who hears of what is refused before it comes there.
pub struct Hearing<H, N> {
    /// The handler.
    pub handler: H,
    /// Who hears: of whom, the path, and why.
    pub note: N,
}

impl<H, N> Handler for Hearing<H, N>
where
    H: Handler,
    N: Fn(&Arc<Peer>, &str, ErrorType) + Send + Sync + 'static,
{
    type Body = H::Body;
    type Future = H::Future;

    fn call(&self, peer: &Arc<Peer>, request: Request<RequestBody>) -> H::Future {
        self.handler.call(peer, request)
    }

    fn note_refused(&self, peer: &Arc<Peer>, path: &str, kind: ErrorType) {
        (self.note)(peer, path, kind);
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

/// The TLS config of a new connection; asked each time, so that a renewed certificate is served without a restart.
pub type TlsSource = Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>;

/// Whose a connection is by its certificate; `None`: no principal's.
pub type HolderSource = Arc<dyn Fn(&Identity) -> Option<Holder> + Send + Sync>;

/// A listener with what it needs.
pub struct Server<L> {
    listen: L,
    tls: Option<TlsSource>,
    holders: Option<HolderSource>,
    http: http1::Builder,
    usual: Option<Uri>,
    shared: Arc<Shared>,
}

struct Shared {
    limits: Limits,
    clock: Arc<dyn Clock>,
    rejected: Arc<Rejected>,
    connections: Connections,
}

impl<L: Listen> Server<L> {
    /// A listener; without `tls` it speaks plain HTTP (the loopback listener for development).
    pub fn new(
        listen: L,
        tls: Option<TlsSource>,
        limits: Limits,
        clock: Arc<dyn Clock>,
        rejected: Arc<Rejected>,
    ) -> Self {
        let connections = Connections::new(&limits);
        let mut http = http1::Builder::new();
        // Deadlines are the sweep's; hyper's own timer would cost an allocation for each request.
        http.header_read_timeout(None).max_buf_size(MAX_BUFFER);
        let shared = Arc::new(Shared { limits, clock, rejected, connections });
        Self { listen, tls, holders: None, http, usual: None, shared }
    }

    /// For a listener that counts the connections of principals: whose one is, is known once its handshake is made.
    #[must_use]
    pub fn known_by(self, holders: HolderSource) -> Self {
        Self { holders: Some(holders), ..self }
    }

    /// For a listener whose clients are all of our own: no `Date` in the answers, which none of them looks at, and
    /// requests without their headers, which hold the connection's buffer, so that it could not be used again while
    /// the handler is at work. `usual` is the path of nearly every request.
    #[must_use]
    pub fn lean(mut self, usual: &'static str) -> Self {
        self.http.auto_date_header(false);
        self.usual = Some(Uri::from_static(usual));
        self
    }

    /// The connections, to count and to cut.
    pub fn connections(&self) -> Connections {
        self.shared.connections.clone()
    }

    /// Takes connections until `stop` is ready; then closes the idle ones, lets requests in hand end within
    /// [`Limits::shutdown`], and cuts the rest. Handlers that hold check-ins are to be told by who stops the listener.
    pub async fn run<H: Handler>(mut self, handler: H, stop: impl Future<Output = ()> + Send) {
        let handler = Arc::new(handler);
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            () = self.accept(handler) => {}
            () = shared.connections.sweep(&shared.rejected) => {}
            () = stop => {}
        }
        shared.connections.drain();
        let emptied = async {
            while shared.connections.count() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(shared.limits.shutdown, emptied).await.is_err() {
            log::warn!(connections = shared.connections.count(); "requests in hand were cut at the end of the time to stop");
            shared.connections.abort();
        }
    }

    async fn accept<H: Handler>(&mut self, handler: Arc<H>) {
        let mut failing = false;
        loop {
            match self.listen.accept().await {
                Ok((stream, address)) => {
                    failing = false;
                    self.take(stream, address, &handler);
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        log::error!(error:% = error; "connections cannot be accepted");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn take<H: Handler>(&self, stream: L::Stream, address: std::net::SocketAddr, handler: &Arc<H>) {
        let shared = &self.shared;
        let place = match shared.connections.enter(address.ip()) {
            Ok(place) => place,
            Err(reason) => return shared.rejected.refuse(reason, Some(address.ip())),
        };
        let id = place.id();
        let greeting = match &self.tls {
            Some(source) => Greeting::Handshake(source()),
            // Before its task runs: there is no handshake that it could leave unfinished.
            None => Greeting::Nothing(place.meet(address, None)),
        };
        let task = Task {
            place,
            address,
            shared: Arc::clone(shared),
            http: self.http.clone(),
            usual: self.usual.clone(),
            holders: self.holders.clone(),
            handler: Arc::clone(handler),
        };
        let task = tokio::spawn(task.run(stream, greeting));
        Place::set_task(&shared.connections, id, task.abort_handle());
    }
}

/// What a connection begins with.
enum Greeting {
    /// A TLS handshake, which says who the peer is.
    Handshake(Arc<ServerConfig>),
    /// Its first request: nobody says who they are.
    Nothing(Arc<Peer>),
}

/// One connection, from its handshake on.
struct Task<H> {
    place: Place,
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
    http: http1::Builder,
    usual: Option<Uri>,
    holders: Option<HolderSource>,
    handler: Arc<H>,
}

impl<H: Handler> Task<H> {
    /// Each stage is boxed, so that what a handshake needs is not kept for as long as the connection lives.
    async fn run<S: Stream>(self, stream: S, greeting: Greeting) {
        let tls = match greeting {
            Greeting::Handshake(tls) => tls,
            Greeting::Nothing(peer) => return Box::pin(self.serve(stream, peer)).await,
        };
        self.place.watch.expect(Awaited::Handshake, self.shared.limits.handshake);
        let accepted = Box::pin(TlsAcceptor::from(tls).accept(stream)).await;
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => return self.refuse(handshake_reason(&error)),
        };
        match peer_identity(stream.get_ref().1, self.shared.clock.unix_seconds()) {
            Ok(None) if !self.admits_stranger() => {}
            Ok(Some(identity)) if !self.admits_holder(&identity) => {}
            Ok(identity) => {
                let peer = self.place.meet(self.address, identity);
                Box::pin(self.serve(stream, peer)).await;
            }
            Err(refusal) => self.refuse(refusal.reason()),
        }
    }

    async fn serve<S: Stream>(self, stream: S, peer: Arc<Peer>) {
        let watch = Arc::clone(&self.place.watch);
        watch.expect(Awaited::Request, self.shared.limits.idle);
        let guard = Guard::new(stream, Arc::clone(&watch), Arc::clone(&self.shared), Arc::clone(&peer));
        let shared = Arc::clone(&self.shared);
        let (handler, usual) = (self.handler, self.usual);
        let answerer =
            Arc::new(Answerer { handler, peer: Arc::clone(&peer), watch: Arc::clone(&watch), usual, shared });
        let service = service_fn(move |request| answerer.answer(request));
        let connection = self.http.serve_connection(TokioIo::new(guard), service);
        let ended = Drained { connection, watch, registered: false, told: false }.await;
        if ended.is_err_and(|error| error.is_parse()) {
            self.shared.rejected.refuse_peer("head_malformed", &peer);
        }
        drop(self.place);
    }

    /// Whether who showed no certificate has a place. What another lost for it is counted as what is refused.
    fn admits_stranger(&self) -> bool {
        let room = self.place.count_stranger();
        if room != Room::Free {
            self.shared.rejected.refuse("too_many_strangers_of_one_address", Some(self.address.ip()));
        }
        room != Room::Full
    }

    /// Whether who showed a certificate has a place among those of its principal. What another lost for it is counted likewise.
    fn admits_holder(&self, identity: &Identity) -> bool {
        let holder = self.holders.as_ref().and_then(|holder_of| holder_of(identity));
        let room = holder.map_or(Room::Free, |holder| self.place.hold(&holder));
        if room != Room::Free {
            self.shared.rejected.refuse(TOO_MANY_OF_ONE_PRINCIPAL, Some(self.address.ip()));
        }
        room != Room::Full
    }

    fn refuse(self, reason: &'static str) {
        self.shared.rejected.refuse(reason, Some(self.address.ip()));
    }
}

/// Why a handshake failed, by its stable name.
fn handshake_reason(error: &std::io::Error) -> &'static str {
    if let Some(refusal) = Refusal::of_io(error) {
        return refusal.reason();
    }
    match error.get_ref().and_then(|source| source.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::PeerIncompatible(_)) => "tls_incompatible",
        Some(rustls::Error::NoApplicationProtocol) => "tls_no_http1",
        Some(_) => "tls_failed",
        None => "handshake_cut",
    }
}

/// A connection that ends when the listener is told to stop: at once when idle, else after its answer.
struct Drained<C> {
    connection: C,
    watch: Arc<Watch>,
    registered: bool,
    told: bool,
}

impl<S, V, B> Future for Drained<http1::Connection<TokioIo<Guard<S>>, V>>
where
    S: Stream,
    V: hyper::service::HttpService<hyper::body::Incoming, ResBody = B> + Unpin,
    V::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    type Output = hyper::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.registered {
            self.registered = true;
            self.watch.register(cx.waker());
        }
        if self.watch.is_draining() && !self.told {
            self.told = true;
            if !self.watch.used.load(Ordering::Relaxed) {
                // hyper would wait for a first request.
                return Poll::Ready(Ok(()));
            }
            Pin::new(&mut self.connection).graceful_shutdown();
        }
        Pin::new(&mut self.connection).poll(cx)
    }
}
