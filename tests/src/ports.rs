//! Loopback ports that one test reserves while it runs, so that no other test or program can take them.
//!
//! A restarted controller needs its previous port, because its agents connect to it there. Nobody listens on the port
//! in between. The kernel may give an unused ephemeral port to any program that binds without a port or connects. So
//! these ports are below the ephemeral range, and a lock reserves each of them among the tests. Passing a listening
//! socket to the controller would not work: a client that connects while no controller runs must be refused at once,
//! but would wait in the queue of that socket.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::UnixListener;

use anyhow::{Context as _, Result};
use tokio::net::TcpSocket;

/// The lowest port that can be reserved.
const FIRST_PORT: u16 = 20_000;
/// The number of ports that can be reserved. The kernel's range of ephemeral ports begins at 32768.
const PORT_COUNT: u32 = 10_000;

/// A loopback port that is reserved until this value is dropped. No other test can reserve the port, whether or not a
/// program listens there.
#[derive(Debug)]
pub struct ReservedPort {
    address: SocketAddr,
    // An abstract socket belongs to the network namespace, as the port does. Both are released when the process ends,
    // and no file remains.
    _lock: UnixListener,
}

impl ReservedPort {
    /// Reserves a port on which no program listens.
    ///
    /// # Errors
    /// When no port is free.
    pub fn reserve() -> Result<Self> {
        // Processes begin at different ports, so that they seldom try a port that another process has reserved.
        let start = std::process::id().wrapping_mul(64);
        let mut ports = (0..PORT_COUNT).filter_map(|attempt| {
            let offset = start.wrapping_add(attempt) % PORT_COUNT;
            Self::try_reserve(FIRST_PORT + u16::try_from(offset).expect("it is below the count"))
        });
        ports.next().context("a free port of the loopback")
    }

    /// Returns the address of the port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reserves this port. The reservation is an abstract Unix socket with the number of the port in its name. Returns
    /// `None` if another test has reserved the port or a program listens there.
    fn try_reserve(number: u16) -> Option<Self> {
        let name = std::os::unix::net::SocketAddr::from_abstract_name(format!("stemma-tests-port-{number}")).ok()?;
        let lock = UnixListener::bind_addr(&name).ok()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, number));
        TcpListener::bind(address).ok()?;
        Some(Self { address, _lock: lock })
    }
}

/// A loopback port that is bound, but on which no program listens. So the port refuses every connection.
pub struct ClosedPort {
    address: SocketAddr,
    _socket: TcpSocket,
}

impl ClosedPort {
    /// Binds a port that refuses connections until this value is dropped.
    ///
    /// # Errors
    /// When no port is free.
    pub fn new() -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        Ok(Self { address: socket.local_addr()?, _socket: socket })
    }

    /// Returns the address of the port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::ErrorKind;
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn reserved_port_is_unique_until_dropped() {
        let ports: Vec<_> = (0..20).map(|_| ReservedPort::reserve().expect("a port")).collect();
        let numbers: BTreeSet<_> = ports.iter().map(|port| port.address().port()).collect();
        assert_eq!(numbers.len(), 20, "{numbers:?}");
        let first_number = ports[0].address().port();
        assert!(ReservedPort::try_reserve(first_number).is_none(), "the port is still reserved");
        drop(ports);
        // Other tests may have reserved some of the ports since then.
        assert!(numbers.into_iter().any(|number| ReservedPort::try_reserve(number).is_some()));
    }

    #[test]
    fn reserve_skips_port_when_program_listens() {
        let port = ReservedPort::reserve().expect("a port");
        let number = port.address().port();
        let listener = TcpListener::bind(port.address()).expect("nobody listens there");
        drop(port);
        assert!(ReservedPort::try_reserve(number).is_none());
        drop(listener);
    }

    #[test]
    fn closed_port_refuses_and_is_exclusive() {
        let port = ClosedPort::new().expect("a port");
        let connect_error = TcpStream::connect(port.address()).expect_err("nobody listens");
        assert_eq!(connect_error.kind(), ErrorKind::ConnectionRefused);
        let bind_error = TcpListener::bind(port.address()).expect_err("the port is in use");
        assert_eq!(bind_error.kind(), ErrorKind::AddrInUse);
    }
}
