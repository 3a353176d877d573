//! The owners of the keys and fields of an object, and what an apply leaves with other managers.
//!
//! A key that a manager no longer names remains if another manager owns it too. That is easily overlooked, because the
//! key is in none of the manager's files and still on every host. So the response to an apply lists such keys once.
//! There are two cases. The manager gives the key up. Or a manager that is new to the object, for example because it
//! was renamed, applies the same values as another manager and omits other keys of that manager.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

use super::fields::SpecFields;
use super::merge_labels::MERGE_LABELS;
use crate::ownership::{Manager, Operation, OwnedMap, Owner};

/// The owners of each key and field of an object. The index is `MAP.KEY` for a key of a map, such as `labels.tier`, and
/// the field's name for a field.
pub type Owners = BTreeMap<String, Arc<[Owner]>>;

/// Returns the owners of all fields of an object, and of all keys of its maps, traits and tags.
pub fn owners<S: SpecFields>(spec: &S) -> Owners {
    let fields = spec.owners().iter().map(|(name, owners)| (name.clone(), Arc::clone(owners)));
    let mut owners_by_name: Owners = fields.collect();
    if let Some(level) = spec.inherited() {
        owners_by_name.extend(map_owners("labels", level.labels.provided.as_ref()));
        owners_by_name.extend(map_owners("annotations", level.annotations.provided.as_ref()));
        owners_by_name.extend(map_owners("parameters", level.parameters.provided.as_ref()));
    }
    if let Some(node) = spec.node() {
        owners_by_name.extend(map_owners("traits", Some(&node.traits)));
        owners_by_name.extend(map_owners("tags.assigned", Some(&node.tags.assigned)));
        owners_by_name.extend(map_owners("tags.unassigned", Some(&node.tags.unassigned)));
    }
    owners_by_name
}

/// Returns the owners of each key of a map, with the name `MAP.KEY`. `map_name` is the part before the dot.
fn map_owners<'m, K: Ord + Clone + Display, V: Clone + PartialEq>(
    map_name: &'m str,
    owned_map: Option<&'m OwnedMap<K, V>>,
) -> impl Iterator<Item = (String, Arc<[Owner]>)> {
    let entries = owned_map.into_iter().flat_map(OwnedMap::iter);
    entries.map(move |(key, entry)| (format!("{map_name}.{key}"), Arc::clone(&entry.owners)))
}

/// Returns the keys and fields that an apply of `manager` omitted and that remain because other managers own them, each
/// with its owners. There are two cases:
///
/// - `manager` owned the key or field until this apply.
/// - `manager` applied to this object for the first time, and now shares other keys with a manager that applied this
///   key or field. For example, the manager was renamed, and its manifest omits a key that it applied before.
pub fn retained_by_others(old_owners: &Owners, new_owners: &Owners, manager: &Manager) -> Owners {
    let this_owner = Owner::apply(manager);
    let has_this_owner = |owners: Option<&Arc<[Owner]>>| owners.is_some_and(|owners| owners.contains(&this_owner));
    let is_new_manager = !old_owners.values().any(|owners| owners.contains(&this_owner));
    let is_other_apply = |owner: &&Owner| owner.operation == Operation::Apply && **owner != this_owner;
    // `merge_labels` follows the labels: an apply of labels adds no second owner, and the field is unset with them.
    let is_flag = |name: &str| name == MERGE_LABELS;
    // The managers with which a new manager shares a key or field.
    let shared = new_owners.iter().filter(|(name, owners)| is_new_manager && !is_flag(name) && owners.contains(&this_owner));
    let shared = shared.map(|(_, owners)| owners);
    let joined_owners: BTreeSet<&Owner> = shared.flat_map(|owners| owners.iter().filter(is_other_apply)).collect();
    let is_retained = |(name, owners): &(&String, &Arc<[Owner]>)| {
        let is_given_up = has_this_owner(old_owners.get(*name));
        let is_joined = !is_flag(name) && owners.iter().any(|owner| joined_owners.contains(owner));
        !has_this_owner(Some(owners)) && (is_given_up || is_joined)
    };
    new_owners.iter().filter(is_retained).map(|(name, owners)| (name.clone(), Arc::clone(owners))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns owners from pairs of a name and texts such as `ci:apply`.
    fn owners_from(entries: &[(&str, &[&str])]) -> Owners {
        let parse = |owners: &[&str]| owners.iter().map(|owner| owner.parse().unwrap()).collect();
        entries.iter().map(|(name, owners)| ((*name).to_owned(), parse(owners))).collect()
    }

    #[test]
    fn y05_retained_by_others_names_omitted_fields_with_owners() {
        for (case, old_owners, new_owners, retained) in [
            (
                "given up, and owned by an update too",
                &[("labels.a", &["ci:apply"][..]), ("labels.b", &["ann:update", "ci:apply"])][..],
                &[("labels.a", &["ci:apply"][..]), ("labels.b", &["ann:update"])][..],
                &[("labels.b", &["ann:update"][..])][..],
            ),
            (
                "omitted after the manager was renamed from old to ci",
                &[("labels.a", &["old:apply"]), ("labels.b", &["old:apply"]), ("labels.c", &["ann:update"])],
                &[("labels.a", &["ci:apply", "old:apply"]), ("labels.b", &["old:apply"]), ("labels.c", &["ann:update"])],
                &[("labels.b", &["old:apply"])],
            ),
            (
                "never applied by this manager",
                &[("labels.a", &["ci:apply"]), ("labels.b", &["old:apply"])],
                &[("labels.a", &["ci:apply", "old:apply"]), ("labels.b", &["old:apply"])],
                &[],
            ),
            (
                "owned by a manager with which the new manager shares nothing",
                &[("b", &["old:apply"])],
                &[("a", &["ci:apply"]), ("b", &["old:apply"])],
                &[],
            ),
            ("removed, because it had no other owner", &[("a", &["ci:apply"])], &[], &[]),
        ] {
            let ci = Manager::new("ci").unwrap();
            assert_eq!(
                retained_by_others(&owners_from(old_owners), &owners_from(new_owners), &ci),
                owners_from(retained),
                "{case}"
            );
        }
    }
}
