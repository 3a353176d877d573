//! Firmware and what stands beside it: UEFI or BIOS, secure boot, the TPM.

use super::Seen;
use super::source::Root;

/// The variable that says whether secure boot is on: four bytes of attributes, then one of value.
const SECURE_BOOT: &str = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// What is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Firmware {
    /// `uefi` or `bios`.
    pub(super) kind: Option<&'static str>,
    /// Whether only signed systems are started.
    pub(super) has_secure_boot: bool,
    /// Version of the TPM's standard: 1 or 2.
    pub(super) tpm_version: Option<u64>,
    /// The driver that speaks to it: `tpm_crb`, `tpm_tis`.
    pub(super) tpm_driver: Option<String>,
}

/// Reads it. A machine of x86 that is started by no UEFI is started by a BIOS, if it has the tables that every BIOS
/// leaves; small virtual machines have neither, and containers do not see them.
pub(super) fn read(root: &Root, architecture: &str) -> Firmware {
    let is_x86 = matches!(architecture, "x86_64" | "i686");
    let kind = if root.has("/sys/firmware/efi") {
        Some("uefi")
    } else {
        (is_x86 && root.has("/sys/firmware/dmi")).then_some("bios")
    };
    let driver = root.link("/sys/class/tpm/tpm0/device/driver");
    Firmware {
        kind,
        has_secure_boot: root.bytes(SECURE_BOOT).is_some_and(|bytes| bytes.len() == 5 && bytes[4] == 1),
        tpm_version: root.number("/sys/class/tpm/tpm0/tpm_version_major"),
        tpm_driver: driver.and_then(|link| Some(link.rsplit_once('/')?.1.to_owned())),
    }
}

impl Firmware {
    /// Writes the fact down.
    pub(super) fn say(&self, seen: &mut Seen) {
        seen.name("firmware", self.kind);
    }
}
