//! The state of the agent's root half, which runs as root and applies tasks. It includes the last accepted desired
//! state, bodies by hash, the journal of commands, unacknowledged results, and the keys that the agent owns in the host
//! label map.
//!
//! Each record is a small file of its own, checksummed and replaced as a whole, instead of an entry in one append-only
//! log. So a torn file costs one record. The file is renamed and reported, and the agent always starts despite damaged
//! state (F13). Nothing is cached here, because what the agent does next must depend on what is on disk.

mod bodies;
mod reboots;
mod record;
mod results;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use log::warn;
use serde::Serialize;
use serde::de::DeserializeOwned;
use stemma_core::digest::{Hex, sha256};
use stemma_wire::message::observed::{LocalState, Report};
use uuid::Uuid;

use crate::host::atomic::{Attributes, StagedFile, ensure_dir, replace, sweep};
use crate::host::{Dir, Host, HostError, HostPath};
use crate::paths;

pub use bodies::{BodyProgress, IncomingBody};
pub use reboots::{PACKAGE_REBOOT, PackageReboot, REBOOT_REQUESTS, RebootRequest, USED_REBOOT, UsedReboot};
use record::RecordKind;
pub(crate) use state::read_part;
pub use state::{
    AcceptedState, CleanUp, CleanUpStep, CopiedFile, Desired, HookSnapshot, HostMapRecord, HostObject, LeftObject, LeftTrees,
    ObjectKind, OpenBarriers, Reason, Step, StepState, SyncRecord, TaskProgress, TaskRecord, TreeRecord, UndoNote,
};

/// Maximum size of a record, in bytes. A larger record is written, but becomes unusable when it is read. The largest
/// records are a batch of results, the reasons of tasks, and the written files (about 4 MiB).
const MAX_RECORD_BYTES: u64 = 8 * 1024 * 1024;

/// Maximum size of the record of the files that a task has copied, in bytes. The files beyond are read in each check.
const MAX_TREE_RECORD_BYTES: usize = 4 * 1024 * 1024;

/// Maximum size of the names in the record of a `sync` task, in bytes. With its other content, the record has at most 6 MiB.
const MAX_SYNC_NAMES_BYTES: usize = 1024 * 1024;

/// Number of bytes that [`Ledger::check_writable`] writes for a test. It is the size of a small record.
const PROBE_BYTES: usize = 4096;

/// Suffix of the name to which the file of an unusable record is renamed, so that the agent can continue without it.
const SET_ASIDE_SUFFIX: &str = ".set-aside";

/// Maximum number of unusable records that are reported for each directory.
const MAX_SET_ASIDE: usize = 8;

/// Prefix of the name of the file that marks a task as being applied. The rest of the name is the encoded id of the
/// task ([`encode_file_name`]).
const APPLYING_PREFIX: &str = "applying-";

/// The name of a record that exists only once in the ledger, with the kind and type of its value.
pub struct RecordName<T> {
    kind: RecordKind,
    name: &'static str,
    value: PhantomData<fn() -> T>,
}

impl<T> RecordName<T> {
    const fn new(kind: RecordKind, name: &'static str) -> Self {
        Self { kind, name, value: PhantomData }
    }
}

/// The last accepted desired state. Code reads this record with [`Ledger::accepted`], which checks that it is readable.
pub const ACCEPTED: RecordName<AcceptedState> = RecordName::new(RecordKind::Accepted, "accepted");
/// The uuid of the node for which the last desired state was accepted, on a host that has joined again. It is
/// [`Uuid::nil`] from the join until the first accepted state. It is absent on a host that has joined once.
pub const ACCEPTED_NODE: RecordName<Uuid> = RecordName::new(RecordKind::AcceptedNode, "accepted-node");
/// The outcomes that the agent last reported, for the tasks in the current profile. An outcome can be of an earlier
/// task set.
pub const PROGRESS: RecordName<TaskProgress> = RecordName::new(RecordKind::Progress, "progress");
/// The keys that the agent owns in the host label map (a file with the labels). The record is absent if the agent has
/// not written the map yet, or if the record was lost. It can be present without keys.
pub const HOST_MAP: RecordName<HostMapRecord> = RecordName::new(RecordKind::HostMap, "host-map");
/// The last snapshot of labels, annotations, traits and tags that the hooks received.
pub const HOOK_SNAPSHOT: RecordName<HookSnapshot> = RecordName::new(RecordKind::HookSnapshot, "told");
/// Pause, hold and park as set on the host itself.
pub const LOCAL_STATE: RecordName<LocalState> = RecordName::new(RecordKind::LocalState, "local");
/// The last report of this host, which the command `stemma-agent status` shows.
pub const REPORT: RecordName<Report> = RecordName::new(RecordKind::Report, "report");
/// The private key for secrets that the fleet encrypts for this host. Nothing is decrypted with it yet.
pub const SEAL_KEY: RecordName<[u8; 32]> = RecordName::new(RecordKind::SealKey, "seal-key");
/// The barriers that a controller reported as open.
pub const OPEN_BARRIERS: RecordName<OpenBarriers> = RecordName::new(RecordKind::OpenBarriers, "open-barriers");
/// The reasons for the last outcomes of tasks, by task id. A task without a reason has no entry.
pub const REASONS: RecordName<BTreeMap<String, Reason>> = RecordName::new(RecordKind::Reasons, "reasons");
/// The number of the last reconcile that a command on the host requested from the running agent. The numbers grow.
pub const RECONCILE_REQUESTED: RecordName<u64> = RecordName::new(RecordKind::ReconcileRequested, "look-asked");
/// The numbers ([`RECONCILE_REQUESTED`]) of two requested reconciles: the last one that the running agent began, and
/// the last one that it finished.
pub const RECONCILE_DONE: RecordName<(u64, u64)> = RecordName::new(RecordKind::ReconcileDone, "look-done");
/// The tasks that must run again because a task that they subscribe to has changed something, or was about to.
pub const REFRESHES: RecordName<BTreeSet<String>> = RecordName::new(RecordKind::Refreshes, "refreshes");
/// The directories in which tasks may leave unfinished files, by path. The values are the uids that tasks set as owners
/// of files in the directory.
pub const STAGING_DIRS: RecordName<BTreeMap<String, BTreeSet<u32>>> = RecordName::new(RecordKind::StagingDirs, "staging-dirs");
/// The files that tasks wrote, as older agents recorded them: the id of the task, by the path of the file.
pub const WRITTEN_FILES: RecordName<BTreeMap<String, String>> = RecordName::new(RecordKind::WrittenFiles, "written-files");
/// The objects that tasks left on this host, each with the task that left it. If this record exists, [`WRITTEN_FILES`] is
/// only of an older agent that ran since.
pub const LEFT_OBJECTS: RecordName<BTreeMap<HostObject, LeftObject>> = RecordName::new(RecordKind::LeftObjects, "left-objects");
/// The directories of [`LEFT_OBJECTS`] whose files are only counted, and whether that record is complete.
pub const LEFT_TREES: RecordName<LeftTrees> = RecordName::new(RecordKind::LeftTrees, "left-trees");
/// The clean-ups (tasks of `on_unassign`), by the id of the task that names them.
pub const CLEAN_UPS: RecordName<BTreeMap<String, CleanUp>> = RecordName::new(RecordKind::CleanUps, "clean-ups");
/// The units in which the commands of tasks run, by task. A unit is recorded before it starts, and removed when the end
/// of its command is recorded.
pub const STARTED_UNITS: RecordName<BTreeMap<String, String>> = RecordName::new(RecordKind::StartedUnits, "started-units");
/// The next free sequence number of a result.
const SEQUENCE: RecordName<u64> = RecordName::new(RecordKind::Sequence, "sequence");
/// Number of results that were dropped before a controller stored them, and that no finding has reported yet.
const DROPPED_RESULTS: RecordName<u64> = RecordName::new(RecordKind::DroppedResults, "dropped-results");

/// The stored state of the agent's root half, which runs as root and applies tasks.
pub struct Ledger {
    host: Rc<dyn Host>,
    dir: Box<dyn Dir>,
    steps: Box<dyn Dir>,
    results: Box<dyn Dir>,
    bodies: Box<dyn Dir>,
    undo: Box<dyn Dir>,
    trees: Box<dyn Dir>,
    secret_paths: Box<dyn Dir>,
}

/// A guard that marks a task as being applied by this process, with a locked file. Other commands on this host see the
/// mark until the guard is dropped or the process ends. If the file could not be created or locked, there is no mark.
#[must_use]
pub struct ApplyGuard<'a> {
    ledger: &'a Ledger,
    name: String,
    lock: Option<OwnedFd>,
}

impl Drop for ApplyGuard<'_> {
    fn drop(&mut self) {
        // The file is removed before its lock is released, so it is locked for as long as another process can find it.
        if self.lock.is_some() {
            let _ = self.ledger.dir.remove(&self.name);
        }
    }
}

impl Ledger {
    /// Opens the directories of the ledger, and creates those that are missing.
    ///
    /// # Errors
    /// [`HostError`] if a directory cannot be opened or created. A damaged record is not an error.
    pub fn open(host: Rc<dyn Host>) -> Result<Self, HostError> {
        let open_dir = |name: &str| {
            let path = HostPath::from_static(&format!("{}{name}", paths::APPLY_STATE));
            ensure_dir(&*host, &path, 0o700)
        };
        ensure_dir(&*host, &HostPath::from_static(paths::STATE), 0o755)?;
        let (dir, steps, results, bodies, undo, trees, secret_paths) = (
            open_dir("")?,
            open_dir("/steps")?,
            open_dir("/results")?,
            open_dir("/bodies")?,
            open_dir("/undo")?,
            open_dir("/trees")?,
            open_dir("/secret-paths")?,
        );
        Ok(Self { host, dir, steps, results, bodies, undo, trees, secret_paths })
    }

    /// Removes the files that a killed agent left: unfinished files, and the marks of tasks that it applied. The caller
    /// must ensure that no other agent uses this state.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn sweep(&self) -> Result<(), HostError> {
        // The parent directory, which also contains the identity, may contain unfinished files too.
        let state_dir = ensure_dir(&*self.host, &HostPath::from_static(paths::STATE), 0o755)?;
        let mut markers = self.dir.names()?.into_iter().filter(|name| name.starts_with(APPLYING_PREFIX));
        markers.try_for_each(|name| self.dir.remove(&name))?;
        [&state_dir, &self.dir, &self.steps, &self.results, &self.bodies, &self.undo, &self.trees, &self.secret_paths]
            .into_iter()
            .try_for_each(|dir| sweep(&*self.host, &**dir))
    }

    /// Returns the value of a record, or `None` if the record does not exist or is unusable.
    ///
    /// # Errors
    /// [`HostError`] if the host cannot read the file.
    pub fn get<T: DeserializeOwned>(&self, record: &RecordName<T>) -> Result<Option<T>, HostError> {
        Self::read(&*self.dir, record.name, record.kind)
    }

    /// Writes a record. The record is durable when this function returns. Does nothing if the record already has this
    /// value.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn put<T: Serialize>(&self, record: &RecordName<T>, value: &T) -> Result<(), HostError> {
        self.write(&*self.dir, record.name, record.kind, value)
    }

    /// Removes a record. Does nothing if it does not exist.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn remove<T>(&self, record: &RecordName<T>) -> Result<(), HostError> {
        remove_entry(&*self.dir, record.name)
    }

    /// Checks that a record can be written. For this, writes a file of [`PROBE_BYTES`] under a temporary name and
    /// removes it.
    ///
    /// # Errors
    /// [`HostError`], the same as a write of the accepted desired state would return.
    pub fn check_writable(&self) -> Result<(), HostError> {
        let attributes = Attributes::with_mode(0o600);
        self.dir.check_replaceable(ACCEPTED.name)?;
        let probe = StagedFile::write(&*self.host, &*self.dir, ACCEPTED.name, &[0; PROBE_BYTES], &attributes)?;
        // An agent that starts at this moment removes unfinished files, so the probe may not exist any more. The error
        // of this removal is therefore ignored.
        let _ = probe.discard(&*self.dir);
        Ok(())
    }

    /// Like [`Self::check_writable`], but writes a probe only if the file system reports that it is full.
    ///
    /// # Errors
    /// As [`Self::check_writable`].
    pub fn check_room(&self) -> Result<(), HostError> {
        self.dir.check_replaceable(ACCEPTED.name)?;
        // Some file systems, for example on a network, report no free space although there is some. So a real write
        // decides.
        if self.dir.is_full(PROBE_BYTES as u64)? { self.check_writable() } else { Ok(()) }
    }

    /// Returns the last accepted desired state, or `None` if there is none or one of its two parts (the known part and
    /// the task set) is unreadable.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn accepted(&self) -> Result<Option<AcceptedState>, HostError> {
        Ok(self.get(&ACCEPTED)?.filter(AcceptedState::is_readable))
    }

    /// Returns whether the last desired state was accepted for another node than this one. A host that joins again under
    /// a new node still has the state of the old one.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn is_of_other_node(&self, node: Uuid) -> Result<bool, HostError> {
        Ok(self.get(&ACCEPTED_NODE)?.is_some_and(|accepted_for| accepted_for != node))
    }

    /// Records that the host joins as a new node. The caller does this before it stores the new identity.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn begin_membership(&self) -> Result<(), HostError> {
        if self.accepted()?.is_some() { self.put(&ACCEPTED_NODE, &Uuid::nil()) } else { Ok(()) }
    }

    /// Returns the journal entry of a task, or `None` if there is none or it is unusable.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn step(&self, task: &str) -> Result<Option<Step>, HostError> {
        Self::read(&*self.steps, &encode_file_name(task), RecordKind::Step)
    }

    /// Writes the journal entry of a task. The entry is durable when this function returns.
    ///
    /// # Errors
    /// [`HostError`]. If the state of the step is `Begun`, the caller must then not start the command of the task.
    pub fn set_step(&self, step: &Step) -> Result<(), HostError> {
        self.write(&*self.steps, &encode_file_name(&step.task), RecordKind::Step, step)
    }

    /// Removes the journal entry of a task. Does nothing if it has none.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn remove_step(&self, task: &str) -> Result<(), HostError> {
        remove_entry(&*self.steps, &encode_file_name(task))
    }

    /// Returns the unit in which the command of a task runs, if the end of the command is not recorded.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn started_unit(&self, task: &str) -> Result<Option<String>, HostError> {
        Ok(self.get(&STARTED_UNITS)?.unwrap_or_default().remove(task))
    }

    /// Records the unit in which the command of a task runs, or removes it from the record (`None`). The record is durable
    /// when this function returns.
    ///
    /// # Errors
    /// [`HostError`]. If a unit could not be recorded, the caller must not start it.
    pub fn set_started_unit(&self, task: &str, unit: Option<&str>) -> Result<(), HostError> {
        let mut units = self.get(&STARTED_UNITS)?.unwrap_or_default();
        match unit {
            Some(unit) => units.insert(task.to_owned(), unit.to_owned()),
            None => units.remove(task),
        };
        self.put(&STARTED_UNITS, &units)
    }

    /// Marks a task as being applied by this process, so that other commands on this host can wait for its end. If the
    /// marker file cannot be created, the task is applied nevertheless, and other commands do not see it.
    pub fn mark_applying(&self, task: &str) -> ApplyGuard<'_> {
        let name = format!("{APPLYING_PREFIX}{}", encode_file_name(task));
        let lock = self.host.lock_file(&ledger_path(&name)).ok().flatten();
        ApplyGuard { ledger: self, name, lock }
    }

    /// Returns whether another process applies this task now.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn is_applied_elsewhere(&self, task: &str) -> Result<bool, HostError> {
        self.host.is_file_locked(&ledger_path(&format!("{APPLYING_PREFIX}{}", encode_file_name(task))))
    }

    /// Returns whether a task must run again because a task that it subscribes to has changed something.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn should_refresh(&self, task: &str) -> Result<bool, HostError> {
        Ok(self.get(&REFRESHES)?.is_some_and(|tasks| tasks.contains(task)))
    }

    /// Records that tasks must run again. The record is durable when this function returns. Returns the tasks that the
    /// record did not contain before.
    ///
    /// # Errors
    /// [`HostError`]. The caller must then not apply the task to which the tasks subscribe.
    pub fn request_refresh(&self, tasks: &[String]) -> Result<Vec<String>, HostError> {
        let mut added = Vec::new();
        self.update_refreshes(tasks, |refreshes| {
            added.extend(tasks.iter().filter(|task| refreshes.insert((*task).clone())).cloned());
        })?;
        Ok(added)
    }

    /// Removes tasks from the record of the tasks that must run again. The caller uses this when they have run, or need
    /// not run any more.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn clear_refresh(&self, tasks: &[String]) -> Result<(), HostError> {
        self.update_refreshes(tasks, |refreshes| refreshes.retain(|task| !tasks.contains(task)))
    }

    /// Applies `change` to the recorded set of tasks that must run again. Writes the record only if the set has
    /// changed. Does not read the record if `tasks` is empty.
    fn update_refreshes(&self, tasks: &[String], change: impl FnOnce(&mut BTreeSet<String>)) -> Result<(), HostError> {
        if tasks.is_empty() {
            return Ok(());
        }
        let old_refreshes = self.get(&REFRESHES)?.unwrap_or_default();
        let mut new_refreshes = old_refreshes.clone();
        change(&mut new_refreshes);
        if new_refreshes == old_refreshes { Ok(()) } else { self.put(&REFRESHES, &new_refreshes) }
    }

    /// Returns whether there is an unusable journal entry of the task, whose file was renamed (set aside).
    ///
    /// # Errors
    /// [`HostError`].
    pub fn is_step_set_aside(&self, task: &str) -> Result<bool, HostError> {
        Ok(self.steps.stat(&format!("{}{SET_ASIDE_SUFFIX}", encode_file_name(task)))?.is_some())
    }

    /// Records that a sensitive task manages the file at this path. The record is durable when this function returns.
    ///
    /// # Errors
    /// [`HostError`]. The caller must then not start the task.
    pub fn record_secret_path(&self, path: &HostPath) -> Result<(), HostError> {
        if self.is_secret_path(path)? {
            return Ok(());
        }
        self.write(&*self.secret_paths, &encode_file_name(path.as_str()), RecordKind::SecretPath, &path.as_str())
    }

    /// Returns whether a sensitive task ever managed the file at this path, or a directory or tree above it, so that the
    /// file may hold a secret. Only the existence of the record matters, so the result is right even if the record is
    /// damaged.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn is_secret_path(&self, path: &HostPath) -> Result<bool, HostError> {
        let mut next_path = Some(path.clone());
        while let Some(path) = next_path {
            if self.secret_paths.stat(&encode_file_name(path.as_str()))?.is_some() {
                return Ok(true);
            }
            next_path = path.parent();
        }
        Ok(false)
    }

    /// Stores a copy of the file that a task replaces or deletes, for undo. Replaces the earlier copy for the same
    /// path.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn store_undo(&self, note: &UndoNote) -> Result<(), HostError> {
        self.write(&*self.undo, &encode_file_name(&note.path), RecordKind::Undo, note)
    }

    /// Returns whether a task created the file, link or directory at this path, as far as the copies for undo show. What
    /// existed before, or whose copy is lost, was not created by a task.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn is_created_by_task(&self, path: &str) -> Result<bool, HostError> {
        let note: Option<UndoNote> = Self::read(&*self.undo, &encode_file_name(path), RecordKind::Undo)?;
        Ok(note.is_some_and(|note| note.path == path && note.bytes.is_none()))
    }

    /// Notes that a task is about to create a link or a directory at a path. The copy for undo of a file has this note too.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn note_creation(&self, task: &str, path: &str) -> Result<(), HostError> {
        self.store_undo(&UndoNote { task: task.to_owned(), path: path.to_owned(), bytes: None, attributes: None })
    }

    /// Removes the note that a task created something at this path, if there is one. The caller uses this when it no longer
    /// exists: a later file at the path is of another program.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn forget_creation(&self, path: &str) -> Result<(), HostError> {
        if self.is_created_by_task(path)? { remove_entry(&*self.undo, &encode_file_name(path)) } else { Ok(()) }
    }

    /// Returns what is known about the files that a task has copied. Empty if nothing is known.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn tree_record(&self, task: &str) -> Result<TreeRecord, HostError> {
        Ok(Self::read(&*self.trees, &encode_file_name(task), RecordKind::Tree)?.unwrap_or_default())
    }

    /// Stores what is known about the files that a task has copied, up to [`MAX_TREE_RECORD_BYTES`].
    ///
    /// # Errors
    /// [`HostError`].
    pub fn set_tree_record(&self, task: &str, record: &TreeRecord) -> Result<(), HostError> {
        let mut bytes = 0;
        let has_room = |(path, _): &(&String, &CopiedFile)| {
            bytes += path.len() + size_of::<CopiedFile>();
            bytes <= MAX_TREE_RECORD_BYTES
        };
        let stored: BTreeMap<_, _> = record.iter().take_while(has_room).collect();
        self.write(&*self.trees, &encode_file_name(task), RecordKind::Tree, &stored)
    }

    /// Returns what is known about the files of a `sync` task, or `None` if nothing is known, for example after an upgrade.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn sync_record(&self, task: &str) -> Result<Option<SyncRecord>, HostError> {
        Self::read(&*self.trees, &sync_record_name(task), RecordKind::Sync)
    }

    /// Stores what is known about the files of a `sync` task.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn set_sync_record(&self, task: &str, mut record: SyncRecord) -> Result<(), HostError> {
        record.limit_names(MAX_SYNC_NAMES_BYTES);
        self.write(&*self.trees, &sync_record_name(task), RecordKind::Sync, &record)?;
        // An older agent stored another record of the task, which nothing reads.
        remove_entry(&*self.trees, &encode_file_name(task))
    }

    /// Removes the records of copied files of all tasks that are not in `tasks`.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn retain_tree_records<'a>(&self, tasks: impl Iterator<Item = &'a str>) -> Result<(), HostError> {
        let needed_names: BTreeSet<_> = tasks.flat_map(|task| [encode_file_name(task), sync_record_name(task)]).collect();
        for name in self.trees.names()? {
            if !needed_names.contains(&name) && !name.starts_with('.') && !name.ends_with(SET_ASIDE_SUFFIX) {
                self.trees.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Reads a record. If the record is unusable (damaged, too large, of another kind, written by a newer agent, or not
    /// a plain file), renames its file (sets it aside) and returns `None`. Fails if the error is not about this file.
    fn read<T: DeserializeOwned>(dir: &dyn Dir, name: &str, kind: RecordKind) -> Result<Option<T>, HostError> {
        let bytes = match dir.read(name, MAX_RECORD_BYTES) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(None),
            Err(error) if error.is_about_file() => {
                Self::set_aside(dir, name, &error.sentence())?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        match record::decode(kind, &bytes) {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                Self::set_aside(dir, name, &error.to_string())?;
                Ok(None)
            }
        }
    }

    /// Returns a finding for each file of an unusable record that was renamed (set aside), at most [`MAX_SET_ASIDE`]
    /// for each directory. A person must remove such a file.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn set_aside_records(&self) -> Result<Vec<String>, HostError> {
        let dirs = [
            (&self.dir, ""),
            (&self.steps, "steps/"),
            (&self.results, "results/"),
            (&self.undo, "undo/"),
            (&self.trees, "trees/"),
        ];
        let mut findings = Vec::new();
        for (dir, prefix) in dirs {
            let names = dir.names()?.into_iter().filter(|name| name.ends_with(SET_ASIDE_SUFFIX));
            findings.extend(names.take(MAX_SET_ASIDE).map(|name| {
                let path = format!("{}/{prefix}{name}", paths::APPLY_STATE);
                format!("{path}: a record of the agent could not be used and was set aside; inspect it, then remove it")
            }));
        }
        Ok(findings)
    }

    /// Renames the file of an unusable record, and logs the reason. The agent continues without the record, and a
    /// person can inspect the file.
    fn set_aside(dir: &dyn Dir, name: &str, reason: &str) -> Result<(), HostError> {
        let new_name = format!("{name}{SET_ASIDE_SUFFIX}");
        warn!(name, error = reason, to = new_name.as_str(); "a record of the agent's state cannot be used and is set aside");
        match dir.rename(name, &new_name) {
            // Another command of the agent has renamed the file already.
            Err(error) if error.has_kind(ErrorKind::NotFound) => Ok(()),
            result => result,
        }
    }

    /// Writes a record into one of the ledger's directories. Does nothing if the record has this value already.
    fn write<T: Serialize>(&self, dir: &dyn Dir, name: &str, kind: RecordKind, value: &T) -> Result<(), HostError> {
        let bytes = record::encode(kind, value);
        if matches!(dir.read(name, MAX_RECORD_BYTES), Ok(Some(old_bytes)) if old_bytes == bytes) {
            return Ok(());
        }
        replace(&*self.host, dir, name, &bytes, &Attributes::with_mode(0o600))
    }
}

#[cfg(test)]
impl Ledger {
    /// Returns the copy of the file that a task last replaced at a path.
    pub(crate) fn undo_note(&self, path: &str) -> Option<UndoNote> {
        Self::read(&*self.undo, &encode_file_name(path), RecordKind::Undo).unwrap()
    }
}

/// Returns the path of a file of the ledger, in the directory for the state of the agent's root half.
fn ledger_path(name: &str) -> HostPath {
    HostPath::from_static(&format!("{}/{name}", paths::APPLY_STATE))
}

/// Removes a file of the ledger, and makes this durable. Does nothing if the file does not exist.
fn remove_entry(dir: &dyn Dir, name: &str) -> Result<(), HostError> {
    if dir.stat(name)?.is_none() {
        return Ok(());
    }
    dir.remove(name)?;
    dir.sync()
}

/// Returns the name of the file with the record of a `sync` task. No id of a task has a blank.
fn sync_record_name(task: &str) -> String {
    encode_file_name(&format!("sync {task}"))
}

/// Returns a file name for a text of any length and content: the first half of its SHA-256 digest, in hex.
pub(super) fn encode_file_name(text: &str) -> String {
    Hex(&sha256(text.as_bytes())[..16]).to_string()
}

#[cfg(test)]
pub(crate) mod tests;
