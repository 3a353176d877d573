//! What tests make stores on: files, memory, and a disk that fails, loses power and can be stopped.

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
use crate::store::conformance::{Bounds, Engine};
use crate::store::{Epoch, Revision, SCHEMA, Store};

pub(crate) fn creation() -> CreateOptions {
    CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: Bytes::from_static(b"fleet") }
}

impl RedbStore {
    /// Makes a store on a backend of the test's: memory, or one that fails when told to.
    pub(super) fn create_on(
        backend: impl StorageBackend,
        name: &Path,
        create: &CreateOptions,
        options: RedbOptions,
    ) -> Result<Self, OpenError> {
        Self::start(open::create_on(backend, name, create, &options)?, options, name)
    }

    /// Opens a store on a backend of the test's.
    pub(super) fn open_on(backend: impl StorageBackend, name: &Path, options: RedbOptions) -> Result<Self, OpenError> {
        Self::start(open::open_on(backend, name, SCHEMA, &options)?, options, name)
    }
}

/// A new store in memory.
pub(crate) fn memory_store() -> Arc<dyn Store> {
    let backend = InMemoryBackend::new();
    Arc::new(RedbStore::create_on(backend, Path::new("memory"), &creation(), RedbOptions::default()).unwrap())
}

fn options(bounds: &Bounds) -> RedbOptions {
    RedbOptions {
        limits: bounds.limits.clone(),
        kept_changes: bounds.kept_changes,
        recent_changes: bounds.recent_changes,
        ..RedbOptions::default()
    }
}

/// Stores in files.
pub(super) struct Files {
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Files {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { path: directory.path().join("store.redb"), _directory: directory }
    }
}

impl Engine for Files {
    fn create(&self, create: &CreateOptions, bounds: &Bounds) -> Arc<dyn Store> {
        Arc::new(RedbStore::create(&self.path, create, options(bounds)).unwrap())
    }

    fn reopen(&self, bounds: &Bounds) -> Arc<dyn Store> {
        Arc::new(RedbStore::open(&self.path, options(bounds)).unwrap())
    }
}

/// Stores in redb's own memory.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory(Arc<InMemoryBackend>);

impl Engine for Memory {
    fn create(&self, create: &CreateOptions, bounds: &Bounds) -> Arc<dyn Store> {
        Arc::new(RedbStore::create_on(self.clone(), Path::new("memory"), create, options(bounds)).unwrap())
    }

    fn reopen(&self, bounds: &Bounds) -> Arc<dyn Store> {
        Arc::new(RedbStore::open_on(self.clone(), Path::new("memory"), options(bounds)).unwrap())
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

/// How an operation of a disk fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// With this error of the system.
    Errno(i32),
    /// By a panic, as redb had some.
    Panic,
}

/// Which operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    Read,
    Write,
    SetLen,
    Sync,
}

/// What was asked of a disk, in order.
#[derive(Debug, Clone)]
enum Asked {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Sync,
}

/// A disk in memory, which remembers what it was asked: any moment of its past can be had as the disk that a loss of
/// power at that moment would have left.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk(Arc<(Mutex<DiskState>, Condvar)>);

#[derive(Debug, Default)]
struct DiskState {
    bytes: Vec<u8>,
    /// As it was when it began to remember.
    origin: Vec<u8>,
    asked: Vec<Asked>,
    /// Skip so many operations of a kind, then fail the next one.
    troubles: VecDeque<(At, usize, Trouble)>,
    syncs_stopped: bool,
    stopped_in_sync: bool,
    locked: bool,
}

const SECTOR: usize = 512;

impl Disk {
    /// A disk that holds these bytes.
    pub(super) fn holding(bytes: Vec<u8>) -> Self {
        let disk = Self::default();
        disk.state().bytes.clone_from(&bytes);
        disk.state().origin = bytes;
        disk
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.state().bytes.clone()
    }

    /// Lets the operation after `skipped` ones of its kind fail. Once.
    pub(super) fn fail(&self, at: At, skipped: usize, trouble: Trouble) {
        self.state().troubles.push_back((at, skipped, trouble));
    }

    /// Keeps every sync from returning, until they are let go.
    pub(super) fn stop_syncs(&self) {
        self.state().syncs_stopped = true;
    }

    pub(super) fn let_syncs_go(&self) {
        self.state().syncs_stopped = false;
        self.0.1.notify_all();
    }

    /// Waits until someone is kept in a sync.
    pub(super) fn wait_for_stopped_sync(&self) {
        let patience = Duration::from_secs(20);
        let waited = self.0.1.wait_timeout_while(self.state(), patience, |state| !state.stopped_in_sync);
        // Not under the lock: a panic there would take the disk's own threads along.
        let timed_out = waited.unwrap().1.timed_out();
        assert!(!timed_out, "nobody came to a sync");
    }

    /// How much was asked so far: a moment.
    pub(super) fn moment(&self) -> usize {
        self.state().asked.len()
    }

    /// The disk after a loss of power at that moment: what was synced, and of the rest the sectors that `kept` says.
    pub(super) fn after_power_loss(&self, moment: usize, mut kept: impl FnMut() -> bool) -> Self {
        let state = self.state();
        let asked = &state.asked[..moment];
        let synced = asked.iter().rposition(|asked| matches!(asked, Asked::Sync)).map_or(0, |last| last + 1);
        let mut bytes = state.origin.clone();
        for asked in &asked[..synced] {
            asked.replay(&mut bytes, || true);
        }
        for asked in &asked[synced..] {
            asked.replay(&mut bytes, &mut kept);
        }
        Self::holding(bytes)
    }

    pub(super) fn backend(&self) -> DiskBackend {
        DiskBackend(self.clone())
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.0.lock().unwrap()
    }

    /// Whether it is this operation's turn to fail.
    fn checked(&self, at: At) -> io::Result<MutexGuard<'_, DiskState>> {
        let mut state = self.state();
        let Some((_, skipped, trouble)) = state.troubles.iter_mut().find(|(kind, ..)| *kind == at) else {
            return Ok(state);
        };
        if let Some(left) = skipped.checked_sub(1) {
            *skipped = left;
            return Ok(state);
        }
        let trouble = *trouble;
        state.troubles.retain(|(kind, skipped, _)| (*kind, *skipped) != (at, 0));
        drop(state);
        match trouble {
            Trouble::Errno(number) => Err(io::Error::from_raw_os_error(number)),
            Trouble::Panic => panic!("planned by the test"),
        }
    }
}

impl Asked {
    fn replay(&self, bytes: &mut Vec<u8>, mut kept: impl FnMut() -> bool) {
        match self {
            Self::Sync => {}
            Self::SetLen(len) => {
                if kept() {
                    bytes.resize(usize::try_from(*len).unwrap(), 0);
                }
            }
            Self::Write(offset, data) => {
                let offset = usize::try_from(*offset).unwrap();
                for (number, sector) in data.chunks(SECTOR).enumerate() {
                    let start = offset + number * SECTOR;
                    if kept() && start + sector.len() <= bytes.len() {
                        bytes[start..start + sector.len()].copy_from_slice(sector);
                    }
                }
            }
        }
    }
}

/// A disk as redb sees it, with a lock as a file has one.
#[derive(Debug)]
pub(super) struct DiskBackend(Disk);

impl StorageBackend for DiskBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.state().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.0.checked(At::Read)?;
        let offset = usize::try_from(offset).unwrap();
        let bytes = state.bytes.get(offset..offset + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.0.checked(At::SetLen)?;
        let asked = Asked::SetLen(len);
        asked.replay(&mut state.bytes, || true);
        state.asked.push(asked);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.0.checked(At::Sync)?;
        if state.syncs_stopped {
            state.stopped_in_sync = true;
            self.0.0.1.notify_all();
            state = self.0.0.1.wait_while(state, |state| state.syncs_stopped).unwrap();
            state.stopped_in_sync = false;
        }
        state.asked.push(Asked::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.0.checked(At::Write)?;
        let asked = Asked::Write(offset, data.to_vec());
        asked.replay(&mut state.bytes, || true);
        state.asked.push(asked);
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.0.state().locked = false;
        Ok(())
    }

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
