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

/// What is on disk, how this process found it last, and which cause was logged of each controller in this outage.
pub(super) struct Connections {
    kept: Option<Connection>,
    standing: Option<Standing>,
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

    /// A host that has just joined; what was noted there before was another identity's.
    ///
    /// # Errors
    /// [`HostError`].
    pub(super) fn joined(host: &dyn Host, url: String) -> Result<(), HostError> {
        let since = host.unix_seconds();
        Self { standing: Standing::Connected, url, cause: String::new(), since }.store(host)
    }

    fn store(&self, host: &dyn Host) -> Result<(), HostError> {
        let dir = ensure_dir(host, &HostPath::own(DIR), 0o700)?;
        replace(host, &*dir, NAME, &serde_json::to_vec(self).expect("plain data"), &Attributes::mode(0o600))
    }
}

impl Connections {
    /// What is known when the agent starts.
    ///
    /// # Errors
    /// [`HostError`].
    pub(super) fn load(host: &dyn Host) -> Result<Self, HostError> {
        Ok(Self { kept: Connection::load(host)?, standing: None, logged: BTreeMap::new() })
    }

    /// Whether `status` says that no controller serves this host.
    pub(super) fn is_outage(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.standing != Standing::Connected)
    }

    /// Whether this cause is news: the first of an outage, and each other one of a controller after it.
    fn is_news(&mut self, url: &str, cause: &str) -> bool {
        // The times in a cause move on.
        let text: String = cause.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        self.logged.insert(url.to_owned(), text.clone()).is_none_or(|last| last != text)
    }

    /// Notes how this host stands now. Whether that is to be logged: this process found it otherwise before, or for another cause.
    ///
    /// It is written where it is news, and not at each try. A host of a version that noted nothing, and that is served, gets no
    /// file: an upgrade is no event.
    pub(super) fn note(&mut self, host: &dyn Host, standing: Standing, url: String, cause: String) -> bool {
        let is_other = self.standing.replace(standing) != Some(standing);
        let is_news = if standing == Standing::Connected {
            self.logged.clear();
            is_other
        } else {
            self.is_news(&url, &cause)
        };
        let same = self.kept.as_ref().filter(|kept| kept.standing == standing);
        let since = same.map_or_else(|| host.unix_seconds(), |kept| kept.since);
        let now = Connection { standing, url, cause, since };
        let is_kept = match &self.kept {
            Some(kept) => *kept == now || (kept.standing == standing && !is_news),
            None => standing == Standing::Connected,
        };
        if !is_kept {
            if let Err(error) = now.store(host) {
                warn!(error:% = chain(&error); "how this host stands with its controllers could not be kept");
            }
            self.kept = Some(now);
        }
        is_news
    }
}
