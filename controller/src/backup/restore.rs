//! The command `stemma-controller restore FILE`: creates a fleet from a backup.

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
use crate::init::{Layout, remove_unfinished};
use crate::records::{codec, key};
use crate::store::{CreateOptions, Entry, Epoch, RedbStore, Revision};

/// Number of revisions that a restored store skips after the revision of the backup. The lost store may have used these
/// revisions after the backup. A client may still send a revision of the lost store as `If-Match`. No revision of the
/// restored store may be equal to it, so that the write of this client is refused.
const SKIPPED_REVISIONS: u64 = 1_000_000;

/// Prefixes of the keys that a restore does not copy. Join tokens are excluded, because a token that was used after the
/// backup would be valid again. Records of requests contain responses for repeated requests. They are excluded, because
/// these responses are about the lost store.
const EXCLUDED_PREFIXES: [&str; 2] = [key::TOKENS, key::REQUESTS];

/// Creates a fleet from a backup, in a data directory that contains no fleet. Also removes what killed restores left in
/// the directory. The program opens the backup and reads the decryption keys as the user that started it. If root
/// started it and another user owns the existing directory, the program then continues as that user.
///
/// # Errors
/// After an error the directory contains no new files, except files that could not be removed. The error names these
/// files. One error differs: the fleet is restored, but the directory could not be synced to the disk.
pub fn restore(args: &RestoreArgs) -> Result<()> {
    let directory = args.place.data_dir()?;
    let layout = Layout::new(&directory);
    // The lock is held until the end. So no second restore can run at the same time, and no fleet can appear in the
    // directory after the check. A directory that does not exist yet is locked and checked after its creation below.
    let lock = directory.exists().then(|| files::lock_directory(&directory)).transpose()?;
    check_empty(&layout)?;
    let backup = BackupFile::from_args(args)?;
    if lock.is_some() {
        become_owner(&directory).with_context(|| format!("{}: nothing was changed", directory.display()))?;
    }
    let checked_backup = backup.check()?;
    files::make_directory(layout.directory()).context("nothing was restored")?;
    let lock = lock.map_or_else(|| files::lock_directory(layout.directory()), Ok)?;
    check_empty(&layout)?;
    remove_unfinished(&layout).context("nothing was restored")?;
    leftovers::print_all(&leftovers::sweep_restores(layout.directory(), &lock));
    let damaged_count = create_fleet(&backup, &layout, &checked_backup)?;
    let result = File::open(layout.directory()).and_then(|directory| directory.sync_all());
    result.with_context(|| format!("{}: the fleet is restored, but may not be durable on the disk yet", directory.display()))?;
    // The fleet is restored even if this output cannot be written, so the error is ignored.
    let _ignored = print_summary(args, &directory, &checked_backup, damaged_count);
    Ok(())
}

/// Prints a summary of the restored fleet, and the next steps. `damaged_count` is the number of omitted file bodies.
fn print_summary(
    args: &RestoreArgs,
    directory: &Path,
    CheckedBackup { head, missing_keys, .. }: &CheckedBackup,
    damaged_count: usize,
) -> io::Result<()> {
    let (mut out, directory_name) = (io::stdout().lock(), directory.display());
    let (fleet, revision, backup_time) = (&head.fleet.fleet, head.revision, format_time(head.at_s));
    writeln!(out, "fleet {fleet} restored in {directory_name}, at revision {revision}, backed up at {backup_time}")?;
    writeln!(out, "later writes are lost; what was revoked later is valid again; join tokens are not restored")?;
    if damaged_count > 0 {
        writeln!(out, "{damaged_count} file bodies were already damaged in the backup: apply their manifests again")?;
    }
    if let Some(warning) = missing_keys.message() {
        writeln!(out, "{warning}")?;
    }
    let flags = args.place.to_flags();
    writeln!(out, "start the controller, check the fleet, then let its hosts follow it: stemma-controller resume-fleet{flags}")?;
    Ok(())
}

/// If this program runs as root and another user owns the directory, changes to the user and group of the directory,
/// and gives up all other groups. A service of this user will run the restored fleet. Also, root must not follow
/// symbolic links in a directory that another user controls.
fn become_owner(directory: &Path) -> io::Result<()> {
    let owner = std::fs::metadata(directory)?;
    if !rustix::process::geteuid().is_root() || owner.uid() == 0 {
        return Ok(());
    }
    // No other thread exists yet. Threads that start later inherit this user.
    set_thread_groups(&[])?;
    set_thread_gid(Gid::from_raw(owner.gid()))?;
    Ok(set_thread_uid(Uid::from_raw(owner.uid()))?)
}

/// Fails if the data directory contains a store, or if its directory `trust` or `admin` contains anything.
fn check_empty(layout: &Layout) -> Result<()> {
    let existing_path = if layout.store().exists() { Some(layout.store()) } else { layout.authority()? };
    if let Some(existing_path) = existing_path {
        bail!(
            "{}: the directory contains a fleet or a part of one ({}); nothing was changed: give another --data-dir, or move it away",
            layout.directory().display(),
            existing_path.display()
        );
    }
    Ok(())
}

/// The result of a complete read of a backup: its checksum matched.
struct CheckedBackup {
    head: BackupHeader,
    epoch_history: EpochHistory,
    missing_keys: MissingKeys,
}

/// The first bytes of an age file in text form (armored). Such a file is not supported.
const ARMOR: &[u8] = b"-----BEGIN AGE ENCRYPTED FILE-----";

/// An opened backup file, and the keys that decrypt it.
struct BackupFile<'a> {
    path: &'a Path,
    file: File,
    /// The decryption keys. The list is empty if the file is not encrypted.
    identities: Vec<AgeIdentity>,
}

impl<'a> BackupFile<'a> {
    /// Opens the backup file, detects whether it is encrypted, and reads the decryption keys. Fails if it is encrypted
    /// and no keys were given, or the other way round. Also fails for an age file in text form ([`ARMOR`]).
    fn from_args(args: &'a RestoreArgs) -> Result<Self> {
        let (path, file_name) = (&*args.file, args.file.display());
        check_regular_file(path)?;
        let file = File::open(path).with_context(|| refused_message(path))?;
        // `MAGIC` is the beginning of a file that age encrypted.
        let mut first_bytes = [0; MAGIC.len()];
        // A shorter file is not a backup. Its first read returns the error for this, so the error here is ignored.
        let is_encrypted = file.read_exact_at(&mut first_bytes, 0).is_ok() && first_bytes == *MAGIC;
        let mut armor = [0; ARMOR.len()];
        if file.read_exact_at(&mut armor, 0).is_ok() && armor == *ARMOR {
            bail!(
                "{file_name} is an armored age file, which is not supported; nothing was changed: run age -d -i KEYFILE -o PLAIN {file_name}, \
                 and restore PLAIN"
            );
        }
        let identities = match (&args.identity, is_encrypted) {
            (None, false) => Vec::new(),
            (Some(_), false) => bail!("{file_name} is not encrypted: omit --identity; nothing was changed"),
            (None, true) => bail!(
                "{file_name} is encrypted; nothing was changed: run stemma-controller restore {file_name}{} --identity KEYFILE, with a file of \
                 age-keygen that contains the secret key of one of its recipients (backup_recipients)",
                args.place.to_flags()
            ),
            (Some(key_file), true) => {
                let advice = "give a file with the key that no other user can read, not a pipe";
                let text = files::read(key_file, files::FileSensitivity::Secret)
                    .with_context(|| format!("--identity {}: nothing was changed: {advice}", key_file.display()))?;
                let parsed_keys = AgeIdentity::read_all(&text);
                parsed_keys.with_context(|| format!("--identity {}: nothing was changed", key_file.display()))?
            }
        };
        Ok(Self { path, file, identities })
    }

    /// Returns a new reader at the beginning of the backup, and the backup's head.
    fn open(&self) -> Result<(BackupReader<Box<dyn Read + '_>>, BackupHeader)> {
        let mut file = &self.file;
        file.rewind().with_context(|| refused_message(self.path))?;
        let file = BufReader::new(file);
        let plaintext: Box<dyn Read + '_> = if self.identities.is_empty() {
            Box::new(file)
        } else {
            Box::new(DecryptReader::begin(file, &self.identities).with_context(|| refused_message(self.path))?)
        };
        BackupReader::begin(plaintext).with_context(|| refused_message(self.path))
    }

    /// Reads the whole backup, which verifies its checksum. Returns its head, its history of epochs, and its missing
    /// keys.
    fn check(&self) -> Result<CheckedBackup> {
        let (mut reader, head) = self.open()?;
        let mut epoch_history = EpochHistory::new(head.epoch);
        let mut missing_keys = MissingKeys::new();
        while let Some(part) = reader.next_part().with_context(|| refused_message(self.path))? {
            match part {
                BackupPart::Entry(entry) if entry.key == key::EPOCH_LINE.as_bytes() => {
                    epoch_history = codec::decode(&entry.value).with_context(|| refused_message(self.path))?;
                }
                BackupPart::Entry(_) => {}
                BackupPart::File { name, .. } => missing_keys.mark_present(&name),
            }
        }
        Ok(CheckedBackup { head, epoch_history, missing_keys })
    }
}

/// Fails if the path is not a regular file. A restore reads the backup twice, which is not possible for a pipe. The
/// first read verifies the backup before anything is created, and the second read copies it.
fn check_regular_file(path: &Path) -> Result<()> {
    let file_name = path.display();
    if path.as_os_str() == "-" {
        bail!(
            "-: a backup cannot be read from standard input, because it is read twice; nothing was changed: write it to a file \
             first (cat > FILE), and restore FILE; or give ./- if that is the name of the file"
        );
    }
    let file_type = std::fs::metadata(path).with_context(|| refused_message(path))?.file_type();
    if file_type.is_dir() {
        bail!("{file_name} is a directory; nothing was changed: give the file in it that `stemma-controller backup` wrote");
    }
    if !file_type.is_file() {
        bail!(
            "{file_name} is a pipe or a device, and a backup is read twice, which needs a regular file; nothing was changed: \
             write it to a file first (cat {file_name} > FILE), and restore FILE"
        );
    }
    Ok(())
}

/// Formats a time for output to the user. `at_s` is in seconds since 1970.
fn format_time(at_s: u64) -> String {
    let formatted = at_s.checked_mul(1000).and_then(stemma_core::time::format);
    formatted.unwrap_or_else(|| format!("{at_s} seconds after 1970"))
}

/// Returns the beginning of an error about a backup that is not restored.
fn refused_message(path: &Path) -> String {
    format!("{}: not restored; nothing was changed", path.display())
}

/// Creates the fleet of a backup in a locked directory. Returns the number of file bodies that were omitted because
/// they are damaged in the backup. If a step fails, everything that was created is removed, or named in the error.
fn create_fleet(backup: &BackupFile<'_>, layout: &Layout, checked_backup: &CheckedBackup) -> Result<usize> {
    let directory_name = layout.directory().display();
    let backup_bytes = backup.file.metadata().map_or(0, |file| file.len());
    let failure_message = |outcome: &str| {
        format!(
            "{directory_name}: the fleet of {} could not be created there, and {outcome}; the reason follows: if the disk is full, free space for the \
             fleet (its backup has {backup_bytes} bytes, and the fleet needs more), or give another --data-dir, and run restore again",
            backup.path.display()
        )
    };
    let temporary = tempfile::Builder::new().prefix(leftovers::RESTORE_PREFIX).tempdir_in(layout.directory());
    let new_directory = temporary.with_context(|| failure_message("nothing was changed"))?;
    let new_layout = Layout::new(new_directory.path());
    let attempt = write_fleet(backup, &new_layout, checked_backup).map_err(|error| RestoreError { error, remaining: Vec::new() });
    let result = attempt.and_then(|damaged_count| move_into_place(&new_layout, layout).map(|()| damaged_count));
    result.map_err(|RestoreError { error, mut remaining }| {
        if let Err(close_error) = new_directory.close() {
            remaining.push(format!("{} could not be removed ({close_error})", new_layout.directory().display()));
        }
        error.context(failure_message(&remaining_message(&remaining)))
    })
}

/// The error of a failed restore, with the files that it could not remove.
#[derive(Debug)]
struct RestoreError {
    error: anyhow::Error,
    /// A sentence for each file that was moved to the data directory and could not be moved back.
    remaining: Vec<String>,
}

/// Returns a text about the files that a failed restore left in the data directory. `remaining` has one sentence for
/// each of them.
fn remaining_message(remaining: &[String]) -> String {
    if remaining.is_empty() {
        return "nothing was changed".to_owned();
    }
    format!("no fleet exists there, but {}: it may contain keys of the fleet, so remove it", remaining.join(", and "))
}

/// Moves all parts of the new fleet from its temporary directory to the data directory. If one move fails, the parts
/// that were moved before are moved back, and `remaining` of the error lists the parts that could not be moved back.
/// The store is moved last, because a controller cannot start a fleet without its store.
fn move_into_place(new_fleet: &Layout, data_directory: &Layout) -> Result<(), RestoreError> {
    let mut moves: Vec<(PathBuf, PathBuf)> = Vec::new();
    for path in [new_fleet.blobs(), new_fleet.admin(), new_fleet.trust(), new_fleet.root(), new_fleet.store()] {
        let Some(name) = path.file_name().filter(|_| path.exists()) else { continue };
        let new = data_directory.directory().join(name);
        if let Err(error) = std::fs::rename(&path, &new) {
            let error = anyhow::Error::new(error).context(format!("{}: move the existing file or directory away", new.display()));
            return Err(RestoreError { error, remaining: move_back(&moves) });
        }
        moves.push((path, new));
    }
    Ok(())
}

/// Moves files back to their temporary directory, in reverse order. `moves` has the old and the new path of each.
/// Returns one sentence for each file that could not be moved back.
fn move_back(moves: &[(PathBuf, PathBuf)]) -> Vec<String> {
    let failed_move = |(path, target): &(PathBuf, PathBuf)| {
        let error = std::fs::rename(target, path).err()?;
        Some(format!("{} is still there, because it could not be moved back ({error})", target.display()))
    };
    moves.iter().rev().filter_map(failed_move).collect()
}

/// Writes the files of a backup, and a store with the entries of the backup that a restore copies ([`is_restored`]).
/// Adds a new epoch to the history of epochs in the store. In this epoch nothing is sent to hosts until an admin
/// resumes the fleet. Returns the number of file bodies that were omitted because they are damaged.
fn write_fleet(file: &BackupFile<'_>, dirs: &Layout, CheckedBackup { head, epoch_history, .. }: &CheckedBackup) -> Result<usize> {
    let revision = head.revision.saturating_add(SKIPPED_REVISIONS);
    let random: [u8; 10] = crate::ca::random_bytes().map_err(|_| anyhow::anyhow!("the system returned no random bytes"))?;
    // The id of an epoch contains its start time. The time must be later than the backup, even if the clock of this
    // machine is wrong.
    let now_ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
    let epoch = epoch_history.next_id(now_ms.max(head.at_s.saturating_mul(1000)), &random, []);
    let history = epoch_history.with_restore(epoch, revision, &format!("restored from a backup of revision {}", head.revision));
    std::fs::set_permissions(dirs.directory(), std::fs::Permissions::from_mode(0o700))?;
    for directory in [dirs.trust(), dirs.admin(), dirs.blobs()] {
        files::make_directory(&directory)?;
    }
    let (mut reader, _) = file.open()?;
    let mut damaged_count = 0;
    let entries = std::iter::from_fn(|| {
        loop {
            match reader.next_part() {
                Ok(Some(BackupPart::Entry(entry))) if is_restored(&entry) => return Some(Ok(entry)),
                Ok(Some(BackupPart::Entry(_))) => {}
                Ok(Some(BackupPart::File { name, bytes })) => match write_file(dirs, &name, &bytes) {
                    Ok(is_intact) => damaged_count += usize::from(!is_intact),
                    Err(error) => return Some(Err(error)),
                },
                Ok(None) => return None,
                Err(error) => return Some(Err(io::Error::other(error))),
            }
        }
    });
    let options = CreateOptions {
        epoch: Epoch::new(*head.epoch.as_bytes()),
        base: Revision::new(head.base),
        fleet: serde_json::to_vec(&head.fleet)?.into(),
    };
    let epoch_entry = Entry {
        key: key::EPOCH_LINE.into(),
        value: codec::encode(&history),
        create_revision: Revision::new(revision),
        mod_revision: Revision::new(revision),
        version: 1,
    };
    let mut all_entries = entries.chain(std::iter::once(Ok(epoch_entry)));
    RedbStore::import(&dirs.store(), &options, Revision::new(revision), &mut all_entries)?;
    drop(all_entries);
    Ok(damaged_count)
}

/// Returns whether a restore copies this entry. It does not copy the history of epochs, because it writes a history
/// with a new epoch instead. It also omits join tokens and the records of requests ([`EXCLUDED_PREFIXES`]).
fn is_restored(entry: &Entry) -> bool {
    entry.key != key::EPOCH_LINE.as_bytes() && !EXCLUDED_PREFIXES.iter().any(|prefix| entry.key.starts_with(prefix.as_bytes()))
}

/// Writes one file of a backup to the path `name` below the directory of `layout`. A file body is not written if it
/// does not match the hash in its name, and the result is then false. Fails if a fleet has no file at this path.
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

    /// The move of `trust` fails, because the data directory has a directory `trust` with a file in it. After the
    /// removal of that file, all moves succeed.
    #[test]
    fn x02_move_into_place_moves_nothing_when_one_move_fails() {
        let directory = tempfile::tempdir().unwrap();
        let path_of = |name: &str| directory.path().join(name);
        let (new_layout, layout) = (Layout::new(&path_of("new")), Layout::new(&path_of("data")));
        for path in [new_layout.blobs(), new_layout.admin(), new_layout.trust(), layout.trust()] {
            std::fs::create_dir_all(path).unwrap();
        }
        for path in [new_layout.root(), new_layout.store(), new_layout.trust().join("root.key"), layout.root()] {
            std::fs::write(path, "new").unwrap();
        }
        std::fs::write(layout.trust().join("existing"), "").unwrap();
        std::fs::write(layout.root(), "existing").unwrap();
        let error = move_into_place(&new_layout, &layout).unwrap_err();
        assert_eq!(error.error.to_string(), format!("{}: move the existing file or directory away", layout.trust().display()));
        assert_eq!(remaining_message(&error.remaining), "nothing was changed");
        assert_eq!(files::list_directory(layout.directory()).unwrap(), [layout.root(), layout.trust()]);
        assert_eq!(std::fs::read_to_string(layout.root()).unwrap(), "existing");
        std::fs::remove_file(layout.trust().join("existing")).unwrap();
        move_into_place(&new_layout, &layout).unwrap();
        assert_eq!(std::fs::read_to_string(layout.root()).unwrap(), "new");
        assert!(layout.store().exists() && files::list_directory(new_layout.directory()).unwrap().is_empty());
    }

    #[test]
    fn x02_move_back_names_file_when_move_fails() {
        let directory = tempfile::tempdir().unwrap();
        let path_of = |name: &str| directory.path().join(name);
        // The old place of `blobs` contains a directory that is not empty, so the move back fails.
        for path in ["made/blobs/of-another", "data/blobs", "data/admin"] {
            std::fs::create_dir_all(path_of(path)).unwrap();
        }
        let remaining =
            move_back(&[(path_of("made/blobs"), path_of("data/blobs")), (path_of("made/admin"), path_of("data/admin"))]);
        assert!(path_of("made/admin").exists() && !path_of("data/admin").exists() && path_of("data/blobs").exists());
        let message = remaining_message(&remaining);
        let blobs_path = path_of("data/blobs").display().to_string();
        assert!(message.starts_with(&format!("no fleet exists there, but {blobs_path} is still there, because")), "{message}");
        assert!(message.ends_with(": it may contain keys of the fleet, so remove it"), "{message}");
    }
}
