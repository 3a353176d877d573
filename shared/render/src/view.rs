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

/// Maximum number of absent inputs that an error lists.
const MAX_NAMED_READS: usize = 4;

/// The inputs of a task, as its templates see them.
pub(crate) struct InputView {
    /// The inputs, by the text of their references without the fields of look-ups.
    entries: BTreeMap<String, InputEntry>,
    failed_reads: Mutex<FailedReads>,
    /// True if any input is a secret, also if its value is not available. Errors must then not quote values.
    pub(crate) has_secrets: bool,
}

/// An input. Look-ups of the same nodes with different fields are one entry.
struct InputEntry {
    state: InputState,
    references: Vec<Reference>,
    is_read: AtomicBool,
}

/// The value of an input, or the reason why it has no value.
enum InputState {
    Value(Value),
    Absent,
    Unavailable { name: String, reason: String },
}

/// The reads of a template that returned no value. A read is one use of an input in a template.
#[derive(Default)]
pub(crate) struct FailedReads {
    /// The reference, as text, of the first read of something that is not an input.
    pub(crate) not_an_input: Option<String>,
    /// The references, as text, of the absent inputs that were read, in order.
    pub(crate) absent_reads: Vec<String>,
    /// True if the last read of the template was of an absent input.
    pub(crate) is_last_absent: bool,
    /// The name of the first secret that is not available, and the reason.
    pub(crate) secret: Option<(String, String)>,
}

impl FailedReads {
    /// Returns the absent inputs that may have caused the failure. If the last read of the template was of an absent
    /// input, returns only that input. Else returns the absent inputs that were read, up to [`MAX_NAMED_READS`].
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
    /// Creates the view of these inputs, and reads the values of their secrets. Look-ups of the same nodes with
    /// different fields share an entry, in which their fields are merged.
    pub(crate) fn new(inputs: &Inputs, secrets: &dyn Secrets) -> Self {
        let mut view = Self { entries: BTreeMap::new(), failed_reads: Mutex::default(), has_secrets: false };
        let mut merged_lookups: BTreeMap<String, serde_json::Value> = BTreeMap::new();
        for (reference, input) in inputs {
            let text = reference_without_fields(reference);
            let mut to_state = |value: &serde_json::Value| {
                // Only look-ups have fields.
                if reference.read().fields().is_none() {
                    return InputState::Value(Value::from(Serde(value)));
                }
                let merged_value = merged_lookups.entry(text.clone()).or_insert(serde_json::Value::Null);
                merge(merged_value, value);
                InputState::Value(Value::from(Serde(&*merged_value)))
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

    /// Adds an input to the entry with this text. The entry has the state of the last input.
    fn add(&mut self, text: String, state: InputState, reference: Reference) {
        let entry = self.entries.entry(text).or_insert_with(|| InputEntry {
            state: InputState::Absent,
            references: Vec::new(),
            is_read: AtomicBool::new(false),
        });
        entry.state = state;
        entry.references.push(reference);
    }

    /// Returns the failed reads since the last call, and clears them.
    pub(crate) fn take_failed_reads(&self) -> FailedReads {
        std::mem::take(&mut *self.failed_reads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether the value of any input contains this character.
    pub(crate) fn has_char(&self, character: char) -> bool {
        self.entries.values().any(|entry| match &entry.state {
            InputState::Value(value) => value.to_string().contains(character),
            InputState::Absent | InputState::Unavailable { .. } => false,
        })
    }

    /// Returns the references of the inputs that were read, sorted.
    pub(crate) fn references_read(&self) -> Vec<Reference> {
        let read_entries = self.entries.values().filter(|entry| entry.is_read.load(Ordering::Relaxed));
        let mut references: Vec<Reference> = read_entries.flat_map(|entry| entry.references.iter().cloned()).collect();
        references.sort();
        references
    }

    /// Calls `update` with the failed reads, under their lock.
    fn update_failed_reads(&self, update: impl FnOnce(&mut FailedReads)) {
        update(&mut self.failed_reads.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Records the first read of something that is not an input. `text` is its reference.
    pub(crate) fn note_missing(&self, text: &str) {
        self.update_failed_reads(|failed_reads| {
            failed_reads.not_an_input.get_or_insert_with(|| text.to_owned());
        });
    }

    /// Returns the value of the input with this text. Returns `None` if the input is absent or not available, or if
    /// there is no such input. Records which of these cases it is.
    fn get(&self, text: &str) -> Option<Value> {
        let Some(entry) = self.entries.get(text) else {
            self.note_missing(text);
            return None;
        };
        entry.is_read.store(true, Ordering::Relaxed);
        match &entry.state {
            InputState::Value(value) => {
                self.update_failed_reads(|failed_reads| failed_reads.is_last_absent = false);
                Some(value.clone())
            }
            InputState::Absent => {
                self.update_failed_reads(|failed_reads| {
                    failed_reads.absent_reads.push(text.to_owned());
                    failed_reads.is_last_absent = true;
                });
                None
            }
            InputState::Unavailable { name, reason } => {
                self.update_failed_reads(|failed_reads| {
                    failed_reads.secret.get_or_insert_with(|| (name.clone(), reason.clone()));
                });
                None
            }
        }
    }

    /// Returns the value of a read. Returns `None` and records the reason in the same cases as [`InputView::get`].
    pub(crate) fn get_read(&self, read: Read) -> Option<Value> {
        match Reference::new(read) {
            Ok(reference) => self.get(reference.as_str()),
            Err(error) => {
                self.note_missing(&error.to_string());
                None
            }
        }
    }

    /// Returns whether a path is not an input itself, and an input exists below it, as `params.a.b` is below
    /// `params.a`.
    pub(crate) fn has_inputs_below(&self, path: &str) -> bool {
        if self.entries.contains_key(path) {
            return false;
        }
        let later_paths = self.entries.range(path.to_owned()..).map(|(key, _)| key.as_str());
        later_paths.take_while(|key| key.starts_with(path)).any(|key| key[path.len()..].starts_with(['.', '[']))
    }
}

/// Returns the text of a reference without the fields that are read from looked-up nodes.
fn reference_without_fields(reference: &Reference) -> String {
    let read = match reference.read().clone() {
        Read::Nodes { query, .. } => Read::Nodes { query, fields: FieldSet::default() },
        Read::Primary { tag, .. } => Read::Primary { tag, fields: FieldSet::default() },
        other => other,
    };
    Reference::new(read).map_or_else(|_| reference.to_string(), |short_reference| short_reference.to_string())
}

/// Merges the value `from` into the value `into`. Two look-ups of the same nodes return the same list with different
/// fields, so the fields of each node are merged.
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
