//! Renewal: the holder of a good certificate gets the next one, also for a while after it has expired.
//!
//! A controller's outage must not cost a fleet its identity, so an expired certificate may still renew within its grace; but only the
//! newest of its node, since an older one in whoever's hands is a copied disk (F33).

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::message::enroll::{RenewAnswer, RenewRequest};
use stemma_wire::tls::Identity;
use uuid::Uuid;

use super::record::{AgentRecord, agent_key};
use super::{Enrolment, caller, read_agent};
use crate::agents::plain;
use crate::ca::csr::Request;
use crate::registry::work::Work;
use crate::registry::{Answer, Decision, Sight, Undecided, codec, store_error};
use crate::store::{Op, Precondition};

/// What a renewal has made, once it is committed.
struct Renewed {
    chain: Vec<Vec<u8>>,
    record: AgentRecord,
}

impl Enrolment {
    /// Gives a node its next certificate. That the present one is good for it was judged before.
    ///
    /// # Errors
    /// What is wrong with the request; that the node is gone.
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
        let made = Mutex::new(None);
        self.registry
            .write(&caller, |sight| {
                let (decision, this) = self.decide_renewal(sight, node, &request)?;
                *made.lock().unwrap_or_else(PoisonError::into_inner) = Some(this);
                Ok(decision)
            })
            .await?;
        let Renewed { chain, record } =
            made.into_inner().unwrap_or_else(PoisonError::into_inner).expect("a write that was made was decided");
        self.identities.put(node, &record);
        self.counters.renewals.inc();
        if in_grace {
            log::warn!(node:% = node, peer:% = from.ip(); "certificate renewed after it had expired");
        }
        Ok(RenewAnswer { chain })
    }

    fn decide_renewal(
        &self,
        sight: &Sight<'_>,
        node: Uuid,
        request: &Request,
    ) -> Result<(Decision, Renewed), Undecided> {
        let gone = || plain(ErrorType::AuthRevoked);
        let store = self.registry.store().as_ref();
        let (record, written) = read_agent(store, node).map_err(|error| store_error(&error))?.ok_or_else(gone)?;
        if record.retired {
            return Err(gone().into());
        }
        let (chain, certificate) = self.issue(node, request, sight.now)?;
        let record = record.with(certificate);
        let at = agent_key(node);
        let mut work = Work::on(sight);
        work.draft().require(Precondition::unchanged(at.clone(), written));
        work.draft().entry(Op::Put { key: at.into(), value: codec::encode(&record) });
        Ok((work.finish(Answer::empty(200))?, Renewed { chain, record }))
    }
}
