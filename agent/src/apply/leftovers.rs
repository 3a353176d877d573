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

/// Directories in which unfinished files may be created, with the owners that tasks give to files in them.
pub type StagingDirs = BTreeMap<String, BTreeSet<u32>>;

/// Returns the directory of a file, in the form of the keys of [`StagingDirs`].
#[must_use]
pub fn directory(path: &HostPath) -> String {
    path.parent().map_or_else(|| ROOT_DIR.to_owned(), |parent| parent.to_string())
}

/// The root directory, which is not a valid [`HostPath`].
const ROOT_DIR: &str = "/";

/// Records the directories of a pass. They are durable when this returns. Directories that are recorded already stay
/// unchanged.
///
/// # Errors
/// [`HostError`] from the ledger. Then no file may be begun.
pub fn record_dirs(site: &Site, task_dirs: &StagingDirs) -> Result<(), HostError> {
    let recorded = site.ledger.get(&STAGING_DIRS)?.unwrap_or_default();
    let dirs = merge(task_dirs, &recorded);
    if dirs == recorded { Ok(()) } else { site.ledger.put(&STAGING_DIRS, &dirs) }
}

/// Removes leftovers from the directories of tasks and from the recorded directories. A recorded directory in which no
/// task has a file any more leaves the record, unless a leftover in it could not be removed. Such a failure is logged.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn sweep(site: &Site, task_dirs: &StagingDirs) -> Result<(), HostError> {
    let recorded = site.ledger.get(&STAGING_DIRS)?.unwrap_or_default();
    let mut remaining = StagingDirs::new();
    for (dir, owners) in merge(task_dirs, &recorded) {
        let result = sweep_dir(site, &dir, &owners);
        if let Err(error) = &result {
            let error = error.sentence();
            warn!(path = dir.as_str(), error = error.as_str(); "an unfinished file of a killed agent cannot be removed");
        }
        if result.is_err() || (task_dirs.contains_key(&dir) && recorded.contains_key(&dir)) {
            remaining.insert(dir, owners);
        }
    }
    if remaining == recorded { Ok(()) } else { site.ledger.put(&STAGING_DIRS, &remaining) }
}

/// Removes leftovers from the recorded directories on a host that is paused, parked or held, because no pass removes
/// them there. This is allowed on such a host, because it is not a task. The record stays unchanged.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn sweep_recorded(site: &Site) -> Result<(), HostError> {
    let recorded = site.ledger.get(&STAGING_DIRS)?.unwrap_or_default();
    sweep(site, &recorded)
}

/// Returns the directories of both maps. A directory in both gets the owners of both.
fn merge(base: &StagingDirs, extra: &StagingDirs) -> StagingDirs {
    let mut merged = base.clone();
    for (dir, owners) in extra {
        merged.entry(dir.clone()).or_default().extend(owners);
    }
    merged
}

/// Removes the leftovers in one directory. If other users can write the directory, they may have created files with
/// such names. Then only files of the agent, of root and of the `owners` that tasks set are removed.
fn sweep_dir(site: &Site, dir: &str, owners: &BTreeSet<u32>) -> Result<(), HostError> {
    let host = &*site.host;
    let (opened, is_safe) = if dir == ROOT_DIR {
        (host.root()?, true)
    } else if let Ok(path) = HostPath::parse(dir) {
        match host.dir(&path) {
            Ok(Some(opened)) => (opened, host.first_untrusted_dir(&path)?.is_none()),
            // There is no such directory any more, or another object has its name. So the agent left no file there.
            Ok(None) | Err(HostError::Link { .. } | HostError::WrongKind { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
    } else {
        return Ok(());
    };
    let (agent, _) = host.user_and_group();
    sweep_where(host, &*opened, &|stat| is_safe || stat.user == agent || stat.user == 0 || owners.contains(&stat.user))
}
