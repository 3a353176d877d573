//! Inputs: what a template or a condition reads, by name, and the value of each.
//!
//! A host renders only from the inputs that it received. The controller evaluates conditions over the same map, and
//! computes a task's digest from it without rendering. So three parties must use the same name for a read: a
//! [`Reference`], which has exactly one text. An absent value is an input too. If it were omitted, removing a label
//! would change no digest, and the file made from it would stay.

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

/// Maximum size of one task's inputs with their references, in bytes of JSON. It equals the maximum size of a desired
/// state.
pub(crate) const MAX_INPUT_BYTES: usize = 256 * 1024;

/// Maximum size of a value that is copied for each task that reads it, in bytes.
const MAX_COPIED_BYTES: usize = 128;

/// The value of one reference for one host.
///
/// Two inputs are equal if their values are equal, however they are stored.
#[derive(Clone, Debug)]
pub enum Input {
    /// A value. `null` is a value: a parameter may contain it.
    Value(Value),
    /// A value that is stored once for all tasks that read it: the result of a look-up, which may be as large as its
    /// cluster, or a large text from a level above.
    Shared(Arc<SharedValue>),
    /// There is no value. Templates see it as undefined. In conditions it is an error unless `has()` tests for it.
    Absent,
    /// A secret, by name and version. Its value is never an input, so it is in no digest, log or history.
    Secret {
        /// The name of the Secret object.
        name: Box<str>,
        /// The version of the object's value. 0 if the controller does not store the value, so that the host must.
        version: u64,
    },
}

/// A value that is stored once for all tasks that read it. Its size is computed once, its digest at the first use.
#[derive(Debug)]
pub struct SharedValue {
    storage: ValueStorage,
    size_bytes: usize,
    digest: OnceLock<String>,
}

/// How a shared value is stored.
#[derive(Debug)]
enum ValueStorage {
    /// As a value.
    Value(Value),
    /// As its canonical text, which parses to an equal value.
    Text(JsonText),
}

/// The inputs of one task on one host, in the order of the references' texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    entries: BTreeMap<Reference, Input>,
    bytes: usize,
}

/// A task reads more than may be sent to a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "with `{}` the inputs exceed {MAX_INPUTS} entries or {MAX_INPUT_BYTES} bytes; read fewer or smaller values",
    .reference.display_text()
)]
pub struct InputsTooLarge {
    /// The reference that did not fit.
    pub reference: Reference,
}

impl Input {
    /// Returns the value, or `None` if it is absent or secret.
    pub fn value(&self) -> Option<Cow<'_, Value>> {
        match self {
            Self::Value(value) => Some(Cow::Borrowed(value)),
            Self::Shared(shared) => Some(shared.value()),
            Self::Absent | Self::Secret { .. } => None,
        }
    }

    /// Moves a large value into a shared one, with text chunks from `texts`.
    pub(crate) fn into_shared(self, texts: &SharedTexts) -> Self {
        match self {
            Self::Value(value) if estimate_bytes(&value) > MAX_COPIED_BYTES => {
                Self::Shared(Arc::new(SharedValue::from_texts(value, texts)))
            }
            other => other,
        }
    }

    /// Returns whether two inputs are equal. Shared values are compared by address, which is fast, so the result may be
    /// `false` for shared values that are equal.
    pub fn is_identical(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Shared(one), Self::Shared(other)) => Arc::ptr_eq(one, other),
            (one, other) => one == other,
        }
    }

    /// Appends the input as canonical JSON, from which a task's digest is computed.
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

    /// Returns the approximate size as JSON, in bytes. Escapes in strings are not counted.
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
    /// Creates a shared value.
    pub fn new(value: Value) -> Self {
        Self { size_bytes: estimate_bytes(&value), storage: ValueStorage::Value(value), digest: OnceLock::new() }
    }

    /// Creates a shared value that is stored as text, with chunks shared through `texts`. It is stored as a value if
    /// its canonical text would not parse to an equal one.
    fn from_texts(value: Value, texts: &SharedTexts) -> Self {
        if !round_trips(&value) {
            return Self::new(value);
        }
        let mut text = JsonText::from_value(&value);
        texts.intern_all(text.chunks_mut().iter_mut());
        Self { size_bytes: estimate_bytes(&value), storage: ValueStorage::Text(text), digest: OnceLock::new() }
    }

    /// Returns the value.
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

    /// Returns a text that identifies the value: different values have different texts.
    pub(crate) fn value_digest(&self) -> &str {
        let sum = || match &self.storage {
            ValueStorage::Value(value) => sha256(value.to_string().as_bytes()),
            ValueStorage::Text(text) => sha256_of_parts(text.chunks().iter().map(|chunk| chunk.as_bytes())),
        };
        self.digest.get_or_init(|| Hex(&sum()).to_string())
    }
}

impl PartialEq for Input {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Shared(one), Self::Shared(other)) if Arc::ptr_eq(one, other) => true,
            (Self::Shared(one), Self::Shared(other)) => match (&one.storage, &other.storage) {
                (ValueStorage::Text(one), ValueStorage::Text(other)) => one == other,
                _ => one.value() == other.value(),
            },
            (Self::Secret { name, version }, Self::Secret { name: other_name, version: other_version }) => {
                (name, version) == (other_name, other_version)
            }
            (Self::Secret { .. }, _) | (_, Self::Secret { .. }) => false,
            (one, other) => one.value() == other.value(),
        }
    }
}

impl From<Option<Value>> for Input {
    fn from(value: Option<Value>) -> Self {
        value.map_or(Self::Absent, Self::Value)
    }
}

/// Returns whether a value's canonical text parses to an equal value. Whole floats and integers past 2^53 do not: they
/// are printed as other numbers.
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
    /// [`InputsTooLarge`] past [`MAX_INPUTS`] or [`MAX_INPUT_BYTES`]. Nothing is changed then.
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

    /// Returns the input of a reference. `None` means that it was not sent, which differs from [`Input::Absent`].
    pub fn get(&self, reference: &Reference) -> Option<&Input> {
        self.entries.get(reference)
    }

    /// Returns what a reference reads: its own input, or a part of an input that contains more, because
    /// [`merge_references`] retains only the wider input. Returns `None` if neither was sent.
    pub fn find(&self, reference: &Reference) -> Option<Cow<'_, Input>> {
        if let Some(input) = self.get(reference) {
            return Some(Cow::Borrowed(input));
        }
        reference.wider_inputs().find_map(|wider| match wider {
            WiderInput::Whole(whole, rest) => {
                let value = self.get_by_text(&whole)?.1.value();
                Some(Cow::Owned(value.and_then(|value| rest.get(&value).cloned()).into()))
            }
            WiderInput::MoreFields(prefix, fields) => self
                .with_text_prefix(&prefix)
                .find(|(other, _)| other.read().fields().is_some_and(|more| fields.is_within(more)))
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

    /// Returns all inputs in order.
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

/// The serialized form of an input. A self-describing format contains the value as JSON. Other formats contain the JSON
/// as text: postcard has no recursive types, and the parser of the text bounds its depth.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum InputWire<T> {
    Value(T),
    Absent,
    Secret { name: Box<str>, version: u64 },
}

impl Serialize for Input {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let readable = serializer.is_human_readable();
        let write = |value: &Value, serializer: S| {
            if readable {
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

    #[test]
    fn insert_changes_nothing_when_inputs_become_too_large() {
        let mut inputs = Inputs::new();
        let large = json!("x".repeat(MAX_INPUT_BYTES / 2));
        inputs.insert(reference("params.a"), Input::Value(large.clone())).unwrap();
        let refused = inputs.insert(reference("params.b"), Input::Value(large.clone())).unwrap_err();
        assert_eq!(refused.reference, reference("params.b"));
        assert_eq!(inputs.len(), 1);
        inputs.insert(reference("params.a"), Input::Value(large)).expect("replaces what it weighed");

        let many: Vec<_> = (0..=MAX_INPUTS).map(|n| format!(r#""labels.k{n}":"absent""#)).collect();
        let error = serde_json::from_str::<Inputs>(&format!("{{{}}}", many.join(","))).unwrap_err();
        assert!(error.to_string().contains("exceed 1024 entries"), "{error}");
    }

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
        for (text, found) in [
            ("params.x.y.z", Some(Input::Value(json!(1)))),
            ("params.x.q", Some(Input::Absent)),
            ("params.gone.q", Some(Input::Absent)),
            ("params.other", None),
            ("labels.x", None),
            ("nodes(tag='a'){name}", Some(Input::Value(json!([{"labels": {"zone": "z"}, "name": "n"}])))),
            ("nodes(tag='a')", Some(Input::Value(json!([{"labels": {"zone": "z"}, "name": "n"}])))),
            ("nodes(tag='a'){address}", None),
        ] {
            assert_eq!(inputs.find(&reference(text)).map(Cow::into_owned), found, "{text}");
        }
    }

    #[test]
    fn inputs_reject_duplicate_reference() {
        let twice = r#"{"labels.a":"absent","labels.a":{"value":"x"}}"#;
        let error = serde_json::from_str::<Inputs>(twice).unwrap_err();
        assert!(error.to_string().contains("`labels.a` occurs twice"), "{error}");
    }
}
