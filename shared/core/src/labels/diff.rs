//! The three differences that Magnum shows with an object's labels.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The difference between the effective labels or annotations of an object and those of its parent level. A key with
/// equal values is in none of the three maps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Ord + Deserialize<'de>, V: Deserialize<'de>"))]
pub struct MapDiff<K: Ord, V> {
    /// Keys that the object and its parent have with different values. The value here is the **parent's**, as in
    /// Magnum.
    pub overridden: BTreeMap<K, V>,
    /// Keys that only the object has, with the object's value.
    pub added: BTreeMap<K, V>,
    /// Keys that only the parent has, with the parent's value.
    pub skipped: BTreeMap<K, V>,
}

impl<K: Ord, V> Default for MapDiff<K, V> {
    fn default() -> Self {
        Self { overridden: BTreeMap::new(), added: BTreeMap::new(), skipped: BTreeMap::new() }
    }
}

/// Compares the effective maps of an object (`child`) and its parent. A key is overridden if the values differ, added
/// if only the child has it, and skipped if only the parent has it. An overridden key is listed with the value of the
/// parent, as in `get_labels_diff` of Magnum.
pub fn map_diff<K: Ord + Clone, V: PartialEq + Clone>(parent: &BTreeMap<K, V>, child: &BTreeMap<K, V>) -> MapDiff<K, V> {
    let mut diff = MapDiff::default();
    for (key, inherited) in parent {
        match child.get(key) {
            None => drop(diff.skipped.insert(key.clone(), inherited.clone())),
            Some(value) if value != inherited => drop(diff.overridden.insert(key.clone(), inherited.clone())),
            Some(_) => {}
        }
    }
    let added = child.iter().filter(|(key, _)| !parent.contains_key(*key));
    diff.added = added.map(|(key, value)| (key.clone(), value.clone())).collect();
    diff
}
