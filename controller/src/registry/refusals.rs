//! Refusals after authentication, as entries of the audit.
//!
//! Whoever refuses only leaves a note here, which costs a look into a map: the entry is written by a task of its own, through
//! the store's shared commits, so that no answer waits for it and none fails with it. Ten a minute are written for each
//! principal and reason; the others are counted, and the next entry says how many.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stemma_core::object::Timestamp;
use stemma_wire::clock::Clock;
use stemma_wire::serve::Rejected;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{AuditRecord, Refusal, codec, key};
use crate::store::{Store, Transaction};

/// Entries a minute for one principal and reason.
const ENTRIES_A_MINUTE: u32 = 10;
const MINUTE: Duration = Duration::from_mins(1);
/// How many entries wait to be written; what comes when these do is counted as unsaid.
const MOST_WAITING: usize = 1024;
/// How many entries are written at once.
const AT_ONCE: usize = 64;
/// How many principals and reasons are remembered before those are let go that were quiet for a minute.
const MOST_REMEMBERED: usize = 10_000;

/// What was refused lately, and to whom.
pub struct Refusals {
    lately: Mutex<HashMap<(String, &'static str), Lately>>,
    waiting: mpsc::Sender<Refusal>,
    clock: Arc<dyn Clock>,
    lost: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Lately {
    minute_began: Instant,
    said: u32,
    unsaid: u64,
}

/// The entries that wait to be written.
pub struct Waiting(mpsc::Receiver<Refusal>);

impl Refusals {
    /// Hears of all refusals from now on. What is to be written comes out at the other end.
    pub fn watch(rejected: &Rejected, clock: Arc<dyn Clock>) -> Waiting {
        let (waiting, written) = mpsc::channel(MOST_WAITING);
        let this = Self { lately: Mutex::default(), waiting, clock, lost: AtomicU64::new(0) };
        rejected.watch(Box::new(move |reason, principal, from| this.note(reason, principal, from, Instant::now())));
        Waiting(written)
    }

    fn note(&self, reason: &'static str, principal: &str, from: SocketAddr, now: Instant) {
        let Some(unsaid) = self.unsaid(reason, principal, now) else { return };
        let refusal = Refusal {
            at: Timestamp(self.clock.unix_seconds().saturating_mul(1000)),
            principal: principal.to_owned(),
            address: from.to_string(),
            refused: reason.to_owned(),
            unsaid,
        };
        if self.waiting.try_send(refusal).is_err() {
            let lost = self.lost.fetch_add(1, Ordering::Relaxed);
            if lost.is_multiple_of(1000) {
                log::warn!(lost = lost + 1; "refusals come faster than they can be written to the audit");
            }
        }
    }

    /// How many went unsaid before when this one is to be said.
    fn unsaid(&self, reason: &'static str, principal: &str, now: Instant) -> Option<u64> {
        let mut lately = self.lately.lock().unwrap_or_else(PoisonError::into_inner);
        if lately.len() >= MOST_REMEMBERED {
            lately.retain(|_, one| now.duration_since(one.minute_began) < MINUTE || one.unsaid > 0);
        }
        let new = Lately { minute_began: now, said: 0, unsaid: 0 };
        let one = lately.entry((principal.to_owned(), reason)).or_insert(new);
        if now.duration_since(one.minute_began) >= MINUTE {
            (one.minute_began, one.said) = (now, 0);
        }
        if one.said >= ENTRIES_A_MINUTE {
            one.unsaid += 1;
            return None;
        }
        one.said += 1;
        Some(std::mem::take(&mut one.unsaid))
    }
}

impl Waiting {
    /// Writes entries for as long as it is polled, those that wait together in one shared commit. One that the store does not
    /// take is lost to the audit, and stands in the journal.
    pub async fn write(mut self, store: Arc<dyn Store>) {
        let mut some = Vec::with_capacity(AT_ONCE);
        while self.0.recv_many(&mut some, AT_ONCE).await > 0 {
            let mut writing = JoinSet::new();
            for refusal in some.drain(..) {
                let store = Arc::clone(&store);
                writing.spawn(async move {
                    let entry = codec::encode(&AuditRecord::Refusal(refusal));
                    store.commit(Transaction::new().put_at_revision(key::AUDIT, entry)).await
                });
            }
            while let Some(written) = writing.join_next().await {
                if let Ok(Err(error)) = written {
                    log::warn!(error:err = error; "a refusal could not be written to the audit");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use stemma_wire::clock::FixedClock;

    use super::*;

    #[test]
    fn ten_a_minute_are_written_for_each_principal_and_reason_and_then_a_count() {
        let rejected = Rejected::default();
        let Waiting(mut waiting) = Refusals::watch(&rejected, Arc::new(FixedClock(5)));
        let from: SocketAddr = "192.0.2.1:4711".parse().unwrap();
        for _ in 0..25 {
            rejected.tell("x", "node/a", from);
        }
        rejected.tell("x", "node/b", from);
        rejected.tell("y", "node/a", from);
        let mut said = Vec::new();
        while let Ok(refusal) = waiting.try_recv() {
            assert_eq!((refusal.at, refusal.address.as_str()), (Timestamp(5000), "192.0.2.1:4711"));
            said.push((refusal.principal, refusal.refused, refusal.unsaid));
        }
        assert_eq!(said.len(), 12);
        assert!(said.iter().all(|(.., unsaid)| *unsaid == 0));
        assert_eq!(said[10], ("node/b".to_owned(), "x".to_owned(), 0));
        assert_eq!(said[11], ("node/a".to_owned(), "y".to_owned(), 0));
    }

    #[test]
    fn the_count_is_said_with_the_next_one() {
        let (waiting, _) = mpsc::channel(1);
        let refusals =
            Refusals { lately: Mutex::default(), waiting, clock: Arc::new(FixedClock(0)), lost: AtomicU64::new(0) };
        let start = Instant::now();
        for n in 0..25 {
            assert_eq!(refusals.unsaid("x", "p", start).is_some(), n < 10);
        }
        assert_eq!(refusals.unsaid("x", "p", start + MINUTE), Some(15));
        assert_eq!(refusals.unsaid("x", "p", start + MINUTE), Some(0));
    }

    #[test]
    fn a_refusal_is_no_change_of_an_object() {
        let refusal =
            Refusal { at: Timestamp(1), principal: "p".into(), address: "a".into(), refused: "x".into(), unsaid: 3 };
        let event = AuditRecord::Refusal(refusal);
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(text, r#"{"at":1,"principal":"p","address":"a","refused":"x","unsaid":3}"#);
        assert_eq!(serde_json::from_str::<AuditRecord>(&text).unwrap(), event);
        assert!(serde_json::from_str::<crate::registry::AuditEvent>(&text).is_err());
    }
}
