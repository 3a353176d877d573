//! A text with places that are filled in: what Python's `str.format` does with `{node.name}` and `{inventory[cpu][count]}`,
//! and what `str` gives of a value.
//!
//! A place that leads nowhere leaves the whole text as it is written, as in Ironic. So does a form of Python's that is not
//! known here (`!r`, `:>8`).

use std::ops::Range;

use serde_json::Value;

use super::budget::Budget;
use super::limits::{Failure, InvalidRule, MAX_STEPS_OF_PATH, MAX_TEXT};
use crate::json::python_number;

/// What is never told of an inventory.
const MASKED: [&str; 3] = ["password", "auth_token", "bmc_password"];

/// What a text may name.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub(super) node: &'a Value,
    pub(super) inventory: &'a Value,
    pub(super) plugin_data: &'a Value,
    /// The turn of a loop.
    pub(super) item: Option<&'a Value>,
}

impl Scope<'static> {
    /// What a text may name before any report has come.
    pub(super) const NOTHING: Self =
        Self { node: &Value::Null, inventory: &Value::Null, plugin_data: &Value::Null, item: None };
}

/// A text, read.
#[derive(Clone, Debug)]
pub(super) struct Text {
    source: Box<str>,
    /// Its pieces; none where it stands as it is.
    pieces: Box<[Piece]>,
}

#[derive(Clone, Debug)]
enum Piece {
    Plain(Box<str>),
    Place { root: Box<str>, steps: Box<[Step]> },
}

/// A step of a place's path.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// `.name`
    Attribute(Box<str>),
    /// `[name]`
    Key(Box<str>),
    /// `[0]`
    Index(usize),
}

/// Why a place leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nowhere {
    /// A key is not there.
    Key,
    /// Anything else.
    Other,
}

impl Text {
    /// Reads a text.
    pub(super) fn new(source: &str) -> Result<Self, InvalidRule> {
        let pieces = if source.contains(['{', '}']) { read(source).unwrap_or_default() } else { Vec::new() };
        for piece in &pieces {
            if let Piece::Place { steps, .. } = piece
                && steps.len() > MAX_STEPS_OF_PATH
            {
                let reason = format!("a path has at most {MAX_STEPS_OF_PATH} steps, one of {source:?} more");
                return Err(InvalidRule::new("", reason));
            }
        }
        Ok(Self { source: source.into(), pieces: pieces.into() })
    }

    /// The text as it is written.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// Whether nothing is filled in.
    pub(super) fn is_plain(&self) -> bool {
        !self.pieces.iter().any(|piece| matches!(piece, Piece::Place { .. }))
    }

    /// The text, filled in; as it is written where a place leads nowhere.
    pub(super) fn fill(&self, scope: Scope<'_>, budget: &mut Budget) -> Result<String, Failure> {
        Ok(self.filled(scope, budget, |_, _, _| ())?.unwrap_or_else(|_| self.source.to_string()))
    }

    /// The same, where each place leads somewhere: `note` is told of each by its root and steps, and which bytes its value has.
    pub(super) fn fill_noting<'t>(
        &'t self,
        scope: Scope<'_>,
        budget: &mut Budget,
        note: impl FnMut(&'t str, &'t [Step], Range<usize>),
    ) -> Result<Option<String>, Failure> {
        Ok(self.filled(scope, budget, note)?.ok())
    }

    /// Whether a key that it names is not there.
    pub(super) fn lacks_key(&self, scope: Scope<'_>, budget: &mut Budget) -> Result<bool, Failure> {
        Ok(self.filled(scope, budget, |_, _, _| ())? == Err(Nowhere::Key))
    }

    fn filled<'t>(
        &'t self,
        scope: Scope<'_>,
        budget: &mut Budget,
        mut note: impl FnMut(&'t str, &'t [Step], Range<usize>),
    ) -> Result<Result<String, Nowhere>, Failure> {
        if self.pieces.is_empty() {
            budget.take(1 + self.source.len() / 64)?;
            return Ok(Ok(self.source.to_string()));
        }
        let mut text = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Plain(plain) => text.push_str(plain),
                Piece::Place { root, steps } => {
                    budget.take(1 + steps.len())?;
                    let begin = text.len();
                    match walk(root, steps, scope) {
                        Ok(Found::Value(value)) => write_value(&mut text, value, false)?,
                        Ok(Found::Masked) => text.push_str("***"),
                        Err(nowhere) => return Ok(Err(nowhere)),
                    }
                    note(root, steps, begin..text.len());
                }
            }
            if text.len() > MAX_TEXT {
                return Err(Failure::TooLong);
            }
        }
        budget.take(text.len() / 64)?;
        Ok(Ok(text))
    }
}

/// What Python's `str` gives of a value.
pub(super) fn python_text(value: &Value) -> Result<String, Failure> {
    let mut text = String::new();
    write_value(&mut text, value, false)?;
    Ok(text)
}

/// `None` for what Python's `str.format` does not read, or reads in a way that is not known here.
fn read(source: &str) -> Option<Vec<Piece>> {
    let (mut pieces, mut plain) = (Vec::new(), String::new());
    let mut rest = source;
    while let Some(at) = rest.find(['{', '}']) {
        plain.push_str(&rest[..at]);
        let (brace, behind) = rest[at..].split_at(1);
        if let Some(behind) = behind.strip_prefix(brace) {
            plain.push_str(brace);
            rest = behind;
            continue;
        }
        if brace == "}" {
            return None;
        }
        let (place, behind) = read_place(behind)?;
        if !plain.is_empty() {
            pieces.push(Piece::Plain(std::mem::take(&mut plain).into()));
        }
        pieces.push(place);
        rest = behind;
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(Piece::Plain(plain.into()));
    }
    Some(pieces)
}

fn read_place(text: &str) -> Option<(Piece, &str)> {
    let end = text.find(['.', '[', '}', '{', '!', ':'])?;
    let (root, mut rest) = text.split_at(end);
    let mut steps = Vec::new();
    loop {
        if let Some(behind) = rest.strip_prefix('}') {
            return (!root.is_empty()).then(|| (Piece::Place { root: root.into(), steps: steps.into() }, behind));
        } else if let Some(behind) = rest.strip_prefix('.') {
            let end = behind.find(['.', '[', '}', '{', '!', ':'])?;
            steps.push(Step::Attribute(behind[..end].into()));
            rest = &behind[end..];
        } else {
            let (key, behind) = rest.strip_prefix('[')?.split_once(']')?;
            let is_index = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
            steps.push(match key.parse() {
                Ok(index) if is_index => Step::Index(index),
                _ => Step::Key(key.into()),
            });
            rest = behind;
        }
    }
}

enum Found<'a> {
    Value(&'a Value),
    Masked,
}

fn walk<'a>(root: &str, steps: &[Step], scope: Scope<'a>) -> Result<Found<'a>, Nowhere> {
    let (mut here, mut rest) = match root {
        "node" => match steps.split_first() {
            // An attribute of the node, of which the others are members.
            Some((Step::Attribute(name), rest)) => (scope.node.get(&**name).ok_or(Nowhere::Other)?, rest),
            _ => return Err(Nowhere::Other),
        },
        "inventory" => (scope.inventory, steps),
        "plugin_data" => (scope.plugin_data, steps),
        "item" => (scope.item.ok_or(Nowhere::Key)?, steps),
        _ => return Err(Nowhere::Key),
    };
    if let ("inventory" | "plugin_data", Some(Step::Key(key))) = (root, rest.first())
        && MASKED.contains(&&**key)
    {
        return Ok(Found::Masked);
    }
    while let Some((step, behind)) = rest.split_first() {
        here = match (step, here) {
            (Step::Key(key), Value::Object(map)) => map.get(&**key).ok_or(Nowhere::Key)?,
            (Step::Index(_), Value::Object(_)) => return Err(Nowhere::Key),
            (Step::Index(at), Value::Array(items)) => items.get(*at).ok_or(Nowhere::Other)?,
            _ => return Err(Nowhere::Other),
        };
        rest = behind;
    }
    Ok(Found::Value(here))
}

/// Writes a value as `str` does, and within another as `repr` does.
fn write_value(to: &mut String, value: &Value, within: bool) -> Result<(), Failure> {
    if to.len() > MAX_TEXT {
        return Err(Failure::TooLong);
    }
    match value {
        Value::Null => to.push_str("None"),
        Value::Bool(true) => to.push_str("True"),
        Value::Bool(false) => to.push_str("False"),
        Value::Number(number) => to.push_str(&python_number(number)),
        Value::String(text) if within => write_quoted(to, text),
        Value::String(text) => to.push_str(text),
        Value::Array(items) => {
            to.push('[');
            for (at, item) in items.iter().enumerate() {
                to.push_str(if at == 0 { "" } else { ", " });
                write_value(to, item, true)?;
            }
            to.push(']');
        }
        Value::Object(map) => {
            to.push('{');
            for (at, (key, item)) in map.iter().enumerate() {
                to.push_str(if at == 0 { "" } else { ", " });
                write_quoted(to, key);
                to.push_str(": ");
                write_value(to, item, true)?;
            }
            to.push('}');
        }
    }
    Ok(())
}

fn write_quoted(to: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    to.push(quote);
    for character in text.chars() {
        match character {
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            '\t' => to.push_str("\\t"),
            '\\' => to.push_str("\\\\"),
            one if one == quote => to.extend(['\\', one]),
            one => to.push(one),
        }
    }
    to.push(quote);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn places_are_filled_in_as_python_does() {
        let node = json!({"name": "n1", "extra": {"a": {"b": 1}}, "resource_class": null});
        let inventory = json!({"cpu": {"count": 8, "flags": ["aes", "it's"]}, "disks": [{"name": "sda"}], "password": "s3cret", "on": true});
        let item = json!({"path": "p"});
        let scope = Scope { node: &node, inventory: &inventory, plugin_data: &json!({"x": 1.0}), item: Some(&item) };
        for (source, filled) in [
            ("plain", "plain"),
            ("{node.name}-{inventory[cpu][count]}", "n1-8"),
            ("{inventory[disks][0][name]}", "sda"),
            ("{inventory[cpu][flags]}", "['aes', \"it's\"]"),
            ("{inventory[cpu]}", "{'count': 8, 'flags': ['aes', \"it's\"]}"),
            ("{node.extra[a][b]} {node.resource_class} {inventory[on]}", "1 None True"),
            ("{plugin_data[x]} {item[path]}", "1.0 p"),
            ("{{node.name}} {{}}", "{node.name} {}"),
            ("{inventory[password]}", "***"),
            // What leads nowhere, and what is not read, stands as it is.
            ("{inventory.cpu} {node.name}", "{inventory.cpu} {node.name}"),
            ("{node.nope}", "{node.nope}"),
            ("{inventory[nope]}", "{inventory[nope]}"),
            ("{inventory[disks][7]}", "{inventory[disks][7]}"),
            ("{other} {0} {}", "{other} {0} {}"),
            ("{node.name!r}", "{node.name!r}"),
            ("{node.name:>8}", "{node.name:>8}"),
            ("{node.name", "{node.name"),
            ("a } b", "a } b"),
            ("{ {node.name} }", "{ {node.name} }"),
        ] {
            let text = Text::new(source).unwrap();
            assert_eq!(text.fill(scope, &mut Budget::of_report()).unwrap(), filled, "{source}");
        }
    }

    /// The texts are those of `str` in Python 3.
    #[test]
    fn y09_numbers_are_filled_in_as_python_writes_them() {
        for (json, text) in [
            ("1e-7", "1e-07"),
            ("0.00001", "1e-05"),
            ("0.0001", "0.0001"),
            ("1e16", "1e+16"),
            ("[1e-7, {\"a\": 2.50}]", "[1e-07, {'a': 2.5}]"),
        ] {
            assert_eq!(python_text(&serde_json::from_str(json).unwrap()).unwrap(), text, "{json}");
        }
    }

    #[test]
    fn a_path_and_a_text_have_an_end() {
        let deep = |steps: usize| format!("{{inventory{}}}", "[a]".repeat(steps));
        assert!(Text::new(&deep(MAX_STEPS_OF_PATH)).is_ok());
        assert!(Text::new(&deep(MAX_STEPS_OF_PATH + 1)).is_err());
        let inventory = json!({"long": "v".repeat(MAX_TEXT / 2)});
        let none = Value::Null;
        let scope = Scope { node: &none, inventory: &inventory, plugin_data: &none, item: None };
        let fill = |source: &str| Text::new(source).unwrap().fill(scope, &mut Budget::of_report());
        assert!(fill("{inventory[long]}{inventory[long]}").is_ok());
        assert_eq!(fill("{inventory[long]}{inventory[long]}."), Err(Failure::TooLong));
    }
}
