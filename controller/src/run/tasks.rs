//! What goes on beside the requests: following the store, renewing our own certificates, forgetting what is over.

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use stemma_core::epoch::HeldAndTold;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at};
use uuid::Uuid;

use super::Parts;
use super::keys::{Keys, Sides};
use crate::enrol::{decode, forget};
use crate::records::enrolled as record;
use crate::registry::retention::{Keeper, Kept};
use crate::status::StatusTable;
use crate::store::{EventKind, Health, Query, Revision, Snapshot, Store, StoreError, WatchError};

/// How often the age of our own certificates is checked. After a clock that was ahead has been corrected, nobody accepts such a certificate
/// until it is replaced.
const LOOK_AT_KEYS: Duration = Duration::from_secs(10);
/// How far the clock may go back before an existing certificate counts as one from the future. It is less than certificates are backdated.
const SET_BACK_S: u64 = 60;
/// A signer's certificate is replaced after so long: a third of its 30 days is left for agents whose clocks lag.
const SIGNER_AGE_S: u64 = 20 * 24 * 3600;
/// The server's, of 90 days.
const SERVER_AGE_S: u64 = 60 * 24 * 3600;
/// A file body that nothing names is kept so long.
const BLOB_KEPT: Duration = Duration::from_hours(24);
/// How often what is over is forgotten.
const FORGET: Duration = Duration::from_hours(1);
/// How often it is looked whether the clock has jumped, for people. Whoever drops something looks by itself.
const LOOK_AT_CLOCK: Duration = Duration::from_secs(10);
/// How long hosts are gathered that are ahead of the store before it is said how many they are: after a start many come at once.
const GATHER_AHEAD: Duration = Duration::from_secs(5);
/// How often other changes of these hosts are said at most: some may be ahead off and on, for ever.
const AHEAD_AGAIN: Duration = Duration::from_mins(1);
/// How often it is looked whether history, audit and records of requests take more than they may.
const LOOK_AT_KEPT: Duration = Duration::from_mins(1);
/// How often it is looked whether the store still takes writes.
const LOOK_AT_STORE: Duration = Duration::from_secs(1);
/// How long a controller whose store does not still answers: `/readyz` and every refused write say why meanwhile.
const READ_ONLY: Duration = Duration::from_secs(5);

/// The tasks of a controller. They end when it does, and not before: one that ends by itself has failed.
pub(super) struct Tasks(JoinSet<String>);

impl Tasks {
    /// Begins them. `opened` is the store as it was opened.
    pub(super) fn begin(
        parts: &Arc<Parts>,
        keys: Keys,
        sides: Arc<Sides>,
        (opened, kept): (Box<dyn Snapshot>, Kept),
    ) -> Self {
        let mut tasks = Self(JoinSet::new());
        let from = opened.revision();
        let these = Arc::clone(parts);
        tasks.spawn(async move {
            let followed = these.registry.cache().follow(these.registry.store().as_ref()).await;
            ended("the cache", followed)
        });
        let these = Arc::clone(parts);
        tasks.spawn(async move { ended("the list of certificates", follow_identities(&these, from).await) });
        tasks.spawn(renew_keys(Arc::clone(parts), keys, sides));
        tasks.spawn(forget_old(Arc::clone(parts)));
        tasks.spawn(keep_bounds(Arc::clone(parts), opened, kept));
        tasks.spawn(watch_clock(Arc::clone(parts)));
        tasks.spawn(outlive_store(Arc::clone(parts.registry.store())));
        tasks.spawn(tell_ahead(Arc::clone(parts)));
        let rejected = Arc::clone(&parts.rejected);
        tasks.spawn(async move { match rejected.say_counts().await {} });
        tasks
    }

    /// Adds one.
    pub(super) fn spawn(&mut self, task: impl Future<Output = String> + Send + 'static) {
        self.0.spawn(task);
    }

    /// Waits for one to end, which none should.
    pub(super) async fn failed(&mut self) -> String {
        match self.0.join_next().await {
            Some(Ok(reason)) => reason,
            Some(Err(error)) => format!("a part of the controller panicked: {error}"),
            None => std::future::pending().await,
        }
    }

    /// Ends them all.
    pub(super) async fn end(mut self) {
        self.0.shutdown().await;
    }
}

/// What was said of hosts that are ahead of the store.
#[derive(Default)]
struct ToldAhead {
    /// When it was said last.
    at: Option<Instant>,
    /// Those that were ahead then.
    last: BTreeSet<Uuid>,
    /// Those that were the time before.
    before: BTreeSet<Uuid>,
}

impl ToldAhead {
    /// When it is to be said which hosts are ahead: at once where one is that was not the last two times, else a minute after the last. `None`
    /// where these were said last.
    fn due(&self, ahead: &BTreeSet<Uuid>, now: Instant) -> Option<Instant> {
        if *ahead == self.last {
            return None;
        }
        let is_new = ahead.iter().any(|node| !self.last.contains(node) && !self.before.contains(node));
        Some(self.at.filter(|_| !is_new).map_or(now, |at| at + AHEAD_AGAIN))
    }

    /// Notes that these are said now.
    fn note(&mut self, ahead: BTreeSet<Uuid>, now: Instant) {
        self.before = std::mem::replace(&mut self.last, ahead);
        self.at = Some(now);
    }
}

/// Says how many hosts are ahead of the store, soon after one is that was not.
async fn tell_ahead(parts: Arc<Parts>) -> String {
    let mut told = ToldAhead::default();
    loop {
        let ahead = next_ahead(parts.desired.status(), &mut told).await;
        say_ahead(&parts, &ahead);
    }
}

/// The hosts that are ahead of the store, once they are others than those of the last time (`told`), were gathered for some seconds, and are
/// due: what comes meanwhile is of the next time, so that the last time has them all.
async fn next_ahead(status: &StatusTable, told: &mut ToldAhead) -> HashMap<Uuid, HeldAndTold> {
    let mut due = None;
    loop {
        match due {
            None => status.ahead_changed().await,
            // One that is new is not waited for so long.
            Some(due) => tokio::select! {
                () = status.ahead_changed() => {}
                () = tokio::time::sleep_until(due) => {}
            },
        }
        tokio::time::sleep(GATHER_AHEAD).await;
        let (ahead, now) = (status.all_ahead(), Instant::now());
        let nodes: BTreeSet<_> = ahead.keys().copied().collect();
        due = told.due(&nodes, now);
        if due.is_some_and(|due| due <= now) {
            told.note(nodes, now);
            return ahead;
        }
    }
}

/// Says how many hosts are ahead of the store. Of the one that holds the highest revision it says what that is, since revisions of different
/// epochs are not to be compared.
fn say_ahead(parts: &Parts, ahead: &HashMap<Uuid, HeldAndTold>) {
    let (store, epoch) = (parts.registry.store().stats().revision(), parts.desired.epoch_line().now);
    match ahead.values().map(|host| host.held).max_by_key(|held| held.revision) {
        None => log::info!(epoch:% = epoch, revision = store; "no host is ahead of the store any more"),
        Some(held) => log::error!(
            nodes = ahead.len(), host_epoch:% = held.epoch, host_revision = held.revision, epoch:% = epoch, revision = store;
            "hosts hold revisions of another copy of the store, which was restored (of one: host_epoch, host_revision); nothing is \
             sent to them until an admin runs: stemma-controller resume-fleet"
        ),
    }
}

/// Ends a while after the store takes no writes any more. Only opening it again clears that, and whoever started the controller
/// does so when it fails; to go on would be to tell a fleet the same for ever.
async fn outlive_store(store: Arc<dyn Store>) -> String {
    let mut ticks = interval(LOOK_AT_STORE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Health::ReadOnly { reason } = store.health() {
            log::error!(error = reason; "the store takes no writes; the controller ends soon, so that it is restarted");
            tokio::time::sleep(READ_ONLY).await;
            return format!(
                "the store takes no writes ({reason}): is there room on its disk, and is it sound? the controller must be restarted, \
                 which the service does by itself"
            );
        }
    }
}

fn ended(what: &str, result: Result<(), StoreError>) -> String {
    match result {
        Ok(()) => format!("{what} can no longer follow the store, which was closed"),
        Err(error) => format!("{what} can no longer follow the store: {}", stemma_wire::log::chain(&error)),
    }
}

/// Keeps the list of certificates as the store has it, and cuts those whose node is gone.
async fn follow_identities(parts: &Parts, from: Revision) -> Result<(), StoreError> {
    let store = parts.registry.store();
    let mut changes = store.watch(from.next());
    loop {
        match changes.next().await {
            Ok(change) => {
                for event in &change.events {
                    let Some(node) = record::read_agent_key(&event.key) else { continue };
                    match &event.kind {
                        EventKind::Put { value, .. } => {
                            take_identity(parts, node, &decode(&event.key, value)?, change.revision);
                        }
                        EventKind::Delete => parts.identities.forget(node, change.revision),
                    }
                }
            }
            Err(WatchError::Compacted { .. }) => {
                let snapshot = store.snapshot().await?;
                for entry in snapshot.list(&Query::prefix(record::AGENTS)).await?.entries {
                    let Some(node) = record::read_agent_key(&entry.key) else { continue };
                    take_identity(parts, node, &decode(&entry.key, &entry.value)?, entry.mod_revision);
                }
                changes = store.watch(snapshot.revision().next());
            }
            Err(WatchError::Store(StoreError::Closed)) => return Ok(()),
            Err(WatchError::Store(error)) => return Err(error),
        }
    }
}

fn take_identity(parts: &Parts, node: Uuid, record: &record::AgentRecord, written: Revision) {
    parts.identities.put(node, record, written);
    if record.retired {
        parts.desired.remove(node);
        log::info!(node:% = node; "certificates of a deleted node are good no longer");
    }
}

/// Renews our own certificates before they expire.
async fn renew_keys(parts: Arc<Parts>, keys: Keys, sides: Arc<Sides>) -> String {
    let now_s = || parts.clock.unix_seconds();
    let mut signer = Renewed { what: "signer", after_s: SIGNER_AGE_S, since_s: now_s() };
    let mut server = Renewed { what: "server", after_s: SERVER_AGE_S, since_s: now_s() };
    let mut ticks = interval(LOOK_AT_KEYS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        signer.when_old(now_s(), || keys.signer().map(|signer| parts.desired.change_signer(signer)));
        server.when_old(now_s(), || keys.renew(&sides));
    }
}

/// A certificate of our own, and since when it is there.
struct Renewed {
    what: &'static str,
    after_s: u64,
    since_s: u64,
}

impl Renewed {
    /// Renews it when it is old, or was made by a clock that was ahead (F24); one that could not be made is tried again at the next look.
    fn when_old<E: std::error::Error>(&mut self, now_s: u64, renew: impl FnOnce() -> Result<(), E>) {
        let is_of_the_future = self.since_s > now_s.saturating_add(SET_BACK_S);
        if !is_of_the_future && now_s.saturating_sub(self.since_s) < self.after_s {
            return;
        }
        match renew() {
            Ok(()) => {
                self.since_s = now_s;
                log::info!(kind = self.what; "own certificate renewed");
            }
            Err(error) => {
                let error = stemma_wire::log::chain(&error);
                log::error!(kind = self.what, error = error; "own certificate could not be renewed");
            }
        }
    }
}

/// Says when the clock has jumped, and notes in the store when it was believed last.
async fn watch_clock(parts: Arc<Parts>) -> String {
    let mut ticks = interval_at(Instant::now() + LOOK_AT_CLOCK, LOOK_AT_CLOCK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = parts.registry.clock().note(parts.registry.store().as_ref()).await {
            log::warn!(error = stemma_wire::log::chain(&error); "what is known of the clock could not be noted");
        }
    }
}

/// Forgets records that are over: of requests after a day, of tokens a day after their end, of deleted nodes'
/// certificates with the last of them. By a suspect clock nothing is over.
async fn forget_old(parts: Arc<Parts>) -> String {
    let mut ticks = interval(FORGET);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(now) = parts.registry.clock().trusted_now() else { continue };
        let forgotten = async {
            parts.registry.forget_requests().await?;
            forget::forget(parts.registry.store().as_ref(), &parts.identities, now).await
        };
        if let Err(error) = forgotten.await {
            log::warn!(error = stemma_wire::log::chain(&error); "old records could not be dropped");
        }
        drop_blobs(&parts).await;
    }
}

/// Keeps history, audit and records of requests within their bounds, from when it is known what they take.
async fn keep_bounds(parts: Arc<Parts>, opened: Box<dyn Snapshot>, kept: Kept) -> String {
    let registry = &parts.registry;
    if let Err(error) = registry.store().stats().count_sizes(opened.as_ref()).await {
        log::warn!(error = stemma_wire::log::chain(&error); "what the store holds could not be counted");
    }
    drop(opened);
    let mut keeper = Keeper::new(kept);
    let mut ticks = interval(LOOK_AT_KEPT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = keeper.look(registry, Instant::now()).await {
            log::warn!(error = stemma_wire::log::chain(&error); "what is kept no longer could not be dropped");
        }
    }
}

/// Drops file bodies that no stored release and no released task set names, a day after they were last sent. When that was is told by the file system: so
/// none goes within a day after the clock was believed again.
async fn drop_blobs(parts: &Arc<Parts>) {
    if parts.registry.clock().trusted_for(BLOB_KEPT.as_secs() * 1000).is_none() {
        return;
    }
    let named = parts.registry.cache().model().named_blobs();
    let (blobs, before) = (Arc::clone(&parts.blobs), SystemTime::now() - BLOB_KEPT);
    let dropped = tokio::task::spawn_blocking(move || blobs.drop_unnamed(&named, before)).await;
    match dropped {
        Ok(Ok(0)) | Err(_) => {}
        Ok(Ok(count)) => log::info!(count; "file bodies that nothing names were dropped"),
        Ok(Err(error)) => log::warn!(error:err = error; "old file bodies could not be dropped"),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use stemma_core::epoch::HeldRevision;

    use super::*;
    use crate::store::faulty::{Fault, FaultyStore};
    use crate::store::{CreateOptions, Epoch, RedbOptions, RedbStore, Transaction};

    /// What is said last has all hosts that are ahead, a few seconds after the last of them came.
    #[tokio::test(start_paused = true)]
    async fn x02_the_number_of_hosts_that_are_ahead_is_said_soon_after_each_change() {
        let (table, mut told) = (StatusTable::default(), ToldAhead::default());
        let held = HeldRevision { epoch: Uuid::from_u128(7), revision: 100 };
        let host = Some(HeldAndTold { held, told: None });
        // Each comes ten seconds after the one before, and then many at once.
        for (nodes, count) in [(1..2, 1), (2..3, 2), (3..4, 3), (4..41, 40)] {
            let came = Instant::now();
            nodes.for_each(|node| table.note_ahead(Uuid::from_u128(node), host));
            assert_eq!(next_ahead(&table, &mut told).await.len(), count);
            assert!(came.elapsed() < Duration::from_secs(6), "{:?}", came.elapsed());
            tokio::time::sleep_until(came + Duration::from_secs(10)).await;
        }
        let again = tokio::time::timeout(Duration::from_hours(1), next_ahead(&table, &mut told)).await;
        assert!(again.is_err(), "it is said once");
    }

    #[tokio::test(start_paused = true)]
    async fn x02_a_host_that_is_ahead_off_and_on_is_said_once_a_minute_and_a_new_one_at_once() {
        let (table, mut told) = (StatusTable::default(), ToldAhead::default());
        let [restless, new] = [1, 2].map(Uuid::from_u128);
        let held = HeldRevision { epoch: Uuid::from_u128(7), revision: 100 };
        let host = Some(HeldAndTold { held, told: None });
        let mut said = Vec::new();
        let turns = async {
            for turn in 0..100 {
                table.note_ahead(restless, host.filter(|_| turn % 2 == 0));
                tokio::time::sleep(Duration::from_secs(6)).await;
            }
        };
        let saying = async {
            while said.len() < 100 {
                next_ahead(&table, &mut told).await;
                said.push(Instant::now());
            }
        };
        tokio::select! {
            () = turns => {}
            () = saying => {}
        }
        assert!((7..=10).contains(&said.len()), "in ten minutes: {}", said.len());
        assert!(said.windows(2).all(|two| two[1] - two[0] >= Duration::from_mins(1)), "{said:?}");

        let came = Instant::now();
        table.note_ahead(new, host);
        assert!(next_ahead(&table, &mut told).await.contains_key(&new));
        assert!(came.elapsed() < Duration::from_secs(6), "{:?}", came.elapsed());
        table.note_ahead(restless, None);
        table.note_ahead(new, None);
        assert!(next_ahead(&table, &mut told).await.is_empty(), "the newest is said, though later");
        assert!(came.elapsed() < Duration::from_secs(80), "{:?}", came.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn f06_a_controller_whose_store_became_read_only_says_so_for_a_while_and_ends() {
        let directory = tempfile::tempdir().unwrap();
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: Bytes::new() };
        let inner = RedbStore::create(&directory.path().join("store.redb"), &create, RedbOptions::default()).unwrap();
        let store = Arc::new(FaultyStore::new(Arc::new(inner)));
        let mut end = tokio::spawn(outlive_store(Arc::clone(&store) as _));
        let hour = Duration::from_hours(1);
        assert!(tokio::time::timeout(hour, &mut end).await.is_err(), "it goes on while writes are taken");
        store.plan_commits([Some(Fault::BecomesReadOnly)]);
        store.commit(Transaction::new().put("a", "b")).await.unwrap_err();
        let since = Instant::now();
        let reason = end.await.unwrap();
        assert!(reason.starts_with("the store takes no writes ("), "{reason}");
        assert!(since.elapsed() >= READ_ONLY && since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    }
}
