//! The open connections: maximum numbers, deadlines and forced closes.
//!
//! A timer for each connection would cost a timer wheel entry for every request. Instead each connection stores its
//! deadline in an atomic. A *sweep* checks the deadlines of all connections twice a second (10,000 loads are 20 µs). So
//! a deadline is enforced within half a second, which is enough for limits of 2 s and more.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use stemma_core::object::ClusterId;
use stemma_core::shares::ShareHolder;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::peer::{AdmitOutcome, Peer, PrincipalSlot};
use super::{ListenerLimits, RejectionCounter};
use crate::net::network_prefix;
use crate::tls::Identity;

/// The time between two sweeps, which check the deadlines of all connections.
const SWEEP_INTERVAL: Duration = Duration::from_millis(500);
/// The value of `deadline_ms` for a connection without a deadline.
const NO_DEADLINE: u64 = u64::MAX;

/// The event that must happen before the deadline of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum AwaitedEvent {
    Handshake,
    Head,
    Body,
    WriteProgress,
    Request,
    Close,
}

impl AwaitedEvent {
    /// Returns the reason of the rejection if the event does not happen in time. Returns `None` if the connection is
    /// then closed without being counted as a rejection, because it was idle or had to close anyway.
    fn rejection_reason(self) -> Option<&'static str> {
        match self {
            Self::Handshake => Some("slow_handshake"),
            Self::Head => Some("slow_header"),
            Self::Body => Some("slow_body"),
            Self::WriteProgress => Some("slow_reader"),
            Self::Request | Self::Close => None,
        }
    }

    /// Returns the event that `as u8` converts to this number.
    fn from_u8(value: u8) -> Self {
        [Self::Handshake, Self::Head, Self::Body, Self::WriteProgress, Self::Request]
            .into_iter()
            .find(|event| *event as u8 == value)
            .unwrap_or(Self::Close)
    }
}

/// The state of one connection that its stream, its handler and the sweep of deadlines share.
#[derive(Debug)]
pub(super) struct ConnectionMonitor {
    /// The time from which `deadline_ms` counts: the start of the listener, as for the time of the last sweep.
    started_at: Instant,
    /// The deadline, in milliseconds after `started_at`, or [`NO_DEADLINE`].
    deadline_ms: AtomicU64,
    /// The [`AwaitedEvent`] that must happen before the deadline, as a number.
    awaited_event: AtomicU8,
    /// True while a request's body has not arrived completely.
    pub(super) is_body_open: AtomicBool,
    /// True from the start of a response until the next request.
    pub(super) is_answering: AtomicBool,
    /// True once hyper has parsed the head of the connection's first request and passed on the request.
    pub(super) has_request: AtomicBool,
    /// True once the listener is stopping. The connection then ends after its current request.
    is_draining: AtomicBool,
    /// The waker of the connection's task.
    waker: Mutex<Option<Waker>>,
    /// The number of requests of this connection that hyper has parsed and passed on to be handled.
    pub(super) request_count: AtomicU32,
    /// The body of the request that hyper passes on next, if it arrived in one read with its head.
    buffered_body: Mutex<Option<Bytes>>,
}

impl ConnectionMonitor {
    /// Creates the state of a new connection, without a deadline. `started_at` is the start of the listener.
    fn new(started_at: Instant) -> Self {
        Self {
            started_at,
            deadline_ms: AtomicU64::new(NO_DEADLINE),
            awaited_event: AtomicU8::new(AwaitedEvent::Handshake as u8),
            is_body_open: AtomicBool::new(false),
            is_answering: AtomicBool::new(false),
            has_request: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            waker: Mutex::new(None),
            request_count: AtomicU32::new(0),
            buffered_body: Mutex::new(None),
        }
    }

    /// Sets a deadline for an event, as a time from now. If the event does not happen before the deadline, the sweep
    /// closes the connection.
    pub(super) fn set_timeout(&self, event: AwaitedEvent, timeout: Duration) {
        self.set_deadline(event, Instant::now() + timeout);
    }

    /// Sets a deadline for an event, as a point in time. If the event does not happen before the deadline, the sweep
    /// closes the connection.
    pub(super) fn set_deadline(&self, event: AwaitedEvent, deadline: Instant) {
        self.awaited_event.store(event as u8, Ordering::Relaxed);
        self.deadline_ms.store(millis(deadline.duration_since(self.started_at)), Ordering::Relaxed);
    }

    /// Sets a deadline for an event, relative to the time of the last sweep instead of now, so that the clock is not
    /// read for each response. If the sweeps run on time, the deadline is at most one sweep interval too late, and not
    /// too early.
    pub(super) fn set_timeout_after_sweep(&self, event: AwaitedEvent, last_sweep_ms: u64, timeout: Duration) {
        self.awaited_event.store(event as u8, Ordering::Relaxed);
        self.deadline_ms.store(last_sweep_ms.saturating_add(millis(timeout + SWEEP_INTERVAL)), Ordering::Relaxed);
    }

    /// Clears the deadline, while the connection waits for this side and not for its peer, for example for a handler.
    pub(super) fn clear_deadline(&self) {
        self.deadline_ms.store(NO_DEADLINE, Ordering::Relaxed);
    }

    /// Returns whether the connection has a deadline, because it waits for the peer. A connection that waits for this
    /// side, usually for a handler, has none.
    fn has_deadline(&self) -> bool {
        self.deadline_ms.load(Ordering::Relaxed) != NO_DEADLINE
    }

    /// Returns whether the listener is stopping, so that the connection ends after its current request.
    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// Stores the body of the request that hyper passes on next. [`Self::take_buffered_body`] returns it.
    pub(super) fn buffer_body(&self, body: Bytes) {
        *self.buffered_body.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
    }

    /// Counts a request that hyper passes on. Returns the body of the request if [`Self::buffer_body`] stored it.
    pub(super) fn take_buffered_body(&self) -> Option<Bytes> {
        self.request_count.fetch_add(1, Ordering::Relaxed);
        self.buffered_body.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Stores the waker of the connection's task, so that a drain can wake the task.
    pub(super) fn store_waker(&self, waker: &Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }

    /// Makes the connection end after its current or first request, and wakes its task so that an idle connection ends at
    /// once.
    fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
        if let Some(waker) = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            waker.wake();
        }
    }

    /// Returns the awaited event if its deadline has passed, or else `None`.
    fn overdue_event(&self, now: Instant) -> Option<AwaitedEvent> {
        let is_overdue = millis(now.duration_since(self.started_at)) > self.deadline_ms.load(Ordering::Relaxed);
        is_overdue.then(|| AwaitedEvent::from_u8(self.awaited_event.load(Ordering::Relaxed)))
    }
}

/// Returns a duration in whole milliseconds. A duration that does not fit becomes the largest number that differs from
/// [`NO_DEADLINE`].
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(NO_DEADLINE - 1)
}

/// The open connections of a listener. A clone refers to the same connections.
#[derive(Clone, Debug)]
pub struct OpenConnections(Arc<ConnectionTable>);

/// The limits and the connections of a listener.
#[derive(Debug)]
struct ConnectionTable {
    started_at: Instant,
    /// The time of the last sweep, in milliseconds since `started_at`.
    last_sweep_ms: AtomicU64,
    // The limits of `ListenerLimits`, two of them under shorter names.
    max_connections: usize,
    max_per_address: usize,
    max_handshakes_per_address: usize,
    max_unauthenticated_per_address: usize,
    max_per_principal: Option<usize>,
    reserved_for_admins: usize,
    is_per_network: bool,
    connections: Mutex<ConnectionMap>,
}

/// The connections by id, with an index by address and one by principal.
#[derive(Debug, Default)]
struct ConnectionMap {
    next_id: u64,
    by_id: HashMap<u64, ConnectionEntry>,
    by_address: HashMap<IpAddr, AddressConnections>,
    /// The ids of the connections that are counted for each principal, oldest first.
    by_principal: HashMap<String, BTreeSet<u64>>,
}

/// The connections from one address, or from one IPv6 /64 network if `is_per_network` is set.
#[derive(Debug, Default)]
struct AddressConnections {
    total: usize,
    /// The number of connections whose handshake is not finished.
    pending_handshakes: usize,
    /// The open TLS connections that presented no certificate, oldest first. A connection that has presented a valid
    /// token remains in this set until it is closed, or until a new connection finds the set at its limit.
    unauthenticated: BTreeSet<u64>,
}

/// An open connection.
#[derive(Debug)]
struct ConnectionEntry {
    address: IpAddr,
    monitor: Arc<ConnectionMonitor>,
    peer: Option<Arc<Peer>>,
    /// The principal that the connection is counted for.
    principal: Option<String>,
    /// The cluster to which this principal is bound, if the connection also counts for a cluster.
    cluster: Option<ClusterId>,
    task: Option<AbortHandle>,
}

/// The link from a [`Peer`] to its connection in the table, by which the connection can be counted for a principal.
#[derive(Debug)]
struct PrincipalConnection {
    connections: Weak<ConnectionTable>,
    id: u64,
}

impl PrincipalSlot for PrincipalConnection {
    fn admit(&self, holder: &ShareHolder) -> AdmitOutcome {
        self.connections.upgrade().map_or(AdmitOutcome::Admitted, |table| OpenConnections(table).admit_holder(self.id, holder))
    }
}

/// The place of one connection in the table of connections. Dropping the guard removes the connection from the table.
#[derive(Debug)]
pub(super) struct ConnectionGuard {
    connections: OpenConnections,
    id: u64,
    /// The address or network that the connection is counted for.
    counted_address: IpAddr,
    pub(super) monitor: Arc<ConnectionMonitor>,
}

impl ConnectionEntry {
    /// Returns whether the peer has not authenticated, or is not known yet because the handshake is not finished.
    fn is_unauthenticated(&self) -> bool {
        self.peer.as_deref().is_none_or(Peer::is_unauthenticated)
    }

    /// Returns the task of the connection if the connection waits for its peer and not for a handler.
    fn closable_task(&self) -> Option<&AbortHandle> {
        self.task.as_ref().filter(|_| self.monitor.has_deadline())
    }
}

impl OpenConnections {
    /// Creates the empty table of connections of a listener with these limits.
    pub(super) fn new(limits: &ListenerLimits) -> Self {
        Self(Arc::new(ConnectionTable {
            started_at: Instant::now(),
            last_sweep_ms: AtomicU64::new(0),
            max_connections: limits.max_connections,
            max_per_address: limits.max_connections_per_address,
            max_handshakes_per_address: limits.max_handshakes_per_address,
            max_unauthenticated_per_address: limits.max_unauthenticated_per_address,
            max_per_principal: limits.max_connections_per_principal,
            reserved_for_admins: limits.reserved_for_admins,
            is_per_network: limits.is_per_network,
            connections: Mutex::default(),
        }))
    }

    /// Returns the time of the last sweep, in milliseconds since the listener started.
    pub(super) fn last_sweep_ms(&self) -> u64 {
        self.0.last_sweep_ms.load(Ordering::Relaxed)
    }

    /// Returns the number of open connections.
    pub fn count(&self) -> usize {
        self.lock().by_id.len()
    }

    /// Closes the connections of all peers for which `should_close` returns true (for use after a revocation), also
    /// during a request. Skips unfinished handshakes. Returns the number of closed connections.
    pub fn close_where(&self, should_close: impl Fn(&Peer) -> bool) -> usize {
        let map = self.lock();
        let matching_entries = map.by_id.values().filter(|entry| entry.peer.as_deref().is_some_and(&should_close));
        matching_entries.filter_map(|entry| entry.task.as_ref()).map(AbortHandle::abort).count()
    }

    /// Adds a connection from an address to the table. If a limit is reached, fails with the name of that limit, which
    /// is the reason of the rejection.
    pub(super) fn register(&self, address: IpAddr) -> Result<ConnectionGuard, &'static str> {
        let mut map = self.lock();
        if map.by_id.len() >= self.0.max_connections {
            return Err("too_many_connections");
        }
        let counted_address = if self.0.is_per_network { network_prefix(address) } else { address };
        let address_connections = map.by_address.entry(counted_address).or_default();
        if address_connections.total >= self.0.max_per_address {
            return Err("too_many_connections_of_one_address");
        }
        if address_connections.pending_handshakes >= self.0.max_handshakes_per_address {
            return Err("too_many_handshakes_of_one_address");
        }
        address_connections.total += 1;
        address_connections.pending_handshakes += 1;
        let id = map.next_id;
        map.next_id += 1;
        let monitor = Arc::new(ConnectionMonitor::new(self.0.started_at));
        map.by_id.insert(
            id,
            ConnectionEntry { address, monitor: Arc::clone(&monitor), peer: None, principal: None, cluster: None, task: None },
        );
        Ok(ConnectionGuard { connections: self.clone(), id, counted_address, monitor })
    }

    /// Counts a connection for a principal, and no longer for its previous principal. If the principal or its cluster
    /// has its maximum, closes the principal's oldest connection that waits for its peer and not for a handler. If
    /// there is no such connection, returns [`AdmitOutcome::Full`]. All principals that are bound to a cluster together
    /// may have twice the maximum of one principal. The last places of the listener are reserved for fleet admins.
    fn admit_holder(&self, id: u64, holder: &ShareHolder) -> AdmitOutcome {
        let Some(max) = self.0.max_per_principal else { return AdmitOutcome::Admitted };
        let mut map = self.lock();
        let total = map.by_id.len();
        let Some(previous_principal) = map.by_id.get(&id).map(|entry| entry.principal.clone()) else {
            return AdmitOutcome::Admitted;
        };
        if previous_principal.as_ref() == Some(&holder.name) {
            return AdmitOutcome::Admitted;
        }
        if !holder.is_fleet_admin && total.saturating_add(self.0.reserved_for_admins) > self.0.max_connections {
            return AdmitOutcome::Full;
        }
        let is_cluster_full = holder.cluster.is_some_and(|cluster| map.count_in_cluster(cluster) >= max.saturating_mul(2));
        // The principal has no connection of its own that could be closed instead.
        if is_cluster_full && !map.by_principal.contains_key(&holder.name) {
            return AdmitOutcome::Full;
        }
        let ConnectionMap { by_id, by_principal, .. } = &mut *map;
        let connections = by_principal.entry(holder.name.clone()).or_default();
        let mut outcome = AdmitOutcome::Admitted;
        if connections.len() >= max || is_cluster_full {
            let idle_connection = connections.iter().find_map(|id| Some((*id, by_id.get(id)?.closable_task()?)));
            let Some((closed_id, task)) = idle_connection else { return AdmitOutcome::Full };
            task.abort();
            connections.remove(&closed_id);
            // The closed connection remains in `by_id` until its task has ended, but no longer counts for the cluster.
            if let Some(entry) = by_id.get_mut(&closed_id) {
                entry.cluster = None;
            }
            outcome = AdmitOutcome::Replaced;
        }
        connections.insert(id);
        if let Some(entry) = by_id.get_mut(&id) {
            entry.principal = Some(holder.name.clone());
            entry.cluster = holder.cluster;
        }
        if let Some(old_principal) = previous_principal {
            map.remove_from_principal(&old_principal, id);
        }
        outcome
    }

    /// Makes all connections end after their current or first request. Idle connections end at once.
    pub(super) fn drain_all(&self) {
        self.lock().by_id.values().for_each(|entry| entry.monitor.drain());
    }

    /// Closes the connections without a request.
    pub(super) fn abort_silent(&self) {
        let connections = self.lock();
        let silent = connections.by_id.values().filter(|entry| !entry.monitor.has_request.load(Ordering::Relaxed));
        silent.filter_map(|entry| entry.task.as_ref()).for_each(AbortHandle::abort);
    }

    /// Closes all remaining connections.
    pub(super) fn abort_all(&self) {
        self.lock().by_id.values().filter_map(|entry| entry.task.as_ref()).for_each(AbortHandle::abort);
    }

    /// Closes the connections whose deadline has passed, at each tick of [`SWEEP_INTERVAL`], and counts the rejections.
    /// Never returns.
    pub(super) async fn run_sweep(&self, rejections: &RejectionCounter) {
        let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for (address, event) in self.close_overdue(Instant::now()) {
                if let Some(reason) = event.rejection_reason() {
                    rejections.record(reason, Some(address));
                }
            }
        }
    }

    /// Closes the connections whose deadline has passed. Returns the address of each, and the event that did not
    /// happen. Also stores `now` as the time of the last sweep.
    fn close_overdue(&self, now: Instant) -> Vec<(IpAddr, AwaitedEvent)> {
        self.0.last_sweep_ms.store(millis(now.duration_since(self.0.started_at)), Ordering::Relaxed);
        let map = self.lock();
        let mut closed = Vec::new();
        for entry in map.by_id.values() {
            if let (Some(event), Some(task)) = (entry.monitor.overdue_event(now), &entry.task) {
                // Without a deadline, the connection is not closed a second time by a sweep before its task has ended.
                entry.monitor.clear_deadline();
                task.abort();
                closed.push((entry.address, event));
            }
        }
        closed
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionMap> {
        self.0.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionMap {
    /// Returns the number of connections that are counted for a cluster: those of the principals that are bound to it.
    fn count_in_cluster(&self, cluster: ClusterId) -> usize {
        self.by_id.values().filter(|entry| entry.cluster == Some(cluster)).count()
    }

    /// Removes a connection from the set of a principal's connections.
    fn remove_from_principal(&mut self, principal: &str, id: u64) {
        let Some(connections) = self.by_principal.get_mut(principal) else { return };
        connections.remove(&id);
        if connections.is_empty() {
            self.by_principal.remove(principal);
        }
    }
}

impl ConnectionGuard {
    /// Stores the task of a connection. Aborting the task closes the connection.
    pub(super) fn set_task(connections: &OpenConnections, id: u64, task: AbortHandle) {
        if let Some(entry) = connections.lock().by_id.get_mut(&id) {
            entry.task = Some(task);
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Counts the connection for a principal, as [`Peer::admit`] does.
    pub(super) fn admit_holder(&self, holder: &ShareHolder) -> AdmitOutcome {
        self.connections.admit_holder(self.id, holder)
    }

    /// Counts the connection as unauthenticated. If its address already has the maximum, closes the oldest
    /// unauthenticated connection that waits for its peer, or returns [`AdmitOutcome::Full`]. A connection that waits
    /// for a handler is not closed, because otherwise many hosts that join at once would not finish.
    pub(super) fn admit_unauthenticated(&self) -> AdmitOutcome {
        let max_unauthenticated = self.connections.0.max_unauthenticated_per_address;
        let mut map = self.connections.lock();
        let ConnectionMap { by_id, by_address, .. } = &mut *map;
        let by_id = &*by_id;
        let unauthenticated = &mut by_address.entry(self.counted_address).or_default().unauthenticated;
        let mut outcome = AdmitOutcome::Admitted;
        if unauthenticated.len() >= max_unauthenticated {
            // A connection that has presented a valid token since then no longer counts.
            unauthenticated.retain(|id| by_id.get(id).is_some_and(ConnectionEntry::is_unauthenticated));
        }
        if unauthenticated.len() >= max_unauthenticated {
            let Some((id, task)) = unauthenticated.iter().find_map(|id| Some((*id, by_id.get(id)?.closable_task()?))) else {
                return AdmitOutcome::Full;
            };
            task.abort();
            unauthenticated.remove(&id);
            outcome = AdmitOutcome::Replaced;
        }
        unauthenticated.insert(self.id);
        outcome
    }

    /// Creates, stores and returns the peer of the connection, which then no longer counts as an unfinished handshake
    /// of its address. The peer has a slot if the listener limits connections per principal.
    pub(super) fn set_peer(&self, address: SocketAddr, identity: Option<Identity>) -> Arc<Peer> {
        let peer = Peer::new(address, identity);
        let table = &self.connections.0;
        let peer = match table.max_per_principal {
            Some(_) => peer.with_slot(Box::new(PrincipalConnection { connections: Arc::downgrade(table), id: self.id })),
            None => peer,
        };
        let peer = Arc::new(peer);
        let mut map = self.connections.lock();
        let is_first_peer = map.by_id.get_mut(&self.id).is_some_and(|entry| entry.peer.replace(Arc::clone(&peer)).is_none());
        if let Some(address_connections) = map.by_address.get_mut(&self.counted_address) {
            address_connections.pending_handshakes -= usize::from(is_first_peer);
        }
        peer
    }
}

impl Drop for ConnectionGuard {
    /// Removes the connection from the table, and from the counts of its principal and its address.
    fn drop(&mut self) {
        let mut map = self.connections.lock();
        let Some(entry) = map.by_id.remove(&self.id) else { return };
        if let Some(principal) = &entry.principal {
            map.remove_from_principal(principal, self.id);
        }
        if let Some(address_connections) = map.by_address.get_mut(&self.counted_address) {
            address_connections.total -= 1;
            address_connections.pending_handshakes -= usize::from(entry.peer.is_none());
            address_connections.unauthenticated.remove(&self.id);
            if address_connections.total == 0 {
                map.by_address.remove(&self.counted_address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w10_09_open_connections_count_ipv6_network_as_one_address() {
        for (is_per_network, is_refused) in [(true, true), (false, false)] {
            let limits = ListenerLimits { max_connections_per_address: 1, is_per_network, ..ListenerLimits::default() };
            let connections = OpenConnections::new(&limits);
            let register = |address: &str| connections.register(address.parse().expect("an address"));
            let first = register("2001:db8::1");
            assert_eq!(register("2001:db8::ffff:2").is_err(), is_refused);
            assert!(register("2001:db8:0:1::1").is_ok() && register("192.0.2.1").is_ok(), "other networks are not limited");
            drop(first);
            assert!(register("2001:db8::3").is_ok(), "the closed connection no longer counts");
        }
    }
}
