//! Steps about tasks of several types that change the system: what remains to be done after the agent was killed.

use anyhow::{Result, ensure};

use super::MachineFleet;
use super::machine::Machine;
use super::steps::{wait_for_file, wait_until};
use super::units::{apply_tasks, kill_agents, task_units};

/// Creates a repository of three packages, and adds it to the sources of apt. The configuration script of the package `slow`
/// waits for a file.
const CREATE_REPOSITORY: &str = r"set -e
mkdir -p /root/repository; cd /root/repository
for name in slow second third; do
  mkdir -p $name/DEBIAN
  printf 'Package: %s\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <nobody@example.net>\nDescription: a package of a test\n' $name >$name/DEBIAN/control
done
printf '#!/bin/sh\necho begun >>/root/configured\nuntil test -e /root/configure; do sleep 0.1; done\necho ended >>/root/configured\n' >slow/DEBIAN/postinst
chmod 0755 slow/DEBIAN/postinst
for name in slow second third; do
  dpkg-deb --build $name $name.deb >/dev/null
  cat $name/DEBIAN/control
  printf 'Filename: ./%s.deb\nSize: %s\nSHA256: %s\n\n' $name $(stat -c %s $name.deb) $(sha256sum $name.deb | cut -d' ' -f1)
done >Packages
echo 'deb [trusted=yes] file:/root/repository ./' >/etc/apt/sources.list.d/test.list
apt-get -q update -o Dir::Etc::SourceList=sources.list.d/test.list -o Dir::Etc::SourceParts=- -o APT::Get::List-Cleanup=false";

/// Tasks of each type that changes the system, in an order. Two tasks install packages without an order between them.
const TASKS: &str = r#"  - {id: team, type: group_account, tags: [web], parameters: {name: team, system: true}}
  - {id: account, type: user, tags: [web], requires: [team], parameters: {name: worker, system: true, groups: [team], home: /srv/worker}}
  - {id: data, type: directory, tags: [web], requires: [account], parameters: {path: /srv/worker, owner: worker, group: team, mode: "0750"}}
  - {id: current, type: link, tags: [web], requires: [data], parameters: {path: /srv/worker/current, target: /srv/copy}}
  - {id: copy, type: sync, tags: [web], requires: [current], parameters: {src: /root/source, dst: /srv/copy, delete: true}}
  - {id: first-package, type: package, tags: [web], requires: [copy], parameters: {name: slow}}
  - {id: other-packages, type: package, tags: [web], requires: [copy], parameters: {name: [second, third]}}
  - {id: unit-file, type: file, tags: [web], requires: [copy], parameters: {path: /etc/systemd/system/worker.service, content: "[Service]\nExecStartPre=/bin/sh -c 'echo begun >> /root/starts; until test -e /root/start; do sleep 0.1; done'\nExecStart=/bin/sleep infinity\n"}}
  - {id: unit, type: service, tags: [web], requires: [first-package, other-packages, unit-file], parameters: {unit: worker, state: running}}"#;

/// The agent is killed as soon as each change can be seen on the host. The agents that follow complete the task set. A
/// transaction of apt that is at work is not disturbed: it runs once, with the packages of both tasks.
pub(crate) fn kill_agent_at_each_change(fleet: &mut MachineFleet) -> Result<()> {
    for host in fleet.hosts() {
        host.run_shell(CREATE_REPOSITORY)?;
        host.run_shell("mkdir -p /root/source; cd /root/source; for file in $(seq 2000); do echo $file >$file; done")?;
    }
    apply_tasks(fleet, 14, TASKS)?;
    let changes = [
        "getent group team",
        "getent passwd worker",
        "test -d /srv/worker",
        "test -L /srv/worker/current",
        "test -e /srv/copy/1",
        "test -e /root/configured",
    ];
    for change in changes {
        for host in fleet.hosts() {
            wait_until(change, || host.run_shell(change).map(drop))?;
        }
        kill_agents(&fleet.hosts())?;
    }
    for host in fleet.hosts() {
        ensure!(task_units(host)?.len() == 1, "{:?}", task_units(host)?);
        host.write("/root/configure", "")?;
        wait_for_file(host, "/root/configured", "begun\nended\n")?;
        wait_for_file(host, "/root/starts", "begun\n")?;
    }
    kill_agents(&fleet.hosts())?;
    for host in fleet.hosts() {
        host.write("/root/start", "")?;
        fleet.wait_until_converged(host)?;
        check_tasks_are_applied_once(host)?;
    }
    Ok(())
}

/// Checks that the host has the state that the tasks require, and that each change was made once.
fn check_tasks_are_applied_once(host: &Machine) -> Result<()> {
    let state = host.run_shell(
        "id -nG worker; stat -c '%U %G %a' /srv/worker; readlink /srv/worker/current; diff -r /root/source /srv/copy; ls /srv/copy | wc -l; \
         dpkg-query -W -f '${Package} ${db:Status-Abbrev}\\n' slow second third; dpkg --audit; cat /root/configured /root/starts",
    )?;
    let expected = "worker team\nworker team 750\n/srv/copy\n2000\nsecond ii \nslow ii \nthird ii \nbegun\nended\nbegun\n";
    ensure!(state == expected, "{}: {state}", host.name);
    let history = host.run_shell("grep -A1 '^Commandline: apt-get.* install ' /var/log/apt/history.log | grep -w slow")?;
    let transactions: Vec<&str> = history.lines().filter(|line| line.starts_with("Commandline")).collect();
    ensure!(
        transactions.len() == 1 && transactions[0].contains("second") && transactions[0].contains("third"),
        "the packages are in several transactions: {history}"
    );
    host.check_unit_state("worker.service", "active")?;
    // Neither a second run nor a check finds a difference.
    host.run_ok(&["stemma-agent", "once"])?;
    host.run_ok(&["stemma-agent", "check"])?;
    Ok(())
}

/// A task that installs Debian's Puppet, and one that runs it with a module. The first run waits for a file.
const PUPPET_TASKS: &str = r#"  - {id: puppet-package, type: package, tags: [puppet], parameters: {name: puppet-agent}}
  - id: site
    type: puppet
    tags: [puppet]
    requires: [puppet-package]
    parameters:
      manifest: |
        file { '/root/puppet-file': content => "${facts['site']}\n" }
        -> exec { "/bin/sh -c 'echo begun >>/root/puppet-runs; until test -e /root/puppet-end; do sleep 0.1; done; echo ended >>/root/puppet-runs'":
          creates => '/root/puppet-end',
        }
        -> class { 'greet': }
      modules: {greet/manifests/init.pp: greet.pp}
      hiera: {"greet::guest": "{{ node.name }}"}
      facts: {site: lab}"#;

/// The class of the module.
const GREET_CLASS: &str = "class greet(String $guest) {\n  file { '/root/greeting': content => \"hello ${guest}\\n\" }\n}\n";

/// Puppet of Debian applies a manifest with a module. It continues when the agent is killed, and runs once. A check shows
/// drift and changes nothing.
pub(crate) fn run_puppet(fleet: &mut MachineFleet) -> Result<()> {
    fleet.controller.write("/root/greet.pp", GREET_CLASS)?;
    apply_tasks(fleet, 15, PUPPET_TASKS)?;
    fleet.stemma("tag assign web-1 puppet")?;
    let host = &fleet.deb_host;
    wait_for_file(host, "/root/puppet-runs", "begun\n")?;
    kill_agents(&[host])?;
    host.write("/root/puppet-end", "")?;
    fleet.wait_until_converged(host)?;
    let state = host.run_shell("cat /root/puppet-runs /root/puppet-file /root/greeting")?;
    ensure!(state == "begun\nended\nlab\nhello web-1\n", "{state}");
    // A stopped agent does not correct drift.
    host.run_ok(&["systemctl", "stop", "stemma-agent"])?;
    host.write("/root/greeting", "by hand\n")?;
    let difference = host.run(&["stemma-agent", "check"])?;
    let text = String::from_utf8_lossy(&difference.stdout).into_owned();
    ensure!(difference.status.code() == Some(6) && text.contains("/root/greeting"), "{difference:?}");
    ensure!(host.read("/root/greeting")? == "by hand\n", "a check has changed a file");
    host.run_ok(&["systemctl", "start", "stemma-agent"])?;
    wait_for_file(host, "/root/greeting", "hello web-1\n")?;
    fleet.wait_until_converged(host)?;
    fleet.stemma("tag unassign web-1 puppet")?;
    Ok(())
}

/// Installs Debian's dnf, creates a repository with two versions of a package, and hides the database of dpkg: dnf is for
/// hosts without dpkg.
const CREATE_RPM_REPOSITORY: &str = r"set -e
apt-get -qq -y --no-install-recommends --no-download install dnf createrepo-c
mkdir -p /root/rpms; cd /root/rpms
for version in 1.9 1.10; do
  printf 'Name: hello\nVersion: %s\nRelease: 1\nSummary: a package of a test\nLicense: none\nBuildArch: noarch\nAutoReqProv: no\n' $version >hello.spec
  printf '%%description\na package of a test\n%%install\nmkdir -p %%{buildroot}/opt\necho hello >%%{buildroot}/opt/hello\n%%files\n/opt/hello\n' >>hello.spec
  rpmbuild --quiet --define '_rpmdir /root/rpms' -bb hello.spec
done
createrepo_c --quiet /root/rpms
mkdir -p /etc/yum.repos.d
printf '[test]\nname=test\nbaseurl=file:///root/rpms\ngpgcheck=0\n' >/etc/yum.repos.d/test.repo
mv /var/lib/dpkg/status /var/lib/dpkg/status.hidden";

/// Debian's dnf installs a version of a package, upgrades it to a minimum version, installs it again when somebody has
/// removed it, and removes it.
pub(crate) fn manage_rpm_package(fleet: &mut MachineFleet) -> Result<()> {
    let host = &fleet.rpm_host;
    host.run_shell(CREATE_RPM_REPOSITORY)?;
    let apply = |version: u32, parameter: &str| {
        let task = format!("  - {{id: hello, type: package, tags: [dnf], parameters: {{name: hello, {parameter}}}}}");
        apply_tasks(fleet, version, &task)
    };
    let wait_for_package = |expected: &str| {
        wait_until("the package is in the required state", || {
            let package = host.run_shell("rpm -q hello || true")?;
            ensure!(package.trim() == expected, "{package}: {}", host.journal("stemma-agent")?);
            Ok(())
        })
    };
    apply(16, "version: 1.9-1")?;
    fleet.stemma("tag assign web-2 dnf")?;
    wait_for_package("hello-1.9-1.noarch")?;
    apply(17, "min_version: \"1.10\"")?;
    wait_for_package("hello-1.10-1.noarch")?;
    fleet.wait_until_converged(host)?;
    host.run_shell("rpm -e hello")?;
    let difference = host.run(&["stemma-agent", "check"])?;
    ensure!(difference.status.code() == Some(6), "{difference:?}");
    host.run_ok(&["stemma-agent", "once"])?;
    wait_for_package("hello-1.10-1.noarch")?;
    // Neither a second run nor a check finds a difference.
    host.run_ok(&["stemma-agent", "once"])?;
    host.run_ok(&["stemma-agent", "check"])?;
    apply(18, "absent: true")?;
    wait_for_package("package hello is not installed")?;
    fleet.wait_until_converged(host)?;
    host.run_shell("mv /var/lib/dpkg/status.hidden /var/lib/dpkg/status")?;
    fleet.stemma("tag unassign web-2 dnf")?;
    Ok(())
}
