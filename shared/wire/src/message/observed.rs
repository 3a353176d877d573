//! What a host reports about itself. The Observation is an input of resolve. The Report is never an input, and only the
//! last one is stored. The two are separate types, so that a report can never decide anything.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stemma_core::status::TaskOutcome;

use super::PartDigest;
use super::bounded;

/// Marks the place where the beginning of an output was cut off, by the host or by the command that shows the end of
/// it.
pub const TRUNCATION_MARK: &str = "[the beginning is cut off]\n";

/// The Observation of a host: stable facts, detected traits and reported labels. It is sent when its digest changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// Stable facts by dotted path (`cpu.count`, `memory.total_mb`, `network.addresses`), each a canonical JSON text.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 4096>")]
    pub facts: BTreeMap<String, String>,
    /// The standard or custom traits that were detected on the host.
    #[serde(deserialize_with = "bounded::list::<_, _, 1024>")]
    pub traits: Vec<String>,
    /// The labels from the host's own files, with the place of each.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 4096>")]
    pub labels: BTreeMap<String, ReportedLabel>,
}

/// A label that the host itself provides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedLabel {
    /// The value as written in the file.
    pub value: String,
    /// The file and line, as `labels.d/10-local:3` or `node-labels`.
    pub source: String,
}

/// The result of a task on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Outcome {
    /// The host already had the desired state.
    Unchanged,
    /// The task changed the host to the desired state.
    Changed,
    /// The mode is `noop`, and the task would change the host.
    WouldChange,
    /// The task ran and failed.
    Failed,
    /// A task that this one requires failed.
    DependencyFailed,
    /// This agent does not support the task type, or the host's own ceiling forbids it.
    Unsupported,
    /// The task started, and it is not known whether it ended. An operator settles this with `resolve-unknown`.
    Unknown,
    /// Drift was found and not mended, for example because the task sets `on_drift: report`.
    Drifted,
}

impl Outcome {
    /// Returns what this outcome means for the state of the node.
    pub const fn to_task_outcome(self) -> TaskOutcome {
        match self {
            Self::Unchanged | Self::Changed => TaskOutcome::Succeeded,
            Self::WouldChange => TaskOutcome::WouldChange,
            Self::Drifted => TaskOutcome::Drifted,
            Self::Failed | Self::DependencyFailed | Self::Unsupported | Self::Unknown => TaskOutcome::Failed,
        }
    }

    /// Returns whether the tasks that depend on this one may start.
    pub const fn is_success(self) -> bool {
        matches!(self.to_task_outcome(), TaskOutcome::Succeeded)
    }

    /// Returns whether the task failed: not only that it still waits, has drifted or would change something.
    pub const fn is_failure(self) -> bool {
        matches!(self.to_task_outcome(), TaskOutcome::Failed)
    }
}

/// The result of one task. Its sequence number grows on the host and is never reused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskResult {
    /// Sequence number on this host, from 1.
    pub sequence: u64,
    /// The digest of the task set to which the task belongs.
    pub task_set: PartDigest,
    /// The task's id.
    pub task: String,
    /// The outcome.
    pub outcome: Outcome,
    /// One sentence for people that explains the outcome. Empty if no explanation is needed.
    pub message: String,
    /// The tail of the output, at most 4 KiB. Empty for sensitive tasks.
    #[serde(deserialize_with = "bounded::text::<_, 4096>")]
    pub output: String,
    /// A unified diff, at most 16 KiB. Empty for sensitive tasks.
    #[serde(deserialize_with = "bounded::text::<_, 16384>")]
    pub diff: String,
    /// How long the task ran, in milliseconds.
    pub duration_ms: u64,
}

/// What a host reports in addition to its Observation. Only the last report is stored, and it decides nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The version of the agent.
    #[serde(deserialize_with = "bounded::text::<_, 64>")]
    pub agent_version: String,
    /// Volatile facts (uptime, load, free memory), as canonical JSON text by dotted path.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 4096>")]
    pub facts: BTreeMap<String, String>,
    /// Findings of the host: two keys that collide in `labels.env`, a label file that is not a regular file, …
    #[serde(deserialize_with = "bounded::list::<_, _, 256>")]
    pub findings: Vec<String>,
    /// The progress of this host with its task set.
    pub progress: Progress,
    /// Pause, hold and park as set on the host.
    pub local: LocalState,
}

/// The progress of a host with the task set that it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Progress {
    /// The host holds no task set, or has not started it.
    #[default]
    Idle,
    /// Tasks are running.
    Running,
    /// Every task succeeded.
    Converged,
    /// At least one task failed.
    Failed,
    /// The host waits for a barrier or a lease.
    Waiting,
}

/// Pause, hold and park as set on the host itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LocalState {
    /// True after `stemma-agent pause`: nothing is applied until `resume`.
    pub paused: bool,
    /// The end of the hold (seconds since 1970) and its reason.
    pub hold: Option<(u64, String)>,
    /// The reason, if the host is parked.
    pub parked: Option<String>,
}
