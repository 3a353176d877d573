//! When a task set that differs from the released one is released.
//!
//! Budgets and waves come with rollouts; the seam is here now, because what is held must already stay held: over
//! edits of what is known, over restarts, over drift.

use stemma_core::object::Timestamp;
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
    /// When it is judged.
    pub now: Timestamp,
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
        let on_host = answer.said().and_then(|said| said.hold.as_ref());
        let is_held = answer.hold().is_some_and(|hold| !is_over(&hold.until, candidate.now))
            || on_host.is_some_and(|(until_s, _)| until_s.saturating_mul(1000) > candidate.now.0);
        let is_kept = !answer.unmet().is_empty() || is_held || answer.is_paused();
        if is_kept { Verdict::Hold } else { Verdict::Release }
    }
}

/// Whether a hold's end is past. One without an end, or with one that is no date, lasts until it is taken back. The end is
/// seen when the node is next resolved: at its next change, or by the full resolve.
fn is_over(until: &str, now: Timestamp) -> bool {
    let end: Option<jiff::Timestamp> = until.parse().ok();
    end.and_then(|end| u64::try_from(end.as_millisecond()).ok()).is_some_and(|end| end <= now.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_ends_at_its_date_and_without_one_when_it_is_taken_back() {
        let now = Timestamp(1_000_000_000_000); // 2001-09-09T01:46:40Z
        for (until, over) in [
            ("2001-09-09T01:46:40Z", true),
            ("2001-09-09T01:46:39Z", true),
            ("2001-09-09T01:46:41Z", false),
            ("2001-09-09T03:46:40+02:00", true),
            ("", false),
            ("some day", false),
        ] {
            assert_eq!(is_over(until, now), over, "{until}");
        }
    }
}
