//! Refusals after authentication, as entries of the audit.
//!
//! A refusal only leaves a note here, which costs one look into a map. A separate task writes the entry through the store's shared
//! commits, so no answer waits for the entry and none fails with it. Ten entries a minute are written for each principal and reason.
//! The others are counted, and the next entry says how many, at the latest when the minute is over. Entries are kept for 90 days,
//! where `audit_keep` keeps the audit as long.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stemma_core::object::Timestamp;
use stemma_wire::clock::Clock;
use stemma_wire::serve::{Refused, Rejected};
use stemma_wire::tls::Identity;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use uuid::Uuid;

use crate::clock::WatchedClock;
use crate::records::audit::{AuditRecord, Refusal, Whose};
use crate::records::{codec, key};
use crate::store::{KeyRange, Over, Query, Store, StoreError, Transaction, drop_unchanged};

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
/// How many entries of the audit one look at old ones reads, and how many bytes of them; there is one a minute.
const PAGE: usize = 1000;
const PAGE_BYTES: usize = 4 << 20;

/// Counts refusals, and sends those that get an entry to the writer.
struct Refusals {
    tallies: Arc<Tallies>,
    waiting: mpsc::Sender<Refusal>,
    clock: Arc<dyn Clock>,
    lost: AtomicU64,
}

/// How often something was refused, by whom and why.
#[derive(Default)]
struct Tallies(Mutex<HashMap<Key, Tally>>);

/// Who was refused, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    principal: String,
    whose: Whose,
    reason: &'static str,
}

impl Key {
    /// The entry of one, with how many more it tells of.
    fn entry(&self, (at, from): (Timestamp, SocketAddr), other: Option<SocketAddr>, unsaid: u64) -> Refusal {
        Refusal {
            at,
            principal: self.principal.clone(),
            whose: Some(self.whose),
            address: from.to_string(),
            other_address: other.map(|other| other.to_string()),
            refused: self.reason.to_owned(),
            unsaid,
        }
    }
}

#[derive(Clone, Debug)]
struct Tally {
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
    clock: Arc<WatchedClock>,
}

/// Hears of all refusals from now on. What is to be written comes out at the other end. `holder` says on which principal a certificate
/// is listed.
pub fn watch(
    rejected: &Rejected,
    clock: Arc<WatchedClock>,
    holder: impl Fn(&Identity) -> Option<Uuid> + Send + Sync + 'static,
) -> Waiting {
    let (waiting, entries) = mpsc::channel(MOST_WAITING);
    let tallies = Arc::new(Tallies::default());
    let told_by = Arc::clone(&clock) as Arc<dyn Clock>;
    let this = Refusals { tallies: Arc::clone(&tallies), waiting, clock: told_by, lost: AtomicU64::new(0) };
    rejected.watch(Box::new(move |refused: &Refused<'_>| {
        let uuid = refused.uuid.or_else(|| refused.identity.and_then(&holder));
        this.note(refused, uuid.into(), Instant::now());
    }));
    Waiting { entries, tallies, clock }
}

impl Refusals {
    fn note(&self, refused: &Refused<'_>, whose: Whose, now: Instant) {
        let Refused { reason, principal, from, other, .. } = *refused;
        let this = (Timestamp(self.clock.unix_seconds().saturating_mul(1000)), from);
        let key = Key { principal: principal.to_owned(), whose, reason };
        let Some((key, unsaid)) = self.tallies.count(key, this, now) else { return };
        if self.waiting.try_send(key.entry(this, other, unsaid)).is_ok() {
            return;
        }
        self.tallies.give_back(key, unsaid, this, now);
        let full = self.lost.fetch_add(1, Ordering::Relaxed);
        if full.is_multiple_of(1000) {
            log::warn!(late = full + 1; "refusals come faster than they can be written to the audit, and are counted");
        }
    }
}

impl Tallies {
    /// Counts one. When it is to be said: as whose, and how many went unsaid before it.
    fn count(&self, mut key: Key, this: (Timestamp, SocketAddr), now: Instant) -> Option<(Key, u64)> {
        let mut tallies = self.lock();
        if tallies.len() >= MOST_REMEMBERED && !tallies.contains_key(&key) {
            key = Key { principal: OTHERS.to_owned(), whose: Whose::Nobody, ..key };
        }
        let one = tallies.entry(key.clone()).or_insert_with(|| Tally::new(now));
        if now.duration_since(one.minute_began) >= MINUTE {
            (one.minute_began, one.said) = (now, 0);
        }
        if one.said >= ENTRIES_A_MINUTE {
            one.leave(1, this);
            return None;
        }
        one.said += 1;
        Some((key, std::mem::take(&mut one.unsaid)))
    }

    /// An entry that found no place is unsaid, as are those that it told of.
    fn give_back(&self, key: Key, unsaid: u64, this: (Timestamp, SocketAddr), now: Instant) {
        let mut tallies = self.lock();
        let one = tallies.entry(key).or_insert_with(|| Tally::new(now));
        one.leave(unsaid.saturating_add(1), this);
    }

    /// What is still unsaid of minutes that are over, each with the last one in its own words. Those who were quiet since are
    /// remembered no longer.
    fn due(&self, now: Instant) -> Vec<Refusal> {
        let mut due = Vec::new();
        self.lock().retain(|key, one| {
            if now.duration_since(one.minute_began) < MINUTE {
                return true;
            }
            if let Some(last) = one.last.take().filter(|_| one.unsaid > 0) {
                due.push(key.entry(last, None, one.unsaid - 1));
            }
            false
        });
        due
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Tally>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tally {
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
    /// older than they are kept, unless the clock is suspect.
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
                    note_jump(&self.clock, store.as_ref()).await;
                    write_all(&store, some.drain(..)).await;
                }
                _ = ticks.tick() => {
                    note_jump(&self.clock, store.as_ref()).await;
                    let mut due = self.tallies.due(Instant::now()).into_iter().peekable();
                    while due.peek().is_some() {
                        write_all(&store, due.by_ref().take(AT_ONCE)).await;
                    }
                    if let Some(now) = self.clock.trusted_now()
                        && let Err(error) = old.drop_some(store.as_ref(), &self.clock, now).await
                    {
                        log::warn!(error:err = error; "old refusals could not be dropped from the audit");
                    }
                }
            }
        }
    }
}

/// Entries that are written by a suspect clock must not speak for it at the next start.
async fn note_jump(clock: &WatchedClock, store: &dyn Store) {
    if let Err(error) = clock.note_jump(store).await {
        log::warn!(error:err = error; "what is known of the clock could not be noted");
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
    async fn drop_some(
        &mut self,
        store: &dyn Store,
        clock: &WatchedClock,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        let query = Query::range(self.0.clone()).limit(PAGE).bytes(PAGE_BYTES);
        let page = store.snapshot().await?.list(&query).await?;
        let mut over = Vec::new();
        let mut looked_at = None;
        for entry in page.entries {
            let at = match codec::decode(&entry.value) {
                Ok(AuditRecord::Refusal(refusal)) => Some((refusal.at, true)),
                Ok(AuditRecord::Commit(event)) => Some((event.at, false)),
                Err(_) => None,
            };
            let counts_from = |at| clock.counts_from(at, entry.mod_revision).0;
            if at.is_some_and(|(at, _)| counts_from(at).saturating_add(KEPT_MS) > now.0) {
                break;
            }
            looked_at = Some(entry.key.clone());
            if at.is_some_and(|(_, is_refusal)| is_refusal) {
                over.push(Over { entry, with: Vec::new() });
            }
        }
        let dropped = drop_unchanged(store, over).await?;
        if let Some(last) = looked_at {
            self.0 = self.0.clone().after(&last);
        }
        Ok(dropped)
    }
}

#[cfg(test)]
mod tests;
