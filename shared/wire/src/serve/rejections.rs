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

/// Maximum number of log entries per minute for one reason and address. Further rejections are only counted. Their
/// number is logged with the next entry, or after the end of the minute.
const MAX_ENTRIES_PER_MINUTE: u32 = 10;

/// Maximum number of addresses whose rejections are logged per minute, for one reason. Each address has its own limit
/// of entries, so a flood from one address does not hide the rejections of others.
const MAX_ADDRESSES_PER_MINUTE: usize = 16;

const MINUTE: Duration = Duration::from_mins(1);

/// Counts rejections by reason. All listeners share one counter, and handlers use it for requests that they refuse
/// themselves.
#[derive(Debug, Default)]
pub struct RejectionCounter {
    reasons: Mutex<BTreeMap<&'static str, RejectionTally>>,
    observer: OnceLock<ObserverCell>,
}

/// A refusal of a request or of a part of it, or the use of one identity by two hosts, with the reason and the peer.
/// The peer has a name in the audit, for example from its certificate or from a token, which may be invalid.
#[derive(Clone, Copy, Debug)]
pub struct RefusedPeer<'a> {
    /// The stable name of the reason, as in the metric `rejected_total{reason}`.
    pub reason: &'static str,
    /// The name of the peer in the audit, for example the name of a principal, or `node/UUID`.
    pub principal_name: &'a str,
    /// The UUID of the principal, if the code that refuses the request knows it. A name alone is ambiguous, because
    /// another principal can get the name later.
    pub uuid: Option<Uuid>,
    /// The identity in the peer's certificate. `None` without a certificate, or from [`RejectionCounter::notify`].
    pub identity: Option<&'a Identity>,
    /// The address of the peer.
    pub address: SocketAddr,
    /// The other address, if the identity was presented from two addresses.
    pub other_address: Option<SocketAddr>,
}

/// A function that is called for each refusal of a peer that has a name in the audit.
pub type RefusalObserver = Box<dyn Fn(&RefusedPeer<'_>) + Send + Sync>;

/// Contains the observer of refusals. The struct implements `Debug`, which a boxed function does not.
struct ObserverCell(RefusalObserver);

impl fmt::Debug for ObserverCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ObserverCell")
    }
}

/// The rejections for one reason: their total, and the log entries of the current minute.
#[derive(Clone, Debug)]
struct RejectionTally {
    /// The number of all rejections.
    total: u64,
    minute_start: Instant,
    /// The number of log entries in the current minute, by address.
    logged_by_address: HashMap<Option<IpAddr>, u32>,
    /// The number of rejections since the last log entry that were not logged.
    unlogged: u64,
}

impl RejectionTally {
    fn new(now: Instant) -> Self {
        Self { total: 0, minute_start: now, logged_by_address: HashMap::new(), unlogged: 0 }
    }

    /// Starts a new minute if the current minute is over. Each address may then log entries again.
    fn start_minute_if_over(&mut self, now: Instant) {
        if now.duration_since(self.minute_start) >= MINUTE {
            self.minute_start = now;
            self.logged_by_address.clear();
        }
    }
}

impl RejectionCounter {
    /// Counts a rejection. Logs it within the limits of ten entries per minute for one reason and address, and of 16
    /// addresses per minute for one reason.
    ///
    /// `reason` is a stable name in lower case with underscores. It becomes the label of the metric, so it must not
    /// contain anything from the request.
    pub fn record(&self, reason: &'static str, address: Option<IpAddr>) {
        let now = Instant::now();
        let Some(unlogged) = self.count(reason, address, now) else { return };
        match address {
            Some(address) => log::warn!(reason = reason, peer:% = address, unsaid = unlogged; "request refused"),
            None => log::warn!(reason = reason, unsaid = unlogged; "request refused"),
        }
    }

    /// Counts the rejection of a connection's peer. If the peer presented a certificate, also calls the observer.
    pub fn record_peer(&self, reason: &'static str, peer: &Peer) {
        self.record_with_other(reason, peer, None);
    }

    /// Counts the rejection of a peer whose identity was also presented from `other_address`. The rejection is counted
    /// once, and the observer gets both addresses.
    pub fn record_pair(&self, reason: &'static str, peer: &Peer, other_address: SocketAddr) {
        self.record_with_other(reason, peer, Some(other_address));
    }

    /// Counts a rejection. If the peer presented a certificate, also calls the observer with both addresses.
    fn record_with_other(&self, reason: &'static str, peer: &Peer, other_address: Option<SocketAddr>) {
        self.record(reason, Some(peer.address.ip()));
        if let Some(principal) = peer.principal_name() {
            let (address, identity) = (peer.address, peer.identity.as_ref());
            self.call_observer(&RefusedPeer { reason, principal_name: &principal, uuid: None, identity, address, other_address });
        }
    }

    /// Calls the observer for a rejection that another call has already counted. The observer gets the name and the
    /// uuid that the caller passes, and no identity, also if the peer presented a certificate.
    pub fn notify(&self, reason: &'static str, principal_name: &str, uuid: Option<Uuid>, address: SocketAddr) {
        self.call_observer(&RefusedPeer { reason, principal_name, uuid, identity: None, address, other_address: None });
    }

    /// Calls the observer, if there is one.
    fn call_observer(&self, refused: &RefusedPeer<'_>) {
        if let Some(ObserverCell(observer)) = self.observer.get() {
            observer(refused);
        }
    }

    /// Sets the observer, which is called for each refusal of a peer that has a name in the audit. Only the first call
    /// has an effect. The observer must not block.
    pub fn set_observer(&self, observer: RefusalObserver) {
        let _is_set = self.observer.set(ObserverCell(observer));
    }

    /// Returns the number of rejections since the start of the program, by reason.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.lock().iter().map(|(reason, tally)| (*reason, tally.total)).collect()
    }

    /// Logs once a minute, for each reason, how many rejections had no log entry. Never returns.
    pub async fn log_counts(&self) -> Infallible {
        let mut ticks = interval(MINUTE);
        loop {
            ticks.tick().await;
            for (reason, unlogged) in self.take_unlogged(Instant::now()) {
                log::warn!(reason = reason, unsaid = unlogged; "requests refused");
            }
        }
    }

    /// Returns the number of rejections that were not logged, by reason, and resets it to zero. Skips a reason whose
    /// current minute is not over, because the next entry may still log the number.
    fn take_unlogged(&self, now: Instant) -> Vec<(&'static str, u64)> {
        let mut reasons = self.lock();
        let tallies = reasons.iter_mut().filter(|(_, tally)| now.duration_since(tally.minute_start) >= MINUTE);
        tallies.map(|(reason, tally)| (*reason, std::mem::take(&mut tally.unlogged))).filter(|(_, count)| *count > 0).collect()
    }

    /// Counts a rejection. If the rejection must be logged, returns the number of rejections that were not logged since
    /// the last entry. Returns `None` if this minute's limit of addresses, or of entries for this address, is reached.
    fn count(&self, reason: &'static str, address: Option<IpAddr>, now: Instant) -> Option<u64> {
        let mut reasons = self.lock();
        let tally = reasons.entry(reason).or_insert_with(|| RejectionTally::new(now));
        tally.total += 1;
        tally.start_minute_if_over(now);
        let has_room = tally.logged_by_address.len() < MAX_ADDRESSES_PER_MINUTE || tally.logged_by_address.contains_key(&address);
        let logged = tally.logged_by_address.get(&address).copied().unwrap_or_default();
        if !has_room || logged >= MAX_ENTRIES_PER_MINUTE {
            tally.unlogged += 1;
            return None;
        }
        tally.logged_by_address.insert(address, logged + 1);
        Some(std::mem::take(&mut tally.unlogged))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, RejectionTally>> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten of 25 rejections are logged at once. `log_counts` logs the number of the other 15 when the minute is over.
    #[tokio::test(start_paused = true)]
    async fn rejection_counter_logs_suppressed_count_when_minute_ends() {
        let (counter, start) = (RejectionCounter::default(), Instant::now());
        for _ in 0..25 {
            counter.count("x", None, start);
        }
        let unlogged = || counter.lock().get("x").map(|tally| tally.unlogged);
        for (duration, expected) in [(MINUTE / 2, 15), (2 * MINUTE, 0)] {
            let _timed_out = tokio::time::timeout(duration, counter.log_counts()).await;
            assert_eq!(unlogged(), Some(expected), "{duration:?}");
        }
    }

    /// `count` returns `Some` for a rejection that is logged. The test checks the limits of entries per address and of
    /// addresses per minute, and the number of unlogged rejections.
    #[test]
    fn rejection_counter_logs_ten_per_minute_and_counts_all() {
        let counter = RejectionCounter::default();
        let (start, address) = (Instant::now(), |n: u8| Some(IpAddr::from([10, 0, 0, n])));
        let results: Vec<_> = (0..25).map(|_| counter.count("x", address(1), start)).collect();
        assert_eq!(results.iter().flatten().count(), 10);
        assert_eq!(counter.counts()["x"], 25);
        assert_eq!(counter.count("x", address(2), start), Some(15), "another address is logged in spite of the flood");
        for n in 3..=255 {
            counter.count("x", address(n), start);
        }
        assert_eq!(counter.count("x", address(200), start), None, "only 16 addresses are logged per minute");
        assert_eq!(counter.take_unlogged(start), [], "the minute is not over");
        let later = start + MINUTE;
        // Of the 253 addresses in the loop, 14 are logged and 239 are not. The call for address 200 is the 240th.
        assert_eq!(counter.take_unlogged(later), [("x", 240)], "the number is returned without a further rejection");
        assert_eq!(counter.take_unlogged(later), []);
        assert_eq!(counter.count("x", address(1), later), Some(0));
        assert_eq!(counter.count("y", address(1), start), Some(0), "another reason has limits of its own");
    }
}
