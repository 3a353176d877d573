//! What one node may know of another.
//!
//! Operators' words cross as they are; what a host *reported* crosses only as a typed value: an address, a number, a
//! boolean, a host name by RFC 1123, a name from a fixed list. A value that does not
//! have its type is absent: a host that lies about itself puts no text of its own into another host's files.

use serde_json::Value;

use super::{Fleet, NodeEntry};
use crate::input::facts::stable;
use crate::input::{Fields, Names, Path, Query};
use crate::name::Name;
use crate::object::{ClusterId, NodeId, Observation};
use crate::origin::Origin;
use crate::release::Place;
use crate::release::select::Pattern;
use crate::role::natural_cmp;

/// One node as a look-up of its cluster sees it; `None`: it is not in the cluster, or the query does not mean it.
pub(crate) fn view(
    fleet: &Fleet,
    cluster: ClusterId,
    id: NodeId,
    query: Option<&Query>,
    fields: &Fields,
) -> Option<Value> {
    let entry = fleet.entry(id)?;
    let fold = fleet.fold(entry.node.spec.nodegroup?).ok()?;
    let is_meant = fold.cluster_id() == cluster && query.is_none_or(|query| is_meant(entry, query));
    is_meant.then(|| fields.project(|path| field(fleet, entry, path)))
}

/// The nodes of a cluster that a query means, by name (digits compared as numbers). Profiles are asked, not nodes.
pub(crate) fn nodes(fleet: &Fleet, cluster: ClusterId, query: &Query, fields: &Fields) -> Value {
    let patterns = Patterns::new(query);
    let mut meant: Vec<(String, NodeId)> = Vec::new();
    fleet.each_profile(cluster, &mut |profile, nodes| {
        if patterns.mean(&profile.place) {
            let named = nodes.iter().filter_map(|id| Some((fleet.node(*id)?.display_name(), *id)));
            meant.extend(named);
        }
    });
    meant.sort_by(|(a, x), (b, y)| natural_cmp(a, b).then_with(|| x.cmp(y)));
    meant.into_iter().filter_map(|(_, id)| view(fleet, cluster, id, None, fields)).collect()
}

/// The node of a cluster that holds a tag as primary.
pub(crate) fn primary(fleet: &Fleet, cluster: ClusterId, tag: &str, fields: &Fields) -> Option<Value> {
    view(fleet, cluster, fleet.holder(cluster, tag)?, None, fields)
}

/// Whether a query means a node: by its plain tags and roles, and by the names that selectors match.
fn is_meant(entry: &NodeEntry, query: &Query) -> bool {
    entry.profile.as_ref().is_some_and(|profile| Patterns::new(query).mean(&profile.place))
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
    let fold = entry.node.spec.nodegroup.and_then(|group| fleet.fold(group).ok());
    let seen = entry.observation.as_deref();
    match (path.first(), path.keys()) {
        ("name", _) => Some(entry.node.display_name().into()),
        ("uuid", _) => Some(entry.node.meta.uuid.to_string().into()),
        ("nodegroup", _) => fold.map(|fold| fold.group.meta.name.as_str().into()),
        ("roles", _) => Some(entry.roles(fold.map(|fold| &**fold)).iter().map(Name::as_str).collect()),
        ("address", _) => fact(seen?, &["network", "address"]),
        ("hostname", _) => fact(seen?, &["hostname"]),
        ("labels", [_, key]) => {
            let labels = entry.labels(fold.map(|fold| &**fold));
            let said = labels.line(&**key)?.effective()?;
            (said.origin != Origin::Host).then(|| said.value.as_str().into())
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
