//! What the root half keeps: the last accepted desired state, bodies by hash, steps in flight, results that were
//! not acknowledged, and which keys of the host label map are the agent's.
//!
//! Each fact is a small file of its own, checksummed and replaced whole. Not one append-only log: a torn file
//! then costs one fact, which is set aside under another name and said, and an agent never fails to start over
//! its own state (F13). Whether a fact is on disk decides what is done next, so nothing is cached here.

mod bodies;
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

use crate::host::atomic::{Attributes, Staged, ensure_dir, replace, sweep};
use crate::host::{Dir, Host, HostError, HostPath};
use crate::paths;

pub use bodies::{Arriving, Piece};
use record::Kind;
pub(crate) use state::part;
pub use state::{
    Accepted, Desired, HookSnapshot, HostMapRecord, OpenBarriers, Performed, Progress, Reason, Step, StepState,
    UndoNote,
};

/// The largest record: a desired state of 256 KiB with what stands around it, or a batch of results.
const LARGEST: u64 = 8 * 1024 * 1024;

/// How many bytes [`Ledger::check_writable`] writes: as many as a small record needs.
const PROBE: usize = 4096;

/// What a record that cannot be used is called from then on.
const SET_ASIDE: &str = ".set-aside";

/// The most of them that are named, in each directory.
const MOST_SET_ASIDE: usize = 8;

/// What the file is called by that says that a task is applied, before the name of its record.
const APPLYING: &str = "applying-";

/// A record that the ledger has once: what it holds, and the name of its file.
pub struct Record<T> {
    kind: Kind,
    name: &'static str,
    value: PhantomData<fn() -> T>,
}

impl<T> Record<T> {
    const fn new(kind: Kind, name: &'static str) -> Self {
        Self { kind, name, value: PhantomData }
    }
}

/// The last accepted desired state; [`Ledger::accepted`] reads it.
pub const ACCEPTED: Record<Accepted> = Record::new(Kind::Accepted, "accepted");
/// How far the present task set has come.
pub const PROGRESS: Record<Progress> = Record::new(Kind::Progress, "progress");
/// Which keys of the host label map are the agent's. It is absent when nothing was ever noted, or the record was lost.
pub const HOST_MAP: Record<HostMapRecord> = Record::new(Kind::HostMap, "host-map");
/// What the hooks were told last.
pub const HOOK_SNAPSHOT: Record<HookSnapshot> = Record::new(Kind::HookSnapshot, "told");
/// What was said on the host itself.
pub const LOCAL: Record<LocalState> = Record::new(Kind::Local, "local");
/// What was last reported of this host, for `status`.
pub const REPORT: Record<Report> = Record::new(Kind::Report, "report");
/// The private half of the key that secrets are sealed to.
pub const SEAL_KEY: Record<[u8; 32]> = Record::new(Kind::SealKey, "seal-key");
/// The barriers that were said to be open.
pub const OPEN_BARRIERS: Record<OpenBarriers> = Record::new(Kind::Open, "open-barriers");
/// Why tasks ended as they did, where there is something to say; by task id.
pub const REASONS: Record<BTreeMap<String, Reason>> = Record::new(Kind::Reasons, "reasons");
/// The number of the last look that a verb on the host asked the running agent for.
pub const LOOK_ASKED: Record<u64> = Record::new(Kind::LookAsked, "look-asked");
/// How far the running agent is with looks that were asked for: the last one that it took up, and the last one that is over.
pub const LOOK_DONE: Record<(u64, u64)> = Record::new(Kind::LookDone, "look-done");
/// The tasks that are to run again, since one that they subscribe to has changed something.
pub const REFRESHES: Record<BTreeSet<String>> = Record::new(Kind::Refreshes, "refreshes");
/// The directories in which a pass may put files together, and whom tasks give files in them to.
pub const STAGING_DIRS: Record<BTreeMap<String, BTreeSet<u32>>> = Record::new(Kind::StagingDirs, "staging-dirs");
/// The files that tasks wrote, each with the task.
pub const WRITTEN: Record<BTreeMap<String, String>> = Record::new(Kind::Written, "written-files");
/// The next free number of a result.
const SEQUENCE: Record<u64> = Record::new(Kind::Sequence, "sequence");
/// How many results went before a controller took them.
const DROPPED: Record<u64> = Record::new(Kind::Dropped, "dropped-results");

/// The state directory of the root half.
pub struct Ledger {
    host: Rc<dyn Host>,
    dir: Box<dyn Dir>,
    steps: Box<dyn Dir>,
    results: Box<dyn Dir>,
    bodies: Box<dyn Dir>,
    undo: Box<dyn Dir>,
    secret_paths: Box<dyn Dir>,
}

/// A task that this process applies. Other commands on this host see it until this is dropped, or the process is gone.
#[must_use]
pub struct Applying<'a> {
    ledger: &'a Ledger,
    name: String,
    held: Option<OwnedFd>,
}

impl Drop for Applying<'_> {
    fn drop(&mut self) {
        // The lock goes after the file: who finds the file while the task is applied finds it held.
        if self.held.is_some() {
            let _ = self.ledger.dir.remove(&self.name);
        }
    }
}

impl Ledger {
    /// Opens the state directory, making it where it is missing.
    ///
    /// # Errors
    /// [`HostError`] when the directory itself cannot be had; never over what is in it.
    pub fn open(host: Rc<dyn Host>) -> Result<Self, HostError> {
        let below = |name: &str| {
            let path = HostPath::own(&format!("{}{name}", paths::APPLY_STATE));
            ensure_dir(&*host, &path, 0o700)
        };
        ensure_dir(&*host, &HostPath::own(paths::STATE), 0o755)?;
        let (dir, steps, results, bodies, undo, secret_paths) = (
            below("")?,
            below("/steps")?,
            below("/results")?,
            below("/bodies")?,
            below("/undo")?,
            below("/secret-paths")?,
        );
        Ok(Self { host, dir, steps, results, bodies, undo, secret_paths })
    }

    /// Takes away unfinished files of an agent that was killed. Only while no other agent runs on this state.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn sweep(&self) -> Result<(), HostError> {
        // The identity lies above them.
        let above = ensure_dir(&*self.host, &HostPath::own(paths::STATE), 0o755)?;
        let mut applied = self.dir.names()?.into_iter().filter(|name| name.starts_with(APPLYING));
        applied.try_for_each(|name| self.dir.remove(&name))?;
        [&above, &self.dir, &self.steps, &self.results, &self.bodies, &self.undo, &self.secret_paths]
            .into_iter()
            .try_for_each(|dir| sweep(&*self.host, &**dir))
    }

    /// What a record holds; a record that is not there, or that cannot be used, is absent.
    ///
    /// # Errors
    /// [`HostError`] from the machine, here and below.
    pub fn get<T: DeserializeOwned>(&self, record: &Record<T>) -> Result<Option<T>, HostError> {
        Self::read(&*self.dir, record.name, record.kind)
    }

    /// Writes a record, durable when this returns. One that stands there already, equal, is left alone.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn put<T: Serialize>(&self, record: &Record<T>, value: &T) -> Result<(), HostError> {
        self.write(&*self.dir, record.name, record.kind, value)
    }

    /// Whether a record can be written now: one is begun beside the others, and taken away again.
    ///
    /// # Errors
    /// [`HostError`], as of the record of the accepted state.
    pub fn check_writable(&self) -> Result<(), HostError> {
        let attributes = Attributes::mode(0o600);
        self.dir.check_replaceable(ACCEPTED.name)?;
        let probe = Staged::write(&*self.host, &*self.dir, ACCEPTED.name, &[0; PROBE], &attributes)?;
        // Where an agent that starts has swept it away, it is gone as well.
        let _ = probe.discard(&*self.dir);
        Ok(())
    }

    /// The same, where nothing is to be written to find out: one is begun only where the file system says that it takes none.
    ///
    /// # Errors
    /// As [`Self::check_writable`].
    pub fn check_room(&self) -> Result<(), HostError> {
        self.dir.check_replaceable(ACCEPTED.name)?;
        // What it says of its room may be wrong, as over a network: whether a record can be written decides.
        if self.dir.is_full(PROBE as u64)? { self.check_writable() } else { Ok(()) }
    }

    /// The last accepted desired state, when both of its parts can be read.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn accepted(&self) -> Result<Option<Accepted>, HostError> {
        Ok(self.get(&ACCEPTED)?.filter(Accepted::is_whole))
    }

    /// What the journal says of a task.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn step(&self, task: &str) -> Result<Option<Step>, HostError> {
        Self::read(&*self.steps, &by_name(task), Kind::Step)
    }

    /// Writes a task's line of the journal, durable when this returns.
    ///
    /// # Errors
    /// [`HostError`]; then the step must not be begun.
    pub fn set_step(&self, step: &Step) -> Result<(), HostError> {
        self.write(&*self.steps, &by_name(&step.task), Kind::Step, step)
    }

    /// Says to other commands on this host that this process applies a task. Where the state takes no file, they do not see it.
    pub fn applying(&self, task: &str) -> Applying<'_> {
        let name = format!("{APPLYING}{}", by_name(task));
        let held = self.host.hold(&own(&name)).ok().flatten();
        Applying { ledger: self, name, held }
    }

    /// Whether another process applies a task now.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn is_applied_elsewhere(&self, task: &str) -> Result<bool, HostError> {
        self.host.is_held(&own(&format!("{APPLYING}{}", by_name(task))))
    }

    /// Whether a task is to run again, since one that it subscribes to has changed something.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn is_to_refresh(&self, task: &str) -> Result<bool, HostError> {
        Ok(self.get(&REFRESHES)?.is_some_and(|tasks| tasks.contains(task)))
    }

    /// Notes that tasks are to run again, durable when this returns: those of which it was not noted yet.
    ///
    /// # Errors
    /// [`HostError`]; then what they subscribe to must not be changed.
    pub fn ask_to_refresh(&self, tasks: &[String]) -> Result<Vec<String>, HostError> {
        let mut asked = Vec::new();
        self.change_refreshes(tasks, |kept| {
            asked.extend(tasks.iter().filter(|task| kept.insert((*task).clone())).cloned());
        })?;
        Ok(asked)
    }

    /// Notes that tasks have run again.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn refreshed(&self, tasks: &[String]) -> Result<(), HostError> {
        self.change_refreshes(tasks, |kept| kept.retain(|task| !tasks.contains(task)))
    }

    fn change_refreshes(&self, tasks: &[String], change: impl FnOnce(&mut BTreeSet<String>)) -> Result<(), HostError> {
        if tasks.is_empty() {
            return Ok(());
        }
        let before = self.get(&REFRESHES)?.unwrap_or_default();
        let mut kept = before.clone();
        change(&mut kept);
        if kept == before { Ok(()) } else { self.put(&REFRESHES, &kept) }
    }

    /// Whether a task's line of the journal was there and could not be used.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn is_step_set_aside(&self, task: &str) -> Result<bool, HostError> {
        Ok(self.steps.stat(&format!("{}{SET_ASIDE}", by_name(task)))?.is_some())
    }

    /// Notes that a sensitive task keeps the file at this path, durable when this returns.
    ///
    /// # Errors
    /// [`HostError`]; then the task must not be begun.
    pub fn note_secret_path(&self, path: &HostPath) -> Result<(), HostError> {
        if self.is_secret_path(path)? {
            return Ok(());
        }
        self.write(&*self.secret_paths, &by_name(path.as_str()), Kind::SecretPath, &path.as_str())
    }

    /// Whether a sensitive task ever kept the file at this path: whatever stands there may hold a secret. The note's name
    /// alone says so, so that a damaged note counts too.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn is_secret_path(&self, path: &HostPath) -> Result<bool, HostError> {
        Ok(self.secret_paths.stat(&by_name(path.as_str()))?.is_some())
    }

    /// Keeps what a task replaced.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn keep_replaced(&self, note: &UndoNote) -> Result<(), HostError> {
        self.write(&*self.undo, &by_name(&note.path), Kind::Undo, note)
    }

    fn read<T: DeserializeOwned>(dir: &dyn Dir, name: &str, kind: Kind) -> Result<Option<T>, HostError> {
        let bytes = match dir.read(name, LARGEST) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(None),
            Err(error) if error.is_of_the_file() => {
                Self::set_aside(dir, name, &error.sentence())?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        match record::decode(kind, &bytes) {
            Ok(value) => Ok(Some(value)),
            Err(unreadable) => {
                Self::set_aside(dir, name, &unreadable.to_string())?;
                Ok(None)
            }
        }
    }

    /// What could not be used and was set aside: a finding each, until a person has taken it away.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn set_aside_records(&self) -> Result<Vec<String>, HostError> {
        let dirs = [(&self.dir, ""), (&self.steps, "steps/"), (&self.results, "results/"), (&self.undo, "undo/")];
        let mut findings = Vec::new();
        for (dir, below) in dirs {
            let names = dir.names()?.into_iter().filter(|name| name.ends_with(SET_ASIDE));
            findings.extend(names.take(MOST_SET_ASIDE).map(|name| {
                let path = format!("{}/{below}{name}", paths::APPLY_STATE);
                format!("{path}: a record of the agent could not be used and was set aside; look at it, then remove it")
            }));
        }
        Ok(findings)
    }

    /// Moves a record out of the way, where a person finds it, and says so.
    fn set_aside(dir: &dyn Dir, name: &str, why: &str) -> Result<(), HostError> {
        let aside = format!("{name}{SET_ASIDE}");
        warn!(name, error = why, to = aside.as_str(); "a record of the agent's state cannot be used and is set aside");
        match dir.rename(name, &aside) {
            // Another command of the agent has set it aside.
            Err(error) if error.is(ErrorKind::NotFound) => Ok(()),
            renamed => renamed,
        }
    }

    /// Writes a record; one that stands there already, equal, is left alone.
    fn write<T: Serialize>(&self, dir: &dyn Dir, name: &str, kind: Kind, value: &T) -> Result<(), HostError> {
        let bytes = record::encode(kind, value);
        if matches!(dir.read(name, LARGEST), Ok(Some(present)) if present == bytes) {
            return Ok(());
        }
        replace(&*self.host, dir, name, &bytes, &Attributes::mode(0o600))
    }
}

#[cfg(test)]
impl Ledger {
    /// What a task last replaced at a path.
    pub(crate) fn replaced(&self, path: &str) -> Option<UndoNote> {
        Self::read(&*self.undo, &by_name(path), Kind::Undo).unwrap()
    }
}

/// The path of a file of the ledger.
fn own(name: &str) -> HostPath {
    HostPath::own(&format!("{}/{name}", paths::APPLY_STATE))
}

/// A file name for what may be any text.
fn by_name(text: &str) -> String {
    Hex(&sha256(text.as_bytes())[..16]).to_string()
}

#[cfg(test)]
pub(crate) mod tests;
