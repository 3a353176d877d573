//! What is kept from an earlier version, unpacked below a directory of its own.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_wire::clock::Clock;
use uuid::Uuid;

/// When it was made, seconds since 1970: certificates made then are good for a day.
const MADE_AT: u64 = 1_795_345_800;

/// What is kept of that version.
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/118d023");

/// A kept fleet: its archive's name, and where it was unpacked.
pub(crate) struct Kept(&'static str, tempfile::TempDir);

/// The time of the kept fleet, or so much later, going on as this test does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Then {
    begun: Instant,
    later: Duration,
}

/// Whether a file is the one that it was: its bytes, its inode, and when it was changed.
type File = (Vec<u8>, u64, i64, i64);

/// The files below a path, by name.
pub(crate) type Files = BTreeMap<PathBuf, File>;

/// The names of the files that are not as they were.
pub(crate) fn changed(before: &Files, after: &Files) -> Vec<String> {
    let names = before.keys().chain(after.keys().filter(|name| !before.contains_key(*name)));
    names.filter(|name| before.get(*name) != after.get(*name)).map(|name| name.display().to_string()).collect()
}

impl Kept {
    pub(crate) fn unpack(name: &'static str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let archive = Path::new(DATA).join(name).with_extension("tar.gz");
        let status = std::process::Command::new("tar").arg("-xpzf").arg(archive).arg("-C").arg(dir.path()).status()?;
        ensure!(status.success(), "tar: {status}");
        Ok(Self(name, dir))
    }

    /// A path of the kept fleet: `data` is the controller's, the others are hosts.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.1.path().join(path)
    }

    /// Where it is written down what a host's agent said and was answered.
    pub(crate) fn recorded(&self, host: &str) -> PathBuf {
        Path::new(DATA).join("checkins").join(self.0).join(host)
    }

    /// The name of the fleet.
    pub(crate) fn fleet(&self, host: &str) -> Result<String> {
        Ok(self.identity(host)?["fleet"].as_str().context("the fleet has a name")?.to_owned())
    }

    /// The node that a host is.
    pub(crate) fn node(&self, host: &str) -> Result<Uuid> {
        Ok(self.identity(host)?["node"].as_str().context("a host is a node")?.parse()?)
    }

    fn identity(&self, host: &str) -> Result<Value> {
        let path = self.path(host).join("var/lib/stemma-agent/identity.json");
        Ok(serde_json::from_slice(&std::fs::read(path)?)?)
    }

    /// The last check-in of a host's agent.
    pub(crate) fn message(&self, host: &str) -> Result<Vec<u8>> {
        Ok(std::fs::read(self.path("messages").join(host))?)
    }

    /// A host's key and certificate with its issuers, DER.
    pub(crate) fn credentials(&self, host: &str) -> Result<(Vec<u8>, Vec<Vec<u8>>)> {
        let text = std::fs::read(self.credentials_file(host))?;
        let value: Value = serde_json::from_slice(&text)?;
        Ok((serde_json::from_value(value["key"].clone())?, serde_json::from_value(value["chain"].clone())?))
    }

    /// Tells a host where the controller is now. Nothing else of what is kept is changed.
    pub(crate) fn point(&self, host: &str, url: &str) -> Result<()> {
        let path = self.credentials_file(host);
        let mut value: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        value["controllers"] = serde_json::json!([url]);
        Ok(std::fs::write(path, value.to_string())?)
    }

    fn credentials_file(&self, host: &str) -> PathBuf {
        self.path(host).join("var/lib/stemma-agent/sync/credentials.json")
    }

    /// Every file below a path, by its name.
    pub(crate) fn files(&self, below: &str) -> Result<Files> {
        let root = self.path(below);
        let mut found = Files::new();
        let mut dirs = vec![root.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(&dir)? {
                let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
                if kind.is_dir() {
                    dirs.push(path);
                } else if kind.is_file() {
                    let (stat, bytes) = (std::fs::metadata(&path)?, std::fs::read(&path)?);
                    let name = path.strip_prefix(&root).context("it stands below")?.to_owned();
                    found.insert(name, (bytes, stat.ino(), stat.mtime(), stat.mtime_nsec()));
                }
            }
        }
        Ok(found)
    }
}

impl Then {
    pub(crate) fn now() -> Self {
        Self { begun: Instant::now(), later: Duration::ZERO }
    }

    #[cfg(debug_assertions)]
    pub(crate) fn later(self, by: Duration) -> Self {
        Self { later: self.later + by, ..self }
    }
}

impl Clock for Then {
    fn unix_seconds(&self) -> u64 {
        MADE_AT + (self.later + self.begun.elapsed()).as_secs()
    }
}
