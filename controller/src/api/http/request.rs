//! A request as handlers see it, and what they answer: bounded, parsed on demand, without a framework's types.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use hyper::{HeaderMap, Method, StatusCode, Uri, header};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use stemma_core::name::is_blank;
use stemma_core::ownership::Manager;
use stemma_wire::endpoint::{Endpoint, Header, Minor, Shows};
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::net::LOCAL;
use stemma_wire::serve::Peer;
use tokio::sync::mpsc::Receiver;
use uuid::Uuid;

use super::body::Pieces;
use super::json;
use super::prefer;
use super::query::Parameters;
use super::version::{IRONIC_VERSION, Negotiated, OPENSTACK_VERSION};
use crate::records::request::Answer;
use crate::registry::{Abandoned, Caller, Mark, Who};

/// The largest body of everything but a blob: a release with all of its tasks in it.
pub(crate) const MOST_BODY_BYTES: usize = 8 * 1024 * 1024;

/// The answer's header to a write that was tried out: how many hosts it reaches.
const HOSTS: header::HeaderName = header::HeaderName::from_static("stemma-hosts");
/// Likewise: of how many of them the task set changes.
const TASK_SETS: header::HeaderName = header::HeaderName::from_static("stemma-task-sets");

/// The media type of JSON.
pub(crate) const JSON: &str = "application/json";

/// A request, whole.
pub(crate) struct Request {
    /// The method.
    pub method: Method,
    /// The address as it was sent, without `dry_run`.
    pub uri: Uri,
    /// The parameters of its query, all of which its route knows.
    pub query: Parameters,
    /// The row of the endpoint table.
    pub endpoint: Endpoint,
    /// Which fields its answer shows.
    pub fields: Chosen,
    /// Whether the write is only tried out (`?dry_run=true`).
    pub dry_run: bool,
    /// The parts of the path that its route leaves open, decoded, by name.
    pub path: Vec<(String, String)>,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, at most [`MOST_BODY_BYTES`].
    pub body: Bytes,
    /// The versions that it asks for.
    pub versions: Negotiated,
    /// What is at the other end.
    pub peer: Option<Arc<Peer>>,
    /// Who asks.
    pub who: Who,
    /// What it is called in answer and journal.
    pub id: String,
    /// The server's address as the client wrote it, as `https://host:port`, for links.
    pub base: String,
    /// Set once nobody waits for the answer any more.
    pub abandoned: Abandoned,
}

/// An answer.
pub(crate) struct Reply {
    /// The status.
    pub status: StatusCode,
    /// Headers beside those that every answer has.
    pub headers: HeaderMap,
    /// The body.
    pub body: Body,
}

/// The body of an answer.
pub(crate) enum Body {
    /// None.
    Nothing,
    /// A text, or any other value as JSON.
    Value(Value),
    /// The same, written.
    Written(Bytes, &'static str),
    /// JSON in pieces.
    Pieces(Pieces),
    /// A file's bytes in pieces.
    File(Pieces),
    /// Server-sent events, as they come.
    Events(Receiver<Bytes>),
}

/// Which fields an answer shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chosen {
    /// Those that the request chooses.
    pub named: Option<BTreeSet<&'static str>>,
    /// What a list shows where it chooses none.
    pub listed: Option<&'static Shows>,
    /// Whether the path is one of Ironic's, where links are always shown.
    pub links: bool,
    /// Whether the client names a version of Ironic's.
    pub is_ironics: bool,
}

impl Chosen {
    /// Whether a field is shown; where none is chosen, of a list or of `all`.
    pub(crate) fn has(&self, field: &str, all: bool) -> bool {
        match (&self.named, self.listed) {
            (Some(named), _) => named.contains(field) || (self.links && field == "links"),
            (None, Some(listed)) if !all => listed.has(field, self.is_ironics),
            (None, _) => true,
        }
    }
}

/// What a handler answers.
pub(crate) type HandlerResult = Result<Reply, ApiError>;

impl Reply {
    /// A body with status 200.
    pub(crate) fn ok(body: Value) -> Self {
        Self { status: StatusCode::OK, headers: HeaderMap::new(), body: Body::Value(body) }
    }

    /// JSON in pieces with status 200; one that is all in its first piece goes whole, with its length.
    pub(crate) fn pieces(mut pieces: impl Iterator<Item = Bytes> + Send + 'static) -> Self {
        let (first, second) = (pieces.next().unwrap_or_default(), pieces.next());
        let body = match second {
            None => Body::Written(first, JSON),
            Some(second) => Body::Pieces(Box::new([first, second].into_iter().chain(pieces).map(Ok))),
        };
        Self { status: StatusCode::OK, headers: HeaderMap::new(), body }
    }

    /// The same, its value written.
    #[must_use]
    pub(crate) fn written_out(self) -> Self {
        let body = match self.body {
            Body::Value(Value::String(text)) => Body::Written(text.into(), "text/plain; charset=utf-8"),
            Body::Value(value) => Body::Written(value.to_string().into(), JSON),
            other @ (Body::Nothing | Body::Written(..) | Body::Pieces(_) | Body::File(_) | Body::Events(_)) => other,
        };
        Self { body, ..self }
    }

    /// Events as they come, with status 200.
    pub(crate) fn events(events: Receiver<Bytes>) -> Self {
        Self { status: StatusCode::OK, headers: HeaderMap::new(), body: Body::Events(events) }
    }

    /// No body.
    pub(crate) fn empty(status: StatusCode) -> Self {
        Self { status, headers: HeaderMap::new(), body: Body::Nothing }
    }

    /// The same, without the fields that the request does not choose.
    #[must_use]
    pub(crate) fn chosen(mut self, request: &Request) -> Self {
        let (Body::Value(body), Some(fields)) = (&mut self.body, request.endpoint.fields()) else { return self };
        let choose = |row: &mut Value| {
            if let Value::Object(row) = row {
                row.retain(|field, _| request.fields.has(field, true));
            }
        };
        match &fields.list {
            None => choose(body),
            Some(list) => body[list].as_array_mut().into_iter().flatten().for_each(choose),
        }
        self
    }

    /// The same, with the tag of what was read, for the next `If-Match`.
    #[must_use]
    pub(crate) fn tagged(mut self, resource_version: u64) -> Self {
        self.set(header::ETAG, &format!("\"{resource_version}\""));
        self
    }

    /// The same, with what the request preferred and got.
    #[must_use]
    pub(crate) fn with_preference(mut self, request: &Request) -> Self {
        if request.prefers_body() && !matches!(self.body, Body::Nothing) {
            self.set(prefer::APPLIED, prefer::REPRESENTATION);
        }
        self
    }

    /// Sets a header; text that no header can carry is left out.
    pub(crate) fn set(&mut self, name: header::HeaderName, value: &str) {
        if let Ok(value) = header::HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
    }

    /// The answer of a write. Its location is a path, which the client's own address for this server precedes.
    pub(crate) fn written(answer: Answer, base: &str) -> Self {
        let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
        let version = answer.body.get("resource_version").and_then(Value::as_u64);
        let body = if answer.body.is_null() { Body::Nothing } else { Body::Value(answer.body) };
        let mut reply = Self { status, headers: HeaderMap::new(), body };
        if let Some(location) = &answer.location {
            reply.set(header::LOCATION, &format!("{base}{location}"));
        }
        if let Some(warning) = &answer.warning {
            reply.set(header::WARNING, &format!("299 stemma \"{}\"", quoted(warning)));
        }
        for (name, count) in [(HOSTS, answer.hosts), (TASK_SETS, answer.task_sets)] {
            if let Some(count) = count {
                reply.set(name, &count.to_string());
            }
        }
        match version {
            Some(version) => reply.tagged(version),
            None => reply,
        }
    }
}

/// The longest text of a warning. A client that takes no such header would lose the whole answer of a write that was made.
const MAX_WARNING: usize = 2048;

/// The text as one quoted string of a header, which takes ASCII alone, cut at [`MAX_WARNING`].
fn quoted(text: &str) -> String {
    let ascii = |c| match c {
        '"' | '\\' => '\'',
        ' '..='~' => c,
        _ => '?',
    };
    let mut quoted: String = text.replace('…', "...").chars().map(ascii).collect();
    if quoted.len() > MAX_WARNING {
        quoted.truncate(MAX_WARNING - 3);
        quoted.push_str("...");
    }
    quoted
}

/// The kinds of bodies that a PATCH may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchKind {
    /// A list of operations, as Ironic's and Magnum's clients send.
    Json,
    /// RFC 7396.
    Merge,
    /// Server-side apply.
    Apply,
}

impl Request {
    /// A part of the path.
    pub(crate) fn part(&self, name: &str) -> &str {
        self.path.iter().find(|(n, _)| n == name).map_or("", |(_, value)| value)
    }

    /// The path, without the query.
    pub(crate) fn url(&self) -> String {
        format!("{}{}", self.base, self.uri.path().trim_end_matches('/'))
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// [`ErrorType::RequestMalformed`] for an empty one, or one that is no JSON document that is taken.
    pub(crate) fn json(&self) -> Result<Value, ApiError> {
        self.check_json()?;
        Ok(json::parse(&self.body)?)
    }

    /// The body as a JSON patch, as [`json::read_patch`] gives it.
    ///
    /// # Errors
    /// As [`Self::json`].
    pub(crate) fn json_patch(&self, has_actions: bool) -> Result<json::PatchBody, ApiError> {
        self.check_json()?;
        Ok(json::read_patch(&self.body, has_actions)?)
    }

    /// Refuses a request without a JSON body.
    fn check_json(&self) -> Result<(), ApiError> {
        if self.body.iter().all(u8::is_ascii_whitespace) {
            return Err(ApiError::new(ErrorType::RequestMalformed, "this request needs a JSON body, and has none"));
        }
        self.check_media_type()
    }

    /// Refuses the kinds of bodies that a page of another site may make a browser send without being asked first (S56).
    fn check_media_type(&self) -> Result<(), ApiError> {
        let sent = self.media_type().to_ascii_lowercase();
        if !matches!(&*sent, "text/plain" | "application/x-www-form-urlencoded" | "multipart/form-data") {
            return Ok(());
        }
        let message = format!("a body here is {JSON}, not {}: send it with `Content-Type: {JSON}`", quote(&sent));
        Err(ApiError::new(ErrorType::RequestMediaType, message))
    }

    /// What kind of body it says that it has, without parameters.
    fn media_type(&self) -> String {
        let sent = self.text(header::CONTENT_TYPE.as_str()).unwrap_or_default();
        sent.split(';').next().unwrap_or_default().trim().to_owned()
    }

    /// The body as a map of text.
    ///
    /// # Errors
    /// As [`Self::json`].
    pub(crate) fn texts(&self) -> Result<Value, ApiError> {
        self.check_media_type()?;
        Ok(json::parse_texts(&self.body)?)
    }

    /// The body as a map of values by itself.
    ///
    /// # Errors
    /// As [`Self::json`].
    pub(crate) fn values(&self) -> Result<Value, ApiError> {
        self.check_media_type()?;
        Ok(json::parse_values(&self.body)?)
    }

    /// The body as a JSON object.
    ///
    /// # Errors
    /// As [`Self::json`], and for anything else than an object.
    pub(crate) fn object(&self) -> Result<Map<String, Value>, ApiError> {
        match self.json()? {
            Value::Object(object) => Ok(object),
            other => {
                let found: String = other.to_string().chars().take(64).collect();
                Err(ApiError::new(ErrorType::RequestMalformed, format!("the body must be a JSON object, not {found}")))
            }
        }
    }

    /// Refuses a body where none is meant; an empty object or `null` counts as none (as Ironic).
    ///
    /// # Errors
    /// [`ErrorType::RequestMalformed`].
    pub(crate) fn no_body(&self) -> Result<(), ApiError> {
        if self.body.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        match self.json()? {
            Value::Null => Ok(()),
            Value::Object(object) if object.is_empty() => Ok(()),
            _ => Err(ApiError::new(ErrorType::RequestMalformed, "this request takes no body")),
        }
    }

    /// What kind of patch this is. `OpenStack`'s clients send JSON patches as plain JSON.
    ///
    /// # Errors
    /// [`ErrorType::RequestMediaType`].
    pub(crate) fn patch_kind(&self) -> Result<PatchKind, ApiError> {
        match &*self.media_type() {
            "" | "application/json" | "application/json-patch+json" | "application/openstack-json-patch+json" => {
                Ok(PatchKind::Json)
            }
            "application/merge-patch+json" => Ok(PatchKind::Merge),
            "application/apply-patch+json" => Ok(PatchKind::Apply),
            other => {
                let kinds = "application/json-patch+json, application/merge-patch+json or application/apply-patch+json";
                Err(ApiError::new(ErrorType::RequestMediaType, format!("a patch is {kinds}, not {}", quote(other))))
            }
        }
    }

    /// The revision that the request presumes, from `If-Match`.
    ///
    /// # Errors
    /// [`ErrorType::RequestMalformed`] for a tag that no answer had.
    pub(crate) fn presumed(&self) -> Result<Option<u64>, ApiError> {
        let Some(tag) = self.header(Header::IfMatch) else { return Ok(None) };
        if tag.trim() == "*" {
            return Ok(None);
        }
        let number = tag.trim().trim_start_matches("W/").trim_matches('"').parse();
        let refused = |_| {
            ApiError::new(ErrorType::RequestMalformed, format!("If-Match {} is no tag that an answer had", quote(&tag)))
        };
        number.map(Some).map_err(refused)
    }

    /// A header that the endpoint table says the row reads, as text.
    pub(crate) fn header(&self, header: Header) -> Option<String> {
        debug_assert!(self.endpoint.route().headers.contains(&header), "{:?} reads {header:?}", self.endpoint);
        self.text(header.name())
    }

    /// A header as text.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    }

    /// Whether it comes from one of `OpenStack`'s clients, which all name a version, but for Glance's, whose paths are its own.
    pub(crate) fn is_of_openstack(&self) -> bool {
        let is_of_glance = self.uri.path().starts_with("/v2/");
        is_of_glance || [IRONIC_VERSION, OPENSTACK_VERSION].iter().any(|name| self.headers.contains_key(*name))
    }

    /// Whether a write that answers with nothing is asked to say what it changed.
    pub(crate) fn prefers_body(&self) -> bool {
        prefer::prefers_representation(&self.headers)
    }

    /// Magnum's minor version.
    pub(crate) fn magnum(&self) -> Minor {
        self.versions.container_infra
    }

    /// Ironic's minor version.
    pub(crate) fn ironic(&self) -> Minor {
        self.versions.baremetal
    }

    /// Who asks, under which manager, with which mark.
    ///
    /// # Errors
    /// A manager, a reason or an `Idempotency-Key` that is none.
    pub(crate) fn caller(&self) -> Result<Caller, ApiError> {
        let named = self.query.one("manager")?.map(Manager::of_new);
        let manager = named
            .unwrap_or_else(|| Manager::new(self.principal()))
            .map_err(|e| ApiError::new(ErrorType::RequestQuery, e.to_string()).field("manager"))?;
        Ok(Caller {
            manager,
            address: self.address(),
            reason: self.reason()?,
            request_id: self.id.clone(),
            mark: if self.dry_run { None } else { self.mark()? },
            dry_run: self.dry_run,
            abandoned: self.abandoned.clone(),
            who: self.who.clone(),
        })
    }

    /// Why, for the audit.
    fn reason(&self) -> Result<Option<String>, ApiError> {
        let Some(reason) = self.headers.get("stemma-reason") else { return Ok(None) };
        let refused = |what: &str| {
            let message = format!("the header Stemma-Reason {what}; nothing was changed");
            ApiError::new(ErrorType::RequestMalformed, message).detail("say why, in UTF-8, or leave the header out")
        };
        let reason = std::str::from_utf8(reason.as_bytes()).map_err(|_| refused("is no UTF-8"))?;
        if is_blank(reason) {
            return Err(refused("has nothing in it"));
        }
        Ok(Some(reason.chars().take(512).collect()))
    }

    /// From where it comes.
    fn address(&self) -> String {
        match self.peer.as_ref().map(|peer| peer.address) {
            None => String::new(),
            Some(address) if address == LOCAL => "unix".to_owned(),
            Some(address) => address.to_string(),
        }
    }

    /// The name of who asks.
    pub(crate) fn principal(&self) -> &str {
        &self.who.name
    }

    fn mark(&self) -> Result<Option<Mark>, ApiError> {
        let Some(key) = self.text("idempotency-key") else { return Ok(None) };
        let refused =
            |_| ApiError::new(ErrorType::RequestMalformed, format!("the Idempotency-Key {} is no UUID", quote(&key)));
        let id: Uuid = key.trim().trim_matches('"').parse().map_err(refused)?;
        let mut hash = Sha256::new();
        for part in [self.method.as_str(), self.uri.path(), self.uri.query().unwrap_or_default()] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        hash.update(&self.body);
        let hash = stemma_core::digest::Hex(&hash.finalize()).to_string();
        Ok(Some(Mark { id, hash }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y09_a_write_that_is_tried_out_says_how_many_hosts_it_reaches_and_of_how_many_the_task_sets_change() {
        let reply = Reply::written(Answer { hosts: Some(16), task_sets: Some(8), ..Answer::empty(204) }, "");
        assert_eq!([&reply.headers["stemma-hosts"], &reply.headers["stemma-task-sets"]], ["16", "8"]);
        let reply = Reply::written(Answer::empty(204), "");
        assert!(reply.headers.is_empty(), "{:?}", reply.headers);
    }

    #[test]
    fn a_warning_is_told_whatever_it_quotes() {
        let answer = Answer { warning: Some("label \"café\" …".to_owned()), ..Answer::empty(200) };
        let reply = Reply::written(answer, "");
        assert_eq!(reply.headers.get(header::WARNING).unwrap(), "299 stemma \"label 'caf?' ...\"");
        let answer = Answer { warning: Some("ü".repeat(100_000)), ..Answer::empty(200) };
        let warned = Reply::written(answer, "").headers.get(header::WARNING).unwrap().len();
        assert_eq!(warned, "299 stemma \"\"".len() + MAX_WARNING);
    }
}
