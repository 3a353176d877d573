//! Lets a command on the host wake the running agent: the command writes a byte into a FIFO, and the agent then reads
//! its ledger.
//!
//! The byte carries no message, so the agent need not trust its writer. Before it, the command has written its request
//! into the ledger, where only root can write.

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use crate::host::atomic::ensure_dir;
use crate::host::real::RealHost;
use crate::host::{Host, HostError, HostPath};
use crate::paths;

/// The agent's end of the FIFO by which commands on this host wake it. Without a FIFO, no wake ever arrives.
pub struct WakeListener(Option<pipe::Receiver>);

/// The result of an attempt to wake the agent of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeResult {
    /// An agent runs on this host and receives the wake.
    Running,
    /// No process listens to the FIFO: no agent runs on this host, or only the command `once`, which does not listen.
    NotRunning,
}

impl WakeListener {
    /// Creates the FIFO if it does not exist, and opens it.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn listen(host: &RealHost) -> Result<Self, HostError> {
        ensure_dir(host, &HostPath::from_static(paths::APPLY_STATE), 0o700)?;
        let path = host.system_path(&fifo_path());
        match rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(io_error("make")(errno.into())),
        }
        // The agent also opens the FIFO for writing. So a read does not return the end of file when a writer closes the
        // FIFO.
        let receiver = pipe::OpenOptions::new().read_write(true).open_receiver(&path).map_err(io_error("open"))?;
        Ok(Self(Some(receiver)))
    }

    /// Returns a listener without a FIFO, which never receives a wake.
    #[must_use]
    pub const fn never() -> Self {
        Self(None)
    }

    /// Waits until a command wakes the agent. Waits forever if there is no FIFO or it cannot be read. If the future is
    /// dropped before it is ready, no wake is lost.
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

/// Wakes the agent of this host, if an agent runs, by writing a byte into its FIFO.
///
/// # Errors
/// [`HostError`].
pub fn wake(host: &RealHost) -> Result<WakeResult, HostError> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(host.system_path(&fifo_path()), flags, Mode::empty()) {
        Ok(pipe) => match rustix::io::write(pipe, &[0]) {
            // AGAIN: the FIFO is full. The bytes in it wake the agent too.
            Ok(_) | Err(Errno::AGAIN) => Ok(WakeResult::Running),
            // PIPE: the agent has ended since the FIFO was opened.
            Err(Errno::PIPE) => Ok(WakeResult::NotRunning),
            Err(errno) => Err(io_error("write to")(errno.into())),
        },
        // NXIO: no process reads the FIFO. NOENT: no agent has created the FIFO.
        Err(Errno::NXIO | Errno::NOENT) => Ok(WakeResult::NotRunning),
        Err(errno) => Err(io_error("open")(errno.into())),
    }
}

/// Returns the path of the FIFO by which commands wake the agent.
fn fifo_path() -> HostPath {
    HostPath::from_static("/var/lib/stemma-agent/apply/poke")
}

/// Returns a function that converts an error of this operation on the FIFO.
fn io_error(operation: &'static str) -> impl FnOnce(std::io::Error) -> HostError {
    HostError::io(operation, fifo_path().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn wake_distinguishes_running_agent_from_none() {
        let root = tempfile::tempdir().unwrap();
        let host = RealHost::new(root.path()).unwrap();
        assert_eq!(wake(&host).unwrap(), WakeResult::NotRunning);
        let mut listener = WakeListener::listen(&host).unwrap();
        assert_eq!(wake(&host).unwrap(), WakeResult::Running);
        listener.next().await;
        drop(listener);
        assert_eq!(wake(&host).unwrap(), WakeResult::NotRunning);
    }
}
