//! Memory: `/proc/meminfo`. How much there is, is stable; how much is free, passes.

use super::Seen;
use super::source::{Root, value};

/// Writes the facts down.
pub(super) fn say(root: &Root, seen: &mut Seen) {
    let info = root.text("/proc/meminfo").unwrap_or_default();
    seen.number("memory.total_bytes", bytes(&info, "MemTotal"));
    seen.number("swap.total_bytes", bytes(&info, "SwapTotal"));
    seen.passing_number("memory.available_bytes", bytes(&info, "MemAvailable"));
    seen.passing_number("swap.free_bytes", bytes(&info, "SwapFree"));
}

fn bytes(info: &str, key: &str) -> Option<u64> {
    value(info, key)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kilobytes_become_bytes() {
        let info =
            "MemTotal:       16314808 kB\nMemFree:  1 kB\nSwapTotal:             0 kB\nHugePages_Total:       0\n";
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
            assert_eq!(bytes(text, key), expected, "{text} {key}");
        }
    }
}
