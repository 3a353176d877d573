//! What a store says of the clock of its controller.

use serde::{Deserialize, Serialize};
use stemma_core::clock::Doubts;
use stemma_core::object::Timestamp;

/// When the clock was believed last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockRecord {
    /// What it said then.
    pub at: Timestamp,
    /// Whether it has jumped since. What was written after that has its times by a clock that may be wrong.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_suspect: bool,
    /// When it had jumped before, and was believed again.
    #[serde(default, skip_serializing_if = "Doubts::is_empty")]
    pub doubts: Doubts,
}
