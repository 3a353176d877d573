//! The registry of task types: the parameters of each type, which of these are templates, and how it behaves on a host.
//!
//! The parser, the search for references, the documentation and the agent's dispatch are derived from this one table. A
//! task of a type that is not here is stored and resolved, with a finding. Agents report it as `unsupported`.

use serde_json::{Map, Value};

use super::claim::PathContent;
use super::parameter_type::NamedResource;
use super::parameters::{FileParameters, Parameter, ParameterTable, ShellParameters, TEMPLATE_FILE, TypedParameters};
use crate::condition::{AuthorError, TemplateParser, TemplateReads};

/// One task type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskType {
    /// The type as an enum, for the agent's dispatch.
    pub kind: TaskKind,
    /// The name in `type`.
    pub name: &'static str,
    /// Fuel's names for the type.
    pub aliases: &'static [&'static str],
    /// What a task of the type does, in one line.
    pub summary: &'static str,
    /// The parameters whose texts are templates. In lists and maps, the texts at any depth are templates.
    pub templates: &'static [&'static str],
    /// The parameters of the type. `None` if no agent of this version runs the type. They are not checked then.
    pub parameters: Option<&'static ParameterTable>,
    /// The parameters that define the path that it writes, if it writes one. No other task of the host may write to
    /// that path.
    pub writes: Option<WriteTarget>,
    /// Whether other tasks may run on the host at the same time.
    pub exclusive: Exclusive,
    /// True if the type only marks a place in the order and runs nothing.
    pub is_marker: bool,
}

/// The parameters that define the path that a type writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteTarget {
    /// The parameter with the path.
    pub path: &'static str,
    /// The parameter that is true if there must be no file.
    pub absent: &'static str,
}

/// Whether a task shares its host with other tasks while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusive {
    /// Other tasks may run at the same time.
    Shared,
    /// No other task may run at the same time.
    Alone,
}

/// Defines the enum of task types and the table of their properties from the same rows, so that neither lacks a type.
macro_rules! task_types {
    ($($kind:ident $summary:literal: $row:expr;)*) => {
        /// A task type of the registry.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum TaskKind {
            $(#[doc = $summary] $kind,)*
        }

        /// Every task type that this version knows.
        pub const TASK_TYPES: &[TaskType] =
            &[$(TaskType { kind: TaskKind::$kind, summary: $summary, ..$row },)*];
    };
}

/// Returns the row of a type that may run at the same time as other tasks.
const fn ordinary_type(name: &'static str, templates: &'static [&'static str]) -> TaskType {
    let (kind, exclusive, marker) = (TaskKind::Skipped, Exclusive::Shared, false);
    TaskType { kind, name, aliases: &[], summary: "", templates, parameters: None, writes: None, exclusive, is_marker: marker }
}

/// Returns the row of a type that runs alone on its host.
const fn exclusive_type(name: &'static str, templates: &'static [&'static str]) -> TaskType {
    TaskType { exclusive: Exclusive::Alone, ..ordinary_type(name, templates) }
}

/// Returns the row of a type that runs nothing.
const fn marker_type(name: &'static str) -> TaskType {
    TaskType { is_marker: true, ..ordinary_type(name, &[]) }
}

task_types! {
    File "a file from content, a template or a blob": TaskType {
        aliases: &["upload_file", "upload_files"],
        parameters: Some(&FileParameters::TABLE),
        writes: Some(WriteTarget { path: "path", absent: "absent" }),
        ..ordinary_type("file", &["path", "template", "validate"])
    };
    CopyFiles "files of the release, copied to the host": ordinary_type("copy_files", &[]);
    Sync "a directory tree, with delete": ordinary_type("sync", &["dst"]);
    Shell "a command without a shell, or a shell text": TaskType {
        parameters: Some(&ShellParameters::TABLE),
        ..ordinary_type("shell", &["command", "script", "creates", "unless", "only_if", "cwd", "env"])
    };
    Service "a systemd unit: enabled, masked, running": ordinary_type("service", &["unit"]);
    Package "a package by apt or dnf: present, absent, a version": exclusive_type("package", &["name", "version"]);
    User "a system user": ordinary_type("user", &["name", "home", "shell", "comment", "groups"]);
    GroupAccount "a system group": ordinary_type("group_account", &["name"]);
    Puppet "a manifest, run by the host's own puppet apply":
        exclusive_type("puppet", &["puppet_manifest", "puppet_modules", "hiera"]);
    Reboot "a reboot, always or when required": exclusive_type("reboot", &[]);
    Stage "a point that all nodes meet at": marker_type("stage");
    Group "tasks that are placed together": marker_type("group");
    Skipped "a place in the order that does nothing": marker_type("skipped");
}

/// Returns the type with this name or alias.
pub fn task_type(name: &str) -> Option<&'static TaskType> {
    TASK_TYPES.iter().find(|t| t.name == name || t.aliases.contains(&name))
}

/// The fields of a `shell` task that are shell texts, unless they are lists.
const SHELL_TEXT_FIELDS: &[&str] = &["parameters.script", "parameters.unless", "parameters.only_if"];

/// A text of a task that is a template, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateText<'a> {
    /// The path of the parameter, such as `parameters.command[2]`.
    pub path: String,
    /// The text.
    pub text: &'a str,
    /// True if all users of the host can see the rendered text: it is the name of a file, or an argument of a process.
    pub is_exposed: bool,
}

/// A text that names a resource on the host, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceText<'a> {
    /// The field, such as `parameters.command[0]`.
    pub field: String,
    /// The text.
    pub text: &'a str,
    /// The resource that it names.
    pub resource: NamedResource,
}

impl TaskType {
    /// Returns the parameters that a manifest may contain, or `None` if no agent of this version runs the type. If the
    /// type has a `template`, this includes `template_file`, which the command replaces by the text of that file.
    pub fn manifest_parameters(&self) -> Option<Vec<Parameter>> {
        let parameters = self.parameters?.0;
        let has_template = parameters.iter().any(|parameter| parameter.name == "template");
        Some(parameters.iter().copied().chain(has_template.then_some(TEMPLATE_FILE)).collect())
    }

    /// Returns the path that a task of this type writes, as its author wrote it, and the content that the task leaves
    /// there. Returns `None` if the task writes none.
    pub fn written_path<'a>(&self, parameters: &'a Map<String, Value>) -> Option<(&'a str, PathContent)> {
        let writes = self.writes?;
        let is_absent = parameters.get(writes.absent) == Some(&Value::Bool(true));
        let content = if is_absent { PathContent::Absent } else { PathContent::File };
        Some((parameters.get(writes.path)?.as_str()?, content))
    }

    /// Returns the texts that name paths and programs of the host, in the order of the parameters, as the types of the
    /// parameters define. The path that the task writes is not included.
    pub fn resource_texts<'a>(&self, parameters: &'a Map<String, Value>) -> impl Iterator<Item = ResourceText<'a>> + use<'a> {
        let table = self.parameters;
        parameters.iter().filter_map(move |(name, value)| {
            let (suffix, text, names) = table?.get(name)?.parameter_type.resource_name(value)?;
            Some(ResourceText { field: format!("parameters.{name}{suffix}"), text, resource: names })
        })
    }

    /// Parses a template of a task of this type and returns what it reads. In a shell text, values must be at a place
    /// where they can be quoted.
    ///
    /// # Errors
    /// [`AuthorError`], as for [`TemplateParser`].
    pub(crate) fn read_template(
        &self,
        template: &TemplateText<'_>,
        parser: &dyn TemplateParser,
    ) -> Result<TemplateReads, AuthorError> {
        let is_script = self.name == "shell" && SHELL_TEXT_FIELDS.contains(&template.path.as_str());
        if is_script { parser.parse_script(template.text) } else { parser.parse_template(template.text) }
    }

    /// Returns the texts in `parameters` that are templates, in the order of the parameters.
    pub fn template_texts<'a>(&self, parameters: &'a Map<String, Value>) -> Vec<TemplateText<'a>> {
        let mut found = Vec::new();
        for (name, value) in parameters {
            if self.templates.contains(&name.as_str()) {
                let parameter = self.parameters.and_then(|table| table.get(name));
                let is_shown = parameter.is_some_and(|known| known.parameter_type.is_exposed(value));
                collect_texts(value, format!("parameters.{name}"), is_shown, &mut found);
            }
        }
        found
    }
}

/// Collects the texts in a value, at any depth, each with its path.
fn collect_texts<'a>(value: &'a Value, path: String, is_shown: bool, found: &mut Vec<TemplateText<'a>>) {
    match value {
        Value::String(text) => found.push(TemplateText { path, text, is_exposed: is_shown }),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| collect_texts(item, format!("{path}[{at}]"), is_shown, found));
        }
        Value::Object(map) => {
            map.iter().for_each(|(key, item)| collect_texts(item, format!("{path}.{key}"), is_shown, found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::parameter_type::ParameterType;
    use super::*;

    #[test]
    fn task_type_is_found_by_name_or_alias() {
        for (name, found) in
            [("file", Some("file")), ("upload_file", Some("file")), ("upload_files", Some("file")), ("teapot", None)]
        {
            assert_eq!(task_type(name).map(|t| t.name), found);
        }
    }

    #[test]
    fn y01_written_path_reads_path_parameters_of_type() {
        let parameters = json!({"path": "/z", "absent": true, "creates": "/y", "dst": "/x"});
        let found = |kind: &str| task_type(kind).unwrap().written_path(parameters.as_object().unwrap());
        for kind in ["file", "upload_file"] {
            assert_eq!(found(kind), Some(("/z", PathContent::Absent)), "{kind}");
        }
        assert_eq!(found("shell"), None, "`creates` is looked at");
        for given in [json!({"path": "/z"}), json!({"path": "/z", "absent": false}), json!({"path": "/z", "absent": null})] {
            assert_eq!(task_type("file").unwrap().written_path(given.as_object().unwrap()), Some(("/z", PathContent::File)));
        }
        for types in TASK_TYPES {
            let is_known = |name| types.parameters.is_none_or(|takes| takes.get(name).is_some());
            assert!(types.writes.is_none_or(|writes| is_known(writes.path) && is_known(writes.absent)), "{}", types.name);
        }
    }

    /// A host rejects an unusable rendered text of each parameter that is a path or a program, so all of these must be
    /// listed.
    #[test]
    fn y09_resource_texts_lists_texts_naming_host_paths_and_programs() {
        let parameters = json!({"path": "/z", "validate": ["v", "%s"], "command": ["c", "d"], "script": "s", "creates": "/y", "cwd": "/x",
            "unless": "test -e /u", "only_if": ["o"], "env": {"A": "/e"}, "user": "root"});
        let found = |kind: &str| {
            let named = task_type(kind).unwrap().resource_texts(parameters.as_object().unwrap());
            named.map(|one| (one.field, one.text, one.resource)).collect::<Vec<_>>()
        };
        let of = |field: &str, text, names| (format!("parameters.{field}"), text, names);
        assert_eq!(found("upload_file"), [of("validate[0]", "v", NamedResource::Program)]);
        assert_eq!(
            found("shell"),
            [
                of("command[0]", "c", NamedResource::Program),
                of("creates", "/y", NamedResource::Path),
                of("cwd", "/x", NamedResource::Directory),
                of("only_if[0]", "o", NamedResource::Program),
            ]
        );
        for types in TASK_TYPES {
            for one in types.parameters.map(|takes| takes.0).unwrap_or_default() {
                let is_written = types.writes.is_some_and(|writes| writes.path == one.name);
                assert_eq!(
                    one.parameter_type == ParameterType::File,
                    is_written,
                    "{} {}: a file is put at the task's path",
                    types.name,
                    one.name
                );
            }
        }
    }

    #[test]
    fn template_texts_are_found_at_any_depth_except_content() {
        let parameters = json!({"command": ["echo", "{{ labels.a }}"], "env": {"X": "{{ labels.b }}"}, "user": "{{ no }}"});
        let found = task_type("shell").unwrap().template_texts(parameters.as_object().unwrap());
        let paths: Vec<_> = found.iter().map(|t| t.path.as_str()).collect();
        assert_eq!(paths, ["parameters.command[0]", "parameters.command[1]", "parameters.env.X"]);
    }
}
