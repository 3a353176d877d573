//! Why a call had no answer, and what may have become of it.

use std::time::Duration;

use super::Target;
use crate::tls::Refusal;

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
pub enum RequestOutcome {
    /// It was not sent: nothing was changed.
    NotSent,
    /// It may have been carried out.
    Unknown,
}

impl ClientError {
    /// Whether the request may have been carried out.
    pub fn outcome(&self) -> RequestOutcome {
        match self {
            Self::Unreachable { .. } | Self::Untrusted { .. } | Self::ConnectTimeout { .. } => RequestOutcome::NotSent,
            // TLS 1.3: the server's refusal of our certificate arrives after the client's side is done, so with the first request.
            Self::Handshake { .. }
            | Self::AnswerTimeout { .. }
            | Self::Broken { .. }
            | Self::TooLarge { .. }
            | Self::NotTaken { .. } => RequestOutcome::Unknown,
        }
    }
}
