//! What principals share: nobody takes more than a part of it, nor do all who are bound to one cluster, and who holds least is served first.
//!
//! An amount is of bytes, places or turns. Core says who may take how much, and who is next ([`Shares`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stemma_core::shares::{Holder, Holdings, Shares, Waiting};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::Who;

/// How many of one principal wait for a budget of bytes: as many as it may have streams.
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
    /// How many of one principal wait.
    most_waiting: usize,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    all: u64,
    parts: Holdings,
    /// Those who wait, of each principal in the order in which they came; no principal of whom nobody waits.
    waiting: HashMap<String, BTreeMap<u64, Waiter>>,
    /// The shares that may give way, in the order in which they were taken.
    yielding: BTreeMap<u64, Yielding>,
    next: u64,
}

struct Waiter {
    amount: u64,
    holder: Holder,
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
    holder: Holder,
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
    pub(crate) fn giving_way(shares: Shares, gives_way_after: Option<Duration>) -> Self {
        Self(Arc::new(Inner { shares, gives_way_after, most_waiting: MOST_WAITING_OF_ONE, held: Mutex::default() }))
    }

    /// Turns, of which one principal has half at most, and of which some are kept for admins of the fleet. As many wait as ask: each is a
    /// request that is there already.
    pub(crate) fn of_turns(turns: u64, for_admins: u64) -> Self {
        let shares = Shares { all: turns, of_one: turns / 2, of_cluster: turns, for_admins };
        Self(Arc::new(Inner { shares, gives_way_after: None, most_waiting: usize::MAX, held: Mutex::default() }))
    }

    /// Takes a share, where the principal may have it now and nobody waits.
    pub(crate) fn try_take(&self, who: &Who, amount: u64) -> Option<Share> {
        let (mut held, holder) = (self.0.held(), who.holder());
        let full = self.0.shares.full(amount, &holder, &held.parts, held.all);
        (full.is_none() && held.waiting.is_empty()).then(|| self.0.take(&mut held, holder, amount))
    }

    /// Whether a principal may have more by what it holds itself.
    pub(crate) fn has_own_room(&self, who: &Who) -> bool {
        self.0.shares.is_within_own(1, self.0.held().parts.own(&who.name))
    }

    /// Takes a share whatever is held: what it is for was done already.
    pub(crate) fn take_anyway(&self, who: &Who, amount: u64) -> Share {
        self.0.take(&mut self.0.held(), who.holder(), amount)
    }

    /// Waits for a share; `None` where it was not to be had in time, or too many of the same principal wait.
    pub(crate) async fn take(&self, who: &Who, amount: u64, within: Duration) -> Option<Share> {
        if let Some(share) = self.try_take(who, amount) {
            return Some(share);
        }
        let (ticket, served) = self.0.wait(who, amount)?;
        // Dropped before `served`, so that nobody is served who is gone.
        let _waits = Waits { budget: &self.0, principal: &who.name, ticket };
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
    principal: &'a str,
    ticket: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let left = self.budget.held().leave(self.principal, self.ticket);
        if left.is_some() {
            // Others may have waited behind it.
            self.budget.serve();
        }
    }
}

impl Held {
    /// Notes that a principal holds so much in place of so much.
    fn change(&mut self, holder: &Holder, from: u64, to: u64) {
        self.all = self.all.saturating_sub(from).saturating_add(to);
        self.parts.change(holder, from, to);
    }

    fn ticket(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Takes one of those who wait out; `None`: it waits no more.
    fn leave(&mut self, principal: &str, ticket: u64) -> Option<Waiter> {
        let of_principal = self.waiting.get_mut(principal)?;
        let left = of_principal.remove(&ticket);
        if of_principal.is_empty() {
            self.waiting.remove(principal);
        }
        left
    }

    /// Of each principal the first who waits and whom its part lets in, in the order in which they came; each with its ticket.
    fn first_waiting(&self, shares: &Shares) -> Vec<(u64, &str, Waiting)> {
        let mut firsts = Vec::with_capacity(self.waiting.len());
        for (principal, of_principal) in &self.waiting {
            let own = self.parts.own(principal);
            let is_let_in = |one: &Waiter| shares.full_part(one.amount, &one.holder, &self.parts).is_none();
            let first = of_principal.iter().find(|(_, one)| is_let_in(one));
            firsts.extend(first.map(|(ticket, one)| {
                let is_fleet_admin = one.holder.is_fleet_admin;
                (*ticket, principal.as_str(), Waiting { asked: one.amount, own, is_fleet_admin })
            }));
        }
        firsts.sort_unstable_by_key(|(ticket, ..)| *ticket);
        firsts
    }
}

impl Inner {
    fn take(self: &Arc<Self>, held: &mut Held, holder: Holder, amount: u64) -> Share {
        held.change(&holder, 0, amount);
        let yields = self.gives_way_after.map(|_| {
            let (ticket, told) = (held.ticket(), Arc::new(Notify::new()));
            let (principal, since) = (holder.name.clone(), Instant::now());
            let yielding = Yielding { principal, since, told: Arc::clone(&told) };
            held.yielding.insert(ticket, yielding);
            (ticket, told)
        });
        Share { budget: Arc::clone(self), holder, amount, yields }
    }

    /// A place among those who wait; `None` where too many of the same principal do.
    fn wait(&self, who: &Who, amount: u64) -> Option<(u64, oneshot::Receiver<Share>)> {
        let mut held = self.held();
        if held.waiting.get(&who.name).is_some_and(|waiting| waiting.len() >= self.most_waiting) {
            return None;
        }
        let (served, share) = oneshot::channel();
        let waiter = Waiter { amount, holder: who.holder(), served };
        let ticket = held.ticket();
        held.waiting.entry(who.name.clone()).or_default().insert(ticket, waiter);
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
        let firsts = held.first_waiting(&self.shares);
        let waiting: Vec<Waiting> = firsts.iter().map(|(.., waiting)| *waiting).collect();
        let (ticket, principal, _) = firsts.get(self.shares.next(held.all, &waiting)?)?;
        let (ticket, principal) = (*ticket, (*principal).to_owned());
        let Waiter { amount, holder, served } = held.leave(&principal, ticket)?;
        let share = self.take(&mut held, holder, amount);
        Some((served, share))
    }

    /// Tells a share to give way to a principal that waits: the first one whose principal holds more, once its time has come. Says when to look again;
    /// `None`: nobody has such a share.
    fn give_way_to(&self, principal: &str) -> Option<Instant> {
        let after = self.gives_way_after?;
        let mut held = self.held();
        let own = held.parts.own(principal);
        let (ticket, since) = held
            .yielding
            .iter()
            .find(|(_, one)| held.parts.own(&one.principal) > own)
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
        held.change(&self.holder, self.amount, amount);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::{bound, viewer};

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
        assert_eq!((held.all, &held.parts), (0, &Holdings::default()));
    }

    #[tokio::test(start_paused = true)]
    async fn who_holds_least_is_served_first() {
        let budget = Budget::new(Shares { all: 16, of_one: 12, of_cluster: 16, for_admins: 0 });
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
        let budget = Budget::giving_way(
            Shares { all: 16, of_one: 16, of_cluster: 16, for_admins: 0 },
            Some(Duration::from_secs(10)),
        );
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
    async fn x03_all_who_are_bound_to_one_cluster_have_half_and_who_waits_of_others_is_served() {
        let budget = Budget::new(Shares::of(16));
        let mut first = budget.try_take(&bound("a", 1), 4).unwrap();
        let second = budget.try_take(&bound("b", 1), 4).unwrap();
        assert!(budget.try_take(&bound("c", 1), 1).is_none());
        assert!(budget.try_take(&bound("d", 2), 1).is_some() && budget.try_take(&viewer("e"), 4).is_some());
        let (within, third, next) = (Duration::from_secs(5), bound("c", 1), bound("d", 2));
        let (waits, other) = tokio::join!(budget.take(&third, 1, within), budget.take(&next, 4, within));
        assert!(waits.is_none() && other.is_some(), "who waits for its own cluster keeps nobody else");
        first.settle(3);
        assert!(budget.try_take(&bound("c", 1), 1).is_some());
        drop((first, second, other));
        let held = budget.0.held();
        assert_eq!((held.all, &held.parts), (0, &Holdings::default()));
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
}
