//! Commands, each in a process group of its own that ends as a whole.

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
use super::surroundings::{PASSWD, UsualScore, without_terminal};
use super::unrun::unrun;
use crate::host::command::Tail;
use crate::host::{Command, End, Finished, HostError, HostPath, Kind, NoDirectory};

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

/// Runs a command to its end or its limit. The command's own exit decides: what it left behind may hold its output open.
pub(super) async fn run(root: &Path, root_fd: BorrowedFd<'_>, command: &Command) -> Result<Finished, HostError> {
    let program = command.argv.first().map_or("", String::as_str);
    let failed = |operation| HostError::io(operation, program);
    let (reader, writer) = io::pipe().map_err(failed("open a pipe for"))?;
    let mut prepared = prepare(root, command, writer)?;
    // It is entered in the new process: until then it is held.
    let entered = command.cwd.as_ref().map(|cwd| enter(root_fd, cwd)).transpose()?;
    prepared.current_dir(entered.as_ref().map_or_else(|| root.to_owned(), link_of));
    let mut child = {
        let _score = UsualScore::begin();
        prepared.spawn().map_err(|error| unrun(program, error))?
    };
    // It holds the writing end of the output too: while that is open here, the output never ends.
    drop(prepared);
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    let mut output = pipe::Receiver::from_owned_fd(reader.into()).map_err(failed("read from"))?;
    let mut tail = Tail::default();
    let feeding = feed(child.stdin.take(), &command.input);
    let end = match timeout(command.timeout, wait(&mut child, &mut output, &mut tail, feeding)).await {
        Ok(status) => {
            let end = ended(status.map_err(failed("wait for"))?);
            let _ = timeout(LINGER, read(&mut output, &mut tail)).await;
            if end.is_success() {
                // What it left running on purpose (a daemon) stays. What a failed one left would run twice after the next try.
                group.0 = None;
            }
            end
        }
        Err(_) => {
            stop(&group, &mut child).await;
            End::TimedOut
        }
    };
    Ok(Finished { end, output: tail.into_text() })
}

/// Opens the directory that a command starts in. Links in it are followed, and lead nowhere out of the root.
fn enter(root: BorrowedFd<'_>, cwd: &HostPath) -> Result<OwnedFd, HostError> {
    let open = |path: &str, how: OFlags| {
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        super::open_at(root, &path[1..], OFlags::PATH | OFlags::CLOEXEC | how, within)
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
        match no_directory(open(&at, OFlags::NOFOLLOW)) {
            Some(found) => HostError::Unentered { path, at, found },
            None => HostError::io("enter", path)(errno.into()),
        }
    })
}

/// What stands where no directory is, opened itself and not what it may lead to; `None`: the system does not say.
fn no_directory(opened: Result<OwnedFd, Errno>) -> Option<NoDirectory> {
    let found = match opened {
        Ok(found) => found,
        Err(Errno::NOENT) => return Some(NoDirectory::Nothing),
        Err(_) => return None,
    };
    match super::kind(rustix::fs::fstat(&found).ok()?.st_mode) {
        Kind::Directory => None,
        Kind::Link => {
            let target = rustix::fs::readlinkat(&found, "", Vec::new()).ok()?;
            Some(NoDirectory::Link(target.to_string_lossy().into_owned()))
        }
        kind @ (Kind::File | Kind::Special) => Some(NoDirectory::Other(kind)),
    }
}

/// The name by which a directory that is open is entered.
fn link_of(dir: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()))
}

fn prepare(root: &Path, command: &Command, output: io::PipeWriter) -> Result<tokio::process::Command, HostError> {
    let program = command.argv.first().map_or("", String::as_str);
    let failed = |operation| HostError::io(operation, program);
    let account = command.user.as_deref().map(|user| accounts::account(Path::new(PASSWD), user)).transpose()?;
    let mut spawned = begin(program, account.as_ref());
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
    without_terminal(&mut spawned);
    Ok(spawned)
}

fn input(command: &Command) -> io::Result<Stdio> {
    let Some(script) = &command.script else {
        return Ok(if command.input.is_empty() { Stdio::null() } else { Stdio::piped() });
    };
    // A pipe would be cut short when the agent is killed, and half a script run. This one is whole.
    let mut file = File::from(rustix::fs::memfd_create(c"script", MemfdFlags::CLOEXEC)?);
    file.write_all(script.as_bytes())?;
    file.rewind()?;
    Ok(file.into())
}

/// The program, by way of `setpriv` where it runs as another account: that knows the groups which the account stands in, also those of a
/// directory service, and becomes the program. The standard library would leave it without any but its primary group.
fn begin(program: &str, account: Option<&Account>) -> tokio::process::Command {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    match account.filter(|account| (account.user, account.group) != own) {
        None => tokio::process::Command::new(program),
        Some(Account { user, group, name, .. }) => {
            let mut spawned = tokio::process::Command::new("setpriv");
            let groups = if name.is_some() { "--init-groups" } else { "--clear-groups" };
            spawned.arg(format!("--reuid={user}")).arg(format!("--regid={group}")).args([groups, "--", program]);
            spawned
        }
    }
}

/// Waits for its exit, and takes in what it writes meanwhile.
async fn wait(
    child: &mut Child,
    output: &mut pipe::Receiver,
    tail: &mut Tail,
    feeding: impl Future<Output = ()>,
) -> io::Result<std::process::ExitStatus> {
    let mut beside = std::pin::pin!(async { tokio::join!(read(output, tail), feeding) });
    let mut is_open = true;
    loop {
        tokio::select! {
            // First, so that no flood of output keeps it from being seen.
            biased;
            status = child.wait() => return status,
            _ = &mut beside, if is_open => is_open = false,
        }
    }
}

/// Takes in all that is written, until nobody can write any more.
async fn read(output: &mut pipe::Receiver, tail: &mut Tail) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = output.read(&mut buffer).await {
        tail.push(&buffer[..length]);
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
