//! A small sorted map in one allocation.
//!
//! A fleet stores up to three maps per node, most with one entry or none. A `BTreeMap` allocates room for eleven
//! entries at once. This map allocates no spare room. Its order and its JSON are those of a `BTreeMap`.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A map as a list of entries, sorted by key. Each key occurs once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SortedMap<K, V>(Vec<(K, V)>);

impl<K, V> SortedMap<K, V> {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// Removes the entries for which `should_retain` returns false, and frees the unused memory.
    pub(super) fn retain(&mut self, mut should_retain: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain_mut(|(key, value)| should_retain(key, value));
        self.0.shrink_to_fit();
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.position(key).ok().map(|index| &self.0[index].1)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.position(key).ok().map(|index| &mut self.0[index].1)
    }

    /// Inserts or replaces an entry. If there is no room for a new entry, memory for one more is requested.
    pub(super) fn insert(&mut self, key: K, value: V) {
        match self.position(&key) {
            Ok(index) => self.0[index].1 = value,
            Err(index) => {
                self.0.reserve_exact(1);
                self.0.insert(index, (key, value));
            }
        }
    }

    pub(super) fn remove(&mut self, key: &K) {
        if let Ok(index) = self.position(key) {
            self.0.remove(index);
        }
    }

    /// Returns the index of a key as `Ok`, or as `Err` the index at which the key would be inserted.
    fn position<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(entry_key, _)| entry_key.borrow().cmp(key))
    }
}

/// Builds a map from entries in any order. If a key occurs several times, the last entry is used.
impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        Self(entries.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect())
    }
}

impl<K: Serialize, V: Serialize> Serialize for SortedMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de, K: Ord + Deserialize<'de>, V: Deserialize<'de>> Deserialize<'de> for SortedMap<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::deserialize(deserializer).map(Self::from_iter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_map_behaves_like_btree_map() {
        let pairs = [("b", 1), ("a", 2), ("b", 3), ("c", 4)];
        let (mut sorted, mut tree): (SortedMap<_, _>, BTreeMap<_, _>) =
            (pairs.into_iter().collect(), pairs.into_iter().collect());
        let assert_same = |sorted: &SortedMap<&str, i32>, tree: &BTreeMap<&str, i32>| {
            assert_eq!(sorted.iter().collect::<Vec<_>>(), tree.iter().collect::<Vec<_>>());
            assert_eq!(serde_json::to_string(sorted).unwrap(), serde_json::to_string(tree).unwrap());
        };
        assert_same(&sorted, &tree);
        for (key, value) in [("d", 5), ("a", 6), ("bb", 7)] {
            sorted.insert(key, value);
            tree.insert(key, value);
            assert_same(&sorted, &tree);
        }
        sorted.remove(&"b");
        tree.remove("b");
        sorted.retain(|_, value| *value != 5);
        tree.retain(|_, value| *value != 5);
        assert_same(&sorted, &tree);
        assert_eq!((sorted.get("a"), sorted.get("b"), sorted.len()), (Some(&6), None, 3));
    }
}
