//! Disks: `/sys/block`.
//!
//! A disk is a block device that is backed by hardware, real or virtual. Loop devices, RAM disks, device mapper, md and
//! network block devices are omitted, because they appear and disappear with what is mounted. Removable media are
//! omitted for the same reason. A container has no disk facts: it sees the disks of the machine that it runs on.

use super::source::HostRoot;
use super::{HostFacts, clean_text};

/// Maximum number of disks in the facts. A finding contains the number of omitted disks.
const MAX_DISKS: usize = 128;
/// Unit of the disk sizes in `/sys/block`, in bytes. It does not depend on the sector size of the disk.
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

/// Returns the block devices that are disks of this host.
///
/// If the host is a virtual machine, a disk that rotates according to the kernel gets the value unknown. The kernel
/// assumes rotation if the hypervisor reports nothing. A disk that does not rotate is certain, because then the
/// hypervisor reported it.
pub(super) fn read(root: &HostRoot, is_virtual: bool) -> Vec<BlockDevice> {
    let devices = root.names("/sys/block").into_iter().map(|name| read_device(root, name));
    let mut disks: Vec<BlockDevice> = devices.filter(BlockDevice::is_reported).collect();
    if is_virtual {
        for disk in &mut disks {
            disk.rotational = disk.rotational.filter(|rotates| !rotates);
        }
    }
    disks
}

/// Adds the facts `disks.*` of at most [`MAX_DISKS`] disks, and a finding if there are more.
pub(super) fn add_facts(disks: &[BlockDevice], facts: &mut HostFacts) {
    for disk in disks.iter().take(MAX_DISKS) {
        facts.add_text(&format!("disks.{}.model", disk.name), disk.model.as_deref());
        facts.add_boolean(&format!("disks.{}.rotational", disk.name), disk.rotational);
        facts.add_number(&format!("disks.{}.size_bytes", disk.name), disk.sectors.checked_mul(SECTOR_BYTES));
    }
    facts.add_limit_finding("disks", disks.len().saturating_sub(MAX_DISKS), MAX_DISKS);
}

impl BlockDevice {
    /// Returns whether the disk rotates, or `None` if this is unknown.
    pub(super) fn rotational(&self) -> Option<bool> {
        self.rotational
    }

    /// Returns whether the device is reported as a disk: it is backed by hardware, is not removable, not hidden and not
    /// empty, and has the name of a disk ([`is_disk_name`]).
    fn is_reported(&self) -> bool {
        self.has_device && !self.is_removable && !self.is_hidden && self.sectors > 0 && is_disk_name(&self.name)
    }
}

/// Returns whether a device name is that of a whole disk and can be a key in the path of a fact. The boot and RPMB
/// partitions of an eMMC appear in `/sys/block`, but are parts of another disk.
fn is_disk_name(name: &str) -> bool {
    let is_part_of_mmc = name.starts_with("mmcblk") && (name.contains("boot") || name.ends_with("rpmb"));
    super::is_key(name) && !is_part_of_mmc
}

/// Reads the block device with this name from `/sys/block`.
fn read_device(root: &HostRoot, name: String) -> BlockDevice {
    let path_of = |file: &str| format!("/sys/block/{name}/{file}");
    let flag = |file: &str| root.number(&path_of(file)).map(|flag| flag != 0);
    // The model of an eMMC is in the file `name`.
    let model = root.line(&path_of("device/model")).or_else(|| root.line(&path_of("device/name")));
    BlockDevice {
        has_device: root.exists(&path_of("device")),
        is_removable: flag("removable").unwrap_or(false),
        is_hidden: flag("hidden").unwrap_or(false),
        sectors: root.number(&path_of("size")).unwrap_or(0),
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

    /// There are two disks more than the limit. The size of each in bytes exceeds 64 bits, so it is not a fact.
    #[test]
    fn add_facts_reports_finding_when_over_limit() {
        let disk = |number: usize| BlockDevice { name: format!("sd{number:04}"), sectors: u64::MAX, ..BlockDevice::default() };
        let mut facts = HostFacts::default();
        add_facts(&(0..130).map(disk).collect::<Vec<_>>(), &mut facts);
        assert_eq!(facts.findings, ["2 disks are omitted from the facts: at most 128 are reported, the first in order"]);
        assert!(facts.stable.is_empty(), "a size that overflows is not a fact");
    }
}
