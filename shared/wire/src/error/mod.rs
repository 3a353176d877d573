//! The one error body of the API, and the table of its types.
//!
//! Programs match on `type`, people read `title` and `message`, and a support case names `request_id`. The form
//! `{"error": {"code", "type", "title", "message", …}}` is what glanceclient, openstacksdk and magnumclient all print.
//! Before authentication, and where a request does not parse, the body is fixed ([`ErrorType::fixed_body`]) and says nothing
//! of what came in.

mod table;

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use table::ErrorType;

/// The longest name that an error repeats, in characters.
pub const MAX_QUOTED: usize = 64;

/// An error as it goes over HTTP.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// The stable name with its HTTP status.
    pub kind: ErrorType,
    /// What is wrong, where and why, for a person. Names from the request stand in it through [`quote`].
    pub message: String,
    /// More, where there is more: what to do, the other findings, one a line.
    pub detail: Option<String>,
    /// The field that is wrong, as a path: `tasks[3].parameters.path`.
    pub field: Option<String>,
    /// The methods that the path takes, as the header `Allow` has them, where another one was used.
    pub allow: Option<Box<str>>,
    /// After how many seconds the request can be sent again, where that is known better than by its type.
    pub retry_after_s: Option<u32>,
    /// What is wrong, without the object and the field: for a program that names these itself.
    pub reason: Option<Box<str>>,
    /// What this request was called, in answer and journal alike.
    pub request_id: Option<String>,
    /// Further members of the body beside `error`: `conflicts`, Ironic's `error_message`.
    pub extra: Map<String, Value>,
}

impl From<ErrorType> for ApiError {
    /// An error that says nothing of the request: its sentence is the type's title.
    fn from(kind: ErrorType) -> Self {
        Self::new(kind, kind.title())
    }
}

impl ApiError {
    /// An error of a type, with its sentence.
    pub fn new(kind: ErrorType, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            detail: None,
            field: None,
            allow: None,
            retry_after_s: None,
            reason: None,
            request_id: None,
            extra: Map::new(),
        }
    }

    /// The same, with the path of the field that is wrong.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// The same, with what is wrong apart from where.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<Box<str>>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// The same, with when the request can be sent again.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// The same, with more to say.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The same, with a member beside `error`.
    #[must_use]
    pub fn extra(mut self, name: &str, value: Value) -> Self {
        self.extra.insert(name.to_owned(), value);
        self
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.kind.status()
    }

    /// The body, as JSON.
    pub fn body(&self) -> Value {
        let mut error = Map::new();
        error.insert("code".into(), self.status().into());
        error.insert("type".into(), self.kind.name().into());
        // The sentence stands in both: magnumclient prints the one, glanceclient and openstacksdk the other.
        error.insert("title".into(), self.message.clone().into());
        error.insert("message".into(), self.message.clone().into());
        let more = [
            ("detail", self.detail.as_deref()),
            ("field", self.field.as_deref()),
            ("reason", self.reason.as_deref()),
            ("request_id", self.request_id.as_deref()),
        ];
        for (name, value) in more {
            if let Some(value) = value {
                error.insert(name.into(), value.into());
            }
        }
        let mut body = self.extra.clone();
        body.insert("error".into(), Value::Object(error));
        Value::Object(body)
    }
}

/// An error body as a client reads it: a type that it does not know is kept as text, so that an older client prints a newer one's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// HTTP status.
    pub code: u16,
    /// The stable name.
    #[serde(rename = "type")]
    pub kind: String,
    /// The type's own sentence.
    #[serde(default)]
    pub title: String,
    /// What was wrong this time.
    #[serde(default)]
    pub message: String,
    /// More.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The field that was wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The request's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

impl ErrorBody {
    /// Reads an error body; `None` when it is none (another program answered).
    pub fn parse(body: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Outer {
            error: ErrorBody,
        }
        serde_json::from_slice::<Outer>(body).ok().map(|outer| outer.error)
    }
}

/// Whether a character is right to left, or has no width: it would make a sentence read otherwise than it is.
pub fn is_formatting(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A name from a request as an error may show it: in quotes, control and formatting characters escaped, cut at 64 characters.
///
/// ```
/// assert_eq!(stemma_wire::error::quote("web-1"), "'web-1'");
/// assert_eq!(stemma_wire::error::quote("a\n\u{1b}[2J'"), r"'a\n\u{1b}[2J\''");
/// ```
pub fn quote(name: &str) -> String {
    let mut quoted = String::with_capacity(name.len().min(MAX_QUOTED) + 2);
    quoted.push('\'');
    for character in name.chars().take(MAX_QUOTED) {
        match character {
            '"' => quoted.push('"'),
            character if is_formatting(character) => {
                let _infallible = write!(quoted, "\\u{{{:x}}}", u32::from(character));
            }
            character => quoted.extend(character.escape_debug()),
        }
    }
    quoted.push_str(if name.chars().nth(MAX_QUOTED).is_some() { "…'" } else { "'" });
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_has_the_form_of_the_api() {
        let error = ApiError::new(ErrorType::LabelConflict, "label 'ntp' is owned by 'ci'")
            .field("labels.ntp")
            .extra("conflicts", serde_json::json!([{"map": "labels", "key": "ntp"}]));
        let expected = serde_json::json!({
            "error": {
                "code": 409, "type": "label.conflict", "title": "label 'ntp' is owned by 'ci'",
                "message": "label 'ntp' is owned by 'ci'", "field": "labels.ntp"
            },
            "conflicts": [{"map": "labels", "key": "ntp"}]
        });
        assert_eq!(error.body(), expected);
        let read = ErrorBody::parse(error.body().to_string().as_bytes()).expect("our own body");
        assert_eq!((read.code, read.kind.as_str(), read.field.as_deref()), (409, "label.conflict", Some("labels.ntp")));
    }

    #[test]
    fn names_are_quoted_escaped_and_cut() {
        for (name, quoted) in [
            ("", "''".to_owned()),
            ("größe", "'größe'".to_owned()),
            ("a'b\\", r"'a\'b\\'".to_owned()),
            ("say \"hi\"", "'say \"hi\"'".to_owned()),
            ("\u{202e}gpj.exe", r"'\u{202e}gpj.exe'".to_owned()),
            ("\0\r\n\u{7f}", r"'\0\r\n\u{7f}'".to_owned()),
            (&"x".repeat(64), format!("'{}'", "x".repeat(64))),
            (&"x".repeat(65), format!("'{}…'", "x".repeat(64))),
        ] {
            assert_eq!(quote(name), quoted, "{name:?}");
        }
    }
}
