//! A thread with its own runtime, for a part of the controller whose work must not delay other parts.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::thread::{Builder, JoinHandle};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// A thread that runs until it is stopped.
pub(super) struct Worker {
    name: &'static str,
    thread: JoinHandle<()>,
    runtime: Handle,
}

/// Waits for the end of a worker's thread, also by a panic.
pub(super) struct ThreadEnd {
    name: &'static str,
    receiver: oneshot::Receiver<Infallible>,
}

/// Starts a thread with a runtime of its own, which runs the future that `body` returns. Returns the thread, and a
/// value that waits for its end.
pub(super) fn start<F: Future<Output = ()>>(
    name: &'static str,
    body: impl FnOnce() -> F + Send + 'static,
) -> io::Result<(Worker, ThreadEnd)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (alive, receiver) = oneshot::channel();
    let thread = Builder::new().name(name.to_owned()).spawn(move || {
        // The sender is dropped with this closure, however the closure ends.
        let _alive: oneshot::Sender<Infallible> = alive;
        runtime.block_on(body());
    })?;
    Ok((Worker { name, thread, runtime: handle }, ThreadEnd { name, receiver }))
}

impl Worker {
    /// Returns the handle of the thread's runtime.
    pub(super) fn runtime(&self) -> Handle {
        self.runtime.clone()
    }

    /// Waits for the thread to end. The caller must have stopped it.
    pub(super) async fn join(self) {
        let joined = tokio::task::spawn_blocking(move || self.thread.join()).await;
        if !matches!(joined, Ok(Ok(()))) {
            log::error!(name = self.name; "a thread did not end by itself");
        }
    }
}

impl ThreadEnd {
    /// Waits for the end of the thread, and returns a message that names it.
    pub(super) async fn wait(self) -> String {
        let _dropped = self.receiver.await;
        format!("the thread `{}` ended", self.name)
    }
}
