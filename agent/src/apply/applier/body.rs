//! The content of a file that a task copies: a blob, or a file on the host. It is copied in pieces, so it is never in memory
//! as a whole.

use sha2::{Digest as _, Sha256};
use stemma_core::digest::sha256;
use stemma_wire::message::Hash;

use crate::apply::ledger::CopiedFile;
use crate::apply::task::{Site, TaskError};
use crate::host::atomic::{Attributes, UnfinishedFile};
use crate::host::{Dir, FileVersion, HostError};

/// Maximum size of a file on the host that a task copies or compares, in bytes.
const MAX_COPIED_BYTES: u64 = 4 * 1024 * 1024 * 1024;

/// The source of the content of a file.
pub(super) enum FileSource<'a> {
    /// A blob in the ledger.
    Blob(Hash),
    /// A file on the host, in this version.
    HostFile { dir: &'a dyn Dir, name: &'a str, version: FileVersion },
}

impl FileSource<'_> {
    /// Returns a mark that differs if the content differs. It costs no reading of the content.
    pub(super) fn mark(&self) -> [u8; 32] {
        match self {
            Self::Blob(hash) => hash.0,
            Self::HostFile { version, .. } => version_mark(version),
        }
    }

    /// Returns the mode of a file on the host without setuid, setgid and sticky, or `None` for a blob.
    pub(super) fn mode(&self) -> Option<u32> {
        match self {
            Self::Blob(_) => None,
            Self::HostFile { version, .. } => Some(version.stat.mode & 0o777),
        }
    }

    /// Returns the size of the content. Fails if the blob is not in the ledger.
    fn size(&self, site: &Site) -> Result<u64, TaskError> {
        match self {
            Self::Blob(hash) => site.ledger.body_size(*hash)?.ok_or_else(|| missing_blob(*hash)),
            Self::HostFile { version, .. } => Ok(version.stat.size),
        }
    }

    /// Returns the SHA-256 of the content.
    fn digest(&self) -> Result<[u8; 32], TaskError> {
        match self {
            Self::Blob(hash) => Ok(hash.0),
            Self::HostFile { dir, name, .. } => file_digest(*dir, name),
        }
    }

    /// Returns whether the file `name`, which has this version, has the content of the source. Reads nothing if `is_known`
    /// says that both were equal and neither has changed since.
    pub(super) fn is_equal(
        &self,
        site: &Site,
        (dir, name): (&dyn Dir, &str),
        version: &FileVersion,
        is_known: impl FnOnce(&CopiedFile) -> bool,
    ) -> Result<bool, TaskError> {
        if is_known(&CopiedFile { source: self.mark(), copy: version_mark(version) }) {
            return Ok(true);
        }
        Ok(self.size(site)? == version.stat.size && self.digest()? == file_digest(dir, name)?)
    }

    /// Writes the content to the file `name` in `dir`, which it replaces at once. Returns what is known about both then.
    /// Nothing is replaced if the source changes while it is copied, or if a blob does not have its hash.
    pub(super) fn write(
        &self,
        site: &Site,
        (dir, name): (&dyn Dir, &str),
        attributes: &Attributes,
    ) -> Result<CopiedFile, TaskError> {
        let mut staging = UnfinishedFile::begin(&*site.host, dir, name, attributes)?;
        let copied = match self {
            Self::Blob(hash) => match site.ledger.copy_body(*hash, &mut staging) {
                Ok(true) => Ok(()),
                Ok(false) => Err(TaskError::new(format!("the blob sha256:{hash} on this host has changed; it is fetched again"))),
                Err(error) => Err(error.into()),
            },
            Self::HostFile { dir: source_dir, name: source_name, version } => {
                copy_file(*source_dir, source_name, version, &mut staging)
            }
        };
        if let Err(error) = copied {
            staging.discard(dir);
            return Err(error);
        }
        staging.finish(dir)?.commit(dir, name)?;
        let version = dir.version(name)?;
        let copy = version.map(|version| version_mark(&version)).unwrap_or_default();
        Ok(CopiedFile { source: self.mark(), copy })
    }
}

/// Copies a file of this version. Fails if the file has changed since, or changes during the copy.
fn copy_file(dir: &dyn Dir, name: &str, version: &FileVersion, to: &mut UnfinishedFile) -> Result<(), TaskError> {
    let exists = dir.read_chunks(name, MAX_COPIED_BYTES, &mut |piece| to.write(piece))?;
    if exists && dir.version(name)?.as_ref() == Some(version) {
        return Ok(());
    }
    Err(TaskError::new(format!("the source {name:?} was changed while it was copied: it is copied in the next pass")))
}

/// Returns the SHA-256 of a regular file.
fn file_digest(dir: &dyn Dir, name: &str) -> Result<[u8; 32], TaskError> {
    let mut digest = Sha256::new();
    dir.read_chunks(name, MAX_COPIED_BYTES, &mut |piece| {
        digest.update(piece);
        Ok::<(), HostError>(())
    })?;
    Ok(digest.finalize().into())
}

/// Returns the mark of a version of a file.
pub(super) fn version_mark(version: &FileVersion) -> [u8; 32] {
    sha256(format!("{version:?}").as_bytes())
}

/// Parses the name of a blob, which the field `field` has.
pub(super) fn parse_blob(field: &str, source: &str) -> Result<Hash, TaskError> {
    Hash::from_source(source).map_err(|error| TaskError::new(format!("parameters.{field}: {source:?}: {error}")))
}

/// Returns the error that a blob is not in the ledger.
fn missing_blob(hash: Hash) -> TaskError {
    TaskError::new(format!("the blob sha256:{hash} is not on this host yet"))
}
