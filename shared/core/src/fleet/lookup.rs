//! What a node may read of another node.
//!
//! Values from operators pass unchanged. A *reported* value passes only if it has its registered type: an address, a
//! number, a boolean, a host name by RFC 1123, or a name from a fixed list. Otherwise it is absent. A host that reports
//! false values thus cannot put text of its own into the files of another host.

use std::sync::{Arc, OnceLock};

use imbl::OrdSet;
use serde_json::Value;

use super::{Fleet, NodeEntry};
use crate::input::facts::stable_facts;
use crate::input::{FieldSet, Input, NamePatterns, NodeQuery, Path, Read, Reference, SharedValue};
use crate::name::Name;
use crate::object::{ClusterId, GroupId, NodeId, Observation};
use crate::origin::Origin;
use crate::release::name_selector::NamePattern;
use crate::release::{Profile, ProfileHash, ProfileKey};
use crate::role::natural_cmp;

/// A look-up of other nodes that tasks of a cluster make: its readers and its cached result.
#[derive(Clone)]
pub(super) struct TaskLookup {
    /// The profiles whose tasks make the look-up, once for each group that has nodes with the profile.
    pub(super) readers: OrdSet<(GroupId, ProfileHash)>,
    result: Arc<LookupResult>,
}

/// The cached result of a look-up. It is computed at the first read. All clones of a fleet share it until a node that
/// the look-up reads changes.
#[derive(Default)]
struct LookupResult(OnceLock<Input>);

impl Fleet {
    /// Returns the result of a look-up in a cluster. All tasks with the same look-up share one cached value.
    pub(crate) fn look_up(&self, cluster: ClusterId, reference: &Reference) -> Input {
        let lookup = self.clusters.get(&cluster).and_then(|entry| entry.lookups.get(reference));
        match lookup {
            Some(lookup) => lookup.result.0.get_or_init(|| self.compute_lookup(cluster, reference.read())).clone(),
            None => self.compute_lookup(cluster, reference.read()),
        }
    }

    /// Computes the result of a look-up in a cluster. Other reads than look-ups have an absent result.
    fn compute_lookup(&self, cluster: ClusterId, read: &Read) -> Input {
        let value = match read {
            Read::Nodes { query, fields } => Some(self.find_nodes(cluster, query, fields)),
            Read::Primary { tag, fields } => self.holder(cluster, tag).and_then(|id| self.lookup_view(cluster, id, None, fields)),
            Read::Label(_)
            | Read::LabelsWithPrefix(_)
            | Read::Parameter(_)
            | Read::Trait(_)
            | Read::Tag(_)
            | Read::Fact(_)
            | Read::Node(_)
            | Read::Cluster(_)
            | Read::Secret(_) => None,
        };
        value.map_or(Input::Absent, |value| Input::Shared(Arc::new(SharedValue::new(value))))
    }

    /// Returns the requested fields of the nodes that match a query, in the order of their names (digits compared as
    /// numbers). Nodes with one profile have the same tags and roles, so only the profiles are compared with the query.
    fn find_nodes(&self, cluster: ClusterId, query: &NodeQuery, fields: &FieldSet) -> Value {
        let patterns = QueryPatterns::new(query);
        let mut matching: Vec<(String, NodeId)> = Vec::new();
        for (_, nodes) in self.profile_nodes_in_cluster(cluster).filter(|(profile, _)| patterns.matches(&profile.key)) {
            matching.extend(nodes.iter().filter_map(|id| Some((self.node(*id)?.display_name(), *id))));
        }
        matching.sort_by(|(name, id), (other_name, other_id)| natural_cmp(name, other_name).then_with(|| id.cmp(other_id)));
        matching.into_iter().filter_map(|(_, id)| self.lookup_view(cluster, id, None, fields)).collect()
    }

    /// Returns the fields of a node that a look-up in a cluster reads. Returns `None` if the node is not in the cluster
    /// or does not match the query. Without a query, each node of the cluster matches.
    fn lookup_view(&self, cluster: ClusterId, id: NodeId, query: Option<&QueryPatterns>, fields: &FieldSet) -> Option<Value> {
        let entry = self.entry(id)?;
        let resolved = self.resolved_group(entry.node.spec.nodegroup?).ok()?;
        let is_match = |query: &QueryPatterns| entry.profile.as_ref().is_some_and(|profile| query.matches(&profile.key));
        let is_visible = resolved.cluster_id() == cluster && query.is_none_or(is_match);
        is_visible.then(|| fields.project(|path| node_field(self, entry, path)))
    }

    /// Returns the look-ups of a cluster whose results a change of these nodes has changed. `old_fleet` is the fleet
    /// before the change.
    pub(super) fn changed_lookups(&self, old_fleet: &Self, cluster: ClusterId, nodes: &[NodeId]) -> Vec<Reference> {
        let Some(entry) = self.clusters.get(&cluster) else { return Vec::new() };
        let is_changed = |reference: &&Reference| self.is_lookup_changed(old_fleet, cluster, reference.read(), nodes);
        entry.lookups.keys().filter(is_changed).cloned().collect()
    }

    /// Returns whether the result of a look-up differs between this fleet and `old_fleet`, the fleet before a change of
    /// these nodes.
    fn is_lookup_changed(&self, old_fleet: &Self, cluster: ClusterId, read: &Read, nodes: &[NodeId]) -> bool {
        match read {
            Read::Nodes { query, fields } => {
                let patterns = QueryPatterns::new(query);
                // The name decides the position in the list, even if the query does not read it.
                let view = |fleet: &Self, id: &NodeId| {
                    let value = fleet.lookup_view(cluster, *id, Some(&patterns), fields)?;
                    Some((fleet.node(*id)?.display_name(), value))
                };
                nodes.iter().any(|id| view(old_fleet, id) != view(self, id))
            }
            Read::Primary { tag, fields } => {
                let (old, new) = (old_fleet.holder(cluster, tag), self.holder(cluster, tag));
                let view = |fleet: &Self, id: Option<NodeId>| fleet.lookup_view(cluster, id?, None, fields);
                old != new || (nodes.iter().any(|id| Some(*id) == new) && view(old_fleet, old) != view(self, new))
            }
            Read::Label(_)
            | Read::LabelsWithPrefix(_)
            | Read::Parameter(_)
            | Read::Trait(_)
            | Read::Tag(_)
            | Read::Fact(_)
            | Read::Node(_)
            | Read::Cluster(_)
            | Read::Secret(_) => false,
        }
    }

    /// Clears the cached result of a look-up. Returns the profiles whose tasks make the look-up, each with its group.
    pub(super) fn clear_result(&mut self, cluster: ClusterId, reference: &Reference) -> OrdSet<(GroupId, ProfileHash)> {
        let entry = self.clusters.get_mut(&cluster).and_then(|entry| entry.lookups.get_mut(reference));
        let Some(lookup) = entry else { return OrdSet::new() };
        lookup.result = Arc::default();
        lookup.readers.clone()
    }

    /// Adds a profile, which the first node of the group gets now, to the readers of each look-up of its tasks.
    pub(super) fn register_lookups(&mut self, cluster: ClusterId, group: GroupId, profile: &Profile) {
        let Some(entry) = self.clusters.get_mut(&cluster) else { return };
        for reference in lookups(profile) {
            let new_lookup = || TaskLookup { readers: OrdSet::new(), result: Arc::default() };
            entry.lookups.entry(reference.clone()).or_insert_with(new_lookup).readers.insert((group, profile.hash));
        }
    }

    /// Unregisters the look-ups of a profile that no node of a group has any more. A look-up that no profile makes is
    /// removed.
    pub(super) fn unregister_lookups(&mut self, cluster: ClusterId, group: GroupId, profile: &Profile) {
        let Some(entry) = self.clusters.get_mut(&cluster) else { return };
        for reference in lookups(profile) {
            let Some(lookup) = entry.lookups.get_mut(reference) else { continue };
            lookup.readers.remove(&(group, profile.hash));
            if lookup.readers.is_empty() {
                entry.lookups.remove(reference);
            }
        }
    }
}

/// Returns the reads of the tasks of a profile that look up other nodes.
fn lookups(profile: &Profile) -> impl Iterator<Item = &Reference> {
    profile.reads.iter().filter(|reference| matches!(reference.read(), Read::Nodes { .. } | Read::Primary { .. }))
}

/// The tag and role patterns of a query, parsed.
struct QueryPatterns {
    tags: Vec<NamePattern>,
    roles: Vec<NamePattern>,
}

impl QueryPatterns {
    /// Parses the patterns of a query. Invalid patterns are omitted, so they match nothing.
    fn new(query: &NodeQuery) -> Self {
        let parse = |names: &NamePatterns| names.as_slice().iter().filter_map(|name| NamePattern::new(name).ok()).collect();
        match query {
            NodeQuery::Tag(tags) => Self { tags: parse(tags), roles: Vec::new() },
            NodeQuery::Role(roles) => Self { tags: Vec::new(), roles: parse(roles) },
            NodeQuery::TagOrRole { tags, roles } => Self { tags: parse(tags), roles: parse(roles) },
        }
    }

    /// Returns whether a tag pattern of the query matches a tag of the nodes with this profile key, or a role pattern a
    /// role. The names `primary-x` of a node that is primary of the tag `x` count as tags and roles too.
    fn matches(&self, key: &ProfileKey) -> bool {
        let mut tags = key.tags.iter().map(AsRef::as_ref).chain(key.names.tag_names());
        let mut roles = key.roles.iter().map(AsRef::as_ref).chain(key.names.role_names());
        tags.any(|tag: &str| self.tags.iter().any(|pattern| pattern.matches(tag)))
            || roles.any(|role: &str| self.roles.iter().any(|pattern| pattern.matches(role)))
    }
}

/// Returns a field of a node as the tasks of another host may read it (see [`crate::input::fields::LOOKUP_FIELDS`]).
fn node_field(fleet: &Fleet, entry: &NodeEntry, path: &Path) -> Option<Value> {
    let resolved = fleet.resolved_parent(&entry.node.spec);
    let observation = entry.observation.as_deref();
    match (path.first(), path.keys()) {
        ("name", _) => Some(entry.node.display_name().into()),
        ("uuid", _) => Some(entry.node.meta.uuid.to_string().into()),
        ("nodegroup", _) => resolved.map(|resolved| resolved.group.meta.name.as_str().into()),
        ("roles", _) => Some(entry.roles(resolved.map(|resolved| &**resolved)).iter().map(Name::as_str).collect()),
        ("address", _) => shared_fact(observation?, &["network", "address"]),
        ("hostname", _) => shared_fact(observation?, &["hostname"]),
        ("labels", [_, key]) => {
            // Values from rules are excluded, because a rule may copy what a host reported word for word.
            let labels = entry.labels(resolved.map(|resolved| &**resolved), fleet.rules().empty_outcome());
            let label = labels.provenance(&**key)?.effective()?;
            matches!(label.origin, Origin::Level(_)).then(|| label.value.as_str().into())
        }
        ("facts", [_, rest @ ..]) => shared_fact(observation?, &rest.iter().map(AsRef::as_ref).collect::<Vec<_>>()),
        _ => None,
    }
}

/// Returns a fact that a host reports, for the tasks of another host. Returns `None` if the path is not that of one
/// stable fact, if the fact is free text, or if the value does not have the registered type of the fact. A host thus
/// cannot put text of its own into files of another host.
fn shared_fact(observation: &Observation, keys: &[&str]) -> Option<Value> {
    let path = Path::new(keys.iter().copied())?;
    let facts = stable_facts(&path).ok()?;
    // A path above several facts, such as `cpu`, is not shared.
    let [fact] = facts.as_slice() else { return None };
    let value = observation.facts.get(&path)?;
    (fact.matches_path(&path) && fact.fact_type.is_shareable() && fact.accepts(&value)).then_some(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A host can report any value. Another host gets the fact only if the value has the type of the fact, and the type
    /// is not free text (as that of `cpu.model`).
    #[test]
    fn fact_is_shared_when_type_is_shareable_and_value_matches() {
        for (path, value, is_shared) in [
            ("network.address", json!("10.0.0.1"), true),
            ("network.address", json!("10.0.0.1; rm -rf /"), false),
            ("network.addresses", json!(["10.0.0.1", "fe80::1"]), true),
            ("network.addresses", json!(["10.0.0.1", "x"]), false),
            ("hostname", json!("web-1"), true),
            ("hostname", json!("-web"), false),
            ("fqdn", json!("web-1.example.net"), true),
            ("fqdn", json!("web_1.example.net"), false),
            ("cpu.count", json!(4), true),
            ("cpu.count", json!("4"), false),
            ("firmware", json!("uefi"), true),
            ("firmware", json!("{{ labels.x }}"), false),
            ("cpu.model", json!("anything"), false),
        ] {
            let facts: Vec<(String, Value)> = vec![(path.to_owned(), value.clone())];
            let observation = Observation { facts: facts.into_iter().collect(), ..Observation::default() };
            let keys: Vec<&str> = path.split('.').collect();
            assert_eq!(shared_fact(&observation, &keys).is_some(), is_shared, "{path} {value}");
        }
    }
}
