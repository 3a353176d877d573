//! The network half of the agent. It joins a fleet, checks in, fetches content, and observes what needs no privilege.
//!
//! It makes no decisions. It forwards what a controller sends to `apply` unchanged, and `apply` verifies it. So a
//! compromised network half can only send false reports about its own host. It uses one controller of its list and
//! switches to the next when that one fails, with exponential backoff and full jitter, so that the hosts of a fleet do
//! not reconnect at the same time.

mod backoff;
mod checkin;
mod connection;
mod exchange;
pub mod join;
mod join_key;
mod labels;
mod outbox;
mod post;
mod renew;
mod state;

use crate::facts;
use crate::hook_files;
use crate::host::Host;

pub use checkin::{Sync, SyncError, run};
pub use connection::{ConnectionRecord, ConnectionState};
pub use labels::{LocalLabels, read_files};
pub use state::{StateError, TlsCredentials};

/// Returns the current findings about the host's label files, its hooks, its facts, and its last renewal.
pub fn findings(host: &dyn Host) -> Vec<String> {
    let own = labels::read(host).findings.into_iter().chain(hook_files::findings(host));
    facts::observe().findings.into_iter().chain(own).chain(state::refused_renewal(host)).collect()
}
