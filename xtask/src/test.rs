//! `cargo xtask test`: runs all checks. The fast checks run first.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;

use crate::cargo::{command, ensure_installed, run_step, succeeds, workspace_root};
use crate::language;
use crate::modules;
use crate::packages;
use crate::runner::{self, Runner};

/// The release of cargo-deny for which the policy file is written.
const CARGO_DENY_VERSION: &str = "0.19";

/// The number of random cases of a property test in a long run. A usual run has 256. Some tests scale the number.
const LONG_RUN_CASES: &str = "10000";

/// The number of slowest tests that `--times` lists.
const MAX_LISTED_TESTS: usize = 20;

#[derive(Args)]
pub(crate) struct TestOptions {
    /// Run only format, lints and the tests that start no program.
    #[arg(long)]
    quick: bool,
    /// Run the randomised tests and the fault tests with their full numbers of cases.
    #[arg(long, conflicts_with = "quick")]
    long: bool,
    /// Print the time of each stage and, with cargo-nextest, the twenty slowest tests, at the end of the run.
    #[arg(long)]
    times: bool,
}

impl TestOptions {
    /// Returns the name of the profile in `.config/nextest.toml` to use.
    fn profile(&self) -> &'static str {
        if self.long { "long" } else { "ci" }
    }

    /// Returns the arguments of cargo that select the packages to test.
    fn packages(&self) -> &'static [&'static str] {
        if self.quick { &["--workspace", "--exclude", "stemma-tests"] } else { &["--workspace"] }
    }
}

/// The finished stages of a run: the name and the duration of each.
#[derive(Default)]
struct TestStages(Vec<(&'static str, Duration)>);

impl TestStages {
    /// Runs a function as a stage, and records the duration, even if the stage fails.
    fn run_stage(&mut self, name: &'static str, stage: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        let result = stage();
        self.0.push((name, start.elapsed()));
        result
    }

    fn run_command(&mut self, name: &'static str, command: Command) -> Result<()> {
        self.run_stage(name, || run_step(name, command))
    }
}

/// Runs the checks. With `--times`, prints the duration of each stage, even after a failure.
pub(crate) fn run(options: &TestOptions) -> Result<()> {
    let (runner, mut stages) = (Runner::detect(), TestStages::default());
    println!("== the tests are run by {}", runner.name());
    let result = run_all(options, runner, &mut stages);
    if options.times {
        for (name, duration) in &stages.0 {
            println!("{:>6.0} s  {name}", duration.as_secs_f64());
        }
    }
    result
}

/// Runs the stages in order. The first failure ends the run.
fn run_all(options: &TestOptions, runner: Runner, stages: &mut TestStages) -> Result<()> {
    stages.run_command("format", command("cargo", &["fmt", "--all", "--check"]))?;
    stages.run_stage("modules", || modules::run(&workspace_root()))?;
    stages.run_stage("language", || language::run(&workspace_root()))?;
    stages.run_command(
        "lints",
        command("cargo", &["clippy", "--locked", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
    )?;
    print_skipped();
    if !options.quick {
        stages.run_stage("programs of the system", install_programs)?;
        stages.run_stage("cargo-deny", install_cargo_deny)?;
        stages.run_command("dependency policy", command("cargo", &["deny", "check", "licenses", "bans", "sources"]))?;
        stages.run_stage("advisories", check_advisories)?;
        // Tests start the programs in the target directory, so these are built first.
        stages.run_command("programs", command("cargo", &["build", "--workspace", "--bins"]))?;
        // Builds packages of the same programs in two revisions, so that tests can upgrade a machine from one to the
        // other.
        for (revision, check) in [(1, true), (2, false)] {
            stages.run_stage("packages", || packages::run(&packages::PackagesOptions { dev: true, revision, check }))?;
        }
    }
    let mut tests = runner.test_command(options.profile(), options.packages());
    if options.long {
        tests.env("STEMMA_TEST_LONG", "1").env("PROPTEST_CASES", LONG_RUN_CASES);
    }
    runner::remove_report(options.profile())?;
    let result = stages.run_command("tests", tests);
    let print_result = print_tests(options, runner);
    result.and(print_result)?;
    match runner.doctest_command(options.packages()) {
        Some(doctests) => stages.run_command("examples of the documentation", doctests),
        None => Ok(()),
    }
}

/// Prints the tests that passed only on a retry, and with `--times` the slowest tests. Prints nothing for `cargo test`,
/// which writes no report.
///
/// # Errors
/// Fails if the report of cargo-nextest is missing or unreadable, because then nobody knows which tests were retried.
fn print_tests(options: &TestOptions, runner: Runner) -> Result<()> {
    let mut tests = runner::read_last_run(options.profile())?;
    if tests.is_empty() && runner == Runner::Nextest {
        let report = runner::report_path(options.profile());
        bail!("the test report {} is missing: it is not known which tests were retried", report.display());
    }
    for test in tests.iter().filter(|test| test.is_flaky) {
        println!("== PASSED ONLY ON THE RETRY, an open defect (docs/testing.md): {}", test.name);
    }
    if options.times {
        tests.sort_by_key(|test| std::cmp::Reverse(test.duration));
        for test in tests.iter().take(MAX_LISTED_TESTS) {
            println!("{:>6.1} s  {}", test.duration.as_secs_f64(), test.name);
        }
    }
    Ok(())
}

/// System programs that tests need. Each has arguments with which it succeeds if it is installed, and the Debian
/// packages that contain it. Tests use Python programs as real clients of the API. A bare Debian has Python without
/// venv. `strace` shows the agent's disk operations, and makes disk operations fail. `faketime` has the library that
/// changes the clock of a program. `curl` sends the examples of docs/api.md. `kill` stops and ends programs.
/// `systemd-analyze` rates how exposed a unit is. `age` decrypts backups, and encrypts the backups that tests restore.
/// `unshare` lets a host resolve a name to another address later, and isolates the machines that tests boot. Its package
/// also contains `setpriv` and `nsenter`. mmdebstrap creates the file tree of these machines, `systemd-nspawn` boots
/// them, and `ip` sets up their network. `promtool` checks the alert rules. Without the option, its package would also
/// install an exporter and the tools that it calls. `zsh` and `fish` run their completions.
const REQUIRED_PROGRAMS: [(&str, &[&str], &[&str]); 14] = [
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
    ("promtool", &["--version"], &["--no-install-recommends", "prometheus"]),
    ("zsh", &["--version"], &["--no-install-recommends", "zsh"]),
    ("fish", &["--version"], &["--no-install-recommends", "fish"]),
];

/// Installs the missing system programs that tests need, with apt-get. Fails if a program is missing and apt-get does
/// not exist or fails.
fn install_programs() -> Result<()> {
    for (program, probe, packages) in REQUIRED_PROGRAMS.into_iter().chain(packages::TOOLS) {
        if succeeds(program, probe) {
            continue;
        }
        if !succeeds("apt-get", &["--version"]) {
            bail!("{program} is needed for the tests (packages {}), and there is no apt-get to install it", packages.join(", "));
        }
        run_step("apt-get update", command("apt-get", &["-qq", "update"]))?;
        run_step(program, command("apt-get", &[&["-qq", "install", "-y"], packages].concat()))?;
    }
    Ok(())
}

/// Prints which tests will be skipped on this machine. Each skipped test reports this in its own output, but that
/// output is not shown for a test that passes. If `STEMMA_REQUIRE_SHARED` is set, these tests fail instead, so nothing
/// is printed.
fn print_skipped() {
    if std::env::var_os("STEMMA_REQUIRE_SHARED").is_some() {
        return;
    }
    if !workspace_root().join("../shared").is_dir() {
        println!("== SKIPPED: tests with vectors, schemas and scripts of real clients; ../shared does not exist");
    }
    if !rustix::process::geteuid().is_root() {
        println!("== SKIPPED: tests that switch users or boot machines; this is not root");
    }
}

/// Installs cargo-deny, which checks the dependency policy.
fn install_cargo_deny() -> Result<()> {
    ensure_installed("deny", "cargo-deny", CARGO_DENY_VERSION)
}

/// Checks the dependencies for known vulnerabilities. If the advisory database cannot be reached, prints that nothing
/// was checked, and does not fail.
fn check_advisories() -> Result<()> {
    if succeeds("cargo", &["deny", "fetch", "db"]) {
        return run_step("advisories", command("cargo", &["deny", "check", "advisories"]));
    }
    println!(
        "== advisories: NOT CHECKED, the advisory database cannot be reached (docs/testing.md has the date of the last check)"
    );
    Ok(())
}
