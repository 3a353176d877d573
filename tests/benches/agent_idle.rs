//! Measures an idle agent: proportional memory, CPU per minute, and the size of its program.
//!
//! The agent has joined, has converged and has nothing to do. It waits in a check-in that the controller holds open. A
//! `sleep` process is measured in the same minute as a baseline, to show the noise of the machine.
#![allow(clippy::print_stdout)] // A bench prints its figures.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use stemma_tests::fleet::TempFleet;
use stemma_tests::program;

const MINUTE: Duration = Duration::from_mins(1);

/// Joins an agent to the demo fleet and waits until it is idle. Prints its memory, its CPU time per minute and the size
/// of its program. For comparison, prints memory and CPU time of `sleep`.
fn main() -> Result<()> {
    let fleet = TempFleet::start()?;
    fleet.stemma(&["apply", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/site")])?;
    let agent = fleet.join("web-1", "prod/frontends")?;
    program::eventually("the file of the last task", || {
        program::check_file_contains(&agent.path("etc/nginx/conf.d/site.conf"), "tier gold")
    })?;
    let id = agent.id().context("the agent runs")?;
    let mut baseline = Command::new("sleep").arg("120").stdout(Stdio::null()).spawn()?;
    std::thread::sleep(Duration::from_secs(5)); // The last report and the first drift check are then over.
    let (agent_ms_before, baseline_ms_before) = (cpu_ms(id)?, cpu_ms(baseline.id())?);
    std::thread::sleep(MINUTE);
    let (agent_ms, baseline_ms) = (cpu_ms(id)? - agent_ms_before, cpu_ms(baseline.id())? - baseline_ms_before);
    let size = fs::metadata(program::path("stemma-agent"))?.len();
    println!("agent idle: {:.2} MiB PSS, {agent_ms:.1} ms CPU a minute, binary {:.2} MB", pss_mib(id)?, mb(size));
    println!("baseline (sleep): {:.2} MiB PSS, {baseline_ms:.1} ms CPU a minute", pss_mib(baseline.id())?);
    baseline.kill()?;
    baseline.wait()?;
    Ok(())
}

/// Returns the CPU time of all current threads of a process so far, in milliseconds. Threads that have ended do not
/// count. The scheduler counts the time in nanoseconds.
fn cpu_ms(id: u32) -> Result<f64> {
    let mut nanoseconds = 0;
    for thread in fs::read_dir(format!("/proc/{id}/task"))? {
        let text = fs::read_to_string(thread?.path().join("schedstat"))?;
        nanoseconds += text.split(' ').next().context("schedstat begins with a number")?.parse::<u64>()?;
    }
    #[allow(clippy::cast_precision_loss)] // Milliseconds of a minute.
    Ok(nanoseconds as f64 / 1e6)
}

/// Returns the memory of a process, in MiB. PSS divides each shared page among the processes that share it.
fn pss_mib(id: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{id}/smaps_rollup"))?;
    let line = text.lines().find(|line| line.starts_with("Pss:")).context("smaps_rollup has a line Pss")?;
    let kib: f64 = line.split_whitespace().nth(1).context("Pss has a number")?.parse()?;
    Ok(kib / 1024.0)
}

#[allow(clippy::cast_precision_loss)] // Megabytes of a program.
fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
