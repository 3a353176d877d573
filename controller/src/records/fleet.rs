//! What a store says of the fleet that it holds. It stands in the store's head, and not under a key.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What the store says of the fleet, written once by `init`.
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
