//! Arguments of the commands for the catalogue, which defines the known keys and their values.

use std::path::PathBuf;

use clap::builder::PossibleValue;
use clap::{Subcommand, ValueEnum};
use stemma_core::catalog::KeyKind;

use super::KindArg;

/// The subcommands of `stemma catalog`.
#[derive(Debug, Subcommand)]
pub(crate) enum CatalogCommand {
    /// Import namespaces (groups of keys of the catalogue) from files with metadata definitions of Glance, `OpenStack`'s
    /// image service. A namespace that is stored already is left unchanged, unless --merge or --overwrite is given.
    Import {
        /// A file with one namespace, or a directory of such files (`*.json`).
        #[arg(required_unless_present = "builtin", value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// Import the namespaces that are part of this program.
        #[arg(long)]
        builtin: bool,
        /// Write nothing, and list what `--overwrite` would change. Ends with status 6 if it would change anything.
        #[arg(long, conflicts_with_all = ["merge", "overwrite"])]
        diff: bool,
        /// Add to each stored namespace what it lacks, and change nothing else.
        #[arg(long, conflicts_with = "overwrite")]
        merge: bool,
        /// Replace stored namespaces, even if other managers own them.
        #[arg(long)]
        overwrite: bool,
    },
}

/// The mode of `stemma catalog import`. It decides what happens to a namespace that the controller has stored already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImportMode {
    /// The stored namespace remains unchanged.
    Keep,
    /// Nothing is changed. The import lists what [`ImportMode::Overwrite`] would change.
    Diff,
    /// The import adds what the stored namespace lacks.
    Merge,
    /// The import replaces the stored namespace.
    Overwrite,
}

/// The subject of `stemma explain`: an object, or a key of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExplainTarget {
    /// An object of this kind. Only nodes can be explained.
    Object(KindArg),
    /// A key of this kind in the catalogue, such as a label.
    Key(KeyKind),
}

impl ValueEnum for ExplainTarget {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::Object(KindArg::Node),
            Self::Key(KeyKind::Label),
            Self::Key(KeyKind::Parameter),
            Self::Key(KeyKind::Property),
            Self::Key(KeyKind::Fact),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Object(kind) => kind.to_possible_value(),
            // The description of a kind of key is one word, such as `label`.
            Self::Key(kind) => Some(PossibleValue::new(kind.description())),
        }
    }
}
