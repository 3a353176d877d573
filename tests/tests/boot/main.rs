//! A fleet of three machines that boot: a controller, a host with the .deb and a host with the .rpm, from installation
//! to removal. The program needs root, mmdebstrap, systemd-nspawn, and both revisions of the packages, which `cargo
//! xtask test` provides.
//!
//! The steps run one after another on the same machines, so this program has no test harness. It runs the steps in
//! order and ends at the first failure. It checks the results from outside: files, units, journals and exit statuses.
//! The steps run in a second process of this program, which is isolated from this host ([`isolation`]). A second test
//! kills the first one.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the program prints its steps, as a test harness does")]

mod commands;
mod isolation;
mod killed;
mod lifecycle;
mod machine;
mod steps;
mod system_tasks;
mod system_units;
mod tutorial;
mod units;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use isolation::RunDirectory;
use machine::Machine;
use stemma_tests::program;

/// The machines of a run.
pub(crate) struct MachineFleet {
    pub(crate) controller: Machine,
    /// The host with the .deb.
    pub(crate) deb_host: Machine,
    /// The host with the .rpm.
    pub(crate) rpm_host: Machine,
    /// The directory of the packages.
    packages: PathBuf,
}

/// The names of the machines, as in `docs/install.md`, and the last byte of the address of each.
const MACHINES: [(&str, u8); 3] = [("stemma", 1), ("web-1", 2), ("web-2", 3)];

/// A step: an action on the machines, with checks of its result.
type Step = fn(&mut MachineFleet) -> Result<()>;

/// The names of the steps and their functions, in the order in which they run.
const STEPS: &[(&str, Step)] = &[
    ("three_machines_boot", steps::boot_machines),
    ("install_page_leads_to_converged_hosts", commands::follow_install_page),
    ("tutorial_page_leads_to_site_that_moves", tutorial::follow_tutorial_page),
    ("moved_hosts_apply_tasks_of_new_group", steps::move_hosts),
    ("commands_end_with_documented_exit_status", steps::check_exit_statuses),
    ("s61_admin_socket_refuses_local_user", steps::s61_refuse_local_user),
    ("hosts_apply_edit_and_correct_drift", steps::edit_label),
    ("host_completes_apply_after_reboot_or_power_cut", steps::reboot_host),
    ("f14_host_retains_state_without_network_and_catches_up", steps::f14_partition_network),
    ("stopped_controller_stays_stopped_and_hosts_continue", steps::stop_controller),
    ("restarted_controller_refuses_no_connection_under_load", steps::restart_under_load),
    ("watchdog_restarts_stalled_controller", steps::trigger_watchdog),
    ("watchdog_restarts_stalled_agent", steps::trigger_agent_watchdog),
    ("f13_agent_sets_torn_record_aside", steps::f13_tear_state),
    ("s26_deleted_node_is_refused_until_it_joins_again", lifecycle::s26_delete_node),
    ("controller_reads_issuer_key_from_credential", lifecycle::use_credential),
    ("agent_writes_label_map_next_to_other_writer", lifecycle::configure_label_map),
    ("upgrade_runs_no_task_and_writes_no_file", lifecycle::upgrade_packages),
    ("downgraded_controller_refuses_newer_store", lifecycle::downgrade_packages),
    ("upgraded_agent_continues_running_apply", lifecycle::upgrade_during_apply),
    ("stop_of_agent_waits_for_hook", units::stop_agent_during_hook),
    ("commands_run_outside_of_limits_of_agent", units::run_outside_of_agent_limits),
    ("next_agent_waits_for_commands_of_killed_agent", units::find_commands_of_killed_agent),
    ("command_ends_while_agent_is_stopped", units::end_command_without_agent),
    ("package_is_not_removed_while_once_runs", units::refuse_removal_during_once),
    ("service_task_restarts_unit_once_when_file_changes", system_units::manage_unit),
    ("tasks_of_each_type_survive_killed_agents", system_tasks::kill_agent_at_each_change),
    ("puppet_task_runs_puppet_of_debian", system_tasks::run_puppet),
    ("package_task_runs_dnf_without_dpkg", system_tasks::manage_rpm_package),
    ("agent_restarts_once_by_subscribed_command", units::restart_agent_by_subscriber),
    ("shutdown_waits_for_command", units::shut_down_during_command),
    ("command_ends_before_next_try_without_bus", units::lose_bus_at_time_limit),
    ("hosts_reboot_by_verb_and_continue_task_set", units::reboot_by_verb),
    ("f35_agent_survives_upgrade_by_own_task", units::f35_upgrade_agent_by_task),
    ("memory_and_exposure_are_printed", lifecycle::measure_memory),
    ("removed_agent_stops_and_continues_when_reinstalled", lifecycle::reinstall_packages),
    ("purge_leaves_only_files_of_tasks", lifecycle::purge_packages),
    ("controller_rpm_keeps_fleet_in_upgrade_and_removal", lifecycle::install_controller_rpm),
    ("image_with_controller_creates_fleet_at_first_boot", lifecycle::boot_image_with_controller),
];

/// A test, with the name under which runners list and select it.
type Test = (&'static str, fn() -> Result<()>);

/// The name of the test that runs all steps.
const FLEET_TEST: &str = "booted_fleet";

/// The tests, in the order in which they run.
const TESTS: [Test; 2] = [(FLEET_TEST, run_fleet), ("killed_fleet_leaves_nothing", || killed::kill_fleet(&boot_dir()))];

/// The first argument of the isolated process that runs the steps. The other arguments are the path of the Debian tree
/// and that of the run's directory.
const STEPS_ARGUMENT: &str = "--isolated-steps";

/// The output line with the path of the run's directory begins with this text.
const RUN_DIRECTORY_MESSAGE: &str = "the directory of this run is ";

/// The options of test harnesses that have a value as a separate argument.
const OPTIONS_WITH_VALUE: [&str; 6] = ["--color", "--format", "--logfile", "--shuffle-seed", "--test-threads", "-Z"];

/// The tests that the arguments select, as a test harness understands them.
#[derive(Default)]
struct Selection {
    /// Tests with one of these texts in their name are selected, or all tests if there is none.
    filters: Vec<String>,
    /// Tests with one of these texts in their name are not selected.
    skipped: Vec<String>,
    /// Whether the texts are whole names.
    is_exact: bool,
    /// Whether only ignored tests are selected. No test is ignored.
    is_ignored_only: bool,
    /// Whether the tests are only listed.
    is_list: bool,
}

impl Selection {
    /// Reads the arguments of this program.
    fn parse(arguments: &[String]) -> Self {
        let mut selection = Self::default();
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--list" => selection.is_list = true,
                "--ignored" => selection.is_ignored_only = true,
                "--exact" => selection.is_exact = true,
                "--skip" => selection.skipped.extend(words.next().cloned()),
                option if OPTIONS_WITH_VALUE.contains(&option) => {
                    words.next();
                }
                option if option.starts_with('-') => {}
                _ => selection.filters.push(word.clone()),
            }
        }
        selection
    }

    /// Returns whether a test is selected. The names of the steps select the test that runs them.
    fn contains(&self, test: &str) -> bool {
        let matches = |name: &str, text: &String| if self.is_exact { name == text } else { name.contains(text.as_str()) };
        let is_named = |name: &str| self.filters.iter().any(|text| matches(name, text));
        let has_named_step = || test == FLEET_TEST && STEPS.iter().any(|(name, _)| is_named(name));
        let is_skipped = self.skipped.iter().any(|text| matches(test, text));
        !self.is_ignored_only && !is_skipped && (self.filters.is_empty() || is_named(test) || has_named_step())
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let results = match arguments.as_slice() {
        [first, tree, run] if first == STEPS_ARGUMENT => vec![run_steps(Path::new(tree), Path::new(run))],
        _ => run_tests(&Selection::parse(&arguments)),
    };
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        eprintln!("{error:?}");
    }
    if results.iter().all(Result::is_ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs or lists the selected tests. Returns the result of each.
fn run_tests(selection: &Selection) -> Vec<Result<()>> {
    let tests = TESTS.into_iter().filter(|(name, _)| selection.contains(name));
    if selection.is_list {
        tests.for_each(|(name, _)| println!("{name}: test"));
        return Vec::new();
    }
    tests.map(|test| run_test(test).context(test.0)).collect()
}

/// Runs a test, if the fleet can boot on this host. Otherwise prints why the test is skipped. In CI
/// (`STEMMA_REQUIRE_SHARED`) the test then fails.
fn run_test((name, test): Test) -> Result<()> {
    let Err(reason) = check_host() else {
        return test();
    };
    ensure!(std::env::var_os("STEMMA_REQUIRE_SHARED").is_none(), "machines cannot boot here: {reason:#}");
    eprintln!("skipped: {name}: machines cannot boot here: {reason:#}");
    Ok(())
}

/// Checks that this host has what the fleet needs. The error is the reason why the fleet cannot boot.
fn check_host() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "this is not root");
    machine::find_debian()?;
    for [program, option] in
        [["mmdebstrap", "--version"], ["systemd-nspawn", "--version"], ["nsenter", "--version"], ["ip", "-V"]]
    {
        let mut command = Command::new(program);
        command.arg(option);
        machine::run_command(command)?;
    }
    machine::run_command(fleet_command("true"))?;
    let packages = packages_dir().join("revision-2");
    ensure!(
        packages.is_dir(),
        "{} does not exist; build the packages with `cargo xtask packages --dev` and `cargo xtask packages --dev --revision 2`",
        packages.display()
    );
    Ok(())
}

/// Returns the command that runs a program isolated from this host, also with a network of its own.
fn fleet_command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = isolation::isolated_command("unshare");
    command.args(["--net", "--"]).arg(program);
    command
}

/// Returns cargo's target directory, two levels above the program `stemma`.
fn target_dir() -> PathBuf {
    let program = program::path("stemma");
    program.ancestors().nth(2).unwrap_or(Path::new(".")).to_owned()
}

/// Returns the directory of the packages.
fn packages_dir() -> PathBuf {
    target_dir().join("packages")
}

/// Returns the directory of the Debian tree, of the runs and of their logs.
fn boot_dir() -> PathBuf {
    target_dir().join("boot")
}

/// Runs all steps in a run of their own, and removes what is left of the run.
fn run_fleet() -> Result<()> {
    std::fs::create_dir_all(boot_dir())?;
    let run = RunDirectory::create(&boot_dir())?;
    println!("{RUN_DIRECTORY_MESSAGE}{}", run.path().display());
    let result = run_isolated_steps(run.path());
    result.and(run.remove())
}

/// Prepares the tree of Debian, and runs all steps in an isolated process of this program.
fn run_isolated_steps(run: &Path) -> Result<()> {
    let start = Instant::now();
    let tree = machine::prepare_tree(&boot_dir(), run).context("a tree of Debian")?;
    println!("the tree is ready after {:.1} s", start.elapsed().as_secs_f64());
    let mut steps = fleet_command(std::env::current_exe()?);
    let status = steps.arg(STEPS_ARGUMENT).arg(tree).arg(run).stdin(Stdio::null()).status()?;
    ensure!(status.success(), "the process that runs the steps: {status}");
    Ok(())
}

/// Creates the machines and runs the steps in order, until a step fails, and then saves the logs of the machines. The
/// end of this process removes the machines, with their mounts and their network.
fn run_steps(tree: &Path, run: &Path) -> Result<()> {
    isolation::check_is_isolated(run)?;
    machine::mount_empty_run()?;
    machine::create_bridge()?;
    let create = |index: usize| Machine::new(tree, run, MACHINES[index].0, &MACHINES);
    let mut fleet = MachineFleet { controller: create(0)?, deb_host: create(1)?, rpm_host: create(2)?, packages: packages_dir() };
    for (name, step) in STEPS {
        let start = Instant::now();
        if let Err(error) = step(&mut fleet) {
            println!("test {name} ... FAILED");
            let logs = boot_dir().join("logs");
            for machine in [&fleet.controller, &fleet.deb_host, &fleet.rpm_host] {
                machine.save_logs(&logs)?;
            }
            return Err(error.context(format!("{name}; the machines' logs are in {}", logs.display())));
        }
        println!("test {name} ... ok, {:.1} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}
