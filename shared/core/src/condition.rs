//! Interfaces of conditions and templates: what they read, and whether a condition holds.
//!
//! Core decides placement and must not depend on a CEL interpreter or a template engine for it. The agent is built on
//! core too and has neither. So the engines are behind these traits, in `stemma-author`.

use std::fmt;
use std::sync::Arc;

use crate::input::{Inputs, Reference, RequiredReference};

/// Number of bytes of inputs that a part of a condition, such as a comparison, reads in one step. The limits of
/// conditions are counted in steps, so that they bound both bytes and time (docs/adr/0011).
pub const STEP_BYTES: usize = 256;

/// Maximum number of steps of one condition over the inputs of one node.
pub const MAX_CONDITION_STEPS: usize = 4_000_000;

/// Maximum number of steps, for all nodes of a cluster together, of one condition that looks up other nodes and also
/// reads values of the node itself. Its cost for each node grows with the cluster. [`node_step_limit`] divides the same
/// number among all clusters.
const MAX_CLUSTER_STEPS: usize = 64_000_000;

/// Minimum of the limit of [`condition_step_limit`], even in the largest cluster.
const MIN_CONDITION_STEPS: usize = 1_000;

/// Number of steps that all conditions of a node together may always use, even in the largest cluster.
const MIN_NODE_STEPS: usize = 16_384;

/// Returns the maximum number of steps for one node of a condition that looks up other nodes and also reads values of
/// the node itself. `nodes` is the number of nodes of the cluster.
///
/// All nodes of a cluster are resolved together, and the result of a look-up grows with their number. So the limit
/// shrinks as the number grows.
pub(crate) fn condition_step_limit(nodes: usize) -> usize {
    (MAX_CLUSTER_STEPS / round_count(nodes)).clamp(MIN_CONDITION_STEPS, MAX_CONDITION_STEPS)
}

/// Returns the maximum number of steps of all conditions of a node together. `nodes` is the number of nodes of its
/// cluster, and `clusters` is the number of clusters that have nodes.
///
/// A pass resolves all nodes of the fleet, so the size of the fleet must bound its cost, whatever conditions authors
/// write. Each cluster has the same share of a pass and divides it among its nodes. The minimum share of a node makes
/// the cost of a pass linear in the number of nodes. So the conditions of one cluster do not reduce the steps of
/// another (docs/adr/0014).
pub fn node_step_limit(clusters: usize, nodes: usize) -> usize {
    let cluster_steps = MAX_CLUSTER_STEPS / round_count(clusters);
    (cluster_steps / round_count(nodes)).clamp(MIN_NODE_STEPS, MAX_CONDITION_STEPS)
}

/// Rounds a count up to a power of two. Step limits are divided by the rounded count, so that they seldom change when
/// nodes or clusters are added.
pub(crate) fn round_count(count: usize) -> usize {
    count.max(1).next_power_of_two()
}

/// Returns the share of one node in the cost of a condition, in steps. The condition reads the same values for all
/// nodes of a cluster, and is evaluated only once for all of them. `limit` is the result of [`condition_step_limit`]
/// for the cluster, so `MAX_CLUSTER_STEPS / limit` is about the number of its nodes, unless that limit is clamped.
pub(crate) fn node_share(steps: usize, limit: usize) -> usize {
    steps.div_ceil(MAX_CLUSTER_STEPS / limit)
}

/// The parsed condition of a task. It is parsed when the release is compiled, and evaluated for many nodes.
pub trait Condition: fmt::Debug + Send + Sync {
    /// Returns the values that the condition reads, sorted and unique. [`Condition::evaluate`] requires an input for
    /// each.
    fn references(&self) -> &[Reference];

    /// Returns an upper bound of the number of steps that an evaluation over these inputs takes. The bound is computed
    /// without an evaluation, and without a copy of shared values. For a condition without loops, the result may exceed
    /// `limit`.
    ///
    /// # Errors
    /// [`ConditionError::TooLong`] if the condition has a loop and the bound is higher than `limit`, or if an input is
    /// a list of more than `limit` items. [`ConditionError::NotAnInput`] if an input is missing.
    fn cost(&self, inputs: &Inputs, limit: usize) -> Result<usize, ConditionError>;

    /// Returns whether the condition holds for these inputs. Inputs that the condition does not read are ignored.
    /// [`Condition::cost`] returns an upper bound of the number of steps that the evaluation takes.
    ///
    /// # Errors
    /// [`ConditionError`]. The caller then leaves the task out, as if the condition were false, with a finding and the
    /// reason.
    fn evaluate(&self, inputs: &Inputs) -> Result<bool, ConditionError>;

    /// Returns an error for each place in the condition that reads a name which no object can have. A new condition
    /// with such a place is rejected. A stored condition is accepted.
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
        /// The type of the condition's result.
        found: &'static str,
    },
    /// The inputs lack a value that the condition reads. The caller is at fault, not the author of the condition.
    #[error("`{}` is not among the inputs", .reference.display_text())]
    NotAnInput {
        /// The missing input.
        reference: Reference,
    },
    /// The condition has a loop and could take more than `limit` steps, or it reads a list of more than `limit` items.
    #[error(
        "takes more than {limit} steps over its inputs, the limit in a cluster of this size: look up fewer nodes, or compare with no value of the node itself"
    )]
    TooLong {
        /// Maximum number of steps of one condition for one node. It may be lower in a large cluster.
        limit: usize,
    },
    // The message contains neither the limit nor the remaining steps. From these, a principal bound to one cluster
    // could compute the number of clusters in the fleet.
    /// The condition takes more steps than the earlier conditions of the node leave of the limit for all conditions of
    /// a node.
    #[error(
        "takes {steps} steps over its inputs, more than the conditions of the tasks before it leave of the limit for all conditions of a node; look up fewer nodes, or place the task by a tag instead"
    )]
    TooMany {
        /// Number of steps that the node is charged: its share, if the condition is evaluated once for a cluster.
        steps: usize,
    },
    /// An error of the interpreter, such as a division by zero or a comparison of incompatible types.
    #[error("failed: {reason}")]
    Failed {
        /// A description of the error for the author of the condition, in one line.
        reason: String,
    },
}

/// The parsed template of a path in a task, or of the program of a command.
pub trait Template: fmt::Debug + Send + Sync {
    /// Returns the text of the template for a host with these inputs, or `None` if rendering fails.
    fn render(&self, inputs: &Inputs) -> Option<String>;

    /// Returns the text of the template in a normal form. Templates whose tags differ only in blanks, quotes or the
    /// notation of a key have the same normal form.
    fn normalized_text(&self) -> &str;
}

/// A parser of the templates and conditions of a release, for checking or compiling the release.
pub trait TemplateParser: Send + Sync {
    /// Parses the template of a file, or of an argument of a command, and returns the values that it reads.
    ///
    /// # Errors
    /// [`AuthorError`] if the template does not parse, or reads a value that docs/templates.md does not allow.
    fn parse_template(&self, text: &str) -> Result<TemplateReads, AuthorError>;

    /// Parses the template of a shell script. Returns the values that it reads, and the places where it inserts a value
    /// without quotes.
    ///
    /// # Errors
    /// [`AuthorError`] as for [`TemplateParser::parse_template`], and if the script inserts a value at a place where it
    /// cannot be quoted.
    fn parse_script(&self, text: &str) -> Result<TemplateReads, AuthorError>;

    /// Parses a condition for evaluation.
    ///
    /// # Errors
    /// [`AuthorError`] if the condition does not parse, is too large, or reads a value that docs/templates.md does not
    /// allow.
    fn parse_condition(&self, text: &str) -> Result<Arc<dyn Condition>, AuthorError>;

    /// Parses the template of a path, so that it can be rendered. Returns `None` if the parser cannot render templates.
    fn parse_path(&self, text: &str) -> Option<Arc<dyn Template>> {
        let _ = text;
        None
    }
}

/// The values that a template reads, and the places in it that need a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateReads {
    /// The references to the values that the template reads, sorted and unique.
    pub references: Vec<Reference>,
    /// The references without whose values rendering fails, always or in some cases, sorted and unique. They are
    /// labels, parameters, fields of looked-up nodes, and look-ups that must find a node.
    pub required_references: Vec<RequiredReference>,
    /// The places of `|raw` in a script, as line and column. A value with `|raw` is inserted without quotes. Only an
    /// admin may store a release (docs/trust.md, rule 3), so such a script has no further check.
    pub unquoted: Vec<(u32, u32)>,
    /// An error for each place where a value would be evaluated again: as a pattern, as a path of keys, or as the name
    /// of a filter or test. A new template with such a place is rejected. A stored template is accepted.
    pub reread_values: Vec<AuthorError>,
    /// An error for each place that reads a name which no object can have. A new template with such a place is
    /// rejected. A stored template is accepted.
    pub impossible_names: Vec<AuthorError>,
}

/// An error in a template or condition, because of which it cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}: {why}; {remedy}")]
pub struct AuthorError {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// The text that the error is about, in backquotes and cut at 64 characters, or the words `the whole text`.
    pub what: String,
    /// The reason why the text is rejected.
    pub why: String,
    /// The advice to the author, such as the text to write instead.
    pub remedy: String,
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A parser that finds the secret `db` in templates and scripts, and no other reference. It parses no conditions.
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
