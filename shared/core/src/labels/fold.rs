//! The fold of the levels into one map, a step at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;

use super::MAX_EFFECTIVE;
use super::layer::Layer;
use super::line::{Effective, Line, Offer, Standing, Statement};
use crate::key::{LabelKey, LabelValue, is_restricted};
use crate::origin::{Level, Origin};
use crate::ownership::{Entry, OwnedMap, Said};

/// A map folded down to some level. A clone is free, and shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folded<K: Ord, V> {
    lines: OrdMap<K, Arc<Line<V>>>,
}

/// Labels of a source that fills only keys which no level sets or stops: a rule's, or a host's accepted ones.
#[derive(Clone, Debug)]
pub struct Fill<'a> {
    /// [`Origin::Rule`] or [`Origin::Host`].
    pub origin: Origin,
    /// Whether it may set restricted keys: a rule with `grants`, and nobody else.
    pub grants: bool,
    /// What it would set; of a host, only the keys that `host_labels.accept` names.
    pub labels: &'a BTreeMap<LabelKey, LabelValue>,
}

/// The effective labels are more than [`MAX_EFFECTIVE`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the effective labels have at most {MAX_EFFECTIVE} bytes together, these {bytes}")]
pub struct EffectiveTooLarge {
    /// Keys and values together.
    pub bytes: usize,
}

impl<K: Ord, V> Default for Folded<K, V> {
    fn default() -> Self {
        Self { lines: OrdMap::new() }
    }
}

impl<K: Ord + Clone, V: Clone> Folded<K, V> {
    /// One step down: what this level makes of what comes from above. The farthest level comes first.
    ///
    /// A level that provides nothing shares the whole map with the one above.
    #[must_use]
    pub fn below(&self, level: Level, layer: &Layer<K, V>) -> Self {
        let Some(provided) = &layer.provided else { return self.clone() };
        let mut next = self.clone();
        if !layer.merges() {
            next.replace(level, provided);
        }
        for (key, entry) in provided.iter() {
            next.say(level, layer.merges(), key, entry);
        }
        next
    }

    /// Folds several levels, given in their order, from nothing.
    pub fn of<'a>(levels: impl IntoIterator<Item = (Level, &'a Layer<K, V>)>) -> Self
    where
        K: 'a,
        V: 'a,
    {
        levels.into_iter().fold(Self::default(), |above, (level, layer)| above.below(level, layer))
    }

    /// The effective map alone.
    pub fn values(&self) -> BTreeMap<K, V> {
        self.iter().map(|(key, said)| (key.clone(), said.value.clone())).collect()
    }

    fn replace(&mut self, by: Level, provided: &OwnedMap<K, V>) {
        let standing: Vec<_> = self
            .lines
            .iter()
            .filter(|(key, line)| !matches!(line.standing, Standing::Absent) && provided.get(*key).is_none())
            .map(|(key, _)| key.clone())
            .collect();
        for key in standing {
            self.change(&key, |line| line.standing = Standing::Replaced { by });
        }
    }

    fn say(&mut self, level: Level, merges: bool, key: &K, entry: &Entry<V>) {
        self.change(key, |line| {
            line.standing = match (&entry.said, merges, line.standing) {
                (Said::Value(_), ..) => Standing::Holds,
                (Said::Tombstone, true, _) => Standing::Stopped { by: level },
                (Said::Tombstone, false, Standing::Absent) => Standing::Absent,
                (Said::Tombstone, false, _) => Standing::Replaced { by: level },
            };
            let (said, owners) = (entry.said.clone(), Arc::clone(&entry.owners));
            line.statements.push(Statement { level, said, owners, since_ms: entry.since_ms, merges });
        });
    }

    fn change(&mut self, key: &K, change: impl FnOnce(&mut Line<V>)) {
        let mut line = self.lines.get(key).map_or_else(Line::default, |line| Line::clone(line));
        change(&mut line);
        self.lines.insert(key.clone(), Arc::new(line));
    }
}

impl<K: Ord, V> Folded<K, V> {
    /// The effective value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.lines.get(key)?.value()
    }

    /// All that was said of a key, also where it has no value.
    pub fn line<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&Line<V>>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.lines.get(key).map(|line| &**line)
    }

    /// All lines of descent, by key.
    pub fn lines(&self) -> impl Iterator<Item = (&K, &Line<V>)> {
        self.lines.iter().map(|(key, line)| (key, &**line))
    }

    /// The effective values with their origins, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&K, Effective<'_, V>)> {
        self.lines.iter().filter_map(|(key, line)| Some((key, line.effective()?)))
    }

    /// Whether two share all of their parts, so that they are equal without a look at them.
    pub fn is_same(&self, other: &Self) -> bool {
        self.lines.ptr_eq(&other.lines)
    }
}

impl Folded<LabelKey, LabelValue> {
    /// One source fills what no level sets or stops. Rules come first, by priority, then the host.
    ///
    /// A restricted key is never filled, unless the source `grants`; what is not filled stands in the key's line.
    #[must_use]
    pub fn fill(&self, fill: &Fill<'_>) -> Self {
        let mut next = self.clone();
        for (key, value) in fill.labels {
            let restricted = !fill.grants && is_restricted(key);
            next.change(key, |line| {
                let open = !line.is_spoken_for() && !matches!(line.standing, Standing::Filled { .. });
                if open && !restricted {
                    line.standing = Standing::Filled { at: line.offers.len() };
                }
                line.offers.push(Offer { origin: fill.origin.clone(), value: value.clone() });
            });
        }
        next
    }

    /// Checks the size of the effective labels.
    ///
    /// # Errors
    /// [`EffectiveTooLarge`] past [`MAX_EFFECTIVE`].
    pub fn check_size(&self) -> Result<(), EffectiveTooLarge> {
        let bytes = self.iter().map(|(key, said)| key.len() + said.value.len()).sum();
        if bytes > MAX_EFFECTIVE { Err(EffectiveTooLarge { bytes }) } else { Ok(()) }
    }
}
