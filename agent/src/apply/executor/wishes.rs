//! What the tasks of a run have asked of others: to run again for a change.
//!
//! A wish is noted once, by the first that asks, before its change. Others rely on that note, so it is taken back only once
//! nobody may still change something for it.

use std::collections::BTreeSet;

use super::perform::Asked;

/// The wishes of a run.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    /// A task has changed something for them.
    due: BTreeSet<String>,
    /// They were noted in this run, for changes that were not made.
    idle: BTreeSet<String>,
}

impl Wishes {
    /// Notes the end of a task that refreshes those, while tasks still run that refresh those in `running`. Gives the wishes that are
    /// there for no change.
    pub(super) fn end(&mut self, refreshes: &[String], asked: Asked, running: &BTreeSet<&String>) -> Vec<String> {
        match asked {
            Asked::Nobody => {}
            Asked::ForChange => self.due.extend(refreshes.iter().cloned()),
            Asked::ForNothing(asked) => self.idle.extend(asked),
        }
        self.idle.retain(|wish| !self.due.contains(wish));
        self.idle.extract_if(.., |wish| !running.contains(wish)).collect()
    }
}
