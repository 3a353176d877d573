//! The node: what operators set for a host, and separately what the host reports.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::{ClusterId, Extra, FieldOwners, GroupId, Hold, Inherited, TraitSet};
use crate::digest::canonical_json;
use crate::input::{MAX_PATH_KEYS, Path};
use crate::json;
use crate::name::{Name, TagName};
use crate::ownership::OwnedSet;
use crate::selector::LabelLookup;
use crate::task::Mode;
use crate::traits::Trait;

/// Maximum length of a fact's path, in bytes.
pub const MAX_FACT_PATH_BYTES: usize = 255;

/// Maximum size of a fact's value, in bytes of JSON.
pub const MAX_FACT_VALUE_BYTES: usize = 16 * 1024;

/// Maximum size of all facts of one [`FactMap`], paths and values, in bytes. A host has two such maps.
pub const MAX_FACTS_BYTES: usize = 256 * 1024;

/// Maximum number of task results that are stored for a node. It equals the maximum number of tasks that one release
/// declares. Surplus results are dropped: first those of task sets other than the newest, then the oldest.
pub const MAX_RESULTS: usize = 4096;

/// Maximum total size of the messages, outputs and diffs that are stored for a node, in bytes. Beyond it, only the
/// texts of the newest results are stored. The outcome of a result is stored even if its texts are not.
pub const MAX_RESULT_TEXT_BYTES: usize = 1024 * 1024;

/// Maximum length of a task id in a result, in bytes. No release has a longer one.
pub const MAX_TASK_ID_BYTES: usize = 1024;

/// Maximum length of a stored sentence of a host (message, finding or reason), in bytes. A longer one is cut.
pub const MAX_SENTENCE_BYTES: usize = 1024;

/// The spec of a node: the values that operators set for one host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// A description for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Labels, annotations, parameters and lifecycle fields.
    pub inherited: Inherited,
    /// The group of the node, or `None` if the node is unplaced. An unplaced node has no release and no tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodegroup: Option<GroupId>,
    /// The node's own roles. The node has the roles of its group too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Name>,
    /// Tags that were assigned or unassigned by hand, and those that extensions decided.
    #[serde(skip_serializing_if = "NodeTags::is_empty")]
    pub tags: NodeTags,
    /// The traits that operators set.
    #[serde(skip_serializing_if = "OwnedSet::is_empty")]
    pub traits: OwnedSet<Trait>,
    /// Traits that an operator suppressed. They have no effect if only the host or an inspection rule gives them.
    #[serde(skip_serializing_if = "TraitSet::is_empty")]
    pub suppressed_traits: TraitSet,
    /// The properties of the machine, as in Ironic, such as `memory_mb`. Requirements compare them.
    #[serde(deserialize_with = "json::deserialize_free_object", skip_serializing_if = "Extra::is_empty")]
    pub properties: Extra,
    /// Ironic's `instance_info`, a description of the instance that uses the node. It may list the traits that the
    /// instance requires.
    #[serde(deserialize_with = "json::deserialize_free_object", skip_serializing_if = "Extra::is_empty")]
    pub instance_info: Extra,
    /// The provision state of the node, as in Ironic: the last one that a client requested. `None` if it was never set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provision_state: Option<ProvisionState>,
    /// The node's own mode, or `None` for the mode of its group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The hold that an operator set. Until it ends, the node gets no new task set, but its labels still change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<Box<Hold>>,
    /// True if an operator parked the node: it runs no task, and other hosts do not wait for it. It remains primary of
    /// its tags, and is not elected as primary of other tags. A park on the host itself is stored separately.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub parked: bool,
    /// Other fields of Ironic (`driver`, `resource_class`, …).
    #[serde(deserialize_with = "json::deserialize_free_object", skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
    /// The owners of each field. Traits and tags are stored with their own owners.
    #[serde(skip_serializing_if = "FieldOwners::is_empty")]
    pub owners: FieldOwners,
}

/// The provision state of a node, as in Ironic. It is the last state that a client requested, because Stemma controls
/// no machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProvisionState {
    /// The node is registered.
    Manageable,
    /// The node can be used.
    Available,
    /// The node is in use.
    Active,
}

impl ProvisionState {
    /// Returns the state that a provisioning target of Ironic leads to, or `None` for an unknown target.
    pub fn from_target(target: &str) -> Option<Self> {
        Self::TARGETS.iter().find(|(name, _)| *name == target).map(|(_, state)| *state)
    }

    /// The accepted provisioning targets, each with the state that it leads to.
    pub const TARGETS: &[(&str, Self)] = &[
        ("active", Self::Active),
        ("deleted", Self::Available),
        ("manage", Self::Manageable),
        ("provide", Self::Available),
        ("rebuild", Self::Active),
    ];
}

/// Tags that were assigned or unassigned by hand, and those that extensions decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeTags {
    /// Tags that were assigned to the node by hand. The node has these tags, whatever its roles are.
    #[serde(skip_serializing_if = "OwnedSet::is_empty")]
    pub assigned: OwnedSet<TagName>,
    /// Tags that were unassigned by hand. The node does not have them, even if one of its roles produces them.
    #[serde(skip_serializing_if = "OwnedSet::is_empty")]
    pub unassigned: OwnedSet<TagName>,
    /// Tags that extensions decided, by role.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub decided: BTreeMap<Name, DecidedTags>,
}

/// The tags that an extension chose for one role of a node. They replace the tags that the role declares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecidedTags {
    /// The name of the extension.
    pub extension: String,
    /// The cluster for which the tags were chosen. In another cluster the extension is called again.
    pub cluster: ClusterId,
    /// The tags, sorted.
    pub tags: Vec<TagName>,
    /// The SHA-256 of the request to the extension, in hexadecimal digits.
    pub question: String,
}

impl DecidedTags {
    /// Returns whether this extension made the decision for this cluster.
    pub fn is_from(&self, extension: &str, cluster: ClusterId) -> bool {
        self.extension == extension && self.cluster == cluster
    }
}

impl NodeTags {
    /// Returns whether no tag was set by hand or decided by an extension.
    pub fn is_empty(&self) -> bool {
        self.assigned.is_empty() && self.unassigned.is_empty() && self.decided.is_empty()
    }
}

/// The part of a host's report from which the controller computes desired states: stable facts, detected traits and the
/// host's own labels.
///
/// The store retains the last images of an observation. Other facts, task results and outputs are only shown, and never
/// change a desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Observation {
    /// The stable facts: those that templates and conditions may read, because they do not change by themselves.
    pub facts: FactMap,
    /// Traits that the agent detected. Nodes with equal sets share one set in memory, because a fleet has few kinds of
    /// hosts.
    pub traits: Arc<TraitSet>,
    /// The labels from the label files on the host, in the order of their keys.
    pub labels: ReportedLabels,
    /// The counts of values that were dropped because they are invalid or exceed a limit, and the names of some dropped
    /// traits. Dropped values only cause a finding. `None` if nothing was dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_taken: Option<Box<DroppedInput>>,
}

/// The counts of facts, labels and traits of a host's report that were dropped, and the names of some dropped traits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DroppedInput {
    /// The number of facts that exceed a limit of [`FactMap`] or are not valid JSON.
    pub facts: u32,
    /// The number of labels that are too long, or that exceed the maximum number or total size of labels.
    pub labels: u32,
    /// Traits that are unknown, or beyond the maximum number.
    pub traits: RefusedTraits,
}

impl DroppedInput {
    /// Returns this value in a box, or `None` if nothing was dropped.
    pub fn into_option_box(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

/// The number of values of a host's last report (without observation) and task results that were dropped or cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DroppedReportCounts {
    /// The number of dropped facts of the report, which are other facts than the stable ones of the observation.
    pub facts: u32,
    /// The number of dropped results of tasks. Only results of the newest task set are counted.
    pub results: u32,
    /// The number of sentences of a report that were cut, and of task results of which a text was cut or dropped.
    pub texts: u32,
}

impl DroppedReportCounts {
    /// Returns whether nothing was dropped or cut.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the sum of two counts, field by field.
    #[must_use]
    pub const fn merge(self, other: Self) -> Self {
        Self {
            facts: self.facts.saturating_add(other.facts),
            results: self.results.saturating_add(other.results),
            texts: self.texts.saturating_add(other.texts),
        }
    }
}

/// Traits that a host reported and that were refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusedTraits {
    /// The first few unknown traits, ready for a message: quoted, escaped and cut at 64 characters.
    pub unknown: Box<[Box<str>]>,
    /// The number of unknown traits, including those that are not listed.
    pub unknown_count: usize,
    /// The number of valid traits that were dropped because they exceed the maximum number of one source.
    pub surplus: usize,
}

/// A label as written in a file on the host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReportedLabel {
    /// The key as written. It need not be a valid label key.
    pub key: Arc<str>,
    /// The value.
    pub value: Arc<str>,
    /// The file on the host and, if known, the line (`labels.d/10-local:3`). `reports` for a label from a manifest.
    pub source: Arc<str>,
}

/// The labels that one host reported. The type has the size of one pointer, because most hosts report no label and then
/// need no further memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedLabels(Option<Box<LabelBox>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct LabelBox(Box<[ReportedLabel]>);

impl Deref for ReportedLabels {
    type Target = [ReportedLabel];

    fn deref(&self) -> &[ReportedLabel] {
        self.0.as_ref().map_or(&[], |labels| &labels.0)
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
        Self((!labels.is_empty()).then(|| Box::new(LabelBox(labels))))
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

/// Facts by dotted path (`cpu.count`), sorted, each as canonical JSON text.
///
/// Facts are stored as flat texts instead of a tree, and paths apart from values. Every node of a fleet has about
/// twenty facts at the same paths, and most values are the same everywhere. So nodes share the stored paths and values
/// ([`FactMap::intern`]).
///
/// Every constructor enforces the limits, for a host's report and for an old store. A path has at most
/// [`MAX_PATH_KEYS`] keys and [`MAX_FACT_PATH_BYTES`] bytes. A value has at most [`MAX_FACT_VALUE_BYTES`] bytes and is
/// nested at most [`MAX_PATH_KEYS`] deep. All facts together take at most [`MAX_FACTS_BYTES`]. Facts beyond these
/// limits are dropped, so readers need not check.
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
    /// Builds a map from facts by dotted path, each a JSON text. Invalid facts and those beyond a limit are dropped.
    pub fn from_texts<K: AsRef<str>, V: AsRef<str>>(facts: impl IntoIterator<Item = (K, V)>) -> Self {
        Self::from_texts_counting_dropped(facts).0
    }

    /// Builds a map as [`Self::from_texts`] does. Also returns the number of facts that were dropped because they
    /// exceed a limit or are not valid JSON.
    pub fn from_texts_counting_dropped<K: AsRef<str>, V: AsRef<str>>(facts: impl IntoIterator<Item = (K, V)>) -> (Self, u32) {
        let mut invalid_count: u32 = 0;
        let parse = |(path, text): (K, V)| {
            let value = serde_json::from_str(text.as_ref()).ok();
            invalid_count += u32::from(value.is_none());
            Some((path.as_ref().to_owned(), value?))
        };
        let (map, dropped_count) = Self::from_values_counting_dropped(facts.into_iter().filter_map(parse));
        (map, dropped_count.saturating_add(invalid_count))
    }

    /// Builds a map from facts by dotted path. Also returns the number of facts that were dropped because they exceed a
    /// limit.
    fn from_values_counting_dropped(facts: impl IntoIterator<Item = (String, Value)>) -> (Self, u32) {
        let (mut total_bytes, mut dropped_count) = (0, 0);
        let mut sorted: BTreeMap<String, String> = BTreeMap::new();
        for (path, value) in facts {
            // A value that is nested too deep is not serialized. Its empty text marks it as invalid.
            let text = if json::is_within_depth(&value, MAX_PATH_KEYS) { canonical_json(&value) } else { String::new() };
            let is_valid = !text.is_empty() && text.len() <= MAX_FACT_VALUE_BYTES && is_fact_path(&path);
            if is_valid && total_bytes + path.len() + text.len() <= MAX_FACTS_BYTES {
                total_bytes += path.len() + text.len();
                sorted.insert(path, text);
            } else {
                dropped_count += 1;
            }
        }
        let (paths, values): (Vec<Arc<str>>, Vec<Arc<str>>) =
            sorted.into_iter().map(|(key, value)| (Arc::from(key), Arc::from(value))).unzip();
        (Self { paths: paths.into(), values: values.into() }, dropped_count)
    }

    /// Builds a map from a tree of objects, whose leaves are the facts. Facts that exceed a limit are dropped.
    pub fn from_tree(tree: &Map<String, Value>) -> Self {
        let mut leaves = Vec::new();
        tree.iter().for_each(|(key, value)| collect_leaves(key.clone(), value, &mut leaves));
        leaves.into_iter().collect()
    }

    /// Returns the fact at a path, or a tree of all facts below it.
    pub fn get(&self, path: &Path) -> Option<Value> {
        let dotted = path.keys().iter().map(AsRef::as_ref).collect::<Vec<&str>>().join(".");
        if let Some(text) = self.text(&dotted) {
            return serde_json::from_str(text).ok();
        }
        let prefix = format!("{dotted}.");
        let start = self.paths.partition_point(|path| **path < *prefix);
        let mut tree = Map::new();
        for (path, text) in self.paths.iter().zip(&self.values).skip(start).take_while(|(path, _)| path.starts_with(&prefix)) {
            insert_at_path(&mut tree, &path[prefix.len()..], serde_json::from_str(text).ok()?);
        }
        (!tree.is_empty()).then_some(Value::Object(tree))
    }

    /// Returns all facts as a tree.
    pub fn tree(&self) -> Map<String, Value> {
        let mut tree = Map::new();
        for (path, text) in self.iter() {
            if let Ok(value) = serde_json::from_str(text) {
                insert_at_path(&mut tree, path, value);
            }
        }
        tree
    }

    /// Returns the canonical JSON text of the fact at a dotted path.
    pub fn text(&self, dotted_path: &str) -> Option<&str> {
        let index = self.paths.binary_search_by(|path| path.as_ref().cmp(dotted_path)).ok()?;
        Some(&self.values[index])
    }

    /// Returns all facts in the order of their paths, each as JSON text.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.paths.iter().zip(&self.values).map(|(path, value)| (path.as_ref(), value.as_ref()))
    }

    /// Returns the same facts in memory that equal facts of other nodes share. `share_paths` returns the shared copy of
    /// an equal list of paths, and `share_value` that of an equal value.
    #[must_use]
    pub fn intern(
        &self,
        share_paths: impl FnOnce(&Arc<[Arc<str>]>) -> Arc<[Arc<str>]>,
        share_value: impl FnMut(&Arc<str>) -> Arc<str>,
    ) -> Self {
        Self { paths: share_paths(&self.paths), values: self.values.iter().map(share_value).collect() }
    }
}

/// Appends the leaves of a tree to `leaves`, each with its dotted path. `path` is the path of `value`. A value that is
/// not a map, or an empty map, is a leaf.
fn collect_leaves(path: String, value: &Value, leaves: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            map.iter().for_each(|(key, value)| collect_leaves(format!("{path}.{key}"), value, leaves));
        }
        _ => leaves.push((path, value.clone())),
    }
}

/// Inserts a value at a dotted path and creates the maps above it. If a parent of the path already has a value that is
/// not a map, the new value is dropped. The function does not recurse, because a host determines the depth of the path.
fn insert_at_path(tree: &mut Map<String, Value>, path: &str, value: Value) {
    let mut map = tree;
    let mut rest = path;
    while let Some((first, below)) = rest.split_once('.') {
        let inner = map.entry(first.to_owned()).or_insert_with(|| Value::Object(Map::new()));
        let Value::Object(inner) = inner else { return };
        (map, rest) = (inner, below);
    }
    map.insert(rest.to_owned(), value);
}

/// Returns whether the dotted path of a fact is within the limits of length and depth.
fn is_fact_path(path: &str) -> bool {
    path.len() <= MAX_FACT_PATH_BYTES && path.split('.').count() <= MAX_PATH_KEYS
}

impl FromIterator<(String, Value)> for FactMap {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(facts: I) -> Self {
        Self::from_values_counting_dropped(facts).0
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

    /// `cpufreq` begins with the text `cpu`, but is not below the path `cpu`. A map is equal after it is serialized and
    /// deserialized.
    #[test]
    fn get_returns_fact_or_tree_below_path() {
        let tree = json!({"cpu": {"count": 4, "vendor": "x"}, "cpufreq": 1, "hostname": "web-1", "empty": {}});
        let facts = FactMap::from_tree(tree.as_object().unwrap());
        for (path, expected) in [
            (&["cpu", "count"][..], Some(json!(4))),
            (&["cpu"][..], Some(json!({"count": 4, "vendor": "x"}))),
            (&["hostname"][..], Some(json!("web-1"))),
            (&["cpu", "cores"][..], None),
            (&["host"][..], None),
        ] {
            assert_eq!(facts.get(&Path::new(path.iter().copied()).unwrap()), expected, "{path:?}");
        }
        let text = serde_json::to_string(&facts).unwrap();
        assert_eq!(serde_json::from_str::<FactMap>(&text).unwrap(), facts);
    }
    #[test]
    fn fact_map_drops_facts_beyond_limits_when_built_or_deserialized() {
        let deep = |keys: usize| vec!["k"; keys].join(".");
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let text = |bytes: usize| format!("\"{}\"", "v".repeat(bytes - 2));
        for (path, value, is_accepted) in [
            (deep(16), "1".to_owned(), true),
            (deep(17), "1".to_owned(), false),
            // The longest path that a check-in can contain. A recursive function would overflow the stack on it.
            (deep(1_000_000), "1".to_owned(), false),
            ("p".repeat(255), "1".to_owned(), true),
            ("p".repeat(256), "1".to_owned(), false),
            ("cpu.count".to_owned(), text(16 * 1024), true),
            ("cpu.count".to_owned(), text(16 * 1024 + 1), false),
            ("cpu.count".to_owned(), nested(16), true),
            ("cpu.count".to_owned(), nested(17), false),
        ] {
            let shown = &path[..path.len().min(40)];
            let (facts, dropped_count) = FactMap::from_texts_counting_dropped([(&path, &value)]);
            assert_eq!(
                (facts.iter().next().is_none(), dropped_count),
                (!is_accepted, u32::from(!is_accepted)),
                "{shown} of {} bytes",
                path.len()
            );
            // An older version may have stored facts beyond the limits. They are dropped when they are read.
            let stored = serde_json::to_string(&BTreeMap::from([(&path, &value)])).unwrap();
            assert_eq!(serde_json::from_str::<FactMap>(&stored).unwrap(), facts, "{shown}");
        }
        // Each of the 20 facts has 16 KiB with its path, so the maximum of 256 KiB is reached by 16 facts.
        let many = (0..20).map(|n| (format!("f{n:02}"), text(16 * 1024 - 3)));
        let (facts, dropped_count) = FactMap::from_texts_counting_dropped(many);
        assert_eq!((facts.iter().count(), dropped_count), (16, 4));
    }

    #[test]
    fn insert_at_path_drops_value_below_scalar() {
        let mut tree = Map::new();
        insert_at_path(&mut tree, "a.b", json!(1));
        insert_at_path(&mut tree, "a.c.d", json!(2));
        insert_at_path(&mut tree, "a.b.lost", json!(3));
        assert_eq!(Value::Object(tree), json!({"a": {"b": 1, "c": {"d": 2}}}));
    }
}
