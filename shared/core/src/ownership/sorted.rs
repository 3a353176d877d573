//! A small map kept sorted in one piece of memory.
//!
//! A fleet holds a map or three for every node, most of one entry or none: a `BTreeMap` takes room for eleven at once,
//! this takes what it has. Its order and its JSON are those of a `BTreeMap`.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Entries by key, each key once.
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

    pub(super) fn retain(&mut self, mut keeps: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain_mut(|(key, value)| keeps(key, value));
        self.0.shrink_to_fit();
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.place(key).ok().map(|at| &self.0[at].1)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.place(key).ok().map(|at| &mut self.0[at].1)
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        match self.place(&key) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => {
                self.0.reserve_exact(1);
                self.0.insert(at, (key, value));
            }
        }
    }

    pub(super) fn remove(&mut self, key: &K) {
        if let Ok(at) = self.place(key) {
            self.0.remove(at);
        }
    }

    fn place<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(own, _)| own.borrow().cmp(key))
    }
}

/// Of several entries of one key, the last one holds.
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
    fn it_is_a_map_as_any_other() {
        let pairs = [("b", 1), ("a", 2), ("b", 3), ("c", 4)];
        let (mut sorted, mut tree): (SortedMap<_, _>, BTreeMap<_, _>) =
            (pairs.into_iter().collect(), pairs.into_iter().collect());
        let same = |sorted: &SortedMap<&str, i32>, tree: &BTreeMap<&str, i32>| {
            assert_eq!(sorted.iter().collect::<Vec<_>>(), tree.iter().collect::<Vec<_>>());
            assert_eq!(serde_json::to_string(sorted).unwrap(), serde_json::to_string(tree).unwrap());
        };
        same(&sorted, &tree);
        for (key, value) in [("d", 5), ("a", 6), ("bb", 7)] {
            sorted.insert(key, value);
            tree.insert(key, value);
            same(&sorted, &tree);
        }
        sorted.remove(&"b");
        tree.remove("b");
        sorted.retain(|_, value| *value != 5);
        tree.retain(|_, value| *value != 5);
        same(&sorted, &tree);
        assert_eq!((sorted.get("a"), sorted.get("b"), sorted.len()), (Some(&6), None, 3));
    }
}
