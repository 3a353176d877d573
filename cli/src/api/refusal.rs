//! Parses an error response of the controller, and formats it for people: the controller's own message, with field and
//! detail.

use std::fmt;

use bytes::Bytes;
use hyper::{Response, StatusCode};
use serde::Deserialize as _;
use serde_json::Value;
use stemma_core::finding::Finding;
use stemma_wire::error::ErrorType;

use crate::exit::Exit;

/// An error response of the controller, parsed from its JSON body.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ApiRefusal {
    /// The HTTP status of the response.
    status: u16,
    /// The stable name of the error type, such as `label.conflict`.
    error_type: String,
    /// The controller's message for people. If the response contains none, the method, path and HTTP status.
    pub(crate) message: String,
    /// The path of the field that the error is about.
    pub(crate) field: Option<String>,
    /// The message without the names of the object and the field, if the response contains one.
    pub(crate) reason: Option<String>,
    /// Further lines about the error. They are printed below the message.
    pub(crate) detail: Option<String>,
    /// The errors of a release that does not compile or that every host would refuse, at most 50. Each is the path of a
    /// field, if known, and a message.
    pub(crate) errors: Vec<(Option<String>, String)>,
    /// The fields and keys that the write would change, although other managers own them.
    pub(crate) conflicts: Vec<FieldConflict>,
    /// A possible reason for the conflicts: the manager that `--adopt` names owns nothing.
    pub(crate) warning: Option<String>,
    /// The command line with `--overwrite` added. It would also change what other managers own.
    pub(super) overwrite_command: Option<String>,
    /// The key of the object that the error is about, such as `cluster/prod`. Most errors about a field have none.
    pub(crate) object: Option<String>,
    /// The key of the object whose write caused the error about `object`. It may be the same object.
    pub(crate) written_object: Option<String>,
    /// The keys of the objects that still use the object to delete or the release to rename, at most 1,000.
    used_by: Vec<String>,
    /// All findings of a write with `--strict` that the controller refused because of a warning or an error among them.
    pub(crate) findings: Vec<Finding>,
    /// All refusals that the response to an apply lists, including this one. Empty if this is the only one.
    refusals: Vec<ApiRefusal>,
}

/// A key or field that a write would change, and that another manager owns with another value.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FieldConflict {
    /// The map that contains the key: `labels`, `annotations`, `parameters`, `traits` or `tags`. It is `fields` for a
    /// field of the object.
    pub(crate) map: String,
    /// The key, or the name of the field.
    pub(crate) key: String,
    /// The owner, such as `git:apply`.
    pub(crate) owner: String,
    /// The present value as JSON, which is `null` for a tombstone. It is the text `set` for a trait. It is `set here`
    /// for a field that has its default or whose value is secret.
    pub(crate) value: String,
}

impl Exit {
    /// Returns the exit status for an error. This is the status attached to the error, or else the status for a refusal
    /// by the controller, or else [`Exit::Error`].
    pub(crate) fn from_error(error: &anyhow::Error) -> Self {
        let refusal_status = || error.downcast_ref::<ApiRefusal>().map_or(Self::Error, ApiRefusal::exit);
        Self::attached_status(error).unwrap_or_else(refusal_status)
    }
}

impl ApiRefusal {
    /// Returns whether the controller refused the write because the object is in use.
    pub(crate) fn is_in_use(&self) -> bool {
        self.error_type == ErrorType::ObjectInUse.name()
    }

    /// Returns whether the controller refused the query of the request. For example, an older controller does not know
    /// a query parameter.
    pub(crate) fn is_query_refusal(&self) -> bool {
        self.error_type == ErrorType::RequestQuery.name()
    }

    /// Returns the keys of the objects that use the object to delete or the release to rename, such as `node/web-1`.
    /// Empty if the response contains none, as for a tag that is assigned to nodes.
    pub(crate) fn users(&self) -> &[String] {
        &self.used_by
    }

    /// Returns all refusals of an apply, or only this one if the response lists no others.
    pub(crate) fn refusals(&self) -> &[Self] {
        if self.refusals.is_empty() { std::slice::from_ref(self) } else { &self.refusals }
    }

    /// Parses an error response. If the body is not an error of the API, the message consists of method, path and HTTP
    /// status.
    pub(super) fn from_response(response: &Response<Bytes>, method: &str, path: &str) -> Self {
        let status = response.status();
        let body: Value = serde_json::from_slice(response.body()).unwrap_or_default();
        let refusal = Self::from_body(&body, status.as_u16());
        match refusal.message.as_str() {
            "" => Self { message: format!("{method} {path}: {status}"), ..refusal },
            _ => refusal,
        }
    }

    /// Parses the JSON body of an error response. A member that the body lacks becomes empty or `None`.
    fn from_body(body: &Value, status: u16) -> Self {
        let error = &body["error"];
        let text = |name: &str| error[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let top_level_text = |name: &str| body[name].as_str().map(str::to_owned);
        let array_items = |name: &str| body[name].as_array().into_iter().flatten();
        Self {
            status,
            error_type: text("type").unwrap_or_default(),
            message: text("message").unwrap_or_default(),
            field: text("field"),
            reason: text("reason"),
            detail: text("detail"),
            errors: array_items("errors").map(parse_error).collect(),
            conflicts: array_items("conflicts").map(FieldConflict::from_json).collect(),
            warning: top_level_text("warning"),
            overwrite_command: None,
            object: top_level_text("object"),
            written_object: top_level_text("written"),
            used_by: array_items("used_by").filter_map(Value::as_str).map(str::to_owned).collect(),
            findings: array_items("findings").filter_map(|finding| Finding::deserialize(finding).ok()).collect(),
            refusals: array_items("refusals").map(|refusal| Self::from_body(refusal, status)).collect(),
        }
    }

    /// Returns the exit status for this refusal. It depends on the HTTP status. The error `store.outcome_unknown` is an
    /// exception: the controller does not know whether it stored the write.
    pub(crate) fn exit(&self) -> Exit {
        match StatusCode::from_u16(self.status) {
            _ if self.error_type == "store.outcome_unknown" => Exit::Unknown,
            Ok(StatusCode::NOT_FOUND) => Exit::NotFound,
            Ok(StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED) => Exit::Conflict,
            _ => Exit::Error,
        }
    }

    /// Returns what the user can do about the error, if that is known. Some error types have several causes. Only the
    /// text of the message tells them apart.
    fn advice(&self) -> Option<&'static str> {
        match self.error_type.as_str() {
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

/// Parses one error of a release that does not compile. Returns the path of its field, if it has one, and its message.
fn parse_error(error: &Value) -> (Option<String>, String) {
    (error["field"].as_str().map(str::to_owned), error["message"].as_str().unwrap_or_default().to_owned())
}

impl FieldConflict {
    /// Parses a conflict. Some conflicts contain no value. Their text for the value depends on the map.
    fn from_json(conflict: &Value) -> Self {
        let text = |name: &str| conflict[name].as_str().unwrap_or_default().to_owned();
        let value_text = match (&conflict["value"], conflict["map"].as_str()) {
            // The field has its default value, or its value is secret.
            (Value::Null, Some("fields")) => "set here".to_owned(),
            // A trait has no value.
            (Value::Null, Some("traits")) => "set".to_owned(),
            (json_value, _) => json_value.to_string(),
        };
        Self { map: text("map"), key: text("key"), owner: text("manager"), value: value_text }
    }

    /// Returns the path of the field or key, such as `labels.tier`. A manifest may have no such field, as for
    /// `tags.db`.
    pub(crate) fn conflict_path(&self) -> String {
        if self.map == "fields" { self.key.clone() } else { format!("{}.{}", self.map, self.key) }
    }
}

impl fmt::Display for FieldConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, owned by {}", self.conflict_path(), self.value, self.owner)
    }
}

impl fmt::Display for ApiRefusal {
    /// Writes the message, then one indented line for each detail, advice, conflict, warning and finding, and the
    /// command that also changes what others own. If there are conflicts, a fixed sentence replaces the controller's
    /// message and details.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A field that the message already names is not printed again.
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

    /// Parses an error response with this status and body.
    fn refusal(status: StatusCode, body: &[u8]) -> ApiRefusal {
        let response = Response::builder().status(status).body(Bytes::copy_from_slice(body)).unwrap();
        ApiRefusal::from_response(&response, "GET", "/v1/nodes")
    }

    /// The text of a refusal with conflicts does not contain the controller's message.
    #[test]
    fn refusal_text_and_exit_depend_on_response() {
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
        let not_json = refusal(StatusCode::BAD_GATEWAY, b"<html>");
        assert_eq!((not_json.to_string(), not_json.exit()), ("GET /v1/nodes: 502 Bad Gateway".to_owned(), Exit::Error));
        let outcome_unknown =
            refusal(StatusCode::SERVICE_UNAVAILABLE, br#"{"error": {"type": "store.outcome_unknown", "message": "x"}}"#);
        assert_eq!(outcome_unknown.exit(), Exit::Unknown);
    }

    /// By `docs/errors.md`, status 3 means that the object of the command does not exist. If a missing object is only
    /// referred to, the status is 1.
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

    /// If the controller's message does not end with the required role, the advice is to send the request as an admin.
    #[test]
    fn y09_refusal_names_role_to_use_when_denied() {
        for (message_end, person) in
            [("; this needs role operator", "an operator"), ("; this needs role admin", "an admin"), ("", "an admin")]
        {
            let message = format!("Permission denied: v (viewer) cannot do this: 'Stores a release.'{message_end}");
            let body = serde_json::json!({"error": {"type": "auth.forbidden", "message": message}});
            let denied = refusal(StatusCode::FORBIDDEN, body.to_string().as_bytes());
            let expected = format!("{message}\n  ask as {person}: --context names another context");
            assert_eq!(denied.to_string(), expected);
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
                "Authentication required: send a certificate or a token.",
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
        let expected = "a strict write, and 1 warning among the findings; nothing was changed\n  warning reference.unset release/r task t: m";
        assert_eq!((strict.to_string().as_str(), strict.exit()), (expected, Exit::Error));
    }
}
