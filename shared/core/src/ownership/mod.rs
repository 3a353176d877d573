//! Ownership: one map with several authors.
//!
//! Labels, annotations and parameters of one object have several authors. Each must be able to write "this is all that
//! I want here" without removing the entries of the others. That is Kubernetes' server-side apply, for maps. An author
//! *applies* its whole intent under a manager's name. Keys that it no longer lists and that nobody else owns are
//! removed. A key that another manager owns with another value is a conflict. A plain write is an *update*: the author
//! becomes the owner of what it changes, and the rest keeps its owners. Traits and assigned tags are owned entry by
//! entry in the same way, as maps without values.
//!
//! The owners are stored in the object, so they survive a backup, a restore and a move. Every entry has at least one.
//! `null` (a tombstone: "not inherited here") is treated like a value: it can be owned, shared and in conflict.

mod owner;
mod sorted;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use sorted::SortedMap;

pub use owner::{InvalidOwner, MAX_MANAGER_BYTES, Manager, Operation, Owner, OwnerMatch};

/// A value or a tombstone that an author provides for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProvidedValue<V> {
    /// The key has this value.
    Value(V),
    /// The key is not inherited here.
    Tombstone,
}

/// The value or tombstone of a key, with its owners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnedEntry<V> {
    /// The value or tombstone.
    #[serde(rename = "said")]
    pub value: ProvidedValue<V>,
    /// The owners of the key, sorted. There is at least one.
    pub owners: Arc<[Owner]>,
    /// Time at which the value was written, in milliseconds since 1970. `None` until [`OwnedMap::set_missing_times`]
    /// sets it.
    pub since_ms: Option<u64>,
}

/// A map in which every entry has owners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent, bound(deserialize = "K: Ord + Deserialize<'de>, V: Deserialize<'de>"))]
pub struct OwnedMap<K, V> {
    entries: SortedMap<K, OwnedEntry<V>>,
}

/// A set in which every member has owners, such as traits and assigned tags.
pub type OwnedSet<K> = OwnedMap<K, ()>;

/// The values and tombstones that an author writes, by key: a whole map, or only the keys to change.
pub type Intent<K, V> = BTreeMap<K, ProvidedValue<V>>;

/// A key that another owner has with another value than a write provides, or that a write would remove. For an apply,
/// the same manager with the operation update is another owner. For a plain write, another owner is another manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict<K, V> {
    /// The key.
    pub key: K,
    /// The other owner of the key. A key with two other owners gives two conflicts.
    pub owner: Owner,
    /// The value or tombstone of the key before the write.
    pub value: ProvidedValue<V>,
}

/// The conflicts of a refused apply. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} with other values: {}; nothing was changed. Leave them out, agree with the owner, or force", self.count(), self.list())]
pub struct Conflicts<K: fmt::Display, V>(
    /// The conflicts by key, then by owner.
    pub Vec<Conflict<K, V>>,
);

/// The error for keys that cannot be transferred, because the given owner does not own them. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{from} does not own {}; nothing was changed", .keys.join(", "))]
pub struct NotOwned {
    /// The owner in the request: a manager, or a manager with its operation.
    pub from: String,
    /// The keys that this owner does not own.
    pub keys: Vec<String>,
}

impl<V> ProvidedValue<V> {
    /// Returns the value, or `None` for a tombstone.
    pub const fn value(&self) -> Option<&V> {
        match self {
            Self::Value(value) => Some(value),
            Self::Tombstone => None,
        }
    }

    /// Returns whether this is a tombstone.
    pub const fn is_tombstone(&self) -> bool {
        matches!(self, Self::Tombstone)
    }
}

impl<V> From<Option<V>> for ProvidedValue<V> {
    fn from(value: Option<V>) -> Self {
        value.map_or(Self::Tombstone, Self::Value)
    }
}

impl<K: fmt::Display, V> Conflicts<K, V> {
    /// Returns the beginning of the error message, which contains the number of keys in conflict.
    fn count(&self) -> String {
        let mut keys: Vec<_> = self.0.iter().map(|conflict| conflict.key.to_string()).collect();
        keys.dedup();
        if keys.len() == 1 { "one key is owned by others".into() } else { format!("{} keys are owned by others", keys.len()) }
    }

    /// Returns the first ten conflicts as a text, each with its key and its owner. `…` follows if there are more.
    fn list(&self) -> String {
        let shown: Vec<_> = self.0.iter().take(10).map(|conflict| format!("{} ({})", conflict.key, conflict.owner)).collect();
        let ellipsis = if self.0.len() > 10 { ", …" } else { "" };
        shown.join(", ") + ellipsis
    }
}

impl<V> OwnedEntry<V> {
    /// Creates an entry with this owner only. Its time is not set.
    fn new(value: ProvidedValue<V>, owner: Owner) -> Self {
        Self { value, owners: Arc::from([owner]), since_ms: None }
    }

    /// Returns whether an owner is one of the entry's owners.
    pub fn is_owned_by(&self, owner: &Owner) -> bool {
        self.owners.binary_search(owner).is_ok()
    }

    /// Adds an owner to the sorted owners of the entry, unless the entry has this owner already.
    fn add_owner(&mut self, owner: &Owner) {
        if let Err(index) = self.owners.binary_search(owner) {
            let mut owners = self.owners.to_vec();
            owners.insert(index, owner.clone());
            self.owners = owners.into();
        }
    }
}

impl<K, V> Default for OwnedMap<K, V> {
    fn default() -> Self {
        Self { entries: SortedMap::new() }
    }
}

impl<K: Ord + Clone + fmt::Display, V: Clone + PartialEq> OwnedMap<K, V> {
    /// Builds a map from entries that are stored in another form, such as the top-level fields of an object.
    pub fn from_entries(entries: impl IntoIterator<Item = (K, OwnedEntry<V>)>) -> Self {
        Self { entries: entries.into_iter().collect() }
    }

    /// Returns the map after a manager applied its whole intent (server-side apply).
    ///
    /// Keys that the manager applied before and that are not in `intent` are removed, unless they have another owner.
    /// If the intent has the current value of a key, the manager becomes one of the key's owners. With `force`, the
    /// manager becomes the sole owner of each key whose value it changes.
    ///
    /// # Errors
    /// [`Conflicts`], without `force`, for keys that another owner has with another value. Nothing is changed then.
    pub fn apply(&self, manager: &Manager, intent: &Intent<K, V>, force: bool) -> Result<Self, Conflicts<K, V>> {
        let this_owner = Owner::apply(manager);
        if !force {
            let conflicts = self.conflicts(&this_owner, intent);
            if !conflicts.is_empty() {
                return Err(Conflicts(conflicts));
            }
        }
        let mut next = self.clone();
        next.remove_omitted(&this_owner, intent);
        for (key, value) in intent {
            match next.entries.get_mut(key) {
                Some(entry) if entry.value == *value => entry.add_owner(&this_owner),
                _ => {
                    next.entries.insert(key.clone(), OwnedEntry::new(value.clone(), this_owner.clone()));
                }
            }
        }
        Ok(next)
    }

    /// Returns the map without the keys that a manager applied. Keys that also have another owner remain, without this
    /// owner. An apply of an empty intent has the same result.
    #[must_use]
    pub fn remove_manager(&self, manager: &Manager) -> Self {
        let mut next = self.clone();
        next.remove_omitted(&Owner::apply(manager), &Intent::new());
        next
    }

    /// Returns the map after a manager added entries to those that it applies. The manager becomes the sole owner of
    /// new and changed keys. No key is removed, and the owners of a key with an equal value are unchanged.
    ///
    /// # Errors
    /// As for [`OwnedMap::apply`].
    pub fn apply_more(&self, manager: &Manager, intent: &Intent<K, V>, force: bool) -> Result<Self, Conflicts<K, V>> {
        let this_owner = Owner::apply(manager);
        let conflicts = if force { Vec::new() } else { self.conflicts(&this_owner, intent) };
        if !conflicts.is_empty() {
            return Err(Conflicts(conflicts));
        }
        let mut next = self.clone();
        next.set_keys(&this_owner, intent);
        Ok(next)
    }

    /// Returns the map after a plain write that replaces it as a whole. The manager becomes the sole owner of the keys
    /// that it adds or changes. The owners of keys with an equal value are unchanged, and omitted keys are removed. A
    /// plain write has no conflicts.
    #[must_use]
    pub fn update(&self, manager: &Manager, intent: &Intent<K, V>) -> Self {
        let mut next = self.clone();
        next.entries.retain(|key, _| intent.contains_key(key));
        next.set_keys(&Owner::update(manager), intent);
        next
    }

    /// Returns the map after a plain write of single keys. The manager becomes the sole owner of the keys that it adds
    /// or changes. `None` in `changes` removes the key, so that the value of the level above applies.
    #[must_use]
    pub fn patch(&self, manager: &Manager, changes: &BTreeMap<K, Option<ProvidedValue<V>>>) -> Self {
        let this_owner = Owner::update(manager);
        let mut next = self.clone();
        for (key, change) in changes {
            match change {
                None => next.entries.remove(key),
                Some(value) => next.set_key(&this_owner, key, value),
            }
        }
        next
    }

    /// Returns the map after a transfer of keys from one owner to another. If `to` has no operation, the new owner has
    /// the operation of the previous owner.
    ///
    /// # Errors
    /// [`NotOwned`] with all keys that `from` does not own. Nothing is changed then.
    pub fn transfer<'a>(
        &self,
        from: &OwnerMatch,
        to: &OwnerMatch,
        keys: impl IntoIterator<Item = &'a K>,
    ) -> Result<Self, NotOwned>
    where
        K: 'a,
    {
        let mut next = self.clone();
        let mut not_owned = Vec::new();
        for key in keys {
            if !next.transfer_key(from, to, key) {
                not_owned.push(key.to_string());
            }
        }
        if not_owned.is_empty() { Ok(next) } else { Err(NotOwned { from: from.to_string(), keys: not_owned }) }
    }

    /// Returns the map after a transfer of those of `keys` that `from` owns. The new owner is `to`, with the operation
    /// apply. The other keys are ignored. `apply --adopt` transfers the keys that it applies in this way.
    #[must_use]
    pub fn adopt<'a>(&self, from: &OwnerMatch, to: &Manager, keys: impl IntoIterator<Item = &'a K>) -> Self
    where
        K: 'a,
    {
        let to = OwnerMatch { manager: to.clone(), operation: Some(Operation::Apply) };
        let mut next = self.clone();
        for key in keys {
            next.transfer_key(from, &to, key);
        }
        next
    }

    /// Returns a conflict for each key that `next`, the map after a write, changes or removes, and for each other
    /// manager that owns the key.
    pub fn conflicts_with(&self, manager: &Manager, next: &Self) -> Vec<Conflict<K, V>> {
        let is_changed = |key: &K, entry: &OwnedEntry<V>| next.entries.get(key).is_none_or(|new| new.value != entry.value);
        let mut conflicts = Vec::new();
        for (key, entry) in self.entries.iter().filter(|(key, entry)| is_changed(key, entry)) {
            for owner in entry.owners.iter().filter(|owner| owner.manager != *manager) {
                conflicts.push(Conflict { key: key.clone(), owner: owner.clone(), value: entry.value.clone() });
            }
        }
        conflicts
    }

    /// Sets the time of each entry that has none yet.
    pub fn set_missing_times(&mut self, now_ms: u64) {
        for entry in self.entries.values_mut() {
            entry.since_ms.get_or_insert(now_ms);
        }
    }

    /// Returns a conflict for each key of an intent that another owner has with another value.
    fn conflicts(&self, this_owner: &Owner, intent: &Intent<K, V>) -> Vec<Conflict<K, V>> {
        let mut conflicts = Vec::new();
        for (key, value) in intent {
            let Some(entry) = self.entries.get(key).filter(|entry| entry.value != *value) else { continue };
            for owner in entry.owners.iter().filter(|owner| *owner != this_owner) {
                conflicts.push(Conflict { key: key.clone(), owner: owner.clone(), value: entry.value.clone() });
            }
        }
        conflicts
    }

    /// Removes an owner from the keys that are not in `intent`. A key that then has no owner is removed.
    fn remove_omitted(&mut self, this_owner: &Owner, intent: &Intent<K, V>) {
        self.entries.retain(|key, entry| {
            if intent.contains_key(key) || !entry.is_owned_by(this_owner) {
                return true;
            }
            let other_owners: Vec<_> = entry.owners.iter().filter(|owner| *owner != this_owner).cloned().collect();
            entry.owners = other_owners.into();
            !entry.owners.is_empty()
        });
    }

    /// Sets several keys, as [`Self::set_key`] does.
    fn set_keys(&mut self, new_owner: &Owner, changes: &Intent<K, V>) {
        for (key, value) in changes {
            self.set_key(new_owner, key, value);
        }
    }

    /// Sets a key and makes `new_owner` its sole owner. If the key has this value already, nothing changes.
    fn set_key(&mut self, new_owner: &Owner, key: &K, value: &ProvidedValue<V>) {
        if self.entries.get(key).is_none_or(|entry| entry.value != *value) {
            self.entries.insert(key.clone(), OwnedEntry::new(value.clone(), new_owner.clone()));
        }
    }

    /// Replaces the owners of a key that `from` matches by `to`. If `to` has no operation, the operation of each
    /// replaced owner remains. Returns whether `from` matched an owner. If not, nothing changes.
    fn transfer_key(&mut self, from: &OwnerMatch, to: &OwnerMatch, key: &K) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        if !entry.owners.iter().any(|owner| from.matches(owner)) {
            return false;
        }
        let replace_owner = |owner: &Owner| {
            if !from.matches(owner) {
                return owner.clone();
            }
            Owner { manager: to.manager.clone(), operation: to.operation.unwrap_or(owner.operation) }
        };
        let mut owners: Vec<_> = entry.owners.iter().map(replace_owner).collect();
        owners.sort();
        owners.dedup();
        entry.owners = owners.into();
        true
    }
}

impl<K: Ord, V> OwnedMap<K, V> {
    /// Returns the number of entries, including tombstones.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the entry of a key, or `None` if the map does not have the key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&OwnedEntry<V>>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.entries.get(key)
    }

    /// Returns all entries with their keys, in the order of the keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&K, &OwnedEntry<V>)> {
        self.entries.iter()
    }

    /// Returns the keys that have a value. For a set, these are its members.
    pub fn members(&self) -> impl Iterator<Item = &K> {
        self.entries.iter().filter(|(_, entry)| !entry.value.is_tombstone()).map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests;
