//! The exit status of the command. Scripts read from it how the command ended.

use std::process::ExitCode;

/// The exit status of a command that did not succeed, named by its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command failed for a reason that has no status of its own.
    Error = 1,
    /// The arguments are incomplete or invalid.
    Usage = 2,
    /// Something that the command names does not exist, or a selection finds no object to wait for.
    NotFound = 3,
    /// The controller refused the request as a conflict (HTTP status 409 or 412). For example, another manager owns the
    /// value, the object has a newer revision, the name is taken, or other objects use the object to delete.
    Conflict = 4,
    /// The write may have been carried out, because the response was lost.
    Unknown = 5,
    /// The objects that the command compared differ. Only `catalog import --diff` ends with this status.
    Differs = 6,
}

/// An error message with its exit status.
#[derive(Debug, thiserror::Error)]
#[error("{sentence}")]
struct ExitError {
    exit: Exit,
    sentence: String,
    /// True if earlier writes of the same command were carried out before the error.
    is_partial: bool,
}

impl Exit {
    /// Returns the status that was attached to an error when it was created, or `None` if no status was attached.
    pub(crate) fn attached_status(error: &anyhow::Error) -> Option<Self> {
        error.downcast_ref::<ExitError>().map(|failure| failure.exit)
    }

    /// Returns an error that ends the command with this status.
    pub(crate) fn with_message(self, sentence: impl Into<String>) -> anyhow::Error {
        ExitError { exit: self, sentence: sentence.into(), is_partial: false }.into()
    }

    /// Returns an error that ends the command with this status after earlier writes of the command were carried out.
    /// `sentence` must mention these writes.
    pub(crate) fn partial_failure(self, sentence: impl Into<String>) -> anyhow::Error {
        ExitError { exit: self, sentence: sentence.into(), is_partial: true }.into()
    }
}

/// Returns whether earlier writes of the same command were carried out before the error. The message of the error
/// mentions these writes.
pub(crate) fn is_partial(error: &anyhow::Error) -> bool {
    error.downcast_ref::<ExitError>().is_some_and(|failure| failure.is_partial)
}

/// Prints an error with its causes and returns its exit status. For a write command, also prints that nothing was
/// changed, if that is true and the message does not contain it.
pub(crate) fn report(error: &anyhow::Error, is_write: bool) -> ExitCode {
    let text = format!("{error:#}");
    let exit = Exit::from_error(error);
    errln!("error: {}", text.trim_end());
    if is_write && exit != Exit::Unknown && !is_partial(error) && !text.contains("nothing was ") {
        errln!("  nothing was changed");
    }
    ExitCode::from(exit as u8)
}
