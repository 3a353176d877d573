//! Limits how many writes and costly reads run at once.
//!
//! A write is decided on a blocking thread, and holds that thread until its commit is durable. Without a limit, writes
//! to a slow store would use all of these threads, and reads would wait for the store too. A write beyond the limit
//! waits without a thread. Principals share the permits. One principal has at most half of the permits of a kind, the
//! principal that holds fewest is served first, and some permits are reserved for admins of the fleet.

use std::time::Duration;

use stemma_wire::error::{ApiError, ErrorType};

use crate::registry::Requester;
use crate::registry::budget::{Share, SharedBudget};

/// Maximum number of concurrent writes: half of the runtime's blocking threads.
const MAX_WRITES: u64 = 256;

/// Maximum number of concurrent reads from the fleet in memory. Each may build a response of some megabytes.
const MAX_MEMORY_READS: u64 = 8;

/// Maximum number of concurrent reads from the store. Each may hold a page of some megabytes.
const MAX_STORE_READS: u64 = 16;

/// The divisor for the permits that are reserved for admins of the fleet: one permit in 8.
const ADMIN_RESERVE_DIVISOR: u64 = 8;

/// The longest time that a write or a costly read waits for a permit.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// The permits of running writes and costly reads, and the requests that wait for a permit.
#[derive(Clone)]
pub struct WriteLimiter {
    writes: SharedBudget,
    store_reads: SharedBudget,
    memory_reads: SharedBudget,
}

impl Default for WriteLimiter {
    fn default() -> Self {
        let budget = |permits| SharedBudget::with_permits(permits, permits / ADMIN_RESERVE_DIVISOR);
        Self { writes: budget(MAX_WRITES), store_reads: budget(MAX_STORE_READS), memory_reads: budget(MAX_MEMORY_READS) }
    }
}

impl WriteLimiter {
    /// Waits for the permit of a write, which lasts until the share is dropped.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] if there was none in time. Nothing was written.
    pub(crate) async fn acquire(&self, requester: &Requester) -> Result<Share, ApiError> {
        acquire_share(&self.writes, requester, "too many writes wait for the store; nothing was written, try again").await
    }

    /// Waits for the permit of a costly read from memory.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] if there was none in time.
    pub(crate) async fn acquire_memory_read(&self, requester: &Requester) -> Result<Share, ApiError> {
        acquire_share(&self.memory_reads, requester, "too many reads are running; try again").await
    }

    /// Waits for the permit of a read from the store.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] if there was none in time.
    pub(crate) async fn acquire_store_read(&self, requester: &Requester) -> Result<Share, ApiError> {
        acquire_share(&self.store_reads, requester, "too many reads from the store are running; try again").await
    }
}

async fn acquire_share(budget: &SharedBudget, requester: &Requester, refusal: &str) -> Result<Share, ApiError> {
    let share = budget.take(requester, 1, MAX_WAIT).await;
    share.ok_or_else(|| ApiError::new(ErrorType::ServerBusy, refusal))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::viewer;

    #[tokio::test(start_paused = true)]
    async fn write_limiter_queues_write_and_times_out_when_full() {
        let (writers, one) = (WriteLimiter::default(), viewer("one"));
        let mut turns = Vec::new();
        for _ in 0..MAX_WRITES / 2 {
            turns.push(writers.acquire(&one).await.expect("it is below its part"));
        }
        let refused = writers.acquire(&one).await.map(drop).expect_err("nobody ends");
        assert_eq!((refused.kind, refused.status()), (ErrorType::ServerBusy, 503));
        let next = tokio::spawn({
            let (writers, one) = (writers.clone(), one.clone());
            async move { writers.acquire(&one).await.map(drop) }
        });
        tokio::task::yield_now().await;
        turns.pop();
        next.await.expect("it ends").expect("its turn has come");
    }

    /// A viewer with many connections on a costly read made other principals and admins wait for 20 s and be refused.
    #[tokio::test(start_paused = true)]
    async fn x03_write_limiter_serves_others_when_caller_is_at_limit() {
        let writers = WriteLimiter::default();
        let [greedy, other, honest, admin] =
            [viewer("greedy"), viewer("other"), viewer("honest"), Requester::from_listener("root")];
        let mut held = Vec::new();
        for _ in 0..MAX_MEMORY_READS / 2 {
            held.push(writers.acquire_memory_read(&greedy).await.expect("its part"));
        }
        let more: Vec<_> = (0..1000)
            .map(|_| {
                let (writers, greedy) = (writers.clone(), greedy.clone());
                tokio::spawn(async move { writers.acquire_memory_read(&greedy).await.map(drop) })
            })
            .collect();
        tokio::task::yield_now().await;
        let began = tokio::time::Instant::now();
        drop(writers.acquire_memory_read(&honest).await.expect("half is others'"));
        for _ in 0..3 {
            held.push(writers.acquire_memory_read(&other).await.expect("there is room"));
        }
        drop(writers.acquire_memory_read(&admin).await.expect("one is kept for it"));
        assert_eq!(began.elapsed(), Duration::ZERO, "nobody has waited");
        // The waiting principal that holds fewest permits is next, in whatever order they arrived.
        let waits = tokio::spawn({
            let (writers, honest) = (writers.clone(), honest.clone());
            async move { writers.acquire_memory_read(&honest).await }
        });
        tokio::task::yield_now().await;
        held.remove(0);
        let turn = waits.await.expect("it ends").expect("its turn has come");
        assert_eq!(began.elapsed(), Duration::ZERO);
        drop((turn, held));
        for one in more {
            one.await.expect("it ends").expect("their turns have come");
        }
    }
}
