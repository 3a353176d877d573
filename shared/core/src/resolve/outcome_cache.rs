//! Caches the outcomes of conditions, and limits the steps that a node may spend on them.
//!
//! A node is charged for its conditions in the order of the ids of its tasks, even if a condition was already evaluated
//! for another node. The result therefore depends on the fleet alone, not on the cache. The sum of all charges bounds
//! the time in which all nodes are resolved (docs/adr/0014).

use std::collections::BTreeMap;
use std::mem::size_of;
use std::sync::{Arc, Mutex, PoisonError};

use super::resolved_node::SkipReason;
use crate::condition::ConditionError;
use crate::input::{Read, Reference};
use crate::release::CompiledTask;

/// Approximate maximum size of one cache of outcomes, in bytes. There are two such caches: for outcomes that are the
/// same in a whole cluster, and for all other outcomes.
const MAX_OUTCOME_BYTES: usize = 16 * 1024 * 1024;

/// The nodes that share the outcome of a condition, by what the condition reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheScope {
    /// Usually one node, because the condition looks up nodes and also reads values that may differ between nodes.
    Node,
    /// The nodes for which all values that the condition reads are equal.
    EqualInputs,
    /// All nodes of a cluster, because the condition looks up nodes and reads no value that differs between nodes.
    Cluster,
}

/// The cached outcomes of conditions, for all groups. Outcomes for a whole cluster take the most steps to compute. So
/// they have a cache of their own, from which other outcomes cannot evict them.
#[derive(Debug, Default)]
pub(super) struct OutcomeCaches {
    by_node: Mutex<OutcomeCache>,
    by_cluster: Mutex<OutcomeCache>,
}

/// Cached outcomes, with their approximate size in bytes.
#[derive(Debug, Default)]
struct OutcomeCache {
    outcomes: BTreeMap<OutcomeKey, CachedOutcome>,
    bytes: usize,
}

/// The hash of a task's definition, and the hash of the step limit and the values that its condition reads.
pub(super) type OutcomeKey = ([u8; 32], [u8; 32]);

/// The cached evaluation of a condition for some inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CachedOutcome {
    /// The number of steps that the evaluation of the condition takes, or 0 if this number could not be determined.
    pub(super) steps: usize,
    /// The outcome of the condition.
    pub(super) result: Evaluation,
}

/// The outcome of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Evaluation {
    /// The condition was not evaluated yet, because no node was charged for it.
    Pending,
    /// True if the task runs.
    Decided(bool),
    /// The condition cannot be evaluated, so the task does not run.
    Skipped(SkipReason),
}

/// The steps that a node may still spend on its conditions.
pub(super) struct StepBudget {
    remaining: usize,
}

impl CacheScope {
    /// Returns the nodes that share the outcome of a condition with these references. A condition without `nodes(…)`
    /// takes few steps, so only nodes with equal inputs share its outcome. The same holds if all its values are equal
    /// on the nodes of one profile.
    pub(super) fn from_references(references: &[Reference]) -> Self {
        let is_same_in_cluster = |read: &Read| matches!(read, Read::Nodes { .. } | Read::Primary { .. } | Read::Cluster(_));
        let is_same_in_profile = |read: &Read| is_same_in_cluster(read) || matches!(read, Read::Tag(_) | Read::Secret(_));
        let reads = || references.iter().map(Reference::read);
        if !reads().any(|read| matches!(read, Read::Nodes { .. })) {
            Self::EqualInputs
        } else if reads().all(is_same_in_cluster) {
            Self::Cluster
        } else if reads().all(is_same_in_profile) {
            Self::EqualInputs
        } else {
            Self::Node
        }
    }
}

impl OutcomeCaches {
    /// Returns the cached outcome for a key, or `None` if it is not cached.
    pub(super) fn get(&self, scope: CacheScope, key: &OutcomeKey) -> Option<CachedOutcome> {
        self.cache(scope).lock().unwrap_or_else(PoisonError::into_inner).outcomes.get(key).cloned()
    }

    /// Stores an outcome in the cache for its scope.
    pub(super) fn insert(&self, scope: CacheScope, key: OutcomeKey, outcome: CachedOutcome) {
        self.cache(scope).lock().unwrap_or_else(PoisonError::into_inner).insert(key, outcome);
    }

    /// Returns the cache for the outcomes of a scope.
    fn cache(&self, scope: CacheScope) -> &Mutex<OutcomeCache> {
        match scope {
            CacheScope::Cluster => &self.by_cluster,
            CacheScope::Node | CacheScope::EqualInputs => &self.by_node,
        }
    }
}

impl OutcomeCache {
    /// Stores an outcome. If the cache would become larger than [`MAX_OUTCOME_BYTES`], all other outcomes are dropped
    /// first.
    fn insert(&mut self, key: OutcomeKey, outcome: CachedOutcome) {
        let bytes = outcome.bytes();
        self.bytes -= self.outcomes.get(&key).map_or(0, CachedOutcome::bytes);
        if self.bytes + bytes > MAX_OUTCOME_BYTES {
            self.outcomes.clear();
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.outcomes.insert(key, outcome);
    }
}

impl CachedOutcome {
    /// Returns the approximate size of a cache entry, in bytes.
    fn bytes(&self) -> usize {
        let text_bytes = match &self.result {
            Evaluation::Pending | Evaluation::Decided(_) => 0,
            Evaluation::Skipped(reason) => reason.text_bytes(),
        };
        size_of::<OutcomeKey>() + size_of::<Self>() + text_bytes
    }
}

impl StepBudget {
    /// Creates the budget of a node with this number of steps.
    pub(super) fn new(limit: usize) -> Self {
        Self { remaining: limit }
    }

    /// Charges the node for the steps of a condition. Fails without a charge if too few steps remain. The remaining
    /// steps can then be used for a later condition that takes fewer steps.
    pub(super) fn charge(&mut self, steps: usize) -> Result<(), SkipReason> {
        let remaining = self.remaining.checked_sub(steps);
        self.remaining = remaining.ok_or_else(|| evaluation_failure(&ConditionError::TooMany { steps }))?;
        Ok(())
    }
}

impl Evaluation {
    /// Returns why the task does not run, or `None` if it runs or its condition was not evaluated yet.
    pub(super) fn skip_reason(&self, task: &CompiledTask) -> Option<SkipReason> {
        match self {
            Self::Skipped(reason) => Some(reason.clone()),
            Self::Decided(false) => Some(SkipReason::False { condition: Arc::clone(&task.condition_text) }),
            Self::Pending | Self::Decided(true) => None,
        }
    }
}

/// Returns the reason to skip a task whose condition cannot be evaluated: the condition is undecided if it takes too
/// many steps, and has failed otherwise.
pub(super) fn evaluation_failure(reason: &ConditionError) -> SkipReason {
    let text = reason.to_string().into();
    match reason {
        ConditionError::TooLong { .. } | ConditionError::TooMany { .. } => SkipReason::Undecided { reason: text },
        ConditionError::Absent { .. }
        | ConditionError::NotBoolean { .. }
        | ConditionError::NotAnInput { .. }
        | ConditionError::Failed { .. } => SkipReason::Failed { reason: text },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> OutcomeKey {
        ([0; 32], crate::digest::sha256(&number.to_be_bytes()))
    }

    /// Returns an outcome whose text has `len` bytes.
    fn outcome_of_bytes(len: usize) -> CachedOutcome {
        CachedOutcome { steps: 0, result: Evaluation::Skipped(SkipReason::Failed { reason: "x".repeat(len).into() }) }
    }

    /// The size of an outcome without text: its key of two hashes, and the struct.
    const EMPTY_BYTES: usize = 64 + size_of::<CachedOutcome>();

    #[test]
    fn outcome_cache_counts_key_and_text_bytes() {
        let bytes_of = |result| CachedOutcome { steps: 7, result }.bytes();
        assert_eq!(bytes_of(Evaluation::Pending), EMPTY_BYTES);
        assert_eq!(bytes_of(Evaluation::Decided(true)), EMPTY_BYTES);
        assert_eq!(bytes_of(Evaluation::Skipped(SkipReason::Marker)), EMPTY_BYTES);
        assert_eq!(bytes_of(Evaluation::Skipped(SkipReason::False { condition: "12345".into() })), EMPTY_BYTES + 5);
        assert_eq!(outcome_of_bytes(9).bytes(), EMPTY_BYTES + 9);
    }

    #[test]
    fn outcome_cache_evicts_when_bytes_exceed_limit() {
        let mut cache = OutcomeCache::default();
        for number in 0..100_000 {
            cache.insert(key(number), outcome_of_bytes(usize::try_from(number % 4_096).unwrap()));
            assert!(cache.bytes <= MAX_OUTCOME_BYTES, "{}", cache.bytes);
        }
        assert_eq!(cache.bytes, cache.outcomes.values().map(CachedOutcome::bytes).sum::<usize>());
        assert!(cache.outcomes.len() > 1_000);

        let mut cache = OutcomeCache::default();
        for _ in 0..2 {
            cache.insert(key(1), outcome_of_bytes(1));
            // Both outcomes together have exactly the maximum size.
            cache.insert(key(2), outcome_of_bytes(MAX_OUTCOME_BYTES - 2 * EMPTY_BYTES - 1));
            assert_eq!((cache.outcomes.len(), cache.bytes), (2, MAX_OUTCOME_BYTES), "both are retained and counted once");
        }
        let mut replaced = OutcomeCache::default();
        (0..3).for_each(|len| replaced.insert(key(1), outcome_of_bytes(len)));
        assert_eq!((replaced.outcomes.len(), replaced.bytes), (1, EMPTY_BYTES + 2), "the new outcome replaces the old one");
        cache.insert(key(3), outcome_of_bytes(0));
        assert_eq!((cache.outcomes.len(), cache.bytes), (1, EMPTY_BYTES), "an outcome that does not fit evicts all others");
    }

    #[test]
    fn outcome_caches_hold_cluster_and_node_outcomes_apart() {
        let outcomes = OutcomeCaches::default();
        outcomes.insert(CacheScope::Cluster, key(1), outcome_of_bytes(1));
        outcomes.insert(CacheScope::EqualInputs, key(2), outcome_of_bytes(2));
        for (scope, number, expected) in [
            (CacheScope::Cluster, 1, Some(outcome_of_bytes(1))),
            (CacheScope::Cluster, 2, None),
            (CacheScope::EqualInputs, 1, None),
            (CacheScope::EqualInputs, 2, Some(outcome_of_bytes(2))),
            (CacheScope::Node, 2, Some(outcome_of_bytes(2))),
        ] {
            assert_eq!(outcomes.get(scope, &key(number)), expected, "{scope:?} {number}");
        }
    }

    #[test]
    fn cache_scope_follows_from_references() {
        let nodes = "nodes(tag='a'){name}";
        for (reads, scope) in [
            (&["labels.x"][..], CacheScope::EqualInputs),
            (&["'a' in tags", "cluster.name"], CacheScope::EqualInputs),
            (&[nodes], CacheScope::Cluster),
            (&[nodes, "cluster.name"], CacheScope::Cluster),
            (&[nodes, "primary('a'){name}"], CacheScope::Cluster),
            (&[nodes, "'a' in tags"], CacheScope::EqualInputs),
            (&[nodes, "secret('db')"], CacheScope::EqualInputs),
            (&[nodes, "labels.x"], CacheScope::Node),
            (&[nodes, "'a' in tags", "labels.x"], CacheScope::Node),
        ] {
            let references: Vec<Reference> = reads.iter().map(|read| read.parse().unwrap()).collect();
            assert_eq!(CacheScope::from_references(&references), scope, "{reads:?}");
        }
    }

    #[test]
    fn step_budget_charges_until_nothing_remains() {
        let mut budget = StepBudget::new(10);
        assert_eq!((budget.charge(6), budget.remaining), (Ok(()), 4));
        assert!(matches!(budget.charge(5), Err(SkipReason::Undecided { .. })));
        assert_eq!((budget.charge(4), budget.remaining), (Ok(()), 0), "a charge that is too large uses no steps");
        assert!(budget.charge(1).is_err());
    }
}
