//! Joining a fleet and staying in it: tokens, enrolment, renewal.
//!
//! A token is consumed in the very transaction that makes the node (or takes over one that never enrolled) and records its
//! certificate, so that of two uses at once exactly one finds it still there (S21), and an enrolment that failed has burnt nothing.

mod again;
pub mod forget;
mod guess;
mod join;
mod keys;
mod renew;
pub mod token;

use std::sync::{Arc, Mutex, PoisonError};

use stemma_core::object::Timestamp;
use stemma_core::ownership::Manager;
use stemma_wire::clock::Clock;
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::serve::Rejected;
use uuid::Uuid;

use crate::ca::csr::{self, Request};
use crate::ca::{self, Authority};
use crate::identity::Identities;
use crate::metrics::Counters;
use crate::records::enrolled::{CertificateRecord, Hex};
use crate::records::{codec, enrolled};
use crate::registry::{Abandoned, Caller, Context, Decision, Registry, Undecided, Who};
use crate::store::{Query, Revision, Snapshot, StoreError};

pub use guess::{GuessLimits, Guesses};

/// Gives agents their certificates.
pub struct Enrolment {
    registry: Arc<Registry>,
    authority: Arc<Authority>,
    identities: Arc<Identities>,
    clock: Arc<dyn Clock>,
    rejected: Arc<Rejected>,
    counters: Arc<Counters>,
    guesses: Guesses,
}

impl Enrolment {
    /// Enrolment over the registry that makes nodes and the authority that issues.
    pub fn new(
        registry: Arc<Registry>,
        authority: Arc<Authority>,
        identities: Arc<Identities>,
        clock: Arc<dyn Clock>,
        rejected: Arc<Rejected>,
        counters: Arc<Counters>,
        limits: GuessLimits,
    ) -> Self {
        Self { registry, authority, identities, clock, rejected, counters, guesses: Guesses::new(limits) }
    }

    /// Commits what is decided. Returns what the last decision made, and the revision of the commit.
    async fn write<T: Send>(
        &self,
        caller: &Caller,
        decide: impl Fn(&Context<'_>) -> Result<(Decision, T), Undecided> + Send + Sync,
    ) -> Result<(T, Revision), ApiError> {
        let made = Mutex::new(None);
        let decide = |context: &Context<'_>| {
            let (decision, this) = decide(context)?;
            *made.lock().unwrap_or_else(PoisonError::into_inner) = Some(this);
            Ok(decision)
        };
        let (_, written) = self.registry.write_at(caller, decide).await?;
        let made = made.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((made.expect("a write that was made was decided"), written))
    }

    /// Reads the request for a certificate, which is for a key that no other node has.
    fn check_request(&self, der: &[u8], node: Option<Uuid>) -> Result<Request, ApiError> {
        let refused = |message: String| ApiError::new(ErrorType::CsrInvalid, message).field("csr");
        let request =
            csr::check(der).map_err(|error| refused(format!("the certificate request is refused: {error}")))?;
        match self.identities.holder_of_key(&request.spki_sha256) {
            // Known early in the usual case; what counts is the entry in the store, when the commit is made.
            Some(holder) if Some(holder) != node => Err(keys::taken()),
            _ => Ok(request),
        }
    }

    /// Issues a node's certificate, with what is recorded of it.
    fn issue(
        &self,
        node: Uuid,
        request: &Request,
        now: Timestamp,
    ) -> Result<(Vec<Vec<u8>>, CertificateRecord), ApiError> {
        let issued = self.authority.issue_node(node, request, now.0 / 1000).map_err(|error| {
            let model = self.registry.cache().model();
            log::error!(node:% = node, name = model.node_name(node), error = stemma_wire::log::chain(&error); "certificate could not be made");
            ApiError::from(ErrorType::ServerInternal)
        })?;
        let certificate = CertificateRecord {
            serial: Hex(issued.serial),
            spki_sha256: Hex(request.spki_sha256),
            issued_at: now,
            not_after_s: issued.not_after_s,
            revoked: false,
        };
        Ok((issued.chain.iter().map(|certificate| certificate.to_vec()).collect(), certificate))
    }
}

/// Loads what is known of every agent's certificates.
///
/// # Errors
/// What the store says; [`StoreError::Corrupt`] or [`StoreError::Newer`] for a record that cannot be read.
pub async fn load_identities(snapshot: &dyn Snapshot, into: &Identities) -> Result<(), StoreError> {
    let list = snapshot.list(&Query::prefix(enrolled::AGENTS)).await?;
    for entry in list.entries {
        let Some(node) = enrolled::read_agent_key(&entry.key) else { continue };
        into.put(node, &decode(&entry.key, &entry.value)?, entry.mod_revision);
    }
    Ok(())
}

pub(crate) fn decode<T: serde::de::DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<T, StoreError> {
    let unreadable = |error: codec::BadRecord| {
        StoreError::unreadable(format!("the record {}: {error}", key.escape_ascii()), error.is_newer())
    };
    codec::decode(value).map_err(unreadable)
}

/// Who writes, where an agent or a token does.
fn caller(principal: String, address: std::net::SocketAddr, reason: &str) -> Caller {
    Caller {
        manager: Manager::new(&principal).expect("a short text without control characters"),
        who: Who::by_way(principal),
        address: address.to_string(),
        reason: Some(reason.to_owned()),
        request_id: String::new(),
        mark: None,
        dry_run: false,
        abandoned: Abandoned::default(),
    }
}

/// Random bytes for tokens and ids.
fn random<const N: usize>() -> Result<[u8; N], ApiError> {
    ca::random().map_err(|_| ApiError::new(ErrorType::ServerInternal, "the system gave no random bytes"))
}

/// RFC 9562's version 7: sorts by the time it was made.
fn new_uuid(now: Timestamp) -> Result<Uuid, ApiError> {
    Ok(uuid::Builder::from_unix_timestamp_millis(now.0, &random()?).into_uuid())
}
