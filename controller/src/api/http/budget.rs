//! What clients may hold of this process together: bytes of bodies and answers, places of lists and streams.
//!
//! A share is taken before something is made or read, and given back when it is gone: an answer's when its last bytes went to the
//! connection, a body's when its request was answered. Core says who may take how much ([`Shares`]).
//!
//! | what | of all | while |
//! |---|---|---|
//! | bodies that arrive | 64 MiB | they are read; a slow client holds the bytes of one body |
//! | large bodies that are decided | 10 MiB | they are decided, which takes up to fifty times their bytes |
//! | small bodies that are decided | 4 MiB | likewise |
//! | file bodies | 192 MiB | they are read and stored |
//! | answers | 64 MiB | they wait for their clients |

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stemma_core::shares::Shares;
use stemma_wire::error::{ApiError, ErrorType};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::registry::Who;

const MIB: u64 = 1024 * 1024;
/// Up to so many bytes a body counts as small, and an answer as nothing: as much as a connection buffers anyway.
pub(crate) const SMALL_BODY: usize = 64 * 1024;
/// Likewise of an answer: one frame.
pub(crate) const FRAME: usize = 16 * 1024;
/// How long a body waits for others.
const MOST_WAITING: Duration = Duration::from_secs(20);

/// An amount that principals share.
#[derive(Clone)]
pub(crate) struct Budget(Arc<Inner>);

struct Inner {
    shares: Shares,
    held: Mutex<Held>,
    freed: Notify,
}

#[derive(Default)]
struct Held {
    all: u64,
    of: HashMap<String, u64>,
}

/// What a principal has of a budget; given back when it is dropped.
pub(crate) struct Share {
    budget: Arc<Inner>,
    principal: String,
    amount: u64,
}

impl Budget {
    /// A budget of which nobody has anything yet.
    pub(crate) fn new(shares: Shares) -> Self {
        Self(Arc::new(Inner { shares, held: Mutex::default(), freed: Notify::new() }))
    }

    /// Takes a share, where the principal may have it now.
    pub(crate) fn try_take(&self, who: &Who, amount: u64) -> Option<Share> {
        let mut held = self.0.held();
        let own = held.of.get(&who.name).copied().unwrap_or_default();
        let admits = self.0.shares.admits(amount, own, held.all, who.is_fleet_admin());
        admits.then(|| self.0.take(&mut held, who, amount))
    }

    /// Takes a share whatever is held: what it is for was done already.
    pub(crate) fn take_anyway(&self, who: &Who, amount: u64) -> Share {
        self.0.take(&mut self.0.held(), who, amount)
    }

    /// Waits for a share; `None` where it was not to be had in time.
    pub(crate) async fn take(&self, who: &Who, amount: u64, within: Duration) -> Option<Share> {
        let until = Instant::now() + within;
        loop {
            let mut freed = std::pin::pin!(self.0.freed.notified());
            freed.as_mut().enable();
            if let Some(share) = self.try_take(who, amount) {
                return Some(share);
            }
            timeout_at(until, freed).await.ok()?;
        }
    }
}

impl Inner {
    fn take(self: &Arc<Self>, held: &mut Held, who: &Who, amount: u64) -> Share {
        held.all = held.all.saturating_add(amount);
        *held.of.entry(who.name.clone()).or_default() += amount;
        Share { budget: Arc::clone(self), principal: who.name.clone(), amount }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Sets the amount to what it came to, once that is known. It is not refused: what the share is for is there already.
    pub(crate) fn settle(&mut self, amount: u64) {
        let mut held = self.budget.held();
        held.all = held.all.saturating_sub(self.amount).saturating_add(amount);
        let own = held.of.entry(self.principal.clone()).or_default();
        *own = own.saturating_sub(self.amount).saturating_add(amount);
        if *own == 0 {
            held.of.remove(&self.principal);
        }
        drop(held);
        self.amount = amount;
        self.budget.freed.notify_waiters();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.settle(0);
    }
}

/// The budgets of bytes of a listener.
#[derive(Clone)]
pub struct Budgets {
    arriving: Budget,
    decided: Budget,
    decided_small: Budget,
    blobs: Budget,
    answers: Budget,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            arriving: Budget::new(Shares::of(64 * MIB)),
            decided: Budget::new(Shares { all: 10 * MIB, of_one: 2 * MIB, for_admins: MIB }),
            decided_small: Budget::new(Shares::of(4 * MIB)),
            // A file body is up to 64 MiB: admins have room for one beside two of others.
            blobs: Budget::new(Shares { all: 192 * MIB, of_one: 64 * MIB, for_admins: 64 * MIB }),
            answers: Budget::new(Shares::of(64 * MIB)),
        }
    }
}

impl Budgets {
    /// Room for a body of so many bytes while it is read. A small one needs none.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] where others leave none for a while.
    pub(crate) async fn arriving(&self, who: &Who, bytes: usize, is_blob: bool) -> Result<Option<Share>, ApiError> {
        if bytes <= SMALL_BODY {
            return Ok(None);
        }
        let budget = if is_blob { &self.blobs } else { &self.arriving };
        waited(budget.take(who, bytes as u64, MOST_WAITING).await).map(Some)
    }

    /// Room for a body of so many bytes while it is decided.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] likewise.
    pub(crate) async fn decided(&self, who: &Who, bytes: usize) -> Result<Option<Share>, ApiError> {
        let budget = match bytes {
            0 => return Ok(None),
            1..=SMALL_BODY => &self.decided_small,
            _ => &self.decided,
        };
        waited(budget.take(who, bytes as u64, MOST_WAITING).await).map(Some)
    }

    /// Room for an answer of so many bytes while its client takes it. A small one needs none; that of a write that was made is given anyway.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] where clients hold too much that they do not take.
    pub(crate) fn answer(&self, who: &Who, bytes: usize, is_made: bool) -> Result<Option<Share>, ApiError> {
        if bytes <= FRAME {
            return Ok(None);
        }
        if is_made {
            return Ok(Some(self.answers.take_anyway(who, bytes as u64)));
        }
        let message = "clients hold too much of answers that they do not take; take what was asked for, or ask for less, and try again";
        let share = self.answers.try_take(who, bytes as u64);
        share.map(Some).ok_or_else(|| ApiError::new(ErrorType::ServerBusy, message))
    }
}

fn waited(share: Option<Share>) -> Result<Share, ApiError> {
    let message = "too many large bodies are worked on; nothing was changed, try again";
    share.ok_or_else(|| ApiError::new(ErrorType::ServerBusy, message))
}

#[cfg(test)]
mod tests {
    use stemma_core::access::Rights;
    use stemma_core::object::PrincipalRole;

    use super::*;

    fn viewer(name: &str) -> Who {
        let rights = Rights { role: PrincipalRole::Viewer, within: None };
        Who { rights, ..Who::by_way(name) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_share_is_waited_for_and_given_back_when_it_is_dropped() {
        let budget = Budget::new(Shares::of(16));
        let [one, other, admin] = [viewer("one"), viewer("other"), Who::by_way("root")];
        let held = budget.try_take(&one, 15).expect("it holds nothing");
        assert!(budget.try_take(&one, 1).is_none() && budget.try_take(&other, 1).is_none());
        assert!(budget.try_take(&admin, 1).is_some(), "a part is kept for it");
        let began = Instant::now();
        assert!(budget.take(&other, 4, Duration::from_secs(5)).await.is_none());
        assert_eq!(began.elapsed(), Duration::from_secs(5));
        let (next, ()) = tokio::join!(budget.take(&other, 4, Duration::from_secs(5)), async {
            tokio::task::yield_now().await;
            drop(held);
        });
        let next = next.expect("it was given back");
        let mut anyway = budget.take_anyway(&one, 100);
        anyway.settle(2);
        assert_eq!(budget.0.held().all, 6);
        drop((next, anyway));
        let held = budget.0.held();
        assert_eq!((held.all, held.of.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn large_bodies_are_decided_one_after_another_and_small_ones_beside_them() {
        let budgets = Budgets::default();
        let (one, other) = (viewer("one"), viewer("other"));
        let large = budgets.decided(&one, 8 << 20).await.unwrap();
        assert!(budgets.decided(&other, 8 << 20).await.is_err());
        assert!(budgets.decided(&other, 1000).await.is_ok());
        assert!(budgets.decided(&Who::by_way("root"), 1 << 20).await.is_ok());
        drop(large);
        assert!(budgets.decided(&other, 8 << 20).await.is_ok());
    }

    #[test]
    fn who_takes_no_answers_is_given_no_more_and_others_are() {
        let budgets = Budgets::default();
        let (slow, other) = (viewer("slow"), viewer("other"));
        let six = 6 << 20;
        let mut held: Vec<_> = (0..2).map(|_| budgets.answer(&slow, six, false).unwrap()).collect();
        assert_eq!(budgets.answer(&slow, six, false).map(drop).unwrap_err().kind, ErrorType::ServerBusy);
        assert!(budgets.answer(&slow, FRAME, false).unwrap().is_none(), "a small one needs no room");
        held.push(budgets.answer(&slow, six, true).unwrap());
        assert!(budgets.answer(&other, six, false).is_ok());
    }
}
