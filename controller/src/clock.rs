//! Watches the machine's clock. Entries are dropped because of their age only while the clock is trusted
//! ([`stemma_core::clock`]).
//!
//! Code that drops something because of its age gets the time from here, and each such call checks the clock first. So
//! nothing is dropped by the time of a clock that has just jumped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stemma_core::clock::{ClockDoubt, ClockDoubts, ClockJump, ClockReading, ClockTrust, format_time};
use stemma_core::finding::Finding;
use stemma_core::object::Timestamp;
use stemma_wire::clock::Clock;

use crate::records::audit::AuditTime;
use crate::records::clock::ClockRecord;
use crate::records::{codec, key};
use crate::store::{Entry, ListQuery, Revision, Snapshot, Store, StoreError, Transaction};

/// Maximum age of the recorded time, in milliseconds. At a start the clock is checked against the recorded time, or
/// against the last entry of the audit if that is later.
const RECORD_INTERVAL_MS: u64 = 24 * 3600 * 1000;

/// A clock, and whether it is trusted.
#[derive(Debug)]
pub struct WatchedClock {
    clock: Arc<dyn Clock>,
    trust: Mutex<TrustState>,
    recorded: Mutex<RecordedClock>,
    /// Held while a record is written to the store.
    record_lock: tokio::sync::Mutex<()>,
}

/// Whether the clock is trusted.
#[derive(Clone, Copy, Debug)]
struct TrustState {
    trust: ClockTrust,
    /// How far the clock is ahead of its time before the last period of doubt, if the end of that is not recorded yet.
    ahead_ms: u64,
}

/// The record of the clock in the store.
#[derive(Clone, Debug)]
struct RecordedClock {
    record: ClockRecord,
    /// The revision of the record, or zero if there is none.
    revision: Revision,
}

impl WatchedClock {
    /// Creates a watched clock without a record of earlier times.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::from_record(None, clock)
    }

    /// Creates the watched clock of a controller. The clock is checked against the latest time in the store.
    ///
    /// # Errors
    /// The error of the store; [`StoreError::Corrupt`] or [`StoreError::Newer`] for a record that can't be read.
    pub async fn from_store(store: &dyn Store, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let snapshot = store.snapshot().await?;
        let noted = match snapshot.get(key::CLOCK.as_bytes()).await? {
            Some(entry) => {
                let mut record: ClockRecord = codec::decode(&entry.value).map_err(|error| record_error(&error))?;
                record.doubts.set_last_revision(entry.mod_revision.get());
                Some(RecordedClock { record, revision: entry.mod_revision })
            }
            None => None,
        };
        let last = match noted {
            Some(noted) if noted.record.is_suspect => Some(noted),
            noted => {
                // Entries of the audit from before the record may have been written with a wrong clock, so they are no
                // evidence.
                let since = noted.as_ref().map_or(Revision::ZERO, |noted| noted.revision);
                let audited = last_audit_time(snapshot.as_ref()).await?.filter(|(_, revision)| *revision > since);
                let known = noted.as_ref().map(|noted| noted.record.at).max(audited.map(|(at, _)| at));
                let at = |at| {
                    let (doubts, revision) =
                        noted.map_or_else(Default::default, |recorded| (recorded.record.doubts, recorded.revision));
                    RecordedClock { record: ClockRecord { at, is_suspect: false, doubts }, revision }
                };
                known.map(at)
            }
        };
        drop(snapshot);
        let watched = Self::from_record(last, clock);
        if let Err(error) = watched.record_jump(store).await {
            log::warn!(error = stemma_wire::log::error_chain(&error); "the state of the clock could not be stored");
        }
        Ok(watched)
    }

    /// Creates a watched clock from the last record. The clock is suspect at once if it differs too much from the
    /// recorded time.
    fn from_record(last: Option<RecordedClock>, clock: Arc<dyn Clock>) -> Self {
        let now = moment(&*clock);
        let trust = ClockTrust::at_start(last.as_ref().map(|last| last.record.at), now);
        if let Some(jump) = trust.jump() {
            log_jump(jump);
        }
        let empty = || RecordedClock {
            record: ClockRecord { at: now.wall, is_suspect: false, doubts: ClockDoubts::default() },
            revision: Revision::ZERO,
        };
        // If the clock was suspect at the last stop and is trusted now, the doubt has ended. Whether the clock was set
        // back in the meantime cannot be known, so the whole difference to the recorded time counts as its error.
        let doubted = last.as_ref().filter(|last| last.record.is_suspect && trust.jump().is_none());
        let ahead_ms = doubted.map_or(0, |last| now.wall.0.saturating_sub(last.record.at.0));
        let noted = last.unwrap_or_else(empty);
        Self {
            clock,
            trust: Mutex::new(TrustState { trust, ahead_ms }),
            recorded: Mutex::new(noted),
            record_lock: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the time of the clock, right or wrong.
    pub fn now(&self) -> Timestamp {
        moment(&*self.clock).wall
    }

    /// Returns the time, or `None` if nothing may be dropped by it: while the clock is suspect, and then until the end
    /// of the doubt is recorded. Without that record, entries that were written during the doubt would count as old.
    pub fn trusted_now(&self) -> Option<Timestamp> {
        let (now, trust) = self.check();
        (trust.jump().is_none() && !self.lock_recorded().record.is_suspect).then_some(now)
    }

    /// Returns the time if the clock has been trusted for this long, else `None`. This is for files: they have no
    /// revision that tells whether they were written during a period of doubt, and would then wrongly count as old.
    pub fn trusted_for(&self, milliseconds: u64) -> Option<Timestamp> {
        let until = self.lock_recorded().record.doubts.last_end();
        self.trusted_now().filter(|now| until.is_none_or(|until| now.0.saturating_sub(until.0) >= milliseconds))
    }

    /// Returns the time from which the age of an entry counts, given its time and revision.
    pub fn age_start(&self, at: Timestamp, revision: Revision) -> Timestamp {
        self.lock_recorded().record.doubts.age_start(at, revision.get(), self.now())
    }

    /// Returns the finding that the clock is not trusted, or `None` if it is.
    pub fn finding(&self) -> Option<Finding> {
        self.check().1.finding()
    }

    /// Records in the store that the clock became suspect, or is trusted again. This must come before other writes of a
    /// suspect clock, because at the next start the time of an entry after the record counts as evidence for the clock.
    ///
    /// # Errors
    /// The error of the store.
    pub async fn record_jump(&self, store: &dyn Store) -> Result<(), StoreError> {
        if self.trusted_now().is_some() { Ok(()) } else { self.record(store).await }
    }

    /// Records in the store whether the clock is trusted, and the time at which it last was. Writes the record when the
    /// trust changed, otherwise once a day.
    ///
    /// # Errors
    /// The error of the store.
    pub async fn record(&self, store: &dyn Store) -> Result<(), StoreError> {
        let _guard = self.record_lock.lock().await;
        let (now, trust) = self.check();
        let RecordedClock { record: ClockRecord { at, is_suspect, mut doubts }, revision } = self.lock_recorded().clone();
        let next = match trust.jump() {
            None => {
                if is_suspect {
                    doubts.add(ClockDoubt { from: revision.get(), to: None, until: now, ahead_ms: self.lock_trust().ahead_ms });
                }
                ClockRecord { at: now, is_suspect: false, doubts }
            }
            Some(jump) => ClockRecord { at: jump.expected, is_suspect: true, doubts },
        };
        let is_old = !next.is_suspect && next.at.0.abs_diff(at.0) >= RECORD_INTERVAL_MS;
        if is_suspect != next.is_suspect || is_old {
            let revision = store.commit(Transaction::new().put(key::CLOCK, codec::encode(&next))).await?;
            let mut record = next;
            record.doubts.set_last_revision(revision.get());
            if !record.is_suspect {
                self.lock_trust().ahead_ms = 0;
            }
            *self.lock_recorded() = RecordedClock { record, revision };
        }
        Ok(())
    }

    fn lock_trust(&self) -> MutexGuard<'_, TrustState> {
        self.trust.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_recorded(&self) -> MutexGuard<'_, RecordedClock> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the clock for a jump since the last check, and logs when it becomes suspect or is trusted again. Returns
    /// the time and whether the clock is trusted.
    fn check(&self) -> (Timestamp, ClockTrust) {
        let mut state = self.lock_trust();
        let now = moment(&*self.clock);
        let before = state.trust;
        let after = before.next(now);
        state.trust = after;
        if before.jump().is_some() && after.jump().is_none() {
            // If an earlier jump has no recorded end yet, both jumps count.
            state.ahead_ms = state.ahead_ms.saturating_add(before.ahead_at_end(now));
        }
        drop(state);
        match (before.jump(), after.jump()) {
            (None, Some(jump)) => log_jump(jump),
            (Some(_), None) => log::info!("the clock is trusted again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        (now.wall, after)
    }
}

impl Clock for WatchedClock {
    fn unix_seconds(&self) -> u64 {
        self.clock.unix_seconds()
    }

    fn monotonic_seconds(&self) -> u64 {
        self.clock.monotonic_seconds()
    }
}

fn moment(clock: &dyn Clock) -> ClockReading {
    ClockReading { wall: Timestamp(clock.unix_seconds().saturating_mul(1000)), monotonic_seconds: clock.monotonic_seconds() }
}

fn log_jump(jump: ClockJump) {
    log::warn!(
        from = format_time(jump.expected), to = format_time(jump.actual);
        "the clock jumped, or the controller did not run for so long; nothing that has expired is deleted until the clock is right \
         again, or has run on for 24 hours"
    );
}

/// Returns time and revision of the last entry of the audit.
async fn last_audit_time(snapshot: &dyn Snapshot) -> Result<Option<(Timestamp, Revision)>, StoreError> {
    let last = snapshot.list(&ListQuery::prefix(key::AUDIT).descending().with_limit(1)).await?;
    let read = |entry: &Entry| Some((codec::decode::<AuditTime>(&entry.value).ok()?.at, entry.mod_revision));
    Ok(last.entries.first().and_then(read))
}

fn record_error(error: &codec::BadRecord) -> StoreError {
    StoreError::unreadable(format!("the record {}: {error}", key::CLOCK), error.is_newer())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use bytes::Bytes;

    use super::*;
    use crate::records::audit::AuditRecord;
    use crate::store::{CreateOptions, Epoch, RedbOptions, RedbStore, Revision};

    const DAY_S: u64 = 24 * 3600;

    /// A clock whose time is set, and whose steady time is set separately.
    #[derive(Debug, Default)]
    struct SteppedClock {
        passed_s: AtomicU64,
        ahead_s: AtomicU64,
    }

    impl Clock for SteppedClock {
        fn unix_seconds(&self) -> u64 {
            1_795_000_000 + self.monotonic_seconds() + self.ahead_s.load(Ordering::Relaxed)
        }

        fn monotonic_seconds(&self) -> u64 {
            self.passed_s.load(Ordering::Relaxed)
        }
    }

    fn store(directory: &tempfile::TempDir) -> Arc<dyn Store> {
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: Bytes::new() };
        Arc::new(RedbStore::create(&directory.path().join("store.redb"), &create, RedbOptions::default()).unwrap())
    }

    async fn stored_record(store: &dyn Store) -> Option<ClockRecord> {
        let entry = store.snapshot().await.unwrap().get(key::CLOCK.as_bytes()).await.unwrap();
        entry.map(|entry| codec::decode(&entry.value).unwrap())
    }

    async fn restart(store: &dyn Store, clock: &Arc<SteppedClock>) -> WatchedClock {
        WatchedClock::from_store(store, Arc::clone(clock) as _).await.unwrap()
    }

    #[tokio::test]
    async fn x04_f12_watched_clock_stays_suspect_after_restart() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (store(&directory), Arc::new(SteppedClock::default()));
        let first = restart(store.as_ref(), &clock).await;
        assert!(first.trusted_now().is_some());
        clock.passed_s.store(DAY_S, Ordering::Relaxed);
        first.record(store.as_ref()).await.unwrap();
        let right = clock.unix_seconds() * 1000;
        let believed = ClockRecord { at: Timestamp(right), is_suspect: false, doubts: ClockDoubts::default() };
        assert_eq!(stored_record(store.as_ref()).await, Some(believed.clone()));

        clock.ahead_s.store(400 * DAY_S, Ordering::Relaxed);
        assert_eq!(first.trusted_now(), None, "while it runs");
        first.record(store.as_ref()).await.unwrap();
        let suspect = ClockRecord { is_suspect: true, ..believed };
        assert_eq!(stored_record(store.as_ref()).await, Some(suspect.clone()));
        for _ in 0..2 {
            let again = restart(store.as_ref(), &clock).await;
            assert_eq!(again.trusted_now(), None, "after a restart");
            again.record(store.as_ref()).await.unwrap();
            assert_eq!(stored_record(store.as_ref()).await, Some(suspect.clone()));
        }

        clock.ahead_s.store(0, Ordering::Relaxed);
        let right_again = restart(store.as_ref(), &clock).await;
        assert!(right_again.trusted_now().is_some() && right_again.finding().is_none());
        assert!(!stored_record(store.as_ref()).await.unwrap().is_suspect);
    }

    #[tokio::test]
    async fn x04_f12_age_start_is_end_of_set_back_for_earlier_entries() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (store(&directory), Arc::new(SteppedClock::default()));
        clock.ahead_s.store(400 * DAY_S, Ordering::Relaxed);
        let first = restart(store.as_ref(), &clock).await;
        clock.passed_s.store(DAY_S, Ordering::Relaxed);
        first.record(store.as_ref()).await.unwrap();
        let write = async || store.commit(Transaction::new().put("x", Bytes::new())).await.unwrap();
        let before = (first.now(), write().await);
        // The clock is put back before a start, or while the controller runs.
        for is_restarted in [true, false] {
            clock.ahead_s.store(0, Ordering::Relaxed);
            let behind =
                if is_restarted { restart(store.as_ref(), &clock).await } else { run_while_set_back(&store, &clock).await };
            behind.record_jump(store.as_ref()).await.unwrap();
            let (at, revision) = (behind.now(), write().await);
            assert_eq!(behind.trusted_now(), None);
            clock.ahead_s.store(400 * DAY_S, Ordering::Relaxed);
            let right = if is_restarted { restart(store.as_ref(), &clock).await } else { behind };
            if !is_restarted {
                assert_eq!(right.trusted_now(), None, "nothing is dropped before it is noted that the clock is right again");
                right.record_jump(store.as_ref()).await.unwrap();
            }
            let now = right.trusted_now().unwrap();
            assert_eq!(right.age_start(at, revision), now, "restarted: {is_restarted}");
            assert_eq!(right.age_start(before.0, before.1), before.0, "the clock was put back to where it was");
            let again = restart(store.as_ref(), &clock).await;
            assert_eq!(again.age_start(at, revision), now, "it is known after a restart too");
        }
    }

    /// Starts a controller and then puts its clock back.
    async fn run_while_set_back(store: &Arc<dyn Store>, clock: &Arc<SteppedClock>) -> WatchedClock {
        clock.ahead_s.store(400 * DAY_S, Ordering::Relaxed);
        let running = restart(store.as_ref(), clock).await;
        assert!(running.trusted_now().is_some());
        clock.ahead_s.store(0, Ordering::Relaxed);
        running
    }

    fn refusal(at_s: u64) -> Transaction {
        let text = format!(r#"{{"at":{},"principal":"p","address":"127.0.0.1:1","refused":"x","unsaid":0}}"#, at_s * 1000);
        let record = serde_json::from_str::<AuditRecord>(&text).unwrap();
        Transaction::new().put_at_revision(key::AUDIT, codec::encode(&record))
    }

    /// With one audit entry that was written by a clock ahead, each later start trusted a clock ahead and suspected a
    /// right one.
    #[tokio::test]
    async fn x04_f12_start_ignores_entries_of_suspect_clock() {
        for is_restarted in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let (store, clock) = (store(&directory), Arc::new(SteppedClock::default()));
            let first = restart(store.as_ref(), &clock).await;
            clock.passed_s.store(DAY_S, Ordering::Relaxed);
            first.record(store.as_ref()).await.unwrap();
            clock.ahead_s.store(400 * DAY_S, Ordering::Relaxed);
            let ahead = if is_restarted { restart(store.as_ref(), &clock).await } else { first };
            ahead.record_jump(store.as_ref()).await.unwrap();
            store.commit(refusal(clock.unix_seconds())).await.unwrap();
            clock.ahead_s.store(0, Ordering::Relaxed);
            if is_restarted {
                restart(store.as_ref(), &clock).await.record(store.as_ref()).await.unwrap();
            } else {
                ahead.record(store.as_ref()).await.unwrap();
            }
            for (ahead_s, is_believed) in [(0, true), (400 * DAY_S, false), (0, true)] {
                clock.ahead_s.store(ahead_s, Ordering::Relaxed);
                let again = restart(store.as_ref(), &clock).await;
                assert_eq!(again.trusted_now().is_some(), is_believed, "{ahead_s} s ahead, restarted: {is_restarted}");
            }
        }
    }

    /// Without earlier records, a clock that is behind is trusted. So is a clock that has run on for a day after a
    /// jump.
    #[tokio::test]
    async fn x04_f12_age_start_is_limited_when_entry_precedes_lasting_jump() {
        for (days, is_restarted) in [(2, false), (100, false), (400, false), (2, true), (400, true)] {
            let directory = tempfile::tempdir().unwrap();
            let (store, clock) = (store(&directory), Arc::new(SteppedClock::default()));
            let watched = restart(store.as_ref(), &clock).await;
            assert!(watched.trusted_now().is_some());
            let (at, revision) = (watched.now(), store.commit(refusal(clock.unix_seconds())).await.unwrap());
            clock.ahead_s.store(days * DAY_S, Ordering::Relaxed);
            watched.record_jump(store.as_ref()).await.unwrap();
            let watched = if is_restarted { restart(store.as_ref(), &clock).await } else { watched };
            clock.passed_s.store(DAY_S + 10, Ordering::Relaxed);
            let now = watched.now();
            watched.record(store.as_ref()).await.unwrap();
            assert_eq!(watched.trusted_now(), Some(now));
            let age_s = |watched: &WatchedClock| (now.0 - watched.age_start(at, revision).0) / 1000;
            assert!((DAY_S..DAY_S + 20).contains(&age_s(&watched)) || age_s(&watched) < 20, "{} s, {days} days", age_s(&watched));
            let again = restart(store.as_ref(), &clock).await;
            assert_eq!(age_s(&again), age_s(&watched), "it is known after a restart too");
            assert_eq!(again.trusted_for(2 * DAY_S * 1000), None, "files of then have no revision");
        }
    }

    /// The end of the first jump was not recorded when the second one came. The first jump was forgotten, so earlier
    /// entries counted as older.
    #[tokio::test]
    async fn x04_f12_watched_clock_counts_two_jumps_in_one_doubt() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (store(&directory), Arc::new(SteppedClock::default()));
        let watched = restart(store.as_ref(), &clock).await;
        assert!(watched.trusted_now().is_some());
        let (at, revision) = (watched.now(), store.commit(refusal(clock.unix_seconds())).await.unwrap());
        for (nth, ahead_s) in (1..).zip([2 * DAY_S, 7 * DAY_S]) {
            clock.ahead_s.store(ahead_s, Ordering::Relaxed);
            watched.record_jump(store.as_ref()).await.unwrap();
            clock.passed_s.store(nth * (DAY_S + 10), Ordering::Relaxed);
            // This checks the clock and records nothing.
            assert_eq!(watched.trusted_now(), None, "the end of the doubt is not noted");
            assert_eq!(watched.finding(), None, "it has gone on for a day");
        }
        watched.record(store.as_ref()).await.unwrap();
        let age_s = (watched.trusted_now().unwrap().0 - watched.age_start(at, revision).0) / 1000;
        assert!((2 * DAY_S..2 * DAY_S + 30).contains(&age_s), "{age_s} s");
    }

    /// Two starts were short, and between them the clock was behind. A later step back by 25 hours was not detected.
    #[tokio::test]
    async fn x04_f12_watched_clock_detects_step_back_after_doubt() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (store(&directory), Arc::new(SteppedClock::default()));
        clock.ahead_s.store(500 * DAY_S, Ordering::Relaxed);
        let first = restart(store.as_ref(), &clock).await;
        clock.passed_s.store(DAY_S, Ordering::Relaxed);
        first.record(store.as_ref()).await.unwrap();
        for (ahead_s, is_believed) in [(100 * DAY_S, false), (500 * DAY_S + 30 * 3600, true), (500 * DAY_S + 5 * 3600, false)] {
            clock.ahead_s.store(ahead_s, Ordering::Relaxed);
            assert_eq!(restart(store.as_ref(), &clock).await.trusted_now().is_some(), is_believed, "{ahead_s} s");
        }
    }

    #[tokio::test]
    async fn x04_f12_start_uses_audit_time_when_clock_was_not_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (store(&directory), Arc::new(SteppedClock::default()));
        let write = async |at_s| assert!(store.commit(refusal(at_s)).await.unwrap() > Revision::ZERO);
        write(clock.unix_seconds()).await;
        clock.ahead_s.store(31 * DAY_S, Ordering::Relaxed);
        assert_eq!(restart(store.as_ref(), &clock).await.trusted_now(), None);
        // An entry that was written by a suspect clock is no evidence for the clock.
        write(clock.unix_seconds()).await;
        assert_eq!(restart(store.as_ref(), &clock).await.trusted_now(), None);
    }

    #[tokio::test]
    async fn x04_f12_start_writes_nothing_when_clock_is_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (store(&directory), Arc::new(SteppedClock::default()));
        let watched = restart(store.as_ref(), &clock).await;
        for passed_s in [0, 10, DAY_S - 1] {
            clock.passed_s.store(passed_s, Ordering::Relaxed);
            watched.record(store.as_ref()).await.unwrap();
            assert_eq!(stored_record(store.as_ref()).await, None, "after {passed_s} s");
        }
    }
}
