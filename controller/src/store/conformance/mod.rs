//! One test suite for all engines: the rules that the registry and the cache depend on.
//!
//! Each rule is a function over a [`TestEngine`]. [`conformance_tests!`] makes a test of each, named after the rule. An
//! engine is accepted if it passes all of them. A rule that only one engine can meet does not belong here.

mod commits;
mod model;
mod reads;
mod restarts;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

pub(crate) use commits::*;
pub(crate) use model::assert_matches_model;
pub(crate) use reads::*;
pub(crate) use restarts::*;
pub(crate) use watches::*;

use super::{
    Change, CreateOptions, Entry, Epoch, EventKind, ListQuery, Revision, Store, StoreError, Transaction, TransactionLimits,
    UnmetPrecondition, Watch, WatchError,
};

/// A timeout that is longer than any test needs.
const TIMEOUT: Duration = Duration::from_mins(2);

/// A place in which a test can create one store: for example a directory, a block of memory, or a prefix in an etcd
/// cluster.
pub(crate) trait TestEngine: Sync {
    /// Creates the store.
    fn create(&self, create: &CreateOptions, bounds: &TestBounds) -> Arc<dyn Store>;

    /// Reopens the store after the last reference to it was dropped.
    fn reopen(&self, bounds: &TestBounds) -> Arc<dyn Store>;
}

/// Limits of a test's store. A test that must reach one of the limits sets it to a small value.
#[derive(Debug, Clone)]
pub(crate) struct TestBounds {
    pub(crate) limits: TransactionLimits,
    /// Number of the last changes that the engine must store durably for watches. The engine may store a few more.
    pub(crate) kept_changes: u64,
    /// Maximum number of recent changes that an engine holds in memory for watches. Some engines hold none.
    pub(crate) recent_changes: usize,
}

impl Default for TestBounds {
    fn default() -> Self {
        let limits = TransactionLimits {
            max_ops: 16,
            max_bytes: 4096,
            max_key_bytes: 64,
            ops_raised_by: Some("--max-txn-ops"),
            bytes_raised_by: None,
        };
        Self { limits, kept_changes: 10_000, recent_changes: 10_000 }
    }
}

/// Defines a test for each rule that every store must follow. The expression returns the engine to be tested.
macro_rules! conformance_tests {
    ($engine:expr) => {
        conformance_tests! { $engine =>
            commit_gets_revision_after_base_when_first,
            commit_keeps_revision_when_transaction_changes_no_entry,
            put_makes_revision_when_content_is_equal,
            entry_has_create_and_mod_revision,
            entry_version_restarts_when_recreated,
            commit_is_atomic_when_precondition_fails,
            commit_returns_unmet_precondition_with_found_revision,
            commit_returns_first_unmet_precondition_when_several_fail,
            commit_checks_preconditions_before_operations,
            put_at_revision_appends_commit_revision_to_key,
            commit_creates_entry_once_when_creations_are_concurrent,
            commit_loses_no_increment_when_writers_are_concurrent,
            commit_names_limit_when_transaction_exceeds_limit,
            commit_fails_when_key_is_in_two_operations,
            commit_deletes_old_images_with_put_at_revision,
            commit_is_whole_when_caller_is_dropped,
            list_is_in_byte_order_and_returns_revision,
            list_returns_only_keys_of_range,
            list_pages_by_count_from_both_ends,
            list_pages_by_bytes,
            store_accepts_empty_value_and_binary_key,
            snapshot_is_unchanged_when_commits_follow,
            snapshot_contains_commit_when_commit_has_returned,
            watch_returns_every_change_in_order,
            watch_waits_when_revision_is_in_future,
            watch_misses_and_repeats_no_change_after_list,
            watch_returns_values_as_of_revision,
            watch_returns_kept_changes_when_behind,
            watch_returns_oldest_revision_when_compacted,
            watch_loses_no_change_when_wait_is_dropped,
            watch_ends_when_store_is_dropped,
            reopen_returns_same_entries_and_identity,
            watch_returns_kept_changes_after_restart,
            reopen_makes_no_revision_when_repeated,
            store_continues_above_base,
            stats_count_commits_and_operations,
            stats_sum_entry_bytes,
        }
    };
    ($engine:expr => $($rule:ident,)*) => {
        $(
            #[tokio::test]
            async fn $rule() {
                $crate::store::conformance::$rule(&$engine).await;
            }
        )*
    };
}
pub(crate) use conformance_tests;

fn create_options() -> CreateOptions {
    CreateOptions { epoch: Epoch::new(*b"sixteen bytes it"), base: Revision::ZERO, fleet: Bytes::from_static(b"fleet") }
}

fn create(engine: &impl TestEngine) -> Arc<dyn Store> {
    engine.create(&create_options(), &TestBounds::default())
}

/// Commits a transaction, which must succeed. Returns the number of its revision.
async fn commit(store: &Arc<dyn Store>, transaction: Transaction) -> u64 {
    store.commit(transaction).await.unwrap().get()
}

/// Writes entries, each in its own commit.
async fn put_singly(store: &Arc<dyn Store>, pairs: &[(&'static str, &'static str)]) {
    for (key, value) in pairs {
        commit(store, Transaction::new().put(*key, *value)).await;
    }
}

async fn get(store: &Arc<dyn Store>, key: impl AsRef<[u8]>) -> Option<Entry> {
    store.snapshot().await.unwrap().get(key.as_ref()).await.unwrap()
}

async fn list_all(store: &Arc<dyn Store>) -> Vec<Entry> {
    store.snapshot().await.unwrap().list(&ListQuery::prefix("")).await.unwrap().entries
}

/// Waits for the next change of a watch. Panics if none arrives within [`TIMEOUT`].
async fn next_change(watch: &mut Watch) -> Arc<Change> {
    timeout(TIMEOUT, watch.next()).await.expect("a change should arrive").unwrap()
}

/// Asserts that the watch returns no further change within 50 ms.
async fn assert_quiet(watch: &mut Watch) {
    let change = timeout(Duration::from_millis(50), watch.next()).await;
    assert!(change.is_err(), "{change:?}");
}

/// Returns the oldest revision from which a watch can start. The store must have compacted a change, or its base must
/// be above zero. Only then does a watch from revision zero fail and name that oldest revision.
async fn oldest_watchable(store: &Arc<dyn Store>) -> Revision {
    match store.watch(Revision::ZERO).next().await {
        Err(WatchError::Compacted { oldest, .. }) => oldest,
        result => panic!("expected a compaction error, got {result:?}"),
    }
}

fn keys(entries: &[Entry]) -> Vec<&[u8]> {
    entries.iter().map(|entry| entry.key.as_ref()).collect()
}

/// Returns the precondition that made a commit fail. Panics if the commit had another result.
fn unmet_precondition(result: Result<Revision, StoreError>) -> UnmetPrecondition {
    match result {
        Err(StoreError::PreconditionFailed(unmet)) => unmet,
        result => panic!("expected a failed precondition, got {result:?}"),
    }
}

/// Formats a change: its revision, then each event as `key=value@create_revision/version` or `-key`.
fn change_text(change: &Change) -> String {
    let events = change.events.iter().map(|event| {
        let key = event.key.escape_ascii();
        match &event.kind {
            EventKind::Delete => format!(" -{key}"),
            EventKind::Put { value, create_revision, version } => {
                format!(" {key}={}@{create_revision}/{version}", value.escape_ascii())
            }
        }
    });
    format!("{}:{}", change.revision, events.collect::<String>())
}
