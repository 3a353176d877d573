//! The errors of a client: why a request has no response, and whether it may have been carried out.

use std::time::Duration;

use super::Target;
use crate::tls::Refusal;

/// Why a request has no response.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection could not be established.
    #[error("{target} cannot be reached")]
    Unreachable {
        /// The controller that was called.
        target: Target,
        /// The cause.
        source: std::io::Error,
    },
    /// This client refused the server's certificate.
    #[error("{target} is not trusted")]
    Untrusted {
        /// The controller that was called.
        target: Target,
        /// The cause.
        source: Refusal,
    },
    /// The TLS handshake failed, or the server refused this client's certificate.
    #[error("the TLS handshake with {target} failed")]
    Handshake {
        /// The controller that was called.
        target: Target,
        /// The cause.
        source: std::io::Error,
    },
    /// There was no connection within [`super::ClientLimits::connect_timeout`].
    #[error("{target} did not answer within {} s", within.as_secs())]
    ConnectTimeout {
        /// The controller that was called.
        target: Target,
        /// The time that the client waited.
        within: Duration,
    },
    /// The request was sent, and no response arrived in time.
    #[error("no answer within {} s", within.as_secs())]
    AnswerTimeout {
        /// The time that the client waited.
        within: Duration,
    },
    /// The connection broke after the request may have been sent.
    #[error("the connection broke before the response arrived")]
    Broken {
        /// The cause.
        source: hyper::Error,
    },
    /// The body of the response exceeds the limit.
    #[error("the answer is larger than {limit} bytes")]
    TooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The sink of [`super::Client::stream`] failed.
    #[error("the response could not be processed")]
    NotTaken {
        /// The cause.
        source: std::io::Error,
    },
}

/// Whether a request without a response may have been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The request was not sent, so nothing was changed.
    NotSent,
    /// The request may have been carried out.
    Unknown,
}

impl ClientError {
    /// Returns whether the request may have been carried out.
    pub fn outcome(&self) -> RequestOutcome {
        match self {
            Self::Unreachable { .. } | Self::Untrusted { .. } | Self::ConnectTimeout { .. } => RequestOutcome::NotSent,
            // In TLS 1.3 the client finishes its handshake before the server does. If the server refuses the client's
            // certificate, the client learns of it only after it has sent the first request.
            Self::Handshake { .. }
            | Self::AnswerTimeout { .. }
            | Self::Broken { .. }
            | Self::TooLarge { .. }
            | Self::NotTaken { .. } => RequestOutcome::Unknown,
        }
    }
}
