//! A fleet of three machines that boot: a controller, a host with the .deb and a host with the .rpm, from installation
//! to removal. The program needs root, mmdebstrap, systemd-nspawn, and both revisions of the packages, which `cargo
//! xtask test` provides.
//!
//! The steps run one after another on the same machines, so this program has no test harness. It runs the steps in
//! order and ends at the first failure. It checks the results from outside: files, units, journals and exit statuses.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the program prints its steps, as a test harness does")]

mod lifecycle;
mod machine;
mod steps;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use machine::{Bridge, Machine};
use stemma_tests::{program, tool};

/// The machines of a run.
pub(crate) struct MachineFleet {
    pub(crate) controller: Machine,
    /// The host with the .deb.
    pub(crate) deb_host: Machine,
    /// The host with the .rpm.
    pub(crate) rpm_host: Machine,
    /// The directory of the packages.
    packages: PathBuf,
    // Dropped last, because the machines use the bridge and the directory.
    _bridge: Bridge,
    _directory: tempfile::TempDir,
}

/// A step: an action on the machines, with checks of its result.
type Step = fn(&mut MachineFleet) -> Result<()>;

/// The names of the steps and their functions, in the order in which they run.
const STEPS: &[(&str, Step)] = &[
    ("three_machines_boot", steps::boot_machines),
    ("installed_units_run_or_wait_for_join", steps::install_packages),
    ("token_command_joins_host_and_starts_agent", steps::join_hosts),
    ("s61_admin_socket_refuses_local_user", steps::s61_refuse_local_user),
    ("hosts_apply_edit_and_correct_drift", steps::edit_label),
    ("host_completes_apply_after_reboot_or_power_cut", steps::reboot_host),
    ("f14_host_retains_state_without_network_and_catches_up", steps::f14_partition_network),
    ("stopped_controller_stays_stopped_and_hosts_continue", steps::stop_controller),
    ("watchdog_restarts_stalled_controller", steps::trigger_watchdog),
    ("f13_agent_sets_torn_record_aside", steps::f13_tear_state),
    ("s26_deleted_node_is_refused_until_it_joins_again", lifecycle::s26_delete_node),
    ("controller_reads_issuer_key_from_credential", lifecycle::use_credential),
    ("upgrade_runs_no_task_and_writes_no_file", lifecycle::upgrade_packages),
    ("memory_and_exposure_are_printed", lifecycle::measure_memory),
    ("removed_agent_stops_and_continues_when_reinstalled", lifecycle::reinstall_packages),
    ("purge_leaves_only_files_of_tasks", lifecycle::purge_packages),
];

/// The test name under which runners list and select all steps.
const TEST_NAME: &str = "booted_fleet";

fn main() -> ExitCode {
    match run_steps() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the steps in order, until a step fails, and then saves the logs of the machines. Succeeds without a step if the
/// arguments select other tests, or if root rights, a needed program or the packages are missing.
fn run_steps() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_set = |option: &str| arguments.iter().any(|word| word == option);
    // cargo-nextest lists the tests of each program, also of one without a harness.
    if is_set("--list") {
        // No test is ignored, so the list of ignored tests is empty.
        if !is_set("--ignored") {
            println!("{TEST_NAME}: test");
        }
        return Ok(());
    }
    let filters: Vec<&String> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    let names = || STEPS.iter().map(|(name, _)| *name).chain([TEST_NAME]);
    let is_selected = filters.is_empty() || names().any(|name| filters.iter().any(|part| name.contains(*part)));
    // If other tests were selected by name, the machines are not started.
    if !is_selected {
        return Ok(());
    }
    let needed_programs = [("mmdebstrap", "--version"), ("systemd-nspawn", "--version"), ("nsenter", "--version")];
    let packages = target_dir().join("packages");
    // This command changes nothing for root, and fails for any other user.
    let is_root = tool::is_available("chown", &["0", "/root"]);
    let has_packages = tool::is_available("test", &["-d", &packages.join("revision-2").to_string_lossy()]);
    if !is_root || !has_packages || !needed_programs.iter().all(|(program, option)| tool::is_available(program, &[option])) {
        return Ok(());
    }
    let mut fleet = create_fleet(packages)?;
    for (name, step) in STEPS {
        let start = Instant::now();
        if let Err(error) = step(&mut fleet) {
            println!("test {name} ... FAILED");
            let logs = target_dir().join("boot/logs");
            for machine in [&fleet.controller, &fleet.deb_host, &fleet.rpm_host] {
                machine.save_logs(&logs)?;
            }
            return Err(error.context(format!("{name}; the machines' logs are in {}", logs.display())));
        }
        println!("test {name} ... ok, {:.1} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Returns cargo's target directory, two levels above the program `stemma`.
fn target_dir() -> PathBuf {
    let program = program::path("stemma");
    program.ancestors().nth(2).unwrap_or(Path::new(".")).to_owned()
}

/// Creates three machines that are off.
fn create_fleet(packages: PathBuf) -> Result<MachineFleet> {
    let start = Instant::now();
    let tree = machine::prepare_tree(&target_dir()).context("a tree of Debian")?;
    let directory = tempfile::tempdir_in(target_dir().join("boot"))?;
    let bridge = Bridge::new()?;
    let machines = [("controller", 1), ("deb-1", 2), ("rpm-1", 3)];
    let [controller, deb, rpm] = [machines[0].0, machines[1].0, machines[2].0]
        .map(|name| Machine::new(&tree, directory.path(), &bridge, name, &machines).expect("a machine's root"));
    println!("the tree is ready after {:.1} s", start.elapsed().as_secs_f64());
    Ok(MachineFleet { controller, deb_host: deb, rpm_host: rpm, packages, _bridge: bridge, _directory: directory })
}
