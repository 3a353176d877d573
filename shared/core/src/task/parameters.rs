//! The parameters of task types. One table for each type defines both the checks of the controller and the struct that
//! the agent parses.
//!
//! An agent parses the parameters of a task when it runs the task, and rejects invalid parameters. The controller
//! checks literal values already when a release is written ([`super::check_task`]), so that no host has to reject them.
//! Parts of a template that depend on values, and tasks that an import could not translate, are not checked.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::parameter_type::ParameterType;
use super::parameter_values::{error_at, is_set};
use crate::name::{closest_match, did_you_mean};

/// The definition of one parameter of a task type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The name of the parameter in a task.
    pub name: &'static str,
    /// The name of the parameter in Fuel, or `None` if the name is the same or Fuel lacks the parameter.
    pub alias: Option<&'static str>,
    /// The type of the parameter's value.
    pub parameter_type: ParameterType,
    /// The rule whether the parameter is required.
    pub presence: ParameterPresence,
    /// The meaning of the parameter, in a sentence.
    pub meaning: &'static str,
}

/// The rule whether a parameter of a task type is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterPresence {
    /// The parameter may be omitted.
    Optional,
    /// The parameter is required.
    Needed,
    /// The parameter is one of several alternatives of its task type. Exactly one of these alternatives is required.
    OneOf,
}

/// A command: a program with arguments, or a shell text.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum WordsOrText {
    /// A program and its arguments.
    Words(Vec<String>),
    /// A shell text.
    Text(String),
}

/// The parameters of one task type, as the agent that runs the task parses them.
pub trait TypedParameters: DeserializeOwned {
    /// The table of the parameters.
    const TABLE: ParameterTable;

    /// Parses a task's parameters. A parameter with the value `null` is ignored, as if it were absent.
    ///
    /// # Errors
    /// Fails with a message if a parameter is unknown, missing, of the wrong type or set under both of its names, or if
    /// several alternatives are set. The message does not name a parameter of the wrong type.
    fn parse(values: &Map<String, Value>) -> Result<Self, String> {
        let table = Self::TABLE;
        let is_unknown = |name: &&String| table.get(name).is_none();
        if let Some(name) = values.keys().find(is_unknown) {
            return Err(format!("unknown field `{name}`{}", did_you_mean(closest_match(name, table.names()))));
        }
        if let Some(message) = table.presence_error(values) {
            return Err(message);
        }
        let set_values = values.iter().filter(|(_, value)| !value.is_null());
        let set_values: Map<_, _> = set_values.map(|(name, value)| (name.clone(), value.clone())).collect();
        Self::deserialize(set_values).map_err(|error| error.to_string())
    }
}

/// The definitions of all parameters of a task type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParameterTable(pub &'static [Parameter]);

/// A list of names. A task may write a single name as a text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "WordsOrText")]
pub struct NameList(pub Vec<String>);

impl From<WordsOrText> for NameList {
    fn from(names: WordsOrText) -> Self {
        match names {
            WordsOrText::Words(names) => Self(names),
            WordsOrText::Text(name) => Self(vec![name]),
        }
    }
}

/// Expands to the Rust type of a parameter's value.
macro_rules! value_of {
    (Text) => { Option<String> };
    (Source) => { Option<String> };
    (Script) => { Option<String> };
    (ShellText) => { Option<String> };
    (File) => { Option<String> };
    (Path) => { Option<String> };
    (Directory) => { Option<String> };
    (Account) => { Option<String> };
    (Words) => { Vec<String> };
    (WordsOrText) => { Option<WordsOrText> };
    (Env) => { BTreeMap<String, String> };
    (Mode) => { Option<String> };
    (Flag) => { bool };
    (Always) => { bool };
    (Count) => { Option<u64> };
    (Seconds) => { Option<u64> };
    (AccountId) => { Option<u32> };
    (AccountName) => { Option<String> };
    (AccountNames) => { Option<NameList> };
    (Comment) => { Option<String> };
    (Choice) => { Option<String> };
    (Switch) => { Option<bool> };
    (Unit) => { Option<String> };
    (PackageNames) => { NameList };
    (PackageVersion) => { Option<String> };
    (LinkTarget) => { Option<String> };
    (Patterns) => { NameList };
    (Data) => { serde_json::Map<String, serde_json::Value> };
    (Facts) => { BTreeMap<String, String> };
    (PathList) => { Option<String> };
    (Files) => { BTreeMap<String, String> };
    (CopyList) => { Vec<FileCopy> };
}
pub(super) use value_of;

/// Defines the parameters of a task type: the table and the struct with the same fields. In a row, the name after `or`
/// is Fuel's name of the parameter.
macro_rules! parameters {
    ($(#[$doc:meta])* $typed:ident: $($name:ident $(or $alias:literal)?, $form:ident $(($argument:expr))? $presence:ident: $what:literal;)*) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, ::serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $typed {
            $(#[doc = $what] $(#[serde(alias = $alias)])? pub $name: $crate::task::parameters::value_of!($form),)*
        }

        impl TypedParameters for $typed {
            const TABLE: ParameterTable = ParameterTable(&[$(Parameter {
                name: stringify!($name),
                alias: [$(Some($alias),)? None][0],
                parameter_type: ParameterType::$form $(($argument))?,
                presence: ParameterPresence::$presence,
                meaning: $what,
            }),*]);
        }
    };
}
pub(super) use parameters;

parameters! {
    /// The parameters of `file`. Exactly one of content, template, source and absent is required.
    FileParameters:
    path, File Needed: "The file.";
    content or "data", Text OneOf: "The text of the file.";
    template, Text OneOf: "The template of the text of the file.";
    source, Source OneOf: "The blob with the content of the file: `sha256:…`, or in a manifest a file's name.";
    absent, Flag OneOf: "True if the file must not exist.";
    owner or "user_owner", Account Optional: "Its user.";
    group or "group_owner", Account Optional: "Its group.";
    mode or "permissions", Mode Optional: "Its rights.";
    dir_mode or "dir_permissions", Mode Optional: "The file mode of directories that are created for the file.";
    validate, Words Optional: "A command that must accept the new file before it replaces the old one.";
    overwrite, Always Optional: "A parameter of Fuel: only true, because an existing file is always replaced.";
    parents, Always Optional: "A parameter of Fuel: only true, because missing directories are always created.";
    timeout, Count Optional: "A parameter of Fuel, without effect.";
}

parameters! {
    /// The parameters of `shell`. Exactly one of command, script and cmd is required.
    ShellParameters:
    command, Words OneOf: "A program and its arguments.";
    script, Script OneOf: "A shell text, in which values are quoted.";
    cmd, ShellText OneOf: "A parameter of Fuel: a shell text that is not a template.";
    creates, Path Optional: "A path. If the path exists, the task does not run.";
    unless, WordsOrText Optional: "A command. If it succeeds, the task does not run.";
    only_if, WordsOrText Optional: "A command. If it fails, the task does not run.";
    cwd, Directory Optional: "The directory in which the command runs.";
    env, Env Optional: "The environment variables of the command, in addition to those that the agent sets.";
    user, Account Optional: "The user as whom the command runs.";
    timeout, Seconds Optional: "The maximum duration of the command, in seconds.";
    retries, Count Optional: "The number of further attempts after a failure.";
    interval, Count Optional: "The time between two attempts, in seconds.";
}

/// The parameter `template_file`, which only manifests have. The CLI reads the named file and sends its text as the
/// parameter `template`.
pub const TEMPLATE_FILE: Parameter = Parameter {
    name: "template_file",
    alias: None,
    parameter_type: ParameterType::Text,
    presence: ParameterPresence::OneOf,
    meaning: "The file with the template, at or below the manifest's directory.",
};

impl ParameterPresence {
    /// Returns the rule in words for the documentation. Empty for an optional parameter.
    pub fn description(self) -> &'static str {
        match self {
            Self::Optional => "",
            Self::Needed => "required",
            Self::OneOf => "exactly one of these",
        }
    }
}

impl Parameter {
    /// Returns whether the name is that of the parameter, or its name in Fuel.
    fn has_name(&self, name: &str) -> bool {
        self.name == name || self.alias == Some(name)
    }

    /// Returns whether a task sets the parameter ([`is_set`]), under its name or its name in Fuel.
    fn is_present(&self, values: &Map<String, Value>) -> bool {
        is_set(values, self.name) || self.alias.is_some_and(|alias| is_set(values, alias))
    }
}

impl ParameterTable {
    /// Returns the errors in a task's parameters, each as the path of the field and a message: unknown, invalid and
    /// missing parameters, a parameter that is set under both of its names, and several alternatives that are set.
    pub(super) fn errors(&self, values: &Map<String, Value>) -> Vec<(String, String)> {
        let mut errors = Vec::new();
        for (name, value) in values {
            match self.get(name) {
                Some(_) if value.is_null() => {}
                Some(parameter) => {
                    errors.extend(parameter.parameter_type.value_error(value).map(|error| error_at(name, error)));
                }
                None => errors.push(error_at(name, self.unknown_parameter_message(name))),
            }
        }
        let is_written = |name: &str| values.get(name).is_some_and(|value| !value.is_null());
        for parameter in self.0.iter().filter(|parameter| parameter.alias.is_some_and(is_written)) {
            if is_written(parameter.name) {
                let error = format!("is also set as {}, another name of it: remove one", parameter.alias.unwrap_or_default());
                errors.push(error_at(parameter.name, error));
            }
        }
        errors.extend(self.presence_error(values).map(|error| ("parameters".to_owned(), error)));
        errors
    }

    /// Returns the parameter with this name, or with this name in Fuel.
    pub(crate) fn get(&self, name: &str) -> Option<&'static Parameter> {
        self.0.iter().find(|parameter| parameter.has_name(name))
    }

    /// Returns the names of the parameters, without their names in Fuel.
    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|parameter| parameter.name)
    }

    /// Returns the error message for an unknown parameter. It suggests the closest name, or lists all names.
    fn unknown_parameter_message(&self, name: &str) -> String {
        let closest_name = closest_match(name, self.names());
        if closest_name.is_some() {
            return format!("is not a parameter of this type{}: correct its spelling, or remove it", did_you_mean(closest_name));
        }
        format!("is not a parameter of this type: remove it, or use one of {}", self.names().collect::<Vec<_>>().join(", "))
    }

    /// Returns an error message if a required parameter is missing, or if none or several of the alternatives are set.
    /// Alternatives are parameters such as `command`, `script` and `cmd`. A task type may have none.
    fn presence_error(&self, values: &Map<String, Value>) -> Option<String> {
        let select = |presence| self.0.iter().filter(move |parameter| parameter.presence == presence);
        if let Some(parameter) = select(ParameterPresence::Needed).find(|parameter| !parameter.is_present(values)) {
            return Some(format!("{} is missing", parameter.name));
        }
        let name = |parameter: &Parameter| parameter.name;
        let names: Vec<_> = select(ParameterPresence::OneOf).filter(|parameter| parameter.is_present(values)).map(name).collect();
        let alternatives = select(ParameterPresence::OneOf).map(name).collect::<Vec<_>>().join(", ");
        match names.as_slice() {
            [_] => None,
            [] if alternatives.is_empty() => None,
            [] => Some(format!("one of {alternatives} is missing")),
            several => Some(format!("{} are both set: exactly one of {alternatives} is given", several.join(" and "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::condition::testing::OneSecret;
    use crate::name::ReleaseRef;
    use crate::task::{Task, check_release_tasks};

    /// Returns the errors that [`check_release_tasks`] finds in a task of this type with these parameters.
    fn error_ats(kind: &str, parameters: &Value) -> Vec<String> {
        let mut task = Task::new("t", kind);
        task.parameters = parameters.as_object().cloned().unwrap();
        let release: ReleaseRef = "site@1".parse().unwrap();
        check_release_tasks(&release, &[task], &OneSecret)
            .into_iter()
            .map(|finding| format!("{}: {}", finding.object, finding.message))
            .collect()
    }

    /// `data` and `permissions` are the names of `content` and `mode` in Fuel. Missing, unknown, repeated and mistyped
    /// parameters are errors.
    #[test]
    fn parameters_are_read_by_name_or_alias() {
        let parse_file = |parameters: Value| FileParameters::parse(parameters.as_object().unwrap());
        let file = parse_file(json!({"path": "/a", "data": "x", "permissions": "0600"})).unwrap();
        let (content, mode) = (Some("x".to_owned()), Some("0600".to_owned()));
        assert_eq!(file, FileParameters { path: Some("/a".to_owned()), content, mode, ..FileParameters::default() });
        for (parameters, error) in [
            (json!({"content": "x"}), "path is missing"),
            (json!({"path": "/a", "content": "x", "contents": "x"}), "unknown field `contents`"),
            (json!({"path": "/a", "content": "x", "data": "y"}), "duplicate field `content`"),
            (json!({"path": "/a", "content": 1}), "invalid type: integer `1`, expected a string"),
        ] {
            let message = parse_file(parameters).unwrap_err();
            assert!(message.contains(error), "{message}");
        }
    }

    #[test]
    fn null_parameter_equals_absent_parameter() {
        let shell_parameters = json!({"command": null, "script": "true", "unless": null, "env": null, "timeout": null});
        assert_eq!(error_ats("shell", &shell_parameters), Vec::<String>::new());
        let parsed_parameters = ShellParameters::parse(shell_parameters.as_object().unwrap()).unwrap();
        assert_eq!(parsed_parameters, ShellParameters { script: Some("true".to_owned()), ..ShellParameters::default() });
        // `data` is the name of `content` in Fuel. A null `content` does not conflict with it.
        let file_parameters = json!({"path": "/a", "content": null, "data": "x", "absent": null});
        assert_eq!(error_ats("file", &file_parameters), Vec::<String>::new());
    }

    #[test]
    fn unknown_parameter_is_reported_before_missing_one() {
        let parameters = json!({"path": "/a", "contnet": "x"});
        let error = FileParameters::parse(parameters.as_object().unwrap()).unwrap_err();
        assert_eq!(error, "unknown field `contnet` (did you mean \"content\"?)");
        let first_error = error_ats("file", &parameters).remove(0);
        assert!(
            first_error.contains("parameters.contnet: is not a parameter of this type (did you mean \"content\"?)"),
            "{first_error}"
        );
    }

    #[test]
    fn error_ats_is_empty_when_type_accepts_values() {
        for (kind, parameters) in [
            ("file", json!({"path": "/a", "content": "x", "mode": "0644", "validate": ["nginx", "-t"], "owner": null})),
            ("file", json!({"path": "{{ params.root }}/a", "absent": true, "content": null})),
            ("upload_file", json!({"path": "/a", "data": "x", "permissions": "755", "user_owner": "root", "timeout": 5})),
            ("shell", json!({"command": ["a", "b"], "env": {"A": "b"}, "unless": "test -e x", "only_if": ["true"]})),
            ("shell", json!({"cmd": "true", "retries": 3, "interval": 1, "timeout": 180, "cwd": "/"})),
            ("shell", json!({"script": "a", "creates": "/run/stemma/labels.json", "user": "33"})),
            ("shell", json!({"script": "a", "creates": "/dev/vg0/data", "cwd": "/proc/sys/net"})),
            // Linux allows 131,071 bytes for an argument, and for a variable with its name and `=`.
            ("shell", json!({"cmd": "a".repeat(131_071), "env": {"AB": "c".repeat(131_068)}})),
            // The comment of a template is not part of the rendered script.
            ("shell", json!({"script": format!("{{# {} #}}true", "a".repeat(131_072))})),
            // Type `teapot` is unknown, so its parameters are not checked.
            ("teapot", json!({"anything": 1})),
        ] {
            assert_eq!(error_ats(kind, &parameters), Vec::<String>::new(), "{kind} {parameters}");
        }
    }

    /// The error for a shell text of 131072 bytes, one more than Linux allows for an argument.
    const CMD_TOO_LONG: &str =
        "parameters.cmd: has 131072 bytes, and a process is given at most 131071 in one text: put it into a file task";

    #[test]
    fn y09_error_ats_lists_values_rejected_by_type() {
        for (kind, parameters, expected) in [
            ("file", json!({"content": "x"}), "parameters: path is missing"),
            ("file", json!({"path": "/a"}), "parameters: one of content, template, source, absent is missing"),
            ("file", json!({"path": "/a", "absent": false}), "parameters: one of content, template, source, absent is missing"),
            (
                "file",
                json!({"path": "/a", "content": "x", "source": "y"}),
                "parameters: content and source are both set: exactly one of content, template, source, absent is given",
            ),
            ("file", json!({"path": "a", "content": "x"}), "parameters.path: path \"a\" is relative; write it from `/` on"),
            (
                "file",
                json!({"path": "/a", "content": "x", "mode": 644}),
                "parameters.mode: takes octal digits as text, \"0644\", not 644",
            ),
            (
                "file",
                json!({"path": "/a", "content": "x", "overwrite": false}),
                "parameters.overwrite: accepts only true, since it is always so: remove it",
            ),
            (
                "file",
                json!({"path": "/a", "contents": "x"}),
                "parameters.contents: is not a parameter of this type (did you mean \"content\"?): correct its spelling, or remove it",
            ),
            (
                "file",
                json!({"path": "/a", "content": "x", "data": "y"}),
                "parameters.content: is also set as data, another name of it: remove one",
            ),
            (
                "file",
                json!({"path": "/a", "content": "x", "validate": "nginx -t"}),
                "parameters.validate: takes a list of texts, not \"nginx -t\"",
            ),
            (
                "file",
                json!({"path": "/etc/../x", "content": "x"}),
                "parameters.path: path \"/etc/../x\" has \"..\" in it; write the plain path",
            ),
            (
                "file",
                json!({"path": "/run/stemma/labels.json", "content": "x"}),
                "parameters.path: /run/stemma/labels.json belongs to the agent; no task may write there",
            ),
            (
                "file",
                json!({"path": "etc/{{ params.x }}", "content": "x"}),
                "parameters.path: path \"etc/{{ params.x }}\" is relative; write it from `/` on",
            ),
            (
                "file",
                json!({"path": "/a", "content": "x", "owner": ""}),
                "parameters.owner: takes the name or number of an account, not \"\"",
            ),
            ("shell", json!({"script": "a", "cwd": "a"}), "parameters.cwd: path \"a\" is relative; write it from `/` on"),
            (
                "file",
                json!({"path": "/proc/x", "content": "x"}),
                "parameters.path: path \"/proc/x\" lies in a tree of the kernel, where no file can be replaced; use a shell task",
            ),
            (
                "file",
                json!({"path": "/a", "content": "x", "owner": "{{ params.owner }}"}),
                "parameters.owner: cannot be a template, and hosts would look for an account of that name: write its name or number",
            ),
            (
                "shell",
                json!({"script": "a", "env": {"A=B": "x"}}),
                "parameters.env: \"A=B\" is not a variable: it is empty, or has `=` or NUL in it",
            ),
            ("shell", json!({"command": ["", "a"]}), "parameters.command: the first item must be the program, but it is missing"),
            ("shell", json!({}), "parameters: one of command, script, cmd is missing"),
            ("shell", json!({"command": "a b"}), "parameters.command: takes a list of texts, not \"a b\""),
            ("shell", json!({"command": []}), "parameters.command: takes a list of texts, not an empty list"),
            (
                "shell",
                json!({"script": "a", "env": {"A": 1}}),
                "parameters.env: \"A\" must have a text as its value, not 1: quote it",
            ),
            ("shell", json!({"script": "a", "env": [1]}), "parameters.env: takes a map of texts, not a list"),
            (
                "shell",
                json!({"script": "a", "unless": " "}),
                "parameters.unless: is an empty text, for which a shell reports success: write a command, or remove it",
            ),
            (
                "shell",
                json!({"script": ""}),
                "parameters.script: is an empty text, for which a shell reports success: write a command, or remove the task",
            ),
            (
                "shell",
                json!({"script": " \n\t"}),
                "parameters.script: is an empty text, for which a shell reports success: write a command, or remove the task",
            ),
            (
                "shell",
                json!({"cmd": ""}),
                "parameters.cmd: is an empty text, for which a shell reports success: write a command, or remove the task",
            ),
            (
                "file",
                json!({"path": "/a", "content": "x", "owner": "no such"}),
                "parameters.owner: takes the name or number of an account, not \"no such\"",
            ),
            ("shell", json!({"script": "a\0b"}), "parameters.script: contains NUL, which no process can be given: remove it"),
            (
                "shell",
                json!({"script": "{{ labels.a }}\0"}),
                "parameters.script: contains NUL, which no process can be given: remove it",
            ),
            (
                "shell",
                json!({"command": ["a", "b\0"]}),
                "parameters.command: contains NUL, which no process can be given: remove it",
            ),
            ("shell", json!({"cmd": "a".repeat(131_072)}), CMD_TOO_LONG),
            ("shell", json!({"cmd": format!("{{{{ x }}}}{}", "a".repeat(131_065))}), CMD_TOO_LONG),
            (
                "shell",
                json!({"script": "a", "only_if": "a".repeat(131_072)}),
                "parameters.only_if: has 131072 bytes, and a process is given at most 131071 in one text: put it into a file task",
            ),
            (
                "shell",
                json!({"script": "a", "env": {"AB": "c".repeat(131_069)}}),
                "parameters.env: \"AB\" has 131072 bytes, and a process is given at most 131071 in one text: put it into a file task",
            ),
            (
                "shell",
                json!({"script": "a", "timeout": 0}),
                "parameters.timeout: is not a valid timeout: write at least 1 second, or remove it",
            ),
            (
                "shell",
                json!({"script": "a", "timeout": 1_000_000_000_000_u64}),
                "parameters.timeout: is longer than a year: write at most 31622400 seconds, or remove it",
            ),
            ("shell", json!({"script": "a", "timeout": -1}), "parameters.timeout: takes a whole number from 1, not -1"),
        ] {
            let errors = error_ats(kind, &parameters);
            assert!(errors.contains(&format!("release/site@1 task t {expected}")), "{kind} {parameters}: {errors:?}");
        }
        let mut untranslated_task = Task::new("t", "shell");
        untranslated_task.foreign.insert("untranslated".into(), json!(["parameters.cmd"]));
        assert_eq!(check_release_tasks(&"site@1".parse().unwrap(), &[untranslated_task], &OneSecret), []);
    }

    /// Each row has the parameters of a task, and the fields that read a secret and whose text all users of the host
    /// can see. These fields are paths, and arguments of processes.
    #[test]
    fn w10_03_secret_is_rejected_in_exposed_texts() {
        let secret = "{{ secret('db') }}";
        for (kind, parameters, fields) in [
            ("file", json!({"path": secret, "template": secret}), &["path"][..]),
            ("upload_file", json!({"path": "/a", "content": secret, "validate": ["a", secret]}), &["validate[1]"]),
            ("shell", json!({"command": ["a", "b", secret], "env": {"A": secret}}), &["command[2]"]),
            ("shell", json!({"script": secret, "unless": secret, "only_if": [secret]}), &["only_if[0]"]),
            (
                "shell",
                json!({"script": secret, "unless": [secret], "cwd": secret, "creates": secret}),
                &["creates", "cwd", "unless[0]"],
            ),
            (
                "puppet",
                json!({"puppet_manifest": secret, "hiera": {"a": [secret]}, "facts": {"b": secret}}),
                &["puppet_manifest"],
            ),
        ] {
            let errors = error_ats(kind, &parameters);
            let is_reported = |field: &&str| {
                let prefix = format!("release/site@1 task t parameters.{field}: reads a secret, and everyone on a host sees");
                errors.iter().any(|error| error.starts_with(&prefix))
            };
            let secret_error_count = errors.iter().filter(|error| error.contains("reads a secret")).count();
            assert!(fields.iter().all(is_reported) && secret_error_count == fields.len(), "{kind} {parameters}: {errors:?}");
        }
    }
}
