//! A backend that holds back what is written to it until it is told to let it through.
//!
//! The alternative, a version in a file beside the store, can be lost or left behind when a store is moved, and a
//! read-only open refuses just the files that need a look: those that were not closed. What is held back is little:
//! redb's header and, after a crash, the pages of a repair.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::redb::{BackendError, StorageBackend};

const BLOCK: usize = 4096;
const BLOCK_BYTES: u64 = BLOCK as u64;

/// What redb is given.
#[derive(Debug)]
pub(super) struct DeferredBackend(Arc<Deferred>);

/// What the opener keeps, to let through what was written.
#[derive(Debug)]
pub(super) struct Deferred {
    inner: Box<dyn StorageBackend>,
    passing: AtomicBool,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    /// What redb takes the length to be.
    len: u64,
    /// How much of the inner backend is still visible: what lay behind an end that was drawn in reads as zeros.
    visible: u64,
    /// Whole blocks, by number.
    blocks: BTreeMap<u64, Box<[u8; BLOCK]>>,
}

impl DeferredBackend {
    pub(super) fn new(inner: impl StorageBackend) -> io::Result<(Self, Arc<Deferred>)> {
        let len = inner.len()?;
        let deferred = Arc::new(Deferred {
            inner: Box::new(inner),
            passing: AtomicBool::new(false),
            held: Mutex::new(Held { len, visible: len, blocks: BTreeMap::new() }),
        });
        Ok((Self(Arc::clone(&deferred)), deferred))
    }
}

impl Deferred {
    /// Writes what was held back, and holds back nothing from here on.
    ///
    /// The first block goes last, behind a sync: it holds the header, and redb never reads a page that no header names.
    pub(super) fn write_through(&self) -> io::Result<()> {
        let mut held = self.lock();
        let visible = held.visible.min(held.len);
        if visible < self.inner.len()? {
            self.inner.set_len(visible)?;
        }
        self.inner.set_len(held.len)?;
        let header = held.blocks.remove(&0);
        for (number, block) in &held.blocks {
            self.write_block(*number, block, held.len)?;
        }
        self.inner.sync_data()?;
        if let Some(block) = header {
            self.write_block(0, &block, held.len)?;
            self.inner.sync_data()?;
        }
        held.blocks.clear();
        // Under the lock, so that no write can be held back behind the last one that was let through.
        self.passing.store(true, Ordering::Release);
        Ok(())
    }

    fn write_block(&self, number: u64, block: &[u8; BLOCK], len: u64) -> io::Result<()> {
        let start = number * BLOCK_BYTES;
        let within = usize::try_from(len.saturating_sub(start)).unwrap_or(BLOCK).min(BLOCK);
        self.inner.write(start, &block[..within])
    }

    /// What is held, or nothing once everything passes.
    fn holding(&self) -> Option<MutexGuard<'_, Held>> {
        if self.passing.load(Ordering::Acquire) {
            return None;
        }
        let held = self.lock();
        (!self.passing.load(Ordering::Acquire)).then_some(held)
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // A panic of redb's cannot begin in here, and is an end of this opening anyway.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// A block as it is seen: held, or read from what is visible of the inner backend.
    fn block(&self, inner: &dyn StorageBackend, number: u64) -> io::Result<Box<[u8; BLOCK]>> {
        if let Some(block) = self.blocks.get(&number) {
            return Ok(block.clone());
        }
        let mut block = Box::new([0; BLOCK]);
        let start = number * BLOCK_BYTES;
        let within = usize::try_from(self.visible.saturating_sub(start)).unwrap_or(BLOCK).min(BLOCK);
        if within > 0 {
            inner.read(start, &mut block[..within])?;
        }
        Ok(block)
    }

    fn read(&self, inner: &dyn StorageBackend, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.check_end(offset, out.len())?;
        let mut position = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let block = self.block(inner, position / BLOCK_BYTES)?;
            let from = in_block(position);
            let (part, behind) = rest.split_at_mut(rest.len().min(BLOCK - from));
            part.copy_from_slice(&block[from..from + part.len()]);
            position += part.len() as u64;
            rest = behind;
        }
        Ok(())
    }

    fn write(&mut self, inner: &dyn StorageBackend, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check_end(offset, data.len())?;
        let mut position = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let number = position / BLOCK_BYTES;
            let mut block = self.block(inner, number)?;
            let from = in_block(position);
            let (part, behind) = rest.split_at(rest.len().min(BLOCK - from));
            block[from..from + part.len()].copy_from_slice(part);
            self.blocks.insert(number, block);
            position += part.len() as u64;
            rest = behind;
        }
        Ok(())
    }

    fn set_len(&mut self, inner: &dyn StorageBackend, len: u64) -> io::Result<()> {
        if len < self.len {
            let last = len / BLOCK_BYTES;
            let mut block = self.block(inner, last)?;
            block[in_block(len)..].fill(0);
            self.blocks.retain(|number, _| *number < last);
            self.blocks.insert(last, block);
            self.visible = self.visible.min(last * BLOCK_BYTES);
        }
        self.len = len;
        Ok(())
    }

    fn check_end(&self, offset: u64, length: usize) -> io::Result<()> {
        match offset.checked_add(length as u64) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn in_block(position: u64) -> usize {
    usize::try_from(position % BLOCK_BYTES).expect("a remainder of 4096 fits in any usize")
}

impl StorageBackend for DeferredBackend {
    fn len(&self) -> io::Result<u64> {
        self.0.holding().map_or_else(|| self.0.inner.len(), |held| Ok(held.len))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self.0.holding() {
            Some(held) => held.read(self.0.inner.as_ref(), offset, out),
            None => self.0.inner.read(offset, out),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match self.0.holding() {
            Some(mut held) => held.set_len(self.0.inner.as_ref(), len),
            None => self.0.inner.set_len(len),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.holding().map_or_else(|| self.0.inner.sync_data(), |_| Ok(()))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self.0.holding() {
            Some(mut held) => held.write(self.0.inner.as_ref(), offset, data),
            None => self.0.inner.write(offset, data),
        }
    }

    fn close(&self) -> io::Result<()> {
        self.0.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.inner.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{Just, Strategy, any, prop_oneof};
    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::super::testing::Disk;
    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, Vec<u8>),
        SetLen(u64),
        Sync,
    }

    const SPAN: u64 = 5 * BLOCK_BYTES;

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..SPAN, vec(any::<u8>(), 1..9000)).prop_map(|(at, data)| Step::Write(at, data)),
            2 => (0..SPAN).prop_map(Step::SetLen),
            1 => Just(Step::Sync),
        ]
    }

    /// The step on plain bytes; false, when it is out of their range.
    fn on_bytes(bytes: &mut Vec<u8>, step: &Step) -> bool {
        match step {
            Step::Write(at, data) => {
                let at = usize::try_from(*at).unwrap();
                let Some(there) = bytes.get_mut(at..at + data.len()) else { return false };
                there.copy_from_slice(data);
            }
            Step::SetLen(len) => bytes.resize(usize::try_from(*len).unwrap(), 0),
            Step::Sync => {}
        }
        true
    }

    #[test]
    fn w15_09_no_loss_of_power_leaves_the_header_without_the_pages_that_it_names() {
        let disk = Disk::holding(vec![0; 3 * BLOCK]);
        let (backend, deferred) = DeferredBackend::new(disk.backend()).unwrap();
        let new = [1; BLOCK];
        backend.write(0, &new).unwrap();
        backend.write(2 * BLOCK_BYTES, &new).unwrap();
        deferred.write_through().unwrap();
        for moment in 0..=disk.moment() {
            // Of what was not synced, the first sectors are lost and the last ones are there.
            for lost in 0..3 * BLOCK / 512 {
                let mut sectors = 0;
                let left = disk.after_power_loss(moment, || {
                    sectors += 1;
                    sectors > lost
                });
                let (header, pages) = (&left.bytes()[..BLOCK], &left.bytes()[2 * BLOCK..]);
                assert!(header.iter().all(|byte| *byte == 0) || pages == new, "moment {moment}, {lost} sectors lost");
            }
        }
        assert_eq!(&disk.after_power_loss(disk.moment(), || false).bytes()[..BLOCK], &new, "and is durable at the end");
    }

    proptest! {
        #[test]
        fn what_is_held_back_reads_as_written_and_arrives_when_let_through(
            before in vec(any::<u8>(), 0..12_000),
            steps in vec(step(), 0..20),
        ) {
            let disk = Disk::holding(before.clone());
            let (backend, deferred) = DeferredBackend::new(disk.backend()).unwrap();
            let mut bytes = before.clone();
            for step in &steps {
                let done = match step {
                    Step::Write(at, data) => backend.write(*at, data).is_ok(),
                    Step::SetLen(len) => backend.set_len(*len).is_ok(),
                    Step::Sync => backend.sync_data().is_ok(),
                };
                prop_assert_eq!(done, on_bytes(&mut bytes, step));
                let mut read = vec![0; bytes.len()];
                backend.read(0, &mut read).unwrap();
                prop_assert!(read == bytes);
                prop_assert_eq!(backend.len().unwrap(), bytes.len() as u64);
            }
            prop_assert!(disk.bytes() == before, "it was written to");
            deferred.write_through().unwrap();
            prop_assert!(disk.bytes() == bytes);
            backend.set_len(3).unwrap();
            prop_assert_eq!(disk.bytes().len(), 3);
        }
    }
}
