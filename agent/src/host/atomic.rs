//! Replacing a file so that a reader sees the old one or the new one, and a power cut leaves one of them.
//!
//! The sequence (create under a name that nobody can foresee, write, owner, attributes, mode, fsync, rename, fsync of the
//! directory) stands here once, over [`Dir`]; the tests cut the power between any two of its steps.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Dir, Extras, Fixed, Host, HostError, HostPath, Kind, NewFile, Stat};

/// Names of files in the making begin so; what such a name still stands for after a crash is swept away.
pub const TEMPORARY: &str = ".stemma-";

/// What a file is beside its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Owner; `None`: as the agent makes it.
    pub user: Option<u32>,
    /// Group; `None`: as the agent makes it.
    pub group: Option<u32>,
    /// Permission bits.
    pub mode: u32,
    /// What the file that is replaced has beside them; `None`: as a new file has it in that directory.
    pub extras: Option<Extras>,
}

/// A file that is being written, under a name that nobody waits for.
pub struct Staging {
    name: Temporary,
    /// The name of the file that it will replace.
    target: String,
    file: Box<dyn NewFile>,
    attributes: Attributes,
}

/// A file that is whole and durable, under a name that nobody waits for.
pub struct Staged {
    name: Temporary,
}

/// The name of a file in the making, which nobody in this process sweeps as long as this lives.
struct Temporary(String);

/// The names of this process's files in the making.
static UNDER_WAY: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn under_way() -> MutexGuard<'static, BTreeSet<String>> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Temporary {
    fn new(host: &dyn Host) -> Self {
        let name = format!("{TEMPORARY}{:08x}{:08x}", host.session(), host.random() & 0xFFFF_FFFF);
        under_way().insert(name.clone());
        Self(name)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        under_way().remove(&self.0);
    }
}

impl Attributes {
    /// Owned by whom the agent is, with this mode.
    #[must_use]
    pub const fn mode(mode: u32) -> Self {
        Self { user: None, group: None, mode, extras: None }
    }

    /// The same as a file has now, for what is put in its place.
    #[must_use]
    pub fn of(stat: &Stat, extras: Option<Extras>) -> Self {
        let extras = extras.map(Extras::of_other_bytes);
        Self { user: Some(stat.user), group: Some(stat.group), mode: stat.mode, extras }
    }

    /// Whether a file has this owner, group and mode already.
    #[must_use]
    pub fn describe(&self, stat: &Stat) -> bool {
        self.mode == stat.mode
            && self.user.is_none_or(|user| user == stat.user)
            && self.group.is_none_or(|group| group == stat.group)
    }
}

impl Staging {
    /// An empty file beside the one of this name, which it will replace.
    ///
    /// # Errors
    /// What the machine said, of that file; the unfinished one is taken away.
    pub fn begin(host: &dyn Host, dir: &dyn Dir, target: &str, attributes: &Attributes) -> Result<Self, HostError> {
        let name = Temporary::new(host);
        let file = dir.create(&name.0).map_err(|error| match error {
            // What stops it stops the file of this name too, and is said of that.
            HostError::Fixed { .. } => dir.check_replaceable(target).err().unwrap_or(error),
            error => error.of_target(&name.0, target),
        })?;
        let mut staging = Self { file, name, target: target.to_owned(), attributes: attributes.clone() };
        match attributes.extras.as_ref().map_or(Ok(()), |extras| staging.file.begin_extras(extras)) {
            Ok(()) => Ok(staging),
            Err(error) => {
                let error = staging.of_target(error);
                staging.discard(dir);
                Err(error)
            }
        }
    }

    /// The error, said of the file that it will replace.
    fn of_target(&self, error: HostError) -> HostError {
        error.of_target(&self.name.0, &self.target)
    }

    /// Appends.
    ///
    /// # Errors
    /// What the machine said; it is to be discarded then.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        self.file.write(bytes).map_err(|error| self.of_target(error))
    }

    /// Gives it its rights and makes it durable.
    ///
    /// # Errors
    /// What the machine said; the unfinished file is taken away.
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
            let error = self.of_target(error);
            self.discard(dir);
            return Err(error);
        }
        Ok(Staged { name: self.name })
    }

    /// Takes it away; what cannot be taken away now is swept later.
    pub fn discard(self, dir: &dyn Dir) {
        let _ = dir.remove(&self.name.0);
    }
}

impl Staged {
    /// Writes a file beside the one of this name, which it will replace.
    ///
    /// # Errors
    /// What the machine said, of that file; the unfinished one is taken away.
    pub fn write(
        host: &dyn Host,
        dir: &dyn Dir,
        target: &str,
        bytes: &[u8],
        attributes: &Attributes,
    ) -> Result<Self, HostError> {
        let mut staging = Staging::begin(host, dir, target, attributes)?;
        if let Err(error) = staging.write(bytes) {
            staging.discard(dir);
            return Err(error);
        }
        staging.finish(dir)
    }

    /// Its present name, beside the one that it will have.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name.0
    }

    /// Puts it in its place, for good.
    ///
    /// # Errors
    /// What the machine said.
    pub fn commit(self, dir: &dyn Dir, name: &str) -> Result<(), HostError> {
        if let Err(error) = dir.rename(&self.name.0, name) {
            let _ = dir.remove(&self.name.0);
            return Err(error);
        }
        dir.sync()
    }

    /// Takes it away again.
    ///
    /// # Errors
    /// What the machine said.
    pub fn discard(self, dir: &dyn Dir) -> Result<(), HostError> {
        dir.remove(&self.name.0)
    }
}

/// How often a file is written again that was swept away before it was in its place.
const MOST_SWEPT: usize = 16;

/// Replaces a file, or makes it. An agent that starts on the same state meanwhile sweeps what is unfinished, also of a command that holds
/// no lock (`once`, `pause`): what it took away is written again.
///
/// # Errors
/// What the machine said; then the old file still stands.
pub fn replace(
    host: &dyn Host,
    dir: &dyn Dir,
    name: &str,
    bytes: &[u8],
    attributes: &Attributes,
) -> Result<(), HostError> {
    let mut swept = 0;
    loop {
        match Staged::write(host, dir, name, bytes, attributes)?.commit(dir, name) {
            Err(error) if error.is(ErrorKind::NotFound) && swept < MOST_SWEPT => swept += 1,
            done => return done,
        }
    }
}

/// Takes away what is left unfinished in a directory of the agent's own: by one that was killed, or by this one, where it could not be taken
/// away at once. What this process has in the making stays; two processes never sweep one directory at once, since tasks are applied
/// under a lock. What a command without that lock has in the making is written again ([`replace`]).
///
/// # Errors
/// What the machine said, of the first that could not be taken away.
pub fn sweep(host: &dyn Host, dir: &dyn Dir) -> Result<(), HostError> {
    sweep_those(host, dir, &|_| true)
}

/// The same, in a directory where somebody else may have a file under such a name: those alone that may be the agent's.
///
/// # Errors
/// As [`sweep`].
pub fn sweep_those(host: &dyn Host, dir: &dyn Dir, may_be_own: &dyn Fn(&Stat) -> bool) -> Result<(), HostError> {
    let own = format!("{:08x}", host.session());
    let (mut has_swept, mut failed) = (false, Ok(()));
    for name in dir.names()? {
        let is_unfinished = name.strip_prefix(TEMPORARY).is_some_and(|rest| {
            rest.len() == 16
                && !(rest.starts_with(&own) && under_way().contains(&name))
                && rest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        });
        if is_unfinished && dir.stat(&name)?.is_some_and(|stat| stat.kind == Kind::File && may_be_own(&stat)) {
            match dir.remove(&name) {
                Ok(()) => has_swept = true,
                // It is in its place by now.
                Err(error) if error.is(ErrorKind::NotFound) => {}
                Err(error) => failed = failed.and(Err(error)),
            }
        }
    }
    if has_swept {
        dir.sync()?;
    }
    failed
}

/// Whether a file may be put where nothing stands, as far as can be seen before: also where directories above it are missing.
///
/// # Errors
/// As [`Dir::check_replaceable`], of the first name that is missing.
pub fn check_makeable(host: &dyn Host, path: &HostPath) -> Result<(), HostError> {
    let (dir, missing) = host.nearest(path)?;
    match missing.map_or(Ok(()), |name| dir.check_replaceable(name)) {
        // Such a directory takes new ones.
        Err(HostError::Fixed { by: Fixed::AppendOnlyDirectory, .. }) => Ok(()),
        checked => checked,
    }
}

/// Opens a directory, making what is missing of it (owner: the agent; each new one with `mode`), durably.
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
                // Another command of the agent made it.
                Err(error) if error.is(ErrorKind::AlreadyExists) => {}
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
