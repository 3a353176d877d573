//! A thread with a runtime of its own, for a part whose work must not stand in another's way.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::thread::{Builder, JoinHandle};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// A thread that runs until it is told to stop.
pub(super) struct Worker {
    name: &'static str,
    thread: JoinHandle<()>,
    runtime: Handle,
}

/// Ends when a worker's thread has ended, by itself or by a panic.
pub(super) struct Ended {
    name: &'static str,
    told: oneshot::Receiver<Infallible>,
}

/// Starts a thread and drives a future there.
pub(super) fn start<F: Future<Output = ()>>(
    name: &'static str,
    body: impl FnOnce() -> F + Send + 'static,
) -> io::Result<(Worker, Ended)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (alive, told) = oneshot::channel();
    let thread = Builder::new().name(name.to_owned()).spawn(move || {
        // Dropped with this closure, however it ends.
        let _alive: oneshot::Sender<Infallible> = alive;
        runtime.block_on(body());
    })?;
    Ok((Worker { name, thread, runtime: handle }, Ended { name, told }))
}

impl Worker {
    /// What it drives.
    pub(super) fn runtime(&self) -> Handle {
        self.runtime.clone()
    }

    /// Waits for its end, which it was told to come to.
    pub(super) async fn join(self) {
        let joined = tokio::task::spawn_blocking(move || self.thread.join()).await;
        if !matches!(joined, Ok(Ok(()))) {
            log::error!(name = self.name; "a thread did not end by itself");
        }
    }
}

impl Ended {
    /// Waits, and says what ended.
    pub(super) async fn wait(self) -> String {
        let _never_said_only_dropped = self.told.await;
        format!("the thread `{}` ended", self.name)
    }
}
