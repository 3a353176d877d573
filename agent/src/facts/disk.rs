//! Disks: `/sys/block`.
//!
//! A disk is a block device that is backed by hardware, real or virtual. Loop devices, RAM disks, device mapper, md and
//! network block devices are omitted, because they appear and disappear with what is mounted. Removable media are
//! omitted for the same reason. A container has no disk facts: it sees the disks of the machine that it runs on.

use super::source::HostRoot;
use super::{HostFacts, clean_text};

/// Maximum number of disks that are reported. A finding says how many are omitted.
const MAX_DISKS: usize = 128;
/// The unit in which the kernel reports sizes, whatever the sector size of the disk is.
const SECTOR_BYTES: u64 = 512;

/// A block device in `/sys/block`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockDevice {
    name: String,
    has_device: bool,
    is_removable: bool,
    is_hidden: bool,
    sectors: u64,
    model: Option<String>,
    rotational: Option<bool>,
}

/// Reads the block devices that are reported. In a virtual machine, "rotates" counts as unknown, because the kernel
/// assumes it if the hypervisor reports nothing. "Does not rotate" is kept, because only the hypervisor reports it.
pub(super) fn read(root: &HostRoot, is_virtual: bool) -> Vec<BlockDevice> {
    let devices = root.names("/sys/block").into_iter().map(|name| read_device(root, name));
    let mut disks: Vec<BlockDevice> = devices.filter(BlockDevice::is_reported).collect();
    if is_virtual {
        for disk in &mut disks {
            disk.rotational = disk.rotational.filter(|spins| !spins);
        }
    }
    disks
}

/// Adds the facts `disks.*`.
pub(super) fn add_facts(disks: &[BlockDevice], facts: &mut HostFacts) {
    for disk in disks.iter().take(MAX_DISKS) {
        facts.add_text(&format!("disks.{}.model", disk.name), disk.model.as_deref());
        facts.add_boolean(&format!("disks.{}.rotational", disk.name), disk.rotational);
        facts.add_number(&format!("disks.{}.size_bytes", disk.name), disk.sectors.checked_mul(SECTOR_BYTES));
    }
    facts.add_limit_finding("disks", disks.len().saturating_sub(MAX_DISKS), MAX_DISKS);
}

impl BlockDevice {
    /// Returns whether the disk rotates, if that is known.
    pub(super) fn rotational(&self) -> Option<bool> {
        self.rotational
    }

    /// Returns whether the device is a disk in the sense of this module.
    fn is_reported(&self) -> bool {
        self.has_device && !self.is_removable && !self.is_hidden && self.sectors > 0 && is_key(&self.name)
    }
}

/// Returns whether a name can be one key of a dotted path. The boot partitions of an eMMC are not disks of their own.
fn is_key(name: &str) -> bool {
    let is_part_of_mmc = name.starts_with("mmcblk") && (name.contains("boot") || name.ends_with("rpmb"));
    super::is_key(name) && !is_part_of_mmc
}

/// Reads one block device from `/sys/block`.
fn read_device(root: &HostRoot, name: String) -> BlockDevice {
    let at = |file: &str| format!("/sys/block/{name}/{file}");
    let flag = |file: &str| root.number(&at(file)).map(|flag| flag != 0);
    let model = root.line(&at("device/model")).or_else(|| root.line(&at("device/name")));
    BlockDevice {
        has_device: root.exists(&at("device")),
        is_removable: flag("removable").unwrap_or(false),
        is_hidden: flag("hidden").unwrap_or(false),
        sectors: root.number(&at("size")).unwrap_or(0),
        model: model.and_then(|model| clean_text(&model)),
        rotational: flag("queue/rotational"),
        name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_reported_requires_fixed_disk_with_device() {
        let sda = BlockDevice { name: "sda".into(), has_device: true, sectors: 8, ..BlockDevice::default() };
        assert!(sda.is_reported());
        for other in [
            BlockDevice { has_device: false, ..sda.clone() },
            BlockDevice { is_removable: true, ..sda.clone() },
            BlockDevice { is_hidden: true, ..sda.clone() },
            BlockDevice { sectors: 0, ..sda.clone() },
            BlockDevice { name: "mmcblk0boot1".into(), ..sda.clone() },
            BlockDevice { name: "a.b".into(), ..sda.clone() },
        ] {
            assert!(!other.is_reported(), "{other:?}");
        }
    }

    #[test]
    fn add_facts_reports_finding_when_over_limit() {
        let disk = |number: usize| BlockDevice { name: format!("sd{number:04}"), sectors: u64::MAX, ..BlockDevice::default() };
        let mut seen = HostFacts::default();
        add_facts(&(0..130).map(disk).collect::<Vec<_>>(), &mut seen);
        assert_eq!(seen.findings, ["2 disks are omitted from the facts: at most 128 are reported, the first in order"]);
        assert!(seen.stable.is_empty(), "a size that no number holds is absent");
    }
}
