//! `cargo xtask test`: everything, in the order in which a mistake is cheapest to find.

use anyhow::{Result, bail};
use clap::Args;

use crate::cargo::{command, root, runs, step};
use crate::modules;

/// The release of cargo-deny that the policy file was written for.
const CARGO_DENY: &str = "^0.19";

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
    if options.quick {
        return step("tests", command("cargo", &["test", "--workspace", "--exclude", "stemma-tests"]));
    }
    python()?;
    cargo_deny()?;
    step("dependency policy", command("cargo", &["deny", "check", "licenses", "bans", "sources"]))?;
    // The tests that start programs take them from the target directory, so they are built first.
    step("programs", command("cargo", &["build", "--workspace", "--bins"]))?;
    let mut tests = command("cargo", &["test", "--workspace", "--no-fail-fast"]);
    if options.long {
        tests.env("STEMMA_TEST_LONG", "1");
    }
    step("tests", tests)
}

/// Real clients are Python programs; a bare Debian has Python without venv.
fn python() -> Result<()> {
    if runs("python3", &["-c", "import venv, ensurepip"]) {
        return Ok(());
    }
    if !runs("apt-get", &["--version"]) {
        bail!("python3 with venv is needed for the tests with real clients, and there is no apt-get to install it");
    }
    step("apt-get update", command("apt-get", &["-qq", "update"]))?;
    step("python3", command("apt-get", &["-qq", "install", "-y", "python3", "python3-venv"]))
}

fn cargo_deny() -> Result<()> {
    if runs("cargo", &["deny", "--version"]) {
        return Ok(());
    }
    step(
        "install cargo-deny",
        command("cargo", &["install", "--locked", "--quiet", "cargo-deny", "--version", CARGO_DENY]),
    )
}
