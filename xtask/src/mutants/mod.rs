//! `cargo xtask mutants`: mistakes that are made on purpose in what decides; a test has to notice each.
//!
//! cargo-mutants says which mistakes there are. Most are built together into one program, each behind a switch, since to build one
//! takes far longer than to test it; those that cannot be are built by cargo-mutants, one by one. Even so it takes an hour or two: so
//! this is no part of CI, and runs in shards.

mod build;
mod mistake;
mod switch;
mod trial;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use mistake::Mistake;
use serde_json::Value;
use stemma_tests::chance::Chance;

use crate::cargo::{command, installed, root};

/// The release of cargo-mutants that these arguments were written for.
const CARGO_MUTANTS: &str = "27";

/// Of a hundred mistakes, how many may be missed.
const MOST_MISSED: usize = 5;

/// Where each mistake is tried.
const WHOLE: &[&str] = &[
    "shared/core/src/access.rs",
    "shared/core/src/labels/**",
    "shared/core/src/ownership/**",
    "shared/core/src/rollout/**",
];

/// Where a sample of the mistakes may be tried.
const SAMPLED: &[&str] = &[
    "shared/core/src/allocate/**",
    "shared/core/src/catalog/**",
    "shared/core/src/graph/**",
    "shared/core/src/requirement/**",
    "shared/core/src/resolve/**",
    "shared/core/src/role.rs",
    "shared/core/src/selector/**",
    "agent/src/apply/verify/**",
];

#[derive(Args)]
pub(crate) struct Options {
    /// Which part of the mistakes, as `K/N`, from 0. Each part has some of every file.
    #[arg(long, default_value = "0/1")]
    shard: String,
    /// Try so many of the mistakes outside access, labels, ownership and rollout, drawn by `STEMMA_SEED`; all of them without this.
    #[arg(long)]
    sample: Option<usize>,
    /// Leave out those that have to be built alone, which takes most of the time.
    #[arg(long)]
    switched: bool,
}

/// What came of mistakes, by their names.
#[derive(Default)]
struct Outcome {
    noticed: BTreeSet<String>,
    missed: BTreeSet<String>,
    unbuildable: BTreeSet<String>,
    /// How many have to be built alone, and were left out.
    left_out: usize,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    installed("mutants", "cargo-mutants", CARGO_MUTANTS)?;
    let mut mistakes = listed(&options.shard, SAMPLED)?;
    if let Some(most) = options.sample {
        let found = mistakes.len();
        mistakes = sample(mistakes, most, &mut Chance::seeded()?);
        println!("== mutants: a sample of {} of {found} mistakes", mistakes.len());
    }
    mistakes.extend(listed(&options.shard, WHOLE)?);
    println!("== mutants: {} mistakes", mistakes.len());
    let mut outcome = Outcome::default();
    let alone = switched(&mistakes, &mut outcome)?;
    if options.switched {
        outcome.left_out = alone.len();
    } else if !alone.is_empty() {
        built_alone(&alone, &mut outcome)?;
    }
    outcome.judge()
}

/// Draws so many of some mistakes; their order stays.
fn sample(mistakes: Vec<Mistake>, most: usize, chance: &mut Chance) -> Vec<Mistake> {
    let mut drawn: Vec<_> =
        mistakes.into_iter().enumerate().map(|(at, mistake)| (chance.bits(), at, mistake)).collect();
    drawn.sort_by_key(|(draw, ..)| *draw);
    drawn.truncate(most);
    drawn.sort_by_key(|(_, at, _)| *at);
    drawn.into_iter().map(|(_, _, mistake)| mistake).collect()
}

/// The mistakes of a shard in some files.
fn listed(shard: &str, of: &[&'static str]) -> Result<Vec<Mistake>> {
    let mut list = command("cargo", &["mutants", "--list", "--json", "--sharding", "round-robin", "--shard", shard]);
    let output = list.args(files(of)).output().context("cannot start cargo mutants")?;
    ensure!(output.status.success(), "cargo mutants: {}", String::from_utf8_lossy(&output.stderr));
    let listed: Vec<Value> = serde_json::from_slice(&output.stdout)?;
    listed.iter().map(Mistake::read).collect()
}

/// Tries those that can stand behind a switch; the others.
fn switched(mistakes: &[Mistake], outcome: &mut Outcome) -> Result<Vec<String>> {
    let packages: BTreeSet<&str> = mistakes.iter().map(|mistake| mistake.package.as_str()).collect();
    let mut alone: BTreeSet<usize> = (0..mistakes.len()).collect();
    let copy = build::Copy::make()?;
    for package in packages.into_iter().rev() {
        // What does not build with others may build without them.
        while let Some(built) = copy.build(package, mistakes, &alone)? {
            println!("== mutants: {package}: {} behind a switch", built.mistakes.len());
            let unnoticed = trial::unnoticed(&built, mistakes)?;
            for number in built.mistakes {
                alone.remove(&number);
                let of = if unnoticed.contains(&number) { &mut outcome.missed } else { &mut outcome.noticed };
                of.insert(mistakes[number].name.clone());
            }
        }
    }
    Ok(alone.into_iter().map(|number| mistakes[number].name.clone()).collect())
}

/// Lets cargo-mutants build and test the named mistakes, one by one.
fn built_alone(names: &[String], outcome: &mut Outcome) -> Result<()> {
    let chosen: Vec<_> = names.iter().map(|name| format!("--re=^{}$", regex_lite::escape(name))).collect();
    let output = root().join("target/mutants");
    fs::create_dir_all(&output)?;
    println!("== mutants: {} alone, in {}", names.len(), output.display());
    let status = mutants(&output, &chosen).status().context("cannot start cargo mutants")?;
    // 2: some were missed. 3: some ran into their time limit, which is noticed too.
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        bail!("cargo mutants ended with {status}; its log stands in {}", output.join("mutants.out/log").display());
    }
    outcome.read(&output.join("mutants.out"))
}

fn files(of: &[&'static str]) -> impl Iterator<Item = &'static str> {
    of.iter().flat_map(|files| ["--file", files])
}

fn mutants(output: &Path, chosen: &[String]) -> Command {
    let mut mutants =
        command("cargo", &["mutants", "--cargo-arg", "--lib", "--cargo-arg", "--tests", "--no-times", "--output"]);
    mutants.arg(output).args(chosen).args(files(WHOLE)).args(files(SAMPLED));
    // The copy in which mistakes are made stands beside the checkout, so that tests find there what is given beside it.
    mutants.env("TMPDIR", root().parent().unwrap_or(Path::new("/")));
    // Nothing is built that only a debugger reads.
    mutants.env("CARGO_TARGET_DIR", root().join("target/mutants/build")).env("CARGO_PROFILE_DEV_DEBUG", "0");
    mutants
}

impl Outcome {
    /// Adds what cargo-mutants wrote down.
    fn read(&mut self, output: &Path) -> Result<()> {
        let names = |file: &str| -> Result<Vec<String>> {
            let path: PathBuf = output.join(file);
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        self.noticed.extend(names("caught.txt")?.into_iter().chain(names("timeout.txt")?));
        self.missed.extend(names("missed.txt")?);
        self.unbuildable.extend(names("unviable.txt")?);
        Ok(())
    }

    /// Says what came of them.
    fn judge(&self) -> Result<()> {
        let (missed, noticed) = (self.missed.len(), self.noticed.len());
        self.missed.iter().for_each(|name| println!("MISSED {name}"));
        println!(
            "== mutants: {noticed} noticed, {missed} missed, {} do not build, {} were not tried, since each has to be built alone",
            self.unbuildable.len(),
            self.left_out
        );
        if missed * 100 >= (missed + noticed) * MOST_MISSED && missed > 0 {
            bail!("{MOST_MISSED} % of these mistakes or more were missed: write the tests that notice them");
        }
        Ok(())
    }
}
