//! What this host is: facts and traits, read from `/proc`, `/sys` and `/etc`, one file a source.
//!
//! Two kinds are kept apart. **Stable** facts ([`STABLE`]) may be read by tasks, and a change of one changes
//! what runs; so nothing is among them that changes by itself, and what cannot be told for sure is absent. The
//! others **pass**: they are reported and never read.
//!
//! Nothing is kept between two looks, no program is started, and no file makes a look fail. docs/facts.md lists it
//! all.
//!
//! [`STABLE`]: stemma_core::input::facts::STABLE

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

use detection::Detected;
use network::Addressed;
use os::Uname;
use source::Root;
use virtualization::Virtualization;

/// The longest text of a fact, in characters.
const MAX_TEXT: usize = 256;
/// The largest number that all readers of JSON read alike.
const MAX_NUMBER: u64 = 1 << 53;

/// What was seen of a host. Each fact is canonical JSON text, by its dotted path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The facts of core's registry that this host has, and no others.
    pub stable: BTreeMap<String, String>,
    /// Facts that change by themselves.
    pub passing: BTreeMap<String, String>,
    /// Standard names of what was detected: sorted, at most fifty.
    pub traits: Vec<String>,
    /// What was left out, and why, in sentences.
    pub findings: Vec<String>,
}

/// What is asked of the kernel and not read from a file.
struct Asked {
    uname: Uname,
    ipv4: Vec<Addressed>,
    source: Option<IpAddr>,
    signature: fn() -> [u8; 12],
}

/// Looks at this host. Some milliseconds of reading; call it where waiting does not matter.
pub fn observe() -> Seen {
    let asked = Asked {
        uname: os::uname(),
        ipv4: network::ipv4(),
        source: network::source(),
        signature: virtualization::signature,
    };
    look(&Root::new("/"), &asked)
}

/// The kernel's id of this boot; zeros when it cannot be read.
pub fn boot_id() -> [u8; 16] {
    parse_boot_id(&Root::new("/").line("/proc/sys/kernel/random/boot_id").unwrap_or_default())
}

fn parse_boot_id(text: &str) -> [u8; 16] {
    uuid::Uuid::try_parse(text).map_or([0; 16], uuid::Uuid::into_bytes)
}

fn look(root: &Root, asked: &Asked) -> Seen {
    let architecture = &*asked.uname.machine;
    let cpu = cpu::read(root);
    let dmi = dmi::read(root);
    let virtualization = virtualization::read(root, architecture, &cpu, &dmi, asked.signature);
    let is_container = matches!(virtualization, Virtualization::Container(_));
    let firmware = firmware::read(root, architecture);
    let network = network::read(root, &asked.ipv4, asked.source);
    let disks =
        if is_container { Vec::new() } else { disk::read(root, matches!(virtualization, Virtualization::Machine(_))) };

    let mut seen = Seen::default();
    cpu.say(&mut seen);
    memory::say(root, &mut seen);
    disk::say(&disks, &mut seen);
    if !is_container {
        dmi.say(&mut seen);
    }
    firmware.say(&mut seen);
    os::say(root, &asked.uname, &mut seen);
    os::say_passing(root, &mut seen);
    network.say(&mut seen);
    virtualization.say(&mut seen);
    let found = Detected { architecture, cpu: &cpu, firmware: &firmware, network: &network, disks: &disks };
    detection::say(&found, &mut seen);
    seen
}

impl Seen {
    /// A stable fact, if there is one.
    fn value(&mut self, path: &str, value: Option<Value>) {
        if let Some(value) = value {
            self.stable.insert(path.to_owned(), canonical_json(&value));
        }
    }

    fn text(&mut self, path: &str, text: Option<&str>) {
        self.value(path, text.map(Value::from));
    }

    /// A name of a fixed list, or a host name: absent where the registry does not admit it.
    fn name(&mut self, path: &str, name: Option<&str>) {
        let fact = stemma_core::input::facts::STABLE.iter().find(|fact| fact.path == path);
        let is_admitted = |name: &Value| fact.is_some_and(|fact| fact.admits(name));
        self.value(path, name.map(Value::from).filter(is_admitted));
    }

    fn number(&mut self, path: &str, number: Option<u64>) {
        self.value(path, number.filter(|number| *number <= MAX_NUMBER).map(Value::from));
    }

    fn boolean(&mut self, path: &str, boolean: Option<bool>) {
        self.value(path, boolean.map(Value::from));
    }

    fn passing_number(&mut self, path: &str, number: Option<u64>) {
        if let Some(number) = number.filter(|number| *number <= MAX_NUMBER) {
            self.passing.insert(path.to_owned(), canonical_json(&number.into()));
        }
    }

    fn passing_decimal(&mut self, path: &str, decimal: Option<f64>) {
        if let Some(number) = decimal.and_then(Number::from_f64) {
            self.passing.insert(path.to_owned(), canonical_json(&number.into()));
        }
    }

    /// A finding for what is beyond a limit.
    fn left_out(&mut self, what: &str, count: usize, limit: usize) {
        let order = if what == "traits" { "the most telling first" } else { "the first in order" };
        if count > 0 {
            let sentence = format!("{count} {what} are left out of the facts: at most {limit} are reported, {order}");
            self.findings.push(sentence);
        }
    }
}

/// Free text as a fact: control characters as spaces, trimmed, cut at [`MAX_TEXT`]; `None` where nothing is left.
fn clean(text: &str) -> Option<String> {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let cut: String = plain.trim().chars().take(MAX_TEXT).collect();
    let cut = cut.trim_end();
    (!cut.is_empty()).then(|| cut.to_owned())
}

/// Whether a name of the kernel's can be one key of a dotted path.
fn is_key(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'@' | b':');
    (1..=64).contains(&name.len()) && name.bytes().all(is_plain)
}
