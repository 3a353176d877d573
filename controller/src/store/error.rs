//! What can go wrong with a store, each with what its caller may conclude: above all whether something was written.

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use super::entry::Revision;
use super::transaction::{Refusal, Unmet};

/// An engine's own error, shared by all whom it befell.
pub type Cause = Arc<dyn StdError + Send + Sync>;

/// Why a store was not read or not written.
#[derive(Debug, Clone, Error)]
pub enum StoreError {
    /// The transaction's shape was refused; nothing was written.
    #[error("transaction refused")]
    Refused(#[from] Refusal),
    /// Something that the transaction builds on is not so; nothing was written.
    #[error("{0}")]
    PreconditionFailed(Unmet),
    /// The engine failed while making the transaction durable: it may be there after reopening, or not.
    #[error("outcome unknown: the store failed while writing, what was asked may have been done or not")]
    OutcomeUnknown {
        /// The failure.
        #[source]
        cause: Cause,
    },
    /// A write failed earlier, or this one did before its end; nothing of this transaction was written, nor will be.
    #[error(
        "the store is read-only since a write failed; nothing was written; restart the controller once the cause is gone"
    )]
    ReadOnly {
        /// The first failure.
        #[source]
        cause: Cause,
    },
    /// A read failed.
    #[error("the store could not be read")]
    Read {
        /// The failure.
        #[source]
        cause: Cause,
    },
    /// What was read is of a later program.
    #[error("the store cannot be read by this program: {what}")]
    Newer {
        /// What, and what to do.
        what: String,
    },
    /// What was read is not what was written.
    #[error("the store is damaged: {what}")]
    Corrupt {
        /// What does not fit.
        what: String,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// For a record that can't be read: of a later program, or damaged.
    pub fn unreadable(what: String, is_newer: bool) -> Self {
        if is_newer { Self::Newer { what } } else { Self::Corrupt { what } }
    }
}

/// Why a watch ended.
#[derive(Debug, Clone, Error)]
pub enum WatchError {
    /// The changes asked for are no longer kept: list again and watch from there.
    #[error("revision {from} was compacted, the oldest that can be watched from is {oldest}")]
    Compacted {
        /// Where the watch stood.
        from: Revision,
        /// Where one can stand.
        oldest: Revision,
    },
    /// The kept changes could not be read.
    #[error("changes could not be read")]
    Store(#[from] StoreError),
}

/// Why a store was not created or not opened. Whatever it is, the file is as it was.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is no file to open.
    #[error(
        "there is no store at {}: for a new fleet make one with `stemma-controller init --data-dir {}`, else {}",
        path.display(), directory(path), restore(path)
    )]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The file has no bytes: a store was there, or its making was cut short. It is not taken for a new one.
    #[error("the store {} is empty (0 bytes) and opening it does not make a new one: {}", path.display(), restore(path))]
    Empty {
        /// Which file.
        path: PathBuf,
    },
    /// One is there already; creating never overwrites.
    #[error("there is a store at {} already; it was left as it is", path.display())]
    Exists {
        /// Which file.
        path: PathBuf,
    },
    /// Another process has it open.
    #[error(
        "the store {} is held by another process: one controller at a time may run on it; stop the other one first (`fuser {}` \
         shows which)",
        path.display(), path.display()
    )]
    Locked {
        /// Which file.
        path: PathBuf,
    },
    /// A later program wrote it.
    #[error(
        "the store {} has schema version {found}{}, this program knows up to version {supported}; it was left untouched: \
         run the newer stemma-controller, or {}", path.display(), written_by(program.as_deref()), restore(path)
    )]
    Newer {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The program that wrote it, where it says so.
        program: Option<String>,
        /// The latest that is known here.
        supported: u32,
    },
    /// The file is no store, or no longer.
    #[error("the store {} is damaged and was left as it is: {}", path.display(), restore(path))]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What was found.
        #[source]
        cause: Cause,
    },
    /// The file could not be reached.
    #[error("the store {} could not be opened", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

fn written_by(program: Option<&str>) -> String {
    program.map_or_else(String::new, |program| format!(" (written by {program})"))
}

fn directory(path: &Path) -> String {
    path.parent().unwrap_or(Path::new(".")).display().to_string()
}

fn restore(path: &Path) -> String {
    format!(
        "restore a backup (docs/backup.md) or put back a copy of {} that was made while the controller was stopped",
        directory(path)
    )
}
