//! Chooses the program that runs the tests: cargo-nextest if a version that reads `.config/nextest.toml` is installed,
//! otherwise `cargo test`. So nobody has to build cargo-nextest to run the tests. Also reads cargo-nextest's report.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use regex_lite::Regex;

use crate::cargo::{command, parse_version, version_output, workspace_root};

/// The number of tests that cargo-nextest runs at once per CPU. Tests that start programs wait for these programs about
/// half of the time.
const TESTS_PER_CPU: usize = 2;

/// The text of the configuration of cargo-nextest.
const NEXTEST_CONFIG: &str = include_str!("../../.config/nextest.toml");

/// A program that runs tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runner {
    /// cargo-nextest. It runs each test in a separate process, with a profile of `.config/nextest.toml`.
    Nextest,
    /// `cargo test`.
    CargoTest,
}

/// One test of a finished run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TestRun {
    /// The package and binary of the test as cargo-nextest names them, a space, and the path of the test.
    pub(crate) name: String,
    /// The duration of the test's last attempt.
    pub(crate) duration: Duration,
    /// True if the test failed before it passed.
    pub(crate) is_flaky: bool,
}

impl Runner {
    /// Returns the runner for this machine: cargo-nextest if the installed version supports `.config/nextest.toml`.
    pub(crate) fn detect() -> Self {
        if supports_config(&version_output("nextest")) { Self::Nextest } else { Self::CargoTest }
    }

    /// Returns the name to print.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nextest => "cargo-nextest",
            Self::CargoTest => "cargo test (no cargo-nextest that reads .config/nextest.toml is installed)",
        }
    }

    /// Returns the command that runs the tests with a profile. `packages` are the arguments of cargo that select
    /// packages. The command does not stop at a failed test.
    pub(crate) fn test_command(self, profile: &str, packages: &[&str]) -> Command {
        let mut command = match self {
            Self::Nextest => {
                let threads = (thread::available_parallelism().map_or(1, usize::from) * TESTS_PER_CPU).to_string();
                command("cargo", &["nextest", "run", "--profile", profile, "--test-threads", &threads])
            }
            Self::CargoTest => command("cargo", &["test", "--no-fail-fast"]),
        };
        command.args(packages);
        command
    }

    /// Returns the command that runs the doctests. cargo-nextest cannot run them. `None` for `cargo test`, because the
    /// command of [`Self::test_command`] runs them too.
    pub(crate) fn doctest_command(self, packages: &[&str]) -> Option<Command> {
        let mut command = (self == Self::Nextest).then(|| command("cargo", &["test", "--quiet", "--doc"]))?;
        command.args(packages);
        Some(command)
    }
}

/// Returns whether the installed cargo-nextest is as new as its configuration requires. `output` is the output of
/// `cargo nextest --version`, or empty if it is not installed.
fn supports_config(output: &str) -> bool {
    let (_, rest) = NEXTEST_CONFIG.split_once("nextest-version = \"").expect("the configuration asks for a version");
    let required =
        rest.split_once('"').and_then(|(version, _)| parse_version_numbers(version)).expect("a version has three numbers");
    parse_version(output).and_then(parse_version_numbers).is_some_and(|installed| installed >= required)
}

/// Reads the three numbers of a version, such as `0.9.115` or `1.0.0-rc.1`.
fn parse_version_numbers(version: &str) -> Option<[u32; 3]> {
    let mut parts = version.split(['-', '+']).next()?.split('.').map(|part| part.parse().ok());
    Some([parts.next()??, parts.next()??, parts.next()??])
}

/// Removes the report of an earlier run with this profile, so that it is not mistaken for the report of the next run.
///
/// # Errors
/// Fails if the report exists and cannot be removed.
pub(crate) fn remove_report(profile: &str) -> Result<()> {
    match fs::remove_file(report_path(profile)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).context("the report of an earlier run"),
        _ => Ok(()),
    }
}

/// Returns the results of all tests in the last run with this profile. Empty if the run ended without a report, or if
/// the runner writes no report.
///
/// # Errors
/// Fails if the report exists and cannot be read.
pub(crate) fn read_last_run(profile: &str) -> Result<Vec<TestRun>> {
    match fs::read_to_string(report_path(profile)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        text => Ok(parse_report(&text.context("the report of the run")?)),
    }
}

/// Returns the path of cargo-nextest's report. The report is in the workspace, even if the target directory is
/// elsewhere.
pub(crate) fn report_path(profile: &str) -> PathBuf {
    workspace_root().join("target/nextest").join(profile).join("junit.xml")
}

/// Parses a report in `JUnit` format, as cargo-nextest writes it. A test is flaky if `<flakyFailure` or `<flakyError`
/// occurs between its `<testcase>` and the next one. The failed attempts of a test that did not pass have other names.
fn parse_report(text: &str) -> Vec<TestRun> {
    let case = Regex::new("<testcase ([^>]*)>").expect("a pattern that compiles");
    let attribute = |name: &str| Regex::new(&format!(" ?\\b{name}=\"([^\"]*)\"")).expect("a pattern that compiles");
    let (name, class, time) = (attribute("name"), attribute("classname"), attribute("time"));
    let value =
        |pattern: &Regex, attributes: &str| pattern.captures(attributes).map(|found| found[1].to_owned()).unwrap_or_default();
    let cases: Vec<_> = case.captures_iter(text).collect();
    let starts = cases.iter().map(|case| case.get(0).expect("the whole match").end());
    let ends = cases.iter().skip(1).map(|case| case.get(0).expect("the whole match").start()).chain([text.len()]);
    // `case[1]` is the text of the attributes.
    let parse_case = |(case, (start, end)): (&regex_lite::Captures<'_>, (usize, usize))| TestRun {
        name: format!("{} {}", value(&class, &case[1]), value(&name, &case[1])),
        duration: value(&time, &case[1]).parse().map_or(Duration::ZERO, Duration::from_secs_f64),
        is_flaky: text[start..end].contains("<flakyFailure") || text[start..end].contains("<flakyError"),
    };
    cases.iter().zip(starts.zip(ends)).map(parse_case).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report of cargo-nextest 0.9.143, without most of the output.
    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" skipped="0" failures="1" errors="0" uuid="b97c7bc0-07b8-4f91-9e0f-e365edce0a38" timestamp="2026-11-26T15:23:37.325+00:00" time="0.291">
    <testsuite name="fl" tests="3" skipped="0" errors="0" failures="1">
        <testcase name="host::good" classname="fl" timestamp="2026-11-26T15:23:37.515+00:00" time="1.250"/>
        <testcase name="host::flaky" classname="fl" timestamp="2026-11-26T15:23:37.510+00:00" time="2.500">
            <flakyFailure timestamp="2026-11-26T15:23:37.328+00:00" time="0.180" message="thread &apos;flaky&apos; panicked" type="test failure with exit code 101">first &lt;&quot;x&quot;&gt;
                <system-out>
test flaky ... FAILED
</system-out>
            </flakyFailure>
        </testcase>
        <testcase name="host::bad" classname="fl" timestamp="2026-11-26T15:23:37.328+00:00" time="0.010">
            <failure message="thread &apos;bad&apos; panicked" type="test failure with exit code 101">no</failure>
            <rerunFailure timestamp="2026-11-26T15:23:37.505+00:00" time="0.111" message="thread &apos;bad&apos; panicked" type="test failure with exit code 101">no</rerunFailure>
        </testcase>
    </testsuite>
</testsuites>
"#;

    #[test]
    fn supports_config_rejects_older_cargo_nextest() {
        for (output, expected) in [
            ("cargo-nextest 0.9.143 (60fa45f63 2026-08-04)\nrelease: 0.9.143\n", true),
            ("cargo-nextest 0.9.115\n", true),
            ("cargo-nextest 0.9.114\n", false),
            ("cargo-nextest 0.9.100\n", false),
            ("cargo-nextest 0.10.0\n", true),
            ("cargo-nextest 1.0.0-rc.1 (x)\n", true),
            ("error: no such command: `nextest`\n", false),
            ("", false),
        ] {
            assert_eq!(supports_config(output), expected, "{output:?}");
        }
    }

    #[test]
    fn ci_profile_terminates_hung_tests_and_writes_report() {
        let (_, profile) = NEXTEST_CONFIG.split_once("[profile.ci]\n").expect("the profile");
        let profile = profile.split_once("[[profile.ci.overrides]]").expect("exceptions").0;
        for line in [
            "fail-fast = false",
            "slow-timeout = { period = \"60s\", terminate-after = 5 }",
            "[profile.ci.junit]\npath = \"junit.xml\"",
        ] {
            assert!(profile.contains(line), "{line}");
        }
        assert!(!profile.contains("retries"), "only tests that start programs are run again");
    }

    #[test]
    fn parse_report_reads_duration_and_flakiness_of_each_test() {
        let test = |name: &str, ms, is_flaky| TestRun {
            name: format!("fl host::{name}"),
            duration: Duration::from_millis(ms),
            is_flaky,
        };
        assert_eq!(parse_report(REPORT), [test("good", 1_250, false), test("flaky", 2_500, true), test("bad", 10, false)]);
    }
}
