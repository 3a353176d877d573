//! Watches files and directories by kernel events, so that the agent does not poll them while nothing changes.
//!
//! The agent watches directories, not files. A file is usually replaced by a rename, and a kernel watch on the file
//! would continue to observe the old file. If a directory is removed or renamed and then created again (for example
//! because a package is reinstalled), its watch gets no events any more. So the directories above are watched too, and
//! the watches are set again when one of the directories was replaced.
//!
//! The kernel sends no event for a mount over a directory, for an unmount, or for changes that another host writes to a
//! network file system. A caller that has to notice these changes compares the files with the last snapshot from time
//! to time ([`FileWatch::is_outdated`]).

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

/// The extent of a watch: a directory with its entries, or one file. A later scope includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchScope {
    /// One file, whether it exists or not.
    File,
    /// As [`Self::All`], but only by kernel events: neither the entries nor the rights of the directories above are compared.
    /// So the watch of a large directory costs nothing while no event arrives.
    Entries,
    /// A directory and all of its entries, but not the entries of its subdirectories.
    All,
}

/// The watched paths on this system, each with its scope.
pub type WatchedPaths = BTreeMap<PathBuf, WatchScope>;

/// Returns the watched paths. A path with several scopes, such as a directory that two tasks name, has the widest.
pub fn merge_scopes(paths: impl IntoIterator<Item = (PathBuf, WatchScope)>) -> WatchedPaths {
    let mut merged = WatchedPaths::new();
    for (path, scope) in paths {
        let widest = merged.entry(path).or_insert(scope);
        *widest = scope.max(*widest);
    }
    merged
}

/// A watch of files and directories. Dropping the value ends the watch.
pub struct FileWatch {
    root: PathBuf,
    shared: Arc<WatchState>,
    watcher: Option<RecommendedWatcher>,
    /// The snapshot of the last [`Self::renew`].
    snapshot: WatchSnapshot,
}

/// The identities of the directories of the watch list, of each [`WatchScope::All`] directory and of its entries, at
/// one moment. A file that is watched alone ([`WatchScope::File`]), an entry of a [`WatchScope::Entries`] directory, and a
/// path that does not exist are absent.
type WatchSnapshot = BTreeMap<PathBuf, FileIdentity>;

/// Identifies a file or directory and its last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileIdentity {
    /// Device and inode number.
    file_id: (u64, u64),
    /// Time of the last change (ctime) in seconds and nanoseconds. `None` for a directory above a watched path, because
    /// only its replacement matters, not other changes of its entries.
    changed_at: Option<(i64, i64)>,
}

/// The state that the watcher's thread and the agent's thread share.
#[derive(Default)]
struct WatchState {
    /// Notified when a watched path may have changed.
    change_notify: Notify,
    /// True if the kernel watches must be set again, because a directory may have been replaced or the list of
    /// directories changed.
    is_stale: AtomicBool,
    watch_list: Mutex<WatchList>,
}

/// The paths that the caller wants to watch, and the directories that need a kernel watch for this.
#[derive(Default)]
struct WatchList {
    /// The paths that the caller passed, with their scopes.
    paths: WatchedPaths,
    /// All directories above the watched paths, up to the agent's root, and each directory that is watched with its entries.
    dirs: BTreeSet<PathBuf>,
}

impl FileWatch {
    /// Watches paths at or below `root`, even if they do not exist yet. If the kernel provides no watch, a warning is
    /// logged, and the caller notices changes only at its next scheduled check.
    pub fn new(root: PathBuf, paths: WatchedPaths) -> Self {
        let shared = Arc::new(WatchState::default());
        let handler = shared.clone();
        let watcher = notify::recommended_watcher(move |event| handler.on_event(event))
            .inspect_err(|error| warn!(path:% = root.display(), error:% = error; "nothing is watched"))
            .ok();
        let mut watch = Self { root, shared, watcher, snapshot: WatchSnapshot::new() };
        watch.set(paths);
        watch
    }

    /// Replaces the list of watched paths. Removes the kernel watches of directories that are not needed any more, and
    /// sets those of new directories.
    pub fn set(&mut self, paths: WatchedPaths) {
        let dirs: BTreeSet<_> = paths.iter().flat_map(|(path, scope)| dir_and_parents(&self.root, path, *scope)).collect();
        let previous = std::mem::replace(&mut *self.shared.lock_watch_list(), WatchList { paths, dirs: dirs.clone() });
        if let Some(watcher) = &mut self.watcher {
            // Errors are ignored, because the kernel has already removed the watch of a deleted directory.
            previous.dirs.difference(&dirs).for_each(|dir| drop(watcher.unwatch(dir)));
        }
        // A stale watch makes `renew` set the kernel watches of all directories, also of the new ones.
        if previous.dirs != dirs {
            self.shared.is_stale.store(true, Ordering::Release);
        }
        self.renew();
    }

    /// Waits until a watched path may have changed. A change between two calls is not lost: the next call then returns
    /// at once.
    pub async fn changed(&self) {
        self.shared.change_notify.notified().await;
    }

    /// Returns whether a new snapshot differs from the last one. This also finds changes for which the kernel sends no
    /// event, but no change of a path with another scope than [`WatchScope::All`].
    pub fn is_outdated(&self) -> bool {
        self.take_snapshot() != self.snapshot
    }

    /// Records a new snapshot, and sets the kernel watch again for directories that were replaced. Call this before
    /// reading the watched files, so that a change during the read causes an event.
    pub fn renew(&mut self) {
        let is_stale = self.shared.is_stale.swap(false, Ordering::AcqRel);
        // The snapshot is recorded before the watches are set. If a directory is replaced in between, the next snapshot
        // differs.
        let new_snapshot = self.take_snapshot();
        let old_snapshot = std::mem::replace(&mut self.snapshot, new_snapshot);
        let Some(watcher) = &mut self.watcher else { return };
        let dirs = self.shared.lock_watch_list().dirs.clone();
        let file_id_in = |snapshot: &WatchSnapshot, dir: &PathBuf| snapshot.get(dir).map(|identity| identity.file_id);
        // Linux limits the watches of a user. Many directories may then fail in the same way. One message is enough.
        let mut failures = Vec::new();
        // The directories are sorted, so a parent is watched before its subdirectories. If a subdirectory is created
        // during this loop, the watch of its parent reports it.
        for dir in dirs.iter().filter(|dir| is_stale || file_id_in(&old_snapshot, dir) != file_id_in(&self.snapshot, dir)) {
            let _ = watcher.unwatch(dir);
            match watcher.watch(dir, RecursiveMode::NonRecursive) {
                Ok(()) => {}
                // The directory does not exist. The watch of its parent reports its creation.
                Err(_) if !dir.exists() => {}
                Err(error) => failures.push((dir, error)),
            }
        }
        if let Some((dir, error)) = failures.first() {
            warn!(path:% = dir.display(), count = failures.len(), error:% = error; "directories are not watched; changes in them are found at the next scheduled check");
        }
    }

    fn take_snapshot(&self) -> WatchSnapshot {
        let (dirs, full_dirs) = {
            let watch_list = self.shared.lock_watch_list();
            let full_dirs = watch_list.paths.iter().filter(|(_, scope)| **scope == WatchScope::All);
            (watch_list.dirs.clone(), full_dirs.map(|(path, _)| path.clone()).collect::<Vec<_>>())
        };
        // A directory above a watched path that is a link has the identity of its target. A fully watched directory or
        // an entry that is a link has its own identity.
        let dir_identities = dirs.into_iter().filter_map(|dir| {
            let identity = FileIdentity { changed_at: None, ..FileIdentity::from_metadata(&fs::metadata(&dir).ok()?) };
            Some((dir, identity))
        });
        let mut snapshot: WatchSnapshot = dir_identities.collect();
        let entries = full_dirs.iter().flat_map(fs::read_dir).flatten().flatten().map(|entry| entry.path());
        snapshot.extend(full_dirs.iter().cloned().chain(entries).filter_map(|path| {
            let identity = FileIdentity::from_metadata(&fs::symlink_metadata(&path).ok()?);
            Some((path, identity))
        }));
        snapshot
    }
}

impl FileIdentity {
    /// Returns the identity of the file or directory with this metadata, including the time of its last change.
    fn from_metadata(metadata: &Metadata) -> Self {
        Self { file_id: (metadata.dev(), metadata.ino()), changed_at: Some((metadata.ctime(), metadata.ctime_nsec())) }
    }
}

/// Returns the directories that need a kernel watch for a path: all directories above the path, up to `root`. A directory
/// that is watched with its entries is included.
fn dir_and_parents<'a>(root: &'a Path, path: &'a Path, scope: WatchScope) -> impl Iterator<Item = PathBuf> + 'a {
    let skipped_count = usize::from(scope == WatchScope::File);
    path.ancestors().skip(skipped_count).take_while(move |ancestor| ancestor.starts_with(root)).map(PathBuf::from)
}

impl WatchState {
    fn lock_watch_list(&self) -> MutexGuard<'_, WatchList> {
        self.watch_list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles an event of the kernel. Wakes [`FileWatch::changed`] if a watched path may have changed, if a directory
    /// above a watched path was replaced, or if the permissions of a directory above a fully watched directory changed.
    /// If a directory was replaced or the kernel has lost events, also marks the kernel watches as stale.
    fn on_event(&self, event: notify::Result<Event>) {
        // An error means that events were lost, so anything may have changed.
        let event = event.unwrap_or_else(|_| Event::new(EventKind::Other));
        let has_lost_events = event.kind == EventKind::Other || event.need_rescan();
        if event.kind.is_access() && !has_lost_events {
            return;
        }
        let list = self.lock_watch_list();
        let is_replaced = !event.kind.is_modify() || matches!(event.kind, EventKind::Modify(ModifyKind::Name(_)));
        let may_have_replaced_dir = has_lost_events || (is_replaced && event.paths.iter().any(|path| list.dirs.contains(path)));
        let is_watched = |path: &PathBuf| {
            let has_watched_entries = |dir: &Path| list.paths.get(dir).is_some_and(|scope| *scope != WatchScope::File);
            list.paths.contains_key(path) || path.parent().is_some_and(has_watched_entries)
        };
        // The agent ignores the files of a fully watched directory if other users can write a directory above it. So a
        // change of the permissions of a directory above must be reported too.
        let is_above_full_dir =
            |path: &PathBuf| list.paths.iter().any(|(full_dir, scope)| *scope == WatchScope::All && full_dir.starts_with(path));
        let is_metadata_change = matches!(event.kind, EventKind::Modify(ModifyKind::Metadata(_)));
        let may_change_trust = is_metadata_change && event.paths.iter().any(is_above_full_dir);
        if may_have_replaced_dir {
            self.is_stale.store(true, Ordering::Release);
        }
        if may_have_replaced_dir || may_change_trust || event.paths.iter().any(is_watched) {
            self.change_notify.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use notify::event::MetadataKind;

    use super::*;

    /// Maximum time that a test waits for the kernel to report a change. It is long, because the machine may be busy.
    const MAX_EVENT_DELAY: Duration = Duration::from_mins(2);

    /// Renews the watch after each event until there are no more events. Returns whether there was an event.
    async fn drain_events(watch: &mut FileWatch) -> bool {
        let mut has_events = false;
        let wait = |has_events: bool| if has_events { Duration::from_millis(200) } else { MAX_EVENT_DELAY };
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
            assert!(drain_events(&mut watch).await, "round {round}: the directory was created");
            fs::write(dir.join("10-a"), "a=1\n").unwrap();
            assert!(drain_events(&mut watch).await, "round {round}: a file was created");
            fs::write(dir.join("10-a"), "a=2\n").unwrap();
            assert!(drain_events(&mut watch).await, "round {round}: the file was edited");
            // In the first round the directory is deleted. In the others its parent is moved away.
            if round == 0 {
                fs::remove_dir_all(&dir).unwrap();
            } else {
                fs::rename(root.join("etc/stemma"), root.join(format!("old-{round}"))).unwrap();
            }
            assert!(drain_events(&mut watch).await, "round {round}: the directory was removed or renamed");
        }
    }

    /// A task of type `directory` and one of type `sync` can name one directory, in any order.
    #[test]
    fn path_with_several_scopes_has_widest() {
        use WatchScope::{All, Entries, File};
        for (scopes, expected) in [(&[File, Entries][..], Entries), (&[Entries, File], Entries), (&[File, All, Entries], All)] {
            let merged = merge_scopes(scopes.iter().map(|scope| ("/srv".into(), *scope)));
            assert_eq!(merged, WatchedPaths::from([("/srv".into(), expected)]));
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn watch_of_entries_reports_new_file_and_no_deeper_one() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let dir = root.join("tree");
        fs::create_dir_all(dir.join("sub")).unwrap();
        let mut watch = FileWatch::new(root.clone(), [(dir.clone(), WatchScope::Entries)].into());
        fs::write(dir.join("sub/deeper"), "").unwrap();
        fs::write(dir.join("new"), "").unwrap();
        assert!(drain_events(&mut watch).await, "a file was created");
        fs::write(dir.join("sub/deeper"), "x").unwrap();
        let is_reported = tokio::time::timeout(Duration::from_millis(200), watch.changed()).await.is_ok();
        assert!(!is_reported, "the directory below is not watched");
        fs::write(dir.join("new"), "x").unwrap();
        assert!(drain_events(&mut watch).await, "the file was edited");
    }

    /// Regression test: a change of the permissions of a directory above `labels.d` was noticed up to an hour late.
    /// These permissions determine whether hooks run and labels are read.
    #[tokio::test(flavor = "current_thread")]
    async fn y08_watch_reports_mode_change_of_parent_directory() {
        use std::os::unix::fs::PermissionsExt as _;

        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let dir = root.join("etc/stemma/labels.d");
        fs::create_dir_all(&dir).unwrap();
        let mut watch = FileWatch::new(root.clone(), [(dir, WatchScope::All)].into());
        for parent_dir in ["etc", "etc/stemma"] {
            fs::set_permissions(root.join(parent_dir), fs::Permissions::from_mode(0o775)).unwrap();
            assert!(drain_events(&mut watch).await, "{parent_dir}");
        }
        // For a single file, the permissions of the directories above do not matter.
        let map = root.join("etc/map");
        fs::write(&map, "").unwrap();
        let file_watch = FileWatch::new(root.clone(), [(map, WatchScope::File)].into());
        let permission_change = EventKind::Modify(ModifyKind::Metadata(MetadataKind::Permissions));
        file_watch.shared.on_event(Ok(Event::new(permission_change).add_path(root.join("etc"))));
        tokio::select! {
            biased;
            () = file_watch.changed() => panic!("a change of permissions above a single file was reported"),
            () = std::future::ready(()) => {}
        }
    }

    /// A mount has the same effect on a path as a rename, but causes no event. This test renames directories and
    /// ignores the events, so that it needs no root rights.
    #[test]
    fn y08_is_outdated_detects_change_without_event() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let (parent_dir, dir) = (root.join("etc/stemma"), root.join("etc/stemma/labels.d"));
        // Puts an empty directory in the place of `dir`, or creates it.
        let replace_dir = |dir: &Path| {
            let new_dir = root.join("other");
            fs::create_dir(&new_dir).unwrap();
            if dir.exists() {
                fs::rename(dir, root.join("covered")).unwrap();
            }
            fs::rename(&new_dir, dir).unwrap();
            let _ = fs::remove_dir_all(root.join("covered"));
        };
        fs::create_dir_all(&parent_dir).unwrap();
        let mut watch = FileWatch::new(root.clone(), [(dir.clone(), WatchScope::All)].into());
        let changes: [(&str, &dyn Fn(), bool); 10] = [
            ("the directory was created", &|| replace_dir(&dir), true),
            ("no change", &|| (), false),
            ("the directory was replaced", &|| replace_dir(&dir), true),
            ("a file was created", &|| fs::write(dir.join("10-a"), "a=1\n").unwrap(), true),
            ("a file was renamed", &|| fs::rename(dir.join("10-a"), dir.join("20-a")).unwrap(), true),
            ("a file next to the directory was created", &|| fs::write(parent_dir.join("neighbour"), "").unwrap(), false),
            ("the parent directory was replaced by an empty one", &|| replace_dir(&parent_dir), true),
            ("the directory was created again", &|| replace_dir(&dir), true),
            ("the directory was removed", &|| fs::remove_dir(&dir).unwrap(), true),
            ("no change while the directory does not exist", &|| (), false),
        ];
        for (description, change, is_outdated) in changes {
            change();
            assert_eq!(watch.is_outdated(), is_outdated, "{description}");
            watch.renew();
            assert!(!watch.is_outdated(), "{description}: not outdated after `renew`");
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
    async fn set_watches_new_file_but_not_neighbour() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let (watched_file, neighbour) = (path.join("ours"), path.join("theirs"));
        fs::write(&watched_file, "").unwrap();
        let mut watch = FileWatch::new(path.clone(), WatchedPaths::new());
        watch.set([(watched_file.clone(), WatchScope::File)].into());
        fs::write(&neighbour, "x").unwrap();
        let result = tokio::time::timeout(Duration::from_millis(200), watch.changed()).await;
        assert!(result.is_err(), "a change of a neighbour is not reported");
        fs::write(path.join("new"), "y").unwrap();
        fs::rename(path.join("new"), &watched_file).unwrap();
        tokio::time::timeout(MAX_EVENT_DELAY, watch.changed()).await.expect("the replacement of the watched file is reported");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn renew_watches_directory_again_when_replaced() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().canonicalize().unwrap().join("conf");
        let watched_file = dir.join("ours");
        let mut watch = FileWatch::new(dir.parent().unwrap().to_owned(), WatchedPaths::new());
        let create_dir_and_file = || {
            fs::create_dir(&dir).unwrap();
            fs::write(&watched_file, "").unwrap();
        };
        create_dir_and_file();
        watch.set([(watched_file.clone(), WatchScope::File)].into());
        fs::remove_dir_all(&dir).unwrap();
        let is_change_reported = async |watch: &FileWatch| tokio::time::timeout(MAX_EVENT_DELAY, watch.changed()).await.is_ok();
        assert!(is_change_reported(&watch).await, "the directory was removed");
        create_dir_and_file();
        watch.set([(watched_file.clone(), WatchScope::File)].into());
        // The agent renews its watch after each change too. One renewal may not be enough, because the first event may
        // be about the file and not about the directory.
        while tokio::time::timeout(Duration::from_millis(100), watch.changed()).await.is_ok() {
            watch.renew();
        }
        fs::write(&watched_file, "x").unwrap();
        assert!(is_change_reported(&watch).await, "an edit in the new directory");
    }
}
