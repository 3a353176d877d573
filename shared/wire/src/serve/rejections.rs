//! Counts rejections for the metric `rejected_total{reason}`, and logs them at a limited rate.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, interval};
use uuid::Uuid;

use super::Peer;
use crate::tls::Identity;

/// Maximum journal entries per minute for one reason and address. Further rejections are counted, and their number is
/// logged with the next entry or at the end of the minute.
const MAX_ENTRIES_PER_MINUTE: u32 = 10;

/// Maximum number of addresses with entries of their own per minute and reason. A flood from one address therefore
/// hides no other.
const MAX_ADDRESSES_PER_MINUTE: usize = 16;

const MINUTE: Duration = Duration::from_mins(1);

/// Counts rejections by reason. All listeners share one counter, and handlers use it for requests that they refuse
/// themselves.
#[derive(Debug, Default)]
pub struct RejectionCounter {
    reasons: Mutex<BTreeMap<&'static str, RejectionTally>>,
    observer: OnceLock<ObserverCell>,
}

/// A refusal of an authenticated peer.
#[derive(Clone, Copy, Debug)]
pub struct RefusedPeer<'a> {
    /// The stable name of the reason.
    pub reason: &'static str,
    /// The name of the principal.
    pub principal_name: &'a str,
    /// The UUID of the principal, if it is known. A name alone is ambiguous, because it can be reused.
    pub uuid: Option<Uuid>,
    /// The identity in the certificate, if the peer presented one.
    pub identity: Option<&'a Identity>,
    /// The address of the peer.
    pub from: SocketAddr,
    /// The second address, if the identity was presented from two addresses.
    pub other_address: Option<SocketAddr>,
}

/// Called for each refusal of an authenticated peer.
pub type RefusalObserver = Box<dyn Fn(&RefusedPeer<'_>) + Send + Sync>;

/// The observer, with an implementation of `Debug`.
struct ObserverCell(RefusalObserver);

impl fmt::Debug for ObserverCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

/// The rejections for one reason: their total, and the log entries of the current minute.
#[derive(Clone, Debug)]
struct RejectionTally {
    total: u64,
    minute_start: Instant,
    /// The number of logged rejections by address.
    logged_by_address: HashMap<Option<IpAddr>, u32>,
    unlogged: u64,
}

impl RejectionTally {
    fn new(now: Instant) -> Self {
        Self { total: 0, minute_start: now, logged_by_address: HashMap::new(), unlogged: 0 }
    }

    /// Starts a new minute if the current one is over.
    fn start_minute_if_over(&mut self, now: Instant) {
        if now.duration_since(self.minute_start) >= MINUTE {
            self.minute_start = now;
            self.logged_by_address.clear();
        }
    }
}

impl RejectionCounter {
    /// Counts one rejection and logs it: at most ten entries per minute for one reason and address, then only a number.
    ///
    /// `reason` is a stable name in lower case with underscores. It becomes the label of the metric, so it must not
    /// contain anything from the request.
    pub fn record(&self, reason: &'static str, from: Option<IpAddr>) {
        let now = Instant::now();
        let Some(unsaid) = self.count(reason, from, now) else { return };
        match from {
            Some(from) => log::warn!(reason = reason, peer:% = from, unsaid = unsaid; "request refused"),
            None => log::warn!(reason = reason, unsaid = unsaid; "request refused"),
        }
    }

    /// Counts a rejection of the peer of a connection. If the peer presented a certificate, the observer is called too.
    pub fn record_peer(&self, reason: &'static str, peer: &Peer) {
        self.record_with_other(reason, peer, None);
    }

    /// Counts a rejection of a peer whose identity was presented from another address too. It is counted and reported
    /// once, with both addresses.
    pub fn record_pair(&self, reason: &'static str, peer: &Peer, other_address: SocketAddr) {
        self.record_with_other(reason, peer, Some(other_address));
    }

    fn record_with_other(&self, reason: &'static str, peer: &Peer, other_address: Option<SocketAddr>) {
        self.record(reason, Some(peer.address.ip()));
        if let Some(principal) = peer.principal_name() {
            let (from, identity) = (peer.address, peer.identity.as_ref());
            self.call_observer(&RefusedPeer { reason, principal_name: &principal, uuid: None, identity, from, other_address });
        }
    }

    /// Calls the observer for a rejection that is counted elsewhere, of a peer that did not authenticate by
    /// certificate.
    pub fn notify(&self, reason: &'static str, principal: &str, uuid: Option<Uuid>, from: SocketAddr) {
        self.call_observer(&RefusedPeer { reason, principal_name: principal, uuid, identity: None, from, other_address: None });
    }

    fn call_observer(&self, refused: &RefusedPeer<'_>) {
        if let Some(ObserverCell(observer)) = self.observer.get() {
            observer(refused);
        }
    }

    /// Sets the observer of refusals of authenticated peers. Only the first call has an effect. The observer must not
    /// block.
    pub fn set_observer(&self, observer: RefusalObserver) {
        let _is_set = self.observer.set(ObserverCell(observer));
    }

    /// Returns the counts so far, by reason.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.lock().iter().map(|(reason, tally)| (*reason, tally.total)).collect()
    }

    /// Logs once a minute how many rejections had no journal entry. Never returns.
    pub async fn log_counts(&self) -> Infallible {
        let mut ticks = interval(MINUTE);
        loop {
            ticks.tick().await;
            for (reason, unsaid) in self.take_unlogged(Instant::now()) {
                log::warn!(reason = reason, unsaid = unsaid; "requests refused");
            }
        }
    }

    /// Takes the numbers of rejections without a journal entry, by reason, from minutes that are over.
    fn take_unlogged(&self, now: Instant) -> Vec<(&'static str, u64)> {
        let mut reasons = self.lock();
        let finished = reasons.iter_mut().filter(|(_, tally)| now.duration_since(tally.minute_start) >= MINUTE);
        finished.map(|(reason, tally)| (*reason, std::mem::take(&mut tally.unlogged))).filter(|(_, unsaid)| *unsaid > 0).collect()
    }

    /// Counts a rejection. If it is to be logged, returns how many rejections were not logged since the last entry.
    fn count(&self, reason: &'static str, from: Option<IpAddr>, now: Instant) -> Option<u64> {
        let mut reasons = self.lock();
        let tally = reasons.entry(reason).or_insert_with(|| RejectionTally::new(now));
        tally.total += 1;
        tally.start_minute_if_over(now);
        let has_room = tally.logged_by_address.len() < MAX_ADDRESSES_PER_MINUTE || tally.logged_by_address.contains_key(&from);
        let logged = tally.logged_by_address.get(&from).copied().unwrap_or_default();
        if !has_room || logged >= MAX_ENTRIES_PER_MINUTE {
            tally.unlogged += 1;
            return None;
        }
        tally.logged_by_address.insert(from, logged + 1);
        Some(std::mem::take(&mut tally.unlogged))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, RejectionTally>> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rejection_counter_logs_suppressed_count_when_minute_ends() {
        let (rejected, start) = (RejectionCounter::default(), Instant::now());
        for _ in 0..25 {
            rejected.count("x", None, start);
        }
        let unsaid = || rejected.lock().get("x").map(|tally| tally.unlogged);
        for (after, left) in [(MINUTE / 2, 15), (2 * MINUTE, 0)] {
            let _goes_on = tokio::time::timeout(after, rejected.log_counts()).await;
            assert_eq!(unsaid(), Some(left), "{after:?}");
        }
    }

    #[test]
    fn rejection_counter_logs_ten_per_minute_and_counts_all() {
        let rejected = RejectionCounter::default();
        let (start, from) = (Instant::now(), |n: u8| Some(IpAddr::from([10, 0, 0, n])));
        let said: Vec<_> = (0..25).map(|_| rejected.count("x", from(1), start)).collect();
        assert_eq!(said.iter().flatten().count(), 10);
        assert_eq!(rejected.counts()["x"], 25);
        assert_eq!(rejected.count("x", from(2), start), Some(15), "a flood hides no other address");
        for n in 3..=255 {
            rejected.count("x", from(n), start);
        }
        assert_eq!(rejected.count("x", from(200), start), None, "there is an end to addresses too");
        assert_eq!(rejected.take_unlogged(start), [], "the minute is not over");
        let later = start + MINUTE;
        assert_eq!(rejected.take_unlogged(later), [("x", 240)], "how many were not said is said without another refusal");
        assert_eq!(rejected.take_unlogged(later), []);
        assert_eq!(rejected.count("x", from(1), later), Some(0));
        assert_eq!(rejected.count("y", from(1), start), Some(0), "another reason has its own measure");
    }
}
