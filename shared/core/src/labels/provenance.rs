//! The provenance of a key: what each level provided for it, and which value is effective.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::origin::{Level, Origin};
use crate::ownership::{Owner, ProvidedValue};

/// The entry that one level provides for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelEntry<V> {
    /// The level.
    pub level: Level,
    /// The value or tombstone.
    pub value: ProvidedValue<V>,
    /// The owners of the entry at that level, sorted.
    pub owners: Arc<[Owner]>,
    /// Time of the write, in milliseconds of Unix time.
    pub since_ms: Option<u64>,
    /// True if the level merges with the levels above it.
    pub is_merging: bool,
}

/// The value with which an inspection rule or the host may fill a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FillCandidate<V> {
    /// [`Origin::Rule`] or [`Origin::Host`].
    pub origin: Origin,
    /// The value.
    pub value: V,
}

/// The outcome for a key after all levels are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// The value of the nearest level is effective. It is the last entry.
    Set,
    /// A level has a tombstone (`null`), so the key is not inherited.
    Tombstoned {
        /// The level.
        by: Level,
    },
    /// A level does not merge, and has no value for the key.
    Replaced {
        /// The level.
        by: Level,
    },
    /// No level sets or tombstones the key, and a rule or the host fills it.
    Filled {
        /// Index of the candidate that fills it.
        at: usize,
    },
    /// No entry or candidate has an effect.
    Absent,
}

/// The effect of one entry, for `explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelEffect {
    /// The entry is the effective value.
    Wins,
    /// A nearer level sets the key.
    OverriddenBy(Level),
    /// The entry is a tombstone, and hides the values of the levels above.
    Tombstone,
    /// A nearer level has a tombstone for the key.
    TombstonedBy(Level),
    /// A nearer level does not merge, and has no value for the key.
    ReplacedBy(Level),
    /// The entry is a tombstone of a level that does not merge.
    NoEffect,
}

/// The effect of one candidate, for `explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FillEffect {
    /// The candidate is the effective value.
    Wins,
    /// A level sets or tombstones the key.
    DecidedBy(Level),
    /// An earlier rule fills the key.
    FilledBy(Origin),
    /// The key is restricted, and the source may not set restricted keys.
    Restricted,
}

/// All entries and candidates for one key, and the outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provenance<V> {
    /// The entries of the levels, the farthest from the host first.
    pub(super) entries: Vec<LevelEntry<V>>,
    /// The values of rules and the host, in the order in which they are considered.
    pub(super) candidates: Vec<FillCandidate<V>>,
    /// The outcome for the key.
    pub(super) state: KeyState,
}

/// An effective value with its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective<'a, V> {
    /// The value.
    pub value: &'a V,
    /// The level, rule or host that provides it.
    pub origin: Origin,
    /// The owners at that level. Empty for a value of a rule or host.
    pub owners: &'a [Owner],
}

impl<V> Default for Provenance<V> {
    fn default() -> Self {
        Self { entries: Vec::new(), candidates: Vec::new(), state: KeyState::Absent }
    }
}

impl<V> Provenance<V> {
    /// Returns the effective value, if there is one.
    pub fn value(&self) -> Option<&V> {
        match self.state {
            KeyState::Set => self.entries.last()?.value.value(),
            KeyState::Filled { at } => self.candidates.get(at).map(|offer| &offer.value),
            KeyState::Tombstoned { .. } | KeyState::Replaced { .. } | KeyState::Absent => None,
        }
    }

    /// Returns the effective value with its origin, if there is one.
    pub fn effective(&self) -> Option<Effective<'_, V>> {
        let value = self.value()?;
        match self.state {
            KeyState::Set => {
                let entry = self.entries.last()?;
                Some(Effective { value, origin: Origin::Level(entry.level), owners: &entry.owners })
            }
            KeyState::Filled { at } => Some(Effective { value, origin: self.candidates.get(at)?.origin.clone(), owners: &[] }),
            KeyState::Tombstoned { .. } | KeyState::Replaced { .. } | KeyState::Absent => None,
        }
    }

    /// Returns the effect of each entry, in order.
    pub fn level_effects(&self) -> impl Iterator<Item = (&LevelEntry<V>, LevelEffect)> {
        self.entries.iter().map(|entry| (entry, self.level_effect(entry)))
    }

    /// Returns the effect of each candidate, in order.
    pub fn fill_effects(&self) -> impl Iterator<Item = (&FillCandidate<V>, FillEffect)> {
        self.candidates.iter().enumerate().map(|(at, offer)| (offer, self.fill_effect(at)))
    }

    /// Returns the effect of the candidate at an index.
    fn fill_effect(&self, index: usize) -> FillEffect {
        match self.state {
            // At most one candidate fills the key. The candidates before it were restricted.
            KeyState::Filled { at } => match at.cmp(&index) {
                Ordering::Less => FillEffect::FilledBy(self.candidates[at].origin.clone()),
                Ordering::Equal => FillEffect::Wins,
                Ordering::Greater => FillEffect::Restricted,
            },
            KeyState::Tombstoned { by } | KeyState::Replaced { by } => FillEffect::DecidedBy(by),
            KeyState::Set => self.entries.last().map_or(FillEffect::Restricted, |last| FillEffect::DecidedBy(last.level)),
            KeyState::Absent => FillEffect::Restricted,
        }
    }

    /// Returns whether a level decides the key, so that no rule or host fills it. Any value decides the key, even if a
    /// nearer level hides the value. A tombstone decides it only at a level that merges.
    pub(crate) fn is_decided_by_level(&self) -> bool {
        self.entries.iter().any(|entry| entry.is_merging || !entry.value.is_tombstone())
    }

    /// Returns the effect of one of the entries.
    fn level_effect(&self, entry: &LevelEntry<V>) -> LevelEffect {
        if entry.value.is_tombstone() && !entry.is_merging {
            return LevelEffect::NoEffect;
        }
        let nearest = self.entries.last().map_or(entry.level, |last| last.level);
        match self.state {
            KeyState::Set if entry.level == nearest => LevelEffect::Wins,
            KeyState::Set => LevelEffect::OverriddenBy(nearest),
            KeyState::Tombstoned { by } if entry.level == by => LevelEffect::Tombstone,
            KeyState::Tombstoned { by } => LevelEffect::TombstonedBy(by),
            KeyState::Replaced { by } => LevelEffect::ReplacedBy(by),
            KeyState::Filled { .. } | KeyState::Absent => LevelEffect::NoEffect,
        }
    }
}
