//! Joining: a token and a key of the host's own become a certificate.
//!
//! The controller is known by the hash of its fleet root's key alone, given out of band; nothing is sent before the
//! server's chain has led there. The key never leaves the host, and the token is read from a file or standard input.

use std::sync::Arc;

use hyper::Request;
use hyper::body::Bytes;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};
use stemma_wire::client::{Client, ClientError, ClientLimits, Target};
use stemma_wire::clock::Clock;
use stemma_wire::message::enroll::{EnrollAnswer, EnrollRequest};
use stemma_wire::message::{DecodeError, Message, decode, encode};
use stemma_wire::tls::{Pin, client_config, spki_sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::state::{Credentials, StateError};
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

/// Why a host did not join. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// It is a member already.
    #[error(
        "this host has joined already, as node {0}; to join anew, stop the agent and remove /var/lib/stemma-agent first"
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
        /// Its sentence.
        message: String,
    },
    /// Its answer cannot be read.
    #[error("the controller's answer cannot be read")]
    Answer(#[from] DecodeError),
    /// Its answer does not fit what was asked.
    #[error("the controller's answer is refused: {0}")]
    Odd(&'static str),
    /// rustls takes none of it.
    #[error("the TLS side could not be set up")]
    Tls(#[from] rustls::Error),
    /// What was given could not be kept.
    #[error("what the controller gave could not be kept")]
    Kept(#[from] HostError),
    /// The state directory.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Joins and writes down identity and credentials; gives the identity.
///
/// # Errors
/// [`JoinError`].
pub async fn join(host: &dyn Host, invitation: Invitation, clock: Arc<dyn Clock>) -> Result<Identity, JoinError> {
    // A member whose identity or key is damaged can only join anew.
    if let Ok(identity) = Identity::load(host)
        && !Credentials::load(host).and_then(|held| held.check(&identity)).is_err_and(|error| error.is_damage())
    {
        return Err(JoinError::Joined(identity.node));
    }
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let request = EnrollRequest {
        token: invitation.token.trim().to_owned(),
        csr: signing_request(&key)?,
        seal_key: invitation.seal_key,
        name: invitation.name.clone(),
    };
    let answer = ask(&invitation, &request, clock).await?;
    let validity = checked(&answer, &invitation.ca_hash)?;
    let identity = Identity { node: answer.node, fleet: answer.fleet, root: answer.root };
    let credentials = Credentials {
        controllers: invitation.controllers.iter().map(ToString::to_string).collect(),
        key: key.serialize_der(),
        chain: answer.chain,
        validity,
    };
    credentials.store(host)?;
    // The identity comes last: with it, the host has joined.
    identity.store(host)?;
    Ok(identity)
}

/// A request for a certificate that asks for nothing: of all that it could say, only its public key is taken.
pub(super) fn signing_request(key: &KeyPair) -> Result<Vec<u8>, rcgen::Error> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    Ok(parameters.serialize_request(key)?.der().to_vec())
}

/// Asks one controller after the other; a refusal is an answer, and no other is asked.
async fn ask(
    invitation: &Invitation,
    request: &EnrollRequest,
    clock: Arc<dyn Clock>,
) -> Result<EnrollAnswer, JoinError> {
    let tls = Arc::new(client_config(&Pin::KeyHash(invitation.ca_hash), None, None, clock)?);
    let mut last = JoinError::Odd("no controller was named");
    for target in &invitation.controllers {
        let limits = ClientLimits { body_bytes: EnrollAnswer::MAX_BYTES as u64, ..ClientLimits::default() };
        let mut client = Client::new(target.clone(), Some(tls.clone()), limits);
        let body = Bytes::from(encode(request));
        let post = Request::post("/agent/v1/enroll").body(body).expect("the path is a path");
        match client.send(post).await {
            Ok(answer) if answer.status().is_success() => return Ok(decode(answer.body())?),
            Ok(answer) => {
                return Err(JoinError::Refused { status: answer.status().as_u16(), message: sentence(answer.body()) });
            }
            Err(error) => last = JoinError::Asked(error),
        }
    }
    Err(last)
}

/// The root must be the one that was pinned; the rest is checked at every handshake. Gives the certificate's validity.
fn checked(answer: &EnrollAnswer, ca_hash: &[u8; 32]) -> Result<(u64, u64), JoinError> {
    let hash = spki_sha256(&answer.root).map_err(|_| JoinError::Odd("its root is no certificate"))?;
    if hash != *ca_hash {
        return Err(JoinError::Odd("its root is not the one that --ca-hash names"));
    }
    let leaf = answer.chain.first().ok_or(JoinError::Odd("it holds no certificate"))?;
    validity(leaf).ok_or(JoinError::Odd("its certificate cannot be read"))
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
    let text = parsed.as_ref().and_then(|body| body.pointer("/error/message")).and_then(serde_json::Value::as_str);
    let sentence: String =
        text.unwrap_or("without a reason").chars().filter(|letter| !letter.is_control()).take(512).collect();
    sentence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_the_controllers_sentence_without_what_a_terminal_obeys() {
        let body = br#"{"error": {"message": "this token was used\u001b[31m already"}}"#;
        assert_eq!(sentence(body), "this token was used[31m already");
        assert_eq!(sentence(b"<html>"), "without a reason");
    }
}
