//! Digests of content, and the canonical JSON that they are computed from.
//!
//! The task digest decides whether a host has something to run. It must therefore not depend on an encoding, the order
//! of fields or the notation of a number, so it is SHA-256 over RFC 8785 (JCS) text. `ryu-js` prints numbers and
//! `serde_json` escapes strings; only the order of members is implemented here. The crate `serde_json_canonicalizer`
//! produces the same text, but parses each key again and copies each level of nesting, once for every node. The
//! definition is versioned. A released task set keeps the version it was released with, and a newer controller compares
//! with that version, so that an upgrade queues no host.
//!
//! # Version 1
//! SHA-256 over these items in this order, each preceded by its length in bytes as a big-endian `u64`:
//! 1. the text `stemma task digest 1`;
//! 2. the canonical JSON of `{"primary_tags": [...], "tags": [...]}`, both sorted;
//! 3. per task that is not left out, in the order of ids: the 32 bytes of SHA-256 over the task's canonical JSON
//!    (fields at their defaults omitted), then the canonical JSON of its inputs, an object from the reference's text to
//!    `{"value": …}`, `"absent"` or `{"secret": {"name", "version"}}`. An absent value is an input too.
//!
//! A task is included by the hash of its canonical JSON, not by the text. The tasks of a profile are hashed once for
//! all nodes that share it, and only the inputs are hashed per node.
//!
//! A task that is not placed on the node, and that the host gets only because another task names it in `on_unassign`, is
//! included by SHA-256 of the text `on_unassign` followed by its hash. A node without such tasks has the digest that it
//! had before hosts got them.
//!
//! # Version 2
//! As version 1, with these differences. The first text is `stemma task digest 2`. Between a task's hash and its inputs
//! is one more item: the text `untranslated` for a task with an expression that is not evaluated, the empty text for
//! any other. Such a task never runs, so clearing the mark changes what a host runs. Version 1 does not include the
//! mark.

use std::fmt;

use serde_json::{Number, Value};
use sha2::{Digest as _, Sha256};

/// A definition of how the task digest is computed. The number of the version is stored with each released task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DigestVersion {
    /// The first version, without the mark of tasks with an expression that Stemma does not evaluate.
    V1,
    /// The second version. It also contains whether a task has an expression that Stemma does not evaluate.
    V2,
}

/// The digest of what a host runs. It decides whether the host has something to run. It is not comparable with the
/// digest of a part of the desired state, which is computed from the bytes that are sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display, derive_more::Debug)]
#[display("{}", Hex(_0))]
#[debug("TaskDigest({self})")]
pub struct TaskDigest(pub [u8; 32]);

/// The digest of everything in a release that decides what hosts run, including the release's imports. The name,
/// description, labels and annotations of the release are not included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display, derive_more::Debug)]
#[display("{}", Hex(_0))]
#[debug("ReleaseHash({self})")]
pub struct ReleaseHash(pub [u8; 32]);

/// Displays bytes as lower-case hexadecimal digits, for example those of a hash, a serial number or a random secret.
#[derive(Clone, Copy)]
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl DigestVersion {
    /// The version of the digests of new task sets.
    pub const LATEST: Self = Self::V2;

    /// Returns the version with this number, or `None` if this program knows no such version.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::V1),
            2 => Some(Self::V2),
            _ => None,
        }
    }

    /// Returns the number of the version, as it is stored and sent.
    pub const fn number(self) -> u32 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }
}

/// Implements parsing and serialization of digests as hexadecimal text.
macro_rules! hex_digest {
    ($($name:ident),+) => {$(
        impl std::str::FromStr for $name {
            type Err = InvalidDigest;

            fn from_str(text: &str) -> Result<Self, InvalidDigest> {
                from_hex(text).map(Self).ok_or(InvalidDigest)
            }
        }

        crate::name::written_as_text!($name);
    )+};
}

hex_digest!(TaskDigest, ReleaseHash);

/// The error for a text that is not a SHA-256 in hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 hexadecimal digits")]
pub struct InvalidDigest;

/// Returns the SHA-256 of the bytes.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Returns the SHA-256 of the concatenated parts.
pub(crate) fn sha256_of_parts<'a>(parts: impl Iterator<Item = &'a [u8]>) -> [u8; 32] {
    parts.fold(Sha256::new(), Sha256::chain_update).finalize().into()
}

/// A task digest that is being computed. Each item is hashed with its length.
#[derive(Clone)]
pub struct TaskDigestHasher {
    version: DigestVersion,
    hash: Sha256,
}

impl TaskDigestHasher {
    /// Starts a task digest with the version, the tags of the node, and the tags of which the node is primary. Both
    /// lists must be sorted.
    pub fn new(version: DigestVersion, tags: &[impl AsRef<str>], primary_tags: &[impl AsRef<str>]) -> Self {
        let mut hasher = Self { version, hash: Sha256::new() };
        hasher.add_item(format!("stemma task digest {}", version.number()).as_bytes());
        let mut text = String::from("{\"primary_tags\":");
        write_list(&mut text, ['[', ']'], primary_tags, |out, name| write_string(out, name.as_ref()));
        text.push_str(",\"tags\":");
        write_list(&mut text, ['[', ']'], tags, |out, name| write_string(out, name.as_ref()));
        text.push('}');
        hasher.add_item(text.as_bytes());
        hasher
    }

    /// Adds a task. `definition` is the hash of its canonical JSON, and `inputs` is the canonical JSON of its inputs.
    /// `is_untranslated` is true if the task has an expression that Stemma does not evaluate; version 1 ignores it. The
    /// caller must add the tasks in the order of their ids.
    pub fn add_task(&mut self, definition: &[u8; 32], is_untranslated: bool, inputs: &str) {
        self.add_item(definition);
        match self.version {
            DigestVersion::V1 => {}
            DigestVersion::V2 => self.add_item(if is_untranslated { b"untranslated" } else { b"" }),
        }
        self.add_item(inputs.as_bytes());
    }

    /// Returns the digest of the items that were added.
    pub fn finish(self) -> TaskDigest {
        TaskDigest(self.hash.finalize().into())
    }

    /// Adds bytes to the hash, preceded by their length. So the digest depends on the boundaries between items.
    fn add_item(&mut self, bytes: &[u8]) {
        self.hash.update((bytes.len() as u64).to_be_bytes());
        self.hash.update(bytes);
    }
}

/// Returns a value as RFC 8785 text: keys sorted by UTF-16 code units, numbers as ECMAScript prints them, and no white
/// space. An integer beyond 2^53 is printed as the nearest double.
pub fn canonical_json(value: &Value) -> String {
    let mut text = String::new();
    write_canonical(&mut text, value);
    text
}

/// Appends the canonical JSON of a value.
pub(crate) fn write_canonical(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(out, number),
        Value::String(text) => write_string(out, text),
        Value::Array(items) => write_list(out, ['[', ']'], items, write_canonical),
        Value::Object(map) => write_object(out, map.iter().collect(), write_canonical),
    }
}

/// Returns the canonical JSON of an object with these members. `write` appends the JSON of a value.
pub(crate) fn canonical_object<K: AsRef<str>, V>(members: Vec<(K, V)>, write: impl Fn(&mut String, V)) -> String {
    let mut text = String::new();
    write_object(&mut text, members, write);
    text
}

/// Appends an object with its members in canonical order. `write` appends each value.
fn write_object<K: AsRef<str>, V>(out: &mut String, members: Vec<(K, V)>, write: impl Fn(&mut String, V)) {
    write_list(out, ['{', '}'], in_canonical_order(members), |out, (key, item)| {
        write_member_key(out, key.as_ref());
        write(out, item);
    });
}

/// Returns the members of an object sorted as canonical JSON requires: by the UTF-16 code units of their keys.
pub(crate) fn in_canonical_order<K: AsRef<str>, V>(mut members: Vec<(K, V)>) -> Vec<(K, V)> {
    members.sort_by(|(left, _), (right, _)| left.as_ref().encode_utf16().cmp(right.as_ref().encode_utf16()));
    members
}

/// Appends the key of an object member and a colon.
pub(crate) fn write_member_key(out: &mut String, key: &str) {
    write_string(out, key);
    out.push(':');
}

/// Appends a JSON string. `serde_json` escapes the same characters as RFC 8785, in the same way.
fn write_string(out: &mut String, text: &str) {
    out.push_str(&serde_json::to_string(text).expect("a text is JSON"));
}

/// Appends a number as ECMAScript prints the nearest double.
fn write_number(out: &mut String, number: &Number) {
    let number = number.as_f64().expect("without arbitrary precision every number is a double");
    out.push_str(ryu_js::Buffer::new().format_finite(number));
}

/// Appends the items of a list, separated by commas and enclosed in `open` and `close`. `write` appends each item.
fn write_list<T>(out: &mut String, [open, close]: [char; 2], items: impl IntoIterator<Item = T>, write: impl Fn(&mut String, T)) {
    out.push(open);
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write(out, item);
    }
    out.push(close);
}

/// Parses hexadecimal digits, exactly two for each byte. Returns `None` for any other text.
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(index * 2..index * 2 + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks numbers against examples in appendix B of RFC 8785.
    #[test]
    fn write_number_prints_numbers_as_ecmascript_does() {
        for (bits, text) in [
            (0x0000_0000_0000_0000_u64, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0xc340_0000_0000_0000, "-9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
            (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
            (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ] {
            assert_eq!(canonical_json(&f64::from_bits(bits).into()), text, "{bits:016x}");
        }
    }

    #[test]
    fn canonical_json_matches_rfc_example() {
        let value: Value = serde_json::from_str(
            r#"{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
                "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}"#,
        )
        .unwrap();
        assert_eq!(
            canonical_json(&value),
            "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],\
             \"string\":\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}"
        );
    }

    #[test]
    fn canonical_json_sorts_keys_by_utf16() {
        let value: Value =
            serde_json::from_str(r#"{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}"#).unwrap();
        assert_eq!(
            canonical_json(&value),
            "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"\u{f6}\":7,\"\u{20ac}\":1,\"\u{1f600}\":5,\"\u{fb33}\":3}"
        );
    }

    #[test]
    fn canonical_json_prints_large_integers_as_doubles() {
        for (text, expected) in [
            ("9007199254740992", "9007199254740992"),
            ("9007199254740993", "9007199254740992"),
            ("18446744073709551615", "18446744073709552000"),
            ("-9223372036854775808", "-9223372036854776000"),
        ] {
            assert_eq!(canonical_json(&serde_json::from_str(text).unwrap()), expected);
        }
    }

    /// Digests of different tags, primaries, tasks, inputs and orders of tasks all differ. The text of a digest parses
    /// to an equal digest, and `zz` is refused as a digest.
    #[test]
    fn task_digest_changes_with_tags_primaries_tasks_inputs_and_order() {
        let digest = |tags: &[&str], primary: &[&str], tasks: &[(&[u8; 32], &str)]| {
            let mut hasher = TaskDigestHasher::new(DigestVersion::LATEST, tags, primary);
            for (hash, inputs) in tasks {
                hasher.add_task(hash, false, inputs);
            }
            hasher.finish()
        };
        let (first_hash, second_hash) = (sha256(b"a"), sha256(b"b"));
        let digests = [
            digest(&["x"], &[], &[]),
            digest(&[], &["x"], &[]),
            digest(&["x"], &[], &[(&first_hash, "{}")]),
            digest(&["x"], &[], &[(&second_hash, "{}")]),
            digest(&["x"], &[], &[(&first_hash, "{\"labels.n\":\"1\"}")]),
            digest(&["x"], &[], &[(&first_hash, "{}"), (&second_hash, "{}")]),
            digest(&["x"], &[], &[(&second_hash, "{}"), (&first_hash, "{}")]),
        ];
        let different: std::collections::BTreeSet<_> = digests.iter().collect();
        assert_eq!(different.len(), digests.len());
        assert_eq!(digests[0].to_string().parse(), Ok(digests[0]));
        assert_eq!("zz".parse::<TaskDigest>(), Err(InvalidDigest));
    }
}
