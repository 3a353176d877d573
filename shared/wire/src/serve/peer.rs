//! Who is at the other end, as a handler is told.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::tls::{Class, Identity};

/// The other end of a connection.
#[derive(Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Who it is by its certificate; `None` where it showed none, or speaks plain HTTP.
    pub identity: Option<Identity>,
    /// It showed by other means who it is.
    vouched: AtomicBool,
}

impl Peer {
    /// The other end of a connection that has just been made.
    pub fn new(address: SocketAddr, identity: Option<Identity>) -> Self {
        Self { address, identity, vouched: AtomicBool::new(false) }
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
