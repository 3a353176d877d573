//! Removes unfinished files that a killed agent left next to the files of its tasks. They may contain a
//! secret, so the next pass removes them. On a host that may apply no task, the next check removes them.
//!
//! Each directory in which a pass may create such a file is recorded before its first task writes. So a leftover is
//! found even if the file needs no change any more, if it must be absent, or if no task manages a file in that
//! directory any more.

use std::collections::{BTreeMap, BTreeSet};

use log::warn;

use super::ledger::STAGING_DIRS;
use super::task::Site;
use crate::host::atomic::sweep_where;
use crate::host::{HostError, HostPath};

/// Directories in which tasks may create unfinished files. The key is the path of the directory. The value is the set
/// of user ids to which tasks give files in that directory.
pub type StagingDirs = BTreeMap<String, BTreeSet<u32>>;

/// Returns the path of a file's directory, in the form of the keys of [`StagingDirs`].
#[must_use]
pub fn directory(path: &HostPath) -> String {
    path.parent().map_or_else(|| ROOT_DIR.to_owned(), |parent| parent.to_string())
}

/// The root directory, which is not a valid [`HostPath`].
const ROOT_DIR: &str = "/";

/// Adds to the record on disk the directories in which a run may write. A crash can then leave an unfinished file only
/// in a recorded directory.
///
/// # Errors
/// [`HostError`] from the ledger. The caller must then write no file.
pub fn record_dirs(site: &Site, task_dirs: &StagingDirs) -> Result<(), HostError> {
    let recorded = site.ledger.get(&STAGING_DIRS)?.unwrap_or_default();
    let dirs = merge(task_dirs, &recorded);
    if dirs == recorded { Ok(()) } else { site.ledger.put(&STAGING_DIRS, &dirs) }
}

/// Removes leftovers (unfinished files of a killed agent) from the directories of tasks and from the recorded
/// directories.
///
/// Then a recorded directory is removed from the record if no task has a file there any more. A directory whose
/// leftovers could not be removed is in the record afterwards. Such a failure is only logged.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn sweep(site: &Site, task_dirs: &StagingDirs) -> Result<(), HostError> {
    let recorded = site.ledger.get(&STAGING_DIRS)?.unwrap_or_default();
    let mut still_needed = StagingDirs::new();
    for (dir, owners) in merge(task_dirs, &recorded) {
        let result = sweep_dir(site, &dir, &owners);
        if let Err(error) = &result {
            let error = error.sentence();
            warn!(path = dir.as_str(), error = error.as_str(); "an unfinished file of a killed agent cannot be removed");
        }
        if result.is_err() || (task_dirs.contains_key(&dir) && recorded.contains_key(&dir)) {
            still_needed.insert(dir, owners);
        }
    }
    if still_needed == recorded { Ok(()) } else { site.ledger.put(&STAGING_DIRS, &still_needed) }
}

/// Removes leftovers (unfinished files of a killed agent) from the recorded directories, on a host on which no run may
/// start that would remove them, for example a parked one. The record stays unchanged.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn sweep_recorded(site: &Site) -> Result<(), HostError> {
    let recorded = site.ledger.get(&STAGING_DIRS)?.unwrap_or_default();
    sweep(site, &recorded)
}

/// Returns the union of both maps. A directory that is in both maps gets the owners of both.
fn merge(base: &StagingDirs, extra: &StagingDirs) -> StagingDirs {
    let mut merged = base.clone();
    for (dir, owners) in extra {
        merged.entry(dir.clone()).or_default().extend(owners);
    }
    merged
}

/// Removes the unfinished files of a killed agent from one directory.
///
/// If other users can write the directory or one above it, they may have created files with the names of unfinished
/// files. So this then removes only files that belong to the agent, to root, or to the `owners` that tasks set.
fn sweep_dir(site: &Site, dir: &str, owners: &BTreeSet<u32>) -> Result<(), HostError> {
    let host = &*site.host;
    let (handle, is_safe) = if dir == ROOT_DIR {
        (host.root()?, true)
    } else if let Ok(path) = HostPath::parse(dir) {
        match host.dir(&path) {
            Ok(Some(handle)) => (handle, host.first_untrusted_dir(&path)?.is_none()),
            // The directory no longer exists, or another kind of file has its name. So no file of the agent is there.
            Ok(None) | Err(HostError::Link { .. } | HostError::WrongKind { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
    } else {
        // A key that is not a valid path names no directory of a task.
        return Ok(());
    };
    let (agent_user, _) = host.user_and_group();
    sweep_where(host, &*handle, &|stat| is_safe || stat.user == agent_user || stat.user == 0 || owners.contains(&stat.user))
}
