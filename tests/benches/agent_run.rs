//! Measures what a run with nothing to do costs a host: 10 files with 10 guarded commands, and 100 files.
//!
//! It counts user and system time of the process and of all its children, as the kernel reports it, over many runs. Two
//! things are measured: `stemma-agent once` (a whole process, from reading its state to the last check), and one poll
//! of a running agent. A shell that runs the same guards and hashes the same files with SHA-256 alternates with `once`
//! as a baseline.
#![allow(clippy::print_stdout)] // A bench prints its figures.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program;

/// Number of runs of each program in a round.
const RUNS_PER_ROUND: u32 = 10;
/// Number of rounds. In each round the agent runs first, then the shell.
const ROUNDS: u32 = 6;
/// Duration of a tick of `/proc/*/stat`, in milliseconds.
const TICK_MS: f64 = 10.0;

/// Prints a table of CPU times per run: `stemma-agent once`, a poll of a running agent, and the shell script.
fn main() -> Result<()> {
    let fleet = TempFleet::start()?;
    // The columns: `stemma-agent once`, the poll of a running agent, and the shell script.
    println!("{:<38} {:>9} {:>9} {:>9}", "CPU of a run with nothing to do", "once", "poll", "sh");
    for (files, commands) in [(10, 10), (100, 0)] {
        let name = format!("f{files}");
        let agent = converged_agent(&fleet, &name, files, commands)?;
        let poll_time = poll_ms(&agent)?;
        let mut agent = agent;
        agent.kill()?;
        let (once_time, shell_time) = alternating_ms(&agent.path(""), files, commands)?;
        let label = format!("{files} files, {commands} guarded commands");
        println!("{label:<38} {once_time:>6.1} ms {poll_time:>6.1} ms {shell_time:>6.1} ms");
    }
    Ok(())
}

/// Joins an agent whose tasks are `files` files and `commands` guarded commands. Returns the agent after it has
/// converged. `name` is the name of its release, cluster and node.
fn converged_agent(fleet: &TempFleet, name: &str, files: u32, commands: u32) -> Result<TestAgent> {
    let mut text =
        format!("kind: Release\nname: {name}\nversion: '1'\nroles: {{all: {{tags: [x]}}}}\ntags: {{x: {{}}}}\ntasks:\n");
    for number in 0..files {
        let template = "# tier {{ labels.tier }}\\n".to_owned() + &"a line of a configuration file\\n".repeat(32);
        writeln!(
            text,
            "  - {{id: file-{number}, type: file, tags: [x], parameters: {{path: /etc/app/{number}.conf, template: \"{template}\"}}}}"
        )?;
    }
    for number in 0..commands {
        writeln!(
            text,
            "  - {{id: command-{number}, type: shell, tags: [x], parameters: {{command: [touch, /tmp/never], unless: [test, -e, /etc/passwd]}}}}"
        )?;
    }
    writeln!(text, "---\n{{kind: Cluster, name: {name}, release: {name}@1, labels: {{tier: gold}}}}")?;
    writeln!(text, "---\n{{kind: NodeGroup, cluster: {name}, name: all, roles: [all]}}")?;
    let file = fleet.dir().join(format!("{name}.yaml"));
    fs::write(&file, text)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let agent = fleet.join(name, &format!("{name}/all"))?;
    let root = agent.path("").to_string_lossy().into_owned();
    program::eventually("convergence", || {
        let status = program::succeed("stemma-agent", ["--root", &root, "status"])?;
        ensure!(status.contains("converged"), "{status}");
        Ok(())
    })?;
    std::thread::sleep(Duration::from_secs(1)); // The work that follows convergence is then over.
    Ok(agent)
}

/// Returns the mean CPU time of one poll (a check of all tasks) of a running agent, in milliseconds. If an agent runs,
/// `stemma-agent once` only requests a poll from that agent and waits for its end.
fn poll_ms(agent: &TestAgent) -> Result<f64> {
    let process_id = agent.id().context("the agent runs")?;
    let root = agent.path("").to_string_lossy().into_owned();
    let cpu_before_ms = cpu_ms(&format!("/proc/{process_id}/stat"), CpuScope::All)?;
    for _ in 0..RUNS_PER_ROUND * ROUNDS {
        program::succeed("stemma-agent", ["--root", &root, "once"])?;
        std::thread::sleep(Duration::from_millis(150));
    }
    Ok((cpu_ms(&format!("/proc/{process_id}/stat"), CpuScope::All)? - cpu_before_ms) / f64::from(RUNS_PER_ROUND * ROUNDS))
}

/// Returns the CPU time of `stemma-agent once` and of a shell script, in milliseconds per run. The script runs the same
/// guards and hashes the same files. The programs alternate, so that the noise of the machine affects both.
fn alternating_ms(root: &Path, files: u32, commands: u32) -> Result<(f64, f64)> {
    let agent = program::path("stemma-agent");
    // The script starts the program `test` as a process, as the agent does. The shell's own `test` starts none.
    let mut script = "test=/usr/bin/test\n".to_owned() + &"$test -e /etc/passwd\n".repeat(commands as usize);
    let file_arguments: String = (0..files).map(|number| format!(" {}/etc/app/{number}.conf", root.display())).collect();
    writeln!(script, "sha256sum{file_arguments}")?;
    let (mut once_total, mut shell_total) = (0.0, 0.0);
    for _ in 0..ROUNDS {
        once_total += round_ms(Command::new(&agent).arg("--root").arg(root).arg("once"))?;
        shell_total += round_ms(Command::new("/bin/sh").arg("-c").arg(&script))?;
    }
    Ok((once_total / f64::from(ROUNDS), shell_total / f64::from(ROUNDS)))
}

/// Returns the mean CPU time of a command over [`RUNS_PER_ROUND`] runs, in milliseconds.
fn round_ms(command: &mut Command) -> Result<f64> {
    let cpu_before_ms = cpu_ms("/proc/self/stat", CpuScope::Children)?;
    for _ in 0..RUNS_PER_ROUND {
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
        ensure!(status.success(), "{command:?}: {status}");
    }
    Ok((cpu_ms("/proc/self/stat", CpuScope::Children)? - cpu_before_ms) / f64::from(RUNS_PER_ROUND))
}

/// The processes whose CPU time is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CpuScope {
    /// The process, and the children that the process has waited for.
    All,
    /// Only the children that the process has waited for.
    Children,
}

/// Returns the user and system time from a file `/proc/ID/stat`, in milliseconds. The file contains clock ticks.
fn cpu_ms(stat: &str, scope: CpuScope) -> Result<f64> {
    let text = fs::read_to_string(stat)?;
    let (_, fields) = text.rsplit_once(')').context("stat names its program in brackets")?;
    // Fields 14 to 17 of proc_pid_stat(5). The first field after the bracket is field 3.
    let ticks: Vec<f64> = fields.split_whitespace().skip(11).take(4).map(str::parse).collect::<Result<_, _>>()?;
    let first_index = if scope == CpuScope::All { 0 } else { 2 };
    Ok(ticks[first_index..].iter().sum::<f64>() * TICK_MS)
}
