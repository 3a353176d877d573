//! How much rules may say, take and give, and what is wrong where they go beyond it.

/// How many rules a fleet may have.
pub const MAX_RULES: usize = 1_000;
/// How many conditions, and how many actions, a rule may have.
pub const MAX_PARTS: usize = 64;
/// How many items a loop may have.
pub const MAX_ITEMS: usize = 256;
/// How large a rule may be, in bytes of its JSON.
pub const MAX_RULE: usize = 64 * 1024;
/// How many steps the path of a place may have.
pub(super) const MAX_STEPS_OF_PATH: usize = 16;
/// The longest text that is made, in bytes.
pub(super) const MAX_TEXT: usize = 16 * 1024;
/// The longest text that a pattern looks at, in bytes.
pub(super) const MAX_MATCHED: usize = 4096;
/// The longest pattern, in bytes.
pub(super) const MAX_PATTERN: usize = 512;
/// The bounds of the data that rules hand on, in bytes of JSON and in depth. What the host reported is part of it.
pub(super) const MAX_DATA: usize = 128 * 1024;
pub(super) const MAX_DATA_DEPTH: usize = 16;
/// How many labels rules give a node at most, and of how many bytes together.
pub(super) const MAX_LABELS: (usize, usize) = (64, 16 * 1024);
/// The same of properties.
pub(super) const MAX_PROPERTIES: (usize, usize) = (64, 16 * 1024);
/// How many notes are kept of a node, and how many characters of each.
pub(super) const MAX_NOTES: usize = 32;
pub(super) const MAX_NOTE: usize = 256;

/// What is wrong with a rule, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidRule {
    /// The field, as `conditions[0].args.regex`.
    pub field: String,
    /// What is wrong, as a sentence.
    pub reason: String,
    /// Whether it is something of Ironic's that has no meaning here.
    pub is_unsupported: bool,
}

/// Why a rule did nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// A value is none that can be used so.
    #[error("{_0}")]
    Argument(String),
    /// A text is too long.
    #[error(
        "a text is longer than what is looked at: {MAX_TEXT} bytes, and {MAX_MATCHED} of one that a pattern is looked for in"
    )]
    TooLong,
    /// All rules together took too much.
    #[error("all rules together take more than they may for one report")]
    Spent,
    /// The rule says that the machine is not as it should be.
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

    pub(super) fn within(self, outer: &str) -> Self {
        let field = if self.field.is_empty() { outer.to_owned() } else { format!("{outer}.{}", self.field) };
        Self { field, ..self }
    }
}
