//! The limit on the work of all rules for one report.

use super::limits::Failure;

/// Maximum number of steps of all inspection rules for one report. Each condition, action and placeholder costs at
/// least one step. Long texts, regular expressions, and copies of lists and plugin data cost more.
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
