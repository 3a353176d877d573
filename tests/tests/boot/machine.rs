//! Containers that boot their own systemd: one Debian tree, an overlay for each machine, and a bridge between them.
//! The tests control the machines from outside, with commands that enter a machine and with files below its root.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use stemma_tests::program::eventually_within;

use super::isolation::{command_in_cgroup, isolated_command, run_name};

/// Maximum time of a boot on a busy machine.
const MAX_BOOT_TIME: Duration = Duration::from_mins(2);

/// The first three bytes of the IPv4 addresses of all machines.
const NETWORK_PREFIX: &str = "10.213.77";

/// The packages that are added to a minimal Debian.
const PACKAGES: [&str; 7] = ["systemd", "systemd-sysv", "dbus", "rpm", "passwd", "hostname", "iproute2"];

/// The packages that tasks install on the machines. apt has downloaded them into the tree, because the machines have no
/// connection to its sources.
const DOWNLOADED_PACKAGES: [&str; 5] = ["nginx", "chrony", "puppet-agent", "dnf", "createrepo-c"];

/// The name of the network bridge that connects all machines of a run.
pub(crate) const BRIDGE: &str = "stemma-boot";

/// Returns the name of this host's Debian release, and the path of its list of apt's sources.
pub(crate) fn find_debian() -> Result<(String, &'static str)> {
    let release = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).context("this host is not a Debian")?;
    let sources = ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"];
    let sources = sources.into_iter().find(|path| Path::new(path).exists()).context("this host has no list of apt's sources")?;
    Ok((suite.to_owned(), sources))
}

/// Returns the directory of a minimal Debian of the same release as this host. The first call builds the tree in the
/// run's directory `run` and moves it to the directory `parent`. Later runs use the same tree.
pub(crate) fn prepare_tree(parent: &Path, run: &Path) -> Result<PathBuf> {
    let (suite, sources) = find_debian()?;
    // A tree with other packages has another name. The name contains no comma, because the path is an option of a mount.
    let tree = parent.join(format!("tree-{suite}-{}", [&PACKAGES[..], &DOWNLOADED_PACKAGES].concat().join("+")));
    // The lock ensures that of two concurrent runs only one creates the tree.
    let lock = File::create(tree.with_added_extension("lock"))?;
    lock.lock()?;
    if tree.exists() {
        return Ok(tree);
    }
    let new_tree = run.join("tree");
    let include = format!("--include={}", PACKAGES.join(","));
    let mut command = isolated_command("mmdebstrap");
    let download = DOWNLOADED_PACKAGES.join(" ");
    let download =
        format!("--customize-hook=chroot \"$1\" apt-get -qq -y --no-install-recommends --download-only install {download}");
    command.args(["--quiet", "--variant=minbase", "--mode=root", "--skip=cleanup/apt", &include, &download, &suite]);
    command.arg(&new_tree).arg(sources);
    // A killed mmdebstrap leaves its temporary files.
    command.env("TMPDIR", run);
    run_command(command)?;
    fs::rename(&new_tree, &tree)?;
    Ok(tree)
}

/// Creates the bridge in the network namespace of this process, and sets it up.
pub(crate) fn create_bridge() -> Result<()> {
    run_ip(&["link", "add", BRIDGE, "type", "bridge"])?;
    run_ip(&["link", "set", BRIDGE, "up"])
}

/// Mounts an empty `/run` in the mount namespace of this process, so that systemd-nspawn does not write to that of this
/// host.
pub(crate) fn mount_empty_run() -> Result<()> {
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "tmpfs", "/run"]);
    run_command(mount)
}

/// A container that boots its own systemd. It is off until [`Machine::boot`].
pub(crate) struct Machine {
    /// The host name, which is also the name that systemd-nspawn uses.
    pub(crate) name: &'static str,
    directory: PathBuf,
    /// The name of the machine's cgroup.
    cgroup: String,
    /// The process of systemd-nspawn, if the machine is on.
    nspawn: Option<Child>,
}

impl Machine {
    /// Creates a machine that is off. This function mounts its root, an overlay over the Debian in `tree`, below
    /// the directory `run`. `machines` lists the names of all machines with the last byte of their addresses, for
    /// the address of this machine and its `/etc/hosts`.
    pub(crate) fn new(tree: &Path, run: &Path, name: &'static str, machines: &[(&'static str, u8)]) -> Result<Self> {
        let cgroup = format!("{}/{name}", run_name(run)?);
        let machine = Self { name, directory: run.join(name), cgroup, nspawn: None };
        for part in ["upper", "work", "root"] {
            fs::create_dir_all(machine.directory.join(part))?;
        }
        let part = |part: &str| machine.directory.join(part).display().to_string();
        let options = format!("lowerdir={},upperdir={},workdir={}", tree.display(), part("upper"), part("work"));
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(machine.outside_path("/"));
        run_command(mount)?;
        let address_byte = machines.iter().find(|(other, _)| *other == name).context("a machine has an address")?.1;
        let network =
            format!("[Match]\nName=host0\n[Network]\nAddress={NETWORK_PREFIX}.{address_byte}/24\nLinkLocalAddressing=no\n");
        let hosts: String =
            machines.iter().map(|(name, byte)| format!("{NETWORK_PREFIX}.{byte} {name}.example.net {name}\n")).collect();
        machine.write("/etc/systemd/network/80-container-host0.network", &network)?;
        machine.write("/etc/hosts", &format!("127.0.0.1 localhost\n{hosts}"))?;
        machine.write("/etc/hostname", &format!("{name}\n"))?;
        fs::create_dir_all(machine.outside_path("/var/log/journal"))?;
        // This unit would remount the root, but the tree below the overlay is read-only.
        machine.symlink("/dev/null", "/etc/systemd/system/systemd-remount-fs.service")?;
        let networkd = "/etc/systemd/system/multi-user.target.wants/systemd-networkd.service";
        machine.symlink("/lib/systemd/system/systemd-networkd.service", networkd)?;
        Ok(machine)
    }

    /// Returns the path, outside the machine, of a path on the machine.
    pub(crate) fn outside_path(&self, path: &str) -> PathBuf {
        self.directory.join("root").join(path.trim_start_matches('/'))
    }

    /// Reads a file as text.
    pub(crate) fn read(&self, path: &str) -> Result<String> {
        fs::read_to_string(self.outside_path(path)).with_context(|| format!("{} on {}", path, self.name))
    }

    /// Writes a file, and creates its parent directories.
    pub(crate) fn write(&self, path: &str, text: &str) -> Result<()> {
        let path = self.outside_path(path);
        fs::create_dir_all(path.parent().context("a directory")?)?;
        Ok(fs::write(path, text)?)
    }

    /// Creates a symbolic link at `path` on the machine, and its parent directories.
    fn symlink(&self, target: &str, path: &str) -> Result<()> {
        let path = self.outside_path(path);
        fs::create_dir_all(path.parent().context("a directory")?)?;
        Ok(std::os::unix::fs::symlink(target, path)?)
    }

    /// Boots the machine, and waits until all units are up.
    pub(crate) fn boot(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.directory.join("console.log"))?;
        let mut nspawn = command_in_cgroup(&self.cgroup, "systemd-nspawn")?;
        nspawn
            .args(["--boot", "--quiet", "--register=no", "--keep-unit", "--console=pipe", "--resolv-conf=off"])
            .args(["--link-journal=no", "--timezone=off"])
            .args([format!("--network-bridge={BRIDGE}"), format!("--machine={}", self.name)])
            .arg(format!("--hostname={}", self.name))
            .arg("--directory")
            .arg(self.outside_path("/"));
        self.nspawn = Some(nspawn.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?);
        eventually_within(MAX_BOOT_TIME, "the machine is up", || {
            let state = self.run(&["systemctl", "is-system-running"])?;
            let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
            ensure!(state == "running", "{} is {state}: {}", self.name, self.failed_units()?);
            Ok(())
        })
    }

    /// Kills the machine, as a power cut does.
    pub(crate) fn cut_power(&mut self) -> Result<()> {
        let leader = self.leader_pid()?;
        let mut child = self.nspawn.take().context("the machine is on")?;
        // When the first process of the machine is killed, all its processes end, and nspawn exits.
        let leader = Pid::from_raw(i32::try_from(leader)?).context("a process")?;
        kill_process(leader, Signal::KILL)?;
        child.wait()?;
        Ok(())
    }

    /// Shuts the machine down cleanly, as for a reboot, and boots it again.
    pub(crate) fn reboot(&mut self) -> Result<()> {
        self.run_ok(&["systemctl", "reboot", "--no-block"])?;
        self.await_reboot()
    }

    /// Waits until the machine has shut down for a reboot, and boots it again.
    pub(crate) fn await_reboot(&mut self) -> Result<()> {
        let mut child = self.nspawn.take().context("the machine is on")?;
        eventually_within(MAX_BOOT_TIME, "the machine has shut down", || {
            child.try_wait()?.context("the machine is still on")?;
            Ok(())
        })?;
        self.boot()
    }

    /// Connects the machine to the network, or disconnects it.
    pub(crate) fn set_connected(&self, is_connected: bool) -> Result<()> {
        run_ip(&["link", "set", &format!("vb-{}", self.name), if is_connected { "up" } else { "down" }])
    }

    /// Returns the id of the machine's systemd process, in the process ids of this host. Fails if the machine is off,
    /// or if systemd has not started yet, because nspawn then still prepares the container.
    fn leader_pid(&self) -> Result<u32> {
        let id = self.nspawn.as_ref().with_context(|| format!("{} is off", self.name))?.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
        let is_systemd = |id: &&str| fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name == "systemd\n");
        Ok(children.split_whitespace().find(is_systemd).context("no process yet")?.parse()?)
    }

    /// Runs a command on the machine.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<Output> {
        let leader = self.leader_pid()?;
        let mut command = Command::new("nsenter");
        command.args(["--target", &leader.to_string(), "--mount", "--uts", "--ipc", "--net", "--pid", "--", "env", "-i"]);
        command.args(["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "DEBIAN_FRONTEND=noninteractive", "NO_COLOR=1"]);
        Ok(command.args(words).stdin(Stdio::null()).output()?)
    }

    /// Runs a command on the machine that must succeed. Returns its standard output.
    pub(crate) fn run_ok<S: AsRef<OsStr> + std::fmt::Debug>(&self, words: &[S]) -> Result<String> {
        let output = self.run(words)?;
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        if !output.status.success() {
            bail!("{words:?} on {}: {}\n{out}{err}", self.name, output.status);
        }
        Ok(out)
    }

    /// Runs a shell command line that must succeed. Returns its standard output and standard error as one text.
    pub(crate) fn run_shell(&self, line: &str) -> Result<String> {
        self.run_ok(&["sh", "-c", &format!("exec 2>&1; {line}")])
    }

    /// Returns a property of a unit.
    pub(crate) fn unit_property(&self, unit: &str, property: &str) -> Result<String> {
        Ok(self.run_ok(&["systemctl", "show", "--value", "--property", property, unit])?.trim().to_owned())
    }

    /// Checks that a unit is in a state, such as `active`.
    pub(crate) fn check_unit_state(&self, unit: &str, state: &str) -> Result<()> {
        let actual = self.unit_property(unit, "ActiveState")?;
        ensure!(actual == state, "{unit} on {} is {actual} and not {state}:\n{}", self.name, self.journal(unit)?);
        Ok(())
    }

    /// Returns the last lines of a unit's log.
    pub(crate) fn journal(&self, unit: &str) -> Result<String> {
        self.run_ok(&["journalctl", "--no-pager", "--lines", "40", "--unit", unit])
    }

    /// Lists the failed units.
    pub(crate) fn failed_units(&self) -> Result<String> {
        self.run_ok(&["systemctl", "list-units", "--failed", "--plain", "--no-legend", "--no-pager"])
    }

    /// Stores the console output and the journal in a directory, to investigate a failure.
    pub(crate) fn save_logs(&self, log_dir: &Path) -> Result<()> {
        fs::create_dir_all(log_dir)?;
        fs::copy(self.directory.join("console.log"), log_dir.join(format!("{}.console", self.name)))?;
        let mut journal = Command::new("journalctl");
        journal.args(["--no-pager", "--output", "verbose", "--directory"]).arg(self.outside_path("/var/log/journal"));
        Ok(fs::write(log_dir.join(format!("{}.journal", self.name)), journal.output()?.stdout)?)
    }
}

fn run_ip(words: &[&str]) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(words);
    run_command(command)
}

/// Runs a command that must succeed.
pub(crate) fn run_command(mut command: Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(())
}
