//! The error body of the API, and the table of its types.
//!
//! Programs match on `type`, people read `title` and `message`, and a support case quotes `request_id`. The form
//! `{"error": {"code", "type", "title", "message", …}}` is what glanceclient, openstacksdk and magnumclient all print.
//! If a listener refuses a request before its handler runs, the body is a fixed text ([`ErrorType::fixed_body`]), which
//! repeats nothing of the request.

mod table;

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use table::ErrorType;

/// Maximum length of a name that an error repeats, in characters.
pub const MAX_QUOTED_CHARS: usize = 64;

/// An error as it is sent over HTTP.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// The error type, with its HTTP status.
    pub kind: ErrorType,
    /// The problem, its place and its reason, for a person. Names from the request are escaped with [`quote`].
    pub message: String,
    /// Further text, if any: advice, or further findings, one on each line.
    pub detail: Option<String>,
    /// The path of the field that the error is about, such as `tasks[3].parameters.path`, or a query parameter's name.
    pub field: Option<String>,
    /// The methods that the path supports, as in the header `Allow`. Set if the path does not support the request's
    /// method.
    pub allow: Option<Box<str>>,
    /// Seconds after which the client can retry (`Retry-After`). `None`: the default of the error type, if it has one.
    pub retry_after_s: Option<u32>,
    /// The message without the names of object and field, for a program that shows object and field itself.
    pub reason: Option<Box<str>>,
    /// The request's id, which is in the response and in the journal.
    pub request_id: Option<String>,
    /// Members of the body in addition to `error`, such as `conflicts` or Ironic's `error_message`.
    pub extra: Map<String, Value>,
}

impl From<ErrorType> for ApiError {
    /// Returns an error that repeats nothing of the request. Its message is the title of the type.
    fn from(kind: ErrorType) -> Self {
        Self::new(kind, kind.title())
    }
}

impl ApiError {
    /// Returns an error of a type, with a message.
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

    /// Sets the path of the field that the error is about.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Sets the reason: the message without the names of object and field.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<Box<str>>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Sets the number of seconds after which the client can retry.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// Sets the further text: advice, or further findings.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds a member to the body, next to the member `error`.
    #[must_use]
    pub fn extra(mut self, name: &str, value: Value) -> Self {
        self.extra.insert(name.to_owned(), value);
        self
    }

    /// Returns the HTTP status.
    pub fn status(&self) -> u16 {
        self.kind.status()
    }

    /// Returns the body, as JSON: the member `error`, and the members of `extra`. The values of `allow` and
    /// `retry_after_s` are not in the body, because they are headers.
    pub fn body(&self) -> Value {
        let mut error = Map::new();
        error.insert("code".into(), self.status().into());
        error.insert("type".into(), self.kind.name().into());
        // `title` and `message` both have the message, because magnumclient prints one of the two, and glanceclient and
        // openstacksdk print the other.
        error.insert("title".into(), self.message.clone().into());
        error.insert("message".into(), self.message.clone().into());
        let optional_members = [
            ("detail", self.detail.as_deref()),
            ("field", self.field.as_deref()),
            ("reason", self.reason.as_deref()),
            ("request_id", self.request_id.as_deref()),
        ];
        for (name, value) in optional_members {
            if let Some(value) = value {
                error.insert(name.into(), value.into());
            }
        }
        let mut body = self.extra.clone();
        body.insert("error".into(), Value::Object(error));
        Value::Object(body)
    }
}

/// The member `error` of an error body, as a client reads it. The error type is a text and not an [`ErrorType`], so
/// that an older client can print an error of a newer controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// HTTP status.
    pub code: u16,
    /// The stable name of the type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The same text as `message`, because some clients print only one of the two.
    #[serde(default)]
    pub title: String,
    /// The problem of this request, for a person.
    #[serde(default)]
    pub message: String,
    /// Further text: advice, or further findings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The path of the field that the error is about, or the name of a query parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The request's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

impl ErrorBody {
    /// Parses an error body and returns its member `error`. Returns `None` if the bytes are not an error body, for
    /// example because a proxy responded instead of the controller.
    pub fn parse(body: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct ErrorEnvelope {
            error: ErrorBody,
        }
        serde_json::from_slice::<ErrorEnvelope>(body).ok().map(|outer| outer.error)
    }
}

/// Returns whether a character changes the direction of text, has no width, or separates lines or paragraphs (U+2028
/// and U+2029). Such a character can make a sentence look like another one.
pub fn is_format_character(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Returns a name from a request in single quotes, for an error message. Control and formatting characters, single
/// quotes and backslashes are escaped. The name is cut after 64 characters.
///
/// ```
/// assert_eq!(stemma_wire::error::quote("web-1"), "'web-1'");
/// assert_eq!(stemma_wire::error::quote("a\n\u{1b}[2J'"), r"'a\n\u{1b}[2J\''");
/// ```
pub fn quote(name: &str) -> String {
    let mut quoted = String::with_capacity(name.len().min(MAX_QUOTED_CHARS) + 2);
    quoted.push('\'');
    for character in name.chars().take(MAX_QUOTED_CHARS) {
        match character {
            '"' => quoted.push('"'),
            character if is_format_character(character) => {
                let _infallible = write!(quoted, "\\u{{{:x}}}", u32::from(character));
            }
            character => quoted.extend(character.escape_debug()),
        }
    }
    quoted.push_str(if name.chars().nth(MAX_QUOTED_CHARS).is_some() { "…'" } else { "'" });
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_error_body_has_documented_form() {
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
    fn quote_escapes_and_truncates_names() {
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
