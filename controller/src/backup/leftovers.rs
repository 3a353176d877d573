//! Removes files that a killed backup or restore left behind. Nobody will use these files, and they may contain keys of
//! the fleet.
//!
//! A lock shows whether a process is still working on such a file, because a lock ends with its process. A restore
//! locks the whole data directory ([`files::lock_directory`]), a backup its own file.

use std::fmt::{self, Display, Formatter};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use tempfile::NamedTempFile;

use crate::ca::files::{self, DirectoryLock};

/// Prefix of the directory in which a restore builds a fleet.
pub(super) const RESTORE_PREFIX: &str = ".restoring-";
/// Prefix of the temporary file of a backup. It names this program, because the file may be in a directory that other
/// programs use too.
const BACKUP_PREFIX: &str = ".stemma-backup-";

/// A leftover file or directory, and whether it could be removed.
pub(super) struct Leftover {
    path: PathBuf,
    origin: &'static str,
    removed: io::Result<()>,
}

impl Leftover {
    /// Creates a leftover from the result of its removal. Returns `None` if the file no longer existed, because its own
    /// process had just renamed or removed it.
    fn unless_missing(removed: io::Result<()>, path: PathBuf, origin: &'static str) -> Option<Self> {
        let is_gone = removed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        (!is_gone).then_some(Self { path, origin, removed })
    }
}

impl Display for Leftover {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        let (path, of) = (self.path.display(), self.origin);
        match &self.removed {
            Ok(()) => {
                write!(to, "{path} was removed: a killed {of} had left it behind, and it may contain keys of a fleet")
            }
            Err(error) => write!(
                to,
                "{path} COULD NOT BE REMOVED ({error}): a killed {of} left it behind, and it may contain keys of a fleet: remove it"
            ),
        }
    }
}

/// Prints the leftovers on standard output. An error is ignored, so that the backup or restore continues if nobody
/// reads the output.
pub(super) fn print_all(leftovers: &[Leftover]) {
    let mut out = io::stdout().lock();
    let _ignored = leftovers.iter().try_for_each(|leftover| writeln!(out, "{leftover}"));
}

/// Removes the leftovers of restores from a data directory. The caller holds the lock of the directory, as a running
/// restore would, so no process uses these files. On a file system without locks another restore may be running, so
/// nothing is removed.
pub(super) fn sweep_restores(directory: &Path, lock: &DirectoryLock) -> Vec<Leftover> {
    if !lock.is_locked() {
        return Vec::new();
    }
    let is_directory = |path: &PathBuf| path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    let paths = list_prefixed(directory, RESTORE_PREFIX).filter(is_directory);
    paths.filter_map(|path| Leftover::unless_missing(fs::remove_dir_all(&path), path, "restore")).collect()
}

/// Removes the leftovers of restores when a controller starts, and logs them. If another process holds the directory,
/// nothing is removed.
pub(crate) fn sweep_at_start(directory: &Path) {
    let Ok(lock) = files::lock_directory(directory) else { return };
    for Leftover { path, removed, .. } in sweep_restores(directory, &lock) {
        match removed {
            Ok(()) => log::warn!(path:% = path.display(); "removed what a killed restore had left behind"),
            Err(error) => log::warn!(
                path:% = path.display(), error:% = error;
                "could not remove what a killed restore left behind: it contains keys of a fleet, so remove it"
            ),
        }
    }
}

/// Removes the leftovers of backups from a directory, except files that are still being written.
pub(super) fn sweep_backups(directory: &Path) -> Vec<Leftover> {
    let remove_unlocked = |path: PathBuf| {
        let _lock = try_lock(&path)?;
        Leftover::unless_missing(fs::remove_file(&path), path, "backup")
    };
    list_prefixed(directory, BACKUP_PREFIX).filter_map(remove_unlocked).collect()
}

/// Creates the temporary file of a backup. The file is locked while it is open.
pub(super) fn create_backup_file(directory: &Path) -> io::Result<NamedTempFile> {
    loop {
        let file = tempfile::Builder::new().prefix(BACKUP_PREFIX).tempfile_in(directory)?;
        // On a file system without locks this fails. Then `sweep_backups` cannot lock the file either, and leaves it.
        let _unsupported = flock(file.as_file(), FlockOperation::LockExclusive);
        // Another backup may have removed the file as a leftover before it was locked.
        if file.as_file().metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
}

/// Lists the paths in a directory whose names have this prefix. Returns nothing if the directory cannot be listed.
fn list_prefixed(directory: &Path, prefix: &'static str) -> impl Iterator<Item = PathBuf> + use<> {
    let paths = files::list_directory(directory).unwrap_or_default();
    let has_prefix = move |path: &PathBuf| path.file_name().is_some_and(|name| name.as_bytes().starts_with(prefix.as_bytes()));
    paths.into_iter().filter(has_prefix)
}

/// Locks a file of this user. Returns `None` if another process holds the lock, or if the path is not a regular file of
/// this user.
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
        let at = |name: &str| directory.path().join(name);
        let written = create_backup_file(directory.path()).unwrap();
        let others = [at(".backup-x"), at("fleet.age")];
        for path in [&others[0], &others[1], &at(".stemma-backup-killed")] {
            fs::write(path, "x").unwrap();
        }
        fs::create_dir(at(".stemma-backup-directory")).unwrap();
        std::os::unix::fs::symlink(at("fleet.age"), at(".stemma-backup-link")).unwrap();
        let said: Vec<String> = sweep_backups(directory.path()).iter().map(ToString::to_string).collect();
        let shown = at(".stemma-backup-killed").display().to_string();
        let sentence = "was removed: a killed backup had left it behind, and it may contain keys of a fleet";
        assert_eq!(said, [format!("{shown} {sentence}")]);
        let stays = [&others[0], &others[1], &at(".stemma-backup-directory"), &at(".stemma-backup-link")];
        assert!(stays.into_iter().all(|path| path.symlink_metadata().is_ok()));
        assert!(written.path().exists(), "it is held");
        assert_eq!(sweep_backups(directory.path()).len(), 0);
    }

    #[test]
    fn x02_leftover_is_none_when_already_removed() {
        let gone = fs::remove_file("/nowhere/.stemma-backup-named");
        assert!(Leftover::unless_missing(gone, "/nowhere/.stemma-backup-named".into(), "backup").is_none());
        let refused = Err(io::ErrorKind::PermissionDenied.into());
        let left = Leftover::unless_missing(refused, "/b/.stemma-backup-x".into(), "backup").unwrap().to_string();
        assert!(left.starts_with("/b/.stemma-backup-x COULD NOT BE REMOVED ("), "{left}");
    }

    #[test]
    fn x02_sweep_at_start_removes_leftover_when_directory_is_unlocked() {
        let directory = tempfile::tempdir().unwrap();
        let left = directory.path().join(".restoring-killed");
        let other = directory.path().join("other");
        fs::create_dir_all(left.join("trust")).unwrap();
        fs::write(left.join("trust/root.key"), "key").unwrap();
        fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(&other, directory.path().join(".restoring-link")).unwrap();
        let held = files::lock_directory(directory.path()).unwrap();
        sweep_at_start(directory.path());
        assert!(left.exists(), "somebody is at work there");
        drop(held);
        sweep_at_start(directory.path());
        assert!(!left.exists() && other.exists());
    }
}
