//! What many hosts say alike is held once.
//!
//! A fleet of a hundred thousand hosts has a few kinds of machines: their facts' paths, most of the values, and the
//! traits that follow from the hardware are the same. Reports come in as texts of their own, and leave here sharing.

use std::sync::Arc;

use imbl::OrdSet;

use crate::object::{Observation, TraitSet};

/// Below so many texts, none is looked for that nobody holds any more.
const MIN_TEXTS: usize = 4096;

/// The texts and sets that observations share.
#[derive(Clone, Default)]
pub(super) struct Shared {
    paths: OrdSet<Arc<[Arc<str>]>>,
    values: OrdSet<Arc<str>>,
    traits: OrdSet<Arc<TraitSet>>,
}

impl Shared {
    /// The same observation, sharing.
    pub(super) fn observation(&mut self, seen: &Observation) -> Observation {
        if self.values.len() >= MIN_TEXTS && self.values.len().is_power_of_two() {
            self.forget();
        }
        Observation {
            facts: seen.facts.share(|paths| keep(&mut self.paths, paths), |value| keep(&mut self.values, value)),
            traits: keep(&mut self.traits, &seen.traits),
            labels: seen.labels.clone(),
            not_taken: seen.not_taken.clone(),
        }
    }

    /// Lets go of what nobody else holds: a host's old addresses must not pile up.
    fn forget(&mut self) {
        self.paths = self.paths.iter().filter(|one| Arc::strong_count(one) > 1).cloned().collect();
        self.values = self.values.iter().filter(|one| Arc::strong_count(one) > 1).cloned().collect();
        self.traits = self.traits.iter().filter(|one| Arc::strong_count(one) > 1).cloned().collect();
    }
}

fn keep<T: Ord + ?Sized>(known: &mut OrdSet<Arc<T>>, one: &Arc<T>) -> Arc<T> {
    if let Some(known) = known.get(one) {
        return Arc::clone(known);
    }
    known.insert(Arc::clone(one));
    Arc::clone(one)
}
