//! Files in the making that an agent which was killed has left beside the files of its tasks. They may hold a secret, so none stays for
//! longer than until the next pass, or until the agent looks where no task is to be applied now.
//!
//! Each directory in which a pass may make one is on record before the first of its tasks writes. So what was left is found as well where the
//! file is right by now, where it is to be absent, and where no task names a file in that directory any more.

use std::collections::{BTreeMap, BTreeSet};

use log::warn;

use super::ledger::STAGING_DIRS;
use super::task::Site;
use crate::host::atomic::sweep_those;
use crate::host::{HostError, HostPath};

/// Directories in which files are put together, and whom tasks give files in them to.
pub type StagingDirs = BTreeMap<String, BTreeSet<u32>>;

/// The directory of a file, as it stands on record.
#[must_use]
pub fn directory(path: &HostPath) -> String {
    path.parent().map_or_else(|| ROOT.to_owned(), |parent| parent.to_string())
}

/// The directory above all others, which is no [`HostPath`].
const ROOT: &str = "/";

/// Notes the directories of a pass, durable when this returns. Those that are on record already are left alone.
///
/// # Errors
/// [`HostError`] from the ledger: then no file must be begun.
pub fn note(site: &Site, of_tasks: &StagingDirs) -> Result<(), HostError> {
    let recorded = site.ledger.get(&STAGING_DIRS)?.unwrap_or_default();
    let all = joined(of_tasks, &recorded);
    if all == recorded { Ok(()) } else { site.ledger.put(&STAGING_DIRS, &all) }
}

/// Takes away what is left in the directories of tasks, and in those that are on record; each is read once. Off the record goes where no task
/// has a file any more. What cannot be taken away is said, and stays on record.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn sweep(site: &Site, of_tasks: &StagingDirs) -> Result<(), HostError> {
    let recorded = site.ledger.get(&STAGING_DIRS)?.unwrap_or_default();
    let mut kept = StagingDirs::new();
    for (dir, owners) in joined(of_tasks, &recorded) {
        let swept = sweep_one(site, &dir, &owners);
        if let Err(error) = &swept {
            let error = error.sentence();
            warn!(path = dir.as_str(), error = error.as_str(); "an unfinished file of an agent that was killed cannot be taken away");
        }
        if swept.is_err() || (of_tasks.contains_key(&dir) && recorded.contains_key(&dir)) {
            kept.insert(dir, owners);
        }
    }
    // Where nothing is left and no task is gone, nothing is written.
    if kept == recorded { Ok(()) } else { site.ledger.put(&STAGING_DIRS, &kept) }
}

/// The same where no pass comes now, on a host that is paused, parked or held: to take away what was left is no task. All stays on record.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn sweep_recorded(site: &Site) -> Result<(), HostError> {
    let recorded = site.ledger.get(&STAGING_DIRS)?.unwrap_or_default();
    sweep(site, &recorded)
}

fn joined(one: &StagingDirs, other: &StagingDirs) -> StagingDirs {
    let mut all = one.clone();
    for (dir, owners) in other {
        all.entry(dir.clone()).or_default().extend(owners);
    }
    all
}

/// Where somebody else may write, a file under such a name is taken for the agent's when it is the agent's, or whoever a task gives one to.
fn sweep_one(site: &Site, dir: &str, owners: &BTreeSet<u32>) -> Result<(), HostError> {
    let host = &*site.host;
    let (opened, is_closed) = if dir == ROOT {
        (host.root()?, true)
    } else if let Ok(path) = HostPath::parse(dir) {
        match host.dir(&path) {
            Ok(Some(opened)) => (opened, host.open_to_others(&path)?.is_none()),
            // It is gone, or another thing has its name: nothing of the agent's is there.
            Ok(None) | Err(HostError::Link { .. } | HostError::Kind { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
    } else {
        return Ok(());
    };
    let (own, _) = host.identity();
    sweep_those(host, &*opened, &|stat| is_closed || stat.user == own || stat.user == 0 || owners.contains(&stat.user))
}
