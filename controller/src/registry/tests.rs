//! Tests requests that are sent again, at once and after their record was dropped.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use serde_json::json;
use stemma_core::name::ObjectName;
use stemma_core::object::{BearerToken, Kind, PrincipalRole, PrincipalSpec};
use stemma_core::ownership::Manager;
use stemma_wire::clock::FixedClock;

use super::work::PendingWrite;
use super::*;
use crate::store::{CreateOptions, Epoch, ListQuery, Op, RedbOptions, RedbStore};

/// Returns a caller with this idempotency key. The hash of the content of its requests is always the same.
fn caller_with_key(id: Uuid) -> Caller {
    Caller {
        requester: Requester::from_listener("admin/test"),
        manager: Manager::new("test").unwrap(),
        address: "127.0.0.1".to_owned(),
        reason: None,
        request_id: String::new(),
        idempotency_key: Some(IdempotencyKey { id, hash: "the same".to_owned() }),
        dry_run: false,
        canceled: Canceled::default(),
    }
}

/// Sends the same write with this idempotency key in each call. Returns the revision of the commit, which is that of an
/// earlier call if the registry repeats the earlier response.
async fn request(registry: &Registry, id: Uuid) -> Revision {
    let decide = |_: &Context<'_>| {
        let mut draft = Draft::default();
        draft.add_op(Op::Put { key: "test/1".into(), value: "{}".into() });
        Ok(Decision { draft, answer: StoredAnswer::json(201, json!({"revision": 0})) })
    };
    let (answer, revision) = registry.write_at(&caller_with_key(id), decide).await.unwrap();
    assert_eq!((answer.status, &answer.body), (201, &json!({"revision": revision.get()})));
    revision
}

/// Creates an empty store, and a cache that follows it.
async fn store_and_cache(directory: &tempfile::TempDir) -> (Arc<dyn Store>, Arc<Cache>) {
    let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: Bytes::new() };
    let store: Arc<dyn Store> =
        Arc::new(RedbStore::create(&directory.path().join("store.redb"), &create, RedbOptions::default()).unwrap());
    let cache = Arc::new(Cache::load(store.as_ref()).await.unwrap());
    let (follower, followed_store) = (Arc::clone(&cache), Arc::clone(&store));
    tokio::spawn(async move { follower.follow(followed_store.as_ref()).await });
    (store, cache)
}

/// Commits a transaction while a write is being decided. The commit runs on a thread of its own, because a decision
/// cannot wait for a future.
fn commit_concurrently(store: &dyn Store, transaction: Transaction) {
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    let commit = || runtime().block_on(store.commit(transaction)).unwrap();
    std::thread::scope(|scope| scope.spawn(commit).join().unwrap());
}

/// The request is recorded, and the same request gets the same answer. Another request with its idempotency key is
/// refused. A dry run records nothing, with a key or without.
#[tokio::test]
async fn write_is_idempotent_when_request_changes_no_object() {
    let directory = tempfile::tempdir().unwrap();
    let (store, cache) = store_and_cache(&directory).await;
    let registry = Registry::new(Arc::clone(&store), cache, Arc::new(FixedClock(3600)));
    let id = Uuid::from_u128(1);
    let decide_no_change = |_: &Context<'_>| {
        Ok(Decision {
            draft: Draft::default(),
            answer: StoredAnswer::json(200, json!({"resource_version": 1, "revision": null})),
        })
    };
    let (answer, revision) = registry.write_at(&caller_with_key(id), decide_no_change).await.unwrap();
    assert_eq!(
        answer.body,
        json!({"resource_version": 1, "revision": revision.get()}),
        "resource_version is the revision of the object, not of the request"
    );
    let (record, recorded_revision) =
        registry.request(&caller_with_key(id).requester, id).await.unwrap().expect("the request is recorded");
    assert_eq!((&record.answer.with_revision(recorded_revision.get()), recorded_revision), (&answer, revision));
    assert_eq!(registry.write_at(&caller_with_key(id), decide_no_change).await.unwrap(), (answer, revision), "sent again");
    let caller_with_other_content =
        Caller { idempotency_key: Some(IdempotencyKey { id, hash: "another".to_owned() }), ..caller_with_key(id) };
    assert_eq!(registry.write(&caller_with_other_content, decide_no_change).await.unwrap_err().kind, ErrorType::RequestReused);
    let dry_run_caller = Caller { dry_run: true, ..caller_with_key(Uuid::from_u128(2)) };
    registry.write(&dry_run_caller, decide_no_change).await.unwrap();
    registry.write(&Caller { idempotency_key: None, ..dry_run_caller }, decide_no_change).await.unwrap();
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!(snapshot.revision(), revision, "nothing else is written");
    assert_eq!(snapshot.list(&ListQuery::prefix(key::AUDIT)).await.unwrap().entries.len(), 0, "no object changed");
}

#[tokio::test]
async fn write_returns_prior_answer_when_same_request_committed_concurrently() {
    let directory = tempfile::tempdir().unwrap();
    let (store, cache) = store_and_cache(&directory).await;
    let registry = Registry::new(Arc::clone(&store), cache, Arc::new(FixedClock(3600)));
    let caller = caller_with_key(Uuid::from_u128(1));
    // Commits between the decision and its commit, as the same request on another connection would.
    let commit_same_request = || {
        let answer = StoredAnswer::json(201, json!({"made": "first"}));
        let record = RequestRecord { at: Timestamp(3_600_000), hash: "the same".to_owned(), answer, asked_by: None };
        let request_key = key::request(&caller.requester.name, Uuid::from_u128(1));
        commit_concurrently(store.as_ref(), Transaction::new().put(request_key, codec::encode(&record)));
    };
    let decision_count = std::sync::atomic::AtomicUsize::new(0);
    let decide = |_: &Context<'_>| {
        if decision_count.fetch_add(1, Ordering::SeqCst) == 0 {
            commit_same_request();
        }
        let mut draft = Draft::default();
        draft.add_op(Op::Put { key: "test/1".into(), value: "{}".into() });
        Ok(Decision { draft, answer: StoredAnswer::json(201, json!({"made": "second"})) })
    };
    let (answer, _) = registry.write_at(&caller, decide).await.unwrap();
    assert_eq!((answer.status, &answer.body["made"]), (201, &json!("first")));
    assert_eq!(decision_count.into_inner(), 1, "the write is not decided again");
    assert!(store.snapshot().await.unwrap().get(b"test/1").await.unwrap().is_none(), "nothing was written");
}

/// At hour 25, the records of hour 0 are older than a day, and those of hour 2 are not. There are more old records than
/// one page contains.
#[tokio::test]
async fn prune_requests_drops_all_pages() {
    let directory = tempfile::tempdir().unwrap();
    let (store, cache) = store_and_cache(&directory).await;
    let registry = Registry::new(Arc::clone(&store), cache, Arc::new(FixedClock(25 * 3600)));
    let record = |hour: u64| {
        let (time, hash) = (Timestamp(hour * 3_600_000), String::new());
        codec::encode(&RequestRecord { at: time, hash, answer: StoredAnswer::empty(200), asked_by: None })
    };
    let entries = (0..2500_u64).map(|n| (key::request("admin/test", Uuid::from_u128(n.into())), record(n % 2 * 2)));
    let put = entries.fold(Transaction::new(), |transaction, (request_key, record)| transaction.put(request_key, record));
    store.commit(put).await.unwrap();
    assert_eq!(registry.prune_requests().await.unwrap(), 1250);
    assert_eq!(registry.prune_requests().await.unwrap(), 0);
}

/// A page has at most 4 MiB, unless its only entry is larger. (The test allows up to 6 MiB, which is the size of the
/// largest entry.) The pages together have every entry once, in both orders.
#[tokio::test]
async fn read_audit_ends_page_by_bytes_without_repeating_entries() {
    let directory = tempfile::tempdir().unwrap();
    let (store, cache) = store_and_cache(&directory).await;
    let registry = Registry::new(Arc::clone(&store), cache, Arc::new(FixedClock(3600)));
    // The sizes of the reasons, in bytes: many small entries, some large ones, and one that is larger than a page.
    let sizes = [vec![10; 100], vec![1 << 20; 30], vec![10; 30], vec![6 << 20], vec![10; 2]].concat();
    for (number, size) in sizes.iter().enumerate() {
        let event = caller_with_key(Uuid::nil()).audit_event(Timestamp(number as u64), None, Vec::new());
        let record = AuditRecord::Commit(AuditEvent { reason: Some("x".repeat(*size)), ..event });
        store.commit(Transaction::new().put_at_revision(key::AUDIT, codec::encode(&record))).await.unwrap();
    }
    for order in [crate::store::SortOrder::Ascending, crate::store::SortOrder::Descending] {
        let (mut revisions, mut marker, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = audit::AuditPage { limit: 1_000, marker, order };
            let page_content = registry.read_audit(page, |_| true).await.unwrap();
            let bytes: usize = page_content.entries.iter().map(|(_, record)| codec::encode(record).len()).sum();
            assert!(bytes <= 6 << 20 || page_content.entries.len() == 1, "{bytes} bytes in a page");
            revisions.extend(page_content.entries.iter().map(|(revision, _)| revision.get()));
            (marker, pages) = (page_content.next, pages + 1);
            if marker.is_none() {
                break;
            }
        }
        if order == crate::store::SortOrder::Descending {
            revisions.reverse();
        }
        assert_eq!(revisions, (1..=sizes.len() as u64).collect::<Vec<_>>());
        assert!((8..=12).contains(&pages), "{pages} pages of 36 MiB");
    }
}

#[tokio::test]
async fn idempotency_key_is_free_when_a_day_has_passed() {
    let directory = tempfile::tempdir().unwrap();
    let (store, cache) = store_and_cache(&directory).await;
    let registry_at = |hour: u64| Registry::new(Arc::clone(&store), Arc::clone(&cache), Arc::new(FixedClock(hour * 3600)));

    let id = Uuid::from_u128(1);
    let first_revision = request(&registry_at(100), id).await;
    assert_eq!(request(&registry_at(123), id).await, first_revision, "sent again within a day");
    let second_revision = request(&registry_at(124), id).await;
    assert!(second_revision > first_revision, "a day later, the request is a new write");
    assert_eq!(request(&registry_at(147), id).await, second_revision, "the new response is repeated for a day");
    assert_eq!(registry_at(147).prune_requests().await.unwrap(), 0);
    assert_eq!(registry_at(148).prune_requests().await.unwrap(), 1);
    assert!(request(&registry_at(148), id).await > second_revision, "after the sweep, the request is a new write");
}

/// A clock that a test sets, in hours, while no monotonic time passes.
#[derive(Debug)]
pub(super) struct ManualClock(pub(super) AtomicU64);

impl Clock for ManualClock {
    fn unix_seconds(&self) -> u64 {
        self.0.load(Ordering::Relaxed) * 3600
    }

    fn monotonic_seconds(&self) -> u64 {
        0
    }
}

/// The record of a request is valid for a day. When the clock jumps, it is suspect, so the record does not expire. The
/// same request then returns the earlier revision.
#[tokio::test]
async fn x04_f12_write_is_not_repeated_when_clock_jumps() {
    let directory = tempfile::tempdir().unwrap();
    let (store, cache) = store_and_cache(&directory).await;
    let clock = Arc::new(ManualClock(AtomicU64::new(100)));
    let registry = Registry::new(store, cache, Arc::clone(&clock) as _);
    let id = Uuid::from_u128(1);
    let first_revision = request(&registry, id).await;
    for hour in [500, 100, 10_000, 50] {
        clock.0.store(hour, Ordering::Relaxed);
        assert_eq!(request(&registry, id).await, first_revision, "at hour {hour}");
        assert_eq!(registry.prune_requests().await.unwrap(), 0, "at hour {hour}");
    }
}

/// Stores an operator with a token, and returns it as a caller.
async fn operator(registry: &Registry) -> Caller {
    let (issued_at, ends_at) = (Timestamp(0), Timestamp(u64::MAX));
    let token = BearerToken { id: "t".to_owned(), secret_sha256: String::new(), issued_at, ends_at, made_by: None };
    let spec = PrincipalSpec { role: PrincipalRole::Operator, tokens: vec![token], ..PrincipalSpec::default() };
    let create_principal = |context: &Context<'_>| {
        let mut work = PendingWrite::new(context);
        work.create(Uuid::from_u128(7), ObjectName::new("otto").unwrap(), spec.clone())?;
        work.finish(StoredAnswer::empty(201))
    };
    registry.write(&Caller { idempotency_key: None, ..caller_with_key(Uuid::nil()) }, create_principal).await.unwrap();
    let (uuid, credential) = (Some(Uuid::from_u128(7)), Credential::Token("t".to_owned()));
    let requester = Requester { name: "otto".to_owned(), uuid, rights: rights(&spec), credential };
    Caller { requester, idempotency_key: None, ..caller_with_key(Uuid::nil()) }
}

#[tokio::test]
async fn write_fails_when_rights_are_removed_before_commit() {
    let directory = tempfile::tempdir().unwrap();
    let (store, cache) = store_and_cache(&directory).await;
    let registry = Registry::new(Arc::clone(&store), Arc::clone(&cache), Arc::new(FixedClock(3600)));
    let caller = operator(&registry).await;
    // Commits between the decision and its commit, where only the preconditions of the commit can detect it.
    let demote = || {
        let mut otto = cache.model().principals.get_by_name(None, "otto").unwrap().as_ref().clone();
        otto.spec.role = PrincipalRole::Viewer;
        let transaction = Transaction::new().put(key::object(Kind::Principal, otto.meta.uuid), codec::encode(&otto));
        commit_concurrently(store.as_ref(), transaction);
    };
    let decision_count = std::sync::atomic::AtomicUsize::new(0);
    let decide = |_: &Context<'_>| {
        if decision_count.fetch_add(1, Ordering::SeqCst) == 0 {
            demote();
        }
        let mut draft = Draft::default();
        draft.add_op(Op::Put { key: "test/1".into(), value: "{}".into() });
        Ok(Decision { draft, answer: StoredAnswer::empty(204) })
    };
    assert_eq!(registry.write(&caller, decide).await.unwrap_err().kind, ErrorType::AuthForbidden);
    assert_eq!(decision_count.into_inner(), 1, "the write is not decided again");
    assert!(store.snapshot().await.unwrap().get(b"test/1").await.unwrap().is_none(), "nothing was written");
}
