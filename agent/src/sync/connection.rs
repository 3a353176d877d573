//! How this host stands with its controllers: in the log when it changes, and on disk for `status`.

use std::collections::BTreeMap;

use log::warn;
use serde::{Deserialize, Serialize};
use stemma_wire::log::chain;

use super::state::DIR;
use crate::host::atomic::{Attributes, ensure_dir, replace};
use crate::host::{Host, HostError, HostPath};

/// The file.
const NAME: &str = "connection.json";
/// The largest file that is read.
const LARGEST: u64 = 64 * 1024;

/// How this host stands with its controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// One of them serves it.
    Connected,
    /// None can be asked, or none answers with what was asked for.
    Unserved,
    /// They no longer know it: its node was deleted, or its certificate was revoked.
    Unknown,
    /// Another host checks in with its certificate.
    Shared,
}

/// How this host stands, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// In a word.
    pub standing: Standing,
    /// The controller that was asked.
    pub url: String,
    /// Why it is so; empty where it is connected.
    pub cause: String,
    /// Since when, seconds since 1970.
    pub since: u64,
}

/// What was noted last, and which cause was logged of each controller in this outage.
#[derive(Default)]
pub(super) struct Connections {
    last: Option<Connection>,
    logged: BTreeMap<String, String>,
}

impl Connection {
    /// What was noted last on this host.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn load(host: &dyn Host) -> Result<Option<Self>, HostError> {
        let Some(dir) = host.dir(&HostPath::own(DIR))? else { return Ok(None) };
        Ok(dir.read(NAME, LARGEST)?.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Takes it away: it was another identity's.
    ///
    /// # Errors
    /// [`HostError`].
    pub(super) fn forget(host: &dyn Host) -> Result<(), HostError> {
        match host.dir(&HostPath::own(DIR))? {
            Some(dir) if dir.stat(NAME)?.is_some() => dir.remove(NAME),
            _ => Ok(()),
        }
    }

    fn store(&self, host: &dyn Host) -> Result<(), HostError> {
        let dir = ensure_dir(host, &HostPath::own(DIR), 0o700)?;
        replace(host, &*dir, NAME, &serde_json::to_vec(self).expect("plain data"), Attributes::mode(0o600))
    }
}

impl Connections {
    /// Whether this cause is to be logged: the first of an outage, and each other one after it.
    pub(super) fn is_news(&mut self, url: &str, cause: &str) -> bool {
        // The times in a cause move on.
        let text: String = cause.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        self.logged.insert(url.to_owned(), text.clone()).is_none_or(|last| last != text)
    }

    /// Notes how this host stands now. Whether it has changed.
    pub(super) fn note(&mut self, host: &dyn Host, standing: Standing, url: String, cause: String) -> bool {
        let last = self.last.as_ref().filter(|last| last.standing == standing);
        let since = last.map_or_else(|| host.unix_seconds(), |last| last.since);
        let is_new = last.is_none();
        if standing == Standing::Connected {
            self.logged.clear();
        }
        let now = Connection { standing, url, cause, since };
        if self.last.as_ref() != Some(&now) {
            if let Err(error) = now.store(host) {
                warn!(error:% = chain(&error); "how this host stands with its controllers could not be kept");
            }
            self.last = Some(now);
        }
        is_new
    }
}
