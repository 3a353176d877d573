//! Tests of commits that wait for the same flush and so share the next one.

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

/// A task that commits a transaction.
type CommitHandle = JoinHandle<Result<Revision, StoreError>>;

/// Starts a commit whose flush blocks, and queues the other commits behind it in this order. Returns the task of the
/// blocked commit, and the tasks of the other commits. `disk.resume_syncs` ends the block.
async fn queue_behind_flush(
    store: &Arc<RedbStore>,
    disk: &MemoryDisk,
    transactions: impl IntoIterator<Item = Transaction>,
) -> (CommitHandle, Vec<CommitHandle>) {
    let commit = |transaction| {
        let store = Arc::clone(store);
        tokio::spawn(async move { store.commit(transaction).await })
    };
    disk.stop_syncs();
    let blocked_commit = commit(Transaction::new().put("first", ""));
    tokio::task::yield_now().await;
    let disk = disk.clone();
    tokio::task::spawn_blocking(move || disk.wait_for_stopped_sync()).await.unwrap();
    let mut commits = Vec::new();
    for transaction in transactions {
        commits.push(commit(transaction));
        tokio::task::yield_now().await;
    }
    (blocked_commit, commits)
}

/// One commit is blocked in its flush while 64 others wait. The second flush makes all of these durable.
#[tokio::test]
async fn writer_flushes_once_when_commits_wait() {
    let disk = MemoryDisk::default();
    let store = create(&disk);
    let queued_commits = (0..64).map(|number| Transaction::new().put(format!("{number}"), ""));
    let (blocked_commit, queued_commits) = queue_behind_flush(&store, &disk, queued_commits).await;
    assert_eq!(store.head().await.unwrap(), Revision::ZERO, "no commit is visible before it is durable");
    assert!(queued_commits.iter().all(|commit| !commit.is_finished()), "no commit succeeds before it is durable");
    disk.resume_syncs();
    assert_eq!(blocked_commit.await.unwrap().unwrap(), Revision::new(1));
    for (revision, commit) in (2..).zip(queued_commits) {
        assert_eq!(commit.await.unwrap().unwrap(), Revision::new(revision));
    }
    assert_eq!((store.stats().commits.get(), store.stats().syncs.get()), (65, 2));
}

/// All five commits are in one batch. A failed one is shown as the revision that last wrote the key, and the revision
/// of the check.
#[tokio::test]
async fn writer_checks_each_commit_against_earlier_commits_of_batch() {
    let disk = MemoryDisk::default();
    let store = create(&disk);
    let create_a = || Transaction::new().require(Precondition::absent("a")).put("a", "");
    let queued_commits = [
        create_a(),
        create_a(),
        Transaction::new().require(Precondition::unchanged("a", Revision::new(2))).delete("a"),
        create_a(),
        Transaction::new().delete("missing"),
    ];
    let (blocked_commit, queued_commits) = queue_behind_flush(&store, &disk, queued_commits).await;
    disk.resume_syncs();
    blocked_commit.await.unwrap().unwrap();
    let mut results = Vec::new();
    for commit in queued_commits {
        results.push(match commit.await.unwrap() {
            Ok(revision) => Ok(revision.get()),
            Err(StoreError::PreconditionFailed(failure)) => Err((failure.found.map(Revision::get), failure.at.get())),
            Err(error) => panic!("{error}"),
        });
    }
    // The last transaction deletes a missing key, so it changes nothing and returns the present revision.
    assert_eq!(results, [Ok(2), Err((Some(2), 2)), Ok(3), Ok(4), Ok(4)]);
    assert_eq!((store.stats().commits.get(), store.stats().syncs.get()), (4, 2));
}

#[tokio::test]
async fn writer_becomes_read_only_with_unknown_outcome_when_flush_fails() {
    for fault in [DiskFault::Errno(EIO), DiskFault::Panic] {
        let disk = MemoryDisk::default();
        let store = create(&disk);
        let queued_commits = (0..3).map(|number| Transaction::new().put(format!("{number}"), ""));
        let (blocked_commit, queued_commits) = queue_behind_flush(&store, &disk, queued_commits).await;
        // The blocked commit does one more sync, which must not fail.
        disk.fail(DiskOperation::Sync, 1, fault);
        disk.resume_syncs();
        blocked_commit.await.unwrap().unwrap();
        for commit in queued_commits {
            let result = commit.await.unwrap();
            assert!(matches!(result, Err(StoreError::OutcomeUnknown { .. })), "{result:?}");
        }
        let late_result = store.commit(Transaction::new().put("after", "")).await;
        assert!(matches!(late_result, Err(StoreError::ReadOnly { .. })), "{late_result:?}");
        assert!(matches!(store.health(), Health::ReadOnly { .. }));
        assert_eq!(store.head().await.unwrap(), Revision::new(1));
        assert!(store.snapshot().await.unwrap().get(b"first").await.unwrap().is_some(), "reads still work");
    }
}

/// The test gives up its reference to the store before it waits for the results of one blocked and two queued commits.
/// The tasks of the commits hold the store until then. The reopened store has all three commits.
#[tokio::test]
async fn writer_finishes_queued_commits_when_store_is_dropped() {
    let disk = MemoryDisk::default();
    let store = create(&disk);
    let queued_commits = [Transaction::new().put("a", ""), Transaction::new().put("b", "")];
    let (blocked_commit, queued_commits) = queue_behind_flush(&store, &disk, queued_commits).await;
    disk.resume_syncs();
    drop(store);
    for (revision, commit) in (1..).zip([blocked_commit].into_iter().chain(queued_commits)) {
        assert_eq!(commit.await.unwrap().unwrap(), Revision::new(revision));
    }
    let store = RedbStore::open_on(disk.backend(), Path::new("disk"), RedbOptions::default()).unwrap();
    assert_eq!(store.head().await.unwrap(), Revision::new(3));
}
