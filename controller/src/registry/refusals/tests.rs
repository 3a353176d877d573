//! Tests which refusals are written, which are counted, and when entries are dropped.

use stemma_wire::clock::FixedClock;

use super::*;
use crate::records::audit::AuditEvent;
use crate::store::{CreateOptions, Epoch, RedbOptions, RedbStore, Revision};

fn clock(at_s: u64) -> Arc<WatchedClock> {
    Arc::new(WatchedClock::new(Arc::new(FixedClock(at_s))))
}

fn address() -> SocketAddr {
    "192.0.2.1:4711".parse().unwrap()
}

fn key(principal: &str) -> TallyKey {
    TallyKey { principal: principal.to_owned(), whose: PrincipalRef::Nobody, reason: "x" }
}

#[test]
fn tally_records_ten_per_minute_then_counts() {
    let rejected = RejectionCounter::default();
    let RefusalWriter { mut entries, .. } = channel(&rejected, clock(5), |_| None);
    for _ in 0..25 {
        rejected.notify("x", "node/a", None, address());
    }
    rejected.notify("x", "node/b", None, address());
    rejected.notify("y", "node/a", None, address());
    let mut said = Vec::new();
    while let Ok(refusal) = entries.try_recv() {
        assert_eq!((refusal.at, refusal.address.as_str()), (Timestamp(5000), "192.0.2.1:4711"));
        said.push((refusal.principal, refusal.refused, refusal.unsaid));
    }
    assert_eq!(said.len(), 12);
    assert!(said.iter().all(|(.., unsaid)| *unsaid == 0));
    assert_eq!(said[10], ("node/b".to_owned(), "x".to_owned(), 0));
    assert_eq!(said[11], ("node/a".to_owned(), "y".to_owned(), 0));
}

#[test]
fn unrecorded_count_is_in_next_entry_or_when_minute_ends() {
    let (tallies, start) = (RefusalTallies::default(), Instant::now());
    let count = |seconds: u64, now| tallies.add(key("p"), (Timestamp(seconds), address()), now);
    for n in 0..25 {
        assert_eq!(count(n, start).is_some(), n < 10);
    }
    assert_eq!(count(60, start + MINUTE), Some((key("p"), 15)));
    assert_eq!(count(60, start + MINUTE), Some((key("p"), 0)));
    for n in 61..80 {
        count(n, start + MINUTE);
    }
    assert_eq!(tallies.take_due(start + MINUTE), [], "a minute that goes on");
    let due = tallies.take_due(start + 2 * MINUTE);
    let last = (Timestamp(79), "192.0.2.1:4711".to_owned(), 10);
    assert_eq!(due.into_iter().map(|due| (due.at, due.address, due.unsaid)).collect::<Vec<_>>(), [last]);
    assert_eq!((tallies.take_due(start + 3 * MINUTE), tallies.lock().len()), (vec![], 0), "once, and then forgotten");
}

#[test]
fn x04_f11_tally_counts_principals_apart_when_names_are_equal() {
    let (tallies, start) = (RefusalTallies::default(), Instant::now());
    let of = |uuid| TallyKey { whose: PrincipalRef::Principal(Uuid::from_u128(uuid)), ..key("p") };
    for n in 0..25 {
        assert_eq!(tallies.add(of(1), (Timestamp(n), address()), start).is_some(), n < 10);
    }
    let first = tallies.add(of(2), (Timestamp(25), address()), start);
    assert_eq!(first, Some((of(2), 0)), "of the next one it is the first");
    let due: Vec<_> = tallies.take_due(start + MINUTE).into_iter().map(|due| (due.whose, due.unsaid)).collect();
    assert_eq!(due, [(Some(of(1).whose), 14)]);
}

#[test]
fn tally_counts_refusal_when_queue_is_full() {
    let (waiting, mut entries) = mpsc::channel(1);
    let (tallies, clock) = (Arc::new(RefusalTallies::default()), Arc::new(FixedClock(0)));
    let refusals = RefusalRecorder { tallies: Arc::clone(&tallies), queue: waiting, clock, lost_count: AtomicU64::new(0) };
    let start = Instant::now();
    let refused =
        RefusedPeer { reason: "x", principal_name: "p", uuid: None, identity: None, from: address(), other_address: None };
    for _ in 0..25 {
        refusals.record(&refused, PrincipalRef::Nobody, start);
    }
    assert_eq!(entries.try_recv().unwrap().unsaid, 0);
    refusals.record(&refused, PrincipalRef::Nobody, start + MINUTE);
    assert_eq!(entries.try_recv().unwrap().unsaid, 24, "of 26, this one and another have entries");
    for _ in 0..3 {
        refusals.record(&refused, PrincipalRef::Nobody, start + MINUTE);
    }
    assert_eq!(tallies.take_due(start + 2 * MINUTE)[0].unsaid, 1, "of two without an entry one is told as itself");
}

#[test]
fn tally_counts_together_without_scan_when_max_tallies_is_reached() {
    let (tallies, now) = (RefusalTallies::default(), Instant::now());
    let all = MAX_TALLIES + 25;
    let said = (0..all).filter_map(|n| tallies.add(key(&format!("node/{n}")), (Timestamp(0), address()), now));
    assert_eq!(said.filter(|(key, _)| key.principal == OTHERS).count(), 10);
    assert_eq!(tallies.lock().len(), MAX_TALLIES + 1);
    let due = tallies.take_due(now + MINUTE);
    assert_eq!((due.len(), due[0].principal.as_str(), due[0].unsaid), (1, OTHERS, 14));
    assert_eq!(tallies.lock().len(), 0);
}

fn store(directory: &tempfile::TempDir) -> Arc<dyn Store> {
    let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: bytes::Bytes::new() };
    let path = directory.path().join("store.redb");
    Arc::new(RedbStore::create(&path, &create, RedbOptions::default()).unwrap())
}

async fn audit(store: &dyn Store) -> Vec<AuditRecord> {
    let list = store.snapshot().await.unwrap().list(&ListQuery::prefix(key::AUDIT)).await.unwrap();
    list.entries.iter().map(|entry| codec::decode(&entry.value).unwrap()).collect()
}

/// Waits until this number of entries is written. The store has its own thread, so the clock cannot be paused.
async fn wait_for_entries(store: &dyn Store, entries: usize) -> Vec<AuditRecord> {
    let written = async {
        loop {
            let audit = audit(store).await;
            if audit.len() >= entries {
                return audit;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(2), written).await.expect("the entries are written")
}

#[tokio::test]
async fn writer_writes_counts_when_minute_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (rejected, store) = (RejectionCounter::default(), store(&directory));
    let writing = tokio::spawn(channel(&rejected, clock(5), |_| None).run(Arc::clone(&store)));
    for _ in 0..25 {
        rejected.notify("x", "node/a", None, address());
    }
    assert_eq!(wait_for_entries(store.as_ref(), 10).await.len(), 10);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    let audit = wait_for_entries(store.as_ref(), 11).await;
    let unsaid = |record: &AuditRecord| match record {
        AuditRecord::Refusal(refusal) => refusal.unsaid,
        AuditRecord::Commit(_) => panic!("nothing else is written"),
    };
    assert_eq!(audit.iter().map(unsaid).collect::<Vec<_>>(), [[0; 10].as_slice(), &[14]].concat());
    writing.abort();
}

#[tokio::test]
async fn sweep_drops_only_refusals_when_ninety_days_old() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory);
    let day = |n: u64| Timestamp(n * 24 * 3600 * 1000);
    let refusal = |n: u64| {
        let (principal, address, refused) = ("p".to_owned(), String::new(), "x".to_owned());
        let (whose, other_address, unsaid) = (None, None, 0);
        AuditRecord::Refusal(RefusalRecord { at: day(n), principal, whose, address, other_address, refused, unsaid })
    };
    let commit = |n: u64| {
        AuditRecord::Commit(AuditEvent {
            at: day(n),
            principal: "p".to_owned(),
            whose: None,
            manager: "m".to_owned(),
            address: String::new(),
            reason: None,
            request_id: String::new(),
            objects: vec![],
            action: None,
        })
    };
    let put = |record| Transaction::new().put_at_revision(key::AUDIT, codec::encode(&record));
    let mut first = JoinSet::new();
    for _ in 0..1200 {
        let (store, entry) = (Arc::clone(&store), put(refusal(1)));
        first.spawn(async move { store.commit(entry).await.unwrap() });
    }
    first.join_all().await;
    for record in [commit(1), refusal(2), commit(3), refusal(50), commit(50)] {
        store.commit(put(record)).await.unwrap();
    }
    let mut old = SweepPosition(KeyRange::prefix(key::AUDIT));
    let clock = WatchedClock::new(Arc::new(FixedClock(0)));
    let mut look = async |n: u64| old.drop_expired(store.as_ref(), &clock, day(n)).await.unwrap();
    assert_eq!((look(90).await, look(91).await, look(92).await, look(92).await), (0, 1000, 201, 0));
    assert_eq!(audit(store.as_ref()).await, [commit(1), commit(3), refusal(50), commit(50)]);
    assert_eq!((look(140).await, look(141).await), (1, 0));
    assert_eq!(audit(store.as_ref()).await, [commit(1), commit(3), commit(50)]);
}

#[test]
fn refusal_entry_changes_no_object() {
    let refusal = RefusalRecord {
        at: Timestamp(1),
        principal: "p".into(),
        whose: None,
        address: "a".into(),
        other_address: None,
        refused: "x".into(),
        unsaid: 3,
    };
    let event = AuditRecord::Refusal(refusal);
    let text = serde_json::to_string(&event).unwrap();
    assert_eq!(text, r#"{"at":1,"principal":"p","address":"a","refused":"x","unsaid":3}"#);
    assert_eq!(serde_json::from_str::<AuditRecord>(&text).unwrap(), event);
    assert!(serde_json::from_str::<AuditEvent>(&text).is_err());
    let of = |whose| match &event {
        AuditRecord::Refusal(refusal) => AuditRecord::Refusal(RefusalRecord { whose: Some(whose), ..refusal.clone() }),
        AuditRecord::Commit(_) => panic!("it is a refusal"),
    };
    for (whose, text) in [
        (PrincipalRef::Nobody, r#""whose":"nobody""#),
        (PrincipalRef::Principal(Uuid::from_u128(7)), r#""whose":{"principal":"00000000-0000-0000-0000-000000000007"}"#),
    ] {
        let stored = serde_json::to_string(&of(whose)).unwrap();
        assert!(stored.contains(text), "{stored}");
        assert_eq!(serde_json::from_str::<AuditRecord>(&stored).unwrap(), of(whose));
    }
}
