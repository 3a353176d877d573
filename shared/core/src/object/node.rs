//! The node: what operators say of a host, and beside it what the host says.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Extra, FieldOwners, GroupId, Inherited, TraitSet};
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
    pub hold: Option<Hold>,
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Observation {
    /// Facts that the registry marks stable.
    pub facts: FactMap,
    /// Traits that the agent detected.
    pub traits: TraitSet,
    /// Labels that the host, or another program on it, gave.
    pub labels: Vec<(Arc<str>, Arc<str>)>,
}

/// Facts by name, sorted: small, since every node of a fleet has one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FactMap(Box<[(Arc<str>, Value)]>);

impl FactMap {
    /// The fact of that name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let at = self.0.binary_search_by(|(key, _)| key.as_ref().cmp(name)).ok()?;
        Some(&self.0[at].1)
    }

    /// All facts in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_ref(), value))
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: Into<Arc<str>>> FromIterator<(K, Value)> for FactMap {
    fn from_iter<I: IntoIterator<Item = (K, Value)>>(facts: I) -> Self {
        let sorted: std::collections::BTreeMap<Arc<str>, Value> =
            facts.into_iter().map(|(key, value)| (key.into(), value)).collect();
        Self(sorted.into_iter().collect())
    }
}

impl Serialize for FactMap {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for FactMap {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(serde_json::Map::deserialize(deserializer)?.into_iter().collect())
    }
}
