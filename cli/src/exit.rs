//! With which status the command ends, so that a script can tell what became of it.

use std::process::ExitCode;

/// Why the command did not end with 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It could not be done.
    Error = 1,
    /// What it is about is not there.
    NotFound = 3,
    /// Someone else's value, or a newer one, stands in the way.
    Conflict = 4,
    /// It may have been carried out: the answer was lost.
    Unknown = 5,
}

/// A sentence with the status that goes with it.
#[derive(Debug, thiserror::Error)]
#[error("{sentence}")]
struct Failure {
    exit: Exit,
    sentence: String,
}

impl Exit {
    /// With which status an error ends the command.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        error.downcast_ref::<Failure>().map_or(Self::Error, |failure| failure.exit)
    }

    /// An error that ends the command with this status.
    pub(crate) fn because(self, sentence: impl Into<String>) -> anyhow::Error {
        Failure { exit: self, sentence: sentence.into() }.into()
    }
}

/// Prints an error with its causes and gives its status.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(Exit::of(error) as u8)
}
