//! Task results that no controller has acknowledged yet, stored in batches of one file each. The sequence numbers of
//! results grow and are never reused.

use log::warn;
use stemma_wire::message::observed::TaskResult;

use super::record::RecordKind;
use super::{DROPPED_RESULTS, Ledger, SEQUENCE};
use crate::host::HostError;

/// Maximum number of stored batches of results that no controller has acknowledged. The agent deletes the oldest
/// batches above this number, and counts their results.
const MAX_BATCHES: usize = 1_000;

/// Maximum size of the encoded results of a batch, in bytes. Only a batch with a single result may exceed it. A batch
/// is one record of the ledger, and the ledger reads records of at most 8 MiB.
const MAX_BATCH_BYTES: usize = 1024 * 1024;
/// Maximum size of an encoded result without its task and its texts, in bytes.
const MAX_FIXED_BYTES: usize = 100;

/// Maximum sequence number that a controller can acknowledge. No host ever produces this many results, and enough
/// sequence numbers remain above it for later results.
const MAX_SEQUENCE: u64 = u64::MAX / 2;

impl Ledger {
    /// Returns the results that no controller has acknowledged, in the order of their sequence numbers.
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

    /// Numbers new results and stores them in batches of at most `MAX_BATCH_BYTES`, until a controller acknowledges
    /// them. Then deletes the oldest batches above `MAX_BATCHES`. Returns the results with their sequence numbers.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn add_results(&self, mut results: Vec<TaskResult>) -> Result<Vec<TaskResult>, HostError> {
        let Some(last_index) = results.len().checked_sub(1) else { return Ok(results) };
        let first_sequence = self.reserve_sequences(last_index as u64 + 1)?;
        for (sequence, result) in (first_sequence..).zip(&mut results) {
            result.sequence = sequence;
        }
        for batch in split_batches(&results) {
            let name = format!("{:020}", batch[0].sequence);
            self.write(&*self.results, &name, RecordKind::Results, &batch)?;
        }
        self.drop_oldest_results()?;
        Ok(results)
    }

    /// Removes the stored results with sequence numbers up to `up_to`, because the controller has stored them. New
    /// results get higher numbers. Ignores an `up_to` above `MAX_SEQUENCE`, which would leave too few numbers for them.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn acknowledge(&self, up_to: u64) -> Result<(), HostError> {
        if up_to > MAX_SEQUENCE {
            warn!(sequence = up_to; "a controller acknowledged results that no host can have sent");
            return Ok(());
        }
        for name in self.batch_names()? {
            // The name of a batch is the first sequence number that the batch had.
            let first_sequence = name.parse::<u64>().unwrap_or(0);
            if first_sequence > up_to {
                break;
            }
            let batch: Vec<TaskResult> = Self::read(&*self.results, &name, RecordKind::Results)?.unwrap_or_default();
            // A batch that cannot be read counts as empty. Its file was renamed, and so is not there to remove.
            if batch.last().is_none_or(|last| last.sequence <= up_to) {
                if self.results.stat(&name)?.is_some() {
                    self.results.remove(&name)?;
                }
            } else {
                let unacknowledged: Vec<_> = batch.into_iter().filter(|result| result.sequence > up_to).collect();
                self.write(&*self.results, &name, RecordKind::Results, &unacknowledged)?;
            }
        }
        let next_sequence: u64 = self.next_sequence()?;
        if next_sequence <= up_to {
            // The controller has results that the ledger never numbered, so the host lost its ledger. The numbers
            // continue above `up_to`, so that no number is used twice.
            self.put(&SEQUENCE, &(up_to + 1))?;
        }
        Ok(())
    }

    /// Returns a sentence about results that this host deleted before a controller stored them (`MAX_BATCHES`). Returns
    /// `None` if there are no such results.
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

    /// Sets the count of dropped results to zero. The caller has reported the count to a controller.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn reset_dropped_results(&self) -> Result<(), HostError> {
        self.put(&DROPPED_RESULTS, &0)
    }

    /// Returns the names of the batches, oldest first: the first sequence number that each batch had, in 20 digits.
    fn batch_names(&self) -> Result<Vec<String>, HostError> {
        let names = self.results.names()?;
        Ok(names.into_iter().filter(|name| name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit())).collect())
    }

    /// Removes the oldest batches above [`MAX_BATCHES`]. Adds the number of their results to the stored count of
    /// dropped results, which the agent reports.
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

    /// Reserves `count` sequence numbers that were never used, and returns the first of them. The stored results are
    /// read too, in case the record of the next number was lost.
    fn reserve_sequences(&self, count: u64) -> Result<u64, HostError> {
        let last_stored = self.results()?.last().map_or(0, |last| last.sequence);
        let first = self.next_sequence()?.max(last_stored + 1);
        self.put(&SEQUENCE, &(first + count))?;
        Ok(first)
    }
}

/// Splits results into batches of at most [`MAX_BATCH_BYTES`] each. A larger result is a batch of its own.
fn split_batches(results: &[TaskResult]) -> Vec<&[TaskResult]> {
    let (mut batches, mut start, mut batch_bytes) = (Vec::new(), 0, 0);
    for (index, result) in results.iter().enumerate() {
        let result_bytes = MAX_FIXED_BYTES + result.task.len() + result.text_bytes();
        if index > start && batch_bytes + result_bytes > MAX_BATCH_BYTES {
            batches.push(&results[start..index]);
            (start, batch_bytes) = (index, 0);
        }
        batch_bytes += result_bytes;
    }
    batches.push(&results[start..]);
    batches
}
