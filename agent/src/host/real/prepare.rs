//! Prepares a command: resolves its account, its working directory, its environment and its standard input. A prepared
//! command is started as a child process (`spawn`) or as a unit of systemd (`units`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{MemfdFlags, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::accounts::{self, Account};
use super::directory_service::DirectoryService;
use super::process_setup::{DEFAULT_PATH, PASSWD};
use crate::host::{FileKind, HostCommand, HostError, HostPath, NotADirectory};

/// A command that is ready to be started.
pub(super) struct CommandSetup {
    /// The program, followed by its arguments. The program is `setpriv` if the command runs as another user.
    pub(super) argv: Vec<String>,
    /// The whole environment.
    pub(super) env: BTreeMap<String, String>,
    /// The standard input. `None` for `/dev/null`.
    pub(super) input: Option<File>,
}

/// Prepares a command to be started. `root` is the `--root` directory.
///
/// # Errors
/// [`HostError::NoAccount`], [`HostError::NoDirectoryAnswer`], or [`HostError::Io`].
pub(super) fn prepare(root: &Path, directory: &DirectoryService, command: &HostCommand) -> Result<CommandSetup, HostError> {
    let program = command.argv.first().map_or("", String::as_str);
    let account = command
        .user
        .as_deref()
        .map(|user| accounts::find_account(Path::new(PASSWD), &|kind, name| directory.find(kind, name), user))
        .transpose()?;
    let mut env: BTreeMap<String, String> =
        [("PATH", DEFAULT_PATH), ("HOME", "/root"), ("LANG", "C.UTF-8")].map(|(name, value)| (name.into(), value.into())).into();
    env.insert("STEMMA_ROOT".into(), root.display().to_string());
    if let Some(Account { name, home, shell, .. }) = &account {
        env.insert("HOME".into(), home.clone());
        env.insert("SHELL".into(), shell.clone());
        if let Some(name) = name {
            env.extend([("USER".into(), name.clone()), ("LOGNAME".into(), name.clone())]);
        }
    }
    env.extend(command.env.clone());
    let mut argv = account.map_or_else(Vec::new, |account| setpriv_words(&account));
    argv.extend_from_slice(&command.argv);
    let input = command.script.as_deref().map_or(command.input.as_slice(), str::as_bytes);
    let has_input = command.script.is_some() || !input.is_empty();
    let input = has_input.then(|| memory_file(input)).transpose().map_err(HostError::io("make the input of", program))?;
    Ok(CommandSetup { argv, env, input })
}

/// Returns the words of `setpriv` that are put before a program, or no words if the account is that of the agent.
/// `setpriv` sets all groups of an account with a name, also those from a directory service, and then executes the
/// program. An account without a name gets only its primary group. The standard library would set only the primary
/// group.
fn setpriv_words(account: &Account) -> Vec<String> {
    let Account { user, group, name, .. } = account;
    if (*user, *group) == (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()) {
        return Vec::new();
    }
    let groups = if name.is_some() { "--init-groups" } else { "--clear-groups" };
    vec!["setpriv".into(), format!("--reuid={user}"), format!("--regid={group}"), groups.into(), "--".into()]
}

/// Returns a file in memory with these bytes, open at its beginning. No other user can open it, because it has no name.
///
/// The standard input of a command is such a file and not a pipe. If the agent were killed while it writes into a pipe,
/// the command would read only a part.
pub(super) fn memory_file(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create(c"stemma", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// Opens the working directory of a command. Symbolic links in its path are followed, but cannot lead out of the root.
/// The error names the first part of the path that is missing or not a directory, if there is one.
pub(super) fn open_working_dir(root: BorrowedFd<'_>, cwd: &HostPath) -> Result<OwnedFd, HostError> {
    let open = |path: &str, flags: OFlags| {
        let resolution = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        super::open_at(root, &path[1..], OFlags::PATH | OFlags::CLOEXEC | flags, resolution)
    };
    open(cwd.as_str(), OFlags::DIRECTORY).map_err(|errno| {
        let path = cwd.as_str().to_owned();
        let mut partial_path = String::new();
        for name in cwd.names() {
            partial_path = format!("{partial_path}/{name}");
            if open(&partial_path, OFlags::DIRECTORY).is_err() {
                break;
            }
        }
        match not_a_directory(open(&partial_path, OFlags::NOFOLLOW)) {
            Some(obstacle) => HostError::BadWorkingDir { path, at: partial_path, found: obstacle },
            None => HostError::io("enter", path)(errno.into()),
        }
    })
}

/// Returns the kind of obstacle at a path where a directory was expected. `opened` is the result of opening that path
/// without following a link. Returns `None` if the path is a directory, or if its kind cannot be determined.
fn not_a_directory(opened: Result<OwnedFd, Errno>) -> Option<NotADirectory> {
    let file = match opened {
        Ok(file) => file,
        Err(Errno::NOENT) => return Some(NotADirectory::Nothing),
        Err(_) => return None,
    };
    match super::file_kind(rustix::fs::fstat(&file).ok()?.st_mode) {
        FileKind::Directory => None,
        FileKind::Link => {
            let target = rustix::fs::readlinkat(&file, "", Vec::new()).ok()?;
            Some(NotADirectory::Link(target.to_string_lossy().into_owned()))
        }
        kind @ (FileKind::File | FileKind::Special) => Some(NotADirectory::Other(kind)),
    }
}
