//! Runs the tests with each mutant, to find the mutants that no test catches.

use std::collections::VecDeque;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::build::BuiltTests;
use super::mutant::Mutant;
use super::switch::MUTANT_VARIABLE;

/// The CPU time after which a mutant counts as caught: this multiple of the program's usual time, plus this extra time.
/// It is CPU time, so that other load on the machine has no effect.
const CPU_TIME_LIMIT: (u32, Duration) = (5, Duration::from_secs(10));

/// The limit in wall time, as a multiple of the limit in CPU time. It ends a program that waits forever, because such a
/// program uses no CPU time.
const WALL_TIME_FACTOR: u32 = 20;

/// The maximum CPU time of any run, in seconds. It is the only limit until a program's usual time is known.
const MAX_RUN_SECONDS: u64 = 3_600;

/// The maximum memory of a run, in KiB, because a mutant may allocate memory without end.
const MAX_MEMORY_KIB: u32 = 4 * 1024 * 1024;

/// A test program, and the duration of all its tests without a mutant.
struct TestProgram<'a> {
    path: &'a Path,
    usual_time: Duration,
}

/// Returns the numbers of the mutants that no test program catches. Each mutant is tried with the unit tests of its
/// module first, and then with all programs, the fastest first. Several mutants are tried in parallel.
///
/// # Errors
/// Fails if a test program fails without a mutant, or cannot be started.
pub(super) fn find_missed(built: &BuiltTests, mutants: &[Mutant]) -> Result<Vec<usize>> {
    let mut programs = Vec::new();
    for path in &built.programs {
        // First, all tests run without a mutant (`usize::MAX`), and with no limit from a usual time, which is not known
        // yet.
        let (program, start) = (TestProgram { path, usual_time: Duration::MAX }, Instant::now());
        ensure!(program.passes_with(built, "", usize::MAX)?, "{} fails without a mutant", path.display());
        programs.push(TestProgram { usual_time: start.elapsed(), ..program });
    }
    // The first program contains unit tests: those of the library or of the package's program.
    let library = &programs[0];
    let mut by_time: Vec<_> = programs.iter().collect();
    by_time.sort_by_key(|program| program.usual_time);
    let is_missed = |mutant: usize| -> Result<bool> {
        let mut passes = library.passes_with(built, &mutants[mutant].module(), mutant)?;
        for program in &by_time {
            passes = passes && program.passes_with(built, "", mutant)?;
        }
        Ok(passes)
    };
    let (queue, missed) = (Mutex::new(VecDeque::from_iter(&built.mutants)), Mutex::new(Ok(Vec::new())));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front().copied();
    let try_mutant = |mutant| {
        let result = is_missed(mutant);
        let mut missed = missed.lock().unwrap_or_else(PoisonError::into_inner);
        match (result, &mut *missed) {
            (Ok(true), Ok(missed_numbers)) => {
                println!("   missed: {}", mutants[mutant].name);
                missed_numbers.push(mutant);
            }
            (Err(error), missed_numbers) => *missed_numbers = Err(error),
            _ => {}
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| std::iter::from_fn(next).for_each(try_mutant));
        }
    });
    missed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl TestProgram<'_> {
    /// Returns whether the program's tests of a module pass with a mutant within the limits of time and memory. An
    /// empty module means all tests. The number `usize::MAX` means no mutant.
    fn passes_with(&self, built: &BuiltTests, module: &str, mutant: usize) -> Result<bool> {
        let time_limit = self.usual_time.saturating_mul(CPU_TIME_LIMIT.0).saturating_add(CPU_TIME_LIMIT.1);
        let seconds = time_limit.as_secs().min(MAX_RUN_SECONDS);
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -v {MAX_MEMORY_KIB}; ulimit -t {seconds}; exec \"$0\" \"$@\"")]);
        command.arg(self.path).args(["--test-threads=1", module]);
        command.current_dir(&built.dir).env(MUTANT_VARIABLE, mutant.to_string()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().context("cannot start a test program")?;
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status.success());
            }
            if start.elapsed() > time_limit.saturating_mul(WALL_TIME_FACTOR) {
                child.kill()?;
                child.wait()?;
                return Ok(false);
            }
            sleep(Duration::from_millis(10));
        }
    }
}
