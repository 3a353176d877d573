//! Collects all errors of manifests with their places, so that a person can fix a file in one pass.

use std::fmt;

/// The errors in manifests. Each is a text `PLACE: MESSAGE`, in most cases `FILE:LINE:COLUMN: FIELD: REASON`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Problems(Vec<String>);

impl Problems {
    /// Adds an error, unless the same error was added before. `place` is `FILE:LINE:COLUMN`, if this is known.
    pub(crate) fn add(&mut self, place: impl fmt::Display, message: impl fmt::Display) {
        let line = crate::output::printable_lines(&format!("{place}: {message}"));
        if !self.0.contains(&line) {
            self.0.push(line);
        }
    }

    /// Returns whether there are no errors.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all errors as indented lines, to print directly after a heading. Each error begins with a line end.
    pub(crate) fn lines(&self) -> String {
        self.0.iter().map(|error| format!("\n  {}", error.replace('\n', "\n  "))).collect()
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
    /// Writes a single error as it is, and several errors as a list below a heading.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [error] => f.write_str(error),
            errors => {
                write!(f, "{} errors in these manifests{}", errors.len(), self.lines())
            }
        }
    }
}

impl std::error::Error for Problems {}
