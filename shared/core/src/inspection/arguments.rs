//! The arguments of conditions and actions: which there must be, and what is filled into them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::budget::Budget;
use super::limits::{Failure, InvalidRule, MAX_ITEMS};
use super::text::{Scope, Step, Text};

/// What an operator or action takes: the arguments that must be given, then those that may be.
pub(super) type Signature = (&'static [&'static str], &'static [&'static str]);

/// What was given, by name.
pub(super) struct Given<'a>(BTreeMap<&'a str, &'a Value>);

/// A value whose texts are filled in.
#[derive(Clone, Debug)]
pub(super) enum Argument {
    Text(Text),
    List(Box<[Argument]>),
    Map(Box<[(Text, Argument)]>),
    Value(Value),
}

/// What a condition is asked of, or an action done with, one after the other.
#[derive(Clone, Debug)]
pub(super) struct Loop(Box<[Argument]>);

impl<'a> Given<'a> {
    /// Reads what was given: by name, or in the order of the signature.
    pub(super) fn read((required, optional): Signature, args: &'a Value) -> Result<Self, InvalidRule> {
        let known = || required.iter().chain(optional);
        let given: BTreeMap<&str, &Value> = match args {
            Value::Object(map) => map.iter().map(|(name, value)| (name.as_str(), value)).collect(),
            Value::Array(list) if list.len() <= known().count() => known().copied().zip(list).collect(),
            Value::Array(list) => {
                let reason = format!("there are {} of them, and the most are {}", list.len(), known().count());
                return Err(InvalidRule::new("args", reason));
            }
            _ => return Err(InvalidRule::new("args", "they are a map by name, or a list in their order")),
        };
        let missing: Vec<&str> = required.iter().copied().filter(|name| !given.contains_key(name)).collect();
        let unexpected: Vec<&str> = given.keys().copied().filter(|name| !known().any(|one| one == name)).collect();
        let said = |what: &str, names: &[&str]| {
            (!names.is_empty()).then(|| format!("{what} argument(s): {}", names.join(", ")))
        };
        let wrong: Vec<String> =
            said("missing required", &missing).into_iter().chain(said("unexpected", &unexpected)).collect();
        if wrong.is_empty() {
            Ok(Self(given))
        } else {
            Err(InvalidRule::new(
                "args",
                format!("{}; it takes {}", wrong.join("; "), known().copied().collect::<Vec<_>>().join(", ")),
            ))
        }
    }

    /// An argument that must be there.
    pub(super) fn needed(&self, name: &str) -> Result<Argument, InvalidRule> {
        Argument::new(self.0.get(name).copied().unwrap_or(&Value::Null)).map_err(|e| e.within(name))
    }

    /// An argument that may be there.
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).copied()
    }

    /// One that is a text.
    pub(super) fn text(&self, name: &'static str) -> Result<Text, InvalidRule> {
        let text = self.get(name).and_then(Value::as_str);
        let text = text.ok_or_else(|| InvalidRule::new(name, "it is a text"))?;
        Text::new(text).map_err(|e| e.within(name))
    }

    /// One that is true or false, and false where it is not given.
    pub(super) fn flag(&self, name: &'static str) -> Result<bool, InvalidRule> {
        match self.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(InvalidRule::new(name, "it is true or false")),
        }
    }
}

impl Argument {
    pub(super) fn new(value: &Value) -> Result<Self, InvalidRule> {
        Ok(match value {
            Value::String(text) => Self::Text(Text::new(text)?),
            Value::Array(list) => Self::List(list.iter().map(Self::new).collect::<Result<_, _>>()?),
            Value::Object(map) => {
                let member = |(key, value): (&String, &Value)| Ok((Text::new(key)?, Self::new(value)?));
                Self::Map(map.iter().map(member).collect::<Result<_, InvalidRule>>()?)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => Self::Value(value.clone()),
        })
    }

    /// Whether nothing is filled in.
    pub(super) fn is_plain(&self) -> bool {
        match self {
            Self::Text(text) => text.is_plain(),
            Self::List(list) => list.iter().all(Self::is_plain),
            Self::Map(map) => map.iter().all(|(key, value)| key.is_plain() && value.is_plain()),
            Self::Value(_) => true,
        }
    }

    /// The value, with its texts filled in.
    pub(super) fn fill(&self, scope: Scope<'_>, budget: &mut Budget) -> Result<Value, Failure> {
        Ok(match self {
            Self::Text(text) => Value::String(text.fill(scope, budget)?),
            Self::List(list) => {
                let filled: Result<Vec<Value>, _> = list.iter().map(|one| one.fill(scope, budget)).collect();
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
                budget.take(1)?;
                value.clone()
            }
        })
    }

    /// The text that steps lead to, as it is written; nothing where they lead to something else, or through a key that is filled in.
    pub(super) fn text_at(&self, steps: &[Step]) -> Option<&Text> {
        match (self, steps) {
            (Self::Text(text), []) => Some(text),
            (Self::List(list), [Step::Index(at), rest @ ..]) => list.get(*at)?.text_at(rest),
            (Self::Map(map), [Step::Key(key), rest @ ..]) if map.iter().all(|(name, _)| name.is_plain()) => {
                map.iter().find(|(name, _)| name.source() == &**key)?.1.text_at(rest)
            }
            _ => None,
        }
    }

    /// Whether it is a text with a key that is not there.
    pub(super) fn lacks_key(&self, scope: Scope<'_>, budget: &mut Budget) -> Result<bool, Failure> {
        match self {
            Self::Text(text) => text.lacks_key(scope, budget),
            Self::List(_) | Self::Map(_) | Self::Value(_) => Ok(false),
        }
    }
}

impl Loop {
    /// Reads a loop; nothing where there is none. A map is one item.
    pub(super) fn read(given: Option<&Value>) -> Result<Option<Self>, InvalidRule> {
        let read = |items: &[Value]| {
            if items.len() > MAX_ITEMS {
                let reason = format!("it has {} items, and the most are {MAX_ITEMS}", items.len());
                return Err(InvalidRule::new("loop", reason));
            }
            let items: Result<Box<[Argument]>, _> = items.iter().map(Argument::new).collect();
            items.map(|items| (!items.is_empty()).then_some(Self(items))).map_err(|e| e.within("loop"))
        };
        match given {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(items)) => read(items),
            Some(Value::Object(map)) if map.is_empty() => Ok(None),
            Some(map @ Value::Object(_)) => read(std::slice::from_ref(map)),
            Some(_) => Err(InvalidRule::new("loop", "it is a list, or a map")),
        }
    }

    /// The items, not yet filled in.
    pub(super) fn items(&self) -> &[Argument] {
        &self.0
    }
}
