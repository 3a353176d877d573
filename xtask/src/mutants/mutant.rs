//! The mutants that cargo-mutants lists.

use anyhow::{Context, Result};
use serde_json::Value;

/// A mutant: one deliberate mistake in the code, made by replacing a piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mutant {
    /// The file, position and change of the mutant, as cargo-mutants prints them.
    pub(super) name: String,
    /// The file of the mutant, relative to the workspace's root.
    pub(super) file: String,
    /// The package that contains the file.
    pub(super) package: String,
    pub(super) kind: MutantKind,
    /// The start of the text that is replaced: line and column, from 1.
    pub(super) position: (usize, usize),
    /// The new text.
    pub(super) replacement: String,
}

/// The kind of a mutant. Mutants of most kinds can be put behind a switch: a condition in the code that activates the
/// mutant at run time. Then one build contains many mutants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MutantKind {
    /// A function body that returns a fixed value at once.
    Value,
    /// A binary operator that is replaced with another one.
    Operator,
    /// A removed unary operator.
    Unary,
    /// A removed match arm.
    Arm,
    /// A guard of a match arm that is replaced with another one.
    Guard,
    /// A mutant that cannot be put behind a switch, so it needs a build of its own.
    Other,
}

impl Mutant {
    /// Reads one entry of `cargo mutants --list --json`.
    ///
    /// # Errors
    /// Fails if a member of the entry is missing.
    pub(super) fn from_json(entry: &Value) -> Result<Self> {
        let text = |member: &str| -> Result<String> {
            Ok(entry[member].as_str().with_context(|| format!("a listed mutant has no {member}"))?.to_owned())
        };
        let start = |member: &str| entry["span"]["start"][member].as_u64().and_then(|number| number.try_into().ok());
        let kind = match text("genre")?.as_str() {
            "FnValue" => MutantKind::Value,
            "BinaryOperator" => MutantKind::Operator,
            "UnaryOperator" => MutantKind::Unary,
            "MatchArm" => MutantKind::Arm,
            "MatchArmGuard" => MutantKind::Guard,
            _ => MutantKind::Other,
        };
        let position = start("line").zip(start("column")).context("a listed mutant has no position")?;
        let (name, file, package) = (text("name")?, text("file")?, text("package")?);
        Ok(Self { name, file, package, kind, position, replacement: text("replacement")? })
    }

    /// Returns the path of the module whose unit tests are most likely to catch the mutant. This is the module of the
    /// file's directory below `src`, or of the file itself if the file is directly in `src`.
    pub(super) fn module(&self) -> String {
        let below = self.file.split_once("src/").map_or(self.file.as_str(), |(_, below)| below);
        let module = below.rsplit_once('/').map_or(below.trim_end_matches(".rs"), |(dir, _)| dir);
        module.replace('/', "::")
    }
}
