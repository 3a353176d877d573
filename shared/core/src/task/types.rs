//! The registry of task types: what each takes, which of that is a template, and how it behaves on a host.
//!
//! One table, from which the parser, the reference walk, the documents and the agent's dispatch are derived. A type
//! that is not here is kept and resolved (an agent says `unsupported`), with a finding.

use serde_json::{Map, Value};

use super::claim::Leaves;
use super::form::Names;
use super::parameters::{FileParameters, Parameter, Parameters, ShellParameters, TEMPLATE_FILE, TypedParameters};
use crate::condition::{Author, AuthorError, TemplateReads};

/// One task type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskType {
    /// Which type it is: what a dispatch matches on.
    pub kind: TaskKind,
    /// The name in `type`.
    pub name: &'static str,
    /// Other names of it, Fuel's.
    pub aliases: &'static [&'static str],
    /// What it does, in one line.
    pub summary: &'static str,
    /// The parameters whose texts are templates, at any depth below them (lists and maps are walked).
    pub templates: &'static [&'static str],
    /// What it takes; `None` where no agent of this version runs it, so that nothing is judged.
    pub parameters: Option<&'static Parameters>,
    /// The path that it writes, if it writes one: no other task of the host may write there.
    pub writes: Option<Writes>,
    /// Whether it is alone on its host while it runs.
    pub exclusive: Exclusive,
    /// Whether it stands on a host at all, or only marks a place in the order.
    pub marker: bool,
}

/// The parameters that say which path a type writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writes {
    /// The path.
    pub path: &'static str,
    /// Whether nothing is to stand there.
    pub absent: &'static str,
}

/// Whether a type shares its host while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusive {
    /// Others may run beside it.
    Shared,
    /// Nothing runs beside it.
    Alone,
}

/// The enum of the types and the table of them, row by row: neither has one that the other lacks.
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

const fn plain(name: &'static str, templates: &'static [&'static str]) -> TaskType {
    let (kind, exclusive, marker) = (TaskKind::Skipped, Exclusive::Shared, false);
    TaskType { kind, name, aliases: &[], summary: "", templates, parameters: None, writes: None, exclusive, marker }
}

const fn alone(name: &'static str, templates: &'static [&'static str]) -> TaskType {
    TaskType { exclusive: Exclusive::Alone, ..plain(name, templates) }
}

const fn marker(name: &'static str) -> TaskType {
    TaskType { marker: true, ..plain(name, &[]) }
}

task_types! {
    File "a file from content, a template or a blob": TaskType {
        aliases: &["upload_file", "upload_files"],
        parameters: Some(&FileParameters::TAKES),
        writes: Some(Writes { path: "path", absent: "absent" }),
        ..plain("file", &["path", "template", "validate"])
    };
    CopyFiles "files of the release, copied to the host": plain("copy_files", &[]);
    Sync "a directory tree, with delete": plain("sync", &["dst"]);
    Shell "a command without a shell, or a shell text": TaskType {
        parameters: Some(&ShellParameters::TAKES),
        ..plain("shell", &["command", "script", "creates", "unless", "only_if", "cwd", "env"])
    };
    Service "a systemd unit: enabled, masked, running": plain("service", &["unit"]);
    Package "a package by apt or dnf: present, absent, a version": alone("package", &["name", "version"]);
    User "a system user": plain("user", &["name", "home", "shell", "comment", "groups"]);
    GroupAccount "a system group": plain("group_account", &["name"]);
    Puppet "a manifest, run by the host's own puppet apply":
        alone("puppet", &["puppet_manifest", "puppet_modules", "hiera"]);
    Reboot "a reboot, always or when required": alone("reboot", &[]);
    Stage "a point that all nodes meet at": marker("stage");
    Group "tasks that are placed together": marker("group");
    Skipped "a place in the order that does nothing": marker("skipped");
}

/// The type of that name or alias.
pub fn task_type(name: &str) -> Option<&'static TaskType> {
    TASK_TYPES.iter().find(|t| t.name == name || t.aliases.contains(&name))
}

/// The parameters of a `shell` task that are texts for sh, if they are texts.
const SHELL_TEXTS: &[&str] = &["parameters.script", "parameters.unless", "parameters.only_if"];

/// A text of a task that is a template, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateText<'a> {
    /// The path of the parameter, as `parameters.command[2]`.
    pub path: String,
    /// The text.
    pub text: &'a str,
    /// Whether everyone on a host sees what it becomes: the name of a file, or an argument of a process.
    pub is_shown: bool,
}

/// A text by which a task names something on its host, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameText<'a> {
    /// The field, as `parameters.command[0]`.
    pub field: String,
    /// The text.
    pub text: &'a str,
    /// What it names.
    pub names: Names,
}

impl TaskType {
    /// What a manifest may say in `parameters`, where an agent of this version runs the type: what it takes, and the
    /// template's file, from which the command makes the template.
    pub fn written(&self) -> Option<Vec<Parameter>> {
        let parameters = self.parameters?.0;
        let has_template = parameters.iter().any(|one| one.name == "template");
        Some(parameters.iter().copied().chain(has_template.then_some(TEMPLATE_FILE)).collect())
    }

    /// The path that a task of this type writes, as its author wrote it, and what it leaves there; `None`: it writes none.
    pub fn path<'a>(&self, parameters: &'a Map<String, Value>) -> Option<(&'a str, Leaves)> {
        let writes = self.writes?;
        let is_absent = parameters.get(writes.absent) == Some(&Value::Bool(true));
        let leaves = if is_absent { Leaves::Nothing } else { Leaves::File };
        Some((parameters.get(writes.path)?.as_str()?, leaves))
    }

    /// The texts by which a task of this type names paths and programs of its host, besides the path that it writes, in the order of the
    /// parameters. The form of a parameter says so.
    pub fn names<'a>(&self, parameters: &'a Map<String, Value>) -> impl Iterator<Item = NameText<'a>> + use<'a> {
        let takes = self.parameters;
        parameters.iter().filter_map(move |(name, value)| {
            let (behind, text, names) = takes?.find(name)?.form.named(value)?;
            Some(NameText { field: format!("parameters.{name}{behind}"), text, names })
        })
    }

    /// What a template of a task of this type reads. In a text for sh a value is quoted for its place.
    ///
    /// # Errors
    /// [`AuthorError`] as [`Author`] has it.
    pub(crate) fn read(&self, template: &TemplateText<'_>, author: &dyn Author) -> Result<TemplateReads, AuthorError> {
        let is_script = self.name == "shell" && SHELL_TEXTS.contains(&template.path.as_str());
        if is_script { author.script(template.text) } else { author.template(template.text) }
    }

    /// The texts among `parameters` that are templates, in the order of the parameters.
    pub fn template_texts<'a>(&self, parameters: &'a Map<String, Value>) -> Vec<TemplateText<'a>> {
        let mut found = Vec::new();
        for (name, value) in parameters {
            if self.templates.contains(&name.as_str()) {
                let known = self.parameters.and_then(|takes| takes.find(name));
                let is_shown = known.is_some_and(|known| known.form.is_shown(value));
                collect(value, format!("parameters.{name}"), is_shown, &mut found);
            }
        }
        found
    }
}

fn collect<'a>(value: &'a Value, path: String, is_shown: bool, found: &mut Vec<TemplateText<'a>>) {
    match value {
        Value::String(text) => found.push(TemplateText { path, text, is_shown }),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| collect(item, format!("{path}[{at}]"), is_shown, found));
        }
        Value::Object(map) => {
            map.iter().for_each(|(key, item)| collect(item, format!("{path}.{key}"), is_shown, found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::form::Form;
    use super::*;

    #[test]
    fn a_name_or_an_alias_finds_its_type() {
        for (name, found) in
            [("file", Some("file")), ("upload_file", Some("file")), ("upload_files", Some("file")), ("teapot", None)]
        {
            assert_eq!(task_type(name).map(|t| t.name), found);
        }
    }

    #[test]
    fn y01_a_type_that_writes_a_path_says_by_which_parameters() {
        let parameters = json!({"path": "/z", "absent": true, "creates": "/y", "dst": "/x"});
        let found = |kind: &str| task_type(kind).unwrap().path(parameters.as_object().unwrap());
        for kind in ["file", "upload_file"] {
            assert_eq!(found(kind), Some(("/z", Leaves::Nothing)), "{kind}");
        }
        assert_eq!(found("shell"), None, "`creates` is looked at");
        for given in
            [json!({"path": "/z"}), json!({"path": "/z", "absent": false}), json!({"path": "/z", "absent": null})]
        {
            assert_eq!(task_type("file").unwrap().path(given.as_object().unwrap()), Some(("/z", Leaves::File)));
        }
        for types in TASK_TYPES {
            let is_known = |name| types.parameters.is_none_or(|takes| takes.find(name).is_some());
            assert!(
                types.writes.is_none_or(|writes| is_known(writes.path) && is_known(writes.absent)),
                "{}",
                types.name
            );
        }
    }

    /// Of each parameter that is a path or a program a host refuses what a template gives and no host takes, so each is known.
    #[test]
    fn y09_a_type_says_which_texts_name_a_path_or_a_program_of_the_host() {
        let parameters = json!({"path": "/z", "validate": ["v", "%s"], "command": ["c", "d"], "script": "s", "creates": "/y", "cwd": "/x",
            "unless": "test -e /u", "only_if": ["o"], "env": {"A": "/e"}, "user": "root"});
        let found = |kind: &str| {
            let named = task_type(kind).unwrap().names(parameters.as_object().unwrap());
            named.map(|one| (one.field, one.text, one.names)).collect::<Vec<_>>()
        };
        let of = |field: &str, text, names| (format!("parameters.{field}"), text, names);
        assert_eq!(found("upload_file"), [of("validate[0]", "v", Names::Program)]);
        assert_eq!(
            found("shell"),
            [
                of("command[0]", "c", Names::Program),
                of("creates", "/y", Names::Path),
                of("cwd", "/x", Names::Directory),
                of("only_if[0]", "o", Names::Program),
            ]
        );
        for types in TASK_TYPES {
            for one in types.parameters.map(|takes| takes.0).unwrap_or_default() {
                let is_written = types.writes.is_some_and(|writes| writes.path == one.name);
                assert_eq!(
                    one.form == Form::File,
                    is_written,
                    "{} {}: a file is put at the task's path",
                    types.name,
                    one.name
                );
            }
        }
    }

    #[test]
    fn templates_are_found_at_any_depth_and_content_is_none() {
        let parameters =
            json!({"command": ["echo", "{{ labels.a }}"], "env": {"X": "{{ labels.b }}"}, "user": "{{ no }}"});
        let found = task_type("shell").unwrap().template_texts(parameters.as_object().unwrap());
        let paths: Vec<_> = found.iter().map(|t| t.path.as_str()).collect();
        assert_eq!(paths, ["parameters.command[0]", "parameters.command[1]", "parameters.env.X"]);
    }
}
