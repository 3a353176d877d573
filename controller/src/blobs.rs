//! Bodies of files, named by their hash, in a directory beside the store: up to 64 MiB each, so never in the store itself.
//!
//! A body is there whole or not at all, and what stands under a name has that hash: it is checked before it gets the name, and again
//! before it is given out where the file is not as it was last checked (a disk forgets; somebody edits). One that has another hash is
//! set aside, so that it can be sent again. When one was put here, and who still names it, is the registry's affair.
//!
//! What nothing names takes no more than it may all together. A body counts as such from when it is put here until the names are counted
//! again: that is when there seems to be no room left, and whenever old ones are dropped.

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
use stemma_wire::message::{Hash, hash_content};

/// The largest body, in bytes.
pub const MAX_BYTES: usize = 64 * 1024 * 1024;
/// What bodies that nothing names take together at most, in bytes, unless the configuration says otherwise.
pub const MOST_UNNAMED_BYTES: u64 = 1024 * 1024 * 1024;
/// How many bodies are remembered as checked.
const MOST_REMEMBERED: usize = 65_536;
/// How much of a body is read at once while it is checked.
const PIECE: usize = 64 * 1024;

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
    taken: Mutex<Taken>,
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
    /// Those that nothing names would take more than they may together; nothing was kept.
    NoRoom {
        /// What they take.
        taken: u64,
        /// What they may take.
        most: u64,
    },
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
            taken: Mutex::default(),
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
        let taken = *self.taken();
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
    pub fn put(&self, hash: Hash, body: &[u8]) -> io::Result<Put> {
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
        let bytes = body.len() as u64;
        if let Some(taken) = self.reserve(bytes) {
            return Ok(Put::NoRoom { taken, most: self.most_unnamed });
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
            self.change(|taken| {
                taken.all = taken.all.saturating_sub(bytes);
                taken.unnamed = taken.unnamed.saturating_sub(bytes);
            });
            return Err(error);
        }
        Ok(Put::New)
    }

    /// Takes room among those that nothing names. Gives what these take where there is none.
    fn reserve(&self, bytes: u64) -> Option<u64> {
        let mut taken = self.taken();
        if taken.unnamed.saturating_add(bytes) > self.most_unnamed {
            return Some(taken.unnamed);
        }
        *taken = Taken { all: taken.all.saturating_add(bytes), unnamed: taken.unnamed.saturating_add(bytes) };
        self.show(*taken);
        None
    }

    /// Counts what the files take, where these are named. Blocks for the disk.
    ///
    /// # Errors
    /// What the system says; what was counted before stands then.
    pub fn count(&self, named: &BTreeSet<Hash>) -> io::Result<()> {
        let mut counted = Taken::default();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let bytes = match entry.metadata() {
                Ok(metadata) => metadata.len(),
                // It was dropped, or was given its name, meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            counted.all += bytes;
            if !is_named(&entry, named) {
                counted.unnamed += bytes;
            }
        }
        self.change(|taken| *taken = counted);
        Ok(())
    }

    fn change(&self, change: impl FnOnce(&mut Taken)) {
        let mut taken = self.taken();
        change(&mut taken);
        self.show(*taken);
    }

    fn show(&self, taken: Taken) {
        for (gauge, bytes) in [(&self.gauges.all, taken.all), (&self.gauges.unnamed, taken.unnamed)] {
            gauge.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
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
            if !is_named(&entry, named) && self.drop_older(&entry.path(), before)? {
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

/// Whether a file is a body that something names. What a writer left half done has no hash as its name, and goes when it is old.
fn is_named(entry: &fs::DirEntry, named: &BTreeSet<Hash>) -> bool {
    entry.file_name().to_str().and_then(|name| name.parse().ok()).is_some_and(|hash| named.contains(&hash))
}

fn write_durably(path: &Path, body: &[u8]) -> io::Result<()> {
    // What an earlier process left half done has the same name at most.
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.write_all(body)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_kept_under_its_own_hash_alone() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::new(directory.path());
        let hash = hash_content(b"body");
        assert!(blobs.open(hash).unwrap().is_none());
        assert_eq!(blobs.put(hash, b"other").unwrap(), Put::OtherHash(hash_content(b"other")));
        assert!(blobs.open(hash).unwrap().is_none());
        assert_eq!(blobs.put(hash, b"body").unwrap(), Put::New);
        assert_eq!(blobs.put(hash, b"body").unwrap(), Put::Known);
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
            blobs.put(hash, body).unwrap();
            assert!(blobs.open(hash).unwrap().is_some());
        }
        damage(hash);
        assert!(blobs.has(hash).unwrap());
        assert!(blobs.open(hash).unwrap().is_none(), "it is not given out");
        assert!(!blobs.has(hash).unwrap());
        assert!(directory.path().join(format!("{hash}.damaged")).exists());
        assert_eq!(blobs.put(hash, b"body").unwrap(), Put::New);
        assert!(blobs.open(hash).unwrap().is_some());
        damage(other);
        assert_eq!(blobs.put(other, b"other").unwrap(), Put::New, "what is damaged is not known");
        let mut text = String::new();
        blobs.open(other).unwrap().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), count.get()), ("other", 2));
    }

    #[test]
    fn what_nothing_names_goes_when_it_is_old() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::new(directory.path());
        let [named, old, again] = ["named", "old", "again"].map(|text| {
            blobs.put(hash_content(text.as_bytes()), text.as_bytes()).unwrap();
            hash_content(text.as_bytes())
        });
        fs::write(directory.path().join("half.new0"), "half").unwrap();
        for entry in fs::read_dir(directory.path()).unwrap() {
            let long_ago = SystemTime::now() - std::time::Duration::from_hours(48);
            File::open(entry.unwrap().path()).unwrap().set_modified(long_ago).unwrap();
        }
        blobs.put(again, b"again").unwrap();
        let yesterday = SystemTime::now() - std::time::Duration::from_hours(24);
        assert_eq!(blobs.drop_unnamed(&BTreeSet::from([named]), yesterday).unwrap(), 2);
        assert!(blobs.open(named).unwrap().is_some() && blobs.open(again).unwrap().is_some());
        assert!(blobs.open(old).unwrap().is_none());
    }

    #[test]
    fn x03_what_nothing_names_takes_no_more_than_it_may() {
        let directory = tempfile::tempdir().unwrap();
        let gauges = Gauges::default();
        let blobs = Blobs::new(directory.path()).at_most(10).shown(gauges.clone());
        let put = |text: &str| blobs.put(hash_content(text.as_bytes()), text.as_bytes()).unwrap();
        let shown = || (gauges.all.get(), gauges.unnamed.get());
        assert_eq!((put("first"), put("other"), shown()), (Put::New, Put::New, (10, 10)));
        assert_eq!((put("x"), put("first")), (Put::NoRoom { taken: 10, most: 10 }, Put::Known));
        // What is named takes no room from others.
        let named = BTreeSet::from([hash_content(b"first")]);
        blobs.count(&named).unwrap();
        assert_eq!(shown(), (10, 5));
        assert_eq!((put("third"), put("x")), (Put::New, Put::NoRoom { taken: 10, most: 10 }));
        // Of an earlier process all counts until it is counted.
        let later = Blobs::new(directory.path()).at_most(15);
        assert_eq!(later.put(hash_content(b"x"), b"x").unwrap(), Put::NoRoom { taken: 15, most: 15 });
        assert_eq!(later.drop_unnamed(&named, SystemTime::now() + std::time::Duration::from_hours(1)).unwrap(), 2);
        assert_eq!(later.put(hash_content(b"x"), b"x").unwrap(), Put::New);
    }

    #[test]
    fn what_is_answered_as_known_stays() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::new(directory.path());
        let (hash, body) = (hash_content(b"body"), b"body");
        let long_ago = SystemTime::now() - std::time::Duration::from_hours(48);
        let yesterday = SystemTime::now() - std::time::Duration::from_hours(24);
        for round in 0..100 {
            blobs.put(hash, body).unwrap();
            File::open(blobs.path(hash)).unwrap().set_modified(long_ago).unwrap();
            let start = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                let sweep = scope.spawn(|| {
                    start.wait();
                    blobs.drop_unnamed(&BTreeSet::new(), yesterday)
                });
                start.wait();
                blobs.put(hash, body).unwrap();
                sweep.join().unwrap().unwrap();
            });
            assert!(blobs.open(hash).unwrap().is_some(), "round {round}: it was just sent again");
        }
    }
}
