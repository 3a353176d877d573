//! Fuzzing for every decoder that takes bytes from outside.
//!
//! It does not use a fuzzer that requires a nightly compiler. A target is a function over bytes. It first runs on the
//! stored cases: those that the target lists, and the files below `corpus/TARGET`, where each input that once caused a
//! failure is added. Then it runs on mutations of these and on random bytes, for two seconds of CPU time, or for 30
//! with `STEMMA_TEST_LONG=1`. CPU time makes the number of cases independent of other tests. A failure reports the seed
//! of its case, and `STEMMA_SEED` starts with that case.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use crate::seed::{SeededRng, is_long};

/// CPU time of a target.
const CPU_TIME: Duration = Duration::from_secs(2);
/// CPU time of a target in a long run.
const LONG_CPU_TIME: Duration = Duration::from_secs(30);
/// Maximum size of a mutated case, in bytes.
const MAX_CASE_BYTES: usize = 8 * 1024;
/// Texts for which parsers have a special rule: quotes, brackets, terminators, numbers at their limits, confusable
/// characters.
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

/// Runs a target on its stored cases, then on mutations of them.
///
/// # Panics
/// When the target panics. The message contains the case and its seed.
pub fn run(target: &str, cases: &[Vec<u8>], check: impl Fn(&[u8])) {
    let stored: Vec<Vec<u8>> = cases.iter().cloned().chain(corpus(target)).collect();
    for case in &stored {
        run_case(target, None, case, &check);
    }
    let env_seed = std::env::var("STEMMA_SEED").ok().map(|seed| seed.parse().expect("STEMMA_SEED is a number"));
    let first: u64 = env_seed.unwrap_or_else(now_ns);
    let until = cpu_time() + if is_long() { LONG_CPU_TIME } else { CPU_TIME };
    let mut seed = first;
    loop {
        run_case(target, Some(seed), &draw_case(&mut SeededRng::new(seed), &stored), &check);
        seed = seed.wrapping_add(1);
        if cpu_time() >= until {
            return;
        }
    }
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("a time since the thread began")
}

/// Reads the cases that are stored in files.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let directory: PathBuf = [env!("CARGO_MANIFEST_DIR"), "corpus", target].iter().collect();
    let Ok(files) = std::fs::read_dir(&directory) else { return Vec::new() };
    let mut files: Vec<_> = files.map(|file| file.expect("a directory that can be read").path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).expect("a kept case")).collect()
}

/// Runs the target on one case. A panic is repeated with the case and its seed in the message.
fn run_case(target: &str, seed: Option<u64>, case: &[u8], check: &impl Fn(&[u8])) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(case))) else { return };
    let source = seed.map_or_else(|| "a kept case".to_owned(), |seed| format!("STEMMA_SEED={seed}"));
    let message = format!("fuzz target {target} failed on {source}: {}", case.escape_ascii());
    match panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied()) {
        Some(why) => panic!("{message}\n{why}"),
        None => resume_unwind(panic),
    }
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Creates one case: a stored case with a few mutations, or random bytes only.
fn draw_case(rng: &mut SeededRng, stored: &[Vec<u8>]) -> Vec<u8> {
    if stored.is_empty() || rng.is_within_percent(5) {
        let length = rng.next_below(200);
        return (0..length).map(|_| draw_byte(rng)).collect();
    }
    let mut case = rng.choose(stored).clone();
    for _ in 0..=rng.next_below(6) {
        mutate(rng, &mut case, stored);
        case.truncate(MAX_CASE_BYTES);
    }
    case
}

fn draw_byte(rng: &mut SeededRng) -> u8 {
    u8::try_from(rng.next_below(256)).expect("it is below 256")
}

/// Changes a case at a random position.
fn mutate(rng: &mut SeededRng, case: &mut Vec<u8>, stored: &[Vec<u8>]) {
    let at = rng.next_below(case.len() + 1);
    let to = at + rng.next_below((case.len() - at).min(64) + 1);
    match rng.next_below(8) {
        0 if at < case.len() => case[at] ^= 1 << rng.next_below(8),
        1 if at < case.len() => case[at] = draw_byte(rng),
        2 => drop(case.drain(at..to)),
        3 => case.truncate(at),
        4 => {
            let piece = case[at..to].to_vec();
            let max_times = if rng.is_within_percent(5) { 500 } else { 3 };
            let times = 1 + rng.next_below(max_times);
            drop(case.splice(at..at, piece.repeat(times)));
        }
        5 => {
            let other = rng.choose(stored);
            let from = rng.next_below(other.len() + 1);
            let end = from + rng.next_below((other.len() - from).min(200) + 1);
            drop(case.splice(at..to, other[from..end].to_vec()));
        }
        _ => {
            let word = rng.choose(WORDS);
            let times = if rng.is_within_percent(3) { 300 } else { 1 };
            drop(case.splice(at..to, word.repeat(times)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn draw_case_repeats_case_for_same_seed() {
        let kept = [b"one case".to_vec(), b"{\"another\": 1}".to_vec()];
        let cases: BTreeSet<_> = (0..500).map(|seed| draw_case(&mut SeededRng::new(seed), &kept)).collect();
        assert!(cases.len() > 400, "{}", cases.len());
        assert!(cases.iter().all(|case| case.len() <= MAX_CASE_BYTES));
        for seed in 0..100 {
            assert_eq!(draw_case(&mut SeededRng::new(seed), &kept), draw_case(&mut SeededRng::new(seed), &kept));
        }
    }

    #[test]
    fn run_names_seed_when_case_fails() {
        let seen = RefCell::new(0);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            run_case("some", Some(7), b"a\n", &|case: &[u8]| {
                *seen.borrow_mut() += case.len();
                panic!("no such luck");
            });
        }));
        let text = failed.expect_err("it panics").downcast_ref::<String>().cloned().expect("a text");
        assert_eq!((text.as_str(), *seen.borrow()), ("fuzz target some failed on STEMMA_SEED=7: a\\n\nno such luck", 2));
    }
}
