//! The other end of a connection, as a handler sees it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use stemma_core::shares::ShareHolder;

use crate::tls::{Identity, IdentityClass};

/// The result of a connection's request for one of the limited places of its address or principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmitOutcome {
    /// The connection got a free place or has one already, or the listener does not limit such connections.
    Admitted,
    /// Another connection of the same address or principal was closed to make a place.
    Replaced,
    /// The connection got no place: no other could be closed, or the remaining places are reserved for fleet admins.
    Full,
}

/// A connection that can occupy one of the limited places of a principal.
pub(super) trait PrincipalSlot: fmt::Debug + Send + Sync {
    /// Counts the connection of this slot among the places of a principal (`holder`), as [`Peer::admit`] does.
    fn admit(&self, holder: &ShareHolder) -> AdmitOutcome;
}

/// The other end of a connection: its address, and the identity that it has proved.
#[derive(Debug)]
pub struct Peer {
    /// The address of the peer.
    pub address: SocketAddr,
    /// The identity in its certificate. `None` without a certificate, or with plain HTTP.
    pub identity: Option<Identity>,
    /// True after the peer presented a valid token.
    is_authenticated: AtomicBool,
    /// The link by which the connection can be counted for a principal. `None` on a listener that does not limit
    /// connections per principal.
    principal_slot: Option<Box<dyn PrincipalSlot>>,
}

impl Peer {
    /// Creates the peer of a new connection that has not presented a token yet.
    pub fn new(address: SocketAddr, identity: Option<Identity>) -> Self {
        Self { address, identity, is_authenticated: AtomicBool::new(false), principal_slot: None }
    }

    /// Returns the peer with the slot by which its connection can be counted for a principal later.
    pub(super) fn with_slot(self, slot: Box<dyn PrincipalSlot>) -> Self {
        Self { principal_slot: Some(slot), ..self }
    }

    /// Counts the connection for the principal that authenticated on it. If the principal or its cluster has its
    /// maximum of connections, closes the principal's oldest connection that waits for its peer and not for a handler.
    /// Returns [`AdmitOutcome::Full`] if there is no such connection, or if the remaining places are reserved for
    /// admins of the fleet. Does nothing on a listener that does not limit connections per principal.
    pub fn admit(&self, holder: &ShareHolder) -> AdmitOutcome {
        self.principal_slot.as_ref().map_or(AdmitOutcome::Admitted, |slot| slot.admit(holder))
    }

    /// Records that the peer presented a valid token. Its connection then no longer counts among the unauthenticated
    /// connections of its address.
    pub fn mark_authenticated(&self) {
        self.is_authenticated.store(true, Ordering::Relaxed);
    }

    /// Returns whether the peer has presented neither a certificate nor a valid token so far.
    pub fn is_unauthenticated(&self) -> bool {
        self.identity.is_none() && !self.is_authenticated.load(Ordering::Relaxed)
    }

    /// Returns the peer's name in the audit, from its certificate: the name of a principal, or a class and a uuid (such
    /// as `node/UUID`). Returns `None` if the peer presented no certificate.
    pub fn principal_name(&self) -> Option<String> {
        Some(match &self.identity.as_ref()?.class {
            IdentityClass::Admin(name) | IdentityClass::Principal(name) => name.as_str().to_owned(),
            IdentityClass::Node(uuid) => format!("node/{uuid}"),
            IdentityClass::Controller(uuid) => format!("controller/{uuid}"),
            IdentityClass::Signer(uuid) => format!("signer/{uuid}"),
        })
    }
}
