//! What one node may know of another.
//!
//! Operators' words cross as they are; what a host *reported* crosses only as a typed value: an address, a number, a
//! boolean, a host name by RFC 1123, a name from a fixed list. A value that does not
//! have its type is absent: a host that lies about itself puts no text of its own into another host's files.

use std::sync::{Arc, OnceLock};

use imbl::OrdSet;
use serde_json::Value;

use super::{Fleet, NodeEntry};
use crate::input::facts::stable;
use crate::input::{Fields, Input, Names, Path, Query, Read, Reference, SharedValue};
use crate::name::Name;
use crate::object::{ClusterId, GroupId, NodeId, Observation};
use crate::origin::Origin;
use crate::release::select::Pattern;
use crate::release::{Place, Profile, ProfileHash};
use crate::role::natural_cmp;

/// A look-up that tasks of a cluster make.
#[derive(Clone)]
pub(super) struct LookUp {
    /// Whose tasks make it: the profiles, by the groups whose nodes have them.
    pub(super) readers: OrdSet<(GroupId, ProfileHash)>,
    found: Arc<LookUpResult>,
}

/// What a look-up finds while nothing that it sees changes; worked out once, when it is first read. Clones of a fleet
/// share it.
#[derive(Default)]
struct LookUpResult(OnceLock<Input>);

impl Fleet {
    /// What a look-up finds in a cluster: one value for all that read it.
    pub(crate) fn look_up(&self, cluster: ClusterId, reference: &Reference) -> Input {
        let known = self.clusters.get(&cluster).and_then(|entry| entry.lookups.get(reference));
        match known {
            Some(lookup) => lookup.found.0.get_or_init(|| self.find(cluster, reference.read())).clone(),
            None => self.find(cluster, reference.read()),
        }
    }

    fn find(&self, cluster: ClusterId, read: &Read) -> Input {
        let found = match read {
            Read::Nodes { query, fields } => Some(self.find_nodes(cluster, query, fields)),
            Read::Primary { tag, fields } => {
                self.holder(cluster, tag).and_then(|id| self.view(cluster, id, None, fields))
            }
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
        found.map_or(Input::Absent, |value| Input::Shared(Arc::new(SharedValue::new(value))))
    }

    /// The nodes that a query means, by name (digits compared as numbers). Profiles are asked, not nodes.
    fn find_nodes(&self, cluster: ClusterId, query: &Query, fields: &Fields) -> Value {
        let patterns = Patterns::new(query);
        let mut meant: Vec<(String, NodeId)> = Vec::new();
        for (_, nodes) in self.placed_in(cluster).filter(|(profile, _)| patterns.mean(&profile.place)) {
            meant.extend(nodes.iter().filter_map(|id| Some((self.node(*id)?.display_name(), *id))));
        }
        meant.sort_by(|(a, x), (b, y)| natural_cmp(a, b).then_with(|| x.cmp(y)));
        meant.into_iter().filter_map(|(_, id)| self.view(cluster, id, None, fields)).collect()
    }

    /// One node as a look-up of its cluster sees it; `None`: it is not in the cluster, or the query does not mean it.
    fn view(&self, cluster: ClusterId, id: NodeId, query: Option<&Patterns>, fields: &Fields) -> Option<Value> {
        let entry = self.entry(id)?;
        let fold = self.fold(entry.node.spec.nodegroup?).ok()?;
        let is_meant = |query: &Patterns| entry.profile.as_ref().is_some_and(|profile| query.mean(&profile.place));
        let is_seen = fold.cluster_id() == cluster && query.is_none_or(is_meant);
        is_seen.then(|| fields.project(|path| field(self, entry, path)))
    }

    /// The look-ups of a cluster that find something else than before, where these nodes may have changed.
    pub(super) fn changed_lookups(&self, before: &Self, cluster: ClusterId, nodes: &[NodeId]) -> Vec<Reference> {
        let Some(entry) = self.clusters.get(&cluster) else { return Vec::new() };
        let is_changed = |reference: &&Reference| self.finds_other(before, cluster, reference.read(), nodes);
        entry.lookups.keys().filter(is_changed).cloned().collect()
    }

    fn finds_other(&self, before: &Self, cluster: ClusterId, read: &Read, nodes: &[NodeId]) -> bool {
        match read {
            Read::Nodes { query, fields } => {
                let patterns = Patterns::new(query);
                // The name is the place in the list, whether or not it is read.
                let view = |fleet: &Self, id: &NodeId| {
                    let seen = fleet.view(cluster, *id, Some(&patterns), fields)?;
                    Some((fleet.node(*id)?.display_name(), seen))
                };
                nodes.iter().any(|id| view(before, id) != view(self, id))
            }
            Read::Primary { tag, fields } => {
                let (old, new) = (before.holder(cluster, tag), self.holder(cluster, tag));
                let view = |fleet: &Self, id: Option<NodeId>| fleet.view(cluster, id?, None, fields);
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

    /// Forgets what a look-up found; gives the profiles whose tasks make it.
    pub(super) fn forget_found(&mut self, cluster: ClusterId, reference: &Reference) -> OrdSet<(GroupId, ProfileHash)> {
        let entry = self.clusters.get_mut(&cluster).and_then(|entry| entry.lookups.get_mut(reference));
        let Some(lookup) = entry else { return OrdSet::new() };
        lookup.found = Arc::default();
        lookup.readers.clone()
    }

    /// Nodes of a group have a profile now: what its tasks look up is watched.
    pub(super) fn watch(&mut self, cluster: ClusterId, group: GroupId, profile: &Profile) {
        let Some(entry) = self.clusters.get_mut(&cluster) else { return };
        for reference in lookups(profile) {
            let new = || LookUp { readers: OrdSet::new(), found: Arc::default() };
            entry.lookups.entry(reference.clone()).or_insert_with(new).readers.insert((group, profile.hash));
        }
    }

    /// No node of a group has a profile any more: what nobody else looks up is watched no longer.
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

fn lookups(profile: &Profile) -> impl Iterator<Item = &Reference> {
    profile.reads.iter().filter(|one| matches!(one.read(), Read::Nodes { .. } | Read::Primary { .. }))
}

/// A query's names and patterns, read.
struct Patterns {
    tags: Vec<Pattern>,
    roles: Vec<Pattern>,
}

impl Patterns {
    fn new(query: &Query) -> Self {
        let read = |names: &Names| names.as_slice().iter().filter_map(|name| Pattern::new(name).ok()).collect();
        match query {
            Query::Tag(tags) => Self { tags: read(tags), roles: Vec::new() },
            Query::Role(roles) => Self { tags: Vec::new(), roles: read(roles) },
            Query::TagOrRole { tags, roles } => Self { tags: read(tags), roles: read(roles) },
        }
    }

    fn mean(&self, place: &Place) -> bool {
        let mut tags = place.tags.iter().map(AsRef::as_ref).chain(place.names.tag_names());
        let mut roles = place.roles.iter().map(AsRef::as_ref).chain(place.names.role_names());
        tags.any(|tag: &str| self.tags.iter().any(|pattern| pattern.matches(tag)))
            || roles.any(|role: &str| self.roles.iter().any(|pattern| pattern.matches(role)))
    }
}

/// A field of a node as another host may see it ([`crate::input::fields::LOOKUP`]).
fn field(fleet: &Fleet, entry: &NodeEntry, path: &Path) -> Option<Value> {
    let fold = fleet.fold_above(&entry.node.spec);
    let seen = entry.observation.as_deref();
    match (path.first(), path.keys()) {
        ("name", _) => Some(entry.node.display_name().into()),
        ("uuid", _) => Some(entry.node.meta.uuid.to_string().into()),
        ("nodegroup", _) => fold.map(|fold| fold.group.meta.name.as_str().into()),
        ("roles", _) => Some(entry.roles(fold.map(|fold| &**fold)).iter().map(Name::as_str).collect()),
        ("address", _) => fact(seen?, &["network", "address"]),
        ("hostname", _) => fact(seen?, &["hostname"]),
        ("labels", [_, key]) => {
            // What rules give is not asked: it may be what a host reported, word for word.
            let labels = entry.labels(fold.map(|fold| &**fold), fleet.rules().nothing());
            let said = labels.line(&**key)?.effective()?;
            matches!(said.origin, Origin::Level(_)).then(|| said.value.as_str().into())
        }
        ("facts", [_, rest @ ..]) => fact(seen?, &rest.iter().map(AsRef::as_ref).collect::<Vec<_>>()),
        _ => None,
    }
}

/// A fact of another host, if its value has the type that the registry says.
fn fact(seen: &Observation, keys: &[&str]) -> Option<Value> {
    let path = Path::new(keys.iter().copied())?;
    let found = stable(&path).ok()?;
    let [fact] = found.as_slice() else { return None };
    let value = seen.facts.get(&path)?;
    (fact.is_at(&path) && fact.kind.crosses() && fact.admits(&value)).then_some(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_host_reported_crosses_only_with_its_type() {
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
            assert_eq!(fact(&seen, &keys).is_some(), crosses, "{path} {value}");
        }
    }
}
