//! `rejected_total{reason}`: what was refused, counted, and told in the journal at a measured rate.

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

/// Journal entries a minute for one reason and address; what comes beyond is counted, and said with the next entry or when the
/// minute is over.
const ENTRIES_A_MINUTE: u32 = 10;

/// How many addresses have entries of their own in one minute, for one reason: a flood from one hides no other.
const ADDRESSES_A_MINUTE: usize = 16;

const MINUTE: Duration = Duration::from_mins(1);

/// Counts refusals by reason. One is shared by all listeners, and by the handlers for what they refuse themselves.
#[derive(Debug, Default)]
pub struct Rejected {
    reasons: Mutex<BTreeMap<&'static str, Tally>>,
    witness: OnceLock<Watcher>,
}

/// A refusal of somebody who has shown who they are.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    /// The reason.
    pub reason: &'static str,
    /// Who.
    pub principal: &'a str,
    /// Its uuid, where who tells of it knows one: a name is given anew.
    pub uuid: Option<Uuid>,
    /// The certificate that names it, where it was shown.
    pub identity: Option<&'a Identity>,
    /// From where.
    pub from: SocketAddr,
    /// The other address, where two show the same.
    pub other: Option<SocketAddr>,
}

/// Hears of each refusal of somebody who has shown who they are.
pub type Witness = Box<dyn Fn(&Refused<'_>) + Send + Sync>;

struct Watcher(Witness);

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

#[derive(Clone, Debug)]
struct Tally {
    total: u64,
    minute_began: Instant,
    /// By address.
    said: HashMap<Option<IpAddr>, u32>,
    unsaid: u64,
}

impl Tally {
    fn new(now: Instant) -> Self {
        Self { total: 0, minute_began: now, said: HashMap::new(), unsaid: 0 }
    }

    /// Begins another minute where this one is over.
    fn turn(&mut self, now: Instant) {
        if now.duration_since(self.minute_began) >= MINUTE {
            self.minute_began = now;
            self.said.clear();
        }
    }
}

impl Rejected {
    /// Counts one refusal, and says so in the journal: ten times a minute for a reason and an address, then as a number.
    ///
    /// `reason` is a stable name in lower case with underscores; it becomes the metric's label, so it never has
    /// anything of the request in it.
    pub fn refuse(&self, reason: &'static str, from: Option<IpAddr>) {
        let now = Instant::now();
        let Some(unsaid) = self.tally(reason, from, now) else { return };
        match from {
            Some(from) => log::warn!(reason = reason, peer:% = from, unsaid = unsaid; "request refused"),
            None => log::warn!(reason = reason, unsaid = unsaid; "request refused"),
        }
    }

    /// The same for whoever is at the other end of a connection: who has shown who they are is told of beside.
    pub fn refuse_peer(&self, reason: &'static str, peer: &Peer) {
        self.refuse_one_of(reason, peer, None);
    }

    /// The same where another shows the same identity from another address: it is counted and told of once, with both addresses.
    pub fn refuse_pair(&self, reason: &'static str, peer: &Peer, other: SocketAddr) {
        self.refuse_one_of(reason, peer, Some(other));
    }

    fn refuse_one_of(&self, reason: &'static str, peer: &Peer, other: Option<SocketAddr>) {
        self.refuse(reason, Some(peer.address.ip()));
        if let Some(principal) = peer.principal() {
            let (from, identity) = (peer.address, peer.identity.as_ref());
            self.witnessed(&Refused { reason, principal: &principal, uuid: None, identity, from, other });
        }
    }

    /// Tells of a refusal that is counted elsewhere, of somebody who has shown by other means who they are.
    pub fn tell(&self, reason: &'static str, principal: &str, uuid: Option<Uuid>, from: SocketAddr) {
        self.witnessed(&Refused { reason, principal, uuid, identity: None, from, other: None });
    }

    fn witnessed(&self, refused: &Refused<'_>) {
        if let Some(Watcher(witness)) = self.witness.get() {
            witness(refused);
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

    /// Says each minute, for as long as it is polled, how many had no entry.
    pub async fn say_counts(&self) -> Infallible {
        let mut ticks = interval(MINUTE);
        loop {
            ticks.tick().await;
            for (reason, unsaid) in self.due(Instant::now()) {
                log::warn!(reason = reason, unsaid = unsaid; "requests refused");
            }
        }
    }

    /// Those that had no entry in a minute that is over, by reason.
    fn due(&self, now: Instant) -> Vec<(&'static str, u64)> {
        let mut reasons = self.lock();
        let over = reasons.iter_mut().filter(|(_, tally)| now.duration_since(tally.minute_began) >= MINUTE);
        over.map(|(reason, tally)| (*reason, std::mem::take(&mut tally.unsaid)))
            .filter(|(_, unsaid)| *unsaid > 0)
            .collect()
    }

    /// Counts, and answers how many went unsaid before when this one is to be said.
    fn tally(&self, reason: &'static str, from: Option<IpAddr>, now: Instant) -> Option<u64> {
        let mut reasons = self.lock();
        let tally = reasons.entry(reason).or_insert_with(|| Tally::new(now));
        tally.total += 1;
        tally.turn(now);
        let is_known = tally.said.len() < ADDRESSES_A_MINUTE || tally.said.contains_key(&from);
        let said = tally.said.get(&from).copied().unwrap_or_default();
        if !is_known || said >= ENTRIES_A_MINUTE {
            tally.unsaid += 1;
            return None;
        }
        tally.said.insert(from, said + 1);
        Some(std::mem::take(&mut tally.unsaid))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Tally>> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_went_unsaid_is_said_when_its_minute_is_over() {
        let (rejected, start) = (Rejected::default(), Instant::now());
        for _ in 0..25 {
            rejected.tally("x", None, start);
        }
        let unsaid = || rejected.lock().get("x").map(|tally| tally.unsaid);
        for (after, left) in [(MINUTE / 2, 15), (2 * MINUTE, 0)] {
            let _goes_on = tokio::time::timeout(after, rejected.say_counts()).await;
            assert_eq!(unsaid(), Some(left), "{after:?}");
        }
    }

    #[test]
    fn ten_a_minute_are_said_and_all_are_counted() {
        let rejected = Rejected::default();
        let (start, from) = (Instant::now(), |n: u8| Some(IpAddr::from([10, 0, 0, n])));
        let said: Vec<_> = (0..25).map(|_| rejected.tally("x", from(1), start)).collect();
        assert_eq!(said.iter().flatten().count(), 10);
        assert_eq!(rejected.counts()["x"], 25);
        assert_eq!(rejected.tally("x", from(2), start), Some(15), "a flood hides no other address");
        for n in 3..=255 {
            rejected.tally("x", from(n), start);
        }
        assert_eq!(rejected.tally("x", from(200), start), None, "there is an end to addresses too");
        assert_eq!(rejected.due(start), [], "the minute is not over");
        let later = start + MINUTE;
        assert_eq!(rejected.due(later), [("x", 240)], "how many were not said is said without another refusal");
        assert_eq!(rejected.due(later), []);
        assert_eq!(rejected.tally("x", from(1), later), Some(0));
        assert_eq!(rejected.tally("y", from(1), start), Some(0), "another reason has its own measure");
    }
}
