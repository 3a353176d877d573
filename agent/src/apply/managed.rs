//! Told by the kernel when a file that a task keeps is changed by another hand, so that drift is seen without
//! looking for it.
//!
//! Directories are watched, not files: a file is replaced by a rename, and a watch of it would follow the old one. One that
//! is itself replaced is watched anew when its task has been looked at.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use log::warn;
use notify::event::ModifyKind;
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

/// The files that tasks keep.
#[derive(Default)]
pub struct Managed {
    changed: Arc<Notify>,
    files: Arc<Mutex<BTreeSet<PathBuf>>>,
    dirs: Arc<BTreeSet<PathBuf>>,
    /// Whether a directory was removed or moved since it was watched.
    is_stale: Arc<AtomicBool>,
    watcher: Option<RecommendedWatcher>,
}

impl Managed {
    /// Watches these files and no others, by their paths on this system.
    pub fn watch(&mut self, files: BTreeSet<PathBuf>) {
        let dirs: Arc<BTreeSet<_>> =
            Arc::new(files.iter().filter_map(|file| file.parent()).map(PathBuf::from).collect());
        *self.files.lock().unwrap_or_else(PoisonError::into_inner) = files;
        if dirs == self.dirs && !self.is_stale.swap(false, Ordering::AcqRel) {
            return;
        }
        // A new watcher is all that it takes: changes happen when a task set does.
        self.watcher = None;
        self.dirs = Arc::default();
        if dirs.is_empty() {
            return;
        }
        let (changed, files) = (self.changed.clone(), self.files.clone());
        let (watched, is_stale) = (dirs.clone(), self.is_stale.clone());
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let files = files.lock().unwrap_or_else(PoisonError::into_inner);
            // Where events were lost, anything may have changed.
            let event = event.unwrap_or_else(|_| notify::Event::new(EventKind::Other));
            let is_gone = event.kind.is_remove() || matches!(event.kind, EventKind::Modify(ModifyKind::Name(_)));
            let is_lost = event.kind == EventKind::Other || event.need_rescan();
            let is_dir = is_lost || (is_gone && event.paths.iter().any(|path| watched.contains(path)));
            if is_dir {
                is_stale.store(true, Ordering::Release);
            }
            if is_dir || (!event.kind.is_access() && event.paths.iter().any(|path| files.contains(path))) {
                changed.notify_one();
            }
        });
        match watcher {
            Ok(mut watcher) => {
                for dir in &*dirs {
                    if let Err(error) = watcher.watch(dir, RecursiveMode::NonRecursive) {
                        warn!(path:% = dir.display(), error:% = error; "files of tasks are not watched; drift is seen on schedule");
                    }
                }
                (self.watcher, self.dirs) = (Some(watcher), dirs);
            }
            Err(error) => warn!(error:% = error; "files of tasks are not watched; drift is seen on schedule"),
        }
    }

    /// Waits until one of them is changed. Safe to cancel.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_change_by_another_hand_is_told_and_one_of_a_neighbour_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let (ours, theirs) = (path.join("ours"), path.join("theirs"));
        std::fs::write(&ours, "").unwrap();
        let mut managed = Managed::default();
        managed.watch([ours.clone()].into());
        std::fs::write(&theirs, "x").unwrap();
        let told = tokio::time::timeout(Duration::from_millis(200), managed.changed()).await;
        assert!(told.is_err(), "a neighbour");
        std::fs::write(path.join("new"), "y").unwrap();
        std::fs::rename(path.join("new"), &ours).unwrap();
        tokio::time::timeout(Duration::from_secs(10), managed.changed()).await.expect("ours was replaced");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_directory_that_was_replaced_is_watched_anew_after_the_next_look() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().canonicalize().unwrap().join("conf");
        let ours = dir.join("ours");
        let mut managed = Managed::default();
        let make = || {
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(&ours, "").unwrap();
        };
        make();
        managed.watch([ours.clone()].into());
        std::fs::remove_dir_all(&dir).unwrap();
        let told =
            async |managed: &Managed| tokio::time::timeout(Duration::from_secs(5), managed.changed()).await.is_ok();
        assert!(told(&managed).await, "it is gone");
        make();
        managed.watch([ours.clone()].into());
        while tokio::time::timeout(Duration::from_millis(100), managed.changed()).await.is_ok() {}
        std::fs::write(&ours, "x").unwrap();
        assert!(told(&managed).await, "an edit in the new one");
    }
}
