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

/// Maximum time that a write, a read from the fleet in memory or a read from the store waits for a permit.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// The limits on concurrent writes, reads from the store and reads from memory, each with a queue. Clones share them.
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
    /// Waits for a permit to write. The permit is released when the returned share is dropped.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] if no permit was free within `MAX_WAIT`. Nothing was written.
    pub(crate) async fn acquire(&self, requester: &Requester) -> Result<Share, ApiError> {
        acquire_share(&self.writes, requester, "too many writes wait for the store; nothing was written, try again").await
    }

    /// Waits for a permit of a costly read from the fleet in memory.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] if no permit was free within `MAX_WAIT`.
    pub(crate) async fn acquire_memory_read(&self, requester: &Requester) -> Result<Share, ApiError> {
        acquire_share(&self.memory_reads, requester, "too many reads are running; try again").await
    }

    /// Waits for a permit of a read from the store. The permit is released when the returned share is dropped.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] if no permit was free within `MAX_WAIT`.
    pub(crate) async fn acquire_store_read(&self, requester: &Requester) -> Result<Share, ApiError> {
        acquire_share(&self.store_reads, requester, "too many reads from the store are running; try again").await
    }
}

/// Waits for one permit of a budget. Fails with `message` if no permit was free within `MAX_WAIT`.
async fn acquire_share(budget: &SharedBudget, requester: &Requester, message: &str) -> Result<Share, ApiError> {
    let share = budget.take(requester, 1, MAX_WAIT).await;
    share.ok_or_else(|| ApiError::new(ErrorType::ServerBusy, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::viewer;

    #[tokio::test(start_paused = true)]
    async fn write_limiter_queues_and_refuses_writes_of_principal_at_limit() {
        let (limiter, principal) = (WriteLimiter::default(), viewer("one"));
        let mut permits = Vec::new();
        for _ in 0..MAX_WRITES / 2 {
            permits.push(limiter.acquire(&principal).await.expect("one principal may have half of the permits"));
        }
        let error = limiter.acquire(&principal).await.map(drop).expect_err("no permit is released");
        assert_eq!((error.kind, error.status()), (ErrorType::ServerBusy, 503));
        let waiting_write = tokio::spawn({
            let (limiter, principal) = (limiter.clone(), principal.clone());
            async move { limiter.acquire(&principal).await.map(drop) }
        });
        tokio::task::yield_now().await;
        permits.pop();
        waiting_write.await.expect("the task ends").expect("a permit was released");
    }

    /// Regression test: a viewer with many concurrent costly reads once delayed other principals and admins for 20 s,
    /// and their requests were then refused.
    #[tokio::test(start_paused = true)]
    async fn x03_write_limiter_serves_others_when_caller_is_at_limit() {
        let limiter = WriteLimiter::default();
        let [greedy, other, honest, admin] =
            [viewer("greedy"), viewer("other"), viewer("honest"), Requester::from_listener("root")];
        let mut permits = Vec::new();
        for _ in 0..MAX_MEMORY_READS / 2 {
            permits.push(limiter.acquire_memory_read(&greedy).await.expect("one principal may have half of the permits"));
        }
        let waiting_reads: Vec<_> = (0..1000)
            .map(|_| {
                let (limiter, greedy) = (limiter.clone(), greedy.clone());
                tokio::spawn(async move { limiter.acquire_memory_read(&greedy).await.map(drop) })
            })
            .collect();
        tokio::task::yield_now().await;
        let start = tokio::time::Instant::now();
        drop(limiter.acquire_memory_read(&honest).await.expect("half of the permits are free"));
        for _ in 0..3 {
            permits.push(limiter.acquire_memory_read(&other).await.expect("a permit is free"));
        }
        drop(limiter.acquire_memory_read(&admin).await.expect("one permit is reserved for admins"));
        assert_eq!(start.elapsed(), Duration::ZERO, "no read had to wait");
        // The next permit is for the waiting principal that holds the fewest permits, whatever the order of arrival.
        let honest_read = tokio::spawn({
            let (limiter, honest) = (limiter.clone(), honest.clone());
            async move { limiter.acquire_memory_read(&honest).await }
        });
        tokio::task::yield_now().await;
        permits.remove(0);
        let permit = honest_read.await.expect("the task ends").expect("a permit was released");
        assert_eq!(start.elapsed(), Duration::ZERO);
        drop((permit, permits));
        for read in waiting_reads {
            read.await.expect("the task ends").expect("all permits were released");
        }
    }
}
