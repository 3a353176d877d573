//! Who is at the other end, as a handler is told.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use stemma_core::shares::Holder;

use crate::tls::{Class, Identity};

/// What room there was for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There was some.
    Free,
    /// Another connection of the same address or principal was cut for it.
    OfAnother,
    /// There was none.
    Full,
}

/// A connection's place among those of its principal.
pub(super) trait Seat: fmt::Debug + Send + Sync {
    /// Counts the connection among those of a principal.
    fn hold(&self, holder: &Holder) -> Room;
}

/// The other end of a connection.
#[derive(Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Who it is by its certificate; `None` where it showed none, or speaks plain HTTP.
    pub identity: Option<Identity>,
    /// It showed by other means who it is.
    vouched: AtomicBool,
    /// None on a listener that does not count the connections of principals.
    seat: Option<Box<dyn Seat>>,
}

impl Peer {
    /// The other end of a connection that has just been made.
    pub fn new(address: SocketAddr, identity: Option<Identity>) -> Self {
        Self { address, identity, vouched: AtomicBool::new(false), seat: None }
    }

    /// The same where its connections are counted among those of a principal, once it is known.
    pub(super) fn seated(self, seat: Box<dyn Seat>) -> Self {
        Self { seat: Some(seat), ..self }
    }

    /// Counts its connection among those of the principal whose it shows to be. Where that has its part of the places, the one of its connections
    /// that is there for the longest and whose request is not being answered is cut for it; without such a one there is no room.
    /// So it is where all of the same cluster have theirs.
    pub fn hold(&self, holder: &Holder) -> Room {
        self.seat.as_ref().map_or(Room::Free, |seat| seat.hold(holder))
    }

    /// Notes that it showed a good token: from then on it is no stranger, and has no place among the strangers of its address.
    pub fn vouch(&self) {
        self.vouched.store(true, Ordering::Relaxed);
    }

    /// Whether it has shown nothing so far by which it is known.
    pub fn is_stranger(&self) -> bool {
        self.identity.is_none() && !self.vouched.load(Ordering::Relaxed)
    }

    /// The caller's name in the audit: the name of a principal, or `node/UUID`. `None` without a certificate.
    pub fn principal(&self) -> Option<String> {
        Some(match &self.identity.as_ref()?.class {
            Class::Admin(name) | Class::Principal(name) => name.as_str().to_owned(),
            Class::Node(uuid) => format!("node/{uuid}"),
            Class::Controller(uuid) => format!("controller/{uuid}"),
            Class::Signer(uuid) => format!("signer/{uuid}"),
        })
    }
}
