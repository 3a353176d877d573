//! A term of a selector: a condition on one label.

use std::collections::BTreeSet;
use std::fmt;

use super::{InvalidSelector, REPORTED_PREFIX};
use crate::key::{LabelKey, is_kubernetes_value};
use crate::name::truncated;

/// The labels against which a term is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LabelSource {
    /// The effective labels.
    Effective,
    /// The labels that the host reports.
    Reported,
}

/// The operator of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operator {
    /// `=`
    Equals,
    /// `==`, the same as `=`.
    DoubleEquals,
    /// `!=`. Matches if the key is absent.
    NotEquals,
    /// `in (…)`
    In,
    /// `notin (…)`. Matches if the key is absent.
    NotIn,
    /// The key alone.
    Exists,
    /// `!` and the key.
    DoesNotExist,
    /// `>` and an integer.
    GreaterThan,
    /// `<` and an integer.
    LessThan,
}

/// A term: a key, an operator and the values of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    source: LabelSource,
    key: LabelKey,
    operator: Operator,
    values: BTreeSet<String>,
    number: i64,
}

impl Operator {
    /// Returns the sign or word of the operator in a selector's text.
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
    /// Checks the key and the values. The parser has already checked the number of values.
    pub(super) fn new(
        source: LabelSource,
        key: &str,
        operator: Operator,
        values: BTreeSet<String>,
    ) -> Result<Self, InvalidSelector> {
        let key = LabelKey::new(key).map_err(|why| InvalidSelector::Key { reason: why.to_string() })?;
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
        Ok(Self { source, key, operator, values, number })
    }

    /// Returns the labels against which the term is matched.
    pub const fn source(&self) -> LabelSource {
        self.source
    }

    /// Returns the key.
    pub const fn key(&self) -> &LabelKey {
        &self.key
    }

    /// Returns the operator, as written.
    pub const fn operator(&self) -> Operator {
        self.operator
    }

    /// Returns the values, sorted and without duplicates.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &str> {
        self.values.iter().map(String::as_str)
    }

    /// Returns whether a value, or its absence, matches the term.
    pub fn matches(&self, value: Option<&str>) -> bool {
        match self.operator {
            Operator::Equals | Operator::DoubleEquals | Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotEquals | Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan => parse_integer(value).is_some_and(|value| value > self.number),
            Operator::LessThan => parse_integer(value).is_some_and(|value| value < self.number),
        }
    }
}

impl fmt::Display for Term {
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

fn parse_bound(key: &LabelKey, values: &BTreeSet<String>) -> Result<i64, InvalidSelector> {
    let text = values.first().map_or("", String::as_str);
    text.parse().map_err(|_| InvalidSelector::Number { key: key.to_string(), value: truncated(text) })
}

fn parse_integer(value: Option<&str>) -> Option<i64> {
    value?.parse().ok()
}
