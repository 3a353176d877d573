//! A node's end and its return, keys, upgrades, and what is left when packages go.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context, Result, ensure};

use super::Fleet;
use super::machine::Machine;
use super::steps::until;

/// What tasks wrote on each host.
const WRITTEN: [&str; 4] = ["/etc/note", "/etc/after", "/var/log/once", "/var/log/slow"];

pub(crate) fn s26_deleted_node(fleet: &mut Fleet) -> Result<()> {
    let rpm = &fleet.rpm;
    fleet.stemma("delete node rpm-1")?;
    until("the host says that nobody knows it", || {
        let status = rpm.run(&["stemma-agent", "status"])?;
        ensure!(status.status.code() == Some(1), "{}", String::from_utf8_lossy(&status.stdout));
        Ok(())
    })?;
    // A node of the same name is another one: what it joined with is dead.
    fleet.stemma("create node rpm-1 --nodegroup prod/web")?;
    rpm.must(&["systemctl", "restart", "stemma-agent"])?;
    until("the old certificate is refused", || {
        let log = rpm.shell(
            "journalctl --no-pager --lines 1 --output verbose -u stemma-agent MESSAGE='no controller serves this host'",
        )?;
        ensure!(log.contains("403"), "{log}");
        Ok(())
    })?;
    fleet.edit("lead", &[&fleet.deb])?;
    ensure!(rpm.read("/etc/note")? == "rpm-1 is zinc\n", "it keeps what it holds");
    fleet.stemma("delete node rpm-1")?;
    rpm.must(&["stemma-agent", "leave"])?;
    let said = fleet.join(rpm)?;
    ensure!(said.contains("stemma-agent.service is enabled and runs"), "{said}");
    fleet.edit("copper", &fleet.hosts())?;
    fleet.converged(rpm)
}

pub(crate) fn credential(fleet: &mut Fleet) -> Result<()> {
    let controller = &fleet.controller;
    controller
        .shell("mv /var/lib/stemma-controller/trust/agents.key /root/agents.key && chown root: /root/agents.key")?;
    let refused = controller.run(&["systemctl", "restart", "stemma-controller"])?;
    ensure!(!refused.status.success(), "a key is missing");
    let log = controller.journal("stemma-controller")?;
    ensure!(log.contains("trust/agents.key"), "{log}");
    controller.shell(
        "mkdir -p /etc/systemd/system/stemma-controller.service.d && printf '[Service]\\nLoadCredential=agents.key:/root/agents.key\\n' \
         > /etc/systemd/system/stemma-controller.service.d/keys.conf && systemctl daemon-reload && systemctl restart stemma-controller",
    )?;
    fleet.edit("brass", &fleet.hosts())?;
    controller.shell(
        "mv /root/agents.key /var/lib/stemma-controller/trust/ && chown stemma: /var/lib/stemma-controller/trust/agents.key && \
         rm -r /etc/systemd/system/stemma-controller.service.d && systemctl daemon-reload && systemctl restart stemma-controller",
    )?;
    fleet.edit("bell", &fleet.hosts())
}

/// What tells that a file was written: its number and when it was changed.
fn written(host: &Machine) -> Result<BTreeMap<&'static str, (u64, i64, i64)>> {
    let of = |path: &'static str| {
        let found = std::fs::metadata(host.path(path)).with_context(|| format!("{path} on {}", host.name))?;
        Ok((path, (found.ino(), found.ctime(), found.ctime_nsec())))
    };
    WRITTEN.into_iter().map(of).collect()
}

/// How many tasks have ended on a host, whatever came of them.
fn ended(host: &Machine) -> Result<usize> {
    Ok(host
        .shell("journalctl --sync && journalctl --no-pager -u stemma-agent | grep -c 'task ended' || true")?
        .trim()
        .parse()?)
}

pub(crate) fn upgraded(fleet: &mut Fleet) -> Result<()> {
    let (controller, deb, rpm) = (&fleet.controller, &fleet.deb, &fleet.rpm);
    // The step before ends with the file of one task: the others of that run are still to come.
    for host in fleet.hosts() {
        fleet.converged(host)?;
    }
    let before = [written(deb)?, written(rpm)?];
    let tasks = [ended(deb)?, ended(rpm)?];
    let ids = [deb, rpm].map(|host| host.unit("stemma-agent.service", "MainPID"));
    controller.shell("printf '\\n# by hand\\n' >> /etc/stemma/controller.toml")?;
    let at = fleet.bring(controller, 2)?;
    controller.shell(&format!("dpkg -i {at}/stemma_*.deb {at}/stemma-controller_*.deb"))?;
    ensure!(controller.read("/etc/stemma/controller.toml")?.contains("# by hand"));
    controller.unit_is("stemma-controller.service", "active")?;
    let at = fleet.bring(deb, 2)?;
    deb.shell(&format!("dpkg -i {at}/stemma-agent_*.deb"))?;
    let at = fleet.bring(rpm, 2)?;
    rpm.shell(&format!("rpm -U --nodeps {at}/stemma-agent-*.rpm"))?;
    ensure!(deb.shell("dpkg-query -W -f '${Version}' stemma-agent")?.ends_with("-2"));
    ensure!(rpm.shell("rpm -q stemma-agent")?.contains("-2."));
    for (host, id) in fleet.hosts().into_iter().zip(ids) {
        host.unit_is("stemma-agent.service", "active")?;
        ensure!(host.unit("stemma-agent.service", "MainPID")? != id?, "the new program runs on {}", host.name);
        fleet.converged(host)?;
    }
    let after = [written(deb)?, written(rpm)?];
    ensure!(before == after, "no file was written: {before:?} {after:?}");
    ensure!([ended(deb)?, ended(rpm)?] == tasks, "no task ran: {}", deb.journal("stemma-agent")?);
    fleet.edit("steel", &fleet.hosts())
}

#[allow(clippy::print_stdout, reason = "figures are what this step is for")]
pub(crate) fn measured(fleet: &mut Fleet) -> Result<()> {
    for (machine, unit) in
        [(&fleet.controller, "stemma-controller"), (&fleet.deb, "stemma-agent"), (&fleet.rpm, "stemma-agent")]
    {
        let id = machine.unit(&format!("{unit}.service"), "MainPID")?;
        let memory = machine.shell(&format!("grep -i ^Pss: /proc/{id}/smaps_rollup"))?;
        let exposure = machine.shell(&format!("systemd-analyze security {unit}.service | tail -1"))?;
        println!("{}: {} {}", machine.name, memory.split_whitespace().collect::<Vec<_>>().join(" "), exposure.trim());
    }
    Ok(())
}

pub(crate) fn removed(fleet: &mut Fleet) -> Result<()> {
    let (deb, rpm) = (&fleet.deb, &fleet.rpm);
    deb.shell("dpkg -r stemma-agent")?;
    rpm.shell("rpm -e stemma-agent")?;
    for host in fleet.hosts() {
        ensure!(!host.path("/usr/bin/stemma-agent").exists());
        let running = host.shell("grep -lx stemma-agent /proc/[0-9]*/comm 2>/dev/null || true")?;
        ensure!(running.is_empty(), "it runs on {}: {running}", host.name);
        ensure!(host.path("/var/lib/stemma-agent/identity.json").exists(), "{} still is who it was", host.name);
        host.must(&["test", "!", "-e", "/run/stemma/labels.json"])?;
        host.write("/etc/note", "by hand\n")?;
    }
    deb.shell("dpkg -i /root/packages-2/stemma-agent_*.deb")?;
    rpm.shell("rpm -i --nodeps /root/packages-2/stemma-agent-*.rpm")?;
    for host in fleet.hosts() {
        host.unit_is("stemma-agent.service", "active")?;
        fleet.converged(host)?;
    }
    fleet.edit("nickel", &fleet.hosts())
}

/// What is called after the program on a machine, but for what the test brought, what tasks wrote and what the package managers keep.
fn left(machine: &Machine) -> Result<String> {
    machine.shell("find / -xdev -name '*stemma*' -not -path '/proc/*' -not -path '/sys/*' -not -path '/root/*' -not -path '/var/log/journal/*'")
}

pub(crate) fn purged(fleet: &mut Fleet) -> Result<()> {
    let (controller, deb, rpm) = (&fleet.controller, &fleet.deb, &fleet.rpm);
    deb.write("/etc/stemma/labels.d/mine", "rack=7\n")?;
    let said = deb.shell("dpkg -P stemma-agent")?;
    ensure!(said.contains("what tasks wrote on this host is where it was"), "{said}");
    let said = rpm.shell("stemma-agent leave")?;
    ensure!(said.contains("this host has left its fleet"), "{said}");
    rpm.unit_is("stemma-agent.service", "inactive")?;
    ensure!(!rpm.path("/var/lib/stemma-agent").exists());
    rpm.shell("rpm -e stemma-agent && rm -r /etc/stemma")?;
    let said = controller.shell("dpkg -P stemma-controller stemma")?;
    ensure!(said.contains("Copies that were made of that directory are where they were put"), "{said}");
    for machine in [controller, deb, rpm] {
        let left = left(machine)?;
        ensure!(left.is_empty(), "{}: {left}", machine.name);
        ensure!(machine.failed_units()?.is_empty(), "{}", machine.failed_units()?);
    }
    for host in fleet.hosts() {
        written(host)?;
    }
    Ok(())
}
