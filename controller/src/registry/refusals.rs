//! Refusals after authentication, as entries of the audit.
//!
//! A refusal only leaves a note here, which costs one look into a map. A separate task writes the entry through the store's shared
//! commits, so no answer waits for the entry and none fails with it. Ten entries a minute are written for each principal and reason.
//! The others are counted, and the next entry says how many, at the latest when the minute is over. Entries are kept for 90 days.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stemma_core::object::Timestamp;
use stemma_wire::clock::Clock;
use stemma_wire::serve::Rejected;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::records::audit::{AuditRecord, Refusal};
use crate::records::{codec, key};
use crate::store::{KeyRange, Op, Query, Store, StoreError, Transaction};

/// Entries a minute for one principal and reason.
const ENTRIES_A_MINUTE: u32 = 10;
const MINUTE: Duration = Duration::from_mins(1);
/// How many entries may wait to be written. Further ones are counted as unsaid.
const MOST_WAITING: usize = 1024;
/// How many entries are written at once.
const AT_ONCE: usize = 64;
/// How many principals and reasons are told apart in one minute. Further ones share one name.
const MOST_REMEMBERED: usize = 10_000;
/// The principal of those that are not told apart.
const OTHERS: &str = "others";
/// For how long entries are kept.
const KEPT_MS: u64 = 90 * 24 * 3600 * 1000;
/// How many entries of the audit one look at old ones reads; there is one a minute.
const PAGE: usize = 1000;
/// How many entries one commit drops.
const DROPPED_AT_ONCE: usize = 50;

/// Counts refusals, and sends those that get an entry to the writer.
struct Refusals {
    tallies: Arc<Tallies>,
    waiting: mpsc::Sender<Refusal>,
    clock: Arc<dyn Clock>,
    lost: AtomicU64,
}

/// What was refused lately, and to whom.
#[derive(Default)]
struct Tallies(Mutex<HashMap<(String, &'static str), Lately>>);

#[derive(Clone, Debug)]
struct Lately {
    minute_began: Instant,
    said: u32,
    /// How many have no entry, and the last of them.
    unsaid: u64,
    last: Option<(Timestamp, SocketAddr)>,
}

/// The entries that wait to be written.
pub struct Waiting {
    entries: mpsc::Receiver<Refusal>,
    tallies: Arc<Tallies>,
    clock: Arc<dyn Clock>,
}

/// Hears of all refusals from now on. What is to be written comes out at the other end.
pub fn watch(rejected: &Rejected, clock: Arc<dyn Clock>) -> Waiting {
    let (waiting, entries) = mpsc::channel(MOST_WAITING);
    let tallies = Arc::new(Tallies::default());
    let this = Refusals { tallies: Arc::clone(&tallies), waiting, clock: Arc::clone(&clock), lost: AtomicU64::new(0) };
    rejected.watch(Box::new(move |reason, principal, from| this.note(reason, principal, from, Instant::now())));
    Waiting { entries, tallies, clock }
}

impl Refusals {
    fn note(&self, reason: &'static str, principal: &str, from: SocketAddr, now: Instant) {
        let at = Timestamp(self.clock.unix_seconds().saturating_mul(1000));
        let Some((principal, unsaid)) = self.tallies.count(reason, principal, (at, from), now) else { return };
        let refusal = Refusal { at, principal, address: from.to_string(), refused: reason.to_owned(), unsaid };
        let Err(not_sent) = self.waiting.try_send(refusal) else { return };
        self.tallies.give_back(reason, not_sent.into_inner(), (at, from), now);
        let full = self.lost.fetch_add(1, Ordering::Relaxed);
        if full.is_multiple_of(1000) {
            log::warn!(late = full + 1; "refusals come faster than they can be written to the audit, and are counted");
        }
    }
}

impl Tallies {
    /// Counts one. When it is to be said: under which name, and how many went unsaid before it.
    fn count(
        &self,
        reason: &'static str,
        principal: &str,
        this: (Timestamp, SocketAddr),
        now: Instant,
    ) -> Option<(String, u64)> {
        let mut lately = self.lock();
        let mut key = (principal.to_owned(), reason);
        if lately.len() >= MOST_REMEMBERED && !lately.contains_key(&key) {
            OTHERS.clone_into(&mut key.0);
        }
        let one = lately.entry(key.clone()).or_insert_with(|| Lately::new(now));
        if now.duration_since(one.minute_began) >= MINUTE {
            (one.minute_began, one.said) = (now, 0);
        }
        if one.said >= ENTRIES_A_MINUTE {
            one.leave(1, this);
            return None;
        }
        one.said += 1;
        Some((key.0, std::mem::take(&mut one.unsaid)))
    }

    /// An entry that found no place is unsaid, as are those that it told of.
    fn give_back(&self, reason: &'static str, refusal: Refusal, this: (Timestamp, SocketAddr), now: Instant) {
        let mut lately = self.lock();
        let one = lately.entry((refusal.principal, reason)).or_insert_with(|| Lately::new(now));
        one.leave(refusal.unsaid.saturating_add(1), this);
    }

    /// What is still unsaid of minutes that are over, each with the last one in its own words. Those who were quiet since are
    /// remembered no longer.
    fn due(&self, now: Instant) -> Vec<Refusal> {
        let mut due = Vec::new();
        self.lock().retain(|(principal, reason), one| {
            if now.duration_since(one.minute_began) < MINUTE {
                return true;
            }
            if let Some((at, from)) = one.last.take().filter(|_| one.unsaid > 0) {
                due.push(Refusal {
                    at,
                    principal: principal.clone(),
                    address: from.to_string(),
                    refused: (*reason).to_owned(),
                    unsaid: one.unsaid - 1,
                });
            }
            false
        });
        due
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, &'static str), Lately>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lately {
    fn new(now: Instant) -> Self {
        Self { minute_began: now, said: 0, unsaid: 0, last: None }
    }

    fn leave(&mut self, count: u64, this: (Timestamp, SocketAddr)) {
        self.unsaid = self.unsaid.saturating_add(count);
        self.last = Some(this);
    }
}

impl Waiting {
    /// Writes entries for as long as it is polled, those that wait together in one shared commit, and each minute the counts of what
    /// had none. One that the store does not take is lost to the audit, and stands in the journal. Drops those that are
    /// older than they are kept.
    pub async fn write(mut self, store: Arc<dyn Store>) {
        let mut some = Vec::with_capacity(AT_ONCE);
        let mut ticks = interval(MINUTE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut old = Old(KeyRange::prefix(key::AUDIT));
        loop {
            tokio::select! {
                count = self.entries.recv_many(&mut some, AT_ONCE) => {
                    if count == 0 {
                        return;
                    }
                    write_all(&store, some.drain(..)).await;
                }
                _ = ticks.tick() => {
                    let mut due = self.tallies.due(Instant::now()).into_iter().peekable();
                    while due.peek().is_some() {
                        write_all(&store, due.by_ref().take(AT_ONCE)).await;
                    }
                    let now = Timestamp(self.clock.unix_seconds().saturating_mul(1000));
                    if let Err(error) = old.drop_some(store.as_ref(), now).await {
                        log::warn!(error:err = error; "old refusals could not be dropped from the audit");
                    }
                }
            }
        }
    }
}

async fn write_all(store: &Arc<dyn Store>, entries: impl Iterator<Item = Refusal>) {
    let mut writing = JoinSet::new();
    for refusal in entries {
        let store = Arc::clone(store);
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

/// The part of the audit that was not looked through for old refusals yet. It is in the order of time, and what commits did stays in it:
/// so a look goes on where the last one ended.
struct Old(KeyRange);

impl Old {
    /// Drops what is over among the next entries; gives how many.
    async fn drop_some(&mut self, store: &dyn Store, now: Timestamp) -> Result<usize, StoreError> {
        let page = store.snapshot().await?.list(&Query::range(self.0.clone()).limit(PAGE)).await?;
        let mut over = Vec::new();
        let mut looked_at = None;
        for entry in page.entries {
            let at = match codec::decode(&entry.value) {
                Ok(AuditRecord::Refusal(refusal)) => Some((refusal.at, true)),
                Ok(AuditRecord::Commit(event)) => Some((event.at, false)),
                Err(_) => None,
            };
            if at.is_some_and(|(at, _)| at.0.saturating_add(KEPT_MS) > now.0) {
                break;
            }
            looked_at = Some(entry.key.clone());
            if at.is_some_and(|(_, is_refusal)| is_refusal) {
                over.push(entry.key);
            }
        }
        for some in over.chunks(DROPPED_AT_ONCE) {
            let ops = some.iter().map(|key| Op::Delete { key: key.clone() }).collect();
            store.commit(Transaction { preconditions: Vec::new(), ops }).await?;
        }
        if let Some(last) = looked_at {
            self.0 = self.0.clone().after(&last);
        }
        Ok(over.len())
    }
}

#[cfg(test)]
mod tests {
    use stemma_wire::clock::FixedClock;

    use super::*;
    use crate::records::audit::AuditEvent;
    use crate::store::{CreateOptions, Epoch, RedbOptions, RedbStore, Revision};

    fn from() -> SocketAddr {
        "192.0.2.1:4711".parse().unwrap()
    }

    #[test]
    fn ten_a_minute_are_written_for_each_principal_and_reason_and_then_a_count() {
        let rejected = Rejected::default();
        let Waiting { mut entries, .. } = watch(&rejected, Arc::new(FixedClock(5)));
        for _ in 0..25 {
            rejected.tell("x", "node/a", from());
        }
        rejected.tell("x", "node/b", from());
        rejected.tell("y", "node/a", from());
        let mut said = Vec::new();
        while let Ok(refusal) = entries.try_recv() {
            assert_eq!((refusal.at, refusal.address.as_str()), (Timestamp(5000), "192.0.2.1:4711"));
            said.push((refusal.principal, refusal.refused, refusal.unsaid));
        }
        assert_eq!(said.len(), 12);
        assert!(said.iter().all(|(.., unsaid)| *unsaid == 0));
        assert_eq!(said[10], ("node/b".to_owned(), "x".to_owned(), 0));
        assert_eq!(said[11], ("node/a".to_owned(), "y".to_owned(), 0));
    }

    #[test]
    fn the_count_is_said_with_the_next_one_or_when_the_minute_is_over() {
        let (tallies, start) = (Tallies::default(), Instant::now());
        let count = |seconds: u64, now| tallies.count("x", "p", (Timestamp(seconds), from()), now);
        for n in 0..25 {
            assert_eq!(count(n, start).is_some(), n < 10);
        }
        assert_eq!(count(60, start + MINUTE), Some(("p".to_owned(), 15)));
        assert_eq!(count(60, start + MINUTE), Some(("p".to_owned(), 0)));
        for n in 61..80 {
            count(n, start + MINUTE);
        }
        assert_eq!(tallies.due(start + MINUTE), [], "a minute that goes on");
        let due = tallies.due(start + 2 * MINUTE);
        let last = (Timestamp(79), "192.0.2.1:4711".to_owned(), 10);
        assert_eq!(due.into_iter().map(|due| (due.at, due.address, due.unsaid)).collect::<Vec<_>>(), [last]);
        assert_eq!((tallies.due(start + 3 * MINUTE), tallies.lock().len()), (vec![], 0), "once, and then forgotten");
    }

    #[test]
    fn what_finds_no_place_is_counted() {
        let (waiting, mut entries) = mpsc::channel(1);
        let (tallies, clock) = (Arc::new(Tallies::default()), Arc::new(FixedClock(0)));
        let refusals = Refusals { tallies: Arc::clone(&tallies), waiting, clock, lost: AtomicU64::new(0) };
        let start = Instant::now();
        for _ in 0..25 {
            refusals.note("x", "p", from(), start);
        }
        assert_eq!(entries.try_recv().unwrap().unsaid, 0);
        refusals.note("x", "p", from(), start + MINUTE);
        assert_eq!(entries.try_recv().unwrap().unsaid, 24, "of 26, this one and another have entries");
        for _ in 0..3 {
            refusals.note("x", "p", from(), start + MINUTE);
        }
        assert_eq!(tallies.due(start + 2 * MINUTE)[0].unsaid, 1, "of two without an entry one is told as itself");
    }

    #[test]
    fn more_than_are_told_apart_are_counted_together_and_cost_no_look_at_all_of_them() {
        let (tallies, now) = (Tallies::default(), Instant::now());
        let all = MOST_REMEMBERED + 25;
        let said = (0..all).filter_map(|n| tallies.count("x", &format!("node/{n}"), (Timestamp(0), from()), now));
        assert_eq!(said.filter(|(principal, _)| principal == OTHERS).count(), 10);
        assert_eq!(tallies.lock().len(), MOST_REMEMBERED + 1);
        let due = tallies.due(now + MINUTE);
        assert_eq!((due.len(), due[0].principal.as_str(), due[0].unsaid), (1, OTHERS, 14));
        assert_eq!(tallies.lock().len(), 0);
    }

    fn store(directory: &tempfile::TempDir) -> Arc<dyn Store> {
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: bytes::Bytes::new() };
        let path = directory.path().join("store.redb");
        Arc::new(RedbStore::create(&path, &create, RedbOptions::default()).unwrap())
    }

    async fn audit(store: &dyn Store) -> Vec<AuditRecord> {
        let list = store.snapshot().await.unwrap().list(&Query::prefix(key::AUDIT)).await.unwrap();
        list.entries.iter().map(|entry| codec::decode(&entry.value).unwrap()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_went_unsaid_is_written_when_its_minute_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let (rejected, store) = (Rejected::default(), store(&directory));
        let writing = tokio::spawn(watch(&rejected, Arc::new(FixedClock(5))).write(Arc::clone(&store)));
        for _ in 0..25 {
            rejected.tell("x", "node/a", from());
        }
        for _ in 0..1000 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if audit(store.as_ref()).await.len() == 11 {
                break;
            }
        }
        let unsaid = |record: &AuditRecord| match record {
            AuditRecord::Refusal(refusal) => refusal.unsaid,
            AuditRecord::Commit(_) => panic!("nothing else is written"),
        };
        assert_eq!(
            audit(store.as_ref()).await.iter().map(unsaid).collect::<Vec<_>>(),
            [[0; 10].as_slice(), &[14]].concat()
        );
        writing.abort();
    }

    #[tokio::test]
    async fn refusals_go_after_ninety_days_and_what_commits_did_stays() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(&directory);
        let day = |n: u64| Timestamp(n * 24 * 3600 * 1000);
        let refusal = |n: u64| {
            let (principal, address, refused) = ("p".to_owned(), String::new(), "x".to_owned());
            AuditRecord::Refusal(Refusal { at: day(n), principal, address, refused, unsaid: 0 })
        };
        let commit = |n: u64| {
            AuditRecord::Commit(AuditEvent {
                at: day(n),
                principal: "p".to_owned(),
                manager: "m".to_owned(),
                address: String::new(),
                reason: None,
                request_id: String::new(),
                objects: vec![],
            })
        };
        let put = |record| Transaction::new().put_at_revision(key::AUDIT, codec::encode(&record));
        let mut first = JoinSet::new();
        for _ in 0..1200 {
            let (store, entry) = (Arc::clone(&store), put(refusal(1)));
            first.spawn(async move { store.commit(entry).await.unwrap() });
        }
        first.join_all().await;
        for record in [commit(1), refusal(2), commit(3), refusal(50), commit(50)] {
            store.commit(put(record)).await.unwrap();
        }
        let mut old = Old(KeyRange::prefix(key::AUDIT));
        let mut look = async |n: u64| old.drop_some(store.as_ref(), day(n)).await.unwrap();
        assert_eq!((look(90).await, look(91).await, look(92).await, look(92).await), (0, 1000, 201, 0));
        assert_eq!(audit(store.as_ref()).await, [commit(1), commit(3), refusal(50), commit(50)]);
        assert_eq!((look(140).await, look(141).await), (1, 0));
        assert_eq!(audit(store.as_ref()).await, [commit(1), commit(3), commit(50)]);
    }

    #[test]
    fn a_refusal_is_no_change_of_an_object() {
        let refusal =
            Refusal { at: Timestamp(1), principal: "p".into(), address: "a".into(), refused: "x".into(), unsaid: 3 };
        let event = AuditRecord::Refusal(refusal);
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(text, r#"{"at":1,"principal":"p","address":"a","refused":"x","unsaid":3}"#);
        assert_eq!(serde_json::from_str::<AuditRecord>(&text).unwrap(), event);
        assert!(serde_json::from_str::<AuditEvent>(&text).is_err());
    }
}
