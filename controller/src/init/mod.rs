//! Creates a fleet in a data directory: its store, its certificate authority, and the first admin's certificate.
//!
//! Only `init` creates a fleet, and `run` only opens one. So a missing mount or a mistyped path is an error. If `run`
//! created an empty fleet instead, every host would drop its state.

pub mod first_admin;
pub mod plan;

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use ring::error::Unspecified;
use serde::Serialize;
use stemma_core::digest::Hex;
use stemma_wire::clock::FixedClock;
use stemma_wire::tls::FleetName;

use crate::ca::files::{self, FileError, FileSensitivity};
use crate::ca::{self, Authority, BadServerName, CaError, FIRST_ADMIN, ServerName, random_bytes};
use crate::records::fleet::FleetRecord;
use crate::store::{CreateOptions, Epoch, OpenError, RedbOptions, RedbStore, Revision, Store};

/// The URL for operators on the same machine, with the default port.
const DEFAULT_URL: &str = "https://127.0.0.1:9443";

/// The subdirectory in which a fleet is created.
const UNFINISHED: &str = "init.unfinished";

/// The subdirectory with a complete new fleet, before its files are moved to their places.
const FINISHED: &str = "init.finished";

/// The paths in a data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    directory: PathBuf,
}

impl Layout {
    /// Creates the layout of a data directory.
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Returns the path of the data directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of the store.
    pub fn store(&self) -> PathBuf {
        self.directory.join("store.redb")
    }

    /// Returns the directory of the keys and certificates of the root and the issuers.
    pub fn trust(&self) -> PathBuf {
        self.directory.join("trust")
    }

    /// Returns the path of the root certificate that clients of this controller need.
    pub fn root(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// Returns the directory of the first admin's certificate, key and context.
    pub fn admin(&self) -> PathBuf {
        self.directory.join("admin")
    }

    /// Returns the path of the first admin's certificate.
    pub fn admin_certificate(&self) -> PathBuf {
        self.admin().join("admin.pem")
    }

    /// Returns the path of the admin socket, a Unix socket on which the user root has the rights of an admin.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("admin.sock")
    }

    /// Returns the path of the admin's context file for the command line.
    pub fn context(&self) -> PathBuf {
        self.admin().join("context.toml")
    }

    /// Returns the directory of the contents of blobs, by hash.
    pub fn blobs(&self) -> PathBuf {
        self.directory.join("blobs")
    }

    /// Returns the path of the first file in the directories `trust` and `admin`, whose files belong to a fleet's
    /// authority and first admin. Returns `None` if both are empty or missing.
    ///
    /// # Errors
    /// [`FileError`] if the directories cannot be read.
    pub fn authority(&self) -> Result<Option<PathBuf>, FileError> {
        let (trust, admin) = (files::list_directory(&self.trust())?, files::list_directory(&self.admin())?);
        // A file system of its own has this directory.
        Ok(trust.into_iter().chain(admin).find(|path| !path.ends_with("lost+found")))
    }

    /// Checks that other users cannot read the keys or the store, cannot write the store, the root certificate or a
    /// file in `trust` or `admin`, and cannot replace files in `trust`, `admin` and `blobs` (S71). The caller checks
    /// the data directory itself. A missing file is not an error here, because the code that needs the file reports it.
    /// The key of the root may be stored elsewhere.
    ///
    /// # Errors
    /// [`FileError`], with the command that corrects the access.
    pub fn check(&self) -> Result<(), FileError> {
        for directory in [self.trust(), self.admin(), self.blobs()] {
            if directory.exists() {
                files::check_directory(&directory)?;
            }
        }
        check_file(&self.store(), FileSensitivity::Secret)?;
        check_file(&self.root(), FileSensitivity::Settings)?;
        for directory in [self.trust(), self.admin()] {
            for path in files::list_directory(&directory)? {
                let is_key = path.extension().is_some_and(|extension| extension == "key");
                check_file(&path, if is_key { FileSensitivity::Secret } else { FileSensitivity::Settings })?;
            }
        }
        Ok(())
    }
}

/// Checks that other users cannot access a file in ways that `sensitivity` forbids. Does nothing if the file does not
/// exist.
fn check_file(path: &Path, sensitivity: FileSensitivity) -> Result<(), FileError> {
    if !path.is_file() {
        return Ok(());
    }
    Ok(stemma_wire::config::check_access(path, sensitivity)?)
}

/// The reason why `init` created no fleet.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The directory contains a fleet.
    #[error(
        "{}: there is a fleet here already ({} is there); it was left as it is: start it with `stemma-controller run --data-dir {}`, or \
         give another --data-dir", directory.display(), found.display(), directory.display()
    )]
    Exists {
        /// The data directory.
        directory: PathBuf,
        /// The path of the store.
        found: PathBuf,
    },
    /// The directory contains files of a fleet's certificate authority or of its first admin, but no store. The hosts
    /// of that fleet trust only its authority, so a new authority would lose these hosts.
    #[error(
        "{}: this directory contains the authority of a fleet ({} exists), but not its store; nothing was changed: restore a backup (docs/backup.md) or put back a copy of {} that \
         was made while the controller was stopped; to give that fleet up, first move {} and {} away",
        directory.display(), found.display(), directory.display(), Layout::new(directory).trust().display(),
        Layout::new(directory).admin().display()
    )]
    Authority {
        /// The data directory.
        directory: PathBuf,
        /// The path of the first file that was found in the directories `trust` and `admin`.
        found: PathBuf,
    },
    /// A link is in the place of a directory of the fleet.
    #[error("{}: it is a symbolic link, and keys are not written through links; nothing was changed: remove it", path.display())]
    Link {
        /// The path of the link.
        path: PathBuf,
    },
    /// A name from `--name` is not valid in a certificate.
    #[error("--name: {0}")]
    Name(#[from] BadServerName),
    /// The system returned no random bytes.
    #[error("the system returned no random bytes")]
    Randomness(Unspecified),
    /// The authority or the first admin's certificate could not be created.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// The store could not be created.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The first admin could not be stored.
    #[error("the first admin could not be stored: {0}")]
    First(String),
    /// A file or directory could not be created, read, written or locked, or other users could replace its content.
    #[error(transparent)]
    File(#[from] FileError),
}

/// The fleet that `init` created, for the output of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitResult {
    /// The fleet's name.
    pub fleet: FleetName,
    /// SHA-256 of the root's public key, 64 hexadecimal digits: `--ca-hash` of `stemma-agent join`.
    pub ca_hash: String,
    /// The path of the first admin's context file, with which `stemma` connects to the controller.
    pub context: PathBuf,
}

/// Creates a fleet in a data directory. `names` are further names of the controller for its certificate. `now_s` is the
/// time in seconds since 1970.
///
/// The fleet is created in a subdirectory, and moved from there when it is complete. So an `init` that fails or is
/// interrupted leaves no part of a fleet, and the next one succeeds. If it is interrupted while it moves the files, the
/// next one completes the move, and finds a fleet.
///
/// # Errors
/// [`InitError`].
pub fn init(directory: &Path, names: &[String], now_s: u64) -> Result<InitResult, InitError> {
    let names: Vec<ServerName> = names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    let layout = Layout::new(directory);
    if layout.directory().is_dir() {
        // This is checked before the mode of the directory is set, because the directory may have another purpose.
        let _lock = files::lock_directory(layout.directory())?;
        // Another user could have put a fleet there, or a link to any directory in place of `trust`.
        if files::check_directory(layout.directory()).is_ok() {
            complete_move(&layout)?;
        }
        check_free(&layout)?;
    }
    files::make_directory(layout.directory())?;
    // A restore or another `init` may have created a fleet since the first check. From here on, the lock prevents this.
    let _lock = files::lock_directory(layout.directory())?;
    check_free(&layout)?;
    remove_unfinished(&layout)?;
    let staging = Layout::new(&directory.join(UNFINISHED));
    let result = create(&staging, &layout, &names, now_s).and_then(|result| {
        rename(staging.directory(), &directory.join(FINISHED))?;
        complete_move(&layout)?;
        Ok(result)
    });
    if result.is_err() {
        // The error may be that the disk is full. The next `init` removes the directory too.
        let _ = fs::remove_dir_all(staging.directory());
    }
    result
}

/// Creates a fleet in the directory of `staging`, which does not exist. It will be moved to the directory of `layout`.
fn create(staging: &Layout, layout: &Layout, names: &[ServerName], now_s: u64) -> Result<InitResult, InitError> {
    for directory in [staging.directory().to_owned(), staging.trust(), staging.admin()] {
        files::make_directory(&directory)?;
    }
    let fleet: FleetName = format!("stemma-{}", Hex(&random_bytes::<4>().map_err(InitError::Randomness)?))
        .parse()
        .expect("lower case letters, digits and a hyphen");
    let authority = Authority::create(&staging.trust(), fleet.clone(), now_s)?;
    files::write(&staging.root(), FileSensitivity::Settings, ca::pem(authority.root()).as_bytes())?;
    write_admin(staging, &authority, now_s)?;
    // Until `run` writes the file with its own address, it contains the default address.
    files::write(&staging.context(), FileSensitivity::Secret, context_text(layout, DEFAULT_URL).as_bytes())?;
    let record = FleetRecord {
        fleet: fleet.to_string(),
        controller: uuid::Builder::from_random_bytes(random_bytes().map_err(InitError::Randomness)?).into_uuid(),
        names: names.iter().map(ToString::to_string).collect(),
    };
    create_store(staging, &record, now_s)?;
    let hash = stemma_wire::tls::spki_sha256(authority.root()).expect("the new root certificate can be parsed");
    Ok(InitResult { fleet, ca_hash: Hex(&hash).to_string(), context: layout.context() })
}

/// Removes what interrupted calls of [`init`] left in a directory that has no fleet.
///
/// # Errors
/// [`FileError`].
pub fn remove_unfinished(layout: &Layout) -> Result<(), FileError> {
    [UNFINISHED, FINISHED].iter().try_for_each(|name| remove_directory(&layout.directory().join(name)))
}

/// Moves the files of a complete new fleet to their places, the store last. Does nothing if there is no such fleet, or if
/// the directory has got the store or authority of another fleet. An interrupted move is repeated from its beginning.
fn complete_move(layout: &Layout) -> Result<(), InitError> {
    let finished = Layout::new(&layout.directory().join(FINISHED));
    if !finished.store().is_file() {
        return Ok(remove_directory(finished.directory())?);
    }
    let authority = [files::list_directory(&finished.trust())?, files::list_directory(&finished.admin())?].concat();
    let mut moves = Vec::new();
    for path in authority {
        let place = layout.directory().join(path.strip_prefix(finished.directory()).expect("a path in the directory"));
        let content = fs::read(&path).map_err(io_error("read", &path))?;
        let is_secret = fs::metadata(&path).map_err(io_error("look at", &path))?.permissions().mode() & 0o004 == 0;
        moves.push((place, content, if is_secret { FileSensitivity::Secret } else { FileSensitivity::Settings }));
    }
    if layout.store().exists() || moves.iter().any(|(place, content, _)| fs::read(place).is_ok_and(|present| present != *content))
    {
        return Ok(());
    }
    for directory in [layout.trust(), layout.admin(), layout.blobs()] {
        files::make_directory(&directory)?;
    }
    // `trust` and `admin` may be other file systems, so their files are written and not renamed.
    for (place, content, sensitivity) in &moves {
        files::write(place, *sensitivity, content)?;
    }
    // The root certificate of an earlier fleet is replaced. An interrupted move may have moved this one already.
    if finished.root().exists() {
        rename(&finished.root(), &layout.root())?;
    }
    rename(&finished.store(), &layout.store())?;
    Ok(remove_directory(finished.directory())?)
}

/// Renames a file or directory. The rename is durable when this function returns.
fn rename(from: &Path, to: &Path) -> Result<(), InitError> {
    fs::rename(from, to).map_err(io_error("rename", from))?;
    let parent = to.parent().unwrap_or(Path::new("."));
    Ok(files::sync_directory(parent).map_err(io_error("sync", parent))?)
}

/// Removes a directory with its content. A directory that does not exist is not an error.
fn remove_directory(path: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Returns a function that adds the operation and the path to an error of the operating system.
fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError::Io { path, what, source }
}

/// Fails if the directory contains a store, or any file in its directories `trust` and `admin`, or a link in place of one
/// of its directories. Another user may have made the link, if the directory was open to others.
fn check_free(layout: &Layout) -> Result<(), InitError> {
    let directory = layout.directory();
    if fs::symlink_metadata(layout.store()).is_ok() {
        return Err(InitError::Exists { directory: directory.to_owned(), found: layout.store() });
    }
    for path in [layout.trust(), layout.admin(), layout.blobs()] {
        if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink()) {
            return Err(InitError::Link { path });
        }
    }
    match layout.authority()? {
        Some(authority_file) => Err(InitError::Authority { directory: directory.to_owned(), found: authority_file }),
        None => Ok(()),
    }
}

/// Creates the store of a new fleet, and stores the first admin in it.
fn create_store(layout: &Layout, record: &FleetRecord, now_s: u64) -> Result<(), InitError> {
    let fleet = Bytes::from(serde_json::to_vec(record).expect("a record of texts can be serialized"));
    // The UUID of a later epoch contains the time at which the fleet was resumed. The first epoch has no such time, so
    // its UUID is random (version 4).
    let epoch = uuid::Builder::from_random_bytes(random_bytes().map_err(InitError::Randomness)?).into_uuid();
    let options = CreateOptions { epoch: Epoch::new(*epoch.as_bytes()), base: Revision::ZERO, fleet };
    let store = RedbStore::create(&layout.store(), &options, RedbOptions::default())?;
    let store: Arc<dyn Store> = Arc::new(store);
    first_admin::store_in(&store, layout, Arc::new(FixedClock(now_s))).map_err(|error| InitError::First(error.message))
}

/// Issues the first admin's certificate, and writes it with its key.
fn write_admin(layout: &Layout, authority: &Authority, now_s: u64) -> Result<(), InitError> {
    let name = FIRST_ADMIN.parse().expect("the name of the first admin is valid");
    let issued = authority.issue_admin(name, now_s).map_err(CaError::from)?;
    let key = issued.key.as_ref().expect("the certificate of an admin is issued with its key");
    let chain: String = issued.chain.iter().map(ca::pem).collect();
    files::write(&layout.admin().join("admin.pem"), FileSensitivity::Secret, chain.as_bytes())?;
    Ok(files::write(&layout.admin().join("admin.key"), FileSensitivity::Secret, ca::key_pem(key).as_bytes())?)
}

/// Writes the first admin's context file, which `stemma` needs to connect to this controller. `init` does not know on
/// which address `run` will listen. So `run` writes the file again with its own address. A file with the right content
/// is not written again.
///
/// # Errors
/// [`FileError`].
pub fn write_context(layout: &Layout, url: &str) -> Result<(), FileError> {
    let (path, text) = (layout.context(), context_text(layout, url));
    if fs::read(&path).is_ok_and(|present_content| present_content == text.as_bytes()) {
        return Ok(());
    }
    files::write(&path, FileSensitivity::Secret, text.as_bytes())
}

/// Returns the content of the first admin's context file.
fn context_text(layout: &Layout, url: &str) -> String {
    #[derive(Serialize)]
    struct ContextFile<'a> {
        url: &'a str,
        ca: PathBuf,
        cert: PathBuf,
        key: PathBuf,
    }
    let directory = std::path::absolute(layout.directory()).unwrap_or_else(|_| layout.directory().to_owned());
    let absolute = Layout::new(&directory);
    let context = ContextFile {
        url,
        ca: absolute.root(),
        cert: absolute.admin().join("admin.pem"),
        key: absolute.admin().join("admin.key"),
    };
    toml::to_string(&context).expect("paths and texts can be serialized")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const NOW_S: u64 = 1_800_000_000;

    #[test]
    fn init_closes_files_to_others_and_fails_when_fleet_exists() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let created = init(&data, &["stemma.example".into(), "10.0.0.1".into()], NOW_S).unwrap();
        assert_eq!(created.ca_hash.len(), 64);
        let mode = |path: &str| fs::metadata(data.join(path)).unwrap().mode() & 0o777;
        for (path, expected_mode) in [
            (".", 0o700),
            ("trust", 0o700),
            ("trust/root.key", 0o600),
            ("trust/agents.key", 0o600),
            ("trust/admin.key", 0o600),
            ("trust/signers.key", 0o600),
            ("admin/admin.key", 0o600),
            ("admin/context.toml", 0o600),
        ] {
            assert_eq!(mode(path), expected_mode, "{path}");
        }
        let store_bytes = fs::read(data.join("store.redb")).unwrap();
        let error = init(&data, &[], NOW_S).unwrap_err().to_string();
        let directory_text = data.display();
        assert_eq!(
            error,
            format!(
                "{directory_text}: there is a fleet here already ({directory_text}/store.redb is there); it was left as it is: start it with \
                 `stemma-controller run --data-dir {directory_text}`, or give another --data-dir"
            )
        );
        assert_eq!(fs::read(data.join("store.redb")).unwrap(), store_bytes);
    }

    /// Keys in either of two directories make `init` fail. When both directories are removed, `init` succeeds.
    #[test]
    fn w10_06_init_fails_when_authority_has_no_store() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        init(&data, &[], NOW_S).unwrap();
        fs::remove_file(data.join("store.redb")).unwrap();
        let directory_text = data.display();
        for (found, directory_to_remove) in [("trust/admin.key", "trust"), ("admin/admin.key", "admin")] {
            let key_bytes = fs::read(data.join(found)).unwrap();
            assert_eq!(
                init(&data, &[], NOW_S).unwrap_err().to_string(),
                format!(
                    "{directory_text}: this directory contains the authority of a fleet ({directory_text}/{found} exists), but not its store; nothing was \
                     changed: restore a backup (docs/backup.md) or put back a copy of {directory_text} that was made while the controller was stopped; to give that fleet up, \
                     first move {directory_text}/trust and {directory_text}/admin away"
                )
            );
            assert_eq!(fs::read(data.join(found)).unwrap(), key_bytes);
            fs::remove_dir_all(data.join(directory_to_remove)).unwrap();
        }
        // The root certificate of the lost fleet is still there.
        fs::create_dir_all(data.join("trust/lost+found")).unwrap();
        let old_root = fs::read(data.join("ca.pem")).unwrap();
        init(&data, &[], NOW_S).unwrap();
        assert!(data.join("store.redb").is_file() && !data.join("init.finished").exists());
        assert_ne!(fs::read(data.join("ca.pem")).unwrap(), old_root);
    }

    /// Every user could have put the finished fleet and the link there.
    #[test]
    fn s71_init_moves_no_fleet_when_others_can_write() {
        let directory = tempfile::tempdir().unwrap();
        let (data, outside) = (directory.path().join("data"), directory.path().join("outside"));
        fs::create_dir_all(data.join("init.finished/trust")).unwrap();
        for file in ["trust/evil", "ca.pem", "store.redb"] {
            fs::write(data.join("init.finished").join(file), "evil").unwrap();
        }
        fs::create_dir(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, data.join("trust")).unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(init(&data, &[], NOW_S), Err(InitError::Link { .. })));
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "no file is written through the link");
        assert!(!data.join("store.redb").exists());
        fs::remove_file(data.join("trust")).unwrap();
        init(&data, &[], NOW_S).unwrap();
        assert_ne!(fs::read(data.join("store.redb")).unwrap(), b"evil");
    }

    /// A killed `init` leaves the unfinished directory, or the finished one with some of its files already in their places.
    #[test]
    fn init_succeeds_after_interrupted_init() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        fs::create_dir_all(data.join("init.unfinished/trust")).unwrap();
        fs::write(data.join("init.unfinished/trust/root.key.new"), "half").unwrap();
        init(&data, &[], NOW_S).unwrap();
        let names = |path: &Path| -> Vec<String> {
            let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&data), ["admin", "blobs", "ca.pem", "store.redb", "trust"]);

        let files = ["ca.pem", "store.redb", "trust/root.key", "trust/agents.pem", "admin/context.toml"];
        let contents = files.map(|file| fs::read(data.join(file)).unwrap());
        let finished = data.join("init.finished");
        fs::create_dir(&finished).unwrap();
        for name in ["admin", "ca.pem", "store.redb", "trust"] {
            fs::rename(data.join(name), finished.join(name)).unwrap();
        }
        fs::create_dir(data.join("trust")).unwrap();
        fs::copy(finished.join("trust/agents.key"), data.join("trust/agents.key")).unwrap();
        assert!(matches!(init(&data, &[], NOW_S), Err(InitError::Exists { .. })));
        assert_eq!(names(&data), ["admin", "blobs", "ca.pem", "store.redb", "trust"]);
        assert_eq!(files.map(|file| fs::read(data.join(file)).unwrap()), contents);
    }

    /// A finished fleet that was never moved does not replace the authority of a fleet that was copied back later.
    #[test]
    fn init_keeps_other_authority_next_to_finished_fleet() {
        let directory = tempfile::tempdir().unwrap();
        let (data, other) = (directory.path().join("data"), directory.path().join("other"));
        init(&data, &[], NOW_S).unwrap();
        init(&other, &[], NOW_S).unwrap();
        fs::rename(&other, data.join("init.finished")).unwrap();
        let key = fs::read(data.join("trust/root.key")).unwrap();
        assert!(matches!(init(&data, &[], NOW_S), Err(InitError::Exists { .. })));
        fs::remove_file(data.join("store.redb")).unwrap();
        assert!(matches!(init(&data, &[], NOW_S), Err(InitError::Authority { .. })));
        assert_eq!(fs::read(data.join("trust/root.key")).unwrap(), key);
    }

    /// Every user may replace the data directory, so `init` creates no keys in it.
    #[test]
    fn failed_init_leaves_no_authority() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(init(&data, &[], NOW_S).is_err());
        assert!(!data.join("trust").exists() && !data.join("init.unfinished").exists());
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        init(&data, &[], NOW_S).unwrap();
    }

    /// An operator may have moved a directory of a fleet that exists to another disk.
    #[test]
    fn init_keeps_fleet_with_linked_directory() {
        let directory = tempfile::tempdir().unwrap();
        let (data, moved) = (directory.path().join("data"), directory.path().join("moved"));
        init(&data, &[], NOW_S).unwrap();
        fs::rename(data.join("blobs"), &moved).unwrap();
        std::os::unix::fs::symlink(&moved, data.join("blobs")).unwrap();
        assert!(matches!(init(&data, &[], NOW_S), Err(InitError::Exists { .. })));
    }

    #[test]
    fn init_creates_nothing_when_name_is_bad() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let error = init(&data, &["a b".into()], NOW_S).unwrap_err().to_string();
        assert!(error.starts_with("--name: \"a b\" is neither a DNS name"), "{error}");
        assert!(!data.exists());
    }
}
