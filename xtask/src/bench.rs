//! `cargo xtask bench`: the figures of `docs/performance.md`, each by the bench that it names there.

use anyhow::Result;
use clap::Args;

use crate::cargo::{command, step};

/// Package and bench, in the order of the table.
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
pub(crate) struct Options {
    /// Only the bench of this name.
    name: Option<String>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    // What is measured as a program is what is installed.
    step("programs, released", command("cargo", &["build", "--quiet", "--release", "--workspace", "--bins"]))?;
    for (package, bench) in BENCHES {
        if options.name.as_deref().is_none_or(|name| name == *bench) {
            step(bench, command("cargo", &["bench", "--quiet", "--package", package, "--bench", bench]))?;
        }
    }
    Ok(())
}
