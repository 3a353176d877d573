//! The inputs as a template sees them.
//!
//! Each root is an object that knows the inputs below it and nothing else, so what was not sent cannot be
//! reached. An object cannot fail where it is asked for a key, so what is missed is written down here and
//! the rendering fails afterwards, also if the template had a `default` for it: absent and not sent differ.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use minijinja::value::{Serde, Value};
use stemma_core::input::{Fields, Input, Inputs, Read, Reference};

use crate::Secrets;

/// The most absent reads that an error names.
const MAX_NAMED: usize = 4;

/// The inputs, by the text that a template's read leads to.
pub(crate) struct View {
    entries: BTreeMap<String, Entry>,
    noted: Mutex<Noted>,
    /// Whether any value is a secret's, so that errors must not repeat values.
    pub(crate) has_secrets: bool,
}

struct Entry {
    found: InputState,
    references: Vec<Reference>,
    read: AtomicBool,
}

enum InputState {
    Value(Value),
    Absent,
    Unavailable { name: String, reason: String },
}

/// What went wrong while a template asked for inputs.
#[derive(Default)]
pub(crate) struct Noted {
    /// The first read that is no input.
    pub(crate) missing: Option<String>,
    /// The reads that are absent, in order.
    pub(crate) absent: Vec<String>,
    /// Whether the last read of all is the last of those.
    pub(crate) ends_absent: bool,
    /// The first secret that cannot be had, and why.
    pub(crate) secret: Option<(String, String)>,
}

impl Noted {
    /// What may have been needed and is absent: the last read of all, else each that is absent.
    pub(crate) fn needed(mut self) -> Vec<String> {
        if self.ends_absent {
            self.absent.drain(..self.absent.len() - 1);
        }
        self.absent.dedup();
        self.absent.truncate(MAX_NAMED);
        self.absent
    }
}

impl View {
    pub(crate) fn new(inputs: &Inputs, secrets: &dyn Secrets) -> Self {
        let mut view = Self { entries: BTreeMap::new(), noted: Mutex::default(), has_secrets: false };
        let mut rows: BTreeMap<String, serde_json::Value> = BTreeMap::new();
        for (reference, input) in inputs {
            let text = bare(reference);
            let mut seen = |value: &serde_json::Value| {
                if reference.read().fields().is_none() {
                    return InputState::Value(Value::from(Serde(value)));
                }
                let row = rows.entry(text.clone()).or_insert(serde_json::Value::Null);
                merge(row, value);
                InputState::Value(Value::from(Serde(&*row)))
            };
            let found = match input {
                Input::Value(value) => seen(value),
                Input::Shared(found) => seen(&found.value()),
                Input::Absent => InputState::Absent,
                Input::Secret { name, version } => {
                    view.has_secrets = true;
                    match secrets.value(name, *version) {
                        Ok(value) => InputState::Value(Value::from(value)),
                        Err(error) => InputState::Unavailable { name: name.to_string(), reason: error.reason },
                    }
                }
            };
            view.add(text, found, reference.clone());
        }
        view
    }

    fn add(&mut self, text: String, found: InputState, reference: Reference) {
        let entry = self.entries.entry(text).or_insert_with(|| Entry {
            found: InputState::Absent,
            references: Vec::new(),
            read: AtomicBool::new(false),
        });
        entry.found = found;
        entry.references.push(reference);
    }

    /// What was noted since the last time.
    pub(crate) fn take_noted(&self) -> Noted {
        std::mem::take(&mut *self.noted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a value holds a character.
    pub(crate) fn has_char(&self, c: char) -> bool {
        self.entries.values().any(|entry| match &entry.found {
            InputState::Value(value) => value.to_string().contains(c),
            InputState::Absent | InputState::Unavailable { .. } => false,
        })
    }

    /// The inputs that were read.
    pub(crate) fn read(&self) -> Vec<Reference> {
        let read = self.entries.values().filter(|entry| entry.read.load(Ordering::Relaxed));
        let mut all: Vec<Reference> = read.flat_map(|entry| entry.references.iter().cloned()).collect();
        all.sort();
        all
    }

    fn note(&self, with: impl FnOnce(&mut Noted)) {
        with(&mut self.noted.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Notes a read that is no input.
    pub(crate) fn miss(&self, text: &str) {
        self.note(|noted| {
            noted.missing.get_or_insert_with(|| text.to_owned());
        });
    }

    /// The value of a read; `None` where it is absent, and where it is no input, which is noted.
    fn get(&self, text: &str) -> Option<Value> {
        let Some(entry) = self.entries.get(text) else {
            self.miss(text);
            return None;
        };
        entry.read.store(true, Ordering::Relaxed);
        match &entry.found {
            InputState::Value(value) => {
                self.note(|noted| noted.ends_absent = false);
                Some(value.clone())
            }
            InputState::Absent => {
                self.note(|noted| {
                    noted.absent.push(text.to_owned());
                    noted.ends_absent = true;
                });
                None
            }
            InputState::Unavailable { name, reason } => {
                self.note(|noted| {
                    noted.secret.get_or_insert_with(|| (name.clone(), reason.clone()));
                });
                None
            }
        }
    }

    /// The value of a read, as [`View::get`].
    pub(crate) fn get_read(&self, read: Read) -> Option<Value> {
        match Reference::new(read) {
            Ok(reference) => self.get(reference.as_str()),
            Err(error) => {
                self.miss(&error.to_string());
                None
            }
        }
    }

    /// Whether the text is no input itself and some lie below it.
    pub(crate) fn is_way(&self, text: &str) -> bool {
        if self.entries.contains_key(text) {
            return false;
        }
        let below = self.entries.range(text.to_owned()..).map(|(other, _)| other.as_str());
        below.take_while(|other| other.starts_with(text)).any(|other| other[text.len()..].starts_with(['.', '[']))
    }
}

/// The text of a reference without the fields of its nodes.
fn bare(reference: &Reference) -> String {
    let read = match reference.read().clone() {
        Read::Nodes { query, .. } => Read::Nodes { query, fields: Fields::default() },
        Read::Primary { tag, .. } => Read::Primary { tag, fields: Fields::default() },
        other => other,
    };
    Reference::new(read).map_or_else(|_| reference.to_string(), |bare| bare.to_string())
}

/// Two look-ups of the same nodes with other fields are the same list: their nodes are put together.
fn merge(into: &mut serde_json::Value, from: &serde_json::Value) {
    use serde_json::Value as Json;
    match (into, from) {
        (Json::Array(left), Json::Array(right)) if left.len() == right.len() => {
            left.iter_mut().zip(right).for_each(|(left, right)| merge(left, right));
        }
        (Json::Object(left), Json::Object(right)) => {
            for (key, value) in right {
                merge(left.entry(key).or_insert(Json::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}
