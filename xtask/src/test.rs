//! `cargo xtask test`: everything, in the order in which a mistake is cheapest to find.

use anyhow::{Result, bail};
use clap::Args;

use crate::cargo::{command, installed, root, runs, step};
use crate::modules;
use crate::packages;

/// The release of cargo-deny that the policy file was written for.
const CARGO_DENY: &str = "0.19";

/// Of each property in a long run; 256 in the usual one.
const CASES: &str = "10000";

#[derive(Args)]
pub(crate) struct Options {
    /// The inner loop: format, lints and tests that start no program.
    #[arg(long)]
    quick: bool,
    /// The full counts of the randomised and fault tests.
    #[arg(long, conflicts_with = "quick")]
    long: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    step("format", command("cargo", &["fmt", "--all", "--check"]))?;
    modules::run(&root())?;
    step("lints", command("cargo", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]))?;
    say_skipped();
    if options.quick {
        return step("tests", command("cargo", &["test", "--workspace", "--exclude", "stemma-tests"]));
    }
    programs()?;
    cargo_deny()?;
    step("dependency policy", command("cargo", &["deny", "check", "licenses", "bans", "sources"]))?;
    advisories()?;
    // The tests that start programs take them from the target directory, so they are built first.
    step("programs", command("cargo", &["build", "--workspace", "--bins"]))?;
    // Of the same programs, and twice, so that machines can be upgraded from one to the other.
    for (revision, check) in [(1, true), (2, false)] {
        packages::run(&packages::Options { dev: true, revision, check })?;
    }
    let mut tests = command("cargo", &["test", "--workspace", "--no-fail-fast"]);
    if options.long {
        tests.env("STEMMA_TEST_LONG", "1").env("PROPTEST_CASES", CASES);
    }
    step("tests", tests)
}

/// Programs of the system that tests need, each with what shows that it is there and the packages that bring it. Real clients are Python
/// programs, and a bare Debian has Python without venv; `strace` shows what the agent asks of a disk, and lets disks fail; `faketime` brings
/// the library by which a program's clock jumps; `curl` sends the examples of docs/api.md; `kill` stops and ends programs; `systemd-analyze`
/// says how exposed a unit is; mmdebstrap makes the tree of the machines that `systemd-nspawn` boots.
const PROGRAMS: [(&str, &[&str], &[&str]); 9] = [
    ("python3", &["-c", "import venv, ensurepip"], &["python3", "python3-venv"]),
    ("strace", &["-V"], &["strace"]),
    ("faketime", &["-f", "+1h", "true"], &["faketime"]),
    ("curl", &["--version"], &["curl"]),
    ("kill", &["-L"], &["procps"]),
    ("systemd-analyze", &["--version"], &["systemd"]),
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
