//! A client of one controller, over one connection that is kept: what the agent (postcard) and the command line (JSON) call with.
//!
//! One connection is enough for both, and the agent's memory has no room for a pool. A request that was never sent because
//! the kept connection had just been closed is sent again on a new one, once; anything else is the caller's to decide, and
//! [`ClientError::outcome`] says whether the request may have been carried out.

use std::fmt;
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

use crate::net::{Connect, Stream, TcpConnect};
use crate::tls::{Identity, Refusal, server_identity};

/// Where a controller is: `https://HOST:PORT`, or `http://LOOPBACK:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whether TLS is spoken.
    pub tls: bool,
    /// A DNS name or an IP address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// A text that is no controller's address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTarget {
    /// Neither `https://` nor `http://`.
    #[error("{0:?} is no address of a controller: write https://HOST:PORT")]
    Scheme(String),
    /// No host, a path behind it, or no number as the port.
    #[error("{0:?} is no address of a controller: after https:// stand HOST:PORT and nothing else")]
    Authority(String),
    /// `http://` to another machine: tokens would go in the clear.
    #[error(
        "{0:?} is plain HTTP to another machine: only a loopback address (127.0.0.1, [::1], localhost) is reached without TLS"
    )]
    PlainRemote(String),
}

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

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection.
    #[error("{target} cannot be reached")]
    Unreachable {
        /// Who was called.
        target: Target,
        /// Why.
        source: std::io::Error,
    },
    /// The server's certificate was refused here.
    #[error("{target} is not trusted")]
    Untrusted {
        /// Who was called.
        target: Target,
        /// Why.
        source: Refusal,
    },
    /// The TLS handshake failed, or the server refused ours.
    #[error("the TLS handshake with {target} failed")]
    Handshake {
        /// Who was called.
        target: Target,
        /// Why.
        source: std::io::Error,
    },
    /// No connection within [`ClientLimits::connect`].
    #[error("{target} did not answer within {} s", within.as_secs())]
    ConnectTimeout {
        /// Who was called.
        target: Target,
        /// How long it was waited for.
        within: Duration,
    },
    /// The request was sent, and no answer came in time.
    #[error("no answer within {} s", within.as_secs())]
    AnswerTimeout {
        /// How long it was waited for.
        within: Duration,
    },
    /// The connection broke after the request may have been sent.
    #[error("the connection broke before the answer came")]
    Broken {
        /// Why.
        source: hyper::Error,
    },
    /// The answer's body is larger than is taken.
    #[error("the answer is larger than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// The sink of [`Client::stream`] did not want more.
    #[error("the answer was not taken")]
    NotTaken {
        /// Why.
        source: std::io::Error,
    },
}

/// What may have become of a request that has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was not sent: nothing was changed.
    NotSent,
    /// It may have been carried out.
    Unknown,
}

impl ClientError {
    /// Whether the request may have been carried out.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Unreachable { .. } | Self::Untrusted { .. } | Self::ConnectTimeout { .. } => Outcome::NotSent,
            // TLS 1.3: the server's refusal of our certificate arrives after the client's side is done, so with the first request.
            Self::Handshake { .. }
            | Self::AnswerTimeout { .. }
            | Self::Broken { .. }
            | Self::TooLarge { .. }
            | Self::NotTaken { .. } => Outcome::Unknown,
        }
    }
}

/// A client of one controller.
pub struct Client<C: Connect = TcpConnect> {
    connect: C,
    target: Target,
    host_header: HeaderValue,
    tls: Option<Arc<ClientConfig>>,
    limits: ClientLimits,
    open: Option<Open>,
}

struct Open {
    sender: SendRequest<Full<Bytes>>,
    server: Option<Identity>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client<TcpConnect> {
    /// A client over TCP. `tls` is of [`crate::tls::client_config`], and needed where the target is `https`.
    pub fn new(target: Target, tls: Option<Arc<ClientConfig>>, limits: ClientLimits) -> Self {
        Self::over(TcpConnect, target, tls, limits)
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

    /// Who answered the last handshake, by its certificate.
    pub fn server(&self) -> Option<&Identity> {
        self.open.as_ref().and_then(|open| open.server.as_ref())
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
        let limit = self.limits.body_bytes;
        let mut whole = BytesMut::with_capacity(usize::try_from(body.size_hint().lower().min(64 * 1024)).unwrap_or(0));
        self.drain(body, limit, |piece| {
            whole.extend_from_slice(&piece);
            Ok(())
        })
        .await?;
        Ok(Response::from_parts(parts, whole.freeze()))
    }

    /// Sends a request and hands the answer's body to `sink` piece by piece, where the status is a success; any other is taken whole,
    /// up to 64 KiB, as the error that it is. For blobs, verified by hash while they arrive.
    ///
    /// # Errors
    /// As [`Client::send`]; [`ClientError::NotTaken`] with what `sink` said.
    pub async fn stream(
        &mut self,
        request: Request<Bytes>,
        sink: impl FnMut(Bytes) -> std::io::Result<()>,
    ) -> Result<Response<Bytes>, ClientError> {
        let (parts, body) = self.start(request, self.limits.answer).await?.into_parts();
        if parts.status.is_success() {
            let limit = self.limits.body_bytes;
            self.drain(body, limit, sink).await?;
            return Ok(Response::from_parts(parts, Bytes::new()));
        }
        let mut error = BytesMut::new();
        self.drain(body, 64 * 1024, |piece| {
            error.extend_from_slice(&piece);
            Ok(())
        })
        .await?;
        Ok(Response::from_parts(parts, error.freeze()))
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
            return self.speak(stream, None).await;
        };
        let name = ServerName::try_from(self.target.host.clone())
            .map_err(|_| ClientError::Untrusted { target: target(), source: Refusal::WrongName })?;
        let stream =
            TlsConnector::from(tls).connect(name, stream).await.map_err(|source| match Refusal::of_io(&source) {
                Some(refusal) => ClientError::Untrusted { target: target(), source: refusal.clone() },
                None => ClientError::Handshake { target: target(), source },
            })?;
        let server = server_identity(stream.get_ref().1, 0)
            .map_err(|source| ClientError::Untrusted { target: target(), source })?;
        self.speak(stream, Some(server)).await
    }

    async fn speak<S: Stream>(&self, stream: S, server: Option<Identity>) -> Result<Open, ClientError> {
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(32 * 1024)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|source| ClientError::Broken { source })?;
        // How it ended is told to who waits for an answer.
        let task = tokio::spawn(async move { drop(connection.await) });
        Ok(Open { sender, server, task })
    }

    /// Reads a body to its end; a connection whose body was left is not used again.
    async fn drain(
        &mut self,
        mut body: Incoming,
        limit: u64,
        mut sink: impl FnMut(Bytes) -> std::io::Result<()>,
    ) -> Result<(), ClientError> {
        let read = read_body(&mut body, limit, self.limits.body, &mut sink).await;
        if read.is_err() {
            self.close();
        }
        read
    }
}

async fn read_body(
    body: &mut Incoming,
    limit: u64,
    within: Duration,
    sink: &mut impl FnMut(Bytes) -> std::io::Result<()>,
) -> Result<(), ClientError> {
    if body.size_hint().lower() > limit {
        return Err(ClientError::TooLarge { limit });
    }
    let mut taken = 0_u64;
    loop {
        let frame = tokio::time::timeout(within, body.frame()).await;
        let Some(frame) = frame.map_err(|_| ClientError::AnswerTimeout { within })? else { return Ok(()) };
        let frame = frame.map_err(|source| ClientError::Broken { source })?;
        let Ok(piece) = frame.into_data() else { continue };
        taken += piece.len() as u64;
        if taken > limit {
            return Err(ClientError::TooLarge { limit });
        }
        sink(piece).map_err(|source| ClientError::NotTaken { source })?;
    }
}

impl<C: Connect> fmt::Debug for Client<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("target", &self.target)
            .field("open", &self.open.is_some())
            .finish_non_exhaustive()
    }
}

impl Target {
    /// `HOST:PORT`, with an IPv6 address in brackets.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }
}

impl std::str::FromStr for Target {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        let (tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(BadTarget::Scheme(text.to_owned())),
        };
        let bad = || BadTarget::Authority(text.to_owned());
        let (host, port) = split_authority(rest.strip_suffix('/').unwrap_or(rest)).ok_or_else(bad)?;
        let port = match port {
            Some(port) => port.parse().map_err(|_| bad())?,
            None if tls => 443,
            None => 80,
        };
        let target = Self { tls, host: host.to_owned(), port };
        if !tls && !target.is_loopback() {
            return Err(BadTarget::PlainRemote(text.to_owned()));
        }
        Ok(target)
    }
}

/// Host and port of `HOST[:PORT]` or `[IPV6][:PORT]`; nothing where the host is neither a DNS name nor an address.
fn split_authority(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        return match rest {
            "" => Some((host, None)),
            rest => Some((host, Some(rest.strip_prefix(':')?))),
        };
    }
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    ServerName::try_from(host).ok()?;
    Some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_and_written() {
        for (text, tls, host, port, again) in [
            ("https://ctl.example:8443", true, "ctl.example", 8443, "https://ctl.example:8443"),
            ("https://ctl.example/", true, "ctl.example", 443, "https://ctl.example:443"),
            ("https://[fd00::1]:1", true, "fd00::1", 1, "https://[fd00::1]:1"),
            ("http://127.0.0.1:8080", false, "127.0.0.1", 8080, "http://127.0.0.1:8080"),
            ("http://localhost", false, "localhost", 80, "http://localhost:80"),
            ("http://[::1]:9", false, "::1", 9, "http://[::1]:9"),
        ] {
            let target: Target = text.parse().expect("a good address");
            assert_eq!(target, Target { tls, host: host.to_owned(), port });
            assert_eq!(target.to_string(), again);
        }
    }

    #[test]
    fn what_is_no_address_of_a_controller_says_why() {
        for (text, part) in [
            ("ctl.example:8443", "write https://HOST:PORT"),
            ("ftp://x", "write https://HOST:PORT"),
            ("https://", "HOST:PORT and nothing else"),
            ("https://a:b", "HOST:PORT and nothing else"),
            ("https://a:70000", "HOST:PORT and nothing else"),
            ("https://a/v1", "HOST:PORT and nothing else"),
            ("https://u:p@a", "HOST:PORT and nothing else"),
            ("https://a b", "HOST:PORT and nothing else"),
            ("https://[::1", "HOST:PORT and nothing else"),
            ("http://ctl.example:80", "plain HTTP to another machine"),
            ("http://192.0.2.1", "plain HTTP to another machine"),
        ] {
            let error = text.parse::<Target>().expect_err(text);
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
    }
}
