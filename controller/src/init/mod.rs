//! Making a fleet: its store, its authority, and the first admin's certificate, in one data directory.
//!
//! `init` alone creates. `run` opens and never makes, so that a mount that is missing or a path that is mistyped is an error and
//! not an empty fleet that orders every host to forget what it is.

pub mod first;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use ring::error::Unspecified;
use serde::Serialize;
use stemma_core::digest::Hex;
use stemma_wire::clock::FixedClock;
use stemma_wire::tls::Fleet;

use crate::ca::files::{self, FileError, Holds};
use crate::ca::{self, Authority, BadServerName, CaError, FIRST_ADMIN, ServerName, random};
use crate::records::fleet::FleetRecord;
use crate::store::{CreateOptions, Epoch, OpenError, RedbOptions, RedbStore, Revision, Store};

/// Where operators are served by default, dialled from the same machine.
const DEFAULT_URL: &str = "https://127.0.0.1:9443";

/// Where things stand in a data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    directory: PathBuf,
}

impl Layout {
    /// The layout of a data directory.
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// The directory itself.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The store.
    pub fn store(&self) -> PathBuf {
        self.directory.join("store.redb")
    }

    /// Keys and certificates of root and issuers.
    pub fn trust(&self) -> PathBuf {
        self.directory.join("trust")
    }

    /// The fleet root for those who dial this controller: what clients are given.
    pub fn root(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// The first admin's certificate, key and context.
    pub fn admin(&self) -> PathBuf {
        self.directory.join("admin")
    }

    /// The first admin's certificate.
    pub fn admin_certificate(&self) -> PathBuf {
        self.admin().join("admin.pem")
    }

    /// The socket on which root is served.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("admin.sock")
    }

    /// The admin's context file for the command line.
    pub fn context(&self) -> PathBuf {
        self.admin().join("context.toml")
    }

    /// Bodies of blobs, by hash.
    pub fn blobs(&self) -> PathBuf {
        self.directory.join("blobs")
    }

    /// A file of an authority, where one stands here.
    ///
    /// # Errors
    /// [`FileError`] where that cannot be seen.
    pub fn authority(&self) -> Result<Option<PathBuf>, FileError> {
        let (trust, admin) = (files::listed(&self.trust())?, files::listed(&self.admin())?);
        Ok(trust.into_iter().chain(admin).next())
    }

    /// Refuses a fleet of whose files one is open to others: keys and the store to be read, anything to be written, a directory to
    /// have its files replaced (S71). What is not there is for those to tell who need it: the root's key may be kept elsewhere.
    ///
    /// # Errors
    /// [`FileError`], with the command that mends it.
    pub fn check(&self) -> Result<(), FileError> {
        for directory in [self.trust(), self.admin(), self.blobs()] {
            if directory.exists() {
                files::check_directory(&directory)?;
            }
        }
        check_file(&self.store(), Holds::Secret)?;
        check_file(&self.root(), Holds::Settings)?;
        for directory in [self.trust(), self.admin()] {
            for path in files::listed(&directory)? {
                let is_key = path.extension().is_some_and(|extension| extension == "key");
                check_file(&path, if is_key { Holds::Secret } else { Holds::Settings })?;
            }
        }
        Ok(())
    }
}

/// Looks at who else may touch a file, if it is there.
fn check_file(path: &Path, holds: Holds) -> Result<(), FileError> {
    if !path.is_file() {
        return Ok(());
    }
    Ok(stemma_wire::config::check_access(path, holds)?)
}

/// Why no fleet was made.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// There is one already.
    #[error(
        "{}: there is a fleet here already ({} is there); it was left as it is: start it with `stemma-controller run --data-dir {}`, or \
         give another --data-dir", directory.display(), found.display(), directory.display()
    )]
    Exists {
        /// Where.
        directory: PathBuf,
        /// By what it is known.
        found: PathBuf,
    },
    /// There is a fleet's authority, and no store beside it. Hosts that pinned its root would never hear of another.
    #[error(
        "{}: the authority of a fleet stands here ({} is there) and its store is gone; nothing was changed: restore a backup (docs/backup.md) or put back a copy of {} that \
         was made while the controller was stopped; to give that fleet up, or if an `init` was cut short here, first move {} and {} away",
        directory.display(), found.display(), directory.display(), Layout::new(directory).trust().display(),
        Layout::new(directory).admin().display()
    )]
    Authority {
        /// Where.
        directory: PathBuf,
        /// By what it is known.
        found: PathBuf,
    },
    /// A name that no certificate can have.
    #[error("--name: {0}")]
    Name(#[from] BadServerName),
    /// The system gave no random bytes.
    #[error("the system gave no random bytes")]
    Randomness(Unspecified),
    /// The authority could not be made.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// The store could not be made.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The first admin could not be stored.
    #[error("the first admin could not be stored: {0}")]
    First(String),
    /// A file could not be written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What was made, for the program to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The fleet's name.
    pub fleet: Fleet,
    /// SHA-256 of the root's public key, 64 hexadecimal digits: `--ca-hash` of `stemma-agent join`.
    pub ca_hash: String,
    /// The admin's context file.
    pub context: PathBuf,
}

/// Makes a fleet.
///
/// The store comes last. Keys without one are refused all the same: whose store was lost still has hosts that trust those keys.
///
/// # Errors
/// [`InitError`].
pub fn init(directory: &Path, names: &[String], now_s: u64) -> Result<Made, InitError> {
    let names: Vec<ServerName> = names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    let layout = Layout::new(directory);
    check_free(&layout)?;
    files::make_directory(layout.directory())?;
    // A restore or another `init` may have been quicker.
    let _held = files::hold(layout.directory())?;
    check_free(&layout)?;
    for directory in [layout.trust(), layout.admin(), layout.blobs()] {
        files::make_directory(&directory)?;
    }
    let fleet: Fleet = format!("stemma-{}", Hex(&random::<4>().map_err(InitError::Randomness)?))
        .parse()
        .expect("lower case letters, digits and a hyphen");
    let authority = Authority::create(&layout.trust(), fleet.clone(), now_s)?;
    files::write(&layout.root(), Holds::Settings, ca::pem(authority.root()).as_bytes())?;
    write_admin(&layout, &authority, now_s)?;
    let record = FleetRecord {
        fleet: fleet.to_string(),
        controller: uuid::Builder::from_random_bytes(random().map_err(InitError::Randomness)?).into_uuid(),
        names: names.iter().map(ToString::to_string).collect(),
    };
    create_store(&layout, &record, now_s)?;
    let hash = stemma_wire::tls::spki_sha256(authority.root()).expect("the root was just made");
    Ok(Made { fleet, ca_hash: Hex(&hash).to_string(), context: layout.context() })
}

/// Refuses a directory that holds a fleet, or its authority.
fn check_free(layout: &Layout) -> Result<(), InitError> {
    let directory = layout.directory();
    if fs::symlink_metadata(layout.store()).is_ok() {
        return Err(InitError::Exists { directory: directory.to_owned(), found: layout.store() });
    }
    match layout.authority()? {
        Some(found) => Err(InitError::Authority { directory: directory.to_owned(), found }),
        None => Ok(()),
    }
}

fn create_store(layout: &Layout, record: &FleetRecord, now_s: u64) -> Result<(), InitError> {
    let fleet = Bytes::from(serde_json::to_vec(record).expect("a record of text"));
    // One of version 4 says no time, as those of later epochs do: nobody was led into the first one.
    let epoch = uuid::Builder::from_random_bytes(random().map_err(InitError::Randomness)?).into_uuid();
    let options = CreateOptions { epoch: Epoch::new(*epoch.as_bytes()), base: Revision::ZERO, fleet };
    let store = RedbStore::create(&layout.store(), &options, RedbOptions::default())?;
    let store: Arc<dyn Store> = Arc::new(store);
    first::store_in(&store, layout, Arc::new(FixedClock(now_s))).map_err(|error| InitError::First(error.message))
}

fn write_admin(layout: &Layout, authority: &Authority, now_s: u64) -> Result<(), InitError> {
    let name = FIRST_ADMIN.parse().expect("a plain word is a principal's name");
    let issued = authority.issue_admin(name, now_s).map_err(CaError::from)?;
    let key = issued.key.as_ref().expect("an admin's key is made with the certificate");
    let chain: String = issued.chain.iter().map(ca::pem).collect();
    files::write(&layout.admin().join("admin.pem"), Holds::Secret, chain.as_bytes())?;
    files::write(&layout.admin().join("admin.key"), Holds::Secret, ca::key_pem(key).as_bytes())?;
    // `run` writes it again with what it binds; until then it says where one listens by default.
    write_context(layout, DEFAULT_URL)?;
    Ok(())
}

/// Writes the admin's context file: what the command line needs to reach this controller. `init` does not know yet where `run`
/// will listen, so `run` writes it again when its address is another.
///
/// # Errors
/// [`FileError`].
pub fn write_context(layout: &Layout, url: &str) -> Result<(), FileError> {
    #[derive(Serialize)]
    struct Context<'a> {
        url: &'a str,
        ca: PathBuf,
        cert: PathBuf,
        key: PathBuf,
    }
    let directory = std::path::absolute(layout.directory()).unwrap_or_else(|_| layout.directory().to_owned());
    let absolute = Layout::new(&directory);
    let context = Context {
        url,
        ca: absolute.root(),
        cert: absolute.admin().join("admin.pem"),
        key: absolute.admin().join("admin.key"),
    };
    let text = toml::to_string(&context).expect("paths and text");
    let path = layout.context();
    if fs::read(&path).is_ok_and(|present| present == text.as_bytes()) {
        return Ok(());
    }
    files::write(&path, Holds::Secret, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const NOW_S: u64 = 1_800_000_000;

    #[test]
    fn what_is_made_is_closed_to_others_and_is_not_made_twice() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let made = init(&data, &["stemma.example".into(), "10.0.0.1".into()], NOW_S).unwrap();
        assert_eq!(made.ca_hash.len(), 64);
        let mode = |path: &str| fs::metadata(data.join(path)).unwrap().mode() & 0o777;
        for (path, want) in [
            (".", 0o700),
            ("trust", 0o700),
            ("trust/root.key", 0o600),
            ("trust/agents.key", 0o600),
            ("trust/admin.key", 0o600),
            ("trust/signers.key", 0o600),
            ("admin/admin.key", 0o600),
            ("admin/context.toml", 0o600),
        ] {
            assert_eq!(mode(path), want, "{path}");
        }
        let before = fs::read(data.join("store.redb")).unwrap();
        let again = init(&data, &[], NOW_S).unwrap_err().to_string();
        let shown = data.display();
        assert_eq!(
            again,
            format!(
                "{shown}: there is a fleet here already ({shown}/store.redb is there); it was left as it is: start it with \
                 `stemma-controller run --data-dir {shown}`, or give another --data-dir"
            )
        );
        assert_eq!(fs::read(data.join("store.redb")).unwrap(), before);
    }

    #[test]
    fn w10_06_an_authority_without_its_store_is_left_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        init(&data, &[], NOW_S).unwrap();
        fs::remove_file(data.join("store.redb")).unwrap();
        let shown = data.display();
        for (found, gone) in [("trust/admin.key", "trust"), ("admin/admin.key", "admin")] {
            let before = fs::read(data.join(found)).unwrap();
            assert_eq!(
                init(&data, &[], NOW_S).unwrap_err().to_string(),
                format!(
                    "{shown}: the authority of a fleet stands here ({shown}/{found} is there) and its store is gone; nothing was \
                     changed: restore a backup (docs/backup.md) or put back a copy of {shown} that was made while the controller was stopped; to give that fleet up, or if \
                     an `init` was cut short here, first move {shown}/trust and {shown}/admin away"
                )
            );
            assert_eq!(fs::read(data.join(found)).unwrap(), before);
            fs::remove_dir_all(data.join(gone)).unwrap();
        }
        init(&data, &[], NOW_S).unwrap();
    }

    #[test]
    fn a_bad_name_makes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let refused = init(&data, &["a b".into()], NOW_S).unwrap_err().to_string();
        assert!(refused.starts_with("--name: \"a b\" is neither a DNS name"), "{refused}");
        assert!(!data.exists());
    }
}
