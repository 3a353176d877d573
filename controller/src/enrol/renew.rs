//! Renewal: the holder of a good certificate gets the next one, also for a while after it has expired.
//!
//! A controller's outage must not cost a fleet its identity, so an expired certificate may still renew within its grace; but only the
//! newest of its node, since an older one in whoever's hands is a copied disk (F33).

use std::net::SocketAddr;

use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::message::enroll::{RenewAnswer, RenewRequest};
use stemma_wire::tls::Identity;
use uuid::Uuid;

use super::{Enrolment, caller, keys};
use crate::ca::csr::Request;
use crate::records::codec;
use crate::records::enrolled::{AgentRecord, CertificateRecord, Hex, MOST_CERTIFICATES, agent_key};
use crate::records::request::Answer;
use crate::registry::work::Work;
use crate::registry::{Context, Decision, Undecided};
use crate::store::{Op, Precondition};

/// What a renewal has made, once it is committed.
struct Renewed {
    chain: Vec<Vec<u8>>,
    record: AgentRecord,
}

impl Enrolment {
    /// Gives a node its next certificate.
    ///
    /// # Errors
    /// What is wrong with the request; that the node is gone, or its present certificate is not good for this (any more).
    pub async fn renew(
        &self,
        node: Uuid,
        identity: &Identity,
        from: SocketAddr,
        request: RenewRequest,
    ) -> Result<RenewAnswer, ApiError> {
        let request = self.check_request(&request.csr, Some(node))?;
        let in_grace = identity.expired_at(self.clock.unix_seconds());
        let caller = caller(format!("node/{node}"), from, if in_grace { "renewed after expiry" } else { "renewed" });
        let decide = |context: &Context<'_>| self.decide_renewal(context, node, identity, &request);
        let (Renewed { chain, record }, written) = self.write(&caller, decide).await?;
        self.identities.put(node, &record, written);
        self.counters.renewals.inc();
        if in_grace {
            let model = self.registry.cache().model();
            let name = model.node_name(node);
            log::warn!(node:% = node, name, peer:% = from.ip(); "certificate renewed after it had expired");
        }
        Ok(RenewAnswer { chain })
    }

    fn decide_renewal(
        &self,
        context: &Context<'_>,
        node: Uuid,
        identity: &Identity,
        request: &Request,
    ) -> Result<(Decision, Renewed), Undecided> {
        let gone = || ApiError::from(ErrorType::AuthRevoked);
        let (record, written) = context.record::<AgentRecord>(&agent_key(node))?.ok_or_else(gone)?;
        // Judged before, in memory; but of two renewals at once only one still finds its certificate the newest.
        may_renew(&record, identity, &request.spki_sha256, context.now.0 / 1000).map_err(ApiError::from)?;
        if record.showable(context.now.0 / 1000) >= MOST_CERTIFICATES {
            return Err(too_many().into());
        }
        let mut work = Work::on(context);
        let (before, mut record) = (record.clone(), record.without_over(context.forgets_until()));
        let key = Hex(request.spki_sha256);
        keys::follow(context, work.draft(), node, Some(&before), &record.certificates, &key)?;
        let (chain, certificate) = self.issue(node, request, context.now)?;
        record.certificates.push(certificate);
        let at = agent_key(node);
        work.draft().require(Precondition::unchanged(at.clone(), written));
        work.draft().entry(Op::Put { key: at.into(), value: codec::encode(&record) });
        Ok((work.finish(Answer::empty(200))?, Renewed { chain, record }))
    }
}

/// A host that renews without end, or somebody with its key.
pub(super) fn too_many() -> ApiError {
    let message = format!("the node has {MOST_CERTIFICATES} certificates that are not over, and is given no more");
    ApiError::new(ErrorType::CertificateTooMany, message)
        .detail("it renews without need; look for a second holder of its key; then delete the node, which ends them all, and let its host join again")
}

/// Whether the holder of this certificate may have the next one for this key, by what is recorded of its node. Past its end it may
/// where nothing newer was made, or what was made is for the same key: then its answer was lost, and who has that key is the host
/// that asked for it.
fn may_renew(record: &AgentRecord, identity: &Identity, key: &[u8; 32], now_s: u64) -> Result<(), ErrorType> {
    let is_shown = |certificate: &CertificateRecord| certificate.serial.0[..] == *identity.serial;
    if record.retired || record.certificates.iter().any(|certificate| is_shown(certificate) && certificate.revoked) {
        return Err(ErrorType::AuthRevoked);
    }
    if !identity.expired_at(now_s) {
        return Ok(());
    }
    let shown = record.certificates.iter().position(is_shown).ok_or(ErrorType::CertificateSuperseded)?;
    let is_lost = |later: &CertificateRecord| !later.revoked && later.spki_sha256.0 == *key;
    if record.certificates[shown + 1..].iter().all(is_lost) { Ok(()) } else { Err(ErrorType::CertificateSuperseded) }
}

#[cfg(test)]
mod tests {
    use stemma_core::object::Timestamp;
    use stemma_wire::tls::Class;

    use super::*;

    /// Two certificates, the older of them with serial 1, both until second 1000.
    fn record() -> AgentRecord {
        let certificate = |serial| CertificateRecord {
            serial: Hex([serial; 16]),
            spki_sha256: Hex([serial; 32]),
            issued_at: Timestamp(0),
            not_after_s: 1000,
            revoked: false,
        };
        AgentRecord {
            seal_key: Hex([9; 32]),
            joined_at: Timestamp(0),
            token: "t".into(),
            certificates: vec![certificate(1), certificate(2)],
            retired: false,
        }
    }

    #[test]
    fn f33_past_its_end_only_the_newest_certificate_renews() {
        let mut revoked = record();
        revoked.certificates[1].revoked = true;
        let retired = AgentRecord { retired: true, ..record() };
        let superseded = Err(ErrorType::CertificateSuperseded);
        let dead = Err(ErrorType::AuthRevoked);
        let mut lost_twice = record();
        lost_twice.certificates.push(CertificateRecord { serial: Hex([4; 16]), ..lost_twice.certificates[1].clone() });
        let mut renewed = lost_twice.clone();
        renewed.certificates.push(CertificateRecord { spki_sha256: Hex([5; 32]), ..record().certificates[1].clone() });
        for (what, record, serial, key, now_s, expected) in [
            ("the newest", record(), 2, 9, 10, Ok(())),
            ("an older one", record(), 1, 9, 10, Ok(())),
            ("one that a backup does not know", record(), 3, 9, 10, Ok(())),
            ("the newest, expired", record(), 2, 9, 2000, Ok(())),
            ("an older one, expired", record(), 1, 9, 2000, superseded),
            ("the same with the key of the newer one: its answer was lost", record(), 1, 2, 2000, Ok(())),
            ("and was lost again", lost_twice.clone(), 1, 2, 2000, Ok(())),
            ("but not with another", lost_twice, 1, 9, 2000, superseded),
            ("and not when that key has been renewed since", renewed, 1, 2, 2000, superseded),
            ("one that a backup does not know, expired", record(), 3, 9, 2000, superseded),
            ("an older one with the key of a revoked one, expired", revoked.clone(), 1, 2, 2000, superseded),
            ("a revoked one", revoked.clone(), 2, 9, 10, dead),
            ("a revoked one, expired", revoked, 2, 9, 2000, dead),
            ("one of a node that is gone", retired, 2, 9, 10, dead),
        ] {
            let identity = Identity {
                fleet: "example.com".parse().unwrap(),
                class: Class::Node(Uuid::from_u128(7)),
                serial: Box::new([serial; 16]),
                spki_sha256: [serial; 32],
                not_after: 1000,
                expired: false,
            };
            assert_eq!(may_renew(&record, &identity, &[key; 32], now_s), expected, "{what}");
        }
    }
}
