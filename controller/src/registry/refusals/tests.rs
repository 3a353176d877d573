//! What is written of refusals, what is counted, and when it goes.

use stemma_wire::clock::FixedClock;

use super::*;
use crate::records::audit::AuditEvent;
use crate::store::{CreateOptions, Epoch, RedbOptions, RedbStore, Revision};

fn clock(at_s: u64) -> Arc<WatchedClock> {
    Arc::new(WatchedClock::new(Arc::new(FixedClock(at_s))))
}

fn from() -> SocketAddr {
    "192.0.2.1:4711".parse().unwrap()
}

fn key(principal: &str) -> Key {
    Key { principal: principal.to_owned(), whose: Whose::Nobody, reason: "x" }
}

#[test]
fn ten_a_minute_are_written_for_each_principal_and_reason_and_then_a_count() {
    let rejected = Rejected::default();
    let Waiting { mut entries, .. } = watch(&rejected, clock(5), |_| None);
    for _ in 0..25 {
        rejected.tell("x", "node/a", None, from());
    }
    rejected.tell("x", "node/b", None, from());
    rejected.tell("y", "node/a", None, from());
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
fn the_count_is_said_with_the_next_one_or_when_the_minute_is_over() {
    let (tallies, start) = (Tallies::default(), Instant::now());
    let count = |seconds: u64, now| tallies.count(key("p"), (Timestamp(seconds), from()), now);
    for n in 0..25 {
        assert_eq!(count(n, start).is_some(), n < 10);
    }
    assert_eq!(count(60, start + MINUTE), Some((key("p"), 15)));
    assert_eq!(count(60, start + MINUTE), Some((key("p"), 0)));
    for n in 61..80 {
        count(n, start + MINUTE);
    }
    assert_eq!(tallies.due(start + MINUTE), [], "a minute that goes on");
    let due = tallies.due(start + 2 * MINUTE);
    let last = (Timestamp(79), "192.0.2.1:4711".to_owned(), 10);
    assert_eq!(due.into_iter().map(|due| (due.at, due.address, due.unsaid)).collect::<Vec<_>>(), [last]);
    assert_eq!((tallies.due(start + 3 * MINUTE), tallies.lock().len()), (vec![], 0), "once, and then forgotten");
}

#[test]
fn x04_f11_two_principals_of_one_name_are_counted_apart() {
    let (tallies, start) = (Tallies::default(), Instant::now());
    let of = |uuid| Key { whose: Whose::Principal(Uuid::from_u128(uuid)), ..key("p") };
    for n in 0..25 {
        assert_eq!(tallies.count(of(1), (Timestamp(n), from()), start).is_some(), n < 10);
    }
    let first = tallies.count(of(2), (Timestamp(25), from()), start);
    assert_eq!(first, Some((of(2), 0)), "of the next one it is the first");
    let due: Vec<_> = tallies.due(start + MINUTE).into_iter().map(|due| (due.whose, due.unsaid)).collect();
    assert_eq!(due, [(Some(of(1).whose), 14)]);
}

#[test]
fn what_finds_no_place_is_counted() {
    let (waiting, mut entries) = mpsc::channel(1);
    let (tallies, clock) = (Arc::new(Tallies::default()), Arc::new(FixedClock(0)));
    let refusals = Refusals { tallies: Arc::clone(&tallies), waiting, clock, lost: AtomicU64::new(0) };
    let start = Instant::now();
    let refused = Refused { reason: "x", principal: "p", uuid: None, identity: None, from: from(), other: None };
    for _ in 0..25 {
        refusals.note(&refused, Whose::Nobody, start);
    }
    assert_eq!(entries.try_recv().unwrap().unsaid, 0);
    refusals.note(&refused, Whose::Nobody, start + MINUTE);
    assert_eq!(entries.try_recv().unwrap().unsaid, 24, "of 26, this one and another have entries");
    for _ in 0..3 {
        refusals.note(&refused, Whose::Nobody, start + MINUTE);
    }
    assert_eq!(tallies.due(start + 2 * MINUTE)[0].unsaid, 1, "of two without an entry one is told as itself");
}

#[test]
fn more_than_are_told_apart_are_counted_together_and_cost_no_look_at_all_of_them() {
    let (tallies, now) = (Tallies::default(), Instant::now());
    let all = MOST_REMEMBERED + 25;
    let said = (0..all).filter_map(|n| tallies.count(key(&format!("node/{n}")), (Timestamp(0), from()), now));
    assert_eq!(said.filter(|(key, _)| key.principal == OTHERS).count(), 10);
    assert_eq!(tallies.lock().len(), MOST_REMEMBERED + 1);
    let due = tallies.due(now + MINUTE);
    assert_eq!((due.len(), due[0].principal.as_str(), due[0].unsaid), (1, OTHERS, 14));
    assert_eq!(tallies.lock().len(), 0);
}

fn store(directory: &tempfile::TempDir) -> Arc<dyn Store> {
    let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: bytes::Bytes::new() };
    let path = directory.path().join("store.redb");
    Arc::new(RedbStore::create(&path, &create, RedbOptions::default()).unwrap())
}

async fn audit(store: &dyn Store) -> Vec<AuditRecord> {
    let list = store.snapshot().await.unwrap().list(&Query::prefix(key::AUDIT)).await.unwrap();
    list.entries.iter().map(|entry| codec::decode(&entry.value).unwrap()).collect()
}

/// Waits until so many entries are written. The store has a thread of its own, so the clock is not a paused one.
async fn written(store: &dyn Store, entries: usize) -> Vec<AuditRecord> {
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
async fn refusals_that_were_only_counted_are_written_when_their_minute_is_over() {
    let directory = tempfile::tempdir().unwrap();
    let (rejected, store) = (Rejected::default(), store(&directory));
    let writing = tokio::spawn(watch(&rejected, clock(5), |_| None).write(Arc::clone(&store)));
    for _ in 0..25 {
        rejected.tell("x", "node/a", None, from());
    }
    assert_eq!(written(store.as_ref(), 10).await.len(), 10);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    let audit = written(store.as_ref(), 11).await;
    let unsaid = |record: &AuditRecord| match record {
        AuditRecord::Refusal(refusal) => refusal.unsaid,
        AuditRecord::Commit(_) => panic!("nothing else is written"),
    };
    assert_eq!(audit.iter().map(unsaid).collect::<Vec<_>>(), [[0; 10].as_slice(), &[14]].concat());
    writing.abort();
}

#[tokio::test]
async fn refusals_go_after_ninety_days_and_what_commits_did_stays() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory);
    let day = |n: u64| Timestamp(n * 24 * 3600 * 1000);
    let refusal = |n: u64| {
        let (principal, address, refused) = ("p".to_owned(), String::new(), "x".to_owned());
        let (whose, other_address, unsaid) = (None, None, 0);
        AuditRecord::Refusal(Refusal { at: day(n), principal, whose, address, other_address, refused, unsaid })
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
    let mut old = Old(KeyRange::prefix(key::AUDIT));
    let clock = WatchedClock::new(Arc::new(FixedClock(0)));
    let mut look = async |n: u64| old.drop_some(store.as_ref(), &clock, day(n)).await.unwrap();
    assert_eq!((look(90).await, look(91).await, look(92).await, look(92).await), (0, 1000, 201, 0));
    assert_eq!(audit(store.as_ref()).await, [commit(1), commit(3), refusal(50), commit(50)]);
    assert_eq!((look(140).await, look(141).await), (1, 0));
    assert_eq!(audit(store.as_ref()).await, [commit(1), commit(3), commit(50)]);
}

#[test]
fn a_refusal_is_no_change_of_an_object() {
    let refusal = Refusal {
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
        AuditRecord::Refusal(refusal) => AuditRecord::Refusal(Refusal { whose: Some(whose), ..refusal.clone() }),
        AuditRecord::Commit(_) => panic!("it is a refusal"),
    };
    for (whose, text) in [
        (Whose::Nobody, r#""whose":"nobody""#),
        (Whose::Principal(Uuid::from_u128(7)), r#""whose":{"principal":"00000000-0000-0000-0000-000000000007"}"#),
    ] {
        let stored = serde_json::to_string(&of(whose)).unwrap();
        assert!(stored.contains(text), "{stored}");
        assert_eq!(serde_json::from_str::<AuditRecord>(&stored).unwrap(), of(whose));
    }
}
