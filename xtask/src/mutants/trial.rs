//! Whether a test notices a mistake.

use std::collections::VecDeque;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::build::Built;
use super::mistake::Mistake;
use super::switch::CHOICE;

/// How often a program may take its usual time, counted in CPU, before a mistake counts as noticed, and what it has beside that. What
/// else the machine does takes none of it.
const PATIENCE: (u32, Duration) = (5, Duration::from_secs(10));

/// How many times that it may take by the clock: a program that waits for ever uses no CPU.
const WAITING: u32 = 20;

/// What any program may take in all: before its usual time is known it has that.
const MOST_SECONDS: u64 = 3_600;

/// A mistake may ask for memory without end.
const MEMORY_KIB: u32 = 4 * 1024 * 1024;

/// A test program and how long it takes without a mistake.
struct Program<'a> {
    path: &'a Path,
    usual: Duration,
}

/// The mistakes that no test program notices. Each is shown to the unit tests of its module first, then to the quickest program, and
/// several are tried at a time.
///
/// # Errors
/// When a program fails without any mistake.
pub(super) fn unnoticed(built: &Built, mistakes: &[Mistake]) -> Result<Vec<usize>> {
    let mut programs = Vec::new();
    for path in &built.programs {
        let (program, start) = (Program { path, usual: Duration::MAX }, Instant::now());
        ensure!(program.passes(built, "", usize::MAX)?, "{} fails without a mistake", path.display());
        programs.push(Program { usual: start.elapsed(), ..program });
    }
    let own = &programs[0];
    let mut all: Vec<_> = programs.iter().collect();
    all.sort_by_key(|program| program.usual);
    let is_unnoticed = |mistake: usize| -> Result<bool> {
        let mut passes = own.passes(built, &mistakes[mistake].module(), mistake)?;
        for program in &all {
            passes = passes && program.passes(built, "", mistake)?;
        }
        Ok(passes)
    };
    let (waiting, unnoticed) = (Mutex::new(VecDeque::from_iter(&built.mistakes)), Mutex::new(Ok(Vec::new())));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front().copied();
    let note = |mistake| {
        let is_unnoticed = is_unnoticed(mistake);
        let mut unnoticed = unnoticed.lock().unwrap_or_else(PoisonError::into_inner);
        match (is_unnoticed, &mut *unnoticed) {
            (Ok(true), Ok(unnoticed)) => {
                println!("   not noticed: {}", mistakes[mistake].name);
                unnoticed.push(mistake);
            }
            (Err(error), unnoticed) => *unnoticed = Err(error),
            _ => {}
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| std::iter::from_fn(next).for_each(note));
        }
    });
    unnoticed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Program<'_> {
    /// Whether its tests of a module (of all, where it is empty) pass in time with a mistake.
    fn passes(&self, built: &Built, module: &str, mistake: usize) -> Result<bool> {
        let time = self.usual.saturating_mul(PATIENCE.0).saturating_add(PATIENCE.1);
        let seconds = time.as_secs().min(MOST_SECONDS);
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -v {MEMORY_KIB}; ulimit -t {seconds}; exec \"$0\" \"$@\"")]);
        command.arg(self.path).args(["--test-threads=1", module]);
        command.current_dir(&built.dir).env(CHOICE, mistake.to_string()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().context("cannot start a test program")?;
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status.success());
            }
            if start.elapsed() > time.saturating_mul(WAITING) {
                child.kill()?;
                child.wait()?;
                return Ok(false);
            }
            sleep(Duration::from_millis(10));
        }
    }
}
