//! The stored state of the controller's clock.

use serde::{Deserialize, Serialize};
use stemma_core::clock::ClockDoubts;
use stemma_core::object::Timestamp;

/// The record of a time at which the clock was trusted, and of the jumps of the clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockRecord {
    /// A time that the clock showed while trusted or, if it is suspect, should have shown when its jump was noticed.
    pub at: Timestamp,
    /// True if the clock has jumped since it was last trusted. What was written after that may have wrong timestamps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_suspect: bool,
    /// The earlier jumps of the clock, after each of which it was trusted again.
    #[serde(default, skip_serializing_if = "ClockDoubts::is_empty")]
    pub doubts: ClockDoubts,
}
