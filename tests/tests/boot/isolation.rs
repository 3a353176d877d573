//! Keeps the machines apart from this host, so that a run leaves nothing behind, also when it is killed.
//!
//! The machines run in namespaces of their own for mounts, network and processes. The first process of these namespaces
//! is killed when the process that started it ends. The kernel then ends all other processes in them, and removes the
//! mounts and network interfaces. Only the directory of the run and its cgroups can remain. The next run removes them.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use stemma_tests::program::eventually_within;

/// Maximum time until the processes of a killed run have ended.
pub(crate) const MAX_END_TIME: Duration = Duration::from_secs(30);

/// The name of a run's directory begins with this text.
const RUN_PREFIX: &str = "run-";

/// The file in a run's directory that the run locks while it lives.
const RUN_LOCK: &str = "lock";

/// Returns the command that runs a program as the first process of new mount and process namespaces. The program has a
/// `/proc` of its own, and the network of this host.
///
/// All processes in the namespaces are killed when the calling thread ends. So call this from the main thread.
pub(crate) fn isolated_command(program: impl AsRef<OsStr>) -> Command {
    // `setpriv` has `unshare` killed when this process ends, and `unshare` has its child killed when it ends itself.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"]);
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"]).arg(program);
    command
}

/// The directory of a run that lives. The process that created this value has a lock on it.
pub(crate) struct RunDirectory {
    path: PathBuf,
    _lock: File,
}

impl RunDirectory {
    /// Creates a directory below `parent`, after the removal of what ended runs left.
    pub(crate) fn create(parent: &Path) -> Result<Self> {
        remove_ended_runs(parent)?;
        let _list_lock = lock_list(parent)?;
        // apt reads files in the directory as another user.
        let permissions = Permissions::from_mode(0o755);
        let path = tempfile::Builder::new().prefix(RUN_PREFIX).permissions(permissions).tempdir_in(parent)?.keep();
        let lock = File::create(path.join(RUN_LOCK))?;
        lock.try_lock().with_context(|| format!("the lock of {}", path.display()))?;
        Ok(Self { path, _lock: lock })
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory and the run's cgroups. All processes of the run must have ended.
    pub(crate) fn remove(self) -> Result<()> {
        let _list_lock = lock_list(self.path.parent().context("a directory")?)?;
        remove_run(&self.path)
    }
}

/// Checks that this process is the first one of a process namespace, and that the process that created the run's
/// directory lives. From then on the kernel kills this process with that one. The kernel would not do so if that process
/// had ended before.
pub(crate) fn check_is_isolated(run: &Path) -> Result<()> {
    ensure!(std::process::id() == 1, "the steps run only in a namespace for processes, which this program creates");
    ensure!(!has_ended(run)?, "the run of {} has ended", run.display());
    Ok(())
}

/// Returns whether the process that created a run's directory has ended.
fn has_ended(run: &Path) -> Result<bool> {
    let lock = File::options().create(true).truncate(false).write(true).open(run.join(RUN_LOCK))?;
    match lock.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("the lock of {}", run.display())),
    }
}

/// Locks the list of the run directories below `parent`, so that no other process creates or removes one. Without
/// this lock, a directory that is not locked yet could be taken for that of an ended run.
fn lock_list(parent: &Path) -> Result<File> {
    let lock = File::create(parent.join("runs.lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// Removes the directories and cgroups of all ended runs below `parent`. Waits for those of their processes that are
/// still ending.
pub(crate) fn remove_ended_runs(parent: &Path) -> Result<()> {
    let _list_lock = lock_list(parent)?;
    for entry in fs::read_dir(parent)? {
        let path = entry?.path();
        if run_name(&path)?.starts_with(RUN_PREFIX) && path.is_dir() && has_ended(&path)? {
            eventually_within(MAX_END_TIME, "the removal of an ended run", || remove_run(&path))?;
        }
    }
    Ok(())
}

/// Removes the cgroups and the directory of a run. The directory is removed last, because the cgroups are found by its
/// name.
fn remove_run(run: &Path) -> Result<()> {
    for cgroup in cgroups(run_name(run)?) {
        remove_cgroup(&cgroup).with_context(|| format!("cannot remove {}", cgroup.display()))?;
    }
    fs::remove_dir_all(run).with_context(|| format!("cannot remove {}", run.display()))
}

/// Returns the name of a run: the last part of the path of its directory.
pub(crate) fn run_name(run: &Path) -> Result<&str> {
    run.file_name().and_then(OsStr::to_str).with_context(|| format!("{} has no name", run.display()))
}

/// Returns the paths of the cgroup of a run, in each hierarchy that systemd uses. Without the cgroups of their own, the
/// machines would share those of this host. `name` is the name of the run, or that and the name of a machine.
pub(crate) fn cgroups(name: &str) -> Vec<PathBuf> {
    let is_hierarchy = |path: &PathBuf| path.join("cgroup.procs").exists();
    let root = PathBuf::from("/sys/fs/cgroup");
    // With the older version of cgroups, the root only contains the hierarchies.
    let hierarchies = if is_hierarchy(&root) { vec![root] } else { vec![root.join("systemd"), root.join("unified")] };
    hierarchies.into_iter().filter(is_hierarchy).map(|path| path.join(format!("stemma-boot-{name}"))).collect()
}

/// Removes a cgroup with all cgroups in it. Fails if one has a process.
fn remove_cgroup(path: &Path) -> Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    // The files of a cgroup cannot be removed, and vanish with it.
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path())?;
        }
    }
    Ok(fs::remove_dir(path)?)
}

/// Returns the command that starts a program in the cgroup `name`, and creates that cgroup. The process of the command
/// becomes the program.
pub(crate) fn command_in_cgroup(name: &str, program: &str) -> Result<Command> {
    let cgroups = cgroups(name);
    if cgroups.is_empty() {
        bail!("no cgroup hierarchy of systemd is mounted below /sys/fs/cgroup");
    }
    let mut command = Command::new("sh");
    command.args(["-ec", r#"while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs"; shift; done; shift; exec "$@""#, "sh"]);
    for cgroup in cgroups {
        fs::create_dir_all(&cgroup).with_context(|| cgroup.display().to_string())?;
        command.arg(cgroup);
    }
    command.args(["--", program]);
    Ok(command)
}
