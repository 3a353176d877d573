//! The network half of the agent. It joins a fleet, checks in, fetches content, and observes facts and files of the
//! host that can be read without privileges.
//!
//! The network half makes no decisions. It forwards the messages of a controller to the root half (`apply`) unchanged,
//! and the root half verifies them. So a compromised network half can only withhold messages and send false reports
//! about its own host. The network half uses one controller of its list, and switches to the next controller after a
//! failure. The waits in between are random and grow exponentially, so that the hosts of a fleet do not reconnect at
//! the same time.

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

/// Returns the current findings about the host's facts, label files, hooks, and last renewal of its certificate.
pub fn findings(host: &dyn Host) -> Vec<String> {
    let file_findings = labels::read(host).findings.into_iter().chain(hook_files::findings(host));
    facts::observe().findings.into_iter().chain(file_findings).chain(state::refused_renewal(host)).collect()
}
