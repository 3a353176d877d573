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

/// A look-up that tasks of a cluster's nodes make, with its cached result.
#[derive(Clone)]
pub(super) struct TaskLookup {
    /// The profiles whose tasks make the look-up, each with a group whose nodes have the profile.
    pub(super) readers: OrdSet<(GroupId, ProfileHash)>,
    result: Arc<LookupResult>,
}

/// The result of a look-up. It is computed at the first read and shared by the clones of a fleet until a node that the
/// look-up reads changes.
#[derive(Default)]
struct LookupResult(OnceLock<Input>);

impl Fleet {
    /// Returns the result of a look-up in a cluster. All readers share one value.
    pub(crate) fn look_up(&self, cluster: ClusterId, reference: &Reference) -> Input {
        let lookup = self.clusters.get(&cluster).and_then(|entry| entry.lookups.get(reference));
        match lookup {
            Some(lookup) => lookup.result.0.get_or_init(|| self.find(cluster, reference.read())).clone(),
            None => self.find(cluster, reference.read()),
        }
    }

    /// Computes the result of a look-up. Other kinds of reads are not look-ups, and their result is absent.
    fn find(&self, cluster: ClusterId, read: &Read) -> Input {
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

    /// Returns the nodes that match a query, by name (digits compared as numbers). The query is compared with the
    /// profiles only, because all nodes of a profile have the same tags and roles.
    fn find_nodes(&self, cluster: ClusterId, query: &NodeQuery, fields: &FieldSet) -> Value {
        let patterns = QueryPatterns::new(query);
        let mut matching: Vec<(String, NodeId)> = Vec::new();
        for (_, nodes) in self.profile_nodes_in_cluster(cluster).filter(|(profile, _)| patterns.matches(&profile.key)) {
            matching.extend(nodes.iter().filter_map(|id| Some((self.node(*id)?.display_name(), *id))));
        }
        matching.sort_by(|(a, x), (b, y)| natural_cmp(a, b).then_with(|| x.cmp(y)));
        matching.into_iter().filter_map(|(_, id)| self.lookup_view(cluster, id, None, fields)).collect()
    }

    /// Returns a node as a look-up of its cluster sees it, or `None` if it is not in the cluster or does not match the
    /// query.
    fn lookup_view(&self, cluster: ClusterId, id: NodeId, query: Option<&QueryPatterns>, fields: &FieldSet) -> Option<Value> {
        let entry = self.entry(id)?;
        let resolved = self.resolved_group(entry.node.spec.nodegroup?).ok()?;
        let is_match = |query: &QueryPatterns| entry.profile.as_ref().is_some_and(|profile| query.matches(&profile.key));
        let is_visible = resolved.cluster_id() == cluster && query.is_none_or(is_match);
        is_visible.then(|| fields.project(|path| node_field(self, entry, path)))
    }

    /// Returns the look-ups of a cluster whose result has changed, given the nodes that may have changed.
    pub(super) fn changed_lookups(&self, before: &Self, cluster: ClusterId, nodes: &[NodeId]) -> Vec<Reference> {
        let Some(entry) = self.clusters.get(&cluster) else { return Vec::new() };
        let is_changed = |reference: &&Reference| self.is_lookup_changed(before, cluster, reference.read(), nodes);
        entry.lookups.keys().filter(is_changed).cloned().collect()
    }

    /// Returns whether the result of a look-up differs from the one before a change of these nodes.
    fn is_lookup_changed(&self, before: &Self, cluster: ClusterId, read: &Read, nodes: &[NodeId]) -> bool {
        match read {
            Read::Nodes { query, fields } => {
                let patterns = QueryPatterns::new(query);
                // The name decides the position in the list, even if the query does not read it.
                let view = |fleet: &Self, id: &NodeId| {
                    let value = fleet.lookup_view(cluster, *id, Some(&patterns), fields)?;
                    Some((fleet.node(*id)?.display_name(), value))
                };
                nodes.iter().any(|id| view(before, id) != view(self, id))
            }
            Read::Primary { tag, fields } => {
                let (old, new) = (before.holder(cluster, tag), self.holder(cluster, tag));
                let view = |fleet: &Self, id: Option<NodeId>| fleet.lookup_view(cluster, id?, None, fields);
                old != new || (nodes.iter().any(|id| Some(*id) == new) && view(before, old) != view(self, new))
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

    /// Clears the result of a look-up. Returns the profiles whose tasks make it.
    pub(super) fn clear_result(&mut self, cluster: ClusterId, reference: &Reference) -> OrdSet<(GroupId, ProfileHash)> {
        let entry = self.clusters.get_mut(&cluster).and_then(|entry| entry.lookups.get_mut(reference));
        let Some(lookup) = entry else { return OrdSet::new() };
        lookup.result = Arc::default();
        lookup.readers.clone()
    }

    /// Registers the look-ups of a profile that nodes of a group have now.
    pub(super) fn watch(&mut self, cluster: ClusterId, group: GroupId, profile: &Profile) {
        let Some(entry) = self.clusters.get_mut(&cluster) else { return };
        for reference in lookups(profile) {
            let new = || TaskLookup { readers: OrdSet::new(), result: Arc::default() };
            entry.lookups.entry(reference.clone()).or_insert_with(new).readers.insert((group, profile.hash));
        }
    }

    /// Unregisters the look-ups of a profile that no node of a group has any more. A look-up without readers is removed.
    pub(super) fn unwatch(&mut self, cluster: ClusterId, group: GroupId, profile: &Profile) {
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

/// Returns the reads of a profile that are look-ups of other nodes.
fn lookups(profile: &Profile) -> impl Iterator<Item = &Reference> {
    profile.reads.iter().filter(|reference| matches!(reference.read(), Read::Nodes { .. } | Read::Primary { .. }))
}

/// The parsed names and patterns of a query.
struct QueryPatterns {
    tags: Vec<NamePattern>,
    roles: Vec<NamePattern>,
}

impl QueryPatterns {
    fn new(query: &NodeQuery) -> Self {
        let read = |names: &NamePatterns| names.as_slice().iter().filter_map(|name| NamePattern::new(name).ok()).collect();
        match query {
            NodeQuery::Tag(tags) => Self { tags: read(tags), roles: Vec::new() },
            NodeQuery::Role(roles) => Self { tags: Vec::new(), roles: read(roles) },
            NodeQuery::TagOrRole { tags, roles } => Self { tags: read(tags), roles: read(roles) },
        }
    }

    /// Returns whether the nodes of a profile have one of the tags or roles of the query.
    fn matches(&self, place: &ProfileKey) -> bool {
        let mut tags = place.tags.iter().map(AsRef::as_ref).chain(place.names.tag_names());
        let mut roles = place.roles.iter().map(AsRef::as_ref).chain(place.names.role_names());
        tags.any(|tag: &str| self.tags.iter().any(|pattern| pattern.matches(tag)))
            || roles.any(|role: &str| self.roles.iter().any(|pattern| pattern.matches(role)))
    }
}

/// Returns a field of a node as another host may see it ([`crate::input::fields::LOOKUP_FIELDS`]).
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

/// Returns a fact of another host if its value has the registered type.
fn shared_fact(observation: &Observation, keys: &[&str]) -> Option<Value> {
    let path = Path::new(keys.iter().copied())?;
    let facts = stable_facts(&path).ok()?;
    let [fact] = facts.as_slice() else { return None };
    let value = observation.facts.get(&path)?;
    (fact.matches_path(&path) && fact.fact_type.is_shareable() && fact.accepts(&value)).then_some(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fact_is_shared_when_value_has_declared_type() {
        for (path, value, crosses) in [
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
            let tree: Vec<(String, Value)> = vec![(path.to_owned(), value.clone())];
            let seen = Observation { facts: tree.into_iter().collect(), ..Observation::default() };
            let keys: Vec<&str> = path.split('.').collect();
            assert_eq!(shared_fact(&seen, &keys).is_some(), crosses, "{path} {value}");
        }
    }
}
