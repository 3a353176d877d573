//! Backup and restore of a fleet: one file with its store, its keys and the bodies of its files.
//!
//! A backup is read from one snapshot of the store, so it has one revision, whatever is written during the backup. A
//! running controller sends it to root on its socket. If none runs, the program opens the store itself. A restored
//! fleet has a new epoch and sends nothing to hosts until an admin runs `stemma-controller resume-fleet`. Some hosts
//! have state that is newer than the backup, and must not fall back to an older state because somebody started a copy
//! of the fleet by mistake.

mod format;
mod leftovers;
mod restore;
mod write;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use stemma_wire::message::Hash;
use stemma_wire::serve::BoxError;
use tokio::runtime::Handle;
use uuid::Uuid;

pub use format::{BackupError, BackupHeader, BackupPart, BackupReader};
pub(crate) use leftovers::sweep_at_start;
pub use restore::restore;
pub use write::backup;

use crate::ca::{ISSUERS, files};
use crate::init::Layout;
use crate::records::fleet::FleetRecord;
use crate::store::{KeyRange, ListQuery, PROGRAM_VERSION, Snapshot, StoreIdentity};
use format::Encoder;

/// Maximum size of the entries in one read, in bytes. A larger entry is read alone.
const PAGE_BYTES: usize = 64 * 1024;

/// The issuers' keys that a backup lacks because the service manager keeps them for the controller (systemd.exec(5),
/// Credentials).
struct MissingKeys(Vec<&'static str>);

impl MissingKeys {
    /// Starts with all keys missing.
    fn new() -> Self {
        Self(ISSUERS.to_vec())
    }

    /// Records that the backup contains a file. If the file is the key of an issuer, that key is not missing.
    fn record(&mut self, file: &str) {
        let key = file.strip_prefix("trust/").and_then(|name| name.strip_suffix(".key"));
        self.0.retain(|name| key != Some(*name));
    }

    /// Returns a warning for the user, or `None` if no key is missing.
    fn message(&self) -> Option<String> {
        let names: Vec<String> = self.0.iter().map(|name| format!("{name}.key")).collect();
        let names = (!names.is_empty()).then(|| names.join(", "))?;
        Some(format!(
            "IT LACKS {names}, which the service manager keeps (docs/systemd.md): without them the fleet cannot start again, so keep a copy \
             of them elsewhere, to put into the directory trust or into the credentials of the new machine"
        ))
    }
}

/// How far a backup was read: what the next piece contains.
enum BackupStage {
    Begin(Box<BackupHeader>),
    Entries(Encoder, KeyRange),
    Files(Encoder, VecDeque<(String, PathBuf)>),
    Done,
}

/// An iterator over the bytes of a backup. Reading it blocks.
struct BackupStream {
    snapshot: Box<dyn Snapshot>,
    layout: Layout,
    stage: BackupStage,
}

/// Returns the bytes of a backup of a snapshot and a data directory, in pieces. Each piece is read when it is
/// requested. The caller must be on a blocking thread of a runtime.
pub(crate) fn stream(
    identity: &StoreIdentity,
    snapshot: Box<dyn Snapshot>,
    layout: Layout,
    at_s: u64,
) -> Result<impl Iterator<Item = Result<Bytes, BoxError>> + Send + use<>, BoxError> {
    let head = BackupHeader {
        fleet: FleetRecord::decode(&identity.fleet)?,
        epoch: Uuid::from_bytes(*identity.epoch.as_bytes()),
        base: identity.base.get(),
        revision: snapshot.revision().get(),
        schema: identity.schema,
        program: PROGRAM_VERSION.to_owned(),
        at_s,
    };
    Ok(BackupStream { snapshot, layout, stage: BackupStage::Begin(Box::new(head)) })
}

impl Iterator for BackupStream {
    type Item = Result<Bytes, BoxError>;

    /// Returns the next bytes of the backup: its beginning, then pages of entries, then files, then its end.
    fn next(&mut self) -> Option<Self::Item> {
        let (piece, stage) = match std::mem::replace(&mut self.stage, BackupStage::Done) {
            BackupStage::Done => return None,
            BackupStage::Begin(head) => {
                let (encoder, bytes) = Encoder::begin(&head);
                (Ok(bytes), BackupStage::Entries(encoder, KeyRange::prefix("")))
            }
            BackupStage::Entries(encoder, range) => self.next_entries(encoder, range),
            BackupStage::Files(encoder, files) => next_file(encoder, files),
        };
        // The stream ends after an error.
        if piece.is_ok() {
            self.stage = stage;
        }
        Some(piece)
    }
}

impl BackupStream {
    /// Reads a page of entries from the start of `range`, and encodes them. Returns the bytes, and the stage that
    /// follows: the rest of the range, or the files.
    fn next_entries(&self, mut encoder: Encoder, range: KeyRange) -> (Result<Bytes, BoxError>, BackupStage) {
        let query = ListQuery::range(range.clone()).with_max_bytes(PAGE_BYTES);
        let page = match Handle::current().block_on(self.snapshot.list(&query)) {
            Ok(page) => page,
            Err(error) => return (Err(error.into()), BackupStage::Done),
        };
        let next = page.entries.last().filter(|_| page.has_more).map(|last| range.after(&last.key));
        let frames: Vec<Bytes> = page.entries.into_iter().map(|entry| encoder.part(&BackupPart::Entry(entry))).collect();
        let piece = frames.concat().into();
        match next {
            Some(range) => (Ok(piece), BackupStage::Entries(encoder, range)),
            None => match self.list_files() {
                Ok(files) => (Ok(piece), BackupStage::Files(encoder, files)),
                Err(error) => (Err(error), BackupStage::Done),
            },
        }
    }

    /// Lists the files of the data directory that belong to a backup, with their names in the backup. The list is made
    /// after the snapshot was taken, so it has every body that the snapshot names, except those deleted since.
    fn list_files(&self) -> Result<VecDeque<(String, PathBuf)>, BoxError> {
        let layout = &self.layout;
        let mut files = VecDeque::from([layout.root()]);
        for directory in [layout.trust(), layout.admin()] {
            files.extend(files::list_directory(&directory)?.into_iter().filter(|path| path.is_file()));
        }
        // Files that were set aside as damaged, or are still being written, do not have a hash as their name.
        let is_body = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<Hash>().ok()).is_some();
        files.extend(files::list_directory(&layout.blobs())?.into_iter().filter(is_body));
        let name = |path: &Path| {
            let name = path.strip_prefix(layout.directory()).ok()?.to_str()?;
            Some(name.to_owned())
        };
        Ok(files.into_iter().filter_map(|path| Some((name(&path)?, path))).collect())
    }
}

/// Reads and encodes the next file, or encodes the end of the backup after the last file.
fn next_file(mut encoder: Encoder, mut files: VecDeque<(String, PathBuf)>) -> (Result<Bytes, BoxError>, BackupStage) {
    let Some((name, path)) = files.pop_front() else { return (Ok(encoder.end()), BackupStage::Done) };
    match std::fs::read(&path) {
        Ok(bytes) => (Ok(encoder.part(&BackupPart::File { name, bytes: bytes.into() })), BackupStage::Files(encoder, files)),
        // A body that nothing refers to any more was deleted during the backup.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (Ok(Bytes::new()), BackupStage::Files(encoder, files)),
        Err(error) => (Err(format!("{}: {error}", path.display()).into()), BackupStage::Done),
    }
}
