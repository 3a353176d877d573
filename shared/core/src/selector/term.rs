//! A term of a selector: a condition on one label.

use std::collections::BTreeSet;
use std::fmt;

use super::{InvalidSelector, REPORTED_PREFIX};
use crate::key::{LabelKey, is_kubernetes_value};
use crate::name::truncated;

/// The set of labels against which a term is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LabelSource {
    /// The effective labels of the object (a node, or another object with labels such as a cluster).
    Effective,
    /// The labels that the host of a node reports. All other objects have none.
    Reported,
}

/// The operator of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operator {
    /// `=`. Matches if the key has this value.
    Equals,
    /// `==`, with the meaning of `=`.
    DoubleEquals,
    /// `!=`. Matches if the key has another value or is absent.
    NotEquals,
    /// `in (…)`. Matches if the key has one of these values.
    In,
    /// `notin (…)`. Matches if the key has none of these values or is absent.
    NotIn,
    /// The key alone. Matches if the key has any value.
    Exists,
    /// `!` and the key. Matches if the key is absent.
    DoesNotExist,
    /// `>` and an integer. Matches if the value is a greater integer.
    GreaterThan,
    /// `<` and an integer. Matches if the value is a smaller integer.
    LessThan,
}

/// A term: a key, an operator and the values of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    source: LabelSource,
    key: LabelKey,
    operator: Operator,
    values: BTreeSet<String>,
    /// The integer after `>` or `<`. 0 for other operators, which do not use this field.
    bound: i64,
}

impl Operator {
    /// Returns the sign or word of the operator in a selector's text. A text has no sign for `Exists`, so the result is
    /// the word `exists`.
    pub const fn sign(self) -> &'static str {
        match self {
            Self::Equals => "=",
            Self::DoubleEquals => "==",
            Self::NotEquals => "!=",
            Self::In => "in",
            Self::NotIn => "notin",
            Self::Exists => "exists",
            Self::DoesNotExist => "!",
            Self::GreaterThan => ">",
            Self::LessThan => "<",
        }
    }
}

impl Term {
    /// Creates a term. Fails if the key or a value is not valid in Kubernetes, or if the value after `>` or `<` is not
    /// an integer. The caller has already checked the number of values.
    pub(super) fn new(
        source: LabelSource,
        key: &str,
        operator: Operator,
        values: BTreeSet<String>,
    ) -> Result<Self, InvalidSelector> {
        let key = LabelKey::new(key).map_err(|error| InvalidSelector::Key { reason: error.to_string() })?;
        let number = match operator {
            Operator::GreaterThan | Operator::LessThan => parse_bound(&key, &values)?,
            Operator::Equals
            | Operator::DoubleEquals
            | Operator::NotEquals
            | Operator::In
            | Operator::NotIn
            | Operator::Exists
            | Operator::DoesNotExist => 0,
        };
        if let Some(value) = values.iter().find(|value| !is_kubernetes_value(value)) {
            return Err(InvalidSelector::Value { key: key.to_string(), value: truncated(value) });
        }
        Ok(Self { source, key, operator, values, bound: number })
    }

    /// Returns the labels against which the term is matched.
    pub const fn source(&self) -> LabelSource {
        self.source
    }

    /// Returns the key.
    pub const fn key(&self) -> &LabelKey {
        &self.key
    }

    /// Returns the operator as the selector's text has it. `=` and `==` are different operators with one meaning.
    pub const fn operator(&self) -> Operator {
        self.operator
    }

    /// Returns the values, sorted and without duplicates.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &str> {
        self.values.iter().map(String::as_str)
    }

    /// Returns whether an object with this value of the term's key matches the term. `None` is an absent key. `>` and
    /// `<` match only if the value is an integer.
    pub fn matches(&self, value: Option<&str>) -> bool {
        match self.operator {
            Operator::Equals | Operator::DoubleEquals | Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotEquals | Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan => parse_integer(value).is_some_and(|value| value > self.bound),
            Operator::LessThan => parse_integer(value).is_some_and(|value| value < self.bound),
        }
    }
}

impl fmt::Display for Term {
    /// Writes the term as in a selector's text, with sorted values: `reported:rack in (r1,r2)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.source == LabelSource::Reported {
            f.write_str(REPORTED_PREFIX)?;
        }
        let key = &self.key;
        let values = || self.values().collect::<Vec<_>>().join(",");
        match self.operator {
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::In | Operator::NotIn => write!(f, "{key} {} ({})", self.operator.sign(), values()),
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals | Operator::GreaterThan | Operator::LessThan => {
                write!(f, "{key}{}{}", self.operator.sign(), values())
            }
        }
    }
}

/// Returns the integer after `>` or `<`. Fails if the value is not an integer of 64 bits.
fn parse_bound(key: &LabelKey, values: &BTreeSet<String>) -> Result<i64, InvalidSelector> {
    let text = values.first().map_or("", String::as_str);
    text.parse().map_err(|_| InvalidSelector::Number { key: key.to_string(), value: truncated(text) })
}

/// Returns a label value as an integer. `None` if the value is absent or not an integer.
fn parse_integer(value: Option<&str>) -> Option<i64> {
    value?.parse().ok()
}
