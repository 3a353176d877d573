//! What clients may hold of this process together: bytes of bodies and answers, places of lists and streams.
//!
//! A share is taken before something is made or read, and given back when it is gone: an answer's when its last bytes went to the
//! connection, a body's when its request was answered. Core says who may take how much, and who is next ([`Shares`]).
//!
//! | what | of all | while |
//! |---|---|---|
//! | small bodies that arrive | 32 MiB | they are read; one that takes long gives way to who holds less and waits |
//! | large bodies that arrive | 64 MiB | likewise |
//! | small bodies that are decided | 32 MiB of memory, as [`weight`](stemma_core::json::weight) estimates it | they are decided |
//! | large bodies that are decided | 64 MiB of memory | likewise |
//! | file bodies | 192 MiB | they are read and stored; likewise |
//! | answers | 64 MiB | they wait for their clients |

use std::time::Duration;

use stemma_core::json;
use stemma_core::shares::Shares;
use stemma_wire::error::{ApiError, ErrorType};

use crate::registry::Who;
use crate::registry::budget::{Budget, Share};

const MIB: u64 = 1024 * 1024;
/// Up to so many bytes a body counts as small.
const SMALL_BODY: usize = 64 * 1024;
/// Up to so many bytes an answer counts as nothing: one frame.
pub(crate) const FRAME: usize = 16 * 1024;
/// For how long a small body arrives before it gives way: as long as one of the most bytes takes at the least rate, and a second.
const SMALL_GIVES_WAY_AFTER: Duration = Duration::from_secs(5);
/// How long a body waits for others.
const MOST_WAITING: Duration = Duration::from_secs(20);
/// The budgets of bytes of a listener.
#[derive(Clone)]
pub struct Budgets {
    arriving: Budget,
    arriving_small: Budget,
    decided: Budget,
    decided_small: Budget,
    blobs: Budget,
    answers: Budget,
}

impl Default for Budgets {
    fn default() -> Self {
        // Bodies come and go in turns. What waits for clients is there for as long as they like, so that of it one cluster has a part.
        let small = Shares { of_cluster: 32 * MIB, ..Shares::of(32 * MIB) };
        // Admins have room for a body of the most bytes, whatever others hold.
        let arriving = Shares { all: 64 * MIB, of_one: 16 * MIB, of_cluster: 64 * MIB, for_admins: 8 * MIB };
        let decided = Shares { all: 64 * MIB, of_one: 16 * MIB, of_cluster: 64 * MIB, for_admins: 20 * MIB };
        let blobs = Shares { all: 192 * MIB, of_one: 64 * MIB, of_cluster: 192 * MIB, for_admins: 64 * MIB };
        Self {
            arriving: Budget::giving_way(arriving, Some(Duration::from_secs(10))),
            arriving_small: Budget::giving_way(small, Some(SMALL_GIVES_WAY_AFTER)),
            decided: Budget::new(decided),
            decided_small: Budget::new(small),
            blobs: Budget::giving_way(blobs, Some(Duration::from_mins(1))),
            answers: Budget::new(Shares::of(64 * MIB)),
        }
    }
}

/// The most memory that a body may take once it is read, as [`weight`](stemma_core::json::weight) estimates it. It has room though others hold what they may.
const MOST_WEIGHT: usize = 40 * 1024 * 1024;

impl Budgets {
    /// Room for a body of so many bytes while it is read.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] where others leave none for a while.
    pub(crate) async fn arriving(&self, who: &Who, bytes: usize, is_blob: bool) -> Result<Option<Share>, ApiError> {
        let budget = match bytes {
            0 => return Ok(None),
            1..=SMALL_BODY => &self.arriving_small,
            _ if is_blob => &self.blobs,
            _ => &self.arriving,
        };
        waited(budget.take(who, bytes as u64, MOST_WAITING).await).map(Some)
    }

    /// Room for a body while it is decided.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] likewise; [`ErrorType::RequestTooLarge`] where it takes more memory than [`MOST_WEIGHT`].
    pub(crate) async fn decided(&self, who: &Who, body: &[u8]) -> Result<Option<Share>, ApiError> {
        let weight = json::weight(body);
        if weight > MOST_WEIGHT {
            let message = format!(
                "the body has too many values: read, its {} bytes would take more than the {} MiB of memory that are kept for one; nothing was changed",
                body.len(),
                MOST_WEIGHT as u64 / MIB
            );
            return Err(ApiError::new(ErrorType::RequestTooLarge, message).detail("send it in several requests"));
        }
        let budget = match body.len() {
            0 => return Ok(None),
            1..=SMALL_BODY => &self.decided_small,
            _ => &self.decided,
        };
        waited(budget.take(who, weight as u64, MOST_WAITING).await).map(Some)
    }

    /// Refuses a write of who takes none of the answers that they were given: the answer of a write that was made is given anyway.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`].
    pub(crate) fn check_takes_answers(&self, who: &Who) -> Result<(), ApiError> {
        if self.answers.has_own_room(who) {
            return Ok(());
        }
        let message = "you hold too much of answers that you do not take; nothing was changed, take them and try again";
        Err(ApiError::new(ErrorType::ServerBusy, message))
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
    let message = "too many bodies are worked on; nothing was changed, try again";
    share.ok_or_else(|| ApiError::new(ErrorType::ServerBusy, message))
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::registry::testing::viewer;

    #[tokio::test(start_paused = true)]
    async fn x03_f05_large_bodies_are_decided_a_few_at_a_time_and_small_ones_beside_them() {
        let budgets = Budgets::default();
        let [one, other, third, admin] = [viewer("one"), viewer("other"), viewer("third"), Who::by_way("root")];
        let large = vec![b'x'; 20 << 20];
        let (first, second) =
            (budgets.decided(&one, &large).await.unwrap(), budgets.decided(&other, &large).await.unwrap());
        assert!(budgets.decided(&third, &large).await.is_err());
        assert!(budgets.decided(&third, b"{}").await.is_ok());
        assert!(budgets.decided(&admin, &large).await.is_ok(), "room is kept for it");
        drop((first, second));
        assert!(budgets.decided(&third, &vec![b'x'; MOST_WEIGHT]).await.is_ok());
        let refusal = budgets.decided(&third, &vec![b'x'; MOST_WEIGHT + 1]).await.map(drop).unwrap_err();
        assert_eq!(refusal.kind, ErrorType::RequestTooLarge);
    }

    /// Four principals with 128 bodies of 64 KiB each that did not come had every small write wait for 15 s.
    #[tokio::test(start_paused = true)]
    async fn x03_small_bodies_that_do_not_come_give_way_to_who_holds_less() {
        let budgets = Budgets::default();
        let began = Instant::now();
        for name in ["one", "two", "three", "four"] {
            for _ in 0..128 {
                let (budgets, who) = (budgets.clone(), viewer(name));
                tokio::spawn(async move {
                    if let Ok(Some(share)) = budgets.arriving(&who, SMALL_BODY, false).await {
                        let _told = timeout(Duration::from_secs(15), share.gives_way()).await;
                    }
                });
            }
        }
        while budgets.arriving_small.try_take(&viewer("honest"), 1).is_some() {
            tokio::task::yield_now().await;
        }
        assert!(budgets.arriving(&viewer("honest"), 1000, false).await.unwrap().is_some());
        assert!(began.elapsed() < Duration::from_secs(7), "it waited for {:?}", began.elapsed());
    }

    #[test]
    fn who_takes_no_answers_is_given_no_more_and_others_are() {
        let budgets = Budgets::default();
        let (slow, other) = (viewer("slow"), viewer("other"));
        let six = 6 << 20;
        let mut held: Vec<_> = (0..2).map(|_| budgets.answer(&slow, six, false).unwrap()).collect();
        assert_eq!(budgets.answer(&slow, six, false).map(drop).unwrap_err().kind, ErrorType::ServerBusy);
        assert!(budgets.answer(&slow, FRAME, false).unwrap().is_none(), "a small one needs no room");
        assert!(budgets.check_takes_answers(&slow).is_ok());
        held.push(budgets.answer(&slow, six, true).unwrap());
        assert_eq!(budgets.check_takes_answers(&slow).unwrap_err().kind, ErrorType::ServerBusy);
        assert!(budgets.check_takes_answers(&other).is_ok());
        assert!(budgets.answer(&other, six, false).is_ok());
    }
}
