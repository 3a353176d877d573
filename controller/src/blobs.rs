//! Bodies of files, named by their hash, in a directory beside the store: up to 64 MiB each, so never in the store itself.
//!
//! A body is there whole or not at all, and what stands under a name has that hash: it is checked before it gets the name, and again
//! before it is given out where the file is not as it was last checked (a disk forgets; somebody edits). One that has another hash is
//! set aside, so that it can be sent again. When one was put here, and who still names it, is the registry's affair.
//!
//! What nothing names takes no more than it may all together, and of it one sender's no more than a part. A body counts as such from when it
//! is put here until the names are counted again: that is when there seems to be no room left, and whenever old ones are dropped. Who sent a
//! body is known until the process ends; those that were here before count to nobody's part.

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
use stemma_core::shares::{Full, Holder, Holdings, Shares};
use stemma_wire::message::{Hash, hash_content};

/// The largest body, in bytes.
pub const MAX_BYTES: usize = 64 * 1024 * 1024;
/// What bodies that nothing names take together at most, in bytes, unless the configuration says otherwise.
pub const MOST_UNNAMED_BYTES: u64 = 1024 * 1024 * 1024;
/// How many bodies are remembered as checked.
const MOST_REMEMBERED: usize = 65_536;
/// How much of a body is read at once while it is checked.
const PIECE: usize = 64 * 1024;
/// What a file takes at least, as it is counted: one block of the disk. So there are no more of them than are remembered by their senders.
const LEAST: u64 = 4096;

/// The kept bodies.
#[derive(Debug)]
pub struct Blobs {
    directory: PathBuf,
    /// Tells writers apart who put the same body at once.
    writers: AtomicU64,
    /// Held while a body gets its name, is found to have it, or loses it: what is answered as known is there, durably, and stays.
    naming: Mutex<()>,
    /// How each body's file looked when its hash was checked last: its length and when it was written.
    checked: Mutex<BTreeMap<Hash, (u64, SystemTime)>>,
    damaged: Counter,
    most_unnamed: u64,
    room: Mutex<Room>,
    gauges: Gauges,
}

/// What the files in the directory take, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// All of them.
    pub all: u64,
    /// Those that nothing names, with what is half written or was set aside.
    pub unnamed: u64,
}

/// What the files take, and who sent them.
#[derive(Debug, Default)]
struct Room {
    taken: Taken,
    sent: BTreeMap<Hash, Sent>,
    /// What those of known senders take that nothing names.
    unnamed: Holdings,
}

/// A body whose sender is known.
#[derive(Debug)]
struct Sent {
    by: Holder,
    bytes: u64,
    stands: Stands,
}

/// How a body stands that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    /// It has no name yet.
    Arrives,
    Unnamed,
    Named,
}

impl Sent {
    /// What it takes of what nothing may name.
    const fn unnamed(&self) -> u64 {
        match self.stands {
            Stands::Arrives | Stands::Unnamed => self.bytes,
            Stands::Named => 0,
        }
    }
}

impl Room {
    /// Takes in that a body of a known sender arrives.
    fn arrives(&mut self, hash: Hash, bytes: u64, by: &Holder) {
        self.taken.all = self.taken.all.saturating_add(bytes);
        self.taken.unnamed = self.taken.unnamed.saturating_add(bytes);
        self.unnamed.change(by, 0, bytes);
        let sent = Sent { by: by.clone(), bytes, stands: Stands::Arrives };
        if let Some(before) = self.sent.insert(hash, sent) {
            self.unnamed.change(&before.by, before.unnamed(), 0);
        }
    }

    /// Takes in that it did not.
    fn failed(&mut self, hash: Hash, bytes: u64) {
        self.taken.all = self.taken.all.saturating_sub(bytes);
        self.taken.unnamed = self.taken.unnamed.saturating_sub(bytes);
        if let Some(sent) = self.sent.remove(&hash) {
            self.unnamed.change(&sent.by, sent.unnamed(), 0);
        }
    }

    /// Takes in what was counted, where these are here and those named. What arrives meanwhile may have been seen or not.
    fn counted(&mut self, taken: Taken, present: &BTreeSet<Hash>, named: &BTreeSet<Hash>) {
        self.taken = taken;
        let unnamed = &mut self.unnamed;
        self.sent.retain(|hash, sent| {
            if sent.stands == Stands::Arrives {
                return true;
            }
            let before = sent.unnamed();
            sent.stands = if named.contains(hash) { Stands::Named } else { Stands::Unnamed };
            let is_here = present.contains(hash);
            unnamed.change(&sent.by, before, if is_here { sent.unnamed() } else { 0 });
            is_here
        });
    }
}

/// Where it is shown what the files take.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// All of them.
    pub all: Gauge,
    /// Those that nothing names.
    pub unnamed: Gauge,
}

/// What became of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is kept from now on.
    New,
    /// It was here already.
    Known,
    /// It does not have this hash; nothing was kept.
    OtherHash(Hash),
    /// Those that nothing names would take more than they may, the sender's or all together; nothing was kept.
    NoRoom(Full),
}

impl Blobs {
    /// The bodies in a directory that `init` made. Until they are counted nothing counts as named.
    pub fn new(directory: &Path) -> Self {
        let blobs = Self {
            directory: directory.to_owned(),
            writers: AtomicU64::new(0),
            naming: Mutex::default(),
            checked: Mutex::default(),
            damaged: Counter::default(),
            most_unnamed: MOST_UNNAMED_BYTES,
            room: Mutex::default(),
            gauges: Gauges::default(),
        };
        if let Err(error) = blobs.count(&BTreeSet::new()) {
            log::warn!(path:% = directory.display(), error:err = error; "what file bodies take could not be counted");
        }
        blobs
    }

    /// The same where those that nothing names take so many bytes at most.
    #[must_use]
    pub fn at_most(self, most_unnamed: u64) -> Self {
        Self { most_unnamed, ..self }
    }

    /// The same, which shows there what they take.
    #[must_use]
    pub fn shown(self, gauges: Gauges) -> Self {
        let taken = self.room().taken;
        let blobs = Self { gauges, ..self };
        blobs.show(taken);
        blobs
    }

    /// The same, which counts the bodies that it found damaged there.
    #[must_use]
    pub fn counted(self, damaged: Counter) -> Self {
        Self { damaged, ..self }
    }

    /// Whether there is a body of this name; whether it is sound is seen when it is opened.
    ///
    /// # Errors
    /// What the system says.
    pub fn has(&self, hash: Hash) -> io::Result<bool> {
        self.path(hash).try_exists()
    }

    /// Keeps a body; it is durable when this returns. Blocks for the disk.
    ///
    /// # Errors
    /// What the system says; nothing stands under the name then.
    pub fn put(&self, hash: Hash, body: &[u8], by: &Holder) -> io::Result<Put> {
        let found = hash_content(body);
        if found != hash {
            return Ok(Put::OtherHash(found));
        }
        // One that is here and damaged makes room for this one.
        drop(self.open(hash)?);
        let path = self.path(hash);
        if self.touch(&path)? {
            return Ok(Put::Known);
        }
        let bytes = counted(body.len() as u64);
        if let Some(full) = self.reserve(hash, bytes, by) {
            return Ok(Put::NoRoom(full));
        }
        let writer = self.writers.fetch_add(1, Ordering::Relaxed);
        let beside = path.with_added_extension(format!("new{writer}"));
        let written = write_durably(&beside, body).and_then(|()| {
            let _alone = self.naming();
            fs::rename(&beside, &path)?;
            File::open(&self.directory)?.sync_all()
        });
        if let Err(error) = written {
            // Half a body under another name harms nobody; it is taken away as a courtesy.
            let _ = fs::remove_file(&beside);
            self.change(|room| room.failed(hash, bytes));
            return Err(error);
        }
        if let Some(sent) = self.room().sent.get_mut(&hash) {
            sent.stands = Stands::Unnamed;
        }
        Ok(Put::New)
    }

    /// Takes room among those that nothing names. Gives the part that is full where there is none.
    fn reserve(&self, hash: Hash, bytes: u64, by: &Holder) -> Option<Full> {
        self.change(|room| {
            let full = Shares::of(self.most_unnamed).full(bytes, by, &room.unnamed, room.taken.unnamed);
            if full.is_none() {
                room.arrives(hash, bytes, by);
            }
            full
        })
    }

    /// Counts what the files take, where these are named. Blocks for the disk.
    ///
    /// # Errors
    /// What the system says; what was counted before stands then.
    pub fn count(&self, named: &BTreeSet<Hash>) -> io::Result<()> {
        let (mut total, mut present) = (Taken::default(), BTreeSet::new());
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let bytes = match entry.metadata() {
                Ok(metadata) => counted(metadata.len()),
                // It was dropped, or was given its name, meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            total.all += bytes;
            let hash = hash_of(&entry);
            present.extend(hash);
            if !hash.is_some_and(|hash| named.contains(&hash)) {
                total.unnamed += bytes;
            }
        }
        self.change(|room| room.counted(total, &present, named));
        Ok(())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Room) -> T) -> T {
        let mut room = self.room();
        let answer = change(&mut room);
        self.show(room.taken);
        answer
    }

    fn show(&self, taken: Taken) {
        for (gauge, bytes) in [(&self.gauges.all, taken.all), (&self.gauges.unnamed, taken.unnamed)] {
            gauge.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a body that is here as new, since whoever sends it again is about to name it; whether it is here.
    fn touch(&self, path: &Path) -> io::Result<bool> {
        let _alone = self.naming();
        match File::open(path) {
            Ok(file) => file.set_modified(SystemTime::now()).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A body, open at its start; `None` when it is not kept, or was found damaged and set aside. Blocks for the disk.
    ///
    /// # Errors
    /// What the system says.
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

    /// Whether a file has the hash that it is named by; it is read only where it is not as it was last checked.
    fn is_sound(&self, hash: Hash, file: &mut File) -> io::Result<bool> {
        let metadata = file.metadata()?;
        let looks = (metadata.len(), metadata.modified()?);
        if self.checked.lock().unwrap_or_else(PoisonError::into_inner).get(&hash) == Some(&looks) {
            return Ok(true);
        }
        let (mut digest, mut piece) = (Sha256::new(), vec![0; PIECE]);
        loop {
            match file.read(&mut piece)? {
                0 => break,
                read => digest.update(&piece[..read]),
            }
        }
        file.rewind()?;
        let is_sound = Hash(digest.finalize().into()) == hash;
        if is_sound {
            let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
            if checked.len() >= MOST_REMEMBERED {
                checked.clear();
            }
            checked.insert(hash, looks);
        }
        Ok(is_sound)
    }

    /// Takes a damaged file's name from it. It goes with what nothing names; until then a person can look at it.
    fn set_aside(&self, hash: Hash, file: &File) -> io::Result<()> {
        let path = self.path(hash);
        let _alone = self.naming();
        // Whoever sent it again meanwhile has put another file there.
        match fs::metadata(&path) {
            Ok(present) if present.ino() == file.metadata()?.ino() => {}
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
        let aside = path.with_added_extension("damaged");
        fs::rename(&path, &aside)?;
        self.damaged.inc();
        log::error!(hash:% = hash, path:% = aside.display(); "a file body is damaged and was set aside; apply its manifest again to send it again");
        Ok(())
    }

    /// Drops the bodies that were last sent before a time and that nothing names; gives how many. Blocks for the disk.
    ///
    /// # Errors
    /// What the system says; what is left is looked at the next time.
    pub fn drop_unnamed(&self, named: &BTreeSet<Hash>, before: SystemTime) -> io::Result<usize> {
        let mut dropped = 0;
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            // What a writer left half done has no hash as its name, and goes when it is old.
            let is_named = hash_of(&entry).is_some_and(|hash| named.contains(&hash));
            if !is_named && self.drop_older(&entry.path(), before)? {
                dropped += 1;
            }
        }
        self.count(named)?;
        Ok(dropped)
    }

    /// Drops a file that was last sent before a time; whether it did. It is looked at under the lock under which it would be sent
    /// again.
    fn drop_older(&self, path: &Path, before: SystemTime) -> io::Result<bool> {
        let _alone = self.naming();
        let is_old = match fs::metadata(path) {
            Ok(metadata) => metadata.modified()? < before,
            // A writer gave it its name meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if is_old {
            fs::remove_file(path)?;
        }
        Ok(is_old)
    }

    fn naming(&self) -> MutexGuard<'_, ()> {
        self.naming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, hash: Hash) -> PathBuf {
        self.directory.join(hash.to_string())
    }
}

/// The hash of the body that a file is.
fn hash_of(entry: &fs::DirEntry) -> Option<Hash> {
    entry.file_name().to_str().and_then(|name| name.parse().ok())
}

/// As how large a file of so many bytes counts.
const fn counted(bytes: u64) -> u64 {
    if bytes < LEAST { LEAST } else { bytes }
}

fn write_durably(path: &Path, body: &[u8]) -> io::Result<()> {
    // What an earlier process left half done has the same name at most.
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.write_all(body)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use stemma_core::object::ClusterId;
    use stemma_core::shares::Part;
    use uuid::Uuid;

    use super::*;

    fn sender(name: &str, within: Option<u128>, is_fleet_admin: bool) -> Holder {
        let within = within.map(|id| ClusterId(Uuid::from_u128(id)));
        Holder { name: name.to_owned(), within, is_fleet_admin }
    }

    fn somebody() -> Holder {
        sender("somebody", None, false)
    }

    #[test]
    fn a_body_is_kept_under_its_own_hash_alone() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::new(directory.path());
        let hash = hash_content(b"body");
        assert!(blobs.open(hash).unwrap().is_none());
        assert_eq!(blobs.put(hash, b"other", &somebody()).unwrap(), Put::OtherHash(hash_content(b"other")));
        assert!(blobs.open(hash).unwrap().is_none());
        assert_eq!(blobs.put(hash, b"body", &somebody()).unwrap(), Put::New);
        assert_eq!(blobs.put(hash, b"body", &somebody()).unwrap(), Put::Known);
        let mut text = String::new();
        blobs.open(hash).unwrap().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "body");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_body_is_set_aside_and_taken_anew() {
        let directory = tempfile::tempdir().unwrap();
        let damage = |hash: Hash| {
            let mut file = OpenOptions::new().append(true).open(directory.path().join(hash.to_string())).unwrap();
            file.write_all(b"x").unwrap();
        };
        let count = Counter::default();
        let blobs = Blobs::new(directory.path()).counted(count.clone());
        let (hash, other) = (hash_content(b"body"), hash_content(b"other"));
        for (hash, body) in [(hash, &b"body"[..]), (other, b"other")] {
            blobs.put(hash, body, &somebody()).unwrap();
            assert!(blobs.open(hash).unwrap().is_some());
        }
        damage(hash);
        assert!(blobs.has(hash).unwrap());
        assert!(blobs.open(hash).unwrap().is_none(), "it is not given out");
        assert!(!blobs.has(hash).unwrap());
        assert!(directory.path().join(format!("{hash}.damaged")).exists());
        assert_eq!(blobs.put(hash, b"body", &somebody()).unwrap(), Put::New);
        assert!(blobs.open(hash).unwrap().is_some());
        damage(other);
        assert_eq!(blobs.put(other, b"other", &somebody()).unwrap(), Put::New, "what is damaged is not known");
        let mut text = String::new();
        blobs.open(other).unwrap().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), count.get()), ("other", 2));
    }

    #[test]
    fn what_nothing_names_goes_when_it_is_old() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::new(directory.path());
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

    /// So many blocks of a letter.
    fn blocks(letter: u8, count: usize) -> (Hash, Vec<u8>) {
        let body = vec![letter; count * 4096];
        (hash_content(&body), body)
    }

    #[test]
    fn x03_what_nothing_names_takes_no_more_than_it_may() {
        let directory = tempfile::tempdir().unwrap();
        let gauges = Gauges::default();
        let blobs = Blobs::new(directory.path()).at_most(16 * 4096).shown(gauges.clone());
        let put = |letter: u8, count: usize, name: &str, is_fleet_admin: bool| {
            let (hash, body) = blocks(letter, count);
            blobs.put(hash, &body, &sender(name, None, is_fleet_admin)).unwrap()
        };
        let shown = || (gauges.all.get() / 4096, gauges.unnamed.get() / 4096);
        for (letter, name) in [(b'a', "a"), (b'b', "b"), (b'c', "c")] {
            assert_eq!(put(letter, 5, name, false), Put::New);
        }
        assert_eq!(shown(), (15, 15));
        let full = Put::NoRoom(Full { part: Part::OfAll, held: 15 * 4096, most: 15 * 4096 });
        assert_eq!((put(b'd', 1, "d", false), put(b'a', 5, "d", false)), (full, Put::Known));
        assert_eq!(put(b'd', 1, "root", true), Put::New, "a sixteenth is kept for it");
        let full = Put::NoRoom(Full { part: Part::OfAll, held: 16 * 4096, most: 16 * 4096 });
        assert_eq!(put(b'e', 1, "root", true), full);
        // What is named takes no room from others.
        let named = BTreeSet::from([blocks(b'a', 5).0]);
        blobs.count(&named).unwrap();
        assert_eq!(shown(), (16, 11));
        assert_eq!(put(b'e', 4, "a", false), Put::New);
        // Of an earlier process all counts until it is counted, and to nobody's part.
        let later = Blobs::new(directory.path()).at_most(20 * 4096);
        let (hash, body) = blocks(b'f', 1);
        let full = Put::NoRoom(Full { part: Part::OfAll, held: 20 * 4096, most: 20 * 4096 });
        assert_eq!(later.put(hash, &body, &sender("a", None, true)).unwrap(), full);
        assert_eq!(later.drop_unnamed(&named, SystemTime::now() + std::time::Duration::from_hours(1)).unwrap(), 4);
        assert_eq!(later.put(hash, &body, &somebody()).unwrap(), Put::New);
    }

    /// One sender, or those whom one admin of a cluster makes, took all of it for a day.
    #[test]
    fn x03_of_what_nothing_names_one_sender_has_a_quarter_and_one_cluster_half() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::new(directory.path()).at_most(16 * 4096);
        let put = |letter: u8, by: &Holder| {
            let (hash, body) = blocks(letter, 2);
            blobs.put(hash, &body, by).unwrap()
        };
        let [one, two, three] = ["one", "two", "three"].map(|name| sender(name, Some(1), false));
        assert_eq!((put(b'a', &one), put(b'b', &one)), (Put::New, Put::New));
        let own = Put::NoRoom(Full { part: Part::OfOne, held: 4 * 4096, most: 4 * 4096 });
        assert_eq!(put(b'c', &one), own);
        assert_eq!((put(b'c', &two), put(b'd', &two)), (Put::New, Put::New));
        let of_cluster = Put::NoRoom(Full { part: Part::OfCluster, held: 8 * 4096, most: 8 * 4096 });
        assert_eq!(put(b'e', &three), of_cluster);
        assert_eq!(
            (put(b'e', &sender("four", Some(2), false)), put(b'f', &sender("root", None, true))),
            (Put::New, Put::New)
        );
        // What is named counts to nobody's part, and does again once nothing names it.
        blobs.count(&BTreeSet::from([blocks(b'a', 2).0])).unwrap();
        assert_eq!(put(b'g', &one), Put::New);
        blobs.count(&BTreeSet::new()).unwrap();
        let own = Put::NoRoom(Full { part: Part::OfOne, held: 6 * 4096, most: 4 * 4096 });
        assert_eq!(put(b'h', &one), own);
        // An empty one takes a block.
        let empty = |by: &Holder| blobs.put(hash_content(b""), b"", by).unwrap();
        assert_eq!((empty(&one), empty(&sender("five", None, false))), (own, Put::New));
    }

    #[test]
    fn what_is_answered_as_known_stays() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::new(directory.path());
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
