//! Tokens, enrolment and renewal: how hosts join a fleet and stay in it.
//!
//! One transaction uses a token, creates the node or takes over one without a host, and records its certificate. So if
//! a token is used twice at once, exactly one use succeeds (S21), and a failed enrolment uses up nothing.

mod join;
mod keys;
pub mod prune;
mod rate_limit;
mod renew;
mod repeat;
pub mod token;

use std::sync::{Arc, Mutex, PoisonError};

use stemma_core::object::Timestamp;
use stemma_core::ownership::Manager;
use stemma_wire::clock::Clock;
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::serve::RejectionCounter;
use uuid::Uuid;

use crate::ca::csr::{self, CertificateRequest};
use crate::ca::{self, Authority};
use crate::identity::Identities;
use crate::metrics::Counters;
use crate::records::enrolled::{CertificateRecord, HexBytes};
use crate::records::{codec, enrolled};
use crate::registry::{Caller, Canceled, Context, Decision, DecisionError, Registry, Requester};
use crate::store::{ListQuery, Revision, Snapshot, StoreError};

pub use rate_limit::{AttemptLimits, TokenAttempts};

/// The service that issues certificates to agents.
pub struct Enrolment {
    registry: Arc<Registry>,
    authority: Arc<Authority>,
    identities: Arc<Identities>,
    clock: Arc<dyn Clock>,
    rejected: Arc<RejectionCounter>,
    counters: Arc<Counters>,
    token_attempts: TokenAttempts,
}

impl Enrolment {
    /// Creates the service from the registry that creates nodes and the authority that issues certificates.
    pub fn new(
        registry: Arc<Registry>,
        authority: Arc<Authority>,
        identities: Arc<Identities>,
        clock: Arc<dyn Clock>,
        rejected: Arc<RejectionCounter>,
        counters: Arc<Counters>,
        limits: AttemptLimits,
    ) -> Self {
        Self { registry, authority, identities, clock, rejected, counters, token_attempts: TokenAttempts::new(limits) }
    }

    /// Commits the decision that `decide` returns. The registry may call `decide` several times, until a commit
    /// succeeds. Returns the value of the committed decision, and the revision of the commit.
    async fn commit<T: Send>(
        &self,
        caller: &Caller,
        decide: impl Fn(&Context<'_>) -> Result<(Decision, T), DecisionError> + Send + Sync,
    ) -> Result<(T, Revision), ApiError> {
        let last_result = Mutex::new(None);
        let decide = |context: &Context<'_>| {
            let (decision, result) = decide(context)?;
            *last_result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            Ok(decision)
        };
        let (_, revision) = self.registry.write_at(caller, decide).await?;
        let result = last_result.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((result.expect("a committed write has a decision"), revision))
    }

    /// Checks a certificate request. `node` is the node that sends it, or `None` for a new host. Fails if the request
    /// is invalid or its key belongs to another node.
    fn check_request(&self, der: &[u8], node: Option<Uuid>) -> Result<CertificateRequest, ApiError> {
        let invalid = |message: String| ApiError::new(ErrorType::CsrInvalid, message).field("csr");
        let request = csr::check(der).map_err(|error| invalid(format!("the certificate request is refused: {error}")))?;
        match self.identities.holder_of_key(&request.spki_sha256) {
            // This check is early, because it needs no commit. At the commit, the entry of the key in the store
            // decides.
            Some(owner) if Some(owner) != node => Err(keys::key_in_use_error()),
            _ => Ok(request),
        }
    }

    /// Issues a certificate for a node. Returns its chain (the certificate first, each in DER) and its record.
    fn issue_certificate(
        &self,
        node: Uuid,
        request: &CertificateRequest,
        now: Timestamp,
    ) -> Result<(Vec<Vec<u8>>, CertificateRecord), ApiError> {
        let issued = self.authority.issue_node(node, request, now.0 / 1000).map_err(|error| {
            let model = self.registry.cache().model();
            log::error!(node:% = node, name = model.node_name(node), error = stemma_wire::log::error_chain(&error); "certificate could not be issued");
            ApiError::from(ErrorType::ServerInternal)
        })?;
        let certificate = CertificateRecord {
            serial: HexBytes(issued.serial),
            spki_sha256: HexBytes(request.spki_sha256),
            issued_at: now,
            not_after_s: issued.not_after_s,
            revoked: false,
        };
        Ok((issued.chain.iter().map(|certificate| certificate.to_vec()).collect(), certificate))
    }
}

/// Loads the certificates of all agents from the store into `identities`.
///
/// # Errors
/// Any error of the store. [`StoreError::Corrupt`] or [`StoreError::Newer`] if a record cannot be read.
pub async fn load_identities(snapshot: &dyn Snapshot, identities: &Identities) -> Result<(), StoreError> {
    let list = snapshot.list(&ListQuery::prefix(enrolled::AGENTS)).await?;
    for entry in list.entries {
        let Some(node) = enrolled::read_agent_key(&entry.key) else { continue };
        identities.put(node, &decode_record(&entry.key, &entry.value)?, entry.mod_revision);
    }
    Ok(())
}

/// Decodes a stored record. The error contains the key of the record.
pub(crate) fn decode_record<T: serde::de::DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<T, StoreError> {
    let unreadable =
        |error: codec::BadRecord| StoreError::unreadable(format!("the record {}: {error}", key.escape_ascii()), error.is_newer());
    codec::decode(value).map_err(unreadable)
}

/// Builds the caller of a write that comes from an agent or from the holder of a token. `principal` is `node/UUID` or
/// `token/ID`. `reason` is stored in the audit log.
fn new_caller(principal: String, address: std::net::SocketAddr, reason: &str) -> Caller {
    Caller {
        manager: Manager::new(&principal).expect("a short text without control characters"),
        requester: Requester::from_listener(principal),
        address: address.to_string(),
        reason: Some(reason.to_owned()),
        request_id: String::new(),
        idempotency_key: None,
        dry_run: false,
        canceled: Canceled::default(),
    }
}

/// Returns `N` random bytes for a token or an id. Fails if the operating system returns none.
fn random_bytes<const N: usize>() -> Result<[u8; N], ApiError> {
    ca::random_bytes().map_err(|_| ApiError::new(ErrorType::ServerInternal, "the system returned no random bytes"))
}

/// Creates a version 7 UUID (RFC 9562), which sorts by its creation time.
fn new_uuid(now: Timestamp) -> Result<Uuid, ApiError> {
    Ok(uuid::Builder::from_unix_timestamp_millis(now.0, &random_bytes()?).into_uuid())
}
