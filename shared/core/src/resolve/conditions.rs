//! What conditions give, and what a node may spend on them.
//!
//! A node pays for its conditions in the order of its tasks, also for those that another node had evaluated before: so what it is told
//! follows from the fleet alone, and not from what is remembered. What all nodes pay together bounds a pass (docs/adr/0011).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::answer::LeftOut;
use crate::condition::ConditionError;
use crate::input::{Read, Reference};
use crate::release::CompiledTask;

/// How many outcomes of conditions are kept, of those for each node and of the others.
const MAX_OUTCOMES: usize = 65_536;

/// For whom a condition is evaluated at once, by what it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audience {
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
    of_nodes: Mutex<BTreeMap<OutcomeKey, Outcome>>,
    of_clusters: Mutex<BTreeMap<OutcomeKey, Outcome>>,
}

/// A task's definition, and the hash of what its condition reads: the text itself may be as large as a label map.
pub(super) type OutcomeKey = ([u8; 32], [u8; 32]);

/// What is known of a condition over some inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// The steps that it takes.
    pub(super) steps: usize,
    /// What it gives.
    pub(super) gives: Gives,
}

/// What a condition gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Gives {
    /// Nobody paid for it yet.
    Unasked,
    /// Its task runs.
    True,
    /// Its task does not run.
    LeftOut(LeftOut),
}

/// What is left to a node for its conditions.
pub(super) struct Account {
    limit: usize,
    left: usize,
}

impl Audience {
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
    pub(super) fn get(&self, audience: Audience, key: &OutcomeKey) -> Option<Outcome> {
        self.of(audience).lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    pub(super) fn insert(&self, audience: Audience, key: OutcomeKey, outcome: Outcome) {
        let mut outcomes = self.of(audience).lock().unwrap_or_else(PoisonError::into_inner);
        if outcomes.len() >= MAX_OUTCOMES {
            outcomes.clear();
        }
        outcomes.insert(key, outcome);
    }

    fn of(&self, audience: Audience) -> &Mutex<BTreeMap<OutcomeKey, Outcome>> {
        match audience {
            Audience::Cluster => &self.of_clusters,
            Audience::Each | Audience::Alike => &self.of_nodes,
        }
    }
}

impl Account {
    pub(super) fn of(limit: usize) -> Self {
        Self { limit, left: limit }
    }

    /// Pays for a condition. One that costs more than is left costs nothing: later ones may cost less.
    pub(super) fn pay(&mut self, steps: usize) -> Result<(), LeftOut> {
        let Self { limit, left } = *self;
        self.left =
            left.checked_sub(steps).ok_or_else(|| unevaluated(&ConditionError::TooMany { steps, left, limit }))?;
        Ok(())
    }
}

impl Gives {
    /// What a task's condition gave.
    pub(super) fn of(task: &CompiledTask, gave: Result<bool, ConditionError>) -> Self {
        match gave {
            Ok(true) => Self::True,
            Ok(false) => Self::LeftOut(LeftOut::False { condition: task.task.condition.clone().unwrap_or_default() }),
            Err(reason) => Self::LeftOut(unevaluated(&reason)),
        }
    }

    /// Why the task does not run; `None`: it does.
    pub(super) fn left_out(self) -> Option<LeftOut> {
        match self {
            Self::LeftOut(why) => Some(why),
            Self::Unasked | Self::True => None,
        }
    }
}

/// Why a task does not run whose condition cannot be evaluated.
pub(super) fn unevaluated(reason: &ConditionError) -> LeftOut {
    let said = reason.to_string();
    match reason {
        ConditionError::TooLong { .. } | ConditionError::TooMany { .. } => LeftOut::Undecided { reason: said },
        ConditionError::Absent { .. }
        | ConditionError::NotBoolean { .. }
        | ConditionError::NotAnInput { .. }
        | ConditionError::Failed { .. } => LeftOut::Failed { reason: said },
    }
}
