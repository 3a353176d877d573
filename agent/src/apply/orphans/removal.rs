//! Removal of orphans on a host whose nodegroup has `remove_orphans`: the agent deletes files and links that only tasks made
//! and that nobody has changed since, and the empty directories that tasks made for them. Each other orphan stays, and the
//! report has the reason.
//!
//! A file is deleted before its entry in the record. So after a crash in between, the next pass only finds that the file no
//! longer exists.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use log::{debug, info};
use sha2::{Digest as _, Sha256};
use stemma_core::digest::sha256;
use stemma_core::status::CleanUpState;
use stemma_core::task::{check_not_agent_path, check_writable};
use stemma_wire::message::PartDigest;
use stemma_wire::message::desired::Profile;
use stemma_wire::message::observed::{Outcome, TaskResult};

use super::record::{recorded_objects, recorded_trees, remove_records};
use super::{LeftObjects, find_unmanaged};
use crate::apply::clean_ups;
use crate::apply::ledger::{Desired, HostObject, LeftObject, LeftTrees, ObjectKind, UndoNote};
use crate::apply::listing::list_names;
use crate::apply::task::Site;
use crate::host::{Dir, FileVersion, HostError, HostPath};

/// Maximum size of a file that is read for the comparison with its digest, in bytes. It is the maximum size of a file that a
/// task writes.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;
/// Maximum size of a file of which a copy is stored for undo, in bytes.
const MAX_UNDO_BYTES: u64 = 1024 * 1024;

/// The reasons why orphans stay, by object.
pub type KeptOrphans = BTreeMap<HostObject, String>;

/// The outcome of a removal of orphans.
#[derive(Debug, Default)]
pub struct RemovedOrphans {
    /// The reasons why the other orphans stay.
    pub kept: KeptOrphans,
    /// One result for each task of which an orphan was removed. The ledger has not stored them yet.
    pub results: Vec<TaskResult>,
}

/// What happens to an orphan.
enum RemovalDecision {
    /// The object at this path is deleted, if it still has this version.
    Remove(HostPath, Option<FileVersion>),
    /// The object stays, for this reason.
    Keep(String),
}

/// Removes the orphans that only tasks wrote and that nobody has changed since. The caller does this only in mode `apply`,
/// after all tasks of the desired state have succeeded, and if its nodegroup has `remove_orphans`.
///
/// # Errors
/// [`HostError`] from the ledger. An error of one file is the reason why that file stays.
pub fn remove_orphans(site: &Site, desired: &Desired, profile: &Profile) -> Result<RemovedOrphans, HostError> {
    let mut recorded = recorded_objects(site)?;
    let orphans = find_unmanaged(site, desired, profile, &recorded).orphans;
    let mut removal = RemovedOrphans::default();
    if orphans.is_empty() {
        return Ok(removal);
    }
    let open_clean_ups: BTreeMap<String, String> = clean_ups::reports(site)?
        .into_iter()
        .filter(|clean_up| clean_up.state != CleanUpState::Succeeded)
        .map(|clean_up| (clean_up.task, clean_up.on_unassign))
        .collect();
    let (mut removed, mut paths_by_task) = (BTreeSet::new(), BTreeMap::<String, Vec<String>>::new());
    let trees = recorded_trees(site)?;
    // A directory comes after what is in it.
    let (directories, others): (Vec<_>, Vec<_>) = orphans.iter().partition(|((kind, _), _)| *kind == ObjectKind::Directory);
    for (object, left) in others.into_iter().chain(directories.into_iter().rev()) {
        let waiting_reason = waiting_reason(left, desired, &open_clean_ups);
        let verdict = waiting_reason.map_or_else(|| judge(site, object, left, &trees), RemovalDecision::Keep);
        let kept_reason = match verdict {
            RemovalDecision::Keep(reason) => Some(reason),
            RemovalDecision::Remove(path, version) => {
                remove(site, object.0, (&path, version), left, &recorded).err().map(|error| error.sentence())
            }
        };
        if let Some(reason) = kept_reason {
            removal.kept.insert(object.clone(), reason);
        } else {
            info!(task = left.task.as_str(), path = object.1.as_str(); "removed what a task left and no task manages (remove_orphans)");
            removed.insert(object.clone());
            paths_by_task.entry(left.task.clone()).or_default().push(object.1.clone());
        }
    }
    remove_records(site, &mut recorded, &removed)?;
    let result = |(task, paths): (String, Vec<String>)| removal_result(task, &paths, desired.digest);
    removal.results = paths_by_task.into_iter().map(result).collect();
    Ok(removal)
}

/// Returns the reason why an orphan stays for now although nobody changed it, or `None`.
fn waiting_reason(left: &LeftObject, desired: &Desired, open_clean_ups: &BTreeMap<String, String>) -> Option<String> {
    if let Some(clean_up) = open_clean_ups.get(&left.task) {
        return Some(format!("{clean_up}, which its task names in on_unassign, has not succeeded yet"));
    }
    // A condition that cannot be evaluated counts as false, and this must not delete a file.
    let is_placed = !clean_ups::is_for_unassign(desired, &left.task);
    let left_out = desired.task_set.left_out.get(&left.task).filter(|_| is_placed)?;
    Some(format!("its task is still placed on this node, and is left out: {left_out}"))
}

/// Decides whether an orphan may be removed.
fn judge(site: &Site, (kind, name): &HostObject, left: &LeftObject, trees: &LeftTrees) -> RemovalDecision {
    let keep = |reason: &str| RemovalDecision::Keep(format!("{reason}: remove it on the host"));
    if kind.file_kind().is_none() {
        return keep(&format!("the agent removes only files, links and directories, and this is a {}", kind.name()));
    }
    if !left.is_created {
        return keep("it existed before a task made it, or an older agent made it");
    }
    let path = match HostPath::parse(name) {
        Ok(path) => path,
        Err(error) => return RemovalDecision::Keep(error.to_string()),
    };
    let is_permitted = check_writable(name).and_then(|()| check_not_agent_path(name, site.label_map.as_str()));
    if let Err(error) = is_permitted {
        return RemovalDecision::Keep(error.to_string());
    }
    // The version is read before the content, so that a change in the meantime is noticed.
    let version = match read_version(site, &path) {
        Ok(version) => version,
        Err(error) => return RemovalDecision::Keep(error.sentence()),
    };
    let is_unchanged = match (kind, &left.digest) {
        (ObjectKind::Directory, _) => is_empty_dir(site, &path),
        (ObjectKind::Link, Some(digest)) => has_target(site, &path, digest),
        (_, Some(digest)) => has_content(site, &path, digest),
        (_, None) => {
            return keep(
                "it is a copy of a file of this host, or an older agent made it, so it is not known whether it was changed",
            );
        }
    };
    match is_unchanged {
        Ok(true) => RemovalDecision::Remove(path, version),
        Ok(false) if *kind == ObjectKind::Directory => match trees.counts.get(name) {
            Some(count) => keep(&format!("it has {count} files of the task, too many to know whether they were changed")),
            None => keep("it is not empty"),
        },
        Ok(false) => keep("somebody changed it after the task made it"),
        Err(error) => RemovalDecision::Keep(error.sentence()),
    }
}

/// Returns the version of the entry at a path, or `None` if nothing is there.
fn read_version(site: &Site, path: &HostPath) -> Result<Option<FileVersion>, HostError> {
    site.host.parent_dir(path)?.map_or(Ok(None), |dir| dir.version(path.name()))
}

/// Returns whether there is an empty directory at a path.
fn is_empty_dir(site: &Site, path: &HostPath) -> Result<bool, HostError> {
    let Some(dir) = site.host.dir(path)? else { return Ok(false) };
    Ok(dir.names()?.is_empty() && dir.non_utf8_names()?.is_empty())
}

/// Returns whether the link at a path has the target with this digest.
fn has_target(site: &Site, path: &HostPath, digest: &[u8; 32]) -> Result<bool, HostError> {
    let Some(dir) = site.host.parent_dir(path)? else { return Ok(false) };
    dir.check_replaceable(path.name())?;
    Ok(dir.read_link(path.name())?.is_some_and(|target| sha256(target.as_bytes()) == *digest))
}

/// Returns whether the file at a path is a plain file with one name and has the content with this digest.
fn has_content(site: &Site, path: &HostPath, digest: &[u8; 32]) -> Result<bool, HostError> {
    let Some(dir) = site.host.parent_dir(path)? else { return Ok(false) };
    // Fails if something other than a plain file has the name, or if the file has several hard links.
    let Some(details) = dir.details(path.name())? else { return Ok(false) };
    if details.stat.size > MAX_FILE_BYTES {
        return Ok(false);
    }
    dir.check_replaceable(path.name())?;
    let mut hasher = Sha256::new();
    let exists = dir.read_chunks(path.name(), MAX_FILE_BYTES, &mut |chunk| {
        hasher.update(chunk);
        Ok(())
    })?;
    Ok(exists && hasher.finalize()[..] == digest[..])
}

/// Deletes a file, a link or an empty directory. Then deletes the directories above it that tasks made, as long as they are
/// empty and not `recorded` as objects of their own, which a task may still manage.
fn remove(
    site: &Site,
    kind: ObjectKind,
    (path, version): (&HostPath, Option<FileVersion>),
    left: &LeftObject,
    recorded: &LeftObjects,
) -> Result<(), HostError> {
    match kind {
        ObjectKind::Directory => remove_empty_dir(site, path)?,
        ObjectKind::File | ObjectKind::Link => remove_file(site, kind, (path, version), left)?,
        ObjectKind::Package | ObjectKind::Unit | ObjectKind::User | ObjectKind::Group => return Ok(()),
    }
    let mut next_dir = path.parent();
    let is_recorded = |dir: &HostPath| recorded.contains_key(&(ObjectKind::Directory, dir.to_string()));
    while let Some(dir) = next_dir.filter(|dir| !is_recorded(dir) && is_removable_parent(site, dir)) {
        // The object itself is removed, so an error about the directory is not reported.
        if let Err(error) = remove_empty_dir(site, &dir).and_then(|()| site.ledger.forget_creation(dir.as_str())) {
            debug!(path = dir.as_str(), error = error.sentence().as_str(); "a directory that a task made remains");
            break;
        }
        next_dir = dir.parent();
    }
    Ok(())
}

/// Returns whether a task made a directory for what it left there, and the directory is empty now. If this cannot be
/// determined, the directory remains.
fn is_removable_parent(site: &Site, dir: &HostPath) -> bool {
    let is_created = site.ledger.is_created_by_task(dir.as_str()).unwrap_or(false);
    is_created && is_empty_dir(site, dir).unwrap_or(false)
}

fn remove_empty_dir(site: &Site, path: &HostPath) -> Result<(), HostError> {
    let Some(parent) = site.host.parent_dir(path)? else { return Ok(()) };
    parent.remove_dir(path.name())?;
    parent.sync()
}

/// Deletes a file or a link, unless it has another version now. A copy of a file is stored for undo, unless it may hold a
/// secret or is too large.
fn remove_file(
    site: &Site,
    kind: ObjectKind,
    (path, version): (&HostPath, Option<FileVersion>),
    left: &LeftObject,
) -> Result<(), HostError> {
    let Some(dir) = site.host.parent_dir(path)? else { return Ok(()) };
    if kind == ObjectKind::File && !(left.is_secret || site.ledger.is_secret_path(path)?) {
        store_copy(site, &*dir, path, left)?;
    }
    if dir.version(path.name())? != version {
        return Err(HostError::io("remove", path.as_str())(io::Error::other("another program changes it")));
    }
    dir.remove(path.name())?;
    dir.sync()
}

/// Stores a copy of a file for undo, if it is small enough.
fn store_copy(site: &Site, dir: &dyn Dir, path: &HostPath, left: &LeftObject) -> Result<(), HostError> {
    let Some(stat) = dir.stat(path.name())?.filter(|stat| stat.size <= MAX_UNDO_BYTES) else { return Ok(()) };
    let bytes = dir.read(path.name(), MAX_UNDO_BYTES)?;
    let attributes = Some((stat.user, stat.group, stat.mode));
    site.ledger.store_undo(&UndoNote { task: left.task.clone(), path: path.to_string(), bytes, attributes })
}

/// Returns the result of a task of which these paths were removed.
fn removal_result(task: String, paths: &[String], task_set: PartDigest) -> TaskResult {
    TaskResult {
        // The ledger sets the number when it stores the result.
        sequence: 0,
        task_set,
        task,
        outcome: Outcome::Changed,
        message: format!("removed {}, which no task manages any more (remove_orphans of the nodegroup)", list_names(paths)),
        output: String::new(),
        diff: String::new(),
        duration_ms: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::applier::testing::site;
    use crate::host::memory::MemoryHost;

    /// Regression test: a file that somebody changed after its comparison was deleted.
    #[test]
    fn file_stays_when_changed_after_comparison() {
        let host = MemoryHost::new();
        let site = site(&host);
        host.put("/etc/app", "x");
        let digest = Some(sha256(b"x"));
        let left = LeftObject { task: "t".to_owned(), is_secret: false, is_created: true, digest };
        let object = (ObjectKind::File, "/etc/app".to_owned());
        let RemovalDecision::Remove(path, version) = judge(&site, &object, &left, &LeftTrees::default()) else {
            panic!("it is unchanged")
        };
        host.put("/etc/app", "y");
        let error = remove(&site, object.0, (&path, version), &left, &LeftObjects::new()).unwrap_err();
        assert!(error.sentence().contains("another program changes it"), "{}", error.sentence());
        assert_eq!(host.text("/etc/app").as_deref(), Some("y"));
        let version = read_version(&site, &path).unwrap();
        remove(&site, object.0, (&path, version), &left, &LeftObjects::new()).unwrap();
        assert_eq!(host.text("/etc/app"), None);
    }
}
