//! What stays of the history, the audit and the records of requests, over a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stemma_core::name::ObjectName;
use stemma_core::object::{Kind, PrincipalSpec, Timestamp};
use stemma_wire::clock::FixedClock;
use uuid::Uuid;

use super::*;
use crate::cache::Cache;
use crate::records::request::{Answer, RequestRecord};
use crate::registry::tests::Dial;
use crate::registry::work::Work;
use crate::registry::{Caller, Context};
use crate::store::{CreateOptions, Epoch, RedbOptions, RedbStore};

const DAY_S: u64 = 24 * 3600;
const MIB: u64 = 1 << 20;
/// Forty images of so many bytes are two mebibytes.
const LONG: usize = 50_000;

/// A store that is counted, and the cache that follows it.
struct Site {
    store: Arc<dyn Store>,
    cache: Arc<Cache>,
    _directory: tempfile::TempDir,
}

impl Site {
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

    /// The registry as it is on a day.
    fn on(&self, day: u64) -> Registry {
        Registry::new(Arc::clone(&self.store), Arc::clone(&self.cache), Arc::new(FixedClock(day * DAY_S)))
    }

    /// Writes an object on a day, anew or in the place of what it was, with a description of so many bytes, and says why.
    async fn write(&self, day: u64, number: u128, bytes: usize, reason: &str) {
        let decide = |context: &Context<'_>| {
            let mut work = Work::on(context);
            let (uuid, name) = (Uuid::from_u128(number), ObjectName::new(&format!("p{number}")).unwrap());
            let before = context.model.principals.get(uuid).cloned();
            let turn = before.as_ref().map_or(0, |before| before.meta.generation);
            let spec = PrincipalSpec { description: Some(format!("{turn:0>bytes$}")), ..PrincipalSpec::default() };
            match &before {
                None => work.create(uuid, name, spec).map(drop)?,
                Some(before) => work.update(before, name, spec).map(drop)?,
            }
            work.finish(Answer::empty(200))
        };
        self.on(day).write(&Caller::controller(reason), decide).await.unwrap();
    }

    async fn delete(&self, day: u64, number: u128) {
        let decide = |context: &Context<'_>| {
            let mut work = Work::on(context);
            let object = context.model.principals.get(Uuid::from_u128(number)).cloned().unwrap();
            work.delete_unused(&object)?;
            work.finish(Answer::empty(204))
        };
        self.on(day).write(&Caller::controller("test"), decide).await.unwrap();
    }

    /// The revisions of the entries below a prefix.
    async fn below(&self, prefix: String) -> Vec<u64> {
        let list = self.store.snapshot().await.unwrap().list(&Query::prefix(prefix)).await.unwrap();
        list.entries.iter().map(|entry| entry.mod_revision.get()).collect()
    }

    /// The revisions of the images of an object.
    async fn images(&self, number: u128) -> Vec<u64> {
        self.below(key::history(Kind::Principal, Uuid::from_u128(number))).await
    }

    async fn audit(&self) -> Vec<u64> {
        self.below(key::AUDIT.to_owned()).await
    }

    fn taken(&self, prefix: &str) -> u64 {
        self.store.stats().bytes_below(prefix).unwrap()
    }
}

/// The last so many revisions up to one.
fn last(count: usize, head: u64) -> Vec<u64> {
    (head + 1 - count as u64..=head).collect()
}

#[tokio::test]
async fn x03_history_is_kept_by_age_and_size_also_of_deleted_objects() {
    let site = Site::new().await;
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
        site.on(day).sweep_history(&HistoryKeep::default()).await.unwrap();
        assert_eq!((site.images(1).await, site.images(2).await), (of_living, of_deleted), "on day {day}");
    }
    let head = site.store.head().await.unwrap();
    let nothing = site.on(9_999).sweep_history(&HistoryKeep::default()).await.unwrap();
    assert_eq!((nothing, site.store.head().await.unwrap()), (Dropped::default(), head), "nothing more is written");

    let small = HistoryKeep { mebibytes: 1, ..HistoryKeep::default() };
    for _ in 0..40 {
        site.write(9_999, 3, LONG, "test").await;
    }
    let (all, before) = (site.images(3).await, site.taken(key::HISTORY));
    assert!(before > MIB, "{before}");
    let dropped = site.on(9_999).sweep_history(&small).await.unwrap();
    let left = site.images(3).await;
    assert_eq!(left, all[all.len() - left.len()..], "the newest stay");
    assert_eq!(dropped.entries, (all.len() - left.len()) as u64);
    assert_eq!(site.taken(key::HISTORY), before - dropped.bytes);
    assert!((MIB * 3 / 4..=MIB).contains(&site.taken(key::HISTORY)), "no more goes than has to");
    assert_eq!(site.images(1).await, [3]);

    // What objects are stays, whatever it takes.
    for number in 10..35 {
        site.write(9_999, number, LONG, "test").await;
    }
    site.on(9_999).sweep_history(&small).await.unwrap();
    for number in [1, 3].into_iter().chain(10..35) {
        assert_eq!(site.images(number).await.len(), 1, "{number}");
    }
    assert!(site.taken(key::HISTORY) > MIB);
}

#[tokio::test]
async fn x03_history_is_kept_by_the_number_of_images_of_one_object() {
    let site = Site::new().await;
    for _ in 0..120 {
        site.write(1, 1, 10, "test").await;
    }
    site.on(1).sweep_history(&HistoryKeep::default()).await.unwrap();
    assert_eq!(site.images(1).await, last(100, 120));
}

#[tokio::test]
async fn x03_the_audit_is_kept_by_age_and_size() {
    let site = Site::new().await;
    for day in [1, 2, 50] {
        site.write(day, 1, 10, "test").await;
    }
    for (day, left) in [(400, vec![1, 2, 3]), (401, vec![2, 3]), (402, vec![3]), (449, vec![3])] {
        site.on(day).sweep_audit(&AuditKeep::default()).await.unwrap();
        assert_eq!(site.audit().await, left, "on day {day}");
    }
    for _ in 0..40 {
        site.write(449, 1, 10, &"x".repeat(LONG)).await;
    }
    let head = site.audit().await.last().copied().unwrap();
    let small = AuditKeep { mebibytes: 1, ..AuditKeep::default() };
    let dropped = site.on(449).sweep_audit(&small).await.unwrap();
    let left = site.audit().await;
    assert_eq!(left, last(left.len(), head), "the newest stay");
    assert_eq!(dropped.entries, (41 - left.len()) as u64);
    assert!((MIB * 3 / 4..=MIB).contains(&site.taken(key::AUDIT)), "no more goes than has to");
}

#[tokio::test]
async fn x03_records_of_requests_are_kept_by_size_and_nobody_makes_those_of_others_go() {
    let site = Site::new().await;
    let mut put = Vec::new();
    for (who, count) in [("ada", 2), ("otto", 40)] {
        for number in 0..count {
            let (at, hash, answer) = (Timestamp(0), "x".repeat(10_000), Answer::empty(200));
            let record = codec::encode(&RequestRecord { at, hash, answer, asked_by: None });
            let at = key::request(who, Uuid::from_u128(number));
            put.push(site.store.commit(Transaction::new().put(at, record)).await.unwrap().get());
        }
    }
    let of = async |who: &str| site.below(format!("{}{who}/", key::REQUESTS)).await;
    assert_eq!(site.on(0).sweep_requests(600_000).await.unwrap(), Dropped::default());
    let dropped = site.on(0).sweep_requests(300_000).await.unwrap();
    // A quarter of the bound is seven of them.
    assert_eq!((of("ada").await, of("otto").await), (put[..2].to_vec(), put[35..].to_vec()));
    assert_eq!(dropped.entries, 33);
}

#[tokio::test]
async fn what_takes_too_much_goes_at_once_and_what_is_too_old_within_the_hour() {
    let site = Site::new().await;
    let history = HistoryKeep { mebibytes: 1, ..HistoryKeep::default() };
    let mut keeper = Keeper::new(Kept { history, ..Kept::default() });
    let began = Instant::now();
    let minutes = |minutes| began + Duration::from_mins(minutes);
    keeper.look(&site.on(1), began).await.unwrap();
    for _ in 0..40 {
        site.write(1, 1, LONG, "test").await;
    }
    keeper.look(&site.on(1), minutes(1)).await.unwrap();
    assert!((MIB * 3 / 4..=MIB).contains(&site.taken(key::HISTORY)));
    let left = site.images(1).await;
    for (at, is_there) in [(2, true), (59, true), (60, false)] {
        keeper.look(&site.on(91), minutes(at)).await.unwrap();
        assert_eq!(site.images(1).await == left, is_there, "after {at} minutes");
    }
    assert_eq!(site.images(1).await.len(), 1);
}

/// All is old by a clock that is ahead, and it does not come back when the clock is right again.
#[tokio::test]
async fn x04_f12_by_a_suspect_clock_nothing_goes() {
    let site = Site::new().await;
    let dial = Arc::new(Dial(AtomicU64::new(24)));
    let registry = Registry::new(Arc::clone(&site.store), Arc::clone(&site.cache), Arc::clone(&dial) as _);
    for _ in 0..40 {
        site.write(1, 1, LONG, "test").await;
    }
    let all = (site.images(1).await, site.audit().await);
    let history = HistoryKeep { mebibytes: 1, ..HistoryKeep::default() };
    let kept = Kept { history, ..Kept::default() };
    let mut keeper = Keeper::new(kept);
    dial.0.store(9_999 * 24, Ordering::Relaxed);
    keeper.look(&registry, Instant::now()).await.unwrap();
    assert_eq!(registry.sweep_history(&kept.history).await.unwrap(), Dropped::default());
    assert_eq!(registry.sweep_audit(&kept.audit).await.unwrap(), Dropped::default());
    assert_eq!((site.images(1).await, site.audit().await), all);
    dial.0.store(24, Ordering::Relaxed);
    keeper.look(&registry, Instant::now()).await.unwrap();
    assert!((MIB * 3 / 4..=MIB).contains(&site.taken(key::HISTORY)), "it is right again");
    assert_eq!(site.audit().await, all.1, "and they are of today");
}
