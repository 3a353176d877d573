//! State of the connection to the controllers. The agent logs the state when it changes, and stores it for the command
//! `status`.

use std::collections::BTreeMap;

use log::warn;
use serde::{Deserialize, Serialize};
use stemma_wire::log::error_chain;

use super::state::DIR;
use crate::host::atomic::{Attributes, ensure_dir, replace};
use crate::host::{Host, HostError, HostPath};

/// Name of the file that stores the state of the connection.
const FILE_NAME: &str = "connection.json";
/// Maximum size of the file that stores the state of the connection, in bytes.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// The state of the connection to the controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionState {
    /// A controller serves this host.
    Connected,
    /// The last check-in failed: its controller could not be reached, or did not respond as expected.
    Unserved,
    /// The controllers no longer know this host: its node was deleted, or its certificate was revoked.
    Unknown,
    /// Another host checks in with this host's certificate, for example a copy of its disk.
    Shared,
}

/// The state of the connection and its cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionRecord {
    /// The state of the connection.
    #[serde(rename = "standing")]
    pub state: ConnectionState,
    /// URL of the controller for which the state and the cause were recorded.
    pub url: String,
    /// The cause of an outage, as a message. Empty if the host is connected.
    pub cause: String,
    /// Start of this state, in seconds since 1970.
    pub since: u64,
}

/// Records the state of the connection, and determines which changes are logged.
pub(super) struct ConnectionLog {
    /// The record that was last read from disk, or that should be on disk. `None` if there is no valid record.
    stored_record: Option<ConnectionRecord>,
    /// The last state that this process recorded.
    state: Option<ConnectionState>,
    /// The last logged cause of each controller in the current outage, by URL. Digits are removed from a cause.
    logged_causes: BTreeMap<String, String>,
}

impl ConnectionRecord {
    /// Reads the stored record. Returns `None` if there is no record, or if the record is not valid.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn load(host: &dyn Host) -> Result<Option<Self>, HostError> {
        let Some(dir) = host.dir(&HostPath::from_static(DIR))? else { return Ok(None) };
        Ok(dir.read(FILE_NAME, MAX_FILE_BYTES)?.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Stores the state "connected" for a host that has just joined. The record of an earlier identity is replaced.
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

    /// Returns whether there is a stored record, with another state than [`ConnectionState::Connected`].
    pub(super) fn is_outage(&self) -> bool {
        self.stored_record.as_ref().is_some_and(|record| record.state != ConnectionState::Connected)
    }

    /// Returns whether to log the cause of a failure, and stores the cause. A cause is logged if it differs from the
    /// previous cause of this controller in the current outage. Digits are not compared.
    fn should_log(&mut self, url: &str, cause: &str) -> bool {
        // Digits are removed, because a cause may contain times, which differ in each attempt.
        let text: String = cause.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        self.logged_causes.insert(url.to_owned(), text.clone()).is_none_or(|previous| previous != text)
    }

    /// Records the current state. Returns whether the caller should log it: a connection after another state or none,
    /// any other state if its cause differs from the last one of this controller in the outage.
    ///
    /// The record on disk is written only when it changes, not at each attempt. Older versions of the agent stored no
    /// record. So no record is written for a connected host without a record, because an upgrade of the agent must
    /// change nothing on a host.
    pub(super) fn record(&mut self, host: &dyn Host, new_state: ConnectionState, url: String, cause: String) -> bool {
        let is_state_change = self.state.replace(new_state) != Some(new_state);
        let should_log = if new_state == ConnectionState::Connected {
            self.logged_causes.clear();
            is_state_change
        } else {
            self.should_log(&url, &cause)
        };
        let record_of_same_state = self.stored_record.as_ref().filter(|stored| stored.state == new_state);
        let since = record_of_same_state.map_or_else(|| host.unix_seconds(), |stored| stored.since);
        let new_record = ConnectionRecord { state: new_state, url, cause, since };
        let is_stored = match &self.stored_record {
            Some(stored) => *stored == new_record || (stored.state == new_state && !should_log),
            None => new_state == ConnectionState::Connected,
        };
        if !is_stored {
            if let Err(error) = new_record.store(host) {
                warn!(error:% = error_chain(&error); "the state of the connection could not be stored");
            }
            self.stored_record = Some(new_record);
        }
        should_log
    }
}
