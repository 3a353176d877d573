//! The commands of `docs/install.md`, `docs/tutorial.md` and `docs/upgrade.md`, which the machines run word for word.
//!
//! A block of commands is a group of lines that begin with four spaces. The line of text before the block names the
//! machine, in one of the forms of [`INTRODUCTIONS`]. A machine runs a block as one script, in the directory of its
//! packages, and stops at the first command that fails.

use anyhow::{Context, Result, ensure};

use super::MachineFleet;
use super::machine::Machine;
use super::steps::{CONTROLLER_NAME, wait_for_file, wait_until};

/// The page about the installation.
const INSTALL_PAGE: &str = include_str!("../../../docs/install.md");

/// The page about upgrades and removal.
pub(crate) const UPGRADE_PAGE: &str = include_str!("../../../docs/upgrade.md");

/// The machines that run a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockTarget {
    Controller,
    DebHost,
    RpmHost,
    AllHosts,
    /// No machine of the test.
    Nowhere,
}

/// The lines that precede blocks, and the machines that run these blocks.
const INTRODUCTIONS: [(&str, BlockTarget); 9] = [
    ("On the controller:", BlockTarget::Controller),
    ("On the controller (.deb):", BlockTarget::Controller),
    ("On each host:", BlockTarget::AllHosts),
    ("On each host (.deb):", BlockTarget::DebHost),
    ("On each host (.rpm):", BlockTarget::RpmHost),
    // The controller of the fleet has the .deb. Another step installs the .rpm.
    ("On the controller (.rpm):", BlockTarget::Nowhere),
    // The machines have no SSH. The test copies the packages and the script, and runs the same commands on the hosts.
    ("From a machine with SSH access to the hosts:", BlockTarget::Nowhere),
    // These two precede a setting and an error, not commands.
    ("In `/etc/stemma/controller.toml`:", BlockTarget::Nowhere),
    ("In the output of `journalctl -u stemma-controller`:", BlockTarget::Nowhere),
];

/// The commands of dnf, and those of rpm that a machine runs in their place: Debian has no repository that dnf could use, and
/// the database of rpm does not contain the Debian packages.
const RPM_COMMANDS: [(&str, &str); 3] =
    [("dnf install -y", "rpm -i --nodeps"), ("dnf upgrade -y", "rpm -U --nodeps"), ("dnf remove -y", "rpm -e")];

/// A block of commands of a page.
#[derive(Debug)]
pub(crate) struct CommandBlock {
    /// The heading of the section, without `## `.
    pub(crate) section: String,
    target: BlockTarget,
    commands: String,
}

/// Returns the blocks of a page in its order, without those that no machine runs. Fails if no known line precedes a
/// block.
pub(crate) fn read_blocks(page: &str) -> Result<Vec<CommandBlock>> {
    let mut blocks: Vec<CommandBlock> = Vec::new();
    let (mut section, mut introduction, mut is_in_block) = ("", "", false);
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading;
        }
        if let Some(command) = line.strip_prefix("    ") {
            if !is_in_block {
                let (_, target) = INTRODUCTIONS
                    .into_iter()
                    .find(|(text, _)| *text == introduction)
                    .with_context(|| format!("`{introduction}` precedes a block, and names no machine"))?;
                blocks.push(CommandBlock { section: section.to_owned(), target, commands: String::new() });
            }
            let block = blocks.last_mut().context("a block has begun")?;
            block.commands.push_str(&format!("{command}\n"));
            is_in_block = true;
        } else {
            is_in_block = false;
            if !line.is_empty() {
                introduction = line;
            }
        }
    }
    blocks.retain(|block| block.target != BlockTarget::Nowhere);
    Ok(blocks)
}

impl MachineFleet {
    /// Runs a block on its machines, in the directory `package_dir` there. Returns the output of all of them.
    pub(crate) fn run_block(&self, block: &CommandBlock, package_dir: &str) -> Result<String> {
        let machines = match block.target {
            BlockTarget::Controller => vec![&self.controller],
            BlockTarget::DebHost => vec![&self.deb_host],
            BlockTarget::RpmHost => vec![&self.rpm_host],
            BlockTarget::AllHosts => self.hosts().to_vec(),
            BlockTarget::Nowhere => Vec::new(),
        };
        let commands = RPM_COMMANDS.iter().fold(block.commands.clone(), |text, (dnf, rpm)| text.replace(dnf, rpm));
        let run = |machine: &Machine| {
            machine
                .run_shell(&format!("set -e; cd {package_dir}\n{commands}"))
                .with_context(|| format!("the block of section `{}`", block.section))
        };
        Ok(machines.into_iter().map(run).collect::<Result<Vec<_>>>()?.concat())
    }

    /// Runs all blocks of a section of the upgrade page, with the packages of revision 2. Returns their output.
    pub(crate) fn run_upgrade_section(&self, section: &str) -> Result<String> {
        let blocks: Vec<CommandBlock> = read_blocks(UPGRADE_PAGE)?.into_iter().filter(|block| block.section == section).collect();
        ensure!(!blocks.is_empty(), "docs/upgrade.md has no commands in `{section}`");
        Ok(blocks.iter().map(|block| self.run_block(block, "/root/packages-2")).collect::<Result<Vec<_>>>()?.concat())
    }
}

/// A check of the machines after the commands of a section. It receives the output of the commands.
pub(crate) type SectionCheck = fn(&MachineFleet, &str) -> Result<()>;

/// The sections of the install page with commands that run, in the order of the page, each with its check.
const INSTALL_SECTIONS: [(&str, SectionCheck); 7] = [
    ("Install the controller", check_controller),
    ("Apply the first manifests", check_applied_manifests),
    ("Create a token", copy_join_script),
    ("Install the agents", check_waiting_agents),
    ("Join the hosts", check_joined_hosts),
    ("Check the fleet", check_fleet_output),
    ("Change a label", check_changed_label),
];

/// Machines that have only the packages become a fleet by the commands of the install page.
pub(crate) fn follow_install_page(fleet: &mut MachineFleet) -> Result<()> {
    for machine in [&fleet.controller, &fleet.deb_host, &fleet.rpm_host] {
        fleet.copy_packages(machine, 1)?;
    }
    follow_page(fleet, INSTALL_PAGE, &INSTALL_SECTIONS, "/root/packages-1")
}

/// Runs the blocks of a page in the directory `directory` of the machines, and the check of each section after its blocks.
/// `sections` are all sections of the page with commands that run, in their order.
pub(crate) fn follow_page(fleet: &MachineFleet, page: &str, sections: &[(&str, SectionCheck)], directory: &str) -> Result<()> {
    let blocks = read_blocks(page)?;
    let mut names: Vec<&str> = blocks.iter().map(|block| block.section.as_str()).collect();
    names.dedup();
    ensure!(names.iter().eq(sections.iter().map(|(section, _)| section)), "sections of the page: {names:?}");
    for (section, check) in sections {
        let section_blocks = blocks.iter().filter(|block| block.section == *section);
        let output: Vec<String> = section_blocks.map(|block| fleet.run_block(block, directory)).collect::<Result<_>>()?;
        check(fleet, &output.concat()).with_context(|| format!("after the section `{section}`"))?;
    }
    Ok(())
}

/// The controller runs, and systemd has opened its sockets.
fn check_controller(fleet: &MachineFleet, output: &str) -> Result<()> {
    let controller = &fleet.controller;
    let created = format!("created a fleet in /var/lib/stemma-controller; this machine is its controller, {CONTROLLER_NAME}");
    ensure!(output.contains(&created), "{output}");
    check_controller_units(controller)?;
    let sockets = controller.run_shell("ss -ltn")?;
    ensure!(sockets.contains(":9443") && sockets.contains(":9444"), "{sockets}");
    Ok(())
}

/// Checks that the controller and its sockets are active and enabled.
pub(crate) fn check_controller_units(machine: &Machine) -> Result<()> {
    for unit in ["stemma-controller.service", "stemma-controller-admin.socket", "stemma-controller-agents.socket"] {
        machine.check_unit_state(unit, "active")?;
        ensure!(machine.run_ok(&["systemctl", "is-enabled", unit])?.trim() == "enabled", "{unit}");
    }
    Ok(())
}

fn check_applied_manifests(fleet: &MachineFleet, _: &str) -> Result<()> {
    let groups = fleet.stemma("get nodegroups -o name")?;
    ensure!(groups.contains("prod/frontends") && groups.contains("prod/databases"), "{groups}");
    Ok(())
}

/// Copies the script to the hosts, as the page says.
fn copy_join_script(fleet: &MachineFleet, output: &str) -> Result<()> {
    ensure!(output.contains("good for 10 hosts, into the group prod/frontends"), "{output}");
    let script = fleet.controller.read("/root/packages-1/join.sh")?;
    ensure!(script.contains(&format!("stemma-agent join https://{CONTROLLER_NAME}:9444 ")), "{output}");
    for host in fleet.hosts() {
        host.write("/root/packages-1/join.sh", &script)?;
    }
    Ok(())
}

/// The agents of both hosts wait for the join.
fn check_waiting_agents(fleet: &MachineFleet, _: &str) -> Result<()> {
    let rpm = &fleet.rpm_host;
    // The RPM database does not contain the Debian packages, so the requirements are checked separately.
    let requirements = rpm.run_shell("rpm -qpR /root/packages-1/stemma-agent-*.rpm")?;
    for package in ["systemd", "util-linux", "libc.so.6"] {
        ensure!(requirements.lines().any(|line| line.starts_with(package)), "{package}: {requirements}");
    }
    for host in fleet.hosts() {
        // The unit waits for `stemma-agent join`, which is not a failure.
        host.check_unit_state("stemma-agent.service", "inactive")?;
        ensure!(host.run_ok(&["systemctl", "is-enabled", "stemma-labels.service"])?.trim() == "enabled");
        ensure!(host.run(&["stemma-agent", "run"])?.status.code() == Some(1), "the host has not joined");
        ensure!(host.outside_path("/usr/share/man/man8/stemma-agent-join.8.gz").exists());
    }
    Ok(())
}

fn check_joined_hosts(fleet: &MachineFleet, output: &str) -> Result<()> {
    ensure!(output.matches("stemma-agent.service is enabled and runs").count() == 2, "{output}");
    for host in fleet.hosts() {
        host.check_unit_state("stemma-agent.service", "active")?;
        ensure!(!host.outside_path("/root/packages-1/join.sh").exists(), "{} has kept the token", host.name);
        // The id of the message that a node has joined.
        let matches = format!("MESSAGE_ID=a28498dc7b784ef690abb7a5b0ef68fe NAME={}", host.name);
        let log = fleet.controller.run_shell(&format!("journalctl --no-pager --output cat -u stemma-controller {matches}"))?;
        ensure!(log.contains("joined"), "{log}");
    }
    Ok(())
}

fn check_fleet_output(fleet: &MachineFleet, output: &str) -> Result<()> {
    ensure!(output.contains("WINS: nearest level that sets it"), "{output}");
    for host in fleet.hosts() {
        ensure!(output.contains(&format!("{} belongs to prod: tier gold, ntp ntp.example.net\n", host.name)), "{output}");
        ensure!(host.failed_units()?.is_empty(), "{}", host.failed_units()?);
    }
    Ok(())
}

/// The hosts apply the edit, and correct a file that was changed by hand.
fn check_changed_label(fleet: &MachineFleet, output: &str) -> Result<()> {
    ensure!(output.contains("gold -> platinum") && output.contains("tier = platinum"), "{output}");
    let check_files = |host: &Machine| {
        wait_for_file(host, "/etc/motd", &format!("{} belongs to prod: tier platinum, ntp ntp.example.net\n", host.name))
    };
    for host in fleet.hosts() {
        check_files(host)?;
        // The command that subscribes to the changed file runs after it, also when the file names another peer.
        wait_until("the last line of the site's log has the new tier", || {
            let log = host.read("/var/log/site.log")?;
            let line = |tier: &str| format!("{} serves {tier}\n", host.name);
            ensure!(log.starts_with(&line("gold")) && log.ends_with(&line("platinum")), "{log}");
            Ok(())
        })?;
        ensure!(host.read("/etc/nginx/conf.d/site.conf")?.contains("# tier platinum"), "{} has an old file", host.name);
        fleet.wait_until_converged(host)?;
        host.write("/etc/motd", "by hand\n")?;
    }
    fleet.hosts().into_iter().try_for_each(check_files)
}
