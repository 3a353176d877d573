//! Label keys and values, and what may stand in them.
//!
//! A key is a Kubernetes label key, so that every label can become one on a cluster's node; a value is wider than
//! Kubernetes' (text up to 4,096 bytes), since templates read it, and one that Kubernetes would refuse just does
//! not flow there ([`LabelValue::is_kubernetes`]). Lengths are bytes. Both are shared strings: a fold of a
//! hundred thousand hosts clones them and allocates nothing.

mod restricted;

use serde_json::value::RawValue;

pub use restricted::is_restricted;
pub(crate) use restricted::within;

use crate::name::{checked_text, quoted};

/// The longest name part of a key (after the slash), in bytes.
pub const MAX_KEY_NAME: usize = 63;
/// The longest prefix of a key (before the slash), in bytes.
pub const MAX_KEY_PREFIX: usize = 253;
/// The longest value of a label, in bytes.
pub const MAX_VALUE: usize = 4096;
/// What all annotations of an object may have together, keys and values, in bytes.
pub(crate) const MAX_ANNOTATIONS: usize = 262_144;

checked_text! {
    /// A label's key: an optional lower-case DNS prefix and a slash, then a name.
    ///
    /// Parameters are keyed so too.
    LabelKey: InvalidKey;

    /// An annotation's key: as a label's, but its prefix may have capitals (Kubernetes checks it lower-cased).
    AnnotationKey: InvalidKey;

    /// A label's value: text of at most [`MAX_VALUE`] bytes without control characters; `""` is a value.
    LabelValue: InvalidValue;

    /// An annotation's value: any text. Their sum is limited, see [`check_annotations`].
    AnnotationValue: InvalidValue;
}

/// A text that is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// Nothing before the slash.
    #[error("key {key} has nothing before its slash: leave the slash out, or put a DNS name there")]
    EmptyPrefix {
        /// The text in quotes, cut at 64 characters.
        key: String,
    },
    /// The part before the slash is no DNS name.
    #[error(
        "key {key} needs a lower-case DNS name of at most {MAX_KEY_PREFIX} bytes before its slash, as 'example.com'"
    )]
    Prefix {
        /// The text in quotes, cut at 64 characters.
        key: String,
    },
    /// The name part is wrong.
    #[error(
        "key {key} needs a name of 1 to {MAX_KEY_NAME} letters, digits, '-', '_' or '.', \
         with a letter or digit at both ends"
    )]
    Name {
        /// The text in quotes, cut at 64 characters.
        key: String,
    },
    /// More than one slash.
    #[error("key {key} has more than one slash: write PREFIX/NAME or NAME")]
    Slashes {
        /// The text in quotes, cut at 64 characters.
        key: String,
    },
}

/// A text or a JSON value that no label can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidValue {
    /// Longer than [`MAX_VALUE`].
    #[error("a label's value has at most {MAX_VALUE} bytes, this one {bytes}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// A control character, as a line break.
    #[error("a label's value has no control characters, this one has {character:?} at byte {at}")]
    Control {
        /// The first one.
        character: char,
        /// Where it stands.
        at: usize,
    },
    /// An object or a list.
    #[error("a label's value is text, a number, true, false or null, not {found}")]
    NotScalar {
        /// What was found, as `a list`.
        found: &'static str,
    },
}

/// The annotations of one object are too many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the annotations of an object have at most {MAX_ANNOTATIONS} bytes together, these {bytes}")]
pub struct AnnotationsTooLarge {
    /// Keys and values together.
    pub bytes: usize,
}

impl LabelKey {
    /// Reads a key.
    ///
    /// # Errors
    /// [`InvalidKey`], by the part that is wrong.
    pub fn new(text: &str) -> Result<Self, InvalidKey> {
        check_key(text).map(|()| Self(text.into()))
    }
}

impl AnnotationKey {
    /// Reads a key.
    ///
    /// # Errors
    /// [`InvalidKey`], by the part that is wrong.
    pub fn new(text: &str) -> Result<Self, InvalidKey> {
        check_key(&text.to_ascii_lowercase()).map(|()| Self(text.into()))
    }
}

impl LabelValue {
    /// Reads a value.
    ///
    /// # Errors
    /// [`InvalidValue`]: too long, or with control characters.
    pub fn new(text: &str) -> Result<Self, InvalidValue> {
        if text.len() > MAX_VALUE {
            return Err(InvalidValue::TooLong { bytes: text.len() });
        }
        match text.char_indices().find(|(_, character)| character.is_control()) {
            Some((at, character)) => Err(InvalidValue::Control { character, at }),
            None => Ok(Self(text.into())),
        }
    }

    /// Whether Kubernetes would take it as a label's value. One that it would not is kept and does not flow.
    pub(crate) fn is_kubernetes(&self) -> bool {
        is_kubernetes_value(&self.0)
    }
}

impl AnnotationValue {
    /// Takes any text.
    ///
    /// # Errors
    /// None today; the signature is that of the other values.
    pub fn new(text: &str) -> Result<Self, InvalidValue> {
        Ok(Self(text.into()))
    }
}

/// Whether Kubernetes takes the text as a label's value: empty, or at most 63 bytes of the characters of a name.
pub fn is_kubernetes_value(text: &str) -> bool {
    text.is_empty() || is_key_name(text)
}

/// The text of a JSON scalar, as it was sent: a string's content, the digits of a number, `true` or `false`.
/// `null` is `None`.
///
/// # Errors
/// [`InvalidValue::NotScalar`] for a list or an object.
pub(crate) fn scalar_text(raw: &RawValue) -> Result<Option<String>, InvalidValue> {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'"') => {
            serde_json::from_str(text).map(Some).map_err(|_| InvalidValue::NotScalar { found: "broken text" })
        }
        Some(b'n') => Ok(None),
        Some(b'[') => Err(InvalidValue::NotScalar { found: "a list" }),
        Some(b'{') => Err(InvalidValue::NotScalar { found: "an object" }),
        _ => Ok(Some(text.to_owned())),
    }
}

/// Checks the sum of an object's annotations, as Kubernetes limits it.
///
/// # Errors
/// [`AnnotationsTooLarge`] past [`MAX_ANNOTATIONS`].
pub fn check_annotations<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<(), AnnotationsTooLarge> {
    let bytes = entries.into_iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_ANNOTATIONS { Err(AnnotationsTooLarge { bytes }) } else { Ok(()) }
}

fn check_key(text: &str) -> Result<(), InvalidKey> {
    let mut parts = text.split('/');
    let (first, second) = (parts.next().unwrap_or_default(), parts.next());
    if parts.next().is_some() {
        return Err(InvalidKey::Slashes { key: quoted(text) });
    }
    if let Some(name) = second {
        if first.is_empty() {
            return Err(InvalidKey::EmptyPrefix { key: quoted(text) });
        }
        if !is_dns_subdomain(first) {
            return Err(InvalidKey::Prefix { key: quoted(text) });
        }
        return if is_key_name(name) { Ok(()) } else { Err(InvalidKey::Name { key: quoted(text) }) };
    }
    if is_key_name(first) { Ok(()) } else { Err(InvalidKey::Name { key: quoted(text) }) }
}

fn is_key_name(text: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= MAX_KEY_NAME
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// A lower-case RFC 1123 subdomain. As in Kubernetes, one dot-separated part alone is not limited to 63 bytes.
fn is_dns_subdomain(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let part = |part: &str| {
        let bytes = part.as_bytes();
        bytes.first().is_some_and(|byte| word(*byte))
            && bytes.last().is_some_and(|byte| word(*byte))
            && bytes.iter().all(|byte| word(*byte) || *byte == b'-')
    };
    text.len() <= MAX_KEY_PREFIX && text.split('.').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn y09_the_refusal_of_a_long_key_says_that_it_is_cut_and_how_long_it_is() {
        let shown = "a".repeat(64);
        for (length, expected) in
            [(64, format!("key \"{shown}\" needs ")), (300, format!("key \"{shown}…\" (300 characters) needs "))]
        {
            let said = LabelKey::new(&"a".repeat(length)).unwrap_err().to_string();
            assert!(said.starts_with(&expected), "{said}");
        }
    }

    #[test]
    fn an_error_says_which_part_is_wrong() {
        for (key, says) in [
            ("/x", "key \"/x\" has nothing before its slash: leave the slash out, or put a DNS name there"),
            (
                "Example.com/x",
                "key \"Example.com/x\" needs a lower-case DNS name of at most 253 bytes before its slash, as 'example.com'",
            ),
            ("a/b/c", "key \"a/b/c\" has more than one slash: write PREFIX/NAME or NAME"),
            (
                "a b",
                "key \"a b\" needs a name of 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends",
            ),
        ] {
            assert_eq!(LabelKey::new(key).unwrap_err().to_string(), says);
        }
    }

    #[test]
    fn a_json_scalar_is_taken_as_it_was_sent() {
        for (sent, text) in [
            ("\"x\\u0041\"", Some("xA")),
            ("1", Some("1")),
            ("1.0", Some("1.0")),
            ("-0.0", Some("-0.0")),
            ("1e+21", Some("1e+21")),
            ("123456789012345678901234567890", Some("123456789012345678901234567890")),
            ("true", Some("true")),
            ("false", Some("false")),
            ("null", None),
        ] {
            let value = scalar_text(&raw(sent)).unwrap().map(|text| LabelValue::new(&text).unwrap());
            assert_eq!(value.as_deref(), text, "{sent}");
        }
        let list = scalar_text(&raw("[1]")).unwrap_err();
        assert_eq!(list.to_string(), "a label's value is text, a number, true, false or null, not a list");
    }

    #[test]
    fn values_are_bounded_and_plain() {
        assert!(LabelValue::new(&"v".repeat(4096)).is_ok());
        assert_eq!(LabelValue::new(&"v".repeat(4097)), Err(InvalidValue::TooLong { bytes: 4097 }));
        assert_eq!(LabelValue::new("a\nb"), Err(InvalidValue::Control { character: '\n', at: 1 }));
        assert!(LabelValue::new("a\u{85}").is_err());
        assert!(LabelValue::new("значение, any = text").is_ok());
    }

    #[test]
    fn the_prefix_is_what_stands_before_the_slash() {}
}
