//! What a task's parameters are: one table a type, from which the checks and the struct that an applier reads come.
//!
//! An agent reads parameters when it runs the task, and refuses what it can't read. But a mistake is known as soon as it is
//! written, and every host would refuse it. So what is literal is held against the table where a release is written
//! ([`super::mistakes`]). What a template or Fuel's import leaves open is not judged.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::form::Form;
use crate::name::{near, suggest};

/// One parameter of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Fuel's name of it.
    pub alias: Option<&'static str>,
    /// What it holds.
    pub form: Form,
    /// Whether it must be given.
    pub presence: Presence,
    /// What it means, in a sentence.
    pub meaning: &'static str,
}

/// Whether a parameter must be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It may be left out.
    Optional,
    /// It must be there.
    Needed,
    /// Exactly one of those that say so is there.
    OneOf,
}

/// A list of words, or a shell text.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum WordsOrText {
    /// A program and its arguments.
    Words(Vec<String>),
    /// A text for the shell.
    Text(String),
}

/// The parameters of one type, as its applier reads them.
pub trait TypedParameters: DeserializeOwned {
    /// What the type takes.
    const TAKES: Parameters;

    /// Reads a task's parameters.
    ///
    /// # Errors
    /// A sentence that names the field.
    fn read(given: &Map<String, Value>) -> Result<Self, String> {
        let takes = Self::TAKES;
        let unknown = |name: &&String| takes.find(name).is_none();
        if let Some(name) = given.keys().find(unknown) {
            return Err(format!("unknown field `{name}`{}", suggest(near(name, takes.names()))));
        }
        if let Some(missing) = takes.missing(given) {
            return Err(missing);
        }
        let present = given.iter().filter(|(_, value)| !value.is_null());
        let present: Map<_, _> = present.map(|(name, value)| (name.clone(), value.clone())).collect();
        Self::deserialize(present).map_err(|error| error.to_string())
    }
}

/// What a type takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters(pub &'static [Parameter]);

/// The type of a parameter's value.
macro_rules! value_of {
    (Text) => { Option<String> };
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
}

/// A type's table, and the struct of the same fields. The name after `or` is Fuel's.
macro_rules! parameters {
    ($(#[$doc:meta])* $typed:ident: $($name:ident $(or $alias:literal)?, $form:ident $presence:ident: $what:literal;)*) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $typed {
            $(#[doc = $what] $(#[serde(alias = $alias)])? pub $name: value_of!($form),)*
        }

        impl TypedParameters for $typed {
            const TAKES: Parameters = Parameters(&[$(Parameter {
                name: stringify!($name),
                alias: [$(Some($alias),)? None][0],
                form: Form::$form,
                presence: Presence::$presence,
                meaning: $what,
            }),*]);
        }
    };
}

parameters! {
    /// Of `file`. Exactly one of content, template, source and absent is given.
    FileParameters:
    path, File Needed: "The file.";
    content or "data", Text OneOf: "What it holds.";
    template, Text OneOf: "The template of what it holds.";
    source, Text OneOf: "The blob that it holds: `sha256:…`, or in a manifest a file's name.";
    absent, Flag OneOf: "No file stands there.";
    owner or "user_owner", Account Optional: "Its user.";
    group or "group_owner", Account Optional: "Its group.";
    mode or "permissions", Mode Optional: "Its rights.";
    dir_mode or "dir_permissions", Mode Optional: "The rights of directories that are made for it.";
    validate, Words Optional: "A command that must accept the new file before it replaces the old one.";
    overwrite, Always Optional: "Fuel's; a file is always replaced.";
    parents, Always Optional: "Fuel's; its directories are always made.";
    timeout, Count Optional: "Fuel's; without meaning here.";
}

parameters! {
    /// Of `shell`. Exactly one of command, script and cmd is given.
    ShellParameters:
    command, Words OneOf: "A program and its arguments.";
    script, Script OneOf: "A shell text, in which values are quoted.";
    cmd, ShellText OneOf: "Fuel's name of a shell text; it is no template.";
    creates, Path Optional: "Nothing is run where this exists.";
    unless, WordsOrText Optional: "Nothing is run where this command succeeds.";
    only_if, WordsOrText Optional: "Nothing is run where this command fails.";
    cwd, Directory Optional: "The directory in which it is run.";
    env, Env Optional: "Its environment, besides what the agent sets.";
    user, Account Optional: "The user as whom it is run.";
    timeout, Seconds Optional: "How long it may take, in seconds.";
    retries, Count Optional: "How often it is tried again.";
    interval, Count Optional: "The seconds between two tries.";
}

/// A parameter of manifests alone: the command reads the file and sends its text as `template`.
pub const TEMPLATE_FILE: Parameter = Parameter {
    name: "template_file",
    alias: None,
    form: Form::Text,
    presence: Presence::OneOf,
    meaning: "The file that the template is in, at or below the manifest's directory.",
};

impl Presence {
    /// In words; nothing for what may be left out.
    pub fn words(self) -> &'static str {
        match self {
            Self::Optional => "",
            Self::Needed => "required",
            Self::OneOf => "exactly one of these",
        }
    }
}

impl Parameter {
    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.alias == Some(name)
    }

    /// Whether it is given by one of its names; `null` and `absent: false` give nothing.
    fn is_given(&self, given: &Map<String, Value>) -> bool {
        let holds = |value: &Value| !matches!(value, Value::Null | Value::Bool(false));
        given.iter().any(|(name, value)| self.is_called(name) && holds(value))
    }
}

impl Parameters {
    /// Each thing that is wrong, with the path of its field.
    pub(super) fn mistakes(&self, given: &Map<String, Value>) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for (name, value) in given {
            match self.find(name) {
                Some(_) if value.is_null() => {}
                Some(known) => found.extend(known.form.mistake(value).map(|why| (format!("parameters.{name}"), why))),
                None => found.push((format!("parameters.{name}"), self.unknown(name))),
            }
        }
        let has = |name: &str| given.get(name).is_some_and(|value| !value.is_null());
        for known in self.0.iter().filter(|known| known.alias.is_some_and(has)) {
            if has(known.name) {
                let why =
                    format!("stands beside {}, which is another name of it: keep one", known.alias.unwrap_or_default());
                found.push((format!("parameters.{}", known.name), why));
            }
        }
        found.extend(self.missing(given).map(|why| ("parameters".to_owned(), why)));
        found
    }

    pub(super) fn find(&self, name: &str) -> Option<&'static Parameter> {
        self.0.iter().find(|known| known.is_called(name))
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|known| known.name)
    }

    fn unknown(&self, name: &str) -> String {
        let near = near(name, self.names());
        if near.is_some() {
            return format!("is no parameter of this type{}: mend its spelling, or take it out", suggest(near));
        }
        format!(
            "is no parameter of this type: take it out, or take one of {}",
            self.names().collect::<Vec<_>>().join(", ")
        )
    }

    fn missing(&self, given: &Map<String, Value>) -> Option<String> {
        let of = |presence| self.0.iter().filter(move |known| known.presence == presence);
        if let Some(known) = of(Presence::Needed).find(|known| !known.is_given(given)) {
            return Some(format!("{} is missing", known.name));
        }
        let names = |known: &Parameter| known.name;
        let have: Vec<_> = of(Presence::OneOf).filter(|known| known.is_given(given)).map(names).collect();
        let all = of(Presence::OneOf).map(names).collect::<Vec<_>>().join(", ");
        match have.as_slice() {
            [_] => None,
            [] => Some(format!("one of {all} is missing")),
            several => Some(format!("{} stand side by side: exactly one of {all} is given", several.join(" and "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::condition::testing::OneSecret;
    use crate::name::ReleaseRef;
    use crate::task::{Task, judge};

    fn mistakes(kind: &str, parameters: &Value) -> Vec<String> {
        let mut task = Task::new("t", kind);
        task.parameters = parameters.as_object().cloned().unwrap();
        let release: ReleaseRef = "site@1".parse().unwrap();
        judge(&release, &[task], &OneSecret).into_iter().map(|one| format!("{}: {}", one.object, one.message)).collect()
    }

    #[test]
    fn an_applier_reads_the_fields_of_the_table_by_either_name() {
        let read = |given: Value| FileParameters::read(given.as_object().unwrap());
        let file = read(json!({"path": "/a", "data": "x", "permissions": "0600"})).unwrap();
        let (content, mode) = (Some("x".to_owned()), Some("0600".to_owned()));
        assert_eq!(file, FileParameters { path: Some("/a".to_owned()), content, mode, ..FileParameters::default() });
        for (given, error) in [
            (json!({"content": "x"}), "path is missing"),
            (json!({"path": "/a", "content": "x", "contents": "x"}), "unknown field `contents`"),
            (json!({"path": "/a", "content": "x", "data": "y"}), "duplicate field `content`"),
            (json!({"path": "/a", "content": 1}), "invalid type: integer `1`, expected a string"),
        ] {
            let message = read(given).unwrap_err();
            assert!(message.contains(error), "{message}");
        }
    }

    #[test]
    fn null_is_as_absent_for_every_parameter() {
        let given = json!({"command": null, "script": "true", "unless": null, "env": null, "timeout": null});
        assert_eq!(mistakes("shell", &given), Vec::<String>::new());
        let read = ShellParameters::read(given.as_object().unwrap()).unwrap();
        assert_eq!(read, ShellParameters { script: Some("true".to_owned()), ..ShellParameters::default() });
        let flag = json!({"path": "/a", "content": null, "data": "x", "absent": null});
        assert_eq!(mistakes("file", &flag), Vec::<String>::new());
    }

    #[test]
    fn a_misspelt_parameter_is_named_before_what_is_missing() {
        let given = json!({"path": "/a", "contnet": "x"});
        let error = FileParameters::read(given.as_object().unwrap()).unwrap_err();
        assert_eq!(error, "unknown field `contnet` (did you mean \"content\"?)");
        let first = mistakes("file", &given).remove(0);
        assert!(
            first.contains("parameters.contnet: is no parameter of this type (did you mean \"content\"?)"),
            "{first}"
        );
    }

    #[test]
    fn what_a_type_takes_is_no_finding() {
        for (kind, parameters) in [
            ("file", json!({"path": "/a", "content": "x", "mode": "0644", "validate": ["nginx", "-t"], "owner": null})),
            ("file", json!({"path": "{{ params.root }}/a", "absent": true, "content": null})),
            (
                "upload_file",
                json!({"path": "/a", "data": "x", "permissions": "755", "user_owner": "root", "timeout": 5}),
            ),
            ("shell", json!({"command": ["a", "b"], "env": {"A": "b"}, "unless": "test -e x", "only_if": ["true"]})),
            ("shell", json!({"cmd": "true", "retries": 3, "interval": 1, "timeout": 180, "cwd": "/"})),
            ("shell", json!({"script": "a", "creates": "/run/stemma/labels.json", "user": "33"})),
            ("shell", json!({"script": "a", "creates": "/dev/vg0/data", "cwd": "/proc/sys/net"})),
            ("shell", json!({"cmd": "a".repeat(131_071), "env": {"AB": "c".repeat(131_068)}})),
            ("shell", json!({"script": format!("{{# {} #}}true", "a".repeat(131_072))})),
            ("puppet", json!({"anything": 1})),
            ("teapot", json!({"anything": 1})),
        ] {
            assert_eq!(mistakes(kind, &parameters), Vec::<String>::new(), "{kind} {parameters}");
        }
    }

    const TOO_LONG_CMD: &str =
        "parameters.cmd: has 131072 bytes, and a process is given at most 131071 in one text: put it into a file task";

    #[test]
    fn y09_what_it_does_not_take_is_one() {
        for (kind, parameters, expected) in [
            ("file", json!({"content": "x"}), "parameters: path is missing"),
            ("file", json!({"path": "/a"}), "parameters: one of content, template, source, absent is missing"),
            (
                "file",
                json!({"path": "/a", "absent": false}),
                "parameters: one of content, template, source, absent is missing",
            ),
            (
                "file",
                json!({"path": "/a", "content": "x", "source": "y"}),
                "parameters: content and source stand side by side: exactly one of content, template, source, absent is given",
            ),
            (
                "file",
                json!({"path": "a", "content": "x"}),
                "parameters.path: path \"a\" is relative; write it from `/` on",
            ),
            (
                "file",
                json!({"path": "/a", "content": "x", "mode": 644}),
                "parameters.mode: takes octal digits as text, \"0644\", not 644",
            ),
            (
                "file",
                json!({"path": "/a", "content": "x", "overwrite": false}),
                "parameters.overwrite: takes true alone, since it is always so: take it out",
            ),
            (
                "file",
                json!({"path": "/a", "contents": "x"}),
                "parameters.contents: is no parameter of this type (did you mean \"content\"?): mend its spelling, or take it out",
            ),
            (
                "file",
                json!({"path": "/a", "content": "x", "data": "y"}),
                "parameters.content: stands beside data, which is another name of it: keep one",
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
                "parameters.path: /run/stemma/labels.json is the agent's own; no task writes there",
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
            (
                "shell",
                json!({"script": "a", "cwd": "a"}),
                "parameters.cwd: path \"a\" is relative; write it from `/` on",
            ),
            (
                "file",
                json!({"path": "/proc/x", "content": "x"}),
                "parameters.path: path \"/proc/x\" lies in a tree of the kernel, where no file can be replaced; use a shell task",
            ),
            (
                "file",
                json!({"path": "/a", "content": "x", "owner": "{{ params.owner }}"}),
                "parameters.owner: is no template, and each host would look for an account of that name: write its name or number",
            ),
            (
                "shell",
                json!({"script": "a", "env": {"A=B": "x"}}),
                "parameters.env: \"A=B\" is no variable: it is empty, or has `=` or NUL in it",
            ),
            (
                "shell",
                json!({"command": ["", "a"]}),
                "parameters.command: the first item is the program, and there is none",
            ),
            ("shell", json!({}), "parameters: one of command, script, cmd is missing"),
            ("shell", json!({"command": "a b"}), "parameters.command: takes a list of texts, not \"a b\""),
            ("shell", json!({"command": []}), "parameters.command: takes a list of texts, not an empty list"),
            (
                "shell",
                json!({"script": "a", "env": {"A": 1}}),
                "parameters.env: \"A\" has a text for its value, not 1: quote it",
            ),
            (
                "shell",
                json!({"script": "a", "env": [1]}),
                "parameters.env: takes a map of texts, not a list with something else in it",
            ),
            (
                "shell",
                json!({"script": "a", "unless": " "}),
                "parameters.unless: is an empty text, which a shell takes for a success: write a command, or take it out",
            ),
            (
                "shell",
                json!({"script": ""}),
                "parameters.script: is an empty text, which a shell takes for a success: write a command, or take the task out",
            ),
            (
                "shell",
                json!({"script": " \n\t"}),
                "parameters.script: is an empty text, which a shell takes for a success: write a command, or take the task out",
            ),
            (
                "shell",
                json!({"cmd": ""}),
                "parameters.cmd: is an empty text, which a shell takes for a success: write a command, or take the task out",
            ),
            (
                "file",
                json!({"path": "/a", "content": "x", "owner": "no such"}),
                "parameters.owner: takes the name or number of an account, not \"no such\"",
            ),
            (
                "shell",
                json!({"script": "a\0b"}),
                "parameters.script: holds NUL, and no process can be given one: take it out",
            ),
            (
                "shell",
                json!({"script": "{{ labels.a }}\0"}),
                "parameters.script: holds NUL, and no process can be given one: take it out",
            ),
            (
                "shell",
                json!({"command": ["a", "b\0"]}),
                "parameters.command: holds NUL, and no process can be given one: take it out",
            ),
            ("shell", json!({"cmd": "a".repeat(131_072)}), TOO_LONG_CMD),
            ("shell", json!({"cmd": format!("{{{{ x }}}}{}", "a".repeat(131_065))}), TOO_LONG_CMD),
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
                "parameters.timeout: is no time in which a task could end: write seconds from 1 on, or take it out",
            ),
            (
                "shell",
                json!({"script": "a", "timeout": 1_000_000_000_000_u64}),
                "parameters.timeout: is longer than a year: write at most 31622400 seconds, or take it out",
            ),
            ("shell", json!({"script": "a", "timeout": -1}), "parameters.timeout: takes a whole number from 1, not -1"),
        ] {
            let found = mistakes(kind, &parameters);
            assert!(found.contains(&format!("release/site@1 task t {expected}")), "{kind} {parameters}: {found:?}");
        }
        let mut untranslated = Task::new("t", "shell");
        untranslated.foreign.insert("untranslated".into(), json!(["parameters.cmd"]));
        assert_eq!(judge(&"site@1".parse().unwrap(), &[untranslated], &OneSecret), []);
    }

    #[test]
    fn w10_03_a_secret_stands_in_no_text_that_everyone_on_a_host_sees() {
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
            ("puppet", json!({"puppet_manifest": secret}), &[]),
        ] {
            let found = mistakes(kind, &parameters);
            let said = |field: &&str| {
                let field =
                    format!("release/site@1 task t parameters.{field}: reads a secret, and everyone on a host sees");
                found.iter().any(|one| one.starts_with(&field))
            };
            let secrets = found.iter().filter(|one| one.contains("reads a secret")).count();
            assert!(fields.iter().all(said) && secrets == fields.len(), "{kind} {parameters}: {found:?}");
        }
    }
}
