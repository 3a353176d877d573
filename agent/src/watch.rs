//! Told by the kernel when files or directories change, so that nothing is looked at while nothing changes.
//!
//! A watch is of directories and not of names: a file is replaced by a rename, and a watch of it would follow the old one. A
//! directory that is removed, or moved away, and made again (as a package does that is installed again) would be seen no
//! more. So the directories above are watched too, for that name alone, and the watch is laid again when one of them was
//! replaced.
//!
//! The kernel tells nothing of a mount over a directory or away from it, nor of what another host writes into one of a network. Whoever wants
//! to see that asks now and then whether something else is there than at the last look ([`Watch::is_outdated`]).

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

/// What is watched at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A directory, whatever it holds.
    All,
    /// One file.
    File,
}

/// What is watched, by its path on this system.
pub type Parts = BTreeMap<PathBuf, Part>;

/// Watches while it lives.
pub struct Watch {
    root: PathBuf,
    shared: Arc<Shared>,
    watcher: Option<RecommendedWatcher>,
    /// What was there at the last look.
    seen: Seen,
}

/// What stands at the paths that are watched, and in the directories of [`Part::All`]. What is not there is left out.
type Seen = BTreeMap<PathBuf, Identity>;

/// Which file or directory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    /// Its device and its number there.
    file: (u64, u64),
    /// When it was changed last. `None` for a directory above those that are watched whole: what else changes in it does not matter.
    changed: Option<(i64, i64)>,
}

/// What the watcher's thread reads and writes.
#[derive(Default)]
struct Shared {
    changed: Notify,
    /// Whether a directory was replaced since the watch was laid.
    is_stale: AtomicBool,
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    parts: Parts,
    /// The directories of the parts and those above, up to the agent's root.
    dirs: BTreeSet<PathBuf>,
}

impl Watch {
    /// Watches parts at or below `root`, also where they are not there yet. Where watching cannot be done, changes are seen
    /// at the next look by schedule.
    pub fn new(root: PathBuf, parts: Parts) -> Self {
        let shared = Arc::new(Shared::default());
        let told = shared.clone();
        let watcher = notify::recommended_watcher(move |event| told.take(event))
            .inspect_err(|error| warn!(path:% = root.display(), error:% = error; "nothing is watched"))
            .ok();
        let mut watch = Self { root, shared, watcher, seen: Seen::new() };
        watch.set(parts);
        watch
    }

    /// Watches these parts and no others from now on.
    pub fn set(&mut self, parts: Parts) {
        let dirs: BTreeSet<_> = parts.iter().flat_map(|(path, part)| above(&self.root, path, *part)).collect();
        let before = std::mem::replace(&mut *self.shared.watched(), Watched { parts, dirs: dirs.clone() });
        if let Some(watcher) = &mut self.watcher {
            // One that is gone is watched no more already.
            before.dirs.difference(&dirs).for_each(|dir| drop(watcher.unwatch(dir)));
        }
        if before.dirs != dirs {
            self.shared.is_stale.store(true, Ordering::Release);
        }
        self.renew();
    }

    /// Waits until something was changed there. Safe to cancel.
    pub async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    /// Whether something else is there than at the last look, whatever was told of it.
    pub fn is_outdated(&self) -> bool {
        self.look() != self.seen
    }

    /// Lays the watch again where a directory is another one; to be called before what is there is read.
    pub fn renew(&mut self) {
        let is_stale = self.shared.is_stale.swap(false, Ordering::AcqRel);
        // Before the watch is laid: what is replaced in between is another one at the next look.
        let now = self.look();
        let before = std::mem::replace(&mut self.seen, now);
        let Some(watcher) = &mut self.watcher else { return };
        let dirs = self.shared.watched().dirs.clone();
        let file = |seen: &Seen, dir: &PathBuf| seen.get(dir).map(|identity| identity.file);
        // From above: what is made below meanwhile is told by the directory that it is made in.
        for dir in dirs.iter().filter(|dir| is_stale || file(&before, dir) != file(&self.seen, dir)) {
            let _ = watcher.unwatch(dir);
            match watcher.watch(dir, RecursiveMode::NonRecursive) {
                Ok(()) => {}
                // The directory above tells when it comes.
                Err(_) if !dir.exists() => {}
                Err(error) => warn!(path:% = dir.display(), error:% = error; "a directory is not watched"),
            }
        }
    }

    /// What is there now.
    fn look(&self) -> Seen {
        let (dirs, whole) = {
            let watched = self.shared.watched();
            let whole = watched.parts.iter().filter(|(_, part)| **part == Part::All);
            (watched.dirs.clone(), whole.map(|(path, _)| path.clone()).collect::<Vec<_>>())
        };
        let above = dirs.into_iter().filter_map(|dir| {
            let identity = Identity { changed: None, ..Identity::of(&fs::metadata(&dir).ok()?) };
            Some((dir, identity))
        });
        let mut seen: Seen = above.collect();
        let entries = whole.iter().flat_map(fs::read_dir).flatten().flatten().map(|entry| entry.path());
        seen.extend(whole.iter().cloned().chain(entries).filter_map(|path| {
            let identity = Identity::of(&fs::symlink_metadata(&path).ok()?);
            Some((path, identity))
        }));
        seen
    }
}

impl Identity {
    fn of(found: &Metadata) -> Self {
        Self { file: (found.dev(), found.ino()), changed: Some((found.ctime(), found.ctime_nsec())) }
    }
}

/// The directory of a part, and those above it up to the root.
fn above<'a>(root: &'a Path, path: &'a Path, part: Part) -> impl Iterator<Item = PathBuf> + 'a {
    let own = usize::from(part == Part::File);
    path.ancestors().skip(own).take_while(move |above| above.starts_with(root)).map(PathBuf::from)
}

impl Shared {
    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event of the kernel.
    fn take(&self, event: notify::Result<Event>) {
        // Where events were lost, anything may have changed.
        let event = event.unwrap_or_else(|_| Event::new(EventKind::Other));
        let is_lost = event.kind == EventKind::Other || event.need_rescan();
        if event.kind.is_access() && !is_lost {
            return;
        }
        let watched = self.watched();
        let is_replaced = !event.kind.is_modify() || matches!(event.kind, EventKind::Modify(ModifyKind::Name(_)));
        let is_above = is_lost || (is_replaced && event.paths.iter().any(|path| watched.dirs.contains(path)));
        let is_part = |path: &PathBuf| {
            let holds = |dir: &Path| watched.parts.get(dir) == Some(&Part::All);
            watched.parts.contains_key(path) || path.parent().is_some_and(holds)
        };
        // Who may write a directory above one that is watched whole may put another in its place: whether that one is trusted goes by these.
        let is_on_the_way =
            |path: &PathBuf| watched.parts.iter().any(|(whole, part)| *part == Part::All && whole.starts_with(path));
        let are_rights = matches!(event.kind, EventKind::Modify(ModifyKind::Metadata(_)));
        let is_of_the_way = are_rights && event.paths.iter().any(is_on_the_way);
        if is_above {
            self.is_stale.store(true, Ordering::Release);
        }
        if is_above || is_of_the_way || event.paths.iter().any(is_part) {
            self.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use notify::event::MetadataKind;

    use super::*;

    /// How long the kernel may take to tell of a change on a busy machine.
    const PATIENCE: Duration = Duration::from_mins(2);

    /// Looks whenever something is told, until nothing more is; whether something was.
    async fn is_told(watch: &mut Watch) -> bool {
        let mut told = false;
        let wait = |told: bool| if told { Duration::from_millis(200) } else { PATIENCE };
        while tokio::time::timeout(wait(told), watch.changed()).await.is_ok() {
            told = true;
            watch.renew();
        }
        told
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_directory_that_is_made_again_is_watched_again() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let dir = root.join("etc/stemma/labels.d");
        let mut watch = Watch::new(root.clone(), [(dir.clone(), Part::All)].into());
        for round in 0..3 {
            fs::create_dir_all(&dir).unwrap();
            assert!(is_told(&mut watch).await, "round {round}: it is there");
            fs::write(dir.join("10-a"), "a=1\n").unwrap();
            assert!(is_told(&mut watch).await, "round {round}: a file");
            fs::write(dir.join("10-a"), "a=2\n").unwrap();
            assert!(is_told(&mut watch).await, "round {round}: an edit");
            if round == 0 {
                fs::remove_dir_all(&dir).unwrap();
            } else {
                fs::rename(root.join("etc/stemma"), root.join(format!("old-{round}"))).unwrap();
            }
            assert!(is_told(&mut watch).await, "round {round}: it is gone");
        }
    }

    /// Whether hooks are run and labels read goes by these rights: a finding came and went up to an hour late.
    #[tokio::test(flavor = "current_thread")]
    async fn y08_the_rights_of_a_directory_above_one_that_is_watched_whole_are_told() {
        use std::os::unix::fs::PermissionsExt as _;

        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let dir = root.join("etc/stemma/labels.d");
        fs::create_dir_all(&dir).unwrap();
        let mut watch = Watch::new(root.clone(), [(dir, Part::All)].into());
        for above in ["etc", "etc/stemma"] {
            fs::set_permissions(root.join(above), fs::Permissions::from_mode(0o775)).unwrap();
            assert!(is_told(&mut watch).await, "{above}");
        }
        let map = root.join("etc/map");
        fs::write(&map, "").unwrap();
        let of_file = Watch::new(root.clone(), [(map, Part::File)].into());
        let rights = EventKind::Modify(ModifyKind::Metadata(MetadataKind::Permissions));
        of_file.shared.take(Ok(Event::new(rights).add_path(root.join("etc"))));
        tokio::select! {
            biased;
            () = of_file.changed() => panic!("it is told of the rights above a file"),
            () = std::future::ready(()) => {}
        }
    }

    /// A mount does to a path what a rename does, and is told by nothing: nothing is heard here, and no root is needed.
    #[test]
    fn y08_that_something_else_is_there_is_seen_where_nothing_is_told() {
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
        let mut watch = Watch::new(root.clone(), [(dir.clone(), Part::All)].into());
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
    async fn of_one_file_no_neighbour_is_told() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let mut watch = Watch::new(root.clone(), [(root.join("map"), Part::File)].into());
        fs::write(root.join("neighbour"), "x").unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(200), watch.changed()).await.is_err());
        fs::write(root.join("new"), "x").unwrap();
        fs::rename(root.join("new"), root.join("map")).unwrap();
        assert!(is_told(&mut watch).await);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_change_by_another_hand_is_told_and_one_of_a_neighbour_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let (ours, theirs) = (path.join("ours"), path.join("theirs"));
        fs::write(&ours, "").unwrap();
        let mut managed = Watch::new(path.clone(), Parts::new());
        managed.set([(ours.clone(), Part::File)].into());
        fs::write(&theirs, "x").unwrap();
        let told = tokio::time::timeout(Duration::from_millis(200), managed.changed()).await;
        assert!(told.is_err(), "a neighbour");
        fs::write(path.join("new"), "y").unwrap();
        fs::rename(path.join("new"), &ours).unwrap();
        tokio::time::timeout(PATIENCE, managed.changed()).await.expect("ours was replaced");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_directory_that_was_replaced_is_watched_anew_after_the_next_look() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().canonicalize().unwrap().join("conf");
        let ours = dir.join("ours");
        let mut managed = Watch::new(dir.parent().unwrap().to_owned(), Parts::new());
        let make = || {
            fs::create_dir(&dir).unwrap();
            fs::write(&ours, "").unwrap();
        };
        make();
        managed.set([(ours.clone(), Part::File)].into());
        fs::remove_dir_all(&dir).unwrap();
        let told = async |managed: &Watch| tokio::time::timeout(PATIENCE, managed.changed()).await.is_ok();
        assert!(told(&managed).await, "it is gone");
        make();
        managed.set([(ours.clone(), Part::File)].into());
        // As an agent does: it looks after each change. The first may have been that of the file alone.
        while tokio::time::timeout(Duration::from_millis(100), managed.changed()).await.is_ok() {
            managed.renew();
        }
        fs::write(&ours, "x").unwrap();
        assert!(told(&managed).await, "an edit in the new one");
    }
}
