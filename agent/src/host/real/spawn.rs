//! Commands, each in a process group of its own that ends as a whole.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdin};
use tokio::time::timeout;

use super::accounts;
use crate::host::command::Tail;
use crate::host::{Command, End, Finished, HostError};

/// Between the polite signal and the other one.
const GRACE: Duration = Duration::from_secs(5);

/// What a child left behind may hold the output open for, after the command itself has ended.
const LINGER: Duration = Duration::from_millis(200);

/// A process group that is ended when nobody waits for it any more.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // It may have ended by itself: then there is no one to tell.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Runs a command to its end or its limit.
pub(super) async fn run(root: &Path, command: &Command) -> Result<Finished, HostError> {
    let program = command.argv.first().map_or("", String::as_str);
    let failed = |operation| HostError::io(operation, program);
    let (reader, writer) = io::pipe().map_err(failed("open a pipe for"))?;
    let mut child = prepare(root, command, writer)?.spawn().map_err(failed("run"))?;
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    let mut output = pipe::Receiver::from_owned_fd(reader.into()).map_err(failed("read from"))?;
    let mut tail = Tail::default();
    let input = child.stdin.take();
    let end = {
        let work = async {
            let (status, ()) = tokio::join!(wait(&mut child, &mut output, &mut tail), feed(input, &command.input));
            status
        };
        timeout(command.timeout, work).await
    };
    let end = match end {
        Ok(status) => {
            // What it left running on purpose (a daemon) stays.
            group.0 = None;
            ended(status.map_err(failed("wait for"))?)
        }
        Err(_) => {
            stop(&group, &mut child).await;
            End::TimedOut
        }
    };
    Ok(Finished { end, output: tail.into_text() })
}

fn prepare(root: &Path, command: &Command, output: io::PipeWriter) -> Result<tokio::process::Command, HostError> {
    let program = command.argv.first().map_or("", String::as_str);
    let failed = |operation| HostError::io(operation, program);
    let mut spawned = tokio::process::Command::new(program);
    spawned
        .args(command.argv.iter().skip(1))
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
        .env("LANG", "C.UTF-8")
        .env("STEMMA_ROOT", root)
        .envs(&command.env)
        .current_dir(command.cwd.as_ref().map_or_else(|| root.to_owned(), |cwd| root.join(&cwd.as_str()[1..])))
        .stdin(if command.input.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(output.try_clone().map_err(failed("open a pipe for"))?)
        .stderr(output)
        .process_group(0);
    if let Some(user) = &command.user {
        let (user, group) = accounts::user_and_group(Path::new("/etc/passwd"), user)?;
        if (user, group) != (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()) {
            spawned.uid(user).gid(group);
        }
    }
    Ok(spawned)
}

/// Reads what it writes until it has ended, and a moment longer.
async fn wait(child: &mut Child, output: &mut pipe::Receiver, tail: &mut Tail) -> io::Result<std::process::ExitStatus> {
    let mut buffer = [0; 4096];
    loop {
        tokio::select! {
            biased;
            read = output.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return child.wait().await,
                Ok(length) => tail.push(&buffer[..length]),
            },
            status = child.wait() => {
                while let Ok(Ok(length @ 1..)) = timeout(LINGER, output.read(&mut buffer)).await {
                    tail.push(&buffer[..length]);
                }
                return status;
            }
        }
    }
}

async fn feed(input: Option<ChildStdin>, bytes: &[u8]) {
    if let Some(mut input) = input {
        // A command that does not read its input has ended already, or does not want it.
        let _ = input.write_all(bytes).await;
    }
}

async fn stop(group: &Group, child: &mut Child) {
    group.signal(Signal::TERM);
    if timeout(GRACE, child.wait()).await.is_err() {
        group.signal(Signal::KILL);
        let _ = child.wait().await;
    }
}

fn ended(status: std::process::ExitStatus) -> End {
    status.code().map_or_else(|| End::Signal(status.signal().unwrap_or(0)), End::Status)
}
