//! Rules of commits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::{Bounds, Engine, all, commit, create, creation, get, keys, put_each, unmet};
use crate::store::{CreateOptions, Precondition, Revision, StoreError, Transaction};

pub(crate) async fn the_first_commit_is_the_one_after_the_base(engine: &impl Engine) {
    let store = engine.create(&CreateOptions { base: Revision::new(41), ..creation() }, &Bounds::default());
    assert_eq!(store.head().await.unwrap(), Revision::new(41));
    assert_eq!(store.snapshot().await.unwrap().revision(), Revision::new(41));
    assert_eq!(commit(&store, Transaction::new().put("a", "1")).await, 42);
    assert_eq!(commit(&store, Transaction::new().put("b", "1")).await, 43);
    assert_eq!(store.head().await.unwrap(), Revision::new(43));
}

pub(crate) async fn a_commit_that_changes_nothing_makes_no_revision(engine: &impl Engine) {
    let store = create(engine);
    put_each(&store, &[("a", "1")]).await;
    for nothing in [Transaction::new(), Transaction::new().require(Precondition::present("a")).delete("missing")] {
        assert_eq!(commit(&store, nothing).await, 1);
    }
    assert_eq!(store.head().await.unwrap(), Revision::new(1));
}

pub(crate) async fn equal_content_written_again_is_a_write(engine: &impl Engine) {
    let store = create(engine);
    put_each(&store, &[("a", "1"), ("a", "1")]).await;
    let entry = get(&store, "a").await.unwrap();
    assert_eq!((entry.mod_revision.get(), entry.version), (2, 2));
}

pub(crate) async fn an_entry_says_who_made_it_and_who_last_wrote_it(engine: &impl Engine) {
    let store = create(engine);
    put_each(&store, &[("other", "x"), ("a", "1"), ("other", "y"), ("a", "2"), ("a", "3")]).await;
    let entry = get(&store, "a").await.unwrap();
    assert_eq!(entry.value, "3");
    assert_eq!((entry.create_revision.get(), entry.mod_revision.get(), entry.version), (2, 5, 3));
}

pub(crate) async fn an_entry_made_anew_begins_anew(engine: &impl Engine) {
    let store = create(engine);
    put_each(&store, &[("a", "1"), ("a", "2")]).await;
    assert_eq!(commit(&store, Transaction::new().delete("a")).await, 3);
    assert_eq!(get(&store, "a").await, None);
    put_each(&store, &[("a", "3")]).await;
    let entry = get(&store, "a").await.unwrap();
    assert_eq!((entry.create_revision.get(), entry.mod_revision.get(), entry.version), (4, 4, 1));
}

pub(crate) async fn a_commit_does_all_of_its_operations_or_none(engine: &impl Engine) {
    let store = create(engine);
    put_each(&store, &[("old", "1")]).await;
    let change = Transaction::new().put("new", "2").delete("old").put_at_revision("history/", "2");
    assert_eq!(commit(&store, change.clone()).await, 2);
    assert_eq!(keys(&all(&store).await), [b"history/\0\0\0\0\0\0\0\x02".as_slice(), b"new"]);
    assert!(all(&store).await.iter().all(|entry| entry.mod_revision.get() == 2));
    let before = all(&store).await;
    let refused = change.put("more", "3").require(Precondition::present("old"));
    unmet(store.commit(refused).await);
    assert_eq!(all(&store).await, before);
    assert_eq!(store.head().await.unwrap(), Revision::new(2));
}

pub(crate) async fn a_failed_precondition_says_which_and_what_was_found(engine: &impl Engine) {
    let store = create(engine);
    put_each(&store, &[("a/1", "x"), ("a/2", "x"), ("a/2", "y")]).await;
    let held = [
        Precondition::absent("b"),
        Precondition::absent("a/"),
        Precondition::present("a/1"),
        Precondition::unchanged("a/2", Revision::new(3)),
    ];
    for precondition in held {
        let result = store.commit(Transaction::new().require(precondition.clone())).await;
        assert!(result.is_ok(), "{precondition}: {result:?}");
    }
    let failed = [
        (Precondition::absent("a/1"), Some(1)),
        (Precondition::present("b"), None),
        (Precondition::unchanged("a/2", Revision::new(2)), Some(3)),
        (Precondition::unchanged("a/2", Revision::new(4)), Some(3)),
        (Precondition::unchanged("b", Revision::ZERO), None),
    ];
    for (precondition, found) in failed {
        let transaction = Transaction::new().require(precondition.clone()).put("written", "x");
        let unmet = unmet(store.commit(transaction).await);
        assert_eq!(unmet.found, found.map(Revision::new), "{precondition}");
        assert_eq!((unmet.index, unmet.at), (0, Revision::new(3)));
        assert_eq!(unmet.precondition, precondition);
        assert_eq!(get(&store, "written").await, None);
    }
}

pub(crate) async fn the_first_failed_precondition_is_named(engine: &impl Engine) {
    let store = create(engine);
    let transaction = Transaction::new()
        .require(Precondition::absent("a"))
        .require(Precondition::present("b"))
        .require(Precondition::present("c"));
    let unmet = unmet(store.commit(transaction).await);
    assert_eq!((unmet.index, unmet.precondition), (1, Precondition::present("b")));
}

pub(crate) async fn preconditions_are_judged_before_the_operations(engine: &impl Engine) {
    let store = create(engine);
    let create = Transaction::new().put("a", "1").require(Precondition::absent("a"));
    assert_eq!(commit(&store, create).await, 1);
    let replace = Transaction::new().delete("a").require(Precondition::unchanged("a", Revision::new(1)));
    assert_eq!(commit(&store, replace).await, 2);
}

pub(crate) async fn a_key_at_its_revision_ends_in_the_revision_of_its_commit(engine: &impl Engine) {
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
    assert_eq!(keys(&all(&store).await), expected);
    assert_eq!(get(&store, expected[2]).await.unwrap().value, "1");
    assert_eq!(commit(&store, Transaction::new().delete(expected[2])).await, 3);
    assert_eq!(get(&store, expected[2]).await, None);
}

pub(crate) async fn one_of_many_concurrent_creations_wins(engine: &impl Engine) {
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
    let mut won = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(_) => won += 1,
            Err(StoreError::PreconditionFailed(unmet)) => assert_eq!(unmet.found, Some(Revision::new(1))),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(won, 1);
    assert_eq!(all(&store).await.len(), 2);
}

pub(crate) async fn no_concurrent_increment_is_lost(engine: &impl Engine) {
    let store = create(engine);
    put_each(&store, &[("count", "0")]).await;
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
    assert_eq!(revisions, (2..=81).map(Revision::new).collect());
    assert_eq!(get(&store, "count").await.unwrap().value, "80");
}

pub(crate) async fn a_transaction_over_a_limit_is_refused_with_its_name(engine: &impl Engine) {
    let store = create(engine);
    let many = |count: usize| (0..count).fold(Transaction::new(), |all, n| all.put(format!("{n}"), ""));
    let cases = [
        (many(17), "17 operations in one transaction, the limit max_ops is 16 (raised by --max-txn-ops)"),
        (
            many(16).require(Precondition::present("a")),
            "17 operations in one transaction, the limit max_ops is 16 (raised by --max-txn-ops)",
        ),
        (Transaction::new().put("a", vec![0; 4096]), "4097 bytes in one transaction, the limit max_bytes is 4096"),
        (
            Transaction::new().put("k".repeat(65), ""),
            "a key of 65 bytes, the limit max_key_bytes leaves 64 for it: \
             \"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk…\"",
        ),
        (
            Transaction::new().put_at_revision("k".repeat(57), ""),
            "a key of 57 bytes, the limit max_key_bytes leaves 56 for it: \
             \"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk\"",
        ),
        (Transaction::new().put("", "x"), "a key must not be empty"),
    ];
    for (transaction, expected) in cases {
        match store.commit(transaction).await {
            Err(StoreError::Refused(refusal)) => assert_eq!(refusal.to_string(), expected),
            other => panic!("expected {expected:?}, got {other:?}"),
        }
    }
    assert_eq!((store.head().await.unwrap(), all(&store).await.len()), (Revision::ZERO, 0));
    assert_eq!(commit(&store, many(16)).await, 1);
    assert_eq!(commit(&store, Transaction::new().put("a", vec![0; 4095])).await, 2);
    assert_eq!(commit(&store, Transaction::new().put("k".repeat(64), "")).await, 3);
    assert_eq!(commit(&store, Transaction::new().put_at_revision("k".repeat(56), "")).await, 4);
}

pub(crate) async fn two_operations_on_one_key_are_refused(engine: &impl Engine) {
    let store = create(engine);
    let at_two = [b"history/".as_slice(), &Revision::new(2).to_key()].concat();
    let cases = [
        Transaction::new().put("a", "1").put("a", "2"),
        Transaction::new().put("a", "1").delete("a"),
        Transaction::new().put_at_revision("history/", "1").put_at_revision("history/", "2"),
        Transaction::new().put(at_two, "1").put_at_revision("history/", "2"),
    ];
    for transaction in cases {
        let result = store.commit(transaction.clone()).await;
        assert!(matches!(result, Err(StoreError::Refused(_))), "{transaction:?}: {result:?}");
    }
    assert_eq!(store.head().await.unwrap(), Revision::ZERO);
}

/// Whoever keeps the last images of something deletes the oldest of them in the commit that writes another.
pub(crate) async fn entries_of_earlier_revisions_may_be_deleted_beside_one_at_this_revision(engine: &impl Engine) {
    let store = create(engine);
    let at = |revision| [b"history/".as_slice(), &Revision::new(revision).to_key()].concat();
    assert_eq!(commit(&store, Transaction::new().put_at_revision("history/", "1")).await, 1);
    assert_eq!(commit(&store, Transaction::new().put_at_revision("history/", "2").delete(at(1))).await, 2);
    let stored = async || all(&store).await.into_iter().map(|entry| entry.key.to_vec()).collect::<Vec<_>>();
    assert_eq!(stored().await, [at(2)]);
    // Who guesses the next revision takes nothing away: its entry is not there when deletes are done.
    assert_eq!(commit(&store, Transaction::new().put_at_revision("history/", "3").delete(at(3))).await, 3);
    assert_eq!(stored().await, [at(2), at(3)]);
}

pub(crate) async fn a_commit_whose_caller_went_away_is_whole(engine: &impl Engine) {
    let store = create(engine);
    {
        let mut commit = store.commit(Transaction::new().put("a", "1").put("b", "1"));
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(commit.as_mut().poll(&mut context), Poll::Pending | Poll::Ready(Ok(_))));
    }
    let head = commit(&store, Transaction::new().put("after", "1")).await;
    let written = all(&store).await.len();
    assert!((head, written) == (1, 1) || (head, written) == (2, 3), "{head}, {written}");
}
