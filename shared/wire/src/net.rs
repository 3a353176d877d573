//! Where connections come from and go to, so that a test injects its own (a pipe in memory, turmoil, a proxy that cuts).
//!
//! The accept loop and the client know [`Listen`] and [`Connect`] alone; the two TCP types here are what the programs use.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, lookup_host};

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

    /// Takes a socket that is bound already.
    ///
    /// # Errors
    /// What the system said.
    pub fn bound(socket: std::net::TcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        TcpListener::from_std(socket).map(Self)
    }

    /// The address that was bound (port 0 resolved).
    ///
    /// # Errors
    /// When the system cannot say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
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
}

/// Who is at the other end of a socket of this machine's file system, which has no address.
pub const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Listens on a socket of the file system, for root and for the user that it runs as. Nobody else is heard (S61).
pub struct UnixListen {
    listener: UnixListener,
    own: u32,
    refused: Box<dyn Fn(u32) + Send>,
}

impl UnixListen {
    /// Binds a path, in the place of a socket that nobody listens on any more; the file is its user's alone. `refused` is told the user
    /// who is not let in.
    ///
    /// # Errors
    /// What the system said: above all that the path is too long, which is so beyond 107 bytes.
    pub fn bind(path: &Path, refused: impl Fn(u32) + Send + 'static) -> io::Result<Self> {
        if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self::of(listener, refused))
    }

    /// Takes a socket that is bound already.
    ///
    /// # Errors
    /// What the system said.
    pub fn bound(socket: net::UnixListener, refused: impl Fn(u32) + Send + 'static) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self::of(UnixListener::from_std(socket)?, refused))
    }

    fn of(listener: UnixListener, refused: impl Fn(u32) + Send + 'static) -> Self {
        Self { listener, own: rustix::process::geteuid().as_raw(), refused: Box::new(refused) }
    }
}

impl Listen for UnixListen {
    type Stream = UnixStream;

    async fn accept(&mut self) -> io::Result<(UnixStream, SocketAddr)> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            match stream.peer_cred()?.uid() {
                0 => return Ok((stream, LOCAL)),
                own if own == self.own => return Ok((stream, LOCAL)),
                other => (self.refused)(other),
            }
        }
    }
}

/// No name server knows a host, or none answers. The resolver's errors have no kind of their own.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct UnknownHost(#[from] io::Error);

/// Connects over TCP, to the first address of the host that answers, or to a socket of this machine's file system.
#[derive(Clone, Debug, Default)]
pub enum Dial {
    /// Over TCP.
    #[default]
    Tcp,
    /// To this socket, whatever host is named.
    Unix(PathBuf),
}

impl Connect for Dial {
    type Stream = Box<dyn Stream>;

    async fn connect(&self, host: &str, port: u16) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Tcp => {
                let unknown = |error| io::Error::other(UnknownHost(error));
                let addresses: Vec<SocketAddr> = lookup_host((host, port)).await.map_err(unknown)?.collect();
                let stream = TcpStream::connect(&*addresses).await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            Self::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        }
    }
}
