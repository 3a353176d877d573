//! Processors: `/proc/cpuinfo` for what the first one is, `/sys/devices/system/cpu` for how many there are.
//!
//! The count is not taken from `cpuinfo`: on a large machine that is a megabyte, and the first lines say the rest.

use std::collections::BTreeSet;

use super::source::{Root, value};
use super::{Seen, clean};

/// The most processors that are counted; Linux is built for 8192 at most.
const MAX_PROCESSORS: u64 = 8192;

/// What is known of the processors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cpu {
    /// Logical processors that are in use.
    pub(super) count: Option<u64>,
    /// Physical cores.
    pub(super) cores: Option<u64>,
    /// Name of the first processor.
    pub(super) model: Option<String>,
    /// Who made it.
    pub(super) vendor: Option<String>,
    /// What it can do, in the kernel's words.
    pub(super) flags: BTreeSet<String>,
    /// Whether a core is more than one logical processor.
    pub(super) has_threads: bool,
}

/// Reads them.
pub(super) fn read(root: &Root) -> Cpu {
    let info = root.text("/proc/cpuinfo").unwrap_or_default();
    let online = root.line("/sys/devices/system/cpu/online");
    let siblings =
        |number: u64| root.line(&format!("/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"));
    let siblings: Vec<Option<String>> =
        online.as_deref().map(numbers).unwrap_or_default().into_iter().map(siblings).collect();
    parse(&info, &siblings)
}

impl Cpu {
    /// Writes the facts down.
    pub(super) fn say(&self, seen: &mut Seen) {
        seen.number("cpu.count", self.count);
        seen.number("cpu.cores", self.cores);
        seen.text("cpu.model", self.model.as_deref());
        seen.text("cpu.vendor", self.vendor.as_deref());
    }
}

/// From `cpuinfo` (its beginning at least) and, for each processor in use, the list of those that share its core.
fn parse(info: &str, siblings: &[Option<String>]) -> Cpu {
    let cores: BTreeSet<&str> = siblings.iter().flatten().map(String::as_str).collect();
    let is_known = !siblings.is_empty() && siblings.iter().all(Option::is_some);
    let count = if siblings.is_empty() { listed(info) } else { siblings.len() as u64 };
    Cpu {
        count: (count > 0).then_some(count),
        cores: is_known.then_some(cores.len() as u64),
        model: model(info),
        vendor: vendor(info),
        flags: flags(info),
        has_threads: is_known && cores.len() < siblings.len(),
    }
}

/// Processors by the lines of `cpuinfo`: `processor : 0`, or on s390x `processor 0: version = …`.
fn listed(info: &str) -> u64 {
    let is_processor =
        |line: &&str| line.strip_prefix("processor").is_some_and(|rest| rest.starts_with([' ', '\t', ':']));
    info.lines().filter(is_processor).count() as u64
}

fn flags(info: &str) -> BTreeSet<String> {
    let line = ["flags", "Features", "features"].into_iter().find_map(|key| value(info, key));
    line.unwrap_or_default().split_ascii_whitespace().map(str::to_owned).collect()
}

/// x86 and 32-bit ARM write a name, POWER its processor, 64-bit ARM two numbers.
fn model(info: &str) -> Option<String> {
    if let Some(name) = value(info, "model name") {
        return clean(name);
    }
    if let Some(name) = value(info, "cpu") {
        return clean(name.split(['(', ',']).next().unwrap_or(name));
    }
    let part = hex(value(info, "CPU part")?)?;
    let name = PARTS.iter().find(|(maker, number, _)| Some(*maker) == implementer(info) && *number == part);
    name.map(|(_, _, name)| (*name).to_owned())
}

fn vendor(info: &str) -> Option<String> {
    if let Some(name) = value(info, "vendor_id") {
        return clean(name);
    }
    let maker = implementer(info)?;
    IMPLEMENTERS.iter().find(|(number, _)| *number == maker).map(|(_, name)| (*name).to_owned())
}

fn implementer(info: &str) -> Option<u64> {
    hex(value(info, "CPU implementer")?)
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// The numbers of a list as the kernel writes it: `0-3,8`. What is no list counts for nothing.
fn numbers(list: &str) -> Vec<u64> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse::<u64>().ok()?.min(MAX_PROCESSORS))
    };
    list.split(',').filter_map(range).flatten().take(usize::try_from(MAX_PROCESSORS).unwrap_or(0)).collect()
}

/// Who makes ARM processors (`MIDR_EL1.Implementer`).
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

/// Names of the ARM processors that servers and boards have (`MIDR_EL1.PartNum`).
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
    fn processors_of_many_makers() {
        for (info, lists, count, cores, model, vendor, threads) in [
            (
                XEON,
                &["0,32", "1,33", "0,32", "1,33"][..],
                4,
                Some(2),
                "Intel(R) Xeon(R) Gold 6430",
                "GenuineIntel",
                true,
            ),
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
            assert_eq!(cpu.has_threads, threads, "{info}");
        }
        assert_eq!(parse(NEOVERSE, &[]).flags, ["aes", "asimd", "evtstrm", "fp"].map(str::to_owned).into());
    }

    #[test]
    fn a_list_of_the_kernel_becomes_numbers() {
        for (list, expected) in
            [("0", vec![0]), ("0-3,8", vec![0, 1, 2, 3, 8]), ("", vec![]), ("x,1-y,7", vec![7]), ("3-1", vec![])]
        {
            assert_eq!(numbers(list), expected, "{list}");
        }
        assert_eq!(numbers("0-18446744073709551615").len(), 8192);
    }
}
