//! The real machine, accessed by system calls of the crate rustix. Every path is opened with `openat2` below the
//! directory `--root`. Symbolic links are not followed, except on the path of a command's working directory.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use self::directory_service::DirectoryService;
use self::tree::{RealDir, file_kind, link_error};
use super::{
    AccountKind, CommandPurpose, CommandResult, Dir, FileKind, Host, HostCommand, HostError, HostPath, LeftCommand, LockHolder,
    MAX_ACCOUNT_FILE_BYTES, NoSystemUnits, Pending, SystemUnits,
};

mod accounts;
mod directory_service;
mod exec_error;
mod inhibitors;
mod lock;
mod mounts;
mod prepare;
pub mod process_setup;
mod spawn;
mod swaps;
mod tree;
mod units;

/// Rules for the resolution of a path by `openat2`: the kernel follows no symbolic link and no magic link of `/proc`,
/// and opens nothing outside of the starting directory.
const CONFINED_FLAGS: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Directory that exists if systemd runs this machine (`sd_booted(3)`).
const SYSTEMD_DIR: &str = "/run/systemd/system";

use units::has_transient_unit;
pub use units::{COMMAND_UNIT_PATTERNS, live_owner};

/// The unit of the agent.
pub const AGENT_UNIT: &str = "stemma-agent.service";

/// The unit that is active after all tasks have succeeded since the boot.
pub const APPLIED_TARGET: &str = "stemma-applied.target";

/// The machine that this process runs on, below a root directory.
pub struct RealHost {
    root: PathBuf,
    /// The open root directory.
    fd: OwnedFd,
    random: SystemRandom,
    /// Random number of this process ([`Host::session_id`]).
    session: u32,
    /// The directory services of the machine, also with another root directory than `/`.
    directory: DirectoryService,
    /// Runs commands as units. `None` if systemd does not run the machine, or if this process is not root.
    units: Option<Rc<units::Units>>,
}

/// Returns whether systemd runs the host with this root directory. False for any root other than `/`.
#[must_use]
pub fn is_systemd_booted(root: &Path) -> bool {
    root == Path::new("/") && Path::new(SYSTEMD_DIR).exists()
}

impl RealHost {
    /// Opens the machine below the directory `root` (`--root`, or `/` by default). Symbolic links in `root` itself are
    /// resolved once, here.
    ///
    /// # Errors
    /// If `root` is not a directory that can be opened.
    pub fn new(root: &Path) -> Result<Self, HostError> {
        let root_text = || root.display().to_string();
        let root = root.canonicalize().map_err(HostError::io("open", root_text()))?;
        let fd = rustix::fs::open(&root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| HostError::io("open", root_text())(errno.into()))?;
        let mut host =
            Self { root, fd, random: SystemRandom::new(), session: 0, directory: DirectoryService::new(), units: None };
        host.session = u32::try_from(host.random() >> 32).expect("the upper half of 64 bits");
        host.units =
            (is_systemd_booted(&host.root) && rustix::process::geteuid().is_root()).then(|| Rc::new(units::Units::new()));
        Ok(host)
    }
}

impl RealHost {
    /// Runs a command as this unit, or as a child process. Calls `record` before the start.
    async fn run_in(
        &self,
        unit: Option<&str>,
        command: &HostCommand,
        record: &dyn Fn() -> Result<(), HostError>,
    ) -> Result<CommandResult, HostError> {
        match self.units.as_ref().zip(unit) {
            Some((units, unit)) => units.run(&self.root, self.fd.as_fd(), &self.directory, command, unit, record).await,
            None => {
                record()?;
                spawn::run(&self.root, self.fd.as_fd(), &self.directory, command).await
            }
        }
    }
}

impl Host for RealHost {
    fn root(&self) -> Result<Box<dyn Dir>, HostError> {
        let fd = open_dir(self.fd.as_fd(), ".").map_err(|errno| HostError::io("open", "/")(errno.into()))?;
        Ok(Box::new(RealDir { fd, path: String::new() }))
    }

    fn dir(&self, path: &HostPath) -> Result<Option<Box<dyn Dir>>, HostError> {
        match open_dir(self.fd.as_fd(), &path.as_str()[1..]) {
            Ok(fd) => Ok(Some(Box::new(RealDir { fd, path: path.to_string() }))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.path_error(path, errno)),
        }
    }

    fn run<'a>(&'a self, command: &'a HostCommand) -> Pending<'a, Result<CommandResult, HostError>> {
        Box::pin(async move {
            let unit = self.new_unit(&command.purpose);
            let result = self.run_in(unit.as_deref(), command, &|| Ok(())).await;
            if let Some(unit) = &unit {
                self.release_unit(unit).await;
            }
            result
        })
    }

    fn run_recorded<'a>(
        &'a self,
        command: &'a HostCommand,
        record: &'a dyn Fn() -> Result<(), HostError>,
    ) -> Pending<'a, Result<CommandResult, HostError>> {
        Box::pin(self.run_in(command.unit.as_deref(), command, record))
    }

    fn release_unit<'a>(&'a self, unit: &'a str) -> Pending<'a, ()> {
        Box::pin(async move {
            if let Some(units) = &self.units {
                units.release(unit).await;
            }
        })
    }

    fn new_unit(&self, purpose: &CommandPurpose) -> Option<String> {
        self.units.as_ref()?.new_name(purpose)
    }

    fn find_left_commands(&self, started: BTreeMap<String, String>) -> Pending<'_, Result<Vec<LeftCommand>, HostError>> {
        Box::pin(async move {
            match &self.units {
                Some(units) => units.find_left(&started).await,
                None => Ok(Vec::new()),
            }
        })
    }

    fn has_unit(&self, unit: &str) -> bool {
        self.units.is_some() && has_transient_unit(unit)
    }

    fn can_reboot(&self) -> bool {
        self.units.is_some()
    }

    fn shutdown_blockers(&self) -> Pending<'_, Result<Vec<String>, HostError>> {
        Box::pin(inhibitors::shutdown_blockers())
    }

    fn system_units(&self) -> &dyn SystemUnits {
        self.units.as_deref().map_or(&NoSystemUnits, |units| units)
    }

    fn lock_file(&self, path: &HostPath) -> Result<Option<OwnedFd>, HostError> {
        self.lock(path)
    }

    fn is_file_locked(&self, path: &HostPath) -> Result<bool, HostError> {
        self.is_locked(path)
    }

    fn find_lock_holder(&self, path: &HostPath) -> Result<Option<LockHolder>, HostError> {
        self.named_lock_holder(path)
    }

    fn system_path(&self, path: &HostPath) -> PathBuf {
        self.root.join(&path.as_str()[1..])
    }

    fn system_root(&self) -> PathBuf {
        self.root.clone()
    }

    fn user_id(&self, name: &str) -> Result<u32, HostError> {
        self.account_number(AccountKind::User, name)
    }

    fn group_id(&self, name: &str) -> Result<u32, HostError> {
        self.account_number(AccountKind::Group, name)
    }

    fn directory_entry(&self, kind: AccountKind, name: &str) -> Result<Option<String>, HostError> {
        // The services of this machine are not those of a system below another directory.
        if self.is_whole_machine() { self.directory.find(kind, name) } else { Ok(None) }
    }

    fn directory_entry_with_id(&self, kind: AccountKind, id: u32) -> Result<Option<String>, HostError> {
        if self.is_whole_machine() { self.directory.find_id(kind, id) } else { Ok(None) }
    }

    fn mount_points(&self) -> Result<Vec<String>, HostError> {
        mounts::read_mount_points(&self.root)
    }

    fn user_and_group(&self) -> (u32, u32) {
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
    }

    fn session_id(&self) -> u32 {
        self.session
    }

    fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        self.random.fill(&mut bytes).expect("the kernel gives random bytes once it has booted");
        u64::from_ne_bytes(bytes)
    }

    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Returns the time since the machine started, including the time in suspend.
    fn uptime(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
    }
}

impl RealHost {
    /// Returns whether the root directory is that of the machine.
    fn is_whole_machine(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Returns the id of a user or group. The file below the root directory is searched first, then that of this machine,
    /// and then its directory services.
    fn account_number(&self, kind: AccountKind, name: &str) -> Result<u32, HostError> {
        if !self.is_whole_machine()
            && let Some(bytes) = self.read_account_file(kind)?
            && let Some(id) = accounts::entry_number(&String::from_utf8_lossy(&bytes), name)
        {
            return Ok(id);
        }
        accounts::find_number(kind, Path::new(kind.file()), &|kind, name| self.directory.find(kind, name), name)
    }

    /// Returns the content of the file with the local accounts below the root directory, or `None` if it does not exist.
    fn read_account_file(&self, kind: AccountKind) -> Result<Option<Vec<u8>>, HostError> {
        let path = HostPath::from_static(kind.file());
        self.parent_dir(&path)?.map_or(Ok(None), |dir| dir.read(path.name(), MAX_ACCOUNT_FILE_BYTES))
    }

    /// Returns the error for a directory that could not be opened. Checks each directory on the path from the root
    /// down, to find the symbolic link or the file that caused the error.
    fn path_error(&self, path: &HostPath, errno: Errno) -> HostError {
        let mut prefix = String::new();
        for name in path.names() {
            prefix = format!("{prefix}/{name}");
            let Ok(stat) = rustix::fs::statat(&self.fd, &prefix[1..], AtFlags::SYMLINK_NOFOLLOW) else { break };
            match file_kind(stat.st_mode) {
                FileKind::Directory => {}
                FileKind::Link => {
                    let target = rustix::fs::readlinkat(&self.fd, &prefix[1..], Vec::new()).ok();
                    return link_error(path.as_str(), prefix, target);
                }
                found => {
                    return HostError::WrongKind { path: prefix, wanted: FileKind::Directory.as_str(), found: found.as_str() };
                }
            }
        }
        HostError::io("open", path.as_str())(errno.into())
    }
}

/// Opens a directory below `at`, so that the directory can be listed and synced, and its entries can be opened.
fn open_dir(at: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    open_at(at, path, flags, CONFINED_FLAGS)
}

/// Opens an existing file or directory below the directory `at`. `resolution` restricts which links and directories the
/// kernel may use to resolve the path.
fn open_at(at: BorrowedFd<'_>, path: &str, flags: OFlags, resolution: ResolveFlags) -> Result<OwnedFd, Errno> {
    loop {
        match rustix::fs::openat2(at, path, flags, Mode::empty(), resolution) {
            // A signal interrupted the call, or a concurrent rename may have moved the path out of the root. In the
            // second case the kernel requests a retry.
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests;
