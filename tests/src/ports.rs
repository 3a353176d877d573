//! Ports of the loopback that belong to one test for as long as it runs, whatever other tests and programs run beside it.
//!
//! A controller that is started again takes the port that it had, since its agents look for it there. In between nobody listens: the
//! kernel gives such a port to whoever asks for any port, or connects to somewhere. So these ports are below those that the kernel
//! gives, and a lock keeps other tests from each of them. To hand the controller a listening socket would be no way out: whoever
//! connects while no controller runs must be refused at once, and would wait in the queue of that socket.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::UnixListener;

use anyhow::{Context as _, Result};
use tokio::net::TcpSocket;

/// The first port that is given.
const FIRST: u16 = 20_000;
/// So many ports can be given. The kernel's own begin at 32768.
const COUNT: u32 = 10_000;

/// A port that no other test is given until this value is dropped, whether somebody listens on it or not.
#[derive(Debug)]
pub struct Port {
    address: SocketAddr,
    // A name of the network namespace, as the port is: a process that ends gives both back, and no file is left behind.
    _lock: UnixListener,
}

impl Port {
    /// A port on which nobody listens.
    ///
    /// # Errors
    /// When all are taken.
    pub fn free() -> Result<Self> {
        // Processes begin at different ports, so that they seldom try what another has.
        let begin = std::process::id().wrapping_mul(64);
        let mut ports = (0..COUNT).filter_map(|nth| {
            let offset = begin.wrapping_add(nth) % COUNT;
            Self::take(FIRST + u16::try_from(offset).expect("it is below the count"))
        });
        ports.next().context("a free port of the loopback")
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// This port, unless another test has it or a program listens on it.
    fn take(number: u16) -> Option<Self> {
        let name = std::os::unix::net::SocketAddr::from_abstract_name(format!("stemma-tests-port-{number}")).ok()?;
        let lock = UnixListener::bind_addr(&name).ok()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, number));
        TcpListener::bind(address).ok()?;
        Some(Self { address, _lock: lock })
    }
}

/// A port of the loopback that refuses whoever connects: it is taken, and nobody listens on it.
pub struct Closed {
    address: SocketAddr,
    _socket: TcpSocket,
}

impl Closed {
    /// A port that is refused until this value is dropped.
    ///
    /// # Errors
    /// When no port is to be had.
    pub fn new() -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        Ok(Self { address: socket.local_addr()?, _socket: socket })
    }

    /// Where it is.
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
    fn a_port_is_given_once_though_nobody_listens_on_it_and_again_when_it_was_given_back() {
        let ports: Vec<_> = (0..20).map(|_| Port::free().expect("a port")).collect();
        let numbers: BTreeSet<_> = ports.iter().map(|port| port.address().port()).collect();
        assert_eq!(numbers.len(), 20, "{numbers:?}");
        let number = ports[0].address().port();
        assert!(Port::take(number).is_none(), "it belongs to the first");
        drop(ports);
        assert!(numbers.into_iter().any(|number| Port::take(number).is_some()));
    }

    #[test]
    fn a_port_on_which_a_program_listens_is_not_given() {
        let port = Port::free().expect("a port");
        let number = port.address().port();
        let listener = TcpListener::bind(port.address()).expect("nobody listens there");
        drop(port);
        assert!(Port::take(number).is_none());
        drop(listener);
    }

    #[test]
    fn a_closed_port_refuses_and_is_nobody_elses() {
        let closed = Closed::new().expect("a port");
        let refused = TcpStream::connect(closed.address()).expect_err("nobody listens");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let taken = TcpListener::bind(closed.address()).expect_err("it is taken");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    }
}
