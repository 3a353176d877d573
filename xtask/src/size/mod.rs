//! `cargo xtask size`: prints the size of each crate, without tests.
//!
//! A line counts if it is neither blank nor a comment, and not part of an item under `#[cfg(test)]`. A public item is a
//! `pub` function, type, trait, constant, static or module, or a `pub` method or constant of a type. A `pub use` does
//! not count, because its item is counted already. The length of a function is its lines from `fn` to its last brace.

mod count;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;

use crate::cargo::workspace_root;
use crate::source::{self, CratePackage};
use count::{FunctionSize, SourceCounts};

/// The crates for tests and for the project's own tasks.
const SUPPORT_CRATES: [&str; 2] = ["stemma-tests", "xtask"];

/// The number of longest functions that are printed for each crate.
const MAX_LISTED_FUNCTIONS: usize = 3;

#[derive(Args)]
pub(crate) struct SizeOptions {
    /// The checkout whose code is counted, instead of this one.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

/// Prints the size of each crate, and the sum of all crates that are not in [`SUPPORT_CRATES`].
pub(crate) fn run(options: &SizeOptions) -> Result<()> {
    let root = options.root.clone().unwrap_or_else(workspace_root).canonicalize()?;
    let (support, installed): (Vec<_>, Vec<_>) =
        source::read_packages(&root)?.into_iter().partition(|package| SUPPORT_CRATES.contains(&package.name.as_str()));
    println!("{:<18} {:>7} {:>7} {:>12} {:>10}  longest functions", "crate", "files", "lines", "public items", "functions");
    let mut total = SourceCounts::default();
    for package in &installed {
        total.add(count_package(package, &root)?);
    }
    print_row("in all", &total, &root);
    for package in &support {
        count_package(package, &root)?;
    }
    Ok(())
}

/// Counts the code of a crate, and prints its row.
fn count_package(package: &CratePackage, root: &Path) -> Result<SourceCounts> {
    let mut count = SourceCounts::default();
    for root_file in [Some(&package.root_file), package.program_file.as_ref()].into_iter().flatten() {
        for module in source::read_modules(root_file)?.iter().filter(|module| module.is_file) {
            count.add(count::count_file(&module.file)?);
        }
    }
    print_row(&package.name, &count, root);
    Ok(count)
}

/// Prints the row of a crate, with its counts and its longest functions. `root` is the directory to which their paths
/// are relative.
fn print_row(name: &str, count: &SourceCounts, root: &Path) {
    let mut longest: Vec<&FunctionSize> = count.functions.iter().collect();
    longest.sort_by_key(|function| (std::cmp::Reverse(function.lines), &function.file, function.line));
    let texts = longest.iter().take(MAX_LISTED_FUNCTIONS).map(|function| {
        let file = function.file.strip_prefix(root).unwrap_or(&function.file);
        format!("{} {} ({}:{})", function.lines, function.name, file.display(), function.line)
    });
    let texts: Vec<_> = texts.collect();
    let functions = count.functions.len();
    println!("{name:<18} {:>7} {:>7} {:>12} {functions:>10}  {}", count.files, count.lines, count.public_items, texts.join(", "));
}
