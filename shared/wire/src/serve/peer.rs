//! The other end of a connection, as a handler sees it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use stemma_core::shares::ShareHolder;

use crate::tls::{Identity, IdentityClass};

/// The result of counting a connection for an address or principal: whether it got a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmitOutcome {
    /// The connection got a place that was free.
    Admitted,
    /// Another connection of the same address or principal was closed to make a place.
    Replaced,
    /// The connection got no place, because the maximum is reached and no connection could be closed.
    Full,
}

/// A connection that can be counted for a principal.
pub(super) trait PrincipalSlot: fmt::Debug + Send + Sync {
    /// Counts the connection for a principal.
    fn admit(&self, holder: &ShareHolder) -> AdmitOutcome;
}

/// The other end of a connection: its address, and who it has proved to be.
#[derive(Debug)]
pub struct Peer {
    /// The address of the peer.
    pub address: SocketAddr,
    /// The identity in its certificate. `None` without a certificate, or with plain HTTP.
    pub identity: Option<Identity>,
    /// True once the peer presented a valid token.
    is_authenticated: AtomicBool,
    /// The connection's slot. `None` on a listener that does not count connections per principal.
    principal_slot: Option<Box<dyn PrincipalSlot>>,
}

impl Peer {
    /// Creates the peer of a new connection.
    pub fn new(address: SocketAddr, identity: Option<Identity>) -> Self {
        Self { address, identity, is_authenticated: AtomicBool::new(false), principal_slot: None }
    }

    /// Adds the slot that counts the connection for its principal once the principal is known.
    pub(super) fn with_slot(self, slot: Box<dyn PrincipalSlot>) -> Self {
        Self { principal_slot: Some(slot), ..self }
    }

    /// Counts the connection for the principal that authenticated on it. If the principal or its cluster has its
    /// maximum of connections, the principal's oldest connection without a request in progress is closed. If there is
    /// no such connection, returns [`AdmitOutcome::Full`].
    pub fn admit(&self, holder: &ShareHolder) -> AdmitOutcome {
        self.principal_slot.as_ref().map_or(AdmitOutcome::Admitted, |slot| slot.admit(holder))
    }

    /// Records that the peer presented a valid token. It then no longer counts among the unauthenticated connections of
    /// its address.
    pub fn mark_authenticated(&self) {
        self.is_authenticated.store(true, Ordering::Relaxed);
    }

    /// Returns whether the peer has not authenticated so far.
    pub fn is_unauthenticated(&self) -> bool {
        self.identity.is_none() && !self.is_authenticated.load(Ordering::Relaxed)
    }

    /// Returns the caller's name in the audit: the name of a principal, or `node/UUID`. `None` without a certificate.
    pub fn principal_name(&self) -> Option<String> {
        Some(match &self.identity.as_ref()?.class {
            IdentityClass::Admin(name) | IdentityClass::Principal(name) => name.as_str().to_owned(),
            IdentityClass::Node(uuid) => format!("node/{uuid}"),
            IdentityClass::Controller(uuid) => format!("controller/{uuid}"),
            IdentityClass::Signer(uuid) => format!("signer/{uuid}"),
        })
    }
}
