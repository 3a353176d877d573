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

/// Size of a block, in bytes. Writes are held back as whole blocks.
const BLOCK_LEN: usize = 4096;
const BLOCK_BYTES: u64 = BLOCK_LEN as u64;

/// The storage backend that redb uses for an existing store. Until [`DeferredWrites::write_through`] is called, writes,
/// changes of the length and syncs do not reach the file, but locks and the close do.
#[derive(Debug)]
pub(super) struct DeferredBackend(Arc<DeferredWrites>);

/// The writes of redb that are held back in memory. The function that opens a store calls [`Self::write_through`] when
/// it accepts the file.
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
    /// Number of bytes at the start of the inner backend that still belong to the file as redb sees it, except where
    /// `blocks` has newer bytes. The bytes after this number are in `blocks`, or are zeros (if redb extended the file).
    inner_len: u64,
    /// The blocks that redb wrote to, and the block in which a file that redb shortened ends, by number. Each block
    /// also has the bytes that redb did not write.
    blocks: BTreeMap<u64, Box<[u8; BLOCK_LEN]>>,
}

impl DeferredBackend {
    /// Wraps a backend. Returns the wrapper for redb, and the held writes for the function that opens the store.
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
    /// The first block is written last, after a sync of the others, because it contains the header. If the power fails
    /// before that, the old header remains, and redb reads no page that this header does not refer to.
    pub(super) fn write_through(&self) -> io::Result<()> {
        let mut held_blocks = self.lock();
        let inner_len = held_blocks.inner_len.min(held_blocks.len);
        // Shortening first turns the bytes after `inner_len` into zeros.
        if inner_len < self.inner.len()? {
            self.inner.set_len(inner_len)?;
        }
        self.inner.set_len(held_blocks.len)?;
        let header = held_blocks.blocks.remove(&0);
        for (number, block) in &held_blocks.blocks {
            self.write_block(*number, block, held_blocks.len)?;
        }
        self.inner.sync_data()?;
        if let Some(block) = header {
            self.write_block(0, &block, held_blocks.len)?;
            self.inner.sync_data()?;
        }
        held_blocks.blocks.clear();
        // The flag is set under the lock, so that no write can be held back after this.
        self.is_write_through.store(true, Ordering::Release);
        Ok(())
    }

    /// Writes a block to the inner backend, without the bytes after the end of the file at `file_len`.
    fn write_block(&self, number: u64, block: &[u8; BLOCK_LEN], file_len: u64) -> io::Result<()> {
        let start = number * BLOCK_BYTES;
        let length = usize::try_from(file_len.saturating_sub(start)).unwrap_or(BLOCK_LEN).min(BLOCK_LEN);
        self.inner.write(start, &block[..length])
    }

    /// Returns the writes that are held back, or `None` after they were written through.
    fn lock_held(&self) -> Option<MutexGuard<'_, HeldBlocks>> {
        if self.is_write_through.load(Ordering::Acquire) {
            return None;
        }
        let held_blocks = self.lock();
        // The flag may have been set while this thread waited for the lock.
        (!self.is_write_through.load(Ordering::Acquire)).then_some(held_blocks)
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
            let start = offset_in_block(position);
            let (part, tail) = rest.split_at_mut(rest.len().min(BLOCK_LEN - start));
            part.copy_from_slice(&block[start..start + part.len()]);
            position += part.len() as u64;
            rest = tail;
        }
        Ok(())
    }

    /// Holds back a write of `data` at `offset`. Fails if the data would end after the end of the file.
    fn write(&mut self, inner: &dyn StorageBackend, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check_end(offset, data.len())?;
        let mut position = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let number = position / BLOCK_BYTES;
            let mut block = self.block(inner, number)?;
            let start = offset_in_block(position);
            let (part, tail) = rest.split_at(rest.len().min(BLOCK_LEN - start));
            block[start..start + part.len()].copy_from_slice(part);
            self.blocks.insert(number, block);
            position += part.len() as u64;
            rest = tail;
        }
        Ok(())
    }

    /// Holds back a change of the length of the file. If the file becomes shorter, drops the held bytes after its end.
    fn set_len(&mut self, inner: &dyn StorageBackend, len: u64) -> io::Result<()> {
        if len < self.len {
            let last_block = len / BLOCK_BYTES;
            let mut block = self.block(inner, last_block)?;
            block[offset_in_block(len)..].fill(0);
            self.blocks.retain(|number, _| *number < last_block);
            self.blocks.insert(last_block, block);
            // From now on the last block is held here, so the inner backend provides only the blocks before it.
            self.inner_len = self.inner_len.min(last_block * BLOCK_BYTES);
        }
        self.len = len;
        Ok(())
    }

    /// Fails with `UnexpectedEof` if the `length` bytes from `offset` on are not all before the end of the file.
    fn check_end(&self, offset: u64, length: usize) -> io::Result<()> {
        match offset.checked_add(length as u64) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Returns the offset of a position from the start of its block.
fn offset_in_block(position: u64) -> usize {
    usize::try_from(position % BLOCK_BYTES).expect("a remainder of 4096 fits in any usize")
}

impl StorageBackend for DeferredBackend {
    fn len(&self) -> io::Result<u64> {
        self.0.lock_held().map_or_else(|| self.0.inner.len(), |held_blocks| Ok(held_blocks.len))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self.0.lock_held() {
            Some(held_blocks) => held_blocks.read(self.0.inner.as_ref(), offset, out),
            None => self.0.inner.read(offset, out),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match self.0.lock_held() {
            Some(mut held_blocks) => held_blocks.set_len(self.0.inner.as_ref(), len),
            None => self.0.inner.set_len(len),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.lock_held().map_or_else(|| self.0.inner.sync_data(), |_| Ok(()))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self.0.lock_held() {
            Some(mut held_blocks) => held_blocks.write(self.0.inner.as_ref(), offset, data),
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

    /// Generates a random operation of a backend, most often a write. The offset of a write and the new length of the
    /// file are below [`SPAN_BYTES`].
    fn step() -> impl Strategy<Value = BackendStep> {
        prop_oneof![
            4 => (0..SPAN_BYTES, vec(any::<u8>(), 1..9000)).prop_map(|(at, data)| BackendStep::Write(at, data)),
            2 => (0..SPAN_BYTES).prop_map(BackendStep::SetLen),
            1 => Just(BackendStep::Sync),
        ]
    }

    /// Applies a step to plain bytes, as a correct backend would. Returns `false` if the step writes after their end.
    fn apply_to_bytes(bytes: &mut Vec<u8>, step: &BackendStep) -> bool {
        match step {
            BackendStep::Write(offset, data) => {
                let offset = usize::try_from(*offset).unwrap();
                let Some(target) = bytes.get_mut(offset..offset + data.len()) else { return false };
                target.copy_from_slice(data);
            }
            BackendStep::SetLen(len) => bytes.resize(usize::try_from(*len).unwrap(), 0),
            BackendStep::Sync => {}
        }
        true
    }

    /// After a power loss at any moment, the new header is on the disk only if the new pages are on the disk too. In
    /// this test, block 0 has the header, and block 2 has a page. A moment is a number of operations of the disk.
    #[test]
    fn w15_09_power_loss_leaves_no_header_without_pages() {
        let disk = MemoryDisk::with_bytes(vec![0; 3 * BLOCK_LEN]);
        let (backend, deferred) = DeferredBackend::new(disk.backend()).unwrap();
        let new_block = [1; BLOCK_LEN];
        backend.write(0, &new_block).unwrap();
        backend.write(2 * BLOCK_BYTES, &new_block).unwrap();
        deferred.write_through().unwrap();
        for moment in 0..=disk.request_count() {
            // Of the writes since the last sync, the first sectors are lost and the last ones are stored.
            for lost_count in 0..3 * BLOCK_LEN / 512 {
                let mut sector_number = 0;
                let remaining_disk = disk.after_power_loss(moment, || {
                    sector_number += 1;
                    sector_number > lost_count
                });
                let (header, pages) = (&remaining_disk.bytes()[..BLOCK_LEN], &remaining_disk.bytes()[2 * BLOCK_LEN..]);
                assert!(header.iter().all(|byte| *byte == 0) || pages == new_block, "moment {moment}, {lost_count} sectors lost");
            }
        }
        assert_eq!(
            &disk.after_power_loss(disk.request_count(), || false).bytes()[..BLOCK_LEN],
            &new_block,
            "the header is durable at the end"
        );
    }

    proptest! {
        #[test]
        fn deferred_writes_are_readable_and_reach_inner_when_written_through(
            original in vec(any::<u8>(), 0..12_000),
            steps in vec(step(), 0..20),
        ) {
            let disk = MemoryDisk::with_bytes(original.clone());
            let (backend, deferred) = DeferredBackend::new(disk.backend()).unwrap();
            let mut bytes = original.clone();
            for step in &steps {
                let is_ok = match step {
                    BackendStep::Write(at, data) => backend.write(*at, data).is_ok(),
                    BackendStep::SetLen(len) => backend.set_len(*len).is_ok(),
                    BackendStep::Sync => backend.sync_data().is_ok(),
                };
                prop_assert_eq!(is_ok, apply_to_bytes(&mut bytes, step));
                let mut read_bytes = vec![0; bytes.len()];
                backend.read(0, &mut read_bytes).unwrap();
                prop_assert!(read_bytes == bytes);
                prop_assert_eq!(backend.len().unwrap(), bytes.len() as u64);
            }
            prop_assert!(disk.bytes() == original, "the stored bytes were changed");
            deferred.write_through().unwrap();
            prop_assert!(disk.bytes() == bytes);
            // Later operations reach the inner backend at once.
            backend.set_len(3).unwrap();
            prop_assert_eq!(disk.bytes().len(), 3);
        }
    }
}
