//! Arguments of the catalogue commands.

use std::path::PathBuf;

use clap::builder::PossibleValue;
use clap::{Subcommand, ValueEnum};
use stemma_core::catalog::KeyKind;

use super::KindArg;

/// The commands for the catalogue.
#[derive(Debug, Subcommand)]
pub(crate) enum CatalogCommand {
    /// Import namespaces from files with Glance's metadata definitions. Namespaces that are stored already are left
    /// unchanged, unless one of the flags is given.
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
        /// Add to stored namespaces what they lack, and change nothing else.
        #[arg(long, conflicts_with = "overwrite")]
        merge: bool,
        /// Replace stored namespaces, whoever wrote them.
        #[arg(long)]
        overwrite: bool,
    },
}

/// The treatment of a namespace that is stored already, in an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImportMode {
    /// Leaves the stored namespace unchanged.
    Keep,
    /// Changes nothing, and lists what [`ImportMode::Overwrite`] would change.
    Diff,
    /// Adds what the stored namespace lacks.
    Merge,
    /// Replaces the stored namespace.
    Overwrite,
}

/// The subject of `explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExplainTarget {
    /// An object.
    Object(KindArg),
    /// A key of the catalogue.
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
            Self::Key(kind) => Some(PossibleValue::new(kind.description())),
        }
    }
}
