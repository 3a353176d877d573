//! Tasks: what a release requires of a host, as an author wrote it.
//!
//! A [`Task`] is stored as its author wrote it, without defaults. The task digest is computed from its canonical JSON,
//! and a field at its default must not change what a host runs. One registry ([`types`]) defines what a type means and
//! which of its parameters are templates. The parser, the documentation and the agent's dispatch are derived from it.

mod any_tag;
mod check;
mod claim;
mod parameter_type;
mod parameters;
mod path;
mod types;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub(crate) use any_tag::{ANY_TAG, ANY_TAG_TEXT};
pub use check::{SECRET_EXPOSED, check_release_tasks, check_task};
pub(crate) use check::{paths_through_links, template_tags_in_content, unsupported_types};
pub use claim::{PathClaim, PathClaims, PathConflict, PathContent};
pub use parameter_type::{
    MAX_ACCOUNT_ID, NamedResource, ParameterType as ParameterForm, check_argument, check_variable, check_words, parse_file_mode,
};
pub use parameters::{
    FileParameters, Parameter, ParameterPresence, ParameterTable, ShellParameters, TEMPLATE_FILE, TypedParameters, WordsOrText,
};
pub use path::{
    AGENT_CONFIG_FILE, AGENT_RUN_DIR, AGENT_STATE_DIR, DEFAULT_HOST_LABEL_MAP, PathRefused, check_directory, check_not_own,
    check_path, check_replaceable, check_writable, is_at_or_below, is_template,
};
pub(crate) use path::{ancestors, known_directories, spellings};
pub use types::{Exclusive, ResourceText, TASK_TYPES, TaskKind, TaskType, TemplateText, WriteTarget, task_type};

use crate::field::{FieldType, REQUIRED, manifest_struct};

/// The field of [`Task::foreign`] that lists what an import could not translate.
pub const UNTRANSLATED: &str = "untranslated";

manifest_struct! {
    /// One task of a release, or a group of tasks (`type: group`).
    ///
    /// Names are text here. [`crate::release::compile`] checks them and resolves them to indexes. Fields at their
    /// default are not serialized. This form is stored and hashed.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Task {
        /// Its name, unique in the release after its imports.
        pub id: String = FieldType::Text, REQUIRED, r#""site-conf""#;
        /// What it is: `file`, `shell`, `stage`, `group` or another type of task.
        pub kind as "type": String = FieldType::Text, REQUIRED, r#""file""#;
        /// It runs on nodes with one of these tags: names, `/patterns/`; the text `*` means every node that has a tag.
        ///
        /// `None` if the author left it out. Empty if the author wrote an empty list or `null`, which has an effect
        /// only under `matching.roles: tags`.
        #[serde(default, with = "any_tag::field", skip_serializing_if = "Option::is_none")]
        pub tags: Option<Vec<String>> = FieldType::TextOrList, "by roles", r#"["nginx"]"#;
        /// Without tags it runs on nodes with one of these roles: names, `/patterns/`, `*`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub roles or ["role", "groups"]: Vec<String> = FieldType::TextOrList, "[]", r#"["web"]"#;
        /// Of a group: the tasks that it places.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub tasks: Vec<String> = FieldType::TextOrList, "[]", r#"["site-conf"]"#;
        /// Tasks or `/patterns/` on the same node, and stages, that come before it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub requires: Vec<String> = FieldType::TextOrList, "[]", r#"["motd"]"#;
        /// Tasks or `/patterns/` on the same node, and stages, that come after it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub required_for: Vec<String> = FieldType::TextOrList, "[]", r#"["reload"]"#;
        /// Tasks on other nodes that come before it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub cross_depends or ["cross-depends"]: Vec<CrossEntry> = FieldType::ListOf(CrossEntry::FIELD_DEFS), "[]", r#"[{"name": "db-up", "role": ["db"], "policy": "any"}]"#;
        /// Tasks on other nodes that come after it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub cross_depended_by or ["cross-depended-by"]: Vec<CrossEntry> = FieldType::ListOf(CrossEntry::FIELD_DEFS), "[]", r#"[{"name": "web-up", "tags": ["nginx"]}]"#;
        /// A CEL expression. If it is false, the task is left out (docs/templates.md).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub condition: Option<String> = FieldType::Text, "none", r#""'HW_CPU_X86_AVX2' in traits""#;
        /// The parameters of its type.
        ///
        /// The registry of types defines which of them are templates.
        #[serde(default, deserialize_with = "crate::json::deserialize_free_object", skip_serializing_if = "Map::is_empty")]
        pub parameters: Map<String, Value> = FieldType::Parameters, "{}", r#"{"path": "/etc/motd", "content": "hello\n"}"#;
        /// Tasks after whose change it runs again; it comes after them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub subscribes: Vec<String> = FieldType::TextOrList, "[]", r#"["site-conf"]"#;
        /// What is done when the host has drifted from it.
        #[serde(default, skip_serializing_if = "is_default")]
        pub on_drift: OnDrift = FieldType::OneOf(&["mend", "report"]), "mend", r#""report""#;
        /// The task that runs once when this one is no longer placed on a node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub on_unassign: Option<String> = FieldType::Text, "none", r#""site-conf-gone""#;
        /// What happens if it began and was not seen to end: it is unknown until an operator reports its result, or runs again.
        #[serde(default, skip_serializing_if = "is_default")]
        pub on_interrupt: OnInterrupt = FieldType::OneOf(&["unknown", "again"]), "unknown", r#""again""#;
        /// When it runs: with the others, before a disruption, or when the node leaves.
        #[serde(default, skip_serializing_if = "is_default")]
        pub phase: Phase = FieldType::OneOf(&["apply", "drain", "cleanup"]), "apply", r#""drain""#;
        /// Whether the node is drained before a task set in which it changed.
        #[serde(default, skip_serializing_if = "is_default")]
        pub disruptive: bool = FieldType::Flag, "false", "true";
        /// Whether its output and diffs are not stored.
        #[serde(default, skip_serializing_if = "is_default")]
        pub sensitive: bool = FieldType::Flag, "false", "true";
        /// The highest mode of this task, even if the node's is higher.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub mode: Option<Mode> = FieldType::OneOf(Mode::VARIANTS), "the node's", r#""noop""#;
        /// Whether only roles and tags that operators assigned place it, and only an admin may; on a group, for each task that it lists (docs/trust.md, rule 2).
        #[serde(default, skip_serializing_if = "is_default")]
        pub privileged: bool = FieldType::Flag, "false", "true";
        /// How long one attempt may take: 1 to 31622400 seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub timeout_seconds: Option<u64> = FieldType::Count, "the type's", "60";
        /// Further attempts after the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub retries: Option<u32> = FieldType::Count, "the type's", "2";
        /// Whether its failure stops those that depend on it.
        #[serde(default = "default_true", skip_serializing_if = "is_true")]
        pub fail_on_error: bool = FieldType::Flag, "true", "false";
        /// How many nodes may run it at once; 0: no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub max_nodes: Option<u32> = FieldType::Count, "no limit", "1";
        /// Fields of another system, stored and without effect here.
        #[serde(default, deserialize_with = "crate::json::deserialize_free_object", skip_serializing_if = "Map::is_empty")]
        pub foreign: Map<String, Value> = FieldType::Map, "{}", r#"{"ticket": "OPS-7"}"#;
    }
}

impl Task {
    /// Creates a task with an id and a type, and everything else at its default.
    pub fn new(id: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { id: id.into(), kind: kind.into(), fail_on_error: true, ..Self::default() }
    }

    /// Returns the JSON from which the definition for hosts and the digests are made.
    ///
    /// # Errors
    /// An error of serde for a value that is not JSON. No task contains such a value.
    pub(crate) fn to_host_json(&self) -> serde_json::Result<Value> {
        let mut value = serde_json::to_value(self)?;
        any_tag::any_tag_to_list(&mut value);
        Ok(value)
    }

    /// Returns the blob from which a `file` task writes its file, or `None` if the task has no such parameter.
    pub fn source(&self) -> Option<&str> {
        source_parameter(&self.kind, &self.parameters)
    }

    /// Returns whether the task is a group. A group is never placed itself, but places its tasks.
    pub(crate) fn is_group(&self) -> bool {
        is_type(&self.kind, TaskKind::Group)
    }

    /// Returns whether hosts neither run nor check the task, because its own mode is `observe`. A marker has nothing to
    /// run or check, so its mode has no effect.
    pub fn is_observed(&self) -> bool {
        self.mode == Some(Mode::Observe) && task_type(&self.kind).is_none_or(|known| !known.is_marker)
    }

    /// Returns whether the task came with an expression that is not evaluated, so that it is never started.
    pub fn is_untranslated(&self) -> bool {
        self.foreign.contains_key(UNTRANSLATED)
    }

    /// Returns whether the task is a stage: a point in the order that the tasks of all nodes share. A stage is placed
    /// on no node.
    pub(crate) fn is_stage(&self) -> bool {
        is_type(&self.kind, TaskKind::Stage)
    }
}

/// Returns the blob that a file task is written from, by its parameters.
pub fn source_parameter<'a>(kind: &str, parameters: &'a Map<String, Value>) -> Option<&'a str> {
    parameters.get("source").filter(|_| is_type(kind, TaskKind::File)).and_then(Value::as_str)
}

fn is_type(word: &str, kind: TaskKind) -> bool {
    task_type(word).is_some_and(|known| known.kind == kind)
}

manifest_struct! {
    /// One entry of `cross_depends` or `cross_depended_by`.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct CrossEntry {
        /// A task's id, or a `/pattern/` over ids.
        pub name: String = FieldType::Text, REQUIRED, r#""db-up""#;
        /// On nodes with one of these roles; `self`: the same node; `null`: the stages.
        ///
        /// An absent field differs from `null`.
        #[serde(default, skip_serializing_if = "CrossSelector::is_absent")]
        pub role: CrossSelector = FieldType::TextOrList, "every node that has a role or a tag", r#"["db"]"#;
        /// On nodes with one of these tags; takes precedence over `role`.
        #[serde(default, skip_serializing_if = "CrossSelector::is_absent")]
        pub tags: CrossSelector = FieldType::TextOrList, "by role", r#"["mysql"]"#;
        /// Whether every one of them must have succeeded, or the first.
        #[serde(default, skip_serializing_if = "is_default")]
        pub policy: Policy = FieldType::OneOf(&["all", "any"]), "all", r#""any""#;
    }
}

/// The selector of a cross dependency, as written in `role` or `tags`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CrossSelector {
    /// The field is absent.
    #[default]
    Absent,
    /// The field is `null`: the stages.
    Null,
    /// Selectors; a single text counts as a list of one.
    Names(Vec<String>),
}

impl CrossSelector {
    /// Returns whether the field is absent.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

impl Serialize for CrossSelector {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Absent | Self::Null => serializer.serialize_unit(),
            Self::Names(names) => any_tag::serialize_names(names, serializer),
        }
    }
}

impl<'de> Deserialize<'de> for CrossSelector {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(any_tag::deserialize_names(deserializer)?.map_or(Self::Null, Self::Names))
    }
}

/// Whether every matching instance of a task must succeed, or one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Every instance must succeed.
    #[default]
    All,
    /// One instance must succeed.
    Any,
}

/// What the agent does if the host has drifted from a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDrift {
    /// Apply the task again.
    #[default]
    Mend,
    /// Report the drift, and change nothing.
    Report,
}

/// What the agent does about a run of a task that began and whose end is unknown, for example after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnInterrupt {
    /// The result is unknown until an operator reports it.
    #[default]
    Unknown,
    /// Run the task again.
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

/// How far a host may go with tasks. The modes are ordered, so that the lower of two modes applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Report labels, traits and facts. Tasks are not even checked.
    Observe,
    /// Check tasks, but change nothing.
    Noop,
    /// Apply tasks.
    #[default]
    Apply,
}

impl Mode {
    /// The values of `mode`.
    pub const VARIANTS: &'static [&'static str] = &["observe", "noop", "apply"];
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn default_true() -> bool {
    true
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_true(value: &bool) -> bool {
    *value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Digests cover the list, and agents of every version read it. A person sees what the author wrote.
    #[test]
    fn x06_every_tag_is_shown_as_star_and_sent_as_list() {
        let entry = |tags: &str| format!(r#"[{{"name":"b","tags":{tags}}}]"#);
        let written = |tags: &str| {
            let cross = entry(tags);
            format!(r#"{{"id":"a","type":"shell","tags":{tags},"cross_depends":{cross},"cross_depended_by":{cross}}}"#)
        };
        let task: Task = serde_json::from_str(&written(r#""*""#)).unwrap();
        let before: Task = serde_json::from_str(&written(r#"["/"]"#)).unwrap();
        assert_eq!(task, before, "a release that was stored before is read as it was meant");
        assert_eq!(serde_json::to_string(&task).unwrap(), written(r#""*""#));
        assert_eq!(task.to_host_json().unwrap(), serde_json::from_str::<Value>(&written(r#"["/"]"#)).unwrap());
        assert!(serde_json::from_str::<Task>(&written(r#""mysql""#)).is_err());
    }

    #[test]
    fn source_is_present_for_file_task_only() {
        let body = "sha256:0";
        for (kind, source) in [("file", Some(body)), ("upload_file", Some(body)), ("shell", None), ("other", None)] {
            let mut task = Task::new("a", kind);
            assert_eq!(task.source(), None);
            task.parameters.insert("source".to_owned(), body.into());
            assert_eq!(task.source(), source, "{kind}");
        }
    }
}
