//! What one node may know of another.
//!
//! Operators' words cross as they are; what a host *reported* crosses only as a typed value: an address, a number, a
//! boolean, a host name by RFC 1123, a name from a fixed list (model.md, What a task reads). A value that does not
//! have its type is absent: a host that lies about itself puts no text of its own into another host's files.

use serde_json::Value;

use crate::fleet::{Fleet, NodeEntry};
use crate::input::facts::stable;
use crate::input::{Fields, Names, Path, Query};
use crate::object::{ClusterId, NodeId, Observation};
use crate::origin::Origin;
use crate::release::select::Pattern;
use crate::resolve::{labels, roles};

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
    let is_meant = fold.cluster_id() == cluster && query.is_none_or(|query| is_meant(fleet, entry, query));
    is_meant.then(|| fields.project(|path| field(fleet, entry, path)))
}

/// Whether a query means a node: by its plain tags and roles, and by the names that selectors match.
pub(crate) fn is_meant(fleet: &Fleet, entry: &NodeEntry, query: &Query) -> bool {
    let Some(profile) = &entry.profile else { return false };
    let place = &profile.place;
    let by_tag = |names: &Names| any(names, place.tags.iter().map(AsRef::as_ref).chain(place.names.tag_names()));
    let by_role = |names: &Names| {
        let fold = entry.node.spec.nodegroup.and_then(|group| fleet.fold(group).ok());
        let plain = roles(&entry.node, fold.map(|fold| &**fold));
        any(names, plain.iter().map(AsRef::as_ref).chain(place.names.role_names()))
    };
    match query {
        Query::Tag(tags) => by_tag(tags),
        Query::Role(roles) => by_role(roles),
        Query::TagOrRole { tags, roles } => by_tag(tags) || by_role(roles),
    }
}

fn any<'a>(names: &Names, mut have: impl Iterator<Item = &'a str> + Clone) -> bool {
    let patterns: Vec<Pattern> = names.as_slice().iter().filter_map(|name| Pattern::new(name).ok()).collect();
    have.any(|name| patterns.iter().any(|pattern| pattern.matches(name)))
}

/// A field of a node as another host may see it ([`crate::input::fields::LOOKUP`]).
fn field(fleet: &Fleet, entry: &NodeEntry, path: &Path) -> Option<Value> {
    let fold = entry.node.spec.nodegroup.and_then(|group| fleet.fold(group).ok());
    let seen = entry.observation.as_deref();
    match (path.first(), path.keys()) {
        ("name", _) => Some(entry.node.display_name().into()),
        ("uuid", _) => Some(entry.node.meta.uuid.to_string().into()),
        ("nodegroup", _) => fold.map(|fold| fold.group.meta.name.as_str().into()),
        ("roles", _) => Some(roles(&entry.node, fold.map(|fold| &**fold)).iter().map(|role| role.as_str()).collect()),
        ("address", _) => fact(seen?, &["network", "address"]),
        ("hostname", _) => fact(seen?, &["hostname"]),
        ("labels", [_, key]) => {
            let labels = labels(&entry.node, fold.map(|fold| &**fold), seen);
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
