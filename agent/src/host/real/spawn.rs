//! Runs commands as child processes. Each command has its own process group, so that the command can be killed with all
//! its children.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::Child;
use tokio::time::timeout;

use super::directory_service::DirectoryService;
use super::exec_error::exec_error;
use super::prepare::{CommandSetup, open_working_dir, prepare};
use super::process_setup::{OomScoreGuard, detach_command_terminal};
use crate::host::command::OutputTail;
use crate::host::{CommandResult, ExitKind, HostCommand, HostError};

/// Time between SIGTERM and SIGKILL for a command that exceeded its time limit.
pub(super) const TERMINATE_GRACE: Duration = Duration::from_secs(5);

/// Maximum time for which the output is still read after a command has ended. A child of the command may hold the
/// output open for much longer.
pub(super) const OUTPUT_LINGER: Duration = Duration::from_millis(200);

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
pub(super) async fn run(
    root: &Path,
    root_fd: BorrowedFd<'_>,
    directory: &DirectoryService,
    command: &HostCommand,
) -> Result<CommandResult, HostError> {
    let program = command.argv.first().map_or("", String::as_str);
    let io_error = |operation| HostError::io(operation, program);
    let (output_reader, output_writer) = io::pipe().map_err(io_error("open a pipe for"))?;
    let mut prepared = child_command(prepare(root, directory, command)?, output_writer).map_err(io_error("open a pipe for"))?;
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
    let end = match timeout(command.timeout, read_until(child.wait(), &mut output, &mut tail)).await {
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

/// Returns the path of an open directory in `/proc/self/fd`, by which a new process can enter the directory.
fn fd_path(dir: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()))
}

/// Returns a command of the standard library for a prepared command. The pipe `output` becomes its standard output and
/// standard error. The caller sets the working directory.
fn child_command(prepared: CommandSetup, output: io::PipeWriter) -> io::Result<tokio::process::Command> {
    let CommandSetup { argv, env, input } = prepared;
    let (program, args) = argv.split_first().map_or(("", [].as_slice()), |(program, args)| (program.as_str(), args));
    let mut command = tokio::process::Command::new(program);
    command
        .args(args)
        .env_clear()
        .envs(env)
        .stdin(input.map_or_else(Stdio::null, Stdio::from))
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0);
    detach_command_terminal(&mut command);
    Ok(command)
}

/// Waits for the end of a command. Until then, reads its output into `tail`.
pub(super) async fn read_until<T>(end: impl Future<Output = T>, output: &mut pipe::Receiver, tail: &mut OutputTail) -> T {
    let mut end = std::pin::pin!(end);
    let mut reading = std::pin::pin!(read_output(output, tail));
    let mut is_output_open = true;
    loop {
        tokio::select! {
            // The end is polled first, so that a flood of output cannot hide it.
            biased;
            end = &mut end => return end,
            () = &mut reading, if is_output_open => is_output_open = false,
        }
    }
}

/// Reads the output of a command into `tail` until all processes have closed the output.
pub(super) async fn read_output(output: &mut pipe::Receiver, tail: &mut OutputTail) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = output.read(&mut buffer).await {
        tail.push(&buffer[..length]);
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
