//! Whether a task's parameters are what its type takes, as far as they can be judged before a host has them.
//!
//! An agent reads them again when it runs the task, and is the one that refuses. But a wrong word is known as soon as it is
//! written, and a person would rather hear of it from `stemma validate` than from the first host that fails. So what is
//! literal is held against the registry, and what is odd is a finding, never a refusal: an agent of a newer version may
//! know more. What a template or Fuel's import leaves open is not judged.

use serde_json::{Map, Value};

use super::{Task, task_type};
use crate::finding::{Finding, rule};
use crate::name::{ReleaseRef, near, suggest};

/// One parameter of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Fuel's name of it.
    pub alias: Option<&'static str>,
    /// What it holds.
    pub form: Form,
}

/// What a parameter holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A text.
    Text,
    /// An absolute path on the host.
    Path,
    /// A list of texts: a command's words.
    Words,
    /// A list of texts, or a shell text.
    WordsOrText,
    /// A map of texts.
    Texts,
    /// File rights: octal digits, as text.
    Mode,
    /// `true` or `false`.
    Flag,
    /// A whole number from 0.
    Count,
}

/// What a type takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// All of them.
    pub known: &'static [Parameter],
    /// Those that must be there.
    pub needed: &'static [&'static str],
    /// Of which exactly one is given.
    pub one_of: &'static [&'static str],
}

const fn of(name: &'static str, form: Form) -> Parameter {
    Parameter { name, alias: None, form }
}

const fn named(name: &'static str, alias: &'static str, form: Form) -> Parameter {
    Parameter { name, alias: Some(alias), form }
}

/// Of `file`.
pub(super) const FILE: Parameters = Parameters {
    known: &[
        of("path", Form::Path),
        named("content", "data", Form::Text),
        of("template", Form::Text),
        of("source", Form::Text),
        of("absent", Form::Flag),
        named("owner", "user_owner", Form::Text),
        named("group", "group_owner", Form::Text),
        named("mode", "permissions", Form::Mode),
        named("dir_mode", "dir_permissions", Form::Mode),
        of("validate", Form::Words),
        of("overwrite", Form::Flag),
        of("parents", Form::Flag),
        of("timeout", Form::Count),
    ],
    needed: &["path"],
    one_of: &["content", "template", "source", "absent"],
};

/// Of `shell`. `cmd` is Fuel's name for a shell text that is no template.
pub(super) const SHELL: Parameters = Parameters {
    known: &[
        of("command", Form::Words),
        of("script", Form::Text),
        of("cmd", Form::Text),
        of("creates", Form::Path),
        of("unless", Form::WordsOrText),
        of("only_if", Form::WordsOrText),
        of("cwd", Form::Path),
        of("env", Form::Texts),
        of("user", Form::Text),
        of("timeout", Form::Count),
        of("retries", Form::Count),
        of("interval", Form::Count),
    ],
    needed: &[],
    one_of: &["command", "script", "cmd"],
};

/// What is odd about the parameters of a release's own tasks: each of them would fail on every host that it falls to.
///
/// Tasks that an import left untranslated are left out: they never start.
pub fn judge(release: &ReleaseRef, tasks: &[Task]) -> Vec<Finding> {
    let judged = tasks.iter().filter(|task| !task.is_untranslated());
    judged.flat_map(|task| judge_task(release, task)).collect()
}

fn judge_task(release: &ReleaseRef, task: &Task) -> Vec<Finding> {
    let Some(takes) = task_type(&task.kind).and_then(|kind| kind.parameters) else { return Vec::new() };
    let found = |(field, message): (String, String)| {
        Finding::of(rule::TASK_PARAMETERS, format!("release/{release} task {} {field}", task.id), message)
    };
    takes.odd(&task.parameters).into_iter().map(found).collect()
}

impl Parameter {
    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.alias == Some(name)
    }
}

impl Parameters {
    /// Each thing that is wrong, with the path of its field.
    fn odd(&self, given: &Map<String, Value>) -> Vec<(String, String)> {
        let mut odd = Vec::new();
        for (name, value) in given {
            match self.known.iter().find(|known| known.is_called(name)) {
                Some(known) => odd.extend(known.form.odd(value).map(|why| (format!("parameters.{name}"), why))),
                None => odd.push((format!("parameters.{name}"), self.unknown(name))),
            }
        }
        for known in self.known.iter().filter(|known| known.alias.is_some_and(|alias| given.contains_key(alias))) {
            if given.contains_key(known.name) {
                let why =
                    format!("stands beside {}, which is another name of it: keep one", known.alias.unwrap_or_default());
                odd.push((format!("parameters.{}", known.name), why));
            }
        }
        odd.extend(self.missing(given).map(|why| ("parameters".to_owned(), why)));
        odd
    }

    fn unknown(&self, name: &str) -> String {
        let names = || self.known.iter().map(|known| known.name);
        let near = near(name, names());
        if near.is_some() {
            return format!("is no parameter of this type{}: mend its spelling, or take it out", suggest(near));
        }
        format!("is no parameter of this type: take it out, or take one of {}", names().collect::<Vec<_>>().join(", "))
    }

    fn missing(&self, given: &Map<String, Value>) -> Option<String> {
        if let Some(name) = self.needed.iter().find(|name| !self.gives(given, name)) {
            return Some(format!("{name} is missing"));
        }
        let have: Vec<&str> = self.one_of.iter().filter(|name| self.gives(given, name)).copied().collect();
        let all = self.one_of.join(", ");
        match have.as_slice() {
            [_] => None,
            [] => Some(format!("one of {all} is missing")),
            several => Some(format!("{} stand side by side: exactly one of {all} is given", several.join(" and "))),
        }
    }

    /// Whether a parameter is given by one of its names; `null` and `absent: false` give nothing.
    fn gives(&self, given: &Map<String, Value>, name: &str) -> bool {
        let known = self.known.iter().find(|known| known.name == name);
        given.iter().any(|(own, value)| {
            known.is_some_and(|known| known.is_called(own)) && !matches!(value, Value::Null | Value::Bool(false))
        })
    }
}

impl Form {
    /// Why a value can't be this, and what can.
    fn odd(self, value: &Value) -> Option<String> {
        let holds = match (self, value) {
            (Self::Text | Self::WordsOrText, Value::String(_) | Value::Null)
            | (Self::Path | Self::Mode, Value::Null)
            | (Self::Flag, Value::Bool(_)) => true,
            (Self::Path, Value::String(text)) => text.starts_with('/') || is_template(text),
            (Self::Mode, Value::String(text)) => is_mode(text),
            (Self::Words | Self::WordsOrText, Value::Array(items)) => {
                !items.is_empty() && items.iter().all(Value::is_string)
            }
            (Self::Texts, Value::Object(map)) => map.values().all(Value::is_string),
            (Self::Count, value) => value.is_u64() || value.is_null(),
            _ => false,
        };
        (!holds).then(|| format!("takes {}, not {}", self.taken(), shown(value)))
    }

    fn taken(self) -> &'static str {
        match self {
            Self::Text => "a text",
            Self::Path => "an absolute path",
            Self::Words => "a list of texts",
            Self::WordsOrText => "a list of texts or a shell text",
            Self::Texts => "a map of texts",
            Self::Mode => "octal digits as text, \"0644\"",
            Self::Flag => "true or false",
            Self::Count => "a whole number from 0",
        }
    }
}

/// A text that is only known where it is rendered.
fn is_template(text: &str) -> bool {
    ["{{", "{%", "{#"].iter().any(|tag| text.contains(tag))
}

fn is_mode(text: &str) -> bool {
    let digits = (3..=5).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    digits && u32::from_str_radix(text, 8).is_ok_and(|mode| mode <= 0o7777)
}

/// A value in an error, cut; of a list or map only that it is one.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(items) if items.is_empty() => "an empty list".to_owned(),
        Value::Array(_) => "a list with something else in it".to_owned(),
        Value::Object(_) => "a map".to_owned(),
        Value::String(text) => format!("{:?}", crate::name::cut(text)),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn odd(kind: &str, parameters: &Value) -> Vec<String> {
        let mut task = Task::new("t", kind);
        task.parameters = parameters.as_object().cloned().unwrap();
        let release: ReleaseRef = "site@1".parse().unwrap();
        judge(&release, &[task]).into_iter().map(|one| format!("{}: {}", one.object, one.message)).collect()
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
            ("puppet", json!({"anything": 1})),
            ("teapot", json!({"anything": 1})),
        ] {
            assert_eq!(odd(kind, &parameters), Vec::<String>::new(), "{kind} {parameters}");
        }
    }

    #[test]
    fn what_it_does_not_take_is_one() {
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
            ("file", json!({"path": "a", "content": "x"}), "parameters.path: takes an absolute path, not \"a\""),
            (
                "file",
                json!({"path": "/a", "content": "x", "mode": 644}),
                "parameters.mode: takes octal digits as text, \"0644\", not 644",
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
            ("shell", json!({}), "parameters: one of command, script, cmd is missing"),
            ("shell", json!({"command": "a b"}), "parameters.command: takes a list of texts, not \"a b\""),
            ("shell", json!({"command": []}), "parameters.command: takes a list of texts, not an empty list"),
            ("shell", json!({"script": "a", "env": {"A": 1}}), "parameters.env: takes a map of texts, not a map"),
            ("shell", json!({"script": "a", "timeout": -1}), "parameters.timeout: takes a whole number from 0, not -1"),
        ] {
            let found = odd(kind, &parameters);
            assert!(found.contains(&format!("release/site@1 task t {expected}")), "{kind} {parameters}: {found:?}");
        }
        let mut untranslated = Task::new("t", "shell");
        untranslated.foreign.insert("untranslated".into(), json!(["parameters.cmd"]));
        assert_eq!(judge(&"site@1".parse().unwrap(), &[untranslated]), []);
    }
}
