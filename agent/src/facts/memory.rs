//! Memory: `/proc/meminfo`. The total is stable, and the free amount is volatile.

use super::HostFacts;
use super::source::{HostRoot, table_value};

/// Adds the facts `memory.*` and `swap.*`.
pub(super) fn add_facts(root: &HostRoot, facts: &mut HostFacts) {
    let meminfo = root.text("/proc/meminfo").unwrap_or_default();
    facts.add_number("memory.total_bytes", read_bytes(&meminfo, "MemTotal"));
    facts.add_number("swap.total_bytes", read_bytes(&meminfo, "SwapTotal"));
    facts.add_volatile_number("memory.available_bytes", read_bytes(&meminfo, "MemAvailable"));
    facts.add_volatile_number("swap.free_bytes", read_bytes(&meminfo, "SwapFree"));
}

/// Returns the amount of a key in `/proc/meminfo`, in bytes. The file contains it in kB.
fn read_bytes(meminfo: &str, key: &str) -> Option<u64> {
    table_value(meminfo, key)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result is `None` for an amount that is missing, has no unit, is negative, or exceeds 64 bits in bytes.
    #[test]
    fn read_bytes_converts_kilobytes() {
        let info = "MemTotal:       16314808 kB\nMemFree:  1 kB\nSwapTotal:             0 kB\nHugePages_Total:       0\n";
        for (text, key, expected) in [
            (info, "MemTotal", Some(16_706_363_392)),
            (info, "SwapTotal", Some(0)),
            (info, "MemAvailable", None),
            (info, "HugePages_Total", None),
            ("MemTotal: 99999999999999999999 kB", "MemTotal", None),
            ("MemTotal: 18446744073709551615 kB", "MemTotal", None),
            ("MemTotal: -1 kB", "MemTotal", None),
            ("", "MemTotal", None),
        ] {
            assert_eq!(read_bytes(text, key), expected, "{text} {key}");
        }
    }
}
