//! One task on this host, as its applier sees it: the definition and its own inputs, but nothing of the live host.

use std::collections::BTreeMap;
use std::rc::Rc;

use stemma_core::digest::sha256;
use stemma_core::input::{Input, Inputs, Reference};
use stemma_core::task::Task;
use stemma_wire::message::desired::{InputValue, ProfileTask};
use stemma_wire::message::observed::Outcome;

use super::ledger::Ledger;
use super::left_commands::LeftCommands;
use super::memory::ApplierMemory;
use crate::config::HostLabelMapConfig;
use crate::host::{Host, HostError, HostPath};
use crate::paths::DEFAULT_HOST_LABEL_MAP;

/// The host and the ledger (the agent's records on disk) on which the code that applies tasks works.
#[derive(Clone)]
pub struct Site {
    /// The host.
    pub host: Rc<dyn Host>,
    /// The records on disk of the agent's root half: the process that runs as root and applies tasks.
    pub ledger: Rc<Ledger>,
    /// The commands of tasks that an earlier agent left running.
    pub left: Rc<LeftCommands>,
    /// What appliers remember between tasks.
    pub memory: Rc<ApplierMemory>,
    /// The path of the host label map (a file of labels). The agent writes this file itself, so no task may write it.
    pub label_map: HostPath,
}

impl Site {
    /// Creates a site with the default path of the host label map.
    #[must_use]
    pub fn new(host: Rc<dyn Host>, ledger: Rc<Ledger>) -> Self {
        let label_map = HostPath::from_static(DEFAULT_HOST_LABEL_MAP);
        Self { host, ledger, left: Rc::default(), memory: Rc::default(), label_map }
    }

    /// Sets the path of the host label map to the configured path.
    #[must_use]
    pub fn with_label_map(self, map: &HostLabelMapConfig) -> Self {
        let label_map = HostPath::parse(&map.path).expect("it was checked when it was read");
        Self { label_map, ..self }
    }
}

/// A task with its inputs.
pub struct HostTask {
    /// The definition of the task.
    pub task: Task,
    /// The values that the templates of this task read. Other values are not included.
    pub inputs: Inputs,
    /// The digest of definition and inputs. If the digest changes, a command without guards is a new command, which has
    /// not run yet.
    pub content: [u8; 32],
}

/// The reason why this agent cannot read a task of a profile (the list of tasks from the controller).
#[derive(Debug, thiserror::Error)]
pub enum TaskParseError {
    /// This agent cannot parse the definition.
    #[error("this agent cannot read the task's definition ({0}); upgrade it")]
    Definition(String),
    /// An input cannot be parsed.
    #[error("the input {reference} cannot be read ({why})")]
    Input {
        /// The reference of the input, such as `labels.a`.
        reference: String,
        /// The reason why the input cannot be parsed.
        why: String,
    },
    /// The task reads a value that the task set does not contain. So the task set does not match its profile.
    #[error("the input {0} was not sent")]
    MissingInput(String),
}

impl HostTask {
    /// Parses the definition of a task and the inputs that it reads. `values` has the inputs of the whole task set.
    ///
    /// # Errors
    /// [`TaskParseError`].
    pub fn new(profile: &ProfileTask, values: &BTreeMap<String, InputValue>) -> Result<Self, TaskParseError> {
        let task = serde_json::from_str(&profile.definition).map_err(|error| TaskParseError::Definition(error.to_string()))?;
        let mut inputs = Inputs::new();
        for text in &profile.references {
            let value = values.get(text).ok_or_else(|| TaskParseError::MissingInput(text.clone()))?;
            let input_error = |why: String| TaskParseError::Input { reference: text.clone(), why };
            let reference: Reference = text.parse().map_err(|error| input_error(format!("{error}")))?;
            let input = Input::try_from(value).map_err(|error| input_error(error.to_string()))?;
            inputs.insert(reference, input).map_err(|error| input_error(error.to_string()))?;
        }
        Ok(Self { task, inputs, content: content_digest(profile, values) })
    }

    /// Returns whether the inputs include a secret. If so, all output of the task may contain the secret.
    #[must_use]
    pub fn reads_secrets(&self) -> bool {
        self.inputs.iter().any(|(_, input)| matches!(input, Input::Secret { .. }))
    }

    /// Returns whether the task's output and diffs must be hidden. They must be hidden if the definition has
    /// `sensitive` or if the task reads a secret (trust.md, rule 8).
    #[must_use]
    pub fn is_sensitive(&self) -> bool {
        self.task.sensitive || self.reads_secrets()
    }
}

/// Returns the digest of one task's definition and inputs. If this digest changes, the host knows that the task
/// changed. The digest stays on the host, and is unrelated to the task digest of the task set.
pub fn content_digest(profile: &ProfileTask, values: &BTreeMap<String, InputValue>) -> [u8; 32] {
    let used_values: Vec<_> = profile.references.iter().map(|text| (text, values.get(text))).collect();
    let bytes = postcard::to_stdvec(&(&profile.definition, used_values)).expect("plain data, which postcard can always encode");
    sha256(&bytes)
}

/// The result of a task's run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// The outcome of the task.
    pub outcome: Outcome,
    /// One sentence about the run, or empty.
    pub message: String,
    /// The end of the output of the task's command.
    pub output: String,
    /// A unified diff of the changes that the task made or would make.
    pub diff: String,
    /// The duration of the run, in milliseconds.
    pub duration_ms: u64,
}

impl Execution {
    /// Creates a result without a message.
    #[must_use]
    pub const fn new(outcome: Outcome) -> Self {
        Self { outcome, message: String::new(), output: String::new(), diff: String::new(), duration_ms: 0 }
    }

    /// Creates a result with a message.
    #[must_use]
    pub fn with_message(outcome: Outcome, message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::new(outcome) }
    }
}

/// The result of a check: whether the host is in the desired state of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// The host is in the desired state of the task.
    Converged,
    /// As [`Self::Converged`], by a command that an earlier agent started and that has succeeded since.
    Completed(ApplyResult),
    /// The host is not in the desired state. The fields describe for people what the task would change.
    Drifted {
        /// A unified diff of what the task would change, or empty.
        diff: String,
        /// One sentence for people about the difference, or empty.
        message: String,
    },
    /// The host is not in the desired state, and something prevents the agent from changing it.
    Blocked {
        /// A unified diff of what the task would change, or empty.
        diff: String,
        /// One sentence about what prevents the change, and what a person can do.
        message: String,
    },
    /// The task has done what it can, and waits for an event on the host, such as a reboot.
    Deferred {
        /// One sentence about the event, and what a person can do.
        message: String,
    },
}

/// The result of a task that was applied successfully.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyResult {
    /// One sentence for people about the change, or empty.
    pub message: String,
    /// The end of the output of the task's command.
    pub output: String,
    /// A unified diff of the changes.
    pub diff: String,
    /// True if the task found that it had nothing to change, such as nothing to restart. It then counts as unchanged.
    pub is_unchanged: bool,
}

/// The effect that a failed task had on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureEffect {
    /// The task may have made a part of its changes.
    #[default]
    Partial,
    /// The task has changed nothing.
    Unchanged,
    /// The journal does not show whether the command of the task ended, and with which result (`Outcome::Unknown`).
    Unknown,
    /// What the task began continues. So the task is not tried again in this run.
    Unfinished,
}

/// The error of a failed task.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TaskError {
    /// The effect that the task had on the host before it failed.
    pub effect: FailureEffect,
    /// One sentence for people about the failure.
    pub message: String,
    /// The end of the output of the task's command.
    pub output: String,
}

impl TaskError {
    /// Creates an error with a message and the effect [`FailureEffect::Partial`].
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }

    /// Marks the error as one that occurred before any change.
    #[must_use]
    pub fn without_effect(self) -> Self {
        Self { effect: FailureEffect::Unchanged, ..self }
    }
}

impl From<HostError> for TaskError {
    fn from(error: HostError) -> Self {
        Self::new(error.sentence())
    }
}
