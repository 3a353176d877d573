//! Bodies of files, named by their hash, in a directory next to the store. A body may have up to 64 MiB, so bodies are
//! never in the store itself.
//!
//! A body is either complete or absent, and its name is its hash. The hash is checked before the body gets its name. It
//! is checked again before the body is served, if the file changed since the last check (a disk fault, an edit). A
//! damaged body is renamed, so that it can be sent again. The registry knows which objects name a body.
//!
//! The unnamed bodies are those that neither a stored release nor a released task set names. Together they may use a
//! limited amount of disk, and those of one sender a part of it. A body counts as unnamed from the time it is sent
//! until the bodies are counted again. They are counted when there seems to be no room left, and whenever old bodies
//! are dropped. The sender of a body is known until the process ends. Bodies of an earlier process count towards no
//! sender's part.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use sha2::{Digest as _, Sha256};
use stemma_core::shares::{ShareExceeded, ShareHolder, ShareUsage, Shares};
use stemma_wire::message::{Hash, hash_content};

/// Maximum size of a body, in bytes.
pub const MAX_BYTES: usize = 64 * 1024 * 1024;
/// Default limit for all bodies that nothing names, in bytes.
pub const MAX_UNNAMED_BYTES: u64 = 1024 * 1024 * 1024;
/// Maximum number of bodies that are cached as checked.
const MAX_REMEMBERED: usize = 65_536;
/// Size of a read during the check of a body, in bytes.
const CHUNK_BYTES: usize = 64 * 1024;
/// Minimum size with which a file is counted: one disk block. This also limits the number of bodies whose senders are
/// tracked.
const MIN_FILE_BYTES: u64 = 4096;

/// A store of file bodies.
#[derive(Debug)]
pub struct BlobStore {
    directory: PathBuf,
    /// Distinguishes concurrent writers of the same body.
    next_writer: AtomicU64,
    /// Held while a body gets its name, is looked up by its name, or loses it. So a body that is reported as existing
    /// is durable, and is not dropped at the same time.
    name_lock: Mutex<()>,
    /// Length and modification time of each body's file at its last check.
    checked_files: Mutex<BTreeMap<Hash, (u64, SystemTime)>>,
    damaged_counter: Counter,
    max_unnamed_bytes: u64,
    usage: Mutex<BlobUsage>,
    gauges: BlobGauges,
}

/// Sizes of the files in the directory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Size of all files.
    pub all: u64,
    /// Size of the unnamed files, including partial and damaged files.
    pub unnamed: u64,
}

/// The sizes of the files in the directory, in total and for each sender.
#[derive(Debug, Default)]
struct BlobUsage {
    disk: DiskUsage,
    by_hash: BTreeMap<Hash, SentBlob>,
    /// Size of the unnamed files of each known sender.
    unnamed: ShareUsage,
}

/// A body with a known sender.
#[derive(Debug)]
struct SentBlob {
    sender: ShareHolder,
    bytes: u64,
    state: BlobState,
}

/// The state of a body with a known sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlobState {
    /// The body is being written and has no name yet.
    Arriving,
    Unnamed,
    Named,
}

impl SentBlob {
    /// Returns how many bytes of the body count as unnamed.
    const fn unnamed_bytes(&self) -> u64 {
        match self.state {
            BlobState::Arriving | BlobState::Unnamed => self.bytes,
            BlobState::Named => 0,
        }
    }
}

impl BlobUsage {
    /// Adds a body of a known sender that is about to be written.
    fn add_arriving(&mut self, hash: Hash, bytes: u64, sender: &ShareHolder) {
        self.disk.all = self.disk.all.saturating_add(bytes);
        self.disk.unnamed = self.disk.unnamed.saturating_add(bytes);
        self.unnamed.update(sender, 0, bytes);
        let sent = SentBlob { sender: sender.clone(), bytes, state: BlobState::Arriving };
        if let Some(before) = self.by_hash.insert(hash, sent) {
            self.unnamed.update(&before.sender, before.unnamed_bytes(), 0);
        }
    }

    /// Removes a body whose write failed.
    fn remove_arriving(&mut self, hash: Hash, bytes: u64) {
        self.disk.all = self.disk.all.saturating_sub(bytes);
        self.disk.unnamed = self.disk.unnamed.saturating_sub(bytes);
        if let Some(sent) = self.by_hash.remove(&hash) {
            self.unnamed.update(&sent.sender, sent.unnamed_bytes(), 0);
        }
    }

    /// Replaces the sizes by those of a new count, which found the bodies `present`. The count may or may not include
    /// bodies that arrived while it was made.
    fn update_counts(&mut self, disk: DiskUsage, present: &BTreeSet<Hash>, named: &BTreeSet<Hash>) {
        self.disk = disk;
        let unnamed = &mut self.unnamed;
        self.by_hash.retain(|hash, sent| {
            if sent.state == BlobState::Arriving {
                return true;
            }
            let before = sent.unnamed_bytes();
            sent.state = if named.contains(hash) { BlobState::Named } else { BlobState::Unnamed };
            let is_here = present.contains(hash);
            unnamed.update(&sent.sender, before, if is_here { sent.unnamed_bytes() } else { 0 });
            is_here
        });
    }
}

/// Metrics of the sizes of the files.
#[derive(Clone, Debug, Default)]
pub struct BlobGauges {
    /// Size of all files.
    pub all: Gauge,
    /// Size of the files that nothing names.
    pub unnamed: Gauge,
}

/// The result of storing a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutResult {
    /// The body is now stored.
    Stored,
    /// The body was already stored.
    Exists,
    /// The body has another hash than its name, namely this one. It was not stored.
    HashMismatch(Hash),
    /// The limit for unnamed bodies, of the sender or of all together, would be exceeded. The body was not stored.
    NoRoom(ShareExceeded),
}

impl BlobStore {
    /// Opens the store in a directory that `init` created. Until the first count, all bodies count as unnamed.
    pub fn new(directory: &Path) -> Self {
        let blobs = Self {
            directory: directory.to_owned(),
            next_writer: AtomicU64::new(0),
            name_lock: Mutex::default(),
            checked_files: Mutex::default(),
            damaged_counter: Counter::default(),
            max_unnamed_bytes: MAX_UNNAMED_BYTES,
            usage: Mutex::default(),
            gauges: BlobGauges::default(),
        };
        if let Err(error) = blobs.count(&BTreeSet::new()) {
            log::warn!(path:% = directory.display(), error:err = error; "the size of the file bodies could not be counted");
        }
        blobs
    }

    /// Sets the limit for bodies that nothing names, in bytes.
    #[must_use]
    pub fn with_max_unnamed_bytes(self, max_unnamed_bytes: u64) -> Self {
        Self { max_unnamed_bytes, ..self }
    }

    /// Sets the metrics in which the sizes are shown.
    #[must_use]
    pub fn with_gauges(self, gauges: BlobGauges) -> Self {
        let disk = self.lock_usage().disk;
        let blobs = Self { gauges, ..self };
        blobs.update_gauges(disk);
        blobs
    }

    /// Sets the counter for damaged bodies.
    #[must_use]
    pub fn with_damaged_counter(self, counter: Counter) -> Self {
        Self { damaged_counter: counter, ..self }
    }

    /// Returns whether a body of this name exists. Its content is checked only when it is opened.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn contains(&self, hash: Hash) -> io::Result<bool> {
        self.path(hash).try_exists()
    }

    /// Stores a body. It is durable when this returns. Blocks on disk I/O.
    ///
    /// # Errors
    /// The error of the operating system. After an error nothing is stored under the name.
    pub fn put(&self, hash: Hash, body: &[u8], sender: &ShareHolder) -> io::Result<PutResult> {
        let actual = hash_content(body);
        if actual != hash {
            return Ok(PutResult::HashMismatch(actual));
        }
        // This call renames a stored body that is damaged, so that the new one can replace it.
        drop(self.open(hash)?);
        let path = self.path(hash);
        if self.touch(&path)? {
            return Ok(PutResult::Exists);
        }
        let bytes = counted_bytes(body.len() as u64);
        if let Some(full) = self.reserve(hash, bytes, sender) {
            return Ok(PutResult::NoRoom(full));
        }
        let writer = self.next_writer.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_added_extension(format!("new{writer}"));
        let written = write_durably(&temporary, body).and_then(|()| {
            let _guard = self.lock_names();
            fs::rename(&temporary, &path)?;
            File::open(&self.directory)?.sync_all()
        });
        if let Err(error) = written {
            // A partial file under another name does no harm. Removing it only saves space.
            let _ = fs::remove_file(&temporary);
            self.update_usage(|usage| usage.remove_arriving(hash, bytes));
            return Err(error);
        }
        if let Some(sent) = self.lock_usage().by_hash.get_mut(&hash) {
            sent.state = BlobState::Unnamed;
        }
        Ok(PutResult::Stored)
    }

    /// Reserves space for an unnamed body. If the body would exceed a limit, reserves nothing and returns that limit.
    fn reserve(&self, hash: Hash, bytes: u64, sender: &ShareHolder) -> Option<ShareExceeded> {
        self.update_usage(|usage| {
            let full =
                Shares::from_total(self.max_unnamed_bytes).exceeded_share(bytes, sender, &usage.unnamed, usage.disk.unnamed);
            if full.is_none() {
                usage.add_arriving(hash, bytes, sender);
            }
            full
        })
    }

    /// Counts the sizes of the files. All bodies that are not in `named` count as unnamed. Blocks on disk I/O.
    ///
    /// # Errors
    /// The error of the operating system. The previous count stays.
    pub fn count(&self, named: &BTreeSet<Hash>) -> io::Result<()> {
        let (mut total, mut present) = (DiskUsage::default(), BTreeSet::new());
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let bytes = match entry.metadata() {
                Ok(metadata) => counted_bytes(metadata.len()),
                // The file was dropped or renamed during the count.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            total.all += bytes;
            let hash = entry_hash(&entry);
            present.extend(hash);
            if !hash.is_some_and(|hash| named.contains(&hash)) {
                total.unnamed += bytes;
            }
        }
        self.update_usage(|usage| usage.update_counts(total, &present, named));
        Ok(())
    }

    fn update_usage<T>(&self, change: impl FnOnce(&mut BlobUsage) -> T) -> T {
        let mut usage = self.lock_usage();
        let result = change(&mut usage);
        self.update_gauges(usage.disk);
        result
    }

    fn update_gauges(&self, disk: DiskUsage) {
        for (gauge, bytes) in [(&self.gauges.all, disk.all), (&self.gauges.unnamed, disk.unnamed)] {
            gauge.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }

    fn lock_usage(&self) -> MutexGuard<'_, BlobUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the modification time of a stored body to the present, so that it is not dropped as old: a client that
    /// sends the body again is about to name it. Returns whether the body exists.
    fn touch(&self, path: &Path) -> io::Result<bool> {
        let _guard = self.lock_names();
        match File::open(path) {
            Ok(file) => file.set_modified(SystemTime::now()).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens a body at its start. Returns `None` if the body is not stored, or if it is damaged; its file is then
    /// renamed. Blocks on disk I/O.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn open(&self, hash: Hash) -> io::Result<Option<File>> {
        let mut file = match File::open(self.path(hash)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if self.is_sound(hash, &mut file)? {
            return Ok(Some(file));
        }
        self.set_aside(hash, &file)?;
        Ok(None)
    }

    /// Returns whether a file has the hash of its name. The file is read only if it changed since the last check.
    fn is_sound(&self, hash: Hash, file: &mut File) -> io::Result<bool> {
        let metadata = file.metadata()?;
        let state = (metadata.len(), metadata.modified()?);
        if self.checked_files.lock().unwrap_or_else(PoisonError::into_inner).get(&hash) == Some(&state) {
            return Ok(true);
        }
        let (mut digest, mut chunk) = (Sha256::new(), vec![0; CHUNK_BYTES]);
        loop {
            match file.read(&mut chunk)? {
                0 => break,
                read => digest.update(&chunk[..read]),
            }
        }
        file.rewind()?;
        let is_sound = Hash(digest.finalize().into()) == hash;
        if is_sound {
            let mut checked = self.checked_files.lock().unwrap_or_else(PoisonError::into_inner);
            if checked.len() >= MAX_REMEMBERED {
                checked.clear();
            }
            checked.insert(hash, state);
        }
        Ok(is_sound)
    }

    /// Renames the file of a damaged body, so that the body counts as absent. The file can be examined until it is
    /// dropped with the unnamed files.
    fn set_aside(&self, hash: Hash, file: &File) -> io::Result<()> {
        let path = self.path(hash);
        let _guard = self.lock_names();
        // If a client sent the body again, another file has the name by now.
        match fs::metadata(&path) {
            Ok(present) if present.ino() == file.metadata()?.ino() => {}
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
        let aside = path.with_added_extension("damaged");
        fs::rename(&path, &aside)?;
        self.damaged_counter.inc();
        log::error!(hash:% = hash, path:% = aside.display(); "a file body is damaged and was set aside; apply its manifest again to send it again");
        Ok(())
    }

    /// Drops the bodies that nothing names and that were last sent before a time. Returns their number. Blocks on disk
    /// I/O.
    ///
    /// # Errors
    /// The error of the operating system. The remaining files are left to the next call.
    pub fn drop_unnamed(&self, named: &BTreeSet<Hash>, before: SystemTime) -> io::Result<usize> {
        let mut dropped = 0;
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            // A partial file has no hash as its name, so it is dropped when it is old.
            let is_named = entry_hash(&entry).is_some_and(|hash| named.contains(&hash));
            if !is_named && self.drop_older(&entry.path(), before)? {
                dropped += 1;
            }
        }
        self.count(named)?;
        Ok(dropped)
    }

    /// Drops a file if it was last sent before a time. Returns whether it was dropped. The lock is held throughout, so
    /// that no client can send the body again between the check and the removal.
    fn drop_older(&self, path: &Path, before: SystemTime) -> io::Result<bool> {
        let _guard = self.lock_names();
        let is_old = match fs::metadata(path) {
            Ok(metadata) => metadata.modified()? < before,
            // The writer of a partial file has renamed it to its hash.
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if is_old {
            fs::remove_file(path)?;
        }
        Ok(is_old)
    }

    fn lock_names(&self) -> MutexGuard<'_, ()> {
        self.name_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, hash: Hash) -> PathBuf {
        self.directory.join(hash.to_string())
    }
}

/// Returns the hash of the body in a file, or `None` if its name is not a hash.
fn entry_hash(entry: &fs::DirEntry) -> Option<Hash> {
    entry.file_name().to_str().and_then(|name| name.parse().ok())
}

/// Returns the size with which a file of this length is counted: at least one disk block.
const fn counted_bytes(bytes: u64) -> u64 {
    if bytes < MIN_FILE_BYTES { MIN_FILE_BYTES } else { bytes }
}

fn write_durably(path: &Path, body: &[u8]) -> io::Result<()> {
    // A partial file of an earlier process may have the same name.
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.write_all(body)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use stemma_core::object::ClusterId;
    use stemma_core::shares::ShareKind;
    use uuid::Uuid;

    use super::*;

    fn sender(name: &str, within: Option<u128>, is_fleet_admin: bool) -> ShareHolder {
        let within = within.map(|id| ClusterId(Uuid::from_u128(id)));
        ShareHolder { name: name.to_owned(), cluster: within, is_fleet_admin }
    }

    fn somebody() -> ShareHolder {
        sender("somebody", None, false)
    }

    #[test]
    fn put_stores_body_when_hash_matches() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = BlobStore::new(directory.path());
        let hash = hash_content(b"body");
        assert!(blobs.open(hash).unwrap().is_none());
        assert_eq!(blobs.put(hash, b"other", &somebody()).unwrap(), PutResult::HashMismatch(hash_content(b"other")));
        assert!(blobs.open(hash).unwrap().is_none());
        assert_eq!(blobs.put(hash, b"body", &somebody()).unwrap(), PutResult::Stored);
        assert_eq!(blobs.put(hash, b"body", &somebody()).unwrap(), PutResult::Exists);
        let mut text = String::new();
        blobs.open(hash).unwrap().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "body");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn open_sets_body_aside_when_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let damage = |hash: Hash| {
            let mut file = OpenOptions::new().append(true).open(directory.path().join(hash.to_string())).unwrap();
            file.write_all(b"x").unwrap();
        };
        let count = Counter::default();
        let blobs = BlobStore::new(directory.path()).with_damaged_counter(count.clone());
        let (hash, other) = (hash_content(b"body"), hash_content(b"other"));
        for (hash, body) in [(hash, &b"body"[..]), (other, b"other")] {
            blobs.put(hash, body, &somebody()).unwrap();
            assert!(blobs.open(hash).unwrap().is_some());
        }
        damage(hash);
        assert!(blobs.contains(hash).unwrap());
        assert!(blobs.open(hash).unwrap().is_none(), "it is not given out");
        assert!(!blobs.contains(hash).unwrap());
        assert!(directory.path().join(format!("{hash}.damaged")).exists());
        assert_eq!(blobs.put(hash, b"body", &somebody()).unwrap(), PutResult::Stored);
        assert!(blobs.open(hash).unwrap().is_some());
        damage(other);
        assert_eq!(blobs.put(other, b"other", &somebody()).unwrap(), PutResult::Stored, "what is damaged is not known");
        let mut text = String::new();
        blobs.open(other).unwrap().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), count.get()), ("other", 2));
    }

    #[test]
    fn drop_unnamed_deletes_body_when_old() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = BlobStore::new(directory.path());
        let [named, old, again] = ["named", "old", "again"].map(|text| {
            blobs.put(hash_content(text.as_bytes()), text.as_bytes(), &somebody()).unwrap();
            hash_content(text.as_bytes())
        });
        fs::write(directory.path().join("half.new0"), "half").unwrap();
        for entry in fs::read_dir(directory.path()).unwrap() {
            let long_ago = SystemTime::now() - std::time::Duration::from_hours(48);
            File::open(entry.unwrap().path()).unwrap().set_modified(long_ago).unwrap();
        }
        blobs.put(again, b"again", &somebody()).unwrap();
        let yesterday = SystemTime::now() - std::time::Duration::from_hours(24);
        assert_eq!(blobs.drop_unnamed(&BTreeSet::from([named]), yesterday).unwrap(), 2);
        assert!(blobs.open(named).unwrap().is_some() && blobs.open(again).unwrap().is_some());
        assert!(blobs.open(old).unwrap().is_none());
    }

    /// Returns a body of `count` disk blocks, filled with a letter.
    fn blocks(letter: u8, count: usize) -> (Hash, Vec<u8>) {
        let body = vec![letter; count * 4096];
        (hash_content(&body), body)
    }

    #[test]
    fn x03_put_refuses_body_when_unnamed_bytes_reach_limit() {
        let directory = tempfile::tempdir().unwrap();
        let gauges = BlobGauges::default();
        let blobs = BlobStore::new(directory.path()).with_max_unnamed_bytes(16 * 4096).with_gauges(gauges.clone());
        let put = |letter: u8, count: usize, name: &str, is_fleet_admin: bool| {
            let (hash, body) = blocks(letter, count);
            blobs.put(hash, &body, &sender(name, None, is_fleet_admin)).unwrap()
        };
        let shown = || (gauges.all.get() / 4096, gauges.unnamed.get() / 4096);
        for (letter, name) in [(b'a', "a"), (b'b', "b"), (b'c', "c")] {
            assert_eq!(put(letter, 5, name, false), PutResult::Stored);
        }
        assert_eq!(shown(), (15, 15));
        let full = PutResult::NoRoom(ShareExceeded { share: ShareKind::Total, held: 15 * 4096, limit: 15 * 4096 });
        assert_eq!((put(b'd', 1, "d", false), put(b'a', 5, "d", false)), (full, PutResult::Exists));
        assert_eq!(put(b'd', 1, "root", true), PutResult::Stored, "a sixteenth is kept for it");
        let full = PutResult::NoRoom(ShareExceeded { share: ShareKind::Total, held: 16 * 4096, limit: 16 * 4096 });
        assert_eq!(put(b'e', 1, "root", true), full);
        // Named bodies use no room of others.
        let named = BTreeSet::from([blocks(b'a', 5).0]);
        blobs.count(&named).unwrap();
        assert_eq!(shown(), (16, 11));
        assert_eq!(put(b'e', 4, "a", false), PutResult::Stored);
        // All bodies of an earlier process count as unnamed until the first count, and towards no sender.
        let later = BlobStore::new(directory.path()).with_max_unnamed_bytes(20 * 4096);
        let (hash, body) = blocks(b'f', 1);
        let full = PutResult::NoRoom(ShareExceeded { share: ShareKind::Total, held: 20 * 4096, limit: 20 * 4096 });
        assert_eq!(later.put(hash, &body, &sender("a", None, true)).unwrap(), full);
        assert_eq!(later.drop_unnamed(&named, SystemTime::now() + std::time::Duration::from_hours(1)).unwrap(), 4);
        assert_eq!(later.put(hash, &body, &somebody()).unwrap(), PutResult::Stored);
    }

    /// One sender, or all principals that an admin of one cluster creates, could use the whole limit for a day.
    #[test]
    fn x03_put_limits_sender_to_quarter_and_cluster_to_half() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = BlobStore::new(directory.path()).with_max_unnamed_bytes(16 * 4096);
        let put = |letter: u8, by: &ShareHolder| {
            let (hash, body) = blocks(letter, 2);
            blobs.put(hash, &body, by).unwrap()
        };
        let [one, two, three] = ["one", "two", "three"].map(|name| sender(name, Some(1), false));
        assert_eq!((put(b'a', &one), put(b'b', &one)), (PutResult::Stored, PutResult::Stored));
        let own = PutResult::NoRoom(ShareExceeded { share: ShareKind::Principal, held: 4 * 4096, limit: 4 * 4096 });
        assert_eq!(put(b'c', &one), own);
        assert_eq!((put(b'c', &two), put(b'd', &two)), (PutResult::Stored, PutResult::Stored));
        let of_cluster = PutResult::NoRoom(ShareExceeded { share: ShareKind::Cluster, held: 8 * 4096, limit: 8 * 4096 });
        assert_eq!(put(b'e', &three), of_cluster);
        assert_eq!(
            (put(b'e', &sender("four", Some(2), false)), put(b'f', &sender("root", None, true))),
            (PutResult::Stored, PutResult::Stored)
        );
        // A named body counts towards no sender. It does again when nothing names it any more.
        blobs.count(&BTreeSet::from([blocks(b'a', 2).0])).unwrap();
        assert_eq!(put(b'g', &one), PutResult::Stored);
        blobs.count(&BTreeSet::new()).unwrap();
        let own = PutResult::NoRoom(ShareExceeded { share: ShareKind::Principal, held: 6 * 4096, limit: 4 * 4096 });
        assert_eq!(put(b'h', &one), own);
        // An empty body is counted as one block.
        let empty = |by: &ShareHolder| blobs.put(hash_content(b""), b"", by).unwrap();
        assert_eq!((empty(&one), empty(&sender("five", None, false))), (own, PutResult::Stored));
    }

    #[test]
    fn drop_unnamed_keeps_body_when_put_returned_exists() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = BlobStore::new(directory.path());
        let (hash, body) = (hash_content(b"body"), b"body");
        let long_ago = SystemTime::now() - std::time::Duration::from_hours(48);
        let yesterday = SystemTime::now() - std::time::Duration::from_hours(24);
        for round in 0..100 {
            blobs.put(hash, body, &somebody()).unwrap();
            File::open(blobs.path(hash)).unwrap().set_modified(long_ago).unwrap();
            let start = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                let sweep = scope.spawn(|| {
                    start.wait();
                    blobs.drop_unnamed(&BTreeSet::new(), yesterday)
                });
                start.wait();
                blobs.put(hash, body, &somebody()).unwrap();
                sweep.join().unwrap().unwrap();
            });
            assert!(blobs.open(hash).unwrap().is_some(), "round {round}: it was just sent again");
        }
    }
}
