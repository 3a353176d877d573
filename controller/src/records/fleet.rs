//! The stored records of the fleet and of its last backup.

use serde::{Deserialize, Serialize};
use stemma_core::object::Timestamp;
use uuid::Uuid;

/// The last backup of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupRecord {
    /// The time at which the backup was created.
    pub at: Timestamp,
    /// The revision of the store that the backup contains.
    pub revision: u64,
    /// The size of the backup, in bytes.
    pub bytes: u64,
    /// True if the backup is encrypted.
    pub is_encrypted: bool,
}

/// The identity of the fleet, written once by `init`. It is stored in the head of the store, not under a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetRecord {
    /// The fleet's name, which is in every certificate.
    pub fleet: String,
    /// The uuid of this controller, which is in its certificates.
    pub controller: Uuid,
    /// The names and addresses of the controller that were given with `init --name`.
    pub names: Vec<String>,
}

impl FleetRecord {
    /// Decodes the record in the head of the store.
    ///
    /// # Errors
    /// Fails if the bytes are not a record that `init` could have written.
    pub fn decode(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}
