//! A thread with its own runtime, for a part of the controller whose work must not delay other parts.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::thread::{Builder, JoinHandle};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// A thread with its own asynchronous runtime. It runs until the future that it was started with ends.
pub(super) struct Worker {
    name: &'static str,
    thread: JoinHandle<()>,
    runtime: Handle,
}

/// A value with which a task waits for the end of a worker's thread. The thread may also end by a panic.
pub(super) struct ThreadEnd {
    name: &'static str,
    receiver: oneshot::Receiver<Infallible>,
}

/// Starts a thread with its own runtime, and runs the future that `body` returns on this thread. Returns the thread,
/// and a value that waits for the end of the thread. Fails if the system cannot create the thread or the runtime.
pub(super) fn start<F: Future<Output = ()>>(
    name: &'static str,
    body: impl FnOnce() -> F + Send + 'static,
) -> io::Result<(Worker, ThreadEnd)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (end_sender, receiver) = oneshot::channel();
    let thread = Builder::new().name(name.to_owned()).spawn(move || {
        // The sender is dropped with this closure, however the closure ends.
        let _dropped_at_end: oneshot::Sender<Infallible> = end_sender;
        runtime.block_on(body());
    })?;
    Ok((Worker { name, thread, runtime: handle }, ThreadEnd { name, receiver }))
}

impl Worker {
    /// Returns the handle of the thread's runtime.
    pub(super) fn runtime(&self) -> Handle {
        self.runtime.clone()
    }

    /// Waits for the thread to end, and logs an error if it panicked. The caller must first make the thread's future
    /// end.
    pub(super) async fn join(self) {
        let result = tokio::task::spawn_blocking(move || self.thread.join()).await;
        if !matches!(result, Ok(Ok(()))) {
            log::error!(name = self.name; "a thread ended by a panic");
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
