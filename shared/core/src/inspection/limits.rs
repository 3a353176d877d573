//! The limits of rules, and the errors of rules.

/// Maximum number of rules in a fleet.
pub const MAX_RULES: usize = 1_000;
/// Maximum number of conditions, and of actions, in a rule.
pub const MAX_CLAUSES: usize = 64;
/// Maximum number of items in a loop.
pub const MAX_LOOP_ITEMS: usize = 256;
/// Maximum size of a rule, in bytes of JSON.
pub const MAX_RULE_BYTES: usize = 64 * 1024;
/// Maximum number of steps in a placeholder's path.
pub(super) const MAX_PATH_STEPS: usize = 16;
/// Maximum length of a text that is built, in bytes.
pub(super) const MAX_TEXT_BYTES: usize = 16 * 1024;
/// Maximum length of a text that a pattern is matched against, in bytes.
pub(super) const MAX_MATCHED_BYTES: usize = 4096;
/// Maximum length of a pattern, in bytes.
pub(super) const MAX_PATTERN_BYTES: usize = 512;
/// Maximum size of the plugin data in bytes of JSON, and its maximum depth. This includes what the host reported.
pub(super) const MAX_DATA_BYTES: usize = 128 * 1024;
pub(super) const MAX_DATA_DEPTH: usize = 16;
/// Maximum number of labels that rules set on a node, and their maximum total size in bytes.
pub(super) const MAX_LABELS_AND_BYTES: (usize, usize) = (64, 16 * 1024);
/// Maximum number of properties that rules set on a node, and their maximum total size in bytes.
pub(super) const MAX_PROPERTIES_AND_BYTES: (usize, usize) = (64, 16 * 1024);
/// Maximum number of notes that are stored for a node, and of characters in each.
pub(super) const MAX_NOTES: usize = 32;
pub(super) const MAX_NOTE_CHARS: usize = 256;

/// An error in a rule, with its location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidRule {
    /// The field, such as `conditions[0].args.regex`.
    pub field: String,
    /// The error, as a sentence.
    pub reason: String,
    /// True if Ironic supports this, but it has no meaning here.
    pub is_unsupported: bool,
}

/// The reason why a rule had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// A value cannot be used in this way.
    #[error("{_0}")]
    Argument(String),
    /// A text is too long.
    #[error("a text is too long: at most {MAX_TEXT_BYTES} bytes, and {MAX_MATCHED_BYTES} if a pattern is matched against it")]
    TooLong,
    /// All rules together exceeded the budget.
    #[error("all rules together exceed the number of steps for one report")]
    BudgetExceeded,
    /// The rule's `fail` action: the machine does not meet the rule's expectation.
    #[error("{_0}")]
    Fail(String),
}

impl InvalidRule {
    pub(super) fn new(field: &str, reason: impl Into<String>) -> Self {
        Self { field: field.to_owned(), reason: reason.into(), is_unsupported: false }
    }

    pub(super) fn unsupported(field: &str, reason: impl Into<String>) -> Self {
        Self { is_unsupported: true, ..Self::new(field, reason) }
    }

    pub(super) fn prefixed(self, outer: &str) -> Self {
        let field = if self.field.is_empty() { outer.to_owned() } else { format!("{outer}.{}", self.field) };
        Self { field, ..self }
    }
}
