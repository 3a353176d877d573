//! One task on this host, as its applier sees it: the definition, its own inputs, and nothing of the live host.

use std::collections::BTreeMap;
use std::rc::Rc;

use stemma_core::digest::sha256;
use stemma_core::input::{Input, Inputs, Reference};
use stemma_core::task::Task;
use stemma_wire::message::desired::{InputValue, ProfileTask};
use stemma_wire::message::observed::Outcome;

use super::ledger::Ledger;
use crate::config::HostLabelMap;
use crate::host::{Host, HostError, HostPath};
use crate::paths::HOST_LABEL_MAP;

/// What appliers work on.
#[derive(Clone)]
pub struct Site {
    /// The machine.
    pub host: Rc<dyn Host>,
    /// What the root half keeps.
    pub ledger: Rc<Ledger>,
    /// The host label map, which the agent writes itself.
    pub label_map: HostPath,
}

impl Site {
    /// A machine whose host label map is where it is unless the configuration names another file.
    #[must_use]
    pub fn new(host: Rc<dyn Host>, ledger: Rc<Ledger>) -> Self {
        Self { host, ledger, label_map: HostPath::own(HOST_LABEL_MAP) }
    }

    /// The same with the label map of a configuration.
    #[must_use]
    pub fn with_label_map(self, map: &HostLabelMap) -> Self {
        let label_map = HostPath::parse(&map.path).expect("it was checked when it was read");
        Self { label_map, ..self }
    }
}

/// A task with its inputs.
pub struct HostTask {
    /// The definition.
    pub task: Task,
    /// The value of each reference of this task, and of no other.
    pub inputs: Inputs,
    /// The digest of definition and inputs: another content is another thing to do.
    pub content: [u8; 32],
}

/// Why a task of a profile cannot even be looked at.
#[derive(Debug, thiserror::Error)]
pub enum TaskUnreadable {
    /// The definition is no task that this agent knows.
    #[error("this agent cannot read the task's definition ({0}); upgrade it")]
    Definition(String),
    /// An input's text is none.
    #[error("the input {reference} cannot be read ({why})")]
    Input {
        /// Which one.
        reference: String,
        /// Why.
        why: String,
    },
    /// A reference has no input: the desired state and its profile do not belong together.
    #[error("the input {0} was not sent")]
    MissingInput(String),
}

impl HostTask {
    /// Puts a definition and its inputs together.
    ///
    /// # Errors
    /// [`TaskUnreadable`].
    pub fn new(profile: &ProfileTask, sent: &BTreeMap<String, InputValue>) -> Result<Self, TaskUnreadable> {
        let task =
            serde_json::from_str(&profile.definition).map_err(|error| TaskUnreadable::Definition(error.to_string()))?;
        let mut inputs = Inputs::new();
        for text in &profile.references {
            let value = sent.get(text).ok_or_else(|| TaskUnreadable::MissingInput(text.clone()))?;
            let unreadable = |why: String| TaskUnreadable::Input { reference: text.clone(), why };
            let reference: Reference = text.parse().map_err(|error| unreadable(format!("{error}")))?;
            let input = Input::try_from(value).map_err(|error| unreadable(error.to_string()))?;
            inputs.insert(reference, input).map_err(|error| unreadable(error.to_string()))?;
        }
        Ok(Self { task, inputs, content: content(profile, sent) })
    }

    /// Whether a secret is among its inputs: whatever it makes may hold the value.
    #[must_use]
    pub fn reads_secrets(&self) -> bool {
        self.inputs.iter().any(|(_, input)| matches!(input, Input::Secret { .. }))
    }

    /// Whether what it puts out and what it changes are kept from everyone: its author says so, or it reads a secret
    /// (trust.md, rule 8).
    #[must_use]
    pub fn is_sensitive(&self) -> bool {
        self.task.sensitive || self.reads_secrets()
    }
}

/// The digest of a task's own definition and inputs. It never leaves the host; the task digest is another thing.
pub fn content(profile: &ProfileTask, sent: &BTreeMap<String, InputValue>) -> [u8; 32] {
    let inputs: Vec<_> = profile.references.iter().map(|text| (text, sent.get(text))).collect();
    let bytes = postcard::to_stdvec(&(&profile.definition, inputs)).expect("plain data, which postcard always takes");
    sha256(&bytes)
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// What became of it.
    pub outcome: Outcome,
    /// One sentence, or nothing.
    pub message: String,
    /// The tail of its output.
    pub output: String,
    /// A unified diff.
    pub diff: String,
    /// How long it took.
    pub duration_ms: u64,
}

impl Execution {
    /// An end without a sentence.
    #[must_use]
    pub const fn plain(outcome: Outcome) -> Self {
        Self { outcome, message: String::new(), output: String::new(), diff: String::new(), duration_ms: 0 }
    }

    /// An end with a sentence.
    #[must_use]
    pub fn because(outcome: Outcome, message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::plain(outcome) }
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// The host is as the task wants it.
    AsItShould,
    /// It is not; what would change, for people.
    Differs {
        /// A unified diff, or empty.
        diff: String,
        /// One sentence, or empty.
        message: String,
    },
    /// It is not, and nothing that the agent may do makes it so.
    Blocked {
        /// A unified diff, or empty.
        diff: String,
        /// What stops it, and what to do.
        message: String,
    },
}

/// What applying did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// One sentence, or empty.
    pub message: String,
    /// The tail of its output.
    pub output: String,
    /// A unified diff.
    pub diff: String,
}

/// What a failure leaves behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Left {
    /// A part of the change may have been made.
    #[default]
    Begun,
    /// What the task keeps is as it was.
    AsItWas,
    /// Nobody knows whether it ran (`Outcome::Unknown`).
    Unknown,
}

/// Why a task failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TaskError {
    /// What is known of what it did until then.
    pub left: Left,
    /// What failed, for people.
    pub message: String,
    /// The tail of its output.
    pub output: String,
}

impl TaskError {
    /// A failure with a sentence.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }

    /// The same, of what happened before anything was changed.
    #[must_use]
    pub fn before_the_change(self) -> Self {
        Self { left: Left::AsItWas, ..self }
    }
}

impl From<HostError> for TaskError {
    fn from(error: HostError) -> Self {
        Self::new(error.sentence())
    }
}
