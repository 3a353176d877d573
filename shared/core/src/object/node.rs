//! The node: what operators say of a host, and beside it what the host says.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::{ClusterId, Extra, FieldOwners, GroupId, Hold, Inherited, TraitSet};
use crate::digest::canonical_json;
use crate::input::{MAX_DEPTH, Path};
use crate::json;
use crate::name::{Name, TagName};
use crate::ownership::OwnedSet;
use crate::selector::LabelLookup;
use crate::task::Mode;
use crate::traits::Trait;

/// The longest path of a fact, in bytes.
pub const MAX_FACT_PATH: usize = 255;

/// The longest value of a fact, in bytes as JSON.
pub const MAX_FACT: usize = 16 * 1024;

/// The facts of one host together, paths and values, in bytes.
pub const MAX_FACTS: usize = 256 * 1024;

/// How many results of tasks are kept of a node: as many as a release may have tasks, whatever ids its agent names.
pub const MAX_RESULTS: usize = 4096;

/// The bytes of messages, outputs and diffs that are kept of a node: those of the newest results. The outcome is kept of all.
pub const MAX_RESULT_TEXTS: usize = 1024 * 1024;

/// The longest task id in a result, in bytes; no release has a longer one.
pub const MAX_TASK_ID: usize = 1024;

/// The longest sentence that a host says, in bytes: a task's message, a finding, a reason.
pub const MAX_SENTENCE: usize = 1024;

/// What operators say of one host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// For people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Labels, annotations, parameters, lifecycle fields.
    pub inherited: Inherited,
    /// The group; `None`: unplaced, without a release and without tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodegroup: Option<GroupId>,
    /// Its own roles; its group's are added.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Name>,
    /// Tags assigned and unassigned by hand.
    #[serde(skip_serializing_if = "NodeTags::is_empty")]
    pub tags: NodeTags,
    /// The operators' traits.
    #[serde(skip_serializing_if = "OwnedSet::is_empty")]
    pub traits: OwnedSet<Trait>,
    /// Traits of another source that an operator suppressed.
    #[serde(skip_serializing_if = "TraitSet::is_empty")]
    pub suppressed_traits: TraitSet,
    /// Ironic's `properties`: read by requirements.
    #[serde(deserialize_with = "json::free_object", skip_serializing_if = "Extra::is_empty")]
    pub properties: Extra,
    /// Ironic's `instance_info`.
    #[serde(deserialize_with = "json::free_object", skip_serializing_if = "Extra::is_empty")]
    pub instance_info: Extra,
    /// How far its instance has come, in Ironic's words; `None`: it was never said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provision_state: Option<ProvisionState>,
    /// Its own mode; the group's where it says none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Keeps its task set while labels flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<Box<Hold>>,
    /// Out of budgets and barriers: it keeps what it holds as primary, and is elected to nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub parked: bool,
    /// Ironic's further fields (`driver`, `resource_class`, …).
    #[serde(deserialize_with = "json::free_object", skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
    /// Who gave which field, trait and tag.
    #[serde(skip_serializing_if = "FieldOwners::is_empty")]
    pub owners: FieldOwners,
}

/// How far a node's instance has come, as Ironic says it. Nothing here drives a machine: it is what was last asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProvisionState {
    /// It is known.
    Manageable,
    /// It can be used.
    Available,
    /// It is used.
    Active,
}

impl ProvisionState {
    /// The state that one of Ironic's targets leads to.
    pub fn of_target(target: &str) -> Option<Self> {
        Self::TARGETS.iter().find(|(known, _)| *known == target).map(|(_, state)| *state)
    }

    /// The targets that are taken.
    pub const TARGETS: &[(&str, Self)] = &[
        ("active", Self::Active),
        ("deleted", Self::Available),
        ("manage", Self::Manageable),
        ("provide", Self::Available),
        ("rebuild", Self::Active),
    ];
}

/// Tags by hand, and those that extensions decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeTags {
    /// These it has, whatever its roles.
    #[serde(skip_serializing_if = "OwnedSet::is_empty")]
    pub assigned: OwnedSet<TagName>,
    /// These it has not, while one of its roles produces them.
    #[serde(skip_serializing_if = "OwnedSet::is_empty")]
    pub unassigned: OwnedSet<TagName>,
    /// What extensions decided for its roles.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub decided: BTreeMap<Name, DecidedTags>,
}

/// The tags that an extension gives a node for one of its roles, in the place of those that the role declares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecidedTags {
    /// Which extension.
    pub extension: String,
    /// In which cluster. In another one it is asked again.
    pub cluster: ClusterId,
    /// The tags, sorted.
    pub tags: Vec<TagName>,
    /// The SHA-256 of what it was asked, in hexadecimal digits.
    pub question: String,
}

impl DecidedTags {
    /// Whether it was made by this extension in this cluster.
    pub fn is_of(&self, extension: &str, cluster: ClusterId) -> bool {
        self.extension == extension && self.cluster == cluster
    }
}

impl NodeTags {
    /// Whether nothing was said by hand, and nothing decided.
    pub fn is_empty(&self) -> bool {
        self.assigned.is_empty() && self.unassigned.is_empty() && self.decided.is_empty()
    }
}

/// What a host reported and the model reads: stable facts, detected traits, its own labels.
///
/// Versioned and an input of resolve; other facts, task results and outputs are a report, never an input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Observation {
    /// Facts that the registry marks stable.
    pub facts: FactMap,
    /// Traits that the agent detected. Shared: a fleet has few kinds of hosts.
    pub traits: Arc<TraitSet>,
    /// Labels that the host, or another program on it, gave; by key.
    pub labels: ReportedLabels,
    /// What it gave and that is wrong, or more than is taken; told as a finding, and nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_taken: Option<Box<NotTaken>>,
}

/// What of a host's word was left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NotTaken {
    /// How many facts, past the bounds of [`FactMap`].
    pub facts: u32,
    /// How many labels, being too long, or too much together.
    pub labels: u32,
    /// Traits that are none, or too many.
    pub traits: RefusedTraits,
}

impl NotTaken {
    /// In its box, unless all was taken.
    pub fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

/// How much of a host's Report, or of what it reported of tasks, was not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportLeftOut {
    /// How many facts.
    pub facts: u32,
    /// How many results of tasks.
    pub results: u32,
    /// Of how many sentences, outputs and diffs a part.
    pub texts: u32,
}

impl ReportLeftOut {
    /// Whether all was kept.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            facts: self.facts.saturating_add(other.facts),
            results: self.results.saturating_add(other.results),
            texts: self.texts.saturating_add(other.texts),
        }
    }
}

/// Traits that a host gave and that were not taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusedTraits {
    /// Those that are no traits here, as a sentence may show them: quoted, escaped, cut at 64 characters. The first few.
    pub unknown: Box<[Box<str>]>,
    /// How many of that kind there are in all.
    pub unknown_count: usize,
    /// How many good ones were left off, being more than one source may give.
    pub surplus: usize,
}

/// A label as the host's own files say it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReportedLabel {
    /// The key as written there: it need not be a label's.
    pub key: Arc<str>,
    /// The value.
    pub value: Arc<str>,
    /// File and line, as `labels.d/10-local:3`.
    pub source: Arc<str>,
}

/// The labels of one host, by key. Most hosts give none: a fleet has room for one pointer a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedLabels(Option<Box<Given>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Given(Box<[ReportedLabel]>);

impl Deref for ReportedLabels {
    type Target = [ReportedLabel];

    fn deref(&self) -> &[ReportedLabel] {
        self.0.as_ref().map_or(&[], |given| &given.0)
    }
}

impl LabelLookup for &[ReportedLabel] {
    fn label(&self, key: &str) -> Option<&str> {
        self.iter().find(|label| *label.key == *key).map(|label| &*label.value)
    }
}

impl FromIterator<ReportedLabel> for ReportedLabels {
    fn from_iter<I: IntoIterator<Item = ReportedLabel>>(labels: I) -> Self {
        let labels: Box<[ReportedLabel]> = labels.into_iter().collect();
        Self((!labels.is_empty()).then(|| Box::new(Given(labels))))
    }
}

impl Serialize for ReportedLabels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ReportedLabels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from_iter)
    }
}

/// Facts by dotted path (`cpu.count`), each as canonical JSON text, in order.
///
/// Flat texts and not a tree, and paths apart from values: every node of a fleet has some twenty facts at the same
/// paths, and most of their values are the same everywhere, so that a fleet can share them ([`FactMap::share`]).
///
/// Whatever it is made from, a host's word or an old store, it holds no path deeper than [`MAX_DEPTH`] or longer than
/// [`MAX_FACT_PATH`], no value past [`MAX_FACT`] or nested deeper than [`MAX_DEPTH`], and together no more than [`MAX_FACTS`]:
/// who reads it need not ask. What is more is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactMap {
    paths: Arc<[Arc<str>]>,
    values: Box<[Arc<str>]>,
}

impl Default for FactMap {
    fn default() -> Self {
        Self { paths: Arc::new([]), values: Box::new([]) }
    }
}

impl FactMap {
    /// Facts by dotted path, each a JSON text; what is no JSON is left out.
    pub fn from_texts<K: AsRef<str>, V: AsRef<str>>(facts: impl IntoIterator<Item = (K, V)>) -> Self {
        Self::take_texts(facts).0
    }

    /// The same, with how many were left out: past a bound, or no JSON text.
    pub fn take_texts<K: AsRef<str>, V: AsRef<str>>(facts: impl IntoIterator<Item = (K, V)>) -> (Self, u32) {
        let mut unreadable: u32 = 0;
        let read = |(path, text): (K, V)| {
            let value = serde_json::from_str(text.as_ref()).ok();
            unreadable += u32::from(value.is_none());
            Some((path.as_ref().to_owned(), value?))
        };
        let (taken, left_out) = Self::bounded(facts.into_iter().filter_map(read));
        (taken, left_out.saturating_add(unreadable))
    }

    fn bounded(facts: impl IntoIterator<Item = (String, Value)>) -> (Self, u32) {
        let (mut total, mut left_out) = (0, 0);
        let mut sorted: BTreeMap<String, String> = BTreeMap::new();
        for (path, value) in facts {
            let text = if json::is_within_depth(&value, MAX_DEPTH) { canonical_json(&value) } else { String::new() };
            let fits = !text.is_empty() && text.len() <= MAX_FACT && is_fact_path(&path);
            if fits && total + path.len() + text.len() <= MAX_FACTS {
                total += path.len() + text.len();
                sorted.insert(path, text);
            } else {
                left_out += 1;
            }
        }
        let (paths, values): (Vec<Arc<str>>, Vec<Arc<str>>) =
            sorted.into_iter().map(|(key, value)| (Arc::from(key), Arc::from(value))).unzip();
        (Self { paths: paths.into(), values: values.into() }, left_out)
    }

    /// Facts as a tree of objects, as a manifest's `reports` writes them.
    pub fn from_tree(tree: &Map<String, Value>) -> Self {
        let mut leaves = Vec::new();
        tree.iter().for_each(|(key, value)| flatten(key.clone(), value, &mut leaves));
        leaves.into_iter().collect()
    }

    /// The fact at a path, or a tree of all that lie below it.
    pub fn get(&self, path: &Path) -> Option<Value> {
        let dotted = path.keys().iter().map(AsRef::as_ref).collect::<Vec<&str>>().join(".");
        if let Some(text) = self.text(&dotted) {
            return serde_json::from_str(text).ok();
        }
        let below = format!("{dotted}.");
        let from = self.paths.partition_point(|path| **path < *below);
        let mut tree = Map::new();
        for (path, text) in
            self.paths.iter().zip(&self.values).skip(from).take_while(|(path, _)| path.starts_with(&below))
        {
            plant(&mut tree, &path[below.len()..], serde_json::from_str(text).ok()?);
        }
        (!tree.is_empty()).then_some(Value::Object(tree))
    }

    /// All facts as a tree.
    pub fn tree(&self) -> Map<String, Value> {
        let mut tree = Map::new();
        for (path, text) in self.iter() {
            if let Ok(value) = serde_json::from_str(text) {
                plant(&mut tree, path, value);
            }
        }
        tree
    }

    /// The canonical JSON text of the fact at a dotted path.
    pub fn text(&self, dotted: &str) -> Option<&str> {
        let at = self.paths.binary_search_by(|path| path.as_ref().cmp(dotted)).ok()?;
        Some(&self.values[at])
    }

    /// All facts, in the order of their paths, each as JSON text.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.paths.iter().zip(&self.values).map(|(path, value)| (path.as_ref(), value.as_ref()))
    }

    /// The same facts, with what two hosts have in common held once: their paths and values as the two functions
    /// keep them.
    #[must_use]
    pub fn share(
        &self,
        paths: impl FnOnce(&Arc<[Arc<str>]>) -> Arc<[Arc<str>]>,
        value: impl FnMut(&Arc<str>) -> Arc<str>,
    ) -> Self {
        Self { paths: paths(&self.paths), values: self.values.iter().map(value).collect() }
    }
}

fn flatten(path: String, value: &Value, leaves: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            map.iter().for_each(|(key, value)| flatten(format!("{path}.{key}"), value, leaves));
        }
        _ => leaves.push((path, value.clone())),
    }
}

/// Puts a value at a dotted path, making the maps on the way. A loop: how deep it goes is a host's word.
fn plant(tree: &mut Map<String, Value>, path: &str, value: Value) {
    let mut here = tree;
    let mut rest = path;
    while let Some((first, below)) = rest.split_once('.') {
        let inner = here.entry(first.to_owned()).or_insert_with(|| Value::Object(Map::new()));
        let Value::Object(inner) = inner else { return };
        (here, rest) = (inner, below);
    }
    here.insert(rest.to_owned(), value);
}

/// Whether a fact may stand at this dotted path.
fn is_fact_path(path: &str) -> bool {
    path.len() <= MAX_FACT_PATH && path.split('.').count() <= MAX_DEPTH
}

impl FromIterator<(String, Value)> for FactMap {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(facts: I) -> Self {
        Self::bounded(facts).0
    }
}

impl Serialize for FactMap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for FactMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from_texts(BTreeMap::<String, String>::deserialize(deserializer)?))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_gives_a_fact_or_the_tree_below_it() {
        let tree = json!({"cpu": {"count": 4, "vendor": "x"}, "cpufreq": 1, "hostname": "web-1", "empty": {}});
        let facts = FactMap::from_tree(tree.as_object().unwrap());
        for (path, found) in [
            (&["cpu", "count"][..], Some(json!(4))),
            (&["cpu"][..], Some(json!({"count": 4, "vendor": "x"}))),
            (&["hostname"][..], Some(json!("web-1"))),
            (&["cpu", "cores"][..], None),
            (&["host"][..], None),
        ] {
            assert_eq!(facts.get(&Path::new(path.iter().copied()).unwrap()), found, "{path:?}");
        }
        let text = serde_json::to_string(&facts).unwrap();
        assert_eq!(serde_json::from_str::<FactMap>(&text).unwrap(), facts);
    }
    #[test]
    fn facts_are_bounded_whatever_they_are_made_from() {
        let deep = |keys: usize| vec!["k"; keys].join(".");
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let text = |bytes: usize| format!("\"{}\"", "v".repeat(bytes - 2));
        for (path, value, taken) in [
            (deep(16), "1".to_owned(), true),
            (deep(17), "1".to_owned(), false),
            // What would have gone as deep into the stack: the largest that a check-in carries.
            (deep(1_000_000), "1".to_owned(), false),
            ("p".repeat(255), "1".to_owned(), true),
            ("p".repeat(256), "1".to_owned(), false),
            ("cpu.count".to_owned(), text(16 * 1024), true),
            ("cpu.count".to_owned(), text(16 * 1024 + 1), false),
            ("cpu.count".to_owned(), nested(16), true),
            ("cpu.count".to_owned(), nested(17), false),
        ] {
            let shown = &path[..path.len().min(40)];
            let (facts, left_out) = FactMap::take_texts([(&path, &value)]);
            assert_eq!(
                (facts.iter().next().is_none(), left_out),
                (!taken, u32::from(!taken)),
                "{shown} of {} bytes",
                path.len()
            );
            // A record that an earlier program stored.
            let stored = serde_json::to_string(&BTreeMap::from([(&path, &value)])).unwrap();
            assert_eq!(serde_json::from_str::<FactMap>(&stored).unwrap(), facts, "{shown}");
        }
        let many = (0..20).map(|n| (format!("f{n:02}"), text(16 * 1024 - 3)));
        let (facts, left_out) = FactMap::take_texts(many);
        assert_eq!((facts.iter().count(), left_out), (16, 4));
    }

    #[test]
    fn a_tree_is_planted_without_going_down_the_stack() {
        let mut tree = Map::new();
        plant(&mut tree, "a.b", json!(1));
        plant(&mut tree, "a.c.d", json!(2));
        plant(&mut tree, "a.b.lost", json!(3));
        assert_eq!(Value::Object(tree), json!({"a": {"b": 1, "c": {"d": 2}}}));
    }
}
