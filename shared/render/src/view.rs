//! The inputs as a template sees them.
//!
//! Each root is an object that knows only the inputs below it, so a template cannot reach what was not sent. A
//! minijinja object cannot return an error for a key. So reads of inputs that were not sent are recorded here, and
//! rendering fails at its end. `default` does not help: it covers absent values, not values that were not sent.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use minijinja::value::{Serde, Value};
use stemma_core::input::{FieldSet, Input, Inputs, Read, Reference};

use crate::Secrets;

/// Maximum number of absent inputs that an error names.
const MAX_NAMED_READS: usize = 4;

/// The inputs, by the text of the read that finds each.
pub(crate) struct InputView {
    entries: BTreeMap<String, InputEntry>,
    failed_reads: Mutex<FailedReads>,
    /// True if any value comes from a secret. Errors must then not quote values.
    pub(crate) has_secrets: bool,
}

/// An input, or the inputs that differ only in the fields of looked-up nodes.
struct InputEntry {
    state: InputState,
    references: Vec<Reference>,
    is_read: AtomicBool,
}

/// The value of an input, or why it has none.
enum InputState {
    Value(Value),
    Absent,
    Unavailable { name: String, reason: String },
}

/// The failed reads of a template.
#[derive(Default)]
pub(crate) struct FailedReads {
    /// The first read of something that is not an input.
    pub(crate) not_an_input: Option<String>,
    /// The reads of absent inputs, in order.
    pub(crate) absent_reads: Vec<String>,
    /// True if the last of all reads was of an absent input.
    pub(crate) is_last_absent: bool,
    /// The name of the first secret that is not available, and the reason.
    pub(crate) secret: Option<(String, String)>,
}

impl FailedReads {
    /// Returns the reads whose absence may have caused the failure: the last of all reads if it was of an absent input,
    /// else each absent one.
    pub(crate) fn required_reads(mut self) -> Vec<String> {
        if self.is_last_absent {
            self.absent_reads.drain(..self.absent_reads.len() - 1);
        }
        self.absent_reads.dedup();
        self.absent_reads.truncate(MAX_NAMED_READS);
        self.absent_reads
    }
}

impl InputView {
    /// Collects the inputs. Look-ups of the same nodes with different fields share an entry.
    pub(crate) fn new(inputs: &Inputs, secrets: &dyn Secrets) -> Self {
        let mut view = Self { entries: BTreeMap::new(), failed_reads: Mutex::default(), has_secrets: false };
        let mut rows: BTreeMap<String, serde_json::Value> = BTreeMap::new();
        for (reference, input) in inputs {
            let text = reference_without_fields(reference);
            let mut to_state = |value: &serde_json::Value| {
                if reference.read().fields().is_none() {
                    return InputState::Value(Value::from(Serde(value)));
                }
                let row = rows.entry(text.clone()).or_insert(serde_json::Value::Null);
                merge(row, value);
                InputState::Value(Value::from(Serde(&*row)))
            };
            let state = match input {
                Input::Value(value) => to_state(value),
                Input::Shared(shared) => to_state(&shared.value()),
                Input::Absent => InputState::Absent,
                Input::Secret { name, version } => {
                    view.has_secrets = true;
                    match secrets.value(name, *version) {
                        Ok(value) => InputState::Value(Value::from(value)),
                        Err(error) => InputState::Unavailable { name: name.to_string(), reason: error.reason },
                    }
                }
            };
            view.add(text, state, reference.clone());
        }
        view
    }

    /// Adds an input to the entry with this text.
    fn add(&mut self, text: String, state: InputState, reference: Reference) {
        let entry = self.entries.entry(text).or_insert_with(|| InputEntry {
            state: InputState::Absent,
            references: Vec::new(),
            is_read: AtomicBool::new(false),
        });
        entry.state = state;
        entry.references.push(reference);
    }

    /// Returns the failed reads since the last call.
    pub(crate) fn take_failed_reads(&self) -> FailedReads {
        std::mem::take(&mut *self.failed_reads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether any value contains a character.
    pub(crate) fn has_char(&self, c: char) -> bool {
        self.entries.values().any(|entry| match &entry.state {
            InputState::Value(value) => value.to_string().contains(c),
            InputState::Absent | InputState::Unavailable { .. } => false,
        })
    }

    /// Returns the inputs that were read.
    pub(crate) fn references_read(&self) -> Vec<Reference> {
        let read_entries = self.entries.values().filter(|entry| entry.is_read.load(Ordering::Relaxed));
        let mut references: Vec<Reference> = read_entries.flat_map(|entry| entry.references.iter().cloned()).collect();
        references.sort();
        references
    }

    fn update_failed_reads(&self, update: impl FnOnce(&mut FailedReads)) {
        update(&mut self.failed_reads.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Records a read of something that is not an input.
    pub(crate) fn note_missing(&self, text: &str) {
        self.update_failed_reads(|noted| {
            noted.not_an_input.get_or_insert_with(|| text.to_owned());
        });
    }

    /// Returns the value of a read. Returns `None` if the input is absent or not available, or if there is no such
    /// input; each case is recorded.
    fn get(&self, text: &str) -> Option<Value> {
        let Some(entry) = self.entries.get(text) else {
            self.note_missing(text);
            return None;
        };
        entry.is_read.store(true, Ordering::Relaxed);
        match &entry.state {
            InputState::Value(value) => {
                self.update_failed_reads(|noted| noted.is_last_absent = false);
                Some(value.clone())
            }
            InputState::Absent => {
                self.update_failed_reads(|noted| {
                    noted.absent_reads.push(text.to_owned());
                    noted.is_last_absent = true;
                });
                None
            }
            InputState::Unavailable { name, reason } => {
                self.update_failed_reads(|noted| {
                    noted.secret.get_or_insert_with(|| (name.clone(), reason.clone()));
                });
                None
            }
        }
    }

    /// Returns the value of a read, as [`InputView::get`].
    pub(crate) fn get_read(&self, read: Read) -> Option<Value> {
        match Reference::new(read) {
            Ok(reference) => self.get(reference.as_str()),
            Err(error) => {
                self.note_missing(&error.to_string());
                None
            }
        }
    }

    /// Returns whether the text is not an input itself, but a path to further inputs below it.
    pub(crate) fn is_prefix(&self, text: &str) -> bool {
        if self.entries.contains_key(text) {
            return false;
        }
        let below = self.entries.range(text.to_owned()..).map(|(other, _)| other.as_str());
        below.take_while(|other| other.starts_with(text)).any(|other| other[text.len()..].starts_with(['.', '[']))
    }
}

/// Returns the text of a reference without the fields of its nodes.
fn reference_without_fields(reference: &Reference) -> String {
    let read = match reference.read().clone() {
        Read::Nodes { query, .. } => Read::Nodes { query, fields: FieldSet::default() },
        Read::Primary { tag, .. } => Read::Primary { tag, fields: FieldSet::default() },
        other => other,
    };
    Reference::new(read).map_or_else(|_| reference.to_string(), |bare| bare.to_string())
}

/// Merges a value into another. Two look-ups of the same nodes with different fields are one list, so the fields of
/// their nodes are merged.
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
