//! The errors of a store. After every error of a commit except [`StoreError::OutcomeUnknown`], nothing was written.

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use super::entry::Revision;
use super::transaction::{Refusal, UnmetPrecondition};

/// An error of the storage engine, shared by all callers that it affects.
pub type EngineError = Arc<dyn StdError + Send + Sync>;

/// The reason why a store could not be read or written.
#[derive(Debug, Clone, Error)]
pub enum StoreError {
    /// The transaction is malformed or exceeds a limit. Nothing was written.
    #[error("transaction refused")]
    Refused(#[from] Refusal),
    /// A precondition of the transaction does not hold. Nothing was written.
    #[error("{0}")]
    PreconditionFailed(UnmetPrecondition),
    /// The engine failed while it made the transaction durable, or panicked during the write. Only a read after the
    /// store was reopened shows whether the transaction was written.
    #[error("outcome unknown: the store failed during the write, which may have taken effect or not")]
    OutcomeUnknown {
        /// The error of the engine.
        #[source]
        cause: EngineError,
    },
    /// A write failed earlier, or this write failed before it was committed. Nothing of this transaction was written,
    /// and nothing of it will be written later.
    #[error("the store is read-only since a write failed; nothing was written; remove the cause, then restart the controller")]
    ReadOnly {
        /// The error of the first write that failed.
        #[source]
        cause: EngineError,
    },
    /// A read failed, or redb itself (the embedded database) reported damage.
    #[error("the store could not be read")]
    Read {
        /// The error of the engine.
        #[source]
        cause: EngineError,
    },
    /// A newer program wrote the record that was read.
    #[error("the store cannot be read by this program: {what}")]
    Newer {
        /// A text for people that names the record and the remedy.
        what: String,
    },
    /// This program could not have written the record that was read, or the engine panicked during the read.
    #[error("the store is damaged: {what}")]
    Corrupt {
        /// A text for people that describes the damage.
        what: String,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// Creates the error for a record that cannot be read. `is_newer` is true if a newer program wrote the record, and
    /// false if the record is damaged.
    pub fn unreadable(what: String, is_newer: bool) -> Self {
        if is_newer { Self::Newer { what } } else { Self::Corrupt { what } }
    }
}

/// The reason why a watch could not return the next change.
#[derive(Debug, Clone, Error)]
pub enum WatchError {
    /// The requested changes were compacted, so the store does not have them any more. The caller must list again, and
    /// watch from the revision after that of the list.
    #[error("revision {from} was compacted, the oldest that can be watched from is {oldest}")]
    Compacted {
        /// The revision of the change that the watch needs next.
        from: Revision,
        /// The oldest revision that a watch can start from.
        oldest: Revision,
    },
    /// The engine could not read a stored change, or the store was closed.
    #[error("changes could not be read")]
    Store(#[from] StoreError),
}

/// The reason why a store could not be created or opened. An existing file is unchanged, unless the error is
/// [`OpenError::Io`]. With that error, a file that was recognized as a complete store can contain a part of what redb
/// (the embedded database) writes when it opens a file.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is no file to open.
    #[error(
        "there is no store at {}: for a new fleet create one with `stemma-controller init --data-dir {}`, or, if the package \
         is installed, with `touch /etc/stemma/create-fleet` and a start of stemma-controller.service; otherwise {}",
        path.display(), parent_directory(path), restore_advice(path)
    )]
    Missing {
        /// The path at which no file exists.
        path: PathBuf,
    },
    /// The file has 0 bytes. A store lost its content, or another program created the file. The file is not treated as
    /// a new store.
    #[error("the store {} is empty (0 bytes), and no new store was created in its place: {}", path.display(), restore_advice(path))]
    Empty {
        /// The path of the file.
        path: PathBuf,
    },
    /// A file exists already. Creating a store never overwrites one.
    #[error("there is a store at {} already; it was not changed", path.display())]
    Exists {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file is locked, because another process or this process has it open.
    #[error(
        "the store {} is in use by another process: only one controller can run on it; stop the other one first (`fuser {}` \
         shows which)",
        path.display(), path.display()
    )]
    Locked {
        /// The path of the file.
        path: PathBuf,
    },
    /// The schema version of the file is newer than the versions that this program supports.
    #[error(
        "the store {} has schema version {found}{}, this program supports up to version {supported}; it was not changed: \
         run the newer stemma-controller, or {}", path.display(), written_by(program.as_deref()), restore_advice(path)
    )]
    Newer {
        /// The path of the file.
        path: PathBuf,
        /// The schema version of the file.
        found: u32,
        /// The name and version of the program that last wrote the file, or `None` if unknown.
        program: Option<String>,
        /// The newest schema version that this program supports.
        supported: u32,
    },
    /// The file is not a store or is damaged, redb panicked on it, or its schema version or properties are unreadable.
    #[error("the store {} is damaged and was not changed: {}", path.display(), restore_advice(path))]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The error that shows the damage.
        #[source]
        cause: EngineError,
    },
    /// The file could not be accessed, a new store could not be filled, or the writer thread could not be started.
    #[error("the store {} could not be opened", path.display())]
    Io {
        /// The path of the file.
        path: PathBuf,
        /// The system's error, or an error of the kind `Other` with the reason why a new store could not be filled.
        #[source]
        source: io::Error,
    },
}

/// Returns the part of a message that names the program that wrote a file, or an empty text if none is recorded.
fn written_by(program: Option<&str>) -> String {
    program.map_or_else(String::new, |program| format!(" (written by {program})"))
}

fn parent_directory(path: &Path) -> String {
    path.parent().unwrap_or(Path::new(".")).display().to_string()
}

/// Returns the end of a message about a store that cannot be opened: how to restore the store at `path`. The text names
/// the directory of the store, because a copy must be of the whole data directory.
fn restore_advice(path: &Path) -> String {
    format!(
        "restore a backup (docs/backup.md) or copy back {} from a copy that was made while the controller was stopped",
        parent_directory(path)
    )
}
