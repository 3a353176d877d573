//! Tests with a failing disk: F03 (power loss), F05 (EIO on fsync) and F06 (disk full), as numbered in docs/trust.md.

use std::path::Path;

use super::super::testing::{DiskFault, DiskOperation, MemoryDisk, create_options};
use super::super::{RedbOptions, RedbStore};
use crate::store::{Health, ListQuery, OpenError, Revision, Store, StoreError, Transaction};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn open(disk: &MemoryDisk) -> Result<RedbStore, OpenError> {
    // A new disk, because a host that lost power has also lost its locks.
    RedbStore::open_on(MemoryDisk::with_bytes(disk.bytes()).backend(), Path::new("disk"), RedbOptions::default())
}

fn create(disk: &MemoryDisk) -> RedbStore {
    RedbStore::create_on(disk.backend(), Path::new("disk"), &create_options(), RedbOptions::default()).unwrap()
}

/// Returns write number n: an object that all writes share, an object of its own, and an after-image.
fn numbered_write(number: u64) -> Transaction {
    Transaction::new()
        .put("shared", numbered_value(number))
        .put(format!("own/{number:04}"), numbered_value(number))
        .put_at_revision("history/", numbered_value(number))
}

fn numbered_value(number: u64) -> Vec<u8> {
    vec![u8::try_from(number % 251).unwrap(); 300 + usize::try_from(number).unwrap() % 700]
}

/// Asserts that the store contains exactly the first `head` writes, each of them complete, and its changes.
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
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }
}

#[tokio::test]
async fn f03_store_keeps_acknowledged_commits_whole_when_power_is_lost() {
    let disk = MemoryDisk::default();
    let store = create(&disk);
    let mut acknowledged = vec![disk.request_count()];
    for number in 1..=24 {
        store.commit(numbered_write(number)).await.unwrap();
        acknowledged.push(disk.request_count());
    }
    let moments = acknowledged[0]..=disk.request_count();
    let mut random = Random(0x5eed);
    for moment in moments {
        // Of the writes that were not synced, none is stored, all are, or any sectors of them.
        let odds = [0, 100, random.below(100)][moment % 3];
        let left = disk.after_power_loss(moment, || random.below(100) < odds);
        let context = format!("moment {moment}, {odds} % of the unsynced sectors left");
        let store = open(&left).unwrap_or_else(|error| panic!("{context}: {error:?}"));
        let known = acknowledged.iter().rposition(|at| *at <= moment).unwrap() as u64;
        let head = store.head().await.unwrap().get();
        assert!(head == known || head == known + 1, "{context}: {head}, {known} were acknowledged");
        assert_consistent(&store, &context).await;
        store.commit(numbered_write(head + 1)).await.unwrap();
        assert_consistent(&store, &context).await;
    }
}

#[tokio::test]
async fn f05_and_f06_store_becomes_read_only_when_write_fails() {
    // A file grows in steps, so its length is rarely set.
    let cases = [
        (DiskOperation::Sync, EIO, 0..6),
        (DiskOperation::Write, EIO, 0..12),
        (DiskOperation::Write, ENOSPC, 0..12),
        (DiskOperation::SetLen, ENOSPC, 0..1),
    ];
    for (at, errno, skips) in cases {
        for skipped in skips {
            let context = format!("{at:?} number {skipped} says {errno}");
            let disk = MemoryDisk::default();
            let store = create(&disk);
            disk.fail(at, skipped, DiskFault::Errno(errno));
            let (done, failed) = write_until_failure(&store).await;
            assert!(matches!(failed, StoreError::OutcomeUnknown { .. } | StoreError::ReadOnly { .. }), "{context}: {failed:?}");
            let again = store.commit(numbered_write(done + 1)).await;
            assert!(matches!(again, Err(StoreError::ReadOnly { .. })), "{context}: {again:?}");
            match store.health() {
                Health::ReadOnly { reason } => assert!(reason.contains("os error"), "{context}: {reason}"),
                Health::Writable => panic!("{context}: not said to be read-only"),
            }
            assert_eq!(store.head().await.unwrap(), Revision::new(done), "{context}");
            assert_consistent(&store, &context).await;
            drop(store);
            let store = open(&disk).unwrap_or_else(|error| panic!("{context}: {error:?}"));
            let most = if matches!(failed, StoreError::OutcomeUnknown { .. }) { done + 1 } else { done };
            assert!(
                (done..=most).contains(&store.head().await.unwrap().get()),
                "{context}: {} of {done}",
                store.head().await.unwrap()
            );
            assert_consistent(&store, &context).await;
            let head = store.head().await.unwrap().get();
            store.commit(numbered_write(head + 1)).await.unwrap();
        }
    }
}

/// Returns disks as a crashed or killed controller leaves them: after a power loss at each moment, and at the moment of
/// the kill.
async fn crashed_disks() -> Vec<(String, MemoryDisk, u64)> {
    let disk = MemoryDisk::default();
    let store = create(&disk);
    let first = disk.request_count();
    let mut found = Vec::new();
    for number in 1..=6 {
        store.commit(numbered_write(number)).await.unwrap();
    }
    let mut random = Random(0xc4a5);
    for moment in (first..=disk.request_count()).step_by(3) {
        let left = disk.after_power_loss(moment, || random.below(2) == 0);
        let head = open(&left).unwrap().head().await.unwrap().get();
        found.push((format!("power lost at moment {moment}"), left, head));
    }
    found.push(("killed".to_owned(), MemoryDisk::with_bytes(disk.bytes()), 6));
    drop(store);
    found.push(("closed".to_owned(), MemoryDisk::with_bytes(disk.bytes()), 6));
    found
}

#[tokio::test]
async fn f03_store_loses_no_commit_when_power_is_lost_while_opening() {
    let mut random = Random(0x09e2);
    for (how, left, head) in crashed_disks().await {
        let opening = MemoryDisk::with_bytes(left.bytes());
        let opened = RedbStore::open_on(opening.backend(), Path::new("disk"), RedbOptions::default()).unwrap();
        assert_eq!(opened.head().await.unwrap().get(), head, "{how}");
        for moment in 0..=opening.request_count() {
            // Each write may be stored alone, because a disk keeps no order between two syncs.
            for round in 0..5 {
                let odds = [0, 100, 20, 50, 80][round];
                let again = opening.after_power_loss(moment, || random.below(100) < odds);
                let context = format!("{how}; then at moment {moment} of opening, {odds} %, round {round}");
                let store = open(&again).unwrap_or_else(|error| panic!("{context}: {error:?}"));
                assert_eq!(store.head().await.unwrap().get(), head, "{context}");
                assert_consistent(&store, &context).await;
            }
        }
        drop(opened);
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
    let failing = MemoryDisk::with_bytes(disk.bytes());
    failing.fail(DiskOperation::Read, 0, DiskFault::Errno(EIO));
    let refused = RedbStore::open_on(failing.backend(), Path::new("disk"), RedbOptions::default());
    assert!(matches!(refused, Err(OpenError::Io { .. })));
    assert!(open(&failing).is_ok());
}

#[tokio::test]
async fn open_returns_error_with_advice_when_redb_panics() {
    let disk = MemoryDisk::default();
    drop(create(&disk));
    disk.fail(DiskOperation::Read, 1, DiskFault::Panic);
    let before = disk.bytes();
    let Err(refused) = RedbStore::open_on(disk.backend(), Path::new("/var/lib/stemma/store"), RedbOptions::default()) else {
        panic!("it opened");
    };
    assert_eq!(
        refused.to_string(),
        "the store /var/lib/stemma/store is damaged and was not changed: restore a backup (docs/backup.md) or copy back /var/lib/stemma from a copy that was made while the controller was stopped"
    );
    assert_eq!(disk.bytes(), before);
}

/// F12: one bit of a closed store is flipped. The store is refused or the flip is harmless. It never returns wrong data
/// and never crashes.
#[tokio::test]
async fn f12_store_refuses_or_survives_flipped_bit() {
    let disk = MemoryDisk::default();
    let store = create(&disk);
    for number in 1..=40 {
        store.commit(numbered_write(number)).await.unwrap();
    }
    drop(store);
    let whole = disk.bytes();
    let used: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] != 0).collect();
    let mut random = Random(0xf11b);
    let mut refused = 0;
    let rounds = if std::env::var_os("STEMMA_TEST_LONG").is_some() { 1_000 } else { 100 };
    for round in 0..rounds {
        // The first rounds flip bits of the header, where every bit matters.
        let at = if round < rounds / 3 { random.below(320) } else { used[random.below(used.len())] };
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << random.below(8);
        let flipped = MemoryDisk::with_bytes(bytes.clone());
        if let Ok(store) = RedbStore::open_on(flipped.backend(), Path::new("disk"), RedbOptions::default()) {
            assert_eq!(store.head().await.unwrap(), Revision::new(40), "byte {at}");
            assert_consistent(&store, &format!("byte {at}")).await;
        } else {
            refused += 1;
            assert!(flipped.bytes() == bytes, "byte {at}: a refused file was written to");
        }
    }
    assert!(refused > rounds / 4, "most flips must be seen, {refused} were");
}
