//! Bytes that nobody meant, for every decoder that takes bytes from outside.
//!
//! No fuzzer that wants a nightly compiler: a target is a function over bytes, run on what is kept (the cases that a
//! target names, and the files below `corpus/TARGET`, where whatever once broke it is put), on mutations of it and on
//! random bytes, for two seconds of CPU time, or for 30 with `STEMMA_TEST_LONG=1`: beside other tests as many as alone. A failure says its
//! case's seed; `STEMMA_SEED` begins with that case.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use crate::chance::{Chance, is_long};

/// How much CPU time a target has.
const USUAL: Duration = Duration::from_secs(2);
/// The same, when there is time.
const LONG: Duration = Duration::from_secs(30);
/// The largest case that is made of others, in bytes.
const LARGEST: usize = 8 * 1024;
/// What parsers have a rule for: quotes, brackets, ends, numbers at their bounds, characters that are not what they seem.
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

/// Runs a target on its cases and on what becomes of them.
///
/// # Panics
/// With the case and its seed, when the target does.
pub fn run(target: &str, cases: &[Vec<u8>], check: impl Fn(&[u8])) {
    let kept: Vec<Vec<u8>> = cases.iter().cloned().chain(kept(target)).collect();
    for case in &kept {
        attempt(target, None, case, &check);
    }
    let given = std::env::var("STEMMA_SEED").ok().map(|seed| seed.parse().expect("STEMMA_SEED is a number"));
    let first: u64 = given.unwrap_or_else(now_ns);
    let until = cpu_time() + if is_long() { LONG } else { USUAL };
    let mut seed = first;
    loop {
        attempt(target, Some(seed), &draw(&mut Chance::new(seed), &kept), &check);
        seed = seed.wrapping_add(1);
        if cpu_time() >= until {
            return;
        }
    }
}

/// The CPU time that this thread has had.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("a time since the thread began")
}

/// The cases that are kept in files.
fn kept(target: &str) -> Vec<Vec<u8>> {
    let directory: PathBuf = [env!("CARGO_MANIFEST_DIR"), "corpus", target].iter().collect();
    let Ok(files) = std::fs::read_dir(&directory) else { return Vec::new() };
    let mut files: Vec<_> = files.map(|file| file.expect("a directory that can be read").path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).expect("a kept case")).collect()
}

fn attempt(target: &str, seed: Option<u64>, case: &[u8], check: &impl Fn(&[u8])) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(case))) else { return };
    let from = seed.map_or_else(|| "a kept case".to_owned(), |seed| format!("STEMMA_SEED={seed}"));
    let message = format!("fuzz target {target} failed on {from}: {}", case.escape_ascii());
    match panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied()) {
        Some(why) => panic!("{message}\n{why}"),
        None => resume_unwind(panic),
    }
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// One case: a kept one that was changed a few times, or nothing but chance.
fn draw(chance: &mut Chance, kept: &[Vec<u8>]) -> Vec<u8> {
    if kept.is_empty() || chance.percent(5) {
        let length = chance.below(200);
        return (0..length).map(|_| byte(chance)).collect();
    }
    let mut case = chance.one(kept).clone();
    for _ in 0..=chance.below(6) {
        change(chance, &mut case, kept);
        case.truncate(LARGEST);
    }
    case
}

fn byte(chance: &mut Chance) -> u8 {
    u8::try_from(chance.below(256)).expect("it is below 256")
}

fn change(chance: &mut Chance, case: &mut Vec<u8>, kept: &[Vec<u8>]) {
    let at = chance.below(case.len() + 1);
    let to = at + chance.below((case.len() - at).min(64) + 1);
    match chance.below(8) {
        0 if at < case.len() => case[at] ^= 1 << chance.below(8),
        1 if at < case.len() => case[at] = byte(chance),
        2 => drop(case.drain(at..to)),
        3 => case.truncate(at),
        4 => {
            let piece = case[at..to].to_vec();
            let most = if chance.percent(5) { 500 } else { 3 };
            let times = 1 + chance.below(most);
            drop(case.splice(at..at, piece.repeat(times)));
        }
        5 => {
            let other = chance.one(kept);
            let from = chance.below(other.len() + 1);
            let end = from + chance.below((other.len() - from).min(200) + 1);
            drop(case.splice(at..to, other[from..end].to_vec()));
        }
        _ => {
            let word = chance.one(WORDS);
            let times = if chance.percent(3) { 300 } else { 1 };
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
    fn a_seed_draws_its_case_again_and_others_draw_others() {
        let kept = [b"one case".to_vec(), b"{\"another\": 1}".to_vec()];
        let cases: BTreeSet<_> = (0..500).map(|seed| draw(&mut Chance::new(seed), &kept)).collect();
        assert!(cases.len() > 400, "{}", cases.len());
        assert!(cases.iter().all(|case| case.len() <= LARGEST));
        for seed in 0..100 {
            assert_eq!(draw(&mut Chance::new(seed), &kept), draw(&mut Chance::new(seed), &kept));
        }
    }

    #[test]
    fn a_failure_names_its_seed() {
        let seen = RefCell::new(0);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            attempt("some", Some(7), b"a\n", &|case: &[u8]| {
                *seen.borrow_mut() += case.len();
                panic!("no such luck");
            });
        }));
        let text = failed.expect_err("it panics").downcast_ref::<String>().cloned().expect("a text");
        assert_eq!(
            (text.as_str(), *seen.borrow()),
            ("fuzz target some failed on STEMMA_SEED=7: a\\n\nno such luck", 2)
        );
    }
}
