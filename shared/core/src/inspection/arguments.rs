//! The arguments of conditions and actions: which are required, and how texts in them are filled in.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::budget::RuleBudget;
use super::limits::{Failure, InvalidRule, MAX_LOOP_ITEMS};
use super::text::{PathStep, TextScope, TextTemplate};

/// The arguments that the operator of a condition accepts, or that an action accepts: the names of the required
/// arguments, then the names of the optional arguments.
pub(super) type ArgumentSpec = (&'static [&'static str], &'static [&'static str]);

/// The arguments of a condition or action by name, as written in a rule.
pub(super) struct ArgumentMap<'a>(BTreeMap<&'a str, &'a Value>);

/// An argument of a condition or action. Values of a report can be filled into its texts.
#[derive(Clone, Debug)]
pub(super) enum RuleArgument {
    /// A text, which may contain placeholders.
    Text(TextTemplate),
    /// A list of arguments.
    List(Box<[RuleArgument]>),
    /// A map. Its keys may contain placeholders too.
    Map(Box<[(TextTemplate, RuleArgument)]>),
    /// `null`, a boolean or a number.
    Value(Value),
}

/// The items over which a condition or an action is repeated.
#[derive(Clone, Debug)]
pub(super) struct LoopItems(Box<[RuleArgument]>);

impl<'a> ArgumentMap<'a> {
    /// Parses arguments that a rule gives as a map by name, or as a list in the order of the specification. Fails if a
    /// required argument is missing, or an argument is unexpected.
    pub(super) fn parse((required, optional): ArgumentSpec, args: &'a Value) -> Result<Self, InvalidRule> {
        let allowed_names = || required.iter().chain(optional);
        let by_name: BTreeMap<&str, &Value> = match args {
            Value::Object(map) => map.iter().map(|(name, value)| (name.as_str(), value)).collect(),
            Value::Array(list) if list.len() <= allowed_names().count() => allowed_names().copied().zip(list).collect(),
            Value::Array(list) => {
                let reason = format!("there are {} of them, and the maximum is {}", list.len(), allowed_names().count());
                return Err(InvalidRule::new("args", reason));
            }
            _ => return Err(InvalidRule::new("args", "they must be a map with their names, or a list in their order")),
        };
        let missing: Vec<&str> = required.iter().copied().filter(|name| !by_name.contains_key(name)).collect();
        let unexpected: Vec<&str> = by_name.keys().copied().filter(|name| !allowed_names().any(|item| item == name)).collect();
        let message =
            |problem: &str, names: &[&str]| (!names.is_empty()).then(|| format!("{problem} argument(s): {}", names.join(", ")));
        let errors: Vec<String> =
            message("missing required", &missing).into_iter().chain(message("unexpected", &unexpected)).collect();
        if errors.is_empty() {
            Ok(Self(by_name))
        } else {
            Err(InvalidRule::new(
                "args",
                format!("{}; it takes {}", errors.join("; "), allowed_names().copied().collect::<Vec<_>>().join(", ")),
            ))
        }
    }

    /// Returns an argument that [`Self::parse`] required, with its texts parsed. Fails if a text in the argument is
    /// invalid.
    pub(super) fn required(&self, name: &str) -> Result<RuleArgument, InvalidRule> {
        RuleArgument::new(self.0.get(name).copied().unwrap_or(&Value::Null)).map_err(|e| e.prefixed(name))
    }

    /// Returns an argument as written, or `None` if it is absent.
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).copied()
    }

    /// Returns an argument that must be a text. Fails if the argument is absent or not a text.
    pub(super) fn text(&self, name: &'static str) -> Result<TextTemplate, InvalidRule> {
        let text = self.get(name).and_then(Value::as_str);
        let text = text.ok_or_else(|| InvalidRule::new(name, "it is a text"))?;
        TextTemplate::new(text).map_err(|e| e.prefixed(name))
    }

    /// Returns an argument that must be a boolean. The default is `false`.
    pub(super) fn boolean(&self, name: &'static str) -> Result<bool, InvalidRule> {
        match self.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(InvalidRule::new(name, "it is true or false")),
        }
    }
}

impl RuleArgument {
    /// Parses the texts in an argument. Fails if the path of a placeholder in a text is too long.
    pub(super) fn new(value: &Value) -> Result<Self, InvalidRule> {
        Ok(match value {
            Value::String(text) => Self::Text(TextTemplate::new(text)?),
            Value::Array(list) => Self::List(list.iter().map(Self::new).collect::<Result<_, _>>()?),
            Value::Object(map) => {
                let member = |(key, value): (&String, &Value)| Ok((TextTemplate::new(key)?, Self::new(value)?));
                Self::Map(map.iter().map(member).collect::<Result<_, InvalidRule>>()?)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => Self::Value(value.clone()),
        })
    }

    /// Returns whether the argument has no placeholders, so that its value never changes.
    pub(super) fn is_literal(&self) -> bool {
        match self {
            Self::Text(text) => text.is_literal(),
            Self::List(list) => list.iter().all(Self::is_literal),
            Self::Map(map) => map.iter().all(|(key, value)| key.is_literal() && value.is_literal()),
            Self::Value(_) => true,
        }
    }

    /// Returns the value of the argument, with its placeholders filled in from `scope`. Fails if a limit is exceeded.
    pub(super) fn fill(&self, scope: TextScope<'_>, budget: &mut RuleBudget) -> Result<Value, Failure> {
        Ok(match self {
            Self::Text(text) => Value::String(text.fill(scope, budget)?),
            Self::List(list) => {
                let filled: Result<Vec<Value>, _> = list.iter().map(|item| item.fill(scope, budget)).collect();
                Value::Array(filled?)
            }
            Self::Map(map) => {
                let mut filled = Map::new();
                for (key, value) in map {
                    filled.insert(key.fill(scope, budget)?, value.fill(scope, budget)?);
                }
                Value::Object(filled)
            }
            Self::Value(value) => {
                budget.consume(1)?;
                value.clone()
            }
        })
    }

    /// Returns the text that the author wrote at a path within the argument. Returns `None` if there is no text at the
    /// path, or if the path leads through a map whose keys have placeholders.
    pub(super) fn text_at(&self, steps: &[PathStep]) -> Option<&TextTemplate> {
        match (self, steps) {
            (Self::Text(text), []) => Some(text),
            (Self::List(list), [PathStep::Index(index), rest @ ..]) => list.get(*index)?.text_at(rest),
            (Self::Map(map), [PathStep::Key(key), rest @ ..]) if map.iter().all(|(name, _)| name.is_literal()) => {
                map.iter().find(|(name, _)| name.source() == &**key)?.1.text_at(rest)
            }
            _ => None,
        }
    }

    /// Returns whether the argument is a text with a placeholder that reads a missing key. Fails if a limit is
    /// exceeded.
    pub(super) fn has_missing_key(&self, scope: TextScope<'_>, budget: &mut RuleBudget) -> Result<bool, Failure> {
        match self {
            Self::Text(text) => text.has_missing_key(scope, budget),
            Self::List(_) | Self::Map(_) | Self::Value(_) => Ok(false),
        }
    }
}

impl LoopItems {
    /// Parses the `loop` of a condition or an action. Returns `None` if the loop is absent or empty. A map is a loop
    /// over a single item, the map itself. Fails if the loop is neither a list nor a map, has too many items, or
    /// contains an invalid text.
    pub(super) fn parse(value: Option<&Value>) -> Result<Option<Self>, InvalidRule> {
        let parse_items = |items: &[Value]| {
            if items.len() > MAX_LOOP_ITEMS {
                let reason = format!("it has {} items, and the maximum is {MAX_LOOP_ITEMS}", items.len());
                return Err(InvalidRule::new("loop", reason));
            }
            let items: Result<Box<[RuleArgument]>, _> = items.iter().map(RuleArgument::new).collect();
            items.map(|items| (!items.is_empty()).then_some(Self(items))).map_err(|e| e.prefixed("loop"))
        };
        match value {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(items)) => parse_items(items),
            Some(Value::Object(map)) if map.is_empty() => Ok(None),
            Some(map @ Value::Object(_)) => parse_items(std::slice::from_ref(map)),
            Some(_) => Err(InvalidRule::new("loop", "it is a list, or a map")),
        }
    }

    /// Returns the items as written: their placeholders are not filled in.
    pub(super) fn items(&self) -> &[RuleArgument] {
        &self.0
    }
}
