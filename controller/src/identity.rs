//! Which certificates are still good: what was issued to each node, and what of it was taken back.
//!
//! A certificate that finds its path to our issuer is good unless it is denied here, and each request is looked at, not each
//! connection: a node that is deleted or revoked is dead at its next request, and its parked check-in is cut. It is a list of what is
//! denied and not of what is allowed, because a store that came back from a backup does not know the certificates
//! issued since, and must not cost those hosts their identity.

use std::collections::{HashMap, HashSet};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use stemma_wire::error::ErrorType;
use stemma_wire::tls::Identity;
use uuid::Uuid;

use crate::records::enrolled::AgentRecord;
use crate::store::Revision;

/// So many nodes without a record are counted.
const MOST_UNKNOWN: usize = 100_000;

/// What is known of every agent's certificates, in memory, as of the store.
#[derive(Debug, Default)]
pub struct Identities {
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    agents: HashMap<Uuid, Agent>,
    keys: HashMap<[u8; 32], Uuid>,
    /// Nodes without a record of which certificates of ours were shown: they joined after the backup that the store was restored from.
    unknown: HashSet<Uuid>,
}

#[derive(Debug)]
struct Agent {
    written: Revision,
    /// Those that may renew past their end: the newest, hardly ever one more.
    renewable: Vec<[u8; 16]>,
    retired: bool,
    /// From this second on nobody can show any of its certificates.
    over_s: u64,
    /// Those of its certificates that were taken back. Each request is looked at here, and hardly any agent has one.
    denied: Vec<[u8; 16]>,
    keys: Vec<[u8; 32]>,
}

/// What a certificate lets its holder do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// All that an agent does.
    Good(Uuid),
    /// It has expired within the grace: renew, and nothing else.
    RenewOnly(Uuid),
}

impl Identities {
    /// Takes in an agent's record, new or changed, as the commit of this revision wrote it. Whoever committed says so here, and so does
    /// the store's watch, in whichever order: a record that is older than the one taken in is left out, so that a node that is
    /// deleted meanwhile stays so (S26).
    pub fn put(&self, node: Uuid, record: &AgentRecord, written: Revision) {
        let mut known = self.write();
        if known.agents.get(&node).is_some_and(|agent| agent.written > written) {
            return;
        }
        known.forget(node);
        let denied = record.certificates.iter().filter(|certificate| certificate.revoked);
        let denied = denied.map(|certificate| certificate.serial.0).collect();
        let keys: Vec<_> = record.certificates.iter().map(|certificate| certificate.spki_sha256.0).collect();
        known.keys.extend(keys.iter().map(|key| (*key, node)));
        let renewable = record.renewable().collect();
        let (retired, over_s) = (record.retired, record.over_s());
        known.unknown.remove(&node);
        known.agents.insert(node, Agent { written, renewable, retired, over_s, denied, keys });
    }

    /// Whether a node has certificates that were not taken back.
    pub fn is_enrolled(&self, node: Uuid) -> bool {
        self.read().agents.get(&node).is_some_and(|agent| !agent.retired)
    }

    /// Every node that has enrolled and is not gone.
    pub fn enrolled(&self) -> Vec<Uuid> {
        self.read().agents.iter().filter(|(_, agent)| !agent.retired).map(|(node, _)| *node).collect()
    }

    /// Deleted nodes of which no certificate can be shown any more, as many as that at the most.
    pub fn over(&self, now_s: u64, most: usize) -> Vec<Uuid> {
        let known = self.read();
        let over = known.agents.iter().filter(|(_, agent)| agent.retired && agent.over_s <= now_s);
        over.map(|(node, _)| *node).take(most).collect()
    }

    /// Takes in that an agent's record was dropped by the commit of this revision.
    pub fn forget(&self, node: Uuid, dropped: Revision) {
        let mut known = self.write();
        if known.agents.get(&node).is_some_and(|agent| agent.written < dropped) {
            known.forget(node);
        }
    }

    /// How many nodes have shown a certificate of ours, since this process began, and have no record.
    pub fn unknown(&self) -> usize {
        self.read().unknown.len()
    }

    /// Whose key this is, if it was ever in a certificate of ours.
    pub fn holder_of_key(&self, spki_sha256: &[u8; 32]) -> Option<Uuid> {
        self.read().keys.get(spki_sha256).copied()
    }

    /// What the holder of this certificate may do now.
    ///
    /// # Errors
    /// The error type to answer with: revoked (or of a node that is gone), or expired and not the node's newest.
    pub fn judge(&self, identity: &Identity, now_s: u64) -> Result<Access, ErrorType> {
        let node = identity.node().ok_or(ErrorType::AuthForbidden)?;
        let serial: Option<[u8; 16]> = (*identity.serial).try_into().ok();
        let known = self.read();
        // A node without a record was never enrolled here, or its record went with it.
        let Some(agent) = known.agents.get(&node) else {
            let is_noted = known.unknown.contains(&node);
            drop(known);
            if !is_noted && self.note_unknown(node) {
                log::warn!(
                    node:% = node;
                    "a host has a certificate of this fleet and is none of its nodes: it joined after the backup that the store was restored \
                     from; it is refused: run stemma-agent leave on it, and join it again with a new token"
                );
            }
            return Err(ErrorType::AuthRevoked);
        };
        if agent.retired {
            return Err(ErrorType::AuthRevoked);
        }
        if serial.is_none_or(|serial| agent.denied.contains(&serial)) {
            return Err(ErrorType::AuthRevoked);
        }
        if !identity.expired_at(now_s) {
            return Ok(Access::Good(node));
        }
        if serial.is_some_and(|serial| agent.renewable.contains(&serial)) {
            Ok(Access::RenewOnly(node))
        } else {
            Err(ErrorType::CertificateSuperseded)
        }
    }

    /// Counts a node without a record; whether it is a new one.
    fn note_unknown(&self, node: Uuid) -> bool {
        let mut known = self.write();
        // It may have joined meanwhile.
        known.unknown.len() < MOST_UNKNOWN && !known.agents.contains_key(&node) && known.unknown.insert(node)
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn forget(&mut self, node: Uuid) {
        let Some(agent) = self.agents.remove(&node) else { return };
        for key in &agent.keys {
            self.keys.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use stemma_core::object::Timestamp;
    use stemma_wire::tls::Class;

    use super::*;
    use crate::records::enrolled::{CertificateRecord, Hex};

    #[test]
    fn s26_a_late_record_does_not_bring_a_deleted_node_back() {
        let node = Uuid::from_u128(7);
        let certificate = CertificateRecord {
            serial: Hex([1; 16]),
            spki_sha256: Hex([2; 32]),
            issued_at: Timestamp(0),
            not_after_s: 1000,
            revoked: false,
        };
        let joined = AgentRecord {
            seal_key: Hex([3; 32]),
            joined_at: Timestamp(0),
            token: "t".into(),
            certificates: vec![certificate],
            retired: false,
        };
        let identity = Identity {
            fleet: "example.com".parse().unwrap(),
            class: Class::Node(node),
            serial: Box::new([1; 16]),
            spki_sha256: [2; 32],
            not_after: 1000,
            expired: false,
        };
        let identities = Identities::default();
        assert_eq!(
            (identities.judge(&identity, 10), identities.unknown()),
            (Err(ErrorType::AuthRevoked), 1),
            "no record"
        );
        identities.put(node, &AgentRecord { retired: true, ..joined.clone() }, Revision::new(9));
        identities.put(node, &joined, Revision::new(8));
        assert_eq!(identities.judge(&identity, 10), Err(ErrorType::AuthRevoked));
        assert_eq!(identities.unknown(), 0, "a node that was deleted is known");
        assert!(!identities.is_enrolled(node));
        identities.put(node, &joined, Revision::new(10));
        assert_eq!(identities.judge(&identity, 10), Ok(Access::Good(node)));
    }
}
