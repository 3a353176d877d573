//! What rules give a node, and the state in which they find it one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::limits::{Failure, MAX_LABELS, MAX_NOTE, MAX_NOTES, MAX_PROPERTIES};
use super::text::Scope;
use crate::json::whole_to_integers;
use crate::key::{LabelKey, LabelValue};
use crate::name::cut;
use crate::traits::{MAX_TRAITS, RuledTraits, Trait, TraitNames};

/// The property of a machine in which Ironic keeps its capabilities, as `a:1,b:2`.
pub(super) const CAPABILITIES: &str = "capabilities";

/// What rules give one node by its last report. It is worked out from both, and stored nowhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ruled {
    /// Traits, each with the rules that give it.
    pub traits: RuledTraits,
    /// Labels by rule, in the order in which rules are asked: the first that gives a key has it.
    pub labels: Vec<RuledLabels>,
    /// Properties of the machine.
    pub properties: BTreeMap<String, RuledProperty>,
    /// What rules say, and why some did nothing.
    pub notes: Vec<Note>,
    /// The hash of the rules.
    pub(super) by: [u8; 32],
}

/// Labels that one rule gives.
#[derive(Clone, Debug, PartialEq)]
pub struct RuledLabels {
    /// The rule.
    pub rule: Arc<str>,
    /// Whether it may give restricted ones.
    pub grants: bool,
    /// The labels.
    pub labels: BTreeMap<LabelKey, LabelValue>,
}

/// A property that a rule gives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuledProperty {
    /// The rule.
    pub rule: Arc<str>,
    /// The value.
    pub value: Value,
}

/// What a person should know of a rule and a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The rule.
    pub rule: Arc<str>,
    /// What kind of note it is.
    pub kind: NoteKind,
    /// The sentence.
    pub message: String,
}

/// Kinds of notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// The rule says so.
    Log,
    /// The rule could not be asked, or not be done: it did nothing.
    Failed,
    /// The rule found that the machine is not as it should be: none behind it was asked.
    Refused,
}

impl Ruled {
    /// Whether it is by the rules of this hash.
    pub(crate) fn is_by(&self, rules: &[u8; 32]) -> bool {
        self.by == *rules
    }

    /// Whether other rules give and say the same.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let Self { traits, labels, properties, notes, by: _ } = self;
        (traits, labels, properties, notes) == (&other.traits, &other.labels, &other.properties, &other.notes)
    }

    /// The bytes of the labels and properties.
    pub(crate) fn bytes(&self) -> usize {
        let labels = self.labels.iter().flat_map(|one| &one.labels).map(|(key, value)| key.len() + value.len());
        let properties = self.properties.iter().map(|(name, ruled)| name.len() + ruled.value.to_string().len());
        labels.chain(properties).sum()
    }

    /// Whether there is nothing.
    pub(super) fn is_nothing(&self) -> bool {
        self.traits.is_empty() && self.labels.is_empty() && self.properties.is_empty() && self.notes.is_empty()
    }

    /// What rules make of a property that operators may say too. Theirs holds, but for capabilities, which are many in one.
    pub(crate) fn property<'a>(&'a self, own: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
        let ruled = || self.properties.get(name).map(|ruled| &ruled.value);
        if name == CAPABILITIES { ruled().or_else(|| own.get(name)) } else { own.get(name).or_else(ruled) }
    }

    /// Whether a rule gives a label.
    pub(crate) fn labels_key(&self, key: &str) -> bool {
        self.labels.iter().any(|one| one.labels.contains_key(key))
    }
}

/// What rules find, and what they have given so far.
#[derive(Clone, Debug)]
pub(super) struct State<'a> {
    pub(super) inventory: &'a Value,
    /// The node as rules see it, with what they gave.
    pub(super) node: Arc<Value>,
    pub(super) plugin_data: Arc<Value>,
    pub(super) ruled: Ruled,
    /// The properties that operators said.
    own: &'a Map<String, Value>,
    /// What rules set of the capabilities.
    capabilities: BTreeMap<String, String>,
    /// The rule that is asked.
    rule: Arc<str>,
    grants: bool,
    is_sensitive: bool,
    label_bytes: Bytes,
    property_bytes: Bytes,
}

/// How many bytes of one kind (labels, properties) rules have given a node, and how much they may give.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    what: &'static str,
    used: usize,
    most: (usize, usize),
}

impl Bytes {
    /// Counts one more entry of `after` bytes in place of one of `before` bytes, beside `others`. It fails past the limits.
    fn put(&mut self, others: usize, before: usize, after: usize) -> Result<(), Failure> {
        let ((most, most_bytes), used) = (self.most, self.used - before + after);
        if others >= most || used > most_bytes {
            let what = self.what;
            return Err(Failure::Argument(format!(
                "rules give a node at most {most} {what} of {most_bytes} bytes together"
            )));
        }
        self.used = used;
        Ok(())
    }

    fn give_back(&mut self, bytes: usize) {
        self.used -= bytes;
    }
}

impl<'a> State<'a> {
    pub(super) fn new(node: Value, inventory: &'a Value, plugin_data: Value, own: &'a Map<String, Value>) -> Self {
        Self {
            inventory,
            node: Arc::new(node),
            plugin_data: Arc::new(plugin_data),
            ruled: Ruled::default(),
            own,
            capabilities: BTreeMap::new(),
            rule: "".into(),
            grants: false,
            is_sensitive: false,
            label_bytes: Bytes { what: "labels", used: 0, most: MAX_LABELS },
            property_bytes: Bytes { what: "properties", used: 0, most: MAX_PROPERTIES },
        }
    }

    /// The next rule is asked.
    pub(super) fn begin(&mut self, rule: &Arc<str>, grants: bool, is_sensitive: bool) {
        (self.rule, self.grants, self.is_sensitive) = (Arc::clone(rule), grants, is_sensitive);
    }

    pub(super) fn scope<'b>(&'b self, item: Option<&'b Value>) -> Scope<'b> {
        Scope { node: &self.node, inventory: self.inventory, plugin_data: &self.plugin_data, item }
    }

    pub(super) fn note_log(&mut self, message: &str) {
        self.note(NoteKind::Log, message);
    }

    /// Notes something. What a sensitive rule says is not told.
    pub(super) fn note(&mut self, kind: NoteKind, message: &str) {
        if self.ruled.notes.len() < MAX_NOTES {
            let told = if self.is_sensitive { "it is sensitive: what it says is not shown" } else { message };
            let message = told.chars().take(MAX_NOTE).collect();
            self.ruled.notes.push(Note { rule: Arc::clone(&self.rule), kind, message });
        }
    }

    /// Gives a trait. One that the node has already is given once more, by another.
    pub(super) fn add_trait(&mut self, name: &str) -> Result<(), Failure> {
        // A name that the site added stands written out in a rule, and was checked there.
        let name = Trait::new(name).map_err(|why| Failure::Argument(why.to_string()))?;
        if self.ruled.traits.len() >= MAX_TRAITS && !self.ruled.traits.contains_key(&name) {
            return Err(Failure::Argument(format!(
                "{name} is one more than the {MAX_TRAITS} that rules may give a node"
            )));
        }
        self.ruled.traits.entry(name).or_default().insert(Arc::clone(&self.rule));
        Ok(())
    }

    /// The same, of a name that was filled in: it is a known one.
    pub(super) fn check_trait(name: &str) -> Result<(), Failure> {
        TraitNames::default().parse(name).map(drop).map_err(|why| Failure::Argument(why.to_string()))
    }

    /// Takes back a trait that rules gave.
    pub(super) fn remove_trait(&mut self, name: &str) {
        self.ruled.traits.remove(name);
    }

    pub(super) fn set_label(&mut self, key: LabelKey, value: &str) -> Result<(), Failure> {
        let value = LabelValue::new(value).map_err(|why| Failure::Argument(format!("label {key}: {why}")))?;
        let own = self.ruled.labels.last().filter(|one| one.rule == self.rule);
        let before = own.and_then(|one| one.labels.get(&key)).map(|before| key.len() + before.len());
        let count: usize = self.ruled.labels.iter().map(|one| one.labels.len()).sum();
        let others = count - usize::from(before.is_some());
        self.label_bytes.put(others, before.unwrap_or_default(), key.len() + value.len())?;
        let is_own = self.ruled.labels.last().is_some_and(|one| one.rule == self.rule);
        if !is_own {
            let labels = RuledLabels { rule: Arc::clone(&self.rule), grants: self.grants, labels: BTreeMap::new() };
            self.ruled.labels.push(labels);
        }
        let own = self.ruled.labels.last_mut().expect("it was put there");
        own.labels.insert(key, value);
        Ok(())
    }

    /// Takes back a label that rules gave.
    pub(super) fn delete_label(&mut self, key: &LabelKey) {
        for one in &mut self.ruled.labels {
            if let Some(value) = one.labels.remove(key) {
                self.label_bytes.give_back(key.len() + value.len());
            }
        }
        self.ruled.labels.retain(|one| !one.labels.is_empty());
    }

    /// Gives a property, unless an operator or a rule asked before did.
    pub(super) fn set_property(&mut self, name: String, mut value: Value) -> Result<(), Failure> {
        whole_to_integers(&mut value);
        let holds = self.ruled.properties.get(&name).is_some_and(|ruled| ruled.rule != self.rule);
        if holds || self.own.contains_key(&name) { Ok(()) } else { self.put_property(name, value) }
    }

    /// Gives a list one more item; a list of the operators' stays as it is.
    pub(super) fn extend_property(&mut self, name: String, mut value: Value, unique: bool) -> Result<(), Failure> {
        whole_to_integers(&mut value);
        if self.own.contains_key(&name) {
            return Ok(());
        }
        let present = self.ruled.properties.get(&name).map(|ruled| ruled.value.clone());
        let value = extended(present, value, unique)?;
        self.put_property(name, value)
    }

    fn put_property(&mut self, name: String, value: Value) -> Result<(), Failure> {
        let size = |value: &Value| name.len() + value.to_string().len();
        let before = self.ruled.properties.get(&name).map(|ruled| size(&ruled.value));
        let others = self.ruled.properties.len() - usize::from(before.is_some());
        self.property_bytes.put(others, before.unwrap_or_default(), size(&value))?;
        Arc::make_mut(&mut self.node)["properties"][&name] = value.clone();
        self.ruled.properties.insert(name, RuledProperty { rule: Arc::clone(&self.rule), value });
        Ok(())
    }

    /// Takes back a property that rules gave.
    pub(super) fn delete_property(&mut self, name: &str) {
        let Some(ruled) = self.ruled.properties.remove(name) else { return };
        self.property_bytes.give_back(name.len() + ruled.value.to_string().len());
        if let Some(properties) = Arc::make_mut(&mut self.node)["properties"].as_object_mut() {
            properties.remove(name);
        }
    }

    pub(super) fn set_capability(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        if name.is_empty() || name.contains([':', ',']) || value.contains(',') {
            return Err(Failure::Argument(format!(
                "{:?} is no capability: it has a name without : and , and a value without ,",
                cut(name)
            )));
        }
        self.capabilities.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        self.put_capabilities()
    }

    pub(super) fn unset_capability(&mut self, name: &str) {
        if self.capabilities.remove(name).is_some() {
            if self.capabilities.is_empty() {
                self.delete_property(CAPABILITIES);
                if let Some(own) = self.own.get(CAPABILITIES) {
                    Arc::make_mut(&mut self.node)["properties"][CAPABILITIES] = own.clone();
                }
            } else {
                // It has become shorter.
                drop(self.put_capabilities());
            }
        }
    }

    /// The operators' capabilities, and those of rules that operators do not name.
    fn put_capabilities(&mut self) -> Result<(), Failure> {
        let own = self.own.get(CAPABILITIES).and_then(Value::as_str).unwrap_or_default();
        let named: BTreeSet<&str> =
            own.split(',').filter_map(|one| one.split_once(':')).map(|(name, _)| name).collect();
        let given = self.capabilities.iter().filter(|(name, _)| !named.contains(name.as_str()));
        let given = given.map(|(name, value)| format!("{name}:{value}"));
        let all: Vec<String> = (!own.is_empty()).then(|| own.to_owned()).into_iter().chain(given).collect();
        self.put_property(CAPABILITIES.to_owned(), json!(all.join(",")))
    }
}

/// A list with one more item.
pub(super) fn extended(present: Option<Value>, value: Value, unique: bool) -> Result<Value, Failure> {
    let mut list = match present {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(Failure::Argument("what is to be extended is no list".to_owned())),
    };
    if !unique || !list.contains(&value) {
        list.push(value);
    }
    Ok(Value::Array(list))
}
