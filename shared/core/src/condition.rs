//! Interfaces of conditions and templates: what they read, and whether a condition holds.
//!
//! Core decides placement and must not depend on a CEL interpreter or a template engine for it. The agent is built on
//! core too and has neither. So the engines are behind these traits, in `stemma-author`.

use std::fmt;
use std::sync::Arc;

use crate::input::{Inputs, Reference, RequiredReference};

/// Bytes that one part of a condition reads in one step. The limits of a node are counted in steps, so the limits bound
/// both bytes and time (docs/adr/0011).
pub const STEP_BYTES: usize = 256;

/// Maximum number of steps of a condition over its inputs.
pub const MAX_CONDITION_STEPS: usize = 4_000_000;

/// Maximum number of steps of a condition over the inputs of all nodes of a cluster, if it looks up other nodes for
/// each of them.
const MAX_CLUSTER_STEPS: usize = 64_000_000;

/// Number of steps that a condition may always use for a node, whatever the size of the fleet.
const MIN_CONDITION_STEPS: usize = 1_000;

/// Number of steps that all conditions of a node together may always use, whatever the size of its cluster.
const MIN_NODE_STEPS: usize = 16_384;

/// Returns the step limit of a condition that looks up other nodes, for each node of a cluster with `nodes` nodes. All
/// nodes of the cluster are resolved together, and the result of a look-up grows with their number. So the limit
/// shrinks with that number.
pub(crate) fn condition_step_limit(nodes: usize) -> usize {
    (MAX_CLUSTER_STEPS / round_count(nodes)).clamp(MIN_CONDITION_STEPS, MAX_CONDITION_STEPS)
}

/// Returns the step limit of all conditions of a node together. `nodes` is the number of nodes of its cluster, and
/// `clusters` the number of clusters that have nodes.
///
/// A pass resolves all nodes, so its cost must be bounded by the fleet and not by the conditions that authors write.
/// Each cluster has the same share of a pass and divides it among its nodes, down to a minimum that makes a pass linear
/// in the nodes. What one cluster adds is therefore not taken from another (docs/adr/0014).
pub fn node_step_limit(clusters: usize, nodes: usize) -> usize {
    let cluster_steps = MAX_CLUSTER_STEPS / round_count(clusters);
    (cluster_steps / round_count(nodes)).clamp(MIN_NODE_STEPS, MAX_CONDITION_STEPS)
}

/// Rounds a count up to a power of two before it divides steps, so that results seldom change when nodes or clusters
/// are added.
pub(crate) fn round_count(count: usize) -> usize {
    count.max(1).next_power_of_two()
}

/// Returns the share of one node in the steps of a condition that is evaluated once for all nodes of its cluster,
/// because it reads the same values for each. `limit` is the result of [`condition_step_limit`] for that cluster.
pub(crate) fn node_share(steps: usize, limit: usize) -> usize {
    steps.div_ceil(MAX_CLUSTER_STEPS / limit)
}

/// A condition that was parsed when its release was stored.
pub trait Condition: fmt::Debug + Send + Sync {
    /// Returns what the condition reads, sorted and unique. [`Condition::evaluate`] requires an input for each.
    fn references(&self) -> &[Reference];

    /// Returns the number of steps of an evaluation over these inputs. It is computed before the first step, without a
    /// copy of shared values.
    ///
    /// # Errors
    /// [`ConditionError::TooLong`] if the number is higher than `limit`, [`ConditionError::NotAnInput`] if an input is
    /// missing.
    fn cost(&self, inputs: &Inputs, limit: usize) -> Result<usize, ConditionError>;

    /// Returns whether the condition holds for these inputs. Inputs that it does not read are ignored.
    /// [`Condition::cost`] returns beforehand how many steps this takes.
    ///
    /// # Errors
    /// [`ConditionError`]. A condition with an error counts as false, with a finding and the reason in `skipped`.
    fn evaluate(&self, inputs: &Inputs) -> Result<bool, ConditionError>;

    /// Returns the places that read a name that nothing can have. A new condition is rejected for it. A stored one is
    /// accepted.
    fn impossible_names(&self) -> &[AuthorError] {
        &[]
    }
}

/// Reasons why a condition could not be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// The condition reads a value that this node lacks, without a check for it.
    #[error("reads `{}`, which is absent; check it with `has(…)` first", .reference.display_text())]
    Absent {
        /// The absent value.
        reference: Reference,
    },
    /// The result of the condition is not a boolean.
    #[error("returns {found}, not a boolean")]
    NotBoolean {
        /// The type of its result.
        found: &'static str,
    },
    /// The inputs lack a value that the condition reads. This is an error of the caller.
    #[error("`{}` is not among the inputs", .reference.display_text())]
    NotAnInput {
        /// The missing input.
        reference: Reference,
    },
    /// The condition takes more steps than one condition may.
    #[error(
        "takes more than {limit} steps over its inputs, the limit in a cluster of this size: look up fewer nodes, or compare with no value of the node itself"
    )]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// Together with the conditions before it, the condition takes more steps than all conditions of a node may.
    // The message contains neither the limit nor the remaining steps. From these, a principal bound to one cluster
    // could compute the number of clusters in the fleet.
    #[error(
        "takes {steps} steps over its inputs, more than the conditions of the tasks before it leave of the limit for all conditions of a node; look up fewer nodes, or place the task by a tag instead"
    )]
    TooMany {
        /// The steps of this condition.
        steps: usize,
    },
    /// An error of the interpreter, such as a division by zero or a comparison of incompatible types.
    #[error("failed: {reason}")]
    Failed {
        /// The interpreter's message, in one line.
        reason: String,
    },
}

/// A template that was parsed when its release was stored.
pub trait Template: fmt::Debug + Send + Sync {
    /// Returns the text for a host with these inputs, or `None` if rendering fails.
    fn render(&self, inputs: &Inputs) -> Option<String>;

    /// Returns the text of the template in a normal form. Templates that differ only in blanks, quotes or the form of a
    /// key have the same one.
    fn normalized_text(&self) -> &str;
}

/// Parses templates and conditions when a release is stored.
pub trait TemplateParser: Send + Sync {
    /// Parses the template of a file or of a command's item and returns what it reads.
    ///
    /// # Errors
    /// [`AuthorError`] if it does not parse, or reads what docs/templates.md does not allow.
    fn parse_template(&self, text: &str) -> Result<TemplateReads, AuthorError>;

    /// Parses the template of a shell script. Returns what it reads and where it inserts values unquoted.
    ///
    /// # Errors
    /// [`AuthorError`], also if a value is at a place that cannot be quoted.
    fn parse_script(&self, text: &str) -> Result<TemplateReads, AuthorError>;

    /// Parses a condition for evaluation.
    ///
    /// # Errors
    /// [`AuthorError`] if it does not parse, is too large, or reads what docs/templates.md does not allow.
    fn parse_condition(&self, text: &str) -> Result<Arc<dyn Condition>, AuthorError>;

    /// Parses the template of a path for rendering. Returns `None` if this parser cannot render.
    fn parse_path(&self, text: &str) -> Option<Arc<dyn Template>> {
        let _ = text;
        None
    }
}

/// The values that a template reads, and its use of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateReads {
    /// The references, sorted and unique.
    pub references: Vec<Reference>,
    /// The references without which the template fails, sorted and unique: labels, parameters, and fields of looked-up
    /// nodes.
    pub needs: Vec<RequiredReference>,
    /// The places of `|raw` in a script, as line and column. Only an admin may store such a template (docs/trust.md,
    /// rule 3).
    pub unquoted: Vec<(u32, u32)>,
    /// The places where a value would be evaluated once more: as a pattern, as a path of keys, or as the name of a
    /// filter or test. A new template is rejected for it. A stored one is accepted.
    pub reread_values: Vec<AuthorError>,
    /// The places that read a name that nothing can have. A new template is rejected for it. A stored one is accepted.
    pub impossible_names: Vec<AuthorError>,
}

/// A template or condition that cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}: {why}; {remedy}")]
pub struct AuthorError {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// The text at this position, quoted and cut at 64 characters.
    pub what: String,
    /// Why it is rejected.
    pub why: String,
    /// What to write instead.
    pub remedy: String,
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A parser that finds a single secret and nothing else.
    pub(crate) struct OneSecret;

    impl TemplateParser for OneSecret {
        fn parse_template(&self, text: &str) -> Result<TemplateReads, AuthorError> {
            let references = text.contains("secret('db')").then(|| "secret('db')".parse().unwrap());
            Ok(TemplateReads { references: references.into_iter().collect(), ..TemplateReads::default() })
        }

        fn parse_script(&self, text: &str) -> Result<TemplateReads, AuthorError> {
            self.parse_template(text)
        }

        fn parse_condition(&self, text: &str) -> Result<Arc<dyn Condition>, AuthorError> {
            panic!("no task has one: {text}")
        }
    }
}
