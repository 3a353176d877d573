//! The limit on the work of all rules for one report.

use super::limits::Failure;

/// Maximum number of steps of all inspection rules for one report. A condition or an action costs a step for each item
/// of its loop. A placeholder costs a step, and so do each name in the path of a placeholder, and each 64 bytes of a
/// text that is built. A byte that a regular expression reads costs 2 to 64 steps, by the size of the compiled
/// expression. Copies of lists, of plugin data and of the state of the evaluation also cost steps.
const MAX_STEPS: usize = 1_000_000;

/// The number of steps of work that inspection rules may still do for one report.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleBudget(usize);

impl RuleBudget {
    /// Creates the budget of all inspection rules for one report.
    pub(super) const fn for_report() -> Self {
        Self(MAX_STEPS)
    }

    /// Consumes this number of steps. Fails if fewer are left.
    pub(super) fn consume(&mut self, steps: usize) -> Result<(), Failure> {
        self.0 = self.0.checked_sub(steps).ok_or(Failure::BudgetExceeded)?;
        Ok(())
    }
}
