//! Commits that share a flush.

use std::path::Path;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::super::testing::{At, Disk, Trouble, creation};
use super::super::{RedbOptions, RedbStore};
use crate::store::{Health, Precondition, Revision, Store, StoreError, Transaction};

const EIO: i32 = 5;

fn create(disk: &Disk) -> Arc<RedbStore> {
    let store = RedbStore::create_on(disk.backend(), Path::new("disk"), &creation(), RedbOptions::default());
    Arc::new(store.unwrap())
}

type Answer = JoinHandle<Result<Revision, StoreError>>;

/// Lets one commit reach its flush and keeps it there, while these others come to wait behind it in this order.
async fn wait_behind_a_flush(
    store: &Arc<RedbStore>,
    disk: &Disk,
    others: impl IntoIterator<Item = Transaction>,
) -> (Answer, Vec<Answer>) {
    let commit = |transaction| {
        let store = Arc::clone(store);
        tokio::spawn(async move { store.commit(transaction).await })
    };
    disk.stop_syncs();
    let first = commit(Transaction::new().put("first", ""));
    tokio::task::yield_now().await;
    let disk = disk.clone();
    tokio::task::spawn_blocking(move || disk.wait_for_stopped_sync()).await.unwrap();
    let mut answers = Vec::new();
    for transaction in others {
        answers.push(commit(transaction));
        tokio::task::yield_now().await;
    }
    (first, answers)
}

#[tokio::test]
async fn commits_that_wait_share_one_flush() {
    let disk = Disk::default();
    let store = create(&disk);
    let others = (0..64).map(|number| Transaction::new().put(format!("{number}"), ""));
    let (first, others) = wait_behind_a_flush(&store, &disk, others).await;
    assert_eq!(store.head().await.unwrap(), Revision::ZERO, "nothing is seen before it is durable");
    assert!(others.iter().all(|answer| !answer.is_finished()), "nothing is answered before it is durable");
    disk.let_syncs_go();
    assert_eq!(first.await.unwrap().unwrap(), Revision::new(1));
    for (revision, answer) in (2..).zip(others) {
        assert_eq!(answer.await.unwrap().unwrap(), Revision::new(revision));
    }
    assert_eq!((store.stats().commits.get(), store.stats().syncs.get()), (65, 2));
}

#[tokio::test]
async fn each_of_a_batch_is_judged_by_what_those_before_it_left() {
    let disk = Disk::default();
    let store = create(&disk);
    let create_a = || Transaction::new().require(Precondition::absent("a")).put("a", "");
    let others = [
        create_a(),
        create_a(),
        Transaction::new().require(Precondition::unchanged("a", Revision::new(2))).delete("a"),
        create_a(),
        Transaction::new().delete("missing"),
    ];
    let (first, others) = wait_behind_a_flush(&store, &disk, others).await;
    disk.let_syncs_go();
    first.await.unwrap().unwrap();
    let mut results = Vec::new();
    for answer in others {
        results.push(match answer.await.unwrap() {
            Ok(revision) => Ok(revision.get()),
            Err(StoreError::PreconditionFailed(unmet)) => Err((unmet.found.map(Revision::get), unmet.at.get())),
            Err(error) => panic!("{error}"),
        });
    }
    assert_eq!(results, [Ok(2), Err((Some(2), 2)), Ok(3), Ok(4), Ok(4)]);
    assert_eq!((store.stats().commits.get(), store.stats().syncs.get()), (4, 2));
}

#[tokio::test]
async fn a_failed_flush_leaves_its_batch_unknown_and_the_store_read_only() {
    for trouble in [Trouble::Errno(EIO), Trouble::Panic] {
        let disk = Disk::default();
        let store = create(&disk);
        let others = (0..3).map(|number| Transaction::new().put(format!("{number}"), ""));
        let (first, others) = wait_behind_a_flush(&store, &disk, others).await;
        // The one that is kept in its flush has two syncs, and is not to fail.
        disk.fail(At::Sync, 1, trouble);
        disk.let_syncs_go();
        first.await.unwrap().unwrap();
        for answer in others {
            let answer = answer.await.unwrap();
            assert!(matches!(answer, Err(StoreError::OutcomeUnknown { .. })), "{answer:?}");
        }
        let after = store.commit(Transaction::new().put("after", "")).await;
        assert!(matches!(after, Err(StoreError::ReadOnly { .. })), "{after:?}");
        assert!(matches!(store.health(), Health::ReadOnly { .. }));
        assert_eq!(store.head().await.unwrap(), Revision::new(1));
        assert!(store.snapshot().await.unwrap().get(b"first").await.unwrap().is_some(), "reads go on");
    }
}

#[tokio::test]
async fn what_waits_when_a_store_is_dropped_is_still_done() {
    let disk = Disk::default();
    let store = create(&disk);
    let others = [Transaction::new().put("a", ""), Transaction::new().put("b", "")];
    let (first, others) = wait_behind_a_flush(&store, &disk, others).await;
    disk.let_syncs_go();
    drop(store);
    for (revision, answer) in (1..).zip([first].into_iter().chain(others)) {
        assert_eq!(answer.await.unwrap().unwrap(), Revision::new(revision));
    }
    let store = RedbStore::open_on(disk.backend(), Path::new("disk"), RedbOptions::default()).unwrap();
    assert_eq!(store.head().await.unwrap(), Revision::new(3));
}
