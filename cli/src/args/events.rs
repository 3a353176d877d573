//! Arguments of `stemma events` and `stemma wait`.

use std::fmt;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, ValueEnum};
use stemma_core::object;

use super::node::parse_duration;
use super::{KindArg, ObjectRef, SelectionArgs, parse_whole};

/// The filter of `stemma events`.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct EventArgs {
    /// Only events of objects of these kinds.
    #[arg(long, value_delimiter = ',', value_parser = event_kind_parser())]
    pub(crate) kind: Vec<object::Kind>,
    /// Changes of objects, changes of the states of nodes, or both.
    #[arg(long, value_enum, default_value = "object")]
    pub(crate) class: EventClass,
    /// Only events of objects with these labels.
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    pub(crate) selector: Option<String>,
    /// Start with the event of this store revision. Default: only new events.
    #[arg(long, value_name = "REVISION", value_parser = parse_whole::<u64>)]
    pub(crate) from: Option<u64>,
}

/// Returns the kinds of objects that have events, which are the stored kinds. The controller accepts only these in a
/// filter.
fn event_kinds() -> impl Iterator<Item = object::Kind> {
    object::Kind::ALL.iter().copied().filter(|kind| kind.is_stored())
}

/// Returns a command line parser for a kind of object that has events. The parser also accepts the aliases of the kind.
fn event_kind_parser() -> impl TypedValueParser<Value = object::Kind> {
    PossibleValuesParser::new(event_kinds().map(possible_kind)).map(|word: String| {
        let mut kinds = event_kinds();
        kinds.find(|kind| possible_kind(*kind).matches(&word, false)).expect("the parser accepts no other word")
    })
}

/// Returns a kind as a value for the command line: its name, with the aliases that other commands accept for it.
fn possible_kind(kind: object::Kind) -> PossibleValue {
    let value = KindArg::from_str(kind.word(), false).ok().and_then(|kind| kind.to_possible_value());
    value.unwrap_or_else(|| PossibleValue::new(kind.word()))
}

/// A class of events: changes of objects, changes of the states of nodes, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventClass {
    Object,
    Status,
    All,
}

/// The arguments of `stemma wait`: objects, and the condition to wait for.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct WaitArgs {
    /// The kind of the objects, or one object as KIND/NAME.
    #[arg(value_name = "KIND[/NAME]")]
    pub(crate) subject: ObjectRef,
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// The condition: `deleted`, or FIELD=VALUE, such as state=converged, labels.tier=gold or notes=held. A field that
    /// is a list meets the condition if the list contains the value.
    #[arg(long = "for", value_name = "deleted|FIELD=VALUE")]
    pub(crate) wanted: WaitCondition,
    /// Maximum time to wait, such as 30s, 10m or 2h.
    #[arg(long, default_value = "10m", value_parser = parse_duration, value_name = "DURATION")]
    pub(crate) timeout: u64,
}

/// The condition that each object must meet before `stemma wait` ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WaitCondition {
    /// The object does not exist.
    Deleted,
    /// A field has this value, or is a list that contains this value. The first dot in `path` separates the field from
    /// a key in it.
    Field { path: String, value: String },
}

impl FromStr for WaitCondition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((path, value)) if !path.is_empty() => Ok(Self::Field { path: path.to_owned(), value: value.to_owned() }),
            _ if text == "deleted" => Ok(Self::Deleted),
            _ => Err("use `deleted` or FIELD=VALUE, such as state=converged".to_owned()),
        }
    }
}

impl fmt::Display for WaitCondition {
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

    /// The command line accepts the kinds that have events, and refuses other words. A join token is not an object of
    /// the model, so it has no events.
    #[test]
    fn y09_event_kind_parser_offers_kinds_of_events() {
        let parse_kinds = |words: &str| -> Result<Vec<object::Kind>, clap::Error> {
            let matches = EventArgs::augment_args(Command::new("events"));
            let matches = matches.try_get_matches_from(["events", "--kind", words])?;
            EventArgs::from_arg_matches(&matches).map(|args| args.kind)
        };
        for (words, expected) in [
            ("node,principal", vec![object::Kind::Node, object::Kind::Principal]),
            ("primary", vec![object::Kind::Primary]),
            ("releasetags", vec![object::Kind::ReleaseTags]),
            ("nodes,ng,templates", vec![object::Kind::Node, object::Kind::NodeGroup, object::Kind::ClusterTemplate]),
        ] {
            assert_eq!(parse_kinds(words).unwrap(), expected, "{words}");
        }
        for words in ["token", "secret", "revision", "expectation", "task", "node,token"] {
            let refused = parse_kinds(words).unwrap_err().to_string();
            assert!(refused.contains("[possible values: release, releasetags, "), "{words}: {refused}");
        }
    }

    #[test]
    fn wait_condition_parses_deletion_or_field_value() {
        for text in ["deleted", "state=converged", "labels.example.org/tier=a=b"] {
            assert!(text.parse::<WaitCondition>().is_ok(), "{text:?}");
        }
        for text in ["", "gone", "=x"] {
            assert!(text.parse::<WaitCondition>().is_err(), "{text:?}");
        }
    }
}
