//! Errors of rendering.

use std::fmt;

/// The error for a template that could not be rendered. The message contains no value of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderError {
    /// Line in the template, from 1, or 0 if it is not known. It is a line of the rendered text for
    /// [`Cause::Unquotable`], and for a [`Cause::Limit`] that a script exceeds when its values are inserted.
    pub line: u32,
    /// The cause.
    pub cause: Cause,
}

/// The reason why a template could not be rendered. Its message includes advice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The template is not valid minijinja syntax. A release is checked when it is stored, so the template of a stored
    /// release does not have this error.
    #[error("it cannot be parsed: {detail}; see docs/templates.md for what a template can contain")]
    Syntax {
        /// minijinja's message.
        detail: String,
    },
    /// An input, a value within one, or a variable has no value, and the template does not allow for that.
    #[error("it needs {}; set it, or write `is defined` or `|default(…)`", format_references(.references))]
    Absent {
        /// The absent inputs that may have caused the error, as text. If the last read was of an absent input, only
        /// that input. Else the first absent inputs that were read, at most four. Empty if none was read.
        references: Vec<String>,
    },
    /// The template reads something that is not among its inputs.
    #[error("it reads `{reference}`, which is not among its inputs; check the release with `stemma validate`")]
    NotAnInput {
        /// The reference as text. If the template uses a whole root or path, that path, such as `labels` or
        /// `params.deep`.
        reference: String,
    },
    /// The value of a secret is not available.
    #[error("secret `{name}` is not available: {reason}; provide it as a credential on the host")]
    Secret {
        /// The secret's name.
        name: String,
        /// The reason why the value of the secret is not available.
        reason: String,
    },
    /// A limit is exceeded.
    #[error("it takes more than {limit} {what}; make it smaller, or split the task")]
    Limit {
        /// The unit of the limit, such as `steps`.
        what: &'static str,
        /// The exceeded limit, in the unit `what`. For all values together, it is the maximum size of the result.
        limit: usize,
    },
    /// A value of a script cannot be quoted at its position. The line is that of the rendered text.
    #[error("a value cannot be quoted {place}; put it into a variable of the shell first")]
    Unquotable {
        /// A description of the position.
        place: &'static str,
    },
    /// A command or script would contain a NUL, which cannot be passed to a program.
    #[error("a value holds a NUL, which cannot be passed to a program; remove it from the value")]
    Nul,
    /// The template contains an operation that its values do not allow, uses a filter, test, function or method that
    /// does not exist, or gives one a wrong number of arguments. An unknown variable is [`Cause::Absent`].
    #[error("{detail}{}", remedy.as_str())]
    Failed {
        /// minijinja's message, or only its kind if secrets are among the inputs.
        detail: String,
        /// The advice, which ends the message.
        remedy: Remedy,
    },
}

/// The kind of the advice in the message of [`Cause::Failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// A calculation has no result, for example a division by 0: check the numbers.
    Arithmetic,
    /// The template uses an unknown filter, test, function, method or template, or a wrong number of arguments.
    UnknownName,
    /// A filter refused its arguments. The advice is empty, because the error's message states the accepted ones.
    InvalidArgument,
    /// Any other error: the types of the values do not fit together.
    TypeMismatch,
}

impl Remedy {
    /// Returns the end of the error message, with the advice.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Arithmetic => {
                "; check the numbers that it calculates with: a division by 0 has no result, and a result can be too large"
            }
            Self::UnknownName => "; see docs/templates.md for what a template can contain",
            Self::InvalidArgument => "",
            Self::TypeMismatch => "; check the types of the values that it combines",
        }
    }
}

/// Returns the absent inputs as the object of the sentence "it needs …".
fn format_references(references: &[String]) -> String {
    match references {
        [] => "a value that is absent".to_owned(),
        [reference] => format!("`{reference}`, which is absent"),
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
