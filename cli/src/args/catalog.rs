//! The catalogue on the command line.

use std::path::PathBuf;

use clap::builder::PossibleValue;
use clap::{Subcommand, ValueEnum};
use stemma_core::catalog::Bound;

use super::Kind;

/// The catalogue.
#[derive(Debug, Subcommand)]
pub(crate) enum Catalog {
    /// Store namespaces from Glance's files. Those that are stored already are left as they are, unless one of the flags says otherwise.
    Import {
        /// A file of one namespace, or a directory of them (`*.json`).
        #[arg(required_unless_present = "builtin", value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// The namespaces that come with this program.
        #[arg(long)]
        builtin: bool,
        /// Write nothing, and list what `--overwrite` would change; status 6 where it would.
        #[arg(long, conflicts_with_all = ["merge", "overwrite"])]
        diff: bool,
        /// Add to stored namespaces what they have not, and change nothing that they have.
        #[arg(long, conflicts_with = "overwrite")]
        merge: bool,
        /// Put what is imported in the place of what is stored, whoever wrote it.
        #[arg(long)]
        overwrite: bool,
    },
}

/// What an import does with a namespace that is stored already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing.
    Keep,
    /// Lists what would be replaced.
    Diff,
    /// Adds what it has not.
    Merge,
    /// Replaces it.
    Overwrite,
}

/// What `explain` is asked of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Explained {
    /// An object.
    Object(Kind),
    /// A key of the catalogue.
    Key(Bound),
}

impl ValueEnum for Explained {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::Object(Kind::Node),
            Self::Key(Bound::Label),
            Self::Key(Bound::Parameter),
            Self::Key(Bound::Property),
            Self::Key(Bound::Fact),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Object(kind) => kind.to_possible_value(),
            Self::Key(bound) => Some(PossibleValue::new(bound.word())),
        }
    }
}
