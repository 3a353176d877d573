//! Repeated join requests. A host whose response was lost sends the same token, keys and name again, joins as the same
//! node, and uses up nothing.
//!
//! The certificates of a node are not stored, only their serial numbers and keys. So the node gets a new certificate
//! for its key. The host is recognized by its token and its key: it signs the request with the key, and the response is
//! useless without the key. A request can be repeated until the token expires or is deleted, a certificate of the key
//! is revoked, or the node gets a certificate for another key or has too many certificates.

use std::net::SocketAddr;

use stemma_core::object::Timestamp;
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::message::enroll::{EnrollRequest, EnrollResponse};
use uuid::Uuid;

use super::join::{EnrolResult, is_valid, record_join};
use super::renew::rate_limit_error;
use super::{Enrolment, keys, new_caller, token};
use crate::ca::csr::{self, CertificateRequest};
use crate::records::enrolled::{AgentRecord, CertificateRecord, HexBytes, MAX_CERTIFICATES, agent_key, token_key};
use crate::records::request::StoredAnswer;
use crate::registry::work::PendingWrite;
use crate::registry::{Context, Decision, DecisionError};
use crate::store::Precondition;

/// A join request from a host that has probably joined with the same request before.
pub(super) struct RepeatedJoin {
    /// The id of the token.
    pub(super) token: String,
    node: Uuid,
    request: CertificateRequest,
    seal_key: HexBytes<32>,
}

impl Enrolment {
    /// Returns a join request as a repeated one, if the token has not expired and a node already has the key of the
    /// request. The name of that node must be the requested one, unless the node has no name.
    pub(super) fn repeated_join(&self, request: &EnrollRequest, now: Timestamp) -> Option<RepeatedJoin> {
        let model = self.registry.cache().model();
        let token = token::find(&model, &request.token).filter(|token| now < token.expires_at)?;
        let parsed_csr = csr::check(&request.csr).ok()?;
        let node = self.identities.holder_of_key(&parsed_csr.spki_sha256)?;
        let name = &model.nodes.get(node)?.meta.name;
        let has_requested_name = name.as_ref().is_none_or(|name| name.as_str() == request.name);
        let build = || RepeatedJoin { token: token.id.clone(), node, request: parsed_csr, seal_key: HexBytes(request.seal_key) };
        has_requested_name.then(build)
    }

    /// Issues another certificate to a node that has joined, for the key with which it joined.
    ///
    /// # Errors
    /// Fails if the node did not join with this token and this key, or has another key by now. Also fails if the node
    /// has too many certificates.
    pub(super) async fn answer_repeat(&self, repeat: &RepeatedJoin, from: SocketAddr) -> Result<EnrollResponse, ApiError> {
        let caller = new_caller(format!("token/{}", repeat.token), from, "repeated its join request");
        let (result, revision) = self.commit(&caller, |context| self.decide_repeat(context, repeat)).await?;
        self.identities.put(result.node, &result.record, revision);
        let model = self.registry.cache().model();
        let name = model.node_name(result.node);
        log::info!(node:% = result.node, name, token = repeat.token; "node repeated its join request");
        Ok(self.response(result))
    }

    /// Decides a repeated join: checks that the node joined with this token and key, and issues another certificate.
    fn decide_repeat(&self, context: &Context<'_>, repeat: &RepeatedJoin) -> Result<(Decision, EnrolResult), DecisionError> {
        let token = context.model.tokens.get(&repeat.token).filter(|token| context.now < token.record.expires_at);
        let token = token.ok_or(ApiError::from(ErrorType::TokenInvalid))?;
        let agent = context.record::<AgentRecord>(&agent_key(repeat.node))?;
        let Some((mut record, record_revision)) = agent.filter(|(record, _)| has_joined_with(record, repeat)) else {
            // If the token has uses left, only the key is wrong. Otherwise only a repeated request could use the token.
            let refusal =
                if is_valid(&token.record, context.now) { keys::key_in_use_error() } else { ErrorType::TokenInvalid.into() };
            return Err(refusal.into());
        };
        if record.usable_count(context.now.0 / 1000) >= MAX_CERTIFICATES {
            return Err(rate_limit_error().into());
        }
        let (chain, certificate) = self.issue_certificate(repeat.node, &repeat.request, context.now)?;
        record.certificates.push(certificate);
        let mut work = PendingWrite::new(context);
        work.draft().add_precondition(Precondition::unchanged(token_key(&repeat.token), token.mod_revision));
        if let Some(node) = context.model.nodes.get(repeat.node) {
            work.draft().audit_unchanged(node);
        }
        record_join(&mut work, repeat.node, &record, Some(record_revision));
        Ok((work.finish(StoredAnswer::empty(201))?, EnrolResult { node: repeat.node, chain, record }))
    }
}

/// Returns whether a node's agent joined with the token and both keys of the request, has had no other certificate key
/// since then, is not retired, and has no revoked certificate for the key.
fn has_joined_with(record: &AgentRecord, repeat: &RepeatedJoin) -> bool {
    !record.retired
        && record.token == repeat.token
        && record.seal_key == repeat.seal_key
        && has_single_key(&record.certificates, &repeat.request.spki_sha256)
}

/// Returns whether a node has had only this key since its first certificate for the key. From that certificate on, all
/// must be for this key and not revoked. The certificates before that belong to an earlier agent of the node, and must
/// all be revoked. `certificates` is ordered, the newest last.
fn has_single_key(certificates: &[CertificateRecord], key: &[u8; 32]) -> bool {
    let is_of_key = |certificate: &CertificateRecord| certificate.spki_sha256.0 == *key;
    let first = certificates.iter().position(is_of_key);
    first.map(|first| certificates.split_at(first)).is_some_and(|(earlier, later)| {
        earlier.iter().all(|entry| entry.revoked) && later.iter().all(|entry| is_of_key(entry) && !entry.revoked)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s20_has_single_key_rejects_other_and_revoked_keys() {
        let certificate = |key: u8, revoked| CertificateRecord {
            serial: HexBytes([key; 16]),
            spki_sha256: HexBytes([key; 32]),
            issued_at: Timestamp(0),
            not_after_s: 1,
            revoked,
        };
        // For each certificate, its key and whether it was revoked. The host requests with key 1.
        for (certificates, expected) in [
            (&[(1, false)][..], true),
            (&[(1, false), (1, false)], true),
            (&[(9, true), (8, true), (1, false)], true),
            (&[], false),
            (&[(2, false)], false),
            (&[(1, true)], false),
            (&[(1, false), (2, false)], false),
            (&[(1, false), (2, true)], false),
            (&[(1, false), (2, true), (1, false)], false),
            (&[(9, false), (1, false)], false),
        ] {
            let records: Vec<_> = certificates.iter().map(|(key, revoked)| certificate(*key, *revoked)).collect();
            assert_eq!(has_single_key(&records, &[1; 32]), expected, "{certificates:?}");
        }
    }
}
