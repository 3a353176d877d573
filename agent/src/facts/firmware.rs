//! Firmware and related hardware: UEFI or BIOS, secure boot, the TPM.

use super::HostFacts;
use super::source::HostRoot;

/// The file of the EFI variable for secure boot. It contains four bytes of attributes, and then one byte with the
/// value.
const SECURE_BOOT: &str = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// The properties of the firmware and the TPM. The agent reports `kind` as a fact, and detects traits from all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Firmware {
    /// Kind of firmware: `uefi` or `bios`. `None` if it is unknown.
    pub(super) kind: Option<&'static str>,
    /// True if secure boot is on: the firmware starts only signed systems.
    pub(super) has_secure_boot: bool,
    /// Major version of the TPM specification: 1 or 2. `None` without a TPM, or if the kernel does not report it.
    pub(super) tpm_version: Option<u64>,
    /// Name of the TPM's driver, for example `tpm_crb` or `tpm_tis`.
    pub(super) tpm_driver: Option<String>,
}

/// Reads the properties of the firmware and the TPM from `/sys`.
///
/// An x86 machine without UEFI has a BIOS if DMI tables exist, because every BIOS provides DMI tables. Small virtual
/// machines have neither UEFI nor DMI tables, and most containers see neither. Their firmware is unknown.
pub(super) fn read(root: &HostRoot, architecture: &str) -> Firmware {
    let is_x86 = matches!(architecture, "x86_64" | "i686");
    let kind = if root.exists("/sys/firmware/efi") {
        Some("uefi")
    } else {
        (is_x86 && root.exists("/sys/firmware/dmi")).then_some("bios")
    };
    let driver = root.read_link("/sys/class/tpm/tpm0/device/driver");
    Firmware {
        kind,
        // The file contains four bytes of attributes, and then the value: 1 if secure boot is on.
        has_secure_boot: root.bytes(SECURE_BOOT).is_some_and(|bytes| bytes.len() == 5 && bytes[4] == 1),
        tpm_version: root.number("/sys/class/tpm/tpm0/tpm_version_major"),
        tpm_driver: driver.and_then(|link| Some(link.rsplit_once('/')?.1.to_owned())),
    }
}

impl Firmware {
    /// Adds the fact `firmware`.
    pub(super) fn add_facts(&self, facts: &mut HostFacts) {
        facts.add_name("firmware", self.kind);
    }
}
