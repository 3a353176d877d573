//! What the firmware says of the machine: `/sys/class/dmi/id`. Serial number and uuid are for root alone.
//!
//! A container sees the tables of the machine that it runs on; they are not its own, and left out.

use super::source::Root;
use super::{Seen, clean};

/// What boards say whose maker said nothing: their letters and digits alone, without case.
const PLACEHOLDERS: &[&str] = &[
    "assettag",
    "baseboardassettag",
    "baseboardproductname",
    "baseboardserialnumber",
    "boardname",
    "boardserialnumber",
    "chassisassettag",
    "chassismanufacturer",
    "chassisserialnumber",
    "default",
    "defaultstring",
    "empty",
    "emptystring",
    "fillbyoem",
    "filledbyoem",
    "invalid",
    "manufacturer",
    "na",
    "nil",
    "noassettag",
    "none",
    "noserialnumber",
    "notapplicable",
    "notavailable",
    "notconfigured",
    "notdefined",
    "notpresent",
    "notset",
    "notsettable",
    "notspecified",
    "null",
    "oem",
    "oemdefaultstring",
    "productname",
    "productserialnumber",
    "reserved",
    "serial",
    "serialnumber",
    "sys1234567890",
    "systemmanufacturer",
    "systemname",
    "systemproductname",
    "systemserialnumber",
    "systemversion",
    "tbd",
    "tobedetermined",
    "tobefilled",
    "tobefilledbyoem",
    "unavailable",
    "undefined",
    "unknown",
    "unspecified",
];

/// Numbers that makers leave as uuid on all of their boards, their digits alone.
const PLACEHOLDER_UUIDS: &[&str] = &[
    "00020003000400050006000700080009",
    "0102030405060708090a0b0c0d0e0f10",
    "03000200040005000006000700080009",
    "030201000504070608090a0b0c0d0e0f",
    "12345678123412341234123456789012",
    "123456781234567890abcddeefaabbcc",
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
        uuid: root.line("/sys/class/dmi/id/product_uuid").and_then(|text| uuid(&text)),
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
    let letters = letters_of(&text);
    let is_said = !PLACEHOLDERS.contains(&&*letters) && !is_one_repeated(&letters) && !is_counted(&letters);
    is_said.then_some(text)
}

/// The letters and digits of a text, without case.
fn letters_of(text: &str) -> String {
    text.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Whether there is no letter, or it is one again and again (`0000000000`, `xxxxxxxx`, `...`).
fn is_one_repeated(letters: &str) -> bool {
    let mut all = letters.chars();
    all.next().is_none_or(|first| all.all(|letter| letter == first))
}

/// Whether it is counted out (`0123456789`, `123456`).
fn is_counted(letters: &str) -> bool {
    letters.len() > 3
        && ["01234567890", "1234567890", "0123456789abcdef", "123456789abcdef"]
            .iter()
            .any(|all| all.starts_with(letters))
}

/// A uuid in lower case. What is of another form is none, and neither is one that a maker gave to many boards.
fn uuid(text: &str) -> Option<String> {
    let uuid = uuid::Uuid::try_parse(text.trim()).ok()?;
    let digits = uuid.simple().to_string();
    let is_said = !PLACEHOLDER_UUIDS.contains(&&*digits) && !is_one_repeated(&digits);
    is_said.then(|| uuid.hyphenated().to_string())
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

    #[test]
    fn y09_what_a_maker_left_in_is_no_fact_in_whatever_letters() {
        for text in [
            "Chassis Serial Number",
            "0000000000",
            "INVALID",
            "Not Settable",
            "Not Present",
            "Not Specified",
            "N/A",
            "n.a.",
            "NONE",
            "O.E.M",
            "OEM",
            "To be filled by O.E.M",
            "to_be_filled_by_oem",
            "Default String",
            "System Version",
            "System Serial Number",
            "Base Board Serial Number",
            "SYS-1234567890",
            "1234567890",
            "0123456789",
            "123456",
            "xxxxxxxxxx",
            "XXXX-XXXX",
            "...",
            "---",
            "#",
            "0",
            "-",
            "TBD",
            "Undefined",
            "(none)",
            "<null>",
            "FFFFFFFF",
            "No Asset Tag",
            "Not Available",
        ] {
            assert_eq!(meant(text), None, "{text}");
        }
        for text in [
            "7X06CTO1WW",
            "VMware-56 4d 01 02",
            "PowerEdge R750",
            "X11DPi-N",
            "0PJ80M",
            "Standard PC (Q35 + ICH9, 2009)",
            "12",
            "R1",
        ] {
            assert_eq!(meant(text).as_deref(), Some(text));
        }
    }

    #[test]
    fn y09_a_uuid_is_one_and_this_machines_own() {
        for (text, expected) in [
            ("4C4C4544-0042-3510-8052-B4C04F4E4D32", Some("4c4c4544-0042-3510-8052-b4c04f4e4d32")),
            ("Not Settable", None),
            ("Not Present", None),
            ("00000000-0000-0000-0000-000000000000", None),
            ("FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", None),
            ("11111111-1111-1111-1111-111111111111", None),
            ("03000200-0400-0500-0006-000700080009", None),
            ("00020003-0004-0005-0006-000700080009", None),
            ("12345678-1234-5678-90ab-cddeefaabbcc", None),
            ("4c4c4544-0042-3510-8052", None),
            ("", None),
        ] {
            assert_eq!(uuid(text).as_deref(), expected, "{text}");
        }
    }
}
