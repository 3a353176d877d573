//! The mistakes that cargo-mutants would make, as it lists them.

use anyhow::{Context, Result};
use serde_json::Value;

/// A mistake made on purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    /// Its file, place and what is changed, as cargo-mutants names it.
    pub(super) name: String,
    /// Its file, from the workspace's root on.
    pub(super) file: String,
    pub(super) package: String,
    pub(super) genre: Genre,
    /// Where the text begins that it takes the place of: line and column, from 1.
    pub(super) at: (usize, usize),
    pub(super) replacement: String,
}

/// What kind of mistake it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Genre {
    /// A function that answers something at once.
    Value,
    /// Another operator between two operands.
    Operator,
    /// An operator before an operand left out.
    Unary,
    /// An arm of a match left out.
    Arm,
    /// Another guard of an arm.
    Guard,
    /// One that no switch can stand before.
    Other,
}

impl Mistake {
    /// One of `cargo mutants --list --json`.
    ///
    /// # Errors
    /// When a member is missing.
    pub(super) fn read(listed: &Value) -> Result<Self> {
        let text = |member: &str| -> Result<String> {
            Ok(listed[member].as_str().with_context(|| format!("a listed mistake has no {member}"))?.to_owned())
        };
        let start = |member: &str| listed["span"]["start"][member].as_u64().and_then(|number| number.try_into().ok());
        let genre = match text("genre")?.as_str() {
            "FnValue" => Genre::Value,
            "BinaryOperator" => Genre::Operator,
            "UnaryOperator" => Genre::Unary,
            "MatchArm" => Genre::Arm,
            "MatchArmGuard" => Genre::Guard,
            _ => Genre::Other,
        };
        let at = start("line").zip(start("column")).context("a listed mistake has no place")?;
        let (name, file, package) = (text("name")?, text("file")?, text("package")?);
        Ok(Self { name, file, package, genre, at, replacement: text("replacement")? })
    }

    /// The module whose unit tests most likely notice it: that of its directory below `src`, or of its file where it is in none.
    pub(super) fn module(&self) -> String {
        let below = self.file.split_once("src/").map_or(self.file.as_str(), |(_, below)| below);
        let module = below.rsplit_once('/').map_or(below.trim_end_matches(".rs"), |(dir, _)| dir);
        module.replace('/', "::")
    }
}
