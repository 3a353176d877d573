//! Joins a fleet: exchanges a token and a newly created key for a certificate.
//!
//! The controller is identified only by the key hash of its fleet root, which the operator passes to the command
//! `join`. Nothing is sent before the server's certificate chain has been verified up to that root. The private key
//! never leaves the host.

use std::sync::Arc;

use hyper::StatusCode;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use stemma_wire::client::{Client, ClientError, ClientLimits, RequestOutcome, Target};
use stemma_wire::clock::Clock;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ErrorBody, ErrorType};
use stemma_wire::log::error_chain;
use stemma_wire::message::enroll::{EnrollRequest, EnrollResponse};
use stemma_wire::message::{DecodeError, Message, WireVersion, decode_up_to};
use stemma_wire::tls::{Pin, Refusal, client_config, spki_sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::connection::ConnectionRecord;
use super::join_key::{self, KeyError};
use super::post::post;
use super::state::{CertificateRefusal, StateError, TlsCredentials};
use crate::host::{Host, HostError};
use crate::identity::HostIdentity;

/// The options with which a host joins a fleet.
pub struct JoinOptions {
    /// The controllers, `https://HOST:PORT`. The request is sent to one after the other until one responds. All
    /// addresses are stored.
    pub controllers: Vec<Target>,
    /// SHA-256 of the fleet root's public key.
    pub ca_hash: [u8; 32],
    /// The join token, `id.secret`.
    pub token: String,
    /// The requested node name.
    pub name: String,
    /// The public key of the root half (apply). The controller encrypts this host's secrets with it.
    pub seal_key: [u8; 32],
}

/// The reason why a host did not join or a renewal failed. The host has no new identity then. The key of the request
/// may be still stored, for another attempt with the same token.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The host has joined a fleet already.
    #[error(
        "this host has joined already, as node {0}; to join again, end that first: `stemma-agent leave`, and of an agent \
         below DIR `stemma-agent --root DIR leave`; nothing was changed"
    )]
    AlreadyJoined(uuid::Uuid),
    /// The key pair or the signing request could not be created.
    #[error("no key could be created")]
    Key(#[from] rcgen::Error),
    /// No controller sent a complete response of acceptable size. The request may have been sent.
    #[error("no controller could be reached")]
    Client(#[from] ClientError),
    /// The controller refused the request.
    #[error("the controller refused ({status}): {message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Type of the error, as in the controller's API. Empty if a program other than a controller responded.
        kind: String,
        /// Message of the controller.
        message: String,
    },
    /// The response cannot be decoded.
    #[error("the controller's answer cannot be read")]
    Answer(#[from] DecodeError),
    /// The certificate in the response is not valid for this host.
    #[error("the certificate that the controller gave is refused")]
    Issued(#[from] CertificateRefusal),
    /// The response does not match the pinned root, or lacks a certificate or controllers. The text is the reason.
    #[error("the controller's answer is refused: {0}")]
    Unexpected(&'static str),
    /// rustls rejected the configuration.
    #[error("TLS could not be set up")]
    Tls(#[from] rustls::Error),
    /// The key could not be stored, so no request was sent.
    #[error("the key of the join request could not be stored")]
    KeyNotStored(#[source] HostError),
    /// The credentials, the state of the connection or the identity of the host could not be stored.
    #[error("the credentials from the controller could not be stored")]
    NotStored(#[from] HostError),
    /// No TLS connection can be set up with the credentials from a renewal.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Advice if the connection fails, or if the server is probably not the agents' listener of a controller.
const LISTENER_ADVICE: &str = "is this the agents' listener (the controller prints it as `agents`)?";
/// Advice if a certificate is not valid at the time of this host's clock.
const CLOCK_ADVICE: &str = "is this host's clock right?";
/// Advice if the certificate of the server, the root in the response, or the issued certificate is not acceptable.
const HASH_ADVICE: &str = "compare --ca-hash with what `stemma token ca-hash` prints";

impl From<KeyError> for JoinError {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::Create(error) => Self::Key(error),
            KeyError::Store(error) => Self::KeyNotStored(error),
        }
    }
}

impl JoinError {
    /// Returns the error for a response with an error status.
    pub(super) fn refused(status: StatusCode, body: &[u8]) -> Self {
        let kind = ErrorBody::parse(body).map(|body| body.kind).unwrap_or_default();
        Self::Refused { status: status.as_u16(), kind, message: error_message(body) }
    }

    /// Returns whether a controller may have created a node for the key of the request, although the request failed.
    fn may_have_joined(&self) -> bool {
        match self {
            Self::Client(error) => error.outcome() == RequestOutcome::Unknown,
            Self::Refused { status, .. } => *status >= 500,
            Self::Answer(_) | Self::Issued(_) | Self::NotStored(_) => true,
            Self::AlreadyJoined(_)
            | Self::Key(_)
            | Self::Unexpected(_)
            | Self::Tls(_)
            | Self::KeyNotStored(_)
            | Self::State(_) => false,
        }
    }

    /// Returns whether the controller refused the key, so that no other request with this key can succeed.
    fn is_key_refused(&self) -> bool {
        matches!(self, Self::Refused { kind, .. } if kind == ErrorType::CsrInvalid.name())
    }

    /// Returns the error with its causes and with advice, for the person who joins a host.
    #[must_use]
    pub fn explanation(&self) -> String {
        let text = match self {
            Self::Client(ClientError::Handshake { target, source }) if is_plaintext_reply(source) => {
                format!("no controller could be reached: the server at {target} does not speak TLS")
            }
            error => error_chain(error),
        };
        match self.advice() {
            Some(advice) => format!("{}; {advice}", text.trim_end_matches('.')),
            None => text,
        }
    }

    /// Returns advice for the person who joins a host, or `None` if there is no advice for this error.
    fn advice(&self) -> Option<&'static str> {
        match self {
            Self::Client(error) => client_advice(error),
            Self::Refused { kind, .. } if kind == ErrorType::TokenInvalid.name() => {
                Some("make another with `stemma token create`")
            }
            // Another server, or another listener of a controller, responds with one of these statuses.
            Self::Refused { status: 401 | 404 | 405 | 421, .. } | Self::Answer(_) => Some(LISTENER_ADVICE),
            Self::Refused { kind, .. } if kind.is_empty() => Some(LISTENER_ADVICE),
            Self::Issued(CertificateRefusal::Certificate(Refusal::Expired { .. } | Refusal::NotYetValid { .. })) => {
                Some(CLOCK_ADVICE)
            }
            Self::Unexpected(_) | Self::Issued(_) => Some(HASH_ADVICE),
            Self::AlreadyJoined(_)
            | Self::Key(_)
            | Self::Refused { .. }
            | Self::Tls(_)
            | Self::KeyNotStored(_)
            | Self::NotStored(_)
            | Self::State(_) => None,
        }
    }
}

/// Returns advice for a request without a response, by the kind of failure, or `None` if there is no advice.
fn client_advice(error: &ClientError) -> Option<&'static str> {
    match error {
        ClientError::Untrusted { source: Refusal::Expired { .. } | Refusal::NotYetValid { .. }, .. } => Some(CLOCK_ADVICE),
        ClientError::Untrusted { source: Refusal::WrongName, .. } => {
            Some("join by a name or address of the controller (`names` in its configuration, or `stemma-controller init --name`)")
        }
        ClientError::Untrusted { source: Refusal::OtherRoot | Refusal::UnknownIssuer, .. } => Some(HASH_ADVICE),
        ClientError::Untrusted { .. }
        | ClientError::Unreachable { .. }
        | ClientError::Handshake { .. }
        | ClientError::ConnectTimeout { .. }
        | ClientError::AnswerTimeout { .. }
        | ClientError::Broken { .. } => Some(LISTENER_ADVICE),
        ClientError::TooLarge { .. } | ClientError::NotTaken { .. } => None,
    }
}

/// Returns whether the TLS handshake failed because the server responded without TLS, for example as a plain HTTP
/// server.
fn is_plaintext_reply(error: &std::io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidMessage(_)))
}

/// Joins a fleet: requests a certificate, stores identity and credentials, and returns the identity.
///
/// # Errors
/// [`JoinError`] if this host has joined already, no controller accepts the request, or a file cannot be written.
pub async fn join(host: &dyn Host, options: JoinOptions, clock: Arc<dyn Clock>) -> Result<HostIdentity, JoinError> {
    join_with_version(WireVersion::CURRENT, host, options, clock).await
}

/// Joins a fleet like [`join`], as an agent that supports wire versions up to `newest`.
///
/// # Errors
/// As [`join`].
pub async fn join_with_version(
    newest: WireVersion,
    host: &dyn Host,
    options: JoinOptions,
    clock: Arc<dyn Clock>,
) -> Result<HostIdentity, JoinError> {
    // A joined host may join again only if its identity is unreadable, or its credentials are missing or damaged.
    if let Ok(identity) = HostIdentity::load(host)
        && !TlsCredentials::load(host).and_then(|tls| tls.check_usable(&identity)).is_err_and(|error| error.is_damaged())
    {
        return Err(JoinError::AlreadyJoined(identity.node));
    }
    let key = join_key::load_or_create(host, options.token.trim())?;
    let request = EnrollRequest {
        token: options.token.trim().to_owned(),
        csr: signing_request(&key)?,
        seal_key: options.seal_key,
        name: options.name.clone(),
    };
    let result = enroll(newest, &options, &request, clock.clone()).await;
    // After any other failure the key is not deleted. An earlier request with this key may have created a node,
    // although its response was lost. Then the controller gives the node's certificate only to this key.
    if result.as_ref().is_err_and(JoinError::is_key_refused) {
        delete_key(host);
    }
    let response = result?;
    let validity = check_response(&response, &options.ca_hash)?;
    let identity = HostIdentity { node: response.node, fleet: response.fleet, root: response.root };
    let credentials = TlsCredentials {
        controllers: options.controllers.iter().map(ToString::to_string).collect(),
        key: key.serialize_der(),
        chain: response.chain,
        validity,
    };
    credentials.check_issued(&identity, clock.unix_seconds())?;
    credentials.store(host)?;
    ConnectionRecord::store_joined(host, credentials.controllers[0].clone())?;
    // The identity is stored last, because a host with a stored identity has joined.
    identity.store(host)?;
    delete_key(host);
    Ok(identity)
}

/// Deletes the stored key of the join request. A failure is only logged, because a remaining key is used again only for
/// a request with the same token.
fn delete_key(host: &dyn Host) {
    if let Err(error) = join_key::delete(host) {
        log::warn!(error:% = error_chain(&error); "the key of the join request could not be deleted");
    }
}

/// Returns a certificate signing request (DER) for a key. The request has no attributes, because the controller uses
/// only its public key.
pub(super) fn signing_request(key: &KeyPair) -> Result<Vec<u8>, rcgen::Error> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    Ok(parameters.serialize_request(key)?.der().to_vec())
}

/// Sends the request to one controller after the other until one responds. Returns the response, or the refusal as an
/// error. If no controller responds, returns the first error after which a controller may have created
/// the node, or else the error of the last attempt.
async fn enroll(
    newest: WireVersion,
    options: &JoinOptions,
    request: &EnrollRequest,
    clock: Arc<dyn Clock>,
) -> Result<EnrollResponse, JoinError> {
    let tls = Arc::new(client_config(&Pin::KeyHash(options.ca_hash), None, None, clock)?);
    let mut last_error = JoinError::Unexpected("no controller was named");
    for target in &options.controllers {
        let limits = ClientLimits { max_body_bytes: EnrollResponse::MAX_BYTES as u64, ..ClientLimits::default() };
        let mut client = Client::new(target.clone(), Some(tls.clone()), limits);
        match post(&mut client, Endpoint::Enroll, newest, request).await {
            Ok((version, response)) if response.status().is_success() => {
                // `decode_up_to` returns the version and the message.
                return Ok(decode_up_to(version, response.body())?.1);
            }
            Ok((_, response)) => {
                return Err(JoinError::refused(response.status(), response.body()));
            }
            // If an earlier controller may have created a node, the error of that controller is returned, not the error
            // of this one.
            Err(_) if last_error.may_have_joined() => {}
            Err(error) => last_error = JoinError::Client(error),
        }
    }
    Err(last_error)
}

/// Checks that the root in the response is the one with the pinned key hash. Returns the start and end of the
/// certificate's validity, in seconds since 1970.
fn check_response(response: &EnrollResponse, ca_hash: &[u8; 32]) -> Result<(u64, u64), JoinError> {
    let hash = spki_sha256(&response.root).map_err(|_| JoinError::Unexpected("its root is not a certificate"))?;
    if hash != *ca_hash {
        return Err(JoinError::Unexpected("its root is not the one that --ca-hash names"));
    }
    let leaf = response.chain.first().ok_or(JoinError::Unexpected("it contains no certificate"))?;
    validity(leaf).ok_or(JoinError::Unexpected("its certificate cannot be read"))
}

/// Returns the start and end of the validity of a certificate (DER), in seconds since 1970. Returns `None` if the
/// certificate cannot be parsed.
pub(super) fn validity(certificate: &[u8]) -> Option<(u64, u64)> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let validity = parsed.validity();
    let seconds = |at: i64| u64::try_from(at).ok();
    Some((seconds(validity.not_before.timestamp())?, seconds(validity.not_after.timestamp())?))
}

/// Returns the message and detail in the body of an error response of the controller's API. The text has at most 512
/// characters and no control characters, because the server may not be trusted.
pub(super) fn error_message(body: &[u8]) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let text_field = |name: &str| parsed.as_ref()?.pointer(name)?.as_str();
    let message = text_field("/error/message").unwrap_or("without a reason");
    let text = match text_field("/error/detail") {
        Some(detail) => format!("{}; {detail}", message.trim_end_matches('.')),
        None => message.to_owned(),
    };
    text.chars().filter(|letter| !letter.is_control()).take(512).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_message_joins_message_and_detail_without_control_characters() {
        let body = br#"{"error": {"message": "this token was used\u001b[31m already"}}"#;
        assert_eq!(error_message(body), "this token was used[31m already");
        assert_eq!(error_message(b"<html>"), "without a reason");
        let body = br#"{"error": {"message": "web-1 already has a host.", "detail": "take another name"}}"#;
        assert_eq!(error_message(body), "web-1 already has a host; take another name");
    }

    /// The first cases are error responses, and the later cases are certificates of a server that the host does not
    /// trust. A name that is already used has no advice, only the detail in the response.
    #[test]
    fn explanation_ends_with_advice_for_operator() {
        let token = br#"{"error": {"code": 403, "type": "token.invalid", "message": "The join token is unknown."}}"#;
        let name = br#"{"error": {"code": 409, "type": "object.exists", "message": "it is taken", "detail": "take another"}}"#;
        for (status, body, advice) in [
            (403, &token[..], "refused (403): The join token is unknown; make another with `stemma token create`"),
            (409, name, "the controller refused (409): it is taken; take another"),
            (404, b"<html>", "is this the agents' listener (the controller prints it as `agents`)?"),
            (200, b"hello", "is this the agents' listener (the controller prints it as `agents`)?"),
        ] {
            let explanation = JoinError::refused(StatusCode::from_u16(status).unwrap(), body).explanation();
            assert!(explanation.ends_with(advice), "{explanation}");
        }
        let target: Target = "https://c:7443".parse().unwrap();
        for (source, advice) in [
            (Refusal::OtherRoot, "compare --ca-hash with what `stemma token ca-hash` prints"),
            (Refusal::WrongName, "(`names` in its configuration, or `stemma-controller init --name`)"),
            (Refusal::Expired { not_after: 1, now: 2 }, "is this host's clock right?"),
            (Refusal::WrongUse, "is this the agents' listener (the controller prints it as `agents`)?"),
        ] {
            let explanation = JoinError::from(ClientError::Untrusted { target: target.clone(), source }).explanation();
            assert!(explanation.ends_with(advice), "{explanation}");
        }
    }
}
