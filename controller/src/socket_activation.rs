//! Sockets that the service manager bound and passes on (`sd_listen_fds(3)`), identified by the names in their units.
//!
//! They exist before the controller starts and after it ends, so a client that connects in between waits and is not
//! refused. A controller that binds nothing also needs no network of its own.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;

/// The passed listeners. All are `None` if the controller was started by hand.
#[derive(Debug, Default)]
pub struct ActivatedSockets {
    /// The listener for operators.
    pub admin: Option<TcpListener>,
    /// The listener for agents.
    pub agents: Option<TcpListener>,
    /// The listener for root.
    pub root: Option<UnixListener>,
}

/// The reason why a passed socket cannot be used. The controller did not start.
#[derive(Debug, thiserror::Error)]
pub enum ActivationError {
    /// The unit gives the socket an unknown name.
    #[error(
        "the service manager passed a socket with the unknown name {0:?}: set FileDescriptorName=admin, agents or root in its socket unit"
    )]
    Name(String),
    /// The unit defines a socket of the wrong type.
    #[error(
        "the socket {name:?} of the service manager has the wrong type: {source}; set one ListenStream= of the right type in its socket unit"
    )]
    Kind {
        /// The name of the socket in its unit.
        name: String,
        /// The error.
        source: io::Error,
    },
    /// Two units, or two lines of one unit, pass a socket of this name.
    #[error("the service manager passed the socket {0:?} twice: keep only one ListenStream= in its socket unit")]
    Twice(String),
}

impl ActivatedSockets {
    /// Takes the sockets that the environment declares for this process.
    ///
    /// # Errors
    /// [`ActivationError`].
    pub fn from_environment() -> Result<Self, ActivationError> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        Self::from_names(ListenFd::from_env(), &names)
    }

    /// Assigns the sockets by their names. `names` has one name per socket, in order, separated by colons.
    fn from_names(mut sockets: ListenFd, names: &str) -> Result<Self, ActivationError> {
        let mut handed = Self::default();
        for (at, name) in names.split(':').take(sockets.len()).enumerate() {
            let kind = |source| ActivationError::Kind { name: name.to_owned(), source };
            let is_first = match name {
                "admin" => set_once(&mut handed.admin, sockets.take_tcp_listener(at).map_err(kind)?),
                "agents" => set_once(&mut handed.agents, sockets.take_tcp_listener(at).map_err(kind)?),
                "root" => set_once(&mut handed.root, sockets.take_unix_listener(at).map_err(kind)?),
                other => return Err(ActivationError::Name(other.chars().take(64).collect())),
            };
            if !is_first {
                return Err(ActivationError::Twice(name.to_owned()));
            }
        }
        Ok(handed)
    }
}

/// Stores a socket in its field. Returns whether the field was empty.
fn set_once<T>(field: &mut Option<T>, socket: Option<T>) -> bool {
    let was_free = field.is_none();
    *field = socket;
    was_free
}
