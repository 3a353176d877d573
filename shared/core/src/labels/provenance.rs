//! The provenance of a key: the entry that each level provided for the key, and the value that is effective.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::origin::{Level, Origin};
use crate::ownership::{Owner, ProvidedValue};

/// The entry that one level provides for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelEntry<V> {
    /// The level that provides the entry.
    pub level: Level,
    /// The value, or a tombstone.
    pub value: ProvidedValue<V>,
    /// The owners of the entry at that level, sorted.
    pub owners: Arc<[Owner]>,
    /// The time since which the level has this value, in milliseconds of Unix time. `None` if the time is unknown.
    pub since_ms: Option<u64>,
    /// True if the level merges its map into the inherited map. False if its map replaces the inherited map.
    pub is_merging: bool,
}

/// The value that an inspection rule or the host has for a key. It is effective only if no level decides the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FillCandidate<V> {
    /// [`Origin::Rule`] or [`Origin::Host`].
    pub origin: Origin,
    /// The value that the rule or the host provides.
    pub value: V,
}

/// The outcome for a key after the levels are merged, and after rules and the host fill keys that no level decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// The value in the last entry, that of the level nearest to the host, is effective.
    Set,
    /// A level has a tombstone (`null`), so the key is not inherited and has no value.
    Tombstoned {
        /// The level with the tombstone.
        by: Level,
    },
    /// A level that does not merge hides the inherited entries, and has no value for the key itself.
    Replaced {
        /// The level that does not merge.
        by: Level,
    },
    /// No level decides the key, so the value of an inspection rule or of the host is effective.
    Filled {
        /// Index of the effective value among the candidates.
        index: usize,
    },
    /// No level, rule or host has an entry that has an effect, so the key has no value.
    Absent,
}

/// The effect of the entry of one level on a key, for `explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelEffect {
    /// The value of the entry is effective.
    Wins,
    /// The value of a level nearer to the host is effective instead.
    OverriddenBy(Level),
    /// The entry is a tombstone, and hides the values of the levels above.
    Tombstone,
    /// A nearer level has a tombstone for the key.
    TombstonedBy(Level),
    /// A level that does not merge hides the entry, and has no value for the key itself.
    ReplacedBy(Level),
    /// The entry is a tombstone of a level that does not merge. The level hides the inherited entries in any case.
    NoEffect,
}

/// The effect of the value that a rule or the host has for a key, for `explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FillEffect {
    /// The value of the candidate is effective.
    Wins,
    /// The level sets or tombstones the key, or hides an entry of another level, so no candidate is effective.
    DecidedBy(Level),
    /// The value of an earlier rule is effective instead.
    FilledBy(Origin),
    /// The key is restricted, and the source may not set restricted keys.
    Restricted,
}

/// The provenance of one key: the entries of all levels, the candidate values of rules and the host, and which of these
/// is effective.
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
    /// The effective value.
    pub value: &'a V,
    /// The level, rule or host that provides the value.
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
    /// Returns the effective value of the key, or `None` if the key has no effective value.
    pub fn value(&self) -> Option<&V> {
        match self.state {
            KeyState::Set => self.entries.last()?.value.value(),
            KeyState::Filled { index } => self.candidates.get(index).map(|candidate| &candidate.value),
            KeyState::Tombstoned { .. } | KeyState::Replaced { .. } | KeyState::Absent => None,
        }
    }

    /// Returns the effective value of the key with its origin, or `None` if the key has no effective value.
    pub fn effective(&self) -> Option<Effective<'_, V>> {
        let (value, candidates) = (self.value()?, &self.candidates);
        match self.state {
            KeyState::Set => {
                let entry = self.entries.last()?;
                Some(Effective { value, origin: Origin::Level(entry.level), owners: &entry.owners })
            }
            KeyState::Filled { index } => Some(Effective { value, origin: candidates.get(index)?.origin.clone(), owners: &[] }),
            KeyState::Tombstoned { .. } | KeyState::Replaced { .. } | KeyState::Absent => None,
        }
    }

    /// Returns the entry of each level with its effect, the level farthest from the host first.
    pub fn level_effects(&self) -> impl Iterator<Item = (&LevelEntry<V>, LevelEffect)> {
        self.entries.iter().map(|entry| (entry, self.level_effect(entry)))
    }

    /// Returns each candidate value of a rule or the host with its effect, in the order of the rules.
    pub fn fill_effects(&self) -> impl Iterator<Item = (&FillCandidate<V>, FillEffect)> {
        self.candidates.iter().enumerate().map(|(index, candidate)| (candidate, self.fill_effect(index)))
    }

    /// Returns the effect of the candidate value at an index.
    fn fill_effect(&self, index: usize) -> FillEffect {
        match self.state {
            // At most one candidate fills the key. An earlier candidate would have filled the key if it were not
            // restricted.
            KeyState::Filled { index: effective_index } => match effective_index.cmp(&index) {
                Ordering::Less => FillEffect::FilledBy(self.candidates[effective_index].origin.clone()),
                Ordering::Equal => FillEffect::Wins,
                Ordering::Greater => FillEffect::Restricted,
            },
            KeyState::Tombstoned { by } | KeyState::Replaced { by } => FillEffect::DecidedBy(by),
            // In this state there is always an entry, and the last one has the value.
            KeyState::Set => self.entries.last().map_or(FillEffect::Restricted, |last| FillEffect::DecidedBy(last.level)),
            // No level decides the key, so only the restriction prevented that the candidate fills the key.
            KeyState::Absent => FillEffect::Restricted,
        }
    }

    /// Returns whether a level decides the key, so that neither a rule nor the host can fill the key. A value decides
    /// the key, even if a nearer level hides the value. A tombstone decides the key only at a level that merges.
    pub(crate) fn is_decided_by_level(&self) -> bool {
        self.entries.iter().any(|entry| entry.is_merging || !entry.value.is_tombstone())
    }

    /// Returns the effect of one of the entries of this provenance.
    fn level_effect(&self, entry: &LevelEntry<V>) -> LevelEffect {
        if entry.value.is_tombstone() && !entry.is_merging {
            return LevelEffect::NoEffect;
        }
        // The last entry is that of the level nearest to the host. In the state `Set`, it has the effective value.
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
