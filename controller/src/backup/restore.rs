//! `stemma-controller restore FILE`.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use stemma_core::epoch::EpochLine;
use uuid::Uuid;

use super::{Head, Part, Reader};
use crate::args::Restore;
use crate::ca::files;
use crate::init::Layout;
use crate::records::{codec, key};
use crate::store::{CreateOptions, Entry, Epoch, RedbStore, Revision};

/// The restored store goes on so far behind the revision of the backup: what clients have read of the lost store, they have read at none of
/// the revisions to come, and a precondition of theirs fails.
const SKIPPED: u64 = 1_000_000;

/// Entries that are not restored: join tokens, of which used ones would be good again, and what became of requests, which may be others
/// than those of the lost store.
const LEFT_OUT: [&str; 2] = [key::TOKENS, key::REQUESTS];

/// Makes a fleet of a backup, in a data directory that holds none.
///
/// # Errors
/// Nothing is left in the directory that was not there, but where it could not be taken away again.
pub fn restore(args: &Restore) -> Result<()> {
    let directory = args.place.data_dir()?;
    let layout = Layout::new(&directory);
    check_empty(&layout)?;
    let (head, line) = check(&args.file)?;
    files::make_directory(layout.directory())?;
    let owner = std::fs::metadata(layout.directory())?;
    let owner = (owner.uid(), owner.gid());
    let making = tempfile::Builder::new().prefix(".restoring-").tempdir_in(layout.directory())?;
    std::fs::set_permissions(making.path(), std::fs::Permissions::from_mode(0o700))?;
    let made = Layout::new(making.path());
    fill(&args.file, &made, &head, line)?;
    own(making.path(), owner)?;
    // The store comes last: without it there is no fleet to start.
    for path in [made.blobs(), made.root(), made.admin(), made.trust(), made.store()] {
        let name = path.file_name().context("a path of the layout has a name")?;
        if path.exists() {
            std::fs::rename(&path, layout.directory().join(name)).with_context(|| path.display().to_string())?;
        }
    }
    File::open(layout.directory())?.sync_all()?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "fleet {} restored in {}, as of revision {}, read {} seconds after 1970",
        head.fleet.fleet,
        directory.display(),
        head.revision,
        head.at_s
    )?;
    writeln!(
        out,
        "what was written after that is lost; what was revoked after that is good again; join tokens are ended"
    )?;
    writeln!(
        out,
        "start it, look at it, then lead its hosts here: stemma-controller resume-fleet --data-dir {}",
        directory.display()
    )?;
    Ok(())
}

/// Refuses a directory that holds a fleet, or a part of one.
fn check_empty(layout: &Layout) -> Result<()> {
    let found = if layout.store().exists() { Some(layout.store()) } else { layout.authority()? };
    if let Some(found) = found {
        bail!(
            "{}: there is a fleet here, or what is left of one ({} is there); nothing was changed: give another --data-dir, or move it away",
            layout.directory().display(),
            found.display()
        );
    }
    Ok(())
}

/// Reads the whole file, and gives what it is of and its epochs.
fn check(path: &Path) -> Result<(Head, EpochLine)> {
    let (mut reader, head) = open(path)?;
    let mut line = EpochLine::first(head.epoch);
    while let Some(part) = reader.next().with_context(|| refused(path))? {
        if let Part::Entry(entry) = part
            && entry.key == key::EPOCH_LINE.as_bytes()
        {
            line = codec::decode(&entry.value).with_context(|| refused(path))?;
        }
    }
    Ok((head, line))
}

fn open(path: &Path) -> Result<(Reader<BufReader<File>>, Head)> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    Reader::begin(BufReader::new(file)).with_context(|| refused(path))
}

fn refused(path: &Path) -> String {
    format!("{}: it is not restored, and nothing was changed", path.display())
}

/// Writes the files of a backup, and a store of its entries, in another epoch that waits.
fn fill(path: &Path, made: &Layout, head: &Head, line: EpochLine) -> Result<()> {
    let revision = head.revision.saturating_add(SKIPPED);
    let epoch = Uuid::from_bytes(crate::ca::random().map_err(|_| anyhow::anyhow!("the system gave no random bytes"))?);
    let line = line.restored(epoch, revision, &format!("restored from a backup of revision {}", head.revision));
    for directory in [made.trust(), made.admin(), made.blobs()] {
        files::make_directory(&directory)?;
    }
    let (mut reader, _) = open(path)?;
    let mut files = Vec::new();
    let mut entries = std::iter::from_fn(|| {
        loop {
            match reader.next() {
                Ok(Some(Part::Entry(entry))) if is_restored(&entry) => return Some(Ok(entry)),
                Ok(Some(Part::Entry(_))) => {}
                Ok(Some(Part::File { name, bytes })) => {
                    if let Err(error) = write_file(made, &name, &bytes) {
                        return Some(Err(error));
                    }
                    files.push(name);
                }
                Ok(None) => return None,
                Err(error) => return Some(Err(io::Error::other(error))),
            }
        }
    });
    let create = CreateOptions {
        epoch: Epoch::new(*head.epoch.as_bytes()),
        base: Revision::new(head.base),
        fleet: serde_json::to_vec(&head.fleet)?.into(),
    };
    let own = Entry {
        key: key::EPOCH_LINE.into(),
        value: codec::encode(&line),
        create_revision: Revision::new(revision),
        mod_revision: Revision::new(revision),
        version: 1,
    };
    let mut all = entries.by_ref().chain(std::iter::once(Ok(own)));
    RedbStore::import(&made.store(), &create, Revision::new(revision), &mut all)?;
    Ok(())
}

fn is_restored(entry: &Entry) -> bool {
    entry.key != key::EPOCH_LINE.as_bytes() && !LEFT_OUT.iter().any(|prefix| entry.key.starts_with(prefix.as_bytes()))
}

/// Writes a file of a backup, where it is one of those that belong to a fleet.
fn write_file(made: &Layout, name: &str, bytes: &Bytes) -> io::Result<()> {
    let path = made.directory().join(name);
    let homes = [made.trust(), made.admin(), made.blobs()];
    let is_known = path == made.root() || path.parent().is_some_and(|parent| homes.iter().any(|home| home == parent));
    if !is_known {
        return Err(io::Error::other(format!("{name}: no file of a fleet is called so")));
    }
    let is_open = path == made.root() || path.extension().is_some_and(|extension| extension != "key");
    let holds = if is_open && !path.starts_with(made.blobs()) { files::Holds::Settings } else { files::Holds::Secret };
    files::write(&path, holds, bytes).map_err(io::Error::other)
}

/// Gives all below a directory to its owner: root restores what a service runs.
fn own(path: &Path, owner: (u32, u32)) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let mut open: Vec<PathBuf> = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        chown(&path, Some(owner.0), Some(owner.1))?;
        if path.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                open.push(entry?.path());
            }
        }
    }
    Ok(())
}
