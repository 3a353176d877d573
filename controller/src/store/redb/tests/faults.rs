//! A disk that fails: F03 (power loss), F05 (EIO on fsync), F06 (disk full), as docs/trust.md numbers them.

use std::path::Path;

use super::super::testing::{At, Disk, Trouble, creation};
use super::super::{RedbOptions, RedbStore};
use crate::store::{Health, OpenError, Query, Revision, Store, StoreError, Transaction};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn open(disk: &Disk) -> Result<RedbStore, OpenError> {
    // A fresh disk: the one who lost power has lost its locks too.
    RedbStore::open_on(Disk::holding(disk.bytes()).backend(), Path::new("disk"), RedbOptions::default())
}

fn create(disk: &Disk) -> RedbStore {
    RedbStore::create_on(disk.backend(), Path::new("disk"), &creation(), RedbOptions::default()).unwrap()
}

/// The write of number n: an object that every write shares, one of its own, and an after-image.
fn write(number: u64) -> Transaction {
    Transaction::new()
        .put("shared", value(number))
        .put(format!("own/{number:04}"), value(number))
        .put_at_revision("history/", value(number))
}

fn value(number: u64) -> Vec<u8> {
    vec![u8::try_from(number % 251).unwrap(); 300 + usize::try_from(number).unwrap() % 700]
}

/// That the store holds exactly the first `head` writes, each whole, and its changes.
async fn assert_whole(store: &RedbStore, context: &str) {
    let snapshot = store.snapshot().await.unwrap();
    let head = snapshot.revision().get();
    for prefix in ["own/", "history/"] {
        let list = snapshot.list(&Query::prefix(prefix)).await.unwrap();
        let values: Vec<_> = list.entries.iter().map(|entry| entry.value.to_vec()).collect();
        assert!(values == (1..=head).map(value).collect::<Vec<_>>(), "{context}: {prefix} at {head}");
    }
    let shared = snapshot.get(b"shared").await.unwrap().map(|entry| (entry.value.to_vec(), entry.version));
    assert!(shared == (head > 0).then(|| (value(head), head)), "{context}");
    let mut watch = store.watch(Revision::ZERO);
    for revision in 1..=head {
        assert_eq!(watch.next().await.unwrap().events.len(), 3, "{context}: change {revision}");
    }
}

/// A small generator, so that a failure can be run again.
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
async fn f03_power_loss_at_any_moment_loses_no_acknowledged_commit_and_halves_none() {
    let disk = Disk::default();
    let store = create(&disk);
    let mut acknowledged = vec![disk.moment()];
    for number in 1..=24 {
        store.commit(write(number)).await.unwrap();
        acknowledged.push(disk.moment());
    }
    let moments = acknowledged[0]..=disk.moment();
    let mut random = Random(0x5eed);
    for moment in moments {
        // Nothing of what was not synced is left, all of it, or any sectors of it, in any order.
        let odds = [0, 100, random.below(100)][moment % 3];
        let left = disk.after_power_loss(moment, || random.below(100) < odds);
        let context = format!("moment {moment}, {odds} % of the unsynced sectors left");
        let store = open(&left).unwrap_or_else(|error| panic!("{context}: {error:?}"));
        let known = acknowledged.iter().rposition(|at| *at <= moment).unwrap() as u64;
        let head = store.head().await.unwrap().get();
        assert!(head == known || head == known + 1, "{context}: {head}, {known} were acknowledged");
        assert_whole(&store, &context).await;
        store.commit(write(head + 1)).await.unwrap();
        assert_whole(&store, &context).await;
    }
}

#[tokio::test]
async fn f05_and_f06_a_failed_write_makes_the_store_read_only_and_says_what_may_be_there() {
    // A file grows by steps, so that its length is seldom set.
    let cases =
        [(At::Sync, EIO, 0..6), (At::Write, EIO, 0..12), (At::Write, ENOSPC, 0..12), (At::SetLen, ENOSPC, 0..1)];
    for (at, errno, skips) in cases {
        for skipped in skips {
            let context = format!("{at:?} number {skipped} says {errno}");
            let disk = Disk::default();
            let store = create(&disk);
            disk.fail(at, skipped, Trouble::Errno(errno));
            let (done, failed) = write_until_failure(&store).await;
            assert!(
                matches!(failed, StoreError::OutcomeUnknown { .. } | StoreError::ReadOnly { .. }),
                "{context}: {failed:?}"
            );
            let again = store.commit(write(done + 1)).await;
            assert!(matches!(again, Err(StoreError::ReadOnly { .. })), "{context}: {again:?}");
            match store.health() {
                Health::ReadOnly { reason } => assert!(reason.contains("os error"), "{context}: {reason}"),
                Health::Writable => panic!("{context}: not said to be read-only"),
            }
            assert_eq!(store.head().await.unwrap(), Revision::new(done), "{context}");
            assert_whole(&store, &context).await;
            drop(store);
            let store = open(&disk).unwrap_or_else(|error| panic!("{context}: {error:?}"));
            let most = if matches!(failed, StoreError::OutcomeUnknown { .. }) { done + 1 } else { done };
            assert!(
                (done..=most).contains(&store.head().await.unwrap().get()),
                "{context}: {} of {done}",
                store.head().await.unwrap()
            );
            assert_whole(&store, &context).await;
            let head = store.head().await.unwrap().get();
            store.commit(write(head + 1)).await.unwrap();
        }
    }
}

/// The disks that stores of a crashed or killed controller are found on: after a loss of power at each of its moments, and as it
/// stood when it was killed.
async fn crashed() -> Vec<(String, Disk, u64)> {
    let disk = Disk::default();
    let store = create(&disk);
    let first = disk.moment();
    let mut found = Vec::new();
    for number in 1..=6 {
        store.commit(write(number)).await.unwrap();
    }
    let mut random = Random(0xc4a5);
    for moment in (first..=disk.moment()).step_by(3) {
        let left = disk.after_power_loss(moment, || random.below(2) == 0);
        let head = open(&left).unwrap().head().await.unwrap().get();
        found.push((format!("power lost at moment {moment}"), left, head));
    }
    found.push(("killed".to_owned(), Disk::holding(disk.bytes()), 6));
    drop(store);
    found.push(("closed".to_owned(), Disk::holding(disk.bytes()), 6));
    found
}

#[tokio::test]
async fn f03_power_loss_while_a_store_opens_or_is_repaired_loses_nothing() {
    let mut random = Random(0x09e2);
    for (how, left, head) in crashed().await {
        let opening = Disk::holding(left.bytes());
        let opened = RedbStore::open_on(opening.backend(), Path::new("disk"), RedbOptions::default()).unwrap();
        assert_eq!(opened.head().await.unwrap().get(), head, "{how}");
        for moment in 0..=opening.moment() {
            // Each write may be there alone, since a disk keeps no order between two syncs.
            for round in 0..5 {
                let odds = [0, 100, 20, 50, 80][round];
                let again = opening.after_power_loss(moment, || random.below(100) < odds);
                let context = format!("{how}; then at moment {moment} of opening, {odds} %, round {round}");
                let store = open(&again).unwrap_or_else(|error| panic!("{context}: {error:?}"));
                assert_eq!(store.head().await.unwrap().get(), head, "{context}");
                assert_whole(&store, &context).await;
            }
        }
        drop(opened);
    }
}

/// How many writes succeeded, and what the next one said.
async fn write_until_failure(store: &RedbStore) -> (u64, StoreError) {
    for number in 1..=2000 {
        if let Err(error) = store.commit(write(number)).await {
            return (number - 1, error);
        }
    }
    panic!("nothing failed");
}

#[tokio::test]
async fn a_disk_that_cannot_be_read_is_no_damage() {
    let disk = Disk::default();
    drop(create(&disk));
    let failing = Disk::holding(disk.bytes());
    failing.fail(At::Read, 0, Trouble::Errno(EIO));
    let refused = RedbStore::open_on(failing.backend(), Path::new("disk"), RedbOptions::default());
    assert!(matches!(refused, Err(OpenError::Io { .. })));
    assert!(open(&failing).is_ok());
}

#[tokio::test]
async fn a_panic_while_opening_is_an_error_with_a_way_out() {
    let disk = Disk::default();
    drop(create(&disk));
    disk.fail(At::Read, 1, Trouble::Panic);
    let before = disk.bytes();
    let Err(refused) = RedbStore::open_on(disk.backend(), Path::new("/var/lib/stemma/store"), RedbOptions::default())
    else {
        panic!("it opened");
    };
    assert_eq!(
        refused.to_string(),
        "the store /var/lib/stemma/store is damaged and was left as it is: restore a backup (docs/backup.md) or put back a copy of /var/lib/stemma that was made while the controller was stopped"
    );
    assert_eq!(disk.bytes(), before);
}

/// F12: one bit of a closed store is another. It is refused or does no harm; never wrong data, never a crash.
#[tokio::test]
async fn f12_a_flipped_bit_is_refused_or_does_no_harm() {
    let disk = Disk::default();
    let store = create(&disk);
    for number in 1..=40 {
        store.commit(write(number)).await.unwrap();
    }
    drop(store);
    let whole = disk.bytes();
    let used: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] != 0).collect();
    let mut random = Random(0xf11b);
    let mut refused = 0;
    let rounds = if std::env::var_os("STEMMA_TEST_LONG").is_some() { 1_000 } else { 100 };
    for round in 0..rounds {
        // The first rounds go over the header, where each bit counts.
        let at = if round < rounds / 3 { random.below(320) } else { used[random.below(used.len())] };
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << random.below(8);
        let flipped = Disk::holding(bytes.clone());
        if let Ok(store) = RedbStore::open_on(flipped.backend(), Path::new("disk"), RedbOptions::default()) {
            assert_eq!(store.head().await.unwrap(), Revision::new(40), "byte {at}");
            assert_whole(&store, &format!("byte {at}")).await;
        } else {
            refused += 1;
            assert!(flipped.bytes() == bytes, "byte {at}: a refused file was written to");
        }
    }
    assert!(refused > rounds / 4, "most flips must be seen, {refused} were");
}
