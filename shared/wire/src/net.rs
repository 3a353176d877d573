//! Sources and destinations of connections. A test injects its own: a pipe in memory, turmoil, a proxy that drops
//! connections.
//!
//! The accept loop and the client depend on [`Accept`] and [`Connector`] only. The programs use the types of this
//! module.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, lookup_host};

/// Returns the address or network that one customer or site usually has, which limits count as one: the IPv4 address
/// itself, or the IPv6 network of 64 bits.
pub fn network_prefix(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
    }
}

/// A connection, as a stream of bytes in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> ByteStream for T {}

/// A source of incoming connections, such as a listening socket.
pub trait Accept: Send + 'static {
    /// The type of an accepted connection.
    type Stream: ByteStream;

    /// Waits for the next connection. Returns it with the address of its peer.
    ///
    /// # Errors
    /// The error of the operating system. The accept loop treats every error as temporary and retries after a pause.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;
}

/// Opens connections to a host.
pub trait Connector: Send + Sync + 'static {
    /// The type of an opened connection.
    type Stream: ByteStream;

    /// Opens a connection.
    ///
    /// # Errors
    /// The error of the operating system: no such host, refused, unreachable.
    fn connect(&self, host: &str, port: u16) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// A listening TCP socket.
#[derive(Debug)]
pub struct TcpAcceptor(TcpListener);

impl TcpAcceptor {
    /// Binds an address. With port 0, the system chooses a free port.
    ///
    /// # Errors
    /// The error of the operating system, with the address: `127.0.0.1:8443: Address already in use`.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address).await.map(Self).map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))
    }

    /// Uses a socket that is already bound.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn from_socket(socket: std::net::TcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        TcpListener::from_std(socket).map(Self)
    }

    /// Returns the bound address, with the port that the system chose if it was 0.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl Accept for TcpAcceptor {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = self.0.accept().await?;
        // A request and its response are one small segment each. Nagle's algorithm would only add 40 ms.
        stream.set_nodelay(true)?;
        Ok((stream, peer))
    }
}

/// The peer address that connections over a Unix socket get, because they have no address.
pub const LOCAL_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A listener on a Unix socket. It accepts connections of root and of the user of this process, and drops those of all
/// other users (S61).
pub struct UnixAcceptor {
    listener: UnixListener,
    own_uid: u32,
    on_refused: Box<dyn Fn(u32) + Send>,
}

impl UnixAcceptor {
    /// Binds a path and replaces a socket file that an earlier process left there. Only the owner may open the file.
    /// `on_refused` is called with the uid of each user that is refused.
    ///
    /// # Errors
    /// The error of the operating system, most often because the path is longer than 107 bytes.
    pub fn bind(path: &Path, on_refused: impl Fn(u32) + Send + 'static) -> io::Result<Self> {
        if std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self::new(listener, on_refused))
    }

    /// Uses a socket that is already bound.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn from_socket(socket: net::UnixListener, on_refused: impl Fn(u32) + Send + 'static) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self::new(UnixListener::from_std(socket)?, on_refused))
    }

    fn new(listener: UnixListener, on_refused: impl Fn(u32) + Send + 'static) -> Self {
        Self { listener, own_uid: rustix::process::geteuid().as_raw(), on_refused: Box::new(on_refused) }
    }
}

impl Accept for UnixAcceptor {
    type Stream = UnixStream;

    async fn accept(&mut self) -> io::Result<(UnixStream, SocketAddr)> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            match stream.peer_cred()?.uid() {
                0 => return Ok((stream, LOCAL_ADDRESS)),
                uid if uid == self.own_uid => return Ok((stream, LOCAL_ADDRESS)),
                uid => (self.on_refused)(uid),
            }
        }
    }
}

/// The error if a host's name could not be resolved. It is a type of its own, because the resolver's errors have no
/// `ErrorKind` by which a caller could recognize them.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct UnknownHost(#[from] io::Error);

/// Connects over TCP, to the first address of the host that answers, or to a Unix socket on this machine.
#[derive(Clone, Debug, Default)]
pub enum Dialer {
    /// Connects over TCP.
    #[default]
    Tcp,
    /// Connects to the Unix socket at this path. Host and port are ignored.
    Unix(PathBuf),
}

impl Connector for Dialer {
    type Stream = Box<dyn ByteStream>;

    async fn connect(&self, host: &str, port: u16) -> io::Result<Box<dyn ByteStream>> {
        match self {
            Self::Tcp => {
                let unknown_host = |error| io::Error::other(UnknownHost(error));
                let addresses: Vec<SocketAddr> = lookup_host((host, port)).await.map_err(unknown_host)?.collect();
                let stream = TcpStream::connect(&*addresses).await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            Self::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        }
    }
}
