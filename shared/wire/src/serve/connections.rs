//! The connections that are open: caps, deadlines and cuts.
//!
//! A timer for each connection would cost a timer wheel entry for every request. Instead each connection keeps its deadline
//! in one atomic, and one sweep twice a second looks at all of them (10,000 loads are 20 µs); a deadline is met
//! within half a second, which is enough for limits of 5 s and more.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use stemma_core::object::ClusterId;
use stemma_core::shares::Holder;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::peer::{Peer, Room, Seat};
use super::{Limits, Rejected};
use crate::net::network;
use crate::tls::Identity;

/// How often deadlines are looked at.
const SWEEP: Duration = Duration::from_millis(500);
/// No deadline.
const NEVER: u64 = u64::MAX;

/// What a connection is waited for, while there is a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Awaited {
    Handshake,
    Head,
    Body,
    Reader,
    Request,
    Close,
}

impl Awaited {
    /// The reason that is counted when it does not come; an idle connection is closed and nothing is counted.
    fn reason(self) -> Option<&'static str> {
        match self {
            Self::Handshake => Some("slow_handshake"),
            Self::Head => Some("slow_header"),
            Self::Body => Some("slow_body"),
            Self::Reader => Some("slow_reader"),
            Self::Request | Self::Close => None,
        }
    }

    fn from_u8(value: u8) -> Self {
        [Self::Handshake, Self::Head, Self::Body, Self::Reader, Self::Request]
            .into_iter()
            .find(|awaited| *awaited as u8 == value)
            .unwrap_or(Self::Close)
    }
}

/// What the sweep, the guard and the handler of one connection share.
#[derive(Debug)]
pub(super) struct Watch {
    since: Instant,
    deadline_ms: AtomicU64,
    awaited: AtomicU8,
    /// A request's body has not come in whole.
    pub(super) body_open: AtomicBool,
    /// An answer is being written: progress keeps the connection.
    pub(super) answering: AtomicBool,
    /// A request has come.
    pub(super) used: AtomicBool,
    draining: AtomicBool,
    waker: Mutex<Option<Waker>>,
    /// How many requests hyper has handed over.
    pub(super) calls: AtomicU32,
    /// The body of the request that hyper hands over next, where it came in one piece with its head.
    whole: Mutex<Option<Bytes>>,
}

impl Watch {
    fn new(since: Instant) -> Self {
        Self {
            since,
            deadline_ms: AtomicU64::new(NEVER),
            awaited: AtomicU8::new(Awaited::Handshake as u8),
            body_open: AtomicBool::new(false),
            answering: AtomicBool::new(false),
            used: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            waker: Mutex::new(None),
            calls: AtomicU32::new(0),
            whole: Mutex::new(None),
        }
    }

    /// Waits for something for so long, from now.
    pub(super) fn expect(&self, awaited: Awaited, within: Duration) {
        self.expect_until(awaited, Instant::now() + within);
    }

    /// Waits for something until then.
    pub(super) fn expect_until(&self, awaited: Awaited, deadline: Instant) {
        self.awaited.store(awaited as u8, Ordering::Relaxed);
        self.deadline_ms.store(millis(deadline.duration_since(self.since)), Ordering::Relaxed);
    }

    /// Waits for something for so long, from a time that the sweep took: never less, and half a second more at the
    /// most. It costs no look at the clock, which each answer would pay for.
    pub(super) fn expect_about(&self, awaited: Awaited, swept_ms: u64, within: Duration) {
        self.awaited.store(awaited as u8, Ordering::Relaxed);
        self.deadline_ms.store(swept_ms.saturating_add(millis(within + SWEEP)), Ordering::Relaxed);
    }

    /// Waits for nothing from the peer: a handler is at work, or holds a check-in.
    pub(super) fn expect_nothing(&self) {
        self.deadline_ms.store(NEVER, Ordering::Relaxed);
    }

    /// Whether a handler is at work for it.
    fn is_at_work(&self) -> bool {
        self.deadline_ms.load(Ordering::Relaxed) == NEVER
    }

    /// Whether the connection is to end after what it is doing.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Keeps a body for the request that is handed over next.
    pub(super) fn put_whole(&self, body: Bytes) {
        *self.whole.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
    }

    /// Counts a request that is handed over, and gives its body where it was kept.
    pub(super) fn take_whole(&self) -> Option<Bytes> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.whole.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps the task's waker, so that a drain reaches it.
    pub(super) fn register(&self, waker: &Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }

    fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        if let Some(waker) = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            waker.wake();
        }
    }

    fn overdue(&self, now: Instant) -> Option<Awaited> {
        let late = millis(now.duration_since(self.since)) > self.deadline_ms.load(Ordering::Relaxed);
        late.then(|| Awaited::from_u8(self.awaited.load(Ordering::Relaxed)))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(NEVER - 1)
}

/// The open connections of a listener. A handle: clones speak of the same ones.
#[derive(Clone, Debug)]
pub struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    began: Instant,
    /// When the sweep looked last, since `began`.
    swept_ms: AtomicU64,
    max_total: usize,
    max_of_address: usize,
    max_handshakes_of_address: usize,
    max_strangers_of_address: usize,
    max_of_principal: Option<usize>,
    for_admins: usize,
    networks_are_addresses: bool,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    by_id: HashMap<u64, Entry>,
    by_address: HashMap<IpAddr, OfAddress>,
    /// Of each principal that is known, the first one first.
    by_principal: HashMap<String, BTreeSet<u64>>,
}

/// The connections of one address.
#[derive(Debug, Default)]
struct OfAddress {
    all: usize,
    /// Those of which nothing is known yet.
    handshakes: usize,
    /// Those who showed no certificate, the first one first. Who has shown a good token since is taken out when there is no more room.
    strangers: BTreeSet<u64>,
}

#[derive(Debug)]
struct Entry {
    address: IpAddr,
    watch: Arc<Watch>,
    peer: Option<Arc<Peer>>,
    /// Among whose it is counted.
    holder: Option<String>,
    /// Among those of which cluster.
    within: Option<ClusterId>,
    task: Option<AbortHandle>,
}

/// The place of one connection among those of its principal.
#[derive(Debug)]
struct OwnSeat {
    connections: Weak<Shared>,
    id: u64,
}

impl Seat for OwnSeat {
    fn hold(&self, holder: &Holder) -> Room {
        self.connections.upgrade().map_or(Room::Free, |shared| Connections(shared).hold(self.id, holder))
    }
}

/// One connection's place; given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    connections: Connections,
    id: u64,
    /// Under which it is counted.
    counted: IpAddr,
    pub(super) watch: Arc<Watch>,
}

impl Entry {
    fn is_stranger(&self) -> bool {
        self.peer.as_deref().is_none_or(Peer::is_stranger)
    }

    /// Its task, where no handler is at work for it.
    fn idle_task(&self) -> Option<&AbortHandle> {
        self.task.as_ref().filter(|_| !self.watch.is_at_work())
    }
}

impl Connections {
    pub(super) fn new(limits: &Limits) -> Self {
        Self(Arc::new(Shared {
            began: Instant::now(),
            swept_ms: AtomicU64::new(0),
            max_total: limits.connections,
            max_of_address: limits.connections_of_one_address,
            max_handshakes_of_address: limits.handshakes_of_one_address,
            max_strangers_of_address: limits.strangers_of_one_address,
            max_of_principal: limits.connections_of_one_principal,
            for_admins: limits.connections_for_admins,
            networks_are_addresses: limits.networks_are_addresses,
            open: Mutex::default(),
        }))
    }

    /// When the sweep looked last.
    pub(super) fn swept_ms(&self) -> u64 {
        self.0.swept_ms.load(Ordering::Relaxed)
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        self.lock().by_id.len()
    }

    /// Cuts the connections of the peers for which `condemned` holds, parked check-ins too, and says how many. What a revocation calls.
    pub fn cut(&self, condemned: impl Fn(&Peer) -> bool) -> usize {
        let open = self.lock();
        let cut = open.by_id.values().filter(|entry| entry.peer.as_deref().is_some_and(&condemned));
        cut.filter_map(|entry| entry.task.as_ref()).map(AbortHandle::abort).count()
    }

    /// Takes a place, or says which cap is reached.
    pub(super) fn enter(&self, address: IpAddr) -> Result<Place, &'static str> {
        let mut open = self.lock();
        if open.by_id.len() >= self.0.max_total {
            return Err("too_many_connections");
        }
        let counted = if self.0.networks_are_addresses { network(address) } else { address };
        let of_address = open.by_address.entry(counted).or_default();
        if of_address.all >= self.0.max_of_address {
            return Err("too_many_connections_of_one_address");
        }
        if of_address.handshakes >= self.0.max_handshakes_of_address {
            return Err("too_many_handshakes_of_one_address");
        }
        of_address.all += 1;
        of_address.handshakes += 1;
        let id = open.next;
        open.next += 1;
        let watch = Arc::new(Watch::new(self.0.began));
        open.by_id.insert(
            id,
            Entry { address, watch: Arc::clone(&watch), peer: None, holder: None, within: None, task: None },
        );
        Ok(Place { connections: self.clone(), id, counted, watch })
    }

    /// Counts a connection among those of a principal. It is no other's from then on.
    fn hold(&self, id: u64, holder: &Holder) -> Room {
        let Some(most) = self.0.max_of_principal else { return Room::Free };
        let mut open = self.lock();
        let count = open.by_id.len();
        let Some(before) = open.by_id.get(&id).map(|entry| entry.holder.clone()) else { return Room::Free };
        if before.as_ref() == Some(&holder.name) {
            return Room::Free;
        }
        if !holder.is_fleet_admin && count.saturating_add(self.0.for_admins) > self.0.max_total {
            return Room::Full;
        }
        let is_cluster_full = holder.within.is_some_and(|cluster| open.of_cluster(cluster) >= most.saturating_mul(2));
        if is_cluster_full && !open.by_principal.contains_key(&holder.name) {
            return Room::Full;
        }
        let Open { by_id, by_principal, .. } = &mut *open;
        let held = by_principal.entry(holder.name.clone()).or_default();
        let mut room = Room::Free;
        if held.len() >= most || is_cluster_full {
            let idle = held.iter().find_map(|id| Some((*id, by_id.get(id)?.idle_task()?)));
            let Some((oldest, task)) = idle else { return Room::Full };
            task.abort();
            held.remove(&oldest);
            if let Some(entry) = by_id.get_mut(&oldest) {
                entry.within = None;
            }
            room = Room::OfAnother;
        }
        held.insert(id);
        if let Some(entry) = by_id.get_mut(&id) {
            entry.holder = Some(holder.name.clone());
            entry.within = holder.within;
        }
        if let Some(before) = before {
            open.leave(&before, id);
        }
        room
    }

    /// Asks all to end after what they are doing; the idle ones end at once.
    pub(super) fn drain(&self) {
        self.lock().by_id.values().for_each(|entry| entry.watch.drain());
    }

    /// Ends all that are left.
    pub(super) fn abort(&self) {
        self.lock().by_id.values().filter_map(|entry| entry.task.as_ref()).for_each(AbortHandle::abort);
    }

    /// Looks at the deadlines for as long as it is polled.
    pub(super) async fn sweep(&self, rejected: &Rejected) {
        let mut ticks = tokio::time::interval(SWEEP);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for (address, awaited) in self.cut_overdue(Instant::now()) {
                if let Some(reason) = awaited.reason() {
                    rejected.refuse(reason, Some(address));
                }
            }
        }
    }

    fn cut_overdue(&self, now: Instant) -> Vec<(IpAddr, Awaited)> {
        self.0.swept_ms.store(millis(now.duration_since(self.0.began)), Ordering::Relaxed);
        let open = self.lock();
        let mut cut = Vec::new();
        for entry in open.by_id.values() {
            if let (Some(awaited), Some(task)) = (entry.watch.overdue(now), &entry.task) {
                // Aborted once: until the task is dropped it is not overdue again.
                entry.watch.expect_nothing();
                task.abort();
                cut.push((entry.address, awaited));
            }
        }
        cut
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// How many are those of principals that are bound to a cluster.
    fn of_cluster(&self, cluster: ClusterId) -> usize {
        self.by_id.values().filter(|entry| entry.within == Some(cluster)).count()
    }

    /// Takes a connection out of those of a principal.
    fn leave(&mut self, principal: &str, id: u64) {
        let Some(held) = self.by_principal.get_mut(principal) else { return };
        held.remove(&id);
        if held.is_empty() {
            self.by_principal.remove(principal);
        }
    }
}

impl Place {
    /// Which task to cut.
    pub(super) fn set_task(connections: &Connections, id: u64, task: AbortHandle) {
        if let Some(entry) = connections.lock().by_id.get_mut(&id) {
            entry.task = Some(task);
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Counts it among those of the principal of its certificate.
    pub(super) fn hold(&self, holder: &Holder) -> Room {
        self.connections.hold(self.id, holder)
    }

    /// Counts it among those who showed no certificate. Where its address has its share of them, the one that is there for the longest is
    /// cut for it. One whose request is being answered is not: a crowd of hosts that join at once would never come to an end.
    pub(super) fn count_stranger(&self) -> Room {
        let most = self.connections.0.max_strangers_of_address;
        let mut open = self.connections.lock();
        let Open { by_id, by_address, .. } = &mut *open;
        let by_id = &*by_id;
        let strangers = &mut by_address.entry(self.counted).or_default().strangers;
        let mut room = Room::Free;
        if strangers.len() >= most {
            strangers.retain(|id| by_id.get(id).is_some_and(Entry::is_stranger));
        }
        if strangers.len() >= most {
            let Some((id, task)) = strangers.iter().find_map(|id| Some((*id, by_id.get(id)?.idle_task()?))) else {
                return Room::Full;
            };
            task.abort();
            strangers.remove(&id);
            room = Room::OfAnother;
        }
        strangers.insert(self.id);
        room
    }

    /// Who it is, once the handshake is made, or at once where there is none.
    pub(super) fn meet(&self, address: SocketAddr, identity: Option<Identity>) -> Arc<Peer> {
        let peer = Peer::new(address, identity);
        let shared = &self.connections.0;
        let peer = match shared.max_of_principal {
            Some(_) => peer.seated(Box::new(OwnSeat { connections: Arc::downgrade(shared), id: self.id })),
            None => peer,
        };
        let peer = Arc::new(peer);
        let mut open = self.connections.lock();
        let is_known_now =
            open.by_id.get_mut(&self.id).is_some_and(|entry| entry.peer.replace(Arc::clone(&peer)).is_none());
        if let Some(of_address) = open.by_address.get_mut(&self.counted) {
            of_address.handshakes -= usize::from(is_known_now);
        }
        peer
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.connections.lock();
        let Some(entry) = open.by_id.remove(&self.id) else { return };
        if let Some(holder) = &entry.holder {
            open.leave(holder, self.id);
        }
        if let Some(of_address) = open.by_address.get_mut(&self.counted) {
            of_address.all -= 1;
            of_address.handshakes -= usize::from(entry.peer.is_none());
            of_address.strangers.remove(&self.id);
            if of_address.all == 0 {
                open.by_address.remove(&self.counted);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w10_09_a_network_of_64_bits_has_the_share_of_one_address() {
        for (networks_are_addresses, refused) in [(true, true), (false, false)] {
            let limits = Limits { connections_of_one_address: 1, networks_are_addresses, ..Limits::default() };
            let connections = Connections::new(&limits);
            let enter = |address: &str| connections.enter(address.parse().expect("an address"));
            let first = enter("2001:db8::1");
            assert_eq!(enter("2001:db8::ffff:2").is_err(), refused);
            assert!(enter("2001:db8:0:1::1").is_ok() && enter("192.0.2.1").is_ok(), "others are unharmed");
            drop(first);
            assert!(enter("2001:db8::3").is_ok(), "its place is given back");
        }
    }
}
