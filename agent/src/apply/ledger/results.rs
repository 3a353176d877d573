//! Results that wait to be acknowledged, in batches of one file each; their numbers grow and never return.

use log::warn;
use stemma_wire::message::observed::TaskResult;

use super::record::Kind;
use super::{DROPPED, Ledger, SEQUENCE};
use crate::host::HostError;

/// Batches of results kept while no controller acknowledges them; beyond, the oldest go and are counted.
const MOST_BATCHES: usize = 1_000;

/// No host gives so many results in its life, and as many again fit above it.
const LAST_SEQUENCE: u64 = u64::MAX / 2;

impl Ledger {
    /// Results that no controller has acknowledged, in order.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn results(&self) -> Result<Vec<TaskResult>, HostError> {
        let mut all = Vec::new();
        for name in self.batches()? {
            all.extend(Self::read::<Vec<TaskResult>>(&*self.results, &name, Kind::Results)?.unwrap_or_default());
        }
        Ok(all)
    }

    /// Gives results their numbers and keeps them until they are acknowledged.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn add_results(&self, mut results: Vec<TaskResult>) -> Result<Vec<TaskResult>, HostError> {
        let Some(count) = results.len().checked_sub(1) else { return Ok(results) };
        let first = self.reserve(count as u64 + 1)?;
        for (sequence, result) in (first..).zip(&mut results) {
            result.sequence = sequence;
        }
        self.write(&*self.results, &format!("{first:020}"), Kind::Results, &results)?;
        self.bound_results()?;
        Ok(results)
    }

    /// Drops results up to a number that the controller has stored. One that no host ever comes to is not heeded: the numbers after
    /// it would run out.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn acknowledge(&self, up_to: u64) -> Result<(), HostError> {
        if up_to > LAST_SEQUENCE {
            warn!(sequence = up_to; "results are acknowledged that nobody can have sent");
            return Ok(());
        }
        for name in self.batches()? {
            let first = name.parse::<u64>().unwrap_or(0);
            if first > up_to {
                break;
            }
            let batch: Vec<TaskResult> = Self::read(&*self.results, &name, Kind::Results)?.unwrap_or_default();
            if batch.last().is_none_or(|last| last.sequence <= up_to) {
                if self.results.stat(&name)?.is_some() {
                    self.results.remove(&name)?;
                }
            } else {
                let rest: Vec<_> = batch.into_iter().filter(|result| result.sequence > up_to).collect();
                self.write(&*self.results, &name, Kind::Results, &rest)?;
            }
        }
        let next: u64 = self.next_sequence()?;
        if next <= up_to {
            // This state is younger than what the controller knows of the host: go on above it.
            self.put(&SEQUENCE, &(up_to + 1))?;
        }
        Ok(())
    }

    /// How many results went before a controller took them, as a sentence; `None` where none did.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn dropped_results(&self) -> Result<Option<String>, HostError> {
        let count = self.get(&DROPPED)?.unwrap_or(0);
        let sentence = format!(
            "{count} results of tasks were dropped here before a controller took them (at most {MOST_BATCHES} batches wait): what the \
             controller shows of these tasks may be older than what was done"
        );
        Ok((count > 0).then_some(sentence))
    }

    /// Counts dropped results anew: a controller was told of those that there were.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn forget_dropped_results(&self) -> Result<(), HostError> {
        self.put(&DROPPED, &0)
    }

    fn batches(&self) -> Result<Vec<String>, HostError> {
        let names = self.results.names()?;
        Ok(names
            .into_iter()
            .filter(|name| name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit()))
            .collect())
    }

    fn bound_results(&self) -> Result<(), HostError> {
        let batches = self.batches()?;
        let Some(surplus) = batches.len().checked_sub(MOST_BATCHES).filter(|surplus| *surplus > 0) else {
            return Ok(());
        };
        let mut count: u64 = self.get(&DROPPED)?.unwrap_or(0);
        for name in batches.iter().take(surplus) {
            let batch: Vec<TaskResult> = Self::read(&*self.results, name, Kind::Results)?.unwrap_or_default();
            count = count.saturating_add(batch.len() as u64);
            // They are counted first: after a crash between the two they are counted twice, and never not at all.
            self.put(&DROPPED, &count)?;
            warn!(name = name.as_str(), count = batch.len(); "results that no controller took are dropped");
            // One that cannot be read was set aside, which is a finding too.
            if self.results.stat(name)?.is_some() {
                self.results.remove(name)?;
            }
        }
        Ok(())
    }

    /// The next free number, as far as is known on disk.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn next_sequence(&self) -> Result<u64, HostError> {
        Ok(self.get(&SEQUENCE)?.unwrap_or(1))
    }

    /// Takes `count` numbers that were never used and never will be again.
    fn reserve(&self, count: u64) -> Result<u64, HostError> {
        let kept = self.results()?.last().map_or(0, |last| last.sequence);
        let first = self.next_sequence()?.max(kept + 1);
        self.put(&SEQUENCE, &(first + count))?;
        Ok(first)
    }
}
