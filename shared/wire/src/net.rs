//! Where connections come from and go to, so that a test injects its own (a pipe in memory, turmoil, a proxy that cuts).
//!
//! The accept loop and the client know [`Listen`] and [`Connect`] alone; the two TCP types here are what the programs use.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

/// What is given to one customer or site as a whole: an IPv4 address, or an IPv6 network of 64 bits.
pub fn network(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
    }
}

/// A connection's two byte streams.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for T {}

/// A source of connections.
pub trait Listen: Send + 'static {
    /// What it yields.
    type Stream: Stream;

    /// Waits for the next connection and says whose it is.
    ///
    /// # Errors
    /// What the system said. The accept loop takes any error as passing and tries again after a pause.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;

    /// The address that was bound (port 0 resolved).
    ///
    /// # Errors
    /// When the system cannot say.
    fn local_addr(&self) -> io::Result<SocketAddr>;
}

/// A way to reach a host.
pub trait Connect: Send + Sync + 'static {
    /// What it yields.
    type Stream: Stream;

    /// Opens a connection.
    ///
    /// # Errors
    /// What the system said: no such host, refused, unreachable.
    fn connect(&self, host: &str, port: u16) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// Listens on TCP.
#[derive(Debug)]
pub struct TcpListen(TcpListener);

impl TcpListen {
    /// Binds an address; port 0 takes a free one.
    ///
    /// # Errors
    /// What the system said, with the address: `127.0.0.1:8443: Address already in use`.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address)
            .await
            .map(Self)
            .map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))
    }
}

impl Listen for TcpListen {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = self.0.accept().await?;
        // A request and its answer are one small segment each: waiting to fill one only adds 40 ms.
        stream.set_nodelay(true)?;
        Ok((stream, peer))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Connects over TCP, to the first address of the host that answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpConnect;

impl Connect for TcpConnect {
    type Stream = TcpStream;

    async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}
