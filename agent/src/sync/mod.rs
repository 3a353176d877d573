//! The half with the network: it joins, checks in, fetches, and observes what needs no privilege.
//!
//! It decides nothing. What a controller sends goes to `apply` as it came, and `apply` verifies it; what this half says
//! of its own host is all that it could lie about. It keeps to one controller of its list and moves on when that one
//! fails, with exponential backoff and full jitter, so that a fleet comes back spread out.

mod backoff;
mod checkin;
mod connection;
mod exchange;
pub mod join;
mod joining;
mod labels;
mod outbox;
mod post;
mod renew;
mod state;

use crate::facts;
use crate::hook_files;
use crate::host::Host;

pub use checkin::{Sync, SyncError, run};
pub use connection::{Connection, Standing};
pub use labels::{LocalLabels, read_files};
pub use state::{Credentials, StateError};

/// What is wrong with the labels that the host's own files say, with its hooks, with what it was seen to be, and with its last renewal, as it is now.
pub fn findings(host: &dyn Host) -> Vec<String> {
    let own = labels::read(host).findings.into_iter().chain(hook_files::findings(host));
    facts::observe().findings.into_iter().chain(own).chain(state::refused_renewal(host)).collect()
}
