//! `cargo xtask size`: how much there is of each crate, tests left out.
//!
//! A line counts when it is neither blank nor a comment, and not part of an item under `#[cfg(test)]`. A public item is a
//! `pub` function, type, trait, constant, static or module, or a `pub` method or constant of a type; a `pub use` names
//! what is counted already. A function's length is its lines from `fn` to its last brace.

mod count;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;

use crate::cargo::root;
use crate::source::{self, Package};
use count::{Count, Function};

/// The crates that serve tests and the project itself.
const APART: [&str; 2] = ["stemma-tests", "xtask"];

/// How many of a crate's longest functions are named.
const LONGEST: usize = 3;

#[derive(Args)]
pub(crate) struct Options {
    /// Another checkout.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let root = options.root.clone().unwrap_or_else(root).canonicalize()?;
    let (apart, counted): (Vec<_>, Vec<_>) =
        source::packages(&root)?.into_iter().partition(|package| APART.contains(&package.name.as_str()));
    println!(
        "{:<18} {:>7} {:>7} {:>12} {:>10}  longest functions",
        "crate", "files", "lines", "public items", "functions"
    );
    let mut total = Count::default();
    for package in &counted {
        total.add(row(package, &root)?);
    }
    line("in all", &total, &root);
    for package in &apart {
        row(package, &root)?;
    }
    Ok(())
}

fn row(package: &Package, root: &Path) -> Result<Count> {
    let mut count = Count::default();
    for start in [Some(&package.root), package.program.as_ref()].into_iter().flatten() {
        for module in source::modules(start)?.iter().filter(|module| module.is_file) {
            count.add(count::file(&module.file)?);
        }
    }
    line(&package.name, &count, root);
    Ok(count)
}

fn line(name: &str, count: &Count, root: &Path) {
    let mut longest: Vec<&Function> = count.functions.iter().collect();
    longest.sort_by_key(|function| (std::cmp::Reverse(function.lines), &function.file, function.line));
    let shown = longest.iter().take(LONGEST).map(|function| {
        let file = function.file.strip_prefix(root).unwrap_or(&function.file);
        format!("{} {} ({}:{})", function.lines, function.name, file.display(), function.line)
    });
    let shown: Vec<_> = shown.collect();
    let functions = count.functions.len();
    println!(
        "{name:<18} {:>7} {:>7} {:>12} {functions:>10}  {}",
        count.files,
        count.lines,
        count.public,
        shown.join(", ")
    );
}
