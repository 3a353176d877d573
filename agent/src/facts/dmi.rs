//! The machine as its firmware describes it: `/sys/class/dmi/id`. Only root can read the serial number and uuid.
//!
//! A container has no DMI facts: it sees the tables of the machine that it runs on.

use super::source::HostRoot;
use super::{HostFacts, clean_text};

/// Values of boards whose manufacturer set no real value. Each is reduced to letters and digits in lower case.
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

/// Uuids that many boards share, because their manufacturer set no real uuid. Each is reduced to its 32 digits.
const PLACEHOLDER_UUIDS: &[&str] = &[
    "00020003000400050006000700080009",
    "0102030405060708090a0b0c0d0e0f10",
    "03000200040005000006000700080009",
    "030201000504070608090a0b0c0d0e0f",
    "12345678123412341234123456789012",
    "123456781234567890abcddeefaabbcc",
];

/// The values that the firmware stores about the machine (DMI). A value that is missing, unreadable or a placeholder is
/// `None`.
#[derive(Clone, Debug, Default)]
pub(super) struct Dmi {
    pub(super) board: Option<String>,
    pub(super) product: Option<String>,
    pub(super) vendor: Option<String>,
    pub(super) bios_vendor: Option<String>,
    pub(super) serial: Option<String>,
    pub(super) uuid: Option<String>,
}

/// Reads the values that the firmware stores about the machine from `/sys/class/dmi/id`.
pub(super) fn read(root: &HostRoot) -> Dmi {
    let field = |name: &str| root.line(&format!("/sys/class/dmi/id/{name}")).and_then(|text| without_placeholder(&text));
    Dmi {
        board: field("board_name"),
        product: field("product_name"),
        vendor: field("sys_vendor"),
        bios_vendor: field("bios_vendor"),
        serial: field("product_serial"),
        uuid: root.line("/sys/class/dmi/id/product_uuid").and_then(|text| parse_uuid(&text)),
    }
}

impl Dmi {
    /// Adds the facts `dmi.*`.
    pub(super) fn add_facts(&self, facts: &mut HostFacts) {
        facts.add_text("dmi.board", self.board.as_deref());
        facts.add_text("dmi.product", self.product.as_deref());
        facts.add_text("dmi.serial", self.serial.as_deref());
        facts.add_text("dmi.uuid", self.uuid.as_deref());
        facts.add_text("dmi.vendor", self.vendor.as_deref());
    }
}

/// Returns a DMI value with spaces in place of control characters, and without outer spaces. Returns `None` if it is
/// not a real value: its letters and digits are a known placeholder, are missing, repeat one character, or count up.
fn without_placeholder(text: &str) -> Option<String> {
    let text = clean_text(text)?;
    let key = alphanumeric(&text);
    let is_real = !PLACEHOLDERS.contains(&&*key) && !is_repeated_char(&key) && !is_counting_up(&key);
    is_real.then_some(text)
}

/// Returns the letters and digits of a text in lower case.
fn alphanumeric(text: &str) -> String {
    text.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Returns whether a text is empty or repeats one character (`0000000000`, `xxxxxxxx`).
fn is_repeated_char(letters: &str) -> bool {
    let mut chars = letters.chars();
    chars.next().is_none_or(|first| chars.all(|letter| letter == first))
}

/// Returns whether a text has at least four characters and counts up from 0 or 1 (`0123456789`, `123456`).
fn is_counting_up(letters: &str) -> bool {
    letters.len() > 3
        && ["01234567890", "1234567890", "0123456789abcdef", "123456789abcdef"].iter().any(|digits| digits.starts_with(letters))
}

/// Returns a uuid in lower case. Returns `None` if it is not a uuid, is in [`PLACEHOLDER_UUIDS`], or repeats one digit.
fn parse_uuid(text: &str) -> Option<String> {
    let uuid = uuid::Uuid::try_parse(text.trim()).ok()?;
    let digits = uuid.simple().to_string();
    let is_real = !PLACEHOLDER_UUIDS.contains(&&*digits) && !is_repeated_char(&digits);
    is_real.then(|| uuid.hyphenated().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A real value is trimmed, and its control characters become spaces. An empty value or a placeholder gives `None`.
    #[test]
    fn without_placeholder_cleans_real_and_omits_other_values() {
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
            assert_eq!(without_placeholder(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn y09_without_placeholder_ignores_case_and_punctuation() {
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
            assert_eq!(without_placeholder(text), None, "{text}");
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
            assert_eq!(without_placeholder(text).as_deref(), Some(text));
        }
    }

    #[test]
    fn y09_parse_uuid_rejects_malformed_and_shared_uuids() {
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
            assert_eq!(parse_uuid(text).as_deref(), expected, "{text}");
        }
    }
}
