//! Rules of watches.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use tokio::time::timeout;

use super::{Bounds, Engine, PATIENCE, all, assert_quiet, commit, create, creation, put_each, shown};
use crate::store::{EventKind, Query, Revision, Store, StoreError, Transaction, Watch, WatchError};

async fn next(watch: &mut Watch) -> String {
    shown(super::next(watch).await.as_ref())
}

/// Three writes of one key, and its end, with another key beside.
async fn write_history(store: &Arc<dyn Store>) {
    put_each(store, &[("a", "1"), ("a", "2")]).await;
    commit(store, Transaction::new().put("b", "3").put("a", "3").put_at_revision("h/", "3")).await;
    commit(store, Transaction::new().delete("a").delete("missing")).await;
    put_each(store, &[("a", "5")]).await;
}

const HISTORY: [&str; 5] = [
    "1: a=1@1/1",
    "2: a=2@1/2",
    "3: b=3@3/1 a=3@1/3 h/\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x03=3@3/1",
    "4: -a",
    "5: a=5@5/1",
];

pub(crate) async fn a_watch_gives_every_change_in_order(engine: &impl Engine) {
    let store = create(engine);
    let mut along = store.watch(Revision::ZERO);
    write_history(&store).await;
    for (from, skipped) in [(0, 0), (1, 0), (3, 2), (5, 4)] {
        let mut watch = store.watch(Revision::new(from));
        for expected in &HISTORY[skipped..] {
            assert_eq!(next(&mut watch).await, *expected, "from {from}");
        }
        assert_quiet(&mut watch).await;
    }
    for expected in HISTORY {
        assert_eq!(next(&mut along).await, expected);
    }
}

pub(crate) async fn a_watch_waits_for_a_revision_to_come(engine: &impl Engine) {
    let store = create(engine);
    let mut watch = store.watch(Revision::new(3));
    let waiting = tokio::spawn(async move { next(&mut watch).await });
    put_each(&store, &[("a", "1"), ("a", "2"), ("a", "3"), ("a", "4")]).await;
    assert_eq!(waiting.await.unwrap(), "3: a=3@1/3");
}

pub(crate) async fn a_watch_from_a_list_on_misses_nothing_and_repeats_nothing(engine: &impl Engine) {
    let store = create(engine);
    let writers: Vec<_> = (0..4_u64)
        .map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for round in 0..25_u64 {
                    let key = format!("{writer}/{}", round % 5);
                    let transaction = Transaction::new().put(key, round.to_string());
                    let behind = format!("{writer}/{}", (round + 2) % 5);
                    commit(&store, if round % 3 == 0 { transaction.delete(behind) } else { transaction }).await;
                }
            })
        })
        .collect();
    tokio::task::yield_now().await;
    let listed = store.snapshot().await.unwrap().list(&Query::prefix("")).await.unwrap();
    let mut seen: BTreeMap<_, _> = listed.entries.into_iter().map(|entry| (entry.key, entry.value)).collect();
    let mut watch = store.watch(listed.revision.next());
    for writer in writers {
        writer.await.unwrap();
    }
    let mut last = listed.revision;
    while last < Revision::new(100) {
        let change = super::next(&mut watch).await;
        assert_eq!(change.revision, last.next());
        last = change.revision;
        for event in &change.events {
            match &event.kind {
                EventKind::Put { value, .. } => seen.insert(event.key.clone(), value.clone()),
                EventKind::Delete => seen.remove(&event.key),
            };
        }
    }
    assert_eq!(seen, all(&store).await.into_iter().map(|entry| (entry.key, entry.value)).collect());
}

pub(crate) async fn a_watch_shows_values_as_of_their_revision(engine: &impl Engine) {
    let nothing_in_memory = Bounds { recent_changes: 0, ..Bounds::default() };
    let store = engine.create(&creation(), &nothing_in_memory);
    write_history(&store).await;
    let mut watch = store.watch(Revision::ZERO);
    for expected in HISTORY {
        assert_eq!(next(&mut watch).await, expected);
    }
}

pub(crate) async fn a_watcher_left_behind_reads_what_is_kept(engine: &impl Engine) {
    let store = engine.create(&creation(), &Bounds { recent_changes: 2, ..Bounds::default() });
    let mut watch = store.watch(Revision::ZERO);
    for number in 1..=40_u64 {
        commit(&store, Transaction::new().put("a", number.to_string())).await;
    }
    for number in 1..=40 {
        assert_eq!(next(&mut watch).await, format!("{number}: a={number}@1/{number}"));
    }
}

pub(crate) async fn a_watch_before_what_is_kept_is_told_the_oldest(engine: &impl Engine) {
    let store = engine.create(&creation(), &Bounds { kept_changes: 8, recent_changes: 3, ..Bounds::default() });
    let mut behind = store.watch(Revision::ZERO);
    for number in 1..=30_u64 {
        let other = format!("{}", number % 3);
        commit(&store, Transaction::new().put("a", number.to_string()).put(other, "x")).await;
    }
    let oldest = super::oldest(&store).await;
    assert!((20..=23).contains(&oldest.get()), "eight are kept, a few more may be: {oldest}");
    for _ in 0..2 {
        match behind.next().await {
            Err(WatchError::Compacted { from, oldest: told }) => {
                assert_eq!((from, told), (Revision::new(1), oldest));
            }
            other => panic!("expected to be told of a compaction, got {other:?}"),
        }
    }
    let mut watch = store.watch(oldest);
    for number in oldest.get()..=30 {
        assert!(next(&mut watch).await.starts_with(&format!("{number}: a={number}@1/{number} ")));
    }
}

pub(crate) async fn a_dropped_wait_loses_nothing(engine: &impl Engine) {
    let store = create(engine);
    let mut watch = store.watch(Revision::ZERO);
    for number in 1..=3 {
        assert!(pin!(watch.next()).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        put_each(&store, &[("a", "1")]).await;
        assert_eq!(next(&mut watch).await, format!("{number}: a=1@1/{number}"));
    }
}

pub(crate) async fn a_watch_ends_with_its_store(engine: &impl Engine) {
    let store = create(engine);
    let mut watch = store.watch(Revision::ZERO);
    drop(store);
    let ended = timeout(PATIENCE, watch.next()).await.expect("the end comes");
    assert!(matches!(ended, Err(WatchError::Store(StoreError::Closed))), "{ended:?}");
}
