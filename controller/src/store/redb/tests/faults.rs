//! Tests with a failing disk: F03 (power loss), F05 (EIO on fsync) and F06 (disk full), as numbered in docs/trust.md.

use std::path::Path;

use super::super::testing::{DiskFault, DiskOperation, MemoryDisk, create_options};
use super::super::{RedbOptions, RedbStore};
use crate::store::{Health, ListQuery, OpenError, Revision, Store, StoreError, Transaction};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Opens the store on a copy of the disk's present content, as after a restart of the host.
fn open(disk: &MemoryDisk) -> Result<RedbStore, OpenError> {
    // The new disk has neither the lock on the store, which a restart also ends, nor planned faults.
    RedbStore::open_on(MemoryDisk::with_bytes(disk.bytes()).backend(), Path::new("disk"), RedbOptions::default())
}

fn create(disk: &MemoryDisk) -> RedbStore {
    RedbStore::create_on(disk.backend(), Path::new("disk"), &create_options(), RedbOptions::default()).unwrap()
}

/// Returns write `number`. It puts an entry that all writes share, an entry of its own, and an entry of the history.
fn numbered_write(number: u64) -> Transaction {
    Transaction::new()
        .put("shared", numbered_value(number))
        .put(format!("own/{number:04}"), numbered_value(number))
        .put_at_revision("history/", numbered_value(number))
}

/// Returns the value that write `number` puts. Its bytes and its length depend on the number.
fn numbered_value(number: u64) -> Vec<u8> {
    vec![u8::try_from(number % 251).unwrap(); 300 + usize::try_from(number).unwrap() % 700]
}

/// Asserts that the store contains exactly the numbered writes up to its head revision. Each write must be complete,
/// and a watch must return the three changes of each.
async fn assert_consistent(store: &RedbStore, context: &str) {
    let snapshot = store.snapshot().await.unwrap();
    let head = snapshot.revision().get();
    for prefix in ["own/", "history/"] {
        let list = snapshot.list(&ListQuery::prefix(prefix)).await.unwrap();
        let values: Vec<_> = list.entries.iter().map(|entry| entry.value.to_vec()).collect();
        assert!(values == (1..=head).map(numbered_value).collect::<Vec<_>>(), "{context}: {prefix} at {head}");
    }
    let shared = snapshot.get(b"shared").await.unwrap().map(|entry| (entry.value.to_vec(), entry.version));
    assert!(shared == (head > 0).then(|| (numbered_value(head), head)), "{context}");
    let mut watch = store.watch(Revision::ZERO);
    for revision in 1..=head {
        assert_eq!(watch.next().await.unwrap().events.len(), 3, "{context}: change {revision}");
    }
}

/// A small random generator with a seed, so that a failure can be reproduced.
struct Random(u64);

impl Random {
    /// Returns the next number of the sequence (xorshift).
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a random number that is less than `bound`.
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }
}

/// The power is lost after each operation of the disk. The reopened store has every acknowledged commit, and at most
/// one more, which is whole.
#[tokio::test]
async fn f03_store_keeps_acknowledged_commits_whole_when_power_is_lost() {
    let disk = MemoryDisk::default();
    let store = create(&disk);
    let mut requests_at_commit = vec![disk.request_count()];
    for number in 1..=24 {
        store.commit(numbered_write(number)).await.unwrap();
        requests_at_commit.push(disk.request_count());
    }
    let moments = requests_at_commit[0]..=disk.request_count();
    let mut random = Random(0x5eed);
    for moment in moments {
        // The percentage of the sectors that the disk stored of its unsynced writes: none, all, or a random number.
        let survival_percent = [0, 100, random.below(100)][moment % 3];
        let disk_after_loss = disk.after_power_loss(moment, || random.below(100) < survival_percent);
        let context = format!("moment {moment}, {survival_percent} % of the unsynced sectors survive");
        let store = open(&disk_after_loss).unwrap_or_else(|error| panic!("{context}: {error:?}"));
        let acknowledged_count = requests_at_commit.iter().rposition(|requests| *requests <= moment).unwrap() as u64;
        let head = store.head().await.unwrap().get();
        assert!(
            head == acknowledged_count || head == acknowledged_count + 1,
            "{context}: {head}, {acknowledged_count} were acknowledged"
        );
        assert_consistent(&store, &context).await;
        store.commit(numbered_write(head + 1)).await.unwrap();
        assert_consistent(&store, &context).await;
    }
}

/// In each round, one of the first operations of a kind fails. The reopened store has all commits that succeeded. It
/// may also have the commit that failed, if the outcome of that commit is unknown.
#[tokio::test]
async fn f05_and_f06_store_becomes_read_only_when_write_fails() {
    // The file grows in large steps, so its length is rarely set. Only the first such operation is made to fail.
    let cases = [
        (DiskOperation::Sync, EIO, 0..6),
        (DiskOperation::Write, EIO, 0..12),
        (DiskOperation::Write, ENOSPC, 0..12),
        (DiskOperation::SetLen, ENOSPC, 0..1),
    ];
    for (operation, errno, skip_counts) in cases {
        for skip_count in skip_counts {
            let context = format!("{operation:?} number {skip_count} fails with {errno}");
            let disk = MemoryDisk::default();
            let store = create(&disk);
            disk.fail(operation, skip_count, DiskFault::Errno(errno));
            let (commit_count, failure) = write_until_failure(&store).await;
            assert!(matches!(failure, StoreError::OutcomeUnknown { .. } | StoreError::ReadOnly { .. }), "{context}: {failure:?}");
            let next_result = store.commit(numbered_write(commit_count + 1)).await;
            assert!(matches!(next_result, Err(StoreError::ReadOnly { .. })), "{context}: {next_result:?}");
            match store.health() {
                Health::ReadOnly { reason } => assert!(reason.contains("os error"), "{context}: {reason}"),
                Health::Writable => panic!("{context}: the store does not report that it is read-only"),
            }
            assert_eq!(store.head().await.unwrap(), Revision::new(commit_count), "{context}");
            assert_consistent(&store, &context).await;
            drop(store);
            let store = open(&disk).unwrap_or_else(|error| panic!("{context}: {error:?}"));
            let max_head = if matches!(failure, StoreError::OutcomeUnknown { .. }) { commit_count + 1 } else { commit_count };
            assert!(
                (commit_count..=max_head).contains(&store.head().await.unwrap().get()),
                "{context}: {} of {commit_count}",
                store.head().await.unwrap()
            );
            assert_consistent(&store, &context).await;
            let head = store.head().await.unwrap().get();
            store.commit(numbered_write(head + 1)).await.unwrap();
        }
    }
}

/// Returns disks as a controller leaves them: after a power loss at various moments, after it was killed, and after it
/// closed the store. Each has a description and the head revision of its store.
async fn crashed_disks() -> Vec<(String, MemoryDisk, u64)> {
    let disk = MemoryDisk::default();
    let store = create(&disk);
    let first_moment = disk.request_count();
    let mut disks = Vec::new();
    for number in 1..=6 {
        store.commit(numbered_write(number)).await.unwrap();
    }
    let mut random = Random(0xc4a5);
    for moment in (first_moment..=disk.request_count()).step_by(3) {
        let disk_after_loss = disk.after_power_loss(moment, || random.below(2) == 0);
        let head = open(&disk_after_loss).unwrap().head().await.unwrap().get();
        disks.push((format!("power lost at moment {moment}"), disk_after_loss, head));
    }
    disks.push(("killed".to_owned(), MemoryDisk::with_bytes(disk.bytes()), 6));
    drop(store);
    disks.push(("closed".to_owned(), MemoryDisk::with_bytes(disk.bytes()), 6));
    disks
}

/// Each crashed or closed disk is opened, and the power is lost after each operation of the opening.
#[tokio::test]
async fn f03_store_loses_no_commit_when_power_is_lost_while_opening() {
    let mut random = Random(0x09e2);
    for (description, crashed_disk, head) in crashed_disks().await {
        let recording_disk = MemoryDisk::with_bytes(crashed_disk.bytes());
        let first_store = RedbStore::open_on(recording_disk.backend(), Path::new("disk"), RedbOptions::default()).unwrap();
        assert_eq!(first_store.head().await.unwrap().get(), head, "{description}");
        for moment in 0..=recording_disk.request_count() {
            // A disk stores the writes between two syncs in any order, so each round lets other sectors survive.
            for round in 0..5 {
                let survival_percent = [0, 100, 20, 50, 80][round];
                let disk_after_loss = recording_disk.after_power_loss(moment, || random.below(100) < survival_percent);
                let context = format!("{description}; then at moment {moment} of opening, {survival_percent} %, round {round}");
                let store = open(&disk_after_loss).unwrap_or_else(|error| panic!("{context}: {error:?}"));
                assert_eq!(store.head().await.unwrap().get(), head, "{context}");
                assert_consistent(&store, &context).await;
            }
        }
        drop(first_store);
    }
}

/// Writes until a write fails. Returns the number of writes that succeeded, and the error.
async fn write_until_failure(store: &RedbStore) -> (u64, StoreError) {
    for number in 1..=2000 {
        if let Err(error) = store.commit(numbered_write(number)).await {
            return (number - 1, error);
        }
    }
    panic!("nothing failed");
}

#[tokio::test]
async fn open_returns_io_error_when_disk_is_unreadable() {
    let disk = MemoryDisk::default();
    drop(create(&disk));
    let failing_disk = MemoryDisk::with_bytes(disk.bytes());
    failing_disk.fail(DiskOperation::Read, 0, DiskFault::Errno(EIO));
    let result = RedbStore::open_on(failing_disk.backend(), Path::new("disk"), RedbOptions::default());
    assert!(matches!(result, Err(OpenError::Io { .. })));
    // `open` copies the content to a disk without faults. Its success shows that the failed attempt did no damage.
    assert!(open(&failing_disk).is_ok());
}

#[tokio::test]
async fn open_returns_error_with_advice_when_redb_panics() {
    let disk = MemoryDisk::default();
    drop(create(&disk));
    disk.fail(DiskOperation::Read, 1, DiskFault::Panic);
    let bytes_before = disk.bytes();
    let Err(error) = RedbStore::open_on(disk.backend(), Path::new("/var/lib/stemma/store"), RedbOptions::default()) else {
        panic!("the damaged store opened");
    };
    assert_eq!(
        error.to_string(),
        "the store /var/lib/stemma/store is damaged and was not changed: restore a backup (docs/backup.md) or copy back /var/lib/stemma from a copy that was made while the controller was stopped"
    );
    assert_eq!(disk.bytes(), bytes_before);
}

/// F12: in each round, one random bit of a closed store is flipped. Opening the store then fails and leaves the file
/// unchanged, or the store opens and has all its data. More than a quarter of the flips are refused.
#[tokio::test]
async fn f12_store_refuses_or_survives_flipped_bit() {
    let disk = MemoryDisk::default();
    let store = create(&disk);
    for number in 1..=40 {
        store.commit(numbered_write(number)).await.unwrap();
    }
    drop(store);
    let original = disk.bytes();
    let nonzero_indexes: Vec<usize> = (0..original.len()).filter(|index| original[*index] != 0).collect();
    let mut random = Random(0xf11b);
    let mut refused_count = 0;
    let rounds = if std::env::var_os("STEMMA_TEST_LONG").is_some() { 1_000 } else { 100 };
    for round in 0..rounds {
        // The first rounds flip bits of the header, where every bit matters.
        let index = if round < rounds / 3 { random.below(320) } else { nonzero_indexes[random.below(nonzero_indexes.len())] };
        let mut bytes = original.clone();
        bytes[index] ^= 1 << random.below(8);
        let flipped_disk = MemoryDisk::with_bytes(bytes.clone());
        if let Ok(store) = RedbStore::open_on(flipped_disk.backend(), Path::new("disk"), RedbOptions::default()) {
            assert_eq!(store.head().await.unwrap(), Revision::new(40), "byte {index}");
            assert_consistent(&store, &format!("byte {index}")).await;
        } else {
            refused_count += 1;
            assert!(flipped_disk.bytes() == bytes, "byte {index}: the refused file was changed");
        }
    }
    assert!(refused_count > rounds / 4, "more than a quarter of the flips must be detected, {refused_count} were");
}
