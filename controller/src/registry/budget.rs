//! Shares limited budgets (bytes, or permits to do work) among principals. Each principal has a limit, and all
//! principals that are bound to one cluster have another limit together. If several principals wait, the principal that
//! holds least is served first.
//!
//! The limits and the order are defined in core ([`Shares`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stemma_core::shares::{ShareHolder, ShareRequest, ShareUsage, Shares};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::Requester;

/// Maximum number of requests of one principal that wait for a budget, except for a budget of permits. It is a little
/// more than the number of event streams that one principal may have (250), so each of them can wait.
const MAX_WAITING_PER_PRINCIPAL: usize = 256;

/// Time that the holder of a share has to release it after a notification. After this time another share is notified.
const YIELD_TIMEOUT: Duration = Duration::from_secs(1);

/// An amount, such as bytes of memory, that principals share.
#[derive(Clone)]
pub(crate) struct SharedBudget(Arc<BudgetInner>);

struct BudgetInner {
    shares: Shares,
    /// The time after which a share may have to yield to waiting requests of other principals. `None` if shares never
    /// yield.
    yields_after: Option<Duration>,
    /// Maximum number of waiting requests per principal.
    max_waiting_per_principal: usize,
    state: Mutex<BudgetState>,
}

#[derive(Default)]
struct BudgetState {
    total: u64,
    holdings: ShareUsage,
    /// The waiting requests of each principal, by ticket. Tickets are numbered in order of arrival. A principal without
    /// waiting requests has no entry.
    waiters: HashMap<String, BTreeMap<u64, Waiter>>,
    /// The shares that can be notified to yield, by ticket. Tickets are numbered in order of acquisition.
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

/// A principal's share of a budget. When it is dropped, its amount returns to the budget.
pub(crate) struct Share {
    budget: Arc<BudgetInner>,
    holder: ShareHolder,
    amount: u64,
    /// The share's ticket in `yielding_shares`, and the notification that requests the share to yield. `None` if the
    /// shares of the budget never yield.
    yield_notification: Option<(u64, Arc<Notify>)>,
}

impl SharedBudget {
    /// Creates a budget of which nobody holds a share. Its shares never yield.
    pub(crate) fn new(shares: Shares) -> Self {
        Self::with_yielding(shares, None)
    }

    /// Creates a budget in which a share must yield after the time `yields_after`, if a principal that holds less
    /// waits. With `None`, shares never yield.
    pub(crate) fn with_yielding(shares: Shares, yields_after: Option<Duration>) -> Self {
        Self(Arc::new(BudgetInner {
            shares,
            yields_after,
            max_waiting_per_principal: MAX_WAITING_PER_PRINCIPAL,
            state: Mutex::default(),
        }))
    }

    /// Creates a budget of permits. One principal holds at most half of them, and `for_admins` permits are reserved for
    /// admins of the fleet. The number of waiting requests is not limited, because the server has already accepted each
    /// of them.
    pub(crate) fn with_permits(permits: u64, for_admins: u64) -> Self {
        let shares =
            Shares { total: permits, max_per_principal: permits / 2, max_per_cluster: permits, reserved_for_admins: for_admins };
        Self(Arc::new(BudgetInner { shares, yields_after: None, max_waiting_per_principal: usize::MAX, state: Mutex::default() }))
    }

    /// Acquires a share without waiting. Returns `None` if the limits do not allow the share now, or if another request
    /// waits.
    pub(crate) fn try_take(&self, requester: &Requester, amount: u64) -> Option<Share> {
        let (mut state, holder) = (self.0.lock(), requester.holder());
        let exceeded = self.0.shares.exceeded_share(amount, &holder, &state.holdings, state.total);
        (exceeded.is_none() && state.waiters.is_empty()).then(|| self.0.take(&mut state, holder, amount))
    }

    /// Returns whether the principal's own limit allows it to hold at least one unit more.
    pub(crate) fn has_headroom(&self, requester: &Requester) -> bool {
        self.0.shares.is_within_own_share(1, self.0.lock().holdings.principal_usage(&requester.name))
    }

    /// Acquires a share regardless of the limits. The share counts a resource that is already in use.
    pub(crate) fn take_unchecked(&self, requester: &Requester, amount: u64) -> Share {
        self.0.take(&mut self.0.lock(), requester.holder(), amount)
    }

    /// Waits for a share, at most for the duration `max_wait`. Returns `None` if no share was free by then, or if too
    /// many requests of the same principal wait already. If the shares of the budget can yield, also requests long-held
    /// shares of principals that hold more to yield, one after another.
    pub(crate) async fn take(&self, requester: &Requester, amount: u64, max_wait: Duration) -> Option<Share> {
        if let Some(share) = self.try_take(requester, amount) {
            return Some(share);
        }
        let (ticket, receiver) = self.0.enqueue(requester, amount)?;
        // When this future ends, the ticket removes the request from the queue. A share that was sent and not received
        // is dropped with `receiver`, and its amount returns to the budget.
        let _queue_ticket = QueueTicket { budget: &self.0, principal: &requester.name, ticket };
        self.0.serve_waiters();
        // This future requests shares to yield for as long as there are such shares, and never completes.
        let yield_requests = async {
            while let Some(retry_at) = self.0.request_yield(&requester.name) {
                sleep_until(retry_at).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            share = timeout(max_wait, receiver) => share.ok()?.ok(),
            () = yield_requests => None,
        }
    }
}

/// The place of a request in the queue. When it is dropped, the request leaves the queue.
struct QueueTicket<'a> {
    budget: &'a Arc<BudgetInner>,
    principal: &'a str,
    ticket: u64,
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        let removed = self.budget.lock().remove_waiter(self.principal, self.ticket);
        if removed.is_some() {
            // Requests that waited behind this one may be served now.
            self.budget.serve_waiters();
        }
    }
}

impl BudgetState {
    /// Changes the amount of one share, in the amounts that its principal, its cluster and all principals hold.
    fn change_share(&mut self, holder: &ShareHolder, from: u64, to: u64) {
        self.total = self.total.saturating_sub(from).saturating_add(to);
        self.holdings.update(holder, from, to);
    }

    /// Returns a new ticket number, higher than all before.
    fn next_ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Removes a waiting request from the queue. Returns `None` if the request does not wait any more.
    fn remove_waiter(&mut self, principal: &str, ticket: u64) -> Option<Waiter> {
        let queue = self.waiters.get_mut(principal)?;
        let waiter = queue.remove(&ticket);
        if queue.is_empty() {
            self.waiters.remove(principal);
        }
        waiter
    }

    /// Returns one waiting request per principal: the first that the limits of the principal and its cluster allow. The
    /// requests are in order of arrival, each with its ticket and the principal's name.
    fn first_waiters(&self, shares: &Shares) -> Vec<(u64, &str, ShareRequest)> {
        let mut firsts = Vec::with_capacity(self.waiters.len());
        for (principal, queue) in &self.waiters {
            let held_amount = self.holdings.principal_usage(principal);
            let is_allowed = |waiter: &Waiter| shares.exceeded_own_share(waiter.amount, &waiter.holder, &self.holdings).is_none();
            let first = queue.iter().find(|(_, waiter)| is_allowed(waiter));
            firsts.extend(first.map(|(ticket, waiter)| {
                let is_fleet_admin = waiter.holder.is_fleet_admin;
                (*ticket, principal.as_str(), ShareRequest { amount: waiter.amount, held: held_amount, is_fleet_admin })
            }));
        }
        firsts.sort_unstable_by_key(|(ticket, ..)| *ticket);
        firsts
    }
}

impl BudgetInner {
    /// Acquires a share without a check of the limits. If the shares of the budget can be requested to yield, registers
    /// the share for this notification.
    fn take(self: &Arc<Self>, state: &mut BudgetState, holder: ShareHolder, amount: u64) -> Share {
        state.change_share(&holder, 0, amount);
        let yield_notification = self.yields_after.map(|_| {
            let (ticket, notify) = (state.next_ticket(), Arc::new(Notify::new()));
            let (principal, since) = (holder.name.clone(), Instant::now());
            let yielding = YieldingShare { principal, since, notify: Arc::clone(&notify) };
            state.yielding_shares.insert(ticket, yielding);
            (ticket, notify)
        });
        Share { budget: Arc::clone(self), holder, amount, yield_notification }
    }

    /// Adds a request to the queue. Returns its ticket and the receiver of its share, or `None` if too many requests of
    /// the same principal wait.
    fn enqueue(&self, requester: &Requester, amount: u64) -> Option<(u64, oneshot::Receiver<Share>)> {
        let mut state = self.lock();
        if state.waiters.get(&requester.name).is_some_and(|queue| queue.len() >= self.max_waiting_per_principal) {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        let waiter = Waiter { amount, holder: requester.holder(), sender };
        let ticket = state.next_ticket();
        state.waiters.entry(requester.name.clone()).or_default().insert(ticket, waiter);
        Some((ticket, receiver))
    }

    /// Gives free shares to waiting requests, as far as the limits allow.
    fn serve_waiters(self: &Arc<Self>) {
        while let Some((sender, share)) = self.serve_next() {
            // If the request has ended, `send` returns the share, and dropping it returns the amount to the budget.
            drop(sender.send(share));
        }
    }

    /// Acquires a share for the waiting request that is next by the limits. Returns the share and the sender to that
    /// request, or `None` if no waiting request may be served.
    fn serve_next(self: &Arc<Self>) -> Option<(oneshot::Sender<Share>, Share)> {
        let mut state = self.lock();
        let firsts = state.first_waiters(&self.shares);
        let requests: Vec<ShareRequest> = firsts.iter().map(|(.., request)| *request).collect();
        let (ticket, principal, _) = firsts.get(self.shares.next_request(state.total, &requests)?)?;
        let (ticket, principal) = (*ticket, (*principal).to_owned());
        let Waiter { amount, holder, sender } = state.remove_waiter(&principal, ticket)?;
        let share = self.take(&mut state, holder, amount);
        Some((sender, share))
    }

    /// Notifies one share that it has to yield to a waiting request of `principal`: the oldest share of a principal
    /// that holds more than `principal`. If that share was not held long enough yet, notifies nobody. Returns the time
    /// at which to call this function again. Returns `None` if no share can yield to this principal.
    fn request_yield(&self, principal: &str) -> Option<Instant> {
        let yields_after = self.yields_after?;
        let mut state = self.lock();
        let own_amount = state.holdings.principal_usage(principal);
        let (ticket, since) = state
            .yielding_shares
            .iter()
            .find(|(_, share)| state.holdings.principal_usage(&share.principal) > own_amount)
            .map(|(ticket, share)| (*ticket, share.since))?;
        let (due, now) = (since + yields_after, Instant::now());
        if due > now {
            return Some(due);
        }
        if let Some(share) = state.yielding_shares.remove(&ticket) {
            share.notify.notify_one();
        }
        Some(now + YIELD_TIMEOUT)
    }

    /// Locks the state. A poisoned lock is used as it is.
    fn lock(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Sets the actual amount of the share when the amount is known. The amount may exceed the limits, because the
    /// resource is already in use. Then gives free shares to waiting requests, because a smaller amount makes room.
    pub(crate) fn set_amount(&mut self, amount: u64) {
        let mut state = self.budget.lock();
        state.change_share(&self.holder, self.amount, amount);
        drop(state);
        self.amount = amount;
        self.budget.serve_waiters();
    }

    /// Waits until the share has to yield to a waiting request. Waits forever if the shares of the budget never yield.
    pub(crate) async fn wait_for_yield(&self) {
        match &self.yield_notification {
            Some((_, notify)) => notify.notified().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some((ticket, _)) = &self.yield_notification {
            self.budget.lock().yielding_shares.remove(ticket);
        }
        // The whole amount returns to the budget.
        self.set_amount(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::{bound_viewer, viewer};

    /// Of a budget of 16, a principal may hold 4, and 1 is reserved for admins. A principal that holds nothing may get
    /// one larger share. The second viewer waits until the first viewer's share of 15 is dropped.
    #[tokio::test(start_paused = true)]
    async fn take_waits_until_share_is_dropped() {
        let budget = SharedBudget::new(Shares::from_total(16));
        let [first_viewer, second_viewer, admin] = [viewer("one"), viewer("other"), Requester::from_listener("root")];
        let first_share = budget.try_take(&first_viewer, 15).expect("the first viewer holds nothing yet");
        assert!(budget.try_take(&first_viewer, 1).is_none() && budget.try_take(&second_viewer, 1).is_none());
        assert!(budget.try_take(&admin, 1).is_some(), "a part of the budget is reserved for admins");
        let start = Instant::now();
        assert!(budget.take(&second_viewer, 4, Duration::from_secs(5)).await.is_none());
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        let (next_share, ()) = tokio::join!(budget.take(&second_viewer, 4, Duration::from_secs(5)), async {
            tokio::task::yield_now().await;
            drop(first_share);
        });
        let next_share = next_share.expect("the first share was dropped");
        let mut unchecked_share = budget.take_unchecked(&first_viewer, 100);
        unchecked_share.set_amount(2);
        assert_eq!(budget.0.lock().total, 6, "4 of the second viewer, and 2 of the unchecked share");
        drop((next_share, unchecked_share));
        let state = budget.0.lock();
        assert_eq!((state.total, &state.holdings), (0, &ShareUsage::default()));
    }

    /// The first viewer holds 12 of 16. It requests 6 more before the second viewer, which holds nothing, requests 10.
    /// When the first viewer releases 6, only one of the two requests fits.
    #[tokio::test(start_paused = true)]
    async fn take_serves_smallest_holder_first() {
        let budget = SharedBudget::new(Shares { total: 16, max_per_principal: 12, max_per_cluster: 16, reserved_for_admins: 0 });
        let [first_viewer, second_viewer] = [viewer("one"), viewer("other")];
        let (first, second) = (budget.try_take(&first_viewer, 6).unwrap(), budget.try_take(&first_viewer, 6).unwrap());
        let max_wait = Duration::from_secs(5);
        let (share_of_larger_holder, share_of_smaller_holder, ()) =
            tokio::join!(budget.take(&first_viewer, 6, max_wait), budget.take(&second_viewer, 10, max_wait), async {
                tokio::task::yield_now().await;
                drop(first);
            });
        assert!(
            share_of_larger_holder.is_none() && share_of_smaller_holder.is_some(),
            "the viewer that holds nothing is served, although its request is the later one"
        );
        drop((second, share_of_smaller_holder));
        assert!(budget.0.lock().waiters.is_empty());
    }

    /// The first viewer's two shares are the whole budget. They may have to yield after 10 seconds.
    #[tokio::test(start_paused = true)]
    async fn x03_f05_share_yields_to_smaller_holder_when_held_long() {
        let budget = SharedBudget::with_yielding(
            Shares { total: 16, max_per_principal: 16, max_per_cluster: 16, reserved_for_admins: 0 },
            Some(Duration::from_secs(10)),
        );
        let [first_viewer, second_viewer] = [viewer("one"), viewer("other")];
        let mut shares = vec![budget.try_take(&first_viewer, 8).unwrap(), budget.try_take(&first_viewer, 8).unwrap()];
        let start = Instant::now();
        let (second_viewer_share, ()) = tokio::join!(budget.take(&second_viewer, 4, Duration::from_secs(20)), async {
            shares[0].wait_for_yield().await;
            shares.remove(0);
        });
        assert!(second_viewer_share.is_some());
        assert_eq!(start.elapsed(), Duration::from_secs(10));
        // The waiting request of a principal does not make the principal's own shares yield.
        let further_share = tokio::select! {
            share = budget.take(&first_viewer, 8, Duration::from_mins(1)) => share,
            () = shares[0].wait_for_yield() => panic!("a share yields to its own principal"),
        };
        assert!(further_share.is_none());
    }

    /// Of a budget of 16, all principals that are bound to one cluster may hold 8. `bound_viewer` gets the name of a
    /// viewer and the number of the cluster that it is bound to.
    #[tokio::test(start_paused = true)]
    async fn x03_take_limits_cluster_to_half_when_principals_are_bound() {
        let budget = SharedBudget::new(Shares::from_total(16));
        let mut first = budget.try_take(&bound_viewer("a", 1), 4).unwrap();
        let second = budget.try_take(&bound_viewer("b", 1), 4).unwrap();
        assert!(budget.try_take(&bound_viewer("c", 1), 1).is_none());
        assert!(budget.try_take(&bound_viewer("d", 2), 1).is_some() && budget.try_take(&viewer("e"), 4).is_some());
        let (max_wait, third_viewer, fourth_viewer) = (Duration::from_secs(5), bound_viewer("c", 1), bound_viewer("d", 2));
        let (third_share, fourth_share) =
            tokio::join!(budget.take(&third_viewer, 1, max_wait), budget.take(&fourth_viewer, 4, max_wait));
        assert!(third_share.is_none() && fourth_share.is_some(), "a full cluster delays no other cluster");
        first.set_amount(3);
        assert!(budget.try_take(&bound_viewer("c", 1), 1).is_some());
        drop((first, second, fourth_share));
        let state = budget.0.lock();
        assert_eq!((state.total, &state.holdings), (0, &ShareUsage::default()));
    }

    #[tokio::test(start_paused = true)]
    async fn take_refuses_waiter_when_principal_has_max_waiting() {
        let budget = SharedBudget::new(Shares::from_total(16));
        let viewer_one = viewer("one");
        // One principal may hold 4 of 16, so all further requests of this viewer wait.
        let _whole_share = budget.try_take(&viewer_one, 4).unwrap();
        let tickets: Vec<_> = (0..MAX_WAITING_PER_PRINCIPAL).filter_map(|_| budget.0.enqueue(&viewer_one, 1)).collect();
        assert_eq!(tickets.len(), MAX_WAITING_PER_PRINCIPAL);
        assert!(budget.take(&viewer_one, 1, Duration::from_secs(5)).await.is_none());
        assert!(budget.0.enqueue(&viewer("other"), 1).is_some());
    }
}
