//! A request as handlers see it, and their response: limited in size, parsed on demand, without a framework's types.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use hyper::{HeaderMap, Method, StatusCode, Uri, header};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use stemma_core::name::is_blank;
use stemma_core::ownership::Manager;
use stemma_wire::endpoint::{DefaultFields, Endpoint, MinorVersion, RouteHeader};
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::net::LOCAL_ADDRESS;
use stemma_wire::serve::Peer;
use tokio::sync::mpsc::Receiver;
use uuid::Uuid;

use super::body::BodyStream;
use super::json;
use super::prefer;
use super::query::QueryString;
use super::version::{IRONIC_VERSION, NegotiatedVersions, OPENSTACK_VERSION};
use crate::records::request::StoredAnswer;
use crate::registry::{Caller, Canceled, IdempotencyKey, Requester};

/// Maximum size of a body, in bytes, except for a file. A release with all of its tasks must fit.
pub(crate) const MAX_BODY_BYTES: usize = 8 * 1024 * 1024;

/// The response header of a dry run with the number of hosts that the write would affect and that the caller can see.
const HOSTS_HEADER: header::HeaderName = header::HeaderName::from_static("stemma-hosts");
/// The response header of a dry run with the number of visible hosts whose task set the write would change.
const TASK_SETS_HEADER: header::HeaderName = header::HeaderName::from_static("stemma-task-sets");

/// The media type of JSON.
pub(crate) const JSON: &str = "application/json";

/// A complete request.
pub(crate) struct HttpRequest {
    /// The method.
    pub method: Method,
    /// The URI as the client sent it, without `dry_run`.
    pub uri: Uri,
    /// The query parameters, except `dry_run`, also those that the route ignores.
    pub query: QueryString,
    /// The endpoint that the method and the path name.
    pub endpoint: Endpoint,
    /// The fields that the response shows.
    pub fields: FieldSelection,
    /// True for a dry run (`?dry_run=true`).
    pub dry_run: bool,
    /// The variable parts of the path, decoded, by name.
    pub params: Vec<(String, String)>,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, at most [`MAX_BODY_BYTES`], or `blobs::MAX_BYTES` for a file.
    pub body: Bytes,
    /// The versions of Ironic's and Magnum's APIs that the request selects.
    pub versions: NegotiatedVersions,
    /// The other end of the connection, if it is known.
    pub peer: Option<Arc<Peer>>,
    /// The caller, with its rights.
    pub requester: Requester,
    /// The id of the request, in the response and the journal.
    pub id: String,
    /// The address of this server as the client wrote it, such as `https://host:port`. Links begin with it.
    pub base_url: String,
    /// A flag that is set when no client waits for the response any more.
    pub canceled: Canceled,
}

/// A response.
pub(crate) struct HttpResponse {
    /// The status.
    pub status: StatusCode,
    /// Headers in addition to those of every response.
    pub headers: HeaderMap,
    /// The body.
    pub body: ResponseBody,
}

/// The body of a response.
pub(crate) enum ResponseBody {
    /// No body.
    Empty,
    /// A JSON value. A value that is text is sent as plain text.
    Json(Value),
    /// Encoded text or JSON, with its media type.
    Encoded(Bytes, &'static str),
    /// JSON in pieces.
    JsonStream(BodyStream),
    /// A file's bytes in pieces.
    FileStream(BodyStream),
    /// Server-sent events, as they arrive.
    Events(Receiver<Bytes>),
}

/// The fields that a response shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct FieldSelection {
    /// The fields that the parameter `fields` names, if the request has it. Empty if an Ironic client gives no value.
    pub requested: Option<BTreeSet<&'static str>>,
    /// The fields that a list shows if the request does not have the parameter `fields`.
    pub list_default: Option<&'static DefaultFields>,
    /// True on Ironic's paths, where links are always shown.
    pub has_links: bool,
    /// True if the request has a version header for Ironic.
    pub is_ironic_client: bool,
}

impl FieldSelection {
    /// Returns whether the response shows a field. If the request selects no fields, all fields are shown if
    /// `shows_all` is true or the endpoint has no default fields, and else the default fields of a list.
    pub(crate) fn has(&self, field: &str, shows_all: bool) -> bool {
        match (&self.requested, self.list_default) {
            (Some(requested), _) => requested.contains(field) || (self.has_links && field == "links"),
            (None, Some(default_fields)) if !shows_all => default_fields.contains(field, self.is_ironic_client),
            (None, _) => true,
        }
    }
}

/// The result of a handler.
pub(crate) type HandlerResult = Result<HttpResponse, ApiError>;

impl HttpResponse {
    /// Returns a response with this body and status 200.
    pub(crate) fn ok(body: Value) -> Self {
        Self { status: StatusCode::OK, headers: HeaderMap::new(), body: ResponseBody::Json(body) }
    }

    /// Returns a response with JSON in pieces and status 200. A single piece is sent as a whole, so that the response
    /// has a length.
    pub(crate) fn stream(mut pieces: impl Iterator<Item = Bytes> + Send + 'static) -> Self {
        let (first, second) = (pieces.next().unwrap_or_default(), pieces.next());
        let body = match second {
            None => ResponseBody::Encoded(first, JSON),
            Some(second) => ResponseBody::JsonStream(Box::new([first, second].into_iter().chain(pieces).map(Ok))),
        };
        Self { status: StatusCode::OK, headers: HeaderMap::new(), body }
    }

    /// Returns the response with its JSON body as bytes, and with the media type of the body.
    #[must_use]
    pub(crate) fn encode(self) -> Self {
        let body = match self.body {
            ResponseBody::Json(Value::String(text)) => ResponseBody::Encoded(text.into(), "text/plain; charset=utf-8"),
            ResponseBody::Json(value) => ResponseBody::Encoded(value.to_string().into(), JSON),
            encoded @ (ResponseBody::Empty
            | ResponseBody::Encoded(..)
            | ResponseBody::JsonStream(_)
            | ResponseBody::FileStream(_)
            | ResponseBody::Events(_)) => encoded,
        };
        Self { body, ..self }
    }

    /// Returns a response with a stream of events and status 200.
    pub(crate) fn events(events: Receiver<Bytes>) -> Self {
        Self { status: StatusCode::OK, headers: HeaderMap::new(), body: ResponseBody::Events(events) }
    }

    /// Returns a response without a body and with this status.
    pub(crate) fn empty(status: StatusCode) -> Self {
        Self { status, headers: HeaderMap::new(), body: ResponseBody::Empty }
    }

    /// Returns the response without the fields that the request does not select.
    #[must_use]
    pub(crate) fn select_fields(mut self, request: &HttpRequest) -> Self {
        let (ResponseBody::Json(body), Some(fields)) = (&mut self.body, request.endpoint.selectable_fields()) else {
            return self;
        };
        let select = |row: &mut Value| {
            if let Value::Object(row) = row {
                // `true`: if the request selects no fields, all of them are shown.
                row.retain(|field, _| request.fields.has(field, true));
            }
        };
        match &fields.list_name {
            None => select(body),
            Some(list) => body[list].as_array_mut().into_iter().flatten().for_each(select),
        }
        self
    }

    /// Returns the response with the object's `resource_version` as `ETag`. The client can send it back in `If-Match`.
    #[must_use]
    pub(crate) fn with_etag(mut self, resource_version: u64) -> Self {
        self.set_header(header::ETAG, &format!("\"{resource_version}\""));
        self
    }

    /// Returns the response with the header that confirms the client's preference for a body, if the preference was
    /// applied.
    #[must_use]
    pub(crate) fn with_preference(mut self, request: &HttpRequest) -> Self {
        if request.is_body_preferred() && !matches!(self.body, ResponseBody::Empty) {
            self.set_header(prefer::PREFERENCE_APPLIED, prefer::RETURN_REPRESENTATION);
        }
        self
    }

    /// Sets a header. Has no effect if the value is not valid in a header.
    pub(crate) fn set_header(&mut self, name: header::HeaderName, value: &str) {
        if let Ok(value) = header::HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
    }

    /// Returns the response of a write from its stored answer. The location in `answer` is a path, which is appended to
    /// `base_url`, the address of this server as the client wrote it.
    pub(crate) fn from_answer(answer: StoredAnswer, base_url: &str) -> Self {
        let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
        let version = answer.body.get("resource_version").and_then(Value::as_u64);
        let body = if answer.body.is_null() { ResponseBody::Empty } else { ResponseBody::Json(answer.body) };
        let mut reply = Self { status, headers: HeaderMap::new(), body };
        if let Some(location) = &answer.location {
            reply.set_header(header::LOCATION, &format!("{base_url}{location}"));
        }
        if let Some(warning) = &answer.warning {
            // 299 is the code of a warning of any other kind (RFC 7234, section 5.5.7).
            reply.set_header(header::WARNING, &format!("299 stemma \"{}\"", quoted_string(warning)));
        }
        for (name, count) in [(HOSTS_HEADER, answer.hosts), (TASK_SETS_HEADER, answer.task_sets)] {
            if let Some(count) = count {
                reply.set_header(name, &count.to_string());
            }
        }
        match version {
            Some(version) => reply.with_etag(version),
            None => reply,
        }
    }
}

/// Maximum length of the text of a warning in its header, in bytes. If a client refused a longer header, it would lose
/// the response of a completed write.
const MAX_WARNING_BYTES: usize = 2048;

/// Converts a text to the content of a quoted string in a header. It has only ASCII characters, no quotation marks and
/// no backslashes. It is truncated at [`MAX_WARNING_BYTES`].
fn quoted_string(text: &str) -> String {
    let ascii = |character| match character {
        '"' | '\\' => '\'',
        ' '..='~' => character,
        _ => '?',
    };
    let mut content: String = text.replace('…', "...").chars().map(ascii).collect();
    if content.len() > MAX_WARNING_BYTES {
        content.truncate(MAX_WARNING_BYTES - 3);
        content.push_str("...");
    }
    content
}

/// The formats of a PATCH body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchKind {
    /// A JSON patch, as Ironic's and Magnum's clients send.
    Json,
    /// A merge patch (RFC 7396).
    Merge,
    /// Server-side apply of an object's labels, annotations and parameters: for each of these maps in the body, the
    /// content replaces what the same manager applied to that map before.
    Apply,
}

impl HttpRequest {
    /// Returns a variable part of the path, or an empty text if the path has no part with this name.
    pub(crate) fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(parameter, _)| parameter == name).map_or("", |(_, value)| value)
    }

    /// Returns the URL of the request without the query.
    pub(crate) fn url(&self) -> String {
        format!("{}{}", self.base_url, self.uri.path().trim_end_matches('/'))
    }

    /// Returns the body as JSON.
    ///
    /// # Errors
    /// [`ErrorType::RequestMalformed`] if it is empty or not an acceptable JSON document.
    pub(crate) fn json(&self) -> Result<Value, ApiError> {
        self.check_json()?;
        Ok(json::parse(&self.body)?)
    }

    /// Returns the body as a JSON patch, parsed by [`json::read_patch`] with the same `has_actions`.
    ///
    /// # Errors
    /// As [`Self::json`].
    pub(crate) fn json_patch(&self, has_actions: bool) -> Result<json::PatchBody, ApiError> {
        self.check_json()?;
        Ok(json::read_patch(&self.body, has_actions)?)
    }

    /// Fails if the request has no body, or if its media type is not allowed for JSON.
    fn check_json(&self) -> Result<(), ApiError> {
        if self.body.iter().all(u8::is_ascii_whitespace) {
            return Err(ApiError::new(ErrorType::RequestMalformed, "this request needs a JSON body, and has none"));
        }
        self.check_media_type()
    }

    /// Fails for a media type that a web page of another site can make a browser send without a preflight request to
    /// this server (security property S56).
    fn check_media_type(&self) -> Result<(), ApiError> {
        let media_type = self.media_type().to_ascii_lowercase();
        if !matches!(&*media_type, "text/plain" | "application/x-www-form-urlencoded" | "multipart/form-data") {
            return Ok(());
        }
        let message = format!("a body here is {JSON}, not {}: send it with `Content-Type: {JSON}`", quote(&media_type));
        Err(ApiError::new(ErrorType::RequestMediaType, message))
    }

    /// Returns the media type in the `Content-Type` header, without its parameters. Returns an empty text if there is
    /// no such header.
    fn media_type(&self) -> String {
        let header = self.header_text(header::CONTENT_TYPE.as_str()).unwrap_or_default();
        header.split(';').next().unwrap_or_default().trim().to_owned()
    }

    /// Returns the body, parsed by [`json::parse_texts`] as a map of text. Does not check that it is an object.
    ///
    /// # Errors
    /// As [`Self::json`].
    pub(crate) fn text_map(&self) -> Result<Value, ApiError> {
        self.check_media_type()?;
        Ok(json::parse_texts(&self.body)?)
    }

    /// Returns the body as a map of JSON values, such as `parameters`. Does not check that it is an object.
    ///
    /// # Errors
    /// As [`Self::json`].
    pub(crate) fn value_map(&self) -> Result<Value, ApiError> {
        self.check_media_type()?;
        Ok(json::parse_values(&self.body)?)
    }

    /// Returns the body as a JSON object.
    ///
    /// # Errors
    /// As [`Self::json`], and if it is not an object.
    pub(crate) fn object(&self) -> Result<Map<String, Value>, ApiError> {
        match self.json()? {
            Value::Object(object) => Ok(object),
            other => {
                let body_start: String = other.to_string().chars().take(64).collect();
                Err(ApiError::new(ErrorType::RequestMalformed, format!("the body must be a JSON object, not {body_start}")))
            }
        }
    }

    /// Fails if there is a body. An empty object or `null` counts as no body, as in Ironic.
    ///
    /// # Errors
    /// [`ErrorType::RequestMalformed`].
    pub(crate) fn check_no_body(&self) -> Result<(), ApiError> {
        if self.body.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        match self.json()? {
            Value::Null => Ok(()),
            Value::Object(object) if object.is_empty() => Ok(()),
            _ => Err(ApiError::new(ErrorType::RequestMalformed, "this request must not have a body")),
        }
    }

    /// Returns the format of this patch, from its media type. `OpenStack`'s clients send a JSON patch as plain JSON.
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
            kind => {
                let kinds = "application/json-patch+json, application/merge-patch+json or application/apply-patch+json";
                Err(ApiError::new(ErrorType::RequestMediaType, format!("a patch is {kinds}, not {}", quote(kind))))
            }
        }
    }

    /// Returns the revision that the object must have, from the `If-Match` header. Returns `None` if there is no such
    /// header or it is `*`, so that any revision is accepted.
    ///
    /// # Errors
    /// [`ErrorType::RequestMalformed`] for a tag that this server cannot have sent.
    pub(crate) fn if_match(&self) -> Result<Option<u64>, ApiError> {
        let Some(tag) = self.header(RouteHeader::IfMatch) else { return Ok(None) };
        if tag.trim() == "*" {
            return Ok(None);
        }
        // A weak tag (`W/"5"`) has the same number as a strong one (`"5"`).
        let number = tag.trim().trim_start_matches("W/").trim_matches('"').parse();
        let invalid_tag = |_| {
            ApiError::new(ErrorType::RequestMalformed, format!("If-Match {} is not a tag that a response can have", quote(&tag)))
        };
        number.map(Some).map_err(invalid_tag)
    }

    /// Returns a header as text, or `None` if it is absent. The endpoint table must list the header for this endpoint.
    pub(crate) fn header(&self, header: RouteHeader) -> Option<String> {
        debug_assert!(self.endpoint.route().headers.contains(&header), "{:?} reads {header:?}", self.endpoint);
        self.header_text(header.name())
    }

    /// Returns a header as text, or `None` if it is absent. The endpoint table need not list the header.
    pub(crate) fn header_text(&self, name: &str) -> Option<String> {
        self.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    }

    /// Returns whether the request is from a client of `OpenStack`. Such a client sends a version header, except for a
    /// client of Glance, which is recognized by its paths.
    pub(crate) fn is_openstack_client(&self) -> bool {
        let is_glance_path = self.uri.path().starts_with("/v2/");
        is_glance_path || [IRONIC_VERSION, OPENSTACK_VERSION].iter().any(|name| self.headers.contains_key(*name))
    }

    /// Returns whether the client prefers that the response of a write contains the changed object.
    pub(crate) fn is_body_preferred(&self) -> bool {
        prefer::is_representation_preferred(&self.headers)
    }

    /// Returns the requested minor version of Magnum's API.
    pub(crate) fn magnum_version(&self) -> MinorVersion {
        self.versions.container_infra
    }

    /// Returns the requested minor version of Ironic's API.
    pub(crate) fn ironic_version(&self) -> MinorVersion {
        self.versions.baremetal
    }

    /// Returns the caller of a write, with its manager, its reason and its idempotency key. Without the parameter
    /// `manager`, the name of the principal is the manager. A dry run has no idempotency key, because it stores no
    /// answer.
    ///
    /// # Errors
    /// The manager, the reason or the `Idempotency-Key` is invalid.
    pub(crate) fn caller(&self) -> Result<Caller, ApiError> {
        let parameter = self.query.get("manager")?.map(Manager::new_visible);
        let manager = parameter
            .unwrap_or_else(|| Manager::new(self.principal_name()))
            .map_err(|error| ApiError::new(ErrorType::RequestQuery, error.to_string()).field("manager"))?;
        Ok(Caller {
            manager,
            address: self.client_address(),
            reason: self.reason()?,
            request_id: self.id.clone(),
            idempotency_key: if self.dry_run { None } else { self.idempotency_key()? },
            dry_run: self.dry_run,
            canceled: self.canceled.clone(),
            requester: self.requester.clone(),
        })
    }

    /// Returns the reason that the caller gives for a write, which the audit records: `Stemma-Reason`, truncated to 512
    /// characters.
    fn reason(&self) -> Result<Option<String>, ApiError> {
        let Some(reason) = self.headers.get("stemma-reason") else { return Ok(None) };
        let invalid_header = |problem: &str| {
            let message = format!("the header Stemma-Reason {problem}; nothing was changed");
            ApiError::new(ErrorType::RequestMalformed, message).detail("give a reason in UTF-8, or omit the header")
        };
        let reason = std::str::from_utf8(reason.as_bytes()).map_err(|_| invalid_header("is not UTF-8"))?;
        if is_blank(reason) {
            return Err(invalid_header("is blank"));
        }
        Ok(Some(reason.chars().take(512).collect()))
    }

    /// Returns the address of the client for the audit, `unix` for the local socket, or an empty text if it is not
    /// known.
    fn client_address(&self) -> String {
        match self.peer.as_ref().map(|peer| peer.address) {
            None => String::new(),
            Some(address) if address == LOCAL_ADDRESS => "unix".to_owned(),
            Some(address) => address.to_string(),
        }
    }

    /// Returns the name of the caller.
    pub(crate) fn principal_name(&self) -> &str {
        &self.requester.name
    }

    /// Returns the `Idempotency-Key` of the request, with a hash of method, path, query and body. The hash shows
    /// whether a later request with the same key is a repetition of this one.
    fn idempotency_key(&self) -> Result<Option<IdempotencyKey>, ApiError> {
        let Some(key) = self.header_text("idempotency-key") else { return Ok(None) };
        let invalid_key =
            |_| ApiError::new(ErrorType::RequestMalformed, format!("the Idempotency-Key {} is not a UUID", quote(&key)));
        let id: Uuid = key.trim().trim_matches('"').parse().map_err(invalid_key)?;
        let mut hash = Sha256::new();
        for part in [self.method.as_str(), self.uri.path(), self.uri.query().unwrap_or_default()] {
            hash.update(part.as_bytes());
            // A zero byte ends each part, so that the same text split in another way has another hash.
            hash.update([0]);
        }
        hash.update(&self.body);
        let hash = stemma_core::digest::Hex(&hash.finalize()).to_string();
        Ok(Some(IdempotencyKey { id, hash }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In this test, the first answer has the numbers of hosts and of task sets, and the second one has neither number.
    #[test]
    fn y09_from_answer_sets_host_and_task_set_headers_when_counted() {
        let reply =
            HttpResponse::from_answer(StoredAnswer { hosts: Some(16), task_sets: Some(8), ..StoredAnswer::empty(204) }, "");
        assert_eq!([&reply.headers["stemma-hosts"], &reply.headers["stemma-task-sets"]], ["16", "8"]);
        let reply = HttpResponse::from_answer(StoredAnswer::empty(204), "");
        assert!(reply.headers.is_empty(), "{:?}", reply.headers);
    }

    #[test]
    fn warning_header_replaces_characters_and_shortens_text() {
        let answer = StoredAnswer { warning: Some("label \"café\" …".to_owned()), ..StoredAnswer::empty(200) };
        let reply = HttpResponse::from_answer(answer, "");
        assert_eq!(reply.headers.get(header::WARNING).unwrap(), "299 stemma \"label 'caf?' ...\"");
        let answer = StoredAnswer { warning: Some("ü".repeat(100_000)), ..StoredAnswer::empty(200) };
        let header_length = HttpResponse::from_answer(answer, "").headers.get(header::WARNING).unwrap().len();
        assert_eq!(header_length, "299 stemma \"\"".len() + MAX_WARNING_BYTES);
    }
}
