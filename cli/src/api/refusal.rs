//! What the controller refused, as a person reads it: the controller's own sentence, with field and detail.

use std::fmt;

use bytes::Bytes;
use hyper::{Response, StatusCode};
use serde::Deserialize as _;
use serde_json::Value;
use stemma_core::finding::Finding;
use stemma_wire::error::ErrorType;

use crate::exit::Exit;

/// An answer that is no success.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Refusal {
    /// Its HTTP status.
    status: u16,
    /// The stable name of its kind, as `label.conflict`.
    kind: String,
    /// What was wrong this time.
    pub(crate) message: String,
    /// The path of the field.
    pub(crate) field: Option<String>,
    /// What was wrong, without object and field; `None` where the controller is an older one.
    pub(crate) reason: Option<String>,
    /// What there is more to say.
    pub(crate) detail: Option<String>,
    /// Of a release that does not compile: each error with its field.
    pub(crate) errors: Vec<(Option<String>, String)>,
    /// What others own.
    pub(crate) conflicts: Vec<Conflict>,
    /// What may be why others own it: the manager to take it over from owns nothing.
    pub(crate) warning: Option<String>,
    /// The command that takes what others own.
    pub(super) overwriting: Option<String>,
    /// The key of the object that it is about, as `cluster/prod`, where no field of the request is.
    pub(crate) object: Option<String>,
    /// The key of the object of the request by which it is so, where `object` is another.
    pub(crate) written: Option<String>,
    /// The keys of the objects that refer to one that was to go, as `node/web-1`.
    used_by: Vec<String>,
    /// Findings that a strict write is refused for.
    pub(crate) findings: Vec<Finding>,
    /// Of an apply, where several of its objects are refused: each, this one among them.
    refusals: Vec<Refusal>,
}

/// A key or field that another manager owns with another value.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Conflict {
    /// `labels`, `annotations`, `parameters`, `traits`, `tags` or `fields`.
    pub(crate) map: String,
    /// The key, or the field's name.
    pub(crate) key: String,
    /// Who owns it, as `git:apply`.
    pub(crate) owner: String,
    /// Its present value, as JSON.
    pub(crate) value: String,
}

impl Exit {
    /// With which status an error ends the command.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        let refused = || error.downcast_ref::<Refusal>().map_or(Self::Error, Refusal::exit);
        Self::given(error).unwrap_or_else(refused)
    }
}

impl Refusal {
    /// Whether other objects refer to the one that was to go.
    pub(crate) fn is_in_use(&self) -> bool {
        self.kind == ErrorType::ObjectInUse.name()
    }

    /// Whether the query is not taken, as of a parameter that an older controller does not know.
    pub(crate) fn is_of_query(&self) -> bool {
        self.kind == ErrorType::RequestQuery.name()
    }

    /// The keys of the objects by which it is in use; none where the controller is an older one.
    pub(crate) fn users(&self) -> &[String] {
        &self.used_by
    }

    /// Each refusal of an apply.
    pub(crate) fn each(&self) -> &[Self] {
        if self.refusals.is_empty() { std::slice::from_ref(self) } else { &self.refusals }
    }

    /// Reads an answer; what is no error body of the API's is told by its status.
    pub(super) fn of(answer: &Response<Bytes>, method: &str, path: &str) -> Self {
        let status = answer.status();
        let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        let refusal = Self::read(&body, status.as_u16());
        match refusal.message.as_str() {
            "" => Self { message: format!("{method} {path}: {status}"), ..refusal },
            _ => refusal,
        }
    }

    fn read(body: &Value, status: u16) -> Self {
        let error = &body["error"];
        let text = |name: &str| error[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let beside = |name: &str| body[name].as_str().map(str::to_owned);
        let listed = |name: &str| body[name].as_array().into_iter().flatten();
        Self {
            status,
            kind: text("type").unwrap_or_default(),
            message: text("message").unwrap_or_default(),
            field: text("field"),
            reason: text("reason"),
            detail: text("detail"),
            errors: listed("errors").map(one_error).collect(),
            conflicts: listed("conflicts").map(Conflict::of).collect(),
            warning: beside("warning"),
            overwriting: None,
            object: beside("object"),
            written: beside("written"),
            used_by: listed("used_by").filter_map(Value::as_str).map(str::to_owned).collect(),
            findings: listed("findings").filter_map(|one| Finding::deserialize(one).ok()).collect(),
            refusals: listed("refusals").map(|one| Self::read(one, status)).collect(),
        }
    }

    /// With which status it ends the command.
    pub(crate) fn exit(&self) -> Exit {
        match StatusCode::from_u16(self.status) {
            _ if self.kind == "store.outcome_unknown" => Exit::Unknown,
            Ok(StatusCode::NOT_FOUND) => Exit::NotFound,
            Ok(StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED) => Exit::Conflict,
            _ => Exit::Error,
        }
    }

    /// What a person can do about who asks.
    fn advice(&self) -> Option<&'static str> {
        match self.kind.as_str() {
            "auth.required" if self.message.contains("the token is unknown") => Some(
                "have another made with `stemma principal token create`, and put it alone into the file that `token_file` of the context names",
            ),
            "auth.required" if self.message.contains("the certificate has ended") => {
                Some("ask an admin of this fleet for a new certificate")
            }
            "auth.required" => Some("give `cert` and `key` in the context: `stemma-controller init` made an admin's"),
            "auth.forbidden" if self.message.contains("; this needs role operator") => {
                Some("ask as an operator: --context names another context")
            }
            "auth.forbidden" => Some("ask as an admin: --context names another context"),
            "auth.revoked" | "certificate_expired" => Some("ask an admin of this fleet for a new certificate"),
            "path.unknown" => {
                Some("is the controller of an older version? `stemma get --raw /openapi.json` lists its paths")
            }
            "request.too_large" => Some("split it: fewer objects an apply, `source:` in place of long texts"),
            _ => None,
        }
    }
}

fn one_error(one: &Value) -> (Option<String>, String) {
    (one["field"].as_str().map(str::to_owned), one["message"].as_str().unwrap_or_default().to_owned())
}

impl Conflict {
    fn of(value: &Value) -> Self {
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let present = match (&value["value"], value["map"].as_str()) {
            // It stands at its default, or what it holds is nobody's to see.
            (Value::Null, Some("fields")) => "set here".to_owned(),
            // A trait has no value.
            (Value::Null, Some("traits")) => "set".to_owned(),
            (shown, _) => shown.to_string(),
        };
        Self { map: text("map"), key: text("key"), owner: text("manager"), value: present }
    }

    /// The path of the field in a manifest.
    pub(crate) fn field(&self) -> String {
        if self.map == "fields" { self.key.clone() } else { format!("{}.{}", self.map, self.key) }
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, owned by {}", self.field(), self.value, self.owner)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = self.field.as_deref().filter(|field| !self.message.contains(field));
        let mut text = match field {
            // The controller's sentence says them too, and the way out in the words of its API.
            _ if !self.conflicts.is_empty() => "others own what this would change".to_owned(),
            None => self.message.clone(),
            Some(field) => format!("{field}: {}", self.message),
        };
        let detail = self.detail.iter().flat_map(|detail| detail.lines()).filter(|_| self.conflicts.is_empty());
        detail.chain(self.advice()).for_each(|line| text.push_str(&format!("\n  {line}")));
        self.conflicts.iter().for_each(|conflict| text.push_str(&format!("\n  {conflict}")));
        self.warning.iter().for_each(|warning| text.push_str(&format!("\n  {warning}")));
        self.findings.iter().for_each(|finding| text.push_str(&format!("\n  {finding}")));
        self.overwriting.iter().for_each(|command| text.push_str(&format!("\n  to take it over: {command}")));
        f.write_str(&crate::output::printable_lines(&text))
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: StatusCode, body: &[u8]) -> Refusal {
        let answer = Response::builder().status(status).body(Bytes::copy_from_slice(body)).unwrap();
        Refusal::of(&answer, "GET", "/v1/nodes")
    }

    #[test]
    fn an_error_is_the_controllers_own_sentence() {
        let conflict = refusal(
            StatusCode::CONFLICT,
            br#"{"error": {"code": 409, "type": "label.conflict", "title": "x", "message": "tier is owned by git", "field": "labels.tier",
            "detail": "force it, or leave it out"}, "conflicts": [{"map": "labels", "key": "tier", "manager": "git:apply", "value": "gold"}]}"#,
        );
        assert_eq!(
            conflict.to_string(),
            "others own what this would change\n  labels.tier is \"gold\", owned by git:apply"
        );
        assert_eq!(conflict.exit(), Exit::Conflict);
        let other = refusal(StatusCode::BAD_GATEWAY, b"<html>");
        assert_eq!((other.to_string(), other.exit()), ("GET /v1/nodes: 502 Bad Gateway".to_owned(), Exit::Error));
        let lost = refusal(
            StatusCode::SERVICE_UNAVAILABLE,
            br#"{"error": {"type": "store.outcome_unknown", "message": "x"}}"#,
        );
        assert_eq!(lost.exit(), Exit::Unknown);
    }

    /// `docs/errors.md`: 3 is for what a command is about, and not for what it only refers to.
    #[test]
    fn y09_what_is_only_referred_to_and_not_there_is_an_error() {
        for (status, kind, exit) in [
            (StatusCode::NOT_FOUND, "object.not_found", Exit::NotFound),
            (StatusCode::BAD_REQUEST, "reference.dangling", Exit::Error),
        ] {
            let body =
                serde_json::json!({"error": {"type": kind, "message": "there is no node 'nosuch'", "field": "node"}});
            assert_eq!(refusal(status, body.to_string().as_bytes()).exit(), exit, "{kind}");
        }
    }

    #[test]
    fn y09_who_is_denied_is_told_as_whom_to_ask() {
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
    fn y09_what_mends_a_401_fits_what_was_shown() {
        for (message, advice) in [
            (
                "the token is unknown, has ended or was revoked",
                "have another made with `stemma principal token create`, and put it alone into the file that `token_file` of the context names",
            ),
            ("the certificate has ended; another is needed", "ask an admin of this fleet for a new certificate"),
            (
                "Authentication required: show a certificate or a token.",
                "give `cert` and `key` in the context: `stemma-controller init` made an admin's",
            ),
        ] {
            let body = serde_json::json!({"error": {"type": "auth.required", "message": message}});
            let refused = refusal(StatusCode::UNAUTHORIZED, body.to_string().as_bytes());
            assert_eq!(refused.to_string(), format!("{message}\n  {advice}"));
        }
    }

    #[test]
    fn y09_a_strict_write_says_what_it_is_refused_for() {
        let strict = refusal(
            StatusCode::BAD_REQUEST,
            br#"{"error": {"code": 400, "type": "finding.strict", "title": "x", "message": "a strict write, and 1 warning among the findings; nothing was changed"},
            "findings": [{"severity": "warning", "code": "reference.unset", "object": "release/r task t", "message": "m"}]}"#,
        );
        let said = "a strict write, and 1 warning among the findings; nothing was changed\n  warning reference.unset release/r task t: m";
        assert_eq!((strict.to_string().as_str(), strict.exit()), (said, Exit::Error));
    }
}
