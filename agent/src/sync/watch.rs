//! Told by the kernel when the host's own label files change, so that nothing is looked at while nothing changes.

use std::path::Path;

use notify::{RecursiveMode, Watcher as _};
use tokio::sync::Notify;

use std::sync::Arc;

/// Watches while it lives.
pub(super) struct Watch {
    /// Told at each change.
    pub(super) changed: Arc<Notify>,
    _watcher: Option<notify::RecommendedWatcher>,
}

/// Watches a directory; where that cannot be done, changes are seen at the next look by schedule.
pub(super) fn watch(dir: &Path) -> Watch {
    let changed = Arc::new(Notify::new());
    let told = changed.clone();
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let only_read = event.as_ref().is_ok_and(|event| event.kind.is_access());
        if !only_read {
            told.notify_one();
        }
    });
    let watching = watcher.and_then(|mut watcher| watcher.watch(dir, RecursiveMode::NonRecursive).map(|()| watcher));
    if let Err(error) = &watching {
        log::warn!(path:% = dir.display(), error:% = error; "label files are not watched");
    }
    Watch { changed, _watcher: watching.ok() }
}
