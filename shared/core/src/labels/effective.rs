//! Merges the maps of the levels into one effective map, one level after the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;

use super::MAX_EFFECTIVE_BYTES;
use super::layer::Layer;
use super::provenance::{Effective, FillCandidate, KeyState, LevelEntry, Provenance};
use crate::key::{LabelKey, LabelValue, is_restricted};
use crate::origin::{Level, Origin};
use crate::ownership::{OwnedEntry, OwnedMap, ProvidedValue};

/// The effective map at some level: the maps of the levels from the template down to this level, merged. A clone is
/// cheap, because it shares the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveMap<K: Ord, V> {
    provenances: OrdMap<K, Arc<Provenance<V>>>,
}

/// Labels of an inspection rule, or those that a host sets itself. They apply only to keys that no level decides.
#[derive(Clone, Debug)]
pub struct FillSource<'a> {
    /// [`Origin::Rule`] or [`Origin::Host`].
    pub origin: Origin,
    /// True if the source may set restricted keys. Only a rule with `grants: true` may set them.
    pub can_set_restricted: bool,
    /// The labels of the source. Those of a host have only the keys that `host_labels.accept` lists.
    pub labels: &'a BTreeMap<LabelKey, LabelValue>,
}

/// The error for effective labels that exceed [`MAX_EFFECTIVE_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the effective labels have at most {MAX_EFFECTIVE_BYTES} bytes together, these {bytes}")]
pub struct EffectiveTooLarge {
    /// Size of keys and values together, in bytes.
    pub bytes: usize,
}

impl<K: Ord, V> Default for EffectiveMap<K, V> {
    fn default() -> Self {
        Self { provenances: OrdMap::new() }
    }
}

impl<K: Ord + Clone, V: Clone> EffectiveMap<K, V> {
    /// Merges the map of the next level into this inherited map, and returns the result. The caller merges the level
    /// farthest from the host (the template) first. A level that does not merge hides all inherited keys.
    ///
    /// If the level provides no map, the result equals this map and shares all data with it. An empty map is a map.
    #[must_use]
    pub fn with_level(&self, level: Level, layer: &Layer<K, V>) -> Self {
        let Some(provided) = &layer.provided else { return self.clone() };
        let mut merged = self.clone();
        if !layer.is_merging() {
            merged.hide_inherited_keys(level, provided);
        }
        for (key, entry) in provided.iter() {
            merged.set_entry(level, layer.is_merging(), key, entry);
        }
        merged
    }

    /// Merges several levels, in this order, into an empty map.
    pub fn from_levels<'a>(levels: impl IntoIterator<Item = (Level, &'a Layer<K, V>)>) -> Self
    where
        K: 'a,
        V: 'a,
    {
        levels.into_iter().fold(Self::default(), |inherited, (level, layer)| inherited.with_level(level, layer))
    }

    /// Returns the effective values without their provenance.
    pub fn values(&self) -> BTreeMap<K, V> {
        self.iter().map(|(key, entry)| (key.clone(), entry.value.clone())).collect()
    }

    /// Hides the inherited keys at a level that does not merge. Each inherited key that the level does not provide
    /// itself is marked as replaced by the level.
    fn hide_inherited_keys(&mut self, level: Level, provided: &OwnedMap<K, V>) {
        let keys: Vec<_> = self
            .provenances
            .iter()
            .filter(|(key, provenance)| !matches!(provenance.state, KeyState::Absent) && provided.get(*key).is_none())
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.update(&key, |provenance| provenance.state = KeyState::Replaced { by: level });
        }
    }

    /// Records the entry (a value or a tombstone) of a level for a key, and determines the new state of the key. A
    /// tombstone of a level that does not merge has no effect, because the level already hides the inherited keys.
    fn set_entry(&mut self, level: Level, level_merges: bool, key: &K, entry: &OwnedEntry<V>) {
        self.update(key, |provenance| {
            provenance.state = match (&entry.value, level_merges, provenance.state) {
                (ProvidedValue::Value(_), ..) => KeyState::Set,
                (ProvidedValue::Tombstone, true, _) => KeyState::Tombstoned { by: level },
                // If the level does not merge, the state depends only on whether the key was inherited.
                (ProvidedValue::Tombstone, false, KeyState::Absent) => KeyState::Absent,
                (ProvidedValue::Tombstone, false, _) => KeyState::Replaced { by: level },
            };
            let (value, owners) = (entry.value.clone(), Arc::clone(&entry.owners));
            provenance.entries.push(LevelEntry { level, value, owners, since_ms: entry.since_ms, is_merging: level_merges });
        });
    }

    /// Changes the provenance of a key: its entries at all levels, and its state. The provenance is copied before it is
    /// changed, because other maps may share it.
    fn update(&mut self, key: &K, change: impl FnOnce(&mut Provenance<V>)) {
        let mut provenance = self.provenances.get(key).map_or_else(Provenance::default, |shared| Provenance::clone(shared));
        change(&mut provenance);
        self.provenances.insert(key.clone(), Arc::new(provenance));
    }
}

impl<K: Ord, V> EffectiveMap<K, V> {
    /// Returns the effective value of a key, or `None` if the key has no effective value.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.provenances.get(key)?.value()
    }

    /// Returns the provenance of a key: the entry of each level, the values of inspection rules and of the host, and
    /// which of these is effective. A key without an effective value may have a provenance too.
    pub fn provenance<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&Provenance<V>>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.provenances.get(key).map(|provenance| &**provenance)
    }

    /// Returns the provenance of all keys, by key.
    pub fn provenances(&self) -> impl Iterator<Item = (&K, &Provenance<V>)> {
        self.provenances.iter().map(|(key, provenance)| (key, &**provenance))
    }

    /// Returns the effective values with their origins, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&K, Effective<'_, V>)> {
        self.provenances.iter().filter_map(|(key, provenance)| Some((key, provenance.effective()?)))
    }

    /// Returns whether this map and `other` share all of their data. Such maps are equal, and their keys need not be
    /// compared. The result is `false` for equal maps that do not share their data.
    pub fn shares_data_with(&self, other: &Self) -> bool {
        self.provenances.ptr_eq(&other.provenances)
    }
}

impl EffectiveMap<LabelKey, LabelValue> {
    /// Returns this map with the labels of one source (an inspection rule or the host) added. A label is effective only
    /// if no level sets or tombstones its key, and no earlier source has set it. The caller calls this function for the
    /// rules first, by priority, and then for the host.
    ///
    /// A restricted key is filled only if the source may set restricted keys. A value that is not used is recorded in
    /// the key's provenance nevertheless.
    #[must_use]
    pub fn fill(&self, source: &FillSource<'_>) -> Self {
        let mut filled_map = self.clone();
        for (key, value) in source.labels {
            let is_forbidden = !source.can_set_restricted && is_restricted(key);
            filled_map.update(key, |provenance| {
                let has_no_value = !provenance.is_decided_by_level() && !matches!(provenance.state, KeyState::Filled { .. });
                if has_no_value && !is_forbidden {
                    provenance.state = KeyState::Filled { index: provenance.candidates.len() };
                }
                provenance.candidates.push(FillCandidate { origin: source.origin.clone(), value: value.clone() });
            });
        }
        filled_map
    }

    /// Returns the size of the effective labels, keys and values together, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.iter().map(|(key, label)| key.len() + label.value.len()).sum()
    }

    /// Checks the size of the effective labels.
    ///
    /// # Errors
    /// [`EffectiveTooLarge`] if the size exceeds [`MAX_EFFECTIVE_BYTES`].
    pub fn check_size(&self) -> Result<(), EffectiveTooLarge> {
        let bytes = self.size_bytes();
        if bytes > MAX_EFFECTIVE_BYTES { Err(EffectiveTooLarge { bytes }) } else { Ok(()) }
    }
}
