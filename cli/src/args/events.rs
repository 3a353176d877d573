//! What `events` and `wait` take.

use std::fmt;
use std::str::FromStr;

use clap::{Args as ClapArgs, ValueEnum};

use super::node::seconds;
use super::{Kind, Selection, Subject, whole};

/// Which events.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct EventsAsked {
    /// Of objects of these kinds.
    #[arg(long, value_delimiter = ',')]
    pub(crate) kind: Vec<Kind>,
    /// Changes of objects, where nodes stand, or both.
    #[arg(long, value_enum, default_value = "object")]
    pub(crate) class: EventClass,
    /// Of objects with these labels.
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    pub(crate) selector: Option<String>,
    /// From this revision on; otherwise from now on.
    #[arg(long, value_name = "REVISION", value_parser = whole::<u64>)]
    pub(crate) from: Option<u64>,
}

/// A class of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventClass {
    Object,
    Status,
    All,
}

/// What is waited for.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Waited {
    /// Which objects.
    #[arg(value_name = "KIND[/NAME]")]
    pub(crate) subject: Subject,
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// Until it is gone, or a field has this value: deleted, or FIELD=VALUE, as state=converged or labels.tier=gold.
    #[arg(long = "for", value_name = "deleted|FIELD=VALUE")]
    pub(crate) wanted: Condition,
    /// At most so long, as 30s, 10m or 2h.
    #[arg(long, default_value = "10m", value_parser = seconds, value_name = "DURATION")]
    pub(crate) timeout: u64,
}

/// How an object should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Not there.
    Deleted,
    /// With this value in a field, or behind a dot in a member of one.
    Field { path: String, value: String },
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((path, value)) if !path.is_empty() => {
                Ok(Self::Field { path: path.to_owned(), value: value.to_owned() })
            }
            _ if text == "deleted" => Ok(Self::Deleted),
            _ => Err("it is `deleted`, or FIELD=VALUE, as state=converged".to_owned()),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleted => f.write_str("deleted"),
            Self::Field { path, value } => write!(f, "has {path}={value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_deleted_or_a_field_with_a_value() {
        for text in ["deleted", "state=converged", "labels.example.org/tier=a=b"] {
            assert!(text.parse::<Condition>().is_ok(), "{text:?}");
        }
        for text in ["", "gone", "=x"] {
            assert!(text.parse::<Condition>().is_err(), "{text:?}");
        }
    }
}
