//! Who is at the other end, as a handler is told.

use std::net::SocketAddr;

use crate::tls::{Class, Identity};

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Who it is by its certificate; `None` where it showed none, or speaks plain HTTP.
    pub identity: Option<Identity>,
}

impl Peer {
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
