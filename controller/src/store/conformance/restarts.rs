//! Rules for the data that a store retains over a restart.

use super::{
    TestBounds, TestEngine, assert_quiet, change_text, commit, create, create_options, list_all, oldest_watchable, put_singly,
};
use crate::store::{
    CreateOptions, Health, PROGRAM_VERSION, Precondition, Revision, SCHEMA_VERSION, Store, Transaction, WatchError,
};

/// The reopened store also has the same revision, accepts commits, and checks preconditions against the old entries.
pub(crate) async fn reopen_returns_same_entries_and_identity(engine: &impl TestEngine) {
    let store = create(engine);
    put_singly(&store, &[("a", "1"), ("b", "1"), ("a", "2")]).await;
    commit(&store, Transaction::new().delete("b").put_at_revision("h/", "x")).await;
    let entries = list_all(&store).await;
    drop(store);
    let store = engine.reopen(&TestBounds::default());
    assert_eq!(list_all(&store).await, entries);
    assert_eq!(store.head().await.unwrap(), Revision::new(4));
    assert_eq!(store.health(), Health::Writable);
    let identity = store.identity();
    assert_eq!((identity.epoch, identity.base, identity.schema), (create_options().epoch, Revision::ZERO, SCHEMA_VERSION));
    assert_eq!(identity.fleet, create_options().fleet);
    assert_eq!(identity.written_by.as_deref(), Some(PROGRAM_VERSION));
    let unchanged = Precondition::unchanged("a", Revision::new(3));
    assert_eq!(commit(&store, Transaction::new().require(unchanged).put("a", "3")).await, 5);
}

/// In this test, the store retains the last four changes. The texts are the revision, then
/// `key=value@create_revision/version` for a put or `-key` for a delete.
pub(crate) async fn watch_returns_kept_changes_after_restart(engine: &impl TestEngine) {
    // No changes are held in memory. So a watch reads only stored changes, before the restart too.
    let bounds = TestBounds { kept_changes: 4, recent_changes: 0, ..TestBounds::default() };
    let store = engine.create(&create_options(), &bounds);
    put_singly(&store, &[("a", "1"), ("b", "2"), ("a", "3"), ("a", "4"), ("b", "5")]).await;
    commit(&store, Transaction::new().delete("a")).await;
    let oldest_before_restart = oldest_watchable(&store).await;
    drop(store);
    let store = engine.reopen(&bounds);
    assert_eq!(oldest_watchable(&store).await, oldest_before_restart);
    let mut watch = store.watch(Revision::new(3));
    for expected in ["3: a=3@1/2", "4: a=4@1/3", "5: b=5@2/2", "6: -a"] {
        assert_eq!(change_text(&watch.next().await.unwrap()), expected);
    }
    assert_quiet(&mut watch).await;
    let compacted = store.watch(Revision::new(1)).next().await;
    assert!(matches!(compacted, Err(WatchError::Compacted { .. })), "{compacted:?}");
}

/// The statistics of each reopened store count no operation, and its revision and entries are as before.
pub(crate) async fn reopen_makes_no_revision_when_repeated(engine: &impl TestEngine) {
    let mut store = create(engine);
    put_singly(&store, &[("a", "1")]).await;
    let entries = list_all(&store).await;
    for _ in 0..10 {
        drop(store);
        store = engine.reopen(&TestBounds::default());
        let stats = store.stats();
        assert_eq!([stats.commits.get(), stats.puts.get(), stats.deletes.get(), stats.syncs.get()], [0; 4]);
        assert_eq!(stats.revision(), 1);
        assert_eq!((list_all(&store).await, store.head().await.unwrap()), (entries.clone(), Revision::new(1)));
    }
}

/// A store with the base 1000 continues the revisions of another store. So its first commit gets revision 1001, and a
/// watch from revision 1000 fails as if earlier changes were compacted.
pub(crate) async fn store_continues_above_base(engine: &impl TestEngine) {
    let store = engine.create(&CreateOptions { base: Revision::new(1000), ..create_options() }, &TestBounds::default());
    put_singly(&store, &[("a", "1")]).await;
    assert_eq!(oldest_watchable(&store).await, Revision::new(1001));
    drop(store);
    let store = engine.reopen(&TestBounds::default());
    assert_eq!((store.identity().base, store.head().await.unwrap()), (Revision::new(1000), Revision::new(1001)));
    put_singly(&store, &[("a", "2")]).await;
    assert_eq!(change_text(&store.watch(Revision::new(1002)).next().await.unwrap()), "1002: a=2@1001/2");
    let compacted = store.watch(Revision::new(1000)).next().await;
    assert!(matches!(compacted, Err(WatchError::Compacted { .. })), "{compacted:?}");
}

/// Neither deletes of missing keys nor commits that change nothing are counted. A failed precondition is counted as a
/// conflict, and not as a commit. Several commits can share one sync.
pub(crate) async fn stats_count_commits_and_operations(engine: &impl TestEngine) {
    let store = create(engine);
    put_singly(&store, &[("a", "1"), ("b", "1")]).await;
    commit(&store, Transaction::new().put("a", "2").delete("b").delete("missing").put_at_revision("h/", "x")).await;
    commit(&store, Transaction::new().delete("missing")).await;
    store.commit(Transaction::new().require(Precondition::absent("a")).put("a", "3")).await.unwrap_err();
    let stats = store.stats();
    assert_eq!([stats.commits.get(), stats.puts.get(), stats.deletes.get(), stats.conflicts.get()], [3, 4, 1, 1]);
    assert_eq!(stats.revision(), 3);
    assert!((1..=3).contains(&stats.syncs.get()));
}

/// `sizes` returns the total size of the entries below each of four prefixes. The size of an entry is the length of its
/// key and its value. The key of the entry below `h/` has 10 bytes: the prefix and the revision.
pub(crate) async fn stats_sum_entry_bytes(engine: &impl TestEngine) {
    let sizes = |store: &dyn Store| ["a/", "b/", "h/", "none/"].map(|prefix| store.stats().prefix_bytes(prefix));
    let store = create(engine);
    let snapshot = store.snapshot().await.unwrap();
    commit(&store, Transaction::new().put("a/1", "12345").put("a/2", "").put("b/1", "1")).await;
    assert_eq!(sizes(store.as_ref()), [None; 4], "there are no sums before the existing entries are counted");
    store.stats().count_sizes(snapshot.as_ref()).await.unwrap();
    assert_eq!(sizes(store.as_ref()), [Some(11), Some(4), Some(0), Some(0)]);
    commit(&store, Transaction::new().put("a/1", "1").delete("b/1").delete("b/2").put_at_revision("h/", "x")).await;
    store.commit(Transaction::new().require(Precondition::absent("a/1")).put("b/3", "3")).await.unwrap_err();
    let expected_sizes = [Some(7), Some(0), Some(11), Some(0)];
    assert_eq!(sizes(store.as_ref()), expected_sizes);
    drop((store, snapshot));
    let store = engine.reopen(&TestBounds::default());
    let snapshot = store.snapshot().await.unwrap();
    store.stats().count_sizes(snapshot.as_ref()).await.unwrap();
    assert_eq!(sizes(store.as_ref()), expected_sizes, "the sums are the same after a restart");
}
