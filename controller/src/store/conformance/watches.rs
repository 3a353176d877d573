//! Rules of watches.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use tokio::time::timeout;

use super::{TIMEOUT, TestBounds, TestEngine, assert_quiet, change_text, commit, create, create_options, list_all, put_singly};
use crate::store::{EventKind, ListQuery, Revision, Store, StoreError, Transaction, Watch, WatchError};

/// Waits for the next change of a watch, and formats it as [`change_text`] does.
async fn next_text(watch: &mut Watch) -> String {
    change_text(super::next_change(watch).await.as_ref())
}

/// Writes one key three times, deletes it and writes it again. The third commit also writes other keys.
async fn write_history(store: &Arc<dyn Store>) {
    put_singly(store, &[("a", "1"), ("a", "2")]).await;
    commit(store, Transaction::new().put("b", "3").put("a", "3").put_at_revision("h/", "3")).await;
    commit(store, Transaction::new().delete("a").delete("missing")).await;
    put_singly(store, &[("a", "5")]).await;
}

/// The changes that [`write_history`] makes, in the format of [`change_text`].
const HISTORY: [&str; 5] =
    ["1: a=1@1/1", "2: a=2@1/2", "3: b=3@3/1 a=3@1/3 h/\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x03=3@3/1", "4: -a", "5: a=5@5/1"];

/// One watch begins before the writes, the others begin after them. `skip_count` is the number of changes of
/// [`HISTORY`] before the revision `from`.
pub(crate) async fn watch_returns_every_change_in_order(engine: &impl TestEngine) {
    let store = create(engine);
    let mut early_watch = store.watch(Revision::ZERO);
    write_history(&store).await;
    for (from, skip_count) in [(0, 0), (1, 0), (3, 2), (5, 4)] {
        let mut watch = store.watch(Revision::new(from));
        for expected in &HISTORY[skip_count..] {
            assert_eq!(next_text(&mut watch).await, *expected, "from {from}");
        }
        assert_quiet(&mut watch).await;
    }
    for expected in HISTORY {
        assert_eq!(next_text(&mut early_watch).await, expected);
    }
}

/// The text of a change is its revision, then `key=value@create_revision/version`.
pub(crate) async fn watch_waits_when_revision_is_in_future(engine: &impl TestEngine) {
    let store = create(engine);
    let mut watch = store.watch(Revision::new(3));
    let reader = tokio::spawn(async move { next_text(&mut watch).await });
    put_singly(&store, &[("a", "1"), ("a", "2"), ("a", "3"), ("a", "4")]).await;
    assert_eq!(reader.await.unwrap(), "3: a=3@1/3");
}

/// Four tasks make 100 commits. Their changes after a list are applied to the listed entries. The result must be the
/// entries at the end.
pub(crate) async fn watch_misses_and_repeats_no_change_after_list(engine: &impl TestEngine) {
    let store = create(engine);
    let writers: Vec<_> = (0..4_u64)
        .map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for round in 0..25_u64 {
                    let key = format!("{writer}/{}", round % 5);
                    let transaction = Transaction::new().put(key, round.to_string());
                    let deleted_key = format!("{writer}/{}", (round + 2) % 5);
                    commit(&store, if round % 3 == 0 { transaction.delete(deleted_key) } else { transaction }).await;
                }
            })
        })
        .collect();
    tokio::task::yield_now().await;
    let list = store.snapshot().await.unwrap().list(&ListQuery::prefix("")).await.unwrap();
    let mut watched_entries: BTreeMap<_, _> = list.entries.into_iter().map(|entry| (entry.key, entry.value)).collect();
    let mut watch = store.watch(list.revision.next());
    for writer in writers {
        writer.await.unwrap();
    }
    let mut last_revision = list.revision;
    while last_revision < Revision::new(100) {
        let change = super::next_change(&mut watch).await;
        assert_eq!(change.revision, last_revision.next());
        last_revision = change.revision;
        for event in &change.events {
            match &event.kind {
                EventKind::Put { value, .. } => watched_entries.insert(event.key.clone(), value.clone()),
                EventKind::Delete => watched_entries.remove(&event.key),
            };
        }
    }
    assert_eq!(watched_entries, list_all(&store).await.into_iter().map(|entry| (entry.key, entry.value)).collect());
}

/// The engine must return the value that each revision wrote, also if later revisions replaced it and no change is in
/// memory.
pub(crate) async fn watch_returns_values_as_of_revision(engine: &impl TestEngine) {
    let bounds = TestBounds { recent_changes: 0, ..TestBounds::default() };
    let store = engine.create(&create_options(), &bounds);
    write_history(&store).await;
    let mut watch = store.watch(Revision::ZERO);
    for expected in HISTORY {
        assert_eq!(next_text(&mut watch).await, expected);
    }
}

/// In this test, the engine holds at most two changes in memory. The watch begins to read after forty commits, so it
/// reads the others from the store. The text of a change is its revision, then `key=value@create_revision/version`.
pub(crate) async fn watch_returns_kept_changes_when_behind(engine: &impl TestEngine) {
    let store = engine.create(&create_options(), &TestBounds { recent_changes: 2, ..TestBounds::default() });
    let mut watch = store.watch(Revision::ZERO);
    for number in 1..=40_u64 {
        commit(&store, Transaction::new().put("a", number.to_string())).await;
    }
    for number in 1..=40 {
        assert_eq!(next_text(&mut watch).await, format!("{number}: a={number}@1/{number}"));
    }
}

/// In this test, the engine retains about eight changes. A watch from zero that first reads after 30 commits fails, and
/// the error names the oldest revision that can be watched. A watch from there returns all changes since.
pub(crate) async fn watch_returns_oldest_revision_when_compacted(engine: &impl TestEngine) {
    let store = engine.create(&create_options(), &TestBounds { kept_changes: 8, recent_changes: 3, ..TestBounds::default() });
    let mut slow_watch = store.watch(Revision::ZERO);
    for number in 1..=30_u64 {
        let other = format!("{}", number % 3);
        commit(&store, Transaction::new().put("a", number.to_string()).put(other, "x")).await;
    }
    let oldest = super::oldest_watchable(&store).await;
    assert!((20..=23).contains(&oldest.get()), "eight changes are retained, or a few more: {oldest}");
    // The error repeats. A watch from revision zero begins with revision 1, which is the first with a change.
    for _ in 0..2 {
        match slow_watch.next().await {
            Err(WatchError::Compacted { from, oldest: error_oldest }) => {
                assert_eq!((from, error_oldest), (Revision::new(1), oldest));
            }
            other => panic!("expected a compaction error, got {other:?}"),
        }
    }
    let mut watch = store.watch(oldest);
    for number in oldest.get()..=30 {
        assert!(next_text(&mut watch).await.starts_with(&format!("{number}: a={number}@1/{number} ")));
    }
}

/// A future of `next` that is dropped while it is pending does not consume a change. The text of a change is its
/// revision, then `key=value@create_revision/version`.
pub(crate) async fn watch_loses_no_change_when_wait_is_dropped(engine: &impl TestEngine) {
    let store = create(engine);
    let mut watch = store.watch(Revision::ZERO);
    for number in 1..=3 {
        assert!(pin!(watch.next()).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        put_singly(&store, &[("a", "1")]).await;
        assert_eq!(next_text(&mut watch).await, format!("{number}: a=1@1/{number}"));
    }
}

pub(crate) async fn watch_ends_when_store_is_dropped(engine: &impl TestEngine) {
    let store = create(engine);
    let mut watch = store.watch(Revision::ZERO);
    drop(store);
    let result = timeout(TIMEOUT, watch.next()).await.expect("the watch should end");
    assert!(matches!(result, Err(WatchError::Store(StoreError::Closed))), "{result:?}");
}
