//! Watches the machine's clock for jumps. Entries of the store expire by age only while the clock is trusted
//! ([`stemma_core::clock`]).
//!
//! Code that deletes something because of its age gets the time from this module. Each such call first checks the clock
//! for a jump. So nothing is deleted by the time of a clock that has just jumped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stemma_core::clock::{ClockDoubt, ClockDoubts, ClockJump, ClockReading, ClockTrust, format_time};
use stemma_core::finding::Finding;
use stemma_core::object::Timestamp;
use stemma_wire::clock::Clock;

use crate::records::audit::AuditTime;
use crate::records::clock::ClockRecord;
use crate::records::{codec, key};
use crate::store::{Entry, ListQuery, Revision, Snapshot, Store, StoreError, Transaction};

/// Maximum age of the clock's record in the store while the clock is trusted, in milliseconds. When the controller
/// starts, the clock is compared with the time in this record, or in a later entry of the audit log.
const RECORD_INTERVAL_MS: u64 = 24 * 3600 * 1000;

/// A clock that is checked for jumps, and the record of whether it is trusted. A period in which it is not trusted is
/// called a doubt.
#[derive(Debug)]
pub struct WatchedClock {
    clock: Arc<dyn Clock>,
    trust: Mutex<TrustState>,
    recorded: Mutex<RecordedClock>,
    /// The lock that is held while the clock's record is written to the store.
    record_lock: tokio::sync::Mutex<()>,
}

/// The trust in the clock, and the size of jumps that are not recorded in the store yet.
#[derive(Clone, Copy, Debug)]
struct TrustState {
    trust: ClockTrust,
    /// Milliseconds by which the clock was ahead of its expected time when a doubt (a period in which the clock was not
    /// trusted) ended. The sum over the doubts whose end is not recorded in the store yet.
    ahead_ms: u64,
}

/// The last record of the clock in the store. After a start, its time can be that of a later audit entry or the start.
#[derive(Clone, Debug)]
struct RecordedClock {
    record: ClockRecord,
    /// The revision that wrote the record, or zero if the store has none.
    revision: Revision,
}

impl WatchedClock {
    /// Creates a watched clock that is trusted at first, because there is no record of earlier times.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::from_record(None, clock)
    }

    /// Creates the watched clock of a controller, and compares the clock with the latest time in the store that is not
    /// from a suspect clock. Records a change of the trust in the store. If this write fails, the error is only logged.
    ///
    /// # Errors
    /// Fails with the error of reading the store, or with [`StoreError::Corrupt`] or [`StoreError::Newer`] if the
    /// record cannot be decoded.
    pub async fn from_store(store: &dyn Store, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let snapshot = store.snapshot().await?;
        let stored = match snapshot.get(key::CLOCK.as_bytes()).await? {
            Some(entry) => {
                let mut record: ClockRecord = codec::decode(&entry.value).map_err(|error| record_error(&error))?;
                record.doubts.set_last_revision(entry.mod_revision.get());
                Some(RecordedClock { record, revision: entry.mod_revision })
            }
            None => None,
        };
        let latest = match stored {
            // Such a record has the time at which the clock was last trusted. Later audit entries may be from a wrong
            // clock.
            Some(stored) if stored.record.is_suspect => Some(stored),
            stored => {
                // The clock was trusted when this record was written. Audit entries before the record may be from an
                // earlier time at which the clock was wrong, so only the times of later entries are used.
                let record_revision = stored.as_ref().map_or(Revision::ZERO, |stored| stored.revision);
                let audit_time = last_audit_time(snapshot.as_ref()).await?.filter(|(_, revision)| *revision > record_revision);
                let latest_time = stored.as_ref().map(|stored| stored.record.at).max(audit_time.map(|(time, _)| time));
                let to_record = |time| {
                    let (doubts, revision) =
                        stored.map_or_else(Default::default, |recorded| (recorded.record.doubts, recorded.revision));
                    RecordedClock { record: ClockRecord { at: time, is_suspect: false, doubts }, revision }
                };
                latest_time.map(to_record)
            }
        };
        drop(snapshot);
        let watched = Self::from_record(latest, clock);
        if let Err(error) = watched.record_jump(store).await {
            log::warn!(error = stemma_wire::log::error_chain(&error); "the state of the clock could not be stored");
        }
        Ok(watched)
    }

    /// Creates a watched clock from the last record. If the clock differs too much from the recorded time, it is
    /// suspect from the start.
    fn from_record(last_record: Option<RecordedClock>, clock: Arc<dyn Clock>) -> Self {
        let now = read_clock(&*clock);
        let trust = ClockTrust::at_start(last_record.as_ref().map(|last_record| last_record.record.at), now);
        if let Some(jump) = trust.jump() {
            log_jump(jump);
        }
        let first_record = || RecordedClock {
            record: ClockRecord { at: now.wall, is_suspect: false, doubts: ClockDoubts::default() },
            revision: Revision::ZERO,
        };
        // If the clock was suspect at the last stop and is trusted now, the doubt has ended. Nobody knows whether the
        // clock was corrected during the stop. So the whole difference to the recorded time counts as the error of the
        // clock.
        let ended_doubt = last_record.as_ref().filter(|last_record| last_record.record.is_suspect && trust.jump().is_none());
        let ahead_ms = ended_doubt.map_or(0, |last_record| now.wall.0.saturating_sub(last_record.record.at.0));
        let recorded = last_record.unwrap_or_else(first_record);
        Self {
            clock,
            trust: Mutex::new(TrustState { trust, ahead_ms }),
            recorded: Mutex::new(recorded),
            record_lock: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the time that the clock shows, even if the clock is suspect.
    pub fn now(&self) -> Timestamp {
        read_clock(&*self.clock).wall
    }

    /// Returns the time, or `None` if nothing may expire now. Nothing may expire while the clock is suspect, or until
    /// the end of the last doubt (the period in which it was suspect) is recorded in the store. Without this record,
    /// entries that were written before or during the doubt could seem too old.
    pub fn trusted_now(&self) -> Option<Timestamp> {
        let (now, trust) = self.check();
        (trust.jump().is_none() && !self.lock_recorded().record.is_suspect).then_some(now)
    }

    /// Returns the time if the clock is trusted and its last recorded doubt, if any, ended at least this long ago. Only
    /// such a time may decide that a file is too old: no revision shows whether a file was written while the clock was
    /// suspect.
    pub fn trusted_for(&self, milliseconds: u64) -> Option<Timestamp> {
        let doubt_end = self.lock_recorded().record.doubts.last_end();
        self.trusted_now().filter(|now| doubt_end.is_none_or(|doubt_end| now.0.saturating_sub(doubt_end.0) >= milliseconds))
    }

    /// Returns the time from which the age of an entry counts. The entry was written at `revision` with the time
    /// `entry_time`. The result is later if the clock may have been behind then, and earlier if the clock was ahead.
    pub fn age_start(&self, entry_time: Timestamp, revision: Revision) -> Timestamp {
        self.lock_recorded().record.doubts.age_start(entry_time, revision.get(), self.now())
    }

    /// Returns the finding that the clock is suspect, or `None` if the clock is trusted.
    pub fn finding(&self) -> Option<Finding> {
        self.check().1.finding()
    }

    /// Records in the store that the clock has become suspect, or is trusted again. This must happen before other
    /// writes with a suspect clock. The next start compares its clock with the time of a later audit entry only if the
    /// record does not show that the clock was suspect.
    ///
    /// # Errors
    /// Fails with the error of the store.
    pub async fn record_jump(&self, store: &dyn Store) -> Result<(), StoreError> {
        if self.trusted_now().is_some() { Ok(()) } else { self.record(store).await }
    }

    /// Records in the store whether the clock is trusted, and its last trusted time ([`ClockRecord::at`]). Writes
    /// nothing if the trust has not changed, unless the clock is trusted and the record is a day old.
    ///
    /// # Errors
    /// Fails with the error of the store.
    pub async fn record(&self, store: &dyn Store) -> Result<(), StoreError> {
        let _guard = self.record_lock.lock().await;
        let (now, trust) = self.check();
        let RecordedClock { record: ClockRecord { at, is_suspect, mut doubts }, revision } = self.lock_recorded().clone();
        let new_record = match trust.jump() {
            None => {
                if is_suspect {
                    // The doubt began with the suspect record, and ends with the new one (`to` is set below).
                    doubts.add(ClockDoubt { from: revision.get(), to: None, until: now, ahead_ms: self.lock_trust().ahead_ms });
                }
                ClockRecord { at: now, is_suspect: false, doubts }
            }
            Some(jump) => ClockRecord { at: jump.expected, is_suspect: true, doubts },
        };
        let is_due = !new_record.is_suspect && new_record.at.0.abs_diff(at.0) >= RECORD_INTERVAL_MS;
        if is_suspect != new_record.is_suspect || is_due {
            let revision = store.commit(Transaction::new().put(key::CLOCK, codec::encode(&new_record))).await?;
            let mut record = new_record;
            record.doubts.set_last_revision(revision.get());
            if !record.is_suspect {
                self.lock_trust().ahead_ms = 0;
            }
            *self.lock_recorded() = RecordedClock { record, revision };
        }
        Ok(())
    }

    /// Locks the trust, also if another thread panicked while it held the lock.
    fn lock_trust(&self) -> MutexGuard<'_, TrustState> {
        self.trust.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the last record, also if another thread panicked while it held the lock.
    fn lock_recorded(&self) -> MutexGuard<'_, RecordedClock> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks whether the clock has jumped since the last check, and logs a change of the trust. Returns the time and
    /// the trust in the clock.
    fn check(&self) -> (Timestamp, ClockTrust) {
        let mut state = self.lock_trust();
        let now = read_clock(&*self.clock);
        let old_trust = state.trust;
        let new_trust = old_trust.next(now);
        state.trust = new_trust;
        if old_trust.jump().is_some() && new_trust.jump().is_none() {
            // The end of an earlier doubt may not be recorded yet. In this case the jumps of both doubts are added.
            state.ahead_ms = state.ahead_ms.saturating_add(old_trust.ahead_at_end(now));
        }
        drop(state);
        match (old_trust.jump(), new_trust.jump()) {
            (None, Some(jump)) => log_jump(jump),
            (Some(_), None) => log::info!("the clock is trusted again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        (now.wall, new_trust)
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

/// Reads the wall clock and the monotonic clock.
fn read_clock(clock: &dyn Clock) -> ClockReading {
    ClockReading { wall: Timestamp(clock.unix_seconds().saturating_mul(1000)), monotonic_seconds: clock.monotonic_seconds() }
}

/// Logs a warning about a jump of the clock.
fn log_jump(jump: ClockJump) {
    log::warn!(
        from = format_time(jump.expected), to = format_time(jump.actual);
        "the clock jumped, or the controller did not run for so long; nothing that has expired is deleted until the clock is right \
         again, or has run on for 24 hours"
    );
}

/// Returns the time and revision of the last entry in the audit log, or `None` if there is none or its time cannot be
/// decoded.
async fn last_audit_time(snapshot: &dyn Snapshot) -> Result<Option<(Timestamp, Revision)>, StoreError> {
    let last_entries = snapshot.list(&ListQuery::prefix(key::AUDIT).descending().with_limit(1)).await?;
    let time_and_revision = |entry: &Entry| Some((codec::decode::<AuditTime>(&entry.value).ok()?.at, entry.mod_revision));
    Ok(last_entries.entries.first().and_then(time_and_revision))
}

/// Returns the error for a record of the clock that cannot be decoded.
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

    /// A clock for tests: `passed_s` is its monotonic time. Its wall clock is at a fixed time plus both fields.
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

    fn create_store(directory: &tempfile::TempDir) -> Arc<dyn Store> {
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: Bytes::new() };
        Arc::new(RedbStore::create(&directory.path().join("store.redb"), &create, RedbOptions::default()).unwrap())
    }

    /// Returns the record of the clock in the store.
    async fn stored_record(store: &dyn Store) -> Option<ClockRecord> {
        let entry = store.snapshot().await.unwrap().get(key::CLOCK.as_bytes()).await.unwrap();
        entry.map(|entry| codec::decode(&entry.value).unwrap())
    }

    /// Returns a new watched clock from the store, as a restarted controller creates it.
    async fn restart(store: &dyn Store, clock: &Arc<SteppedClock>) -> WatchedClock {
        WatchedClock::from_store(store, Arc::clone(clock) as _).await.unwrap()
    }

    #[tokio::test]
    async fn x04_f12_watched_clock_stays_suspect_after_restart() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (create_store(&directory), Arc::new(SteppedClock::default()));
        let first_run = restart(store.as_ref(), &clock).await;
        assert!(first_run.trusted_now().is_some());
        clock.passed_s.store(DAY_S, Ordering::Relaxed);
        first_run.record(store.as_ref()).await.unwrap();
        let right_ms = clock.unix_seconds() * 1000;
        let trusted_record = ClockRecord { at: Timestamp(right_ms), is_suspect: false, doubts: ClockDoubts::default() };
        assert_eq!(stored_record(store.as_ref()).await, Some(trusted_record.clone()));

        clock.ahead_s.store(400 * DAY_S, Ordering::Relaxed);
        assert_eq!(first_run.trusted_now(), None, "the running controller trusts no clock that jumped");
        first_run.record(store.as_ref()).await.unwrap();
        let suspect_record = ClockRecord { is_suspect: true, ..trusted_record };
        assert_eq!(stored_record(store.as_ref()).await, Some(suspect_record.clone()));
        for _ in 0..2 {
            let restarted = restart(store.as_ref(), &clock).await;
            assert_eq!(restarted.trusted_now(), None, "after a restart");
            restarted.record(store.as_ref()).await.unwrap();
            assert_eq!(stored_record(store.as_ref()).await, Some(suspect_record.clone()));
        }

        clock.ahead_s.store(0, Ordering::Relaxed);
        let corrected = restart(store.as_ref(), &clock).await;
        assert!(corrected.trusted_now().is_some() && corrected.finding().is_none());
        assert!(!stored_record(store.as_ref()).await.unwrap().is_suspect);
    }

    /// In this test, the clock is set back by 400 days, and later corrected. The age of an entry from the time between
    /// counts from the correction. The age of an earlier entry counts from its own time.
    #[tokio::test]
    async fn x04_f12_doubt_delays_age_start_only_for_entries_from_doubt() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (create_store(&directory), Arc::new(SteppedClock::default()));
        clock.ahead_s.store(400 * DAY_S, Ordering::Relaxed);
        let first_run = restart(store.as_ref(), &clock).await;
        clock.passed_s.store(DAY_S, Ordering::Relaxed);
        first_run.record(store.as_ref()).await.unwrap();
        let write = async || store.commit(Transaction::new().put("x", Bytes::new())).await.unwrap();
        let earlier_entry = (first_run.now(), write().await);
        // In the first round the clock is set back before a start, and in the second while the controller runs.
        for is_restarted in [true, false] {
            clock.ahead_s.store(0, Ordering::Relaxed);
            let clock_behind =
                if is_restarted { restart(store.as_ref(), &clock).await } else { run_while_set_back(&store, &clock).await };
            clock_behind.record_jump(store.as_ref()).await.unwrap();
            let (entry_time, revision) = (clock_behind.now(), write().await);
            assert_eq!(clock_behind.trusted_now(), None);
            clock.ahead_s.store(400 * DAY_S, Ordering::Relaxed);
            let corrected = if is_restarted { restart(store.as_ref(), &clock).await } else { clock_behind };
            if !is_restarted {
                assert_eq!(corrected.trusted_now(), None, "nothing may expire before the end of the doubt is recorded");
                corrected.record_jump(store.as_ref()).await.unwrap();
            }
            let now = corrected.trusted_now().unwrap();
            assert_eq!(corrected.age_start(entry_time, revision), now, "restarted: {is_restarted}");
            assert_eq!(
                corrected.age_start(earlier_entry.0, earlier_entry.1),
                earlier_entry.0,
                "the clock was right before the doubt"
            );
            let restarted = restart(store.as_ref(), &clock).await;
            assert_eq!(restarted.age_start(entry_time, revision), now, "the result is the same after a restart");
        }
    }

    /// Starts a controller and then sets its clock back.
    async fn run_while_set_back(store: &Arc<dyn Store>, clock: &Arc<SteppedClock>) -> WatchedClock {
        clock.ahead_s.store(400 * DAY_S, Ordering::Relaxed);
        let running = restart(store.as_ref(), clock).await;
        assert!(running.trusted_now().is_some());
        clock.ahead_s.store(0, Ordering::Relaxed);
        running
    }

    /// Returns a transaction that writes an audit entry about a refused request at this time, in seconds since 1970.
    fn write_audit_entry(at_s: u64) -> Transaction {
        let json_text = format!(r#"{{"at":{},"principal":"p","address":"127.0.0.1:1","refused":"x","unsaid":0}}"#, at_s * 1000);
        let record = serde_json::from_str::<AuditRecord>(&json_text).unwrap();
        Transaction::new().put_at_revision(key::AUDIT, codec::encode(&record))
    }

    /// An audit entry from a suspect clock must not count as evidence. Otherwise each later start would trust the wrong
    /// clock and suspect a correct one.
    #[tokio::test]
    async fn x04_f12_start_ignores_entries_of_suspect_clock() {
        for is_restarted in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let (store, clock) = (create_store(&directory), Arc::new(SteppedClock::default()));
            let first_run = restart(store.as_ref(), &clock).await;
            clock.passed_s.store(DAY_S, Ordering::Relaxed);
            first_run.record(store.as_ref()).await.unwrap();
            clock.ahead_s.store(400 * DAY_S, Ordering::Relaxed);
            let clock_ahead = if is_restarted { restart(store.as_ref(), &clock).await } else { first_run };
            clock_ahead.record_jump(store.as_ref()).await.unwrap();
            store.commit(write_audit_entry(clock.unix_seconds())).await.unwrap();
            clock.ahead_s.store(0, Ordering::Relaxed);
            if is_restarted {
                restart(store.as_ref(), &clock).await.record(store.as_ref()).await.unwrap();
            } else {
                clock_ahead.record(store.as_ref()).await.unwrap();
            }
            for (ahead_s, is_trusted) in [(0, true), (400 * DAY_S, false), (0, true)] {
                clock.ahead_s.store(ahead_s, Ordering::Relaxed);
                let restarted = restart(store.as_ref(), &clock).await;
                assert_eq!(restarted.trusted_now().is_some(), is_trusted, "{ahead_s} s ahead, restarted: {is_restarted}");
            }
        }
    }

    /// The first start has no record, so it trusts a clock that is behind. Later the clock jumps ahead, and is trusted
    /// again after a day without another jump. The entry from before the jump must not seem too old.
    #[tokio::test]
    async fn x04_f12_age_start_is_limited_when_entry_precedes_lasting_jump() {
        for (days, is_restarted) in [(2, false), (100, false), (400, false), (2, true), (400, true)] {
            let directory = tempfile::tempdir().unwrap();
            let (store, clock) = (create_store(&directory), Arc::new(SteppedClock::default()));
            let watched = restart(store.as_ref(), &clock).await;
            assert!(watched.trusted_now().is_some());
            let (entry_time, revision) = (watched.now(), store.commit(write_audit_entry(clock.unix_seconds())).await.unwrap());
            clock.ahead_s.store(days * DAY_S, Ordering::Relaxed);
            watched.record_jump(store.as_ref()).await.unwrap();
            let watched = if is_restarted { restart(store.as_ref(), &clock).await } else { watched };
            clock.passed_s.store(DAY_S + 10, Ordering::Relaxed);
            let now = watched.now();
            watched.record(store.as_ref()).await.unwrap();
            assert_eq!(watched.trusted_now(), Some(now));
            let age_s = |watched: &WatchedClock| (now.0 - watched.age_start(entry_time, revision).0) / 1000;
            // The entry is a day and ten seconds old. The size of the jump must not add to that.
            assert!((DAY_S..DAY_S + 20).contains(&age_s(&watched)) || age_s(&watched) < 20, "{} s, {days} days", age_s(&watched));
            let restarted = restart(store.as_ref(), &clock).await;
            assert_eq!(age_s(&restarted), age_s(&watched), "the result is the same after a restart");
            assert_eq!(restarted.trusted_for(2 * DAY_S * 1000), None, "a file from before the jump could seem too old");
        }
    }

    /// In this test, the second jump happens before the end of the first doubt is recorded. So the store gets one
    /// record for both doubts. Both jumps must count, because otherwise entries from before them would seem too old.
    #[tokio::test]
    async fn x04_f12_watched_clock_adds_jumps_when_doubts_share_record() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (create_store(&directory), Arc::new(SteppedClock::default()));
        let watched = restart(store.as_ref(), &clock).await;
        assert!(watched.trusted_now().is_some());
        let (entry_time, revision) = (watched.now(), store.commit(write_audit_entry(clock.unix_seconds())).await.unwrap());
        for (round, ahead_s) in (1..).zip([2 * DAY_S, 7 * DAY_S]) {
            clock.ahead_s.store(ahead_s, Ordering::Relaxed);
            watched.record_jump(store.as_ref()).await.unwrap();
            clock.passed_s.store(round * (DAY_S + 10), Ordering::Relaxed);
            // This checks the clock, but does not write a record.
            assert_eq!(watched.trusted_now(), None, "the end of the doubt is not recorded");
            assert_eq!(watched.finding(), None, "the clock has run for a day without another jump");
        }
        watched.record(store.as_ref()).await.unwrap();
        let age_s = (watched.trusted_now().unwrap().0 - watched.age_start(entry_time, revision).0) / 1000;
        assert!((2 * DAY_S..2 * DAY_S + 30).contains(&age_s), "{age_s} s");
    }

    /// The controller runs twice for a short time, first with a clock that is behind. A later step back of the clock by
    /// 25 hours must be detected.
    #[tokio::test]
    async fn x04_f12_watched_clock_detects_step_back_after_doubt() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (create_store(&directory), Arc::new(SteppedClock::default()));
        clock.ahead_s.store(500 * DAY_S, Ordering::Relaxed);
        let first_run = restart(store.as_ref(), &clock).await;
        clock.passed_s.store(DAY_S, Ordering::Relaxed);
        first_run.record(store.as_ref()).await.unwrap();
        // For each start: the seconds by which the clock is ahead, and whether it is trusted. At the last start, the
        // clock is 25 hours behind the second start.
        for (ahead_s, is_trusted) in [(100 * DAY_S, false), (500 * DAY_S + 30 * 3600, true), (500 * DAY_S + 5 * 3600, false)] {
            clock.ahead_s.store(ahead_s, Ordering::Relaxed);
            assert_eq!(restart(store.as_ref(), &clock).await.trusted_now().is_some(), is_trusted, "{ahead_s} s");
        }
    }

    #[tokio::test]
    async fn x04_f12_start_uses_audit_time_when_clock_was_not_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (create_store(&directory), Arc::new(SteppedClock::default()));
        let write = async |at_s| assert!(store.commit(write_audit_entry(at_s)).await.unwrap() > Revision::ZERO);
        write(clock.unix_seconds()).await;
        // A clock that is more than 30 days after the last recorded time is suspect.
        clock.ahead_s.store(31 * DAY_S, Ordering::Relaxed);
        assert_eq!(restart(store.as_ref(), &clock).await.trusted_now(), None);
        // An audit entry from a suspect clock must not count as evidence for the clock.
        write(clock.unix_seconds()).await;
        assert_eq!(restart(store.as_ref(), &clock).await.trusted_now(), None);
    }

    /// The first record of a trusted clock is written when the controller has run for a day.
    #[tokio::test]
    async fn x04_f12_start_writes_nothing_when_clock_is_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (create_store(&directory), Arc::new(SteppedClock::default()));
        let watched = restart(store.as_ref(), &clock).await;
        for passed_s in [0, 10, DAY_S - 1] {
            clock.passed_s.store(passed_s, Ordering::Relaxed);
            watched.record(store.as_ref()).await.unwrap();
            assert_eq!(stored_record(store.as_ref()).await, None, "after {passed_s} s");
        }
    }
}
