//! The ledger after damage, power cuts and restarts.

use stemma_wire::message::desired::{Known, TaskSet};
use stemma_wire::message::observed::{Outcome, TaskResult};
use stemma_wire::message::{Epoch, Hash, PartDigest, Revision, WireVersion};

use super::*;
use crate::host::memory::MemoryHost;

fn ledger(host: &MemoryHost) -> Ledger {
    Ledger::open(Rc::new(host.clone())).unwrap()
}

/// Returns an accepted desired state of this revision, with empty parts.
fn accepted_state(revision: u64) -> AcceptedState {
    AcceptedState {
        version: WireVersion::FIRST,
        epoch: Epoch([1; 16]),
        revision: Revision(revision),
        known: postcard::to_stdvec(&Known::default()).unwrap(),
        task_set: postcard::to_stdvec(&TaskSet::default()).unwrap(),
    }
}

/// Returns a result of this task. The sequence number is 0, because the ledger assigns the number.
pub(crate) fn result(task: &str) -> TaskResult {
    TaskResult {
        sequence: 0,
        task_set: PartDigest([0; 32]),
        task: task.into(),
        outcome: Outcome::Changed,
        message: String::new(),
        output: String::new(),
        diff: String::new(),
        duration_ms: 0,
    }
}

fn sequences(ledger: &Ledger) -> Vec<u64> {
    ledger.results().unwrap().iter().map(|result| result.sequence).collect()
}

#[test]
fn f13_ledger_sets_aside_unusable_record_when_read() {
    // An empty file, a file without a header, and a record that a newer agent wrote.
    for damage in ["", "torn", "stemmaL\n\u{0}\u{9}future, whatever follows here, at least as long as a head is"] {
        let host = MemoryHost::new();
        ledger(&host).put(&ACCEPTED, &accepted_state(1)).unwrap();
        host.put("/var/lib/stemma-agent/apply/accepted", damage);
        assert_eq!(ledger(&host).accepted().unwrap(), None, "{damage:?}");
        assert_eq!(host.text("/var/lib/stemma-agent/apply/accepted.set-aside").as_deref(), Some(damage));
        ledger(&host).put(&ACCEPTED, &accepted_state(2)).unwrap();
        assert_eq!(ledger(&host).accepted().unwrap(), Some(accepted_state(2)));
    }
}

#[test]
fn y02_set_aside_succeeds_when_another_command_was_faster() {
    let host = MemoryHost::new();
    let ledger = ledger(&host);
    host.put("/var/lib/stemma-agent/apply/accepted", "torn");
    for _ in ["the first command", "the second command"] {
        Ledger::set_aside(&*ledger.dir, "accepted", "it is torn").unwrap();
    }
    assert_eq!(host.text("/var/lib/stemma-agent/apply/accepted.set-aside").as_deref(), Some("torn"));
}

#[test]
fn f03_put_leaves_old_or_new_state_when_power_fails() {
    let host = MemoryHost::new();
    ledger(&host).put(&ACCEPTED, &accepted_state(1)).unwrap();
    host.restart();
    ledger(&host).put(&ACCEPTED, &accepted_state(2)).unwrap();
    let calls = host.calls();
    assert!(calls >= 5, "a file is created, written, given a mode, synced, renamed: {calls}");
    for call in 0..=calls {
        let host = MemoryHost::new();
        ledger(&host).put(&ACCEPTED, &accepted_state(1)).unwrap();
        host.restart();
        host.crash_before(call);
        let is_stored = ledger(&host).put(&ACCEPTED, &accepted_state(2)).is_ok();
        host.cut_power();
        let state = ledger(&host).accepted().unwrap().expect("the old or the new state is readable");
        assert!(state == accepted_state(2) || (state == accepted_state(1) && !is_stored), "crashed before call {call}");
    }
}

#[test]
fn results_keep_sequence_until_acknowledged() {
    let host = MemoryHost::new();
    ledger(&host).add_results(vec![result("a"), result("b")]).unwrap();
    ledger(&host).add_results(vec![result("c")]).unwrap();
    assert_eq!(sequences(&ledger(&host)), [1, 2, 3]);
    ledger(&host).acknowledge(1).unwrap();
    assert_eq!(sequences(&ledger(&host)), [2, 3]);
    ledger(&host).acknowledge(3).unwrap();
    assert_eq!(sequences(&ledger(&host)), Vec::<u64>::new());
    ledger(&host).add_results(vec![result("d")]).unwrap();
    assert_eq!(sequences(&ledger(&host)), [4], "a sequence number is never used twice");
}

/// A reconcile of many changed files can end with more results than a record may contain (8 MiB). Regression test: the
/// results were stored as one record, which the next read set aside, so no controller got them.
#[test]
fn add_results_keeps_results_larger_than_a_record() {
    let host = MemoryHost::new();
    let diff = "x".repeat(16 * 1024);
    let results: Vec<_> = (0..1000).map(|number| TaskResult { diff: diff.clone(), ..result(&format!("t{number}")) }).collect();
    ledger(&host).add_results(results).unwrap();
    assert_eq!(sequences(&ledger(&host)), (1..=1000).collect::<Vec<_>>());
    assert_eq!(ledger(&host).set_aside_records().unwrap(), Vec::<String>::new());
    ledger(&host).acknowledge(500).unwrap();
    assert_eq!(sequences(&ledger(&host)), (501..=1000).collect::<Vec<_>>());
}

/// The ledger stores at most 1000 batches of results. Each batch of this test has two results.
#[test]
fn x01_ledger_drops_and_counts_oldest_results_when_unacknowledged() {
    let host = MemoryHost::new();
    let open_ledger = ledger(&host);
    let add = |batches: usize| {
        for _ in 0..batches {
            open_ledger.add_results(vec![result("a"), result("b")]).unwrap();
        }
    };
    // Reads the count from disk, like another process.
    let dropped = || ledger(&host).dropped_results().unwrap();
    let expected_finding = |count: u64| {
        format!(
            "{count} task results were dropped on this host before a controller stored them (at most 1000 batches wait): what the controller shows of \
             these tasks may be older than what was done"
        )
    };
    add(1000);
    assert_eq!(dropped(), None);
    add(2);
    assert_eq!(sequences(&open_ledger), (5..=2004).collect::<Vec<_>>());
    assert_eq!(dropped(), Some(expected_finding(4)));
    add(1);
    assert_eq!(dropped(), Some(expected_finding(6)));
    open_ledger.reset_dropped_results().unwrap();
    assert_eq!(dropped(), None);
}

#[test]
fn sequence_continues_above_acknowledged_when_ledger_is_new() {
    let host = MemoryHost::new();
    ledger(&host).acknowledge(70).unwrap();
    ledger(&host).add_results(vec![result("a")]).unwrap();
    assert_eq!(sequences(&ledger(&host)), [71]);
    // The ledger ignores a sequence number that leaves no larger number for later results. No host can have sent it.
    for sequence in [u64::MAX, u64::MAX - 1] {
        ledger(&host).acknowledge(sequence).unwrap();
        ledger(&host).add_results(vec![result("b")]).unwrap();
    }
    assert_eq!(sequences(&ledger(&host)), [71, 72, 73]);
}

#[test]
fn put_writes_nothing_when_value_is_equal() {
    let host = MemoryHost::new();
    ledger(&host).put(&ACCEPTED, &accepted_state(1)).unwrap();
    host.restart();
    ledger(&host).put(&ACCEPTED, &accepted_state(1)).unwrap();
    assert_eq!(host.calls(), 0);
}

#[test]
fn s68_body_is_discarded_when_changed_at_rest() {
    let host = MemoryHost::new();
    let hash = Hash(sha256(b"body"));
    ledger(&host).store_body(hash, b"body").unwrap();
    assert_eq!(ledger(&host).body(hash).unwrap().as_deref(), Some(&b"body"[..]));
    host.put(&format!("/var/lib/stemma-agent/apply/bodies/{hash}"), "bodY");
    assert_eq!(ledger(&host).body(hash).unwrap(), None);
    assert!(!ledger(&host).has_body(hash).unwrap(), "the agent must fetch the body again");
}

#[test]
fn x05_sweep_removes_unfinished_files_next_to_identity() {
    let host = MemoryHost::new();
    let leftovers =
        ["/var/lib/stemma-agent/.stemma-0123456789abcdef", "/var/lib/stemma-agent/apply/undo/.stemma-0123456789abcdef"];
    for path in leftovers {
        host.put(path, "half");
    }
    host.put("/var/lib/stemma-agent/identity.json", "{}");
    ledger(&host).sweep().unwrap();
    assert_eq!(leftovers.map(|path| host.text(path)), [None, None]);
    assert_eq!(host.text("/var/lib/stemma-agent/identity.json").as_deref(), Some("{}"));
}

#[test]
fn y02_applying_file_is_removed_at_task_end_and_at_start() {
    let root = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(Rc::new(crate::host::real::RealHost::new(root.path()).unwrap())).unwrap();
    let dir = root.path().join("var/lib/stemma-agent/apply");
    let is_applying =
        |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().to_string_lossy().starts_with("applying-");
    let applying_count = || std::fs::read_dir(&dir).unwrap().map(is_applying).filter(|is_match| *is_match).count();
    let guard = ledger.mark_applying("t");
    assert_eq!(applying_count(), 1);
    drop(guard);
    assert_eq!(applying_count(), 0);
    std::fs::write(dir.join("applying-0123456789abcdef0123456789abcdef"), "").unwrap();
    ledger.sweep().unwrap();
    assert_eq!(applying_count(), 0);
}

/// Regression test: with long paths, the record was so large that each read set it aside.
#[test]
fn tree_record_stays_readable_when_paths_are_long() {
    let ledger = ledger(&MemoryHost::new());
    let copied = CopiedFile { source: [1; 32], copy: [2; 32] };
    let record: TreeRecord = (0..4000).map(|number| (format!("{number:04000}"), copied)).collect();
    ledger.set_tree_record("t", &record).unwrap();
    let stored = ledger.tree_record("t").unwrap();
    assert_eq!(stored.len(), 1032, "the first files are recorded, up to 4 MiB");
    assert!(stored.keys().eq(record.keys().take(stored.len())));
    assert_eq!(ledger.set_aside_records().unwrap(), [""; 0]);
}

/// Regression test: beyond some 16,000 files, the record lacked the others, which were then read in each check.
#[test]
fn sync_record_has_all_files_of_large_tree() {
    let ledger = ledger(&MemoryHost::new());
    let copied = CopiedFile { source: [1; 32], copy: [2; 32] };
    let mut record = SyncRecord::default();
    for number in 0..100_000 {
        record.insert(&format!("a/long/path/to/make/the/record/large/{number}"), &copied);
    }
    ledger.set_sync_record("t", record).unwrap();
    let stored = ledger.sync_record("t").unwrap().unwrap();
    assert_eq!((stored.file_count(), stored.names()), (100_000, None));
    for number in [0, 50_000, 99_999] {
        let path = format!("a/long/path/to/make/the/record/large/{number}");
        assert!(stored.contains(&path, &copied));
        assert!(!stored.contains(&path, &CopiedFile { copy: [3; 32], ..copied }));
    }
    assert!(!stored.contains("other", &copied));
    assert_eq!(ledger.set_aside_records().unwrap(), [""; 0]);
}

/// Regression test: the files of a sensitive tree counted as files without secrets.
#[test]
fn files_below_sensitive_tree_are_secret() {
    let ledger = ledger(&MemoryHost::new());
    ledger.record_secret_path(&HostPath::from_static("/srv/keys")).unwrap();
    for (path, is_secret) in
        [("/srv/keys", true), ("/srv/keys/a/b", true), ("/srv/keysx", false), ("/srv", false), ("/keys", false)]
    {
        assert_eq!(ledger.is_secret_path(&HostPath::from_static(path)).unwrap(), is_secret, "{path}");
    }
}
