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

/// The effects of all inspection rules on one node, computed from the last report of its host. They are not stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleOutcome {
    /// Traits, each with the rules that add it.
    pub traits: RuleTraits,
    /// The labels of each rule that sets labels, in the order in which rules run. If several rules set a key, the first
    /// rule that may set the key wins.
    pub labels: Vec<RuleLabels>,
    /// Properties of the machine that rules set, by name.
    pub properties: BTreeMap<String, RuleProperty>,
    /// Messages of rules, and the reasons why rules had no effect.
    pub notes: Vec<RuleNote>,
    /// The hash of the rules from which this outcome was computed.
    pub(super) rules_hash: [u8; 32],
}

/// The labels that one rule sets.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleLabels {
    /// The name of the rule that sets the labels, or its uuid if it has no name.
    pub rule: Arc<str>,
    /// True if the rule may set restricted labels.
    pub may_set_restricted: bool,
    /// The labels that the rule sets.
    pub labels: BTreeMap<LabelKey, LabelValue>,
}

/// A property that a rule sets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleProperty {
    /// The name of the rule that set the property last, or its uuid if it has no name.
    pub rule: Arc<str>,
    /// The value of the property.
    pub value: Value,
}

/// A message for an operator about a rule and a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleNote {
    /// The name of the rule that the message is about, or its uuid if it has no name.
    pub rule: Arc<str>,
    /// The kind of the note.
    pub kind: NoteKind,
    /// The message, cut at 256 characters. For a sensitive rule, a text that replaces the message.
    pub message: String,
}

/// The kind of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// A message of the rule's `log` action.
    Log,
    /// The rule could not be evaluated or applied, so it had no effect.
    Failed,
    /// The rule's `fail` action ran. The rules after it did not run.
    Refused,
}

impl RuleOutcome {
    /// Returns whether this outcome was computed from the rules with the hash `hash`.
    pub(crate) fn is_from_rules(&self, hash: &[u8; 32]) -> bool {
        self.rules_hash == *hash
    }

    /// Returns whether two outcomes have the same effects, even if they were computed from different rules.
    pub(crate) fn has_same_content(&self, other: &Self) -> bool {
        let Self { traits, labels, properties, notes, rules_hash: _ } = self;
        (traits, labels, properties, notes) == (&other.traits, &other.labels, &other.properties, &other.notes)
    }

    /// Returns the size of the labels and properties, in bytes.
    pub(crate) fn size_bytes(&self) -> usize {
        let labels = self.labels.iter().flat_map(|rule| &rule.labels).map(|(key, value)| key.len() + value.len());
        let properties = self.properties.iter().map(|(name, property)| name.len() + property.value.to_string().len());
        labels.chain(properties).sum()
    }

    /// Returns whether the outcome is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.traits.is_empty() && self.labels.is_empty() && self.properties.is_empty() && self.notes.is_empty()
    }

    /// Returns the effective value of a property. `operator` are the properties that operators set. A value that an
    /// operator set wins over the value of a rule. For the property `capabilities` the value of the rules wins, because
    /// it also contains the capabilities that operators set.
    pub(crate) fn effective_property<'a>(&'a self, operator: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
        let value = || self.properties.get(name).map(|property| &property.value);
        if name == CAPABILITIES_PROPERTY { value().or_else(|| operator.get(name)) } else { operator.get(name).or_else(value) }
    }

    /// Returns whether a rule sets this label.
    pub(crate) fn has_label(&self, key: &str) -> bool {
        self.labels.iter().any(|rule| rule.labels.contains_key(key))
    }
}

/// The state while inspection rules run over a report: the values that rules can read, and the effects of the rules
/// that ran.
#[derive(Clone, Debug)]
pub(super) struct RuleState<'a> {
    /// The value that rules read as `inventory`: the facts that the host reported.
    pub(super) inventory: &'a Value,
    /// The value that rules read as `node`: the node with the properties that rules set, without labels and traits.
    pub(super) node: Arc<Value>,
    /// The value that rules read as `plugin_data`, and that they may change.
    pub(super) plugin_data: Arc<Value>,
    /// The effects of the rules that ran.
    pub(super) outcome: RuleOutcome,
    /// The properties that operators set.
    operator_properties: &'a Map<String, Value>,
    /// The capabilities that rules set, by name.
    capabilities: BTreeMap<String, String>,
    /// The name of the rule that is running, or its uuid if it has no name. Empty before the first rule.
    rule: Arc<str>,
    /// True if the rule that is running may set restricted labels.
    may_set_restricted: bool,
    /// True if the messages of the rule that is running must be hidden.
    is_sensitive: bool,
    /// The bytes of labels that rules have set.
    label_bytes: ByteQuota,
    /// The bytes of properties that rules have set.
    property_bytes: ByteQuota,
}

/// The number of bytes of labels or properties that rules have set on a node, and the limits on their number and size.
#[derive(Clone, Copy, Debug)]
struct ByteQuota {
    /// The word `labels` or `properties`, for messages.
    subject: &'static str,
    /// The number of bytes in use.
    used: usize,
    /// The maximum number of entries, and the maximum number of bytes of all entries together.
    max: (usize, usize),
}

impl ByteQuota {
    /// Counts the bytes of an entry of `new_bytes` bytes, which replaces an entry of `old_bytes` bytes (0 if there was
    /// none). `other_count` is the number of all other entries. Fails and changes nothing if a limit would be exceeded.
    fn replace(&mut self, other_count: usize, old_bytes: usize, new_bytes: usize) -> Result<(), Failure> {
        let ((max_count, max_bytes), used) = (self.max, self.used - old_bytes + new_bytes);
        if other_count >= max_count || used > max_bytes {
            let subject = self.subject;
            return Err(Failure::Argument(format!(
                "rules may set on a node at most {max_count} {subject} of {max_bytes} bytes together"
            )));
        }
        self.used = used;
        Ok(())
    }

    /// Subtracts the bytes of an entry that was removed.
    fn release(&mut self, bytes: usize) {
        self.used -= bytes;
    }
}

impl<'a> RuleState<'a> {
    /// Creates the state before the first rule. `spec_properties` are the properties that operators set on the node.
    pub(super) fn new(node: Value, inventory: &'a Value, plugin_data: Value, spec_properties: &'a Map<String, Value>) -> Self {
        Self {
            inventory,
            node: Arc::new(node),
            plugin_data: Arc::new(plugin_data),
            outcome: RuleOutcome::default(),
            operator_properties: spec_properties,
            capabilities: BTreeMap::new(),
            rule: "".into(),
            may_set_restricted: false,
            is_sensitive: false,
            label_bytes: ByteQuota { subject: "labels", used: 0, max: MAX_LABELS_AND_BYTES },
            property_bytes: ByteQuota { subject: "properties", used: 0, max: MAX_PROPERTIES_AND_BYTES },
        }
    }

    /// Begins the next rule. `grants` is true if the rule may set restricted labels. `is_sensitive` is true if its
    /// messages must be hidden.
    pub(super) fn begin_rule(&mut self, rule: &Arc<str>, grants: bool, is_sensitive: bool) {
        (self.rule, self.may_set_restricted, self.is_sensitive) = (Arc::clone(rule), grants, is_sensitive);
    }

    /// Returns the values that the placeholders of a text can read now. `item` is the current item of a loop.
    pub(super) fn scope<'b>(&'b self, item: Option<&'b Value>) -> TextScope<'b> {
        TextScope { node: &self.node, inventory: self.inventory, plugin_data: &self.plugin_data, item }
    }

    /// Adds the message of a `log` action as a note.
    pub(super) fn add_log_note(&mut self, message: &str) {
        self.add_note(NoteKind::Log, message);
    }

    /// Adds a note. The message of a sensitive rule is hidden, and a long message is cut. If there are [`MAX_NOTES`]
    /// notes already, the note is dropped.
    pub(super) fn add_note(&mut self, kind: NoteKind, message: &str) {
        if self.outcome.notes.len() < MAX_NOTES {
            let text = if self.is_sensitive { "the rule is sensitive, so its message is not shown" } else { message };
            let message = text.chars().take(MAX_NOTE_CHARS).collect();
            self.outcome.notes.push(RuleNote { rule: Arc::clone(&self.rule), kind, message });
        }
    }

    /// Adds a trait. If an earlier rule added the same trait, both rules are recorded. Fails if the name is invalid or
    /// there are too many traits.
    pub(super) fn add_trait(&mut self, name: &str) -> Result<(), Failure> {
        // Only the form of the name is checked here. A literal name was compared with the known traits when the rule
        // was written, and a name with placeholders in `check_known_trait`.
        let name = Trait::new(name).map_err(|error| Failure::Argument(error.to_string()))?;
        if self.outcome.traits.len() >= MAX_TRAITS && !self.outcome.traits.contains_key(&name) {
            return Err(Failure::Argument(format!("{name} is one more than the {MAX_TRAITS} that rules may give a node")));
        }
        self.outcome.traits.entry(name).or_default().insert(Arc::clone(&self.rule));
        Ok(())
    }

    /// Fails if the name of a trait, into which values were filled, is neither a standard trait nor a `CUSTOM_` trait.
    /// The names that the configuration adds (`extra_standard_traits`) are refused here.
    pub(super) fn check_known_trait(name: &str) -> Result<(), Failure> {
        TraitNames::default().parse(name).map(drop).map_err(|error| Failure::Argument(error.to_string()))
    }

    /// Removes a trait that rules added. Does nothing if no rule added it.
    pub(super) fn remove_trait(&mut self, name: &str) {
        self.outcome.traits.remove(name);
    }

    /// Sets or replaces a label of the current rule. Fails if the value is invalid or a limit is exceeded.
    pub(super) fn set_label(&mut self, key: LabelKey, value: &str) -> Result<(), Failure> {
        let value = LabelValue::new(value).map_err(|error| Failure::Argument(format!("label {key}: {error}")))?;
        // The labels of the current rule are the last entry, if the rule has set a label before.
        let current = self.outcome.labels.last().filter(|entry| entry.rule == self.rule);
        let old_bytes = current.and_then(|entry| entry.labels.get(&key)).map(|old_value| key.len() + old_value.len());
        let count: usize = self.outcome.labels.iter().map(|entry| entry.labels.len()).sum();
        let other_count = count - usize::from(old_bytes.is_some());
        self.label_bytes.replace(other_count, old_bytes.unwrap_or_default(), key.len() + value.len())?;
        let exists = self.outcome.labels.last().is_some_and(|entry| entry.rule == self.rule);
        if !exists {
            let labels =
                RuleLabels { rule: Arc::clone(&self.rule), may_set_restricted: self.may_set_restricted, labels: BTreeMap::new() };
            self.outcome.labels.push(labels);
        }
        let current = self.outcome.labels.last_mut().expect("the current rule has an entry");
        current.labels.insert(key, value);
        Ok(())
    }

    /// Removes a label that rules set. The labels of operators are unchanged.
    pub(super) fn delete_label(&mut self, key: &LabelKey) {
        for entry in &mut self.outcome.labels {
            if let Some(value) = entry.labels.remove(key) {
                self.label_bytes.release(key.len() + value.len());
            }
        }
        self.outcome.labels.retain(|entry| !entry.labels.is_empty());
    }

    /// Sets a property, unless an operator or an earlier rule has set it. A whole number such as `1.0` becomes an
    /// integer. Fails if a limit is exceeded.
    pub(super) fn set_property(&mut self, name: String, mut value: Value) -> Result<(), Failure> {
        normalize_integers(&mut value);
        let is_set_by_other_rule = self.outcome.properties.get(&name).is_some_and(|property| property.rule != self.rule);
        if is_set_by_other_rule || self.operator_properties.contains_key(&name) { Ok(()) } else { self.put_property(name, value) }
    }

    /// Appends an item to the list in a property, or creates the list. With `is_unique`, an item that the list contains
    /// is not added again. A property that operators set is unchanged. A whole number such as `1.0` becomes an integer.
    /// Fails if the property is not a list or a limit is exceeded.
    pub(super) fn extend_property(&mut self, name: String, mut value: Value, is_unique: bool) -> Result<(), Failure> {
        normalize_integers(&mut value);
        if self.operator_properties.contains_key(&name) {
            return Ok(());
        }
        let current = self.outcome.properties.get(&name).map(|property| property.value.clone());
        let value = list_with_item(current, value, is_unique)?;
        self.put_property(name, value)
    }

    /// Stores a property of the current rule in the outcome, and in the node that later rules read. Fails if a limit is
    /// exceeded.
    fn put_property(&mut self, name: String, value: Value) -> Result<(), Failure> {
        let size = |value: &Value| name.len() + value.to_string().len();
        let old_bytes = self.outcome.properties.get(&name).map(|property| size(&property.value));
        let other_count = self.outcome.properties.len() - usize::from(old_bytes.is_some());
        self.property_bytes.replace(other_count, old_bytes.unwrap_or_default(), size(&value))?;
        Arc::make_mut(&mut self.node)["properties"][&name] = value.clone();
        self.outcome.properties.insert(name, RuleProperty { rule: Arc::clone(&self.rule), value });
        Ok(())
    }

    /// Removes a property that rules set, also from the node that later rules read. Does nothing if no rule set it.
    pub(super) fn delete_property(&mut self, name: &str) {
        let Some(property) = self.outcome.properties.remove(name) else { return };
        self.property_bytes.release(name.len() + property.value.to_string().len());
        if let Some(properties) = Arc::make_mut(&mut self.node)["properties"].as_object_mut() {
            properties.remove(name);
        }
    }

    /// Sets a capability, unless a rule has set it already. If operators set the capability, their value wins. Fails if
    /// the name is empty or contains `:` or `,`, if the value contains `,`, or if a limit is exceeded.
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
                // The node that later rules read has the capabilities of operators again.
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

    /// Stores the capabilities of operators and rules as one property, `a:1,b:2`. If operators set a capability, the
    /// value of a rule for the same name is omitted.
    fn store_capabilities(&mut self) -> Result<(), Failure> {
        let text = self.operator_properties.get(CAPABILITIES_PROPERTY).and_then(Value::as_str).unwrap_or_default();
        let names: BTreeSet<&str> = text.split(',').filter_map(|entry| entry.split_once(':')).map(|(name, _)| name).collect();
        let rule_entries = self.capabilities.iter().filter(|(name, _)| !names.contains(name.as_str()));
        let rule_entries = rule_entries.map(|(name, value)| format!("{name}:{value}"));
        let entries: Vec<String> = (!text.is_empty()).then(|| text.to_owned()).into_iter().chain(rule_entries).collect();
        self.put_property(CAPABILITIES_PROPERTY.to_owned(), json!(entries.join(",")))
    }
}

/// Returns a list with the item `value` appended. A missing list is treated as empty. With `is_unique`, an item that
/// the list contains is not added again. Fails if `current` is not a list.
pub(super) fn list_with_item(current: Option<Value>, value: Value, is_unique: bool) -> Result<Value, Failure> {
    let mut list = match current {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(Failure::Argument("the value to extend is not a list".to_owned())),
    };
    if !is_unique || !list.contains(&value) {
        list.push(value);
    }
    Ok(Value::Array(list))
}
