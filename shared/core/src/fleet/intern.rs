//! Stores texts that many hosts report only once.
//!
//! A fleet of a hundred thousand hosts has a few kinds of machines. The paths of their facts, most of the values, and
//! the traits that follow from the hardware are the same. Each report arrives with texts of its own, and is stored with
//! shared ones.

use std::sync::Arc;

use imbl::OrdSet;

use crate::object::{Observation, TraitSet};

/// Minimum number of different values of facts at which an [`Interner`] drops the texts and sets that no report uses.
const MIN_SWEEP_TEXTS: usize = 4096;

/// The texts of facts and the sets of traits of all reports, each stored once and shared.
#[derive(Clone, Default)]
pub(super) struct Interner {
    paths: OrdSet<Arc<[Arc<str>]>>,
    values: OrdSet<Arc<str>>,
    traits: OrdSet<Arc<TraitSet>>,
}

impl Interner {
    /// Returns a copy of a report whose facts and traits are shared with equal ones of other reports.
    pub(super) fn intern_observation(&mut self, observation: &Observation) -> Observation {
        // The unused texts are dropped each time that the number of values reaches a power of two.
        if self.values.len() >= MIN_SWEEP_TEXTS && self.values.len().is_power_of_two() {
            self.drop_unused();
        }
        Observation {
            facts: observation.facts.intern(|paths| intern(&mut self.paths, paths), |value| intern(&mut self.values, value)),
            traits: intern(&mut self.traits, &observation.traits),
            labels: observation.labels.clone(),
            not_taken: observation.not_taken.clone(),
        }
    }

    /// Drops the texts and sets that no report uses any more, such as old addresses of hosts.
    fn drop_unused(&mut self) {
        self.paths = self.paths.iter().filter(|path| Arc::strong_count(path) > 1).cloned().collect();
        self.values = self.values.iter().filter(|value| Arc::strong_count(value) > 1).cloned().collect();
        self.traits = self.traits.iter().filter(|set| Arc::strong_count(set) > 1).cloned().collect();
    }
}

/// Returns the shared value that equals this value. If there is none, this value becomes the shared one.
fn intern<T: Ord + ?Sized>(shared: &mut OrdSet<Arc<T>>, value: &Arc<T>) -> Arc<T> {
    if let Some(existing) = shared.get(value) {
        return Arc::clone(existing);
    }
    shared.insert(Arc::clone(value));
    Arc::clone(value)
}
