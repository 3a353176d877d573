//! An error of the controller, formatted for people: the controller's own message, with field and detail.

use std::fmt;

use bytes::Bytes;
use hyper::{Response, StatusCode};
use serde::Deserialize as _;
use serde_json::Value;
use stemma_core::finding::Finding;
use stemma_wire::error::ErrorType;

use crate::exit::Exit;

/// A response that is not a success.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ApiRefusal {
    /// The HTTP status of the response.
    status: u16,
    /// The stable name of the error type, such as `label.conflict`.
    kind: String,
    /// The controller's message.
    pub(crate) message: String,
    /// The path of the field that the error is about.
    pub(crate) field: Option<String>,
    /// The message without object and field. `None` from an older controller.
    pub(crate) reason: Option<String>,
    /// More lines about the error, to print below the message.
    pub(crate) detail: Option<String>,
    /// The errors of a release that does not compile, each with its field.
    pub(crate) errors: Vec<(Option<String>, String)>,
    /// The fields and keys that other managers own.
    pub(crate) conflicts: Vec<FieldConflict>,
    /// A possible reason for the conflicts: the manager named by `--adopt` owns nothing.
    pub(crate) warning: Option<String>,
    /// The command that takes over what other managers own.
    pub(super) overwrite_command: Option<String>,
    /// The key of the object that the error is about, such as `cluster/prod`, if it is not about a field of the
    /// request.
    pub(crate) object: Option<String>,
    /// The key of the object in the request that caused the error, if `object` is another one.
    pub(crate) written_object: Option<String>,
    /// The keys of the objects that still use the object to delete, such as `node/web-1`.
    used_by: Vec<String>,
    /// The findings for which a strict write is refused.
    pub(crate) findings: Vec<Finding>,
    /// All refusals of an apply, including this one, if several objects are refused.
    refusals: Vec<ApiRefusal>,
}

/// A key or field that another manager owns with another value.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FieldConflict {
    /// `labels`, `annotations`, `parameters`, `traits`, `tags` or `fields`.
    pub(crate) map: String,
    /// The key, or the name of the field.
    pub(crate) key: String,
    /// The owner, such as `git:apply`.
    pub(crate) owner: String,
    /// The present value of the key or field, as JSON.
    pub(crate) value: String,
}

impl Exit {
    /// Returns the exit status for an error.
    pub(crate) fn from_error(error: &anyhow::Error) -> Self {
        let refused = || error.downcast_ref::<ApiRefusal>().map_or(Self::Error, ApiRefusal::exit);
        Self::from_exit_error(error).unwrap_or_else(refused)
    }
}

impl ApiRefusal {
    /// Returns whether other objects still use the object to delete.
    pub(crate) fn is_in_use(&self) -> bool {
        self.kind == ErrorType::ObjectInUse.name()
    }

    /// Returns whether the query was refused, for example because an older controller does not know a parameter.
    pub(crate) fn is_query_refusal(&self) -> bool {
        self.kind == ErrorType::RequestQuery.name()
    }

    /// Returns the keys of the objects that use the object to delete. Empty from an older controller.
    pub(crate) fn users(&self) -> &[String] {
        &self.used_by
    }

    /// Returns each refusal of an apply: this one alone, if no others are listed.
    pub(crate) fn refusals(&self) -> &[Self] {
        if self.refusals.is_empty() { std::slice::from_ref(self) } else { &self.refusals }
    }

    /// Parses an error response. If the body is not an error of the API, the message is the HTTP status.
    pub(super) fn from_response(answer: &Response<Bytes>, method: &str, path: &str) -> Self {
        let status = answer.status();
        let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        let refusal = Self::from_body(&body, status.as_u16());
        match refusal.message.as_str() {
            "" => Self { message: format!("{method} {path}: {status}"), ..refusal },
            _ => refusal,
        }
    }

    /// Parses the body of an error response. Members that the body lacks are empty.
    fn from_body(body: &Value, status: u16) -> Self {
        let error = &body["error"];
        let text = |name: &str| error[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let top_level = |name: &str| body[name].as_str().map(str::to_owned);
        let listed = |name: &str| body[name].as_array().into_iter().flatten();
        Self {
            status,
            kind: text("type").unwrap_or_default(),
            message: text("message").unwrap_or_default(),
            field: text("field"),
            reason: text("reason"),
            detail: text("detail"),
            errors: listed("errors").map(parse_error).collect(),
            conflicts: listed("conflicts").map(FieldConflict::from_json).collect(),
            warning: top_level("warning"),
            overwrite_command: None,
            object: top_level("object"),
            written_object: top_level("written"),
            used_by: listed("used_by").filter_map(Value::as_str).map(str::to_owned).collect(),
            findings: listed("findings").filter_map(|one| Finding::deserialize(one).ok()).collect(),
            refusals: listed("refusals").map(|one| Self::from_body(one, status)).collect(),
        }
    }

    /// Returns the exit status for this refusal.
    pub(crate) fn exit(&self) -> Exit {
        match StatusCode::from_u16(self.status) {
            _ if self.kind == "store.outcome_unknown" => Exit::Unknown,
            Ok(StatusCode::NOT_FOUND) => Exit::NotFound,
            Ok(StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED) => Exit::Conflict,
            _ => Exit::Error,
        }
    }

    /// Returns what the person can do about the error, if that is known.
    fn advice(&self) -> Option<&'static str> {
        match self.kind.as_str() {
            "auth.required" if self.message.contains("the token is unknown") => Some(
                "create another one with `stemma principal token create`, and write only this token into the file that `token_file` of the context names",
            ),
            "auth.required" if self.message.contains("the certificate has ended") => {
                Some("ask an admin of this fleet for a new certificate")
            }
            "auth.required" => Some("set `cert` and `key` in the context: `stemma-controller init` has created an admin's"),
            "auth.forbidden" if self.message.contains("; this needs role operator") => {
                Some("ask as an operator: --context names another context")
            }
            "auth.forbidden" => Some("ask as an admin: --context names another context"),
            "auth.revoked" | "certificate_expired" => Some("ask an admin of this fleet for a new certificate"),
            "path.unknown" => Some("is the controller of an older version? `stemma get --raw /openapi.json` lists its paths"),
            "request.too_large" => Some("split it: fewer objects per apply, and `source:` instead of long texts"),
            _ => None,
        }
    }
}

/// Parses an error of a release that does not compile: its field, if it has one, and its message.
fn parse_error(one: &Value) -> (Option<String>, String) {
    (one["field"].as_str().map(str::to_owned), one["message"].as_str().unwrap_or_default().to_owned())
}

impl FieldConflict {
    /// Parses a conflict. The text of its value depends on the map, because some conflicts have no value.
    fn from_json(value: &Value) -> Self {
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let present = match (&value["value"], value["map"].as_str()) {
            // The field has its default value, or its value is secret.
            (Value::Null, Some("fields")) => "set here".to_owned(),
            // A trait has no value.
            (Value::Null, Some("traits")) => "set".to_owned(),
            (shown, _) => shown.to_string(),
        };
        Self { map: text("map"), key: text("key"), owner: text("manager"), value: present }
    }

    /// Returns the path of the field in a manifest.
    pub(crate) fn manifest_field(&self) -> String {
        if self.map == "fields" { self.key.clone() } else { format!("{}.{}", self.map, self.key) }
    }
}

impl fmt::Display for FieldConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, owned by {}", self.manifest_field(), self.value, self.owner)
    }
}

impl fmt::Display for ApiRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = self.field.as_deref().filter(|field| !self.message.contains(field));
        let mut text = match field {
            // The controller's message contains the conflicts too, with a solution in terms of its API.
            _ if !self.conflicts.is_empty() => "other managers own what this would change".to_owned(),
            None => self.message.clone(),
            Some(field) => format!("{field}: {}", self.message),
        };
        let detail = self.detail.iter().flat_map(|detail| detail.lines()).filter(|_| self.conflicts.is_empty());
        detail.chain(self.advice()).for_each(|line| text.push_str(&format!("\n  {line}")));
        self.conflicts.iter().for_each(|conflict| text.push_str(&format!("\n  {conflict}")));
        self.warning.iter().for_each(|warning| text.push_str(&format!("\n  {warning}")));
        self.findings.iter().for_each(|finding| text.push_str(&format!("\n  {finding}")));
        self.overwrite_command.iter().for_each(|command| text.push_str(&format!("\n  to take it over: {command}")));
        f.write_str(&crate::output::printable_lines(&text))
    }
}

impl std::error::Error for ApiRefusal {}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: StatusCode, body: &[u8]) -> ApiRefusal {
        let answer = Response::builder().status(status).body(Bytes::copy_from_slice(body)).unwrap();
        ApiRefusal::from_response(&answer, "GET", "/v1/nodes")
    }

    #[test]
    fn refusal_shows_message_of_controller() {
        let conflict = refusal(
            StatusCode::CONFLICT,
            br#"{"error": {"code": 409, "type": "label.conflict", "title": "x", "message": "tier is owned by git", "field": "labels.tier",
            "detail": "force it, or leave it out"}, "conflicts": [{"map": "labels", "key": "tier", "manager": "git:apply", "value": "gold"}]}"#,
        );
        assert_eq!(
            conflict.to_string(),
            "other managers own what this would change\n  labels.tier is \"gold\", owned by git:apply"
        );
        assert_eq!(conflict.exit(), Exit::Conflict);
        let other = refusal(StatusCode::BAD_GATEWAY, b"<html>");
        assert_eq!((other.to_string(), other.exit()), ("GET /v1/nodes: 502 Bad Gateway".to_owned(), Exit::Error));
        let lost = refusal(StatusCode::SERVICE_UNAVAILABLE, br#"{"error": {"type": "store.outcome_unknown", "message": "x"}}"#);
        assert_eq!(lost.exit(), Exit::Unknown);
    }

    /// `docs/errors.md`: status 3 means that the object of the command does not exist, not one that it only refers to.
    #[test]
    fn y09_refusal_ends_with_error_when_reference_is_missing() {
        for (status, kind, exit) in [
            (StatusCode::NOT_FOUND, "object.not_found", Exit::NotFound),
            (StatusCode::BAD_REQUEST, "reference.dangling", Exit::Error),
        ] {
            let body = serde_json::json!({"error": {"type": kind, "message": "there is no node 'nosuch'", "field": "node"}});
            assert_eq!(refusal(status, body.to_string().as_bytes()).exit(), exit, "{kind}");
        }
    }

    #[test]
    fn y09_refusal_names_principal_to_ask_when_denied() {
        for (needs, whom) in
            [("; this needs role operator", "an operator"), ("; this needs role admin", "an admin"), ("", "an admin")]
        {
            let message = format!("Permission denied: v (viewer) cannot do this: 'Stores a release.'{needs}");
            let body = serde_json::json!({"error": {"type": "auth.forbidden", "message": message}});
            let denied = refusal(StatusCode::FORBIDDEN, body.to_string().as_bytes());
            let said = format!("{message}\n  ask as {whom}: --context names another context");
            assert_eq!(denied.to_string(), said);
        }
    }

    #[test]
    fn y09_advice_for_401_depends_on_credential() {
        for (message, advice) in [
            (
                "the token is unknown, has expired or was revoked",
                "create another one with `stemma principal token create`, and write only this token into the file that `token_file` of the context names",
            ),
            ("the certificate has ended; another is needed", "ask an admin of this fleet for a new certificate"),
            (
                "Authentication required: show a certificate or a token.",
                "set `cert` and `key` in the context: `stemma-controller init` has created an admin's",
            ),
        ] {
            let body = serde_json::json!({"error": {"type": "auth.required", "message": message}});
            let refused = refusal(StatusCode::UNAUTHORIZED, body.to_string().as_bytes());
            assert_eq!(refused.to_string(), format!("{message}\n  {advice}"));
        }
    }

    #[test]
    fn y09_refusal_lists_findings_when_write_is_strict() {
        let strict = refusal(
            StatusCode::BAD_REQUEST,
            br#"{"error": {"code": 400, "type": "finding.strict", "title": "x", "message": "a strict write, and 1 warning among the findings; nothing was changed"},
            "findings": [{"severity": "warning", "code": "reference.unset", "object": "release/r task t", "message": "m"}]}"#,
        );
        let said = "a strict write, and 1 warning among the findings; nothing was changed\n  warning reference.unset release/r task t: m";
        assert_eq!((strict.to_string().as_str(), strict.exit()), (said, Exit::Error));
    }
}
