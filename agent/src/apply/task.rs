//! One task on this host, as its applier sees it: the definition and its own inputs, but nothing of the live host.

use std::collections::BTreeMap;
use std::rc::Rc;

use stemma_core::digest::sha256;
use stemma_core::input::{Input, Inputs, Reference};
use stemma_core::task::Task;
use stemma_wire::message::desired::{InputValue, ProfileTask};
use stemma_wire::message::observed::Outcome;

use super::ledger::Ledger;
use crate::config::HostLabelMapConfig;
use crate::host::{Host, HostError, HostPath};
use crate::paths::DEFAULT_HOST_LABEL_MAP;

/// The host and ledger that appliers work on.
#[derive(Clone)]
pub struct Site {
    /// The host.
    pub host: Rc<dyn Host>,
    /// The state of the root half.
    pub ledger: Rc<Ledger>,
    /// The path of the host label map, which the agent writes itself.
    pub label_map: HostPath,
}

impl Site {
    /// Creates a site with the default path of the host label map.
    #[must_use]
    pub fn new(host: Rc<dyn Host>, ledger: Rc<Ledger>) -> Self {
        Self { host, ledger, label_map: HostPath::from_static(DEFAULT_HOST_LABEL_MAP) }
    }

    /// Sets the host label map of a configuration.
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
    /// The values that the templates and the condition of this task read, and no others.
    pub inputs: Inputs,
    /// The digest of definition and inputs. With another digest, the journal counts the task as a new step.
    pub content: [u8; 32],
}

/// Why a task of a profile cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TaskParseError {
    /// This agent cannot parse the definition.
    #[error("this agent cannot read the task's definition ({0}); upgrade it")]
    Definition(String),
    /// An input cannot be parsed.
    #[error("the input {reference} cannot be read ({why})")]
    Input {
        /// The reference of the input.
        reference: String,
        /// The reason.
        why: String,
    },
    /// The task reads a value that the task set lacks, so the desired state and its profile do not belong together.
    #[error("the input {0} was not sent")]
    MissingInput(String),
}

impl HostTask {
    /// Parses a definition and its inputs.
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

    /// Returns whether the inputs include a secret. Then everything that the task writes may contain the secret.
    #[must_use]
    pub fn reads_secrets(&self) -> bool {
        self.inputs.iter().any(|(_, input)| matches!(input, Input::Secret { .. }))
    }

    /// Returns whether the task's output and diffs must be hidden, because its author says so or it reads a secret
    /// (trust.md, rule 8).
    #[must_use]
    pub fn is_sensitive(&self) -> bool {
        self.task.sensitive || self.reads_secrets()
    }
}

/// Returns the digest of one task's definition and inputs, by which this host notices that the task changed. This is
/// not the task digest of the task set, and never leaves the host.
pub fn content_digest(profile: &ProfileTask, values: &BTreeMap<String, InputValue>) -> [u8; 32] {
    let inputs: Vec<_> = profile.references.iter().map(|text| (text, values.get(text))).collect();
    let bytes = postcard::to_stdvec(&(&profile.definition, inputs)).expect("plain data, which postcard always takes");
    sha256(&bytes)
}

/// The result of a task's run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// How the task ended.
    pub outcome: Outcome,
    /// What happened, as one sentence, or empty.
    pub message: String,
    /// The end of the output of the task's command.
    pub output: String,
    /// A unified diff of what changed or would change.
    pub diff: String,
    /// How long the task took, in milliseconds.
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

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// The host is as the task wants it.
    Converged,
    /// The host differs. The fields describe, for people, what would change.
    Drifted {
        /// A unified diff, or empty.
        diff: String,
        /// One sentence, or empty.
        message: String,
    },
    /// The host differs, and the agent is not able or allowed to change it.
    Blocked {
        /// A unified diff, or empty.
        diff: String,
        /// What blocks the change, and what to do.
        message: String,
    },
}

/// The result of a successful apply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyResult {
    /// What people should know about the change, as one sentence, or empty.
    pub message: String,
    /// The end of the output of the task's command.
    pub output: String,
    /// A unified diff of what changed.
    pub diff: String,
}

/// The state that a failure leaves behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureEffect {
    /// Part of the change may have been made.
    #[default]
    Partial,
    /// What the task manages is unchanged.
    Unchanged,
    /// It is unknown whether the task ran (`Outcome::Unknown`).
    Unknown,
}

/// Why a task failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TaskError {
    /// What is known about the changes that the task made before it failed.
    pub effect: FailureEffect,
    /// What failed, for people.
    pub message: String,
    /// The end of the output of the task's command.
    pub output: String,
}

impl TaskError {
    /// Creates an error with a message. Part of the change may have been made.
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
