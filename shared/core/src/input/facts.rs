//! The stable facts, which templates and conditions may read.
//!
//! A fact that changes by itself (uptime, free memory, load) would change the digest of each task that reads it, and
//! roll the fleet. So [`STABLE_FACTS`] lists the facts that may be read, not those that may not: a new fact cannot be
//! read until it is added to the list. An agent puts these facts into its observation, and two facts about itself: its
//! version, and the task types that it knows.

use std::net::IpAddr;

use serde_json::Value;

use super::path::Path;

/// The values that the fact `architecture` may have: names of machines as `uname` prints them.
const ARCHITECTURES: &[&str] =
    &["aarch64", "armv6l", "armv7l", "i686", "loongarch64", "mips64", "ppc64", "ppc64le", "riscv64", "s390x", "x86_64"];
/// The values that the fact `virtualization` may have: those that systemd-detect-virt prints.
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

/// The type of a fact's value. It decides whether another host may read the fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactType {
    /// An IP address, as text.
    Address,
    /// An array of IP addresses as text. The agent sorts it. An array that is not sorted is accepted too.
    Addresses,
    /// A number.
    Number,
    /// A boolean.
    Boolean,
    /// A host name by RFC 1123.
    HostName,
    /// One of a fixed set of names. [`Fact::allowed_names`] lists the names of each fact.
    Name,
    /// Free text. Templates and conditions of the host itself may read it, those of other hosts may not.
    Text,
}

/// A stable fact: a value that a host reports about itself and that does not change by itself. Templates and conditions
/// may read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fact {
    /// The keys that lead to the fact, joined by dots. `*` matches any single key.
    pub path: &'static str,
    /// The type of the value.
    pub fact_type: FactType,
    /// A short description of the value.
    pub title: &'static str,
}

/// The error for a fact that templates and conditions may not read. Only stable facts, which do not change by
/// themselves, may be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`facts{path}` is not a stable fact; stable are {}", joined_paths(.candidates))]
pub struct UnstableFact {
    /// The path that was requested.
    pub path: Path,
    /// The stable facts with the same first key, or all stable facts if there are none.
    pub candidates: Vec<&'static str>,
}

/// Creates an entry of [`STABLE_FACTS`].
const fn fact(path: &'static str, kind: FactType, title: &'static str) -> Fact {
    Fact { path, fact_type: kind, title }
}

/// The stable facts, sorted by path.
pub const STABLE_FACTS: &[Fact] = &[
    fact("architecture", FactType::Name, "machine name as of uname: x86_64, aarch64, …"),
    fact("cpu.cores", FactType::Number, "physical cores"),
    fact("cpu.count", FactType::Number, "logical processors"),
    fact("cpu.model", FactType::Text, "model name of the first processor"),
    fact("cpu.vendor", FactType::Text, "vendor of the first processor"),
    fact("disks.*.model", FactType::Text, "model of a disk, by kernel name"),
    fact("disks.*.rotational", FactType::Boolean, "whether a disk spins"),
    fact("disks.*.size_bytes", FactType::Number, "size of a disk"),
    fact("dmi.board", FactType::Text, "name of the main board"),
    fact("dmi.product", FactType::Text, "product name"),
    fact("dmi.serial", FactType::Text, "serial number"),
    fact("dmi.uuid", FactType::Text, "system uuid"),
    fact("dmi.vendor", FactType::Text, "system vendor"),
    fact("firmware", FactType::Name, "bios or uefi"),
    fact("fqdn", FactType::HostName, "full host name"),
    fact("hostname", FactType::HostName, "host name up to its first dot"),
    fact("kernel.name", FactType::Name, "Linux"),
    fact("kernel.release", FactType::Text, "release of the running kernel"),
    fact("memory.total_bytes", FactType::Number, "memory of the host"),
    fact("network.address", FactType::Address, "source address of the default route"),
    fact("network.addresses", FactType::Addresses, "global addresses of all interfaces"),
    fact("network.interfaces.*.addresses", FactType::Addresses, "global addresses of an interface"),
    fact("network.interfaces.*.mac", FactType::Text, "hardware address of an interface"),
    fact("network.interfaces.*.mtu", FactType::Number, "largest packet of an interface in bytes"),
    fact("os.codename", FactType::Text, "VERSION_CODENAME of os-release"),
    fact("os.id", FactType::Text, "ID of os-release: debian, fedora, …"),
    fact("os.name", FactType::Text, "PRETTY_NAME of os-release"),
    fact("os.version", FactType::Text, "VERSION_ID of os-release"),
    fact("swap.total_bytes", FactType::Number, "swap space of the host"),
    fact("timezone", FactType::Text, "name in the tz database"),
    fact("virtualization", FactType::Name, "what systemd-detect-virt prints: none, kvm, lxc, …"),
];

impl FactType {
    /// Returns whether templates and conditions of another host may read a fact of this type. They may not read free
    /// text, because a host could put any text into it.
    pub const fn is_shareable(self) -> bool {
        match self {
            Self::Address | Self::Addresses | Self::Number | Self::Boolean | Self::HostName | Self::Name => true,
            Self::Text => false,
        }
    }
}

impl Fact {
    /// Returns whether `path` leads to this fact. `*` in the path of the fact matches any key.
    pub fn matches_path(&self, path: &Path) -> bool {
        self.remaining_keys(path) == Some(0)
    }

    /// Returns whether a value has this fact's type. Before another host can read a fact, the value that the host
    /// reported is checked with this function.
    pub fn accepts(&self, value: &Value) -> bool {
        let text_value = value.as_str();
        match self.fact_type {
            FactType::Address => text_value.is_some_and(is_address),
            FactType::Addresses => {
                value.as_array().is_some_and(|items| items.iter().all(|item| item.as_str().is_some_and(is_address)))
            }
            FactType::Number => value.is_number(),
            FactType::Boolean => value.is_boolean(),
            FactType::HostName => text_value.is_some_and(is_host_name),
            FactType::Name => text_value.is_some_and(|name| self.allowed_names().contains(&name)),
            FactType::Text => value.is_string(),
        }
    }

    /// Returns the values that a fact of [`FactType::Name`] may have. Empty for other types.
    pub fn allowed_names(&self) -> &'static [&'static str] {
        match self.path {
            "architecture" => ARCHITECTURES,
            "firmware" => &["bios", "uefi"],
            "kernel.name" => &["Linux"],
            "virtualization" => VIRTUALIZATIONS,
            _ => &[],
        }
    }

    /// Returns the number of keys that this fact's path has after the keys of `path`. Returns `None` if this fact's
    /// path does not begin with `path`.
    fn remaining_keys(&self, path: &Path) -> Option<usize> {
        let mut segments = self.path.split('.');
        for key in path.keys() {
            let segment = segments.next()?;
            if segment != "*" && segment != &**key {
                return None;
            }
        }
        Some(segments.count())
    }
}

/// Returns the stable facts that a path reads. A path that ends above several facts, such as `facts.cpu`, reads all
/// facts below it.
///
/// # Errors
/// [`UnstableFact`] if the path reads no stable fact.
pub fn stable_facts(path: &Path) -> Result<Vec<&'static Fact>, UnstableFact> {
    let facts: Vec<_> = STABLE_FACTS.iter().filter(|fact| fact.remaining_keys(path).is_some()).collect();
    if !facts.is_empty() {
        return Ok(facts);
    }
    let first_key = path.first();
    let mut candidates: Vec<_> =
        STABLE_FACTS.iter().map(|fact| fact.path).filter(|fact_path| fact_path.split('.').next() == Some(first_key)).collect();
    if candidates.is_empty() {
        candidates = STABLE_FACTS.iter().map(|fact| fact.path).collect();
    }
    Err(UnstableFact { path: path.clone(), candidates })
}

/// Returns whether a text is a host name by RFC 1123: letters, digits and hyphens between dots, 1 to 63 characters in
/// each part, at most 253 in total. No part begins or ends with a hyphen.
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

/// Joins the paths of facts with commas, for a message.
fn joined_paths(paths: &[&str]) -> String {
    paths.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(dotted: &str) -> Path {
        Path::new(dotted.split('.')).expect("a path of the test")
    }

    /// A full path reads one fact. A path that ends above facts reads all of them, for example the four facts below
    /// `cpu`. The table of facts is sorted.
    #[test]
    fn stable_facts_returns_fact_or_all_below_path() {
        for (dotted, count) in
            [("cpu.count", 1), ("cpu", 4), ("network.interfaces.eth0.mtu", 1), ("network.interfaces.eth0", 3), ("dmi", 5)]
        {
            assert_eq!(stable_facts(&path(dotted)).unwrap().len(), count, "{dotted}");
        }
        assert!(STABLE_FACTS.is_sorted_by_key(|fact| fact.path));
    }

    #[test]
    fn fact_accepts_only_values_of_declared_type() {
        for (dotted, value, expected) in [
            ("virtualization", serde_json::json!("vm-other"), true),
            ("virtualization", serde_json::json!("a cloud"), false),
            ("disks.sda.rotational", serde_json::json!(false), true),
            ("disks.sda.rotational", serde_json::json!(0), false),
            ("cpu.model", serde_json::json!("any text"), true),
            ("cpu.model", serde_json::json!(1), false),
        ] {
            assert_eq!(stable_facts(&path(dotted)).unwrap()[0].accepts(&value), expected, "{dotted} {value}");
        }
    }

    #[test]
    fn stable_facts_names_alternatives_when_path_is_unstable() {
        assert_eq!(
            stable_facts(&path("memory.free_bytes")).unwrap_err().to_string(),
            "`facts.memory.free_bytes` is not a stable fact; stable are memory.total_bytes"
        );
        let error = stable_facts(&path("uptime")).unwrap_err();
        assert_eq!(error.candidates.len(), STABLE_FACTS.len());
        // A path below a fact reads nothing.
        assert!(stable_facts(&path("cpu.count.x")).is_err());
    }
}
