//! A fleet of three machines that really boot: a controller, a host from the .deb and a host from the .rpm, from their installation to
//! their end. It needs root, mmdebstrap, systemd-nspawn, and both revisions of the packages; `cargo xtask test` sees to them.
//!
//! The steps follow each other on the same machines, so this program has no harness: it runs them in order and ends with the first that
//! fails. What it finds it looks for from outside: in files, units, journals and exit statuses.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it says what it does, as the harness of other tests would"
)]

mod life;
mod machine;
mod steps;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use machine::{Bridge, Machine};
use stemma_tests::{program, tool};

/// The machines of a run.
pub(crate) struct Fleet {
    pub(crate) controller: Machine,
    /// The host from the .deb.
    pub(crate) deb: Machine,
    /// The host from the .rpm.
    pub(crate) rpm: Machine,
    /// Where the packages are.
    packages: PathBuf,
    // Dropped last: the machines stand below it and on it.
    _bridge: Bridge,
    _directory: tempfile::TempDir,
}

/// Does one thing to the machines, and looks what came of it.
type Step = fn(&mut Fleet) -> Result<()>;

/// What happens, in order.
const STEPS: &[(&str, Step)] = &[
    ("three_machines_boot", steps::booted),
    ("what_is_installed_runs_or_waits_to_join", steps::installed),
    ("the_command_of_a_token_joins_a_host_and_starts_its_agent", steps::joined),
    ("s61_a_local_user_is_not_heard_on_roots_socket", steps::s61_local_user),
    ("an_edit_arrives_and_drift_is_mended", steps::edited),
    ("a_host_that_is_rebooted_or_cut_off_in_the_middle_of_an_apply_ends_it", steps::rebooted),
    ("f14_a_host_without_network_keeps_what_it_holds_and_catches_up", steps::f14_partition),
    ("a_controller_that_is_stopped_stays_so_and_its_hosts_go_on", steps::stopped),
    ("a_controller_that_stands_still_is_started_again", steps::watchdog),
    ("f13_a_torn_record_is_set_aside_and_no_crash_loop", steps::f13_torn_state),
    ("s26_the_certificate_of_a_deleted_node_is_dead_and_a_token_mends_it", life::s26_deleted_node),
    ("an_issuers_key_may_be_a_credential", life::credential),
    ("an_upgrade_runs_no_task_and_writes_no_file", life::upgraded),
    ("memory_and_exposure_are_said", life::measured),
    ("what_is_removed_stops_and_goes_on_when_it_is_back", life::removed),
    ("what_is_purged_leaves_what_tasks_wrote_and_nothing_else", life::purged),
];

/// The name under which runners list and ask for all steps.
const NAME: &str = "a_fleet_of_booted_machines";

fn main() -> ExitCode {
    match all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

fn all() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_set = |option: &str| arguments.iter().any(|word| word == option);
    // The answers that cargo-nextest asks of a program without a harness.
    if is_set("--list") {
        if !is_set("--ignored") {
            println!("{NAME}: test");
        }
        return Ok(());
    }
    let filters: Vec<&String> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    let names = || STEPS.iter().map(|(name, _)| *name).chain([NAME]);
    let is_asked = filters.is_empty() || names().any(|name| filters.iter().any(|part| name.contains(*part)));
    // Who asks for other tests by name does not wait for machines.
    if !is_asked {
        return Ok(());
    }
    let needed = [("mmdebstrap", "--version"), ("systemd-nspawn", "--version"), ("nsenter", "--version")];
    let packages = target().join("packages");
    // As root it does nothing; as anybody else it fails.
    let is_root = tool::is_there("chown", &["0", "/root"]);
    let are_packed = tool::is_there("test", &["-d", &packages.join("revision-2").to_string_lossy()]);
    if !is_root || !are_packed || !needed.iter().all(|(program, shows)| tool::is_there(program, &[shows])) {
        return Ok(());
    }
    let mut fleet = fleet(packages)?;
    for (name, step) in STEPS {
        let begun = Instant::now();
        if let Err(error) = step(&mut fleet) {
            println!("test {name} ... FAILED");
            let logs = target().join("boot/logs");
            for machine in [&fleet.controller, &fleet.deb, &fleet.rpm] {
                machine.keep_logs(&logs)?;
            }
            return Err(error.context(format!("{name}; the machines' logs are in {}", logs.display())));
        }
        println!("test {name} ... ok, {:.1} s", begun.elapsed().as_secs_f64());
    }
    Ok(())
}

/// The target directory.
fn target() -> PathBuf {
    let program = program::path("stemma");
    program.ancestors().nth(2).unwrap_or(Path::new(".")).to_owned()
}

/// Three machines that are off.
fn fleet(packages: PathBuf) -> Result<Fleet> {
    let begun = Instant::now();
    let tree = machine::tree(&target()).context("a tree of Debian")?;
    let directory = tempfile::tempdir_in(target().join("boot"))?;
    let bridge = Bridge::new()?;
    let all = [("controller", 1), ("deb-1", 2), ("rpm-1", 3)];
    let [controller, deb, rpm] = [all[0].0, all[1].0, all[2].0]
        .map(|name| Machine::new(&tree, directory.path(), &bridge, name, &all).expect("a machine's root"));
    println!("the tree is there after {:.1} s", begun.elapsed().as_secs_f64());
    Ok(Fleet { controller, deb, rpm, packages, _bridge: bridge, _directory: directory })
}
