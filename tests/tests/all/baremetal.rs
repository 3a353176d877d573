//! Ironic's real clients against a real controller: the command `baremetal`, openstacksdk and curl, and recorded
//! requests to the real Ironic with its responses. Intended differences are listed with the reason, and exactly the
//! listed steps must fail.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Result, ensure};
use stemma_tests::plain_controller::PlainController;
use stemma_tests::python::{ForkServer, environment};
use stemma_tests::shared;

/// Requests with another response than Ironic's: id, a tab, the reason.
const LISTED_FAILURES: &str = include_str!("../../data/ironic_listed.txt");
/// The packages to install, in the versions with which the scripts were validated.
const CLIENTS: [&str; 2] = ["python-ironicclient==6.3.0", "openstacksdk==4.22.0"];
/// Modules that each command of Ironic's client imports in addition to its shell.
const PRELOADED_MODULES: [&str; 2] = ["openstack", "ironicclient.osc.v1.baremetal_node"];

/// Returns the steps of a script that failed against a new controller. With `by_id`, returns only the first word of
/// each.
fn failures(script: impl FnOnce(&str) -> Command, by_id: bool) -> Result<BTreeSet<String>> {
    let controller = PlainController::start()?;
    let output = script(&controller.addresses.admin).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(text.contains(" passed, "), "{text}{}", String::from_utf8_lossy(&output.stderr));
    controller.stop()?;
    let failed = text.lines().filter_map(|line| line.strip_prefix("FAIL "));
    let name = |line: &str| if by_id { line.split(' ').next().unwrap_or_default().to_owned() } else { line.to_owned() };
    Ok(failed.map(name).collect())
}

#[test]
fn ironic_clients_pass_scripts_unchanged() -> Result<()> {
    let Some(script) = shared::path("clients/baremetal/run.sh") else { return Ok(()) };
    let venv = environment(env!("CARGO_TARGET_TMPDIR"), "ironic-client", &CLIENTS)?;
    // A fork server, because the script runs the command more than a hundred times.
    let client = ForkServer::start(&venv, "baremetal", "ironicclient.shell:main", &PRELOADED_MODULES)?;
    let run = |admin: &str| {
        let mut command = Command::new("bash");
        command.arg(&script).arg(admin).env("VENV", client.path()).env("FILTERS", "yes").env("PUTALL", "200");
        command
    };
    assert_eq!(failures(run, false)?, BTreeSet::new());
    Ok(())
}

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
    assert_eq!(failures(replay, true)?, listed);
    Ok(())
}
