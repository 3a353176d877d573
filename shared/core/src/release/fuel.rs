//! Fuel's own releases, translated: what has a counterpart becomes ours, the rest is kept under `foreign`.
//!
//! A YAQL expression is not evaluated. Where one decides whether a task runs, the task is placed as if it said yes;
//! where one stands for a value, or a value waits for what Fuel's orchestrator knows (`{CLUSTER_ID}`), the value is
//! left out. Either way the task is marked `untranslated` and never started, with a finding that names the field: a
//! guess at another system's expression must not touch a host.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::finding::{Finding, Rule, rule};
use crate::json::whole_to_integers;
use crate::name::{InvalidName, Name, PRIMARY_PREFIX, TagName};
use crate::object::{Matching, PrimaryMatching, ReleaseSpec, RoleMatching, RoleSpec, TagSpec};
use crate::task::{ANY, CrossEntry, Policy, Task, UNTRANSLATED, Where, task_type};

/// Fields that have a place of their own in our tasks.
const KNOWN: &[&str] = &[
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

/// What Fuel puts into every text of a task's parameters before it runs.
const PLACEHOLDERS: &[&str] = &["{CLUSTER_ID}", "{OPENSTACK_VERSION}", "{MASTER_IP}", "{CN_HOSTNAME}", "{SETTINGS}"];

/// What an import gives.
#[derive(Clone, Debug, PartialEq)]
pub struct FuelImport {
    /// The release, without a name.
    pub spec: ReleaseSpec,
    /// What was not translated, or means nothing here.
    pub findings: Vec<Finding>,
    /// Tasks that can run: of a type that is known here, and wholly translated. Markers are not counted.
    pub runnable: usize,
    /// Tasks that would run in Fuel. Markers are not counted.
    pub total: usize,
}

/// Fuel's data can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FuelError {
    /// A field is not what it should be.
    #[error("{field}: {reason}")]
    Field {
        /// Its path.
        field: String,
        /// What is wrong, and what is taken.
        reason: String,
    },
    /// A name that can't stand here.
    #[error("{field}: {reason}")]
    Name {
        /// Its path.
        field: String,
        /// Why.
        reason: InvalidName,
    },
    /// The file has several graphs, and none was chosen, or one that is not there.
    #[error("no graph {wanted:?} in the file; it has {}", .have.join(", "))]
    NoGraph {
        /// What was asked for.
        wanted: String,
        /// What there is.
        have: Vec<String>,
    },
}

/// Translates one JSON file of the form `{roles_metadata, tags_metadata, graphs: {NAME: {tasks}}}`.
///
/// # Errors
/// [`FuelError`].
pub fn import_file(file: &Value, graph: &str) -> Result<FuelImport, FuelError> {
    let object = |field: &str| file.get(field).and_then(Value::as_object).cloned().unwrap_or_default();
    let graphs = object("graphs");
    let tasks = match graphs.get(graph).and_then(|graph| graph.get("tasks")).or_else(|| file.get("tasks")) {
        Some(Value::Array(tasks)) => tasks.clone(),
        _ => return Err(FuelError::NoGraph { wanted: graph.into(), have: graphs.keys().cloned().collect() }),
    };
    import(&tasks, &object("roles_metadata"), &object("tags_metadata"))
}

/// Translates tasks with the roles and tags of their release, as Fuel's YAML has them.
///
/// # Errors
/// [`FuelError`] for the first thing that can't be read.
pub fn import(tasks: &[Value], roles: &Map<String, Value>, tags: &Map<String, Value>) -> Result<FuelImport, FuelError> {
    // As they will be stored: what is judged and printed is what the release will be.
    let tasks: Vec<Value> = tasks.iter().map(integers).collect();
    let (roles, tags) = (&whole_members(roles), &whole_members(tags));
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
        let fields = task.as_object().ok_or_else(|| wrong(&format!("tasks[{at}]"), "is no map of fields"))?;
        let mut translation = Translation::new(at, fields, &ids)?;
        let translated = translation.task()?;
        translation.role_tolerance(&translated, &mut spec.roles);
        findings.append(&mut translation.findings);
        spec.tasks.push(translated);
    }
    let real = |task: &&Task| !task_type(&task.kind).is_some_and(|kind| kind.marker);
    let total = spec.tasks.iter().filter(real).count();
    let runnable = spec.tasks.iter().filter(real).filter(|task| !task.is_untranslated()).count();
    Ok(FuelImport { spec, findings, runnable, total })
}

/// A value whose whole numbers are integers.
fn integers(value: &Value) -> Value {
    let mut value = value.clone();
    whole_to_integers(&mut value);
    value
}

fn whole_members(map: &Map<String, Value>) -> Map<String, Value> {
    map.iter().map(|(name, value)| (name.clone(), integers(value))).collect()
}

fn read_roles(roles: &Map<String, Value>) -> Result<BTreeMap<Name, RoleSpec>, FuelError> {
    let mut read = BTreeMap::new();
    for (role, meta) in roles {
        let field = format!("roles_metadata.{role}");
        let texts = |name: &str| meta.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
        let tags = meta.get("tags").map(|_| {
            texts("tags")
                .iter()
                .filter_map(Value::as_str)
                .map(|tag| tag_name(&field, tag))
                .collect::<Result<Vec<_>, _>>()
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
        read.insert(role_name("roles_metadata", role)?, spec);
    }
    Ok(read)
}

fn read_tags(tags: &Map<String, Value>) -> Result<BTreeMap<TagName, TagSpec>, FuelError> {
    let read = |(tag, meta): (&String, &Value)| {
        let has_primary = meta.get("has_primary").and_then(Value::as_bool).unwrap_or(false);
        Ok((tag_name("tags_metadata", tag)?, TagSpec { has_primary, ..TagSpec::default() }))
    };
    // A role of an old release named so produces its tag without a declaration, and here the name is reserved.
    tags.iter().filter(|(tag, _)| !tag.starts_with(PRIMARY_PREFIX)).map(read).collect()
}

/// One task on its way.
struct Translation<'a> {
    id: String,
    fields: &'a Map<String, Value>,
    ids: &'a BTreeSet<&'a str>,
    untranslated: Vec<String>,
    foreign: Map<String, Value>,
    findings: Vec<Finding>,
}

impl<'a> Translation<'a> {
    fn new(at: usize, fields: &'a Map<String, Value>, ids: &'a BTreeSet<&'a str>) -> Result<Self, FuelError> {
        let id = fields.get("id").and_then(Value::as_str);
        let id = id.ok_or_else(|| wrong(&format!("tasks[{at}].id"), "is missing, or no text"))?.to_owned();
        Ok(Self { id, fields, ids, untranslated: Vec::new(), foreign: Map::new(), findings: Vec::new() })
    }

    fn task(&mut self) -> Result<Task, FuelError> {
        let kind = self.fields.get("type").and_then(Value::as_str).ok_or_else(|| self.wrong("type", "is missing"))?;
        let mut task = Task::new(self.id.as_str(), kind);
        if let Some(tags) = self.fields.get("tags") {
            task.tags = Some(self.tags("tags", tags)?);
        }
        task.roles = self.roles()?;
        task.tasks = self.list("tasks")?;
        task.requires = self.list("requires")?;
        task.required_for = self.either(["required_for", "required-for"], Self::list)?;
        task.cross_depends = self.either(["cross-depends", "cross_depends"], Self::cross)?;
        task.cross_depended_by = self.either(["cross-depended-by", "cross_depended_by"], Self::cross)?;
        task.fail_on_error = self.fields.get("fail_on_error").and_then(Value::as_bool).unwrap_or(true);
        self.condition();
        self.parameters(&mut task);
        self.refresh_on(&mut task);
        if task_type(kind).is_none() {
            self.untranslated.push("type".into());
        }
        for (name, value) in self.fields.iter().filter(|(name, _)| !KNOWN.contains(&name.as_str())) {
            self.foreign.insert(name.clone(), value.clone());
        }
        if !self.untranslated.is_empty() {
            self.foreign.insert(UNTRANSLATED.into(), json!(self.untranslated));
            let message =
                format!("not translated: {}; the task is placed, and never started", self.untranslated.join(", "));
            self.find(rule::FUEL_UNTRANSLATED, message);
        }
        task.foreign = std::mem::take(&mut self.foreign);
        Ok(task)
    }

    /// `role` before `groups`, and an empty one is none, as Fuel's database keeps them.
    fn roles(&mut self) -> Result<Vec<String>, FuelError> {
        for field in ["roles", "role", "groups"] {
            let found = self.list(field)?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    fn either<T: Default + PartialEq>(
        &mut self,
        fields: [&str; 2],
        read: fn(&mut Self, &str) -> Result<T, FuelError>,
    ) -> Result<T, FuelError> {
        let found = read(self, fields[0])?;
        if found == T::default() { read(self, fields[1]) } else { Ok(found) }
    }

    fn list(&mut self, field: &str) -> Result<Vec<String>, FuelError> {
        self.fields.get(field).map_or_else(|| Ok(Vec::new()), |value| self.names(field, value))
    }

    /// A list of names; a text is a list of one, what is empty none.
    fn names(&mut self, field: &str, value: &Value) -> Result<Vec<String>, FuelError> {
        if self.is_expression(field, value) {
            return Ok(Vec::new());
        }
        match value {
            Value::Null => Ok(Vec::new()),
            Value::String(text) if text.is_empty() => Ok(Vec::new()),
            Value::String(text) => Ok(vec![spelled(text)]),
            Value::Array(items) => {
                let mut names = Vec::new();
                for item in items {
                    match item {
                        Value::String(name) => names.push(spelled(name)),
                        Value::Null => {}
                        other if self.is_expression(field, other) => {}
                        _ => return Err(self.wrong(field, "takes a list of names")),
                    }
                }
                Ok(names)
            }
            Value::Bool(_) | Value::Number(_) | Value::Object(_) => Err(self.wrong(field, "takes a list of names")),
        }
    }

    /// The same for tags, where the text `*` means every one.
    fn tags(&mut self, field: &str, value: &Value) -> Result<Vec<String>, FuelError> {
        if value == "*" { Ok(vec![ANY.to_owned()]) } else { self.names(field, value) }
    }

    fn cross(&mut self, field: &str) -> Result<Vec<CrossEntry>, FuelError> {
        let Some(value) = self.fields.get(field) else { return Ok(Vec::new()) };
        if self.is_expression(field, value) || value.is_null() {
            return Ok(Vec::new());
        }
        let items = value.as_array().ok_or_else(|| self.wrong(field, "takes a list of {name, role, policy}"))?;
        let mut entries = Vec::new();
        for (at, item) in items.iter().enumerate().filter(|(_, item)| !item.is_null()) {
            let field = format!("{field}[{at}]");
            let entry = item.as_object().ok_or_else(|| self.wrong(&field, "takes {name, role, policy}"))?;
            if entry.values().any(holds_expression) {
                self.untranslated.push(field);
                continue;
            }
            let name = entry.get("name").and_then(Value::as_str);
            let name = spelled(name.ok_or_else(|| self.wrong(&field, "has no name"))?);
            let policy = match entry.get("policy").and_then(Value::as_str) {
                Some("any") => Policy::Any,
                _ => Policy::All,
            };
            let role = self.place(&field, entry.get("role"), Self::names)?;
            let tags = self.place(&field, entry.get("tags"), Self::tags)?;
            entries.push(CrossEntry { name, role, tags, policy });
        }
        Ok(entries)
    }

    fn place(
        &mut self,
        field: &str,
        value: Option<&Value>,
        read: fn(&mut Self, &str, &Value) -> Result<Vec<String>, FuelError>,
    ) -> Result<Where, FuelError> {
        Ok(match value {
            None => Where::Absent,
            Some(Value::Null) => Where::Null,
            Some(value) => Where::Names(read(self, field, value)?),
        })
    }

    /// A condition of Fuel's counts as true: an expression is not evaluated, and `false` its database drops.
    fn condition(&mut self) {
        match self.fields.get("condition") {
            None | Some(Value::Null | Value::Bool(_)) => {}
            Some(condition) => {
                self.foreign.insert("condition".into(), condition.clone());
                self.untranslated.push("condition".into());
            }
        }
    }

    fn parameters(&mut self, task: &mut Task) {
        let Some(Value::Object(parameters)) = self.fields.get("parameters") else { return };
        for (name, value) in parameters {
            let field = format!("parameters.{name}");
            if name == "strategy" {
                task.max_nodes = self.strategy(value);
            } else if holds_expression(value) || holds_placeholder(value) {
                self.foreign.insert(field.clone(), value.clone());
                self.untranslated.push(field);
            } else {
                task.parameters.insert(name.clone(), value.clone());
            }
        }
    }

    fn strategy(&mut self, value: &Value) -> Option<u32> {
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

    /// `refresh_on` names tasks, or configuration resources that have no counterpart here.
    fn refresh_on(&mut self, task: &mut Task) {
        let Some(value) = self.fields.get("refresh_on") else { return };
        let names: Vec<&str> =
            value.as_array().into_iter().flatten().chain([value]).filter_map(Value::as_str).collect();
        let (tasks, rest): (Vec<&str>, Vec<&str>) = names.into_iter().partition(|name| self.ids.contains(name));
        task.subscribes = tasks.into_iter().map(str::to_owned).collect();
        if !rest.is_empty() {
            self.foreign.insert("refresh_on".into(), json!(rest));
        }
    }

    /// A group's `fault_tolerance` is its role's, where it has the name of one.
    fn role_tolerance(&mut self, task: &Task, roles: &mut BTreeMap<Name, RoleSpec>) {
        let tolerance = self.fields.get("fault_tolerance").filter(|_| task.is_group());
        let role = Name::new(&task.id).ok().and_then(|name| roles.get_mut(&name));
        // What is none, and no release may say, stays with the task's other fields of Fuel's.
        let tolerance = tolerance.filter(|tolerance| RoleSpec::is_tolerance(tolerance));
        if let (Some(tolerance), Some(role)) = (tolerance, role) {
            role.fault_tolerance = Some(tolerance.clone());
        }
    }

    fn is_expression(&mut self, field: &str, value: &Value) -> bool {
        let is = is_expression(value);
        if is {
            self.foreign.insert(field.to_owned(), value.clone());
            self.untranslated.push(field.to_owned());
        }
        is
    }

    fn find(&mut self, rule: Rule, message: String) {
        self.findings.push(Finding::of(rule, format!("task/{}", self.id), message));
    }

    fn wrong(&self, field: &str, reason: &str) -> FuelError {
        wrong(&format!("task {} {field}", self.id), reason)
    }
}

/// Fuel's ways to write the pattern of every name, which match the empty text, are brought into the one that a body may have.
fn spelled(name: &str) -> String {
    match name {
        "/" | "//" | "/.*/" | "/^.*/" | "/.*$/" | "/^.*$/" => "/.+/".to_owned(),
        other => other.to_owned(),
    }
}

fn is_expression(value: &Value) -> bool {
    value.as_object().is_some_and(|map| map.contains_key("yaql_exp"))
}

fn holds_expression(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.contains_key("yaql_exp") || map.values().any(holds_expression),
        Value::Array(items) => items.iter().any(holds_expression),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Whether a text waits for a value that Fuel's orchestrator would put in: run as it is, it would name a file
/// `{CLUSTER_ID}`.
fn holds_placeholder(value: &Value) -> bool {
    match value {
        Value::String(text) => PLACEHOLDERS.iter().any(|name| text.contains(name)),
        Value::Object(map) => map.values().any(holds_placeholder),
        Value::Array(items) => items.iter().any(holds_placeholder),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn role_name(field: &str, text: &str) -> Result<Name, FuelError> {
    Name::new(text).map_err(|reason| FuelError::Name { field: field.to_owned(), reason })
}

fn tag_name(field: &str, text: &str) -> Result<TagName, FuelError> {
    TagName::new(text).map_err(|reason| FuelError::Name { field: field.to_owned(), reason })
}

fn wrong(field: &str, reason: &str) -> FuelError {
    FuelError::Field { field: field.to_owned(), reason: reason.to_owned() }
}
