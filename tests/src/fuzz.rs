//! Fuzzing for every decoder that takes bytes from outside.
//!
//! A usual fuzzer would require a nightly compiler. A target is a function over bytes. It first runs on the stored
//! cases: those that the target lists, and the files below `corpus/TARGET`. Each input that once caused a failure is
//! added there. Then the target runs on mutations of the stored cases and on random bytes, for two seconds of CPU time,
//! or for 30 with `STEMMA_TEST_LONG=1`. CPU time makes the number of cases independent of other tests. A failure
//! reports the seed of its case, and `STEMMA_SEED` starts with that case.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use crate::seed::{SeededRng, is_long};

/// CPU time for which a fuzz target (the check of one decoder) runs on generated cases.
const CPU_TIME: Duration = Duration::from_secs(2);
/// CPU time for which a fuzz target (the check of one decoder) runs on generated cases in a long test run.
const LONG_CPU_TIME: Duration = Duration::from_secs(30);
/// Maximum size of a mutated case, in bytes.
const MAX_CASE_BYTES: usize = 8 * 1024;
/// Texts that mutations insert, because parsers have special rules for them: quotes, brackets, terminators, numbers at
/// their limits, confusable characters.
const WORDS: &[&[u8]] = &[
    b"\0",
    b"\r\n",
    b"\n\n",
    b"\"",
    b"'",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b"(",
    b")",
    b":",
    b",",
    b"=",
    b"/",
    b"//",
    b"..",
    b"%00",
    b"%2e%2e",
    b"~1",
    b"-",
    b"--",
    b"---\n",
    b"&a ",
    b"*a",
    b"<<: ",
    b"null",
    b"true",
    b"0",
    b"-0",
    b"1e999",
    b"18446744073709551616",
    b"9223372036854775808",
    b"\\ud800",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xae",
    b"\xff",
    b"\xf0\x9f",
    "é".as_bytes(),
    "ａ".as_bytes(),
    b"\x80\x80\x80\x80\x80",
    b"\xff\xff\xff\xff\x0f",
    b"in (",
    b"<or>",
    b"<in>",
    b"{{",
    b"{%",
];

/// Runs a target on its stored cases, then on generated cases until its CPU time is used up. `STEMMA_SEED` sets the
/// first seed.
///
/// # Panics
/// When the target panics. The message contains the case, and the seed of a generated case.
pub fn run(target: &str, cases: &[Vec<u8>], check: impl Fn(&[u8])) {
    let stored_cases: Vec<Vec<u8>> = cases.iter().cloned().chain(corpus(target)).collect();
    for case in &stored_cases {
        run_case(target, None, case, &check);
    }
    let env_seed = std::env::var("STEMMA_SEED").ok().map(|seed| seed.parse().expect("STEMMA_SEED is a number"));
    let first_seed: u64 = env_seed.unwrap_or_else(now_ns);
    let deadline = cpu_time() + if is_long() { LONG_CPU_TIME } else { CPU_TIME };
    let mut seed = first_seed;
    loop {
        run_case(target, Some(seed), &draw_case(&mut SeededRng::new(seed), &stored_cases), &check);
        seed = seed.wrapping_add(1);
        if cpu_time() >= deadline {
            return;
        }
    }
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("a time since the thread began")
}

/// Returns the cases in the files below `corpus/TARGET`, in the order of the file names. Returns no cases if the
/// directory is missing.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let directory: PathBuf = [env!("CARGO_MANIFEST_DIR"), "corpus", target].iter().collect();
    let Ok(files) = std::fs::read_dir(&directory) else { return Vec::new() };
    let mut files: Vec<_> = files.map(|file| file.expect("a directory that can be read").path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).expect("a stored case")).collect()
}

/// Runs the target on one case. If it panics with a text, panics again with that text, the case and its seed.
fn run_case(target: &str, seed: Option<u64>, case: &[u8], check: &impl Fn(&[u8])) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(case))) else { return };
    let source = seed.map_or_else(|| "a stored case".to_owned(), |seed| format!("STEMMA_SEED={seed}"));
    let message = format!("fuzz target {target} failed on {source}: {}", case.escape_ascii());
    match panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied()) {
        Some(reason) => panic!("{message}\n{reason}"),
        None => resume_unwind(panic),
    }
}

/// Returns the time since 1970, in nanoseconds.
fn now_ns() -> u64 {
    let elapsed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

/// Creates a case: a stored case with one to six mutations. In 5 of 100 cases, or without stored cases, it has only
/// random bytes.
fn draw_case(rng: &mut SeededRng, stored_cases: &[Vec<u8>]) -> Vec<u8> {
    if stored_cases.is_empty() || rng.is_within_percent(5) {
        let length = rng.next_below(200);
        return (0..length).map(|_| draw_byte(rng)).collect();
    }
    let mut case = rng.choose(stored_cases).clone();
    for _ in 0..=rng.next_below(6) {
        mutate(rng, &mut case, stored_cases);
        case.truncate(MAX_CASE_BYTES);
    }
    case
}

fn draw_byte(rng: &mut SeededRng) -> u8 {
    u8::try_from(rng.next_below(256)).expect("it is below 256")
}

/// Changes a case at a random position: flips a bit, or replaces, removes, repeats or inserts bytes. Some mutations
/// insert a part of a stored case, or one of [`WORDS`]. A few mutations repeat bytes of the case, or a word, hundreds
/// of times, so that parsers reach their limits.
fn mutate(rng: &mut SeededRng, case: &mut Vec<u8>, stored_cases: &[Vec<u8>]) {
    let start = rng.next_below(case.len() + 1);
    let end = start + rng.next_below((case.len() - start).min(64) + 1);
    match rng.next_below(8) {
        0 if start < case.len() => case[start] ^= 1 << rng.next_below(8),
        1 if start < case.len() => case[start] = draw_byte(rng),
        2 => drop(case.drain(start..end)),
        3 => case.truncate(start),
        4 => {
            let piece = case[start..end].to_vec();
            let max_times = if rng.is_within_percent(5) { 500 } else { 3 };
            let times = 1 + rng.next_below(max_times);
            drop(case.splice(start..start, piece.repeat(times)));
        }
        5 => {
            let other_case = rng.choose(stored_cases);
            let other_start = rng.next_below(other_case.len() + 1);
            let other_end = other_start + rng.next_below((other_case.len() - other_start).min(200) + 1);
            drop(case.splice(start..end, other_case[other_start..other_end].to_vec()));
        }
        // 6 or 7, or else 0 or 1 at the end of the case, where no byte can be changed.
        _ => {
            let word = rng.choose(WORDS);
            let times = if rng.is_within_percent(3) { 300 } else { 1 };
            drop(case.splice(start..end, word.repeat(times)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    /// Different seeds draw different cases, with few exceptions. The same seed draws the same case.
    #[test]
    fn draw_case_repeats_case_for_same_seed() {
        let stored_cases = [b"one case".to_vec(), b"{\"another\": 1}".to_vec()];
        let cases: BTreeSet<_> = (0..500).map(|seed| draw_case(&mut SeededRng::new(seed), &stored_cases)).collect();
        assert!(cases.len() > 400, "{}", cases.len());
        assert!(cases.iter().all(|case| case.len() <= MAX_CASE_BYTES));
        for seed in 0..100 {
            assert_eq!(draw_case(&mut SeededRng::new(seed), &stored_cases), draw_case(&mut SeededRng::new(seed), &stored_cases));
        }
    }

    #[test]
    fn run_names_seed_when_case_fails() {
        let checked_bytes = RefCell::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            run_case("some", Some(7), b"a\n", &|case: &[u8]| {
                *checked_bytes.borrow_mut() += case.len();
                panic!("no such luck");
            });
        }));
        let text = result.expect_err("run_case panics").downcast_ref::<String>().cloned().expect("a text");
        assert_eq!((text.as_str(), *checked_bytes.borrow()), ("fuzz target some failed on STEMMA_SEED=7: a\\n\nno such luck", 2));
    }
}
