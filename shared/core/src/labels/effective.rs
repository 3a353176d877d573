//! Merges the levels into one effective map, one level at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;

use super::MAX_EFFECTIVE_BYTES;
use super::layer::Layer;
use super::provenance::{Effective, FillCandidate, KeyState, LevelEntry, Provenance};
use crate::key::{LabelKey, LabelValue, is_restricted};
use crate::origin::{Level, Origin};
use crate::ownership::{OwnedEntry, OwnedMap, ProvidedValue};

/// A map merged down to some level. A clone is free and shares its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveMap<K: Ord, V> {
    provenances: OrdMap<K, Arc<Provenance<V>>>,
}

/// The labels of a rule, or the accepted labels of a host. They fill only keys that no level sets or tombstones.
#[derive(Clone, Debug)]
pub struct FillSource<'a> {
    /// [`Origin::Rule`] or [`Origin::Host`].
    pub origin: Origin,
    /// True if the source may set restricted keys. Only a rule with `grants` may.
    pub can_set_restricted: bool,
    /// The labels to fill. For a host, only the keys that `host_labels.accept` lists.
    pub labels: &'a BTreeMap<LabelKey, LabelValue>,
}

/// The effective labels exceed [`MAX_EFFECTIVE_BYTES`].
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
    /// Merges the next level into the inherited map. The level farthest from the host is merged first.
    ///
    /// If the level provides nothing, the result shares the whole map.
    #[must_use]
    pub fn with_level(&self, level: Level, layer: &Layer<K, V>) -> Self {
        let Some(provided) = &layer.provided else { return self.clone() };
        let mut next = self.clone();
        if !layer.is_merging() {
            next.replace(level, provided);
        }
        for (key, entry) in provided.iter() {
            next.set_entry(level, layer.is_merging(), key, entry);
        }
        next
    }

    /// Merges several levels, in this order, into an empty map.
    pub fn from_levels<'a>(levels: impl IntoIterator<Item = (Level, &'a Layer<K, V>)>) -> Self
    where
        K: 'a,
        V: 'a,
    {
        levels.into_iter().fold(Self::default(), |above, (level, layer)| above.with_level(level, layer))
    }

    /// Returns the effective values without their provenance.
    pub fn values(&self) -> BTreeMap<K, V> {
        self.iter().map(|(key, entry)| (key.clone(), entry.value.clone())).collect()
    }

    /// Marks the effective keys as replaced, except those that the level provides itself, because the level does not
    /// merge.
    fn replace(&mut self, level: Level, provided: &OwnedMap<K, V>) {
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

    /// Records the entry of a level for a key, and its effect on the key.
    fn set_entry(&mut self, level: Level, merges: bool, key: &K, entry: &OwnedEntry<V>) {
        self.update(key, |provenance| {
            provenance.state = match (&entry.value, merges, provenance.state) {
                (ProvidedValue::Value(_), ..) => KeyState::Set,
                (ProvidedValue::Tombstone, true, _) => KeyState::Tombstoned { by: level },
                (ProvidedValue::Tombstone, false, KeyState::Absent) => KeyState::Absent,
                (ProvidedValue::Tombstone, false, _) => KeyState::Replaced { by: level },
            };
            let (value, owners) = (entry.value.clone(), Arc::clone(&entry.owners));
            provenance.entries.push(LevelEntry { level, value, owners, since_ms: entry.since_ms, is_merging: merges });
        });
    }

    /// Changes the provenance of a key in a copy of its own.
    fn update(&mut self, key: &K, change: impl FnOnce(&mut Provenance<V>)) {
        let mut provenance = self.provenances.get(key).map_or_else(Provenance::default, |line| Provenance::clone(line));
        change(&mut provenance);
        self.provenances.insert(key.clone(), Arc::new(provenance));
    }
}

impl<K: Ord, V> EffectiveMap<K, V> {
    /// Returns the effective value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.provenances.get(key)?.value()
    }

    /// Returns the provenance of a key, even if it has no effective value.
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

    /// Returns whether two maps share all of their data, so that they are equal without a comparison.
    pub fn is_same(&self, other: &Self) -> bool {
        self.provenances.ptr_eq(&other.provenances)
    }
}

impl EffectiveMap<LabelKey, LabelValue> {
    /// Fills keys from one source. Only keys that no level sets or tombstones, and that no earlier source has filled,
    /// are filled. Rules are called first, by priority, then the host.
    ///
    /// A restricted key is filled only if the source may set restricted keys. A value that is not used is recorded in
    /// the key's provenance nevertheless.
    #[must_use]
    pub fn fill(&self, fill: &FillSource<'_>) -> Self {
        let mut next = self.clone();
        for (key, value) in fill.labels {
            let restricted = !fill.can_set_restricted && is_restricted(key);
            next.update(key, |provenance| {
                let is_open = !provenance.is_decided_by_level() && !matches!(provenance.state, KeyState::Filled { .. });
                if is_open && !restricted {
                    provenance.state = KeyState::Filled { at: provenance.candidates.len() };
                }
                provenance.candidates.push(FillCandidate { origin: fill.origin.clone(), value: value.clone() });
            });
        }
        next
    }

    /// Checks the size of the effective labels.
    ///
    /// # Errors
    /// [`EffectiveTooLarge`] if it exceeds [`MAX_EFFECTIVE_BYTES`].
    pub fn check_size(&self) -> Result<(), EffectiveTooLarge> {
        let bytes = self.iter().map(|(key, label)| key.len() + label.value.len()).sum();
        if bytes > MAX_EFFECTIVE_BYTES { Err(EffectiveTooLarge { bytes }) } else { Ok(()) }
    }
}
