//! Commits that share a flush.

use std::path::Path;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::super::testing::{DiskFault, DiskOperation, MemoryDisk, create_options};
use super::super::{RedbOptions, RedbStore};
use crate::store::{Health, Precondition, Revision, Store, StoreError, Transaction};

const EIO: i32 = 5;

fn create(disk: &MemoryDisk) -> Arc<RedbStore> {
    let store = RedbStore::create_on(disk.backend(), Path::new("disk"), &create_options(), RedbOptions::default());
    Arc::new(store.unwrap())
}

type CommitHandle = JoinHandle<Result<Revision, StoreError>>;

/// Blocks one commit in its flush, and queues the other commits behind it in this order.
async fn queue_behind_flush(
    store: &Arc<RedbStore>,
    disk: &MemoryDisk,
    others: impl IntoIterator<Item = Transaction>,
) -> (CommitHandle, Vec<CommitHandle>) {
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
async fn writer_flushes_once_when_commits_wait() {
    let disk = MemoryDisk::default();
    let store = create(&disk);
    let others = (0..64).map(|number| Transaction::new().put(format!("{number}"), ""));
    let (first, others) = queue_behind_flush(&store, &disk, others).await;
    assert_eq!(store.head().await.unwrap(), Revision::ZERO, "nothing is seen before it is durable");
    assert!(others.iter().all(|answer| !answer.is_finished()), "nothing is answered before it is durable");
    disk.resume_syncs();
    assert_eq!(first.await.unwrap().unwrap(), Revision::new(1));
    for (revision, answer) in (2..).zip(others) {
        assert_eq!(answer.await.unwrap().unwrap(), Revision::new(revision));
    }
    assert_eq!((store.stats().commits.get(), store.stats().syncs.get()), (65, 2));
}

#[tokio::test]
async fn writer_checks_each_commit_against_earlier_commits_of_batch() {
    let disk = MemoryDisk::default();
    let store = create(&disk);
    let create_a = || Transaction::new().require(Precondition::absent("a")).put("a", "");
    let others = [
        create_a(),
        create_a(),
        Transaction::new().require(Precondition::unchanged("a", Revision::new(2))).delete("a"),
        create_a(),
        Transaction::new().delete("missing"),
    ];
    let (first, others) = queue_behind_flush(&store, &disk, others).await;
    disk.resume_syncs();
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
async fn writer_becomes_read_only_with_unknown_outcome_when_flush_fails() {
    for trouble in [DiskFault::Errno(EIO), DiskFault::Panic] {
        let disk = MemoryDisk::default();
        let store = create(&disk);
        let others = (0..3).map(|number| Transaction::new().put(format!("{number}"), ""));
        let (first, others) = queue_behind_flush(&store, &disk, others).await;
        // The blocked commit has a second sync, which must not fail.
        disk.fail(DiskOperation::Sync, 1, trouble);
        disk.resume_syncs();
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
async fn writer_finishes_queued_commits_when_store_is_dropped() {
    let disk = MemoryDisk::default();
    let store = create(&disk);
    let others = [Transaction::new().put("a", ""), Transaction::new().put("b", "")];
    let (first, others) = queue_behind_flush(&store, &disk, others).await;
    disk.resume_syncs();
    drop(store);
    for (revision, answer) in (1..).zip([first].into_iter().chain(others)) {
        assert_eq!(answer.await.unwrap().unwrap(), Revision::new(revision));
    }
    let store = RedbStore::open_on(disk.backend(), Path::new("disk"), RedbOptions::default()).unwrap();
    assert_eq!(store.head().await.unwrap(), Revision::new(3));
}
