//! State of the connection to the controllers: logged when it changes, and stored for `status`.

use std::collections::BTreeMap;

use log::warn;
use serde::{Deserialize, Serialize};
use stemma_wire::log::error_chain;

use super::state::DIR;
use crate::host::atomic::{Attributes, ensure_dir, replace};
use crate::host::{Host, HostError, HostPath};

/// Name of the file that stores the state of the connection.
const FILE_NAME: &str = "connection.json";
/// Maximum size of the file, in bytes.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// The state of the connection to the controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionState {
    /// A controller serves this host.
    Connected,
    /// No controller can be reached, or none answers as expected.
    Unserved,
    /// The controllers no longer know this host: its node was deleted, or its certificate was revoked.
    Unknown,
    /// Another host checks in with this host's certificate.
    Shared,
}

/// The state of the connection and its cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionRecord {
    /// The state of the connection.
    #[serde(rename = "standing")]
    pub state: ConnectionState,
    /// The controller that was contacted.
    pub url: String,
    /// The cause. Empty if the host is connected.
    pub cause: String,
    /// Start of this state, in seconds since 1970.
    pub since: u64,
}

/// Records the state of the connection. Contains the stored record, the last state that this process saw, and, by
/// controller, the cause that was last logged in the current outage.
pub(super) struct ConnectionLog {
    stored_record: Option<ConnectionRecord>,
    state: Option<ConnectionState>,
    logged_causes: BTreeMap<String, String>,
}

impl ConnectionRecord {
    /// Reads the stored record.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn load(host: &dyn Host) -> Result<Option<Self>, HostError> {
        let Some(dir) = host.dir(&HostPath::from_static(DIR))? else { return Ok(None) };
        Ok(dir.read(FILE_NAME, MAX_FILE_BYTES)?.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Stores the state of a host that has just joined. It replaces a record of an earlier identity.
    ///
    /// # Errors
    /// [`HostError`].
    pub(super) fn store_joined(host: &dyn Host, url: String) -> Result<(), HostError> {
        let since = host.unix_seconds();
        Self { state: ConnectionState::Connected, url, cause: String::new(), since }.store(host)
    }

    fn store(&self, host: &dyn Host) -> Result<(), HostError> {
        let dir = ensure_dir(host, &HostPath::from_static(DIR), 0o700)?;
        replace(host, &*dir, FILE_NAME, &serde_json::to_vec(self).expect("plain data"), &Attributes::with_mode(0o600))
    }
}

impl ConnectionLog {
    /// Reads the stored record at the start of the agent.
    ///
    /// # Errors
    /// [`HostError`].
    pub(super) fn load(host: &dyn Host) -> Result<Self, HostError> {
        Ok(Self { stored_record: ConnectionRecord::load(host)?, state: None, logged_causes: BTreeMap::new() })
    }

    /// Returns whether `status` reports that no controller serves this host.
    pub(super) fn is_outage(&self) -> bool {
        self.stored_record.as_ref().is_some_and(|record| record.state != ConnectionState::Connected)
    }

    /// Returns whether to log the cause of a failure: if it differs from the last one of this controller in the current
    /// outage. The digits of a cause are not compared.
    fn should_log(&mut self, url: &str, cause: &str) -> bool {
        // A cause may contain times, which differ in each attempt.
        let text: String = cause.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        self.logged_causes.insert(url.to_owned(), text.clone()).is_none_or(|last| last != text)
    }

    /// Records the current state. Returns whether to log it, because it differs from the last state or cause that this
    /// process saw.
    ///
    /// The record is written when it changes, not at each attempt. Older versions stored no record. A connected host
    /// without a record gets none, because an upgrade of the agent must change nothing on a host.
    pub(super) fn record(&mut self, host: &dyn Host, new_state: ConnectionState, url: String, cause: String) -> bool {
        let is_other = self.state.replace(new_state) != Some(new_state);
        let is_news = if new_state == ConnectionState::Connected {
            self.logged_causes.clear();
            is_other
        } else {
            self.should_log(&url, &cause)
        };
        let unchanged = self.stored_record.as_ref().filter(|kept| kept.state == new_state);
        let since = unchanged.map_or_else(|| host.unix_seconds(), |kept| kept.since);
        let now = ConnectionRecord { state: new_state, url, cause, since };
        let is_stored = match &self.stored_record {
            Some(kept) => *kept == now || (kept.state == new_state && !is_news),
            None => new_state == ConnectionState::Connected,
        };
        if !is_stored {
            if let Err(error) = now.store(host) {
                warn!(error:% = error_chain(&error); "the state of the connection could not be stored");
            }
            self.stored_record = Some(now);
        }
        is_news
    }
}
