//! What conditions give, and what a node may spend on them.
//!
//! A node pays for its conditions in the order of its tasks, also for those that another node had evaluated before: so what it is told
//! follows from the fleet alone, and not from what is remembered. What all nodes pay together bounds a pass (docs/adr/0014).

use std::collections::BTreeMap;
use std::mem::size_of;
use std::sync::{Arc, Mutex, PoisonError};

use super::answer::LeftOut;
use crate::condition::ConditionError;
use crate::input::{Read, Reference};
use crate::release::CompiledTask;

/// How many bytes of outcomes are kept, about, of those for each node and of the others.
const MAX_OUTCOME_BYTES: usize = 16 * 1024 * 1024;

/// How many nodes share what a condition gives, by what it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// For one node: it looks others up, and reads what nodes say themselves.
    Each,
    /// For those that are alike in what it reads.
    Alike,
    /// For all nodes of a cluster: it looks nodes up, and reads nothing by which they differ.
    Cluster,
}

/// What conditions gave, by what they read: the same in every group. Those that cost most are not crowded out by those of each node.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    of_nodes: Mutex<Kept>,
    of_clusters: Mutex<Kept>,
}

/// Outcomes, and about how many bytes they take.
#[derive(Debug, Default)]
struct Kept {
    outcomes: BTreeMap<OutcomeKey, Evaluated>,
    bytes: usize,
}

/// A task's definition, and the hash of what its condition reads.
pub(super) type OutcomeKey = ([u8; 32], [u8; 32]);

/// What is known of a condition over some inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Evaluated {
    /// The steps that it takes.
    pub(super) steps: usize,
    /// What it gives.
    pub(super) result: Evaluation,
}

/// What a condition gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Evaluation {
    /// Nobody paid for it yet.
    Pending,
    /// Whether its task runs.
    Decided(bool),
    /// It cannot be evaluated, so its task does not run.
    LeftOut(LeftOut),
}

/// What is left to a node for its conditions.
pub(super) struct Account {
    left: usize,
}

impl Scope {
    pub(super) fn of(references: &[Reference]) -> Self {
        let of_cluster = |read: &Read| matches!(read, Read::Nodes { .. } | Read::Primary { .. } | Read::Cluster(_));
        let of_profile = |read: &Read| of_cluster(read) || matches!(read, Read::Tag(_) | Read::Secret(_));
        let reads = || references.iter().map(Reference::read);
        if !reads().any(|read| matches!(read, Read::Nodes { .. })) {
            Self::Alike
        } else if reads().all(of_cluster) {
            Self::Cluster
        } else if reads().all(of_profile) {
            Self::Alike
        } else {
            Self::Each
        }
    }
}

impl Outcomes {
    pub(super) fn get(&self, scope: Scope, key: &OutcomeKey) -> Option<Evaluated> {
        self.of(scope).lock().unwrap_or_else(PoisonError::into_inner).outcomes.get(key).cloned()
    }

    pub(super) fn insert(&self, scope: Scope, key: OutcomeKey, outcome: Evaluated) {
        self.of(scope).lock().unwrap_or_else(PoisonError::into_inner).insert(key, outcome);
    }

    fn of(&self, scope: Scope) -> &Mutex<Kept> {
        match scope {
            Scope::Cluster => &self.of_clusters,
            Scope::Each | Scope::Alike => &self.of_nodes,
        }
    }
}

impl Kept {
    fn insert(&mut self, key: OutcomeKey, outcome: Evaluated) {
        let bytes = outcome.bytes();
        self.bytes -= self.outcomes.get(&key).map_or(0, Evaluated::bytes);
        if self.bytes + bytes > MAX_OUTCOME_BYTES {
            self.outcomes.clear();
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.outcomes.insert(key, outcome);
    }
}

impl Evaluated {
    /// What an entry takes, about.
    fn bytes(&self) -> usize {
        let said = match &self.result {
            Evaluation::Pending | Evaluation::Decided(_) => 0,
            Evaluation::LeftOut(why) => why.text_len(),
        };
        size_of::<OutcomeKey>() + size_of::<Self>() + said
    }
}

impl Account {
    pub(super) fn of(limit: usize) -> Self {
        Self { left: limit }
    }

    /// Pays for a condition. One that costs more than is left costs nothing: later ones may cost less.
    pub(super) fn pay(&mut self, steps: usize) -> Result<(), LeftOut> {
        let left = self.left.checked_sub(steps);
        self.left = left.ok_or_else(|| unevaluated(&ConditionError::TooMany { steps }))?;
        Ok(())
    }
}

impl Evaluation {
    /// Why the task does not run; `None`: it does.
    pub(super) fn left_out(&self, task: &CompiledTask) -> Option<LeftOut> {
        match self {
            Self::LeftOut(why) => Some(why.clone()),
            Self::Decided(false) => Some(LeftOut::False { condition: Arc::clone(&task.condition_text) }),
            Self::Pending | Self::Decided(true) => None,
        }
    }
}

/// Why a task does not run whose condition cannot be evaluated.
pub(super) fn unevaluated(reason: &ConditionError) -> LeftOut {
    let said = reason.to_string().into();
    match reason {
        ConditionError::TooLong { .. } | ConditionError::TooMany { .. } => LeftOut::Undecided { reason: said },
        ConditionError::Absent { .. }
        | ConditionError::NotBoolean { .. }
        | ConditionError::NotAnInput { .. }
        | ConditionError::Failed { .. } => LeftOut::Failed { reason: said },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> OutcomeKey {
        ([0; 32], crate::digest::sha256(&number.to_be_bytes()))
    }

    fn saying(len: usize) -> Evaluated {
        Evaluated { steps: 0, result: Evaluation::LeftOut(LeftOut::Failed { reason: "x".repeat(len).into() }) }
    }

    /// Two hashes, and what stands beside them.
    const EMPTY: usize = 64 + size_of::<Evaluated>();

    #[test]
    fn an_outcome_takes_its_key_itself_and_what_it_says() {
        let of = |result| Evaluated { steps: 7, result }.bytes();
        assert_eq!(of(Evaluation::Pending), EMPTY);
        assert_eq!(of(Evaluation::Decided(true)), EMPTY);
        assert_eq!(of(Evaluation::LeftOut(LeftOut::Marker)), EMPTY);
        assert_eq!(of(Evaluation::LeftOut(LeftOut::False { condition: "12345".into() })), EMPTY + 5);
        assert_eq!(saying(9).bytes(), EMPTY + 9);
    }

    #[test]
    fn outcomes_are_bounded_by_their_bytes() {
        let mut kept = Kept::default();
        for number in 0..100_000 {
            kept.insert(key(number), saying(usize::try_from(number % 4_096).unwrap()));
            assert!(kept.bytes <= MAX_OUTCOME_BYTES, "{}", kept.bytes);
        }
        assert_eq!(kept.bytes, kept.outcomes.values().map(Evaluated::bytes).sum::<usize>());
        assert!(kept.outcomes.len() > 1_000);

        let mut kept = Kept::default();
        for _ in 0..2 {
            kept.insert(key(1), saying(1));
            kept.insert(key(2), saying(MAX_OUTCOME_BYTES - 2 * EMPTY - 1));
            assert_eq!((kept.outcomes.len(), kept.bytes), (2, MAX_OUTCOME_BYTES), "what fits stays, and counts once");
        }
        let mut again = Kept::default();
        (0..3).for_each(|len| again.insert(key(1), saying(len)));
        assert_eq!((again.outcomes.len(), again.bytes), (1, EMPTY + 2), "one in the place of another");
        kept.insert(key(3), saying(0));
        assert_eq!((kept.outcomes.len(), kept.bytes), (1, EMPTY), "what does not fit drops all before it");
    }

    #[test]
    fn what_clusters_share_is_kept_apart_from_what_is_each_nodes() {
        let outcomes = Outcomes::default();
        outcomes.insert(Scope::Cluster, key(1), saying(1));
        outcomes.insert(Scope::Alike, key(2), saying(2));
        for (scope, number, known) in [
            (Scope::Cluster, 1, Some(saying(1))),
            (Scope::Cluster, 2, None),
            (Scope::Alike, 1, None),
            (Scope::Alike, 2, Some(saying(2))),
            (Scope::Each, 2, Some(saying(2))),
        ] {
            assert_eq!(outcomes.get(scope, &key(number)), known, "{scope:?} {number}");
        }
    }

    #[test]
    fn who_shares_what_a_condition_gives_follows_from_what_it_reads() {
        let nodes = "nodes(tag='a'){name}";
        for (reads, scope) in [
            (&["labels.x"][..], Scope::Alike),
            (&["'a' in tags", "cluster.name"], Scope::Alike),
            (&[nodes], Scope::Cluster),
            (&[nodes, "cluster.name"], Scope::Cluster),
            (&[nodes, "primary('a'){name}"], Scope::Cluster),
            (&[nodes, "'a' in tags"], Scope::Alike),
            (&[nodes, "secret('db')"], Scope::Alike),
            (&[nodes, "labels.x"], Scope::Each),
            (&[nodes, "'a' in tags", "labels.x"], Scope::Each),
        ] {
            let references: Vec<Reference> = reads.iter().map(|read| read.parse().unwrap()).collect();
            assert_eq!(Scope::of(&references), scope, "{reads:?}");
        }
    }

    #[test]
    fn an_account_pays_until_nothing_is_left() {
        let mut account = Account::of(10);
        assert_eq!((account.pay(6), account.left), (Ok(()), 4));
        assert!(matches!(account.pay(5), Err(LeftOut::Undecided { .. })));
        assert_eq!((account.pay(4), account.left), (Ok(()), 0), "what is too dear takes nothing");
        assert!(account.pay(1).is_err());
    }
}
