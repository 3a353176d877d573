//! Background tasks: following the store, renewing the controller's own certificates, and deleting expired records.

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use stemma_core::epoch::HostRevisions;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at};
use uuid::Uuid;

use super::Components;
use super::keys::{ControllerKeys, TlsConfigs};
use crate::enrol::{decode, prune};
use crate::records::enrolled as record;
use crate::registry::retention::{RetentionLimits, RetentionSweeper};
use crate::status::StatusTable;
use crate::store::{EventKind, Health, ListQuery, Revision, Snapshot, Store, StoreError, WatchError};

/// How often the age of the controller's own certificates is checked. It is short because a certificate that was issued
/// while the clock was ahead must be replaced soon after the clock is corrected: until then nobody accepts it.
const KEY_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// How far the clock may go back before an existing certificate counts as issued in the future. Certificates are
/// backdated by more than this.
const MAX_SET_BACK_S: u64 = 60;
/// The age at which a signer's certificate is replaced. A third of its 30 days is left for agents whose clocks lag.
const MAX_SIGNER_AGE_S: u64 = 20 * 24 * 3600;
/// The age at which the server certificate, of 90 days, is replaced.
const MAX_SERVER_AGE_S: u64 = 60 * 24 * 3600;
/// How long a file body that no release and no task set names is retained after it was last sent.
const BLOB_RETENTION: Duration = Duration::from_hours(24);
/// How often expired records are deleted.
const PRUNE_INTERVAL: Duration = Duration::from_hours(1);
/// How often the clock is checked for jumps, to report them. Code that deletes expired records checks the clock itself.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// How long hosts that are ahead of the store are collected before their number is logged: after a start many arrive at
/// once.
const AHEAD_DELAY: Duration = Duration::from_secs(5);
/// The minimum time between two logs about hosts that are ahead of the store, if no new host is among them. Some hosts
/// may alternate between being ahead and not, and must not fill the log.
const AHEAD_INTERVAL: Duration = Duration::from_mins(1);
/// How often the sizes of history, audit and stored requests are compared with their limits.
const RETENTION_CHECK_INTERVAL: Duration = Duration::from_mins(1);
/// How often the store is checked for being read-only.
const STORE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a controller still serves after its store became read-only. `/readyz` and every refused write give the
/// reason in the meantime.
const READ_ONLY_GRACE: Duration = Duration::from_secs(5);

/// The background tasks of a controller. They run until it stops. A task that ends by itself has failed.
pub(super) struct BackgroundTasks(JoinSet<String>);

impl BackgroundTasks {
    /// Starts the tasks that every controller has. The snapshot shows the store as it was opened, before any write.
    pub(super) fn begin(
        parts: &Arc<Components>,
        keys: ControllerKeys,
        tls: Arc<TlsConfigs>,
        (snapshot, limits): (Box<dyn Snapshot>, RetentionLimits),
    ) -> Self {
        let mut tasks = Self(JoinSet::new());
        let from = snapshot.revision();
        let task_parts = Arc::clone(parts);
        tasks.spawn(async move {
            let followed = task_parts.registry.cache().follow(task_parts.registry.store().as_ref()).await;
            end_message("the cache", followed)
        });
        let task_parts = Arc::clone(parts);
        tasks.spawn(async move { end_message("the list of certificates", follow_identities(&task_parts, from).await) });
        tasks.spawn(renew_keys(Arc::clone(parts), keys, tls));
        tasks.spawn(prune_expired(Arc::clone(parts)));
        tasks.spawn(enforce_retention(Arc::clone(parts), snapshot, limits));
        tasks.spawn(watch_clock(Arc::clone(parts)));
        tasks.spawn(watch_store(Arc::clone(parts.registry.store())));
        tasks.spawn(report_ahead(Arc::clone(parts)));
        let rejected = Arc::clone(&parts.rejected);
        tasks.spawn(async move { match rejected.log_counts().await {} });
        tasks
    }

    /// Adds a task.
    pub(super) fn spawn(&mut self, task: impl Future<Output = String> + Send + 'static) {
        self.0.spawn(task);
    }

    /// Waits until a task ends, which none should. Returns the reason.
    pub(super) async fn wait_for_failure(&mut self) -> String {
        match self.0.join_next().await {
            Some(Ok(reason)) => reason,
            Some(Err(error)) => format!("a part of the controller panicked: {error}"),
            None => std::future::pending().await,
        }
    }

    /// Ends all tasks.
    pub(super) async fn end(mut self) {
        self.0.shutdown().await;
    }
}

/// What was logged about hosts that are ahead of the store.
#[derive(Default)]
struct AheadReport {
    /// The time of the last log.
    reported_at: Option<Instant>,
    /// The hosts that were ahead at the last log.
    last_nodes: BTreeSet<Uuid>,
    /// The hosts that were ahead at the log before the last one.
    earlier_nodes: BTreeSet<Uuid>,
}

impl AheadReport {
    /// Returns when the hosts that are ahead must be logged. That is at once if one of them is in neither of the last
    /// two logs, otherwise a minute after the last one. Returns `None` if they are the hosts of the last log.
    fn due_at(&self, ahead: &BTreeSet<Uuid>, now: Instant) -> Option<Instant> {
        if *ahead == self.last_nodes {
            return None;
        }
        let is_new = ahead.iter().any(|node| !self.last_nodes.contains(node) && !self.earlier_nodes.contains(node));
        Some(self.reported_at.filter(|_| !is_new).map_or(now, |at| at + AHEAD_INTERVAL))
    }

    /// Records that these hosts are logged now.
    fn record(&mut self, ahead: BTreeSet<Uuid>, now: Instant) {
        self.earlier_nodes = std::mem::replace(&mut self.last_nodes, ahead);
        self.reported_at = Some(now);
    }
}

/// Logs how many hosts are ahead of the store whenever this changes, and soon after a further host gets ahead.
async fn report_ahead(parts: Arc<Components>) -> String {
    let mut report = AheadReport::default();
    loop {
        let ahead = next_ahead(parts.desired.status(), &mut report).await;
        log_ahead(&parts, &ahead);
    }
}

/// Waits until the hosts that are ahead of the store differ from those of the last log and are due, and returns them.
/// They are collected for some seconds first. Changes after that belong to the next log, so the last log of a series
/// counts all of them.
async fn next_ahead(status: &StatusTable, report: &mut AheadReport) -> HashMap<Uuid, HostRevisions> {
    let mut due = None;
    loop {
        match due {
            None => status.ahead_changed().await,
            // The loop must also wake up for a new host, which is due earlier.
            Some(due) => tokio::select! {
                () = status.ahead_changed() => {}
                () = tokio::time::sleep_until(due) => {}
            },
        }
        tokio::time::sleep(AHEAD_DELAY).await;
        let (ahead, now) = (status.all_ahead(), Instant::now());
        let nodes: BTreeSet<_> = ahead.keys().copied().collect();
        due = report.due_at(&nodes, now);
        if due.is_some_and(|due| due <= now) {
            report.record(nodes, now);
            return ahead;
        }
    }
}

/// Logs how many hosts are ahead of the store, with epoch and revision of the host that holds the highest revision. It
/// names one host only, because revisions of different epochs cannot be compared.
fn log_ahead(parts: &Components, ahead: &HashMap<Uuid, HostRevisions>) {
    let (store, epoch) = (parts.registry.store().stats().revision(), parts.desired.epoch_line().now);
    match ahead.values().map(|host| host.held).max_by_key(|held| held.revision) {
        None => log::info!(epoch:% = epoch, revision = store; "no host is ahead of the store now"),
        Some(held) => log::error!(
            nodes = ahead.len(), host_epoch:% = held.epoch, host_revision = held.revision, epoch:% = epoch, revision = store;
            "hosts hold revisions of another copy of the store, which was restored (of one: host_epoch, host_revision); nothing is \
             sent to them until an admin runs: stemma-controller resume-fleet"
        ),
    }
}

/// Ends a few seconds after the store became read-only. Only opening the store again makes it writable, and the service
/// manager restarts a controller that fails. A controller that continued would send the fleet the same state for ever.
async fn watch_store(store: Arc<dyn Store>) -> String {
    let mut ticks = interval(STORE_CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Health::ReadOnly { reason } = store.health() {
            log::error!(error = reason; "the store takes no writes; the controller ends soon, so that it is restarted");
            tokio::time::sleep(READ_ONLY_GRACE).await;
            return format!(
                "the store takes no writes ({reason}): is there room on its disk, and is it sound? the controller must be restarted, \
                 which the service does by itself"
            );
        }
    }
}

fn end_message(what: &str, result: Result<(), StoreError>) -> String {
    match result {
        Ok(()) => format!("{what} can no longer follow the store, which was closed"),
        Err(error) => format!("{what} can no longer follow the store: {}", stemma_wire::log::error_chain(&error)),
    }
}

/// Updates the list of certificates from the store, and ends the check-ins of deleted nodes.
async fn follow_identities(parts: &Components, from: Revision) -> Result<(), StoreError> {
    let store = parts.registry.store();
    let mut changes = store.watch(from.next());
    loop {
        match changes.next().await {
            Ok(change) => {
                for event in &change.events {
                    let Some(node) = record::read_agent_key(&event.key) else { continue };
                    match &event.kind {
                        EventKind::Put { value, .. } => {
                            apply_identity(parts, node, &decode(&event.key, value)?, change.revision);
                        }
                        EventKind::Delete => parts.identities.remove(node, change.revision),
                    }
                }
            }
            Err(WatchError::Compacted { .. }) => {
                let snapshot = store.snapshot().await?;
                for entry in snapshot.list(&ListQuery::prefix(record::AGENTS)).await?.entries {
                    let Some(node) = record::read_agent_key(&entry.key) else { continue };
                    apply_identity(parts, node, &decode(&entry.key, &entry.value)?, entry.mod_revision);
                }
                changes = store.watch(snapshot.revision().next());
            }
            Err(WatchError::Store(StoreError::Closed)) => return Ok(()),
            Err(WatchError::Store(error)) => return Err(error),
        }
    }
}

/// Updates the list of certificates by one record of an agent. If the node was deleted, also ends its check-in.
fn apply_identity(parts: &Components, node: Uuid, record: &record::AgentRecord, revision: Revision) {
    parts.identities.put(node, record, revision);
    if record.retired {
        parts.desired.remove(node);
        log::info!(node:% = node; "certificates of a deleted node are no longer accepted");
    }
}

/// Renews the controller's own certificates before they expire.
async fn renew_keys(parts: Arc<Components>, keys: ControllerKeys, tls: Arc<TlsConfigs>) -> String {
    let now_s = || parts.clock.unix_seconds();
    let mut signer = OwnCertificate { name: "signer", renew_after_s: MAX_SIGNER_AGE_S, created_s: now_s() };
    let mut server = OwnCertificate { name: "server", renew_after_s: MAX_SERVER_AGE_S, created_s: now_s() };
    let mut ticks = interval(KEY_CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        signer.renew_if_old(now_s(), || keys.new_signer().map(|signer| parts.desired.change_signer(signer)));
        server.renew_if_old(now_s(), || keys.renew(&tls));
    }
}

/// One of the controller's own certificates, and when it was issued.
struct OwnCertificate {
    name: &'static str,
    renew_after_s: u64,
    created_s: u64,
}

impl OwnCertificate {
    /// Renews the certificate if it is old, or was issued by a clock that was ahead (F24). A failed renewal is tried
    /// again at the next check.
    fn renew_if_old<E: std::error::Error>(&mut self, now_s: u64, renew: impl FnOnce() -> Result<(), E>) {
        let is_from_future = self.created_s > now_s.saturating_add(MAX_SET_BACK_S);
        if !is_from_future && now_s.saturating_sub(self.created_s) < self.renew_after_s {
            return;
        }
        match renew() {
            Ok(()) => {
                self.created_s = now_s;
                log::info!(kind = self.name; "own certificate renewed");
            }
            Err(error) => {
                let error = stemma_wire::log::error_chain(&error);
                log::error!(kind = self.name, error = error; "own certificate could not be renewed");
            }
        }
    }
}

/// Logs when the clock has jumped, and records in the store when it was last trusted.
async fn watch_clock(parts: Arc<Components>) -> String {
    let mut ticks = interval_at(Instant::now() + CLOCK_CHECK_INTERVAL, CLOCK_CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = parts.registry.clock().record(parts.registry.store().as_ref()).await {
            log::warn!(error = stemma_wire::log::error_chain(&error); "the state of the clock could not be stored");
        }
    }
}

/// Deletes expired records: requests after a day, tokens a day after they expired, and the certificates of a deleted
/// node when the last of them has expired. While the clock is suspect, nothing counts as expired.
async fn prune_expired(parts: Arc<Components>) -> String {
    let mut ticks = interval(PRUNE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(now) = parts.registry.clock().trusted_now() else { continue };
        let pruned = async {
            parts.registry.prune_requests().await?;
            prune::prune(parts.registry.store().as_ref(), &parts.identities, now).await
        };
        if let Err(error) = pruned.await {
            log::warn!(error = stemma_wire::log::error_chain(&error); "expired records could not be deleted");
        }
        prune_blobs(&parts).await;
    }
}

/// Keeps history, audit and stored requests within their limits. It starts when their sizes have been counted.
async fn enforce_retention(parts: Arc<Components>, snapshot: Box<dyn Snapshot>, limits: RetentionLimits) -> String {
    let registry = &parts.registry;
    if let Err(error) = registry.store().stats().count_sizes(snapshot.as_ref()).await {
        log::warn!(error = stemma_wire::log::error_chain(&error); "the sizes of the store could not be counted");
    }
    drop(snapshot);
    let mut keeper = RetentionSweeper::new(limits);
    let mut ticks = interval(RETENTION_CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = keeper.sweep(registry, Instant::now()).await {
            log::warn!(error = stemma_wire::log::error_chain(&error); "history, audit or requests beyond their limits could not be deleted");
        }
    }
}

/// Deletes file bodies that no stored release and no released task set names, a day after they were last sent. The time
/// of sending comes from the file system, so none is deleted until the clock has been trusted for a day.
async fn prune_blobs(parts: &Arc<Components>) {
    if parts.registry.clock().trusted_for(BLOB_RETENTION.as_secs() * 1000).is_none() {
        return;
    }
    let named = parts.registry.cache().model().named_blobs();
    let (blobs, cutoff) = (Arc::clone(&parts.blobs), SystemTime::now() - BLOB_RETENTION);
    let dropped = tokio::task::spawn_blocking(move || blobs.drop_unnamed(&named, cutoff)).await;
    match dropped {
        Ok(Ok(0)) | Err(_) => {}
        Ok(Ok(count)) => log::info!(count; "unreferenced file bodies were deleted"),
        Ok(Err(error)) => log::warn!(error:err = error; "unreferenced file bodies could not be deleted"),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use stemma_core::epoch::HeldRevision;

    use super::*;
    use crate::store::faulty::{FaultyStore, InjectedFault};
    use crate::store::{CreateOptions, Epoch, RedbOptions, RedbStore, Transaction};

    /// The last log counts all hosts that are ahead, a few seconds after the last of them arrived.
    #[tokio::test(start_paused = true)]
    async fn x02_ahead_report_is_due_soon_after_each_change() {
        let (table, mut told) = (StatusTable::default(), AheadReport::default());
        let held = HeldRevision { epoch: Uuid::from_u128(7), revision: 100 };
        let host = Some(HostRevisions { held, sent: None });
        // Each host arrives ten seconds after the one before, and then many arrive at once.
        for (nodes, count) in [(1..2, 1), (2..3, 2), (3..4, 3), (4..41, 40)] {
            let came = Instant::now();
            nodes.for_each(|node| table.set_ahead(Uuid::from_u128(node), host));
            assert_eq!(next_ahead(&table, &mut told).await.len(), count);
            assert!(came.elapsed() < Duration::from_secs(6), "{:?}", came.elapsed());
            tokio::time::sleep_until(came + Duration::from_secs(10)).await;
        }
        let again = tokio::time::timeout(Duration::from_hours(1), next_ahead(&table, &mut told)).await;
        assert!(again.is_err(), "it is said once");
    }

    #[tokio::test(start_paused = true)]
    async fn x02_ahead_report_is_due_each_minute_when_host_flaps() {
        let (table, mut told) = (StatusTable::default(), AheadReport::default());
        let [restless, new] = [1, 2].map(Uuid::from_u128);
        let held = HeldRevision { epoch: Uuid::from_u128(7), revision: 100 };
        let host = Some(HostRevisions { held, sent: None });
        let mut said = Vec::new();
        let turns = async {
            for turn in 0..100 {
                table.set_ahead(restless, host.filter(|_| turn % 2 == 0));
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
        table.set_ahead(new, host);
        assert!(next_ahead(&table, &mut told).await.contains_key(&new));
        assert!(came.elapsed() < Duration::from_secs(6), "{:?}", came.elapsed());
        table.set_ahead(restless, None);
        table.set_ahead(new, None);
        assert!(next_ahead(&table, &mut told).await.is_empty(), "the newest is said, though later");
        assert!(came.elapsed() < Duration::from_secs(80), "{:?}", came.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn f06_watch_store_ends_after_grace_when_store_is_read_only() {
        let directory = tempfile::tempdir().unwrap();
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: Bytes::new() };
        let inner = RedbStore::create(&directory.path().join("store.redb"), &create, RedbOptions::default()).unwrap();
        let store = Arc::new(FaultyStore::new(Arc::new(inner)));
        let mut end = tokio::spawn(watch_store(Arc::clone(&store) as _));
        let hour = Duration::from_hours(1);
        assert!(tokio::time::timeout(hour, &mut end).await.is_err(), "it goes on while writes are taken");
        store.inject_faults([Some(InjectedFault::BecomesReadOnly)]);
        store.commit(Transaction::new().put("a", "b")).await.unwrap_err();
        let since = Instant::now();
        let reason = end.await.unwrap();
        assert!(reason.starts_with("the store takes no writes ("), "{reason}");
        assert!(since.elapsed() >= READ_ONLY_GRACE && since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    }
}
