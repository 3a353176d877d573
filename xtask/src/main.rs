//! The project's own tasks, in Rust, so that cargo alone can build and start them. Some also need system programs.
//!
//! `cargo xtask test` is what CI runs, and `cargo xtask demo` is for newcomers. `cargo xtask bench` prints the figures
//! of `docs/performance.md`, `cargo xtask packages` builds the packages, and `cargo xtask size` prints the amount of
//! code.
#![allow(clippy::print_stdout, clippy::print_stderr)] // A task talks to the person at the terminal.

mod bench;
mod cargo;
mod demo;
mod language;
mod modules;
mod mutants;
mod packages;
mod runner;
mod size;
mod source;
mod test;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own tasks")]
struct Args {
    #[command(subcommand)]
    task: XtaskCommand,
}

#[derive(Subcommand)]
enum XtaskCommand {
    /// Run a controller and three agents on this machine, and show what they do.
    Demo(demo::DemoOptions),
    /// Run everything that CI runs: format, lints, dependency policy, all tests.
    Test(test::TestOptions),
    /// Run the benches that measure the figures of docs/performance.md.
    Bench(bench::BenchOptions),
    /// Check names, comments and pages against the language rule of docs/contributing.md.
    Language,
    /// Check the modules of each crate: they use each other only in the declared order, and form no cycle.
    Modules,
    /// Build the packages of controller, agent and command line as .deb and .rpm, into target/packages.
    Packages(packages::PackagesOptions),
    /// Check that a test catches each deliberate mistake in the code that makes decisions.
    Mutants(mutants::MutantsOptions),
    /// Print the numbers of lines and public items, and the longest functions, of each crate without its tests.
    Size(size::SizeOptions),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().task {
        XtaskCommand::Demo(options) => demo::run(&options),
        XtaskCommand::Test(options) => test::run(&options),
        XtaskCommand::Bench(options) => bench::run(&options),
        XtaskCommand::Language => language::run(&cargo::workspace_root()),
        XtaskCommand::Modules => modules::run(&cargo::workspace_root()),
        XtaskCommand::Packages(options) => packages::run(&options),
        XtaskCommand::Mutants(options) => mutants::run(&options),
        XtaskCommand::Size(options) => size::run(&options),
    }
}
