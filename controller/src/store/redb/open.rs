//! Creates and opens the file of a store. Only this module decides whether a redb file is accepted as a store.

use std::fs::{File, OpenOptions};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use ::redb::backends::FileBackend;
use ::redb::{Builder, Database, DatabaseError, StorageBackend, StorageError};

use super::deferred::DeferredBackend;
use super::schema::{self, DamagedRecord, RedbError};
use super::{CreateOptions, RedbOptions};
use crate::store::error::{EngineError, OpenError};

/// Creates a store under a temporary name, then renames it, so that a crash leaves no incomplete store at `path`.
pub(super) fn create_file(path: &Path, create: &CreateOptions, options: &RedbOptions) -> Result<Database, OpenError> {
    create_with_entries(path, create, options, |_| Ok(()))
}

/// Creates a store as [`create_file`] does, and calls `fill` to write the entries before the file gets its name.
pub(super) fn create_with_entries(
    path: &Path,
    create: &CreateOptions,
    options: &RedbOptions,
    fill: impl FnOnce(&Database) -> Result<(), RedbError>,
) -> Result<Database, OpenError> {
    let io_error = |source| OpenError::Io { path: path.to_owned(), source };
    if path.try_exists().map_err(io_error)? {
        return Err(OpenError::Exists { path: path.to_owned() });
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = tempfile::Builder::new().prefix(".store-in-making-").tempfile_in(directory).map_err(io_error)?;
    let database = create_on(file_backend(path, file.reopen().map_err(io_error)?)?, path, create, options)?;
    fill(&database).map_err(|fault| io_error(io::Error::other(fault)))?;
    file.persist_noclobber(path).map_err(|persist_error| match persist_error.error.kind() {
        io::ErrorKind::AlreadyExists => OpenError::Exists { path: path.to_owned() },
        _ => io_error(persist_error.error),
    })?;
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(io_error)?;
    Ok(database)
}

/// Creates a store on an empty backend. Fails with `Exists` if the backend has content. `path` is only used in errors.
pub(super) fn create_on(
    backend: impl StorageBackend,
    path: &Path,
    create: &CreateOptions,
    options: &RedbOptions,
) -> Result<Database, OpenError> {
    let io_error = |source| OpenError::Io { path: path.to_owned(), source };
    if backend.len().map_err(io_error)? > 0 {
        return Err(OpenError::Exists { path: path.to_owned() });
    }
    let database = builder(options).create_with_backend(backend).map_err(|error| open_error(path, error))?;
    schema::write_empty(&database, create).map_err(|fault| io_error(io::Error::other(fault)))?;
    Ok(database)
}

/// Opens the store in an existing file. Refuses a schema version above `max_version`.
pub(super) fn open_file(path: &Path, max_version: u32, options: &RedbOptions) -> Result<Database, OpenError> {
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => OpenError::Missing { path: path.to_owned() },
        _ => OpenError::Io { path: path.to_owned(), source },
    })?;
    open_on(file_backend(path, file)?, path, max_version, options)
}

/// Opens an existing store on a backend. Refuses a schema version above `max_version`.
///
/// redb writes while it opens a file: a repair after a crash, and a mark that the file is in use. All of this is held
/// in memory until the file is known to be a complete store of a supported version. A refused file is therefore
/// unchanged.
pub(super) fn open_on(
    backend: impl StorageBackend,
    path: &Path,
    max_version: u32,
    options: &RedbOptions,
) -> Result<Database, OpenError> {
    let io_error = |source| OpenError::Io { path: path.to_owned(), source };
    // redb treats an empty file as a new database.
    if backend.len().map_err(io_error)? == 0 {
        return Err(OpenError::Empty { path: path.to_owned() });
    }
    let (backend, deferred) = DeferredBackend::new(backend).map_err(io_error)?;
    // A panic drops the backend and the writes that it held back. So the file is unchanged after a panic too.
    let result = catch_unwind(AssertUnwindSafe(|| open_checked(backend, path, max_version, options)));
    let database = result.unwrap_or_else(|_| Err(damaged_error(path, DamagedRecord("opening it panicked".to_owned()))))?;
    deferred.write_through().map_err(io_error)?;
    Ok(database)
}

/// Opens a database, and checks that it is a complete store of a schema version up to `max_version`. Compares the pages
/// of a file of up to [`RedbOptions::verified_bytes`] with their checksums.
fn open_checked(backend: DeferredBackend, path: &Path, max_version: u32, options: &RedbOptions) -> Result<Database, OpenError> {
    let should_verify = backend.len().is_ok_and(|len| len <= options.verified_bytes);
    let database = builder(options)
        .set_check_integrity_on_open(should_verify)
        .create_with_backend(backend)
        .map_err(|error| open_error(path, error))?;
    let version = schema::read_version(&database).map_err(|fault| damaged_by_error(path, fault))?;
    match version {
        Some(found) if found <= max_version => {
            schema::read_meta(&database).map_err(|fault| damaged_by_error(path, fault))?;
            Ok(database)
        }
        Some(found) => {
            let program = schema::read_program(&database).unwrap_or_default();
            Err(OpenError::Newer { path: path.to_owned(), found, program, supported: max_version })
        }
        None => Err(damaged_error(path, DamagedRecord("it is a redb database, but not a store".to_owned()))),
    }
}

/// Returns the redb backend for a file, which redb locks. `path` is only used in errors.
fn file_backend(path: &Path, file: File) -> Result<FileBackend, OpenError> {
    FileBackend::new(file).map_err(|error| open_error(path, error))
}

/// Returns a redb builder with the cache size of the options.
fn builder(options: &RedbOptions) -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(options.cache_bytes);
    builder
}

/// Converts an error that redb returned when it opened a file. The result shows whether the file is locked, cannot be
/// accessed, or is damaged.
fn open_error(path: &Path, error: DatabaseError) -> OpenError {
    match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => OpenError::Locked { path: path.to_owned() },
        DatabaseError::Storage(StorageError::Io(source)) if !is_damage(source.kind()) => {
            OpenError::Io { path: path.to_owned(), source }
        }
        other => damaged_error(path, other),
    }
}

/// Returns whether an I/O error of redb means that the file is invalid (it has no magic number, or is truncated). Other
/// kinds are failures of the disk.
fn is_damage(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput)
}

fn damaged_error(path: &Path, cause: impl std::error::Error + Send + Sync + 'static) -> OpenError {
    OpenError::Damaged { path: path.to_owned(), cause: Arc::new(cause) }
}

fn damaged_by_error(path: &Path, fault: RedbError) -> OpenError {
    OpenError::Damaged { path: path.to_owned(), cause: EngineError::from(fault) }
}
