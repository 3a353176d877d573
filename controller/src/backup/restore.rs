//! `stemma-controller restore FILE`: creates a fleet from a backup.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, Write};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use stemma_core::epoch::EpochHistory;
use stemma_wire::message::{Hash, hash_content};

use super::{BackupHeader, BackupPart, BackupReader, MissingKeys, leftovers};
use crate::age::{AgeIdentity, DecryptReader, MAGIC};
use crate::args::RestoreArgs;
use crate::ca::files;
use crate::init::Layout;
use crate::records::{codec, key};
use crate::store::{CreateOptions, Entry, Epoch, RedbStore, Revision};

/// Number of revisions that a restored store skips after the revision of the backup. So no revision after the backup
/// occurs in both the lost and the restored store, and a write that relies on a read of the lost store is refused.
const SKIPPED_REVISIONS: u64 = 1_000_000;

/// Prefixes of the entries that are not restored: join tokens, because tokens that were used after the backup would
/// become valid again, and records of requests, whose responses are about the lost store.
const EXCLUDED_PREFIXES: [&str; 2] = [key::TOKENS, key::REQUESTS];

/// Creates a fleet from a backup, in a data directory without one. If another user owns that directory, the program
/// continues as that user after it has opened the file and read the keys.
///
/// # Errors
/// After an error, the directory contains no new files, except those that could not be removed. The error names them.
pub fn restore(args: &RestoreArgs) -> Result<()> {
    let directory = args.place.data_dir()?;
    let layout = Layout::new(&directory);
    // The lock is held to the end, so that two restores cannot run at once and the checked directory stays unchanged.
    let lock = directory.exists().then(|| files::lock_directory(&directory)).transpose()?;
    check_empty(&layout)?;
    let backup = BackupFile::from_args(args)?;
    if lock.is_some() {
        become_owner(&directory).with_context(|| format!("{}: nothing was changed", directory.display()))?;
    }
    let checked = backup.check()?;
    files::make_directory(layout.directory()).context("nothing was restored")?;
    let lock = lock.map_or_else(|| files::lock_directory(layout.directory()), Ok)?;
    check_empty(&layout)?;
    leftovers::print_all(&leftovers::sweep_restores(layout.directory(), &lock));
    let damaged = create_fleet(&backup, &layout, &checked)?;
    let synced = File::open(layout.directory()).and_then(|directory| directory.sync_all());
    synced.with_context(|| format!("{}: the fleet is restored, but may not be durable on the disk yet", directory.display()))?;
    // The fleet is restored even if nobody reads this output.
    let _ignored = print_restored(args, &directory, &checked, damaged);
    Ok(())
}

/// Prints what was restored and what to do next.
fn print_restored(
    args: &RestoreArgs,
    directory: &Path,
    CheckedBackup { head, missing, .. }: &CheckedBackup,
    damaged: usize,
) -> io::Result<()> {
    let (mut out, shown) = (io::stdout().lock(), directory.display());
    let (fleet, revision, at) = (&head.fleet.fleet, head.revision, format_time(head.at_s));
    writeln!(out, "fleet {fleet} restored in {shown}, at revision {revision}, backed up at {at}")?;
    writeln!(out, "later writes are lost; what was revoked later is valid again; join tokens are not restored")?;
    if damaged > 0 {
        writeln!(out, "{damaged} file bodies were already damaged in the backup: apply their manifests again")?;
    }
    if let Some(warning) = missing.message() {
        writeln!(out, "{warning}")?;
    }
    let place = args.place.to_flags();
    writeln!(out, "start the controller, check the fleet, then let its hosts follow it: stemma-controller resume-fleet{place}")?;
    Ok(())
}

/// If this program runs as root, continues as the owner of the directory. A service of that user will run the restored
/// fleet, and root must not follow links in a directory that another user owns.
fn become_owner(directory: &Path) -> io::Result<()> {
    let owner = std::fs::metadata(directory)?;
    if !rustix::process::geteuid().is_root() || owner.uid() == 0 {
        return Ok(());
    }
    // No other thread exists yet, and later threads inherit this user.
    set_thread_groups(&[])?;
    set_thread_gid(Gid::from_raw(owner.gid()))?;
    Ok(set_thread_uid(Uid::from_raw(owner.uid()))?)
}

/// Checks that a directory contains neither a fleet nor a part of one.
fn check_empty(layout: &Layout) -> Result<()> {
    let found = if layout.store().exists() { Some(layout.store()) } else { layout.authority()? };
    if let Some(found) = found {
        bail!(
            "{}: the directory contains a fleet or a part of one ({}); nothing was changed: give another --data-dir, or move it away",
            layout.directory().display(),
            found.display()
        );
    }
    Ok(())
}

/// The result of reading a backup to its end.
struct CheckedBackup {
    head: BackupHeader,
    line: EpochHistory,
    missing: MissingKeys,
}

/// The first bytes of an armored age file.
const ARMOR: &[u8] = b"-----BEGIN AGE ENCRYPTED FILE-----";

/// The file of a backup, and the keys to decrypt it.
struct BackupFile<'a> {
    path: &'a Path,
    file: File,
    /// Empty if the file is not encrypted.
    identities: Vec<AgeIdentity>,
}

impl<'a> BackupFile<'a> {
    /// Opens the file, finds out whether it is encrypted, and reads the keys.
    fn from_args(args: &'a RestoreArgs) -> Result<Self> {
        let (path, shown) = (&*args.file, args.file.display());
        check_kind(path)?;
        let file = File::open(path).with_context(|| refused_message(path))?;
        let mut begin = [0; MAGIC.len()];
        // A shorter file is not a backup. The error is returned when it is read.
        let is_encrypted = file.read_exact_at(&mut begin, 0).is_ok() && begin == *MAGIC;
        let mut armor = [0; ARMOR.len()];
        if file.read_exact_at(&mut armor, 0).is_ok() && armor == *ARMOR {
            bail!(
                "{shown} is an armored age file, which is not supported; nothing was changed: run age -d -i KEYFILE -o PLAIN {shown}, \
                 and restore PLAIN"
            );
        }
        let identities = match (&args.identity, is_encrypted) {
            (None, false) => Vec::new(),
            (Some(_), false) => bail!("{shown} is not encrypted: omit --identity; nothing was changed"),
            (None, true) => bail!(
                "{shown} is encrypted; nothing was changed: run stemma-controller restore {shown}{} --identity KEYFILE, with a file of \
                 age-keygen that contains the secret key of one of its recipients (backup_recipients)",
                args.place.to_flags()
            ),
            (Some(keys), true) => {
                let advice = "give a file with the key that no other user can read, not a pipe";
                let text = files::read(keys, files::FileSensitivity::Secret)
                    .with_context(|| format!("--identity {}: nothing was changed: {advice}", keys.display()))?;
                let read = AgeIdentity::read_all(&text);
                read.with_context(|| format!("--identity {}: nothing was changed", keys.display()))?
            }
        };
        Ok(Self { path, file, identities })
    }

    /// Starts to read the backup from its beginning.
    fn open(&self) -> Result<(BackupReader<Box<dyn Read + '_>>, BackupHeader)> {
        let mut file = &self.file;
        file.rewind().with_context(|| refused_message(self.path))?;
        let file = BufReader::new(file);
        let text: Box<dyn Read + '_> = if self.identities.is_empty() {
            Box::new(file)
        } else {
            Box::new(DecryptReader::begin(file, &self.identities).with_context(|| refused_message(self.path))?)
        };
        BackupReader::begin(text).with_context(|| refused_message(self.path))
    }

    /// Reads the whole backup and verifies it.
    fn check(&self) -> Result<CheckedBackup> {
        let (mut reader, head) = self.open()?;
        let mut line = EpochHistory::new(head.epoch);
        let mut missing = MissingKeys::new();
        while let Some(part) = reader.next_part().with_context(|| refused_message(self.path))? {
            match part {
                BackupPart::Entry(entry) if entry.key == key::EPOCH_LINE.as_bytes() => {
                    line = codec::decode(&entry.value).with_context(|| refused_message(self.path))?;
                }
                BackupPart::Entry(_) => {}
                BackupPart::File { name, .. } => missing.record(&name),
            }
        }
        Ok(CheckedBackup { head, line, missing })
    }
}

/// Checks that the path is a regular file, because a restore reads the backup twice: first to its end to check it,
/// before anything is created, and then to copy it.
fn check_kind(path: &Path) -> Result<()> {
    let shown = path.display();
    if path.as_os_str() == "-" {
        bail!(
            "-: a backup cannot be read from standard input, because it is read twice; nothing was changed: write it to a file \
             first (cat > FILE), and restore FILE; or give ./- if that is the name of the file"
        );
    }
    let kind = std::fs::metadata(path).with_context(|| refused_message(path))?.file_type();
    if kind.is_dir() {
        bail!("{shown} is a directory; nothing was changed: give the file in it that `stemma-controller backup` wrote");
    }
    if !kind.is_file() {
        bail!(
            "{shown} is a pipe or a device, and a backup is read twice, which needs a regular file; nothing was changed: \
             write it to a file first (cat {shown} > FILE), and restore FILE"
        );
    }
    Ok(())
}

/// Formats a time for the user.
fn format_time(at_s: u64) -> String {
    let spelled = at_s.checked_mul(1000).and_then(stemma_core::time::format);
    spelled.unwrap_or_else(|| format!("{at_s} seconds after 1970"))
}

fn refused_message(path: &Path) -> String {
    format!("{}: not restored; nothing was changed", path.display())
}

/// Creates the fleet of a backup in a locked directory. Returns the number of bodies that were left out because they
/// are damaged.
fn create_fleet(backup: &BackupFile<'_>, layout: &Layout, checked: &CheckedBackup) -> Result<usize> {
    let shown = layout.directory().display();
    let bytes = backup.file.metadata().map_or(0, |file| file.len());
    let failed = |outcome: &str| {
        format!(
            "{shown}: the fleet of {} could not be created there, and {outcome}; the reason follows: if the disk is full, free space for the \
             fleet (its backup has {bytes} bytes, and the fleet needs more), or give another --data-dir, and run restore again",
            backup.path.display()
        )
    };
    let temporary = tempfile::Builder::new().prefix(leftovers::RESTORE_PREFIX).tempdir_in(layout.directory());
    let new_directory = temporary.with_context(|| failed("nothing was changed"))?;
    let new_layout = Layout::new(new_directory.path());
    let filled = write_fleet(backup, &new_layout, checked).map_err(|error| PlaceError { error, remaining: Vec::new() });
    let placed = filled.and_then(|damaged| move_into_place(&new_layout, layout).map(|()| damaged));
    placed.map_err(|PlaceError { error, mut remaining }| {
        if let Err(refused) = new_directory.close() {
            remaining.push(format!("{} could not be removed ({refused})", new_layout.directory().display()));
        }
        error.context(failed(&remaining_message(&remaining)))
    })
}

/// The reason why the new fleet could not be written or moved to its place.
#[derive(Debug)]
struct PlaceError {
    error: anyhow::Error,
    /// The files that were moved to the data directory and could not be moved back, one sentence each.
    remaining: Vec<String>,
}

/// Describes what a failed restore has changed.
fn remaining_message(remaining: &[String]) -> String {
    if remaining.is_empty() {
        return "nothing was changed".to_owned();
    }
    format!("no fleet is there, but {}: it may contain keys of the fleet, so remove it", remaining.join(", and "))
}

/// Moves all parts of the new fleet to their places. If one move fails, moves the others back. The store is moved last,
/// because without it there is no fleet to start.
fn move_into_place(from: &Layout, to: &Layout) -> Result<(), PlaceError> {
    let mut moves: Vec<(PathBuf, PathBuf)> = Vec::new();
    for path in [from.blobs(), from.admin(), from.trust(), from.root(), from.store()] {
        let Some(name) = path.file_name().filter(|_| path.exists()) else { continue };
        let target = to.directory().join(name);
        if let Err(error) = std::fs::rename(&path, &target) {
            let error = anyhow::Error::new(error).context(format!("{}: move away what is there", target.display()));
            return Err(PlaceError { error, remaining: move_back(&moves) });
        }
        moves.push((path, target));
    }
    Ok(())
}

/// Moves files back to where they were created, the last one first. Returns those that could not be moved back, one
/// sentence each.
fn move_back(moves: &[(PathBuf, PathBuf)]) -> Vec<String> {
    let failed_move = |(path, target): &(PathBuf, PathBuf)| {
        let error = std::fs::rename(target, path).err()?;
        Some(format!("{} is still there, because it could not be moved back ({error})", target.display()))
    };
    moves.iter().rev().filter_map(failed_move).collect()
}

/// Writes the files of a backup, and a store with the backup's entries. The store gets a new epoch, in which nothing is
/// sent to hosts until an admin resumes the fleet. Returns the number of bodies that were left out because they are
/// damaged.
fn write_fleet(backup: &BackupFile<'_>, layout: &Layout, CheckedBackup { head, line, .. }: &CheckedBackup) -> Result<usize> {
    let revision = head.revision.saturating_add(SKIPPED_REVISIONS);
    let random: [u8; 10] = crate::ca::random_bytes().map_err(|_| anyhow::anyhow!("the system returned no random bytes"))?;
    // The id of the epoch contains a time. It must be later than the backup, even if the clock of this machine is
    // behind.
    let now_ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
    let epoch = line.next_id(now_ms.max(head.at_s.saturating_mul(1000)), &random, []);
    let line = line.with_restore(epoch, revision, &format!("restored from a backup of revision {}", head.revision));
    std::fs::set_permissions(layout.directory(), std::fs::Permissions::from_mode(0o700))?;
    for directory in [layout.trust(), layout.admin(), layout.blobs()] {
        files::make_directory(&directory)?;
    }
    let (mut reader, _) = backup.open()?;
    let mut damaged = 0;
    let entries = std::iter::from_fn(|| {
        loop {
            match reader.next_part() {
                Ok(Some(BackupPart::Entry(entry))) if is_restored(&entry) => return Some(Ok(entry)),
                Ok(Some(BackupPart::Entry(_))) => {}
                Ok(Some(BackupPart::File { name, bytes })) => match write_file(layout, &name, &bytes) {
                    Ok(is_sound) => damaged += usize::from(!is_sound),
                    Err(error) => return Some(Err(error)),
                },
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
    let epoch_entry = Entry {
        key: key::EPOCH_LINE.into(),
        value: codec::encode(&line),
        create_revision: Revision::new(revision),
        mod_revision: Revision::new(revision),
        version: 1,
    };
    let mut all_entries = entries.chain(std::iter::once(Ok(epoch_entry)));
    RedbStore::import(&layout.store(), &create, Revision::new(revision), &mut all_entries)?;
    drop(all_entries);
    Ok(damaged)
}

/// Returns whether a restore copies an entry. The history of epochs is not copied, because the restored store gets its
/// own, with a new epoch.
fn is_restored(entry: &Entry) -> bool {
    entry.key != key::EPOCH_LINE.as_bytes() && !EXCLUDED_PREFIXES.iter().any(|prefix| entry.key.starts_with(prefix.as_bytes()))
}

/// Writes one file of a backup. Returns false if it is a body that does not match the hash in its name. Fails if no
/// file of a fleet has this name.
fn write_file(layout: &Layout, name: &str, bytes: &Bytes) -> io::Result<bool> {
    let unknown_file = || io::Error::other(format!("{name}: no file of a fleet has this name"));
    let path = layout.directory().join(name);
    let is_in = |directory: &Path| path.parent() == Some(directory);
    let is_body = is_in(&layout.blobs());
    if is_body {
        let hash: Hash = path.file_name().and_then(|name| name.to_str()?.parse().ok()).ok_or_else(unknown_file)?;
        if hash_content(bytes) != hash {
            return Ok(false);
        }
    } else if path != layout.root() && !is_in(&layout.trust()) && !is_in(&layout.admin()) {
        return Err(unknown_file());
    }
    let is_key = path.extension().is_some_and(|extension| extension == "key");
    let is_public = path == layout.root() || is_in(&layout.trust()) && !is_key;
    let sensitivity = if is_public { files::FileSensitivity::Settings } else { files::FileSensitivity::Secret };
    files::write(&path, sensitivity, bytes).map_err(io::Error::other)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x02_move_into_place_moves_nothing_when_one_move_fails() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let (made, layout) = (Layout::new(&at("made")), Layout::new(&at("data")));
        for path in [made.blobs(), made.admin(), made.trust(), layout.trust()] {
            std::fs::create_dir_all(path).unwrap();
        }
        for path in [made.root(), made.store(), made.trust().join("root.key"), layout.root()] {
            std::fs::write(path, "made").unwrap();
        }
        std::fs::write(layout.trust().join("of-another"), "").unwrap();
        std::fs::write(layout.root(), "stood there").unwrap();
        let refused = move_into_place(&made, &layout).unwrap_err();
        assert_eq!(refused.error.to_string(), format!("{}: move away what is there", layout.trust().display()));
        assert_eq!(remaining_message(&refused.remaining), "nothing was changed");
        assert_eq!(files::list_directory(layout.directory()).unwrap(), [layout.root(), layout.trust()]);
        assert_eq!(std::fs::read_to_string(layout.root()).unwrap(), "stood there");
        std::fs::remove_file(layout.trust().join("of-another")).unwrap();
        move_into_place(&made, &layout).unwrap();
        assert_eq!(std::fs::read_to_string(layout.root()).unwrap(), "made");
        assert!(layout.store().exists() && files::list_directory(made.directory()).unwrap().is_empty());
    }

    #[test]
    fn x02_move_back_names_file_when_move_fails() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        // A directory with content is already where `blobs` was created.
        for path in ["made/blobs/of-another", "data/blobs", "data/admin"] {
            std::fs::create_dir_all(at(path)).unwrap();
        }
        let stays = move_back(&[(at("made/blobs"), at("data/blobs")), (at("made/admin"), at("data/admin"))]);
        assert!(at("made/admin").exists() && !at("data/admin").exists() && at("data/blobs").exists());
        let said = remaining_message(&stays);
        let shown = at("data/blobs").display().to_string();
        assert!(said.starts_with(&format!("no fleet is there, but {shown} is still there, because")), "{said}");
        assert!(said.ends_with(": it may contain keys of the fleet, so remove it"), "{said}");
    }
}
