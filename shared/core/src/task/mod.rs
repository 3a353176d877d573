//! Tasks: what a release asks of a host, as an author wrote it.
//!
//! A [`Task`] is stored as it was given, defaults left out, because its canonical JSON enters the task digest: a
//! field at its default must not change what a host runs. What a type means, and which of its parameters are
//! templates, stands in one registry ([`types`]), from which the parser, the documents and the agent's dispatch are
//! derived.

mod check;
mod parameters;
mod types;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use check::{SECRET_SHOWN, judge, mistakes};
pub use parameters::{
    FileParameters, Form, Parameter, Parameters, Presence, ShellParameters, TypedParameters, WordsOrText, file_mode,
    is_template,
};
pub use types::{Exclusive, TASK_TYPES, TaskKind, TaskType, TemplateText, task_type};

/// The field of [`Task::foreign`] that names what an import could not translate.
pub const UNTRANSLATED: &str = "untranslated";

/// One task of a release, or a group of tasks (`type: group`).
///
/// Names are text here; [`crate::release::compile`] checks them and resolves them to indexes. Serialized without
/// what stands at its default: that form is stored, and hashed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// The name, unique in the release after its imports.
    pub id: String,
    /// The type as written; [`task_type`] says what it is.
    #[serde(rename = "type")]
    pub kind: String,
    /// Tag selectors. `None` where the author wrote none; empty where the author wrote an empty list or `null`,
    /// which counts only under `matching.roles: tags`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    /// Role selectors (Fuel's `role` and `groups`): names, `/patterns/`, `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// A group's tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<String>,
    /// Names or `/patterns/` of tasks on the same node, and of stages, that come first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Names or `/patterns/` of tasks on the same node, and of stages, that come after.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub required_for: Vec<String>,
    /// What comes first on other nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cross_depends: Vec<CrossEntry>,
    /// What comes after on other nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cross_depended_by: Vec<CrossEntry>,
    /// A CEL expression that can leave the task out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// What the type takes. Which of them are templates stands in the registry of types.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub parameters: Map<String, Value>,
    /// Tasks whose change makes this one act again (Fuel's `refresh_on`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subscribes: Vec<String>,
    /// What to do when the host has drifted from it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_drift: OnDrift,
    /// The task that is run once where this one no longer falls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_unassign: Option<String>,
    /// What to do when it was found started and not ended.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_interrupt: OnInterrupt,
    /// When it runs: with the others, before a disruption, or when the node leaves.
    #[serde(default, skip_serializing_if = "is_default")]
    pub phase: Phase,
    /// The node is drained before a task set in which this one changed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub disruptive: bool,
    /// Neither its output nor a diff is kept.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sensitive: bool,
    /// At most this mode for this task, whatever the node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Placed by asserted tags alone, and by an admin (docs/trust.md, rule 2).
    #[serde(default, skip_serializing_if = "is_default")]
    pub privileged: bool,
    /// How long one attempt may take, in seconds; the type's default where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// Further attempts after the first; the type's default where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Whether its failure stops its dependants. True unless said.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub fail_on_error: bool,
    /// How many nodes may run it at once; 0 or absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_nodes: Option<u32>,
    /// Fields of another system, kept and without meaning here.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub foreign: Map<String, Value>,
}

impl Task {
    /// A task with an id and a type, and everything else at its default.
    pub fn new(id: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { id: id.into(), kind: kind.into(), fail_on_error: true, ..Self::default() }
    }

    /// Whether it is a group: placed never itself, it places its tasks.
    pub fn is_group(&self) -> bool {
        self.kind == "group"
    }

    /// Whether it came with an expression that is not evaluated, and so is never started.
    pub fn is_untranslated(&self) -> bool {
        self.foreign.contains_key(UNTRANSLATED)
    }

    /// Whether it is a stage: on no node, a point that all nodes meet at.
    pub fn is_stage(&self) -> bool {
        self.kind == "stage"
    }
}

/// One entry of `cross_depends` or `cross_depended_by`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrossEntry {
    /// A task's name or a `/pattern/` over names.
    pub name: String,
    /// Role selectors: absent is not the same as `null`, which means the stages' own node.
    #[serde(default, skip_serializing_if = "Where::is_absent")]
    pub role: Where,
    /// Tag selectors, before `role` where both are given.
    #[serde(default, skip_serializing_if = "Where::is_absent")]
    pub tags: Where,
    /// Every matching instance, or the first that succeeds.
    #[serde(default, skip_serializing_if = "is_default")]
    pub policy: Policy,
}

/// Where an entry looks: what its author wrote in `role` or `tags`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Where {
    /// The field is not there.
    #[default]
    Absent,
    /// The field is `null`: the stages.
    Null,
    /// Selectors; a single text counts as a list of one.
    Names(Vec<String>),
}

impl Where {
    /// Whether the field is not there.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

impl Serialize for Where {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Absent | Self::Null => serializer.serialize_unit(),
            Self::Names(names) => names.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Where {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::<Vec<String>>::deserialize(deserializer)?.map_or(Self::Null, Self::Names))
    }
}

/// Whether every matching instance must have succeeded, or one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Every one.
    #[default]
    All,
    /// The first that succeeds.
    Any,
}

/// What to do about drift.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDrift {
    /// Apply again.
    #[default]
    Mend,
    /// Say so, and leave it.
    Report,
}

/// What to do about a run that was begun and not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnInterrupt {
    /// It is unknown, until a person says what happened.
    #[default]
    Unknown,
    /// Run it again.
    Again,
}

/// When a task runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// With the node's other tasks.
    #[default]
    Apply,
    /// Before a disruptive task set.
    Drain,
    /// When the node is deleted.
    Cleanup,
}

/// How far a host goes. Ordered, so that the lower of two is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Labels, traits and facts; no task is even checked.
    Observe,
    /// Tasks are checked, nothing is changed.
    Noop,
    /// Tasks are applied.
    #[default]
    Apply,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn yes() -> bool {
    true
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_yes(value: &bool) -> bool {
    *value
}
