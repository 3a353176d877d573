//! Findings: what a person should know and nothing refuses.
//!
//! An error stops a write; a finding never does. So it is plain data that every
//! stage of a decision may add to, and that `validate`, `apply`, `diff` and `resolve` print in the same form.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How much a finding matters. Ordered, the gravest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing, nothing to do.
    Info,
    /// Something does not act as its author may think.
    Warning,
    /// Something is held back, or can never run, until a person acts.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// One finding: how grave, which rule, about what, and the sentence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// The stable name of the rule, as `task.unplaced`.
    pub code: String,
    /// What it is about, as `node/web-1` or `release/site@1 task/ntp`.
    pub object: String,
    /// The sentence for people.
    pub message: String,
}

impl Finding {
    /// A finding of any severity.
    pub fn new(severity: Severity, code: &str, object: impl Into<String>, message: impl Into<String>) -> Self {
        Self { severity, code: code.to_owned(), object: object.into(), message: message.into() }
    }

    /// Something worth knowing.
    pub fn info(code: &str, object: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Severity::Info, code, object, message)
    }

    /// Something that does not act as its author may think.
    pub fn warning(code: &str, object: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, code, object, message)
    }

    /// Something held back until a person acts.
    pub fn error(code: &str, object: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, code, object, message)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}: {}", self.severity, self.code, self.object, self.message)
    }
}
