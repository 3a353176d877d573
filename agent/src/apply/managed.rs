//! Told by the kernel when a file that a task keeps is changed by another hand, so that drift is seen without
//! looking for it.
//!
//! Directories are watched, not files: a file is replaced by a rename, and a watch of it would follow the old one.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use log::warn;
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

/// The files that tasks keep.
#[derive(Default)]
pub struct Managed {
    changed: Arc<Notify>,
    files: Arc<Mutex<BTreeSet<PathBuf>>>,
    dirs: BTreeSet<PathBuf>,
    watcher: Option<RecommendedWatcher>,
}

impl Managed {
    /// Watches these files and no others, by their paths on this system.
    pub fn watch(&mut self, files: BTreeSet<PathBuf>) {
        let dirs: BTreeSet<_> = files.iter().filter_map(|file| file.parent()).map(PathBuf::from).collect();
        *self.files.lock().unwrap_or_else(PoisonError::into_inner) = files;
        if dirs == self.dirs {
            return;
        }
        // A new watcher is all that it takes: changes happen when a task set does.
        self.watcher = None;
        self.dirs = BTreeSet::new();
        if dirs.is_empty() {
            return;
        }
        let (changed, files) = (self.changed.clone(), self.files.clone());
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let files = files.lock().unwrap_or_else(PoisonError::into_inner);
            let ours =
                |event: notify::Event| !event.kind.is_access() && event.paths.iter().any(|path| files.contains(path));
            if event.is_ok_and(ours) {
                changed.notify_one();
            }
        });
        match watcher {
            Ok(mut watcher) => {
                for dir in &dirs {
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
}
