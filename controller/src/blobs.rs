//! The store of file bodies: the contents of files that tasks write on hosts. Each body is a file in a directory next
//! to the store, named by its hash. A body may have up to 64 MiB, so bodies are never in the store itself.
//!
//! A body is either complete or absent. Its hash is checked before its file gets its final name. The hash is checked
//! again before the body is served, unless this process has checked the file with the same length and modification
//! time. A damaged body is renamed, so that a client can send it again.
//!
//! A body is *unnamed* if neither a stored release nor a released task set names it. All unnamed bodies together may
//! use a limited amount of disk, and those of one sender a part of it. A new body is unnamed until the next count of
//! the bodies. The bodies are counted when the limit seems to be reached, and when old bodies are deleted. The sender
//! of a body is only known until the process ends. Bodies from an earlier process count towards no sender's part.

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
use stemma_wire::message::{Hash, MAX_BLOB_BYTES, MAX_UNNAMED_BLOB_BYTES, MIN_BLOB_BYTES, hash_content};

/// Maximum size of a body, in bytes.
pub const MAX_BYTES: usize = MAX_BLOB_BYTES;
/// Default limit for the size of all unnamed bodies together, in bytes. A body is unnamed if no stored release and no
/// released task set names it.
pub const MAX_UNNAMED_BYTES: u64 = MAX_UNNAMED_BLOB_BYTES;
/// Maximum number of bodies whose check is remembered. When one more is checked, all others are forgotten.
const MAX_REMEMBERED: usize = 65_536;
/// Number of bytes that are read at once when a body is checked.
const CHUNK_BYTES: usize = 64 * 1024;

/// The store of file bodies: a directory of files, each named by the hash of its content.
#[derive(Debug)]
pub struct BlobStore {
    directory: PathBuf,
    /// The number of the next writer. It makes the names of temporary files unique if two clients send the same body.
    next_writer: AtomicU64,
    /// The lock that is held while a body's file is renamed, gets a new modification time, or is deleted. So a body
    /// that [`Self::put`] reports as stored already is durable, and is not deleted at the same time.
    name_lock: Mutex<()>,
    /// The length and modification time of each body's file when this process last checked it and found it right.
    checked_files: Mutex<BTreeMap<Hash, (u64, SystemTime)>>,
    damaged_counter: Counter,
    max_unnamed_bytes: u64,
    usage: Mutex<BlobUsage>,
    gauges: BlobGauges,
}

/// The sizes of the files in the directory of bodies, in bytes. A file counts with at least 4096 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Size of all files, in bytes.
    pub all: u64,
    /// Size of the unnamed files, in bytes: bodies that no release and no released task set names, and partial and
    /// damaged files.
    pub unnamed: u64,
}

/// The size of all files in the directory, and the size of the unnamed bodies of each known sender.
#[derive(Debug, Default)]
struct BlobUsage {
    disk: DiskUsage,
    by_hash: BTreeMap<Hash, SentBlob>,
    /// Size of the bodies of each known sender that no release and no released task set names, in bytes.
    unnamed: ShareUsage,
}

/// A body that a known sender has sent to this process.
#[derive(Debug)]
struct SentBlob {
    sender: ShareHolder,
    bytes: u64,
    state: BlobState,
}

/// The state of a body with a known sender. A body is named if a stored release or a released task set names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlobState {
    /// The body is being written, and its file does not have its final name yet.
    Arriving,
    Unnamed,
    Named,
}

impl SentBlob {
    /// Returns the number of bytes of the body that count towards its sender's limit for unnamed bodies.
    const fn unnamed_bytes(&self) -> u64 {
        match self.state {
            BlobState::Arriving | BlobState::Unnamed => self.bytes,
            BlobState::Named => 0,
        }
    }
}

impl BlobUsage {
    /// Adds a body of `bytes` bytes that is about to be written. It counts as unnamed, and only for its new sender.
    fn add_incoming(&mut self, hash: Hash, bytes: u64, sender: &ShareHolder) {
        self.disk.all = self.disk.all.saturating_add(bytes);
        self.disk.unnamed = self.disk.unnamed.saturating_add(bytes);
        self.unnamed.update(sender, 0, bytes);
        let new_blob = SentBlob { sender: sender.clone(), bytes, state: BlobState::Arriving };
        if let Some(old_blob) = self.by_hash.insert(hash, new_blob) {
            self.unnamed.update(&old_blob.sender, old_blob.unnamed_bytes(), 0);
        }
    }

    /// Removes a body from the sizes, because writing it has failed.
    fn remove_incoming(&mut self, hash: Hash, bytes: u64) {
        self.disk.all = self.disk.all.saturating_sub(bytes);
        self.disk.unnamed = self.disk.unnamed.saturating_sub(bytes);
        if let Some(blob) = self.by_hash.remove(&hash) {
            self.unnamed.update(&blob.sender, blob.unnamed_bytes(), 0);
        }
    }

    /// Replaces the sizes by the result of a new count of the files. `present_bodies` are the bodies that the count
    /// found, and `named_bodies` those that a release or released task set names. A body that is being written still
    /// counts for its sender, because the count may have missed the body.
    fn update_counts(&mut self, disk: DiskUsage, present_bodies: &BTreeSet<Hash>, named_bodies: &BTreeSet<Hash>) {
        self.disk = disk;
        let unnamed_usage = &mut self.unnamed;
        self.by_hash.retain(|hash, blob| {
            if blob.state == BlobState::Arriving {
                return true;
            }
            let old_bytes = blob.unnamed_bytes();
            blob.state = if named_bodies.contains(hash) { BlobState::Named } else { BlobState::Unnamed };
            let is_present = present_bodies.contains(hash);
            unnamed_usage.update(&blob.sender, old_bytes, if is_present { blob.unnamed_bytes() } else { 0 });
            is_present
        });
    }
}

/// The metrics of the sizes of the files, in bytes.
#[derive(Clone, Debug, Default)]
pub struct BlobGauges {
    /// Size of all files, in bytes.
    pub all: Gauge,
    /// Size of the files that no release and no released task set names, in bytes.
    pub unnamed: Gauge,
}

/// The result of storing a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutResult {
    /// The body is now stored.
    Stored,
    /// The body was already stored.
    Exists,
    /// The hash of the sent bytes differs from the requested name. The field is the hash of the bytes. The body was not
    /// stored.
    HashMismatch(Hash),
    /// The body was not stored, because it would exceed a limit for unnamed bodies (those that no release and no
    /// released task set names): that of its sender, of its sender's cluster, or of all senders together.
    NoRoom(ShareExceeded),
}

impl BlobStore {
    /// Opens the store of bodies in a directory that `init` created, and counts the sizes of the files. Until
    /// [`Self::count`] is called, all bodies count as unnamed, as if no release and no released task set named them.
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

    /// Sets the limit for the size of all unnamed bodies (those that no release and no released task set names), in
    /// bytes.
    #[must_use]
    pub fn with_max_unnamed_bytes(self, max_unnamed_bytes: u64) -> Self {
        Self { max_unnamed_bytes, ..self }
    }

    /// Sets the gauges that show the sizes of the files.
    #[must_use]
    pub fn with_gauges(self, gauges: BlobGauges) -> Self {
        let disk = self.lock_usage().disk;
        let blobs = Self { gauges, ..self };
        blobs.update_gauges(disk);
        blobs
    }

    /// Sets the metric that counts damaged bodies.
    #[must_use]
    pub fn with_damaged_counter(self, counter: Counter) -> Self {
        Self { damaged_counter: counter, ..self }
    }

    /// Returns whether a body with this hash is stored. The content of the file is not checked here, but when the file
    /// is opened.
    ///
    /// # Errors
    /// Fails with the error of the operating system.
    pub fn contains(&self, hash: Hash) -> io::Result<bool> {
        self.path(hash).try_exists()
    }

    /// Stores a body durably under its hash, unless the hash is wrong or a limit is exceeded ([`PutResult`]). A body
    /// that is stored already gets the present time as its modification time. The call blocks on disk I/O.
    ///
    /// # Errors
    /// Fails with the error of the operating system. After an error the body may be stored, but may not be durable.
    pub fn put(&self, hash: Hash, body: &[u8], sender: &ShareHolder) -> io::Result<PutResult> {
        let actual_hash = hash_content(body);
        if actual_hash != hash {
            return Ok(PutResult::HashMismatch(actual_hash));
        }
        // If a damaged body is stored under this hash, this call renames its file, so that the new body can replace it.
        drop(self.open(hash)?);
        let path = self.path(hash);
        if self.touch(&path)? {
            return Ok(PutResult::Exists);
        }
        let bytes = counted_bytes(body.len() as u64);
        if let Some(exceeded_share) = self.reserve(hash, bytes, sender) {
            return Ok(PutResult::NoRoom(exceeded_share));
        }
        let writer = self.next_writer.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_added_extension(format!("new{writer}"));
        let write_result = write_durably(&temporary, body).and_then(|()| {
            let _guard = self.lock_names();
            fs::rename(&temporary, &path)?;
            File::open(&self.directory)?.sync_all()
        });
        if let Err(error) = write_result {
            // A partial file with a temporary name does no harm. It is only removed to free space.
            let _ = fs::remove_file(&temporary);
            self.update_usage(|usage| usage.remove_incoming(hash, bytes));
            return Err(error);
        }
        if let Some(blob) = self.lock_usage().by_hash.get_mut(&hash) {
            blob.state = BlobState::Unnamed;
        }
        Ok(PutResult::Stored)
    }

    /// Reserves space for a body that is about to be written. If the body would exceed a limit, the function reserves
    /// nothing and returns that limit.
    fn reserve(&self, hash: Hash, bytes: u64, sender: &ShareHolder) -> Option<ShareExceeded> {
        self.update_usage(|usage| {
            let exceeded_share =
                Shares::from_total(self.max_unnamed_bytes).exceeded_share(bytes, sender, &usage.unnamed, usage.disk.unnamed);
            if exceeded_share.is_none() {
                usage.add_incoming(hash, bytes, sender);
            }
            exceeded_share
        })
    }

    /// Counts the sizes of the files. All bodies that are not in `named` count as unnamed. The call blocks on disk I/O.
    ///
    /// # Errors
    /// Fails with the error of the operating system. The sizes of the previous count then remain.
    pub fn count(&self, named: &BTreeSet<Hash>) -> io::Result<()> {
        let (mut total, mut present) = (DiskUsage::default(), BTreeSet::new());
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let bytes = match entry.metadata() {
                Ok(metadata) => counted_bytes(metadata.len()),
                // The file was deleted or renamed during the count.
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

    /// Changes the sizes under their lock, shows the new sizes in the metrics, and returns the result of `change`.
    fn update_usage<T>(&self, change: impl FnOnce(&mut BlobUsage) -> T) -> T {
        let mut usage = self.lock_usage();
        let result = change(&mut usage);
        self.update_gauges(usage.disk);
        result
    }

    /// Shows these sizes in the metrics.
    fn update_gauges(&self, disk: DiskUsage) {
        for (gauge, bytes) in [(&self.gauges.all, disk.all), (&self.gauges.unnamed, disk.unnamed)] {
            gauge.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }

    /// Locks the sizes, also if another thread panicked while it held the lock.
    fn lock_usage(&self) -> MutexGuard<'_, BlobUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the modification time of a stored body to the present time. Returns whether the body is stored. A client
    /// that sends a body again will soon create an object that names it. With the new time, the body is not deleted as
    /// old before that.
    fn touch(&self, path: &Path) -> io::Result<bool> {
        let _guard = self.lock_names();
        match File::open(path) {
            Ok(file) => file.set_modified(SystemTime::now()).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens a stored body at its beginning, and checks its hash, unless the file is unchanged since an earlier check.
    /// Returns `None` if the body is not stored or is damaged. A damaged file is renamed. The call blocks on disk I/O.
    ///
    /// # Errors
    /// Fails with the error of the operating system.
    pub fn open(&self, hash: Hash) -> io::Result<Option<File>> {
        let mut file = match File::open(self.path(hash)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if self.matches_hash(hash, &mut file)? {
            return Ok(Some(file));
        }
        self.rename_damaged(hash, &file)?;
        Ok(None)
    }

    /// Returns whether the content of a file has this hash. The file is not read if its length and modification time
    /// are those of a remembered check. Leaves the file at its beginning.
    fn matches_hash(&self, hash: Hash, file: &mut File) -> io::Result<bool> {
        let metadata = file.metadata()?;
        let file_state = (metadata.len(), metadata.modified()?);
        if self.checked_files.lock().unwrap_or_else(PoisonError::into_inner).get(&hash) == Some(&file_state) {
            return Ok(true);
        }
        let (mut digest, mut chunk) = (Sha256::new(), vec![0; CHUNK_BYTES]);
        loop {
            match file.read(&mut chunk)? {
                0 => break,
                read_bytes => digest.update(&chunk[..read_bytes]),
            }
        }
        file.rewind()?;
        let is_sound = Hash(digest.finalize().into()) == hash;
        if is_sound {
            let mut checked_files = self.checked_files.lock().unwrap_or_else(PoisonError::into_inner);
            if checked_files.len() >= MAX_REMEMBERED {
                checked_files.clear();
            }
            checked_files.insert(hash, file_state);
        }
        Ok(is_sound)
    }

    /// Renames the file of a damaged body, so that a client can send the body again. Nothing is renamed if a new file
    /// already has the name. The damaged file can be examined until [`Self::delete_unnamed`] deletes it.
    fn rename_damaged(&self, hash: Hash, file: &File) -> io::Result<()> {
        let path = self.path(hash);
        let _guard = self.lock_names();
        // If a client has sent the body again, the name now belongs to another file, which must not be renamed.
        match fs::metadata(&path) {
            Ok(current) if current.ino() == file.metadata()?.ino() => {}
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
        let damaged_path = path.with_added_extension("damaged");
        fs::rename(&path, &damaged_path)?;
        self.damaged_counter.inc();
        log::error!(hash:% = hash, path:% = damaged_path.display(); "a file body is damaged and was set aside; apply its manifest again to send it again");
        Ok(())
    }

    /// Deletes the unnamed bodies that clients last sent before the time `cutoff`, and the partial and damaged files
    /// that were last changed before it. A body is unnamed if its hash is not in `named`. Returns the number of deleted
    /// files. Also counts the remaining files. The call blocks on disk I/O.
    ///
    /// # Errors
    /// Fails with the error of the operating system. The next call deletes the remaining bodies.
    pub fn delete_unnamed(&self, named: &BTreeSet<Hash>, cutoff: SystemTime) -> io::Result<usize> {
        let mut deleted_count = 0;
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            // A partial file does not have a hash as its name, so it counts as unnamed.
            let is_named = entry_hash(&entry).is_some_and(|hash| named.contains(&hash));
            if !is_named && self.delete_if_older(&entry.path(), cutoff)? {
                deleted_count += 1;
            }
        }
        self.count(named)?;
        Ok(deleted_count)
    }

    /// Deletes a file if a client last sent it before the time `cutoff`. Returns whether the file was deleted. The lock
    /// is held for the whole call, so no client can send the body again between the check and the deletion.
    fn delete_if_older(&self, path: &Path, cutoff: SystemTime) -> io::Result<bool> {
        let _guard = self.lock_names();
        let is_old = match fs::metadata(path) {
            Ok(metadata) => metadata.modified()? < cutoff,
            // The writer of a partial file has just renamed the file to its final name.
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if is_old {
            fs::remove_file(path)?;
        }
        Ok(is_old)
    }

    /// Locks the names of the files, also if another thread panicked while it held the lock.
    fn lock_names(&self) -> MutexGuard<'_, ()> {
        self.name_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the path of the file of a body.
    fn path(&self, hash: Hash) -> PathBuf {
        self.directory.join(hash.to_string())
    }
}

/// Returns the hash of the body in a file, or `None` if its name is not a hash.
fn entry_hash(entry: &fs::DirEntry) -> Option<Hash> {
    entry.file_name().to_str().and_then(|name| name.parse().ok())
}

/// Returns the size with which a file of this length counts: its length, but at least one disk block.
const fn counted_bytes(bytes: u64) -> u64 {
    if bytes < MIN_BLOB_BYTES { MIN_BLOB_BYTES } else { bytes }
}

/// Writes a file and syncs it to the disk. An existing file is overwritten.
fn write_durably(path: &Path, body: &[u8]) -> io::Result<()> {
    // A partial file from an earlier process may have the same name.
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

    fn sender(name: &str, cluster: Option<u128>, is_fleet_admin: bool) -> ShareHolder {
        let cluster = cluster.map(|id| ClusterId(Uuid::from_u128(id)));
        ShareHolder { name: name.to_owned(), cluster, is_fleet_admin }
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

    /// The first body is opened after the damage, and then sent again. The second body is sent again at once.
    #[test]
    fn open_sets_body_aside_when_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let append_byte = |hash: Hash| {
            let mut file = OpenOptions::new().append(true).open(directory.path().join(hash.to_string())).unwrap();
            file.write_all(b"x").unwrap();
        };
        let damaged_counter = Counter::default();
        let blobs = BlobStore::new(directory.path()).with_damaged_counter(damaged_counter.clone());
        let (hash, other_hash) = (hash_content(b"body"), hash_content(b"other"));
        for (hash, body) in [(hash, &b"body"[..]), (other_hash, b"other")] {
            blobs.put(hash, body, &somebody()).unwrap();
            assert!(blobs.open(hash).unwrap().is_some());
        }
        append_byte(hash);
        assert!(blobs.contains(hash).unwrap());
        assert!(blobs.open(hash).unwrap().is_none(), "a damaged body is not returned");
        assert!(!blobs.contains(hash).unwrap());
        assert!(directory.path().join(format!("{hash}.damaged")).exists());
        assert_eq!(blobs.put(hash, b"body", &somebody()).unwrap(), PutResult::Stored);
        assert!(blobs.open(hash).unwrap().is_some());
        append_byte(other_hash);
        assert_eq!(
            blobs.put(other_hash, b"other", &somebody()).unwrap(),
            PutResult::Stored,
            "a damaged body does not count as stored"
        );
        let mut text = String::new();
        blobs.open(other_hash).unwrap().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), damaged_counter.get()), ("other", 2));
    }

    /// In this test, all files are two days old. The old body and the partial file are deleted, but not the body that
    /// is in `named` or the body that is sent again.
    #[test]
    fn delete_unnamed_deletes_body_when_old() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = BlobStore::new(directory.path());
        let [named, old, resent] = ["named", "old", "again"].map(|text| {
            blobs.put(hash_content(text.as_bytes()), text.as_bytes(), &somebody()).unwrap();
            hash_content(text.as_bytes())
        });
        fs::write(directory.path().join("half.new0"), "half").unwrap();
        for entry in fs::read_dir(directory.path()).unwrap() {
            let long_ago = SystemTime::now() - std::time::Duration::from_hours(48);
            File::open(entry.unwrap().path()).unwrap().set_modified(long_ago).unwrap();
        }
        blobs.put(resent, b"again", &somebody()).unwrap();
        let yesterday = SystemTime::now() - std::time::Duration::from_hours(24);
        assert_eq!(blobs.delete_unnamed(&BTreeSet::from([named]), yesterday).unwrap(), 2);
        assert!(blobs.open(named).unwrap().is_some() && blobs.open(resent).unwrap().is_some());
        assert!(blobs.open(old).unwrap().is_none());
    }

    /// Returns a body of `count` disk blocks that is filled with `letter`, with its hash before it.
    fn blocks(letter: u8, count: usize) -> (Hash, Vec<u8>) {
        let body = vec![letter; count * 4096];
        (hash_content(&body), body)
    }

    /// In this test, the limit is 16 blocks of 4096 bytes. One of them (a sixteenth) is reserved for admins of the
    /// fleet; here `root` is one.
    #[test]
    fn x03_put_refuses_body_when_unnamed_bytes_reach_limit() {
        let directory = tempfile::tempdir().unwrap();
        let gauges = BlobGauges::default();
        let blobs = BlobStore::new(directory.path()).with_max_unnamed_bytes(16 * 4096).with_gauges(gauges.clone());
        let put = |letter: u8, count: usize, name: &str, is_fleet_admin: bool| {
            let (hash, body) = blocks(letter, count);
            blobs.put(hash, &body, &sender(name, None, is_fleet_admin)).unwrap()
        };
        let gauge_blocks = || (gauges.all.get() / 4096, gauges.unnamed.get() / 4096);
        for (letter, name) in [(b'a', "a"), (b'b', "b"), (b'c', "c")] {
            assert_eq!(put(letter, 5, name, false), PutResult::Stored);
        }
        assert_eq!(gauge_blocks(), (15, 15));
        let refusal = PutResult::NoRoom(ShareExceeded { share: ShareKind::Total, held: 15 * 4096, limit: 15 * 4096 });
        assert_eq!((put(b'd', 1, "d", false), put(b'a', 5, "d", false)), (refusal, PutResult::Exists));
        assert_eq!(put(b'd', 1, "root", true), PutResult::Stored, "the last block is reserved for admins");
        let refusal = PutResult::NoRoom(ShareExceeded { share: ShareKind::Total, held: 16 * 4096, limit: 16 * 4096 });
        assert_eq!(put(b'e', 1, "root", true), refusal);
        // Named bodies use no space of the limit for unnamed bodies.
        let named = BTreeSet::from([blocks(b'a', 5).0]);
        blobs.count(&named).unwrap();
        assert_eq!(gauge_blocks(), (16, 11));
        assert_eq!(put(b'e', 4, "a", false), PutResult::Stored);
        // Until the first count, all bodies from an earlier process count as unnamed, and towards no sender.
        let later_blobs = BlobStore::new(directory.path()).with_max_unnamed_bytes(20 * 4096);
        let (hash, body) = blocks(b'f', 1);
        let refusal = PutResult::NoRoom(ShareExceeded { share: ShareKind::Total, held: 20 * 4096, limit: 20 * 4096 });
        assert_eq!(later_blobs.put(hash, &body, &sender("a", None, true)).unwrap(), refusal);
        assert_eq!(later_blobs.delete_unnamed(&named, SystemTime::now() + std::time::Duration::from_hours(1)).unwrap(), 4);
        assert_eq!(later_blobs.put(hash, &body, &somebody()).unwrap(), PutResult::Stored);
    }

    /// In this test, the whole limit is 16 blocks, and each body of `put` has two. Without the limits for a sender and
    /// a cluster, one sender, or all principals of one cluster, could use the whole limit until old bodies are deleted.
    #[test]
    fn x03_put_limits_sender_to_quarter_and_cluster_to_half() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = BlobStore::new(directory.path()).with_max_unnamed_bytes(16 * 4096);
        let put = |letter: u8, sender: &ShareHolder| {
            let (hash, body) = blocks(letter, 2);
            blobs.put(hash, &body, sender).unwrap()
        };
        let [first_sender, second_sender, third_sender] = ["one", "two", "three"].map(|name| sender(name, Some(1), false));
        assert_eq!((put(b'a', &first_sender), put(b'b', &first_sender)), (PutResult::Stored, PutResult::Stored));
        let sender_refusal = PutResult::NoRoom(ShareExceeded { share: ShareKind::Principal, held: 4 * 4096, limit: 4 * 4096 });
        assert_eq!(put(b'c', &first_sender), sender_refusal);
        assert_eq!((put(b'c', &second_sender), put(b'd', &second_sender)), (PutResult::Stored, PutResult::Stored));
        let cluster_refusal = PutResult::NoRoom(ShareExceeded { share: ShareKind::Cluster, held: 8 * 4096, limit: 8 * 4096 });
        assert_eq!(put(b'e', &third_sender), cluster_refusal);
        assert_eq!(
            (put(b'e', &sender("four", Some(2), false)), put(b'f', &sender("root", None, true))),
            (PutResult::Stored, PutResult::Stored)
        );
        // A named body counts towards no sender's limit. When no object names it any longer, it counts again.
        blobs.count(&BTreeSet::from([blocks(b'a', 2).0])).unwrap();
        assert_eq!(put(b'g', &first_sender), PutResult::Stored);
        blobs.count(&BTreeSet::new()).unwrap();
        let sender_refusal = PutResult::NoRoom(ShareExceeded { share: ShareKind::Principal, held: 6 * 4096, limit: 4 * 4096 });
        assert_eq!(put(b'h', &first_sender), sender_refusal);
        // An empty body is counted as one block.
        let put_empty = |sender: &ShareHolder| blobs.put(hash_content(b""), b"", sender).unwrap();
        assert_eq!((put_empty(&first_sender), put_empty(&sender("five", None, false))), (sender_refusal, PutResult::Stored));
    }

    /// In each round, an old body is sent again while another thread deletes old bodies.
    #[test]
    fn delete_unnamed_keeps_body_when_sent_again() {
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
                    blobs.delete_unnamed(&BTreeSet::new(), yesterday)
                });
                start.wait();
                blobs.put(hash, body, &somebody()).unwrap();
                sweep.join().unwrap().unwrap();
            });
            assert!(blobs.open(hash).unwrap().is_some(), "round {round}: the body was sent again");
        }
    }
}
