//! What `events` and `wait` take.

use std::fmt;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, ValueEnum};
use stemma_core::object;

use super::node::seconds;
use super::{Kind, Selection, Subject, whole};

/// Which events.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct EventsAsked {
    /// Of objects of these kinds.
    #[arg(long, value_delimiter = ',', value_parser = told_kind())]
    pub(crate) kind: Vec<object::Kind>,
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

/// The kinds of objects that events tell of, as the controller takes them.
fn told_kinds() -> impl Iterator<Item = object::Kind> {
    object::Kind::ALL.iter().copied().filter(|kind| kind.is_stored())
}

/// One of them, also by the other names that it has as an argument.
fn told_kind() -> impl TypedValueParser<Value = object::Kind> {
    PossibleValuesParser::new(told_kinds().map(offered)).map(|word: String| {
        let mut kinds = told_kinds();
        kinds.find(|kind| offered(*kind).matches(&word, false)).expect("no other word is taken")
    })
}

/// A kind with its names.
fn offered(kind: object::Kind) -> PossibleValue {
    let named = Kind::from_str(kind.word(), false).ok().and_then(|kind| kind.to_possible_value());
    named.unwrap_or_else(|| PossibleValue::new(kind.word()))
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
    /// Until it is gone, or a field has this value or lists it: deleted, or FIELD=VALUE, as state=converged, labels.tier=gold or notes=held.
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
    /// With this value in a field, or behind a dot in a member of one; where that is a list, in it.
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
    use clap::{Command, FromArgMatches as _};

    use super::*;

    /// Docs: whatever an event is told of can be asked for; a join token is no object of the model, and no event tells of one.
    #[test]
    fn y09_the_kinds_that_are_offered_are_those_that_events_tell_of() {
        let asked = |words: &str| -> Result<Vec<object::Kind>, clap::Error> {
            let matches = EventsAsked::augment_args(Command::new("events"));
            let matches = matches.try_get_matches_from(["events", "--kind", words])?;
            EventsAsked::from_arg_matches(&matches).map(|asked| asked.kind)
        };
        for (words, expected) in [
            ("node,principal", vec![object::Kind::Node, object::Kind::Principal]),
            ("primary", vec![object::Kind::Primary]),
            ("releasetags", vec![object::Kind::ReleaseTags]),
            ("nodes,ng,templates", vec![object::Kind::Node, object::Kind::NodeGroup, object::Kind::ClusterTemplate]),
        ] {
            assert_eq!(asked(words).unwrap(), expected, "{words}");
        }
        for words in ["token", "secret", "revision", "expectation", "task", "node,token"] {
            let refused = asked(words).unwrap_err().to_string();
            assert!(refused.contains("[possible values: release, releasetags, "), "{words}: {refused}");
        }
    }

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
