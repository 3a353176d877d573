//! Texts with placeholders such as `{node.name}` and `{inventory[cpu][count]}`. They are filled in like Python's
//! `str.format`, with values printed like `str`.
//!
//! If a placeholder has no value, the whole text is left unchanged, as in Ironic. The same holds for Python's other
//! forms, which are not supported here (`!r`, `:>8`).

use std::ops::Range;

use serde_json::Value;

use super::budget::RuleBudget;
use super::limits::{Failure, InvalidRule, MAX_PATH_STEPS, MAX_TEXT_BYTES};
use crate::json::python_number;

/// Fields at the top level of the inventory and of the plugin data that are secret. A placeholder such as
/// `{inventory[password]}` is filled in with `***`. A placeholder for the whole inventory or plugin data shows them.
const MASKED_FIELDS: [&str; 3] = ["password", "auth_token", "bmc_password"];

/// The values that the placeholders of a text can read, by root: `node`, `inventory`, `plugin_data` and `item`.
#[derive(Clone, Copy)]
pub(super) struct TextScope<'a> {
    pub(super) node: &'a Value,
    pub(super) inventory: &'a Value,
    pub(super) plugin_data: &'a Value,
    /// The current item of the loop of a condition or an action. `None` outside a loop.
    pub(super) item: Option<&'a Value>,
}

impl TextScope<'static> {
    /// The scope for checks before a host has reported. Few placeholders have a value in it: a secret such as
    /// `{inventory[password]}` is `***`, and `{inventory}` and `{plugin_data}` are `None`, as Python prints it.
    pub(super) const EMPTY: Self = Self { node: &Value::Null, inventory: &Value::Null, plugin_data: &Value::Null, item: None };
}

/// A parsed text with placeholders.
#[derive(Clone, Debug)]
pub(super) struct TextTemplate {
    /// The text as written.
    source: Box<str>,
    /// The plain texts and placeholders of the text, in order. Empty if the text is used unchanged.
    pieces: Box<[TextPiece]>,
}

#[derive(Clone, Debug)]
enum TextPiece {
    /// Text without placeholders.
    Plain(Box<str>),
    /// A placeholder: the name of the value that it reads, such as `node`, and the path within this value.
    Placeholder { root: Box<str>, steps: Box<[PathStep]> },
}

/// A step in the path of a placeholder.
#[derive(Clone, Debug)]
pub(super) enum PathStep {
    /// `.name`
    Attribute(Box<str>),
    /// `[name]`
    Key(Box<str>),
    /// `[0]`
    Index(usize),
}

/// The reason why a placeholder has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LookupFailure {
    /// A map lacks the key, or there is no value with the name of the root.
    MissingKey,
    /// Any other reason.
    Other,
}

impl TextTemplate {
    /// Parses a text. A text is used unchanged if Python's `str.format` would refuse it, or if it has a placeholder
    /// that is not supported here, such as `{a!r}`. Fails if a placeholder has more than [`MAX_PATH_STEPS`] steps.
    pub(super) fn new(source: &str) -> Result<Self, InvalidRule> {
        let pieces = if source.contains(['{', '}']) { parse_pieces(source).unwrap_or_default() } else { Vec::new() };
        for piece in &pieces {
            if let TextPiece::Placeholder { steps, .. } = piece
                && steps.len() > MAX_PATH_STEPS
            {
                let reason = format!("a path has at most {MAX_PATH_STEPS} steps, but one in {source:?} has more");
                return Err(InvalidRule::new("", reason));
            }
        }
        Ok(Self { source: source.into(), pieces: pieces.into() })
    }

    /// Returns the text as written.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// Returns whether the text has no placeholders.
    pub(super) fn is_literal(&self) -> bool {
        !self.pieces.iter().any(|piece| matches!(piece, TextPiece::Placeholder { .. }))
    }

    /// Returns the text with its placeholders filled in, or the text as written if a placeholder has no value. Fails if
    /// a limit is exceeded.
    pub(super) fn fill(&self, scope: TextScope<'_>, budget: &mut RuleBudget) -> Result<String, Failure> {
        Ok(self.fill_pieces(scope, budget, |_, _, _| ())?.unwrap_or_else(|_| self.source.to_string()))
    }

    /// Returns the text with its placeholders filled in, or `None` if a placeholder has no value. For each placeholder,
    /// `on_value` is called with its root, its steps, and the byte range of its value in the result.
    pub(super) fn fill_with_ranges<'t>(
        &'t self,
        scope: TextScope<'_>,
        budget: &mut RuleBudget,
        on_value: impl FnMut(&'t str, &'t [PathStep], Range<usize>),
    ) -> Result<Option<String>, Failure> {
        Ok(self.fill_pieces(scope, budget, on_value)?.ok())
    }

    /// Returns whether the first placeholder that has no value reads a missing key. Fails if a limit is exceeded.
    pub(super) fn has_missing_key(&self, scope: TextScope<'_>, budget: &mut RuleBudget) -> Result<bool, Failure> {
        Ok(self.fill_pieces(scope, budget, |_, _, _| ())? == Err(LookupFailure::MissingKey))
    }

    /// Fills in the placeholders of the text. The inner result is an error if a placeholder has no value. The outer
    /// result is an error if a limit is exceeded. Each placeholder, each step of its path, and each 64 bytes of the
    /// result cost a step of the budget. A text that is used unchanged costs one step more.
    fn fill_pieces<'t>(
        &'t self,
        scope: TextScope<'_>,
        budget: &mut RuleBudget,
        mut on_value: impl FnMut(&'t str, &'t [PathStep], Range<usize>),
    ) -> Result<Result<String, LookupFailure>, Failure> {
        if self.pieces.is_empty() {
            budget.consume(1 + self.source.len() / 64)?;
            return Ok(Ok(self.source.to_string()));
        }
        let mut text = String::new();
        for piece in &self.pieces {
            match piece {
                TextPiece::Plain(plain) => text.push_str(plain),
                TextPiece::Placeholder { root, steps } => {
                    budget.consume(1 + steps.len())?;
                    let begin = text.len();
                    match look_up(root, steps, scope) {
                        Ok(PlaceholderValue::Value(value)) => write_python(&mut text, value, false)?,
                        Ok(PlaceholderValue::Masked) => text.push_str("***"),
                        Err(failure) => return Ok(Err(failure)),
                    }
                    on_value(root, steps, begin..text.len());
                }
            }
            if text.len() > MAX_TEXT_BYTES {
                return Err(Failure::TooLong);
            }
        }
        budget.consume(text.len() / 64)?;
        Ok(Ok(text))
    }
}

/// Formats a value as Python's `str` does.
pub(super) fn python_text(value: &Value) -> Result<String, Failure> {
    let mut text = String::new();
    write_python(&mut text, value, false)?;
    Ok(text)
}

/// Parses a text with placeholders. A doubled brace is a plain brace. Returns `None` if Python's `str.format` would
/// refuse the text, or if a placeholder has a form that is not supported here, such as `{a!r}`.
fn parse_pieces(source: &str) -> Option<Vec<TextPiece>> {
    let (mut pieces, mut plain) = (Vec::new(), String::new());
    let mut rest = source;
    while let Some(index) = rest.find(['{', '}']) {
        plain.push_str(&rest[..index]);
        let (brace, after) = rest[index..].split_at(1);
        if let Some(after) = after.strip_prefix(brace) {
            plain.push_str(brace);
            rest = after;
            continue;
        }
        if brace == "}" {
            return None;
        }
        let (placeholder, after) = parse_placeholder(after)?;
        if !plain.is_empty() {
            pieces.push(TextPiece::Plain(std::mem::take(&mut plain).into()));
        }
        pieces.push(placeholder);
        rest = after;
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(TextPiece::Plain(plain.into()));
    }
    Some(pieces)
}

/// Parses a placeholder whose opening brace was already removed from `text`. Returns the placeholder, and the text
/// after its closing brace. Returns `None` if the placeholder has a form that is not supported.
fn parse_placeholder(text: &str) -> Option<(TextPiece, &str)> {
    let end = text.find(['.', '[', '}', '{', '!', ':'])?;
    let (root, mut rest) = text.split_at(end);
    let mut steps = Vec::new();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return (!root.is_empty()).then(|| (TextPiece::Placeholder { root: root.into(), steps: steps.into() }, after));
        } else if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[', '}', '{', '!', ':'])?;
            steps.push(PathStep::Attribute(after[..end].into()));
            rest = &after[end..];
        } else {
            let (key, after) = rest.strip_prefix('[')?.split_once(']')?;
            // As in Python, only digits are an index. `parse` alone would also accept a sign.
            let is_index = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
            steps.push(match key.parse() {
                Ok(index) if is_index => PathStep::Index(index),
                _ => PathStep::Key(key.into()),
            });
            rest = after;
        }
    }
}

enum PlaceholderValue<'a> {
    /// A value that may be shown.
    Value(&'a Value),
    /// A secret, which is shown as `***`.
    Masked,
}

/// Returns the value of a placeholder, or the reason why it has no value. Fields such as `password` at the top level of
/// the inventory or the plugin data are masked.
fn look_up<'a>(root: &str, steps: &[PathStep], scope: TextScope<'a>) -> Result<PlaceholderValue<'a>, LookupFailure> {
    let (mut value, mut rest) = match root {
        "node" => match steps.split_first() {
            // The first step must name an attribute of the node. The other steps lead into its value.
            Some((PathStep::Attribute(name), rest)) => (scope.node.get(&**name).ok_or(LookupFailure::Other)?, rest),
            _ => return Err(LookupFailure::Other),
        },
        "inventory" => (scope.inventory, steps),
        "plugin_data" => (scope.plugin_data, steps),
        "item" => (scope.item.ok_or(LookupFailure::MissingKey)?, steps),
        _ => return Err(LookupFailure::MissingKey),
    };
    if let ("inventory" | "plugin_data", Some(PathStep::Key(key))) = (root, rest.first())
        && MASKED_FIELDS.contains(&&**key)
    {
        return Ok(PlaceholderValue::Masked);
    }
    while let Some((step, after)) = rest.split_first() {
        value = match (step, value) {
            (PathStep::Key(key), Value::Object(map)) => map.get(&**key).ok_or(LookupFailure::MissingKey)?,
            // As in Python, a number is a missing key of a map, because all keys of the map are texts.
            (PathStep::Index(_), Value::Object(_)) => return Err(LookupFailure::MissingKey),
            (PathStep::Index(index), Value::Array(items)) => items.get(*index).ok_or(LookupFailure::Other)?,
            _ => return Err(LookupFailure::Other),
        };
        rest = after;
    }
    Ok(PlaceholderValue::Value(value))
}

/// Writes a value as Python's `str` does. If the value is inside a list or a map (`is_nested`), a text is quoted, as
/// `repr` does.
fn write_python(out: &mut String, value: &Value, is_nested: bool) -> Result<(), Failure> {
    if out.len() > MAX_TEXT_BYTES {
        return Err(Failure::TooLong);
    }
    match value {
        Value::Null => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Number(number) => out.push_str(&python_number(number)),
        Value::String(text) if is_nested => write_python_string(out, text),
        Value::String(text) => out.push_str(text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                write_python(out, item, true)?;
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (index, (key, item)) in map.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                write_python_string(out, key);
                out.push_str(": ");
                write_python(out, item, true)?;
            }
            out.push('}');
        }
    }
    Ok(())
}

/// Writes a text as Python's `repr` does: in quotes, with escapes.
fn write_python_string(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            other if other == quote => out.extend(['\\', other]),
            other => out.push(other),
        }
    }
    out.push(quote);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn placeholders_are_filled_like_python_format() {
        let node = json!({"name": "n1", "extra": {"a": {"b": 1}}, "resource_class": null});
        let inventory =
            json!({"cpu": {"count": 8, "flags": ["aes", "it's"]}, "disks": [{"name": "sda"}], "password": "s3cret", "on": true});
        let item = json!({"path": "p"});
        let scope = TextScope { node: &node, inventory: &inventory, plugin_data: &json!({"x": 1.0}), item: Some(&item) };
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
            // A text with a placeholder that has no value or is not supported is unchanged.
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
            let text = TextTemplate::new(source).unwrap();
            assert_eq!(text.fill(scope, &mut RuleBudget::for_report()).unwrap(), filled, "{source}");
        }
    }

    /// The expected texts are those of `str` in Python 3.
    #[test]
    fn y09_numbers_are_filled_like_python() {
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
    fn path_depth_and_text_length_are_bounded() {
        let deep = |steps: usize| format!("{{inventory{}}}", "[a]".repeat(steps));
        assert!(TextTemplate::new(&deep(MAX_PATH_STEPS)).is_ok());
        assert!(TextTemplate::new(&deep(MAX_PATH_STEPS + 1)).is_err());
        let inventory = json!({"long": "v".repeat(MAX_TEXT_BYTES / 2)});
        let none = Value::Null;
        let scope = TextScope { node: &none, inventory: &inventory, plugin_data: &none, item: None };
        let fill = |source: &str| TextTemplate::new(source).unwrap().fill(scope, &mut RuleBudget::for_report());
        assert!(fill("{inventory[long]}{inventory[long]}").is_ok());
        assert_eq!(fill("{inventory[long]}{inventory[long]}."), Err(Failure::TooLong));
    }
}
