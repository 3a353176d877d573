//! A client of one controller, over one connection that is kept: what the agent (postcard) and the command line (JSON) call with.
//!
//! One connection is enough for both, and the agent's memory has no room for a pool. A request that was never sent because
//! the kept connection had just been closed is sent again on a new one, once; anything else is the caller's to decide, and
//! [`ClientError::outcome`] says whether the request may have been carried out.

mod error;
mod target;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use crate::net::{Connect, Dial, Stream};
use crate::tls::{Refusal, server_identity};

pub use error::{ClientError, RequestOutcome};
pub use target::{BadTarget, Target};

/// How long things may take, and how much may come.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// For name look-up, TCP and TLS together.
    pub connect: Duration,
    /// For an answer's head, from the request on; a long poll gives its own with [`Client::send_within`].
    pub answer: Duration,
    /// Between two pieces of a body.
    pub body: Duration,
    /// The largest body that is taken, in bytes.
    pub body_bytes: u64,
}

impl Default for ClientLimits {
    /// 10 s to connect, 30 s for an answer, 30 s between pieces, 64 MiB.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(30),
            body: Duration::from_secs(30),
            body_bytes: 64 * 1024 * 1024,
        }
    }
}

/// A client of one controller.
pub struct Client<C: Connect = Dial> {
    connect: C,
    target: Target,
    host_header: HeaderValue,
    tls: Option<Arc<ClientConfig>>,
    limits: ClientLimits,
    open: Option<Open>,
}

struct Open {
    sender: SendRequest<Full<Bytes>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client<Dial> {
    /// A client over TCP, or to the socket that the target names. `tls` is of [`crate::tls::client_config`], and needed where the target is `https`.
    pub fn new(target: Target, tls: Option<Arc<ClientConfig>>, limits: ClientLimits) -> Self {
        let dial = target.socket.clone().map_or(Dial::Tcp, Dial::Unix);
        Self::over(dial, target, tls, limits)
    }
}

impl<C: Connect> Client<C> {
    /// A client over another kind of connection.
    pub fn over(connect: C, target: Target, tls: Option<Arc<ClientConfig>>, limits: ClientLimits) -> Self {
        let host_header = HeaderValue::from_str(&target.authority()).expect("a target's host is printable ASCII");
        Self { connect, target, host_header, tls, limits, open: None }
    }

    /// Who is called.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Lets the connection go; the next request opens another.
    pub fn close(&mut self) {
        self.open = None;
    }

    /// Sends a request and takes the whole answer. The URI is a path; `Host` is set here.
    ///
    /// # Errors
    /// [`ClientError`]. An answer with an error status is an answer.
    pub async fn send(&mut self, request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        self.send_within(request, self.limits.answer).await
    }

    /// The same, waiting so long for the answer to begin (a long poll's wait and a margin).
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn send_within(
        &mut self,
        request: Request<Bytes>,
        within: Duration,
    ) -> Result<Response<Bytes>, ClientError> {
        let (parts, body) = self.start(request, within).await?.into_parts();
        let whole = self.collect(body, self.limits.body_bytes).await?;
        Ok(Response::from_parts(parts, whole))
    }

    /// Sends a request and hands the answer's body to `sink` piece by piece, where the status is a success; any other is taken whole,
    /// up to 64 KiB, as the error that it is. For blobs, verified by hash while they arrive. While `sink` waits, nothing more is read.
    ///
    /// # Errors
    /// As [`Client::send`]; [`ClientError::NotTaken`] with what `sink` said.
    pub async fn stream(
        &mut self,
        request: Request<Bytes>,
        mut sink: impl AsyncFnMut(Bytes) -> std::io::Result<()>,
    ) -> Result<Response<Bytes>, ClientError> {
        let (parts, body) = self.start(request, self.limits.answer).await?.into_parts();
        if !parts.status.is_success() {
            let error = self.collect(body, 64 * 1024).await?;
            return Ok(Response::from_parts(parts, error));
        }
        let mut pieces = Pieces::new(body, self.limits.body_bytes, self.limits.body);
        loop {
            let taken = match pieces.next().await {
                Ok(Some(piece)) => sink(piece).await.map_err(|source| ClientError::NotTaken { source }),
                Ok(None) => return Ok(Response::from_parts(parts, Bytes::new())),
                Err(error) => Err(error),
            };
            // A connection whose body was left is not used again.
            taken.inspect_err(|_| self.close())?;
        }
    }

    async fn start(
        &mut self,
        mut request: Request<Bytes>,
        within: Duration,
    ) -> Result<Response<Incoming>, ClientError> {
        request.headers_mut().insert(HOST, self.host_header.clone());
        let mut request = request.map(Full::new);
        let mut kept = self.open.is_some();
        loop {
            let open = self.connection().await?;
            match tokio::time::timeout(within, open.sender.try_send_request(request)).await {
                Err(_) => {
                    self.close();
                    return Err(ClientError::AnswerTimeout { within });
                }
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(mut error)) => {
                    let unsent = error.take_message();
                    self.close();
                    match unsent {
                        // The kept connection was closed while it lay idle.
                        Some(again) if kept => (request, kept) = (again, false),
                        _ => return Err(ClientError::Broken { source: error.into_error() }),
                    }
                }
            }
        }
    }

    async fn connection(&mut self) -> Result<&mut Open, ClientError> {
        if self.open.as_ref().is_some_and(|open| open.sender.is_closed()) {
            self.open = None;
        }
        if self.open.is_none() {
            let within = self.limits.connect;
            let opened = tokio::time::timeout(within, self.dial()).await;
            let timeout = ClientError::ConnectTimeout { target: self.target.clone(), within };
            self.open = Some(opened.map_err(|_| timeout)??);
        }
        let open = self.open.as_mut().expect("opened just above");
        Ok(open)
    }

    async fn dial(&self) -> Result<Open, ClientError> {
        let target = || self.target.clone();
        let stream = self.connect.connect(&self.target.host, self.target.port).await;
        let stream = stream.map_err(|source| ClientError::Unreachable { target: target(), source })?;
        let Some(tls) = self.tls.clone().filter(|_| self.target.tls) else {
            return self.speak(stream).await;
        };
        let name = ServerName::try_from(self.target.host.clone())
            .map_err(|_| ClientError::Untrusted { target: target(), source: Refusal::WrongName })?;
        let stream =
            TlsConnector::from(tls).connect(name, stream).await.map_err(|source| match Refusal::of_io(&source) {
                Some(refusal) => ClientError::Untrusted { target: target(), source: refusal.clone() },
                None => ClientError::Handshake { target: target(), source },
            })?;
        server_identity(stream.get_ref().1, 0).map_err(|source| ClientError::Untrusted { target: target(), source })?;
        self.speak(stream).await
    }

    async fn speak<S: Stream>(&self, stream: S) -> Result<Open, ClientError> {
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(32 * 1024)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|source| ClientError::Broken { source })?;
        // How it ended is told to who waits for an answer.
        let task = tokio::spawn(async move { drop(connection.await) });
        Ok(Open { sender, task })
    }

    /// The whole of a body; a connection whose body was left is not used again.
    async fn collect(&mut self, body: Incoming, limit: u64) -> Result<Bytes, ClientError> {
        let mut whole = BytesMut::with_capacity(usize::try_from(body.size_hint().lower().min(64 * 1024)).unwrap_or(0));
        let mut pieces = Pieces::new(body, limit, self.limits.body);
        while let Some(piece) = pieces.next().await.inspect_err(|_| self.close())? {
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }
}

/// A body as it arrives, within its bound.
struct Pieces {
    body: Incoming,
    taken: u64,
    limit: u64,
    within: Duration,
}

impl Pieces {
    fn new(body: Incoming, limit: u64, within: Duration) -> Self {
        Self { body, taken: 0, limit, within }
    }

    /// The next piece; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let Self { limit, within, .. } = *self;
        if self.body.size_hint().lower() > limit - self.taken {
            return Err(ClientError::TooLarge { limit });
        }
        loop {
            let frame = tokio::time::timeout(within, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| ClientError::AnswerTimeout { within })? else { return Ok(None) };
            let frame = frame.map_err(|source| ClientError::Broken { source })?;
            let Ok(piece) = frame.into_data() else { continue };
            self.taken += piece.len() as u64;
            if self.taken > limit {
                return Err(ClientError::TooLarge { limit });
            }
            return Ok(Some(piece));
        }
    }
}
