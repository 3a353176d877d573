//! What `events` and `wait` take.

use std::fmt;
use std::str::FromStr;

use clap::{Args as ClapArgs, ValueEnum};
use serde_json::Value;

use super::node::seconds;
use super::{Kind, Subject};
use crate::output::cell;

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
    #[arg(long, value_name = "REVISION")]
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
    /// Until it is gone, or a field has this value: deleted, or FIELD=VALUE, as state=converged.
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
    /// With this value in a field; members of a map after dots.
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

impl Condition {
    /// Whether an object that is gone is as it should be.
    pub(crate) fn is_deleted(&self) -> bool {
        *self == Self::Deleted
    }

    /// What an object is that is not yet as it should be; `None`: it is.
    pub(crate) fn missing(&self, object: Option<&Value>) -> Option<String> {
        match (self, object) {
            (Self::Deleted, object) => object.map(|_| "is there".to_owned()),
            (Self::Field { path, .. }, None) => Some(format!("has no {path}")),
            (Self::Field { path, value }, Some(object)) => {
                // A label's key may have dots of its own.
                let found = path.splitn(2, '.').try_fold(object, |found, part| found.get(part));
                let now = cell(found);
                (now != *value).then(|| format!("has {path}={now}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_condition_is_met_or_says_what_is_so() {
        let node = json!({"state": "failed", "labels": {"example.org/tier": "gold"}, "paused": true});
        for (condition, object, expected) in [
            ("state=failed", Some(&node), None),
            ("state=converged", Some(&node), Some("has state=failed")),
            ("labels.example.org/tier=gold", Some(&node), None),
            ("labels.tier=gold", Some(&node), Some("has labels.tier=-")),
            ("deleted", None, None),
            ("deleted", Some(&node), Some("is there")),
        ] {
            let condition: Condition = condition.parse().unwrap();
            assert_eq!(condition.missing(object).as_deref(), expected, "{condition}");
        }
        for text in ["", "gone", "=x"] {
            assert!(text.parse::<Condition>().is_err(), "{text:?}");
        }
    }
}
