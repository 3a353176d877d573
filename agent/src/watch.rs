//! Watches files and directories by kernel events, so that the agent does not poll them while nothing changes.
//!
//! A watch is on directories, not on file names: a file is replaced by a rename, and a watch on the file would follow
//! the old one. If a directory is removed or renamed and then created again (as when a package is reinstalled), its
//! watch no longer sees anything. So the directories above are watched too, for that name alone, and the watch is set
//! again when one of them was replaced.
//!
//! The kernel sends no event for a mount over a directory or its removal, nor for what another host writes to a network
//! file system. A caller that has to notice these compares with the last snapshot from time to time
//! ([`FileWatch::is_outdated`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use log::warn;
use notify::event::ModifyKind;
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

/// How much is watched at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchScope {
    /// A directory and all of its entries.
    All,
    /// One file, whether it exists or not.
    File,
}

/// The watched paths on this system, each with its scope.
pub type WatchedPaths = BTreeMap<PathBuf, WatchScope>;

/// A watch of files and directories. Dropping the value ends the watch.
pub struct FileWatch {
    root: PathBuf,
    shared: Arc<WatchState>,
    watcher: Option<RecommendedWatcher>,
    /// The snapshot that [`Self::renew`] took last.
    snapshot: WatchSnapshot,
}

/// The identity of each watched path, and of the entries of each [`WatchScope::All`] directory. Paths that do not exist
/// are absent.
type WatchSnapshot = BTreeMap<PathBuf, FileIdentity>;

/// Identifies a file or directory and its last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileIdentity {
    /// Device and inode number.
    file: (u64, u64),
    /// Time of the last change. `None` for a directory above a watched path, because other changes in it do not matter.
    changed_at: Option<(i64, i64)>,
}

/// State that the watcher's thread and the agent share.
#[derive(Default)]
struct WatchState {
    change_notify: Notify,
    /// True if a directory was replaced since the watch was set.
    is_stale: AtomicBool,
    watch_list: Mutex<WatchList>,
}

/// What is watched now: the paths that the caller named, and the directories that need a watch for it.
#[derive(Default)]
struct WatchList {
    paths: WatchedPaths,
    /// The directories that contain the watched paths, and all directories above them up to the agent's root.
    dirs: BTreeSet<PathBuf>,
}

impl FileWatch {
    /// Watches paths at or below `root`, even if they do not exist yet. If watching fails, changes are noticed only at
    /// the next scheduled check.
    pub fn new(root: PathBuf, parts: WatchedPaths) -> Self {
        let shared = Arc::new(WatchState::default());
        let handler = shared.clone();
        let watcher = notify::recommended_watcher(move |event| handler.on_event(event))
            .inspect_err(|error| warn!(path:% = root.display(), error:% = error; "nothing is watched"))
            .ok();
        let mut watch = Self { root, shared, watcher, snapshot: WatchSnapshot::new() };
        watch.set(parts);
        watch
    }

    /// Replaces the watched paths, and sets and removes watches of directories accordingly.
    pub fn set(&mut self, parts: WatchedPaths) {
        let dirs: BTreeSet<_> = parts.iter().flat_map(|(path, part)| dir_and_parents(&self.root, path, *part)).collect();
        let before = std::mem::replace(&mut *self.shared.watched(), WatchList { paths: parts, dirs: dirs.clone() });
        if let Some(watcher) = &mut self.watcher {
            // The kernel has already removed the watch of a deleted directory.
            before.dirs.difference(&dirs).for_each(|dir| drop(watcher.unwatch(dir)));
        }
        if before.dirs != dirs {
            self.shared.is_stale.store(true, Ordering::Release);
        }
        self.renew();
    }

    /// Waits until a watched path has changed. If the future is dropped before that, the change is reported to the next
    /// call.
    pub async fn changed(&self) {
        self.shared.change_notify.notified().await;
    }

    /// Returns whether the watched paths differ from the last snapshot, whether or not there was an event.
    pub fn is_outdated(&self) -> bool {
        self.take_snapshot() != self.snapshot
    }

    /// Takes a new snapshot, and sets the watch again for directories that were replaced. Call this before reading the
    /// watched files, so that a later change causes an event.
    pub fn renew(&mut self) {
        let is_stale = self.shared.is_stale.swap(false, Ordering::AcqRel);
        // The snapshot is taken before the watch is set. If a directory is replaced in between, the next snapshot
        // differs.
        let now = self.take_snapshot();
        let before = std::mem::replace(&mut self.snapshot, now);
        let Some(watcher) = &mut self.watcher else { return };
        let dirs = self.shared.watched().dirs.clone();
        let file = |seen: &WatchSnapshot, dir: &PathBuf| seen.get(dir).map(|identity| identity.file);
        // From the top down: if a directory is created below in the meantime, the watch of its parent reports it.
        for dir in dirs.iter().filter(|dir| is_stale || file(&before, dir) != file(&self.snapshot, dir)) {
            let _ = watcher.unwatch(dir);
            match watcher.watch(dir, RecursiveMode::NonRecursive) {
                Ok(()) => {}
                // The watch of the parent reports when the directory is created.
                Err(_) if !dir.exists() => {}
                Err(error) => warn!(path:% = dir.display(), error:% = error; "a directory is not watched"),
            }
        }
    }

    /// Returns the identity of each directory in the watch list, and of the entries of each fully watched directory.
    fn take_snapshot(&self) -> WatchSnapshot {
        let (dirs, whole) = {
            let watched = self.shared.watched();
            let whole = watched.paths.iter().filter(|(_, part)| **part == WatchScope::All);
            (watched.dirs.clone(), whole.map(|(path, _)| path.clone()).collect::<Vec<_>>())
        };
        let above = dirs.into_iter().filter_map(|dir| {
            let identity = FileIdentity { changed_at: None, ..FileIdentity::from_metadata(&fs::metadata(&dir).ok()?) };
            Some((dir, identity))
        });
        let mut snapshot: WatchSnapshot = above.collect();
        let entries = whole.iter().flat_map(fs::read_dir).flatten().flatten().map(|entry| entry.path());
        snapshot.extend(whole.iter().cloned().chain(entries).filter_map(|path| {
            let identity = FileIdentity::from_metadata(&fs::symlink_metadata(&path).ok()?);
            Some((path, identity))
        }));
        snapshot
    }
}

impl FileIdentity {
    fn from_metadata(metadata: &Metadata) -> Self {
        Self { file: (metadata.dev(), metadata.ino()), changed_at: Some((metadata.ctime(), metadata.ctime_nsec())) }
    }
}

/// Returns the directories to watch for a path, up to the root: for a file, the directory that contains it and those
/// above; for a directory with all entries, also the directory itself.
fn dir_and_parents<'a>(root: &'a Path, path: &'a Path, part: WatchScope) -> impl Iterator<Item = PathBuf> + 'a {
    let skipped = usize::from(part == WatchScope::File);
    path.ancestors().skip(skipped).take_while(move |above| above.starts_with(root)).map(PathBuf::from)
}

impl WatchState {
    fn watched(&self) -> MutexGuard<'_, WatchList> {
        self.watch_list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles an event of the kernel. Wakes [`FileWatch::changed`] if a watched path, or a directory above one, may
    /// have changed. If a directory was replaced or events were lost, also marks the watch as stale.
    fn on_event(&self, event: notify::Result<Event>) {
        // If events were lost, anything may have changed.
        let event = event.unwrap_or_else(|_| Event::new(EventKind::Other));
        let is_lost = event.kind == EventKind::Other || event.need_rescan();
        if event.kind.is_access() && !is_lost {
            return;
        }
        let watched = self.watched();
        let is_replaced = !event.kind.is_modify() || matches!(event.kind, EventKind::Modify(ModifyKind::Name(_)));
        let is_above = is_lost || (is_replaced && event.paths.iter().any(|path| watched.dirs.contains(path)));
        let is_part = |path: &PathBuf| {
            let is_whole = |dir: &Path| watched.paths.get(dir) == Some(&WatchScope::All);
            watched.paths.contains_key(path) || path.parent().is_some_and(is_whole)
        };
        // A user who can write a directory above a fully watched directory can replace the watched one. So a change of
        // the permissions of a directory above can change whether the watched files are trusted.
        let is_parent =
            |path: &PathBuf| watched.paths.iter().any(|(whole, part)| *part == WatchScope::All && whole.starts_with(path));
        let is_metadata_change = matches!(event.kind, EventKind::Modify(ModifyKind::Metadata(_)));
        let may_change_trust = is_metadata_change && event.paths.iter().any(is_parent);
        if is_above {
            self.is_stale.store(true, Ordering::Release);
        }
        if is_above || may_change_trust || event.paths.iter().any(is_part) {
            self.change_notify.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use notify::event::MetadataKind;

    use super::*;

    /// Maximum time that the kernel may need to report a change on a busy machine.
    const PATIENCE: Duration = Duration::from_mins(2);

    /// Renews the watch after each event until there are no more events. Returns whether there was one.
    async fn drain_events(watch: &mut FileWatch) -> bool {
        let mut has_events = false;
        let wait = |told: bool| if told { Duration::from_millis(200) } else { PATIENCE };
        while tokio::time::timeout(wait(has_events), watch.changed()).await.is_ok() {
            has_events = true;
            watch.renew();
        }
        has_events
    }

    #[tokio::test(flavor = "current_thread")]
    async fn watch_follows_directory_when_recreated() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let dir = root.join("etc/stemma/labels.d");
        let mut watch = FileWatch::new(root.clone(), [(dir.clone(), WatchScope::All)].into());
        for round in 0..3 {
            fs::create_dir_all(&dir).unwrap();
            assert!(drain_events(&mut watch).await, "round {round}: it is there");
            fs::write(dir.join("10-a"), "a=1\n").unwrap();
            assert!(drain_events(&mut watch).await, "round {round}: a file");
            fs::write(dir.join("10-a"), "a=2\n").unwrap();
            assert!(drain_events(&mut watch).await, "round {round}: an edit");
            if round == 0 {
                fs::remove_dir_all(&dir).unwrap();
            } else {
                fs::rename(root.join("etc/stemma"), root.join(format!("old-{round}"))).unwrap();
            }
            assert!(drain_events(&mut watch).await, "round {round}: it is gone");
        }
    }

    /// These permissions decide whether hooks run and labels are read. Before, a finding appeared or disappeared up to
    /// an hour late.
    #[tokio::test(flavor = "current_thread")]
    async fn y08_watch_reports_mode_change_of_parent_directory() {
        use std::os::unix::fs::PermissionsExt as _;

        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let dir = root.join("etc/stemma/labels.d");
        fs::create_dir_all(&dir).unwrap();
        let mut watch = FileWatch::new(root.clone(), [(dir, WatchScope::All)].into());
        for above in ["etc", "etc/stemma"] {
            fs::set_permissions(root.join(above), fs::Permissions::from_mode(0o775)).unwrap();
            assert!(drain_events(&mut watch).await, "{above}");
        }
        let map = root.join("etc/map");
        fs::write(&map, "").unwrap();
        let of_file = FileWatch::new(root.clone(), [(map, WatchScope::File)].into());
        let rights = EventKind::Modify(ModifyKind::Metadata(MetadataKind::Permissions));
        of_file.shared.on_event(Ok(Event::new(rights).add_path(root.join("etc"))));
        tokio::select! {
            biased;
            () = of_file.changed() => panic!("it is told of the rights above a file"),
            () = std::future::ready(()) => {}
        }
    }

    /// A mount has the same effect on a path as a rename, but causes no event. This test reads no events, and needs no
    /// root.
    #[test]
    fn y08_is_outdated_detects_change_without_event() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let (above, dir) = (root.join("etc/stemma"), root.join("etc/stemma/labels.d"));
        let again = |dir: &Path| {
            let other = root.join("other");
            fs::create_dir(&other).unwrap();
            if dir.exists() {
                fs::rename(dir, root.join("covered")).unwrap();
            }
            fs::rename(&other, dir).unwrap();
            let _ = fs::remove_dir_all(root.join("covered"));
        };
        fs::create_dir_all(&above).unwrap();
        let mut watch = FileWatch::new(root.clone(), [(dir.clone(), WatchScope::All)].into());
        let changes: [(&str, &dyn Fn(), bool); 10] = [
            ("it comes", &|| again(&dir), true),
            ("nothing", &|| (), false),
            ("it is another one", &|| again(&dir), true),
            ("a file comes", &|| fs::write(dir.join("10-a"), "a=1\n").unwrap(), true),
            ("a file is another one", &|| fs::rename(dir.join("10-a"), dir.join("20-a")).unwrap(), true),
            ("a neighbour comes", &|| fs::write(above.join("neighbour"), "").unwrap(), false),
            ("the one above is another one, and empty", &|| again(&above), true),
            ("it comes again", &|| again(&dir), true),
            ("it is gone", &|| fs::remove_dir(&dir).unwrap(), true),
            ("nothing is there", &|| (), false),
        ];
        for (what, change, is_seen) in changes {
            change();
            assert_eq!(watch.is_outdated(), is_seen, "{what}");
            watch.renew();
            assert!(!watch.is_outdated(), "{what}: it was looked at");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn watch_ignores_neighbours_of_single_file() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let mut watch = FileWatch::new(root.clone(), [(root.join("map"), WatchScope::File)].into());
        fs::write(root.join("neighbour"), "x").unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(200), watch.changed()).await.is_err());
        fs::write(root.join("new"), "x").unwrap();
        fs::rename(root.join("new"), root.join("map")).unwrap();
        assert!(drain_events(&mut watch).await);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn watch_reports_foreign_change_but_not_of_neighbour() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let (ours, theirs) = (path.join("ours"), path.join("theirs"));
        fs::write(&ours, "").unwrap();
        let mut managed = FileWatch::new(path.clone(), WatchedPaths::new());
        managed.set([(ours.clone(), WatchScope::File)].into());
        fs::write(&theirs, "x").unwrap();
        let told = tokio::time::timeout(Duration::from_millis(200), managed.changed()).await;
        assert!(told.is_err(), "a neighbour");
        fs::write(path.join("new"), "y").unwrap();
        fs::rename(path.join("new"), &ours).unwrap();
        tokio::time::timeout(PATIENCE, managed.changed()).await.expect("ours was replaced");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn renew_watches_directory_again_when_replaced() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().canonicalize().unwrap().join("conf");
        let ours = dir.join("ours");
        let mut managed = FileWatch::new(dir.parent().unwrap().to_owned(), WatchedPaths::new());
        let make = || {
            fs::create_dir(&dir).unwrap();
            fs::write(&ours, "").unwrap();
        };
        make();
        managed.set([(ours.clone(), WatchScope::File)].into());
        fs::remove_dir_all(&dir).unwrap();
        let told = async |managed: &FileWatch| tokio::time::timeout(PATIENCE, managed.changed()).await.is_ok();
        assert!(told(&managed).await, "it is gone");
        make();
        managed.set([(ours.clone(), WatchScope::File)].into());
        // Like the agent, which renews after each change. The first event may have been for the file alone.
        while tokio::time::timeout(Duration::from_millis(100), managed.changed()).await.is_ok() {
            managed.renew();
        }
        fs::write(&ours, "x").unwrap();
        assert!(told(&managed).await, "an edit in the new one");
    }
}
