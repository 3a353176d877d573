//! What a host says of itself: the Observation (versioned, an input of resolve) and the Report (the last one
//! only, never an input). They are two types so that no report can ever decide something.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stemma_core::status::TaskOutcome;

use super::PartDigest;
use super::bounded;

/// Stands where the beginning of an output was cut off, whoever cut it: the host, or the command that shows the end of it.
pub const CUT: &str = "[the beginning is cut off]\n";

/// Stable facts, detected traits, reported labels. Sent when its digest changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// Stable facts by dotted path (`cpu.count`, `memory.total_mb`, `network.addresses`), each a canonical JSON text.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 4096>")]
    pub facts: BTreeMap<String, String>,
    /// Standard or custom trait names that the host was seen to have.
    #[serde(deserialize_with = "bounded::list::<_, _, 1024>")]
    pub traits: Vec<String>,
    /// Labels that the host's own files say, with where each stands.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 4096>")]
    pub labels: BTreeMap<String, ReportedLabel>,
}

/// A label from the host itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedLabel {
    /// The value as written there.
    pub value: String,
    /// File and line, as `labels.d/10-local:3` or `node-labels`.
    pub source: String,
}

/// What became of a task on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Outcome {
    /// It was so already.
    Unchanged,
    /// It was made so.
    Changed,
    /// Mode `noop`: it would be changed.
    WouldChange,
    /// It was tried and failed.
    Failed,
    /// Something that it requires failed.
    DependencyFailed,
    /// This agent has no such task type, or the host's own ceiling forbids it.
    Unsupported,
    /// Started, and not known to have ended; settled by `resolve-unknown`.
    Unknown,
    /// It stands out by its definition (`on_drift: report`): drift seen, not mended.
    Drifted,
}

impl Outcome {
    /// What it means for the state of its node.
    pub const fn of_node(self) -> TaskOutcome {
        match self {
            Self::Unchanged | Self::Changed => TaskOutcome::Succeeded,
            Self::WouldChange => TaskOutcome::WouldChange,
            Self::Drifted => TaskOutcome::Drifted,
            Self::Failed | Self::DependencyFailed | Self::Unsupported | Self::Unknown => TaskOutcome::Failed,
        }
    }

    /// Whether what depends on the task may start after it.
    pub const fn is_success(self) -> bool {
        matches!(self.of_node(), TaskOutcome::Succeeded)
    }

    /// Whether something is wrong, rather than still to come.
    pub const fn is_failure(self) -> bool {
        matches!(self.of_node(), TaskOutcome::Failed)
    }
}

/// One result, with a number that grows on the host and never returns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskResult {
    /// Sequence number on this host, from 1.
    pub sequence: u64,
    /// The task set that it belongs to.
    pub task_set: PartDigest,
    /// The task's id.
    pub task: String,
    /// What became of it.
    pub outcome: Outcome,
    /// One sentence for people; empty where the outcome says all.
    pub message: String,
    /// The tail of its output, at most 4 KiB; empty for sensitive tasks.
    #[serde(deserialize_with = "bounded::text::<_, 4096>")]
    pub output: String,
    /// A unified diff, at most 16 KiB; empty for sensitive tasks.
    #[serde(deserialize_with = "bounded::text::<_, 16384>")]
    pub diff: String,
    /// How long it took.
    pub duration_ms: u64,
}

/// The rest of what a host says: kept as the last one, decides nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The agent's own version.
    #[serde(deserialize_with = "bounded::text::<_, 64>")]
    pub agent_version: String,
    /// Facts that change by themselves (uptime, load, free memory), canonical JSON text by dotted path.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 4096>")]
    pub facts: BTreeMap<String, String>,
    /// Findings of the host (two keys that meet in `labels.env`, a label file that is no regular file, …).
    #[serde(deserialize_with = "bounded::list::<_, _, 256>")]
    pub findings: Vec<String>,
    /// Where this host stands with its task set.
    pub progress: Progress,
    /// `pause`, `hold` and `park` as said on the host.
    pub local: LocalState,
}

/// Where a host stands with the task set that it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Progress {
    /// Holds no task set, or has not begun.
    #[default]
    Idle,
    /// Tasks run.
    Running,
    /// Every task was so or was made so.
    Converged,
    /// At least one task failed.
    Failed,
    /// Waits for a barrier or a lease.
    Waiting,
}

/// What was said on the host itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LocalState {
    /// `stemma-agent pause`: no applying until `resume`.
    pub paused: bool,
    /// Held until this time (seconds since 1970), with a reason.
    pub hold: Option<(u64, String)>,
    /// Parked, with a reason.
    pub parked: Option<String>,
}
