//! Translates Fuel's own releases. Fields with a counterpart are converted, and the rest is stored under `foreign`.
//!
//! A YAQL expression is not evaluated, because a guess at another system's expression must not change a host. If the
//! expression decides whether a task runs, the task is placed as if the result were true. If it stands for a value, or
//! a value contains a placeholder of Fuel's orchestrator (`{CLUSTER_ID}`), the value is omitted. In both cases the task
//! is marked as `untranslated` and never started, and a finding names the field.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::finding::{Finding, Rule, rule};
use crate::json::normalize_integers;
use crate::name::{InvalidName, Name, PRIMARY_PREFIX, TagName};
use crate::object::{Matching, PrimaryMatching, ReleaseSpec, RoleMatching, RoleSpec, TagSpec};
use crate::task::{ANY_TAG, CrossEntry, CrossSelector, Policy, Task, UNTRANSLATED, task_type};

/// Fields that have a counterpart in our tasks.
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

/// Placeholders that Fuel replaces in all texts of a task's parameters before it runs.
const PLACEHOLDERS: &[&str] = &["{CLUSTER_ID}", "{OPENSTACK_VERSION}", "{MASTER_IP}", "{CN_HOSTNAME}", "{SETTINGS}"];

/// The result of an import.
#[derive(Clone, Debug, PartialEq)]
pub struct FuelImport {
    /// The release, without a name.
    pub spec: ReleaseSpec,
    /// Findings about fields that were not translated or have no effect here.
    pub findings: Vec<Finding>,
    /// The number of tasks that can run: of a known type and fully translated. Markers are not counted.
    pub runnable: usize,
    /// The number of tasks that would run in Fuel. Markers are not counted.
    pub total: usize,
}

/// An error in Fuel's data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FuelError {
    /// A field with an invalid value.
    #[error("{field}: {reason}")]
    Field {
        /// The path of the field.
        field: String,
        /// What is wrong, and what is accepted.
        reason: String,
    },
    /// An invalid name.
    #[error("{field}: {reason}")]
    Name {
        /// The path of the field.
        field: String,
        /// The reason why the name is invalid.
        reason: InvalidName,
    },
    /// The file does not have the requested graph.
    #[error("no graph {wanted:?} in the file; it has {}", .have.join(", "))]
    NoGraph {
        /// The name of the requested graph.
        wanted: String,
        /// The names of the graphs in the file.
        have: Vec<String>,
    },
}

/// Translates one JSON file of the form `{roles_metadata, tags_metadata, graphs: {NAME: {tasks}}}`.
///
/// # Errors
/// See [`import`]; also [`FuelError::NoGraph`] if the file does not have the graph.
pub fn import_file(file: &Value, graph: &str) -> Result<FuelImport, FuelError> {
    let object = |field: &str| file.get(field).and_then(Value::as_object).cloned().unwrap_or_default();
    let graphs = object("graphs");
    let tasks = match graphs.get(graph).and_then(|graph| graph.get("tasks")).or_else(|| file.get("tasks")) {
        Some(Value::Array(tasks)) => tasks.clone(),
        _ => return Err(FuelError::NoGraph { wanted: graph.into(), have: graphs.keys().cloned().collect() }),
    };
    import(&tasks, &object("roles_metadata"), &object("tags_metadata"))
}

/// Translates tasks with the roles and tags of their release, in the form of Fuel's YAML.
///
/// # Errors
/// [`FuelError`] for the first value that cannot be read.
pub fn import(tasks: &[Value], roles: &Map<String, Value>, tags: &Map<String, Value>) -> Result<FuelImport, FuelError> {
    // Normalized as they will be stored, so that checks and output match the stored release.
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
    let mut findings = Vec::new();
    for (at, task) in tasks.iter().enumerate() {
        let fields = task.as_object().ok_or_else(|| field_error(&format!("tasks[{at}]"), "is not a map of fields"))?;
        let mut translation = TaskTranslation::new(at, fields, &ids)?;
        let translated = translation.translate()?;
        translation.move_role_tolerance(&translated, &mut spec.roles);
        findings.append(&mut translation.findings);
        spec.tasks.push(translated);
    }
    let not_marker = |task: &&Task| !task_type(&task.kind).is_some_and(|kind| kind.is_marker);
    let total = spec.tasks.iter().filter(not_marker).count();
    let runnable = spec.tasks.iter().filter(not_marker).filter(|task| !task.is_untranslated()).count();
    Ok(FuelImport { spec, findings, runnable, total })
}

/// Returns a copy in which whole numbers are integers.
fn with_integers(value: &Value) -> Value {
    let mut value = value.clone();
    normalize_integers(&mut value);
    value
}

fn normalize_members(map: &Map<String, Value>) -> Map<String, Value> {
    map.iter().map(|(name, value)| (name.clone(), with_integers(value))).collect()
}

/// Translates `roles_metadata`. A role that conflicts with `*` conflicts with all others.
fn read_roles(roles: &Map<String, Value>) -> Result<BTreeMap<Name, RoleSpec>, FuelError> {
    let mut specs = BTreeMap::new();
    for (role, meta) in roles {
        let field = format!("roles_metadata.{role}");
        let texts = |name: &str| meta.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
        let tags = meta.get("tags").map(|_| {
            texts("tags").iter().filter_map(Value::as_str).map(|tag| tag_name(&field, tag)).collect::<Result<Vec<_>, _>>()
        });
        let conflicts = if meta.get("conflicts").and_then(Value::as_str) == Some("*") {
            roles.keys().filter(|other| *other != role).map(|other| Value::from(other.as_str())).collect()
        } else {
            texts("conflicts")
        };
        let conflicts = conflicts.iter().filter_map(Value::as_str).map(|other| role_name(&field, other));
        let spec = RoleSpec {
            tags: tags.transpose()?,
            title: meta.get("name").and_then(Value::as_str).unwrap_or_default().to_owned(),
            conflicts: conflicts.collect::<Result<_, _>>()?,
            limits: meta.get("limits").and_then(Value::as_object).cloned().unwrap_or_default(),
            fault_tolerance: None,
        };
        specs.insert(role_name("roles_metadata", role)?, spec);
    }
    Ok(specs)
}

fn read_tags(tags: &Map<String, Value>) -> Result<BTreeMap<TagName, TagSpec>, FuelError> {
    let read_tag = |(tag, meta): (&String, &Value)| {
        let has_primary = meta.get("has_primary").and_then(Value::as_bool).unwrap_or(false);
        Ok((tag_name("tags_metadata", tag)?, TagSpec { has_primary, ..TagSpec::default() }))
    };
    // In an old release, a role with such a name produces its tag without a declaration. Here the name is reserved.
    tags.iter().filter(|(tag, _)| !tag.starts_with(PRIMARY_PREFIX)).map(read_tag).collect()
}

/// The state of the translation of one task.
struct TaskTranslation<'a> {
    id: String,
    fields: &'a Map<String, Value>,
    ids: &'a BTreeSet<&'a str>,
    untranslated: Vec<String>,
    foreign: Map<String, Value>,
    findings: Vec<Finding>,
}

impl<'a> TaskTranslation<'a> {
    fn new(at: usize, fields: &'a Map<String, Value>, ids: &'a BTreeSet<&'a str>) -> Result<Self, FuelError> {
        let id = fields.get("id").and_then(Value::as_str);
        let id = id.ok_or_else(|| field_error(&format!("tasks[{at}].id"), "is missing, or no text"))?.to_owned();
        Ok(Self { id, fields, ids, untranslated: Vec::new(), foreign: Map::new(), findings: Vec::new() })
    }

    /// Translates the task. Fields that have no counterpart or cannot be translated are stored under `foreign`.
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
            self.untranslated.push("type".into());
        }
        for (name, value) in self.fields.iter().filter(|(name, _)| !KNOWN_FIELDS.contains(&name.as_str())) {
            self.foreign.insert(name.clone(), value.clone());
        }
        if !self.untranslated.is_empty() {
            self.foreign.insert(UNTRANSLATED.into(), json!(self.untranslated));
            let message = format!("not translated: {}; the task is placed, and never started", self.untranslated.join(", "));
            self.add_finding(rule::FUEL_UNTRANSLATED, message);
        }
        task.foreign = std::mem::take(&mut self.foreign);
        Ok(task)
    }

    /// Reads the roles of a task from the first of `roles`, `role` and `groups` that is not empty. An empty field
    /// counts as absent, as in Fuel's database.
    fn read_role_names(&mut self) -> Result<Vec<String>, FuelError> {
        for field in ["roles", "role", "groups"] {
            let roles = self.read_list(field)?;
            if !roles.is_empty() {
                return Ok(roles);
            }
        }
        Ok(Vec::new())
    }

    fn first_non_empty<T: Default + PartialEq>(
        &mut self,
        fields: [&str; 2],
        read: fn(&mut Self, &str) -> Result<T, FuelError>,
    ) -> Result<T, FuelError> {
        let value = read(self, fields[0])?;
        if value == T::default() { read(self, fields[1]) } else { Ok(value) }
    }

    fn read_list(&mut self, field: &str) -> Result<Vec<String>, FuelError> {
        self.fields.get(field).map_or_else(|| Ok(Vec::new()), |value| self.read_names(field, value))
    }

    /// Reads a list of names. A text is a list of one name, and an empty value is an empty list.
    fn read_names(&mut self, field: &str, value: &Value) -> Result<Vec<String>, FuelError> {
        if self.is_untranslated(field, value) {
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
                        other if self.is_untranslated(field, other) => {}
                        _ => return Err(self.field_error(field, "takes a list of names")),
                    }
                }
                Ok(names)
            }
            Value::Bool(_) | Value::Number(_) | Value::Object(_) => Err(self.field_error(field, "takes a list of names")),
        }
    }

    /// Reads a list of tags. The text `*` means every tag.
    fn read_tag_names(&mut self, field: &str, value: &Value) -> Result<Vec<String>, FuelError> {
        if value == "*" { Ok(vec![ANY_TAG.to_owned()]) } else { self.read_names(field, value) }
    }

    /// Reads the entries of a cross dependency. An entry with an expression is not translated.
    fn read_cross(&mut self, field: &str) -> Result<Vec<CrossEntry>, FuelError> {
        let Some(value) = self.fields.get(field) else { return Ok(Vec::new()) };
        if self.is_untranslated(field, value) || value.is_null() {
            return Ok(Vec::new());
        }
        let items = value.as_array().ok_or_else(|| self.field_error(field, "takes a list of {name, role, policy}"))?;
        let mut entries = Vec::new();
        for (at, item) in items.iter().enumerate().filter(|(_, item)| !item.is_null()) {
            let field = format!("{field}[{at}]");
            let entry = item.as_object().ok_or_else(|| self.field_error(&field, "takes {name, role, policy}"))?;
            if entry.values().any(has_expression) {
                self.untranslated.push(field);
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

    /// Marks a task with a condition as untranslated, because expressions are not evaluated. A boolean is ignored, as
    /// in Fuel, whose database drops `false`.
    fn read_condition(&mut self) {
        match self.fields.get("condition") {
            None | Some(Value::Null | Value::Bool(_)) => {}
            Some(condition) => {
                self.foreign.insert("condition".into(), condition.clone());
                self.untranslated.push("condition".into());
            }
        }
    }

    /// Copies the parameters that are plain values. The strategy becomes `max_nodes`.
    fn read_parameters(&mut self, task: &mut Task) {
        let Some(Value::Object(parameters)) = self.fields.get("parameters") else { return };
        for (name, value) in parameters {
            let field = format!("parameters.{name}");
            if name == "strategy" {
                task.max_nodes = self.read_strategy(value);
            } else if has_expression(value) || has_placeholder(value) {
                self.foreign.insert(field.clone(), value.clone());
                self.untranslated.push(field);
            } else {
                task.parameters.insert(name.clone(), value.clone());
            }
        }
    }

    /// Reads the number of nodes on which a task may run at once, or `None` if there is no limit or it is not
    /// translated.
    fn read_strategy(&mut self, value: &Value) -> Option<u32> {
        let amount = value.get("amount");
        match value.get("type").and_then(Value::as_str) {
            Some("one_by_one") => Some(1),
            Some("parallel") if amount.is_none_or(Value::is_u64) => {
                let amount = amount.and_then(Value::as_u64).unwrap_or(0);
                u32::try_from(amount).ok().filter(|amount| *amount > 0)
            }
            _ => {
                self.foreign.insert("parameters.strategy".into(), value.clone());
                self.untranslated.push("parameters.strategy".into());
                None
            }
        }
    }

    /// Reads `refresh_on`, which names tasks, or configuration resources that have no counterpart here.
    fn read_refresh_on(&mut self, task: &mut Task) {
        let Some(value) = self.fields.get("refresh_on") else { return };
        let names: Vec<&str> = value.as_array().into_iter().flatten().chain([value]).filter_map(Value::as_str).collect();
        let (tasks, rest): (Vec<&str>, Vec<&str>) = names.into_iter().partition(|name| self.ids.contains(name));
        task.subscribes = tasks.into_iter().map(str::to_owned).collect();
        if !rest.is_empty() {
            self.foreign.insert("refresh_on".into(), json!(rest));
        }
    }

    /// Copies the `fault_tolerance` of a group to the role of the same name, if there is one.
    fn move_role_tolerance(&mut self, task: &Task, roles: &mut BTreeMap<Name, RoleSpec>) {
        let tolerance = self.fields.get("fault_tolerance").filter(|_| task.is_group());
        let role = Name::new(&task.id).ok().and_then(|name| roles.get_mut(&name));
        // An invalid value remains with the task's other foreign fields.
        let tolerance = tolerance.filter(|tolerance| RoleSpec::is_fault_tolerance(tolerance));
        if let (Some(tolerance), Some(role)) = (tolerance, role) {
            role.fault_tolerance = Some(tolerance.clone());
        }
    }

    /// Returns whether a value is an expression. If so, the field is stored as untranslated.
    fn is_untranslated(&mut self, field: &str, value: &Value) -> bool {
        let matches = is_expression(value);
        if matches {
            self.foreign.insert(field.to_owned(), value.clone());
            self.untranslated.push(field.to_owned());
        }
        matches
    }

    fn add_finding(&mut self, rule: Rule, message: String) {
        self.findings.push(Finding::new(rule, format!("task/{}", self.id), message));
    }

    fn field_error(&self, field: &str, reason: &str) -> FuelError {
        field_error(&format!("task {} {field}", self.id), reason)
    }
}

/// Replaces Fuel's patterns for every name by `/.+/`. They match the empty text, which a new release must not do.
fn normalize_pattern(name: &str) -> String {
    match name {
        "/" | "//" | "/.*/" | "/^.*/" | "/.*$/" | "/^.*$/" => "/.+/".to_owned(),
        other => other.to_owned(),
    }
}

fn is_expression(value: &Value) -> bool {
    value.as_object().is_some_and(|map| map.contains_key("yaql_exp"))
}

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

fn role_name(field: &str, text: &str) -> Result<Name, FuelError> {
    Name::new(text).map_err(|reason| FuelError::Name { field: field.to_owned(), reason })
}

fn tag_name(field: &str, text: &str) -> Result<TagName, FuelError> {
    TagName::new(text).map_err(|reason| FuelError::Name { field: field.to_owned(), reason })
}

fn field_error(field: &str, reason: &str) -> FuelError {
    FuelError::Field { field: field.to_owned(), reason: reason.to_owned() }
}
