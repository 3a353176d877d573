//! The errors of a client: the reason why a request has no response, and whether the server may have executed the
//! request.

use std::time::Duration;

use super::Target;
use crate::tls::Refusal;

/// The error for a request that has no complete response.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection over TCP, or to the Unix socket, could not be opened, for example because no host has the name.
    #[error("{target} cannot be reached")]
    Unreachable {
        /// The controller that was called.
        target: Target,
        /// The error of the attempt to connect.
        source: std::io::Error,
    },
    /// This client refused the server's certificate.
    #[error("{target} is not trusted")]
    Untrusted {
        /// The controller that was called.
        target: Target,
        /// The reason why this client refused the server's certificate.
        source: Refusal,
    },
    /// The TLS handshake failed, but not as [`ClientError::Untrusted`]. For example, the server does not speak TLS.
    #[error("the TLS handshake with {target} failed")]
    Handshake {
        /// The controller that was called.
        target: Target,
        /// The error of the TLS handshake.
        source: std::io::Error,
    },
    /// The client could not connect within [`super::ClientLimits::connect_timeout`].
    #[error("{target} did not answer within {} s", within.as_secs())]
    ConnectTimeout {
        /// The controller that was called.
        target: Target,
        /// The time that the client waited for the connection.
        within: Duration,
    },
    /// The client began to send the request, and the response or the next piece of its body did not arrive in time.
    #[error("no answer within {} s", within.as_secs())]
    AnswerTimeout {
        /// The time that the client waited for the head of the response, or for the next piece of its body.
        within: Duration,
    },
    /// The connection broke before the response was complete, or the response is not valid HTTP. The request may have
    /// been sent. If the server refuses this client's certificate, that is this error too.
    #[error("the connection broke before the response arrived")]
    Broken {
        /// The error of the HTTP connection.
        source: hyper::Error,
    },
    /// The body of the response is larger than the limit.
    #[error("the answer is larger than {limit} bytes")]
    TooLarge {
        /// The maximum size of the body, in bytes.
        limit: u64,
    },
    /// The function that the caller passed to [`super::Client::stream`] for the body failed.
    #[error("the response could not be processed")]
    NotTaken {
        /// The error that the function returned.
        source: std::io::Error,
    },
}

/// The possible effect of a request that has no complete response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The client did not send the request, so nothing was changed.
    NotSent,
    /// The server may have executed the request.
    Unknown,
}

impl ClientError {
    /// Returns whether the server may have executed the request that failed with this error.
    pub fn outcome(&self) -> RequestOutcome {
        match self {
            Self::Unreachable { .. } | Self::Untrusted { .. } | Self::ConnectTimeout { .. } => RequestOutcome::NotSent,
            // In TLS 1.3 the client finishes its handshake before the server does. If the server refuses the client's
            // certificate, the client receives the refusal, as `Broken`, only after it has sent the first request. A
            // `Handshake` precedes the first request, and counts as unknown nevertheless.
            Self::Handshake { .. }
            | Self::AnswerTimeout { .. }
            | Self::Broken { .. }
            | Self::TooLarge { .. }
            | Self::NotTaken { .. } => RequestOutcome::Unknown,
        }
    }
}
