//! Steps about the deletion of a node and its next join, about keys, upgrades and downgrades, and about the removal of
//! packages.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use redb::{Database, TableDefinition};

use super::MachineFleet;
use super::commands::check_controller_units;
use super::machine::Machine;
use super::steps::{wait_for_file, wait_until};
use super::units;

/// The files that tasks wrote on each host. The tasks of `/etc/motd` and `/etc/chrony/sources.d/site.sources` were in groups
/// from which the hosts have moved.
const TASK_FILES: [&str; 6] =
    ["/etc/note", "/etc/after", "/var/log/once", "/var/log/slow", "/etc/motd", "/etc/chrony/sources.d/site.sources"];

/// The host label map of the host with the .deb. The other host has it at the default path.
const LABEL_MAP: &str = "/etc/site-labels";

/// A unit that needs the labels of its host.
const LABEL_READER: &str = "label-reader.service";

/// The content of that unit.
const LABEL_READER_UNIT: &str =
    "[Unit]\nRequires=stemma-labels.service\nAfter=stemma-labels.service\n[Service]\nExecStart=sleep infinity\n";

/// The table of the store's properties, such as the schema version.
const STORE_META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");

/// The maximum proportional memory (PSS) of an idle agent, in KiB. The released agent has 7 MiB (docs/performance.md).
/// The programs of `cargo xtask packages --dev` are not optimised and have 15 MiB, because their code is larger.
const MAX_AGENT_PSS_KIB: u64 = 24 << 10;

/// The host of a deleted node is refused, also if a new node has the same name, until the host joins again.
pub(crate) fn s26_delete_node(fleet: &mut MachineFleet) -> Result<()> {
    let rpm = &fleet.rpm_host;
    fleet.stemma(&format!("delete node {}", rpm.name))?;
    wait_until("the agent reports that no controller serves the host", || {
        let status = rpm.run(&["stemma-agent", "status"])?;
        ensure!(status.status.code() == Some(1), "{}", String::from_utf8_lossy(&status.stdout));
        Ok(())
    })?;
    // A new node of the same name is another node. The certificate of the deleted node must stay invalid.
    fleet.stemma(&format!("create node {} --nodegroup lab/web", rpm.name))?;
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
    ensure!(rpm.read("/etc/note")? == format!("{} is zinc\n", rpm.name), "the refused host changed its file");
    fleet.stemma(&format!("delete node {}", rpm.name))?;
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

/// Checks the lines of the host label map at [`LABEL_MAP`]. One line is of another writer, and must always be there. A
/// line of the agent has the label `tier`.
fn check_label_map(host: &Machine, has_own_key: bool) -> Result<()> {
    let text = host.read(LABEL_MAP)?;
    ensure!(text.lines().any(|line| line == "rack=7"), "the line of another writer is gone: {text}");
    ensure!(text.lines().any(|line| line.starts_with("tier=")) == has_own_key, "{text}");
    Ok(())
}

/// The agent writes its keys into a host label map at another path, next to the key of another writer.
pub(crate) fn configure_label_map(fleet: &mut MachineFleet) -> Result<()> {
    let deb = &fleet.deb_host;
    deb.write(LABEL_MAP, "rack=7\n")?;
    deb.run_shell(&format!("printf '\\n[host_label_map]\\npath = \"{LABEL_MAP}\"\\n' >> /etc/stemma/agent.toml"))?;
    deb.run_ok(&["systemctl", "restart", "stemma-agent"])?;
    wait_until("the agent writes its keys", || check_label_map(deb, true))?;
    fleet.wait_until_converged(deb)
}

/// An upgrade of the packages, with the commands of `docs/upgrade.md`, starts the new programs, and keeps config files
/// that were edited by hand. The upgrade runs no task and writes no file of a task.
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
    for machine in [controller, deb, rpm] {
        fleet.copy_packages(machine, 2)?;
    }
    for host in fleet.hosts() {
        host.write(&format!("/etc/systemd/system/{LABEL_READER}"), LABEL_READER_UNIT)?;
        host.run_shell(&format!("systemctl daemon-reload && systemctl start {LABEL_READER}"))?;
    }
    fleet.run_upgrade_section("Upgrade the controller")?;
    ensure!(controller.read("/etc/stemma/controller.toml")?.contains("# by hand"));
    controller.check_unit_state("stemma-controller.service", "active")?;
    fleet.run_upgrade_section("Upgrade the agents")?;
    ensure!(deb.read("/etc/stemma/agent.toml")?.contains(LABEL_MAP));
    check_agent_revisions(fleet, 2)?;
    for (host, old_pid) in fleet.hosts().into_iter().zip(old_pids) {
        host.check_unit_state("stemma-agent.service", "active")?;
        ensure!(host.unit_property("stemma-agent.service", "MainPID")? != old_pid?, "the old program runs on {}", host.name);
        fleet.wait_until_converged(host)?;
    }
    let files_after = [file_states(deb)?, file_states(rpm)?];
    for host in fleet.hosts() {
        host.check_unit_state(LABEL_READER, "active")?;
        host.run_shell(&format!("systemctl stop {LABEL_READER} && rm /etc/systemd/system/{LABEL_READER}"))?;
    }
    ensure!(files_before == files_after, "a file was written: {files_before:?} {files_after:?}");
    ensure!([ended_task_count(deb)?, ended_task_count(rpm)?] == task_counts, "a task ran: {}", deb.journal("stemma-agent")?);
    for (host, install) in [
        (deb, "dpkg -i /root/packages-2/stemma-agent_*.deb"),
        (rpm, "rpm -U --replacepkgs --nodeps /root/packages-2/stemma-agent-*.rpm"),
    ] {
        host.run_shell(&format!("systemctl stop stemma-agent && {install}"))?;
        host.check_unit_state("stemma-agent.service", "inactive").context("an upgrade started a stopped agent")?;
        host.run_ok(&["systemctl", "start", "stemma-agent"])?;
    }
    fleet.edit_tier("steel", &fleet.hosts())
}

/// Checks which revision of the agent's package is installed on the hosts.
fn check_agent_revisions(fleet: &MachineFleet, revision: u32) -> Result<()> {
    let deb_version = fleet.deb_host.run_shell("dpkg-query -W -f '${Version}' stemma-agent")?;
    let rpm_version = fleet.rpm_host.run_shell("rpm -q stemma-agent")?;
    ensure!(
        deb_version.ends_with(&format!("-{revision}")) && rpm_version.contains(&format!("-{revision}.")),
        "{deb_version} {rpm_version}"
    );
    Ok(())
}

/// Sets the schema version of a store, which no process has open, and the name of the program that wrote it. Returns
/// the previous values.
fn replace_store_version(store: &Path, schema: &[u8], program: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
    let transaction = Database::open(store)?.begin_write()?;
    let old_values = {
        let mut meta = transaction.open_table(STORE_META)?;
        let mut replace = |name, value: &[u8]| -> Result<Vec<u8>> {
            Ok(meta.insert(name, value)?.with_context(|| format!("the store has no {name}"))?.value().to_vec())
        };
        (replace("schema", schema)?, replace("program", program)?)
    };
    transaction.commit()?;
    Ok(old_values)
}

/// An earlier package continues with a store that it can read. A controller refuses a store with a newer schema, names
/// the version to use, and does not change the store. The hosts correct drift without it.
pub(crate) fn downgrade_packages(fleet: &mut MachineFleet) -> Result<()> {
    let (controller, deb, rpm) = (&fleet.controller, &fleet.deb_host, &fleet.rpm_host);
    let downgrade = "dpkg -i /root/packages-1/stemma_*.deb /root/packages-1/stemma-controller_*.deb";
    controller.run_shell(downgrade)?;
    deb.run_shell("dpkg -i /root/packages-1/stemma-agent_*.deb")?;
    rpm.run_shell("rpm -U --nodeps --oldpackage /root/packages-1/stemma-agent-*.rpm")?;
    check_agent_revisions(fleet, 1)?;
    fleet.edit_tier("pewter", &fleet.hosts())?;

    fleet.run_upgrade_section("Upgrade the controller")?;
    controller.run_ok(&["systemctl", "stop", "stemma-controller.service"])?;
    let store = controller.outside_path("/var/lib/stemma-controller/store.redb");
    let (schema, program) = replace_store_version(&store, &u32::MAX.to_be_bytes(), b"stemma-controller 9.9.9")?;
    let bytes_before = std::fs::read(&store)?;
    controller.run_shell(downgrade)?;
    wait_until("the controller refuses the store", || {
        let log = controller.journal("stemma-controller")?;
        ensure!(log.contains("(written by stemma-controller 9.9.9)") && log.contains("run the newer stemma-controller"), "{log}");
        Ok(())
    })?;
    deb.write("/etc/note", "by hand\n")?;
    wait_for_file(deb, "/etc/note", &format!("{} is pewter\n", deb.name))?;
    controller.run_ok(&["systemctl", "stop", "stemma-controller.service"])?;
    ensure!(std::fs::read(&store)? == bytes_before, "the refused store was changed");
    replace_store_version(&store, &schema, &program)?;
    controller.run_ok(&["systemctl", "start", "stemma-controller.service"])?;
    fleet.edit_tier("gilt", &fleet.hosts())
}

/// An upgrade while the command of a task runs does not interrupt this command. The upgraded agent waits for its end, and
/// continues with the next task.
pub(crate) fn upgrade_during_apply(fleet: &mut MachineFleet) -> Result<()> {
    fleet.apply_release(3)?;
    for host in fleet.hosts() {
        wait_for_file(host, "/var/log/long", "begun\n")?;
    }
    fleet.run_upgrade_section("Upgrade the controller")?;
    fleet.run_upgrade_section("Upgrade the agents")?;
    check_agent_revisions(fleet, 2)?;
    for host in fleet.hosts() {
        host.check_unit_state("stemma-agent.service", "active")?;
        ensure!(!host.outside_path("/etc/last").exists(), "a task did not wait for the command on {}", host.name);
        host.write("/root/upgraded", "")?;
    }
    for host in fleet.hosts() {
        wait_for_file(host, "/etc/last", "last\n")?;
        wait_for_file(host, "/var/log/long", "begun\nended\n")?;
        fleet.wait_until_converged(host)?;
    }
    Ok(())
}

/// Prints the memory use and the systemd exposure of each daemon, and checks the memory use of the agents.
#[allow(clippy::print_stdout, reason = "this step prints figures")]
pub(crate) fn measure_memory(fleet: &mut MachineFleet) -> Result<()> {
    for (machine, unit) in
        [(&fleet.controller, "stemma-controller"), (&fleet.deb_host, "stemma-agent"), (&fleet.rpm_host, "stemma-agent")]
    {
        let pid = machine.unit_property(&format!("{unit}.service"), "MainPID")?;
        let memory = machine.run_shell(&format!("grep ^Pss: /proc/{pid}/smaps_rollup"))?;
        let pss_kib: u64 = memory.split_whitespace().nth(1).context("a size")?.parse()?;
        let exposure = machine.run_shell(&format!("systemd-analyze security {unit}.service | tail -1"))?;
        println!("{}: PSS {pss_kib} KiB {}", machine.name, exposure.trim());
        ensure!(unit != "stemma-agent" || pss_kib <= MAX_AGENT_PSS_KIB, "the agent on {} takes {pss_kib} KiB", machine.name);
    }
    Ok(())
}

/// The removal of the agent's package stops the agent and the command of a task. A reinstalled agent has its identity, runs
/// the stopped command again, and corrects drift.
pub(crate) fn reinstall_packages(fleet: &mut MachineFleet) -> Result<()> {
    let (deb, rpm) = (&fleet.deb_host, &fleet.rpm_host);
    let task = "  - {id: endless, type: shell, tags: [web], parameters: {script: \"test -e /root/endless && exit; echo begun > /root/endless; sleep 1000\"}}";
    units::apply_tasks(fleet, 8, task)?;
    for host in fleet.hosts() {
        wait_for_file(host, "/root/endless", "begun\n")?;
    }
    fleet.run_upgrade_section("Remove")?;
    check_label_map(deb, false)?;
    for host in fleet.hosts() {
        ensure!(!host.outside_path("/usr/bin/stemma-agent").exists());
        let agent_processes = host.run_shell("grep -lx stemma-agent /proc/[0-9]*/comm 2>/dev/null || true")?;
        ensure!(agent_processes.is_empty(), "the agent runs on {}: {agent_processes}", host.name);
        ensure!(units::task_units(host)?.is_empty(), "a command runs on {}", host.name);
        ensure!(host.failed_units()?.is_empty(), "{}", host.failed_units()?);
        ensure!(host.outside_path("/var/lib/stemma-agent/identity.json").exists(), "{} has lost its identity", host.name);
        host.run_ok(&["test", "!", "-e", "/run/stemma/labels.json"])?;
        host.write("/etc/note", "by hand\n")?;
    }
    fleet.apply_release(3)?;
    deb.run_shell("dpkg -i /root/packages-2/stemma-agent_*.deb")?;
    rpm.run_shell("rpm -i --nodeps /root/packages-2/stemma-agent-*.rpm")?;
    for host in fleet.hosts() {
        host.check_unit_state("stemma-agent.service", "active")?;
        fleet.wait_until_converged(host)?;
    }
    check_label_map(deb, true)?;
    fleet.edit_tier("nickel", &fleet.hosts())
}

/// Returns the paths on a machine whose last part contains `stemma`. Excludes the journal and `/root`, into which the
/// test copied the packages. Also excludes other file systems than that of the root, such as `/run`.
fn leftover_paths(machine: &Machine) -> Result<String> {
    machine.run_shell("find / -xdev -name '*stemma*' -not -path '/proc/*' -not -path '/sys/*' -not -path '/root/*' -not -path '/var/log/journal/*'")
}

/// The purge of the packages, with the commands of `docs/upgrade.md`, removes every file of Stemma, and leaves the files
/// of tasks and the labels of other writers.
pub(crate) fn purge_packages(fleet: &mut MachineFleet) -> Result<()> {
    let (controller, deb, rpm) = (&fleet.controller, &fleet.deb_host, &fleet.rpm_host);
    deb.write("/etc/stemma/labels.d/mine", "rack=7\n")?;
    let output = fleet.run_upgrade_section("Purge")?;
    ensure!(
        output.contains("the files that tasks wrote on this host were not removed, except for those in /etc/stemma"),
        "{output}"
    );
    ensure!(output.contains("Copies of that directory, and a data_dir in other places, were not removed"), "{output}");
    ensure!(output.contains("this host has left its fleet"), "{output}");
    check_label_map(deb, false)?;
    for unit in ["stemma-agent.service", "stemma-applied.target"] {
        rpm.check_unit_state(unit, "inactive")?;
    }
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

/// The .rpm of the controller creates a fleet and starts it. An upgrade keeps the fleet, and a removal leaves only its
/// state. A fleet whose files belong to root, as one that was created by hand, is used after the command that the error
/// names.
pub(crate) fn install_controller_rpm(fleet: &mut MachineFleet) -> Result<()> {
    let machine = &fleet.rpm_host;
    for revision in [1, 2] {
        fleet.copy_packages(machine, revision)?;
    }
    let output = machine.run_shell("cd /root/packages-1; rpm -i --nodeps stemma-0*.rpm stemma-controller-*.rpm")?;
    ensure!(output.contains("created a fleet in /var/lib/stemma-controller"), "{output}");
    check_controller_units(machine)?;
    machine.run_shell("stemma get nodes")?;
    let authority = machine.read("/var/lib/stemma-controller/ca.pem")?;
    let old_pid = machine.unit_property("stemma-controller.service", "MainPID")?;
    machine.run_shell("cd /root/packages-2; rpm -U --nodeps stemma-0*.rpm stemma-controller-*.rpm")?;
    check_controller_units(machine)?;
    ensure!(machine.unit_property("stemma-controller.service", "MainPID")? != old_pid, "the old program runs");
    ensure!(machine.read("/var/lib/stemma-controller/ca.pem")? == authority, "the upgrade has created another fleet");
    reinstall_without_disk(machine)?;
    machine.run_shell("rpm -e stemma-controller stemma")?;
    machine.run_shell("chown -R root: /var/lib/stemma-controller")?;
    machine.run_shell("cd /root/packages-2; rpm -i --nodeps stemma-0*.rpm stemma-controller-*.rpm")?;
    wait_until("the error names a command", || {
        machine.run_shell("journalctl -u stemma-controller --output cat --no-pager | grep -o 'chown -R .*' | sort -u > /root/fix && test -s /root/fix")?;
        Ok(())
    })?;
    machine.run_shell("sh -e /root/fix && systemctl start stemma-controller")?;
    check_controller_units(machine)?;
    ensure!(machine.read("/var/lib/stemma-controller/ca.pem")? == authority, "another fleet was created");
    machine.run_shell("rpm -e stemma-controller stemma")?;
    machine.run_shell("rm -rf /etc/stemma /var/lib/stemma-controller")?;
    let leftovers = leftover_paths(machine)?;
    ensure!(leftovers.is_empty(), "{leftovers}");
    ensure!(machine.failed_units()?.is_empty(), "{}", machine.failed_units()?);
    Ok(())
}

/// A controller that is installed again while its disk is not mounted creates no second fleet. Its error names the way to
/// create one.
fn reinstall_without_disk(machine: &Machine) -> Result<()> {
    machine.run_shell("rpm -e stemma-controller stemma && mv /var/lib/stemma-controller /var/lib/kept")?;
    machine.run_shell("install -d -o stemma -g stemma -m 700 /var/lib/stemma-controller")?;
    let output = machine.run_shell("cd /root/packages-2; rpm -i --nodeps stemma-0*.rpm stemma-controller-*.rpm 2>&1")?;
    ensure!(output.contains("it keeps its fleet"), "{output}");
    wait_until("the error says how to create a fleet", || {
        let log = machine.journal("stemma-controller")?;
        ensure!(log.contains("`touch /etc/stemma/create-fleet` and a start of stemma-controller.service"), "{log}");
        Ok(())
    })?;
    machine.run_shell("systemctl stop stemma-controller && rm -r /var/lib/stemma-controller")?;
    machine.run_shell("mv /var/lib/kept /var/lib/stemma-controller")?;
    let output = machine.run_shell("stemma get nodes 2>&1 || true")?;
    ensure!(output.contains("the controller on this machine does not run"), "{output}");
    machine.run_shell("systemctl start stemma-controller")?;
    check_controller_units(machine)
}

/// A controller that is installed in an image creates its fleet at the first boot, with the names of its configuration.
/// A further boot changes nothing.
pub(crate) fn boot_image_with_controller(fleet: &mut MachineFleet) -> Result<()> {
    let package_dir = fleet.copy_packages(&fleet.controller, 2)?;
    let controller = &mut fleet.controller;
    controller.cut_power()?;
    let mut install = Command::new("chroot");
    install.arg(controller.outside_path("/")).args([
        "sh",
        "-c",
        &format!("dpkg -i {package_dir}/stemma_*.deb {package_dir}/stemma-controller_*.deb"),
    ]);
    let output = install.output()?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    ensure!(output.contains("it creates its fleet at its first boot"), "{output}");
    ensure!(!controller.outside_path("/var/lib/stemma-controller/store.redb").exists(), "the image contains a fleet");
    let config = controller.read("/etc/stemma/controller.toml")?;
    controller.write("/etc/stemma/controller.toml", &format!("names = [\"fleet.example.net\"]\n{config}"))?;
    controller.boot()?;
    controller.check_unit_state("stemma-controller.service", "active")?;
    ensure!(!controller.outside_path("/etc/stemma/create-fleet").exists(), "a further boot would create a fleet");
    let output = controller.run_shell("stemma get nodes && stemma token create 2>&1 >/root/token")?;
    ensure!(output.contains("stemma-agent join https://fleet.example.net:9444 "), "{output}");
    let authority = controller.read("/var/lib/stemma-controller/ca.pem")?;
    controller.reboot()?;
    controller.check_unit_state("stemma-controller.service", "active")?;
    ensure!(controller.read("/var/lib/stemma-controller/ca.pem")? == authority, "a further boot has created another fleet");
    Ok(())
}
