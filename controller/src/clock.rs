//! The machine's clock, watched: what time ends is dropped only while the clock is believed ([`stemma_core::clock`]).
//!
//! Whoever drops something asks for the time here and looks at the clock by that, so that nothing is dropped between a jump and
//! the next look.

use std::sync::{Arc, Mutex, PoisonError};

use stemma_core::clock::{Jump, Moment, Trust, spelled};
use stemma_core::finding::Finding;
use stemma_core::object::Timestamp;
use stemma_wire::clock::Clock;

use crate::records::audit::EntryTime;
use crate::records::clock::ClockRecord;
use crate::records::{codec, key};
use crate::store::{Query, Snapshot, Store, StoreError, Transaction};

/// How old the note of the time may become: a start is judged by it where nothing was written later.
const NOTED_MS: u64 = 24 * 3600 * 1000;

/// A clock, and whether it can be believed.
#[derive(Debug)]
pub struct WatchedClock {
    clock: Arc<dyn Clock>,
    trust: Mutex<Trust>,
    /// What the store says of it.
    noted: Mutex<ClockRecord>,
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
        let noted: Option<ClockRecord> = match snapshot.get(key::CLOCK.as_bytes()).await? {
            Some(entry) => Some(codec::decode(&entry.value).map_err(|error| damaged(&error))?),
            None => None,
        };
        let last = match noted {
            Some(noted) if noted.is_suspect => Some(noted),
            Some(_) | None => {
                let at = noted.map(|noted| noted.at).max(last_audited(snapshot.as_ref()).await?);
                at.map(|at| ClockRecord { at, is_suspect: false })
            }
        };
        drop(snapshot);
        let watched = Self::after(last, clock);
        if let Err(error) = watched.note_jump(store).await {
            log::warn!(error = stemma_wire::log::chain(&error); "what is known of the clock could not be noted");
        }
        Ok(watched)
    }

    fn after(last: Option<ClockRecord>, clock: Arc<dyn Clock>) -> Self {
        let now = moment(&*clock);
        let trust = Trust::begin(last.map(|last| last.at), now);
        if let Some(jump) = trust.jump() {
            tell(jump);
        }
        let noted = last.unwrap_or(ClockRecord { at: now.at, is_suspect: false });
        Self { clock, trust: Mutex::new(trust), noted: Mutex::new(noted) }
    }

    /// What the clock says, right or wrong.
    pub fn now(&self) -> Timestamp {
        moment(&*self.clock).at
    }

    /// What it says; `None`: it is suspect, and nothing may be dropped by it.
    pub fn trusted_now(&self) -> Option<Timestamp> {
        let (now, trust) = self.look();
        trust.jump().is_none().then_some(now)
    }

    /// What a person should know of it.
    pub fn finding(&self) -> Option<Finding> {
        self.look().1.finding()
    }

    /// Notes in the store that it is suspect, where it is: before anything else is written by it, which would speak for it at the next start.
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
        let next = match trust.jump() {
            None => ClockRecord { at: now, is_suspect: false },
            Some(jump) => ClockRecord { at: jump.from, is_suspect: true },
        };
        let noted = *self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = !next.is_suspect && next.at.0.abs_diff(noted.at.0) >= NOTED_MS;
        if noted.is_suspect != next.is_suspect || is_old {
            store.commit(Transaction::new().put(key::CLOCK, codec::encode(&next))).await?;
            *self.noted.lock().unwrap_or_else(PoisonError::into_inner) = next;
        }
        Ok(())
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
        assert_eq!(noted(store.as_ref()).await, Some(ClockRecord { at: Timestamp(right), is_suspect: false }));

        clock.ahead_s.store(400 * DAY_S, Ordering::Relaxed);
        assert_eq!(first.trusted_now(), None, "while it runs");
        first.note(store.as_ref()).await.unwrap();
        let suspect = ClockRecord { at: Timestamp(right), is_suspect: true };
        assert_eq!(noted(store.as_ref()).await, Some(suspect));
        for _ in 0..2 {
            let again = restarted(store.as_ref(), &clock).await;
            assert_eq!(again.trusted_now(), None, "after a restart");
            again.note(store.as_ref()).await.unwrap();
            assert_eq!(noted(store.as_ref()).await, Some(suspect));
        }

        clock.ahead_s.store(0, Ordering::Relaxed);
        let right_again = restarted(store.as_ref(), &clock).await;
        assert!(right_again.trusted_now().is_some() && right_again.finding().is_none());
        right_again.note(store.as_ref()).await.unwrap();
        assert!(!noted(store.as_ref()).await.unwrap().is_suspect);
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
