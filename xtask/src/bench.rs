//! `cargo xtask bench`: prints the figures of `docs/performance.md`, each with the bench that this page names.

use anyhow::Result;
use clap::Args;

use crate::cargo::{command, run_step};

/// The package and the name of each bench, in the order in which they run. `docs/performance.md` names each of them.
const BENCHES: &[(&str, &str)] = &[
    ("stemma-core", "resolve"),
    ("stemma-controller", "commit"),
    ("stemma-controller", "lists"),
    ("stemma-controller", "checkin"),
    ("stemma-controller", "growth"),
    ("stemma-controller", "events"),
    ("stemma-wire", "listener"),
    ("stemma-tests", "agent_idle"),
    ("stemma-tests", "agent_run"),
];

#[derive(Args)]
pub(crate) struct BenchOptions {
    /// Run only the bench of this name.
    name: Option<String>,
}

/// Builds the release programs, then runs all benches or the named one. Runs no bench if the name is unknown.
pub(crate) fn run(options: &BenchOptions) -> Result<()> {
    // Benches that start programs measure the release build, which is what users install.
    run_step("programs, released", command("cargo", &["build", "--quiet", "--release", "--workspace", "--bins"]))?;
    for (package, bench) in BENCHES {
        if options.name.as_deref().is_none_or(|name| name == *bench) {
            run_step(bench, command("cargo", &["bench", "--quiet", "--package", package, "--bench", bench]))?;
        }
    }
    Ok(())
}
