//! Ownership: several authors, one map.
//!
//! Labels, annotations and parameters of one object have several authors, and each must be able to say "this is
//! all that I want here" without wiping out the others. That is Kubernetes' server-side apply, for maps: an
//! author *applies* its whole intent under a manager's name, and keys that it no longer names and nobody else
//! owns go away; a key that another owns with another value is a conflict. A plain write is an *update*: it takes
//! what it changes and leaves the rest to its owners. Traits and assigned tags are owned entry by entry in the
//! same way, as maps without values.
//!
//! The owners stand in the stored object, so that they survive backup, restore and a move. Every entry has at
//! least one. `null` (a tombstone: "not inherited here") is a value like any other: owned, shared and in conflict.

mod owner;
mod sorted;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use sorted::SortedMap;

pub use owner::{InvalidOwner, MAX_MANAGER, Manager, Operation, Owner, Party};

/// What an author says of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Said<V> {
    /// It has this value.
    Value(V),
    /// It is not inherited here.
    Tombstone,
}

/// A key's value or tombstone with its owners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry<V> {
    /// What holds.
    pub said: Said<V>,
    /// Who owns it: sorted, at least one.
    pub owners: Arc<[Owner]>,
    /// When it was said, in milliseconds of Unix time; `None` until [`OwnedMap::stamp`].
    pub since_ms: Option<u64>,
}

/// A map whose every entry has owners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent, bound(deserialize = "K: Ord + Deserialize<'de>, V: Deserialize<'de>"))]
pub struct OwnedMap<K, V> {
    entries: SortedMap<K, Entry<V>>,
}

/// A set whose every member has owners, as traits and assigned tags.
pub type OwnedSet<K> = OwnedMap<K, ()>;

/// What an author writes: a whole map, or the keys to change.
pub type Intent<K, V> = BTreeMap<K, Said<V>>;

/// A key that another author owns with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict<K, V> {
    /// The key.
    pub key: K,
    /// Who owns it; a key of two owners is two conflicts.
    pub owner: Owner,
    /// What it says now.
    pub said: Said<V>,
}

/// An apply that was refused: nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} with other values: {}; nothing was changed. Leave them out, agree with the owner, or force", self.count(), self.list())]
pub struct Conflicts<K: fmt::Display, V>(
    /// By key, then by owner.
    pub Vec<Conflict<K, V>>,
);

/// Keys that were to be handed over by one who does not own them. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{from} does not own {}; nothing was changed", .keys.join(", "))]
pub struct NotOwned {
    /// The owner as named.
    pub from: String,
    /// The keys.
    pub keys: Vec<String>,
}

impl<V> Said<V> {
    /// The value, unless it is a tombstone.
    pub const fn value(&self) -> Option<&V> {
        match self {
            Self::Value(value) => Some(value),
            Self::Tombstone => None,
        }
    }

    /// Whether it is a tombstone.
    pub const fn is_tombstone(&self) -> bool {
        matches!(self, Self::Tombstone)
    }
}

impl<V> From<Option<V>> for Said<V> {
    fn from(value: Option<V>) -> Self {
        value.map_or(Self::Tombstone, Self::Value)
    }
}

impl<K: fmt::Display, V> Conflicts<K, V> {
    fn count(&self) -> String {
        let mut keys: Vec<_> = self.0.iter().map(|conflict| conflict.key.to_string()).collect();
        keys.dedup();
        if keys.len() == 1 {
            "one key is owned by others".into()
        } else {
            format!("{} keys are owned by others", keys.len())
        }
    }

    fn list(&self) -> String {
        let shown: Vec<_> = self.0.iter().take(10).map(|one| format!("{} ({})", one.key, one.owner)).collect();
        let more = if self.0.len() > 10 { ", …" } else { "" };
        shown.join(", ") + more
    }
}

impl<V> Entry<V> {
    fn new(said: Said<V>, owner: Owner) -> Self {
        Self { said, owners: Arc::from([owner]), since_ms: None }
    }

    /// Whether this owner is among its owners.
    pub fn is_owned_by(&self, owner: &Owner) -> bool {
        self.owners.binary_search(owner).is_ok()
    }

    fn add_owner(&mut self, owner: &Owner) {
        if let Err(at) = self.owners.binary_search(owner) {
            let mut owners = self.owners.to_vec();
            owners.insert(at, owner.clone());
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
    /// A map of entries that are kept in another form, as an object's top-level fields are.
    pub fn from_entries(entries: impl IntoIterator<Item = (K, Entry<V>)>) -> Self {
        Self { entries: entries.into_iter().collect() }
    }

    /// Server-side apply: the manager's whole intent.
    ///
    /// Keys of its last intent that it no longer names go away, unless another owns them too. Where it agrees with
    /// the owners of a key it becomes one of them. With `force` it takes the keys that it changes from all
    /// others; an equal value evicts nobody.
    ///
    /// # Errors
    /// [`Conflicts`], without `force`, for keys that another owner has with another value; then nothing changes.
    pub fn apply(&self, manager: &Manager, intent: &Intent<K, V>, force: bool) -> Result<Self, Conflicts<K, V>> {
        let me = Owner::apply(manager);
        if !force {
            let conflicts = self.conflicts(&me, intent);
            if !conflicts.is_empty() {
                return Err(Conflicts(conflicts));
            }
        }
        let mut next = self.clone();
        next.drop_unnamed(&me, intent);
        for (key, said) in intent {
            match next.entries.get_mut(key) {
                Some(entry) if entry.said == *said => entry.add_owner(&me),
                _ => {
                    next.entries.insert(key.clone(), Entry::new(said.clone(), me.clone()));
                }
            }
        }
        Ok(next)
    }

    /// Takes a manager's applied keys away, but for those that another owns too: an apply that names none.
    #[must_use]
    pub fn give_up(&self, manager: &Manager) -> Self {
        let mut next = self.clone();
        next.drop_unnamed(&Owner::apply(manager), &Intent::new());
        next
    }

    /// Adds to what the manager applies. It owns what is new or becomes another value, and takes nothing back; what stands as it is said keeps its
    /// owners.
    ///
    /// # Errors
    /// As [`OwnedMap::apply`].
    pub fn add(&self, manager: &Manager, more: &Intent<K, V>, force: bool) -> Result<Self, Conflicts<K, V>> {
        let me = Owner::apply(manager);
        let conflicts = if force { Vec::new() } else { self.conflicts(&me, more) };
        if !conflicts.is_empty() {
            return Err(Conflicts(conflicts));
        }
        let mut next = self.clone();
        next.set(&me, more);
        Ok(next)
    }

    /// A plain write of the whole map: the manager becomes sole owner of what it adds or changes; what it sends
    /// unchanged keeps its owners, what it leaves out is gone. Never a conflict.
    #[must_use]
    pub fn update(&self, manager: &Manager, whole: &Intent<K, V>) -> Self {
        let mut next = self.clone();
        next.entries.retain(|key, _| whole.contains_key(key));
        next.set(&Owner::update(manager), whole);
        next
    }

    /// A plain write of single keys: a value or tombstone is set, `None` takes away what is provided here.
    #[must_use]
    pub fn patch(&self, manager: &Manager, changes: &BTreeMap<K, Option<Said<V>>>) -> Self {
        let me = Owner::update(manager);
        let mut next = self.clone();
        for (key, change) in changes {
            match change {
                None => next.entries.remove(key),
                Some(said) => next.set_one(&me, key, said),
            }
        }
        next
    }

    /// Hands keys from one owner to another. `to` owns them by the operation that it names, else by `from`'s.
    ///
    /// # Errors
    /// [`NotOwned`] with all the keys that `from` does not own; then nothing changes.
    pub fn hand_over<'a>(
        &self,
        from: &Party,
        to: &Party,
        keys: impl IntoIterator<Item = &'a K>,
    ) -> Result<Self, NotOwned>
    where
        K: 'a,
    {
        let mut next = self.clone();
        let mut missing = Vec::new();
        for key in keys {
            if !next.hand_over_one(from, to, key) {
                missing.push(key.to_string());
            }
        }
        if missing.is_empty() { Ok(next) } else { Err(NotOwned { from: from.to_string(), keys: missing }) }
    }

    /// Hands over those of the keys that `from` owns, as `apply --adopt` does for the keys that it applies.
    #[must_use]
    pub fn adopt<'a>(&self, from: &Party, to: &Manager, keys: impl IntoIterator<Item = &'a K>) -> Self
    where
        K: 'a,
    {
        let to = Party { manager: to.clone(), operation: Some(Operation::Apply) };
        let mut next = self.clone();
        for key in keys {
            next.hand_over_one(from, &to, key);
        }
        next
    }

    /// What of other managers' a step to `next` changes or takes away.
    pub fn taken(&self, manager: &Manager, next: &Self) -> Vec<Conflict<K, V>> {
        let is_other = |key: &K, entry: &Entry<V>| next.entries.get(key).is_none_or(|now| now.said != entry.said);
        let mut taken = Vec::new();
        for (key, entry) in self.entries.iter().filter(|(key, entry)| is_other(key, entry)) {
            for owner in entry.owners.iter().filter(|owner| owner.manager != *manager) {
                taken.push(Conflict { key: key.clone(), owner: owner.clone(), said: entry.said.clone() });
            }
        }
        taken
    }

    /// Writes the time beside every entry that was said since the last stamp.
    pub fn stamp(&mut self, now_ms: u64) {
        for entry in self.entries.values_mut() {
            entry.since_ms.get_or_insert(now_ms);
        }
    }

    fn conflicts(&self, me: &Owner, intent: &Intent<K, V>) -> Vec<Conflict<K, V>> {
        let mut conflicts = Vec::new();
        for (key, said) in intent {
            let Some(entry) = self.entries.get(key).filter(|entry| entry.said != *said) else { continue };
            for owner in entry.owners.iter().filter(|owner| *owner != me) {
                conflicts.push(Conflict { key: key.clone(), owner: owner.clone(), said: entry.said.clone() });
            }
        }
        conflicts
    }

    fn drop_unnamed(&mut self, me: &Owner, intent: &Intent<K, V>) {
        self.entries.retain(|key, entry| {
            if intent.contains_key(key) || !entry.is_owned_by(me) {
                return true;
            }
            let others: Vec<_> = entry.owners.iter().filter(|owner| *owner != me).cloned().collect();
            entry.owners = others.into();
            !entry.owners.is_empty()
        });
    }

    fn set(&mut self, me: &Owner, changes: &Intent<K, V>) {
        for (key, said) in changes {
            self.set_one(me, key, said);
        }
    }

    fn set_one(&mut self, me: &Owner, key: &K, said: &Said<V>) {
        if self.entries.get(key).is_none_or(|entry| entry.said != *said) {
            self.entries.insert(key.clone(), Entry::new(said.clone(), me.clone()));
        }
    }

    fn hand_over_one(&mut self, from: &Party, to: &Party, key: &K) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        if !entry.owners.iter().any(|owner| from.is(owner)) {
            return false;
        }
        let given = |owner: &Owner| {
            if !from.is(owner) {
                return owner.clone();
            }
            Owner { manager: to.manager.clone(), operation: to.operation.unwrap_or(owner.operation) }
        };
        let mut owners: Vec<_> = entry.owners.iter().map(given).collect();
        owners.sort();
        owners.dedup();
        entry.owners = owners.into();
        true
    }
}

impl<K: Ord, V> OwnedMap<K, V> {
    /// How many entries it has, tombstones among them.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entry of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&Entry<V>>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.entries.get(key)
    }

    /// All entries, by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&K, &Entry<V>)> {
        self.entries.iter()
    }

    /// The keys that have a value; of a set, its members.
    pub fn members(&self) -> impl Iterator<Item = &K> {
        self.entries.iter().filter(|(_, entry)| !entry.said.is_tombstone()).map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests;
