//! Conditions and templates as core sees them: what they read, and whether a condition holds.
//!
//! Core decides placement and must not pull in a CEL interpreter or a template engine to do it: the agent
//! is built on core too and has neither. So the engines stand behind these traits, in `stemma-author`.

use std::fmt;
use std::sync::Arc;

use crate::input::{Inputs, Need, Reference};

/// Bytes that one part of a condition looks at in one step. What a node may spend is counted in steps, so they bound what
/// is looked at in bytes and in time alike (docs/adr/0011).
pub const STEP_BYTES: usize = 256;

/// The most steps that a condition may take over its inputs.
pub const MAX_STEPS: usize = 4_000_000;

/// The most steps that it may take over those of all nodes of a cluster, where it looks other nodes up for each of them.
const MAX_STEPS_OF_ALL: usize = 64_000_000;

/// Steps that a condition may always take for a node, whatever the size of the fleet.
const MIN_STEPS: usize = 1_000;

/// Steps that all conditions of a node together may always take, whatever the size of its cluster.
const MIN_STEPS_TOGETHER: usize = 16_384;

/// The most steps for each node of a cluster of so many, where a condition looks other nodes up. They are resolved together and what is
/// looked up grows with them, so what one may cost shrinks with their number.
pub(crate) fn steps_for_each(nodes: usize) -> usize {
    (MAX_STEPS_OF_ALL / rounded(nodes)).clamp(MIN_STEPS, MAX_STEPS)
}

/// The most steps that all conditions of a node may take together, in a cluster of so many nodes, where so many clusters have nodes. A pass
/// resolves them all, so what it may cost is bounded by the fleet and not by the conditions that somebody writes. Each cluster has the same
/// share of a pass and divides it among its nodes, down to a floor that makes a pass linear in them: what one cluster adds is taken
/// from no other (docs/adr/0014).
pub fn steps_together(clusters: usize, nodes: usize) -> usize {
    let of_cluster = MAX_STEPS_OF_ALL / rounded(clusters);
    (of_cluster / rounded(nodes)).clamp(MIN_STEPS_TOGETHER, MAX_STEPS)
}

/// A number as it divides steps: rounded up to a power of two, so that an answer seldom depends on who else is there.
pub(crate) fn rounded(count: usize) -> usize {
    count.max(1).next_power_of_two()
}

/// What a node pays for a condition that reads the same for all nodes of its cluster and is evaluated once for them; `each` is what
/// [`steps_for_each`] gives for that cluster.
pub(crate) fn share_of(steps: usize, each: usize) -> usize {
    steps.div_ceil(MAX_STEPS_OF_ALL / each)
}

/// A condition that was read once, when its release was stored.
pub trait Condition: fmt::Debug + Send + Sync {
    /// What it reads, sorted, each once. [`Condition::evaluate`] wants an input for each.
    fn references(&self) -> &[Reference];

    /// How many steps it takes to evaluate it over these inputs; counted before the first, without a copy of what is shared.
    ///
    /// # Errors
    /// [`ConditionError::TooLong`] where they are more than `most`; that something that it reads is not among the inputs.
    fn weigh(&self, inputs: &Inputs, most: usize) -> Result<usize, ConditionError>;

    /// Whether it holds for these inputs; others than its own are not looked at. [`Condition::weigh`] says beforehand how many steps this takes.
    ///
    /// # Errors
    /// [`ConditionError`]: such a condition counts as false, with a finding and the reason in `skipped`.
    fn evaluate(&self, inputs: &Inputs) -> Result<bool, ConditionError>;

    /// Where it reads by a name that nothing can have. What is new is refused for it; a condition that is stored already is taken as it
    /// stands.
    fn odd_names(&self) -> &[AuthorError] {
        &[]
    }
}

/// Why a condition could not be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// It reads what this node does not have, and does not ask for it first.
    #[error("reads `{}`, which is absent; ask with `has(…)` first", .reference.as_written())]
    Absent {
        /// What is absent.
        reference: Reference,
    },
    /// Its result is no boolean.
    #[error("gives {found}, not a boolean")]
    NotBoolean {
        /// The kind of its result.
        found: &'static str,
    },
    /// The inputs lack something that it reads: a mistake of the caller.
    #[error("`{}` is not among the inputs", .reference.as_written())]
    NotAnInput {
        /// What was not given.
        reference: Reference,
    },
    /// It takes more steps than a condition may.
    #[error(
        "takes more than {limit} steps over its inputs, the most in a cluster of this size: look up fewer nodes, or compare with nothing that the node says itself"
    )]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// With those before it, it takes more steps than all conditions of a node may.
    // It says neither the limit nor what is left of it: by these whoever is bound to a cluster could count the clusters of the fleet.
    #[error(
        "takes {steps} steps over its inputs, more than the conditions of the tasks before it leave of what all conditions of a node may take together; look up fewer nodes, or give the nodes that are meant a tag instead"
    )]
    TooMany {
        /// What it takes.
        steps: usize,
    },
    /// The interpreter's own error: a division by zero, a comparison of kinds that do not compare.
    #[error("failed: {reason}")]
    Failed {
        /// What it says, in one line.
        reason: String,
    },
}

/// A template that was read once, when its release was stored.
pub trait Template: fmt::Debug + Send + Sync {
    /// What it gives on a host with these inputs; `None` where it fails there.
    fn render(&self, inputs: &Inputs) -> Option<String>;

    /// Its text, spelled alike for all that differ in blanks, quotes or the form of a key alone.
    fn spelled(&self) -> &str;
}

/// Reads templates and conditions when a release is stored.
pub trait Author: Send + Sync {
    /// What a template of a file or of a command's item reads.
    ///
    /// # Errors
    /// [`AuthorError`] where it does not parse or reads other than docs/templates.md allows.
    fn template(&self, text: &str) -> Result<TemplateReads, AuthorError>;

    /// What the template of a shell script reads, and whether it puts in values unquoted.
    ///
    /// # Errors
    /// [`AuthorError`], also where a value stands at a place that cannot be quoted.
    fn script(&self, text: &str) -> Result<TemplateReads, AuthorError>;

    /// A condition, ready to be evaluated.
    ///
    /// # Errors
    /// [`AuthorError`] where it does not parse, is too large, or reads other than docs/templates.md allows.
    fn condition(&self, text: &str) -> Result<Arc<dyn Condition>, AuthorError>;

    /// The template of a path, ready to be rendered; `None`: this author renders nothing.
    fn path(&self, text: &str) -> Option<Arc<dyn Template>> {
        let _ = text;
        None
    }
}

/// What a template reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateReads {
    /// What it reads, sorted, each once.
    pub references: Vec<Reference>,
    /// Without what it fails, sorted, each once: labels, parameters, and fields of what look-ups find.
    pub needs: Vec<Need>,
    /// Where `|raw` stands in a script, as line and column: only an admin may store such a one (docs/trust.md, rule 3).
    pub raw: Vec<(u32, u32)>,
    /// Where a value would be read once more: as a pattern, as a path of keys, or as the name of a filter or test. What is new is
    /// refused for it; a template that is stored already is taken as it stands.
    pub read_again: Vec<AuthorError>,
    /// Where it reads by a name that nothing can have. What is new is refused for it likewise.
    pub odd_names: Vec<AuthorError>,
}

/// A template or condition that cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}: {why}; {remedy}")]
pub struct AuthorError {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// What stands there, quoted and cut at 64 characters.
    pub what: String,
    /// Why it is refused.
    pub why: String,
    /// What to write instead.
    pub remedy: String,
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// An author that finds one secret alone.
    pub(crate) struct OneSecret;

    impl Author for OneSecret {
        fn template(&self, text: &str) -> Result<TemplateReads, AuthorError> {
            let references = text.contains("secret('db')").then(|| "secret('db')".parse().unwrap());
            Ok(TemplateReads { references: references.into_iter().collect(), ..TemplateReads::default() })
        }

        fn script(&self, text: &str) -> Result<TemplateReads, AuthorError> {
            self.template(text)
        }

        fn condition(&self, text: &str) -> Result<Arc<dyn Condition>, AuthorError> {
            panic!("no task has one: {text}")
        }
    }
}
