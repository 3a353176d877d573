//! Backends for tests: files, memory, and a disk that can fail, lose power or block.

use std::collections::VecDeque;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use ::redb::backends::InMemoryBackend;
use ::redb::{BackendError, StorageBackend};
use bytes::Bytes;

use super::{CreateOptions, OpenError, RedbOptions, RedbStore, open};
use crate::store::conformance::{TestBounds, TestEngine};
use crate::store::{Epoch, Revision, SCHEMA_VERSION, Store};

pub(crate) fn create_options() -> CreateOptions {
    CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: Bytes::from_static(b"fleet") }
}

impl RedbStore {
    /// Creates a store on a test's backend: memory, or a disk that fails on demand.
    pub(super) fn create_on(
        backend: impl StorageBackend,
        name: &Path,
        create: &CreateOptions,
        options: RedbOptions,
    ) -> Result<Self, OpenError> {
        Self::start(open::create_on(backend, name, create, &options)?, options, name)
    }

    /// Opens a store on a test's backend.
    pub(super) fn open_on(backend: impl StorageBackend, name: &Path, options: RedbOptions) -> Result<Self, OpenError> {
        Self::start(open::open_on(backend, name, SCHEMA_VERSION, &options)?, options, name)
    }
}

/// Creates a new store in memory.
pub(crate) fn memory_store() -> Arc<dyn Store> {
    let backend = InMemoryBackend::new();
    Arc::new(RedbStore::create_on(backend, Path::new("memory"), &create_options(), RedbOptions::default()).unwrap())
}

/// Returns the default options, with the limits of a test.
fn redb_options(bounds: &TestBounds) -> RedbOptions {
    RedbOptions {
        limits: bounds.limits.clone(),
        kept_changes: bounds.kept_changes,
        recent_changes: bounds.recent_changes,
        ..RedbOptions::default()
    }
}

/// A test engine whose store is a file in a temporary directory.
pub(super) struct FileEngine {
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl FileEngine {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { path: directory.path().join("store.redb"), _directory: directory }
    }
}

impl TestEngine for FileEngine {
    fn create(&self, create: &CreateOptions, bounds: &TestBounds) -> Arc<dyn Store> {
        Arc::new(RedbStore::create(&self.path, create, redb_options(bounds)).unwrap())
    }

    fn reopen(&self, bounds: &TestBounds) -> Arc<dyn Store> {
        Arc::new(RedbStore::open(&self.path, redb_options(bounds)).unwrap())
    }
}

/// A test engine whose store is in redb's own memory backend.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory(Arc<InMemoryBackend>);

impl TestEngine for Memory {
    fn create(&self, create: &CreateOptions, bounds: &TestBounds) -> Arc<dyn Store> {
        Arc::new(RedbStore::create_on(self.clone(), Path::new("memory"), create, redb_options(bounds)).unwrap())
    }

    fn reopen(&self, bounds: &TestBounds) -> Arc<dyn Store> {
        Arc::new(RedbStore::open_on(self.clone(), Path::new("memory"), redb_options(bounds)).unwrap())
    }
}

impl StorageBackend for Memory {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

/// The way in which an operation of a disk fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskFault {
    /// The operation returns the system error of this number.
    Errno(i32),
    /// The operation panics. A real disk does not panic, but redb did on damaged files.
    Panic,
}

/// A kind of disk operation that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskOperation {
    Read,
    Write,
    SetLen,
    Sync,
}

/// An operation that changes the disk or makes changes durable, as the disk records it. A write has an offset and its
/// data.
#[derive(Debug, Clone)]
enum DiskRequest {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Sync,
}

/// A disk in memory that records its [`DiskRequest`]s. From the record it can build the disk that a power loss at any
/// moment would have left. The condition variable signals when a sync is blocked, and when syncs continue.
#[derive(Debug, Clone, Default)]
pub(super) struct MemoryDisk(Arc<(Mutex<DiskState>, Condvar)>);

#[derive(Debug, Default)]
struct DiskState {
    bytes: Vec<u8>,
    /// The content when the recording began.
    origin: Vec<u8>,
    requests: Vec<DiskRequest>,
    /// The planned faults: the kind of operation, the number of its operations that still succeed first, and the fault.
    faults: VecDeque<(DiskOperation, usize, DiskFault)>,
    /// True if syncs block.
    syncs_stopped: bool,
    /// True while a sync is blocked.
    stopped_in_sync: bool,
    locked: bool,
}

const SECTOR: usize = 512;

impl MemoryDisk {
    /// Creates a disk with this content.
    pub(super) fn with_bytes(bytes: Vec<u8>) -> Self {
        let disk = Self::default();
        disk.state().bytes.clone_from(&bytes);
        disk.state().origin = bytes;
        disk
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.state().bytes.clone()
    }

    /// Makes one operation fail, once. The next `skip_count` operations of its kind still succeed.
    pub(super) fn fail(&self, operation: DiskOperation, skip_count: usize, fault: DiskFault) {
        self.state().faults.push_back((operation, skip_count, fault));
    }

    /// Blocks every sync until [`MemoryDisk::resume_syncs`] is called.
    pub(super) fn stop_syncs(&self) {
        self.state().syncs_stopped = true;
    }

    pub(super) fn resume_syncs(&self) {
        self.state().syncs_stopped = false;
        self.0.1.notify_all();
    }

    /// Waits until a sync is blocked. Panics after 20 seconds.
    pub(super) fn wait_for_stopped_sync(&self) {
        let max_wait = Duration::from_secs(20);
        let result = self.0.1.wait_timeout_while(self.state(), max_wait, |state| !state.stopped_in_sync);
        // The lock is released before the assertion. A panic under the lock would poison it, and other threads that use
        // the disk would panic too.
        let timed_out = result.unwrap().1.timed_out();
        assert!(!timed_out, "no sync was blocked");
    }

    /// Returns the number of recorded operations. [`Self::after_power_loss`] accepts this number as the moment "now".
    pub(super) fn request_count(&self) -> usize {
        self.state().requests.len()
    }

    /// Returns the disk as a power loss leaves it after the first `moment` recorded operations. The disk then has
    /// everything that was synced, and the later sectors and changes of length for which `survives` returns true.
    pub(super) fn after_power_loss(&self, moment: usize, mut survives: impl FnMut() -> bool) -> Self {
        let state = self.state();
        let requests = &state.requests[..moment];
        let synced_count = requests.iter().rposition(|request| matches!(request, DiskRequest::Sync)).map_or(0, |last| last + 1);
        let mut bytes = state.origin.clone();
        for request in &requests[..synced_count] {
            request.replay(&mut bytes, || true);
        }
        for request in &requests[synced_count..] {
            request.replay(&mut bytes, &mut survives);
        }
        Self::with_bytes(bytes)
    }

    pub(super) fn backend(&self) -> DiskBackend {
        DiskBackend(self.clone())
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.0.lock().unwrap()
    }

    /// Locks the state for an operation. If a fault is due for this operation, fails or panics instead.
    fn lock_for(&self, operation: DiskOperation) -> io::Result<MutexGuard<'_, DiskState>> {
        let mut state = self.state();
        let Some((_, skipped, fault)) = state.faults.iter_mut().find(|(kind, ..)| *kind == operation) else {
            return Ok(state);
        };
        if let Some(remaining) = skipped.checked_sub(1) {
            *skipped = remaining;
            return Ok(state);
        }
        let fault = *fault;
        // A fault occurs once, so it is removed.
        state.faults.retain(|(kind, skipped, _)| (*kind, *skipped) != (operation, 0));
        drop(state);
        match fault {
            DiskFault::Errno(number) => Err(io::Error::from_raw_os_error(number)),
            DiskFault::Panic => panic!("planned by the test"),
        }
    }
}

impl DiskRequest {
    /// Applies the request to `bytes`. `survives` is called for each sector of a write, and once for a change of the
    /// length. Parts for which it returns false are not applied, nor is a sector that ends after the end of `bytes`.
    fn replay(&self, bytes: &mut Vec<u8>, mut survives: impl FnMut() -> bool) {
        match self {
            Self::Sync => {}
            Self::SetLen(len) => {
                if survives() {
                    bytes.resize(usize::try_from(*len).unwrap(), 0);
                }
            }
            Self::Write(offset, data) => {
                let offset = usize::try_from(*offset).unwrap();
                for (number, sector) in data.chunks(SECTOR).enumerate() {
                    let start = offset + number * SECTOR;
                    if survives() && start + sector.len() <= bytes.len() {
                        bytes[start..start + sector.len()].copy_from_slice(sector);
                    }
                }
            }
        }
    }
}

/// The backend of a [`MemoryDisk`] for redb, with a lock as a file has.
#[derive(Debug)]
pub(super) struct DiskBackend(MemoryDisk);

impl StorageBackend for DiskBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.state().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.0.lock_for(DiskOperation::Read)?;
        let offset = usize::try_from(offset).unwrap();
        let bytes = state.bytes.get(offset..offset + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    /// Changes the length at once, and records the operation.
    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.0.lock_for(DiskOperation::SetLen)?;
        let request = DiskRequest::SetLen(len);
        request.replay(&mut state.bytes, || true);
        state.requests.push(request);
        Ok(())
    }

    /// Records a sync. While syncs are stopped, it first announces that it is blocked, and waits.
    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.0.lock_for(DiskOperation::Sync)?;
        if state.syncs_stopped {
            state.stopped_in_sync = true;
            self.0.0.1.notify_all();
            state = self.0.0.1.wait_while(state, |state| state.syncs_stopped).unwrap();
            state.stopped_in_sync = false;
        }
        state.requests.push(DiskRequest::Sync);
        Ok(())
    }

    /// Writes the data at once, and records the operation.
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock_for(DiskOperation::Write)?;
        let request = DiskRequest::Write(offset, data.to_vec());
        request.replay(&mut state.bytes, || true);
        state.requests.push(request);
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.0.state().locked = false;
        Ok(())
    }

    /// Locks the disk. Returns false if it is locked already. Only the whole disk can be locked.
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        if !matches!((start, end), (Bound::Unbounded | Bound::Included(0), Bound::Unbounded)) {
            return Err(BackendError::Unsupported);
        }
        Ok(!std::mem::replace(&mut self.0.state().locked, true))
    }

    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        self.0.state().locked = false;
        Ok(())
    }
}
