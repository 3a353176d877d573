//! Tests which history images, audit entries and request records a store retains.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stemma_core::name::ObjectName;
use stemma_core::object::{Kind, PrincipalSpec, Timestamp};
use stemma_wire::clock::FixedClock;
use uuid::Uuid;

use super::*;
use crate::cache::Cache;
use crate::records::request::{RequestRecord, StoredAnswer};
use crate::registry::tests::ManualClock;
use crate::registry::work::PendingWrite;
use crate::registry::{Caller, Context};
use crate::store::{CreateOptions, Epoch, RedbOptions, RedbStore};

const DAY_S: u64 = 24 * 3600;
const MIB: u64 = 1 << 20;
/// Size of a large description or audit reason, in bytes. Forty images with such a description are about two mebibytes.
const LARGE_DESCRIPTION_BYTES: usize = 50_000;

/// A store whose sizes are counted, and the cache that follows it.
struct RetentionSite {
    store: Arc<dyn Store>,
    cache: Arc<Cache>,
    _directory: tempfile::TempDir,
}

impl RetentionSite {
    /// Creates an empty store that counts the sizes of its entries, and starts the cache.
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: Bytes::new() };
        let path = directory.path().join("store.redb");
        let store: Arc<dyn Store> = Arc::new(RedbStore::create(&path, &create, RedbOptions::default()).unwrap());
        let snapshot = store.snapshot().await.unwrap();
        store.stats().count_sizes(snapshot.as_ref()).await.unwrap();
        let cache = Arc::new(Cache::load(store.as_ref()).await.unwrap());
        let (cache_follower, followed_store) = (Arc::clone(&cache), Arc::clone(&store));
        tokio::spawn(async move { cache_follower.follow(followed_store.as_ref()).await });
        Self { store, cache, _directory: directory }
    }

    /// Returns a registry on the store whose clock shows this day, counted from 1970.
    fn registry_at(&self, day: u64) -> Registry {
        Registry::new(Arc::clone(&self.store), Arc::clone(&self.cache), Arc::new(FixedClock(day * DAY_S)))
    }

    /// Creates or updates principal `number` on a day. The principal gets a description of this many bytes, and the
    /// audit entry gets this reason.
    async fn write(&self, day: u64, number: u128, bytes: usize, reason: &str) {
        let decide = |context: &Context<'_>| {
            let mut work = PendingWrite::new(context);
            let (uuid, name) = (Uuid::from_u128(number), ObjectName::new(&format!("p{number}")).unwrap());
            let existing = context.model.principals.get(uuid).cloned();
            let generation = existing.as_ref().map_or(0, |existing| existing.meta.generation);
            let spec = PrincipalSpec { description: Some(format!("{generation:0>bytes$}")), ..PrincipalSpec::default() };
            match &existing {
                None => work.create(uuid, name, spec).map(drop)?,
                Some(existing) => work.update(existing, name, spec).map(drop)?,
            }
            work.finish(StoredAnswer::empty(200))
        };
        self.registry_at(day).write(&Caller::controller(reason), decide).await.unwrap();
    }

    /// Deletes principal `number` on a day.
    async fn delete(&self, day: u64, number: u128) {
        let decide = |context: &Context<'_>| {
            let mut work = PendingWrite::new(context);
            let object = context.model.principals.get(Uuid::from_u128(number)).cloned().unwrap();
            work.delete_unused(&object)?;
            work.finish(StoredAnswer::empty(204))
        };
        self.registry_at(day).write(&Caller::controller("test"), decide).await.unwrap();
    }

    /// Returns the revisions of the entries whose keys begin with a prefix.
    async fn revisions_below(&self, prefix: String) -> Vec<u64> {
        let list = self.store.snapshot().await.unwrap().list(&ListQuery::prefix(prefix)).await.unwrap();
        list.entries.iter().map(|entry| entry.mod_revision.get()).collect()
    }

    /// Returns the revisions of the images of principal `number` in the history.
    async fn image_revisions(&self, number: u128) -> Vec<u64> {
        self.revisions_below(key::history(Kind::Principal, Uuid::from_u128(number))).await
    }

    async fn audit_revisions(&self) -> Vec<u64> {
        self.revisions_below(key::AUDIT.to_owned()).await
    }

    /// Returns the size of all entries whose keys begin with a prefix, in bytes.
    fn stored_bytes(&self, prefix: &str) -> u64 {
        self.store.stats().prefix_bytes(prefix).unwrap()
    }
}

/// Returns the last `count` revisions up to `head`.
fn last_revisions(count: usize, head: u64) -> Vec<u64> {
    (head + 1 - count as u64..=head).collect()
}

#[tokio::test]
async fn x03_sweep_limits_history_by_age_and_size_including_deleted_objects() {
    let site = RetentionSite::new().await;
    for day in [1, 2, 60] {
        site.write(day, 1, 10, "test").await;
    }
    site.write(2, 2, 10, "test").await;
    site.delete(60, 2).await;
    for (day, live_images, deleted_images) in [
        (91, vec![1, 2, 3], vec![4, 5]),
        (92, vec![2, 3], vec![4, 5]),
        (149, vec![2, 3], vec![4, 5]),
        (150, vec![3], vec![]),
        (9_999, vec![3], vec![]),
    ] {
        site.registry_at(day).sweep_history(&HistoryRetention::default()).await.unwrap();
        assert_eq!((site.image_revisions(1).await, site.image_revisions(2).await), (live_images, deleted_images), "on day {day}");
    }
    let head = site.store.head().await.unwrap();
    let dropped_again = site.registry_at(9_999).sweep_history(&HistoryRetention::default()).await.unwrap();
    assert_eq!(
        (dropped_again, site.store.head().await.unwrap()),
        (DroppedTotals::default(), head),
        "a sweep that drops nothing writes nothing"
    );

    let small_limit = HistoryRetention { mebibytes: 1, ..HistoryRetention::default() };
    for _ in 0..40 {
        site.write(9_999, 3, LARGE_DESCRIPTION_BYTES, "test").await;
    }
    let (all_images, bytes_before) = (site.image_revisions(3).await, site.stored_bytes(key::HISTORY));
    assert!(bytes_before > MIB, "{bytes_before}");
    let dropped = site.registry_at(9_999).sweep_history(&small_limit).await.unwrap();
    let remaining = site.image_revisions(3).await;
    assert_eq!(remaining, all_images[all_images.len() - remaining.len()..], "the newest images remain");
    assert_eq!(dropped.entries, (all_images.len() - remaining.len()) as u64);
    assert_eq!(site.stored_bytes(key::HISTORY), bytes_before - dropped.bytes);
    assert!((MIB * 3 / 4..=MIB).contains(&site.stored_bytes(key::HISTORY)), "the sweep drops no more than needed");
    assert_eq!(site.image_revisions(1).await, [3]);

    // The newest image of an existing object remains, whatever its size.
    for number in 10..35 {
        site.write(9_999, number, LARGE_DESCRIPTION_BYTES, "test").await;
    }
    site.registry_at(9_999).sweep_history(&small_limit).await.unwrap();
    for number in [1, 3].into_iter().chain(10..35) {
        assert_eq!(site.image_revisions(number).await.len(), 1, "{number}");
    }
    assert!(site.stored_bytes(key::HISTORY) > MIB);
}

/// By default, the history has at most 100 images (stored versions) of one object.
#[tokio::test]
async fn x03_sweep_limits_history_by_images_per_object() {
    let site = RetentionSite::new().await;
    for _ in 0..120 {
        site.write(1, 1, 10, "test").await;
    }
    site.registry_at(1).sweep_history(&HistoryRetention::default()).await.unwrap();
    assert_eq!(site.image_revisions(1).await, last_revisions(100, 120));
}

/// By default, entries of the audit are retained for 400 days. For the size, the test sets a limit of one mebibyte. The
/// arguments of `site.write` are the day, the number of a principal, the size of its description in bytes, and the
/// reason in the audit.
#[tokio::test]
async fn x03_sweep_limits_audit_by_age_and_size() {
    let site = RetentionSite::new().await;
    for day in [1, 2, 50] {
        site.write(day, 1, 10, "test").await;
    }
    for (day, remaining) in [(400, vec![1, 2, 3]), (401, vec![2, 3]), (402, vec![3]), (449, vec![3])] {
        site.registry_at(day).sweep_audit(&AuditRetention::default()).await.unwrap();
        assert_eq!(site.audit_revisions().await, remaining, "on day {day}");
    }
    for _ in 0..40 {
        site.write(449, 1, 10, &"x".repeat(LARGE_DESCRIPTION_BYTES)).await;
    }
    let head = site.audit_revisions().await.last().copied().unwrap();
    let small_limit = AuditRetention { mebibytes: 1, ..AuditRetention::default() };
    let dropped = site.registry_at(449).sweep_audit(&small_limit).await.unwrap();
    let remaining = site.audit_revisions().await;
    assert_eq!(remaining, last_revisions(remaining.len(), head), "the newest entries remain");
    assert_eq!(dropped.entries, (41 - remaining.len()) as u64);
    assert!((MIB * 3 / 4..=MIB).contains(&site.stored_bytes(key::AUDIT)), "the sweep drops no more than needed");
}

/// In this test, a record has about 10 kB. `ada` has two records, and `otto` has 40. The limits are 600 kB and 300 kB.
#[tokio::test]
async fn x03_sweep_drops_request_records_of_largest_owner_when_over_size() {
    let site = RetentionSite::new().await;
    let mut revisions = Vec::new();
    for (owner, count) in [("ada", 2), ("otto", 40)] {
        for number in 0..count {
            let (at, hash, answer) = (Timestamp(0), "x".repeat(10_000), StoredAnswer::empty(200));
            let record = codec::encode(&RequestRecord { at, hash, answer, asked_by: None });
            let request_key = key::request(owner, Uuid::from_u128(number));
            revisions.push(site.store.commit(Transaction::new().put(request_key, record)).await.unwrap().get());
        }
    }
    let revisions_of = async |owner: &str| site.revisions_below(format!("{}{owner}/", key::REQUESTS)).await;
    assert_eq!(site.registry_at(0).sweep_requests(600_000).await.unwrap(), DroppedTotals::default());
    let dropped = site.registry_at(0).sweep_requests(300_000).await.unwrap();
    // The largest owner retains records up to a quarter of the limit, which are seven records.
    assert_eq!((revisions_of("ada").await, revisions_of("otto").await), (revisions[..2].to_vec(), revisions[35..].to_vec()));
    assert_eq!(dropped.entries, 33);
}

/// On day 1, forty images (stored versions) exceed one mebibyte, and the next sweep drops some. On day 91, all
/// remaining images except the newest are old enough to be dropped, but only the hourly sweep checks the age.
#[tokio::test]
async fn sweep_drops_at_once_by_size_and_hourly_by_age() {
    let site = RetentionSite::new().await;
    let history = HistoryRetention { mebibytes: 1, ..HistoryRetention::default() };
    let mut sweeper = RetentionSweeper::new(RetentionLimits { history, ..RetentionLimits::default() });
    let start = Instant::now();
    let minutes = |minutes| start + Duration::from_mins(minutes);
    sweeper.sweep(&site.registry_at(1), start).await.unwrap();
    for _ in 0..40 {
        site.write(1, 1, LARGE_DESCRIPTION_BYTES, "test").await;
    }
    sweeper.sweep(&site.registry_at(1), minutes(1)).await.unwrap();
    assert!((MIB * 3 / 4..=MIB).contains(&site.stored_bytes(key::HISTORY)));
    let images = site.image_revisions(1).await;
    for (minute, is_retained) in [(2, true), (59, true), (60, false)] {
        sweeper.sweep(&site.registry_at(91), minutes(minute)).await.unwrap();
        assert_eq!(site.image_revisions(1).await == images, is_retained, "after {minute} minutes");
    }
    assert_eq!(site.image_revisions(1).await.len(), 1);
}

/// If the clock is ahead, every record seems to be old. A sweep at that time would drop records that are recent by the
/// right clock. An image is the stored version of an object at a revision.
#[tokio::test]
async fn x04_f12_sweep_drops_nothing_when_clock_is_suspect() {
    let site = RetentionSite::new().await;
    // The clock counts hours. It shows day 1, then day 9,999, which makes it suspect, and then day 1 again.
    let clock = Arc::new(ManualClock(AtomicU64::new(24)));
    let registry = Registry::new(Arc::clone(&site.store), Arc::clone(&site.cache), Arc::clone(&clock) as _);
    for _ in 0..40 {
        site.write(1, 1, LARGE_DESCRIPTION_BYTES, "test").await;
    }
    let revisions_before = (site.image_revisions(1).await, site.audit_revisions().await);
    let history = HistoryRetention { mebibytes: 1, ..HistoryRetention::default() };
    let limits = RetentionLimits { history, ..RetentionLimits::default() };
    let mut sweeper = RetentionSweeper::new(limits);
    clock.0.store(9_999 * 24, Ordering::Relaxed);
    sweeper.sweep(&registry, Instant::now()).await.unwrap();
    assert_eq!(registry.sweep_history(&limits.history).await.unwrap(), DroppedTotals::default());
    assert_eq!(registry.sweep_audit(&limits.audit).await.unwrap(), DroppedTotals::default());
    assert_eq!((site.image_revisions(1).await, site.audit_revisions().await), revisions_before);
    clock.0.store(24, Ordering::Relaxed);
    sweeper.sweep(&registry, Instant::now()).await.unwrap();
    assert!((MIB * 3 / 4..=MIB).contains(&site.stored_bytes(key::HISTORY)), "the clock is right again");
    assert_eq!(site.audit_revisions().await, revisions_before.1, "all audit entries are recent by the right clock");
}
