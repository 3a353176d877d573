//! A child process. Its output is collected, and it is killed by its id when the value is dropped.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Maximum time that a test waits for a condition. It is long enough for a busy machine, and only a failing test waits
/// this long.
pub const MAX_WAIT: Duration = Duration::from_mins(2);

/// Returns the path of one of the workspace's programs, in the target directory of the running test.
///
/// # Panics
/// When the test does not run from a target directory, or the program was not built.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let profile = test.ancestors().find(|dir| dir.join("deps").is_dir()).expect("a test stands below a target directory");
    let program = profile.join(name);
    assert!(program.exists(), "{} is not built: cargo build --workspace --bins", program.display());
    program
}

/// Runs a program to its end.
///
/// # Errors
/// When it cannot be started.
pub fn run<S: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> Result<Output> {
    command(name, arguments).output().with_context(|| format!("cannot start {name}"))
}

/// Starts a program once for each set of arguments. Waits for the exits only after all have started.
///
/// # Errors
/// When it cannot be started.
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

fn command<S: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(path(name));
    command.args(arguments).env("NO_COLOR", "1").stdin(Stdio::null());
    command
}

/// Runs a program that must succeed. Returns its standard output.
///
/// # Errors
/// When it ends with another status than 0. The error contains both outputs.
pub fn succeed<S: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> Result<String> {
    let arguments: Vec<_> = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
    let output = run(name, &arguments)?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        bail!("{name} {arguments:?}: {}\n{out}{err}", output.status);
    }
    Ok(out.into_owned())
}

/// A running program. It is killed when this value is dropped.
pub struct RunningProgram {
    child: Child,
    name: String,
    log: Arc<Mutex<Vec<String>>>,
    stdout: std::sync::mpsc::Receiver<String>,
}

impl RunningProgram {
    /// Starts a program. Standard error is collected, and standard output can be read line by line.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start<S: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> Result<Self> {
        Self::start_under(&[], name, arguments)
    }

    /// Same as [`RunningProgram::start`], through another program. `words` is the command line of that program, which
    /// then executes this one.
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
        let (lines, out) = std::sync::mpsc::channel();
        let stdout = child.stdout.take().context("standard output is a pipe")?;
        let stderr = child.stderr.take().context("standard error is a pipe")?;
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        let writer_log = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                writer_log.lock().expect("no thread panics with the log in hand").push(line);
            }
        });
        Ok(Self { child, name: name.to_owned(), log, stdout: out })
    }

    /// Returns the next line of standard output.
    ///
    /// # Errors
    /// When no line arrives in time. The error contains the log.
    pub fn next_line(&self) -> Result<String> {
        self.stdout.recv_timeout(MAX_WAIT).with_context(|| format!("{} printed nothing; its log:\n{}", self.name, self.log()))
    }

    /// Returns all lines that the program wrote to standard error so far.
    ///
    /// # Panics
    /// Never: the reading thread does not panic.
    #[must_use]
    pub fn log(&self) -> String {
        self.log.lock().expect("no thread panics with the log in hand").join("\n")
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the program ends by itself. Returns whether its exit status was 0.
    ///
    /// # Errors
    /// When it does not end in time.
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
    /// When it does not end in time.
    pub fn wait_with_log(self) -> Result<(bool, String)> {
        let log = Arc::clone(&self.log);
        let is_success = self.wait()?;
        // The reading thread holds the other reference until it has read the last line.
        let until = Instant::now() + MAX_WAIT;
        while Arc::strong_count(&log) > 1 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let log = log.lock().expect("no thread panics with the log in hand").join("\n");
        Ok((is_success, log))
    }

    /// Sends SIGSTOP and waits until all threads are stopped. The files are then as a SIGKILL would leave them.
    ///
    /// # Errors
    /// When the signal cannot be sent, or the program does not stop in time.
    pub fn pause(&self) -> Result<()> {
        let id = Pid::from_child(&self.child);
        kill_process(id, Signal::STOP).with_context(|| format!("cannot signal {}", self.name))?;
        // Without `EXITED`, so that the exit status can still be waited for.
        let stops = || waitid(WaitId::Pid(id), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        eventually("the program stands still", || stops()?.context("it runs"))?;
        Ok(())
    }

    /// Sends SIGCONT: the program continues.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn resume(&self) -> Result<()> {
        let id = Pid::from_child(&self.child);
        kill_process(id, Signal::CONT).with_context(|| format!("cannot signal {}", self.name))
    }

    /// Sends SIGKILL and waits for the end.
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
    /// When it does not end in time, or ends with another status than 0.
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

/// Returns the memory of a program in bytes, from this line of `/proc/PID/status` (`VmHWM:`, with the colon).
///
/// # Errors
/// When it is not running.
pub fn memory_bytes(id: u32, name: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| name.to_owned())?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().with_context(|| line.to_owned())?;
    Ok(kib * 1024)
}

/// Waits until a condition returns a value.
///
/// # Errors
/// When it does not do so in time. The error contains `what` and the last error of the condition.
pub fn eventually<T>(what: &str, condition: impl FnMut() -> Result<T>) -> Result<T> {
    eventually_within(MAX_WAIT, what, condition)
}

/// Waits until a condition returns a value, at most until the deadline.
///
/// # Errors
/// When it does not do so in time. The error contains `what` and the last error of the condition.
pub fn eventually_within<T>(deadline: Duration, what: &str, mut condition: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match condition() {
            Ok(value) => return Ok(value),
            Err(error) if start.elapsed() > deadline => return Err(error.context(format!("{what} did not come about"))),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Fails unless a file contains a text.
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

/// Calls `then` once when this process gets SIGINT from Ctrl-C. The terminal sends the same signal to its child
/// processes.
///
/// # Errors
/// When the runtime for the signal handler cannot be created.
pub fn on_interrupt(then: impl FnOnce() + Send + 'static) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            then();
        }
    });
    Ok(())
}
