//! Label keys and values, and their valid forms.
//!
//! A key is a Kubernetes label key, so that a node of a Kubernetes cluster can have a label with this key. A value may
//! be longer and have more characters than in Kubernetes (text of up to 4,096 bytes), because templates read it. A
//! value that Kubernetes would refuse is not exported to the host label map, a file on the host
//! ([`LabelValue::is_kubernetes_value`]). Lengths are in bytes. Keys and values are shared strings, so merging the
//! labels of a hundred thousand hosts clones them without an allocation.

mod restricted;

use serde_json::value::RawValue;

pub use restricted::is_restricted;
pub(crate) use restricted::is_same_or_subdomain;

use crate::name::{checked_text, quoted};

/// Maximum length of the name part of a key (after the slash), in bytes.
pub const MAX_KEY_NAME_BYTES: usize = 63;
/// Maximum length of the prefix of a key (before the slash), in bytes.
pub const MAX_KEY_PREFIX_BYTES: usize = 253;
/// Maximum length of a label's value, in bytes.
pub const MAX_VALUE_BYTES: usize = 4096;
/// Maximum size of all annotations that one level provides, keys and values together, in bytes.
pub(crate) const MAX_ANNOTATION_BYTES: usize = 262_144;

checked_text! {
    /// A label's key: an optional lower-case DNS prefix and a slash, then a name.
    ///
    /// Parameters have keys of this form too.
    LabelKey: InvalidKey;

    /// An annotation's key. It has the form of a label's key, but its prefix may contain capitals, because Kubernetes
    /// converts an annotation's key to lower case before the check.
    AnnotationKey: InvalidKey;

    /// A label's value: text of at most [`MAX_VALUE_BYTES`] bytes without control characters. The empty text is valid.
    LabelValue: InvalidValue;

    /// An annotation's value: any text. [`check_annotations`] limits the total size of the annotations of one level.
    AnnotationValue: InvalidValue;
}

/// The error for a text that is not a valid key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// The part before the slash is empty.
    #[error("key {key} has nothing before its slash: leave the slash out, or put a DNS name there")]
    EmptyPrefix {
        /// The text in quotes, cut at 64 characters.
        key: String,
    },
    /// The part before the slash is not a valid DNS name.
    #[error("key {key} needs a lower-case DNS name of at most {MAX_KEY_PREFIX_BYTES} bytes before its slash, as 'example.com'")]
    Prefix {
        /// The text in quotes, cut at 64 characters.
        key: String,
    },
    /// The name part is invalid.
    #[error(
        "key {key} needs a name of 1 to {MAX_KEY_NAME_BYTES} letters, digits, '-', '_' or '.', \
         with a letter or digit at both ends"
    )]
    Name {
        /// The text in quotes, cut at 64 characters.
        key: String,
    },
    /// The key has more than one slash.
    #[error("key {key} has more than one slash: write PREFIX/NAME or NAME")]
    Slashes {
        /// The text in quotes, cut at 64 characters.
        key: String,
    },
}

/// The error for a text or a JSON value that is not a valid value of a label or annotation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidValue {
    /// The value is longer than [`MAX_VALUE_BYTES`].
    #[error("a label's value has at most {MAX_VALUE_BYTES} bytes, this one {bytes}")]
    TooLong {
        /// The length of the value, in bytes.
        bytes: usize,
    },
    /// The value has a control character, such as a line break.
    #[error("a label's value has no control characters, this one has {character:?} at byte {at}")]
    Control {
        /// The first control character.
        character: char,
        /// The offset of the character, in bytes.
        at: usize,
    },
    /// The value is an object, a list, or a string with an escape that is not valid Unicode.
    #[error("a label's value is text, a number, true, false or null, not {found}")]
    NotScalar {
        /// What was found: `a list`, `an object`, or `broken text` for a string with an invalid escape.
        found: &'static str,
    },
}

/// The error if the annotations that one level provides exceed the maximum size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the annotations of an object have at most {MAX_ANNOTATION_BYTES} bytes together, these {bytes}")]
pub struct AnnotationsTooLarge {
    /// The size of all keys and values together, in bytes.
    pub bytes: usize,
}

impl LabelKey {
    /// Parses a key.
    ///
    /// # Errors
    /// [`InvalidKey`] for the first invalid part.
    pub fn new(text: &str) -> Result<Self, InvalidKey> {
        check_key(text).map(|()| Self(text.into()))
    }
}

impl AnnotationKey {
    /// Parses a key. As in Kubernetes, the lower-case form of the key is checked, and the key is stored as written.
    ///
    /// # Errors
    /// [`InvalidKey`] for the first invalid part.
    pub fn new(text: &str) -> Result<Self, InvalidKey> {
        check_key(&text.to_ascii_lowercase()).map(|()| Self(text.into()))
    }
}

impl LabelValue {
    /// Parses a value.
    ///
    /// # Errors
    /// [`InvalidValue`] if the text is too long or has control characters.
    pub fn new(text: &str) -> Result<Self, InvalidValue> {
        if text.len() > MAX_VALUE_BYTES {
            return Err(InvalidValue::TooLong { bytes: text.len() });
        }
        match text.char_indices().find(|(_, character)| character.is_control()) {
            Some((at, character)) => Err(InvalidValue::Control { character, at }),
            None => Ok(Self(text.into())),
        }
    }

    /// Returns whether Kubernetes accepts this value as a label's value. Other values are stored and inherited, but not
    /// exported to the host label map, a file on the host that other programs read.
    pub(crate) fn is_kubernetes_value(&self) -> bool {
        is_kubernetes_value(&self.0)
    }
}

impl AnnotationValue {
    /// Creates a value from any text.
    ///
    /// # Errors
    /// Never fails. The signature is the same as that of [`LabelValue::new`].
    pub fn new(text: &str) -> Result<Self, InvalidValue> {
        Ok(Self(text.into()))
    }
}

/// Returns whether Kubernetes accepts the text as a label's value: empty, or at most 63 bytes in the form of a name.
pub fn is_kubernetes_value(text: &str) -> bool {
    text.is_empty() || is_key_name(text)
}

/// Returns the text of a JSON scalar as it was sent: the content of a string, the digits of a number, `true` or
/// `false`. Returns `None` for `null`.
///
/// # Errors
/// [`InvalidValue::NotScalar`] for a list, an object, or a string with an escape that is not valid Unicode.
pub(crate) fn scalar_text(raw: &RawValue) -> Result<Option<String>, InvalidValue> {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'"') => serde_json::from_str(text).map(Some).map_err(|_| InvalidValue::NotScalar { found: "broken text" }),
        Some(b'n') => Ok(None),
        Some(b'[') => Err(InvalidValue::NotScalar { found: "a list" }),
        Some(b'{') => Err(InvalidValue::NotScalar { found: "an object" }),
        _ => Ok(Some(text.to_owned())),
    }
}

/// Checks the size of all annotations that one level provides against the limit of Kubernetes.
///
/// # Errors
/// [`AnnotationsTooLarge`] if the size exceeds [`MAX_ANNOTATION_BYTES`].
pub fn check_annotations<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<(), AnnotationsTooLarge> {
    let bytes = entries.into_iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_ANNOTATION_BYTES { Err(AnnotationsTooLarge { bytes }) } else { Ok(()) }
}

/// Checks that a key has the form `NAME` or `PREFIX/NAME`, with a DNS name as prefix.
fn check_key(text: &str) -> Result<(), InvalidKey> {
    let mut parts = text.split('/');
    let (prefix_or_name, name_after_slash) = (parts.next().unwrap_or_default(), parts.next());
    if parts.next().is_some() {
        return Err(InvalidKey::Slashes { key: quoted(text) });
    }
    if let Some(name) = name_after_slash {
        if prefix_or_name.is_empty() {
            return Err(InvalidKey::EmptyPrefix { key: quoted(text) });
        }
        if !is_dns_subdomain(prefix_or_name) {
            return Err(InvalidKey::Prefix { key: quoted(text) });
        }
        return if is_key_name(name) { Ok(()) } else { Err(InvalidKey::Name { key: quoted(text) }) };
    }
    if is_key_name(prefix_or_name) { Ok(()) } else { Err(InvalidKey::Name { key: quoted(text) }) }
}

/// Returns whether a text is valid as the name part of a key: 1 to [`MAX_KEY_NAME_BYTES`] letters, digits, `-`, `_` or
/// `.`, with a letter or digit at both ends.
fn is_key_name(text: &str) -> bool {
    let is_valid_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= MAX_KEY_NAME_BYTES
        && is_valid_end(bytes.first())
        && is_valid_end(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Returns whether a text is a lower-case subdomain as RFC 1123 defines it. As in Kubernetes, the part between two dots
/// may have more than 63 bytes.
fn is_dns_subdomain(text: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_valid_part = |part: &str| {
        let bytes = part.as_bytes();
        bytes.first().is_some_and(|byte| is_alphanumeric(*byte))
            && bytes.last().is_some_and(|byte| is_alphanumeric(*byte))
            && bytes.iter().all(|byte| is_alphanumeric(*byte) || *byte == b'-')
    };
    text.len() <= MAX_KEY_PREFIX_BYTES && text.split('.').all(is_valid_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn y09_key_error_gives_length_when_key_is_cut() {
        let shown = "a".repeat(64);
        for (length, expected) in
            [(64, format!("key \"{shown}\" needs ")), (300, format!("key \"{shown}…\" (300 characters) needs "))]
        {
            let message = LabelKey::new(&"a".repeat(length)).unwrap_err().to_string();
            assert!(message.starts_with(&expected), "{message}");
        }
    }

    #[test]
    fn key_error_names_wrong_part() {
        for (key, expected) in [
            ("/x", "key \"/x\" has nothing before its slash: leave the slash out, or put a DNS name there"),
            (
                "Example.com/x",
                "key \"Example.com/x\" needs a lower-case DNS name of at most 253 bytes before its slash, as 'example.com'",
            ),
            ("a/b/c", "key \"a/b/c\" has more than one slash: write PREFIX/NAME or NAME"),
            ("a b", "key \"a b\" needs a name of 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"),
        ] {
            assert_eq!(LabelKey::new(key).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn scalar_text_returns_number_as_sent() {
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
    fn label_value_is_bounded_and_has_no_control_characters() {
        assert!(LabelValue::new(&"v".repeat(4096)).is_ok());
        assert_eq!(LabelValue::new(&"v".repeat(4097)), Err(InvalidValue::TooLong { bytes: 4097 }));
        assert_eq!(LabelValue::new("a\nb"), Err(InvalidValue::Control { character: '\n', at: 1 }));
        assert!(LabelValue::new("a\u{85}").is_err());
        assert!(LabelValue::new("значение, any = text").is_ok());
    }
}
