//! The limit on the work of all rules for one report.

use super::limits::Failure;

/// Maximum number of steps of all rules for one report. A step is a condition that is evaluated, a step of a path, 64
/// bytes of a text that is built, or a byte that a regular expression reads.
const MAX_STEPS: usize = 1_000_000;

/// The number of steps left.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleBudget(usize);

impl RuleBudget {
    /// Creates the budget for one report.
    pub(super) const fn for_report() -> Self {
        Self(MAX_STEPS)
    }

    /// Consumes this number of steps. Fails if fewer are left.
    pub(super) fn consume(&mut self, steps: usize) -> Result<(), Failure> {
        self.0 = self.0.checked_sub(steps).ok_or(Failure::BudgetExceeded)?;
        Ok(())
    }
}
