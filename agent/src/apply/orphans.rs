//! Files that tasks wrote here and that no task keeps now: their task was removed, moved to other nodes, or names another path. Nobody takes
//! them away, since nobody said so; they are reported until a person has removed them, or a task keeps them again.
//!
//! Only this half knows of them. A controller forgets a task with its release, and a host that was silent meanwhile ran it for longer.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use stemma_core::object::MAX_FACT;
use stemma_core::status::Orphan;
use stemma_core::task::{Leaves, Mode, TaskKind, task_type};
use stemma_wire::message::desired::{Profile, ProfileTask};

use super::applier::{applier, path_of};
use super::ledger::{Desired, PROGRESS, WRITTEN};
use super::task::{HostTask, Site};
use crate::host::{HostError, HostPath, Kind};

/// How many are named, by a report and by `status`.
pub const MOST_NAMED: usize = 64;

/// What is on record at most, in paths and in bytes: a record that a ledger reads.
const MOST_WRITTEN: usize = 8192;
const MOST_BYTES: usize = 4 * 1024 * 1024;

/// The task that last wrote each file, by its path.
pub type Written = BTreeMap<String, String>;

/// Notes what tasks have written. A file that two tasks write stays with the one that `keeps` it already.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn note(site: &Site, written: &Written, keeps: impl Fn(&str, &str) -> bool) -> Result<(), HostError> {
    let before = site.ledger.get(&WRITTEN)?.unwrap_or_default();
    let mut all = before.clone();
    let mut bytes: usize = all.iter().map(|(path, task)| path.len() + task.len()).sum();
    for (path, task) in written {
        bytes += path.len() + task.len();
        let has_room = all.contains_key(path) || (all.len() < MOST_WRITTEN && bytes <= MOST_BYTES);
        if has_room && all.get(path).is_none_or(|by| !keeps(path, by)) {
            all.insert(path.clone(), task.clone());
        }
    }
    if all == before { Ok(()) } else { site.ledger.put(&WRITTEN, &all) }
}

/// Makes the record where an older agent kept none: of the files of those tasks of a set that ended well. To be called before the set is
/// replaced, so that an upgrade alone writes nothing.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn fill(site: &Site, desired: &Desired, profile: &Profile) -> Result<(), HostError> {
    if site.ledger.get(&WRITTEN)?.is_some() || desired.mode() != Mode::Apply {
        return Ok(());
    }
    let progress = site.ledger.get(&PROGRESS)?.unwrap_or_default();
    let ended_well = |task: &&ProfileTask| {
        progress.tasks.get(&task.id).is_some_and(|last| last.task_set == desired.digest && last.outcome.is_success())
    };
    let files = profile.tasks.iter().filter(ended_well).filter_map(|task| {
        let read = HostTask::new(task, &desired.task_set.inputs).ok()?;
        let is_applied = read.task.mode.unwrap_or_default() == Mode::Apply;
        let path = left_by(site, &read).filter(|_| is_applied)?;
        Some((path.to_string(), task.id.clone()))
    });
    note(site, &files.collect(), |_, _| false)
}

/// The file that a task writes, and that stays there when the task is gone.
#[must_use]
pub fn left_by(site: &Site, task: &HostTask) -> Option<HostPath> {
    path_of(site, task).filter(|(_, leaves)| *leaves == Leaves::File).map(|(path, _)| path)
}

/// The files that no task of a set keeps, and that are still there.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn orphans(site: &Site, desired: &Desired, profile: &Profile) -> Result<Vec<Orphan>, HostError> {
    let written = site.ledger.get(&WRITTEN)?.unwrap_or_default();
    Ok(look(site, desired, profile, &written).0)
}

/// The same. Those that nobody finds any more go off the record: a file that comes back there is somebody else's.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn orphans_and_forget_gone(site: &Site, desired: &Desired, profile: &Profile) -> Result<Vec<Orphan>, HostError> {
    let mut written = site.ledger.get(&WRITTEN)?.unwrap_or_default();
    let (orphans, gone) = look(site, desired, profile, &written);
    if !gone.is_empty() {
        written.retain(|path, _| !gone.contains(path));
        site.ledger.put(&WRITTEN, &written)?;
    }
    Ok(orphans)
}

/// Of what no task of a set keeps, the files that are there, and the paths where none is. One that cannot be looked at is neither.
fn look(site: &Site, desired: &Desired, profile: &Profile, written: &Written) -> (Vec<Orphan>, BTreeSet<String>) {
    let (mut orphans, mut gone) = (Vec::new(), BTreeSet::new());
    for (path, task) in unkept(site, desired, profile, written) {
        match is_there(site, path) {
            Ok(true) => orphans.push(Orphan { task: task.clone(), path: path.clone() }),
            Ok(false) => {
                gone.insert(path.clone());
            }
            Err(_) => {}
        }
    }
    (orphans, gone)
}

/// The text of the fact: so many as are named, then how many more there are.
pub fn fact(orphans: &[Orphan]) -> Option<String> {
    let mut named = Vec::new();
    // The brackets, and how many more there are.
    let mut bytes = 64;
    for orphan in orphans.iter().take(MOST_NAMED) {
        let entry = json!(orphan);
        bytes += entry.to_string().len() + 1;
        if bytes > MAX_FACT {
            break;
        }
        named.push(entry);
    }
    let more = orphans.len() - named.len();
    named.extend((more > 0).then(|| json!({"more": more})));
    (!orphans.is_empty()).then(|| json!(named).to_string())
}

/// What is on record of files that no task of a set keeps. Where a task cannot be read here, nobody knows what it keeps: what is on record
/// as its own stays so.
fn unkept<'a>(
    site: &Site,
    desired: &Desired,
    profile: &Profile,
    written: &'a Written,
) -> Vec<(&'a String, &'a String)> {
    if written.is_empty() {
        return Vec::new();
    }
    let (mut paths, mut unread) = (BTreeSet::new(), BTreeSet::new());
    for task in profile.tasks.iter().filter(|task| desired.task_set.runs(&task.id)) {
        match kept_by(site, desired, task) {
            Kept::File(path) => {
                paths.insert(path.to_string());
            }
            Kept::Unknown => {
                unread.insert(task.id.as_str());
            }
            Kept::Nothing => {}
        }
    }
    written.iter().filter(|(path, task)| !paths.contains(*path) && !unread.contains(task.as_str())).collect()
}

/// The file that a task keeps.
enum Kept {
    File(HostPath),
    Nothing,
    /// The task cannot be read here.
    Unknown,
}

fn kept_by(site: &Site, desired: &Desired, task: &ProfileTask) -> Kept {
    let Ok(task) = HostTask::new(task, &desired.task_set.inputs) else { return Kept::Unknown };
    let Some(kind) = task_type(&task.task.kind).map(|known| known.kind) else { return Kept::Unknown };
    match applier(kind).map(|applier| applier.keeps(site, &task)) {
        Some(Some(path)) => Kept::File(path),
        Some(None) if kind != TaskKind::File => Kept::Nothing,
        Some(None) | None => Kept::Unknown,
    }
}

/// Whether a file is there. A link on the way, or another thing in its place, is not what the task wrote.
fn is_there(site: &Site, path: &str) -> Result<bool, HostError> {
    let Ok(path) = HostPath::parse(path) else { return Ok(false) };
    let stat = site.host.parent_of(&path).and_then(|dir| dir.map_or(Ok(None), |dir| dir.stat(path.name())));
    match stat {
        Ok(stat) => Ok(stat.is_some_and(|stat| stat.kind == Kind::File)),
        Err(error) if error.is_of_the_file() => Ok(false),
        Err(error) => Err(error),
    }
}
