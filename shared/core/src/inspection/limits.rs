//! The limits of rules, and the errors of rules.

/// Maximum number of inspection rules in a fleet.
pub const MAX_RULES: usize = 1_000;
/// Maximum number of conditions in an inspection rule, and also the maximum number of its actions.
pub const MAX_CLAUSES: usize = 64;
/// Maximum number of items in the loop of a condition or action of an inspection rule.
pub const MAX_LOOP_ITEMS: usize = 256;
/// Maximum size of the conditions and actions of an inspection rule together, in bytes of JSON.
pub const MAX_RULE_BYTES: usize = 64 * 1024;
/// Maximum number of steps in the path of a placeholder. The placeholder `{inventory[cpu][count]}` has two steps.
pub(super) const MAX_PATH_STEPS: usize = 16;
/// Maximum length of a text after values are filled into its placeholders, in bytes.
pub(super) const MAX_TEXT_BYTES: usize = 16 * 1024;
/// Maximum length of a text that the regular expression of a condition is matched against, in bytes.
pub(super) const MAX_MATCHED_BYTES: usize = 4096;
/// Maximum length of the regular expression of a condition, in bytes.
pub(super) const MAX_PATTERN_BYTES: usize = 512;
/// Maximum size of the plugin data of a node, in bytes of JSON. Plugin data are a map that rules can read and change
/// during the evaluation of a report. The data that the host reported, with which the map begins, count too.
pub(super) const MAX_DATA_BYTES: usize = 128 * 1024;
/// Maximum nesting depth of maps and lists in the plugin data of a node.
pub(super) const MAX_DATA_DEPTH: usize = 16;
/// Maximum number of labels that all rules together set on a node, and of the bytes of their keys and values.
pub(super) const MAX_LABELS_AND_BYTES: (usize, usize) = (64, 16 * 1024);
/// Maximum number of properties that all rules together set on a node, and of the bytes of their names and JSON values.
pub(super) const MAX_PROPERTIES_AND_BYTES: (usize, usize) = (64, 16 * 1024);
/// Maximum number of notes (messages of rules for operators) of a node. Further notes are dropped.
pub(super) const MAX_NOTES: usize = 32;
/// Maximum length of a note, in characters.
pub(super) const MAX_NOTE_CHARS: usize = 256;

/// An error in an inspection rule, with its location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidRule {
    /// The field, such as `conditions[0].args.regex`.
    pub field: String,
    /// The error, as a sentence.
    pub reason: String,
    /// True if the rule uses a feature of Ironic that Stemma does not support. An invalid path counts as such a
    /// feature, because it may be the path of another attribute of Ironic.
    pub is_unsupported: bool,
}

/// The reason why an inspection rule ended early. Its effects remain only if the reason is [`Failure::Fail`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// An argument is invalid for this report, the rules would set too many or too large values, or the stored rule is
    /// no longer valid. The text is the reason.
    #[error("{_0}")]
    Argument(String),
    /// A text is longer than [`MAX_TEXT_BYTES`], or than [`MAX_MATCHED_BYTES`] if a pattern is matched against it.
    #[error("a text is too long: at most {MAX_TEXT_BYTES} bytes, and {MAX_MATCHED_BYTES} if a pattern is matched against it")]
    TooLong,
    /// All rules together exceeded the maximum number of steps for one report. No further rule runs.
    #[error("all rules together exceed the number of steps for one report")]
    BudgetExceeded,
    /// The rule's `fail` action ran, because the machine does not meet an expectation. The text is the action's
    /// message.
    #[error("{_0}")]
    Fail(String),
}

impl InvalidRule {
    /// Creates an error with its reason. `field` is empty if the error concerns the checked value as a whole.
    pub(super) fn new(field: &str, reason: impl Into<String>) -> Self {
        Self { field: field.to_owned(), reason: reason.into(), is_unsupported: false }
    }

    /// Creates the error for a feature of Ironic that Stemma does not support.
    pub(super) fn unsupported(field: &str, reason: impl Into<String>) -> Self {
        Self { is_unsupported: true, ..Self::new(field, reason) }
    }

    /// Returns the error with `outer` before its field: with `args`, the field `regex` becomes `args.regex`.
    pub(super) fn prefixed(self, outer: &str) -> Self {
        let field = if self.field.is_empty() { outer.to_owned() } else { format!("{outer}.{}", self.field) };
        Self { field, ..self }
    }
}
