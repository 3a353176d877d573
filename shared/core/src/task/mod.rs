//! Tasks: the steps that a release requires of a host, as an author wrote them.
//!
//! A [`Task`] is stored without the fields that have their default. The task digest is computed from the canonical JSON
//! of this form, so a field that an author sets to its default does not change the digest. One registry ([`types`])
//! defines the meaning of each type of task, and which of its parameters are templates. The parser, the documentation
//! and the agent's dispatch are derived from this registry.

mod account_parameters;
mod any_tag;
mod check;
mod claim;
mod declared;
mod examples;
pub mod name_rules;
mod object_demand;
mod package_rules;
mod package_version;
mod parameter_type;
mod parameter_values;
mod parameters;
mod path;
mod patterns;
mod run_parameters;
mod sources;
mod system_parameters;
pub mod tree_rules;
mod types;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use account_parameters::{CONTROLLER_ACCOUNT, GroupAccountParameters, UserParameters, login_shell_error};
pub(crate) use any_tag::{ANY_TAG, ANY_TAG_INPUT};
pub use check::{SECRET_EXPOSED, check_release_tasks, check_task};
pub(crate) use check::{paths_through_links, template_tags_in_plain_texts};
pub use claim::{PathClaim, PathClaims, PathConflict, PathContent};
pub use declared::{AGENT_VERSION_FACT, KnownTypes, TASK_TYPES_FACT, UnknownFeature, declared_task_types};
pub use object_demand::{ObjectConflict, ObjectDemands};
pub use package_rules::{AGENT_PACKAGE, AGENT_REMOVES_ITSELF};
pub use package_version::{compare_debian_versions, compare_rpm_versions};
pub use parameter_type::{
    MAX_ACCOUNT_ID, NamedResource, ParameterType as ParameterForm, account_reference_error, check_argument, check_variable,
    check_words, group_reference_error, parse_file_mode,
};
pub use parameters::{
    FileParameters, NameList, Parameter, ParameterPresence, ParameterTable, ShellParameters, TEMPLATE_FILE, TypedParameters,
    WordsOrText,
};
pub use path::{
    AGENT_CONFIG_FILE, AGENT_RUN_DIR, AGENT_STATE_DIR, DEFAULT_HOST_LABEL_MAP, PathRefused, TEMPORARY_PREFIX, check_directory,
    check_not_agent_path, check_path, check_replaceable, check_writable, is_at_or_below, is_template, is_temporary_name,
};
pub(crate) use path::{ancestors, known_directories, spellings};
pub use patterns::PathPatterns;
pub use run_parameters::{MODULES_DIR, PuppetParameters, REBOOT_CONDITIONS, RebootParameters, WHEN_REQUIRED};
pub use sources::{set_source, written_paths};
pub use system_parameters::{
    AGENT_ENDS_ITSELF, CopyFilesParameters, DirectoryParameters, FileCopy, LinkParameters, PackageParameters, SERVICE_STATES,
    SOURCE_DIR, ServiceParameters, SyncParameters, UNIT_ENDS_HOST, ends_host,
};
pub use types::{
    CombinationRule, Concurrency, NamedObject, ResourceText, TASK_TYPES, TaskKind, TaskType, TemplateText, WriteTarget, task_type,
};

use crate::field::{FieldType, REQUIRED, manifest_struct};

/// The key in [`Task::foreign`] under which the import of a Fuel release lists the paths of the fields that it could
/// not translate, such as `parameters.cmd`. It is also the type that hosts get for such a task, so that they do not
/// start it.
pub const UNTRANSLATED: &str = "untranslated";

/// The reason why a host leaves out a task that it gets only because another task names it in [`Task::on_unassign`]. Agents
/// compare this text, so it never changes. Older agents only show it.
pub const UNASSIGN_REASON: &str = "it runs once when a task that names it in on_unassign is no longer placed here";

/// Prefix of the id under which a host runs the task of [`Task::on_unassign`] and reports its result. The rest is the id
/// of that task.
pub const CLEAN_UP_PREFIX: &str = "on_unassign/";

manifest_struct! {
    /// One task of a release, or a group of tasks (`type: group`).
    ///
    /// This form is stored and hashed. A field that has its default is not serialized. Names of other tasks are texts
    /// here, and [`crate::release::compile`] checks them and resolves them to indexes.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Task {
        /// The name of the task, unique in the release together with its imports.
        pub id: String = FieldType::Text, REQUIRED, r#""site-conf""#;
        /// The type of the task: `file`, `shell`, `stage`, `group` or another type.
        pub kind as "type": String = FieldType::Text, REQUIRED, r#""file""#;
        /// Tags (names or `/patterns/`) whose nodes run the task. The text `*` selects every node that has a tag.
        ///
        /// `None` if the author omitted the field. The value is empty if the author wrote an empty list or `null`. This
        /// difference has an effect only if the release has `matching.roles: tags`.
        #[serde(default, with = "any_tag::field", skip_serializing_if = "Option::is_none")]
        pub tags: Option<Vec<String>> = FieldType::TextOrList, "by roles", r#"["nginx"]"#;
        /// Roles (names, `/patterns/` or `*`) whose nodes run the task. Used only if `tags` is absent.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub roles or ["role", "groups"]: Vec<String> = FieldType::TextOrList, "[]", r#"["web"]"#;
        /// The tasks that a group places on its nodes. Only for `type: group`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub tasks: Vec<String> = FieldType::TextOrList, "[]", r#"["site-conf"]"#;
        /// Tasks or `/patterns/` on the same node, and stages, that must succeed before this task runs.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub requires: Vec<String> = FieldType::TextOrList, "[]", r#"["motd"]"#;
        /// Tasks or `/patterns/` on the same node, and stages, that run only after this task has succeeded.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub required_for: Vec<String> = FieldType::TextOrList, "[]", r#"["reload"]"#;
        /// Tasks on other nodes that must succeed before this task runs.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub cross_depends or ["cross-depends"]: Vec<CrossEntry> = FieldType::ListOf(CrossEntry::FIELD_DEFS), "[]", r#"[{"name": "db-up", "role": ["db"], "policy": "any"}]"#;
        /// Tasks on other nodes that run only after this task has succeeded.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub cross_depended_by or ["cross-depended-by"]: Vec<CrossEntry> = FieldType::ListOf(CrossEntry::FIELD_DEFS), "[]", r#"[{"name": "web-up", "tags": ["nginx"]}]"#;
        /// A CEL expression. If the expression is false for a node, the node does not get the task (docs/templates.md).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub condition: Option<String> = FieldType::Text, "none", r#""'HW_CPU_X86_AVX2' in traits""#;
        /// The parameters of the task. The type of the task defines which parameters exist.
        ///
        /// The registry of types also defines which parameters are templates.
        #[serde(default, deserialize_with = "crate::json::deserialize_free_object", skip_serializing_if = "Map::is_empty")]
        pub parameters: Map<String, Value> = FieldType::Parameters, "{}", r#"{"path": "/etc/motd", "content": "hello\n"}"#;
        /// Tasks that run before this task. If one of them changes something, this task runs again.
        ///
        /// A `shell` task runs again if its guards allow, a `service` task restarts its unit, a `puppet` task runs
        /// again, and a `reboot` task asks again. For other types, the field only orders the tasks.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub subscribes: Vec<String> = FieldType::TextOrList, "[]", r#"["site-conf"]"#;
        /// The reaction of the agent if the host has drifted from the task.
        #[serde(default, skip_serializing_if = "is_default")]
        pub on_drift: OnDrift = FieldType::OneOf(&["mend", "report"]), "mend", r#""report""#;
        /// The task that runs once on a node when this task is no longer placed on the node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub on_unassign: Option<String> = FieldType::Text, "none", r#""site-conf-gone""#;
        /// The reaction if a run was interrupted: wait until an operator reports the result, or run the task again.
        #[serde(default, skip_serializing_if = "is_default")]
        pub on_interrupt: OnInterrupt = FieldType::OneOf(&["unknown", "again"]), "unknown", r#""again""#;
        /// The time at which the task runs: with the other tasks, before a disruption, or when the node is deleted.
        #[serde(default, skip_serializing_if = "is_default")]
        pub phase: Phase = FieldType::OneOf(&["apply", "drain", "cleanup"]), "apply", r#""drain""#;
        /// True if the node is drained before it gets a task set in which this task has changed.
        #[serde(default, skip_serializing_if = "is_default")]
        pub disruptive: bool = FieldType::Flag, "false", "true";
        /// True if the output and the differences of the task must not be stored.
        #[serde(default, skip_serializing_if = "is_default")]
        pub sensitive: bool = FieldType::Flag, "false", "true";
        /// The highest mode of the task (observe, noop, apply). The node's mode applies if it is lower.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub mode: Option<Mode> = FieldType::OneOf(Mode::VARIANTS), "the node's", r#""noop""#;
        /// True if only an admin may place the task on a node; on a group, true for each of its tasks (docs/trust.md).
        ///
        /// Only roles and tags that operators assigned, and the declared tags of these roles, place such a task (rule 2
        /// of docs/trust.md).
        #[serde(default, skip_serializing_if = "is_default")]
        pub privileged: bool = FieldType::Flag, "false", "true";
        /// The maximum duration of one attempt, from 1 to 31622400 seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub timeout_seconds: Option<u64> = FieldType::Count, "the type's", "60";
        /// The number of further attempts after a failed first attempt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub retries: Option<u32> = FieldType::Count, "the type's", "2";
        /// True if a failure of the task stops the tasks that depend on it.
        ///
        /// With false, the tasks that require this task on the same host run after its failure. Tasks of other hosts
        /// that wait for this task (`cross_depends`) still wait.
        #[serde(default = "default_true", skip_serializing_if = "is_true")]
        pub fail_on_error: bool = FieldType::Flag, "true", "false";
        /// The maximum number of nodes that run the task at the same time; 0 means no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub max_nodes: Option<u32> = FieldType::Count, "no limit", "1";
        /// Fields of another system, which are stored and have no effect.
        ///
        /// The key [`UNTRANSLATED`] is an exception: hosts never start a task that has the key.
        #[serde(default, deserialize_with = "crate::json::deserialize_free_object", skip_serializing_if = "Map::is_empty")]
        pub foreign: Map<String, Value> = FieldType::Map, "{}", r#"{"ticket": "OPS-7"}"#;
    }
}

impl Task {
    /// Creates a task with this id and type. All other fields have their default.
    pub fn new(id: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { id: id.into(), kind: kind.into(), fail_on_error: true, ..Self::default() }
    }

    /// Returns the task as JSON, from which the definition for hosts and the hash of the task are made. The tag
    /// selector `*` is replaced by the list that hosts of every version read.
    ///
    /// # Errors
    /// Fails with serde's error for a value that is not JSON. No task contains such a value.
    pub(crate) fn to_host_json(&self) -> serde_json::Result<Value> {
        let mut value = serde_json::to_value(self)?;
        any_tag::replace_any_tag_texts(&mut value);
        Ok(value)
    }

    /// Returns the names of the blobs from which the task writes files, each with the path of its field in the
    /// parameters.
    pub fn sources(&self) -> Vec<(String, &str)> {
        task_type(&self.kind).map(|kind| kind.sources(&self.parameters)).unwrap_or_default()
    }

    /// Returns whether the task is a group. A group is never placed on a node itself, but places its tasks there.
    pub(crate) fn is_group(&self) -> bool {
        is_type(&self.kind, TaskKind::Group)
    }

    /// Returns whether the task is a marker, such as a stage or a group: it runs nothing, and only orders or places
    /// other tasks.
    pub(crate) fn is_marker(&self) -> bool {
        task_type(&self.kind).is_some_and(|kind| kind.is_marker)
    }

    /// Returns whether hosts neither run nor check the task, because its own mode is `observe`. A marker has
    /// nothing to run or check, so for a marker the result is false.
    pub fn is_observed(&self) -> bool {
        self.mode == Some(Mode::Observe) && !self.is_marker()
    }

    /// Returns whether the import of a Fuel release could not translate a field of the task, such as an expression or
    /// an unknown type. Hosts never start such a task.
    pub fn is_untranslated(&self) -> bool {
        self.foreign.contains_key(UNTRANSLATED)
    }

    /// Returns whether the task is a stage: a point in the order of tasks that all nodes share. A stage is placed on no
    /// node and runs nothing.
    pub(crate) fn is_stage(&self) -> bool {
        is_type(&self.kind, TaskKind::Stage)
    }
}

/// Returns whether a type name or alias in a task belongs to this type.
fn is_type(type_name: &str, kind: TaskKind) -> bool {
    task_type(type_name).is_some_and(|task_type_entry| task_type_entry.kind == kind)
}

manifest_struct! {
    /// One dependency between tasks of different nodes: an entry of `cross_depends` or `cross_depended_by`.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct CrossEntry {
        /// The id of a task, or a `/pattern/` that matches ids of tasks.
        pub name: String = FieldType::Text, REQUIRED, r#""db-up""#;
        /// Roles whose nodes run the named task; `self` means the same node, and `null` means that the task is a stage, which runs on no node.
        ///
        /// If `role` and `tags` are absent, the entry selects every node that has a role or a tag, except the
        /// controller's own host (`master`).
        #[serde(default, skip_serializing_if = "CrossSelector::is_absent")]
        pub role: CrossSelector = FieldType::TextOrList, "every node that has a role or a tag", r#"["db"]"#;
        /// Tags whose nodes run the named task. If this field is set, `role` has no effect.
        ///
        /// Unless the release has `matching.roles: tags`, an empty list counts as absent, and so does `null` if `role`
        /// is set.
        #[serde(default, skip_serializing_if = "CrossSelector::is_absent")]
        pub tags: CrossSelector = FieldType::TextOrList, "by role", r#"["mysql"]"#;
        /// The number of selected nodes that must have succeeded: all of them, or any one.
        #[serde(default, skip_serializing_if = "is_default")]
        pub policy: Policy = FieldType::OneOf(&["all", "any"]), "all", r#""any""#;
    }
}

/// The nodes of a dependency on tasks of other nodes, as written in the field `role` or `tags` of its entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CrossSelector {
    /// The field is absent.
    #[default]
    Absent,
    /// The field is `null`, which selects stages. [`CrossEntry::tags`] describes when `null` counts as absent.
    Null,
    /// A list of names, patterns, `self` or `*`. For the text `*`, the only item is `/`, which selects all names.
    Names(Vec<String>),
}

impl CrossSelector {
    /// Returns whether the field is absent.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

impl Serialize for CrossSelector {
    /// Writes `null`, the text `*`, or a list of names. Serde omits an absent field before it calls this function.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Absent | Self::Null => serializer.serialize_unit(),
            Self::Names(names) => any_tag::serialize_names(names, serializer),
        }
    }
}

impl<'de> Deserialize<'de> for CrossSelector {
    /// Reads `null`, the text `*`, or a list of names.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(any_tag::deserialize_names(deserializer)?.map_or(Self::Null, Self::Names))
    }
}

/// The number of selected nodes on which a task must succeed before tasks that depend on it run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The task must succeed on all selected nodes.
    #[default]
    All,
    /// The task must succeed on at least one selected node.
    Any,
}

/// The reaction of the agent if the host has drifted from a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDrift {
    /// The agent applies the task again.
    #[default]
    Mend,
    /// The agent reports the drift and changes nothing.
    Report,
}

/// The reaction of the agent if a run of a `shell` task without guards began and its end is unknown, for example after
/// a crash. The agent checks any other task again, and runs it if needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnInterrupt {
    /// The agent does not run the task again. The result is unknown until an operator reports it.
    #[default]
    Unknown,
    /// The agent runs the task again.
    Again,
}

/// The time at which a task runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The task runs with the node's other tasks.
    #[default]
    Apply,
    /// The task is meant to run before the node gets a task set with a changed disruptive task. Hosts skip the task,
    /// because no host is drained yet.
    Drain,
    /// The task is meant to run when the node is deleted. Hosts skip the task, because no host is cleaned up yet.
    Cleanup,
}

/// The permission of a host to check and to apply tasks. Modes are ordered from the lowest to the highest, and the
/// lower of the node's and the task's mode applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The host only reports, and neither checks nor applies tasks.
    Observe,
    /// The host checks tasks and reports what would change, but changes nothing.
    Noop,
    /// The host applies tasks.
    #[default]
    Apply,
}

impl Mode {
    /// The names of the modes in the field `mode`, from the lowest to the highest.
    pub const VARIANTS: &'static [&'static str] = &["observe", "noop", "apply"];
}

/// Returns whether a field has its default, so that it is not serialized.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Returns the default of a field that is true if the author omits it.
fn default_true() -> bool {
    true
}

/// Returns whether a field with the default true has its default, so that it is not serialized.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_true(value: &bool) -> bool {
    *value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// People see the text `*` that the author wrote. Hosts get the list `["/"]`, from which digests are computed.
    #[test]
    fn x06_every_tag_is_shown_as_star_and_sent_as_list() {
        let cross_entry_json = |tags: &str| format!(r#"[{{"name":"b","tags":{tags}}}]"#);
        let task_json = |tags: &str| {
            let cross_entries = cross_entry_json(tags);
            format!(
                r#"{{"id":"a","type":"shell","tags":{tags},"cross_depends":{cross_entries},"cross_depended_by":{cross_entries}}}"#
            )
        };
        let task: Task = serde_json::from_str(&task_json(r#""*""#)).unwrap();
        let old_form_task: Task = serde_json::from_str(&task_json(r#"["/"]"#)).unwrap();
        assert_eq!(task, old_form_task, "the list in a stored release has the meaning of the text *");
        assert_eq!(serde_json::to_string(&task).unwrap(), task_json(r#""*""#));
        assert_eq!(task.to_host_json().unwrap(), serde_json::from_str::<Value>(&task_json(r#"["/"]"#)).unwrap());
        // Another text than `*` is not a list of tags.
        assert!(serde_json::from_str::<Task>(&task_json(r#""mysql""#)).is_err());
    }
}
