//! The data that a host reports about itself. The controller computes desired states from the Observation, and never
//! from the Report. The two are separate types, so that a report cannot change a desired state by mistake.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stemma_core::status::TaskOutcome;

use super::PartDigest;
use super::bounded;

/// The line with which the agent replaces the beginning of an output that is too long.
pub const TRUNCATION_MARK: &str = "[the beginning is cut off]\n";

/// The Observation of a host: stable facts, detected traits and reported labels. The agent sends it when its digest
/// changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// Stable facts by dotted path (`cpu.count`, `memory.total_mb`, `network.addresses`), each a canonical JSON text.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 4096>")]
    pub facts: BTreeMap<String, String>,
    /// The standard or custom traits that were detected on the host.
    #[serde(deserialize_with = "bounded::list::<_, _, 1024>")]
    pub traits: Vec<String>,
    /// The labels from the host's own files, by key, each with the file and line that contains it.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 4096>")]
    pub labels: BTreeMap<String, ReportedLabel>,
}

/// A label from a file of the host itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedLabel {
    /// The value as written in the file.
    pub value: String,
    /// The file and, if known, the line: `labels.d/10-local:3`, `node-labels`.
    pub source: String,
}

/// The result of a task on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Outcome {
    /// The host was in the desired state already, so the task changed nothing.
    Unchanged,
    /// The task changed the host to the desired state.
    Changed,
    /// The task was only checked, in mode `noop`, and would change the host. A task whose own mode is `observe` has
    /// this outcome too, although it is not checked. The `message` of its result says so.
    WouldChange,
    /// The task ran and failed.
    Failed,
    /// The task did not run, because a task that it requires failed or has the mode `observe`.
    DependencyFailed,
    /// The agent cannot read the task or does not support its type, or the host's own configuration forbids the task.
    Unsupported,
    /// The task started, and the agent does not know whether it ended, for example after a crash. An operator decides
    /// with `stemma-agent resolve-unknown` whether the task is done.
    Unknown,
    /// The host drifted from the desired state, and the agent did not mend this, for example because the task has
    /// `on_drift: report`.
    Drifted,
}

impl Outcome {
    /// Returns the coarser outcome from which the controller computes the state of the node. Every outcome that needs
    /// an operator counts as a failure, except `Drifted`.
    pub const fn to_task_outcome(self) -> TaskOutcome {
        match self {
            Self::Unchanged | Self::Changed => TaskOutcome::Succeeded,
            Self::WouldChange => TaskOutcome::WouldChange,
            Self::Drifted => TaskOutcome::Drifted,
            Self::Failed | Self::DependencyFailed | Self::Unsupported | Self::Unknown => TaskOutcome::Failed,
        }
    }

    /// Returns whether the task succeeded: the host is in the desired state of the task.
    pub const fn is_success(self) -> bool {
        matches!(self.to_task_outcome(), TaskOutcome::Succeeded)
    }

    /// Returns whether the task failed. A task that drifted or would change something did neither fail nor succeed.
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
    /// A sentence that explains the outcome to people. Empty if the outcome needs no explanation.
    pub message: String,
    /// The end of the task's output, at most 4 KiB. Empty for sensitive tasks.
    #[serde(deserialize_with = "bounded::text::<_, 4096>")]
    pub output: String,
    /// The difference between the host and the desired state, as a unified diff of at most 16 KiB. Empty for sensitive
    /// tasks.
    #[serde(deserialize_with = "bounded::text::<_, 16384>")]
    pub diff: String,
    /// The duration of the task, in milliseconds.
    pub duration_ms: u64,
}

impl TaskResult {
    /// Returns the size of the texts (message, output and diff), in bytes.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        self.message.len() + self.output.len() + self.diff.len()
    }
}

/// The data that a host reports in addition to its Observation and the results of tasks. The controller stores only the
/// last report. No desired state depends on it, but the node's state and notes do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The version of the agent.
    #[serde(deserialize_with = "bounded::text::<_, 64>")]
    pub agent_version: String,
    /// Volatile facts (uptime, load) and facts about the agent (such as `agent.stuck`), as JSON text by dotted path.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 4096>")]
    pub facts: BTreeMap<String, String>,
    /// Findings of the host: two keys that collide in `labels.env`, a label file that is not a regular file, …
    #[serde(deserialize_with = "bounded::list::<_, _, 256>")]
    pub findings: Vec<String>,
    /// The progress of this host with its task set.
    pub progress: Progress,
    /// The pause, hold and park that were set on the host itself.
    pub local: LocalState,
}

/// The progress of a host with the task set that it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Progress {
    /// The host holds no task set, has not started it, or may start no task. Also a host that has only observed or
    /// checked its tasks: in mode `observe`, or in mode `noop` if a task would change the host.
    #[default]
    Idle,
    /// Tasks are running.
    Running,
    /// No task runs, waits or failed. A task that drifted, or was only checked because of its own mode, did not fail.
    Converged,
    /// At least one task failed, or did not run because of another one, or the agent cannot write its own state.
    Failed,
    /// At least one task has not started, because it waits for a barrier to open or for a blob. No task runs or failed.
    Waiting,
}

/// The pause, hold and park that were set on the host itself. `stemma-agent` has a command only for the pause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LocalState {
    /// True after `stemma-agent pause`: nothing is applied until `resume`.
    pub paused: bool,
    /// The end of the hold (seconds since 1970) and its reason. `None` without a hold.
    pub hold: Option<(u64, String)>,
    /// The reason, if the host is parked.
    pub parked: Option<String>,
}
