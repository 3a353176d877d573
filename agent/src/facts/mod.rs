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
/// Maximum number in a fact. All JSON parsers read integers up to this value exactly.
const MAX_NUMBER: u64 = 1 << 53;

/// The collected facts and traits of a host. The value of a fact is canonical JSON text. Its key is a path of names
/// with dots, such as `cpu.count`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// The facts that do not change by themselves, so tasks may read them. Each is in the registry `STABLE_FACTS`.
    pub stable: BTreeMap<String, String>,
    /// The facts that change by themselves, such as the load. Tasks cannot read them.
    pub volatile: BTreeMap<String, String>,
    /// Standard names of the detected traits: sorted, at most fifty.
    pub traits: Vec<String>,
    /// Sentences about disks, interfaces, addresses or traits that were omitted because there were too many.
    pub findings: Vec<String>,
}

/// Values that come from the kernel and the processor, not from files. Tests pass their own values.
struct KernelFacts {
    /// The names that the system call `uname` returns.
    uname: Uname,
    /// The IPv4 addresses of all interfaces.
    ipv4: Vec<InterfaceAddress>,
    /// The address from which this host sends on its default route. `None` if it is unknown.
    source: Option<IpAddr>,
    /// A function that reads the twelve letters of the hypervisor's name with the instruction CPUID.
    signature: fn() -> [u8; 12],
}

/// Collects the facts and traits of this host. This reads files, which blocks the thread for some milliseconds.
pub fn observe() -> HostFacts {
    let kernel = KernelFacts {
        uname: os::read_uname(),
        ipv4: network::read_ipv4(),
        source: network::default_source(),
        signature: virtualization::read_signature,
    };
    collect(&HostRoot::new("/"), &kernel)
}

/// Collects the facts and traits of the host whose files are below `root`. A container gets no facts about disks and
/// DMI, because these are properties of the machine that it runs on.
fn collect(root: &HostRoot, kernel: &KernelFacts) -> HostFacts {
    let architecture = &*kernel.uname.machine;
    let cpu = cpu::read(root);
    let dmi = dmi::read(root);
    let virtualization = virtualization::read(root, architecture, &cpu, &dmi, kernel.signature);
    let is_container = matches!(virtualization, Virtualization::Container(_));
    let firmware = firmware::read(root, architecture);
    let network = network::read(root, &kernel.ipv4, kernel.source);
    // The second argument is true if the host is a virtual machine.
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

    /// Adds a stable fact with a text, if there is one.
    fn add_text(&mut self, path: &str, text: Option<&str>) {
        self.add_value(path, text.map(Value::from));
    }

    /// Adds a stable fact whose values the registry `STABLE_FACTS` restricts, for example to a list of names. Omits a
    /// value that the registry does not accept.
    fn add_name(&mut self, path: &str, name: Option<&str>) {
        let fact = stemma_core::input::facts::STABLE_FACTS.iter().find(|fact| fact.path == path);
        let is_accepted = |name: &Value| fact.is_some_and(|fact| fact.accepts(name));
        self.add_value(path, name.map(Value::from).filter(is_accepted));
    }

    /// Adds a stable fact with a number, if there is one. Omits a number above [`MAX_NUMBER`].
    fn add_number(&mut self, path: &str, number: Option<u64>) {
        self.add_value(path, number.filter(|number| *number <= MAX_NUMBER).map(Value::from));
    }

    fn add_boolean(&mut self, path: &str, boolean: Option<bool>) {
        self.add_value(path, boolean.map(Value::from));
    }

    /// Adds a volatile fact with a number, if there is one. Omits a number above [`MAX_NUMBER`].
    fn add_volatile_number(&mut self, path: &str, number: Option<u64>) {
        if let Some(number) = number.filter(|number| *number <= MAX_NUMBER) {
            self.volatile.insert(path.to_owned(), canonical_json(&number.into()));
        }
    }

    /// Adds a volatile fact with a decimal number, if there is one. Omits infinity and NaN, which JSON cannot
    /// represent.
    fn add_volatile_decimal(&mut self, path: &str, decimal: Option<f64>) {
        if let Some(number) = decimal.and_then(Number::from_f64) {
            self.volatile.insert(path.to_owned(), canonical_json(&number.into()));
        }
    }

    /// Adds a finding if `count` items are omitted from the facts because of `limit`. `plural` names the items, for
    /// example `disks`. Does nothing if `count` is zero.
    fn add_limit_finding(&mut self, plural: &str, count: usize, limit: usize) {
        // Traits are in the order of their significance. All other items are sorted.
        let order = if plural == "traits" { "the most significant first" } else { "the first in order" };
        if count > 0 {
            let sentence = format!("{count} {plural} are omitted from the facts: at most {limit} are reported, {order}");
            self.findings.push(sentence);
        }
    }
}

/// Returns a text in the form for a fact: with spaces in place of control characters, trimmed, and truncated to
/// [`MAX_TEXT_CHARS`]. Returns `None` if the result is empty.
fn clean_text(text: &str) -> Option<String> {
    let printable: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let truncated: String = printable.trim().chars().take(MAX_TEXT_CHARS).collect();
    let truncated = truncated.trim_end();
    (!truncated.is_empty()).then(|| truncated.to_owned())
}

/// Returns whether a name from the kernel can be one part of the path of a fact. Such a name contains no dot.
fn is_key(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'@' | b':');
    (1..=64).contains(&name.len()) && name.bytes().all(is_plain)
}
