//! One started program: its output kept, ended by its own id when the value is dropped.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// How long anything that a test waits for may take, also beside all that a busy machine runs. Only a test that fails waits so long.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// The path of one of the workspace's programs, built beside the running test.
///
/// # Panics
/// When the test was started from elsewhere than a target directory, or the program was not built.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let profile =
        test.ancestors().find(|dir| dir.join("deps").is_dir()).expect("a test stands below a target directory");
    let program = profile.join(name);
    assert!(program.exists(), "{} is not built: cargo build --workspace --bins", program.display());
    program
}

/// Runs a program to its end.
///
/// # Errors
/// When it can't be started.
pub fn run<S: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> Result<Output> {
    prepared(name, arguments).output().with_context(|| format!("cannot start {name}"))
}

/// Begins a program several times, each time with arguments of its own, and waits for the end of all only when all have begun.
///
/// # Errors
/// When it can't be started.
pub fn run_at_once<S: AsRef<OsStr>, A: IntoIterator<Item = S>>(
    name: &str,
    calls: impl IntoIterator<Item = A>,
) -> Result<Vec<Output>> {
    let begin = |arguments: A| {
        let mut one = prepared(name, arguments);
        one.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().with_context(|| format!("cannot start {name}"))
    };
    let begun: Vec<Child> = calls.into_iter().map(begin).collect::<Result<_>>()?;
    begun.into_iter().map(|one| Ok(one.wait_with_output()?)).collect()
}

fn prepared<S: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> Command {
    let mut prepared = Command::new(path(name));
    prepared.args(arguments).env("NO_COLOR", "1").stdin(Stdio::null());
    prepared
}

/// Runs a program that must succeed, and gives its standard output.
///
/// # Errors
/// When it ends with another status than 0; both outputs are in the error.
pub fn succeed<S: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> Result<String> {
    let arguments: Vec<_> = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
    let output = run(name, &arguments)?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        bail!("{name} {arguments:?}: {}\n{out}{err}", output.status);
    }
    Ok(out.into_owned())
}

/// A program that runs until it is told otherwise.
pub struct Running {
    child: Child,
    name: String,
    log: Arc<Mutex<Vec<String>>>,
    out: std::sync::mpsc::Receiver<String>,
}

impl Running {
    /// Starts a program; its standard error is kept, its standard output is read line by line.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn start<S: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> Result<Self> {
        Self::start_under(&[], name, arguments)
    }

    /// The same by another program of the system, which is given with the words before the program's own and becomes the program.
    ///
    /// # Errors
    /// As [`Running::start`].
    pub fn start_under<S: AsRef<OsStr>>(
        words: &[OsString],
        name: &str,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Self> {
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
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                kept.lock().expect("no thread panics with the log in hand").push(line);
            }
        });
        Ok(Self { child, name: name.to_owned(), log, out })
    }

    /// The next line of standard output.
    ///
    /// # Errors
    /// When none comes in time; the log is in the error.
    pub fn line(&self) -> Result<String> {
        self.out
            .recv_timeout(PATIENCE)
            .with_context(|| format!("{} printed nothing; its log:\n{}", self.name, self.log()))
    }

    /// Everything that it wrote to standard error so far.
    ///
    /// # Panics
    /// Never: the reading thread does not panic.
    #[must_use]
    pub fn log(&self) -> String {
        self.log.lock().expect("no thread panics with the log in hand").join("\n")
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its own end; whether that was with status 0.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn ended(mut self) -> Result<bool> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.success());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("{} did not end:\n{}", self.name, self.log())
    }

    /// Waits for its own end: whether that was with status 0, and what it wrote to standard error.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn ended_with(self) -> Result<(bool, String)> {
        let log = Arc::clone(&self.log);
        let is_success = self.ended()?;
        // The thread that reads holds the other share of it, to the last line.
        let until = Instant::now() + PATIENCE;
        while Arc::strong_count(&log) > 1 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let log = log.lock().expect("no thread panics with the log in hand").join("\n");
        Ok((is_success, log))
    }

    /// SIGSTOP, and waits until no thread of it runs any more: what it has written by then is what a SIGKILL would leave.
    ///
    /// # Errors
    /// When the system refuses, or it does not stop in time.
    pub fn hold(&self) -> Result<()> {
        let id = Pid::from_child(&self.child);
        kill_process(id, Signal::STOP).with_context(|| format!("cannot signal {}", self.name))?;
        // Without `EXITED`, so that its end is left to be waited for.
        let stops = || waitid(WaitId::Pid(id), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        eventually("the program stands still", || stops()?.context("it runs"))?;
        Ok(())
    }

    /// SIGCONT: it goes on where it was held.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn go_on(&self) -> Result<()> {
        let id = Pid::from_child(&self.child);
        kill_process(id, Signal::CONT).with_context(|| format!("cannot signal {}", self.name))
    }

    /// SIGKILL, and waits for the end.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM, and waits for a clean end.
    ///
    /// # Errors
    /// When it does not end in time or ends with another status than 0.
    pub fn stop(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)
            .with_context(|| format!("cannot signal {}", self.name))?;
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
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

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many bytes of memory a program has, as the kernel counts them under this name (`VmHWM:`, with its colon, in `/proc/PID/status`).
///
/// # Errors
/// When it is gone.
pub fn memory(id: u32, name: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| name.to_owned())?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().with_context(|| line.to_owned())?;
    Ok(kib * 1024)
}

/// Waits until a condition gives a value.
///
/// # Errors
/// When it does not in time: `what` and the last reason are in the error.
pub fn eventually<T>(what: &str, condition: impl FnMut() -> Result<T>) -> Result<T> {
    eventually_within(PATIENCE, what, condition)
}

/// Waits until a condition gives a value, as long as is said.
///
/// # Errors
/// When it does not in time: `what` and the last reason are in the error.
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

/// Whether a file says something.
///
/// # Errors
/// When it can't be read or says something else, which is in the error.
pub fn file_contains(path: &Path, expected: &str) -> Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    if !text.contains(expected) {
        bail!("{} does not contain {expected:?}:\n{text}", path.display());
    }
    Ok(())
}

/// Calls `then` once when this process is told to end by Ctrl-C; the programs that it started are told the same by the
/// terminal.
///
/// # Errors
/// When no signal handler can be had.
pub fn on_interrupt(then: impl FnOnce() + Send + 'static) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            then();
        }
    });
    Ok(())
}
