//! Inputs: what a template or a condition reads, by name, and the value of each.
//!
//! A host renders from the inputs that it was sent and from nothing else, the controller evaluates
//! conditions over the same map, and a task's digest is computed from it without rendering. So three
//! parties must agree on what a read is called: that is a [`Reference`], which has one text and no other.
//! What is absent is an input too. Were it left out, a label that is taken away would change no digest
//! and the file that was made from it would stay.

pub mod facts;
pub mod fields;
mod need;
mod path;
mod read;
mod reference;
pub mod shell;
mod syntax;
pub mod template;
mod unite;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map;
use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::digest::{Hex, sha256, sha256_of_parts, write_canonical};
use crate::shared_text::{JsonText, SharedTexts, weigh};

pub use need::Need;
pub use path::{MAX_DEPTH, Path};
pub use read::{Fields, MAX_NAMES, Names, Query, Read, ReferenceError};
pub use reference::Reference;
use unite::Wider;

pub use unite::unite;

/// The most inputs that one task may have.
pub(crate) const MAX_INPUTS: usize = 1_024;

/// The most bytes, as JSON with their references, that the inputs of one task may take: that of a desired state.
pub(crate) const MAX_INPUT_BYTES: usize = 256 * 1024;

/// The most bytes of a value that is copied for each task that reads it.
const MAX_COPIED: usize = 128;

/// The value of one reference for one host.
///
/// Two inputs are equal if their values are, however they are held.
#[derive(Clone, Debug)]
pub enum Input {
    /// The value. `null` is a value: a parameter may hold one.
    Value(Value),
    /// One value for all that read it: what a look-up found, which may be as large as its cluster, or a large text of a level above.
    Shared(Arc<SharedValue>),
    /// Nothing is there. Templates see it as undefined, conditions as an error that `has()` asks for.
    Absent,
    /// A secret, by name and version. Its value is never an input, so it is in no digest, log or history.
    Secret {
        /// The name of the Secret object.
        name: Box<str>,
        /// The version of the object's value; 0 where the controller has none and the host must.
        version: u64,
    },
}

/// A value that is held once for all that read it: its size is taken once, and its digest once somebody asks for it.
#[derive(Debug)]
pub struct SharedValue {
    held: Held,
    weight: usize,
    digest: OnceLock<String>,
}

/// How a shared value is held.
#[derive(Debug)]
enum Held {
    /// As it is.
    Value(Value),
    /// As its canonical text, from which it comes back equal.
    Text(JsonText),
}

/// The inputs of one task on one host, in the order of the references' texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    entries: BTreeMap<Reference, Input>,
    bytes: usize,
}

/// A task reads more than may be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "with `{}` the inputs exceed {MAX_INPUTS} entries or {MAX_INPUT_BYTES} bytes; read fewer or smaller values",
    .reference.as_written()
)]
pub struct InputsTooLarge {
    /// The reference that did not fit.
    pub reference: Reference,
}

impl Input {
    /// The value, if there is one to see.
    pub fn value(&self) -> Option<Cow<'_, Value>> {
        match self {
            Self::Value(value) => Some(Cow::Borrowed(value)),
            Self::Shared(found) => Some(found.value()),
            Self::Absent | Self::Secret { .. } => None,
        }
    }

    /// The same, held once for all that read it where it is large, of the texts that others hold.
    pub(crate) fn shared(self, texts: &SharedTexts) -> Self {
        match self {
            Self::Value(value) if weigh(&value) > MAX_COPIED => {
                Self::Shared(Arc::new(SharedValue::of_texts(value, texts)))
            }
            other => other,
        }
    }

    /// Whether the other is known to be equal without a comparison of what is shared.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Shared(one), Self::Shared(other)) => Arc::ptr_eq(one, other),
            (one, other) => one == other,
        }
    }

    /// Appends it as canonical JSON.
    pub(crate) fn write_canonical(&self, out: &mut String) {
        let text = match self {
            Self::Value(value) => JsonText::of(value),
            Self::Shared(found) => found.text(),
            Self::Absent | Self::Secret { .. } => {
                return write_canonical(out, &serde_json::to_value(self).expect("an input is JSON"));
            }
        };
        out.push_str("{\"value\":");
        out.extend(text.chunks().iter().map(|chunk| &**chunk));
        out.push('}');
    }

    /// Bytes that this input takes as JSON, about: escapes of strings are not counted.
    fn weight(&self) -> usize {
        match self {
            Self::Value(value) => weigh(value),
            Self::Shared(found) => found.weight,
            Self::Absent => 8,
            Self::Secret { name, .. } => name.len() + 32,
        }
    }
}

impl SharedValue {
    /// A value to share.
    pub fn new(value: Value) -> Self {
        Self { weight: weigh(&value), held: Held::Value(value), digest: OnceLock::new() }
    }

    /// A value to share, as a text whose chunks are shared with others. One that would not come back equal is held as it is.
    fn of_texts(value: Value, texts: &SharedTexts) -> Self {
        if !comes_back(&value) {
            return Self::new(value);
        }
        let mut text = JsonText::of(&value);
        texts.share(text.chunks_mut().iter_mut());
        Self { weight: weigh(&value), held: Held::Text(text), digest: OnceLock::new() }
    }

    /// The value.
    pub fn value(&self) -> Cow<'_, Value> {
        match &self.held {
            Held::Value(value) => Cow::Borrowed(value),
            Held::Text(text) => Cow::Owned(serde_json::from_str(&text.as_text()).expect("a text of a value is JSON")),
        }
    }

    /// Its canonical text.
    pub fn text(&self) -> JsonText {
        match &self.held {
            Held::Value(value) => JsonText::of(value),
            Held::Text(text) => text.clone(),
        }
    }

    /// A text as short as any, that tells two values apart.
    pub(crate) fn digest(&self) -> &str {
        let sum = || match &self.held {
            Held::Value(value) => sha256(value.to_string().as_bytes()),
            Held::Text(text) => sha256_of_parts(text.chunks().iter().map(|chunk| chunk.as_bytes())),
        };
        self.digest.get_or_init(|| Hex(&sum()).to_string())
    }
}

impl PartialEq for Input {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Shared(one), Self::Shared(other)) if Arc::ptr_eq(one, other) => true,
            (Self::Shared(one), Self::Shared(other)) => match (&one.held, &other.held) {
                (Held::Text(one), Held::Text(other)) => one == other,
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

/// Whether a value is read back equal from its canonical text, which prints whole floats and integers past 2^53 as other numbers.
fn comes_back(value: &Value) -> bool {
    const EXACT: u64 = 1 << 53;
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => true,
        Value::Number(number) => match number.as_i64() {
            Some(integer) => integer.unsigned_abs() <= EXACT,
            None => number.is_f64() && number.as_f64().is_some_and(|float| float.fract() != 0.0),
        },
        Value::Array(items) => items.iter().all(comes_back),
        Value::Object(fields) => fields.values().all(comes_back),
    }
}

impl Inputs {
    /// No inputs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the value of one reference.
    ///
    /// # Errors
    /// [`InputsTooLarge`] past [`MAX_INPUTS`] or [`MAX_INPUT_BYTES`]; nothing is changed then.
    pub fn insert(&mut self, reference: Reference, input: Input) -> Result<(), InputsTooLarge> {
        let (gone, known) =
            self.entries.get(&reference).map_or((0, false), |old| (reference.as_str().len() + old.weight(), true));
        let bytes = self.bytes - gone + reference.as_str().len() + input.weight();
        let count = self.entries.len() + usize::from(!known);
        if bytes > MAX_INPUT_BYTES || count > MAX_INPUTS {
            return Err(InputsTooLarge { reference });
        }
        self.bytes = bytes;
        self.entries.insert(reference, input);
        Ok(())
    }

    /// The input of a reference; `None` where it was not sent, which is not the same as absent.
    pub fn get(&self, reference: &Reference) -> Option<&Input> {
        self.entries.get(reference)
    }

    /// What a reference reads here: its own input, or its part of another that reads more ([`unite`] keeps
    /// only that one). `None` where neither was sent.
    pub fn find(&self, reference: &Reference) -> Option<Cow<'_, Input>> {
        if let Some(input) = self.get(reference) {
            return Some(Cow::Borrowed(input));
        }
        reference.wider().find_map(|wider| match wider {
            Wider::Whole(whole, rest) => {
                let value = self.get_text(&whole)?.1.value();
                Some(Cow::Owned(value.and_then(|value| rest.walk(&value).cloned()).into()))
            }
            Wider::MoreFields(bare, fields) => self
                .with_text_prefix(&bare)
                .find(|(other, _)| other.read().fields().is_some_and(|more| fields.is_within(more)))
                .map(|(_, input)| Cow::Borrowed(input)),
        })
    }

    /// The input whose reference has this canonical text.
    pub(crate) fn get_text(&self, reference: &str) -> Option<(&Reference, &Input)> {
        self.entries.get_key_value(reference)
    }

    /// All inputs whose reference's text begins with `prefix`, in order.
    pub(crate) fn with_text_prefix<'a, 'p>(
        &'a self,
        prefix: &'p str,
    ) -> impl Iterator<Item = (&'a Reference, &'a Input)> + use<'a, 'p> {
        self.entries
            .range::<str, _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded))
            .take_while(move |(reference, _)| reference.as_str().starts_with(prefix))
    }

    /// All inputs in order.
    pub fn iter(&self) -> btree_map::Iter<'_, Reference, Input> {
        self.entries.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of the references and of their values as JSON, about: escapes of strings are not counted.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing is read.
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
        struct Bounded;
        impl<'de> Visitor<'de> for Bounded {
            type Value = Inputs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a map of at most {MAX_INPUTS} references to inputs")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Inputs, A::Error> {
                let mut inputs = Inputs::new();
                while let Some((reference, input)) = map.next_entry::<Reference, Input>()? {
                    if inputs.get(&reference).is_some() {
                        return Err(A::Error::custom(format_args!("`{reference}` stands twice")));
                    }
                    inputs.insert(reference, input).map_err(A::Error::custom)?;
                }
                Ok(inputs)
            }
        }
        deserializer.deserialize_map(Bounded)
    }
}

/// What stands on the wire. JSON keeps its shape where the format can hold it; elsewhere (postcard, which
/// has no recursive types and must not get one) it is the JSON text, whose parser bounds its depth.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Wire<T> {
    Value(T),
    Absent,
    Secret { name: Box<str>, version: u64 },
}

impl Serialize for Input {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let readable = serializer.is_human_readable();
        let write = |value: &Value, serializer: S| {
            if readable {
                Wire::Value(value).serialize(serializer)
            } else {
                Wire::Value(value.to_string()).serialize(serializer)
            }
        };
        match self {
            Self::Value(value) => write(value, serializer),
            Self::Shared(found) => write(&found.value(), serializer),
            Self::Absent => Wire::<()>::Absent.serialize(serializer),
            Self::Secret { name, version } => {
                Wire::<()>::Secret { name: name.clone(), version: *version }.serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = if deserializer.is_human_readable() {
            Wire::<Value>::deserialize(deserializer)?
        } else {
            match Wire::<String>::deserialize(deserializer)? {
                Wire::Value(text) => Wire::Value(serde_json::from_str(&text).map_err(D::Error::custom)?),
                Wire::Absent => Wire::Absent,
                Wire::Secret { name, version } => Wire::Secret { name, version },
            }
        };
        Ok(match wire {
            Wire::Value(value) => Self::Value(value),
            Wire::Absent => Self::Absent,
            Wire::Secret { name, version } => Self::Secret { name, version },
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
    fn inputs_come_back_from_json_in_the_order_of_their_texts() {
        let text = r#"{"'A' in traits":{"value":true},"labels.a":{"value":"x"},"labels.b":"absent","params.p":{"value":null},"secret('db')":{"secret":{"name":"db","version":3}}}"#;
        let inputs: Inputs = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&inputs).unwrap(), text);
        assert_eq!(inputs.get(&reference("labels.b")), Some(&Input::Absent));
        assert_eq!(inputs.get(&reference("params.p")), Some(&Input::Value(Value::Null)));
        assert_eq!(inputs.get(&reference("labels.c")), None);
    }

    #[test]
    fn inputs_are_bounded_on_the_way_in_and_unchanged_by_what_does_not_fit() {
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
    fn a_read_is_found_in_one_that_reads_more() {
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
    fn a_reference_that_stands_twice_is_refused() {
        let twice = r#"{"labels.a":"absent","labels.a":{"value":"x"}}"#;
        let error = serde_json::from_str::<Inputs>(twice).unwrap_err();
        assert!(error.to_string().contains("`labels.a` stands twice"), "{error}");
    }
}
