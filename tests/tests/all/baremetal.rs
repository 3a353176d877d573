//! Ironic's real clients against a real controller: the command `baremetal`, openstacksdk and curl, and recorded
//! requests to the real Ironic with its responses. Intended differences are listed with the reason, and exactly the
//! listed steps must fail.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Result, ensure};
use stemma_tests::plain_controller::PlainController;
use stemma_tests::python::{ForkServer, environment};
use stemma_tests::shared;

/// The requests whose response intentionally differs from Ironic's. Each line has the id of the request, a tab and the
/// reason. A line that begins with `#` is a comment.
const LISTED_FAILURES: &str = include_str!("../../data/ironic_listed.txt");
/// The packages to install, in the versions with which the scripts were validated.
const CLIENTS: [&str; 2] = ["python-ironicclient==6.3.0", "openstacksdk==4.22.0"];
/// Python modules that each call of the command `baremetal` needs. The fork server imports them once, before it forks.
const PRELOADED_MODULES: [&str; 2] = ["openstack", "ironicclient.osc.v1.baremetal_node"];

/// Runs a script against a new controller. `script` returns the command for the controller's admin address. Returns the
/// texts of the failed steps, or with `by_id` only the first word of each text.
fn failed_steps(script: impl FnOnce(&str) -> Command, by_id: bool) -> Result<BTreeSet<String>> {
    let controller = PlainController::start()?;
    let output = script(&controller.addresses.admin).output()?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    ensure!(stdout.contains(" passed, "), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    controller.stop()?;
    let failed = stdout.lines().filter_map(|line| line.strip_prefix("FAIL "));
    let step_name = |line: &str| if by_id { line.split(' ').next().unwrap_or_default().to_owned() } else { line.to_owned() };
    Ok(failed.map(step_name).collect())
}

#[test]
fn ironic_clients_pass_scripts_unchanged() -> Result<()> {
    let Some(script) = shared::path("clients/baremetal/run.sh") else { return Ok(()) };
    let venv = environment(env!("CARGO_TARGET_TMPDIR"), "ironic-client", &CLIENTS)?;
    // The test uses a fork server, because the script runs the command more than a hundred times.
    let client = ForkServer::start(&venv, "baremetal", "ironicclient.shell:main", &PRELOADED_MODULES)?;
    let run = |admin: &str| {
        let mut command = Command::new("bash");
        command.arg(&script).arg(admin).env("VENV", client.path()).env("FILTERS", "yes").env("PUTALL", "200");
        command
    };
    assert_eq!(failed_steps(run, false)?, BTreeSet::new());
    Ok(())
}

/// Replays requests about nodes, their traits and API versions, which were recorded with Ironic's responses. The ids of
/// the failed steps must be the listed ones.
#[test]
fn answers_match_ironic_except_listed() -> Result<()> {
    let (Some(script), Some(vectors)) =
        (shared::path("clients/baremetal/replay.py"), shared::path("vectors/traits/ironic_http.json"))
    else {
        return Ok(());
    };
    let replay = |admin: &str| {
        let mut command = Command::new("python3");
        command.arg(&script).arg(admin).arg("--vectors").arg(&vectors);
        command
    };
    let lines = LISTED_FAILURES.lines().filter(|line| !line.starts_with('#'));
    let listed: BTreeSet<String> = lines.filter_map(|line| line.split('\t').next()).map(str::to_owned).collect();
    assert_eq!(failed_steps(replay, true)?, listed);
    Ok(())
}
