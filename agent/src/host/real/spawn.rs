//! Runs commands. Each command has a process group of its own, which is killed as a whole.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::fs::{MemfdFlags, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdin};
use tokio::time::timeout;

use super::accounts::{self, Account};
use super::exec_error::exec_error;
use super::process_setup::{OomScoreGuard, PASSWD, detach_command_terminal};
use crate::host::command::OutputTail;
use crate::host::{CommandResult, ExitKind, FileKind, HostCommand, HostError, HostPath, NotADirectory};

/// Time between SIGTERM and SIGKILL for a command that exceeded its time limit.
const TERMINATE_GRACE: Duration = Duration::from_secs(5);

/// Time for which the output is still read after a command has ended, if a child of the command holds the output open.
const OUTPUT_LINGER: Duration = Duration::from_millis(200);

/// The process group of a command, which is killed when this value is dropped. `None` if the group must live on.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // The group may have ended by itself. Then there is nothing to signal, and the error is ignored.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Runs a command until it exits or exceeds its time limit. Does not wait for the end of the output, because a child
/// that the command left may hold the output open.
pub(super) async fn run(root: &Path, root_fd: BorrowedFd<'_>, command: &HostCommand) -> Result<CommandResult, HostError> {
    let program = command.argv.first().map_or("", String::as_str);
    let failed = |operation| HostError::io(operation, program);
    let (reader, writer) = io::pipe().map_err(failed("open a pipe for"))?;
    let mut prepared = prepare(root, command, writer)?;
    // The new process enters the directory by this descriptor, so it stays open until then.
    let working_dir = command.cwd.as_ref().map(|cwd| open_working_dir(root_fd, cwd)).transpose()?;
    prepared.current_dir(working_dir.as_ref().map_or_else(|| root.to_owned(), fd_path));
    let mut child = {
        let _score = OomScoreGuard::new();
        prepared.spawn().map_err(|error| exec_error(program, error))?
    };
    // `prepared` also holds the writing end of the output. While this end is open here, the output never ends.
    drop(prepared);
    let mut group = ProcessGroup(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    let mut output = pipe::Receiver::from_owned_fd(reader.into()).map_err(failed("read from"))?;
    let mut tail = OutputTail::default();
    let feeding = write_input(child.stdin.take(), &command.input);
    let end = match timeout(command.timeout, wait(&mut child, &mut output, &mut tail, feeding)).await {
        Ok(status) => {
            let end = exit_kind(status.map_err(failed("wait for"))?);
            let _ = timeout(OUTPUT_LINGER, read_output(&mut output, &mut tail)).await;
            if end.is_success() {
                // A daemon that a successful command started may live on. A process that a failed command left is
                // killed, because the next try would start it a second time.
                group.0 = None;
            }
            end
        }
        Err(_) => {
            stop(&group, &mut child).await;
            ExitKind::TimedOut
        }
    };
    Ok(CommandResult { end, output: tail.into_text() })
}

/// Opens the working directory of a command. Links in its path are followed, but cannot lead out of the root. If this
/// fails, the error names the first part of the path that is not a directory.
fn open_working_dir(root: BorrowedFd<'_>, cwd: &HostPath) -> Result<OwnedFd, HostError> {
    let open = |path: &str, flags: OFlags| {
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        super::open_at(root, &path[1..], OFlags::PATH | OFlags::CLOEXEC | flags, within)
    };
    open(cwd.as_str(), OFlags::DIRECTORY).map_err(|errno| {
        let path = cwd.as_str().to_owned();
        let mut at = String::new();
        for name in cwd.names() {
            at = format!("{at}/{name}");
            if open(&at, OFlags::DIRECTORY).is_err() {
                break;
            }
        }
        match not_a_directory(open(&at, OFlags::NOFOLLOW)) {
            Some(found) => HostError::BadWorkingDir { path, at, found },
            None => HostError::io("enter", path)(errno.into()),
        }
    })
}

/// Returns what exists in place of a directory, from the result of opening it. If it is a link, the link itself is
/// examined, not its target. Returns `None` if it is a directory or the system does not say.
fn not_a_directory(opened: Result<OwnedFd, Errno>) -> Option<NotADirectory> {
    let found = match opened {
        Ok(found) => found,
        Err(Errno::NOENT) => return Some(NotADirectory::Nothing),
        Err(_) => return None,
    };
    match super::file_kind(rustix::fs::fstat(&found).ok()?.st_mode) {
        FileKind::Directory => None,
        FileKind::Link => {
            let target = rustix::fs::readlinkat(&found, "", Vec::new()).ok()?;
            Some(NotADirectory::Link(target.to_string_lossy().into_owned()))
        }
        kind @ (FileKind::File | FileKind::Special) => Some(NotADirectory::Other(kind)),
    }
}

/// Returns a path by which a new process can enter an open directory.
fn fd_path(dir: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()))
}

/// Prepares a command with its account, its environment, its standard input and `output` as its standard output and
/// standard error.
fn prepare(root: &Path, command: &HostCommand, output: io::PipeWriter) -> Result<tokio::process::Command, HostError> {
    let program = command.argv.first().map_or("", String::as_str);
    let failed = |operation| HostError::io(operation, program);
    let account = command.user.as_deref().map(|user| accounts::find_account(Path::new(PASSWD), user)).transpose()?;
    let mut spawned = base_command(program, account.as_ref());
    spawned
        .args(command.argv.iter().skip(1))
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
        .env("LANG", "C.UTF-8")
        .env("STEMMA_ROOT", root)
        .stdin(input(command).map_err(failed("make the input of"))?)
        .stdout(output.try_clone().map_err(failed("open a pipe for"))?)
        .stderr(output)
        .process_group(0);
    if let Some(account) = &account {
        let Account { name, home, shell, .. } = account;
        spawned.env("HOME", home).env("SHELL", shell);
        if let Some(name) = name {
            spawned.env("USER", name).env("LOGNAME", name);
        }
    }
    spawned.envs(&command.env);
    detach_command_terminal(&mut spawned);
    Ok(spawned)
}

/// Returns the standard input of a command: its script as a file, a pipe for its input, or nothing to read.
fn input(command: &HostCommand) -> io::Result<Stdio> {
    let Some(script) = &command.script else {
        return Ok(if command.input.is_empty() { Stdio::null() } else { Stdio::piped() });
    };
    // The script is a complete file in memory. If the agent was killed while it wrote the script into a pipe, the
    // command would run half a script.
    let mut file = File::from(rustix::fs::memfd_create(c"script", MemfdFlags::CLOEXEC)?);
    file.write_all(script.as_bytes())?;
    file.rewind()?;
    Ok(file.into())
}

/// Returns the command that runs a program, directly or through `setpriv` if it runs as another account. `setpriv` sets
/// all groups of the account, also those from a directory service, and then becomes the program. The standard library
/// would set the primary group only.
fn base_command(program: &str, account: Option<&Account>) -> tokio::process::Command {
    let current = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    match account.filter(|account| (account.user, account.group) != current) {
        None => tokio::process::Command::new(program),
        Some(Account { user, group, name, .. }) => {
            let mut spawned = tokio::process::Command::new("setpriv");
            let groups = if name.is_some() { "--init-groups" } else { "--clear-groups" };
            spawned.arg(format!("--reuid={user}")).arg(format!("--regid={group}")).args([groups, "--", program]);
            spawned
        }
    }
}

/// Waits for the child to exit, and in the meantime reads its output and writes its input (`feeding`).
async fn wait(
    child: &mut Child,
    output: &mut pipe::Receiver,
    tail: &mut OutputTail,
    feeding: impl Future<Output = ()>,
) -> io::Result<std::process::ExitStatus> {
    let mut transfer = std::pin::pin!(async { tokio::join!(read_output(output, tail), feeding) });
    let mut is_open = true;
    loop {
        tokio::select! {
            // The exit is polled first, so that a flood of output cannot hide it.
            biased;
            status = child.wait() => return status,
            _ = &mut transfer, if is_open => is_open = false,
        }
    }
}

/// Reads the output until all writers have closed it.
async fn read_output(output: &mut pipe::Receiver, tail: &mut OutputTail) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = output.read(&mut buffer).await {
        tail.push(&buffer[..length]);
    }
}

/// Writes the input of a command and then closes its standard input.
async fn write_input(input: Option<ChildStdin>, bytes: &[u8]) {
    if let Some(mut input) = input {
        // A command that does not read its input has ended already, or does not need it.
        let _ = input.write_all(bytes).await;
    }
}

/// Ends a process group by SIGTERM, and by SIGKILL if the command has not exited after [`TERMINATE_GRACE`].
async fn stop(group: &ProcessGroup, child: &mut Child) {
    group.signal(Signal::TERM);
    if timeout(TERMINATE_GRACE, child.wait()).await.is_err() {
        group.signal(Signal::KILL);
        let _ = child.wait().await;
    }
}

fn exit_kind(status: std::process::ExitStatus) -> ExitKind {
    status.code().map_or_else(|| ExitKind::Signal(status.signal().unwrap_or(0)), ExitKind::Status)
}
