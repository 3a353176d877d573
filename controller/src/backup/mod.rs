//! Backup and restore of a fleet: one file with its store, its keys and the bodies of its files.
//!
//! A backup is read from one snapshot of the store, so it is of one revision, whatever is written meanwhile. A running controller gives it
//! to root on its socket. Where none runs, the store is opened for it. A restored fleet is in another epoch, which waits for
//! `stemma-controller resume-fleet`: hosts that hold what came after the backup must not take the first word of a copy that somebody
//! started by mistake.

mod format;
mod left;
mod restore;
mod write;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use stemma_wire::message::Hash;
use stemma_wire::serve::BoxError;
use tokio::runtime::Handle;
use uuid::Uuid;

pub use format::{BackupError, Head, Part, Reader};
pub(crate) use left::sweep_at_start;
pub use restore::restore;
pub use write::backup;

use crate::ca::{ISSUERS, files};
use crate::init::Layout;
use crate::records::fleet::FleetRecord;
use crate::store::{Identity, KeyRange, PROGRAM, Query, Snapshot};
use format::Encoder;

/// How many bytes of entries are read at once. One of some megabytes is read alone.
const PAGE_BYTES: usize = 64 * 1024;

/// The issuers' keys that a backup lacks, since the service manager keeps them for the controller (systemd.exec(5), Credentials).
struct MissingKeys(Vec<&'static str>);

impl MissingKeys {
    /// All, before a file was seen.
    fn new() -> Self {
        Self(ISSUERS.to_vec())
    }

    /// Takes note of a file that it has.
    fn saw(&mut self, file: &str) {
        let key = file.strip_prefix("trust/").and_then(|name| name.strip_suffix(".key"));
        self.0.retain(|name| key != Some(*name));
    }

    /// What a person has to know of it.
    fn said(&self) -> Option<String> {
        let names: Vec<String> = self.0.iter().map(|name| format!("{name}.key")).collect();
        let names = (!names.is_empty()).then(|| names.join(", "))?;
        Some(format!(
            "IT LACKS {names}, which the service manager keeps (docs/systemd.md): without them the fleet is not started again, so keep a copy \
             of them elsewhere, for the directory trust or the new machine's credentials"
        ))
    }
}

/// What of a backup comes next.
enum Stage {
    Begin(Box<Head>),
    Entries(Encoder, KeyRange),
    Files(Encoder, VecDeque<(String, PathBuf)>),
    Over,
}

/// A backup, piece by piece. It is read on a thread that may block.
struct Pieces {
    snapshot: Box<dyn Snapshot>,
    layout: Layout,
    stage: Stage,
}

/// The pieces of a backup of what a snapshot sees and a data directory holds. Each is read where it is taken: on a thread that may block, of a
/// runtime.
pub(crate) fn pieces(
    identity: &Identity,
    snapshot: Box<dyn Snapshot>,
    layout: Layout,
    at_s: u64,
) -> Result<impl Iterator<Item = Result<Bytes, BoxError>> + Send + use<>, BoxError> {
    let head = Head {
        fleet: FleetRecord::decode(&identity.fleet)?,
        epoch: Uuid::from_bytes(*identity.epoch.as_bytes()),
        base: identity.base.get(),
        revision: snapshot.revision().get(),
        schema: identity.schema,
        program: PROGRAM.to_owned(),
        at_s,
    };
    Ok(Pieces { snapshot, layout, stage: Stage::Begin(Box::new(head)) })
}

impl Iterator for Pieces {
    type Item = Result<Bytes, BoxError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (piece, stage) = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Over => return None,
            Stage::Begin(head) => {
                let (encoder, begun) = Encoder::begin(&head);
                (Ok(begun), Stage::Entries(encoder, KeyRange::prefix("")))
            }
            Stage::Entries(encoder, range) => self.entries(encoder, range),
            Stage::Files(encoder, files) => of_files(encoder, files),
        };
        // After an error nothing follows.
        if piece.is_ok() {
            self.stage = stage;
        }
        Some(piece)
    }
}

impl Pieces {
    fn entries(&self, mut encoder: Encoder, range: KeyRange) -> (Result<Bytes, BoxError>, Stage) {
        let query = Query::range(range.clone()).bytes(PAGE_BYTES);
        let page = match Handle::current().block_on(self.snapshot.list(&query)) {
            Ok(page) => page,
            Err(error) => return (Err(error.into()), Stage::Over),
        };
        let next = page.entries.last().filter(|_| page.more).map(|last| range.after(&last.key));
        let frames: Vec<Bytes> = page.entries.into_iter().map(|entry| encoder.part(&Part::Entry(entry))).collect();
        let piece = frames.concat().into();
        match next {
            Some(range) => (Ok(piece), Stage::Entries(encoder, range)),
            None => match self.files() {
                Ok(files) => (Ok(piece), Stage::Files(encoder, files)),
                Err(error) => (Err(error), Stage::Over),
            },
        }
    }

    /// The files of a data directory that are part of a backup, with their names there. They are listed behind the snapshot: it names no body
    /// that came later.
    fn files(&self) -> Result<VecDeque<(String, PathBuf)>, BoxError> {
        let layout = &self.layout;
        let mut files = VecDeque::from([layout.root()]);
        for directory in [layout.trust(), layout.admin()] {
            files.extend(files::listed(&directory)?.into_iter().filter(|path| path.is_file()));
        }
        // What was set aside there as damaged, or is being written, has no hash as its name.
        let is_body = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<Hash>().ok()).is_some();
        files.extend(files::listed(&layout.blobs())?.into_iter().filter(is_body));
        let name = |path: &Path| {
            let name = path.strip_prefix(layout.directory()).ok()?.to_str()?;
            Some(name.to_owned())
        };
        Ok(files.into_iter().filter_map(|path| Some((name(&path)?, path))).collect())
    }
}

fn of_files(mut encoder: Encoder, mut files: VecDeque<(String, PathBuf)>) -> (Result<Bytes, BoxError>, Stage) {
    let Some((name, path)) = files.pop_front() else { return (Ok(encoder.end()), Stage::Over) };
    match std::fs::read(&path) {
        Ok(bytes) => (Ok(encoder.part(&Part::File { name, bytes: bytes.into() })), Stage::Files(encoder, files)),
        // A body that nothing names any more was dropped meanwhile.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (Ok(Bytes::new()), Stage::Files(encoder, files)),
        Err(error) => (Err(format!("{}: {error}", path.display()).into()), Stage::Over),
    }
}
