//! Installing, joining, and what goes on while machines and networks fail.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use stemma_tests::program::eventually_within;

use super::Fleet;
use super::machine::Machine;

/// How long anything may take on a busy machine: an agent that lost its controller asks with growing pauses.
const PATIENCE: Duration = Duration::from_mins(2);

/// How long the controller may stand still where that is tried, in seconds: longer than a busy machine keeps it from its turn.
const WATCHDOG_S: u32 = 10;

/// What the fleet is told.
const SITE: &str = include_str!("site.yaml");

/// Waits until a condition holds.
pub(crate) fn until(what: &str, condition: impl FnMut() -> Result<()>) -> Result<()> {
    eventually_within(PATIENCE, what, condition)
}

impl Fleet {
    /// The hosts.
    pub(crate) fn hosts(&self) -> [&Machine; 2] {
        [&self.deb, &self.rpm]
    }

    /// Runs the operator's command as root on the controller's machine, where no context is needed.
    pub(crate) fn stemma(&self, line: &str) -> Result<String> {
        self.controller.shell(&format!("stemma {line}"))
    }

    /// Puts the packages of a revision on a machine, and gives their directory there.
    pub(crate) fn bring(&self, machine: &Machine, revision: u32) -> Result<String> {
        let from =
            if revision == 1 { self.packages.clone() } else { self.packages.join(format!("revision-{revision}")) };
        let place = format!("/root/packages-{revision}");
        fs::create_dir_all(machine.path(&place))?;
        for entry in fs::read_dir(from)? {
            let path = entry?.path();
            if path.is_file() {
                fs::copy(&path, machine.path(&place).join(path.file_name().context("a name")?))?;
            }
        }
        Ok(place)
    }

    /// Gives a host a token, and runs on it what `stemma token create` prints.
    pub(crate) fn join(&self, host: &Machine) -> Result<String> {
        let told = self.stemma("token create --nodegroup prod/web >/root/token")?;
        let command = told.lines().last().context("a command")?.trim().replace("FILE", "/root/token");
        host.write("/root/token", &self.controller.read("/root/token")?)?;
        let at = "join https://controller.boot.test:9444 ";
        ensure!(command.starts_with("stemma-agent ") && command.contains(at), "{told}");
        host.shell(&command)
    }

    /// Applies the site with one of its releases.
    pub(crate) fn apply(&self, release: u32) -> Result<()> {
        self.controller
            .write("/root/site.yaml", &SITE.replace("release: boot@1", &format!("release: boot@{release}")))?;
        self.stemma("apply --yes -f /root/site.yaml")?;
        Ok(())
    }

    /// Waits until a host has done all that it was told.
    pub(crate) fn converged(&self, host: &Machine) -> Result<()> {
        until("the host has done what it was told", || {
            let node: Value = serde_json::from_str(&self.stemma(&format!("get node {} -o json", host.name))?)?;
            let log = || host.journal("stemma-agent").unwrap_or_default();
            ensure!(
                node["state"] == "converged" && node["connected"] == true,
                "{} is {}:\n{}",
                host.name,
                node["state"],
                log()
            );
            Ok(())
        })
    }

    /// Gives the cluster's label another value, and waits until hosts have it in their file.
    pub(crate) fn edit(&self, tier: &str, hosts: &[&Machine]) -> Result<()> {
        self.stemma(&format!("label cluster prod tier={tier} --yes"))?;
        for host in hosts {
            holds(host, "/etc/note", &format!("{} is {tier}\n", host.name))?;
        }
        Ok(())
    }
}

/// Waits until a file on a machine holds a text.
pub(crate) fn holds(machine: &Machine, path: &str, expected: &str) -> Result<()> {
    until(path, || {
        let text = machine.read(path)?;
        ensure!(
            text == expected,
            "{path} on {} is {text:?} and not {expected:?}:\n{}",
            machine.name,
            machine.journal("stemma-agent")?
        );
        Ok(())
    })
}

pub(crate) fn booted(fleet: &mut Fleet) -> Result<()> {
    for machine in [&mut fleet.controller, &mut fleet.deb, &mut fleet.rpm] {
        machine.boot()?;
    }
    Ok(())
}

/// Both forms of package, with the scripts of each.
pub(crate) fn installed(fleet: &mut Fleet) -> Result<()> {
    let (controller, deb, rpm) = (&fleet.controller, &fleet.deb, &fleet.rpm);
    let at = fleet.bring(controller, 1)?;
    let said = controller.shell(&format!("dpkg -i {at}/stemma_*.deb {at}/stemma-controller_*.deb"))?;
    ensure!(
        said.contains("made a fleet in /var/lib/stemma-controller, of which this machine is controller.boot.test"),
        "{said}"
    );
    for unit in ["stemma-controller.service", "stemma-controller-admin.socket", "stemma-controller-agents.socket"] {
        controller.unit_is(unit, "active")?;
        ensure!(controller.must(&["systemctl", "is-enabled", unit])?.trim() == "enabled", "{unit}");
    }
    fleet.stemma("get nodes")?;
    let open = controller.shell("ss -ltn")?;
    ensure!(open.contains(":9443") && open.contains(":9444"), "{open}");

    let at = fleet.bring(deb, 1)?;
    deb.shell(&format!("dpkg -i {at}/stemma-agent_*.deb"))?;
    let at = fleet.bring(rpm, 1)?;
    // Its database has no package of Debian; what it requires is read beside.
    rpm.shell(&format!("rpm -i --nodeps {at}/stemma-agent-*.rpm"))?;
    let required = rpm.shell(&format!("rpm -qpR {at}/stemma-agent-*.rpm"))?;
    for needed in ["systemd", "util-linux", "libc.so.6"] {
        ensure!(required.lines().any(|line| line.starts_with(needed)), "{needed}: {required}");
    }
    for host in fleet.hosts() {
        // It waits for `stemma-agent join`: that is no failure.
        host.unit_is("stemma-agent.service", "inactive")?;
        ensure!(host.must(&["systemctl", "is-enabled", "stemma-labels.service"])?.trim() == "enabled");
        ensure!(host.run(&["stemma-agent", "run"])?.status.code() == Some(1), "it has not joined");
        ensure!(host.path("/usr/share/man/man8/stemma-agent-join.8.gz").exists());
    }
    Ok(())
}

pub(crate) fn joined(fleet: &mut Fleet) -> Result<()> {
    fleet.apply(1)?;
    fleet.stemma("label cluster prod tier=silver --yes")?;
    for host in fleet.hosts() {
        let said = fleet.join(host)?;
        ensure!(said.contains("stemma-agent.service is enabled and runs"), "{said}");
        host.unit_is("stemma-agent.service", "active")?;
    }
    for host in fleet.hosts() {
        fleet.converged(host)?;
        holds(host, "/etc/note", &format!("{} is silver\n", host.name))?;
        holds(host, "/var/log/once", "ran\n")?;
        until("stemma-applied.target is reached", || host.unit_is("stemma-applied.target", "active"))?;
        let explained = host.shell(
            "journalctl --no-pager -x -u stemma-agent TASK=note + MESSAGE_ID=bfa67355d503462a9ec0028bd401af3a",
        )?;
        ensure!(explained.contains("All tasks of this host have ended well"), "{explained}");
        ensure!(host.failed_units()?.is_empty(), "{}", host.failed_units()?);
    }
    Ok(())
}

pub(crate) fn s61_local_user(fleet: &mut Fleet) -> Result<()> {
    let controller = &fleet.controller;
    let ask = "setpriv --reuid=nobody --regid=nogroup --clear-groups stemma --server unix:/var/lib/stemma-controller/admin.sock get nodes";
    ensure!(!controller.run(&["sh", "-c", ask])?.status.success(), "the directory is closed to them");
    // Also where somebody opened both: who it is decides.
    controller.shell("chmod 0711 /var/lib/stemma-controller && chmod 0666 /var/lib/stemma-controller/admin.sock")?;
    ensure!(!controller.run(&["sh", "-c", ask])?.status.success(), "they are not root");
    let metrics = fleet.stemma("get --raw /metrics")?;
    ensure!(metrics.contains(r#"stemma_rejected_total{reason="socket_not_root"} 1"#), "{metrics}");
    controller.shell("chmod 0700 /var/lib/stemma-controller && chmod 0600 /var/lib/stemma-controller/admin.sock")?;
    Ok(())
}

pub(crate) fn edited(fleet: &mut Fleet) -> Result<()> {
    fleet.edit("gold", &fleet.hosts())?;
    for host in fleet.hosts() {
        host.write("/etc/note", "by hand\n")?;
    }
    for host in fleet.hosts() {
        holds(host, "/etc/note", &format!("{} is gold\n", host.name))?;
    }
    Ok(())
}

pub(crate) fn rebooted(fleet: &mut Fleet) -> Result<()> {
    fleet.apply(2)?;
    for host in fleet.hosts() {
        holds(host, "/var/log/slow", "begun\n")?;
        host.write("/root/go", "")?;
    }
    // A shutdown waits for a command that runs as long as the unit says; here that is short.
    let drop_in = "/etc/systemd/system/stemma-agent.service.d/quick.conf";
    fleet.deb.write(drop_in, "[Service]\nTimeoutStopSec=2s\n")?;
    fleet.deb.must(&["systemctl", "daemon-reload"])?;
    fleet.deb.reboot()?;
    fleet.deb.shell("rm -r /etc/systemd/system/stemma-agent.service.d && systemctl daemon-reload")?;
    fleet.rpm.cut_power()?;
    fleet.rpm.boot()?;
    for host in fleet.hosts() {
        fleet.converged(host)?;
        holds(host, "/etc/after", "after\n")?;
        holds(host, "/var/log/slow", "begun\nbegun\n")?;
        holds(host, "/var/log/once", "ran\n")?;
        host.unit_is("stemma-labels.service", "active")?;
        ensure!(host.path("/run/stemma").exists() || host.shell("cat /run/stemma/labels.json")?.contains("gold"));
    }
    Ok(())
}

pub(crate) fn f14_partition(fleet: &mut Fleet) -> Result<()> {
    let deb = &fleet.deb;
    deb.connect(false)?;
    fleet.edit("bronze", &[&fleet.rpm])?;
    // It holds what it held, and mends it.
    deb.write("/etc/note", "by hand\n")?;
    holds(deb, "/etc/note", "deb-1 is gold\n")?;
    deb.unit_is("stemma-agent.service", "active")?;
    deb.connect(true)?;
    holds(deb, "/etc/note", "deb-1 is bronze\n")?;
    fleet.converged(deb)
}

pub(crate) fn stopped(fleet: &mut Fleet) -> Result<()> {
    let controller = &fleet.controller;
    controller.must(&["systemctl", "stop", "stemma-controller.service"])?;
    for host in fleet.hosts() {
        host.write("/etc/note", "by hand\n")?;
    }
    for host in fleet.hosts() {
        holds(host, "/etc/note", &format!("{} is bronze\n", host.name))?;
    }
    // Agents ask all the while: none has started it.
    controller.unit_is("stemma-controller.service", "inactive")?;
    controller.unit_is("stemma-controller-agents.socket", "inactive")?;
    controller.must(&["systemctl", "start", "stemma-controller.service"])?;
    controller.unit_is("stemma-controller-agents.socket", "active")?;
    fleet.edit("iron", &fleet.hosts())
}

pub(crate) fn watchdog(fleet: &mut Fleet) -> Result<()> {
    let controller = &fleet.controller;
    let drop_in = "/run/systemd/system/stemma-controller.service.d/quick.conf";
    controller.shell(&format!(
        "mkdir -p $(dirname {drop_in}) && printf '[Service]\\nWatchdogSec={WATCHDOG_S}s\\n' > {drop_in} && systemctl daemon-reload && systemctl restart stemma-controller"
    ))?;
    let id = controller.unit("stemma-controller.service", "MainPID")?;
    // It is fed four times in the time in which it would run out: by then it has been fed for longer than that.
    let mut fed = BTreeSet::new();
    until("it is fed", || {
        fed.insert(controller.unit("stemma-controller.service", "WatchdogTimestampMonotonic")?);
        ensure!(fed.len() > 6, "{fed:?}");
        Ok(())
    })?;
    ensure!(controller.unit("stemma-controller.service", "MainPID")? == id, "it is fed while it runs");
    controller.must(&["systemctl", "kill", "--signal=STOP", "--kill-who=main", "stemma-controller"])?;
    until("it is started again", || {
        ensure!(controller.unit("stemma-controller.service", "MainPID")? != id, "it stands still");
        controller.unit_is("stemma-controller.service", "active")
    })?;
    controller.shell(&format!("rm {drop_in} && systemctl daemon-reload && systemctl restart stemma-controller"))?;
    fleet.edit("tin", &fleet.hosts())
}

pub(crate) fn f13_torn_state(fleet: &mut Fleet) -> Result<()> {
    let rpm = &fleet.rpm;
    rpm.must(&["systemctl", "stop", "stemma-agent"])?;
    rpm.shell("truncate --size=20 /var/lib/stemma-agent/apply/told && : > /var/lib/stemma-agent/apply/reasons")?;
    rpm.must(&["systemctl", "start", "stemma-agent"])?;
    fleet.edit("zinc", &[rpm])?;
    fleet.converged(rpm)?;
    ensure!(rpm.unit("stemma-agent.service", "NRestarts")? == "0", "{}", rpm.journal("stemma-agent")?);
    let status = rpm.run(&["stemma-agent", "status"])?;
    let said = String::from_utf8_lossy(&status.stdout).into_owned();
    ensure!(said.contains("told.set-aside"), "{said}");
    rpm.shell("rm /var/lib/stemma-agent/apply/*.set-aside")?;
    Ok(())
}
