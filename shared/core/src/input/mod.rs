//! Inputs: what a template or a condition reads, by name, and the value of each.
//!
//! A host renders only from the inputs that it received. The controller evaluates conditions over the same map, and
//! computes a task's digest from the map without rendering. So all parties must use the same name for a value that is
//! read: a [`Reference`], which has exactly one text. An absent value is an input too. If an absent value were omitted,
//! the removal of a label would change no digest, and the file that was rendered with the label would remain.

pub mod facts;
pub mod fields;
mod merge;
mod path;
mod read;
mod reference;
mod required_reference;
pub mod shell;
mod syntax;
pub mod template;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map;
use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::digest::{Hex, sha256, sha256_of_parts, write_canonical};
use crate::shared_text::{JsonText, SharedTexts, estimate_bytes};

use merge::WiderInput;
pub use path::{MAX_PATH_KEYS, Path};
pub use read::{FieldSet, MAX_NAMES, NamePatterns, NodeQuery, Read, ReferenceError};
pub use reference::Reference;
pub use required_reference::RequiredReference;

pub use merge::merge_references;

/// Maximum number of inputs of one task.
pub(crate) const MAX_INPUTS: usize = 1_024;

/// Maximum size of one task's inputs with their references, in bytes of JSON. The size is estimated: escapes in strings
/// are not counted. The maximum equals the maximum size of a desired state.
pub(crate) const MAX_INPUT_BYTES: usize = 256 * 1024;

/// Maximum size of a value that is copied for each task that reads it, in bytes. A larger value is stored once and
/// shared.
const MAX_COPIED_BYTES: usize = 128;

/// The value of one reference for one host: what a template or a condition reads there.
///
/// Two inputs are equal if their values are equal, however they are stored.
#[derive(Clone, Debug)]
pub enum Input {
    /// A value, which may be `null`, because a parameter may contain `null`.
    Value(Value),
    /// A value that is stored once for all tasks that read it: the result of a look-up, which may be as large as its
    /// cluster, or another value that is too large to be copied for each task.
    Shared(Arc<SharedValue>),
    /// No value. Templates see an undefined value. In a condition this is an error, unless `has()` tests for the value.
    Absent,
    /// A secret, by name and version. Its value is never an input, so a digest, log or history never contains the
    /// value.
    Secret {
        /// The name of the Secret object.
        name: Box<str>,
        /// The version of the Secret's value. 0 if the host stores the value instead of the controller.
        version: u64,
    },
}

/// A value that is stored once for all tasks that read it. Its size is computed at creation, and its digest at the
/// first use.
#[derive(Debug)]
pub struct SharedValue {
    storage: ValueStorage,
    size_bytes: usize,
    digest: OnceLock<String>,
}

/// The form in which a shared value is stored.
#[derive(Debug)]
enum ValueStorage {
    /// A parsed JSON value.
    Value(Value),
    /// The canonical JSON text of the value. Parsing the text returns an equal value.
    Text(JsonText),
}

/// The inputs of one task on one host, in the order of the references' texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    entries: BTreeMap<Reference, Input>,
    bytes: usize,
}

/// The error for a task that reads more than may be sent to a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "with `{}` the inputs exceed {MAX_INPUTS} entries or {MAX_INPUT_BYTES} bytes; read fewer or smaller values",
    .reference.display_text()
)]
pub struct InputsTooLarge {
    /// The reference of the input that was refused, because all inputs together would exceed the maximum.
    pub reference: Reference,
}

impl Input {
    /// Returns the value, or `None` if the input is absent or a secret.
    pub fn value(&self) -> Option<Cow<'_, Value>> {
        match self {
            Self::Value(value) => Some(Cow::Borrowed(value)),
            Self::Shared(shared) => Some(shared.value()),
            Self::Absent | Self::Secret { .. } => None,
        }
    }

    /// Converts a value larger than [`MAX_COPIED_BYTES`] to a shared value. If its text reproduces the value, the text
    /// is stored in chunks, and chunks that `texts` contains already are shared. Any other input is returned unchanged.
    pub(crate) fn into_shared(self, texts: &SharedTexts) -> Self {
        match self {
            Self::Value(value) if estimate_bytes(&value) > MAX_COPIED_BYTES => {
                Self::Shared(Arc::new(SharedValue::from_texts(value, texts)))
            }
            unchanged => unchanged,
        }
    }

    /// Returns whether two inputs are equal. Two shared values are compared by address only, which is fast. So the
    /// result is `false` for equal shared values at different addresses.
    pub fn is_identical(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Shared(this), Self::Shared(other)) => Arc::ptr_eq(this, other),
            (this, other) => this == other,
        }
    }

    /// Appends the input to `out` as canonical JSON. The digest of a task is computed from this text.
    pub(crate) fn write_canonical(&self, out: &mut String) {
        let text = match self {
            Self::Value(value) => JsonText::from_value(value),
            Self::Shared(shared) => shared.text(),
            Self::Absent | Self::Secret { .. } => {
                return write_canonical(out, &serde_json::to_value(self).expect("an input is JSON"));
            }
        };
        out.push_str("{\"value\":");
        out.extend(text.chunks().iter().map(|chunk| &**chunk));
        out.push('}');
    }

    /// Returns the approximate size of the input as JSON, in bytes, without escapes in strings and the object around a
    /// value. 8 is the size of an absent input, and 32 is about that of a secret without its name.
    fn size_bytes(&self) -> usize {
        match self {
            Self::Value(value) => estimate_bytes(value),
            Self::Shared(shared) => shared.size_bytes,
            Self::Absent => 8,
            Self::Secret { name, .. } => name.len() + 32,
        }
    }
}

impl SharedValue {
    /// Creates a shared value that is stored as a parsed value.
    pub fn new(value: Value) -> Self {
        Self { size_bytes: estimate_bytes(&value), storage: ValueStorage::Value(value), digest: OnceLock::new() }
    }

    /// Creates a shared value that is stored as text. Chunks of the text that `texts` contains already are shared. If
    /// the canonical text would not parse to an equal value, the parsed value is stored instead.
    fn from_texts(value: Value, texts: &SharedTexts) -> Self {
        if !round_trips(&value) {
            return Self::new(value);
        }
        let mut text = JsonText::from_value(&value);
        texts.intern_all(text.chunks_mut().iter_mut());
        Self { size_bytes: estimate_bytes(&value), storage: ValueStorage::Text(text), digest: OnceLock::new() }
    }

    /// Returns the value. A value that is stored as text is parsed at each call.
    pub fn value(&self) -> Cow<'_, Value> {
        match &self.storage {
            ValueStorage::Value(value) => Cow::Borrowed(value),
            ValueStorage::Text(text) => Cow::Owned(serde_json::from_str(&text.to_text()).expect("a text of a value is JSON")),
        }
    }

    /// Returns the canonical text of the value.
    pub fn text(&self) -> JsonText {
        match &self.storage {
            ValueStorage::Value(value) => JsonText::from_value(value),
            ValueStorage::Text(text) => text.clone(),
        }
    }

    /// Returns the SHA-256 digest of the value in hexadecimal. It is computed at the first call. Different values have
    /// different digests. Equal values can have different digests if one is stored as text and the other as a parsed
    /// value.
    pub(crate) fn value_digest(&self) -> &str {
        let compute_digest = || match &self.storage {
            ValueStorage::Value(value) => sha256(value.to_string().as_bytes()),
            ValueStorage::Text(text) => sha256_of_parts(text.chunks().iter().map(|chunk| chunk.as_bytes())),
        };
        self.digest.get_or_init(|| Hex(&compute_digest()).to_string())
    }
}

impl PartialEq for Input {
    /// Returns whether the values are equal. Equal values can be stored in different ways. A secret equals only a
    /// secret with the same name and version.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Shared(this), Self::Shared(other)) if Arc::ptr_eq(this, other) => true,
            (Self::Shared(this), Self::Shared(other)) => match (&this.storage, &other.storage) {
                (ValueStorage::Text(this), ValueStorage::Text(other)) => this == other,
                _ => this.value() == other.value(),
            },
            (Self::Secret { name, version }, Self::Secret { name: other_name, version: other_version }) => {
                (name, version) == (other_name, other_version)
            }
            (Self::Secret { .. }, _) | (_, Self::Secret { .. }) => false,
            (this, other) => this.value() == other.value(),
        }
    }
}

impl From<Option<Value>> for Input {
    /// Returns an input with the value. `None` becomes an absent input.
    fn from(value: Option<Value>) -> Self {
        value.map_or(Self::Absent, Self::Value)
    }
}

/// Returns whether a value's canonical JSON text parses to an equal value. The result is `false` for a value with a
/// float without a fraction (`1.0`), or an integer past 2^53, because canonical JSON prints these as other numbers.
fn round_trips(value: &Value) -> bool {
    const MAX_EXACT_INTEGER: u64 = 1 << 53;
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => true,
        Value::Number(number) => match number.as_i64() {
            Some(integer) => integer.unsigned_abs() <= MAX_EXACT_INTEGER,
            None => number.is_f64() && number.as_f64().is_some_and(|float| float.fract() != 0.0),
        },
        Value::Array(items) => items.iter().all(round_trips),
        Value::Object(fields) => fields.values().all(round_trips),
    }
}

impl Inputs {
    /// Creates an empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the input of one reference.
    ///
    /// # Errors
    /// [`InputsTooLarge`] if the inputs would exceed [`MAX_INPUTS`] or [`MAX_INPUT_BYTES`]. In this case nothing is
    /// changed.
    pub fn insert(&mut self, reference: Reference, input: Input) -> Result<(), InputsTooLarge> {
        let (old_bytes, is_replaced) =
            self.entries.get(&reference).map_or((0, false), |old| (reference.as_str().len() + old.size_bytes(), true));
        let bytes = self.bytes - old_bytes + reference.as_str().len() + input.size_bytes();
        let count = self.entries.len() + usize::from(!is_replaced);
        if bytes > MAX_INPUT_BYTES || count > MAX_INPUTS {
            return Err(InputsTooLarge { reference });
        }
        self.bytes = bytes;
        self.entries.insert(reference, input);
        Ok(())
    }

    /// Returns the input of a reference. `None` means that no input was sent. [`Input::Absent`] means that the input
    /// was sent and has no value.
    pub fn get(&self, reference: &Reference) -> Option<&Input> {
        self.entries.get(reference)
    }

    /// Returns the input that a reference reads. If the reference has no input of its own, a wider input is searched,
    /// because [`merge_references`] retains only the wider of two references. Of a wider parameter or fact, the part is
    /// returned, or [`Input::Absent`] if there is no such part. Of a look-up with more fields, the whole input is
    /// returned. Returns `None` if no such input was sent.
    pub fn find(&self, reference: &Reference) -> Option<Cow<'_, Input>> {
        if let Some(input) = self.get(reference) {
            return Some(Cow::Borrowed(input));
        }
        reference.wider_inputs().find_map(|wider| match wider {
            WiderInput::Whole(text, inner_path) => {
                let value = self.get_by_text(&text)?.1.value();
                Some(Cow::Owned(value.and_then(|value| inner_path.get(&value).cloned()).into()))
            }
            WiderInput::MoreFields(prefix, fields) => self
                .with_text_prefix(&prefix)
                .find(|(key, _)| key.read().fields().is_some_and(|outer| fields.is_within(outer)))
                .map(|(_, input)| Cow::Borrowed(input)),
        })
    }

    /// Returns the input whose reference has this canonical text.
    pub(crate) fn get_by_text(&self, reference: &str) -> Option<(&Reference, &Input)> {
        self.entries.get_key_value(reference)
    }

    /// Returns all inputs whose reference's text begins with `prefix`, in order.
    pub(crate) fn with_text_prefix<'a, 'p>(
        &'a self,
        prefix: &'p str,
    ) -> impl Iterator<Item = (&'a Reference, &'a Input)> + use<'a, 'p> {
        self.entries
            .range::<str, _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded))
            .take_while(move |(reference, _)| reference.as_str().starts_with(prefix))
    }

    /// Returns all inputs, in the order of the texts of their references.
    pub fn iter(&self) -> btree_map::Iter<'_, Reference, Input> {
        self.entries.iter()
    }

    /// Returns the number of inputs.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the approximate size of the references and their values as JSON, in bytes. Escapes in strings are not
    /// counted.
    pub fn size_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether there are no inputs.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl<'a> IntoIterator for &'a Inputs {
    type Item = (&'a Reference, &'a Input);
    type IntoIter = btree_map::Iter<'a, Reference, Input>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter()
    }
}

impl Serialize for Inputs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(&self.entries)
    }
}

impl<'de> Deserialize<'de> for Inputs {
    /// Reads a map of references to inputs. Fails if a reference occurs twice or the inputs exceed their maximum size.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InputsVisitor;
        impl<'de> Visitor<'de> for InputsVisitor {
            type Value = Inputs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a map of at most {MAX_INPUTS} references to inputs")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Inputs, A::Error> {
                let mut inputs = Inputs::new();
                while let Some((reference, input)) = map.next_entry::<Reference, Input>()? {
                    if inputs.get(&reference).is_some() {
                        return Err(A::Error::custom(format_args!("`{reference}` occurs twice")));
                    }
                    inputs.insert(reference, input).map_err(A::Error::custom)?;
                }
                Ok(inputs)
            }
        }
        deserializer.deserialize_map(InputsVisitor)
    }
}

/// The serialized form of an input. `T` is the type of the value: a JSON value in a human-readable format such as JSON,
/// and a JSON text in a binary format such as Postcard. A JSON value is recursive, and no message in Postcard contains
/// a recursive type. The parser of the text limits the nesting depth.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum InputWire<T> {
    Value(T),
    Absent,
    Secret { name: Box<str>, version: u64 },
}

impl Serialize for Input {
    /// Writes the value as JSON in a human-readable format, and as JSON text in any other format, such as postcard.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_readable = serializer.is_human_readable();
        let write = |value: &Value, serializer: S| {
            if is_readable {
                InputWire::Value(value).serialize(serializer)
            } else {
                InputWire::Value(value.to_string()).serialize(serializer)
            }
        };
        match self {
            Self::Value(value) => write(value, serializer),
            Self::Shared(shared) => write(&shared.value(), serializer),
            Self::Absent => InputWire::<()>::Absent.serialize(serializer),
            Self::Secret { name, version } => {
                InputWire::<()>::Secret { name: name.clone(), version: *version }.serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Input {
    /// Reads the value as JSON from a human-readable format, and as JSON text from any other format, such as postcard.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = if deserializer.is_human_readable() {
            InputWire::<Value>::deserialize(deserializer)?
        } else {
            match InputWire::<String>::deserialize(deserializer)? {
                InputWire::Value(text) => InputWire::Value(serde_json::from_str(&text).map_err(D::Error::custom)?),
                InputWire::Absent => InputWire::Absent,
                InputWire::Secret { name, version } => InputWire::Secret { name, version },
            }
        };
        Ok(match wire {
            InputWire::Value(value) => Self::Value(value),
            InputWire::Absent => Self::Absent,
            InputWire::Secret { name, version } => Self::Secret { name, version },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reference(text: &str) -> Reference {
        text.parse().expect("a reference of the test")
    }

    #[test]
    fn inputs_round_trip_through_json_in_text_order() {
        let text = r#"{"'A' in traits":{"value":true},"labels.a":{"value":"x"},"labels.b":"absent","params.p":{"value":null},"secret('db')":{"secret":{"name":"db","version":3}}}"#;
        let inputs: Inputs = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&inputs).unwrap(), text);
        assert_eq!(inputs.get(&reference("labels.b")), Some(&Input::Absent));
        assert_eq!(inputs.get(&reference("params.p")), Some(&Input::Value(Value::Null)));
        assert_eq!(inputs.get(&reference("labels.c")), None);
    }

    /// Inputs of too many bytes are rejected by `insert`, and too many inputs by the parser. A replaced input no longer
    /// counts.
    #[test]
    fn insert_changes_nothing_when_inputs_become_too_large() {
        let mut inputs = Inputs::new();
        let large = json!("x".repeat(MAX_INPUT_BYTES / 2));
        inputs.insert(reference("params.a"), Input::Value(large.clone())).unwrap();
        let error = inputs.insert(reference("params.b"), Input::Value(large.clone())).unwrap_err();
        assert_eq!(error.reference, reference("params.b"));
        assert_eq!(inputs.len(), 1);
        inputs.insert(reference("params.a"), Input::Value(large)).expect("the replaced input no longer counts");

        let entries: Vec<_> = (0..=MAX_INPUTS).map(|n| format!(r#""labels.k{n}":"absent""#)).collect();
        let error = serde_json::from_str::<Inputs>(&format!("{{{}}}", entries.join(","))).unwrap_err();
        assert!(error.to_string().contains("exceed 1024 entries"), "{error}");
    }

    /// In this test, the inputs are one parameter, two look-ups, and `params.gone` without a value. A reference to a
    /// part of a parameter finds that part. A reference to a look-up with fewer fields finds the whole result.
    #[test]
    fn find_reads_part_of_wider_input() {
        let mut inputs = Inputs::new();
        for (text, value) in [
            ("params.x", json!({"y": {"z": 1}})),
            ("nodes(tag='a'){labels.zone, name}", json!([{"labels": {"zone": "z"}, "name": "n"}])),
            ("nodes(tag='ab'){address}", json!([])),
        ] {
            inputs.insert(reference(text), Input::Value(value)).unwrap();
        }
        inputs.insert(reference("params.gone"), Input::Absent).unwrap();
        for (text, expected) in [
            ("params.x.y.z", Some(Input::Value(json!(1)))),
            ("params.x.q", Some(Input::Absent)),
            ("params.gone.q", Some(Input::Absent)),
            ("params.other", None),
            ("labels.x", None),
            ("nodes(tag='a'){name}", Some(Input::Value(json!([{"labels": {"zone": "z"}, "name": "n"}])))),
            ("nodes(tag='a')", Some(Input::Value(json!([{"labels": {"zone": "z"}, "name": "n"}])))),
            ("nodes(tag='a'){address}", None),
        ] {
            assert_eq!(inputs.find(&reference(text)).map(Cow::into_owned), expected, "{text}");
        }
    }

    #[test]
    fn inputs_reject_duplicate_reference() {
        let text = r#"{"labels.a":"absent","labels.a":{"value":"x"}}"#;
        let error = serde_json::from_str::<Inputs>(text).unwrap_err();
        assert!(error.to_string().contains("`labels.a` occurs twice"), "{error}");
    }
}
