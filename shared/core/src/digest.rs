//! Digests of content, and the canonical JSON that they are taken over.
//!
//! The task digest decides whether a host has something to run, so it must not move with an encoding, a field's
//! order or a number's spelling: it is SHA-256 over RFC 8785 (JCS) text. Numbers are printed by `ryu-js` and texts are
//! escaped by `serde_json`; only the order of members is written here. The crate `serde_json_canonicalizer` gives the
//! same text, but parses each key again and copies each level of nesting, once for every node. The definition is versioned: what was
//! released keeps the version it was released under, and a newer controller compares under that one, so that an
//! upgrade queues no host.
//!
//! # Version 1
//! SHA-256 over, in this order, each item preceded by its length in bytes as a big-endian `u64`:
//! 1. the text `stemma task digest 1`;
//! 2. the canonical JSON of `{"primary_tags": [...], "tags": [...]}`, both sorted;
//! 3. per task that is not left out, in the order of ids: the 32 bytes of SHA-256 over the task's canonical JSON
//!    (fields at their defaults left out), then the canonical JSON of its inputs, an object from the reference's
//!    text to `{"value": …}`, `"absent"` or `{"secret": {"name", "version"}}`: what is absent is an input of its own.
//!
//! A task enters by the hash of its canonical JSON, not by the text: a profile's tasks are hashed once for all nodes
//! that share it, and a node costs only its own inputs.
//!
//! # Version 2
//! As version 1, with these differences. The first text is `stemma task digest 2`. Between a task's hash and its
//! inputs stands one more item: the text `untranslated` for a task with an expression that is not evaluated, the empty
//! text for any other. Such a task never runs, so clearing the mark changes what a host runs. Version 1 does not see it.

use std::fmt;

use serde_json::{Number, Value};
use sha2::{Digest as _, Sha256};

/// A definition of the task digest. The number of each is stored with what was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DigestVersion {
    /// The first one.
    V1,
    /// Tells an untranslated task from one that runs.
    V2,
}

/// The digest of what a host runs. Never compared with the digest of a part as sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display, derive_more::Debug)]
#[display("{}", Hex(_0))]
#[debug("TaskDigest({self})")]
pub struct TaskDigest(pub [u8; 32]);

/// The digest of a release's content, with everything it imports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display, derive_more::Debug)]
#[display("{}", Hex(_0))]
#[debug("ReleaseHash({self})")]
pub struct ReleaseHash(pub [u8; 32]);

/// Bytes as hexadecimal digits in small letters: how every hash, digest and random id is shown.
#[derive(Clone, Copy)]
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl DigestVersion {
    /// The one for new releases.
    pub const NEWEST: Self = Self::V2;

    /// The version of that number; `None`: a later program's.
    pub const fn of(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::V1),
            2 => Some(Self::V2),
            _ => None,
        }
    }

    /// The number that is stored and sent.
    pub const fn number(self) -> u32 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }
}

macro_rules! hex_digest {
    ($($name:ident),+) => {$(
        impl std::str::FromStr for $name {
            type Err = NotADigest;

            fn from_str(text: &str) -> Result<Self, NotADigest> {
                from_hex(text).map(Self).ok_or(NotADigest)
            }
        }

        crate::name::written_as_text!($name);
    )+};
}

hex_digest!(TaskDigest, ReleaseHash);

/// The text is no SHA-256 in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 hexadecimal digits")]
pub struct NotADigest;

/// The hash of one item's bytes.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The hash of the bytes that these make.
pub(crate) fn sha256_of_parts<'a>(parts: impl Iterator<Item = &'a [u8]>) -> [u8; 32] {
    parts.fold(Sha256::new(), Sha256::chain_update).finalize().into()
}

/// Computes a task digest: items go in one by one, each with its length.
#[derive(Clone)]
pub struct TaskHasher {
    version: DigestVersion,
    hash: Sha256,
}

impl TaskHasher {
    /// Begins with the version and the node's tags, both lists sorted.
    pub fn new(version: DigestVersion, tags: &[impl AsRef<str>], primary_tags: &[impl AsRef<str>]) -> Self {
        let mut hasher = Self { version, hash: Sha256::new() };
        hasher.item(format!("stemma task digest {}", version.number()).as_bytes());
        let mut text = String::from("{\"primary_tags\":");
        write_list(&mut text, ['[', ']'], primary_tags, |out, name| write_string(out, name.as_ref()));
        text.push_str(",\"tags\":");
        write_list(&mut text, ['[', ']'], tags, |out, name| write_string(out, name.as_ref()));
        text.push('}');
        hasher.item(text.as_bytes());
        hasher
    }

    /// One task: the hash of its canonical JSON, whether it is untranslated, and the canonical JSON of its inputs.
    pub fn task(&mut self, definition: &[u8; 32], is_untranslated: bool, inputs: &str) {
        self.item(definition);
        match self.version {
            DigestVersion::V1 => {}
            DigestVersion::V2 => self.item(if is_untranslated { b"untranslated" } else { b"" }),
        }
        self.item(inputs.as_bytes());
    }

    /// The digest of everything that went in.
    pub fn finish(self) -> TaskDigest {
        TaskDigest(self.hash.finalize().into())
    }

    fn item(&mut self, bytes: &[u8]) {
        self.hash.update((bytes.len() as u64).to_be_bytes());
        self.hash.update(bytes);
    }
}

/// JSON text by RFC 8785: keys sorted by UTF-16 code units, numbers as ECMAScript prints them, no white space.
///
/// Integers beyond 2^53 are doubles there, and are printed as such.
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

/// Canonical JSON of an object whose values are written by `write`.
pub(crate) fn canonical_object<K: AsRef<str>, V>(members: Vec<(K, V)>, write: impl Fn(&mut String, V)) -> String {
    let mut text = String::new();
    write_object(&mut text, members, write);
    text
}

fn write_object<K: AsRef<str>, V>(out: &mut String, members: Vec<(K, V)>, write: impl Fn(&mut String, V)) {
    write_list(out, ['{', '}'], in_order(members), |out, (key, item)| {
        write_key(out, key.as_ref());
        write(out, item);
    });
}

/// The members of an object in the order in which canonical JSON has them.
pub(crate) fn in_order<K: AsRef<str>, V>(mut members: Vec<(K, V)>) -> Vec<(K, V)> {
    members.sort_by(|(a, _), (b, _)| a.as_ref().encode_utf16().cmp(b.as_ref().encode_utf16()));
    members
}

/// Appends the key of a member, up to its value.
pub(crate) fn write_key(out: &mut String, key: &str) {
    write_string(out, key);
    out.push(':');
}

/// Appends a JSON string. `serde_json` escapes just what RFC 8785 does, in the same way.
fn write_string(out: &mut String, text: &str) {
    out.push_str(&serde_json::to_string(text).expect("a text is JSON"));
}

/// Appends a number as ECMAScript prints it: as the nearest double.
fn write_number(out: &mut String, number: &Number) {
    let number = number.as_f64().expect("without arbitrary precision every number is a double");
    out.push_str(ryu_js::Buffer::new().format_finite(number));
}

/// Appends items with commas between them, in brackets.
fn write_list<T>(
    out: &mut String,
    [open, close]: [char; 2],
    items: impl IntoIterator<Item = T>,
    write: impl Fn(&mut String, T),
) {
    out.push(open);
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        write(out, item);
    }
    out.push(close);
}

/// Bytes from hexadecimal digits, two for each and nothing else.
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut all = [0; N];
    for (at, byte) in all.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8785, appendix B, and its example in section 3.2.
    #[test]
    fn numbers_are_printed_as_ecmascript_prints_them() {
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
    fn the_example_of_the_rfc_comes_out_as_printed_there() {
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
    fn keys_are_sorted_by_utf16() {
        let value: Value =
            serde_json::from_str(r#"{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}"#)
                .unwrap();
        assert_eq!(
            canonical_json(&value),
            "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"\u{f6}\":7,\"\u{20ac}\":1,\"\u{1f600}\":5,\"\u{fb33}\":3}"
        );
    }

    #[test]
    fn large_integers_are_doubles() {
        for (text, shown) in [
            ("9007199254740992", "9007199254740992"),
            ("9007199254740993", "9007199254740992"),
            ("18446744073709551615", "18446744073709552000"),
            ("-9223372036854775808", "-9223372036854776000"),
        ] {
            assert_eq!(canonical_json(&serde_json::from_str(text).unwrap()), shown);
        }
    }

    #[test]
    fn the_digest_tells_every_part_apart() {
        let digest = |tags: &[&str], primary: &[&str], tasks: &[(&[u8; 32], &str)]| {
            let mut hasher = TaskHasher::new(DigestVersion::NEWEST, tags, primary);
            for (hash, inputs) in tasks {
                hasher.task(hash, false, inputs);
            }
            hasher.finish()
        };
        let (a, b) = (sha256(b"a"), sha256(b"b"));
        let all = [
            digest(&["x"], &[], &[]),
            digest(&[], &["x"], &[]),
            digest(&["x"], &[], &[(&a, "{}")]),
            digest(&["x"], &[], &[(&b, "{}")]),
            digest(&["x"], &[], &[(&a, "{\"labels.n\":\"1\"}")]),
            digest(&["x"], &[], &[(&a, "{}"), (&b, "{}")]),
            digest(&["x"], &[], &[(&b, "{}"), (&a, "{}")]),
        ];
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        assert_eq!(all[0].to_string().parse(), Ok(all[0]));
        assert_eq!("zz".parse::<TaskDigest>(), Err(NotADigest));
    }
}
