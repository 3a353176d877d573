//! How a verb on the host reaches a running agent: it writes a byte into a FIFO, and the agent wakes and reads its
//! ledger.
//!
//! The byte carries no message, so the agent need not trust it. The verb has written what it wants into the ledger, and
//! only root can write there.

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use crate::host::atomic::ensure_dir;
use crate::host::real::RealHost;
use crate::host::{Host, HostError, HostPath};
use crate::paths;

/// Waits for a verb on this host. One without a FIFO waits for ever.
pub struct WakeListener(Option<pipe::Receiver>);

/// Whether an agent runs on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// It runs, and was woken.
    Running,
    /// No agent runs.
    Nobody,
}

impl WakeListener {
    /// Listens on this host.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn listen(host: &RealHost) -> Result<Self, HostError> {
        ensure_dir(host, &HostPath::own(paths::APPLY_STATE), 0o700)?;
        let path = host.outside(&fifo());
        match rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed("make")(errno.into())),
        }
        // Open for both, so that it has no end when a writer leaves.
        let receiver = pipe::OpenOptions::new().read_write(true).open_receiver(&path).map_err(failed("open"))?;
        Ok(Self(Some(receiver)))
    }

    /// A listener without a FIFO.
    #[must_use]
    pub const fn never() -> Self {
        Self(None)
    }

    /// Waits until a verb wakes the agent. Safe to cancel.
    pub async fn next(&mut self) {
        let mut buffer = [0; 64];
        if let Some(pipe) = &mut self.0
            && matches!(pipe.read(&mut buffer).await, Ok(1..))
        {
            return;
        }
        std::future::pending::<()>().await;
    }
}

/// Wakes the agent that runs on this host, if one does.
///
/// # Errors
/// [`HostError`].
pub fn wake(host: &RealHost) -> Result<Woken, HostError> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(host.outside(&fifo()), flags, Mode::empty()) {
        Ok(pipe) => match rustix::io::write(pipe, &[0]) {
            // A full FIFO wakes its reader as well.
            Ok(_) | Err(Errno::AGAIN) => Ok(Woken::Running),
            // It ended just now.
            Err(Errno::PIPE) => Ok(Woken::Nobody),
            Err(errno) => Err(failed("write to")(errno.into())),
        },
        Err(Errno::NXIO | Errno::NOENT) => Ok(Woken::Nobody),
        Err(errno) => Err(failed("open")(errno.into())),
    }
}

fn fifo() -> HostPath {
    HostPath::own("/var/lib/stemma-agent/apply/poke")
}

fn failed(operation: &'static str) -> impl FnOnce(std::io::Error) -> HostError {
    HostError::io(operation, fifo().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_running_agent_wakes_and_none_is_told_apart() {
        let root = tempfile::tempdir().unwrap();
        let host = RealHost::new(root.path()).unwrap();
        assert_eq!(wake(&host).unwrap(), Woken::Nobody);
        let mut wakes = WakeListener::listen(&host).unwrap();
        assert_eq!(wake(&host).unwrap(), Woken::Running);
        wakes.next().await;
        drop(wakes);
        assert_eq!(wake(&host).unwrap(), Woken::Nobody);
    }
}
