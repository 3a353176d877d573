//! Rules of commits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::{TestBounds, TestEngine, commit, create, create_options, get, keys, list_all, put_singly, unmet_precondition};
use crate::store::{CreateOptions, Precondition, Revision, StoreError, Transaction};

/// A store begins at the revision `base` with which it is created.
pub(crate) async fn commit_gets_revision_after_base_when_first(engine: &impl TestEngine) {
    let store = engine.create(&CreateOptions { base: Revision::new(41), ..create_options() }, &TestBounds::default());
    assert_eq!(store.head().await.unwrap(), Revision::new(41));
    assert_eq!(store.snapshot().await.unwrap().revision(), Revision::new(41));
    assert_eq!(commit(&store, Transaction::new().put("a", "1")).await, 42);
    assert_eq!(commit(&store, Transaction::new().put("b", "1")).await, 43);
    assert_eq!(store.head().await.unwrap(), Revision::new(43));
}

pub(crate) async fn commit_keeps_revision_when_transaction_changes_no_entry(engine: &impl TestEngine) {
    let store = create(engine);
    put_singly(&store, &[("a", "1")]).await;
    for transaction in [Transaction::new(), Transaction::new().require(Precondition::present("a")).delete("missing")] {
        assert_eq!(commit(&store, transaction).await, 1);
    }
    assert_eq!(store.head().await.unwrap(), Revision::new(1));
}

pub(crate) async fn put_makes_revision_when_content_is_equal(engine: &impl TestEngine) {
    let store = create(engine);
    put_singly(&store, &[("a", "1"), ("a", "1")]).await;
    let entry = get(&store, "a").await.unwrap();
    assert_eq!((entry.mod_revision.get(), entry.version), (2, 2));
}

pub(crate) async fn entry_has_create_and_mod_revision(engine: &impl TestEngine) {
    let store = create(engine);
    put_singly(&store, &[("other", "x"), ("a", "1"), ("other", "y"), ("a", "2"), ("a", "3")]).await;
    let entry = get(&store, "a").await.unwrap();
    assert_eq!(entry.value, "3");
    assert_eq!((entry.create_revision.get(), entry.mod_revision.get(), entry.version), (2, 5, 3));
}

pub(crate) async fn entry_version_restarts_when_recreated(engine: &impl TestEngine) {
    let store = create(engine);
    put_singly(&store, &[("a", "1"), ("a", "2")]).await;
    assert_eq!(commit(&store, Transaction::new().delete("a")).await, 3);
    assert_eq!(get(&store, "a").await, None);
    put_singly(&store, &[("a", "3")]).await;
    let entry = get(&store, "a").await.unwrap();
    assert_eq!((entry.create_revision.get(), entry.mod_revision.get(), entry.version), (4, 4, 1));
}

/// `put_at_revision` appends the revision of the commit to the key, as eight bytes. A commit with a failing
/// precondition changes no entry.
pub(crate) async fn commit_is_atomic_when_precondition_fails(engine: &impl TestEngine) {
    let store = create(engine);
    put_singly(&store, &[("old", "1")]).await;
    let change = Transaction::new().put("new", "2").delete("old").put_at_revision("history/", "2");
    assert_eq!(commit(&store, change.clone()).await, 2);
    assert_eq!(keys(&list_all(&store).await), [b"history/\0\0\0\0\0\0\0\x02".as_slice(), b"new"]);
    assert!(list_all(&store).await.iter().all(|entry| entry.mod_revision.get() == 2));
    let entries_before = list_all(&store).await;
    let failing_transaction = change.put("more", "3").require(Precondition::present("old"));
    unmet_precondition(store.commit(failing_transaction).await);
    assert_eq!(list_all(&store).await, entries_before);
    assert_eq!(store.head().await.unwrap(), Revision::new(2));
}

/// A commit whose precondition does not hold returns that precondition with the `mod_revision` of the existing entry.
pub(crate) async fn commit_returns_unmet_precondition_with_found_revision(engine: &impl TestEngine) {
    let store = create(engine);
    put_singly(&store, &[("a/1", "x"), ("a/2", "x"), ("a/2", "y")]).await;
    let met_preconditions = [
        Precondition::absent("b"),
        Precondition::absent("a/"),
        Precondition::present("a/1"),
        Precondition::unchanged("a/2", Revision::new(3)),
    ];
    for precondition in met_preconditions {
        let result = store.commit(Transaction::new().require(precondition.clone())).await;
        assert!(result.is_ok(), "{precondition}: {result:?}");
    }
    let failing_preconditions = [
        (Precondition::absent("a/1"), Some(1)),
        (Precondition::present("b"), None),
        (Precondition::unchanged("a/2", Revision::new(2)), Some(3)),
        (Precondition::unchanged("a/2", Revision::new(4)), Some(3)),
        (Precondition::unchanged("b", Revision::ZERO), None),
    ];
    for (precondition, found_revision) in failing_preconditions {
        let transaction = Transaction::new().require(precondition.clone()).put("written", "x");
        let unmet = unmet_precondition(store.commit(transaction).await);
        assert_eq!(unmet.found, found_revision.map(Revision::new), "{precondition}");
        assert_eq!((unmet.index, unmet.at), (0, Revision::new(3)));
        assert_eq!(unmet.precondition, precondition);
        assert_eq!(get(&store, "written").await, None);
    }
}

pub(crate) async fn commit_returns_first_unmet_precondition_when_several_fail(engine: &impl TestEngine) {
    let store = create(engine);
    let transaction = Transaction::new()
        .require(Precondition::absent("a"))
        .require(Precondition::present("b"))
        .require(Precondition::present("c"));
    let unmet = unmet_precondition(store.commit(transaction).await);
    assert_eq!((unmet.index, unmet.precondition), (1, Precondition::present("b")));
}

pub(crate) async fn commit_checks_preconditions_before_operations(engine: &impl TestEngine) {
    let store = create(engine);
    let create = Transaction::new().put("a", "1").require(Precondition::absent("a"));
    assert_eq!(commit(&store, create).await, 1);
    let replace = Transaction::new().delete("a").require(Precondition::unchanged("a", Revision::new(1)));
    assert_eq!(commit(&store, replace).await, 2);
}

pub(crate) async fn put_at_revision_appends_commit_revision_to_key(engine: &impl TestEngine) {
    let store = create(engine);
    for value in ["1", "2"] {
        let write = Transaction::new()
            .put("node/web", value)
            .put_at_revision("history/node/web/", value)
            .put_at_revision("audit/", "event");
        commit(&store, write).await;
    }
    let expected: [&[u8]; 5] = [
        b"audit/\0\0\0\0\0\0\0\x01",
        b"audit/\0\0\0\0\0\0\0\x02",
        b"history/node/web/\0\0\0\0\0\0\0\x01",
        b"history/node/web/\0\0\0\0\0\0\0\x02",
        b"node/web",
    ];
    assert_eq!(keys(&list_all(&store).await), expected);
    assert_eq!(get(&store, expected[2]).await.unwrap().value, "1");
    assert_eq!(commit(&store, Transaction::new().delete(expected[2])).await, 3);
    assert_eq!(get(&store, expected[2]).await, None);
}

pub(crate) async fn commit_creates_entry_once_when_creations_are_concurrent(engine: &impl TestEngine) {
    let store = create(engine);
    let tasks: Vec<_> = (0..64_u64)
        .map(|writer| {
            let store = Arc::clone(&store);
            let create = Transaction::new()
                .require(Precondition::absent("token"))
                .put("token", writer.to_string())
                .put(format!("node/{writer}"), "");
            tokio::spawn(async move { store.commit(create).await })
        })
        .collect();
    let mut success_count = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(_) => success_count += 1,
            Err(StoreError::PreconditionFailed(unmet)) => assert_eq!(unmet.found, Some(Revision::new(1))),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(success_count, 1);
    assert_eq!(list_all(&store).await.len(), 2, "both entries are from one writer");
}

/// Eight writers each increment one counter ten times, and repeat an increment if another writer was faster.
pub(crate) async fn commit_loses_no_increment_when_writers_are_concurrent(engine: &impl TestEngine) {
    let store = create(engine);
    put_singly(&store, &[("count", "0")]).await;
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let mut revisions = Vec::new();
                while revisions.len() < 10 {
                    let entry = get(&store, "count").await.unwrap();
                    let count: u64 = std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
                    let transaction = Transaction::new()
                        .require(Precondition::unchanged("count", entry.mod_revision))
                        .put("count", (count + 1).to_string());
                    match store.commit(transaction).await {
                        Ok(revision) => revisions.push(revision),
                        Err(StoreError::PreconditionFailed(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                revisions
            })
        })
        .collect();
    let mut revisions = BTreeSet::new();
    for task in tasks {
        revisions.extend(task.await.unwrap());
    }
    // The first commit created the counter. Each of the 80 increments has its own revision.
    assert_eq!(revisions, (2..=81).map(Revision::new).collect());
    assert_eq!(get(&store, "count").await.unwrap().value, "80");
}

/// The limits are those of [`TestBounds`]: 16 operations and preconditions, 4096 bytes, and 64 bytes for a key. The
/// revision at the end of a key takes 8 of these bytes.
pub(crate) async fn commit_names_limit_when_transaction_exceeds_limit(engine: &impl TestEngine) {
    let store = create(engine);
    let puts = |count: usize| (0..count).fold(Transaction::new(), |transaction, number| transaction.put(format!("{number}"), ""));
    let cases = [
        (puts(17), "17 operations in one transaction, the limit max_ops is 16 (raised by --max-txn-ops)"),
        (
            puts(16).require(Precondition::present("a")),
            "17 operations in one transaction, the limit max_ops is 16 (raised by --max-txn-ops)",
        ),
        (Transaction::new().put("a", vec![0; 4096]), "4097 bytes in one transaction, the limit max_bytes is 4096"),
        (
            Transaction::new().put("k".repeat(65), ""),
            "a key of 65 bytes, but the limit max_key_bytes allows 64: \
             \"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk…\"",
        ),
        (
            Transaction::new().put_at_revision("k".repeat(57), ""),
            "a key of 57 bytes, but the limit max_key_bytes allows 56: \
             \"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk\"",
        ),
        (Transaction::new().put("", "x"), "a key must not be empty"),
    ];
    for (transaction, expected) in cases {
        match store.commit(transaction).await {
            Err(StoreError::Refused(refusal)) => assert_eq!(refusal.to_string(), expected),
            result => panic!("expected {expected:?}, got {result:?}"),
        }
    }
    assert_eq!((store.head().await.unwrap(), list_all(&store).await.len()), (Revision::ZERO, 0));
    assert_eq!(commit(&store, puts(16)).await, 1);
    assert_eq!(commit(&store, Transaction::new().put("a", vec![0; 4095])).await, 2);
    assert_eq!(commit(&store, Transaction::new().put("k".repeat(64), "")).await, 3);
    assert_eq!(commit(&store, Transaction::new().put_at_revision("k".repeat(56), "")).await, 4);
}

/// The key of `put_at_revision` is its prefix and the revision of the commit, which is not known before. So a put of
/// this prefix with any revision, such as 2, is refused too.
pub(crate) async fn commit_fails_when_key_is_in_two_operations(engine: &impl TestEngine) {
    let store = create(engine);
    let key_at_revision_two = [b"history/".as_slice(), &Revision::new(2).to_key()].concat();
    let cases = [
        Transaction::new().put("a", "1").put("a", "2"),
        Transaction::new().put("a", "1").delete("a"),
        Transaction::new().put_at_revision("history/", "1").put_at_revision("history/", "2"),
        Transaction::new().put(key_at_revision_two, "1").put_at_revision("history/", "2"),
    ];
    for transaction in cases {
        let result = store.commit(transaction.clone()).await;
        assert!(matches!(result, Err(StoreError::Refused(_))), "{transaction:?}: {result:?}");
    }
    assert_eq!(store.head().await.unwrap(), Revision::ZERO);
}

/// A caller can limit the history of an object: the commit that writes a new after-image (the value after a write) also
/// deletes the oldest ones.
pub(crate) async fn commit_deletes_old_images_with_put_at_revision(engine: &impl TestEngine) {
    let store = create(engine);
    let key_at = |revision| [b"history/".as_slice(), &Revision::new(revision).to_key()].concat();
    assert_eq!(commit(&store, Transaction::new().put_at_revision("history/", "1")).await, 1);
    assert_eq!(commit(&store, Transaction::new().put_at_revision("history/", "2").delete(key_at(1))).await, 2);
    let stored_keys = async || list_all(&store).await.into_iter().map(|entry| entry.key.to_vec()).collect::<Vec<_>>();
    assert_eq!(stored_keys().await, [key_at(2)]);
    // Deleting the key of the next revision has no effect, because deletes are done before that entry exists.
    assert_eq!(commit(&store, Transaction::new().put_at_revision("history/", "3").delete(key_at(3))).await, 3);
    assert_eq!(stored_keys().await, [key_at(2), key_at(3)]);
}

/// A commit whose future is dropped after its first poll is either complete or absent. It is never partly done.
pub(crate) async fn commit_is_whole_when_caller_is_dropped(engine: &impl TestEngine) {
    let store = create(engine);
    {
        let mut commit = store.commit(Transaction::new().put("a", "1").put("b", "1"));
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(commit.as_mut().poll(&mut context), Poll::Pending | Poll::Ready(Ok(_))));
    }
    let head = commit(&store, Transaction::new().put("after", "1")).await;
    let entry_count = list_all(&store).await.len();
    assert!((head, entry_count) == (1, 1) || (head, entry_count) == (2, 3), "{head}, {entry_count}");
}
