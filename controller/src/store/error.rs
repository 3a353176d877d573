//! The errors of a store. Each tells the caller whether something was written.

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use super::entry::Revision;
use super::transaction::{Refusal, UnmetPrecondition};

/// An error of the engine, shared by all callers that it affects.
pub type EngineError = Arc<dyn StdError + Send + Sync>;

/// The reason why a store could not be read or written.
#[derive(Debug, Clone, Error)]
pub enum StoreError {
    /// The transaction is malformed or exceeds a limit. Nothing was written.
    #[error("transaction refused")]
    Refused(#[from] Refusal),
    /// A precondition does not hold. Nothing was written.
    #[error("{0}")]
    PreconditionFailed(UnmetPrecondition),
    /// The engine failed while it made the transaction durable. After reopening, the transaction may be in the store or
    /// not.
    #[error("outcome unknown: the store failed during the write, which may have taken effect or not")]
    OutcomeUnknown {
        /// The failure.
        #[source]
        cause: EngineError,
    },
    /// A write failed earlier, or this write failed before it was committed. Nothing of this transaction was written,
    /// nor will be.
    #[error("the store is read-only since a write failed; nothing was written; remove the cause, then restart the controller")]
    ReadOnly {
        /// The first failure.
        #[source]
        cause: EngineError,
    },
    /// A read failed.
    #[error("the store could not be read")]
    Read {
        /// The failure.
        #[source]
        cause: EngineError,
    },
    /// A newer program wrote the record that was read.
    #[error("the store cannot be read by this program: {what}")]
    Newer {
        /// What cannot be read, and what to do.
        what: String,
    },
    /// The record that was read is not one that this program could have written.
    #[error("the store is damaged: {what}")]
    Corrupt {
        /// What is wrong.
        what: String,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// Creates the error for a record that cannot be read, because a newer program wrote it or because it is damaged.
    pub fn unreadable(what: String, is_newer: bool) -> Self {
        if is_newer { Self::Newer { what } } else { Self::Corrupt { what } }
    }
}

/// The reason why a watch ended.
#[derive(Debug, Clone, Error)]
pub enum WatchError {
    /// The requested changes are no longer kept. The caller must list again, and watch from the revision of that list.
    #[error("revision {from} was compacted, the oldest that can be watched from is {oldest}")]
    Compacted {
        /// The revision that the watch needs next.
        from: Revision,
        /// The oldest revision that a watch can start from.
        oldest: Revision,
    },
    /// The kept changes could not be read.
    #[error("changes could not be read")]
    Store(#[from] StoreError),
}

/// The reason why a store could not be created or opened. In every case the file is unchanged.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is no file to open.
    #[error(
        "there is no store at {}: for a new fleet create one with `stemma-controller init --data-dir {}`, otherwise {}",
        path.display(), parent_directory(path), restore_advice(path)
    )]
    Missing {
        /// The path that was opened.
        path: PathBuf,
    },
    /// The file has no bytes: a store was there, or its creation was interrupted. It is not treated as a new store.
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
    /// Another process has the file open.
    #[error(
        "the store {} is in use by another process: only one controller can run on it; stop the other one first (`fuser {}` \
         shows which)",
        path.display(), path.display()
    )]
    Locked {
        /// The path of the file.
        path: PathBuf,
    },
    /// A newer program wrote the file.
    #[error(
        "the store {} has schema version {found}{}, this program supports up to version {supported}; it was not changed: \
         run the newer stemma-controller, or {}", path.display(), written_by(program.as_deref()), restore_advice(path)
    )]
    Newer {
        /// The path of the file.
        path: PathBuf,
        /// Its schema version.
        found: u32,
        /// The program that wrote it, if it is recorded.
        program: Option<String>,
        /// The newest schema version that this program supports.
        supported: u32,
    },
    /// The file is not a store, or is damaged.
    #[error("the store {} is damaged and was not changed: {}", path.display(), restore_advice(path))]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        cause: EngineError,
    },
    /// The file could not be accessed.
    #[error("the store {} could not be opened", path.display())]
    Io {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

fn written_by(program: Option<&str>) -> String {
    program.map_or_else(String::new, |program| format!(" (written by {program})"))
}

fn parent_directory(path: &Path) -> String {
    path.parent().unwrap_or(Path::new(".")).display().to_string()
}

fn restore_advice(path: &Path) -> String {
    format!(
        "restore a backup (docs/backup.md) or copy back {} from a copy that was made while the controller was stopped",
        parent_directory(path)
    )
}
