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
use crate::store::{Query, Revision, Snapshot, Store, StoreError, Transaction};

/// How old the note of the time may become: a start is judged by it where nothing was written later.
const NOTED_MS: u64 = 24 * 3600 * 1000;

/// A clock, and whether it can be believed.
#[derive(Debug)]
pub struct WatchedClock {
    clock: Arc<dyn Clock>,
    trust: Mutex<Trust>,
    noted: Mutex<Noted>,
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
    /// What the store says; [`StoreError::Corrupt`] for a record that can't be read.
    pub async fn of(store: &dyn Store, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let snapshot = store.snapshot().await?;
        let noted = match snapshot.get(key::CLOCK.as_bytes()).await? {
            Some(entry) => {
                let record = codec::decode(&entry.value).map_err(|error| damaged(&error))?;
                Some(Noted { record, revision: entry.mod_revision })
            }
            None => None,
        };
        let last = match noted {
            Some(noted) if noted.record.is_suspect => Some(noted),
            noted => {
                let known = noted.as_ref().map(|noted| noted.record.at).max(last_audited(snapshot.as_ref()).await?);
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
        let noted = last.unwrap_or_else(nothing);
        Self { clock, trust: Mutex::new(trust), noted: Mutex::new(noted) }
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

    /// From when the age counts of what has this time and was written at this revision.
    pub fn counts_from(&self, at: Timestamp, revision: Revision) -> Timestamp {
        self.noted().record.doubts.counts_from(at, revision.get())
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
        let (now, trust) = self.look();
        let Noted { record: ClockRecord { at, is_suspect, mut doubts }, revision } = self.noted().clone();
        let next = match trust.jump() {
            None => {
                if is_suspect {
                    doubts.add(Doubt { from: revision.get(), until: now });
                }
                ClockRecord { at: now, is_suspect: false, doubts }
            }
            Some(jump) => ClockRecord { at: jump.from, is_suspect: true, doubts },
        };
        let is_old = !next.is_suspect && next.at.0.abs_diff(at.0) >= NOTED_MS;
        if is_suspect != next.is_suspect || is_old {
            let revision = store.commit(Transaction::new().put(key::CLOCK, codec::encode(&next))).await?;
            *self.noted() = Noted { record: next, revision };
        }
        Ok(())
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self) -> (Timestamp, Trust) {
        let mut trust = self.trust.lock().unwrap_or_else(PoisonError::into_inner);
        let now = moment(&*self.clock);
        let before = *trust;
        let after = before.step(now);
        *trust = after;
        drop(trust);
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

/// When something was last done or refused.
async fn last_audited(snapshot: &dyn Snapshot) -> Result<Option<Timestamp>, StoreError> {
    let last = snapshot.list(&Query::prefix(key::AUDIT).descending().limit(1)).await?;
    let time = last.entries.first().and_then(|entry| codec::decode::<EntryTime>(&entry.value).ok());
    Ok(time.map(|time| time.at))
}

fn damaged(error: &codec::BadRecord) -> StoreError {
    StoreError::Corrupt { what: format!("the record {}: {error}", key::CLOCK) }
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
            assert_eq!(right.counts_from(before.0, before.1), before.0);
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
        let refusal = |at_s: u64| {
            let text =
                format!(r#"{{"at":{},"principal":"p","address":"127.0.0.1:1","refused":"x","unsaid":0}}"#, at_s * 1000);
            codec::encode(&serde_json::from_str::<AuditRecord>(&text).unwrap())
        };
        let write = async |at_s| {
            store.commit(Transaction::new().put_at_revision(key::AUDIT, refusal(at_s))).await.unwrap();
        };
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
