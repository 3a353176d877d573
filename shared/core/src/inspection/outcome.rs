//! The outcome of rules for a node, and the state while they run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::limits::{Failure, MAX_LABELS_AND_BYTES, MAX_NOTE_CHARS, MAX_NOTES, MAX_PROPERTIES_AND_BYTES};
use super::text::TextScope;
use crate::json::normalize_integers;
use crate::key::{LabelKey, LabelValue};
use crate::name::truncated;
use crate::traits::{MAX_TRAITS, RuleTraits, Trait, TraitNames};

/// The property in which Ironic stores a machine's capabilities, as `a:1,b:2`.
pub(super) const CAPABILITIES_PROPERTY: &str = "capabilities";

/// The outcome of rules for one node, computed from its last report. It is not stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleOutcome {
    /// Traits, each with the rules that add it.
    pub traits: RuleTraits,
    /// Labels by rule, in the order in which rules run. If several rules set a key, the first one wins.
    pub labels: Vec<RuleLabels>,
    /// Properties of the machine.
    pub properties: BTreeMap<String, RuleProperty>,
    /// Messages of rules, and the reasons why some had no effect.
    pub notes: Vec<RuleNote>,
    /// The hash of the rules from which this outcome was computed.
    pub(super) rules_hash: [u8; 32],
}

/// Labels that one rule sets.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleLabels {
    /// The rule.
    pub rule: Arc<str>,
    /// True if the rule may set restricted labels.
    pub may_set_restricted: bool,
    /// The labels.
    pub labels: BTreeMap<LabelKey, LabelValue>,
}

/// A property that a rule sets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleProperty {
    /// The rule.
    pub rule: Arc<str>,
    /// The value.
    pub value: Value,
}

/// A message for an operator about a rule and a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleNote {
    /// The rule.
    pub rule: Arc<str>,
    /// The kind of the note.
    pub kind: NoteKind,
    /// The message, as a sentence.
    pub message: String,
}

/// Kinds of notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// A message of the rule's `log` action.
    Log,
    /// The rule could not be evaluated or applied. It had no effect.
    Failed,
    /// The rule's `fail` action ran. The rules after it did not run.
    Refused,
}

impl RuleOutcome {
    /// Returns whether this outcome was computed from the rules with this hash.
    pub(crate) fn is_from_rules(&self, rules: &[u8; 32]) -> bool {
        self.rules_hash == *rules
    }

    /// Returns whether two outcomes have the same effects, even if they were computed from different rules.
    pub(crate) fn has_same_content(&self, other: &Self) -> bool {
        let Self { traits, labels, properties, notes, rules_hash: _ } = self;
        (traits, labels, properties, notes) == (&other.traits, &other.labels, &other.properties, &other.notes)
    }

    /// Returns the size of the labels and properties, in bytes.
    pub(crate) fn size_bytes(&self) -> usize {
        let labels = self.labels.iter().flat_map(|rule| &rule.labels).map(|(key, value)| key.len() + value.len());
        let properties = self.properties.iter().map(|(name, ruled)| name.len() + ruled.value.to_string().len());
        labels.chain(properties).sum()
    }

    /// Returns whether the outcome is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.traits.is_empty() && self.labels.is_empty() && self.properties.is_empty() && self.notes.is_empty()
    }

    /// Returns the effective value of a property that both operators and rules may set. The operators' value wins,
    /// except for capabilities, where both are merged into one value.
    pub(crate) fn effective_property<'a>(&'a self, spec: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
        let ruled = || self.properties.get(name).map(|ruled| &ruled.value);
        if name == CAPABILITIES_PROPERTY { ruled().or_else(|| spec.get(name)) } else { spec.get(name).or_else(ruled) }
    }

    /// Returns whether a rule sets this label.
    pub(crate) fn has_label(&self, key: &str) -> bool {
        self.labels.iter().any(|rule| rule.labels.contains_key(key))
    }
}

/// The state while rules run over a report: what rules can read, and their effects so far.
#[derive(Clone, Debug)]
pub(super) struct RuleState<'a> {
    pub(super) inventory: &'a Value,
    /// The node as rules see it, with the effects so far.
    pub(super) node: Arc<Value>,
    pub(super) plugin_data: Arc<Value>,
    pub(super) outcome: RuleOutcome,
    /// The properties that operators set.
    operator_properties: &'a Map<String, Value>,
    /// The capabilities that rules set.
    capabilities: BTreeMap<String, String>,
    /// The rule that is running.
    rule: Arc<str>,
    may_set_restricted: bool,
    is_sensitive: bool,
    label_bytes: ByteQuota,
    property_bytes: ByteQuota,
}

/// The number of bytes of labels or properties that rules have set on a node, and the limit.
#[derive(Clone, Copy, Debug)]
struct ByteQuota {
    subject: &'static str,
    used: usize,
    max: (usize, usize),
}

impl ByteQuota {
    /// Counts an entry of `after` bytes that replaces one of `before` bytes, next to `others`. Fails if a limit is
    /// exceeded.
    fn replace(&mut self, others: usize, before: usize, after: usize) -> Result<(), Failure> {
        let ((most, most_bytes), used) = (self.max, self.used - before + after);
        if others >= most || used > most_bytes {
            let subject = self.subject;
            return Err(Failure::Argument(format!(
                "rules may set on a node at most {most} {subject} of {most_bytes} bytes together"
            )));
        }
        self.used = used;
        Ok(())
    }

    fn release(&mut self, bytes: usize) {
        self.used -= bytes;
    }
}

impl<'a> RuleState<'a> {
    /// Creates the state before the first rule. `own` are the properties that operators set on the node.
    pub(super) fn new(node: Value, inventory: &'a Value, plugin_data: Value, own: &'a Map<String, Value>) -> Self {
        Self {
            inventory,
            node: Arc::new(node),
            plugin_data: Arc::new(plugin_data),
            outcome: RuleOutcome::default(),
            operator_properties: own,
            capabilities: BTreeMap::new(),
            rule: "".into(),
            may_set_restricted: false,
            is_sensitive: false,
            label_bytes: ByteQuota { subject: "labels", used: 0, max: MAX_LABELS_AND_BYTES },
            property_bytes: ByteQuota { subject: "properties", used: 0, max: MAX_PROPERTIES_AND_BYTES },
        }
    }

    /// Begins the next rule.
    pub(super) fn begin_rule(&mut self, rule: &Arc<str>, grants: bool, is_sensitive: bool) {
        (self.rule, self.may_set_restricted, self.is_sensitive) = (Arc::clone(rule), grants, is_sensitive);
    }

    pub(super) fn scope<'b>(&'b self, item: Option<&'b Value>) -> TextScope<'b> {
        TextScope { node: &self.node, inventory: self.inventory, plugin_data: &self.plugin_data, item }
    }

    pub(super) fn add_log_note(&mut self, message: &str) {
        self.add_note(NoteKind::Log, message);
    }

    /// Adds a note. The message of a sensitive rule is hidden.
    pub(super) fn add_note(&mut self, kind: NoteKind, message: &str) {
        if self.outcome.notes.len() < MAX_NOTES {
            let text = if self.is_sensitive { "the rule is sensitive, so its message is not shown" } else { message };
            let message = text.chars().take(MAX_NOTE_CHARS).collect();
            self.outcome.notes.push(RuleNote { rule: Arc::clone(&self.rule), kind, message });
        }
    }

    /// Adds a trait. If an earlier rule added it too, both are recorded.
    pub(super) fn add_trait(&mut self, name: &str) -> Result<(), Failure> {
        // A trait that an operator defined must be written in full in a rule. It was checked when the rule was written.
        let name = Trait::new(name).map_err(|why| Failure::Argument(why.to_string()))?;
        if self.outcome.traits.len() >= MAX_TRAITS && !self.outcome.traits.contains_key(&name) {
            return Err(Failure::Argument(format!("{name} is one more than the {MAX_TRAITS} that rules may give a node")));
        }
        self.outcome.traits.entry(name).or_default().insert(Arc::clone(&self.rule));
        Ok(())
    }

    /// Checks that a trait's name that was filled in is a known one.
    pub(super) fn check_known_trait(name: &str) -> Result<(), Failure> {
        TraitNames::default().parse(name).map(drop).map_err(|why| Failure::Argument(why.to_string()))
    }

    /// Removes a trait that rules added.
    pub(super) fn remove_trait(&mut self, name: &str) {
        self.outcome.traits.remove(name);
    }

    /// Sets a label for the current rule. Fails if the value is invalid or a limit is exceeded.
    pub(super) fn set_label(&mut self, key: LabelKey, value: &str) -> Result<(), Failure> {
        let value = LabelValue::new(value).map_err(|why| Failure::Argument(format!("label {key}: {why}")))?;
        let current = self.outcome.labels.last().filter(|entry| entry.rule == self.rule);
        let before = current.and_then(|one| one.labels.get(&key)).map(|before| key.len() + before.len());
        let count: usize = self.outcome.labels.iter().map(|entry| entry.labels.len()).sum();
        let others = count - usize::from(before.is_some());
        self.label_bytes.replace(others, before.unwrap_or_default(), key.len() + value.len())?;
        let exists = self.outcome.labels.last().is_some_and(|one| one.rule == self.rule);
        if !exists {
            let labels =
                RuleLabels { rule: Arc::clone(&self.rule), may_set_restricted: self.may_set_restricted, labels: BTreeMap::new() };
            self.outcome.labels.push(labels);
        }
        let current = self.outcome.labels.last_mut().expect("it was put there");
        current.labels.insert(key, value);
        Ok(())
    }

    /// Removes a label that rules set.
    pub(super) fn delete_label(&mut self, key: &LabelKey) {
        for entry in &mut self.outcome.labels {
            if let Some(value) = entry.labels.remove(key) {
                self.label_bytes.release(key.len() + value.len());
            }
        }
        self.outcome.labels.retain(|one| !one.labels.is_empty());
    }

    /// Sets a property, unless an operator or an earlier rule has set it.
    pub(super) fn set_property(&mut self, name: String, mut value: Value) -> Result<(), Failure> {
        normalize_integers(&mut value);
        let is_set = self.outcome.properties.get(&name).is_some_and(|ruled| ruled.rule != self.rule);
        if is_set || self.operator_properties.contains_key(&name) { Ok(()) } else { self.put_property(name, value) }
    }

    /// Appends an item to a list. A list that operators set is unchanged.
    pub(super) fn extend_property(&mut self, name: String, mut value: Value, unique: bool) -> Result<(), Failure> {
        normalize_integers(&mut value);
        if self.operator_properties.contains_key(&name) {
            return Ok(());
        }
        let present = self.outcome.properties.get(&name).map(|ruled| ruled.value.clone());
        let value = list_with_item(present, value, unique)?;
        self.put_property(name, value)
    }

    /// Stores a property of the current rule in the outcome and in the node that later rules see.
    fn put_property(&mut self, name: String, value: Value) -> Result<(), Failure> {
        let size = |value: &Value| name.len() + value.to_string().len();
        let before = self.outcome.properties.get(&name).map(|ruled| size(&ruled.value));
        let others = self.outcome.properties.len() - usize::from(before.is_some());
        self.property_bytes.replace(others, before.unwrap_or_default(), size(&value))?;
        Arc::make_mut(&mut self.node)["properties"][&name] = value.clone();
        self.outcome.properties.insert(name, RuleProperty { rule: Arc::clone(&self.rule), value });
        Ok(())
    }

    /// Removes a property that rules set.
    pub(super) fn delete_property(&mut self, name: &str) {
        let Some(ruled) = self.outcome.properties.remove(name) else { return };
        self.property_bytes.release(name.len() + ruled.value.to_string().len());
        if let Some(properties) = Arc::make_mut(&mut self.node)["properties"].as_object_mut() {
            properties.remove(name);
        }
    }

    /// Sets a capability, unless a rule has set it already.
    pub(super) fn set_capability(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        if name.is_empty() || name.contains([':', ',']) || value.contains(',') {
            return Err(Failure::Argument(format!(
                "{:?} is not a valid capability: its name must not contain : or , and its value must not contain ,",
                truncated(name)
            )));
        }
        self.capabilities.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        self.store_capabilities()
    }

    /// Removes a capability that rules set. The operators' capabilities remain.
    pub(super) fn unset_capability(&mut self, name: &str) {
        if self.capabilities.remove(name).is_some() {
            if self.capabilities.is_empty() {
                self.delete_property(CAPABILITIES_PROPERTY);
                if let Some(value) = self.operator_properties.get(CAPABILITIES_PROPERTY) {
                    Arc::make_mut(&mut self.node)["properties"][CAPABILITIES_PROPERTY] = value.clone();
                }
            } else {
                // This cannot fail, because the value does not become longer.
                drop(self.store_capabilities());
            }
        }
    }

    /// Stores the property of capabilities: those of operators, then those of rules with other names.
    fn store_capabilities(&mut self) -> Result<(), Failure> {
        let spec = self.operator_properties.get(CAPABILITIES_PROPERTY).and_then(Value::as_str).unwrap_or_default();
        let named: BTreeSet<&str> = spec.split(',').filter_map(|entry| entry.split_once(':')).map(|(name, _)| name).collect();
        let rules = self.capabilities.iter().filter(|(name, _)| !named.contains(name.as_str()));
        let rules = rules.map(|(name, value)| format!("{name}:{value}"));
        let all: Vec<String> = (!spec.is_empty()).then(|| spec.to_owned()).into_iter().chain(rules).collect();
        self.put_property(CAPABILITIES_PROPERTY.to_owned(), json!(all.join(",")))
    }
}

/// Returns a list with one more item. With `unique`, an item that the list contains is not added again.
pub(super) fn list_with_item(present: Option<Value>, value: Value, unique: bool) -> Result<Value, Failure> {
    let mut list = match present {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(Failure::Argument("the value to extend is not a list".to_owned())),
    };
    if !unique || !list.contains(&value) {
        list.push(value);
    }
    Ok(Value::Array(list))
}
