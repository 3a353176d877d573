//! Who is at the other end, as a handler is told.

use std::net::SocketAddr;

use crate::tls::Identity;

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Who it is by its certificate; `None` where it showed none, or speaks plain HTTP.
    pub identity: Option<Identity>,
}
