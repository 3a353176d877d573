//! Making and opening the file: the one place where a redb file is taken for a store, or refused.

use std::fs::{File, OpenOptions};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use ::redb::backends::FileBackend;
use ::redb::{Builder, Database, DatabaseError, StorageBackend, StorageError};

use super::deferred::DeferredBackend;
use super::schema::{self, Damage, Fault};
use super::{CreateOptions, RedbOptions};
use crate::store::error::{Cause, OpenError};

/// Makes a store under another name and renames it, so that a crash leaves no half-made one under its own.
pub(super) fn create_file(path: &Path, create: &CreateOptions, options: &RedbOptions) -> Result<Database, OpenError> {
    create_filled(path, create, options, |_| Ok(()))
}

/// The same, with what is put into it before it gets its name.
pub(super) fn create_filled(
    path: &Path,
    create: &CreateOptions,
    options: &RedbOptions,
    fill: impl FnOnce(&Database) -> Result<(), Fault>,
) -> Result<Database, OpenError> {
    let failed = |source| OpenError::Io { path: path.to_owned(), source };
    if path.try_exists().map_err(failed)? {
        return Err(OpenError::Exists { path: path.to_owned() });
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let made = tempfile::Builder::new().prefix(".store-in-making-").tempfile_in(directory).map_err(failed)?;
    let database = create_on(file_backend(path, made.reopen().map_err(failed)?)?, path, create, options)?;
    fill(&database).map_err(|fault| failed(io::Error::other(fault)))?;
    made.persist_noclobber(path).map_err(|refused| match refused.error.kind() {
        io::ErrorKind::AlreadyExists => OpenError::Exists { path: path.to_owned() },
        _ => failed(refused.error),
    })?;
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
    Ok(database)
}

/// Makes a store on an empty backend.
pub(super) fn create_on(
    backend: impl StorageBackend,
    path: &Path,
    create: &CreateOptions,
    options: &RedbOptions,
) -> Result<Database, OpenError> {
    let failed = |source| OpenError::Io { path: path.to_owned(), source };
    if backend.len().map_err(failed)? > 0 {
        return Err(OpenError::Exists { path: path.to_owned() });
    }
    let database = builder(options).create_with_backend(backend).map_err(|error| refusal(path, error))?;
    schema::write_new(&database, create).map_err(|fault| failed(io::Error::other(fault)))?;
    Ok(database)
}

/// Opens a file that must be there.
pub(super) fn open_file(path: &Path, supported: u32, options: &RedbOptions) -> Result<Database, OpenError> {
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => OpenError::Missing { path: path.to_owned() },
        _ => OpenError::Io { path: path.to_owned(), source },
    })?;
    open_on(file_backend(path, file)?, path, supported, options)
}

/// Opens a store that is there, up to the schema version `supported`.
///
/// redb writes while it opens: a repair after a crash, a mark that the file is in use. Until the store is known to be one of
/// ours, whole and not of a newer version, all of that is held in memory, so that a refused file is untouched.
pub(super) fn open_on(
    backend: impl StorageBackend,
    path: &Path,
    supported: u32,
    options: &RedbOptions,
) -> Result<Database, OpenError> {
    let failed = |source| OpenError::Io { path: path.to_owned(), source };
    // redb takes an empty file for a new database.
    if backend.len().map_err(failed)? == 0 {
        return Err(OpenError::Empty { path: path.to_owned() });
    }
    let (backend, deferred) = DeferredBackend::new(backend).map_err(failed)?;
    // Nothing outlives a panic in here but the backend, which is dropped with all that was not written.
    let opened = catch_unwind(AssertUnwindSafe(|| open_checked(backend, path, supported, options)));
    let database = opened.unwrap_or_else(|_| Err(damaged(path, Damage("opening it panicked".to_owned()))))?;
    deferred.write_through().map_err(failed)?;
    Ok(database)
}

fn open_checked(
    backend: DeferredBackend,
    path: &Path,
    supported: u32,
    options: &RedbOptions,
) -> Result<Database, OpenError> {
    let verified = backend.len().is_ok_and(|len| len <= options.verified_bytes);
    let database = builder(options)
        .set_check_integrity_on_open(verified)
        .create_with_backend(backend)
        .map_err(|error| refusal(path, error))?;
    let version = schema::read_version(&database).map_err(|fault| damaged_by(path, fault))?;
    match version {
        Some(found) if found <= supported => {
            schema::read_meta(&database).map_err(|fault| damaged_by(path, fault))?;
            Ok(database)
        }
        Some(found) => {
            let program = schema::read_program(&database).unwrap_or_default();
            Err(OpenError::Newer { path: path.to_owned(), found, program, supported })
        }
        None => Err(damaged(path, Damage("it is a redb database, but no store".to_owned()))),
    }
}

fn file_backend(path: &Path, file: File) -> Result<FileBackend, OpenError> {
    FileBackend::new(file).map_err(|error| refusal(path, error))
}

fn builder(options: &RedbOptions) -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(options.cache_bytes);
    builder
}

fn refusal(path: &Path, error: DatabaseError) -> OpenError {
    match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => {
            OpenError::Locked { path: path.to_owned() }
        }
        DatabaseError::Storage(StorageError::Io(source)) if !means_damage(source.kind()) => {
            OpenError::Io { path: path.to_owned(), source }
        }
        other => damaged(path, other),
    }
}

/// What redb says of content (no magic number, an end too early), as against what a disk says.
fn means_damage(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput)
}

fn damaged(path: &Path, cause: impl std::error::Error + Send + Sync + 'static) -> OpenError {
    OpenError::Damaged { path: path.to_owned(), cause: Arc::new(cause) }
}

fn damaged_by(path: &Path, fault: Fault) -> OpenError {
    OpenError::Damaged { path: path.to_owned(), cause: Cause::from(fault) }
}
