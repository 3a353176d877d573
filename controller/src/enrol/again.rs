//! A host whose answer was lost and that asks again: with the same token, key and name it is told the same, and uses nothing up.
//!
//! The certificates of a node are not stored, so it gets another for its key. The host that joined is known by its token and its key:
//! the request is signed with the key, and what is given is of use to nobody else. That ends with the token's time, and with the
//! first certificate for another key.

use std::net::SocketAddr;

use stemma_core::object::Timestamp;
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::message::enroll::{EnrollAnswer, EnrollRequest};
use uuid::Uuid;

use super::join::{Made, is_good, record_join};
use super::renew::too_many;
use super::{Enrolment, caller, keys, token};
use crate::ca::csr::{self, Request};
use crate::records::enrolled::{AgentRecord, CertificateRecord, Hex, MOST_CERTIFICATES, agent_key, token_key};
use crate::records::request::Answer;
use crate::registry::work::Work;
use crate::registry::{Context, Decision, Undecided};
use crate::store::Precondition;

/// A request to join by who seems to have joined with it before.
pub(super) struct Again {
    /// The token's id.
    pub(super) token: String,
    node: Uuid,
    request: Request,
    seal_key: Hex<32>,
}

impl Enrolment {
    /// Whether a host asks again for what it was given: its key is that of a node of the name that it asks for, and its token's time is
    /// not over.
    pub(super) fn asks_again(&self, request: &EnrollRequest, now: Timestamp) -> Option<Again> {
        let model = self.registry.cache().model();
        let token = token::find(&model, &request.token).filter(|token| now < token.expires_at)?;
        let asked = csr::check(&request.csr).ok()?;
        let node = self.identities.holder_of_key(&asked.spki_sha256)?;
        let name = &model.nodes.get(node)?.meta.name;
        let is_named = name.as_ref().is_none_or(|name| name.as_str() == request.name);
        let again = || Again { token: token.id.clone(), node, request: asked, seal_key: Hex(request.seal_key) };
        is_named.then(again)
    }

    /// Gives a node that has joined another certificate for the key that it has joined with.
    ///
    /// # Errors
    /// When it did not join with this token and this key, or has got another key since; when it asks without end.
    pub(super) async fn answer_again(&self, again: &Again, from: SocketAddr) -> Result<EnrollAnswer, ApiError> {
        let caller = caller(format!("token/{}", again.token), from, "asked again for what it joined with");
        let (made, written) = self.write(&caller, |context| self.decide_again(context, again)).await?;
        self.identities.put(made.node, &made.record, written);
        let model = self.registry.cache().model();
        let name = model.node_name(made.node);
        log::info!(node:% = made.node, name, token = again.token; "node is given again what it joined with");
        Ok(self.answer(made))
    }

    fn decide_again(&self, context: &Context<'_>, again: &Again) -> Result<(Decision, Made), Undecided> {
        let token = context.model.tokens.get(&again.token).filter(|token| context.now < token.record.expires_at);
        let token = token.ok_or(ApiError::from(ErrorType::TokenInvalid))?;
        let known = context.record::<AgentRecord>(&agent_key(again.node))?;
        let Some((mut record, written)) = known.filter(|(record, _)| has_joined_with(record, again)) else {
            let refusal =
                if is_good(&token.record, context.now) { keys::taken() } else { ErrorType::TokenInvalid.into() };
            return Err(refusal.into());
        };
        if record.showable(context.now.0 / 1000) >= MOST_CERTIFICATES {
            return Err(too_many().into());
        }
        let (chain, certificate) = self.issue(again.node, &again.request, context.now)?;
        record.certificates.push(certificate);
        let mut work = Work::on(context);
        work.draft().require(Precondition::unchanged(token_key(&again.token), token.written));
        if let Some(node) = context.model.nodes.get(again.node) {
            work.draft().note(node);
        }
        record_join(&mut work, again.node, &record, Some(written));
        Ok((work.finish(Answer::empty(201))?, Made { node: again.node, chain, record }))
    }
}

/// Whether a node's agent joined with this token and this key, and has no other since.
fn has_joined_with(record: &AgentRecord, again: &Again) -> bool {
    !record.retired
        && record.token == again.token
        && record.seal_key == again.seal_key
        && is_of_one_key(&record.certificates, &again.request.spki_sha256)
}

/// Whether the certificates of a node, the newest last, are for one key from its first on, and none of these was taken back. Those of
/// an agent that was there before were all taken back.
fn is_of_one_key(certificates: &[CertificateRecord], key: &[u8; 32]) -> bool {
    let is_of_key = |one: &CertificateRecord| one.spki_sha256.0 == *key;
    let first = certificates.iter().position(is_of_key);
    first.map(|first| certificates.split_at(first)).is_some_and(|(before, since)| {
        before.iter().all(|one| one.revoked) && since.iter().all(|one| is_of_key(one) && !one.revoked)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s20_the_first_certificate_for_another_key_ends_it_whatever_became_of_that() {
        let certificate = |key: u8, revoked| CertificateRecord {
            serial: Hex([key; 16]),
            spki_sha256: Hex([key; 32]),
            issued_at: Timestamp(0),
            not_after_s: 1,
            revoked,
        };
        // Of each the key, and whether it was taken back; the host asks with key 1.
        for (certificates, is_its_own) in [
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
            let made: Vec<_> = certificates.iter().map(|(key, revoked)| certificate(*key, *revoked)).collect();
            assert_eq!(is_of_one_key(&made, &[1; 32]), is_its_own, "{certificates:?}");
        }
    }
}
