//! Ironic's real clients against a real controller: the command `baremetal`, openstacksdk and curl, and the requests that the real Ironic was
//! sent with what it answered. What the controller decides otherwise is listed with the reason, and the failures must be exactly those.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Result, ensure};
use stemma_tests::plain::Plain;
use stemma_tests::python::{Forked, environment};
use stemma_tests::shared;

/// Requests that are answered otherwise: id, a tab, the reason.
const LISTED: &str = include_str!("../../data/ironic_listed.txt");
/// What is installed: the versions that the scripts were validated with.
const CLIENTS: [&str; 2] = ["python-ironicclient==6.3.0", "openstacksdk==4.22.0"];
/// What each command of Ironic's client imports beside its shell.
const IMPORTED_LATER: [&str; 2] = ["openstack", "ironicclient.osc.v1.baremetal_node"];

/// The steps of a script that failed against a fresh controller, by the first of their words where `by_id`.
fn failures(script: impl FnOnce(&str) -> Command, by_id: bool) -> Result<BTreeSet<String>> {
    let controller = Plain::start()?;
    let output = script(&controller.bound.admin).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(text.contains(" passed, "), "{text}{}", String::from_utf8_lossy(&output.stderr));
    controller.stop()?;
    let failed = text.lines().filter_map(|line| line.strip_prefix("FAIL "));
    let name = |line: &str| if by_id { line.split(' ').next().unwrap_or_default().to_owned() } else { line.to_owned() };
    Ok(failed.map(name).collect())
}

#[test]
fn the_real_clients_work_unchanged() -> Result<()> {
    let Some(script) = shared::path("clients/baremetal/run.sh") else { return Ok(()) };
    let venv = environment(env!("CARGO_TARGET_TMPDIR"), "ironic-client", &CLIENTS)?;
    // The script runs the command more than a hundred times.
    let client = Forked::start(&venv, "baremetal", "ironicclient.shell:main", &IMPORTED_LATER)?;
    let run = |admin: &str| {
        let mut command = Command::new("bash");
        command.arg(&script).arg(admin).env("VENV", client.path()).env("FILTERS", "yes").env("PUTALL", "200");
        command
    };
    assert_eq!(failures(run, false)?, BTreeSet::new());
    Ok(())
}

#[test]
fn requests_are_answered_as_by_ironic_but_where_it_is_listed() -> Result<()> {
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
    let lines = LISTED.lines().filter(|line| !line.starts_with('#'));
    let listed: BTreeSet<String> = lines.filter_map(|line| line.split('\t').next()).map(str::to_owned).collect();
    assert_eq!(failures(replay, true)?, listed);
    Ok(())
}
