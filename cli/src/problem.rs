//! What is wrong with manifests, each with its place, all at once: a person mends a file, not one error a run.

use std::fmt;

/// What is wrong, as `FILE:LINE:COLUMN: FIELD: REASON` a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Problems(Vec<String>);

impl Problems {
    /// One more, at `FILE:LINE:COLUMN` or at a file.
    pub(crate) fn add(&mut self, place: impl fmt::Display, what: impl fmt::Display) {
        let line = crate::output::printable_lines(&format!("{place}: {what}"));
        if !self.0.contains(&line) {
            self.0.push(line);
        }
    }

    /// Whether nothing is wrong.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, each in a line of its own below a heading.
    pub(crate) fn lines(&self) -> String {
        self.0.iter().map(|one| format!("\n  {}", one.replace('\n', "\n  "))).collect()
    }

    /// Nothing, or all of it as an error.
    ///
    /// # Errors
    /// When something is wrong.
    pub(crate) fn check(self) -> anyhow::Result<()> {
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
