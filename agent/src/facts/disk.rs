//! Disks: `/sys/block`.
//!
//! A disk is a block device with hardware (or a hypervisor's) behind it. Loop devices, RAM disks, device mapper, md
//! and network block devices have none; they come and go with what is mounted, and so do removable media. A
//! container sees the disks of the machine that it runs on; they are not its own, and left out.

use super::source::Root;
use super::{Seen, clean};

/// The most disks that are facts; a finding says how many are left out.
const MAX_DISKS: usize = 128;
/// The kernel counts in these, whatever the disk's own sector is.
const SECTOR_BYTES: u64 = 512;

/// A block device as `/sys/block` tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Disk {
    name: String,
    has_device: bool,
    is_removable: bool,
    is_hidden: bool,
    sectors: u64,
    model: Option<String>,
    rotational: Option<bool>,
}

/// Reads all block devices, and keeps those that are facts. In a virtual machine "it spins" is what the kernel
/// takes for granted where the hypervisor says nothing; then it is not known. "It does not" was said by somebody.
pub(super) fn read(root: &Root, is_virtual: bool) -> Vec<Disk> {
    let devices = root.names("/sys/block").into_iter().map(|name| device(root, name));
    let mut disks: Vec<Disk> = devices.filter(Disk::is_fact).collect();
    if is_virtual {
        for disk in &mut disks {
            disk.rotational = disk.rotational.filter(|spins| !spins);
        }
    }
    disks
}

/// Writes the facts down.
pub(super) fn say(disks: &[Disk], seen: &mut Seen) {
    for disk in disks.iter().take(MAX_DISKS) {
        seen.text(&format!("disks.{}.model", disk.name), disk.model.as_deref());
        seen.boolean(&format!("disks.{}.rotational", disk.name), disk.rotational);
        seen.number(&format!("disks.{}.size_bytes", disk.name), disk.sectors.checked_mul(SECTOR_BYTES));
    }
    seen.left_out("disks", disks.len().saturating_sub(MAX_DISKS), MAX_DISKS);
}

impl Disk {
    /// Whether it is known to spin, or known not to.
    pub(super) fn rotational(&self) -> Option<bool> {
        self.rotational
    }

    fn is_fact(&self) -> bool {
        self.has_device && !self.is_removable && !self.is_hidden && self.sectors > 0 && is_key(&self.name)
    }
}

/// A name that can be one key of a dotted path; the boot partitions of an eMMC are no disks of their own.
fn is_key(name: &str) -> bool {
    let is_part_of_mmc = name.starts_with("mmcblk") && (name.contains("boot") || name.ends_with("rpmb"));
    super::is_key(name) && !is_part_of_mmc
}

fn device(root: &Root, name: String) -> Disk {
    let at = |file: &str| format!("/sys/block/{name}/{file}");
    let flag = |file: &str| root.number(&at(file)).map(|flag| flag != 0);
    let model = root.line(&at("device/model")).or_else(|| root.line(&at("device/name")));
    Disk {
        has_device: root.has(&at("device")),
        is_removable: flag("removable").unwrap_or(false),
        is_hidden: flag("hidden").unwrap_or(false),
        sectors: root.number(&at("size")).unwrap_or(0),
        model: model.and_then(|model| clean(&model)),
        rotational: flag("queue/rotational"),
        name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_something_behind_it_and_stays() {
        let sda = Disk { name: "sda".into(), has_device: true, sectors: 8, ..Disk::default() };
        assert!(sda.is_fact());
        for other in [
            Disk { has_device: false, ..sda.clone() },
            Disk { is_removable: true, ..sda.clone() },
            Disk { is_hidden: true, ..sda.clone() },
            Disk { sectors: 0, ..sda.clone() },
            Disk { name: "mmcblk0boot1".into(), ..sda.clone() },
            Disk { name: "a.b".into(), ..sda.clone() },
        ] {
            assert!(!other.is_fact(), "{other:?}");
        }
    }

    #[test]
    fn more_disks_than_are_facts_are_a_finding() {
        let disk = |number: usize| Disk { name: format!("sd{number:04}"), sectors: u64::MAX, ..Disk::default() };
        let mut seen = Seen::default();
        say(&(0..130).map(disk).collect::<Vec<_>>(), &mut seen);
        assert_eq!(seen.findings, ["2 disks are left out of the facts: at most 128 are reported, the first in order"]);
        assert!(seen.stable.is_empty(), "a size that no number holds is absent");
    }
}
