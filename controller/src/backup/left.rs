//! What a backup or a restore that was killed has left: it holds keys of the fleet, and nobody will use it.
//!
//! Whether a living process is still at work on it is told by a lock, which ends with the process. A restore holds the whole data directory
//! ([`files::hold`]), a backup its own file.

use std::fmt::{self, Display, Formatter};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use tempfile::NamedTempFile;

use crate::ca::files::{self, HeldDirectory};

/// How the name of a directory begins in which a restore makes a fleet.
pub(super) const RESTORING: &str = ".restoring-";
/// How the name of a file begins that is to be a backup. It stands in a directory of somebody else, so it says whose it is.
const BACKING_UP: &str = ".stemma-backup-";

/// Something that was left, and whether it could be taken away.
pub(super) struct Leftover {
    path: PathBuf,
    of: &'static str,
    removed: io::Result<()>,
}

impl Leftover {
    /// Nothing where it was gone by then: whoever was at work on it had ended, and named or removed it.
    fn unless_gone(removed: io::Result<()>, path: PathBuf, of: &'static str) -> Option<Self> {
        let is_gone = removed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        (!is_gone).then_some(Self { path, of, removed })
    }
}

impl Display for Leftover {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        let (path, of) = (self.path.display(), self.of);
        match &self.removed {
            Ok(()) => write!(
                to,
                "{path} was taken away: a {of} that was killed had left it, and keys of a fleet may be in it"
            ),
            Err(error) => write!(
                to,
                "{path} COULD NOT BE TAKEN AWAY ({error}): a {of} that was killed left it, and keys of a fleet may be in it, so remove it"
            ),
        }
    }
}

/// Says it on standard output. Where nobody reads that any more, the backup or restore that is to come goes on.
pub(super) fn say(all: &[Leftover]) {
    let mut out = io::stdout().lock();
    let _nobody_reads = all.iter().try_for_each(|left| writeln!(out, "{left}"));
}

/// Takes away what restores have left in a data directory. Whoever calls this holds it, as each restore does until it is over, so nobody is
/// at work on any of it. Where the file system knows no locks, somebody may be, and nothing is taken away.
pub(super) fn sweep_restores(directory: &Path, held: &HeldDirectory) -> Vec<Leftover> {
    if !held.is_locked() {
        return Vec::new();
    }
    let is_directory = |path: &PathBuf| path.symlink_metadata().is_ok_and(|found| found.is_dir());
    let all = begun(directory, RESTORING).filter(is_directory);
    all.filter_map(|path| Leftover::unless_gone(fs::remove_dir_all(&path), path, "restore")).collect()
}

/// The same when a controller starts, which says it in its log. Where somebody is at work in the directory, nothing is taken away.
pub(crate) fn sweep_at_start(directory: &Path) {
    let Ok(held) = files::hold(directory) else { return };
    for Leftover { path, removed, .. } in sweep_restores(directory, &held) {
        match removed {
            Ok(()) => log::warn!(path:% = path.display(); "what a restore that was killed had left was taken away"),
            Err(error) => log::warn!(
                path:% = path.display(), error:% = error;
                "what a restore that was killed has left could not be taken away: it holds keys of a fleet, so remove it"
            ),
        }
    }
}

/// Takes away what backups have left in a directory, but for those that are still being written.
pub(super) fn sweep_backups(directory: &Path) -> Vec<Leftover> {
    let taken_away = |path: PathBuf| {
        let _held = held(&path)?;
        Leftover::unless_gone(fs::remove_file(&path), path, "backup")
    };
    begun(directory, BACKING_UP).filter_map(taken_away).collect()
}

/// Makes the file that is to be a backup. It is held as long as it is open.
pub(super) fn begin_backup(directory: &Path) -> io::Result<NamedTempFile> {
    loop {
        let made = tempfile::Builder::new().prefix(BACKING_UP).tempfile_in(directory)?;
        // Where a file system knows no locks, nobody can hold what is left there, and nothing is swept.
        let _unknown_there = flock(made.as_file(), FlockOperation::LockExclusive);
        // Another backup may have taken it for one that was left, before it was held.
        if made.as_file().metadata()?.nlink() > 0 {
            return Ok(made);
        }
    }
}

/// What is in a directory whose name begins so. What cannot be listed is not swept.
fn begun(directory: &Path, prefix: &'static str) -> impl Iterator<Item = PathBuf> + use<> {
    let all = files::listed(directory).unwrap_or_default();
    let is_one =
        move |path: &PathBuf| path.file_name().is_some_and(|name| name.as_bytes().starts_with(prefix.as_bytes()));
    all.into_iter().filter(is_one)
}

/// Holds a file of this user; none where a living process does, or where it is something else.
fn held(path: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let found = file.metadata().ok()?;
    let is_own = found.is_file() && found.uid() == rustix::process::geteuid().as_raw();
    (is_own && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x02_what_a_killed_backup_left_is_swept_and_what_is_being_written_stays() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let written = begin_backup(directory.path()).unwrap();
        let others = [at(".backup-x"), at("fleet.age")];
        for path in [&others[0], &others[1], &at(".stemma-backup-killed")] {
            fs::write(path, "x").unwrap();
        }
        fs::create_dir(at(".stemma-backup-directory")).unwrap();
        std::os::unix::fs::symlink(at("fleet.age"), at(".stemma-backup-link")).unwrap();
        let said: Vec<String> = sweep_backups(directory.path()).iter().map(ToString::to_string).collect();
        let shown = at(".stemma-backup-killed").display().to_string();
        let sentence = "was taken away: a backup that was killed had left it, and keys of a fleet may be in it";
        assert_eq!(said, [format!("{shown} {sentence}")]);
        let stays = [&others[0], &others[1], &at(".stemma-backup-directory"), &at(".stemma-backup-link")];
        assert!(stays.into_iter().all(|path| path.symlink_metadata().is_ok()));
        assert!(written.path().exists(), "it is held");
        assert_eq!(sweep_backups(directory.path()).len(), 0);
    }

    #[test]
    fn x02_what_was_gone_before_it_was_taken_away_was_not_left() {
        let gone = fs::remove_file("/nowhere/.stemma-backup-named");
        assert!(Leftover::unless_gone(gone, "/nowhere/.stemma-backup-named".into(), "backup").is_none());
        let refused = Err(io::ErrorKind::PermissionDenied.into());
        let left = Leftover::unless_gone(refused, "/b/.stemma-backup-x".into(), "backup").unwrap().to_string();
        assert!(left.starts_with("/b/.stemma-backup-x COULD NOT BE TAKEN AWAY ("), "{left}");
    }

    #[test]
    fn x02_what_a_killed_restore_left_is_swept_at_a_start_unless_somebody_is_at_work() {
        let directory = tempfile::tempdir().unwrap();
        let left = directory.path().join(".restoring-killed");
        let other = directory.path().join("other");
        fs::create_dir_all(left.join("trust")).unwrap();
        fs::write(left.join("trust/root.key"), "key").unwrap();
        fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(&other, directory.path().join(".restoring-link")).unwrap();
        let held = files::hold(directory.path()).unwrap();
        sweep_at_start(directory.path());
        assert!(left.exists(), "somebody is at work there");
        drop(held);
        sweep_at_start(directory.path());
        assert!(!left.exists() && other.exists());
    }
}
