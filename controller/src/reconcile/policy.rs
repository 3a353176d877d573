//! When a task set that differs from the released one is released.
//!
//! Budgets and waves come with rollouts; the seam is here now, because what is held must already stay held: over
//! edits of what is known, over restarts, over drift.

use stemma_core::resolve::Answer;
use stemma_wire::message::desired::TaskSet;

/// A node whose task set differs from the one that was released to it.
pub struct Candidate<'a> {
    /// What the node is to be.
    pub answer: &'a Answer,
    /// What was released to it; `None`: nothing yet.
    pub present: Option<&'a TaskSet>,
    /// What would be released.
    pub next: &'a TaskSet,
}

/// Whether it goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is stored and sent.
    Release,
    /// What was released stays in force.
    Hold,
}

/// Decides over candidates. It is asked again whenever the node is resolved.
pub trait ReleasePolicy: std::fmt::Debug + Send + Sync + 'static {
    /// One candidate.
    fn judge(&self, candidate: &Candidate<'_>) -> Verdict;
}

/// Everything at once, until there are rollouts. An unmet requirement, a hold and a pause keep what is there.
#[derive(Clone, Copy, Debug, Default)]
pub struct AtOnce;

impl ReleasePolicy for AtOnce {
    fn judge(&self, candidate: &Candidate<'_>) -> Verdict {
        let answer = candidate.answer;
        let is_kept = !answer.unmet().is_empty() || answer.hold().is_some() || answer.is_paused();
        if is_kept { Verdict::Hold } else { Verdict::Release }
    }
}
