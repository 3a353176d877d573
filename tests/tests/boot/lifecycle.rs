//! Deleted and returning nodes, keys, upgrades, and what remains when packages are removed.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context, Result, ensure};

use super::MachineFleet;
use super::machine::Machine;
use super::steps::wait_until;

/// The files that tasks wrote on each host.
const TASK_FILES: [&str; 4] = ["/etc/note", "/etc/after", "/var/log/once", "/var/log/slow"];

pub(crate) fn s26_delete_node(fleet: &mut MachineFleet) -> Result<()> {
    let rpm = &fleet.rpm_host;
    fleet.stemma("delete node rpm-1")?;
    wait_until("the host says that nobody knows it", || {
        let status = rpm.run(&["stemma-agent", "status"])?;
        ensure!(status.status.code() == Some(1), "{}", String::from_utf8_lossy(&status.stdout));
        Ok(())
    })?;
    // A new node of the same name is another node. The certificate of the deleted node must stay invalid.
    fleet.stemma("create node rpm-1 --nodegroup prod/web")?;
    rpm.run_ok(&["systemctl", "restart", "stemma-agent"])?;
    wait_until("the old certificate is refused", || {
        let log = rpm.run_shell(
            "journalctl --no-pager --lines 1 --output verbose -u stemma-agent MESSAGE='no controller serves this host'",
        )?;
        ensure!(log.contains("403"), "{log}");
        Ok(())
    })?;
    fleet.edit_tier("lead", &[&fleet.deb_host])?;
    ensure!(rpm.read("/etc/note")? == "rpm-1 is zinc\n", "it keeps what it holds");
    fleet.stemma("delete node rpm-1")?;
    rpm.run_ok(&["stemma-agent", "leave"])?;
    let said = fleet.join_host(rpm)?;
    ensure!(said.contains("stemma-agent.service is enabled and runs"), "{said}");
    fleet.edit_tier("copper", &fleet.hosts())?;
    fleet.wait_until_converged(rpm)
}

pub(crate) fn use_credential(fleet: &mut MachineFleet) -> Result<()> {
    let controller = &fleet.controller;
    controller.run_shell("mv /var/lib/stemma-controller/trust/agents.key /root/agents.key && chown root: /root/agents.key")?;
    let refused = controller.run(&["systemctl", "restart", "stemma-controller"])?;
    ensure!(!refused.status.success(), "a key is missing");
    let log = controller.journal("stemma-controller")?;
    ensure!(log.contains("trust/agents.key"), "{log}");
    controller.run_shell(
        "mkdir -p /etc/systemd/system/stemma-controller.service.d && printf '[Service]\\nLoadCredential=agents.key:/root/agents.key\\n' \
         > /etc/systemd/system/stemma-controller.service.d/keys.conf && systemctl daemon-reload && systemctl restart stemma-controller",
    )?;
    fleet.edit_tier("brass", &fleet.hosts())?;
    controller.run_shell(
        "mv /root/agents.key /var/lib/stemma-controller/trust/ && chown stemma: /var/lib/stemma-controller/trust/agents.key && \
         rm -r /etc/systemd/system/stemma-controller.service.d && systemctl daemon-reload && systemctl restart stemma-controller",
    )?;
    fleet.edit_tier("bell", &fleet.hosts())
}

/// Returns the inode and the change time of each file, which show whether a file was written.
fn file_states(host: &Machine) -> Result<BTreeMap<&'static str, (u64, i64, i64)>> {
    let state_of = |path: &'static str| {
        let metadata = std::fs::metadata(host.outside_path(path)).with_context(|| format!("{path} on {}", host.name))?;
        Ok((path, (metadata.ino(), metadata.ctime(), metadata.ctime_nsec())))
    };
    TASK_FILES.into_iter().map(state_of).collect()
}

/// Returns how many tasks have ended on a host, with any result.
fn ended_task_count(host: &Machine) -> Result<usize> {
    Ok(host
        .run_shell("journalctl --sync && journalctl --no-pager -u stemma-agent | grep -c 'task ended' || true")?
        .trim()
        .parse()?)
}

pub(crate) fn upgrade_packages(fleet: &mut MachineFleet) -> Result<()> {
    let (controller, deb, rpm) = (&fleet.controller, &fleet.deb_host, &fleet.rpm_host);
    // The previous step ends when one task has written its file. Other tasks of that run may still follow.
    for host in fleet.hosts() {
        fleet.wait_until_converged(host)?;
    }
    let before = [file_states(deb)?, file_states(rpm)?];
    let tasks = [ended_task_count(deb)?, ended_task_count(rpm)?];
    let ids = [deb, rpm].map(|host| host.unit_property("stemma-agent.service", "MainPID"));
    controller.run_shell("printf '\\n# by hand\\n' >> /etc/stemma/controller.toml")?;
    let at = fleet.copy_packages(controller, 2)?;
    controller.run_shell(&format!("dpkg -i {at}/stemma_*.deb {at}/stemma-controller_*.deb"))?;
    ensure!(controller.read("/etc/stemma/controller.toml")?.contains("# by hand"));
    controller.check_unit_state("stemma-controller.service", "active")?;
    let at = fleet.copy_packages(deb, 2)?;
    deb.run_shell(&format!("dpkg -i {at}/stemma-agent_*.deb"))?;
    let at = fleet.copy_packages(rpm, 2)?;
    rpm.run_shell(&format!("rpm -U --nodeps {at}/stemma-agent-*.rpm"))?;
    ensure!(deb.run_shell("dpkg-query -W -f '${Version}' stemma-agent")?.ends_with("-2"));
    ensure!(rpm.run_shell("rpm -q stemma-agent")?.contains("-2."));
    for (host, id) in fleet.hosts().into_iter().zip(ids) {
        host.check_unit_state("stemma-agent.service", "active")?;
        ensure!(host.unit_property("stemma-agent.service", "MainPID")? != id?, "the new program runs on {}", host.name);
        fleet.wait_until_converged(host)?;
    }
    let after = [file_states(deb)?, file_states(rpm)?];
    ensure!(before == after, "no file was written: {before:?} {after:?}");
    ensure!([ended_task_count(deb)?, ended_task_count(rpm)?] == tasks, "no task ran: {}", deb.journal("stemma-agent")?);
    fleet.edit_tier("steel", &fleet.hosts())
}

#[allow(clippy::print_stdout, reason = "figures are what this step is for")]
pub(crate) fn measure_memory(fleet: &mut MachineFleet) -> Result<()> {
    for (machine, unit) in
        [(&fleet.controller, "stemma-controller"), (&fleet.deb_host, "stemma-agent"), (&fleet.rpm_host, "stemma-agent")]
    {
        let id = machine.unit_property(&format!("{unit}.service"), "MainPID")?;
        let memory = machine.run_shell(&format!("grep -i ^Pss: /proc/{id}/smaps_rollup"))?;
        let exposure = machine.run_shell(&format!("systemd-analyze security {unit}.service | tail -1"))?;
        println!("{}: {} {}", machine.name, memory.split_whitespace().collect::<Vec<_>>().join(" "), exposure.trim());
    }
    Ok(())
}

pub(crate) fn remove_packages(fleet: &mut MachineFleet) -> Result<()> {
    let (deb, rpm) = (&fleet.deb_host, &fleet.rpm_host);
    deb.run_shell("dpkg -r stemma-agent")?;
    rpm.run_shell("rpm -e stemma-agent")?;
    for host in fleet.hosts() {
        ensure!(!host.outside_path("/usr/bin/stemma-agent").exists());
        let running = host.run_shell("grep -lx stemma-agent /proc/[0-9]*/comm 2>/dev/null || true")?;
        ensure!(running.is_empty(), "it runs on {}: {running}", host.name);
        ensure!(host.outside_path("/var/lib/stemma-agent/identity.json").exists(), "{} still is who it was", host.name);
        host.run_ok(&["test", "!", "-e", "/run/stemma/labels.json"])?;
        host.write("/etc/note", "by hand\n")?;
    }
    deb.run_shell("dpkg -i /root/packages-2/stemma-agent_*.deb")?;
    rpm.run_shell("rpm -i --nodeps /root/packages-2/stemma-agent-*.rpm")?;
    for host in fleet.hosts() {
        host.check_unit_state("stemma-agent.service", "active")?;
        fleet.wait_until_converged(host)?;
    }
    fleet.edit_tier("nickel", &fleet.hosts())
}

/// Finds files on a machine with the program's name. Excludes the packages that the test copied and the journal.
fn leftover_paths(machine: &Machine) -> Result<String> {
    machine.run_shell("find / -xdev -name '*stemma*' -not -path '/proc/*' -not -path '/sys/*' -not -path '/root/*' -not -path '/var/log/journal/*'")
}

pub(crate) fn purge_packages(fleet: &mut MachineFleet) -> Result<()> {
    let (controller, deb, rpm) = (&fleet.controller, &fleet.deb_host, &fleet.rpm_host);
    deb.write("/etc/stemma/labels.d/mine", "rack=7\n")?;
    let said = deb.run_shell("dpkg -P stemma-agent")?;
    ensure!(said.contains("the files that tasks wrote on this host were not removed"), "{said}");
    let said = rpm.run_shell("stemma-agent leave")?;
    ensure!(said.contains("this host has left its fleet"), "{said}");
    rpm.check_unit_state("stemma-agent.service", "inactive")?;
    ensure!(!rpm.outside_path("/var/lib/stemma-agent").exists());
    rpm.run_shell("rpm -e stemma-agent && rm -r /etc/stemma")?;
    let said = controller.run_shell("dpkg -P stemma-controller stemma")?;
    ensure!(said.contains("Copies of that directory in other places were not removed"), "{said}");
    for machine in [controller, deb, rpm] {
        let left = leftover_paths(machine)?;
        ensure!(left.is_empty(), "{}: {left}", machine.name);
        ensure!(machine.failed_units()?.is_empty(), "{}", machine.failed_units()?);
    }
    for host in fleet.hosts() {
        file_states(host)?;
    }
    Ok(())
}
