//! Whose write is worked on.
//!
//! A write is decided on a thread that may compute, and keeps it while its commit is waited for. Were there no bound, writes to a slow
//! store would take every such thread, and whoever only reads would wait for the store with them. A write beyond the bound waits
//! without a thread. Principals share what there is: one has half of the turns of a kind at most, who holds least is served first, and some are
//! kept for admins of the fleet.

use std::time::Duration;

use stemma_wire::error::{ApiError, ErrorType};

use crate::registry::Who;
use crate::registry::budget::{Budget, Share};

/// How many writes are worked on at the same time: half of the threads that the runtime has for what may compute.
const MOST_WRITERS: u64 = 256;

/// How many reads are answered from the fleet in memory at the same time: each may make an answer of some megabytes.
const MOST_READING: u64 = 8;

/// How many reads ask the store at the same time: each may hold a page of some megabytes.
const MOST_ASKING: u64 = 16;

/// The part of these that is kept for admins of the fleet: one of so many.
const ONE_FOR_ADMINS_OF: u64 = 8;

/// How long a write or such a read waits for its turn.
const MOST_WAITING: Duration = Duration::from_secs(20);

/// The writes that are worked on, and those that wait for it.
#[derive(Clone)]
pub struct Writers {
    writing: Budget,
    asking: Budget,
    reading: Budget,
}

impl Default for Writers {
    fn default() -> Self {
        let of = |turns| Budget::of_turns(turns, turns / ONE_FOR_ADMINS_OF);
        Self { writing: of(MOST_WRITERS), asking: of(MOST_ASKING), reading: of(MOST_READING) }
    }
}

impl Writers {
    /// Waits for the turn of a write, which lasts until the share is dropped.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] when it did not come in time: nothing was written.
    pub(crate) async fn turn(&self, who: &Who) -> Result<Share, ApiError> {
        turn(&self.writing, who, "too many writes wait for the store; nothing was written, try again").await
    }

    /// Waits for the turn of a read that is answered from memory.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] likewise.
    pub(crate) async fn turn_to_read(&self, who: &Who) -> Result<Share, ApiError> {
        turn(&self.reading, who, "too many reads are answered; try again").await
    }

    /// Waits for the turn of a read that asks the store.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] likewise.
    pub(crate) async fn turn_to_ask(&self, who: &Who) -> Result<Share, ApiError> {
        turn(&self.asking, who, "too many reads ask the store; try again").await
    }
}

async fn turn(turns: &Budget, who: &Who, refusal: &str) -> Result<Share, ApiError> {
    let turn = turns.take(who, 1, MOST_WAITING).await;
    turn.ok_or_else(|| ApiError::new(ErrorType::ServerBusy, refusal))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::viewer;

    #[tokio::test(start_paused = true)]
    async fn a_write_beyond_the_bound_waits_for_another_to_end_and_not_for_ever() {
        let (writers, one) = (Writers::default(), viewer("one"));
        let mut turns = Vec::new();
        for _ in 0..MOST_WRITERS / 2 {
            turns.push(writers.turn(&one).await.expect("it is below its part"));
        }
        let refused = writers.turn(&one).await.map(drop).expect_err("nobody ends");
        assert_eq!((refused.kind, refused.status()), (ErrorType::ServerBusy, 503));
        let next = tokio::spawn({
            let (writers, one) = (writers.clone(), one.clone());
            async move { writers.turn(&one).await.map(drop) }
        });
        tokio::task::yield_now().await;
        turns.pop();
        next.await.expect("it ends").expect("its turn has come");
    }

    /// One viewer with many connections on a costly read had honest ones and admins wait for 20 s, and be refused.
    #[tokio::test(start_paused = true)]
    async fn x03_who_takes_all_turns_that_it_may_keeps_nobody_else_waiting() {
        let writers = Writers::default();
        let [greedy, other, honest, admin] = [viewer("greedy"), viewer("other"), viewer("honest"), Who::by_way("root")];
        let mut held = Vec::new();
        for _ in 0..MOST_READING / 2 {
            held.push(writers.turn_to_read(&greedy).await.expect("its part"));
        }
        let more: Vec<_> = (0..1000)
            .map(|_| {
                let (writers, greedy) = (writers.clone(), greedy.clone());
                tokio::spawn(async move { writers.turn_to_read(&greedy).await.map(drop) })
            })
            .collect();
        tokio::task::yield_now().await;
        let began = tokio::time::Instant::now();
        drop(writers.turn_to_read(&honest).await.expect("half is others'"));
        for _ in 0..3 {
            held.push(writers.turn_to_read(&other).await.expect("there is room"));
        }
        drop(writers.turn_to_read(&admin).await.expect("one is kept for it"));
        assert_eq!(began.elapsed(), Duration::ZERO, "nobody has waited");
        // Of those who wait who holds least is next, whoever came first.
        let waits = tokio::spawn({
            let (writers, honest) = (writers.clone(), honest.clone());
            async move { writers.turn_to_read(&honest).await }
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
