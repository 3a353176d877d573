//! The stored data of an earlier version, unpacked into a temporary directory.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_wire::clock::Clock;
use uuid::Uuid;

/// Time of the recording, in seconds since 1970. Certificates that were issued then are valid for a day.
const CREATED_AT_S: u64 = 1_795_345_800;

/// The directory with the stored data of commit 118d023.
const DATA_DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/118d023");

/// A fleet that an earlier version recorded: the name of its archive, and the directory into which it was unpacked.
pub(crate) struct StoredFleet(&'static str, tempfile::TempDir);

/// A clock that begins at the time of the recording, or later by an offset, and then advances with the real time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedTime {
    started: Instant,
    offset: Duration,
}

/// The state of a file, which shows whether the file was written: its bytes, its inode, and its modification time in
/// seconds and nanoseconds.
type RecordedFile = (Vec<u8>, u64, i64, i64);

/// The states of the files below a directory, by the path of the file relative to the directory.
pub(crate) type FileMap = BTreeMap<PathBuf, RecordedFile>;

/// Returns the names of the files that differ, and of those that exist on one side only.
pub(crate) fn changed_files(old_files: &FileMap, new_files: &FileMap) -> Vec<String> {
    let names = old_files.keys().chain(new_files.keys().filter(|name| !old_files.contains_key(*name)));
    names.filter(|name| old_files.get(*name) != new_files.get(*name)).map(|name| name.display().to_string()).collect()
}

impl StoredFleet {
    /// Unpacks the archive of a stored fleet into a temporary directory.
    pub(crate) fn unpack(name: &'static str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let archive = Path::new(DATA_DIR).join(name).with_extension("tar.gz");
        let status = std::process::Command::new("tar").arg("-xpzf").arg(archive).arg("-C").arg(dir.path()).status()?;
        ensure!(status.success(), "tar: {status}");
        Ok(Self(name, dir))
    }

    /// Returns a path in the directory of the unpacked fleet. There, `data` is the data directory of the controller,
    /// `messages` has the first check-in of each host, and each other directory is the root of the host of this name.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.1.path().join(path)
    }

    /// Returns the directory of the recorded check-ins of a host's agent, with their answers.
    pub(crate) fn recording_dir(&self, host: &str) -> PathBuf {
        Path::new(DATA_DIR).join("checkins").join(self.0).join(host)
    }

    /// Returns the name of the fleet.
    pub(crate) fn fleet_name(&self, host: &str) -> Result<String> {
        Ok(self.identity(host)?["fleet"].as_str().context("the fleet has a name")?.to_owned())
    }

    /// Returns the UUID of a host's node.
    pub(crate) fn node_uuid(&self, host: &str) -> Result<Uuid> {
        Ok(self.identity(host)?["node"].as_str().context("a host is a node")?.parse()?)
    }

    /// Returns the stored identity of a host: the name of its fleet and the uuid of its node.
    fn identity(&self, host: &str) -> Result<Value> {
        let path = self.path(host).join("var/lib/stemma-agent/identity.json");
        Ok(serde_json::from_slice(&std::fs::read(path)?)?)
    }

    /// Returns the check-in, in encoded form, with which the recorded exchanges of a host's agent begin.
    pub(crate) fn first_check_in(&self, host: &str) -> Result<Vec<u8>> {
        Ok(std::fs::read(self.path("messages").join(host))?)
    }

    /// Returns a host's key, and its certificate with its issuers, as DER.
    pub(crate) fn credentials(&self, host: &str) -> Result<(Vec<u8>, Vec<Vec<u8>>)> {
        let text = std::fs::read(self.credentials_file(host))?;
        let value: Value = serde_json::from_slice(&text)?;
        Ok((serde_json::from_value(value["key"].clone())?, serde_json::from_value(value["chain"].clone())?))
    }

    /// Sets the address of the controller on a host. Nothing else of the stored data is changed.
    pub(crate) fn set_controller_url(&self, host: &str, url: &str) -> Result<()> {
        let path = self.credentials_file(host);
        let mut value: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        value["controllers"] = serde_json::json!([url]);
        Ok(std::fs::write(path, value.to_string())?)
    }

    fn credentials_file(&self, host: &str) -> PathBuf {
        self.path(host).join("var/lib/stemma-agent/sync/credentials.json")
    }

    /// Returns the state of every file below a path, by its name relative to the path.
    pub(crate) fn files(&self, path_in_fleet: &str) -> Result<FileMap> {
        let root = self.path(path_in_fleet);
        let mut files = FileMap::new();
        let mut dirs = vec![root.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(&dir)? {
                let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
                if kind.is_dir() {
                    dirs.push(path);
                } else if kind.is_file() {
                    let (stat, bytes) = (std::fs::metadata(&path)?, std::fs::read(&path)?);
                    let name = path.strip_prefix(&root).context("the path is below the root")?.to_owned();
                    files.insert(name, (bytes, stat.ino(), stat.mtime(), stat.mtime_nsec()));
                }
            }
        }
        Ok(files)
    }
}

impl RecordedTime {
    /// Returns a clock that shows the time of the recording now.
    pub(crate) fn now() -> Self {
        Self { started: Instant::now(), offset: Duration::ZERO }
    }

    /// Returns a clock that is ahead of this one by an offset.
    #[cfg(debug_assertions)]
    pub(crate) fn plus(self, duration: Duration) -> Self {
        Self { offset: self.offset + duration, ..self }
    }
}

impl Clock for RecordedTime {
    fn unix_seconds(&self) -> u64 {
        CREATED_AT_S + (self.offset + self.started.elapsed()).as_secs()
    }
}
