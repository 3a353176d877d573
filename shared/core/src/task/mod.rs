//! Tasks: what a release asks of a host, as an author wrote it.
//!
//! A [`Task`] is stored as it was given, defaults left out, because its canonical JSON enters the task digest: a
//! field at its default must not change what a host runs. What a type means, and which of its parameters are
//! templates, stands in one registry ([`types`]), from which the parser, the documents and the agent's dispatch are
//! derived.

mod any;
mod check;
mod claim;
mod form;
mod parameters;
mod path;
mod types;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub(crate) use any::{ANY, STAR};
pub use check::{SECRET_SHOWN, judge, mistakes};
pub(crate) use check::{not_run_yet, tags_in_content, through_links};
pub use claim::{Claim, Claims, Leaves, PathTaken};
pub use form::{Form as ParameterForm, MAX_ACCOUNT, Names, check_argument, check_variable, check_words, file_mode};
pub use parameters::{
    FileParameters, Parameter, Parameters, Presence, ShellParameters, TEMPLATE_FILE, TypedParameters, WordsOrText,
};
pub use path::{
    AGENT_CONFIG, AGENT_RUN, AGENT_STATE, HOST_LABEL_MAP, PathRefused, check_beside, check_directory, check_path,
    check_put, check_replaceable, is_at_or_below, is_template,
};
pub(crate) use path::{at_or_above, spellings, sure_directory};
pub use types::{Exclusive, NameText, TASK_TYPES, TaskKind, TaskType, TemplateText, Writes, task_type};

use crate::field::{Form, REQUIRED, described};

/// The field of [`Task::foreign`] that names what an import could not translate.
pub const UNTRANSLATED: &str = "untranslated";

described! {
    /// One task of a release, or a group of tasks (`type: group`).
    ///
    /// Names are text here; [`crate::release::compile`] checks them and resolves them to indexes. Serialized without
    /// what stands at its default: that form is stored, and hashed.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Task {
        /// Its name, unique in the release after its imports.
        pub id: String = Form::Text, REQUIRED, r#""site-conf""#;
        /// What it is: `file`, `shell`, `stage`, `group` or another type of task.
        pub kind as "type": String = Form::Text, REQUIRED, r#""file""#;
        /// It runs on nodes with one of these tags: names, `/patterns/`; the text `*` means every node that has a tag.
        ///
        /// `None` where the author wrote none; empty where the author wrote an empty list or `null`, which counts only
        /// under `matching.roles: tags`.
        #[serde(default, with = "any::field", skip_serializing_if = "Option::is_none")]
        pub tags: Option<Vec<String>> = Form::TextOrList, "by roles", r#"["nginx"]"#;
        /// Without tags it runs on nodes with one of these roles: names, `/patterns/`, `*`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub roles or ["role", "groups"]: Vec<String> = Form::TextOrList, "[]", r#"["web"]"#;
        /// Of a group: the tasks that it places.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub tasks: Vec<String> = Form::TextOrList, "[]", r#"["site-conf"]"#;
        /// Tasks or `/patterns/` on the same node, and stages, that come before it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub requires: Vec<String> = Form::TextOrList, "[]", r#"["motd"]"#;
        /// Tasks or `/patterns/` on the same node, and stages, that come after it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub required_for: Vec<String> = Form::TextOrList, "[]", r#"["reload"]"#;
        /// Tasks on other nodes that come before it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub cross_depends or ["cross-depends"]: Vec<CrossEntry> = Form::ListOf(CrossEntry::PARTS), "[]", r#"[{"name": "db-up", "role": ["db"], "policy": "any"}]"#;
        /// Tasks on other nodes that come after it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub cross_depended_by or ["cross-depended-by"]: Vec<CrossEntry> = Form::ListOf(CrossEntry::PARTS), "[]", r#"[{"name": "web-up", "tags": ["nginx"]}]"#;
        /// A CEL expression that can leave it out (docs/templates.md).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub condition: Option<String> = Form::Text, "none", r#""'HW_CPU_X86_AVX2' in traits""#;
        /// What its type takes.
        ///
        /// Which of them are templates stands in the registry of types.
        #[serde(default, deserialize_with = "crate::json::free_object", skip_serializing_if = "Map::is_empty")]
        pub parameters: Map<String, Value> = Form::Parameters, "{}", r#"{"path": "/etc/motd", "content": "hello\n"}"#;
        /// Tasks after whose change it acts again; it comes after them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub subscribes: Vec<String> = Form::TextOrList, "[]", r#"["site-conf"]"#;
        /// What is done when the host has drifted from it.
        #[serde(default, skip_serializing_if = "is_default")]
        pub on_drift: OnDrift = Form::OneOf(&["mend", "report"]), "mend", r#""report""#;
        /// The task that is run once where this one no longer runs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub on_unassign: Option<String> = Form::Text, "none", r#""site-conf-gone""#;
        /// What becomes of it when it was begun and nobody saw it end: it is unknown until a person says, or runs again.
        #[serde(default, skip_serializing_if = "is_default")]
        pub on_interrupt: OnInterrupt = Form::OneOf(&["unknown", "again"]), "unknown", r#""again""#;
        /// When it runs: with the others, before a disruption, or when the node leaves.
        #[serde(default, skip_serializing_if = "is_default")]
        pub phase: Phase = Form::OneOf(&["apply", "drain", "cleanup"]), "apply", r#""drain""#;
        /// Whether the node is drained before a task set in which it changed.
        #[serde(default, skip_serializing_if = "is_default")]
        pub disruptive: bool = Form::Flag, "false", "true";
        /// Whether neither its output nor a diff is kept.
        #[serde(default, skip_serializing_if = "is_default")]
        pub sensitive: bool = Form::Flag, "false", "true";
        /// At most this mode for this task, whatever the node's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub mode: Option<Mode> = Form::OneOf(Mode::WORDS), "the node's", r#""noop""#;
        /// Whether only roles and tags that operators gave place it, and only an admin does; of a group: each task that it lists (docs/trust.md, rule 2).
        #[serde(default, skip_serializing_if = "is_default")]
        pub privileged: bool = Form::Flag, "false", "true";
        /// How long one attempt may take: 1 to 31622400 seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub timeout_seconds: Option<u64> = Form::Count, "the type's", "60";
        /// Further attempts after the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub retries: Option<u32> = Form::Count, "the type's", "2";
        /// Whether its failure stops those that depend on it.
        #[serde(default = "yes", skip_serializing_if = "is_yes")]
        pub fail_on_error: bool = Form::Flag, "true", "false";
        /// How many nodes may run it at once; 0: no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub max_nodes: Option<u32> = Form::Count, "no limit", "1";
        /// Fields of another system, kept and without meaning here.
        #[serde(default, deserialize_with = "crate::json::free_object", skip_serializing_if = "Map::is_empty")]
        pub foreign: Map<String, Value> = Form::Map, "{}", r#"{"ticket": "OPS-7"}"#;
    }
}

impl Task {
    /// A task with an id and a type, and everything else at its default.
    pub fn new(id: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { id: id.into(), kind: kind.into(), fail_on_error: true, ..Self::default() }
    }

    /// Its JSON as hosts are told it and digests are taken of it.
    ///
    /// # Errors
    /// serde's, for a value that is no JSON; a task holds none.
    pub(crate) fn told(&self) -> serde_json::Result<Value> {
        let mut value = serde_json::to_value(self)?;
        any::list_any(&mut value);
        Ok(value)
    }

    /// The file body that it is made from; none for a task of a type that takes no such parameter.
    pub fn source(&self) -> Option<&str> {
        source_of(&self.kind, &self.parameters)
    }

    /// Whether it is a group: placed never itself, it places its tasks.
    pub(crate) fn is_group(&self) -> bool {
        is_of(&self.kind, TaskKind::Group)
    }

    /// Whether hosts neither run nor check it: its own mode is `observe`. Of a place in the order there is nothing to run or check, so its
    /// mode says nothing.
    pub fn is_observed(&self) -> bool {
        self.mode == Some(Mode::Observe) && task_type(&self.kind).is_none_or(|known| !known.marker)
    }

    /// Whether it came with an expression that is not evaluated, and so is never started.
    pub fn is_untranslated(&self) -> bool {
        self.foreign.contains_key(UNTRANSLATED)
    }

    /// Whether it is a stage: on no node, a point that all nodes meet at.
    pub(crate) fn is_stage(&self) -> bool {
        is_of(&self.kind, TaskKind::Stage)
    }
}

/// The file body that a task of this type is made from, by its parameters.
pub fn source_of<'a>(kind: &str, parameters: &'a Map<String, Value>) -> Option<&'a str> {
    parameters.get("source").filter(|_| is_of(kind, TaskKind::File)).and_then(Value::as_str)
}

fn is_of(word: &str, kind: TaskKind) -> bool {
    task_type(word).is_some_and(|known| known.kind == kind)
}

described! {
    /// One entry of `cross_depends` or `cross_depended_by`.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct CrossEntry {
        /// A task's id, or a `/pattern/` over ids.
        pub name: String = Form::Text, REQUIRED, r#""db-up""#;
        /// On nodes with one of these roles; `self`: the same node; `null`: the stages.
        ///
        /// So absent is not the same as `null`.
        #[serde(default, skip_serializing_if = "Where::is_absent")]
        pub role: Where = Form::TextOrList, "every node that has a role or a tag", r#"["db"]"#;
        /// On nodes with one of these tags, before `role` where both are given.
        #[serde(default, skip_serializing_if = "Where::is_absent")]
        pub tags: Where = Form::TextOrList, "by role", r#"["mysql"]"#;
        /// Whether every one of them must have succeeded, or the first.
        #[serde(default, skip_serializing_if = "is_default")]
        pub policy: Policy = Form::OneOf(&["all", "any"]), "all", r#""any""#;
    }
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
            Self::Names(names) => any::serialize_names(names, serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Where {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(any::deserialize_names(deserializer)?.map_or(Self::Null, Self::Names))
    }
}

/// Whether every matching instance must have succeeded, or one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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

impl Mode {
    /// What a `mode` may be.
    pub const WORDS: &'static [&'static str] = &["observe", "noop", "apply"];
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Digests were taken of the list, and agents of every version read it; a person is shown what he wrote.
    #[test]
    fn x06_every_tag_is_shown_as_a_star_and_told_to_hosts_as_before() {
        let entry = |tags: &str| format!(r#"[{{"name":"b","tags":{tags}}}]"#);
        let written = |tags: &str| {
            let cross = entry(tags);
            format!(r#"{{"id":"a","type":"shell","tags":{tags},"cross_depends":{cross},"cross_depended_by":{cross}}}"#)
        };
        let task: Task = serde_json::from_str(&written(r#""*""#)).unwrap();
        let before: Task = serde_json::from_str(&written(r#"["/"]"#)).unwrap();
        assert_eq!(task, before, "a release that was stored before is read as it was meant");
        assert_eq!(serde_json::to_string(&task).unwrap(), written(r#""*""#));
        assert_eq!(task.told().unwrap(), serde_json::from_str::<Value>(&written(r#"["/"]"#)).unwrap());
        assert!(serde_json::from_str::<Task>(&written(r#""mysql""#)).is_err());
    }

    #[test]
    fn a_task_of_type_file_alone_is_made_from_a_body() {
        let body = "sha256:0";
        for (kind, source) in [("file", Some(body)), ("upload_file", Some(body)), ("shell", None), ("other", None)] {
            let mut task = Task::new("a", kind);
            assert_eq!(task.source(), None);
            task.parameters.insert("source".to_owned(), body.into());
            assert_eq!(task.source(), source, "{kind}");
        }
    }
}
