//! Machines with systemd of their own: one tree of Debian, an overlay a machine, a bridge between them; driven from outside, by commands
//! that enter a machine and by files below its root.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use stemma_tests::program::eventually_within;

/// What a machine's first boot may take on a busy machine.
const BOOTS: Duration = Duration::from_mins(2);

/// The network of all machines.
const NETWORK: &str = "10.213.77";

/// What is in the tree beside the least that Debian can be.
const INCLUDED: &str = "systemd,systemd-sysv,rpm,passwd,hostname,iproute2";

/// A tree of this machine's own release of Debian, made once and kept below the target directory.
pub(crate) fn tree(target: &Path) -> Result<PathBuf> {
    let release = fs::read_to_string("/etc/os-release")?;
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).context("this is no Debian")?;
    let tree = target.join("boot").join(format!("tree-{suite}"));
    fs::create_dir_all(tree.parent().context("a directory")?)?;
    // Two runs at once make it once.
    let turn = File::create(tree.with_added_extension("lock"))?;
    turn.lock()?;
    if tree.exists() {
        return Ok(tree);
    }
    let sources = ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"];
    let sources = sources.into_iter().find(|path| Path::new(path).exists()).context("apt's sources")?;
    let new = tree.with_added_extension("new");
    // What a run that was cut short left there.
    let _ = fs::remove_dir_all(&new);
    let include = format!("--include={INCLUDED}");
    let mut command = Command::new("mmdebstrap");
    command.args(["--quiet", "--variant=minbase", "--mode=root", &include, suite]).arg(&new).arg(sources);
    run(command)?;
    fs::rename(&new, &tree)?;
    Ok(tree)
}

/// The bridge of all machines of a run.
pub(crate) struct Bridge(String);

impl Bridge {
    pub(crate) fn new() -> Result<Self> {
        let name = format!("stbr{}", std::process::id() % 100_000);
        ip(&["link", "add", &name, "type", "bridge"])?;
        let bridge = Self(name);
        ip(&["link", "set", &bridge.0, "up"])?;
        Ok(bridge)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = ip(&["link", "delete", &self.0]);
    }
}

/// One machine. It is off until it is booted.
pub(crate) struct Machine {
    /// Its host name.
    pub(crate) name: &'static str,
    bridge: String,
    directory: PathBuf,
    running: Option<Child>,
}

impl Machine {
    /// A machine of a tree, with the last number of its address; `all` are in its `/etc/hosts`.
    pub(crate) fn new(
        tree: &Path,
        below: &Path,
        bridge: &Bridge,
        name: &'static str,
        all: &[(&'static str, u8)],
    ) -> Result<Self> {
        let directory = below.join(name);
        let machine = Self { name, bridge: bridge.0.clone(), directory, running: None };
        for part in ["upper", "work", "root"] {
            fs::create_dir_all(machine.directory.join(part))?;
        }
        let part = |part: &str| machine.directory.join(part).display().to_string();
        let options = format!("lowerdir={},upperdir={},workdir={}", tree.display(), part("upper"), part("work"));
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(machine.path("/"));
        run(mount)?;
        let own = all.iter().find(|(other, _)| *other == name).context("a machine has an address")?.1;
        let network = format!("[Match]\nName=host0\n[Network]\nAddress={NETWORK}.{own}/24\nLinkLocalAddressing=no\n");
        let hosts: String = all.iter().map(|(name, at)| format!("{NETWORK}.{at} {name}.boot.test {name}\n")).collect();
        machine.write("/etc/systemd/network/80-container-host0.network", &network)?;
        machine.write("/etc/hosts", &format!("127.0.0.1 localhost\n{hosts}"))?;
        machine.write("/etc/hostname", &format!("{name}\n"))?;
        fs::create_dir_all(machine.path("/var/log/journal"))?;
        // The tree is read-only below the overlay, which this unit cannot know.
        machine.link("/dev/null", "/etc/systemd/system/systemd-remount-fs.service")?;
        let networkd = "/etc/systemd/system/multi-user.target.wants/systemd-networkd.service";
        machine.link("/lib/systemd/system/systemd-networkd.service", networkd)?;
        Ok(machine)
    }

    /// Where a path of the machine is outside of it.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.directory.join("root").join(path.trim_start_matches('/'))
    }

    /// The text of a file.
    pub(crate) fn read(&self, path: &str) -> Result<String> {
        fs::read_to_string(self.path(path)).with_context(|| format!("{} on {}", path, self.name))
    }

    /// Writes a file, and the directories above it.
    pub(crate) fn write(&self, path: &str, text: &str) -> Result<()> {
        let path = self.path(path);
        fs::create_dir_all(path.parent().context("a directory")?)?;
        Ok(fs::write(path, text)?)
    }

    fn link(&self, to: &str, path: &str) -> Result<()> {
        let path = self.path(path);
        fs::create_dir_all(path.parent().context("a directory")?)?;
        Ok(std::os::unix::fs::symlink(to, path)?)
    }

    /// Switches it on, and waits until all of it is up.
    pub(crate) fn boot(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.directory.join("console.log"))?;
        let mut nspawn = Command::new("systemd-nspawn");
        nspawn
            .args(["--boot", "--quiet", "--register=no", "--keep-unit", "--console=pipe", "--resolv-conf=off"])
            .args(["--link-journal=no", "--timezone=off"])
            .args([format!("--network-bridge={}", self.bridge), format!("--machine={}", self.machine())])
            .arg(format!("--hostname={}", self.name))
            .arg("--directory")
            .arg(self.path("/"));
        self.running = Some(nspawn.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?);
        eventually_within(BOOTS, "the machine is up", || {
            let state = self.run(&["systemctl", "is-system-running"])?;
            let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
            ensure!(state == "running", "{} is {state}: {}", self.name, self.failed_units()?);
            Ok(())
        })
    }

    /// Cuts its power.
    pub(crate) fn cut_power(&mut self) -> Result<()> {
        let leader = self.leader()?;
        let mut child = self.running.take().context("it is on")?;
        // Its first process takes all others with it, and nspawn ends by itself.
        let leader = Pid::from_raw(i32::try_from(leader)?).context("a process")?;
        kill_process(leader, Signal::KILL)?;
        child.wait()?;
        Ok(())
    }

    /// Has it shut down by itself, as before a reboot, and boots it again.
    pub(crate) fn reboot(&mut self) -> Result<()> {
        self.must(&["systemctl", "reboot", "--no-block"])?;
        let mut child = self.running.take().context("it is on")?;
        eventually_within(BOOTS, "it has shut down", || {
            child.try_wait()?.context("it is on")?;
            Ok(())
        })?;
        self.boot()
    }

    /// Cuts it from the network, or heals that.
    pub(crate) fn connect(&self, is_connected: bool) -> Result<()> {
        ip(&["link", "set", &format!("vb-{}", self.machine()), if is_connected { "up" } else { "down" }])
    }

    /// The name by which nspawn knows it: of its network interface fifteen characters may be.
    fn machine(&self) -> String {
        format!("{}{}", std::process::id() % 100_000, self.name.replace('-', "")).chars().take(11).collect()
    }

    /// Its first process, once there is one: those before it only prepare.
    fn leader(&self) -> Result<u32> {
        let id = self.running.as_ref().with_context(|| format!("{} is off", self.name))?.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
        let is_first = |id: &&str| fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name == "systemd\n");
        Ok(children.split_whitespace().find(is_first).context("no process yet")?.parse()?)
    }

    /// Runs a command on it.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<Output> {
        let leader = self.leader()?;
        let mut command = Command::new("nsenter");
        command.args([
            "--target",
            &leader.to_string(),
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            "--",
            "env",
            "-i",
        ]);
        command.args([
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME=/root",
            "DEBIAN_FRONTEND=noninteractive",
            "NO_COLOR=1",
        ]);
        Ok(command.args(words).stdin(Stdio::null()).output()?)
    }

    /// Runs a command on it that must succeed, and gives what it printed on standard output.
    pub(crate) fn must<S: AsRef<OsStr> + std::fmt::Debug>(&self, words: &[S]) -> Result<String> {
        let output = self.run(words)?;
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        if !output.status.success() {
            bail!("{words:?} on {}: {}\n{out}{err}", self.name, output.status);
        }
        Ok(out)
    }

    /// The same for a line of the shell; standard error is in what it gives.
    pub(crate) fn shell(&self, line: &str) -> Result<String> {
        self.must(&["sh", "-c", &format!("exec 2>&1; {line}")])
    }

    /// A property of a unit.
    pub(crate) fn unit(&self, unit: &str, property: &str) -> Result<String> {
        Ok(self.must(&["systemctl", "show", "--value", "--property", property, unit])?.trim().to_owned())
    }

    /// That a unit is in a state, as `active`.
    pub(crate) fn unit_is(&self, unit: &str, state: &str) -> Result<()> {
        let is = self.unit(unit, "ActiveState")?;
        ensure!(is == state, "{unit} on {} is {is} and not {state}:\n{}", self.name, self.journal(unit)?);
        Ok(())
    }

    /// The last lines of a unit's log.
    pub(crate) fn journal(&self, unit: &str) -> Result<String> {
        self.must(&["journalctl", "--no-pager", "--lines", "40", "--unit", unit])
    }

    /// What has failed there.
    pub(crate) fn failed_units(&self) -> Result<String> {
        self.must(&["systemctl", "list-units", "--failed", "--plain", "--no-legend", "--no-pager"])
    }

    /// Keeps its console and its journal for who looks into a failure.
    pub(crate) fn keep_logs(&self, to: &Path) -> Result<()> {
        fs::create_dir_all(to)?;
        fs::copy(self.directory.join("console.log"), to.join(format!("{}.console", self.name)))?;
        let mut journal = Command::new("journalctl");
        journal.args(["--no-pager", "--output", "verbose", "--directory"]).arg(self.path("/var/log/journal"));
        Ok(fs::write(to.join(format!("{}.journal", self.name)), journal.output()?.stdout)?)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.running.is_some() {
            let _ = self.cut_power();
        }
        let mut umount = Command::new("umount");
        umount.arg(self.path("/"));
        let _ = run(umount);
    }
}

fn ip(words: &[&str]) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(words);
    run(command)
}

fn run(mut command: Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(())
}
