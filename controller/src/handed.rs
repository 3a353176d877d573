//! Sockets that the service manager bound and hands over (`sd_listen_fds(3)`), each known by the name that its unit gives it.
//!
//! They are there before the controller is and stay when it ends: who connects meanwhile waits and is not refused. And a controller that
//! binds nothing needs no network of its own.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;

/// The listeners that were handed over; none where the controller was started by hand.
#[derive(Debug, Default)]
pub struct Handed {
    /// Where operators are served.
    pub admin: Option<TcpListener>,
    /// Where agents are served.
    pub agents: Option<TcpListener>,
    /// Where root is served.
    pub root: Option<UnixListener>,
}

/// Why a socket that was handed over is not used. Nothing was served.
#[derive(Debug, thiserror::Error)]
pub enum HandedError {
    /// Its unit calls it by a name that means nothing here.
    #[error(
        "the service manager hands over a socket by the name {0:?}: write FileDescriptorName=admin, agents or root into its socket unit"
    )]
    Name(String),
    /// Its unit makes it a socket of another kind.
    #[error(
        "the socket {name:?} of the service manager: {source}; write one ListenStream= of this kind into its socket unit"
    )]
    Kind {
        /// By which name.
        name: String,
        /// What is wrong with it.
        source: io::Error,
    },
    /// Two units, or two lines of one, hand over the same.
    #[error("the service manager hands over the socket {0:?} twice: leave one ListenStream= in its socket unit")]
    Twice(String),
}

impl Handed {
    /// Takes what the environment says was handed to this process.
    ///
    /// # Errors
    /// [`HandedError`].
    pub fn take() -> Result<Self, HandedError> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        Self::named(ListenFd::from_env(), &names)
    }

    /// The sockets by their names, which stand in the order of the sockets with a colon between two.
    fn named(mut sockets: ListenFd, names: &str) -> Result<Self, HandedError> {
        let mut handed = Self::default();
        for (at, name) in names.split(':').take(sockets.len()).enumerate() {
            let kind = |source| HandedError::Kind { name: name.to_owned(), source };
            let is_first = match name {
                "admin" => put(&mut handed.admin, sockets.take_tcp_listener(at).map_err(kind)?),
                "agents" => put(&mut handed.agents, sockets.take_tcp_listener(at).map_err(kind)?),
                "root" => put(&mut handed.root, sockets.take_unix_listener(at).map_err(kind)?),
                other => return Err(HandedError::Name(other.chars().take(64).collect())),
            };
            if !is_first {
                return Err(HandedError::Twice(name.to_owned()));
            }
        }
        Ok(handed)
    }
}

/// Puts a socket into its place; whether the place was free.
fn put<T>(place: &mut Option<T>, socket: Option<T>) -> bool {
    let was_free = place.is_none();
    *place = socket;
    was_free
}
