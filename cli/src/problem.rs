//! Collects all errors of manifests with their places, so that a person can fix a file in one pass.

use std::fmt;

/// The errors in manifests, one per line, as `FILE:LINE:COLUMN: FIELD: REASON`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Problems(Vec<String>);

impl Problems {
    /// Adds an error at `FILE:LINE:COLUMN`, or at a file.
    pub(crate) fn add(&mut self, place: impl fmt::Display, what: impl fmt::Display) {
        let line = crate::output::printable_lines(&format!("{place}: {what}"));
        if !self.0.contains(&line) {
            self.0.push(line);
        }
    }

    /// Returns whether there are no errors.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all errors, each on its own line, to print below a heading.
    pub(crate) fn lines(&self) -> String {
        self.0.iter().map(|one| format!("\n  {}", one.replace('\n', "\n  "))).collect()
    }

    /// Returns all errors as one error, or `Ok` if there are none.
    ///
    /// # Errors
    /// Fails if there are any errors.
    pub(crate) fn into_result(self) -> anyhow::Result<()> {
        if self.is_empty() { Ok(()) } else { Err(self.into()) }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [only] => f.write_str(only),
            all => {
                write!(f, "{} things are wrong in these manifests{}", all.len(), self.lines())
            }
        }
    }
}

impl std::error::Error for Problems {}
