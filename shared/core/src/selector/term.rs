//! One term of a selector.

use std::collections::BTreeSet;
use std::fmt;

use super::{InvalidSelector, REPORTED};
use crate::key::{LabelKey, is_kubernetes_value};
use crate::name::cut;

/// Which labels a term looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The effective labels.
    Effective,
    /// What the host reports.
    Reported,
}

/// How a term compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operator {
    /// `=`
    Equals,
    /// `==`, the same.
    DoubleEquals,
    /// `!=`; holds where the key is absent.
    NotEquals,
    /// `in (…)`
    In,
    /// `notin (…)`; holds where the key is absent.
    NotIn,
    /// The key alone.
    Exists,
    /// `!` and the key.
    DoesNotExist,
    /// `>` a whole number.
    GreaterThan,
    /// `<` a whole number.
    LessThan,
}

/// A key, an operator and its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    source: Source,
    key: LabelKey,
    operator: Operator,
    values: BTreeSet<String>,
    number: i64,
}

impl Operator {
    /// The sign or word.
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
    /// Checks key and values. The parser has seen to how many values there are.
    pub(super) fn new(
        source: Source,
        key: &str,
        operator: Operator,
        values: BTreeSet<String>,
    ) -> Result<Self, InvalidSelector> {
        let key = LabelKey::new(key).map_err(|why| InvalidSelector::Key { reason: why.to_string() })?;
        let number = match operator {
            Operator::GreaterThan | Operator::LessThan => one_number(&key, &values)?,
            Operator::Equals
            | Operator::DoubleEquals
            | Operator::NotEquals
            | Operator::In
            | Operator::NotIn
            | Operator::Exists
            | Operator::DoesNotExist => 0,
        };
        if let Some(value) = values.iter().find(|value| !is_kubernetes_value(value)) {
            return Err(InvalidSelector::Value { key: key.to_string(), value: cut(value) });
        }
        Ok(Self { source, key, operator, values, number })
    }

    /// Which labels it looks at.
    pub const fn source(&self) -> Source {
        self.source
    }

    /// The key.
    pub const fn key(&self) -> &LabelKey {
        &self.key
    }

    /// The operator, as it was written.
    pub const fn operator(&self) -> Operator {
        self.operator
    }

    /// The values, sorted, each once.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &str> {
        self.values.iter().map(String::as_str)
    }

    /// Whether a value (or none) meets it.
    pub fn matches(&self, value: Option<&str>) -> bool {
        match self.operator {
            Operator::Equals | Operator::DoubleEquals | Operator::In => {
                value.is_some_and(|value| self.values.contains(value))
            }
            Operator::NotEquals | Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan => whole(value).is_some_and(|value| value > self.number),
            Operator::LessThan => whole(value).is_some_and(|value| value < self.number),
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.source == Source::Reported {
            f.write_str(REPORTED)?;
        }
        let key = &self.key;
        let values = || self.values().collect::<Vec<_>>().join(",");
        match self.operator {
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::In | Operator::NotIn => write!(f, "{key} {} ({})", self.operator.sign(), values()),
            Operator::Equals
            | Operator::DoubleEquals
            | Operator::NotEquals
            | Operator::GreaterThan
            | Operator::LessThan => write!(f, "{key}{}{}", self.operator.sign(), values()),
        }
    }
}

fn one_number(key: &LabelKey, values: &BTreeSet<String>) -> Result<i64, InvalidSelector> {
    let text = values.first().map_or("", String::as_str);
    text.parse().map_err(|_| InvalidSelector::Number { key: key.to_string(), value: cut(text) })
}

fn whole(value: Option<&str>) -> Option<i64> {
    value?.parse().ok()
}
