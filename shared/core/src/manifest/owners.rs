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

/// The owners of each key and field of an object, by names such as `labels.KEY`, or the name of a field.
pub type Owners = BTreeMap<String, Arc<[Owner]>>;

/// Returns the owners of everything in an object.
pub fn owners<S: SpecFields>(spec: &S) -> Owners {
    let fields = spec.owners().iter().map(|(name, owners)| (name.clone(), Arc::clone(owners)));
    let mut all: Owners = fields.collect();
    if let Some(level) = spec.inherited() {
        all.extend(map_owners("labels", level.labels.provided.as_ref()));
        all.extend(map_owners("annotations", level.annotations.provided.as_ref()));
        all.extend(map_owners("parameters", level.parameters.provided.as_ref()));
    }
    if let Some(node) = spec.node() {
        all.extend(map_owners("traits", Some(&node.traits)));
        all.extend(map_owners("tags.assigned", Some(&node.tags.assigned)));
        all.extend(map_owners("tags.unassigned", Some(&node.tags.unassigned)));
    }
    all
}

/// Returns the owners of each key of a map, by `MAP.KEY`.
fn map_owners<'m, K: Ord + Clone + Display, V: Clone + PartialEq>(
    map: &'m str,
    owned: Option<&'m OwnedMap<K, V>>,
) -> impl Iterator<Item = (String, Arc<[Owner]>)> {
    let entries = owned.into_iter().flat_map(OwnedMap::iter);
    entries.map(move |(key, entry)| (format!("{map}.{key}"), Arc::clone(&entry.owners)))
}

/// Returns the keys and fields that an apply omits and that remain because other managers own them, with these
/// managers.
pub fn retained_by_others(before: &Owners, after: &Owners, manager: &Manager) -> Owners {
    let me = Owner::apply(manager);
    let is_mine = |owners: Option<&Arc<[Owner]>>| owners.is_some_and(|owners| owners.contains(&me));
    let is_new = !before.values().any(|owners| owners.contains(&me));
    let is_other = |owner: &&Owner| owner.operation == Operation::Apply && **owner != me;
    // `merge_labels` goes with the labels. Two managers do not share it, and it does not stay by itself.
    let is_flag = |name: &str| name == MERGE_LABELS;
    let shared = after.iter().filter(|(name, owners)| is_new && !is_flag(name) && owners.contains(&me));
    let shared = shared.map(|(_, owners)| owners);
    let joined_owners: BTreeSet<&Owner> = shared.flat_map(|owners| owners.iter().filter(is_other)).collect();
    let stays = |(name, owners): &(&String, &Arc<[Owner]>)| {
        let is_given_up = is_mine(before.get(*name));
        let is_joined = !is_flag(name) && owners.iter().any(|owner| joined_owners.contains(owner));
        !is_mine(Some(owners)) && (is_given_up || is_joined)
    };
    after.iter().filter(stays).map(|(name, owners)| (name.clone(), Arc::clone(owners))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners_from(all: &[(&str, &[&str])]) -> Owners {
        let read = |owners: &[&str]| owners.iter().map(|owner| owner.parse().unwrap()).collect();
        all.iter().map(|(name, owners)| ((*name).to_owned(), read(owners))).collect()
    }

    #[test]
    fn y05_retained_by_others_names_omitted_fields_with_owners() {
        for (what, before, after, left) in [
            (
                "given up, and somebody's by hand",
                &[("labels.a", &["ci:apply"][..]), ("labels.b", &["ann:update", "ci:apply"])][..],
                &[("labels.a", &["ci:apply"][..]), ("labels.b", &["ann:update"])][..],
                &[("labels.b", &["ann:update"][..])][..],
            ),
            (
                "said by another name before",
                &[("labels.a", &["old:apply"]), ("labels.b", &["old:apply"]), ("labels.c", &["ann:update"])],
                &[("labels.a", &["ci:apply", "old:apply"]), ("labels.b", &["old:apply"]), ("labels.c", &["ann:update"])],
                &[("labels.b", &["old:apply"])],
            ),
            (
                "another's own, of which this manager never said anything",
                &[("labels.a", &["ci:apply"]), ("labels.b", &["old:apply"])],
                &[("labels.a", &["ci:apply", "old:apply"]), ("labels.b", &["old:apply"])],
                &[],
            ),
            ("a new manager beside another", &[("b", &["old:apply"])], &[("a", &["ci:apply"]), ("b", &["old:apply"])], &[]),
            ("gone", &[("a", &["ci:apply"])], &[], &[]),
        ] {
            let ci = Manager::new("ci").unwrap();
            assert_eq!(retained_by_others(&owners_from(before), &owners_from(after), &ci), owners_from(left), "{what}");
        }
    }
}
