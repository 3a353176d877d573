//! Removes files that a killed backup or restore left on the disk. No program uses these files any more, and they may
//! contain keys of the fleet.
//!
//! A process locks the files that it writes, and its locks end with the process. So a file without a lock is a
//! leftover. A restore locks the whole data directory ([`files::lock_directory`]), and a backup locks its own file.

use std::fmt::{self, Display, Formatter};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use tempfile::NamedTempFile;

use crate::ca::files::{self, DirectoryLock};

/// Prefix of the name of the temporary directory in which a restore writes the new fleet.
pub(super) const RESTORE_PREFIX: &str = ".restoring-";
/// Prefix of the name of a backup's temporary file. The prefix contains `stemma`, because the directory may also have
/// temporary files of other programs.
const BACKUP_PREFIX: &str = ".stemma-backup-";

/// A leftover file or directory, the command that left it (`backup` or `restore`), and the result of its removal.
pub(super) struct Leftover {
    path: PathBuf,
    command: &'static str,
    removed: io::Result<()>,
}

impl Leftover {
    /// Returns the leftover with the result of its removal. Returns `None` if the file no longer existed: a process
    /// that was still writing the file has just renamed or removed it.
    fn from_removal(removal_result: io::Result<()>, path: PathBuf, origin: &'static str) -> Option<Self> {
        let is_missing = removal_result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        (!is_missing).then_some(Self { path, command: origin, removed: removal_result })
    }
}

impl Display for Leftover {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let (path, command) = (self.path.display(), self.command);
        match &self.removed {
            Ok(()) => {
                write!(formatter, "{path} was removed: a killed {command} had left it behind, and it may contain keys of a fleet")
            }
            Err(error) => write!(
                formatter,
                "{path} COULD NOT BE REMOVED ({error}): a killed {command} left it behind, and it may contain keys of a fleet: remove it"
            ),
        }
    }
}

/// Prints the leftovers on standard output. If the output cannot be written, the backup or restore continues anyway.
pub(super) fn print_all(leftovers: &[Leftover]) {
    let mut output = io::stdout().lock();
    let _ignored = leftovers.iter().try_for_each(|leftover| writeln!(output, "{leftover}"));
}

/// Removes the leftovers of restores from a data directory. Returns what was found. The caller holds the lock of the
/// directory, so no other restore is running. On a file system without locks another restore may be running, so nothing
/// is removed there.
pub(super) fn sweep_restores(directory: &Path, lock: &DirectoryLock) -> Vec<Leftover> {
    if !lock.is_locked() {
        return Vec::new();
    }
    let is_directory = |path: &PathBuf| path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    let paths = list_prefixed(directory, RESTORE_PREFIX).filter(is_directory);
    paths.filter_map(|path| Leftover::from_removal(fs::remove_dir_all(&path), path, "restore")).collect()
}

/// Removes the leftovers of restores from the data directory when a controller starts, and logs them. If another
/// process holds the lock of the directory, nothing is removed.
pub(crate) fn sweep_at_start(directory: &Path) {
    let Ok(lock) = files::lock_directory(directory) else { return };
    for Leftover { path, removed: removal_result, .. } in sweep_restores(directory, &lock) {
        match removal_result {
            Ok(()) => log::warn!(path:% = path.display(); "removed what a killed restore had left behind"),
            Err(error) => log::warn!(
                path:% = path.display(), error:% = error;
                "could not remove what a killed restore left behind: it contains keys of a fleet, so remove it"
            ),
        }
    }
}

/// Removes the leftovers of backups from a directory, if they belong to the current user. Returns what was found. Files
/// that a running backup writes are locked, so they are not removed.
pub(super) fn sweep_backups(directory: &Path) -> Vec<Leftover> {
    let remove_unlocked = |path: PathBuf| {
        let _lock = try_lock(&path)?;
        Leftover::from_removal(fs::remove_file(&path), path, "backup")
    };
    list_prefixed(directory, BACKUP_PREFIX).filter_map(remove_unlocked).collect()
}

/// Creates the temporary file of a backup in a directory, and locks it. The lock ends when the file is closed.
pub(super) fn create_backup_file(directory: &Path) -> io::Result<NamedTempFile> {
    loop {
        let file = tempfile::Builder::new().prefix(BACKUP_PREFIX).tempfile_in(directory)?;
        // On a file system without locks this call fails. Then `sweep_backups` cannot lock the file either, and does
        // not remove it.
        let _unsupported = flock(file.as_file(), FlockOperation::LockExclusive);
        // Another backup may have removed the new file as a leftover before it was locked. In this case the loop
        // creates another file.
        if file.as_file().metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
}

/// Lists the paths in a directory whose names begin with this prefix. The list is empty if the directory cannot be
/// read.
fn list_prefixed(directory: &Path, prefix: &'static str) -> impl Iterator<Item = PathBuf> + use<> {
    let paths = files::list_directory(directory).unwrap_or_default();
    let has_prefix = move |path: &PathBuf| path.file_name().is_some_and(|name| name.as_bytes().starts_with(prefix.as_bytes()));
    paths.into_iter().filter(has_prefix)
}

/// Locks a file of the current user and returns it. Returns `None` if another process holds the lock, or if the path is
/// not a regular file that belongs to this user.
fn try_lock(path: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let metadata = file.metadata().ok()?;
    let is_own = metadata.is_file() && metadata.uid() == rustix::process::geteuid().as_raw();
    (is_own && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x02_sweep_backups_removes_leftover_but_not_open_backup() {
        let directory = tempfile::tempdir().unwrap();
        let path_of = |name: &str| directory.path().join(name);
        let open_backup = create_backup_file(directory.path()).unwrap();
        let other_files = [path_of(".backup-x"), path_of("fleet.age")];
        for path in [&other_files[0], &other_files[1], &path_of(".stemma-backup-killed")] {
            fs::write(path, "x").unwrap();
        }
        fs::create_dir(path_of(".stemma-backup-directory")).unwrap();
        std::os::unix::fs::symlink(path_of("fleet.age"), path_of(".stemma-backup-link")).unwrap();
        let messages: Vec<String> = sweep_backups(directory.path()).iter().map(ToString::to_string).collect();
        let killed_path = path_of(".stemma-backup-killed").display().to_string();
        let sentence = "was removed: a killed backup had left it behind, and it may contain keys of a fleet";
        assert_eq!(messages, [format!("{killed_path} {sentence}")]);
        let remaining = [&other_files[0], &other_files[1], &path_of(".stemma-backup-directory"), &path_of(".stemma-backup-link")];
        assert!(remaining.into_iter().all(|path| path.symlink_metadata().is_ok()));
        assert!(open_backup.path().exists(), "the file of the running backup remains");
        assert_eq!(sweep_backups(directory.path()).len(), 0);
    }

    /// After any other error of the removal, the message about the leftover contains the error.
    #[test]
    fn x02_leftover_is_none_when_already_removed() {
        let removal_result = fs::remove_file("/nowhere/.stemma-backup-named");
        assert!(Leftover::from_removal(removal_result, "/nowhere/.stemma-backup-named".into(), "backup").is_none());
        let permission_error = Err(io::ErrorKind::PermissionDenied.into());
        let message = Leftover::from_removal(permission_error, "/b/.stemma-backup-x".into(), "backup").unwrap().to_string();
        assert!(message.starts_with("/b/.stemma-backup-x COULD NOT BE REMOVED ("), "{message}");
    }

    /// The link `.restoring-link` is not followed, so the directory `other` remains.
    #[test]
    fn x02_sweep_at_start_removes_leftover_when_directory_is_unlocked() {
        let directory = tempfile::tempdir().unwrap();
        let leftover = directory.path().join(".restoring-killed");
        let other = directory.path().join("other");
        fs::create_dir_all(leftover.join("trust")).unwrap();
        fs::write(leftover.join("trust/root.key"), "key").unwrap();
        fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(&other, directory.path().join(".restoring-link")).unwrap();
        let lock = files::lock_directory(directory.path()).unwrap();
        sweep_at_start(directory.path());
        assert!(leftover.exists(), "another process holds the lock");
        drop(lock);
        sweep_at_start(directory.path());
        assert!(!leftover.exists() && other.exists());
    }
}
