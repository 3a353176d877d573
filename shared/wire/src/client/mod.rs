//! A client of one controller, over one persistent connection. The agent and the command line use this client. Bodies
//! are in the binary format postcard for the agent, and in JSON for the command line.
//!
//! One connection is enough for both programs, and the agent should use little memory, so there is no connection pool.
//! If the persistent connection was closed before a request was sent, the client sends the request once more on a new
//! connection. After any other failure the caller decides: [`ClientError::outcome`] returns whether the server may have
//! executed the request.

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

use crate::message::MAX_BLOB_BYTES;
use crate::net::{ByteStream, Connector, Dialer};
use crate::tls::{Refusal, server_identity};

pub use error::{ClientError, RequestOutcome};
pub use target::{InvalidTarget, Target};

/// Time and size limits of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Maximum time for name lookup, TCP and TLS together.
    pub connect_timeout: Duration,
    /// Maximum time from the start of sending, on an open connection, to the head (status and headers) of the response.
    /// The time to connect does not count. A long poll passes its own timeout to [`Client::send_with_timeout`].
    pub response_timeout: Duration,
    /// Maximum time until the next piece of a response body arrives, and also until the first piece.
    pub body_timeout: Duration,
    /// Maximum size of a response body, in bytes. For an error response to [`Client::stream`], the maximum is 64 KiB
    /// instead.
    pub max_body_bytes: u64,
}

impl Default for ClientLimits {
    /// Returns the default limits: 10 s to connect, 30 s for the head of a response, 30 s between two pieces of a body,
    /// and 64 MiB for a body.
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            response_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            max_body_bytes: MAX_BLOB_BYTES as u64,
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
    /// Stops the task of the connection, which closes the connection.
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client<Dialer> {
    /// Creates a client that connects over TCP, or over the Unix socket if the target names one. `tls` is the result of
    /// [`crate::tls::client_config`], and is required if the target is `https`: without it, the client would connect
    /// without TLS.
    pub fn new(target: Target, tls: Option<Arc<ClientConfig>>, limits: ClientLimits) -> Self {
        let connector = target.socket.clone().map_or(Dialer::Tcp, Dialer::Unix);
        Self::with_connector(connector, target, tls, limits)
    }
}

impl<C: Connector> Client<C> {
    /// Creates a client that opens its connection with `connector`, for example a simulated network in a test.
    pub fn with_connector(connector: C, target: Target, tls: Option<Arc<ClientConfig>>, limits: ClientLimits) -> Self {
        let host_header = HeaderValue::from_str(&target.authority()).expect("a target's host is printable ASCII");
        Self { connector, target, host_header, tls, limits, connection: None }
    }

    /// Returns the address of the controller that the client calls.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Closes the connection. The next request opens a new one.
    pub fn close(&mut self) {
        self.connection = None;
    }

    /// Sends a request and returns the complete response. The URI of the request must be a path. The client adds the
    /// header `Host`.
    ///
    /// # Errors
    /// Fails with [`ClientError`] if there is no complete response. A response with an error status is not an error.
    pub async fn send(&mut self, request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        self.send_with_timeout(request, self.limits.response_timeout).await
    }

    /// Sends a request as [`Client::send`] does, with `limit` as the timeout for the head of the response. A
    /// long poll passes the time that the server may wait, plus a margin.
    ///
    /// # Errors
    /// Fails as [`Client::send`] does.
    pub async fn send_with_timeout(&mut self, request: Request<Bytes>, limit: Duration) -> Result<Response<Bytes>, ClientError> {
        let (parts, body) = self.send_head(request, limit).await?.into_parts();
        let body_bytes = self.read_body(body, self.limits.max_body_bytes).await?;
        Ok(Response::from_parts(parts, body_bytes))
    }

    /// Sends a request and passes the body of a successful response to `sink`, piece by piece. The returned response
    /// then has an empty body. The body of an error response (at most 64 KiB) is in the returned response.
    ///
    /// Large downloads use this function, so that the caller can hash a body while it arrives. The client reads the
    /// next piece only after `sink` has finished.
    ///
    /// # Errors
    /// Fails as [`Client::send`] does, and with [`ClientError::NotTaken`] if `sink` fails.
    pub async fn stream(
        &mut self,
        request: Request<Bytes>,
        mut sink: impl AsyncFnMut(Bytes) -> std::io::Result<()>,
    ) -> Result<Response<Bytes>, ClientError> {
        let (parts, body) = self.send_head(request, self.limits.response_timeout).await?.into_parts();
        if !parts.status.is_success() {
            let error_body = self.read_body(body, 64 * 1024).await?;
            return Ok(Response::from_parts(parts, error_body));
        }
        let mut bounded_body = BoundedBody::new(body, self.limits.max_body_bytes, self.limits.body_timeout);
        loop {
            let result = match bounded_body.next().await {
                Ok(Some(piece)) => sink(piece).await.map_err(|source| ClientError::NotTaken { source }),
                Ok(None) => return Ok(Response::from_parts(parts, Bytes::new())),
                Err(error) => Err(error),
            };
            // A connection on which a part of the body is unread cannot be used for another request.
            result.inspect_err(|_| self.close())?;
        }
    }

    /// Sends a request and returns the response when its head (status and headers) has arrived. If the persistent
    /// connection was closed before the request was sent, opens a new connection and sends the request once more.
    async fn send_head(&mut self, mut request: Request<Bytes>, timeout: Duration) -> Result<Response<Incoming>, ClientError> {
        request.headers_mut().insert(HOST, self.host_header.clone());
        let mut request = request.map(Full::new);
        let mut is_reused = self.connection.is_some();
        loop {
            let connection = self.open_connection().await?;
            match tokio::time::timeout(timeout, connection.sender.try_send_request(request)).await {
                Err(_) => {
                    self.close();
                    return Err(ClientError::AnswerTimeout { within: timeout });
                }
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(mut error)) => {
                    let unsent_request = error.take_message();
                    self.close();
                    match unsent_request {
                        // The persistent connection was closed while it was idle, so a new one is opened. A request
                        // that fails on a new connection is not sent again.
                        Some(unsent_request) if is_reused => (request, is_reused) = (unsent_request, false),
                        _ => return Err(ClientError::Broken { source: error.into_error() }),
                    }
                }
            }
        }
    }

    /// Returns the open connection. If there is none, opens a connection within the connect timeout.
    async fn open_connection(&mut self) -> Result<&mut ClientConnection, ClientError> {
        if self.connection.as_ref().is_some_and(|connection| connection.sender.is_closed()) {
            self.connection = None;
        }
        if self.connection.is_none() {
            let connect_timeout = self.limits.connect_timeout;
            let result = tokio::time::timeout(connect_timeout, self.connect()).await;
            let timeout = ClientError::ConnectTimeout { target: self.target.clone(), within: connect_timeout };
            self.connection = Some(result.map_err(|_| timeout)??);
        }
        let connection = self.connection.as_mut().expect("opened just above");
        Ok(connection)
    }

    /// Opens a connection over TCP or a Unix socket, with TLS if the target is `https`, and starts HTTP. Fails if the
    /// server cannot be reached or its certificate is not trusted.
    async fn connect(&self) -> Result<ClientConnection, ClientError> {
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
        // Only the existence of the identity is checked, so its expiry relative to the time 0 does not matter.
        server_identity(stream.get_ref().1, 0).map_err(|source| ClientError::Untrusted { target: target(), source })?;
        self.handshake_http(stream).await
    }

    /// Starts HTTP/1.1 on an open stream, and a Tokio task that reads and writes the stream.
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

    /// Reads a whole response body of at most `max_bytes`. Closes the connection if the body cannot be read.
    async fn read_body(&mut self, body: Incoming, max_bytes: u64) -> Result<Bytes, ClientError> {
        let mut buffer = BytesMut::with_capacity(usize::try_from(body.size_hint().lower().min(64 * 1024)).unwrap_or(0));
        let mut bounded_body = BoundedBody::new(body, max_bytes, self.limits.body_timeout);
        while let Some(piece) = bounded_body.next().await.inspect_err(|_| self.close())? {
            buffer.extend_from_slice(&piece);
        }
        Ok(buffer.freeze())
    }
}

/// A response body that is read piece by piece, up to a maximum size and with a timeout for each piece.
struct BoundedBody {
    body: Incoming,
    received_bytes: u64,
    max_bytes: u64,
    timeout: Duration,
}

impl BoundedBody {
    /// Creates the reader of a body of at most `max_bytes`. `timeout` is the maximum time until each next piece.
    fn new(body: Incoming, max_bytes: u64, timeout: Duration) -> Self {
        Self { body, received_bytes: 0, max_bytes, timeout }
    }

    /// Returns the next piece of the body, or `None` at its end. Fails as soon as it is known that the body is larger
    /// than the maximum, if the next piece does not arrive in time, or if the connection breaks.
    async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let Self { max_bytes, timeout, .. } = *self;
        // The lower bound is the rest of the announced length, if the response has the header `Content-Length`.
        if self.body.size_hint().lower() > max_bytes - self.received_bytes {
            return Err(ClientError::TooLarge { limit: max_bytes });
        }
        loop {
            let frame = tokio::time::timeout(timeout, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| ClientError::AnswerTimeout { within: timeout })? else { return Ok(None) };
            let frame = frame.map_err(|source| ClientError::Broken { source })?;
            // Other frames are trailers, which are ignored.
            let Ok(piece) = frame.into_data() else { continue };
            self.received_bytes += piece.len() as u64;
            if self.received_bytes > max_bytes {
                return Err(ClientError::TooLarge { limit: max_bytes });
            }
            return Ok(Some(piece));
        }
    }
}
