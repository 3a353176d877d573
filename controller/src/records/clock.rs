//! The stored state of the controller's clock.

use serde::{Deserialize, Serialize};
use stemma_core::clock::ClockDoubts;
use stemma_core::object::Timestamp;

/// The last time at which the clock was trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockRecord {
    /// The time that the clock showed when it was last trusted.
    pub at: Timestamp,
    /// True if the clock has jumped since. Everything written after the jump has timestamps that may be wrong.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_suspect: bool,
    /// Earlier jumps, after which the clock became trusted again.
    #[serde(default, skip_serializing_if = "ClockDoubts::is_empty")]
    pub doubts: ClockDoubts,
}
