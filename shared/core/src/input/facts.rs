//! Which facts are stable, and so may be read by a template or a condition.
//!
//! A fact that changes by itself (uptime, free memory, load) would change the digest of each task that
//! reads it and roll the fleet. So the registry is a list of what may be read, not of what may not: a new
//! fact is unreadable until somebody has thought about it. Observations hold these facts and no others.

use std::net::IpAddr;

use serde_json::Value;

use super::path::Path;

/// What `uname` prints for the machines that Linux runs on.
const ARCHITECTURES: &[&str] =
    &["aarch64", "armv6l", "armv7l", "i686", "loongarch64", "mips64", "ppc64", "ppc64le", "riscv64", "s390x", "x86_64"];
/// What systemd-detect-virt prints.
const VIRTUALIZATIONS: &[&str] = &[
    "acrn",
    "amazon",
    "apple",
    "bhyve",
    "bochs",
    "container-other",
    "docker",
    "google",
    "kvm",
    "lxc",
    "lxc-libvirt",
    "microsoft",
    "none",
    "openvz",
    "oracle",
    "parallels",
    "podman",
    "powervm",
    "pouch",
    "proot",
    "qemu",
    "qnx",
    "rkt",
    "sre",
    "systemd-nspawn",
    "uml",
    "vm-other",
    "vmware",
    "wsl",
    "xen",
    "zvm",
];

/// What kind of value a fact is: decides whether another host may see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An IP address, as text.
    Address,
    /// An array of IP addresses, sorted.
    Addresses,
    /// An integer.
    Number,
    /// A boolean.
    Boolean,
    /// A host name by RFC 1123.
    HostName,
    /// One of a fixed set of names, listed with the fact.
    Name,
    /// Free text.
    Text,
}

/// A stable fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Its keys joined by dots; `*` stands for any one key.
    pub path: &'static str,
    /// What its value is.
    pub kind: Kind,
    /// What it says, with unit.
    pub title: &'static str,
}

/// A fact that may not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`facts{path}` is not a stable fact; stable are {}", names(.near))]
pub struct UnstableFact {
    /// What was asked for.
    pub path: Path,
    /// The stable facts below the same first key; all of them where there is none.
    pub near: Vec<&'static str>,
}

const fn fact(path: &'static str, kind: Kind, title: &'static str) -> Fact {
    Fact { path, kind, title }
}

/// The stable facts, by path.
pub const STABLE: &[Fact] = &[
    fact("architecture", Kind::Name, "machine name as of uname: x86_64, aarch64, …"),
    fact("cpu.cores", Kind::Number, "physical cores"),
    fact("cpu.count", Kind::Number, "logical processors"),
    fact("cpu.model", Kind::Text, "model name of the first processor"),
    fact("cpu.vendor", Kind::Text, "vendor of the first processor"),
    fact("disks.*.model", Kind::Text, "model of a disk, by kernel name"),
    fact("disks.*.rotational", Kind::Boolean, "whether a disk spins"),
    fact("disks.*.size_bytes", Kind::Number, "size of a disk"),
    fact("dmi.board", Kind::Text, "name of the main board"),
    fact("dmi.product", Kind::Text, "product name"),
    fact("dmi.serial", Kind::Text, "serial number"),
    fact("dmi.uuid", Kind::Text, "system uuid"),
    fact("dmi.vendor", Kind::Text, "system vendor"),
    fact("firmware", Kind::Name, "bios or uefi"),
    fact("fqdn", Kind::HostName, "full host name"),
    fact("hostname", Kind::HostName, "host name up to its first dot"),
    fact("kernel.name", Kind::Name, "Linux"),
    fact("kernel.release", Kind::Text, "release of the running kernel"),
    fact("memory.total_bytes", Kind::Number, "memory of the host"),
    fact("network.address", Kind::Address, "source address of the default route"),
    fact("network.addresses", Kind::Addresses, "global addresses of all interfaces"),
    fact("network.interfaces.*.addresses", Kind::Addresses, "global addresses of an interface"),
    fact("network.interfaces.*.mac", Kind::Text, "hardware address of an interface"),
    fact("network.interfaces.*.mtu", Kind::Number, "largest packet of an interface in bytes"),
    fact("os.codename", Kind::Text, "VERSION_CODENAME of os-release"),
    fact("os.id", Kind::Text, "ID of os-release: debian, fedora, …"),
    fact("os.name", Kind::Text, "PRETTY_NAME of os-release"),
    fact("os.version", Kind::Text, "VERSION_ID of os-release"),
    fact("swap.total_bytes", Kind::Number, "swap space of the host"),
    fact("timezone", Kind::Text, "name in the tz database"),
    fact("virtualization", Kind::Name, "what systemd-detect-virt prints: none, kvm, lxc, …"),
];

impl Kind {
    /// Whether another host may read it: typed values cross, free text never does.
    pub const fn crosses(self) -> bool {
        match self {
            Self::Address | Self::Addresses | Self::Number | Self::Boolean | Self::HostName | Self::Name => true,
            Self::Text => false,
        }
    }
}

impl Fact {
    /// Whether the path leads to this fact.
    pub fn is_at(&self, path: &Path) -> bool {
        self.reaches(path) == Some(0)
    }

    /// Whether a value is of this fact's kind: what a host reports is checked so before another host sees it.
    pub fn admits(&self, value: &Value) -> bool {
        let text = value.as_str();
        match self.kind {
            Kind::Address => text.is_some_and(is_address),
            Kind::Addresses => {
                value.as_array().is_some_and(|all| all.iter().all(|one| one.as_str().is_some_and(is_address)))
            }
            Kind::Number => value.is_number(),
            Kind::Boolean => value.is_boolean(),
            Kind::HostName => text.is_some_and(is_host_name),
            Kind::Name => text.is_some_and(|name| self.names().contains(&name)),
            Kind::Text => value.is_string(),
        }
    }

    /// The names that a fact of [`Kind::Name`] may have; none for other kinds.
    pub fn names(&self) -> &'static [&'static str] {
        match self.path {
            "architecture" => ARCHITECTURES,
            "firmware" => &["bios", "uefi"],
            "kernel.name" => &["Linux"],
            "virtualization" => VIRTUALIZATIONS,
            _ => &[],
        }
    }

    /// How many keys of this fact are left after those of `path`; `None` if `path` leads elsewhere or past it.
    fn reaches(&self, path: &Path) -> Option<usize> {
        let mut own = self.path.split('.');
        for key in path.keys() {
            let mine = own.next()?;
            if mine != "*" && mine != &**key {
                return None;
            }
        }
        Some(own.count())
    }
}

/// The stable facts that a path reads: one, or for a path that ends above them (`facts.cpu`) all below it.
///
/// # Errors
/// [`UnstableFact`] where there are none.
pub fn stable(path: &Path) -> Result<Vec<&'static Fact>, UnstableFact> {
    let found: Vec<_> = STABLE.iter().filter(|fact| fact.reaches(path).is_some()).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let first = path.first();
    let mut near: Vec<_> =
        STABLE.iter().map(|fact| fact.path).filter(|own| own.split('.').next() == Some(first)).collect();
    if near.is_empty() {
        near = STABLE.iter().map(|fact| fact.path).collect();
    }
    Err(UnstableFact { path: path.clone(), near })
}

/// Whether a text is a host name by RFC 1123: letters, digits and hyphens between dots, each part 1 to 63, all of it
/// up to 253.
pub fn is_host_name(text: &str) -> bool {
    let is_part = |part: &str| {
        (1..=63).contains(&part.len())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_part)
}

fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

fn names(near: &[&str]) -> String {
    near.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(dotted: &str) -> Path {
        Path::new(dotted.split('.')).expect("a path of the test")
    }

    #[test]
    fn a_path_reads_a_fact_or_all_below_it() {
        for (dotted, count) in [
            ("cpu.count", 1),
            ("cpu", 4),
            ("network.interfaces.eth0.mtu", 1),
            ("network.interfaces.eth0", 3),
            ("dmi", 5),
        ] {
            assert_eq!(stable(&path(dotted)).unwrap().len(), count, "{dotted}");
        }
        assert!(STABLE.is_sorted_by_key(|fact| fact.path));
    }

    #[test]
    fn a_value_is_of_its_facts_kind() {
        for (dotted, value, admitted) in [
            ("virtualization", serde_json::json!("vm-other"), true),
            ("virtualization", serde_json::json!("a cloud"), false),
            ("disks.sda.rotational", serde_json::json!(false), true),
            ("disks.sda.rotational", serde_json::json!(0), false),
            ("cpu.model", serde_json::json!("any text"), true),
            ("cpu.model", serde_json::json!(1), false),
        ] {
            assert_eq!(stable(&path(dotted)).unwrap()[0].admits(&value), admitted, "{dotted} {value}");
        }
    }

    #[test]
    fn what_is_not_stable_is_refused_with_what_is() {
        assert_eq!(
            stable(&path("memory.free_bytes")).unwrap_err().to_string(),
            "`facts.memory.free_bytes` is not a stable fact; stable are memory.total_bytes"
        );
        let all = stable(&path("uptime")).unwrap_err();
        assert_eq!(all.near.len(), STABLE.len());
        assert!(stable(&path("cpu.count.x")).is_err());
    }
}
