//! Renewal: the holder of a valid certificate gets the next one. An expired certificate can be renewed for a while.
//!
//! An outage of the controller must not cost a fleet its identities, so a certificate can be renewed within a grace
//! period after it expired. Only the node's newest certificate can: an older one may come from a copied disk (F33).

use std::net::SocketAddr;

use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::message::enroll::{RenewRequest, RenewResponse};
use stemma_wire::tls::Identity;
use uuid::Uuid;

use super::{Enrolment, keys, new_caller};
use crate::ca::csr::CertificateRequest;
use crate::records::codec;
use crate::records::enrolled::{AgentRecord, CertificateRecord, HexBytes, MAX_CERTIFICATES, agent_key};
use crate::records::request::StoredAnswer;
use crate::registry::work::PendingWrite;
use crate::registry::{Context, Decision, DecisionError};
use crate::store::{Op, Precondition};

/// The result of a renewal after its commit: the chain of the new certificate, and the node's updated record.
struct RenewalResult {
    chain: Vec<Vec<u8>>,
    record: AgentRecord,
}

impl Enrolment {
    /// Issues the next certificate of a node, whose agent presented `identity`, its present certificate.
    ///
    /// # Errors
    /// Fails if the request is invalid, if its key belongs to another node, if the node was deleted or has too many
    /// certificates, or if the present certificate may not be renewed.
    pub async fn renew(
        &self,
        node: Uuid,
        identity: &Identity,
        from: SocketAddr,
        request: RenewRequest,
    ) -> Result<RenewResponse, ApiError> {
        let request = self.check_request(&request.csr, Some(node))?;
        let is_expired = identity.is_expired_at(self.clock.unix_seconds());
        let caller = new_caller(format!("node/{node}"), from, if is_expired { "renewed after expiry" } else { "renewed" });
        let decide = |context: &Context<'_>| self.decide_renewal(context, node, identity, &request);
        let (RenewalResult { chain, record }, revision) = self.commit(&caller, decide).await?;
        self.identities.put(node, &record, revision);
        self.counters.renewals.inc();
        if is_expired {
            let model = self.registry.cache().model();
            let name = model.node_name(node);
            log::warn!(node:% = node, name, peer:% = from.ip(); "certificate renewed after it had expired");
        }
        Ok(RenewResponse { chain })
    }

    /// Decides a renewal: checks that the certificate may be renewed, issues the next certificate, and adds it to the
    /// node's record.
    fn decide_renewal(
        &self,
        context: &Context<'_>,
        node: Uuid,
        identity: &Identity,
        request: &CertificateRequest,
    ) -> Result<(Decision, RenewalResult), DecisionError> {
        let revoked = || ApiError::from(ErrorType::AuthRevoked);
        let (record, revision) = context.record::<AgentRecord>(&agent_key(node))?.ok_or_else(revoked)?;
        // The cached record was checked before. But if two requests renew one expired certificate at the same time, the
        // certificate is the newest one only for the first request.
        check_renewal(&record, identity, &request.spki_sha256, context.now.0 / 1000).map_err(ApiError::from)?;
        if record.usable_count(context.now.0 / 1000) >= MAX_CERTIFICATES {
            return Err(rate_limit_error().into());
        }
        let mut work = PendingWrite::new(context);
        let (old_record, mut record) = (record.clone(), record.without_expired(context.prune_before()));
        let new_key = HexBytes(request.spki_sha256);
        keys::update_keys(context, work.draft(), node, Some(&old_record), &record.certificates, &new_key)?;
        let (chain, certificate) = self.issue_certificate(node, request, context.now)?;
        record.certificates.push(certificate);
        let record_key = agent_key(node);
        work.draft().add_precondition(Precondition::unchanged(record_key.clone(), revision));
        work.draft().add_op(Op::Put { key: record_key.into(), value: codec::encode(&record) });
        Ok((work.finish(StoredAnswer::empty(200))?, RenewalResult { chain, record }))
    }
}

/// Builds the error for a node with too many certificates. Either its host renews without need, or another host has its
/// key.
pub(super) fn rate_limit_error() -> ApiError {
    let message = format!("the node has {MAX_CERTIFICATES} certificates that can still be used, and cannot get more");
    ApiError::new(ErrorType::CertificateTooMany, message)
        .detail("it renews too often: check whether another host has its key; then delete the node, which revokes all of its certificates, and let its host join again")
}

/// Checks, by the record of the node, that the holder of a certificate may get the next one for `key`. A certificate
/// that is revoked, or whose node was deleted, may never be renewed. Any other certificate may be renewed until it
/// expires, even if the record does not list it.
///
/// An expired certificate may be renewed only if the record lists it, and all newer ones are for `key` and not revoked.
/// If there are such newer ones, the responses with them were lost, and only the same host can have the key.
fn check_renewal(record: &AgentRecord, identity: &Identity, key: &[u8; 32], now_s: u64) -> Result<(), ErrorType> {
    let is_presented = |certificate: &CertificateRecord| certificate.serial.0[..] == *identity.serial;
    if record.retired || record.certificates.iter().any(|certificate| is_presented(certificate) && certificate.revoked) {
        return Err(ErrorType::AuthRevoked);
    }
    if !identity.is_expired_at(now_s) {
        return Ok(());
    }
    let index = record.certificates.iter().position(is_presented).ok_or(ErrorType::CertificateSuperseded)?;
    let has_same_key = |later: &CertificateRecord| !later.revoked && later.spki_sha256.0 == *key;
    if record.certificates[index + 1..].iter().all(has_same_key) { Ok(()) } else { Err(ErrorType::CertificateSuperseded) }
}

#[cfg(test)]
mod tests {
    use stemma_core::object::Timestamp;
    use stemma_wire::tls::IdentityClass;

    use super::*;

    /// Returns a record with two certificates that expire at second 1000. The older one has serial 1 and key 1, and the
    /// newer one serial 2 and key 2.
    fn record() -> AgentRecord {
        let certificate = |serial| CertificateRecord {
            serial: HexBytes([serial; 16]),
            spki_sha256: HexBytes([serial; 32]),
            issued_at: Timestamp(0),
            not_after_s: 1000,
            revoked: false,
        };
        AgentRecord {
            seal_key: HexBytes([9; 32]),
            joined_at: Timestamp(0),
            token: "t".into(),
            certificates: vec![certificate(1), certificate(2)],
            retired: false,
        }
    }

    /// Each case has the record, the serial of the presented certificate, the key of the request, the time, and the
    /// expected result. In this test, every certificate expires between the times 10 and 2000. `lost_twice` has two
    /// certificates for key 2 after the one with serial 1, as if the responses with both were lost.
    #[test]
    fn f33_check_renewal_accepts_valid_or_newest_certificates() {
        let mut revoked = record();
        revoked.certificates[1].revoked = true;
        let retired = AgentRecord { retired: true, ..record() };
        let superseded_error = Err(ErrorType::CertificateSuperseded);
        let revoked_error = Err(ErrorType::AuthRevoked);
        let mut lost_twice = record();
        lost_twice.certificates.push(CertificateRecord { serial: HexBytes([4; 16]), ..lost_twice.certificates[1].clone() });
        let mut renewed = lost_twice.clone();
        renewed.certificates.push(CertificateRecord { spki_sha256: HexBytes([5; 32]), ..record().certificates[1].clone() });
        for (case, record, serial, key, now_s, expected) in [
            ("the newest, valid", record(), 2, 9, 10, Ok(())),
            ("an older one, valid", record(), 1, 9, 10, Ok(())),
            ("one that a restored record lacks, valid", record(), 3, 9, 10, Ok(())),
            ("the newest, expired", record(), 2, 9, 2000, Ok(())),
            ("an older one, expired", record(), 1, 9, 2000, superseded_error),
            ("an older one, expired, for the key of the newer one", record(), 1, 2, 2000, Ok(())),
            ("an older one, expired, for the key of both newer ones", lost_twice.clone(), 1, 2, 2000, Ok(())),
            ("an older one, expired, for another key than the newer ones", lost_twice, 1, 9, 2000, superseded_error),
            ("an older one, expired, if the newest one is for a third key", renewed, 1, 2, 2000, superseded_error),
            ("one that a restored record lacks, expired", record(), 3, 9, 2000, superseded_error),
            ("an older one, expired, for the key of a revoked newer one", revoked.clone(), 1, 2, 2000, superseded_error),
            ("a revoked one, valid", revoked.clone(), 2, 9, 10, revoked_error),
            ("a revoked one, expired", revoked, 2, 9, 2000, revoked_error),
            ("one of a deleted node", retired, 2, 9, 10, revoked_error),
        ] {
            let identity = Identity {
                fleet: "example.com".parse().unwrap(),
                class: IdentityClass::Node(Uuid::from_u128(7)),
                serial: Box::new([serial; 16]),
                spki_sha256: [serial; 32],
                not_after: 1000,
                is_expired: false,
            };
            assert_eq!(check_renewal(&record, &identity, &[key; 32], now_s), expected, "{case}");
        }
    }
}
