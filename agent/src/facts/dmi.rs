//! What the firmware says of the machine: `/sys/class/dmi/id`. Serial number and uuid are for root alone.
//!
//! A container sees the tables of the machine that it runs on; they are not its own, and left out.

use super::source::Root;
use super::{Seen, clean};

/// What boards say whose maker said nothing. Compared without case.
const PLACEHOLDERS: &[&str] = &[
    "0",
    "00000000",
    "0123456789",
    "03000200-0400-0500-0006-000700080009",
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "123456789",
    "base board product name",
    "default string",
    "empty",
    "n/a",
    "na",
    "none",
    "not applicable",
    "not available",
    "not specified",
    "o.e.m.",
    "oem",
    "serial number",
    "system manufacturer",
    "system product name",
    "system serial number",
    "to be filled by o.e.m.",
    "unknown",
    "xxxxxxxx",
];

/// The machine's own words; each absent where there are none.
#[derive(Clone, Debug, Default)]
pub(super) struct Dmi {
    pub(super) board: Option<String>,
    pub(super) product: Option<String>,
    pub(super) vendor: Option<String>,
    pub(super) bios_vendor: Option<String>,
    pub(super) serial: Option<String>,
    pub(super) uuid: Option<String>,
}

/// Reads them.
pub(super) fn read(root: &Root) -> Dmi {
    let said = |name: &str| root.line(&format!("/sys/class/dmi/id/{name}")).and_then(|text| meant(&text));
    Dmi {
        board: said("board_name"),
        product: said("product_name"),
        vendor: said("sys_vendor"),
        bios_vendor: said("bios_vendor"),
        serial: said("product_serial"),
        uuid: said("product_uuid").map(|uuid| uuid.to_ascii_lowercase()),
    }
}

impl Dmi {
    /// Writes the facts down.
    pub(super) fn say(&self, seen: &mut Seen) {
        seen.text("dmi.board", self.board.as_deref());
        seen.text("dmi.product", self.product.as_deref());
        seen.text("dmi.serial", self.serial.as_deref());
        seen.text("dmi.uuid", self.uuid.as_deref());
        seen.text("dmi.vendor", self.vendor.as_deref());
    }
}

fn meant(text: &str) -> Option<String> {
    let text = clean(text)?;
    let lower = text.to_ascii_lowercase();
    (!PLACEHOLDERS.contains(&&*lower)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_makers_silence_is_no_fact() {
        for (text, expected) in [
            ("PowerEdge R750", Some("PowerEdge R750")),
            ("  ProLiant DL360 Gen10  ", Some("ProLiant DL360 Gen10")),
            ("To Be Filled By O.E.M.", None),
            ("Default string", None),
            ("00000000-0000-0000-0000-000000000000", None),
            (" ", None),
            ("\u{1}\u{2}", None),
            ("B\u{7}ad\nboard", Some("B ad board")),
        ] {
            assert_eq!(meant(text).as_deref(), expected, "{text}");
        }
    }
}
