//! What all rules together may take for one report.

use super::limits::Failure;

/// How many steps all rules take for one report at most: a condition that is asked, a step of a path, 64 bytes of a text that
/// is made, a byte that a regular expression looks at.
const STEPS: usize = 1_000_000;

/// What is left of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget(usize);

impl Budget {
    /// What one report may take.
    pub(super) const fn of_report() -> Self {
        Self(STEPS)
    }

    /// Takes so many steps.
    pub(super) fn take(&mut self, steps: usize) -> Result<(), Failure> {
        self.0 = self.0.checked_sub(steps).ok_or(Failure::Spent)?;
        Ok(())
    }
}
