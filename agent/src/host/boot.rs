//! The id of the present boot of this host.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use stemma_core::digest::sha256;
use uuid::Uuid;

/// File with the random id that the kernel created at its own boot.
const KERNEL_BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// File with the state of the first process, which shows when that process started.
const FIRST_PROCESS: &str = "/proc/1/stat";
/// File that systemd writes when it boots a container, and not again when it executes itself (`daemon-reexec`).
const SYSTEMD_CONTAINER: &str = "/run/systemd/container";
/// Limit in ticks of 10 ms. The first process of a machine starts within this time after its kernel. That of a container
/// starts later.
const MAX_FIRST_TICKS: u64 = 100;
/// Position of the start time in the state of a process, counted from the first field after the name.
const START_TICKS_FIELD: usize = 19;

/// Returns an id that is different after each boot of this host, or zeros if it cannot be read.
///
/// It is the random id of the kernel. In a container, the kernel does not boot with the host:
///
/// - If systemd has booted the container, the id shows when it did. The id of the kernel is not used, because
///   systemd-nspawn and LXC mount another file over it. A service with `ProtectKernelTunables` does not see this mount, and
///   a command that somebody types does. Both must find the same id.
/// - In another container, the start of the first process is added to the id of the kernel.
#[must_use]
pub fn boot_id() -> [u8; 16] {
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    let container_since = fs::metadata(SYSTEMD_CONTAINER).ok().map(|file| (file.mtime(), file.mtime_nsec()));
    id_of_boot(text(KERNEL_BOOT).trim(), &text(FIRST_PROCESS), container_since)
}

/// As [`boot_id`], from the contents of the two files, and the time in seconds and nanoseconds at which systemd has written
/// [`SYSTEMD_CONTAINER`].
fn id_of_boot(kernel: &str, process: &str, container_since: Option<(i64, i64)>) -> [u8; 16] {
    let ticks = start_ticks(process);
    if let Some((seconds, nanoseconds)) = container_since {
        let start = ticks.unwrap_or_default().to_be_bytes();
        return id_from(&[seconds.to_be_bytes(), nanoseconds.to_be_bytes(), start].concat());
    }
    let Ok(id) = Uuid::try_parse(kernel) else { return [0; 16] };
    match ticks {
        Some(ticks) if ticks > MAX_FIRST_TICKS => id_from(&[id.as_bytes(), &ticks.to_be_bytes()[..]].concat()),
        _ => id.into_bytes(),
    }
}

/// Returns an id that is a digest of these bytes.
fn id_from(bytes: &[u8]) -> [u8; 16] {
    sha256(bytes).first_chunk().copied().unwrap_or_default()
}

/// Returns the start of a process in ticks since the boot of the kernel (`proc_pid_stat(5)`). The name of the process is
/// in brackets, and can contain spaces and brackets.
fn start_ticks(process: &str) -> Option<u64> {
    let (_, fields) = process.rsplit_once(')')?;
    fields.split_whitespace().nth(START_TICKS_FIELD)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = "6f9619ff-8b86-d011-b42d-00c04fc964ff";

    /// A line of `/proc/1/stat` of Linux 6.1, with another name and start.
    fn process(name: &str, ticks: &str) -> String {
        let before = "S 0 1 1 0 -1 4194560 14012 300233 112 1231 38 151 1022 471 20 0 1 0";
        format!("1 ({name}) {before} {ticks} 172249088 3165 18446744073709551615 1 1 0 0 0 0 671173123 4096 1260 0 0 0 17")
    }

    /// The boot id of this host is valid, and two calls of `boot_id` return the same id.
    #[test]
    fn boot_id_returns_zeros_when_malformed() {
        for (text, expected) in
            [(KERNEL, 0x6f96_19ff_8b86_d011_b42d_00c0_4fc9_64ff), ("", 0_u128), ("6f9619ff", 0), ("\u{fffd}", 0)]
        {
            assert_eq!(id_of_boot(text, &process("systemd", "7"), None), expected.to_be_bytes(), "{text}");
        }
        assert_eq!(id_of_boot("", &process("systemd", "100000"), None), [0; 16]);
        assert_ne!(boot_id(), [0; 16]);
        assert_eq!(boot_id(), boot_id());
    }

    /// The first process of a machine starts with its kernel. That of a container starts later, at another time after
    /// each boot of the container.
    #[test]
    fn boot_id_depends_on_first_process_in_container_only() {
        let id = |name, ticks| id_of_boot(KERNEL, &process(name, ticks), None);
        let kernel = id_of_boot(KERNEL, "", None);
        for ticks in ["0", "7", "100", "x"] {
            assert_eq!(id("systemd", ticks), kernel, "{ticks}");
        }
        assert_ne!(id("systemd", "101"), kernel);
        assert_ne!(id("systemd", "5511042"), id("systemd", "5511043"));
        assert_eq!(id("systemd", "5511042"), id("a) (b c", "5511042"));
    }

    /// Regression test: `stemma-agent once` in a container saw another id than the service, and took this for a boot.
    #[test]
    fn boot_id_in_systemd_container_ignores_kernel() {
        let id = |kernel, ticks, since| id_of_boot(kernel, &process("systemd", ticks), Some(since));
        let first = id(KERNEL, "5511042", (1_764_593_391, 274_386_398));
        for kernel in ["9d3b2f38-0c5a-4c0b-9a5e-1f7a5f2f5d11", ""] {
            assert_eq!(id(kernel, "5511042", (1_764_593_391, 274_386_398)), first, "{kernel}");
        }
        assert_ne!(id(KERNEL, "5511042", (1_764_593_391, 274_386_399)), first);
        assert_ne!(id(KERNEL, "5511043", (1_764_593_391, 274_386_398)), first);
        assert_ne!(id_of_boot(KERNEL, &process("systemd", "5511042"), None), first);
    }
}
