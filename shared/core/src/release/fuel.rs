//! Translates the releases of Fuel, a deployment tool for `OpenStack`. Fields with a counterpart are converted. All
//! other fields of tasks and roles are stored under `foreign`. Those of tags are dropped.
//!
//! An expression of Fuel (in the language YAQL) is not evaluated, because a wrong guess at its value must not change a
//! host. If the expression decides whether a task runs, the task is placed as if the result were true. If the
//! expression gives a value, or a value contains a placeholder of Fuel's orchestrator (`{CLUSTER_ID}`), the value is
//! omitted. In both cases the task is marked as `untranslated` and never started, and a finding names the field. So are
//! tasks that read files of Fuel's master, the host of the orchestrator, because other hosts do not have these files.
//!
//! A caller that imports for use drops each dependency on a task that the graph does not have
//! ([`FuelImport::drop_dangling_dependencies`]): Fuel's own graphs have such dependencies, and Fuel ignores them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::name_selector::is_regex;
use crate::finding::{Finding, Rule, rule};
use crate::json::normalize_integers;
use crate::name::{InvalidName, Name, PRIMARY_PREFIX, TagName};
use crate::object::{Matching, PrimaryMatching, ReleaseSpec, RoleMatching, RoleSpec, TagSpec};
use crate::task::{ANY_TAG, CrossEntry, CrossSelector, Policy, Task, TaskKind, TaskType, UNTRANSLATED, task_type};
use crate::time::MAX_DURATION_SECONDS;

/// The fields of Fuel's tasks that have a counterpart in Stemma's tasks. All other fields are stored under `foreign`.
const KNOWN_FIELDS: &[&str] = &[
    "id",
    "type",
    "tags",
    "role",
    "roles",
    "groups",
    "tasks",
    "requires",
    "required_for",
    "cross-depends",
    "cross_depends",
    "cross-depended-by",
    "cross_depended_by",
    "condition",
    "parameters",
    "refresh_on",
    "fail_on_error",
    "required-for",
];

/// The fields of Fuel's tasks that change what Fuel does and that have no effect here: the programs before and after a
/// task, the events after which it runs again, and its place in the order of an old plugin.
const FIELDS_WITHOUT_EFFECT: &[&str] = &["reexecute_on", "stage", "test_post", "test_pre"];

/// The field under `foreign` of a task that has the dropped dependencies, each as the field's name and the task's id.
const UNKNOWN_REFERENCES: &str = "unknown_references";

/// The placeholders that Fuel replaces in all texts of a task's parameters before the task runs.
const PLACEHOLDERS: &[&str] = &["{CLUSTER_ID}", "{OPENSTACK_VERSION}", "{MASTER_IP}", "{CN_HOSTNAME}", "{SETTINGS}"];

/// The role of Fuel's master, the host on which the orchestrator runs.
const MASTER_ROLE: &str = "master";

/// The directory of Puppet modules of a `puppet` task that names none.
const DEFAULT_PUPPET_MODULES: &str = "/etc/puppet/modules";

/// The maximum duration of a `puppet` task that has no `timeout`, in seconds.
const DEFAULT_PUPPET_TIMEOUT: u64 = 5400;

/// The result of an import: the translated release, and what was not translated.
#[derive(Clone, Debug, PartialEq)]
pub struct FuelImport {
    /// The release, without a name.
    pub spec: ReleaseSpec,
    /// The findings: one for each task with values that could not be translated, which lists their fields, and one for each
    /// task with dropped dependencies.
    pub findings: Vec<Finding>,
    /// The numbers of tasks by Fuel's name of their type. Types that run nothing, such as `stage`, are not counted.
    pub types: BTreeMap<String, TypeCount>,
    /// The number of tasks that were not translated for a reason. A task may have several reasons.
    pub reasons: BTreeMap<UntranslatedReason, usize>,
    /// The number of tasks with a field that has an effect in Fuel and none here, by the name of the field.
    pub fields_without_effect: BTreeMap<&'static str, usize>,
    /// The number of dependencies that [`Self::drop_dangling_dependencies`] dropped.
    pub dropped_dependencies: usize,
}

impl FuelImport {
    /// Drops each dependency on a task that the graph does not have, with a finding, as Fuel does when it deploys a graph.
    /// A group that names such a task keeps it, because Fuel refuses that.
    pub fn drop_dangling_dependencies(&mut self) {
        let ids: BTreeSet<String> = self.spec.tasks.iter().map(|task| task.id.clone()).collect();
        let is_known = |name: &str| is_regex(name) || ids.contains(name);
        for task in &mut self.spec.tasks {
            let mut dropped = Vec::new();
            let mut is_kept = |field: &str, name: &str| {
                let is_kept = is_known(name);
                if !is_kept {
                    dropped.push(format!("{field} {name}"));
                }
                is_kept
            };
            task.requires.retain(|name| is_kept("requires", name));
            task.required_for.retain(|name| is_kept("required_for", name));
            task.cross_depends.retain(|entry| is_kept("cross-depends", &entry.name));
            task.cross_depended_by.retain(|entry| is_kept("cross-depended-by", &entry.name));
            if dropped.is_empty() {
                continue;
            }
            self.dropped_dependencies += dropped.len();
            let message = format!("dropped, as in Fuel, because the graph has no such task: {}", dropped.join(", "));
            self.findings.push(Finding::new(rule::FUEL_REFERENCE, format!("task/{}", task.id), message));
            task.foreign.insert(UNKNOWN_REFERENCES.into(), json!(dropped));
        }
    }
}

/// The numbers of tasks of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeCount {
    /// The number of tasks that hosts can run, because they are fully translated.
    pub runnable: usize,
    /// The number of all tasks of the type.
    pub total: usize,
}

/// The reason why a value of a task was not translated. The text is a noun phrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
pub enum UntranslatedReason {
    /// The value is or contains an expression, which is not evaluated.
    #[display("an expression")]
    Expression,
    /// The value contains a text that Fuel's orchestrator replaces.
    #[display("a placeholder")]
    Placeholder,
    /// The task reads a file of Fuel's master and runs on other hosts.
    #[display("a file on Fuel's master")]
    MasterFile,
    /// Stemma has no such type.
    #[display("an unknown type")]
    Type,
    /// The type has no such parameter, or not in this form.
    #[display("an unknown parameter")]
    Parameter,
}

impl FuelImport {
    /// Returns the number of tasks that hosts can run.
    pub fn runnable(&self) -> usize {
        self.types.values().map(|count| count.runnable).sum()
    }

    /// Returns the number of tasks that would run in Fuel.
    pub fn total(&self) -> usize {
        self.types.values().map(|count| count.total).sum()
    }
}

/// An error in Fuel's data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FuelError {
    /// A field with an invalid value, or a missing field that is required, such as the `type` of a task.
    #[error("{field}: {reason}")]
    Field {
        /// The path of the field.
        field: String,
        /// The reason why the value is invalid, the values that are accepted, or that the field is missing.
        reason: String,
    },
    /// An invalid name of a role or tag.
    #[error("{field}: {reason}")]
    Name {
        /// The path of the field.
        field: String,
        /// The reason why the name is invalid.
        reason: InvalidName,
    },
    /// The file has no list of tasks: neither the requested graph nor the top level has `tasks`.
    #[error("no graph {wanted:?} in the file; it has {}", .have.join(", "))]
    NoGraph {
        /// The name of the requested graph.
        wanted: String,
        /// The names of the graphs in the file.
        have: Vec<String>,
    },
}

/// Translates one JSON file of the form `{roles_metadata, tags_metadata, graphs: {NAME: {tasks}}}`. `graph` is the name
/// of the graph whose tasks are translated. If the file has no such graph, its top-level `tasks` are translated.
///
/// # Errors
/// See [`import`]. Also [`FuelError::NoGraph`] if the file has neither the graph nor top-level `tasks`.
pub fn import_file(file: &Value, graph: &str) -> Result<FuelImport, FuelError> {
    let read_map = |field: &str| file.get(field).and_then(Value::as_object).cloned().unwrap_or_default();
    let graphs = read_map("graphs");
    let tasks = match graphs.get(graph).and_then(|graph| graph.get("tasks")).or_else(|| file.get("tasks")) {
        Some(Value::Array(tasks)) => tasks.clone(),
        _ => return Err(FuelError::NoGraph { wanted: graph.into(), have: graphs.keys().cloned().collect() }),
    };
    import(&tasks, &read_map("roles_metadata"), &read_map("tags_metadata"))
}

/// Translates tasks with the roles and tags of their release. `roles` and `tags` are Fuel's `roles_metadata` and
/// `tags_metadata`.
///
/// # Errors
/// [`FuelError`] for the first value that cannot be read.
pub fn import(tasks: &[Value], roles: &Map<String, Value>, tags: &Map<String, Value>) -> Result<FuelImport, FuelError> {
    // Numbers are converted here as in the stored release, so that checks and output agree with that release.
    let tasks: Vec<Value> = tasks.iter().map(with_integers).collect();
    let (roles, tags) = (&normalize_members(roles), &normalize_members(tags));
    let mut spec = ReleaseSpec {
        matching: Matching { roles: RoleMatching::Tags, primary: PrimaryMatching::Replaces },
        roles: read_roles(roles)?,
        tags: read_tags(tags)?,
        ..ReleaseSpec::default()
    };
    if !roles.is_empty() {
        spec.foreign.insert("roles_metadata".into(), Value::Object(roles.clone()));
    }
    let ids: BTreeSet<&str> = tasks.iter().filter_map(|task| task.get("id")?.as_str()).collect();
    let (mut findings, mut reasons) = (Vec::new(), BTreeMap::new());
    let mut fields_without_effect = BTreeMap::new();
    for (position, task) in tasks.iter().enumerate() {
        let fields = task.as_object().ok_or_else(|| field_error(&format!("tasks[{position}]"), "is not a map of fields"))?;
        let mut translation = TaskTranslation::new(position, fields, &ids)?;
        let translated = translation.translate()?;
        translation.copy_fault_tolerance(&translated, &mut spec.roles);
        findings.append(&mut translation.findings);
        for reason in translation.untranslated.iter().map(|(_, reason)| *reason).collect::<BTreeSet<_>>() {
            *reasons.entry(reason).or_default() += 1;
        }
        for field in FIELDS_WITHOUT_EFFECT.iter().filter(|field| fields.contains_key(**field)) {
            *fields_without_effect.entry(*field).or_default() += 1;
        }
        spec.tasks.push(translated);
    }
    let types = count_types(&spec.tasks);
    Ok(FuelImport { spec, findings, types, reasons, fields_without_effect, dropped_dependencies: 0 })
}

/// Returns the numbers of tasks by type, without the types that run nothing.
fn count_types(tasks: &[Task]) -> BTreeMap<String, TypeCount> {
    let mut types = BTreeMap::<String, TypeCount>::new();
    for task in tasks.iter().filter(|task| !task.is_marker()) {
        let count = types.entry(task.kind.clone()).or_default();
        count.total += 1;
        count.runnable += usize::from(!task.is_untranslated());
    }
    types
}

/// Returns a copy of a value in which each whole number is an integer: `1.0` becomes `1`.
fn with_integers(value: &Value) -> Value {
    let mut value = value.clone();
    normalize_integers(&mut value);
    value
}

/// Returns a copy of a map in which each whole number is an integer.
fn normalize_members(map: &Map<String, Value>) -> Map<String, Value> {
    map.iter().map(|(name, value)| (name.clone(), with_integers(value))).collect()
}

/// Translates `roles_metadata`, a map of role names to their tags, conflicts and limits. A role that conflicts with `*`
/// conflicts with all other roles.
fn read_roles(roles: &Map<String, Value>) -> Result<BTreeMap<Name, RoleSpec>, FuelError> {
    let mut specs = BTreeMap::new();
    for (role, metadata) in roles {
        let field = format!("roles_metadata.{role}");
        let read_list = |name: &str| metadata.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
        let tags = metadata.get("tags").map(|_| {
            read_list("tags").iter().filter_map(Value::as_str).map(|tag| tag_name(&field, tag)).collect::<Result<Vec<_>, _>>()
        });
        let conflicts = if metadata.get("conflicts").and_then(Value::as_str) == Some("*") {
            roles.keys().filter(|other_role| *other_role != role).map(|other_role| Value::from(other_role.as_str())).collect()
        } else {
            read_list("conflicts")
        };
        let conflicts = conflicts.iter().filter_map(Value::as_str).map(|other_role| role_name(&field, other_role));
        let spec = RoleSpec {
            tags: tags.transpose()?,
            title: metadata.get("name").and_then(Value::as_str).unwrap_or_default().to_owned(),
            conflicts: conflicts.collect::<Result<_, _>>()?,
            limits: metadata.get("limits").and_then(Value::as_object).cloned().unwrap_or_default(),
            // A task group with the name of the role may set this field later.
            fault_tolerance: None,
        };
        specs.insert(role_name("roles_metadata", role)?, spec);
    }
    Ok(specs)
}

/// Translates `tags_metadata`, a map of tag names to their properties. Tags whose name begins with `primary-` are
/// omitted.
fn read_tags(tags: &Map<String, Value>) -> Result<BTreeMap<TagName, TagSpec>, FuelError> {
    let read_tag = |(tag, metadata): (&String, &Value)| {
        let has_primary = metadata.get("has_primary").and_then(Value::as_bool).unwrap_or(false);
        Ok((tag_name("tags_metadata", tag)?, TagSpec { has_primary, ..TagSpec::default() }))
    };
    // An old release has roles named `primary-…`, and such a role produces its tag without a declaration. Stemma
    // reserves these names for the primary holders of tags.
    tags.iter().filter(|(tag, _)| !tag.starts_with(PRIMARY_PREFIX)).map(read_tag).collect()
}

/// The state of the translation of one task.
struct TaskTranslation<'a> {
    id: String,
    fields: &'a Map<String, Value>,
    /// The ids of all tasks of the release.
    ids: &'a BTreeSet<&'a str>,
    /// The paths of the fields whose values cannot be translated, each with the reason. If there is one, hosts never start
    /// the task.
    untranslated: Vec<(String, UntranslatedReason)>,
    /// The values that are stored under `foreign` of the translated task, by the path of their field.
    foreign: Map<String, Value>,
    findings: Vec<Finding>,
}

impl<'a> TaskTranslation<'a> {
    /// Begins the translation of the task at a position in Fuel's list. Fails if the task has no id.
    fn new(position: usize, fields: &'a Map<String, Value>, ids: &'a BTreeSet<&'a str>) -> Result<Self, FuelError> {
        let id = fields.get("id").and_then(Value::as_str);
        let id = id.ok_or_else(|| field_error(&format!("tasks[{position}].id"), "is missing, or is not a text"))?.to_owned();
        Ok(Self { id, fields, ids, untranslated: Vec::new(), foreign: Map::new(), findings: Vec::new() })
    }

    /// Translates the task. Most fields that have no counterpart or cannot be translated are stored under `foreign`.
    /// The latter also add a finding and the mark `untranslated`, so that hosts never start the task.
    fn translate(&mut self) -> Result<Task, FuelError> {
        let kind = self.fields.get("type").and_then(Value::as_str).ok_or_else(|| self.field_error("type", "is missing"))?;
        let mut task = Task::new(self.id.as_str(), kind);
        if let Some(tags) = self.fields.get("tags") {
            task.tags = Some(self.read_tag_names("tags", tags)?);
        }
        task.roles = self.read_role_names()?;
        task.tasks = self.read_list("tasks")?;
        task.requires = self.read_list("requires")?;
        task.required_for = self.first_non_empty(["required_for", "required-for"], Self::read_list)?;
        task.cross_depends = self.first_non_empty(["cross-depends", "cross_depends"], Self::read_cross)?;
        task.cross_depended_by = self.first_non_empty(["cross-depended-by", "cross_depended_by"], Self::read_cross)?;
        task.fail_on_error = self.fields.get("fail_on_error").and_then(Value::as_bool).unwrap_or(true);
        self.read_condition();
        self.read_parameters(&mut task);
        self.read_refresh_on(&mut task);
        if task_type(kind).is_none() {
            self.untranslated.push(("type".into(), UntranslatedReason::Type));
        }
        for (name, value) in self.fields.iter().filter(|(name, _)| !KNOWN_FIELDS.contains(&name.as_str())) {
            self.foreign.insert(name.clone(), value.clone());
        }
        if !self.untranslated.is_empty() {
            let fields: Vec<&str> = self.untranslated.iter().map(|(field, _)| field.as_str()).collect();
            let reasons: Vec<String> = self.untranslated.iter().map(|(field, reason)| format!("{field} ({reason})")).collect();
            self.foreign.insert(UNTRANSLATED.into(), json!(fields));
            let message = format!("not translated: {}; the task is placed, and never started", reasons.join(", "));
            self.add_finding(rule::FUEL_UNTRANSLATED, message);
        }
        task.foreign = std::mem::take(&mut self.foreign);
        Ok(task)
    }

    /// Returns the roles of the task, from the first of the fields `roles`, `role` and `groups` that is not empty. An
    /// empty field counts as absent, as in Fuel's database.
    fn read_role_names(&mut self) -> Result<Vec<String>, FuelError> {
        for field in ["roles", "role", "groups"] {
            let roles = self.read_list(field)?;
            if !roles.is_empty() {
                return Ok(roles);
            }
        }
        Ok(Vec::new())
    }

    /// Reads the first of two fields with `read`, or the second field if the first is absent or empty.
    fn first_non_empty<T: Default + PartialEq>(
        &mut self,
        fields: [&str; 2],
        read: fn(&mut Self, &str) -> Result<T, FuelError>,
    ) -> Result<T, FuelError> {
        let value = read(self, fields[0])?;
        if value == T::default() { read(self, fields[1]) } else { Ok(value) }
    }

    /// Reads a field as a list of names. Returns an empty list if the field is absent.
    fn read_list(&mut self, field: &str) -> Result<Vec<String>, FuelError> {
        self.fields.get(field).map_or_else(|| Ok(Vec::new()), |value| self.read_names(field, value))
    }

    /// Reads a value as a list of names. A text is a list of one name, and an empty value is an empty list. An
    /// expression is recorded as not translated, and gives no name.
    fn read_names(&mut self, field: &str, value: &Value) -> Result<Vec<String>, FuelError> {
        if self.record_expression(field, value) {
            return Ok(Vec::new());
        }
        match value {
            Value::Null => Ok(Vec::new()),
            Value::String(text) if text.is_empty() => Ok(Vec::new()),
            Value::String(text) => Ok(vec![normalize_pattern(text)]),
            Value::Array(items) => {
                let mut names = Vec::new();
                for item in items {
                    match item {
                        Value::String(name) => names.push(normalize_pattern(name)),
                        Value::Null => {}
                        other if self.record_expression(field, other) => {}
                        _ => return Err(self.field_error(field, "must be a list of names")),
                    }
                }
                Ok(names)
            }
            Value::Bool(_) | Value::Number(_) | Value::Object(_) => Err(self.field_error(field, "must be a list of names")),
        }
    }

    /// Reads a value as a list of tags. The text `*` means every tag.
    fn read_tag_names(&mut self, field: &str, value: &Value) -> Result<Vec<String>, FuelError> {
        if value == "*" { Ok(vec![ANY_TAG.to_owned()]) } else { self.read_names(field, value) }
    }

    /// Reads a field with cross dependencies: a list of `{name, role, tags, policy}`. An entry with an expression is
    /// dropped and recorded as not translated. If the whole field is an expression, the result is empty.
    fn read_cross(&mut self, field: &str) -> Result<Vec<CrossEntry>, FuelError> {
        let Some(value) = self.fields.get(field) else { return Ok(Vec::new()) };
        if self.record_expression(field, value) || value.is_null() {
            return Ok(Vec::new());
        }
        let items = value.as_array().ok_or_else(|| self.field_error(field, "takes a list of {name, role, policy}"))?;
        let mut entries = Vec::new();
        for (position, item) in items.iter().enumerate().filter(|(_, item)| !item.is_null()) {
            let field = format!("{field}[{position}]");
            let entry = item.as_object().ok_or_else(|| self.field_error(&field, "takes {name, role, policy}"))?;
            if entry.values().any(has_expression) {
                self.untranslated.push((field, UntranslatedReason::Expression));
                continue;
            }
            let name = entry.get("name").and_then(Value::as_str);
            let name = normalize_pattern(name.ok_or_else(|| self.field_error(&field, "has no name"))?);
            let policy = match entry.get("policy").and_then(Value::as_str) {
                Some("any") => Policy::Any,
                _ => Policy::All,
            };
            let role = self.read_selector(&field, entry.get("role"), Self::read_names)?;
            let tags = self.read_selector(&field, entry.get("tags"), Self::read_tag_names)?;
            entries.push(CrossEntry { name, role, tags, policy });
        }
        Ok(entries)
    }

    /// Reads the `role` or `tags` of a cross dependency, which may be absent, `null` or names. `read` reads the names.
    fn read_selector(
        &mut self,
        field: &str,
        value: Option<&Value>,
        read: fn(&mut Self, &str, &Value) -> Result<Vec<String>, FuelError>,
    ) -> Result<CrossSelector, FuelError> {
        Ok(match value {
            None => CrossSelector::Absent,
            Some(Value::Null) => CrossSelector::Null,
            Some(value) => CrossSelector::Names(read(self, field, value)?),
        })
    }

    /// Marks a task with a condition as untranslated, because expressions are not evaluated, and stores the condition
    /// under `foreign`. A condition that is a boolean is ignored, as in Fuel, whose database drops `false`.
    fn read_condition(&mut self) {
        match self.fields.get("condition") {
            None | Some(Value::Null | Value::Bool(_)) => {}
            Some(condition) => {
                self.foreign.insert("condition".into(), condition.clone());
                self.untranslated.push(("condition".into(), UntranslatedReason::Expression));
            }
        }
    }

    /// Translates the parameters. The parameter `strategy` becomes `max_nodes`. A parameter with an expression, a
    /// placeholder or a file of Fuel's master, and one that the type lacks, is recorded as not translated.
    fn read_parameters(&mut self, task: &mut Task) {
        let Some(Value::Object(parameters)) = self.fields.get("parameters") else { return };
        let kind = task_type(&task.kind);
        for (name, value) in parameters {
            if name == "strategy" {
                task.max_nodes = self.read_strategy(value);
            } else if let Some(reason) = untranslated_reason(task, name, value) {
                self.record_untranslated(format!("parameters.{name}"), value, reason);
            } else if let Some(kind) = kind {
                self.read_parameter(task, kind, name, value);
            } else {
                task.parameters.insert(name.clone(), value.clone());
            }
        }
        match kind.map(|kind| kind.kind) {
            Some(TaskKind::Puppet) => {
                let set_default = |task: &mut Task, name: &str, value: Value| {
                    if !parameters.contains_key(name) {
                        task.parameters.insert(name.to_owned(), value);
                    }
                };
                set_default(task, "puppet_modules", DEFAULT_PUPPET_MODULES.into());
                set_default(task, "timeout", DEFAULT_PUPPET_TIMEOUT.into());
            }
            Some(TaskKind::Sync) => read_sync(task),
            _ => {}
        }
    }

    /// Translates a parameter with a plain value of a task of a known type.
    fn read_parameter(&mut self, task: &mut Task, kind: &TaskType, name: &str, value: &Value) {
        let is_field = matches!(
            (kind.kind, name),
            (TaskKind::Sync | TaskKind::CopyFiles, "timeout" | "retries") | (TaskKind::Puppet, "retries")
        );
        let is_known = kind.parameters.is_none_or(|table| table.get(name).is_some()) && !is_field;
        match name {
            // Fuel waits so long for the node. In Stemma an operator starts the reboot, and nobody waits for its end.
            "timeout" if kind.kind == TaskKind::Reboot => {
                self.foreign.insert(format!("parameters.{name}"), value.clone());
            }
            "timeout" | "retries" if !is_known => self.read_limit(task, name, value),
            _ if !is_known => self.record_untranslated(format!("parameters.{name}"), value, UntranslatedReason::Parameter),
            // Fuel's paths may end in a slash.
            "puppet_modules" => {
                let path = value.as_str().map(|path| Value::from(path.trim_end_matches('/')));
                task.parameters.insert(name.to_owned(), path.unwrap_or_else(|| value.clone()));
            }
            _ => drop(task.parameters.insert(name.to_owned(), value.clone())),
        }
    }

    /// Translates a limit that Fuel has as a parameter and Stemma as a field of each task: `timeout` or `retries`.
    fn read_limit(&mut self, task: &mut Task, name: &str, value: &Value) {
        let timeout = || value.as_u64().filter(|seconds| (1..=MAX_DURATION_SECONDS).contains(seconds));
        let retries = || value.as_u64().and_then(|count| u32::try_from(count).ok());
        match name {
            "timeout" if timeout().is_some() => task.timeout_seconds = timeout(),
            "retries" if retries().is_some() => task.retries = retries(),
            _ => self.record_untranslated(format!("parameters.{name}"), value, UntranslatedReason::Parameter),
        }
    }

    /// Records that a value is not translated, and stores it under `foreign`.
    fn record_untranslated(&mut self, field: String, value: &Value, reason: UntranslatedReason) {
        self.foreign.insert(field.clone(), value.clone());
        self.untranslated.push((field, reason));
    }

    /// Returns the number of nodes on which a task may run at once. `None` if there is no limit (`amount` is absent or
    /// 0), or if the strategy cannot be translated, which is recorded.
    fn read_strategy(&mut self, value: &Value) -> Option<u32> {
        let amount = value.get("amount");
        match value.get("type").and_then(Value::as_str) {
            Some("one_by_one") => Some(1),
            Some("parallel") if amount.is_none_or(Value::is_u64) => {
                let amount = amount.and_then(Value::as_u64).unwrap_or(0);
                u32::try_from(amount).ok().filter(|amount| *amount > 0)
            }
            _ => {
                let is_expression = has_expression(value);
                let reason = if is_expression { UntranslatedReason::Expression } else { UntranslatedReason::Parameter };
                self.record_untranslated("parameters.strategy".to_owned(), value, reason);
                None
            }
        }
    }

    /// Reads the field `refresh_on`, which names tasks and resources. The task runs again when one of them changes, so
    /// it subscribes to the named tasks. The other names are resources of Fuel's configuration. They have no
    /// counterpart, and are stored under `foreign`.
    fn read_refresh_on(&mut self, task: &mut Task) {
        let Some(value) = self.fields.get("refresh_on") else { return };
        // The field has a list of names, or one name.
        let names: Vec<&str> = value.as_array().into_iter().flatten().chain([value]).filter_map(Value::as_str).collect();
        let (tasks, resources): (Vec<&str>, Vec<&str>) = names.into_iter().partition(|name| self.ids.contains(name));
        task.subscribes = tasks.into_iter().map(str::to_owned).collect();
        if !resources.is_empty() {
            self.foreign.insert("refresh_on".into(), json!(resources));
        }
    }

    /// Copies the `fault_tolerance` of a group of tasks (how many of its nodes may fail) to the role with the same
    /// name, if there is such a role.
    fn copy_fault_tolerance(&mut self, task: &Task, roles: &mut BTreeMap<Name, RoleSpec>) {
        let tolerance = self.fields.get("fault_tolerance").filter(|_| task.is_group());
        let role = Name::new(&task.id).ok().and_then(|name| roles.get_mut(&name));
        // An invalid value is stored only under `foreign` of the task.
        let tolerance = tolerance.filter(|tolerance| RoleSpec::is_fault_tolerance(tolerance));
        if let (Some(tolerance), Some(role)) = (tolerance, role) {
            role.fault_tolerance = Some(tolerance.clone());
        }
    }

    /// Returns whether a value is an expression. An expression is stored under `foreign`, and its field is recorded as
    /// not translated.
    fn record_expression(&mut self, field: &str, value: &Value) -> bool {
        let is_found = is_expression(value);
        if is_found {
            self.record_untranslated(field.to_owned(), value, UntranslatedReason::Expression);
        }
        is_found
    }

    fn add_finding(&mut self, rule: Rule, message: String) {
        self.findings.push(Finding::new(rule, format!("task/{}", self.id), message));
    }

    /// Returns the error that a field of the task has an invalid value.
    fn field_error(&self, field: &str, reason: &str) -> FuelError {
        field_error(&format!("task {} {field}", self.id), reason)
    }
}

/// Returns `/.+/` for each of the patterns by which Fuel's releases mean every name. These patterns also match the
/// empty text, and a new release with such a pattern is rejected. Returns any other name or pattern unchanged.
fn normalize_pattern(name: &str) -> String {
    match name {
        "/" | "//" | "/.*/" | "/^.*/" | "/.*$/" | "/^.*$/" => "/.+/".to_owned(),
        other => other.to_owned(),
    }
}

/// Returns the reason why a parameter of a task cannot be translated, as far as its value decides this. Returns `None` for
/// a plain value.
fn untranslated_reason(task: &Task, name: &str, value: &Value) -> Option<UntranslatedReason> {
    if has_expression(value) {
        return Some(UntranslatedReason::Expression);
    }
    let is_absolute = || value.as_str().is_some_and(|path| path.starts_with('/'));
    let is_plain_item = |item: &Value| item.as_object().is_some_and(|item| item.keys().all(|key| key == "src" || key == "dst"));
    let has_plain_items = || value.as_array().is_some_and(|items| items.iter().all(is_plain_item));
    match (task_type(&task.kind).map(|kind| kind.kind), name) {
        // The source is a directory of the host, or a module of the rsync server of the master.
        (Some(TaskKind::Sync), "src") if !is_absolute() => Some(UntranslatedReason::MasterFile),
        // The orchestrator reads the files, and uploads them to the host.
        (Some(TaskKind::CopyFiles), "files") if task.roles != [MASTER_ROLE] => Some(UntranslatedReason::MasterFile),
        _ if has_placeholder(value) => Some(UntranslatedReason::Placeholder),
        // A file of Fuel may have rights of its own.
        (Some(TaskKind::CopyFiles), "files") if !has_plain_items() => Some(UntranslatedReason::Parameter),
        _ => None,
    }
}

/// Returns whether a value is an expression of Fuel: a map with the key `yaql_exp`.
fn is_expression(value: &Value) -> bool {
    value.as_object().is_some_and(|map| map.contains_key("yaql_exp"))
}

/// Returns whether a value is an expression of Fuel or contains one.
fn has_expression(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.contains_key("yaql_exp") || map.values().any(has_expression),
        Value::Array(items) => items.iter().any(has_expression),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Returns whether a value contains a placeholder that Fuel's orchestrator would replace. A task with such a value must
/// not run unchanged: it would, for example, create a file named `{CLUSTER_ID}`.
fn has_placeholder(value: &Value) -> bool {
    match value {
        Value::String(text) => PLACEHOLDERS.iter().any(|name| text.contains(name)),
        Value::Object(map) => map.values().any(has_placeholder),
        Value::Array(items) => items.iter().any(has_placeholder),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Parses the name of a role. `field` is the path that an error contains.
fn role_name(field: &str, text: &str) -> Result<Name, FuelError> {
    Name::new(text).map_err(|reason| FuelError::Name { field: field.to_owned(), reason })
}

/// Parses the name of a tag. `field` is the path that an error contains.
fn tag_name(field: &str, text: &str) -> Result<TagName, FuelError> {
    TagName::new(text).map_err(|reason| FuelError::Name { field: field.to_owned(), reason })
}

/// Returns the error that a field of Fuel's data has an invalid value.
fn field_error(field: &str, reason: &str) -> FuelError {
    FuelError::Field { field: field.to_owned(), reason: reason.to_owned() }
}

/// Translates the directories of a `sync` task. Fuel runs `rsync --delete`, which puts the directory itself into `dst`
/// unless `src` ends in a slash, and removes other files there.
fn read_sync(task: &mut Task) {
    let path = |name: &str| task.parameters.get(name).and_then(Value::as_str).map(str::to_owned);
    let (Some(src), Some(dst)) = (path("src"), path("dst")) else { return };
    let (plain_src, plain_dst) = (src.trim_end_matches('/'), dst.trim_end_matches('/'));
    let new_dst = match plain_src.rsplit_once('/') {
        Some((_, name)) if !src.ends_with('/') => format!("{plain_dst}/{name}"),
        _ => plain_dst.to_owned(),
    };
    task.parameters.insert("src".to_owned(), plain_src.into());
    task.parameters.insert("dst".to_owned(), new_dst.into());
    task.parameters.insert("delete".to_owned(), true.into());
}
