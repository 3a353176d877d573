//! A key's line of descent: who spoke of it on the way down, and what came of each word.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::origin::{Level, Origin};
use crate::ownership::{Owner, Said};

/// What one level said of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement<V> {
    /// The level.
    pub level: Level,
    /// The value or tombstone.
    pub said: Said<V>,
    /// Its owners there, sorted.
    pub owners: Arc<[Owner]>,
    /// When it was said, in milliseconds of Unix time.
    pub since_ms: Option<u64>,
    /// Whether the level merges with what is above it.
    pub merges: bool,
}

/// What an inspection rule or the host would fill in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer<V> {
    /// [`Origin::Rule`] or [`Origin::Host`].
    pub origin: Origin,
    /// The value.
    pub value: V,
}

/// How a key stands at the end of a fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The last statement's value holds: the nearest level that spoke.
    Holds,
    /// A level wrote `null`: not inherited.
    Stopped {
        /// The level.
        by: Level,
    },
    /// A level does not merge, and has no value for it.
    Replaced {
        /// The level.
        by: Level,
    },
    /// No level sets or stops it, and this offer (by its place) fills it.
    Filled {
        /// Which of the offers.
        at: usize,
    },
    /// Nothing that was said has an effect.
    Absent,
}

/// What came of one statement or offer, for `explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It is the effective value.
    Wins,
    /// A nearer level sets it.
    OverriddenBy(Level),
    /// It is a tombstone, and stops what is above.
    Stops,
    /// A nearer level wrote `null`.
    StoppedBy(Level),
    /// A nearer level does not merge.
    ReplacedBy(Level),
    /// A tombstone at a level that does not merge.
    NoEffect,
}

/// What came of one offer, for `explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfferEffect {
    /// It is the effective value.
    Wins,
    /// A level sets or stops the key.
    SaidBy(Level),
    /// Another source was asked before, and gives it.
    FilledBy(Origin),
    /// The key is restricted, and its source does not grant.
    Restricted,
}

/// All that was said of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<V> {
    /// What the levels said, the farthest from the host first.
    pub(super) statements: Vec<Statement<V>>,
    /// What rules and the host would fill in, in the order in which they were asked.
    pub(super) offers: Vec<Offer<V>>,
    /// How the key stands.
    pub(super) standing: Standing,
}

/// An effective value with its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective<'a, V> {
    /// The value.
    pub value: &'a V,
    /// The level, rule or host that gave it.
    pub origin: Origin,
    /// The owners at that level; none of a filled value.
    pub owners: &'a [Owner],
}

impl<V> Default for Line<V> {
    fn default() -> Self {
        Self { statements: Vec::new(), offers: Vec::new(), standing: Standing::Absent }
    }
}

impl<V> Line<V> {
    /// The effective value, if there is one.
    pub fn value(&self) -> Option<&V> {
        match self.standing {
            Standing::Holds => self.statements.last()?.said.value(),
            Standing::Filled { at } => self.offers.get(at).map(|offer| &offer.value),
            Standing::Stopped { .. } | Standing::Replaced { .. } | Standing::Absent => None,
        }
    }

    /// The effective value with its origin.
    pub fn effective(&self) -> Option<Effective<'_, V>> {
        let value = self.value()?;
        match self.standing {
            Standing::Holds => {
                let said = self.statements.last()?;
                Some(Effective { value, origin: Origin::Level(said.level), owners: &said.owners })
            }
            Standing::Filled { at } => {
                Some(Effective { value, origin: self.offers.get(at)?.origin.clone(), owners: &[] })
            }
            Standing::Stopped { .. } | Standing::Replaced { .. } | Standing::Absent => None,
        }
    }

    /// What came of each statement, in their order.
    pub fn outcomes(&self) -> impl Iterator<Item = (&Statement<V>, Effect)> {
        self.statements.iter().map(|said| (said, self.outcome(said)))
    }

    /// What came of each offer, in their order.
    pub fn offered(&self) -> impl Iterator<Item = (&Offer<V>, OfferEffect)> {
        self.offers.iter().enumerate().map(|(at, offer)| (offer, self.effect_of(at)))
    }

    fn effect_of(&self, offer: usize) -> OfferEffect {
        match self.standing {
            // Behind one that fills no other does; one before it could not.
            Standing::Filled { at } => match at.cmp(&offer) {
                Ordering::Less => OfferEffect::FilledBy(self.offers[at].origin.clone()),
                Ordering::Equal => OfferEffect::Wins,
                Ordering::Greater => OfferEffect::Restricted,
            },
            Standing::Stopped { by } | Standing::Replaced { by } => OfferEffect::SaidBy(by),
            Standing::Holds => {
                self.statements.last().map_or(OfferEffect::Restricted, |last| OfferEffect::SaidBy(last.level))
            }
            Standing::Absent => OfferEffect::Restricted,
        }
    }

    /// Whether a level sets the key (though another may stop or replace it) or stops it: then nothing fills it.
    pub(crate) fn is_spoken_for(&self) -> bool {
        self.statements.iter().any(|said| said.merges || !said.said.is_tombstone())
    }

    fn outcome(&self, said: &Statement<V>) -> Effect {
        if said.said.is_tombstone() && !said.merges {
            return Effect::NoEffect;
        }
        let nearest = self.statements.last().map_or(said.level, |last| last.level);
        match self.standing {
            Standing::Holds if said.level == nearest => Effect::Wins,
            Standing::Holds => Effect::OverriddenBy(nearest),
            Standing::Stopped { by } if said.level == by => Effect::Stops,
            Standing::Stopped { by } => Effect::StoppedBy(by),
            Standing::Replaced { by } => Effect::ReplacedBy(by),
            Standing::Filled { .. } | Standing::Absent => Effect::NoEffect,
        }
    }
}
