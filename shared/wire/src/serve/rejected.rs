//! `rejected_total{reason}`: what was refused, counted, and told in the journal at a measured rate.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Peer;

/// Journal entries a minute for one reason; what comes beyond is counted and said with the next entry.
const ENTRIES_A_MINUTE: u32 = 10;

/// Counts refusals by reason. One is shared by all listeners, and by the handlers for what they refuse themselves.
#[derive(Debug, Default)]
pub struct Rejected {
    reasons: Mutex<BTreeMap<&'static str, Tally>>,
    witness: OnceLock<Watcher>,
}

/// Hears of each refusal of somebody who has shown who they are: the reason, the principal, and from where.
pub type Witness = Box<dyn Fn(&'static str, &str, SocketAddr) + Send + Sync>;

struct Watcher(Witness);

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

#[derive(Clone, Copy, Debug)]
struct Tally {
    total: u64,
    minute_began: Instant,
    said: u32,
    unsaid: u64,
}

impl Rejected {
    /// Counts one refusal, and says so in the journal: ten times a minute for a reason, then as a number.
    ///
    /// `reason` is a stable name in lower case with underscores; it becomes the metric's label, so it never has
    /// anything of the request in it.
    pub fn refuse(&self, reason: &'static str, from: Option<IpAddr>) {
        let now = Instant::now();
        let Some(unsaid) = self.tally(reason, now) else { return };
        match from {
            Some(from) => log::warn!(reason = reason, peer:% = from, unsaid = unsaid; "request refused"),
            None => log::warn!(reason = reason, unsaid = unsaid; "request refused"),
        }
    }

    /// The same for whoever is at the other end of a connection: who has shown who they are is told of beside.
    pub fn refuse_peer(&self, reason: &'static str, peer: &Peer) {
        self.refuse(reason, Some(peer.address.ip()));
        if let Some(principal) = peer.principal() {
            self.tell(reason, &principal, peer.address);
        }
    }

    /// Tells of a refusal that is counted elsewhere, of somebody who has shown by other means who they are.
    pub fn tell(&self, reason: &'static str, principal: &str, from: SocketAddr) {
        if let Some(Watcher(witness)) = self.witness.get() {
            witness(reason, principal, from);
        }
    }

    /// Sets who hears of refusals after authentication. The first one stays; it must not wait for anything.
    pub fn watch(&self, witness: Witness) {
        let _there_already = self.witness.set(Watcher(witness));
    }

    /// The counts so far, by reason.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.lock().iter().map(|(reason, tally)| (*reason, tally.total)).collect()
    }

    /// The count of one reason so far.
    pub fn count(&self, reason: &str) -> u64 {
        self.lock().get(reason).map_or(0, |tally| tally.total)
    }

    /// Counts, and answers how many went unsaid before when this one is to be said.
    fn tally(&self, reason: &'static str, now: Instant) -> Option<u64> {
        let mut reasons = self.lock();
        let tally = reasons.entry(reason).or_insert(Tally { total: 0, minute_began: now, said: 0, unsaid: 0 });
        tally.total += 1;
        if now.duration_since(tally.minute_began) >= Duration::from_mins(1) {
            (tally.minute_began, tally.said) = (now, 0);
        }
        if tally.said >= ENTRIES_A_MINUTE {
            tally.unsaid += 1;
            return None;
        }
        tally.said += 1;
        Some(std::mem::take(&mut tally.unsaid))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Tally>> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_a_minute_are_said_and_all_are_counted() {
        let rejected = Rejected::default();
        let start = Instant::now();
        let said: Vec<_> = (0..25).map(|_| rejected.tally("x", start)).collect();
        assert_eq!(said.iter().flatten().count(), 10);
        assert_eq!(rejected.count("x"), 25);
        assert_eq!(
            rejected.tally("x", start + Duration::from_mins(1)),
            Some(15),
            "the next one tells how many were not"
        );
        assert_eq!(rejected.tally("y", start), Some(0), "another reason has its own measure");
    }
}
