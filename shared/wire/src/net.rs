//! Sources and destinations of connections. A test replaces them, for example with a pipe in memory, with a simulated
//! network, or with a proxy that drops connections.
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

/// Returns the address under which a limit counts a peer: an IPv4 address itself, or the /64 network of an IPv6
/// address. One site usually has a whole /64 network, so a limit for each single IPv6 address would have no effect.
pub fn network_prefix(peer_address: IpAddr) -> IpAddr {
    match peer_address.to_canonical() {
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

    /// Waits for the next connection. Returns the connection and the address of its peer.
    ///
    /// # Errors
    /// The error of the operating system. The caller treats every error as temporary, and retries after a pause.
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
    /// The error of the operating system, without the address.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address).await.map(Self)
    }

    /// Creates an acceptor from a socket that is already bound.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn from_socket(socket: std::net::TcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        TcpListener::from_std(socket).map(Self)
    }

    /// Returns the bound address. If the requested port was 0, the address has the port that the system chose.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl Accept for TcpAcceptor {
    type Stream = TcpStream;

    /// Waits for the next connection. Its small segments are sent without delay (`TCP_NODELAY`).
    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = self.0.accept().await?;
        // A request and its response are one small segment each. Nagle's algorithm would only add 40 ms.
        stream.set_nodelay(true)?;
        Ok((stream, peer))
    }
}

/// The peer address of every connection over a Unix socket, because such a connection has no IP address.
pub const LOCAL_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A listener on a Unix socket. It accepts connections of root and of the user of this process, and drops those of all
/// other users (S61).
pub struct UnixAcceptor {
    listener: UnixListener,
    own_uid: u32,
    on_refused: Box<dyn Fn(u32) + Send>,
}

impl UnixAcceptor {
    /// Creates a socket file at a path, and listens on it. An earlier socket file at the path is replaced. Only the
    /// owner may open the file. `on_refused` is called with the uid of each user that is refused.
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

    /// Creates an acceptor from a socket that is already bound. `on_refused` is called with the uid of each user that
    /// is refused.
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

    /// Waits for the next connection of an allowed user (root, or the user of this process). Drops the connections of
    /// other users.
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

/// The error if the name of a host could not be resolved. A caller cannot recognize such an error by its `ErrorKind`,
/// so the error has its own type.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct UnknownHost(#[from] io::Error);

/// A connector over TCP, or to a Unix socket on this machine. Over TCP, it tries the addresses of the host in order
/// until one accepts the connection.
#[derive(Clone, Debug, Default)]
pub enum Dialer {
    /// Connections over TCP to the given host and port.
    #[default]
    Tcp,
    /// Connections to the Unix socket at this path. The given host and port are ignored.
    Unix(PathBuf),
}

impl Connector for Dialer {
    type Stream = Box<dyn ByteStream>;

    /// Opens a connection to the host over TCP, or to the Unix socket. If the name of the host cannot be resolved,
    /// fails with an error that contains [`UnknownHost`].
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
