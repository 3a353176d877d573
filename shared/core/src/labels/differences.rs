//! The three differences that Magnum shows beside an object's labels.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How an object's effective map differs from its parent's; an equal value is in none of the three.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Ord + Deserialize<'de>, V: Deserialize<'de>"))]
pub struct Differences<K: Ord, V> {
    /// In both with another value: the **parent's** value, as Magnum shipped it.
    pub overridden: BTreeMap<K, V>,
    /// In the object alone: its value.
    pub added: BTreeMap<K, V>,
    /// In the parent alone: the parent's value.
    pub skipped: BTreeMap<K, V>,
}

impl<K: Ord, V> Default for Differences<K, V> {
    fn default() -> Self {
        Self { overridden: BTreeMap::new(), added: BTreeMap::new(), skipped: BTreeMap::new() }
    }
}

/// Compares effective maps, as Magnum's `get_labels_diff`: plain equality of key and value.
pub fn differences<K: Ord + Clone, V: PartialEq + Clone>(
    parent: &BTreeMap<K, V>,
    own: &BTreeMap<K, V>,
) -> Differences<K, V> {
    let mut differences = Differences::default();
    for (key, theirs) in parent {
        match own.get(key) {
            None => drop(differences.skipped.insert(key.clone(), theirs.clone())),
            Some(ours) if ours != theirs => drop(differences.overridden.insert(key.clone(), theirs.clone())),
            Some(_) => {}
        }
    }
    let added = own.iter().filter(|(key, _)| !parent.contains_key(*key));
    differences.added = added.map(|(key, ours)| (key.clone(), ours.clone())).collect();
    differences
}
