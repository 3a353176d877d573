//! Atomic replacement of a file: a reader sees either the old file or the new one, and so it is after a power cut.
//!
//! The sequence of steps (create under an unpredictable name, write, owner, attributes, mode, fsync, rename, fsync of
//! the directory) exists only in this module, as calls of [`Dir`]. The tests cut the power between any two steps.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use stemma_core::task::TEMPORARY_PREFIX;
use stemma_core::task::is_temporary_name;

use super::{Dir, Extras, FileKind, Host, HostError, HostPath, NewFile, ReplaceBlocker, Stat};

/// The metadata that a file gets when the agent writes it.
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

/// A file that the agent is writing under a temporary name.
pub struct UnfinishedFile {
    name: TemporaryName,
    /// The name of the file that the new file will replace.
    target: String,
    file: Box<dyn NewFile>,
    attributes: Attributes,
}

/// A complete and durable file, or a symbolic link, under a temporary name, which [`StagedFile::commit`] renames to its
/// final name.
pub struct StagedFile {
    name: TemporaryName,
}

/// The name of an unfinished file. While this value exists, [`sweep`] in this process does not remove the file.
struct TemporaryName(String);

/// The names of the unfinished files that this process is writing.
static TEMPORARY_NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Locks and returns the names of the unfinished files that this process is writing.
fn temporary_names() -> MutexGuard<'static, BTreeSet<String>> {
    TEMPORARY_NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TemporaryName {
    /// Creates a new unpredictable name, and registers it as a file of this process. After the prefix, the name
    /// contains the session id of this process and a random number.
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
    /// Creates attributes with this mode. The file gets the agent's user, and the group of a new file in its directory.
    #[must_use]
    pub const fn with_mode(mode: u32) -> Self {
        Self { user: None, group: None, mode, extras: None }
    }

    /// Creates the attributes of a file that replaces an existing file with this owner, group, mode and `extras`.
    /// Attributes that belong to the old content are omitted.
    #[must_use]
    pub fn from_stat(stat: &Stat, extras: Option<Extras>) -> Self {
        let extras = extras.map(Extras::for_new_content);
        Self { user: Some(stat.user), group: Some(stat.group), mode: stat.mode, extras }
    }

    /// Returns whether a file has the mode of these attributes, and their owner and group if set. Ignores `extras`.
    #[must_use]
    pub fn matches(&self, stat: &Stat) -> bool {
        self.mode == stat.mode
            && self.user.is_none_or(|user| user == stat.user)
            && self.group.is_none_or(|group| group == stat.group)
    }
}

impl UnfinishedFile {
    /// Creates an empty file with a temporary name in `dir`. The file will later replace the file `target` there.
    ///
    /// # Errors
    /// [`HostError`] of a system call, with the path of the target. The unfinished file is removed.
    pub fn begin(host: &dyn Host, dir: &dyn Dir, target: &str, attributes: &Attributes) -> Result<Self, HostError> {
        let name = TemporaryName::new(host);
        let file = dir.create(&name.0).map_err(|error| match error {
            // The directory accepts no new file. The error names the target, because a person does not know the
            // temporary name.
            HostError::NotReplaceable { .. } => dir.check_replaceable(target).err().unwrap_or(error),
            error => error.for_target(&name.0, target),
        })?;
        let mut staging = Self { file, name, target: target.to_owned(), attributes: attributes.clone() };
        // Some flags can be set only on an empty file, so they are set first.
        match attributes.extras.as_ref().map_or(Ok(()), |extras| staging.file.set_initial_flags(extras)) {
            Ok(()) => Ok(staging),
            Err(error) => {
                let error = staging.for_target(error);
                staging.discard(dir);
                Err(error)
            }
        }
    }

    /// Replaces the path of the temporary file in an error by the path of the target.
    fn for_target(&self, error: HostError) -> HostError {
        error.for_target(&self.name.0, &self.target)
    }

    /// Appends bytes to the content of the file.
    ///
    /// # Errors
    /// [`HostError`] of a system call. The caller must then discard the file.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        self.file.write(bytes).map_err(|error| self.for_target(error))
    }

    /// Sets the attributes of the file and makes the file durable (fsync).
    ///
    /// # Errors
    /// [`HostError`] of a system call. The unfinished file is removed.
    pub fn finish(mut self, dir: &dyn Dir) -> Result<StagedFile, HostError> {
        let (file, attributes) = (&mut self.file, &self.attributes);
        let result = (|| {
            if attributes.user.is_some() || attributes.group.is_some() {
                file.set_owner(attributes.user, attributes.group)?;
            }
            if let Some(extras) = &attributes.extras {
                file.set_extras(extras)?;
            }
            // A new owner or access control list can change the mode, so the mode is set last.
            file.set_mode(attributes.mode)?;
            file.sync()
        })();
        if let Err(error) = result {
            let error = self.for_target(error);
            self.discard(dir);
            return Err(error);
        }
        Ok(StagedFile { name: self.name })
    }

    /// Removes the unfinished file. Ignores an error, because a later [`sweep`] removes the file.
    pub fn discard(self, dir: &dyn Dir) {
        let _ = dir.remove(&self.name.0);
    }
}

impl StagedFile {
    /// Writes a complete file under a temporary name in `dir`. The file will later replace the file `target` there.
    ///
    /// # Errors
    /// [`HostError`] of a system call, with the path of the target. The unfinished file is removed.
    pub fn write(host: &dyn Host, dir: &dyn Dir, target: &str, bytes: &[u8], attributes: &Attributes) -> Result<Self, HostError> {
        let mut staging = UnfinishedFile::begin(host, dir, target, attributes)?;
        if let Err(error) = staging.write(bytes) {
            staging.discard(dir);
            return Err(error);
        }
        staging.finish(dir)
    }

    /// Creates a symbolic link to `link_target` under a temporary name in `dir`. The link will later replace the entry
    /// `target` there.
    ///
    /// # Errors
    /// [`HostError`] of a system call, with the path of the target.
    pub fn link(host: &dyn Host, dir: &dyn Dir, target: &str, link_target: &str) -> Result<Self, HostError> {
        let name = TemporaryName::new(host);
        dir.make_link(&name.0, link_target).map_err(|error| match error {
            HostError::NotReplaceable { .. } => dir.check_replaceable(target).err().unwrap_or(error),
            error => error.for_target(&name.0, target),
        })?;
        Ok(Self { name })
    }

    /// Returns the temporary name of the file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name.0
    }

    /// Renames the file to `name`, and makes the new name durable (fsync of the directory). If the file cannot be
    /// renamed, removes it.
    ///
    /// # Errors
    /// [`HostError`] of a system call. If only the fsync failed, the file has its new name.
    pub fn commit(self, dir: &dyn Dir, name: &str) -> Result<(), HostError> {
        if let Err(error) = dir.rename(&self.name.0, name) {
            let _ = dir.remove(&self.name.0);
            return Err(error);
        }
        dir.sync()
    }

    /// Removes the file under its temporary name.
    ///
    /// # Errors
    /// [`HostError`] of a system call.
    pub fn discard(self, dir: &dyn Dir) -> Result<(), HostError> {
        dir.remove(&self.name.0)
    }
}

/// Maximum number of times that the agent writes a file again after another process removed the unfinished file.
const MAX_REPLACE_ATTEMPTS: usize = 16;

/// Replaces or creates a file atomically.
///
/// An agent that starts at the same time removes unfinished files ([`sweep`]), also those of a command without a lock
/// (such as `pause`). If the new file is removed before it is renamed, this writes the file again.
///
/// # Errors
/// [`HostError`] of a system call. The old file is unchanged unless only the last fsync (of the directory) failed.
pub fn replace(host: &dyn Host, dir: &dyn Dir, name: &str, bytes: &[u8], attributes: &Attributes) -> Result<(), HostError> {
    let mut attempts = 0;
    loop {
        match StagedFile::write(host, dir, name, bytes, attributes)?.commit(dir, name) {
            Err(error) if error.has_kind(ErrorKind::NotFound) && attempts < MAX_REPLACE_ATTEMPTS => attempts += 1,
            result => return result,
        }
    }
}

/// Removes unfinished files from a directory of the agent. They are from a killed agent, or this process could not
/// remove them earlier. Files that this process is writing stay.
///
/// This also removes a file that another command of the agent is writing at the same time. That command then writes the
/// file again ([`replace`]). Two agents that apply tasks never run at the same time, because they use a lock.
///
/// # Errors
/// [`HostError`] for the first file that could not be removed. The others are removed nevertheless.
pub fn sweep(host: &dyn Host, dir: &dyn Dir) -> Result<(), HostError> {
    sweep_where(host, dir, &|_| true)
}

/// Removes unfinished files from a directory, like [`sweep`], but only those for which `may_be_own` returns true. In a
/// directory that other users can write, a file of another user can have a name like that of an unfinished file.
///
/// # Errors
/// As [`sweep`].
pub fn sweep_where(host: &dyn Host, dir: &dyn Dir, may_be_own: &dyn Fn(&Stat) -> bool) -> Result<(), HostError> {
    let (mut has_swept, mut result) = (false, Ok(()));
    for name in dir.names()? {
        let is_unfinished = is_leftover_name(host, &name);
        let is_file_or_link = |stat: &Stat| matches!(stat.kind, FileKind::File | FileKind::Link);
        if is_unfinished && dir.stat(&name)?.is_some_and(|stat| is_file_or_link(&stat) && may_be_own(&stat)) {
            match dir.remove(&name) {
                Ok(()) => has_swept = true,
                // The process that wrote the file has renamed it since the directory was read.
                Err(error) if error.has_kind(ErrorKind::NotFound) => {}
                Err(error) => result = result.and(Err(error)),
            }
        }
    }
    if has_swept {
        dir.sync()?;
    }
    result
}

/// Returns whether an entry of this name may be an unfinished file that a killed agent left. A file that this process is
/// writing is none.
pub fn is_leftover_name(host: &dyn Host, name: &str) -> bool {
    let session = format!("{:08x}", host.session_id());
    let is_of_session = name.strip_prefix(TEMPORARY_PREFIX).is_some_and(|rest| rest.starts_with(&session));
    is_temporary_name(name) && !(is_of_session && temporary_names().contains(name))
}

/// Checks, without a change, that an entry can be created at a path where no entry exists. Directories of the path may
/// be missing too. The check fails if the deepest existing directory is immutable or on a read-only file system.
///
/// # Errors
/// As [`Dir::check_replaceable`], for the first missing name.
pub fn check_creatable(host: &dyn Host, path: &HostPath) -> Result<(), HostError> {
    let (dir, missing) = host.nearest_existing(path)?;
    match missing.map_or(Ok(()), |name| dir.check_replaceable(name)) {
        // An append-only directory accepts new entries. So it prevents a replacement, but not a new entry.
        Err(HostError::NotReplaceable { by: ReplaceBlocker::AppendOnlyDirectory, .. }) => Ok(()),
        result => result,
    }
}

/// Opens a directory. Durably creates each missing directory of the path, with `mode` and the agent as its owner.
///
/// # Errors
/// As [`Host::dir`], or [`HostError`] of a system call that creates a directory.
pub fn ensure_dir(host: &dyn Host, path: &HostPath, mode: u32) -> Result<Box<dyn Dir>, HostError> {
    if let Some(dir) = host.dir(path)? {
        return Ok(dir);
    }
    let mut dir = host.root()?;
    for name in path.names() {
        dir = if let Some(subdir) = dir.dir(name)? {
            subdir
        } else {
            match dir.make_dir(name, mode) {
                // Another command of the agent created it.
                Err(error) if error.has_kind(ErrorKind::AlreadyExists) => {}
                result => result?,
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
