//! Whose write is worked on.
//!
//! A write is decided on a thread that may compute, and keeps it while its commit is waited for. Were there no bound, writes to a slow
//! store would take every such thread, and whoever only reads would wait for the store with them. A write beyond the bound waits
//! without a thread.

use std::sync::Arc;
use std::time::Duration;

use stemma_wire::error::{ApiError, ErrorType};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How many writes are worked on at the same time: half of the threads that the runtime has for what may compute.
const MOST_WRITERS: usize = 256;

/// How many reads are answered from the fleet in memory at the same time: each may make an answer of some megabytes.
const MOST_READING: usize = 8;

/// How many reads ask the store at the same time: each may hold a page of some megabytes.
const MOST_ASKING: usize = 16;

/// How long a write or such a read waits for its turn.
const MOST_WAITING: Duration = Duration::from_secs(20);

/// The writes that are worked on, and those that wait for it in the order in which they came.
#[derive(Clone)]
pub struct Writers {
    writing: Arc<Semaphore>,
    asking: Arc<Semaphore>,
    reading: Arc<Semaphore>,
}

impl Default for Writers {
    fn default() -> Self {
        let of = |places| Arc::new(Semaphore::new(places));
        Self { writing: of(MOST_WRITERS), asking: of(MOST_ASKING), reading: of(MOST_READING) }
    }
}

impl Writers {
    /// Waits for the turn of a write, which lasts until the permit is dropped.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] when it did not come in time: nothing was written.
    pub(crate) async fn turn(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        turn(&self.writing, "too many writes wait for the store; nothing was written, try again").await
    }

    /// Waits for the turn of a read that is answered from memory.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] likewise.
    pub(crate) async fn turn_to_read(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        turn(&self.reading, "too many reads are answered; try again").await
    }

    /// Waits for the turn of a read that asks the store.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] likewise.
    pub(crate) async fn turn_to_ask(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        turn(&self.asking, "too many reads ask the store; try again").await
    }
}

async fn turn(places: &Arc<Semaphore>, refusal: &str) -> Result<OwnedSemaphorePermit, ApiError> {
    let turn = timeout(MOST_WAITING, Arc::clone(places).acquire_owned()).await;
    turn.ok().and_then(Result::ok).ok_or_else(|| ApiError::new(ErrorType::ServerBusy, refusal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_beyond_the_bound_waits_for_another_to_end_and_not_for_ever() {
        let writers = Writers::default();
        let mut turns = Vec::new();
        for _ in 0..MOST_WRITERS {
            turns.push(writers.turn().await.expect("it is below the bound"));
        }
        let refused = writers.turn().await.expect_err("nobody ends");
        assert_eq!((refused.kind, refused.status()), (ErrorType::ServerBusy, 503));
        let next = tokio::spawn({
            let writers = writers.clone();
            async move { writers.turn().await.map(drop) }
        });
        tokio::task::yield_now().await;
        turns.pop();
        next.await.expect("it ends").expect("its turn has come");
    }
}
