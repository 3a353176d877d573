//! The node: what operators say of a host, and beside it what the host says.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Extra, FieldOwners, GroupId, Inherited, TraitSet};
use crate::digest::canonical_json;
use crate::input::Path;
use crate::name::{Name, TagName};
use crate::ownership::OwnedSet;
use crate::task::Mode;
use crate::traits::Trait;

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
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub properties: Extra,
    /// Ironic's `instance_info`.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub instance_info: Extra,
    /// Its own mode; the group's where it says none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Keeps its task set while labels flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<Box<Hold>>,
    /// Out of budgets, barriers and primaries.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub parked: bool,
    /// Ironic's further fields (`driver`, `resource_class`, …).
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
    /// Who gave which field, trait and tag.
    #[serde(skip_serializing_if = "FieldOwners::is_empty")]
    pub owners: FieldOwners,
}

/// Tags by hand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeTags {
    /// These it has, whatever its roles.
    #[serde(skip_serializing_if = "OwnedSet::is_empty")]
    pub assigned: OwnedSet<TagName>,
    /// These it has not, while one of its roles produces them.
    #[serde(skip_serializing_if = "OwnedSet::is_empty")]
    pub unassigned: OwnedSet<TagName>,
}

impl NodeTags {
    /// Whether nothing was said by hand.
    pub fn is_empty(&self) -> bool {
        self.assigned.is_empty() && self.unassigned.is_empty()
    }
}

/// Why, and until when, a node keeps its task set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hold {
    /// Until then, a date as written; empty: until it is taken back.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub until: String,
    /// Why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
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
    pub labels: Box<[ReportedLabel]>,
    /// Traits that it gave and that are none, or too many; told as a finding, and nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_traits: Option<Box<RefusedTraits>>,
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

/// What was said on the host itself: `stemma-agent pause`, a hold, a park. Kept apart from what operators say of it; a
/// state of now, without history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SaidOnHost {
    /// It applies nothing until it is resumed there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// It keeps its task set until then (seconds since 1970), for that reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<(u64, Arc<str>)>,
    /// Out of budgets, barriers and primaries, for that reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parked: Option<Arc<str>>,
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

/// Facts by dotted path (`cpu.count`), each as canonical JSON text, in order.
///
/// Flat texts and not a tree, and paths apart from values: every node of a fleet has some twenty facts at the same
/// paths, and most of their values are the same everywhere, so that a fleet can share them ([`FactMap::share`]).
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
        let read = |(path, text): (K, V)| Some((path.as_ref().to_owned(), serde_json::from_str(text.as_ref()).ok()?));
        facts.into_iter().filter_map(read).collect()
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

    /// The canonical JSON text of the fact at a dotted path.
    pub fn text(&self, dotted: &str) -> Option<&str> {
        let at = self.paths.binary_search_by(|path| path.as_ref().cmp(dotted)).ok()?;
        Some(&self.values[at])
    }

    /// All facts, in the order of their paths, each as JSON text.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.paths.iter().zip(&self.values).map(|(path, value)| (path.as_ref(), value.as_ref()))
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
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

fn plant(tree: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => drop(tree.insert(path.to_owned(), value)),
        Some((first, rest)) => {
            let inner = tree.entry(first.to_owned()).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                plant(inner, rest, value);
            }
        }
    }
}

impl FromIterator<(String, Value)> for FactMap {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(facts: I) -> Self {
        let sorted: BTreeMap<String, String> =
            facts.into_iter().map(|(key, value)| (key, canonical_json(&value))).collect();
        let (paths, values): (Vec<Arc<str>>, Vec<Arc<str>>) =
            sorted.into_iter().map(|(key, value)| (Arc::from(key), Arc::from(value))).unzip();
        Self { paths: paths.into(), values: values.into() }
    }
}

impl Serialize for FactMap {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for FactMap {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
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
}
