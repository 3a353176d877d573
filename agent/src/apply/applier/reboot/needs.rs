//! Finds out whether the system requires a reboot.
//!
//! Debian and Ubuntu say so by a file in `/run`. On hosts with rpm, only `dnf needs-restarting` knows. Its answer is
//! stored with the state of the package database, so that a check runs it only after packages have changed. On all
//! hosts, a running kernel without its modules cannot load any, so a newer kernel waits for a boot.

use std::time::Duration;

use stemma_core::digest::sha256;

use crate::apply::ledger::{PACKAGE_REBOOT, PackageReboot};
use crate::apply::task::{HostTask, Site, TaskError};
use crate::host::{CommandPurpose, FileKind, Host, HostCommand, HostError, HostPath};

/// The directory in which packages of Debian leave their requests for a reboot.
const RUN_DIR: &str = "/run";

/// The file that exists if a reboot is required.
const REQUIRED_FILE: &str = "reboot-required";

/// The file with the names of the packages that require a reboot, one in a line.
const PACKAGES_FILE: &str = "reboot-required.pkgs";

/// Maximum size of [`PACKAGES_FILE`] that is read, in bytes.
const MAX_PACKAGES_BYTES: u64 = 64 * 1024;

/// Maximum number of packages that a reason names.
const MAX_NAMED_PACKAGES: usize = 5;

/// The directories with the modules of kernels, one directory for each release.
const MODULE_DIRS: [&str; 2] = ["/usr/lib/modules", "/lib/modules"];

/// Files that exist in a container. Its kernel is that of another machine.
const CONTAINER_FILES: [&str; 2] = ["/run/systemd/container", "/run/host/container-manager"];

/// The file with the database of dpkg. On a host with this file, dpkg and not rpm manages the packages.
const DPKG_DATABASE: &str = "/var/lib/dpkg/status";

/// The files of the database of rpm, in its places on Fedora, RHEL and older systems.
const RPM_DATABASES: [&str; 5] = [
    "/usr/lib/sysimage/rpm/rpmdb.sqlite",
    "/usr/lib/sysimage/rpm/rpmdb.sqlite-wal",
    "/var/lib/rpm/rpmdb.sqlite",
    "/var/lib/rpm/rpmdb.sqlite-wal",
    "/var/lib/rpm/Packages",
];

/// The command that says whether packages on a host with rpm require a reboot.
const NEEDS_RESTARTING: [&str; 3] = ["dnf", "needs-restarting", "-r"];

/// The time limit of [`NEEDS_RESTARTING`].
const NEEDS_RESTARTING_TIMEOUT: Duration = Duration::from_mins(2);

/// Returns the reason why the system requires a reboot, or `None` if it requires none.
pub(super) async fn find_reason(site: &Site, task: &HostTask) -> Result<Option<String>, TaskError> {
    if let Some(reason) = debian_reason(&*site.host)? {
        return Ok(Some(reason));
    }
    if let Some(reason) = kernel_reason(&*site.host)? {
        return Ok(Some(reason));
    }
    rpm_reason(site, task).await
}

/// Returns the reason of a package of Debian.
fn debian_reason(host: &dyn Host) -> Result<Option<String>, HostError> {
    let Some(dir) = host.dir(&HostPath::from_static(RUN_DIR))? else { return Ok(None) };
    if dir.stat(REQUIRED_FILE)?.is_none() && dir.stat(PACKAGES_FILE)?.is_none() {
        return Ok(None);
    }
    // The names are only for people. A file that cannot be read does not hide the requirement.
    let bytes = dir.read(PACKAGES_FILE, MAX_PACKAGES_BYTES).ok().flatten().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let mut packages: Vec<&str> = Vec::new();
    for package in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if !packages.contains(&package) {
            packages.push(package);
        }
    }
    let named = packages.iter().take(MAX_NAMED_PACKAGES).copied().collect::<Vec<_>>().join(", ");
    Ok(Some(match packages.len() {
        0 => format!("{RUN_DIR}/{REQUIRED_FILE} exists"),
        1..=MAX_NAMED_PACKAGES => format!("the system requires it for {named}"),
        count => format!("the system requires it for {named} and {} more packages", count - MAX_NAMED_PACKAGES),
    }))
}

/// Returns a reason if the running kernel has no modules any more, and another kernel has. Returns `None` in a container.
fn kernel_reason(host: &dyn Host) -> Result<Option<String>, HostError> {
    for path in CONTAINER_FILES {
        if exists(host, path)? {
            return Ok(None);
        }
    }
    let release = host.kernel_release();
    let mut others = Vec::new();
    for path in MODULE_DIRS {
        // `/lib` is a link on most hosts. Its target is read as the other path.
        let dir = match host.dir(&HostPath::from_static(path)) {
            Ok(Some(dir)) => dir,
            Ok(None) | Err(HostError::Link { .. }) => continue,
            Err(error) => return Err(error),
        };
        for name in dir.names()? {
            if name == release {
                return Ok(None);
            }
            if dir.stat(&name)?.is_some_and(|stat| stat.kind == FileKind::Directory) {
                others.push(name);
            }
        }
    }
    let newest = others.last();
    Ok(newest.map(|newest| format!("the running kernel {release} is no longer installed, and {newest} is")))
}

/// Returns the reason of a package of a host with rpm. Runs [`NEEDS_RESTARTING`] only if the package database has changed
/// since its last answer.
async fn rpm_reason(site: &Site, task: &HostTask) -> Result<Option<String>, TaskError> {
    let Some(database) = rpm_database(&*site.host)? else { return Ok(None) };
    let boot_id = site.host.boot_id();
    let stored = site.ledger.get(&PACKAGE_REBOOT)?.filter(|answer| answer.database == database && answer.boot_id == boot_id);
    let is_required = match stored {
        Some(answer) => answer.is_required,
        None => {
            let is_required = ask_dnf(site, task).await?;
            site.ledger.put(&PACKAGE_REBOOT, &PackageReboot { database, boot_id, is_required })?;
            is_required
        }
    };
    Ok(is_required.then(|| format!("`{}` says so", NEEDS_RESTARTING.join(" "))))
}

/// Returns a digest of the metadata of the database of rpm, which changes with each transaction. Returns `None` if rpm
/// does not manage the packages of this host.
fn rpm_database(host: &dyn Host) -> Result<Option<[u8; 32]>, HostError> {
    if exists(host, DPKG_DATABASE)? {
        return Ok(None);
    }
    let mut versions = Vec::new();
    for path in RPM_DATABASES.map(HostPath::from_static) {
        let dir = match host.parent_dir(&path) {
            Ok(dir) => dir,
            // `/var/lib/rpm` is a link where the database has moved.
            Err(HostError::Link { .. }) => None,
            Err(error) => return Err(error),
        };
        if let Some(version) = dir.map(|dir| dir.version(path.name())).transpose()?.flatten() {
            versions.push((version.file_id, version.changed_at, version.stat.size));
        }
    }
    let digest = || sha256(&postcard::to_stdvec(&versions).expect("plain data, which postcard can always encode"));
    Ok((!versions.is_empty()).then(digest))
}

/// Asks dnf whether installed packages require a reboot. Its exit status is also 1 if it has no such command, so its
/// words decide.
async fn ask_dnf(site: &Site, task: &HostTask) -> Result<bool, TaskError> {
    let argv = NEEDS_RESTARTING.map(str::to_owned).to_vec();
    let command = HostCommand {
        env: [("LC_ALL".to_owned(), "C.UTF-8".to_owned())].into(),
        purpose: CommandPurpose::Guard(task.task.id.clone()),
        ..HostCommand::new(argv, NEEDS_RESTARTING_TIMEOUT)
    };
    let result = site.host.run(&command).await?;
    if result.output.contains("Reboot is required") {
        return Ok(true);
    }
    if result.output.contains("Reboot should not be necessary") || result.end.is_success() {
        return Ok(false);
    }
    let message = format!(
        "parameters.when: whether the system requires a reboot is not known: `{}` {}; install dnf-plugins-core, or write `when: always`; no reboot was asked for",
        NEEDS_RESTARTING.join(" "),
        result.end.sentence()
    );
    Err(TaskError { output: result.output, ..TaskError::new(message).without_effect() })
}

/// Returns whether anything has this path.
fn exists(host: &dyn Host, path: &str) -> Result<bool, HostError> {
    match host.stat(&HostPath::from_static(path)) {
        Ok(stat) => Ok(stat.is_some()),
        Err(HostError::Link { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
