//! The exit status of the command. It tells a script how the run ended.

use std::process::ExitCode;

/// The reason for an exit status other than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command failed.
    Error = 1,
    /// The arguments do not say what to do.
    Usage = 2,
    /// The object of the command does not exist.
    NotFound = 3,
    /// Another manager's value, or a newer revision, is in the way.
    Conflict = 4,
    /// The write may have been carried out, because the response was lost.
    Unknown = 5,
    /// The compared objects differ (`catalog import --diff`).
    Differs = 6,
}

/// An error message with its exit status.
#[derive(Debug, thiserror::Error)]
#[error("{sentence}")]
struct ExitError {
    exit: Exit,
    sentence: String,
    /// True if earlier writes of the same command were made.
    is_partial: bool,
}

impl Exit {
    /// Returns the status attached to an error.
    pub(crate) fn from_exit_error(error: &anyhow::Error) -> Option<Self> {
        error.downcast_ref::<ExitError>().map(|failure| failure.exit)
    }

    /// Returns an error that ends the command with this status.
    pub(crate) fn with_message(self, sentence: impl Into<String>) -> anyhow::Error {
        ExitError { exit: self, sentence: sentence.into(), is_partial: false }.into()
    }

    /// Like [`Self::with_message`], for an error after earlier writes of the same command. The message mentions them.
    pub(crate) fn partial_failure(self, sentence: impl Into<String>) -> anyhow::Error {
        ExitError { exit: self, sentence: sentence.into(), is_partial: true }.into()
    }
}

/// Returns whether earlier writes of the same command were made before the error. The message mentions them.
pub(crate) fn is_partial(error: &anyhow::Error) -> bool {
    error.downcast_ref::<ExitError>().is_some_and(|failure| failure.is_partial)
}

/// Prints an error with its causes and returns its status. For a write command it adds that nothing was changed, unless
/// the message already says so.
pub(crate) fn report(error: &anyhow::Error, writes: bool) -> ExitCode {
    let text = format!("{error:#}");
    let exit = Exit::from_error(error);
    errln!("error: {}", text.trim_end());
    if writes && exit != Exit::Unknown && !is_partial(error) && !text.contains("nothing was ") {
        errln!("  nothing was changed");
    }
    ExitCode::from(exit as u8)
}
