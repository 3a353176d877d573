//! A child process. Its output is collected, and it is killed by its id when the value is dropped.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Maximum time that a test waits for a condition. The time is long enough for a busy machine, and only a failing test
/// waits so long.
pub const MAX_WAIT: Duration = Duration::from_mins(2);

/// Returns the path of one of the workspace's programs, in the target directory of the running test.
///
/// # Panics
/// When the test does not run from a target directory, or the program was not built.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let profile = test.ancestors().find(|dir| dir.join("deps").is_dir()).expect("a test runs below a target directory");
    let program = profile.join(name);
    assert!(program.exists(), "{} is not built: cargo build --workspace --bins", program.display());
    program
}

/// Runs a program of the workspace to its end and returns its output.
///
/// # Errors
/// When the program cannot be started.
pub fn run<S: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> Result<Output> {
    command(name, arguments).output().with_context(|| format!("cannot start {name}"))
}

/// Starts a program once for each set of arguments, and returns the outputs in the same order. All processes start
/// before the first exit is awaited.
///
/// # Errors
/// When a process cannot be started.
pub fn run_concurrently<S: AsRef<OsStr>, A: IntoIterator<Item = S>>(
    name: &str,
    calls: impl IntoIterator<Item = A>,
) -> Result<Vec<Output>> {
    let spawn = |arguments: A| {
        let mut command = command(name, arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().with_context(|| format!("cannot start {name}"))
    };
    let children: Vec<Child> = calls.into_iter().map(spawn).collect::<Result<_>>()?;
    children.into_iter().map(|child| Ok(child.wait_with_output()?)).collect()
}

/// Returns the command that starts a program of the workspace, without colors and with empty standard input.
fn command<S: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(path(name));
    command.args(arguments).env("NO_COLOR", "1").stdin(Stdio::null());
    command
}

/// Runs a program that must succeed. Returns its standard output.
///
/// # Errors
/// When the program ends with another status than 0. The error contains both outputs.
pub fn succeed<S: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> Result<String> {
    let arguments: Vec<_> = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
    let output = run(name, &arguments)?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        bail!("{name} {arguments:?}: {}\n{stdout}{stderr}", output.status);
    }
    Ok(stdout.into_owned())
}

/// A running program. It is killed when this value is dropped.
pub struct RunningProgram {
    child: Child,
    name: String,
    log: Arc<Mutex<Vec<String>>>,
    stdout: std::sync::mpsc::Receiver<String>,
}

impl RunningProgram {
    /// Starts a program. Its standard error is collected, and its standard output can be read line by line.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start<S: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> Result<Self> {
        Self::start_under(&[], name, arguments)
    }

    /// Same as [`RunningProgram::start`], through another program. `words` is the command line of that program, which
    /// then executes the program `name`.
    ///
    /// # Errors
    /// As [`RunningProgram::start`].
    pub fn start_under<S: AsRef<OsStr>>(words: &[OsString], name: &str, arguments: impl IntoIterator<Item = S>) -> Result<Self> {
        let program = path(name).into_os_string();
        let mut words = words.iter().chain(std::iter::once(&program));
        let mut child = Command::new(words.next().context("a program")?)
            .args(words)
            .args(arguments)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let log = Arc::new(Mutex::new(Vec::new()));
        let (line_sender, line_receiver) = std::sync::mpsc::channel();
        let stdout = child.stdout.take().context("standard output is a pipe")?;
        let stderr = child.stderr.take().context("standard error is a pipe")?;
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = line_sender.send(line);
            }
        });
        let writer_log = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                writer_log.lock().expect("no thread panics while it has the lock").push(line);
            }
        });
        Ok(Self { child, name: name.to_owned(), log, stdout: line_receiver })
    }

    /// Waits for the next line of standard output and returns it.
    ///
    /// # Errors
    /// When no line arrives within [`MAX_WAIT`] or before the end of standard output. The error contains the log.
    pub fn next_line(&self) -> Result<String> {
        self.stdout.recv_timeout(MAX_WAIT).with_context(|| format!("{} printed nothing; its log:\n{}", self.name, self.log()))
    }

    /// Returns all lines that the program wrote to standard error so far.
    ///
    /// # Panics
    /// Never, because the thread that reads standard error does not panic.
    #[must_use]
    pub fn log(&self) -> String {
        self.log.lock().expect("no thread panics while it has the lock").join("\n")
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the program ends by itself. Returns whether its exit status was 0.
    ///
    /// # Errors
    /// When the program does not end within [`MAX_WAIT`].
    pub fn wait(mut self) -> Result<bool> {
        let start = Instant::now();
        while start.elapsed() < MAX_WAIT {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.success());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("{} did not end:\n{}", self.name, self.log())
    }

    /// Waits until the program ends by itself. Returns whether its exit status was 0, and its standard error.
    ///
    /// # Errors
    /// When the program does not end within [`MAX_WAIT`].
    pub fn wait_with_log(self) -> Result<(bool, String)> {
        let log = Arc::clone(&self.log);
        let is_success = self.wait()?;
        // The reading thread holds the other reference until it has read the last line.
        let deadline = Instant::now() + MAX_WAIT;
        while Arc::strong_count(&log) > 1 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let log = log.lock().expect("no thread panics while it has the lock").join("\n");
        Ok((is_success, log))
    }

    /// Sends SIGSTOP and waits until all threads of the program are stopped. The files are then in the same state as
    /// after a SIGKILL.
    ///
    /// # Errors
    /// When the signal cannot be sent, or the program does not stop in time.
    pub fn pause(&self) -> Result<()> {
        let id = Pid::from_child(&self.child);
        kill_process(id, Signal::STOP).with_context(|| format!("cannot signal {}", self.name))?;
        // `EXITED` is not set, so that this call does not consume the exit status of the program.
        let stop_status = || waitid(WaitId::Pid(id), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        eventually("the program is stopped", || stop_status()?.context("the program still runs"))?;
        Ok(())
    }

    /// Sends SIGCONT, so that a paused program continues.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn resume(&self) -> Result<()> {
        let id = Pid::from_child(&self.child);
        kill_process(id, Signal::CONT).with_context(|| format!("cannot signal {}", self.name))
    }

    /// Sends SIGKILL and waits until the program has ended.
    ///
    /// # Errors
    /// When the program cannot be killed.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends SIGTERM and waits for a clean end.
    ///
    /// # Errors
    /// When the program does not end within [`MAX_WAIT`], or ends with another status than 0.
    pub fn stop(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).with_context(|| format!("cannot signal {}", self.name))?;
        let start = Instant::now();
        while start.elapsed() < MAX_WAIT {
            if let Some(status) = self.child.try_wait()? {
                if !status.success() {
                    bail!("{} ended with {status}:\n{}", self.name, self.log());
                }
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("{} did not end after SIGTERM:\n{}", self.name, self.log())
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a memory figure of a process from `/proc/PID/status`, in bytes. `field` is the name of the line with the
/// colon, for example `VmHWM:`.
///
/// # Errors
/// When the process does not run, or the line is missing.
pub fn memory_bytes(id: u32, field: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)).with_context(|| field.to_owned())?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().with_context(|| line.to_owned())?;
    Ok(kib * 1024)
}

/// Calls a condition repeatedly until it succeeds, and returns its value.
///
/// # Errors
/// When the condition does not succeed within [`MAX_WAIT`]. The error contains `description` and the last error of the
/// condition.
pub fn eventually<T>(description: &str, condition: impl FnMut() -> Result<T>) -> Result<T> {
    eventually_within(MAX_WAIT, description, condition)
}

/// Calls a condition repeatedly until it succeeds, and returns its value.
///
/// # Errors
/// When the condition does not succeed within `max_wait`. The error contains `description` and the last error of the
/// condition.
pub fn eventually_within<T>(max_wait: Duration, description: &str, mut condition: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match condition() {
            Ok(value) => return Ok(value),
            Err(error) if start.elapsed() > max_wait => return Err(error.context(format!("{description} did not happen"))),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Checks that a file contains a text.
///
/// # Errors
/// When the file cannot be read or does not contain the text. The error then shows the content.
pub fn check_file_contains(path: &Path, expected: &str) -> Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    if !text.contains(expected) {
        bail!("{} does not contain {expected:?}:\n{text}", path.display());
    }
    Ok(())
}

/// Calls `action` once when this process gets SIGINT, for example from Ctrl-C. The terminal also sends SIGINT to the
/// child processes.
///
/// # Errors
/// When the runtime for the signal handler cannot be created.
pub fn on_interrupt(action: impl FnOnce() + Send + 'static) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            action();
        }
    });
    Ok(())
}
