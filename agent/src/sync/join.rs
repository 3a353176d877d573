//! Joining: a token and a key of the host's own become a certificate.
//!
//! The controller is known by the hash of its fleet root's key alone, given out of band; nothing is sent before the
//! server's chain has led there. The key never leaves the host, and the token is read from a file or standard input.

use std::sync::Arc;

use hyper::StatusCode;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use stemma_wire::client::{Client, ClientError, ClientLimits, RequestOutcome, Target};
use stemma_wire::clock::Clock;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ErrorBody, ErrorType};
use stemma_wire::log::chain;
use stemma_wire::message::enroll::{EnrollAnswer, EnrollRequest};
use stemma_wire::message::{DecodeError, Message, WireVersion, decode_up_to};
use stemma_wire::tls::{Pin, Refusal, client_config, spki_sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::connection::Connection;
use super::joining::{self, KeyError};
use super::post::post;
use super::state::{Credentials, GivenError, StateError};
use crate::host::{Host, HostError};
use crate::identity::Identity;

/// What joining needs to know.
pub struct Invitation {
    /// The controllers, `https://HOST:PORT`; the first that answers is joined, all are kept.
    pub controllers: Vec<Target>,
    /// SHA-256 of the fleet root's public key.
    pub ca_hash: [u8; 32],
    /// `id.secret`.
    pub token: String,
    /// The name asked for.
    pub name: String,
    /// Apply's public key for secrets.
    pub seal_key: [u8; 32],
}

/// Why a host did not join. Nothing was written but the key that it asked with, and that only where the answer may have been lost.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// It is a member already.
    #[error(
        "this host has joined already, as node {0}; to join again, end that first: `stemma-agent leave`, and of an agent \
         below DIR `stemma-agent --root DIR leave`; nothing was changed"
    )]
    Joined(uuid::Uuid),
    /// No key could be made.
    #[error("no key could be made")]
    Key(#[from] rcgen::Error),
    /// No controller could be asked.
    #[error("no controller could be asked")]
    Asked(#[from] ClientError),
    /// The controller said no.
    #[error("the controller refused ({status}): {message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The stable name of its reason; empty where another program answered.
        kind: String,
        /// Its sentence.
        message: String,
    },
    /// Its answer cannot be read.
    #[error("the controller's answer cannot be read")]
    Answer(#[from] DecodeError),
    /// The certificate that it gave is none for this host.
    #[error("the certificate that the controller gave is refused")]
    Given(#[from] GivenError),
    /// Its answer does not fit what was asked.
    #[error("the controller's answer is refused: {0}")]
    Unexpected(&'static str),
    /// rustls takes none of it.
    #[error("the TLS side could not be set up")]
    Tls(#[from] rustls::Error),
    /// The key could not be kept, so nobody was asked.
    #[error("the key to join with could not be kept")]
    Unkept(#[source] HostError),
    /// What was given could not be kept.
    #[error("what the controller gave could not be kept")]
    Kept(#[from] HostError),
    /// The state directory.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Where a controller says which of its addresses is which.
const LISTENER: &str = "is this the agents' listener (the controller prints it as `agents`)?";
const CLOCK: &str = "is this host's clock right?";
const HASH: &str = "compare --ca-hash with what `stemma token ca-hash` prints";

impl From<KeyError> for JoinError {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::Unmade(error) => Self::Key(error),
            KeyError::Unkept(error) => Self::Unkept(error),
        }
    }
}

impl JoinError {
    /// An answer that is a refusal.
    pub(super) fn refused(status: StatusCode, body: &[u8]) -> Self {
        let kind = ErrorBody::parse(body).map(|body| body.kind).unwrap_or_default();
        Self::Refused { status: status.as_u16(), kind, message: sentence(body) }
    }

    /// Whether a controller may have made a node for the key that it was asked with.
    fn may_have_joined(&self) -> bool {
        match self {
            Self::Asked(error) => error.outcome() == RequestOutcome::Unknown,
            Self::Refused { status, .. } => *status >= 500,
            Self::Answer(_) | Self::Given(_) | Self::Kept(_) => true,
            Self::Joined(_) | Self::Key(_) | Self::Unexpected(_) | Self::Tls(_) | Self::Unkept(_) | Self::State(_) => {
                false
            }
        }
    }

    /// Whether the controller takes no request with the key that was asked with.
    fn is_of_the_key(&self) -> bool {
        matches!(self, Self::Refused { kind, .. } if kind == ErrorType::CsrInvalid.name())
    }

    /// The error with its causes and what to do about it, for the person who joins a host.
    #[must_use]
    pub fn explanation(&self) -> String {
        let said = match self {
            Self::Asked(ClientError::Handshake { target, source }) if is_no_tls(source) => {
                format!("no controller could be asked: what answers at {target} does not speak TLS")
            }
            error => chain(error),
        };
        match self.advice() {
            Some(advice) => format!("{}; {advice}", said.trim_end_matches('.')),
            None => said,
        }
    }

    fn advice(&self) -> Option<&'static str> {
        match self {
            Self::Asked(error) => advice_on_call(error),
            Self::Refused { kind, .. } if kind == ErrorType::TokenInvalid.name() => {
                Some("make another with `stemma token create`")
            }
            Self::Refused { status: 401 | 404 | 405 | 421, .. } | Self::Answer(_) => Some(LISTENER),
            Self::Refused { kind, .. } if kind.is_empty() => Some(LISTENER),
            Self::Given(GivenError::Certificate(Refusal::Expired { .. } | Refusal::NotYetValid { .. })) => Some(CLOCK),
            Self::Unexpected(_) | Self::Given(_) => Some(HASH),
            Self::Joined(_)
            | Self::Key(_)
            | Self::Refused { .. }
            | Self::Tls(_)
            | Self::Unkept(_)
            | Self::Kept(_)
            | Self::State(_) => None,
        }
    }
}

fn advice_on_call(error: &ClientError) -> Option<&'static str> {
    match error {
        ClientError::Untrusted { source: Refusal::Expired { .. } | Refusal::NotYetValid { .. }, .. } => Some(CLOCK),
        ClientError::Untrusted { source: Refusal::WrongName, .. } => {
            Some("join by a name or address that the controller was given with `stemma-controller init --name`")
        }
        ClientError::Untrusted { source: Refusal::OtherRoot | Refusal::UnknownIssuer, .. } => Some(HASH),
        ClientError::Untrusted { .. }
        | ClientError::Unreachable { .. }
        | ClientError::Handshake { .. }
        | ClientError::ConnectTimeout { .. }
        | ClientError::AnswerTimeout { .. }
        | ClientError::Broken { .. } => Some(LISTENER),
        ClientError::TooLarge { .. } | ClientError::NotTaken { .. } => None,
    }
}

/// Whether the other side's first words were no TLS at all, as those of a plain HTTP server.
fn is_no_tls(error: &std::io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidMessage(_)))
}

/// Joins and writes down identity and credentials; gives the identity.
///
/// # Errors
/// [`JoinError`].
pub async fn join(host: &dyn Host, invitation: Invitation, clock: Arc<dyn Clock>) -> Result<Identity, JoinError> {
    join_up_to(WireVersion::CURRENT, host, invitation, clock).await
}

/// The same by an agent that speaks wire versions up to this one.
///
/// # Errors
/// [`JoinError`].
pub async fn join_up_to(
    newest: WireVersion,
    host: &dyn Host,
    invitation: Invitation,
    clock: Arc<dyn Clock>,
) -> Result<Identity, JoinError> {
    // A member whose identity or key is damaged can only join again.
    if let Ok(identity) = Identity::load(host)
        && !Credentials::load(host).and_then(|held| held.check(&identity)).is_err_and(|error| error.is_damage())
    {
        return Err(JoinError::Joined(identity.node));
    }
    let key = joining::take_up(host, invitation.token.trim())?;
    let request = EnrollRequest {
        token: invitation.token.trim().to_owned(),
        csr: signing_request(&key)?,
        seal_key: invitation.seal_key,
        name: invitation.name.clone(),
    };
    let asked = ask(newest, &invitation, &request, clock.clone()).await;
    // Any other failure keeps it: an earlier try with it may have been answered in vain, whatever this one met.
    if asked.as_ref().is_err_and(JoinError::is_of_the_key) {
        forget_key(host);
    }
    let answer = asked?;
    let validity = checked(&answer, &invitation.ca_hash)?;
    let identity = Identity { node: answer.node, fleet: answer.fleet, root: answer.root };
    let credentials = Credentials {
        controllers: invitation.controllers.iter().map(ToString::to_string).collect(),
        key: key.serialize_der(),
        chain: answer.chain,
        validity,
    };
    credentials.check_given(&identity, clock.unix_seconds())?;
    credentials.store(host)?;
    Connection::joined(host, credentials.controllers[0].clone())?;
    // The identity comes last: with it, the host has joined.
    identity.store(host)?;
    forget_key(host);
    Ok(identity)
}

/// Takes the key away that was asked with. One that stays is only asked with again under the same token.
fn forget_key(host: &dyn Host) {
    if let Err(error) = joining::drop_key(host) {
        log::warn!(error:% = chain(&error); "the key that this host asked to join with could not be taken away");
    }
}

/// A request for a certificate that asks for nothing: of all that it could say, only its public key is taken.
pub(super) fn signing_request(key: &KeyPair) -> Result<Vec<u8>, rcgen::Error> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    Ok(parameters.serialize_request(key)?.der().to_vec())
}

/// Asks one controller after the other; a refusal is an answer, and no other is asked.
async fn ask(
    newest: WireVersion,
    invitation: &Invitation,
    request: &EnrollRequest,
    clock: Arc<dyn Clock>,
) -> Result<EnrollAnswer, JoinError> {
    let tls = Arc::new(client_config(&Pin::KeyHash(invitation.ca_hash), None, None, clock)?);
    let mut last = JoinError::Unexpected("no controller was named");
    for target in &invitation.controllers {
        let limits = ClientLimits { body_bytes: EnrollAnswer::MAX_BYTES as u64, ..ClientLimits::default() };
        let mut client = Client::new(target.clone(), Some(tls.clone()), limits);
        match post(&mut client, Endpoint::Enroll, newest, request).await {
            Ok((version, answer)) if answer.status().is_success() => {
                return Ok(decode_up_to(version, answer.body())?.1);
            }
            Ok((_, answer)) => {
                return Err(JoinError::refused(answer.status(), answer.body()));
            }
            // What may have been done there is not forgotten for one that was not asked.
            Err(_) if last.may_have_joined() => {}
            Err(error) => last = JoinError::Asked(error),
        }
    }
    Err(last)
}

/// The root must be the one that was pinned. Gives the certificate's validity.
fn checked(answer: &EnrollAnswer, ca_hash: &[u8; 32]) -> Result<(u64, u64), JoinError> {
    let hash = spki_sha256(&answer.root).map_err(|_| JoinError::Unexpected("its root is no certificate"))?;
    if hash != *ca_hash {
        return Err(JoinError::Unexpected("its root is not the one that --ca-hash names"));
    }
    let leaf = answer.chain.first().ok_or(JoinError::Unexpected("it holds no certificate"))?;
    validity(leaf).ok_or(JoinError::Unexpected("its certificate cannot be read"))
}

/// When a certificate begins and ends, seconds since 1970.
pub(super) fn validity(certificate: &[u8]) -> Option<(u64, u64)> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let validity = parsed.validity();
    let seconds = |at: i64| u64::try_from(at).ok();
    Some((seconds(validity.not_before.timestamp())?, seconds(validity.not_after.timestamp())?))
}

/// The sentence of an error body, as the controller's API has it.
pub(super) fn sentence(body: &[u8]) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let part = |name: &str| parsed.as_ref()?.pointer(name)?.as_str();
    let message = part("/error/message").unwrap_or("without a reason");
    let text = match part("/error/detail") {
        Some(detail) => format!("{}; {detail}", message.trim_end_matches('.')),
        None => message.to_owned(),
    };
    text.chars().filter(|letter| !letter.is_control()).take(512).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_the_controllers_sentence_without_what_a_terminal_obeys() {
        let body = br#"{"error": {"message": "this token was used\u001b[31m already"}}"#;
        assert_eq!(sentence(body), "this token was used[31m already");
        assert_eq!(sentence(b"<html>"), "without a reason");
        let body = br#"{"error": {"message": "web-1 already has a host.", "detail": "take another name"}}"#;
        assert_eq!(sentence(body), "web-1 already has a host; take another name");
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let token = br#"{"error": {"code": 403, "type": "token.invalid", "message": "The join token is unknown."}}"#;
        let name =
            br#"{"error": {"code": 409, "type": "object.exists", "message": "it is taken", "detail": "take another"}}"#;
        for (status, body, said) in [
            (403, &token[..], "refused (403): The join token is unknown; make another with `stemma token create`"),
            (409, name, "the controller refused (409): it is taken; take another"),
            (404, b"<html>", "is this the agents' listener (the controller prints it as `agents`)?"),
            (200, b"hello", "is this the agents' listener (the controller prints it as `agents`)?"),
        ] {
            let told = JoinError::refused(StatusCode::from_u16(status).unwrap(), body).explanation();
            assert!(told.ends_with(said), "{told}");
        }
        let target: Target = "https://c:7443".parse().unwrap();
        for (source, said) in [
            (Refusal::OtherRoot, "compare --ca-hash with what `stemma token ca-hash` prints"),
            (Refusal::WrongName, "was given with `stemma-controller init --name`"),
            (Refusal::Expired { not_after: 1, now: 2 }, "is this host's clock right?"),
            (Refusal::WrongUse, "is this the agents' listener (the controller prints it as `agents`)?"),
        ] {
            let told = JoinError::from(ClientError::Untrusted { target: target.clone(), source }).explanation();
            assert!(told.ends_with(said), "{told}");
        }
    }
}
