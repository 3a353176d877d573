//! Told by the kernel when something in a directory changes, so that nothing is looked at while nothing changes.
//!
//! A watch is of a directory and not of its name: one that is removed, or moved away, and made again (as a package does
//! that is installed anew) would be seen no more. So the directories above are watched too, for that name alone, and the
//! watch is laid again when one of them was replaced.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use log::warn;
use notify::event::ModifyKind;
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

/// What of a directory is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Whatever it holds.
    All,
    /// One file in it.
    File(PathBuf),
}

/// Watches while it lives.
pub struct Watch {
    changed: Arc<Notify>,
    is_stale: Arc<AtomicBool>,
    /// From the agent's root down to the directory.
    chain: Arc<[PathBuf]>,
    watcher: Option<RecommendedWatcher>,
}

impl Watch {
    /// Watches a part of a directory at or below `root`, also where that is not there yet. Where watching cannot be done,
    /// changes are seen at the next look by schedule.
    pub fn new(root: &Path, dir: &Path, part: Part) -> Self {
        let mut chain: Vec<_> =
            dir.ancestors().take_while(|above| above.starts_with(root)).map(PathBuf::from).collect();
        chain.reverse();
        let chain: Arc<[PathBuf]> = chain.into();
        let (changed, is_stale) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(true)));
        let watcher = watcher(changed.clone(), is_stale.clone(), chain.clone(), part)
            .inspect_err(|error| warn!(path:% = dir.display(), error:% = error; "a directory is not watched"))
            .ok();
        let mut watch = Self { changed, is_stale, chain, watcher };
        watch.renew();
        watch
    }

    /// Waits until something was changed there. Safe to cancel.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Lays the watch again where a directory was replaced; to be called before what is there is read.
    pub fn renew(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        if !self.is_stale.swap(false, Ordering::AcqRel) {
            return;
        }
        // From above: what is made below meanwhile is told by the directory that it is made in.
        for dir in &*self.chain {
            let _ = watcher.unwatch(dir);
            match watcher.watch(dir, RecursiveMode::NonRecursive) {
                Ok(()) => {}
                // The directory above tells when it comes.
                Err(_) if !dir.exists() => break,
                Err(error) => warn!(path:% = dir.display(), error:% = error; "a directory is not watched"),
            }
        }
    }
}

fn watcher(
    changed: Arc<Notify>,
    is_stale: Arc<AtomicBool>,
    chain: Arc<[PathBuf]>,
    part: Part,
) -> notify::Result<RecommendedWatcher> {
    let dir = chain.last().cloned().unwrap_or_default();
    notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let Ok(event) = event else {
            // Events were lost: anything may have changed.
            is_stale.store(true, Ordering::Release);
            return changed.notify_one();
        };
        if event.kind.is_access() {
            return;
        }
        let replaced = !event.kind.is_modify() || matches!(event.kind, EventKind::Modify(ModifyKind::Name(_)));
        let is_above = replaced && event.paths.iter().any(|path| chain.contains(path));
        let is_part = event.paths.iter().any(|path| match &part {
            Part::All => path.parent() == Some(&dir) || *path == dir,
            Part::File(file) => path == file,
        });
        if is_above {
            is_stale.store(true, Ordering::Release);
        }
        if is_above || is_part {
            changed.notify_one();
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    /// Looks whenever something is told, until nothing more is; whether something was.
    async fn is_told(watch: &mut Watch) -> bool {
        let mut told = false;
        let wait = |told: bool| Duration::from_millis(if told { 200 } else { 5000 });
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
        let mut watch = Watch::new(&root, &dir, Part::All);
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

    #[tokio::test(flavor = "current_thread")]
    async fn of_one_file_no_neighbour_is_told() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let mut watch = Watch::new(&root, &root, Part::File(root.join("map")));
        fs::write(root.join("neighbour"), "x").unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(200), watch.changed()).await.is_err());
        fs::write(root.join("new"), "x").unwrap();
        fs::rename(root.join("new"), root.join("map")).unwrap();
        assert!(is_told(&mut watch).await);
    }
}
