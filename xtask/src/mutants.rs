//! `cargo xtask mutants`: mistakes that are made on purpose in what decides; a test has to notice each.
//!
//! Each mistake is built and tested by itself, which takes hours in all: so this is no part of CI, and runs in shards. A mistake is
//! shown to the unit tests of its package first, which are one program to build. Only what they do not notice is shown to all
//! tests of the package.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::cargo::{command, installed, root};

/// The release of cargo-mutants that these arguments were written for.
const CARGO_MUTANTS: &str = "27";

/// Of a hundred mistakes, how many may be missed.
const MOST_MISSED: usize = 5;

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
    /// Which part of the mistakes, as `K/N`, from 0. Each part has some of every file.
    #[arg(long, default_value = "0/1")]
    shard: String,
}

/// What came of mistakes, by their names.
#[derive(Default)]
struct Outcome {
    noticed: BTreeSet<String>,
    missed: BTreeSet<String>,
    unbuildable: BTreeSet<String>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    installed("mutants", "cargo-mutants", CARGO_MUTANTS)?;
    let shard = ["--sharding", "round-robin", "--shard", &options.shard];
    let mut outcome = test("unit-tests", "--lib", &shard)?;
    if !outcome.missed.is_empty() {
        let names: Vec<_> = outcome.missed.iter().map(|name| format!("--re=^{}$", regex_lite::escape(name))).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let missed = test("all-tests", "--tests", &names)?.missed;
        let (missed, noticed) = outcome.missed.into_iter().partition(|name| missed.contains(name));
        outcome.missed = missed;
        outcome.noticed.extend(noticed);
    }
    outcome.judge()
}

/// Makes the chosen mistakes and runs some tests on each; cargo-mutants' own account stands below `target/mutants`.
fn test(name: &str, tests: &str, chosen: &[&str]) -> Result<Outcome> {
    let output = root().join("target/mutants").join(name);
    fs::create_dir_all(&output)?;
    println!("== mutants: {name}, in {}", output.display());
    let status = mutants(&output, tests, chosen).status().context("cannot start cargo mutants")?;
    // 2: some were missed. 3: some ran into their time limit, which is noticed too.
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        bail!("cargo mutants ended with {status}; its log stands in {}", output.join("mutants.out/log").display());
    }
    Outcome::read(&output.join("mutants.out"))
}

fn mutants(output: &Path, tests: &str, chosen: &[&str]) -> Command {
    let mut mutants = command("cargo", &["mutants", "--cargo-arg", tests, "--no-times", "--output"]);
    mutants.arg(output).args(chosen).args(FILES.iter().flat_map(|files| ["--file", files]));
    // The copy in which mistakes are made stands beside the checkout, so that tests find there what is given beside it.
    mutants.env("TMPDIR", root().parent().unwrap_or(Path::new("/")));
    // Both runs build the dependencies once, and nothing is built that only a debugger reads.
    mutants.env("CARGO_TARGET_DIR", root().join("target/mutants/build")).env("CARGO_PROFILE_DEV_DEBUG", "0");
    mutants
}

impl Outcome {
    fn read(output: &Path) -> Result<Self> {
        let names = |file: &str| -> Result<BTreeSet<String>> {
            let path: PathBuf = output.join(file);
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        let noticed = names("caught.txt")?.into_iter().chain(names("timeout.txt")?).collect();
        Ok(Self { noticed, missed: names("missed.txt")?, unbuildable: names("unviable.txt")? })
    }

    /// Says what came of them.
    fn judge(&self) -> Result<()> {
        let (missed, noticed) = (self.missed.len(), self.noticed.len());
        self.missed.iter().for_each(|name| println!("MISSED {name}"));
        println!("== mutants: {noticed} noticed, {missed} missed, {} do not build", self.unbuildable.len());
        if missed * 100 >= (missed + noticed) * MOST_MISSED && missed > 0 {
            bail!("{MOST_MISSED} % of these mistakes or more were missed: write the tests that notice them");
        }
        Ok(())
    }
}
