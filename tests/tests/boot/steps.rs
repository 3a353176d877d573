//! The behaviour of the fleet while machines, services and networks fail.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use stemma_tests::program::eventually_within;

use super::MachineFleet;
use super::machine::Machine;

/// Maximum wait on a busy machine. An agent that lost its controller retries with growing pauses.
const MAX_WAIT: Duration = Duration::from_mins(2);

/// The watchdog timeout in the test of a stalled controller, in seconds. It is longer than a busy machine may delay the
/// process.
const WATCHDOG_STALL_S: u32 = 10;

/// The name of the controller's machine in the network, as in `docs/install.md`.
pub(crate) const CONTROLLER_NAME: &str = "stemma.example.net";

/// The manifests of the steps after the installation.
const SITE_MANIFEST: &str = include_str!("site.yaml");

/// Waits until `condition` succeeds, at most for [`MAX_WAIT`]. `description` names the condition in the error.
pub(crate) fn wait_until(description: &str, condition: impl FnMut() -> Result<()>) -> Result<()> {
    eventually_within(MAX_WAIT, description, condition)
}

impl MachineFleet {
    /// Returns the two hosts.
    pub(crate) fn hosts(&self) -> [&Machine; 2] {
        [&self.deb_host, &self.rpm_host]
    }

    /// Runs the operator's command as root on the controller's machine, where it needs no context.
    pub(crate) fn stemma(&self, line: &str) -> Result<String> {
        self.controller.run_shell(&format!("stemma {line}"))
    }

    /// Copies the packages of a revision to a machine. Returns their directory on it. The packages of revision 1 are in
    /// the packages' directory itself, and those of revision 2 in a directory below it.
    pub(crate) fn copy_packages(&self, machine: &Machine, revision: u32) -> Result<String> {
        let source = if revision == 1 { self.packages.clone() } else { self.packages.join(format!("revision-{revision}")) };
        let target = format!("/root/packages-{revision}");
        fs::create_dir_all(machine.outside_path(&target))?;
        for entry in fs::read_dir(source)? {
            let path = entry?.path();
            if path.is_file() {
                fs::copy(&path, machine.outside_path(&target).join(path.file_name().context("a name")?))?;
            }
        }
        Ok(target)
    }

    /// Creates a token, copies it to a host, and runs there the command that `stemma token create` printed. Returns the
    /// output of the command.
    pub(crate) fn join_host(&self, host: &Machine) -> Result<String> {
        let output = self.stemma("token create --nodegroup lab/web >/root/token")?;
        let command = output.lines().last().context("a command")?.trim().replace("FILE", "/root/token");
        host.write("/root/token", &self.controller.read("/root/token")?)?;
        let expected = format!("stemma-agent join https://{CONTROLLER_NAME}:9444 ");
        ensure!(command.starts_with(&expected), "{output}");
        host.run_shell(&command)
    }

    /// Applies the manifests with this version of the release.
    pub(crate) fn apply_release(&self, release: u32) -> Result<()> {
        self.controller
            .write("/root/site.yaml", &SITE_MANIFEST.replace("release: boot@1", &format!("release: boot@{release}")))?;
        self.stemma("apply --yes -f /root/site.yaml")?;
        Ok(())
    }

    /// Waits until the node of a host has converged, and its agent is connected.
    pub(crate) fn wait_until_converged(&self, host: &Machine) -> Result<()> {
        wait_until("the node has converged", || {
            let node: Value = serde_json::from_str(&self.stemma(&format!("get node {} -o json", host.name))?)?;
            let log = || host.journal("stemma-agent").unwrap_or_default();
            ensure!(node["state"] == "converged" && node["connected"] == true, "{} is {}:\n{}", host.name, node["state"], log());
            Ok(())
        })
    }

    /// Sets the label `tier` of the cluster, and waits until a task has written the value to `/etc/note` on these
    /// hosts.
    pub(crate) fn edit_tier(&self, tier: &str, hosts: &[&Machine]) -> Result<()> {
        self.stemma(&format!("label cluster lab tier={tier} --yes"))?;
        for host in hosts {
            wait_for_file(host, "/etc/note", &format!("{} is {tier}\n", host.name))?;
        }
        Ok(())
    }
}

/// Waits until a file on a machine has exactly this text.
pub(crate) fn wait_for_file(machine: &Machine, path: &str, expected: &str) -> Result<()> {
    wait_until(path, || {
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

pub(crate) fn boot_machines(fleet: &mut MachineFleet) -> Result<()> {
    for machine in [&mut fleet.controller, &mut fleet.deb_host, &mut fleet.rpm_host] {
        machine.boot()?;
    }
    Ok(())
}

/// The hosts move from the group of the install page into a group with tasks that the next steps interrupt.
pub(crate) fn move_hosts(fleet: &mut MachineFleet) -> Result<()> {
    fleet.apply_release(1)?;
    fleet.stemma("label cluster lab tier=silver --yes")?;
    fleet.stemma(&format!("node move {} {} lab/web", fleet.deb_host.name, fleet.rpm_host.name))?;
    for host in fleet.hosts() {
        wait_for_file(host, "/etc/note", &format!("{} is silver\n", host.name))?;
        wait_for_file(host, "/var/log/once", "ran\n")?;
        fleet.wait_until_converged(host)?;
        wait_until("stemma-applied.target is reached", || host.check_unit_state("stemma-applied.target", "active"))?;
        let explanation =
            // `-x` adds the explanation of each message. The id is that of the message that all tasks have been
            // applied.
            host.run_shell("journalctl --no-pager -x -u stemma-agent TASK=note + MESSAGE_ID=bfa67355d503462a9ec0028bd401af3a")?;
        ensure!(explanation.contains("All tasks of this host have succeeded"), "{explanation}");
        ensure!(host.failed_units()?.is_empty(), "{}", host.failed_units()?);
    }
    Ok(())
}

/// Checks the exit status of a command on a machine.
fn check_exit_status(machine: &Machine, line: &str, expected: i32) -> Result<()> {
    let output = machine.run(&["sh", "-c", line])?;
    ensure!(output.status.code() == Some(expected), "{line} on {}: {output:?}", machine.name);
    Ok(())
}

/// The commands on the controller and on a host end with the exit statuses of their manual pages.
pub(crate) fn check_exit_statuses(fleet: &mut MachineFleet) -> Result<()> {
    let (controller, deb) = (&fleet.controller, &fleet.deb_host);
    for (line, expected) in [
        ("stemma get nodes", 0),
        ("stemma --server https://127.0.0.1:1 get nodes", 1),
        ("stemma get nothing", 2),
        ("stemma get node absent", 3),
    ] {
        check_exit_status(controller, line, expected)?;
    }
    for (line, expected) in [
        ("stemma-agent status", 0),
        ("stemma-agent check", 0),
        ("stemma-agent explain label tier", 0),
        ("stemma-agent nothing", 2),
        ("stemma-agent explain label absent", 3),
    ] {
        check_exit_status(deb, line, expected)?;
    }
    // While the host is paused, the agent does not correct the file.
    deb.run_ok(&["stemma-agent", "pause"])?;
    deb.write("/etc/note", "by hand\n")?;
    check_exit_status(deb, "stemma-agent check", 6)?;
    deb.run_ok(&["stemma-agent", "resume"])?;
    wait_for_file(deb, "/etc/note", &format!("{} is silver\n", deb.name))?;
    fleet.wait_until_converged(deb)
}

/// The admin socket refuses a local user other than root.
pub(crate) fn s61_refuse_local_user(fleet: &mut MachineFleet) -> Result<()> {
    let controller = &fleet.controller;
    let command = "setpriv --reuid=nobody --regid=nogroup --clear-groups stemma --server unix:/var/lib/stemma-controller/admin.sock get nodes";
    ensure!(!controller.run(&["sh", "-c", command])?.status.success(), "the directory is open to the user");
    // The access is refused also if the permissions are open, because the controller checks the user.
    controller.run_shell("chmod 0711 /var/lib/stemma-controller && chmod 0666 /var/lib/stemma-controller/admin.sock")?;
    ensure!(!controller.run(&["sh", "-c", command])?.status.success(), "the socket accepts a user other than root");
    let metrics = fleet.stemma("get --raw /metrics")?;
    ensure!(metrics.contains(r#"stemma_rejected_total{reason="socket_not_root"} 1"#), "{metrics}");
    controller.run_shell("chmod 0700 /var/lib/stemma-controller && chmod 0600 /var/lib/stemma-controller/admin.sock")?;
    Ok(())
}

/// The hosts apply an edit of a label, and correct a file that was changed by hand.
pub(crate) fn edit_label(fleet: &mut MachineFleet) -> Result<()> {
    fleet.edit_tier("gold", &fleet.hosts())?;
    for host in fleet.hosts() {
        host.write("/etc/note", "by hand\n")?;
    }
    for host in fleet.hosts() {
        wait_for_file(host, "/etc/note", &format!("{} is gold\n", host.name))?;
    }
    Ok(())
}

/// A host that reboots or loses power while a task runs completes the task set after the boot.
pub(crate) fn reboot_host(fleet: &mut MachineFleet) -> Result<()> {
    fleet.apply_release(2)?;
    // The task `slow` runs for long, unless the file `go` exists when it begins. So it ends soon after the boot.
    for host in fleet.hosts() {
        wait_for_file(host, "/var/log/slow", "begun\n")?;
        host.write("/root/go", "")?;
    }
    // A shutdown waits for a running command up to the unit's stop timeout, which is short here.
    let drop_in = "/etc/systemd/system/stemma-agent.service.d/quick.conf";
    fleet.deb_host.write(drop_in, "[Service]\nTimeoutStopSec=2s\n")?;
    fleet.deb_host.run_ok(&["systemctl", "daemon-reload"])?;
    fleet.deb_host.reboot()?;
    fleet.deb_host.run_shell("rm -r /etc/systemd/system/stemma-agent.service.d && systemctl daemon-reload")?;
    fleet.rpm_host.cut_power()?;
    fleet.rpm_host.boot()?;
    for host in fleet.hosts() {
        fleet.wait_until_converged(host)?;
        wait_for_file(host, "/etc/after", "after\n")?;
        wait_for_file(host, "/var/log/slow", "begun\nbegun\n")?;
        wait_for_file(host, "/var/log/once", "ran\n")?;
        host.check_unit_state("stemma-labels.service", "active")?;
        // If `/run` is in the memory of the machine, only a command on the machine can read it.
        ensure!(host.outside_path("/run/stemma").exists() || host.run_shell("cat /run/stemma/labels.json")?.contains("gold"));
    }
    Ok(())
}

/// A host without network corrects drift to its last desired state, and gets the edits when it is connected again.
pub(crate) fn f14_partition_network(fleet: &mut MachineFleet) -> Result<()> {
    let deb = &fleet.deb_host;
    deb.set_connected(false)?;
    fleet.edit_tier("bronze", &[&fleet.rpm_host])?;
    // The host retains its state and still corrects drift.
    deb.write("/etc/note", "by hand\n")?;
    wait_for_file(deb, "/etc/note", &format!("{} is gold\n", deb.name))?;
    deb.check_unit_state("stemma-agent.service", "active")?;
    deb.set_connected(true)?;
    wait_for_file(deb, "/etc/note", &format!("{} is bronze\n", deb.name))?;
    fleet.wait_until_converged(deb)
}

/// While the controller is stopped, the hosts correct drift, and no connection of an agent starts the controller.
pub(crate) fn stop_controller(fleet: &mut MachineFleet) -> Result<()> {
    let controller = &fleet.controller;
    controller.run_ok(&["systemctl", "stop", "stemma-controller.service"])?;
    for host in fleet.hosts() {
        host.write("/etc/note", "by hand\n")?;
    }
    for host in fleet.hosts() {
        // `bronze` is the value of the label from an earlier step.
        wait_for_file(host, "/etc/note", &format!("{} is bronze\n", host.name))?;
    }
    // Agents poll all the time. Their connections must not have started the controller.
    controller.check_unit_state("stemma-controller.service", "inactive")?;
    controller.check_unit_state("stemma-controller-agents.socket", "inactive")?;
    controller.run_ok(&["systemctl", "start", "stemma-controller.service"])?;
    controller.check_unit_state("stemma-controller-agents.socket", "active")?;
    fleet.edit_tier("iron", &fleet.hosts())
}

/// The controller restarts three times, while a client of each listener connects in a loop. No connection is refused,
/// because systemd keeps the sockets open.
pub(crate) fn restart_under_load(fleet: &mut MachineFleet) -> Result<()> {
    let (controller, deb) = (&fleet.controller, &fleet.deb_host);
    // Each loop ends when the file `stop` exists, and then writes its numbers of successes and failures.
    let start_loop = |machine: &Machine, command: &str| {
        let script = format!(
            "good=0 bad=0\nuntil test -e /root/stop; do\n  if {command} 2>>/root/load-errors; then good=$((good + 1)); else bad=$((bad + 1)); fi\n\
             done\necho $good $bad >/root/load\n"
        );
        machine.write("/root/load.sh", &script)?;
        machine.run_ok(&["systemd-run", "--quiet", "--unit=load", "--property=Nice=10", "bash", "/root/load.sh"])
    };
    start_loop(deb, &format!("(exec 3<>/dev/tcp/{CONTROLLER_NAME}/9444)"))?;
    fleet.stemma(&format!("principal create reader --role viewer --to /root/reader --url https://{CONTROLLER_NAME}:9443"))?;
    start_loop(controller, "stemma --context /root/reader/context.toml get nodes >/dev/null")?;
    for tier in ["cobalt", "chrome", "copper"] {
        let pid = controller.unit_property("stemma-controller.service", "MainPID")?;
        controller.run_ok(&["systemctl", "restart", "stemma-controller.service"])?;
        ensure!(controller.unit_property("stemma-controller.service", "MainPID")? != pid, "the controller was not restarted");
        fleet.edit_tier(tier, &fleet.hosts())?;
    }
    for machine in [controller, deb] {
        machine.write("/root/stop", "")?;
        wait_until("the loop has ended", || {
            machine.read("/root/load")?;
            Ok(())
        })?;
        let (numbers, errors) = (machine.read("/root/load")?, machine.run_shell("tail -4 /root/load-errors")?);
        let (good, bad) = numbers.trim().split_once(' ').context("two numbers")?;
        ensure!(good != "0" && bad == "0", "{good} connections and {bad} failures on {}:\n{errors}", machine.name);
        machine.run_shell("rm /root/stop /root/load*")?;
    }
    Ok(())
}

/// The watchdog of systemd restarts a service that stalls, and does not restart one that runs.
fn check_watchdog(machine: &Machine, unit: &str) -> Result<()> {
    let drop_in = format!("/run/systemd/system/{unit}.service.d/quick.conf");
    machine.run_shell(&format!(
        "mkdir -p $(dirname {drop_in}) && printf '[Service]\\nWatchdogSec={WATCHDOG_STALL_S}s\\n' > {drop_in} && systemctl daemon-reload && systemctl restart {unit}"
    ))?;
    let service = format!("{unit}.service");
    let pid = machine.unit_property(&service, "MainPID")?;
    // The watchdog is notified four times per timeout. After more than six notifications, more than one timeout has
    // passed.
    let mut notification_times = BTreeSet::new();
    wait_until("the watchdog is notified", || {
        notification_times.insert(machine.unit_property(&service, "WatchdogTimestampMonotonic")?);
        ensure!(notification_times.len() > 6, "{notification_times:?}");
        Ok(())
    })?;
    ensure!(machine.unit_property(&service, "MainPID")? == pid, "{unit} was restarted while it ran");
    machine.run_ok(&["systemctl", "kill", "--signal=STOP", "--kill-who=main", unit])?;
    wait_until("the service is restarted", || {
        ensure!(machine.unit_property(&service, "MainPID")? != pid, "the stalled {unit} was not restarted");
        machine.check_unit_state(&service, "active")
    })?;
    machine.run_shell(&format!("rm {drop_in} && systemctl daemon-reload && systemctl restart {unit}"))?;
    Ok(())
}

/// The watchdog restarts a controller that stalls.
pub(crate) fn trigger_watchdog(fleet: &mut MachineFleet) -> Result<()> {
    check_watchdog(&fleet.controller, "stemma-controller")?;
    fleet.edit_tier("tin", &fleet.hosts())
}

/// The watchdog restarts an agent that stalls.
pub(crate) fn trigger_agent_watchdog(fleet: &mut MachineFleet) -> Result<()> {
    check_watchdog(&fleet.deb_host, "stemma-agent")?;
    fleet.edit_tier("lithium", &[&fleet.deb_host])
}

/// The agent renames a stored record that is incomplete, and continues with the others.
pub(crate) fn f13_tear_state(fleet: &mut MachineFleet) -> Result<()> {
    let rpm = &fleet.rpm_host;
    rpm.run_ok(&["systemctl", "stop", "stemma-agent"])?;
    // The first record is cut, and the second is empty.
    rpm.run_shell("truncate --size=20 /var/lib/stemma-agent/apply/told && : > /var/lib/stemma-agent/apply/reasons")?;
    rpm.run_ok(&["systemctl", "start", "stemma-agent"])?;
    fleet.edit_tier("zinc", &[rpm])?;
    fleet.wait_until_converged(rpm)?;
    ensure!(rpm.unit_property("stemma-agent.service", "NRestarts")? == "0", "{}", rpm.journal("stemma-agent")?);
    let status = rpm.run(&["stemma-agent", "status"])?;
    let output = String::from_utf8_lossy(&status.stdout).into_owned();
    ensure!(output.contains("told.set-aside"), "{output}");
    rpm.run_shell("rm /var/lib/stemma-agent/apply/*.set-aside")?;
    Ok(())
}
