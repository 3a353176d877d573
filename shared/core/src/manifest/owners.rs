//! Who owns what of an object, and what an apply leaves with others.
//!
//! What a manager no longer names stays where somebody else owns it too. It is easily overlooked: the key is in no file any more and on
//! every host. So the answer of an apply names it once, when it happens: where the manager gives it up, and where a manager that is new to
//! the object agrees with another one, as after its own name was changed, and leaves out what that one has beside.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

use super::fields::Fields;
use super::merge_labels::MERGE_LABELS;
use crate::ownership::{Manager, Operation, OwnedMap, Owner};

/// The owners of each key and field of an object, as `labels.KEY` or `FIELD`.
pub type Owners = BTreeMap<String, Arc<[Owner]>>;

/// The owners of all that an object holds.
pub fn owners<S: Fields>(spec: &S) -> Owners {
    let fields = spec.owners_ref().iter().map(|(name, owners)| (name.clone(), Arc::clone(owners)));
    let mut all: Owners = fields.collect();
    if let Some(own) = spec.inherited_ref() {
        all.extend(of_map("labels", own.labels.provided.as_ref()));
        all.extend(of_map("annotations", own.annotations.provided.as_ref()));
        all.extend(of_map("parameters", own.parameters.provided.as_ref()));
    }
    if let Some(node) = spec.node_ref() {
        all.extend(of_map("traits", Some(&node.traits)));
        all.extend(of_map("tags.assigned", Some(&node.tags.assigned)));
        all.extend(of_map("tags.unassigned", Some(&node.tags.unassigned)));
    }
    all
}

fn of_map<'m, K: Ord + Clone + Display, V: Clone + PartialEq>(
    map: &'m str,
    owned: Option<&'m OwnedMap<K, V>>,
) -> impl Iterator<Item = (String, Arc<[Owner]>)> {
    let entries = owned.into_iter().flat_map(OwnedMap::iter);
    entries.map(move |(key, entry)| (format!("{map}.{key}"), Arc::clone(&entry.owners)))
}

/// What an apply of a manager left out, and what stays of that since others own it, with them.
pub fn kept_by_others(before: &Owners, after: &Owners, manager: &Manager) -> Owners {
    let me = Owner::apply(manager);
    let is_mine = |owners: Option<&Arc<[Owner]>>| owners.is_some_and(|owners| owners.contains(&me));
    let is_new = !before.values().any(|owners| owners.contains(&me));
    let is_other = |owner: &&Owner| owner.operation == Operation::Apply && **owner != me;
    // How labels merge goes with the labels: it is nothing that two managers share, and nothing that stays by itself.
    let is_flag = |name: &str| name == MERGE_LABELS;
    let shared = after.iter().filter(|(name, owners)| is_new && !is_flag(name) && owners.contains(&me));
    let shared = shared.map(|(_, owners)| owners);
    let joined: BTreeSet<&Owner> = shared.flat_map(|owners| owners.iter().filter(is_other)).collect();
    let stays = |(name, owners): &(&String, &Arc<[Owner]>)| {
        let given_up = is_mine(before.get(*name));
        let is_joined = !is_flag(name) && owners.iter().any(|owner| joined.contains(owner));
        !is_mine(Some(owners)) && (given_up || is_joined)
    };
    after.iter().filter(stays).map(|(name, owners)| (name.clone(), Arc::clone(owners))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners_of(all: &[(&str, &[&str])]) -> Owners {
        let read = |owners: &[&str]| owners.iter().map(|owner| owner.parse().unwrap()).collect();
        all.iter().map(|(name, owners)| ((*name).to_owned(), read(owners))).collect()
    }

    #[test]
    fn y05_what_an_apply_leaves_out_and_others_own_is_named_with_them() {
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
                &[
                    ("labels.a", &["ci:apply", "old:apply"]),
                    ("labels.b", &["old:apply"]),
                    ("labels.c", &["ann:update"]),
                ],
                &[("labels.b", &["old:apply"])],
            ),
            (
                "another's own, of which this manager never said anything",
                &[("labels.a", &["ci:apply"]), ("labels.b", &["old:apply"])],
                &[("labels.a", &["ci:apply", "old:apply"]), ("labels.b", &["old:apply"])],
                &[],
            ),
            (
                "a new manager beside another",
                &[("b", &["old:apply"])],
                &[("a", &["ci:apply"]), ("b", &["old:apply"])],
                &[],
            ),
            ("gone", &[("a", &["ci:apply"])], &[], &[]),
        ] {
            let ci = Manager::new("ci").unwrap();
            assert_eq!(kept_by_others(&owners_of(before), &owners_of(after), &ci), owners_of(left), "{what}");
        }
    }
}
