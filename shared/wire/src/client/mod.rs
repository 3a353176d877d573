//! A client of one controller, over one persistent connection. The agent (postcard) and the command line (JSON) use it.
//!
//! One connection is enough for both programs, and the agent should use little memory, so there is no pool. If the
//! persistent connection was closed before a request was sent, the request is sent once more on a new one. After any
//! other failure the caller decides; [`ClientError::outcome`] returns whether the request may have been carried out.

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

use crate::net::{ByteStream, Connector, Dialer};
use crate::tls::{Refusal, server_identity};

pub use error::{ClientError, RequestOutcome};
pub use target::{BadTarget, Target};

/// Time and size limits of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Maximum time for name lookup, TCP and TLS together.
    pub connect_timeout: Duration,
    /// Maximum time from the request to the head of the response. A long poll passes its own timeout to
    /// [`Client::send_with_timeout`].
    pub response_timeout: Duration,
    /// Maximum time between two pieces of a body.
    pub body_timeout: Duration,
    /// Maximum size of a response body, in bytes.
    pub max_body_bytes: u64,
}

impl Default for ClientLimits {
    /// Returns 10 s to connect, 30 s for a response, 30 s between pieces, and 64 MiB.
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            response_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            max_body_bytes: 64 * 1024 * 1024,
        }
    }
}

/// A client of one controller, with one persistent connection.
pub struct Client<C: Connector = Dialer> {
    connector: C,
    target: Target,
    host_header: HeaderValue,
    tls: Option<Arc<ClientConfig>>,
    limits: ClientLimits,
    connection: Option<ClientConnection>,
}

/// An open connection: the sender of requests, and the task that reads and writes the connection.
struct ClientConnection {
    sender: SendRequest<Full<Bytes>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client<Dialer> {
    /// Creates a client over TCP, or over the socket of the target. `tls` is the result of
    /// [`crate::tls::client_config`], and is needed if the target is `https`.
    pub fn new(target: Target, tls: Option<Arc<ClientConfig>>, limits: ClientLimits) -> Self {
        let dial = target.socket.clone().map_or(Dialer::Tcp, Dialer::Unix);
        Self::with_connector(dial, target, tls, limits)
    }
}

impl<C: Connector> Client<C> {
    /// Creates a client over another kind of connection.
    pub fn with_connector(connector: C, target: Target, tls: Option<Arc<ClientConfig>>, limits: ClientLimits) -> Self {
        let host_header = HeaderValue::from_str(&target.authority()).expect("a target's host is printable ASCII");
        Self { connector, target, host_header, tls, limits, connection: None }
    }

    /// Returns the controller that the client calls.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Closes the connection. The next request opens another.
    pub fn close(&mut self) {
        self.connection = None;
    }

    /// Sends a request and returns the complete response. The URI must be a path; `Host` is set here.
    ///
    /// # Errors
    /// [`ClientError`]. A response with an error status is not an error.
    pub async fn send(&mut self, request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        self.send_with_timeout(request, self.limits.response_timeout).await
    }

    /// Sends a request as [`Client::send`] does, with another timeout for the head of the response (a long poll's wait
    /// and a margin).
    ///
    /// # Errors
    /// The same errors as [`Client::send`].
    pub async fn send_with_timeout(&mut self, request: Request<Bytes>, within: Duration) -> Result<Response<Bytes>, ClientError> {
        let (parts, body) = self.send_head(request, within).await?.into_parts();
        let body_bytes = self.collect(body, self.limits.max_body_bytes).await?;
        Ok(Response::from_parts(parts, body_bytes))
    }

    /// Sends a request and passes the response's body to `sink` piece by piece, if the status is a success. The body of
    /// an error response is returned, up to 64 KiB. For profiles and blobs, which are hashed while they arrive.
    /// While `sink` waits, nothing more is read.
    ///
    /// # Errors
    /// The same errors as [`Client::send`], and [`ClientError::NotTaken`] with the error of `sink`.
    pub async fn stream(
        &mut self,
        request: Request<Bytes>,
        mut sink: impl AsyncFnMut(Bytes) -> std::io::Result<()>,
    ) -> Result<Response<Bytes>, ClientError> {
        let (parts, body) = self.send_head(request, self.limits.response_timeout).await?.into_parts();
        if !parts.status.is_success() {
            let error = self.collect(body, 64 * 1024).await?;
            return Ok(Response::from_parts(parts, error));
        }
        let mut pieces = BoundedBody::new(body, self.limits.max_body_bytes, self.limits.body_timeout);
        loop {
            let result = match pieces.next().await {
                Ok(Some(piece)) => sink(piece).await.map_err(|source| ClientError::NotTaken { source }),
                Ok(None) => return Ok(Response::from_parts(parts, Bytes::new())),
                Err(error) => Err(error),
            };
            // A connection with an unread body is not used again.
            result.inspect_err(|_| self.close())?;
        }
    }

    /// Sends a request and waits for the head of the response. If the persistent connection was closed before the
    /// request was sent, opens a new one and sends the request once more.
    async fn send_head(&mut self, mut request: Request<Bytes>, within: Duration) -> Result<Response<Incoming>, ClientError> {
        request.headers_mut().insert(HOST, self.host_header.clone());
        let mut request = request.map(Full::new);
        let mut is_reused = self.connection.is_some();
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
                        // The persistent connection was closed while it was idle.
                        Some(unsent_request) if is_reused => (request, is_reused) = (unsent_request, false),
                        _ => return Err(ClientError::Broken { source: error.into_error() }),
                    }
                }
            }
        }
    }

    /// Returns the open connection, or opens one within the timeout.
    async fn connection(&mut self) -> Result<&mut ClientConnection, ClientError> {
        if self.connection.as_ref().is_some_and(|open| open.sender.is_closed()) {
            self.connection = None;
        }
        if self.connection.is_none() {
            let within = self.limits.connect_timeout;
            let result = tokio::time::timeout(within, self.dial()).await;
            let timeout = ClientError::ConnectTimeout { target: self.target.clone(), within };
            self.connection = Some(result.map_err(|_| timeout)??);
        }
        let open = self.connection.as_mut().expect("opened just above");
        Ok(open)
    }

    /// Opens a connection: TCP or Unix socket, TLS if the target requires it, and HTTP.
    async fn dial(&self) -> Result<ClientConnection, ClientError> {
        let target = || self.target.clone();
        let stream = self.connector.connect(&self.target.host, self.target.port).await;
        let stream = stream.map_err(|source| ClientError::Unreachable { target: target(), source })?;
        let Some(tls) = self.tls.clone().filter(|_| self.target.is_tls) else {
            return self.handshake_http(stream).await;
        };
        let name = ServerName::try_from(self.target.host.clone())
            .map_err(|_| ClientError::Untrusted { target: target(), source: Refusal::WrongName })?;
        let stream =
            TlsConnector::from(tls).connect(name, stream).await.map_err(|source| match Refusal::from_io_error(&source) {
                Some(refusal) => ClientError::Untrusted { target: target(), source: refusal.clone() },
                None => ClientError::Handshake { target: target(), source },
            })?;
        server_identity(stream.get_ref().1, 0).map_err(|source| ClientError::Untrusted { target: target(), source })?;
        self.handshake_http(stream).await
    }

    /// Starts HTTP on a stream, with a task that runs the connection.
    async fn handshake_http<S: ByteStream>(&self, stream: S) -> Result<ClientConnection, ClientError> {
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(32 * 1024)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|source| ClientError::Broken { source })?;
        // The error is ignored here, because hyper also returns it to the caller that waits for a response.
        let task = tokio::spawn(async move { drop(connection.await) });
        Ok(ClientConnection { sender, task })
    }

    /// Reads a whole body. If that fails, the connection is not used again.
    async fn collect(&mut self, body: Incoming, limit: u64) -> Result<Bytes, ClientError> {
        let mut buffer = BytesMut::with_capacity(usize::try_from(body.size_hint().lower().min(64 * 1024)).unwrap_or(0));
        let mut pieces = BoundedBody::new(body, limit, self.limits.body_timeout);
        while let Some(piece) = pieces.next().await.inspect_err(|_| self.close())? {
            buffer.extend_from_slice(&piece);
        }
        Ok(buffer.freeze())
    }
}

/// A body that is read piece by piece, up to a maximum size.
struct BoundedBody {
    body: Incoming,
    received_bytes: u64,
    max_bytes: u64,
    timeout: Duration,
}

impl BoundedBody {
    fn new(body: Incoming, max_bytes: u64, timeout: Duration) -> Self {
        Self { body, received_bytes: 0, max_bytes, timeout }
    }

    /// Returns the next piece, or `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let Self { max_bytes: limit, timeout: within, .. } = *self;
        if self.body.size_hint().lower() > limit - self.received_bytes {
            return Err(ClientError::TooLarge { limit });
        }
        loop {
            let frame = tokio::time::timeout(within, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| ClientError::AnswerTimeout { within })? else { return Ok(None) };
            let frame = frame.map_err(|source| ClientError::Broken { source })?;
            let Ok(piece) = frame.into_data() else { continue };
            self.received_bytes += piece.len() as u64;
            if self.received_bytes > limit {
                return Err(ClientError::TooLarge { limit });
            }
            return Ok(Some(piece));
        }
    }
}
