//! The machine's clock, watched: what time ends is dropped only while the clock is believed ([`stemma_core::clock`]).
//!
//! Whoever drops something asks for the time here and looks at the clock by that, so that nothing is dropped between a jump and
//! the next look.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stemma_core::clock::{Doubt, Doubts, Jump, Moment, Trust, spelled};
use stemma_core::finding::Finding;
use stemma_core::object::Timestamp;
use stemma_wire::clock::Clock;

use crate::records::audit::EntryTime;
use crate::records::clock::ClockRecord;
use crate::records::{codec, key};
use crate::store::{Entry, Query, Revision, Snapshot, Store, StoreError, Transaction};

/// How old the note of the time may become: a start is judged by it where nothing was written later.
const NOTED_MS: u64 = 24 * 3600 * 1000;

/// A clock, and whether it can be believed.
#[derive(Debug)]
pub struct WatchedClock {
    clock: Arc<dyn Clock>,
    trust: Mutex<Trusted>,
    noted: Mutex<Noted>,
    /// Held by who notes something in the store.
    noting: tokio::sync::Mutex<()>,
}

/// Whether the clock can be believed.
#[derive(Clone, Copy, Debug)]
struct Trusted {
    trust: Trust,
    /// By how much it is ahead of what it said before the last doubt, which is not noted as over yet.
    ahead_ms: u64,
}

/// What the store says of the clock.
#[derive(Clone, Debug)]
struct Noted {
    record: ClockRecord,
    /// The revision of the record; zero where there is none.
    revision: Revision,
}

impl WatchedClock {
    /// A clock of which nothing is known from before.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::after(None, clock)
    }

    /// The clock of a controller over this store, judged by the latest time that stands there.
    ///
    /// # Errors
    /// What the store says; [`StoreError::Corrupt`] or [`StoreError::Newer`] for a record that can't be read.
    pub async fn of(store: &dyn Store, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let snapshot = store.snapshot().await?;
        let noted = match snapshot.get(key::CLOCK.as_bytes()).await? {
            Some(entry) => {
                let mut record: ClockRecord = codec::decode(&entry.value).map_err(|error| damaged(&error))?;
                record.doubts.set_recorded(entry.mod_revision.get());
                Some(Noted { record, revision: entry.mod_revision })
            }
            None => None,
        };
        let last = match noted {
            Some(noted) if noted.record.is_suspect => Some(noted),
            noted => {
                // What stands before the note may be of a clock that was wrong then.
                let since = noted.as_ref().map_or(Revision::ZERO, |noted| noted.revision);
                let audited = last_audited(snapshot.as_ref()).await?.filter(|(_, revision)| *revision > since);
                let known = noted.as_ref().map(|noted| noted.record.at).max(audited.map(|(at, _)| at));
                let at = |at| {
                    let (doubts, revision) =
                        noted.map_or_else(Default::default, |one| (one.record.doubts, one.revision));
                    Noted { record: ClockRecord { at, is_suspect: false, doubts }, revision }
                };
                known.map(at)
            }
        };
        drop(snapshot);
        let watched = Self::after(last, clock);
        if let Err(error) = watched.note_jump(store).await {
            log::warn!(error = stemma_wire::log::chain(&error); "what is known of the clock could not be noted");
        }
        Ok(watched)
    }

    fn after(last: Option<Noted>, clock: Arc<dyn Clock>) -> Self {
        let now = moment(&*clock);
        let trust = Trust::begin(last.as_ref().map(|last| last.record.at), now);
        if let Some(jump) = trust.jump() {
            tell(jump);
        }
        let nothing = || Noted {
            record: ClockRecord { at: now.at, is_suspect: false, doubts: Doubts::default() },
            revision: Revision::ZERO,
        };
        // Whether the clock was put back meanwhile is not known of one that is good at once.
        let doubted = last.as_ref().filter(|last| last.record.is_suspect && trust.jump().is_none());
        let ahead_ms = doubted.map_or(0, |last| now.at.0.saturating_sub(last.record.at.0));
        let noted = last.unwrap_or_else(nothing);
        Self {
            clock,
            trust: Mutex::new(Trusted { trust, ahead_ms }),
            noted: Mutex::new(noted),
            noting: tokio::sync::Mutex::default(),
        }
    }

    /// What the clock says, right or wrong.
    pub fn now(&self) -> Timestamp {
        moment(&*self.clock).at
    }

    /// What it says; `None`: nothing may be dropped by it. It is suspect, or it is right again and that is not noted yet: what it wrote meanwhile
    /// would count as old.
    pub fn trusted_now(&self) -> Option<Timestamp> {
        let (now, trust) = self.look();
        (trust.jump().is_none() && !self.noted().record.is_suspect).then_some(now)
    }

    /// What it says, unless it was not believed within that time: what it wrote then where no revision says so would count as old.
    pub fn trusted_for(&self, milliseconds: u64) -> Option<Timestamp> {
        let until = self.noted().record.doubts.last_until();
        self.trusted_now().filter(|now| until.is_none_or(|until| now.0.saturating_sub(until.0) >= milliseconds))
    }

    /// From when the age counts of what has this time and was written at this revision.
    pub fn counts_from(&self, at: Timestamp, revision: Revision) -> Timestamp {
        self.noted().record.doubts.counts_from(at, revision.get(), self.now())
    }

    /// What a person should know of it.
    pub fn finding(&self) -> Option<Finding> {
        self.look().1.finding()
    }

    /// Notes in the store that it is suspect, where it is, or that it is believed again: before anything else is written by it, which would speak
    /// for it at the next start.
    ///
    /// # Errors
    /// What the store says.
    pub async fn note_jump(&self, store: &dyn Store) -> Result<(), StoreError> {
        if self.trusted_now().is_some() { Ok(()) } else { self.note(store).await }
    }

    /// Notes in the store when it was believed last: where it is believed no longer, or again, and else once a day.
    ///
    /// # Errors
    /// What the store says.
    pub async fn note(&self, store: &dyn Store) -> Result<(), StoreError> {
        let _noting = self.noting.lock().await;
        let (now, trust) = self.look();
        let Noted { record: ClockRecord { at, is_suspect, mut doubts }, revision } = self.noted().clone();
        let next = match trust.jump() {
            None => {
                if is_suspect {
                    doubts.add(Doubt { from: revision.get(), to: None, until: now, ahead_ms: self.trusted().ahead_ms });
                }
                ClockRecord { at: now, is_suspect: false, doubts }
            }
            Some(jump) => ClockRecord { at: jump.from, is_suspect: true, doubts },
        };
        let is_old = !next.is_suspect && next.at.0.abs_diff(at.0) >= NOTED_MS;
        if is_suspect != next.is_suspect || is_old {
            let revision = store.commit(Transaction::new().put(key::CLOCK, codec::encode(&next))).await?;
            let mut record = next;
            record.doubts.set_recorded(revision.get());
            if !record.is_suspect {
                self.trusted().ahead_ms = 0;
            }
            *self.noted() = Noted { record, revision };
        }
        Ok(())
    }

    fn trusted(&self) -> MutexGuard<'_, Trusted> {
        self.trust.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self) -> (Timestamp, Trust) {
        let mut trusted = self.trusted();
        let now = moment(&*self.clock);
        let before = trusted.trust;
        let after = before.step(now);
        trusted.trust = after;
        if before.jump().is_some() && after.jump().is_none() {
            // After a jump whose end is not noted yet, both count.
            trusted.ahead_ms = trusted.ahead_ms.saturating_add(before.ahead_at_end(now));
        }
        drop(trusted);
        match (before.jump(), after.jump()) {
            (None, Some(jump)) => tell(jump),
            (Some(_), None) => log::info!("the clock is believed again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        (now.at, after)
    }
}

impl Clock for WatchedClock {
    fn unix_seconds(&self) -> u64 {
        self.clock.unix_seconds()
    }

    fn steady_seconds(&self) -> u64 {
        self.clock.steady_seconds()
    }
}

fn moment(clock: &dyn Clock) -> Moment {
    Moment { at: Timestamp(clock.unix_seconds().saturating_mul(1000)), steady_s: clock.steady_seconds() }
}

fn tell(jump: Jump) {
    log::warn!(
        from = spelled(jump.from), to = spelled(jump.to);
        "the clock jumped, or the controller did not run for so long; nothing is dropped because its time is over until the clock is right \
         again, or has gone on for 24 hours"
    );
}

/// When something was last done or refused, and the revision of that.
async fn last_audited(snapshot: &dyn Snapshot) -> Result<Option<(Timestamp, Revision)>, StoreError> {
    let last = snapshot.list(&Query::prefix(key::AUDIT).descending().limit(1)).await?;
    let read = |entry: &Entry| Some((codec::decode::<EntryTime>(&entry.value).ok()?.at, entry.mod_revision));
    Ok(last.entries.first().and_then(read))
}

fn damaged(error: &codec::BadRecord) -> StoreError {
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

    /// A clock that is set, beside one that goes on.
    #[derive(Debug, Default)]
    struct Set {
        passed_s: AtomicU64,
        ahead_s: AtomicU64,
    }

    impl Clock for Set {
        fn unix_seconds(&self) -> u64 {
            1_795_000_000 + self.steady_seconds() + self.ahead_s.load(Ordering::Relaxed)
        }

        fn steady_seconds(&self) -> u64 {
            self.passed_s.load(Ordering::Relaxed)
        }
    }

    fn store(directory: &tempfile::TempDir) -> Arc<dyn Store> {
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: Bytes::new() };
        Arc::new(RedbStore::create(&directory.path().join("store.redb"), &create, RedbOptions::default()).unwrap())
    }

    async fn noted(store: &dyn Store) -> Option<ClockRecord> {
        let entry = store.snapshot().await.unwrap().get(key::CLOCK.as_bytes()).await.unwrap();
        entry.map(|entry| codec::decode(&entry.value).unwrap())
    }

    async fn restarted(store: &dyn Store, clock: &Arc<Set>) -> WatchedClock {
        WatchedClock::of(store, Arc::clone(clock) as _).await.unwrap()
    }

    #[tokio::test]
    async fn x04_f12_a_clock_that_jumped_is_suspect_after_a_restart_too() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (store(&directory), Arc::new(Set::default()));
        let first = restarted(store.as_ref(), &clock).await;
        assert!(first.trusted_now().is_some());
        clock.passed_s.store(DAY_S, Ordering::Relaxed);
        first.note(store.as_ref()).await.unwrap();
        let right = clock.unix_seconds() * 1000;
        let believed = ClockRecord { at: Timestamp(right), is_suspect: false, doubts: Doubts::default() };
        assert_eq!(noted(store.as_ref()).await, Some(believed.clone()));

        clock.ahead_s.store(400 * DAY_S, Ordering::Relaxed);
        assert_eq!(first.trusted_now(), None, "while it runs");
        first.note(store.as_ref()).await.unwrap();
        let suspect = ClockRecord { is_suspect: true, ..believed };
        assert_eq!(noted(store.as_ref()).await, Some(suspect.clone()));
        for _ in 0..2 {
            let again = restarted(store.as_ref(), &clock).await;
            assert_eq!(again.trusted_now(), None, "after a restart");
            again.note(store.as_ref()).await.unwrap();
            assert_eq!(noted(store.as_ref()).await, Some(suspect.clone()));
        }

        clock.ahead_s.store(0, Ordering::Relaxed);
        let right_again = restarted(store.as_ref(), &clock).await;
        assert!(right_again.trusted_now().is_some() && right_again.finding().is_none());
        assert!(!noted(store.as_ref()).await.unwrap().is_suspect);
    }

    #[tokio::test]
    async fn x04_f12_what_was_written_while_the_clock_was_behind_is_no_older_than_the_end_of_that() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (store(&directory), Arc::new(Set::default()));
        clock.ahead_s.store(400 * DAY_S, Ordering::Relaxed);
        let first = restarted(store.as_ref(), &clock).await;
        clock.passed_s.store(DAY_S, Ordering::Relaxed);
        first.note(store.as_ref()).await.unwrap();
        let write = async || store.commit(Transaction::new().put("x", Bytes::new())).await.unwrap();
        let before = (first.now(), write().await);
        // At a start, and while it runs.
        for is_restarted in [true, false] {
            clock.ahead_s.store(0, Ordering::Relaxed);
            let behind =
                if is_restarted { restarted(store.as_ref(), &clock).await } else { first_again(&store, &clock).await };
            behind.note_jump(store.as_ref()).await.unwrap();
            let (at, revision) = (behind.now(), write().await);
            assert_eq!(behind.trusted_now(), None);
            clock.ahead_s.store(400 * DAY_S, Ordering::Relaxed);
            let right = if is_restarted { restarted(store.as_ref(), &clock).await } else { behind };
            if !is_restarted {
                assert_eq!(
                    right.trusted_now(),
                    None,
                    "nothing is dropped before it is noted that the clock is right again"
                );
                right.note_jump(store.as_ref()).await.unwrap();
            }
            let now = right.trusted_now().unwrap();
            assert_eq!(right.counts_from(at, revision), now, "restarted: {is_restarted}");
            assert_eq!(right.counts_from(before.0, before.1), before.0, "the clock was put back to where it was");
            let again = restarted(store.as_ref(), &clock).await;
            assert_eq!(again.counts_from(at, revision), now, "it is known after a restart too");
        }
    }

    /// A controller that runs while its clock is put back.
    async fn first_again(store: &Arc<dyn Store>, clock: &Arc<Set>) -> WatchedClock {
        clock.ahead_s.store(400 * DAY_S, Ordering::Relaxed);
        let running = restarted(store.as_ref(), clock).await;
        assert!(running.trusted_now().is_some());
        clock.ahead_s.store(0, Ordering::Relaxed);
        running
    }

    fn refusal(at_s: u64) -> Transaction {
        let text =
            format!(r#"{{"at":{},"principal":"p","address":"127.0.0.1:1","refused":"x","unsaid":0}}"#, at_s * 1000);
        let record = serde_json::from_str::<AuditRecord>(&text).unwrap();
        Transaction::new().put_at_revision(key::AUDIT, codec::encode(&record))
    }

    /// One entry of the audit that a clock ahead had written made each later start by it one that is believed, and each right one suspect.
    #[tokio::test]
    async fn x04_f12_what_a_suspect_clock_wrote_speaks_for_no_later_start() {
        for is_restarted in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let (store, clock) = (store(&directory), Arc::new(Set::default()));
            let first = restarted(store.as_ref(), &clock).await;
            clock.passed_s.store(DAY_S, Ordering::Relaxed);
            first.note(store.as_ref()).await.unwrap();
            clock.ahead_s.store(400 * DAY_S, Ordering::Relaxed);
            let ahead = if is_restarted { restarted(store.as_ref(), &clock).await } else { first };
            ahead.note_jump(store.as_ref()).await.unwrap();
            store.commit(refusal(clock.unix_seconds())).await.unwrap();
            clock.ahead_s.store(0, Ordering::Relaxed);
            if is_restarted {
                restarted(store.as_ref(), &clock).await.note(store.as_ref()).await.unwrap();
            } else {
                ahead.note(store.as_ref()).await.unwrap();
            }
            for (ahead_s, is_believed) in [(0, true), (400 * DAY_S, false), (0, true)] {
                clock.ahead_s.store(ahead_s, Ordering::Relaxed);
                let again = restarted(store.as_ref(), &clock).await;
                assert_eq!(again.trusted_now().is_some(), is_believed, "{ahead_s} s ahead, restarted: {is_restarted}");
            }
        }
    }

    /// Where nothing is known from before, a clock that is behind is believed; so is one that goes on for a day.
    #[tokio::test]
    async fn x04_f12_what_was_written_before_a_jump_ahead_that_stays_is_no_older_than_that_allows() {
        for (days, is_restarted) in [(2, false), (100, false), (400, false), (2, true), (400, true)] {
            let directory = tempfile::tempdir().unwrap();
            let (store, clock) = (store(&directory), Arc::new(Set::default()));
            let watched = restarted(store.as_ref(), &clock).await;
            assert!(watched.trusted_now().is_some());
            let (at, revision) = (watched.now(), store.commit(refusal(clock.unix_seconds())).await.unwrap());
            clock.ahead_s.store(days * DAY_S, Ordering::Relaxed);
            watched.note_jump(store.as_ref()).await.unwrap();
            let watched = if is_restarted { restarted(store.as_ref(), &clock).await } else { watched };
            clock.passed_s.store(DAY_S + 10, Ordering::Relaxed);
            let now = watched.now();
            watched.note(store.as_ref()).await.unwrap();
            assert_eq!(watched.trusted_now(), Some(now));
            let age_s = |watched: &WatchedClock| (now.0 - watched.counts_from(at, revision).0) / 1000;
            assert!(
                (DAY_S..DAY_S + 20).contains(&age_s(&watched)) || age_s(&watched) < 20,
                "{} s, {days} days",
                age_s(&watched)
            );
            let again = restarted(store.as_ref(), &clock).await;
            assert_eq!(age_s(&again), age_s(&watched), "it is known after a restart too");
            assert_eq!(again.trusted_for(2 * DAY_S * 1000), None, "files of then have no revision");
        }
    }

    /// The end of the first jump was not noted when the second one came: its part was forgotten, and what was written before counted as older.
    #[tokio::test]
    async fn x04_f12_two_jumps_ahead_in_one_doubt_both_count() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (store(&directory), Arc::new(Set::default()));
        let watched = restarted(store.as_ref(), &clock).await;
        assert!(watched.trusted_now().is_some());
        let (at, revision) = (watched.now(), store.commit(refusal(clock.unix_seconds())).await.unwrap());
        for (nth, ahead_s) in (1..).zip([2 * DAY_S, 7 * DAY_S]) {
            clock.ahead_s.store(ahead_s, Ordering::Relaxed);
            watched.note_jump(store.as_ref()).await.unwrap();
            clock.passed_s.store(nth * (DAY_S + 10), Ordering::Relaxed);
            // It is looked at, and not noted.
            assert_eq!(watched.trusted_now(), None, "the end of the doubt is not noted");
            assert_eq!(watched.finding(), None, "it has gone on for a day");
        }
        watched.note(store.as_ref()).await.unwrap();
        let age_s = (watched.trusted_now().unwrap().0 - watched.counts_from(at, revision).0) / 1000;
        assert!((2 * DAY_S..2 * DAY_S + 30).contains(&age_s), "{age_s} s");
    }

    /// Each of two starts was short, between them the clock was behind: 25 hours were not found that it was put back by later.
    #[tokio::test]
    async fn x04_f12_a_step_back_is_found_after_a_time_of_doubt_too() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (store(&directory), Arc::new(Set::default()));
        clock.ahead_s.store(500 * DAY_S, Ordering::Relaxed);
        let first = restarted(store.as_ref(), &clock).await;
        clock.passed_s.store(DAY_S, Ordering::Relaxed);
        first.note(store.as_ref()).await.unwrap();
        for (ahead_s, is_believed) in
            [(100 * DAY_S, false), (500 * DAY_S + 30 * 3600, true), (500 * DAY_S + 5 * 3600, false)]
        {
            clock.ahead_s.store(ahead_s, Ordering::Relaxed);
            assert_eq!(restarted(store.as_ref(), &clock).await.trusted_now().is_some(), is_believed, "{ahead_s} s");
        }
    }

    #[tokio::test]
    async fn x04_f12_a_start_is_judged_by_the_audit_where_the_time_was_not_noted() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (store(&directory), Arc::new(Set::default()));
        let write = async |at_s| assert!(store.commit(refusal(at_s)).await.unwrap() > Revision::ZERO);
        write(clock.unix_seconds()).await;
        clock.ahead_s.store(31 * DAY_S, Ordering::Relaxed);
        assert_eq!(restarted(store.as_ref(), &clock).await.trusted_now(), None);
        // What is written by a suspect clock does not speak for it.
        write(clock.unix_seconds()).await;
        assert_eq!(restarted(store.as_ref(), &clock).await.trusted_now(), None);
    }

    #[tokio::test]
    async fn x04_f12_a_quiet_start_notes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = (store(&directory), Arc::new(Set::default()));
        let watched = restarted(store.as_ref(), &clock).await;
        for passed_s in [0, 10, DAY_S - 1] {
            clock.passed_s.store(passed_s, Ordering::Relaxed);
            watched.note(store.as_ref()).await.unwrap();
            assert_eq!(noted(store.as_ref()).await, None, "after {passed_s} s");
        }
    }
}
