//! `cargo xtask mutants`: mistakes that are made on purpose in what decides; a test has to notice each.
//!
//! Each mistake is built and tested by itself, which takes hours in all: so this is no part of CI, and runs in shards.

use anyhow::Result;
use clap::Args;

use crate::cargo::{command, installed, step};

/// The release of cargo-mutants that these arguments were written for.
const CARGO_MUTANTS: &str = "^27";

/// Where mistakes are made.
const FILES: &[&str] = &[
    "shared/core/src/graph/**",
    "shared/core/src/labels/**",
    "shared/core/src/ownership/**",
    "shared/core/src/requirement/**",
    "shared/core/src/resolve/**",
    "shared/core/src/role.rs",
    "shared/core/src/rollout/**",
    "shared/core/src/selector/**",
    "agent/src/apply/verify/**",
];

#[derive(Args)]
pub(crate) struct Options {
    /// Which part of the mistakes, as `K/N`, from 0.
    #[arg(long, default_value = "0/1")]
    shard: String,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    installed("mutants", "cargo-mutants", CARGO_MUTANTS)?;
    let mut mutants = command("cargo", &["mutants", "--output", "target", "--shard", &options.shard]);
    mutants.args(FILES.iter().flat_map(|files| ["--file", files]));
    step("mutants", mutants)
}
