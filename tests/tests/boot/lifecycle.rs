//! Steps about the deletion of a node and its next join, about keys and upgrades, and about the removal of packages.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context, Result, ensure};

use super::MachineFleet;
use super::machine::Machine;
use super::steps::wait_until;

/// The files that tasks wrote on each host.
const TASK_FILES: [&str; 4] = ["/etc/note", "/etc/after", "/var/log/once", "/var/log/slow"];

/// The host of a deleted node is refused, also if a new node has the same name, until the host joins again.
pub(crate) fn s26_delete_node(fleet: &mut MachineFleet) -> Result<()> {
    let rpm = &fleet.rpm_host;
    fleet.stemma("delete node rpm-1")?;
    wait_until("the agent reports that no controller serves the host", || {
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
    // `zinc` is the value of the label before the host was refused.
    ensure!(rpm.read("/etc/note")? == "rpm-1 is zinc\n", "the refused host changed its file");
    fleet.stemma("delete node rpm-1")?;
    rpm.run_ok(&["stemma-agent", "leave"])?;
    let output = fleet.join_host(rpm)?;
    ensure!(output.contains("stemma-agent.service is enabled and runs"), "{output}");
    fleet.edit_tier("copper", &fleet.hosts())?;
    fleet.wait_until_converged(rpm)
}

/// The controller does not start without its key `agents.key`, and reads that key from a systemd credential.
pub(crate) fn use_credential(fleet: &mut MachineFleet) -> Result<()> {
    let controller = &fleet.controller;
    controller.run_shell("mv /var/lib/stemma-controller/trust/agents.key /root/agents.key && chown root: /root/agents.key")?;
    let restart = controller.run(&["systemctl", "restart", "stemma-controller"])?;
    ensure!(!restart.status.success(), "the controller starts without a key");
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

/// Returns the inode and the change time of each of [`TASK_FILES`]. They differ if a task wrote the file again.
fn file_states(host: &Machine) -> Result<BTreeMap<&'static str, (u64, i64, i64)>> {
    let state_of = |path: &'static str| {
        let metadata = std::fs::metadata(host.outside_path(path)).with_context(|| format!("{path} on {}", host.name))?;
        Ok((path, (metadata.ino(), metadata.ctime(), metadata.ctime_nsec())))
    };
    TASK_FILES.into_iter().map(state_of).collect()
}

/// Returns how many times tasks have ended on a host, with any result, according to the agent's log.
fn ended_task_count(host: &Machine) -> Result<usize> {
    Ok(host
        .run_shell("journalctl --sync && journalctl --no-pager -u stemma-agent | grep -c 'task ended' || true")?
        .trim()
        .parse()?)
}

/// An upgrade of the packages starts the new programs, and keeps a config file that was edited by hand. The upgrade
/// runs no task and writes no file of a task.
pub(crate) fn upgrade_packages(fleet: &mut MachineFleet) -> Result<()> {
    let (controller, deb, rpm) = (&fleet.controller, &fleet.deb_host, &fleet.rpm_host);
    // The previous step ends when one task has written its file. Other tasks of that run may still follow.
    for host in fleet.hosts() {
        fleet.wait_until_converged(host)?;
    }
    let files_before = [file_states(deb)?, file_states(rpm)?];
    let task_counts = [ended_task_count(deb)?, ended_task_count(rpm)?];
    let old_pids = [deb, rpm].map(|host| host.unit_property("stemma-agent.service", "MainPID"));
    controller.run_shell("printf '\\n# by hand\\n' >> /etc/stemma/controller.toml")?;
    let package_dir = fleet.copy_packages(controller, 2)?;
    controller.run_shell(&format!("dpkg -i {package_dir}/stemma_*.deb {package_dir}/stemma-controller_*.deb"))?;
    ensure!(controller.read("/etc/stemma/controller.toml")?.contains("# by hand"));
    controller.check_unit_state("stemma-controller.service", "active")?;
    let package_dir = fleet.copy_packages(deb, 2)?;
    deb.run_shell(&format!("dpkg -i {package_dir}/stemma-agent_*.deb"))?;
    let package_dir = fleet.copy_packages(rpm, 2)?;
    rpm.run_shell(&format!("rpm -U --nodeps {package_dir}/stemma-agent-*.rpm"))?;
    ensure!(deb.run_shell("dpkg-query -W -f '${Version}' stemma-agent")?.ends_with("-2"));
    ensure!(rpm.run_shell("rpm -q stemma-agent")?.contains("-2."));
    for (host, old_pid) in fleet.hosts().into_iter().zip(old_pids) {
        host.check_unit_state("stemma-agent.service", "active")?;
        ensure!(host.unit_property("stemma-agent.service", "MainPID")? != old_pid?, "the old program runs on {}", host.name);
        fleet.wait_until_converged(host)?;
    }
    let files_after = [file_states(deb)?, file_states(rpm)?];
    ensure!(files_before == files_after, "a file was written: {files_before:?} {files_after:?}");
    ensure!([ended_task_count(deb)?, ended_task_count(rpm)?] == task_counts, "a task ran: {}", deb.journal("stemma-agent")?);
    fleet.edit_tier("steel", &fleet.hosts())
}

/// Prints the memory use and the systemd exposure of each daemon.
#[allow(clippy::print_stdout, reason = "this step prints figures")]
pub(crate) fn measure_memory(fleet: &mut MachineFleet) -> Result<()> {
    for (machine, unit) in
        [(&fleet.controller, "stemma-controller"), (&fleet.deb_host, "stemma-agent"), (&fleet.rpm_host, "stemma-agent")]
    {
        let pid = machine.unit_property(&format!("{unit}.service"), "MainPID")?;
        let memory = machine.run_shell(&format!("grep -i ^Pss: /proc/{pid}/smaps_rollup"))?;
        let exposure = machine.run_shell(&format!("systemd-analyze security {unit}.service | tail -1"))?;
        println!("{}: {} {}", machine.name, memory.split_whitespace().collect::<Vec<_>>().join(" "), exposure.trim());
    }
    Ok(())
}

/// The removal of the agent's package stops the agent. A reinstalled agent has its identity, and corrects drift.
pub(crate) fn reinstall_packages(fleet: &mut MachineFleet) -> Result<()> {
    let (deb, rpm) = (&fleet.deb_host, &fleet.rpm_host);
    deb.run_shell("dpkg -r stemma-agent")?;
    rpm.run_shell("rpm -e stemma-agent")?;
    for host in fleet.hosts() {
        ensure!(!host.outside_path("/usr/bin/stemma-agent").exists());
        let agent_processes = host.run_shell("grep -lx stemma-agent /proc/[0-9]*/comm 2>/dev/null || true")?;
        ensure!(agent_processes.is_empty(), "the agent runs on {}: {agent_processes}", host.name);
        ensure!(host.outside_path("/var/lib/stemma-agent/identity.json").exists(), "{} has lost its identity", host.name);
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

/// Returns the paths on a machine whose last part contains `stemma`. Excludes the journal and `/root`, into which the
/// test copied the packages. Also excludes other file systems than that of the root, such as `/run`.
fn leftover_paths(machine: &Machine) -> Result<String> {
    machine.run_shell("find / -xdev -name '*stemma*' -not -path '/proc/*' -not -path '/sys/*' -not -path '/root/*' -not -path '/var/log/journal/*'")
}

/// The purge of the packages removes every file of Stemma, and leaves the files of tasks. The .rpm has no purge: the
/// step runs `stemma-agent leave`, removes the package, and deletes `/etc/stemma`.
pub(crate) fn purge_packages(fleet: &mut MachineFleet) -> Result<()> {
    let (controller, deb, rpm) = (&fleet.controller, &fleet.deb_host, &fleet.rpm_host);
    deb.write("/etc/stemma/labels.d/mine", "rack=7\n")?;
    let output = deb.run_shell("dpkg -P stemma-agent")?;
    ensure!(output.contains("the files that tasks wrote on this host were not removed"), "{output}");
    let output = rpm.run_shell("stemma-agent leave")?;
    ensure!(output.contains("this host has left its fleet"), "{output}");
    rpm.check_unit_state("stemma-agent.service", "inactive")?;
    ensure!(!rpm.outside_path("/var/lib/stemma-agent").exists());
    rpm.run_shell("rpm -e stemma-agent && rm -r /etc/stemma")?;
    let output = controller.run_shell("dpkg -P stemma-controller stemma")?;
    ensure!(output.contains("Copies of that directory in other places were not removed"), "{output}");
    for machine in [controller, deb, rpm] {
        let leftovers = leftover_paths(machine)?;
        ensure!(leftovers.is_empty(), "{}: {leftovers}", machine.name);
        ensure!(machine.failed_units()?.is_empty(), "{}", machine.failed_units()?);
    }
    // This fails if a file of a task does not exist.
    for host in fleet.hosts() {
        file_states(host)?;
    }
    Ok(())
}
