//! Budgets of bytes or of turns that principals share. One limit holds for each principal, and another for all
//! principals together that are bound to one cluster. Of the waiting principals, the one that holds least is served
//! first.
//!
//! The limits and the order are defined in core ([`Shares`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stemma_core::shares::{ShareHolder, ShareRequest, ShareUsage, Shares};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::Requester;

/// Maximum number of requests of one principal that wait for a budget of bytes: as many as it may have streams.
const MAX_WAITING_PER_PRINCIPAL: usize = 256;

/// The time that the holder of a share has to release it after it was notified. Then another holder is notified.
const YIELD_TIMEOUT: Duration = Duration::from_secs(1);

/// An amount, such as bytes of memory, that principals share.
#[derive(Clone)]
pub(crate) struct SharedBudget(Arc<BudgetInner>);

struct BudgetInner {
    shares: Shares,
    /// The time after which a share may have to yield to waiting requests, or `None` if shares never yield.
    yields_after: Option<Duration>,
    /// Maximum number of waiting requests per principal.
    max_waiting_per_principal: usize,
    state: Mutex<BudgetState>,
}

#[derive(Default)]
struct BudgetState {
    total: u64,
    holdings: ShareUsage,
    /// The waiting requests of each principal, by ticket and so in order of arrival. A principal without waiting
    /// requests has no entry.
    waiters: HashMap<String, BTreeMap<u64, Waiter>>,
    /// The shares that can yield, in the order in which they were taken.
    yielding_shares: BTreeMap<u64, YieldingShare>,
    next_ticket: u64,
}

struct Waiter {
    amount: u64,
    holder: ShareHolder,
    sender: oneshot::Sender<Share>,
}

struct YieldingShare {
    principal: String,
    since: Instant,
    notify: Arc<Notify>,
}

/// A principal's share of a budget. Dropping it returns the amount.
pub(crate) struct Share {
    budget: Arc<BudgetInner>,
    holder: ShareHolder,
    amount: u64,
    /// The share's ticket in `yielding_shares`, and its notification to yield. `None` if the shares of the budget never
    /// yield.
    yields: Option<(u64, Arc<Notify>)>,
}

impl SharedBudget {
    /// Creates a budget of which nothing is held.
    pub(crate) fn new(shares: Shares) -> Self {
        Self::with_yielding(shares, None)
    }

    /// Creates a budget in which a share yields to other principals after some time.
    pub(crate) fn with_yielding(shares: Shares, yields_after: Option<Duration>) -> Self {
        Self(Arc::new(BudgetInner {
            shares,
            yields_after,
            max_waiting_per_principal: MAX_WAITING_PER_PRINCIPAL,
            state: Mutex::default(),
        }))
    }

    /// Creates a budget of turns. One principal holds at most half of them, and some are reserved for admins of the
    /// fleet. The number of waiting requests is not limited, because each is a request that the server already
    /// accepted.
    pub(crate) fn with_permits(turns: u64, for_admins: u64) -> Self {
        let shares =
            Shares { total: turns, max_per_principal: turns / 2, max_per_cluster: turns, reserved_for_admins: for_admins };
        Self(Arc::new(BudgetInner { shares, yields_after: None, max_waiting_per_principal: usize::MAX, state: Mutex::default() }))
    }

    /// Takes a share if the limits allow it now and no other request waits.
    pub(crate) fn try_take(&self, who: &Requester, amount: u64) -> Option<Share> {
        let (mut state, holder) = (self.0.lock(), who.holder());
        let exceeded = self.0.shares.exceeded_share(amount, &holder, &state.holdings, state.total);
        (exceeded.is_none() && state.waiters.is_empty()).then(|| self.0.take(&mut state, holder, amount))
    }

    /// Returns whether the principal's own limit allows it to hold more.
    pub(crate) fn has_headroom(&self, who: &Requester) -> bool {
        self.0.shares.is_within_own_share(1, self.0.lock().holdings.principal_usage(&who.name))
    }

    /// Takes a share regardless of limits. It counts a resource that is already in use.
    pub(crate) fn take_unchecked(&self, who: &Requester, amount: u64) -> Share {
        self.0.take(&mut self.0.lock(), who.holder(), amount)
    }

    /// Waits for a share, at most for the duration `within`. Returns `None` if no share was free by then, or if too
    /// many requests of the same principal wait.
    pub(crate) async fn take(&self, who: &Requester, amount: u64, within: Duration) -> Option<Share> {
        if let Some(share) = self.try_take(who, amount) {
            return Some(share);
        }
        let (ticket, receiver) = self.0.enqueue(who, amount)?;
        // Dropped before `receiver`, so that no share is sent to a request that is gone.
        let _queued = QueueTicket { budget: &self.0, principal: &who.name, ticket };
        self.0.serve_waiters();
        let yield_requests = async {
            while let Some(retry_at) = self.0.request_yield(&who.name) {
                sleep_until(retry_at).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            share = timeout(within, receiver) => share.ok()?.ok(),
            () = yield_requests => None,
        }
    }
}

/// The place of a request in the queue. Dropping it removes the request from the queue.
struct QueueTicket<'a> {
    budget: &'a Arc<BudgetInner>,
    principal: &'a str,
    ticket: u64,
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        let removed = self.budget.lock().remove_waiter(self.principal, self.ticket);
        if removed.is_some() {
            // Other requests may have waited behind this one.
            self.budget.serve_waiters();
        }
    }
}

impl BudgetState {
    /// Replaces the amount that a principal holds.
    fn change_holding(&mut self, holder: &ShareHolder, from: u64, to: u64) {
        self.total = self.total.saturating_sub(from).saturating_add(to);
        self.holdings.update(holder, from, to);
    }

    fn next_ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Removes a waiting request. Returns `None` if it does not wait any more.
    fn remove_waiter(&mut self, principal: &str, ticket: u64) -> Option<Waiter> {
        let queue = self.waiters.get_mut(principal)?;
        let waiter = queue.remove(&ticket);
        if queue.is_empty() {
            self.waiters.remove(principal);
        }
        waiter
    }

    /// Returns, for each principal, the first waiting request that the limits of the principal and its cluster allow,
    /// in order of arrival, with its ticket.
    fn first_waiters(&self, shares: &Shares) -> Vec<(u64, &str, ShareRequest)> {
        let mut firsts = Vec::with_capacity(self.waiters.len());
        for (principal, queue) in &self.waiters {
            let held = self.holdings.principal_usage(principal);
            let is_allowed = |one: &Waiter| shares.exceeded_own_share(one.amount, &one.holder, &self.holdings).is_none();
            let first = queue.iter().find(|(_, waiter)| is_allowed(waiter));
            firsts.extend(first.map(|(ticket, waiter)| {
                let is_fleet_admin = waiter.holder.is_fleet_admin;
                (*ticket, principal.as_str(), ShareRequest { amount: waiter.amount, held, is_fleet_admin })
            }));
        }
        firsts.sort_unstable_by_key(|(ticket, ..)| *ticket);
        firsts
    }
}

/// Takes a share without a check of the limits. In a budget whose shares yield, the share can be notified.
impl BudgetInner {
    fn take(self: &Arc<Self>, state: &mut BudgetState, holder: ShareHolder, amount: u64) -> Share {
        state.change_holding(&holder, 0, amount);
        let yields = self.yields_after.map(|_| {
            let (ticket, notify) = (state.next_ticket(), Arc::new(Notify::new()));
            let (principal, since) = (holder.name.clone(), Instant::now());
            let yielding = YieldingShare { principal, since, notify: Arc::clone(&notify) };
            state.yielding_shares.insert(ticket, yielding);
            (ticket, notify)
        });
        Share { budget: Arc::clone(self), holder, amount, yields }
    }

    /// Queues a request and returns its ticket. Returns `None` if too many requests of the same principal wait.
    fn enqueue(&self, who: &Requester, amount: u64) -> Option<(u64, oneshot::Receiver<Share>)> {
        let mut state = self.lock();
        if state.waiters.get(&who.name).is_some_and(|waiting| waiting.len() >= self.max_waiting_per_principal) {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        let waiter = Waiter { amount, holder: who.holder(), sender };
        let ticket = state.next_ticket();
        state.waiters.entry(who.name.clone()).or_default().insert(ticket, waiter);
        Some((ticket, receiver))
    }

    /// Gives free shares to waiting requests.
    fn serve_waiters(self: &Arc<Self>) {
        while let Some((sender, share)) = self.serve_next() {
            // If the request is gone, the share is dropped and so returned.
            drop(sender.send(share));
        }
    }

    /// Takes the share of the waiting request that the limits allow next. Returns it with the sender for that request.
    fn serve_next(self: &Arc<Self>) -> Option<(oneshot::Sender<Share>, Share)> {
        let mut state = self.lock();
        let firsts = state.first_waiters(&self.shares);
        let requests: Vec<ShareRequest> = firsts.iter().map(|(.., waiting)| *waiting).collect();
        let (ticket, principal, _) = firsts.get(self.shares.next_request(state.total, &requests)?)?;
        let (ticket, principal) = (*ticket, (*principal).to_owned());
        let Waiter { amount, holder, sender } = state.remove_waiter(&principal, ticket)?;
        let share = self.take(&mut state, holder, amount);
        Some((sender, share))
    }

    /// Notifies a share to yield: the oldest one whose principal holds more than `principal` does. If it was not held
    /// long enough yet, notifies nobody. Returns when to try again, or `None` if there is no such share.
    fn request_yield(&self, principal: &str) -> Option<Instant> {
        let after = self.yields_after?;
        let mut state = self.lock();
        let own = state.holdings.principal_usage(principal);
        let (ticket, since) = state
            .yielding_shares
            .iter()
            .find(|(_, share)| state.holdings.principal_usage(&share.principal) > own)
            .map(|(ticket, share)| (*ticket, share.since))?;
        let (due, now) = (since + after, Instant::now());
        if due > now {
            return Some(due);
        }
        if let Some(share) = state.yielding_shares.remove(&ticket) {
            share.notify.notify_one();
        }
        Some(now + YIELD_TIMEOUT)
    }

    fn lock(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Sets the actual amount when it is known. This cannot fail, because the resource is already in use.
    pub(crate) fn set_amount(&mut self, amount: u64) {
        let mut state = self.budget.lock();
        state.change_holding(&self.holder, self.amount, amount);
        drop(state);
        self.amount = amount;
        self.budget.serve_waiters();
    }

    /// Waits until the share has to yield to a waiting request. In most budgets that never happens.
    pub(crate) async fn wait_for_yield(&self) {
        match &self.yields {
            Some((_, notify)) => notify.notified().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some((ticket, _)) = &self.yields {
            self.budget.lock().yielding_shares.remove(ticket);
        }
        self.set_amount(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::{bound_viewer, viewer};

    #[tokio::test(start_paused = true)]
    async fn take_waits_until_share_is_dropped() {
        let budget = SharedBudget::new(Shares::from_total(16));
        let [one, other, admin] = [viewer("one"), viewer("other"), Requester::from_listener("root")];
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
        let mut anyway = budget.take_unchecked(&one, 100);
        anyway.set_amount(2);
        assert_eq!(budget.0.lock().total, 6);
        drop((next, anyway));
        let held = budget.0.lock();
        assert_eq!((held.total, &held.holdings), (0, &ShareUsage::default()));
    }

    #[tokio::test(start_paused = true)]
    async fn take_serves_smallest_holder_first() {
        let budget = SharedBudget::new(Shares { total: 16, max_per_principal: 12, max_per_cluster: 16, reserved_for_admins: 0 });
        let [one, other] = [viewer("one"), viewer("other")];
        let (first, second) = (budget.try_take(&one, 6).unwrap(), budget.try_take(&one, 6).unwrap());
        let within = Duration::from_secs(5);
        let (more, honest, ()) = tokio::join!(budget.take(&one, 6, within), budget.take(&other, 10, within), async {
            tokio::task::yield_now().await;
            drop(first);
        });
        assert!(more.is_none() && honest.is_some(), "one would have had room, and another that holds nothing waited");
        drop((second, honest));
        assert!(budget.0.lock().waiters.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn x03_f05_share_yields_to_smaller_holder_when_held_long() {
        let budget = SharedBudget::with_yielding(
            Shares { total: 16, max_per_principal: 16, max_per_cluster: 16, reserved_for_admins: 0 },
            Some(Duration::from_secs(10)),
        );
        let [one, other] = [viewer("one"), viewer("other")];
        let mut shares = vec![budget.try_take(&one, 8).unwrap(), budget.try_take(&one, 8).unwrap()];
        let began = Instant::now();
        let (honest, ()) = tokio::join!(budget.take(&other, 4, Duration::from_secs(20)), async {
            shares[0].wait_for_yield().await;
            shares.remove(0);
        });
        assert!(honest.is_some());
        assert_eq!(began.elapsed(), Duration::from_secs(10));
        // A principal that waits does not make its own shares yield.
        let waited = tokio::select! {
            share = budget.take(&one, 8, Duration::from_mins(1)) => share,
            () = shares[0].wait_for_yield() => panic!("it gave way to its own principal"),
        };
        assert!(waited.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn x03_take_limits_cluster_to_half_when_principals_are_bound() {
        let budget = SharedBudget::new(Shares::from_total(16));
        let mut first = budget.try_take(&bound_viewer("a", 1), 4).unwrap();
        let second = budget.try_take(&bound_viewer("b", 1), 4).unwrap();
        assert!(budget.try_take(&bound_viewer("c", 1), 1).is_none());
        assert!(budget.try_take(&bound_viewer("d", 2), 1).is_some() && budget.try_take(&viewer("e"), 4).is_some());
        let (within, third, next) = (Duration::from_secs(5), bound_viewer("c", 1), bound_viewer("d", 2));
        let (waits, other) = tokio::join!(budget.take(&third, 1, within), budget.take(&next, 4, within));
        assert!(waits.is_none() && other.is_some(), "who waits for its own cluster keeps nobody else");
        first.set_amount(3);
        assert!(budget.try_take(&bound_viewer("c", 1), 1).is_some());
        drop((first, second, other));
        let held = budget.0.lock();
        assert_eq!((held.total, &held.holdings), (0, &ShareUsage::default()));
    }

    #[tokio::test(start_paused = true)]
    async fn take_refuses_waiter_when_principal_has_max_waiting() {
        let budget = SharedBudget::new(Shares::from_total(16));
        let one = viewer("one");
        let _all = budget.try_take(&one, 4).unwrap();
        let waits: Vec<_> = (0..MAX_WAITING_PER_PRINCIPAL).filter_map(|_| budget.0.enqueue(&one, 1)).collect();
        assert_eq!(waits.len(), MAX_WAITING_PER_PRINCIPAL);
        assert!(budget.take(&one, 1, Duration::from_secs(5)).await.is_none());
        assert!(budget.0.enqueue(&viewer("other"), 1).is_some());
    }
}
