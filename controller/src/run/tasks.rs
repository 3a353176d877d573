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
use crate::enrol::{decode_record, prune};
use crate::records::enrolled as record;
use crate::registry::retention::{RetentionLimits, RetentionSweeper};
use crate::status::StatusTable;
use crate::store::{EventKind, Health, ListQuery, Revision, Snapshot, Store, StoreError, WatchError};

/// The interval at which the age of the controller's own certificates is checked. The interval is short because of
/// wrong clocks. A certificate that was issued while the clock was ahead is not valid yet when the clock is corrected.
/// Clients and agents refuse the certificate until it is replaced.
const KEY_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// The time, in seconds, by which the clock may be behind the issue of a certificate. Certificates are backdated by
/// more than this time, so they are valid then. If the clock is further behind, they are replaced.
const MAX_SET_BACK_S: u64 = 60;
/// The age, in seconds, at which the certificate of the signer is replaced. The signer signs what agents receive. The
/// certificate is valid for 30 days, so an agent whose clock is up to 10 days ahead still accepts it.
const MAX_SIGNER_AGE_S: u64 = 20 * 24 * 3600;
/// The age, in seconds, at which the server certificate is replaced. It is valid for 90 days.
const MAX_SERVER_AGE_S: u64 = 60 * 24 * 3600;
/// The time for which a blob (the content of a file) is retained after a client last sent it to the controller,
/// although no release and no task set refers to the blob any more.
const BLOB_RETENTION: Duration = Duration::from_hours(24);
/// The interval at which expired records are deleted.
const PRUNE_INTERVAL: Duration = Duration::from_hours(1);
/// The interval at which the clock is checked for jumps, to log each jump and to store whether the clock is trusted.
/// Code that deletes expired records does not rely on this check. It checks the clock itself.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// The time between a change of the hosts that are ahead of the store and the log of their number. After a start, many
/// such hosts check in at once, and one log then counts all of them.
const AHEAD_DELAY: Duration = Duration::from_secs(5);
/// The minimum time between two logs about hosts that are ahead of the store. It does not apply if a host is in neither
/// of the last two logs. Otherwise, a host that alternates between "ahead" and "not ahead" would fill the log.
const AHEAD_INTERVAL: Duration = Duration::from_mins(1);
/// The interval at which the sizes of history, audit log and stored requests are compared with their limits.
const RETENTION_CHECK_INTERVAL: Duration = Duration::from_mins(1);
/// The interval at which the controller checks whether its store has become read-only.
const STORE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The time for which a controller still serves after its store became read-only. During this time, `/readyz` and every
/// refused write report the reason.
const READ_ONLY_GRACE: Duration = Duration::from_secs(5);

/// The background tasks of a controller. They run until the controller stops. A task that ends earlier has failed, and
/// returns the reason as a `String`.
pub(super) struct BackgroundTasks(JoinSet<String>);

impl BackgroundTasks {
    /// Starts the tasks that every controller has. `snapshot` shows the store before the first write of this
    /// controller. `limits` are the limits of history and audit log.
    pub(super) fn begin(
        parts: &Arc<Components>,
        keys: ControllerKeys,
        tls: Arc<TlsConfigs>,
        (snapshot, limits): (Box<dyn Snapshot>, RetentionLimits),
    ) -> Self {
        let mut tasks = Self(JoinSet::new());
        let start = snapshot.revision();
        let task_parts = Arc::clone(parts);
        tasks.spawn(async move {
            let result = task_parts.registry.cache().follow(task_parts.registry.store().as_ref()).await;
            end_message("the cache", result)
        });
        let task_parts = Arc::clone(parts);
        tasks.spawn(async move { end_message("the list of certificates", follow_identities(&task_parts, start).await) });
        tasks.spawn(renew_keys(Arc::clone(parts), keys, tls));
        tasks.spawn(prune_expired(Arc::clone(parts)));
        tasks.spawn(enforce_retention(Arc::clone(parts), snapshot, limits));
        tasks.spawn(watch_clock(Arc::clone(parts)));
        tasks.spawn(watch_store(Arc::clone(parts.registry.store())));
        tasks.spawn(report_hosts_ahead(Arc::clone(parts)));
        let rejected = Arc::clone(&parts.rejected);
        // `log_counts` never returns. The empty match gives this task the result type of the others.
        tasks.spawn(async move { match rejected.log_counts().await {} });
        tasks
    }

    /// Starts a further background task. `task` must run until the controller stops, and returns the reason if it
    /// fails.
    pub(super) fn spawn(&mut self, task: impl Future<Output = String> + Send + 'static) {
        self.0.spawn(task);
    }

    /// Waits until a background task ends, and returns the reason. Such an end is always a failure. Waits for ever if
    /// there are no tasks.
    pub(super) async fn wait_for_failure(&mut self) -> String {
        match self.0.join_next().await {
            Some(Ok(reason)) => reason,
            Some(Err(error)) => format!("a part of the controller panicked: {error}"),
            None => std::future::pending().await,
        }
    }

    /// Aborts all tasks, and waits until they have ended.
    pub(super) async fn abort_all(mut self) {
        self.0.shutdown().await;
    }
}

/// The last logs about hosts that are ahead of the store: hosts that hold a later revision than the store has.
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
    /// Returns the time at which the hosts in `ahead` must be logged, or `None` if the last log had exactly these
    /// hosts. The time is `now` if one of the hosts is in neither of the last two logs. Otherwise it is a minute after
    /// the last log.
    fn due_at(&self, ahead: &BTreeSet<Uuid>, now: Instant) -> Option<Instant> {
        if *ahead == self.last_nodes {
            return None;
        }
        let is_new = ahead.iter().any(|node| !self.last_nodes.contains(node) && !self.earlier_nodes.contains(node));
        Some(self.reported_at.filter(|_| !is_new).map_or(now, |last_log| last_log + AHEAD_INTERVAL))
    }

    /// Records that the hosts in `ahead` are logged at the time `now`.
    fn record(&mut self, ahead: BTreeSet<Uuid>, now: Instant) {
        self.earlier_nodes = std::mem::replace(&mut self.last_nodes, ahead);
        self.reported_at = Some(now);
    }
}

/// Logs the hosts that are ahead of the store whenever [`next_hosts_ahead`] returns them. Never returns.
async fn report_hosts_ahead(parts: Arc<Components>) -> String {
    let mut report = AheadReport::default();
    loop {
        let ahead = next_hosts_ahead(parts.desired.status(), &mut report).await;
        log_hosts_ahead(&parts, &ahead);
    }
}

/// Waits until the hosts that are ahead of the store must be logged, and returns them with their revisions. Records the
/// log in `report`. After each change it waits [`AHEAD_DELAY`], so that one log counts hosts that arrive together.
/// Later changes belong to the next log.
async fn next_hosts_ahead(status: &StatusTable, report: &mut AheadReport) -> HashMap<Uuid, HostRevisions> {
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
        let (ahead, now) = (status.hosts_ahead(), Instant::now());
        let nodes: BTreeSet<_> = ahead.keys().copied().collect();
        due = report.due_at(&nodes, now);
        if due.is_some_and(|due| due <= now) {
            report.record(nodes, now);
            return ahead;
        }
    }
}

/// Logs how many hosts are ahead of the store. The log has the epoch and the revision of only one of these hosts, the
/// one with the highest revision number. A range of revisions would mean nothing if the hosts are of different epochs.
fn log_hosts_ahead(parts: &Components, ahead: &HashMap<Uuid, HostRevisions>) {
    let (store_revision, epoch) = (parts.registry.store().stats().revision(), parts.desired.epoch_line().now);
    match ahead.values().map(|host| host.held).max_by_key(|position| position.revision) {
        None => log::info!(epoch:% = epoch, revision = store_revision; "no host is ahead of the store now"),
        Some(position) => log::error!(
            nodes = ahead.len(), host_epoch:% = position.epoch, host_revision = position.revision, epoch:% = epoch, revision = store_revision;
            "hosts hold revisions of another copy of the store, which was restored (of one: host_epoch, host_revision); nothing is \
             sent to them until an admin runs: stemma-controller resume-fleet"
        ),
    }
}

/// Waits until the store becomes read-only, then [`READ_ONLY_GRACE`] more, and returns the reason. The controller stops
/// when this task ends, and the service manager (systemd) restarts it. Only a restart makes the store writable again. A
/// controller that continued would send the same state to the fleet for ever.
async fn watch_store(store: Arc<dyn Store>) -> String {
    let mut ticks = interval(STORE_CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Health::ReadOnly { reason } = store.health() {
            log::error!(error = reason; "the store takes no writes; the controller ends soon, so that it is restarted");
            tokio::time::sleep(READ_ONLY_GRACE).await;
            return format!(
                "the store takes no writes ({reason}): check that its disk has free space and works; the controller must be restarted, \
                 which the service manager does automatically"
            );
        }
    }
}

/// Returns the reason why a task that follows the changes of the store has ended. `follower` names what the task
/// updates.
fn end_message(follower: &str, result: Result<(), StoreError>) -> String {
    match result {
        Ok(()) => format!("{follower} can no longer follow the store, which was closed"),
        Err(error) => format!("{follower} can no longer follow the store: {}", stemma_wire::log::error_chain(&error)),
    }
}

/// Updates the agents' certificates in memory with each change of the store after `opened_revision`. Ends the check-ins
/// of deleted nodes. Reads all records of agents again if changes were compacted. Returns `Ok` when the store is
/// closed.
async fn follow_identities(parts: &Components, opened_revision: Revision) -> Result<(), StoreError> {
    let store = parts.registry.store();
    let mut changes = store.watch(opened_revision.next());
    loop {
        match changes.next().await {
            Ok(change) => {
                for event in &change.events {
                    let Some(node) = record::read_agent_key(&event.key) else { continue };
                    match &event.kind {
                        EventKind::Put { value, .. } => {
                            apply_identity(parts, node, &decode_record(&event.key, value)?, change.revision);
                        }
                        EventKind::Delete => parts.identities.remove(node, change.revision),
                    }
                }
            }
            Err(WatchError::Compacted { .. }) => {
                let snapshot = store.snapshot().await?;
                for entry in snapshot.list(&ListQuery::prefix(record::AGENTS)).await?.entries {
                    let Some(node) = record::read_agent_key(&entry.key) else { continue };
                    apply_identity(parts, node, &decode_record(&entry.key, &entry.value)?, entry.mod_revision);
                }
                changes = store.watch(snapshot.revision().next());
            }
            Err(WatchError::Store(StoreError::Closed)) => return Ok(()),
            Err(WatchError::Store(error)) => return Err(error),
        }
    }
}

/// Updates the agents' certificates in memory with the stored record of a node's agent. If the node was deleted
/// (`retired`), also ends its check-in.
fn apply_identity(parts: &Components, node: Uuid, record: &record::AgentRecord, revision: Revision) {
    parts.identities.put(node, record, revision);
    if record.retired {
        parts.desired.remove(node);
        log::info!(node:% = node; "certificates of a deleted node are no longer accepted");
    }
}

/// Renews the controller's own certificates before they expire. The first certificates are issued at the start of the
/// controller, so their age is counted from the start of this task. Never returns.
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

/// One of the controller's own certificates. `created_s` is the time at which it was issued, in seconds since 1970.
struct OwnCertificate {
    name: &'static str,
    renew_after_s: u64,
    created_s: u64,
}

impl OwnCertificate {
    /// Calls `renew` if the certificate is old, or if the clock was ahead when the certificate was issued. A failed
    /// renewal is logged, and tried again at the next check.
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

/// Checks the clock for jumps every ten seconds. Stores whether the clock is trusted when this changes, and once a day
/// the time of a trusted clock. Never returns.
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

/// Deletes expired records every hour: stored requests after a day, tokens a day after they were used up or expired,
/// and the certificates of a deleted node when none of them can be renewed any more. Also deletes blobs that are no
/// longer used. Deletes nothing while the clock is not trusted, because it has jumped. Never returns.
async fn prune_expired(parts: Arc<Components>) -> String {
    let mut ticks = interval(PRUNE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(now) = parts.registry.clock().trusted_now() else { continue };
        let deletion = async {
            parts.registry.prune_requests().await?;
            prune::prune(parts.registry.store().as_ref(), &parts.identities, now).await
        };
        if let Err(error) = deletion.await {
            log::warn!(error = stemma_wire::log::error_chain(&error); "expired records could not be deleted");
        }
        prune_blobs(&parts).await;
    }
}

/// Deletes history, audit events and stored requests beyond their limits. Checks their sizes once a minute, and their
/// ages once an hour. First counts the size of the entries that existed when the store was opened, from `snapshot`.
/// Deletes nothing while the clock is not trusted, because it has jumped. Never returns.
async fn enforce_retention(parts: Arc<Components>, snapshot: Box<dyn Snapshot>, limits: RetentionLimits) -> String {
    let registry = &parts.registry;
    if let Err(error) = registry.store().stats().count_sizes(snapshot.as_ref()).await {
        log::warn!(error = stemma_wire::log::error_chain(&error); "the sizes of the store could not be counted");
    }
    drop(snapshot);
    let mut sweeper = RetentionSweeper::new(limits);
    let mut ticks = interval(RETENTION_CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = sweeper.sweep(registry, Instant::now()).await {
            log::warn!(error = stemma_wire::log::error_chain(&error); "history, audit or requests beyond their limits could not be deleted");
        }
    }
}

/// Deletes blobs (contents of files) that no stored release and no released task set refers to, a day after a client
/// last sent them to the controller. That time is the time stamp of the blob's file. A wrong clock may have set it, so
/// nothing is deleted until the clock has been trusted for a day.
async fn prune_blobs(parts: &Arc<Components>) {
    if parts.registry.clock().trusted_for(BLOB_RETENTION.as_secs() * 1000).is_none() {
        return;
    }
    let referenced_blobs = parts.registry.cache().model().named_blobs();
    let (blobs, cutoff) = (Arc::clone(&parts.blobs), SystemTime::now() - BLOB_RETENTION);
    let result = tokio::task::spawn_blocking(move || blobs.delete_unnamed(&referenced_blobs, cutoff)).await;
    match result {
        // An `Err(_)` means that the deletion panicked. The next hour tries again.
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

    /// A few seconds after the first of several hosts became ahead of the store, one log counts all of them.
    #[tokio::test(start_paused = true)]
    async fn x02_ahead_report_is_due_soon_after_each_change() {
        let (table, mut report) = (StatusTable::default(), AheadReport::default());
        let host_revision = HeldRevision { epoch: Uuid::from_u128(7), revision: 100 };
        let host = Some(HostRevisions { held: host_revision, sent: None });
        // Each host arrives ten seconds after the one before, and then many arrive at once.
        for (nodes, count) in [(1..2, 1), (2..3, 2), (3..4, 3), (4..41, 40)] {
            let start = Instant::now();
            nodes.for_each(|node| table.set_ahead(Uuid::from_u128(node), host));
            assert_eq!(next_hosts_ahead(&table, &mut report).await.len(), count);
            assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
            tokio::time::sleep_until(start + Duration::from_secs(10)).await;
        }
        let second_log = tokio::time::timeout(Duration::from_hours(1), next_hosts_ahead(&table, &mut report)).await;
        assert!(second_log.is_err(), "without a further change, there is no further log");
    }

    /// A host that is alternately ahead of the store and not is logged at most once a minute. A host that is in neither
    /// of the last two logs is logged after a few seconds, without the wait of a minute.
    #[tokio::test(start_paused = true)]
    async fn x02_ahead_report_is_due_each_minute_when_host_flaps() {
        let (table, mut report) = (StatusTable::default(), AheadReport::default());
        let [flapping_node, new_node] = [1, 2].map(Uuid::from_u128);
        let host_revision = HeldRevision { epoch: Uuid::from_u128(7), revision: 100 };
        let host = Some(HostRevisions { held: host_revision, sent: None });
        let mut log_times = Vec::new();
        let flapping = async {
            for round in 0..100 {
                table.set_ahead(flapping_node, host.filter(|_| round % 2 == 0));
                tokio::time::sleep(Duration::from_secs(6)).await;
            }
        };
        let logging = async {
            while log_times.len() < 100 {
                next_hosts_ahead(&table, &mut report).await;
                log_times.push(Instant::now());
            }
        };
        tokio::select! {
            () = flapping => {}
            () = logging => {}
        }
        assert!((7..=10).contains(&log_times.len()), "in ten minutes: {}", log_times.len());
        assert!(log_times.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_mins(1)), "{log_times:?}");

        let start = Instant::now();
        table.set_ahead(new_node, host);
        assert!(next_hosts_ahead(&table, &mut report).await.contains_key(&new_node));
        assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
        table.set_ahead(flapping_node, None);
        table.set_ahead(new_node, None);
        assert!(next_hosts_ahead(&table, &mut report).await.is_empty(), "the last change is logged too, but later");
        assert!(start.elapsed() < Duration::from_secs(80), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn f06_watch_store_ends_after_grace_when_store_is_read_only() {
        let directory = tempfile::tempdir().unwrap();
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: Bytes::new() };
        let inner = RedbStore::create(&directory.path().join("store.redb"), &create, RedbOptions::default()).unwrap();
        let store = Arc::new(FaultyStore::new(Arc::new(inner)));
        let mut watcher = tokio::spawn(watch_store(Arc::clone(&store) as _));
        let hour = Duration::from_hours(1);
        assert!(tokio::time::timeout(hour, &mut watcher).await.is_err(), "the task continues while the store accepts writes");
        store.inject_faults([Some(InjectedFault::BecomesReadOnly)]);
        store.commit(Transaction::new().put("a", "b")).await.unwrap_err();
        let start = Instant::now();
        let reason = watcher.await.unwrap();
        assert!(reason.starts_with("the store takes no writes ("), "{reason}");
        assert!(start.elapsed() >= READ_ONLY_GRACE && start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}
