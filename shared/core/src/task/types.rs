//! The registry of task types: the parameters of each type, which of these are templates, and the behaviour of the type
//! on a host.
//!
//! The parser, the search for references, the documentation and the agent's dispatch are derived from this one table. A
//! new task whose type is not in the table is refused, except in an import of a Fuel release. A stored task of such a
//! type is placed, with a finding, and agents report it as `unsupported`.

use serde_json::{Map, Value};

use super::account_parameters::{GroupAccountParameters, UserParameters, group_contradictions, user_contradictions};
use super::claim::PathContent;
use super::examples;
use super::package_rules::package_contradictions;
use super::parameter_type::NamedResource;
use super::parameter_values::is_true;
use super::parameters::{FileParameters, Parameter, ParameterTable, ShellParameters, TEMPLATE_FILE, TypedParameters};
use super::run_parameters::{MODULES_DIR, PuppetParameters, RebootParameters, puppet_contradictions};
use super::system_parameters::{
    CopyFilesParameters, DirectoryParameters, LinkParameters, PackageParameters, SOURCE_DIR, ServiceParameters, SyncParameters,
    service_contradictions,
};
use super::tree_rules::{directory_contradictions, link_contradictions, sync_contradictions};
use crate::condition::{AuthorError, TemplateParser, TemplateReads};

/// The properties of one task type: a row of the registry.
#[derive(Clone, Copy, Debug)]
pub struct TaskType {
    /// The type as an enum, for the agent's dispatch.
    pub kind: TaskKind,
    /// The name of the type in the field `type` of a task.
    pub name: &'static str,
    /// Fuel's names for the type.
    pub aliases: &'static [&'static str],
    /// The effect of a task of the type, in one line.
    pub summary: &'static str,
    /// The parameters whose texts are templates. In lists and maps, the texts at any depth are templates.
    pub templates: &'static [&'static str],
    /// The parameters of the type. `None` if its tasks run nothing (`is_marker`). Only templates and numbers in the parameters
    /// of its tasks are then checked.
    pub parameters: Option<&'static ParameterTable>,
    /// The parameter that only manifests have, and the name of the parameter by which the CLI replaces it. `None` if
    /// the type has no such parameter.
    pub manifest_only: Option<(Parameter, &'static str)>,
    /// The names of the parameters with the path that a task of the type writes. `None` if the type writes no path
    /// or several. No other task of the host may write to that path.
    pub write_target: Option<WriteTarget>,
    /// The objects that tasks of the type manage by a name, such as packages. `None` if there are none.
    pub named_object: Option<NamedObject>,
    /// The rule whether other tasks may run on the host at the same time.
    pub concurrency: Concurrency,
    /// True if a task of the type runs nothing and only orders or places other tasks.
    pub is_marker: bool,
    /// True if a task of the type acts again (runs, restarts) when a task that it subscribes to has changed something. For
    /// other types, `subscribes` only orders the tasks.
    pub is_refreshed: bool,
    /// The rule about parameters that contradict or need each other. `None` if all valid parameters can be combined.
    pub combination_rule: Option<CombinationRule>,
    /// A task of the type as an example for the documentation, in YAML. Empty if `parameters` is `None`.
    pub example: &'static str,
}

/// A rule about the parameters of a task that contradict or need each other. Returns an error for each contradiction, as
/// the path of the field and a message. The controller checks the rule when a task is written, and hosts check it again.
pub type CombinationRule = fn(&Map<String, Value>) -> Vec<(String, String)>;

/// The names of the parameters that define the path that a task writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteTarget {
    /// The name of the parameter with the path.
    pub path: &'static str,
    /// The name of the parameter that is true if the task deletes the file. `None` if no task of the type deletes it.
    pub absent: Option<&'static str>,
    /// The content of the path, if the task does not delete it.
    pub content: PathContent,
}

/// The objects that the tasks of a type manage by a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedObject {
    /// The word for one object in messages, such as `package`.
    pub noun: &'static str,
    /// The name and the alias of the parameter with the name of the object, or with a list of names.
    pub name_parameters: &'static [&'static str],
    /// The parameters that define the state of the object. Two tasks contradict each other if they give one of them
    /// different values. The other parameters define how a change is made, or only limit the state.
    pub state_parameters: &'static [&'static str],
}

/// The rule whether a task shares its host with other tasks while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// Other tasks may run on the host at the same time.
    Shared,
    /// No other task may run on the host at the same time.
    Alone,
}

/// Defines the enum [`TaskKind`] and the table [`TASK_TYPES`] from the same rows, so that both have all types. The
/// macro sets `kind` and `summary` of each row.
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

/// Returns the row of a type whose tasks may run at the same time as other tasks. The macro `task_types` replaces
/// `kind` and `summary`.
const fn ordinary_type(name: &'static str, templates: &'static [&'static str]) -> TaskType {
    TaskType {
        kind: TaskKind::Skipped,
        name,
        aliases: &[],
        summary: "",
        templates,
        parameters: None,
        manifest_only: None,
        write_target: None,
        named_object: None,
        concurrency: Concurrency::Shared,
        is_marker: false,
        is_refreshed: false,
        combination_rule: None,
        example: "",
    }
}

/// Returns the row of a type whose tasks run alone on their host.
const fn exclusive_type(name: &'static str, templates: &'static [&'static str]) -> TaskType {
    TaskType { concurrency: Concurrency::Alone, ..ordinary_type(name, templates) }
}

/// Returns the row of a type whose tasks run nothing and only order or place other tasks.
const fn marker_type(name: &'static str) -> TaskType {
    TaskType { is_marker: true, ..ordinary_type(name, &[]) }
}

task_types! {
    File "a file from content, a template or a blob": TaskType {
        aliases: &["upload_file", "upload_files"],
        parameters: Some(&FileParameters::TABLE),
        manifest_only: Some((TEMPLATE_FILE, "template")),
        write_target: Some(WriteTarget { path: "path", absent: Some("absent"), content: PathContent::File }),
        example: examples::FILE,
        ..ordinary_type("file", &["path", "template", "validate"])
    };
    CopyFiles "copies of files, from blobs or from the host": TaskType {
        parameters: Some(&CopyFilesParameters::TABLE),
        example: examples::COPY_FILES,
        ..ordinary_type("copy_files", &["files"])
    };
    Directory "a directory: owner and mode, or its removal": TaskType {
        parameters: Some(&DirectoryParameters::TABLE),
        write_target: Some(WriteTarget { path: "path", absent: Some("absent"), content: PathContent::Directory }),
        combination_rule: Some(directory_contradictions),
        example: examples::DIRECTORY,
        ..ordinary_type("directory", &["path"])
    };
    Link "a symbolic link": TaskType {
        parameters: Some(&LinkParameters::TABLE),
        write_target: Some(WriteTarget { path: "path", absent: Some("absent"), content: PathContent::Link }),
        combination_rule: Some(link_contradictions),
        example: examples::LINK,
        ..ordinary_type("link", &["path", "target"])
    };
    Sync "a directory tree, from blobs or from the host": TaskType {
        parameters: Some(&SyncParameters::TABLE),
        manifest_only: Some((SOURCE_DIR, "files")),
        write_target: Some(WriteTarget { path: "dst", absent: None, content: PathContent::Directory }),
        combination_rule: Some(sync_contradictions),
        example: examples::SYNC,
        ..ordinary_type("sync", &["dst", "src"])
    };
    Shell "a command without a shell, or a shell text": TaskType {
        parameters: Some(&ShellParameters::TABLE),
        is_refreshed: true,
        example: examples::SHELL,
        ..ordinary_type("shell", &["command", "script", "creates", "unless", "only_if", "cwd", "env"])
    };
    Service "a systemd unit: enabled, masked, running": TaskType {
        parameters: Some(&ServiceParameters::TABLE),
        named_object: Some(NamedObject {
            noun: "unit",
            name_parameters: &["unit", "name"],
            state_parameters: &["state", "enabled", "masked"],
        }),
        combination_rule: Some(service_contradictions),
        is_refreshed: true,
        example: examples::SERVICE,
        ..ordinary_type("service", &["unit"])
    };
    Package "packages by apt or dnf: present, absent, a version": TaskType {
        parameters: Some(&PackageParameters::TABLE),
        named_object: Some(NamedObject {
            noun: "package",
            name_parameters: &["name"],
            state_parameters: &["absent", "version", "min_version", "hold"],
        }),
        combination_rule: Some(package_contradictions),
        example: examples::PACKAGE,
        ..exclusive_type("package", &["name", "version", "min_version"])
    };
    User "a user account of the system": TaskType {
        parameters: Some(&UserParameters::TABLE),
        named_object: Some(NamedObject {
            noun: "user",
            name_parameters: &["name"],
            state_parameters: &["absent", "uid", "group", "home", "shell", "comment", "locked", "groups", "exact_groups"],
        }),
        combination_rule: Some(user_contradictions),
        example: examples::USER,
        ..ordinary_type("user", &["name", "home", "shell", "comment", "groups"])
    };
    GroupAccount "a group of the system": TaskType {
        parameters: Some(&GroupAccountParameters::TABLE),
        named_object: Some(NamedObject {
            noun: "group",
            name_parameters: &["name"],
            state_parameters: &["absent", "gid"],
        }),
        combination_rule: Some(group_contradictions),
        example: examples::GROUP_ACCOUNT,
        ..ordinary_type("group_account", &["name"])
    };
    Puppet "a manifest, run by the host's own puppet apply": TaskType {
        parameters: Some(&PuppetParameters::TABLE),
        manifest_only: Some((MODULES_DIR, "modules")),
        combination_rule: Some(puppet_contradictions),
        is_refreshed: true,
        example: examples::PUPPET,
        ..exclusive_type("puppet", &["puppet_manifest", "hiera", "facts", "cwd"])
    };
    Reboot "a reboot that an operator starts, asked for always or when required": TaskType {
        parameters: Some(&RebootParameters::TABLE),
        is_refreshed: true,
        example: examples::REBOOT,
        ..exclusive_type("reboot", &[])
    };
    Stage "a point in the order of tasks that all nodes share": marker_type("stage");
    Group "tasks that are placed together": marker_type("group");
    Skipped "a place in the order that does nothing": marker_type("skipped");
}

/// Returns the row of the type with this name or Fuel name, or `None` if the type is unknown.
pub fn task_type(name: &str) -> Option<&'static TaskType> {
    TASK_TYPES.iter().find(|entry| entry.name == name || entry.aliases.contains(&name))
}

/// The paths of the parameters of a `shell` task that are templates of shell texts. The guards `unless` and `only_if`
/// can also be lists, whose items are no shell texts and have other paths, such as `parameters.unless[0]`.
const SHELL_TEXT_FIELDS: &[&str] = &["parameters.script", "parameters.unless", "parameters.only_if"];

/// A text of a task that is a template, with the path of its parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateText<'a> {
    /// The path of the parameter, such as `parameters.command[2]`.
    pub path: String,
    /// The template as its author wrote it.
    pub text: &'a str,
    /// True if all users of the host can see the rendered text, because it names a file or is an argument of a process.
    pub is_exposed: bool,
}

/// A text that names a path or program on the host, with the path of its parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceText<'a> {
    /// The path of the parameter, such as `parameters.command[0]`.
    pub field: String,
    /// The text, which may be a template.
    pub text: &'a str,
    /// The kind of resource that the text names.
    pub resource: NamedResource,
}

impl TaskType {
    /// Returns the parameters that a manifest may contain, or `None` if the type has no table of parameters
    /// (`parameters`).
    pub fn manifest_parameters(&self) -> Option<Vec<Parameter>> {
        let manifest_only = self.manifest_only.map(|(parameter, _)| parameter);
        Some(self.parameters?.0.iter().copied().chain(manifest_only).collect())
    }

    /// Returns the errors of parameters that contradict or need each other (`combination_rule`), each as the path of the
    /// field and a message.
    pub fn combination_errors(&self, parameters: &Map<String, Value>) -> Vec<(String, String)> {
        self.combination_rule.map(|rule| rule(parameters)).unwrap_or_default()
    }

    /// Returns the path that a task of this type writes, as its author wrote it, and whether a file is there after the
    /// task has run. Returns `None` if the type has no `write_target`, or if the task has no path that is a text.
    pub fn written_path<'a>(&self, parameters: &'a Map<String, Value>) -> Option<(&'a str, PathContent)> {
        let write_target = self.write_target?;
        let content = if write_target.absent.is_some_and(|absent| is_true(parameters, absent)) {
            PathContent::Absent
        } else if self.kind == TaskKind::Sync && is_true(parameters, "delete") {
            PathContent::Tree
        } else {
            write_target.content
        };
        Some((parameters.get(write_target.path)?.as_str()?, content))
    }

    /// Returns the field of the path that a task of this type writes, such as `parameters.path`.
    pub const fn path_field(&self) -> &'static str {
        match self.kind {
            TaskKind::Sync => "parameters.dst",
            TaskKind::CopyFiles => "parameters.files",
            _ => "parameters.path",
        }
    }

    /// Returns the texts in `parameters` that name paths and programs of the host, in the order of the parameters. The
    /// path that the task writes is not included.
    pub fn resource_texts<'a>(&self, parameters: &'a Map<String, Value>) -> impl Iterator<Item = ResourceText<'a>> + use<'a> {
        let table = self.parameters;
        parameters.iter().filter_map(move |(name, value)| {
            let (suffix, text, resource) = table?.get(name)?.parameter_type.resource_name(value)?;
            Some(ResourceText { field: format!("parameters.{name}{suffix}"), text, resource })
        })
    }

    /// Parses a template of a task of this type and returns the values that the template reads. A shell text is parsed
    /// by stricter rules, because each value in it must be at a place where it can be quoted.
    ///
    /// # Errors
    /// Fails with [`AuthorError`] if the text is not a valid template.
    pub(crate) fn read_template(
        &self,
        template: &TemplateText<'_>,
        parser: &dyn TemplateParser,
    ) -> Result<TemplateReads, AuthorError> {
        let is_script = self.kind == TaskKind::Shell && SHELL_TEXT_FIELDS.contains(&template.path.as_str());
        if is_script { parser.parse_script(template.text) } else { parser.parse_template(template.text) }
    }

    /// Returns the texts in `parameters` that are templates, in the order of the parameters.
    pub fn template_texts<'a>(&self, parameters: &'a Map<String, Value>) -> Vec<TemplateText<'a>> {
        let mut texts = Vec::new();
        for (name, value) in parameters {
            if self.templates.contains(&name.as_str()) {
                let parameter = self.parameters.and_then(|table| table.get(name));
                let is_exposed = parameter.is_some_and(|parameter| parameter.parameter_type.is_exposed(value));
                add_texts(value, format!("parameters.{name}"), is_exposed, &mut texts);
            }
        }
        texts
    }
}

/// Adds the texts in a value to `texts`, at any depth of lists and maps, each with its path. `path` is the path of the
/// value, and `is_exposed` is stored with each text.
fn add_texts<'a>(value: &'a Value, path: String, is_exposed: bool, texts: &mut Vec<TemplateText<'a>>) {
    match value {
        Value::String(text) => texts.push(TemplateText { path, text, is_exposed }),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| add_texts(item, format!("{path}[{index}]"), is_exposed, texts));
        }
        Value::Object(map) => {
            map.iter().for_each(|(key, item)| add_texts(item, format!("{path}.{key}"), is_exposed, texts));
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
        for (name, expected_name) in
            [("file", Some("file")), ("upload_file", Some("file")), ("upload_files", Some("file")), ("teapot", None)]
        {
            assert_eq!(task_type(name).map(|entry| entry.name), expected_name);
        }
    }

    #[test]
    fn y01_written_path_reads_path_parameters_of_type() {
        let parameters = json!({"path": "/z", "absent": true, "creates": "/y", "dst": "/x"});
        let written_path = |kind: &str| task_type(kind).unwrap().written_path(parameters.as_object().unwrap());
        for kind in ["file", "upload_file"] {
            assert_eq!(written_path(kind), Some(("/z", PathContent::Absent)), "{kind}");
        }
        assert_eq!(written_path("directory"), Some(("/z", PathContent::Absent)));
        let link_parameters = json!({"path": "/z", "target": "/y"});
        let link_path = task_type("link").unwrap().written_path(link_parameters.as_object().unwrap());
        assert_eq!(link_path, Some(("/z", PathContent::Link)));
        assert_eq!(written_path("shell"), None, "the parameter `creates` is not a written path");
        // The task deletes the file only if `absent` is true.
        for file_parameters in
            [json!({"path": "/z"}), json!({"path": "/z", "absent": false}), json!({"path": "/z", "absent": null})]
        {
            assert_eq!(
                task_type("file").unwrap().written_path(file_parameters.as_object().unwrap()),
                Some(("/z", PathContent::File))
            );
        }
        // Each type whose tasks write a path has the two parameters that define the path.
        for task_type_entry in TASK_TYPES {
            let has_parameter = |name| task_type_entry.parameters.is_none_or(|table| table.get(name).is_some());
            assert!(
                task_type_entry
                    .write_target
                    .is_none_or(|target| has_parameter(target.path) && target.absent.is_none_or(has_parameter)),
                "{}",
                task_type_entry.name
            );
        }
    }

    /// A host rejects an invalid path or program after it has rendered the text. So the controller must know all
    /// parameters that are paths or programs.
    #[test]
    fn y09_resource_texts_lists_texts_naming_host_paths_and_programs() {
        let parameters = json!({"path": "/z", "validate": ["v", "%s"], "command": ["c", "d"], "script": "s", "creates": "/y", "cwd": "/x",
            "unless": "test -e /u", "only_if": ["o"], "env": {"A": "/e"}, "user": "root"});
        let find_texts = |kind: &str| {
            let texts = task_type(kind).unwrap().resource_texts(parameters.as_object().unwrap());
            texts.map(|resource_text| (resource_text.field, resource_text.text, resource_text.resource)).collect::<Vec<_>>()
        };
        let expected_text = |field: &str, text, resource| (format!("parameters.{field}"), text, resource);
        assert_eq!(find_texts("upload_file"), [expected_text("validate[0]", "v", NamedResource::Program)]);
        assert_eq!(
            find_texts("shell"),
            [
                expected_text("command[0]", "c", NamedResource::Program),
                expected_text("creates", "/y", NamedResource::Path),
                expected_text("cwd", "/x", NamedResource::Directory),
                expected_text("only_if[0]", "o", NamedResource::Program),
            ]
        );
        // The path that a task writes is the only parameter of type `File`. Other code checks this path.
        for task_type_entry in TASK_TYPES {
            for parameter in task_type_entry.parameters.map(|table| table.0).unwrap_or_default() {
                let is_written = task_type_entry.write_target.is_some_and(|target| target.path == parameter.name);
                assert_eq!(
                    parameter.parameter_type == ParameterType::File,
                    is_written,
                    "{} {}: the type is File exactly for the written path",
                    task_type_entry.name,
                    parameter.name
                );
            }
        }
    }

    /// The parameter `user` is not a template, so its text is not found.
    #[test]
    fn template_texts_are_found_at_any_depth_of_template_parameters() {
        let parameters = json!({"command": ["echo", "{{ labels.a }}"], "env": {"X": "{{ labels.b }}"}, "user": "{{ no }}"});
        let texts = task_type("shell").unwrap().template_texts(parameters.as_object().unwrap());
        let paths: Vec<_> = texts.iter().map(|template_text| template_text.path.as_str()).collect();
        assert_eq!(paths, ["parameters.command[0]", "parameters.command[1]", "parameters.env.X"]);
    }
}
