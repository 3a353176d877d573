//! The locks of package managers: who holds one, and the wait for its end.

use std::time::Duration;

use log::info;
use tokio::time::{Instant, sleep};

use crate::apply::task::{Site, TaskError};
use crate::host::{Host, HostError, HostPath, LockHolder};

/// The files that apt and dpkg lock, each for another part of their work.
pub(super) const APT_LOCKS: &[&str] =
    &["/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/lib/apt/lists/lock", "/var/cache/apt/archives/lock"];

/// The files that rpm locks, in both places of its database.
pub(super) const RPM_LOCKS: &[&str] = &["/usr/lib/sysimage/rpm/.rpm.lock", "/var/lib/rpm/.rpm.lock"];

/// The time between two looks at the locks.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Waits until no other process holds one of the locks.
///
/// # Errors
/// After `limit`, with the process that holds a lock.
pub(super) async fn wait_for_locks(site: &Site, locks: &[&'static str], limit: Duration) -> Result<(), TaskError> {
    let deadline = Instant::now() + limit;
    let mut is_logged = false;
    loop {
        let found = find_holder(&*site.host, locks).map_err(|error| TaskError::from(error).without_effect())?;
        let Some((path, holder)) = found else { return Ok(()) };
        let text = holder_text(&holder);
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            let seconds = limit.as_secs();
            let message = format!("another package manager ({text}) has held {path} for {seconds} s: nothing was changed");
            return Err(TaskError::new(message).without_effect());
        }
        if !is_logged {
            info!(path, holder = text.as_str(); "waiting for another package manager");
            is_logged = true;
        }
        sleep(POLL_INTERVAL.min(rest)).await;
    }
}

/// Returns the first lock that another process holds, and that process.
pub(super) fn find_holder(host: &dyn Host, locks: &[&'static str]) -> Result<Option<(&'static str, LockHolder)>, HostError> {
    for path in locks {
        if let Some(holder) = host.find_lock_holder(&HostPath::from_static(path))? {
            return Ok(Some((path, holder)));
        }
    }
    Ok(None)
}

/// Returns the process that holds a lock in words.
pub(super) fn holder_text(holder: &LockHolder) -> String {
    match (holder.program.as_str(), holder.pid) {
        (_, 0) => "a process outside of this container".to_owned(),
        ("", pid) => format!("pid {pid}"),
        (program, pid) => format!("{program}, pid {pid}"),
    }
}
