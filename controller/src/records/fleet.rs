//! What a store says of the fleet that it holds, and of its last backup.

use serde::{Deserialize, Serialize};
use stemma_core::object::Timestamp;
use uuid::Uuid;

/// The last backup that was made of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupRecord {
    /// When it was made.
    pub at: Timestamp,
    /// The revision that it holds.
    pub revision: u64,
    /// Its size.
    pub bytes: u64,
    /// Whether it is encrypted.
    pub is_encrypted: bool,
}

/// What the store says of the fleet, written once by `init`. It stands in the store's head, and not under a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetRecord {
    /// The fleet's name, as in every certificate.
    pub fleet: String,
    /// This controller, as in its certificates.
    pub controller: Uuid,
    /// The names that `init --name` was given.
    pub names: Vec<String>,
}

impl FleetRecord {
    /// Reads what the store holds.
    ///
    /// # Errors
    /// When it is not what `init` wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}
