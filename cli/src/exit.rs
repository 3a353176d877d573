//! The exit status of the command: a script can tell from it what became of a run.

use std::process::ExitCode;

/// Why the command did not end with 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It could not be done.
    Error = 1,
    /// It was not said what to do.
    Usage = 2,
    /// What it is about is not there.
    NotFound = 3,
    /// Someone else's value, or a newer one, stands in the way.
    Conflict = 4,
    /// It may have been carried out: the answer was lost.
    Unknown = 5,
    /// What was compared differs.
    Differs = 6,
}

/// A sentence with the status that goes with it.
#[derive(Debug, thiserror::Error)]
#[error("{sentence}")]
struct Failure {
    exit: Exit,
    sentence: String,
    /// Whether writes of the same command were made before.
    is_partial: bool,
}

impl Exit {
    /// The status that was given with an error.
    pub(crate) fn given(error: &anyhow::Error) -> Option<Self> {
        error.downcast_ref::<Failure>().map(|failure| failure.exit)
    }

    /// An error that ends the command with this status.
    pub(crate) fn because(self, sentence: impl Into<String>) -> anyhow::Error {
        Failure { exit: self, sentence: sentence.into(), is_partial: false }.into()
    }

    /// The same where writes of this command were made before, as the sentence says.
    pub(crate) fn after_others(self, sentence: impl Into<String>) -> anyhow::Error {
        Failure { exit: self, sentence: sentence.into(), is_partial: true }.into()
    }
}

/// Whether writes of the same command were made before the error, as its sentence says.
pub(crate) fn is_partial(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Failure>().is_some_and(|failure| failure.is_partial)
}

/// Prints an error with its causes and gives its status. Of a command that writes it says that nothing was changed, once.
pub(crate) fn report(error: &anyhow::Error, writes: bool) -> ExitCode {
    let text = format!("{error:#}");
    let exit = Exit::of(error);
    tell!("error: {}", text.trim_end());
    if writes && exit != Exit::Unknown && !is_partial(error) && !text.contains("nothing was ") {
        tell!("  nothing was changed");
    }
    ExitCode::from(exit as u8)
}
