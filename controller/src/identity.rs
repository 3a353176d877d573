//! The check of agents' certificates: which were issued to each node, and which of these were revoked.
//!
//! An unexpired certificate of this fleet's issuer is valid if its node is enrolled and the certificate is not revoked.
//! The check is made for each request, not for each connection. So the next request of a deleted node, or with a
//! revoked certificate, fails, and the waiting check-in of a deleted node is closed. The record of a node need not list
//! the certificate. A store that was restored from a backup does not know the certificates that known nodes got after
//! the backup. The hosts with these certificates must retain their identity.

use std::collections::{HashMap, HashSet};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use stemma_wire::error::ErrorType;
use stemma_wire::tls::Identity;
use uuid::Uuid;

use crate::records::enrolled::AgentRecord;
use crate::store::Revision;

/// Maximum number of nodes without an agent record that are counted, so that the set of these nodes cannot fill the
/// memory.
const MAX_UNKNOWN_NODES: usize = 100_000;

/// A copy in memory of the records of all agents in the store: their certificates and keys.
#[derive(Debug, Default)]
pub struct Identities {
    state: RwLock<IdentityState>,
}

#[derive(Debug, Default)]
struct IdentityState {
    agents: HashMap<Uuid, AgentCertificates>,
    keys: HashMap<[u8; 32], Uuid>,
    /// The nodes without a record whose host used a certificate of this fleet. Usually they joined after the backup
    /// from which the store was restored. Another reason is that the record of a deleted node was pruned.
    unknown_nodes: HashSet<Uuid>,
}

#[derive(Debug)]
struct AgentCertificates {
    mod_revision: Revision,
    /// The serials of the certificates that may be renewed after they expired: usually only that of the newest one.
    renewable_serials: Vec<[u8; 16]>,
    is_retired: bool,
    /// The time from which none of the agent's certificates can be used, not even for a renewal, in seconds since 1970.
    expires_s: u64,
    /// The serials of revoked certificates. The list is searched at each request, and is nearly always empty.
    revoked: Vec<[u8; 16]>,
    keys: Vec<[u8; 32]>,
}

/// The rights of a certificate's holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The holder may send all requests of an agent for this node.
    AllRequests(Uuid),
    /// The holder may only renew the certificate of this node, because it has expired and its grace period has not
    /// ended.
    RenewOnly(Uuid),
}

impl Identities {
    /// Adds or replaces an agent's record, which the commit of `mod_revision` wrote. Both the writer and the store's
    /// watch call this function after a commit, in either order. A record that is older than the present one is
    /// ignored. So a node that was deleted in the meantime stays deleted (S26).
    pub fn put(&self, node: Uuid, record: &AgentRecord, mod_revision: Revision) {
        let mut state = self.write();
        if state.agents.get(&node).is_some_and(|agent| agent.mod_revision > mod_revision) {
            return;
        }
        state.remove(node);
        let revoked = record.certificates.iter().filter(|certificate| certificate.revoked);
        let revoked = revoked.map(|certificate| certificate.serial.0).collect();
        let keys: Vec<_> = record.certificates.iter().map(|certificate| certificate.spki_sha256.0).collect();
        state.keys.extend(keys.iter().map(|key| (*key, node)));
        let renewable_serials = record.renewable_serials().collect();
        let (is_retired, expires_s) = (record.retired, record.grace_ends_s());
        state.unknown_nodes.remove(&node);
        state.agents.insert(node, AgentCertificates { mod_revision, renewable_serials, is_retired, expires_s, revoked, keys });
    }

    /// Returns whether a node is enrolled and not deleted.
    pub fn is_enrolled(&self, node: Uuid) -> bool {
        self.read().agents.get(&node).is_some_and(|agent| !agent.is_retired)
    }

    /// Returns every node that is enrolled and not deleted.
    pub fn enrolled_nodes(&self) -> Vec<Uuid> {
        self.read().agents.iter().filter(|(_, agent)| !agent.is_retired).map(|(node, _)| *node).collect()
    }

    /// Returns at most `limit` deleted nodes whose certificates can all no longer be used.
    pub fn expired_nodes(&self, now_s: u64, limit: usize) -> Vec<Uuid> {
        let state = self.read();
        let expired = state.agents.iter().filter(|(_, agent)| agent.is_retired && agent.expires_s <= now_s);
        expired.map(|(node, _)| *node).take(limit).collect()
    }

    /// Removes an agent's record, which the commit of `deletion_revision` deleted. Does nothing if a later commit has
    /// written the record again.
    pub fn remove(&self, node: Uuid, deletion_revision: Revision) {
        let mut state = self.write();
        if state.agents.get(&node).is_some_and(|agent| agent.mod_revision < deletion_revision) {
            state.remove(node);
        }
    }

    /// Returns the number of nodes without a record whose host has used a certificate of this fleet since this process
    /// started.
    pub fn unknown_count(&self) -> usize {
        self.read().unknown_nodes.len()
    }

    /// Returns the node whose record has a certificate for this key.
    pub fn holder_of_key(&self, spki_sha256: &[u8; 32]) -> Option<Uuid> {
        self.read().keys.get(spki_sha256).copied()
    }

    /// Returns what the holder of a certificate may do now. `now_s` is in seconds since 1970.
    ///
    /// # Errors
    /// `AuthForbidden` if the certificate is not that of a node. `AuthRevoked` if the certificate was revoked, or its
    /// node was deleted or has no record. `CertificateSuperseded` if the certificate has expired and may not be
    /// renewed.
    pub fn check(&self, identity: &Identity, now_s: u64) -> Result<Access, ErrorType> {
        let node = identity.node_uuid().ok_or(ErrorType::AuthForbidden)?;
        let serial: Option<[u8; 16]> = (*identity.serial).try_into().ok();
        let state = self.read();
        // The node never enrolled here, or its record was pruned a while after the node was deleted.
        let Some(agent) = state.agents.get(&node) else {
            let is_counted = state.unknown_nodes.contains(&node);
            drop(state);
            if !is_counted && self.record_unknown(node) {
                log::warn!(
                    node:% = node;
                    "a host has a certificate of this fleet, and the fleet has no node for it: it joined after the backup that the store was restored \
                     from; it is refused: run stemma-agent leave on it, and join it again with a new token"
                );
            }
            return Err(ErrorType::AuthRevoked);
        };
        if agent.is_retired {
            return Err(ErrorType::AuthRevoked);
        }
        // The fleet issues no serial number of another length (`None`).
        if serial.is_none_or(|serial| agent.revoked.contains(&serial)) {
            return Err(ErrorType::AuthRevoked);
        }
        if !identity.is_expired_at(now_s) {
            return Ok(Access::AllRequests(node));
        }
        if serial.is_some_and(|serial| agent.renewable_serials.contains(&serial)) {
            Ok(Access::RenewOnly(node))
        } else {
            Err(ErrorType::CertificateSuperseded)
        }
    }

    /// Counts a node without a record. Returns false if it was counted before, has a record by now, or is one too many.
    fn record_unknown(&self, node: Uuid) -> bool {
        let mut state = self.write();
        // The node may have joined since the caller read the state.
        state.unknown_nodes.len() < MAX_UNKNOWN_NODES && !state.agents.contains_key(&node) && state.unknown_nodes.insert(node)
    }

    fn read(&self) -> RwLockReadGuard<'_, IdentityState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, IdentityState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IdentityState {
    /// Removes the certificates and keys of a node's agent.
    fn remove(&mut self, node: Uuid) {
        let Some(agent) = self.agents.remove(&node) else { return };
        for key in &agent.keys {
            self.keys.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use stemma_core::object::Timestamp;
    use stemma_wire::tls::IdentityClass;

    use super::*;
    use crate::records::enrolled::{CertificateRecord, HexBytes};

    /// In this test, the record of the deletion has revision 9. A record of revision 8 arrives after it.
    #[test]
    fn s26_put_ignores_late_record_when_node_is_deleted() {
        let node = Uuid::from_u128(7);
        let certificate = CertificateRecord {
            serial: HexBytes([1; 16]),
            spki_sha256: HexBytes([2; 32]),
            issued_at: Timestamp(0),
            not_after_s: 1000,
            revoked: false,
        };
        let joined = AgentRecord {
            seal_key: HexBytes([3; 32]),
            joined_at: Timestamp(0),
            token: "t".into(),
            certificates: vec![certificate],
            retired: false,
        };
        let identity = Identity {
            fleet: "example.com".parse().unwrap(),
            class: IdentityClass::Node(node),
            serial: Box::new([1; 16]),
            spki_sha256: [2; 32],
            not_after: 1000,
            is_expired: false,
        };
        let identities = Identities::default();
        assert_eq!((identities.check(&identity, 10), identities.unknown_count()), (Err(ErrorType::AuthRevoked), 1), "no record");
        identities.put(node, &AgentRecord { retired: true, ..joined.clone() }, Revision::new(9));
        identities.put(node, &joined, Revision::new(8));
        assert_eq!(identities.check(&identity, 10), Err(ErrorType::AuthRevoked));
        assert_eq!(identities.unknown_count(), 0, "a node that was deleted is known");
        assert!(!identities.is_enrolled(node));
        identities.put(node, &joined, Revision::new(10));
        assert_eq!(identities.check(&identity, 10), Ok(Access::AllRequests(node)));
    }
}
