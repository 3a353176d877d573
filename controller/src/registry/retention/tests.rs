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
/// Forty images of this size are two mebibytes.
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
        let first = store.snapshot().await.unwrap();
        store.stats().count_sizes(first.as_ref()).await.unwrap();
        let cache = Arc::new(Cache::load(store.as_ref()).await.unwrap());
        let (following, followed) = (Arc::clone(&cache), Arc::clone(&store));
        tokio::spawn(async move { following.follow(followed.as_ref()).await });
        Self { store, cache, _directory: directory }
    }

    /// Returns the registry with its clock set to a day.
    fn registry_at(&self, day: u64) -> Registry {
        Registry::new(Arc::clone(&self.store), Arc::clone(&self.cache), Arc::new(FixedClock(day * DAY_S)))
    }

    /// Creates or updates an object on a day, with a description of this many bytes and a reason.
    async fn write(&self, day: u64, number: u128, bytes: usize, reason: &str) {
        let decide = |context: &Context<'_>| {
            let mut work = PendingWrite::new(context);
            let (uuid, name) = (Uuid::from_u128(number), ObjectName::new(&format!("p{number}")).unwrap());
            let before = context.model.principals.get(uuid).cloned();
            let generation = before.as_ref().map_or(0, |before| before.meta.generation);
            let spec = PrincipalSpec { description: Some(format!("{generation:0>bytes$}")), ..PrincipalSpec::default() };
            match &before {
                None => work.create(uuid, name, spec).map(drop)?,
                Some(before) => work.update(before, name, spec).map(drop)?,
            }
            work.finish(StoredAnswer::empty(200))
        };
        self.registry_at(day).write(&Caller::controller(reason), decide).await.unwrap();
    }

    async fn delete(&self, day: u64, number: u128) {
        let decide = |context: &Context<'_>| {
            let mut work = PendingWrite::new(context);
            let object = context.model.principals.get(Uuid::from_u128(number)).cloned().unwrap();
            work.delete_unused(&object)?;
            work.finish(StoredAnswer::empty(204))
        };
        self.registry_at(day).write(&Caller::controller("test"), decide).await.unwrap();
    }

    /// Returns the revisions of the entries below a prefix.
    async fn revisions_below(&self, prefix: String) -> Vec<u64> {
        let list = self.store.snapshot().await.unwrap().list(&ListQuery::prefix(prefix)).await.unwrap();
        list.entries.iter().map(|entry| entry.mod_revision.get()).collect()
    }

    /// Returns the revisions of an object's images.
    async fn image_revisions(&self, number: u128) -> Vec<u64> {
        self.revisions_below(key::history(Kind::Principal, Uuid::from_u128(number))).await
    }

    async fn audit_revisions(&self) -> Vec<u64> {
        self.revisions_below(key::AUDIT.to_owned()).await
    }

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
    for (day, of_living, of_deleted) in [
        (91, vec![1, 2, 3], vec![4, 5]),
        (92, vec![2, 3], vec![4, 5]),
        (149, vec![2, 3], vec![4, 5]),
        (150, vec![3], vec![]),
        (9_999, vec![3], vec![]),
    ] {
        site.registry_at(day).sweep_history(&HistoryRetention::default()).await.unwrap();
        assert_eq!((site.image_revisions(1).await, site.image_revisions(2).await), (of_living, of_deleted), "on day {day}");
    }
    let head = site.store.head().await.unwrap();
    let nothing = site.registry_at(9_999).sweep_history(&HistoryRetention::default()).await.unwrap();
    assert_eq!((nothing, site.store.head().await.unwrap()), (DroppedTotals::default(), head), "nothing more is written");

    let small = HistoryRetention { mebibytes: 1, ..HistoryRetention::default() };
    for _ in 0..40 {
        site.write(9_999, 3, LARGE_DESCRIPTION_BYTES, "test").await;
    }
    let (all, before) = (site.image_revisions(3).await, site.stored_bytes(key::HISTORY));
    assert!(before > MIB, "{before}");
    let dropped = site.registry_at(9_999).sweep_history(&small).await.unwrap();
    let left = site.image_revisions(3).await;
    assert_eq!(left, all[all.len() - left.len()..], "the newest stay");
    assert_eq!(dropped.entries, (all.len() - left.len()) as u64);
    assert_eq!(site.stored_bytes(key::HISTORY), before - dropped.bytes);
    assert!((MIB * 3 / 4..=MIB).contains(&site.stored_bytes(key::HISTORY)), "no more goes than has to");
    assert_eq!(site.image_revisions(1).await, [3]);

    // The present images of objects remain, whatever their size.
    for number in 10..35 {
        site.write(9_999, number, LARGE_DESCRIPTION_BYTES, "test").await;
    }
    site.registry_at(9_999).sweep_history(&small).await.unwrap();
    for number in [1, 3].into_iter().chain(10..35) {
        assert_eq!(site.image_revisions(number).await.len(), 1, "{number}");
    }
    assert!(site.stored_bytes(key::HISTORY) > MIB);
}

#[tokio::test]
async fn x03_sweep_limits_history_by_images_per_object() {
    let site = RetentionSite::new().await;
    for _ in 0..120 {
        site.write(1, 1, 10, "test").await;
    }
    site.registry_at(1).sweep_history(&HistoryRetention::default()).await.unwrap();
    assert_eq!(site.image_revisions(1).await, last_revisions(100, 120));
}

#[tokio::test]
async fn x03_sweep_limits_audit_by_age_and_size() {
    let site = RetentionSite::new().await;
    for day in [1, 2, 50] {
        site.write(day, 1, 10, "test").await;
    }
    for (day, left) in [(400, vec![1, 2, 3]), (401, vec![2, 3]), (402, vec![3]), (449, vec![3])] {
        site.registry_at(day).sweep_audit(&AuditRetention::default()).await.unwrap();
        assert_eq!(site.audit_revisions().await, left, "on day {day}");
    }
    for _ in 0..40 {
        site.write(449, 1, 10, &"x".repeat(LARGE_DESCRIPTION_BYTES)).await;
    }
    let head = site.audit_revisions().await.last().copied().unwrap();
    let small = AuditRetention { mebibytes: 1, ..AuditRetention::default() };
    let dropped = site.registry_at(449).sweep_audit(&small).await.unwrap();
    let left = site.audit_revisions().await;
    assert_eq!(left, last_revisions(left.len(), head), "the newest stay");
    assert_eq!(dropped.entries, (41 - left.len()) as u64);
    assert!((MIB * 3 / 4..=MIB).contains(&site.stored_bytes(key::AUDIT)), "no more goes than has to");
}

#[tokio::test]
async fn x03_sweep_drops_request_records_of_largest_owner_when_over_size() {
    let site = RetentionSite::new().await;
    let mut put = Vec::new();
    for (who, count) in [("ada", 2), ("otto", 40)] {
        for number in 0..count {
            let (at, hash, answer) = (Timestamp(0), "x".repeat(10_000), StoredAnswer::empty(200));
            let record = codec::encode(&RequestRecord { at, hash, answer, asked_by: None });
            let at = key::request(who, Uuid::from_u128(number));
            put.push(site.store.commit(Transaction::new().put(at, record)).await.unwrap().get());
        }
    }
    let of = async |who: &str| site.revisions_below(format!("{}{who}/", key::REQUESTS)).await;
    assert_eq!(site.registry_at(0).sweep_requests(600_000).await.unwrap(), DroppedTotals::default());
    let dropped = site.registry_at(0).sweep_requests(300_000).await.unwrap();
    // A quarter of the limit is seven records.
    assert_eq!((of("ada").await, of("otto").await), (put[..2].to_vec(), put[35..].to_vec()));
    assert_eq!(dropped.entries, 33);
}

#[tokio::test]
async fn sweep_drops_at_once_by_size_and_hourly_by_age() {
    let site = RetentionSite::new().await;
    let history = HistoryRetention { mebibytes: 1, ..HistoryRetention::default() };
    let mut keeper = RetentionSweeper::new(RetentionLimits { history, ..RetentionLimits::default() });
    let began = Instant::now();
    let minutes = |minutes| began + Duration::from_mins(minutes);
    keeper.sweep(&site.registry_at(1), began).await.unwrap();
    for _ in 0..40 {
        site.write(1, 1, LARGE_DESCRIPTION_BYTES, "test").await;
    }
    keeper.sweep(&site.registry_at(1), minutes(1)).await.unwrap();
    assert!((MIB * 3 / 4..=MIB).contains(&site.stored_bytes(key::HISTORY)));
    let left = site.image_revisions(1).await;
    for (at, is_there) in [(2, true), (59, true), (60, false)] {
        keeper.sweep(&site.registry_at(91), minutes(at)).await.unwrap();
        assert_eq!(site.image_revisions(1).await == left, is_there, "after {at} minutes");
    }
    assert_eq!(site.image_revisions(1).await.len(), 1);
}

/// A clock that is ahead makes everything look old. What is dropped then would be lost when the clock is right again.
#[tokio::test]
async fn x04_f12_sweep_drops_none_when_clock_is_suspect() {
    let site = RetentionSite::new().await;
    let dial = Arc::new(ManualClock(AtomicU64::new(24)));
    let registry = Registry::new(Arc::clone(&site.store), Arc::clone(&site.cache), Arc::clone(&dial) as _);
    for _ in 0..40 {
        site.write(1, 1, LARGE_DESCRIPTION_BYTES, "test").await;
    }
    let all = (site.image_revisions(1).await, site.audit_revisions().await);
    let history = HistoryRetention { mebibytes: 1, ..HistoryRetention::default() };
    let kept = RetentionLimits { history, ..RetentionLimits::default() };
    let mut keeper = RetentionSweeper::new(kept);
    dial.0.store(9_999 * 24, Ordering::Relaxed);
    keeper.sweep(&registry, Instant::now()).await.unwrap();
    assert_eq!(registry.sweep_history(&kept.history).await.unwrap(), DroppedTotals::default());
    assert_eq!(registry.sweep_audit(&kept.audit).await.unwrap(), DroppedTotals::default());
    assert_eq!((site.image_revisions(1).await, site.audit_revisions().await), all);
    dial.0.store(24, Ordering::Relaxed);
    keeper.sweep(&registry, Instant::now()).await.unwrap();
    assert!((MIB * 3 / 4..=MIB).contains(&site.stored_bytes(key::HISTORY)), "it is right again");
    assert_eq!(site.audit_revisions().await, all.1, "and they are of today");
}
