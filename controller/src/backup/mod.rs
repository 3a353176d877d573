//! Backup and restore of a fleet. A backup is one file that contains the store, the keys and the file bodies of the
//! fleet.
//!
//! A backup is read from one snapshot of the store, so it has one revision, even if the store is written during the
//! backup. A running controller sends the backup to root through its Unix socket. If no controller runs, the program
//! opens the store itself. A restored fleet has a new epoch, and sends nothing to hosts until an admin runs
//! `stemma-controller resume-fleet`. The reason is that some hosts have a newer state than the backup. If somebody
//! starts a copy of the fleet by mistake, these hosts must not return to an older state.

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

/// Maximum size of the entries in one read from the store, in bytes. An entry that is larger is read by itself.
const PAGE_BYTES: usize = 64 * 1024;

/// The names of the issuers whose private keys a backup lacks: they are not in the data directory, because the service
/// manager stores them for the controller (systemd.exec(5), Credentials). The key of the root is not considered.
struct MissingKeys(Vec<&'static str>);

impl MissingKeys {
    /// Creates the list for a backup of which no file was read yet: the keys of all three issuers are missing.
    fn new() -> Self {
        Self(ISSUERS.to_vec())
    }

    /// Removes a key from the list if the backup's file with this name contains it. Other files have no effect.
    fn mark_present(&mut self, file: &str) {
        let key = file.strip_prefix("trust/").and_then(|name| name.strip_suffix(".key"));
        self.0.retain(|name| key != Some(*name));
    }

    /// Returns a warning that names the missing keys, or `None` if no key is missing.
    fn message(&self) -> Option<String> {
        let names: Vec<String> = self.0.iter().map(|name| format!("{name}.key")).collect();
        let names = (!names.is_empty()).then(|| names.join(", "))?;
        Some(format!(
            "IT LACKS {names}, which the service manager keeps (docs/systemd.md): without them the fleet cannot start again, so keep a copy \
             of them elsewhere, to put into the directory trust or into the credentials of the new machine"
        ))
    }
}

/// The progress of a backup that is created. The variant is the part that comes next.
enum BackupStage {
    Begin(Box<BackupHeader>),
    Entries(Encoder, KeyRange),
    Files(Encoder, VecDeque<(String, PathBuf)>),
    Done,
}

/// An iterator over the bytes of a backup, in pieces. Each call of `next` reads from the store or the disk, and blocks.
struct BackupStream {
    snapshot: Box<dyn Snapshot>,
    layout: Layout,
    stage: BackupStage,
}

/// Returns an iterator over the bytes of a backup of this snapshot and data directory. `at_s` is the present time, in
/// seconds since 1970. Each piece is read when the iterator is advanced. The caller must be on a thread of a Tokio
/// runtime on which blocking is allowed.
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

    /// Returns the next bytes of the backup: first its head, then pages of entries, then files, then the checksum.
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
        // After an error the stage is `Done`, so the stream ends.
        if piece.is_ok() {
            self.stage = stage;
        }
        Some(piece)
    }
}

impl BackupStream {
    /// Reads a page of entries from the start of `range`, and encodes them. Returns the bytes and the next stage: the
    /// rest of the range, or the files if this was the last page.
    fn next_entries(&self, mut encoder: Encoder, range: KeyRange) -> (Result<Bytes, BoxError>, BackupStage) {
        let query = ListQuery::range(range.clone()).with_max_bytes(PAGE_BYTES);
        let page = match Handle::current().block_on(self.snapshot.list(&query)) {
            Ok(page) => page,
            Err(error) => return (Err(error.into()), BackupStage::Done),
        };
        let rest_of_range = page.entries.last().filter(|_| page.has_more).map(|last_entry| range.after(&last_entry.key));
        let frames: Vec<Bytes> = page.entries.into_iter().map(|entry| encoder.encode_part(&BackupPart::Entry(entry))).collect();
        let piece = frames.concat().into();
        match rest_of_range {
            Some(range) => (Ok(piece), BackupStage::Entries(encoder, range)),
            None => match self.list_files() {
                Ok(files) => (Ok(piece), BackupStage::Files(encoder, files)),
                Err(error) => (Err(error), BackupStage::Done),
            },
        }
    }

    /// Lists the files of the data directory that a backup contains, each with its name in the backup. The snapshot was
    /// created before this list. So the list has every file body that the snapshot names, except those that were
    /// deleted since.
    fn list_files(&self) -> Result<VecDeque<(String, PathBuf)>, BoxError> {
        let layout = &self.layout;
        let mut files = VecDeque::from([layout.root()]);
        for directory in [layout.trust(), layout.admin()] {
            files.extend(files::list_directory(&directory)?.into_iter().filter(|path| path.is_file()));
        }
        // Only a complete file body has a hash as its name. Damaged files that were set aside and unfinished files have
        // other names.
        let is_body = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<Hash>().ok()).is_some();
        files.extend(files::list_directory(&layout.blobs())?.into_iter().filter(is_body));
        let name = |path: &Path| {
            let name = path.strip_prefix(layout.directory()).ok()?.to_str()?;
            Some(name.to_owned())
        };
        Ok(files.into_iter().filter_map(|path| Some((name(&path)?, path))).collect())
    }
}

/// Reads and encodes the next file, or encodes the checksum if there are no more files. Returns the bytes and the next
/// stage.
fn next_file(mut encoder: Encoder, mut files: VecDeque<(String, PathBuf)>) -> (Result<Bytes, BoxError>, BackupStage) {
    let Some((name, path)) = files.pop_front() else { return (Ok(encoder.encode_end()), BackupStage::Done) };
    match std::fs::read(&path) {
        Ok(data) => (Ok(encoder.encode_part(&BackupPart::File { name, bytes: data.into() })), BackupStage::Files(encoder, files)),
        // The file body was deleted during the backup, because no object refers to it any longer.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (Ok(Bytes::new()), BackupStage::Files(encoder, files)),
        Err(error) => (Err(format!("{}: {error}", path.display()).into()), BackupStage::Done),
    }
}
