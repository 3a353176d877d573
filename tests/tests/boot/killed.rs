//! The test that kills a run of the fleet, and looks for what remains of it on this host.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use stemma_tests::program::eventually_within;

use super::isolation::{self, MAX_END_TIME};
use super::machine::BRIDGE;
use super::{FLEET_TEST, MACHINES, RUN_DIRECTORY_MESSAGE, STEPS};

/// Kills the test of the fleet when its machines have booted, and checks that the host has no process, mount or network
/// interface of it. The next run removes its directory and its cgroups. `parent` is the directory of all runs.
pub(crate) fn kill_fleet(parent: &Path) -> Result<()> {
    // If this test is killed, the other is killed too.
    let mut fleet = Command::new("setpriv");
    fleet.args(["--pdeathsig", "KILL"]).arg(std::env::current_exe()?).args(["--exact", FLEET_TEST]).stdin(Stdio::null());
    let mut fleet = fleet.stdout(Stdio::piped()).spawn()?;
    let result = watch_kill(&mut fleet, parent);
    // The process has ended, unless the test failed.
    let _ = fleet.kill();
    fleet.wait()?;
    result
}

/// Waits for the boot of the machines, kills the process `fleet`, and checks what remains.
fn watch_kill(fleet: &mut Child, parent: &Path) -> Result<()> {
    let (boot_step, _) = STEPS[0];
    let mut lines = BufReader::new(fleet.stdout.take().context("its output is a pipe")?).lines();
    let mut run: Option<PathBuf> = None;
    // The pipe stays open after this loop, so that the fleet can print further lines.
    for line in lines.by_ref() {
        let line = line?;
        println!("{FLEET_TEST}: {line}");
        run = line.strip_prefix(RUN_DIRECTORY_MESSAGE).map(PathBuf::from).or(run);
        if line.starts_with(&format!("test {boot_step} ... ok")) {
            break;
        }
    }
    let run = run.context("the fleet printed the path of no directory")?;
    let name = isolation::run_name(&run)?;

    // The search finds all machines of the live run. So an empty result after the kill is meaningful.
    let processes = find_processes(name)?;
    for (machine, _) in MACHINES {
        let cgroup = format!("/stemma-boot-{name}/{machine}/payload/");
        ensure!(processes.iter().any(|process| process.contains(&cgroup)), "{machine} does not run: {processes:#?}");
    }
    check_host(name)?;
    isolation::remove_ended_runs(parent)?;
    ensure!(run.exists(), "the directory of a live run was removed");

    fleet.kill()?;
    fleet.wait()?;
    eventually_within(MAX_END_TIME, "the end of all processes of the killed fleet", || {
        let processes = find_processes(name)?;
        ensure!(processes.is_empty(), "{processes:#?}");
        Ok(())
    })?;
    check_host(name)?;
    isolation::remove_ended_runs(parent)?;
    let remains: Vec<PathBuf> = isolation::cgroups(name).into_iter().chain([run.clone()]).filter(|path| path.exists()).collect();
    ensure!(remains.is_empty(), "{remains:?}");
    Ok(())
}

/// Returns a description of each process of a run: its id, command line and cgroups. A process is of the run if its
/// command line, its mounts or its cgroups contain the run's name.
fn find_processes(name: &str) -> Result<Vec<String>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let directory = entry?.path();
        // The files of a process that has just ended cannot be read.
        let read = |file: &str| String::from_utf8_lossy(&fs::read(directory.join(file)).unwrap_or_default()).replace('\0', " ");
        let is_process = directory.file_name().is_some_and(|id| id.to_string_lossy().parse::<u32>().is_ok());
        if is_process && ["cmdline", "mountinfo", "cgroup"].into_iter().any(|file| read(file).contains(name)) {
            processes.push(format!("{} {}\n{}", directory.display(), read("cmdline"), read("cgroup")));
        }
    }
    Ok(processes)
}

/// Checks that this host has no mount of a run, and no network interface of any run.
fn check_host(name: &str) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    ensure!(!mounts.contains(name), "the host has a mount of the run:\n{mounts}");
    for interface in MACHINES.map(|(machine, _)| format!("vb-{machine}")).into_iter().chain([BRIDGE.to_owned()]) {
        ensure!(!Path::new("/sys/class/net").join(&interface).exists(), "the host has the network interface {interface}");
    }
    Ok(())
}
