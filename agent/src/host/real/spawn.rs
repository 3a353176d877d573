//! Runs commands. Each command has its own process group, so that the command can be killed with all its children.

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

/// Maximum time for which the output is still read after a command has ended. A child of the command may hold the
/// output open for much longer.
const OUTPUT_LINGER: Duration = Duration::from_millis(200);

/// The process group of a command. The group is killed when this value is dropped, except if the value is `None`.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    /// Sends a signal to all processes of the group. Does nothing if the value is `None`.
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // The error is ignored, because the processes of the group may have ended by themselves.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Runs a command until it exits or exceeds its time limit. Returns how the command ended and the end of its output.
/// After the exit, the output is read only for [`OUTPUT_LINGER`], because a child that still runs may hold it open.
/// Kills the other processes of the command's group, unless the command succeeded.
pub(super) async fn run(root: &Path, root_fd: BorrowedFd<'_>, command: &HostCommand) -> Result<CommandResult, HostError> {
    let program = command.argv.first().map_or("", String::as_str);
    let io_error = |operation| HostError::io(operation, program);
    let (output_reader, output_writer) = io::pipe().map_err(io_error("open a pipe for"))?;
    let mut prepared = prepare(root, command, output_writer)?;
    // The new process enters the directory by this file descriptor, so the descriptor must be open until `spawn`.
    let working_dir = command.cwd.as_ref().map(|cwd| open_working_dir(root_fd, cwd)).transpose()?;
    prepared.current_dir(working_dir.as_ref().map_or_else(|| root.to_owned(), fd_path));
    let mut child = {
        let _score = OomScoreGuard::new();
        prepared.spawn().map_err(|error| exec_error(program, error))?
    };
    // `prepared` also holds the writing end of the output pipe. While that end is open in the agent, a read of the
    // output would never reach the end.
    drop(prepared);
    let mut group = ProcessGroup(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    let mut output = pipe::Receiver::from_owned_fd(output_reader.into()).map_err(io_error("read from"))?;
    let mut tail = OutputTail::default();
    let write_stdin = write_input(child.stdin.take(), &command.input);
    let end = match timeout(command.timeout, wait(&mut child, &mut output, &mut tail, write_stdin)).await {
        Ok(status) => {
            let end = exit_kind(status.map_err(io_error("wait for"))?);
            let _ = timeout(OUTPUT_LINGER, read_output(&mut output, &mut tail)).await;
            if end.is_success() {
                // A daemon that a successful command started may continue to run. The remaining processes of a failed
                // command are killed, because the next attempt would start them a second time.
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

/// Opens the working directory of a command. Symbolic links in its path are followed, but cannot lead out of the root.
/// The error names the first part of the path that is missing or not a directory, if there is one.
fn open_working_dir(root: BorrowedFd<'_>, cwd: &HostPath) -> Result<OwnedFd, HostError> {
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

/// Returns the path of an open directory in `/proc/self/fd`, by which a new process can enter the directory.
fn fd_path(dir: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()))
}

/// Prepares a command to be spawned: sets its account, environment, standard input and process group. The pipe `output`
/// becomes its standard output and standard error. The caller sets the working directory.
fn prepare(root: &Path, command: &HostCommand, output: io::PipeWriter) -> Result<tokio::process::Command, HostError> {
    let program = command.argv.first().map_or("", String::as_str);
    let io_error = |operation| HostError::io(operation, program);
    let account = command.user.as_deref().map(|user| accounts::find_account(Path::new(PASSWD), user)).transpose()?;
    let mut prepared = base_command(program, account.as_ref());
    prepared
        .args(command.argv.iter().skip(1))
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
        .env("LANG", "C.UTF-8")
        .env("STEMMA_ROOT", root)
        .stdin(input(command).map_err(io_error("make the input of"))?)
        .stdout(output.try_clone().map_err(io_error("open a pipe for"))?)
        .stderr(output)
        .process_group(0);
    if let Some(account) = &account {
        let Account { name, home, shell, .. } = account;
        prepared.env("HOME", home).env("SHELL", shell);
        if let Some(name) = name {
            prepared.env("USER", name).env("LOGNAME", name);
        }
    }
    prepared.envs(&command.env);
    detach_command_terminal(&mut prepared);
    Ok(prepared)
}

/// Returns the standard input of a command: its script as a file in memory, a pipe for its input, or else `/dev/null`.
fn input(command: &HostCommand) -> io::Result<Stdio> {
    let Some(script) = &command.script else {
        return Ok(if command.input.is_empty() { Stdio::null() } else { Stdio::piped() });
    };
    // The script is a complete file in memory, not a pipe. If the agent were killed while it writes into a pipe, the
    // command would run only a part of the script.
    let mut file = File::from(rustix::fs::memfd_create(c"script", MemfdFlags::CLOEXEC)?);
    file.write_all(script.as_bytes())?;
    file.rewind()?;
    Ok(file.into())
}

/// Returns the command that runs a program, through `setpriv` if the account is not that of the agent. `setpriv` sets
/// all groups of an account with a name, also those from a directory service, and then executes the program. An account
/// without a name gets only its primary group. The standard library would set only the primary group.
fn base_command(program: &str, account: Option<&Account>) -> tokio::process::Command {
    let agent_ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    match account.filter(|account| (account.user, account.group) != agent_ids) {
        None => tokio::process::Command::new(program),
        Some(Account { user, group, name, .. }) => {
            let mut command = tokio::process::Command::new("setpriv");
            let groups = if name.is_some() { "--init-groups" } else { "--clear-groups" };
            command.arg(format!("--reuid={user}")).arg(format!("--regid={group}")).args([groups, "--", program]);
            command
        }
    }
}

/// Waits for the child to exit. Until then, reads the child's output into `tail` and polls `write_stdin`, which writes
/// the child's input.
async fn wait(
    child: &mut Child,
    output: &mut pipe::Receiver,
    tail: &mut OutputTail,
    write_stdin: impl Future<Output = ()>,
) -> io::Result<std::process::ExitStatus> {
    let mut transfer = std::pin::pin!(async { tokio::join!(read_output(output, tail), write_stdin) });
    let mut is_transfer_open = true;
    loop {
        tokio::select! {
            // The exit is polled first, so that a flood of output cannot hide it.
            biased;
            status = child.wait() => return status,
            _ = &mut transfer, if is_transfer_open => is_transfer_open = false,
        }
    }
}

/// Reads the output of a command into `tail` until all processes have closed the output.
async fn read_output(output: &mut pipe::Receiver, tail: &mut OutputTail) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = output.read(&mut buffer).await {
        tail.push(&buffer[..length]);
    }
}

/// Writes `bytes` to the standard input of a command, if the input is a pipe, and then closes the pipe.
async fn write_input(pipe: Option<ChildStdin>, bytes: &[u8]) {
    if let Some(mut pipe) = pipe {
        // An error is ignored, because the command has already ended or does not read its input.
        let _ = pipe.write_all(bytes).await;
    }
}

/// Ends a process group by SIGTERM. If the command has not exited after [`TERMINATE_GRACE`], sends SIGKILL.
async fn stop(group: &ProcessGroup, child: &mut Child) {
    group.signal(Signal::TERM);
    if timeout(TERMINATE_GRACE, child.wait()).await.is_err() {
        group.signal(Signal::KILL);
        let _ = child.wait().await;
    }
}

/// Converts an exit status to the exit code of the command, or to the signal that ended the command.
fn exit_kind(status: std::process::ExitStatus) -> ExitKind {
    status.code().map_or_else(|| ExitKind::Signal(status.signal().unwrap_or(0)), ExitKind::Status)
}
