//! `cargo xtask test`: everything, in the order in which a mistake is cheapest to find.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;

use crate::cargo::{command, installed, root, runs, step};
use crate::modules;
use crate::packages;
use crate::runner::{self, Runner};

/// The release of cargo-deny that the policy file was written for.
const CARGO_DENY: &str = "0.19";

/// Of each property in a long run; 256 in the usual one.
const CASES: &str = "10000";

/// How many of the slowest tests `--times` names.
const SLOWEST: usize = 20;

#[derive(Args)]
pub(crate) struct Options {
    /// The inner loop: format, lints and tests that start no program.
    #[arg(long)]
    quick: bool,
    /// The full counts of the randomised and fault tests.
    #[arg(long, conflicts_with = "quick")]
    long: bool,
    /// The time of each stage and, with cargo-nextest, the twenty slowest tests, at the end of the run.
    #[arg(long)]
    times: bool,
}

impl Options {
    /// The profile of `.config/nextest.toml`.
    fn profile(&self) -> &'static str {
        if self.long { "long" } else { "ci" }
    }

    fn packages(&self) -> &'static [&'static str] {
        if self.quick { &["--workspace", "--exclude", "stemma-tests"] } else { &["--workspace"] }
    }
}

/// The stages of a run, each with its time.
#[derive(Default)]
struct Stages(Vec<(&'static str, Duration)>);

impl Stages {
    fn run(&mut self, name: &'static str, stage: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        let result = stage();
        self.0.push((name, start.elapsed()));
        result
    }

    fn step(&mut self, name: &'static str, command: Command) -> Result<()> {
        self.run(name, || step(name, command))
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let (runner, mut stages) = (Runner::here(), Stages::default());
    println!("== the tests are run by {}", runner.name());
    let result = all(options, runner, &mut stages);
    if options.times {
        for (name, took) in &stages.0 {
            println!("{:>6.0} s  {name}", took.as_secs_f64());
        }
    }
    result
}

fn all(options: &Options, runner: Runner, stages: &mut Stages) -> Result<()> {
    stages.step("format", command("cargo", &["fmt", "--all", "--check"]))?;
    stages.run("modules", || modules::run(&root()))?;
    stages.step(
        "lints",
        command("cargo", &["clippy", "--locked", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
    )?;
    say_skipped();
    if !options.quick {
        stages.run("programs of the system", programs)?;
        stages.run("cargo-deny", cargo_deny)?;
        stages.step("dependency policy", command("cargo", &["deny", "check", "licenses", "bans", "sources"]))?;
        stages.run("advisories", advisories)?;
        // The tests that start programs take them from the target directory, so they are built first.
        stages.step("programs", command("cargo", &["build", "--workspace", "--bins"]))?;
        // Of the same programs, and twice, so that machines can be upgraded from one to the other.
        for (revision, check) in [(1, true), (2, false)] {
            stages.run("packages", || packages::run(&packages::Options { dev: true, revision, check }))?;
        }
    }
    let mut tests = runner.tests(options.profile(), options.packages());
    if options.long {
        tests.env("STEMMA_TEST_LONG", "1").env("PROPTEST_CASES", CASES);
    }
    runner::forget(options.profile())?;
    let result = stages.step("tests", tests);
    let said = say_tests(options, runner);
    result.and(said)?;
    match runner.examples(options.packages()) {
        Some(examples) => stages.step("examples of the documentation", examples),
        None => Ok(()),
    }
}

/// Says which tests passed only when they were run again, and which took longest.
///
/// # Errors
/// The runner writes a report and there is none, or it cannot be read: nobody knows which tests were run again.
fn say_tests(options: &Options, runner: Runner) -> Result<()> {
    let mut tests = runner::last_run(options.profile())?;
    if tests.is_empty() && runner == Runner::Nextest {
        let report = runner::report(options.profile());
        bail!("there is no report of the tests at {}: it is not known which were run again", report.display());
    }
    for test in tests.iter().filter(|test| test.is_flaky) {
        println!("== PASSED ONLY ON THE RETRY, an open defect (docs/testing.md): {}", test.name);
    }
    if options.times {
        tests.sort_by_key(|test| std::cmp::Reverse(test.took));
        for test in tests.iter().take(SLOWEST) {
            println!("{:>6.1} s  {}", test.took.as_secs_f64(), test.name);
        }
    }
    Ok(())
}

/// Programs of the system that tests need, each with what shows that it is there and the packages that bring it. Real clients are Python
/// programs, and a bare Debian has Python without venv; `strace` shows what the agent asks of a disk, and lets disks fail; `faketime` brings
/// the library by which a program's clock jumps; `curl` sends the examples of docs/api.md; `kill` stops and ends programs; `systemd-analyze`
/// says how exposed a unit is; `age` decrypts backups, and encrypts such as are restored; `unshare` gives hosts a name that leads elsewhere
/// later; mmdebstrap makes the tree of the machines that `systemd-nspawn` boots.
const PROGRAMS: [(&str, &[&str], &[&str]); 11] = [
    ("python3", &["-c", "import venv, ensurepip"], &["python3", "python3-venv"]),
    ("strace", &["-V"], &["strace"]),
    ("faketime", &["--version"], &["faketime"]),
    ("curl", &["--version"], &["curl"]),
    ("kill", &["-L"], &["procps"]),
    ("systemd-analyze", &["--version"], &["systemd"]),
    ("age", &["--version"], &["age"]),
    ("unshare", &["--version"], &["util-linux"]),
    ("systemd-nspawn", &["--version"], &["systemd-container"]),
    ("mmdebstrap", &["--version"], &["mmdebstrap"]),
    ("ip", &["-V"], &["iproute2"]),
];

fn programs() -> Result<()> {
    for (program, shows, packages) in PROGRAMS.into_iter().chain(packages::TOOLS) {
        if runs(program, shows) {
            continue;
        }
        if !runs("apt-get", &["--version"]) {
            bail!(
                "{program} is needed for the tests (packages {}), and there is no apt-get to install it",
                packages.join(", ")
            );
        }
        step("apt-get update", command("apt-get", &["-qq", "update"]))?;
        step(program, command("apt-get", &[&["-qq", "install", "-y"], packages].concat()))?;
    }
    Ok(())
}

/// Tests that are skipped say so each in its own output, which is not shown for a test that passes. Where `STEMMA_REQUIRE_SHARED` is set
/// they fail.
fn say_skipped() {
    if std::env::var_os("STEMMA_REQUIRE_SHARED").is_some() {
        return;
    }
    if !root().join("../shared").is_dir() {
        println!("== SKIPPED: tests by vectors, schemas and real clients' scripts; ../shared is not there");
    }
    if !rustix::process::geteuid().is_root() {
        println!("== SKIPPED: tests that become another user, and the machines that boot; this is not root");
    }
}

fn cargo_deny() -> Result<()> {
    installed("deny", "cargo-deny", CARGO_DENY)
}

/// Known faults of dependencies. A machine that reaches package registries alone has no database of them, and says so.
fn advisories() -> Result<()> {
    if runs("cargo", &["deny", "fetch", "db"]) {
        return step("advisories", command("cargo", &["deny", "check", "advisories"]));
    }
    println!(
        "== advisories: NOT LOOKED AT, the advisory database cannot be reached from here (docs/testing.md says when they were)"
    );
    Ok(())
}
