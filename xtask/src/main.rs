//! The project's own tasks, in Rust so that a machine with cargo needs nothing else to run them.
//!
//! `cargo xtask test` is what CI runs, `cargo xtask demo` is what a newcomer runs, `cargo xtask bench` prints
//! the figures of `docs/performance.md`, `cargo xtask packages` makes what is installed, `cargo xtask size` says how much code there is.
#![allow(clippy::print_stdout, clippy::print_stderr)] // A task talks to the person at the terminal.

mod bench;
mod cargo;
mod demo;
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
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// A controller and three agents on this machine, and something to look at.
    Demo(demo::Options),
    /// Everything that CI runs: format, lints, dependency policy, all tests.
    Test(test::Options),
    /// The figures of docs/performance.md, each beside its baseline.
    Bench(bench::Options),
    /// Whether each crate's modules keep the order that its manifest declares, and none form a circle.
    Modules,
    /// The packages of controller, agent and command, as .deb and .rpm, into target/packages.
    Packages(packages::Options),
    /// Mistakes made on purpose in what decides, and whether a test notices each.
    Mutants(mutants::Options),
    /// Lines, public items and longest functions of each crate, tests left out.
    Size(size::Options),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().task {
        Task::Demo(options) => demo::run(&options),
        Task::Test(options) => test::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::Modules => modules::run(&cargo::root()),
        Task::Packages(options) => packages::run(&options),
        Task::Mutants(options) => mutants::run(&options),
        Task::Size(options) => size::run(&options),
    }
}
