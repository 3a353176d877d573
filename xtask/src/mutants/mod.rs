//! `cargo xtask mutants`: puts deliberate mistakes (mutants) into the code that makes decisions. Tests must catch more
//! than 95 % of them.
//!
//! The program cargo-mutants lists the mutants. Most mutants are built together into one program, each behind a switch,
//! because a build takes far longer than the tests. cargo-mutants builds the others one by one. All of this takes an
//! hour or two, so it is not part of CI, and can run in shards.

mod build;
mod mutant;
mod switch;
mod trial;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use mutant::Mutant;
use serde_json::Value;
use stemma_tests::seed::SeededRng;

use crate::cargo::{command, ensure_installed, workspace_root};

/// The release of cargo-mutants whose arguments are used here.
const CARGO_MUTANTS_VERSION: &str = "27";

/// The percentage of missed mutants at which the task fails. Missed mutants are those that no test catches.
const MAX_MISSED_PERCENT: usize = 5;

/// The patterns of the files in which every mutant is tried.
const FULLY_TESTED_FILES: &[&str] =
    &["shared/core/src/access.rs", "shared/core/src/labels/**", "shared/core/src/ownership/**", "shared/core/src/rollout/**"];

/// The patterns of the files in which `--sample` limits the number of mutants.
const SAMPLED_FILES: &[&str] = &[
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
pub(crate) struct MutantsOptions {
    /// The shard of the mutants to try, as `K/N`, with K from 0. Each shard contains some mutants of every file.
    #[arg(long, default_value = "0/1")]
    shard: String,
    /// Try only this number of mutants outside access, labels, ownership and rollout. `STEMMA_SEED` determines which.
    /// Default: all.
    #[arg(long)]
    sample: Option<usize>,
    /// Skip the mutants that must be built separately, because these take most of the time.
    #[arg(long)]
    switched: bool,
}

/// The names of the mutants that were tried, by result.
#[derive(Default)]
struct MutationReport {
    /// Mutants that a test caught, or that made a test time out.
    caught: BTreeSet<String>,
    /// Mutants that no test caught.
    missed: BTreeSet<String>,
    /// Mutants that do not compile.
    unviable: BTreeSet<String>,
    /// The number of mutants that were skipped because they must be built separately.
    skipped: usize,
}

/// Tries the mutants of a shard, and prints the results. Fails if too many mutants were missed.
pub(crate) fn run(options: &MutantsOptions) -> Result<()> {
    ensure_installed("mutants", "cargo-mutants", CARGO_MUTANTS_VERSION)?;
    let mut mutants = list_mutants(&options.shard, SAMPLED_FILES)?;
    if let Some(count) = options.sample {
        let listed_count = mutants.len();
        mutants = draw_sample(mutants, count, &mut SeededRng::from_env()?);
        println!("== mutants: a sample of {} of {listed_count} mistakes", mutants.len());
    }
    mutants.extend(list_mutants(&options.shard, FULLY_TESTED_FILES)?);
    println!("== mutants: {} mistakes", mutants.len());
    let mut report = MutationReport::default();
    let separate = run_switched(&mutants, &mut report)?;
    if options.switched {
        report.skipped = separate.len();
    } else if !separate.is_empty() {
        run_separately(&separate, &mut report)?;
    }
    report.check()
}

/// Returns at most `count` mutants, chosen at random, in their original order.
fn draw_sample(mutants: Vec<Mutant>, count: usize, rng: &mut SeededRng) -> Vec<Mutant> {
    let mut drawn: Vec<_> = mutants.into_iter().enumerate().map(|(index, mutant)| (rng.next_u64(), index, mutant)).collect();
    drawn.sort_by_key(|(draw, ..)| *draw);
    drawn.truncate(count);
    drawn.sort_by_key(|(_, index, _)| *index);
    drawn.into_iter().map(|(_, _, mutant)| mutant).collect()
}

/// Lists the mutants of a shard in the files that match these patterns.
fn list_mutants(shard: &str, files_to_list: &[&'static str]) -> Result<Vec<Mutant>> {
    let mut list = command("cargo", &["mutants", "--list", "--json", "--sharding", "round-robin", "--shard", shard]);
    let output = list.args(file_arguments(files_to_list)).output().context("cannot start cargo mutants")?;
    ensure!(output.status.success(), "cargo mutants: {}", String::from_utf8_lossy(&output.stderr));
    let listed: Vec<Value> = serde_json::from_slice(&output.stdout)?;
    listed.iter().map(Mutant::from_json).collect()
}

/// Tries the mutants that can be put behind a switch, and adds the results to `report`. A switch activates a mutant at
/// run time, so one build contains many mutants. Returns the names of the other mutants.
fn run_switched(mutants: &[Mutant], report: &mut MutationReport) -> Result<Vec<String>> {
    let packages: BTreeSet<&str> = mutants.iter().map(|mutant| mutant.package.as_str()).collect();
    let mut remaining: BTreeSet<usize> = (0..mutants.len()).collect();
    let copy = build::WorkspaceCopy::create()?;
    for package in packages.into_iter().rev() {
        // Mutants that do not compile with others may compile without them.
        while let Some(built) = copy.build(package, mutants, &remaining)? {
            println!("== mutants: {package}: {} behind a switch", built.mutants.len());
            let missed = trial::find_missed(&built, mutants)?;
            for number in built.mutants {
                remaining.remove(&number);
                let results = if missed.contains(&number) { &mut report.missed } else { &mut report.caught };
                results.insert(mutants[number].name.clone());
            }
        }
    }
    Ok(remaining.into_iter().map(|number| mutants[number].name.clone()).collect())
}

/// Lets cargo-mutants build and test the named mutants one by one, and adds the results to `report`.
fn run_separately(names: &[String], report: &mut MutationReport) -> Result<()> {
    let chosen: Vec<_> = names.iter().map(|name| format!("--re=^{}$", regex_lite::escape(name))).collect();
    let output = workspace_root().join("target/mutants");
    fs::create_dir_all(&output)?;
    println!("== mutants: {} alone, in {}", names.len(), output.display());
    let status = cargo_mutants(&output, &chosen).status().context("cannot start cargo mutants")?;
    // Status 2 means that mutants were missed. Status 3 means that tests timed out, and these mutants count as caught.
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        bail!("cargo mutants ended with {status}; its log is in {}", output.join("mutants.out/log").display());
    }
    report.add_output(&output.join("mutants.out"))
}

/// Returns the arguments `--file PATTERN` for each pattern.
fn file_arguments(patterns: &[&'static str]) -> impl Iterator<Item = &'static str> {
    patterns.iter().flat_map(|files| ["--file", files])
}

/// Returns the command with which cargo-mutants builds and tests the chosen mutants.
fn cargo_mutants(output: &Path, chosen: &[String]) -> Command {
    let mut mutants = command("cargo", &["mutants", "--cargo-arg", "--lib", "--cargo-arg", "--tests", "--no-times", "--output"]);
    mutants.arg(output).args(chosen).args(file_arguments(FULLY_TESTED_FILES)).args(file_arguments(SAMPLED_FILES));
    // The mutated copy is next to the checkout, so that tests find the files that they expect there.
    mutants.env("TMPDIR", workspace_root().parent().unwrap_or(Path::new("/")));
    // Leaves out debug information, which only a debugger needs.
    mutants.env("CARGO_TARGET_DIR", workspace_root().join("target/mutants/build")).env("CARGO_PROFILE_DEV_DEBUG", "0");
    mutants
}

impl MutationReport {
    /// Adds the results that cargo-mutants wrote to the directory `output`.
    fn add_output(&mut self, output: &Path) -> Result<()> {
        let names = |file: &str| -> Result<Vec<String>> {
            let path: PathBuf = output.join(file);
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        self.caught.extend(names("caught.txt")?.into_iter().chain(names("timeout.txt")?));
        self.missed.extend(names("missed.txt")?);
        self.unviable.extend(names("unviable.txt")?);
        Ok(())
    }

    /// Prints the results. Fails if too many mutants were missed.
    fn check(&self) -> Result<()> {
        let (missed, caught) = (self.missed.len(), self.caught.len());
        self.missed.iter().for_each(|name| println!("MISSED {name}"));
        println!(
            "== mutants: {caught} noticed, {missed} missed, {} do not build, {} were not tried, since each has to be built alone",
            self.unviable.len(),
            self.skipped
        );
        // If no mutant was tried, both products are 0. The second condition then lets the task succeed.
        if missed * 100 >= (missed + caught) * MAX_MISSED_PERCENT && missed > 0 {
            bail!("{MAX_MISSED_PERCENT} % or more of these mutants were missed: write tests that catch them");
        }
        Ok(())
    }
}
