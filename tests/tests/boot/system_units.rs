//! Steps about tasks of type `service`: units of the system that a task manages.

use anyhow::{Result, ensure};

use super::MachineFleet;
use super::steps::{wait_for_file, wait_until};
use super::units::apply_tasks;

/// A template of units, its configuration, and an instance that is restarted when one of them changes. Each start of the unit
/// writes a line. `TIER` is the configuration, and `STATE` the parameters of the unit.
const TASKS: &str = r#"  - {id: unit-file, type: file, tags: [web], parameters: {path: "/etc/systemd/system/app@.service", content: "[Service]\nExecStart=/bin/sh -c 'echo %i $$(cat /etc/app.conf) >> /var/log/app; exec sleep infinity'\n[Install]\nWantedBy=multi-user.target\n"}}
  - {id: conf, type: file, tags: [web], parameters: {path: /etc/app.conf, content: "TIER\n"}}
  - {id: app, type: service, tags: [web], requires: [unit-file, conf], subscribes: [unit-file, conf], parameters: {unit: "app@blue", STATE}}"#;

/// A unit is enabled and started once, restarted once when its configuration changes, and later masked.
pub(crate) fn manage_unit(fleet: &mut MachineFleet) -> Result<()> {
    let apply =
        |version: u32, tier: &str, state: &str| apply_tasks(fleet, version, &TASKS.replace("TIER", tier).replace("STATE", state));
    apply(10, "one", "state: running, enabled: true")?;
    for host in fleet.hosts() {
        fleet.wait_until_converged(host)?;
        wait_for_file(host, "/var/log/app", "blue one\n")?;
        host.check_unit_state("app@blue.service", "active")?;
        host.run_ok(&["systemctl", "is-enabled", "app@blue.service"])?;
    }
    apply(11, "two", "state: running, enabled: true")?;
    for host in fleet.hosts() {
        wait_for_file(host, "/var/log/app", "blue one\nblue two\n")?;
        fleet.wait_until_converged(host)?;
        host.check_unit_state("app@blue.service", "active")?;
    }
    // A unit that is stopped by hand is drift.
    for host in fleet.hosts() {
        host.run_ok(&["systemctl", "stop", "app@blue.service"])?;
        host.write("/etc/app.conf", "by hand\n")?;
    }
    for host in fleet.hosts() {
        wait_until("the unit runs again", || host.check_unit_state("app@blue.service", "active"))?;
        wait_for_file(host, "/var/log/app", "blue one\nblue two\nblue two\n")?;
    }
    apply(12, "two", "state: stopped, enabled: false, masked: true")?;
    for host in fleet.hosts() {
        wait_until("the unit is masked", || {
            let state = host.unit_property("app@blue.service", "LoadState")?;
            ensure!(state.trim() == "masked", "{state}");
            Ok(())
        })?;
        fleet.wait_until_converged(host)?;
        host.check_unit_state("app@blue.service", "inactive")?;
    }
    Ok(())
}
