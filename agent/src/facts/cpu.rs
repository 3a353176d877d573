//! Processors: `/proc/cpuinfo` for the model, `/sys/devices/system/cpu` for the count.
//!
//! `cpuinfo` is not used for the count, because on a large machine it has a megabyte. Everything else is in its first
//! lines, and only these are read.

use std::collections::BTreeSet;

use super::source::{HostRoot, table_value};
use super::{HostFacts, clean_text};

/// Maximum number of processors that are counted. Linux supports at most 8192.
const MAX_PROCESSORS: u64 = 8192;

/// The properties of the processors. A property that cannot be read is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cpu {
    /// Number of logical processors that are online.
    pub(super) count: Option<u64>,
    /// Number of physical cores, or `None` if the kernel does not list the cores of all processors.
    pub(super) cores: Option<u64>,
    /// Name of the first processor.
    pub(super) model: Option<String>,
    /// Manufacturer: the kernel's text on x86 and s390x (`GenuineIntel`), a name of [`IMPLEMENTERS`] on ARM (`ARM`).
    pub(super) vendor: Option<String>,
    /// Processor features, by the kernel's names (`avx2`).
    pub(super) flags: BTreeSet<String>,
    /// True if a core has more than one logical processor. False also if the cores of some processors are unknown.
    pub(super) has_threads: bool,
}

/// Reads the properties of a host's processors from `/proc/cpuinfo` and `/sys/devices/system/cpu`.
pub(super) fn read(root: &HostRoot) -> Cpu {
    let cpuinfo = root.text("/proc/cpuinfo").unwrap_or_default();
    let online = root.line("/sys/devices/system/cpu/online");
    let siblings = |number: u64| root.line(&format!("/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"));
    let siblings: Vec<Option<String>> =
        online.as_deref().map(parse_cpu_list).unwrap_or_default().into_iter().map(siblings).collect();
    parse(&cpuinfo, &siblings)
}

impl Cpu {
    /// Adds the facts `cpu.*`.
    pub(super) fn add_facts(&self, facts: &mut HostFacts) {
        facts.add_number("cpu.count", self.count);
        facts.add_number("cpu.cores", self.cores);
        facts.add_text("cpu.model", self.model.as_deref());
        facts.add_text("cpu.vendor", self.vendor.as_deref());
    }
}

/// Returns the properties of the processors. `cpuinfo` is the beginning of `/proc/cpuinfo`. `siblings` has one item for
/// each online processor: the list of processors that share its core, or `None` if it is unknown.
///
/// Processors of one core have the same list, so the number of different lists is the number of cores.
fn parse(cpuinfo: &str, siblings: &[Option<String>]) -> Cpu {
    let sibling_lists: BTreeSet<&str> = siblings.iter().flatten().map(String::as_str).collect();
    let has_all_siblings = !siblings.is_empty() && siblings.iter().all(Option::is_some);
    let count = if siblings.is_empty() { count_processors(cpuinfo) } else { siblings.len() as u64 };
    Cpu {
        count: (count > 0).then_some(count),
        cores: has_all_siblings.then_some(sibling_lists.len() as u64),
        model: parse_model(cpuinfo),
        vendor: parse_vendor(cpuinfo),
        flags: parse_flags(cpuinfo),
        has_threads: has_all_siblings && sibling_lists.len() < siblings.len(),
    }
}

/// Returns the number of processors in `/proc/cpuinfo`. Each has a line `processor : 0`, or on s390x a line
/// `processor 0: version = ...`.
fn count_processors(cpuinfo: &str) -> u64 {
    let is_processor = |line: &&str| line.strip_prefix("processor").is_some_and(|rest| rest.starts_with([' ', '\t', ':']));
    cpuinfo.lines().filter(is_processor).count() as u64
}

/// Returns the names of the processor features. The key of their line depends on the architecture.
fn parse_flags(cpuinfo: &str) -> BTreeSet<String> {
    let line = ["flags", "Features", "features"].into_iter().find_map(|key| table_value(cpuinfo, key));
    line.unwrap_or_default().split_ascii_whitespace().map(str::to_owned).collect()
}

/// Returns the model name of the processor. It is the field `model name` on x86 and 32-bit ARM, and the field `cpu` on
/// POWER. On 64-bit ARM, the table [`PARTS`] has the name for the numbers of the manufacturer and the part.
fn parse_model(cpuinfo: &str) -> Option<String> {
    if let Some(name) = table_value(cpuinfo, "model name") {
        return clean_text(name);
    }
    if let Some(name) = table_value(cpuinfo, "cpu") {
        // On POWER, the name is followed by `(` or `,` and other properties.
        return clean_text(name.split(['(', ',']).next().unwrap_or(name));
    }
    let part = parse_hex(table_value(cpuinfo, "CPU part")?)?;
    let name = PARTS.iter().find(|(maker, number, _)| Some(*maker) == parse_implementer(cpuinfo) && *number == part);
    name.map(|(_, _, name)| (*name).to_owned())
}

/// Returns the name of the manufacturer. It is the field `vendor_id` on x86 and s390x. On ARM, the table
/// [`IMPLEMENTERS`] has the name for the manufacturer's number.
fn parse_vendor(cpuinfo: &str) -> Option<String> {
    if let Some(name) = table_value(cpuinfo, "vendor_id") {
        return clean_text(name);
    }
    let maker = parse_implementer(cpuinfo)?;
    IMPLEMENTERS.iter().find(|(number, _)| *number == maker).map(|(_, name)| (*name).to_owned())
}

/// Returns the number of the manufacturer of an ARM processor.
fn parse_implementer(cpuinfo: &str) -> Option<u64> {
    parse_hex(table_value(cpuinfo, "CPU implementer")?)
}

/// Parses a hexadecimal number with the prefix `0x`.
fn parse_hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// Returns the numbers in a list of processors in the kernel's form, such as `0-3,8`. Ignores invalid items, and
/// numbers above [`MAX_PROCESSORS`]. Returns at most [`MAX_PROCESSORS`] numbers.
fn parse_cpu_list(list: &str) -> Vec<u64> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse::<u64>().ok()?.min(MAX_PROCESSORS))
    };
    list.split(',').filter_map(range).flatten().take(usize::try_from(MAX_PROCESSORS).unwrap_or(0)).collect()
}

/// Manufacturers of ARM processors, by their number in the register field `MIDR_EL1.Implementer`.
const IMPLEMENTERS: &[(u64, &str)] = &[
    (0x41, "ARM"),
    (0x42, "Broadcom"),
    (0x43, "Cavium"),
    (0x46, "Fujitsu"),
    (0x48, "HiSilicon"),
    (0x4e, "NVIDIA"),
    (0x50, "APM"),
    (0x51, "Qualcomm"),
    (0x61, "Apple"),
    (0x6d, "Microsoft"),
    (0x70, "Phytium"),
    (0xc0, "Ampere"),
];

/// Names of ARM processors in servers and boards, by the manufacturer's number and the part number
/// (`MIDR_EL1.PartNum`).
const PARTS: &[(u64, u64, &str)] = &[
    (0x41, 0xd03, "Cortex-A53"),
    (0x41, 0xd04, "Cortex-A35"),
    (0x41, 0xd05, "Cortex-A55"),
    (0x41, 0xd07, "Cortex-A57"),
    (0x41, 0xd08, "Cortex-A72"),
    (0x41, 0xd09, "Cortex-A73"),
    (0x41, 0xd0a, "Cortex-A75"),
    (0x41, 0xd0b, "Cortex-A76"),
    (0x41, 0xd0c, "Neoverse-N1"),
    (0x41, 0xd40, "Neoverse-V1"),
    (0x41, 0xd49, "Neoverse-N2"),
    (0x41, 0xd4f, "Neoverse-V2"),
    (0x43, 0x0a1, "ThunderX"),
    (0x43, 0x0af, "ThunderX2"),
    (0x46, 0x001, "A64FX"),
    (0x48, 0xd01, "Kunpeng-920"),
    (0xc0, 0xac3, "Ampere-1"),
    (0xc0, 0xac4, "Ampere-1a"),
];

#[cfg(test)]
mod tests {
    use super::*;

    const XEON: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\
        model name\t: Intel(R) Xeon(R) Gold 6430\nphysical id\t: 0\nsiblings\t: 64\ncore id\t\t: 0\ncpu cores\t: 32\n\
        flags\t\t: fpu vme sse2 ht avx2 avx512f\nbugs\t\t: spectre_v1\n\nprocessor\t: 1\nvendor_id\t: GenuineIntel\n";
    const NEOVERSE: &str = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd evtstrm aes\n\
        CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n\n\
        processor\t: 1\nBogoMIPS\t: 50.00\n";
    const POWER: &str = "processor\t: 0\ncpu\t\t: POWER9 (raw), altivec supported\nclock\t\t: 2400.0MHz\n";
    const MAINFRAME: &str = "vendor_id       : IBM/S390\n# processors    : 2\nfeatures\t: esan3 zarch\n\
        processor 0: version = FF,  identification = 0133E8,  machine = 2964\nprocessor 1: version = FF\n";

    fn siblings(lists: &[&str]) -> Vec<Option<String>> {
        lists.iter().map(|list| (!list.is_empty()).then(|| (*list).to_owned())).collect()
    }

    #[test]
    fn parse_reads_cpuinfo_of_several_vendors() {
        // `lists` has the processors that share a core with each processor, or an empty text if they are unknown.
        for (info, lists, count, cores, model, vendor, has_threads) in [
            (XEON, &["0,32", "1,33", "0,32", "1,33"][..], 4, Some(2), "Intel(R) Xeon(R) Gold 6430", "GenuineIntel", true),
            (XEON, &["0", "1"], 2, Some(2), "Intel(R) Xeon(R) Gold 6430", "GenuineIntel", false),
            (XEON, &["0", ""], 2, None, "Intel(R) Xeon(R) Gold 6430", "GenuineIntel", false),
            (NEOVERSE, &[], 2, None, "Neoverse-N1", "ARM", false),
            (POWER, &["0-3"], 1, Some(1), "POWER9", "", false),
            (MAINFRAME, &[], 2, None, "", "IBM/S390", false),
            ("", &[], 0, None, "", "", false),
            ("processor", &[], 0, None, "", "", false),
            (":\n: :\nmodel name\t:\nCPU part: d0c\nCPU implementer: 0xzz", &[], 0, None, "", "", false),
        ] {
            let cpu = parse(info, &siblings(lists));
            assert_eq!(cpu.count.unwrap_or(0), count, "{info}");
            assert_eq!(cpu.cores, cores, "{info}");
            assert_eq!(cpu.model.as_deref().unwrap_or(""), model, "{info}");
            assert_eq!(cpu.vendor.as_deref().unwrap_or(""), vendor, "{info}");
            assert_eq!(cpu.has_threads, has_threads, "{info}");
        }
        assert_eq!(parse(NEOVERSE, &[]).flags, ["aes", "asimd", "evtstrm", "fp"].map(str::to_owned).into());
    }

    #[test]
    fn parse_cpu_list_expands_ranges() {
        for (list, expected) in
            [("0", vec![0]), ("0-3,8", vec![0, 1, 2, 3, 8]), ("", vec![]), ("x,1-y,7", vec![7]), ("3-1", vec![])]
        {
            assert_eq!(parse_cpu_list(list), expected, "{list}");
        }
        assert_eq!(parse_cpu_list("0-18446744073709551615").len(), 8192);
    }
}
