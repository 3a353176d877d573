//! Facts and traits of this host, read from `/proc`, `/sys` and `/etc`. Each source has one file.
//!
//! There are two kinds. **Stable** facts ([`STABLE_FACTS`]) may be read by tasks, and a change of one changes what
//! runs. So none of them changes by itself, and a value that is not certain is absent. **Volatile** facts are reported
//! and never read by tasks.
//!
//! Nothing is cached between two collections, no program is started, and no file makes a collection fail. docs/facts.md
//! lists all facts.
//!
//! [`STABLE_FACTS`]: stemma_core::input::facts::STABLE_FACTS

mod cpu;
mod detection;
mod disk;
mod dmi;
mod firmware;
mod memory;
mod network;
mod os;
mod source;
mod virtualization;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Number, Value};
use stemma_core::digest::canonical_json;

use detection::DetectionInputs;
use network::InterfaceAddress;
use os::Uname;
use source::HostRoot;
use virtualization::Virtualization;

/// Maximum length of a text fact, in characters.
const MAX_TEXT_CHARS: usize = 256;
/// The largest integer that all JSON readers parse exactly.
const MAX_NUMBER: u64 = 1 << 53;

/// The collected facts of a host. Each is canonical JSON text, by its dotted path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// The stable facts that this host has. All of them are in the registry of the core crate (`STABLE_FACTS`).
    pub stable: BTreeMap<String, String>,
    /// Facts that change by themselves.
    pub volatile: BTreeMap<String, String>,
    /// Standard names of the detected traits: sorted, at most fifty.
    pub traits: Vec<String>,
    /// Sentences about what was omitted, and why.
    pub findings: Vec<String>,
}

/// Values that come from the kernel, not from a file. Tests pass their own.
struct KernelFacts {
    uname: Uname,
    ipv4: Vec<InterfaceAddress>,
    source: Option<IpAddr>,
    signature: fn() -> [u8; 12],
}

/// Collects the facts of this host. This reads files for some milliseconds and blocks.
pub fn observe() -> HostFacts {
    let kernel = KernelFacts {
        uname: os::read_uname(),
        ipv4: network::read_ipv4(),
        source: network::default_source(),
        signature: virtualization::read_signature,
    };
    collect(&HostRoot::new("/"), &kernel)
}

/// Returns the kernel's id of this boot, or zeros if it cannot be read.
pub fn boot_id() -> [u8; 16] {
    parse_boot_id(&HostRoot::new("/").line("/proc/sys/kernel/random/boot_id").unwrap_or_default())
}

fn parse_boot_id(text: &str) -> [u8; 16] {
    uuid::Uuid::try_parse(text).map_or([0; 16], uuid::Uuid::into_bytes)
}

/// Collects the facts and traits of the host below a root. A container gets no facts about disks and DMI.
fn collect(root: &HostRoot, kernel: &KernelFacts) -> HostFacts {
    let architecture = &*kernel.uname.machine;
    let cpu = cpu::read(root);
    let dmi = dmi::read(root);
    let virtualization = virtualization::read(root, architecture, &cpu, &dmi, kernel.signature);
    let is_container = matches!(virtualization, Virtualization::Container(_));
    let firmware = firmware::read(root, architecture);
    let network = network::read(root, &kernel.ipv4, kernel.source);
    let disks = if is_container { Vec::new() } else { disk::read(root, matches!(virtualization, Virtualization::Machine(_))) };

    let mut facts = HostFacts::default();
    cpu.add_facts(&mut facts);
    memory::add_facts(root, &mut facts);
    disk::add_facts(&disks, &mut facts);
    if !is_container {
        dmi.add_facts(&mut facts);
    }
    firmware.add_facts(&mut facts);
    os::add_facts(root, &kernel.uname, &mut facts);
    os::add_volatile_facts(root, &mut facts);
    network.add_facts(&mut facts);
    virtualization.add_facts(&mut facts);
    let inputs = DetectionInputs { architecture, cpu: &cpu, firmware: &firmware, network: &network, disks: &disks };
    detection::add_traits(&inputs, &mut facts);
    facts
}

impl HostFacts {
    /// Adds a stable fact, if there is a value.
    fn add_value(&mut self, path: &str, value: Option<Value>) {
        if let Some(value) = value {
            self.stable.insert(path.to_owned(), canonical_json(&value));
        }
    }

    fn add_text(&mut self, path: &str, text: Option<&str>) {
        self.add_value(path, text.map(Value::from));
    }

    /// Adds a fact whose values the registry restricts (a fixed list, or a host name). A value that the registry does
    /// not accept is omitted.
    fn add_name(&mut self, path: &str, name: Option<&str>) {
        let fact = stemma_core::input::facts::STABLE_FACTS.iter().find(|fact| fact.path == path);
        let is_admitted = |name: &Value| fact.is_some_and(|fact| fact.accepts(name));
        self.add_value(path, name.map(Value::from).filter(is_admitted));
    }

    fn add_number(&mut self, path: &str, number: Option<u64>) {
        self.add_value(path, number.filter(|number| *number <= MAX_NUMBER).map(Value::from));
    }

    fn add_boolean(&mut self, path: &str, boolean: Option<bool>) {
        self.add_value(path, boolean.map(Value::from));
    }

    fn add_volatile_number(&mut self, path: &str, number: Option<u64>) {
        if let Some(number) = number.filter(|number| *number <= MAX_NUMBER) {
            self.volatile.insert(path.to_owned(), canonical_json(&number.into()));
        }
    }

    fn add_volatile_decimal(&mut self, path: &str, decimal: Option<f64>) {
        if let Some(number) = decimal.and_then(Number::from_f64) {
            self.volatile.insert(path.to_owned(), canonical_json(&number.into()));
        }
    }

    /// Adds a finding if `count` of something are omitted because of a limit.
    fn add_limit_finding(&mut self, what: &str, count: usize, limit: usize) {
        let order = if what == "traits" { "the most significant first" } else { "the first in order" };
        if count > 0 {
            let sentence = format!("{count} {what} are omitted from the facts: at most {limit} are reported, {order}");
            self.findings.push(sentence);
        }
    }
}

/// Cleans free text for a fact: replaces control characters by spaces, trims it, and truncates it to
/// [`MAX_TEXT_CHARS`]. `None` if nothing is left.
fn clean_text(text: &str) -> Option<String> {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let cut: String = plain.trim().chars().take(MAX_TEXT_CHARS).collect();
    let cut = cut.trim_end();
    (!cut.is_empty()).then(|| cut.to_owned())
}

/// Returns whether a name from the kernel can be one key of a dotted path.
fn is_key(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'@' | b':');
    (1..=64).contains(&name.len()) && name.bytes().all(is_plain)
}
