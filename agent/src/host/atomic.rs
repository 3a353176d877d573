//! Atomic replacement of a file: a reader sees either the old file or the new one, and so it is after a power cut.
//!
//! The sequence of steps (create under an unpredictable name, write, owner, attributes, mode, fsync, rename, fsync of
//! the directory) exists only in this module, as calls of [`Dir`]. The tests cut the power between any two steps.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Dir, Extras, FileKind, Host, HostError, HostPath, NewFile, ReplaceBlocker, Stat};

/// Prefix of the names of unfinished files. After a crash, files with such names are removed.
pub const TEMPORARY_PREFIX: &str = ".stemma-";

/// The metadata of a file to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Owner of the file. `None` for the agent's user.
    pub user: Option<u32>,
    /// Group of the file. `None` for the group that a new file in the directory gets.
    pub group: Option<u32>,
    /// Permission bits.
    pub mode: u32,
    /// Extended attributes and flags of the file. `None` for those that a new file in the directory gets.
    pub extras: Option<Extras>,
}

/// A file that is being written under a temporary name.
pub struct Staging {
    name: TemporaryName,
    /// The name of the file that the new file will replace.
    target: String,
    file: Box<dyn NewFile>,
    attributes: Attributes,
}

/// A complete and durable file under a temporary name.
pub struct Staged {
    name: TemporaryName,
}

/// The name of an unfinished file. While this value lives, this process does not sweep the file.
struct TemporaryName(String);

/// The names of this process's unfinished files.
static TEMPORARY_NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Locks and returns the names of this process's unfinished files.
fn temporary_names() -> MutexGuard<'static, BTreeSet<String>> {
    TEMPORARY_NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TemporaryName {
    /// Creates a new unpredictable name. It begins with the session id, by which this process recognizes its own files.
    fn new(host: &dyn Host) -> Self {
        let name = format!("{TEMPORARY_PREFIX}{:08x}{:08x}", host.session_id(), host.random() & 0xFFFF_FFFF);
        temporary_names().insert(name.clone());
        Self(name)
    }
}

impl Drop for TemporaryName {
    fn drop(&mut self) {
        temporary_names().remove(&self.0);
    }
}

impl Attributes {
    /// Creates attributes with this mode, and the agent's own user and group.
    #[must_use]
    pub const fn with_mode(mode: u32) -> Self {
        Self { user: None, group: None, mode, extras: None }
    }

    /// Creates the attributes of an existing file, for its replacement.
    #[must_use]
    pub fn from_stat(stat: &Stat, extras: Option<Extras>) -> Self {
        let extras = extras.map(Extras::for_new_content);
        Self { user: Some(stat.user), group: Some(stat.group), mode: stat.mode, extras }
    }

    /// Returns whether a file has this owner, group and mode already.
    #[must_use]
    pub fn matches(&self, stat: &Stat) -> bool {
        self.mode == stat.mode
            && self.user.is_none_or(|user| user == stat.user)
            && self.group.is_none_or(|group| group == stat.group)
    }
}

impl Staging {
    /// Creates an empty file with a temporary name in the directory of the file that it will replace.
    ///
    /// # Errors
    /// The error of the machine, about the target. The unfinished file is removed.
    pub fn begin(host: &dyn Host, dir: &dyn Dir, target: &str, attributes: &Attributes) -> Result<Self, HostError> {
        let name = TemporaryName::new(host);
        let file = dir.create(&name.0).map_err(|error| match error {
            // The directory accepts no new file. A reader knows the target, not the temporary name, so the error names
            // the target.
            HostError::NotReplaceable { .. } => dir.check_replaceable(target).err().unwrap_or(error),
            error => error.for_target(&name.0, target),
        })?;
        let mut staging = Self { file, name, target: target.to_owned(), attributes: attributes.clone() };
        match attributes.extras.as_ref().map_or(Ok(()), |extras| staging.file.set_initial_flags(extras)) {
            Ok(()) => Ok(staging),
            Err(error) => {
                let error = staging.for_target(error);
                staging.discard(dir);
                Err(error)
            }
        }
    }

    /// Makes an error name the target instead of the temporary file.
    fn for_target(&self, error: HostError) -> HostError {
        error.for_target(&self.name.0, &self.target)
    }

    /// Appends bytes to the content of the file.
    ///
    /// # Errors
    /// The error of the machine. The caller must then discard the file.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        self.file.write(bytes).map_err(|error| self.for_target(error))
    }

    /// Sets the file's attributes and makes it durable.
    ///
    /// # Errors
    /// The error of the machine. The unfinished file is removed.
    pub fn finish(mut self, dir: &dyn Dir) -> Result<Staged, HostError> {
        let (file, attributes) = (&mut self.file, &self.attributes);
        let finished = (|| {
            if attributes.user.is_some() || attributes.group.is_some() {
                file.set_owner(attributes.user, attributes.group)?;
            }
            if let Some(extras) = &attributes.extras {
                file.set_extras(extras)?;
            }
            file.set_mode(attributes.mode)?;
            file.sync()
        })();
        if let Err(error) = finished {
            let error = self.for_target(error);
            self.discard(dir);
            return Err(error);
        }
        Ok(Staged { name: self.name })
    }

    /// Removes the file. If that fails, a later sweep removes it.
    pub fn discard(self, dir: &dyn Dir) {
        let _ = dir.remove(&self.name.0);
    }
}

impl Staged {
    /// Writes a complete file under a temporary name in the directory of the file that it will replace.
    ///
    /// # Errors
    /// The error of the machine, about the target. The unfinished file is removed.
    pub fn write(host: &dyn Host, dir: &dyn Dir, target: &str, bytes: &[u8], attributes: &Attributes) -> Result<Self, HostError> {
        let mut staging = Staging::begin(host, dir, target, attributes)?;
        if let Err(error) = staging.write(bytes) {
            staging.discard(dir);
            return Err(error);
        }
        staging.finish(dir)
    }

    /// Returns the temporary name of the file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name.0
    }

    /// Renames the file to `name` and makes this durable. A file that cannot be renamed is removed.
    ///
    /// # Errors
    /// The error of the machine.
    pub fn commit(self, dir: &dyn Dir, name: &str) -> Result<(), HostError> {
        if let Err(error) = dir.rename(&self.name.0, name) {
            let _ = dir.remove(&self.name.0);
            return Err(error);
        }
        dir.sync()
    }

    /// Removes the file.
    ///
    /// # Errors
    /// The error of the machine.
    pub fn discard(self, dir: &dyn Dir) -> Result<(), HostError> {
        dir.remove(&self.name.0)
    }
}

/// Maximum number of times that a file is written again after another process swept it.
const MAX_REPLACE_ATTEMPTS: usize = 16;

/// Replaces or creates a file. An agent that starts at the same time sweeps unfinished files, also those of a command
/// that holds no lock (`once`, `pause`). If this removes the new file before it is renamed, the file is written again.
///
/// # Errors
/// The error of the machine. The old file is then unchanged.
pub fn replace(host: &dyn Host, dir: &dyn Dir, name: &str, bytes: &[u8], attributes: &Attributes) -> Result<(), HostError> {
    let mut swept = 0;
    loop {
        match Staged::write(host, dir, name, bytes, attributes)?.commit(dir, name) {
            Err(error) if error.has_kind(ErrorKind::NotFound) && swept < MAX_REPLACE_ATTEMPTS => swept += 1,
            result => return result,
        }
    }
}

/// Removes unfinished files from a directory of the agent: those that a killed agent left, and those that this process
/// could not remove at once. Files that this process is still writing stay. Two agents never sweep one directory at
/// once, because tasks are applied under a lock. A command without this lock writes a file that was swept again
/// ([`replace`]).
///
/// # Errors
/// The error of the machine for the first file that could not be removed.
pub fn sweep(host: &dyn Host, dir: &dyn Dir) -> Result<(), HostError> {
    sweep_where(host, dir, &|_| true)
}

/// Removes unfinished files from a directory in which other users may have files with such names. Removes only files
/// that `may_be_own` accepts.
///
/// # Errors
/// As [`sweep`].
pub fn sweep_where(host: &dyn Host, dir: &dyn Dir, may_be_own: &dyn Fn(&Stat) -> bool) -> Result<(), HostError> {
    let session = format!("{:08x}", host.session_id());
    let (mut has_swept, mut failed) = (false, Ok(()));
    for name in dir.names()? {
        let is_unfinished = name.strip_prefix(TEMPORARY_PREFIX).is_some_and(|rest| {
            rest.len() == 16
                && !(rest.starts_with(&session) && temporary_names().contains(&name))
                && rest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        });
        if is_unfinished && dir.stat(&name)?.is_some_and(|stat| stat.kind == FileKind::File && may_be_own(&stat)) {
            match dir.remove(&name) {
                Ok(()) => has_swept = true,
                // The process that wrote the file has renamed it in the meantime.
                Err(error) if error.has_kind(ErrorKind::NotFound) => {}
                Err(error) => failed = failed.and(Err(error)),
            }
        }
    }
    if has_swept {
        dir.sync()?;
    }
    failed
}

/// Checks that an entry can be created at a path where nothing exists, as far as this can be known before. Directories
/// of the path may be missing too.
///
/// # Errors
/// As [`Dir::check_replaceable`], for the first missing name.
pub fn check_creatable(host: &dyn Host, path: &HostPath) -> Result<(), HostError> {
    let (dir, missing) = host.nearest_existing(path)?;
    match missing.map_or(Ok(()), |name| dir.check_replaceable(name)) {
        // An append-only directory accepts new entries, so it prevents a replacement but no creation.
        Err(HostError::NotReplaceable { by: ReplaceBlocker::AppendOnlyDirectory, .. }) => Ok(()),
        checked => checked,
    }
}

/// Opens a directory. Directories of its path that are missing are created durably, belong to the agent and get `mode`.
///
/// # Errors
/// As [`Host::dir`].
pub fn ensure_dir(host: &dyn Host, path: &HostPath, mode: u32) -> Result<Box<dyn Dir>, HostError> {
    if let Some(dir) = host.dir(path)? {
        return Ok(dir);
    }
    let mut dir = host.root()?;
    for name in path.names() {
        dir = if let Some(below) = dir.dir(name)? {
            below
        } else {
            match dir.make_dir(name, mode) {
                // Another command of the agent created it.
                Err(error) if error.has_kind(ErrorKind::AlreadyExists) => {}
                made => made?,
            }
            dir.sync()?;
            dir.dir(name)?.ok_or_else(|| HostError::Io {
                operation: "open",
                path: path.to_string(),
                source: ErrorKind::NotFound.into(),
            })?
        };
    }
    Ok(dir)
}
