//! Applies random transactions to a store and to a map that implements the contract.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proptest::collection;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::select;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner};
use proptest::{prop_assert, prop_assert_eq};

use super::{TestBounds, TestEngine, change_text, create_options, list_all, next_change};
use crate::store::{Change, Entry, Event, EventKind, ListQuery, Op, Precondition, Revision, Store, StoreError, Transaction};

/// Asserts that an engine behaves as [`StoreModel`] does. Any sequence of transactions and restarts must give the same
/// results, entries, lists and changes from both.
pub(crate) fn assert_matches_model<E: TestEngine>(engine: impl Fn() -> E) {
    // The runner stores the seeds of failed cases in this file, and repeats these cases in later runs.
    let file = FileFailurePersistence::Direct(concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/conformance/model.regressions"));
    // Each case creates a store, so only a quarter of the usual number of cases is run.
    let cases = Config::default().cases / 4;
    let config = Config { cases, failure_persistence: Some(Box::new(file)), ..Config::default() };
    let mut runner = TestRunner::new(config);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runner.run(&collection::vec(step(), 1..40), |steps| runtime.block_on(compare(&engine(), steps))).unwrap();
}

#[derive(Debug, Clone)]
enum ModelStep {
    Commit(Transaction),
    Restart,
}

/// Generates random steps: twelve transactions for each restart, on average.
fn step() -> impl Strategy<Value = ModelStep> {
    let commit = (collection::vec(precondition(), 0..3), collection::vec(op(), 0..5))
        .prop_map(|(preconditions, ops)| ModelStep::Commit(Transaction { preconditions, ops }));
    prop_oneof![12 => commit, 1 => Just(ModelStep::Restart)]
}

/// Generates one of a few keys, so that transactions often use the same key. Some keys are prefixes of others.
fn key() -> impl Strategy<Value = Bytes> {
    select(vec!["a", "a/", "a/1", "b", "b\0"]).prop_map(Bytes::from)
}

/// Generates a random operation, most often a put. [`Op::PutAtRevision`] puts an entry whose key is the prefix, then
/// the revision of the commit. A value has at most four bytes.
fn op() -> impl Strategy<Value = Op> {
    let value = || any::<u8>().prop_map(|byte| Bytes::from(vec![byte; usize::from(byte % 5)]));
    prop_oneof![
        4 => (key(), value()).prop_map(|(key, value)| Op::Put { key, value }),
        2 => key().prop_map(|key| Op::Delete { key }),
        1 => (key(), value()).prop_map(|(prefix, value)| Op::PutAtRevision { prefix, value }),
    ]
}

/// Generates a random precondition. The expected revisions are low, so that stores often have them.
fn precondition() -> impl Strategy<Value = Precondition> {
    prop_oneof![
        key().prop_map(Precondition::absent),
        key().prop_map(Precondition::present),
        (key(), 0..30_u64).prop_map(|(key, revision)| Precondition::unchanged(key, Revision::new(revision))),
    ]
}

/// The entries and the changes that a correct store must have. A map in memory implements the contract of the store.
#[derive(Default)]
struct StoreModel {
    entries: BTreeMap<Bytes, Entry>,
    changes: Vec<Change>,
}

impl StoreModel {
    fn head(&self) -> Revision {
        Revision::new(self.changes.len() as u64)
    }

    /// Applies a transaction. Returns the revision of the model afterwards, or the index of the first precondition that
    /// does not hold.
    fn commit(&mut self, transaction: &Transaction) -> Result<Revision, usize> {
        if let Some(index) = transaction.preconditions.iter().position(|precondition| !self.is_met(precondition)) {
            return Err(index);
        }
        let revision = self.head().next();
        // Deletes apply to the entries from before the commit.
        let (deletes, puts): (Vec<_>, Vec<_>) = transaction.ops.iter().partition(|op| matches!(op, Op::Delete { .. }));
        let events: Vec<_> = deletes.into_iter().chain(puts).filter_map(|op| self.apply(revision, op)).collect();
        if !events.is_empty() {
            self.changes.push(Change { revision, events });
        }
        Ok(self.head())
    }

    fn is_met(&self, precondition: &Precondition) -> bool {
        match precondition {
            Precondition::Absent { key } => !self.entries.contains_key(key),
            Precondition::Present { key } => self.entries.contains_key(key),
            Precondition::Unchanged { key, mod_revision } => {
                self.entries.get(key).is_some_and(|entry| entry.mod_revision == *mod_revision)
            }
        }
    }

    /// Applies one operation to the entries. Returns its event, or `None` if it deletes a key that does not exist. The
    /// key of a [`Op::PutAtRevision`] is its prefix, then the revision.
    fn apply(&mut self, revision: Revision, op: &Op) -> Option<Event> {
        let (key, value) = match op {
            Op::Delete { key } => {
                self.entries.remove(key)?;
                return Some(Event { key: key.clone(), kind: EventKind::Delete });
            }
            Op::Put { key, value } => (key.clone(), value.clone()),
            Op::PutAtRevision { prefix, value } => ([prefix, &revision.to_key()[..]].concat().into(), value.clone()),
        };
        let old_entry = self.entries.get(&key);
        let create_revision = old_entry.map_or(revision, |entry| entry.create_revision);
        let version = old_entry.map_or(1, |entry| entry.version + 1);
        let entry = Entry { key: key.clone(), value: value.clone(), create_revision, mod_revision: revision, version };
        self.entries.insert(key.clone(), entry);
        Some(Event { key, kind: EventKind::Put { value, create_revision, version } })
    }
}

/// Performs the steps on a store of the engine and on the model, and compares both after each step. The model ignores a
/// transaction that the store refuses as malformed, for example because it has one key twice.
async fn compare(engine: &impl TestEngine, steps: Vec<ModelStep>) -> Result<(), TestCaseError> {
    // Only four changes are held in memory, so that the last comparison also reads stored changes.
    let bounds = TestBounds { recent_changes: 4, ..TestBounds::default() };
    let mut store = engine.create(&create_options(), &bounds);
    let mut model = StoreModel::default();
    for step in steps {
        match step {
            ModelStep::Restart => {
                drop(store);
                store = engine.reopen(&bounds);
            }
            ModelStep::Commit(transaction) => match store.commit(transaction.clone()).await {
                Err(StoreError::Refused(_)) => {}
                Err(StoreError::PreconditionFailed(unmet)) => {
                    prop_assert_eq!(model.commit(&transaction), Err(unmet.index));
                }
                Ok(revision) => prop_assert_eq!(model.commit(&transaction), Ok(revision)),
                Err(error) => prop_assert!(false, "{error}"),
            },
        }
        prop_assert_eq!(list_all(&store).await, model.entries.values().cloned().collect::<Vec<_>>());
        prop_assert_eq!(store.head().await.unwrap(), model.head());
    }
    compare_reads(&store, &model).await
}

/// Compares the lists of some prefixes, and all changes since the first revision, with the model.
async fn compare_reads(store: &Arc<dyn Store>, model: &StoreModel) -> Result<(), TestCaseError> {
    let snapshot = store.snapshot().await.unwrap();
    for prefix in ["a", "a/", "b"] {
        let listed_entries = snapshot.list(&ListQuery::prefix(prefix)).await.unwrap().entries;
        let expected: Vec<_> = model.entries.values().filter(|entry| entry.key.starts_with(prefix.as_bytes())).cloned().collect();
        prop_assert_eq!(listed_entries, expected);
    }
    let mut watch = store.watch(Revision::ZERO);
    for change in &model.changes {
        let store_change = next_change(&mut watch).await;
        prop_assert_eq!(change_text(&store_change), change_text(change));
    }
    Ok(())
}
