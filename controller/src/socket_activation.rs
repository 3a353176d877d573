//! Sockets that the service manager bound and passes on (`sd_listen_fds(3)`), identified by the names in their units.
//!
//! They exist before the controller starts and after it ends, so a client that connects in between waits and is not
//! refused. A controller that binds nothing also needs no network of its own.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;

/// The listening sockets that the service manager (systemd) passed to the controller. All are `None` if the controller
/// was started by hand.
#[derive(Debug, Default)]
pub struct ActivatedSockets {
    /// The listener for operators.
    pub admin: Option<TcpListener>,
    /// The listener for agents.
    pub agents: Option<TcpListener>,
    /// The listener for root.
    pub root: Option<UnixListener>,
}

/// The reason why a socket that the service manager passed cannot be used. The controller then does not start.
#[derive(Debug, thiserror::Error)]
pub enum ActivationError {
    /// The socket unit of systemd gives the socket a name that the controller does not know.
    #[error(
        "the service manager passed a socket with the unknown name {0:?}: set FileDescriptorName=admin, agents or root in its socket unit"
    )]
    Name(String),
    /// The socket unit of systemd defines a socket of the wrong type, for example a datagram socket.
    #[error(
        "the socket {name:?} of the service manager has the wrong type: {source}; set one ListenStream= of the right type in its socket unit"
    )]
    Kind {
        /// The name of the socket in its unit.
        name: String,
        /// The error that names the wrong type.
        source: io::Error,
    },
    /// Two units, or two lines of one unit, pass a socket of this name.
    #[error("the service manager passed the socket {0:?} twice: keep only one ListenStream= in its socket unit")]
    Twice(String),
}

impl ActivatedSockets {
    /// Returns the sockets that the service manager passed to this process, as the environment variables `LISTEN_FDS`
    /// and `LISTEN_FDNAMES` describe them.
    ///
    /// # Errors
    /// [`ActivationError`] if a socket has an unknown name, the wrong type, or the name of another socket.
    pub fn from_environment() -> Result<Self, ActivationError> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        Self::from_names(ListenFd::from_env(), &names)
    }

    /// Assigns the sockets to the fields by their names. `names` has one name for each socket, in the order of the
    /// sockets, separated by colons.
    fn from_names(mut sockets: ListenFd, names: &str) -> Result<Self, ActivationError> {
        let mut listeners = Self::default();
        for (index, name) in names.split(':').take(sockets.len()).enumerate() {
            let wrong_type = |source| ActivationError::Kind { name: name.to_owned(), source };
            let is_first = match name {
                "admin" => set_once(&mut listeners.admin, sockets.take_tcp_listener(index).map_err(wrong_type)?),
                "agents" => set_once(&mut listeners.agents, sockets.take_tcp_listener(index).map_err(wrong_type)?),
                "root" => set_once(&mut listeners.root, sockets.take_unix_listener(index).map_err(wrong_type)?),
                unknown_name => return Err(ActivationError::Name(unknown_name.chars().take(64).collect())),
            };
            if !is_first {
                return Err(ActivationError::Twice(name.to_owned()));
            }
        }
        Ok(listeners)
    }
}

/// Stores a socket in its field. Returns `false` if the field had a socket already, which is then replaced.
fn set_once<T>(field: &mut Option<T>, socket: Option<T>) -> bool {
    let was_empty = field.is_none();
    *field = socket;
    was_empty
}
