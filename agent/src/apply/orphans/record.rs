//! The record of what tasks left on this host. Its size is limited, and no tree takes the room of other tasks: if a task has
//! more objects than the record has room for, its directories are recorded with the number of files in them.

use std::collections::{BTreeMap, BTreeSet};

use log::warn;
use stemma_core::task::{is_at_or_below, task_type};

use super::{LeftObjects, left_objects};
use crate::apply::applier::{ManagedObject, applier};
use crate::apply::ledger::{HostObject, LEFT_OBJECTS, LEFT_TREES, LeftObject, LeftTrees, ObjectKind, WRITTEN_FILES};
use crate::apply::task::{HostTask, Site};
use crate::host::{HostError, HostPath};

/// Maximum number of objects in the record.
const MAX_OBJECTS: usize = 16_384;
/// Maximum size of all names and task ids in the record, in bytes. The ledger can read such a record.
const MAX_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of objects of a task that counts as a small one. The objects of a larger one are recorded only in
/// three quarters of the record.
const MAX_SMALL: usize = 64;

/// What tasks have left since it was last recorded on disk.
#[derive(Debug, Default)]
pub struct LeftBatch {
    objects: LeftObjects,
    /// The number of files in each directory that are not in `objects`, by its path.
    counts: BTreeMap<String, u64>,
}

/// The record on disk with the objects of a batch.
struct LeftRecord {
    objects: LeftObjects,
    /// The size of all names and task ids in `objects`.
    bytes: usize,
    trees: LeftTrees,
    /// The number of objects without room.
    omitted_count: u64,
}

impl LeftBatch {
    /// Returns whether the batch has no object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Adds the objects that a successful task leaves on the host.
    pub fn add(&mut self, site: &Site, task: &HostTask) {
        self.add_where(site, task, |_| true);
    }

    /// Adds the objects of a task that failed after a change: those that `exists` accepts.
    pub fn add_where(&mut self, site: &Site, task: &HostTask, exists: impl Fn(&HostObject) -> bool) {
        let applier = task_type(&task.task.kind).and_then(|definition| applier(definition.kind));
        for ManagedObject { key, digest, content_count, .. } in left_objects(site, task) {
            if !exists(&key) {
                continue;
            }
            // If the note cannot be read, the object counts as one that existed before.
            let is_created = key.0.file_kind().is_some() && site.ledger.is_created_by_task(&key.1).unwrap_or(false);
            let digest = digest.or_else(|| applier.and_then(|applier| applier.written_digest(site, task)));
            let left = LeftObject { task: task.task.id.clone(), is_secret: task.is_sensitive(), is_created, digest };
            self.counts.extend(content_count.map(|count| (key.1.clone(), count)));
            self.objects.entry(key).or_insert(left);
        }
    }
}

impl LeftRecord {
    fn new(objects: LeftObjects, trees: LeftTrees) -> Self {
        let bytes = size_of_names(&objects);
        Self { objects, bytes, trees, omitted_count: 0 }
    }

    /// Returns whether the record has room for further objects, if `parts` quarters of it may be used.
    fn has_room(&self, count: usize, bytes: usize, parts: usize) -> bool {
        self.objects.len() + count <= MAX_OBJECTS / 4 * parts && self.bytes + bytes <= MAX_BYTES / 4 * parts
    }

    /// Adds the objects of one task. Of a task with many objects and without room for all, adds the highest directories, and
    /// the number of objects below each. An entry of another task changes only if `still_leaves` is false for it.
    fn add_task(
        &mut self,
        mut objects: Vec<(&HostObject, &LeftObject)>,
        counts: &BTreeMap<String, u64>,
        still_leaves: &mut impl FnMut(&HostObject, &str) -> bool,
    ) {
        let new = objects.iter().filter(|(object, _)| !self.objects.contains_key(*object));
        let sizes: Vec<usize> = new.map(|(object, left)| object.1.len() + left.task.len()).collect();
        let has_room = sizes.is_empty() || self.has_room(sizes.len(), sizes.iter().sum(), 3);
        let mut counts_below = counts.clone();
        if objects.len() > MAX_SMALL && !has_room {
            let tops = top_directories(&objects);
            for top in &tops {
                let count = objects.iter().filter(|(object, _)| object.0 == ObjectKind::File && is_below(object, top)).count();
                counts_below.entry(top.clone()).or_insert(count as u64);
            }
            objects.retain(|(object, _)| !tops.iter().any(|top| is_below(object, top)));
        }
        let parts = if objects.len() > MAX_SMALL { 3 } else { 4 };
        for (object, left) in objects {
            self.set_count(object, &left.task, counts_below.get(&object.1).copied());
            self.add_object(object, left, parts, still_leaves);
        }
    }

    /// Records that the files of a directory are only counted. Removes those that the record names. Without a `count`, the
    /// files are recorded one by one.
    fn set_count(&mut self, object: &HostObject, task: &str, count: Option<u64>) {
        let (kind, path) = object;
        if *kind != ObjectKind::Directory {
            return;
        }
        let Some(count) = count else {
            self.trees.counts.remove(path);
            return;
        };
        self.trees.counts.insert(path.clone(), count);
        self.objects.retain(|object, left| left.task != task || !is_below(object, path));
        self.bytes = size_of_names(&self.objects);
    }

    /// Adds an object, if there is room for it.
    fn add_object(
        &mut self,
        object: &HostObject,
        left: &LeftObject,
        parts: usize,
        still_leaves: &mut impl FnMut(&HostObject, &str) -> bool,
    ) {
        let recorded = self.objects.get(object);
        let added_bytes = if recorded.is_some() { 0 } else { object.1.len() + left.task.len() };
        if recorded.is_none() && !self.has_room(1, added_bytes, parts) {
            self.omitted_count += 1;
        } else if recorded.is_none_or(|recorded| recorded.task == left.task || !still_leaves(object, &recorded.task)) {
            let is_created = recorded.map_or(left.is_created, |recorded| recorded.is_created);
            self.objects.insert(object.clone(), LeftObject { is_created, ..left.clone() });
            self.bytes += added_bytes;
        }
    }
}

/// Returns the size of all names and task ids of objects, in bytes.
fn size_of_names(objects: &LeftObjects) -> usize {
    objects.iter().map(|((_, name), left)| name.len() + left.task.len()).sum()
}

/// Returns whether an object is a file, directory or link below a directory.
pub(super) fn is_below((kind, path): &HostObject, directory: &str) -> bool {
    kind.file_kind().is_some() && path != directory && is_at_or_below(path, directory)
}

/// Returns the directories among objects that are not below another.
fn top_directories(objects: &[(&HostObject, &LeftObject)]) -> Vec<String> {
    let mut tops: Vec<String> = Vec::new();
    // A directory comes before what is below it.
    for (object, _) in objects.iter().filter(|(object, _)| object.0 == ObjectKind::Directory) {
        if !tops.iter().any(|top| is_below(object, top)) {
            tops.push(object.1.clone());
        }
    }
    tops
}

/// Returns the record of left objects. Objects from the record of an older agent, which recorded only files, are added.
///
/// # Errors
/// [`HostError`] from the ledger.
pub(super) fn recorded_objects(site: &Site) -> Result<LeftObjects, HostError> {
    let mut objects = site.ledger.get(&LEFT_OBJECTS)?.unwrap_or_default();
    for (path, task) in site.ledger.get(&WRITTEN_FILES)?.unwrap_or_default() {
        let is_secret = HostPath::parse(&path).is_ok_and(|path| site.ledger.is_secret_path(&path).unwrap_or(true));
        let is_created = site.ledger.is_created_by_task(&path)?;
        let left = LeftObject { task, is_secret, is_created, digest: None };
        objects.entry((ObjectKind::File, path)).or_insert(left);
    }
    Ok(objects)
}

/// Returns what is known about the content of recorded directories, and whether the record is complete.
///
/// # Errors
/// [`HostError`] from the ledger.
pub(super) fn recorded_trees(site: &Site) -> Result<LeftTrees, HostError> {
    Ok(site.ledger.get(&LEFT_TREES)?.unwrap_or_default())
}

/// Stores the record of left objects, which then contains everything of the record of an older agent.
fn store_objects(site: &Site, objects: &LeftObjects) -> Result<(), HostError> {
    site.ledger.put(&LEFT_OBJECTS, objects)?;
    site.ledger.remove(&WRITTEN_FILES)
}

/// Stores what is known about the content of directories, apart from those that are not among the recorded objects.
fn store_trees(site: &Site, mut trees: LeftTrees, objects: &LeftObjects) -> Result<(), HostError> {
    trees.counts.retain(|path, _| objects.contains_key(&(ObjectKind::Directory, path.clone())));
    if trees == recorded_trees(site)? { Ok(()) } else { site.ledger.put(&LEFT_TREES, &trees) }
}

/// Adds the objects that tasks have left to the record on disk, each with its task. An object beyond the size limits of
/// the record is omitted and counted.
///
/// If the record names another task for an object, that entry changes only if `still_leaves(object, task)` is false for
/// the recorded task. An object that a task of an earlier task set created still counts as created.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn record_left(
    site: &Site,
    batch: &LeftBatch,
    mut still_leaves: impl FnMut(&HostObject, &str) -> bool,
) -> Result<(), HostError> {
    let recorded = recorded_objects(site)?;
    let mut record = LeftRecord::new(recorded.clone(), recorded_trees(site)?);
    let mut by_task = BTreeMap::<&str, Vec<_>>::new();
    for (object, left) in &batch.objects {
        by_task.entry(left.task.as_str()).or_default().push((object, left));
    }
    for objects in by_task.into_values() {
        record.add_task(objects, &batch.counts, &mut still_leaves);
    }
    if record.omitted_count > 0 {
        warn!(count = record.omitted_count; "the record of what tasks left on this host is full: orphans are missing in its list");
    }
    let LeftRecord { objects, mut trees, omitted_count, .. } = record;
    trees.omitted_count = trees.omitted_count.max(omitted_count);
    store_trees(site, trees, &objects)?;
    if objects == recorded { Ok(()) } else { store_objects(site, &objects) }
}

/// Removes objects from the record on disk. Also removes the notes that tasks created them.
pub(super) fn remove_records(site: &Site, recorded: &mut LeftObjects, objects: &BTreeSet<HostObject>) -> Result<(), HostError> {
    if objects.is_empty() {
        return Ok(());
    }
    recorded.retain(|object, _| !objects.contains(object));
    store_objects(site, recorded)?;
    let mut trees = recorded_trees(site)?;
    if recorded.is_empty() {
        trees.omitted_count = 0;
    }
    store_trees(site, trees, recorded)?;
    objects.iter().filter(|(kind, _)| kind.file_kind().is_some()).try_for_each(|(_, path)| site.ledger.forget_creation(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::applier::testing::site;
    use crate::host::memory::MemoryHost;

    fn left_by(task: &str) -> LeftObject {
        LeftObject { task: task.to_owned(), is_secret: false, is_created: true, digest: None }
    }

    fn record(site: &Site, objects: LeftObjects) -> Result<(), HostError> {
        record_left(site, &LeftBatch { objects, ..LeftBatch::default() }, |_, _| true)
    }

    /// Returns the objects of a tree: its directory with this number of files.
    fn tree(task: &str, count: usize) -> LeftObjects {
        let files = (0..count).map(|number| (ObjectKind::File, format!("/srv/{task}/{number}")));
        let top = (ObjectKind::Directory, format!("/srv/{task}"));
        files.chain([top]).map(|object| (object, left_by(task))).collect()
    }

    /// Regression test: an object that was recorded again took room a second time.
    #[test]
    fn record_has_room_when_objects_are_recorded_again() {
        let site = site(&MemoryHost::new());
        let objects = |count: usize| -> LeftObjects {
            (0..count).map(|number| ((ObjectKind::File, format!("/{number:03000}")), left_by("t"))).collect()
        };
        for count in [1000, 1001] {
            record(&site, objects(count)).unwrap();
            assert_eq!(recorded_objects(&site).unwrap().len(), count);
        }
        record(&site, objects(2000)).unwrap();
        let bytes = size_of_names(&recorded_objects(&site).unwrap());
        assert!((MAX_BYTES / 4 * 3 - 4096..MAX_BYTES / 4 * 3).contains(&bytes), "{bytes}");
        let omitted_count = (2000 - recorded_objects(&site).unwrap().len()) as u64;
        assert_eq!(recorded_trees(&site).unwrap().omitted_count, omitted_count);
    }

    /// Regression test: one tree filled the record, so the objects of later tasks were never listed as orphans.
    #[test]
    fn tree_leaves_room_for_other_tasks() {
        let site = site(&MemoryHost::new());
        record(&site, tree("a", 4096)).unwrap();
        assert_eq!(recorded_objects(&site).unwrap().len(), 4097);
        record(&site, tree("b", 20_000)).unwrap();
        let user = (ObjectKind::User, "u".to_owned());
        record(&site, LeftObjects::from([(user.clone(), left_by("u"))])).unwrap();
        let recorded = recorded_objects(&site).unwrap();
        assert_eq!(recorded.len(), 4097 + 1 + 1);
        assert!(recorded.contains_key(&user) && recorded.contains_key(&(ObjectKind::Directory, "/srv/b".to_owned())));
        let expected = LeftTrees { counts: BTreeMap::from([("/srv/b".to_owned(), 20_000)]), omitted_count: 0 };
        assert_eq!(recorded_trees(&site).unwrap(), expected);
        // The tree has become small.
        record(&site, tree("b", 10)).unwrap();
        assert_eq!(recorded_objects(&site).unwrap().len(), 4097 + 11 + 1);
        assert_eq!(recorded_trees(&site).unwrap(), LeftTrees::default());
        // It has become large again, so the files that are recorded are only counted.
        let counts = BTreeMap::from([("/srv/b".to_owned(), 5000)]);
        let top = LeftObjects::from([((ObjectKind::Directory, "/srv/b".to_owned()), left_by("b"))]);
        record_left(&site, &LeftBatch { objects: top, counts: counts.clone() }, |_, _| true).unwrap();
        assert_eq!(recorded_objects(&site).unwrap().len(), 4097 + 1 + 1);
        assert_eq!(recorded_trees(&site).unwrap().counts, counts);
        let mut recorded = recorded_objects(&site).unwrap();
        remove_records(&site, &mut recorded, &BTreeSet::from([(ObjectKind::Directory, "/srv/b".to_owned())])).unwrap();
        assert_eq!(recorded_trees(&site).unwrap(), LeftTrees::default());
    }
}
