//! Tests of the audit of refusals: which refusals get an entry, which are only counted, and when entries are dropped.

use stemma_wire::clock::FixedClock;

use super::*;
use crate::records::audit::AuditEvent;
use crate::store::{CreateOptions, Epoch, RedbOptions, RedbStore, Revision};

/// Returns a clock that always shows this time, in seconds since 1970.
fn clock(at_s: u64) -> Arc<WatchedClock> {
    Arc::new(WatchedClock::new(Arc::new(FixedClock(at_s))))
}

fn address() -> SocketAddr {
    "192.0.2.1:4711".parse().unwrap()
}

/// Returns the tally key of refusals of this principal name, for the reason `x`.
fn key(principal: &str) -> TallyKey {
    TallyKey { principal: principal.to_owned(), principal_ref: PrincipalRef::Nobody, reason: "x" }
}

/// Of 25 refusals of `node/a` for the reason `x`, ten have entries. Another principal or another reason is counted
/// separately, so its first refusal has an entry too.
#[test]
fn tally_records_ten_per_minute_then_counts() {
    let rejected = RejectionCounter::default();
    let RefusalWriter { mut entries, .. } = channel(&rejected, clock(5), |_| None);
    for _ in 0..25 {
        rejected.notify("x", "node/a", None, address());
    }
    rejected.notify("x", "node/b", None, address());
    rejected.notify("y", "node/a", None, address());
    let mut recorded = Vec::new();
    while let Ok(refusal) = entries.try_recv() {
        assert_eq!((refusal.at, refusal.address.as_str()), (Timestamp(5000), "192.0.2.1:4711"));
        recorded.push((refusal.principal, refusal.refused, refusal.unsaid));
    }
    assert_eq!(recorded.len(), 12);
    assert!(recorded.iter().all(|(.., further_count)| *further_count == 0));
    assert_eq!(recorded[10], ("node/b".to_owned(), "x".to_owned(), 0));
    assert_eq!(recorded[11], ("node/a".to_owned(), "y".to_owned(), 0));
}

/// Ten refusals per minute get an entry of their own. The number of the others is in the next entry. If there is no
/// next refusal, an entry at the end of the minute is for the last of the others, and counts the rest.
#[test]
fn unrecorded_count_is_in_next_entry_or_when_minute_ends() {
    let (tallies, start) = (RefusalTallies::default(), Instant::now());
    let add_refusal = |seconds: u64, now| tallies.add(key("p"), (Timestamp(seconds), address()), now);
    for number in 0..25 {
        assert_eq!(add_refusal(number, start).is_some(), number < 10);
    }
    assert_eq!(add_refusal(60, start + MINUTE), Some((key("p"), 15)));
    assert_eq!(add_refusal(60, start + MINUTE), Some((key("p"), 0)));
    for number in 61..80 {
        add_refusal(number, start + MINUTE);
    }
    assert_eq!(tallies.end_minutes(start + MINUTE), [], "the second minute has not ended");
    let due_entries = tallies.end_minutes(start + 2 * MINUTE);
    let expected = (Timestamp(79), "192.0.2.1:4711".to_owned(), 10);
    assert_eq!(due_entries.into_iter().map(|entry| (entry.at, entry.address, entry.unsaid)).collect::<Vec<_>>(), [expected]);
    assert_eq!(
        (tallies.end_minutes(start + 3 * MINUTE), tallies.lock().len()),
        (vec![], 0),
        "a count is returned once, and its tally is removed"
    );
}

/// The two principals have one name and different uuids. Of 25 refusals of the first one, ten have entries. The entry
/// at the end of the minute is for the last refusal, and counts the other 14.
#[test]
fn x04_f11_tally_counts_principals_apart_when_names_are_equal() {
    let (tallies, start) = (RefusalTallies::default(), Instant::now());
    let key_of = |uuid| TallyKey { principal_ref: PrincipalRef::Principal(Uuid::from_u128(uuid)), ..key("p") };
    for number in 0..25 {
        assert_eq!(tallies.add(key_of(1), (Timestamp(number), address()), start).is_some(), number < 10);
    }
    let second_principal_entry = tallies.add(key_of(2), (Timestamp(25), address()), start);
    assert_eq!(second_principal_entry, Some((key_of(2), 0)), "this is the first refusal of the second principal");
    let due_entries: Vec<_> = tallies.end_minutes(start + MINUTE).into_iter().map(|entry| (entry.whose, entry.unsaid)).collect();
    assert_eq!(due_entries, [(Some(key_of(1).principal_ref), 14)]);
}

/// The queue holds one entry, and no task writes it. A refusal whose entry does not fit into the queue is only counted.
#[test]
fn tally_counts_refusal_when_queue_is_full() {
    let (sender, mut entries) = mpsc::channel(1);
    let (tallies, clock) = (Arc::new(RefusalTallies::default()), Arc::new(FixedClock(0)));
    let refusals = RefusalRecorder { tallies: Arc::clone(&tallies), queue: sender, clock, lost_count: AtomicU64::new(0) };
    let start = Instant::now();
    let peer =
        RefusedPeer { reason: "x", principal_name: "p", uuid: None, identity: None, address: address(), other_address: None };
    for _ in 0..25 {
        refusals.record(&peer, PrincipalRef::Nobody, start);
    }
    assert_eq!(entries.try_recv().unwrap().unsaid, 0);
    refusals.record(&peer, PrincipalRef::Nobody, start + MINUTE);
    assert_eq!(entries.try_recv().unwrap().unsaid, 24, "of 26 refusals, the first and the last have entries");
    for _ in 0..3 {
        refusals.record(&peer, PrincipalRef::Nobody, start + MINUTE);
    }
    assert_eq!(
        tallies.end_minutes(start + 2 * MINUTE)[0].unsaid,
        1,
        "of two refusals without an entry, one becomes the due entry and the other is counted in it"
    );
}

/// Principals that exceed `MAX_TALLIES` share one tally for each reason, under the name `OTHERS`. Of the 25 refusals in
/// this tally, ten have entries. The entry at the end of the minute is for the last refusal, and counts the other 14.
#[test]
fn tally_counts_together_when_max_tallies_is_reached() {
    let (tallies, now) = (RefusalTallies::default(), Instant::now());
    let principal_count = MAX_TALLIES + 25;
    let recorded =
        (0..principal_count).filter_map(|number| tallies.add(key(&format!("node/{number}")), (Timestamp(0), address()), now));
    assert_eq!(recorded.filter(|(key, _)| key.principal == OTHERS).count(), 10);
    assert_eq!(tallies.lock().len(), MAX_TALLIES + 1);
    let due_entries = tallies.end_minutes(now + MINUTE);
    assert_eq!((due_entries.len(), due_entries[0].principal.as_str(), due_entries[0].unsaid), (1, OTHERS, 14));
    assert_eq!(tallies.lock().len(), 0);
}

/// Creates an empty store in a directory.
fn store(directory: &tempfile::TempDir) -> Arc<dyn Store> {
    let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: bytes::Bytes::new() };
    let path = directory.path().join("store.redb");
    Arc::new(RedbStore::create(&path, &create, RedbOptions::default()).unwrap())
}

/// Returns all audit entries of the store, the oldest first.
async fn audit(store: &dyn Store) -> Vec<AuditRecord> {
    let list = store.snapshot().await.unwrap().list(&ListQuery::prefix(key::AUDIT)).await.unwrap();
    list.entries.iter().map(|entry| codec::decode(&entry.value).unwrap()).collect()
}

/// Waits until at least this number of entries is written, and returns all entries. The store writes on its own thread,
/// so the clock of tokio must not be paused during the wait.
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

/// Of 25 refusals, ten have entries at once. When the minute ends, one more entry is for the last refusal, and counts
/// the other 14.
#[tokio::test]
async fn writer_writes_counts_when_minute_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (rejected, store) = (RejectionCounter::default(), store(&directory));
    let writer_task = tokio::spawn(channel(&rejected, clock(5), |_| None).run(Arc::clone(&store)));
    for _ in 0..25 {
        rejected.notify("x", "node/a", None, address());
    }
    assert_eq!(wait_for_entries(store.as_ref(), 10).await.len(), 10);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    let audit = wait_for_entries(store.as_ref(), 11).await;
    let further_count = |record: &AuditRecord| match record {
        AuditRecord::Refusal(refusal) => refusal.unsaid,
        AuditRecord::Commit(_) => panic!("nothing else is written"),
    };
    assert_eq!(audit.iter().map(further_count).collect::<Vec<_>>(), [[0; 10].as_slice(), &[14]].concat());
    writer_task.abort();
}

/// A sweep reads at most 1000 entries, so the 1201 refusals of days 1 and 2 need two sweeps. Commits remain in the
/// audit.
#[tokio::test]
async fn sweep_drops_only_refusals_when_ninety_days_old() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory);
    let day = |number: u64| Timestamp(number * 24 * 3600 * 1000);
    let refusal = |number: u64| {
        let (principal, address, refused) = ("p".to_owned(), String::new(), "x".to_owned());
        let (whose, other_address, unsaid) = (None, None, 0);
        AuditRecord::Refusal(RefusalRecord { at: day(number), principal, whose, address, other_address, refused, unsaid })
    };
    let commit = |number: u64| {
        AuditRecord::Commit(AuditEvent {
            at: day(number),
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
    let mut commits = JoinSet::new();
    for _ in 0..1200 {
        let (store, entry) = (Arc::clone(&store), put(refusal(1)));
        commits.spawn(async move { store.commit(entry).await.unwrap() });
    }
    commits.join_all().await;
    for record in [commit(1), refusal(2), commit(3), refusal(50), commit(50)] {
        store.commit(put(record)).await.unwrap();
    }
    let mut position = SweepPosition(KeyRange::prefix(key::AUDIT));
    let clock = WatchedClock::new(Arc::new(FixedClock(0)));
    let mut sweep_on_day = async |number: u64| position.drop_expired(store.as_ref(), &clock, day(number)).await.unwrap();
    assert_eq!(
        (sweep_on_day(90).await, sweep_on_day(91).await, sweep_on_day(92).await, sweep_on_day(92).await),
        (0, 1000, 201, 0)
    );
    assert_eq!(audit(store.as_ref()).await, [commit(1), commit(3), refusal(50), commit(50)]);
    assert_eq!((sweep_on_day(140).await, sweep_on_day(141).await), (1, 0));
    assert_eq!(audit(store.as_ref()).await, [commit(1), commit(3), commit(50)]);
}

/// The JSON form of a refusal differs from that of a commit, so a refusal is not read back as a commit.
#[test]
fn refusal_entry_is_read_back_from_json() {
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
    let json = serde_json::to_string(&event).unwrap();
    assert_eq!(json, r#"{"at":1,"principal":"p","address":"a","refused":"x","unsaid":3}"#);
    assert_eq!(serde_json::from_str::<AuditRecord>(&json).unwrap(), event);
    assert!(serde_json::from_str::<AuditEvent>(&json).is_err());
    let with_principal = |principal_ref| match &event {
        AuditRecord::Refusal(refusal) => AuditRecord::Refusal(RefusalRecord { whose: Some(principal_ref), ..refusal.clone() }),
        AuditRecord::Commit(_) => panic!("the event is a refusal"),
    };
    for (principal_ref, json) in [
        (PrincipalRef::Nobody, r#""whose":"nobody""#),
        (PrincipalRef::Principal(Uuid::from_u128(7)), r#""whose":{"principal":"00000000-0000-0000-0000-000000000007"}"#),
    ] {
        let stored = serde_json::to_string(&with_principal(principal_ref)).unwrap();
        assert!(stored.contains(json), "{stored}");
        assert_eq!(serde_json::from_str::<AuditRecord>(&stored).unwrap(), with_principal(principal_ref));
    }
}
