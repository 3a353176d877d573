//! Task results that no controller has acknowledged yet, stored in batches of one file each. The sequence numbers of
//! results grow and are never reused.

use log::warn;
use stemma_wire::message::observed::TaskResult;

use super::record::RecordKind;
use super::{DROPPED_RESULTS, Ledger, SEQUENCE};
use crate::host::HostError;

/// Maximum number of batches stored without acknowledgement. Beyond it, the oldest are dropped and counted.
const MAX_BATCHES: usize = 1_000;

/// Maximum sequence number that can be acknowledged. No host ever produces this number of results, and enough numbers remain
/// above it for results that follow.
const MAX_SEQUENCE: u64 = u64::MAX / 2;

impl Ledger {
    /// Returns the results that no controller has acknowledged, in order.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn results(&self) -> Result<Vec<TaskResult>, HostError> {
        let mut results = Vec::new();
        for name in self.batch_names()? {
            results.extend(Self::read::<Vec<TaskResult>>(&*self.results, &name, RecordKind::Results)?.unwrap_or_default());
        }
        Ok(results)
    }

    /// Numbers results and stores them until they are acknowledged.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn add_results(&self, mut results: Vec<TaskResult>) -> Result<Vec<TaskResult>, HostError> {
        let Some(count) = results.len().checked_sub(1) else { return Ok(results) };
        let first = self.reserve_sequences(count as u64 + 1)?;
        for (sequence, result) in (first..).zip(&mut results) {
            result.sequence = sequence;
        }
        self.write(&*self.results, &format!("{first:020}"), RecordKind::Results, &results)?;
        self.drop_oldest_results()?;
        Ok(results)
    }

    /// Removes the results up to a sequence number, because the controller has stored them. Ignores a number above
    /// `MAX_SEQUENCE`, because too few numbers would remain after it for further results.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn acknowledge(&self, up_to: u64) -> Result<(), HostError> {
        if up_to > MAX_SEQUENCE {
            warn!(sequence = up_to; "a controller acknowledged results that no host can have sent");
            return Ok(());
        }
        for name in self.batch_names()? {
            let first = name.parse::<u64>().unwrap_or(0);
            if first > up_to {
                break;
            }
            let batch: Vec<TaskResult> = Self::read(&*self.results, &name, RecordKind::Results)?.unwrap_or_default();
            if batch.last().is_none_or(|last| last.sequence <= up_to) {
                if self.results.stat(&name)?.is_some() {
                    self.results.remove(&name)?;
                }
            } else {
                let rest: Vec<_> = batch.into_iter().filter(|result| result.sequence > up_to).collect();
                self.write(&*self.results, &name, RecordKind::Results, &rest)?;
            }
        }
        let next: u64 = self.next_sequence()?;
        if next <= up_to {
            // The controller knows results of this host that its ledger does not: the ledger was lost or created again.
            // So that no number is used twice, numbers continue above the acknowledged one.
            self.put(&SEQUENCE, &(up_to + 1))?;
        }
        Ok(())
    }

    /// Returns a sentence about results that were dropped before a controller stored them, or `None` if there are none.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn dropped_results(&self) -> Result<Option<String>, HostError> {
        let count = self.get(&DROPPED_RESULTS)?.unwrap_or(0);
        let sentence = format!(
            "{count} task results were dropped on this host before a controller stored them (at most {MAX_BATCHES} batches wait): what the \
             controller shows of these tasks may be older than what was done"
        );
        Ok((count > 0).then_some(sentence))
    }

    /// Resets the count of dropped results after it was reported to a controller.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn reset_dropped_results(&self) -> Result<(), HostError> {
        self.put(&DROPPED_RESULTS, &0)
    }

    /// Returns the names of the batches, oldest first. A name is the first sequence number of its batch, in 20 digits.
    fn batch_names(&self) -> Result<Vec<String>, HostError> {
        let names = self.results.names()?;
        Ok(names.into_iter().filter(|name| name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit())).collect())
    }

    /// Removes the oldest batches above [`MAX_BATCHES`], and counts the results in them, so that they can be reported
    /// as dropped.
    fn drop_oldest_results(&self) -> Result<(), HostError> {
        let batches = self.batch_names()?;
        let Some(surplus) = batches.len().checked_sub(MAX_BATCHES).filter(|surplus| *surplus > 0) else {
            return Ok(());
        };
        let mut count: u64 = self.get(&DROPPED_RESULTS)?.unwrap_or(0);
        for name in batches.iter().take(surplus) {
            let batch: Vec<TaskResult> = Self::read(&*self.results, name, RecordKind::Results)?.unwrap_or_default();
            count = count.saturating_add(batch.len() as u64);
            // The count is written before the batch is removed. So a crash in between can count a batch twice, but
            // never omits one.
            self.put(&DROPPED_RESULTS, &count)?;
            warn!(name = name.as_str(), count = batch.len(); "results that no controller stored are dropped");
            // If the batch was unreadable, reading it has renamed it, so there is no file to remove.
            if self.results.stat(name)?.is_some() {
                self.results.remove(name)?;
            }
        }
        Ok(())
    }

    /// Returns the next free sequence number according to the record on disk.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn next_sequence(&self) -> Result<u64, HostError> {
        Ok(self.get(&SEQUENCE)?.unwrap_or(1))
    }

    /// Reserves `count` sequence numbers that were never used, and returns the first.
    fn reserve_sequences(&self, count: u64) -> Result<u64, HostError> {
        let stored = self.results()?.last().map_or(0, |last| last.sequence);
        let first = self.next_sequence()?.max(stored + 1);
        self.put(&SEQUENCE, &(first + count))?;
        Ok(first)
    }
}
