//! Records refusals in the audit: refused requests of authenticated clients, and requests with an invalid certificate
//! or token.
//!
//! This module only queues an entry for a refusal, which costs one map lookup. A separate task writes the entry through
//! the store's shared commits. So no response waits for the entry or fails with it. At most ten entries per minute are
//! written for each principal and reason. Further refusals are counted. The next entry contains this count, or an
//! additional entry at the end of the minute does. Entries are retained for 90 days if `audit_keep` retains the audit
//! for as long.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stemma_core::object::Timestamp;
use stemma_wire::clock::Clock;
use stemma_wire::serve::{RefusedPeer, RejectionCounter};
use stemma_wire::tls::Identity;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use uuid::Uuid;

use crate::clock::WatchedClock;
use crate::records::audit::{AuditRecord, PrincipalRef, RefusalRecord};
use crate::records::{codec, key};
use crate::store::{ExpiredEntry, KeyRange, ListQuery, Store, StoreError, Transaction, drop_if_unchanged};

/// Maximum number of audit entries per minute for one principal and reason, without the entry at the end of the minute.
const MAX_ENTRIES_PER_MINUTE: u32 = 10;
const MINUTE: Duration = Duration::from_mins(1);
/// Maximum number of audit entries of refusals that wait to be written. Refusals over this number are only counted.
const MAX_QUEUED_ENTRIES: usize = 1024;
/// Maximum number of audit entries of refusals that are written at the same time.
const MAX_BATCH_ENTRIES: usize = 64;
/// Maximum number of pairs of principal and reason that are counted separately in one minute. The refusals of further
/// pairs are counted by reason, under the name [`OTHERS`] instead of the principal.
const MAX_TALLIES: usize = 10_000;
/// The name under which the refusals of all principals without a separate count are counted.
const OTHERS: &str = "others";
/// Retention time of the audit entries of refusals, in milliseconds.
const RETENTION_MS: u64 = 90 * 24 * 3600 * 1000;
/// Maximum number of audit entries that one sweep for old refusals reads. There is one sweep per minute.
const PAGE_ENTRIES: usize = 1000;
/// Maximum size of the audit entries that one sweep for old refusals reads, in bytes.
const PAGE_BYTES: usize = 4 << 20;

/// Counts refused requests, and queues the audit entries to be written.
struct RefusalRecorder {
    tallies: Arc<RefusalTallies>,
    queue: mpsc::Sender<RefusalRecord>,
    clock: Arc<dyn Clock>,
    /// Number of refusals whose entry was dropped because the queue was full.
    lost_count: AtomicU64,
}

/// The counts of refused requests, by principal and reason.
#[derive(Default)]
struct RefusalTallies(Mutex<HashMap<TallyKey, RefusalTally>>);

/// The principal that was refused, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct TallyKey {
    principal: String,
    principal_ref: PrincipalRef,
    reason: &'static str,
}

impl TallyKey {
    /// Returns the audit entry for a refusal at this time and from this address. `other` is the second address if the
    /// identity was presented from two addresses. `more_count` is the number of further refusals that the entry covers.
    fn to_record(&self, (time, address): (Timestamp, SocketAddr), other: Option<SocketAddr>, more_count: u64) -> RefusalRecord {
        RefusalRecord {
            at: time,
            principal: self.principal.clone(),
            whose: Some(self.principal_ref),
            address: address.to_string(),
            other_address: other.map(|address| address.to_string()),
            refused: self.reason.to_owned(),
            unsaid: more_count,
        }
    }
}

/// The counts of the refusals of one principal for one reason, in the current minute.
#[derive(Clone, Debug)]
struct RefusalTally {
    minute_began: Instant,
    recorded_count: u32,
    /// Number of refusals that no audit entry covers yet.
    unrecorded_count: u64,
    /// The time and the address of the last refusal that got no audit entry of its own.
    last_unrecorded: Option<(Timestamp, SocketAddr)>,
}

/// The task that writes the queued audit entries of refusals, and drops old ones from the audit.
pub struct RefusalWriter {
    entries: mpsc::Receiver<RefusalRecord>,
    tallies: Arc<RefusalTallies>,
    clock: Arc<WatchedClock>,
}

/// Records all refusals from now on, and returns the writer for their entries. `find_principal` finds the principal
/// that lists a certificate.
pub fn channel(
    rejected: &RejectionCounter,
    clock: Arc<WatchedClock>,
    find_principal: impl Fn(&Identity) -> Option<Uuid> + Send + Sync + 'static,
) -> RefusalWriter {
    let (queue, entries) = mpsc::channel(MAX_QUEUED_ENTRIES);
    let tallies = Arc::new(RefusalTallies::default());
    let time_source = Arc::clone(&clock) as Arc<dyn Clock>;
    let recorder = RefusalRecorder { tallies: Arc::clone(&tallies), queue, clock: time_source, lost_count: AtomicU64::new(0) };
    rejected.set_observer(Box::new(move |peer: &RefusedPeer<'_>| {
        let uuid = peer.uuid.or_else(|| peer.identity.and_then(&find_principal));
        recorder.record(peer, uuid.into(), Instant::now());
    }));
    RefusalWriter { entries, tallies, clock }
}

impl RefusalRecorder {
    /// Counts a refusal. Queues an entry for the refusal, unless the principal and reason already have all entries of
    /// this minute. If the queue is full, the refusal is only counted.
    fn record(&self, peer: &RefusedPeer<'_>, principal_ref: PrincipalRef, now: Instant) {
        let RefusedPeer { reason, principal_name, address, other_address, .. } = *peer;
        let event = (Timestamp(self.clock.unix_seconds().saturating_mul(1000)), address);
        let key = TallyKey { principal: principal_name.to_owned(), principal_ref, reason };
        let Some((key, further_count)) = self.tallies.add(key, event, now) else { return };
        if self.queue.try_send(key.to_record(event, other_address, further_count)).is_ok() {
            return;
        }
        self.tallies.restore(key, further_count, event, now);
        // Only one of 1000 such refusals is logged.
        let lost_before = self.lost_count.fetch_add(1, Ordering::Relaxed);
        if lost_before.is_multiple_of(1000) {
            log::warn!(late = lost_before + 1; "refusals arrive faster than they can be written to the audit, and are only counted");
        }
    }
}

impl RefusalTallies {
    /// Counts a refusal. Returns `None` if the refusal gets no entry. Otherwise returns the key for the entry, and the
    /// number of earlier refusals that had no entry.
    fn add(&self, mut key: TallyKey, event: (Timestamp, SocketAddr), now: Instant) -> Option<(TallyKey, u64)> {
        let mut tallies = self.lock();
        // A principal for which there is no room is counted together with other such principals.
        if tallies.len() >= MAX_TALLIES && !tallies.contains_key(&key) {
            key = TallyKey { principal: OTHERS.to_owned(), principal_ref: PrincipalRef::Nobody, ..key };
        }
        let tally = tallies.entry(key.clone()).or_insert_with(|| RefusalTally::new(now));
        if now.duration_since(tally.minute_began) >= MINUTE {
            (tally.minute_began, tally.recorded_count) = (now, 0);
        }
        if tally.recorded_count >= MAX_ENTRIES_PER_MINUTE {
            tally.add_unrecorded(1, event);
            return None;
        }
        tally.recorded_count += 1;
        Some((key, std::mem::take(&mut tally.unrecorded_count)))
    }

    /// Counts the refusals of an entry again after the full queue rejected the entry: the refusal itself, and the
    /// `further_count` other refusals that the entry covers.
    fn restore(&self, key: TallyKey, further_count: u64, event: (Timestamp, SocketAddr), now: Instant) {
        let mut tallies = self.lock();
        let tally = tallies.entry(key).or_insert_with(|| RefusalTally::new(now));
        tally.add_unrecorded(further_count.saturating_add(1), event);
    }

    /// Returns an audit entry for each pair of principal and reason that has refusals without an entry from a finished
    /// minute. The entry describes the last of these refusals and contains the number of the others. Also removes all
    /// pairs whose minute is over.
    fn end_minutes(&self, now: Instant) -> Vec<RefusalRecord> {
        let mut records = Vec::new();
        self.lock().retain(|key, tally| {
            if now.duration_since(tally.minute_began) < MINUTE {
                return true;
            }
            if let Some(last_refusal) = tally.last_unrecorded.take().filter(|_| tally.unrecorded_count > 0) {
                records.push(key.to_record(last_refusal, None, tally.unrecorded_count - 1));
            }
            false
        });
        records
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TallyKey, RefusalTally>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RefusalTally {
    fn new(now: Instant) -> Self {
        Self { minute_began: now, recorded_count: 0, unrecorded_count: 0, last_unrecorded: None }
    }

    /// Counts refusals without an entry. `event` is the time and address of the last of them.
    fn add_unrecorded(&mut self, count: u64, event: (Timestamp, SocketAddr)) {
        self.unrecorded_count = self.unrecorded_count.saturating_add(count);
        self.last_unrecorded = Some(event);
    }
}

impl RefusalWriter {
    /// Writes queued entries together, and each minute entries for the refusals that have none. An entry that the store
    /// rejects is only logged. Each minute, also drops entries of refusals whose retention time has ended, unless the
    /// clock is suspect. Returns only when the recorder of refusals no longer exists.
    pub async fn run(mut self, store: Arc<dyn Store>) {
        let mut batch = Vec::with_capacity(MAX_BATCH_ENTRIES);
        let mut ticks = interval(MINUTE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut position = SweepPosition(KeyRange::prefix(key::AUDIT));
        loop {
            tokio::select! {
                count = self.entries.recv_many(&mut batch, MAX_BATCH_ENTRIES) => {
                    if count == 0 {
                        return;
                    }
                    record_clock_jump(&self.clock, store.as_ref()).await;
                    write_all(&store, batch.drain(..)).await;
                }
                _ = ticks.tick() => {
                    record_clock_jump(&self.clock, store.as_ref()).await;
                    let mut records = self.tallies.end_minutes(Instant::now()).into_iter().peekable();
                    while records.peek().is_some() {
                        write_all(&store, records.by_ref().take(MAX_BATCH_ENTRIES)).await;
                    }
                    if let Some(now) = self.clock.trusted_now()
                        && let Err(error) = position.drop_expired(store.as_ref(), &self.clock, now).await
                    {
                        log::warn!(error:err = error; "old refusals could not be dropped from the audit");
                    }
                }
            }
        }
    }
}

/// Records a clock jump before entries are written. Without the record, entries with the time of a suspect clock would
/// make this time seem right at the next start.
async fn record_clock_jump(clock: &WatchedClock, store: &dyn Store) {
    if let Err(error) = clock.record_jump(store).await {
        log::warn!(error:err = error; "the state of the clock could not be stored");
    }
}

/// Writes entries concurrently, so that the store can commit them together. Logs each entry that the store rejects.
async fn write_all(store: &Arc<dyn Store>, entries: impl Iterator<Item = RefusalRecord>) {
    let mut commits = JoinSet::new();
    for refusal in entries {
        let store = Arc::clone(store);
        commits.spawn(async move {
            let entry = codec::encode(&AuditRecord::Refusal(refusal));
            store.commit(Transaction::new().put_at_revision(key::AUDIT, entry)).await
        });
    }
    while let Some(result) = commits.join_next().await {
        if let Ok(Err(error)) = result {
            log::warn!(error:err = error; "a refusal could not be written to the audit");
        }
    }
}

/// The part of the audit that was not yet searched for old refusals. The audit is ordered by time. A sweep continues
/// where the last sweep ended, so it does not read again the entries of commits, which remain in the audit.
struct SweepPosition(KeyRange);

impl SweepPosition {
    /// Drops refusals whose retention time has ended among the next entries, and returns their number. Stops at the
    /// first entry that is not old enough.
    async fn drop_expired(&mut self, store: &dyn Store, clock: &WatchedClock, now: Timestamp) -> Result<usize, StoreError> {
        let query = ListQuery::range(self.0.clone()).with_limit(PAGE_ENTRIES).with_max_bytes(PAGE_BYTES);
        let page = store.snapshot().await?.list(&query).await?;
        let mut expired = Vec::new();
        let mut last_scanned = None;
        for entry in page.entries {
            // The time of the entry, and whether it is a refusal. An unreadable entry has neither, and is skipped.
            let time_and_kind = match codec::decode(&entry.value) {
                Ok(AuditRecord::Refusal(refusal)) => Some((refusal.at, true)),
                Ok(AuditRecord::Commit(event)) => Some((event.at, false)),
                Err(_) => None,
            };
            let age_start = |time| clock.age_start(time, entry.mod_revision).0;
            if time_and_kind.is_some_and(|(time, _)| age_start(time).saturating_add(RETENTION_MS) > now.0) {
                break;
            }
            last_scanned = Some(entry.key.clone());
            if time_and_kind.is_some_and(|(_, is_refusal)| is_refusal) {
                expired.push(ExpiredEntry { entry, ops: Vec::new() });
            }
        }
        let dropped = drop_if_unchanged(store, expired).await?;
        if let Some(last) = last_scanned {
            self.0 = self.0.clone().after(&last);
        }
        Ok(dropped)
    }
}

#[cfg(test)]
mod tests;
