//! A backend that holds back what redb writes, so that a file that is refused while it is opened remains unchanged.
//!
//! Two alternatives were rejected. The schema version could be checked in a file next to the store, but that file can
//! be lost, or forgotten when a store is moved. The store could first be opened read-only, but redb refuses this for
//! files that were not closed, and they need the check too. Few writes are held back: redb's header and, after a crash,
//! the pages of a repair.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::redb::{BackendError, StorageBackend};

const BLOCK_LEN: usize = 4096;
const BLOCK_BYTES: u64 = BLOCK_LEN as u64;

/// The backend that redb uses.
#[derive(Debug)]
pub(super) struct DeferredBackend(Arc<DeferredWrites>);

/// The writes that are held back. The function that opens the store shares it, to write them through.
#[derive(Debug)]
pub(super) struct DeferredWrites {
    inner: Box<dyn StorageBackend>,
    is_write_through: AtomicBool,
    held: Mutex<HeldBlocks>,
}

#[derive(Debug)]
struct HeldBlocks {
    /// The length of the file as redb sees it.
    len: u64,
    /// Number of bytes of the inner backend that are still part of the file. If redb shortened the file, the bytes
    /// after the shortest length it had are zeros, not those of the inner backend.
    inner_len: u64,
    /// The blocks that were written, each complete, by their number.
    blocks: BTreeMap<u64, Box<[u8; BLOCK_LEN]>>,
}

impl DeferredBackend {
    pub(super) fn new(inner: impl StorageBackend) -> io::Result<(Self, Arc<DeferredWrites>)> {
        let len = inner.len()?;
        let deferred = Arc::new(DeferredWrites {
            inner: Box::new(inner),
            is_write_through: AtomicBool::new(false),
            held: Mutex::new(HeldBlocks { len, inner_len: len, blocks: BTreeMap::new() }),
        });
        Ok((Self(Arc::clone(&deferred)), deferred))
    }
}

impl DeferredWrites {
    /// Writes everything that was held back. Later writes go directly to the inner backend.
    ///
    /// The first block is written last, after a sync. It contains the header, and redb never reads a page that no
    /// header refers to.
    pub(super) fn write_through(&self) -> io::Result<()> {
        let mut held = self.lock();
        let inner_len = held.inner_len.min(held.len);
        if inner_len < self.inner.len()? {
            self.inner.set_len(inner_len)?;
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
        // The flag is set under the lock, so that no write can be held back after this.
        self.is_write_through.store(true, Ordering::Release);
        Ok(())
    }

    fn write_block(&self, number: u64, block: &[u8; BLOCK_LEN], len: u64) -> io::Result<()> {
        let start = number * BLOCK_BYTES;
        let length = usize::try_from(len.saturating_sub(start)).unwrap_or(BLOCK_LEN).min(BLOCK_LEN);
        self.inner.write(start, &block[..length])
    }

    /// Returns the writes that are held back, or `None` after they were written through.
    fn lock_held(&self) -> Option<MutexGuard<'_, HeldBlocks>> {
        if self.is_write_through.load(Ordering::Acquire) {
            return None;
        }
        let held = self.lock();
        (!self.is_write_through.load(Ordering::Acquire)).then_some(held)
    }

    fn lock(&self) -> MutexGuard<'_, HeldBlocks> {
        // redb cannot panic while this lock is held, and a panic ends the opening anyway.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldBlocks {
    /// Returns the bytes of a block as redb sees them: from the blocks that are held back, or from the inner backend.
    fn block(&self, inner: &dyn StorageBackend, number: u64) -> io::Result<Box<[u8; BLOCK_LEN]>> {
        if let Some(block) = self.blocks.get(&number) {
            return Ok(block.clone());
        }
        let mut block = Box::new([0; BLOCK_LEN]);
        let start = number * BLOCK_BYTES;
        let length = usize::try_from(self.inner_len.saturating_sub(start)).unwrap_or(BLOCK_LEN).min(BLOCK_LEN);
        if length > 0 {
            inner.read(start, &mut block[..length])?;
        }
        Ok(block)
    }

    /// Fills `out` with the bytes of the file from `offset` on, as redb sees them.
    fn read(&self, inner: &dyn StorageBackend, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.check_end(offset, out.len())?;
        let mut position = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let block = self.block(inner, position / BLOCK_BYTES)?;
            let from = in_block(position);
            let (part, after) = rest.split_at_mut(rest.len().min(BLOCK_LEN - from));
            part.copy_from_slice(&block[from..from + part.len()]);
            position += part.len() as u64;
            rest = after;
        }
        Ok(())
    }

    /// Holds back a write of `data` at `offset`.
    fn write(&mut self, inner: &dyn StorageBackend, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check_end(offset, data.len())?;
        let mut position = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let number = position / BLOCK_BYTES;
            let mut block = self.block(inner, number)?;
            let from = in_block(position);
            let (part, after) = rest.split_at(rest.len().min(BLOCK_LEN - from));
            block[from..from + part.len()].copy_from_slice(part);
            self.blocks.insert(number, block);
            position += part.len() as u64;
            rest = after;
        }
        Ok(())
    }

    /// Holds back a change of the length of the file. If the file becomes shorter, drops the held bytes after its end.
    fn set_len(&mut self, inner: &dyn StorageBackend, len: u64) -> io::Result<()> {
        if len < self.len {
            let last = len / BLOCK_BYTES;
            let mut block = self.block(inner, last)?;
            block[in_block(len)..].fill(0);
            self.blocks.retain(|number, _| *number < last);
            self.blocks.insert(last, block);
            self.inner_len = self.inner_len.min(last * BLOCK_BYTES);
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
        self.0.lock_held().map_or_else(|| self.0.inner.len(), |held| Ok(held.len))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self.0.lock_held() {
            Some(held) => held.read(self.0.inner.as_ref(), offset, out),
            None => self.0.inner.read(offset, out),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match self.0.lock_held() {
            Some(mut held) => held.set_len(self.0.inner.as_ref(), len),
            None => self.0.inner.set_len(len),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.lock_held().map_or_else(|| self.0.inner.sync_data(), |_| Ok(()))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self.0.lock_held() {
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

    use super::super::testing::MemoryDisk;
    use super::*;

    #[derive(Debug, Clone)]
    enum BackendStep {
        Write(u64, Vec<u8>),
        SetLen(u64),
        Sync,
    }

    const SPAN_BYTES: u64 = 5 * BLOCK_BYTES;

    fn step() -> impl Strategy<Value = BackendStep> {
        prop_oneof![
            4 => (0..SPAN_BYTES, vec(any::<u8>(), 1..9000)).prop_map(|(at, data)| BackendStep::Write(at, data)),
            2 => (0..SPAN_BYTES).prop_map(BackendStep::SetLen),
            1 => Just(BackendStep::Sync),
        ]
    }

    /// Applies a step to plain bytes. Returns false if it is out of their range.
    fn apply_to_bytes(bytes: &mut Vec<u8>, step: &BackendStep) -> bool {
        match step {
            BackendStep::Write(at, data) => {
                let at = usize::try_from(*at).unwrap();
                let Some(there) = bytes.get_mut(at..at + data.len()) else { return false };
                there.copy_from_slice(data);
            }
            BackendStep::SetLen(len) => bytes.resize(usize::try_from(*len).unwrap(), 0),
            BackendStep::Sync => {}
        }
        true
    }

    #[test]
    fn w15_09_power_loss_leaves_no_header_without_pages() {
        let disk = MemoryDisk::with_bytes(vec![0; 3 * BLOCK_LEN]);
        let (backend, deferred) = DeferredBackend::new(disk.backend()).unwrap();
        let new = [1; BLOCK_LEN];
        backend.write(0, &new).unwrap();
        backend.write(2 * BLOCK_BYTES, &new).unwrap();
        deferred.write_through().unwrap();
        for moment in 0..=disk.request_count() {
            // Of the writes since the last sync, the first sectors are lost and the last ones are stored.
            for lost in 0..3 * BLOCK_LEN / 512 {
                let mut sectors = 0;
                let left = disk.after_power_loss(moment, || {
                    sectors += 1;
                    sectors > lost
                });
                let (header, pages) = (&left.bytes()[..BLOCK_LEN], &left.bytes()[2 * BLOCK_LEN..]);
                assert!(header.iter().all(|byte| *byte == 0) || pages == new, "moment {moment}, {lost} sectors lost");
            }
        }
        assert_eq!(
            &disk.after_power_loss(disk.request_count(), || false).bytes()[..BLOCK_LEN],
            &new,
            "and is durable at the end"
        );
    }

    proptest! {
        #[test]
        fn deferred_writes_are_readable_and_reach_inner_when_written_through(
            before in vec(any::<u8>(), 0..12_000),
            steps in vec(step(), 0..20),
        ) {
            let disk = MemoryDisk::with_bytes(before.clone());
            let (backend, deferred) = DeferredBackend::new(disk.backend()).unwrap();
            let mut bytes = before.clone();
            for step in &steps {
                let done = match step {
                    BackendStep::Write(at, data) => backend.write(*at, data).is_ok(),
                    BackendStep::SetLen(len) => backend.set_len(*len).is_ok(),
                    BackendStep::Sync => backend.sync_data().is_ok(),
                };
                prop_assert_eq!(done, apply_to_bytes(&mut bytes, step));
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
