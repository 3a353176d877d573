//! The commands of `docs/tutorial.md`: a site of packages, services, accounts and files, of which a part moves to another
//! host.

use anyhow::{Context, Result, ensure};

use super::MachineFleet;
use super::commands::{SectionCheck, follow_page};
use super::machine::Machine;
use super::steps::wait_until;

/// The page with the commands.
const TUTORIAL_PAGE: &str = include_str!("../../../docs/tutorial.md");

/// The sections of the page with commands, in the order of the page, each with its check.
const SECTIONS: [(&str, SectionCheck); 7] = [
    ("Write the manifests", |_, _| Ok(())),
    ("Check and apply the manifests", check_preview),
    ("Place the hosts", check_site),
    ("Change a label", check_single_restart),
    ("Preview a change on a host", check_unchanged_hosts),
    ("Move nginx to the other host", check_moved_site),
    ("Remove what was left", check_removed_files),
];

/// The setting of the machines without which chrony does not start: a container cannot set the clock.
const CHRONY_SETTING: &str = "[Unit]\nConditionCapability=\n[Service]\nExecStart=\nExecStart=!/usr/sbin/chronyd -x -F 1\n";

/// Two hosts become the site of the tutorial by its commands, and nginx moves from one to the other.
pub(crate) fn follow_tutorial_page(fleet: &mut MachineFleet) -> Result<()> {
    for host in fleet.hosts() {
        host.write("/etc/systemd/system/chrony.service.d/container.conf", CHRONY_SETTING)?;
    }
    follow_page(fleet, TUTORIAL_PAGE, &SECTIONS, "/root")
}

fn check_preview(fleet: &MachineFleet, output: &str) -> Result<()> {
    ensure!(output.contains("shop@1"), "{output}");
    ensure!(fleet.stemma("get nodegroups -o name")?.contains("shop/web"), "the group does not exist");
    Ok(())
}

/// Returns the page that nginx serves on a host, or an error if it serves none.
fn fetch_page(host: &Machine) -> Result<String> {
    // bash opens the connection, because the minimal Debian has no HTTP client.
    let script = r"exec 3<>/dev/tcp/127.0.0.1/80; printf 'GET / HTTP/1.0\r\n\r\n' >&3; cat <&3";
    host.run_ok(&["bash", "-c", script])
}

fn check_site(fleet: &MachineFleet, output: &str) -> Result<()> {
    let (web, other) = (&fleet.deb_host, &fleet.rpm_host);
    ensure!(output.matches("server ntp.eu.example.net iburst").count() == 2, "{output}");
    ensure!(output.matches("(deploy)").count() >= 2, "{output}");
    ensure!(fetch_page(web)?.contains("<h1>Shop</h1>"), "{}", fetch_page(web)?);
    ensure!(web.read("/srv/www/images/logo.svg")?.contains("svg"), "the tree is incomplete");
    for host in [web, other] {
        host.check_unit_state("chrony.service", "active")?;
        ensure!(host.run_ok(&["systemctl", "is-enabled", "chrony.service"])?.trim() == "enabled", "chrony is not enabled");
        let key = host.run_shell("stat -c '%a %U:%G' /var/lib/deploy/.ssh /var/lib/deploy/.ssh/authorized_keys")?;
        ensure!(key == "700 deploy:deploy\n600 deploy:deploy\n", "{key}");
        ensure!(host.failed_units()?.is_empty(), "{}", host.failed_units()?);
    }
    ensure!(!other.outside_path("/usr/sbin/nginx").exists(), "nginx is installed without its tag");
    Ok(())
}

/// Returns how often systemd has started nginx on a host since its boot.
fn count_starts(host: &Machine) -> Result<usize> {
    let log = host.run_shell("journalctl --no-pager --output cat _PID=1 UNIT=nginx.service")?;
    Ok(log.lines().filter(|line| line.starts_with("Started nginx.service")).count())
}

fn check_single_restart(fleet: &MachineFleet, output: &str) -> Result<()> {
    let web = &fleet.deb_host;
    ensure!(output.contains("workers = 4"), "{output}");
    ensure!(web.read("/etc/nginx/nginx.conf")?.contains("worker_processes 4;"), "the file is old");
    // The package has started nginx, and the edit has restarted it. The first configuration restarted it too.
    let starts = count_starts(web)?;
    ensure!(starts == 3, "nginx was started {starts} times:\n{}", web.journal("nginx")?);
    let workers = web.run_shell("grep -l '^nginx: worker' /proc/[0-9]*/cmdline | wc -l")?;
    ensure!(workers.trim() == "4", "{workers}");
    Ok(())
}

fn check_unchanged_hosts(fleet: &MachineFleet, output: &str) -> Result<()> {
    ensure!(output.matches("unchanged").count() >= 2, "{output}");
    // Drift of each type of task is found and corrected.
    let host = &fleet.deb_host;
    host.run_shell(
        "systemctl stop nginx; chmod 755 /var/lib/deploy/.ssh; usermod --shell /bin/sh deploy; rm /srv/www/images/logo.svg; \
         echo other > /srv/www/other.html",
    )?;
    let difference = host.run(&["stemma-agent", "check"])?;
    // The agent may correct the drift before the check has found all of it.
    ensure!([Some(0), Some(6)].contains(&difference.status.code()), "{difference:?}");
    host.run_ok(&["stemma-agent", "once"])?;
    host.check_unit_state("nginx.service", "active")?;
    let state =
        host.run_shell("stat -c %a /var/lib/deploy/.ssh; getent passwd deploy | cut -d: -f7; ls /srv/www /srv/www/images")?;
    ensure!(state == "700\n/bin/bash\n/srv/www:\nimages\nindex.html\n\n/srv/www/images:\nlogo.svg\n", "{state}");
    fleet.wait_until_converged(host)
}

fn check_moved_site(fleet: &MachineFleet, output: &str) -> Result<()> {
    let (old, new) = (&fleet.deb_host, &fleet.rpm_host);
    ensure!(fetch_page(new)?.contains("<h1>Shop</h1>"), "{}", fetch_page(new)?);
    old.check_unit_state("nginx.service", "inactive")?;
    ensure!(old.run(&["systemctl", "is-enabled", "nginx"])?.status.code() == Some(1), "nginx is enabled");
    ensure!(output.contains("node web-1\n"), "{output}");
    // The controller stores the reports of a host at most every ten seconds.
    wait_until("the orphans are listed", || {
        let node = fleet.stemma("describe node web-1")?;
        for orphan in ["/etc/nginx/nginx.conf", "/srv/www"] {
            ensure!(node.contains(orphan), "{orphan} is not in:\n{node}");
        }
        Ok(())
    })?;
    ensure!(old.run_shell("stemma-agent status")?.contains("/srv/www"), "the host does not list its orphans");
    // The task of `on_unassign` runs once: nginx stays as a person starts it.
    old.run_ok(&["systemctl", "start", "nginx"])?;
    old.run_ok(&["stemma-agent", "once"])?;
    old.check_unit_state("nginx.service", "active")
}

fn check_removed_files(fleet: &MachineFleet, _: &str) -> Result<()> {
    let old = &fleet.deb_host;
    wait_until("the pages are removed", || {
        ensure!(!old.outside_path("/srv/www/index.html").exists(), "{}", old.journal("stemma-agent")?);
        Ok(())
    })?;
    ensure!(old.outside_path("/etc/nginx/nginx.conf").exists(), "the configuration of the package was removed");
    // The controller stores the reports of a host at most every ten seconds.
    wait_until("the pages are not listed", || {
        let node = fleet.stemma("describe node web-1")?;
        ensure!(!node.contains("/srv/www/index.html"), "{node}");
        Ok(())
    })?;
    let page = fetch_page(&fleet.rpm_host).context("the other host")?;
    ensure!(page.contains("<h1>Shop</h1>"), "{page}");
    Ok(())
}
