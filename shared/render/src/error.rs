//! Why a template was not rendered.

use std::fmt;

/// A template that could not be rendered. The text holds no value of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderError {
    /// Line of the template, from 1; of the rendered text where the cause says so; 0 where there is none.
    pub line: u32,
    /// What went wrong.
    pub cause: Cause,
}

/// What went wrong, and in its text what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The template is no minijinja. What a release holds was checked, so this is text from elsewhere.
    #[error("it cannot be parsed: {detail}; see docs/templates.md for what a template may say")]
    Syntax {
        /// What minijinja says.
        detail: String,
    },
    /// An input is absent and the template does not allow for that.
    #[error("it needs {}; set it, or write `is defined` or `|default(…)`", needed(.references))]
    Absent {
        /// What may be meant, as texts of references: the last that was read, or each that is absent.
        references: Vec<String>,
    },
    /// The template reads what is not among its inputs.
    #[error("it reads `{reference}`, which is not among its inputs; check the release with `stemma validate`")]
    NotAnInput {
        /// What it reads: the text of a reference, or the root that it reads whole.
        reference: String,
    },
    /// A secret's value cannot be had.
    #[error("secret `{name}` is not available: {reason}; provide it as a credential on the host")]
    Secret {
        /// The secret's name.
        name: String,
        /// Why.
        reason: String,
    },
    /// A limit was reached.
    #[error("it takes more than {limit} {what}; make it smaller, or split the task")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// How much of it is allowed.
        limit: usize,
    },
    /// A value of a script stands where it cannot be quoted. The line is that of the rendered text.
    #[error("a value cannot be quoted {place}; put it into a variable of the shell first")]
    Unquotable {
        /// Where it stands.
        place: &'static str,
    },
    /// A command or script would hold a NUL, which no program can be given.
    #[error("a value holds a NUL, which cannot be given to a program; take it out of the value")]
    Nul,
    /// The template does something that its values do not allow.
    #[error("{detail}{}", remedy.words())]
    Failed {
        /// What minijinja says; only its kind where secrets are among the inputs.
        detail: String,
        /// What to do about it.
        remedy: Remedy,
    },
}

/// What to do about a template that does something that its values do not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// A calculation has no result.
    Numbers,
    /// It names what no template has.
    Words,
    /// A filter was given what it does not take, and the error says what it takes.
    Said,
    /// Anything else: values of kinds that do not go together.
    Kinds,
}

impl Remedy {
    /// The end of the error's sentence.
    const fn words(self) -> &'static str {
        match self {
            Self::Numbers => {
                "; check the numbers that it calculates with: a division by 0 has no result, nor has what is too large for a number"
            }
            Self::Words => "; see docs/templates.md for what a template may say",
            Self::Said => "",
            Self::Kinds => "; check the kinds of the values that it puts together",
        }
    }
}

fn needed(references: &[String]) -> String {
    match references {
        [] => "a value that is absent".to_owned(),
        [one] => format!("`{one}`, which is absent"),
        several => format!("one of `{}`, which are absent", several.join("`, `")),
    }
}

impl RenderError {
    pub(crate) fn new(line: usize, cause: Cause) -> Self {
        Self { line: u32::try_from(line).unwrap_or(u32::MAX), cause }
    }
}

impl fmt::Display for RenderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.cause),
            line => write!(f, "line {line}: {}", self.cause),
        }
    }
}

impl std::error::Error for RenderError {}
