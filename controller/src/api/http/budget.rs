//! What clients may hold of this process together: bytes of bodies and answers, places of lists and streams.
//!
//! A share is taken before something is made or read, and given back when it is gone: an answer's when its last bytes went to the
//! connection, a body's when its request was answered. Core says who may take how much, and who is next ([`Shares`]).
//!
//! | what | of all | while |
//! |---|---|---|
//! | small bodies that arrive | 32 MiB | they are read |
//! | large bodies that arrive | 64 MiB | they are read; one that takes long gives way to who holds less and waits |
//! | small bodies that are decided | 32 MiB of memory, as [`weight`](stemma_core::json::weight) estimates it | they are decided |
//! | large bodies that are decided | 64 MiB of memory | likewise |
//! | file bodies | 192 MiB | they are read and stored; likewise |
//! | answers | 64 MiB | they wait for their clients |

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stemma_core::json;
use stemma_core::shares::{Shares, Waiting};
use stemma_wire::error::{ApiError, ErrorType};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use crate::registry::Who;

const MIB: u64 = 1024 * 1024;
/// Up to so many bytes a body counts as small.
const SMALL_BODY: usize = 64 * 1024;
/// Up to so many bytes an answer counts as nothing: one frame.
pub(crate) const FRAME: usize = 16 * 1024;
/// How long a body waits for others.
const MOST_WAITING: Duration = Duration::from_secs(20);
/// How many of one principal wait for a budget: as many as it may have streams. Who is served next is looked for among all who wait.
const MOST_WAITING_OF_ONE: usize = 256;

/// How long a share that was told to give way has for it, before another one is told.
const GIVES_WAY_WITHIN: Duration = Duration::from_secs(1);

/// An amount that principals share.
#[derive(Clone)]
pub(crate) struct Budget(Arc<Inner>);

struct Inner {
    shares: Shares,
    /// For how long a share is held before it gives way; `None`: it never does.
    gives_way_after: Option<Duration>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    all: u64,
    of: HashMap<String, u64>,
    /// Those who wait, in the order in which they came.
    waiting: BTreeMap<u64, Waiter>,
    /// The shares that may give way, in the order in which they were taken.
    yielding: BTreeMap<u64, Yielding>,
    next: u64,
}

struct Waiter {
    principal: String,
    amount: u64,
    is_fleet_admin: bool,
    served: oneshot::Sender<Share>,
}

struct Yielding {
    principal: String,
    since: Instant,
    told: Arc<Notify>,
}

/// What a principal has of a budget; given back when it is dropped.
pub(crate) struct Share {
    budget: Arc<Inner>,
    principal: String,
    amount: u64,
    /// Its number among those that may give way, and where it is told to.
    yields: Option<(u64, Arc<Notify>)>,
}

impl Budget {
    /// A budget of which nobody has anything yet.
    pub(crate) fn new(shares: Shares) -> Self {
        Self::giving_way(shares, None)
    }

    /// The same, where a share gives way to others after a while.
    fn giving_way(shares: Shares, gives_way_after: Option<Duration>) -> Self {
        Self(Arc::new(Inner { shares, gives_way_after, held: Mutex::default() }))
    }

    /// Takes a share, where the principal may have it now and nobody waits.
    pub(crate) fn try_take(&self, who: &Who, amount: u64) -> Option<Share> {
        let mut held = self.0.held();
        let admits = self.0.shares.admits(amount, held.own(&who.name), held.all, who.is_fleet_admin());
        (admits && held.waiting.is_empty()).then(|| self.0.take(&mut held, &who.name, amount))
    }

    /// Whether a principal may have more by what it holds itself.
    fn has_own_room(&self, who: &Who) -> bool {
        self.0.shares.admits(1, self.0.held().own(&who.name), 0, who.is_fleet_admin())
    }

    /// Takes a share whatever is held: what it is for was done already.
    pub(crate) fn take_anyway(&self, who: &Who, amount: u64) -> Share {
        self.0.take(&mut self.0.held(), &who.name, amount)
    }

    /// Waits for a share; `None` where it was not to be had in time, or too many of the same principal wait.
    pub(crate) async fn take(&self, who: &Who, amount: u64, within: Duration) -> Option<Share> {
        if let Some(share) = self.try_take(who, amount) {
            return Some(share);
        }
        let (ticket, served) = self.0.wait(who, amount)?;
        // Dropped before `served`, so that nobody is served who is gone.
        let _waits = Waits { budget: &self.0, ticket };
        self.0.serve();
        let others_give_way = async {
            while let Some(again) = self.0.give_way_to(&who.name) {
                sleep_until(again).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            share = timeout(within, served) => share.ok()?.ok(),
            () = others_give_way => None,
        }
    }
}

/// A place among those who wait, until it is dropped.
struct Waits<'a> {
    budget: &'a Arc<Inner>,
    ticket: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let left = self.budget.held().waiting.remove(&self.ticket);
        if left.is_some() {
            // Others may have waited behind it.
            self.budget.serve();
        }
    }
}

impl Held {
    fn own(&self, principal: &str) -> u64 {
        self.of.get(principal).copied().unwrap_or_default()
    }

    fn ticket(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Inner {
    fn take(self: &Arc<Self>, held: &mut Held, principal: &str, amount: u64) -> Share {
        held.all = held.all.saturating_add(amount);
        *held.of.entry(principal.to_owned()).or_default() += amount;
        let yields = self.gives_way_after.map(|_| {
            let (ticket, told) = (held.ticket(), Arc::new(Notify::new()));
            let yielding = Yielding { principal: principal.to_owned(), since: Instant::now(), told: Arc::clone(&told) };
            held.yielding.insert(ticket, yielding);
            (ticket, told)
        });
        Share { budget: Arc::clone(self), principal: principal.to_owned(), amount, yields }
    }

    /// A place among those who wait; `None` where too many of the same principal do.
    fn wait(&self, who: &Who, amount: u64) -> Option<(u64, oneshot::Receiver<Share>)> {
        let mut held = self.held();
        if held.waiting.values().filter(|one| one.principal == who.name).count() >= MOST_WAITING_OF_ONE {
            return None;
        }
        let (served, share) = oneshot::channel();
        let (principal, is_fleet_admin) = (who.name.clone(), who.is_fleet_admin());
        let ticket = held.ticket();
        held.waiting.insert(ticket, Waiter { principal, amount, is_fleet_admin, served });
        Some((ticket, share))
    }

    /// Gives those who wait what there is.
    fn serve(self: &Arc<Self>) {
        while let Some((waiter, share)) = self.serve_next() {
            // Who is gone gives it back.
            drop(waiter.send(share));
        }
    }

    fn serve_next(self: &Arc<Self>) -> Option<(oneshot::Sender<Share>, Share)> {
        let mut held = self.held();
        let asked = |one: &Waiter| Waiting {
            asked: one.amount,
            own: held.own(&one.principal),
            is_fleet_admin: one.is_fleet_admin,
        };
        let waiting: Vec<Waiting> = held.waiting.values().map(asked).collect();
        let place = self.shares.next(held.all, &waiting)?;
        let ticket = *held.waiting.keys().nth(place)?;
        let waiter = held.waiting.remove(&ticket)?;
        let share = self.take(&mut held, &waiter.principal, waiter.amount);
        Some((waiter.served, share))
    }

    /// Tells a share to give way to a principal that waits: the first one whose principal holds more, once its time has come. Says when to look again;
    /// `None`: nobody has such a share.
    fn give_way_to(&self, principal: &str) -> Option<Instant> {
        let after = self.gives_way_after?;
        let mut held = self.held();
        let own = held.own(principal);
        let (ticket, since) = held
            .yielding
            .iter()
            .find(|(_, one)| held.own(&one.principal) > own)
            .map(|(ticket, one)| (*ticket, one.since))?;
        let (due, now) = (since + after, Instant::now());
        if due > now {
            return Some(due);
        }
        if let Some(one) = held.yielding.remove(&ticket) {
            one.told.notify_one();
        }
        Some(now + GIVES_WAY_WITHIN)
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
        self.budget.serve();
    }

    /// Waits until the share is to give way to somebody who waits for it; for most budgets that is never.
    pub(crate) async fn gives_way(&self) {
        match &self.yields {
            Some((_, told)) => told.notified().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some((ticket, _)) = &self.yields {
            self.budget.held().yielding.remove(ticket);
        }
        self.settle(0);
    }
}

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
        // Admins have room for a body of the most bytes, whatever others hold.
        let arriving = Shares { all: 64 * MIB, of_one: 16 * MIB, for_admins: 8 * MIB };
        let decided = Shares { all: 64 * MIB, of_one: 16 * MIB, for_admins: 20 * MIB };
        let blobs = Shares { all: 192 * MIB, of_one: 64 * MIB, for_admins: 64 * MIB };
        Self {
            arriving: Budget::giving_way(arriving, Some(Duration::from_secs(10))),
            arriving_small: Budget::new(Shares::of(32 * MIB)),
            decided: Budget::new(decided),
            decided_small: Budget::new(Shares::of(32 * MIB)),
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

    #[tokio::test(start_paused = true)]
    async fn who_holds_least_is_served_first() {
        let budget = Budget::new(Shares { all: 16, of_one: 12, for_admins: 0 });
        let [one, other] = [viewer("one"), viewer("other")];
        let (first, second) = (budget.try_take(&one, 6).unwrap(), budget.try_take(&one, 6).unwrap());
        let within = Duration::from_secs(5);
        let (more, honest, ()) = tokio::join!(budget.take(&one, 6, within), budget.take(&other, 10, within), async {
            tokio::task::yield_now().await;
            drop(first);
        });
        assert!(more.is_none() && honest.is_some(), "one would have had room, and another that holds nothing waited");
        drop((second, honest));
        assert!(budget.0.held().waiting.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn x03_f05_what_is_held_for_long_gives_way_to_who_holds_less() {
        let budget = Budget::giving_way(Shares { all: 16, of_one: 16, for_admins: 0 }, Some(Duration::from_secs(10)));
        let [one, other] = [viewer("one"), viewer("other")];
        let mut shares = vec![budget.try_take(&one, 8).unwrap(), budget.try_take(&one, 8).unwrap()];
        let began = Instant::now();
        let (honest, ()) = tokio::join!(budget.take(&other, 4, Duration::from_secs(20)), async {
            shares[0].gives_way().await;
            shares.remove(0);
        });
        assert!(honest.is_some());
        assert_eq!(began.elapsed(), Duration::from_secs(10));
        // Its own principal gets nothing by waiting.
        let waited = tokio::select! {
            share = budget.take(&one, 8, Duration::from_mins(1)) => share,
            () = shares[0].gives_way() => panic!("it gave way to its own principal"),
        };
        assert!(waited.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn of_one_principal_so_many_wait_and_no_more() {
        let budget = Budget::new(Shares::of(16));
        let one = viewer("one");
        let _all = budget.try_take(&one, 4).unwrap();
        let waits: Vec<_> = (0..MOST_WAITING_OF_ONE).filter_map(|_| budget.0.wait(&one, 1)).collect();
        assert_eq!(waits.len(), MOST_WAITING_OF_ONE);
        assert!(budget.take(&one, 1, Duration::from_secs(5)).await.is_none());
        assert!(budget.0.wait(&viewer("other"), 1).is_some());
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
