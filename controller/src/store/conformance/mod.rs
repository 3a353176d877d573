//! One suite for every engine: what the registry and the cache build on, rule by rule.
//!
//! Each rule is a function over an [`Engine`]; [`conform!`] makes a test of each, by the rule's name. An engine is
//! taken in when it passes all of them, and a rule that only one engine can keep is none.

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
pub(crate) use model::is_like_a_map;
pub(crate) use reads::*;
pub(crate) use restarts::*;
pub(crate) use watches::*;

use super::{
    Change, CreateOptions, Entry, Epoch, EventKind, Limits, Query, Revision, Store, StoreError, Transaction, Unmet,
    Watch, WatchError,
};

/// Longer than any test waits for something that comes.
const PATIENCE: Duration = Duration::from_mins(2);

/// Something that stores can be made by, one each: a directory, a block of memory, a prefix in a cluster.
pub(crate) trait Engine: Sync {
    /// Makes the store.
    fn create(&self, create: &CreateOptions, bounds: &Bounds) -> Arc<dyn Store>;

    /// Opens it again, when no one holds it any longer.
    fn reopen(&self, bounds: &Bounds) -> Arc<dyn Store>;
}

/// What a rule needs to be small, so that it can be reached.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    pub(crate) limits: Limits,
    /// Changes that can be watched from after a restart.
    pub(crate) kept_changes: u64,
    /// Changes that an engine may hold in memory, where it does.
    pub(crate) recent_changes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        let limits = Limits {
            max_ops: 16,
            max_bytes: 4096,
            max_key_bytes: 64,
            ops_raised_by: Some("--max-txn-ops"),
            bytes_raised_by: None,
        };
        Self { limits, kept_changes: 10_000, recent_changes: 10_000 }
    }
}

/// Makes a test of every rule for the engine that an expression gives.
macro_rules! conform {
    ($engine:expr) => {
        conform! { $engine =>
            the_first_commit_is_the_one_after_the_base,
            a_commit_that_changes_nothing_makes_no_revision,
            equal_content_written_again_is_a_write,
            an_entry_says_who_made_it_and_who_last_wrote_it,
            an_entry_made_anew_begins_anew,
            a_commit_does_all_of_its_operations_or_none,
            a_failed_precondition_says_which_and_what_was_found,
            the_first_failed_precondition_is_named,
            preconditions_are_judged_before_the_operations,
            a_key_at_its_revision_ends_in_the_revision_of_its_commit,
            one_of_many_concurrent_creations_wins,
            no_concurrent_increment_is_lost,
            a_transaction_over_a_limit_is_refused_with_its_name,
            two_operations_on_one_key_are_refused,
            entries_of_earlier_revisions_may_be_deleted_beside_one_at_this_revision,
            a_commit_whose_caller_went_away_is_whole,
            a_list_is_in_the_order_of_bytes_and_says_its_revision,
            a_list_is_bounded_by_its_range,
            a_list_comes_in_pages_from_either_end,
            a_list_comes_in_pages_of_so_many_bytes,
            a_value_may_be_empty_and_a_key_any_bytes,
            a_snapshot_stays_as_it_is,
            who_was_answered_reads_what_was_written,
            a_watch_gives_every_change_in_order,
            a_watch_waits_for_a_revision_to_come,
            a_watch_from_a_list_on_misses_nothing_and_repeats_nothing,
            a_watch_shows_values_as_of_their_revision,
            a_watcher_left_behind_reads_what_is_kept,
            a_watch_before_what_is_kept_is_told_the_oldest,
            a_dropped_wait_loses_nothing,
            a_watch_ends_with_its_store,
            a_store_is_found_again_as_it_was_left,
            kept_changes_outlive_a_restart,
            ten_restarts_write_nothing,
            a_store_goes_on_above_its_base,
            what_is_written_is_counted,
            what_entries_take_is_summed,
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
pub(crate) use conform;

fn creation() -> CreateOptions {
    CreateOptions { epoch: Epoch::new(*b"sixteen bytes it"), base: Revision::ZERO, fleet: Bytes::from_static(b"fleet") }
}

fn create(engine: &impl Engine) -> Arc<dyn Store> {
    engine.create(&creation(), &Bounds::default())
}

async fn commit(store: &Arc<dyn Store>, transaction: Transaction) -> u64 {
    store.commit(transaction).await.unwrap().get()
}

/// Puts single entries, a commit each.
async fn put_each(store: &Arc<dyn Store>, pairs: &[(&'static str, &'static str)]) {
    for (key, value) in pairs {
        commit(store, Transaction::new().put(*key, *value)).await;
    }
}

async fn get(store: &Arc<dyn Store>, key: impl AsRef<[u8]>) -> Option<Entry> {
    store.snapshot().await.unwrap().get(key.as_ref()).await.unwrap()
}

async fn all(store: &Arc<dyn Store>) -> Vec<Entry> {
    store.snapshot().await.unwrap().list(&Query::prefix("")).await.unwrap().entries
}

/// The next change, which has come or is about to.
async fn next(watch: &mut Watch) -> Arc<Change> {
    timeout(PATIENCE, watch.next()).await.expect("a change comes").unwrap()
}

/// That no change comes.
async fn assert_quiet(watch: &mut Watch) {
    let more = timeout(Duration::from_millis(50), watch.next()).await;
    assert!(more.is_err(), "{more:?}");
}

/// The oldest revision that a watch can begin from, of a store in which a change was compacted.
async fn oldest(store: &Arc<dyn Store>) -> Revision {
    match store.watch(Revision::ZERO).next().await {
        Err(WatchError::Compacted { oldest, .. }) => oldest,
        other => panic!("expected to be told of a compaction, got {other:?}"),
    }
}

fn keys(entries: &[Entry]) -> Vec<&[u8]> {
    entries.iter().map(|entry| entry.key.as_ref()).collect()
}

fn unmet(result: Result<Revision, StoreError>) -> Unmet {
    match result {
        Err(StoreError::PreconditionFailed(unmet)) => unmet,
        other => panic!("expected a failed precondition, got {other:?}"),
    }
}

/// A change as text: its revision, then each event as `key=value@made/version` or `-key`.
fn shown(change: &Change) -> String {
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
